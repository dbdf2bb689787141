//! The same greedy requests alone, streamed, and all at once among others: an answer that differs
//! only when others are served is somebody else's business. A server that differs from itself when
//! it is alone is noisy, and its noise is measured first.

use super::{Known, Stopped, Suite, find};
use crate::canary::Marked;
use crate::finding::Kind;
use crate::run::{Answer, Ask, Run};
use futures::future::join_all;
use std::collections::BTreeSet;

const NAME: &str = "load";
/// Requests that are compared.
const REQUESTS: usize = 6;
/// Times that each is asked alone.
const ALONE: usize = 3;
/// Rounds under load.
const ROUNDS: usize = 3;

struct Subject {
    ask: Ask,
    /// Everything that it was answered when it was alone.
    alone: BTreeSet<String>,
}

pub(super) async fn run(run: &Run, _: &Known) -> Result<(), Stopped> {
    let tenants = run.tenants();
    let mut subjects = Vec::new();
    for n in 0..REQUESTS {
        let mut ask = Ask::new(tenants[n % tenants.len()], 2 + 5 * n);
        ask.max_tokens = 32;
        let mut alone = BTreeSet::new();
        for time in 0..ALONE {
            ask.stream = time == 1;
            let answer = run.ask(NAME, ask.clone()).await?;
            ask.like = Some::<Marked>(answer.marked.clone());
            let Some(text) = answer.text() else { break };
            alone.insert(text.to_owned());
        }
        subjects.push(Subject { ask, alone });
    }
    // Those that are answered in one way only can convict.
    subjects.retain(|it| it.alone.len() == 1);
    if subjects.is_empty() {
        let why = "no request is answered twice in the same way, even alone: answers cannot be \
                   compared";
        return Err(Stopped::Needs(why.to_owned()));
    }
    for round in 0..ROUNDS {
        let compared = subjects.iter().map(|it| {
            let mut ask = it.ask.clone();
            ask.stream = round % 2 == 1;
            run.ask(NAME, ask)
        });
        let others = (0..run.at_once()).map(|n| {
            let mut ask = Ask::new(tenants[n % tenants.len()], 1 + 9 * n);
            ask.max_tokens = 16;
            run.ask(NAME, ask)
        });
        let (answers, others) = futures::join!(join_all(compared), join_all(others));
        for (subject, answer) in subjects.iter().zip(answers) {
            compare(run, subject, &answer?);
        }
        for other in others {
            other?;
        }
    }
    Ok(())
}

fn compare(run: &Run, subject: &Subject, answer: &Answer) {
    let Some(text) = answer.text() else {
        return; // busy is no wrong answer
    };
    if subject.alone.contains(text) {
        return;
    }
    let alone = subject.alone.first().map_or("", String::as_str);
    let says = format!(
        "the greedy answer to {} is {:?} under load; alone it was {:?}, {ALONE} times",
        answer.marked.author,
        short(text),
        short(alone)
    );
    find(
        run,
        Suite::Load,
        Kind::WrongAnswer,
        says,
        vec![answer.sent.clone()],
    );
}

fn short(text: &str) -> String {
    text.chars().take(80).collect()
}
