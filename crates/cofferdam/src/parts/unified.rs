//! The engine of `serve --in-process` behind the gateway's trait: the same engine, no handoff.

use gateway::engine::{
    Answer, Count, Engine, EngineFacts, Event, Fault, Job, LengthLimit, ModelFacts, PageCounts,
    Provenance, Readiness, Steering, TextPath, WorkerFacts, WorkerRole,
};
use gateway::spans::Steps;
use gateway::verdict;
use handoff::gateway::Outcome;
use handoff::{Ending, Reserve, Spec};
use pages::Domain;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::mpsc;
use wire::Facts;
use worker::local::{self, Local, Running};
use worker::{EngineConfig, WorkerError};

/// Events held for a reader; one that is behind by more is cancelled.
const EVENTS_MAX: usize = 1024;
/// Everybody's domain: this engine caches no prefixes, so nothing could be shared.
const DOMAIN: Domain = Domain::new(1);

pub(super) struct Unified {
    local: Local,
    model: ModelFacts,
    draining: AtomicBool,
}

impl Unified {
    pub(super) fn start(config: &EngineConfig, name: &str) -> Result<Unified, WorkerError> {
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let model = ModelFacts {
            id: name.to_owned(),
            created: since.as_secs(),
        };
        Ok(Unified {
            local: Local::start(config)?,
            model,
            draining: AtomicBool::new(false),
        })
    }

    /// What it says of itself: measured.
    pub(super) fn ready(&self) -> &worker::Ready {
        self.local.ready()
    }

    /// Nothing new is taken; what runs may finish.
    pub(super) fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
        self.local.drain();
    }

    /// Waits for the end of the engine's thread.
    pub(super) async fn ended(&self) {
        self.local.ended().await;
    }

    /// Ends the engine's thread and says how it ended.
    pub(super) fn end(&self) -> Result<(), WorkerError> {
        self.local.stop()
    }
}

impl Engine for Unified {
    fn facts(&self) -> Arc<EngineFacts> {
        let ready = self.local.ready();
        let readiness = match self.draining.load(Ordering::Relaxed) {
            true => Readiness::Draining,
            false => Readiness::Ready,
        };
        let limit = LengthLimit {
            max_model_len: ready.max_context,
            max_prompt_tokens: ready.max_prompt_tokens,
            derivation: vec![format!(
                "one pool of {} tokens in one process, context {}",
                ready.pool_tokens, ready.max_context
            )],
        };
        let Facts {
            pages, counters, ..
        } = self.local.facts();
        let count = |(name, help, value)| Count { name, help, value };
        let worker = WorkerFacts {
            role: WorkerRole::Unified,
            name: "unified-0".to_owned(),
            epoch: ready.epoch.to_string(),
            readiness: readiness.clone(),
            pool_tokens: ready.pool_tokens,
            page_size: ready.page_size,
            max_model_len: ready.max_context,
            max_prompt_tokens: ready.max_prompt_tokens,
            // Nothing is handed over, so that there is nobody to compare them with.
            model_fingerprint: None,
            layout_fingerprint: None,
            pages: PageCounts {
                free: pages.free,
                reserved: pages.reserved,
                granted: pages.granted,
                sealed: pages.sealed,
                cached: pages.cached,
                quarantined: pages.quarantined,
            },
            quarantine: gateway::engine::Quarantine::default(),
            counters: counters.named().into_iter().map(count).collect(),
        };
        Arc::new(EngineFacts {
            text_path: TextPath::OURS,
            models: vec![self.model.clone()],
            limits: vec![limit],
            readiness,
            workers: vec![worker],
            counters: Vec::new(),
        })
    }

    fn submit(&self, job: Job) -> Result<Answer, Fault> {
        let trace = job.trace.clone();
        let spec = Spec {
            pages: Reserve::All, // this engine puts nothing back
            sampling: gateway::pairs::sampling_bytes(&job)?,
            choices: job.choices,
            ..Spec::new(DOMAIN, job.prompt, job.max_new)
        };
        let running = self
            .local
            .submit(spec, job.deadline)
            .map_err(|ending| fault(ending, false))?;
        let request = format!("{}.{}", self.local.ready().epoch, running.id);
        let steering = Box::new(Handle(running.steering.clone()));
        let (sender, events) = mpsc::channel(EVENTS_MAX);
        let mut steps = trace.map(Steps::new);
        if let Some(steps) = &mut steps {
            steps.sent();
        }
        tokio::spawn(pump(running, sender, self.ready().epoch.to_string(), steps));
        Ok(Answer {
            request,
            events,
            steering,
        })
    }
}

/// Hands the engine's events to the reader. Ends, and with it the request, when the reader has
/// left or is too far behind.
async fn pump(
    mut running: Running,
    reader: mpsc::Sender<Event>,
    epoch: String,
    mut steps: Option<Steps>,
) {
    let mut committed = false;
    loop {
        let event = tokio::select! {
            event = running.events.recv() => event,
            () = reader.closed() => return,
        };
        let said = match event {
            Some(local::Event::Committed) => {
                committed = true;
                if let Some(steps) = &mut steps {
                    steps.committed(&epoch, &epoch);
                }
                let decode_epoch = epoch.clone();
                vec![Event::Committed(Provenance {
                    decode_epoch,
                    ..Provenance::default()
                })]
            }
            Some(local::Event::Token {
                choice,
                token,
                finish,
            }) => {
                let tokens = vec![token];
                let finished = finish.map(|reason| Event::Finished { choice, reason });
                [Event::Tokens { choice, tokens }]
                    .into_iter()
                    .chain(finished)
                    .collect()
            }
            Some(local::Event::Ended(Ending::Finished)) => {
                if let Some(steps) = &mut steps {
                    steps.end(false);
                }
                vec![Event::Done]
            }
            Some(local::Event::Ended(ending)) => vec![Event::Failed(fault(ending, committed))],
            None => return, // the engine is gone; the closed channel says so
        };
        for event in said {
            if reader.try_send(event).is_err() {
                return;
            }
        }
    }
}

fn fault(ending: Ending, committed: bool) -> Fault {
    let outcome = match ending {
        Ending::Finished => Outcome::Answered,
        Ending::Rejected(why) => Outcome::Rejected(why),
        Ending::Refused(why) => Outcome::Refused(why),
        Ending::Cancelled => Outcome::ClientLeft,
        Ending::Failed(why) => Outcome::Failed(why),
    };
    let told = verdict::of_outcome(&outcome, committed, None);
    told.expect_err("an answer is handled before")
}

struct Handle(local::Steering);

impl Steering for Handle {
    fn stop_choice(&self, choice: u16) {
        self.0.stop_choice(choice);
    }
}
