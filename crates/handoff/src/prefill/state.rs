//! What the machine remembers.

use super::{Effect, must};
use crate::id::{JobKey, SubmissionKey};
use crate::prefix::Page;
use crate::{
    ArenaId, AttemptId, Capacity, Close, Conn, Decisions, Failure, HandoffId, Manifest, Spec,
};
use pages::{BlockTable, Epoch, OpId, PageId, Pool, StatedTag};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// An attempt that a gateway sent and that has not ended here.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub(super) struct Attempt {
    pub conn: Conn,
    pub spec: Spec,
    pub decode: Epoch,
    pub stage: AttemptStage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub(super) enum AttemptStage {
    Queued,
    /// D was busy.
    Waiting,
    /// Its job.
    Job(JobKey),
}

/// One life of one decode worker.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub(super) struct Peer {
    pub conn: Option<Conn>,
    pub synced: bool,
    pub capacity: Capacity,
    pub arenas: BTreeMap<u16, Arena>,
    /// Endpoints that are being destroyed because the life was lost.
    pub detaching: BTreeSet<ArenaId>,
    /// It has not come back in time.
    pub lost: bool,
    /// It has let an answer's deadline pass, and has answered nothing since.
    pub silent: bool,
}

/// This side's end of a landing arena.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub(super) struct Arena {
    pub id: ArenaId,
    pub state: ArenaState,
    pub free: Slots,
}

/// Slots that may be written, lowest first. Only Taken and the answer to Closed put one back. How
/// many there are is what a peer says, so those that were never used are counted, not listed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub(super) struct Slots {
    /// From here to `end` all are free.
    next: u32,
    end: u32,
    /// Free ones before `next`, never the one just before it.
    back: BTreeSet<u32>,
}

impl Slots {
    pub(super) fn new(end: u32) -> Self {
        let (next, back) = (0, BTreeSet::new());
        Self { next, end, back }
    }

    pub(super) fn len(&self) -> usize {
        (self.end - self.next) as usize + self.back.len()
    }

    pub(super) fn take(&mut self) -> Option<u32> {
        let lowest = self.back.pop_first();
        if lowest.is_none() && self.next < self.end {
            self.next += 1;
            return Some(self.next - 1);
        }
        lowest
    }

    pub(super) fn put_back(&mut self, slots: impl Iterator<Item = u32>) {
        self.back.extend(slots);
        while self.back.last().is_some_and(|last| last + 1 == self.next) {
            self.back.pop_last();
            self.next -= 1;
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub(super) enum ArenaState {
    Attaching,
    Ready,
    /// Not attachable, or destroyed. The next ticket that names it is answered Unsettled, and D
    /// makes another.
    Dead,
}

/// An attempt that holds pages: offered, or ticketed.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub(super) struct Job {
    /// None once the attempt has ended here.
    pub attempt: Option<AttemptId>,
    /// What ended it, if that was no word of D.
    pub why: Option<Failure>,
    pub spec: Spec,
    pub decode: Epoch,
    /// The prompt's pages: pinned prefix of P's own cache, then its own.
    pub pages: Vec<Page>,
    /// Tokens that came from P's own cache.
    pub cached_tokens: u32,
    pub table: BlockTable,
    /// Checksums of complete pages, by ordinal.
    pub checksums: Vec<u32>,
    pub first: Option<Vec<u8>>,
    pub chunk: Option<Chunk>,
    pub ticket: Option<Ticket>,
    /// Pages wait for the chunk in flight to end.
    pub release_after_chunk: bool,
    /// Answers that D owed about it when that was last looked at; above 0 a deadline is armed.
    pub owed: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub(super) struct Chunk {
    pub op: OpId,
    pub from: u32,
    pub to: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub(super) struct Ticket {
    pub handoff: HandoffId,
    /// Tags of the pages from `first` on.
    pub tags: Vec<StatedTag>,
    pub first: u32,
    /// Direct mode: decode's page for each tag.
    pub targets: Vec<PageId>,
    pub ranks: Vec<Rank>,
}

/// One writer's progress.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub(super) struct Rank {
    pub arena: ArenaId,
    /// Ordinal of the next page to send.
    pub next: u32,
    pub batches: u32,
    /// Submissions in flight.
    pub flying: BTreeSet<SubmissionKey>,
    /// Slots of submissions that ended in another way than success.
    pub lost: BTreeSet<u32>,
    pub failed: bool,
    /// Landed, stated, not Taken.
    pub stated: BTreeMap<u32, Manifest>,
    pub closing: Option<Close>,
    /// Its Closed or Unsettled was answered.
    pub done: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub(super) struct Submission {
    pub job: JobKey,
    pub arena: ArenaId,
    pub rank: u16,
    pub op: OpId,
    pub manifest: Manifest,
    /// It ended without success: its source is held until the endpoint is destroyed.
    pub failed: bool,
}

impl Job {
    pub(super) fn count(&self) -> u32 {
        self.spec.tokens.len() as u32
    }

    /// The attempt has ended here: nothing more is computed or sent.
    pub(super) fn is_over(&self) -> bool {
        self.attempt.is_none()
    }

    pub(super) fn can_compute<J: Decisions>(&self, decisions: J) -> bool {
        !self.is_over()
            && decisions.may_compute(self.ticket.is_some())
            && self.chunk.is_none()
            && self.table.tokens() < self.count()
    }

    /// The ledger keeps pages that submitted writes still read.
    pub(super) fn release_pages<J: Decisions>(
        &mut self,
        pool: &mut Pool<J>,
        out: &mut Vec<Effect>,
    ) {
        for page in std::mem::take(&mut self.pages) {
            must(out, page.give_back(pool));
        }
    }

    pub(super) fn fork_for_checker<J: pages::Decisions>(&self, pool: &Pool<J>) -> Self {
        Self {
            attempt: self.attempt,
            why: self.why,
            spec: self.spec.clone(),
            decode: self.decode,
            pages: self
                .pages
                .iter()
                .map(|page| page.fork_for_checker(pool))
                .collect(),
            cached_tokens: self.cached_tokens,
            table: self.table.clone(),
            checksums: self.checksums.clone(),
            first: self.first.clone(),
            chunk: self.chunk,
            ticket: self.ticket.clone(),
            release_after_chunk: self.release_after_chunk,
            owed: self.owed,
        }
    }

    /// A rank's progress, once there is a ticket; and whether it writes into decode's pages.
    pub(super) fn progress(&mut self, rank: u16) -> Option<(bool, &mut Rank)> {
        let ticket = self.ticket.as_mut()?;
        let direct = ticket.is_direct();
        Some((direct, ticket.ranks.get_mut(usize::from(rank))?))
    }

    /// Answers that D owes about it: to the offer, to batches that were stated, and, once all ranks
    /// have closed, to their certificates. Before that D cannot commit, and need not answer any.
    pub(super) fn owes(&self) -> usize {
        let Some(ticket) = &self.ticket else {
            return 1;
        };
        let open = ticket.ranks.iter().filter(|rank| !rank.done);
        let stated: usize = open.clone().map(|rank| rank.stated.len()).sum();
        let closed = ticket.ranks.iter().all(|rank| rank.closing.is_some());
        stated + if closed { open.count() } else { 0 }
    }
}

impl Ticket {
    /// Whether writes go into decode's pages, and not into slots that P picks.
    pub(super) fn is_direct(&self) -> bool {
        !self.targets.is_empty()
    }

    /// Whether an answer to Closed or Unsettled is still due.
    pub(super) fn is_held(&self) -> bool {
        self.ranks.iter().any(|rank| !rank.done)
    }
}

impl Rank {
    pub(super) fn new(arena: ArenaId, first: u32) -> Self {
        Self {
            arena,
            next: first,
            batches: 0,
            flying: BTreeSet::new(),
            lost: BTreeSet::new(),
            failed: false,
            stated: BTreeMap::new(),
            closing: None,
            done: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Slots;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        /// Against a list of all that are free: the lowest is taken, none is lost, none is given
        /// twice, and once all are back it is as it was made.
        #[test]
        fn slots_are_taken_lowest_first_and_none_is_lost(
            end in 0_u32..6,
            acts in proptest::collection::vec((any::<bool>(), 0_usize..6), 0..40),
        ) {
            let mut slots = Slots::new(end);
            let (mut free, mut taken) = ((0..end).collect::<BTreeSet<_>>(), BTreeSet::new());
            for (take, which) in acts {
                if take {
                    let slot = slots.take();
                    prop_assert_eq!(slot, free.pop_first());
                    taken.extend(slot);
                } else if let Some(slot) = taken.iter().nth(which).copied() {
                    taken.remove(&slot);
                    free.insert(slot);
                    slots.put_back([slot].into_iter());
                }
                prop_assert_eq!(slots.len(), free.len());
            }
            slots.put_back(taken.into_iter());
            prop_assert_eq!(slots, Slots::new(end));
        }
    }
}
