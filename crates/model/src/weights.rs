//! Loading: from GGUF tensors to packed matrices.

use std::collections::BTreeSet;

use gguf::{DType, Tensor};
use kernels::{Arena, BLOCK, BlockFormat, Isa, Kernels, Matrix, PackedF32, PackedInt8};

use crate::config::unsupported;
use crate::exec::Exec;
use crate::rope::Rope;
use crate::{Config, Error};

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
    pub(crate) embedding: Matrix,
    pub(crate) layers: Vec<Layer>,
    pub(crate) output_norm: Vec<f32>,
    /// None if the head is tied to the embedding.
    pub(crate) output: Option<Matrix>,
    fingerprint: [u8; 32],
}

/// The weights of one transformer layer.
#[derive(Debug)]
pub(crate) struct Layer {
    pub(crate) attention_norm: Vec<f32>,
    pub(crate) query: Matrix,
    pub(crate) key: Matrix,
    pub(crate) value: Matrix,
    pub(crate) attention_output: Matrix,
    pub(crate) feed_forward_norm: Vec<f32>,
    pub(crate) gate: Matrix,
    pub(crate) up: Matrix,
    pub(crate) down: Matrix,
}

impl Model {
    /// Checks and packs every tensor of `file`, which is not needed afterwards.
    pub fn load(file: &gguf::File, options: LoadOptions) -> Result<Model, Error> {
        let config = Config::read(file)?;
        let exec = Exec::new(Kernels::new(options.isa)?, options.threads)?;
        let mut loader = Loader {
            file,
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
        loader.nothing_left()?;
        let fingerprint = fingerprint(file, options.numeric);
        let numeric = options.numeric;
        Ok(Model {
            config,
            numeric,
            exec,
            rope,
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

fn fingerprint(file: &gguf::File, numeric: Numeric) -> [u8; 32] {
    let mut hash = blake3::Hasher::new_derive_key("cofferdam model fingerprint 1");
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
        field(tensor.bytes());
    }
    *hash.finalize().as_bytes()
}

struct Loader<'f> {
    file: &'f gguf::File,
    numeric: Numeric,
    used: BTreeSet<String>,
    arena: Arena,
}

impl<'f> Loader<'f> {
    fn layer(&mut self, config: &Config, index: usize) -> Result<Layer, Error> {
        let name = |part: &str| format!("blk.{index}.{part}.weight");
        let (hidden, feed_forward) = (config.hidden, config.feed_forward);
        let (query, kv) = (config.query_width(), config.kv_width());
        Ok(Layer {
            attention_norm: self.vector(&name("attn_norm"), hidden)?,
            query: self.matrix(&name("attn_q"), hidden, query)?,
            key: self.matrix(&name("attn_k"), hidden, kv)?,
            value: self.matrix(&name("attn_v"), hidden, kv)?,
            attention_output: self.matrix(&name("attn_output"), query, hidden)?,
            feed_forward_norm: self.vector(&name("ffn_norm"), hidden)?,
            gate: self.matrix(&name("ffn_gate"), hidden, feed_forward)?,
            up: self.matrix(&name("ffn_up"), hidden, feed_forward)?,
            down: self.matrix(&name("ffn_down"), feed_forward, hidden)?,
        })
    }

    fn rope(&mut self, config: &Config) -> Result<Rope, Error> {
        const FACTORS: &str = "rope_freqs.weight";
        if self.file.tensors().all(|tensor| tensor.name() != FACTORS) {
            return Ok(Rope::new(config, None));
        }
        let factors = self.vector(FACTORS, config.rope_dims / 2)?;
        if let Some(bad) = factors.iter().find(|factor| **factor <= 0.0) {
            return Err(unsupported(FACTORS, bad, "positive factors"));
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
                    "only the tensors of a plain Llama",
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
        let values = self.tensor(name, &[len])?.dequantize();
        if values.iter().all(|v| v.is_finite()) {
            Ok(values)
        } else {
            Err(Error::WeightNotFinite {
                tensor: name.to_owned(),
            })
        }
    }

    fn matrix(&mut self, name: &str, cols: usize, rows: usize) -> Result<Matrix, Error> {
        let tensor = self.tensor(name, &[cols, rows])?;
        let mut finite = true;
        let arena = &mut self.arena;
        let fill = |row: usize, out: &mut [f32]| {
            tensor.dequantize_row(row, out);
            finite &= out.iter().all(|v| v.is_finite());
        };
        let matrix = match (self.numeric, block_format(tensor.dtype())) {
            (Numeric::Exact, _) => Matrix::F32(PackedF32::pack(arena, rows, cols, fill)?),
            (Numeric::Fast, _) if !cols.is_multiple_of(BLOCK) => {
                let what = format!("columns of tensor `{name}`");
                return Err(unsupported(what, cols, "a multiple of 32 on the fast path"));
            }
            (Numeric::Fast, Some(format)) => {
                let packed = PackedInt8::pack(arena, format, rows, cols, tensor.bytes())?;
                finite = packed.is_finite();
                Matrix::Int8(packed)
            }
            (Numeric::Fast, None) => Matrix::Int8(PackedInt8::quantize(arena, rows, cols, fill)?),
        };
        if finite {
            Ok(matrix)
        } else {
            Err(Error::WeightNotFinite {
                tensor: name.to_owned(),
            })
        }
    }
}

/// The types that have an integer kernel.
fn block_format(dtype: DType) -> Option<BlockFormat> {
    match dtype {
        DType::Q4_0 => Some(BlockFormat::Q4_0),
        DType::Q4_1 => Some(BlockFormat::Q4_1),
        DType::Q8_0 => Some(BlockFormat::Q8_0),
        _ => None,
    }
}
