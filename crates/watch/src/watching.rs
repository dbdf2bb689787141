//! All series together: judging, and learning from what was not convicted.

use crate::floor::Floor;
use crate::request::Request;
use crate::series::{Change, Series};
use crate::settings::Settings;
use crate::signal::{Anomaly, Notice};
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
    /// All of the prompt but a token is said to have come from a cache: a skipped prefill that says
    /// so would look the same. Not "fine" either.
    AllCached,
    /// It was compared with this floor.
    Compared(Floor),
}

/// What was found about one request.
#[derive(Clone, Debug, PartialEq)]
pub struct Judged {
    /// What convicts it.
    pub signals: Vec<Anomaly>,
    /// What may be said about its time.
    pub standing: Standing,
    /// Where it is too fast: what else than a skipped prefill it may be.
    pub doubt: Option<Doubt>,
    /// It is said to have been cached, and nobody has computed a prompt of its length.
    pub from_nowhere: bool,
}

/// Why an answer that is too fast may be right all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Doubt {
    /// It took longer than the shortest prompts do: more than nothing was computed, as after a
    /// cache hit.
    pub partial: bool,
}

/// What was found about one request, and what its series has to say.
#[derive(Clone, Debug, PartialEq)]
pub struct Observation {
    /// About the request.
    pub judged: Judged,
    /// About its series.
    pub notices: Vec<Notice>,
    /// It is too fast and nothing else, and the newest such ones of its series took longer the longer
    /// they were, which a skipped prefill does not: it is suspected, and not convicted.
    pub suspected: bool,
}

/// Everything that was learned, and how it is judged by.
#[derive(Clone)]
pub struct Detector {
    settings: Settings,
    pub(crate) series: BTreeMap<Key, Series>,
}

impl Detector {
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
    pub fn see(&mut self, request: &Request) -> Observation {
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
                let tolerance = self.settings.tolerance;
                notices.extend(learn(series, request, &judged, tolerance).map(Notice::from));
            }
        }
        let by_time = matches!(judged.signals[..], [Anomaly::TooFast { .. }]);
        let grows = self.series.get(&key).is_some_and(Series::grows);
        Observation {
            suspected: by_time && grows,
            judged,
            notices,
        }
    }

    /// Judges a request and learns nothing.
    pub fn judge(&mut self, request: &Request) -> Judged {
        let Timed {
            standing,
            fast,
            doubt,
            from_nowhere,
        } = self.time(request);
        let signals = [
            fast,
            self.over_limit(request),
            tokens_differ(request),
            self.acceptance(request),
        ];
        Judged {
            signals: signals.into_iter().flatten().collect(),
            standing,
            doubt,
            from_nowhere,
        }
    }

    fn time(&mut self, request: &Request) -> Timed {
        let measured = request.seconds.filter(|_| request.is_measured());
        let Some(seconds) = measured else {
            return Timed::of(Standing::NotMeasured);
        };
        let Some(series) = self.series.get_mut(&Key::of(request)) else {
            return Timed::of(Standing::Learning);
        };
        if request.cached_tokens.is_none() {
            series.report_hits(false);
        }
        let (second, tolerance) = (series.second(), self.settings.tolerance);
        let (known, longest, n) = (series.hits_known(), series.longest_computed(), series.n());
        let learned = series.learned(self.settings.learn);
        // A skipped prefill is as fast as the shortest prompts: below twice their usual time
        // nothing can be told apart.
        let short = learned.tails().values().next().copied();
        let least = short.map_or(0.0, |it| it.p50);
        let sees = |floor: &Floor| floor.seconds * second * tolerance > least;
        let tokens = request.uncached();
        if is_all_cached(request)
            && learned
                .floor(request.prompt_tokens)
                .is_some_and(|it| sees(&it))
        {
            let enough = n >= self.settings.learn;
            let mut it = Timed::of(Standing::AllCached);
            it.from_nowhere = enough && request.prompt_tokens > longest;
            return it;
        }
        let Some(mut floor) = learned.floor(tokens) else {
            return Timed::of(Standing::Learning);
        };
        if !sees(&floor) {
            return Timed::of(Standing::TooShort);
        }
        floor.seconds *= second;
        let mut it = Timed::of(Standing::Compared(floor));
        if seconds < floor.seconds * tolerance {
            it.fast = Some(Anomaly::TooFast {
                tokens,
                seconds,
                floor,
            });
            let partial = short.is_some_and(|it| seconds > it.p95);
            it.doubt = (!known).then_some(Doubt { partial });
        }
        it
    }

    fn over_limit(&self, request: &Request) -> Option<Anomaly> {
        let limit = self.settings.limit(&request.model)?;
        let tokens = request.sent_tokens.unwrap_or(0).max(request.prompt_tokens);
        let over = request.status == 200 && tokens > limit;
        over.then_some(Anomaly::OverLimit { tokens, limit })
    }

    fn acceptance(&self, request: &Request) -> Option<Anomaly> {
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
            // A step gives a token at least: 0 is said where nothing is drafted.
            (_, Some(length)) if length > 0.0 && length < settings.accept_length_min => format!(
                "{length:.2} tokens were accepted a step; below {} after {after} tokens is too bad",
                settings.accept_length_min
            ),
            _ => return None,
        };
        Some(Anomaly::Acceptance { says })
    }
}

/// What may be said about a time.
struct Timed {
    standing: Standing,
    fast: Option<Anomaly>,
    doubt: Option<Doubt>,
    from_nowhere: bool,
}

impl Timed {
    fn of(standing: Standing) -> Self {
        Self {
            standing,
            fast: None,
            doubt: None,
            from_nowhere: false,
        }
    }
}

/// Nothing but the last token is said to have been computed, which no prompt is too long for.
fn is_all_cached(request: &Request) -> bool {
    request.prompt_tokens > 1 && request.uncached() == 1
}

fn tokens_differ(request: &Request) -> Option<Anomaly> {
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
    differ.then_some(Anomaly::TokensDiffer { said })
}

/// Learns from a request that was judged.
fn learn(
    series: &mut Series,
    request: &Request,
    judged: &Judged,
    tolerance: f64,
) -> Option<Change> {
    let seconds = request.seconds?;
    let tokens = request.uncached();
    let convicted = !judged.signals.is_empty();
    if request.is_measured() && !convicted && !is_all_cached(request) {
        series.computed(request.prompt_tokens);
    }
    match judged.standing {
        Standing::NotMeasured | Standing::AllCached => None,
        // Convicted for another reason: its time proves nothing about a prefill.
        Standing::Learning | Standing::TooShort if convicted => None,
        Standing::Learning | Standing::TooShort => series.learn(tokens, seconds),
        Standing::Compared(scaled) => {
            let too_fast = |it: &Anomaly| matches!(it, Anomaly::TooFast { .. });
            let too_fast = judged.signals.iter().any(too_fast);
            let mut floor = scaled;
            floor.seconds /= series.second();
            let fast = seconds < floor.seconds * tolerance;
            let change = series.note(tokens, seconds, &floor, fast, too_fast);
            // The faster of two machines does not set the floor of the slower one.
            if change.is_some() || convicted || fast {
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
            Change::Mixture { share } => Self::Mixture { share },
            Change::Growing => Self::Growing,
            Change::Drift { bucket, factor } => Self::Drift { bucket, factor },
        }
    }
}
