//! The linear handles. Neither can be cloned; each knows its pool.

use crate::identity::PoolId;
use crate::{PageId, Tag};
use serde::ser::SerializeStruct;
use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Where handles report that they were dropped instead of given back. Shared by one pool and its
/// handles. Its address tells forks of a pool apart: no handle acts in another world than its own.
#[derive(Clone, Debug)]
pub(crate) struct Bin {
    reports: Arc<Mutex<Vec<Dropped>>>,
    pool: PoolId,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Dropped {
    Grant(PageId, Tag),
    Share,
}

impl Bin {
    pub(crate) fn new(pool: PoolId) -> Self {
        Self {
            reports: Arc::default(),
            pool,
        }
    }

    pub(crate) const fn pool(&self) -> PoolId {
        self.pool
    }

    pub(crate) fn take(&self) -> Vec<Dropped> {
        std::mem::take(&mut *self.lock())
    }

    /// Grants that were dropped and that the pool has not yet heard of.
    pub(crate) fn unheard(&self) -> BTreeSet<(PageId, Tag)> {
        let reports = self.lock();
        let grants = reports.iter().filter_map(|dropped| match *dropped {
            Dropped::Grant(page, tag) => Some((page, tag)),
            Dropped::Share => None,
        });
        grants.collect()
    }

    /// A thread that panicked while it reported has at worst left its report out, never half in.
    fn lock(&self) -> MutexGuard<'_, Vec<Dropped>> {
        self.reports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn same(&self, other: &Bin) -> bool {
        Arc::ptr_eq(&self.reports, &other.reports)
    }
}

macro_rules! linear_handle {
    ($(#[$doc:meta])* $name:ident, $dropped:expr) => {
        $(#[$doc])*
        #[derive(Debug)]
        #[must_use = "dropping it costs the page: give it back to its pool"]
        pub struct $name {
            page: PageId,
            tag: Tag,
            bin: Option<Bin>,
        }

        impl $name {
            pub(crate) fn new(page: PageId, tag: Tag, bin: &Bin) -> Self {
                Self { page, tag, bin: Some(bin.clone()) }
            }

            /// The page.
            pub const fn page(&self) -> PageId {
                self.page
            }

            /// The grant's identity.
            pub const fn tag(&self) -> Tag {
                self.tag
            }

            /// The pool it came from; `None` only after it was consumed.
            pub(crate) fn pool(&self) -> Option<PoolId> {
                self.bin.as_ref().map(Bin::pool)
            }

            pub(crate) fn belongs_to(&self, bin: &Bin) -> bool {
                self.bin.as_ref().is_some_and(|own| own.same(bin))
            }

            /// Ends the handle without a report: the pool has taken it back.
            pub(crate) fn consume(mut self) {
                self.bin = None;
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                if let Some(bin) = self.bin.take() {
                    bin.lock().push($dropped(self.page, self.tag));
                }
            }
        }

        // Compared as data, so that a checker can tell whole worlds apart.
        impl PartialEq for $name {
            fn eq(&self, other: &Self) -> bool {
                self.cmp(other) == Ordering::Equal
            }
        }
        impl Eq for $name {}
        impl PartialOrd for $name {
            fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
                Some(self.cmp(other))
            }
        }
        impl Ord for $name {
            fn cmp(&self, other: &Self) -> Ordering {
                (self.page, self.tag).cmp(&(other.page, other.tag))
            }
        }
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let mut fields = serializer.serialize_struct(stringify!($name), 2)?;
                fields.serialize_field("page", &self.page)?;
                fields.serialize_field("tag", &self.tag)?;
                fields.end()
            }
        }
        impl Hash for $name {
            fn hash<H: Hasher>(&self, state: &mut H) {
                (self.page, self.tag).hash(state);
            }
        }
    };
}

linear_handle! {
    /// Exclusive ownership of a page. Dropped without [`crate::Pool::release`] the page goes to
    /// quarantine for the rest of the pool's life and is counted.
    ///
    /// ```compile_fail,E0599
    /// fn twice(grant: pages::Grant) -> (pages::Grant, pages::Grant) {
    ///     (grant.clone(), grant)
    /// }
    /// ```
    Grant, Dropped::Grant
}

linear_handle! {
    /// A reader's reference to a cached page of its own domain. Dropped without
    /// [`crate::Pool::unshare`] the page can never be evicted, and that is counted.
    ///
    /// ```compile_fail,E0599
    /// fn twice(share: pages::Share) -> (pages::Share, pages::Share) {
    ///     (share.clone(), share)
    /// }
    /// ```
    Share, |_page, _tag| Dropped::Share
}
