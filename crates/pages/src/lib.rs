//! The page ledger: who may touch which page, and the proof of it.
//!
//! A [`Pool`] knows every page of one worker and nothing else: no bytes, no I/O, no clock, no
//! randomness. State is plain data (`Clone + Ord + Hash`, so a checker can store whole worlds);
//! authority is linear: a [`Grant`] or a [`Share`] cannot be cloned, and dropping one without
//! giving it back costs the page, never the neighbour.
//!
//! ```
//! use pages::{BlockTable, Config, Domain, Owner, OwnerId, Pool, Seal, Step};
//!
//! let (mut pool, _mint) = Pool::new(Config { pages: 4, page_size: 16, scrub: false });
//! let owner = Owner { id: OwnerId::new(1), domain: Domain::new(7), lane: 0 };
//! let grants = pool.reserve(owner, 2).unwrap();
//! let mut table = BlockTable::new(owner, 16);
//! for (ordinal, grant) in grants.iter().enumerate() {
//!     pool.seal(grant, Seal { ordinal: ordinal as u32, filled: 0, checksum: None }).unwrap();
//!     table.push_own(grant);
//! }
//! let verified = pool.verify(vec![Step { table: &mut table, new: 20 }]).unwrap();
//! assert_eq!(verified.sequences()[0].new_tokens(), 20);
//! ```
#![forbid(unsafe_code)]

mod changes;
mod decisions;
mod error;
mod grant;
mod id;
mod identity;
#[cfg(test)]
mod inductive;
mod ledger;
mod pool;
mod proof;
mod questions;
mod sharing;
mod table;
mod verify;

pub use decisions::{Decisions, Pending, Sound};
pub use error::{Misuse, Needs, Shortage, TableFault, VerifyFault};
pub use grant::{Grant, Share};
pub use id::{Domain, Epoch, OpId, Owner, OwnerId, PageId, StatedTag, Tag, WriterLife};
pub use identity::PoolIdentity;
pub use ledger::{Counts, Holder, Reason, Seal, State};
pub use pool::{Config, Pool};
pub use proof::{FenceMint, ProofScope, WriterGone};
pub use table::BlockTable;
pub use verify::{Step, Verified, VerifiedSequence};
