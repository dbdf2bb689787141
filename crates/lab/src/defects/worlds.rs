//! Worlds in which defects are tried, each as small as what goes wrong in it allows.

use crate::scenario::{Faults, Mode, Prompt, Setup};

/// A world with a name.
#[derive(Clone, Copy, Debug)]
pub struct World {
    /// Its name.
    pub name: &'static str,
    /// What is different in it from a calm one.
    pub about: &'static str,
    setup: fn() -> Setup,
}

impl World {
    /// What it consists of.
    pub fn setup(&self, mode: Mode) -> Setup {
        Setup {
            mode,
            ..(self.setup)()
        }
    }

    /// The one of that name.
    ///
    /// # Panics
    /// If there is none: the names are ours.
    pub fn named(name: &str) -> &'static Self {
        let named = ALL.iter().find(|world| world.name == name);
        named.expect("a world of this name")
    }
}

fn none() -> Faults {
    Faults::default()
}

fn faults(faults: Faults) -> Setup {
    Setup {
        faults,
        ..Setup::default()
    }
}

/// Two prompts of two tenants that fit into both pools together.
fn roomy(faults: Faults) -> Setup {
    Setup {
        prefill_pages: 4,
        decode_pages: 6,
        faults,
        ..Setup::default()
    }
}

/// Two answers of three and of four pages, which they take as they grow.
fn outgrow(decode_pages: u32) -> Setup {
    Setup {
        prompts: vec![Prompt::new(&[1, 1], 4), Prompt::new(&[2, 2], 6).of(9)],
        prefill_pages: 4,
        decode_pages,
        ahead: 1,
        ..Setup::default()
    }
}

/// One prompt.
fn alone(tokens: &[u32], max_new: u32, faults: Faults) -> Setup {
    Setup {
        prompts: vec![Prompt::new(tokens, max_new)],
        faults,
        ..Setup::default()
    }
}

/// All of them.
pub const ALL: &[World] = &[
    World {
        name: "calm",
        about: "nothing goes wrong",
        setup: Setup::default,
    },
    World {
        name: "short of pages",
        about: "two answers outgrow a pool that holds one of them",
        setup: || outgrow(5),
    },
    World {
        name: "two choices, one stopped",
        about: "of two answers to one prompt one is stopped before its end",
        setup: || Setup {
            prompts: vec![Prompt::new(&[1, 1, 1], 4).choices(2)],
            prefill_pages: 4,
            decode_pages: 8,
            ahead: 1,
            faults: Faults { stops: 1, ..none() },
            ..Setup::default()
        },
    },
    World {
        name: "short of pages, tight",
        about: "the same, and what the second one takes at its ticket is needed by the first",
        setup: || outgrow(4),
    },
    World {
        name: "past the edge",
        about: "prefill has told the gateway of a larger pool than it has",
        setup: || Setup {
            prompts: vec![
                Prompt::new(&[2, 2, 2, 2, 2], 1).of(9),
                Prompt::new(&[1, 1, 1, 1, 1], 2),
            ],
            prefill_pages: 2,
            decode_pages: 4,
            overstated: Some(4),
            ..Setup::default()
        },
    },
    World {
        name: "comes late",
        about: "the connection breaks, and what was lost with it arrives on the next",
        setup: || {
            let faults = Faults {
                breaks: 1,
                stale: 1,
                leaves: 1,
                ..none()
            };
            alone(&[1, 1, 1], 1, faults)
        },
    },
    World {
        name: "truncated",
        about: "the last batch is cut off after the offer",
        setup: || {
            let truncations = 1;
            alone(
                &[1, 1, 1],
                2,
                Faults {
                    truncations,
                    ..none()
                },
            )
        },
    },
    World {
        name: "lost",
        about: "a write is taken for landed by its fabric, and never lands",
        setup: || {
            let losses = 1;
            alone(&[1, 1, 1], 2, Faults { losses, ..none() })
        },
    },
    World {
        name: "corrupted",
        about: "a bit flips on the way",
        setup: || {
            let corruptions = 1;
            alone(
                &[1, 1, 1],
                2,
                Faults {
                    corruptions,
                    ..none()
                },
            )
        },
    },
    World {
        name: "deadline",
        about: "any deadline passes",
        setup: || {
            let deadlines = 1;
            faults(Faults {
                deadlines,
                ..none()
            })
        },
    },
    World {
        name: "leave",
        about: "a client leaves at any moment",
        setup: || {
            let leaves = 1;
            faults(Faults { leaves, ..none() })
        },
    },
    World {
        name: "late write",
        about: "a write is reported failed and lands later, or never",
        setup: || {
            let failed_writes = 1;
            faults(Faults {
                failed_writes,
                ..none()
            })
        },
    },
    World {
        name: "late write, room for both",
        about: "the same, and both requests are on their way at once",
        setup: || {
            let failed_writes = 1;
            roomy(Faults {
                failed_writes,
                ..none()
            })
        },
    },
    World {
        name: "late write, landing twice",
        about: "a write is reported failed, and a write lands twice",
        setup: || {
            let (failed_writes, echoes) = (1, 1);
            let faults = Faults {
                failed_writes,
                echoes,
                ..none()
            };
            alone(&[1, 1, 1], 2, faults)
        },
    },
    World {
        name: "break",
        about: "the connection between prefill and decode breaks",
        setup: || {
            let breaks = 1;
            faults(Faults { breaks, ..none() })
        },
    },
    World {
        name: "break, one request",
        about: "the same, with one request",
        setup: || {
            let breaks = 1;
            alone(&[1, 1, 1], 1, Faults { breaks, ..none() })
        },
    },
    World {
        name: "break and deadline",
        about: "the connection breaks, and a deadline passes",
        setup: || {
            let (breaks, deadlines) = (1, 1);
            alone(
                &[1, 1, 1],
                2,
                Faults {
                    breaks,
                    deadlines,
                    ..none()
                },
            )
        },
    },
    World {
        name: "two writers",
        about: "prefill has two ranks, each of which writes its slice of every page",
        setup: || Setup {
            prompts: vec![Prompt::new(&[1, 1, 1], 2)],
            ranks: 2,
            ..Setup::default()
        },
    },
    World {
        name: "killed",
        about: "the process of prefill ends; what it had submitted may still land",
        setup: || {
            let prefill_kills = 1;
            faults(Faults {
                prefill_kills,
                ..none()
            })
        },
    },
    World {
        name: "killed and restarted",
        about: "the process of prefill ends, and a new one begins",
        setup: || {
            let (prefill_kills, prefill_spawns) = (1, 1);
            alone(
                &[1, 1, 1],
                1,
                Faults {
                    prefill_kills,
                    prefill_spawns,
                    ..none()
                },
            )
        },
    },
    World {
        name: "decode killed and restarted",
        about: "the process of decode ends, and a new one begins",
        setup: || {
            let (decode_kills, decode_spawns) = (1, 1);
            alone(
                &[1, 1, 1],
                1,
                Faults {
                    decode_kills,
                    decode_spawns,
                    ..none()
                },
            )
        },
    },
    World {
        name: "failing passes",
        about: "a forward pass fails",
        setup: || {
            let failed_computes = 1;
            faults(Faults {
                failed_computes,
                ..none()
            })
        },
    },
    World {
        name: "one domain, one beginning",
        about: "two prompts of one tenant begin alike and may be cached",
        setup: || Setup {
            prompts: vec![
                Prompt::new(&[1, 1, 1], 1).cached(),
                Prompt::new(&[1, 1, 2], 2).cached(),
            ],
            ..Setup::default()
        },
    },
    World {
        name: "cache under pressure",
        about: "two prompts of one tenant begin alike, and a third needs the room",
        setup: || Setup {
            prompts: vec![
                Prompt::new(&[1, 1, 1], 1).cached(),
                Prompt::new(&[1, 1, 2], 1).cached(),
                Prompt::new(&[3, 3, 3, 3], 1).of(9),
            ],
            decode_pages: 4,
            ..Setup::default()
        },
    },
    World {
        name: "equal beginnings",
        about: "two tenants send prompts that begin alike",
        setup: || Setup {
            prompts: vec![Prompt::new(&[1, 1, 1], 2), Prompt::new(&[1, 2], 1).of(9)],
            ..Setup::default()
        },
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_worlds_have_one_name() {
        let names: std::collections::BTreeSet<_> = ALL.iter().map(|world| world.name).collect();
        assert_eq!(names.len(), ALL.len());
    }
}
