//! Prefill lives and their connections: Hello, Sync, loss.

use super::state::Peer;
use super::{Decode, Effect, Timer};
use crate::Decisions;
use crate::{
    Conn, DecodeToPrefill, Differs, Ending, Entry, Evidence, Failure, HandoffId, Hangup, Hello,
    LinkId, OfferId, PrefillToDecode, Role, Stage, compatible,
};
use pages::Epoch;
use std::collections::{BTreeMap, BTreeSet};

/// Ranks of one worker, at most.
const MAX_RANKS: u16 = 64;

impl<J: Decisions> Decode<J> {
    pub(super) fn handle_prefill(&mut self, conn: Conn, message: PrefillToDecode) {
        let peer = self.prefills.get(&conn).copied();
        let synced = peer
            .and_then(|epoch| self.peers.get(&epoch))
            .is_some_and(|peer| peer.synced.is_some());
        match (peer, message) {
            (None, PrefillToDecode::Hello(hello)) => self.prefill_hello(conn, hello),
            (
                Some(peer),
                PrefillToDecode::Sync {
                    under,
                    tickets,
                    offers,
                },
            ) if !synced && self.decisions.same_life(under.epoch, peer) => {
                self.sync(conn, peer, under, &tickets, &offers);
            }
            (Some(peer), message) if synced => self.handle_synced(conn, peer, message),
            _ => self.hang_up(conn, Hangup::OutOfOrder),
        }
    }

    fn handle_synced(&mut self, conn: Conn, peer: Epoch, message: PrefillToDecode) {
        match message {
            PrefillToDecode::Hello(_) | PrefillToDecode::Sync { .. } => {
                self.hang_up(conn, Hangup::OutOfOrder);
            }
            PrefillToDecode::Offer {
                offer,
                attempt,
                count,
                digest,
            } => {
                self.offer(conn, peer, offer, attempt, count, digest);
            }
            PrefillToDecode::Landed(manifest) => self.landed(conn, peer, manifest),
            PrefillToDecode::Closed { handoff, rank, how } => {
                self.closed(conn, peer, handoff, rank, how);
            }
            PrefillToDecode::Unsettled {
                handoff,
                rank,
                slots,
            } => {
                self.unsettled(conn, peer, handoff, rank, slots);
            }
        }
    }

    fn prefill_hello(&mut self, conn: Conn, hello: Hello) {
        if let Err(why) = compatible(&self.hello, &hello, Role::Prefill) {
            return self.out.push(Effect::Close(conn, why));
        }
        let epoch = hello.epoch;
        let max_drops = self.config.max_drops;
        let known = self.peers.get(&epoch);
        let known = known.map(|peer| (peer.ranks, peer.is_worn(max_drops)));
        let worn = known.is_some_and(|(_, worn)| worn);
        if known.is_none() && self.peers.len() >= self.config.max_peers {
            self.forget_a_gone_peer();
        }
        let no_room = known.is_none() && self.peers.len() >= self.config.max_peers;
        if worn || no_room || hello.ranks == 0 || hello.ranks > MAX_RANKS {
            return self.out.push(Effect::Close(conn, Hangup::Refused));
        }
        if let Some((ranks, _)) = known.filter(|(ranks, _)| *ranks != hello.ranks) {
            let (what, expected) = (Differs::Ranks, ranks.to_string());
            let got = hello.ranks.to_string();
            let why = Hangup::Incompatible {
                what,
                expected,
                got,
            };
            return self.out.push(Effect::Close(conn, why));
        }
        let old = self.peers.get(&epoch).and_then(|peer| peer.conn);
        if let Some(old) = old.filter(|old| self.decisions.replaces(*old, conn)) {
            self.forget_conn(old);
            self.out.push(Effect::Close(old, Hangup::Replaced));
        }
        self.prefills.insert(conn, epoch);
        self.writers_of_others_over(epoch);
        let peer = self.peers.entry(epoch).or_default();
        (peer.conn, peer.synced, peer.ranks, peer.refused) = (Some(conn), None, hello.ranks, false);
        self.out.push(Effect::Disarm(Timer::Peer(epoch)));
        self.arm(Timer::Greeting(conn), self.config.answer_ms);
        self.stop_trying(epoch);
        let hello = DecodeToPrefill::Hello(self.hello.clone());
        self.send(conn, hello);
        self.open_arenas(epoch);
    }

    /// P's snapshot: what it lists is answered item by item; what it does not list it does not
    /// hold, so nothing of it is being written (handoff.md, "Sync").
    fn sync(
        &mut self,
        conn: Conn,
        peer: Epoch,
        under: LinkId,
        tickets: &[HandoffId],
        offers: &[OfferId],
    ) {
        let Some(known) = self.peers.get_mut(&peer) else {
            return self.lost(Entry::Peer);
        };
        known.synced = Some(under);
        self.out.push(Effect::Disarm(Timer::Greeting(conn)));
        let tickets: BTreeSet<HandoffId> = tickets.iter().copied().collect();
        let offers: BTreeSet<OfferId> = offers.iter().copied().collect();
        for handoff in &tickets {
            self.sync_ticket(conn, peer, *handoff);
        }
        let granted = self.handoffs.iter().filter(|(_, h)| h.peer == peer);
        let granted: BTreeMap<_, _> = granted.map(|(id, h)| (h.offer, *id)).collect();
        for offer in &offers {
            match granted.get(offer) {
                Some(id) => self.repeat_answer(conn, *id, *offer),
                // Lost on the way: P offers anew, and that is judged.
                None => self.send(
                    conn,
                    DecodeToPrefill::Busy {
                        offer: *offer,
                        after_ms: 0,
                    },
                ),
            }
        }
        let unlisted = self.handoffs.iter().filter(|(id, h)| {
            let (ticket, offer) = (self.name(**id), h.offer);
            let listed = (tickets.contains(&ticket), offers.contains(&offer));
            h.peer == peer && !self.decisions.still_holds(listed.0, listed.1)
        });
        for id in unlisted.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.count_as_closed(id);
            self.end_if_landing(id);
            self.settle(id);
        }
        self.send(conn, DecodeToPrefill::Synced);
        self.arenas_may_drop(peer);
    }

    fn sync_ticket(&mut self, conn: Conn, peer: Epoch, handoff: HandoffId) {
        let known = self.known(handoff).map(|(_, h)| h);
        match known.filter(|h| h.peer == peer) {
            Some(h) if h.is_running() => self.send(conn, DecodeToPrefill::Committed { handoff }),
            Some(h) if h.is_landing() => {
                let mut taken = Vec::new();
                for (rank, writer) in h.writers.iter().enumerate() {
                    taken.extend(writer.taken.iter().map(|batch| (rank as u16, *batch)));
                }
                for (rank, batch) in taken {
                    self.send(
                        conn,
                        DecodeToPrefill::Taken {
                            handoff,
                            rank,
                            batch,
                        },
                    );
                }
            }
            _ => self.send(conn, DecodeToPrefill::Cancel { handoff }),
        }
    }

    pub(super) fn handle_disconnected(&mut self, conn: Conn) {
        self.gateway_gone(conn);
        if let Some(epoch) = self.forget_conn(conn) {
            self.unlink(epoch);
        }
    }

    /// The connection is over; gives the life that had said Hello on it.
    fn forget_conn(&mut self, conn: Conn) -> Option<Epoch> {
        let epoch = self.prefills.remove(&conn)?; // a gateway's, or closed before
        if self
            .peers
            .get(&epoch)
            .is_some_and(|peer| peer.synced.is_none())
        {
            self.out.push(Effect::Disarm(Timer::Greeting(conn)));
        }
        Some(epoch)
    }

    /// P has said Hello and then nothing: without its Sync nothing is settled.
    pub(super) fn greeting_deadline(&mut self, conn: Conn) {
        let epoch = self.prefills.get(&conn);
        let peer = epoch.and_then(|epoch| self.peers.get(epoch));
        if peer.is_some_and(|peer| peer.conn == Some(conn) && peer.synced.is_none()) {
            self.hang_up(conn, Hangup::Deadline);
        }
    }

    /// A lost connection changes nothing until the next Sync or a deadline.
    fn unlink(&mut self, epoch: Epoch) {
        let Some(peer) = self.peers.get_mut(&epoch) else {
            return self.lost(Entry::Peer);
        };
        (peer.conn, peer.synced) = (None, None);
        self.stop_trying(epoch);
        self.arm(Timer::Peer(epoch), self.config.peer_ms);
        let of_peer = self.handoffs.iter().filter(|(_, h)| h.peer == epoch);
        for id in of_peer.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.writers_over(id, None, Evidence::Disconnected);
        }
    }

    /// A life has said Hello. That another one is not there any more proves nothing about it.
    fn writers_of_others_over(&mut self, epoch: Epoch) {
        let connected = |peer: &Epoch| self.peers.get(peer).is_some_and(|p| p.conn.is_some());
        let others = self.handoffs.iter();
        let others = others.filter(|(_, h)| h.peer != epoch && !connected(&h.peer));
        for id in others.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.writers_over(id, None, Evidence::Successor);
        }
    }

    fn hang_up(&mut self, conn: Conn, why: Hangup) {
        self.out.push(Effect::Close(conn, why));
        if let Some(epoch) = self.forget_conn(conn) {
            self.unlink(epoch);
        }
    }

    /// Refused until its next Hello: a life that comes back must begin anew.
    pub(super) fn refuse(&mut self, epoch: Epoch, why: Hangup) {
        let Some(peer) = self.peers.get_mut(&epoch) else {
            return self.lost(Entry::Peer);
        };
        peer.refused = true;
        if let Some(conn) = peer.conn {
            self.hang_up(conn, why);
        }
    }

    /// The life has not come back in time. That proves nothing; the fence does.
    pub(super) fn peer_deadline(&mut self, epoch: Epoch) {
        let Some(peer) = self
            .peers
            .get_mut(&epoch)
            .filter(|peer| peer.conn.is_none())
        else {
            return; // it came back when the deadline had passed
        };
        peer.refused = true;
        let arenas: Vec<_> = peer.arenas.values().map(|arena| arena.id).collect();
        for arena in arenas {
            self.drop_arena(arena);
        }
        let landing = self
            .handoffs
            .iter()
            .filter(|(_, h)| h.peer == epoch && h.is_landing());
        for id in landing.map(|(id, _)| *id).collect::<Vec<_>>() {
            let failure = Failure::PeerFailed(Stage::Transfer);
            self.end_handoff(id, Ending::Failed(failure));
        }
        self.forget_peer_if_gone(epoch);
    }

    /// A life with faults, or with memory that it has not given back, is remembered, so that it is
    /// still refused if it comes back, for as long as there is room.
    pub(super) fn forget_peer_if_gone(&mut self, epoch: Epoch) {
        let clean = self.peers.get(&epoch).is_some_and(Peer::is_clean);
        if clean && self.is_gone(epoch) {
            self.peers.remove(&epoch);
        }
    }

    fn is_gone(&self, epoch: Epoch) -> bool {
        let gone = |peer: &Peer| peer.conn.is_none() && peer.refused && peer.arenas.is_empty();
        self.peers.get(&epoch).is_some_and(gone) && self.handoffs.values().all(|h| h.peer != epoch)
    }

    /// Room for a new life: of those that are gone, the one with the least on its account is forgotten.
    fn forget_a_gone_peer(&mut self) {
        let gone = self.peers.iter().filter(|(epoch, _)| self.is_gone(**epoch));
        let drops = |peer: &Peer| peer.incidents.len() + peer.faults as usize;
        let fewest = gone.min_by_key(|(epoch, peer)| (drops(peer), **epoch));
        if let Some(epoch) = fewest.map(|(epoch, _)| *epoch) {
            self.peers.remove(&epoch);
        }
    }

    pub(super) fn conn_of(&self, peer: Epoch) -> Option<Conn> {
        self.peers
            .get(&peer)
            .and_then(|peer| peer.conn.filter(|_| peer.synced.is_some()))
    }
}
