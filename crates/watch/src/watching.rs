//! All series together: judging, and learning from what was not convicted.

use crate::floor::Floor;
use crate::request::Request;
use crate::series::{Change, Series};
use crate::settings::Settings;
use crate::signal::{Notice, Signal};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A model on a worker.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Key {
    /// The model.
    pub model: String,
    /// Who computes prompts.
    pub worker: String,
}

impl Key {
    /// The series of a request.
    pub fn of(request: &Request) -> Self {
        Self {
            model: request.model.clone(),
            worker: request.worker.clone(),
        }
    }
}

/// What may be said about the time that a request took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Standing {
    /// The log has no time for it, or it was not answered.
    NotMeasured,
    /// Too little was seen of this length to say anything. Not "fine".
    Learning,
    /// The prompt is so short that a skipped prefill would look the same. Not "fine" either.
    TooShort,
    /// It was compared with this floor.
    Compared(Floor),
}

/// What was found about one request.
#[derive(Clone, Debug, PartialEq)]
pub struct Judged {
    /// What convicts it.
    pub signals: Vec<Signal>,
    /// What may be said about its time.
    pub standing: Standing,
}

/// What was found about one request, and what its series has to say.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    /// About the request.
    pub judged: Judged,
    /// About its series.
    pub notices: Vec<Notice>,
}

/// Everything that was learned, and how it is judged by.
#[derive(Clone)]
pub struct Watch {
    settings: Settings,
    pub(crate) series: BTreeMap<Key, Series>,
}

impl Watch {
    /// Knows nothing yet.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            series: BTreeMap::new(),
        }
    }

    /// How it judges.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The series, for reports.
    pub fn series(&mut self) -> impl Iterator<Item = (&Key, &mut Series)> {
        self.series.iter_mut()
    }

    /// Judges a request by what is known, and learns from it unless it was convicted or belongs to
    /// a test.
    pub fn see(&mut self, request: &Request) -> Seen {
        let mut notices = Vec::new();
        let key = Key::of(request);
        if !self.series.contains_key(&key) {
            if self.series.len() >= self.settings.series_max {
                let kept = self.series.len();
                notices.push(Notice::TooManySeries { kept });
            } else if request.is_measured() {
                self.series.insert(key.clone(), Series::default());
            }
        }
        let judged = self.judge(request);
        if let Some(series) = self.series.get_mut(&key) {
            let test = self.settings.test_tenants.contains(&request.tenant);
            if !test {
                notices.extend(learn(series, request, &judged).map(Notice::from));
            }
        }
        Seen { judged, notices }
    }

    /// Judges a request and learns nothing.
    pub fn judge(&mut self, request: &Request) -> Judged {
        let (standing, fast) = self.time(request);
        let signals = [
            fast,
            self.over_limit(request),
            tokens_differ(request),
            self.acceptance(request),
        ];
        Judged {
            signals: signals.into_iter().flatten().collect(),
            standing,
        }
    }

    fn time(&mut self, request: &Request) -> (Standing, Option<Signal>) {
        let measured = request.seconds.filter(|_| request.is_measured());
        let Some(seconds) = measured else {
            return (Standing::NotMeasured, None);
        };
        let Some(series) = self.series.get_mut(&Key::of(request)) else {
            return (Standing::Learning, None);
        };
        if request.cached_tokens.is_none() {
            series.report_hits(false);
        }
        let learned = series.learned(self.settings.learn);
        let tokens = request.uncached();
        let Some(floor) = learned.floor(tokens) else {
            return (Standing::Learning, None);
        };
        // A skipped prefill is as fast as the shortest prompts: below twice their usual time
        // nothing can be told apart.
        let short = learned.tails().values().next().map_or(0.0, |it| it.p50);
        if floor.seconds * self.settings.tolerance <= short {
            return (Standing::TooShort, None);
        }
        let fast = seconds < floor.seconds * self.settings.tolerance;
        let signal = fast.then_some(Signal::TooFast {
            tokens,
            seconds,
            floor,
        });
        (Standing::Compared(floor), signal)
    }

    fn over_limit(&self, request: &Request) -> Option<Signal> {
        let limit = self.settings.limit(&request.model)?;
        let tokens = request.sent_tokens.unwrap_or(0).max(request.prompt_tokens);
        let over = request.status == 200 && tokens > limit;
        over.then_some(Signal::OverLimit { tokens, limit })
    }

    fn acceptance(&self, request: &Request) -> Option<Signal> {
        let settings = &self.settings;
        if request.completion_tokens? < settings.accept_after {
            return None;
        }
        let after = settings.accept_after;
        let says = match (request.accept_rate, request.accept_length) {
            (Some(rate), _) if rate > settings.accept_rate_max => format!(
                "{rate:.3} of drafted tokens were accepted; above {} after {after} tokens is too \
                 good",
                settings.accept_rate_max
            ),
            (_, Some(length)) if length < settings.accept_length_min => format!(
                "{length:.2} tokens were accepted a step; below {} after {after} tokens is too bad",
                settings.accept_length_min
            ),
            _ => return None,
        };
        Some(Signal::Acceptance { says })
    }
}

fn tokens_differ(request: &Request) -> Option<Signal> {
    // A request that was not answered may have been counted by some only.
    if request.status != 200 {
        return None;
    }
    let answer = (request.prompt_tokens > 0).then_some(request.prompt_tokens);
    let all = [
        ("sent", request.sent_tokens),
        ("prefill", request.prefill_tokens),
        ("decode", request.decode_tokens),
        ("answer", answer),
    ];
    let said = all.into_iter().filter_map(|(who, n)| Some((who, n?)));
    let said: Vec<_> = said.collect();
    let differ = said.windows(2).any(|pair| pair[0].1 != pair[1].1);
    differ.then_some(Signal::TokensDiffer { said })
}

/// Learns from a request that was judged.
fn learn(series: &mut Series, request: &Request, judged: &Judged) -> Option<Change> {
    let seconds = request.seconds?;
    let tokens = request.uncached();
    match judged.standing {
        Standing::NotMeasured => None,
        // Convicted for another reason: its time proves nothing about a prefill.
        Standing::Learning | Standing::TooShort if !judged.signals.is_empty() => None,
        Standing::Learning | Standing::TooShort => series.learn(tokens, seconds),
        Standing::Compared(floor) => {
            let fast = |it: &Signal| matches!(it, Signal::TooFast { .. });
            let fast = judged.signals.iter().any(fast);
            let change = series.note(tokens, seconds, &floor, fast);
            if change.is_some() || !judged.signals.is_empty() {
                return change;
            }
            series.learn(tokens, seconds)
        }
    }
}

impl From<Change> for Notice {
    fn from(change: Change) -> Self {
        match change {
            Change::Relearning { share } => Self::Relearning { share },
            Change::Drift { bucket, factor } => Self::Drift { bucket, factor },
        }
    }
}
