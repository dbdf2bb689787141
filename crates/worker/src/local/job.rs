//! A request that holds its pages: prompt, block tables, choices.

use super::Event;
use super::engine::{Waiting, broken};
use crate::choose::{ChoiceState, Rules};
use crate::masks::{Lost, Masks, Next, Seat};
use crate::{FailStop, WorkerError};
use handoff::{Capacity, Ending, Failure, Finish, Spec, Stage};
use model::KvMemory;
use pages::{BlockTable, Grant, Owner, OwnerId, Pool, Seal};
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc;

/// See the module's documentation.
pub(super) struct Job {
    pub(super) id: u64,
    pub(super) spec: Spec,
    rules: Arc<Rules>,
    /// Where its choices begin in the form that they are held to.
    seat: Option<Arc<Seat>>,
    deadline: Instant,
    events: mpsc::Sender<Event>,
    /// Pages that hold the prompt: lane 0, read by every choice.
    prompt: Vec<Grant>,
    /// The prompt's table; with one choice it goes on to be that choice's.
    pub(super) table: BlockTable,
    /// Pages of each choice that no sequence has taken yet, last first.
    reserve: Vec<Vec<Grant>>,
    /// The choices; none before the prompt is computed.
    pub(super) sequences: Vec<Sequence>,
}

/// One choice.
pub(super) struct Sequence {
    pub(super) choice_state: ChoiceState,
    /// None with a single choice: it writes the job's own table.
    pub(super) table: Option<BlockTable>,
    own: Vec<Grant>,
    pub(super) done: bool,
}

impl Job {
    /// Takes all pages that the request can ever need, or none.
    pub(super) fn admit(
        pool: &mut Pool,
        capacity: &Capacity,
        masks: &Masks,
        waiting: Waiting,
    ) -> Result<Self, Box<Waiting>> {
        let spec = &waiting.spec;
        let count = spec.tokens.len() as u64;
        let prompt_pages = capacity.pages_for(count) as usize;
        let all = capacity.pages_for(count + u64::from(spec.max_new)) as usize;
        let alone = spec.choices == 1;
        // Several choices share the full pages and copy a partly filled one.
        let full = (count / u64::from(pool.page_size())) as usize;
        let own = if alone {
            all - prompt_pages
        } else {
            all - full
        };
        let lanes = (0..spec.choices).map(|choice| (if alone { 0 } else { choice + 1 }, own));
        let owner = |lane| Owner {
            id: OwnerId::new(waiting.id),
            domain: spec.domain,
            lane,
        };

        let mut taken: Vec<Vec<Grant>> = Vec::new();
        for (lane, pages) in std::iter::once((0, prompt_pages)).chain(lanes) {
            match pool.reserve(owner(lane), pages) {
                Ok(grants) => taken.push(grants),
                Err(_) => {
                    for grant in taken.into_iter().flatten() {
                        // Reserved here a moment ago: the pool takes it back.
                        let _ = pool.release(grant);
                    }
                    return Err(Box::new(waiting));
                }
            }
        }
        let table = BlockTable::new(owner(0), pool.page_size());
        let reserve = taken.split_off(1);
        let prompt = taken.pop().unwrap_or_default();
        let Waiting {
            id,
            spec,
            rules,
            deadline,
            events,
        } = waiting;
        let sequences = Vec::new();
        Ok(Self {
            id,
            spec,
            seat: rules.seat(masks),
            rules,
            deadline,
            events,
            prompt,
            table,
            reserve,
            sequences,
        })
    }

    /// Whether it has to end now, for a reason that lies outside of it.
    pub(super) fn must_end(&self, now: Instant) -> Option<Ending> {
        if self.events.is_closed() {
            return Some(Ending::Cancelled);
        }
        if self.is_finished() {
            return Some(Ending::Finished);
        }
        let stage = if self.sequences.is_empty() {
            Stage::Prefill
        } else {
            Stage::Decode
        };
        (now >= self.deadline).then_some(Ending::Failed(Failure::Deadline(stage)))
    }

    /// What may come first in the form that it is held to, as far as that is known.
    pub(super) fn first_mask(&self) -> Option<Next> {
        self.seat.as_ref().map(|seat| seat.next())
    }

    /// Why it can keep to its form no further, if that is so.
    pub(super) fn is_lost(&self) -> Option<Lost> {
        if let Some(Next::Never(why)) = self.first_mask() {
            return Some(why);
        }
        let running = self.sequences.iter().filter(|sequence| !sequence.done);
        { running }.find_map(|sequence| sequence.choice_state.is_lost())
    }

    pub(super) fn is_finished(&self) -> bool {
        !self.sequences.is_empty() && self.sequences.iter().all(|sequence| sequence.done)
    }

    pub(super) fn stop_choice(&mut self, choice: u16) {
        if let Some(sequence) = self.sequences.get_mut(usize::from(choice)) {
            sequence.done = true;
        }
    }

    /// Prompt tokens that are not computed yet.
    pub(super) fn uncomputed(&self) -> u32 {
        match self.sequences.is_empty() {
            true => self.spec.tokens.len() as u32 - self.table.tokens(),
            false => 0,
        }
    }

    /// Room has been made for everything, so this never waits; a client that left is seen later.
    pub(super) fn say(&self, event: Event) {
        let _ = self.events.try_send(event);
    }

    /// Gives the prompt's table its pages, before the first chunk.
    pub(super) fn lay_out_prompt(&mut self, pool: &mut Pool) -> Result<(), WorkerError> {
        if self.table.capacity() == 0 {
            for (ordinal, grant) in self.prompt.iter().enumerate() {
                seal_empty(pool, grant, ordinal)?;
                self.table.push_own(grant);
            }
        }
        Ok(())
    }

    /// The prompt's tokens up to `tokens` are in their pages.
    pub(super) fn prompt_advanced(
        &mut self,
        pool: &mut Pool,
        tokens: u32,
    ) -> Result<(), WorkerError> {
        let size = u32::from(pool.page_size());
        let first = self.table.tokens() / size;
        for ordinal in first..tokens.div_ceil(size) {
            let filled = (tokens - ordinal * size).min(size) as u16;
            let grant = &self.prompt[ordinal as usize];
            pool.extend(grant, filled, None).map_err(broken)?;
        }
        self.table.advance_to(tokens);
        Ok(())
    }

    /// The prompt is computed: every choice gets its table.
    pub(super) fn begin_choices(
        &mut self,
        pool: &mut Pool,
        kv: &mut KvMemory,
    ) -> Result<(), WorkerError> {
        let alone = self.spec.choices == 1;
        for choice in 0..self.spec.choices {
            let choice_state = ChoiceState::new(&self.rules, choice);
            let mut sequence = Sequence {
                choice_state,
                table: None,
                own: Vec::new(),
                done: false,
            };
            if !alone {
                sequence.table = Some(self.branch(pool, kv, choice, &mut sequence.own)?);
            }
            self.sequences.push(sequence);
        }
        Ok(())
    }

    /// A choice's own table: the full pages of the prompt, and its copy of a partly filled one.
    fn branch(
        &mut self,
        pool: &mut Pool,
        kv: &mut KvMemory,
        choice: u16,
        own: &mut Vec<Grant>,
    ) -> Result<BlockTable, WorkerError> {
        let size = pool.page_size();
        let owner = Owner {
            lane: choice + 1,
            ..self.table.owner()
        };
        let mut table = BlockTable::new(owner, size);
        let count = self.spec.tokens.len();
        for (ordinal, grant) in self.prompt.iter().enumerate() {
            let filled = (count - ordinal * usize::from(size)).min(usize::from(size));
            if filled == usize::from(size) {
                table.push_own(grant);
                continue;
            }
            let copy = next_page(&mut self.reserve, choice)?;
            kv.copy_page(grant.page(), copy.page(), filled)?;
            let (ordinal, filled) = (ordinal as u32, filled as u16);
            pool.seal(
                &copy,
                Seal {
                    ordinal,
                    filled,
                    checksum: None,
                },
            )
            .map_err(broken)?;
            table.push_own(&copy);
            own.push(copy);
        }
        table.advance_to(count as u32);
        Ok(table)
    }

    /// Makes sure that this choice has a page for its next token; names the page.
    pub(super) fn page_for_next(
        &mut self,
        pool: &mut Pool,
        choice: usize,
    ) -> Result<pages::PageId, WorkerError> {
        let sequence = &mut self.sequences[choice];
        let table = sequence.table.as_mut().unwrap_or(&mut self.table);
        if table.tokens() == table.capacity() {
            let grant = next_page(&mut self.reserve, choice as u16)?;
            seal_empty(pool, &grant, table.pages().len())?;
            table.push_own(&grant);
            sequence.own.push(grant);
        }
        let page = table.pages().last();
        Ok(page.ok_or(FailStop::NoPage)?)
    }

    /// The step has written one token of this choice.
    pub(super) fn choice_advanced(
        &mut self,
        pool: &mut Pool,
        choice: usize,
    ) -> Result<(), WorkerError> {
        let sequence = &mut self.sequences[choice];
        let table = sequence.table.as_mut().unwrap_or(&mut self.table);
        let tokens = table.tokens() + 1;
        table.advance_to(tokens);
        let filled = ((tokens - 1) % u32::from(pool.page_size()) + 1) as u16;
        let page = table.pages().last();
        let mut grants = sequence.own.iter().chain(&self.prompt);
        match grants.find(|grant| Some(grant.page()) == page) {
            Some(grant) => pool.extend(grant, filled, None).map_err(broken),
            None => Err(FailStop::NoGrant.into()),
        }
    }

    /// Hands one sampled token of a choice on.
    pub(super) fn deliver(&mut self, choice: usize, token: wire::TokenOut, masks: &Masks) {
        let sequence = &mut self.sequences[choice];
        if sequence.done {
            return;
        }
        let finish: Option<Finish> = sequence.choice_state.accept(token.id, masks);
        sequence.done = finish.is_some();
        self.say(Event::Token {
            choice: choice as u16,
            token,
            finish,
        });
    }

    /// Everything that it holds.
    pub(super) fn take_pages(&mut self) -> Vec<Grant> {
        let sequences = std::mem::take(&mut self.sequences).into_iter();
        let reserve = std::mem::take(&mut self.reserve).into_iter().flatten();
        let prompt = std::mem::take(&mut self.prompt);
        sequences
            .flat_map(|sequence| sequence.own)
            .chain(reserve)
            .chain(prompt)
            .collect()
    }
}

fn next_page(reserve: &mut [Vec<Grant>], choice: u16) -> Result<Grant, WorkerError> {
    let grant = reserve.get_mut(usize::from(choice)).and_then(Vec::pop);
    Ok(grant.ok_or(FailStop::ReserveEmpty)?)
}

fn seal_empty(pool: &mut Pool, grant: &Grant, ordinal: usize) -> Result<(), WorkerError> {
    let ordinal = ordinal as u32;
    pool.seal(
        grant,
        Seal {
            ordinal,
            filled: 0,
            checksum: None,
        },
    )
    .map_err(broken)
}
