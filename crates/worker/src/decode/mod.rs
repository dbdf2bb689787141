//! The decode worker: continuous batching over KV that prefill handed over.

mod copier;
mod effects;
mod engine;
mod step;

use crate::driver::{self, Caps, Deadlines, DriverState, Net, Stop, milliseconds};
use crate::start::{EngineConfig, Loaded, Ready, random};
use crate::{FabricLayer, Nothing, WorkerError};
use engine::Engine;
use fabric::shm::ShmReceiver;
use fabric::tcp::{Listen, TcpReceiver};
use fabric::{Limits, Receiver};
use handoff::Decisions;
use handoff::decode::Config;
use model::KvLayout;
use pages::{FenceMint, Sound};
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use wire::control::{Addr, Identity, Role};
use wire::trace::{Header, Writer};

/// Slots of a landing arena, at most: what one prefill life may have on the way, in pages.
const ARENA_SLOTS_MAX: u32 = 128;
/// Bytes of a landing arena, where that leaves room for two batches.
const ARENA_BYTES: u64 = 128 << 20;
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
    /// if not given. Not for landing arenas over TCP.
    pub fabric_dir: Option<PathBuf>,
    /// Where prefill workers of other hosts reach landing arenas; without it arenas are shared
    /// memory, which only those of this host reach.
    pub data: Option<DataPort>,
    /// Where a trace of the machine is written.
    pub trace: Option<PathBuf>,
    /// File that the audit log is appended to; standard error if not given.
    pub audit: Option<PathBuf>,
    /// What others may hold at one time.
    pub caps: Caps,
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
            data: None,
            trace: None,
            audit: None,
            caps: Caps::default(),
            deadlines: Deadlines::default(),
            drain_for: Duration::from_secs(20),
            signals: false,
            stop: Stop::default(),
        }
    }
}

/// The data port of a decode worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataPort {
    /// What it binds; port 0 asks the system for a free one.
    pub listen: SocketAddr,
    /// What prefill workers are told, where that is not what was bound; its port 0 stands for the
    /// port that was.
    pub advertised: Option<SocketAddr>,
}

/// Runs a decode worker on the calling thread until it has drained. `ready` is called once, when
/// everything is allocated and peers can connect.
///
/// # Errors
/// See [`WorkerError`]; a [`WorkerError::FailStop`] has ended this epoch.
pub fn run(config: DecodeConfig, ready: impl FnOnce(&Ready)) -> Result<(), WorkerError> {
    run_through(Sound, &Nothing, config, ready)
}

/// [`run`] under other decisions, for a laboratory. The product calls `run`.
///
/// # Errors
/// As [`run`].
pub fn run_by(
    decisions: impl Decisions,
    config: DecodeConfig,
    ready: impl FnOnce(&Ready),
) -> Result<(), WorkerError> {
    run_through(decisions, &Nothing, config, ready)
}

/// [`run_by`] with a laboratory between the worker and its fabric. The product calls `run`.
///
/// # Errors
/// As [`run`].
pub fn run_through(
    decisions: impl Decisions,
    between: &dyn FabricLayer,
    config: DecodeConfig,
    ready: impl FnOnce(&Ready),
) -> Result<(), WorkerError> {
    let identity = Identity::load(&config.certs, Role::Decode)?;
    let beside = |layout: &KvLayout| ARENAS * arena_bytes(layout, usize::MAX);
    let loaded = Loaded::load(&config.engine, handoff::Role::Decode, decisions, beside)?;
    let pages = loaded.pool.size();
    let machine = Config {
        max_batch_pages: BATCH_PAGES,
        peer_ms: milliseconds(config.deadlines.peer),
        answer_ms: milliseconds(config.deadlines.answer),
        cache_age_ms: config.deadlines.cache_age_ms(),
        cancel_ms: milliseconds(config.deadlines.cancel),
        unsettled_ms: milliseconds(config.deadlines.unsettled),
        max_tokens_per_domain: config.caps.tenant_tokens.unwrap_or(u64::MAX),
        max_pages_per_peer: pages_of_peer(&config, pages),
        ..Config::for_pool(pages, loaded.context, random()?)
    };
    let trace = match &config.trace {
        None => None,
        Some(path) => {
            let (hello, pool) = (loaded.hello.clone(), loaded.pool_config.into());
            let header = Header::Decode {
                config: machine.clone(),
                hello,
                pool,
            };
            Some(Writer::create(path, &header)?)
        }
    };
    let limits = Limits {
        bytes_max: ARENAS_MAX * arena_bytes(loaded.kv.layout(), pages),
    };
    let receiver = receiver(&config, &identity, loaded.mint.lend(), limits)?;
    let (net, inputs) = Net::new()?;
    let audit = crate::open_audit(config.audit.as_deref())?;
    let driver = DriverState::new(inputs, audit, config.drain_for);
    let waiting = loaded.ready("decode", String::new());
    let mut engine = Engine::new(
        loaded,
        &config.engine,
        config.deadlines,
        machine,
        trace,
        driver,
        between.receiver(receiver),
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

/// Pages that one prefill life may hold before they are committed.
fn pages_of_peer(config: &DecodeConfig, pages: usize) -> usize {
    let tokens = config.caps.prefill_tokens.unwrap_or(u64::MAX);
    let most = tokens / u64::from(config.engine.page_size);
    usize::try_from(most).map_or(pages, |most| most.min(pages))
}

fn receiver(
    config: &DecodeConfig,
    identity: &Identity,
    mint: FenceMint,
    limits: Limits,
) -> Result<Box<dyn Receiver>, WorkerError> {
    let system = |what| move |source: io::Error| WorkerError::System { what, source };
    let Some(DataPort { listen, advertised }) = config.data else {
        let parent = config.fabric_dir.clone().unwrap_or_else(std::env::temp_dir);
        let made = ShmReceiver::new(&parent, mint, limits);
        return Ok(Box::new(made.map_err(system("cannot make the fabric"))?));
    };
    let listen = Listen {
        at: listen,
        advertised,
        tls: identity.data_listener(&[Role::Prefill])?,
    };
    let made = TcpReceiver::new(listen, mint, limits);
    let made = made.map_err(system("cannot open the data port"))?;
    tracing::info!(at = %made.addr(), "landing arenas are reached over TCP");
    Ok(Box::new(made))
}

/// What transfers of one prefill life need, and no more than the pool could be granted for.
fn arena_slots(layout: &KvLayout, pool_pages: usize) -> u32 {
    let fit = ARENA_BYTES / layout.page_bytes() as u64;
    let slots = fit.clamp(2 * BATCH_PAGES as u64, u64::from(ARENA_SLOTS_MAX));
    slots.min(pool_pages as u64) as u32
}

fn arena_bytes(layout: &KvLayout, pool_pages: usize) -> u64 {
    u64::from(arena_slots(layout, pool_pages)) * layout.page_bytes() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arena_holds_two_batches_and_never_more_than_the_pool_or_its_bytes() {
        let layout = |page_size| KvLayout {
            layers: 30,
            kv_heads: 3,
            key_dim: 64,
            value_dim: 64,
            page_size,
        };
        assert_eq!(arena_slots(&layout(16), 640), 128);
        assert_eq!(arena_slots(&layout(16), 20), 20);
        assert_eq!(
            arena_slots(&layout(128), 640),
            45,
            "128 MiB of pages of 2.8 MiB"
        );
        assert_eq!(
            arena_slots(&layout(1024), 640),
            32,
            "two batches of pages of 22.5 MiB"
        );
    }
}
