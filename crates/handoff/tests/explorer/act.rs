//! What can happen next, and how it happens.

use crate::world::{Content, Notes, PAGE_SIZE, World, checksum};
use handoff::decode::{self, Output};
use handoff::gateway;
use handoff::prefill;
use handoff::{ArenaId, Finish, RequestId, SubmissionId};
use pages::{Epoch, PageId, State};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    ToDecode,
    ToPrefill,
    ChunkBegin,
    ChunkEnd,
    Land(usize),
    Written(SubmissionId),
    Copied(usize),
    Fenced(ArenaId),
    Detached(ArenaId),
    StepBegin,
    StepEnd,
    Retry(prefill::Timer),
    Redial,
    Unlinked,
    // Faults.
    Leave(usize),
    FailWrite(SubmissionId),
    Break,
    PrefillDeadline(prefill::Timer),
    DecodeDeadline(decode::Timer),
    GatewayDeadline(gateway::Timer),
}

impl Act {
    pub fn is_fault(&self) -> bool {
        matches!(
            self,
            Self::Leave(_)
                | Self::FailWrite(_)
                | Self::Break
                | Self::PrefillDeadline(_)
                | Self::DecodeDeadline(_)
                | Self::GatewayDeadline(_)
        )
    }
}

impl World {
    pub fn acts(&mut self) -> Vec<Act> {
        let mut acts = Vec::new();
        match &self.link {
            Some(link) => {
                acts.extend((!link.to_decode.is_empty()).then_some(Act::ToDecode));
                acts.extend((!link.to_prefill.is_empty()).then_some(Act::ToPrefill));
            }
            None => acts.push(Act::Redial),
        }
        acts.extend(self.stale.map(|_| Act::Unlinked));
        match self.chunk {
            Some(_) => acts.push(Act::ChunkEnd),
            None => acts.extend((!self.prefill.runnable().is_empty()).then_some(Act::ChunkBegin)),
        }
        acts.extend((0..self.flights.len()).map(Act::Land));
        for submission in &self.unreported {
            if self
                .flights
                .iter()
                .all(|flight| flight.submission != *submission)
            {
                acts.push(Act::Written(*submission));
            }
            acts.extend((self.left.failed_writes > 0).then_some(Act::FailWrite(*submission)));
        }
        acts.extend((0..self.copies.len()).map(Act::Copied));
        // A fence joins the copies first.
        let joined = |arena: &&ArenaId| self.copies.iter().all(|copy| copy.arena != **arena);
        acts.extend(
            self.fences
                .iter()
                .filter(joined)
                .map(|arena| Act::Fenced(*arena)),
        );
        acts.extend(self.detaching.iter().map(|arena| Act::Detached(*arena)));
        match self.step {
            Some(_) => acts.push(Act::StepEnd),
            None => acts.extend((!self.decode.runnable().is_empty()).then_some(Act::StepBegin)),
        }
        self.timers_and_faults(&mut acts);
        acts
    }

    fn timers_and_faults(&self, acts: &mut Vec<Act>) {
        for timer in &self.prefill_timers {
            match timer {
                prefill::Timer::Retry(_) => {
                    acts.extend((self.retries > 0).then_some(Act::Retry(*timer)));
                }
                _ if self.left.deadlines > 0 => acts.push(Act::PrefillDeadline(*timer)),
                _ => {}
            }
        }
        if self.left.deadlines > 0 {
            acts.extend(
                self.decode_timers
                    .iter()
                    .map(|timer| Act::DecodeDeadline(*timer)),
            );
            acts.extend(
                self.gateway_timers
                    .iter()
                    .map(|timer| Act::GatewayDeadline(*timer)),
            );
        }
        if self.left.leaves > 0 {
            let staying = self
                .clients
                .iter()
                .enumerate()
                .filter(|(_, c)| c.outcome.is_none());
            acts.extend(staying.map(|(at, _)| Act::Leave(at)));
        }
        acts.extend((self.left.breaks > 0 && self.link.is_some()).then_some(Act::Break));
    }

    pub fn apply(&mut self, act: &Act, notes: &mut Notes) {
        match act {
            Act::ToDecode => drop(self.deliver_to_decode(notes)),
            Act::ToPrefill => drop(self.deliver_to_prefill(notes)),
            Act::ChunkBegin => self.chunk_begin(notes),
            Act::ChunkEnd => self.chunk_end(notes),
            Act::Land(at) => self.land(*at, notes),
            Act::Written(submission) => {
                self.unreported.remove(submission);
                let (submission, ok) = (*submission, true);
                self.prefill_event(prefill::Event::Written { submission, ok }, notes);
            }
            Act::Copied(at) => self.copied(*at, notes),
            Act::Fenced(arena) => self.fenced(*arena, notes),
            Act::Detached(arena) => self.detached(*arena, notes),
            Act::StepBegin => self.step_begin(notes),
            Act::StepEnd => self.step_end(notes),
            Act::Redial => {
                notes.saw("redialled");
                self.dial(notes);
            }
            Act::Unlinked => {
                if let Some(conn) = self.stale.take() {
                    self.decode_event(decode::Event::Disconnected(conn), notes);
                }
            }
            Act::Retry(timer) => {
                self.retries -= 1;
                self.prefill_timers.remove(timer);
                self.prefill_event(prefill::Event::Fired(*timer), notes);
            }
            fault => self.fault(fault, notes),
        }
        self.check(notes);
    }

    fn fault(&mut self, fault: &Act, notes: &mut Notes) {
        match fault {
            Act::Leave(at) => {
                self.left.leaves -= 1;
                let request = RequestId {
                    epoch: Epoch::new(1),
                    n: *at as u64 + 1,
                };
                self.gateway_event(gateway::Event::ClientGone(request), notes);
            }
            Act::FailWrite(submission) => {
                self.left.failed_writes -= 1;
                self.unreported.remove(submission);
                let of = self
                    .flights
                    .iter_mut()
                    .filter(|f| f.submission == *submission);
                of.for_each(|flight| flight.late = true);
                let (submission, ok) = (*submission, false);
                self.prefill_event(prefill::Event::Written { submission, ok }, notes);
            }
            Act::Break => {
                self.left.breaks -= 1;
                if let Some(link) = self.link.take() {
                    if self.unreported.is_empty() && !self.copies.is_empty() {
                        notes.saw("stated again");
                    }
                    self.stale = Some(link.conn);
                    self.prefill_event(prefill::Event::Disconnected(link.conn), notes);
                }
            }
            Act::PrefillDeadline(timer) => {
                self.deadline(notes);
                self.prefill_timers.remove(timer);
                self.prefill_event(prefill::Event::Fired(*timer), notes);
            }
            Act::DecodeDeadline(timer) => {
                self.deadline(notes);
                self.decode_timers.remove(timer);
                self.decode_event(decode::Event::Fired(*timer), notes);
            }
            Act::GatewayDeadline(timer) => {
                self.deadline(notes);
                self.gateway_timers.remove(timer);
                self.gateway_event(gateway::Event::Fired(*timer), notes);
            }
            _ => {}
        }
    }

    fn deadline(&mut self, notes: &mut Notes) {
        self.left.deadlines -= 1;
        notes.saw("deadline");
    }

    /// Two tokens at a time, so that transfer and compute overlap.
    fn chunk_begin(&mut self, notes: &mut Notes) {
        let offer = self.prefill.runnable()[0];
        let tokens = u32::from(PAGE_SIZE);
        self.prefill_event(prefill::Event::ChunkBegin { offer, tokens }, notes);
        match self.prefill.verify_in_full() {
            Ok(verified) if verified.sequences().len() == 1 => {}
            Ok(_) => notes.violates("a chunk of no sequence"),
            Err(fault) => notes.violates(fault.to_string()),
        }
    }

    fn chunk_end(&mut self, notes: &mut Notes) {
        let Some((offer, from, to)) = self.chunk.take() else {
            return;
        };
        let Some(spec) = self.prefill.spec(offer) else {
            return notes.violates("H-3: the job of a chunk in flight is gone");
        };
        let (count, prompt) = (spec.tokens.len() as u32, self.prompt_of(&spec.clone()));
        let size = u32::from(PAGE_SIZE);
        let pages: Vec<PageId> = match self.prefill.verify_in_full() {
            Ok(verified) => verified.sequences()[0].pages().collect(),
            Err(_) => Vec::new(), // its pages were given back at the boundary: nothing is kept
        };
        let mut checksums = Vec::new();
        for (ordinal, page) in pages.iter().enumerate().skip((from / size) as usize) {
            let end = ((ordinal as u32 + 1) * size).min(count);
            if end <= to {
                let content = self.expected(prompt, ordinal);
                checksums.push(checksum(&content));
                self.prefill_pages.insert(*page, content);
            }
        }
        let first = (to == count).then(|| vec![prompt as u8]);
        self.prefill_event(
            prefill::Event::ChunkEnd {
                offer,
                checksums,
                first,
            },
            notes,
        );
    }

    fn land(&mut self, at: usize, notes: &mut Notes) {
        let flight = self.flights.remove(at);
        if flight.late {
            notes.saw("late write");
        }
        let content = self.prefill_pages.get(&flight.source).cloned().flatten();
        if let Some((_, slots)) = self.arenas.get_mut(&flight.arena) {
            slots.insert(flight.slot, content);
        }
    }

    fn copied(&mut self, at: usize, notes: &mut Notes) {
        let copy = self.copies.remove(at);
        let mut checksums = Vec::new();
        for page in &copy.pages {
            let slots = self.arenas.get(&copy.arena).map(|(_, slots)| slots);
            let content: Content = slots.and_then(|s| s.get(&page.slot).cloned()).flatten();
            checksums.push(checksum(&content));
            let state = self
                .decode
                .holders()
                .into_iter()
                .find(|h| h.page == page.page);
            if !state.is_some_and(|h| {
                matches!(h.state, State::Granted | State::Quarantined(_)) && h.writes > 0
            }) {
                notes.violates("H-3: a copy writes a page that nobody keeps for it");
            }
            self.decode_pages.insert(page.page, content);
        }
        let (handoff, rank, batch) = (copy.handoff, copy.rank, copy.batch);
        let checksums = Some(checksums);
        self.decode_event(
            decode::Event::Copied {
                handoff,
                rank,
                batch,
                checksums,
            },
            notes,
        );
    }

    fn fenced(&mut self, arena: ArenaId, notes: &mut Notes) {
        notes.saw("fenced");
        self.fences.retain(|other| *other != arena);
        if let Some((writer, _)) = self.arenas.remove(&arena) {
            let proof = self.decode.fence_for_checker(writer);
            let effects = self.decode.handle_fenced(arena, proof);
            self.decode_effects(effects, notes);
        }
    }

    /// P's endpoint is destroyed: nothing reads the sources of its submissions any more.
    fn detached(&mut self, arena: ArenaId, notes: &mut Notes) {
        self.detaching.retain(|other| *other != arena);
        let gone: Vec<_> = self
            .flights
            .iter()
            .filter(|f| f.arena == arena)
            .cloned()
            .collect();
        self.flights.retain(|flight| flight.arena != arena);
        self.unreported
            .retain(|s| gone.iter().all(|flight| flight.submission != *s));
        self.prefill_event(prefill::Event::Detached { arena }, notes);
    }

    fn step_begin(&mut self, notes: &mut Notes) {
        let lanes = self.decode.runnable();
        self.decode_event(decode::Event::StepBegin(lanes.clone()), notes);
        let tables: Vec<Vec<PageId>> = match self.decode.verify_in_full() {
            Ok(verified) => verified
                .sequences()
                .iter()
                .map(|s| s.pages().collect())
                .collect(),
            Err(fault) => return notes.violates(fault.to_string()),
        };
        notes.saw("step");
        let mut step = Vec::new();
        for (lane, pages) in lanes.into_iter().zip(tables) {
            let (prompt, _) = self.running[&lane.handoff];
            let whole = self.prompts[prompt]
                .tokens
                .len()
                .div_ceil(PAGE_SIZE as usize);
            let mut read = Vec::new();
            for (ordinal, page) in pages.into_iter().take(whole).enumerate() {
                let content = self.decode_pages.get(&page).cloned().flatten();
                if content != self.expected(prompt, ordinal) {
                    notes.violates("H-1: a step reads a page that holds something else");
                }
                read.push((page, content));
            }
            step.push((lane, read));
        }
        self.step = Some(step);
    }

    fn step_end(&mut self, notes: &mut Notes) {
        let Some(step) = self.step.take() else { return };
        let mut outputs = Vec::new();
        for (lane, read) in step {
            for (page, content) in read {
                if self.decode_pages.get(&page).cloned().flatten() != content {
                    notes.violates("H-3: a page changed while a step read it");
                }
            }
            let Some((prompt, generated)) = self.running.get_mut(&lane.handoff) else {
                continue;
            };
            *generated += 1;
            let last = *generated == self.prompts[*prompt].max_new;
            let (payload, finish) = (vec![*prompt as u8], last.then_some(Finish::Length));
            outputs.push(Output {
                lane,
                payload,
                finish,
            });
        }
        self.decode_event(decode::Event::StepEnd(outputs), notes);
    }

    /// What must hold in every world.
    fn check(&mut self, notes: &mut Notes) {
        for (name, counts) in [
            ("prefill", self.prefill.counts()),
            ("decode", self.decode.counts()),
        ] {
            let pages = if name == "prefill" {
                self.prefill.holders()
            } else {
                self.decode.holders()
            };
            if pages.len() + counts.free != counts.total() {
                notes.violates(format!("H-10: the pages of {name} do not add up"));
            }
        }
        let held = self.prefill.holders();
        for flight in &self.flights {
            if !held
                .iter()
                .any(|holder| holder.page == flight.source && holder.reads > 0)
            {
                notes.violates("H-3: prefill freed a page that a write still reads");
            }
        }
        if let Some(step) = &self.step {
            let held = self.decode.holders();
            let named = step
                .iter()
                .flat_map(|(_, read)| read.iter().map(|(page, _)| page));
            for page in named {
                let state = held
                    .iter()
                    .find(|holder| holder.page == *page)
                    .map(|h| h.state);
                if !matches!(state, Some(State::Sealed | State::Cached)) {
                    notes.violates("H-3: decode freed a page that a step in flight names");
                }
            }
        }
    }
}
