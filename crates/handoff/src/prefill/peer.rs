//! Decode lives and their connections. P dials; every connection begins with Hello and Sync.

use super::close::closing_message;
use super::state::{ArenaState, Peer};
use super::{Effect, Prefill, Timer};
use crate::Decisions;
use crate::id::JobKey;
use crate::{
    Conn, DecodeToPrefill, Ending, Entry, Failure, HandoffId, Hangup, Hello, LinkId,
    PrefillToDecode, Role, Stage, compatible,
};
use pages::Epoch;
use std::collections::{BTreeMap, BTreeSet};

impl<J: Decisions> Prefill<J> {
    pub(super) fn handle_dialled(&mut self, conn: Conn) {
        self.dialled.insert(conn, None);
        self.out.push(Effect::Arm {
            timer: Timer::Greeting(conn),
            after_ms: self.config.answer_ms,
        });
        let hello = PrefillToDecode::Hello(self.hello.clone());
        self.out.push(Effect::ToDecode(conn, hello));
    }

    pub(super) fn handle_decode(&mut self, conn: Conn, message: DecodeToPrefill) {
        let Some(epoch) = self.dialled.get(&conn).copied() else {
            return; // closed here: what was on its way is discarded
        };
        match (epoch, message) {
            (None, DecodeToPrefill::Hello(hello)) => self.decode_hello(conn, hello),
            (Some(epoch), message) => self.handle_known(conn, epoch, message),
            (None, _) => self.hang_up(conn, Hangup::OutOfOrder),
        }
    }

    fn handle_known(&mut self, conn: Conn, decode: Epoch, message: DecodeToPrefill) {
        if handoff_of(&message).is_some_and(|handoff| handoff.epoch != decode) {
            return; // another life's, which this one cannot speak for (H-8)
        }
        match message {
            DecodeToPrefill::Hello(_) => self.hang_up(conn, Hangup::OutOfOrder),
            DecodeToPrefill::Synced => self.synced(conn, decode),
            // D gives back what this side's Sync did not list: a ticket out of an earlier connection
            // comes behind that word, and its pages may be another's by now (H-3).
            DecodeToPrefill::Ticket { under, .. }
                if !self.decisions.same_link(under, self.link(conn)) => {}
            DecodeToPrefill::Ticket {
                offer,
                handoff,
                under: _,
                tags,
                first,
                landings,
                targets,
            } => {
                self.ticket(decode, offer, handoff, tags, first, landings, targets);
            }
            DecodeToPrefill::Faulty { offer, fault } => self.offer_faulty(decode, offer, fault),
            DecodeToPrefill::Busy { offer, after_ms } => self.busy(decode, offer, after_ms),
            DecodeToPrefill::OfferEnded { offer } => self.offer_ended(decode, offer),
            DecodeToPrefill::Taken {
                handoff,
                rank,
                batch,
            } => self.taken(handoff, rank, batch),
            DecodeToPrefill::Committed { handoff } => self.committed(handoff),
            DecodeToPrefill::Cancel { handoff } => self.cancelled(decode, handoff),
            DecodeToPrefill::Ended {
                handoff,
                rank,
                answers,
            } => {
                self.ended(handoff, rank, answers);
            }
        }
    }

    fn decode_hello(&mut self, conn: Conn, hello: Hello) {
        let fits = compatible(&self.hello, &hello, Role::Decode);
        let capacity = match (fits, hello.capacity) {
            (Ok(()), Some(capacity)) => capacity,
            (Err(why), _) => return self.hang_up(conn, why),
            (Ok(()), None) => return self.hang_up(conn, Hangup::OutOfOrder),
        };
        let epoch = hello.epoch;
        if !self.peers.contains_key(&epoch) && self.peers.len() >= self.config.max_peers {
            return self.hang_up(conn, Hangup::Refused);
        }
        let old = self.peers.get(&epoch).and_then(|peer| peer.conn);
        if let Some(old) = old.filter(|old| self.decisions.replaces(*old, conn)) {
            self.forget_dialled(old);
            self.out.push(Effect::Close(old, Hangup::Replaced));
        }
        self.dialled.insert(conn, Some(epoch));
        let arenas = BTreeMap::new();
        let detaching = BTreeSet::new();
        let new = Peer {
            conn: None,
            synced: false,
            capacity,
            arenas,
            detaching,
            lost: false,
            silent: false,
        };
        let peer = self.peers.entry(epoch).or_insert(new);
        (peer.conn, peer.synced, peer.capacity) = (Some(conn), false, capacity);
        peer.lost = false;
        self.out.push(Effect::Disarm(Timer::Peer(epoch)));
        let tickets = self.jobs.values().filter(|job| job.decode == epoch);
        let held = tickets
            .filter_map(|job| job.ticket.as_ref())
            .filter(|ticket| ticket.is_held());
        let tickets = held.map(|ticket| ticket.handoff).collect();
        let offers = self
            .jobs
            .iter()
            .filter(|(_, job)| job.decode == epoch && job.ticket.is_none());
        let offers = offers.map(|(id, _)| self.name(*id)).collect();
        self.out.push(Effect::ToDecode(
            conn,
            PrefillToDecode::Sync {
                under: self.link(conn),
                tickets,
                offers,
            },
        ));
    }

    /// What D is to call that connection.
    fn link(&self, conn: Conn) -> LinkId {
        let epoch = self.hello.epoch;
        LinkId { epoch, conn }
    }

    /// D has answered what Sync listed. Now whatever still waits for an answer is said again.
    fn synced(&mut self, conn: Conn, decode: Epoch) {
        let Some(peer) = self.peers.get_mut(&decode) else {
            return self.lost(Entry::Peer); // a life with a connection is not forgotten
        };
        if std::mem::replace(&mut peer.synced, true) {
            return; // D says it twice
        }
        self.out.push(Effect::Disarm(Timer::Greeting(conn)));
        let mut again = Vec::new();
        for job in self.jobs.values().filter(|job| job.decode == decode) {
            let Some(ticket) = &job.ticket else {
                continue; // its offer was answered by what came before Synced
            };
            for (rank, progress) in ticket
                .ranks
                .iter()
                .enumerate()
                .filter(|(_, rank)| !rank.done)
            {
                again.extend(
                    progress
                        .stated
                        .values()
                        .cloned()
                        .map(PrefillToDecode::Landed),
                );
                again.extend(closing_message(ticket.handoff, rank, progress));
            }
        }
        for message in again {
            self.send(decode, message);
        }
        for id in self.jobs.keys().copied().collect::<Vec<_>>() {
            self.send_more(id);
        }
    }

    pub(super) fn handle_disconnected(&mut self, conn: Conn) {
        if self.gateways.contains_key(&conn) {
            return self.gateway_gone(conn);
        }
        if let Some(epoch) = self.forget_dialled(conn) {
            self.unlink(epoch);
        }
    }

    /// The connection is over; gives the life that it led to, if that had said Hello.
    fn forget_dialled(&mut self, conn: Conn) -> Option<Epoch> {
        let epoch = self.dialled.get(&conn).copied()?; // closed before
        if !self.is_greeted(conn) {
            self.out.push(Effect::Disarm(Timer::Greeting(conn)));
        }
        self.dialled.remove(&conn);
        epoch
    }

    /// A lost connection changes nothing until the next Sync or a deadline.
    fn unlink(&mut self, epoch: Epoch) {
        let Some(peer) = self.peers.get_mut(&epoch) else {
            return self.lost(Entry::Peer);
        };
        (peer.conn, peer.synced) = (None, false);
        let (timer, after_ms) = (Timer::Peer(epoch), self.config.peer_ms);
        self.out.push(Effect::Arm { timer, after_ms });
    }

    pub(super) fn hang_up(&mut self, conn: Conn, why: Hangup) {
        self.out.push(Effect::Close(conn, why));
        if let Some(epoch) = self.forget_dialled(conn) {
            self.unlink(epoch);
        }
    }

    /// The life has not come back in time: what it was to receive is over here, and this side's
    /// endpoints are destroyed. Until they are, tickets are remembered: if D comes back, Sync must
    /// not say that P holds nothing while writes of it may still land.
    pub(super) fn peer_deadline(&mut self, decode: Epoch) {
        let Some(peer) = self
            .peers
            .get_mut(&decode)
            .filter(|peer| peer.conn.is_none())
        else {
            return; // it came back when the deadline had passed
        };
        peer.lost = true;
        let mut live = Vec::new();
        for arena in peer
            .arenas
            .values_mut()
            .filter(|arena| arena.state != ArenaState::Dead)
        {
            arena.state = ArenaState::Dead;
            live.push(arena.id);
        }
        peer.detaching.extend(live.iter().copied());
        self.out
            .extend(live.into_iter().map(|arena| Effect::Detach { arena }));
        let of_peer = self.jobs.iter().filter(|(_, job)| job.decode == decode);
        for id in of_peer.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.end_job(id, Ending::Failed(Failure::PeerFailed(Stage::Decode)));
        }
        let waiting = self
            .attempts
            .iter()
            .filter(|(_, attempt)| attempt.decode == decode);
        for attempt in waiting.map(|(attempt, _)| *attempt).collect::<Vec<_>>() {
            self.end_attempt(attempt, Ending::Failed(Failure::PeerFailed(Stage::Decode)));
        }
        self.forget_peer(decode);
    }

    /// Forgets a life that did not come back, once every endpoint towards it is destroyed.
    pub(super) fn forget_peer(&mut self, decode: Epoch) {
        let gone = |peer: &Peer| {
            let dead = peer
                .arenas
                .values()
                .all(|arena| arena.state == ArenaState::Dead);
            peer.lost && peer.detaching.is_empty() && dead
        };
        let flying = self.submissions.values().any(|sent| {
            self.jobs
                .get(&sent.job)
                .is_some_and(|job| job.decode == decode)
        });
        if flying || !self.peers.get(&decode).is_some_and(gone) {
            return; // it is there, or something of this side may still be read
        }
        self.peers.remove(&decode);
        let of_peer = self.jobs.iter().filter(|(_, job)| job.decode == decode);
        for id in of_peer.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.nobody_answers(id);
        }
    }

    /// No answer will come for this job: it is forgotten.
    fn nobody_answers(&mut self, id: JobKey) {
        let Some(job) = self.jobs.get_mut(&id) else {
            return self.lost(Entry::Job);
        };
        match &mut job.ticket {
            Some(ticket) => ticket.ranks.iter_mut().for_each(|rank| rank.done = true),
            None => {
                self.remove_job(id);
                return;
            }
        }
        self.forget_if_done(id);
    }
}

/// The handoff that a message is about.
fn handoff_of(message: &DecodeToPrefill) -> Option<HandoffId> {
    match message {
        DecodeToPrefill::Ticket { handoff, .. }
        | DecodeToPrefill::Taken { handoff, .. }
        | DecodeToPrefill::Committed { handoff }
        | DecodeToPrefill::Cancel { handoff }
        | DecodeToPrefill::Ended { handoff, .. } => Some(*handoff),
        DecodeToPrefill::Hello(_)
        | DecodeToPrefill::Synced
        | DecodeToPrefill::Faulty { .. }
        | DecodeToPrefill::Busy { .. }
        | DecodeToPrefill::OfferEnded { .. } => None,
    }
}
