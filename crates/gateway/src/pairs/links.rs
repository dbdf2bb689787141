//! Open connections to workers, as the task sees them. Effects die with their connection.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use handoff::{Conn, Hello, codec};
use serde::Serialize;
use wire::{Facts, Frame};

use crate::engine::WorkerRole;

/// One worker that is dialled.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) role: WorkerRole,
    /// As in facts and logs: `prefill-0`.
    pub(super) name: String,
}

/// One open connection.
pub(super) struct Link {
    /// Index into the places.
    pub(super) place: usize,
    sender: wire::control::Sender,
    /// What the worker said, once the machine has accepted it.
    pub(super) hello: Option<Hello>,
    /// What it last said of itself.
    pub(super) facts: Option<Facts>,
    /// Since when it owes facts.
    pub(super) asked: Option<Instant>,
}

/// See the module's documentation.
pub(super) struct Links {
    places: Vec<Place>,
    open: BTreeMap<Conn, Link>,
}

impl Links {
    pub(super) fn new(prefill: usize, decode: usize) -> Self {
        let place = |role: WorkerRole| {
            move |i| Place {
                role,
                name: format!("{}-{i}", role.as_str()),
            }
        };
        let prefill = (0..prefill).map(place(WorkerRole::Prefill));
        let decode = (0..decode).map(place(WorkerRole::Decode));
        Self {
            places: prefill.chain(decode).collect(),
            open: BTreeMap::new(),
        }
    }

    pub(super) fn up(&mut self, conn: Conn, place: usize, sender: wire::control::Sender) {
        let link = Link {
            place,
            sender,
            hello: None,
            facts: None,
            asked: None,
        };
        self.open.insert(conn, link);
    }

    /// Ends a connection: what is unsent on it is discarded, and what is unread as well, because
    /// it is not known here any more. False if it was not open.
    pub(super) fn close(&mut self, conn: Conn) -> bool {
        let link = self.open.remove(&conn);
        if let Some(link) = &link {
            link.sender.abort();
        }
        link.is_some()
    }

    /// Forgets every connection; what is queued on them is still sent.
    pub(super) fn close_all(&mut self) {
        self.open.clear();
    }

    pub(super) fn get_mut(&mut self, conn: Conn) -> Option<&mut Link> {
        self.open.get_mut(&conn)
    }

    /// The worker behind an open connection.
    pub(super) fn place(&self, conn: Conn) -> Option<&Place> {
        self.open.get(&conn).map(|link| &self.places[link.place])
    }

    /// Every worker, with its connection if one is open; in the order of the configuration.
    pub(super) fn all(&self) -> impl Iterator<Item = (&Place, Option<&Link>)> {
        self.places.iter().enumerate().map(|(i, place)| {
            let link = self.open.values().find(|link| link.place == i);
            (place, link)
        })
    }

    /// Queues a message of the core; false if the connection was open and is not any more: a peer
    /// that does not take a message loses its connection, because leaving the message out would
    /// break the order of the others.
    pub(super) fn send(&mut self, conn: Conn, message: &impl Serialize) -> bool {
        match codec::encode(message) {
            Ok(bytes) => self.send_frame(conn, &Frame::Core(&bytes)),
            Err(error) => {
                tracing::error!(conn = conn.0, %error, "a message that cannot be said: closed");
                !self.close(conn)
            }
        }
    }

    /// Asks a worker that owes nothing for its facts; false as for [`Links::send`].
    pub(super) fn ask_facts(&mut self, conn: Conn) -> bool {
        match self.open.get_mut(&conn) {
            Some(link) if link.asked.is_none() => {
                link.asked = Some(Instant::now());
                self.send_frame(conn, &Frame::AskFacts)
            }
            _ => true,
        }
    }

    /// For how long this worker has owed an answer.
    pub(super) fn silence(&self, conn: Conn) -> Duration {
        let asked = self.open.get(&conn).and_then(|link| link.asked);
        asked.map_or(Duration::ZERO, |since| since.elapsed())
    }

    pub(super) fn conns(&self) -> Vec<Conn> {
        self.open.keys().copied().collect()
    }

    fn send_frame(&mut self, conn: Conn, frame: &Frame<'_>) -> bool {
        let Some(link) = self.open.get(&conn) else {
            return true;
        };
        match link.sender.send(frame.encode()) {
            Ok(()) => true,
            Err(error) => {
                let worker = &self.places[link.place].name;
                tracing::warn!(%worker, %error, "a worker does not take our messages: closed");
                !self.close(conn)
            }
        }
    }
}
