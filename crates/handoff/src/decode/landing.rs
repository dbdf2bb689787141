//! Batches and certificates: what P wrote into the arena is copied, compared and recorded, page by
//! page (law: the reader verifies).

use super::state::{Copying, Handoff, Writer, WriterState, life};
use super::{CheckPage, CopyPage, Decode, Effect, Mode, Timer};
use crate::Decisions;
use crate::id::HandoffKey;
use crate::prefix::Page;
use crate::{
    Answers, Broken, Closing, Conn, DecodeToPrefill, Ending, Entry, Evidence, Failure, Fault,
    HandoffId, Manifest, Stage, StatedPage,
};
use pages::{Epoch, OwnerId, PageId, StatedTag};
use std::collections::BTreeSet;

/// A difference, and the tag that was stated with it.
type Difference = (Fault, Option<StatedTag>);

impl<J: Decisions> Decode<J> {
    pub(super) fn landed(&mut self, conn: Conn, peer: Epoch, manifest: Manifest) {
        let known = self.known(manifest.handoff);
        let Some((id, h)) = known.filter(|(_, h)| h.peer == peer) else {
            let handoff = manifest.handoff;
            return self.answer_unknown(conn, DecodeToPrefill::Cancel { handoff });
        };
        let (rank, batch) = (manifest.rank, manifest.batch);
        let Some(writer) = h.writers.get(rank as usize) else {
            return self.send(
                conn,
                DecodeToPrefill::Cancel {
                    handoff: manifest.handoff,
                },
            );
        };
        if writer.taken.contains(&batch) {
            let handoff = manifest.handoff;
            return self.send(
                conn,
                DecodeToPrefill::Taken {
                    handoff,
                    rank,
                    batch,
                },
            );
        }
        if let Some(copying) = writer.copying.get(&batch) {
            // Stated again after a reconnect: it joins the copy in flight.
            if copying.manifest == manifest {
                return;
            }
            if h.is_landing() {
                return self.fault(id, rank, (Fault::BadBatch, None));
            }
        }
        if !h.is_landing() {
            return self.send(
                conn,
                DecodeToPrefill::Cancel {
                    handoff: manifest.handoff,
                },
            );
        }
        let manifest = self.placed(h, writer, manifest);
        match self.check_manifest(h, writer, &manifest) {
            Ok(pages) => self.begin_copy(id, manifest, pages),
            Err(difference) => self.fault(id, rank, difference),
        }
    }

    /// The statement, with the place of every page in the sequence as decode sees it.
    fn placed(&self, h: &Handoff, writer: &Writer, mut manifest: Manifest) -> Manifest {
        let arrived = h.first + writer.arrived();
        for (stated, nth) in manifest.pages.iter_mut().zip(arrived..) {
            stated.ordinal = self.decisions.ordinal_of(stated, nth);
        }
        manifest
    }

    /// Compares a statement with what was granted, before a byte of it is read.
    fn check_manifest(
        &self,
        h: &Handoff,
        writer: &Writer,
        manifest: &Manifest,
    ) -> Result<Vec<CopyPage>, Difference> {
        let bad = |fault| (fault, None);
        let arena = self
            .arena(h.peer, manifest.rank)
            .filter(|arena| self.decisions.same_arena(manifest.arena, arena.id));
        let arena = arena
            .filter(|_| self.decisions.same_arena(manifest.arena, writer.arena))
            .ok_or(bad(Fault::WrongArena))?;
        if writer.state != WriterState::Open
            || manifest.pages.is_empty()
            || manifest.pages.len() > self.config.max_batch_pages
        {
            return Err(bad(Fault::BadBatch));
        }
        let slots = arena.slots();
        let mut seen = BTreeSet::new();
        let mut pages = Vec::with_capacity(manifest.pages.len());
        for stated in &manifest.pages {
            let page = self
                .check_page(h, stated)
                .map_err(|fault| (fault, Some(stated.tag)))?;
            if writer.recorded.contains_key(&stated.ordinal)
                || writer
                    .copying
                    .values()
                    .any(|other| names(&other.manifest, stated.ordinal))
                || pages.iter().any(|other: &CopyPage| other.page == page)
            {
                return Err((Fault::PageTwice, Some(stated.tag)));
            }
            let elsewhere = match self.config.mode {
                Mode::Landing => stated.slot >= slots,
                Mode::Direct => stated.slot as usize != page.index(),
            };
            if elsewhere || arena.busy.contains(&stated.slot) || !seen.insert(stated.slot) {
                return Err((Fault::BadBatch, Some(stated.tag)));
            }
            pages.push(CopyPage {
                slot: stated.slot,
                page,
                filled: stated.filled,
            });
        }
        Ok(pages)
    }

    /// Tag, ordinal and fill of one page against the grant.
    fn check_page(&self, h: &Handoff, stated: &StatedPage) -> Result<PageId, Fault> {
        let ordinal = stated.ordinal;
        let granted = h.prompt.get(ordinal as usize);
        let Some(Page::Own(grant)) = granted else {
            return Err(Fault::WrongOrdinal);
        };
        if !self.decisions.same_tag(stated.tag, grant.tag()) {
            let elsewhere = h.prompt.iter().any(|page| match page {
                Page::Own(other) => stated.tag == other.tag(),
                Page::Shared(_) => false,
            });
            return Err(if elsewhere {
                Fault::WrongOrdinal
            } else {
                Fault::WrongTag
            });
        }
        let fill = h.fill_of(ordinal, self.pool.page_size());
        if !self.decisions.same_fill(stated.filled, fill) {
            return Err(Fault::WrongFill);
        }
        Ok(grant.page())
    }

    fn begin_copy(&mut self, id: HandoffKey, manifest: Manifest, pages: Vec<CopyPage>) {
        let targets: Vec<PageId> = pages.iter().map(|page| page.page).collect();
        let begun = match self.config.mode {
            Mode::Landing => self.pool.begin(&[], &targets),
            Mode::Direct => self.pool.begin(&targets, &[]),
        };
        let Some(op) = self.must(begun) else { return };
        let (rank, batch, arena) = (manifest.rank, manifest.batch, manifest.arena);
        let slots = manifest
            .pages
            .iter()
            .map(|page| page.slot)
            .collect::<Vec<_>>();
        let handoff = self.name(id);
        let Some(h) = self.handoffs.get_mut(&id) else {
            return self.lost(Entry::Handoff);
        };
        let peer = h.peer;
        h.writers[rank as usize]
            .copying
            .insert(batch, Copying { op, manifest });
        let Some(known) = self.arena_mut(peer, rank) else {
            return self.lost(Entry::Arena);
        };
        known.busy.extend(slots);
        if self.decisions.may_take(false) {
            self.taken(peer, handoff, rank, batch);
        }
        self.out.push(match self.config.mode {
            Mode::Landing => Effect::Copy {
                handoff,
                rank,
                batch,
                arena,
                pages,
            },
            Mode::Direct => Effect::Check {
                handoff,
                rank,
                batch,
                pages: pages.iter().map(CopyPage::where_it_lies).collect(),
            },
        });
    }

    pub(super) fn handle_copied(
        &mut self,
        handoff: HandoffId,
        rank: u16,
        batch: u32,
        checksums: Option<Vec<u32>>,
    ) {
        // A handoff is not forgotten while something is copied for it.
        let copying = self.known_mut(handoff).and_then(|(id, h)| {
            let writer = h.writers.get_mut(rank as usize)?;
            let copying = writer.copying.remove(&batch)?;
            Some((id, h.peer, h.is_landing(), copying))
        });
        let Some((id, peer, landing, Copying { op, manifest })) = copying else {
            return self.stop(Broken::CopyNotBegun);
        };
        let ended = self.pool.end(op);
        self.must(ended);
        // Otherwise it was fenced meanwhile, and there may be another.
        if let Some(arena) = self
            .arena_mut(peer, rank)
            .filter(|arena| arena.id == manifest.arena)
        {
            for page in &manifest.pages {
                arena.busy.remove(&page.slot);
            }
        }
        if landing {
            match compare(self.decisions, &manifest, checksums.as_deref()) {
                Ok(()) => self.record(id, &manifest),
                Err(Some(difference)) => self.fault(id, rank, difference),
                Err(None) => {
                    let failure = Failure::PeerFailed(Stage::Transfer);
                    self.end_handoff(id, Ending::Failed(failure));
                }
            }
        }
        self.settle(id);
    }

    fn record(&mut self, id: HandoffKey, manifest: &Manifest) {
        let handoff = self.name(id);
        let Some(h) = self.handoffs.get_mut(&id) else {
            return self.lost(Entry::Handoff);
        };
        let peer = h.peer;
        let writer = &mut h.writers[manifest.rank as usize];
        writer.taken.insert(manifest.batch);
        writer.recorded.extend(
            manifest
                .pages
                .iter()
                .map(|page| (page.ordinal, page.checksum)),
        );
        if self.decisions.may_take(true) {
            self.taken(peer, handoff, manifest.rank, manifest.batch);
        }
        self.try_commit(id);
    }

    /// Without a connection it is said at the next Sync.
    fn taken(&mut self, peer: Epoch, handoff: HandoffId, rank: u16, batch: u32) {
        if let Some(conn) = self.conn_of(peer) {
            let taken = DecodeToPrefill::Taken {
                handoff,
                rank,
                batch,
            };
            self.send(conn, taken);
        }
    }

    /// P says something about a handoff that D does not know (any more).
    fn answer_unknown(&mut self, conn: Conn, answer: DecodeToPrefill) {
        if self.decisions.answers_unknown(&answer) {
            self.send(conn, answer);
        }
    }

    pub(super) fn closed(
        &mut self,
        conn: Conn,
        peer: Epoch,
        handoff: HandoffId,
        rank: u16,
        how: Closing,
    ) {
        let ended = DecodeToPrefill::Ended {
            handoff,
            rank,
            answers: Answers::Closed,
        };
        let known = self.known_mut(handoff);
        let Some((id, h)) = known.filter(|(_, h)| h.peer == peer) else {
            return self.answer_unknown(conn, ended);
        };
        let running = h.is_running();
        let Some(writer) = h.writers.get_mut(rank as usize) else {
            return self.send(conn, ended);
        };
        match (writer.state, how) {
            _ if running => return self.send(conn, DecodeToPrefill::Committed { handoff }),
            // Its certificate is worth nothing any more: the answer waits for the fence.
            (WriterState::Open, _) if writer.voided => {}
            (
                WriterState::Open,
                Closing::Sealed {
                    batches,
                    pages,
                    first,
                },
            ) => {
                writer.state = WriterState::Sealed { batches, pages };
                writer.first = first;
                self.writers_over(id, Some(rank), Evidence::Closed);
                self.try_commit(id);
            }
            (WriterState::Open, Closing::Abandoned { why }) => {
                writer.state = WriterState::Abandoned;
                self.writers_over(id, Some(rank), Evidence::Closed);
                self.end_abandoned(id, why);
            }
            // Stated again: whoever asks is answered when the answer is known.
            (WriterState::Sealed { .. } | WriterState::Abandoned, _) => {
                let known = writer.answered;
                if known {
                    self.send(conn, ended);
                }
            }
            // A writer that has said Unsettled is answered when its arena is fenced.
            (WriterState::Unsettled, _) => {}
            (WriterState::Gone, _) => self.send(conn, ended),
        }
        self.settle(id);
    }

    /// P's own words for it. "Fail-stop" would be said of D, by whose ending the gateway hears it.
    fn end_abandoned(&mut self, id: HandoffKey, why: Option<Failure>) {
        if self.handoffs.get(&id).is_some_and(Handoff::is_landing) {
            let told = why.filter(|why| *why != Failure::Integrity(Fault::FailStop));
            let failure = told.unwrap_or(Failure::PeerFailed(Stage::Prefill));
            self.end_handoff(id, Ending::Failed(failure));
        }
    }

    pub(super) fn unsettled(
        &mut self,
        conn: Conn,
        peer: Epoch,
        handoff: HandoffId,
        rank: u16,
        slots: Vec<u32>,
    ) {
        let gone = DecodeToPrefill::Ended {
            handoff,
            rank,
            answers: Answers::Unsettled,
        };
        let known = self.known_mut(handoff);
        let Some((id, h)) = known.filter(|(_, h)| h.peer == peer) else {
            return self.answer_unknown(conn, gone);
        };
        let landing = h.is_landing();
        let Some(writer) = h.writers.get_mut(rank as usize) else {
            return self.send(conn, gone);
        };
        let arena = writer.arena;
        match writer.state {
            WriterState::Gone => {
                writer.answered = true;
                self.send(conn, gone);
                return self.settle(id);
            }
            WriterState::Unsettled => return, // stated again after a reconnect
            // A certificate that is taken back was wrong (H-7): what it freed is not free.
            _ if writer.answered => self.send(conn, gone),
            _ => writer.state = WriterState::Unsettled,
        }
        if landing {
            self.end_handoff(id, Ending::Failed(Failure::Unsettled));
        }
        let unsettled_ms = self.config.unsettled_ms;
        if let Some(a) = self.arena_mut(peer, rank).filter(|a| a.id == arena) {
            let known = a.slots();
            let first = !std::mem::replace(&mut a.doubtful, true);
            a.unsettled
                .extend(slots.into_iter().filter(|slot| *slot < known));
            if first {
                self.arm(Timer::Unsettled(arena), unsettled_ms);
            }
            self.drop_if_useless(peer, rank);
        }
        self.settle(id);
    }

    /// What arrived is not what was stated or granted. The attempt fails, the writer's certificate
    /// is void, its arena is dropped.
    pub(super) fn fault(&mut self, id: HandoffKey, rank: u16, (fault, stated): Difference) {
        let Some(h) = self.handoffs.get_mut(&id) else {
            return self.lost(Entry::Handoff);
        };
        let (attempt, writer) = (h.attempt, h.peer);
        let voids = self.decisions.voids(fault);
        if let Some(faulty) = h.writers.get_mut(rank as usize).filter(|_| voids) {
            faulty.voided = !faulty.answered && faulty.state != WriterState::Open;
            faulty.state = WriterState::Open;
            self.pool.reopen(OwnerId::new(id.0), life(writer, rank));
        }
        if let Some(peer) = self.peers.get_mut(&writer).filter(|_| voids) {
            peer.faults += 1;
        }
        let failure = Failure::Integrity(fault);
        let handoff = self.name(id);
        self.out.push(Effect::Audit {
            attempt,
            handoff,
            writer,
            failure,
            stated,
        });
        self.end_handoff(id, Ending::Failed(failure));
        let arena = self.arena(writer, rank).map(|arena| arena.id);
        if let Some(arena) = arena.filter(|_| voids) {
            self.drop_arena(arena);
        }
    }
}

impl CopyPage {
    fn where_it_lies(&self) -> CheckPage {
        let Self { page, filled, .. } = *self;
        CheckPage { page, filled }
    }
}

fn names(manifest: &Manifest, ordinal: u32) -> bool {
    manifest.pages.iter().any(|page| page.ordinal == ordinal)
}

/// The checksums of the copies against those that were stated. `Err(None)`: there is no copy.
fn compare<J: Decisions>(
    decisions: J,
    manifest: &Manifest,
    checksums: Option<&[u32]>,
) -> Result<(), Option<Difference>> {
    let checksums = checksums.ok_or(None)?;
    if checksums.len() != manifest.pages.len() {
        return Err(None);
    }
    let mut pairs = manifest.pages.iter().zip(checksums);
    match pairs.find(|(stated, copied)| !decisions.same_checksum(stated.checksum, **copied)) {
        Some((stated, _)) => Err(Some((Fault::WrongChecksum, Some(stated.tag)))),
        None => Ok(()),
    }
}
