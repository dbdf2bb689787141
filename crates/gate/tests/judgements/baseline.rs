//! What changed since somebody accepted the state.

use crate::nodes::*;
use gate::advisories::Table;
use gate::baseline::Baseline;
use gate::date::Date;
use gate::facts::{Node, Role};
use gate::finding::Answer;
use gate::judge::{Headroom, Rules, Stated, Subjects};
use gate::{Report, Verdict};

fn since(baseline: &Baseline, subjects: Subjects) -> Report {
    let table = Table::embedded();
    let rules = Rules {
        context: None,
        headroom: Headroom::default(),
        today: Date::of_unix(NOW),
        table: &table,
        baseline: Some(baseline),
    };
    Report::new(subjects, &rules, &[], false, NOW)
}

fn saved() -> Baseline {
    let (prefill, decode) = good_pair();
    let baseline = Baseline::of(&pair(prefill, decode), NOW);
    Baseline::parse(&baseline.to_json()).unwrap()
}

/// What is said about the prefill node after `change`.
fn said(change: impl Fn(&mut Node)) -> (Answer, String) {
    let (mut prefill, decode) = good_pair();
    change(&mut prefill);
    let report = since(&saved(), pair(prefill, decode));
    let of_p0 = of(&report, "unchanged")
        .into_iter()
        .find(|it| it.subject.name() == "p0");
    let finding = of_p0.unwrap();
    (finding.answer, finding.says.clone())
}

#[test]
fn nothing_changed_holds() {
    assert_eq!(said(|_| {}).0, Answer::Holds);
}

#[test]
fn every_change_is_named_with_both_figures() {
    type Change = fn(&mut Node);
    let cases: [(&str, Change); 7] = [
        ("pool of dp 0: 1,400,000 -> 1,568,000 (+12 %)", |it| {
            it.ranks = Ok(vec![rank("dp 0", 1_568_000)]);
        }),
        ("pool of dp 0: 1,400,000 -> 1,399,000 (-0.07 %)", |it| {
            it.ranks = Ok(vec![rank("dp 0", 1_399_000)]);
        }),
        ("page size: 64 -> 1 (-98 %)", |it| it.page_size = fig(1)),
        ("version: 0.5.23 -> 0.5.22", |it| {
            it.version = fig(gate::facts::Version::parse("0.5.22").unwrap());
        }),
        ("KV checksum: true -> false", |it| it.checksum = fig(false)),
        ("KV dtype: fp8_e4m3 -> bf16", |it| {
            it.kv_dtype = fig("bf16".into())
        }),
        ("pool of dp 1 was not known, is 1,400,000", |it| {
            it.ranks = Ok(vec![rank("dp 0", 1_400_000), rank("dp 1", 1_400_000)]);
        }),
    ];
    for (says, change) in cases {
        assert_eq!(said(change), (Answer::Violated, says.to_owned()));
    }
}

#[test]
fn a_figure_that_is_lost_is_unknown() {
    let (answer, says) = said(|it| it.ranks = Err(not_reported()));
    assert_eq!(answer, Answer::Unknown);
    assert_eq!(says, "pool of dp 0 was 1,400,000, is not known");
}

#[test]
fn nodes_that_come_and_go_are_changes() {
    let (prefill, _) = good_pair();
    let other = sglang("d1", "0.5.23", Role::Decode, 1_400_000, 1_048_576);
    let report = since(&saved(), pair(prefill, other));
    let changed = of(&report, "unchanged");
    let changed = changed
        .into_iter()
        .filter(|it| it.answer == Answer::Violated);
    let changed: Vec<_> = changed.map(|it| (it.subject.name(), &*it.says)).collect();
    assert_eq!(
        changed,
        [
            ("d0", "was there on 2026-11-29T18:30:00Z"),
            ("d1", "was not there on 2026-11-29T18:30:00Z")
        ]
    );
}

#[test]
fn a_change_alone_shuts_the_gate() {
    let node = |pool| {
        let mut node = sglang("v0", "0.32.0", Role::Whole, pool, 8_192);
        node.engine = fig(gate::facts::Engine::Vllm);
        fleet(vec![reading(Stated::Server, node)])
    };
    let baseline = Baseline::of(&node(20_000), NOW);
    assert_eq!(since(&baseline, node(20_000)).verdict(), Verdict::Holds);
    let report = since(&baseline, node(19_000));
    assert_eq!(
        (report.verdict(), failing(&report)),
        (Verdict::Violated, vec!["unchanged"])
    );
}

#[test]
fn what_is_no_baseline_is_refused() {
    for (text, says) in [
        ("", "is no baseline"),
        (
            "{\"schema\":\"x\",\"saved\":\"\",\"nodes\":{}}",
            "has schema \"x\"",
        ),
        (
            "{\"schema\":\"cofferdam-gate-baseline/1\",\"saved\":\"\"}",
            "missing field `nodes`",
        ),
    ] {
        let said = Baseline::parse(text).unwrap_err().to_string();
        assert!(said.contains(says), "{said}");
    }
}
