//! Decode's effects.

use super::World;
use super::act::End;
use super::content::{Cell, PAGE_SIZE};
use super::links::find;
use super::said::short;
use super::shared::{Kept, Shared};
use super::state::{Arena, CopyInFlight, DecodeLife, Page, Run, State};
use crate::model::Notes;
use crate::{properties, situations};
use handoff::decode::{CopyPage, Decode, Effect, Event, Input};
use handoff::{
    Answers, ArenaId, Conn, Decisions, DecodeToGateway, DecodeToPrefill, Ending, Failure,
    HandoffId, Hangup, PrefillToDecode, Spec,
};
use pages::{Epoch, PageId, State as PageState, WriterLife};
use std::collections::BTreeMap;

impl<J: Decisions> DecodeLife<J> {
    pub(super) fn new(worker: u8, epoch: Epoch, machine: Shared<Decode<J>>) -> Self {
        Self {
            worker,
            epoch,
            machine: Some(machine),
            stopped: false,
            memory: Default::default(),
            opening: Vec::new(),
            arenas: Default::default(),
            copies: Vec::new(),
            fences: Vec::new(),
            lingering: Vec::new(),
            starts: Vec::new(),
            step: None,
            running: Default::default(),
            timers: Default::default(),
            rejected: Default::default(),
            faulty: Default::default(),
        }
    }
}

impl<J: Decisions> World<J> {
    pub(super) fn tell_decode(
        &self,
        state: &mut State<J>,
        d: usize,
        event: Event,
        notes: &mut Notes,
    ) {
        let Some(life) = state.decodes.get_mut(d).map(Kept::change) else {
            return;
        };
        let Some(machine) = &mut life.machine else {
            return;
        };
        if !matches!(
            event,
            Event::StepBegin(_) | Event::StepEnd(_) | Event::Copied { .. }
        ) {
            notes.tell(|| format!("D{d} hears: {}", short(&event)));
        }
        if let Event::FromPrefill(_, PrefillToDecode::Landed(batch)) = &event {
            let joins = |copy: &CopyInFlight| {
                (copy.handoff, copy.rank, copy.batch) == (batch.handoff, batch.rank, batch.batch)
            };
            if life.copies.iter().any(joins) {
                notes.saw(situations::JOINED);
            }
        }
        let offered = match &event {
            Event::FromPrefill(_, PrefillToDecode::Offer { offer, attempt, .. }) => {
                Some((*offer, *attempt))
            }
            _ => None,
        };
        let begins = matches!(event, Event::FromPrefill(_, PrefillToDecode::Hello(_)));
        if offered.is_some() && !life.opening.is_empty() {
            notes.saw(situations::BEFORE_ITS_ARENA);
        }
        let syncs = matches!(event, Event::FromPrefill(_, PrefillToDecode::Sync { .. }));
        let before = machine.view().counts;
        let effects = machine.hear(Input::Event(event));
        let after = machine.view().counts;
        let ticket = |effect: &Effect| {
            matches!(effect, Effect::ToPrefill(_, DecodeToPrefill::Ticket { .. }))
        };
        if syncs && effects.iter().any(ticket) {
            notes.saw(situations::TICKET_AGAIN);
        }
        let refused = |effect: &Effect| matches!(effect, Effect::Close(_, Hangup::Refused));
        if effects.iter().any(refused) {
            notes.saw(match begins && self.setup.peers > 0 {
                true => situations::PEERS_FULL,
                false => situations::WORN_OUT,
            });
        }
        properties::of_answer_to_offer(life, offered, &effects, notes);
        let committed = effects.iter().any(|effect| {
            matches!(
                effect,
                Effect::ToGateway(_, DecodeToGateway::Committed { .. })
            )
        });
        properties::of_publishing("decode", before, after, committed, notes);
        quarantine(before, after, notes);
        self.decode_effects(state, d, effects, notes);
    }

    pub(super) fn decode_effects(
        &self,
        state: &mut State<J>,
        d: usize,
        effects: Vec<Effect>,
        notes: &mut Notes,
    ) {
        let mut next = Vec::new();
        for effect in effects {
            self.decode_effect(state, d, effect, &mut next, notes);
        }
        for event in next {
            self.tell_decode(state, d, event, notes);
        }
    }

    fn decode_effect(
        &self,
        state: &mut State<J>,
        d: usize,
        effect: Effect,
        next: &mut Vec<Event>,
        notes: &mut Notes,
    ) {
        let life = state.decodes[d].change();
        match effect {
            Effect::ToGateway(conn, message) => {
                self.said_to_gateway(state, d, conn, message, notes)
            }
            Effect::ToPrefill(conn, message) => {
                notes.tell(|| format!("  D{d} to prefill: {}", short(&message)));
                said_to_prefill(life, &message, notes);
                if let DecodeToPrefill::Ticket { handoff, first, .. } = &message {
                    self.granted(life, *handoff, *first, notes);
                }
                let link = find(&mut state.handing, conn).filter(|link| link.callee_up);
                if let Some(link) = link.filter(|link| link.caller_up) {
                    link.back.push_back(message);
                }
            }
            Effect::Close(conn, why) => {
                notes.saw(situations::HUNG_UP);
                notes.tell(|| format!("  D{d} closes connection {}: {why:?}", conn.0));
                self.close(state, conn, End::Callee);
            }
            Effect::OpenArena { arena, writer } => {
                properties::of_arena(life, arena, notes);
                if self.setup.slow_arenas {
                    return life.opening.push((arena, writer));
                }
                next.push(self.arena_made(life, arena, writer));
            }
            Effect::Fence { arena } => {
                if life.copies.iter().any(|copy| copy.arena == Some(arena)) {
                    notes.saw(situations::FENCE_WAITS);
                }
                notes.tell(|| format!("  D{d} will fence arena {}", arena.n));
                life.fences.push(arena);
            }
            Effect::Copy {
                handoff,
                rank,
                batch,
                arena,
                pages,
            } => {
                let arena = Some(arena);
                let copy = CopyInFlight {
                    handoff,
                    rank,
                    batch,
                    arena,
                    pages,
                    checksums: Vec::new(),
                };
                begin_copy(life, d, copy, notes);
            }
            Effect::Check {
                handoff,
                rank,
                batch,
                pages,
            } => {
                let pages = pages.iter().map(|page| CopyPage {
                    slot: 0,
                    page: page.page,
                    filled: page.filled,
                });
                let (arena, pages) = (None, pages.collect());
                let copy = CopyInFlight {
                    handoff,
                    rank,
                    batch,
                    arena,
                    pages,
                    checksums: Vec::new(),
                };
                begin_copy(life, d, copy, notes);
            }
            Effect::Duplicate { from, to, filled } => {
                notes.saw(situations::DUPLICATED);
                duplicate(life, from, to, filled, notes);
            }
            Effect::Scrub { page } => drop(life.memory.remove(&page)),
            Effect::Expired { .. } => notes.saw(situations::EXPIRED),
            Effect::Start {
                handoff,
                spec,
                first,
                ..
            } => {
                self.start(state, d, handoff, &spec, &first, notes);
            }
            Effect::Stop(_) => {}
            Effect::Arm { timer, .. } => drop(life.timers.insert(timer)),
            Effect::Disarm(timer) => drop(life.timers.remove(&timer)),
            Effect::Audit {
                attempt, failure, ..
            } => {
                notes.tell(|| format!("  D{d} audits: {failure:?}"));
                if let Failure::Integrity(_) = failure {
                    notes.saw(situations::INTEGRITY);
                    life.faulty.insert(attempt);
                    properties::of_audit(self, state, failure, notes);
                }
            }
            Effect::FailStop(why) => properties::of_fail_stop("decode", &why, notes),
        }
    }

    pub(super) fn arena_made(
        &self,
        life: &mut DecodeLife<J>,
        arena: ArenaId,
        writer: WriterLife,
    ) -> Event {
        let slots = BTreeMap::new();
        life.arenas.insert(arena, Arena { writer, slots });
        let (slots, address) = (self.setup.arena_slots, Vec::new());
        Event::ArenaOpened {
            arena,
            slots,
            address,
        }
    }

    /// A ticket asks for pages from `first` on: what is cached, but of another domain, is asked for.
    fn granted(&self, life: &DecodeLife<J>, handoff: HandoffId, first: u32, notes: &mut Notes) {
        let asked = life.machine.as_ref().map(|machine| {
            machine.ask(|machine| (machine.spec_of(handoff).cloned(), machine.holders()))
        });
        let Some((Some(spec), held)) =
            asked.filter(|(spec, _)| spec.as_ref().is_some_and(|spec| spec.cache))
        else {
            return;
        };
        let end = (first as usize + 1) * usize::from(PAGE_SIZE);
        let alike = |page: &PageId| {
            let memory = life.memory.get(page).copied().unwrap_or_default();
            let whose = memory.slices[0].cells[0].whose();
            let prompt = whose.map(|whose| &self.setup.prompts[whose]);
            let begins = spec.tokens.get(..end);
            prompt.is_some_and(|prompt| begins.is_some() && prompt.tokens.get(..end) == begins)
        };
        let other = held.iter().any(|holder| {
            holder.state == PageState::Cached
                && holder.seal.ordinal == first
                && holder
                    .owner
                    .is_some_and(|owner| owner.domain != spec.domain)
                && alike(&holder.page)
        });
        if other {
            notes.saw(situations::OTHER_DOMAIN);
        }
    }

    fn said_to_gateway(
        &self,
        state: &mut State<J>,
        d: usize,
        conn: Conn,
        message: DecodeToGateway,
        notes: &mut Notes,
    ) {
        notes.tell(|| format!("  D{d} to the gateway: {}", short(&message)));
        let life = state.decodes[d].change();
        match &message {
            DecodeToGateway::Ended {
                attempt,
                ending: Ending::Rejected(_),
            } => {
                life.rejected.insert(*attempt);
            }
            DecodeToGateway::Ended {
                attempt,
                ending: Ending::Refused(_),
            } => properties::of_refusal(state, *attempt),
            DecodeToGateway::Committed {
                attempt,
                cached_tokens,
            } => {
                notes.saw(situations::COMMITTED);
                if *cached_tokens > 0 {
                    notes.saw(situations::PREFIX_HIT);
                }
                properties::of_commit(life, *attempt, notes);
                let of = |client: &&mut super::Client| client.attempts.contains(attempt);
                if let Some(client) = state.clients.iter_mut().find(of) {
                    client.committed.push(*attempt);
                }
            }
            DecodeToGateway::PutBack { .. } => notes.saw(situations::PUT_BACK),
            DecodeToGateway::Tokens { attempt, .. } => {
                properties::of_tokens(state, *attempt, notes);
            }
            _ => {}
        }
        let link = find(&mut state.telling, conn).filter(|link| link.callee_up);
        if let Some(link) = link.filter(|link| link.caller_up) {
            link.back.push_back(message);
        }
    }

    /// The cache is committed. The worker will look at the first tokens; until then nothing runs.
    fn start(
        &self,
        state: &mut State<J>,
        d: usize,
        handoff: HandoffId,
        spec: &Spec,
        first: &[u8],
        notes: &mut Notes,
    ) {
        let life = state.decodes[d].change();
        let prompt = properties::of_start(self, life, spec, first, notes);
        if spec.resumes.is_some() {
            notes.saw(situations::RESUMED);
        }
        let (asked, said) = spec.split();
        let run = Run {
            prompt,
            choice: spec.choice(0),
            count: (asked.len() + said.len()) as u32,
            generated: vec![said.len() as u32 + 1; usize::from(spec.choices)],
        };
        life.running.insert(handoff, run);
        life.starts.push(handoff);
        properties::of_committed_pages(self, life, handoff, notes);
    }

    /// The same at D; and runs of which it holds nothing any more are over.
    pub(super) fn leave_residue_at_decode(&self, state: &mut State<J>) {
        for life in &mut state.decodes {
            let Some(machine) = &life.machine else {
                continue;
            };
            let held = &machine.view().held;
            let free = |page| held.iter().all(|holder| holder.page != page);
            let stale = life.memory.iter().filter(|(page, _)| free(**page));
            let stale: Vec<_> = stale
                .map(|(page, old)| (*page, old, residue(old)))
                .filter(|(_, old, new)| *old != new)
                .map(|(page, _, new)| (page, new))
                .collect();
            let known = |n| {
                held.iter()
                    .any(|of| of.owner.is_some_and(|o| o.id.value() == n))
            };
            let over = |of: &HandoffId| !known(of.n) && !life.starts.contains(of);
            let over: Vec<_> = life.running.keys().copied().filter(over).collect();
            if !stale.is_empty() || !over.is_empty() {
                let life = life.change();
                life.memory.extend(stale);
                life.running.retain(|handoff, _| !over.contains(handoff));
            }
        }
    }
}

fn residue(page: &Page) -> Page {
    let mut page = *page;
    for slice in &mut page.slices {
        slice.cells = slice.cells.map(Cell::as_residue);
        slice.under = Default::default();
    }
    page
}

fn said_to_prefill<J: Decisions>(
    life: &DecodeLife<J>,
    message: &DecodeToPrefill,
    notes: &mut Notes,
) {
    match message {
        DecodeToPrefill::Cancel { .. } => notes.saw(situations::CANCELLED),
        DecodeToPrefill::Busy { .. } => notes.saw(situations::BUSY),
        DecodeToPrefill::Taken { .. } => notes.saw(situations::TAKEN),
        DecodeToPrefill::Ended {
            answers: Answers::Unsettled,
            ..
        } => {
            notes.saw(situations::UNSETTLED_ANSWERED);
        }
        DecodeToPrefill::Ticket { handoff, .. } => properties::of_ticket(life, *handoff, notes),
        _ => {}
    }
}

fn begin_copy<J: Decisions>(
    life: &mut DecodeLife<J>,
    d: usize,
    copy: CopyInFlight,
    notes: &mut Notes,
) {
    let batch = (copy.handoff, copy.rank, copy.batch);
    properties::of_copy_begun(life, batch, notes);
    notes.tell(|| {
        let to: Vec<_> = copy.pages.iter().map(|page| page.page.index()).collect();
        let (batch, handoff) = (copy.batch, copy.handoff.n);
        match copy.arena {
            Some(_) => {
                format!("  D{d} copies batch {batch} of handoff {handoff} into pages {to:?}")
            }
            None => format!("  D{d} checks batch {batch} of handoff {handoff} in pages {to:?}"),
        }
    });
    life.copies.push(copy);
}

fn quarantine(before: pages::Counts, after: pages::Counts, notes: &mut Notes) {
    if after.quarantined > before.quarantined {
        notes.saw(situations::QUARANTINED);
    }
    if after.quarantined < before.quarantined {
        notes.saw(situations::UNQUARANTINED);
    }
}

/// The filled slots of one page are copied to another, under the other's own grant.
fn duplicate<J: Decisions>(
    life: &mut DecodeLife<J>,
    from: PageId,
    to: PageId,
    filled: u16,
    notes: &mut Notes,
) {
    let held = super::fabric::held(life, to);
    let owned = held
        .as_ref()
        .is_some_and(|holder| holder.state == PageState::Sealed);
    notes.check("H-3", owned, || {
        format!(
            "page {} is copied to page {}, which nobody holds",
            from.index(),
            to.index()
        )
    });
    let source = life.memory.get(&from).copied().unwrap_or_default();
    let target = life.memory.entry(to).or_default();
    let tag = held.and_then(|holder| holder.tag).map(|tag| tag.stated());
    for (slice, of) in target.slices.iter_mut().zip(&source.slices) {
        for slot in 0..usize::from(filled.min(PAGE_SIZE)) {
            (slice.cells[slot], slice.under[slot]) = (of.cells[slot], tag);
        }
    }
}
