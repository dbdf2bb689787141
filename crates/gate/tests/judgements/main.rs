//! What is said about fleets: the incident's own, good ones, and ones with one thing wrong.

mod baseline;
mod forms;
mod nodes;
mod properties;

use gate::Verdict;
use gate::advisories::Table;
use gate::config::GroupEntry;
use gate::facts::{Engine, Node, Role, Version};
use gate::finding::Answer;
use gate::judge::Stated;
use nodes::*;

#[test]
fn the_incident_is_violated_with_numbers_side_by_side() {
    let prefill = sglang("p0", "0.5.19", Role::Prefill, 681_280, 1_048_576);
    let decode = sglang("d0", "0.5.19", Role::Decode, 1_400_000, 1_048_576);
    let report = report(pair(prefill, decode));
    assert_eq!(report.verdict(), Verdict::Violated);
    let says = |check: &str| {
        of(&report, check)
            .into_iter()
            .map(|it| &*it.says)
            .max()
            .unwrap()
    };
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
    let pool = of(&report, "pool-holds-context");
    assert_eq!(pool[0].subject.name(), "p0", "the worst is first");
    assert_eq!(pool[0].says, "pool 681,280 < context 1,048,576: 65 %");
    assert!(
        pool[0]
            .what_to_do()
            .contains("raise the pool to 1,310,720 tokens")
    );
    assert_eq!(pool[1].answer, Answer::Holds);
    assert_eq!(
        says("prompt-limits-equal"),
        "prefill p0 takes 681,273, decode d0 1,048,569: a prompt between is answered with 200 \
         from other requests' pages (SGLang before 0.5.20: the incident)"
    );
    let advertised = of(&report, "advertised-fits");
    assert!(
        advertised.iter().all(|it| it.answer == Answer::Violated),
        "decode leads there too"
    );
    let decode = advertised
        .iter()
        .find(|it| it.subject.name() == "d0")
        .unwrap();
    assert_eq!(
        decode.says,
        "advertises 1,048,576, the pool of p0 holds 681,280: 65 %"
    );
}

#[test]
fn a_good_pair_fails_only_for_what_its_version_lacks() {
    let (prefill, decode) = good_pair();
    let report = report(pair(prefill, decode));
    assert_eq!(failing(&report), ["length-compared"]);
    assert_eq!(report.verdict(), Verdict::Violated);
    let entry = of(&report, "length-compared")[0];
    assert_eq!(entry.advisory.as_deref(), Some("sglang-38704"));
}

#[test]
fn what_is_allowed_is_printed_with_its_reason_and_passes() {
    let table = Table::embedded();
    let subjects = || {
        let (prefill, decode) = good_pair();
        pair(prefill, decode)
    };
    for allow in [
        "length-compared=all limits are equal",
        "length-compared@sglang-38704=all limits are equal",
    ] {
        let report = with_table(&table, subjects(), &[allow], false);
        assert_eq!(report.verdict(), Verdict::Holds, "{allow}");
        let text = gate::output::table(&report, gate::output::Style::default());
        assert!(text.contains("reason: all limits are equal"), "{text}");
        assert_eq!(report.unused, []);
    }
    let report = with_table(
        &table,
        subjects(),
        &["length-compared@p0=only there"],
        false,
    );
    assert_eq!(report.verdict(), Verdict::Violated, "d0 is not allowed");
    let report = with_table(&table, subjects(), &["same-model=why not"], false);
    assert_eq!(report.unused.len(), 1, "what covers nothing is named");
}

#[test]
fn advice_passes_unless_strict() {
    let (mut prefill, decode) = good_pair();
    prefill.checksum = fig(false);
    let table = Table::embedded();
    let allow = [
        "length-compared=equal limits",
        "health-is-evidence=we probe ourselves",
        "conditional-advisories=the ports are closed and the gateway refuses long prompts",
    ];
    let report = with_table(&table, pair(prefill.clone(), decode.clone()), &allow, false);
    assert_eq!(
        (report.verdict(), answer(&report, "kv-checksum")),
        (Verdict::Holds, Answer::Violated)
    );
    let report = with_table(&table, pair(prefill.clone(), decode.clone()), &allow, true);
    assert_eq!(
        (report.verdict(), failing(&report)),
        (Verdict::Violated, vec!["kv-checksum"])
    );
    prefill.checksum = Err(not_reported());
    let report = with_table(&table, pair(prefill, decode), &allow, true);
    assert_eq!(
        report.verdict(),
        Verdict::Unknown,
        "unknown advice is exit 3 with --strict"
    );
}

/// One thing wrong on the prefill side, and the check that says so.
#[test]
fn each_thing_that_is_wrong_is_found_by_its_check() {
    type Break = fn(&mut Node);
    let wrong: [(&str, Answer, Break); 22] = [
        ("pool-holds-context", Answer::Violated, |it| {
            it.ranks = Ok(vec![rank("dp 0", 1_310_719)])
        }),
        ("pool-holds-context", Answer::Unknown, |it| {
            it.ranks = Ok(vec![])
        }),
        ("pool-holds-context", Answer::Unknown, |it| {
            it.context = Err(not_reported())
        }),
        ("prompt-limits-equal", Answer::Violated, |it| {
            it.max_prompt = measured(1_048_568)
        }),
        ("prompt-limits-equal", Answer::Violated, |it| {
            it.max_prompt = measured(1_048_570)
        }),
        ("prompt-limits-equal", Answer::Unknown, |it| {
            it.max_prompt = Err(not_reported())
        }),
        ("advertised-fits", Answer::Violated, |it| {
            it.advertised = measured(1_400_001)
        }),
        ("advertised-fits", Answer::Unknown, |it| {
            it.advertised = Err(not_reported())
        }),
        ("no-silent-truncation", Answer::Violated, |it| {
            it.truncates = fig(true)
        }),
        ("no-silent-truncation", Answer::Unknown, |it| {
            it.truncates = Err(not_reported())
        }),
        ("same-page-size", Answer::Violated, |it| {
            it.page_size = fig(1)
        }),
        ("same-page-size", Answer::Unknown, |it| {
            it.page_size = Err(not_reported())
        }),
        ("same-kv-dtype", Answer::Violated, |it| {
            it.kv_dtype = fig("bf16".into())
        }),
        ("same-kv-dtype", Answer::Violated, |it| {
            it.kv_dtype = fig("auto".into())
        }),
        ("same-layout", Answer::Violated, |it| {
            it.layout = fig("page_first".into())
        }),
        ("same-model", Answer::Violated, |it| {
            it.model = fig("zai-org/GLM-5.2".into())
        }),
        ("same-tokenizer", Answer::Unknown, |it| {
            it.tokenizer = Err(not_reported())
        }),
        ("role-as-stated", Answer::Violated, |it| {
            it.role = fig(Role::Decode)
        }),
        ("role-as-stated", Answer::Unknown, |it| {
            it.role = Err(not_reported())
        }),
        ("node-answers", Answer::Unknown, |it| {
            it.engine = Err(not_reported())
        }),
        ("node-answers", Answer::Unknown, |it| {
            it.engine = fig(Engine::TensorrtLlm)
        }),
        ("door-check", Answer::Unknown, |it| {
            it.version = Err(not_reported())
        }),
    ];
    for (check, expected, break_it) in wrong {
        let (mut prefill, decode) = good_pair();
        break_it(&mut prefill);
        let report = report(pair(prefill.clone(), decode));
        assert_eq!(answer(&report, check), expected, "{check}: {prefill:?}");
        assert!(failing(&report).contains(&check));
    }
}

#[test]
fn the_smallest_rank_counts_and_one_that_says_nothing_is_not_forgotten() {
    let (mut prefill, decode) = good_pair();
    prefill.ranks = Ok(vec![rank("dp 0", 1_400_000), rank("dp 1", 700_000)]);
    let found = report(pair(prefill.clone(), decode.clone()));
    let pool = of(&found, "pool-holds-context")[0];
    assert_eq!(pool.says, "pool of dp 1 700,000 < context 1,048,576: 67 %");
    let mut silent = rank("dp 1", 1);
    silent.pool = Err(not_reported());
    prefill.ranks = Ok(vec![rank("dp 0", 1_400_000), silent.clone()]);
    let found = report(pair(prefill.clone(), decode.clone()));
    assert_eq!(answer(&found, "pool-holds-context"), Answer::Unknown);
    prefill.ranks = Ok(vec![rank("dp 0", 700_000), silent]);
    let found = report(pair(prefill, decode));
    assert_eq!(
        answer(&found, "pool-holds-context"),
        Answer::Violated,
        "one is enough"
    );
}

#[test]
fn an_engine_that_refuses_to_start_passes_with_one_and_says_so() {
    let mut node = sglang("v0", "0.32.0", Role::Whole, 8_192, 8_192);
    node.engine = fig(Engine::Vllm);
    let found = report(fleet(vec![reading(Stated::Server, node)]));
    let pool = of(&found, "pool-holds-context")[0];
    assert_eq!(pool.answer, Answer::Holds);
    assert!(
        pool.says
            .contains("vLLM refuses to start below its context"),
        "{}",
        pool.says
    );
    assert_eq!(found.verdict(), Verdict::Holds, "{:?}", failing(&found));
}

#[test]
fn a_declared_pool_is_no_pool_and_a_declared_context_only_raises() {
    let (mut prefill, decode) = good_pair();
    prefill.ranks = Err(not_reported());
    prefill.declared_pool = Some(gate::facts::Declared::new(
        1_400_000,
        at("max_total_tokens"),
    ));
    let found = report(pair(prefill, decode.clone()));
    assert_eq!(answer(&found, "pool-holds-context"), Answer::Unknown);
    let (mut prefill, _) = good_pair();
    prefill.declared_context = Some(gate::facts::Declared::new(2_000_000, at("context_length")));
    let found = report(pair(prefill, decode));
    assert!(
        of(&found, "pool-holds-context")[0]
            .says
            .contains("declared context 2,000,000")
    );
}

#[test]
fn a_node_without_counterpart_is_not_a_pass() {
    let (prefill, decode) = good_pair();
    let alone = report(fleet(vec![reading(Stated::Prefill, prefill.clone())]));
    assert_eq!(answer(&alone, "pair-complete"), Answer::Unknown);
    let as_server = report(fleet(vec![reading(Stated::Server, prefill.clone())]));
    assert_eq!(answer(&as_server, "pair-complete"), Answer::Unknown);
    assert_eq!(answer(&as_server, "role-as-stated"), Answer::Violated);
    assert!(
        failing(&as_server).contains(&"length-compared"),
        "it hands over, whatever was said"
    );
    let readings = vec![
        reading(Stated::Prefill, prefill),
        reading(Stated::Decode, decode),
    ];
    let elsewhere = [GroupEntry {
        name: "a".into(),
        prefill: vec!["p0".into()],
        decode: vec![],
    }];
    let found = report(grouped(readings, &elsewhere));
    assert_eq!(answer(&found, "pair-complete"), Answer::Unknown);
}

#[test]
fn a_log_that_does_not_say_its_role_is_not_taken_for_a_lone_server() {
    let (mut node, _) = good_pair();
    node.role = Err(not_reported());
    let mut reading = reading(Stated::Server, node);
    reading.stated = None;
    let found = report(fleet(vec![reading]));
    assert_eq!(answer(&found, "pair-complete"), Answer::Unknown);
}

#[test]
fn only_nodes_of_one_group_are_compared() {
    let (p0, d0) = good_pair();
    let small = |name, role| sglang(name, "0.5.23", role, 700_000, 524_288);
    let readings = vec![
        reading(Stated::Prefill, p0),
        reading(Stated::Decode, d0),
        reading(Stated::Prefill, small("p1", Role::Prefill)),
        reading(Stated::Decode, small("d1", Role::Decode)),
    ];
    let group = |name: &str, p: &str, d: &str| GroupEntry {
        name: name.into(),
        prefill: vec![p.into()],
        decode: vec![d.into()],
    };
    let apart = [group("long", "p0", "d0"), group("short", "p1", "d1")];
    let found = report(grouped(readings.clone(), &apart));
    assert_eq!(failing(&found), ["length-compared"]);
    let crossed = [group("x", "p0", "d1"), group("y", "p1", "d0")];
    let found = report(grouped(readings, &crossed));
    assert!(failing(&found).contains(&"prompt-limits-equal"));
}

#[test]
fn versions_are_judged_by_the_table_and_a_newer_one_is_not_trusted() {
    for (version, expected) in [
        (
            "0.4.6",
            &[
                "door-check",
                "known-advisories",
                "length-compared",
                "minimum-version",
                "no-stale-pages",
            ][..],
        ),
        (
            "0.5.19",
            &[
                "door-check",
                "length-compared",
                "minimum-version",
                "no-stale-pages",
            ],
        ),
        (
            "0.5.20rc1",
            &[
                "door-check",
                "length-compared",
                "minimum-version",
                "no-stale-pages",
            ],
        ),
        (
            "0.5.20",
            &["door-check", "length-compared", "minimum-version"],
        ),
        ("0.5.21", &["length-compared", "minimum-version"]),
        ("0.5.22", &["length-compared"]),
        ("0.5.24", &["length-compared"]), // unknown: the table has not seen it
    ] {
        let (mut prefill, mut decode) = good_pair();
        prefill.version = fig(Version::parse(version).unwrap());
        decode.version = prefill.version.clone();
        let found = report(pair(prefill, decode));
        assert_eq!(failing(&found), expected, "{version}");
        let newer = version == "0.5.24";
        let verdict = if newer {
            Verdict::Unknown
        } else {
            Verdict::Violated
        };
        assert_eq!(found.verdict(), verdict, "{version}");
    }
}

#[test]
fn the_table_ages_and_can_be_replaced() {
    let (prefill, decode) = good_pair();
    let mut table = Table::embedded();
    table.date = "2026-08-30".parse().unwrap(); // 91 days
    let found = with_table(&table, pair(prefill.clone(), decode.clone()), &[], false);
    assert_eq!(answer(&found, "table-is-fresh"), Answer::Violated);
    let text = "date = 2026-11-29\ngood_for_days = 9\n[seen_through]\nsglang = '0.5.23'\n";
    let own = Table::parse(text).unwrap();
    let found = with_table(&own, pair(prefill, decode), &[], false);
    assert_eq!(found.verdict(), Verdict::Holds);
}

#[test]
fn two_hundred_nodes_are_one_finding_a_group_not_ten_thousand() {
    let mut readings = Vec::new();
    for n in 0..100 {
        let node =
            |name: &str, role| sglang(&format!("{name}{n}"), "0.5.23", role, 1_400_000, 1_048_576);
        readings.push(reading(Stated::Prefill, node("p", Role::Prefill)));
        readings.push(reading(Stated::Decode, node("d", Role::Decode)));
    }
    readings[7].nodes[0].page_size = fig(1);
    let found = report(fleet(readings));
    assert_eq!(of(&found, "same-page-size").len(), 1);
    let says = &of(&found, "same-page-size")[0].says;
    assert_eq!(
        says,
        "page size differs: 1 on d3; 64 on p0, p1, p2 and 196 more"
    );
    let text = gate::output::table(&found, gate::output::Style::default());
    assert!(text.lines().count() < 120, "{text}");
}

#[test]
fn nothing_asked_is_nothing_proven() {
    let found = report(fleet(vec![]));
    assert_eq!(found.verdict(), Verdict::Unknown);
}
