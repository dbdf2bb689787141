//! Recorded servers are judged as they deserve, and no figure of theirs can be taken away, renamed,
//! turned into text or halved without the verdict noticing.

#[path = "../verdicts/servers.rs"]
#[allow(dead_code, reason = "some of it is for the verdicts only")]
mod servers;

use gate::advisories::Table;
use gate::assemble::{Reading, assemble};
use gate::date::Date;
use gate::facts::recording::{BASE, Change, Recording};
use gate::facts::{FigureSource, Node};
use gate::finding::{Answer, Finding};
use gate::judge::{Headroom, Rules, Stated};
use gate::{Report, Verdict};
use serde_json::json;
use servers::{fixture, guarded, nodes_at, pool_of_8000};
use std::collections::BTreeSet;

/// 2026-11-29, in seconds.
const NOW: u64 = 1_795_977_000;

fn answers(name: &str) -> Recording {
    fixture(name).only_answers(&[])
}

fn judged(servers: &[(&str, Stated, Vec<Node>)]) -> Report {
    let reading = |(name, stated, nodes): &(&str, Stated, Vec<Node>)| Reading {
        name: (*name).to_owned(),
        stated: Some(*stated),
        shared_address: false,
        nodes: nodes.clone(),
    };
    let table = Table::embedded();
    let rules = Rules {
        context: None,
        headroom: Headroom::default(),
        today: Date::of_unix(NOW),
        table: &table,
        baseline: None,
    };
    let subjects = assemble(servers.iter().map(reading).collect(), &[], Vec::new());
    Report::new(subjects, &rules, &[], false, NOW)
}

fn pair(prefill: &Recording, decode: &Recording) -> Report {
    judged(&[
        ("p0", Stated::Prefill, nodes_at("http://p", prefill)),
        ("d0", Stated::Decode, nodes_at("http://d", decode)),
    ])
}

fn server(recording: &Recording) -> Report {
    judged(&[("s0", Stated::Server, recording.nodes())])
}

fn failing(report: &Report) -> Vec<&'static str> {
    let failing = report.findings.iter().filter(|it| report.fails(it));
    let ids: BTreeSet<_> = failing.map(|it| it.check.id).collect();
    ids.into_iter().collect()
}

fn says<'a>(report: &'a Report, check: &str, subject: &str) -> &'a str {
    let is_it = |it: &&Finding| it.check.id == check && it.subject.name() == subject;
    &report.findings.iter().find(is_it).unwrap().says
}

#[test]
fn sglang_0_5_19_with_unequal_pools_is_violated_by_pool_limits_and_version() {
    let prefill = answers("sglang-0.5.19-prefill");
    let report = pair(&prefill, &pool_of_8000(answers("sglang-0.5.19-decode")));
    assert_eq!(report.verdict(), Verdict::Violated);
    assert_eq!(
        failing(&report),
        [
            "advertised-fits",
            "door-check",
            "length-compared",
            "minimum-version",
            "no-stale-pages",
            "pool-holds-context",
            "prompt-limits-equal",
        ]
    );
    assert_eq!(
        says(&report, "pool-holds-context", "p0"),
        "pool 2,000 < context 4,096: 49 %"
    );
    assert_eq!(
        says(&report, "prompt-limits-equal", "fleet"),
        "prefill p0 takes 1,993, decode d0 4,089: a prompt between is answered with 200 from other \
         requests' pages (SGLang before 0.5.20: the incident)"
    );
}

#[test]
fn sglang_0_5_23_with_equal_pools_lacks_only_the_length_comparison() {
    let prefill = pool_of_8000(answers("sglang-0.5.23-prefill"));
    let report = pair(&prefill, &pool_of_8000(answers("sglang-0.5.23-decode")));
    assert_eq!(failing(&report), ["length-compared"]);
    let advice = report.findings.iter().filter(|it| {
        it.check.level == gate::check::Level::Advisory && it.answer == Answer::Violated
    });
    let advice: BTreeSet<_> = advice.map(|it| it.check.id).collect();
    assert_eq!(
        advice.into_iter().collect::<Vec<_>>(),
        ["health-is-evidence", "introspection-closed", "kv-checksum"]
    );
}

#[test]
fn sglang_0_5_23_as_it_was_recorded_has_a_pool_below_its_context() {
    let report = pair(
        &answers("sglang-0.5.23-prefill"),
        &answers("sglang-0.5.23-decode"),
    );
    assert_eq!(
        failing(&report),
        ["advertised-fits", "length-compared", "pool-holds-context"]
    );
    let report = server(&answers("sglang-0.5.23-single"));
    assert_eq!(failing(&report), ["advertised-fits", "pool-holds-context"]);
    assert_eq!(report.verdict(), Verdict::Violated);
}

#[test]
fn a_guard_compares_lengths_and_belongs_on_both_sides() {
    let bare = |role: &str| pool_of_8000(answers(&format!("sglang-0.5.23-{role}")));
    let with = |role: &str| guarded(bare(role), &format!("sglang-0.5.23-{role}"));
    let both = pair(&with("prefill"), &with("decode"));
    assert_eq!(failing(&both), [""; 0]);
    assert_eq!(
        says(&both, "length-compared", "d0"),
        "cofferdam-guard 0.1.0 compares"
    );
    let sides = |report: &Report| {
        let is_it = |it: &&Finding| it.check.id == "guard-on-both-sides";
        report.findings.iter().find(is_it).map(|it| it.answer)
    };
    assert_eq!(sides(&both), Some(Answer::Holds));
    let one = pair(&bare("prefill"), &with("decode"));
    assert_eq!(failing(&one), ["length-compared"], "prefill has no guard");
    assert_eq!(sides(&one), Some(Answer::Unknown));
    assert_eq!(sides(&pair(&bare("prefill"), &bare("decode"))), None);
}

#[test]
fn vllm_0_32_holds_its_context_without_the_null_block() {
    let vllm = answers("vllm-0.32.0");
    let report = pair(&vllm, &vllm);
    let says = says(&report, "pool-holds-context", "p0");
    assert!(
        says.starts_with("pool 9,568 >= context 8,192 x 1.0 = 8,192"),
        "{says}"
    );
    // No endpoint of vLLM reports layout and chat template; #52234 is open.
    assert_eq!(
        failing(&report),
        ["known-advisories", "same-layout", "same-tokenizer"]
    );
    let layout = report
        .findings
        .iter()
        .find(|it| it.check.id == "same-layout")
        .unwrap();
    assert_eq!(layout.answer, Answer::Unknown);
}

#[test]
fn llama_cpp_is_judged_by_its_slots() {
    let report = server(&answers("llama.cpp"));
    let says = says(&report, "pool-holds-context", "s0");
    assert!(says.contains("1,024 >= context 1,024"), "{says}");
    assert!(
        !failing(&report).contains(&"pool-holds-context"),
        "{:?}",
        failing(&report)
    );
}

#[test]
fn a_start_up_log_alone_shows_the_incident() {
    let report = judged(&[(
        "p0",
        Stated::Server,
        fixture("sglang-0.5.23-single").only_log().nodes(),
    )]);
    assert!(
        failing(&report).contains(&"pool-holds-context"),
        "{:?}",
        failing(&report)
    );
    assert_eq!(
        says(&report, "pool-holds-context", "p0"),
        "pool 2,000 < context 4,096: 49 %"
    );
}

/// Places that a source names, through formulas.
fn places(source: &FigureSource, found: &mut Vec<FigureSource>) {
    match source {
        FigureSource::Derived { from, .. } => from.iter().for_each(|it| places(it, found)),
        place => found.push(place.clone()),
    }
}

fn rests_on(finding: &Finding, place: &FigureSource) -> bool {
    let mut found = Vec::new();
    let sources = finding.evidence.iter().filter_map(|it| it.source.as_ref());
    sources.for_each(|it| places(it, &mut found));
    found.contains(place)
}

/// Values of the evidence whose name begins so.
fn values(finding: &Finding, what: &str) -> Vec<u64> {
    let evidence = finding
        .evidence
        .iter()
        .filter(|it| it.what.starts_with(what));
    evidence
        .map(|it| it.value.as_ref().unwrap().as_u64().unwrap())
        .collect()
}

/// Whether what a finding says holds by its own evidence, computed here once more.
fn is_true(finding: &Finding) -> bool {
    let all_there = finding.evidence.iter().all(|it| it.value.is_ok());
    let smallest = |what: &str| values(finding, what).into_iter().min().unwrap_or(0);
    let equal = |what: &str| {
        let evidence = finding
            .evidence
            .iter()
            .filter(|it| it.what.starts_with(what));
        let values: BTreeSet<_> = evidence
            .map(|it| it.value.as_ref().unwrap().to_string())
            .collect();
        values.len() == 1
    };
    all_there
        && match finding.check.id {
            "pool-holds-context" => smallest("pool") >= smallest("context"),
            "advertised-fits" => smallest("pool") >= smallest("advertised"),
            "prompt-limits-equal" => equal("largest prompt"),
            "same-page-size" => equal("page size"),
            "no-silent-truncation" => finding.evidence[0].value.as_ref().unwrap() == &json!(false),
            _ => true,
        }
}

/// The place, for the server at `base`.
fn placed(place: &FigureSource, base: &str) -> FigureSource {
    match place {
        FigureSource::Field { url, field } => FigureSource::Field {
            url: url.replace(BASE, base),
            field: field.clone(),
        },
        other => other.clone(),
    }
}

/// Does everything to every field of `recording`, which `judge` puts at `base`, that a figure came
/// from.
fn harm(recording: &Recording, base: &str, judge: &dyn Fn(&Recording) -> Report) -> usize {
    let before = judge(recording);
    let mut harmed = 0;
    for mutation in recording.mutations() {
        let place = placed(&mutation.field, base);
        let after = judge(&mutation.recording);
        for finding in after
            .findings
            .iter()
            .filter(|it| it.answer == Answer::Holds)
        {
            let about = format!("{:?} of {}: {finding:?}", mutation.change, mutation.field);
            assert!(is_true(finding), "{about}");
            if mutation.change != Change::Halve {
                assert!(!rests_on(finding, &place), "{about}");
            }
        }
        // What held by this field alone holds no more.
        let held = before
            .findings
            .iter()
            .filter(|it| it.answer == Answer::Holds);
        harmed += held.filter(|it| rests_on(it, &place)).count();
    }
    harmed
}

#[test]
fn no_field_can_be_harmed_unnoticed() {
    let p23 = pool_of_8000(answers("sglang-0.5.23-prefill"));
    let d23 = pool_of_8000(answers("sglang-0.5.23-decode"));
    let p19 = pool_of_8000(answers("sglang-0.5.19-prefill"));
    let d19 = pool_of_8000(answers("sglang-0.5.19-decode"));
    let vllm = answers("vllm-0.32.0");
    let log = pool_of_8000(fixture("sglang-0.5.23-prefill").only_log());
    let harmed = [
        harm(&p23, "http://p", &|it| pair(it, &d23)),
        harm(&d23, "http://d", &|it| pair(&p23, it)),
        harm(&p19, "http://p", &|it| pair(it, &d19)),
        harm(
            &pool_of_8000(answers("sglang-0.5.23-single")),
            BASE,
            &server,
        ),
        harm(&log, "http://p", &|it| pair(it, &d23)),
        harm(&vllm, "http://p", &|it| pair(it, &vllm)),
        harm(&vllm, BASE, &server),
        harm(&answers("llama.cpp"), BASE, &server),
    ];
    assert!(
        harmed.iter().all(|it| *it > 8),
        "nothing was harmed: {harmed:?}"
    );
}

/// With one source of each figure, every harm to a pool, context or limit must shut the gate.
#[test]
fn with_one_source_each_harm_to_a_size_is_noticed() {
    let only = |it: Recording| it.only_answers(&["/v1/loads", "/metrics", "/model_info"]);
    let p23 = only(pool_of_8000(answers("sglang-0.5.23-prefill")));
    let d23 = only(pool_of_8000(answers("sglang-0.5.23-decode")));
    let good = pair(&p23, &d23);
    assert_eq!(failing(&good), ["length-compared"]);
    let sizes = [
        "max_total_num_tokens",
        "max_req_input_len",
        "max_model_len",
        "page_size",
        "token_capacity",
        "allow_auto_truncate",
        "model_path",
        "tokenizer_path",
        "kv_cache_dtype",
    ];
    let mut seen = BTreeSet::new();
    for mutation in p23.mutations() {
        let FigureSource::Field { field, .. } = &mutation.field else {
            continue;
        };
        // What matters to some models only, older versions do not have.
        let some_models = field == "c128_page_size";
        let Some(size) = sizes.iter().find(|it| field.contains(**it) && !some_models) else {
            continue;
        };
        let twice = ["token_capacity", "max_total_num_tokens"].contains(size);
        if twice && mutation.change != Change::Halve {
            continue; // each repeats the other, as there is one rank
        }
        seen.insert(*size);
        let after = pair(&mutation.recording, &d23);
        let new: Vec<_> = failing(&after)
            .into_iter()
            .filter(|it| *it != "length-compared")
            .collect();
        assert!(!new.is_empty(), "{:?} of {field} passes", mutation.change);
    }
    assert!(seen.len() >= 7, "{seen:?}");
}
