//! One tenant fills the pages with its canaries, then another asks for more than fits, long and
//! short: what the second one is answered must hold nothing of the first.

use super::boundary::cuts_openly;
use super::length::PromptLengths;
use super::{Known, Stopped, Suite, find_by};
use crate::ask::Question;
use crate::finding::{Kind, Symptom};
use crate::run::ProbeRun;
use crate::wire::Dialect;
use futures::future::join_all;
use serde_json::json;

const NAME: &str = "flood";
/// Rounds of filling and asking.
const ROUNDS: usize = 4;
/// Tokens of an answer: enough for a foreign sentence.
const ANSWER: u32 = 32;

pub(super) async fn run(run: &ProbeRun, known: &Known) -> Result<(), Stopped> {
    let tenants = run.tenants();
    let [a, b, ..] = tenants[..] else {
        return Err(Stopped::Needs(
            "flood needs the keys of two tenants".to_owned(),
        ));
    };
    let lengths = PromptLengths::measure(run, NAME, a).await?;
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
        let fill = (0..fill).map(|n| {
            // One of them says enough to show that its own text would be known again.
            let answer = if n == 0 { ANSWER } else { 4 };
            let long = long.saturating_sub(u64::from(answer));
            let mut ask = Question::new(a, lengths.sentences(long));
            ask.max_tokens = answer;
            run.ask(NAME, ask)
        });
        for answer in join_all(fill).await {
            answer?;
        }
        // Just over it is where stale pages of somebody else's were seen on a real engine: they
        // must hold text near the end of the prompt.
        let over = [1, 2, 8, 16 + limit / 50, limit / 8, limit];
        for (n, more) in over.into_iter().enumerate() {
            let tokens = limit + more;
            let mut ask = base.with(tokens, ANSWER, b);
            if (n + round) % 2 == 1 && run.endpoint(b).dialect != Dialect::Generate {
                ask.fields.insert("temperature".to_owned(), json!(0.7));
            }
            ask.details = n % 3 == 2;
            let answer = run.ask(NAME, ask).await?;
            if answer.status() == Some(200) {
                if let Some(cut) = answer.says_cut() {
                    cuts_openly(run, tokens, limit, cut);
                    continue;
                }
                let says =
                    format!("200 for a prompt of {tokens} tokens, over the limit of {limit}");
                let shows = vec![answer.sent];
                let (kind, proof) = (Kind::SilentAcceptance, Symptom::Over(limit));
                find_by(run, Suite::Flood, kind, says, shows, proof);
            }
        }
        // Short ones too: they get pages that the long ones have just left.
        let short = (0..4).map(|n| {
            let mut ask = Question::new(b, 2 + n + round);
            ask.max_tokens = ANSWER;
            ask.details = n == 3;
            run.ask(NAME, ask)
        });
        for answer in join_all(short).await {
            answer?;
        }
    }
    Ok(())
}
