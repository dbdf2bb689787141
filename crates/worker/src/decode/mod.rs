//! The decode worker: continuous batching over KV that prefill handed over.

mod copier;
mod effects;
mod engine;
mod step;

use crate::WorkerError;
use crate::driver::{self, Deadlines, Desk, Net, Stop, milliseconds};
use crate::start::{EngineConfig, Foundation, Ready, random};
use control::{Addr, Identity, Role};
use engine::Engine;
use fabric::shm::{Limits, ShmReceiver};
use handoff::decode::Config;
use model::KvLayout;
use std::path::PathBuf;
use std::time::Duration;
use trace::{Header, Writer};

/// Slots of a landing arena: what one prefill life may have on the way, in pages.
const ARENA_SLOTS: u32 = 128;
/// Pages of one batch, at most.
const BATCH_PAGES: usize = 16;
/// Arenas that the memory beside the pool is reckoned for.
const ARENAS: u64 = 2;
/// Arenas in use or still mapped by a lost writer, at most.
const ARENAS_MAX: u64 = 16;

/// What a decode worker is started with.
#[derive(Clone, Debug)]
pub struct DecodeConfig {
    /// Model, pool, arithmetic.
    pub engine: EngineConfig,
    /// Where prefill workers and gateways reach it.
    pub listen: Addr,
    /// Its certificates (`cofferdam certs new`).
    pub certs: PathBuf,
    /// Where the fabric makes its private directory; the system's directory for temporary files
    /// if not given.
    pub fabric_dir: Option<PathBuf>,
    /// Where a trace of the machine is written.
    pub trace: Option<PathBuf>,
    /// How long it waits for prefill workers.
    pub deadlines: Deadlines,
    /// Time for what runs, once it drains.
    pub drain_for: Duration,
    /// Whether SIGTERM and SIGINT drain it.
    pub signals: bool,
    /// The way to end it from the program around it.
    pub stop: Stop,
}

impl DecodeConfig {
    /// The defaults.
    pub fn new(engine: EngineConfig, listen: Addr, certs: impl Into<PathBuf>) -> Self {
        Self {
            engine,
            listen,
            certs: certs.into(),
            fabric_dir: None,
            trace: None,
            deadlines: Deadlines::default(),
            drain_for: Duration::from_secs(20),
            signals: false,
            stop: Stop::default(),
        }
    }
}

/// Runs a decode worker on the calling thread until it has drained. `ready` is called once, when
/// everything is allocated and peers can connect.
///
/// # Errors
/// See [`WorkerError`]; a [`WorkerError::FailStop`] has ended this epoch.
pub fn run(config: DecodeConfig, ready: impl FnOnce(&Ready)) -> Result<(), WorkerError> {
    let identity = Identity::load(&config.certs, Role::Decode)?;
    let beside = |layout: &KvLayout| ARENAS * arena_bytes(layout);
    let foundation = Foundation::lay(&config.engine, handoff::Role::Decode, beside)?;
    let pages = foundation.pool.size();
    let machine = Config {
        max_batch_pages: BATCH_PAGES,
        peer_ms: milliseconds(config.deadlines.peer),
        cancel_ms: milliseconds(config.deadlines.cancel),
        unsettled_ms: milliseconds(config.deadlines.unsettled),
        ..Config::for_pool(pages, foundation.context, random()?)
    };
    let trace = match &config.trace {
        None => None,
        Some(path) => {
            let (hello, pool) = (foundation.hello.clone(), foundation.pool_config.into());
            let header = Header::Decode {
                config: machine.clone(),
                hello,
                pool,
            };
            Some(Writer::create(path, &header)?)
        }
    };
    let limits = Limits {
        bytes_max: ARENAS_MAX * arena_bytes(foundation.kv.layout()),
    };
    let parent = config.fabric_dir.clone().unwrap_or_else(std::env::temp_dir);
    let receiver = ShmReceiver::new(&parent, foundation.mint.lend(), limits).map_err(|source| {
        WorkerError::System {
            what: "cannot make the fabric",
            source,
        }
    })?;

    let (net, inputs) = Net::new()?;
    let desk = Desk::new(inputs, trace, config.drain_for);
    let waiting = foundation.ready("decode", String::new());
    let mut engine = Engine::new(
        foundation,
        &config.engine,
        machine,
        desk,
        receiver,
        net.inbox(),
    )?;
    let roles = [Role::Prefill, Role::Gateway];
    let addr = net.listen(&config.listen, &identity, &roles)?;
    net.watch(&config.stop, config.signals)?;
    ready(&Ready {
        addr: addr.to_string(),
        ..waiting
    });
    let ended = driver::run(&mut engine);
    crate::say_end("decode", &ended);
    ended
}

fn arena_bytes(layout: &KvLayout) -> u64 {
    u64::from(ARENA_SLOTS) * layout.page_bytes() as u64
}
