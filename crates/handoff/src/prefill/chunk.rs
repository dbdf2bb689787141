//! Forward passes over chunks of a prompt. None before the ticket (H-5); pages that a pass names
//! are given back when it has ended.

use super::state::Chunk;
use super::{Effect, Prefill};
use crate::Decisions;
use crate::id::JobKey;
use crate::prefix::Page;
use crate::{Ending, Failure, OfferId};
use pages::{Step, Verified, VerifyFault};

impl<J: Decisions> Prefill<J> {
    pub(super) fn handle_chunk_begin(&mut self, offer: OfferId, tokens: u32) {
        let id = JobKey(offer.n);
        let decisions = self.decisions;
        let can = |job: &super::state::Job| job.can_compute(decisions);
        let ready = self.jobs.get(&id).is_some_and(can);
        if self.computing.is_some() || !ready || tokens == 0 || offer.epoch != self.hello.epoch {
            return self.fail_stop("a chunk began that may not run");
        }
        let Some(job) = self.jobs.get(&id) else {
            return;
        };
        let (from, size) = (job.table.tokens(), u32::from(self.pool.page_size()));
        let to = from.saturating_add(tokens).min(job.count());
        let last = to == job.count();
        let pages: Vec<_> = job.table.pages().collect();
        let first_written = (from / size) as usize;
        let end_written = to.div_ceil(size) as usize;
        let begun = self
            .pool
            .begin(&pages[..first_written], &pages[first_written..end_written]);
        let Some(op) = self.must(begun) else { return };
        if let Some(job) = self.jobs.get_mut(&id) {
            job.chunk = Some(Chunk { op, from, to });
        }
        self.computing = Some(id);
        self.out.push(Effect::Compute {
            offer,
            from,
            to,
            last,
        });
    }

    pub(super) fn verify_chunk(&mut self, in_full: bool) -> Result<Verified<'_>, VerifyFault> {
        let job = self.computing.and_then(|id| self.jobs.get_mut(&id));
        let steps: Vec<Step<'_>> = match job {
            Some(job) => {
                let new = job.chunk.map_or(0, |chunk| chunk.to - chunk.from);
                vec![Step {
                    table: &mut job.table,
                    new,
                }]
            }
            None => Vec::new(),
        };
        if in_full {
            self.pool.verify_in_full(steps)
        } else {
            self.pool.verify(steps)
        }
    }

    pub(super) fn handle_chunk_end(
        &mut self,
        offer: OfferId,
        checksums: &[u32],
        first: Option<Vec<u8>>,
    ) {
        let Some(chunk) = self.end_chunk(offer) else {
            return self.fail_stop("a chunk ended that had not begun");
        };
        let id = JobKey(offer.n);
        let size = u32::from(self.pool.page_size());
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        if job.is_over() {
            return self.after_chunk(id);
        }
        let last = chunk.to == job.count();
        let complete = if last {
            chunk.to.div_ceil(size)
        } else {
            chunk.to / size
        } as usize;
        if job.checksums.len() + checksums.len() != complete || last != first.is_some() {
            return self.fail_stop("a chunk gave other checksums than it completed pages");
        }
        let old = job.checksums.len();
        job.checksums.extend_from_slice(checksums);
        job.table.advance_to(chunk.to);
        job.first = first;
        for ordinal in old..job.pages.len() {
            let start = ordinal as u32 * size;
            let filled = chunk.to.saturating_sub(start).min(size) as u16;
            let (Page::Own(grant), true) = (&job.pages[ordinal], filled > 0) else {
                continue;
            };
            let checksum = job.checksums.get(ordinal).copied();
            if let Err(misuse) = self.pool.extend(grant, filled, checksum) {
                self.out.push(Effect::FailStop(misuse.to_string()));
            }
        }
        self.after_chunk(id);
    }

    pub(super) fn handle_chunk_failed(&mut self, offer: OfferId) {
        if self.end_chunk(offer).is_none() {
            return self.fail_stop("a chunk failed that had not begun");
        }
        self.end_job(JobKey(offer.n), Ending::Failed(Failure::Compute));
        self.after_chunk(JobKey(offer.n));
    }

    fn end_chunk(&mut self, offer: OfferId) -> Option<Chunk> {
        if self.computing != Some(JobKey(offer.n)) || offer.epoch != self.hello.epoch {
            return None;
        }
        self.computing = None;
        let chunk = self.jobs.get_mut(&JobKey(offer.n))?.chunk.take()?;
        let ended = self.pool.end(chunk.op);
        self.must(ended);
        Some(chunk)
    }

    fn after_chunk(&mut self, id: JobKey) {
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        if std::mem::take(&mut job.release_after_chunk) {
            self.release_pages(id);
        }
        self.publish_if(id, false);
        self.send_more(id);
        self.forget_if_done(id);
    }

    pub(super) fn fail_stop(&mut self, what: &str) {
        self.out.push(Effect::FailStop(what.to_owned()));
    }
}
