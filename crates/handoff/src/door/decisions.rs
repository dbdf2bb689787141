//! What the door decides, each decision on its own, so that a laboratory can swap exactly one (see
//! [`crate::Decisions`] for those of the three machines of our own engine).

use super::{Handing, Moving, PrefillJudged, Prompt, Whose};
use crate::{AttemptId, Lengths};

/// The decisions of the door. Every provided method is the sound one.
#[allow(unused_variables)] // a sound decision need not look at all that an unsound one may
pub trait Decisions: Clone + Copy + Send + Sync {
    /// The number of the next attempt: never used before, whatever attempt it follows (DR-7).
    fn attempt_number(self, last: u64, before: Option<AttemptId>) -> u64 {
        last + 1
    }

    /// Most tokens of the answer, if engines that take such lengths can hold the request (DR-8).
    /// Lengths that are not known are none.
    fn room(self, lengths: Option<Lengths>, prompt: Prompt, max_new: Option<u32>) -> Option<u32> {
        let room = lengths?.room(u64::from(prompt.most()))?;
        match max_new {
            None => Some(room),
            Some(wanted) => (wanted > 0 && wanted <= room).then_some(wanted),
        }
    }

    /// Whether a byte of an answer may reach the client: once prefill's own answer was judged, by
    /// its body (DR-1).
    fn may_release(self, judged: Option<PrefillJudged>) -> bool {
        judged.is_some()
    }

    /// Whether an engine has computed the prompt that was sent, by what it counted. Who does not
    /// count cannot be believed (DR-2).
    fn same_prompt(self, ours: Prompt, counted: Option<u32>) -> bool {
        match (ours, counted) {
            (Prompt::Counted(ours), Some(counted)) => ours == counted,
            (Prompt::AtMost(most), Some(counted)) => counted > 0 && counted <= most,
            (_, None) => false,
        }
    }

    /// Whether both engines of a pair have computed the same prompt (DR-2).
    fn same_at_both(self, prefill: u32, decode: u32) -> bool {
        prefill == decode
    }

    /// Whether an answer may be taken for that of the leg that it came for (DR-12).
    fn is_ours(self, whose: Whose) -> bool {
        whose != Whose::Anothers
    }

    /// Whether what a leg says of an attempt still counts for its request: only of the present one
    /// (DR-3).
    fn counts_for_its_request(self, present: bool) -> bool {
        present
    }

    /// Whether a leg may be aborted, by what may be under way between the pages of both (DR-5).
    fn may_abort(self, moving: Moving) -> bool {
        moving == Moving::No
    }

    /// Whether a request may be tried again, by whether the client has had anything of it (DR-6).
    fn may_retry(self, released: bool) -> bool {
        !released
    }

    /// Whether a request may go to an engine, by whether that is private and whether an operator asks
    /// (DR-13).
    fn may_use(self, private: bool, operator: bool) -> bool {
        !private || operator
    }

    /// Whether a new attempt may go to an engine that has a leg of an attempt before, which has not
    /// ended (DR-6).
    fn may_join(self, unended: bool) -> bool {
        !unended
    }

    /// Whether a failure of decode counts against it, if prefill has failed or has not said
    /// yet how it ended (DR-9).
    fn blames_decode(self, prefill_is_well: bool) -> bool {
        prefill_is_well
    }

    /// Whose reference goes along with decode's leg of an attempt: the one that its own prefill has
    /// answered with, at once (DR-11).
    fn reference_for(self, attempt: AttemptId, before: Option<AttemptId>) -> AttemptId {
        attempt
    }

    /// Whether decode's leg waits for prefill's answer.
    fn decode_waits(self, handing: Handing) -> bool {
        handing == Handing::Pull
    }

    /// Whether a leg whose abort nobody has answered in time is given up: nobody waits for ever
    /// (DR-4).
    fn gives_up(self) -> bool {
        true
    }

    /// Whether a request that has no answer at its deadline ends (DR-10).
    fn ends_at_deadline(self, waiting: bool) -> bool {
        true
    }
}

impl Decisions for pages::Sound {}
