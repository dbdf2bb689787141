//! The worlds by name, each as small as what it is about allows.

use super::{Faults, Mode, Prompt, Setup};
use crate::bound::Bound;
use crate::situations::*;

/// A world with a name.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Its name.
    pub name: &'static str,
    /// What it is about, in a line.
    pub about: &'static str,
    /// Whether it makes sense where P writes into D's pages itself.
    pub direct: bool,
    /// Situations that it must see at every bound, or it shows nothing.
    pub sees: &'static [&'static str],
    setup: fn(Bound) -> Setup,
}

impl Scenario {
    /// What it consists of at this bound; none if it does not exist in this mode.
    pub fn setup(&self, bound: Bound, mode: Mode) -> Option<Setup> {
        let exists = mode == Mode::Landing || self.direct;
        exists.then(|| Setup {
            mode,
            ..(self.setup)(bound)
        })
    }

    /// The one of that name.
    pub fn named(name: &str) -> Option<&'static Self> {
        ALL.iter().find(|scenario| scenario.name == name)
    }
}

/// All of them.
pub const ALL: &[Scenario] = &[
    Scenario {
        name: "calm",
        about: "nothing goes wrong; two requests compete for a decode pool that holds one of them",
        direct: true,
        sees: &[ANSWERED, COMMITTED, STEP, BUSY],
        setup: |_| Setup::default(),
    },
    Scenario {
        name: "leave",
        about: "a client leaves at any moment",
        direct: true,
        sees: &[LEFT, CANCELLED, ABANDONED, ANSWERED],
        setup: |_| {
            with(Faults {
                leaves: 1,
                ..Faults::default()
            })
        },
    },
    Scenario {
        name: "late-write",
        about: "a write is reported failed and lands later, or never",
        direct: true,
        sees: &[
            UNSETTLED,
            UNSETTLED_ANSWERED,
            LATE,
            FENCED,
            RETRIED,
            ANSWERED,
        ],
        setup: |_| {
            with(Faults {
                failed_writes: 1,
                ..Faults::default()
            })
        },
    },
    Scenario {
        name: "break",
        about: "the control connection breaks, on each side at another moment",
        direct: true,
        sees: &[REDIALLED, AFTER_BREAK, ANSWERED],
        setup: |_| {
            with(Faults {
                breaks: 1,
                ..Faults::default()
            })
        },
    },
    Scenario {
        name: "deadline",
        about: "any deadline passes",
        direct: true,
        sees: &[DEADLINE, ANSWERED],
        setup: |_| {
            with(Faults {
                deadlines: 1,
                ..Faults::default()
            })
        },
    },
    Scenario {
        name: "prefix",
        about: "prompts of one domain begin alike",
        direct: true,
        sees: &[PREFIX_HIT, PREFIX_HIT_AT_P, ANSWERED],
        setup: |_| Setup {
            prompts: vec![
                Prompt::new(&[1, 1, 1], 1).cached(),
                Prompt::new(&[1, 1, 2], 2).cached(),
            ],
            ..Setup::default()
        },
    },
];

fn with(faults: Faults) -> Setup {
    Setup {
        faults,
        ..Setup::default()
    }
}
