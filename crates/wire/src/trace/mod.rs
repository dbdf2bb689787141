//! One running trace, one truth: what the handoff's machines were told and what they answered, and
//! a replay of it through the machines alone.
//!
//! A [`Driver`] runs its machine through one loop, which writes down what the machine is told and what
//! it answers ([`Recorded`]). [`replay`] builds a fresh machine from the trace's header, feeds it the same
//! inputs and compares effects **byte for byte**. So a replayed trace of a real, loaded, disturbed
//! run says: the code that ran is the code that is checked.
//!
//! A fence's proof is not data. It is recorded as what it was about, and the replay makes its own
//! from its own pool's mint.
//!
//! File: the magic bytes, then records of a little-endian `u32` length and that many bytes of
//! postcard; the first record is the [`Header`], every other one an input followed by its effects.
//! A torn last record (the worker was killed) is not an error: what was cut is said.

mod audit;
mod drive;
mod owners;
mod read;
mod replay;
mod write;

pub use audit::{AuditEvent, AuditLog, AuditRecord};
pub use drive::{Driver, EffectOf, InputOf, Recorded};
pub use owners::{OWNERS_MAX, OwnersLog, PageOwner};
pub use read::{RECORD_BYTES_MAX, TraceError};
pub use replay::{ReplayObserver, Replayed, replay, replay_watched};
pub use write::Writer;

use handoff::{Hello, decode, door, gateway, prefill};
use pages::{Epoch, WriterLife};
use serde::{Deserialize, Serialize};

/// First bytes of a trace; the last one is the version.
const MAGIC: &[u8; 16] = b"cofferdam-trace\x03";

/// What a trace begins with: everything that a fresh machine is made from.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Header {
    /// A prefill worker's machine.
    Prefill {
        /// Its bounds.
        config: prefill::Config,
        /// What it said of itself.
        hello: Hello,
        /// Its pool.
        pool: PoolShape,
    },
    /// A decode worker's machine.
    Decode {
        /// Its bounds.
        config: decode::Config,
        /// What it said of itself.
        hello: Hello,
        /// Its pool.
        pool: PoolShape,
    },
    /// A gateway's machine.
    Gateway {
        /// Its bounds.
        config: gateway::Config,
        /// What it said of itself.
        hello: Hello,
    },
    /// The machine in front of engines that are not ours.
    Door {
        /// Its bounds.
        config: door::Config,
        /// Its life.
        epoch: Epoch,
    },
}

/// What a pool was made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PoolShape {
    /// Pages.
    pub pages: u32,
    /// Token slots a page.
    pub page_size: u16,
    /// Whether freed pages are zeroed.
    pub scrub: bool,
}

impl From<pages::Config> for PoolShape {
    fn from(config: pages::Config) -> Self {
        Self {
            pages: config.pages,
            page_size: config.page_size,
            scrub: config.scrub,
        }
    }
}

impl From<PoolShape> for pages::Config {
    fn from(shape: PoolShape) -> Self {
        Self {
            pages: shape.pages,
            page_size: shape.page_size,
            scrub: shape.scrub,
        }
    }
}

/// An input of the decode machine as it is read: with whom a proof was about.
pub type DecodeInput = decode::Input<WriterLife>;
