//! Kinds of models, by `model_type`: what differs from one to the other in `config.json` and in the names and
//! numbers of tensors.

/// How one kind of models differs from the others, as far as its files go.
#[derive(Debug)]
pub(crate) struct Family {
    /// `model_type` in `config.json`.
    pub(crate) model_type: &'static str,
    /// `general.architecture` of its GGUF.
    pub(crate) architecture: &'static str,
    /// Rows of queries and keys are stored in halves, and a GGUF has them in pairs.
    pub(crate) pairs: bool,
    /// Whether the head is the embedding, where the file does not say.
    pub(crate) tied: bool,
    pub(crate) window: Window,
    /// What the gate goes through.
    pub(crate) activation: &'static str,
    /// Tensors of a layer that are called as no other kind calls them.
    pub(crate) names: &'static [(&'static str, &'static str)],
    /// Norms multiply with 1 more than their weights, which is what a GGUF has.
    pub(crate) norms_plus_one: bool,
    /// Only some of a head may be rotated, and positions may be scaled by two lists of factors.
    pub(crate) long_rope: bool,
    /// Keys that only it has.
    pub(crate) own_keys: &'static [&'static str],
    /// Keys without which `transformers` takes numbers of its own.
    pub(crate) needed: &'static [&'static str],
}

/// What `sliding_window` means.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Window {
    /// Layers have one if it is a number.
    Own,
    /// Nothing unless `use_sliding_window`, and then it is not known.
    Unused,
    /// All layers but every n-th have one.
    AllBut(u64),
}

const LLAMA: Family = Family {
    model_type: "llama",
    architecture: "llama",
    pairs: true,
    tied: false,
    window: Window::Unused,
    activation: "silu",
    names: &[],
    norms_plus_one: false,
    long_rope: false,
    own_keys: &[],
    needed: &[],
};

const GEMMA2: Family = Family {
    model_type: "gemma2",
    architecture: "gemma2",
    pairs: false,
    tied: true,
    window: Window::AllBut(2),
    activation: "gelu_pytorch_tanh",
    names: &[
        ("post_attention_layernorm", "post_attention_norm"),
        ("pre_feedforward_layernorm", "ffn_norm"),
        ("post_feedforward_layernorm", "post_ffw_norm"),
    ],
    norms_plus_one: true,
    own_keys: &[
        "hidden_activation",
        "query_pre_attn_scalar",
        "attn_logit_softcapping",
        "final_logit_softcapping",
    ],
    needed: &[
        "head_dim",
        "num_key_value_heads",
        "query_pre_attn_scalar",
        "sliding_window",
    ],
    ..LLAMA
};

pub(crate) const FAMILIES: [Family; 7] = [
    LLAMA,
    Family {
        model_type: "mistral",
        window: Window::Own,
        ..LLAMA
    },
    Family {
        model_type: "qwen2",
        architecture: "qwen2",
        pairs: false,
        ..LLAMA
    },
    Family {
        model_type: "qwen3",
        architecture: "qwen3",
        pairs: false,
        ..LLAMA
    },
    Family {
        model_type: "phi3",
        architecture: "phi3",
        pairs: false,
        window: Window::Own,
        names: &[
            ("self_attn.qkv_proj", "attn_qkv"),
            ("mlp.gate_up_proj", "ffn_up"),
        ],
        long_rope: true,
        ..LLAMA
    },
    GEMMA2,
    Family {
        model_type: "gemma3_text",
        architecture: "gemma3",
        window: Window::AllBut(6),
        own_keys: &[
            "hidden_activation",
            "query_pre_attn_scalar",
            "attn_logit_softcapping",
            "final_logit_softcapping",
            "rope_local_base_freq",
            "sliding_window_pattern",
            "_sliding_window_pattern",
        ],
        ..GEMMA2
    },
];
