//! What can be pressed: always with a reason, always under a name.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Most characters of a reason.
pub const REASON_MAX: usize = 2000;

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Act {
    /// What runs may end; nothing new.
    Drain,
    /// Operators' keys alone.
    Private,
    /// Nobody.
    Close,
    /// Everybody again; refused without the evidence that the policy asks for.
    Restore,
    /// Open an incident by hand.
    OpenIncident,
    /// Write something down with an incident.
    Note,
    /// The incident is over.
    CloseIncident,
}

impl Act {
    /// The word that is shown.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Drain => "drain",
            Self::Private => "make private",
            Self::Close => "close",
            Self::Restore => "restore",
            Self::OpenIncident => "open an incident",
            Self::Note => "note",
            Self::CloseIncident => "close the incident",
        }
    }

    /// Whether it is about an incident that exists, not about what serves.
    #[must_use]
    pub fn is_about_incident(self) -> bool {
        matches!(self, Self::Note | Self::CloseIncident)
    }
}

/// To what it is done.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(
    rename_all = "snake_case",
    tag = "kind",
    deny_unknown_fields,
    // An operator's script reads this in a 400: it does not follow the type's name.
    expecting = "internally tagged enum Scope"
)]
pub enum ActionScope {
    /// The model, with all that serves it.
    Model,
    /// One pair.
    Pair {
        /// Name of the prefill engine.
        prefill: String,
        /// Name of the decode engine.
        decode: String,
    },
    /// One engine.
    Engine {
        /// Its name.
        name: String,
    },
    /// One incident.
    Incident {
        /// Its identifier.
        id: String,
    },
}

impl fmt::Display for ActionScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Model => write!(f, "the model"),
            // One that serves alone is its own pair.
            Self::Pair { prefill, decode } if prefill == decode => write!(f, "engine {prefill}"),
            Self::Pair { prefill, decode } => write!(f, "pair {prefill} → {decode}"),
            Self::Engine { name } => write!(f, "engine {name}"),
            Self::Incident { id } => write!(f, "incident {id}"),
        }
    }
}

/// What an operator asked for. `by` is the name of the key, never what the client says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Action {
    /// What.
    pub act: Act,
    /// To what.
    pub scope: ActionScope,
    /// Why; 1 to [`REASON_MAX`] characters, not only blanks.
    pub reason: String,
    /// Who.
    pub by: String,
}

/// It is done and written down.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// When.
    pub at_ms: u64,
    /// What was done, as one sentence.
    pub said: String,
    /// The incident that it stands in.
    pub incident: Option<String>,
}

/// At whose door the fault lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WhoseFault {
    /// What was asked makes no sense: 400.
    Asker,
    /// There is no such thing: 404.
    Missing,
    /// Not as things stand, for example without evidence: 409.
    Standing,
    /// It cannot be done or written down now: 503.
    Server,
}

/// It was not done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("expected {expected}; got {got}. Next: {next}")]
pub struct ActionRefused {
    /// Whose fault it is.
    pub whose: WhoseFault,
    /// What was expected.
    pub expected: String,
    /// What came instead.
    pub got: String,
    /// What to do next.
    pub next: String,
}
