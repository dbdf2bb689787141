//! The same greedy requests alone, streamed, and all at once among others: an answer that differs
//! only when others are served is somebody else's business. A server that differs from itself when
//! it is alone is noisy, and its noise is measured first.

use super::compare::{Differs, differs};
use super::{Known, Stopped, Suite, find, patience};
use crate::ask::{ProbeAnswer, Question};
use crate::finding::Kind;
use crate::run::ProbeRun;
use futures::future::join_all;
use std::collections::BTreeSet;

/// Times that each is asked alone.
const ALONE: usize = 3;
/// Rounds under load.
const ROUNDS: usize = 3;

/// How much is asked at once.
pub(super) struct Shape {
    suite: Suite,
    /// Requests that are compared.
    compared: usize,
    /// Sentences of the n-th of them: this, and so many times n.
    sentences: (usize, usize),
    /// Tokens of their answers.
    tokens: u32,
    /// Requests beside them, for each that the budget allows at once.
    others: usize,
}

/// As many as the budget allows at once, of all lengths.
pub(super) const LOAD: Shape = Shape {
    suite: Suite::Load,
    compared: 6,
    sentences: (2, 5),
    tokens: 32,
    others: 1,
};

/// More and longer ones than pages, so that some must wait, be evicted or be computed anew.
pub(super) const CHURN: Shape = Shape {
    suite: Suite::Churn,
    compared: 6,
    sentences: (20, 12),
    tokens: 96,
    others: 3,
};

impl Shape {
    /// Of the n-th request.
    fn sentences(&self, known: &Known, n: usize) -> usize {
        let (least, more) = self.sentences;
        known.sentences(least + more * n, self.tokens)
    }
}

struct Subject {
    ask: Question,
    /// Everything that it was answered when it was alone.
    alone: BTreeSet<String>,
    /// Whether that went on with its prompt.
    copied: bool,
}

pub(super) async fn run(run: &ProbeRun, known: &Known, shape: &Shape) -> Result<(), Stopped> {
    let name = shape.suite.name();
    let tenants = run.tenants();
    let subjects = alone(run, known, shape).await?;
    let others = shape.others * run.at_once();
    for round in 0..ROUNDS {
        let compared = subjects.iter().map(|it| {
            let mut ask = it.ask.clone();
            ask.stream = round % 2 == 1;
            run.ask(name, ask)
        });
        let others = (0..others).map(|n| {
            let mut ask = Question::new(tenants[n % tenants.len()], shape.sentences(known, n % 7));
            ask.max_tokens = shape.tokens;
            ask.details = n % 2 == 1;
            run.ask(name, ask)
        });
        let (answers, others) = futures::join!(join_all(compared), join_all(others));
        for (subject, answer) in subjects.iter().zip(answers) {
            compare(run, shape.suite, subject, &answer?);
        }
        for other in others {
            other?;
        }
    }
    Ok(())
}

/// What the compared requests are answered when nobody else asks. Only those that are answered in
/// one way can convict.
async fn alone(run: &ProbeRun, known: &Known, shape: &Shape) -> Result<Vec<Subject>, Stopped> {
    let tenants = run.tenants();
    let mut subjects = Vec::new();
    for n in 0..shape.compared {
        let mut ask = Question::new(tenants[n % tenants.len()], shape.sentences(known, n));
        ask.max_tokens = shape.tokens;
        let (mut alone, mut copied) = (BTreeSet::new(), false);
        for time in 0..ALONE {
            ask.stream = time == 1;
            let answer = patience::ask(run, shape.suite.name(), ask.clone()).await?;
            ask.like = Some(answer.marked.clone());
            let Some(text) = answer.text() else { break };
            alone.insert(text.trim().to_owned());
            copied = answer.copies();
        }
        subjects.push(Subject { ask, alone, copied });
    }
    subjects.retain(|it| it.alone.len() == 1);
    if subjects.is_empty() {
        let why = "no request is answered twice in the same way, even alone: answers cannot be \
                   compared";
        return Err(Stopped::Needs(why.to_owned()));
    }
    Ok(subjects)
}

fn compare(run: &ProbeRun, suite: Suite, subject: &Subject, answer: &ProbeAnswer) {
    let alone = subject.alone.first().map_or("", String::as_str);
    let kind = match differs(alone, subject.copied, answer) {
        None | Some(Differs::Not) => return, // busy is no wrong answer
        Some(Differs::Late) => Kind::Suspect,
        Some(Differs::Wholly) => Kind::WrongAnswer,
    };
    let says = format!(
        "the greedy answer to {} is {:?} under load; alone it was {:?}, {ALONE} times",
        answer.marked.author,
        short(answer.text().unwrap_or_default()),
        short(alone)
    );
    let shows = vec![answer.sent.clone()];
    find(run, suite, kind, says, shows);
}

fn short(text: &str) -> String {
    text.chars().take(80).collect()
}
