//! A pool beside a reference model of it, driven by random calls. The model keeps *facts* about
//! every page (who holds it, what is pending) and derives the state from them by one function; the
//! ledger keeps states and moves between them. That the two agree after every call is the test.

use pages::{
    Config, Counts, Domain, Epoch, FenceMint, Grant, Holder, OpId, Owner, OwnerId, PageId, Pool,
    Reason, Seal, Share, State, Tag, WriterLife,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

pub const PAGES: u32 = 7;
pub const PAGE_SIZE: u16 = 4;
pub const OWNERS: u64 = 3;

/// Owner 0 and 1 are of one domain, owner 2 of another; lanes belong to owner 0 alone.
pub fn owner(n: u64, lane: u16) -> Owner {
    Owner {
        id: OwnerId::new(n % OWNERS),
        domain: Domain::new(n % OWNERS / 2),
        lane: if n.is_multiple_of(OWNERS) {
            lane % 3
        } else {
            0
        },
    }
}

pub fn writer(n: u16) -> WriterLife {
    // Two ranks of one life, and a rank of another that differs from it in its highest bits alone.
    WriterLife {
        epoch: Epoch::new(0xE0 | u128::from(n % 3 / 2) << 120),
        rank: n % 3 % 2,
    }
}

/// One call. Numbers pick among what exists at that moment, modulo how much that is.
#[derive(Clone, Debug)]
pub enum Call {
    Reserve {
        by: u64,
        lane: u16,
        pages: usize,
    },
    Expose {
        grant: usize,
        writers: Vec<u16>,
    },
    Begin {
        reads: Vec<u32>,
        writes: Vec<u32>,
    },
    End {
        op: usize,
    },
    Seal {
        grant: usize,
        ordinal: u32,
        filled: u16,
    },
    Extend {
        grant: usize,
        filled: u16,
    },
    Release {
        grant: usize,
    },
    DropGrant {
        grant: usize,
    },
    Publish {
        grant: usize,
    },
    Share {
        of: usize,
        domain: u64,
    },
    Unshare {
        share: usize,
    },
    Evict {
        share: usize,
    },
    DropShare {
        share: usize,
    },
    Closed {
        writer: u16,
        owner: u64,
    },
    Fenced {
        writer: u16,
    },
    Reopen {
        writer: u16,
        owner: u64,
    },
    Scrubbed {
        page: u32,
    },
}

pub fn call() -> impl Strategy<Value = Call> {
    let some = 0usize..64;
    let page = 0..PAGES + 1; // one more than there are
    let few = prop::collection::vec(page.clone(), 0..3);
    let fill = 0..PAGE_SIZE + 2;
    let writers = prop::collection::vec(0u16..3, 0..3);
    prop_oneof![
        6 => (0..OWNERS, 0u16..3, 0usize..4).prop_map(|(by, lane, pages)| Call::Reserve { by, lane, pages }),
        3 => (some.clone(), writers).prop_map(|(grant, writers)| Call::Expose { grant, writers }),
        4 => (few.clone(), few).prop_map(|(reads, writes)| Call::Begin { reads, writes }),
        5 => some.clone().prop_map(|op| Call::End { op }),
        6 => (some.clone(), 0u32..4, fill.clone())
            .prop_map(|(grant, ordinal, filled)| Call::Seal { grant, ordinal, filled }),
        4 => (some.clone(), fill).prop_map(|(grant, filled)| Call::Extend { grant, filled }),
        5 => some.clone().prop_map(|grant| Call::Release { grant }),
        1 => some.clone().prop_map(|grant| Call::DropGrant { grant }),
        4 => some.clone().prop_map(|grant| Call::Publish { grant }),
        3 => (some.clone(), 0u64..2).prop_map(|(of, domain)| Call::Share { of, domain }),
        3 => some.clone().prop_map(|share| Call::Unshare { share }),
        3 => some.clone().prop_map(|share| Call::Evict { share }),
        1 => some.prop_map(|share| Call::DropShare { share }),
        2 => (0u16..3, 0..OWNERS).prop_map(|(writer, owner)| Call::Closed { writer, owner }),
        1 => (0u16..3).prop_map(|writer| Call::Fenced { writer }),
        1 => (0u16..3, 0..OWNERS).prop_map(|(writer, owner)| Call::Reopen { writer, owner }),
        3 => page.prop_map(|page| Call::Scrubbed { page }),
    ]
}

/// Who holds a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Held {
    #[default]
    Nobody,
    Fresh,
    Told,
    Full,
    Readers(u32),
    Lost,
    Ended,
}

#[derive(Clone, Debug, Default)]
pub struct Facts {
    pub held: Held,
    pub owner: Option<Owner>,
    pub tag: Option<Tag>,
    pub seal: Seal,
    pub reads: u32,
    pub writes: u32,
    pub open: BTreeSet<WriterLife>,
    closed: BTreeSet<WriterLife>,
    zeroed: bool,
}

impl Facts {
    fn state(&self, scrub: bool) -> State {
        match self.held {
            Held::Nobody => State::Free,
            Held::Fresh => State::Reserved,
            Held::Told => State::Granted,
            Held::Full => State::Sealed,
            Held::Readers(_) => State::Cached,
            Held::Lost => State::Quarantined(Reason::Dropped),
            Held::Ended if self.reads + self.writes > 0 => State::Quarantined(Reason::Operations),
            Held::Ended if !self.open.is_empty() => State::Quarantined(Reason::Writers),
            Held::Ended if scrub && !self.zeroed => State::Quarantined(Reason::Scrub),
            Held::Ended => State::Free,
        }
    }

    fn is_owned(&self) -> bool {
        matches!(self.held, Held::Fresh | Held::Told | Held::Full)
    }
}

pub struct World {
    pub pool: Pool,
    pub mint: FenceMint,
    pub grants: Vec<Grant>,
    pub shares: Vec<Share>,
    pub facts: Vec<Facts>,
    /// Pages whose grant was dropped and that the pool has not looked for since.
    pub unheard: BTreeSet<PageId>,
    scrub: bool,
    ops: Vec<(OpId, BTreeSet<u32>, BTreeSet<u32>)>,
    tags: BTreeSet<Tag>,
    dropped: (u64, u64),
}

impl World {
    pub fn new(scrub: bool) -> Self {
        let (pool, mint) = Pool::new(Config {
            pages: PAGES,
            page_size: PAGE_SIZE,
            scrub,
        });
        Self {
            pool,
            mint,
            grants: Vec::new(),
            shares: Vec::new(),
            facts: vec![Facts::default(); PAGES as usize],
            unheard: BTreeSet::new(),
            scrub,
            ops: Vec::new(),
            tags: BTreeSet::new(),
            dropped: (0, 0),
        }
    }

    pub fn state(&self, page: PageId) -> State {
        self.facts[page.index()].state(self.scrub)
    }

    /// Makes the call on both sides and compares their verdicts.
    pub fn make(&mut self, call: Call) {
        match call {
            Call::Reserve { by, lane, pages } => self.reserve(owner(by, lane), pages),
            Call::Expose { grant, writers } => self.expose(grant, &writers),
            Call::Begin { reads, writes } => self.begin(&reads, &writes),
            Call::End { op } => self.end(op),
            Call::Seal {
                grant,
                ordinal,
                filled,
            } => self.seal(grant, ordinal, filled),
            Call::Extend { grant, filled } => self.extend(grant, filled),
            Call::Release { grant } => self.release(grant),
            Call::DropGrant { grant } => self.drop_grant(grant),
            Call::Publish { grant } => self.publish(grant),
            Call::Share { of, domain } => self.share(of, Domain::new(domain)),
            Call::Unshare { share } => self.unshare(share),
            Call::Evict { share } => self.evict(share),
            Call::DropShare { share } => self.drop_share(share),
            Call::Closed { writer: w, owner } => {
                let (w, owner) = (writer(w), OwnerId::new(owner));
                self.pool.writer_gone(self.mint.closed(w, owner));
                for facts in self.of(owner) {
                    if facts.open.remove(&w) {
                        facts.closed.insert(w);
                    }
                }
            }
            Call::Fenced { writer: w } => {
                let w = writer(w);
                self.pool.writer_gone(self.mint.fenced(w));
                for facts in &mut self.facts {
                    facts.open.remove(&w);
                    facts.closed.remove(&w);
                }
            }
            Call::Reopen { writer: w, owner } => {
                let (w, owner) = (writer(w), OwnerId::new(owner));
                let mut voided = 0;
                for facts in self.of(owner) {
                    if facts.closed.remove(&w) {
                        facts.open.insert(w);
                        voided += 1;
                    }
                }
                assert_eq!(self.pool.reopen(owner, w), voided);
            }
            Call::Scrubbed { page } => {
                let waits = self.facts.get(page as usize).is_some_and(|facts| {
                    facts.state(self.scrub) == State::Quarantined(Reason::Scrub)
                });
                assert_eq!(self.pool.scrubbed(PageId::new(page)).is_ok(), waits);
                if waits {
                    self.facts[page as usize].zeroed = true;
                }
            }
        }
        self.forget_freed();
    }

    fn of(&mut self, owner: OwnerId) -> impl Iterator<Item = &mut Facts> {
        let of = move |facts: &&mut Facts| facts.owner.is_some_and(|own| own.id == owner);
        self.facts.iter_mut().filter(of)
    }

    /// Pages that became free. The law, in the words of the model: nothing pends, and nobody in
    /// this test still holds a handle of them.
    fn forget_freed(&mut self) {
        for index in 0..self.facts.len() {
            let facts = &self.facts[index];
            if facts.held != Held::Ended || facts.state(self.scrub) != State::Free {
                continue;
            }
            assert!(facts.reads + facts.writes == 0 && facts.open.is_empty());
            let page = PageId::new(index as u32);
            assert!(self.grants.iter().all(|grant| grant.page() != page));
            assert!(self.shares.iter().all(|share| share.page() != page));
            self.facts[index] = Facts::default();
        }
    }

    fn reserve(&mut self, by: Owner, pages: usize) {
        let free = self.facts.iter().filter(|f| f.held == Held::Nobody).count();
        let before = self.pool.fork_for_checker();
        self.unheard.clear();
        match self.pool.reserve(by, pages) {
            Ok(grants) => {
                assert!(pages <= free && grants.len() == pages);
                for grant in &grants {
                    assert!(self.tags.insert(grant.tag()), "a tag was repeated");
                    let facts = &mut self.facts[grant.page().index()];
                    assert_eq!(facts.held, Held::Nobody, "granted twice");
                    facts.held = Held::Fresh;
                    facts.owner = Some(by);
                    facts.tag = Some(grant.tag());
                }
                self.grants.extend(grants);
            }
            Err(shortage) => {
                assert!(pages > free);
                assert_eq!((shortage.wanted, shortage.free), (pages, free));
                assert!(self.pool == before, "all or nothing");
            }
        }
    }

    fn expose(&mut self, grant: usize, writers: &[u16]) {
        let Some(grant) = pick(&self.grants, grant) else {
            return;
        };
        let writers: Vec<_> = writers.iter().map(|w| writer(*w)).collect();
        let facts = &mut self.facts[grant.page().index()];
        let legal = facts.held == Held::Fresh;
        assert_eq!(self.pool.expose(grant, &writers).is_ok(), legal);
        if legal {
            facts.held = Held::Told;
            facts.open = writers.into_iter().collect();
        }
    }

    fn begin(&mut self, reads: &[u32], writes: &[u32]) {
        let alive = |page: &u32| {
            let facts = self.facts.get(*page as usize);
            facts.is_some_and(|f| f.is_owned() || matches!(f.held, Held::Readers(_)))
        };
        let owned = |page: &u32| {
            alive(page) && !matches!(self.facts[*page as usize].held, Held::Readers(_))
        };
        let legal = reads.iter().all(alive) && writes.iter().all(owned);
        let named =
            |pages: &[u32]| -> Vec<PageId> { pages.iter().map(|p| PageId::new(*p)).collect() };
        self.unheard.clear();
        let op = self.pool.begin(&named(reads), &named(writes));
        assert_eq!(op.is_ok(), legal);
        let Ok(op) = op else { return };
        let (reads, writes): (BTreeSet<u32>, BTreeSet<u32>) = (
            reads.iter().copied().collect(),
            writes.iter().copied().collect(),
        );
        for page in &reads {
            self.facts[*page as usize].reads += 1;
        }
        for page in &writes {
            self.facts[*page as usize].writes += 1;
        }
        assert!(self.ops.iter().all(|(known, ..)| *known != op));
        self.ops.push((op, reads, writes));
    }

    fn end(&mut self, op: usize) {
        if self.ops.is_empty() {
            return;
        }
        let (op, reads, writes) = self.ops.remove(op % self.ops.len());
        self.pool.end(op).expect("an operation in flight");
        assert!(self.pool.end(op).is_err(), "ended twice");
        for page in reads {
            self.facts[page as usize].reads -= 1;
        }
        for page in writes {
            self.facts[page as usize].writes -= 1;
        }
    }

    pub fn seal(&mut self, grant: usize, ordinal: u32, filled: u16) {
        let Some(grant) = pick(&self.grants, grant) else {
            return;
        };
        let facts = &mut self.facts[grant.page().index()];
        let legal = matches!(facts.held, Held::Fresh | Held::Told)
            && facts.writes == 0
            && facts.open.is_empty()
            && filled <= PAGE_SIZE;
        let seal = Seal {
            ordinal,
            filled,
            checksum: Some(ordinal ^ 0xABCD),
        };
        assert_eq!(self.pool.seal(grant, seal).is_ok(), legal);
        if legal {
            facts.held = Held::Full;
            facts.seal = seal;
        }
    }

    pub fn extend(&mut self, grant: usize, filled: u16) {
        let Some(grant) = pick(&self.grants, grant) else {
            return;
        };
        let facts = &mut self.facts[grant.page().index()];
        let fits = (facts.seal.filled..=PAGE_SIZE).contains(&filled);
        let legal = facts.held == Held::Full && fits;
        assert_eq!(self.pool.extend(grant, filled, None).is_ok(), legal);
        if legal {
            facts.seal.filled = filled;
            facts.seal.checksum = None;
        }
    }

    fn release(&mut self, grant: usize) {
        let Some(grant) = take(&mut self.grants, grant) else {
            return;
        };
        let facts = &mut self.facts[grant.page().index()];
        assert!(facts.is_owned(), "a live grant owns its page");
        facts.held = Held::Ended;
        self.pool.release(grant).expect("a live grant");
    }

    fn drop_grant(&mut self, grant: usize) {
        if let Some(grant) = take(&mut self.grants, grant) {
            self.unheard.insert(grant.page());
            self.facts[grant.page().index()].held = Held::Lost;
            self.dropped.0 += 1;
        }
    }

    fn publish(&mut self, grant: usize) {
        let Some(grant) = take(&mut self.grants, grant) else {
            return;
        };
        let facts = &mut self.facts[grant.page().index()];
        let legal = facts.held == Held::Full
            && facts.writes == 0
            && facts.open.is_empty()
            && facts.seal.filled == PAGE_SIZE;
        match self.pool.publish(grant) {
            Ok(share) => {
                assert!(legal);
                facts.held = Held::Readers(1);
                self.shares.push(share);
            }
            Err((grant, _)) => {
                assert!(!legal);
                self.grants.push(grant);
            }
        }
    }

    fn share(&mut self, of: usize, domain: Domain) {
        let Some(of) = pick(&self.shares, of) else {
            return;
        };
        let facts = &mut self.facts[of.page().index()];
        let legal = facts.owner.is_some_and(|owner| owner.domain == domain);
        let share = self.pool.share(of, domain);
        assert_eq!(share.is_ok(), legal);
        if let (Ok(share), Held::Readers(n)) = (share, facts.held) {
            facts.held = Held::Readers(n + 1);
            self.shares.push(share);
        }
    }

    fn unshare(&mut self, share: usize) {
        let Some(share) = take(&mut self.shares, share) else {
            return;
        };
        let facts = &mut self.facts[share.page().index()];
        let Held::Readers(n) = facts.held else {
            panic!("a share of a page that is not shared");
        };
        match self.pool.unshare(share) {
            Ok(()) => {
                assert!(n > 1);
                facts.held = Held::Readers(n - 1);
            }
            Err((share, _)) => {
                assert_eq!(n, 1);
                self.shares.push(share);
            }
        }
    }

    fn evict(&mut self, share: usize) {
        let Some(share) = take(&mut self.shares, share) else {
            return;
        };
        let facts = &mut self.facts[share.page().index()];
        let legal = facts.held == Held::Readers(1) && facts.reads == 0;
        assert_eq!(self.pool.evictable(&share), legal);
        match self.pool.evict(share) {
            Ok(()) => {
                assert!(legal);
                facts.held = Held::Ended;
            }
            Err((share, _)) => {
                assert!(!legal);
                self.shares.push(share);
            }
        }
    }

    /// The count of readers stays: such a page can never be evicted.
    fn drop_share(&mut self, share: usize) {
        if take(&mut self.shares, share).is_some() {
            self.dropped.1 += 1;
        }
    }

    /// Everything that the pool says about itself, against the facts.
    pub fn compare(&mut self) {
        self.unheard.clear();
        let mut expected = BTreeMap::<PageId, (State, &Facts)>::new();
        let mut counts = Counts::default();
        for (index, facts) in self.facts.iter().enumerate() {
            let state = facts.state(self.scrub);
            *match state {
                State::Free => &mut counts.free,
                State::Reserved => &mut counts.reserved,
                State::Granted => &mut counts.granted,
                State::Sealed => &mut counts.sealed,
                State::Cached => &mut counts.cached,
                State::Quarantined(_) => &mut counts.quarantined,
            } += 1;
            if state != State::Free {
                expected.insert(PageId::new(index as u32), (state, facts));
            }
        }
        assert_eq!(self.pool.counts(), counts);
        assert_eq!(self.pool.recount(), counts);
        assert_eq!(counts.total(), PAGES as usize, "H-10");
        assert_eq!(self.pool.operations(), self.ops.len());
        assert_eq!(self.pool.dropped(), self.dropped);
        let holders = self.pool.holders();
        assert_eq!(holders.len(), expected.len());
        for holder in holders {
            let (state, facts) = expected[&holder.page];
            let readers = match facts.held {
                Held::Readers(n) => n,
                _ => 0,
            };
            let wanted = Holder {
                page: holder.page,
                state,
                owner: facts.owner,
                tag: facts.tag,
                seal: facts.seal,
                reads: facts.reads,
                writes: facts.writes,
                shares: readers,
                open: facts.open.iter().copied().collect(),
            };
            assert_eq!(holder, wanted);
        }
        let scrub: Vec<PageId> = expected
            .iter()
            .filter(|(_, (state, _))| *state == State::Quarantined(Reason::Scrub))
            .map(|(page, _)| *page)
            .collect();
        assert_eq!(self.pool.to_scrub(), scrub);
    }

    /// Ends everything that can end: what remains must be what was dropped, and nothing else.
    pub fn bring_to_rest(&mut self) {
        while !self.ops.is_empty() {
            self.make(Call::End { op: 0 });
        }
        while !self.grants.is_empty() {
            self.make(Call::Release { grant: 0 });
        }
        for rank in 0..3 {
            self.make(Call::Fenced { writer: rank });
        }
        for page in 0..PAGES {
            if self.state(PageId::new(page)) == State::Quarantined(Reason::Scrub) {
                self.make(Call::Scrubbed { page });
            }
        }
        self.compare();
        let lost = self.facts.iter().filter(|f| f.held == Held::Lost).count();
        let counts = self.pool.counts();
        assert_eq!(counts.quarantined, lost);
        assert_eq!(counts.free + counts.cached + lost, PAGES as usize);
    }
}

pub fn pick<T>(from: &[T], n: usize) -> Option<&T> {
    (!from.is_empty()).then(|| &from[n % from.len()])
}

fn take<T>(from: &mut Vec<T>, n: usize) -> Option<T> {
    (!from.is_empty()).then(|| from.swap_remove(n % from.len()))
}
