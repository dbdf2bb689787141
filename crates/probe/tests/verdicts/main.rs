//! Every verdict, against a scripted server.

mod controls;
mod edges;
mod elsewhere;
mod engines;
mod more;
mod server;
mod sick;
mod table;
mod untold;
mod vigil;

use gate::facts::net::{Address, Secret, Tls, TlsFiles};
use probe::report::{self, ProbeReport, ProbeVerdict};
use probe::suites::{Known, Pair, Suite};
use probe::wire::Dialect;
use probe::{Budget, Kind, ProbeRun, Question, Tenant, TenantEndpoint};
use server::{Asked, Form, Reply, serve};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const LIMIT: u64 = 600;
const SEED: [u8; 32] = [5; 32];

fn endpoint(url: &str, key: &str) -> TenantEndpoint {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), key).unwrap();
    TenantEndpoint {
        address: Address::parse(url).unwrap(),
        key: Some(Secret::from_file(file.path()).unwrap()),
        tls: Tls::new(&TlsFiles::default()).unwrap(),
        dialect: Dialect::Completions,
        model: Some("m".to_owned()),
    }
}

fn two(url: &str) -> BTreeMap<Tenant, TenantEndpoint> {
    [
        (Tenant(0), endpoint(url, "key-of-a")),
        (Tenant(1), endpoint(url, "key-of-b")),
    ]
    .into()
}

fn budget() -> Budget {
    Budget {
        rate: 0.0,
        request_time: Duration::from_secs(60),
        ..Budget::default()
    }
}

/// Runs suites against a script and reports.
async fn report(
    form: Form,
    suites: &[Suite],
    known: &Known,
    script: impl Fn(&Asked) -> Reply + Send + Sync + 'static,
) -> ProbeReport {
    let url = serve(form, |it| it, script).await;
    let run = ProbeRun::new(two(&url), SEED, budget());
    let mut ended = Vec::new();
    for suite in suites {
        ended.push((*suite, suite.run(&run, known).await.err()));
    }
    ProbeReport::new(url, SEED, &run, ended)
}

fn known() -> Known {
    Known {
        limit: Some(LIMIT),
        ..Known::default()
    }
}

fn kinds(report: &ProbeReport) -> BTreeSet<Kind> {
    report
        .counts
        .findings
        .keys()
        .map(|(kind, _)| *kind)
        .collect()
}

/// A server that does what it should.
fn honest(asked: &Asked) -> Reply {
    if asked.method == "PUT" {
        return Reply::Error(404, "nothing here");
    }
    match asked.tokens > LIMIT {
        true => Reply::Error(400, "too long"),
        false => Reply::Text(asked.copied()),
    }
}

const MANY: [Suite; 7] = [
    Suite::Boundary,
    Suite::Load,
    Suite::Abort,
    Suite::Coherence,
    Suite::Control,
    Suite::Churn,
    Suite::Flood,
];

#[tokio::test]
async fn an_honest_server_is_clean_in_every_form_of_answer() {
    for form in [Form::Plain, Form::Gzip, Form::Crumbs] {
        let report = report(form, &MANY, &known(), honest).await;
        assert_eq!(
            report.verdict(),
            ProbeVerdict::Clean,
            "{}",
            report::table(&report)
        );
        assert!(
            report.copies() > 0.5,
            "the positive control: {}",
            report.copies()
        );
        assert!(report.chance < 1e-12, "{}", report.chance);
    }
}

#[tokio::test]
async fn the_limit_is_found_exactly_when_nobody_knows_it() {
    let known = Known::default();
    let report = report(Form::Plain, &[Suite::Boundary], &known, honest).await;
    assert_eq!(
        report.verdict(),
        ProbeVerdict::Clean,
        "{}",
        report::table(&report)
    );
    assert_eq!(known.found.get(), Some(&LIMIT));
    // The prompts at the limit were answered, those above were not: by status alone it shows.
    assert!(report.counts.by_status[&400] >= 4, "{:?}", report.counts);
}

/// Eight words from the middle of another tenant's canary, re-cased, once in 200 answers.
#[tokio::test]
async fn a_leak_once_in_200_answers_convicts_and_names_the_source() {
    let url = serve(
        Form::Crumbs,
        |it| it,
        |asked| match asked.n % 200 {
            199 => Reply::Text(format!("{} {}", asked.copied(), asked.foreign().unwrap())),
            _ => Reply::Text(asked.copied()),
        },
    )
    .await;
    let run = ProbeRun::new(two(&url), SEED, budget());
    for n in 0..200_usize {
        let mut ask = Question::new(Tenant((n % 2) as u8), 3 + n % 5);
        ask.stream = n % 3 == 0;
        run.ask("load", ask).await.unwrap();
    }
    let findings = run.findings();
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert_eq!(findings[0].kind, Kind::Leak);
    assert!(
        findings[0].says.contains("tenant A, request 99"),
        "{}",
        findings[0].says
    );
    assert_eq!(
        findings[0].shows.len(),
        2,
        "whose text it was, and who got it"
    );
    let curl = findings[0].shows[1].curl();
    assert!(
        curl.contains("$KEY_B") && !curl.contains("key-of-b"),
        "{curl}"
    );
}

/// A model that shuffles the words of its own prompt, ten thousand times.
#[tokio::test]
async fn a_paraphrase_of_ones_own_prompt_is_acquitted() {
    let url = serve(
        Form::Plain,
        |it| it,
        |asked| {
            let mut words: Vec<_> = asked.prompt.split_whitespace().collect();
            let length = words.len();
            for n in 0..length {
                words.swap(n, (n * 7 + asked.n as usize * 13) % length);
            }
            Reply::Text(words.join(" "))
        },
    )
    .await;
    let budget = Budget {
        requests: 20_000,
        tokens: u64::MAX,
        ..budget()
    };
    let run = ProbeRun::new(two(&url), SEED, budget);
    for n in 0..10_000_usize {
        run.ask("load", Question::new(Tenant((n % 2) as u8), 3))
            .await
            .unwrap();
    }
    assert_eq!(run.findings(), []);
    assert!(run.chance().0 < 1e-12, "{:?}", run.chance());
}

/// The incident: over the limit, 200, the right count, and another tenant's text.
#[tokio::test]
async fn the_incident_is_a_leak_and_a_silent_acceptance_at_the_first_token_over() {
    let script = |asked: &Asked| match asked.tokens > LIMIT {
        true => Reply::Text(asked.foreign().unwrap_or_default()),
        false => Reply::Text(asked.copied()),
    };
    let report = report(
        Form::Plain,
        &[Suite::Boundary, Suite::Flood],
        &known(),
        script,
    )
    .await;
    assert_eq!(report.verdict(), ProbeVerdict::Found);
    let kinds = kinds(&report);
    for kind in [Kind::Leak, Kind::SilentAcceptance, Kind::WrongAnswer] {
        assert!(kinds.contains(&kind), "{kind}: {kinds:?}");
    }
    let says: Vec<_> = report.findings.iter().map(|it| it.says.as_str()).collect();
    assert!(
        says.iter()
            .any(|it| it.contains("200 for a prompt of 601 tokens")),
        "{says:?}"
    );
    let table = report::table(&report);
    assert!(
        table.starts_with("FOUND") && table.contains("curl"),
        "{table}"
    );
    assert!(!table.contains("key-of"), "no key in a report");
    let junit = report::junit(&report);
    assert!(junit.contains("failures=\"2\""), "{junit}");
    assert_eq!(report::json(&report)["verdict"], "found");
    let html = report::html(&report);
    assert!(
        html.contains("<mark>") && !html.contains("key-of"),
        "{html}"
    );
}

#[tokio::test]
async fn a_server_that_lies_about_usage_is_found_out() {
    let url = serve(Form::Plain, |it| if it >= LIMIT { 1 } else { it }, honest).await;
    let run = ProbeRun::new(two(&url), SEED, budget());
    Suite::Boundary.run(&run, &known()).await.unwrap();
    let findings = run.findings();
    assert!(
        findings.iter().any(|it| it.kind == Kind::SilentAcceptance
            && it.says == "a prompt of 600 tokens was counted as 1"),
        "{findings:?}"
    );
}

#[tokio::test]
async fn hangs_and_errors_of_the_wrong_class() {
    let url = serve(
        Form::Plain,
        |it| it,
        |asked| match asked.tokens {
            601 => Reply::Hang,
            602.. => Reply::Error(500, "oops"),
            _ => Reply::Text(asked.copied()),
        },
    )
    .await;
    let budget = Budget {
        request_time: Duration::from_secs(2),
        ..budget()
    };
    let run = ProbeRun::new(two(&url), SEED, budget);
    Suite::Boundary.run(&run, &known()).await.unwrap();
    let kinds: BTreeSet<_> = run.findings().iter().map(|it| it.kind).collect();
    assert_eq!(kinds, [Kind::Hang, Kind::WrongErrorClass].into());
    let findings = run.findings();
    let hang = findings.iter().find(|it| it.kind == Kind::Hang).unwrap();
    assert!(
        hang.says.contains(", 601 tokens, within 2 s"),
        "{}",
        hang.says
    );
}

#[tokio::test]
async fn an_answer_that_is_another_under_load_is_a_wrong_answer() {
    // Alone: requests come one after the other. Under load somebody else is there too.
    let busy = std::sync::atomic::AtomicU64::new(0);
    let script = move |asked: &Asked| {
        let n = busy.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        match n >= 18 && asked.prompt.len() > 300 {
            true => Reply::Text("something else".to_owned()),
            false => Reply::Text(asked.copied()),
        }
    };
    let report = report(Form::Plain, &[Suite::Load], &known(), script).await;
    assert!(
        kinds(&report).contains(&Kind::WrongAnswer),
        "{}",
        report::table(&report)
    );
}

#[tokio::test]
async fn a_noisy_server_cannot_be_compared_and_a_mute_one_proves_nothing() {
    let noisy = |asked: &Asked| Reply::Text(format!("{} {}", asked.n, asked.copied()));
    let report_ = report(Form::Plain, &[Suite::Load], &known(), noisy).await;
    assert_eq!(report_.verdict(), ProbeVerdict::CouldNotTell);
    assert!(
        report::table(&report_).contains("even alone"),
        "{}",
        report::table(&report_)
    );
    let mute = |asked: &Asked| match asked.tokens > LIMIT {
        true => Reply::Error(400, "too long"),
        false => Reply::Text("I cannot help with that.".to_owned()),
    };
    let report_ = report(Form::Plain, &[Suite::Boundary], &known(), mute).await;
    assert_eq!(report_.verdict(), ProbeVerdict::CouldNotTell);
    assert!(report::table(&report_).contains("went on with its own canary: nor would one"));
}

#[tokio::test]
async fn damaged_answers_are_looked_at_as_far_as_they_go() {
    let raw = |asked: &Asked| {
        let text = asked.foreign().unwrap_or_else(|| asked.copied());
        let body = format!(
            "data: {{\"choices\":[{{\"index\":0,\"text\":\"{text}\"}}]}}\n\ndata: {{oops\n\n"
        );
        let head =
            "HTTP/1.1 200 x\r\ncontent-type: text/event-stream\r\ncontent-length: 99999\r\n\r\n";
        Reply::Raw(format!("{head}{body}").into_bytes())
    };
    let url = serve(Form::Plain, |it| it, raw).await;
    let run = ProbeRun::new(two(&url), SEED, budget());
    for n in 0..4 {
        run.ask("load", Question::new(Tenant(n % 2), 4))
            .await
            .unwrap();
    }
    let kinds: BTreeSet<_> = run.findings().iter().map(|it| it.kind).collect();
    assert!(kinds.contains(&Kind::Leak), "{kinds:?}");
    assert_eq!(run.counts().answered, 0, "none of them is complete");
}

#[tokio::test]
async fn a_budget_is_kept_and_what_was_not_done_is_said() {
    let url = serve(Form::Plain, |it| it, honest).await;
    let budget = Budget {
        requests: 10,
        ..budget()
    };
    let run = ProbeRun::new(two(&url), SEED, budget);
    let stopped = Suite::Load.run(&run, &known()).await.unwrap_err();
    assert_eq!(run.counts().requests, 10);
    let report = ProbeReport::new(url, SEED, &run, vec![(Suite::Load, Some(stopped))]);
    assert_eq!(report.verdict(), ProbeVerdict::CouldNotTell);
    assert!(report::table(&report).contains("load did not end: the budget of requests is spent"));
}

#[tokio::test]
async fn shared_prefixes_are_seen_only_where_a_cache_is_on() {
    use std::collections::HashSet;
    use std::sync::Mutex;
    // Tells everybody what anybody has cached.
    let seen: Mutex<HashSet<String>> = Mutex::default();
    let leaky = move |asked: &Asked| {
        let known = !seen.lock().unwrap().insert(asked.prompt.clone());
        let cached = if known { asked.tokens } else { 0 };
        let event = format!(
            "data: {{\"choices\":[{{\"index\":0,\"text\":\"x\"}}],\"usage\":{{\"prompt_tokens\":{},\
             \"prompt_tokens_details\":{{\"cached_tokens\":{cached}}}}}}}\n\ndata: [DONE]\n\n",
            asked.tokens
        );
        let head = "HTTP/1.1 200 x\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
        Reply::Raw(format!("{head}{event}").into_bytes())
    };
    let report_ = report(Form::Plain, &[Suite::Prefix], &known(), leaky).await;
    assert_eq!(
        kinds(&report_),
        [Kind::SharedPrefix].into(),
        "{}",
        report::table(&report_)
    );
    let says = &report_.findings[0].says;
    assert!(
        says.contains("in 10 of 10, and in none of 20 fresh prompts"),
        "{says}"
    );
    // Without a cache there is nothing to share, and that it was not seen is said.
    let suites = [Suite::Load, Suite::Prefix];
    let report_ = report(Form::Plain, &suites, &known(), honest).await;
    let table = report::table(&report_);
    assert_eq!(report_.verdict(), ProbeVerdict::Clean, "{table}");
    assert!(
        table.contains("prefix: no prefix is reused as far as anybody can tell"),
        "{table}"
    );
}

/// What operates a server is found without operating it: nothing but PUT is sent to it.
#[tokio::test]
async fn control_endpoints_that_ask_for_no_key_are_found() {
    let open = |asked: &Asked| {
        assert!(asked.method == "PUT" || asked.path == "/v1/completions");
        match asked.path.as_str() {
            "/flush_cache" | "/abort_request" => Reply::Error(405, "method not allowed"),
            _ => honest(asked),
        }
    };
    let report_ = report(Form::Plain, &[Suite::Control], &known(), open).await;
    let n = &report_.counts.findings;
    assert_eq!(n[&(Kind::OpenControl, "control")], 2, "{n:?}");
    let table = report::table(&report_);
    assert!(
        table.contains("/flush_cache, which drops the prefix cache, is reached by anybody"),
        "{table}"
    );
    assert!(
        table.contains("curl -sS -X PUT 'http://127.0.0.1"),
        "{table}"
    );
    // Reached with a tenant's key only: that may be the operator's.
    let closed = move |asked: &Asked| match asked.key.is_empty() {
        true => Reply::Error(401, "no key"),
        false => open(asked),
    };
    let report_ = report(Form::Plain, &[Suite::Control], &known(), closed).await;
    assert_eq!(
        kinds(&report_),
        [Kind::Suspect].into(),
        "{}",
        report::table(&report_)
    );
    // Every path is answered alike: nothing can be told from it.
    let blind = |_: &Asked| Reply::Error(405, "method not allowed");
    let report_ = report(Form::Plain, &[Suite::Control], &known(), blind).await;
    assert!(kinds(&report_).is_empty());
}

/// A pair whose decode takes any reference, and answers with what was prefilled for it; and one that
/// refuses all but the first use, with its own error as engines do when a fetch is refused.
#[tokio::test]
async fn a_reference_that_was_used_up_must_be_refused() {
    for strict in [false, true] {
        // What was prefilled, and whether it was used.
        let blocks = std::sync::Mutex::new((String::new(), true));
        let script = move |asked: &Asked| {
            let params = &asked.body["kv_transfer_params"];
            if params["do_remote_decode"] == true {
                *blocks.lock().unwrap() = (asked.prompt.clone(), false);
                let body = r#"{"choices":[{"index":0,"text":"x"}],"usage":{"prompt_tokens":9},
                    "kv_transfer_params":{"remote_block_ids":[1,2]}}"#;
                let head = "HTTP/1.1 200 x\r\nconnection: close\r\n\r\n";
                return Reply::Raw(format!("{head}{body}").into_bytes());
            }
            let (prefilled, used) = &mut *blocks.lock().unwrap();
            match (std::mem::replace(used, true), strict) {
                (false, _) => Reply::Text(asked.copied()),
                (true, true) => Reply::Error(500, "no such blocks"),
                (true, false) => {
                    let words = prefilled.split_whitespace().take(12);
                    Reply::Text(words.collect::<Vec<_>>().join(" "))
                }
            }
        };
        let url = serve(Form::Plain, |it| it, script).await;
        let pair = Pair {
            prefill: endpoint(&url, "key-of-a"),
            decode: endpoint(&url, "key-of-a"),
            bootstrap: None,
        };
        let known = Known {
            pair: Some(pair),
            ..known()
        };
        let mut endpoints = two(&url);
        endpoints.get_mut(&Tenant(1)).unwrap().key = None;
        let run = ProbeRun::new(endpoints, SEED, budget());
        Suite::Pair.run(&run, &known).await.unwrap();
        let report = ProbeReport::new(url, SEED, &run, vec![(Suite::Pair, None)]);
        let table = report::table(&report);
        match strict {
            // Both tenants have seen their own canary, and the errors are what was wanted.
            true => {
                assert_eq!(report.verdict(), ProbeVerdict::Clean, "{table}");
                assert_eq!(report.counts.refusals, 10, "{table}");
            }
            false => {
                assert!(kinds(&report).contains(&Kind::SilentAcceptance), "{table}");
                assert!(kinds(&report).contains(&Kind::Leak), "{table}");
                // Only the four first uses say something of how well a leak is seen.
                assert_eq!(report.counts.telling().answers, 4, "{table}");
                // The owner's other prompt is answered with the first one's text.
                assert!(kinds(&report).contains(&Kind::Mixup), "{table}");
            }
        }
    }
}

/// Every suite has its own positive controls: `flood` by itself can acquit.
#[tokio::test]
async fn a_flood_alone_can_acquit() {
    let report = report(Form::Plain, &[Suite::Flood], &known(), honest).await;
    let table = report::table(&report);
    assert_eq!(report.verdict(), ProbeVerdict::Clean, "{table}");
    assert!(report.counts.by_status[&400] >= 20, "{table}");
    // 20 answers, of which none was silent: (1 / 22)^3.
    assert!(table.contains("0 of 20 answers did not go on"), "{table}");
    assert!(table.contains("9.4e-5"), "{table}");
}

/// An error of the server is no refusal where an answer was wanted.
#[tokio::test]
async fn errors_of_the_server_are_not_clean() {
    let breaks = |asked: &Asked| match asked.body.get("rid") {
        Some(_) => Reply::Error(500, "no room"),
        None => honest(asked),
    };
    let report = report(Form::Plain, &[Suite::Retry], &known(), breaks).await;
    assert_eq!(report.counts.refusals, 0);
    assert!(
        report
            .why_not_told()
            .iter()
            .any(|it| it.contains("6 answers were errors")),
        "{}",
        report::table(&report)
    );
}

#[tokio::test]
async fn fields_that_only_engines_may_set_must_not_be_taken_from_clients() {
    // Two hundred is no proof where every unknown field is left aside, and one where none is.
    let leaves_aside = |asked: &Asked| Reply::Text(asked.copied());
    let report_ = report(Form::Plain, &[Suite::Retry], &known(), leaves_aside).await;
    let table = report::table(&report_);
    assert_eq!(report_.verdict(), ProbeVerdict::Clean, "{table}");
    let trusting = |asked: &Asked| match asked.body.get("cofferdam_made_up") {
        Some(_) => Reply::Error(400, "unknown field"),
        None => Reply::Text(asked.copied()),
    };
    let report_ = report(Form::Plain, &[Suite::Retry], &known(), trusting).await;
    assert_eq!(kinds(&report_), [Kind::OpenControl].into());
    let careful = |asked: &Asked| match asked.body.get("kv_transfer_params") {
        Some(_) => Reply::Error(500, "unknown parameter"),
        None => honest(asked),
    };
    let report_ = report(Form::Plain, &[Suite::Retry], &known(), careful).await;
    assert_eq!(
        report_.verdict(),
        ProbeVerdict::Clean,
        "{}",
        report::table(&report_)
    );
    // Keyed on the client's id: the second of two with the same id gets the answer of the first.
    let keyed = move |asked: &Asked| match asked.body.get("rid") {
        Some(_) => Reply::Text(asked.foreign().unwrap_or_else(|| asked.copied())),
        None => careful(asked),
    };
    let report_ = report(Form::Gzip, &[Suite::Retry], &known(), keyed).await;
    assert!(
        kinds(&report_).contains(&Kind::Leak),
        "{}",
        report::table(&report_)
    );
}

/// Pages that are mixed up between requests of one tenant cross no boundary, and are a fault.
#[tokio::test]
async fn another_request_of_the_same_tenant_is_a_mixup() {
    let script = |asked: &Asked| {
        let same = asked.before.iter().rev().find(|(key, _)| *key == asked.key);
        let words = same.map(|(_, prompt)| prompt.split_whitespace().take(9).collect::<Vec<_>>());
        Reply::Text(words.unwrap_or_default().join(" "))
    };
    let url = serve(Form::Plain, |it| it, script).await;
    let run = ProbeRun::new(two(&url), SEED, budget());
    for _ in 0..3 {
        run.ask("load", Question::new(Tenant(0), 4)).await.unwrap();
    }
    let kinds: Vec<_> = run.findings().iter().map(|it| it.kind).collect();
    assert_eq!(kinds, [Kind::Mixup; 2]);
}

/// A tenant whose key is refused, or that never sees its own canary, is not covered by a clean run.
#[tokio::test]
async fn every_tenant_needs_its_positive_control() {
    let script = |asked: &Asked| match asked.key.contains("key-of-b") {
        true => Reply::Error(401, "who are you?"),
        false => honest(asked),
    };
    let report = report(Form::Plain, &[Suite::Abort], &known(), script).await;
    assert_eq!(report.verdict(), ProbeVerdict::CouldNotTell);
    let table = report::table(&report);
    assert!(
        table.contains("no answer to tenant B was long enough"),
        "{table}"
    );
}

#[tokio::test]
async fn a_server_that_is_not_there_is_not_clean() {
    let run = ProbeRun::new(two("http://127.0.0.1:9"), SEED, budget());
    let stopped = Suite::Load.run(&run, &known()).await.err();
    let report = ProbeReport::new("x".into(), SEED, &run, vec![(Suite::Load, stopped)]);
    assert_eq!(report.verdict(), ProbeVerdict::CouldNotTell);
    assert!(report::table(&report).contains("connections were refused or broken"));
}
