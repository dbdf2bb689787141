use handoff::Lengths;
use serde::Serialize;
pub use wire::Quarantine;

/// What an engine says about itself. A snapshot: shared, never changed.
#[derive(Clone, Debug, Default, Serialize)]
pub struct EngineFacts {
    /// What is served, under which names; the first is the default.
    pub models: Vec<ModelFacts>,
    /// The limits on lengths, the largest first: a request that fits one of them is taken. None
    /// until pools have been measured (capacity is measured, not declared), and then nothing can be
    /// served.
    pub limits: Vec<LengthLimit>,
    /// Whether a request sent now would be taken.
    pub readiness: Readiness,
    /// What can be asked for besides tokens.
    pub text_path: TextPath,
    /// Every worker that is connected or expected.
    pub workers: Vec<WorkerFacts>,
    /// Counters of the engine that belong to no worker.
    pub counters: Vec<Count>,
}

/// What an engine carries out that tokens cannot carry, and how its prompt's length is known then.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TextPath {
    /// Fields of a request that are handed on as they are; none: there is no such path.
    pub fields: &'static [&'static str],
    /// Whether answers can be held to a form, and tools called: for our own workers.
    #[serde(skip)]
    pub forms: bool,
    /// How a prompt is counted there, or why there is no such path.
    pub how: &'static str,
    /// Whether several answers to one prompt are several jobs.
    #[serde(skip)]
    pub one_choice_a_job: bool,
}

impl TextPath {
    /// Of engines that are ours: nothing is handed on, all is carried out here.
    pub const OURS: Self = Self {
        fields: &[],
        forms: true,
        how: "",
        one_choice_a_job: false,
    };
}

/// One name under which a model is served.
#[derive(Clone, Debug, Serialize)]
pub struct ModelFacts {
    /// The name that clients send.
    pub id: String,
    /// When serving began, in seconds since 1970.
    pub created: u64,
}

/// The limit on lengths, derived from measured pools.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LengthLimit {
    /// Largest sum of prompt and output, in tokens.
    pub max_model_len: u32,
    /// Largest prompt, in tokens; below `max_model_len`, since an answer has at least one token.
    pub max_prompt_tokens: u32,
    /// How both came about, one step a line, in an operator's words.
    pub derivation: Vec<String>,
}

impl EngineFacts {
    /// The largest limit, the one that is advertised.
    pub fn limit(&self) -> Option<&LengthLimit> {
        self.limits.first()
    }
}

impl LengthLimit {
    /// As the core judges them.
    pub fn lengths(&self) -> Lengths {
        Lengths {
            max_prompt: self.max_prompt_tokens,
            max_model_len: self.max_model_len,
        }
    }

    /// The longest prompt: an answer has at least one token, whatever the engine derived.
    pub fn longest_prompt(&self) -> u32 {
        self.max_prompt_tokens
            .min(self.max_model_len.saturating_sub(1))
    }
}

/// Whether a request sent now would be taken.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(tag = "state", content = "reason", rename_all = "snake_case")]
pub enum Readiness {
    /// Yes.
    Ready,
    /// Not yet, or not at the moment; the text says what is missing.
    NotReady(String),
    /// Not any more: what runs may finish, nothing new is taken.
    Draining,
    /// Nothing is known yet.
    #[default]
    Unknown,
}

/// What a worker is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerRole {
    /// Builds the KV cache of prompts.
    Prefill,
    /// Generates.
    Decode,
    /// Both in one process (`serve --in-process`).
    Unified,
}

impl WorkerRole {
    /// The word used in metrics and documents.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
            Self::Unified => "unified",
        }
    }
}

/// What one worker said of itself.
#[derive(Clone, Debug, Serialize)]
pub struct WorkerFacts {
    /// What it is for.
    pub role: WorkerRole,
    /// Its name in logs, such as `prefill-0`; unique in its role.
    pub name: String,
    /// Its present life, as text; empty while it is not connected.
    pub epoch: String,
    /// Whether it takes work.
    pub readiness: Readiness,
    /// Measured size of its pool, in tokens.
    pub pool_tokens: u64,
    /// Token slots of a page.
    pub page_size: u32,
    /// Largest sum of prompt and output it would take, in tokens.
    pub max_model_len: u32,
    /// Largest prompt it would take, in tokens.
    pub max_prompt_tokens: u32,
    /// Fingerprint of the model file with its tokenizer, in hex; none while it is not connected.
    pub model_fingerprint: Option<String>,
    /// Fingerprint of page size, layers, heads, type, order and numeric path, in hex; none while it
    /// is not connected, or if it hands nothing over.
    pub layout_fingerprint: Option<String>,
    /// Its pages by state.
    pub pages: PageCounts,
    /// What it holds back, by reason and with its age.
    pub quarantine: Quarantine,
    /// Its own counters.
    pub counters: Vec<Count>,
}

/// Pages of one pool by state; the sum is the pool (H-10).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PageCounts {
    /// No writer, no reader.
    pub free: u64,
    /// Taken, ticket not yet sent.
    pub reserved: u64,
    /// Somebody may write them.
    pub granted: u64,
    /// In use by a running sequence.
    pub sealed: u64,
    /// Kept for a later prompt with the same beginning.
    pub cached: u64,
    /// The owner ended, an access may be pending.
    pub quarantined: u64,
}

impl PageCounts {
    /// Every state with its name, in the order of the specification's table.
    pub fn by_state(&self) -> [(&'static str, u64); 6] {
        [
            ("free", self.free),
            ("reserved", self.reserved),
            ("granted", self.granted),
            ("sealed", self.sealed),
            ("cached", self.cached),
            ("quarantined", self.quarantined),
        ]
    }
}

/// A counter since the start of its owner's present life.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Count {
    /// Snake case, without the product's prefix and without `_total`.
    pub name: &'static str,
    /// One sentence for `/metrics`; the same wherever the name is the same.
    #[serde(skip)]
    pub help: &'static str,
    /// How many.
    pub value: u64,
}

/// Declares the counters once: the struct, their names and what they count cannot drift apart.
macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident,)*) => {
        /// See the module's documentation.
        #[derive(Debug, Default)]
        pub(super) struct Counters { $($(#[doc = $doc])+ pub(super) $name: u64,)* }

        impl Counters {
            pub(super) fn named(&self) -> Vec<$crate::engine::Count> {
                vec![$($crate::engine::Count {
                    name: stringify!($name),
                    help: concat!($($doc),+).trim_ascii(),
                    value: self.$name,
                },)*]
            }
        }
    };
}
pub(crate) use counters;
