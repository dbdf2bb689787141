//! One decision swapped for another, chosen when the program runs.
//!
//! The machines take their decisions as a type, [`Swapped`] here, so that what is explored is the
//! shipped code compiled once more around it. Which decision differs is data of that type, so that
//! thirty defects and their combinations are one compilation and not thirty.

use handoff::{
    AfterPrefill, ArenaId, Arrived, AttemptId, Capacity, Close, Conn, DecodeToPrefill, Ending,
    Evidence, Fault, Limit, LinkId, Manifest, Rejection, Sound, Spec, StatedPage, Write,
};
use pages::{Domain, Epoch, PageId, Pending, Reason, StatedTag, TableFault, Tag};
use std::cmp::Ordering;
use std::fmt::Debug;
use std::hash::{Hash, Hasher};

/// Writes down every decision once: the trait that a defect overrides one method of, and how the
/// machines come to it.
macro_rules! decisions {
    ($($of:path { $(fn $name:ident($($arg:ident: $kind:ty),*) -> $gives:ty;)* })*) => {
        /// Decisions, each sound unless it is overridden. They are those of [`pages::Decisions`] and
        /// [`handoff::Decisions`], where each is described.
        pub trait Swap: Debug + Send + Sync {
            $($(
                #[doc = concat!("See [`", stringify!($of), "::", stringify!($name), "`].")]
                fn $name(&self, $($arg: $kind),*) -> $gives {
                    <Sound as $of>::$name(Sound, $($arg),*)
                }
            )*)*
        }

        $(
            impl $of for Swapped {
                $(
                    #[allow(clippy::clone_on_copy)] // some arguments are
                    fn $name(self, $($arg: $kind),*) -> $gives {
                        let sound = <Sound as $of>::$name(Sound, $(Clone::clone(&$arg)),*);
                        let mut otherwise = self.0.iter().map(|swap| swap.$name($(Clone::clone(&$arg)),*));
                        otherwise.find(|given| *given != sound).unwrap_or(sound)
                    }
                )*
            }
        )*
    };
}

decisions! {
    pages::Decisions {
        fn next_tag(last: u64, page: PageId) -> Option<u64>;
        fn waits_for(pending: Pending) -> Option<Reason>;
        fn may_seal(pending: Pending) -> bool;
        fn may_evict(reads: u32, shares: u32) -> bool;
        fn same_grant(named: Tag, present: Option<Tag>) -> bool;
        fn may_share(of: Domain, reader: Domain) -> bool;
        fn looks_again(new: bool) -> bool;
        fn entry_verdict(found: Result<(), TableFault>) -> Result<(), TableFault>;
    }
    handoff::Decisions {
        fn carries(pool_tokens: u64, context: u32) -> bool;
        fn limit_of_pair(prefill: Capacity, decode: Capacity) -> Limit;
        fn fits_pair(limit: &Limit, spec: &Spec) -> Result<(), Rejection>;
        fn attempt_number(last: u64, before: Option<AttemptId>, spec: &Spec) -> u64;
        fn resumes_behind(said: usize) -> usize;
        fn after_prefill(ending: Ending) -> AfterPrefill;
        fn may_deliver(judged: Option<handoff::gateway::PrefillJudged>) -> bool;
        fn admit_prompt(capacity: &Capacity, spec: Spec) -> Result<Spec, Rejection>;
        fn ticket_fits(granted: usize, held: usize) -> bool;
        fn may_compute(ticketed: bool) -> bool;
        fn sent_slots(filled: u16, page_size: u16) -> u16;
        fn same_endpoint(attached: ArenaId, ticketed: ArenaId) -> bool;
        fn has_landed(write: Write) -> bool;
        fn frees_slots(write: Write) -> bool;
        fn sends_again(lost: &Manifest) -> bool;
        fn may_close(how: &Close, flying: usize) -> bool;
        fn may_publish(verified: bool) -> bool;
        fn is_new(number: u64, highest: Option<u64>) -> bool;
        fn admit_expected(capacity: &Capacity, spec: &Spec) -> Result<(), Rejection>;
        fn same_prompt(expected: (u32, [u8; 32]), offered: (u32, [u8; 32])) -> bool;
        fn prompt_length(expected: u32, offered: u32) -> u32;
        fn reserve_ahead(needed: usize, ahead: usize) -> usize;
        fn leaves_the_right(most: usize, fast: usize, pool: usize) -> bool;
        fn yields() -> bool;
        fn may_grow(in_step: bool) -> bool;
        fn lets_in(waited: bool) -> bool;
        fn step_gives_back(failed: bool) -> bool;
        fn may_ticket_into(doubtful: bool) -> bool;
        fn same_arena(stated: ArenaId, expected: ArenaId) -> bool;
        fn same_tag(stated: StatedTag, granted: Tag) -> bool;
        fn ordinal_of(stated: &StatedPage, nth: u32) -> u32;
        fn same_fill(stated: u16, expected: u16) -> bool;
        fn same_checksum(stated: u32, copied: u32) -> bool;
        fn may_take(copied: bool) -> bool;
        fn covers(arrived: Arrived<'_>) -> bool;
        fn may_commit(closed: &[bool], copying: usize) -> bool;
        fn one_first_token(stated: usize) -> bool;
        fn may_answer_closed(copying: usize) -> bool;
        fn answers_unknown(answer: &DecodeToPrefill) -> bool;
        fn still_holds(ticket: bool, offer: bool) -> bool;
        fn same_life(named: Epoch, ours: Epoch) -> bool;
        fn proves_gone(evidence: Evidence) -> bool;
        fn voids(fault: Fault) -> bool;
        fn replaces(old: Conn, new: Conn) -> bool;
        fn same_link(granted: LinkId, heard: LinkId) -> bool;
        fn may_release(in_step: bool) -> bool;
    }
}

/// Sound decisions but for those that are listed. Where several decide about the same, the first
/// that decides otherwise than the product does.
#[derive(Clone, Copy, Debug)]
pub struct Swapped(pub &'static [&'static dyn Swap]);

/// Which decisions a world is explored with is no part of the world: like [`Sound`], which has no
/// value to compare.
impl PartialEq for Swapped {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}
impl Eq for Swapped {}
impl PartialOrd for Swapped {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Swapped {
    fn cmp(&self, _: &Self) -> Ordering {
        Ordering::Equal
    }
}
impl Hash for Swapped {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}
