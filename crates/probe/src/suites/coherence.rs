//! Questions whose answers are known: a prompt that says one sentence again and again is gone on
//! with. A model that does so at one length and not at another may have lost the pages between.
//!
//! What a small model cannot hold it forgets without any fault, so a failure is a suspicion; the
//! shorter lengths are the control.

use super::length::Lengths;
use super::{Known, Stopped, Suite, find};
use crate::ask::{Answer, Ask, TELLING};
use crate::finding::Kind;
use crate::run::Run;

const NAME: &str = "coherence";
/// Prompts of each length.
const TIMES: usize = 3;
/// Lengths, as shares of the limit.
const SHARES: [f64; 5] = [0.03, 0.12, 0.3, 0.6, 0.95];

pub(super) async fn run(run: &Run, known: &Known) -> Result<(), Stopped> {
    let tenants = run.tenants();
    let lengths = Lengths::measure(run, NAME, tenants[0]).await?;
    let limit = known.limit(run, NAME, &lengths).await?.or(known.context);
    let Some(limit) = limit else {
        return Err(Stopped::Needs(
            "no limit is known, none was found".to_owned(),
        ));
    };
    // The shortest is the control of the others and has none itself.
    let mut control = None;
    for share in SHARES {
        let room = limit.saturating_sub(u64::from(TELLING) + 8);
        let tokens = (room as f64 * share) as u64;
        let mut answers: Vec<Answer> = Vec::new();
        for n in 0..TIMES {
            let tenant = tenants[n % tenants.len()];
            let mut ask = Ask::new(tenant, lengths.sentences(tokens));
            ask.max_tokens = TELLING;
            answers.push(run.ask(NAME, ask).await?);
        }
        let right = answers.iter().filter(|it| it.copies()).count();
        let answered = answers.iter().filter(|it| it.text().is_some()).count();
        if control == Some(true) && right == 0 && answered == TIMES {
            let says = format!(
                "none of {TIMES} prompts of about {tokens} tokens was gone on with; all shorter \
                 ones were"
            );
            let shows = answers.into_iter().map(|it| it.sent).collect();
            find(run, Suite::Coherence, Kind::Suspect, says, shows);
            return Ok(());
        }
        control = Some(control.unwrap_or(true) && right == TIMES);
    }
    Ok(())
}
