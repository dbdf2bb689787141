//! What computes, writes, copies and reads pages, and what each must find there.

use crate::dice::Dice;
use crate::world::{Content, PAGE, World, checksum, mark, token_at};
use handoff::decode::{self, Lane, Output};
use handoff::{ArenaId, Finish, prefill};
use pages::PageId;

impl World {
    pub fn chunk_end(&mut self, p: usize) {
        let side = &mut self.prefills[p];
        let (offer, from, to) = side.chunk.take().expect("a chunk");
        let spec = side
            .machine
            .spec(offer)
            .expect("the job of a chunk in flight")
            .clone();
        let (count, size) = (spec.tokens.len() as u32, u32::from(PAGE));
        // Whatever has ended meanwhile: what a pass reads and writes is there until it has ended.
        let verified = side.machine.verify_in_full().expect("a sound table");
        let pages: Vec<PageId> = verified.sequences()[0].pages().collect();
        let mut checksums = Vec::new();
        for (ordinal, page) in pages.iter().enumerate().skip((from / size) as usize) {
            if ((ordinal as u32 + 1) * size).min(count) <= to {
                let content = Self::expected(&spec, ordinal);
                checksums.push(checksum(&content));
                side.pages.insert(*page, content);
            }
        }
        let first = (to == count).then(|| mark(&spec));
        self.tell_prefill(
            p,
            prefill::Event::ChunkEnd {
                offer,
                checksums,
                first,
            },
        );
    }

    /// One page write lands: it reads its source now.
    pub fn land(&mut self, at: usize) {
        let flight = self.flights.remove(at);
        let known = &self.prefills[flight.of].unreported;
        if flight.kept.is_none() && !known.contains_key(&flight.submission) {
            self.saw("late write");
        }
        let content = match flight.kept {
            Some(content) => {
                self.saw("write of a dead process");
                content
            }
            None => {
                let side = &mut self.prefills[flight.of];
                let held = side.machine.holders();
                let read = held.iter().any(|h| h.page == flight.source && h.reads > 0);
                assert!(read, "H-3: prefill freed a page that a write still reads");
                side.pages.get(&flight.source).cloned().flatten()
            }
        };
        for side in &mut self.decodes {
            if let Some((_, slots)) = side.arenas.get_mut(&flight.arena) {
                slots.insert(flight.slot, content.clone());
            }
        }
    }

    /// P's endpoint is destroyed: nothing reads the sources of its submissions any more.
    pub fn detached(&mut self, p: usize, arena: ArenaId) {
        let side = &mut self.prefills[p];
        side.detaching.retain(|other| *other != arena);
        side.unreported.retain(|_, of| *of != arena);
        self.flights
            .retain(|f| f.of != p || f.arena != arena || f.kept.is_some());
        self.tell_prefill(p, prefill::Event::Detached { arena });
    }

    pub fn opened(&mut self, d: usize, arena: ArenaId) {
        let side = &mut self.decodes[d];
        let at = side.opening.iter().position(|(other, _)| *other == arena);
        let (_, writer) = side.opening.remove(at.expect("asked for"));
        side.arenas.insert(arena, (writer, Default::default()));
        let (slots, address) = (crate::world::SLOTS, Vec::new());
        self.tell_decode(
            d,
            decode::Event::ArenaOpened {
                arena,
                slots,
                address,
            },
        );
    }

    pub fn copied(&mut self, d: usize, at: usize) {
        let side = &mut self.decodes[d];
        let copy = side.copies.remove(at);
        let mut checksums = Vec::new();
        let held = side.machine.holders();
        for page in &copy.pages {
            let slots = side.arenas.get(&copy.arena).map(|(_, slots)| slots);
            let content: Content = slots.and_then(|s| s.get(&page.slot).cloned()).flatten();
            checksums.push(checksum(&content));
            let written = held.iter().any(|h| h.page == page.page && h.writes > 0);
            assert!(
                written,
                "H-3: a copy writes a page that nobody keeps for it"
            );
            let fresh = || (copy.handoff, Default::default());
            let filled = side.pages.entry(page.page).or_insert_with(fresh);
            if filled.0 != copy.handoff {
                *filled = fresh();
            }
            filled.1.insert(copy.rank, content);
        }
        let (handoff, rank, batch) = (copy.handoff, copy.rank, copy.batch);
        let checksums = Some(checksums);
        self.tell_decode(
            d,
            decode::Event::Copied {
                handoff,
                rank,
                batch,
                checksums,
            },
        );
    }

    /// The worker looks at the first tokens: one that is the last ends its answer.
    pub fn start(&mut self, d: usize, at: usize) {
        let (handoff, spec) = self.decodes[d].starts.remove(at);
        let mut outputs = Vec::new();
        for choice in 0..spec.choices {
            let lane = Lane { handoff, choice };
            let finish = (spec.max_new == 1).then_some(Finish::Length);
            self.decodes[d].voices.insert(lane, (1, spec.clone()));
            let payload = mark(&spec);
            outputs.push(Output {
                lane,
                token: token_at(spec.tokens.len()),
                payload,
                finish,
            });
        }
        self.tell_decode(d, decode::Event::First(outputs));
    }

    pub fn step_begin(&mut self, d: usize, dice: &mut Dice) {
        let mut lanes = self.decodes[d].machine.runnable();
        if lanes.len() > 1 && dice.chance(30) {
            lanes.remove(dice.roll(lanes.len() as u64) as usize);
        }
        // The worker decides in which order it names them.
        for end in 1..lanes.len() {
            lanes.swap(end, dice.roll(end as u64 + 1) as usize);
        }
        self.tell_decode(d, decode::Event::StepBegin(lanes.clone()));
        let side = &mut self.decodes[d];
        let tables = crate::checks::of_step(&mut side.machine, dice).expect("a sound table");
        let mut step = Vec::new();
        for (lane, pages) in lanes.into_iter().zip(tables) {
            let (_, spec) = &side.voices[&lane];
            let whole = spec.tokens.len().div_ceil(usize::from(PAGE));
            let mut reads = Vec::new();
            for (ordinal, page) in pages.into_iter().take(whole).enumerate() {
                let content: Vec<_> = side.pages[&page].1.values().cloned().collect();
                let expected = Self::expected(spec, ordinal);
                assert!(
                    !content.is_empty() && content.iter().all(|c| *c == expected),
                    "H-1: a step reads {content:?} for {expected:?}"
                );
                reads.push((page, content));
            }
            step.push((lane, reads));
        }
        side.step = Some(step);
    }

    pub fn step_end(&mut self, d: usize) {
        let side = &mut self.decodes[d];
        let mut outputs = Vec::new();
        for (lane, reads) in side.step.take().expect("a step") {
            for (page, content) in reads {
                let now: Vec<_> = side.pages[&page].1.values().cloned().collect();
                assert_eq!(now, content, "H-3: a page changed while a step read it");
            }
            let Some((generated, spec)) = side.voices.get_mut(&lane) else {
                continue; // stopped meanwhile
            };
            *generated += 1;
            let finish = (*generated == spec.max_new).then_some(Finish::Length);
            let payload = mark(spec);
            let position = spec.tokens.len() + *generated as usize - 1;
            outputs.push(Output {
                lane,
                token: token_at(position),
                payload,
                finish,
            });
        }
        self.tell_decode(d, decode::Event::StepEnd(outputs));
    }
}
