//! The ledger itself: plain data, one record and one seal a page.

use crate::id::{LastOp, LastTag, OpNo};
use crate::{Decisions, Misuse, Owner, OwnerId, PageId, Pending, Tag, WriterLife};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The state of a page (handoff.md, "Page states").
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum State {
    /// No writer, no reader, seal unwritten.
    Free,
    /// Taken by an owner; nobody else knows of it yet.
    Reserved,
    /// The ticket is sent: its tag has left this worker.
    Granted,
    /// Its content is verified (or computed here) and it belongs to a running owner.
    Sealed,
    /// Immutable, shared inside one domain.
    Cached,
    /// Its owner has ended, or something went wrong; somebody may still touch it.
    Quarantined(Reason),
}

/// Why a page is in quarantine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Reason {
    /// Local steps, copies or sends that name it have not ended.
    Operations,
    /// A remote writer has neither certified its end nor been fenced (direct mode).
    Writers,
    /// Its grant was dropped instead of released. It never comes back.
    Dropped,
    /// Its payload waits to be zeroed (`scrub`).
    Scrub,
}

/// The record beside a page, written only by the owner of the pool.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize)]
pub struct Seal {
    /// Index of the page in its sequence.
    pub ordinal: u32,
    /// Token slots filled, from the front.
    pub filled: u16,
    /// Checksum over exactly the filled slots, where one was computed.
    pub checksum: Option<u32>,
}

/// Pages in every state. Their sum is the pool, always (H-10).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize)]
pub struct Counts {
    /// Free pages.
    pub free: usize,
    /// Reserved pages.
    pub reserved: usize,
    /// Granted pages.
    pub granted: usize,
    /// Sealed pages of running owners.
    pub sealed: usize,
    /// Cached pages.
    pub cached: usize,
    /// Quarantined pages.
    pub quarantined: usize,
}

impl Counts {
    /// The sum over all states.
    pub const fn total(&self) -> usize {
        self.free + self.reserved + self.granted + self.sealed + self.cached + self.quarantined
    }

    pub(crate) fn slot(&mut self, state: State) -> &mut usize {
        match state {
            State::Free => &mut self.free,
            State::Reserved => &mut self.reserved,
            State::Granted => &mut self.granted,
            State::Sealed => &mut self.sealed,
            State::Cached => &mut self.cached,
            State::Quarantined(_) => &mut self.quarantined,
        }
    }
}

/// One line of "who holds what".
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Holder {
    /// The page.
    pub page: PageId,
    /// Its state.
    pub state: State,
    /// Its owner, for a cached page the one that published it.
    pub owner: Option<Owner>,
    /// Its present tag.
    pub tag: Option<Tag>,
    /// Its seal.
    pub seal: Seal,
    /// Pending reads.
    pub reads: u32,
    /// Pending writes.
    pub writes: u32,
    /// References of running sequences to a cached page.
    pub shares: u32,
    /// Remote writers that may still write (direct mode).
    pub open: Vec<WriterLife>,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
pub(crate) struct Record {
    pub state: State,
    pub owner: Option<Owner>,
    pub reads: u32,
    pub writes: u32,
    pub shares: u32,
    /// Remote writers that may still write.
    pub open: BTreeSet<WriterLife>,
    /// Remote writers that have certified their end, which an integrity fault voids.
    pub closed: BTreeSet<WriterLife>,
}

const FREE: Record = Record {
    state: State::Free,
    owner: None,
    reads: 0,
    writes: 0,
    shares: 0,
    open: BTreeSet::new(),
    closed: BTreeSet::new(),
};

impl Record {
    fn is_of(&self, owner: Option<OwnerId>) -> bool {
        owner.is_none_or(|id| self.owner.is_some_and(|own| own.id == id))
    }

    /// What somebody may still do to the page.
    pub(crate) fn pending(&self) -> Pending {
        Pending {
            reads: self.reads,
            writes: self.writes,
            writers: self.open.len(),
        }
    }
}

/// Pages that an operation in flight reads, and pages that it writes; each at most once.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
pub(crate) struct Operation {
    pub reads: Vec<PageId>,
    pub writes: Vec<PageId>,
}

impl Operation {
    pub(crate) fn new(reads: &[PageId], writes: &[PageId]) -> Self {
        let once = |pages: &[PageId]| -> Vec<PageId> {
            let pages: BTreeSet<_> = pages.iter().copied().collect();
            pages.into_iter().collect()
        };
        Self {
            reads: once(reads),
            writes: once(writes),
        }
    }
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(bound = "")]
pub(crate) struct Ledger<J> {
    #[serde(skip)]
    pub decisions: J,
    pub page_size: u16,
    pub scrub: bool,
    pub records: Vec<Record>,
    /// Dense, beside the records: what a step's check reads.
    pub seals: Vec<Seal>,
    pub tags: Vec<Option<Tag>>,
    pub free: BTreeSet<PageId>,
    pub to_scrub: BTreeSet<PageId>,
    pub ops: BTreeMap<OpNo, Operation>,
    /// Every (writer, page) of the records' `open` and `closed`, so that a proof costs what it
    /// concerns and not the whole pool.
    pub writers: BTreeSet<(WriterLife, PageId)>,
    pub counts: Counts,
    pub last_tag: LastTag,
    pub last_op: LastOp,
    pub dropped_grants: u64,
    pub dropped_shares: u64,
    pub refused_proofs: u64,
}

impl<J: Decisions> Ledger<J> {
    pub(crate) fn new(pages: u32, page_size: u16, scrub: bool, decisions: J) -> Self {
        let n = pages as usize;
        Self {
            decisions,
            page_size,
            scrub,
            records: vec![FREE; n],
            seals: vec![Seal::default(); n],
            tags: vec![None; n],
            free: (0..pages).map(PageId::new).collect(),
            to_scrub: BTreeSet::new(),
            ops: BTreeMap::new(),
            writers: BTreeSet::new(),
            counts: Counts {
                free: n,
                ..Counts::default()
            },
            last_tag: LastTag(0),
            last_op: LastOp(0),
            dropped_grants: 0,
            dropped_shares: 0,
            refused_proofs: 0,
        }
    }

    pub(crate) fn record(&self, page: PageId) -> Result<&Record, Misuse> {
        self.records
            .get(page.index())
            .ok_or(Misuse::NoSuchPage(page))
    }

    /// The record of `page`, if `tag` is its present tag.
    pub(crate) fn tagged(&self, page: PageId, tag: Tag) -> Result<&Record, Misuse> {
        let record = self.record(page)?;
        if self.decisions.same_grant(tag, self.tags[page.index()]) {
            Ok(record)
        } else {
            Err(Misuse::StaleHandle(page))
        }
    }

    /// The only place where a page changes its state, so that the counts are right (H-10).
    pub(crate) fn set_state(&mut self, page: PageId, state: State) {
        let old = std::mem::replace(&mut self.records[page.index()].state, state);
        *self.counts.slot(old) -= 1;
        *self.counts.slot(state) += 1;
    }

    /// Takes the lowest free page under a tag never used before. The caller has checked that
    /// there is one.
    pub(crate) fn take(&mut self, owner: Owner) -> Option<(PageId, Tag)> {
        let page = *self.free.first()?;
        self.take_at(owner, page)
    }

    /// The same for one page, which the caller has found free. None only when the tags have run
    /// out, after five centuries at a billion a second.
    pub(crate) fn take_at(&mut self, owner: Owner, page: PageId) -> Option<(PageId, Tag)> {
        let number = self.decisions.next_tag(self.last_tag.0, page)?;
        let tag = Tag(std::num::NonZeroU64::new(number)?);
        self.last_tag = LastTag(number);
        self.free.remove(&page);
        self.set_state(page, State::Reserved);
        self.records[page.index()].owner = Some(owner);
        self.tags[page.index()] = Some(tag);
        Some((page, tag))
    }

    /// Ends ownership: to Free if nothing is pending, otherwise to quarantine until it is.
    pub(crate) fn end_ownership(&mut self, page: PageId) {
        let record = &self.records[page.index()];
        let next = match self.decisions.waits_for(record.pending()) {
            Some(reason) => State::Quarantined(reason),
            None if self.scrub && record.state != State::Quarantined(Reason::Scrub) => {
                self.to_scrub.insert(page);
                State::Quarantined(Reason::Scrub)
            }
            None => State::Free,
        };
        self.set_state(page, next);
        if next == State::Free {
            let record = std::mem::replace(&mut self.records[page.index()], FREE);
            for writer in record.closed {
                self.writers.remove(&(writer, page));
            }
            self.seals[page.index()] = Seal::default();
            self.tags[page.index()] = None;
            self.free.insert(page);
        }
    }

    /// Looks again at a quarantined page after something that it waited for has ended.
    fn settle(&mut self, page: PageId) {
        if let State::Quarantined(Reason::Operations | Reason::Writers) =
            self.records[page.index()].state
        {
            self.end_ownership(page);
        }
    }

    pub(crate) fn begin(&mut self, operation: Operation) -> u64 {
        for page in &operation.reads {
            self.records[page.index()].reads += 1;
        }
        for page in &operation.writes {
            self.records[page.index()].writes += 1;
        }
        self.last_op.0 += 1;
        self.ops.insert(OpNo(self.last_op.0), operation);
        self.last_op.0
    }

    pub(crate) fn end(&mut self, op: u64) -> Result<(), Misuse> {
        let operation = self.ops.remove(&OpNo(op)).ok_or(Misuse::UnknownOp(op))?;
        // Both are at least 1 under sound decisions; a laboratory's ledger may have freed the page.
        for page in &operation.reads {
            let reads = &mut self.records[page.index()].reads;
            *reads = reads.saturating_sub(1);
        }
        for page in &operation.writes {
            let writes = &mut self.records[page.index()].writes;
            *writes = writes.saturating_sub(1);
        }
        for page in operation.reads.into_iter().chain(operation.writes) {
            self.settle(page);
        }
        Ok(())
    }

    /// From now on these writers may write the page itself.
    pub(crate) fn open(&mut self, page: PageId, writers: &[WriterLife]) {
        self.writers
            .extend(writers.iter().map(|writer| (*writer, page)));
        self.records[page.index()].open = writers.iter().copied().collect();
    }

    /// A writer has certified its end for `owner`. Costs the pages that it could write.
    pub(crate) fn close(&mut self, writer: WriterLife, owner: OwnerId) {
        for page in self.pages_of(writer, Some(owner)) {
            let record = &mut self.records[page.index()];
            if record.open.remove(&writer) {
                record.closed.insert(writer);
                self.settle(page);
            }
        }
    }

    /// A writer was fenced: it is struck off everywhere, and no certificate of it can be voided.
    pub(crate) fn fence(&mut self, writer: WriterLife) {
        for page in self.pages_of(writer, None) {
            self.writers.remove(&(writer, page));
            let record = &mut self.records[page.index()];
            record.closed.remove(&writer);
            if record.open.remove(&writer) {
                self.settle(page);
            }
        }
    }

    /// The certificate of a writer for `owner` is void: it may still write what it could write,
    /// as far as that is not free already. Gives the pages concerned.
    pub(crate) fn reopen(&mut self, writer: WriterLife, owner: OwnerId) -> Vec<PageId> {
        let mut reopened = self.pages_of(writer, Some(owner));
        reopened.retain(|page| self.records[page.index()].closed.remove(&writer));
        for page in &reopened {
            self.records[page.index()].open.insert(writer);
            if self.to_scrub.remove(page) {
                // Zeroing it now would not last.
                self.set_state(*page, State::Quarantined(Reason::Writers));
            }
        }
        reopened
    }

    fn pages_of(&self, writer: WriterLife, owner: Option<OwnerId>) -> Vec<PageId> {
        let all = (writer, PageId::new(0))..=(writer, PageId::new(u32::MAX));
        let pages = self.writers.range(all).map(|(_, page)| *page);
        pages
            .filter(|page| self.records[page.index()].is_of(owner))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Domain, Epoch};

    fn writer(rank: u16) -> WriterLife {
        WriterLife {
            epoch: Epoch::new(1),
            rank,
        }
    }

    /// Two lives of a page that differ in nothing that still matters are one state to a checker,
    /// and a worker that runs for a year keeps no record of the writers that it once had.
    #[test]
    fn a_freed_page_leaves_nothing_behind() {
        let id = OwnerId::new(1);
        let owner = Owner {
            id,
            domain: Domain::new(1),
            lane: 0,
        };
        let mut ledger = Ledger::new(1, 4, false, crate::Sound);
        let (page, _tag) = ledger.take(owner).expect("a free page");
        ledger.open(page, &[writer(0), writer(1), writer(2)]);
        ledger.close(writer(0), id);
        ledger.close(writer(1), id);
        ledger.reopen(writer(1), id);
        let op = ledger.begin(Operation::new(&[page], &[page]));
        ledger.end_ownership(page);
        ledger.end(op).expect("in flight");
        ledger.fence(writer(0));
        assert!(ledger.records[0].closed.is_empty(), "a fence is final");
        ledger.close(writer(1), id);
        assert_eq!(ledger.free.len(), 0);
        ledger.close(writer(2), id);
        (ledger.last_tag, ledger.last_op) = (LastTag(0), LastOp(0));
        assert_eq!(ledger, Ledger::new(1, 4, false, crate::Sound));
    }
}
