//! Weights that copy: two attention layers, set by hand.
//!
//! The first layer's head looks one token back and notes which it was; the second one's looks for
//! the places where that note is the token of now, and says what stood there. So the model goes on
//! with whatever it has read before, word for word, in milliseconds: it quotes its own prompt, and
//! would quote anybody's that it attends to. `guards/python/interop/copying_model.py` makes the
//! same for engines that read Hugging Face folders.

use crate::small::Random;
use crate::{Writer, weights};
use gguf::{DType, Metadata, Value};
use std::path::{Path, PathBuf};

/// Width of the model, of its only used head, and of a token's code.
const HIDDEN: usize = 256;
const HEAD: usize = 128;
const CODE: usize = 64;
const FF: usize = 32;
/// The first so many tokens are control tokens and have no code: after one of them the model says
/// what stands about [`FAR`] back.
const CONTROL: usize = 17;
/// Where the code of the previous token is noted.
const NOTE: usize = CODE;
/// A value that every token has: what does not depend on the token is made of it.
const ALWAYS: usize = 2 * CODE;
const EVER: f32 = 8.0;
/// Of several places the second layer prefers those about so many tokens back, and where none fits it
/// says what stands there. Nearer ones would be its own last words: it would go round in circles.
const FAR: u8 = 40;
/// Base of the rotary frequencies: the first pairs turn fast enough to tell neighbours apart, the
/// last 32 do not turn at all within any context.
const BASE: f32 = 1e12;
const STILL: usize = HEAD - CODE;

/// Writes the model with this context to `dir`, unless it is there already, and gives its path.
/// Tokenizer and chat template are the real ones. About 15 MB.
pub fn copying_gguf(dir: &Path, context: usize) -> PathBuf {
    let path = dir.join(format!("copying-c{context}.gguf"));
    if path.is_file() {
        return path;
    }
    let part = tempfile::NamedTempFile::new_in(dir).expect("dir can be written to");
    let written = build(context).write(part.path());
    written.unwrap_or_else(|error| panic!("cannot write {}: {error}", path.display()));
    part.persist(&path)
        .expect("a file can be renamed within a directory"); // whole or not at all
    path
}

fn build(context: usize) -> Writer {
    let real = Metadata::open(&weights::path()).expect("the real weights can be read");
    let tokens = real.strings("tokenizer.ggml.tokens");
    let vocab = tokens.expect("the real weights have tokens").len();
    let mut file = Writer::new();
    let mut number = |key: &str, n: usize| {
        let n = u32::try_from(n).expect("sizes of a small model are small");
        file.key(&format!("llama.{key}"), Value::U32(n));
    };
    number("block_count", 2);
    number("context_length", context);
    number("embedding_length", HIDDEN);
    number("feed_forward_length", FF);
    number("attention.head_count", HIDDEN / HEAD);
    number("attention.head_count_kv", 1);
    number("rope.dimension_count", HEAD);
    number("vocab_size", vocab);
    file.key("general.architecture", Value::String("llama".into()));
    file.key("general.name", Value::String("copying model".into()));
    file.key("llama.rope.freq_base", Value::F32(BASE));
    file.key("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5));
    for (key, value) in real.iter().filter(|(key, _)| key.starts_with("tokenizer.")) {
        file.key(key, value.clone());
    }
    let mut embedding = vec![0.0; vocab * HIDDEN];
    for (token, row) in embedding.chunks_exact_mut(HIDDEN).enumerate() {
        if token < CONTROL {
            row[ALWAYS] = EVER / 2.0; // less likely than any other where nothing is
            continue;
        }
        row[ALWAYS] = EVER;
        let code = Random(token as u64).next();
        for (bit, value) in row[..CODE].iter_mut().enumerate() {
            *value = if code >> bit & 1 == 1 { 1.0 } else { -1.0 };
        }
    }
    let dims = [HIDDEN, vocab];
    file.tensor("token_embd.weight", &dims, DType::Q8_0, &embedding); // and the head: tied
    // After the first layer a token holds a note, and its norm is another.
    for (n, (layer, coded)) in [previous(), lookup()].into_iter().zip([1, 2]).enumerate() {
        let squares = (coded * CODE) as f32 + EVER * EVER;
        put(&mut file, n, &layer, (squares / HIDDEN as f32).sqrt());
    }
    file.tensor("output_norm.weight", &[HIDDEN], DType::F32, &[1.0; HIDDEN]);
    file
}

/// A matrix: rows of outputs.
struct Matrix(Vec<f32>, usize);

impl Matrix {
    fn new(inputs: usize, outputs: usize) -> Self {
        Self(vec![0.0; inputs * outputs], inputs)
    }

    fn set(&mut self, output: usize, input: usize, value: f32) {
        self.0[output * self.1 + input] = value;
    }

    fn at(&self, output: usize, input: usize) -> f32 {
        self.0[output * self.1 + input]
    }
}

struct Layer {
    query: Matrix,
    key: Matrix,
    value: Matrix,
    output: Matrix,
}

impl Layer {
    fn new() -> Self {
        let mut value = Matrix::new(HIDDEN, HEAD);
        (0..CODE).for_each(|bit| value.set(bit, bit, 1.0));
        Self {
            query: Matrix::new(HIDDEN, HIDDEN),
            key: Matrix::new(HIDDEN, HEAD),
            value,
            output: Matrix::new(HIDDEN, HIDDEN),
        }
    }

    /// Scores that are highest so many tokens back: keys are turned ahead by as many.
    fn back(&mut self, tokens: u8, pairs: std::ops::Range<usize>, scale: f32) {
        for pair in pairs {
            let turn = f32::from(tokens) * BASE.powf(-(2.0 * pair as f32) / HEAD as f32);
            self.query.set(2 * pair, ALWAYS, scale / EVER);
            self.key.set(2 * pair, ALWAYS, scale * turn.cos() / EVER);
            self.key
                .set(2 * pair + 1, ALWAYS, scale * turn.sin() / EVER);
        }
    }

    /// Lowers the score of a token's own place. Where the token before is missing, as on stale
    /// pages, a token's note is itself, and it would say itself for ever.
    fn not_itself(&mut self, pairs: std::ops::Range<usize>, force: f32) {
        for pair in pairs {
            let query = match self.query.at(2 * pair, ALWAYS) {
                0.0 => 1.0,
                query => query,
            };
            self.query.set(2 * pair, ALWAYS, query);
            let key = self.key.at(2 * pair, ALWAYS) - force / (EVER * EVER * query);
            self.key.set(2 * pair, ALWAYS, key);
        }
    }
}

/// Notes the code of the previous token.
fn previous() -> Layer {
    let mut layer = Layer::new();
    layer.back(1, 0..17, 16.0);
    (0..CODE).for_each(|bit| layer.output.set(NOTE + bit, bit, 1.0));
    layer
}

/// Says what followed the token of now.
fn lookup() -> Layer {
    let mut layer = Layer::new();
    for bit in 0..CODE {
        layer.query.set(STILL + bit, bit, 2.5);
        layer.key.set(STILL + bit, NOTE + bit, 2.5);
        layer.output.set(bit, bit, 4.0);
    }
    layer.back(FAR, 2..16, 3.4);
    layer.not_itself(0..7, 60.0);
    layer
}

/// Writes a layer whose inputs have this root mean square before they are normed.
fn put(file: &mut Writer, n: usize, layer: &Layer, rms: f32) {
    let name = |part: &str| format!("blk.{n}.{part}.weight");
    let mut matrix = |part: &str, matrix: &Matrix, factor: f32| {
        let dims = [matrix.1, matrix.0.len() / matrix.1];
        let numbers: Vec<f32> = matrix.0.iter().map(|it| it * factor).collect();
        file.tensor(&name(part), &dims, DType::F32, &numbers);
    };
    matrix("attn_q", &layer.query, rms);
    matrix("attn_k", &layer.key, rms);
    matrix("attn_v", &layer.value, rms);
    matrix("attn_output", &layer.output, 1.0);
    for (part, inputs, outputs) in [
        ("ffn_gate", HIDDEN, FF),
        ("ffn_up", HIDDEN, FF),
        ("ffn_down", FF, HIDDEN),
    ] {
        matrix(part, &Matrix::new(inputs, outputs), 1.0);
    }
    for norm in ["attn_norm", "ffn_norm"] {
        file.tensor(&name(norm), &[HIDDEN], DType::F32, &[1.0; HIDDEN]);
    }
}
