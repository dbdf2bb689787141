//! What is under way, for a person who looks: no decision is made of it.

use crate::{AttemptId, RequestId};

/// An attempt that has not ended, at workers or engines that are known as `At`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnderWay<At> {
    /// Whose.
    pub request: RequestId,
    /// Which.
    pub attempt: AttemptId,
    /// How far it is.
    pub progress: Progress,
    /// Who computes the prompt; none where decode does both.
    pub prefill: Option<At>,
    /// Who computes the answer.
    pub decode: At,
}

/// How far an attempt is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Progress {
    /// Decode was told what to expect; nothing is computed.
    Announced,
    /// The prompt is computed, and its pages go over.
    Prefill,
    /// Prefill has done its part, and decode has said nothing yet.
    Handover,
    /// The answer is computed.
    Decode,
    /// Nobody wants it any more, and somebody may still be at it.
    Ending,
}

impl Progress {
    /// In a word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Announced => "announced",
            Self::Prefill => "prefill",
            Self::Handover => "handover",
            Self::Decode => "decode",
            Self::Ending => "ending",
        }
    }
}
