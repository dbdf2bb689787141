//! Landing arenas that are reached over TCP, for workers on different hosts.
//!
//! Nobody writes into memory of another host, so the receiver applies the writes itself: one task
//! for each arena reads frames from one connection and copies them into the arena, which is the
//! same kind of memory as that of the shared-memory fabric.
//!
//! ```text
//! P                                                     D
//! attach ─────── TLS 1.3, both certificates ──────────▶ listener: who are you?
//!        claim: arena (D's life), P's life, secret ───▶ the arena's one claim, or a refusal
//!        ◀─────────────────────── granted, both lives   apply task, owner of the only writable map
//! mover  words(slot, offset, …) … end(submission) ────▶ copied into the arena …
//!        ◀───────────────────────────── ack(submission) … and only then acknowledged
//! ```
//! # What a successful completion is
//! The acknowledgement of a submission. The task that applied the writes sends it, behind the last
//! of them, over the connection that brought them, so it cannot overtake data; a completion of
//! [`WriteEnding::Landed`](crate::WriteEnding::Landed) is told when it has arrived and never before. That
//! bytes were handed to a socket, or that the peer's kernel has them, says nothing here. P states
//! its manifest on the control plane after that, so what D then copies has been applied.
//!
//! A connection that ends, breaks or makes no progress within a deadline fails everything that was
//! not acknowledged, and the endpoint with it: such writes are unsettled, for what lies in buffers
//! on the way may still be applied. Nothing is sent again, and there is no second connection: the
//! landing serves once.
//!
//! # What a fence is
//! The arena can be claimed no more; its connection is shut down on this side, which wakes the
//! task from whatever it waits for; the task is joined, and with it ends the only writable map of
//! the arena. What its writer still sends finds no socket. The kernel then attests that nothing
//! maps the arena writable. None of it waits for the writer, which may be stopped or unreachable.
//!
//! # What arrives is bounded
//! A frame has at most [`wire::FRAME_WORDS_MAX`] words and is read into private memory and checked
//! against the arena's shape before any of it is applied. Handshakes have a deadline over all and
//! are served in a bounded number; there is one task for each open arena.

mod apply;
mod attach_listener;
mod flow;
mod landing;
mod receiver;
mod sender;
mod socket;
#[cfg(test)]
mod tests;
mod wire;

pub use receiver::{Listen, TcpReceiver};
pub use sender::{DataDeadlines, TcpSender};

#[cfg(target_endian = "big")]
compile_error!("words travel as they lie in memory, which both sides take for little-endian");
