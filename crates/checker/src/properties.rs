//! The specification's clauses as functions over a world and a step. Each is named by its clause
//! and judges what it is given: pages by their content, machines by what they say, the ledger by a
//! recount. They know nothing of what is being tried on the machines.
//!
//! H-11, H-14 and H-18 are about runs, not states: the explorers judge them, by backward fixpoint.

use crate::model::Notes;
use crate::scenario::Mode;
use crate::world::{
    Cell, Chunk, Client, Flight, FlightState, MAX_RANKS, PAGE_SIZE, PrefillLife, Reading, State,
    World, letter,
};
use crate::world::{DecodeLife, Page};
use handoff::decode::{self, Effect, Lane, Output};
use handoff::gateway::{self, Item, Outcome};
use handoff::{
    ArenaId, AttemptId, Decisions, DecodeToPrefill, Failure, HandoffId, OfferId, Spec, prefill,
};
use pages::{Counts, Holder, PageId, State as PageState};

const SIZE: usize = PAGE_SIZE as usize;

/// What must hold in every world.
pub fn of_state<J: Decisions>(world: &World<J>, state: &State<J>, notes: &mut Notes) {
    for life in &state.prefills {
        let Some(machine) = &life.machine else {
            continue;
        };
        let (held, counts, load) =
            machine.ask(|machine| (machine.holders(), machine.counts(), machine.load()));
        adds_up("prefill", &held, counts, notes);
        sources_are_kept(state, life, &held, notes);
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
        let (held, counts, load) =
            machine.ask(|machine| (machine.holders(), machine.counts(), machine.load()));
        adds_up("decode", &held, counts, notes);
        step_is_kept(life, &held, notes);
        if world.setup.mode == Mode::Direct {
            pending_writes(state, life, &held, notes);
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
        caps(world, state, life, &held, notes);
    }
    for (at, client) in state.clients.iter().enumerate() {
        if client.asked && client.outcome.is_none() {
            let timer = gateway::Timer::Request(handoff::RequestId {
                epoch: crate::world::GATEWAY,
                n: at as u64 + 1,
            });
            notes.check("H-15", state.gateway_timers.contains(&timer), || {
                format!("request {} waits without a deadline", letter(at))
            });
        }
    }
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
    let is = |prompt: usize| {
        let setup = &world.setup.prompts[prompt];
        setup.domain == owner.domain.value()
            && first + SIZE <= setup.tokens.len()
            && (0..SIZE).all(|slot| cells[slot] == world.expected(prompt, 0, first + slot))
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
        let expected = world.expected(run.prompt, choice, position);
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
            world.expected(chunk.prompt, 0, position),
        );
        notes.check("H-1", got == expected, || {
            format!(
                "a pass of {} reads {got} at position {position}",
                letter(chunk.prompt)
            )
        });
    }
}

/// H-2, H-8: what D starts is what a client asked, and the first token is of that prompt.
pub fn of_start<J: Decisions>(
    world: &World<J>,
    life: &DecodeLife<J>,
    spec: &Spec,
    first: &[u8],
    notes: &mut Notes,
) -> usize {
    let _ = life;
    let asked = |prompt: &crate::scenario::Prompt| {
        prompt.tokens == spec.tokens && prompt.domain == spec.domain.value()
    };
    let prompt = world.setup.prompts.iter().position(asked);
    notes.check("H-2", prompt.is_some(), || {
        format!(
            "D committed {} tokens that nobody asked like this",
            spec.tokens.len()
        )
    });
    let prompt = prompt.unwrap_or_default();
    notes.check("H-8", first == [prompt as u8], || {
        format!(
            "the first token of {}'s answer was sampled for another prompt",
            letter(prompt)
        )
    });
    prompt
}

/// H-2: the committed pages are exactly `[0, n)`: every position has a page, written under this
/// very grant or shared. Looked at in a fork, in which a step of this handoff begins now.
pub fn of_committed_pages<J: Decisions>(
    world: &World<J>,
    life: &DecodeLife<J>,
    handoff: HandoffId,
    prompt: usize,
    notes: &mut Notes,
) {
    let Some(machine) = &life.machine else { return };
    let count = world.setup.prompts[prompt].tokens.len();
    let choices = world.setup.prompts[prompt].choices;
    let mut fork = machine.ask(|machine| machine.fork_for_checker());
    let output = |lane| Output {
        lane,
        payload: Vec::new(),
        finish: None,
    };
    if let Some(step) = &life.step {
        let outputs = step.iter().map(|reading| output(reading.lane)).collect();
        fork.handle(decode::Event::StepEnd(outputs));
    }
    let lanes = (0..choices).map(|choice| Lane { handoff, choice });
    fork.handle(decode::Event::First(lanes.clone().map(output).collect()));
    fork.handle(decode::Event::StepBegin(lanes.collect()));
    let held = fork.holders();
    let tables: Vec<(usize, Vec<PageId>)> = match fork.verify_in_full() {
        Ok(verified) => {
            let sequences = verified.sequences().iter();
            sequences
                .map(|s| (s.start(), s.pages().collect()))
                .collect()
        }
        Err(fault) => return notes.violates("H-2", format!("committed, and yet: {fault}")),
    };
    let ranks = usize::from(world.setup.ranks).min(MAX_RANKS);
    for (start, pages) in tables {
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
            // The copies of a partly filled page are made by effects that come after this one.
            let copied = choices > 1 && position / SIZE >= count / SIZE;
            let covered = copied || cell.is_some_and(|(_, under)| under.is_some() && under == tag);
            notes.check("H-2", covered, || {
                format!("committed, and position {position} was never written under its grant")
            });
        }
    }
}

/// H-5, H-6, H-9: an attempt that was rejected, or in which a fault was found, is not committed.
pub fn of_commit<J: Decisions>(life: &DecodeLife<J>, attempt: AttemptId, notes: &mut Notes) {
    notes.check("H-5", !life.rejected.contains(&attempt), || {
        format!("attempt {} was rejected and is committed", attempt.n)
    });
    notes.check("H-6", !life.faulty.contains(&attempt), || {
        format!(
            "attempt {} had an integrity fault and is committed",
            attempt.n
        )
    });
}

/// H-9: no token leaves D before its commit.
pub fn of_tokens<J: Decisions>(state: &State<J>, attempt: AttemptId, notes: &mut Notes) {
    let client = state
        .clients
        .iter()
        .find(|client| client.attempts.last() == Some(&attempt));
    if let Some(client) = client {
        notes.check("H-9", client.committed, || {
            format!("a token of attempt {} leaves before its commit", attempt.n)
        });
    }
}

/// H-9: pages are published on a commit and at no other time.
pub fn of_publishing(of: &str, before: Counts, after: Counts, committed: bool, notes: &mut Notes) {
    if after.cached > before.cached {
        notes.check("H-9", committed, || {
            format!("{of} cached pages that nobody has verified")
        });
    }
    if after.cached < before.cached {
        notes.saw(crate::situations::EVICTED);
    }
}

/// H-6, H-9: what a client sees, in the order in which it may see it.
pub fn of_delivery(client: &Client, mark: usize, item: &Item, notes: &mut Notes) {
    notes.check("H-6", client.outcome.is_none(), || {
        "something was delivered after the outcome".into()
    });
    notes.check("H-9", client.committed, || {
        "something of an answer leaves before decode has committed".into()
    });
    if let Item::Tokens {
        choice, payload, ..
    } = item
    {
        notes.check("H-9", client.begun, || {
            "a token before the answer has begun".into()
        });
        let n = client
            .tokens
            .get(usize::from(*choice))
            .copied()
            .unwrap_or_default();
        let first = payload.len() == 3 && payload[0] == mark as u8;
        notes.check("H-8", first, || "a token of another request".into());
        let next = payload.get(1..) == Some(&[*choice as u8, n as u8]);
        notes.check("H-6", next, || {
            format!("token {n} of choice {choice} is lost or repeated")
        });
        let over = client.finished.contains(choice);
        notes.check("H-6", !over, || {
            "a token behind the last of its choice".into()
        });
    }
}

/// H-6: one outcome, and one that fits what the client has seen.
pub fn of_outcome<J: Decisions>(state: &State<J>, at: usize, outcome: &Outcome, notes: &mut Notes) {
    let client = &state.clients[at];
    notes.check("H-6", client.outcome.is_none(), || {
        format!("a second outcome after {:?}", client.outcome)
    });
    if let Outcome::Answered = outcome {
        let over =
            |choice: &u16| client.finished.contains(choice) || client.stopped.contains(choice);
        let whole = (0..client.tokens.len() as u16).all(|choice| over(&choice));
        notes.check("H-6", whole, || {
            "answered, and not every choice has finished".into()
        });
    }
    if let Outcome::Rejected(_) = outcome {
        notes.check("H-5", !client.begun, || {
            "rejected after its answer had begun".into()
        });
    }
}

/// H-8, H-16: a new attempt has a new id; there is one retry, and none once a token was sent.
pub fn of_expect<J: Decisions>(
    world: &World<J>,
    state: &mut State<J>,
    attempt: AttemptId,
    spec: &Spec,
    notes: &mut Notes,
) {
    let new = state
        .clients
        .iter()
        .all(|client| !client.attempts.contains(&attempt));
    notes.check("H-8", new, || {
        format!("attempt {} is used again", attempt.n)
    });
    let at = usize::from(spec.sampling.first().copied().unwrap_or_default());
    let Some(client) = state.clients.get_mut(at) else {
        return;
    };
    if !client.attempts.is_empty() {
        notes.saw(crate::situations::RETRIED);
        let sent = client.tokens.iter().any(|tokens| *tokens > 0);
        notes.check("H-16", !sent, || {
            "tried again after a token was sent".into()
        });
    }
    let most = handoff::gateway::Config::default().max_retries as usize;
    notes.check("H-16", client.attempts.len() <= most, || {
        "tried again too often".into()
    });
    client.attempts.push(attempt);
    client.committed = false;
    let _ = world;
}

/// H-5, H-8: an offer is of an attempt that was not rejected, under an id of this life.
pub fn of_offer<J: Decisions>(
    life: &PrefillLife<J>,
    offer: OfferId,
    attempt: AttemptId,
    notes: &mut Notes,
) {
    notes.check("H-5", !life.rejected.contains(&attempt), || {
        format!("attempt {} was rejected and is offered", attempt.n)
    });
    let fresh = offer.epoch == life.epoch && !life.tickets.contains_key(&offer);
    notes.check("H-8", fresh, || {
        format!("offer {} is not a new one of this life", offer.n)
    });
}

/// H-5: nothing is computed for what was rejected.
pub fn of_admission<J: Decisions>(life: &PrefillLife<J>, attempt: AttemptId, notes: &mut Notes) {
    notes.check("H-5", !life.rejected.contains(&attempt), || {
        format!("attempt {} was rejected and is computed", attempt.n)
    });
}

/// H-5: no forward pass before a ticket.
pub fn of_compute<J: Decisions>(life: &PrefillLife<J>, offer: OfferId, notes: &mut Notes) {
    notes.check("H-5", life.tickets.contains_key(&offer), || {
        format!("a forward pass for offer {} before its ticket", offer.n)
    });
}

/// H-5, H-8: what D answers to an offer.
pub fn of_answer_to_offer<J: Decisions>(
    life: &DecodeLife<J>,
    offered: Option<(OfferId, AttemptId)>,
    effects: &[Effect],
    notes: &mut Notes,
) {
    let Some((offer, attempt)) = offered else {
        return;
    };
    for effect in effects {
        let Effect::ToPrefill(_, DecodeToPrefill::Ticket { offer: to, .. }) = effect else {
            continue;
        };
        notes.check("H-5", !life.rejected.contains(&attempt), || {
            format!("attempt {} was rejected and gets a ticket", attempt.n)
        });
        notes.check("H-8", *to == offer, || "a ticket for another offer".into());
    }
}

/// H-8: a ticket bears a name of this life.
pub fn of_ticket<J: Decisions>(life: &DecodeLife<J>, handoff: HandoffId, notes: &mut Notes) {
    notes.check("H-8", handoff.epoch == life.epoch, || {
        format!("handoff {} bears the name of another life", handoff.n)
    });
}

/// H-8: an arena is a new one of this life.
pub fn of_arena<J: Decisions>(life: &DecodeLife<J>, arena: ArenaId, notes: &mut Notes) {
    let fresh = arena.epoch == life.epoch && !life.arenas.contains_key(&arena);
    notes.check("H-8", fresh, || {
        format!("arena {} is not a new one of this life", arena.n)
    });
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
fn pending_writes<J: Decisions>(
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

/// H-7: `Closed(h, w)` only after every write that `w` ever submitted for `h` has completed.
pub fn of_closed<J: Decisions>(
    state: &State<J>,
    life: &PrefillLife<J>,
    handoff: HandoffId,
    rank: u16,
    notes: &mut Notes,
) {
    let open = life
        .unreported
        .values()
        .any(|of| *of == (Some(handoff), rank));
    notes.check("H-7", !open, || {
        format!(
            "handoff {} is closed while a submission of it is in flight",
            handoff.n
        )
    });
    let failed = life.failed.contains(&(handoff, rank));
    notes.check("H-7", !failed, || {
        format!(
            "handoff {} is closed though a submission of it has failed",
            handoff.n
        )
    });
    let flying = state.flights.iter().any(|flight| {
        (flight.writer, flight.handoff, flight.rank) == (life.epoch, Some(handoff), rank)
            && flight.state != FlightState::Echo
    });
    notes.check("H-7", !flying, || {
        format!(
            "handoff {} is closed while a write of it may still land",
            handoff.n
        )
    });
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

/// An integrity fault where nothing was done to any byte or message is a fault of the protocol.
pub fn of_audit<J: Decisions>(
    world: &World<J>,
    state: &State<J>,
    failure: Failure,
    notes: &mut Notes,
) {
    let (had, left) = (world.setup.faults, state.left);
    let disturbed = had.corruptions > left.corruptions
        || had.losses > left.losses
        || had.truncations > left.truncations
        || had.stale > left.stale
        || had.echoes > left.echoes
        || had.failed_writes > left.failed_writes
        || had.prefill_kills > left.prefill_kills;
    notes.check("H-1", disturbed, || {
        format!("nothing was disturbed, and yet: {failure:?}")
    });
}

/// A machine that stops by itself has broken its own rules.
pub fn of_fail_stop(of: &str, why: &str, notes: &mut Notes) {
    notes.violates("H-3", format!("{of} stopped: {why}"));
}

fn holders<J: Decisions>(life: &DecodeLife<J>) -> Vec<Holder> {
    let machine = life.machine.as_ref();
    machine
        .map(|machine| machine.ask(|machine| machine.holders()))
        .unwrap_or_default()
}
