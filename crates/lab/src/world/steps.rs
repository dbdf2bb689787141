//! Forward passes. Each is an interval: it reads when it begins and must find the same when it
//! ends, and writes at its end.

use super::World;
use super::content::{Cells, MAX_RANKS, PAGE_SIZE, checksum, letter, show};
use super::state::{DecodeLife, Reading, State};
use crate::model::Notes;
use crate::{properties, situations};
use handoff::decode::{Event, Lane, Output};
use handoff::{Decisions, Finish, OfferId, prefill};
use pages::{PageId, State as PageState};

const SIZE: usize = PAGE_SIZE as usize;

impl<J: Decisions> World<J> {
    pub(super) fn chunk_begin(
        &self,
        state: &mut State<J>,
        p: usize,
        offer: OfferId,
        notes: &mut Notes,
    ) {
        let tokens = self.setup.chunk;
        self.tell_prefill(
            state,
            p,
            prefill::Event::ChunkBegin { offer, tokens },
            notes,
        );
        let life = state.prefills[p].change();
        let (Some(machine), Some(chunk)) = (&life.machine, &mut life.chunk) else {
            return;
        };
        let tables = machine.ask(|machine| properties::of_verify(machine, notes));
        match tables.as_deref() {
            Ok([(_, pages)]) => chunk.pages = pages.clone(),
            Ok(many) => {
                let many = many.len();
                return notes.violates("H-1", format!("a chunk of {many} sequences"));
            }
            Err(why) => return notes.violates("H-1", format!("P{p} may not compute: {why}")),
        }
        notes.tell(|| {
            let ((from, to), prompt) = (chunk.tokens, letter(chunk.prompt));
            format!("  P{p} computes tokens {from}..{to} of prompt {prompt}")
        });
        let chunk = chunk.clone();
        properties::of_chunk_reading(self, life, &chunk, notes);
    }

    pub(super) fn chunk_end(&self, state: &mut State<J>, p: usize, notes: &mut Notes) {
        let life = state.prefills[p].change();
        let Some(chunk) = life.chunk.take() else {
            return;
        };
        properties::of_chunk_reading(self, life, &chunk, notes);
        let (from, to) = (chunk.tokens.0 as usize, chunk.tokens.1 as usize);
        let count = if chunk.last {
            to // which is less than the prompt has, if somebody has cut it
        } else {
            usize::MAX
        };
        for position in from..to {
            let Some(page) = chunk.pages.get(position / SIZE) else {
                break;
            };
            let cells: &mut Cells = life.memory.entry(*page).or_default();
            cells[position % SIZE] = self.expected(chunk.prompt, chunk.choice, position);
        }
        let mut checksums = Vec::new();
        for (ordinal, page) in chunk.pages.iter().enumerate().skip(from / SIZE) {
            let end = ((ordinal + 1) * SIZE).min(count);
            if end <= to {
                let cells = life.memory.get(page).copied().unwrap_or_default();
                checksums.push(checksum(&cells[..end - ordinal * SIZE]));
                notes.tell(|| format!("  P{p}'s page {} holds {}", page.index(), show(&cells)));
            }
        }
        let first = chunk.last.then(|| vec![chunk.prompt as u8]);
        let offer = chunk.offer;
        let event = prefill::Event::ChunkEnd {
            offer,
            checksums,
            first,
        };
        self.tell_prefill(state, p, event, notes);
    }

    /// The worker looks at the first tokens: one that is the last ends the answer.
    pub(super) fn first(&self, state: &mut State<J>, d: usize, at: usize, notes: &mut Notes) {
        let life = state.decodes[d].change();
        let handoff = life.starts.remove(at);
        let Some(run) = life.running.get(&handoff) else {
            return;
        };
        let lanes = run.generated.iter().zip(0..);
        let outputs = lanes.map(|(generated, choice)| {
            let lane = Lane { handoff, choice };
            self.output(lane, run.prompt, run.choice + choice, generated - 1)
        });
        let outputs = outputs.collect();
        self.tell_decode(state, d, Event::First(outputs), notes);
    }

    /// A step of all sequences that can run; or, from the one whose `turn` it is and round from the
    /// last to the first, of as many as a step takes.
    pub(super) fn step_begin(
        &self,
        state: &mut State<J>,
        d: usize,
        turn: Option<usize>,
        notes: &mut Notes,
    ) {
        let Some(machine) = &state.decodes[d].machine else {
            return;
        };
        let mut lanes = machine.view().runnable.clone();
        if let Some(turn) = turn.filter(|turn| *turn < lanes.len()) {
            lanes.rotate_left(turn);
            lanes.truncate(self.setup.lanes);
        }
        if !lanes.is_sorted() {
            notes.saw(situations::OUT_OF_ORDER);
        }
        self.tell_decode(state, d, Event::StepBegin(lanes.clone()), notes);
        let life = state.decodes[d].change();
        let Some(machine) = &life.machine else { return };
        let tables = match machine.ask(|machine| properties::of_verify(machine, notes)) {
            Ok(tables) => tables,
            Err(why) => return notes.violates("H-1", format!("D{d} may not step: {why}")),
        };
        notes.saw(situations::STEP);
        let mut step = Vec::new();
        for (lane, (start, pages)) in lanes.into_iter().zip(tables) {
            let holds = |page: PageId| (page, life.memory.get(&page).copied().unwrap_or_default());
            let pages = pages.into_iter().map(holds).collect();
            let reading = Reading {
                lane,
                pages,
                position: start as u32,
            };
            properties::of_reading(self, life, &reading, notes);
            read(life, &reading, notes);
            step.push(reading);
        }
        life.step = Some(step);
    }

    pub(super) fn step_end(&self, state: &mut State<J>, d: usize, notes: &mut Notes) {
        let life = state.decodes[d].change();
        let Some(step) = life.step.take() else { return };
        let mut outputs = Vec::new();
        for reading in &step {
            properties::of_reading_over(life, reading, notes);
            let lane = reading.lane;
            let position = reading.position as usize;
            let Some(run) = life.running.get_mut(&lane.handoff) else {
                continue;
            };
            let (prompt, choice) = (run.prompt, run.choice + lane.choice);
            let generated = &mut run.generated[usize::from(lane.choice)];
            let n = *generated;
            *generated += 1;
            if let Some((page, _)) = reading.pages.get(position / SIZE) {
                let cell = self.expected(prompt, choice, position);
                let tag = super::fabric::held(life, *page).and_then(|holder| holder.tag);
                let tag = tag.map(|tag| tag.stated());
                let page = life.memory.entry(*page).or_default();
                for slice in &mut page.slices[..usize::from(self.setup.ranks).min(MAX_RANKS)] {
                    (slice.cells[position % SIZE], slice.under[position % SIZE]) = (cell, tag);
                }
            }
            outputs.push(self.output(lane, prompt, choice, n));
        }
        self.tell_decode(state, d, Event::StepEnd(outputs), notes);
    }

    /// The `n`-th token of this choice of a request.
    fn output(&self, lane: Lane, prompt: usize, choice: u16, n: u32) -> Output {
        let last = n + 1 == self.setup.prompts[prompt].max_new;
        Output {
            lane,
            token: Self::token(prompt, choice, n),
            payload: vec![prompt as u8, choice as u8, n as u8],
            finish: last.then_some(Finish::Length),
        }
    }
}

/// What is interesting about what a step reads.
fn read<J: Decisions>(life: &DecodeLife<J>, reading: &Reading, notes: &mut Notes) {
    let committed = life.running.contains_key(&reading.lane.handoff);
    if committed && reading.position > 0 {
        notes.saw(situations::READ);
    }
    let held = |page: &PageId| super::fabric::held(life, *page);
    let pages = reading.pages.iter().filter_map(|(page, _)| held(page));
    let cached = pages.filter(|holder| holder.state == PageState::Cached);
    let others = cached.filter(|holder| {
        let owner = holder.owner.map(|owner| owner.id.value());
        owner != Some(reading.lane.handoff.n)
    });
    match others.count() {
        0 => {}
        1 => notes.saw(situations::READ_CACHED),
        _ => {
            notes.saw(situations::READ_CACHED);
            notes.saw(situations::READ_CHAIN);
        }
    }
}
