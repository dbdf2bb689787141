//! What the worlds consist of, at each bound.

use super::{Faults, Prompt, Setup};
use crate::bound::Bound;

fn deep(bound: Bound) -> bool {
    bound == Bound::Deep
}

/// Two requests of two tenants; decode's pool holds one of them at a time.
pub(super) fn two() -> Setup {
    Setup::default()
}

/// Two short ones.
fn short() -> Setup {
    Setup {
        prompts: vec![Prompt::new(&[1, 1, 1], 2), Prompt::new(&[2], 2).of(9)],
        prefill_pages: 2,
        decode_pages: 3,
        ..Setup::default()
    }
}

/// One request of two pages.
fn one() -> Setup {
    Setup {
        prompts: vec![Prompt::new(&[1, 1, 1], 2)],
        prefill_pages: 2,
        decode_pages: 3,
        ..Setup::default()
    }
}

/// One request of one page.
fn tiny() -> Setup {
    Setup {
        prompts: vec![Prompt::new(&[1], 2)],
        prefill_pages: 1,
        decode_pages: 2,
        ..Setup::default()
    }
}

fn by(bound: Bound, smoke: Setup, quick: Setup, deep: Setup) -> Setup {
    match bound {
        Bound::Smoke => smoke,
        Bound::Quick => quick,
        Bound::Deep => deep,
    }
}

fn with(setup: Setup, faults: Faults) -> Setup {
    Setup { faults, ..setup }
}

pub(super) fn leave(bound: Bound) -> Setup {
    let faults = Faults {
        leaves: if deep(bound) { 2 } else { 1 },
        ..Faults::default()
    };
    with(by(bound, short(), two(), two()), faults)
}

pub(super) fn late_write(bound: Bound) -> Setup {
    let faults = Faults {
        failed_writes: if deep(bound) { 2 } else { 1 },
        ..Faults::default()
    };
    with(by(bound, short(), short(), two()), faults)
}

pub(super) fn lingers(bound: Bound) -> Setup {
    let faults = Faults {
        failed_writes: 1,
        lingers: 1,
        leaves: u8::from(deep(bound)),
        ..Faults::default()
    };
    let setup = Setup {
        max_drops: 1,
        ..by(bound, tiny(), one(), short())
    };
    with(setup, faults)
}

pub(super) fn echo(bound: Bound) -> Setup {
    let faults = Faults {
        echoes: if deep(bound) { 2 } else { 1 },
        ..Faults::default()
    };
    with(by(bound, short(), two(), two()), faults)
}

pub(super) fn break_(bound: Bound) -> Setup {
    let faults = Faults {
        breaks: if deep(bound) { 2 } else { 1 },
        ..Faults::default()
    };
    with(by(bound, short(), two(), two()), faults)
}

pub(super) fn deadline(bound: Bound) -> Setup {
    let faults = Faults {
        deadlines: if deep(bound) { 2 } else { 1 },
        ..Faults::default()
    };
    with(by(bound, one(), short(), two()), faults)
}

pub(super) fn break_deadline(bound: Bound) -> Setup {
    let faults = Faults {
        breaks: 1,
        deadlines: 1,
        ..Faults::default()
    };
    with(by(bound, tiny(), one(), short()), faults)
}

pub(super) fn break_write(bound: Bound) -> Setup {
    let faults = Faults {
        breaks: 1,
        failed_writes: 1,
        ..Faults::default()
    };
    with(by(bound, tiny(), one(), two()), faults)
}

pub(super) fn corrupt(bound: Bound) -> Setup {
    let faults = Faults {
        corruptions: 1,
        leaves: u8::from(deep(bound)),
        ..Faults::default()
    };
    with(by(bound, one(), two(), two()), faults)
}

pub(super) fn missing(bound: Bound) -> Setup {
    let faults = Faults {
        losses: 1,
        leaves: u8::from(deep(bound)),
        ..Faults::default()
    };
    with(by(bound, one(), two(), two()), faults)
}

pub(super) fn truncated(bound: Bound) -> Setup {
    let faults = Faults {
        truncations: 1,
        leaves: u8::from(deep(bound)),
        ..Faults::default()
    };
    with(by(bound, one(), two(), two()), faults)
}

pub(super) fn ranks(bound: Bound) -> Setup {
    let faults = Faults {
        failed_writes: 1,
        leaves: u8::from(deep(bound)),
        ..Faults::default()
    };
    let setup = by(bound, tiny(), tiny(), one());
    with(Setup { ranks: 2, ..setup }, faults)
}

pub(super) fn lives_of_prefill(bound: Bound) -> Setup {
    let faults = Faults {
        prefill_kills: 1,
        prefill_spawns: 1,
        ..Faults::default()
    };
    with(by(bound, tiny(), one(), short()), faults)
}

pub(super) fn lives_of_decode(bound: Bound) -> Setup {
    let faults = Faults {
        decode_kills: 1,
        decode_spawns: 1,
        ..Faults::default()
    };
    with(by(bound, tiny(), one(), short()), faults)
}

pub(super) fn two_decodes(bound: Bound) -> Setup {
    let faults = Faults {
        failed_writes: 1,
        leaves: u8::from(deep(bound)),
        ..Faults::default()
    };
    let setup = by(bound, one(), short(), two());
    with(
        Setup {
            decodes: 2,
            ..setup
        },
        faults,
    )
}

pub(super) fn prefix(bound: Bound) -> Setup {
    let faults = Faults {
        leaves: u8::from(bound != Bound::Smoke),
        failed_writes: u8::from(deep(bound)),
        ..Faults::default()
    };
    let setup = Setup {
        prompts: vec![
            Prompt::new(&[1, 1, 1, 1, 1], 2).cached(),
            Prompt::new(&[1, 1, 1, 1, 2], 2).cached(),
            Prompt::new(&[1, 1, 1, 1, 1], 2).of(9).cached(),
        ],
        prefill_pages: 3,
        decode_pages: 5,
        ..Setup::default()
    };
    with(setup, faults)
}

/// Of two prompts that begin alike the second finds what the first has left, or no more of it; what
/// it reads stays, however old.
pub(super) fn cache_ages(bound: Bound) -> Setup {
    let faults = Faults {
        leaves: u8::from(bound != Bound::Smoke),
        failed_writes: u8::from(deep(bound)),
        ..Faults::default()
    };
    let setup = Setup {
        prompts: vec![
            Prompt::new(&[1, 1, 1], 2).cached(),
            Prompt::new(&[1, 1, 2], 2).cached(),
        ],
        prefill_pages: 2,
        decode_pages: 3,
        cache_ages: true,
        scrub: true,
        ..Setup::default()
    };
    with(setup, faults)
}

pub(super) fn choices(bound: Bound) -> Setup {
    let faults = Faults {
        stops: 1,
        leaves: u8::from(bound != Bound::Smoke),
        breaks: u8::from(deep(bound)),
        ..Faults::default()
    };
    let setup = Setup {
        prompts: vec![Prompt::new(&[1, 1, 1], 2).choices(2)],
        decode_pages: 6,
        ..Setup::default()
    };
    with(setup, faults)
}

/// 681,280 to 1,048,576 tokens, in small: two pages and three.
pub(super) fn incident(bound: Bound) -> Setup {
    let faults = Faults {
        leaves: u8::from(bound != Bound::Smoke),
        failed_writes: u8::from(deep(bound)),
        ..Faults::default()
    };
    let setup = Setup {
        prompts: vec![
            Prompt::new(&[1, 1, 1], 2),
            Prompt::new(&[2, 2, 2, 2, 2], 1).of(9),
            Prompt::new(&[3, 3], 2).of(9),
        ],
        prefill_pages: 2,
        decode_pages: 3,
        ..Setup::default()
    };
    with(setup, faults)
}

pub(super) fn overstated(bound: Bound) -> Setup {
    Setup {
        overstated: Some(8),
        ..incident(bound)
    }
}

pub(super) fn stale(bound: Bound) -> Setup {
    let faults = Faults {
        breaks: 1,
        stale: 1,
        prefill_kills: u8::from(deep(bound)),
        prefill_spawns: u8::from(deep(bound)),
        ..Faults::default()
    };
    with(by(bound, tiny(), one(), tiny()), faults)
}

pub(super) fn stale_and_over(bound: Bound) -> Setup {
    let faults = Faults {
        breaks: 1,
        stale: 1,
        leaves: 1,
        ..Faults::default()
    };
    with(by(bound, tiny(), one(), short()), faults)
}

pub(super) fn failed_pass(bound: Bound) -> Setup {
    let faults = Faults {
        failed_computes: 1,
        leaves: u8::from(deep(bound)),
        ..Faults::default()
    };
    with(by(bound, short(), two(), two()), faults)
}

/// Two requests (one at the smallest bound) that fit into every pool at once, so that a step has two
/// sequences.
pub(super) fn left_and_failed(bound: Bound) -> Setup {
    let faults = Faults {
        leaves: 1,
        failed_computes: 1,
        ..Faults::default()
    };
    let pages = |prompts, prefill_pages, decode_pages| Setup {
        prompts,
        prefill_pages,
        decode_pages,
        ..Setup::default()
    };
    let setup = match bound {
        Bound::Smoke => tiny(),
        Bound::Quick => {
            let prompts = vec![Prompt::new(&[1], 2), Prompt::new(&[2], 2).of(9)];
            pages(prompts, 2, 4)
        }
        Bound::Deep => pages(short().prompts, 3, 5),
    };
    with(setup, faults)
}

pub(super) fn drain(bound: Bound) -> Setup {
    let faults = Faults {
        drains: 1,
        failed_writes: u8::from(deep(bound)),
        ..Faults::default()
    };
    let setup = by(bound, short(), short(), two());
    let at_once = false;
    with(Setup { at_once, ..setup }, faults)
}

pub(super) fn gateway(bound: Bound) -> Setup {
    let faults = Faults {
        gateway_breaks: 1,
        leaves: u8::from(bound != Bound::Smoke),
        deadlines: u8::from(deep(bound)),
        ..Faults::default()
    };
    let setup = Setup {
        slow_gateway: true,
        at_once: false,
        ..tiny()
    };
    with(setup, faults)
}

pub(super) fn caps(bound: Bound) -> Setup {
    let faults = Faults {
        leaves: u8::from(bound != Bound::Smoke),
        ..Faults::default()
    };
    let setup = Setup {
        prompts: vec![
            Prompt::new(&[1, 1, 1], 2),
            Prompt::new(&[2, 2], 2),
            Prompt::new(&[3, 3, 3, 3], 2),
        ],
        prefill_pages: 6,
        decode_pages: 8,
        pages_per_peer: 2,
        tokens_per_domain: 10,
        ..Setup::default()
    };
    with(setup, faults)
}

pub(super) fn scrub(bound: Bound) -> Setup {
    Setup {
        scrub: true,
        ..leave(bound)
    }
}

/// A fault of every kind at once is for simulation: here it would be some hundred million states.
pub(super) fn crowd(bound: Bound) -> Setup {
    let faults = Faults {
        leaves: 1,
        failed_writes: u8::from(deep(bound)),
        ..Faults::default()
    };
    let setup = Setup {
        prompts: match bound {
            Bound::Smoke => short().prompts,
            _ => vec![
                Prompt::new(&[1, 1, 1], 2),
                Prompt::new(&[2], 2).of(9),
                Prompt::new(&[3, 3], 2),
            ],
        },
        at_once: bound != Bound::Smoke,
        prefill_pages: if bound == Bound::Smoke { 2 } else { 3 },
        decode_pages: 3,
        ..Setup::default()
    };
    with(setup, faults)
}

/// Three pages, the last of which is not full, in batches of two.
fn in_batches(bound: Bound, faults: Faults) -> Setup {
    let prompts = match bound {
        Bound::Smoke => vec![Prompt::new(&[1, 1, 1], 2)],
        Bound::Quick => vec![Prompt::new(&[1, 1, 1, 1, 1], 2)],
        Bound::Deep => vec![Prompt::new(&[1, 1, 1, 1, 1], 2), Prompt::new(&[2], 2).of(9)],
    };
    Setup {
        prompts,
        batch_pages: 2,
        chunk: 4,
        arena_slots: 4,
        decode_pages: 4,
        faults,
        ..Setup::default()
    }
}

pub(super) fn batches(bound: Bound) -> Setup {
    let faults = Faults {
        failed_writes: 1,
        losses: 1,
        corruptions: 1,
        breaks: 1,
        ..Faults::default()
    };
    in_batches(bound, faults.together(if deep(bound) { 2 } else { 1 }))
}

/// The second copy out of the same slots is the one that a write lands in.
pub(super) fn torn(bound: Bound) -> Setup {
    let faults = Faults {
        echoes: if deep(bound) { 2 } else { 1 },
        ..Faults::default()
    };
    Setup {
        arena_slots: 2,
        ..in_batches(bound, faults)
    }
}

pub(super) fn lanes(bound: Bound) -> Setup {
    let faults = Faults {
        leaves: 1,
        failed_computes: 1,
        ..Faults::default()
    };
    let most = if bound == Bound::Smoke { 0 } else { 1 };
    let setup = Setup {
        prompts: vec![Prompt::new(&[1], 3).choices(2), Prompt::new(&[2], 3).of(9)],
        lanes: 2,
        prefill_pages: 2,
        decode_pages: 7,
        ..Setup::default()
    };
    with(setup, faults.together(most))
}

pub(super) fn ranks_faults(bound: Bound) -> Setup {
    let faults = Faults {
        breaks: 1,
        deadlines: 1,
        corruptions: 1,
        prefill_kills: 1,
        ..Faults::default()
    };
    let most = match bound {
        Bound::Smoke => 1,
        Bound::Quick => 2,
        Bound::Deep => 3,
    };
    let setup = Setup { ranks: 2, ..tiny() };
    with(setup, faults.together(most))
}

/// Two prompts of one tenant that begin alike; the second finds the first one's page.
fn alike() -> Setup {
    Setup {
        prompts: vec![
            Prompt::new(&[1, 1], 2).cached(),
            Prompt::new(&[1, 1, 2], 2).cached(),
        ],
        prefill_pages: 2,
        decode_pages: 3,
        ..Setup::default()
    }
}

pub(super) fn ranks_cache(bound: Bound) -> Setup {
    let faults = Faults {
        breaks: 1,
        corruptions: u8::from(bound != Bound::Smoke),
        prefill_kills: u8::from(deep(bound)),
        ..Faults::default()
    };
    let setup = Setup {
        ranks: 2,
        ..alike()
    };
    with(setup, faults.together(1))
}

pub(super) fn cache_faults(bound: Bound) -> Setup {
    let faults = Faults {
        breaks: 1,
        corruptions: 1,
        prefill_kills: 1,
        leaves: 1,
        ..Faults::default()
    };
    let longer = Setup {
        prompts: prefix(bound).prompts[..2].to_vec(),
        prefill_pages: 3,
        decode_pages: 5,
        ..Setup::default()
    };
    // Longer prompts and two faults at once would be some twenty million states in direct mode.
    let setup = by(bound, alike(), longer, alike());
    with(setup, faults.together(if deep(bound) { 3 } else { 1 }))
}

pub(super) fn jobs(bound: Bound) -> Setup {
    let faults = Faults {
        leaves: 1,
        failed_writes: u8::from(deep(bound)),
        ..Faults::default()
    };
    let setup = Setup {
        prefill_pages: 4,
        decode_pages: 5,
        jobs: 1,
        ..by(bound, short(), short(), two())
    };
    with(setup, faults)
}

pub(super) fn worn(bound: Bound) -> Setup {
    let faults = Faults {
        corruptions: 1,
        breaks: u8::from(deep(bound)),
        ..Faults::default()
    };
    let setup = by(bound, tiny(), short(), two());
    with(
        Setup {
            max_drops: 1,
            ..setup
        },
        faults,
    )
}

pub(super) fn peers(bound: Bound) -> Setup {
    let faults = Faults {
        prefill_kills: 1,
        prefill_spawns: 1,
        ..Faults::default()
    };
    let setup = by(bound, tiny(), one(), short());
    with(Setup { peers: 1, ..setup }, faults)
}

pub(super) fn known_decodes(bound: Bound) -> Setup {
    let faults = Faults {
        decode_kills: 1,
        decode_spawns: 1,
        ..Faults::default()
    };
    let setup = by(bound, tiny(), one(), short());
    let setup = Setup {
        known_decodes: 1,
        ..setup
    };
    with(setup, faults)
}

pub(super) fn gateway_lives(bound: Bound) -> Setup {
    let faults = Faults {
        gateway_spawns: 1,
        leaves: u8::from(deep(bound)),
        ..Faults::default()
    };
    let setup = Setup {
        slow_gateway: bound != Bound::Smoke,
        ..tiny()
    };
    with(setup, faults)
}

pub(super) fn hang(bound: Bound) -> Setup {
    let faults = Faults {
        hangs: 1,
        deadlines: 2,
        failed_writes: u8::from(deep(bound)),
        ..Faults::default()
    };
    with(by(bound, tiny(), one(), one()), faults)
}

pub(super) fn arenas(bound: Bound) -> Setup {
    let faults = Faults {
        failed_arenas: 1,
        breaks: 1,
        failed_writes: 1,
        ..Faults::default()
    };
    let most = if bound == Bound::Smoke { 1 } else { 2 };
    let setup = by(bound, tiny(), tiny(), one());
    let setup = Setup {
        slow_arenas: true,
        ..setup
    };
    with(setup, faults.together(most))
}
