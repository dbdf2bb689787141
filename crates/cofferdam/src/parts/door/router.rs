//! Somebody else's router, to which everything goes (`--judge-only`): what it takes is what each of the
//! engines behind it takes, for whom it will choose is not known.

use gateway::door::Found;
use gateway::door::dialect::{Protocol, Role};
use handoff::Lengths;

/// What from here cannot be kept, said at the start.
pub(super) const NOT_KEPT: &str = "judge-only: lengths, keys and isolation domains are judged, and a client's \
                                   leaving breaks no transfer that can be seen from here. Not kept: prefill's own \
                                   answer is not seen (an aborted or cut prefill that decode answers after), engines \
                                   cannot be closed one by one, tools and response formats are refused";

/// The router, by what is known of the engines behind it: what each was last, or why that is not known.
pub(super) fn behind(url: &str, engines: &[Engine<'_>]) -> Result<Found, String> {
    let mut known: Vec<&Found> = Vec::new();
    let mut derivation = Vec::new();
    for engine in engines {
        let name = engine.name;
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
pub(super) struct Engine<'a> {
    pub(super) name: &'a str,
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

#[cfg(test)]
mod tests {
    use super::*;

    fn found(dialect: Protocol, max_prompt: u32) -> Found {
        Found {
            dialect,
            software: "an engine".into(),
            life: format!("life {max_prompt}"),
            lengths: Some(Lengths {
                max_prompt,
                max_model_len: 4096,
            }),
            derivation: Vec::new(),
            pool_tokens: 8000,
            ranks: Vec::new(),
            group: 0,
            weight: 1,
            aborts_prefill: false,
            private: None,
        }
    }

    fn sglang(role: Role, max_prompt: u32) -> Found {
        let bootstrap = Some(8998);
        found(Protocol::Sglang { role, bootstrap }, max_prompt)
    }

    fn of(engines: [Found; 2]) -> Result<Found, String> {
        let engine = |last| Engine {
            name: "one",
            last: Some(last),
            trouble: None,
        };
        behind("http://router", &engines.map(engine))
    }

    #[test]
    fn what_is_behind_a_router_are_engines_of_one_kind() {
        let vllm = |role| found(Protocol::Vllm { role }, 9);
        let pair = of([sglang(Role::Prefill, 20), sglang(Role::Decode, 10)]).unwrap();
        assert_eq!(pair.lengths.unwrap().max_prompt, 10, "of the smaller");
        let spoken = Protocol::Sglang {
            role: Role::Router,
            bootstrap: None,
        };
        assert_eq!(pair.dialect, spoken);
        assert!(of([vllm(Role::Prefill), vllm(Role::Decode)]).is_ok());
        let kinds = of([sglang(Role::Prefill, 20), vllm(Role::Decode)]);
        assert_eq!(kinds.unwrap_err(), "engines of several kinds are behind it");
        let llama = || found(Protocol::Llama, 9);
        assert!(of([llama(), llama()]).is_err(), "no router speaks to those");
        assert!(of([sglang(Role::Prefill, 20), llama()]).is_err());
        assert!(behind("http://router", &[]).is_err(), "nor to none");
    }

    /// It chooses itself: what holds for one of them holds for every request.
    #[test]
    fn what_is_closed_of_one_is_closed_of_all() {
        for at in 0..2 {
            let mut pair = [sglang(Role::Prefill, 20), sglang(Role::Decode, 10)];
            pair[at].private = Some("a leak".into());
            let router = of(pair).unwrap();
            assert_eq!(router.private.as_deref(), Some("a leak"));
            let mut pair = [sglang(Role::Prefill, 20), sglang(Role::Decode, 10)];
            pair[at].lengths = None;
            assert_eq!(of(pair).unwrap().lengths, None, "not known of one");
        }
    }
}
