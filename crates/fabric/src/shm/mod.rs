//! Landing arenas in shared memory, for workers on one host.
//!
//! An arena is a memfd that the receiver makes, checks against the memory there is, populates and
//! seals against a change of its size. The receiver itself maps it through a read-only re-open, so
//! that at the fence the kernel can attest that nobody maps it writable any more
//! (`F_SEAL_WRITE`). Its descriptor goes over a small Unix socket to whoever shows the arena's
//! single-use token as the life that the arena is for; the token travels inside the ticket, which
//! only that life's authenticated control connection carries.

mod handover;
mod landing;
mod receiver;
mod sender;
#[cfg(test)]
mod tests;
mod writes;

pub use crate::arenas::Limits;
pub use receiver::ShmReceiver;
pub use sender::ShmSender;
