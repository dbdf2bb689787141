use std::sync::{Arc, Mutex};

use gateway::engine::{
    Answer, Engine, EngineFacts, Event, Fault, Finish, Job, Provenance, Steering, TokenOut,
};
use tokio::sync::{mpsc, oneshot};

use super::within;

/// An engine that hands every job to the test and says what the test says.
pub struct ScriptedEngine {
    facts: Mutex<Arc<EngineFacts>>,
    refusal: Mutex<Option<Fault>>,
    scripts: mpsc::UnboundedSender<Script>,
    submitted: tokio::sync::Mutex<mpsc::UnboundedReceiver<Script>>,
}

impl ScriptedEngine {
    pub fn new(facts: EngineFacts) -> Self {
        let (scripts, submitted) = mpsc::unbounded_channel();
        Self {
            facts: Mutex::new(Arc::new(facts)),
            refusal: Mutex::new(None),
            scripts,
            submitted: tokio::sync::Mutex::new(submitted),
        }
    }

    /// Changes what the engine says of itself.
    pub fn change(&self, change: impl FnOnce(&mut EngineFacts)) {
        change(Arc::make_mut(&mut self.facts.lock().unwrap()));
    }

    /// Refuses every job from now on.
    pub fn refuse(&self, fault: Fault) {
        *self.refusal.lock().unwrap() = Some(fault);
    }

    /// The next job that was submitted.
    pub async fn next(&self) -> Script {
        within(async { self.submitted.lock().await.recv().await.unwrap() }).await
    }

    /// How many jobs wait to be looked at.
    pub async fn waiting(&self) -> usize {
        self.submitted.lock().await.len()
    }
}

impl Engine for ScriptedEngine {
    fn facts(&self) -> Arc<EngineFacts> {
        self.facts.lock().unwrap().clone()
    }

    fn submit(&self, job: Job) -> Result<Answer, Fault> {
        if let Some(fault) = self.refusal.lock().unwrap().clone() {
            return Err(fault);
        }
        let (events, receiver) = mpsc::channel(64);
        let (stop, stops) = mpsc::unbounded_channel();
        let (alive, dropped) = oneshot::channel();
        let _ = self.scripts.send(Script {
            job,
            events,
            stops,
            dropped,
        });
        let steering = Box::new(Handle {
            stop,
            _alive: alive,
        });
        Ok(Answer {
            request: "engine-7".to_owned(),
            events: receiver,
            steering,
        })
    }
}

struct Handle {
    stop: mpsc::UnboundedSender<u16>,
    _alive: oneshot::Sender<()>,
}

impl Steering for Handle {
    fn stop_choice(&self, choice: u16) {
        let _ = self.stop.send(choice);
    }
}

/// One submitted job, in the test's hands.
pub struct Script {
    pub job: Job,
    pub events: mpsc::Sender<Event>,
    stops: mpsc::UnboundedReceiver<u16>,
    dropped: oneshot::Receiver<()>,
}

impl Script {
    pub async fn send(&self, event: Event) {
        self.events
            .send(event)
            .await
            .expect("the gateway still listens");
    }

    /// The ordinary course: committed, one choice says this, and ends.
    pub async fn say(&self, text: &str, reason: Finish) {
        self.send(committed()).await;
        self.send(tokens(0, text)).await;
        self.finish(0, reason).await;
        self.send(Event::Done).await;
    }

    pub async fn finish(&self, choice: u16, reason: Finish) {
        self.send(Event::Finished { choice, reason }).await;
    }

    /// Waits until the gateway has dropped the answer: both its halves.
    pub async fn cancelled(self) {
        within(self.events.closed()).await;
        let _ = within(self.dropped).await;
    }

    /// The next choice that the gateway wants no more of.
    pub async fn stopped(&mut self) -> u16 {
        within(self.stops.recv())
            .await
            .expect("the gateway still listens")
    }
}

pub fn committed() -> Event {
    Event::Committed(Provenance {
        cached_tokens: 1,
        prefill_epoch: "p-epoch".to_owned(),
        decode_epoch: "d-epoch".to_owned(),
        ..Provenance::default()
    })
}

/// Every byte of a text as a token.
pub fn tokens(choice: u16, text: &str) -> Event {
    let tokens = text.bytes().map(|byte| token(byte.into())).collect();
    Event::Tokens { choice, tokens }
}

pub fn token(id: u32) -> TokenOut {
    TokenOut {
        id,
        logprob: None,
        top: Vec::new(),
    }
}
