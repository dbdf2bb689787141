//! Names of things. Each is minted by the owner of the thing named (law: identity is ours).

use crate::identity::PoolId;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::num::NonZeroU64;

/// Index of a page in one pool. Meaningless in any other pool.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct PageId(u32);

impl PageId {
    /// Names the page at `index`; whether such a page exists is the pool's to say.
    pub const fn new(index: u32) -> Self {
        Self(index)
    }

    /// Position in the pool, from 0.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Identity of one grant: never zero, never repeated in the life of its pool, never derived from
/// anything a client sends. Only a [`crate::Pool`] mints one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
pub struct Tag(pub(crate) NonZeroU64);

impl Tag {
    /// The tag as it is said to a peer, who can only repeat it.
    pub const fn stated(self) -> StatedTag {
        StatedTag(self.0.get())
    }
}

/// What somebody *says* a tag is: data from a peer, worth nothing until it equals a [`Tag`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct StatedTag(pub u64);

impl PartialEq<Tag> for StatedTag {
    fn eq(&self, tag: &Tag) -> bool {
        self.0 == tag.0.get()
    }
}

/// 128 random bits that name one life of one worker process. Compared for equality only; the order
/// exists so that ordered containers can hold it and means nothing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Epoch(u128);

impl Epoch {
    /// Takes 128 bits that the caller drew; the core itself has no randomness.
    pub const fn new(bits: u128) -> Self {
        Self(bits)
    }

    /// The bits.
    pub const fn bits(self) -> u128 {
        self.0
    }
}

impl fmt::Debug for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Epoch({self})")
    }
}

impl fmt::Display for Epoch {
    /// The first 48 bits: enough for a log line, short enough to read.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:012x}", self.0 >> 80)
    }
}

/// One owner of pages: a handoff or a running sequence. Never reused in a pool's life.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct OwnerId(u64);

impl OwnerId {
    /// Names an owner by the caller's counter.
    pub const fn new(n: u64) -> Self {
        Self(n)
    }

    /// The counter.
    pub const fn value(self) -> u64 {
        self.0
    }
}

/// An isolation domain (one tenant, or a part of one that it asked for). Pages are shared only inside one (H-13).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Domain(u64);

impl Domain {
    /// Names a domain; which tenant it stands for is the gateway's to know.
    pub const fn new(n: u64) -> Self {
        Self(n)
    }

    /// The number.
    pub const fn value(self) -> u64 {
        self.0
    }

    /// What the domains of one tenant have in common (it may divide its own further): the lower half.
    /// For counting what a tenant has running, and for nothing that decides who may touch a page.
    pub const fn tenant(self) -> u64 {
        self.0 & 0xFFFF_FFFF
    }
}

/// Who asks for pages, in which domain, and for which of its lanes. Lane 0 is what all choices of a
/// request share (the prompt); lane `k + 1` belongs to choice `k` alone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Owner {
    /// The handoff or sequence.
    pub id: OwnerId,
    /// Its isolation domain.
    pub domain: Domain,
    /// Its lane.
    pub lane: u16,
}

/// One life of one writer: a rank of a worker process. A restart is another life.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct WriterLife {
    /// The worker's epoch.
    pub epoch: Epoch,
    /// Rank inside the worker, from 0.
    pub rank: u16,
}

/// An operation in flight that reads or writes pages: a step, a copy, a send.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId {
    pub(crate) counter: u64,
    pub(crate) pool: PoolId,
}

impl OpId {
    /// The counter behind it, unique in the pool's life.
    pub const fn value(self) -> u64 {
        self.counter
    }
}

impl Serialize for OpId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        OpNo(self.counter).serialize(serializer)
    }
}

/// An operation as its own pool keeps it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename = "OpId")]
pub(crate) struct OpNo(pub u64);

/// The last tag that a pool gave.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
pub(crate) struct LastTag(pub u64);

/// The last operation that a pool began. 64 bits: at a billion operations a second they
/// last for five centuries.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
pub(crate) struct LastOp(pub u64);

impl fmt::Debug for OpId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OpId({})", self.counter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is said of a name elsewhere (in a message, a trace, the key of a cache) is the name.
    #[test]
    fn a_name_says_what_it_was_made_of() {
        let bits = 0x0123_4567_89ab_cdef_0011_2233_4455_6677;
        assert_eq!(Epoch::new(bits).bits(), bits);
        assert_eq!(Domain::new(9).value(), 9);
        assert_eq!(OwnerId::new(9).value(), 9);
        assert_eq!(PageId::new(9).index(), 9);
    }

    /// H-8: two names that differ in one bit are two names, however they are compared.
    #[test]
    fn every_bit_of_a_name_counts() {
        fn differ<T: Ord + std::hash::Hash + fmt::Debug>(one: T, other: T) {
            use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
            let hash = |of: &T| BuildHasherDefault::<DefaultHasher>::default().hash_one(of);
            assert_ne!(one, other);
            assert_ne!(one.cmp(&other), std::cmp::Ordering::Equal);
            assert_ne!(hash(&one), hash(&other), "{one:?} and {other:?}");
        }
        let (life, n) = (u128::MAX / 3, u64::MAX / 5);
        for bit in 0..128 {
            let (one, other) = (Epoch::new(life), Epoch::new(life ^ (1 << bit)));
            differ(one, other);
            let of = |epoch| WriterLife { epoch, rank: 3 };
            differ(of(one), of(other));
        }
        for bit in 0..64 {
            let other = n ^ (1 << bit);
            differ(OwnerId::new(n), OwnerId::new(other));
            differ(Domain::new(n), Domain::new(other));
            differ(StatedTag(n), StatedTag(other));
            let tag = |n| Tag(NonZeroU64::new(n).expect("not zero"));
            differ(tag(n), tag(other));
            assert!(StatedTag(n) == tag(n) && StatedTag(other) != tag(n));
        }
        for bit in 0..16 {
            let epoch = Epoch::new(life);
            let of = |rank| WriterLife { epoch, rank };
            differ(of(300), of(300 ^ (1 << bit)));
        }
    }
}
