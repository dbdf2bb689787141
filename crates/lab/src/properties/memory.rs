//! What memory holds, and who may touch it: H-1, H-2, H-3, H-13, H-17.

use crate::model::Notes;
use crate::world::{
    Cell, Chunk, DecodeLife, Flight, MAX_RANKS, PAGE_SIZE, Page, PrefillLife, Reading, State,
    World, letter,
};
use handoff::decode::{self, Lane, Output};
use handoff::{Decisions, HandoffId};
use pages::{Holder, PageId, State as PageState};

const SIZE: usize = PAGE_SIZE as usize;

/// H-1 at decode: every cell that a step reads is what this position of this prompt must be, and
/// was written under the grant that the page bears now.
pub fn of_reading<J: Decisions>(
    world: &World<J>,
    life: &DecodeLife<J>,
    reading: &Reading,
    notes: &mut Notes,
) {
    let Lane { handoff, choice } = reading.lane;
    let Some(run) = life.running.get(&handoff) else {
        return notes.violates(
            "H-2",
            format!("a step over handoff {}, not committed", handoff.n),
        );
    };
    let ranks = usize::from(world.setup.ranks).min(MAX_RANKS);
    let held = holders(life);
    let behind = world.setup.prompts[run.prompt].tokens.len() as u32;
    let of_request = run.choice + choice;
    let tokens = behind + run.generated.get(usize::from(choice)).copied().unwrap_or(1) - 1;
    notes.check("H-2", reading.position == tokens, || {
        format!(
            "a step at position {}, where {tokens} tokens are there",
            reading.position
        )
    });
    for position in 0..reading.position as usize {
        let Some((page, memory)) = reading.pages.get(position / SIZE) else {
            return notes.violates("H-2", format!("no page for position {position}"));
        };
        let expected = world.expected(run.prompt, of_request, position);
        let holder = held.iter().find(|holder| holder.page == *page);
        right(*page, memory, holder, position, expected, ranks, notes);
        shared_in_domain(world, run.prompt, holder, notes);
    }
}

fn right(
    page: PageId,
    memory: &Page,
    holder: Option<&Holder>,
    position: usize,
    expected: Cell,
    ranks: usize,
    notes: &mut Notes,
) {
    let got = memory.cell(position % SIZE, ranks);
    let tag = holder.and_then(|holder| holder.tag).map(|tag| tag.stated());
    let same = got.is_some_and(|(cell, _)| cell == expected);
    notes.check("H-1", same, || {
        let got = got.map_or("different things in its ranks' slices".into(), |(cell, _)| {
            match cell.whose() {
                Some(whose) => format!("{cell}, which is {}'s", letter(whose)),
                None => "nothing".into(),
            }
        });
        let whose = expected.whose().map_or('?', letter);
        format!(
            "a step of {whose} reads page {} at position {position}: expected {expected}, got {got}",
            page.index()
        )
    });
    let own = got.is_some_and(|(_, under)| under.is_some() && under == tag);
    notes.check("H-1", own, || {
        let under = got
            .and_then(|(_, under)| under)
            .map_or("none".into(), |tag| tag.0.to_string());
        let tag = tag.map_or("none".into(), |tag| tag.0.to_string());
        format!(
            "page {} is read at position {position} under tag {tag} and was written under {under}",
            page.index()
        )
    });
}

/// H-13: a cached page is read inside its own domain only.
fn shared_in_domain<J: Decisions>(
    world: &World<J>,
    prompt: usize,
    holder: Option<&Holder>,
    notes: &mut Notes,
) {
    let Some(holder) = holder.filter(|holder| holder.state == PageState::Cached) else {
        return;
    };
    let domain = world.setup.prompts[prompt].domain;
    let same = holder
        .owner
        .is_some_and(|owner| owner.domain.value() == domain);
    notes.check("H-13", same, || {
        format!(
            "{} reads cached page {} of another domain",
            letter(prompt),
            holder.page.index()
        )
    });
}

/// H-3: nothing changed under a step while it read.
pub fn of_reading_over<J: Decisions>(life: &DecodeLife<J>, reading: &Reading, notes: &mut Notes) {
    for (page, memory) in &reading.pages {
        let now = life.memory.get(page).copied().unwrap_or_default();
        notes.check("H-3", now == *memory, || {
            format!("page {} changed while a step read it", page.index())
        });
    }
}

/// H-1 at prefill: what a pass reads of earlier chunks, or out of P's cache, is this prompt's own.
pub fn of_chunk_reading<J: Decisions>(
    world: &World<J>,
    life: &PrefillLife<J>,
    chunk: &Chunk,
    notes: &mut Notes,
) {
    for position in 0..chunk.tokens.0 as usize {
        let page = chunk.pages.get(position / SIZE).copied();
        let cells = page
            .and_then(|page| life.memory.get(&page))
            .copied()
            .unwrap_or_default();
        let (got, expected) = (
            cells[position % SIZE],
            world.expected(chunk.prompt, chunk.choice, position),
        );
        notes.check("H-1", got == expected, || {
            format!(
                "a pass of {} reads {got} at position {position}",
                letter(chunk.prompt)
            )
        });
    }
}

/// H-2: the committed pages are exactly `[0, n)`: every position has a page, written under this
/// very grant or shared. Looked at in a fork, in which a step of this handoff begins now.
pub fn of_committed_pages<J: Decisions>(
    world: &World<J>,
    life: &DecodeLife<J>,
    handoff: HandoffId,
    notes: &mut Notes,
) {
    let Some((machine, run)) = life.machine.as_ref().zip(life.running.get(&handoff)) else {
        return;
    };
    let count = run.count as usize;
    let choices = run.generated.len() as u16;
    let mut fork = machine.ask(|machine| machine.fork_for_checker());
    let output = |lane| Output {
        lane,
        token: 0,
        payload: Vec::new(),
        finish: None,
    };
    if let Some(step) = &life.step {
        let outputs = step.iter().map(|reading| output(reading.lane)).collect();
        fork.handle(decode::Event::StepEnd(outputs));
    }
    let lanes = (0..choices).map(|choice| Lane { handoff, choice });
    fork.handle(decode::Event::First(lanes.map(output).collect()));
    // One that is short of a page by then, or put back, takes part in no step.
    let mut lanes = fork.runnable();
    lanes.retain(|lane| lane.handoff == handoff);
    fork.handle(decode::Event::StepBegin(lanes.clone()));
    let held = fork.holders();
    let tables = match super::of_verify(&mut fork, notes) {
        Ok(tables) => tables,
        Err(fault) => return notes.violates("H-2", format!("committed, and yet: {fault}")),
    };
    let ranks = usize::from(world.setup.ranks).min(MAX_RANKS);
    for (lane, (start, pages)) in lanes.iter().zip(tables) {
        notes.check("H-2", start == count, || {
            format!("committed {start} tokens of the {count} that the gateway named")
        });
        for position in 0..count {
            let page = pages.get(position / SIZE);
            let memory = page
                .and_then(|page| life.memory.get(page))
                .copied()
                .unwrap_or_default();
            let holder = held.iter().find(|holder| Some(&holder.page) == page);
            let tag = holder.and_then(|holder| holder.tag).map(|tag| tag.stated());
            let cell = memory.cell(position % SIZE, ranks);
            let covered = cell.is_some_and(|(_, under)| under.is_some() && under == tag);
            notes.check("H-2", covered, || {
                format!("committed, and position {position} was never written under its grant")
            });
            let choice = run.choice + lane.choice;
            let expected = world.expected(run.prompt, choice, position);
            notes.check(
                "H-1",
                cell.is_some_and(|(cell, _)| cell == expected),
                || {
                    let got = cell
                        .map_or("other things in each rank's slice".into(), |(cell, _)| {
                            cell.to_string()
                        });
                    format!("committed, and position {position} holds {got} instead of {expected}")
                },
            );
        }
    }
}

/// H-3: a copy is a writer of its pages, and there is one for each batch.
pub fn of_copy_begun<J: Decisions>(
    life: &DecodeLife<J>,
    batch: (HandoffId, u16, u32),
    notes: &mut Notes,
) {
    let mut copies = life.copies.iter();
    let twice = copies.any(|copy| (copy.handoff, copy.rank, copy.batch) == batch);
    notes.check("H-3", !twice, || format!("two copies of batch {}", batch.2));
}

/// H-3: a copy writes a page that is kept for it.
pub fn of_copied(page: PageId, held: Option<&Holder>, notes: &mut Notes) {
    let kept = held.is_some_and(|holder| {
        matches!(holder.state, PageState::Granted | PageState::Quarantined(_)) && holder.writes > 0
    });
    notes.check("H-3", kept, || {
        format!(
            "a copy writes page {}, which nobody keeps for it",
            page.index()
        )
    });
}

/// H-3: a check reads a page that is kept for it.
pub fn of_checked(page: PageId, held: Option<&Holder>, notes: &mut Notes) {
    let kept = held.is_some_and(|holder| {
        matches!(holder.state, PageState::Granted | PageState::Quarantined(_)) && holder.reads > 0
    });
    notes.check("H-3", kept, || {
        format!(
            "a check reads page {}, which nobody keeps for it",
            page.index()
        )
    });
}

/// H-3, direct mode: a write that lands in D's own page is of the page's present grant.
pub fn of_direct_landing<J: Decisions>(life: &DecodeLife<J>, flight: &Flight, notes: &mut Notes) {
    let held = holders(life);
    let holder = held
        .iter()
        .find(|holder| holder.page.index() == flight.slot as usize);
    may_be_written(flight, holder, notes);
}

/// H-3, direct mode: free, cached and sealed pages have no pending write of any grant; a granted
/// one has pending writes of its present grant only.
fn may_be_written(flight: &Flight, holder: Option<&Holder>, notes: &mut Notes) {
    let granted = holder.is_some_and(|holder| {
        matches!(holder.state, PageState::Granted | PageState::Quarantined(_))
    });
    let present = holder.and_then(|holder| holder.tag).map(|tag| tag.stated());
    notes.check("H-3", granted && present == flight.tag, || {
        let tag = |tag: Option<pages::StatedTag>| tag.map_or("none".into(), |tag| tag.0.to_string());
        let state = holder.map_or("free".into(), |holder| format!("{:?}", holder.state));
        format!(
            "a write under tag {} may still land in decode's page {}, which is {state} under tag {}",
            tag(flight.tag),
            flight.slot,
            tag(present)
        )
    });
}

/// H-3, direct mode: see [`may_be_written`], for every write that may still land.
pub(super) fn pending_writes<J: Decisions>(
    state: &State<J>,
    life: &DecodeLife<J>,
    held: &[Holder],
    notes: &mut Notes,
) {
    let flights = state.flights.iter();
    for flight in flights.filter(|flight| life.arenas.contains_key(&flight.arena)) {
        let holder = held
            .iter()
            .find(|holder| holder.page.index() == flight.slot as usize);
        may_be_written(flight, holder, notes);
    }
}

/// H-17: nothing behind the filled slots leaves a worker.
pub fn of_sent<J: Decisions>(
    world: &World<J>,
    state: &State<J>,
    flight: &Flight,
    cells: &[Cell],
    notes: &mut Notes,
) {
    let life = state
        .prefills
        .iter()
        .find(|life| life.epoch == flight.writer);
    let of = |life: &PrefillLife<J>| {
        let (offer, _) = life
            .tickets
            .iter()
            .find(|(_, h)| Some(**h) == flight.handoff)?;
        let machine = life.machine.as_ref()?;
        machine.ask(|machine| machine.spec(*offer).map(|spec| spec.domain.value()))
    };
    let Some(domain) = life.and_then(|life| of(life)) else {
        return;
    };
    for cell in cells {
        let own = cell
            .whose()
            .is_some_and(|whose| world.setup.prompts[whose].domain == domain);
        let residue = *cell == cell.as_residue();
        notes.check("H-17", own && !residue, || {
            format!("{cell} leaves prefill's page {}", flight.source.index())
        });
    }
}

fn holders<J: Decisions>(life: &DecodeLife<J>) -> &[Holder] {
    let machine = life.machine.as_ref();
    machine.map_or(&[], |machine| &machine.view().held)
}
