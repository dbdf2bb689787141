//! A whole server in this process: the gateway's own HTTP server in front, a prefill and a decode
//! worker behind it, each with its real driver, certificates, control connections and shared
//! memory between them. What differs from what is shipped is the type parameter alone.

use super::client::Api;
use super::guards::{Guards, Safeguard};
use anyhow::{Context, anyhow, bail};
use gateway::api::auth::ApiKeys;
use gateway::api::text::ServedText;
use gateway::engine::{Engine, Readiness};
use gateway::pairs::{self, Pairs};
use handoff::Decisions;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use wire::control::{Addr, Identity, Role, certs};
use worker::{EngineConfig, Ready, Stop, WorkerError, decode, prefill};

/// Longest wait for a part to be ready.
const PATIENCE: Duration = Duration::from_secs(300);

/// Sizes of the pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// Token slots a page.
    pub page_size: u16,
    /// Prefill's pool, and with it the largest context that it can carry, in tokens.
    pub prefill_pool: u32,
    /// The context that decode carries and the model is advertised with, in tokens.
    pub context: u32,
    /// Decode's pool, in tokens.
    pub decode_pool: u64,
}

/// What differs from what is shipped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Differs<J> {
    /// The decisions.
    pub decisions: J,
    /// Whether freed pages are erased.
    pub scrub: bool,
    /// Whether prefixes are kept.
    pub cache: bool,
    /// Whether traces are written.
    pub traced: bool,
}

/// The running server.
pub(crate) struct Stack {
    /// Its API.
    pub api: Api,
    prefill: Running,
    decode: Running,
    pairs: Arc<Pairs>,
    shutdown: Option<oneshot::Sender<()>>,
    serving: Option<tokio::task::JoinHandle<std::io::Result<()>>>,
    runtime: Runtime,
    dir: tempfile::TempDir,
}

/// The tenants and their keys.
pub(crate) const KEYS: [(&str, &str); 2] = [("tenant-a", "key-of-a"), ("tenant-b", "key-of-b")];

impl Stack {
    /// Starts everything with these safeguards and waits until a request would be taken.
    pub(super) fn start(model: &Path, shape: Shape, guards: Guards) -> anyhow::Result<Self> {
        let differs = Differs {
            decisions: guards,
            scrub: guards.has(Safeguard::Scrub),
            // As in the incident: decode held no prefixes, so what has ended is free.
            cache: false,
            traced: true,
        };
        Self::start_by(model, shape, differs)
    }

    /// The same with any decisions.
    pub(crate) fn start_by(
        model: &Path,
        shape: Shape,
        differs: Differs<impl Decisions>,
    ) -> anyhow::Result<Self> {
        let dir = tempfile::tempdir().context("cannot make a temporary directory")?;
        let certs = dir.path().join("certs");
        certs::new_cluster(&certs, certs::Validity::days(1))?;
        let decode = start_decode(model, shape, differs, dir.path(), &certs)?;
        let decode_at: Addr = decode.ready.addr.parse().map_err(|_| anyhow!("address"))?;
        let prefill = start_prefill(model, shape, differs, dir.path(), &certs, &decode_at)?;
        let prefill_at: Addr = prefill.ready.addr.parse().map_err(|_| anyhow!("address"))?;

        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        let identity = Identity::load(&certs, Role::Gateway)?;
        let fingerprint = gguf::File::open(model)?.fingerprint()?;
        let text = served_text(model)?;
        let config = pairs::Config {
            trace: differs.traced.then(|| dir.path().join("gateway.trace")),
            facts_every: Duration::from_millis(100),
            cache: differs.cache,
            ..pairs::Config::new(
                vec![prefill_at],
                vec![decode_at],
                identity,
                fingerprint,
                vec!["smollm2-135m".into()],
            )
        };
        let pairs = {
            let _inside = runtime.enter();
            Arc::new(Pairs::start_by(differs.decisions, config)?)
        };
        let listener = runtime.block_on(TcpListener::bind(("127.0.0.1", 0)))?;
        let addr = listener.local_addr()?.to_string();
        let keys: String = KEYS
            .map(|(tenant, key)| format!("{tenant} {key}\n"))
            .concat();
        let config = gateway::Config {
            keys: Some(ApiKeys::parse(&keys)?.into()),
            access_log: gateway::api::AccessLog::new(std::io::sink()),
            ..gateway::Config::default()
        };
        let (shutdown, asked) = oneshot::channel();
        let engine: Arc<dyn Engine> = pairs.clone();
        let serving = runtime.spawn(gateway::serve(
            listener,
            config,
            engine,
            Arc::new(text),
            async {
                let _ = asked.await;
            },
        ));
        let stack = Self {
            api: Api { addr },
            prefill,
            decode,
            pairs,
            shutdown: Some(shutdown),
            serving: Some(serving),
            runtime,
            dir,
        };
        stack.wait_until_ready()?;
        Ok(stack)
    }

    fn wait_until_ready(&self) -> anyhow::Result<()> {
        let until = Instant::now() + PATIENCE;
        loop {
            let facts = self.pairs.facts();
            if facts.readiness == Readiness::Ready && facts.limit().is_some() {
                return Ok(());
            }
            if Instant::now() > until {
                bail!("the pair does not get ready: {:?}", facts.readiness);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Ends everything in order; the traces are whole afterwards, in the directory returned.
    pub(crate) fn end(mut self) -> anyhow::Result<tempfile::TempDir> {
        drop(self.shutdown.take());
        if let Some(serving) = self.serving.take() {
            self.runtime.block_on(serving)??;
        }
        self.runtime.block_on(self.pairs.end())?;
        self.prefill.end("prefill")?;
        self.decode.end("decode")?;
        Ok(self.dir)
    }
}

/// Tokenizer and chat template, as the gateway has them.
pub(crate) fn served_text(model: &Path) -> anyhow::Result<ServedText> {
    let metadata = gguf::Metadata::open(model)?;
    let tokenizer = tokenizer::Tokenizer::from_gguf(&metadata)?;
    let template = tokenizer::ChatTemplate::from_gguf(&metadata)?;
    Ok(ServedText::new(tokenizer, template))
}

/// A worker on a thread of its own.
struct Running {
    ready: Ready,
    stop: Stop,
    thread: Option<JoinHandle<Result<(), WorkerError>>>,
}

impl Running {
    fn start(
        stop: Stop,
        run: impl FnOnce(Box<dyn FnOnce(&Ready) + Send>) -> Result<(), WorkerError> + Send + 'static,
    ) -> anyhow::Result<Self> {
        let (say, said) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            run(Box::new(move |ready: &Ready| {
                let _ = say.send(ready.clone());
            }))
        });
        match said.recv_timeout(PATIENCE) {
            Ok(ready) => Ok(Self {
                ready,
                stop,
                thread: Some(thread),
            }),
            Err(_) => match thread.join() {
                Ok(Err(error)) => Err(error.into()),
                _ => bail!("a worker ended before it was ready"),
            },
        }
    }

    fn end(&mut self, role: &str) -> anyhow::Result<()> {
        self.stop.drain();
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(ended)) => ended.with_context(|| format!("{role} worker")),
            Some(Err(_)) => bail!("the {role} worker panicked"),
            None => Ok(()),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.now();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn engine(model: &Path, shape: Shape, scrub: bool) -> EngineConfig {
    EngineConfig {
        page_size: shape.page_size,
        scrub,
        max_context: Some(shape.context),
        ..EngineConfig::new(model)
    }
}

fn socket(dir: &Path, role: &str) -> Addr {
    Addr::Unix(dir.join(role).join("control.sock"))
}

fn trace_of(dir: &Path, role: &str) -> PathBuf {
    dir.join(format!("{role}.trace"))
}

fn start_decode(
    model: &Path,
    shape: Shape,
    differs: Differs<impl Decisions>,
    dir: &Path,
    certs: &Path,
) -> anyhow::Result<Running> {
    let engine = EngineConfig {
        pool_tokens: Some(shape.decode_pool),
        ..engine(model, shape, differs.scrub)
    };
    let config = decode::DecodeConfig {
        fabric_dir: Some(dir.to_owned()),
        trace: differs.traced.then(|| trace_of(dir, "decode")),
        ..decode::DecodeConfig::new(engine, socket(dir, "d"), certs)
    };
    let stop = config.stop.clone();
    Running::start(stop, move |ready| {
        decode::run_by(differs.decisions, config, ready)
    })
}

fn start_prefill(
    model: &Path,
    shape: Shape,
    differs: Differs<impl Decisions>,
    dir: &Path,
    certs: &Path,
    decode_at: &Addr,
) -> anyhow::Result<Running> {
    let engine = EngineConfig {
        pool_tokens: Some(shape.prefill_pool.into()),
        ..engine(model, shape, differs.scrub)
    };
    let config = prefill::PrefillConfig {
        trace: differs.traced.then(|| trace_of(dir, "prefill")),
        ..prefill::PrefillConfig::new(engine, socket(dir, "p"), vec![decode_at.clone()], certs)
    };
    let stop = config.stop.clone();
    Running::start(stop, move |ready| {
        prefill::run_by(differs.decisions, config, ready)
    })
}
