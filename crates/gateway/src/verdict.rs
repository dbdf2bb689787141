//! From what the handoff says to what a client is told: one table, one code for each variant (H-6).
//!
//! Every match here is exhaustive, so a new way to end cannot be forgotten. A rejection keeps its
//! original figures: what was asked, the limit, whose it is, and how it came about.

use handoff::gateway::Outcome;
use handoff::{Failure, Fault as KvFault, Limit, Refusal, Rejection, Role, Stage};

use crate::engine::{Code, Fault};

/// What a client is told about a request that ended so. `committed`: whether decode had verified
/// the prompt. `how`: the limit that is advertised, which can say how it came about.
///
/// # Errors
/// Everything but an answer.
pub fn of_outcome(outcome: &Outcome, committed: bool, how: Option<&Limit>) -> Result<(), Fault> {
    match outcome {
        Outcome::Answered => Ok(()),
        Outcome::Rejected(rejection) => Err(of_rejection(rejection, how)),
        Outcome::Refused(refusal) => Err(of_refusal(*refusal)),
        Outcome::Failed(failure) => Err(of_failure(*failure, committed)),
        // Nobody listens any more, unless the reader fell behind: then this is what it hears.
        Outcome::ClientLeft => Err(Fault::new(
            Code::Internal,
            "the answer was cancelled, because nobody took its tokens in time",
        )),
    }
}

/// Refused for good: the same request will be refused again.
pub fn of_rejection(rejection: &Rejection, how: Option<&Limit>) -> Fault {
    let how = how.map_or(String::new(), |limit| format!(" ({limit})"));
    match rejection {
        Rejection::PromptTooLong { tokens, limit, by } => Fault::new(
            Code::ContextLengthExceeded,
            format!(
                "the prompt has {tokens} tokens; {} takes at most {limit}{how}",
                name(*by)
            ),
        ),
        Rejection::ContextTooLong {
            prompt,
            max_new,
            limit,
            by,
        } => Fault::new(
            Code::MaxTokensOverContext,
            format!(
                "the prompt has {prompt} tokens and up to {max_new} are to be generated: together \
                 {}, but {} holds at most {limit}{how}",
                u64::from(*prompt) + u64::from(*max_new),
                name(*by),
            ),
        ),
        Rejection::TooManyPages { needed, pool, by } => Fault::new(
            Code::InvalidRequest,
            format!(
                "all choices together need {needed} pages, but the pool of {} has {pool}{how}; \
                 ask for fewer choices or fewer tokens",
                name(*by)
            ),
        )
        .on("n"),
        Rejection::Empty => Fault::new(
            Code::InvalidRequest,
            "an empty prompt, no choice, or nothing to generate",
        ),
        Rejection::Duplicate => Fault::new(
            Code::Internal,
            "an id was used twice; this is a fault of the server",
        ),
    }
}

/// Not taken on now: the same request may be taken later.
pub fn of_refusal(refusal: Refusal) -> Fault {
    match refusal {
        Refusal::QueueFull => Fault::new(
            Code::QueueFull,
            "as many requests as allowed are running or queued; try again",
        ),
        Refusal::TenantCap => Fault::new(
            Code::RateLimited,
            "this API key has as much running or queued as it may; try again when some of it has \
             ended",
        ),
        Refusal::Draining => {
            Fault::new(Code::Draining, "the server is ending and takes nothing new")
        }
        Refusal::PeerUnavailable => Fault::new(
            Code::Unavailable,
            "no pair of prefill and decode workers is connected at the moment; try again",
        ),
    }
}

/// It failed. `committed`: whether decode had verified the prompt, which says at whom.
pub fn of_failure(failure: Failure, committed: bool) -> Fault {
    match failure {
        Failure::Deadline(stage) => of_deadline(stage),
        Failure::PeerFailed(Stage::Queue | Stage::Prefill) => Fault::new(
            Code::PrefillFailed,
            "the prefill worker failed or was lost before the prompt was handed over; try again",
        ),
        Failure::PeerFailed(Stage::Transfer) => Fault::new(
            Code::PrefillFailed,
            "the KV cache did not get from prefill to decode; try again",
        ),
        Failure::PeerFailed(Stage::Decode) => Fault::new(
            Code::DecodeFailed,
            "the decode worker failed or was lost; try again",
        ),
        Failure::Unsettled => Fault::new(
            Code::PrefillFailed,
            "a write of the KV cache ended without success, so it was not used; try again",
        ),
        Failure::Integrity(KvFault::FailStop) => Fault::new(
            Code::IntegrityFailStop,
            "a worker found one of its own rules broken and has ended; try again",
        ),
        Failure::Integrity(fault) => {
            let (code, what) = integrity(fault);
            let what = format!("the KV cache that arrived was not used: {what}; try again");
            Fault::new(code, what)
        }
        Failure::Compute if committed => Fault::new(
            Code::DecodeFailed,
            "a forward pass of the decode worker failed",
        ),
        Failure::Compute => Fault::new(
            Code::PrefillFailed,
            "a forward pass of the prefill worker failed",
        ),
        Failure::Form => Fault::new(
            Code::FormNotKept,
            "the answer could not be kept to the form that was asked for: it had come to where no \
             token of the model can follow, or where what may follow costs more to find than is \
             allowed; give every part of the form an end, and fewer ways to go on",
        ),
    }
}

fn of_deadline(stage: Stage) -> Fault {
    match stage {
        Stage::Queue => Fault::new(
            Code::QueueTimeout,
            "the deadline passed before prefill began",
        ),
        Stage::Prefill => Fault::new(
            Code::PrefillTimeout,
            "the deadline passed while the prompt was computed",
        ),
        Stage::Transfer => Fault::new(
            Code::HandoffTimeout,
            "the deadline passed while the KV cache was on its way to decode",
        ),
        Stage::Decode => Fault::new(
            Code::DecodeTimeout,
            "the deadline passed while the answer was generated",
        ),
    }
}

fn integrity(fault: KvFault) -> (Code, &'static str) {
    match fault {
        KvFault::WrongTag => (
            Code::IntegrityWrongTag,
            "a page had a tag that was not granted for it",
        ),
        KvFault::WrongOrdinal => (Code::IntegrityWrongOrder, "a page was not where it belongs"),
        KvFault::WrongFill => (
            Code::IntegrityWrongFill,
            "a page had more or fewer tokens than its place in the prompt",
        ),
        KvFault::WrongChecksum => (
            Code::IntegrityWrongChecksum,
            "a page had other bytes than were stated",
        ),
        KvFault::PageTwice => (Code::IntegrityPageTwice, "a page was stated twice"),
        KvFault::BadBatch => (
            Code::IntegrityBadBatch,
            "a batch was stated twice with other content, or used a slot twice",
        ),
        KvFault::WrongTokens => (
            Code::IntegrityWrongTokens,
            "prefill held another prompt than decode was told of",
        ),
        KvFault::MissingPage => (
            Code::IntegrityMissingPage,
            "a page of the prompt never came",
        ),
        KvFault::Short => (
            Code::IntegrityShortCount,
            "its certificate counts other pages than were stated",
        ),
        KvFault::FirstToken => (
            Code::IntegrityFirstToken,
            "the first token was stated by no writer in a form that can be read, or by several",
        ),
        KvFault::WrongArena => (
            Code::IntegrityWrongArena,
            "it landed in an arena that is not this writer's",
        ),
        KvFault::FailStop => (Code::IntegrityFailStop, "a worker has ended"),
    }
}

fn name(role: Role) -> &'static str {
    match role {
        Role::Prefill => "prefill",
        Role::Decode => "decode",
        Role::Gateway => "the gateway",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use handoff::Capacity;

    fn limit() -> Limit {
        let capacity = |role, pages| Capacity {
            role,
            pages,
            page_size: 16,
            context: 8192,
        };
        Limit::of_pair(capacity(Role::Prefill, 640), capacity(Role::Decode, 320))
    }

    fn failed(outcome: Outcome, committed: bool) -> Fault {
        of_outcome(&outcome, committed, Some(&limit())).unwrap_err()
    }

    #[test]
    fn an_answer_is_no_fault_and_a_reader_that_left_is_one() {
        assert_eq!(of_outcome(&Outcome::Answered, true, None), Ok(()));
        assert_eq!(failed(Outcome::ClientLeft, true).code, Code::Internal);
    }

    /// The figures of the worker that rejected, unchanged, and how the limit came about.
    #[test]
    fn a_rejection_keeps_its_original_figures() {
        let (by, how) = (Role::Prefill, "decode pool 5120 tokens (320 pages of 16)");
        let rejected = |why| failed(Outcome::Rejected(why), false);
        let says = |why: Rejection, code: Code, words: &[&str]| {
            let fault = rejected(why);
            assert_eq!(fault.code, code, "{fault}");
            for word in words {
                assert!(fault.message.contains(word), "{word} is not in {fault}");
            }
        };
        let (tokens, limit, by_decode) = (9000, 777, Role::Decode);
        says(
            Rejection::PromptTooLong { tokens, limit, by },
            Code::ContextLengthExceeded,
            &["9000 tokens", "prefill takes at most 777", how],
        );
        let (prompt, max_new, by) = (700, 100, by_decode);
        says(
            Rejection::ContextTooLong {
                prompt,
                max_new,
                limit,
                by,
            },
            Code::MaxTokensOverContext,
            &[
                "700 tokens",
                "up to 100",
                "together 800",
                "decode holds at most 777",
                how,
            ],
        );
        let (needed, pool) = (99, 64);
        says(
            Rejection::TooManyPages { needed, pool, by },
            Code::InvalidRequest,
            &["need 99 pages", "pool of decode has 64", how],
        );
        says(Rejection::Empty, Code::InvalidRequest, &["empty prompt"]);
        says(
            Rejection::Duplicate,
            Code::Internal,
            &["fault of the server"],
        );
    }

    #[test]
    fn refusals_say_when_to_come_back_by_their_code() {
        let table = [
            (Refusal::QueueFull, Code::QueueFull),
            (Refusal::TenantCap, Code::RateLimited),
            (Refusal::Draining, Code::Draining),
            (Refusal::PeerUnavailable, Code::Unavailable),
        ];
        for (refusal, code) in table {
            assert_eq!(failed(Outcome::Refused(refusal), false).code, code);
        }
    }

    #[test]
    fn failures_name_their_stage() {
        use Stage::{Decode, Prefill, Queue, Transfer};
        let table = [
            (Failure::Deadline(Queue), Code::QueueTimeout),
            (Failure::Deadline(Prefill), Code::PrefillTimeout),
            (Failure::Deadline(Transfer), Code::HandoffTimeout),
            (Failure::Deadline(Decode), Code::DecodeTimeout),
            (Failure::PeerFailed(Queue), Code::PrefillFailed),
            (Failure::PeerFailed(Prefill), Code::PrefillFailed),
            (Failure::PeerFailed(Transfer), Code::PrefillFailed),
            (Failure::PeerFailed(Decode), Code::DecodeFailed),
            (Failure::Unsettled, Code::PrefillFailed),
            (Failure::Form, Code::FormNotKept),
        ];
        for (failure, code) in table {
            assert_eq!(
                failed(Outcome::Failed(failure), false).code,
                code,
                "{failure:?}"
            );
        }
        let compute = |committed| failed(Outcome::Failed(Failure::Compute), committed).code;
        assert_eq!(
            (compute(false), compute(true)),
            (Code::PrefillFailed, Code::DecodeFailed)
        );
    }

    #[test]
    fn every_integrity_fault_is_told_apart() {
        use KvFault::*;
        let all = [
            WrongTag,
            WrongOrdinal,
            WrongFill,
            WrongChecksum,
            PageTwice,
            BadBatch,
            Short,
            FirstToken,
            WrongArena,
            WrongTokens,
            MissingPage,
            FailStop,
        ];
        let told = all.map(|fault| {
            let fault = failed(Outcome::Failed(Failure::Integrity(fault)), false);
            (fault.code, fault.message)
        });
        let different: std::collections::BTreeSet<_> = told.iter().map(|told| told.0).collect();
        assert_eq!(different.len(), all.len());
    }
}
