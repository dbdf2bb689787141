//! One decision of the door swapped, for each clause: the shipped machine with it breaks that clause
//! in a world.

use handoff::door::{Decisions, Handing, Moving, PrefillJudged, Prompt, Whose};
use handoff::{AttemptId, Lengths};
use std::fmt;

/// Which decision is swapped.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Swapped {
    /// None.
    Nothing,
    /// Decode's bytes go out as they come.
    ReleasesUnjudged,
    /// A status is believed, and no count looked at.
    CountsNothing,
    /// Counts of the two engines are compared with the bound only.
    NeverComparesBoth,
    /// What a leg of an attempt that is over says counts.
    HearsTheOld,
    /// An abort that nobody answers is waited for.
    WaitsForAnAbort,
    /// A leg is aborted as soon as nobody wants it.
    AbortsAtOnce,
    /// A new attempt goes where an old leg is.
    Joins,
    /// What the client has had of an answer does not count.
    RetriesBehindBytes,
    /// A retry has the number of the attempt that it follows.
    SameNumber,
    /// Unknown lengths are no limit, nor are those that are known.
    TakesAnyLength,
    /// A failure of decode's counts against it, whatever prefill did.
    BlamesBoth,
    /// A request without an answer waits on behind its deadline.
    WaitsOn,
    /// The reference of the attempt before is used again.
    OldReference,
    /// Whose answer it is is not looked at.
    TakesAnyones,
    /// An engine under suspicion is asked for everybody.
    AsksThePrivate,
}

/// A defect, and where it shows.
pub struct Defect {
    /// The clause that it breaks.
    pub clause: &'static str,
    /// The decision.
    pub swapped: Swapped,
    /// What is decided wrongly.
    pub what: &'static str,
    /// Who has it.
    pub seen: &'static str,
    /// A world in which it shows, at the smallest bound.
    pub world: &'static str,
}

macro_rules! defects {
    ($($clause:literal $swapped:ident $what:literal seen $seen:literal in $world:literal)*) => {
        &[$(Defect {
            clause: $clause,
            swapped: Swapped::$swapped,
            what: $what,
            seen: $seen,
            world: $world,
        }),*]
    };
}

/// All of them, by clause.
pub const ALL: &[Defect] = defects! {
    "DR-1" ReleasesUnjudged "decode's bytes go out before prefill was judged"
        seen "vllm-router (push), llm-d (SGLang)" in "door-together"
    "DR-2" CountsNothing "a status of 200 is believed, whatever was counted"
        seen "sglang-router 0.3.2, vllm-router 0.1.17" in "door-together"
    "DR-2" NeverComparesBoth "prefill and decode may count differently within a bound"
        seen "sglang-router 0.3.2" in "door-text"
    "DR-3" HearsTheOld "what a leg of an ended attempt says still counts"
        seen "draft" in "door-together"
    "DR-4" WaitsForAnAbort "an abort that the engine does not answer is waited for"
        seen "draft" in "door-together"
    "DR-5" AbortsAtOnce "both legs are dropped when the client leaves"
        seen "sglang-router 0.3.2, vllm-router 0.1.17" in "door-together"
    "DR-5" AbortsAtOnce "a router is left as soon as the client leaves"
        seen "draft" in "door-router"
    "DR-6" Joins "a retry goes to a decode that still waits for the attempt before"
        seen "sglang-router 0.3.2" in "door-two-prefills"
    "DR-6" RetriesBehindBytes "a request is tried again when the client has some of an answer"
        seen "draft" in "door-two-pairs"
    "DR-7" SameNumber "a retry has the identifiers of the attempt before"
        seen "kthena #1423" in "door-two-prefills"
    "DR-8" TakesAnyLength "any length is forwarded"
        seen "sglang-router 0.3.2, vllm-router 0.1.17" in "door-limits"
    "DR-9" BlamesBoth "prefill's failure counts against decode"
        seen "sglang-router 0.3.2" in "door-together"
    "DR-10" WaitsOn "a request waits on behind its deadline"
        seen "sglang-router 0.3.2 (1,800 s)" in "door-together"
    "DR-11" OldReference "a reference is used for another attempt than its own"
        seen "vLLM #52234 in spirit" in "door-two-pairs"
    "DR-12" TakesAnyones "whose answer it is, is not looked at"
        seen "all routers that were tried" in "door-alone"
    "DR-13" AsksThePrivate "a pair that is for operators only answers everybody"
        seen "draft" in "door-private"
};

impl Decisions for Swapped {
    fn attempt_number(self, last: u64, before: Option<AttemptId>) -> u64 {
        match (self, before) {
            (Self::SameNumber, Some(before)) => before.n,
            _ => last + 1,
        }
    }

    fn room(self, lengths: Option<Lengths>, prompt: Prompt, max_new: Option<u32>) -> Option<u32> {
        match self {
            Self::TakesAnyLength => Some(max_new.unwrap_or(1)),
            _ => pages::Sound.room(lengths, prompt, max_new),
        }
    }

    fn may_release(self, judged: Option<PrefillJudged>) -> bool {
        self == Self::ReleasesUnjudged || judged.is_some()
    }

    fn same_prompt(self, ours: Prompt, counted: Option<u32>) -> bool {
        self == Self::CountsNothing || pages::Sound.same_prompt(ours, counted)
    }

    fn same_at_both(self, prefill: u32, decode: u32) -> bool {
        let never = matches!(self, Self::NeverComparesBoth | Self::CountsNothing);
        never || prefill == decode
    }

    fn is_ours(self, whose: Whose) -> bool {
        self == Self::TakesAnyones || whose != Whose::Anothers
    }

    fn counts_for_its_request(self, present: bool) -> bool {
        self == Self::HearsTheOld || present
    }

    fn may_abort(self, moving: Moving) -> bool {
        self == Self::AbortsAtOnce || moving == Moving::No
    }

    fn may_use(self, private: bool, operator: bool) -> bool {
        self == Self::AsksThePrivate || pages::Sound.may_use(private, operator)
    }

    fn may_retry(self, released: bool) -> bool {
        self == Self::RetriesBehindBytes || !released
    }

    fn may_join(self, unended: bool) -> bool {
        self == Self::Joins || !unended
    }

    fn blames_decode(self, prefill_is_well: bool) -> bool {
        self == Self::BlamesBoth || prefill_is_well
    }

    fn reference_for(self, attempt: AttemptId, before: Option<AttemptId>) -> AttemptId {
        match (self, before) {
            (Self::OldReference, Some(before)) => before,
            _ => attempt,
        }
    }

    fn decode_waits(self, handing: Handing) -> bool {
        handing == Handing::Pull
    }

    fn gives_up(self) -> bool {
        self != Self::WaitsForAnAbort
    }

    fn ends_at_deadline(self, _: bool) -> bool {
        self != Self::WaitsOn
    }
}

impl fmt::Display for Defect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.clause, self.what)
    }
}
