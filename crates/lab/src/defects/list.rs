//! The table of the specification, row by row: which decision is swapped, where it shows, and what
//! stands behind it.

use super::admission::{
    ClientId, GrowsInStep, LengthFromPrefill, NoRights, NobodyYields, Placeholder, SameIdAgain,
    SaysTwice, StatusIsEnough, Truncates,
};
use super::arrival::{
    LostIsLanded, NotCompared, NotLookedAt, OneAcknowledgement, Overtakes, SendsAgain,
    SubmittedIsLanded, WholePage,
};
use super::messages::{
    HearsTheOld, KeepsOrphans, OldTicketCounts, PublishesUnverified, UnknownUnanswered,
};
use super::release::{
    AcknowledgesBeforeDrain, DeadProcessProves, DeadlineProves, LostSlotsComeBack, PinsDoNotCount,
    ReadsDoNotCount, StaleEndpoint, StepDoesNotHold, SuccessorProves, WritesDoNotCount,
};
use super::safeguards::{NoExpect, NoFill, NoNewNumber, NoStepCheck, NoTicketCount};
use super::{Behind, Defect, with};
use crate::scenario::Mode::{Direct, Landing};

/// A row. What follows the defect itself in `swaps` is its trigger, and so is what goes wrong in
/// the world that it is shown in.
macro_rules! defects {
    ($($id:literal $what:literal seen $seen:literal
        swaps [$($swap:expr),*] $trigger:literal
        in $world:literal $mode:ident
        sound $decision:literal
        behind [$($gone:literal: [$($also:expr),*]),*])*) => {
        &[$(Defect {
            id: $id,
            what: $what,
            seen: $seen,
            world: |setup| with(setup, &[$(&$swap),*]),
            swaps: &[$(&$swap),*],
            trigger: $trigger,
            shown_in: $world,
            mode: $mode,
            decision: $decision,
            behind: &[$(Behind { gone: $gone, swaps: &[$(&$also),*] }),*],
        }),*]
    };
}

/// Rows that break nothing wherever they were tried, and why.
pub const HARMLESS: &[(&str, &str)] = &[(
    "D-24",
    "prefill looks an endpoint up by the life and the rank that a ticket names, and replaces it when \
     the ticket names another arena; an arena's name contains its life, so the next life of decode \
     cannot be written to. An endpoint that outlives its arena inside one life writes where nobody \
     reads",
)];

/// Where an endpoint of prefill's can become stale: its arena is replaced within a life of decode,
/// or that life ends and another begins.
pub const STALE_IN: [&str; 3] = [
    "late write",
    "break and deadline",
    "decode killed and restarted",
];

/// All of them, by id.
pub const ALL: &[Defect] = defects! {
    "D-01" "a request that is too long becomes a placeholder, and admission lets it through"
        seen "SGLang ≤0.5.19, the incident"
        swaps [Placeholder, NoExpect, NoTicketCount, NoFill, NotCompared]
        "counts, fill and coverage are not compared either (D-02)"
        in "past the edge" Landing
        sound "`admit_prompt`, prefill/queue.rs"
        behind [
            "nothing more": [Placeholder],
            "the comparison with the Expect": [Placeholder, NoExpect],
            "… and prefill's count": [Placeholder, NoExpect, NoTicketCount],
            "… and the fill of pages": [Placeholder, NoExpect, NoTicketCount, NoFill],
            "… and coverage": [Placeholder, NoExpect, NoTicketCount, NoFill, NotCompared]
        ]
    "D-02" "pages sent are never compared with pages reserved"
        seen "SGLang to 0.5.23"
        swaps [NotCompared] "a truncation after the offer"
        in "truncated" Landing
        sound "`covers`, decode/commit.rs"
        behind ["nothing more": [NotCompared]]
    "D-03" "complete is believed, nobody looks at the bytes"
        seen "systems without tags"
        swaps [NotLookedAt] "a page that never came"
        in "lost" Landing
        sound "`same_checksum`, decode/landing.rs"
        behind ["nothing more": [NotLookedAt]]
    "D-04" "a time-out proves that the writer has stopped"
        seen "SGLang (30 s), callers of NIXL and Mooncake"
        swaps [DeadlineProves] "a deadline"
        in "deadline" Direct
        sound "`proves_gone`, decode/ending.rs"
        behind ["nothing more": [DeadlineProves]]
    "D-05" "pages are released at an abort while a write is in flight"
        seen "SGLang #24527, vLLM #32255"
        swaps [WritesDoNotCount] "a client that leaves"
        in "leave" Landing
        sound "`waits_for`, pages/ledger.rs"
        behind ["nothing more": [WritesDoNotCount]]
    "D-06" "an abort is acknowledged before what was submitted has drained"
        seen "SGLang #38961 (1)"
        swaps [AcknowledgesBeforeDrain] "a client that leaves"
        in "leave" Direct
        sound "`may_close`, prefill/close.rs"
        behind ["nothing more": [AcknowledgesBeforeDrain]]
    "D-07" "one slot for the acknowledgements of several writers"
        seen "SGLang #38961 (2)"
        swaps [OneAcknowledgement] "two writers"
        in "two writers" Landing
        sound "`may_commit`, decode/commit.rs"
        behind ["nothing more": [OneAcknowledgement], "coverage": [OneAcknowledgement, NotCompared]]
    "D-08" "source pages are freed while they are still sent or read"
        seen "SGLang #38961, vLLM leases (#32208), aws-do-eks PR 84"
        swaps [ReadsDoNotCount] "a client that leaves"
        in "leave" Landing
        sound "`waits_for`, pages/ledger.rs"
        behind ["nothing more": [ReadsDoNotCount], "the checksum": [ReadsDoNotCount, NotLookedAt]]
    "D-09" "a batch is taken for landed before its completion"
        seen "SGLang #31239, #39417"
        swaps [SubmittedIsLanded] ""
        in "calm" Landing
        sound "`has_landed`, prefill/send.rs"
        behind ["nothing more": [SubmittedIsLanded], "the checksum": [SubmittedIsLanded, NotLookedAt]]
    "D-10" "state is keyed on what a client chose"
        seen "vLLM #51445"
        swaps [ClientId] "two clients that choose alike"
        in "equal beginnings" Landing
        sound "`attempt_number`, gateway/request.rs"
        behind ["nothing more": [ClientId], "decode's refusal of a number used before": [ClientId, NoNewNumber]]
    "D-11" "a message of an earlier connection is heard"
        seen "SGLang before 0.5.22"
        swaps [HearsTheOld] "a break"
        in "break, one request" Landing
        sound "`replaces`, decode/peer.rs and prefill/peer.rs"
        behind ["nothing more": [HearsTheOld]]
    "D-12" "the cache is published before verification"
        seen "vLLM #52470"
        swaps [PublishesUnverified] ""
        in "one domain, one beginning" Landing
        sound "`may_publish`, prefill/close.rs"
        behind ["nothing more": [PublishesUnverified]]
    "D-13" "a slot is written again while a late write to it can land"
        seen "SGLang #17259"
        swaps [LostSlotsComeBack, NotLookedAt]
        "a failed write, both requests on their way, and the checksum not compared (D-03)"
        in "late write, room for both" Landing
        sound "`frees_slots`, prefill/send.rs"
        behind [
            "nothing more": [LostSlotsComeBack],
            "the checksum": [LostSlotsComeBack, NotLookedAt]
        ]
    "D-14" "one side truncates, and decode learns the length from prefill"
        seen "`--allow-auto-truncate`; an early draft"
        swaps [Truncates, LengthFromPrefill, NoExpect]
        "a prompt past the edge; length from the offer, which is not compared"
        in "past the edge" Landing
        sound "`admit_prompt`, prefill/queue.rs, and `prompt_length`, decode/offer.rs"
        behind [
            "nothing more": [Truncates],
            "the comparison with the Expect": [Truncates, NoExpect],
            "… and the length from the gateway": [Truncates, NoExpect, LengthFromPrefill]
        ]
    "D-15" "the gateway takes any word of prefill's for success"
        seen "sglang-router, vllm-router"
        swaps [StatusIsEnough] "a deadline"
        in "deadline" Landing
        sound "`after_prefill`, gateway/request.rs"
        behind ["nothing more": [StatusIsEnough]]
    "D-16" "a retry reuses an id"
        seen "vLLM #52234, kthena #1423"
        swaps [SameIdAgain] "a failed write"
        in "late write" Landing
        sound "`attempt_number`, gateway/request.rs"
        behind ["nothing more": [SameIdAgain], "decode's refusal of a number used before": [SameIdAgain, NoNewNumber]]
    "D-17" "a lost ticket orphans a grant"
        seen "draft"
        swaps [KeepsOrphans] "a break, and a deadline of prefill's"
        in "break and deadline" Landing
        sound "`still_holds`, decode/peer.rs"
        behind ["nothing more": [KeepsOrphans]]
    "D-18" "a failed batch is sent again inside the handoff"
        seen "draft"
        swaps [SendsAgain] "a failed write"
        in "late write" Landing
        sound "`sends_again`, prefill/send.rs"
        behind ["nothing more": [SendsAgain], "the checksum": [SendsAgain, NotLookedAt]]
    "D-19" "a new life is taken for a fence against the old one"
        seen "draft"
        swaps [SuccessorProves] "a process that ends, and a new one"
        in "killed and restarted" Direct
        sound "`proves_gone`, decode/ending.rs"
        behind ["nothing more": [SuccessorProves]]
    "D-20" "an unknown id goes unanswered"
        seen "draft"
        swaps [UnknownUnanswered] "a break and a deadline"
        in "break and deadline" Landing
        sound "`answers_unknown`, decode/landing.rs"
        behind ["nothing more": [UnknownUnanswered]]
    "D-21" "a write that failed counts as ended, and lands over what decode has appended"
        seen "draft (direct mode)"
        swaps [LostIsLanded] "a failed write"
        in "late write, landing twice" Direct
        sound "`has_landed`, prefill/send.rs"
        behind ["nothing more": [LostIsLanded]]
    "D-22" "\"all is sent\" overtakes the data"
        seen "draft"
        swaps [Overtakes] ""
        in "calm" Landing
        sound "`may_close`, prefill/close.rs"
        behind ["nothing more": [Overtakes], "coverage": [Overtakes, NotCompared]]
    "D-23" "a sequence waits for a page while it holds others, and nobody is put back for it"
        seen "draft; SGLang #30033 in spirit"
        swaps [NobodyYields] "two answers that outgrow the pool"
        in "short of pages" Landing
        sound "`yields`, decode/grow.rs"
        behind ["nothing more": [NobodyYields]]
    "D-24" "a stale endpoint is written through"
        seen "draft"
        swaps [StaleEndpoint] "none was found (below)"
        in "break and deadline" Landing
        sound "`same_endpoint`, prefill/offer.rs"
        behind []
    "D-25" "pages are released while a step that names them is in flight"
        seen "vllm-ascend #14055"
        swaps [StepDoesNotHold] "a client that leaves"
        in "leave" Landing
        sound "`may_release`, decode/ending.rs"
        behind ["nothing more": [StepDoesNotHold]]
    "D-26" "a process that has died is taken for a fence"
        seen "measured: a forked child goes on writing"
        swaps [DeadProcessProves] "a process that ends"
        in "killed" Direct
        sound "`proves_gone`, decode/ending.rs"
        behind ["nothing more": [DeadProcessProves]]
    "D-27" "a shared prefix is evicted while somebody has pinned it"
        seen "draft"
        swaps [PinsDoNotCount] "a cache under pressure"
        in "cache under pressure" Landing
        sound "`may_evict`, pages/sharing.rs"
        behind ["nothing more": [PinsDoNotCount], "the check before every step": [PinsDoNotCount, NoStepCheck]]
    "D-28" "the last page ships what its page held before, behind the filled slots"
        seen "draft"
        swaps [WholePage] ""
        in "calm" Landing
        sound "`sent_slots`, prefill/send.rs"
        behind ["nothing more": [WholePage]]
    "D-29" "pages of a sequence that has ended or is put back are freed while a step reads them"
        seen "draft"
        swaps [GrowsInStep] "a choice that is stopped"
        in "two choices, one stopped" Landing
        sound "`may_grow`, decode/grow.rs"
        behind ["nothing more": [GrowsInStep]]
    "D-30" "an answer that was put back says a token twice"
        seen "draft"
        swaps [SaysTwice] "two answers that outgrow the pool"
        in "short of pages" Landing
        sound "`resumes_behind`, gateway/attempt.rs"
        behind ["nothing more": [SaysTwice]]
    "D-31" "the oldest sequence is short of pages that only a peer can bring back"
        seen "draft"
        swaps [NoRights] "two answers that outgrow the pool"
        in "short of pages, tight" Landing
        sound "`leaves_the_right`, decode/grow.rs"
        behind ["nothing more": [NoRights]]
    "D-32" "a ticket out of an earlier connection is taken behind prefill's word that it has none"
        seen "draft"
        swaps [OldTicketCounts] "a break, a client that leaves, a message that comes late"
        in "comes late" Direct
        sound "`same_link`, prefill/peer.rs"
        behind ["nothing more": [OldTicketCounts]]
};
