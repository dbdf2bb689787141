//! Proof that a writer can write no more (law: no page is freed while someone may still write it).

use crate::identity::PoolId;
use crate::{OwnerId, WriterLife};
use serde::{Serialize, Serializer};
use std::fmt;

/// What a [`WriterGone`] speaks about.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ProofScope {
    /// The writer's own certificate: nothing of this owner is pending any more.
    Owner(OwnerId),
    /// A fence: nothing of this whole life can land any more.
    Life,
}

/// Made by two events only: the writer's certificate (`Closed`) for one owner, or a fence for one
/// life of a writer. It has no public constructor, cannot be cloned, and whoever releases what the
/// writer could write must consume one. There is no `release_anyway`. It speaks about the memory of
/// one pool: another pool refuses it, and counts that.
///
/// ```compile_fail
/// fn forged(writer: pages::WriterLife) -> pages::WriterGone {
///     pages::WriterGone { writer, scope: pages::ProofScope::Life }
/// }
/// ```
/// ```compile_fail,E0599
/// fn twice(proof: pages::WriterGone) -> (pages::WriterGone, pages::WriterGone) {
///     (proof.clone(), proof)
/// }
/// ```
#[derive(PartialEq, Eq, PartialOrd, Ord, Hash)]
#[must_use = "a proof does nothing until something consumes it"]
pub struct WriterGone {
    writer: WriterLife,
    scope: ProofScope,
    pool: PoolId,
}

impl WriterGone {
    /// Whose writes are over.
    pub const fn writer(&self) -> WriterLife {
        self.writer
    }

    /// For what.
    pub const fn scope(&self) -> ProofScope {
        self.scope
    }

    pub(crate) const fn pool(&self) -> PoolId {
        self.pool
    }

    pub(crate) const fn repeat(&self) -> WriterGone {
        WriterGone { ..*self }
    }
}

impl fmt::Debug for WriterGone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WriterGone({:?}, {:?})", self.writer, self.scope)
    }
}

/// A trace says what it was about. There is no way back.
impl Serialize for WriterGone {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.writer.serialize(serializer)
    }
}

/// The capability to make [`WriterGone`] for the memory of one pool. [`crate::Pool::new`] hands out
/// the only one; it is given to the handoff core (for certificates), which lends a second one to
/// the fabric (for fences). A crate that was given none cannot make a proof.
///
/// ```compile_fail,E0308
/// fn more(mint: &pages::FenceMint) -> pages::FenceMint {
///     mint.clone() // lending it on is a decision that should be read as one: `lend`
/// }
/// ```
#[derive(PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
pub struct FenceMint(PoolId);

impl FenceMint {
    pub(crate) const fn new(pool: PoolId) -> Self {
        Self(pool)
    }

    pub(crate) const fn pool(&self) -> PoolId {
        self.0
    }

    /// The writer has certified for this owner that all its writes have completed successfully.
    pub const fn closed(&self, writer: WriterLife, owner: OwnerId) -> WriterGone {
        WriterGone {
            writer,
            scope: ProofScope::Owner(owner),
            pool: self.0,
        }
    }

    /// A fence against this life has been carried out.
    pub const fn fenced(&self, writer: WriterLife) -> WriterGone {
        WriterGone {
            writer,
            scope: ProofScope::Life,
            pool: self.0,
        }
    }

    /// One more capability, for the fabric of the same worker.
    #[must_use]
    pub const fn lend(&self) -> FenceMint {
        FenceMint(self.0)
    }
}

impl fmt::Debug for FenceMint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FenceMint")
    }
}
