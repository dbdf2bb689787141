//! Prefixes under salts and adapters: what was computed under one name must not serve another.

use super::{Known, Stopped, Suite, find};
use crate::ask::{Answer, Ask};
use crate::canary::Tenant;
use crate::finding::Kind;
use crate::run::{Run, Spent};
use crate::wire::Dialect;
use serde_json::json;

const NAME: &str = "prefix";
/// Prompts for each question.
const PROMPTS: usize = 2;
/// Sentences of each.
const LONG: usize = 40;
/// Tokens of the answers that are compared.
const TOKENS: u32 = 16;

/// A prompt that has not been asked yet.
fn new(known: &Known, tenant: Tenant) -> Ask {
    let mut ask = Ask::new(tenant, known.sentences(LONG, TOKENS));
    ask.max_tokens = TOKENS;
    ask
}

fn cached(answer: &Answer) -> u64 {
    let reply = answer.reply.as_ref().ok();
    reply.and_then(|it| it.said.cached_tokens).unwrap_or(0)
}

/// `cache_salt`: the other tenant with the same salt, and the same tenant with another.
pub(super) async fn salts(run: &Run, known: &Known, (a, b): (Tenant, Tenant)) -> Result<(), Spent> {
    let salted = |ask: &Ask, tenant, salt: &str| {
        let mut ask = Ask {
            tenant,
            ..ask.clone()
        };
        ask.fields.insert("cache_salt".to_owned(), json!(salt));
        ask
    };
    for n in 0..PROMPTS {
        let (mine, another) = (format!("probe-salt-{n}"), format!("probe-other-salt-{n}"));
        let mut ask = new(known, a);
        let cold = run.ask(NAME, salted(&ask, a, &mine)).await?;
        if cold.status() != Some(200) {
            return Ok(()); // salts are not taken: nothing to be joined or kept apart by them
        }
        ask.like = Some(cold.marked.clone());
        let theirs = run.ask(NAME, salted(&ask, b, &mine)).await?;
        let other = run.ask(NAME, salted(&ask, a, &another)).await?;
        let again = run.ask(NAME, salted(&ask, a, &mine)).await?;
        let common = cached(&cold);
        if cached(&again) <= common {
            return Ok(()); // under a salt nothing is reused, or nothing is said of it
        }
        let judge = |answer: &Answer, whose: &str| {
            if cached(answer) > common {
                let says = format!(
                    "{} tokens of a prompt were cached for {whose}",
                    cached(answer)
                );
                let shows = vec![cold.sent.clone(), answer.sent.clone()];
                find(run, Suite::Prefix, Kind::Suspect, says, shows);
            }
        };
        judge(&theirs, "another tenant that chose the same cache_salt");
        judge(&other, "the same tenant under another cache_salt");
    }
    Ok(())
}

/// Adapters: a greedy answer must be the same after another adapter was asked the same, and nothing
/// of one's pages may serve the other: an adapter changes what is in them.
pub(super) async fn adapters(run: &Run, known: &Known, tenant: Tenant) -> Result<(), Stopped> {
    for adapter in &known.adapters {
        for (one, two) in [(None, Some(adapter)), (Some(adapter), None)] {
            let under = |ask: &Ask, adapter: Option<&String>| {
                let mut ask = ask.clone();
                let name = match run.endpoint(tenant).dialect {
                    Dialect::Generate => "lora_path",
                    _ => "model",
                };
                if let Some(adapter) = adapter {
                    ask.fields.insert(name.to_owned(), json!(adapter));
                }
                ask
            };
            let mut ask = new(known, tenant);
            let cold = run.ask(NAME, under(&ask, one)).await?;
            ask.like = Some(cold.marked.clone());
            let warm = run.ask(NAME, under(&ask, one)).await?;
            let other = run.ask(NAME, under(&ask, two)).await?;
            let after = run.ask(NAME, under(&ask, one)).await?;
            for answer in [&cold, &other] {
                if let Some(status @ 400..) = answer.status() {
                    let why = format!("adapter {adapter:?} is not served (status {status})");
                    return Err(Stopped::Needs(why));
                }
            }
            let shows = || vec![cold.sent.clone(), other.sent.clone(), after.sent.clone()];
            if cached(&other) > cached(&cold) {
                let says = format!(
                    "{} tokens of a prompt were cached for {}, which only {} had asked",
                    cached(&other),
                    named(two),
                    named(one)
                );
                find(run, Suite::Prefix, Kind::Suspect, says, shows());
            }
            let own_noise = cold.text() != warm.text();
            if !own_noise && after.text().is_some() && after.text() != cold.text() {
                let says = format!(
                    "the greedy answer of {} is another after {} was asked the same prompt",
                    named(one),
                    named(two)
                );
                find(run, Suite::Prefix, Kind::WrongAnswer, says, shows());
            }
        }
    }
    Ok(())
}

fn named(adapter: Option<&String>) -> String {
    adapter.map_or("the base model".to_owned(), |it| format!("adapter {it:?}"))
}
