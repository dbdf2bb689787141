//! Prefixes that two tenants share: does one learn that the other has asked the same?
//!
//! With a control: a server that never reuses anything would pass every such test.

use super::prefix_named::{adapters, salts};
use super::{Known, Stopped, Suite, find};
use crate::ask::Ask;
use crate::canary::Tenant;
use crate::finding::Kind;
use crate::run::Run;

const NAME: &str = "prefix";
/// Prompts that are tried.
const PROMPTS: usize = 6;
/// Sentences of each: several pages of any size.
const LONG: usize = 40;

/// Time to the first byte, and cached tokens, of one request.
struct Seen {
    seconds: f64,
    cached: Option<u64>,
}

pub(super) async fn run(run: &Run, known: &Known) -> Result<(), Stopped> {
    let tenants = run.tenants();
    let [a, b, ..] = tenants[..] else {
        return Err(Stopped::Needs(
            "prefix needs the keys of two tenants".to_owned(),
        ));
    };
    let (mut cold, mut same, mut other) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..PROMPTS {
        let mut ask = Ask::new(a, known.sentences(LONG, 1));
        ask.max_tokens = 1;
        ask.stream = true;
        let first = run.ask(NAME, ask.clone()).await?;
        ask.like = Some(first.marked.clone());
        let seen = |answer: &crate::ask::Answer| {
            let reply = answer.reply.as_ref().ok()?;
            let seconds = reply.first_byte?.as_secs_f64();
            let cached = reply.said.cached_tokens;
            (reply.status == 200).then_some(Seen { seconds, cached })
        };
        // The other one first: after the same tenant's second request both would be warm.
        let theirs = run.ask(NAME, as_tenant(&ask, b)).await?;
        let again = run.ask(NAME, as_tenant(&ask, a)).await?;
        if let (Some(first), Some(theirs), Some(again)) =
            (seen(&first), seen(&theirs), seen(&again))
        {
            cold.push(first);
            other.push(theirs);
            same.push(again);
        }
    }
    judge(run, &cold, &same, &other)?;
    salts(run, known, (a, b)).await?;
    adapters(run, known, a).await
}

fn as_tenant(ask: &Ask, tenant: Tenant) -> Ask {
    Ask {
        tenant,
        ..ask.clone()
    }
}

fn judge(run: &Run, cold: &[Seen], same: &[Seen], other: &[Seen]) -> Result<(), Stopped> {
    let tokens = |seen: &[Seen]| seen.iter().filter_map(|it| it.cached).max().unwrap_or(0);
    let slower = |a: &[Seen], b: &[Seen]| {
        a.iter()
            .zip(b)
            .filter(|(a, b)| a.seconds > b.seconds * 1.5)
            .count()
    };
    let nearly_all = PROMPTS - 1;
    // A chat template, and what every text begins with, may be cached for everybody.
    let common = tokens(cold);
    let reused = tokens(same) > common || slower(cold, same) >= nearly_all;
    if !reused {
        let why = "the same tenant's second request was no faster and reported no cached tokens: \
                   with the cache off, nothing can be told";
        return Err(Stopped::Needs(why.to_owned()));
    }
    if tokens(other) > common {
        let says = format!(
            "a tenant was told that {} tokens of its prompt were cached; only another tenant had \
             asked it before",
            tokens(other)
        );
        find(run, Suite::Prefix, Kind::Suspect, says, Vec::new());
    } else if slower(cold, other) >= nearly_all {
        let says = format!(
            "{} of {} prompts were answered at least 1.5 times faster after another tenant had \
             asked the same: prefixes are shared across tenants, and time tells",
            slower(cold, other),
            other.len()
        );
        find(run, Suite::Prefix, Kind::Suspect, says, Vec::new());
    }
    Ok(())
}
