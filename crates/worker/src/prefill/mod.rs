//! The prefill worker: builds the KV cache of prompts in its own pages and hands it over.

mod effects;
mod endpoints;
mod engine;
mod step;

use crate::WorkerError;
use crate::driver::{self, Deadlines, Desk, Net, Stop, milliseconds};
use crate::start::{EngineConfig, Foundation, Ready, random};
use control::{Addr, Identity, Role};
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
use trace::{Header, Writer};

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
    run_by(Sound, config, ready)
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
    let identity = Identity::load(&config.certs, Role::Prefill)?;
    let foundation = Foundation::lay(&config.engine, handoff::Role::Prefill, decisions, |_| 0)?;
    let machine = Config {
        peer_ms: milliseconds(config.deadlines.peer),
        ..Config::for_context(foundation.context, random()?)
    };
    let trace = match &config.trace {
        None => None,
        Some(path) => {
            let (hello, pool) = (foundation.hello.clone(), foundation.pool_config.into());
            let header = Header::Prefill {
                config: machine.clone(),
                hello,
                pool,
            };
            Some(Writer::create(path, &header)?)
        }
    };
    let (net, inputs) = Net::new()?;
    let desk = Desk::new(inputs, trace, config.drain_for);
    let waiting = foundation.ready("prefill", String::new());
    let sender = sender(&identity, foundation.hello.epoch)?;
    let mut engine = Engine::new(
        foundation,
        &config.engine,
        machine,
        desk,
        sender,
        net.inbox(),
    );
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
        tcp: TcpSender::new(life, tls, tcp::Deadlines::default()),
    }))
}
