//! The pool: linear handles over the ledger. Every call either does all of what it says or nothing.

use crate::changes::Changes;
use crate::grant::{Bin, Dropped};
use crate::identity::PoolId;
use crate::ledger::{Ledger, Operation, Record};
use crate::{
    Decisions, FenceMint, Grant, Misuse, Needs, OpId, Owner, OwnerId, PageId, ProofScope, Reason,
    Seal, Shortage, Sound, State, WriterGone, WriterLife,
};
use std::cmp::Ordering;
use std::hash::{Hash, Hasher};

/// What a pool is made of. Its size is measured by whoever allocated the memory behind it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Pages in the pool.
    pub pages: u32,
    /// Token slots a page.
    pub page_size: u16,
    /// Whether a freed page waits in quarantine until its payload was zeroed.
    pub scrub: bool,
}

/// All pages of one worker. See the crate's documentation for an example.
///
/// Two pools are equal if their ledgers are. A handle that was dropped is part of the ledger only
/// after the next call that takes the pool as `&mut`; until then no page of it is free either.
#[derive(Debug, serde::Serialize)]
#[serde(bound = "")]
pub struct Pool<J = Sound> {
    pub(crate) ledger: Ledger<J>,
    #[serde(skip)]
    pub(crate) bin: Bin,
    #[serde(skip)]
    pub(crate) changes: Changes,
}

impl Pool {
    /// A pool of free pages, and the one capability to make proofs about its writers.
    ///
    /// # Panics
    /// If `page_size` is zero: no token would fit anywhere.
    pub fn new(config: Config) -> (Pool, FenceMint) {
        Self::with_decisions(config, Sound)
    }
}

impl<J: Decisions> Pool<J> {
    /// The same under other decisions, for a laboratory.
    ///
    /// # Panics
    /// If `page_size` is zero.
    pub fn with_decisions(config: Config, decisions: J) -> (Self, FenceMint) {
        assert!(config.page_size > 0, "a page has at least one token slot");
        let id = PoolId::mint();
        let pool = Pool {
            ledger: Ledger::new(config.pages, config.page_size, config.scrub, decisions),
            bin: Bin::new(id),
            changes: Changes::default(),
        };
        (pool, FenceMint::new(id))
    }

    /// Takes `n` pages for `owner`, or none. Each comes under a tag never used before.
    pub fn reserve(&mut self, owner: Owner, n: usize) -> Result<Vec<Grant>, Shortage> {
        self.sweep();
        let shortage = Shortage {
            wanted: n,
            free: self.ledger.free.len(),
        };
        if n > shortage.free || self.ledger.last_tag.0.checked_add(n as u64).is_none() {
            return Err(shortage);
        }
        self.changes.reserved(owner.id, n);
        let taken = (0..n).map_while(|_| self.ledger.take(owner));
        Ok(taken
            .map(|(page, tag)| Grant::new(page, tag, &self.bin))
            .collect())
    }

    /// The same for an engine that has an allocator of its own and says which pages it took: all of
    /// them free and none named twice, or nothing is taken and the first that is not is named.
    pub fn reserve_these(&mut self, owner: Owner, pages: &[PageId]) -> Result<Vec<Grant>, Misuse> {
        self.sweep();
        let mut named = std::collections::BTreeSet::new();
        for page in pages {
            let got = self.ledger.record(*page)?.state;
            if got != State::Free || !named.insert(*page) {
                let (page, expected) = (*page, Needs::Free);
                return Err(Misuse::WrongState {
                    page,
                    expected,
                    got,
                });
            }
        }
        self.changes.reserved(owner.id, pages.len());
        let taken = pages
            .iter()
            .map_while(|page| self.ledger.take_at(owner, *page));
        Ok(taken
            .map(|(page, tag)| Grant::new(page, tag, &self.bin))
            .collect())
    }

    /// The tag is about to leave this worker. `writers` are those that may then write the page
    /// itself: empty where writes land in an arena, the fabric's set in direct mode.
    pub fn expose(&mut self, grant: &Grant, writers: &[WriterLife]) -> Result<(), Misuse> {
        self.own(grant, Needs::Reserved, |state| state == State::Reserved)?;
        self.ledger.set_state(grant.page(), State::Granted);
        self.ledger.open(grant.page(), writers);
        Ok(())
    }

    /// An operation that reads and writes pages begins. Until it ends none of them can be freed.
    /// Naming a page twice is naming it once.
    pub fn begin(&mut self, reads: &[PageId], writes: &[PageId]) -> Result<OpId, Misuse> {
        self.sweep();
        for page in reads {
            self.may_touch(*page, Needs::Readable, |state| {
                !matches!(state, State::Free | State::Quarantined(_))
            })?;
        }
        for page in writes {
            self.may_touch(*page, Needs::Writable, |state| {
                !matches!(state, State::Free | State::Quarantined(_) | State::Cached)
            })?;
        }
        Ok(OpId {
            counter: self.ledger.begin(Operation::new(reads, writes)),
            pool: self.bin.pool(),
        })
    }

    /// It has ended, in whatever way. Pages that only waited for it become free.
    pub fn end(&mut self, op: OpId) -> Result<(), Misuse> {
        if !op.pool.is(self.bin.pool()) {
            return Err(Misuse::UnknownOp(op.counter));
        }
        self.ledger.end(op.counter)
    }

    /// The content of the page is what its writer computed: verified, or computed here. A page
    /// that this worker will fill itself is sealed with `filled: 0` first and extended as it fills.
    pub fn seal(&mut self, grant: &Grant, seal: Seal) -> Result<(), Misuse> {
        let record = self.own(grant, Needs::Unsealed, |state| {
            matches!(state, State::Reserved | State::Granted)
        })?;
        if !self.ledger.decisions.may_seal(record.pending()) {
            return Err(busy(grant.page(), record));
        }
        self.check_fill(grant.page(), seal.filled, 0)?;
        self.ledger.set_state(grant.page(), State::Sealed);
        self.ledger.seals[grant.page().index()] = seal;
        Ok(())
    }

    /// A local step has filled more slots of a sealed page. The checksum, if the owner has one of
    /// the new content, goes with it; otherwise the page has none any more.
    pub fn extend(
        &mut self,
        grant: &Grant,
        filled: u16,
        checksum: Option<u32>,
    ) -> Result<(), Misuse> {
        self.own(grant, Needs::Sealed, |state| state == State::Sealed)?;
        let seal = self.ledger.seals[grant.page().index()];
        self.check_fill(grant.page(), filled, seal.filled)?;
        self.ledger.seals[grant.page().index()] = Seal {
            filled,
            checksum,
            ..seal
        };
        Ok(())
    }

    /// Ends ownership. The page is free at once if nothing is pending, otherwise when the last
    /// operation and the last writer's proof are in.
    pub fn release(&mut self, grant: Grant) -> Result<(), (Grant, Misuse)> {
        if let Err(misuse) = self.own(&grant, Needs::Owned, is_owned) {
            return Err((grant, misuse));
        }
        self.give_up(grant.page(), grant.tag());
        self.ledger.end_ownership(grant.page());
        grant.consume();
        Ok(())
    }

    /// Consumes the proof that a writer can write no more. One that was made for another pool
    /// proves nothing here: it is refused and counted ([`Pool::refused_proofs`]).
    pub fn writer_gone(&mut self, proof: WriterGone) {
        if !self.recognises(&proof) {
            self.ledger.refused_proofs += 1;
            return;
        }
        match proof.scope() {
            ProofScope::Owner(owner) => self.ledger.close(proof.writer(), owner),
            ProofScope::Life => self.ledger.fence(proof.writer()),
        }
    }

    /// Whether this proof speaks about this pool's memory.
    pub fn recognises(&self, proof: &WriterGone) -> bool {
        proof.pool().is(self.bin.pool())
    }

    /// An integrity fault voids this writer's certificate for `owner`: it counts as a writer of
    /// those pages again, as far as they are not free yet, until it is fenced or certifies anew.
    /// Says how many pages that concerns. Only a certificate can be voided, never a fence.
    pub fn reopen(&mut self, owner: OwnerId, writer: WriterLife) -> usize {
        let reopened = self.ledger.reopen(writer, owner);
        for page in &reopened {
            let Some(tag) = self.ledger.tags[page.index()] else {
                continue;
            };
            let record = &self.ledger.records[page.index()];
            let ordinal = self.ledger.seals[page.index()].ordinal;
            match (record.state, record.owner) {
                (State::Cached, Some(by)) => self.changes.cache_disturbed(by.domain, tag, ordinal),
                _ => self.changes.disturbed(owner, tag, ordinal),
            }
        }
        reopened.len()
    }

    /// Pages whose payload must be zeroed before they are free (`scrub`).
    pub fn to_scrub(&self) -> Vec<PageId> {
        self.ledger.to_scrub.iter().copied().collect()
    }

    /// The payload of this page has been zeroed.
    pub fn scrubbed(&mut self, page: PageId) -> Result<(), Misuse> {
        let got = self.ledger.record(page)?.state;
        if !self.ledger.to_scrub.remove(&page) {
            let expected = Needs::WaitsForScrub;
            return Err(Misuse::WrongState {
                page,
                expected,
                got,
            });
        }
        self.ledger.end_ownership(page);
        Ok(())
    }
}

/// What the calls have in common.
impl<J: Decisions> Pool<J> {
    /// The record behind a grant: of this pool, of its present tag, in a fitting state.
    pub(crate) fn own(
        &self,
        grant: &Grant,
        expected: Needs,
        fits: impl Fn(State) -> bool,
    ) -> Result<&Record, Misuse> {
        if !grant.belongs_to(&self.bin) {
            return Err(Misuse::ForeignHandle(grant.page()));
        }
        let record = self.ledger.tagged(grant.page(), grant.tag())?;
        if fits(record.state) {
            return Ok(record);
        }
        Err(Misuse::WrongState {
            page: grant.page(),
            expected,
            got: record.state,
        })
    }

    fn may_touch(
        &self,
        page: PageId,
        expected: Needs,
        fits: impl Fn(State) -> bool,
    ) -> Result<(), Misuse> {
        let record = self.ledger.record(page)?;
        if !fits(record.state) {
            return Err(Misuse::WrongState {
                page,
                expected,
                got: record.state,
            });
        }
        // Counters never wrap: a wrapped one would free a page that is in use.
        if record.reads == u32::MAX || record.writes == u32::MAX {
            return Err(busy(page, record));
        }
        Ok(())
    }

    fn check_fill(&self, page: PageId, filled: u16, at_least: u16) -> Result<(), Misuse> {
        let page_size = self.ledger.page_size;
        if filled > page_size || filled < at_least {
            return Err(Misuse::BadFill {
                page,
                filled,
                page_size,
            });
        }
        Ok(())
    }

    /// The page's owner holds it no more: its tables have to look at that entry again.
    pub(crate) fn give_up(&mut self, page: PageId, tag: crate::Tag) {
        if let Some(owner) = self.ledger.records[page.index()].owner {
            let ordinal = self.ledger.seals[page.index()].ordinal;
            self.changes.given_up(owner.id, tag, ordinal);
        }
    }

    /// Handles that were dropped since the last look cost their pages.
    pub(crate) fn sweep(&mut self) {
        for dropped in self.bin.take() {
            match dropped {
                Dropped::Grant(page, tag) => self.lose(page, tag),
                Dropped::Share => self.ledger.dropped_shares += 1,
            }
        }
    }

    fn lose(&mut self, page: PageId, tag: crate::Tag) {
        self.ledger.dropped_grants += 1;
        let present = self.ledger.tagged(page, tag);
        if present.is_ok_and(|record| is_owned(record.state)) {
            self.give_up(page, tag);
            self.ledger
                .set_state(page, State::Quarantined(Reason::Dropped));
        }
    }
}

fn is_owned(state: State) -> bool {
    matches!(state, State::Reserved | State::Granted | State::Sealed)
}

pub(crate) fn busy(page: PageId, record: &Record) -> Misuse {
    Misuse::Busy {
        page,
        reads: record.reads,
        writes: record.writes,
        shares: record.shares.saturating_sub(1),
    }
}

impl<J: Decisions> PartialEq for Pool<J> {
    fn eq(&self, other: &Self) -> bool {
        self.ledger == other.ledger
    }
}
impl<J: Decisions> Eq for Pool<J> {}
impl<J: Decisions> PartialOrd for Pool<J> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl<J: Decisions> Ord for Pool<J> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.ledger.cmp(&other.ledger)
    }
}
impl<J: Decisions> Hash for Pool<J> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.ledger.hash(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Domain, Owner, OwnerId};
    use std::hash::DefaultHasher;

    fn pool(pages: u32) -> Pool {
        let config = Config {
            pages,
            page_size: 4,
            scrub: false,
        };
        Pool::new(config).0
    }

    fn owner() -> Owner {
        let (id, domain) = (OwnerId::new(1), Domain::new(1));
        Owner {
            id,
            domain,
            lane: 0,
        }
    }

    /// H-3: a count that wrapped would free a page that is read or written.
    #[test]
    fn a_count_that_is_full_takes_no_more() {
        let mut pool = pool(1);
        let grant = pool.reserve(owner(), 1).unwrap().remove(0);
        let page = grant.page();
        for (reads, writes) in [(u32::MAX, 0), (0, u32::MAX)] {
            let record = &mut pool.ledger.records[page.index()];
            (record.reads, record.writes) = (reads, writes);
            let busy = Misuse::Busy {
                page,
                reads,
                writes,
                shares: 0,
            };
            assert_eq!(pool.begin(&[page], &[]), Err(busy.clone()));
            assert_eq!(pool.begin(&[], &[page]), Err(busy));
            assert_eq!(pool.operations(), 0);
        }
        let record = &mut pool.ledger.records[page.index()];
        (record.reads, record.writes) = (0, 0);
        pool.release(grant).unwrap();
    }

    /// A checker merges worlds that are equal: pools must differ wherever their ledgers do.
    #[test]
    fn pools_compare_as_their_ledgers() {
        let hash = |pool: &Pool| {
            let mut hasher = DefaultHasher::new();
            pool.hash(&mut hasher);
            hasher.finish()
        };
        let (mut one, other) = (pool(2), pool(2));
        assert_eq!((one.page_size(), one.size()), (4, 2), "as it was made");
        assert_eq!(one, other, "which pool it is does not count");
        assert_eq!(hash(&one), hash(&other));
        assert_eq!(one.partial_cmp(&other), Some(Ordering::Equal));
        let grants = one.reserve(owner(), 1).unwrap();
        assert_ne!(one, other);
        assert_ne!(hash(&one), hash(&other));
        let order = one.ledger.cmp(&other.ledger);
        assert_ne!(order, Ordering::Equal);
        assert_eq!(one.partial_cmp(&other), Some(order));
        grants.into_iter().for_each(|g| one.release(g).unwrap());
    }
}
