//! Pages for what is generated (H-19). A sequence takes another page when it has filled those it has.
//!
//! The order of sequences is that of their tickets, and of the choices in them. One that is short of
//! a page waits for nobody who waits for it: the youngest one is put back, if it is younger, and
//! what it held is taken. So the oldest is never short for longer than it takes to put others back;
//! and because no offer is let in that would take its right from it (`rights_stay`), it depends on
//! no peer either. Everybody becomes the oldest in the end, or ends before.

use super::state::{Handoff, ledger_lane};
use super::{Decode, Effect, Lane};
use crate::Decisions;
use crate::id::HandoffKey;
use crate::prefix::Page;
use crate::{DecodeToGateway, Ending, Entry, Reserve};
use pages::{BlockTable, Domain};

/// A sequence, in the order of their ages.
type Sequence = (HandoffKey, u16);

/// One that lacks a page for its next token, and whose the page is to be.
struct Short {
    sequence: Sequence,
    domain: Domain,
    lane: u16,
}

impl<J: Decisions> Decode<J> {
    /// Gives a page to every sequence that is short of one, the oldest first, for as long as there
    /// are pages or younger sequences to put back. Between steps only: nothing reads a page then
    /// that is freed here (H-3).
    pub(super) fn grow(&mut self) {
        if !self.decisions.may_grow(self.step.is_some()) {
            return;
        }
        self.release_choices_that_ended();
        while let Some(short) = self.oldest_short() {
            if self.take_another(&short) {
                continue;
            }
            match self.youngest() {
                Some(victim) if victim > short.sequence && self.decisions.yields() => {
                    self.put_back(victim)
                }
                _ => return,
            }
        }
    }

    fn running(&self) -> impl DoubleEndedIterator<Item = (HandoffKey, &Handoff)> {
        let all = self.handoffs.iter().filter(|(_, h)| h.is_running());
        all.map(|(id, h)| (*id, h))
    }

    fn oldest_short(&self) -> Option<Short> {
        self.running().find_map(|(id, h)| {
            let short = (0..h.sequences.len()).find(|choice| h.is_short(*choice))? as u16;
            Some(Short {
                sequence: (id, short),
                domain: h.domain,
                lane: ledger_lane(short, h.sequences.len() == 1),
            })
        })
    }

    /// The youngest sequence that may be put back.
    fn youngest(&self) -> Option<Sequence> {
        let as_needed = self.running().filter(|(_, h)| h.pages == Reserve::AsNeeded);
        as_needed.rev().find_map(|(id, h)| {
            let going = h.sequences.iter().rposition(|sequence| !sequence.done)?;
            Some((id, going as u16))
        })
    }

    /// Whether there was a page.
    fn take_another(&mut self, short: &Short) -> bool {
        let (id, choice) = short.sequence;
        let Some(grants) = self.take_lane(id, short.domain, short.lane, 1) else {
            return false; // none is free, and none can be evicted
        };
        let h = self.handoffs.get_mut(&id);
        let reserve = h.and_then(|h| h.reserve.get_mut(usize::from(choice)));
        match reserve {
            Some(reserve) => reserve.extend(grants),
            None => self.lost(Entry::Reserve),
        }
        true
    }

    /// The sequence ends here without having finished, and says so behind all that it has said.
    fn put_back(&mut self, (id, choice): Sequence) {
        let handoff = self.name(id);
        let Some(h) = self.handoffs.get_mut(&id) else {
            return self.lost(Entry::Handoff);
        };
        let Some(sequence) = h.sequences.get_mut(usize::from(choice)) else {
            return self.lost(Entry::Sequence);
        };
        sequence.done = true;
        let attempt = h.attempt;
        let over = h.sequences.iter().all(|sequence| sequence.done);
        self.out.push(Effect::Stop(Lane { handoff, choice }));
        let Some(expected) = self.expected.get(&attempt) else {
            return self.lost(Entry::Attempt);
        };
        let put_back = DecodeToGateway::PutBack { attempt, choice };
        self.out.push(Effect::ToGateway(expected.conn, put_back));
        if over {
            self.end_handoff(id, Ending::Finished);
        } else {
            self.release_choices_that_ended();
        }
        self.scrub();
    }

    /// Pages of a choice that has ended while others of its attempt go on. What all of them read
    /// stays until the last has ended.
    fn release_choices_that_ended(&mut self) {
        let mut pages = Vec::new();
        for h in self.handoffs.values_mut().filter(|h| h.is_running()) {
            for (choice, sequence) in h.sequences.iter_mut().enumerate() {
                if !sequence.done {
                    continue; // it goes on
                }
                let reserve = h.reserve.get_mut(choice).map(std::mem::take);
                let own = std::mem::take(&mut sequence.own);
                sequence.table = BlockTable::new(sequence.table.owner(), self.pool.page_size());
                pages.extend(own.into_iter().chain(reserve.into_iter().flatten()));
            }
        }
        for grant in pages {
            let given_back = Page::Own(grant).give_back(&mut self.pool);
            self.must(given_back);
        }
    }

    /// Pages that are left for those that run and have not all that they can need, one each: who
    /// takes the last page is put back for the next.
    pub(super) fn may_grow_soon(&self) -> usize {
        let grows = |h: &Handoff| h.sequences.iter().filter(|sequence| !sequence.done).count();
        let partly = self.running().filter(|(_, h)| h.held() < h.most);
        partly.map(|(_, h)| grows(h)).sum()
    }

    /// Whether everybody who may come to be the oldest can have all that it may need without waiting
    /// for a peer, if an offer is let in that holds `held` pages and can come to hold `most`. Held
    /// fast are pages that no put-back frees: those of handoffs that land, of sequences that are
    /// never put back, and in quarantine.
    pub(super) fn rights_stay(&mut self, most: usize, held: usize, pages: Reserve) -> bool {
        let counts = self.pool.counts();
        let pool = counts.total();
        let fast = |h: &Handoff| match h.is_landing() || h.is_running() && h.pages == Reserve::All {
            true => h.held(),
            false => 0,
        };
        let all: usize = self.handoffs.values().map(fast).sum::<usize>() + counts.quarantined;
        let growing = self.handoffs.values().filter(|h| {
            let goes_on = h.is_landing() || h.is_running();
            goes_on && h.pages == Reserve::AsNeeded
        });
        let decisions = self.decisions;
        let mut others =
            growing.map(|h| decisions.leaves_the_right(h.most, all - fast(h) + held, pool));
        let own = pages == Reserve::All || decisions.leaves_the_right(most, all, pool);
        own && others.all(|stays| stays)
    }
}
