//! Certificates (H-7) and their answers; how a job is stopped, released and forgotten.

use super::state::Job;
use super::{Effect, Prefill, Timer, must};
use crate::Decisions;
use crate::id::JobKey;
use crate::{
    Answers, ArenaId, AttemptId, Close, Closing, Ending, Entry, Failure, HandoffId,
    PrefillToDecode, Stage,
};

impl<J: Decisions> Prefill<J> {
    /// For every rank whose submissions have all ended: says how it closes, once.
    pub(super) fn try_close(&mut self, id: JobKey) {
        let decisions = self.decisions;
        let Some(job) = self.jobs.get_mut(&id) else {
            return; // what ended it had nothing more to wait for
        };
        let (over, decode, pages) = (job.is_over(), job.decode, job.pages.len() as u32);
        let why = job.why;
        let first = job.first.clone();
        let Some(ticket) = &mut job.ticket else {
            return; // nothing was written
        };
        let (handoff, sent) = (ticket.handoff, pages.wrapping_sub(ticket.first));
        let mut said = Vec::new();
        for (rank, progress) in ticket.ranks.iter_mut().enumerate() {
            if progress.closing.is_some() {
                continue; // said already
            }
            let close = if progress.failed {
                Close::Unsettled
            } else if over {
                Close::Closed(Closing::Abandoned { why })
            } else if first.is_some() && progress.next == pages {
                // Exactly one writer states the first token: the one that sampled it.
                let first = first.clone().filter(|_| rank == 0);
                let batches = progress.batches;
                Close::Closed(Closing::Sealed {
                    batches,
                    pages: sent,
                    first,
                })
            } else {
                continue; // there is more to send
            };
            if !decisions.may_close(&close, progress.flying.len()) {
                continue; // when the last of them has ended
            }
            progress.closing = Some(close);
            said.push(closing_message(handoff, rank, progress));
        }
        for message in said.into_iter().flatten() {
            self.send(decode, message);
        }
    }

    /// D has committed: what was computed may be published in P's own cache, and the job is over.
    pub(super) fn committed(&mut self, handoff: HandoffId) {
        let Some((id, job)) = self.job_of(handoff) else {
            return; // said again, of what is forgotten
        };
        let decode = job.decode;
        // It answers Closed of every rank. Said of a handoff that P has given up it is still an
        // answer, or P would wait for ever, but nothing that was verified.
        let Some(ticket) = &mut job.ticket else {
            return self.lost(Entry::Ticket); // found by it
        };
        let closed = |rank: &super::state::Rank| matches!(rank.closing, Some(Close::Closed(_)));
        let sealed = |rank: &super::state::Rank| {
            matches!(rank.closing, Some(Close::Closed(Closing::Sealed { .. })))
        };
        if !ticket.ranks.iter().all(closed) {
            return; // D says it before all of them have closed: it may not
        }
        let verified = ticket.ranks.iter().all(sealed);
        // Every rank's Closed is answered; slots of batches that were not Taken come back with it.
        let mut freed = Vec::new();
        for progress in &mut ticket.ranks {
            progress.done = true;
            freed.extend(std::mem::take(&mut progress.stated).into_values());
        }
        if !ticket.is_direct() {
            for manifest in &freed {
                self.free_slots(decode, manifest);
            }
        }
        self.publish_if(id, verified);
        self.end_job(id, Ending::Finished);
        self.forget_if_done(id);
    }

    /// Publishes what a job has computed in P's own cache, if it may be (H-9). `verified`: D has
    /// committed it.
    pub(super) fn publish_if(&mut self, id: JobKey, verified: bool) {
        let may = self.decisions.may_publish(verified);
        let Some(job) = self.jobs.get_mut(&id).filter(|_| may) else {
            return; // not verified yet, or not any more
        };
        if job.is_over() || !job.spec.cache || job.first.is_none() {
            return; // given up, private, or not computed to its end
        }
        let pages = std::mem::take(&mut job.pages);
        let owner = super::offer::job_owner(id, job.spec.domain);
        let tokens = &job.spec.tokens;
        let published = self.prefix.publish(&mut self.pool, owner, tokens, pages);
        if let Some(pages) = must(&mut self.out, published) {
            job.pages = pages;
        }
    }

    /// D has no use for it (any more). Unknown: P holds nothing of it, so it is closed.
    pub(super) fn cancelled(&mut self, decode: pages::Epoch, handoff: HandoffId) {
        match self.job_of(handoff) {
            Some((id, _)) => {
                let failure = Failure::PeerFailed(Stage::Transfer);
                self.end_job(id, Ending::Failed(failure));
                self.try_close(id);
            }
            None => {
                for rank in 0..self.hello.ranks {
                    let how = Closing::Abandoned { why: None };
                    self.send(decode, PrefillToDecode::Closed { handoff, rank, how });
                }
            }
        }
    }

    /// The answer to Closed or to Unsettled. It is not taken for the answer to another message.
    pub(super) fn ended(&mut self, handoff: HandoffId, rank: u16, answers: Answers) {
        let Some((id, job)) = self.job_of(handoff) else {
            return; // answered before, or by Committed
        };
        let decode = job.decode;
        let Some((direct, progress)) = job.progress(rank) else {
            return; // D names a rank that this life does not have
        };
        match (&progress.closing, answers) {
            (Some(Close::Closed(_)), Answers::Closed) => {
                progress.done = true;
                let stated = std::mem::take(&mut progress.stated);
                let arena = progress.arena;
                if !direct {
                    for manifest in stated.values() {
                        self.free_slots(decode, manifest);
                    }
                }
                // Sealed here, and yet not committed there: D's ending wins.
                let failure = Failure::PeerFailed(Stage::Transfer);
                self.end_job(id, Ending::Failed(failure));
                for job in self.jobs_of(arena) {
                    self.send_more(job);
                }
            }
            (Some(Close::Unsettled), Answers::Unsettled) => {
                progress.done = true;
                let arena = progress.arena;
                self.detach(arena);
            }
            _ => {} // the answer to another message: to what was said before a reconnect
        }
        self.forget_if_done(id);
    }

    /// The arena is gone at D. This side's endpoint is destroyed too, which is the fence for the
    /// source pages of what never completed.
    fn detach(&mut self, arena: ArenaId) {
        for peer in self.peers.values_mut() {
            peer.arenas.retain(|_, known| known.id != arena);
        }
        self.out.push(Effect::Detach { arena });
    }

    pub(super) fn handle_detached(&mut self, arena: ArenaId) {
        let of_arena = self
            .submissions
            .iter()
            .filter(|(_, sent)| sent.arena == arena);
        for n in of_arena.map(|(n, _)| *n).collect::<Vec<_>>() {
            if !self.submissions[&n].failed {
                self.handle_written(
                    crate::SubmissionId {
                        epoch: self.hello.epoch,
                        n: n.0,
                    },
                    false,
                );
            }
            // Otherwise `handle_written` has let it go (never under the product's decisions).
            if let Some(sent) = self.submissions.remove(&n) {
                let ended = self.pool.end(sent.op);
                self.must(ended);
            }
        }
        for id in self.jobs.keys().copied().collect::<Vec<_>>() {
            self.forget_if_done(id);
        }
        // Any endpoint may be the last one that a lost life waited for, also one replaced before.
        for peer in self.peers.values_mut() {
            peer.detaching.remove(&arena);
        }
        for decode in self.peers.keys().copied().collect::<Vec<_>>() {
            self.forget_peer(decode);
        }
    }

    pub(super) fn end_job(&mut self, id: JobKey, ending: Ending) {
        // Otherwise its attempt has ended already, and it waits for answers.
        if let Some(attempt) = self.jobs.get(&id).and_then(|job| job.attempt) {
            self.end_attempt(attempt, ending);
        }
    }

    /// The attempt has ended: the job computes and sends no more, gives its pages back, and closes.
    pub(super) fn stop_job(&mut self, id: JobKey, why: Option<Failure>) {
        let Some(job) = self.jobs.get_mut(&id) else {
            return self.lost(Entry::Job); // its attempt, which has not ended, names it
        };
        job.why = why;
        job.attempt = None;
        if !self.decisions.may_release(job.chunk.is_some()) {
            job.release_after_chunk = true;
        } else {
            job.release_pages(&mut self.pool, &mut self.out);
        }
        self.try_close(id);
        self.forget_if_done(id);
    }

    /// A job is remembered until its offer or every rank's certificate was answered.
    pub(super) fn forget_if_done(&mut self, id: JobKey) {
        let answered = |job: &Job| job.ticket.as_ref().is_some_and(|ticket| !ticket.is_held());
        let done = |job: &Job| job.is_over() && job.chunk.is_none() && answered(job);
        if let Some(job) = self.jobs.get(&id).filter(|job| done(job)) {
            self.has_answered(job.decode);
            self.remove_job(id);
        }
    }

    /// Forgets a job, its pages given back; its attempt, if that has not ended.
    pub(super) fn remove_job(&mut self, id: JobKey) -> Option<AttemptId> {
        let Some(mut job) = self.jobs.remove(&id) else {
            self.lost(Entry::Job);
            return None;
        };
        job.release_pages(&mut self.pool, &mut self.out);
        let offer = self.name(id);
        if job.owed > 0 {
            self.out.push(Effect::Disarm(Timer::Answer(offer)));
        }
        self.out.push(Effect::Dropped { offer });
        job.attempt
    }
}

/// What a rank says to close, and says again after a reconnect.
pub(super) fn closing_message(
    handoff: HandoffId,
    rank: usize,
    progress: &super::state::Rank,
) -> Option<PrefillToDecode> {
    let rank = rank as u16;
    Some(match progress.closing.clone()? {
        Close::Closed(how) => PrefillToDecode::Closed { handoff, rank, how },
        Close::Unsettled => {
            // Slots that were stated and not Taken do not come back either.
            let stated = progress
                .stated
                .values()
                .flat_map(|manifest| &manifest.pages);
            let stated = stated.map(|page| page.slot);
            let slots = progress.lost.iter().copied().chain(stated).collect();
            PrefillToDecode::Unsettled {
                handoff,
                rank,
                slots,
            }
        }
    })
}
