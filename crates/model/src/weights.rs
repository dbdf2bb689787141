//! Loading: from GGUF tensors to packed matrices.

use std::collections::BTreeSet;

use gguf::{RowReader, Tensor};
use kernels::{Arena, BLOCK, Isa, Kernels, Matrix, PackedF32, PackedInt8};

use crate::architecture::{Factors, FeedForward, Projections};
use crate::config::unsupported;
use crate::exec::Exec;
use crate::rope::{FACTORS, LONG_FACTORS, Rope, SHORT_FACTORS};
use crate::{Config, Error, Experts, Latent};

/// Which arithmetic runs (see the crate's documentation).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Numeric {
    /// f32 weights and activations: the oracle. Takes four bytes a weight.
    Exact,
    /// Quantized weights, int8 activations.
    Fast,
}

/// How to load a model.
#[derive(Clone, Copy, Debug)]
pub struct LoadOptions {
    /// Which arithmetic runs.
    pub numeric: Numeric,
    /// Which instruction set runs it.
    pub isa: Isa,
    /// Threads that compute; 0 counts as 1. With 1 the caller's own thread computes.
    pub threads: usize,
}

impl Default for LoadOptions {
    fn default() -> Self {
        LoadOptions {
            numeric: Numeric::Fast,
            isa: Isa::detect(),
            threads: 1,
        }
    }
}

/// A loaded model. Immutable: share it by reference between as many callers as wanted.
#[derive(Debug)]
pub struct Model {
    pub(crate) config: Config,
    pub(crate) numeric: Numeric,
    pub(crate) exec: Exec,
    pub(crate) rope: Rope,
    /// Of layers with a window, where they rotate by another base.
    pub(crate) local_rope: Option<Rope>,
    pub(crate) embedding: Matrix,
    pub(crate) layers: Vec<Layer>,
    pub(crate) output_norm: Vec<f32>,
    /// None if the head is tied to the embedding.
    pub(crate) output: Option<Matrix>,
    fingerprint: [u8; 32],
}

/// The weights of one transformer layer; what is `None` is a step that is not taken.
#[derive(Debug)]
pub(crate) struct Layer {
    pub(crate) attention_norm: Vec<f32>,
    pub(crate) inputs: Inputs,
    pub(crate) attention_output: Matrix,
    pub(crate) post_attention_norm: Option<Vec<f32>>,
    pub(crate) feed_forward_norm: Vec<f32>,
    pub(crate) feed_forward: Feed,
    pub(crate) post_feed_forward_norm: Option<Vec<f32>>,
}

/// What queries, keys and values are made with.
#[derive(Debug)]
pub(crate) enum Inputs {
    /// Queries, keys, values.
    Heads(Box<[Projection; 3]>),
    Latent(Box<LatentInputs>),
}

/// The keys' matrices are applied to the queries and the values' ones to what was attended to:
/// then attention itself sees the latent rows alone.
#[derive(Debug)]
pub(crate) struct LatentInputs {
    pub(crate) query: Matrix,
    /// The latent row, then the part of the key that is rotated.
    pub(crate) row: Matrix,
    pub(crate) norm: Vec<f32>,
    /// Of each head: the part of a query that is not rotated to a latent row.
    pub(crate) keys: Vec<Matrix>,
    /// Of each head: a latent row to a value.
    pub(crate) values: Vec<Matrix>,
}

#[derive(Debug)]
pub(crate) enum Feed {
    Gated(Gated),
    Mixture(Mixture),
}

#[derive(Debug)]
pub(crate) struct Mixture {
    /// In float32 on both paths: which experts are chosen should not depend on rounding.
    pub(crate) router: Matrix,
    pub(crate) experts: Vec<Gated>,
    pub(crate) shared: Option<Gated>,
}

/// A product, and what is done to it before it is used.
#[derive(Debug)]
pub(crate) struct Projection {
    pub(crate) matrix: Matrix,
    pub(crate) bias: Option<Vec<f32>>,
    /// Of each head.
    pub(crate) norm: Option<Vec<f32>>,
}

/// `down(act(gate(x)) * up(x))`.
#[derive(Debug)]
pub(crate) struct Gated {
    pub(crate) gate: Matrix,
    pub(crate) up: Matrix,
    pub(crate) down: Matrix,
}

impl Model {
    /// Reads, checks and packs every tensor of `file`, one after the other; it is not needed afterwards.
    pub fn load(file: &gguf::File, options: LoadOptions) -> Result<Model, Error> {
        let config = Config::read(file)?;
        let exec = Exec::new(Kernels::new(options.isa)?, options.threads)?;
        let mut loader = Loader {
            file,
            architecture: config.architecture.name,
            numeric: options.numeric,
            used: BTreeSet::new(),
            arena: Arena::default(),
        };
        let (hidden, vocab) = (config.hidden, config.vocab);
        let embedding = loader.matrix("token_embd.weight", hidden, vocab)?;
        let layers = (0..config.layers)
            .map(|i| loader.layer(&config, i))
            .collect::<Result<_, _>>()?;
        let output_norm = loader.vector("output_norm.weight", hidden)?;
        let untied = file
            .tensors()
            .any(|tensor| tensor.name() == "output.weight");
        let output = untied
            .then(|| loader.matrix("output.weight", hidden, vocab))
            .transpose()?;
        let rope = loader.rope(&config)?;
        let local_rope = Rope::local(&config);
        loader.nothing_left()?;
        let fingerprint = fingerprint(file, options.numeric)?;
        file.check_unchanged()?;
        let numeric = options.numeric;
        Ok(Model {
            config,
            numeric,
            exec,
            rope,
            local_rope,
            embedding,
            layers,
            output_norm,
            output,
            fingerprint,
        })
    }

    /// The model's shape.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Which arithmetic runs.
    pub fn numeric(&self) -> Numeric {
        self.numeric
    }

    /// Which instruction set runs it.
    pub fn isa(&self) -> Isa {
        self.exec.kernels.isa()
    }

    /// Identity of what this model computes: weights, metadata (names and descriptions apart) and
    /// the numeric path. Two workers exchange pages only if theirs are equal. The instruction set
    /// is not part of it: it changes the last bits of a result, not its meaning.
    pub fn fingerprint(&self) -> [u8; 32] {
        self.fingerprint
    }
}

fn fingerprint(file: &gguf::File, numeric: Numeric) -> Result<[u8; 32], Error> {
    let mut hash = blake3::Hasher::new_derive_key("cofferdam model fingerprint 2");
    let mut field = |bytes: &[u8]| {
        hash.update(&(bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    field(format!("{numeric:?}").as_bytes());
    for (key, value) in file.iter() {
        if !key.starts_with("general.") || key == "general.architecture" {
            field(key.as_bytes());
            field(format!("{value:?}").as_bytes());
        }
    }
    for tensor in file.tensors() {
        field(format!("{tensor:?}").as_bytes());
        field(&tensor.digest()?); // of what was packed
    }
    Ok(*hash.finalize().as_bytes())
}

struct Loader<'f> {
    file: &'f gguf::File,
    architecture: &'static str,
    numeric: Numeric,
    used: BTreeSet<String>,
    arena: Arena,
}

impl<'f> Loader<'f> {
    fn layer(&mut self, config: &Config, index: usize) -> Result<Layer, Error> {
        let name = |part: &str| format!("blk.{index}.{part}.weight");
        let hidden = config.hidden;
        let post_norms = config.architecture.post_norms;
        Ok(Layer {
            attention_norm: self.vector(&name("attn_norm"), hidden)?,
            inputs: match &config.latent {
                None => Inputs::Heads(Box::new(self.projections(config, index)?)),
                Some(latent) => Inputs::Latent(Box::new(self.latent(config, latent, index)?)),
            },
            attention_output: self.matrix(
                &name("attn_output"),
                config.heads
                    * config
                        .latent
                        .map_or(config.value_dim, |latent| latent.value_dim),
                hidden,
            )?,
            post_attention_norm: post_norms
                .then(|| self.vector(&name("post_attention_norm"), hidden))
                .transpose()?,
            feed_forward_norm: self.vector(&name("ffn_norm"), hidden)?,
            feed_forward: match config.experts.filter(|of| index >= of.dense_layers) {
                None => Feed::Gated(self.gated(config, index)?),
                Some(experts) => Feed::Mixture(self.mixture(config, &experts, index)?),
            },
            post_feed_forward_norm: post_norms
                .then(|| self.vector(&name("post_ffw_norm"), hidden))
                .transpose()?,
        })
    }

    /// Queries, keys, values.
    fn projections(&mut self, config: &Config, layer: usize) -> Result<[Projection; 3], Error> {
        let architecture = config.architecture;
        let hidden = config.hidden;
        let widths = [
            config.query_width(),
            config.key_width(),
            config.value_width(),
        ];
        let mut fused = match architecture.projections {
            Projections::Apart | Projections::Biased | Projections::Latent => None,
            Projections::Fused => {
                let name = format!("blk.{layer}.attn_qkv.weight");
                Some(self.rows(&name, &[hidden, widths.iter().sum()])?)
            }
        };
        let mut one = |part: &str, rows: usize, norm: bool| -> Result<_, Error> {
            let name = |what: &str| format!("blk.{layer}.attn_{part}{what}");
            let matrix = match &mut fused {
                None => self.matrix(&name(".weight"), hidden, rows)?,
                Some(all) => self.next(all, rows)?,
            };
            let biased = architecture.projections == Projections::Biased;
            Ok(Projection {
                matrix,
                bias: biased
                    .then(|| self.vector(&name(".bias"), rows))
                    .transpose()?,
                norm: (norm && architecture.head_norms)
                    .then(|| self.vector(&name("_norm.weight"), config.key_dim))
                    .transpose()?,
            })
        };
        let [query, key, value] = widths;
        Ok([
            one("q", query, true)?,
            one("k", key, true)?,
            one("v", value, false)?,
        ])
    }

    fn gated(&mut self, config: &Config, layer: usize) -> Result<Gated, Error> {
        let name = |part: &str| format!("blk.{layer}.ffn_{part}.weight");
        let (hidden, width) = (config.hidden, config.feed_forward);
        let (gate, up) = match config.architecture.feed_forward {
            FeedForward::Gated | FeedForward::Experts { .. } => (
                self.matrix(&name("gate"), hidden, width)?,
                self.matrix(&name("up"), hidden, width)?,
            ),
            FeedForward::Fused => {
                let mut both = self.rows(&name("up"), &[hidden, 2 * width])?;
                (self.next(&mut both, width)?, self.next(&mut both, width)?)
            }
        };
        let down = self.matrix(&name("down"), width, hidden)?;
        Ok(Gated { gate, up, down })
    }

    fn mixture(
        &mut self,
        config: &Config,
        experts: &Experts,
        layer: usize,
    ) -> Result<Mixture, Error> {
        let name = |part: &str| format!("blk.{layer}.ffn_{part}.weight");
        let (hidden, width, count) = (config.hidden, experts.width, experts.count);
        let mut router = self.rows(&name("gate_inp"), &[hidden, count])?;
        let router = self.next_as(Numeric::Exact, &mut router, count)?;
        let gates = self.each(&name("gate_exps"), hidden, width, count)?;
        let ups = self.each(&name("up_exps"), hidden, width, count)?;
        let downs = self.each(&name("down_exps"), width, hidden, count)?;
        let all = gates.into_iter().zip(ups).zip(downs);
        let all = all.map(|((gate, up), down)| Gated { gate, up, down });
        let shared = match experts.shared * width {
            0 => None,
            shared => Some(Gated {
                gate: self.matrix(&name("gate_shexp"), hidden, shared)?,
                up: self.matrix(&name("up_shexp"), hidden, shared)?,
                down: self.matrix(&name("down_shexp"), shared, hidden)?,
            }),
        };
        Ok(Mixture {
            router,
            experts: all.collect(),
            shared,
        })
    }

    fn latent(
        &mut self,
        config: &Config,
        latent: &Latent,
        layer: usize,
    ) -> Result<LatentInputs, Error> {
        let name = |part: &str| format!("blk.{layer}.attn_{part}.weight");
        let (hidden, heads, row) = (config.hidden, config.heads, config.value_dim);
        let plain = latent.key_dim - config.rope_dims;
        Ok(LatentInputs {
            query: self.matrix(&name("q"), hidden, heads * latent.key_dim)?,
            row: self.matrix(&name("kv_a_mqa"), hidden, config.key_dim)?,
            norm: self.vector(&name("kv_a_norm"), row)?,
            keys: self.each(&name("k_b"), plain, row, heads)?,
            values: self.each(&name("v_b"), row, latent.value_dim, heads)?,
        })
    }

    /// The matrices of a tensor of three dimensions.
    fn each(
        &mut self,
        name: &str,
        cols: usize,
        rows: usize,
        count: usize,
    ) -> Result<Vec<Matrix>, Error> {
        let mut all = self.rows(name, &[cols, rows, count])?;
        (0..count).map(|_| self.next(&mut all, rows)).collect()
    }

    fn rope(&mut self, config: &Config) -> Result<Rope, Error> {
        let is_there = |name| self.file.tensor(name).is_ok();
        let (used, unused) = match config.architecture.factors {
            Factors::One if is_there(FACTORS) => (FACTORS, None),
            Factors::ShortAndLong if is_there(LONG_FACTORS) => (SHORT_FACTORS, Some(LONG_FACTORS)),
            _ => return Ok(Rope::new(config, None)),
        };
        let pairs = config.rope_dims / 2;
        unused.map(|name| self.vector(name, pairs)).transpose()?;
        let factors = self.vector(used, pairs)?;
        if let Some(bad) = factors.iter().find(|factor| **factor <= 0.0) {
            return Err(unsupported(used, bad, "positive factors"));
        }
        Ok(Rope::new(config, Some(&factors)))
    }

    /// A tensor that nobody asked for would change the answer of whoever knows what it means.
    fn nothing_left(&self) -> Result<(), Error> {
        match self
            .file
            .tensors()
            .find(|tensor| !self.used.contains(tensor.name()))
        {
            None => Ok(()),
            Some(tensor) => {
                let what = format!("tensor `{}`", tensor.name());
                Err(unsupported(
                    what,
                    "present",
                    format!("only the tensors of a {}", self.architecture),
                ))
            }
        }
    }

    fn tensor(&mut self, name: &str, expected: &[usize]) -> Result<Tensor<'f>, Error> {
        let tensor = self.file.tensor(name)?;
        if tensor.dims() != expected {
            return Err(Error::Shape {
                tensor: name.to_owned(),
                found: tensor.dims().to_vec(),
                expected: expected.to_vec(),
            });
        }
        self.used.insert(name.to_owned());
        Ok(tensor)
    }

    fn vector(&mut self, name: &str, len: usize) -> Result<Vec<f32>, Error> {
        let values = self.tensor(name, &[len])?.dequantize()?;
        if values.iter().all(|v| v.is_finite()) {
            Ok(values)
        } else {
            Err(Error::WeightNotFinite {
                tensor: name.to_owned(),
            })
        }
    }

    fn rows(&mut self, name: &str, expected: &[usize]) -> Result<RowReader<'f>, Error> {
        Ok(self.tensor(name, expected)?.in_rows())
    }

    fn matrix(&mut self, name: &str, cols: usize, rows: usize) -> Result<Matrix, Error> {
        let mut all = self.rows(name, &[cols, rows])?;
        self.next(&mut all, rows)
    }

    /// The next rows of a tensor as a matrix of their own.
    fn next(&mut self, from: &mut RowReader<'f>, rows: usize) -> Result<Matrix, Error> {
        self.next_as(self.numeric, from, rows)
    }

    fn next_as(
        &mut self,
        numeric: Numeric,
        from: &mut RowReader<'f>,
        rows: usize,
    ) -> Result<Matrix, Error> {
        let tensor = from.tensor();
        let (dtype, cols) = (tensor.dtype(), tensor.row_len());
        let mut finite = true;
        let arena = &mut self.arena;
        let floats = |_, out: &mut [f32]| -> Result<(), Error> {
            dtype.dequantize(from.next_row()?, out);
            finite &= out.iter().all(|v| v.is_finite());
            Ok(())
        };
        let matrix = match numeric {
            Numeric::Exact => Matrix::F32(PackedF32::pack(arena, rows, cols, floats)?),
            Numeric::Fast if !cols.is_multiple_of(BLOCK) => {
                let what = format!("columns of tensor `{}`", tensor.name());
                return Err(unsupported(what, cols, "a multiple of 32 on the fast path"));
            }
            Numeric::Fast if PackedInt8::takes(dtype) => {
                let bytes = |_, out: &mut [u8]| -> Result<(), Error> {
                    out.copy_from_slice(from.next_row()?);
                    Ok(())
                };
                let packed = PackedInt8::pack(arena, dtype, rows, cols, bytes)?;
                finite = packed.is_finite();
                Matrix::Int8(packed)
            }
            Numeric::Fast => Matrix::Int8(PackedInt8::quantize(arena, rows, cols, floats)?),
        };
        if finite {
            Ok(matrix)
        } else {
            Err(Error::WeightNotFinite {
                tensor: tensor.name().to_owned(),
            })
        }
    }
}
