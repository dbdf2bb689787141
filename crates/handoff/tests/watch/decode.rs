//! The book of a decode machine: tickets, batches, copies, certificates, the step in flight.

use super::{in_use, owned};
use handoff::decode::{Decode, Effect, Event, Lane, Timer};
use handoff::{
    ArenaId, Closing, Conn, DecodeToPrefill, HandoffId, Manifest, PrefillToDecode, StatedPage,
};
use pages::{Epoch, PageId, State, Tag};
use std::collections::{BTreeMap, BTreeSet};

/// Handoff, rank, batch.
type Batch = (HandoffId, u16, u32);

/// Every lane of a step and the pages that it reads and writes.
type Tables = Vec<(Lane, Vec<(PageId, Option<Tag>)>)>;

/// What a ticket promises, and what was done for it.
struct Ticket {
    life: Epoch,
    ordinals: BTreeSet<u32>,
    ranks: Vec<Rank>,
}

#[derive(Default)]
struct Rank {
    verified: BTreeSet<u32>,
    batches: BTreeSet<u32>,
    /// Batches and pages of its certificate, and whether it stated the first token.
    sealed: Option<(u32, u32, bool)>,
}

#[derive(Default)]
pub struct Watch {
    lives: BTreeMap<Conn, Epoch>,
    tickets: BTreeMap<HandoffId, Ticket>,
    copies: BTreeMap<Batch, (Manifest, Vec<PageId>)>,
    fenced: BTreeSet<ArenaId>,
    step: Option<Tables>,
}

impl Watch {
    pub fn before(&mut self, event: &Event) {
        match event {
            Event::FromPrefill(conn, PrefillToDecode::Hello(hello)) => {
                self.lives.entry(*conn).or_insert(hello.epoch);
            }
            Event::FromPrefill(conn, PrefillToDecode::Closed { handoff, rank, how }) => {
                self.certificate(*conn, *handoff, *rank, how);
            }
            Event::Copied {
                handoff,
                rank,
                batch,
                checksums,
            } => self.compare((*handoff, *rank, *batch), checksums.as_deref()),
            Event::StepEnd(_) | Event::StepFailed(_) => self.step = None,
            _ => {}
        }
    }

    /// The first of a rank counts: a certificate that is said again says the same.
    fn certificate(&mut self, conn: Conn, handoff: HandoffId, rank: u16, how: &Closing) {
        let Some(ticket) = self.tickets.get_mut(&handoff) else {
            return;
        };
        let rank = ticket.ranks.get_mut(usize::from(rank));
        if let Closing::Sealed {
            batches,
            pages,
            first,
        } = how
            && self.lives.get(&conn) == Some(&ticket.life)
            && let Some(rank) = rank
        {
            rank.sealed
                .get_or_insert((*batches, *pages, first.is_some()));
        }
    }

    /// Page by page: what was read out of the slot of a page is what was stated for that page.
    fn compare(&mut self, batch: Batch, checksums: Option<&[u32]>) {
        let Some((manifest, _)) = self.copies.remove(&batch) else {
            return;
        };
        let stated: Vec<u32> = manifest.pages.iter().map(|page| page.checksum).collect();
        if checksums != Some(&stated[..]) {
            return;
        }
        let ticket = self.tickets.get_mut(&batch.0);
        if let Some(rank) = ticket.and_then(|t| t.ranks.get_mut(usize::from(batch.1))) {
            let ordinals = manifest.pages.iter().map(|page| page.ordinal);
            rank.verified.extend(ordinals);
            rank.batches.insert(batch.2);
        }
    }

    /// `event`: none after a fence, which is no data.
    pub fn after(&mut self, machine: &mut Decode, event: Option<&Event>, said: &[Effect]) {
        if said.iter().any(|e| matches!(e, Effect::FailStop(_))) {
            return; // the worker ends
        }
        for effect in said {
            self.effect(machine, event, effect);
        }
        if let Some(Event::StepBegin(lanes)) = event {
            self.step = Some(tables(machine, lanes));
            self.every_lane_writes_its_own_page(machine);
        } else if let Some(then) = &self.step {
            let lanes: Vec<Lane> = then.iter().map(|(lane, _)| *lane).collect();
            let now = tables(machine, &lanes);
            assert_eq!(now, *then, "H-3: the tables of a step that is in flight");
        }
        self.nothing_is_held_for_nobody(machine);
    }

    fn effect(&mut self, machine: &mut Decode, event: Option<&Event>, effect: &Effect) {
        match effect {
            Effect::ToPrefill(
                conn,
                DecodeToPrefill::Ticket {
                    handoff,
                    tags,
                    first,
                    landings,
                    ..
                },
            ) => {
                let ticket = || Ticket {
                    life: self.lives[conn],
                    ordinals: (*first..*first + tags.len() as u32).collect(),
                    ranks: landings.iter().map(|_| Rank::default()).collect(),
                };
                self.tickets.entry(*handoff).or_insert_with(ticket);
            }
            Effect::ToPrefill(
                _,
                DecodeToPrefill::Taken {
                    handoff,
                    rank,
                    batch,
                },
            ) => {
                let rank = &self.tickets[handoff].ranks[usize::from(*rank)];
                let verified = rank.batches.contains(batch);
                assert!(
                    verified,
                    "H-1: Taken of a batch that differs from its statement"
                );
            }
            Effect::Copy {
                handoff,
                rank,
                batch,
                pages,
                ..
            } => {
                let pages = pages.iter().map(|page| (page.slot, page.page, page.filled));
                self.copy(machine, event, (*handoff, *rank, *batch), pages.collect());
            }
            Effect::Check {
                handoff,
                rank,
                batch,
                pages,
            } => {
                let place = |page: PageId| page.index() as u32;
                let pages = pages.iter().map(|p| (place(p.page), p.page, p.filled));
                self.copy(machine, event, (*handoff, *rank, *batch), pages.collect());
            }
            Effect::Fence { arena } => assert!(self.fenced.insert(*arena), "one fence each"),
            Effect::Start { handoff, .. } => self.complete(*handoff),
            Effect::Disarm(timer) => late(machine, *timer),
            _ => {}
        }
    }

    /// A copy reads slots that no other copy out of this arena reads, and writes pages of its own
    /// handoff that the ledger keeps for it.
    fn copy(
        &mut self,
        machine: &mut Decode,
        event: Option<&Event>,
        batch: Batch,
        pages: Vec<(u32, PageId, u16)>,
    ) {
        let Some(Event::FromPrefill(conn, PrefillToDecode::Landed(manifest))) = event else {
            panic!("a copy that no statement asked for: {event:?}");
        };
        let named = (manifest.handoff, manifest.rank, manifest.batch);
        assert_eq!(named, batch);
        let life = self.tickets[&batch.0].life;
        assert_eq!(
            self.lives[conn], life,
            "H-8: only the ticket's own writer states"
        );
        assert!(
            !self.fenced.contains(&manifest.arena),
            "out of a fenced arena"
        );
        let stated = |page: &StatedPage| (page.slot, page.filled);
        let stated: Vec<_> = manifest.pages.iter().map(stated).collect();
        let copied: Vec<_> = pages
            .iter()
            .map(|(slot, _, filled)| (*slot, *filled))
            .collect();
        assert_eq!(
            copied, stated,
            "H-17: the slots that were stated, as far as they are filled"
        );
        let others = self
            .copies
            .values()
            .filter(|(m, _)| m.arena == manifest.arena);
        let reads: BTreeSet<u32> = others
            .flat_map(|(m, _)| m.pages.iter().map(|p| p.slot))
            .collect();
        let holders = machine.holders();
        let mut targets = Vec::new();
        for (slot, page, _) in pages {
            assert!(
                !reads.contains(&slot),
                "H-3: slot {slot} is read by another copy"
            );
            let held = holders.iter().find(|holder| holder.page == page);
            let held = held.expect("a page of somebody");
            assert_eq!(
                owned(held).map(|id| id.value()),
                Some(batch.0.n),
                "{held:?}"
            );
            assert!(in_use(held), "H-3: a copy writes it: {held:?}");
            assert!(!targets.contains(&page), "two slots into one page");
            targets.push(page);
        }
        self.copies.insert(batch, (manifest.clone(), targets));
    }

    /// H-2, H-7: every rank, whichever it is, has certified, and every page of every rank was
    /// compared; exactly one rank stated the first token.
    fn complete(&self, handoff: HandoffId) {
        let ticket = &self.tickets[&handoff];
        let mut first = 0;
        for (rank, of) in ticket.ranks.iter().enumerate() {
            let Some((batches, pages, token)) = of.sealed else {
                panic!("H-7: committed, and rank {rank} has not closed");
            };
            assert_eq!(of.verified, ticket.ordinals, "H-2: pages of rank {rank}");
            assert_eq!(pages as usize, ticket.ordinals.len(), "H-2: rank {rank}");
            let all: BTreeSet<u32> = (0..batches).collect();
            assert_eq!(of.batches, all, "H-2: batches of rank {rank}");
            first += usize::from(token);
        }
        assert_eq!(first, 1, "H-2: first tokens");
        let copies = self.copies.keys().filter(|batch| batch.0 == handoff);
        assert_eq!(copies.count(), 0, "H-9: a copy is in flight");
    }

    /// A step's tables come in the order of its lanes: what a lane writes is the page of that
    /// choice of that handoff. The check of what changed judges as the check of everything does.
    fn every_lane_writes_its_own_page(&self, machine: &mut Decode) {
        let lanes: Vec<Lane> = self.step.iter().flatten().map(|(lane, _)| *lane).collect();
        let mut choices = Vec::new();
        for lane in &lanes {
            let spec = machine.spec_of(lane.handoff).expect("who runs is expected");
            choices.push(if spec.choices == 1 {
                0
            } else {
                lane.choice + 1
            });
        }
        let mut fork = machine.fork_for_checker();
        let verified = fork.verify().expect("a sound table");
        let steps = verified.sequences().iter();
        let steps: Vec<_> = steps.map(|s| (s.start(), s.page_of(s.start()))).collect();
        let holders = machine.holders();
        for ((lane, choice), (start, page)) in lanes.iter().zip(choices).zip(steps) {
            let held = holders.iter().find(|holder| holder.page == page);
            let owner = held.and_then(|held| held.owner).expect("an owner");
            let pinned = held.is_some_and(|held| held.writes > 0);
            assert!(pinned, "H-3: a step writes it: {held:?}");
            let written = (owner.id.value(), owner.lane);
            assert_eq!(
                written,
                (lane.handoff.n, choice),
                "H-3: {lane:?} at {start}"
            );
        }
    }

    /// H-10: who has ended holds nothing but what a step, a copy or a writer may still touch.
    fn nothing_is_held_for_nobody(&self, machine: &mut Decode) {
        let epoch = machine.hello().epoch;
        let lanes = self.step.iter().flatten();
        let stepping: BTreeSet<u64> = lanes.map(|(lane, _)| lane.handoff.n).collect();
        let nobody_runs = machine.load().0 == 0 && self.step.is_none();
        for holder in machine.holders() {
            if holder.state == State::Cached && nobody_runs {
                assert_eq!(holder.shares, 1, "H-10: pinned by nobody: {holder:?}");
            }
            let Some(owner) = owned(&holder).map(|id| id.value()) else {
                continue;
            };
            let lives = machine.spec_of(HandoffId { epoch, n: owner }).is_some();
            let wanted = lives || stepping.contains(&owner) || in_use(&holder);
            assert!(wanted, "H-10: held for nobody: {holder:?}");
        }
    }
}

/// What the step reads and writes, lane by lane, checked in full. On a copy of the machine, so that
/// what the machine itself has checked is left as it is.
fn tables(machine: &mut Decode, lanes: &[Lane]) -> Tables {
    let tags: BTreeMap<PageId, Option<Tag>> = machine
        .holders()
        .into_iter()
        .map(|holder| (holder.page, holder.tag))
        .collect();
    let mut fork = machine.fork_for_checker();
    let verified = fork.verify_in_full().expect("a sound table");
    let sequences = verified.sequences();
    assert_eq!(sequences.len(), lanes.len(), "H-3: a table for every lane");
    let pages = sequences
        .iter()
        .map(|s| s.pages().map(|page| (page, tags[&page])).collect());
    lanes.iter().copied().zip(pages).collect()
}

/// A timer that was disarmed may fire all the same: it changes nothing.
fn late(machine: &mut Decode, timer: Timer) {
    let mut fork = machine.fork_for_checker();
    let said = fork.handle(Event::Fired(timer));
    assert!(said.is_empty() && fork == *machine, "{timer:?}: {said:?}");
}
