//! The prefill worker: builds the KV cache of prompts in its own pages and hands it over.

mod effects;
mod endpoints;
mod engine;
mod step;

use crate::driver::{self, Caps, Deadlines, DriverState, Net, Stop, milliseconds};
use crate::start::{EngineConfig, Loaded, Ready, random};
use crate::{FabricLayer, Nothing, WorkerError};
use engine::Engine;
use fabric::shm::ShmSender;
use fabric::tcp::{self, TcpSender};
use fabric::{AnySender, Sender};
use handoff::Decisions;
use handoff::prefill::Config;
use pages::{Epoch, Sound, WriterLife};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use wire::control::{Addr, Identity, Role};
use wire::trace::{Header, Writer};

/// What a prefill worker is started with.
#[derive(Clone, Debug)]
pub struct PrefillConfig {
    /// Model, pool, arithmetic.
    pub engine: EngineConfig,
    /// Where gateways reach it.
    pub listen: Addr,
    /// The decode workers that it hands over to. It dials each, and dials again.
    pub decode: Vec<Addr>,
    /// Its certificates (`cofferdam certs new`).
    pub certs: PathBuf,
    /// Where a trace of the machine is written.
    pub trace: Option<PathBuf>,
    /// File that the audit log is appended to; standard error if not given.
    pub audit: Option<PathBuf>,
    /// What others may hold at one time.
    pub caps: Caps,
    /// How long it waits for decode workers.
    pub deadlines: Deadlines,
    /// Time for what runs, once it drains.
    pub drain_for: Duration,
    /// Whether SIGTERM and SIGINT drain it.
    pub signals: bool,
    /// The way to end it from the program around it.
    pub stop: Stop,
}

impl PrefillConfig {
    /// The defaults.
    pub fn new(
        engine: EngineConfig,
        listen: Addr,
        decode: Vec<Addr>,
        certs: impl Into<PathBuf>,
    ) -> Self {
        Self {
            engine,
            listen,
            decode,
            certs: certs.into(),
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

/// Runs a prefill worker on the calling thread until it has drained. `ready` is called once, when
/// everything is allocated and gateways can connect.
///
/// # Errors
/// See [`WorkerError`]; a [`WorkerError::FailStop`] has ended this epoch.
pub fn run(config: PrefillConfig, ready: impl FnOnce(&Ready)) -> Result<(), WorkerError> {
    run_through(Sound, &Nothing, config, ready)
}

/// [`run`] under other decisions, for a laboratory. The product calls `run`.
///
/// # Errors
/// As [`run`].
pub fn run_by(
    decisions: impl Decisions,
    config: PrefillConfig,
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
    config: PrefillConfig,
    ready: impl FnOnce(&Ready),
) -> Result<(), WorkerError> {
    let identity = Identity::load(&config.certs, Role::Prefill)?;
    let loaded = Loaded::load(&config.engine, handoff::Role::Prefill, decisions, |_| 0)?;
    let machine = Config {
        peer_ms: milliseconds(config.deadlines.peer),
        answer_ms: milliseconds(config.deadlines.answer),
        cache_age_ms: config.deadlines.cache_age_ms(),
        max_tokens_per_domain: config.caps.tenant_tokens.unwrap_or(u64::MAX),
        ..Config::for_context(loaded.context, random()?)
    };
    let trace = match &config.trace {
        None => None,
        Some(path) => {
            let (hello, pool) = (loaded.hello.clone(), loaded.pool_config.into());
            let header = Header::Prefill {
                config: machine.clone(),
                hello,
                pool,
            };
            Some(Writer::create(path, &header)?)
        }
    };
    let (net, inputs) = Net::new()?;
    let audit = crate::open_audit(config.audit.as_deref())?;
    let driver = DriverState::new(inputs, audit, config.drain_for);
    let waiting = loaded.ready("prefill", String::new());
    let sender = between.sender(sender(&identity, loaded.hello.epoch)?);
    let mut engine = Engine::new(
        loaded,
        &config.engine,
        config.deadlines,
        machine,
        trace,
        driver,
        sender,
        net.inbox(),
    )?;
    let addr = net.listen(&config.listen, &identity, &[Role::Gateway])?;
    for decode in &config.decode {
        net.keep_dialled(decode.clone(), identity.clone(), Role::Decode);
    }
    net.watch(&config.stop, config.signals)?;
    ready(&Ready {
        addr: addr.to_string(),
        ..waiting
    });
    let ended = driver::run(&mut engine);
    crate::say_end("prefill", &ended);
    ended
}

/// Reaches arenas on this host and on others, as the landing of each says.
fn sender(identity: &Identity, epoch: Epoch) -> Result<Arc<dyn Sender>, WorkerError> {
    let life = WriterLife { epoch, rank: 0 };
    let tls = identity.data_dialler(&[Role::Decode])?;
    Ok(Arc::new(AnySender {
        shm: ShmSender::new(life),
        tcp: TcpSender::new(life, tls, tcp::DataDeadlines::default()),
    }))
}
