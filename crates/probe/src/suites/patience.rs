//! A busy server is asked again: what it answers then counts.

use super::{Stopped, Suite};
use crate::ask::{ProbeAnswer, Question};
use crate::client::Leave;
use crate::run::{ProbeRun, Spent};
use std::time::Duration;

/// Waits before a busy server is asked again, in milliseconds.
const WAITS: [u64; 4] = [50, 200, 800, 2_000];
/// Longest wait that a server may ask for.
const WAIT_MAX: Duration = Duration::from_secs(10);
/// Times that an error of the server's own is given a second chance.
const FAILED: usize = 2;

/// Asks until the answer is one to the request, and not to the moment: 429 and 503 say that the
/// server is busy, other errors of its own may have been an accident.
pub(super) async fn ask(
    run: &ProbeRun,
    suite: &'static str,
    mut ask: Question,
) -> Result<ProbeAnswer, Spent> {
    debug_assert_eq!(ask.leave, Leave::Never);
    for (n, wait) in WAITS.into_iter().enumerate() {
        let answer = run.ask(suite, ask.clone()).await?;
        let failed = answer.status().is_some_and(|it| it >= 500) && n < FAILED;
        if !answer.is_busy() && !failed {
            return Ok(answer);
        }
        ask.like = Some(answer.marked.clone());
        let after = answer.reply.as_ref().ok().and_then(|it| it.retry_after);
        let wanted = Duration::from_secs(after.unwrap_or(0)).min(WAIT_MAX);
        tokio::time::sleep(wanted.max(Duration::from_millis(wait))).await;
    }
    run.ask(suite, ask).await
}

/// Whether a request that was answered as if the server were busy is refused in truth: what is short
/// is answered in between.
///
/// # Errors
/// It is busy indeed, and nothing can be told.
pub(super) async fn is_refusal(
    run: &ProbeRun,
    suite: Suite,
    answer: &ProbeAnswer,
) -> Result<(), Stopped> {
    let short = ask(
        run,
        suite.name(),
        Question::new(answer.marked.author.tenant, 2),
    )
    .await?;
    match short.is_busy() {
        false => Ok(()),
        true => Err(busy(short.status())),
    }
}

pub(super) fn busy(status: Option<u16>) -> Stopped {
    let status = status.unwrap_or(0);
    let why = format!(
        "the server is busy ({status} to short prompts too, {} times): ask again when it is not, or \
         with a lower --rate",
        WAITS.len() + 1
    );
    Stopped::Needs(why)
}
