//! The incremental check judges exactly as the full one, and the full one exactly as the facts say,
//! under random interleavings of every call on the pool and on the tables.

mod world;

use pages::{BlockTable, PageId, State, Step, TableFault, Tag, VerifyFault};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRng, TestRunner};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use world::{Call, Held, PAGE_SIZE, World, call, owner, pick};

/// A table and what the test itself remembers of it.
#[derive(Clone)]
struct Watched {
    table: BlockTable,
    entries: Vec<(PageId, Tag, bool)>,
}

#[derive(Clone, Debug)]
enum Move {
    Pool(Call),
    /// Reserves, seals where it belongs, and appends: how a worker grows a sequence. In direct mode
    /// a remote writer has written the page and certified its end.
    Grow {
        table: usize,
        filled: u16,
        direct: bool,
    },
    /// Voids that certificate.
    Void {
        table: usize,
    },
    /// Appends whatever grant, as a confused worker would.
    PushOwn {
        table: usize,
        grant: usize,
    },
    PushShared {
        table: usize,
        share: usize,
    },
    /// Fills the page, publishes it, and lays the table out anew, or forgets to.
    Publish {
        table: usize,
        ordinal: usize,
        told: bool,
    },
    Advance {
        table: usize,
        tokens: u32,
    },
    Copy {
        from: usize,
        to: usize,
    },
    Anew {
        table: usize,
        by: u64,
        lane: u16,
    },
    /// Verifies and, if that was accepted, fills and advances: a step.
    Step {
        tables: Vec<(usize, u32)>,
    },
}

fn a_move() -> impl Strategy<Value = Move> {
    let table = 0usize..4;
    let some = 0usize..64;
    prop_oneof![
        4 => call().prop_map(Move::Pool),
        6 => (table.clone(), prop_oneof![4 => Just(0), 1 => 1..=PAGE_SIZE], any::<bool>())
            .prop_map(|(table, filled, direct)| Move::Grow { table, filled, direct }),
        1 => table.clone().prop_map(|table| Move::Void { table }),
        1 => (table.clone(), some.clone()).prop_map(|(table, grant)| Move::PushOwn { table, grant }),
        2 => (table.clone(), some).prop_map(|(table, share)| Move::PushShared { table, share }),
        3 => (table.clone(), 0usize..3, any::<bool>())
            .prop_map(|(table, ordinal, told)| Move::Publish { table, ordinal, told }),
        1 => (table.clone(), 0u32..9).prop_map(|(table, tokens)| Move::Advance { table, tokens }),
        1 => (table.clone(), table.clone()).prop_map(|(from, to)| Move::Copy { from, to }),
        1 => (table.clone(), 0u64..3, 0u16..3).prop_map(|(table, by, lane)| Move::Anew { table, by, lane }),
        9 => prop::collection::vec((table, 0u32..6), 1..3).prop_map(|tables| Move::Step { tables }),
    ]
}

struct Both {
    world: World,
    tables: Vec<Watched>,
}

/// How often a verdict was seen: a proof over nothing would be worth nothing. Accepted: for less
/// than the full price, or not.
type Seen = RefCell<BTreeMap<Result<bool, TableFault>, usize>>;

fn saw(seen: &Seen, what: Result<bool, TableFault>) {
    *seen.borrow_mut().entry(what).or_default() += 1;
}

impl Both {
    fn new(scrub: bool) -> Self {
        let tables = [(0, 0), (0, 1), (1, 0), (2, 0)].map(|(by, lane)| watched(by, lane));
        Self {
            world: World::new(scrub),
            tables: tables.to_vec(),
        }
    }

    fn make(&mut self, a_move: Move, seen: &Seen) {
        match a_move {
            Move::Pool(call) => self.world.make(call),
            Move::Grow {
                table,
                filled,
                direct,
            } => self.grow(table, filled, direct),
            Move::Void { table } => {
                let owner = self.tables[table].table.owner().id.value();
                self.world.make(Call::Reopen { writer: 0, owner });
            }
            Move::PushOwn { table, grant } => {
                if let Some(grant) = pick(&self.world.grants, grant) {
                    let table = &mut self.tables[table];
                    table.table.push_own(grant);
                    table.entries.push((grant.page(), grant.tag(), false));
                }
            }
            Move::PushShared { table, share } => {
                if let Some(share) = pick(&self.world.shares, share) {
                    let table = &mut self.tables[table];
                    table.table.push_shared(share);
                    table.entries.push((share.page(), share.tag(), true));
                }
            }
            Move::Publish {
                table,
                ordinal,
                told,
            } => self.publish(table, ordinal, told),
            Move::Advance { table, tokens } => self.tables[table].table.advance_to(tokens),
            Move::Copy { from, to } => self.tables[to] = self.tables[from].clone(),
            Move::Anew { table, by, lane } => self.tables[table] = watched(by, lane),
            Move::Step { tables } => self.step(&tables, seen),
        }
    }

    fn grow(&mut self, table: usize, filled: u16, direct: bool) {
        let by = self.tables[table].table.owner();
        let before = self.world.grants.len();
        self.world.make(Call::Reserve {
            by: by.id.value(),
            lane: by.lane,
            pages: 1,
        });
        if self.world.grants.len() > before {
            if direct {
                let owner = by.id.value();
                self.world.make(Call::Expose {
                    grant: before,
                    writers: vec![0],
                });
                self.world.make(Call::Closed { writer: 0, owner });
            }
            let ordinal = self.tables[table].entries.len() as u32;
            self.world.seal(before, ordinal, filled);
            self.make(
                Move::PushOwn {
                    table,
                    grant: before,
                },
                &Seen::default(),
            );
        }
    }

    fn publish(&mut self, table: usize, ordinal: usize, told: bool) {
        let Some((page, ..)) = self.tables[table].entries.get(ordinal).copied() else {
            return;
        };
        let Some(at) = self.grant_of(page) else {
            return;
        };
        self.world.extend(at, PAGE_SIZE);
        let before = self.world.shares.len();
        self.world.make(Call::Publish { grant: at });
        if let (true, Some(share)) = (told, self.world.shares.get(before)) {
            self.tables[table].entries[ordinal] = (share.page(), share.tag(), true);
            self.lay_out_anew(table);
        }
    }

    /// As its entries say, as far as somebody still holds them.
    fn lay_out_anew(&mut self, table: usize) {
        let Watched { table, entries } = &mut self.tables[table];
        let mut anew = BlockTable::new(table.owner(), PAGE_SIZE);
        let mut held = Vec::new();
        for (page, tag, shared) in entries.iter().copied() {
            let mut shares = self.world.shares.iter();
            let mut grants = self.world.grants.iter();
            if shared {
                let share = shares.find(|it| (it.page(), it.tag()) == (page, tag));
                let Some(share) = share else { break };
                anew.push_shared(share);
            } else {
                let grant = grants.find(|it| (it.page(), it.tag()) == (page, tag));
                let Some(grant) = grant else { break };
                anew.push_own(grant);
            }
            held.push((page, tag, shared));
        }
        anew.advance_to(table.tokens());
        (*table, *entries) = (anew, held);
    }

    fn grant_of(&self, page: PageId) -> Option<usize> {
        self.world.grants.iter().position(|g| g.page() == page)
    }

    fn step(&mut self, picked: &[(usize, u32)], seen: &Seen) {
        let mut news: BTreeMap<usize, u32> = picked.iter().copied().collect();
        for (table, new) in &mut news {
            // Mostly what the table has room for, as a worker would ask.
            let table = &self.tables[*table].table;
            let room = table.capacity().saturating_sub(table.tokens());
            if *new < 5 {
                *new = (*new).min(room);
            }
        }
        let expected = self.expected(&news);
        // The copy goes first: it must not make the other check easier.
        let mut copies = self.tables.clone();
        let full = judged(self.world.pool.verify_in_full(steps(&mut copies, &news)));
        let quick = judged(self.world.pool.verify(steps(&mut self.tables, &news)));
        assert_eq!(
            quick.as_ref().map(|(pages, _)| pages),
            full.as_ref().map(|(pages, _)| pages)
        );
        assert_eq!(full.as_ref().err().map(|f| f.kind), expected.err());
        match (quick, full) {
            (Ok((_, quick)), Ok((_, full))) => {
                saw(seen, Ok(quick < full));
                self.advance(&news);
            }
            (Err(fault), _) => saw(seen, Err(fault.kind)),
            (Ok(_), Err(_)) => unreachable!("compared above"),
        }
    }

    /// What the step wrote is sealed and counted, as a worker does.
    fn advance(&mut self, news: &BTreeMap<usize, u32>) {
        for (table, new) in news {
            let end = self.tables[*table].table.tokens() + new;
            for (ordinal, (page, ..)) in self.tables[*table].entries.clone().iter().enumerate() {
                let start = ordinal as u32 * u32::from(PAGE_SIZE);
                let filled = end.saturating_sub(start).min(u32::from(PAGE_SIZE)) as u16;
                if let (Some(at), true) = (self.grant_of(*page), filled > 0) {
                    self.world.extend(at, filled);
                }
            }
            self.tables[*table].table.advance_to(end);
        }
    }

    /// The verdict by the facts alone.
    fn expected(&self, news: &BTreeMap<usize, u32>) -> Result<(), TableFault> {
        let mut written = BTreeSet::new();
        let mut twice = false;
        for (table, new) in news {
            let Watched { table, entries } = &self.tables[*table];
            let size = u32::from(PAGE_SIZE);
            let end = table.tokens() + new;
            if end > entries.len() as u32 * size {
                return Err(TableFault::TooFewPages);
            }
            for (ordinal, entry) in entries.iter().enumerate() {
                let start = ordinal as u32 * size;
                let used = table.tokens().saturating_sub(start).min(size);
                self.entry(table, ordinal, *entry, used)?;
                let writes = *new > 0 && start < end && start + size > table.tokens();
                if writes {
                    self.write(table, *entry, used)?;
                    twice |= !written.insert(entry.0);
                }
            }
        }
        if twice {
            return Err(TableFault::WrittenTwice);
        }
        Ok(())
    }

    fn entry(
        &self,
        table: &BlockTable,
        ordinal: usize,
        (page, tag, shared): (PageId, Tag, bool),
        used: u32,
    ) -> Result<(), TableFault> {
        let facts = &self.world.facts[page.index()];
        let (Some(by), reader) = (facts.owner, table.owner()) else {
            return Err(TableFault::GrantedAnew);
        };
        let wrong = [
            (facts.tag != Some(tag), TableFault::GrantedAnew),
            (
                !shared && self.world.unheard.contains(&page),
                TableFault::GrantDropped,
            ),
            (!facts.open.is_empty(), TableFault::WriterOpen),
            (
                shared && self.world.state(page) != State::Cached,
                TableFault::SharedNotCached,
            ),
            (
                shared && by.domain != reader.domain,
                TableFault::OtherDomain,
            ),
            (!shared && facts.held != Held::Full, TableFault::NotSealed),
            (!shared && by.id != reader.id, TableFault::OtherOwner),
            (
                !shared && by.lane != 0 && by.lane != reader.lane,
                TableFault::OtherChoice,
            ),
            (
                facts.seal.ordinal as usize != ordinal,
                TableFault::OtherPlace,
            ),
            (u32::from(facts.seal.filled) < used, TableFault::TooFewSlots),
        ];
        first(&wrong)
    }

    fn write(
        &self,
        table: &BlockTable,
        (page, _, shared): (PageId, Tag, bool),
        used: u32,
    ) -> Result<(), TableFault> {
        let facts = &self.world.facts[page.index()];
        let lane = facts.owner.map(|by| by.lane);
        first(&[
            (shared, TableFault::WritesShared),
            (
                lane != Some(table.owner().lane),
                TableFault::WritesOtherLane,
            ),
            (
                u32::from(facts.seal.filled) > used,
                TableFault::WritesSealed,
            ),
        ])
    }
}

fn first(wrong: &[(bool, TableFault)]) -> Result<(), TableFault> {
    match wrong.iter().find(|(is, _)| *is) {
        Some((_, kind)) => Err(*kind),
        None => Ok(()),
    }
}

fn watched(by: u64, lane: u16) -> Watched {
    Watched {
        table: BlockTable::new(owner(by, lane), PAGE_SIZE),
        entries: Vec::new(),
    }
}

fn steps<'t>(tables: &'t mut [Watched], news: &BTreeMap<usize, u32>) -> Vec<Step<'t>> {
    let tables = tables.iter_mut().enumerate();
    tables
        .filter_map(|(index, watched)| {
            let new = *news.get(&index)?;
            Some(Step {
                table: &mut watched.table,
                new,
            })
        })
        .collect()
}

/// The pages that attention would get, and what the check cost.
fn judged(
    verified: Result<pages::Verified<'_>, VerifyFault>,
) -> Result<(Vec<Vec<PageId>>, usize), VerifyFault> {
    verified.map(|verified| {
        let pages = verified.sequences().iter().map(|s| s.pages().collect());
        (pages.collect(), verified.looked_at())
    })
}

/// H-1, H-2, H-3, H-13: every kind of fault, by the facts alone.
#[test]
fn a_check_of_what_changed_judges_as_a_check_of_everything() {
    let seen = Seen::default();
    let config = Config {
        cases: 3_000,
        max_shrink_iters: 20_000,
        failure_persistence: None,
        ..Config::default()
    };
    let rng = TestRng::deterministic_rng(config.rng_algorithm);
    let moves = (any::<bool>(), prop::collection::vec(a_move(), 1..100));
    TestRunner::new_with_rng(config, rng)
        .run(&moves, |(scrub, moves)| {
            let mut both = Both::new(scrub);
            for a_move in moves {
                both.make(a_move, &seen);
            }
            both.world.compare();
            both.world.bring_to_rest();
            Ok(())
        })
        .unwrap();
    let seen = seen.into_inner();
    println!("{seen:#?}");
    for sometimes in [
        Ok(true),
        Err(TableFault::GrantedAnew),
        Err(TableFault::GrantDropped),
        Err(TableFault::WriterOpen),
        Err(TableFault::SharedNotCached),
        Err(TableFault::OtherDomain),
        Err(TableFault::NotSealed),
        Err(TableFault::OtherOwner),
        Err(TableFault::OtherChoice),
        Err(TableFault::OtherPlace),
        Err(TableFault::TooFewSlots),
        Err(TableFault::WritesShared),
        Err(TableFault::WritesOtherLane),
        Err(TableFault::WritesSealed),
        Err(TableFault::TooFewPages),
    ] {
        assert!(
            seen.get(&sometimes) >= Some(&5),
            "hardly seen: {sometimes:?}"
        );
    }
}
