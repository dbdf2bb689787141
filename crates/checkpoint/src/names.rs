//! How Hugging Face and GGUF call the same things: one table of tensors, and what is done to some of them
//! on the way. (The other table, of keys, is `config`'s.)

use crate::family::Family;

/// What a tensor of a folder becomes.
#[derive(Debug, PartialEq)]
pub(crate) struct Named {
    pub(crate) name: String,
    pub(crate) change: Change,
}

/// What is done to its numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Change {
    Nothing,
    /// Rows of each head are put in pairs, as they are rotated: Hugging Face's Llama has the first of all
    /// pairs, then the second of all.
    Pairs(Heads),
    /// 1 is added to each.
    PlusOne,
    /// It says what is computed anyway.
    LeftOut,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Heads {
    Queries,
    Keys,
}

const WHOLE: [(&str, &str); 3] = [
    ("model.embed_tokens.weight", "token_embd.weight"),
    ("model.norm.weight", "output_norm.weight"),
    ("lm_head.weight", "output.weight"),
];

const OF_A_LAYER: [(&str, &str); 11] = [
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("post_attention_layernorm", "ffn_norm"),
];

/// What this tensor is called, and what becomes of it; `None` if no such model has it.
pub(crate) fn named(theirs: &str, family: &Family) -> Option<Named> {
    let whole = WHOLE.iter().find(|(name, _)| *name == theirs);
    let (name, part) = match whole {
        Some((_, name)) => ((*name).to_owned(), *name),
        None => {
            let (layer, rest) = theirs.strip_prefix("model.layers.")?.split_once('.')?;
            let layer: usize = layer
                .parse()
                .ok()
                .filter(|n: &usize| n.to_string() == layer)?;
            if rest == "self_attn.rotary_emb.inv_freq" {
                return Some(Named {
                    name: theirs.to_owned(),
                    change: Change::LeftOut,
                });
            }
            let (part, kind) = rest.rsplit_once('.')?;
            (kind == "weight" || kind == "bias").then_some(())?;
            let mut names = family.names.iter().chain(&OF_A_LAYER);
            let part = names.find(|(name, _)| *name == part)?.1;
            (format!("blk.{layer}.{part}.{kind}"), part)
        }
    };
    let change = match part {
        "attn_q" if family.pairs => Change::Pairs(Heads::Queries),
        "attn_k" if family.pairs => Change::Pairs(Heads::Keys),
        _ if family.norms_plus_one && name.ends_with("_norm.weight") => Change::PlusOne,
        _ => Change::Nothing,
    };
    Some(Named { name, change })
}
