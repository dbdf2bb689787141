//! A cluster of certificates, a gateway engine, and workers that say what the test says.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use gateway::engine::{Answer, Engine, EngineFacts, Event, Fault, Job, Sampling, TenantId};
use gateway::pairs::{Config, Pairs};
use handoff::{
    AttemptId, Capacity, DecodeToGateway, Ending, Finish, GatewayToDecode, GatewayToPrefill, Hello,
    PrefillToGateway, Spec, codec,
};
use pages::Epoch;
use serde::Serialize;
use serde::de::DeserializeOwned;
use wire::control::certs::{self, Validity};
use wire::control::{Addr, Connection, Identity, Limits, Listener, Role};
use wire::{Facts, Frame, TokenOut};

/// Longer than anything here takes on a busy machine; passing it fails the test.
const PATIENCE: Duration = Duration::from_secs(60);

pub const MODEL: [u8; 32] = [7; 32];
pub const PAGE: u16 = 16;

/// Waits for something that must happen.
pub async fn soon<T>(what: impl Future<Output = T>) -> T {
    let waited = tokio::time::timeout(PATIENCE, what).await;
    waited.expect("what must happen did not")
}

/// Certificates, and a listener for each worker.
pub struct Site {
    dir: tempfile::TempDir,
    prefill: Vec<Listener>,
    decode: Vec<Listener>,
    epochs: AtomicU64,
}

impl Site {
    /// So many prefill and decode workers, listening.
    pub async fn new(prefill: usize, decode: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        certs::new_cluster(&dir.path().join("certs"), Validity::days(1)).unwrap();
        let mut site = Self {
            dir,
            prefill: Vec::new(),
            decode: Vec::new(),
            epochs: AtomicU64::new(1),
        };
        for i in 0..prefill {
            let listener = site.listen(Role::Prefill, i).await;
            site.prefill.push(listener);
        }
        for i in 0..decode {
            let listener = site.listen(Role::Decode, i).await;
            site.decode.push(listener);
        }
        site
    }

    async fn listen(&self, role: Role, i: usize) -> Listener {
        let addr = Addr::Unix(self.dir.path().join("run").join(format!("{role}-{i}.sock")));
        let identity = self.identity(role);
        let listener = Listener::bind(&addr, &identity, &[Role::Gateway], &limits()).await;
        listener.unwrap()
    }

    fn identity(&self, role: Role) -> Identity {
        Identity::load(&self.dir.path().join("certs"), role).unwrap()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn config(&self) -> Config {
        let addrs = |listeners: &[Listener]| listeners.iter().map(|l| l.addr().clone()).collect();
        let (prefill, decode) = (addrs(&self.prefill), addrs(&self.decode));
        let identity = self.identity(Role::Gateway);
        Config {
            limits: limits(),
            facts_every: Duration::from_millis(50),
            ..Config::new(prefill, decode, identity, MODEL, vec!["small".into()])
        }
    }

    /// A new life of a prefill worker takes the gateway's next connection and says Hello.
    pub async fn prefill(&mut self, i: usize, pages: u32) -> Prefill {
        let hello = self.hello(handoff::Role::Prefill, pages);
        Prefill(
            greeted(&mut self.prefill[i], hello, |hello| {
                PrefillToGateway::Hello(hello)
            })
            .await,
        )
    }

    /// The same for decode.
    pub async fn decode(&mut self, i: usize, pages: u32) -> Decode {
        let hello = self.hello(handoff::Role::Decode, pages);
        Decode(
            greeted(&mut self.decode[i], hello, |hello| {
                DecodeToGateway::Hello(hello)
            })
            .await,
        )
    }

    /// The gateway's next connection to this decode worker, with its Hello unanswered.
    pub async fn decode_connection(&mut self, i: usize) -> Peer {
        let epoch = self.epoch();
        Peer::accept(&mut self.decode[i], epoch).await
    }

    pub fn hello(&self, role: handoff::Role, pages: u32) -> Hello {
        Hello {
            epoch: self.epoch(),
            role,
            model: MODEL,
            layout: [1; 32],
            capacity: Some(Capacity {
                role,
                pages,
                page_size: PAGE,
                context: 1024,
            }),
            ranks: 1,
        }
    }

    fn epoch(&self) -> Epoch {
        let n = self.epochs.fetch_add(1, Ordering::Relaxed);
        Epoch::new(u128::from(n) << 80 | 5)
    }

    /// A gateway with one worker of each role, both greeted.
    pub async fn pair(&mut self) -> (Pairs, Prefill, Decode) {
        let config = self.config();
        self.pair_with(config).await
    }

    pub async fn pair_with(&mut self, config: Config) -> (Pairs, Prefill, Decode) {
        let engine = Pairs::start(config).unwrap();
        let (prefill, decode) = (self.prefill(0, 100).await, self.decode(0, 200).await);
        ready(&engine).await;
        (engine, prefill, decode)
    }
}

fn limits() -> Limits {
    Limits {
        frame_bytes_max: codec::MAX_BYTES + 1,
        queue_bytes_max: 4 * codec::MAX_BYTES + 4,
        handshake: PATIENCE,
        ..Limits::default()
    }
}

async fn greeted<M: Serialize>(
    listener: &mut Listener,
    hello: Hello,
    wrap: impl FnOnce(Hello) -> M,
) -> Peer {
    let peer = Peer::accept(listener, hello.epoch).await;
    peer.say(&wrap(hello));
    peer
}

/// Waits until the engine says this of itself.
pub async fn until(engine: &Pairs, what: impl Fn(&EngineFacts) -> bool) -> Arc<EngineFacts> {
    let mut facts = engine.watch();
    let so = tokio::time::timeout(PATIENCE, facts.wait_for(|facts| what(facts))).await;
    match so {
        Ok(facts) => facts.expect("it runs").clone(),
        Err(_) => panic!("never became so: {:#?}", engine.facts()),
    }
}

/// Waits until a pair is up, however busy its workers are with the test.
pub async fn ready(engine: &Pairs) {
    until(engine, |facts| facts.limit().is_some()).await;
}

pub fn counter(facts: &EngineFacts, name: &str) -> u64 {
    let count = facts.counters.iter().find(|count| count.name == name);
    count.unwrap_or_else(|| panic!("no counter {name}")).value
}

/// One end of a connection from the gateway.
pub struct Peer {
    connection: Connection,
    pub epoch: Epoch,
    pub gateway: Hello,
    pub facts: Facts,
}

impl Peer {
    async fn accept(listener: &mut Listener, epoch: Epoch) -> Self {
        let mut connection = soon(listener.accept()).await.unwrap();
        let first = soon(connection.receiver.recv()).await.unwrap().unwrap();
        let Frame::Core(bytes) = Frame::decode(&first).unwrap() else {
            panic!("the first frame is no message")
        };
        // Both enums begin with their Hello.
        let GatewayToDecode::Hello(gateway) = codec::decode(bytes).unwrap() else {
            panic!("the first message is no Hello")
        };
        let facts = Facts {
            peers: 1,
            ..Facts::default()
        };
        Self {
            connection,
            epoch,
            gateway,
            facts,
        }
    }

    /// Sends bytes as they are.
    pub fn raw(&self, bytes: Vec<u8>) {
        self.connection.sender.send(bytes).unwrap();
    }

    pub fn say(&self, message: &impl Serialize) {
        let bytes = codec::encode(message).unwrap();
        self.raw(Frame::Core(&bytes).encode());
    }

    /// The next message, or none when the gateway has ended the connection. Questions for facts
    /// on the way are answered.
    pub async fn next<M: DeserializeOwned>(&mut self) -> Option<M> {
        loop {
            let frame = soon(self.connection.receiver.recv()).await.ok()??;
            match Frame::decode(&frame).unwrap() {
                Frame::Core(bytes) => return Some(codec::decode(bytes).unwrap()),
                Frame::AskFacts => {
                    // The gateway may have hung up meanwhile; then nothing more is read.
                    let facts = Frame::Facts(Box::new(self.facts));
                    let _ = self.connection.sender.send(facts.encode());
                }
                Frame::Facts(_) => panic!("a gateway has no facts"),
            }
        }
    }
}

/// A scripted prefill worker.
pub struct Prefill(pub Peer);

impl Prefill {
    pub async fn next(&mut self) -> GatewayToPrefill {
        self.0.next().await.expect("the gateway is still connected")
    }

    pub async fn attempt(&mut self) -> (AttemptId, Spec, Epoch) {
        match self.next().await {
            GatewayToPrefill::Attempt {
                attempt,
                spec,
                decode,
                ..
            } => (attempt, spec, decode),
            other => panic!("expected an attempt, got {other:?}"),
        }
    }

    pub async fn withdrawn(&mut self) -> AttemptId {
        match self.next().await {
            GatewayToPrefill::Withdraw { attempt } => attempt,
            other => panic!("expected a withdrawal, got {other:?}"),
        }
    }

    pub fn ended(&self, attempt: AttemptId, ending: Ending) {
        self.0.say(&PrefillToGateway::Ended { attempt, ending });
    }
}

/// A scripted decode worker.
pub struct Decode(pub Peer);

impl Decode {
    pub async fn next(&mut self) -> GatewayToDecode {
        self.0.next().await.expect("the gateway is still connected")
    }

    /// The next attempt, and the prefill life that may offer it.
    pub async fn expect(&mut self) -> (AttemptId, Spec, Epoch) {
        match self.next().await {
            GatewayToDecode::Expect {
                attempt,
                spec,
                prefill,
                ..
            } => (attempt, spec, prefill),
            other => panic!("expected an attempt, got {other:?}"),
        }
    }

    pub async fn cancelled(&mut self) -> AttemptId {
        match self.next().await {
            GatewayToDecode::Cancel { attempt } => attempt,
            other => panic!("expected a cancel, got {other:?}"),
        }
    }

    pub fn expecting(&self, attempt: AttemptId) {
        self.0.say(&DecodeToGateway::Expecting { attempt });
    }

    pub fn committed(&self, attempt: AttemptId) {
        self.0.say(&DecodeToGateway::Committed {
            attempt,
            cached_tokens: 16,
        });
    }

    pub fn token(&self, attempt: AttemptId, choice: u16, id: u32, finish: Option<Finish>) {
        self.token_named(attempt, choice, (id, id), finish);
    }

    /// A token that is named so, and said to be another.
    pub fn token_named(
        &self,
        attempt: AttemptId,
        choice: u16,
        (named, id): (u32, u32),
        finish: Option<Finish>,
    ) {
        let token = TokenOut {
            id,
            logprob: Some(-0.5),
            top: vec![(id, -0.5), (id + 1, -1.5)],
        };
        self.0.say(&DecodeToGateway::Tokens {
            attempt,
            choice,
            token: named,
            payload: token.encode(),
            finish,
        });
    }

    pub fn ended(&self, attempt: AttemptId, ending: Ending) {
        self.0.say(&DecodeToGateway::Ended { attempt, ending });
    }

    /// The ordinary course of one choice, from its commit.
    pub fn answer(&self, attempt: AttemptId, tokens: &[u32]) {
        self.committed(attempt);
        for (i, id) in tokens.iter().enumerate() {
            let last = i + 1 == tokens.len();
            self.token(attempt, 0, *id, last.then_some(Finish::Length));
        }
        self.ended(attempt, Ending::Finished);
    }
}

/// Both workers take the next attempt on.
pub async fn taken(prefill: &mut Prefill, decode: &mut Decode) -> AttemptId {
    let (attempt, _, _) = decode.expect().await;
    decode.expecting(attempt);
    let (same, _, _) = prefill.attempt().await;
    assert_eq!(attempt, same);
    attempt
}

pub fn job(prompt: &[u32], max_new: u32) -> Job {
    Job {
        label: "test".into(),
        tenant: TenantId::anonymous(),
        cache_salt: None,
        session: None,
        model: "small".into(),
        prompt: prompt.to_vec(),
        max_new,
        choices: 1,
        sampling: Sampling {
            seed: 42,
            ..Sampling::default()
        },
        ignore_eos: false,
        stop_tokens: Vec::new(),
        form: None,
        min_new: 0,
        deadline: Instant::now() + 2 * PATIENCE,
        operator: false,
        only: Vec::new(),
        carried: None,
        trace: None,
    }
}

pub async fn event(answer: &mut Answer) -> Event {
    soon(answer.events.recv())
        .await
        .expect("an answer has an end")
}

/// Everything that is still said, with its end.
pub async fn rest(answer: &mut Answer) -> Vec<Event> {
    let mut events = Vec::new();
    while let Some(event) = soon(answer.events.recv()).await {
        events.push(event);
    }
    events
}

/// Token ids of these events, of one choice.
pub fn ids(events: &[Event], of: u16) -> Vec<u32> {
    let tokens = events.iter().filter_map(|event| match event {
        Event::Tokens { choice, tokens } if *choice == of => Some(tokens),
        _ => None,
    });
    tokens.flatten().map(|token| token.id).collect()
}

/// How a failed answer ended, which is also the last thing it says.
pub async fn failed(answer: &mut Answer) -> (Vec<Event>, Fault) {
    let mut events = rest(answer).await;
    match events.pop() {
        Some(Event::Failed(fault)) => (events, fault),
        other => panic!("expected a failure, got {other:?} after {events:?}"),
    }
}
