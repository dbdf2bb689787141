//! Landing arenas and fences: one arena at a time for each life of each writer. Dropping one fails
//! that writer's uncommitted handoffs and nobody else's.

use super::state::{Arena, ArenaState, WriterState, life};
use super::{Decode, Effect, Timer};
use crate::Decisions;
use crate::id::HandoffKey;
use crate::{
    Answers, ArenaId, Broken, DecodeToPrefill, Ending, Entry, Evidence, Failure, Hangup, Stage,
};
use pages::{Epoch, ProofScope, WriterGone, WriterLife};
use std::collections::BTreeSet;

impl Arena {
    pub(super) fn slots(&self) -> u32 {
        match &self.state {
            ArenaState::Ready { slots, .. } => *slots,
            _ => 0,
        }
    }
}

impl<J: Decisions> Decode<J> {
    pub(super) fn arena(&self, peer: Epoch, rank: u16) -> Option<&Arena> {
        self.peers.get(&peer)?.arenas.get(&rank)
    }

    pub(super) fn arena_mut(&mut self, peer: Epoch, rank: u16) -> Option<&mut Arena> {
        self.peers.get_mut(&peer)?.arenas.get_mut(&rank)
    }

    fn writer_of(&mut self, arena: ArenaId) -> Option<(WriterLife, &mut Arena)> {
        self.peers.iter_mut().find_map(|(epoch, peer)| {
            let (rank, known) = peer.arenas.iter_mut().find(|(_, it)| it.id == arena)?;
            Some((life(*epoch, *rank), known))
        })
    }

    /// Makes an arena for every rank that has none.
    pub(super) fn open_arenas(&mut self, peer: Epoch) {
        let Some(known) = self.peers.get_mut(&peer) else {
            return self.lost(Entry::Peer);
        };
        if known.conn.is_none() || known.refused || known.is_worn(self.config.max_drops) {
            return;
        }
        for rank in (0..known.ranks)
            .filter(|rank| !known.arenas.contains_key(rank))
            .collect::<Vec<_>>()
        {
            self.next_id.0 += 1;
            let id = ArenaId {
                epoch: self.hello.epoch,
                n: self.next_id.0,
            };
            let arena = Arena {
                id,
                state: ArenaState::Opening { drop: false },
                busy: BTreeSet::new(),
                unsettled: BTreeSet::new(),
                doubtful: false,
            };
            let writer = life(peer, rank);
            known.arenas.insert(rank, arena);
            self.out.push(Effect::OpenArena { arena: id, writer });
        }
    }

    pub(super) fn handle_arena_opened(&mut self, arena: ArenaId, slots: u32, address: Vec<u8>) {
        let Some((writer, known)) = self.writer_of(arena) else {
            return self.stop(Broken::ArenaUnasked);
        };
        let ArenaState::Opening { drop } = known.state else {
            return self.stop(Broken::ArenaUnasked);
        };
        known.state = ArenaState::Ready { slots, address };
        if drop {
            self.drop_arena(arena);
        }
        let ready = |arena: &Arena| matches!(arena.state, ArenaState::Ready { .. });
        let whole = self.peers.get(&writer.epoch).is_some_and(|peer| {
            peer.arenas.len() == peer.ranks as usize && peer.arenas.values().all(ready)
        });
        if whole {
            self.stop_trying(writer.epoch);
        }
    }

    /// Offers of this life are answered Busy until there is an arena. What failed may have been short
    /// of memory for a moment, so it is tried again, each time after twice as long.
    pub(super) fn handle_arena_failed(&mut self, arena: ArenaId) {
        let opening = |it: &Arena| it.id == arena && matches!(it.state, ArenaState::Opening { .. });
        let asked = self.peers.iter_mut().find_map(|(epoch, peer)| {
            let rank = *peer.arenas.iter().find(|(_, it)| opening(it))?.0;
            Some((*epoch, rank, peer))
        });
        let Some((epoch, rank, peer)) = asked else {
            return self.stop(Broken::ArenaUnasked);
        };
        peer.arenas.remove(&rank);
        // Ranks whose arenas were asked for together are tried again together.
        if peer.conn.is_some() && !peer.refused && !peer.retry_armed {
            let failures = peer.retry.unwrap_or(0);
            (peer.retry, peer.retry_armed) = (Some(failures.saturating_add(1)), true);
            let after_ms = self.config.arena_ms << failures.min(5);
            self.arm(Timer::Arena(epoch), after_ms);
        }
        self.forget_peer_if_gone(epoch);
    }

    pub(super) fn try_arenas_again(&mut self, epoch: Epoch) {
        // Otherwise the timer was disarmed when it had fired: the life is forgotten.
        if let Some(peer) = self.peers.get_mut(&epoch) {
            peer.retry_armed = false;
            self.open_arenas(epoch);
        }
    }

    /// There is an arena for every rank, or nobody to make one for.
    pub(super) fn stop_trying(&mut self, epoch: Epoch) {
        let Some(peer) = self.peers.get_mut(&epoch) else {
            return self.lost(Entry::Peer);
        };
        peer.retry = None;
        if std::mem::take(&mut peer.retry_armed) {
            self.out.push(Effect::Disarm(Timer::Arena(epoch)));
        }
    }

    pub(super) fn handle_arena_lingers(&mut self, arena: ArenaId) {
        let mut peers = self.peers.values_mut();
        // Otherwise its fence has been told of already, and it stays on the account as it is.
        if let Some(peer) = peers.find(|peer| peer.arenas.values().any(|known| known.id == arena)) {
            peer.lingers(arena);
        }
    }

    /// Only this, and a fence of what nobody maps, takes an incident off a life's account: that time
    /// has passed proves nothing.
    pub(super) fn handle_arena_released(&mut self, arena: ArenaId) {
        let mut peers = self.peers.iter_mut();
        let known = peers.find_map(|(epoch, peer)| peer.released(arena).then_some(*epoch));
        // Otherwise its life was forgotten to make room for another.
        if let Some(epoch) = known {
            self.forget_peer_if_gone(epoch);
        }
    }

    /// Begins the fence. What the arena still owes is failed now; its slots come back never.
    pub(super) fn drop_arena(&mut self, arena: ArenaId) {
        let begun = self.peers.iter_mut().find_map(|(epoch, peer)| {
            let (rank, begins) = peer.begin_fence(arena)?;
            Some((life(*epoch, rank), begins))
        });
        // Otherwise it is fenced, or being fenced, or not made yet: a deadline that was disarmed when
        // it had passed, a second fault of the same writer.
        let Some((writer, true)) = begun else {
            return;
        };
        self.out.push(Effect::Disarm(Timer::Unsettled(arena)));
        self.out.push(Effect::Fence { arena });
        let owing = self.handoffs.iter().filter(|(_, h)| {
            let of_arena = h
                .writers
                .get(writer.rank as usize)
                .is_some_and(|w| w.arena == arena);
            h.is_landing() && h.peer == writer.epoch && of_arena
        });
        for id in owing.map(|(id, _)| *id).collect::<Vec<_>>() {
            let failure = Failure::PeerFailed(Stage::Transfer);
            self.end_handoff(id, Ending::Failed(failure));
        }
    }

    /// The proof is in: writers of this arena that had not closed are gone.
    pub(super) fn fenced(&mut self, arena: ArenaId, proof: WriterGone) {
        let Some((writer, known)) = self.writer_of(arena) else {
            return self.stop(Broken::FenceUnasked);
        };
        let fencing = known.state == ArenaState::Fencing;
        if proof.writer() != writer || proof.scope() != ProofScope::Life {
            return self.stop(Broken::FenceOfAnother);
        }
        if !self.pool.recognises(&proof) {
            return self.stop(Broken::FenceOfAnotherPool);
        }
        if !fencing {
            return self.stop(Broken::FenceUnasked);
        }
        if self.decisions.proves_gone(Evidence::Fenced) {
            self.pool.writer_gone(proof);
        }
        let conn = self.conn_of(writer.epoch);
        for id in self.handoffs.keys().copied().collect::<Vec<_>>() {
            self.writer_gone(id, writer, arena, conn);
            self.settle(id);
        }
        let Some(peer) = self.peers.get_mut(&writer.epoch) else {
            return self.lost(Entry::Peer);
        };
        peer.arenas.remove(&writer.rank);
        peer.fenced(arena);
        if peer.is_worn(self.config.max_drops) {
            self.refuse(writer.epoch, Hangup::Refused);
        }
        self.open_arenas(writer.epoch);
        self.forget_peer_if_gone(writer.epoch);
    }

    fn writer_gone(
        &mut self,
        id: HandoffKey,
        life: WriterLife,
        arena: ArenaId,
        conn: Option<crate::Conn>,
    ) {
        let handoff = self.name(id);
        let Some(h) = self.handoffs.get_mut(&id).filter(|h| h.peer == life.epoch) else {
            return; // another life's
        };
        let Some(writer) = h.writers.get_mut(life.rank as usize) else {
            return self.lost(Entry::Writer); // a ticket names every rank of its life
        };
        if writer.arena != arena {
            return; // its ticket names the one before, which is fenced already, or the one after
        }
        let answers = match writer.state {
            WriterState::Open if writer.voided => Some(Answers::Closed),
            WriterState::Open => None,
            WriterState::Unsettled => Some(Answers::Unsettled),
            WriterState::Sealed { .. } | WriterState::Abandoned | WriterState::Gone => return,
        };
        writer.state = WriterState::Gone;
        if let (Some(conn), Some(answers)) = (conn, answers) {
            writer.answered = true;
            self.send(
                conn,
                DecodeToPrefill::Ended {
                    handoff,
                    rank: life.rank,
                    answers,
                },
            );
        }
    }

    /// An arena with unsettled slots is dropped when nobody else uses it, or when too few slots are
    /// left for a batch; otherwise its deadline does it.
    pub(super) fn drop_if_useless(&mut self, peer: Epoch, rank: u16) {
        let Some(arena) = self.arena(peer, rank) else {
            return; // fenced, or its life forgotten: there is nothing to drop
        };
        if !arena.doubtful || !matches!(arena.state, ArenaState::Ready { .. }) {
            return;
        }
        let id = arena.id;
        let room = (arena.slots() as usize).saturating_sub(arena.unsettled.len());
        let used = self.handoffs.values().any(|h| {
            let writer = h.writers.get(rank as usize);
            h.is_landing() && h.peer == peer && writer.is_some_and(|w| w.arena == id)
        });
        if !used || room < self.config.max_batch_pages {
            self.drop_arena(id);
        }
    }

    pub(super) fn arenas_may_drop(&mut self, peer: Epoch) {
        // None if the life was forgotten with its last handoff.
        let ranks = self.peers.get(&peer).map_or(0, |peer| peer.ranks);
        for rank in 0..ranks {
            self.drop_if_useless(peer, rank);
        }
    }
}
