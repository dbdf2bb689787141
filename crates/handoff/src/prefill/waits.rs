//! Waits for D, and what ends them (H-15). A D that is stopped and not gone keeps its connections:
//! nothing but a deadline tells. When one passes the connection is hung up; from there on the loss of
//! a connection is what it always is: D comes back and Sync settles it, or its life is given up and
//! this side's endpoints are destroyed. A deadline frees nothing that may still be read.

use super::state::AttemptStage;
use super::{Effect, Prefill, Timer};
use crate::id::JobKey;
use crate::{Conn, Decisions, Entry, Hangup, OfferId};
use pages::Epoch;

impl<J: Decisions> Prefill<J> {
    /// Arms a deadline for every job about which D owes an answer, anew after each answer, and
    /// disarms it where D owes none. Without a connection the life itself has a deadline.
    pub(super) fn watch_answers(&mut self) {
        let epoch = self.hello.epoch;
        for (id, job) in &mut self.jobs {
            let peer = self.peers.get_mut(&job.decode);
            let peer = peer.filter(|peer| peer.conn.is_some() && peer.synced);
            let linked = peer.is_some();
            let owed = if linked { job.owes() } else { 0 };
            let before = std::mem::replace(&mut job.owed, owed);
            if let Some(peer) = peer.filter(|_| owed < before) {
                peer.silent = false;
            }
            let timer = Timer::Answer(OfferId { epoch, n: id.0 });
            if owed > 0 && (before == 0 || owed < before) {
                let after_ms = self.config.answer_ms;
                self.out.push(Effect::Arm { timer, after_ms });
            } else if owed == 0 && before > 0 {
                self.out.push(Effect::Disarm(timer));
            }
        }
    }

    /// D has not answered in time. Offers are taken back, because their pages are others' turn: P
    /// holds no ticket for them, so nothing was written, and Sync will not list them. The rest waits
    /// for D's return as after any loss of a connection. A life that comes back, greets and again
    /// answers nothing is given up.
    pub(super) fn answer_deadline(&mut self, offer: OfferId) {
        let known = offer.epoch == self.hello.epoch;
        let job = self.jobs.get(&JobKey(offer.n));
        let Some(decode) = job
            .filter(|job| known && job.owed > 0)
            .map(|job| job.decode)
        else {
            return; // D answered when the deadline had passed
        };
        let Some(conn) = self.conn_of(decode) else {
            return; // lost when it had passed: the life itself has a deadline
        };
        self.take_back_offers(decode);
        self.hang_up(conn, Hangup::Deadline);
        let again = self
            .peers
            .get_mut(&decode)
            .is_some_and(|peer| std::mem::replace(&mut peer.silent, true));
        if again {
            self.out.push(Effect::Disarm(Timer::Peer(decode)));
            self.peer_deadline(decode);
        }
    }

    pub(super) fn has_answered(&mut self, decode: Epoch) {
        if let Some(peer) = self.peers.get_mut(&decode) {
            peer.silent = false;
        }
    }

    fn take_back_offers(&mut self, decode: Epoch) {
        let offered = self
            .jobs
            .iter()
            .filter(|(_, job)| job.decode == decode && job.ticket.is_none());
        for id in offered.map(|(id, _)| *id).collect::<Vec<_>>() {
            let Some(attempt) = self.remove_job(id) else {
                continue; // it ended while its offer waited
            };
            let Some(known) = self.attempts.get_mut(&attempt) else {
                return self.lost(Entry::Attempt);
            };
            known.stage = AttemptStage::Queued;
            self.queue.push_back(attempt);
        }
    }

    /// D has not answered Hello and Sync in time.
    pub(super) fn greeting_deadline(&mut self, conn: Conn) {
        if self.dialled.contains_key(&conn) && !self.is_greeted(conn) {
            self.hang_up(conn, Hangup::Deadline);
        }
    }

    pub(super) fn is_greeted(&self, conn: Conn) -> bool {
        let mut peers = self.peers.values();
        peers.any(|peer| peer.conn == Some(conn) && peer.synced)
    }
}
