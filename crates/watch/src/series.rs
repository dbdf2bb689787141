//! One series: what was learned of one model on one worker.
//!
//! Memory is bounded: at most 161 buckets, each of two sketches with at most 768 bins, and a ring
//! of 256 recent judgements.

use crate::bucket::Bucket;
use crate::floor::{Floor, Learned, Tail};
use crate::mixture::Mixture;
use serde::{Deserialize, Serialize};
use sketches_ddsketch::{Config, DDSketch};
use std::collections::{BTreeMap, VecDeque};

/// Quantiles are exact to this share of their value.
const ACCURACY: f64 = 0.02;
/// Seconds outside are taken for the nearer end: 0.1 ms to 10,000 s. With [`ACCURACY`] that is 461
/// bins, so the limit is never reached and no bin of the lower tail is ever merged away.
const SECONDS: (f64, f64) = (1e-4, 1e4);
const BINS_MAX: u32 = 768;
/// A bucket forgets in generations: after this many requests the one before the last is dropped.
const GENERATION: u64 = 4096;
/// Tails are computed anew after this many requests.
const REFRESH: u64 = 32;
/// Judgements that are remembered in order to tell a faster machine from a skipped prefill.
const RECENT: usize = 256;
/// Of the recent long requests, this share must be fast before the machine may be what changed.
const NEARLY_ALL: f64 = 0.9;
/// Long requests needed for that judgement.
const RECENT_MIN: usize = 64;
/// A bucket's bulk that moved by more than this is drift.
const DRIFT: f64 = 0.2;

/// What was learned of one length.
#[derive(Clone, Serialize, Deserialize)]
struct Lengths {
    now: DDSketch,
    before: Option<DDSketch>,
    /// The bulk (p25) of the first generation, or as it was when drift was last reported.
    reference: Option<f64>,
}

fn sketch() -> DDSketch {
    DDSketch::new(Config::new(ACCURACY, BINS_MAX, SECONDS.0))
}

impl Lengths {
    fn new() -> Self {
        Self {
            now: sketch(),
            before: None,
            reference: None,
        }
    }

    fn n(&self) -> u64 {
        (self.now.count() + self.before.as_ref().map_or(0, DDSketch::count)) as u64
    }

    fn tail(&self) -> Option<Tail> {
        let mut all = self.now.clone();
        if let Some(before) = &self.before {
            all.merge(before).ok()?; // all are made by `sketch`
        }
        let at = |q: f64| all.quantile(q).ok().flatten();
        Some(Tail {
            n: self.n(),
            p05: at(0.05)?,
            p25: at(0.25)?,
            p50: at(0.5)?,
            p95: at(0.95)?,
        })
    }

    /// Learns; at the end of a generation says by what factor the bulk has moved, if it has.
    fn learn(&mut self, seconds: f64) -> Option<f64> {
        self.now.add(seconds.clamp(SECONDS.0, SECONDS.1));
        if (self.now.count() as u64) < GENERATION {
            return None;
        }
        let bulk = self.now.quantile(0.25).ok().flatten()?;
        self.before = Some(std::mem::replace(&mut self.now, sketch()));
        let reference = *self.reference.get_or_insert(bulk);
        let moved = bulk / reference;
        if (moved - 1.0).abs() <= DRIFT {
            return None;
        }
        self.reference = Some(bulk);
        Some(moved)
    }
}

/// A recent judgement of a long request.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Recent {
    tokens: u64,
    seconds: f64,
    /// Of the floor.
    share: f64,
    fast: bool,
}

/// What a series has to say after it has learned.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Change {
    /// Long prompts take a new time, in proportion to their length: another machine, or other
    /// software. Everything is learned anew.
    Relearning {
        /// New times as a share of the old floor.
        share: f64,
    },
    /// Some requests take a share of the floor, as on a faster machine, among others that do not.
    /// From now on only what is too fast for those is too fast.
    Mixture {
        /// The share that they take.
        share: f64,
    },
    /// What is too fast took longer the longer it was: it was computed.
    Growing,
    /// The bulk of this bucket moved slowly.
    Drift {
        /// The bucket.
        bucket: Bucket,
        /// New times as a share of the old.
        factor: f64,
    },
}

/// See the module.
#[derive(Clone, Serialize, Deserialize)]
pub struct Series {
    lengths: BTreeMap<Bucket, Lengths>,
    /// Whether cached tokens have always been reported.
    hits_known: bool,
    recent: VecDeque<Recent>,
    #[serde(default)]
    mixture: Mixture,
    /// The share of the floor that the faster of two machines takes.
    #[serde(default)]
    second: Option<f64>,
    /// Whether the newest of what was too fast took longer the longer it was.
    #[serde(default)]
    grows: bool,
    /// The longest prompt that was computed, at least in part.
    #[serde(default)]
    computed: u64,
    /// Requests since the tails were computed.
    #[serde(skip)]
    stale: u64,
    #[serde(skip)]
    learned: Option<Learned>,
}

impl Default for Series {
    fn default() -> Self {
        Self {
            lengths: BTreeMap::new(),
            hits_known: true,
            recent: VecDeque::new(),
            mixture: Mixture::default(),
            grows: false,
            second: None,
            computed: 0,
            stale: 0,
            learned: None,
        }
    }
}

impl Series {
    /// What is known now, with buckets of at least `least` requests.
    pub fn learned(&mut self, least: u64) -> &Learned {
        if self.stale >= REFRESH {
            self.learned = None;
            self.stale = 0;
        }
        self.learned.get_or_insert_with(|| {
            let enough = self.lengths.iter().filter(|(_, it)| it.n() >= least);
            let tails = enough.filter_map(|(bucket, it)| Some((*bucket, it.tail()?)));
            Learned::new(tails.collect(), self.hits_known)
        })
    }

    /// What a request of the faster of two machines may take, as a share of the floor: 1 where
    /// there are no two.
    pub fn second(&self) -> f64 {
        self.second.unwrap_or(1.0)
    }

    /// Whether its newest requests that were too fast took longer the longer they were.
    pub fn grows(&self) -> bool {
        self.grows
    }

    /// The tokens from which a skipped prefill would be seen at this tolerance.
    pub fn sees_from(&mut self, least: u64, tolerance: f64) -> Option<u64> {
        let tolerance = tolerance * self.second();
        self.learned(least).sees_from(tolerance)
    }

    /// The longest prompt that was computed, at least in part.
    pub fn longest_computed(&self) -> u64 {
        self.computed
    }

    /// A prompt was computed, at least in part.
    pub fn computed(&mut self, tokens: u64) {
        self.computed = self.computed.max(tokens);
    }

    /// Takes the newest requests into account too.
    pub fn refresh(&mut self) {
        self.learned = None;
        self.stale = 0;
    }

    /// Requests learned from.
    pub fn n(&self) -> u64 {
        self.lengths.values().map(Lengths::n).sum()
    }

    /// Whether cached tokens have always been reported.
    pub fn hits_known(&self) -> bool {
        self.hits_known
    }

    /// A request says whether the log reports cached tokens.
    pub fn report_hits(&mut self, reported: bool) {
        if self.hits_known && !reported {
            self.hits_known = false;
            self.refresh();
        }
    }

    /// Learns a time that was not found too fast.
    pub(crate) fn learn(&mut self, tokens: u64, seconds: f64) -> Option<Change> {
        let bucket = Bucket::of(tokens);
        let lengths = self.lengths.entry(bucket).or_insert_with(Lengths::new);
        let moved = lengths.learn(seconds);
        self.stale += 1;
        moved.map(|factor| Change::Drift { bucket, factor })
    }

    /// Remembers the judgement of a request that is long enough to be judged, and says if the
    /// machine is what has changed. Then nothing that was learned holds any more. `fast` is against
    /// the floor, `convicted` against that of the faster of two machines.
    pub(crate) fn note(
        &mut self,
        tokens: u64,
        seconds: f64,
        floor: &Floor,
        fast: bool,
        convicted: bool,
    ) -> Option<Change> {
        self.mixture.note(tokens, seconds, floor.seconds, convicted);
        let grew = self.grows;
        if convicted {
            self.grows = self.mixture.grows();
        }
        let share = seconds / floor.seconds;
        let it = Recent {
            tokens,
            seconds,
            share,
            fast,
        };
        self.recent.push_back(it);
        if self.recent.len() > RECENT {
            self.recent.pop_front();
        }
        if !fast {
            return None;
        }
        if self.recent.len() < RECENT_MIN || !self.another_machine() {
            let Some(share) = self.mixture.second() else {
                return (self.grows && !grew).then_some(Change::Growing);
            };
            (self.mixture, self.grows) = (Mixture::default(), false);
            self.second = Some(share);
            return Some(Change::Mixture { share });
        }
        (self.mixture, self.second, self.grows) = (Mixture::default(), None, false);
        let mut shares: Vec<_> = self.recent.iter().map(|it| it.share).collect();
        let share = median(&mut shares);
        let recent = std::mem::take(&mut self.recent);
        self.lengths.clear();
        for it in recent.iter().filter(|it| it.fast) {
            self.learn(it.tokens, it.seconds);
        }
        self.refresh();
        Some(Change::Relearning { share })
    }

    /// Nearly all of the newest long requests are fast, and the longer ones among them took longer
    /// in proportion. A skipped prefill takes the same time whatever the length.
    fn another_machine(&self) -> bool {
        let newest = self.recent.iter().rev().take(RECENT_MIN);
        let fast = newest.clone().filter(|it| it.fast).count();
        if (fast as f64) < NEARLY_ALL * RECENT_MIN as f64 {
            return false;
        }
        let mut fast: Vec<_> = newest.filter(|it| it.fast).collect();
        fast.sort_by_key(|it| it.tokens);
        let third = fast.len() / 3;
        let middle = |of: &[&Recent]| {
            let mut tokens: Vec<_> = of.iter().map(|it| it.tokens as f64).collect();
            let mut seconds: Vec<_> = of.iter().map(|it| it.seconds).collect();
            (median(&mut tokens), median(&mut seconds))
        };
        let (few, quick) = middle(&fast[..third]);
        let (many, slow) = middle(&fast[fast.len() - third..]);
        // Where all are of one length nobody can tell: it stays an alarm.
        many >= 1.5 * few && (slow / quick).ln() / (many / few).ln() > 0.5
    }
}

/// The middle of some numbers, of which there is at least one.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
