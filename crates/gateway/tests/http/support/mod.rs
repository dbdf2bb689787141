//! A gateway on a free port, a scripted engine behind it, a tokenizer of bytes, a raw client.

mod client;
mod engine;
mod text;

use std::future::Future;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use gateway::Config;
use gateway::api::AccessLog;
use gateway::api::text::Text;
use gateway::engine::{Count, EngineFacts, LengthLimit, ModelFacts, PageCounts, Quarantine};
use gateway::engine::{Readiness, TextPath, WorkerFacts, WorkerRole};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

pub use client::{Client, Reply, request};
pub use engine::{Script, ScriptedEngine, committed, token, tokens};
pub use text::{ByteText, END, LONGEST, SPECIAL, VOCAB};

/// Waits for what must come. The bound is no measurement: it turns a hanging test into a failing
/// one.
pub async fn within<T>(what: impl Future<Output = T>) -> T {
    let bound = std::time::Duration::from_secs(120);
    tokio::time::timeout(bound, what)
        .await
        .expect("what the test waits for never came")
}

/// Largest sum of prompt and output of the tests' engine.
pub const CONTEXT: u32 = 64;
/// Largest prompt of the tests' engine.
pub const MAX_PROMPT: u32 = 48;

/// A running gateway.
pub struct Server {
    pub address: SocketAddr,
    pub engine: Arc<ScriptedEngine>,
    stop: Option<oneshot::Sender<()>>,
    served: JoinHandle<std::io::Result<()>>,
    log: Lines,
}

impl Server {
    pub async fn start() -> Self {
        Self::with(Config::default()).await
    }

    pub async fn with(config: Config) -> Self {
        Self::reading(config, Arc::new(ByteText)).await
    }

    /// A gateway with this tokenizer.
    pub async fn reading(config: Config, text: Arc<dyn Text>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let engine = Arc::new(ScriptedEngine::new(facts()));
        let (stop, stopped) = oneshot::channel::<()>();
        let log = Lines::default();
        let config = Config {
            access_log: AccessLog::new(log.clone()),
            ..config
        };
        let end = async {
            let _ = stopped.await;
        };
        let served = gateway::serve(listener, config, engine.clone(), text, end);
        let served = tokio::spawn(served);
        Self {
            address,
            engine,
            stop: Some(stop),
            served,
            log,
        }
    }

    pub async fn connect(&self) -> Client {
        Client::connect(self.address).await
    }

    /// One request on a connection of its own.
    pub async fn get(&self, path: &str) -> Reply {
        self.connect()
            .await
            .send(&request("GET", path, &[], ""))
            .await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Reply {
        self.connect()
            .await
            .send(&request("POST", path, &[], &body.to_string()))
            .await
    }

    /// Begins a request and leaves its answer to a task.
    pub fn begin(&self, path: &'static str, body: Value) -> JoinHandle<Reply> {
        let address = self.address;
        tokio::spawn(async move {
            let bytes = request("POST", path, &[], &body.to_string());
            Client::connect(address).await.send(&bytes).await
        })
    }

    /// Asks for shutdown.
    pub fn stop(&mut self) {
        let _ = self.stop.take().expect("stopped once").send(());
    }

    /// Waits for the end and returns the access log.
    pub async fn ended(mut self) -> Vec<Value> {
        drop(self.stop.take());
        within(self.served).await.unwrap().unwrap();
        self.log.take()
    }
}

/// What the tests' engine says of itself.
pub fn facts() -> EngineFacts {
    let worker = |role, name: &str, epoch: &str| WorkerFacts {
        role,
        name: name.to_owned(),
        epoch: epoch.to_owned(),
        readiness: Readiness::Ready,
        pool_tokens: 160,
        page_size: 16,
        max_model_len: CONTEXT,
        max_prompt_tokens: MAX_PROMPT,
        model_fingerprint: Some("0a".repeat(32)),
        layout_fingerprint: Some("0b".repeat(32)),
        pages: PageCounts {
            free: 7,
            cached: 3,
            ..PageCounts::default()
        },
        quarantine: Quarantine::default(),
        counters: vec![Count {
            name: "handoffs",
            help: "Handoffs ended",
            value: 5,
        }],
    };
    EngineFacts {
        text_path: TextPath::OURS,
        models: ["small", "org/alias"]
            .map(|id| ModelFacts {
                id: id.to_owned(),
                created: 1_700_000_000,
            })
            .to_vec(),
        limits: vec![LengthLimit {
            max_model_len: CONTEXT,
            max_prompt_tokens: MAX_PROMPT,
            derivation: vec![
                "prefill-0 has 48 tokens".to_owned(),
                "decode-0 has 64".to_owned(),
            ],
        }],
        readiness: Readiness::Ready,
        workers: vec![
            worker(WorkerRole::Prefill, "prefill-0", "p-epoch"),
            worker(WorkerRole::Decode, "decode-0", "d-epoch"),
        ],
        counters: vec![Count {
            name: "retries",
            help: "Attempts after the first",
            value: 2,
        }],
    }
}

/// The access log of a test.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Lines {
    fn take(&self) -> Vec<Value> {
        let bytes = std::mem::take(&mut *self.0.lock().unwrap());
        String::from_utf8(bytes)
            .unwrap()
            .lines()
            .map(|l| serde_json::from_str(l).unwrap())
            .collect()
    }
}

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
