//! Questions whose answers are known: a prompt that says one sentence again and again is gone on
//! with. A model that does so at one length and not at another may have lost the pages between.
//!
//! What a small model cannot hold it forgets without any fault, so a failure is a suspicion; the
//! shorter lengths are the control. But no model forgets from one token to the next: where every
//! prompt of N tokens is gone on with, and the same prompts with one token more are not, somebody has
//! a limit that nobody told of.

use super::length::PromptLengths;
use super::{Known, Stopped, Suite, find, patience};
use crate::ask::{ProbeAnswer, Question, TELLING};
use crate::canary::Tenant;
use crate::finding::{Kind, Sent};
use crate::run::ProbeRun;

const NAME: &str = "coherence";
/// Prompts of each length.
const TIMES: usize = 3;
/// Lengths, as shares of the limit.
const SHARES: [f64; 5] = [0.03, 0.12, 0.3, 0.6, 0.95];

pub(super) async fn run(run: &ProbeRun, known: &Known) -> Result<(), Stopped> {
    let tenants = run.tenants();
    let lengths = PromptLengths::measure(run, NAME, tenants[0]).await?;
    let limit = known.limit(run, NAME, &lengths).await?.or(known.context);
    let Some(limit) = limit else {
        return Err(Stopped::Needs(
            "no limit is known, none was found".to_owned(),
        ));
    };
    // The shortest is the control of the others and has none itself.
    let mut control = None;
    let mut longest = 0;
    for share in SHARES {
        let room = limit.saturating_sub(u64::from(TELLING) + 8);
        let tokens = (room as f64 * share) as u64;
        let mut answers = of_length(run, lengths.sentences(tokens)).await?;
        let copies = |all: &[ProbeAnswer]| all.iter().filter(|it| it.copies()).count();
        if control.is_none() && copies(&answers) < TIMES {
            // Small models forget now and then, and this is what all others are compared with.
            answers = of_length(run, lengths.sentences(tokens)).await?;
        }
        let right = copies(&answers);
        if control.is_none() && right < TIMES {
            let why = format!(
                "only {right} of {TIMES} prompts of about {tokens} tokens are gone on with: nothing can \
                 be told of longer ones"
            );
            return Err(Stopped::Needs(why));
        }
        let answered = answers.iter().filter(|it| it.text().is_some()).count();
        if control == Some(true) && right == 0 && answered == TIMES {
            if let Some((last, shows)) = edge(run, &lengths, tenants[0], longest, tokens).await? {
                let says = format!(
                    "{TIMES} of {TIMES} prompts of {last} tokens are gone on with, and none of the \
                     same with one token more, though all are answered with 200"
                );
                find(run, Suite::Coherence, Kind::WrongAnswer, says, shows);
                return Ok(());
            }
            let says = format!(
                "none of {TIMES} prompts of about {tokens} tokens was gone on with; all shorter \
                 ones were"
            );
            let shows = answers.into_iter().map(|it| it.sent).collect();
            find(run, Suite::Coherence, Kind::Suspect, says, shows);
            return Ok(());
        }
        if control.unwrap_or(true) && right == TIMES {
            let counted = answers.iter().filter_map(ProbeAnswer::prompt_tokens);
            longest = counted.max().unwrap_or(tokens).max(longest);
        }
        control = Some(control.unwrap_or(true) && right == TIMES);
    }
    Ok(())
}

/// Answers to prompts of so many sentences, of all tenants in turn.
async fn of_length(run: &ProbeRun, sentences: usize) -> Result<Vec<ProbeAnswer>, Stopped> {
    let tenants = run.tenants();
    let mut answers = Vec::new();
    for n in 0..TIMES {
        let mut ask = Question::new(tenants[n % tenants.len()], sentences);
        ask.max_tokens = TELLING;
        answers.push(patience::ask(run, NAME, ask).await?);
    }
    Ok(answers)
}

/// The last length, to the token, at which prompts are gone on with, if the next one ends it for all
/// of them; with the requests that show it. `good` is a length at which they are, `bad` one at which
/// they are not.
async fn edge(
    run: &ProbeRun,
    lengths: &PromptLengths,
    tenant: Tenant,
    mut good: u64,
    mut bad: u64,
) -> Result<Option<(u64, Vec<Sent>)>, Stopped> {
    while bad > good + 64 {
        let mut ask = Question::new(tenant, lengths.sentences(good + (bad - good) / 2));
        ask.max_tokens = TELLING;
        let answer = run.ask(NAME, ask).await?;
        match answer.prompt_tokens() {
            // The estimate is not finer than this.
            Some(tokens) if tokens <= good || tokens >= bad => break,
            Some(tokens) if answer.copies() => good = tokens,
            Some(tokens) => bad = tokens,
            None => return Ok(None),
        }
    }
    let base = lengths.base(run, NAME, tenant, good).await?;
    while bad > good + 1 {
        let middle = good + (bad - good) / 2;
        let answer = run.ask(NAME, base.with(middle, TELLING, tenant)).await?;
        match answer.copies() {
            true => good = middle,
            false => bad = middle,
        }
    }
    let mut shows = Vec::new();
    for _ in 0..TIMES {
        let base = lengths.base(run, NAME, tenant, good).await?;
        for tokens in [good - 1, good, good + 1, good + 2] {
            let answer = run.ask(NAME, base.with(tokens, TELLING, tenant)).await?;
            if answer.text().is_none() || answer.copies() != (tokens <= good) {
                return Ok(None);
            }
            if shows.len() < 2 && (good..=good + 1).contains(&tokens) {
                shows.push(answer.sent);
            }
        }
    }
    Ok(Some((good, shows)))
}
