//! The step of an induction over any number of pages, requests and operations.
//!
//! A model checker explores what can be reached within a bound. Here it does not matter what can be
//! reached: a ledger is made up at random, out of nothing but the invariant, then **every**
//! operation is done to it, and the invariant must hold again. The empty ledger has it, so every
//! ledger has it, however large and however long it ran. See `docs/checking.md`, "Any number of
//! requests and pages".

use crate::changes::Changes;
use crate::grant::Bin;
use crate::id::{LastOp, LastTag, OpNo};
use crate::identity::PoolId;
use crate::ledger::{Ledger, Operation, Record};
use crate::*;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::num::NonZeroU64;

const PAGES: usize = 4;
const PAGE_SIZE: u16 = 4;

/// What one page is made up from.
#[derive(Clone, Debug)]
struct Draft {
    state: u8,
    owner: Owner,
    open: u8,
    closed: u8,
    shares: u32,
    filled: u16,
    /// Operations in flight that read it, and that write it.
    reads: u8,
    writes: u8,
}

/// A pool, and every handle and operation that the world around it holds.
struct World {
    pool: Pool,
    mint: FenceMint,
    grants: Vec<Grant>,
    shares: Vec<Share>,
    ops: Vec<OpId>,
}

fn writer(rank: u16) -> WriterLife {
    let epoch = Epoch::new(1);
    WriterLife { epoch, rank }
}

fn writers(bits: u8) -> BTreeSet<WriterLife> {
    let ranks = (0..3).filter(|rank| bits & (1 << rank) != 0);
    ranks.map(writer).collect()
}

fn draft() -> impl Strategy<Value = Draft> {
    let owner = (1u64..4, 7u64..9, 0u16..2).prop_map(|(id, domain, lane)| Owner {
        id: OwnerId::new(id),
        domain: Domain::new(domain),
        lane,
    });
    let pending = (0u8..8, 0u8..8);
    let writers = (0u8..8, 0u8..8);
    let rest = (1u32..4, 0..=PAGE_SIZE);
    (0u8..8, owner, writers, rest, pending).prop_map(|(state, owner, writers, rest, pending)| {
        Draft {
            state,
            owner,
            open: writers.0,
            closed: writers.1 & !writers.0,
            shares: rest.0,
            filled: rest.1,
            reads: pending.0,
            writes: pending.1,
        }
    })
}

/// The pages of these drafts, completed so that the invariant holds: the state that a page may be
/// in follows from what is pending.
fn world(drafts: &[Draft], scrub: bool) -> World {
    let id = PoolId::mint();
    let mut pool = Pool {
        ledger: Ledger::new(drafts.len() as u32, PAGE_SIZE, scrub, Sound),
        bin: Bin::new(id),
        changes: Changes::default(),
    };
    let mint = FenceMint::new(id);
    let (mut grants, mut shares) = (Vec::new(), Vec::new());
    let mut operations = vec![Operation::new(&[], &[]); 3];
    for (index, draft) in drafts.iter().enumerate() {
        let page = PageId::new(index as u32);
        let tag = Tag(NonZeroU64::new(index as u64 + 1).expect("above zero"));
        let Some(record) = record(draft, scrub) else {
            continue;
        };
        for (bit, operation) in operations.iter_mut().enumerate() {
            if record.reads > 0 && draft.reads & (1 << bit) != 0 {
                operation.reads.push(page);
            }
            if record.writes > 0 && draft.writes & (1 << bit) != 0 {
                operation.writes.push(page);
            }
        }
        let ledger = &mut pool.ledger;
        ledger.free.remove(&page);
        ledger.tags[index] = Some(tag);
        ledger.seals[index].filled = match record.state {
            State::Cached => PAGE_SIZE,
            _ => draft.filled,
        };
        let named = record.open.iter().chain(&record.closed);
        ledger.writers.extend(named.map(|writer| (*writer, page)));
        *ledger.counts.slot(State::Free) -= 1;
        *ledger.counts.slot(record.state) += 1;
        match record.state {
            State::Reserved | State::Granted | State::Sealed => {
                grants.push(Grant::new(page, tag, &pool.bin));
            }
            State::Cached => {
                let all = (0..record.shares).map(|_| Share::new(page, tag, &pool.bin));
                shares.extend(all);
            }
            State::Quarantined(Reason::Scrub) => drop(ledger.to_scrub.insert(page)),
            _ => {}
        }
        pool.ledger.records[index] = record;
    }
    pool.ledger.last_tag = LastTag(drafts.len() as u64);
    let ops = begin(&mut pool, operations);
    World {
        pool,
        mint,
        grants,
        shares,
        ops,
    }
}

fn begin(pool: &mut Pool, operations: Vec<Operation>) -> Vec<OpId> {
    let mut ops = Vec::new();
    for (at, operation) in operations.into_iter().enumerate() {
        let counter = at as u64 + 1;
        pool.ledger.ops.insert(OpNo(counter), operation);
        pool.ledger.last_op = LastOp(counter);
        let pool = pool.bin.pool();
        ops.push(OpId { counter, pool });
    }
    ops
}

/// None: the page is free.
fn record(draft: &Draft, scrub: bool) -> Option<Record> {
    let count = |bits: u8| (bits & 7).count_ones();
    let mut record = Record {
        state: State::Free,
        owner: Some(draft.owner),
        reads: count(draft.reads),
        writes: count(draft.writes),
        shares: 0,
        open: writers(draft.open),
        closed: writers(draft.closed),
    };
    match draft.state {
        0 => return None,
        1 => {
            record.state = State::Reserved;
            (record.open, record.closed) = Default::default();
        }
        2 => record.state = State::Granted,
        // A certificate that was voided makes a writer of a page that was sealed or cached.
        3 => record.state = State::Sealed,
        4 => {
            record.state = State::Cached;
            (record.writes, record.shares) = (0, draft.shares);
        }
        5 => record.state = State::Quarantined(Reason::Dropped),
        _ => {
            record.state = match Sound.waits_for(record.pending()) {
                Some(reason) => State::Quarantined(reason),
                None if scrub => State::Quarantined(Reason::Scrub),
                None => return None,
            }
        }
    }
    Some(record)
}

/// The invariant over one page, for all of them, and over the handles around them.
fn check(world: &mut World) {
    let World {
        pool,
        grants,
        shares,
        ..
    } = world;
    assert_eq!(pool.counts(), pool.recount(), "H-10");
    let ledger = &pool.ledger;
    let mut tags = BTreeSet::new();
    for (index, record) in ledger.records.iter().enumerate() {
        let page = PageId::new(index as u32);
        let reads = ledger.ops.values().filter(|op| op.reads.contains(&page));
        let writes = ledger.ops.values().filter(|op| op.writes.contains(&page));
        assert_eq!(
            record.reads as usize,
            reads.count(),
            "counted as many as there are"
        );
        assert_eq!(
            record.writes as usize,
            writes.count(),
            "counted as many as there are"
        );
        assert!(record.open.is_disjoint(&record.closed));
        let named = ledger
            .writers
            .iter()
            .filter(|(_, of)| *of == page)
            .map(|(writer, _)| writer);
        let known: BTreeSet<_> = record.open.union(&record.closed).collect();
        assert_eq!(named.collect::<BTreeSet<_>>(), known);
        let free = record.state == State::Free;
        assert_eq!(ledger.free.contains(&page), free);
        assert_eq!(ledger.tags[index].is_none(), free);
        assert_eq!(record.owner.is_none(), free);
        let scrubbing = record.state == State::Quarantined(Reason::Scrub);
        assert_eq!(ledger.to_scrub.contains(&page), scrubbing);
        if let Some(tag) = ledger.tags[index] {
            assert!(tags.insert(tag) && tag.0.get() <= ledger.last_tag.0, "H-8");
        }
        let pending = record.pending();
        match record.state {
            // H-3: nobody can still touch it.
            State::Free => {
                assert_eq!(pending, Pending::default());
                assert_eq!(ledger.seals[index], Seal::default());
            }
            State::Quarantined(Reason::Scrub) => assert_eq!(pending, Pending::default()),
            State::Quarantined(Reason::Operations) => assert!(pending.reads + pending.writes > 0),
            State::Quarantined(Reason::Writers) => {
                assert!(pending.reads + pending.writes == 0 && pending.writers > 0);
            }
            State::Cached => assert!(record.shares > 0 && record.writes == 0),
            State::Reserved => assert!(record.open.is_empty()),
            _ => {}
        }
        assert!(record.state == State::Cached || record.shares == 0);
        let held = grants
            .iter()
            .filter(|g| Some(g.tag()) == ledger.tags[index])
            .count();
        let owned = matches!(
            record.state,
            State::Reserved | State::Granted | State::Sealed
        );
        assert_eq!(
            held,
            usize::from(owned),
            "one grant, and only of a page with an owner"
        );
        let held = shares
            .iter()
            .filter(|s| Some(s.tag()) == ledger.tags[index])
            .count();
        assert!(
            held <= record.shares as usize,
            "no share that is not counted"
        );
    }
}

impl World {
    fn fork(&mut self) -> World {
        let pool = self.pool.fork_for_checker();
        let grants = self
            .grants
            .iter()
            .map(|grant| pool.fork_grant_for_checker(grant));
        let shares = self
            .shares
            .iter()
            .map(|share| pool.fork_share_for_checker(share));
        World {
            grants: grants.collect(),
            shares: shares.collect(),
            mint: self.mint.lend(),
            ops: self.ops.clone(),
            pool,
        }
    }

    /// Does something to a fork, and looks at it.
    fn then(&mut self, act: impl FnOnce(&mut World)) {
        let mut fork = self.fork();
        act(&mut fork);
        check(&mut fork);
    }
}

/// What can be done with a grant.
fn with_grant(world: &mut World, at: usize) {
    for bits in 0..8 {
        let writers: Vec<_> = writers(bits).into_iter().collect();
        world.then(|w| drop(w.pool.expose(&w.grants[at], &writers)));
    }
    for filled in [0, 1, PAGE_SIZE, PAGE_SIZE + 1] {
        let seal = Seal {
            ordinal: 1,
            filled,
            checksum: None,
        };
        world.then(|w| drop(w.pool.seal(&w.grants[at], seal)));
        world.then(|w| drop(w.pool.extend(&w.grants[at], filled, Some(1))));
    }
    world.then(|w| {
        let grant = w.grants.remove(at);
        if let Err((grant, _)) = w.pool.release(grant) {
            w.grants.push(grant);
        }
    });
    world.then(|w| {
        let grant = w.grants.remove(at);
        match w.pool.publish(grant) {
            Ok(share) => w.shares.push(share),
            Err((grant, _)) => w.grants.push(grant),
        }
    });
    world.then(|w| drop(w.grants.remove(at)));
}

/// What can be done with a share.
fn with_share(world: &mut World, at: usize) {
    for domain in [7, 8, 9] {
        world.then(|w| {
            if let Ok(share) = w.pool.share(&w.shares[at], Domain::new(domain)) {
                w.shares.push(share);
            }
        });
    }
    world.then(|w| {
        let share = w.shares.remove(at);
        if let Err((share, _)) = w.pool.unshare(share) {
            w.shares.push(share);
        }
    });
    world.then(|w| {
        let share = w.shares.remove(at);
        if let Err((share, _)) = w.pool.evict(share) {
            w.shares.push(share);
        }
    });
    world.then(|w| drop(w.shares.remove(at)));
}

/// What can be done to the pool itself.
fn with_pool(world: &mut World) {
    let owner = Owner {
        id: OwnerId::new(9),
        domain: Domain::new(7),
        lane: 0,
    };
    for n in 0..=PAGES {
        world.then(|w| {
            w.grants
                .extend(w.pool.reserve(owner, n).into_iter().flatten())
        });
    }
    for rank in 0..3 {
        for id in (1..4).map(OwnerId::new) {
            world.then(|w| w.pool.writer_gone(w.mint.closed(writer(rank), id)));
            world.then(|w| {
                let _ = w.pool.reopen(id, writer(rank));
            });
        }
        world.then(|w| w.pool.writer_gone(w.mint.fenced(writer(rank))));
    }
    for op in world.ops.clone() {
        world.then(|w| drop(w.pool.end(op)));
    }
    for page in (0..=PAGES as u32).map(PageId::new) {
        world.then(|w| drop(w.pool.begin(&[page], &[])));
        world.then(|w| drop(w.pool.begin(&[], &[page])));
        world.then(|w| drop(w.pool.begin(&[page], &[page])));
        world.then(|w| drop(w.pool.scrubbed(page)));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// H-3, H-8, H-10: from every ledger that has the invariant every operation leads to one that
    /// has it.
    #[test]
    fn every_operation_keeps_the_invariant(
        drafts in proptest::collection::vec(draft(), PAGES),
        scrub in any::<bool>(),
    ) {
        let mut world = world(&drafts, scrub);
        check(&mut world);
        (0..world.grants.len()).for_each(|at| with_grant(&mut world, at));
        (0..world.shares.len()).for_each(|at| with_share(&mut world, at));
        with_pool(&mut world);
    }
}
