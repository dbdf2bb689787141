//! Which past requests were affected: a log is read twice, first to learn, then to convict.
//!
//! The second time everything is judged by what the whole log has taught, so that a request of the
//! first minute is judged like one of the last.

use crate::request::Request;
use crate::sight::Sight;
use crate::signal::Anomaly;
use crate::watching::{Detector, Judged, Key, Standing};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Convicted requests that are kept; further ones are counted.
pub const AFFECTED_MAX: usize = 100_000;

/// Series whose sight is counted apart.
const SIGHTS_MAX: usize = 4096;

/// A convicted request.
#[derive(Clone, Debug, PartialEq)]
pub struct Affected {
    /// The request.
    pub request: Request,
    /// What convicts it.
    pub signals: Vec<Anomaly>,
}

impl Affected {
    /// For a list.
    pub fn json(&self) -> Value {
        let it = &self.request;
        json!({
            "time_unix_s": it.time, "request": it.id, "tenant": it.tenant, "model": it.model,
            "worker": it.worker, "status": it.status, "prompt_tokens": it.prompt_tokens,
            "cached_tokens": it.cached_tokens, "seconds": it.seconds,
            "signals": self.signals.iter().map(Anomaly::json).collect::<Vec<_>>(),
        })
    }
}

/// What a second reading found.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    /// Those convicted, in the order of the log.
    pub affected: Vec<Affected>,
    /// Convicted, by tenant, tests not counted.
    pub by_tenant: BTreeMap<String, u64>,
    /// Convicted, by kind of signal (one request may have several).
    pub by_signal: BTreeMap<&'static str, u64>,
    /// Convicted requests of tests and probes: not among the affected.
    pub tests: u64,
    /// Requests judged.
    pub requests: u64,
    /// Their time was compared with a floor.
    pub compared: u64,
    /// Answered, with a time, at a length of which too little was seen.
    pub learning: u64,
    /// Answered, with a time, and too short for a skipped prefill to be seen.
    pub too_short: u64,
    /// No time, or no answer.
    pub not_measured: u64,
    /// All of the prompt is said to have been cached: a skipped prefill would say the same.
    pub all_cached: u64,
    /// Answered with 200.
    pub answered: u64,
    /// Of [`Findings::all_cached`], those whose length nobody has computed.
    pub from_nowhere: u64,
    /// The first of them, in words.
    pub first_from_nowhere: Option<String>,
    /// By series: what could be compared, and what may be a cache hit.
    pub sights: BTreeMap<Key, Sight>,
}

impl Findings {
    /// Adds a request that was judged.
    pub fn add(&mut self, request: &Request, judged: Judged, test: bool) {
        self.count(request, &judged, test);
        if test || judged.signals.is_empty() {
            return;
        }
        if self.affected.len() < AFFECTED_MAX {
            self.affected.push(Affected {
                request: request.clone(),
                signals: judged.signals,
            });
        }
    }

    /// The same, without keeping the request itself.
    pub fn count(&mut self, request: &Request, judged: &Judged, test: bool) {
        self.requests += 1;
        match judged.standing {
            Standing::Compared(_) => self.compared += 1,
            Standing::Learning => self.learning += 1,
            Standing::TooShort => self.too_short += 1,
            Standing::NotMeasured => self.not_measured += 1,
            Standing::AllCached => self.all_cached += 1,
        }
        self.answered += u64::from(request.status == 200);
        if judged.from_nowhere {
            self.from_nowhere += 1;
            let first = || {
                format!(
                    "{} {}: of {} tokens all but one are said to be cached, and no prompt of that \
                     length was computed",
                    request.tenant, request.id, request.prompt_tokens
                )
            };
            self.first_from_nowhere.get_or_insert_with(first);
        }
        let key = Key::of(request);
        if self.sights.contains_key(&key) || self.sights.len() < SIGHTS_MAX {
            let sight = self.sights.entry(key).or_default();
            sight.add(request, judged, test);
        }
        if judged.signals.is_empty() {
            return;
        }
        if test {
            self.tests += 1;
            return;
        }
        let tenants = self.by_tenant.len();
        match self.by_tenant.get_mut(&request.tenant) {
            Some(n) => *n += 1,
            // Names come from a log: those past the bound are counted together.
            None if tenants >= AFFECTED_MAX => {
                *self.by_tenant.entry(String::new()).or_default() += 1
            }
            None => {
                self.by_tenant.insert(request.tenant.clone(), 1);
            }
        }
        for signal in &judged.signals {
            *self.by_signal.entry(signal.kind()).or_default() += 1;
        }
    }

    /// How many were convicted.
    pub fn convicted(&self) -> u64 {
        self.by_tenant.values().sum()
    }

    /// How many of those convicted need not have skipped anything.
    pub fn doubtful(&self) -> u64 {
        self.sights.values().map(Sight::doubtful).sum()
    }

    /// How many cannot be right.
    pub fn certain(&self) -> u64 {
        self.convicted().saturating_sub(self.doubtful())
    }

    /// The part of the answered requests whose time was compared with a floor.
    pub fn share_compared(&self) -> f64 {
        self.compared as f64 / self.answered.max(1) as f64
    }

    /// Judges every request by what `watch` has learned.
    pub fn of<'a>(watch: &mut Detector, requests: impl Iterator<Item = &'a Request>) -> Self {
        let mut findings = Self::default();
        for request in requests {
            let judged = watch.judge(request);
            let test = watch.settings().test_tenants.contains(&request.tenant);
            findings.add(request, judged, test);
        }
        findings
    }
}
