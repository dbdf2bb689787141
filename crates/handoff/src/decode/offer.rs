//! Admission: an offer becomes a ticket, or not (handoff.md, happy path 4).

use super::state::{ArenaState, Expected, Handoff, Phase, Writer, ledger_lane, life, owner};
use super::{Decode, Effect, Mode, Timer};
use crate::Decisions;
use crate::id::HandoffKey;
use crate::prefix::Page;
use crate::{
    AttemptId, Capacity, Conn, DecodeToPrefill, Ending, Entry, Failure, Fault, LandingSite,
    OfferId, Reserve, Spec,
};
use pages::{Domain, Epoch, Grant, Share, WriterLife};

/// What an attempt has taken at its ticket.
struct Taken {
    /// Cached pages at the prompt's beginning.
    pinned: Vec<Share>,
    prompt: Vec<Grant>,
    lanes: Vec<Vec<Grant>>,
    /// See [`Need::most`].
    most: usize,
}

/// Pages of a request at D.
struct Need {
    /// Prompt pages that P sends.
    prompt: usize,
    /// Pages of each lane behind the prompt that are taken at the ticket.
    lanes: Vec<(u16, usize)>,
    /// The most that one of its sequences can come to hold, the whole prompt included.
    most: usize,
}

impl Need {
    fn total(&self) -> usize {
        self.prompt + self.lanes.iter().map(|(_, pages)| pages).sum::<usize>()
    }
}

impl<J: Decisions> Decode<J> {
    pub(super) fn offer(
        &mut self,
        conn: Conn,
        peer: Epoch,
        offer: OfferId,
        attempt: AttemptId,
        count: u32,
        digest: [u8; 32],
    ) {
        if offer.epoch != peer {
            return self.send(conn, DecodeToPrefill::OfferEnded { offer });
        }
        if let Some(id) = self.by_offer(offer) {
            return self.repeat_answer(conn, id, offer);
        }
        let Some(expected) = self.expected.get(&attempt) else {
            let early = self
                .announced
                .get(&attempt.epoch)
                .is_none_or(|seen| attempt.n > seen.0);
            return if early {
                self.busy(conn, offer)
            } else {
                self.offer_ended(conn, offer)
            };
        };
        if expected.prefill != peer || expected.handoff.is_some() {
            return self.offer_ended(conn, offer);
        }
        let told = (expected.spec.tokens.len() as u32, expected.digest);
        if !self.decisions.same_prompt(told, (count, digest)) {
            let fault = Fault::WrongTokens;
            self.send(conn, DecodeToPrefill::Faulty { offer, fault });
            let failure = Failure::Integrity(fault);
            return self.end_attempt(attempt, Ending::Failed(failure));
        }
        let count = self.decisions.prompt_length(told.0, count);
        self.admit_offer(conn, peer, offer, attempt, count);
    }

    fn admit_offer(
        &mut self,
        conn: Conn,
        peer: Epoch,
        offer: OfferId,
        attempt: AttemptId,
        count: u32,
    ) {
        if self.peers.get(&peer).is_none_or(|peer| peer.refused) {
            return self.offer_ended(conn, offer);
        }
        let Some(sites) = self.landing_sites(peer) else {
            return self.busy(conn, offer);
        };
        if !self.decisions.lets_in(self.intents.contains(&attempt)) {
            return self.busy(conn, offer);
        }
        let granted = self.granted_to(peer);
        let Some(taken) = self.take_pages(attempt, count, granted) else {
            self.remember_intent(attempt);
            return self.busy(conn, offer);
        };
        self.forget_turn(attempt);
        self.ticket(conn, peer, offer, attempt, count, sites, taken);
    }

    /// What the attempt takes at its ticket: all that it can ever need, or the pages of the prompt
    /// and a few of each choice, copies of a partly filled page included. Others come as it grows.
    fn need(&self, spec: &Spec, count: u64, capacity: &Capacity, pinned: usize) -> Need {
        let prompt = capacity.pages_for(count) as usize;
        let all = capacity.pages_for(count + u64::from(spec.max_new)) as usize;
        let alone = spec.choices == 1;
        let shared = (count / u64::from(capacity.page_size)) as usize;
        let own = all - if alone { prompt } else { shared };
        let take = |pages: usize| Need {
            prompt: prompt - pinned,
            lanes: (0..spec.choices)
                .map(|choice| (ledger_lane(choice, alone), pages))
                .collect(),
            most: prompt + own,
        };
        if spec.pages == Reserve::All {
            return take(own);
        }
        let ahead = self.config.ahead_pages.max(1);
        let need = take(self.decisions.reserve_ahead(own, ahead));
        match need.total() > capacity.pages as usize {
            true => take(own.min(1)),
            false => need,
        }
    }

    /// Takes what the attempt needs at its ticket, or nothing. Whoever runs keeps its right to all
    /// that it may come to need (H-14, H-19).
    fn take_pages(&mut self, attempt: AttemptId, count: u32, granted: usize) -> Option<Taken> {
        let capacity = self.capacity();
        let Some(expected) = self.expected.get(&attempt) else {
            self.lost(Entry::Attempt);
            return None;
        };
        let spec = &expected.spec;
        let id = HandoffKey(self.next_id.0 + 1);
        let most = if spec.cache { usize::MAX } else { 0 };
        let pinned = self
            .prefix
            .pin(&mut self.pool, spec.domain, &spec.tokens, most);
        let need = self.need(spec, u64::from(count), &capacity, pinned.len());
        let (domain, pages) = (spec.domain, spec.pages);
        let room = self.pool.counts().free + self.prefix.evictable(&self.pool);
        // One handoff at a time is always let in: otherwise a prompt that the limits admit would
        // wait for a cap that never yields.
        let capped = granted > 0 && granted + need.prompt > self.config.max_pages_per_peer;
        let claimed = self.ahead_of(attempt) + self.may_grow_soon();
        let held = pinned.len() + need.total();
        let fits = need.total() + claimed <= room && !capped;
        let fits = fits && self.rights_stay(need.most, held, pages);
        let mut taken = Taken {
            pinned,
            prompt: Vec::new(),
            lanes: Vec::new(),
            most: need.most,
        };
        let lanes = std::iter::once((0, need.prompt)).chain(need.lanes);
        for (at, (lane, pages)) in lanes.enumerate() {
            let grants = fits.then(|| self.take_lane(id, domain, lane, pages));
            match grants.flatten() {
                Some(prompt) if at == 0 => taken.prompt = prompt,
                Some(grants) => taken.lanes.push(grants),
                None => {
                    let own = taken.lanes.into_iter().flatten().chain(taken.prompt);
                    let own = own.collect();
                    self.give_back(taken.pinned, own);
                    return None;
                }
            }
        }
        Some(taken)
    }

    pub(super) fn take_lane(
        &mut self,
        id: HandoffKey,
        domain: Domain,
        lane: u16,
        pages: usize,
    ) -> Option<Vec<Grant>> {
        let made = self.prefix.make_room(&mut self.pool, pages);
        self.must(made);
        self.scrub();
        self.pool.reserve(owner(id, domain, lane), pages).ok()
    }

    fn give_back(&mut self, pinned: Vec<Share>, taken: Vec<Grant>) {
        let pages = pinned
            .into_iter()
            .map(Page::Shared)
            .chain(taken.into_iter().map(Page::Own));
        for page in pages.collect::<Vec<_>>() {
            let given_back = page.give_back(&mut self.pool);
            self.must(given_back);
        }
    }

    /// Pages that attempts refused before this one are waiting for. Those of a P that is not there
    /// hold nobody up.
    fn ahead_of(&self, attempt: AttemptId) -> usize {
        let capacity = self.capacity();
        let ahead = self.intents.iter().take_while(|other| **other != attempt);
        ahead
            .filter_map(|other| self.expected.get(other))
            .filter(|expected| self.conn_of(expected.prefill).is_some())
            .map(|Expected { spec, .. }| self.need(spec, spec.tokens.len() as u64, &capacity, 0))
            .map(|need| need.total())
            .sum()
    }

    /// Its turn is kept for as long as P asks again for it: one that is stopped holds nobody up.
    fn remember_intent(&mut self, attempt: AttemptId) {
        if !self.intents.contains(&attempt) {
            if self.intents.len() >= self.config.max_intents {
                return; // it is told Busy all the same, and takes its chance
            }
            self.intents.push_back(attempt);
        }
        self.arm(Timer::Turn(attempt), self.config.answer_ms);
    }

    pub(super) fn forget_turn(&mut self, attempt: AttemptId) {
        if self.intents.contains(&attempt) {
            self.intents.retain(|other| *other != attempt);
            self.out.push(Effect::Disarm(Timer::Turn(attempt)));
        }
    }

    fn ticket(
        &mut self,
        conn: Conn,
        peer: Epoch,
        offer: OfferId,
        attempt: AttemptId,
        count: u32,
        sites: Vec<LandingSite>,
        taken: Taken,
    ) {
        let Taken {
            pinned,
            prompt,
            lanes,
            most,
        } = taken;
        let id = HandoffKey(self.mint_id());
        let Some(expected) = self.expected.get_mut(&attempt) else {
            return self.lost(Entry::Attempt);
        };
        expected.handoff = Some(id);
        let (domain, pages) = (expected.spec.domain, expected.spec.pages);
        // Writes that land in an arena touch no page; in direct mode every rank may.
        let writers: Vec<WriterLife> = match self.config.mode {
            Mode::Landing => Vec::new(),
            Mode::Direct => sites.iter().map(|site| life(peer, site.rank)).collect(),
        };
        for grant in &prompt {
            let exposed = self.pool.expose(grant, &writers);
            self.must(exposed);
        }
        let first = pinned.len() as u32;
        let shares = pinned.into_iter().map(Page::Shared);
        let handoff = Handoff {
            offer,
            attempt,
            peer,
            domain,
            phase: Phase::Landing,
            count,
            prompt_pages: first + prompt.len() as u32,
            first,
            prompt: shares.chain(prompt.into_iter().map(Page::Own)).collect(),
            reserve: lanes,
            pages,
            most,
            sequences: Vec::new(),
            started: false,
            writers: sites.iter().map(|site| Writer::new(site.arena)).collect(),
        };
        self.handoffs.insert(id, handoff);
        self.send_ticket(conn, id, sites);
    }

    /// What P is told of a handoff that lands, and under which connection.
    fn send_ticket(&mut self, conn: Conn, id: HandoffKey, landings: Vec<LandingSite>) {
        let Some(h) = self.handoffs.get(&id) else {
            return self.lost(Entry::Handoff);
        };
        let Some(under) = self.peers.get(&h.peer).and_then(|peer| peer.synced) else {
            return self.lost(Entry::Peer); // it offers on a connection that is synced
        };
        let own = h.prompt.iter().filter_map(|page| match page {
            Page::Own(grant) => Some((grant.tag().stated(), grant.page())),
            Page::Shared(_) => None,
        });
        let (tags, mut targets): (Vec<_>, Vec<_>) = own.unzip();
        if self.config.mode == Mode::Landing {
            targets.clear();
        }
        let ticket = DecodeToPrefill::Ticket {
            offer: h.offer,
            handoff: self.name(id),
            under,
            tags,
            first: h.first,
            landings,
            targets,
        };
        self.send(conn, ticket);
    }

    /// The same offer again: the same answer again, unless the arenas of the ticket are gone.
    pub(super) fn repeat_answer(&mut self, conn: Conn, id: HandoffKey, offer: OfferId) {
        let Some(h) = self.handoffs.get(&id) else {
            return self.offer_ended(conn, offer);
        };
        let arenas: Vec<_> = h.writers.iter().map(|writer| writer.arena).collect();
        let sites = self
            .landing_sites(h.peer)
            .filter(|sites| sites.iter().map(|site| site.arena).collect::<Vec<_>>() == arenas);
        match sites {
            Some(sites) if h.is_landing() => self.send_ticket(conn, id, sites),
            _ => {
                // P holds no ticket for it, so nothing of it was ever written.
                self.count_as_closed(id);
                self.offer_ended(conn, offer);
                self.end_if_landing(id);
                self.settle(id);
            }
        }
    }

    pub(super) fn by_offer(&self, offer: OfferId) -> Option<HandoffKey> {
        self.handoffs
            .iter()
            .find(|(_, handoff)| handoff.offer == offer)
            .map(|(id, _)| *id)
    }

    /// Where each rank of this life writes to; none while an arena is being made or dropped, or is
    /// to be: a ticket into an arena with unsettled slots could wait for slots that never come back
    /// (explored: 9 steps to a wait that only a deadline ends).
    fn landing_sites(&self, peer: Epoch) -> Option<Vec<LandingSite>> {
        let peer = self.peers.get(&peer)?;
        let site = |rank: u16| {
            let arena = peer.arenas.get(&rank)?;
            let ArenaState::Ready { slots, address } = &arena.state else {
                return None;
            };
            if !self.decisions.may_ticket_into(arena.doubtful) {
                return None;
            }
            Some(LandingSite {
                rank,
                arena: arena.id,
                slots: *slots,
                address: address.clone(),
            })
        };
        (0..peer.ranks).map(site).collect()
    }

    /// Pages granted to a life and not committed (H-16).
    fn granted_to(&self, peer: Epoch) -> usize {
        let landing = self
            .handoffs
            .values()
            .filter(|h| h.peer == peer && h.is_landing());
        landing.map(|h| h.sent_pages() as usize).sum()
    }

    fn busy(&mut self, conn: Conn, offer: OfferId) {
        let after_ms = self.config.busy_ms;
        self.send(conn, DecodeToPrefill::Busy { offer, after_ms });
    }

    fn offer_ended(&mut self, conn: Conn, offer: OfferId) {
        self.send(conn, DecodeToPrefill::OfferEnded { offer });
    }

    pub(super) fn send(&mut self, conn: Conn, message: DecodeToPrefill) {
        self.out.push(Effect::ToPrefill(conn, message));
    }
}
