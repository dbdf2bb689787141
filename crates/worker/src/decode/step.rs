//! One step: every sequence that may run reads what it has and gives one token. Joins and leaves
//! happen between any two steps.

use super::engine::Engine;
use crate::choose::ChoiceState;
use crate::masks::Lost;
use crate::{FailStop, WorkerError};
use handoff::decode::{Event, Lane, Output};
use handoff::{Decisions, NoToken};
use model::{Logits, SequenceInput, Want};
use pages::PageId;
use wire::TokenOut;
use wire::trace::Driver;

/// Steps between two audits that trust no earlier check of a block table.
const AUDIT_EVERY: u64 = 64;

impl<J: Decisions> Engine<J> {
    pub(super) fn decode_step(&mut self) -> Result<(), WorkerError> {
        let lanes = self.choose_lanes();
        if lanes.is_empty() {
            return Ok(());
        }
        self.tell(Event::StepBegin(lanes.clone()))?;
        self.driver.counters.steps += 1;
        let event = match self.forward(&lanes)? {
            Ok(logits) => Event::StepEnd(self.sample(&lanes, &logits)?),
            Err(error) => {
                tracing::error!(%error, "a step failed: its sequences end");
                Event::StepFailed(NoToken::Compute)
            }
        };
        self.tell(event)
    }

    /// All that may run, or as many as a step takes, in turn.
    fn choose_lanes(&mut self) -> Vec<Lane> {
        in_turn(self.lanes(), self.max_batch, &mut self.turn)
    }

    /// All that may run. Who waits for a mask has logits already, and sits out.
    pub(super) fn lanes(&self) -> Vec<Lane> {
        let waits = |lane: &Lane| self.choice_states.get(lane).is_some_and(ChoiceState::waits);
        let mut lanes = self.machine.runnable();
        lanes.retain(|lane| !waits(lane));
        lanes
    }

    /// Tokens of those whose mask came behind the end of their step.
    pub(super) fn say_late(&mut self) -> Result<(), WorkerError> {
        let mut late = Vec::new();
        for (lane, choice_state) in &mut self.choice_states {
            let token = choice_state.choose_late(&mut self.sampler);
            late.extend(token.map(|token| (*lane, token)));
        }
        if late.is_empty() {
            return Ok(());
        }
        let outputs = late.into_iter();
        let outputs = outputs
            .map(|(lane, token)| self.output(lane, &token))
            .collect();
        self.tell(Event::First(outputs))
    }

    /// Ends the requests of those that cannot keep to their form any further: alone, by a step of
    /// theirs that fails.
    pub(super) fn end_lost(&mut self) -> Result<(), WorkerError> {
        let waiting = self.choice_states.iter().filter(|(_, state)| state.waits());
        let lost = waiting.filter_map(|(lane, state)| Some((*lane, state.is_lost()?)));
        for (lane, Lost { why, fault }) in lost.collect::<Vec<_>>() {
            if self.machine.runnable().contains(&lane) {
                tracing::warn!(handoff = %lane.handoff, why, "a choice cannot keep to its form");
                self.tell(Event::StepBegin(vec![lane]))?;
                self.tell(Event::StepFailed(fault))?;
            }
        }
        Ok(())
    }

    /// The outer error ends the worker: a table or a page was not what it must be.
    fn forward(&mut self, lanes: &[Lane]) -> Result<Result<Logits, model::Error>, WorkerError> {
        let mut inputs = Vec::with_capacity(lanes.len());
        for lane in lanes {
            let Some(choice_state) = self.choice_states.get(lane) else {
                return Err(FailStop::NoInput(*lane).into());
            };
            inputs.push(SequenceInput {
                tokens: choice_state.input(),
                want: Want::Last,
            });
        }
        let attempt_of = |lane: &Lane| self.machine.attempt_of(lane.handoff);
        let attempts = self.owners.as_ref();
        let attempts = attempts.map(|_| lanes.iter().map(attempt_of).collect::<Vec<_>>());
        let verified = match self.driver.counters.steps % AUDIT_EVERY {
            0 => self.machine.verify_in_full(),
            _ => self.machine.verify(),
        };
        let verified = verified.map_err(FailStop::Table)?;
        if let (Some(owners), Some(attempts)) = (&mut self.owners, attempts) {
            for (attempt, sequence) in attempts.iter().zip(verified.sequences()) {
                if let Some(it) = attempt {
                    owners.took((it.epoch, it.n), sequence.own_pages().map(PageId::index));
                }
            }
        }
        match self
            .model
            .forward(&mut self.scratch, &mut self.kv, &verified, &inputs)
        {
            Err(model::Error::Kv(error)) => Err(FailStop::Memory(error).into()),
            other => Ok(other),
        }
    }

    fn sample(&mut self, lanes: &[Lane], logits: &Logits) -> Result<Vec<Output>, WorkerError> {
        let mut outputs = Vec::with_capacity(lanes.len());
        for (row, lane) in lanes.iter().enumerate() {
            let (Some(logits), Some(choice_state)) =
                (logits.last(row), self.choice_states.get_mut(lane))
            else {
                return Err(FailStop::NoLogits.into());
            };
            if let Some(token) = choice_state.choose(&mut self.sampler, logits) {
                outputs.push(self.output(*lane, &token));
            }
        }
        Ok(outputs)
    }

    /// Takes a sampled token as the next of its sequence.
    fn output(&mut self, lane: Lane, token: &TokenOut) -> Output {
        self.driver.counters.sampled_tokens += 1;
        let choice_state = self.choice_states.get_mut(&lane);
        let finish = choice_state.and_then(|state| state.accept(token.id, &self.masks));
        if finish.is_some() {
            self.choice_states.remove(&lane);
        }
        Output {
            lane,
            token: token.id,
            payload: token.encode(),
            finish,
        }
    }
}

/// All, or as many as a step takes from the one whose turn it is; the next step goes on behind them.
fn in_turn<T>(mut all: Vec<T>, most: usize, turn: &mut usize) -> Vec<T> {
    if all.len() > most {
        let first = *turn % all.len();
        all.rotate_left(first);
        all.truncate(most);
        *turn = first + most;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_may_run_is_in_one_of_as_few_steps_as_hold_all() {
        for n in 1..9_usize {
            for most in 1..9 {
                for begin in 0..12 {
                    let mut turn = begin;
                    let steps = n.div_ceil(most);
                    let mut step = || in_turn((0..n).collect(), most, &mut turn);
                    let mut ran: Vec<_> = (0..steps).flat_map(|_| step()).collect();
                    assert!(ran.len() <= steps * most);
                    ran.sort_unstable();
                    ran.dedup();
                    assert_eq!(ran.len(), n, "{n} in steps of {most} from {begin}");
                }
            }
        }
    }
}
