//! Defects of admission: what is let in, under which name, and with what it may wait.

use super::swap::Swap;
use handoff::{AfterPrefill, AttemptId, Capacity, Ending, Rejection, Role, Sound, Spec};

/// D-01. Prefill's length check marks a request that is too long and puts a placeholder of one
/// token in its place; admission then asks whether the request is finished, not whether it is still
/// valid, and lets the placeholder through.
#[derive(Debug)]
pub struct Placeholder;

impl Swap for Placeholder {
    fn admit_prompt(&self, capacity: &Capacity, mut spec: Spec) -> Result<Spec, Rejection> {
        if handoff::Decisions::admit_prompt(Sound, capacity, spec.clone()).is_err() {
            spec.tokens.truncate(1);
        }
        Ok(spec)
    }
}

/// D-14. Prefill cuts a prompt that is too long for it to what it can hold, and goes on.
#[derive(Debug)]
pub struct Truncates;

impl Swap for Truncates {
    fn admit_prompt(&self, capacity: &Capacity, mut spec: Spec) -> Result<Spec, Rejection> {
        if capacity.role == Role::Prefill {
            let longest = capacity.pool_tokens().min(u64::from(capacity.context) - 1);
            spec.tokens.truncate(longest as usize);
        }
        handoff::Decisions::admit_prompt(Sound, capacity, spec)
    }
}

/// D-14, the other side. Decode learns the length of the prompt from prefill's offer.
#[derive(Debug)]
pub struct LengthFromPrefill;

impl Swap for LengthFromPrefill {
    fn prompt_length(&self, _: u32, offered: u32) -> u32 {
        offered
    }
}

/// D-10. An attempt's number is derived from what a client sends, here the first token of its
/// prompt; two clients may send the same.
#[derive(Debug)]
pub struct ClientId;

impl Swap for ClientId {
    fn attempt_number(&self, _: u64, _: Option<AttemptId>, spec: &Spec) -> u64 {
        u64::from(spec.tokens.first().copied().unwrap_or_default())
    }
}

/// D-16. A retry keeps the number of the attempt that it follows.
#[derive(Debug)]
pub struct SameIdAgain;

impl Swap for SameIdAgain {
    fn attempt_number(&self, last: u64, before: Option<AttemptId>, _: &Spec) -> u64 {
        before.map_or(last + 1, |before| before.n)
    }
}

/// D-15. The gateway takes any word of prefill's about an attempt for success, as routers do that
/// look at the HTTP status of the prefill and not at its body.
#[derive(Debug)]
pub struct StatusIsEnough;

impl Swap for StatusIsEnough {
    fn after_prefill(&self, _: Ending) -> AfterPrefill {
        AfterPrefill::AskDecode
    }
}

/// D-23. A sequence that needs another page waits for it while it holds others, and so does the
/// next: nobody is put back.
#[derive(Debug)]
pub struct NobodyYields;

impl Swap for NobodyYields {
    fn yields(&self) -> bool {
        false
    }
}

/// D-29. Pages of choices that have ended, or are put back, are freed while a step reads them.
#[derive(Debug)]
pub struct GrowsInStep;

impl Swap for GrowsInStep {
    fn may_grow(&self, _: bool) -> bool {
        true
    }
}

/// D-30. What was put back goes on one token too early: that token is said twice.
#[derive(Debug)]
pub struct SaysTwice;

impl Swap for SaysTwice {
    fn resumes_behind(&self, said: usize) -> usize {
        said.saturating_sub(1)
    }
}

/// D-31. Offers are let in as long as there are free pages, whatever older sequences may come to
/// need: the oldest then waits for what a peer holds.
#[derive(Debug)]
pub struct NoRights;

impl Swap for NoRights {
    fn leaves_the_right(&self, _: usize, _: usize, _: usize) -> bool {
        true
    }
}
