//! The gateway's part, as small as it can be: the real machine, and this much around it.

use bytes::Bytes;
use handoff::gateway::{Config, Effect, Event, Gateway, Item, Outcome};
use handoff::{Conn, Decisions, Finish, Hello, RequestId, Spec, codec};
use pages::{Epoch, Sound};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;
use testkit::{SmallSpec, small_gguf};
use tokio::runtime::Runtime;
use wire::control::{Addr, Identity, Limits, Role, Sender, certs};
use wire::{Facts, Frame, TokenOut};
use worker::{EngineConfig, FabricLayer, Nothing, Ready, Stop, WorkerError, decode, prefill};

/// Longest wait for anything; only a broken worker reaches it.
const PATIENCE: Duration = Duration::from_secs(120);

/// A prefill and a decode worker of this process, each on its own thread.
pub struct Pair {
    pub dir: tempfile::TempDir,
    pub model: PathBuf,
    pub prefill: Running,
    pub decode: Running,
}

pub struct Running {
    pub ready: Ready,
    pub stop: Stop,
    thread: Option<JoinHandle<Result<(), WorkerError>>>,
}

impl Running {
    pub fn addr(&self) -> Addr {
        self.ready.addr.parse().unwrap()
    }

    /// Drains it and says how it ended.
    pub fn end(&mut self) -> Result<(), WorkerError> {
        self.stop.drain();
        self.thread
            .take()
            .map_or(Ok(()), |thread| thread.join().unwrap())
    }
}

/// What differs between tests.
pub struct Shape {
    pub prefill: EngineConfig,
    pub decode: EngineConfig,
    /// Where prefill dials, if not where decode listens.
    pub decode_at: Option<Addr>,
    /// Prefill's, and decode's.
    pub deadlines: worker::Deadlines,
    pub decode_deadlines: worker::Deadlines,
    /// Who stands between prefill and its fabric.
    pub between: Box<dyn FabricLayer + Send>,
}

impl Shape {
    /// A context of 256 on both sides.
    pub fn small(model: &Path) -> Self {
        let engine = EngineConfig {
            threads: 1,
            max_context: Some(256),
            chunk: 32,
            ..EngineConfig::new(model)
        };
        Self {
            prefill: engine.clone(),
            decode: engine,
            decode_at: None,
            deadlines: worker::Deadlines::default(),
            decode_deadlines: worker::Deadlines::default(),
            between: Box::new(Nothing),
        }
    }
}

impl Pair {
    /// With the small random model.
    pub fn start(shape: impl FnOnce(&mut Shape)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let model = small_gguf(dir.path(), SmallSpec::default());
        Self::start_with(dir, model, shape)
    }

    pub fn start_with(
        dir: tempfile::TempDir,
        model: PathBuf,
        shape: impl FnOnce(&mut Shape),
    ) -> Self {
        Self::start_by(Sound, Sound, dir, model, shape)
    }

    /// Of machines that decide otherwise.
    pub fn start_by(
        prefill: impl Decisions,
        decode: impl Decisions,
        dir: tempfile::TempDir,
        model: PathBuf,
        shape: impl FnOnce(&mut Shape),
    ) -> Self {
        let (of_prefill, of_decode) = (prefill, decode);
        let certs = dir.path().join("certs");
        certs::new_cluster(&certs, certs::Validity::days(1)).unwrap();
        let mut with = Shape::small(&model);
        shape(&mut with);

        let addr = |name: &str| Addr::Unix(dir.path().join(name).join("control.sock"));
        let mut config = decode::DecodeConfig::new(with.decode, addr("d"), &certs);
        config.fabric_dir = Some(dir.path().to_owned());
        config.deadlines = with.decode_deadlines;
        config.trace = Some(dir.path().join("decode.trace"));
        config.audit = Some(dir.path().join("decode.audit"));
        let stop = config.stop.clone();
        let decode = start(stop, move |ready| decode::run_by(of_decode, config, ready));

        let decodes = vec![with.decode_at.unwrap_or(decode.addr())];
        let mut config = prefill::PrefillConfig::new(with.prefill, addr("p"), decodes, &certs);
        config.deadlines = with.deadlines;
        config.trace = Some(dir.path().join("prefill.trace"));
        let stop = config.stop.clone();
        let between = with.between;
        let prefill = start(stop, move |ready| {
            prefill::run_through(of_prefill, between.as_ref(), config, ready)
        });
        Self {
            dir,
            model,
            prefill,
            decode,
        }
    }

    /// A gateway that is connected to both, once they are connected to each other.
    pub fn edge(&self, epoch: u128) -> Edge {
        let mut edge = Edge::new(&self.dir.path().join("certs"), &self.model, epoch);
        edge.prefill = edge.dial(&self.prefill.addr(), Role::Prefill);
        edge.decode = edge.dial(&self.decode.addr(), Role::Decode);
        edge
    }

    pub fn trace(&self, role: &str) -> PathBuf {
        self.dir.path().join(format!("{role}.trace"))
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for running in [&mut self.prefill, &mut self.decode] {
            running.stop.now();
            if let Some(thread) = running.thread.take() {
                let _ = thread.join();
            }
        }
    }
}

fn start(
    stop: Stop,
    run: impl FnOnce(Box<dyn FnOnce(&Ready) + Send>) -> Result<(), WorkerError> + Send + 'static,
) -> Running {
    let (say, said) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        run(Box::new(move |ready: &Ready| {
            say.send(ready.clone()).unwrap()
        }))
    });
    match said.recv_timeout(PATIENCE) {
        Ok(ready) => Running {
            ready,
            stop,
            thread: Some(thread),
        },
        Err(_) => panic!("the worker did not start: {:?}", thread.join()),
    }
}

/// What a client would have got.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    pub tokens: Vec<Vec<TokenOut>>,
    pub finishes: Vec<Option<Finish>>,
    pub cached_tokens: u32,
    pub outcome: Option<Outcome>,
}

/// See the module's documentation.
pub struct Edge {
    pub machine: Gateway,
    pub prefill: Conn,
    pub decode: Conn,
    pub answers: BTreeMap<RequestId, Answer>,
    pub hello: Hello,
    facts: BTreeMap<Conn, Facts>,
    /// Core messages that the machine was not told, by connection: for tests that speak raw.
    pub raw: BTreeMap<Conn, Vec<Vec<u8>>>,
    machine_runs: bool,
    /// Longest wait for anything, and the deadline of requests.
    pub patience: Duration,
    pub gone: Vec<Conn>,
    links: BTreeMap<Conn, (Role, Sender)>,
    inbox: mpsc::Receiver<(Conn, Option<Bytes>)>,
    outbox: mpsc::Sender<(Conn, Option<Bytes>)>,
    identity: Identity,
    runtime: Runtime,
    next: u64,
}

impl Edge {
    /// A gateway of this life that is connected to nobody.
    pub fn new(certs: &Path, model: &Path, epoch: u128) -> Self {
        let identity = Identity::load(certs, Role::Gateway).unwrap();
        let file = gguf::File::open(model).unwrap();
        let hello = Hello {
            epoch: Epoch::new(epoch),
            role: handoff::Role::Gateway,
            model: file.fingerprint().unwrap(),
            layout: [0; 32],
            capacity: None,
            ranks: 1,
        };
        let (outbox, inbox) = mpsc::channel();
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).enable_all().build().unwrap();
        Self {
            machine: Gateway::new(Config::default(), hello.clone()),
            prefill: Conn(0),
            decode: Conn(0),
            answers: BTreeMap::new(),
            hello,
            facts: BTreeMap::new(),
            raw: BTreeMap::new(),
            machine_runs: true,
            patience: PATIENCE,
            gone: Vec::new(),
            links: BTreeMap::new(),
            inbox,
            outbox,
            identity,
            runtime,
            next: 1,
        }
    }

    /// Connects to a worker and tells the machine.
    pub fn dial(&mut self, addr: &Addr, role: Role) -> Conn {
        let conn = self.dial_raw(addr, role);
        self.tell(match role {
            Role::Prefill => Event::PrefillDialled(conn),
            _ => Event::DecodeDialled(conn),
        });
        conn
    }

    /// Connects to a worker, past the machine.
    pub fn dial_raw(&mut self, addr: &Addr, role: Role) -> Conn {
        let identity = self.identity.clone();
        self.dial_as(&identity, addr, role)
    }

    /// Connects to a worker as somebody else.
    pub fn dial_as(&mut self, identity: &Identity, addr: &Addr, role: Role) -> Conn {
        let limits = Limits {
            frame_bytes_max: codec::MAX_BYTES + 1,
            ..Limits::default()
        };
        let limits = Limits {
            queue_bytes_max: 4 * limits.frame_bytes_max,
            ..limits
        };
        let allowed = [role];
        let dialled = wire::control::dial(addr, identity, &allowed, &limits);
        let connection = self.runtime.block_on(dialled).unwrap();
        let conn = Conn(self.next);
        self.next += 1;
        let (outbox, mut receiver) = (self.outbox.clone(), connection.receiver);
        self.links.insert(conn, (role, connection.sender));
        self.runtime.spawn(async move {
            while let Ok(Some(frame)) = receiver.recv().await {
                if outbox.send((conn, Some(frame))).is_err() {
                    return;
                }
            }
            let _ = outbox.send((conn, None));
        });
        conn
    }

    pub fn tell(&mut self, event: Event) {
        for effect in self.machine.handle(event) {
            match effect {
                Effect::ToPrefill(conn, message) => self.say(conn, &message),
                Effect::ToDecode(conn, message) => self.say(conn, &message),
                Effect::Close(conn, why) => panic!("the gateway closed {conn:?}: {why:?}"),
                Effect::Deliver { request, item } => self.deliver(request, item),
                Effect::Finish { request, outcome } => {
                    let answer = self.answers.entry(request).or_default();
                    assert_eq!(answer.outcome.replace(outcome), None, "H-6: one outcome");
                }
                Effect::Arm { .. } | Effect::Disarm(_) => {}
                Effect::FailStop(why) => panic!("the gateway stopped: {why}"),
            }
        }
    }

    fn deliver(&mut self, request: RequestId, item: Item) {
        let answer = self.answers.entry(request).or_default();
        assert_eq!(answer.outcome, None, "nothing follows an outcome");
        match item {
            Item::Begin { cached_tokens, .. } => answer.cached_tokens = cached_tokens,
            Item::Tokens {
                choice,
                token,
                payload,
                finish,
            } => {
                let choice = usize::from(choice);
                if answer.tokens.len() <= choice {
                    answer.tokens.resize(choice + 1, Vec::new());
                    answer.finishes.resize(choice + 1, None);
                }
                let said = TokenOut::decode(&payload).unwrap();
                assert_eq!(said.id, token, "the machine goes on behind what was said");
                answer.tokens[choice].push(said);
                answer.finishes[choice] = finish;
            }
        }
    }

    /// Says a message of the core.
    pub fn say(&mut self, conn: Conn, message: &impl Serialize) {
        let message = codec::encode(message).unwrap();
        self.say_bytes(conn, Frame::Core(&message).encode());
    }

    pub fn say_bytes(&mut self, conn: Conn, bytes: Vec<u8>) {
        // A connection that the worker has closed takes nothing; tests look at `gone`.
        let _ = self.links[&conn].1.send(bytes);
    }

    /// From now on core messages are kept in `raw` instead.
    pub fn go_raw(&mut self) {
        self.machine_runs = false;
    }

    /// Takes what arrives until it holds.
    pub fn until(&mut self, what: &str, mut holds: impl FnMut(&mut Self) -> bool) {
        while !holds(self) {
            let (conn, frame) = match self.inbox.recv_timeout(self.patience) {
                Ok(received) => received,
                Err(error) => panic!("never: {what} ({error}); {:?}", self.answers),
            };
            self.take(conn, frame);
        }
    }

    fn take(&mut self, conn: Conn, frame: Option<Bytes>) {
        let Some(frame) = frame else {
            self.gone.push(conn);
            return self.tell(Event::Disconnected(conn));
        };
        match Frame::decode(&frame).unwrap() {
            Frame::Facts(facts) => {
                self.facts.insert(conn, *facts);
            }
            Frame::Core(bytes) if !self.machine_runs => {
                self.raw.entry(conn).or_default().push(bytes.to_vec());
            }
            Frame::Core(bytes) => {
                let event = match self.links[&conn].0 {
                    Role::Prefill => Event::FromPrefill(conn, codec::decode(bytes).unwrap()),
                    _ => Event::FromDecode(conn, codec::decode(bytes).unwrap()),
                };
                self.tell(event);
            }
            Frame::AskFacts => panic!("a worker asks for facts"),
        }
    }

    pub fn facts(&mut self, conn: Conn) -> Facts {
        self.facts.remove(&conn);
        self.say_bytes(conn, Frame::AskFacts.encode());
        self.until("facts", |edge| edge.facts.contains_key(&conn));
        self.facts[&conn]
    }

    pub fn submit(&mut self, spec: Spec) -> RequestId {
        let request = self.machine.next_request();
        self.answers.insert(request, Answer::default());
        self.tell(Event::Request {
            spec,
            deadline_ms: self.patience.as_millis() as u64,
        });
        request
    }

    /// The answers to requests that were submitted.
    pub fn answers(&mut self, requests: &[RequestId]) -> Vec<Answer> {
        let done = |edge: &mut Edge| {
            requests
                .iter()
                .all(|request| edge.answers[request].outcome.is_some())
        };
        self.until("an outcome of every request", done);
        requests
            .iter()
            .map(|request| self.answers[request].clone())
            .collect()
    }

    pub fn ask(&mut self, spec: Spec) -> Answer {
        let request = self.submit(spec);
        self.answers(&[request]).remove(0)
    }

    /// Waits until the pair takes requests: prefill has found decode, and both said Hello.
    pub fn ready(&mut self, probe: &Spec) {
        self.until("both workers said Hello", |edge| {
            !edge.machine.limits().is_empty()
        });
        let until = std::time::Instant::now() + self.patience;
        while self.ask(probe.clone()).outcome != Some(Outcome::Answered) {
            assert!(
                std::time::Instant::now() < until,
                "the pair never became ready"
            );
        }
    }

    /// Waits until every page of this worker is free or cached.
    pub fn at_rest(&mut self, conn: Conn, pool_tokens: u64, page_size: u64) -> Facts {
        let until = std::time::Instant::now() + self.patience;
        loop {
            let facts = self.facts(conn);
            if (facts.pages.free + facts.pages.cached) * page_size == pool_tokens {
                return facts;
            }
            assert!(
                std::time::Instant::now() < until,
                "pages do not come back: {facts:?}"
            );
        }
    }
}
