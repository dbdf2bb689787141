//! One step: every sequence that may run reads what it has and gives one token. Joins and leaves
//! happen between any two steps.

use super::engine::Engine;
use crate::WorkerError;
use handoff::Decisions;
use handoff::decode::{Event, Lane, Output};
use model::{Logits, SequenceInput, Want};

/// Steps between two audits that trust no earlier check of a block table.
const AUDIT_EVERY: u64 = 64;

impl<J: Decisions> Engine<J> {
    pub(super) fn decode_step(&mut self) -> Result<(), WorkerError> {
        let lanes = self.choose_lanes();
        if lanes.is_empty() {
            return Ok(());
        }
        self.tell(Event::StepBegin(lanes.clone()))?;
        self.desk.counters.steps += 1;
        let event = match self.forward(&lanes)? {
            Ok(logits) => Event::StepEnd(self.sample(&lanes, &logits)?),
            Err(error) => {
                tracing::error!(%error, "a step failed: its sequences end");
                Event::StepFailed
            }
        };
        self.tell(event)
    }

    /// All that may run, or as many as a step takes, in turn.
    fn choose_lanes(&mut self) -> Vec<Lane> {
        let mut lanes = self.machine.runnable();
        if lanes.len() > self.max_batch {
            let turn = self.turn % lanes.len();
            lanes.rotate_left(turn);
            lanes.truncate(self.max_batch);
            self.turn = turn + self.max_batch;
        }
        lanes
    }

    /// The outer error ends the worker: a table or a page was not what it must be.
    fn forward(&mut self, lanes: &[Lane]) -> Result<Result<Logits, model::Error>, WorkerError> {
        let mut inputs = Vec::with_capacity(lanes.len());
        for lane in lanes {
            let Some(voice) = self.voices.get(lane) else {
                let evidence = format!("{lane:?} may run and nobody knows its last token");
                return Err(WorkerError::FailStop(evidence));
            };
            inputs.push(SequenceInput {
                tokens: voice.input(),
                want: Want::Last,
            });
        }
        let verified = match self.desk.counters.steps % AUDIT_EVERY {
            0 => self.machine.verify_in_full(),
            _ => self.machine.verify(),
        };
        let verified = verified.map_err(|fault| WorkerError::FailStop(fault.to_string()))?;
        match self
            .model
            .forward(&mut self.scratch, &mut self.kv, &verified, &inputs)
        {
            Err(model::Error::Kv(error)) => Err(WorkerError::FailStop(error.to_string())),
            other => Ok(other),
        }
    }

    fn sample(&mut self, lanes: &[Lane], logits: &Logits) -> Result<Vec<Output>, WorkerError> {
        let mut outputs = Vec::with_capacity(lanes.len());
        for (row, lane) in lanes.iter().enumerate() {
            let (Some(logits), Some(voice)) = (logits.last(row), self.voices.get_mut(lane)) else {
                return Err(WorkerError::FailStop("a step without its logits".into()));
            };
            let token = voice.sample(&mut self.sampler, logits);
            let finish = voice.accept(token.id);
            if finish.is_some() {
                self.voices.remove(lane);
            }
            self.desk.counters.sampled_tokens += 1;
            outputs.push(Output {
                lane: *lane,
                token: token.id,
                payload: token.encode(),
                finish,
            });
        }
        Ok(outputs)
    }
}
