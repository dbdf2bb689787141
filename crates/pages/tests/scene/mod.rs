//! A small pool and the few things that the tests by hand do with it again and again.
#![allow(dead_code)] // every test file uses its own part

use pages::{
    BlockTable, Config, Domain, Epoch, FenceMint, Grant, Owner, OwnerId, Pool, Seal, Share, State,
    Step, VerifyFault, WriterLife,
};

pub const PAGE_SIZE: u16 = 4;
pub const HERE: Domain = Domain::new(7);
pub const ELSEWHERE: Domain = Domain::new(8);

pub fn pool(pages: u32) -> (Pool, FenceMint) {
    Pool::new(Config {
        pages,
        page_size: PAGE_SIZE,
        scrub: false,
    })
}

pub fn owner(id: u64) -> Owner {
    Owner {
        id: OwnerId::new(id),
        domain: HERE,
        lane: 0,
    }
}

pub fn lane(id: u64, lane: u16) -> Owner {
    Owner { lane, ..owner(id) }
}

pub fn life(rank: u16) -> WriterLife {
    WriterLife {
        epoch: Epoch::new(0xA11CE),
        rank,
    }
}

pub const fn seal(ordinal: u32, filled: u16) -> Seal {
    Seal {
        ordinal,
        filled,
        checksum: None,
    }
}

pub fn one(pool: &mut Pool, by: Owner) -> Grant {
    pool.reserve(by, 1).unwrap().remove(0)
}

pub fn sealed(pool: &mut Pool, by: Owner, ordinal: u32, filled: u16) -> Grant {
    let grant = one(pool, by);
    pool.seal(&grant, seal(ordinal, filled)).unwrap();
    grant
}

pub fn cached(pool: &mut Pool, by: Owner, ordinal: u32) -> Share {
    let grant = sealed(pool, by, ordinal, PAGE_SIZE);
    pool.publish(grant).unwrap()
}

/// A table over these grants, with so many tokens written.
pub fn table(by: Owner, grants: &[&Grant], tokens: u32) -> BlockTable {
    let mut table = BlockTable::new(by, PAGE_SIZE);
    for grant in grants {
        table.push_own(grant);
    }
    table.advance_to(tokens);
    table
}

/// The fault of a step of this table alone; the full check must say the same.
pub fn fault(pool: &Pool, table: &mut BlockTable, new: u32) -> VerifyFault {
    let mut copy = table.clone();
    let full = pool.verify_in_full(step(&mut copy, new)).unwrap_err();
    let quick = pool.verify(step(table, new)).unwrap_err();
    assert_eq!(quick, full);
    quick
}

pub fn accepted(pool: &Pool, table: &mut BlockTable, new: u32) {
    pool.verify(step(table, new)).unwrap();
}

fn step(table: &mut BlockTable, new: u32) -> Vec<Step<'_>> {
    vec![Step { table, new }]
}

pub fn state(pool: &mut Pool, grant: &Grant) -> State {
    pool.holder(grant.page()).unwrap().state
}
