//! One of two decode workers is stopped under load: the other goes on serving, whoever was with the
//! stopped one hears a clear error or is answered by the other, and nothing waits for a request's own
//! deadline, which here is ten minutes.

use crate::{attacked, questions};
use faults::{Answer, HASTY, Question, Site};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use testkit::crowd::Choice;
use testkit::process::{send, wait_for};

const CLIENTS: usize = 16;

/// One request of the crowd.
struct Asked {
    which: usize,
    begun: Instant,
    ended: Instant,
    answer: Answer,
}

/// Whatever becomes of the test, the crowd is sent home.
struct SendHome<'a>(&'a AtomicBool);

impl Drop for SendHome<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Asks one question after the other until it is sent home.
fn ask_on(
    site: &Site,
    asked: &[(Question, Vec<Choice>)],
    first: usize,
    home: &AtomicBool,
    heard: &Mutex<Vec<Asked>>,
) {
    let mut turn = first;
    while !home.load(Ordering::Relaxed) {
        let which = turn % asked.len();
        turn += 1;
        let begun = Instant::now();
        let answer = asked[which].0.ask(&site.api);
        let ended = Instant::now();
        let one = Asked {
            which,
            begun,
            ended,
            answer,
        };
        heard.lock().unwrap().push(one);
    }
}

/// Decode workers that take requests, as the gateway sees them.
fn decodes_ready(site: &Site) -> usize {
    let info = site.info();
    let workers = info["workers"].as_array().expect("workers").iter();
    let ready = workers.filter(|it| it["role"] == "decode" && it["readiness"]["state"] == "ready");
    ready.count()
}

#[test]
fn a_stopped_decode_of_two_keeps_nobody_from_the_other() {
    let asked = [questions(3, false), questions(3, true)].concat();
    let words: Vec<&str> = HASTY
        .into_iter()
        .chain(["--decode=2", "--answer-deadline=3s"])
        .collect();
    let site = attacked("", &words);
    site.rest(2);
    wait_for("both are ready", || {
        (decodes_ready(&site) == 2).then_some(())
    });
    let (home, heard) = (AtomicBool::new(false), Mutex::new(Vec::<Asked>::new()));
    let (stopped, at) = std::thread::scope(|scope| {
        let _home = SendHome(&home);
        for client in 0..CLIENTS {
            let (site, asked, home, heard) = (&site, &asked, &home, &heard);
            scope.spawn(move || ask_on(site, asked, client, home, heard));
        }
        let answered = |since: Instant, n: usize| {
            let heard = heard.lock().unwrap();
            let whole = |it: &&Asked| it.begun >= since && matches!(it.answer, Answer::Whole(_));
            (heard.iter().filter(whole).count() >= n).then_some(())
        };
        let begin = Instant::now();
        wait_for("the crowd is served", || answered(begin, CLIENTS));
        let parts = site.running.parts();
        let (stopped, _) = *parts
            .iter()
            .find(|(_, word)| word == "decode")
            .expect("one");
        let at = Instant::now();
        send(stopped, Signal::STOP);
        wait_for("the other one goes on serving", || answered(at, CLIENTS));
        wait_for("no request goes to the stopped one", || {
            (decodes_ready(&site) == 1).then_some(())
        });
        let out = Instant::now();
        wait_for("the crowd is served by the other", || {
            answered(out, 3 * CLIENTS)
        });
        (stopped, at)
    });

    // All are home: nobody waits for the stopped one any more.
    let heard = heard.into_inner().unwrap();
    let mut words = BTreeMap::<String, usize>::new();
    for one in &heard {
        match &one.answer {
            Answer::Whole(choices) => assert_eq!(*choices, asked[one.which].1, "H-1"),
            Answer::Error(502..=504, ..) | Answer::BrokenOff(_) => {}
            other => panic!("no answer and no clear error: {other:?}"),
        }
        *words.entry(one.answer.word()).or_default() += 1;
    }
    let caught = heard.iter().filter(|it| it.begun < at && it.ended > at);
    let longest = caught.map(|it| it.ended - at).max();
    println!("{words:?}; the last of those under way at the stop ended after {longest:?}");

    send(stopped, Signal::CONT);
    wait_for("it is back", || (decodes_ready(&site) == 2).then_some(()));
    for (question, alone) in &asked {
        assert_eq!(question.ask(&site.api), Answer::Whole(alone.clone()));
    }
    site.rest(2);
}
