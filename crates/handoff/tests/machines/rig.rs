//! What the tests have in common: names of lives, requests, and what a machine said.

use handoff::{AttemptId, Capacity, Conn, Hello, LinkId, Role, Spec};
use pages::Domain;
use std::sync::LazyLock;

/// Token slots of a page.
pub const PAGE: u16 = 4;
pub const CONTEXT: u32 = 64;
/// Slots of every landing arena.
pub const SLOTS: u32 = 16;

/// Lives, as numbers below 256 that [`Epoch`] makes lives of.
pub const GATEWAY: u128 = 1;
pub const PREFILL: u128 = 2;
pub const NEIGHBOUR: u128 = 22;
/// A connection of prefill's, as decode calls it.
pub fn link(conn: Conn) -> LinkId {
    let epoch = Epoch::new(PREFILL);
    LinkId { epoch, conn }
}

pub const DECODE: u128 = 3;

/// Makes lives of numbers, in every test: no two of them have one byte in common. In the runs of
/// `main::h8_a_life_is_all_of_its_bits` they differ in one byte alone, another one in each run.
pub struct Epoch;

impl Epoch {
    #[allow(clippy::new_ret_no_self)] // it stands for the type of that name
    pub fn new(life: u128) -> pages::Epoch {
        assert!(life < 256, "a life that does not fit one byte");
        pages::Epoch::new(life * *UNIT)
    }
}

/// Which byte lives differ in; in all if it is not said.
pub const BYTE_OF_LIVES: &str = "BYTE_OF_LIVES";

static UNIT: LazyLock<u128> = LazyLock::new(|| match std::env::var(BYTE_OF_LIVES) {
    Ok(byte) => 1 << (8 * byte.parse::<u32>().expect("a byte of a life")),
    Err(_) => u128::MAX / 255,
});

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
