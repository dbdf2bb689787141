//! How bytes reach a landing arena: one pair of traits, shared memory, TCP.
//!
//! A [`Receiver`] (decode) opens one arena for one life of one writer and says where it is
//! ([`Landing`]); the writer's [`Sender`] (prefill) attaches to it and submits batches of writes;
//! when a submission has [`Landed`](Ending::Landed) the receiver may copy its slots out through a
//! [`Reader`], which computes the checksum of the private copy. A [`Receiver::fence`] ends an
//! arena and yields [`pages::WriterGone`]; [`Endpoint::destroy`] ends the writer's side and yields
//! [`SourcesReleased`].
//!
//! # What a fabric promises, and what it does not
//! * Only *landed* says that writes are visible to the receiver's reader. Any other ending leaves
//!   them **unsettled**: they may land later, in part, in any order.
//! * The bytes are those of the source when the write lands. A source is held (and must not
//!   change) until its submission has ended; for an unsettled one until the endpoint is destroyed.
//! * After a fence no copy out of that arena succeeds, whatever its writer goes on doing.
//!
//! The traits assume no shared memory: a landing is bytes inside a ticket, attaching may fail
//! late, and a receiver that applies writes itself (TCP) implements the same fence by joining its
//! tasks. `tests/contract` says all this in executable form; every fabric passes it.
//!
//! Faults are injected from outside, by wrapping these traits: a submission that is reported as
//! failed and passed on later, a completion that is held back, a reader that lies. The product has
//! no hook for it.
//!
//! # Unsafe code
//! All of it is in one module, `map`, behind bounds-checked functions; everything else denies it.
#![deny(unsafe_code)]

pub mod memory;
pub mod shm;
pub mod tcp;

mod any;
mod arena;
mod arena_memory;
mod arenas;
mod claim;
mod deadlined;
mod layout;
#[allow(unsafe_code)] // the maps: each block carries its proof
mod map;
mod mover;
mod places;
mod receiver;
mod sender;

pub use any::AnySender;
pub use arena::{ArenaId, BadLanding, Landing, OutOfRange, Shape, WordRun};
pub use arenas::Limits;
pub use receiver::{
    CopyError, Evidence, FenceError, Fenced, OpenError, Reader, Receiver, Refusals,
};
pub use sender::{
    AttachError, Completion, Endpoint, Mismatch, OnCompletion, Refusal, Sender, SlotWrite,
    SourcesReleased, SubmissionId, SubmitError, WriteEnding, WriteSource,
};
