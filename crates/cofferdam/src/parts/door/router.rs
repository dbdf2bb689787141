//! Somebody else's router, to which everything goes (`--judge-only`): what it takes is what each of the
//! engines behind it takes, for whom it will choose is not known.

use super::fleet::Member;
use gateway::door::Found;
use gateway::door::dialect::{Protocol, Role};
use handoff::Lengths;

/// What from here cannot be kept, said at the start.
pub(super) const NOT_KEPT: &str = "judge-only: lengths, keys and isolation domains are judged, and a client's \
                                   leaving breaks no transfer that can be seen from here. Not kept: prefill's own \
                                   answer is not seen (an aborted or cut prefill that decode answers after), engines \
                                   cannot be closed one by one, tools and response formats are refused";

/// The router, by what is known of the engines behind it: what each was last, or why that is not known.
pub(super) fn behind(url: &str, engines: &[(&Member, Engine)]) -> Result<Found, String> {
    let mut known: Vec<&Found> = Vec::new();
    let mut derivation = Vec::new();
    for (member, engine) in engines {
        let name = &member.target.name;
        let found = engine.last.as_ref().ok_or_else(|| {
            let why = engine.trouble.as_deref().unwrap_or("was not asked yet");
            format!("{name}, which is behind it, {why}")
        })?;
        derivation.extend(
            found
                .derivation
                .iter()
                .map(|line| format!("{name}: {line}")),
        );
        if let Some(why) = &engine.trouble {
            derivation.push(format!("{name} {why}: what it took last counts"));
        }
        known.push(found);
    }
    let first = known
        .first()
        .ok_or("no engine is named that is behind it")?;
    let dialect = spoken(&known)?;
    let lives: Vec<&str> = known.iter().map(|it| it.life.as_str()).collect();
    let both = |a: Option<Lengths>, b: Option<Lengths>| Some(a?.of_both(b?));
    let least = known.iter().map(|it| it.lengths).reduce(both).flatten();
    Ok(Found {
        software: format!("router of {}", first.software),
        dialect,
        life: wire::short_name(&[&[url], &lives[..]].concat()),
        lengths: least,
        derivation,
        pool_tokens: known.iter().map(|it| it.pool_tokens).min().unwrap_or(0),
        ranks: Vec::new(),
        group: 0,
        weight: 1,
        aborts_prefill: false,
        // Whoever of them is: the router cannot be told to leave it out.
        private: known.iter().find_map(|it| it.private.clone()),
    })
}

/// An engine behind it.
pub(super) struct Engine {
    /// What it was measured to be, last.
    pub(super) last: Option<Found>,
    /// Why it is not known now.
    pub(super) trouble: Option<String>,
}

fn spoken(known: &[&Found]) -> Result<Protocol, String> {
    let of = |found: &Found| match found.dialect {
        Protocol::Sglang { .. } => Some(Protocol::Sglang {
            role: Role::Router,
            bootstrap: None,
        }),
        Protocol::Vllm { .. } => Some(Protocol::Vllm { role: Role::Router }),
        Protocol::Llama => None,
    };
    let mut all = known.iter().map(|it| of(it));
    let first = all.next().flatten();
    let first = first.ok_or("routers of SGLang and of vLLM are spoken to")?;
    match all.all(|it| it.as_ref() == Some(&first)) {
        true => Ok(first),
        false => Err("engines of several kinds are behind it".to_owned()),
    }
}
