//! The same answers as streams: the text that comes in pieces must be the whole one, count the same
//! prompt, and end; many streams at once, some of which are left, must not get into one another.

use super::compare::{Differs, differs};
use super::{Known, Stopped, Suite, find, patience};
use crate::ask::{ProbeAnswer, Question};
use crate::client::Leave;
use crate::finding::Kind;
use crate::run::ProbeRun;
use futures::future::join_all;

const NAME: &str = "stream";
/// Prompts that are compared.
const PROMPTS: usize = 6;
/// Tokens of their answers.
const TOKENS: u32 = 32;
/// Rounds of all of them at once.
const ROUNDS: usize = 2;

/// A prompt, and its whole answer, where that is the same twice.
struct Subject {
    ask: Question,
    whole: Option<String>,
    /// Whether that goes on with its prompt.
    copied: bool,
    tokens: Option<u64>,
}

pub(super) async fn run(run: &ProbeRun, known: &Known) -> Result<(), Stopped> {
    let tenants = run.tenants();
    let mut subjects = Vec::new();
    for n in 0..PROMPTS {
        let mut ask = Question::new(
            tenants[n % tenants.len()],
            known.sentences(3 + 4 * n, TOKENS),
        );
        ask.max_tokens = TOKENS;
        let first = patience::ask(run, NAME, ask.clone()).await?;
        ask.like = Some(first.marked.clone());
        let second = patience::ask(run, NAME, ask.clone()).await?;
        let same = first.text().filter(|it| second.text() == Some(it));
        ask.stream = true;
        let subject = Subject {
            ask,
            whole: same.map(str::to_owned),
            copied: first.copies(),
            tokens: first.prompt_tokens(),
        };
        let alone = run.ask(NAME, subject.ask.clone()).await?;
        judge(run, &subject, &alone, true);
        subjects.push(subject);
    }
    for _ in 0..ROUNDS {
        let all = subjects.iter().map(|it| run.ask(NAME, it.ask.clone()));
        // Beside each, one whose client leaves when it begins.
        let left = subjects.iter().map(|it| {
            let mut ask = it.ask.clone();
            ask.like = None;
            ask.sentences = known.sentences(8, TOKENS);
            ask.leave = Leave::AtFirstByte;
            run.ask(NAME, ask)
        });
        let (answers, left) = futures::join!(join_all(all), join_all(left));
        for (subject, answer) in subjects.iter().zip(answers) {
            judge(run, subject, &answer?, false);
        }
        for left in left {
            left?;
        }
    }
    if subjects.iter().all(|it| it.whole.is_none()) {
        let why = "no request is answered twice in the same way: streams cannot be compared";
        return Err(Stopped::Needs(why.to_owned()));
    }
    Ok(())
}

/// `alone` says whether nobody else asked: then nothing may differ.
fn judge(run: &ProbeRun, subject: &Subject, answer: &ProbeAnswer, alone: bool) {
    let Ok(reply) = &answer.reply else {
        return; // whoever waited has found it
    };
    let found = |kind, says| find(run, Suite::Stream, kind, says, vec![answer.sent.clone()]);
    let mine = answer.marked.author;
    if reply.status == 200 && reply.said.unfinished && reply.said.error.is_none() {
        let says = format!("the stream to {mine} ends without [DONE] and without an error");
        found(Kind::WrongErrorClass, says);
    }
    let Some(text) = answer.text() else {
        return; // busy is no wrong answer
    };
    let whole = subject.whole.as_deref().unwrap_or(text);
    let how = differs(whole, subject.copied, answer).unwrap_or(Differs::Not);
    if how != Differs::Not {
        let short = |text: &str| text.chars().take(80).collect::<String>();
        let says = format!(
            "the greedy answer to {mine} is {:?} as a stream; whole it was {:?}, twice",
            short(text),
            short(whole)
        );
        let late = how == Differs::Late && !alone;
        found(
            if late {
                Kind::Suspect
            } else {
                Kind::WrongAnswer
            },
            says,
        );
    }
    if let (Some(whole), Some(streamed)) = (subject.tokens, answer.prompt_tokens())
        && whole != streamed
    {
        let says = format!(
            "the prompt of {mine} is counted as {streamed} tokens in a stream; whole it was {whole}"
        );
        found(Kind::SilentAcceptance, says);
    }
}
