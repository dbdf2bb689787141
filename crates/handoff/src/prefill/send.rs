//! Batches: finished pages go out while later ones are computed. Nothing is ever submitted twice
//! inside a handoff.

use super::state::{ArenaState, Job, Rank, Submission};
use super::{Effect, Prefill, SendPage};
use crate::Decisions;
use crate::id::{JobKey, SubmissionKey};
use crate::{
    ArenaId, Ending, Entry, Failure, HandoffId, Manifest, PrefillToDecode, StatedPage,
    SubmissionId, Write,
};
use pages::Epoch;

impl<J: Decisions> Prefill<J> {
    pub(super) fn handle_attached(&mut self, arena: ArenaId, ok: bool) {
        let mut of_arena = self
            .peers
            .values_mut()
            .flat_map(|peer| peer.arenas.values_mut());
        let Some(known) = of_arena.find(|known| known.id == arena) else {
            return; // replaced or fenced meanwhile: its Detach is on the way
        };
        if known.state != ArenaState::Attaching {
            return; // given up meanwhile: its Detach is on the way
        }
        known.state = if ok {
            ArenaState::Ready
        } else {
            ArenaState::Dead
        };
        for id in self.jobs_of(arena) {
            if ok {
                self.send_more(id);
            } else {
                self.arena_dead(id, arena);
            }
        }
    }

    /// Nothing can be sent to this arena: D shall drop it, and this handoff ends.
    pub(super) fn arena_dead(&mut self, id: JobKey, arena: ArenaId) {
        let job = self.jobs.get_mut(&id);
        let Some(ticket) = job.and_then(|job| job.ticket.as_mut()) else {
            return self.lost(Entry::Ticket); // it names the arena
        };
        for progress in ticket
            .ranks
            .iter_mut()
            .filter(|progress| progress.arena == arena)
        {
            progress.failed = true;
        }
        self.end_job(
            id,
            Ending::Failed(Failure::PeerFailed(crate::Stage::Transfer)),
        );
        self.try_close(id);
    }

    pub(super) fn jobs_of(&self, arena: ArenaId) -> Vec<JobKey> {
        let uses = |job: &Job| {
            job.ticket
                .as_ref()
                .is_some_and(|t| t.ranks.iter().any(|rank| rank.arena == arena))
        };
        self.jobs
            .iter()
            .filter(|(_, job)| uses(job))
            .map(|(id, _)| *id)
            .collect()
    }

    /// Submits what can be sent now, for every rank, and closes what is complete.
    pub(super) fn send_more(&mut self, id: JobKey) {
        let ranks = self.hello.ranks;
        for rank in 0..ranks {
            while self.submit_one(id, rank).is_some() {}
        }
        self.try_close(id);
    }

    /// None: there is nothing to send now, or no more (given up, no ticket yet, D's life or this side's
    /// endpoint is gone).
    fn submit_one(&mut self, id: JobKey, rank: u16) -> Option<()> {
        let job = self.jobs.get_mut(&id).filter(|job| !job.is_over())?;
        let (decode, count) = (job.decode, job.count());
        let ticket = job.ticket.as_mut()?;
        let direct = ticket.is_direct();
        let progress = ticket.ranks.get_mut(rank as usize)?;
        let arena = self.peers.get_mut(&decode)?.arenas.get_mut(&rank)?;
        let usable = self.decisions.same_endpoint(arena.id, progress.arena)
            && arena.state == ArenaState::Ready;
        let complete = job.checksums.len() as u32;
        let ready = complete.saturating_sub(progress.next) as usize;
        let whole = complete as usize == job.pages.len();
        let most = self.config.max_batch_pages;
        let room = match direct {
            true => usize::MAX,
            false => arena.free.len(),
        };
        let n = ready.min(most).min(room);
        let worth_it = n == most || (whole && n > 0) || (n > 0 && n == room);
        if !usable
            || progress.failed
            || !worth_it
            || progress.closing.is_some()
            || progress.flying.len() >= self.config.max_flying
        {
            return None;
        }
        let size = u32::from(self.pool.page_size());
        let mut stated = Vec::with_capacity(n);
        let mut pages = Vec::with_capacity(n);
        for ordinal in progress.next..progress.next + n as u32 {
            let at = (ordinal - ticket.first) as usize;
            let slot = match ticket.targets.get(at) {
                Some(target) => target.index() as u32,
                None => {
                    let Some(slot) = arena.free.take() else {
                        self.lost(Entry::Slot); // as many as are free, at most
                        return None;
                    };
                    slot
                }
            };
            let filled = (count - ordinal * size).min(size) as u16;
            let sent = self.decisions.sent_slots(filled, size as u16);
            // The product has compared their number at the ticket (`ticket_fits`).
            let tag = *ticket.tags.get(at)?;
            let checksum = job.checksums[ordinal as usize];
            stated.push(StatedPage {
                slot,
                tag,
                ordinal,
                filled,
                checksum,
            });
            pages.push(SendPage {
                page: job.pages[ordinal as usize].id(),
                slot,
                filled: sent,
            });
        }
        let batch = progress.batches;
        progress.batches += 1;
        progress.next += n as u32;
        let (handoff, arena) = (ticket.handoff, arena.id);
        let manifest = Manifest {
            handoff,
            rank,
            arena,
            batch,
            pages: stated,
        };
        self.fly(id, manifest, pages)
    }

    /// The source pages are read from now until the write has completed: the ledger holds them.
    fn fly(&mut self, job: JobKey, manifest: Manifest, pages: Vec<SendPage>) -> Option<()> {
        let sources: Vec<_> = pages.iter().map(|page| page.page).collect();
        let begun = self.pool.begin(&sources, &[]);
        let op = self.must(begun)?;
        let n = SubmissionKey(self.mint_id());
        let (rank, arena) = (manifest.rank, manifest.arena);
        let Some(progress) = self.progress(job, rank) else {
            self.lost(Entry::Ticket);
            return None;
        };
        progress.flying.insert(n);
        let early = self.decisions.has_landed(Write::Submitted);
        let early = early.then(|| manifest.clone());
        self.submissions.insert(
            n,
            Submission {
                job,
                arena,
                rank,
                op,
                manifest,
                failed: false,
            },
        );
        let submission = SubmissionId {
            epoch: self.hello.epoch,
            n: n.0,
        };
        self.out.push(Effect::Submit {
            submission,
            arena,
            rank,
            pages,
        });
        if let Some(manifest) = early {
            self.state_batch(job, manifest);
        }
        Some(())
    }

    pub(super) fn handle_written(&mut self, submission: SubmissionId, ok: bool) {
        let n = SubmissionKey(submission.n);
        let Some(sent) = self.submissions.get_mut(&n).filter(|sent| !sent.failed) else {
            return; // let go with its endpoint, or known to have failed
        };
        let id = sent.job;
        let write = if ok { Write::Completed } else { Write::Lost };
        if !self.decisions.has_landed(write) {
            sent.failed = true;
            let manifest = sent.manifest.clone();
            return self.write_lost(n, id, &manifest);
        }
        let (op, rank) = (sent.op, sent.rank);
        let Some(sent) = self.submissions.remove(&n) else {
            return self.lost(Entry::Submission);
        };
        self.state_batch(id, sent.manifest);
        let ended = self.pool.end(op);
        self.must(ended);
        if let Some(progress) = self.progress(id, rank) {
            progress.flying.remove(&n);
        }
        self.send_more(id);
        self.forget_if_done(id);
    }

    /// Says what is in the batch, as of something that has landed.
    fn state_batch(&mut self, id: JobKey, manifest: Manifest) {
        let Some(job) = self.jobs.get_mut(&id) else {
            return self.lost(Entry::Job); // it is not forgotten while something of it is written
        };
        let decode = job.decode;
        let Some((_, progress)) = job.progress(manifest.rank) else {
            return self.lost(Entry::Ticket);
        };
        progress.stated.insert(manifest.batch, manifest.clone());
        self.send(decode, PrefillToDecode::Landed(manifest));
    }

    /// It may land at any time from now on: the handoff can no longer be completed.
    fn write_lost(&mut self, n: SubmissionKey, id: JobKey, manifest: &Manifest) {
        let Some(job) = self.jobs.get_mut(&id) else {
            return self.lost(Entry::Job);
        };
        let decode = job.decode;
        let again = self.decisions.sends_again(manifest);
        let Some((direct, progress)) = job.progress(manifest.rank) else {
            return self.lost(Entry::Ticket);
        };
        progress.flying.remove(&n);
        let slots = manifest.pages.iter().map(|page| page.slot);
        progress.lost.extend(slots);
        progress.failed |= !again;
        if let (true, Some(page)) = (again, manifest.pages.first()) {
            (progress.next, progress.batches) = (page.ordinal, manifest.batch);
        }
        if self.decisions.frees_slots(Write::Lost) && !direct {
            self.free_slots(decode, manifest);
        }
        if again {
            return self.send_more(id);
        }
        self.end_job(id, Ending::Failed(Failure::Unsettled));
        self.try_close(id);
    }

    pub(super) fn taken(&mut self, handoff: HandoffId, rank: u16, batch: u32) {
        let Some((_, job)) = self.job_of(handoff) else {
            return; // it was closed and answered meanwhile
        };
        let decode = job.decode;
        let Some((direct, progress)) = job.progress(rank) else {
            return; // D names a rank that this life does not have
        };
        let Some(manifest) = progress.stated.remove(&batch) else {
            return; // said again after a reconnect, or of a batch that was not stated
        };
        if !direct {
            self.free_slots(decode, &manifest);
        }
        let arena = manifest.arena;
        for job in self.jobs_of(arena) {
            self.send_more(job);
        }
    }

    /// Not in direct mode, where slots are decode's pages. Slots of an arena that is fenced, or of a
    /// life that was given up, are nobody's.
    pub(super) fn free_slots(&mut self, decode: Epoch, manifest: &Manifest) {
        let peer = self.peers.get_mut(&decode);
        let arena = peer
            .and_then(|peer| peer.arenas.get_mut(&manifest.rank))
            .filter(|arena| arena.id == manifest.arena);
        if let Some(arena) = arena {
            arena
                .free
                .put_back(manifest.pages.iter().map(|page| page.slot));
        }
    }

    pub(super) fn job_of(&mut self, handoff: HandoffId) -> Option<(JobKey, &mut Job)> {
        let holds = |job: &Job| {
            job.ticket
                .as_ref()
                .is_some_and(|ticket| ticket.handoff == handoff)
        };
        let mut jobs = self.jobs.iter_mut();
        jobs.find(|(_, job)| holds(job)).map(|(id, job)| (*id, job))
    }

    fn progress(&mut self, id: JobKey, rank: u16) -> Option<&mut Rank> {
        Some(self.jobs.get_mut(&id)?.progress(rank)?.1)
    }
}
