//! What a silence, and what a conviction by time, is worth: of each series, and of a whole log.

use crate::forensics::Findings;
use crate::mixture::grow;
use crate::request::Request;
use crate::signal::Anomaly;
use crate::watching::{Detector, Judged, Standing};

/// Less than this part of the answers compared with a floor, and nothing found says nothing.
pub const SHARE_MIN: f64 = 0.1;
/// A series with less than this part of all answers does not decide.
const SERIES_MIN: f64 = 0.05;
/// More of the compared ones too fast than this, where hits are not reported, is what a prefix
/// cache looks like.
const HITS: f64 = 0.1;
/// So many of the fast ones that did compute something show a prefix cache.
const PARTIAL_MIN: u64 = 2;
/// Fast ones that are kept of a series: every one, or every 2nd, 4th...
const KEPT: usize = 256;
/// Answers sooner than this come over no network: 1 ms.
const SOONEST: f64 = 1e-3;
/// More tokens a second are computed by nothing that is known.
const FASTEST: f64 = 1e6;
/// Half of the first tokens later than this, and nobody would use it: 10 minutes.
const LATEST: f64 = 600.0;

/// Counts of one series.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sight {
    /// Answered with 200.
    pub answered: u64,
    /// Compared with a floor.
    pub compared: u64,
    /// Longest prompt that was answered.
    pub longest: u64,
    /// Convicted by their time alone.
    fast: u64,
    /// Of these, those whose hits are not reported...
    unreported: u64,
    /// ...and of these, those that took longer than the shortest prompts.
    partial: u64,
    /// Tokens and seconds of some of the fast ones, evenly.
    kept: Vec<(u64, f64)>,
    /// With a time: sooner than a network, and later than anybody waits.
    timed: u64,
    soon: u64,
    late: u64,
}

impl Sight {
    pub(crate) fn add(&mut self, request: &Request, judged: &Judged, test: bool) {
        if request.status == 200 {
            self.answered += 1;
            self.longest = self.longest.max(request.prompt_tokens);
        }
        if let Some(seconds) = request.seconds.filter(|_| request.is_measured()) {
            self.timed += 1;
            let rate = request.uncached() as f64 / seconds.max(1e-9);
            self.soon += u64::from(seconds < SOONEST || rate > FASTEST);
            self.late += u64::from(seconds > LATEST);
        }
        self.compared += u64::from(matches!(judged.standing, Standing::Compared(_)));
        let by_time = matches!(judged.signals[..], [Anomaly::TooFast { .. }]);
        if by_time && !test {
            self.fast(request);
            if let Some(doubt) = judged.doubt {
                self.unreported += 1;
                self.partial += u64::from(doubt.partial);
            }
        }
    }

    fn fast(&mut self, request: &Request) {
        let stride = self
            .fast
            .checked_div(KEPT as u64 / 2)
            .map_or(1, |it| (it + 1).next_power_of_two());
        if self.fast.is_multiple_of(stride) {
            let seconds = request.seconds.unwrap_or_default();
            self.kept.push((request.uncached(), seconds));
        }
        if self.kept.len() == KEPT {
            let mut n = 0;
            self.kept.retain(|_| {
                n += 1;
                n % 2 == 1
            });
        }
        self.fast += 1;
    }

    /// Those convicted by time that need not have skipped anything, and why not.
    fn doubts(&self) -> (u64, &'static str) {
        let of = |part: u64| part as f64 > HITS * self.compared as f64;
        let partial = self.partial >= PARTIAL_MIN && self.partial * 3 >= self.unreported;
        match () {
            () if self.unit().is_some() => (self.fast, "their unit is in doubt"),
            () if grow(&self.kept) => (
                self.fast,
                "they took longer the longer they were, which a skipped prefill does not: another \
                 machine, model or load that the mapping does not tell apart (worker, model)?",
            ),
            // There are so many that a cache is the likelier reason, or a good part did compute.
            () if of(self.unreported) || partial => (
                self.unreported,
                "may be cache hits: the log does not report cached tokens (cached_tokens)",
            ),
            () => (0, ""),
        }
    }

    /// How many of those convicted by time need not have skipped anything.
    pub fn doubtful(&self) -> u64 {
        self.doubts().0
    }

    /// What is wrong with the unit of its times, if something is.
    fn unit(&self) -> Option<&'static str> {
        let half = self.timed.div_ceil(2);
        match () {
            () if self.timed < 20 => None,
            () if self.soon >= half => {
                Some("half of its times are below 1 ms, or those of a million tokens a second")
            }
            () if self.late >= half => Some("half of its times are above 10 minutes"),
            () => None,
        }
    }
}

/// Why nothing can be said about this log where nothing was found: empty if its silence is worth
/// something.
pub fn blind(watch: &mut Detector, findings: &Findings) -> Vec<String> {
    let mut why = Vec::new();
    let share = findings.share_compared();
    if share < SHARE_MIN {
        why.push(format!(
            "only {} % of the answers could be compared with a floor (at least {} % are needed)",
            percent(share),
            percent(SHARE_MIN)
        ));
    }
    let (tolerance, learn) = (watch.settings().tolerance, watch.settings().learn);
    let limits: Vec<_> = findings
        .sights
        .keys()
        .map(|key| watch.settings().limit(&key.model))
        .collect();
    for ((key, sight), limit) in findings.sights.iter().zip(limits) {
        let name = format!("{} {}", key.model, key.worker);
        let of = match name.trim() {
            "" => String::new(),
            name => format!("{name}: "),
        };
        if let Some(unit) = sight.unit() {
            why.push(format!("{of}{unit}: is seconds_unit right?"));
        }
        let counts = sight.answered as f64 >= SERIES_MIN * findings.answered as f64;
        let part = sight.compared as f64 / sight.answered.max(1) as f64;
        if counts && part < SHARE_MIN && share >= SHARE_MIN {
            why.push(format!(
                "{of}only {} % of its answers could be compared",
                percent(part)
            ));
        }
        let from = watch
            .series
            .get_mut(key)
            .and_then(|it| it.sees_from(learn, tolerance));
        let (Some(from), true) = (from, counts) else {
            continue;
        };
        let ends = limit.map(|it| (it, "that is allowed"));
        let (end, what) = ends.unwrap_or((sight.longest, "in the log"));
        if from > end {
            why.push(format!(
                "{of}the floor speaks from {from} tokens on, and the longest prompt {what} has {end}"
            ));
        }
    }
    if findings.from_nowhere > 0 {
        let first = findings.first_from_nowhere.as_deref().unwrap_or_default();
        why.push(format!(
            "{} hits that nobody has filled; {first}",
            findings.from_nowhere
        ));
    }
    let hidden = findings.all_cached as f64;
    if hidden > SHARE_MIN * findings.answered as f64 {
        why.push(format!(
            "{} answers say that all of their prompt was cached, which a skipped prefill may say too",
            findings.all_cached
        ));
    }
    let mut doubts = std::collections::BTreeMap::<&str, u64>::new();
    for (n, reason) in findings.sights.values().map(Sight::doubts) {
        *doubts.entry(reason).or_default() += n;
    }
    for (reason, n) in doubts.into_iter().filter(|it| it.1 > 0) {
        why.push(format!(
            "{n} answers are faster than their floor, and {reason}"
        ));
    }
    why
}

/// `3.4`, `100`.
pub fn percent(share: f64) -> String {
    let tenths = (share * 1000.0).floor() / 10.0; // what is not all is never 100
    let text = format!("{tenths:.1}");
    text.strip_suffix(".0").unwrap_or(&text).to_owned()
}
