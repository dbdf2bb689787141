//! Which pool a thing came from. Not part of anybody's state: a checker compares worlds by what
//! they hold, and a fork of a pool is the same pool in another world.

use std::sync::atomic::{AtomicU64, Ordering};

/// Pools made so far in this process. Only ever compared for equality, never with anything that
/// depends on it in an order, so two runs behave alike whatever number a pool gets.
static POOLS: AtomicU64 = AtomicU64::new(0);

/// Identity of one pool among all pools of this process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolId(u64);

impl PoolId {
    pub(crate) fn mint() -> Self {
        Self(POOLS.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) const fn is(self, other: PoolId) -> bool {
        self.0 == other.0
    }
}

/// Which pool of this process it is: for what belongs to one pool and is kept outside of it, such
/// as the payload of its pages.
#[derive(Clone, Copy, Debug)]
pub struct PoolIdentity(pub(crate) PoolId);

impl PoolIdentity {
    /// Whether it is the same pool.
    pub const fn is(self, other: Self) -> bool {
        self.0.is(other.0)
    }
}

/// Makes a type invisible to the comparison of the values that contain it.
macro_rules! not_compared {
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
pub(crate) use not_compared;

not_compared!(PoolId);

impl serde::Serialize for PoolId {
    /// Nothing of it: which pool it is says no more about a world than about its order.
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_unit_struct("PoolId")
    }
}
