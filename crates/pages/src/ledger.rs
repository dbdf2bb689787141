//! The ledger itself: plain data, one record and one seal a page.

use crate::{Misuse, OpId, Owner, OwnerId, PageId, Tag, WriterLife};
use std::collections::{BTreeMap, BTreeSet};

/// The state of a page (handoff.md, "Page states").
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
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
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
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
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Seal {
    /// Index of the page in its sequence.
    pub ordinal: u32,
    /// Token slots filled, from the front.
    pub filled: u16,
    /// Checksum over exactly the filled slots, where one was computed.
    pub checksum: Option<u32>,
}

/// Pages in every state. Their sum is the pool, always (H-10).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
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

    fn slot(&mut self, state: State) -> &mut usize {
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

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Record {
    pub state: State,
    pub owner: Option<Owner>,
    pub reads: u32,
    pub writes: u32,
    pub shares: u32,
    pub open: Vec<WriterLife>,
}

const FREE: Record = Record {
    state: State::Free,
    owner: None,
    reads: 0,
    writes: 0,
    shares: 0,
    open: Vec::new(),
};

/// Pages that an operation in flight reads, and pages that it writes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Operation {
    pub reads: Vec<PageId>,
    pub writes: Vec<PageId>,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Ledger {
    pub page_size: u16,
    pub scrub: bool,
    pub records: Vec<Record>,
    /// Dense, beside the records: what a step's check reads.
    pub seals: Vec<Seal>,
    pub tags: Vec<Option<Tag>>,
    pub free: BTreeSet<PageId>,
    pub to_scrub: BTreeSet<PageId>,
    pub ops: BTreeMap<u64, Operation>,
    pub counts: Counts,
    pub last_tag: u64,
    pub last_op: u64,
    pub dropped_grants: u64,
    pub dropped_shares: u64,
}

impl Ledger {
    pub fn new(pages: u32, page_size: u16, scrub: bool) -> Self {
        let n = pages as usize;
        Self {
            page_size,
            scrub,
            records: vec![FREE; n],
            seals: vec![Seal::default(); n],
            tags: vec![None; n],
            free: (0..pages).map(PageId::new).collect(),
            to_scrub: BTreeSet::new(),
            ops: BTreeMap::new(),
            counts: Counts {
                free: n,
                ..Counts::default()
            },
            last_tag: 0,
            last_op: 0,
            dropped_grants: 0,
            dropped_shares: 0,
        }
    }

    pub fn record(&self, page: PageId) -> Result<&Record, Misuse> {
        self.records
            .get(page.index())
            .ok_or(Misuse::NoSuchPage(page))
    }

    /// The record of `page`, if `tag` is its present tag.
    pub fn tagged(&self, page: PageId, tag: Tag) -> Result<&Record, Misuse> {
        let record = self.record(page)?;
        if self.tags[page.index()] == Some(tag) {
            Ok(record)
        } else {
            Err(Misuse::StaleHandle(page))
        }
    }

    pub fn set_state(&mut self, page: PageId, state: State) {
        let old = std::mem::replace(&mut self.records[page.index()].state, state);
        *self.counts.slot(old) -= 1;
        *self.counts.slot(state) += 1;
    }

    /// Takes the lowest free page under a tag never used before. The caller has checked that
    /// there is one.
    pub fn take(&mut self, owner: Owner) -> Option<(PageId, Tag)> {
        let page = self.free.pop_first()?;
        self.last_tag = self.last_tag.checked_add(1)?;
        let tag = Tag(std::num::NonZeroU64::new(self.last_tag)?);
        self.set_state(page, State::Reserved);
        self.records[page.index()].owner = Some(owner);
        self.tags[page.index()] = Some(tag);
        Some((page, tag))
    }

    /// Ends ownership: to Free if nothing is pending, otherwise to quarantine until it is.
    pub fn end_ownership(&mut self, page: PageId) {
        let record = &self.records[page.index()];
        let next = if record.reads + record.writes > 0 {
            State::Quarantined(Reason::Operations)
        } else if !record.open.is_empty() {
            State::Quarantined(Reason::Writers)
        } else if self.scrub && record.state != State::Quarantined(Reason::Scrub) {
            self.to_scrub.insert(page);
            State::Quarantined(Reason::Scrub)
        } else {
            self.records[page.index()].owner = None;
            self.seals[page.index()] = Seal::default();
            self.tags[page.index()] = None;
            self.free.insert(page);
            State::Free
        };
        self.set_state(page, next);
    }

    /// Looks again at a quarantined page after something that it waited for has ended.
    pub fn settle(&mut self, page: PageId) {
        if let State::Quarantined(Reason::Operations | Reason::Writers) =
            self.records[page.index()].state
        {
            self.end_ownership(page);
        }
    }

    pub fn begin(&mut self, operation: Operation) -> OpId {
        for page in &operation.reads {
            self.records[page.index()].reads += 1;
        }
        for page in &operation.writes {
            self.records[page.index()].writes += 1;
        }
        self.last_op += 1;
        self.ops.insert(self.last_op, operation);
        OpId(self.last_op)
    }

    pub fn end(&mut self, op: OpId) -> Result<(), Misuse> {
        let operation = self.ops.remove(&op.0).ok_or(Misuse::UnknownOp(op.0))?;
        for page in &operation.reads {
            self.records[page.index()].reads -= 1;
        }
        for page in &operation.writes {
            self.records[page.index()].writes -= 1;
        }
        for page in operation.reads.into_iter().chain(operation.writes) {
            self.settle(page);
        }
        Ok(())
    }

    /// Strikes a writer off the pages of one owner, or off all.
    pub fn strike(&mut self, writer: WriterLife, owner: Option<OwnerId>) {
        for index in 0..self.records.len() {
            let record = &mut self.records[index];
            let concerned = owner.is_none_or(|id| record.owner.is_some_and(|own| own.id == id));
            if concerned && record.open.contains(&writer) {
                record.open.retain(|open| *open != writer);
                self.settle(PageId::new(index as u32));
            }
        }
    }
}
