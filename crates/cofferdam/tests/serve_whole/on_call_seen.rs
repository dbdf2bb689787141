//! What an operator sees of it without a person at the page: figures, what is under way, what canaries
//! may cost, who may come in.

use crate::on_call::{OnCall, TRUE_POOL, free_port, pair, prompt, started};
use scripted::{Act, Rule, Script};
use serde_json::{Value, json};
use std::time::Instant;
use testkit::Api;
use testkit::crowd::COMPLETIONS;
use testkit::process::wait_for;

impl OnCall {
    /// The value of a series of the public metrics; none if it is not there.
    fn metric(&self, series: &str) -> Option<u64> {
        let page = self.api.get("/metrics");
        let page = String::from_utf8(page.body).unwrap();
        let mut lines = page
            .lines()
            .filter_map(|it| it.strip_prefix(series)?.strip_prefix(' '));
        lines.next().map(|it| it.parse().unwrap())
    }
}

#[test]
fn canaries_doors_and_incidents_have_figures() {
    let (runtime, fleet) = started(pair(TRUE_POOL, 1));
    let it = OnCall::start(&fleet, runtime, "", &["--canaries"]);
    wait_for("a finding", || {
        (it.metric("cofferdam_incidents_open") == Some(1)).then_some(())
    });
    let model = "cofferdam_restricted{scope=\"model copying-c1024\",access=\"private\"}";
    assert_eq!(it.metric(model), Some(1));
    let lost = it.metric("cofferdam_signals_total{signal=\"canary_lost\"}");
    assert!(lost >= Some(1), "{lost:?}");
    assert_eq!(
        it.metric("cofferdam_signals_total{signal=\"guard_refusal\"}"),
        Some(0)
    );
    let of = |what: &str| {
        it.metric(&format!("cofferdam_canaries_total{{of=\"{what}\"}}"))
            .unwrap()
    };
    assert!(
        of("found") >= 1 && of("own") > 0,
        "{} {}",
        of("found"),
        of("own")
    );
    assert!(of("sent") >= of("telling") && of("telling") > of("own"));
    assert!(it.metric("cofferdam_canary_tokens_total").unwrap() > TRUE_POOL);
    assert!(
        it.metric("cofferdam_canaries_exclude_one_in{window=\"hour\"}")
            .unwrap()
            > 1
    );
    assert_eq!(it.metric("cofferdam_canaries_paused"), Some(0));
    assert_eq!(it.metric("cofferdam_journal_in_trouble"), Some(0));
    assert_eq!(
        it.metric("cofferdam_journal_lost_total{of=\"entries\"}"),
        Some(0)
    );
    it.gateway.stop();
}

/// Without canaries they have no figures: an alert on zero would never be quiet.
#[test]
fn what_is_not_there_has_no_figures() {
    let (runtime, fleet) = started(pair(0, 1));
    let it = OnCall::start(&fleet, runtime, "", &[]);
    assert_eq!(it.metric("cofferdam_incidents_open"), Some(0));
    assert_eq!(it.metric("cofferdam_canaries_total{of=\"sent\"}"), None);
    assert_eq!(it.metric("cofferdam_canaries_paused"), None);
    it.gateway.stop();
}

#[test]
fn what_is_under_way_stands_on_the_page() {
    let (runtime, fleet) = started(pair(0, 1));
    let it = OnCall::start(&fleet, runtime, "", &["--settle=100ms", "--linger=1s"]);
    let urls = ["prefill", "decode"].map(|name| fleet.url(name));
    for (silent, stage) in [("prefill", "prefill"), ("decode", "handover")] {
        fleet.script(Script::new([Rule::new(Act::Hang).on(silent)]));
        let body = json!({"prompt": prompt(40, 0), "max_tokens": 2});
        let client = it
            .api
            .with_key("key-red")
            .begin(COMPLETIONS, &body)
            .unwrap();
        let state = wait_for(stage, || {
            let state = it.state();
            (state["running"]["handoffs"][0]["stage"] == stage).then_some(state)
        });
        let handoff = &state["running"]["handoffs"][0];
        assert_eq!(json!([handoff["prefill"], handoff["decode"]]), json!(urls));
        let ago = state["at_ms"].as_u64().unwrap() - handoff["since_ms"].as_u64().unwrap();
        assert!(ago < 600_000, "{handoff}");
        assert_eq!(state["running"]["requests"], 1);
        let running = |state: &Value| {
            let engines = state["engines"].as_array().unwrap().clone();
            engines
                .iter()
                .map(|it| it["running"].as_u64().unwrap())
                .collect::<Vec<_>>()
        };
        assert_eq!(running(&state), [1, 1]);
        drop(client); // it leaves
        wait_for("nothing", || {
            let state = it.state();
            let none = state["running"]["handoffs"] == json!([]);
            (none && running(&state) == [0, 0]).then_some(())
        });
    }
    it.gateway.stop();
}

/// A budget is one: not even short steps go beyond it.
#[test]
fn canaries_cost_no_more_than_they_may() {
    let (runtime, fleet) = started(pair(0, 1));
    let words = ["--canaries", "--canary-tokens=1000"];
    let it = OnCall::start(&fleet, runtime, "", &words);
    wait_for("the end of the budget", || {
        let paused = it.state()["canaries"]["paused"].take();
        (paused == "their tokens of this minute are spent").then_some(())
    });
    // A step each 5 ms would be many while this asks so often; their budget has one each 15 s.
    let (sent, began) = (it.state()["canaries"]["sent"].as_u64(), Instant::now());
    for _ in 0..50 {
        it.state();
    }
    let more = it.state()["canaries"]["sent"].as_u64().unwrap() - sent.unwrap();
    assert!(
        more <= 2 * (1 + began.elapsed().as_secs() / 15),
        "{more} more"
    );
    let spent = it.metric("cofferdam_canary_tokens_total").unwrap();
    // The last step may have been dearer than it looked.
    assert!((500..5_000).contains(&spent), "{spent}");
    assert_eq!(it.metric("cofferdam_canaries_paused"), Some(1));
    it.gateway.stop();
}

/// Nor beyond their share of what clients ask for; what they never reach then is said.
#[test]
fn canaries_cost_no_more_than_their_share_of_the_load() {
    let (runtime, fleet) = started(pair(0, 1));
    let words = ["--canaries", "--canary-percent=2"];
    let it = OnCall::start(&fleet, runtime, "", &words);
    let canaries = wait_for("what is not tested", || {
        let canaries = it.state()["canaries"].clone();
        canaries["untested"].is_string().then_some(canaries)
    });
    let a_minute = &canaries["tokens_minute"];
    assert_eq!(a_minute, 250, "nobody asks: a short step a minute");
    let untested = canaries["untested"].as_str().unwrap();
    let says = "prompts at the limit are not tested: a step there costs about ";
    assert!(untested.starts_with(says), "{untested}");
    it.gateway.stop();
}

/// An operator who is not named any more is out, without a restart.
#[test]
fn operators_come_and_go_by_their_file() {
    let (runtime, fleet) = started(pair(0, 1));
    let it = OnCall::start(&fleet, runtime, "", &[]);
    it.state();
    let berta = "key-of-berta-who-is-on-call";
    let keys = it.dir.path().join("admin");
    let hang_up = || it.gateway.signal(rustix::process::Signal::HUP);
    std::fs::write(&keys, "berta short\n").unwrap();
    hang_up();
    wait_for("a refusal", || {
        let series = "cofferdam_reloads_total{what=\"admin-keys\",result=\"refused\"}";
        (it.metric(series)? >= 1).then_some(())
    });
    it.state();
    std::fs::write(&keys, format!("berta {berta}\n")).unwrap();
    hang_up();
    let other = Api {
        key: Some(berta.to_owned()),
        ..it.admin.clone()
    };
    wait_for("the other one", || {
        (other.get("/state").status == 200).then_some(())
    });
    assert_eq!(it.admin.get("/state").status, 401);
    it.gateway.stop();
}

/// A leak that comes by chance has no length: then everybody may have met it.
#[test]
fn a_leak_by_chance_may_have_met_everybody() {
    let (runtime, fleet) = started(pair(0, 1));
    let it = OnCall::start(&fleet, runtime, "", &["--canaries"]);
    for length in [40, 200, 500] {
        it.ask("key-red", &prompt(length, 0)).good();
    }
    // Two answers of fifty: one pair of them need not meet a canary that tells lengths apart.
    for n in 0..40 {
        let mut chance = Rule::new(Act::OtherText).on("decode");
        (chance.from, chance.times) = (40 + 50 * n, Some(2));
        fleet.rule(chance);
    }
    let incident = wait_for("who is affected", || {
        let incident = it.state()["incidents"][0].clone();
        (incident["affected"].is_number()).then_some(incident)
    });
    assert_eq!(incident["affected"], 3, "{incident}");
    let how = "3 requests of red (3) may have been answered wrongly: answered by these lives to prompts of any length,";
    assert!(incident["actions"].to_string().contains(how), "{incident}");
    let kinds = incident["actions"].to_string();
    assert!(!kinds.contains("it shows from prompts of"), "{incident}");
    it.gateway.stop();
}

/// Engines that come up late are not left alone for a whole interval.
#[test]
fn the_first_canary_does_not_wait_for_its_turn() {
    let (runtime, fleet) = started(pair(0, 1));
    let engines = ["prefill", "decode"];
    runtime.block_on(async {
        for name in engines {
            fleet.kill(name).await;
        }
    });
    // It says where it is only when somebody can be asked.
    let port = format!("--port={}", free_port());
    let words = ["--canaries", "--canary-every=1h", &port];
    let it = OnCall::start(&fleet, runtime, "", &words);
    wait_for("that nobody is there", || {
        let state = it.admin.try_get("/state").ok()?.good()["state"].take();
        state["canaries"]["paused"].is_string().then_some(())
    });
    it.revive(&fleet, &engines);
    wait_for("canaries", || {
        let state = it.state();
        assert_eq!(state["incidents"], json!([]));
        (state["canaries"]["sent"].as_u64() >= Some(2)).then_some(())
    });
    it.gateway.stop();
}
