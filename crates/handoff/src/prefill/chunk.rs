//! Forward passes over chunks of a prompt. None before the ticket (H-5); pages that a pass names
//! are given back when it has ended.

use super::state::Chunk;
use super::{Effect, Prefill, must};
use crate::Decisions;
use crate::id::JobKey;
use crate::prefix::Page;
use crate::{Broken, Ending, Entry, NoToken, OfferId};
use pages::{Step, Verified, VerifyFault};

impl<J: Decisions> Prefill<J> {
    pub(super) fn handle_chunk_begin(&mut self, offer: OfferId, tokens: u32) {
        let id = JobKey(offer.n);
        let decisions = self.decisions;
        let alone = self.computing.is_none() && offer.epoch == self.hello.epoch;
        let job = self.jobs.get_mut(&id).filter(|_| alone && tokens > 0);
        let Some(job) = job.filter(|job| job.can_compute(decisions)) else {
            return self.stop(Broken::ChunkNotRunnable);
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
        let Some(op) = must(&mut self.out, begun) else {
            return;
        };
        job.chunk = Some(Chunk { op, from, to });
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
        let job = job.and_then(|job| Some((job.chunk?, &mut job.table)));
        let steps: Vec<Step<'_>> = match job {
            Some((chunk, table)) => {
                let new = chunk.to - chunk.from;
                vec![Step { table, new }]
            }
            None => Vec::new(), // no chunk: nothing is read
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
            return self.stop(Broken::ChunkNotBegun);
        };
        let id = JobKey(offer.n);
        let size = u32::from(self.pool.page_size());
        let Some(job) = self.jobs.get_mut(&id) else {
            return self.lost(Entry::Job);
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
            return self.stop(Broken::ChunkCount);
        }
        let old = job.checksums.len();
        job.checksums.extend_from_slice(checksums);
        job.table.advance_to(chunk.to);
        job.first = first;
        for ordinal in old..job.pages.len() {
            let start = ordinal as u32 * size;
            let filled = chunk.to.saturating_sub(start).min(size) as u16;
            let (Page::Own(grant), true) = (&job.pages[ordinal], filled > 0) else {
                continue; // a cached page, or one that the chunk has not reached
            };
            let checksum = job.checksums.get(ordinal).copied();
            must(&mut self.out, self.pool.extend(grant, filled, checksum));
        }
        self.after_chunk(id);
    }

    pub(super) fn handle_chunk_failed(&mut self, offer: OfferId, why: NoToken) {
        if self.end_chunk(offer).is_none() {
            return self.stop(Broken::ChunkNotBegun);
        }
        self.end_job(JobKey(offer.n), Ending::Failed(why.into()));
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
            return; // its failure has ended it, and nobody owes it an answer
        };
        if std::mem::take(&mut job.release_after_chunk) {
            job.release_pages(&mut self.pool, &mut self.out);
        }
        self.publish_if(id, false);
        self.send_more(id);
        self.forget_if_done(id);
    }
}
