//! A check costs what changed, not what exists: 64 sequences of 16,384 pages each.

use pages::{BlockTable, Config, Domain, Grant, Owner, OwnerId, Pool, Seal, Share, Step, Verified};

const SEQUENCES: usize = 64;
const PAGES: usize = 16_384;
const PAGE_SIZE: u16 = 16;
/// A step of every sequence may look at this much and no more, whatever the tables hold.
const A_FEW: usize = 4 * SEQUENCES;

struct Sequence {
    grants: Vec<Grant>,
    table: BlockTable,
}

fn sequence(pool: &mut Pool, n: usize, prefix: &[Share]) -> Sequence {
    let owner = Owner {
        id: OwnerId::new(n as u64),
        domain: Domain::new(0),
        lane: 0,
    };
    let mut table = BlockTable::new(owner, PAGE_SIZE);
    for share in prefix {
        table.push_shared(share);
    }
    let grants = pool.reserve(owner, PAGES - prefix.len()).unwrap();
    for (behind, grant) in grants.iter().enumerate() {
        let ordinal = (prefix.len() + behind) as u32;
        let seal = Seal {
            ordinal,
            filled: 0,
            checksum: None,
        };
        pool.seal(grant, seal).unwrap();
        table.push_own(grant);
    }
    table.advance_to(prefix.len() as u32 * u32::from(PAGE_SIZE));
    Sequence { grants, table }
}

/// The first pages of every sequence: published by an owner that has ended since.
fn prefix(pool: &mut Pool, pages: usize) -> Vec<Share> {
    let owner = Owner {
        id: OwnerId::new(1_000),
        domain: Domain::new(0),
        lane: 0,
    };
    let grants = pool.reserve(owner, pages).unwrap();
    let publish = grants.into_iter().enumerate().map(|(ordinal, grant)| {
        let seal = Seal {
            ordinal: ordinal as u32,
            filled: PAGE_SIZE,
            checksum: None,
        };
        pool.seal(&grant, seal).unwrap();
        pool.publish(grant).unwrap()
    });
    publish.collect()
}

fn steps(sequences: &mut [Sequence]) -> Vec<Step<'_>> {
    let steps = sequences.iter_mut().map(|sequence| Step {
        table: &mut sequence.table,
        new: 1,
    });
    steps.collect()
}

fn cost(verified: Verified<'_>) -> usize {
    assert_eq!(verified.sequences().len(), SEQUENCES);
    verified.looked_at()
}

/// One token for every sequence, written and sealed.
fn write_one(pool: &mut Pool, sequences: &mut [Sequence]) {
    for Sequence { grants, table } in sequences {
        let held = PAGES - grants.len();
        let at = table.tokens() as usize / usize::from(PAGE_SIZE) - held;
        let filled = (table.tokens() % u32::from(PAGE_SIZE)) as u16 + 1;
        pool.extend(&grants[at], filled, None).unwrap();
        table.advance_to(table.tokens() + 1);
    }
}

#[test]
fn a_step_looks_at_what_changed_and_not_at_a_million_entries() {
    let shared = 128;
    let (mut pool, _mint) = Pool::new(Config {
        pages: (SEQUENCES * PAGES) as u32,
        page_size: PAGE_SIZE,
        scrub: false,
    });
    let mut cached = prefix(&mut pool, shared);
    let mut idle = prefix(&mut pool, shared);
    let mut sequences: Vec<_> = (0..SEQUENCES)
        .map(|n| sequence(&mut pool, n, &cached))
        .collect();

    let first = cost(pool.verify(steps(&mut sequences)).unwrap());
    assert!(
        first >= SEQUENCES * PAGES,
        "the first check sees every page"
    );

    for _ in 0..40 {
        write_one(&mut pool, &mut sequences);
        let next = cost(pool.verify(steps(&mut sequences)).unwrap());
        assert!(next <= A_FEW, "{next} looked at for one token each");
    }
    let all = cost(pool.verify_in_full(steps(&mut sequences)).unwrap());
    assert!(all >= SEQUENCES * PAGES, "the audit sees every page");

    // The cache evicts something that nobody here uses: one look at the news for every table.
    pool.evict(idle.pop().unwrap()).unwrap();
    let news = cost(pool.verify(steps(&mut sequences)).unwrap());
    assert!(news <= A_FEW, "{news} looked at for an evicted page");

    // It evicts what they do use: found, although no table has changed since its last check.
    pool.evict(cached.pop().unwrap()).unwrap();
    let fault = pool.verify(steps(&mut sequences)).unwrap_err();
    assert_eq!(fault.ordinal, shared - 1);

    for share in cached.into_iter().chain(idle) {
        pool.evict(share).unwrap();
    }
    for grant in sequences.into_iter().flat_map(|sequence| sequence.grants) {
        pool.release(grant).unwrap();
    }
    assert_eq!(pool.counts().free, pool.size());
}
