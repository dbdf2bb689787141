//! What an engine is and takes, by its own figures.

use crate::args::{EngineAt, EngineRole};
use gate::facts::{Engine as Software, Node, Role as Says};
use gateway::door::Found;
use gateway::door::dialect::{Protocol, Role};
use handoff::Lengths;

/// Where SGLang's decodes find a prefill, unless it was started otherwise.
const BOOTSTRAP: u16 = 8998;

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
    let (lengths, how) = lengths(node, role)?;
    let version = node.version.as_ref().map(|it| it.value.to_string());
    let pool_tokens = node.smallest_pool().map_or(0, |pool| pool.value);
    let version = version.unwrap_or_default();
    let started = node.life.as_ref().map(|it| it.value.as_str());
    let life = wire::short_name(&[
        &at.url,
        software.value.name(),
        &version,
        &format!("{pool_tokens} {lengths:?}"),
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
fn lengths(node: &Node, role: Role) -> Result<(Lengths, String), Unusable> {
    let pool = node.smallest_pool();
    let pool = pool
        .map_err(|why| Unusable::new("does not say its pool", why))?
        .value;
    let context = node.context.as_ref().or(node.advertised.as_ref());
    let context = context.map_err(|why| Unusable::new("does not say its context", why))?;
    let context = context.value;
    let most = u64::from(u32::MAX);
    let (sum, room) = match role {
        Role::Prefill => (context, pool),
        _ => (context.min(pool), pool.saturating_sub(1)),
    };
    let accepted = node.max_prompt.as_ref().map_or(most, |it| it.value);
    let beside = node.asides.as_ref().map_or(&[][..], Vec::as_slice);
    let beside = beside.iter().filter_map(|aside| aside.tokens).min();
    let beside = beside.unwrap_or(most);
    let prompt = accepted
        .min(context.saturating_sub(1))
        .min(room)
        .min(beside);
    let small = |tokens: u64| u32::try_from(tokens.min(most)).unwrap_or(u32::MAX);
    let accepts = match accepted == most {
        true => String::new(),
        false => format!(", accepts {accepted}"),
    };
    let how = format!("prompts up to {prompt}: pool {pool}, context {context}{accepts}");
    if prompt == 0 || sum == 0 {
        return Err(Unusable::new("takes no prompt", how));
    }
    let lengths = Lengths {
        max_prompt: small(prompt),
        max_model_len: small(sum.min(beside)),
    };
    Ok((lengths, how))
}
