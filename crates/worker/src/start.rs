//! Start-up: weights, measured memory, a populated pool. Only then may a worker advertise (law:
//! capacity is measured, not declared).

use crate::WorkerError;
use crate::memory::{self, Wish};
use handoff::{Capacity, Decisions, Hello, Role};
use model::{Isa, KvLayout, KvMemory, LoadOptions, Model, Numeric};
use pages::{Epoch, FenceMint, Pool};
use std::path::{Path, PathBuf};
use std::time::Instant;
use tokenizer::Tokenizer;

/// What every engine is made from.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// The GGUF file.
    pub model: PathBuf,
    /// Which arithmetic runs.
    pub numeric: Numeric,
    /// Threads that compute; 0 counts as 1.
    pub threads: usize,
    /// Token slots a page.
    pub page_size: u16,
    /// Largest sum of prompt and output in tokens; the model's context if not given.
    pub max_context: Option<u32>,
    /// Size of the pool in tokens; a share of the memory that is available if not given.
    pub pool_tokens: Option<u64>,
    /// Whether the payload of a page is erased before the page is free.
    pub scrub: bool,
    /// Prompt tokens of one forward pass, at most.
    pub chunk: u32,
    /// Sequences of one decode step, at most.
    pub max_batch: usize,
    /// Directory in which it is written down which page goes from whom to whom.
    pub owners: Option<PathBuf>,
}

impl EngineConfig {
    /// The defaults for this model file.
    pub fn new(model: impl Into<PathBuf>) -> Self {
        Self {
            model: model.into(),
            numeric: Numeric::Fast,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            page_size: 16,
            max_context: None,
            pool_tokens: None,
            scrub: false,
            chunk: 256,
            max_batch: 64,
            owners: None,
        }
    }
}

/// What a started worker says: measured, after it has allocated what it needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ready {
    /// `prefill`, `decode`, or `unified` for the engine in one process.
    pub role: &'static str,
    /// This life.
    pub epoch: Epoch,
    /// Where it can be reached; empty for the engine in one process.
    pub addr: String,
    /// Token slots of its pool.
    pub pool_tokens: u64,
    /// Token slots of a page.
    pub page_size: u32,
    /// Largest sum of prompt and output, in tokens.
    pub max_context: u32,
    /// Longest prompt, in tokens.
    pub max_prompt_tokens: u32,
}

/// Everything that an engine stands on: the pool is there, and it is really memory.
pub(crate) struct Loaded<J> {
    pub(crate) model: Model,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) kv: KvMemory,
    pub(crate) pool: Pool<J>,
    pub(crate) decisions: J,
    pub(crate) mint: FenceMint,
    pub(crate) pool_config: pages::Config,
    pub(crate) hello: Hello,
    pub(crate) context: u32,
}

impl<J: Decisions> Loaded<J> {
    /// `beside_bytes` is what the role needs beside its pool.
    pub(crate) fn load(
        config: &EngineConfig,
        role: Role,
        decisions: J,
        beside_bytes: impl FnOnce(&KvLayout) -> u64,
    ) -> Result<Self, WorkerError> {
        if config.page_size == 0 || config.chunk == 0 || config.max_batch == 0 {
            let problem = "--page-size, chunk and batch are at least 1".into();
            return Err(WorkerError::Setting(problem));
        }
        let begun = Instant::now();
        let (model, tokenizer, fingerprint) = load(config)?;
        let layout = KvLayout::new(model.config(), usize::from(config.page_size));
        let wish = Wish {
            page_size: u32::from(config.page_size),
            bytes_per_token: layout.bytes_per_token() as u64,
            model_context: model.config().context as u32,
            max_context: config.max_context,
            pool_tokens: config.pool_tokens,
            share: memory::Share::of(role),
            beside_bytes: beside_bytes(&layout),
        };
        let size = memory::size_pool_by(decisions, &wish, &memory::available())?;
        let pages = u32::try_from(size.pages)
            .map_err(|_| WorkerError::Setting(format!("{} pages are too many", size.pages)))?;
        let (page_size, scrub) = (config.page_size, config.scrub);
        let pool_config = pages::Config {
            pages,
            page_size,
            scrub,
        };
        let (pool, mint) = Pool::with_decisions(pool_config, decisions);
        let kv = KvMemory::allocate(layout, &pool)?;
        let capacity = Capacity::of(&pool, role, size.max_context);
        let hello = Hello {
            epoch: Epoch::new(u128::from_le_bytes(random()?)),
            role,
            model: fingerprint,
            layout: layout_fingerprint(&model, &layout),
            capacity: Some(capacity),
            ranks: 1,
        };
        tracing::info!(
            epoch = %hello.epoch,
            pool_tokens = size.tokens(),
            pool = %memory::Bytes(size.bytes),
            context = size.max_context,
            isa = ?model.isa(),
            seconds = begun.elapsed().as_secs_f32(),
            "weights loaded, pool allocated and populated"
        );
        let context = size.max_context;
        Ok(Self {
            model,
            tokenizer,
            kv,
            pool,
            decisions,
            mint,
            pool_config,
            hello,
            context,
        })
    }

    pub(crate) fn ready(&self, role: &'static str, addr: String) -> Ready {
        let of = match role {
            "prefill" => Role::Prefill,
            _ => Role::Decode,
        };
        let capacity = Capacity::of(&self.pool, of, self.context);
        Ready {
            role,
            epoch: self.hello.epoch,
            addr,
            pool_tokens: capacity.pool_tokens(),
            page_size: u32::from(self.pool.page_size()),
            max_context: self.context,
            max_prompt_tokens: capacity.longest_prompt(),
        }
    }
}

fn load(config: &EngineConfig) -> Result<(Model, Tokenizer, [u8; 32]), WorkerError> {
    let path: &Path = &config.model;
    let unusable = |problem: String| WorkerError::Model {
        path: path.to_owned(),
        problem,
    };
    let file = checkpoint::open(path).map_err(|error| unusable(error.to_string()))?;
    let options = LoadOptions {
        numeric: config.numeric,
        isa: Isa::detect(),
        threads: config.threads.max(1),
    };
    // All that can be said without a weight is said before memory is taken for any.
    let shape = model::Config::read(&file).map_err(|error| unusable(error.to_string()))?;
    let tokenizer = match path.is_dir() {
        true => Tokenizer::from_folder(path),
        false => Tokenizer::from_gguf(&file),
    };
    let tokenizer = tokenizer.map_err(|error| unusable(error.to_string()))?;
    let fits = tokenizer.check_embeddings(shape.vocab);
    fits.map_err(|error| unusable(error.to_string()))?;
    let model = Model::load(&file, options).map_err(|error| unusable(error.to_string()))?;
    let fingerprint = file.fingerprint(); // of what was loaded
    let fingerprint = fingerprint.map_err(|error| unusable(error.to_string()))?;
    Ok((model, tokenizer, fingerprint))
}

/// What two workers must have in common to exchange pages: the layout, and how its content was
/// computed (weights, RoPE and numeric path are in the model's own fingerprint).
fn layout_fingerprint(model: &Model, layout: &KvLayout) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_derive_key("cofferdam 2026-11 page layout");
    hasher.update(&model.fingerprint());
    for count in [
        layout.layers,
        layout.kv_heads,
        layout.key_dim,
        layout.value_dim,
        layout.page_size,
    ] {
        hasher.update(&count.to_le_bytes());
    }
    hasher.update(b"f16 [layer][key, value][kv head][slot][dim]");
    *hasher.finalize().as_bytes()
}

/// Bits from the system: epochs and the prefix cache's secret. The core itself draws nothing.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], WorkerError> {
    let mut bytes = [0; N];
    let what = "the system gives no random bits";
    getrandom::fill(&mut bytes).map_err(|error| WorkerError::System {
        what,
        source: error.into(),
    })?;
    Ok(bytes)
}
