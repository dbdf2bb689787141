//! From what the door says to what a client is told: one code for each way to end.

use handoff::door::{Blame, Failing, Leg, Outcome, Prompt, Turned, Why};

use crate::engine::{Code, Fault};

/// What a client is told. `said`: the engine's own words, if it had any.
///
/// # Errors
/// Everything but an answer.
pub(super) fn of_outcome(outcome: &Outcome, said: Option<&str>) -> Result<(), Fault> {
    match outcome {
        Outcome::Answered(_) => Ok(()),
        Outcome::ClientLeft => Err(super::requests::behind()),
        Outcome::TooLong {
            prompt,
            max_new,
            limit,
        } => Err(too_long(*prompt, *max_new, *limit)),
        Outcome::Refused(turned) => Err(match turned {
            Turned::NoEngine => Fault::new(
                Code::Unavailable,
                "no engine that could answer is up, or what it takes is not known; try again",
            ),
            Turned::Full => Fault::new(
                Code::QueueFull,
                "as many requests as allowed are running or queued; try again",
            ),
            Turned::Draining => {
                Fault::new(Code::Draining, "the server is ending and takes nothing new")
            }
        }),
        Outcome::Failed(failing) => Err(of_failing(failing, said)),
    }
}

fn too_long(prompt: Prompt, max_new: Option<u32>, limit: handoff::Lengths) -> Fault {
    let tokens = prompt.most();
    match max_new.filter(|_| limit.room(u64::from(tokens)).is_some()) {
        None => Fault::new(
            Code::ContextLengthExceeded,
            format!(
                "the prompt has {tokens} tokens; the engines take at most {}",
                limit.max_prompt
            ),
        ),
        Some(max_new) => Fault::new(
            Code::MaxTokensOverContext,
            format!(
                "the prompt has {tokens} tokens and up to {max_new} are to be generated: together \
                 {}, but the engines hold at most {}",
                u64::from(tokens) + u64::from(max_new),
                limit.max_model_len
            ),
        ),
    }
}

fn of_failing(failing: &Failing, said: Option<&str>) -> Fault {
    let leg = failing.leg;
    let failed = match leg {
        Leg::Prefill => Code::PrefillFailed,
        Leg::Decode => Code::DecodeFailed,
    };
    let timeout = match leg {
        Leg::Prefill => Code::PrefillTimeout,
        Leg::Decode => Code::DecodeTimeout,
    };
    let words = said.map_or(String::new(), |said| format!(": {said}"));
    match failing.why {
        Why::Said(Blame::Client) => Fault::new(
            Code::InvalidRequest,
            format!("the {leg} engine refused the request{words}"),
        ),
        Why::Said(Blame::Busy) => Fault::new(
            Code::OverCapacity,
            format!("the {leg} engine has too much to do; try again"),
        ),
        Why::Said(Blame::Engine) => {
            Fault::new(failed, format!("the {leg} engine failed; try again"))
        }
        Why::Lost => Fault::new(
            failed,
            format!("the {leg} engine was lost, or its answer was none; try again"),
        ),
        Why::Unreached => Fault::new(
            failed,
            format!("the {leg} engine could not be reached; try again"),
        ),
        Why::Silent => Fault::new(
            timeout,
            format!("the {leg} engine said nothing for as long as it may; try again"),
        ),
        Why::NoReference => Fault::new(
            failed,
            "the prefill engine gave no reference to what it has computed; try again",
        ),
        Why::Counts { ours, theirs } => Fault::new(
            Code::IntegrityWrongCount,
            format!(
                "the prompt has {} tokens and the {leg} engine computed {theirs}: its answer was \
                 not used",
                ours.most()
            ),
        ),
        Why::Differ { prefill, decode } => Fault::new(
            Code::IntegrityWrongCount,
            format!(
                "prefill computed {prefill} tokens of the prompt and decode {decode}: the answer was \
                 not used"
            ),
        ),
        Why::Uncounted => Fault::new(
            Code::IntegrityWrongCount,
            format!("the {leg} engine did not say what it computed: its answer was not used"),
        ),
        Why::Anothers => Fault::new(
            Code::IntegrityAnothersAnswer,
            format!("the {leg} engine answered with what is another request's: it was not used"),
        ),
        Why::Deadline => Fault::new(
            timeout,
            format!("the request's time was over before the {leg} engine was through"),
        ),
    }
}
