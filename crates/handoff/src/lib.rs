//! The handoff: how a KV cache changes hands, as three sans-IO state machines.
//!
//! [`prefill::Prefill`], [`decode::Decode`] and [`gateway::Gateway`] are pure: an event goes in,
//! effects come out. They know no sockets, no threads, no clock and no randomness; even deadlines
//! are effects ([`Arm`](prefill::Effect::Arm)) that come back as events. A driver carries effects
//! out in order and may record events and effects as a trace: replayed through the machine alone
//! the same events give the same effects, byte for byte. [`door::Door`] is a fourth one, for engines
//! that are not ours (docs/door.md).
//!
//! Clauses (H-1 … H-20) refer to the specification in `docs/handoff.md`.
#![forbid(unsafe_code)]

mod broken;
pub mod codec;
mod decisions;
pub mod decode;
pub mod door;
pub mod gateway;
mod id;
mod limit;
mod machine;
mod message;
pub mod prefill;
mod prefix;
mod under_way;

pub use broken::{Broken, Entry};
pub use decisions::{AfterPrefill, Arrived, Close, Decisions, Evidence, Write};
pub use id::{ArenaId, AttemptId, Conn, HandoffId, LinkId, OfferId, RequestId, SubmissionId};
pub use limit::{Capacity, Lengths, Limit};
pub use machine::Machine;
pub use message::{
    Answers, Closing, DecodeToGateway, DecodeToPrefill, Ending, Failure, Fault, Finish,
    GatewayToDecode, GatewayToPrefill, Hello, LandingSite, Manifest, NoToken, PrefillToDecode,
    PrefillToGateway, Refusal, Rejection, Reserve, Resumed, Role, Spec, Stage, StatedPage, digest,
};
pub use pages::Sound;
pub use under_way::{Progress, UnderWay};

/// A connection was refused or ended by us; the driver closes it and logs why.
#[derive(
    Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, serde::Serialize, serde::Deserialize,
)]
pub enum Hangup {
    /// Another connection of the same peer life has replaced it.
    Replaced,
    /// The peer is not what it must be: what, expected, got.
    Incompatible {
        /// What differs.
        what: Differs,
        /// Ours.
        expected: String,
        /// The peer's.
        got: String,
    },
    /// The first message was no Hello, a second Hello came, or one before its time.
    OutOfOrder,
    /// A deadline of the peer passed; it is refused until it says Hello again.
    Deadline,
    /// The peer's life has failed too often.
    Refused,
}

/// What two workers must have in common, or a worker must be.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, serde::Serialize, serde::Deserialize,
)]
pub enum Differs {
    /// What it does.
    Role,
    /// Fingerprint of its model.
    Model,
    /// What it has measured.
    Capacity,
    /// Fingerprint of its pages' layout.
    Layout,
    /// Tokens of a page.
    PageSize,
    /// Writers of a life, which stay as many as they were.
    Ranks,
}

/// Whether the peer's Hello fits ours.
fn compatible(ours: &Hello, theirs: &Hello, role: Role) -> Result<(), Hangup> {
    let differs = |what, expected: String, got: String| {
        Err(Hangup::Incompatible {
            what,
            expected,
            got,
        })
    };
    let hex = |bytes: &[u8]| {
        bytes
            .iter()
            .take(8)
            .map(|b| format!("{b:02x}"))
            .collect::<String>()
    };
    if theirs.role != role {
        return differs(
            Differs::Role,
            format!("{role:?}"),
            format!("{:?}", theirs.role),
        );
    }
    if theirs.model != ours.model {
        return differs(Differs::Model, hex(&ours.model), hex(&theirs.model));
    }
    if role == Role::Gateway {
        return Ok(());
    }
    // What it advertises is computed with, by the gateway as well.
    let sound = |capacity: &Capacity| capacity.role == role && capacity.page_size > 0;
    if !theirs.capacity.as_ref().is_some_and(sound) {
        let expected = format!("one of {role:?}, with pages of at least one token");
        return differs(
            Differs::Capacity,
            expected,
            format!("{:?}", theirs.capacity),
        );
    }
    if ours.role == Role::Gateway {
        return Ok(());
    }
    if theirs.layout != ours.layout {
        return differs(Differs::Layout, hex(&ours.layout), hex(&theirs.layout));
    }
    let page_size = |hello: &Hello| hello.capacity.map_or(0, |capacity| capacity.page_size);
    if page_size(ours) != page_size(theirs) {
        let (expected, got) = (page_size(ours).to_string(), page_size(theirs).to_string());
        return differs(Differs::PageSize, expected, got);
    }
    Ok(())
}
