//! What the ledger decides, each decision on its own, so that a laboratory can swap exactly one.
//!
//! [`Pool`](crate::Pool) takes its decisions as a type parameter. The product uses [`Sound`], whose
//! methods are the provided ones below, and no feature, setting or flag can change that: another
//! type would have to be named in the source. A laboratory implements [`Decisions`] for a type of
//! its own with one method overridden, and shows what then goes wrong in the code that ships.

use crate::{Domain, PageId, Reason, TableFault, Tag};
use std::fmt::Debug;
use std::hash::Hash;

/// What somebody may still do to a page.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Pending {
    /// Local operations that read it: steps, copies, sends.
    pub reads: u32,
    /// Local operations that write it.
    pub writes: u32,
    /// Remote writers that have neither certified their end nor been fenced.
    pub writers: usize,
}

/// The decisions of a ledger. Every provided method is the sound one; the arguments are plain data,
/// the value itself holds none in the product.
pub trait Decisions: Copy + Ord + Hash + Debug + Send + Sync + 'static {
    /// The tag of the next grant, which is of `page`; `last` is the tag given before. None: no
    /// grants any more. Never one that was given before, or a late message about an earlier grant
    /// would fit the present one (H-8).
    fn next_tag(self, last: u64, page: PageId) -> Option<u64> {
        let _ = page;
        last.checked_add(1)
    }

    /// What a page whose owner has ended waits for in quarantine; none: it is free now. Law: no
    /// page is freed while someone may still write or read it (H-3).
    fn waits_for(self, pending: Pending) -> Option<Reason> {
        if pending.reads > 0 || pending.writes > 0 {
            Some(Reason::Operations)
        } else if pending.writers > 0 {
            Some(Reason::Writers)
        } else {
            None
        }
    }

    /// Whether a page's content can be called final while this is pending (H-3).
    fn may_seal(self, pending: Pending) -> bool {
        pending.writes == 0 && pending.writers == 0
    }

    /// Whether a cached page may be evicted: nobody reads it, and the index holds the only share.
    fn may_evict(self, reads: u32, shares: u32) -> bool {
        reads == 0 && shares == 1
    }

    /// Whether a name of a grant, kept since some earlier moment, names the page's present grant.
    fn same_grant(self, named: Tag, present: Option<Tag>) -> bool {
        present == Some(named)
    }

    /// Whether a page of domain `of` may be shared with `reader` (H-13).
    fn may_share(self, of: Domain, reader: Domain) -> bool {
        of == reader
    }

    /// Whether the check before a step looks again at an entry of a table: all of them that are new,
    /// or that may have changed since they were looked at last. [`Pool::verify_in_full`] looks at all
    /// and does not ask.
    ///
    /// [`Pool::verify_in_full`]: crate::Pool::verify_in_full
    fn looks_again(self, new: bool) -> bool {
        let _ = new;
        true
    }

    /// The verdict over one entry of a block table before a step uses it: what the check found.
    fn entry_verdict(self, found: Result<(), TableFault>) -> Result<(), TableFault> {
        found
    }
}

/// The decisions of the product.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Sound;

impl Decisions for Sound {}
