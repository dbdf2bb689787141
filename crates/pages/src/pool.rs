//! The pool: linear handles over the ledger. Every call either does all of what it says or nothing.

use crate::grant::{Bin, Dropped};
use crate::ledger::{Ledger, Operation};
use crate::{
    Counts, Domain, FenceMint, Grant, Holder, Misuse, OpId, Owner, OwnerId, PageId, Reason, Scope,
    Seal, Share, Shortage, State, WriterGone, WriterLife,
};
use std::cmp::Ordering;
use std::collections::BTreeMap;
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
#[derive(Debug)]
pub struct Pool {
    pub(crate) ledger: Ledger,
    bin: Bin,
    pub(crate) stamps: Stamps,
}

/// What changed since a block table was last checked. Not part of the state proper: a table that
/// is checked in full is right whatever stands here.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stamps {
    pub clock: u64,
    pub owners: BTreeMap<OwnerId, u64>,
}

impl Pool {
    /// A pool of free pages, and the one capability to make proofs about its writers.
    ///
    /// # Panics
    /// If `page_size` is zero: no token would fit anywhere.
    pub fn new(config: Config) -> (Pool, FenceMint) {
        assert!(config.page_size > 0, "a page has at least one token slot");
        let pool = Pool {
            ledger: Ledger::new(config.pages, config.page_size, config.scrub),
            bin: Bin::default(),
            stamps: Stamps::default(),
        };
        (pool, FenceMint::new())
    }

    /// Takes `n` pages for `owner`, or none. Each comes under a tag never used before.
    pub fn reserve(&mut self, owner: Owner, n: usize) -> Result<Vec<Grant>, Shortage> {
        self.sweep();
        let shortage = Shortage {
            wanted: n,
            free: self.ledger.free.len(),
        };
        if n > shortage.free || self.ledger.last_tag.checked_add(n as u64).is_none() {
            return Err(shortage);
        }
        let taken = (0..n).map_while(|_| self.ledger.take(owner));
        Ok(taken
            .map(|(page, tag)| Grant::new(page, tag, &self.bin))
            .collect())
    }

    /// The tag is about to leave this worker. `writers` are those that may then write the page
    /// itself: empty where writes land in an arena, the fabric's set in direct mode.
    pub fn expose(&mut self, grant: &Grant, writers: &[WriterLife]) -> Result<(), Misuse> {
        self.own(grant, "Reserved", |state| state == State::Reserved)?;
        self.ledger.set_state(grant.page(), State::Granted);
        self.ledger.records[grant.page().index()].open = writers.to_vec();
        Ok(())
    }

    /// An operation that reads and writes pages begins. Until it ends none of them can be freed.
    pub fn begin(&mut self, reads: &[PageId], writes: &[PageId]) -> Result<OpId, Misuse> {
        for page in reads.iter().chain(writes) {
            let state = self.ledger.record(*page)?.state;
            if matches!(state, State::Free | State::Quarantined(_)) {
                let expected = "a page with an owner";
                return Err(Misuse::WrongState {
                    page: *page,
                    expected,
                    got: state,
                });
            }
        }
        if let Some(page) = writes
            .iter()
            .find(|page| self.ledger.records[page.index()].state == State::Cached)
        {
            let got = State::Cached;
            return Err(Misuse::WrongState {
                page: *page,
                expected: "a page not shared",
                got,
            });
        }
        Ok(self.ledger.begin(Operation {
            reads: reads.to_vec(),
            writes: writes.to_vec(),
        }))
    }

    /// It has ended, in whatever way. Pages that only waited for it become free.
    pub fn end(&mut self, op: OpId) -> Result<(), Misuse> {
        self.ledger.end(op)
    }

    /// The content of the page is what its writer computed: verified, or computed here.
    pub fn seal(&mut self, grant: &Grant, seal: Seal) -> Result<(), Misuse> {
        let record = self.own(grant, "Reserved or Granted", |state| {
            matches!(state, State::Reserved | State::Granted)
        })?;
        let (reads, writes) = (record.reads, record.writes);
        if writes > 0 || !record.open.is_empty() {
            return Err(Misuse::Busy {
                page: grant.page(),
                reads,
                writes,
                shares: 0,
            });
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
        self.own(grant, "Sealed", |state| state == State::Sealed)?;
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
        let owned = |state| matches!(state, State::Reserved | State::Granted | State::Sealed);
        match self.own(&grant, "owned", owned) {
            Ok(_) => {
                self.touch(grant.page());
                self.ledger.end_ownership(grant.page());
                grant.consume();
                Ok(())
            }
            Err(misuse) => Err((grant, misuse)),
        }
    }

    /// Consumes the proof that a writer can write no more.
    pub fn writer_gone(&mut self, proof: WriterGone) {
        match proof.scope() {
            Scope::Owner(owner) => self.ledger.strike(proof.writer(), Some(owner)),
            Scope::Life => self.ledger.strike(proof.writer(), None),
        }
    }

    /// Gives up exclusive ownership of a sealed, full page: from now on it is immutable and shared
    /// inside its domain. The publisher goes on reading it through the share it gets.
    pub fn publish(&mut self, grant: Grant) -> Result<Share, (Grant, Misuse)> {
        let checked = self
            .own(&grant, "Sealed", |state| state == State::Sealed)
            .and_then(|r| {
                let (reads, writes) = (r.reads, r.writes);
                if writes > 0 {
                    return Err(Misuse::Busy {
                        page: grant.page(),
                        reads,
                        writes,
                        shares: 0,
                    });
                }
                Ok(())
            });
        let filled = self
            .ledger
            .seals
            .get(grant.page().index())
            .map_or(0, |seal| seal.filled);
        let page_size = self.ledger.page_size;
        match checked {
            Ok(()) if filled == page_size => {}
            Ok(()) => {
                let page = grant.page();
                return Err((
                    grant,
                    Misuse::BadFill {
                        page,
                        filled,
                        page_size,
                    },
                ));
            }
            Err(misuse) => return Err((grant, misuse)),
        }
        self.ledger.set_state(grant.page(), State::Cached);
        self.ledger.records[grant.page().index()].shares = 1;
        let share = Share::new(grant.page(), grant.tag(), &self.bin);
        grant.consume();
        Ok(share)
    }

    /// One more reader of a cached page, of the same domain (H-13).
    pub fn share(&mut self, of: &Share, domain: Domain) -> Result<Share, Misuse> {
        if !of.belongs_to(&self.bin) {
            return Err(Misuse::ForeignHandle(of.page()));
        }
        let record = self.ledger.tagged(of.page(), of.tag())?;
        match record.owner {
            Some(owner) if owner.domain == domain => {}
            owner => {
                let owner = owner.map_or(domain, |owner| owner.domain);
                return Err(Misuse::ForeignDomain {
                    page: of.page(),
                    owner,
                    asked: domain,
                });
            }
        }
        if record.state != State::Cached {
            let (page, got) = (of.page(), record.state);
            return Err(Misuse::WrongState {
                page,
                expected: "Cached",
                got,
            });
        }
        self.ledger.records[of.page().index()].shares += 1;
        Ok(Share::new(of.page(), of.tag(), &self.bin))
    }

    /// Gives a reference back. The page stays cached until the last share is evicted.
    pub fn unshare(&mut self, share: Share) -> Result<(), (Share, Misuse)> {
        if !share.belongs_to(&self.bin) {
            let misuse = Misuse::ForeignHandle(share.page());
            return Err((share, misuse));
        }
        self.ledger.records[share.page().index()].shares -= 1;
        share.consume();
        Ok(())
    }

    /// Gives back the last reference and frees the page; refused while anybody else reads it.
    pub fn evict(&mut self, share: Share) -> Result<(), (Share, Misuse)> {
        if !share.belongs_to(&self.bin) {
            let misuse = Misuse::ForeignHandle(share.page());
            return Err((share, misuse));
        }
        let record = &self.ledger.records[share.page().index()];
        let (reads, writes, shares) = (record.reads, record.writes, record.shares);
        if reads > 0 || shares > 1 {
            let page = share.page();
            return Err((
                share,
                Misuse::Busy {
                    page,
                    reads,
                    writes,
                    shares: shares - 1,
                },
            ));
        }
        self.touch(share.page());
        self.ledger.records[share.page().index()].shares = 0;
        self.ledger.end_ownership(share.page());
        share.consume();
        Ok(())
    }

    /// Whether nobody but the holder of this share uses the page.
    pub fn evictable(&self, share: &Share) -> bool {
        self.ledger
            .tagged(share.page(), share.tag())
            .is_ok_and(|record| record.shares == 1 && record.reads == 0)
    }

    /// Pages whose payload must be zeroed before they are free (`scrub`).
    pub fn to_scrub(&self) -> Vec<PageId> {
        self.ledger.to_scrub.iter().copied().collect()
    }

    /// The payload of this page has been zeroed.
    pub fn scrubbed(&mut self, page: PageId) -> Result<(), Misuse> {
        let state = self.ledger.record(page)?.state;
        if !self.ledger.to_scrub.remove(&page) {
            let expected = "Quarantined(Scrub)";
            return Err(Misuse::WrongState {
                page,
                expected,
                got: state,
            });
        }
        self.ledger.end_ownership(page);
        Ok(())
    }

    fn own(
        &self,
        grant: &Grant,
        expected: &'static str,
        fits: impl Fn(State) -> bool,
    ) -> Result<&crate::ledger::Record, Misuse> {
        if !grant.belongs_to(&self.bin) {
            return Err(Misuse::ForeignHandle(grant.page()));
        }
        let record = self.ledger.tagged(grant.page(), grant.tag())?;
        if fits(record.state) {
            Ok(record)
        } else {
            Err(Misuse::WrongState {
                page: grant.page(),
                expected,
                got: record.state,
            })
        }
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

    /// Remembers that the tables of this page's owner have to be checked in full again.
    fn touch(&mut self, page: PageId) {
        if let Some(owner) = self.ledger.records[page.index()].owner {
            self.stamps.clock += 1;
            self.stamps.owners.insert(owner.id, self.stamps.clock);
        }
    }

    /// Handles that were dropped since the last look cost their pages.
    fn sweep(&mut self) {
        for dropped in self.bin.take() {
            match dropped {
                Dropped::Grant(page, tag) if self.ledger.tagged(page, tag).is_ok() => {
                    self.touch(page);
                    self.ledger.dropped_grants += 1;
                    self.ledger
                        .set_state(page, State::Quarantined(Reason::Dropped));
                }
                Dropped::Grant(..) => {}
                Dropped::Share => self.ledger.dropped_shares += 1,
            }
        }
    }
}

/// Questions.
impl Pool {
    /// Token slots a page.
    pub fn page_size(&self) -> u16 {
        self.ledger.page_size
    }

    /// Pages in the pool.
    pub fn size(&self) -> usize {
        self.ledger.records.len()
    }

    /// Pages in every state (H-10).
    pub fn counts(&mut self) -> Counts {
        self.sweep();
        self.ledger.counts
    }

    /// Grants and shares that were dropped instead of given back, since the start.
    pub fn dropped(&mut self) -> (u64, u64) {
        self.sweep();
        (self.ledger.dropped_grants, self.ledger.dropped_shares)
    }

    /// Operations in flight.
    pub fn operations(&self) -> usize {
        self.ledger.ops.len()
    }

    /// Everything known about a page.
    pub fn holder(&mut self, page: PageId) -> Result<Holder, Misuse> {
        self.sweep();
        let record = self.ledger.record(page)?.clone();
        Ok(Holder {
            page,
            state: record.state,
            owner: record.owner,
            tag: self.ledger.tags[page.index()],
            seal: self.ledger.seals[page.index()],
            reads: record.reads,
            writes: record.writes,
            shares: record.shares,
            open: record.open,
        })
    }

    /// Who holds what: every page that is not free.
    pub fn holders(&mut self) -> Vec<Holder> {
        (0..self.size() as u32)
            .filter_map(|index| self.holder(PageId::new(index)).ok())
            .filter(|holder| holder.state != State::Free)
            .collect()
    }

    /// The seal of a page that this grant owns.
    pub fn seal_of(&self, grant: &Grant) -> Result<Seal, Misuse> {
        self.own(grant, "owned", |state| state != State::Free)?;
        Ok(self.ledger.seals[grant.page().index()])
    }
}

/// For checkers only: a whole world can be copied, its handles with it. Nothing in the product
/// calls these (a test of the workspace looks).
#[doc(hidden)]
impl Pool {
    pub fn fork_for_checker(&mut self) -> Pool {
        self.sweep();
        Pool {
            ledger: self.ledger.clone(),
            bin: Bin::default(),
            stamps: self.stamps.clone(),
        }
    }

    pub fn fork_grant_for_checker(&self, grant: &Grant) -> Grant {
        Grant::new(grant.page(), grant.tag(), &self.bin)
    }

    pub fn fork_share_for_checker(&self, share: &Share) -> Share {
        Share::new(share.page(), share.tag(), &self.bin)
    }
}

impl PartialEq for Pool {
    fn eq(&self, other: &Self) -> bool {
        self.ledger == other.ledger
    }
}
impl Eq for Pool {}
impl PartialOrd for Pool {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Pool {
    fn cmp(&self, other: &Self) -> Ordering {
        self.ledger.cmp(&other.ledger)
    }
}
impl Hash for Pool {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.ledger.hash(state);
    }
}
