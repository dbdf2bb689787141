//! What the check of every step costs: tokens are written one by one to many long sequences, and
//! their block tables are checked before each, as shipped, whole, or not at all.
//!
//! ```text
//! cargo run --release -p pages --example step_cost [SEQUENCES] [PAGES] [none|step|whole]
//! ```
//! With a third word only that way is run: then instructions can be counted from outside.

use pages::{BlockTable, Config, Domain, Grant, Owner, OwnerId, Pool, Seal, Step};
use std::hint::black_box;
use std::time::{Duration, Instant};

const PAGE_SIZE: u16 = 16;
/// Steps of a round: every table grows over the end of a page.
const STEPS: usize = 64;
const ROUNDS: usize = 9;

struct Sequence {
    grants: Vec<Grant>,
    table: BlockTable,
    first: usize,
}

fn main() {
    let mut words = std::env::args().skip(1);
    let mut number = |default| words.next().map_or(default, |it| it.parse().unwrap());
    let (sequences, pages): (usize, usize) = (number(64), number(16_384));
    let only = words.next();
    let room = ROUNDS * STEPS * 3 / usize::from(PAGE_SIZE) + 2;
    let (mut pool, _mint) = Pool::new(Config {
        pages: (sequences * (pages + room)) as u32,
        page_size: PAGE_SIZE,
        scrub: false,
    });
    let mut all: Vec<Sequence> = (0..sequences)
        .map(|n| sequence(&mut pool, n, pages, room))
        .collect();
    let mut times = [
        ("none", Vec::new()),
        ("step", Vec::new()),
        ("whole", Vec::new()),
    ];
    for _ in 0..ROUNDS {
        for (way, times) in &mut times {
            if only.as_deref().is_none_or(|only| only == *way) {
                times.push(round(&mut pool, &mut all, way));
            }
        }
    }
    println!("{sequences} sequences of {pages} pages, a token each a step, median of {ROUNDS}");
    for (way, mut times) in times {
        times.sort();
        if let Some(median) = times.get(times.len() / 2) {
            let step = median.as_secs_f64() / STEPS as f64;
            println!("{way:6} {:10.2} us a step", step * 1e6);
        }
    }
}

/// A sequence with so many full pages, and room for more.
fn sequence(pool: &mut Pool, n: usize, pages: usize, room: usize) -> Sequence {
    let owner = Owner {
        id: OwnerId::new(n as u64),
        domain: Domain::new(0),
        lane: 0,
    };
    let mut table = BlockTable::new(owner, PAGE_SIZE);
    let grants = pool.reserve(owner, pages + room).unwrap();
    for (ordinal, grant) in grants.iter().enumerate() {
        let seal = Seal {
            ordinal: ordinal as u32,
            filled: if ordinal < pages { PAGE_SIZE } else { 0 },
            checksum: None,
        };
        pool.seal(grant, seal).unwrap();
        table.push_own(grant);
    }
    table.advance_to(pages as u32 * u32::from(PAGE_SIZE));
    let first = pages;
    Sequence {
        grants,
        table,
        first,
    }
}

fn round(pool: &mut Pool, all: &mut [Sequence], way: &str) -> Duration {
    let begun = Instant::now();
    for _ in 0..STEPS {
        if way != "none" {
            let steps = all.iter_mut().map(|sequence| Step {
                table: &mut sequence.table,
                new: 1,
            });
            let steps = steps.collect();
            let verified = match way {
                "step" => pool.verify(steps),
                _ => pool.verify_in_full(steps),
            };
            black_box(verified.unwrap().sequences().len());
        }
        for Sequence {
            grants,
            table,
            first,
        } in all.iter_mut()
        {
            let tokens = table.tokens() as usize;
            let at = tokens / usize::from(PAGE_SIZE);
            assert!(at >= *first);
            let filled = (tokens % usize::from(PAGE_SIZE)) as u16 + 1;
            pool.extend(&grants[at], filled, None).unwrap();
            table.advance_to(tokens as u32 + 1);
        }
    }
    begun.elapsed()
}
