//! Block tables, and the proof that a table was checked (law: attention accepts only a verified
//! block table: a type, not a habit).

use crate::{Grant, Owner, PageId, Pool, Share, State, Tag, VerifyFault};
use std::marker::PhantomData;

/// Which pages hold the tokens of one sequence, in order. Plain data; worth nothing until
/// [`Pool::verify`] has checked it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BlockTable {
    owner: Owner,
    page_size: u16,
    entries: Vec<Entry>,
    tokens: u32,
    checked: Checked,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
struct Entry {
    page: PageId,
    tag: Tag,
    shared: bool,
}

/// How far the last check went, and at which stamp. Says nothing about the content, so two tables
/// that differ only here are equal.
#[derive(Clone, Copy, Debug, Default)]
struct Checked {
    entries: usize,
    tokens: u32,
    stamp: u64,
}

macro_rules! always_equal {
    ($name:ident) => {
        impl PartialEq for $name {
            fn eq(&self, _: &Self) -> bool {
                true
            }
        }
        impl Eq for $name {}
        impl PartialOrd for $name {
            fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
                Some(self.cmp(other))
            }
        }
        impl Ord for $name {
            fn cmp(&self, _: &Self) -> std::cmp::Ordering {
                std::cmp::Ordering::Equal
            }
        }
        impl std::hash::Hash for $name {
            fn hash<H: std::hash::Hasher>(&self, _: &mut H) {}
        }
    };
}
always_equal!(Checked);

impl BlockTable {
    /// An empty table of `owner`; its lane says which pages it may write.
    pub fn new(owner: Owner, page_size: u16) -> Self {
        Self {
            owner,
            page_size,
            entries: Vec::new(),
            tokens: 0,
            checked: Checked::default(),
        }
    }

    /// Appends a page that this owner holds.
    pub fn push_own(&mut self, grant: &Grant) {
        self.entries.push(Entry {
            page: grant.page(),
            tag: grant.tag(),
            shared: false,
        });
    }

    /// Appends a cached page of the same domain.
    pub fn push_shared(&mut self, share: &Share) {
        self.entries.push(Entry {
            page: share.page(),
            tag: share.tag(),
            shared: true,
        });
    }

    /// Replaces the page at `ordinal` by a share of what it became (its owner published it).
    pub fn publish_at(&mut self, ordinal: usize, share: &Share) {
        if let Some(entry) = self.entries.get_mut(ordinal) {
            *entry = Entry {
                page: share.page(),
                tag: share.tag(),
                shared: true,
            };
            self.checked.entries = self.checked.entries.min(ordinal);
        }
    }

    /// Records that the tokens up to `tokens` are written.
    pub fn advance_to(&mut self, tokens: u32) {
        self.tokens = tokens;
    }

    /// Tokens written so far.
    pub const fn tokens(&self) -> u32 {
        self.tokens
    }

    /// Token slots that the pages of the table have.
    pub fn capacity(&self) -> u32 {
        self.entries.len() as u32 * u32::from(self.page_size)
    }

    /// Whose table it is.
    pub const fn owner(&self) -> Owner {
        self.owner
    }

    /// The pages, in order. Only names: what may be attended to is [`Verified`].
    pub fn pages(&self) -> impl ExactSizeIterator<Item = PageId> + '_ {
        self.entries.iter().map(|entry| entry.page)
    }
}

/// One sequence's part of a step: write `new` tokens behind those of the table, reading all.
#[derive(Debug)]
pub struct Step<'t> {
    /// The sequence's table.
    pub table: &'t mut BlockTable,
    /// Tokens that this step writes.
    pub new: u32,
}

/// Block tables that were checked against the ledger. While it lives the pool cannot change, so
/// what was true at the check is true in the step.
#[derive(Debug)]
pub struct Verified<'p> {
    sequences: Vec<VerifiedSequence<'p>>,
    page_size: u16,
    pool: PhantomData<&'p Pool>,
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

    /// The pages that hold positions `0..start + new`, in order.
    pub fn pages(&self) -> impl ExactSizeIterator<Item = PageId> + '_ {
        let n = (self.start() + self.new_tokens()).div_ceil(self.table.page_size as usize);
        self.table.entries[..n].iter().map(|entry| entry.page)
    }
}

impl Pool {
    /// Checks the tables of a step. The work is what changed since each table was last checked:
    /// new entries, the pages that the step writes, and everything if the ledger touched a page of
    /// that owner in between.
    pub fn verify<'p>(&'p self, steps: Vec<Step<'p>>) -> Result<Verified<'p>, VerifyFault> {
        self.verify_from(steps, |table, stamp| {
            if table.checked.stamp == stamp {
                table.checked.entries
            } else {
                0
            }
        })
    }

    /// The same, trusting no earlier check: for tests and a low-rate audit.
    pub fn verify_in_full<'p>(&'p self, steps: Vec<Step<'p>>) -> Result<Verified<'p>, VerifyFault> {
        self.verify_from(steps, |_, _| 0)
    }

    fn verify_from<'p>(
        &'p self,
        steps: Vec<Step<'p>>,
        known_good: impl Fn(&BlockTable, u64) -> usize,
    ) -> Result<Verified<'p>, VerifyFault> {
        let mut sequences = Vec::with_capacity(steps.len());
        let mut written = Vec::new();
        for Step { table, new } in steps {
            let stamp = self
                .stamps
                .owners
                .get(&table.owner.id)
                .copied()
                .unwrap_or(0);
            let from = known_good(table, stamp);
            self.check_table(table, new, from)?;
            table.checked = Checked {
                entries: table.entries.len(),
                tokens: table.tokens,
                stamp,
            };
            let table: &'p BlockTable = table;
            let size = u32::from(table.page_size);
            let first = (table.tokens / size) as usize;
            let end = (table.tokens + new).div_ceil(size) as usize;
            if new > 0 {
                written.extend((first..end).map(|o| (table.entries[o].page, table.owner.id, o)));
            }
            sequences.push(VerifiedSequence { table, new });
        }
        written.sort_unstable();
        if let Some(twice) = written.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            let (page, owner, ordinal) = twice[1];
            let kind = "two sequences of one step write this page (H-3)";
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
            pool: PhantomData,
        })
    }

    /// Entries from `from` on, and those that the step writes whether checked before or not.
    fn check_table(&self, table: &BlockTable, new: u32, from: usize) -> Result<(), VerifyFault> {
        let fault = |ordinal: usize, kind| VerifyFault {
            owner: table.owner.id,
            ordinal,
            page: table.entries.get(ordinal).map(|entry| entry.page),
            kind,
        };
        let size = u32::from(table.page_size);
        if table.page_size != self.ledger.page_size {
            return Err(fault(
                0,
                "the table counts in another page size than the pool",
            ));
        }
        let end = match table.tokens.checked_add(new) {
            Some(end) if end <= table.capacity() => end,
            _ => {
                return Err(fault(
                    table.entries.len(),
                    "more tokens than the table has pages for",
                ));
            }
        };
        let first_written = (table.tokens / size) as usize;
        for ordinal in from.min(first_written)..table.entries.len() {
            let start = ordinal as u32 * size;
            let needed = table.tokens.saturating_sub(start).min(size) as u16;
            self.check_entry(table, ordinal, needed)
                .map_err(|kind| fault(ordinal, kind))?;
            let writes = new > 0 && start < end && start + size > table.tokens;
            if writes {
                self.check_write(table, ordinal)
                    .map_err(|kind| fault(ordinal, kind))?;
            }
        }
        Ok(())
    }

    fn check_entry(
        &self,
        table: &BlockTable,
        ordinal: usize,
        needed: u16,
    ) -> Result<(), &'static str> {
        let entry = table.entries[ordinal];
        let index = entry.page.index();
        let Some(record) = self.ledger.records.get(index) else {
            return Err("no such page");
        };
        if self.ledger.tags[index] != Some(entry.tag) {
            return Err("the page has been granted anew: its tag is another");
        }
        let Some(owner) = record.owner else {
            return Err("the page has no owner");
        };
        if entry.shared {
            if record.state != State::Cached {
                return Err("a shared page that is not cached");
            }
            if owner.domain != table.owner.domain {
                return Err("a cached page of another isolation domain (H-13)");
            }
            if record.shares == 0 {
                return Err("a shared page that nobody pins");
            }
        } else {
            if record.state != State::Sealed {
                return Err("an owned page that is not sealed");
            }
            if (owner.id, owner.domain) != (table.owner.id, table.owner.domain) {
                return Err("a page of another owner");
            }
            if owner.lane != 0 && owner.lane != table.owner.lane {
                return Err("a page of another choice of the same request");
            }
        }
        let seal = self.ledger.seals[index];
        if seal.ordinal as usize != ordinal {
            return Err("the page is sealed for another place in the sequence");
        }
        if seal.filled < needed {
            return Err("the page has fewer filled slots than the table reads (H-2)");
        }
        Ok(())
    }

    fn check_write(&self, table: &BlockTable, ordinal: usize) -> Result<(), &'static str> {
        let entry = table.entries[ordinal];
        let record = &self.ledger.records[entry.page.index()];
        if entry.shared {
            return Err("a step would write a shared page");
        }
        if record.owner.map(|owner| owner.lane) != Some(table.owner.lane) {
            return Err("a step would write a page of another lane");
        }
        if !record.open.is_empty() {
            return Err("a remote writer of this page has not ended (H-3)");
        }
        Ok(())
    }
}
