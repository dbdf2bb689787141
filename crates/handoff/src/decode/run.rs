//! Steps: one token a sequence, over block tables that are verified every time.

use super::state::{Sequence, StepInFlight};
use super::{Decode, Effect, Lane, Output, must};
use crate::Decisions;
use crate::id::HandoffKey;
use crate::prefix::Page;
use crate::{Broken, DecodeToGateway, Ending, Entry, NoToken};
use pages::{Seal, Step, Verified, VerifyFault};
use std::collections::BTreeMap;

impl<J: Decisions> Decode<J> {
    /// Gives every sequence a page for its next token and pins the pages that the step writes. What
    /// it reads cannot be freed either: release waits for the end of the step.
    pub(super) fn handle_step_begin(&mut self, lanes: Vec<Lane>) {
        if self.step.is_some() {
            return self.stop(Broken::StepInStep);
        }
        let mut names = Vec::with_capacity(lanes.len());
        let mut writes = Vec::with_capacity(lanes.len());
        for lane in lanes {
            let Some(page) = self.page_for_next(lane) else {
                return self.stop(Broken::StepNotRunnable);
            };
            names.push((HandoffKey(lane.handoff.n), lane.choice));
            writes.push(page);
        }
        let begun = self.pool.begin(&[], &writes);
        if let Some(op) = self.must(begun) {
            self.step = Some(StepInFlight { op, lanes: names });
        }
    }

    fn page_for_next(&mut self, lane: Lane) -> Option<pages::PageId> {
        let id = self.key(lane.handoff)?;
        let h = self
            .handoffs
            .get_mut(&id)
            .filter(|h| h.is_running() && h.started)?;
        let sequence = h
            .sequences
            .get_mut(lane.choice as usize)
            .filter(|s| !s.done)?;
        if sequence.table.tokens() == sequence.table.capacity() {
            let grant = h.reserve.get_mut(lane.choice as usize)?.pop()?;
            let ordinal = sequence.table.pages().len() as u32;
            let sealed = self.pool.seal(
                &grant,
                Seal {
                    ordinal,
                    filled: 0,
                    checksum: None,
                },
            );
            sequence.table.push_own(&grant);
            sequence.own.push(grant);
            must(&mut self.out, sealed);
        }
        last_page(sequence, &h.prompt)
    }

    pub(super) fn verify_step(&mut self, in_full: bool) -> Result<Verified<'_>, VerifyFault> {
        // Without a step there is nothing that is read.
        let lanes = self
            .step
            .as_ref()
            .map_or(&[][..], |step| step.lanes.as_slice());
        let places: BTreeMap<_, _> = lanes
            .iter()
            .enumerate()
            .map(|(at, lane)| (*lane, at))
            .collect();
        let mut steps = Vec::with_capacity(lanes.len());
        for (id, handoff) in &mut self.handoffs {
            for (choice, sequence) in handoff.sequences.iter_mut().enumerate() {
                if let Some(place) = places.get(&(*id, choice as u16)) {
                    steps.push((
                        *place,
                        Step {
                            table: &mut sequence.table,
                            new: 1,
                        },
                    ));
                }
            }
        }
        steps.sort_by_key(|(place, _)| *place);
        let steps = steps.into_iter().map(|(_, step)| step).collect();
        if in_full {
            self.pool.verify_in_full(steps)
        } else {
            self.pool.verify(steps)
        }
    }

    pub(super) fn handle_step_end(&mut self, outputs: Vec<Output>) {
        let Some(step) = self.step.take() else {
            return self.stop(Broken::StepNotBegun);
        };
        let ended = self.pool.end(step.op);
        self.must(ended);
        for (id, choice) in &step.lanes {
            self.advance(*id, *choice);
        }
        self.handle_outputs(outputs);
        if self.decisions.step_gives_back(false) {
            self.release_held(&step);
        }
    }

    pub(super) fn handle_step_failed(&mut self, why: NoToken) {
        let Some(step) = self.step.take() else {
            return self.stop(Broken::StepNotBegun);
        };
        let ended = self.pool.end(step.op);
        self.must(ended);
        for (id, _) in &step.lanes {
            self.end_handoff(*id, Ending::Failed(why.into()));
        }
        if self.decisions.step_gives_back(true) {
            self.release_held(&step);
        }
    }

    /// The step has written one token of this sequence.
    fn advance(&mut self, id: HandoffKey, choice: u16) {
        let Some(h) = self.handoffs.get_mut(&id) else {
            return self.lost(Entry::Handoff); // it is kept for as long as a step names it
        };
        let Some(sequence) = h.sequences.get_mut(choice as usize) else {
            return self.lost(Entry::Sequence);
        };
        let tokens = sequence.table.tokens() + 1;
        sequence.table.advance_to(tokens);
        let page_size = u32::from(self.pool.page_size());
        let filled = ((tokens - 1) % page_size + 1) as u16;
        let grant = match (sequence.own.last(), h.prompt.last()) {
            (Some(own), _) | (None, Some(Page::Own(own))) => own,
            (None, _) => return self.stop(Broken::WroteShared),
        };
        let extended = self.pool.extend(grant, filled, None);
        self.must(extended);
    }

    /// Hands outputs of running sequences to their gateway; what belongs to an attempt that has
    /// ended meanwhile is nobody's (H-9).
    pub(super) fn handle_outputs(&mut self, outputs: Vec<Output>) {
        for Output {
            lane,
            token,
            payload,
            finish,
        } in outputs
        {
            let known = self.known_mut(lane.handoff);
            let Some((id, h)) = known.filter(|(_, h)| h.is_running()) else {
                continue; // it ended while the step was in flight
            };
            h.started = true;
            let Some(sequence) = h.sequences.get_mut(lane.choice as usize) else {
                return self.lost(Entry::Sequence);
            };
            // Otherwise stopped before anybody had looked at its first token.
            let goes_on = !sequence.done;
            sequence.done |= finish.is_some();
            let (attempt, choice, over) = (h.attempt, lane.choice, h.is_finished());
            if goes_on {
                let Some(expected) = self.expected.get(&attempt) else {
                    return self.lost(Entry::Attempt);
                };
                let tokens = DecodeToGateway::Tokens {
                    attempt,
                    choice,
                    token,
                    payload,
                    finish,
                };
                self.out.push(Effect::ToGateway(expected.conn, tokens));
            }
            if over {
                self.end_handoff(id, Ending::Finished);
            }
        }
    }

    pub(super) fn stop_choice(&mut self, id: HandoffKey, choice: u16) {
        let lane = Lane {
            handoff: self.name(id),
            choice,
        };
        let Some(h) = self.handoffs.get_mut(&id).filter(|h| h.is_running()) else {
            return; // the gateway stops what has not committed
        };
        let Some(sequence) = h.sequences.get_mut(choice as usize) else {
            return; // the gateway names a choice that the attempt does not have
        };
        if !sequence.done {
            sequence.done = true;
            self.out.push(Effect::Stop(lane));
            if h.is_finished() {
                self.end_handoff(id, Ending::Finished);
            }
        }
    }
}

/// The page that the next token of the sequence goes to. Not looked up in the table, whose length
/// a step must not cost.
fn last_page(sequence: &Sequence, prompt: &[Page]) -> Option<pages::PageId> {
    match sequence.own.last() {
        Some(own) => Some(own.page()),
        None => prompt.last().map(Page::id),
    }
}
