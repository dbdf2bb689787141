//! The pools of all data-parallel ranks. The sizes at the top of `/server_info` are those of rank
//! 0 only, and rank 0 is not taken for all.

use super::{RANK_LABELS, Said};
use crate::facts::combine::{measured, not_reported, smallest};
use crate::facts::figure::{Fact, Figure, Unknown};
use crate::facts::node::{Rank, Warning};
use std::collections::BTreeMap;

/// More ranks of one kind are absurd.
pub(crate) const RANKS_MAX: u64 = 4096;

/// Figures by rank.
type Pools = BTreeMap<u64, Vec<Fact<Figure<u64>>>>;

pub(super) fn read(said: &Said, warnings: &mut Vec<Warning>) -> Fact<Vec<Rank>> {
    let mut pools = Pools::new();
    from_loads(said, &mut pools);
    from_metrics(said, &mut pools);
    let places = said.info.count("max_total_num_tokens");
    pools.entry(0).or_default().push(places);
    let states = from_states(said, &mut pools, warnings);
    let seen = pools.keys().max().map_or(1, |last| last + 1);
    let reported = said.info.number("dp_size", 1, RANKS_MAX);
    // /v1/loads has one entry a rank, so that it says how many there are, too.
    let listed = said.loads.len("loads") as u64;
    let (count, proof) = match (&reported, listed) {
        (Ok(size), _) => (size.value.max(seen).max(states), None),
        (Err(_), 1..) => (listed.max(seen), None),
        (Err(why), 0) => (seen, Some(why.clone())),
    };
    let mut ranks: Vec<_> = (0..count.min(RANKS_MAX))
        .map(|n| match pools.remove(&n) {
            Some(places) => Rank {
                name: format!("dp {n}"),
                pool: smallest(places, warnings).map(measured),
            },
            None => missing(n, "one entry of loads a rank at /v1/loads"),
        })
        .collect();
    ranks.extend(proof.map(expected));
    Ok(ranks)
}

/// Rank `n` must exist, and nothing reports its pool.
pub(crate) fn missing(n: u64, looked: &str) -> Rank {
    Rank {
        name: format!("dp {n}"),
        pool: not_reported(looked),
    }
}

/// Nothing says how many ranks there are, so that those seen may not be all.
pub(crate) fn expected(why: Unknown) -> Rank {
    Rank {
        name: "other ranks, if there are any".into(),
        pool: Err(why),
    }
}

fn from_loads(said: &Said, pools: &mut Pools) {
    for n in 0..said.loads.len("loads").min(RANKS_MAX as usize) {
        let field = |it: &str| format!("loads[{n}].{it}");
        // Without a rank of its own an entry stands for the rank of its place.
        let rank = said.loads.number(&field("dp_rank"), 0, RANKS_MAX - 1);
        let rank = rank.map_or(n as u64, |it| it.value);
        let places = ["max_total_num_tokens", "memory.token_capacity"];
        let places = places.into_iter().map(|it| said.loads.count(&field(it)));
        pools.entry(rank).or_default().extend(places);
    }
}

fn from_metrics(said: &Said, pools: &mut Pools) {
    let Ok(metrics) = said.metrics else { return };
    for sample in metrics
        .of("sglang:max_total_num_tokens")
        .take(RANKS_MAX as usize)
    {
        let rank = sample.label("dp_rank").and_then(|it| it.parse().ok());
        // Whose a pool is does not matter where no number says it: the smallest counts.
        let rank = rank.filter(|it| *it < RANKS_MAX).unwrap_or(0);
        let count = metrics.count(sample, &RANK_LABELS);
        pools.entry(rank).or_default().push(count);
    }
}

/// Internal states come one a rank, in the order in which the ranks answered: they say which
/// pools there are, not whose. With one rank there is no question. Returns how many there are.
fn from_states(said: &Said, pools: &mut Pools, warnings: &mut Vec<Warning>) -> u64 {
    let field = |n: usize| format!("internal_states[{n}].memory_usage.token_capacity");
    let states = said.info.len("internal_states").min(RANKS_MAX as usize);
    if states <= 1 {
        let nested = said.info.count(&field(0));
        // 0.4.6 has these at the top.
        let flat = said.info.count("memory_usage.token_capacity");
        pools.entry(0).or_default().extend([nested, flat]);
        return 1;
    }
    let known: Vec<_> = (0..states).map(|n| said.info.count(&field(n))).collect();
    let whole = pools
        .values()
        .filter(|it| it.iter().any(Result::is_ok))
        .count();
    if whole < states {
        // Nothing better: rank by rank, under numbers that mean nothing.
        warnings.push(Warning {
            text: "which rank has which pool is not known; all of them are listed".into(),
            source: match said.info.doc() {
                Ok(doc) => doc.source("internal_states"),
                Err(_) => return 1,
            },
        });
        for (n, state) in known.into_iter().enumerate() {
            pools.entry(n as u64).or_default().push(state);
        }
        return states as u64;
    }
    // What is absurd may be anybody's: it must not contradict the smallest rank unnoticed.
    let absurd = known
        .iter()
        .filter(|it| matches!(it, Err(Unknown::Absurd(_))));
    let absurd: Vec<_> = absurd.cloned().collect();
    let least = known.into_iter().flatten().min_by_key(|it| it.value);
    let listed = pools.values().flatten().flatten().map(|it| it.value).min();
    if let Some(least) = least.filter(|it| listed.is_some_and(|listed| it.value < listed)) {
        // Whose it is does not matter: the smallest rank counts.
        pools.entry(0).or_default().push(Ok(least));
    }
    pools.entry(0).or_default().extend(absurd);
    states as u64
}
