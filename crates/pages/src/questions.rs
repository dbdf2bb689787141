//! What can be asked of a pool at any time: how many pages are in every state, and who holds what.

use crate::grant::Bin;
use crate::id::{LastOp, LastTag};
use crate::{
    Counts, Decisions, FenceMint, Grant, Holder, Misuse, Needs, PageId, Pool, PoolIdentity, Seal,
    Share, State, WriterGone,
};

impl<J: Decisions> Pool<J> {
    /// Token slots a page.
    pub fn page_size(&self) -> u16 {
        self.ledger.page_size
    }

    /// Which pool it is.
    pub fn identity(&self) -> PoolIdentity {
        PoolIdentity(self.bin.pool())
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

    /// The same, counted page by page instead of kept: for tests and a low-rate audit, which
    /// compare the two.
    pub fn recount(&mut self) -> Counts {
        self.sweep();
        let mut counts = Counts::default();
        for record in &self.ledger.records {
            *counts.slot(record.state) += 1;
        }
        counts
    }

    /// Grants and shares that were dropped instead of given back, since the start.
    pub fn dropped(&mut self) -> (u64, u64) {
        self.sweep();
        (self.ledger.dropped_grants, self.ledger.dropped_shares)
    }

    /// Proofs about other pools that [`Pool::writer_gone`] has refused, since the start.
    pub fn refused_proofs(&self) -> u64 {
        self.ledger.refused_proofs
    }

    /// Operations in flight.
    pub fn operations(&self) -> usize {
        self.ledger.ops.len()
    }

    /// Everything known about a page.
    pub fn holder(&mut self, page: PageId) -> Result<Holder, Misuse> {
        self.sweep();
        let record = self.ledger.record(page)?;
        Ok(Holder {
            page,
            state: record.state,
            owner: record.owner,
            tag: self.ledger.tags[page.index()],
            seal: self.ledger.seals[page.index()],
            reads: record.reads,
            writes: record.writes,
            shares: record.shares,
            open: record.open.iter().copied().collect(),
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
        self.own(grant, Needs::Owned, |state| state != State::Free)?;
        Ok(self.ledger.seals[grant.page().index()])
    }
}

/// For checkers only: a whole world can be copied, its handles with it. Nothing in the product
/// calls these (a test of the workspace looks). A fork is the same pool in another world: its
/// handles act in it alone; operations, proofs and block tables are data and are simply copied, and
/// must not be carried from one world into another.
#[doc(hidden)]
impl<J: Decisions> Pool<J> {
    pub fn fork_for_checker(&mut self) -> Self {
        self.sweep();
        Pool {
            ledger: self.ledger.clone(),
            bin: Bin::new(self.bin.pool()),
            changes: self.changes.clone(),
        }
    }

    /// Tags and operations are numbered from behind this number on.
    pub fn begin_at_for_checker(&mut self, number: u64) {
        (self.ledger.last_tag, self.ledger.last_op) = (LastTag(number), LastOp(number));
    }

    pub fn fork_grant_for_checker(&self, grant: &Grant) -> Grant {
        Grant::new(grant.page(), grant.tag(), &self.bin)
    }

    pub fn fork_share_for_checker(&self, share: &Share) -> Share {
        Share::new(share.page(), share.tag(), &self.bin)
    }

    /// # Panics
    /// If the capability is another pool's.
    pub fn fork_mint_for_checker(&self, mint: &FenceMint) -> FenceMint {
        assert!(mint.pool().is(self.bin.pool()), "the mint of another pool");
        mint.lend()
    }

    /// # Panics
    /// If the proof is about another pool.
    pub fn fork_proof_for_checker(&self, proof: &WriterGone) -> WriterGone {
        assert!(self.recognises(proof), "a proof about another pool");
        proof.repeat()
    }
}
