//! Prefill's effects.

use super::World;
use super::act::End;
use super::content::{Cell, PAGE_SIZE, show};
use super::links::find;
use super::said::short;
use super::shared::{Kept, Shared};
use super::state::{Chunk, Flight, FlightState, PrefillLife, State};
use crate::model::Notes;
use crate::{properties, situations};
use handoff::prefill::{Effect, Event, Prefill, SendPage};
use handoff::{
    ArenaId, Closing, Decisions, DecodeToPrefill, Ending, Hangup, OfferId, PrefillToDecode,
    PrefillToGateway, SubmissionId,
};
use pages::Epoch;

impl<J: Decisions> PrefillLife<J> {
    pub(super) fn new(worker: u8, epoch: Epoch, machine: Shared<Prefill<J>>) -> Self {
        Self {
            worker,
            epoch,
            machine: Some(machine),
            stopped: false,
            memory: Default::default(),
            chunk: None,
            unreported: Default::default(),
            failed: Default::default(),
            attaching: Vec::new(),
            detaching: Vec::new(),
            timers: Default::default(),
            tickets: Default::default(),
            rejected: Default::default(),
        }
    }
}

impl<J: Decisions> World<J> {
    /// Lets P handle an event and carries out what it wants; what that brings about at once follows
    /// when everything is carried out, not in between.
    pub(super) fn tell_prefill(
        &self,
        state: &mut State<J>,
        p: usize,
        event: Event,
        notes: &mut Notes,
    ) {
        let Some(life) = state.prefills.get_mut(p).map(Kept::change) else {
            return;
        };
        let Some(machine) = &mut life.machine else {
            return;
        };
        if !matches!(
            event,
            Event::ChunkBegin { .. } | Event::ChunkEnd { .. } | Event::Written { .. }
        ) {
            notes.tell(|| format!("P{p} hears: {}", short(&event)));
        }
        let committed = matches!(
            event,
            Event::FromDecode(_, DecodeToPrefill::Committed { .. })
        );
        if let Event::FromDecode(
            conn,
            DecodeToPrefill::Ticket {
                offer,
                handoff,
                under,
                ..
            },
        ) = &event
            && under.conn == *conn
        {
            life.tickets.entry(*offer).or_insert(*handoff);
        }
        let synced = matches!(event, Event::FromDecode(_, DecodeToPrefill::Synced));
        let machine_before = machine.view().counts;
        let effects = machine.hear(event);
        let after = machine.view().counts;
        let (queued, jobs) = machine.view().load;
        if self.setup.jobs > 0 && jobs >= self.setup.jobs && queued > 0 {
            notes.saw(situations::JOBS_FULL);
        }
        let refused = |effect: &Effect| matches!(effect, Effect::Close(_, Hangup::Refused));
        if self.setup.known_decodes > 0 && effects.iter().any(refused) {
            notes.saw(situations::DECODES_FULL);
        }
        if synced {
            stated_again(&effects, notes);
        }
        properties::of_publishing("prefill", machine_before, after, committed, notes);
        let mut next = Vec::new();
        for effect in effects {
            self.prefill_effect(state, p, effect, &mut next, notes);
        }
        for event in next {
            self.tell_prefill(state, p, event, notes);
        }
    }

    fn prefill_effect(
        &self,
        state: &mut State<J>,
        p: usize,
        effect: Effect,
        next: &mut Vec<Event>,
        notes: &mut Notes,
    ) {
        let life = state.prefills[p].change();
        match effect {
            Effect::ToGateway(conn, message) => {
                notes.tell(|| format!("  P{p} to the gateway: {}", short(&message)));
                if let PrefillToGateway::Ended {
                    attempt,
                    ending: Ending::Rejected(_),
                } = &message
                {
                    life.rejected.insert(*attempt);
                    notes.saw(situations::PAST_THE_EDGE);
                }
                if let PrefillToGateway::Ended {
                    attempt,
                    ending: Ending::Refused(_),
                } = &message
                {
                    properties::of_refusal(state, *attempt);
                }
                let message = self.maybe_overstated(message);
                let link = find(&mut state.asking, conn).filter(|link| link.callee_up);
                if let Some(link) = link.filter(|link| link.caller_up) {
                    link.back.push_back(message);
                }
            }
            Effect::ToDecode(conn, message) => {
                notes.tell(|| format!("  P{p} to decode: {}", short(&message)));
                self.said_to_decode(state, p, &message, notes);
                let link = find(&mut state.handing, conn).filter(|link| link.caller_up);
                if let Some(link) = link.filter(|link| link.callee_up) {
                    link.forth.push_back(message);
                }
            }
            Effect::Close(conn, why) => {
                notes.saw(situations::HUNG_UP);
                notes.tell(|| format!("  P{p} closes connection {}: {why:?}", conn.0));
                let called = state.asking.iter().any(|link| link.conn == conn);
                self.close(state, conn, if called { End::Callee } else { End::Caller });
            }
            Effect::Attach { arena, .. } if self.setup.slow_arenas => life.attaching.push(arena),
            Effect::Attach { arena, .. } => {
                let ok = state.has_arena(arena);
                next.push(Event::Attached { arena, ok });
            }
            Effect::Detach { arena } => life.detaching.push(arena),
            Effect::Submit {
                submission,
                arena,
                rank,
                pages,
            } => {
                self.submit(state, p, submission, arena, rank, &pages, notes);
            }
            Effect::Compute {
                offer,
                from,
                to,
                last,
            } => {
                properties::of_compute(life, offer, notes);
                let of = life.machine.as_ref().and_then(|machine| {
                    machine.ask(|machine| {
                        let spec = machine.spec(offer)?;
                        Some((self.prompt_of(spec)?, spec.choice(0)))
                    })
                });
                let (tokens, pages) = ((from, to), Vec::new());
                let (prompt, choice) = of.unwrap_or_default();
                life.chunk = Some(Chunk {
                    offer,
                    tokens,
                    prompt,
                    choice,
                    pages,
                    last,
                });
            }
            Effect::Admitted {
                attempt,
                cached_tokens,
                ..
            } => {
                properties::of_admission(life, attempt, notes);
                if cached_tokens > 0 {
                    notes.saw(situations::PREFIX_HIT_AT_P);
                }
            }
            Effect::Dropped { offer } => forget_ticket(life, offer),
            Effect::Scrub { page } => drop(life.memory.remove(&page)),
            Effect::Expired { .. } => notes.saw(situations::EXPIRED),
            Effect::Arm { timer, .. } => drop(life.timers.insert(timer)),
            Effect::Disarm(timer) => drop(life.timers.remove(&timer)),
            Effect::FailStop(why) => properties::of_fail_stop("prefill", &why, notes),
        }
    }

    fn said_to_decode(
        &self,
        state: &State<J>,
        p: usize,
        message: &PrefillToDecode,
        notes: &mut Notes,
    ) {
        let life = &state.prefills[p];
        match message {
            PrefillToDecode::Unsettled { .. } => notes.saw(situations::UNSETTLED),
            PrefillToDecode::Offer { offer, attempt, .. } => {
                properties::of_offer(life, *offer, *attempt, notes);
            }
            PrefillToDecode::Closed { handoff, rank, how } => {
                if matches!(how, Closing::Abandoned { .. }) {
                    notes.saw(situations::ABANDONED);
                }
                properties::of_closed(state, life, *handoff, *rank, notes);
            }
            _ => {}
        }
    }

    fn submit(
        &self,
        state: &mut State<J>,
        p: usize,
        submission: SubmissionId,
        arena: ArenaId,
        rank: u16,
        pages: &[SendPage],
        notes: &mut Notes,
    ) {
        let life = state.prefills[p].change();
        let writer = life.epoch;
        let machine = life.machine.as_ref();
        let manifest = machine.and_then(|machine| {
            machine.ask(|machine| machine.submission_for_checker(submission).cloned())
        });
        let handoff = manifest.as_ref().map(|manifest| manifest.handoff);
        life.unreported.insert(submission, (handoff, rank, arena));
        for page in pages {
            notes.tell(|| {
                let cells = life.memory.get(&page.page).copied().unwrap_or_default();
                let (n, slot, from) = (submission.n, page.slot, page.page.index());
                let shown = show(&cells[..usize::from(page.filled.min(PAGE_SIZE))]);
                format!(
                    "  P{p} submits {n}: its page {from} {shown} into slot {slot} of arena {}",
                    arena.n
                )
            });
            let (slot, source, filled) = (page.slot, page.page, page.filled);
            let mut stated = manifest.iter().flat_map(|manifest| &manifest.pages);
            let tag = stated.find(|page| page.slot == slot).map(|page| page.tag);
            state.flights.push(Flight {
                writer,
                rank,
                submission,
                handoff,
                tag,
                arena,
                slot,
                source,
                filled,
                state: FlightState::Flying,
            });
        }
    }

    /// A worker that says more of itself than is true, to the gateway alone.
    fn maybe_overstated(&self, message: PrefillToGateway) -> PrefillToGateway {
        match (message, self.setup.overstated) {
            (PrefillToGateway::Hello(mut hello), Some(pages)) => {
                if let Some(capacity) = &mut hello.capacity {
                    capacity.pages = pages;
                }
                PrefillToGateway::Hello(hello)
            }
            (message, _) => message,
        }
    }

    pub(super) fn retry(
        &self,
        state: &mut State<J>,
        p: usize,
        timer: handoff::prefill::Timer,
        notes: &mut Notes,
    ) {
        state.prefills[p].change().timers.remove(&timer);
        self.tell_prefill(state, p, Event::Fired(timer), notes);
    }

    /// What pages that were given back still hold is nobody's any more.
    pub(super) fn leave_residue(&self, state: &mut State<J>) {
        for life in &mut state.prefills {
            let Some(machine) = &life.machine else {
                continue;
            };
            let held = &machine.view().held;
            let free = |page| held.iter().all(|holder| holder.page != page);
            let stale = life
                .memory
                .iter()
                .filter(|(page, cells)| free(**page) && **cells != cells.map(Cell::as_residue));
            let stale: Vec<_> = stale
                .map(|(page, cells)| (*page, cells.map(Cell::as_residue)))
                .collect();
            if !stale.is_empty() {
                life.change().memory.extend(stale);
            }
        }
        self.leave_residue_at_decode(state);
    }
}

fn stated_again(effects: &[Effect], notes: &mut Notes) {
    let stated =
        |effect: &Effect| matches!(effect, Effect::ToDecode(_, PrefillToDecode::Landed(_)));
    if effects.iter().any(stated) {
        notes.saw(situations::STATED_AGAIN);
    }
}

fn forget_ticket<J: Decisions>(life: &mut PrefillLife<J>, offer: OfferId) {
    if let Some(handoff) = life.tickets.remove(&offer) {
        life.failed.retain(|(of, _)| *of != handoff);
    }
}
