//! Prompts one below, at and one above every limit: what is advertised is answered rightly, what
//! is above is refused, at once and with an error that says so.

use super::length::{Base, PromptLengths};
use super::{Known, Stopped, Suite, find, find_by, patience};
use crate::ask::{ProbeAnswer, Question};
use crate::canary::Tenant;
use crate::finding::{Kind, Symptom};
use crate::run::ProbeRun;

const NAME: &str = "boundary";
/// Tokens of an answer that goes on with its own canary.
const ECHO: u32 = 24;
/// Multiples of every usual page size up to 128 tokens.
const PAGE_EDGES: [u64; 2] = [128, 256];

pub(super) async fn run(run: &ProbeRun, known: &Known) -> Result<(), Stopped> {
    let tenant = run.tenants()[0];
    let lengths = PromptLengths::measure(run, NAME, tenant).await?;
    let Some(limit) = known.limit(run, NAME, &lengths).await? else {
        let why = "no prompt was refused at any length that was tried, and nothing is advertised; \
                   give --context or --limit";
        return Err(Stopped::Needs(why.to_owned()));
    };
    let base = lengths.base(run, NAME, tenant, limit).await?;
    let control = control(run, &base, tenant, limit).await?;
    // The other tenants' own positive control.
    for other in run.tenants().into_iter().filter(|it| *it != tenant) {
        run.ask(NAME, Question::new(other, known.sentences(8, ECHO)))
            .await?;
    }
    for tokens in [limit - 1, limit] {
        let answer = patience::ask(run, NAME, base.with(tokens, 1, tenant)).await?;
        fits(run, &answer, tokens, limit).await?;
    }
    let mut above = vec![limit + 1, limit + 2, limit + limit / 4, 2 * limit];
    // Pool and context are boundaries of their own where they differ from the limit.
    for edge in [known.pool, known.context].into_iter().flatten() {
        above.extend([edge - 1, edge, edge + 1]);
    }
    above.retain(|it| *it > limit);
    above.sort_unstable();
    above.dedup();
    for tokens in above {
        // Nearest first; other suites want tokens too.
        if tokens > limit + 1 && tokens > run.tokens_left() / 4 {
            let says =
                format!("no prompt of {tokens} tokens or more was sent: the budget is small");
            run.note(NAME, says);
            break;
        }
        let answer = patience::ask(run, NAME, base.with(tokens, ECHO, tenant)).await?;
        is_refused(run, &answer, tokens, limit, control).await?;
    }
    for edge in PAGE_EDGES {
        if edge + 1 + u64::from(ECHO) < limit {
            page_edge(run, &lengths, tenant, edge, limit).await?;
        }
    }
    Ok(())
}

/// One token less, as many, and one more: the last page is nearly full, full, and new. One of them
/// that is not gone on with, while its neighbours are, three times of three, is no model's forgetting.
async fn page_edge(
    run: &ProbeRun,
    lengths: &PromptLengths,
    tenant: Tenant,
    edge: u64,
    limit: u64,
) -> Result<(), Stopped> {
    let mut silent = Vec::new();
    for tokens in [edge - 1, edge, edge + 1] {
        let answer = of_length(run, lengths, tenant, tokens).await?;
        fits(run, &answer, answer.tokens.unwrap_or(tokens), limit).await?;
        if answer.text().is_some() && !answer.copies() {
            silent.push(answer);
        }
    }
    let [first] = &silent[..] else {
        return Ok(());
    };
    let tokens = first.tokens.unwrap_or(edge);
    for _ in 0..2 {
        if of_length(run, lengths, tenant, tokens).await?.copies() {
            return Ok(());
        }
    }
    let says = format!(
        "a prompt of {tokens} tokens is not gone on with, three of three, though those next to it \
         are: {edge} is a multiple of the usual page sizes"
    );
    let shows = vec![first.sent.clone()];
    find(run, Suite::Boundary, Kind::WrongAnswer, says, shows);
    Ok(())
}

/// A text that was not sent before, filled to so many tokens.
async fn of_length(
    run: &ProbeRun,
    lengths: &PromptLengths,
    tenant: Tenant,
    tokens: u64,
) -> Result<ProbeAnswer, Stopped> {
    let base = lengths.base(run, NAME, tenant, tokens).await?;
    Ok(patience::ask(run, NAME, base.with(tokens, ECHO, tenant)).await?)
}

/// Whether an answer well below the limit goes on with its own canary: only then does it mean
/// something that one above does not.
async fn control(run: &ProbeRun, base: &Base, tenant: Tenant, limit: u64) -> Result<bool, Stopped> {
    let tokens = limit.saturating_sub(u64::from(ECHO) + 8).max(base.tokens);
    let answer = patience::ask(run, NAME, base.with(tokens, ECHO, tenant)).await?;
    Ok(answer.copies())
}

/// A prompt that must be answered.
async fn fits(
    run: &ProbeRun,
    answer: &ProbeAnswer,
    tokens: u64,
    limit: u64,
) -> Result<(), Stopped> {
    let shows = || vec![answer.sent.clone()];
    match (answer.status(), answer.prompt_tokens()) {
        (Some(200), Some(counted)) if counted != tokens => {
            if let Some(cut) = answer.says_cut() {
                cuts_openly(run, tokens, limit, cut);
                return Ok(());
            }
            let says = format!("a prompt of {tokens} tokens was counted as {counted}");
            find(run, Suite::Boundary, Kind::SilentAcceptance, says, shows());
        }
        (Some(200) | None, _) => {} // a hang is found by whoever waited
        (Some(status), _) => {
            if answer.is_busy() {
                patience::is_refusal(run, Suite::Boundary, answer).await?;
            }
            let says = format!("{status} for a prompt of {tokens} tokens; the limit is {limit}");
            let (kind, proof) = (Kind::WrongErrorClass, Symptom::Status(status));
            find_by(run, Suite::Boundary, kind, says, shows(), proof);
        }
    }
    Ok(())
}

/// A prompt that must be refused.
async fn is_refused(
    run: &ProbeRun,
    answer: &ProbeAnswer,
    tokens: u64,
    limit: u64,
    control: bool,
) -> Result<(), Stopped> {
    let shows = || vec![answer.sent.clone()];
    let over = format!("a prompt of {tokens} tokens, over the limit of {limit}");
    match answer.status() {
        Some(200) => {
            if let Some(cut) = answer.says_cut() {
                cuts_openly(run, tokens, limit, cut);
                return Ok(());
            }
            let counted = match answer.prompt_tokens() {
                Some(counted) if counted != tokens => format!(", counted as {counted}"),
                _ => String::new(),
            };
            let says = format!("200 for {over}{counted}");
            let (kind, proof) = (Kind::SilentAcceptance, Symptom::Over(limit));
            find_by(run, Suite::Boundary, kind, says, shows(), proof);
            if control && !answer.copies() {
                let says = format!(
                    "the answer to {over} does not go on with its own prompt, as those below do"
                );
                find(run, Suite::Boundary, Kind::WrongAnswer, says, shows());
            }
        }
        Some(400 | 413 | 422) | None => {}
        Some(status) => {
            if answer.is_busy() {
                patience::is_refusal(run, Suite::Boundary, answer).await?;
            }
            let says =
                format!("{status} for {over}: a client would try again, or give up the server");
            let (kind, proof) = (Kind::WrongErrorClass, Symptom::Status(status));
            find_by(run, Suite::Boundary, kind, says, shows(), proof);
        }
    }
    Ok(())
}

/// What cuts a prompt and says so is not silent.
pub(super) fn cuts_openly(run: &ProbeRun, tokens: u64, limit: u64, cut: &str) {
    let cut: String = cut.chars().filter(|it| !it.is_control()).take(80).collect();
    let says = format!(
        "a prompt of {tokens} tokens, over the limit of {limit}, is answered with 200, and the answer \
         says that it was cut ({cut:?})"
    );
    run.note(NAME, says);
}
