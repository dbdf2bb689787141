//! What each architecture computes: one description each. `config` reads the keys that it names,
//! `weights` the tensors, `layer` takes the steps; none of them knows an architecture by its name.

/// A description: which of the shared blocks a model is made of.
#[derive(Debug, PartialEq, Eq)]
pub struct Architecture {
    /// As `general.architecture` has it; also what its keys begin with.
    pub name: &'static str,
    /// Whose models these are.
    pub models: &'static str,
    pub(crate) pairs: Pairs,
    pub(crate) projections: Projections,
    /// Queries and keys of each head are normed before they are rotated (`attn_q_norm`, …).
    pub(crate) head_norms: bool,
    /// What attention and feed-forward give is normed before it is added (`post_…_norm`).
    pub(crate) post_norms: bool,
    pub(crate) feed_forward: FeedForward,
    /// Which tensors divide the frequencies by which pairs are rotated.
    pub(crate) factors: Factors,
    pub(crate) activation: Activation,
    /// Embeddings are multiplied with the root of their width.
    pub(crate) embedding_scaled: bool,
    /// Scores and logits are bounded by a hyperbolic tangent (`…_logit_softcapping`).
    pub(crate) soft_caps: bool,
    pub(crate) windows: Windows,
    /// What local layers rotate by where the file does not say; `None`: as the others do.
    pub(crate) local_rope_base: Option<u32>,
    /// Models of so many layers scale scores by the width of the model over its heads, and not by
    /// that of a head: no key says so.
    pub(crate) scaled_by_width: Option<usize>,
}

/// Which two values of a head are rotated together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pairs {
    /// 2i and 2i + 1.
    Neighbours,
    /// i and i + half of the rotated dimensions.
    Halves,
}

/// Where queries, keys and values come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Projections {
    /// A matrix each.
    Apart,
    /// A matrix and a bias each.
    Biased,
    /// One matrix: rows of queries, then of keys, then of values.
    Fused,
    /// Queries of their own; keys and values are made of one latent row a token, which is what the
    /// cache holds beside one rotated key for all heads.
    Latent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FeedForward {
    /// `ffn_gate`, `ffn_up`, `ffn_down`.
    Gated,
    /// `ffn_up` has the rows of the gate, then its own.
    Fused,
    /// Several gated ones, of which a router chooses for each token. Whether the weights of the
    /// chosen ones are made to sum to 1, where the file does not say.
    Experts { normed: bool },
}

/// Tensors of factors for the frequencies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Factors {
    None,
    /// `rope_freqs.weight`, where the file has it.
    One,
    /// `rope_factors_short.weight` and `…_long.weight`, where the file has them: the short ones up
    /// to the original context, which is then where the context ends.
    ShortAndLong,
}

/// What the gate goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activation {
    Silu,
    /// The approximation by a hyperbolic tangent.
    Gelu,
}

/// Which layers see only the last tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Windows {
    /// None; a file that names a window is refused.
    Never,
    /// All, if the file names a window.
    All,
    /// All but every n-th; the file names the window.
    AllBut(usize),
}

const LLAMA: Architecture = Architecture {
    name: "llama",
    models: "Llama 3, 3.1, 3.2 and 3.3 (text), SmolLM and SmolLM2, Mistral, and what was trained from them without a change of shape",
    pairs: Pairs::Neighbours,
    projections: Projections::Apart,
    head_norms: false,
    post_norms: false,
    feed_forward: FeedForward::Gated,
    factors: Factors::One,
    activation: Activation::Silu,
    embedding_scaled: false,
    soft_caps: false,
    windows: Windows::All,
    local_rope_base: None,
    scaled_by_width: None,
};

/// What most of the others begin from.
const PLAIN: Architecture = Architecture {
    pairs: Pairs::Halves,
    windows: Windows::Never,
    factors: Factors::None,
    ..LLAMA
};

/// All that are computed.
pub static ARCHITECTURES: [Architecture; 8] = [
    LLAMA,
    Architecture {
        name: "qwen2",
        models: "Qwen2, Qwen2.5 (text)",
        projections: Projections::Biased,
        ..PLAIN
    },
    Architecture {
        name: "qwen3",
        models: "Qwen3 (dense)",
        head_norms: true,
        ..PLAIN
    },
    Architecture {
        name: "phi3",
        models: "Phi-3, Phi-3.5 and Phi-4 (text)",
        projections: Projections::Fused,
        feed_forward: FeedForward::Fused,
        factors: Factors::ShortAndLong,
        windows: Windows::All,
        ..PLAIN
    },
    Architecture {
        name: "gemma2",
        models: "Gemma 2",
        post_norms: true,
        activation: Activation::Gelu,
        embedding_scaled: true,
        soft_caps: true,
        windows: Windows::AllBut(2),
        scaled_by_width: Some(46),
        ..PLAIN
    },
    Architecture {
        name: "gemma3",
        models: "Gemma 3 (text)",
        head_norms: true,
        post_norms: true,
        activation: Activation::Gelu,
        embedding_scaled: true,
        windows: Windows::AllBut(6),
        local_rope_base: Some(10_000),
        scaled_by_width: Some(62),
        ..PLAIN
    },
    Architecture {
        name: "qwen3moe",
        models: "Qwen3 (mixture of experts)",
        head_norms: true,
        feed_forward: FeedForward::Experts { normed: true },
        ..PLAIN
    },
    Architecture {
        name: "deepseek2",
        models: "DeepSeek-V2-Lite's shape, without YaRN",
        pairs: Pairs::Neighbours,
        projections: Projections::Latent,
        feed_forward: FeedForward::Experts { normed: false },
        ..PLAIN
    },
];
