//! Open connections, as the engine sees them. Effects die with their connection.

use handoff::{Conn, codec};
use serde::Serialize;
use std::collections::BTreeMap;
use wire::control::Role;

struct Link {
    role: Role,
    sender: wire::control::Sender,
}

/// See the module's documentation.
#[derive(Default)]
pub(crate) struct Links(BTreeMap<Conn, Link>);

impl Links {
    pub(crate) fn up(&mut self, conn: Conn, role: Role, sender: wire::control::Sender) {
        self.0.insert(conn, Link { role, sender });
    }

    pub(crate) fn down(&mut self, conn: Conn) {
        self.0.remove(&conn);
    }

    /// The peer's role; none if the connection is not open (any more).
    pub(crate) fn role(&self, conn: Conn) -> Option<Role> {
        self.0.get(&conn).map(|link| link.role)
    }

    /// Queues a message of the core. A peer that is too slow for it loses its connection: a
    /// message that is left out would break the order of the others.
    pub(crate) fn send(&mut self, conn: Conn, message: &impl Serialize) {
        match codec::encode(message) {
            Ok(bytes) => self.send_frame(conn, wire::Frame::Core(&bytes).encode()),
            Err(error) => {
                tracing::error!(conn = conn.0, %error, "a message that cannot be said: closed");
                self.close(conn);
            }
        }
    }

    pub(crate) fn send_frame(&mut self, conn: Conn, frame: Vec<u8>) {
        let Some(link) = self.0.get(&conn) else {
            return;
        };
        if let Err(error) = link.sender.send(frame) {
            tracing::warn!(conn = conn.0, role = %link.role, %error, "closed");
            self.close(conn);
        }
    }

    /// Ends a connection: what is unsent on it is discarded, and what is unread as well, because
    /// it is not known here any more. The I/O side reports its end.
    pub(crate) fn close(&mut self, conn: Conn) {
        if let Some(link) = self.0.remove(&conn) {
            link.sender.abort();
        }
    }

    /// Forgets every connection; what is queued on them is still sent.
    pub(crate) fn close_all(&mut self) {
        self.0.clear();
    }
}
