//! What an engine is and takes, by its own figures.

use crate::args::{EngineAt, EngineRole};
use gate::facts::{Engine as Software, FigureSource, Node, Rank, Role as Says, Version};
use gateway::door::Found;
use gateway::door::dialect::{Protocol, RANKS_MAX, Role};
use handoff::Lengths;

/// Where SGLang's decodes find a prefill, unless it was started otherwise.
const BOOTSTRAP: u16 = 8998;
/// From this SGLang on both requests of a pair may name the data-parallel rank of prefill, as seen on it.
const NAMES_RANKS: &str = "0.5.23";

/// Why nothing goes to an engine.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Unusable {
    /// What clients may hear: no address in it.
    pub(super) what: &'static str,
    /// What the operator hears besides.
    pub(super) how: String,
}

impl Unusable {
    pub(super) fn new(what: &'static str, how: impl ToString) -> Self {
        let how = how.to_string();
        Self { what, how }
    }
}

/// What the engine is and takes, by its own figures.
pub(super) fn found(at: &EngineAt, node: &Node) -> Result<Found, Unusable> {
    let software = node.engine.as_ref();
    let software = software.map_err(|why| Unusable::new("does not say what it is", why))?;
    let role = role(at, node)?;
    let dialect = match software.value {
        Software::Sglang => Protocol::Sglang {
            role,
            bootstrap: (role == Role::Prefill).then_some(at.bootstrap.unwrap_or(BOOTSTRAP)),
        },
        Software::Vllm => Protocol::Vllm { role },
        Software::LlamaCpp if role == Role::Alone => Protocol::Llama,
        other => return Err(Unusable::new("is of a kind that is not spoken to", other)),
    };
    let (lengths, ranks, how) = lengths(node, role)?;
    let version = node.version.as_ref().map(|it| it.value.to_string());
    let pool_tokens = node.smallest_pool().map_or(0, |pool| pool.value);
    let version = version.unwrap_or_default();
    let started = node.life.as_ref().map(|it| it.value.as_str());
    let life = wire::short_name(&[
        &at.url,
        software.value.name(),
        &version,
        &match ranks.is_empty() {
            true => format!("{pool_tokens} {lengths:?}"),
            false => format!("{pool_tokens} {lengths:?} {ranks:?}"),
        },
        started.unwrap_or_default(),
        at.pod.as_deref().unwrap_or_default(),
    ]);
    Ok(Found {
        software: format!("{} {version}", software.value),
        dialect,
        life,
        lengths: Some(lengths),
        derivation: vec![how],
        pool_tokens,
        ranks,
        group: at.group,
        weight: at.weight,
        aborts_prefill: at.aborts,
        private: None,
    })
}

/// What it says that it does counts; where it does not say, or could be either, what it was named.
fn role(at: &EngineAt, node: &Node) -> Result<Role, Unusable> {
    let named = at.role.map(|named| match named {
        EngineRole::Prefill => Role::Prefill,
        EngineRole::Decode => Role::Decode,
    });
    let says = match node.role.as_ref().map(|it| it.value) {
        Ok(Says::Prefill) => Role::Prefill,
        Ok(Says::Decode) => Role::Decode,
        Ok(Says::Whole) => Role::Alone,
        Ok(Says::Either) => {
            let how = "name it prefill=URL or decode=URL";
            return named.ok_or_else(|| Unusable::new("can be prefill or decode", how));
        }
        Err(why) => return named.ok_or_else(|| Unusable::new("does not say its role", why)),
    };
    match named {
        Some(named) if named != says => Err(Unusable::new(
            "says another role than it was named",
            format!("named {named:?}, says {says:?}"),
        )),
        _ => Ok(says),
    }
}

/// The smallest of what it measured: prefill's pool holds prompts, decode's prompt and answer.
fn lengths(node: &Node, role: Role) -> Result<(Lengths, Vec<u32>, String), Unusable> {
    let smallest = node.smallest_pool();
    let smallest = smallest
        .map_err(|why| Unusable::new("does not say its pool", why))?
        .value;
    let context = node.context.as_ref().or(node.advertised.as_ref());
    let context = context.map_err(|why| Unusable::new("does not say its context", why))?;
    let context = context.value;
    let most = u64::from(u32::MAX);
    let sum = match role {
        Role::Prefill => context,
        _ => context.min(smallest),
    };
    let accepted = node.max_prompt.as_ref().map_or(most, |it| it.value);
    let beside = node.asides.as_ref().map_or(&[][..], Vec::as_slice);
    let beside = beside.iter().filter_map(|aside| aside.tokens).min();
    let beside = beside.unwrap_or(most);
    let pools = pools_by_rank(node.ranks.as_ref().map_or(&[], Vec::as_slice));
    let longest = |pool: u64| {
        // What is accepted was measured of the smallest; another keeps as much of its pool or context free.
        let accepted = match accepted == most {
            true => most,
            false => {
                let free = context.min(smallest).saturating_sub(accepted);
                context.min(pool).saturating_sub(free)
            }
        };
        let room = match role {
            Role::Prefill => pool,
            _ => pool.saturating_sub(1),
        };
        let most = accepted.min(context.saturating_sub(1));
        most.min(room).min(beside)
    };
    let ranks: Vec<u64> = match role == Role::Prefill && names_ranks(node) {
        true => pools.iter().map(|pool| longest(*pool)).collect(),
        false => Vec::new(),
    };
    let prompt = ranks
        .iter()
        .copied()
        .max()
        .unwrap_or_else(|| longest(smallest));
    let small = |tokens: u64| u32::try_from(tokens.min(most)).unwrap_or(u32::MAX);
    let accepts = match accepted == most {
        true => String::new(),
        false => format!(", accepts {accepted}"),
    };
    let each: Vec<String> = ranks.iter().map(u64::to_string).collect();
    let each = match each.is_empty() {
        true => String::new(),
        false => format!(", by data-parallel rank up to {}", each.join(", ")),
    };
    let how = format!("prompts up to {prompt}: pool {smallest}, context {context}{accepts}{each}");
    if prompt == 0 || sum == 0 {
        return Err(Unusable::new("takes no prompt", how));
    }
    let lengths = Lengths {
        max_prompt: small(prompt),
        max_model_len: small(sum.min(beside)),
    };
    Ok((lengths, ranks.into_iter().map(small).collect(), how))
}

fn names_ranks(node: &Node) -> bool {
    let is_sglang = node
        .engine
        .as_ref()
        .is_ok_and(|it| it.value == Software::Sglang);
    let from = Version::parse(NAMES_RANKS);
    is_sglang
        && node
            .version
            .as_ref()
            .is_ok_and(|it| from.is_some_and(|from| it.value >= from))
}

/// Pools of several data-parallel ranks by their number; none where it is not known of each whose its is, or
/// where there are more than can be named.
fn pools_by_rank(ranks: &[Rank]) -> Vec<u64> {
    let by_number = |(n, rank): (usize, &Rank)| {
        let pool = rank.pool.as_ref().ok()?;
        let FigureSource::Field { field, .. } = &pool.source else {
            return None;
        };
        let top = n == 0 && field == "max_total_num_tokens";
        let metric = field.contains(&format!("dp_rank=\"{n}\""));
        let numbered = field.starts_with("loads[") || metric || top;
        (numbered && rank.name == format!("dp {n}")).then_some(pool.value)
    };
    let pools: Option<Vec<u64>> = ranks.iter().enumerate().map(by_number).collect();
    pools
        .filter(|it| (2..=RANKS_MAX).contains(&it.len()))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gate::facts::Measured;

    const NONE: [u64; 0] = [];

    fn said(ranks: &[(&str, &str, u64)]) -> Vec<u64> {
        let rank = |(name, field, pool): &(&str, &str, u64)| Rank {
            name: (*name).to_owned(),
            pool: Ok(Measured::new(
                *pool,
                FigureSource::Field {
                    url: "http://p:1/x".to_owned(),
                    field: (*field).to_owned(),
                },
            )),
        };
        pools_by_rank(&ranks.iter().map(rank).collect::<Vec<_>>())
    }

    /// A prompt that goes to a rank by its number goes to one that holds it: a pool that may be another's is no
    /// reason to name it.
    #[test]
    fn a_pool_whose_rank_is_not_certain_names_none() {
        let loads = |n: u64| format!("loads[{n}].max_total_num_tokens");
        let metric =
            |n: u64| format!("sglang:max_total_num_tokens{{dp_rank=\"{n}\",tp_rank=\"0\"}}");
        let (first, second) = (loads(0), loads(1));
        for (fields, known) in [
            ([first.as_str(), second.as_str()], true),
            (["max_total_num_tokens", &second], true),
            ([&metric(0), &metric(1)], true),
            // Of states nobody says whose they are, nor of a metric without a number or with another's.
            (
                [&first, "internal_states[1].memory_usage.token_capacity"],
                false,
            ),
            (
                ["internal_states[0].memory_usage.token_capacity", &second],
                false,
            ),
            (["sglang:max_total_num_tokens", &second], false),
            ([&metric(1), &metric(0)], false),
            ([&metric(0), &metric(11)], false),
            ([&first, "max_total_num_tokens"], false),
        ] {
            let pools = said(&[("dp 0", fields[0], 2000), ("dp 1", fields[1], 600)]);
            let expected = if known { vec![2000, 600] } else { vec![] };
            assert_eq!(pools, expected, "{fields:?}");
        }
        let others = "other ranks, if there are any";
        assert_eq!(
            said(&[("dp 0", &first, 2000), (others, &second, 600)]),
            NONE
        );
        assert_eq!(
            said(&[("dp 1", &first, 600), ("dp 0", &second, 2000)]),
            NONE
        );
        assert_eq!(
            said(&[("dp 0", &first, 2000)]),
            NONE,
            "one alone has no number"
        );
        let many = |n: usize| -> Vec<u64> {
            let names: Vec<_> = (0..n)
                .map(|n| (format!("dp {n}"), loads(n as u64)))
                .collect();
            let ranks: Vec<_> = names
                .iter()
                .map(|(name, field)| (name.as_str(), field.as_str(), 9))
                .collect();
            said(&ranks)
        };
        assert_eq!(many(RANKS_MAX).len(), RANKS_MAX);
        assert_eq!(many(RANKS_MAX + 1), NONE, "more than can be named");
    }
}
