//! Ends: of an attempt, of a handoff's ownership, and of the memory of it.

use super::state::{Handoff, Phase, StepInFlight, WriterState, life};
use super::{Decode, Effect, Lane, Timer, must};
use crate::Decisions;
use crate::id::HandoffKey;
use crate::prefix::Page;
use crate::{
    Answers, AttemptId, DecodeToPrefill, Ending, Entry, Evidence, Failure, HandoffId, Hangup, Stage,
};
use pages::{OwnerId, Pool};

impl<J: Decisions> Decode<J> {
    /// Ends what the gateway knows, once, and the handoff behind it.
    pub(super) fn end_attempt(&mut self, attempt: AttemptId, ending: Ending) {
        let Some(expected) = self.expected.remove(&attempt) else {
            return; // it has ended, and its handoff waits for its writers
        };
        let evidence = match ending {
            Ending::Cancelled => Some(Evidence::Cancelled),
            Ending::Failed(Failure::Deadline(_)) => Some(Evidence::Deadline),
            _ => None,
        };
        self.forget_turn(attempt);
        self.out.push(Effect::Disarm(Timer::Attempt(attempt)));
        if self.gateways.contains_key(&expected.conn) {
            self.tell_ended(expected.conn, attempt, ending);
        }
        if let Some(id) = expected.handoff {
            self.end_ownership(id);
            if let Some(evidence) = evidence {
                self.writers_over(id, None, evidence);
            }
        }
    }

    pub(super) fn end_handoff(&mut self, id: HandoffKey, ending: Ending) {
        // Otherwise it was forgotten while those that ended with it were.
        if let Some(attempt) = self.handoffs.get(&id).map(|h| h.attempt) {
            self.end_attempt(attempt, ending);
        }
    }

    pub(super) fn end_if_landing(&mut self, id: HandoffKey) {
        if let Some(h) = self.handoffs.get(&id).filter(|h| h.is_landing()) {
            self.end_attempt(
                h.attempt,
                Ending::Failed(Failure::PeerFailed(Stage::Prefill)),
            );
        }
    }

    pub(super) fn attempt_deadline(&mut self, attempt: AttemptId) {
        let Some(expected) = self.expected.get(&attempt) else {
            return; // it ended when the deadline had passed
        };
        let handoff = expected.handoff.and_then(|id| self.handoffs.get(&id));
        let stage = match handoff {
            None => Stage::Prefill,
            Some(h) if h.is_landing() => Stage::Transfer,
            Some(_) => Stage::Decode,
        };
        self.end_attempt(attempt, Ending::Failed(Failure::Deadline(stage)));
    }

    /// The owner ends: its pages go back, at once or when the step that names them has ended; the
    /// ledger keeps those that a copy still writes. Writers that are open are told to close.
    fn end_ownership(&mut self, id: HandoffKey) {
        let in_step = self.step.as_ref().is_some_and(|step| step.names(id));
        let handoff = self.name(id);
        let Some(h) = self.handoffs.get_mut(&id) else {
            return self.lost(Entry::Handoff); // its attempt, which has not ended, names it
        };
        h.phase = Phase::Over { pages_held: true };
        let running = h
            .sequences
            .iter()
            .enumerate()
            .filter(|(_, sequence)| !sequence.done);
        for (choice, _) in running {
            let choice = choice as u16;
            self.out.push(Effect::Stop(Lane { handoff, choice }));
        }
        let open = h
            .writers
            .iter()
            .any(|writer| writer.state == WriterState::Open);
        let peer = h.peer;
        if self.decisions.may_release(in_step) {
            release_pages(&mut self.pool, &mut self.out, h);
        }
        if open {
            if let Some(conn) = self.conn_of(peer) {
                self.send(conn, DecodeToPrefill::Cancel { handoff });
            }
            self.arm(Timer::Cancel(handoff), self.config.cancel_ms);
        }
        self.settle(id);
        self.arenas_may_drop(peer);
    }

    /// The step has ended: what ended while it was in flight gives its pages back now.
    pub(super) fn release_held(&mut self, step: &StepInFlight) {
        for (id, _) in &step.lanes {
            let held = Phase::Over { pages_held: true };
            if let Some(h) = self.handoffs.get_mut(id).filter(|h| h.phase == held) {
                release_pages(&mut self.pool, &mut self.out, h);
                self.settle(*id);
            }
        }
    }

    /// Answers whoever can be answered now, and forgets the handoff when nobody waits for it and
    /// nothing of it can arrive any more.
    pub(super) fn settle(&mut self, id: HandoffKey) {
        let decisions = self.decisions;
        let handoff = self.name(id);
        let Some(h) = self.handoffs.get_mut(&id) else {
            return; // whatever ended it has settled it already
        };
        let Phase::Over { pages_held } = h.phase else {
            return; // it goes on
        };
        let conn = self
            .peers
            .get(&h.peer)
            .and_then(|peer| peer.conn.filter(|_| peer.synced.is_some()));
        for (rank, writer) in h.writers.iter_mut().enumerate() {
            let certified = matches!(
                writer.state,
                WriterState::Sealed { .. } | WriterState::Abandoned
            );
            let drained = decisions.may_answer_closed(writer.copying.len());
            if certified && !writer.answered && drained {
                writer.answered = true;
                if let Some(conn) = conn {
                    let (rank, answers) = (rank as u16, Answers::Closed);
                    let ended = DecodeToPrefill::Ended {
                        handoff,
                        rank,
                        answers,
                    };
                    self.out.push(Effect::ToPrefill(conn, ended));
                }
            }
        }
        if !pages_held && h.writers.iter().all(|writer| writer.is_over()) {
            let peer = h.peer;
            self.handoffs.remove(&id);
            self.out.push(Effect::Disarm(Timer::Cancel(handoff)));
            self.forget_peer_if_gone(peer);
        }
    }

    /// P does not hold it: the same as Closed(Abandoned), answered, for every writer.
    pub(super) fn count_as_closed(&mut self, id: HandoffKey) {
        let Some(h) = self.handoffs.get_mut(&id) else {
            return; // it ended with one that was unlisted as well, and is forgotten
        };
        for writer in &mut h.writers {
            if matches!(writer.state, WriterState::Open | WriterState::Unsettled) {
                writer.state = WriterState::Abandoned;
            }
            writer.answered = true;
        }
        self.writers_over(id, None, Evidence::Closed);
    }

    /// If this proves that a writer (all of them if none is named) can write no more for this
    /// handoff, the ledger hears it: in direct mode no page is free before (H-3). A certificate that
    /// an integrity fault has voided proves nothing.
    pub(super) fn writers_over(&mut self, id: HandoffKey, of: Option<u16>, evidence: Evidence) {
        let Some(h) = self.handoffs.get(&id) else {
            return; // it is forgotten: all its writers are known to be gone
        };
        for (rank, writer) in h.writers.iter().enumerate() {
            let rank = rank as u16;
            let meant = of.is_none_or(|of| of == rank) && !writer.voided;
            if meant && self.decisions.proves_gone(evidence) {
                let proof = self.mint.closed(life(h.peer, rank), OwnerId::new(id.0));
                self.pool.writer_gone(proof);
            }
        }
    }

    /// P has not answered Cancel in time: its arenas are dropped, and it is refused until it says
    /// Hello again. Not before, because one slow request must not fail its neighbours.
    pub(super) fn cancel_deadline(&mut self, handoff: HandoffId) {
        let Some((_, h)) = self.known(handoff) else {
            return; // it was answered and forgotten when the deadline had passed
        };
        let peer = h.peer;
        let open = h
            .writers
            .iter()
            .filter(|writer| writer.state == WriterState::Open);
        let arenas: Vec<_> = open.map(|writer| writer.arena).collect();
        if arenas.is_empty() {
            return; // every writer has closed; what is held is held by a step or a copy
        }
        self.refuse(peer, Hangup::Deadline);
        for arena in arenas {
            self.drop_arena(arena);
        }
    }
}

fn release_pages<J: Decisions>(pool: &mut Pool<J>, out: &mut Vec<Effect>, h: &mut Handoff) {
    h.phase = Phase::Over { pages_held: false };
    let sequences = std::mem::take(&mut h.sequences)
        .into_iter()
        .flat_map(|s| s.own);
    let reserve = std::mem::take(&mut h.reserve).into_iter().flatten();
    let own: Vec<Page> = sequences.chain(reserve).map(Page::Own).collect();
    let prompt = std::mem::take(&mut h.prompt);
    for page in prompt.into_iter().chain(own) {
        must(out, page.give_back(pool));
    }
}
