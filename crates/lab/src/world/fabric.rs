//! Memory and what moves between memories: writes that land, copies, fences.

use super::World;
use super::content::{PAGE_SIZE, checksum, show};
use super::shared::Kept;
use super::state::{CopyInFlight, DecodeLife, FlightState, State};
use crate::model::Notes;
use crate::scenario::Mode;
use crate::{properties, situations};
use handoff::{ArenaId, Decisions, SubmissionId, decode, prefill};
use pages::{PageId, State as PageState};

impl<J: Decisions> World<J> {
    /// A write lands: the bytes are those of its source now.
    pub(super) fn land(&self, state: &mut State<J>, at: usize, corrupt: bool, notes: &mut Notes) {
        let flight = state.flights.remove(at);
        let source = state
            .prefills
            .iter()
            .find(|life| life.epoch == flight.writer);
        let alive = source.is_some_and(|life| life.machine.is_some());
        let memory = source.and_then(|life| life.memory.get(&flight.source));
        let mut cells = memory.copied().unwrap_or_default();
        if corrupt {
            cells[0] = cells[0].corrupted();
        }
        let sent = usize::from(flight.filled.min(PAGE_SIZE));
        notes.tell(|| {
            let (slot, arena, from) = (flight.slot, flight.arena.n, flight.source.index());
            format!(
                "  {} lands in slot {slot} of arena {arena}, from page {from}",
                show(&cells[..sent])
            )
        });
        match flight.state {
            FlightState::Flying => properties::of_sent(self, state, &flight, &cells[..sent], notes),
            FlightState::Late => notes.saw(situations::LATE),
            FlightState::Echo => notes.saw(situations::ECHO),
        }
        if !alive {
            notes.saw(situations::FROM_THE_DEAD);
        }
        if flight.state != FlightState::Flying {
            late(state, &flight, notes);
        }
        torn(state, &flight, notes);
        let through = |life: &Kept<DecodeLife<J>>| life.arenas.contains_key(&flight.arena);
        let Some(life) = state.decodes.iter_mut().find(|life| through(life)) else {
            return; // the endpoint is fenced, or its process is gone: nobody will see it
        };
        let life = life.change();
        match self.setup.mode {
            Mode::Landing => {
                let arena = life.arenas.get_mut(&flight.arena);
                let slot = arena.map(|arena| arena.slots.entry(flight.slot).or_default());
                if let Some(slot) = slot {
                    slot[..sent].copy_from_slice(&cells[..sent]);
                }
            }
            Mode::Direct => {
                properties::of_direct_landing(life, &flight, notes);
                let page = life.memory.entry(PageId::new(flight.slot)).or_default();
                let rank = usize::from(flight.rank).min(super::MAX_RANKS - 1);
                for (slot, cell) in cells[..sent].iter().enumerate() {
                    let slice = &mut page.slices[rank];
                    (slice.cells[slot], slice.under[slot]) = (*cell, flight.tag);
                }
            }
        }
    }

    /// It lands, and stays on its way to land once more.
    pub(super) fn echo(&self, state: &mut State<J>, at: usize, notes: &mut Notes) {
        let mut again = state.flights[at].clone();
        again.state = FlightState::Echo;
        self.land(state, at, false, notes);
        state.flights.push(again);
        forget_unseen(state);
    }

    pub(super) fn written(
        &self,
        state: &mut State<J>,
        p: usize,
        submission: SubmissionId,
        ok: bool,
        notes: &mut Notes,
    ) {
        let life = state.prefills[p].change();
        let of = life.unreported.remove(&submission);
        notes.tell(|| {
            let how = if ok { "complete" } else { "failed" };
            format!("P{p} hears: submission {} is {how}", submission.n)
        });
        if !ok {
            if let Some((Some(handoff), rank, _)) = of {
                life.failed.insert((handoff, rank));
            }
            let machine = life.machine.as_ref();
            let pages = machine.map_or(0, |machine| {
                let sent = |machine: &mut prefill::Prefill<J>| {
                    machine
                        .submission_for_checker(submission)
                        .map(|sent| sent.pages.len())
                };
                machine.ask(sent).unwrap_or_default()
            });
            let flights = state.flights.iter_mut();
            let mut flying = 0;
            for flight in flights.filter(|flight| flight.submission == submission) {
                flight.state = FlightState::Late;
                flying += 1;
            }
            if (1..pages).contains(&flying) {
                notes.saw(situations::HALF_A_BATCH);
            }
            forget_unseen(state);
        } else if self.setup.mode == Mode::Direct {
            // A write that lands once more after its completion would be in D's own pages, and
            // nothing could tell: that "complete" means it cannot is what direct mode relies on.
            state
                .flights
                .retain(|flight| flight.submission != submission);
        }
        self.tell_prefill(state, p, prefill::Event::Written { submission, ok }, notes);
    }

    /// The next page of a copy is read and written; with the last one the copy ends. That a page is
    /// read at the very end of its turn is the latest that it can be, and so the worst for whoever
    /// frees it or lets the slot be written again; reading earlier gives another run in which its
    /// turn ended earlier. Between two pages of a batch anything may happen.
    pub(super) fn copied(&self, state: &mut State<J>, d: usize, at: usize, notes: &mut Notes) {
        let life = state.decodes[d].change();
        let copy = life.copies[at].clone();
        let next = copy.checksums.len();
        if let Some(page) = copy.pages.get(next) {
            let checksum = match copy.arena {
                Some(arena) => copy_out(life, d, &copy, page, arena, notes),
                None => check_in_place(life, &copy, page, notes),
            };
            life.copies[at].checksums.push(checksum);
        }
        if next + 1 < copy.pages.len() {
            return;
        }
        let copy = life.copies.remove(at);
        let (handoff, rank, batch) = (copy.handoff, copy.rank, copy.batch);
        let checksums = Some(copy.checksums);
        let event = decode::Event::Copied {
            handoff,
            rank,
            batch,
            checksums,
        };
        self.tell_decode(state, d, event, notes);
    }

    /// An arena that was asked for has been made.
    pub(super) fn opened(&self, state: &mut State<J>, d: usize, arena: ArenaId, notes: &mut Notes) {
        let life = state.decodes[d].change();
        let at = life.opening.iter().position(|(of, _)| *of == arena);
        let Some((_, writer)) = at.map(|at| life.opening.remove(at)) else {
            return;
        };
        let made = self.arena_made(life, arena, writer);
        self.tell_decode(state, d, made, notes);
    }

    /// It cannot be made.
    pub(super) fn arena_failed(
        &self,
        state: &mut State<J>,
        d: usize,
        arena: ArenaId,
        notes: &mut Notes,
    ) {
        state.left.failed_arenas -= 1;
        notes.saw(situations::ARENA_FAILED);
        let life = state.decodes[d].change();
        life.opening.retain(|(of, _)| *of != arena);
        self.tell_decode(state, d, decode::Event::ArenaFailed { arena }, notes);
    }

    /// P has attached to an arena, or cannot.
    pub(super) fn attached(
        &self,
        state: &mut State<J>,
        p: usize,
        arena: ArenaId,
        ok: bool,
        notes: &mut Notes,
    ) {
        let life = state.prefills[p].change();
        life.attaching.retain(|of| *of != arena);
        self.tell_prefill(state, p, prefill::Event::Attached { arena, ok }, notes);
    }

    /// D's fence is done: it will never look at that memory again.
    pub(super) fn fenced(&self, state: &mut State<J>, d: usize, arena: ArenaId, notes: &mut Notes) {
        notes.saw(situations::FENCED);
        let life = state.decodes[d].change();
        life.fences.retain(|other| *other != arena);
        let (gone, machine) = (life.arenas.remove(&arena), life.machine.as_mut());
        if let (Some(gone), Some(machine)) = (gone, machine) {
            let effects = machine.hear(decode::Input::Fenced(arena, gone.writer));
            self.decode_effects(state, d, effects, notes);
        }
        forget_unseen(state);
    }

    /// Nobody maps a dropped arena any more.
    pub(super) fn released(
        &self,
        state: &mut State<J>,
        d: usize,
        arena: ArenaId,
        notes: &mut Notes,
    ) {
        notes.saw(situations::RELEASED);
        let life = state.decodes[d].change();
        life.lingering.retain(|other| *other != arena);
        let event = handoff::decode::Event::ArenaReleased { arena };
        self.tell_decode(state, d, event, notes);
    }

    /// P's endpoint is destroyed: nothing reads the sources of its submissions any more.
    pub(super) fn detached(
        &self,
        state: &mut State<J>,
        p: usize,
        arena: ArenaId,
        notes: &mut Notes,
    ) {
        let life = state.prefills[p].change();
        life.detaching.retain(|other| *other != arena);
        let writer = life.epoch;
        let of = |flight: &super::Flight| flight.writer == writer && flight.arena == arena;
        state.flights.retain(|flight| !of(flight));
        // Nor is the end of one reported any more, whatever has landed of it.
        life.unreported
            .retain(|_, (_, _, through)| *through != arena);
        self.tell_prefill(state, p, prefill::Event::Detached { arena }, notes);
    }
}

/// A page of a batch moves from the arena to the page that was granted for it.
fn copy_out<J: Decisions>(
    life: &mut DecodeLife<J>,
    d: usize,
    copy: &CopyInFlight,
    page: &decode::CopyPage,
    arena: ArenaId,
    notes: &mut Notes,
) -> u32 {
    let slots = life.arenas.get(&arena).map(|arena| &arena.slots);
    let cells = slots
        .and_then(|slots| slots.get(&page.slot))
        .copied()
        .unwrap_or_default();
    let filled = usize::from(page.filled.min(PAGE_SIZE));
    let held = held(life, page.page);
    properties::of_copied(page.page, held.as_ref(), notes);
    let tag = held.and_then(|holder| holder.tag).map(|tag| tag.stated());
    notes.tell(|| {
        let (to, whose) = (page.page.index(), show(&cells[..filled]));
        let tag = tag.map_or("no tag".into(), |tag| format!("tag {}", tag.0));
        format!("  {whose} is now in D{d}'s page {to} ({tag})")
    });
    let target = life.memory.entry(page.page).or_default();
    let slice = &mut target.slices[usize::from(copy.rank).min(super::MAX_RANKS - 1)];
    for (slot, cell) in cells.iter().enumerate().take(filled) {
        (slice.cells[slot], slice.under[slot]) = (*cell, tag);
    }
    checksum(&cells[..filled])
}

/// Direct mode: what lies in the granted page.
fn check_in_place<J: Decisions>(
    life: &DecodeLife<J>,
    copy: &CopyInFlight,
    page: &decode::CopyPage,
    notes: &mut Notes,
) -> u32 {
    properties::of_checked(page.page, held(life, page.page).as_ref(), notes);
    let memory = life.memory.get(&page.page).copied().unwrap_or_default();
    let slice = &memory.slices[usize::from(copy.rank).min(super::MAX_RANKS - 1)];
    checksum(&slice.cells[..usize::from(page.filled.min(PAGE_SIZE))])
}

/// A write lands where a copy has read some of its pages and not all.
fn torn<J: Decisions>(state: &State<J>, flight: &super::Flight, notes: &mut Notes) {
    let copies = state.decodes.iter().flat_map(|life| &life.copies);
    let mut between = copies.filter(|copy| copy.is_between());
    let names = |copy: &CopyInFlight| match copy.arena {
        Some(arena) => {
            arena == flight.arena && copy.pages.iter().any(|page| page.slot == flight.slot)
        }
        None => copy
            .pages
            .iter()
            .any(|page| page.page.index() == flight.slot as usize),
    };
    if between.any(names) {
        notes.saw(situations::TORN);
    }
}

/// Everything known about a page of D's.
pub(super) fn held<J: Decisions>(
    life: &DecodeLife<J>,
    page: pages::PageId,
) -> Option<pages::Holder> {
    let machine = life.machine.as_ref()?;
    let mut held = machine.view().held.iter();
    held.find(|holder| holder.page == page).cloned()
}

/// Writes that nobody waits for, into memory that nobody looks at any more, may as well never land.
pub(super) fn forget_unseen<J: Decisions>(state: &mut State<J>) {
    let decodes = &state.decodes;
    let seen = |arena: &ArenaId| decodes.iter().any(|life| life.arenas.contains_key(arena));
    let kept = |flight: &super::Flight| flight.state == FlightState::Flying || seen(&flight.arena);
    if !state.flights.iter().all(kept) {
        state.flights.retain(kept);
    }
}

/// What is interesting about a write that lands when nobody expects it any more.
fn late<J: Decisions>(state: &State<J>, flight: &super::Flight, notes: &mut Notes) {
    let others = state
        .flights
        .iter()
        .filter(|other| other.arena == flight.arena);
    if others.into_iter().any(|other| other.slot == flight.slot) {
        notes.saw(situations::SLOT_REUSED);
    }
    let Some(handoff) = flight.handoff else {
        return;
    };
    for life in &state.decodes {
        if life.running.contains_key(&handoff) {
            notes.saw(situations::AFTER_COMMIT);
        }
        let Some(machine) = life
            .machine
            .as_ref()
            .filter(|_| life.epoch == handoff.epoch)
        else {
            continue;
        };
        let held = machine.ask(|machine| machine.holders());
        let of = |holder: &&pages::Holder| holder.owner.is_some_and(|o| o.id.value() == handoff.n);
        let granted = held.iter().any(|holder| holder.state == PageState::Granted);
        if granted && !held.iter().any(|holder| of(&holder)) {
            notes.saw(situations::GRANTED_ANEW);
        }
    }
}
