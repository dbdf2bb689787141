//! Prefixes under salts and adapters: what was computed under one name must not serve another.

use super::compare::{Differs, differs};
use super::crossed::{Crossed, Not, Shown, Way, crossed};
use super::prefix::uncertain;
use super::{Known, Stopped, Suite, find, patience};
use crate::ask::{ProbeAnswer, Question};
use crate::canary::Tenant;
use crate::finding::Kind;
use crate::run::ProbeRun;
use crate::wire::Dialect;
use serde_json::{Map, Value, json};

const NAME: &str = "prefix";
/// Sentences of a prompt whose answers are compared.
const LONG: usize = 40;
/// Tokens of these answers.
const TOKENS: u32 = 16;

fn way(tenant: Tenant, fields: &[(&str, Value)]) -> Way {
    let fields = fields.iter();
    let fields: Map<_, _> = fields
        .map(|(name, value)| ((*name).to_owned(), value.clone()))
        .collect();
    Way { tenant, fields }
}

/// `cache_salt`: the same tenant with another, and, where tenants are kept apart without, the other
/// tenant with the same.
pub(super) async fn salts(
    run: &ProbeRun,
    known: &Known,
    (a, b): (Tenant, Tenant),
    kept_apart: bool,
) -> Result<(), Stopped> {
    let salted = |tenant, salt: &str| way(tenant, &[("cache_salt", json!(salt))]);
    let mine = salted(a, "probe-salt");
    let another = salted(a, "probe-other-salt");
    let apart = match crossed(run, NAME, known, (&mine, &another)).await {
        Err(Not::Refused(status)) if known.salts => {
            return Err(Stopped::Needs(format!(
                "/v1/models says that cache_salt is understood, and it is refused (status {status})"
            )));
        }
        Err(Not::Refused(status)) => {
            // Nothing to be joined or kept apart by them.
            run.note(NAME, format!("cache_salt is not taken (status {status})"));
            return Ok(());
        }
        Err(Not::Spent(spent)) => return Err(spent.into()),
        Ok(apart) => apart,
    };
    // Salts are for keeping apart: one that does not is worse than none.
    let what = "the same tenant's prompt under another cache_salt";
    judge(run, &apart, Kind::SharedPrefix, what)?;
    if !kept_apart {
        return Ok(());
    }
    let joined = crossed(run, NAME, known, (&mine, &salted(b, "probe-salt"))).await;
    let joined = joined.map_err(stopped)?;
    // Whoever knows a salt may be meant to share it.
    let what = "the prompt of another tenant that chose the same cache_salt";
    judge(run, &joined, Kind::Suspect, what)
}

fn judge(run: &ProbeRun, crossed: &Crossed, kind: Kind, what: &str) -> Result<(), Stopped> {
    match crossed.other.told {
        Shown::No => Ok(()),
        Shown::Perhaps => Err(uncertain(what, &crossed.other.says)),
        Shown::Yes => {
            let says = format!(
                "what was computed was used for {what}: {}",
                crossed.other.says
            );
            find(run, Suite::Prefix, kind, says, crossed.shows.clone());
            Ok(())
        }
    }
}

fn stopped(not: Not) -> Stopped {
    match not {
        Not::Spent(spent) => spent.into(),
        Not::Refused(status) => Stopped::Needs(format!(
            "what was answered before is refused now (status {status})"
        )),
    }
}

/// Adapters: a greedy answer must be the same after another adapter was asked the same, and nothing
/// of one's pages may serve the other: an adapter changes what is in them. Neither may they serve a
/// salt that has the adapter's name.
pub(super) async fn adapters(run: &ProbeRun, known: &Known, tenant: Tenant) -> Result<(), Stopped> {
    let name = match run.endpoint(tenant).dialect {
        Dialect::Generate => "lora_path",
        _ => "model",
    };
    let plain = Named {
        way: way(tenant, &[]),
        name: "the base model".to_owned(),
    };
    for adapter in &known.adapters {
        let adapted = Named {
            way: way(tenant, &[(name, json!(adapter))]),
            name: format!("adapter {adapter:?}"),
        };
        let salted = Named {
            way: way(tenant, &[("cache_salt", json!(adapter))]),
            name: format!("the base model under a cache_salt of the name {adapter:?}"),
        };
        for other in [&plain, &salted] {
            for (one, two) in [(other, &adapted), (&adapted, other)] {
                let takes = between(run, known, adapter, one, two).await?;
                if !takes {
                    break; // salts are refused
                }
            }
        }
    }
    Ok(())
}

/// A way of asking, and what it is called.
struct Named {
    way: Way,
    name: String,
}

/// What was computed under one name, and what another is answered. False if the salt is refused.
async fn between(
    run: &ProbeRun,
    known: &Known,
    adapter: &str,
    one: &Named,
    two: &Named,
) -> Result<bool, Stopped> {
    let mut ask = Question::new(one.way.tenant, known.sentences(LONG, TOKENS));
    ask.max_tokens = TOKENS;
    let mut answers: Vec<ProbeAnswer> = Vec::new();
    for way in [one, one, two, one] {
        ask.fields = way.way.fields.clone();
        let answer = patience::ask(run, NAME, ask.clone()).await?;
        if let Some(status @ 400..) = answer.status() {
            if way.way.fields.contains_key("cache_salt") {
                run.note(NAME, format!("cache_salt is not taken (status {status})"));
                return Ok(false);
            }
            let why = format!("adapter {adapter:?} is not served (status {status})");
            return Err(Stopped::Needs(why));
        }
        ask.like = Some(answer.marked.clone());
        answers.push(answer);
    }
    let [cold, warm, other, after] = &answers[..] else {
        return Ok(true);
    };
    let shows = || vec![cold.sent.clone(), other.sent.clone(), after.sent.clone()];
    let own_noise = cold.text() != warm.text();
    let differs = differs(cold.text().unwrap_or_default(), cold.copies(), after);
    if !own_noise && differs.is_some_and(|it| it != Differs::Not) {
        let says = format!(
            "the greedy answer of {} is another after {} was asked the same prompt",
            one.name, two.name
        );
        find(run, Suite::Prefix, Kind::WrongAnswer, says, shows());
    }
    let crossed = crossed(run, NAME, known, (&one.way, &two.way)).await;
    let crossed = crossed.map_err(stopped)?;
    match (crossed.own.told, crossed.other.told) {
        (_, Shown::Yes) => {
            let says = format!(
                "what was computed for {} was used for {}, which had not been asked: {}",
                one.name, two.name, crossed.other.says
            );
            find(run, Suite::Prefix, Kind::SharedPrefix, says, crossed.shows);
        }
        (Shown::Perhaps, _) | (_, Shown::Perhaps) => {
            let what = format!("what was computed for {}", one.name);
            return Err(uncertain(&what, &crossed.other.says));
        }
        // Nothing is reused as far as can be told: then answers must tell, and they must differ.
        (Shown::No, _) if !crossed.reported && cold.text() == other.text() => run.note(
            NAME,
            format!(
                "{} and {} answer alike and reuse nothing as far as can be told: whether one's \
                 pages would serve the other was not seen",
                one.name, two.name
            ),
        ),
        _ => {}
    }
    Ok(true)
}
