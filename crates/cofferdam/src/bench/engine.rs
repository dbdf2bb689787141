//! The engine alone: sequences that run in step, with the pages and the verification that a worker has.

use super::figures::{Moment, Sample};
use anyhow::Context;
use model::{KvLayout, KvMemory, Model, Scratch, SequenceInput, Want};
use pages::{BlockTable, Config, Domain, Grant, Owner, OwnerId, Pool, Seal, Step};
use std::hint::black_box;
use std::time::{Duration, Instant};

const PAGE: usize = 16;
/// Tokens of a chunk of prefill, as a worker takes them.
const CHUNK: usize = 512;

pub(super) struct Batch<'m> {
    model: &'m Model,
    pool: Pool,
    kv: KvMemory,
    scratch: Scratch,
    sequences: Vec<(BlockTable, Vec<Grant>)>,
    /// Time that went into pages: verification, and the books behind a step.
    verification: Duration,
}

impl<'m> Batch<'m> {
    /// Empty sequences with room for `tokens` each.
    pub(super) fn new(model: &'m Model, sequences: u16, tokens: u32) -> anyhow::Result<Self> {
        let each = (tokens as usize).div_ceil(PAGE);
        let (mut pool, _mint) = Pool::new(Config {
            pages: (each * usize::from(sequences)) as u32,
            page_size: PAGE as u16,
            scrub: false,
        });
        let mut all = Vec::new();
        for n in 1..=u64::from(sequences) {
            let owner = Owner {
                id: OwnerId::new(n),
                domain: Domain::new(1),
                lane: 0,
            };
            let grants = pool.reserve(owner, each)?;
            let mut table = BlockTable::new(owner, PAGE as u16);
            for (ordinal, grant) in grants.iter().enumerate() {
                let seal = Seal {
                    ordinal: ordinal as u32,
                    filled: 0,
                    checksum: None,
                };
                pool.seal(grant, seal)?;
                table.push_own(grant);
            }
            all.push((table, grants));
        }
        let kv = KvMemory::allocate(KvLayout::new(model.config(), PAGE), &pool);
        Ok(Self {
            model,
            kv: kv.context("memory for the KV cache")?,
            pool,
            scratch: Scratch::default(),
            sequences: all,
            verification: Duration::ZERO,
        })
    }

    /// Computes a prompt in every sequence.
    pub(super) fn prefill(&mut self, tokens: &[u32]) -> anyhow::Result<Sample> {
        let begun = Moment::now();
        for chunk in tokens.chunks(CHUNK) {
            self.step(chunk)?;
        }
        Ok(begun.sample(tokens.len() as u32))
    }

    /// Computes this many tokens in every sequence, one at a time.
    pub(super) fn decode(&mut self, tokens: &[u32]) -> anyhow::Result<(Sample, f64)> {
        let (begun, clock) = (Moment::now(), Instant::now());
        self.verification = Duration::ZERO;
        for token in tokens {
            self.step(&[*token])?;
        }
        let sample = begun.sample(tokens.len() as u32 * self.sequences.len() as u32);
        let share = self.verification.as_secs_f64() / clock.elapsed().as_secs_f64();
        Ok((sample, share))
    }

    fn step(&mut self, tokens: &[u32]) -> anyhow::Result<()> {
        let new = tokens.len() as u32;
        let want = Want::Last;
        let inputs = vec![SequenceInput { tokens, want }; self.sequences.len()];
        let begun = Instant::now();
        let tables = self.sequences.iter_mut();
        let steps = tables.map(|(table, _)| Step { table, new }).collect();
        let verified = self.pool.verify(steps)?;
        self.verification += begun.elapsed();
        let kv = &mut self.kv;
        black_box(
            self.model
                .forward(&mut self.scratch, kv, &verified, &inputs)?,
        );
        drop(verified);
        let begun = Instant::now();
        for (table, grants) in &mut self.sequences {
            let (start, end) = (table.tokens() as usize, (table.tokens() + new) as usize);
            let touched = grants.iter().enumerate().take(end.div_ceil(PAGE));
            for (ordinal, grant) in touched.skip(start / PAGE) {
                let filled = PAGE.min(end - ordinal * PAGE) as u16;
                self.pool.extend(grant, filled, None)?;
            }
            table.advance_to(end as u32);
        }
        self.verification += begun.elapsed();
        Ok(())
    }
}

/// Token ids that mean nothing but spread over the vocabulary.
pub(super) fn tokens(n: u32, vocab: usize, seed: u32) -> Vec<u32> {
    let id = |i: u32| (i.wrapping_mul(7919).wrapping_add(seed)) % vocab as u32;
    (0..n).map(id).collect()
}
