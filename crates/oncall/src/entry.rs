//! What a journal's lines say. Ids and figures only, never a word of a prompt or of an answer.

use crate::times::Ms;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// Longest text of a person or a tool that is kept, characters.
pub const TEXT_MAX: usize = 2_000;

/// How far the door is open, from fully to not at all.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Openness {
    /// For everybody.
    #[default]
    Open,
    /// Nothing new goes there; what runs may finish.
    Draining,
    /// For operators and canaries only.
    Private,
    /// For nobody.
    Closed,
}

impl Openness {
    /// The word in documents and policies.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Draining => "draining",
            Self::Private => "private",
            Self::Closed => "closed",
        }
    }
}

/// What something is about. Engines are called by what they were named as, which outlives a restart.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Everything that reads this journal.
    Fleet,
    /// All engines of a model.
    Model(String),
    /// A prefill and a decode, each of which may be to blame.
    Pair(String, String),
    /// One engine.
    Engine(String),
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fleet => f.write_str("the fleet"),
            Self::Model(name) => write!(f, "model {name}"),
            Self::Pair(prefill, decode) => write!(f, "pair {prefill} and {decode}"),
            Self::Engine(name) => write!(f, "engine {name}"),
        }
    }
}

/// One life of one engine: another process under the same name is another life.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Life {
    /// What it was named as.
    pub engine: String,
    /// An epoch, or what stands for one.
    pub life: String,
}

impl Life {
    /// Whether it is this one. A proof that was made elsewhere knows lives, and no names.
    pub fn is(&self, running: &Life) -> bool {
        self.life == running.life && (self.engine.is_empty() || self.engine == running.engine)
    }
}

/// What was found out, by kind; the gravest stands first, and an incident is called by the gravest of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SignalKind {
    /// Another tenant's canary in an answer.
    CanaryLeak,
    /// Another request's canary of the same tenant.
    CanaryMixup,
    /// `probe` found something.
    ProbeFinding,
    /// Canaries from a length on are not gone on with, to the token, though shorter ones are.
    CanaryLost,
    /// A canary over the limit was answered with 200.
    OverLimitAnswered,
    /// `watch` says that an answer cannot have been computed from its prompt.
    WatchAlarm,
    /// An engine has answered with what is another request's.
    AnothersAnswer,
    /// A guard inside an engine refused pages for their content.
    GuardRefusal,
    /// One of our own workers found pages that are not a request's own, and used none of them.
    IntegrityFault,
    /// An engine has computed another prompt than the one it was sent.
    CountMismatch,
    /// `gate` finds a check violated on what runs.
    GateViolated,
}

impl SignalKind {
    /// Every kind.
    pub const ALL: [Self; 11] = [
        Self::CanaryLeak,
        Self::CanaryMixup,
        Self::ProbeFinding,
        Self::CanaryLost,
        Self::OverLimitAnswered,
        Self::WatchAlarm,
        Self::AnothersAnswer,
        Self::GuardRefusal,
        Self::IntegrityFault,
        Self::CountMismatch,
        Self::GateViolated,
    ];

    /// The kind of this name.
    ///
    /// # Errors
    /// There is none; those that there are.
    pub fn named(name: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|it| it.as_str() == name);
        known.ok_or_else(|| {
            let names = Self::ALL.map(Self::as_str).join(", ");
            format!("no signal is called so; there are: {names}")
        })
    }

    /// The word in policies and the journal.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::CanaryLeak => "canary_leak",
            Self::CanaryMixup => "canary_mixup",
            Self::OverLimitAnswered => "over_limit_answered",
            Self::CanaryLost => "canary_lost",
            Self::ProbeFinding => "probe_finding",
            Self::WatchAlarm => "watch_alarm",
            Self::GateViolated => "gate_violated",
            Self::IntegrityFault => "integrity_fault",
            Self::GuardRefusal => "guard_refusal",
            Self::CountMismatch => "count_mismatch",
            Self::AnothersAnswer => "anothers_answer",
        }
    }

    /// The same for people.
    pub fn title(self) -> &'static str {
        match self {
            Self::CanaryLeak => "an answer had another tenant's canary in it",
            Self::CanaryMixup => "an answer had another request's canary in it",
            Self::OverLimitAnswered => "a prompt over the limit was answered with 200",
            Self::CanaryLost => "prompts from a length on are answered with something else",
            Self::ProbeFinding => "probe found something",
            Self::WatchAlarm => "an answer came too soon to have been computed from its prompt",
            Self::GateViolated => "a check of gate is violated on what runs",
            Self::IntegrityFault => "a worker refused pages that were not the request's own",
            Self::GuardRefusal => "a guard refused pages that were not the request's own",
            Self::CountMismatch => "an engine computed another prompt than it was sent",
            Self::AnothersAnswer => "an engine answered with what is another request's",
        }
    }

    /// What an incident is called that policy opens because of it.
    pub fn incident(self, scope: &Scope) -> String {
        format!("{}: {scope}", self.title())
    }
}

/// One thing that was found out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signal {
    /// What.
    pub signal: SignalKind,
    /// At whom, as far as it is known; a prefill comes first.
    pub lives: Vec<Life>,
    /// The gateway's own id of the request that showed it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
    /// Whose request it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// What exactly, without text of anybody.
    pub says: String,
    /// Which tool or part says so.
    pub source: String,
}

/// What a proof is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProofKind {
    /// A clean run of `probe` with the suites that reproduce the incident.
    Probe,
    /// Clean canaries, enough of them.
    Canary,
}

impl ProofKind {
    /// The word in policies.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Probe => "probe",
            Self::Canary => "canary",
        }
    }
}

/// That something was tested, and which lives it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proof {
    /// By what.
    pub proof: ProofKind,
    /// What was tested; of another life it says nothing.
    pub lives: Vec<Life>,
    /// Answers that would have shown a leak.
    pub answers: u64,
    /// In a sentence.
    pub says: String,
}

/// One line of the journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Entry {
    /// A process has begun to write here.
    Began {
        /// Its own life.
        by: String,
        /// Its version.
        version: String,
        /// What it serves.
        model: String,
    },
    /// Another process serves under an engine's name.
    NewLife {
        /// Which.
        life: Life,
        /// The one before, if it was known.
        #[serde(skip_serializing_if = "Option::is_none")]
        before: Option<String>,
    },
    /// Something was found out.
    Signal {
        /// What.
        #[serde(flatten)]
        signal: Signal,
        /// The incident that it belongs to.
        #[serde(skip_serializing_if = "Option::is_none")]
        incident: Option<String>,
    },
    /// More of the same, of which each was not worth a line.
    More {
        /// Of which kind.
        signal: SignalKind,
        /// How many since the last line.
        count: u64,
        /// The incident that they belong to.
        #[serde(skip_serializing_if = "Option::is_none")]
        incident: Option<String>,
    },
    /// An incident begins.
    Opened {
        /// Its name.
        incident: String,
        /// What it is about.
        scope: Scope,
        /// In a sentence.
        title: String,
        /// Who or what opened it.
        by: String,
    },
    /// From now on no more than this.
    Restricted {
        /// Whom it is about.
        scope: Scope,
        /// How far the door is open.
        access: Openness,
        /// Why.
        why: String,
        /// Who or what did it.
        by: String,
        /// The incident that it belongs to.
        #[serde(skip_serializing_if = "Option::is_none")]
        incident: Option<String>,
    },
    /// Open again.
    Restored {
        /// Whom it is about.
        scope: Scope,
        /// Why.
        why: String,
        /// Who did it.
        by: String,
        /// What it rests on, one line each.
        proofs: Vec<String>,
        /// The incident that the restriction belonged to.
        #[serde(skip_serializing_if = "Option::is_none")]
        incident: Option<String>,
    },
    /// A person wanted something that could not be done.
    Declined {
        /// What.
        what: String,
        /// Why not.
        why: String,
        /// Who.
        by: String,
    },
    /// It was tested.
    Proved {
        /// By what, and which lives.
        #[serde(flatten)]
        proof: Proof,
    },
    /// How long prompts must be for the fault to show.
    Trigger {
        /// The incident.
        incident: String,
        /// The shortest prompt that showed it, in tokens.
        at_least_tokens: u64,
        /// The longest that did not.
        clean_tokens: u64,
        /// The lives at which it was looked for.
        lives: Vec<Life>,
    },
    /// Requests that the fault may have answered. Ids only.
    Affected {
        /// The incident.
        incident: String,
        /// The gateway's ids.
        requests: Vec<String>,
        /// How they were found.
        how: String,
        /// Whether there are more than are named here.
        more: u64,
        /// How many of them all are whose. (Older lines do not say it.)
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        tenants: BTreeMap<String, u64>,
    },
    /// A person's words.
    Noted {
        /// The incident.
        incident: String,
        /// What.
        text: String,
        /// Who.
        by: String,
    },
    /// An incident ends.
    Closed {
        /// Which.
        incident: String,
        /// Why.
        why: String,
        /// Who.
        by: String,
    },
}

impl Entry {
    /// The incident that it belongs to.
    pub fn incident(&self) -> Option<&str> {
        match self {
            Self::Signal { incident, .. }
            | Self::More { incident, .. }
            | Self::Restricted { incident, .. }
            | Self::Restored { incident, .. } => incident.as_deref(),
            Self::Opened { incident, .. }
            | Self::Trigger { incident, .. }
            | Self::Affected { incident, .. }
            | Self::Noted { incident, .. }
            | Self::Closed { incident, .. } => Some(incident),
            Self::Began { .. }
            | Self::NewLife { .. }
            | Self::Declined { .. }
            | Self::Proved { .. } => None,
        }
    }
}

/// An entry, and when it was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dated {
    /// When.
    pub at: Ms,
    /// What.
    pub entry: Entry,
}

/// At most so much of a text.
pub fn shortened(text: &str) -> String {
    text.chars().take(TEXT_MAX).collect()
}
