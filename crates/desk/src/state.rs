//! What the desk shows. Times are milliseconds since 1970 UTC; of requests there are identifiers and
//! counts, never a word of a prompt or an answer. What has an age says since when, so that nothing
//! changes while nothing happens.

use serde::{Deserialize, Serialize};

/// Most handoffs in flight that a state names; the rest is a number.
pub const HANDOFFS_MAX: usize = 100;
/// Most points of time to first token against length.
pub const POINTS_MAX: usize = 500;
/// Most incidents, newest first.
pub const INCIDENTS_MAX: usize = 50;

/// Everything that is shown, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeskState {
    /// When it was put together.
    pub at_ms: u64,
    /// Version of what serves.
    pub version: String,
    /// The model as its users meet it.
    pub model: ModelView,
    /// Every engine, ours and others.
    pub engines: Vec<EngineView>,
    /// Which prefill hands over to which decode.
    pub pairs: Vec<PairView>,
    /// Page pools of our own workers; those of other engines cannot be seen.
    pub pools: Vec<PoolView>,
    /// What is being computed.
    pub running: RunningView,
    /// Time to first token against length.
    pub ttft: Ttft,
    /// The continuous canaries; none: they are off.
    pub canaries: Option<CanariesView>,
    /// Open ones and the last closed ones.
    pub incidents: Vec<IncidentView>,
    /// Where all of it is written down.
    pub journal: JournalView,
}

/// Who is let in, from least to most closed.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum AccessLevel {
    /// Everybody who has a key.
    #[default]
    Open,
    /// What runs may end; nothing new.
    Draining,
    /// Operators' keys alone.
    Private,
    /// Nobody.
    Closed,
}

impl DeskState {
    /// Who reaches a pair: the most closed of the doors on the way.
    #[must_use]
    pub fn reach_of_pair(&self, pair: &PairView) -> AccessLevel {
        let ends = [&pair.prefill, &pair.decode].into_iter();
        let engine = |name: &String| self.engines.iter().find(|it| it.name == *name);
        let doors = ends.filter_map(engine).map(|it| it.standing.access);
        doors.fold(
            self.model.standing.access.max(pair.standing.access),
            AccessLevel::max,
        )
    }
}

impl AccessLevel {
    /// The word that is shown.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Draining => "draining",
            Self::Private => "private",
            Self::Closed => "closed",
        }
    }
}

/// Who is let in at one door, and why it is so. Who reaches an engine has passed that of the model and of its
/// pair too: see [`DeskState::reach_of_pair`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StandingView {
    /// Who is let in.
    pub access: AccessLevel,
    /// Why, in plain words.
    pub why: Option<String>,
    /// Since when.
    pub since_ms: Option<u64>,
    /// The incident that it belongs to.
    pub incident: Option<String>,
}

/// The model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ModelView {
    /// As clients name it.
    pub name: String,
    /// Of the model as a whole.
    pub standing: StandingView,
    /// Longest prompt that is taken.
    pub max_prompt_tokens: Option<u32>,
    /// Longest prompt and answer together.
    pub max_model_len: Option<u32>,
    /// `ready`, or what is missing.
    pub readiness: String,
    /// What was proven of the lives that run.
    pub evidence: Vec<ProofView>,
}

/// One proof, bound to one life of an engine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProofView {
    /// `probe` or `canary`.
    pub kind: String,
    /// When it was made.
    pub at_ms: u64,
    /// Of which life.
    pub life: String,
    /// What it lacks to count; none: it counts.
    pub missing: Option<String>,
}

/// What an engine does.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum RoleView {
    /// Computes prompts.
    Prefill,
    /// Computes answers.
    Decode,
    /// Both.
    #[default]
    Unified,
}

/// One engine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EngineView {
    /// What it is called here; an action names it so.
    pub name: String,
    /// Where it is.
    pub url: String,
    /// What it does.
    pub role: RoleView,
    /// Only engines of one group are paired.
    pub group: u32,
    /// `SGLang`, `vLLM`, `llama.cpp`, `Cofferdam`.
    pub software: String,
    /// Its version.
    pub version: String,
    /// The life that runs: an epoch, or what stands for it.
    pub life: String,
    /// Since when this life runs.
    pub since_ms: Option<u64>,
    /// Why it takes nothing; none: it is ready.
    pub readiness: Option<String>,
    /// Who is let in.
    pub standing: StandingView,
    /// Tokens that its KV pool holds.
    pub pool_tokens: Option<u64>,
    /// Tokens that it promises for one request.
    pub context_tokens: Option<u64>,
    /// Longest prompt that it takes, as measured.
    pub max_prompt_tokens: Option<u64>,
    /// Requests that it computes now.
    pub running: u64,
    /// The last ones, newest first, each with its source.
    pub verdicts: Vec<VerdictView>,
}

/// What a look came to.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum CheckResult {
    /// Nothing was found.
    Clean,
    /// It could not be told.
    #[default]
    Unknown,
    /// Something was found.
    Found,
}

/// One look at an engine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct VerdictView {
    /// When.
    pub at_ms: u64,
    /// What was looked for, in a few words.
    pub what: String,
    /// What it came to.
    pub result: CheckResult,
    /// Who says so: `gate`, `probe`, `canary`, `watch`, `guard`, `door`.
    pub source: String,
}

/// A prefill and a decode engine that hand over to each other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PairView {
    /// Name of the prefill engine.
    pub prefill: String,
    /// Name of the decode engine; of a unified one the same.
    pub decode: String,
    /// Who is let in.
    pub standing: StandingView,
    /// Canaries that went through this pair.
    pub canaries: PairCanaries,
    /// Requests that went through this pair.
    pub requests: u64,
}

/// Canaries of one pair.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PairCanaries {
    /// Planted and asked for.
    pub sent: u64,
    /// Findings of them. One convicts.
    pub seen: u64,
    /// When the last one was sent.
    pub last_ms: Option<u64>,
}

/// The page pool of one of our workers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PoolView {
    /// Whose.
    pub engine: String,
    /// Tokens of one page.
    pub page_size: u32,
    /// How many pages are in which state.
    pub pages: PagesView,
    /// Why pages are in quarantine.
    pub quarantine: Vec<QuarantineView>,
}

/// Pages by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PagesView {
    /// Nobody's.
    pub free: u64,
    /// Promised to a handoff.
    pub reserved: u64,
    /// Owned, being written.
    pub granted: u64,
    /// Owned, complete, checked.
    pub sealed: u64,
    /// Kept for the same domain.
    pub cached: u64,
    /// Whose owner has ended while somebody may still touch them.
    pub quarantined: u64,
}

/// Pages in quarantine for one reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct QuarantineView {
    /// Why.
    pub reason: String,
    /// How many.
    pub pages: u64,
    /// Since when the oldest of them.
    pub since_ms: u64,
}

/// What is being computed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunningView {
    /// Requests in all.
    pub requests: u64,
    /// Of these, waiting for a turn.
    pub queued: u64,
    /// Handoffs, oldest first, at most [`HANDOFFS_MAX`].
    pub handoffs: Vec<Handoff>,
    /// Handoffs that are not named.
    pub more: u64,
}

/// One handoff in flight.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Handoff {
    /// The request's identifier.
    pub request: String,
    /// How far it is: `announced`, `prefill`, `handover`, `decode`, or `ending`.
    pub stage: String,
    /// Who computes the prompt.
    pub prefill: String,
    /// Who computes the answer.
    pub decode: String,
    /// When its request came; 0 if that has ended already, and somebody may still be at it.
    pub since_ms: u64,
}

/// Time to first token against length, as (tokens to compute, milliseconds).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Ttft {
    /// The last requests, at most [`POINTS_MAX`].
    pub points: Vec<(u64, f64)>,
    /// The least time that a prompt of that length takes, as learned; in order of length.
    pub floor: Vec<(u64, f64)>,
}

/// The continuous canaries.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CanariesView {
    /// Planted and asked for.
    pub sent: u64,
    /// Answers that came whole and were looked through.
    pub answered: u64,
    /// Findings: another's words in an answer, or an answer to a prompt that cannot have been read. One convicts.
    pub seen: u64,
    /// What this was worth.
    pub windows: Vec<Window>,
    /// Tokens a minute that they may use.
    pub tokens_minute: u64,
    /// Why they stand still; none: they run.
    pub paused: Option<String>,
    /// What they never test, and why.
    pub untested: Option<String>,
}

/// What the canaries of a stretch of time were worth.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Window {
    /// `hour` or `day`.
    pub name: String,
    /// Answers that were looked through.
    pub answers: u64,
    /// Findings in them.
    pub found: u64,
    /// A leak in more than one of so many answers would have been seen with 95 %; none: too few.
    pub one_in: Option<u64>,
}

/// What happened, and what was done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct IncidentView {
    /// Its identifier.
    pub id: String,
    /// When it was opened.
    pub opened_ms: u64,
    /// When it was closed; none: it is open.
    pub closed_ms: Option<u64>,
    /// When a person has opened again what was closed because of it, with nothing found since; none: not so.
    pub restored_ms: Option<u64>,
    /// What gave the alarm.
    pub signal: String,
    /// What it is about, in words: a pair, an engine, the model.
    pub scope: String,
    /// One line.
    pub title: String,
    /// Names of the engines.
    pub engines: Vec<String>,
    /// Their lives at that time.
    pub lives: Vec<String>,
    /// Requests that may have got text that was not theirs; none: nobody has looked for them.
    pub affected: Option<u64>,
    /// Whose they are, as in ` of blue (3), red (1)`; empty: not known.
    pub whose: String,
    /// What was done, oldest first.
    pub actions: Vec<IncidentEntry>,
    /// What to do next, in plain words; the first is the first to do.
    pub next: Vec<String>,
}

/// One thing that was done or noted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct IncidentEntry {
    /// When.
    pub at_ms: u64,
    /// What.
    pub what: String,
    /// By whom: an operator, or `policy`.
    pub by: String,
    /// Why.
    pub why: String,
}

/// Where it is written down.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct JournalView {
    /// The file; none: nothing is kept.
    pub path: Option<String>,
    /// Entries that are not on disk yet.
    pub pending: u64,
    /// What is wrong with it.
    pub trouble: Option<String>,
    /// Hash of the newest entry: write it down elsewhere, and nobody can change what came before.
    pub head: Option<String>,
}
