//! The measured table, in Markdown.

use super::Outcome;
use super::cases::Case;
use std::collections::BTreeMap;

/// Its head.
pub(super) fn opening() {
    println!("| defect | what | suites | found | requests: median | 95th percentile | as |");
    println!("|---|---|---|---|---|---|---|");
}

/// One defect.
pub(super) fn row(case: &Case, outcomes: &[Outcome]) {
    let seen = |it: &&Outcome| it.found.is_some_and(|kind| kind <= case.until);
    let found: Vec<_> = outcomes.iter().filter(seen).collect();
    let mut requests: Vec<_> = found.iter().map(|it| it.requests).collect();
    requests.sort_unstable();
    let mut kinds = BTreeMap::new();
    for outcome in &found {
        *kinds.entry(outcome.found).or_insert(0) += 1;
    }
    let kinds = kinds
        .into_iter()
        .filter_map(|(kind, n)| Some(format!("{n} x {}", kind?)));
    let stopped = outcomes.iter().filter(|it| it.stopped).count();
    let stopped = (stopped > 0).then(|| format!("{stopped} x the engine stopped itself"));
    let kinds = kinds.chain(stopped);
    let suites = case.suites.iter().map(|it| it.name());
    println!(
        "| {} | {} | {} | {} of {} | {} | {} | {} |",
        case.id,
        case.what,
        suites.collect::<Vec<_>>().join(", "),
        found.len(),
        outcomes.len(),
        quantile(&requests, 0.5),
        quantile(&requests, 0.95),
        kinds.collect::<Vec<_>>().join(", ")
    );
}

/// The engine without a defect.
pub(super) fn healthy(outcomes: &[Outcome]) {
    let sum = |of: fn(&Outcome) -> u64| outcomes.iter().map(of).sum::<u64>();
    let found: Vec<_> = outcomes
        .iter()
        .filter_map(|it| it.says.as_deref())
        .collect();
    println!(
        "\nWithout a defect: {} requests, {} findings; {} answers could have shown a canary, {} \
         showed their own.",
        sum(|it| it.requests),
        found.len(),
        sum(|it| it.telling.0),
        sum(|it| it.telling.1)
    );
    for says in found {
        println!("  {says}");
    }
}

/// The smallest value that so large a share does not exceed.
fn quantile(sorted: &[u64], share: f64) -> String {
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    let value = sorted.get(rank.saturating_sub(1));
    value.map_or("-".to_owned(), u64::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_of_those_that_were_seen() {
        let twenty: Vec<u64> = (1..=20).collect();
        assert_eq!(quantile(&twenty, 0.5), "10");
        assert_eq!(quantile(&twenty, 0.95), "19");
        assert_eq!(quantile(&[7], 0.95), "7");
        assert_eq!(quantile(&[], 0.5), "-");
    }
}
