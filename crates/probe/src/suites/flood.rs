//! One tenant fills the pages with its canaries, then another asks for more than fits, long and
//! short: what the second one is answered must hold nothing of the first.

use super::length::Lengths;
use super::{Known, Stopped, Suite, find};
use crate::ask::Ask;
use crate::finding::Kind;
use crate::run::Run;
use futures::future::join_all;

const NAME: &str = "flood";
/// Rounds of filling and asking.
const ROUNDS: usize = 4;
/// Tokens of an answer: enough for a foreign sentence.
const ANSWER: u32 = 32;

pub(super) async fn run(run: &Run, known: &Known) -> Result<(), Stopped> {
    let tenants = run.tenants();
    let [a, b, ..] = tenants[..] else {
        return Err(Stopped::Needs(
            "flood needs the keys of two tenants".to_owned(),
        ));
    };
    let lengths = Lengths::measure(run, NAME, a).await?;
    let Some(limit) = known.limit(run, NAME, &lengths).await? else {
        return Err(Stopped::Needs(
            "no limit is known, none was found".to_owned(),
        ));
    };
    let base = lengths.base(run, NAME, b, limit).await?;
    // Enough long prompts that every page has held them, and some more.
    let long = limit.saturating_sub(8);
    let largest = known.pool.unwrap_or(limit).max(known.context.unwrap_or(0));
    let fill = (largest / long.max(1) + 2).clamp(2, 64) as usize;
    for round in 0..ROUNDS {
        let fill = (0..fill).map(|_| {
            let mut ask = Ask::new(a, lengths.sentences(long));
            ask.max_tokens = 4;
            run.ask(NAME, ask)
        });
        for answer in join_all(fill).await {
            answer?;
        }
        let over = [
            limit + 1,
            limit + 1 + limit / 8,
            limit + limit / 3,
            2 * limit,
        ];
        for tokens in over {
            let answer = run.ask(NAME, base.with(tokens, ANSWER, b)).await?;
            if answer.status() == Some(200) {
                let says =
                    format!("200 for a prompt of {tokens} tokens, over the limit of {limit}");
                find(
                    run,
                    Suite::Flood,
                    Kind::SilentAcceptance,
                    says,
                    vec![answer.sent],
                );
            }
        }
        // Short ones too: they get pages that the long ones have just left.
        let short = (0..4).map(|n| {
            let mut ask = Ask::new(b, 2 + n + round);
            ask.max_tokens = ANSWER;
            run.ask(NAME, ask)
        });
        for answer in join_all(short).await {
            answer?;
        }
    }
    Ok(())
}
