//! What is said to do and why: advice that can be followed, dates, and reasons that are told once.

use super::*;
use gate::facts::answers::{ServerAnswers, read};
use gate::finding::Finding;

fn guarded_at(role: &str, version_is: &str) -> Recording {
    let it = guarded(sglang(role), &format!("sglang-0.5.23-{role}"));
    version(it, "0.5.23", version_is)
}

fn open(report: &Report) -> impl Iterator<Item = &Finding> {
    report.findings.iter().filter(|it| it.answer != Holds)
}

/// All that the guard refuses, in each version in which it was run; in others nobody knows.
#[test]
fn a_guarded_pair_is_not_told_what_the_guard_does() {
    let at = |text: &str| pair(&guarded_at("prefill", text), &guarded_at("decode", text));
    let all = |answer| {
        let checks = [
            "no-stale-pages",
            "door-check",
            "minimum-version",
            "length-compared",
            "kv-checksum",
            "deferred-release",
            "transfer-bounded",
        ];
        checks.map(|it| (it, answer)).to_vec()
    };
    let nixl = |role: &str, text: &str| {
        let it = guarded(vllm(), &format!("vllm-0.32.0-{role}"));
        version(it, "0.32.0", text)
    };
    let vllm_at = |text: &str| pair(&nixl("prefill", text), &nixl("decode", text));
    compare(vec![
        ("0.5.19", at("0.5.19"), all(Holds)),
        ("0.5.20", at("0.5.20"), all(Holds)),
        ("0.5.21", at("0.5.21"), all(Holds)),
        ("0.5.22", at("0.5.22"), all(Holds)),
        ("0.5.23", at("0.5.23"), all(Holds)),
        ("0.5.18, where it was not run", at("0.5.18"), all(Unknown)),
        (
            "a pair without the guard",
            pair(&sglang("prefill"), &sglang("decode")),
            vec![("kv-checksum", Violated), ("length-compared", Violated)],
        ),
        (
            "vLLM 0.32.0",
            vllm_at("0.32.0"),
            vec![("kv-checksum", Holds), ("known-advisories", Holds)],
        ),
        (
            "vLLM 0.33.0, where it was not run",
            vllm_at("0.33.0"),
            vec![("kv-checksum", Unknown), ("known-advisories", Unknown)],
        ),
    ]);
}

/// Nobody is sent to a guard that was not run in what they have, without being told so.
#[test]
fn advice_can_be_followed_in_the_version_that_runs() {
    let sglang_at = |text: &str| {
        let it = |role: &str| version(sglang(role), "0.5.23", text);
        pair(&it("prefill"), &it("decode"))
    };
    let vllm_at = |text: &str| {
        let it = version(vllm(), "0.32.0", text);
        pair(&it, &it)
    };
    let cases = [
        ("SGLang 0.4.10", sglang_at("0.4.10"), false),
        ("SGLang 0.5.18", sglang_at("0.5.18"), false),
        ("SGLang 0.5.19", sglang_at("0.5.19"), true),
        ("SGLang 0.5.22", sglang_at("0.5.22"), true),
        ("SGLang 0.5.24", sglang_at("0.5.24"), false),
        ("vLLM 0.11.0", vllm_at("0.11.0"), false),
        ("vLLM 0.32.0", vllm_at("0.32.0"), true),
        ("vLLM 0.33.0", vllm_at("0.33.0"), false),
    ];
    for (name, servers, runs) in cases {
        let report = judged(&servers, false);
        let of_table = open(&report).filter(|it| it.advisory.is_some());
        let guard = of_table.filter(|it| it.what_to_do().contains("cofferdam-guard"));
        let mut seen = 0;
        for it in guard {
            let todo = it.what_to_do();
            assert_eq!(
                todo.starts_with("run cofferdam-guard"),
                runs,
                "{name}: {todo}"
            );
            assert_eq!(todo.contains("and was run in"), !runs, "{name}: {todo}");
            seen += 1;
        }
        assert!(seen > 0, "{name}");
    }
}

/// Options of other engines are no advice.
#[test]
fn what_makes_a_pool_fit_is_said_for_the_engine_that_runs() {
    let table = Table::embedded();
    let rules = Rules {
        context: Some(4096),
        headroom: Headroom::default(),
        today: Date::of_unix(NOW),
        table: &table,
        baseline: None,
    };
    let reading = Reading {
        name: "l".into(),
        stated: Some(Stated::Server),
        shared_address: false,
        nodes: nodes_at("http://l", &llama()),
    };
    let subjects = assemble(vec![reading], &[], Vec::new());
    let report = Report::new(subjects, &rules, &[], false, NOW);
    let pool = open(&report).find(|it| it.check.id == "pool-holds-context");
    let todo = pool.unwrap().what_to_do();
    assert!(
        todo.contains("--ctx-size") && !todo.contains("SGLang"),
        "{todo}"
    );
}

/// What is said of the table's age by a machine whose clock says `today`.
fn fresh(servers: &Servers, today: &str, toml: Option<&str>) -> (Answer, String) {
    let table = toml.map_or_else(Table::embedded, |it| Table::parse(it).unwrap());
    let rules = Rules {
        context: None,
        headroom: Headroom::default(),
        today: today.parse().unwrap(),
        table: &table,
        baseline: None,
    };
    let reading = |(n, (stated, nodes)): (usize, &(Stated, Vec<Node>))| Reading {
        name: format!("n{n}"),
        stated: Some(*stated),
        shared_address: false,
        nodes: nodes.clone(),
    };
    let readings = servers.iter().enumerate().map(reading).collect();
    let subjects = assemble(readings, &[], Vec::new());
    let report = Report::new(subjects, &rules, &[], false, NOW);
    let found = report.findings.into_iter();
    let mut found = found.filter(|it| it.check.id == "table-is-fresh");
    let it = found.next().unwrap();
    (it.answer, it.says)
}

#[test]
fn a_table_is_fresh_by_what_is_known_and_by_a_clock_that_can_be_right() {
    let lone = |text: &str| server(version(sglang("single"), "0.5.23", text), |_| ());
    let now = |text: &str| fresh(&lone(text), "2026-12-03", None);
    assert_eq!(now("0.5.23").0, Holds);
    assert_eq!(now("0.5.23+cu129").0, Holds);
    assert_eq!(now("0.5.22").0, Holds);
    assert_eq!(now("0.5.23.post1").0, Violated);
    assert_eq!(now("0.5.24").0, Violated);
    // Not out, but no release that the table should know.
    for build in ["0.5.24.dev5+gabc", "0.5.24rc1", "0.5.23.post1.dev2"] {
        let (answer, says) = now(build);
        assert_eq!(answer, Unknown, "{says}");
        assert!(says.contains("that was not released"), "{says}");
    }
    let (answer, says) = fresh(&lone("0.5.23"), "2027-06-01", None);
    assert_eq!(answer, Violated, "{says}");
    // A clock that stands at its beginning.
    let (answer, says) = fresh(&lone("0.5.23"), "1970-01-01", None);
    assert_eq!(answer, Unknown, "{says}");
    assert!(says.contains("clock says 1970-01-01"), "{says}");
    assert!(!says.contains("days ago"), "{says}");
    let toml = |date: &str, on: &str| {
        format!(
            "date = {date}\ngood_for_days = 30\n[seen_through]\nsglang = '0.5.23'\n[newest]\nsglang = {{ version = '0.5.23', on = {on} }}\n"
        )
    };
    let with = |date: &str, on: &str| fresh(&lone("0.5.23"), "2026-12-03", Some(&toml(date, on)));
    assert_eq!(with("2026-12-04", "2026-12-04").0, Holds, "time zones");
    assert_eq!(with("2026-12-01", "2026-12-01").0, Holds);
    let (answer, says) = with("2026-12-01", "2027-01-09");
    assert_eq!(answer, Unknown, "{says}");
    assert!(
        says.contains("the newest SGLang is of 2027-01-09"),
        "{says}"
    );
    assert_eq!(with("2027-01-09", "2026-12-01").0, Unknown);
    assert_eq!(with("2026-12-01", "2026-10-01").0, Violated);
    let ended =
        toml("2026-12-01", "2026-12-01").replacen("sglang = '0.5.23'", "sglang = '0.5.22'", 1);
    let (answer, says) = fresh(&lone("0.5.22"), "2026-12-03", Some(&ended));
    assert_eq!(answer, Violated, "{says}");
    assert!(says.contains("SGLang 0.5.23 is out"), "{says}");
    // Nothing was read: nothing is known of its releases.
    let dead = vec![(Stated::Server, vec![dead("http://s", "connection refused")])];
    assert_eq!(fresh(&dead, "2026-12-03", None).0, Unknown);
}

/// SGLang#30326, when it comes: from there on 1.0 is headroom enough.
#[test]
fn a_release_that_refuses_small_pools_needs_no_headroom() {
    let toml = "date = 2026-12-01\ngood_for_days = 30\n[seen_through]\nsglang = '0.5.24'\n[newest]\nsglang = { version = '0.5.24', on = 2026-12-01 }\n[refuses_pool_below_context]\nsglang = '0.5.24'\n";
    let table = Table::parse(toml).unwrap();
    let at = |text: &str| {
        let mut it = version(sglang("single"), "0.5.23", text);
        for path in ["/server_info", "/v1/loads", "/metrics"] {
            let tight = crate::text(&it, path).replace("8000", "4200");
            it.answers.insert(path.into(), tight.into_bytes());
        }
        let rules = Rules {
            context: None,
            headroom: Headroom::default(),
            today: Date::of_unix(NOW),
            table: &table,
            baseline: None,
        };
        let reading = Reading {
            name: "s".into(),
            stated: Some(Stated::Server),
            shared_address: false,
            nodes: nodes_at("http://s", &it),
        };
        let subjects = assemble(vec![reading], &[], Vec::new());
        worst(
            &Report::new(subjects, &rules, &[], false, NOW),
            "pool-holds-context",
        )
    };
    assert_eq!(at("0.5.24"), Some(Holds));
    assert_eq!(at("0.5.25.dev1"), Some(Holds));
    for before in ["0.5.23", "0.5.24rc1", "0.5.24.dev9", "0.5.23.post1.dev7"] {
        assert_eq!(at(before), Some(Violated), "{before}");
    }
}

fn dead(base: &str, why: &str) -> Node {
    let mut answers = ServerAnswers::new(base, false);
    for path in ["/v1/models", "/metrics", "/server_info", "/version"] {
        let why = why.to_owned();
        let trouble = match why.starts_with("invalid peer") {
            true => Trouble::Tls { why },
            false => Trouble::Unreachable { why },
        };
        answers.insert(path, Err(trouble));
    }
    read(base, &answers).remove(0)
}

/// How often a table tells a reason.
fn told(servers: &Servers, why: &str) -> (usize, String) {
    let report = judged(servers, false);
    let table = gate::output::table(&report, gate::output::Style::default());
    let words = table.split_whitespace().collect::<Vec<_>>().join(" ");
    (words.matches(why).count(), table)
}

/// One reason, whatever kind, in whatever roles.
#[test]
fn a_reason_is_told_once_for_a_server_in_several_roles() {
    let whys = [
        "connection refused",
        "failed to lookup address information",
        "invalid peer certificate: UnknownIssuer",
    ];
    for why in whys {
        for roles in [
            vec![Stated::Server],
            vec![Stated::Prefill, Stated::Decode],
            vec![Stated::Prefill, Stated::Decode, Stated::Server],
        ] {
            let roles = roles.into_iter();
            let mut servers: Servers = roles.map(|it| (it, vec![dead("http://p", why)])).collect();
            servers.push((Stated::Decode, nodes_at("http://d", &sglang("decode"))));
            let (times, table) = told(&servers, why);
            assert_eq!(times, 1, "{why}: {table}");
        }
    }
    // Two servers are two reasons, and each is told.
    let two = vec![
        (
            Stated::Prefill,
            vec![dead("http://p", "connection refused")],
        ),
        (Stated::Decode, vec![dead("http://d", "connection refused")]),
    ];
    assert_eq!(told(&two, "connection refused").0, 2);
}

/// A server that dies while it is read, or that refuses all but its metrics: each endpoint is told of
/// once, in whatever roles it is listed.
#[test]
fn an_endpoint_is_told_of_once_for_a_server_in_several_roles() {
    let unreachable = || Trouble::Unreachable {
        why: "connection reset".into(),
    };
    let refused = || Trouble::Refused { status: 401 };
    let cases: [(&str, &str, &dyn Fn() -> Trouble); 2] = [
        ("/v1/models", "unreachable (connection reset)", &unreachable),
        ("/metrics", "refused with 401", &refused),
    ];
    for (answers_at, why, trouble) in cases {
        let recorded = sglang("prefill");
        let mut answers = ServerAnswers::new("http://s", false);
        for (path, body) in &recorded.answers {
            let body = (path == answers_at).then(|| body.clone());
            answers.insert(path, body.ok_or_else(trouble));
        }
        for roles in [vec![Stated::Prefill], vec![Stated::Prefill, Stated::Decode]] {
            let nodes = || read("http://s", &answers);
            let servers = roles.into_iter().map(|it| (it, nodes())).collect();
            let (times, table) = told(&servers, &format!("http://s/server_info: {why}"));
            assert_eq!(times, 1, "{table}");
        }
    }
}

/// A counterpart that was not read is none.
#[test]
fn a_pair_of_which_one_is_dead_was_not_compared() {
    let alive = || (Stated::Decode, nodes_at("http://d", &sglang("decode")));
    let gone = || {
        (
            Stated::Prefill,
            vec![dead("http://p", "connection refused")],
        )
    };
    let other = || (Stated::Prefill, nodes_at("http://q", &sglang("prefill")));
    let of_decode = |servers: &Servers, name: &str| {
        let report = judged(servers, false);
        let mut found = report.findings.into_iter();
        let it = found.find(|it| it.check.id == "pair-complete" && it.subject.name() == name);
        it.unwrap().answer
    };
    assert_eq!(of_decode(&vec![gone(), alive()], "n1"), Unknown);
    assert_eq!(of_decode(&vec![gone(), alive(), other()], "n1"), Holds);
    assert_eq!(of_decode(&vec![alive(), other()], "n0"), Holds);
}
