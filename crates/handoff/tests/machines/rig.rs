//! What the tests have in common: names of lives, requests, and what a machine said.

use handoff::{AttemptId, Capacity, Hello, Role, Spec};
use pages::{Domain, Epoch};

/// Token slots of a page.
pub const PAGE: u16 = 4;
pub const CONTEXT: u32 = 64;
/// Slots of every landing arena.
pub const SLOTS: u32 = 16;

/// Lives.
pub const GATEWAY: u128 = 1;
pub const PREFILL: u128 = 2;
pub const NEIGHBOUR: u128 = 22;
pub const DECODE: u128 = 3;

pub fn hello(life: u128, role: Role) -> Hello {
    let capacity = Capacity {
        role,
        pages: 64,
        page_size: PAGE,
        context: CONTEXT,
    };
    Hello {
        epoch: Epoch::new(life),
        role,
        model: [1; 32],
        layout: [2; 32],
        capacity: (role != Role::Gateway).then_some(capacity),
        ranks: 1,
    }
}

/// A request of `tokens` prompt tokens, all equal to `marker`, without the prefix cache.
pub fn spec(marker: u32, tokens: usize, max_new: u32) -> Spec {
    Spec::new(Domain::new(7), vec![marker; tokens], max_new)
}

pub fn attempt(n: u64) -> AttemptId {
    AttemptId {
        epoch: Epoch::new(GATEWAY),
        n,
    }
}

/// The checksum that the tests state for the page at `ordinal`.
pub fn checksum(ordinal: u32) -> u32 {
    100 + ordinal
}
