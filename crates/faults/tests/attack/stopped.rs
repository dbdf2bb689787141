//! A prefill worker that is stopped in mid-transfer and continued when everybody has given it up:
//! what it still writes is seen in the dropped arena and nowhere else.

use crate::{attacked, questions};
use faults::{Answer, HASTY, Question, Site, counter, held_arenas, mapped_arenas};
use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;
use testkit::crowd::COMPLETIONS;
use testkit::process::{send, wait_for};

/// The worker of this name in `/server_info`.
fn named<'a>(info: &'a Value, role: &str, name: &str) -> &'a Value {
    let mut workers = info["workers"].as_array().expect("workers").iter();
    let found = workers.find(|it| it["role"] == role && it["name"] == name);
    found.unwrap_or_else(|| panic!("no {name}: {info:#}"))
}

fn content(arena: &File) -> Vec<u8> {
    let len = arena.metadata().unwrap().len() as usize;
    let mut bytes = vec![0; len];
    arena.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

/// The arena that decode lends to this process, through a descriptor of our own.
fn arena_of(site: &Site, prefill: u32) -> File {
    let lent: BTreeSet<u64> = mapped_arenas(prefill).into_iter().collect();
    assert_eq!(lent.len(), 1, "one arena for each life of a writer");
    let decode = site.running.part("decode");
    let held = held_arenas(decode);
    let (path, _) = held
        .iter()
        .find(|(_, inode)| lent.contains(inode))
        .expect("lent by decode");
    File::open(path).expect("a child's descriptor can be opened")
}

/// What a client hears who asks again as long as it is told to. The deadlines are a second or less,
/// which a busy machine may miss without anybody being stopped; what is no clear error counts.
fn heard(site: &Site, question: &Question) -> Answer {
    wait_for("an answer", || {
        let answer = question.ask(&site.api);
        (!matches!(answer, Answer::Error(502..=504, ..))).then_some(answer)
    })
}

#[test]
fn late_writes_of_a_stopped_prefill_land_in_the_dropped_arena_and_nowhere_else() {
    let asked = questions(5, false);
    let words: Vec<&str> = HASTY.into_iter().chain(["--prefill=2"]).collect();
    let site = attacked("half@1", &words);
    site.rest(2);
    site.board.hold("half-written");

    // Half of the first batch is written when the writer is stopped.
    let body = asked[0].0.body.clone();
    let pending = site.api.begin(COMPLETIONS, &body).unwrap();
    let half = site
        .board
        .held(Duration::from_secs(60))
        .expect("a batch is half written");
    let stopped = half.pid;
    let arena = arena_of(&site, stopped);
    send(stopped, Signal::STOP);
    let at_the_stop = content(&arena);
    assert!(
        at_the_stop.iter().any(|byte| *byte != 0),
        "half of it has landed"
    );

    // Its client gives up. Decode asks for the ticket back, hears nothing, and drops the arena.
    drop(pending);
    let info = wait_for("the arena is dropped", || {
        let info = site.info();
        (counter(named(&info, "decode", "decode-0"), "fences") == 1).then_some(info)
    });
    let decode = named(&info, "decode", "decode-0");
    assert_eq!(counter(decode, "integrity_faults"), 0);
    // Health and metrics say so: the worker is not ready, and the arena is still mapped by somebody.
    let name = wait_for("the stopped worker is not ready", || {
        let info = site.info();
        let workers = info["workers"].as_array()?.iter();
        let mut away =
            workers.filter(|it| it["role"] == "prefill" && it["readiness"]["state"] != "ready");
        away.next()
            .map(|it| it["name"].as_str().unwrap().to_owned())
    });
    wait_for(
        "the dropped arena is counted while its writer maps it",
        || {
            let info = site.info();
            let arenas = &named(&info, "decode", "decode-0")["quarantine"]["arenas"];
            (arenas["count"] == 1 && arenas["oldest_ms"].as_u64()? > 0).then_some(())
        },
    );
    let metrics = String::from_utf8(site.api.get("/metrics").body).unwrap();
    let away = format!("cofferdam_worker_ready{{role=\"prefill\",worker=\"{name}\"}} 0");
    assert!(metrics.contains(&away), "{metrics}");
    let held = "cofferdam_quarantined{role=\"decode\",worker=\"decode-0\",reason=\"arenas\"} 1";
    assert!(metrics.contains(held), "{metrics}");
    assert_eq!(site.api.get("/readyz").status, 200, "the other one serves");

    // New requests run.
    for (question, alone) in &asked[1..3] {
        assert_eq!(heard(&site, question), Answer::Whole(alone.clone()));
    }
    assert_eq!(
        content(&arena),
        at_the_stop,
        "nobody writes while its writer is stopped"
    );

    // It continues, and writes the other half.
    send(stopped, Signal::CONT);
    site.board.release();
    wait_for("the late half is seen in the dropped arena", || {
        (content(&arena) != at_the_stop).then_some(())
    });
    for (question, alone) in &asked {
        assert_eq!(heard(&site, question), Answer::Whole(alone.clone()));
    }
    let info = site.rest(2);
    assert_eq!(
        named(&info, "prefill", &name)["readiness"]["state"],
        "ready",
        "it is back"
    );
    for worker in info["workers"].as_array().unwrap() {
        for count in ["integrity_faults", "dropped_grants", "malformed_messages"] {
            assert_eq!(counter(worker, count), 0, "{count}: {worker:#}");
        }
    }
    let ended = site.running.stop();
    assert!(ended.status.success() && ended.left.is_empty(), "{ended:?}");
}

/// The same with decode stopped, alone or together with its writer: clients hear of it or are
/// answered by others, and nothing of what it held is missing when it is back.
#[test]
fn a_stopped_decode_costs_nobody_an_answer_that_is_wrong() {
    let asked = questions(4, true);
    for both in [false, true] {
        let words: Vec<&str> = HASTY
            .into_iter()
            .chain(["--request-deadline=30s"])
            .collect();
        let site = attacked("half@1", &words);
        site.board.hold("half-written");
        let decode = site.running.part("decode");
        let pending = site.api.begin(COMPLETIONS, &asked[0].0.body).unwrap();
        let half = site.board.held(Duration::from_secs(60));
        let prefill = half.expect("a batch is half written").pid;
        let stopped = [decode, prefill];
        let stopped = &stopped[..1 + usize::from(both)];
        stopped.iter().for_each(|pid| send(*pid, Signal::STOP));
        drop(pending);
        site.board.release();
        wait_for("the gateway says so", || {
            let reply = site.api.get("/readyz");
            (reply.status == 503 && reply.error().0 == "unavailable").then_some(())
        });
        assert!(matches!(asked[1].0.ask(&site.api), Answer::Error(503, ..)));
        stopped.iter().for_each(|pid| send(*pid, Signal::CONT));
        site.ready();
        for (question, alone) in &asked {
            assert_eq!(question.ask(&site.api), Answer::Whole(alone.clone()));
        }
        site.rest(1);
    }
}

/// Over TCP there is nothing left to write into: the fence has joined the tasks that applied the
/// writer's bytes, and what it sends when it goes on finds no socket.
#[test]
fn late_writes_of_a_stopped_prefill_are_refused_over_tcp() {
    let asked = questions(4, false);
    let words: Vec<&str> = HASTY
        .into_iter()
        .chain(["--prefill=2", "--fabric=tcp"])
        .collect();
    let site = attacked("half@1", &words);
    site.rest(2);
    site.board.hold("half-written");
    let pending = site.api.begin(COMPLETIONS, &asked[0].0.body).unwrap();
    let half = site.board.held(Duration::from_secs(60));
    let stopped = half.expect("a batch is half written").pid;
    send(stopped, Signal::STOP);
    drop(pending);
    wait_for("the arena is dropped", || {
        let info = site.info();
        (counter(named(&info, "decode", "decode-0"), "fences") == 1).then_some(())
    });
    // Until the gateway misses it, requests may still be given to it.
    wait_for("the stopped worker is not ready", || {
        let info = site.info();
        let mut workers = info["workers"].as_array()?.iter();
        let away = workers.any(|it| it["role"] == "prefill" && it["readiness"]["state"] != "ready");
        away.then_some(())
    });
    site.ready();
    for (question, alone) in &asked[1..] {
        assert_eq!(question.ask(&site.api), Answer::Whole(alone.clone()));
    }
    // What a worker says of itself may be a moment old.
    let before = wait_for("all three are counted", || {
        let info = site.info();
        let decode = named(&info, "decode", "decode-0");
        (counter(decode, "attempts_finished") == 3).then(|| counter(decode, "batches"))
    });
    assert!(before > 0);
    send(stopped, Signal::CONT);
    site.board.release();
    let info = site.rest(2);
    let decode = named(&info, "decode", "decode-0");
    assert_eq!(counter(decode, "batches"), before, "nothing late was taken");
    for worker in info["workers"].as_array().unwrap() {
        for count in ["integrity_faults", "dropped_grants", "malformed_messages"] {
            assert_eq!(counter(worker, count), 0, "{count}: {worker:#}");
        }
    }
    site.ready();
    for (question, alone) in &asked {
        assert_eq!(question.ask(&site.api), Answer::Whole(alone.clone()));
    }
}
