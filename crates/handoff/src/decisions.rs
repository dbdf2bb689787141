//! What the three machines decide, each decision on its own, so that a laboratory can swap exactly
//! one (see [`pages::Decisions`] for those of the ledger).
//!
//! A machine takes its decisions as a type parameter and calls a method where the decision is
//! taken. The product uses [`Sound`](pages::Sound): the provided methods below. They take plain
//! data and give plain data; none of them says when it is asked, and none carries anything out.
//! The value comes with the machine and is never compared: a laboratory's type may carry which
//! decision it swaps, the product's has no size.

use crate::gateway::PrefillJudged;
use crate::{
    ArenaId, AttemptId, Capacity, Closing, Conn, DecodeToPrefill, Ending, Fault, Limit, LinkId,
    Manifest, Rejection, Spec, StatedPage,
};
use pages::{Epoch, StatedTag, Tag};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// The decisions of gateway, prefill and decode. Every provided method is the sound one.
#[allow(unused_variables)] // a sound decision need not look at all that an unsound one may
pub trait Decisions: pages::Decisions {
    // Start-up.

    /// Whether a worker may start with a pool of so many tokens, if it shall carry sequences of
    /// `context` tokens (law: capacity is measured, not declared).
    fn carries(self, pool_tokens: u64, context: u32) -> bool {
        pool_tokens >= u64::from(context)
    }

    // The gateway.

    /// The limit of a pair, which is what the gateway judges with and advertises: derived from
    /// what both have measured.
    fn limit_of_pair(self, prefill: Capacity, decode: Capacity) -> Limit {
        Limit::of_pair(prefill, decode)
    }

    /// Whether a pair could ever take the request. The edge asks before anything reaches a worker
    /// (law: capacity is measured, not declared).
    fn fits_pair(self, limit: &Limit, spec: &Spec) -> Result<(), Rejection> {
        limit.admits(spec)
    }

    /// The number of the next attempt: minted here and never used before, whatever attempt it
    /// follows and whatever the client sent (H-8).
    fn attempt_number(self, last: u64, before: Option<AttemptId>, spec: &Spec) -> u64 {
        last + 1
    }

    /// What prefill's word about an attempt is worth. A rejection is final; any other failure ends
    /// the attempt at decode, whose ending wins (H-6).
    fn after_prefill(self, ending: Ending) -> AfterPrefill {
        match ending {
            Ending::Finished => AfterPrefill::AskDecode,
            Ending::Rejected(why) => AfterPrefill::Reject(why),
            other => AfterPrefill::Fail(other),
        }
    }

    /// Where an answer that was put back goes on: behind all that was said of it (H-20).
    fn resumes_behind(self, said: usize) -> usize {
        said
    }

    /// Whether a token may reach the client: only of an attempt that decode has committed (H-9).
    fn may_deliver(self, judged: Option<PrefillJudged>) -> bool {
        judged.is_some()
    }

    // Prefill.

    /// What prefill makes of an attempt, asked for its own capacity and again for decode's: what
    /// it will compute, or its final refusal (law: rejected is terminal).
    fn admit_prompt(self, capacity: &Capacity, spec: Spec) -> Result<Spec, Rejection> {
        capacity.admits(&spec).map(|()| spec)
    }

    /// Whether prefill may go on with a ticket for `granted` pages while it holds `held` of them.
    fn ticket_fits(self, granted: usize, held: usize) -> bool {
        granted == held
    }

    /// Whether a forward pass may run for a job (H-5).
    fn may_compute(self, ticketed: bool) -> bool {
        ticketed
    }

    /// Slots of a page that are sent, of which `filled` are this prompt's (H-17).
    fn sent_slots(self, filled: u16, page_size: u16) -> u16 {
        filled
    }

    /// Whether the endpoint that is attached for one arena reaches the arena of a ticket.
    fn same_endpoint(self, attached: ArenaId, ticketed: ArenaId) -> bool {
        attached == ticketed
    }

    /// Whether a write has landed, so that its batch can be stated and its source let go. Only
    /// successful completion says so.
    fn has_landed(self, write: Write) -> bool {
        write == Write::Completed
    }

    /// Whether the slots of a write may be written again by another.
    fn frees_slots(self, write: Write) -> bool {
        write == Write::Completed
    }

    /// Whether the pages of a lost batch are submitted once more inside the same handoff. Never:
    /// the first write may still land.
    fn sends_again(self, lost: &Manifest) -> bool {
        false
    }

    /// Whether a writer may say how it closes while `flying` of its submissions have not ended
    /// (H-7).
    fn may_close(self, how: &Close, flying: usize) -> bool {
        flying == 0
    }

    /// Whether computed pages may be published in P's cache: once D has verified them (H-9).
    fn may_publish(self, verified: bool) -> bool {
        verified
    }

    // Decode.

    /// Whether the number of an announced attempt is one that was not used before (H-8).
    fn is_new(self, number: u64, highest: Option<u64>) -> bool {
        highest.is_none_or(|highest| number > highest)
    }

    /// Whether decode could ever take what the gateway announced (law: rejected is terminal).
    fn admit_expected(self, capacity: &Capacity, spec: &Spec) -> Result<(), Rejection> {
        capacity.admits(spec)
    }

    /// Whether prefill offers the prompt that the gateway announced: its length and the digest of
    /// its tokens (H-2).
    fn same_prompt(self, expected: (u32, [u8; 32]), offered: (u32, [u8; 32])) -> bool {
        expected == offered
    }

    /// The length of the prompt: the one that the gateway announced (H-2).
    fn prompt_length(self, expected: u32, offered: u32) -> u32 {
        expected
    }

    /// Pages taken at the ticket for a lane's output of `needed` pages, where `ahead` are taken
    /// before they are needed.
    fn reserve_ahead(self, needed: usize, ahead: usize) -> usize {
        needed.min(ahead)
    }

    /// Whether decode may let in what makes others hold `fast` pages for as long as a peer likes,
    /// beside a sequence that may come to need `most` pages: its right to them stays (H-19).
    fn leaves_the_right(self, most: usize, fast: usize, pool: usize) -> bool {
        most + fast <= pool
    }

    /// Whether a sequence is put back when an older one is short of a page (H-19). Otherwise each
    /// would wait for what the other holds.
    fn yields(self) -> bool {
        true
    }

    /// Whether sequences may grow, and others be put back for it, while a step is in flight: its
    /// tables name pages that would be freed (H-3).
    fn may_grow(self, in_step: bool) -> bool {
        !in_step
    }

    /// Whether a ticket may name an arena; `doubtful`: some of its slots may be written at any
    /// time, as long as it lives.
    fn may_ticket_into(self, doubtful: bool) -> bool {
        !doubtful
    }

    /// Whether a batch landed in the arena that it should have.
    fn same_arena(self, stated: ArenaId, expected: ArenaId) -> bool {
        stated == expected
    }

    /// Whether a page was stated under the tag that was granted for it (H-8).
    fn same_tag(self, stated: StatedTag, granted: Tag) -> bool {
        stated == granted
    }

    /// Ordinal of the page that a statement is about; in the order of arrival it would be `nth`.
    fn ordinal_of(self, stated: &StatedPage, nth: u32) -> u32 {
        stated.ordinal
    }

    /// Whether a page has the filled slots that this page of this prompt has (H-2).
    fn same_fill(self, stated: u16, expected: u16) -> bool {
        stated == expected
    }

    /// Whether the copy holds the bytes that its writer stated (law: the reader verifies).
    fn same_checksum(self, stated: u32, copied: u32) -> bool {
        stated == copied
    }

    /// Whether a stated batch may be answered Taken, which lets its slots be written again.
    fn may_take(self, copied: bool) -> bool {
        copied
    }

    /// Whether everything of this writer is there (H-2): every batch that it stated was taken, and
    /// the pages that were recorded are exactly those that the ticket reserved.
    fn covers(self, arrived: Arrived<'_>) -> bool {
        let numbered = arrived.taken.iter().copied().eq(0..arrived.batches);
        let recorded = arrived.recorded.keys().copied();
        let reserved = arrived.reserved;
        numbered && arrived.pages as usize == reserved.len() && recorded.eq(reserved)
    }

    /// Whether a handoff may commit, if its pages are there: for every writer, whether it has
    /// closed; and copies in flight.
    fn may_commit(self, closed: &[bool], copying: usize) -> bool {
        copying == 0 && closed.iter().all(|closed| *closed)
    }

    /// Whether the first token is known, if so many writers state one: exactly one does.
    fn one_first_token(self, stated: usize) -> bool {
        stated == 1
    }

    /// Whether Closed may be answered, which lets slots be written again, while copies of that
    /// writer's batches are in flight.
    fn may_answer_closed(self, copying: usize) -> bool {
        copying == 0
    }

    /// Whether an attempt may be let in now that there is room, if it was told to wait before or
    /// not: nobody waits for ever (H-11).
    fn lets_in(self, waited: bool) -> bool {
        true
    }

    /// Whether the end of a step gives back what it held of owners that have ended meanwhile, if
    /// the step has failed or not: nobody else would (H-10, H-11).
    fn step_gives_back(self, failed: bool) -> bool {
        true
    }

    /// Whether a message about a handoff that decode does not know is given this answer (H-18).
    fn answers_unknown(self, answer: &DecodeToPrefill) -> bool {
        true
    }

    /// Whether P may still be writing for a handoff, by what its snapshot at Sync lists of it.
    fn still_holds(self, ticket: bool, offer: bool) -> bool {
        ticket || offer
    }

    /// Whether a message about a handoff of life `named` is for this life, `ours` (H-8).
    fn same_life(self, named: Epoch, ours: Epoch) -> bool {
        named == ours
    }

    /// Whether this proves that a writer can write no more for a handoff. A deadline may end
    /// ownership; it never proves quiescence (H-3, H-15).
    fn proves_gone(self, evidence: Evidence) -> bool {
        matches!(evidence, Evidence::Closed | Evidence::Fenced)
    }

    /// Whether an integrity fault makes the writer's certificate void, so that only a fence proves
    /// its end.
    fn voids(self, fault: Fault) -> bool {
        true
    }

    // Prefill and decode.

    /// Whether a new connection of a peer's life ends what the old one may still bring (H-8).
    fn replaces(self, old: Conn, new: Conn) -> bool {
        true
    }

    /// Whether a ticket that was granted under one connection counts on the one that it is heard on:
    /// what P's Sync did not list, D has given back (H-3).
    fn same_link(self, granted: LinkId, heard: LinkId) -> bool {
        granted == heard
    }

    /// Whether an owner that has ended may give its pages back while a step, or a chunk, that names
    /// them is in flight or not (H-3).
    fn may_release(self, in_step: bool) -> bool {
        !in_step
    }
}

impl Decisions for pages::Sound {}

/// What the gateway does with prefill's word about an attempt.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AfterPrefill {
    /// Nothing: decode's word counts.
    AskDecode,
    /// The request ends with this.
    Reject(Rejection),
    /// The attempt is cancelled at decode, and has failed with this.
    Fail(Ending),
}

/// How far a submission of prefill's is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Write {
    /// Handed to the fabric.
    Submitted,
    /// Completed successfully.
    Completed,
    /// It ended in any other way: it may land at any time.
    Lost,
}

/// What might say that a writer can write no more.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Evidence {
    /// The writer has certified that all its writes for this handoff have completed.
    Closed,
    /// Its arena, or its endpoint, was fenced.
    Fenced,
    /// A deadline of the handoff's owner passed.
    Deadline,
    /// The handoff's owner ended early: its client left, or its gateway.
    Cancelled,
    /// The connection to the writer's life is gone; its process may be dead.
    Disconnected,
    /// Another life of a prefill worker has said Hello.
    Successor,
}

/// How a writer says that it is through.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, serde::Serialize)]
pub enum Close {
    /// It certifies that all its writes have completed.
    Closed(Closing),
    /// It cannot.
    Unsettled,
}

/// What one writer has delivered when all have closed.
#[derive(Clone, Debug)]
pub struct Arrived<'a> {
    /// Batches that it said it has stated.
    pub batches: u32,
    /// Pages that it said are in them.
    pub pages: u32,
    /// Numbers of the batches that were taken.
    pub taken: &'a BTreeSet<u32>,
    /// Checksum of every page that was recorded, by ordinal.
    pub recorded: &'a BTreeMap<u32, u32>,
    /// Ordinals of the pages that the ticket reserved.
    pub reserved: Range<u32>,
}
