//! The book of a prefill machine: offers, submissions, slots, statements, certificates, the pass in
//! flight.

use super::{in_use, owned};
use handoff::prefill::{Effect, Event, Prefill, SendPage, Timer};
use handoff::{
    Answers, ArenaId, AttemptId, Closing, DecodeToPrefill, HandoffId, Manifest, OfferId,
    PrefillToDecode, SubmissionId,
};
use pages::{PageId, State, Tag};
use std::collections::{BTreeMap, BTreeSet};

/// A handoff's writer.
type Writer = (HandoffId, u16);

/// The pages of a pass, in their order.
type Table = Vec<(PageId, Option<Tag>)>;

#[derive(Default)]
pub struct Watch {
    offers: BTreeMap<AttemptId, OfferId>,
    /// Offers whose attempt has ended.
    over: BTreeSet<u64>,
    flying: BTreeMap<SubmissionId, Manifest>,
    /// Batches that have landed.
    landed: BTreeMap<(HandoffId, u16, u32), Manifest>,
    /// Every page that was ever submitted.
    sent: BTreeMap<Writer, BTreeSet<u32>>,
    /// Slots that hold what nobody has taken, or that may still be written.
    slots: BTreeMap<ArenaId, BTreeSet<u32>>,
    /// Handoffs of which decode named its own pages.
    direct: BTreeSet<HandoffId>,
    /// What decode's tickets are for. One that names a handoff twice has muddled its own names.
    tickets: BTreeMap<HandoffId, OfferId>,
    muddled: BTreeSet<HandoffId>,
    /// Where each writer may write.
    landings: BTreeMap<Writer, ArenaId>,
    /// Writers that have said Unsettled and were answered: the arena is gone at decode.
    unsettled: BTreeSet<Writer>,
    pass: Option<(OfferId, Table)>,
}

impl Watch {
    pub fn before(&mut self, event: &Event) {
        match event {
            Event::FromDecode(conn, DecodeToPrefill::Ticket { under, .. })
                if under.conn != *conn => {}
            Event::FromDecode(_, message) => self.hear(message),
            Event::Written { submission, ok } => {
                if let Some(manifest) = self.flying.get(submission).filter(|_| *ok) {
                    let batch = (manifest.handoff, manifest.rank, manifest.batch);
                    self.landed.insert(batch, manifest.clone());
                    self.flying.remove(submission);
                }
            }
            Event::Detached { arena } => self.flying.retain(|_, m| m.arena != *arena),
            Event::ChunkEnd { .. } | Event::ChunkFailed { .. } => self.pass = None,
            _ => {}
        }
    }

    /// Slots are free again when their batch was taken, or their writer's certificate answered.
    fn hear(&mut self, message: &DecodeToPrefill) {
        match message {
            DecodeToPrefill::Ticket {
                offer,
                handoff,
                targets,
                landings,
                ..
            } => {
                for site in landings {
                    let writer = (*handoff, site.rank);
                    self.landings.entry(writer).or_insert(site.arena);
                }
                if *self.tickets.entry(*handoff).or_insert(*offer) != *offer {
                    self.muddled.insert(*handoff);
                }
                if !targets.is_empty() {
                    self.direct.insert(*handoff);
                }
            }
            DecodeToPrefill::Taken {
                handoff,
                rank,
                batch,
            } => self.free(|m| (m.handoff, m.rank, m.batch) == (*handoff, *rank, *batch)),
            DecodeToPrefill::Committed { handoff } => self.free(|m| m.handoff == *handoff),
            DecodeToPrefill::Ended {
                handoff,
                rank,
                answers: Answers::Closed,
            } => self.free(|m| (m.handoff, m.rank) == (*handoff, *rank)),
            DecodeToPrefill::Ended {
                handoff,
                rank,
                answers: Answers::Unsettled,
            } => {
                self.unsettled.insert((*handoff, *rank));
            }
            _ => {}
        }
    }

    fn free(&mut self, of: impl Fn(&Manifest) -> bool) {
        for manifest in self.landed.values().filter(|manifest| of(manifest)) {
            if let Some(slots) = self.slots.get_mut(&manifest.arena) {
                manifest.pages.iter().for_each(|page| {
                    slots.remove(&page.slot);
                });
            }
        }
    }

    pub fn after(&mut self, machine: &mut Prefill, event: &Event, said: &[Effect]) {
        if said.iter().any(|e| matches!(e, Effect::FailStop(_))) {
            return; // the worker ends
        }
        for effect in said {
            match effect {
                Effect::Submit {
                    submission,
                    arena,
                    rank,
                    pages,
                } => self.submit(machine, *submission, (*arena, *rank), pages),
                Effect::ToDecode(_, message) => self.say(message),
                Effect::Disarm(timer) => {
                    if let Timer::Attempt(attempt) = timer {
                        self.over
                            .extend(self.offers.get(attempt).map(|offer| offer.n));
                    }
                    late(machine, *timer);
                }
                Effect::Dropped { offer } => {
                    self.over.insert(offer.n);
                }
                Effect::Detach { arena } => {
                    self.slots.remove(arena);
                }
                _ => {}
            }
        }
        if let Event::ChunkBegin { offer, .. } = event {
            self.pass = Some((*offer, table(machine)));
        } else if let Some((_, then)) = &self.pass {
            assert_eq!(
                table(machine),
                *then,
                "H-3: the table of a pass that is in flight"
            );
        }
        self.nothing_is_held_for_nobody(machine);
    }

    /// Nothing is submitted twice, and nothing into a slot that may hold or get something else.
    fn submit(
        &mut self,
        machine: &mut Prefill,
        submission: SubmissionId,
        (arena, rank): (ArenaId, u16),
        pages: &[SendPage],
    ) {
        let manifest = machine.submission_for_checker(submission);
        let manifest = manifest.expect("a submission that is known").clone();
        assert_eq!((manifest.arena, manifest.rank), (arena, rank));
        if self.muddled.contains(&manifest.handoff) {
            return;
        }
        let slots: Vec<u32> = pages.iter().map(|page| page.slot).collect();
        let stated: Vec<u32> = manifest.pages.iter().map(|page| page.slot).collect();
        assert_eq!(slots, stated);
        let writer = (manifest.handoff, rank);
        let ticketed = self.landings.get(&writer);
        assert_eq!(
            ticketed,
            Some(&arena),
            "H-1: the ticket names another arena"
        );
        let mut used = self.slots.entry(arena).or_default();
        let mut none = BTreeSet::new();
        if self.direct.contains(&manifest.handoff) {
            used = &mut none;
        }
        let sent = self.sent.entry(writer).or_default();
        let holders = machine.holders();
        for (page, stated) in pages.iter().zip(&manifest.pages) {
            assert!(
                used.insert(page.slot),
                "H-1: slot {} is not free",
                page.slot
            );
            assert!(sent.insert(stated.ordinal), "H-7: sent twice: {stated:?}");
            assert!(page.filled <= stated.filled, "H-17: {page:?}");
            let held = holders.iter().find(|holder| holder.page == page.page);
            let read = held.is_some_and(|held| held.reads > 0);
            assert!(read, "H-3: a write reads it: {held:?}");
        }
        self.flying.insert(submission, manifest);
    }

    fn say(&mut self, message: &PrefillToDecode) {
        match message {
            PrefillToDecode::Offer { offer, attempt, .. } => {
                self.offers.insert(*attempt, *offer);
            }
            PrefillToDecode::Landed(manifest) if !self.muddled.contains(&manifest.handoff) => {
                let batch = (manifest.handoff, manifest.rank, manifest.batch);
                assert_eq!(
                    self.landed.get(&batch),
                    Some(manifest),
                    "H-7: it has not landed"
                );
            }
            PrefillToDecode::Closed { handoff, rank, how } if !self.muddled.contains(handoff) => {
                self.close((*handoff, *rank), how);
            }
            _ => {}
        }
    }

    /// H-7: a certificate says that every write of this rank has completed, and how many pages and
    /// batches that were.
    fn close(&self, writer: Writer, how: &Closing) {
        let mut flying = self.flying.values();
        let of_writer = |m: &&Manifest| (m.handoff, m.rank) == writer;
        if self.unsettled.contains(&writer) {
            return; // forgotten here: what is unknown is closed
        }
        assert_eq!(flying.find(of_writer), None, "H-7: in flight");
        if let Closing::Sealed { batches, pages, .. } = how {
            let landed = self.landed.values().filter(of_writer);
            let counts: Vec<usize> = landed.map(|manifest| manifest.pages.len()).collect();
            let said = (*batches as usize, *pages as usize);
            assert_eq!(said, (counts.len(), counts.iter().sum()), "H-2: {writer:?}");
        }
    }

    /// H-10: a job that is over holds nothing but what a pass or a write may still touch.
    fn nothing_is_held_for_nobody(&self, machine: &mut Prefill) {
        let passing = self.pass.as_ref().map(|(offer, _)| offer.n);
        let idle = machine.load() == (0, 0);
        for holder in machine.holders() {
            if holder.state == State::Cached && idle {
                assert_eq!(holder.shares, 1, "H-10: pinned by nobody: {holder:?}");
            }
            let Some(owner) = owned(&holder).map(|id| id.value()) else {
                continue;
            };
            let wanted = !self.over.contains(&owner) || passing == Some(owner) || in_use(&holder);
            assert!(wanted, "H-10: held for nobody: {holder:?}");
        }
    }
}

/// What the pass reads and writes, checked in full, on a copy of the machine.
fn table(machine: &mut Prefill) -> Table {
    let tags: BTreeMap<PageId, Option<Tag>> = machine
        .holders()
        .into_iter()
        .map(|holder| (holder.page, holder.tag))
        .collect();
    let mut fork = machine.fork_for_checker();
    let verified = fork.verify_in_full().expect("a sound table");
    let [sequence] = verified.sequences() else {
        panic!("H-3: the pass in flight has no table");
    };
    sequence.pages().map(|page| (page, tags[&page])).collect()
}

/// A timer that was disarmed may fire all the same: nothing comes of it. (Every event lets prefill
/// look anew for room, which counts as a use of cached pages: the state may differ in that.)
fn late(machine: &mut Prefill, timer: Timer) {
    let mut fork = machine.fork_for_checker();
    let said = fork.handle(Event::Fired(timer));
    assert!(said.is_empty(), "{timer:?}: {said:?}");
}
