//! The one typed description of a server, whatever engine it is.

use crate::facts::figure::{Declared, Fact, Figure, Measured, Unknown};
use crate::facts::trouble::Trouble;
use crate::facts::version::Version;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// Which software a node runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Engine {
    /// SGLang 0.4.6 and later.
    Sglang,
    /// vLLM with its V1 engine.
    Vllm,
    /// llama-server.
    LlamaCpp,
    /// This project's gateway, which speaks for its workers.
    Cofferdam,
    /// Recognised, not supported.
    TensorrtLlm,
    /// Recognised, not supported.
    Dynamo,
    /// Recognised, not supported.
    Tgi,
}

impl Engine {
    /// Its name as its makers write it.
    pub fn name(self) -> &'static str {
        match self {
            Engine::Sglang => "SGLang",
            Engine::Vllm => "vLLM",
            Engine::LlamaCpp => "llama.cpp",
            Engine::Cofferdam => "Cofferdam",
            Engine::TensorrtLlm => "TensorRT-LLM",
            Engine::Dynamo => "Dynamo",
            Engine::Tgi => "TGI",
        }
    }

    /// Whether we can read its figures. If not, all of them are [`Unknown::NotSupported`].
    pub fn is_supported(self) -> bool {
        matches!(
            self,
            Engine::Sglang | Engine::Vllm | Engine::LlamaCpp | Engine::Cofferdam
        )
    }

    /// Whether it refuses to start with a pool below its context (headroom 1.0 is then enough).
    /// vLLM does (recorded for 0.32); Cofferdam derives its context from the pools; llama.cpp
    /// divides its memory into slots of exactly the context. SGLang starts, and at most warns.
    pub fn refuses_pool_below_context(self) -> bool {
        matches!(self, Engine::Vllm | Engine::Cofferdam | Engine::LlamaCpp)
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a node does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Computes prompts and hands their KV over.
    Prefill,
    /// Continues from the KV it was handed.
    Decode,
    /// Both, in one process.
    Whole,
    /// Either, as each request says (vLLM's `kv_both`).
    Either,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::Prefill => "prefill",
            Role::Decode => "decode",
            Role::Whole => "whole",
            Role::Either => "either",
        })
    }
}

/// One rank that has a pool of its own (a data-parallel rank, a slot).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rank {
    /// `dp 0`, `engine 1`, `slot 0`.
    pub name: String,
    /// Tokens that its KV pool holds.
    pub pool: Fact<Measured<u64>>,
}

/// KV, or state of a model's layers, that is kept beside the pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Aside {
    /// `a sliding-window pool`, `hierarchical cache`.
    pub what: String,
    /// Tokens that it holds, where it is counted in tokens and reported.
    pub tokens: Option<u64>,
    /// Where it was seen.
    pub source: crate::facts::FigureSource,
}

/// Settings that matter to some models only, by name, as far as they are told.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Particulars {
    /// What may make another model of the same weights.
    pub made: BTreeMap<String, Figure<String>>,
    /// Types of what goes along with KV.
    pub types: BTreeMap<String, Figure<String>>,
    /// Pages that some layers have.
    pub pages: BTreeMap<String, Figure<String>>,
    /// Which layers have a pool of their own.
    pub layout: BTreeMap<String, Figure<String>>,
}

/// Ranks of each kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parallelism {
    /// Tensor.
    pub tensor: Fact<Figure<u64>>,
    /// Pipeline.
    pub pipeline: Fact<Figure<u64>>,
    /// Data: as many pools must be reported.
    pub data: Fact<Figure<u64>>,
    /// Context (SGLang's attention or decode context parallelism, vLLM's decode context).
    pub context: Fact<Figure<u64>>,
}

/// Something worth saying that no figure says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Warning {
    /// One sentence.
    pub text: String,
    /// Where it was seen.
    pub source: crate::facts::FigureSource,
}

/// One endpoint that was asked, or one log that was read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probe {
    /// Without credentials.
    pub url: String,
    /// Whether a key went with it.
    pub with_key: bool,
    /// The length of the answer in bytes, or what came instead.
    pub outcome: Result<u64, Trouble>,
}

/// Everything a server says about itself. A Cofferdam gateway speaks for its workers: it becomes
/// one node a worker. All token counts are in tokens, of one rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// What the operator calls it: its URL or log file.
    pub name: String,
    /// What was asked and what came.
    pub probes: Vec<Probe>,
    /// Which software, and what gave it away.
    pub engine: Fact<Figure<Engine>>,
    /// Which version of it.
    pub version: Fact<Figure<Version>>,
    /// What the process says it does. The operator's word for it is not in here.
    pub role: Fact<Figure<Role>>,
    /// Every rank with a pool of its own, never empty when known; a rank that must exist and was
    /// not reported is in here with an unknown pool.
    pub ranks: Fact<Vec<Rank>>,
    /// The echo of a flag such as SGLang's `max_total_tokens`: never a pool.
    pub declared_pool: Option<Declared<u64>>,
    /// What is kept beside the pools, as far as the server tells; empty: it says that it keeps
    /// nothing else.
    pub asides: Fact<Vec<Aside>>,
    /// Tokens a page.
    pub page_size: Fact<Figure<u64>>,
    /// Tokens that a block of attention holds, where it is told apart from the page size.
    pub block: Fact<Figure<u64>>,
    /// Prompt and answer together may be this long, by the process's own computation.
    pub context: Fact<Measured<u64>>,
    /// The echo of a flag such as `--context-length`.
    pub declared_context: Option<Declared<u64>>,
    /// What clients are told: `max_model_len` of `/v1/models`.
    pub advertised: Fact<Measured<u64>>,
    /// The longest prompt that it accepts.
    pub max_prompt: Fact<Measured<u64>>,
    /// Whether it silently cuts prompts that are too long.
    pub truncates: Fact<Figure<bool>>,
    /// How KV travels: `mooncake`, `nixl`, `NixlConnector`, `shared memory`.
    pub backend: Fact<Figure<String>>,
    /// Whether transferred KV is compared with a checksum.
    pub checksum: Fact<Figure<bool>>,
    /// Whether pages of a failed handoff are held until writing has ended.
    pub deferred_release: Fact<Figure<bool>>,
    /// How many pages one transfer call may move; 0 means no bound.
    pub batch_bound: Fact<Figure<u64>>,
    /// Milliseconds after which pages of a failed handoff are released without proof.
    pub release_timeout_ms: Fact<Figure<u64>>,
    /// Milliseconds one transfer call may take.
    pub transfer_timeout_ms: Fact<Figure<u64>>,
    /// Type of the KV entries, `auto` resolved where the server says how.
    pub kv_dtype: Fact<Figure<String>>,
    /// Order of the KV in a page.
    pub layout: Fact<Figure<String>>,
    /// How many ranks of which kind.
    pub parallelism: Parallelism,
    /// Bytes of KV memory of one rank.
    pub kv_bytes: Fact<Figure<u64>>,
    /// Requests that run at once, at most.
    pub max_running: Fact<Figure<u64>>,
    /// The model, as the server names its weights.
    pub model: Fact<Figure<String>>,
    /// What else decides what the weights are: revision, quantization, overrides of the model's
    /// configuration (RoPE), adapters. `default` where nothing is changed.
    pub weights: Fact<Figure<String>>,
    /// The type in which the model computes, which KV of type `auto` has too.
    pub model_dtype: Fact<Figure<String>>,
    /// The tokenizer.
    pub tokenizer: Fact<Figure<String>>,
    /// The chat template, as the server names it; `default` is the tokenizer's own.
    pub template: Fact<Figure<String>>,
    /// How text becomes tokens, apart from tokenizer and template; `default` where nothing is
    /// changed.
    pub tokenizing: Fact<Figure<String>>,
    /// Settings that matter to some models only.
    pub particulars: Particulars,
    /// What shows that KV leaves or enters this process, where that is seen apart from its role.
    pub transfers: Fact<Figure<String>>,
    /// Version of Cofferdam's guard that is in effect in there (docs/guard-sglang.md,
    /// docs/guard-vllm.md); unknown where none says so.
    pub guard: Fact<Figure<Version>>,
    /// What tells this process from another under the same name, as far as it says anything of it;
    /// of now only, so it is not saved.
    #[serde(skip, default = "unsaid")]
    pub life: Fact<Figure<String>>,
    /// Whether introspection answered a request that carried no key.
    pub open_introspection: Fact<Figure<bool>>,
    /// What else was seen.
    pub warnings: Vec<Warning>,
}

impl Node {
    /// A node of which nothing is known, because of `why`.
    pub fn unknown(name: impl Into<String>, why: Unknown) -> Self {
        fn err<T>(why: &Unknown) -> Fact<T> {
            Err(why.clone())
        }
        Self {
            name: name.into(),
            probes: Vec::new(),
            engine: err(&why),
            version: err(&why),
            role: err(&why),
            ranks: err(&why),
            asides: err(&why),
            declared_pool: None,
            page_size: err(&why),
            block: err(&why),
            context: err(&why),
            declared_context: None,
            advertised: err(&why),
            max_prompt: err(&why),
            truncates: err(&why),
            backend: err(&why),
            checksum: err(&why),
            deferred_release: err(&why),
            batch_bound: err(&why),
            release_timeout_ms: err(&why),
            transfer_timeout_ms: err(&why),
            kv_dtype: err(&why),
            layout: err(&why),
            parallelism: Parallelism {
                tensor: err(&why),
                pipeline: err(&why),
                data: err(&why),
                context: err(&why),
            },
            kv_bytes: err(&why),
            max_running: err(&why),
            model: err(&why),
            weights: err(&why),
            model_dtype: err(&why),
            tokenizer: err(&why),
            template: err(&why),
            tokenizing: err(&why),
            particulars: Particulars::default(),
            transfers: err(&why),
            guard: err(&why),
            life: err(&why),
            open_introspection: err(&why),
            warnings: Vec::new(),
        }
    }

    /// The smallest pool over all ranks: unknown as soon as one rank's is.
    pub fn smallest_pool(&self) -> Fact<&Measured<u64>> {
        let ranks = self.ranks.as_ref().map_err(Unknown::clone)?;
        let mut smallest: Option<&Measured<u64>> = None;
        for rank in ranks {
            let pool = rank.pool.as_ref().map_err(Unknown::clone)?;
            if smallest.is_none_or(|it| pool.value < it.value) {
                smallest = Some(pool);
            }
        }
        smallest.ok_or(Unknown::NotReported { looked: Vec::new() })
    }
}

fn unsaid() -> Fact<Figure<String>> {
    Err(Unknown::NotReported { looked: Vec::new() })
}
