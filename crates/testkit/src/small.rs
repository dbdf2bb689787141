use std::path::{Path, PathBuf};

use gguf::{DType, Metadata, Value};

use crate::{Writer, weights};

/// The shape of a small random Llama model. `SmallSpec::default()` is what most tests want:
/// two layers, a context of 512, Q8_0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SmallSpec {
    /// Transformer blocks.
    pub layers: usize,
    /// Width; with Q8_0 a multiple of 32.
    pub hidden: usize,
    /// Query heads; each has `hidden / heads` dimensions.
    pub heads: usize,
    /// Key-value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of the feed-forward layer; with Q8_0 a multiple of 32.
    pub ff: usize,
    /// Longest context, in tokens.
    pub context: usize,
    /// Same seed, same weights.
    pub seed: u64,
    /// How matrices are stored: F32 or Q8_0.
    pub dtype: DType,
}

impl Default for SmallSpec {
    fn default() -> SmallSpec {
        SmallSpec {
            layers: 2,
            hidden: 64,
            heads: 4,
            kv_heads: 2,
            ff: 128,
            context: 512,
            seed: 1,
            dtype: DType::Q8_0,
        }
    }
}

/// Standard deviation of attention scores (before the softmax), for inputs of norm 1: the
/// weight of a token varies much, and no token's is nothing.
const SCORES: f32 = 1.5;
/// How much attention and feed-forward outweigh the token they are added to. Large, so that a
/// continuation depends on the whole prompt and not on its last token.
const ATTENTION: f32 = 8.0;
const FEED_FORWARD: f32 = 2.0;

/// Writes the model to `dir`, unless that very model is there already, and gives its path. The
/// tokenizer and the chat template are the real ones ([`weights`]), so texts, tokens and limits
/// behave as with the real model; answers are nonsense, but each depends on its whole prompt: of
/// greedy answers of 16 tokens to 480 random ones, nearly 9 in 10 change with one token of the prompt,
/// and (in 24 trials) all with 16 neighbouring ones, a page.
/// Weights are random, equal for equal specs. About 9 MB.
pub fn small_gguf(dir: &Path, spec: SmallSpec) -> PathBuf {
    let SmallSpec {
        layers,
        hidden,
        heads,
        kv_heads,
        ff,
        context,
        seed,
        dtype,
    } = spec;
    let shape = format!("l{layers}-h{hidden}-a{heads}-k{kv_heads}-f{ff}-c{context}");
    let path = dir.join(format!("small-{shape}-s{seed}-{dtype}.gguf"));
    if path.is_file() {
        return path;
    }
    let part = tempfile::NamedTempFile::new_in(dir).expect("dir can be written to");
    let written = build(spec).write(part.path());
    written.unwrap_or_else(|error| panic!("cannot write {}: {error}", path.display()));
    part.persist(&path)
        .expect("a file can be renamed within a directory"); // whole or not at all
    path
}

fn build(spec: SmallSpec) -> Writer {
    let SmallSpec {
        layers,
        hidden,
        heads,
        kv_heads,
        ff,
        context,
        ..
    } = spec;
    assert!(
        hidden.is_multiple_of(heads) && heads.is_multiple_of(kv_heads),
        "{spec:?}"
    );
    let real = Metadata::open(&weights::path()).expect("the real weights can be read");
    let vocab = real
        .strings("tokenizer.ggml.tokens")
        .expect("the real weights have tokens")
        .len();
    let head_dim = hidden / heads;

    let mut file = Writer::new();
    let mut number = |key: &str, n: usize| {
        let n = u32::try_from(n).expect("sizes of a small model are small");
        file.key(&format!("llama.{key}"), Value::U32(n));
    };
    number("block_count", layers);
    number("context_length", context);
    number("embedding_length", hidden);
    number("feed_forward_length", ff);
    number("attention.head_count", heads);
    number("attention.head_count_kv", kv_heads);
    number("rope.dimension_count", head_dim);
    number("vocab_size", vocab);
    file.key("general.architecture", Value::String("llama".into()));
    file.key("general.name", Value::String("small random model".into()));
    file.key("llama.rope.freq_base", Value::F32(10_000.0));
    file.key("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5));
    for (key, value) in real.iter().filter(|(key, _)| key.starts_with("tokenizer.")) {
        file.key(key, value.clone());
    }

    let mut weights = Weights {
        file,
        random: Random(spec.seed),
        dtype: spec.dtype,
    };
    let kv = head_dim * kv_heads;
    weights.matrix("token_embd.weight", hidden, vocab, (hidden as f32).sqrt()); // each of variance 1
    for layer in 0..layers {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        weights.ones(&name("attn_norm"), hidden);
        weights.matrix(&name("attn_q"), hidden, hidden, SCORES);
        weights.matrix(&name("attn_k"), hidden, kv, 1.0);
        weights.matrix(&name("attn_v"), hidden, kv, 1.0);
        weights.matrix(&name("attn_output"), hidden, hidden, ATTENTION);
        weights.ones(&name("ffn_norm"), hidden);
        weights.matrix(&name("ffn_gate"), hidden, ff, 1.0);
        weights.matrix(&name("ffn_up"), hidden, ff, 1.0);
        weights.matrix(&name("ffn_down"), ff, hidden, FEED_FORWARD);
    }
    weights.ones("output_norm.weight", hidden);
    // A head of its own: with a tied one a random model mostly repeats its last token.
    weights.matrix("output.weight", hidden, vocab, 4.0);
    weights.file
}

struct Weights {
    file: Writer,
    random: Random,
    dtype: DType,
}

impl Weights {
    /// Random numbers such that inputs of variance 1 give outputs of standard deviation `gain`.
    fn matrix(&mut self, name: &str, inputs: usize, outputs: usize, gain: f32) {
        let scale = gain / (inputs as f32).sqrt();
        let numbers: Vec<f32> = (0..inputs * outputs)
            .map(|_| self.random.normal() * scale)
            .collect();
        self.file
            .tensor(name, &[inputs, outputs], self.dtype, &numbers);
    }

    fn ones(&mut self, name: &str, len: usize) {
        self.file.tensor(name, &[len], DType::F32, &vec![1.0; len]);
    }
}

/// SplitMix64: the same numbers on every machine and in every version.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Nearly normal, mean 0 and variance 1: the sum of four uniform numbers of 16 bits. Only
    /// exact arithmetic and one correctly rounded division, so it is equal on every machine.
    pub(crate) fn normal(&mut self) -> f32 {
        let bits = self.next();
        let sum: u64 = (0..4).map(|part| bits >> (16 * part) & 0xFFFF).sum();
        const VARIANCE_ROOT: f32 = 37_837.228; // of four uniform numbers: 65536 * sqrt(4 / 12)
        (sum as f32 - 131_070.0) / VARIANCE_ROOT
    }
}
