//! Cached pages: immutable, shared by reference count inside one isolation domain (H-13).

use crate::pool::busy;
use crate::{Decisions, Domain, Grant, Misuse, Needs, Pool, Share, State};

impl<J: Decisions> Pool<J> {
    /// Gives up exclusive ownership of a sealed, full page: from now on it is immutable and shared
    /// inside its domain. The publisher goes on reading it through the share it gets.
    pub fn publish(&mut self, grant: Grant) -> Result<Share, (Grant, Misuse)> {
        if let Err(misuse) = self.may_publish(&grant) {
            return Err((grant, misuse));
        }
        let (page, tag) = (grant.page(), grant.tag());
        self.give_up(page, tag);
        if let Some(owner) = self.ledger.records[page.index()].owner {
            self.changes.cached(owner.domain);
        }
        self.ledger.set_state(page, State::Cached);
        self.ledger.records[page.index()].shares = 1;
        grant.consume();
        Ok(Share::new(page, tag, &self.bin))
    }

    fn may_publish(&self, grant: &Grant) -> Result<(), Misuse> {
        let record = self.own(grant, Needs::Sealed, |state| state == State::Sealed)?;
        if !self.ledger.decisions.may_seal(record.pending()) {
            return Err(busy(grant.page(), record));
        }
        let filled = self.ledger.seals[grant.page().index()].filled;
        let page_size = self.ledger.page_size;
        if filled != page_size {
            let page = grant.page();
            return Err(Misuse::BadFill {
                page,
                filled,
                page_size,
            });
        }
        Ok(())
    }

    /// One more reader of a cached page, of the same domain (H-13).
    pub fn share(&mut self, of: &Share, domain: Domain) -> Result<Share, Misuse> {
        let page = of.page();
        let shares = self.shares_of(of)?;
        let record = &mut self.ledger.records[page.index()];
        match record.owner {
            Some(owner) if self.ledger.decisions.may_share(owner.domain, domain) => {}
            owner => {
                return Err(Misuse::ForeignDomain {
                    page,
                    owner: owner.map_or(domain, |owner| owner.domain),
                    asked: domain,
                });
            }
        }
        record.shares = shares.checked_add(1).ok_or(busy(page, record))?;
        Ok(Share::new(page, of.tag(), &self.bin))
    }

    /// Gives a reference back. The page stays cached until the last share is evicted; the last one
    /// is refused here, for without it nobody could ever evict the page.
    pub fn unshare(&mut self, share: Share) -> Result<(), (Share, Misuse)> {
        match self.shares_of(&share) {
            Ok(0 | 1) => {
                let misuse = Misuse::LastShare(share.page());
                Err((share, misuse))
            }
            Ok(shares) => {
                self.ledger.records[share.page().index()].shares = shares - 1;
                share.consume();
                Ok(())
            }
            Err(misuse) => Err((share, misuse)),
        }
    }

    /// Gives back the last reference and frees the page; refused while anybody else reads it.
    pub fn evict(&mut self, share: Share) -> Result<(), (Share, Misuse)> {
        let (page, tag) = (share.page(), share.tag());
        if let Err(misuse) = self.shares_of(&share) {
            return Err((share, misuse));
        }
        let decisions = self.ledger.decisions;
        let record = &mut self.ledger.records[page.index()];
        if !decisions.may_evict(record.reads, record.shares) {
            let misuse = busy(page, record);
            return Err((share, misuse));
        }
        record.shares = 0;
        if let Some(owner) = record.owner {
            let ordinal = self.ledger.seals[page.index()].ordinal;
            self.changes.evicted(owner.domain, tag, ordinal);
        }
        self.ledger.end_ownership(page);
        share.consume();
        Ok(())
    }

    /// Whether nobody but the holder of this share uses the page.
    pub fn evictable(&self, share: &Share) -> bool {
        self.shares_of(share).is_ok_and(|shares| {
            let reads = self.ledger.records[share.page().index()].reads;
            self.ledger.decisions.may_evict(reads, shares)
        })
    }

    /// How many references the page of this share has, this one included.
    fn shares_of(&self, share: &Share) -> Result<u32, Misuse> {
        let page = share.page();
        if !share.belongs_to(&self.bin) {
            return Err(Misuse::ForeignHandle(page));
        }
        let record = self.ledger.tagged(page, share.tag())?;
        if record.state != State::Cached {
            return Err(Misuse::WrongState {
                page,
                expected: Needs::Cached,
                got: record.state,
            });
        }
        Ok(record.shares)
    }
}
