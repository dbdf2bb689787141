//! On call: this gateway's signals, doors, canaries and incidents, put together.
//!
//! ```text
//! how generations end ─┐                        ┌─▶ who may ask: model (gateway), engine (door)
//! canaries ────────────┼─▶ OnCall: duty + book ─┼─▶ journal
//! an operator's wish ──┘                        └─▶ the operators' page
//! ```
//! What is decided holds at once, in memory; the journal is written behind it, by its own thread.

mod canaries;
pub(crate) mod command;
mod ended;
mod figures;
mod fleet;
mod page;
pub(crate) mod standalone;

use crate::args::OnCall as Settings;
use crate::exit::Failure;
use crate::files;
use anyhow::{Context, anyhow};
use gateway::api::auth::ApiKeys;
use gateway::api::private::{Private, Stands};
use gateway::engine::Engine;
use oncall::entry::Dated;
use oncall::journal::{Bounds, Journal, began, drawn, incident_name};
use oncall::{
    Asked, Book, Duty, Entry, Openness, Policy, Proof, Recorder, Refusal, Restriction, Signal,
};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use tokio::sync::Notify;

pub(crate) use fleet::Named;
pub(crate) use page::Page;

/// The tenants of canaries: no key file can name them.
pub(crate) const CANARIES: [&str; 2] = ["canary:a", "canary:b"];

/// See the module.
pub(crate) struct OnCall {
    settings: Settings,
    model: String,
    duty: Mutex<Duty>,
    recorder: Recorder,
    private: Arc<Private>,
    engine: OnceLock<Arc<dyn Engine>>,
    /// Whether engines can be closed one by one; else all of them are.
    one_by_one: bool,
    fleet: Mutex<fleet::Fleet>,
    seen: Mutex<ended::Seen>,
    canaried: Mutex<canaries::Counted>,
    /// Told when a door has moved.
    pub(crate) moved: Notify,
    /// Keys of the canaries, drawn for this life.
    keys: [String; 2],
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl OnCall {
    /// None where no journal is wanted.
    pub(crate) fn start(
        settings: &Settings,
        private: Arc<Private>,
        model: &str,
        one_by_one: bool,
    ) -> Result<Option<Arc<Self>>, Failure> {
        let Some(path) = &settings.incidents else {
            return Ok(None);
        };
        let policy = policy(settings).map_err(Failure::usage)?;
        let bounds = Bounds {
            bytes: u64::from(settings.incidents_mib) << 20,
            keep_ms: u64::from(settings.incidents_days) * 24 * 3_600_000,
        };
        let opened = || -> Result<_, oncall::JournalError> {
            let mut journal = Journal::open(path, bounds)?;
            journal.keep()?;
            let (entries, _) = journal.read()?;
            Ok((journal, entries))
        };
        let named = || format!("--incidents {}", path.display());
        let (journal, entries) = opened().with_context(named).map_err(Failure::usage)?;
        let seq = entries.last().map_or(0, |(seq, _)| *seq);
        let mut book = Book::default();
        entries.iter().for_each(|(_, dated)| book.apply(dated));
        let key = || drawn().context("the system gives no random bits");
        let keys = [
            key().map_err(Failure::found)?,
            key().map_err(Failure::found)?,
        ];
        let whole: Arc<OnceLock<Weak<Self>>> = Arc::default();
        let ears = whole.clone();
        let heard = move |dated: Dated| {
            if let Some(it) = ears.get().and_then(Weak::upgrade) {
                it.heard(&dated);
            }
        };
        let it = Arc::new(Self {
            settings: settings.clone(),
            model: model.to_owned(),
            duty: Mutex::new(Duty::new(policy, model, book)),
            recorder: Recorder::start(journal, seq, heard),
            private,
            engine: OnceLock::new(),
            one_by_one,
            fleet: Mutex::default(),
            seen: Mutex::default(),
            canaried: Mutex::default(),
            moved: Notify::new(),
            keys,
        });
        // It is set once, here.
        let _ = whole.set(Arc::downgrade(&it));
        let by = drawn().unwrap_or_default();
        it.written(it.duty().note(
            oncall::times::now(),
            began(&by, env!("CARGO_PKG_VERSION"), model),
        ));
        it.stand();
        Ok(Some(it))
    }

    /// Whom it is about.
    pub(crate) fn watch(&self, engine: Arc<dyn Engine>) {
        // It is set once, before anything is asked.
        let _ = self.engine.set(engine);
        self.stand();
    }

    /// Keys with which its canaries ask.
    pub(crate) fn api_keys(&self) -> Arc<ApiKeys> {
        let pairs = CANARIES.into_iter().zip(self.keys.clone());
        Arc::new(ApiKeys::drawn(pairs))
    }

    fn duty(&self) -> MutexGuard<'_, Duty> {
        locked(&self.duty)
    }

    /// Something was found out.
    pub(crate) fn signal(&self, signal: Signal) -> Option<String> {
        let now = oncall::times::now();
        let name = incident_name(now).unwrap_or_else(|_| format!("{now}"));
        tracing::warn!(signal = signal.signal.as_str(), source = %signal.source, "{}", signal.says);
        *locked(&self.seen).signals.entry(signal.signal).or_default() += 1;
        let entries = self.duty().signal(now, signal, &name);
        let incident = entries.iter().find_map(|it| it.entry.incident());
        let incident = incident.map(str::to_owned);
        self.written(entries);
        self.stand();
        incident
    }

    /// Something else that is to stand in the journal.
    pub(crate) fn note(&self, entry: Entry) {
        let entries = self.duty().note(oncall::times::now(), entry);
        self.written(entries);
    }

    /// These lives were tested.
    pub(crate) fn proved(&self, proof: Proof) {
        self.note(Entry::Proved { proof });
    }

    /// Evidence about these lives has come; only of those that run is it a proof.
    pub(crate) fn proved_by_probe(&self, tested: &BTreeSet<gateway::api::private::WorkerLife>) {
        let mut lives = self.lives();
        lives.retain(|life| tested.iter().any(|it| it.epoch == life.life));
        if !lives.is_empty() {
            self.proved(Proof {
                proof: oncall::ProofKind::Probe,
                lives,
                answers: 0,
                says: "a clean run of probe, signed".to_owned(),
            });
        }
    }

    /// A person wants something.
    pub(crate) fn asked(&self, asked: Asked, by: &str, why: &str) -> Result<String, Refusal> {
        let now = oncall::times::now();
        let running = self.lives();
        let name = incident_name(now).map_err(|why| Refusal(why.to_string()))?;
        let opens = matches!(asked, Asked::Restore(_));
        if let (true, Some(trouble)) = (opens, self.recorder.status().trouble) {
            return Err(Refusal(format!(
                "nothing is opened while it cannot be written down: {trouble}"
            )));
        }
        let (entries, done) = self.duty().asked(now, asked, (by, why), &running, &name);
        self.written(entries);
        self.stand();
        done
    }

    fn heard(&self, dated: &Dated) {
        if let Entry::Signal { signal, .. } = &dated.entry {
            *locked(&self.seen).signals.entry(signal.signal).or_default() += 1;
        }
        self.duty().heard(dated);
        self.stand();
    }

    fn written(&self, entries: Vec<Dated>) {
        for dated in entries {
            if let Entry::Restricted {
                scope, access, why, ..
            } = &dated.entry
            {
                tracing::error!("{scope} is {} from now on: {why}", access.as_str());
            }
            self.recorder.entry(dated);
        }
    }

    /// The door of one engine, by its name in the journal.
    pub(crate) fn of_engine(&self, name: &str) -> Option<Restriction> {
        self.duty().book().of_engine(name).cloned()
    }

    /// Puts the doors where the book has them.
    fn stand(&self) {
        let lives = self.lives();
        let stands = {
            let duty = self.duty();
            let book = duty.book();
            let model = book.of_model(&self.model);
            let each: Vec<_> = lives.iter().map(|it| book.of_engine(&it.engine)).collect();
            let engines = match self.one_by_one {
                // All of them are kept for operators: then the model is, and clients are told why.
                true if !each.is_empty() && each.iter().all(|it| is_private(*it)) => each.first(),
                true => None,
                false => each.iter().max_by_key(|it| it.map(|it| it.access)),
            };
            let engines = engines.copied().flatten();
            stands(model.into_iter().chain(engines).max_by_key(|it| it.access))
        };
        self.private.stand(stands);
        self.moved.notify_one();
    }
}

fn is_private(restriction: Option<&Restriction>) -> bool {
    restriction.is_some_and(|it| it.access == Openness::Private)
}

fn stands(restriction: Option<&Restriction>) -> Stands {
    let Some(it) = restriction else {
        return Stands::Open;
    };
    // Clients are not told what was found at whom.
    let why = match &it.incident {
        Some(incident) => format!("incident {incident} is being looked into"),
        None => "whoever runs it has said so".to_owned(),
    };
    match it.access {
        Openness::Open => Stands::Open,
        Openness::Draining => Stands::Draining(why),
        Openness::Private => Stands::Private(why),
        Openness::Closed => Stands::Closed(why),
    }
}

fn policy(settings: &Settings) -> anyhow::Result<Policy> {
    policy_of(settings.incident_policy.as_deref())
}

fn policy_of(path: Option<&Path>) -> anyhow::Result<Policy> {
    let Some(path) = path else {
        return Ok(Policy::default());
    };
    let read = || -> anyhow::Result<Policy> {
        let text = files::read(path, oncall::policy::BYTES_MAX)?;
        Ok(Policy::parse(&text)?)
    };
    read().with_context(|| format!("--incident-policy {}", path.display()))
}

/// Whether what it needs is there, before anything is loaded.
pub(crate) fn check(settings: &Settings) -> Result<(), Failure> {
    policy(settings).map_err(Failure::usage)?;
    if settings.admin.is_some() {
        page::keys(settings).map_err(Failure::usage)?;
    }
    if let Some(path) = &settings.incidents {
        let parent = path.parent().filter(|it| !it.as_os_str().is_empty());
        let parent: PathBuf = parent.map_or_else(|| ".".into(), Into::into);
        if !parent.is_dir() {
            return Err(Failure::usage(anyhow!(
                "--incidents {}: there is no directory {}",
                path.display(),
                parent.display()
            )));
        }
    }
    Ok(())
}

/// Names by which something is called at two places.
type Names = BTreeMap<String, String>;
