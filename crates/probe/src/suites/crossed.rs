//! The same prompts asked in one way and then in another: is what was computed for the one reused for
//! the other, and can that be told?
//!
//! Three controls: the same prompt once more in the first way (is anything reused at all?), a fresh
//! prompt in each of them (how is it without reuse?). Cached tokens that an answer reports are exact;
//! times are compared by an exact test.

use super::Known;
use crate::ask::{ProbeAnswer, Question};
use crate::canary::Tenant;
use crate::finding::Sent;
use crate::run::{ProbeRun, Spent};
use crate::stats::{larger_by_chance, median};
use serde_json::{Map, Value};

/// Prompts that are tried.
const ROUNDS: usize = 10;
/// After so many it is over where cached tokens are reported and none is crossed.
const ENOUGH: usize = 4;
/// Sentences of each: several pages of any size.
const LONG: usize = 40;
/// Reuse is told when chance makes it with less than this.
const TOLD: f64 = 1e-4;
/// Above this there is nothing; between, nobody can tell.
const NOTHING: f64 = 1e-3;

/// Seconds by which it must be faster: what is less is also made by the client's own work.
const BY: f64 = 0.0005;

/// As whom, and with which fields, a prompt is asked.
#[derive(Clone, Debug)]
pub(super) struct Way {
    pub(super) tenant: Tenant,
    pub(super) fields: Map<String, Value>,
}

/// What is to be told of one comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shown {
    Yes,
    No,
    Perhaps,
}

/// One comparison: whether it shows reuse, by what chance, and in words.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Reuse {
    pub(super) told: Shown,
    pub(super) says: String,
}

/// What came of it.
pub(super) struct Crossed {
    /// In the first way again.
    pub(super) own: Reuse,
    /// In the second way.
    pub(super) other: Reuse,
    /// Whether answers report cached tokens.
    pub(super) reported: bool,
    /// The last prompt, in the first way and in the second.
    pub(super) shows: Vec<Sent>,
}

/// Why there is nothing to compare.
pub(super) enum Not {
    /// One of the ways is refused.
    Refused(u16),
    Spent(Spent),
}

impl From<Spent> for Not {
    fn from(spent: Spent) -> Self {
        Not::Spent(spent)
    }
}

/// Time to the first byte, and cached tokens.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    seconds: f64,
    cached: Option<u64>,
}

#[derive(Default)]
struct All {
    cold: Vec<Seen>,
    other: Vec<Seen>,
    own: Vec<Seen>,
    fresh: Vec<Seen>,
}

/// Asks.
///
/// # Errors
/// One of the ways is refused, or the budget is spent.
pub(super) async fn crossed(
    run: &ProbeRun,
    suite: &'static str,
    known: &Known,
    (one, two): (&Way, &Way),
) -> Result<Crossed, Not> {
    let mut all = All::default();
    let mut shows = Vec::new();
    for n in 0..ROUNDS {
        let cold = asked(run, suite, known, one, None).await?;
        // The other first: after the first way's second request both would be warm.
        let other = asked(run, suite, known, two, Some(&cold.0)).await?;
        let own = asked(run, suite, known, one, Some(&cold.0)).await?;
        let fresh = asked(run, suite, known, two, None).await?;
        shows = vec![cold.0.sent.clone(), other.0.sent.clone()];
        all.cold.push(cold.1);
        all.other.push(other.1);
        all.own.push(own.1);
        all.fresh.push(fresh.1);
        if n + 1 == ENOUGH && all.is_settled() {
            break;
        }
    }
    Ok(Crossed {
        own: match all.reuse(&all.own, &all.cold) {
            // What is reported is exact; that anything is reused needs no more.
            own if 2 * all.hits(&all.own) >= all.own.len() => Reuse {
                told: Shown::Yes,
                ..own
            },
            own => own,
        },
        other: all.reuse(&all.other, &all.fresh),
        reported: all.reported(),
        shows,
    })
}

async fn asked(
    run: &ProbeRun,
    suite: &'static str,
    known: &Known,
    way: &Way,
    like: Option<&ProbeAnswer>,
) -> Result<(ProbeAnswer, Seen), Not> {
    let mut ask = Question::new(way.tenant, known.sentences(LONG, 1));
    ask.max_tokens = 1;
    ask.stream = true;
    ask.fields = way.fields.clone();
    ask.like = like.map(|it| it.marked.clone());
    let answer = super::patience::ask(run, suite, ask).await?;
    let status = answer.status().unwrap_or(0);
    match &answer.reply {
        Ok(reply) if status == 200 => {
            let seen = Seen {
                seconds: reply.first_byte.unwrap_or(reply.total).as_secs_f64(),
                cached: reply.said.cached_tokens,
            };
            Ok((answer, seen))
        }
        _ => Err(Not::Refused(status)),
    }
}

impl All {
    fn reported(&self) -> bool {
        let all = [&self.cold, &self.other, &self.own, &self.fresh];
        all.into_iter().flatten().any(|it| it.cached.is_some())
    }

    /// A chat template, and what every text begins with, may be cached for everybody.
    fn common(&self) -> u64 {
        let fresh = self.cold.iter().chain(&self.fresh);
        fresh.filter_map(|it| it.cached).max().unwrap_or(0)
    }

    fn hits(&self, seen: &[Seen]) -> usize {
        let common = self.common();
        seen.iter()
            .filter(|it| it.cached.unwrap_or(0) > common)
            .count()
    }

    /// Whether more prompts would say nothing new.
    fn is_settled(&self) -> bool {
        self.reported() && self.hits(&self.own) == ENOUGH && self.hits(&self.other) == 0
    }

    /// Whether these were answered out of what was computed before, and those were not.
    fn reuse(&self, warm: &[Seen], cold: &[Seen]) -> Reuse {
        let hits = self.hits(warm);
        if hits > 0 {
            let controls = self.cold.len() + self.fresh.len();
            let chance = all_among(hits, warm.len(), warm.len() + controls);
            let most = warm.iter().filter_map(|it| it.cached).max().unwrap_or(0);
            return Reuse {
                told: told(chance),
                says: format!(
                    "up to {most} tokens reported as cached in {hits} of {}, and in none of {controls} \
                     fresh prompts; by chance: {chance:.1e}",
                    warm.len()
                ),
            };
        }
        let seconds = |seen: &[Seen]| seen.iter().map(|it| it.seconds).collect::<Vec<_>>();
        let (warm, cold) = (seconds(warm), seconds(cold));
        let nearly: Vec<_> = warm.iter().map(|it| it + BY).collect();
        let chance = larger_by_chance(&cold, &nearly);
        let told = match self.reported() {
            // Where hits are reported and none is, times are those of something else.
            true if self.hits(&self.own) > 0 => told(chance.max(NOTHING)),
            _ => told(chance),
        };
        Reuse {
            told,
            says: format!(
                "the first byte after {:.1} ms, in the middle, and after {:.1} ms for fresh prompts \
                 ({} of each); by chance: {chance:.1e}",
                1e3 * median(&warm),
                1e3 * median(&cold),
                warm.len()
            ),
        }
    }
}

fn told(chance: f64) -> Shown {
    match chance {
        it if it < TOLD => Shown::Yes,
        it if it >= NOTHING => Shown::No,
        _ => Shown::Perhaps,
    }
}

/// The chance that all of `hits` events are among these `n` of `all` trials.
fn all_among(hits: usize, n: usize, all: usize) -> f64 {
    let each = (0..hits).map(|it| n.saturating_sub(it) as f64 / (all - it) as f64);
    each.product()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(all: &[f64]) -> Vec<Seen> {
        let seen = |it: &f64| Seen {
            seconds: *it,
            cached: None,
        };
        all.iter().map(seen).collect()
    }

    /// `from`, `from` + 1, … milliseconds: no two alike.
    fn from(from: u32) -> Vec<Seen> {
        let all: Vec<_> = (0..10).map(|n| f64::from(from + n) / 1e3).collect();
        times(&all)
    }

    #[test]
    fn time_alone_tells_with_ten_and_not_when_it_overlaps() {
        let all = |other, own| All {
            cold: from(100),
            fresh: from(102),
            other,
            own,
        };
        let reuse = |all: &All| {
            let own = all.reuse(&all.own, &all.cold).told;
            (own, all.reuse(&all.other, &all.fresh).told)
        };
        assert_eq!(reuse(&all(from(101), from(20))), (Shown::Yes, Shown::No));
        assert_eq!(reuse(&all(from(30), from(20))), (Shown::Yes, Shown::Yes));
        assert_eq!(reuse(&all(from(101), from(99))), (Shown::No, Shown::No));
        // One straggler of ten is not enough to hide it, three make it uncertain or nothing.
        let mut late = from(30);
        late[4].seconds = 1.0;
        assert_eq!(reuse(&all(late.clone(), from(20))).1, Shown::Perhaps);
        late[5].seconds = 1.0;
        late[6].seconds = 1.0;
        assert_eq!(reuse(&all(late, from(20))).1, Shown::No);
        let says = all(from(30), from(20));
        let says = says.reuse(&says.other, &says.fresh).says;
        assert!(
            says.contains("after 35.0 ms") && says.contains("5.4e-6"),
            "{says}"
        );
    }

    #[test]
    fn cached_tokens_tell_by_their_number() {
        let cached = |n: usize| -> Vec<Seen> {
            let seen = |it| Seen {
                seconds: 0.1,
                cached: Some(if it < n { 500 } else { 8 }),
            };
            (0..10).map(seen).collect()
        };
        let all = |other| All {
            cold: cached(0),
            fresh: cached(0),
            own: cached(10),
            other: cached(other),
        };
        for (hits, told) in [
            (0, Shown::No),
            (1, Shown::No),
            (6, Shown::Perhaps),
            (7, Shown::Yes),
        ] {
            let all = all(hits);
            assert_eq!(all.reuse(&all.other, &all.fresh).told, told, "{hits}");
        }
    }
}
