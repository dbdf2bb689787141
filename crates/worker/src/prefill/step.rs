//! One forward pass over a chunk of one prompt. Jobs take turns chunk by chunk, so that a short
//! prompt does not wait for all of a long one. Finished pages are on their way while the next
//! chunk is computed.

use super::engine::{Chunk, Engine};
use crate::choose::{ChoiceState, Rules};
use crate::masks::{Lost, Next};
use crate::{FailStop, WorkerError};
use grammar::Mask;
use handoff::prefill::Event;
use handoff::{Decisions, NoToken, OfferId};
use model::{Logits, SequenceInput, Want};
use pages::PageId;
use std::sync::Arc;
use wire::encode_first;
use wire::trace::Driver;

/// Chunks between two audits that trust no earlier check of a block table.
const AUDIT_EVERY: u64 = 64;

impl<J: Decisions> Engine<J> {
    pub(super) fn prefill_step(&mut self) -> Result<(), WorkerError> {
        let Some(offer) = self.next_job() else {
            return Ok(());
        };
        self.last = Some(offer);
        self.tell(Event::ChunkBegin {
            offer,
            tokens: self.chunk,
        })?;
        let Some(chunk) = self.computing.take().filter(|chunk| chunk.offer == offer) else {
            return Err(FailStop::NoChunk(offer).into());
        };
        self.driver.counters.steps += 1;
        let event = match self.compute(chunk)? {
            Ok((checksums, first)) => {
                if let Some(job) = self.jobs.get_mut(&offer) {
                    job.computed = chunk.to;
                }
                // The prompt is computed: from here on it is decode that waits.
                if let Some(attempt) = self.jobs.get(&offer).filter(|_| chunk.last) {
                    self.enter_stage(attempt.attempt, None);
                }
                self.driver.counters.prompt_tokens += u64::from(chunk.to - chunk.from);
                Event::ChunkEnd {
                    offer,
                    checksums,
                    first,
                }
            }
            Err(why) => Event::ChunkFailed { offer, why },
        };
        self.tell(event)
    }

    fn next_job(&self) -> Option<OfferId> {
        next_in_turn(&self.able(), self.last)
    }

    /// Those with something to compute that need not wait for a mask before it.
    pub(super) fn able(&self) -> Vec<OfferId> {
        let waits = |offer: &OfferId| {
            self.jobs
                .get(offer)
                .is_some_and(|job| job.waits(self.chunk))
        };
        let mut able = self.machine.runnable();
        able.retain(|offer| !waits(offer));
        able
    }

    /// Checksums of the pages that became complete, and with the last chunk the first tokens. The
    /// outer error ends the worker.
    #[allow(clippy::type_complexity)] // both halves are named by the event that takes them
    fn compute(
        &mut self,
        chunk: Chunk,
    ) -> Result<Result<(Vec<u32>, Option<Vec<u8>>), NoToken>, WorkerError> {
        let job = self.jobs.get(&chunk.offer);
        let job = job.and_then(|job| Some((&job.spec, job.rules.clone()?, job.seat.clone())));
        let Some((spec, rules, seat)) = job else {
            return Ok(Err(NoToken::Compute));
        };
        let mask = match seat.filter(|_| chunk.last).map(|seat| seat.next()) {
            None => None,
            Some(Next::Mask(mask)) => Some(mask),
            Some(Next::Coming) => return Ok(Err(NoToken::Compute)), // `able` has left it out
            Some(Next::Never(Lost { why, fault })) => {
                tracing::warn!(offer = %chunk.offer, why, "an answer cannot be held to its form");
                return Ok(Err(fault));
            }
        };
        let Some(tokens) = spec.tokens.get(chunk.from as usize..chunk.to as usize) else {
            return Err(FailStop::ChunkBehindPrompt.into());
        };
        let verified = match self.driver.counters.steps % AUDIT_EVERY {
            0 => self.machine.verify_in_full(),
            _ => self.machine.verify(),
        };
        let verified = verified.map_err(FailStop::Table)?;
        let Some(sequence) = verified.sequences().first() else {
            return Err(FailStop::ChunkWithoutTable.into());
        };
        if let (Some(owners), Some(job)) = (&mut self.owners, self.jobs.get(&chunk.offer)) {
            let it = job.attempt;
            owners.took((it.epoch, it.n), sequence.own_pages().map(PageId::index));
        }
        let pages: Vec<PageId> = sequence.pages().collect();
        let want = if chunk.last {
            Want::Last
        } else {
            Want::Nothing
        };
        let inputs = [SequenceInput { tokens, want }];
        let choices = spec.choices;
        match self
            .model
            .forward(&mut self.scratch, &mut self.kv, &verified, &inputs)
        {
            Ok(logits) => {
                let checksums = self.checksums(chunk, &pages)?;
                let first = chunk
                    .last
                    .then(|| self.first_tokens(&rules, choices, &logits, mask.as_deref()));
                Ok(Ok((checksums, first)))
            }
            Err(model::Error::Kv(error)) => Err(FailStop::Memory(error).into()),
            Err(error) => {
                tracing::error!(offer = %chunk.offer, %error, "a chunk failed: its job ends");
                Ok(Err(NoToken::Compute))
            }
        }
    }

    /// Over exactly the filled slots, by the thread that filled them.
    fn checksums(&self, chunk: Chunk, pages: &[PageId]) -> Result<Vec<u32>, WorkerError> {
        let size = self.kv.layout().page_size;
        complete(chunk, size)
            .map(|ordinal| {
                let filled = (chunk.to - ordinal * size).min(size) as usize;
                Ok(self.kv.checksum(pages[ordinal as usize], filled)?)
            })
            .collect()
    }

    fn first_tokens(
        &mut self,
        rules: &Arc<Rules>,
        choices: u16,
        logits: &Logits,
        mask: Option<&Mask>,
    ) -> Vec<u8> {
        let Some(logits) = logits.last(0) else {
            return encode_first(&[]);
        };
        let tokens: Vec<_> = (0..choices)
            .map(|choice| ChoiceState::new(rules, choice).sample(&mut self.sampler, logits, mask))
            .collect();
        self.driver.counters.sampled_tokens += tokens.len() as u64;
        encode_first(&tokens)
    }
}

/// The next in turn after the one that was computed last.
fn next_in_turn<T: Copy + Ord>(runnable: &[T], last: Option<T>) -> Option<T> {
    let after = runnable.iter().find(|one| Some(**one) > last);
    after.or(runnable.first()).copied()
}

/// Ordinals of the pages that this chunk completes: those it fills, and with the last chunk the
/// prompt's last page however far it is filled.
fn complete(chunk: Chunk, page_size: u32) -> std::ops::Range<u32> {
    let end = if chunk.last {
        chunk.to.div_ceil(page_size)
    } else {
        chunk.to / page_size
    };
    chunk.from / page_size..end
}

#[cfg(test)]
mod tests {
    use super::*;
    use pages::Epoch;
    use proptest::prelude::*;

    /// Whoever comes and goes, each has its chunk before anybody has a second one.
    #[test]
    fn jobs_take_turns() {
        let runnable = [2, 3, 5];
        let mut last = None;
        let mut next = |runnable: &[i32]| {
            last = next_in_turn(runnable, last);
            last
        };
        let turns: Vec<_> = (0..4).filter_map(|_| next(&runnable)).collect();
        assert_eq!(turns, [2, 3, 5, 2]);
        assert_eq!(next(&[2, 5]), Some(5), "3 has ended");
        assert_eq!(next(&[2, 7]), Some(7), "5 has ended, 7 is new");
        assert_eq!(next(&[2, 7]), Some(2));
        assert_eq!(next(&[]), None);
    }

    proptest! {
        #[test]
        fn every_page_is_completed_once_and_in_order(
            cached_pages in 0u32..4, more in 1u32..200, size in 1u32..20, step in 1u32..64,
        ) {
            let count = cached_pages * size + more;
            let offer = OfferId { epoch: Epoch::new(1), n: 1 };
            let mut completed = Vec::new();
            let mut from = cached_pages * size;
            while from < count {
                let to = (from + step).min(count);
                completed.extend(complete(Chunk { offer, from, to, last: to == count }, size));
                from = to;
            }
            let all: Vec<u32> = (cached_pages..count.div_ceil(size)).collect();
            prop_assert_eq!(completed, all);
        }
    }
}
