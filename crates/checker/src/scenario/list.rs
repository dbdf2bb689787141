//! The worlds by name, each as small as what it is about allows.
//!
//! A larger bound has the same worlds with more requests, more faults at once, or both; what a
//! world must see it must see at every bound.

use super::{Faults, Mode, Prompt, Setup, growth};
use crate::bound::Bound;
use crate::situations::*;

/// A world with a name.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Its name.
    pub name: &'static str,
    /// What it is about, in a line.
    pub about: &'static str,
    /// Where P's writes may land in it.
    pub modes: &'static [Mode],
    /// Situations that it must see at every bound and in every mode, or it shows nothing.
    pub sees: &'static [&'static str],
    /// Those that it must see besides where writes land in an arena.
    pub sees_landing: &'static [&'static str],
    setup: fn(Bound) -> Setup,
}

impl Scenario {
    /// What it consists of at this bound; none if it does not exist in this mode.
    pub fn setup(&self, bound: Bound, mode: Mode) -> Option<Setup> {
        self.modes.contains(&mode).then(|| Setup {
            mode,
            ..(self.setup)(bound)
        })
    }

    /// What it must see in this mode.
    pub fn must_see(&self, mode: Mode) -> impl Iterator<Item = &'static str> {
        let more = match mode {
            Mode::Landing => self.sees_landing,
            Mode::Direct => &[],
        };
        self.sees.iter().chain(more).copied()
    }

    /// The one of that name.
    pub fn named(name: &str) -> Option<&'static Self> {
        ALL.iter().find(|scenario| scenario.name == name)
    }
}

const BOTH: &[Mode] = &[Mode::Landing, Mode::Direct];
/// A write that lands once more after its completion would be in D's own pages, and nothing could
/// tell: that a completed write cannot is what direct mode relies on (handoff.md, "The idea").
const LANDING: &[Mode] = &[Mode::Landing];

/// All of them.
pub const ALL: &[Scenario] = &[
    Scenario {
        name: "calm",
        about: "nothing goes wrong; two requests compete for a decode pool that holds one of them",
        modes: BOTH,
        sees: &[ANSWERED, COMMITTED, STEP, BUSY, TAKEN],
        sees_landing: &[],
        setup: |_| two(),
    },
    Scenario {
        name: "leave",
        about: "a client leaves at any moment",
        modes: BOTH,
        sees: &[
            LEFT,
            CANCELLED,
            ABANDONED,
            ANSWERED,
            QUARANTINED,
            UNQUARANTINED,
        ],
        sees_landing: &[],
        setup: leave,
    },
    Scenario {
        name: "late-write",
        about: "a write is reported failed and lands later, or never",
        modes: BOTH,
        sees: &[
            UNSETTLED,
            UNSETTLED_ANSWERED,
            LATE,
            FENCED,
            RETRIED,
            ANSWERED,
        ],
        sees_landing: &[],
        setup: late_write,
    },
    Scenario {
        name: "lingers",
        about: "a dropped arena is still mapped, which is as much as its life may; then it is not",
        modes: LANDING,
        sees: &[
            UNSETTLED, FENCED, LINGERS, RELEASED, HUNG_UP, REDIALLED, ANSWERED,
        ],
        sees_landing: &[],
        setup: lingers,
    },
    Scenario {
        name: "echo",
        about: "a write lands again, after commit, over a reused slot, after its page was granted anew",
        modes: LANDING,
        sees: &[ECHO, AFTER_COMMIT, ANSWERED],
        sees_landing: &[],
        setup: echo,
    },
    Scenario {
        name: "break",
        about: "the control connection breaks, for each end at another moment",
        modes: BOTH,
        sees: &[
            REDIALLED,
            AFTER_BREAK,
            STATED_AGAIN,
            JOINED,
            TICKET_AGAIN,
            HUNG_UP,
            ANSWERED,
        ],
        sees_landing: &[],
        setup: break_,
    },
    Scenario {
        name: "deadline",
        about: "any deadline passes",
        modes: BOTH,
        sees: &[DEADLINE, FAILED, ANSWERED],
        sees_landing: &[],
        setup: deadline,
    },
    Scenario {
        name: "break-deadline",
        about: "a connection breaks and a deadline passes: an arena is dropped with what it owes",
        modes: BOTH,
        sees: &[REDIALLED, DEADLINE, FENCED],
        sees_landing: &[],
        setup: break_deadline,
    },
    Scenario {
        name: "break-write",
        about: "a connection breaks and a write is reported failed",
        modes: BOTH,
        sees: &[REDIALLED, UNSETTLED, LATE, FENCED],
        sees_landing: &[],
        setup: break_write,
    },
    Scenario {
        name: "corrupt",
        about: "a bit flips in flight",
        modes: BOTH,
        sees: &[CORRUPTED, INTEGRITY, FENCED, RETRIED, ANSWERED],
        sees_landing: &[],
        setup: corrupt,
    },
    Scenario {
        name: "missing",
        about: "a write is taken for landed and never lands",
        modes: BOTH,
        sees: &[MISSING, INTEGRITY, FENCED, RETRIED, ANSWERED],
        sees_landing: &[],
        setup: missing,
    },
    Scenario {
        name: "truncated",
        about: "prefill certifies less than it was told, after its offer",
        modes: BOTH,
        sees: &[TRUNCATED, INTEGRITY, ANSWERED],
        sees_landing: &[],
        setup: truncated,
    },
    Scenario {
        name: "ranks",
        about: "two writers of every page; one of them fails",
        modes: BOTH,
        sees: &[UNSETTLED, LATE, FENCED, COMMITTED, ANSWERED],
        sees_landing: &[],
        setup: ranks,
    },
    Scenario {
        name: "two-lives-of-prefill",
        about: "prefill ends or hangs and begins again while its old writes may still land",
        modes: BOTH,
        sees: &[KILLED, SPAWNED, COEXIST, FROM_THE_DEAD, ANSWERED],
        sees_landing: &[],
        setup: lives_of_prefill,
    },
    Scenario {
        name: "restart-of-decode",
        about: "decode ends or hangs and begins again while writes for its old life may still land",
        modes: BOTH,
        sees: &[KILLED, SPAWNED, COEXIST, ANSWERED],
        sees_landing: &[],
        setup: lives_of_decode,
    },
    Scenario {
        name: "two-decodes",
        about: "one prefill, two decodes, a retry",
        modes: BOTH,
        sees: &[RETRIED, UNSETTLED, ANSWERED],
        sees_landing: &[],
        setup: two_decodes,
    },
    Scenario {
        name: "prefix",
        about: "prompts that begin alike, of two domains; cached pages are evicted for others",
        modes: BOTH,
        sees: &[PREFIX_HIT, PREFIX_HIT_AT_P, EVICTED, ANSWERED],
        sees_landing: &[],
        setup: prefix,
    },
    Scenario {
        name: "choices",
        about: "two answers to one prompt; the partly filled page is copied for each",
        modes: BOTH,
        sees: &[DUPLICATED, STOPPED, ANSWERED],
        sees_landing: &[],
        setup: choices,
    },
    Scenario {
        name: "incident",
        about: "prefill's pool is smaller than decode's, and a prompt lies between the two",
        modes: BOTH,
        sees: &[REJECTED, ANSWERED],
        sees_landing: &[],
        setup: incident,
    },
    Scenario {
        name: "overstated",
        about: "the same, and prefill says more of its pool to the gateway than is true",
        modes: BOTH,
        sees: &[REJECTED, PAST_THE_EDGE],
        sees_landing: &[],
        setup: overstated,
    },
    Scenario {
        name: "stale",
        about: "a message of an earlier connection or life arrives on another",
        modes: BOTH,
        sees: &[STALE, REDIALLED, ANSWERED],
        sees_landing: &[],
        setup: stale,
    },
    Scenario {
        name: "failed-pass",
        about: "a forward pass or a copy fails",
        modes: BOTH,
        sees: &[COMPUTE_FAILED, COPY_FAILED, RETRIED, ANSWERED],
        sees_landing: &[],
        setup: failed_pass,
    },
    Scenario {
        name: "drain",
        about: "a worker drains",
        modes: BOTH,
        sees: &[DRAINED, ANSWERED, REFUSED],
        sees_landing: &[],
        setup: drain,
    },
    Scenario {
        name: "gateway",
        about: "what gateway and workers say to each other takes its time, and connections break",
        modes: BOTH,
        sees: &[GATEWAY_LOST, ANSWERED],
        sees_landing: &[],
        setup: gateway,
    },
    Scenario {
        name: "caps",
        about: "one prefill life and one domain may hold so much and no more",
        modes: BOTH,
        sees: &[BUSY, REFUSED, ANSWERED],
        sees_landing: &[],
        setup: caps,
    },
    Scenario {
        name: "scrub",
        about: "freed pages are zeroed before they are free",
        modes: BOTH,
        sees: &[LEFT, ANSWERED],
        sees_landing: &[],
        setup: scrub,
    },
    Scenario {
        name: "crowd",
        about: "three pages, three requests; one leaves, and (deep) a write fails",
        modes: BOTH,
        sees: &[ANSWERED, COMMITTED],
        sees_landing: &[],
        setup: crowd,
    },
    Scenario {
        name: "growth",
        about: "two answers outgrow a pool that holds one: the younger is put back and goes on later",
        modes: BOTH,
        sees: &[SHORT, PUT_BACK, RESUMED, STEP, ANSWERED],
        sees_landing: &[],
        setup: growth::two_that_grow,
    },
    Scenario {
        name: "growth-faults",
        about: "the same, and clients leave, passes fail",
        modes: BOTH,
        sees: &[SHORT, PUT_BACK, RESUMED, LEFT, ANSWERED],
        sees_landing: &[],
        setup: growth::growth_and_faults,
    },
    Scenario {
        name: "growth-breaks",
        about: "the same, and a connection breaks or a deadline passes",
        modes: LANDING,
        sees: &[SHORT, PUT_BACK, RESUMED, ANSWERED],
        sees_landing: &[],
        setup: growth::growth_and_breaks,
    },
    Scenario {
        name: "growth-choices",
        about: "two answers to one prompt of which the pool holds one",
        modes: BOTH,
        sees: &[PUT_BACK, RESUMED, DUPLICATED, ANSWERED],
        sees_landing: &[],
        setup: growth::choices_that_grow,
    },
    Scenario {
        name: "growth-cache",
        about: "answers of one tenant that share cached pages outgrow the pool",
        modes: BOTH,
        sees: &[SHORT, PUT_BACK, RESUMED, PREFIX_HIT, ANSWERED],
        sees_landing: &[],
        setup: growth::cached_growth,
    },
];

fn deep(bound: Bound) -> bool {
    bound == Bound::Deep
}

/// Two requests of two tenants; decode's pool holds one of them at a time.
fn two() -> Setup {
    Setup::default()
}

/// Two short ones.
fn short() -> Setup {
    Setup {
        prompts: vec![Prompt::new(&[1, 1, 1], 1), Prompt::new(&[2], 1).of(9)],
        prefill_pages: 2,
        decode_pages: 2,
        ..Setup::default()
    }
}

/// One request of two pages.
fn one() -> Setup {
    Setup {
        prompts: vec![Prompt::new(&[1, 1, 1], 1)],
        prefill_pages: 2,
        decode_pages: 2,
        ..Setup::default()
    }
}

/// One request of one page.
fn tiny() -> Setup {
    Setup {
        prompts: vec![Prompt::new(&[1], 1)],
        prefill_pages: 1,
        decode_pages: 1,
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

fn leave(bound: Bound) -> Setup {
    let faults = Faults {
        leaves: if deep(bound) { 2 } else { 1 },
        ..Faults::default()
    };
    with(by(bound, short(), two(), two()), faults)
}

fn late_write(bound: Bound) -> Setup {
    let faults = Faults {
        failed_writes: if deep(bound) { 2 } else { 1 },
        ..Faults::default()
    };
    with(by(bound, short(), short(), two()), faults)
}

fn lingers(bound: Bound) -> Setup {
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

fn echo(bound: Bound) -> Setup {
    let faults = Faults {
        echoes: if deep(bound) { 2 } else { 1 },
        ..Faults::default()
    };
    with(by(bound, short(), two(), two()), faults)
}

fn break_(bound: Bound) -> Setup {
    let faults = Faults {
        breaks: if deep(bound) { 2 } else { 1 },
        ..Faults::default()
    };
    with(by(bound, short(), two(), two()), faults)
}

fn deadline(bound: Bound) -> Setup {
    let faults = Faults {
        deadlines: if deep(bound) { 2 } else { 1 },
        ..Faults::default()
    };
    with(by(bound, one(), short(), two()), faults)
}

fn break_deadline(bound: Bound) -> Setup {
    let faults = Faults {
        breaks: 1,
        deadlines: 1,
        ..Faults::default()
    };
    with(by(bound, tiny(), one(), short()), faults)
}

fn break_write(bound: Bound) -> Setup {
    let faults = Faults {
        breaks: 1,
        failed_writes: 1,
        ..Faults::default()
    };
    with(by(bound, tiny(), one(), two()), faults)
}

fn corrupt(bound: Bound) -> Setup {
    let faults = Faults {
        corruptions: 1,
        leaves: u8::from(deep(bound)),
        ..Faults::default()
    };
    with(by(bound, one(), two(), two()), faults)
}

fn missing(bound: Bound) -> Setup {
    let faults = Faults {
        losses: 1,
        leaves: u8::from(deep(bound)),
        ..Faults::default()
    };
    with(by(bound, one(), two(), two()), faults)
}

fn truncated(bound: Bound) -> Setup {
    let faults = Faults {
        truncations: 1,
        leaves: u8::from(deep(bound)),
        ..Faults::default()
    };
    with(by(bound, one(), two(), two()), faults)
}

fn ranks(bound: Bound) -> Setup {
    let faults = Faults {
        failed_writes: 1,
        leaves: u8::from(deep(bound)),
        ..Faults::default()
    };
    let setup = by(bound, tiny(), tiny(), one());
    with(Setup { ranks: 2, ..setup }, faults)
}

fn lives_of_prefill(bound: Bound) -> Setup {
    let faults = Faults {
        prefill_kills: 1,
        prefill_spawns: 1,
        ..Faults::default()
    };
    with(by(bound, tiny(), one(), short()), faults)
}

fn lives_of_decode(bound: Bound) -> Setup {
    let faults = Faults {
        decode_kills: 1,
        decode_spawns: 1,
        ..Faults::default()
    };
    with(by(bound, tiny(), one(), short()), faults)
}

fn two_decodes(bound: Bound) -> Setup {
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

fn prefix(bound: Bound) -> Setup {
    let faults = Faults {
        leaves: u8::from(bound != Bound::Smoke),
        failed_writes: u8::from(deep(bound)),
        ..Faults::default()
    };
    let setup = Setup {
        prompts: vec![
            Prompt::new(&[1, 1, 1], 1).cached(),
            Prompt::new(&[1, 1, 2], 1).cached(),
            Prompt::new(&[1, 1, 1], 1).of(9).cached(),
        ],
        prefill_pages: 2,
        decode_pages: 2,
        ..Setup::default()
    };
    with(setup, faults)
}

fn choices(bound: Bound) -> Setup {
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
fn incident(bound: Bound) -> Setup {
    let faults = Faults {
        leaves: u8::from(bound != Bound::Smoke),
        failed_writes: u8::from(deep(bound)),
        ..Faults::default()
    };
    let setup = Setup {
        prompts: vec![
            Prompt::new(&[1, 1, 1], 2),
            Prompt::new(&[2, 2, 2, 2, 2], 1).of(9),
            Prompt::new(&[3, 3], 1).of(9),
        ],
        prefill_pages: 2,
        decode_pages: 3,
        ..Setup::default()
    };
    with(setup, faults)
}

fn overstated(bound: Bound) -> Setup {
    Setup {
        overstated: Some(8),
        ..incident(bound)
    }
}

fn stale(bound: Bound) -> Setup {
    let faults = Faults {
        breaks: 1,
        stale: 1,
        prefill_kills: u8::from(deep(bound)),
        prefill_spawns: u8::from(deep(bound)),
        ..Faults::default()
    };
    with(by(bound, tiny(), one(), tiny()), faults)
}

fn failed_pass(bound: Bound) -> Setup {
    let faults = Faults {
        failed_computes: 1,
        leaves: u8::from(deep(bound)),
        ..Faults::default()
    };
    with(by(bound, short(), two(), two()), faults)
}

fn drain(bound: Bound) -> Setup {
    let faults = Faults {
        drains: 1,
        failed_writes: u8::from(deep(bound)),
        ..Faults::default()
    };
    let setup = by(bound, short(), short(), two());
    let at_once = false;
    with(Setup { at_once, ..setup }, faults)
}

fn gateway(bound: Bound) -> Setup {
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

fn caps(bound: Bound) -> Setup {
    let faults = Faults {
        leaves: u8::from(bound != Bound::Smoke),
        ..Faults::default()
    };
    let setup = Setup {
        prompts: vec![
            Prompt::new(&[1, 1, 1], 1),
            Prompt::new(&[2, 2], 1),
            Prompt::new(&[3, 3, 3, 3], 2),
        ],
        prefill_pages: 6,
        decode_pages: 8,
        pages_per_peer: 2,
        tokens_per_domain: 8,
        ..Setup::default()
    };
    with(setup, faults)
}

fn scrub(bound: Bound) -> Setup {
    Setup {
        scrub: true,
        ..leave(bound)
    }
}

/// A fault of every kind at once is for simulation: here it would be some hundred million states.
fn crowd(bound: Bound) -> Setup {
    let faults = Faults {
        leaves: 1,
        failed_writes: u8::from(deep(bound)),
        ..Faults::default()
    };
    let setup = Setup {
        prompts: match bound {
            Bound::Smoke => short().prompts,
            _ => vec![
                Prompt::new(&[1, 1, 1], 1),
                Prompt::new(&[2], 1).of(9),
                Prompt::new(&[3, 3], 1),
            ],
        },
        at_once: bound != Bound::Smoke,
        prefill_pages: if bound == Bound::Smoke { 2 } else { 3 },
        decode_pages: if bound == Bound::Smoke { 2 } else { 3 },
        ..Setup::default()
    };
    with(setup, faults)
}
