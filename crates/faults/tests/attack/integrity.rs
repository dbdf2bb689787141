//! Integrity faults as a family: each kind, injected into real processes, has its own code, its own
//! counter and its own audit record, is tried once more with new ids, and lets no token out.

use crate::{attacked, questions};
use faults::{Answer, Site, counter, found_again};
use rustix::process::Signal;
use serde_json::Value;
use std::time::Duration;
use testkit::process::{send, wait_for};

/// The fault that is injected, and the name under which it is found.
const KINDS: [(&str, &str); 13] = [
    ("wrong-tokens", "wrong_tokens"),
    ("wrong-tag", "wrong_tag"),
    ("wrong-order", "wrong_order"),
    ("wrong-fill", "wrong_fill"),
    ("wrong-checksum", "wrong_checksum"),
    ("corrupt", "wrong_checksum"),
    ("drop", "wrong_checksum"),
    ("page-twice", "page_twice"),
    ("bad-batch", "bad_batch"),
    ("missing-page", "missing_page"),
    ("short-count", "short_count"),
    ("first-token", "first_token"),
    ("wrong-arena", "wrong_arena"),
];

/// Lines of the audit log about integrity faults, of this role.
fn faults(site: &Site, role: &str) -> Vec<Value> {
    let of = |line: &Value| line["event"] == "integrity_fault" && line["role"] == role;
    site.audit().into_iter().filter(of).collect()
}

/// Law: the reader verifies. The first attempt of each life meets the fault; the retry is right.
#[test]
fn each_kind_is_found_counted_written_down_and_tried_once_more() {
    let asked = questions(1, false);
    let (question, alone) = &asked[0];
    for (inject, kind) in KINDS {
        let site = attacked(&format!("{inject}@1"), &[]);
        let answer = question.ask(&site.api);
        assert_eq!(answer, Answer::Whole(alone.clone()), "{inject}");
        let info = site.rest(1);
        let counted = counter(&info, &format!("integrity_{kind}"));
        assert_eq!(counted, 1, "{inject}: {info:#}");
        let metrics = site.api.get("/metrics").body;
        let metrics = String::from_utf8(metrics).unwrap();
        let series = format!("cofferdam_integrity_{kind}_total{{role=\"gateway\"}} 1");
        assert!(
            metrics.contains(&series),
            "{inject}: no {series} in {metrics}"
        );
        assert_eq!(counter(&info, "attempts_announced"), 2, "{inject}");

        let (gateway, decode) = (faults(&site, "gateway"), faults(&site, "decode"));
        assert_eq!((gateway.len(), decode.len()), (1, 1), "{inject}");
        let (told, found) = (&gateway[0], &decode[0]);
        assert_eq!(told["kind"], kind);
        assert_eq!(found["kind"], kind);
        assert_eq!(told["attempt"], found["attempt"], "{inject}: one attempt");
        assert_eq!(told["retried"], true, "{told}");
        assert!(
            told["request"].is_string() && told["prefill_epoch"].is_string(),
            "{told}"
        );
        assert_eq!(told["decode_epoch"], found["epoch"], "{inject}: one life");
        if kind != "wrong_tokens" {
            assert_eq!(told["prefill_epoch"], found["prefill_epoch"], "{found}");
            let granted = found["granted_tags"].as_array().expect("tags");
            assert_eq!(granted.len(), 38, "600 tokens in pages of 16: {found}");
            let stated = &found["stated_tag"];
            match kind {
                "wrong_tag" => assert!(!stated.is_null() && !granted.contains(stated), "{found}"),
                "wrong_order" => assert!(granted.contains(stated), "{found}"),
                _ => {}
            }
        }
        let ended = site.running.stop();
        assert!(ended.status.success() && ended.left.is_empty(), "{ended:?}");
    }
}

/// If the retry meets it again the client is told which it was, and never gets a 200.
#[test]
fn each_kind_has_its_own_code() {
    for stream in [false, true] {
        let asked = questions(1, stream);
        let (question, _) = &asked[0];
        for (inject, kind) in KINDS.into_iter().skip(usize::from(stream)).step_by(2) {
            let site = attacked(&format!("{inject}=1000"), &[]);
            let Answer::Error(status, code, message) = question.ask(&site.api) else {
                panic!("{inject} was not refused");
            };
            assert_eq!(
                (status, code.as_str()),
                (502, &*format!("integrity_{kind}"))
            );
            assert!(!message.is_empty());
            let told = faults(&site, "gateway");
            let retried: Vec<_> = told.iter().map(|line| line["retried"] == true).collect();
            let expected = [true, false];
            assert_eq!(retried, expected, "{inject}: one retry and no second one");
            let info = site.rest(1);
            let workers = info["workers"].as_array().unwrap();
            let sampled: u64 = workers
                .iter()
                .filter(|worker| worker["role"] == "decode")
                .map(|worker| counter(worker, "sampled_tokens"))
                .sum();
            assert_eq!(sampled, 0, "{inject}: nothing was generated over it (H-9)");
        }
    }
}

/// A check of a block table that fails ends the worker with the evidence. A stream that has begun
/// ends with an error event and without `[DONE]`; the next life serves.
#[test]
fn a_step_time_check_that_fails_ends_the_worker_and_the_stream() {
    let asked = questions(1, true);
    let (question, alone) = &asked[0];
    // The prompt's 38 entries are looked at once, then those that a step writes.
    let site = attacked("step-check@45", &["--peer-deadline=1s"]);
    let answer = question.ask(&site.api);
    assert_eq!(answer, Answer::BrokenOff("integrity_fail_stop".into()));
    let stops: Vec<Value> = site
        .audit()
        .into_iter()
        .filter(|line| line["event"] == "fail_stop")
        .collect();
    assert_eq!(stops.len(), 1);
    assert_eq!(stops[0]["role"], "decode");
    let evidence = stops[0]["evidence"].as_str().unwrap();
    assert!(evidence.contains("a page of another owner"), "{evidence}");
    site.ready();
    let mut short = question.clone();
    short.body["max_tokens"] = 1.into();
    let Answer::Whole(choices) = short.ask(&site.api) else {
        panic!("the next life answers");
    };
    assert_eq!(choices[0].tokens[0], alone[0].tokens[0]);
}

/// A gateway whose machine has stopped would answer like one that drains, for ever: it ends instead,
/// with the reason, and another is started.
#[test]
fn a_gateway_whose_machine_has_stopped_ends_and_another_answers() {
    let asked = questions(1, false);
    let (question, alone) = &asked[0];
    let port = found_again();
    // A request is judged before it is taken on, and when its pair is chosen.
    let site = attacked("gateway-panic@3", &[&port]);
    let before = site.running.part("gateway");
    assert_eq!(question.ask(&site.api), Answer::Whole(alone.clone()));
    let lost = question.ask(&site.api);
    assert!(matches!(lost, Answer::Error(500.., ..)), "{lost:?}");
    let why = "gateway cannot go on: fail-stop: the task of the request machine has panicked";
    site.running
        .line_from(0, "why it ended", |line| line.ends_with(why).then_some(()));
    wait_for("another gateway", || {
        let parts = site.running.parts();
        let new = |(pid, kind): &(u32, String)| kind == "gateway" && *pid != before;
        parts.iter().any(new).then_some(())
    });
    site.ready();
    assert_eq!(question.ask(&site.api), Answer::Whole(alone.clone()));
}

/// A ticket is of one life of decode: what was stated and certified under it is worth nothing to
/// another one (law: identity is ours).
#[test]
fn what_was_stated_to_an_earlier_life_is_refused_by_another() {
    let asked = questions(2, false);
    let site = attacked("replay@1", &["--peer-deadline=1s"]);
    let (question, alone) = &asked[0];
    assert_eq!(question.ask(&site.api), Answer::Whole(alone.clone()));
    send(site.running.part("decode"), Signal::KILL);
    // The life that has died is told apart from the next one by being away.
    wait_for("the gateway misses it", || {
        (site.api.get("/readyz").status == 503).then_some(())
    });
    site.ready();
    site.board.hold("refused");
    let (question, alone) = &asked[1];
    std::thread::scope(|scope| {
        let answer = scope.spawn(|| question.ask(&site.api));
        let refused = site.board.held(Duration::from_secs(60));
        site.board.release();
        assert!(refused.is_some(), "the other life's statement was made");
        assert_eq!(answer.join().unwrap(), Answer::Whole(alone.clone()));
    });
    let info = site.rest(1);
    for worker in info["workers"].as_array().unwrap() {
        for count in ["integrity_faults", "dropped_grants"] {
            assert_eq!(counter(worker, count), 0, "{count}: {worker:#}");
        }
    }
    assert_eq!(counter(&info, "attempts_announced"), 2, "{info:#}");
}

/// No line of the audit log has anything of a prompt or an answer in it.
#[test]
fn the_audit_log_has_no_text() {
    let asked = questions(3, false);
    let site = attacked("wrong-tag@1,corrupt@8", &[]);
    for (question, alone) in &asked {
        assert_eq!(question.ask(&site.api), Answer::Whole(alone.clone()));
    }
    let keys = [
        "time_unix_s",
        "event",
        "kind",
        "role",
        "epoch",
        "request",
        "attempt",
        "handoff",
        "prefill_epoch",
        "decode_epoch",
        "stated_tag",
        "granted_tags",
        "arena",
        "evidence",
        "retried",
    ];
    let audit = site.audit();
    assert!(audit.len() >= 4, "{audit:?}");
    for line in audit {
        for key in line.as_object().unwrap().keys() {
            assert!(keys.contains(&key.as_str()), "{key} in {line}");
        }
    }
}
