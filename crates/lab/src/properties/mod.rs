//! The specification's clauses as functions over a world and a step. Each is named by its clause
//! and judges what it is given: pages by their content, machines by what they say, the ledger by a
//! recount. They know nothing of what is being tried on the machines.
//!
//! H-11, H-14 and H-18 are about runs, not states: the explorers judge them, by backward fixpoint.

mod memory;
mod said;
mod tables;

pub use memory::*;
pub use said::*;
pub use tables::*;

use crate::model::Notes;
use crate::scenario::Mode;
use crate::world::{
    Cell, Client, DecodeLife, FlightState, PAGE_SIZE, PrefillLife, State, World, letter,
};
use handoff::{Decisions, decode, gateway, prefill};
use pages::{Counts, Holder, PageId, State as PageState};

const SIZE: usize = PAGE_SIZE as usize;

/// What must hold in every world.
pub fn of_state<J: Decisions>(world: &World<J>, state: &State<J>, notes: &mut Notes) {
    for life in &state.prefills {
        let Some(machine) = &life.machine else {
            continue;
        };
        let view = machine.view();
        let (held, counts, load) = (&view.held, view.counts, view.load);
        adds_up("prefill", held, counts, notes);
        sources_are_kept(state, life, held, notes);
        let armed = life
            .timers
            .iter()
            .filter(|timer| matches!(timer, prefill::Timer::Attempt(_)));
        notes.check("H-15", armed.count() >= load.0, || {
            "an attempt waits at prefill without a deadline".into()
        });
        for page in held
            .iter()
            .filter(|holder| holder.state == PageState::Cached)
        {
            let cells = life.memory.get(&page.page).copied().unwrap_or_default();
            cached(world, "prefill", page, &cells, notes);
        }
    }
    for life in &state.decodes {
        let Some(machine) = &life.machine else {
            continue;
        };
        let view = machine.view();
        let (held, counts, load) = (&view.held, view.counts, view.load);
        adds_up("decode", held, counts, notes);
        step_is_kept(life, held, notes);
        rights_are_kept(life, notes);
        if world.setup.mode == Mode::Direct {
            memory::pending_writes(state, life, held, notes);
        }
        let armed = life
            .timers
            .iter()
            .filter(|timer| matches!(timer, decode::Timer::Attempt(_)));
        notes.check("H-15", armed.count() == load.0, || {
            "an attempt waits at decode without a deadline".into()
        });
        for page in held
            .iter()
            .filter(|holder| holder.state == PageState::Cached)
        {
            let memory = life.memory.get(&page.page).copied().unwrap_or_default();
            cached(world, "decode", page, &memory.slices[0].cells, notes);
        }
        caps(world, state, life, held, notes);
    }
    for (at, client) in state.clients.iter().enumerate() {
        if client.asked && client.outcome.is_none() {
            let timer = client.request.map(gateway::Timer::Request);
            let armed = timer.is_some_and(|timer| state.gateway_timers.contains(&timer));
            notes.check("H-15", armed, || {
                format!("request {} waits without a deadline", letter(at))
            });
        }
    }
}

/// H-19: between steps the oldest sequence has a page for its next token, whatever peers do.
fn rights_are_kept<J: Decisions>(life: &DecodeLife<J>, notes: &mut Notes) {
    let Some(machine) = life.machine.as_ref().filter(|_| life.step.is_none()) else {
        return;
    };
    let short = machine.ask(|machine| machine.short());
    if !short.is_empty() {
        notes.saw(crate::situations::SHORT);
    }
    let oldest = machine.ask(|machine| machine.oldest());
    notes.check(
        "H-19",
        oldest.is_none_or(|lane| !short.contains(&lane)),
        || {
            format!(
                "the oldest sequence is short of a page, and {} wait",
                short.len()
            )
        },
    );
}

/// H-10: free, reserved, granted, sealed, cached and quarantined pages are the pool.
fn adds_up(of: &str, held: &[Holder], counts: Counts, notes: &mut Notes) {
    let count = |is: fn(PageState) -> bool| held.iter().filter(|h| is(h.state)).count();
    let recounted = [
        count(|state| state == PageState::Reserved),
        count(|state| state == PageState::Granted),
        count(|state| state == PageState::Sealed),
        count(|state| state == PageState::Cached),
        count(|state| matches!(state, PageState::Quarantined(_))),
    ];
    let kept = [
        counts.reserved,
        counts.granted,
        counts.sealed,
        counts.cached,
        counts.quarantined,
    ];
    let adds_up = recounted == kept && held.len() + counts.free == counts.total();
    notes.check("H-10", adds_up, || {
        format!("the pages of {of} do not add up: recounted {recounted:?}, kept {counts:?}")
    });
}

/// H-3: a page that a submitted write still reads, or a pass in flight names, is not free.
fn sources_are_kept<J: Decisions>(
    state: &State<J>,
    life: &PrefillLife<J>,
    held: &[Holder],
    notes: &mut Notes,
) {
    let reads = |page: &PageId| {
        held.iter()
            .any(|holder| holder.page == *page && holder.reads > 0)
    };
    let own = state
        .flights
        .iter()
        .filter(|flight| flight.writer == life.epoch);
    for flight in own.filter(|flight| flight.state != FlightState::Echo) {
        notes.check("H-3", reads(&flight.source), || {
            format!(
                "prefill freed page {}, which a write still reads",
                flight.source.index()
            )
        });
    }
    for page in life.chunk.iter().flat_map(|chunk| &chunk.pages) {
        let kept = held.iter().any(|holder| holder.page == *page);
        notes.check("H-3", kept, || {
            format!(
                "prefill freed page {}, which a pass in flight names",
                page.index()
            )
        });
    }
}

/// H-3: a page that a step in flight names is its owner's, or cached.
fn step_is_kept<J: Decisions>(life: &DecodeLife<J>, held: &[Holder], notes: &mut Notes) {
    for reading in life.step.iter().flatten() {
        for (page, _) in &reading.pages {
            let kept = held.iter().any(|holder| {
                holder.page == *page
                    && matches!(holder.state, PageState::Sealed | PageState::Cached)
            });
            notes.check("H-3", kept, || {
                format!(
                    "decode freed page {}, which a step in flight names",
                    page.index()
                )
            });
        }
    }
}

/// H-9, H-13: what is cached is whole, right, and of its own domain.
fn cached<J: Decisions>(
    world: &World<J>,
    of: &str,
    page: &Holder,
    cells: &[Cell],
    notes: &mut Notes,
) {
    let Some(owner) = page.owner else {
        return notes.violates("H-13", format!("{of}'s cached page has no domain"));
    };
    let first = page.seal.ordinal as usize * SIZE;
    // Of a prompt, or of what was generated behind it and went on after it was put back.
    let is = |prompt: usize| {
        let setup = &world.setup.prompts[prompt];
        let whole = setup.tokens.len() + setup.max_new as usize;
        let of = |choice: u16| {
            (0..SIZE).all(|slot| cells[slot] == world.expected(prompt, choice, first + slot))
        };
        setup.domain == owner.domain.value() && first + SIZE <= whole && (0..setup.choices).any(of)
    };
    let some = (0..world.setup.prompts.len()).any(is);
    notes.check("H-13", some, || {
        let shown = crate::world::show(cells);
        format!(
            "{of}'s page {} is cached and holds {shown}",
            page.page.index()
        )
    });
}

/// H-16, for worlds whose D has caps.
fn caps<J: Decisions>(
    world: &World<J>,
    state: &State<J>,
    life: &DecodeLife<J>,
    held: &[Holder],
    notes: &mut Notes,
) {
    let setup = &world.setup;
    if setup.pages_per_peer > 0 && state.prefills.len() == 1 {
        let granted = held
            .iter()
            .filter(|holder| holder.state == PageState::Granted);
        let owners: std::collections::BTreeSet<_> = granted
            .clone()
            .filter_map(|holder| holder.owner.map(|owner| owner.id))
            .collect();
        let within = owners.len() < 2 || granted.count() <= setup.pages_per_peer;
        notes.check("H-16", within, || {
            "one prefill life holds more than its cap".into()
        });
    }
    if setup.tokens_per_domain > 0 {
        let cost = |client: &Client| {
            let at = state
                .clients
                .iter()
                .position(|other| std::ptr::eq(other, client))?;
            let prompt = &setup.prompts[at];
            let tokens =
                prompt.tokens.len() as u64 + u64::from(prompt.choices) * u64::from(prompt.max_new);
            Some((prompt.domain, tokens))
        };
        let mut sums = std::collections::BTreeMap::<u64, u64>::new();
        for timer in &life.timers {
            let decode::Timer::Attempt(attempt) = timer else {
                continue;
            };
            let client = state
                .clients
                .iter()
                .find(|client| client.attempts.contains(attempt));
            if let Some((domain, tokens)) = client.and_then(cost) {
                *sums.entry(domain).or_default() += tokens;
            }
        }
        let within = sums.values().all(|sum| *sum <= setup.tokens_per_domain);
        notes.check("H-16", within, || {
            "one domain has more in flight than it may".into()
        });
    }
}
