//! The proof that a block table was checked (law: attention accepts only a verified block table: a
//! type, not a habit).

use crate::table::{Checked, Entry, Origin};
use crate::{
    BlockTable, Decisions, PageId, Pool, PoolIdentity, State, TableFault, Tag, VerifyFault,
};
use std::collections::BTreeSet;
use std::ops::Range;

/// One sequence's part of a step: write `new` tokens behind those of the table, reading all.
#[derive(Debug)]
pub struct Step<'t> {
    /// The sequence's table.
    pub table: &'t mut BlockTable,
    /// Tokens that this step writes.
    pub new: u32,
}

/// Block tables that were checked against the ledger. While it lives neither the pool nor a table
/// can change, so what was true at the check is true in the step:
///
/// ```compile_fail,E0502
/// use pages::{Config, Pool};
/// let (mut pool, _mint) = Pool::new(Config { pages: 4, page_size: 16, scrub: false });
/// let verified = pool.verify(vec![]).unwrap();
/// pool.counts(); // needs the pool as `&mut`
/// assert!(verified.sequences().is_empty());
/// ```
/// ```compile_fail,E0499
/// use pages::{BlockTable, Pool, Step};
/// fn step(pool: &Pool, table: &mut BlockTable) {
///     let verified = pool.verify(vec![Step { table: &mut *table, new: 1 }]).unwrap();
///     table.advance_to(1);
///     assert_eq!(verified.sequences().len(), 1);
/// }
/// ```
#[derive(Debug)]
pub struct Verified<'p> {
    sequences: Vec<VerifiedSequence<'p>>,
    page_size: u16,
    looked_at: usize,
    pool: PoolIdentity,
}

/// One sequence of a [`Verified`] step.
#[derive(Debug)]
pub struct VerifiedSequence<'p> {
    table: &'p BlockTable,
    new: u32,
}

impl Verified<'_> {
    /// The sequences, in the order in which they were given.
    pub fn sequences(&self) -> &[VerifiedSequence<'_>] {
        &self.sequences
    }

    /// Token slots a page.
    pub const fn page_size(&self) -> usize {
        self.page_size as usize
    }

    /// The pool whose ledger the tables were checked against.
    pub const fn pool(&self) -> PoolIdentity {
        self.pool
    }

    /// What the check cost: table entries compared with the ledger, and changes looked up.
    pub const fn looked_at(&self) -> usize {
        self.looked_at
    }
}

impl VerifiedSequence<'_> {
    /// Tokens that are in the cache before the step.
    pub const fn start(&self) -> usize {
        self.table.tokens as usize
    }

    /// Tokens that the step writes, at positions `start..start + new`.
    pub const fn new_tokens(&self) -> usize {
        self.new as usize
    }

    /// The page of the token at `position`; only positions below `start + new` have one.
    ///
    /// # Panics
    /// If `position` lies behind the step.
    pub fn page_of(&self, position: usize) -> PageId {
        assert!(
            position < self.start() + self.new_tokens(),
            "position behind the verified step"
        );
        self.table.entries[position / self.table.page_size as usize].page
    }

    /// Those of all pages of the table that are its owner's alone, not shared in its domain.
    pub fn own_pages(&self) -> impl Iterator<Item = PageId> + '_ {
        let own = self.table.entries.iter().filter(|entry| !entry.shared);
        own.map(|entry| entry.page)
    }

    /// The pages that hold positions `0..start + new`, in order.
    pub fn pages(&self) -> impl ExactSizeIterator<Item = PageId> + '_ {
        let n = (self.start() + self.new_tokens()).div_ceil(self.table.page_size as usize);
        self.table.entries[..n].iter().map(|entry| entry.page)
    }
}

/// Entries that a check looks at: some before `from`, in order, and all from there on.
struct Outdated {
    before: BTreeSet<usize>,
    from: usize,
    changes: usize,
}

const EVERYTHING: Outdated = Outdated {
    before: BTreeSet::new(),
    from: 0,
    changes: 0,
};

impl<J: Decisions> Pool<J> {
    /// Checks the tables of a step. The work is what changed since each table was last checked:
    /// new entries, newly filled ones, those that the step writes, and those whose
    /// page the pool has touched in between. Judges exactly as [`Pool::verify_in_full`] does.
    pub fn verify<'p>(&'p self, steps: Vec<Step<'p>>) -> Result<Verified<'p>, VerifyFault> {
        self.verify_from(steps, Some(Self::outdated))
    }

    /// The same, trusting no earlier check: for tests and a low-rate audit.
    pub fn verify_in_full<'p>(&'p self, steps: Vec<Step<'p>>) -> Result<Verified<'p>, VerifyFault> {
        self.verify_from(steps, None)
    }

    fn verify_from<'p>(
        &'p self,
        steps: Vec<Step<'p>>,
        outdated: Option<fn(&Self, &BlockTable) -> Option<Outdated>>,
    ) -> Result<Verified<'p>, VerifyFault> {
        let unheard = self.bin.unheard();
        let mut sequences = Vec::with_capacity(steps.len());
        let mut written = Vec::new();
        let mut looked_at = 0;
        for Step { table, new } in steps {
            let check = Check {
                pool: self,
                table,
                new,
                unheard: &unheard,
                in_full: outdated.is_none(),
            };
            let range = check.bounds()?;
            let known = outdated.filter(|_| unheard.is_empty());
            let outdated = known.and_then(|outdated| outdated(self, table));
            let outdated = outdated.unwrap_or(EVERYTHING);
            looked_at += check.entries(&range, outdated)?;
            table.checked = Checked {
                entries: table.entries.len(),
                tokens: table.tokens,
                stamp: self.changes.now(),
            };
            let table: &'p BlockTable = table;
            written.extend(range.map(|o| (table.entries[o].page, table.owner.id, o)));
            sequences.push(VerifiedSequence { table, new });
        }
        written.sort_unstable();
        if let Some(twice) = written.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            let (page, owner, ordinal) = twice[1];
            let kind = TableFault::WrittenTwice;
            return Err(VerifyFault {
                owner,
                ordinal,
                page: Some(page),
                kind,
            });
        }
        Ok(Verified {
            sequences,
            page_size: self.ledger.page_size,
            looked_at,
            pool: self.identity(),
        })
    }

    /// What has to be looked at again in this table; `None` if that is not known, because the pool
    /// has forgotten some of its changes since or has no pages of that owner or domain any more.
    fn outdated(&self, table: &BlockTable) -> Option<Outdated> {
        let Checked {
            entries: from,
            tokens,
            stamp,
        } = &table.checked;
        let mut changes = 0;
        let mut before = BTreeSet::new();
        let mut changed = |change: crate::changes::Change| {
            changes += 1;
            let ordinal = change.ordinal as usize;
            let entry = table.entries.get(ordinal);
            if entry.is_some_and(|entry| entry.tag == change.tag) {
                before.insert(ordinal);
            }
        };
        if table.shared < table.entries.len() {
            let own = self.changes.of_owner(table.owner.id, *stamp)?;
            own.for_each(&mut changed);
        }
        if table.shared > 0 {
            let cached = self.changes.of_domain(table.owner.domain, *stamp)?;
            cached.for_each(&mut changed);
        }
        let size = usize::from(table.page_size);
        let filled = *tokens as usize / size..(table.tokens as usize).div_ceil(size);
        before.extend(filled.start..filled.end.min(*from));
        before.retain(|ordinal| ordinal < from);
        Some(Outdated {
            before,
            from: *from,
            changes,
        })
    }
}

/// The check of one table.
struct Check<'a, J> {
    pool: &'a Pool<J>,
    table: &'a BlockTable,
    new: u32,
    /// Grants that were dropped, of which the pool has not heard yet: their pages are lost.
    unheard: &'a BTreeSet<(PageId, Tag)>,
    /// Whether no earlier check is trusted.
    in_full: bool,
}

impl<J: Decisions> Check<'_, J> {
    /// The table as a whole; gives the ordinals that the step writes.
    fn bounds(&self) -> Result<Range<usize>, VerifyFault> {
        let table = self.table;
        if table.page_size != self.pool.ledger.page_size {
            let kind = TableFault::OtherPageSize;
            return Err(self.fault(0, kind));
        }
        match table.origin {
            Origin::Pool(pool) if !pool.is(self.pool.bin.pool()) => {
                return Err(self.fault(0, TableFault::TableOfAnotherPool));
            }
            Origin::Mixed(ordinal) => {
                return Err(self.fault(ordinal, TableFault::PageOfAnotherPool));
            }
            Origin::Nothing | Origin::Pool(_) => {}
        }
        let size = usize::from(table.page_size);
        match table.tokens.checked_add(self.new) {
            Some(end) if end <= table.capacity() => {
                let first = table.tokens as usize / size;
                let behind = if self.new > 0 {
                    (end as usize).div_ceil(size)
                } else {
                    first
                };
                Ok(first..behind)
            }
            _ => {
                let kind = TableFault::TooFewPages;
                Err(self.fault(table.entries.len(), kind))
            }
        }
    }

    /// The entries that are outdated or written, in order; gives how many that were.
    fn entries(&self, written: &Range<usize>, outdated: Outdated) -> Result<usize, VerifyFault> {
        let Outdated {
            mut before,
            from,
            changes,
        } = outdated;
        before.extend(written.start.min(from)..written.end.min(from));
        let looked_at = changes + before.len() + self.table.entries.len() - from;
        let decisions = self.pool.ledger.decisions;
        for ordinal in before.into_iter().chain(from..self.table.entries.len()) {
            if !self.in_full && !decisions.looks_again(ordinal >= from) {
                continue;
            }
            let found = self.entry(ordinal);
            decisions
                .entry_verdict(found)
                .map_err(|kind| self.fault(ordinal, kind))?;
            if written.contains(&ordinal) {
                decisions
                    .entry_verdict(self.write(ordinal))
                    .map_err(|kind| self.fault(ordinal, kind))?;
            }
        }
        Ok(looked_at)
    }

    fn fault(&self, ordinal: usize, kind: TableFault) -> VerifyFault {
        VerifyFault {
            owner: self.table.owner.id,
            ordinal,
            page: self.table.entries.get(ordinal).map(|entry| entry.page),
            kind,
        }
    }

    /// Slots of the page at `ordinal` that the table says are written.
    fn used(&self, ordinal: usize) -> usize {
        let size = usize::from(self.table.page_size);
        (self.table.tokens as usize)
            .saturating_sub(ordinal * size)
            .min(size)
    }

    fn entry(&self, ordinal: usize) -> Result<(), TableFault> {
        let Entry { page, tag, shared } = self.table.entries[ordinal];
        let index = page.index();
        let Some(record) = self.pool.ledger.records.get(index) else {
            return Err(TableFault::NoSuchPage);
        };
        let decisions = self.pool.ledger.decisions;
        if !decisions.same_grant(tag, self.pool.ledger.tags[index]) {
            return Err(TableFault::GrantedAnew);
        }
        if self.unheard.contains(&(page, tag)) {
            return Err(TableFault::GrantDropped);
        }
        if !record.open.is_empty() {
            return Err(TableFault::WriterOpen);
        }
        let Some(owner) = record.owner else {
            return Err(TableFault::NoOwner);
        };
        let reader = self.table.owner;
        if shared {
            if record.state != State::Cached {
                return Err(TableFault::SharedNotCached);
            }
            if owner.domain != reader.domain {
                return Err(TableFault::OtherDomain);
            }
            if record.shares == 0 {
                return Err(TableFault::NotPinned);
            }
        } else {
            if record.state != State::Sealed {
                return Err(TableFault::NotSealed);
            }
            if (owner.id, owner.domain) != (reader.id, reader.domain) {
                return Err(TableFault::OtherOwner);
            }
            if owner.lane != 0 && owner.lane != reader.lane {
                return Err(TableFault::OtherChoice);
            }
        }
        let seal = self.pool.ledger.seals[index];
        if seal.ordinal as usize != ordinal {
            return Err(TableFault::OtherPlace);
        }
        if usize::from(seal.filled) < self.used(ordinal) {
            return Err(TableFault::TooFewSlots);
        }
        Ok(())
    }

    /// A step appends: behind the slots that are sealed, in pages that are this lane's alone.
    fn write(&self, ordinal: usize) -> Result<(), TableFault> {
        let entry = self.table.entries[ordinal];
        let index = entry.page.index();
        if entry.shared {
            return Err(TableFault::WritesShared);
        }
        let owner = self.pool.ledger.records[index].owner;
        if owner.map(|owner| owner.lane) != Some(self.table.owner.lane) {
            return Err(TableFault::WritesOtherLane);
        }
        if usize::from(self.pool.ledger.seals[index].filled) > self.used(ordinal) {
            return Err(TableFault::WritesSealed);
        }
        Ok(())
    }
}
