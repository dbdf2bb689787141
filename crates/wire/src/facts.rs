//! What a worker says about itself. Its role and capacity stand in its Hello.

use serde::{Deserialize, Serialize};

/// A snapshot, taken between two steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// Bits of the epoch: which life speaks.
    pub epoch: u128,
    /// No new attempts are taken.
    pub draining: bool,
    /// Workers of the other role with which it can hand over now.
    pub peers: u32,
    /// Pages by state.
    pub pages: Pages,
    /// A landing arena that was asked for could not be made, and there is none: it is tried again.
    pub no_arena: bool,
    /// What is held back, by reason.
    pub quarantine: Quarantine,
    /// Since the start of this life.
    pub counters: Counters,
}

/// Pages of one pool by state; the sum is the pool (H-10).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pages {
    /// No writer, no reader.
    pub free: u64,
    /// Taken, ticket not yet sent.
    pub reserved: u64,
    /// Somebody may write them.
    pub granted: u64,
    /// In use by a running sequence.
    pub sealed: u64,
    /// Kept for a later prompt with the same beginning.
    pub cached: u64,
    /// The owner ended, an access may be pending.
    pub quarantined: u64,
}

/// Pages that may not be used yet, or never again, and memory beside the pool that is not free (law:
/// no page is freed while someone may still write or read it).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quarantine {
    /// Pages that local steps, copies or sends still name.
    pub operations: Held,
    /// Pages that a remote writer may still write (direct mode).
    pub writers: Held,
    /// Pages whose grant was dropped instead of given back: for good.
    pub dropped: Held,
    /// Pages that wait to be erased.
    pub scrub: Held,
    /// Dropped landing arenas that a writer still maps.
    pub arenas: Held,
    /// Their bytes.
    pub arena_bytes: u64,
}

/// How many are held back for one reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// How many.
    pub count: u64,
    /// For how long the oldest of them has been seen there, milliseconds.
    pub oldest_ms: u64,
}

impl Quarantine {
    /// Every reason with its name.
    pub fn by_reason(&self) -> [(&'static str, Held); 5] {
        [
            ("operations", self.operations),
            ("writers", self.writers),
            ("dropped", self.dropped),
            ("scrub", self.scrub),
            ("arenas", self.arenas),
        ]
    }
}

/// Declares the counters once: the struct, their names and what they count cannot drift apart.
macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident,)*) => {
        /// What a worker has counted since its life began.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub struct Counters { $($(#[doc = $doc])+ pub $name: u64,)* }

        impl Counters {
            /// Every counter: its name, one sentence of what it counts, its value.
            pub fn named(&self) -> Vec<(&'static str, &'static str, u64)> {
                vec![$((stringify!($name), concat!($($doc),+).trim_ascii(), self.$name),)*]
            }
        }
    };
}

counters! {
    /// Attempts that a gateway sent, whatever became of them.
    attempts_seen,
    /// Attempts refused for good before anything was allocated.
    attempts_rejected,
    /// Attempts not taken on for lack of room, or while draining.
    attempts_refused,
    /// Attempts that ended well here.
    attempts_finished,
    /// Attempts that were cancelled.
    attempts_cancelled,
    /// Attempts that failed here.
    attempts_failed,
    /// Integrity faults found.
    integrity_faults,
    /// Messages that were none, each of which cost its connection.
    malformed_messages,
    /// Batches of pages copied out of landing arenas, or submitted to them.
    batches,
    /// Pages in those batches.
    batch_pages,
    /// Batches whose copy or submission failed.
    batches_failed,
    /// Fences carried out.
    fences,
    /// Landing arenas that could not be made; each is tried again.
    arenas_failed,
    /// Forward passes.
    steps,
    /// Prompt tokens computed.
    prompt_tokens,
    /// Tokens sampled.
    sampled_tokens,
    /// Prompt tokens that the prefix cache spared.
    cached_tokens,
    /// Grants that were dropped instead of given back; each costs its page.
    dropped_grants,
    /// Pages overwritten before anybody else could have them (`--scrub`).
    pages_scrubbed,
    /// Cached pages given up because nobody had used them for their lifetime (`--cache-ttl`).
    cached_pages_expired,
    /// Times that somebody was turned away from landing arenas: strangers, stale lives, wrong or
    /// used secrets.
    attaches_refused,
}
