//! The ledger of an engine's blocks, keyed by the engine's own block numbers.
//!
//! The engine decides who gets which block; the ledger says under which tag, and notices what the
//! engine's allocator does not: a block handed out while somebody may still read or write it, a
//! table that names a block under an older tag, a block of another isolation domain. Tags, states,
//! pending operations and quarantine are [`pages::Pool`]'s; nothing here decides any of that again.

use pages::{Config, Counts, Domain, Grant, OpId, Owner, OwnerId, PageId, Pool, Seal, State};
use std::collections::{BTreeMap, BTreeSet};

/// Names an operation in flight: somebody reads or writes blocks until it is ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HoldId(pub u64);

/// What the engine asked for cannot be: nothing was changed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LedgerFault {
    /// Blocks were handed out again while somebody may still read or write them, or are in
    /// quarantine. Law: no page is freed while someone may still write or read it.
    #[error("the engine reuses blocks that are held or in quarantine: {0:?}")]
    Held(Vec<u32>),
    /// The engine named a block twice in one allocation.
    #[error("the engine takes block {0} twice at once")]
    Twice(u32),
    /// No such block, or never handed out.
    #[error("block {0} does not exist or was never handed out")]
    NoBlock(u32),
    /// A reader of one isolation domain was given a block of another (H-13).
    #[error("block {block} belongs to another isolation domain than its reader (H-13)")]
    ForeignDomain {
        /// The block.
        block: u32,
    },
    /// A table names a block under a tag that is not its present one.
    #[error("block {block} stands under tag {present}, the table names tag {named}")]
    Stale {
        /// The block.
        block: u32,
        /// The tag that the table names.
        named: u64,
        /// The present tag, 0 if there is none.
        present: u64,
    },
    /// No such operation.
    #[error("operation {0} is not in flight")]
    NoHold(u64),
}

/// Tags, holds and domains of all blocks of one engine.
#[derive(Debug)]
pub struct Ledger {
    pool: Pool,
    grants: Vec<Option<Grant>>,
    tags: Vec<u64>,
    domains: Vec<u64>,
    holds: BTreeMap<HoldId, OpId>,
    owners: u64,
}

impl Ledger {
    /// A ledger of `blocks` free blocks with `block_size` token slots each.
    pub fn new(blocks: u32, block_size: u16) -> Self {
        let (pages, page_size) = (blocks, block_size.max(1));
        let scrub = false;
        // The mint proves ends of remote writers; the engines' writers are operations here.
        let (pool, _mint) = Pool::new(Config {
            pages,
            page_size,
            scrub,
        });
        Self {
            pool,
            grants: (0..blocks).map(|_| None).collect(),
            tags: vec![0; blocks as usize],
            domains: vec![0; blocks as usize],
            holds: BTreeMap::new(),
            owners: 0,
        }
    }

    /// The present tag of every block, 0 where there is none: what a tag tensor mirrors.
    pub fn tags(&self) -> &[u64] {
        &self.tags
    }

    /// The engine hands these blocks out for new content of one isolation domain: whatever was in
    /// them is dead, each gets a tag never used before. In the order of `blocks`.
    pub fn allocate(&mut self, domain: u64, blocks: &[u32]) -> Result<Vec<u64>, LedgerFault> {
        let mut named = BTreeSet::new();
        let mut held = Vec::new();
        for block in blocks {
            if !named.insert(*block) {
                return Err(LedgerFault::Twice(*block));
            }
            if !self.is_reusable(*block)? {
                held.push(*block);
            }
        }
        if !held.is_empty() {
            return Err(LedgerFault::Held(held));
        }
        self.release(blocks)?;
        self.owners += 1;
        let owner = Owner {
            id: OwnerId::new(self.owners),
            domain: Domain::new(domain),
            lane: 0,
        };
        let pages: Vec<_> = blocks.iter().copied().map(PageId::new).collect();
        let grants = self.pool.reserve_these(owner, &pages);
        let grants = grants.map_err(|_| LedgerFault::Held(blocks.to_vec()))?;
        for grant in grants {
            let block = grant.page().index();
            self.tags[block] = grant.tag().stated().0;
            self.domains[block] = domain;
            self.grants[block] = Some(grant);
        }
        Ok(blocks.iter().map(|b| self.tags[*b as usize]).collect())
    }

    /// Their content is dead and they have no tag any more. A block that is held goes to quarantine
    /// until its last operation has ended.
    pub fn release(&mut self, blocks: &[u32]) -> Result<(), LedgerFault> {
        for block in blocks {
            self.state(*block)?;
            let index = *block as usize;
            if let Some(grant) = self.grants[index].take() {
                if let Err((grant, _)) = self.pool.release(grant) {
                    // Not ours to release: the pool keeps it out of use, and counts it.
                    drop(grant);
                }
                self.tags[index] = 0;
            }
        }
        Ok(())
    }

    /// For good: nobody may have these blocks again in this life. For content that failed its check
    /// while its writer cannot be proven gone.
    pub fn quarantine(&mut self, blocks: &[u32]) -> Result<(), LedgerFault> {
        for block in blocks {
            self.state(*block)?;
            let index = *block as usize;
            if self.grants[index].is_none() {
                let owner = Owner {
                    id: OwnerId::new(0),
                    domain: Domain::new(0),
                    lane: 0,
                };
                let page = PageId::new(*block);
                let taken = self.pool.reserve_these(owner, &[page]);
                self.grants[index] = taken.ok().and_then(|mut grants| grants.pop());
            }
            // A grant that is dropped keeps its page out of use: that is what is wanted here.
            drop(self.grants[index].take());
            self.tags[index] = 0;
        }
        Ok(())
    }

    /// Somebody begins to read or write these blocks: a transfer, a copy, a step.
    pub fn hold(&mut self, reads: &[u32], writes: &[u32]) -> Result<HoldId, LedgerFault> {
        for block in reads.iter().chain(writes) {
            if self.state(*block)? == State::Free {
                return Err(LedgerFault::NoBlock(*block));
            }
        }
        let pages =
            |blocks: &[u32]| -> Vec<PageId> { blocks.iter().copied().map(PageId::new).collect() };
        let op = self.pool.begin(&pages(reads), &pages(writes));
        let all = || reads.iter().chain(writes).copied().collect();
        let op = op.map_err(|_| LedgerFault::Held(all()))?;
        let id = HoldId(op.value());
        self.holds.insert(id, op);
        Ok(id)
    }

    /// It has ended, provably: blocks that were only waiting for it can be handed out again.
    pub fn end_hold(&mut self, id: HoldId) -> Result<(), LedgerFault> {
        let op = self.holds.remove(&id).ok_or(LedgerFault::NoHold(id.0))?;
        self.pool.end(op).map_err(|_| LedgerFault::NoHold(id.0))
    }

    /// Operations in flight.
    pub fn holds(&self) -> usize {
        self.holds.len()
    }

    /// What is in a block: its place in the sequence, how far it is filled.
    pub fn seal(&mut self, block: u32, ordinal: u32, filled: u16) -> Result<(), LedgerFault> {
        let grant = self.grants.get(block as usize).and_then(Option::as_ref);
        let grant = grant.ok_or(LedgerFault::NoBlock(block))?;
        let checksum = None;
        let seal = Seal {
            ordinal,
            filled,
            checksum,
        };
        let sealed = self.pool.seal(grant, seal);
        sealed.map_err(|_| LedgerFault::Held(vec![block]))
    }

    /// Whether a table may be read in `domain`: every block under the tag that the table names, and
    /// of that domain (H-13). The first that is not is named.
    pub fn check(&self, domain: u64, blocks: &[u32], tags: &[u64]) -> Result<(), LedgerFault> {
        for (block, named) in blocks.iter().copied().zip(tags.iter().copied()) {
            let present = self.tags.get(block as usize).copied();
            let present = present.ok_or(LedgerFault::NoBlock(block))?;
            if present != named || present == 0 {
                return Err(LedgerFault::Stale {
                    block,
                    named,
                    present,
                });
            }
            if self.domains[block as usize] != domain {
                return Err(LedgerFault::ForeignDomain { block });
            }
        }
        Ok(())
    }

    /// Blocks in every state. Their sum is the pool, always (H-10).
    pub fn counts(&mut self) -> Counts {
        self.pool.counts()
    }

    fn state(&mut self, block: u32) -> Result<State, LedgerFault> {
        let holder = self.pool.holder(PageId::new(block));
        Ok(holder.map_err(|_| LedgerFault::NoBlock(block))?.state)
    }

    fn is_reusable(&mut self, block: u32) -> Result<bool, LedgerFault> {
        let holder = self.pool.holder(PageId::new(block));
        let holder = holder.map_err(|_| LedgerFault::NoBlock(block))?;
        let quarantined = matches!(holder.state, State::Quarantined(_));
        Ok(!quarantined && holder.reads == 0 && holder.writes == 0)
    }
}
