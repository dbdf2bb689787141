//! Proof that a writer can write no more (law: no page is freed while someone may still write it).

use crate::{OwnerId, WriterLife};

/// What a [`WriterGone`] speaks about.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Scope {
    /// The writer's own certificate: nothing of this owner is pending any more.
    Owner(OwnerId),
    /// A fence: nothing of this whole life can land any more.
    Life,
}

/// Made by two events only: the writer's certificate (`Closed`) for one owner, or a fence for one
/// life of a writer. It has no public constructor, cannot be cloned, and whoever releases what the
/// writer could write must consume one. There is no `release_anyway`.
#[derive(PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[must_use = "a proof does nothing until something consumes it"]
pub struct WriterGone {
    writer: WriterLife,
    scope: Scope,
}

impl WriterGone {
    /// Whose writes are over.
    pub const fn writer(&self) -> WriterLife {
        self.writer
    }

    /// For what.
    pub const fn scope(&self) -> Scope {
        self.scope
    }
}

/// The capability to make [`WriterGone`]. [`crate::Pool::new`] hands out the only one; it is given
/// to the handoff core (for certificates), which lends a second one to the fabric (for fences).
/// A crate that was given none cannot make a proof.
#[derive(PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FenceMint(());

impl FenceMint {
    pub(crate) const fn new() -> Self {
        Self(())
    }

    /// The writer has certified for this owner that all its writes have completed successfully.
    pub const fn closed(&self, writer: WriterLife, owner: OwnerId) -> WriterGone {
        WriterGone {
            writer,
            scope: Scope::Owner(owner),
        }
    }

    /// A fence against this life has been carried out.
    pub const fn fenced(&self, writer: WriterLife) -> WriterGone {
        WriterGone {
            writer,
            scope: Scope::Life,
        }
    }

    /// One more capability, for the fabric of the same worker.
    #[must_use]
    pub const fn lend(&self) -> FenceMint {
        FenceMint(())
    }
}
