//! Decode can make no landing arena for a while: the system lets it have files of no such size, and
//! then does again.

use crate::{ATTACK, model, questions};
use faults::{Answer, HASTY, Plan, Site, counter, held_arenas};
use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use testkit::process::{send, wait_for};

/// The largest file that this process can make, memory files included.
fn limit_files(pid: u32, bytes: Option<u64>) {
    let pid = Pid::from_raw(pid.try_into().expect("a process id"));
    let none = Rlimit {
        current: None,
        maximum: None,
    };
    let limit = Rlimit {
        current: bytes,
        ..none
    };
    prlimit(pid, Resource::Fsize, limit).expect("ours to limit");
}

fn decode(site: &Site) -> Value {
    let info = site.info();
    let mut workers = info["workers"].as_array().expect("workers").iter();
    let decode = workers.find(|it| it["role"] == "decode");
    decode.expect("one decode").clone()
}

#[test]
fn a_decode_that_can_make_no_arena_says_so_and_is_back_by_itself() {
    let asked = questions(2, false);
    // Whoever would exceed the limit gets an error, and not a signal that ends it.
    let scripts = tempfile::tempdir().unwrap();
    let program = scripts.path().join("attack");
    let text = format!("#!/bin/sh\ntrap '' XFSZ\nexec '{ATTACK}' \"$@\"\n");
    std::fs::write(&program, text).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).unwrap();
    let site = Site::start(&Plan {
        program,
        model: model(),
        words: HASTY.map(str::to_owned).to_vec(),
        faults: "".parse().unwrap(),
        seed: 7,
    });
    site.rest(1);
    let (question, alone) = &asked[0];
    assert_eq!(question.ask(&site.api), Answer::Whole(alone.clone()));

    // The next life of prefill needs an arena as large as the one that there is.
    let pid = site.running.part("decode");
    let (held, _) = &held_arenas(pid)[0];
    limit_files(pid, Some(std::fs::metadata(held).unwrap().len() - 1));
    send(site.running.part("prefill"), Signal::KILL);
    let why = wait_for("it is not ready, and tries again and again", || {
        let decode = decode(&site);
        let readiness = &decode["readiness"];
        let tried = counter(&decode, "arenas_failed");
        (tried >= 3 && readiness["state"] != "ready").then(|| readiness.to_string())
    });
    assert!(why.contains("no landing arena could be made"), "{why}");
    assert_eq!(site.running.part("decode"), pid, "the same life");
    let ready = site.api.get("/readyz");
    assert_eq!((ready.status, ready.error().0), (503, "unavailable".into()));
    let metrics = String::from_utf8(site.api.get("/metrics").body).unwrap();
    let counted = metrics.lines().find(|line| {
        line.contains("arenas_failed") && line.contains("decode-0") && !line.starts_with('#')
    });
    let counted = counted.and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
    assert!(counted.is_some_and(|n| n >= 3), "{metrics}");
    let refused = question.ask(&site.api);
    assert!(matches!(refused, Answer::Error(503, ..)), "{refused:?}");

    // Nobody is told that there is room again.
    limit_files(pid, None);
    site.ready();
    for (question, alone) in &asked {
        assert_eq!(question.ask(&site.api), Answer::Whole(alone.clone()));
    }
    assert_eq!(site.running.part("decode"), pid, "the same life");
    site.rest(1);
    let ended = site.running.stop();
    assert!(ended.status.success() && ended.left.is_empty(), "{ended:?}");
}
