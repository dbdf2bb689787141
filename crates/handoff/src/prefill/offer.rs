//! Offers and their answers. All pages of the prompt first, then D's: who holds a later resource
//! never waits for an earlier one (H-14).

use super::state::{Arena, ArenaState, AttemptStage, Job, Rank, Slots, Ticket};
use super::{Effect, Prefill, Timer};
use crate::Decisions;
use crate::id::JobKey;
use crate::prefix::Page;
use crate::{
    AttemptId, Closing, Conn, Ending, Entry, Failure, Fault, HandoffId, LandingSite, OfferId,
    PrefillToDecode, Stage, digest,
};
use pages::{BlockTable, Domain, Epoch, Owner, OwnerId, PageId, Seal, StatedTag};
use std::collections::BTreeMap;

impl<J: Decisions> Prefill<J> {
    /// Offers waiting attempts, oldest first, for as long as there are pages.
    pub(super) fn offer_more(&mut self) {
        let mut places = self.places();
        let mut at = 0;
        while at < self.queue.len() && places.values().any(|left| *left > 0) {
            let attempt = self.queue[at];
            let Some(decode) = self.attempts.get(&attempt).map(|known| known.decode) else {
                return self.lost(Entry::Attempt); // one that ends leaves the queue
            };
            let Some(left) = places.get_mut(&decode).filter(|left| **left > 0) else {
                at += 1; // that life is not there, or has as many jobs as it may
                continue;
            };
            *left -= 1;
            if !self.offer(attempt, decode) {
                return;
            }
            self.queue.remove(at);
        }
    }

    /// Jobs that may be begun towards every decode life that offers can go to. None of them holds a
    /// place of another: one that does not answer keeps nobody waiting but its own attempts.
    fn places(&self) -> BTreeMap<Epoch, usize> {
        if self.queue.is_empty() {
            return BTreeMap::new(); // asked after every event: must cost nothing
        }
        let synced = self.peers.iter().filter(|(_, peer)| peer.synced);
        let mut places: BTreeMap<_, _> = synced
            .map(|(decode, _)| (*decode, self.config.max_jobs))
            .collect();
        for job in self.jobs.values() {
            if let Some(left) = places.get_mut(&job.decode) {
                *left = left.saturating_sub(1);
            }
        }
        places
    }

    /// Reserves every page of the prompt and offers it; false if there are too few pages now.
    fn offer(&mut self, attempt: AttemptId, decode: Epoch) -> bool {
        let Some(known) = self.attempts.get(&attempt) else {
            self.lost(Entry::Attempt);
            return false;
        };
        let page_size = self.pool.page_size();
        let count = known.spec.tokens.len();
        let all = count.div_ceil(page_size as usize);
        let counts = self.pool.counts();
        if all > counts.free + counts.cached {
            return false; // asked after every event: must cost nothing
        }
        let spec = known.spec.clone();
        // One token at least is computed: its logits are needed.
        let most = if spec.cache {
            (count - 1) / page_size as usize
        } else {
            0
        };
        let pinned = self
            .prefix
            .pin(&mut self.pool, spec.domain, &spec.tokens, most);
        let id = JobKey(self.next_id.0 + 1);
        let owner = job_owner(id, spec.domain);
        let made = self.prefix.make_room(&mut self.pool, all - pinned.len());
        self.must(made);
        self.scrub();
        let Ok(own) = self.pool.reserve(owner, all - pinned.len()) else {
            for share in pinned {
                let given_back = Page::Shared(share).give_back(&mut self.pool);
                self.must(given_back);
            }
            return false;
        };
        let id = JobKey(self.mint_id());
        let mut table = BlockTable::new(owner, page_size);
        let mut checksums = Vec::with_capacity(all);
        for share in &pinned {
            table.push_shared(share);
            let known = self.pool.holder(share.page());
            match self.must(known).map(|holder| holder.seal.checksum) {
                Some(Some(checksum)) => checksums.push(checksum),
                Some(None) => self.lost(Entry::Checksum), // published with it
                None => {}                                // the ledger's own stop
            }
        }
        for (index, grant) in own.iter().enumerate() {
            let ordinal = (pinned.len() + index) as u32;
            let sealed = self.pool.seal(
                grant,
                Seal {
                    ordinal,
                    filled: 0,
                    checksum: None,
                },
            );
            self.must(sealed);
            table.push_own(grant);
        }
        let cached_tokens = (pinned.len() * page_size as usize) as u32;
        table.advance_to(cached_tokens);
        let pages = pinned
            .into_iter()
            .map(Page::Shared)
            .chain(own.into_iter().map(Page::Own));
        let job = Job {
            attempt: Some(attempt),
            why: None,
            decode,
            pages: pages.collect(),
            cached_tokens,
            table,
            checksums,
            first: None,
            chunk: None,
            ticket: None,
            release_after_chunk: false,
            owed: 0,
            spec,
        };
        let offer = PrefillToDecode::Offer {
            offer: self.name(id),
            attempt,
            count: count as u32,
            digest: digest(&job.spec.tokens),
        };
        self.jobs.insert(id, job);
        match self.attempts.get_mut(&attempt) {
            Some(known) => known.stage = AttemptStage::Job(id),
            None => self.lost(Entry::Attempt),
        }
        self.send(decode, offer);
        true
    }

    pub(super) fn ticket(
        &mut self,
        decode: Epoch,
        offer: OfferId,
        handoff: HandoffId,
        tags: Vec<StatedTag>,
        first: u32,
        landings: Vec<LandingSite>,
        targets: Vec<PageId>,
    ) {
        let id = JobKey(offer.n);
        let known = offer.epoch == self.hello.epoch;
        let Some(job) = self
            .jobs
            .get_mut(&id)
            .filter(|job| known && job.decode == decode)
        else {
            return self.refuse_ticket(decode, handoff, &landings);
        };
        if let Some(known) = &job.ticket {
            if known.handoff != handoff {
                self.refuse_ticket(decode, handoff, &landings);
            }
            return; // the same again: what follows from it was done
        }
        let ranks = landings
            .iter()
            .map(|site| Rank::new(site.arena, first))
            .collect::<Vec<_>>();
        let fits = (targets.is_empty() || targets.len() == tags.len())
            && ranks.len() == self.hello.ranks as usize
            && self
                .decisions
                .ticket_fits(first as usize + tags.len(), job.pages.len())
            && landings
                .iter()
                .enumerate()
                .all(|(rank, site)| site.rank as usize == rank);
        job.ticket = Some(Ticket {
            handoff,
            tags,
            first,
            targets,
            ranks,
        });
        let Some(attempt) = job.attempt else {
            return self.try_close(id); // it ended while its offer was on its way
        };
        if !fits {
            return self.end_job(id, Ending::Failed(Failure::Integrity(Fault::WrongTokens)));
        }
        let (spec, cached_tokens) = (Box::new(job.spec.clone()), job.cached_tokens);
        for site in landings {
            let arena = site.arena;
            if !self.attach(decode, site) {
                return self.arena_dead(id, arena);
            }
        }
        self.out.push(Effect::Admitted {
            offer,
            attempt,
            spec,
            cached_tokens,
        });
        self.send_more(id);
    }

    /// P holds nothing for it, so nothing was ever written.
    fn refuse_ticket(&mut self, decode: Epoch, handoff: HandoffId, landings: &[LandingSite]) {
        for site in landings {
            let (rank, how) = (site.rank, Closing::Abandoned { why: None });
            self.send(decode, PrefillToDecode::Closed { handoff, rank, how });
        }
    }

    /// Whether the arena is, or may become, usable.
    fn attach(&mut self, decode: Epoch, site: LandingSite) -> bool {
        let Some(peer) = self.peers.get_mut(&decode) else {
            self.lost(Entry::Peer); // it has just sent this
            return false;
        };
        let known = peer
            .arenas
            .get(&site.rank)
            .map(|arena| (arena.id, arena.state));
        if let Some((id, state)) = known
            && self.decisions.same_endpoint(id, site.arena)
        {
            return state != ArenaState::Dead;
        }
        let arena = Arena {
            id: site.arena,
            state: ArenaState::Attaching,
            free: Slots::new(site.slots),
        };
        peer.arenas.insert(site.rank, arena);
        if let Some((old, _)) = known {
            self.out.push(Effect::Detach { arena: old });
        }
        self.out.push(Effect::Attach {
            arena: site.arena,
            address: site.address,
        });
        true
    }

    pub(super) fn offer_faulty(&mut self, decode: Epoch, offer: OfferId, fault: Fault) {
        self.offer_over(decode, offer, |this, attempt| {
            this.end_attempt(attempt, Ending::Failed(Failure::Integrity(fault)));
        });
    }

    pub(super) fn offer_ended(&mut self, decode: Epoch, offer: OfferId) {
        self.offer_over(decode, offer, |this, attempt| {
            let failure = Failure::PeerFailed(Stage::Transfer);
            this.end_attempt(attempt, Ending::Failed(failure));
        });
    }

    /// That offer is over; the attempt queues again, behind others.
    pub(super) fn busy(&mut self, decode: Epoch, offer: OfferId, after_ms: u64) {
        self.offer_over(decode, offer, |this, attempt| {
            let Some(known) = this.attempts.get_mut(&attempt) else {
                return this.lost(Entry::Attempt);
            };
            known.stage = AttemptStage::Waiting;
            this.out.push(Effect::Arm {
                timer: Timer::Retry(attempt),
                after_ms,
            });
        });
    }

    /// An answer that ends an offer: its pages are free, its attempt goes where `then` says.
    fn offer_over(
        &mut self,
        decode: Epoch,
        offer: OfferId,
        then: impl FnOnce(&mut Self, AttemptId),
    ) {
        let unanswered = |job: &Job| job.ticket.is_none() && job.decode == decode;
        if offer.epoch != self.hello.epoch
            || !self.jobs.get(&JobKey(offer.n)).is_some_and(unanswered)
        {
            return; // answered before, or another's: said again after a reconnect
        }
        self.has_answered(decode);
        let Some(attempt) = self.remove_job(JobKey(offer.n)) else {
            return; // its attempt had ended, and nobody waits for its pages
        };
        let Some(known) = self.attempts.get_mut(&attempt) else {
            return self.lost(Entry::Attempt);
        };
        known.stage = AttemptStage::Queued;
        then(self, attempt);
    }

    pub(super) fn conn_of(&self, decode: Epoch) -> Option<Conn> {
        self.peers
            .get(&decode)
            .and_then(|peer| peer.conn.filter(|_| peer.synced))
    }

    pub(super) fn send(&mut self, decode: Epoch, message: PrefillToDecode) {
        if let Some(conn) = self.conn_of(decode) {
            self.out.push(Effect::ToDecode(conn, message));
        }
    }
}

pub(super) fn job_owner(id: JobKey, domain: Domain) -> Owner {
    Owner {
        id: OwnerId::new(id.0),
        domain,
        lane: 0,
    }
}
