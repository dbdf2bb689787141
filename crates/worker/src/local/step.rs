//! One forward pass: a chunk of the oldest prompt and one token of every running choice, together.
//! What stands in one row does not depend on the others (batch invariance), so mixing is free.

use super::Event;
use super::engine::{Engine, broken};
use super::job::{Job, Sequence};
use crate::masks::{Lost, Next};
use crate::{FailStop, WorkerError};
use handoff::{Ending, Failure};
use model::{Logits, SequenceInput, Want};
use pages::{PageId, Step};

/// Steps between two audits that trust no earlier check of a block table.
const AUDIT_EVERY: u64 = 64;

/// What a step computes.
#[derive(Default)]
struct Plan {
    /// A job and the tokens of its prompt up to which it is computed.
    chunk: Option<(u64, u32)>,
    /// Jobs and choices.
    lanes: Vec<(u64, usize)>,
}

impl Engine {
    /// False: there is nothing to do before a mask has come.
    pub(super) fn step(&mut self) -> Result<bool, WorkerError> {
        self.end_lost()?;
        let late = self.say_late()?;
        let (plan, writes) = self.plan()?;
        if writes.is_empty() {
            return Ok(late);
        }
        let op = self.pool.begin(&[], &writes).map_err(broken)?;
        let computed = self.forward(&plan);
        self.pool.end(op).map_err(broken)?;
        self.counters.steps += 1;
        match computed? {
            Ok(logits) => self.apply(&plan, &logits)?,
            Err(error) => {
                tracing::error!(%error, "a step failed: its requests end");
                let lanes = plan.lanes.iter().map(|(id, _)| *id);
                for id in plan.chunk.iter().map(|(id, _)| *id).chain(lanes) {
                    self.end(id, Ending::Failed(Failure::Compute))?;
                }
            }
        }
        Ok(true)
    }

    /// Ends what can keep to its form no further.
    fn end_lost(&mut self) -> Result<(), WorkerError> {
        let lost = self
            .jobs
            .values()
            .filter_map(|job| Some((job.id, job.is_lost()?)));
        for (id, Lost { why, fault }) in lost.collect::<Vec<_>>() {
            tracing::warn!(id, why, "an answer cannot keep to its form");
            self.end(id, Ending::Failed(fault.into()))?;
        }
        Ok(())
    }

    /// Tokens of those whose mask came behind the end of their step; whether there were any.
    fn say_late(&mut self) -> Result<bool, WorkerError> {
        let before = self.counters.sampled_tokens;
        for job in self.jobs.values_mut() {
            for choice in 0..job.sequences.len() {
                let state = &mut job.sequences[choice].choice_state;
                if let Some(token) = state.choose_late(&mut self.sampler) {
                    self.counters.sampled_tokens += 1;
                    job.deliver(choice, token, &self.masks);
                }
            }
        }
        self.end_finished()?;
        Ok(self.counters.sampled_tokens > before)
    }

    fn end_finished(&mut self) -> Result<(), WorkerError> {
        let finished = self.jobs.values().filter(|job| job.is_finished());
        for id in finished.map(|job| job.id).collect::<Vec<_>>() {
            self.end(id, Ending::Finished)?;
        }
        Ok(())
    }

    /// What the next step computes, and the pages that it writes.
    fn plan(&mut self) -> Result<(Plan, Vec<PageId>), WorkerError> {
        let mut plan = Plan::default();
        let mut writes = Vec::new();
        let size = u32::from(self.pool.page_size());
        for (id, job) in &mut self.jobs {
            let rest = job.uncomputed();
            // The last chunk gives first tokens, which need their mask.
            let last = rest <= self.chunk;
            let waits = last && matches!(job.first_mask(), Some(Next::Coming));
            if rest > 0 && !waits && plan.chunk.is_none() {
                job.lay_out_prompt(&mut self.pool)?;
                let from = job.table.tokens();
                let to = from + rest.min(self.chunk);
                plan.chunk = Some((*id, to));
                let pages = (from / size) as usize..to.div_ceil(size) as usize;
                writes.extend(job.table.pages().skip(pages.start).take(pages.len()));
            }
            for choice in 0..job.sequences.len() {
                let sequence = &job.sequences[choice];
                let waits = sequence.choice_state.waits();
                if sequence.done || waits || plan.lanes.len() >= self.max_batch {
                    continue;
                }
                writes.push(job.page_for_next(&mut self.pool, choice)?);
                plan.lanes.push((*id, choice));
            }
        }
        Ok((plan, writes))
    }

    /// The outer error ends the engine: a table or a page was not what it must be.
    fn forward(&mut self, plan: &Plan) -> Result<Result<Logits, model::Error>, WorkerError> {
        let mut steps = Vec::new();
        let mut inputs = Vec::new();
        let mut ids = Vec::new();
        for (id, job) in &mut self.jobs {
            let Job {
                table,
                sequences,
                spec,
                ..
            } = job;
            if let Some((_, to)) = plan.chunk.filter(|(chunk, _)| chunk == id) {
                let (from, last) = (table.tokens(), to as usize == spec.tokens.len());
                let tokens = &spec.tokens[from as usize..to as usize];
                inputs.push(SequenceInput {
                    tokens,
                    want: if last { Want::Last } else { Want::Nothing },
                });
                ids.push(*id);
                steps.push(Step {
                    table,
                    new: to - from,
                });
                continue;
            }
            let mut own = Some(table);
            for (choice, sequence) in sequences.iter_mut().enumerate() {
                if !plan.lanes.contains(&(*id, choice)) {
                    continue;
                }
                let Sequence {
                    table,
                    choice_state,
                    ..
                } = sequence;
                // A single choice goes on in the job's table; several have their own.
                let Some(table) = table.as_mut().or_else(|| own.take()) else {
                    continue;
                };
                inputs.push(SequenceInput {
                    tokens: choice_state.input(),
                    want: Want::Last,
                });
                ids.push(*id);
                steps.push(Step { table, new: 1 });
            }
        }
        let verified = match self.counters.steps % AUDIT_EVERY {
            0 => self.pool.verify_in_full(steps),
            _ => self.pool.verify(steps),
        };
        let verified = verified.map_err(FailStop::Table)?;
        if let Some(owners) = &mut self.owners {
            for (id, sequence) in ids.iter().zip(verified.sequences()) {
                owners.took((self.epoch, *id), sequence.own_pages().map(PageId::index));
            }
        }
        let computed = self
            .model
            .forward(&mut self.scratch, &mut self.kv, &verified, &inputs);
        match computed {
            Err(model::Error::Kv(error)) => Err(FailStop::Memory(error).into()),
            other => Ok(other),
        }
    }

    /// Advances what was computed and samples from it. Rows are in the order of `forward`.
    fn apply(&mut self, plan: &Plan, logits: &Logits) -> Result<(), WorkerError> {
        let mut row = 0;
        for (id, job) in &mut self.jobs {
            if let Some((_, to)) = plan.chunk.filter(|(chunk, _)| chunk == id) {
                self.counters.prompt_tokens += u64::from(to - job.table.tokens());
                job.prompt_advanced(&mut self.pool, to)?;
                if let Some(logits) = logits.last(row) {
                    job.begin_choices(&mut self.pool, &mut self.kv)?;
                    job.say(Event::Committed);
                    let mask = match job.first_mask() {
                        Some(Next::Mask(mask)) => Some(mask),
                        _ => None, // `plan` has waited for it
                    };
                    for choice in 0..job.sequences.len() {
                        let state = &mut job.sequences[choice].choice_state;
                        let token = state.sample(&mut self.sampler, logits, mask.as_deref());
                        self.counters.sampled_tokens += 1;
                        job.deliver(choice, token, &self.masks);
                        let sequence = &mut job.sequences[choice];
                        if !sequence.done {
                            sequence.choice_state.hold(&self.masks);
                        }
                    }
                }
                row += 1;
                continue;
            }
            for choice in 0..job.sequences.len() {
                if !plan.lanes.contains(&(*id, choice)) {
                    continue;
                }
                job.choice_advanced(&mut self.pool, choice)?;
                let Some(logits) = logits.last(row) else {
                    return Err(FailStop::NoLogits.into());
                };
                let state = &mut job.sequences[choice].choice_state;
                if let Some(token) = state.choose(&mut self.sampler, logits) {
                    self.counters.sampled_tokens += 1;
                    job.deliver(choice, token, &self.masks);
                }
                row += 1;
            }
        }
        self.end_finished()
    }
}
