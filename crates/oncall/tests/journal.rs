//! The journal under fire: processes that are killed, disks that are full, hands that change it.

use oncall::chain::Verifier;
use oncall::entry::Dated;
use oncall::journal::{Bounds, Journal, JournalError, drawn};
use oncall::{AFTER_TEXT, Canaried, Entry, Life, Recorder, Served};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

fn noted(text: &str) -> Dated {
    Dated {
        at: 1_796_163_903_120,
        entry: Entry::Noted {
            incident: "i".into(),
            text: text.into(),
            by: "anna".into(),
        },
    }
}

fn named(text: &str) -> (String, Dated) {
    (drawn().unwrap(), noted(text))
}

fn open(path: &Path) -> Journal {
    Journal::open(path, Bounds::default()).unwrap()
}

fn texts(journal: &Journal) -> Vec<String> {
    let (entries, _) = journal.read().unwrap();
    let text = |(_, dated): (u64, Dated)| match dated.entry {
        Entry::Noted { text, .. } => text,
        other => panic!("{other:?}"),
    };
    entries.into_iter().map(text).collect()
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(
            begin.elapsed() < Duration::from_secs(60),
            "{what} never came"
        );
        std::thread::yield_now();
    }
}

/// Not a test of its own: what [`what_was_confirmed_is_there_after_a_kill`] kills.
#[test]
fn writes_until_it_is_killed() {
    let Some(path) = std::env::var_os("ONCALL_TEST_JOURNAL") else {
        return;
    };
    let mut journal = open(Path::new(&path));
    for n in 0_u64.. {
        journal.append(&[named(&n.to_string())]).unwrap();
        println!("wrote {n}");
    }
}

#[test]
fn what_was_confirmed_is_there_after_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    for round in 0..12 {
        let path = dir.path().join(format!("{round}.db"));
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "writes_until_it_is_killed", "--nocapture"])
            .env("ONCALL_TEST_JOURNAL", &path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut confirmed = 0;
        for line in lines.map_while(Result::ok) {
            if line.contains("wrote ") {
                confirmed += 1;
            }
            // At another moment each time: between two writes, and in the middle of one.
            if confirmed == 1 + round * 3 {
                break;
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let texts = texts(&open(&path));
        let expected: Vec<_> = (0..texts.len()).map(|n| n.to_string()).collect();
        assert_eq!(texts, expected, "nothing lost, nothing twice, in order");
        assert!(texts.len() >= confirmed, "{} of {confirmed}", texts.len());
    }
}

#[test]
fn processes_write_into_one_chain() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("j.db");
    let writers: Vec<_> = (0..4)
        .map(|who| {
            let path = path.clone();
            std::thread::spawn(move || {
                let mut journal = open(&path);
                for n in 0..25 {
                    journal.append(&[named(&format!("{who} {n}"))]).unwrap();
                }
            })
        })
        .collect();
    writers.into_iter().for_each(|it| it.join().unwrap());
    let mut texts = texts(&open(&path));
    assert_eq!(texts.len(), 100);
    texts.sort();
    texts.dedup();
    assert_eq!(texts.len(), 100);
}

#[test]
fn what_is_written_again_is_not_written_twice() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = open(&dir.path().join("j.db"));
    let batch = [named("a"), named("b")];
    let first = journal.append(&batch).unwrap();
    assert_eq!(journal.append(&batch).unwrap(), first);
    assert_eq!(texts(&journal), ["a", "b"]);
}

#[test]
fn one_gateway_keeps_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("j.db");
    let mut first = open(&path);
    first.keep().unwrap();
    let mut second = open(&path);
    assert!(matches!(second.keep(), Err(JournalError::Kept(_))));
    second
        .append(&[named("a person writes all the same")])
        .unwrap();
    drop(first);
    second.keep().unwrap();
}

#[test]
fn what_is_no_journal_is_not_touched() {
    let dir = tempfile::tempdir().unwrap();
    let text = dir.path().join("notes.txt");
    std::fs::write(
        &text,
        "these are notes, and long enough to have a header of 100 bytes, \
        which is where a database says what it is and whose",
    )
    .unwrap();
    let before = std::fs::read(&text).unwrap();
    assert!(matches!(
        Journal::open(&text, Bounds::default()),
        Err(JournalError::Foreign(_))
    ));
    assert_eq!(std::fs::read(&text).unwrap(), before);
    let other = dir.path().join("other.db");
    let connection = rusqlite::Connection::open(&other).unwrap();
    connection.execute_batch("CREATE TABLE mine(x)").unwrap();
    assert!(matches!(
        Journal::open(&other, Bounds::default()),
        Err(JournalError::Foreign(_))
    ));
    let missing = Journal::open_existing(&dir.path().join("none.db"), Bounds::default());
    assert!(matches!(missing, Err(JournalError::File { .. })));
}

#[test]
fn what_hands_change_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("j.db");
    let mut journal = open(&path);
    journal.append(&["a", "b", "c", "d"].map(named)).unwrap();
    let mut exported = Vec::new();
    let head = journal.export(&mut exported).unwrap();
    let lines: Vec<String> = exported.lines().map(Result::unwrap).collect();
    let verify = |lines: &[String]| {
        let mut verifier = Verifier::default();
        let done: Result<Vec<_>, _> = lines.iter().map(|it| verifier.next(it)).collect();
        done.map(|_| verifier.head().to_owned())
    };
    assert_eq!(verify(&lines).unwrap(), head);
    let mut changed = lines.clone();
    changed[1] = changed[1].replace("\"b\"", "\"x\"");
    assert_eq!(verify(&changed).unwrap_err().line, 3);
    // In the last line too, which no other names.
    for at in [1, 3] {
        let mut added = lines.clone();
        added[at] = added[at].replace("\"kind\"", "\"more\":1,\"kind\"");
        assert_eq!(verify(&added).unwrap_err().line, at as u64 + 1);
    }
    for left_out in 0..3 {
        let mut lines = lines.clone();
        lines.remove(left_out);
        assert_eq!(verify(&lines).unwrap_err().line, left_out as u64 + 1);
    }
    let mut moved = lines.clone();
    moved.swap(1, 2);
    assert!(verify(&moved).is_err());
    // What is missing at the end is told by the hash of the last line alone.
    assert_ne!(verify(&lines[..3]).unwrap(), head);
    // The file does not let itself be changed either, and if it is, it is seen.
    let connection = rusqlite::Connection::open(&path).unwrap();
    for change in [
        "UPDATE journal SET line = 'x' WHERE seq = 2",
        "DELETE FROM journal",
    ] {
        let refused = connection.execute(change, []).unwrap_err().to_string();
        assert!(refused.contains("never changed"), "{refused}");
    }
    connection
        .execute_batch(
            "DROP TRIGGER journal_changes;
             UPDATE journal SET line = replace(line, '\"b\"', '\"x\"') WHERE seq = 2",
        )
        .unwrap();
    assert!(matches!(open(&path).read(), Err(JournalError::Broken(_))));
}

fn served(n: u64) -> Served {
    Served {
        request: format!("r{n}"),
        at: n,
        tenant: if n.is_multiple_of(10) { "canary" } else { "t" }.into(),
        prompt_tokens: n,
        prefill: ("p".into(), "1".into()),
        decode: ("d".into(), (n % 2).to_string()),
        outcome: match n % 7 {
            0 => "client_left".into(),
            // With a part of the answer.
            1 => format!("client_left{AFTER_TEXT}"),
            _ => "ok".into(),
        },
    }
}

fn answered_by_p(journal: &Journal) -> Vec<String> {
    let lives = [Life {
        engine: "p".into(),
        life: "1".into(),
    }];
    journal.affected(&lives, 0, &[]).unwrap().requests
}

#[test]
fn the_affected_are_exactly_those() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = open(&dir.path().join("j.db"));
    journal
        .serve(&(0..100).map(served).collect::<Vec<_>>())
        .unwrap();
    let lives = [Life {
        engine: "d".into(),
        life: "1".into(),
    }];
    let met = journal.affected(&lives, 80, &["canary".into()]).unwrap();
    let expected = (80..100).filter(|n| n % 2 == 1 && n % 7 != 0 && n % 10 != 0);
    let expected: Vec<u64> = expected.collect();
    let named: Vec<_> = expected.iter().map(|n| format!("r{n}")).collect();
    assert_eq!((&met.requests, met.more), (&named, 0));
    assert_eq!(met.tenants, [("t".to_owned(), named.len() as u64)].into());
    assert_eq!(met.between, Some((expected[0], *expected.last().unwrap())));
}

#[test]
fn the_oldest_requests_go_and_the_journal_stays() {
    let dir = tempfile::tempdir().unwrap();
    let bounds = Bounds {
        bytes: 512 << 10,
        keep_ms: 1_000_000,
    };
    let path = dir.path().join("j.db");
    let mut journal = Journal::open(&path, bounds).unwrap();
    journal.append(&[named("first")]).unwrap();
    for batch in 0..60 {
        let rows = (batch * 500..(batch + 1) * 500).map(served);
        journal.serve(&rows.collect::<Vec<_>>()).unwrap();
    }
    assert!(std::fs::metadata(&path).unwrap().len() <= bounds.bytes);
    let kept = answered_by_p(&journal);
    assert!(kept.contains(&"r29999".to_owned()) && !kept.contains(&"r1".to_owned()));
    journal.append(&[named("last")]).unwrap();
    assert_eq!(texts(&journal), ["first", "last"]);
    journal.forget(29_999 + bounds.keep_ms).unwrap();
    let kept = answered_by_p(&journal);
    assert_eq!(kept, ["r29999"]);
}

#[test]
fn a_full_disk_loses_nothing_and_delays_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("j.db");
    let bounds = Bounds {
        bytes: 128 << 10,
        ..Bounds::default()
    };
    let recorder = Recorder::start(Journal::open(&path, bounds).unwrap(), 0, |_| {});
    let long = "x".repeat(2000);
    let begin = Instant::now();
    for n in 0..200 {
        recorder.entry(noted(&format!("{n} {long}")));
    }
    assert!(
        begin.elapsed() < Duration::from_secs(1),
        "nobody waits for it"
    );
    recorder.flush();
    let status = recorder.status();
    assert!(status.trouble.unwrap().contains("no room"), "it is said");
    assert!(status.pending > 0 && status.lost == 0);
    drop(recorder);
    // There is room again.
    let recorder = Recorder::start(open(&path), 0, |_| {});
    recorder.entry(noted("later"));
    recorder.flush();
    assert_eq!(recorder.status().trouble, None);
}

#[test]
fn what_could_not_be_written_is_written_when_there_is_room() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("j.db");
    let recorder = Recorder::start(open(&path), 0, |_| {});
    recorder.entry(noted("a"));
    recorder.flush();
    // Another process writes for longer than anybody waits for it.
    let mut other = rusqlite::Connection::open(&path).unwrap();
    let writing = other
        .transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)
        .unwrap();
    recorder.entry(noted("b"));
    until("the trouble", || recorder.status().trouble.is_some());
    assert_eq!(recorder.status().pending, 1);
    drop(writing);
    until("the end of it", || recorder.status().trouble.is_none());
    assert_eq!(texts(&open(&path)), ["a", "b"]);
}

#[test]
fn what_others_write_is_heard_and_ones_own_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("j.db");
    let heard = Arc::new(Mutex::new(Vec::new()));
    let ears = heard.clone();
    let recorder = Recorder::start(open(&path), 0, move |dated| {
        ears.lock().unwrap().push(dated)
    });
    recorder.entry(noted("mine"));
    recorder.flush();
    let mut other = open(&path);
    other.append(&[named("yours")]).unwrap();
    until("the other's words", || !heard.lock().unwrap().is_empty());
    recorder.entry(noted("mine again"));
    recorder.flush();
    assert_eq!(*heard.lock().unwrap(), [noted("yours")]);
}

#[test]
fn canaries_of_a_minute_are_added_up() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("j.db");
    let recorder = Recorder::start(open(&path), 0, |_| {});
    let one = Canaried {
        minute: 7,
        pair: "p d".into(),
        life: "1 1".into(),
        sent: 2,
        telling: 1,
        seen: 1,
        foreign: 0,
        tokens: 9,
    };
    for _ in 0..3 {
        recorder.canaried(one.clone());
        recorder.flush();
    }
    let read = open(&path).canaries(0).unwrap();
    assert_eq!((read.len(), read[0].sent, read[0].tokens), (1, 6, 27));
    assert!(open(&path).canaries(8).unwrap().is_empty());
}
