//! Authenticated, ordered, framed connections between our own processes.
//!
//! This is the control plane of the handoff: messages arrive in the order in which they were
//! sent, from a peer whose role is proven by its certificate, or the connection ends. It carries
//! opaque frames; what they mean is the business of the layers above, and so are keep-alive, idle
//! time and reconnecting.
//!
//! * [`certs::new_cluster`] writes one CA certificate and one certificate and key for each
//!   [`Role`]; [`Identity::load`] reads what one process needs of them.
//! * [`Listener`] accepts and [`dial`] opens a [`Connection`]: TLS 1.3 in both directions over a
//!   Unix or TCP socket ([`Addr`]). A peer with a foreign CA, an expired certificate or a role
//!   that is not asked for is refused, with an error that says which of these it was.
//! * [`Sender`] has a bounded queue (frames and bytes): a slow peer is an error
//!   ([`SendError::Full`]), never growth. [`Receiver`] refuses an oversized frame before it
//!   allocates room for it.
//!
//! A certificate proves a role, not an instance: which life of which worker speaks is said by the
//! epoch in the first message (`Hello`), see "Identity is ours" in the handoff's specification.

pub mod certs;

mod addr;
mod connection;
mod handshake;
mod identity;
mod listener;
mod role;
mod socket;
mod trust;

pub use addr::{Addr, AddrError};
pub use connection::{Connection, Limits, Peer, ReceiveError, Receiver, SendError, Sender};
pub use handshake::{HandshakeError, dial};
pub use identity::{Identity, IdentityError};
pub use listener::{BindError, Listener, Refused};
pub use role::{Role, UnknownRole};
