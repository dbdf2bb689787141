//! What an engine is: whose dialect, which part of a pair, how large and how fast.

use std::time::Duration;

use serde::Deserialize;

/// Whose HTTP an engine speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dialect {
    /// SGLang 0.5.
    #[default]
    Sglang,
    /// vLLM 0.32.
    Vllm,
    /// llama.cpp's server.
    Llama,
}

/// Which part of a pair an engine is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// None: it serves alone.
    #[default]
    Single,
    /// Computes prompts and hands them over.
    Prefill,
    /// Takes them over and answers.
    Decode,
}

impl Role {
    /// Its name, which is also an engine's default name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        }
    }
}

/// One engine's settings.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Engine {
    /// Its name in log and script.
    pub name: String,
    /// Whose HTTP.
    pub dialect: Dialect,
    /// Which part of a pair.
    pub role: Role,
    /// Port on 127.0.0.1; 0 for any.
    pub port: u16,
    /// The model's name.
    pub model: String,
    /// Tokens of the model's context; a slot's with llama.cpp.
    pub context: u64,
    /// Tokens of KV memory.
    pub pool: u64,
    /// Tokens of KV memory of SGLang's further data-parallel ranks: said, and who computes what is the same.
    pub more_pools: Vec<u64>,
    /// Tokens of every prompt that it says were cached.
    pub cached: u64,
    /// What SGLang calls its version; of vLLM it is always the recorded one.
    pub version: String,
    /// Prefill that takes an over-long prompt's place and hands that over, as SGLang did up to
    /// 0.5.19: the incident by itself. Otherwise it refuses.
    pub leaks: bool,
    /// Answers go on with their prompt, as a model does that copies what it has read; without, they
    /// are words that follow from it.
    pub copies: bool,
    /// Prompts of more tokens than this are answered from another prompt's pages, rightly counted; 0:
    /// none are.
    pub stale_over: u64,
    /// What SGLang says it has drawn at its start; of vLLM it is always the recorded start.
    pub random_seed: u64,
    /// SGLang's bootstrap server, vLLM's side channel: said, never opened.
    pub bootstrap_port: u16,
    /// Tokens at most in an answer that asks for more.
    pub longest: usize,
    /// SGLang's `incremental_streaming_output`: chunks with their own part only.
    pub incremental: bool,
    /// To compute a prompt.
    pub prefill_ms: u64,
    /// To hand it over.
    pub transfer_ms: u64,
    /// Between tokens.
    pub token_ms: u64,
    /// How long one leg waits for the other (SGLang: 300 s).
    pub wait_ms: u64,
    /// How long vLLM keeps what a reference names.
    pub lease_ms: u64,
    /// Whether requests are noted; without, only counted.
    pub noting: bool,
}

impl Default for Engine {
    /// A fast SGLang server that serves alone: context 4,096, pool 8,000.
    fn default() -> Self {
        Self {
            name: String::new(),
            dialect: Dialect::Sglang,
            role: Role::Single,
            port: 0,
            model: "scripted".into(),
            context: 4096,
            pool: 8000,
            more_pools: Vec::new(),
            cached: 0,
            version: "0.5.23".into(),
            leaks: false,
            copies: false,
            stale_over: 0,
            random_seed: 1,
            bootstrap_port: 8998,
            longest: 256,
            incremental: false,
            prefill_ms: 0,
            transfer_ms: 0,
            token_ms: 0,
            wait_ms: 300_000,
            lease_ms: 30_000,
            noting: true,
        }
    }
}

impl Engine {
    /// An engine with default sizes, named after its role.
    pub fn new(dialect: Dialect, role: Role) -> Self {
        Self {
            name: role.name().into(),
            dialect,
            role,
            ..Self::default()
        }
    }

    /// SGLang alone.
    pub fn sglang() -> Self {
        Self::new(Dialect::Sglang, Role::Single)
    }

    /// SGLang's prefill and decode, "prefill" and "decode".
    pub fn sglang_pair() -> [Self; 2] {
        [Role::Prefill, Role::Decode].map(|role| Self::new(Dialect::Sglang, role))
    }

    /// vLLM alone.
    pub fn vllm() -> Self {
        Self::new(Dialect::Vllm, Role::Single)
    }

    /// vLLM's prefill and decode over NIXL pull.
    pub fn vllm_pair() -> [Self; 2] {
        [Role::Prefill, Role::Decode].map(|role| Self::new(Dialect::Vllm, role))
    }

    /// llama.cpp's server.
    pub fn llama() -> Self {
        Self::new(Dialect::Llama, Role::Single)
    }

    /// Under another name.
    pub fn named(mut self, name: &str) -> Self {
        self.name = name.into();
        self
    }

    /// With other sizes, in tokens.
    pub fn sized(mut self, context: u64, pool: u64) -> Self {
        (self.context, self.pool) = (context, pool);
        self
    }

    /// With other times: to compute a prompt, to hand it over, between tokens.
    pub fn paced(mut self, prefill_ms: u64, transfer_ms: u64, token_ms: u64) -> Self {
        (self.prefill_ms, self.transfer_ms, self.token_ms) = (prefill_ms, transfer_ms, token_ms);
        self
    }

    /// What SGLang reports as `max_req_input_len`: prompts as long are refused.
    pub fn max_req_input_len(&self) -> u64 {
        self.context.min(self.pool).saturating_sub(6)
    }

    /// The longest prompt that is accepted.
    pub fn longest_prompt(&self) -> u64 {
        match self.dialect {
            Dialect::Sglang => self.max_req_input_len().saturating_sub(1),
            Dialect::Vllm => self.context,
            Dialect::Llama => self.context.saturating_sub(1),
        }
    }

    pub(crate) fn wait(&self) -> Duration {
        Duration::from_millis(self.wait_ms)
    }

    pub(crate) fn lease(&self) -> Duration {
        Duration::from_millis(self.lease_ms)
    }
}
