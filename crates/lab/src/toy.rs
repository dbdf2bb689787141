//! A world for tests of the explorers: jobs that take one of two machines under a number that is
//! never repeated, and give it back.

use crate::encode::Canonical;
use crate::model::{Model, Notes};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Bounds of the toy, and what is wrong with it.
#[derive(Clone, Debug)]
pub(crate) struct Toy {
    pub jobs: usize,
    /// How often a machine may break down.
    pub breaks: u8,
    /// A machine that breaks down is not given back: its job waits for ever.
    pub leaks: bool,
    /// Rest is reached only through a circle that may be walked without end.
    pub rounds: u8,
    /// Breaks "H-3" once this many jobs hold a machine.
    pub crowded: usize,
}

impl Default for Toy {
    fn default() -> Self {
        let (jobs, breaks, leaks, rounds, crowded) = (4, 2, false, 2, usize::MAX);
        Self {
            jobs,
            breaks,
            leaks,
            rounds,
            crowded,
        }
    }
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct World {
    jobs: Vec<Job>,
    breaks: u8,
    at: u8,
    last: Counter,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Counter(u64);

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
enum Job {
    Waits,
    Holds(handoff::Conn),
    Lost,
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Act {
    Take(usize),
    End(usize),
    Break(usize),
    GoRound,
}

impl fmt::Display for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl World {
    fn holding(&self) -> usize {
        let holds = |job: &&Job| matches!(job, Job::Holds(_));
        self.jobs.iter().filter(holds).count()
    }
}

impl Model for Toy {
    type State = World;
    type Act = Act;

    fn initial(&self) -> (World, Notes) {
        let world = World {
            jobs: vec![Job::Waits; self.jobs],
            breaks: self.breaks,
            at: 0,
            last: Counter(0),
        };
        (world, Notes::default())
    }

    fn acts(&self, world: &mut World, out: &mut Vec<Act>) {
        for (at, job) in world.jobs.iter().enumerate() {
            match job {
                Job::Waits if world.holding() < 2 => out.push(Act::Take(at)),
                Job::Holds(_) => {
                    out.push(Act::End(at));
                    out.extend((world.breaks > 0).then_some(Act::Break(at)));
                }
                _ => {}
            }
        }
        out.extend((self.rounds > 0).then_some(Act::GoRound));
    }

    fn is_fault(&self, act: &Act) -> bool {
        matches!(act, Act::Break(_))
    }

    fn apply(&self, world: &mut World, act: &Act, notes: &mut Notes) {
        match act {
            Act::Take(at) => {
                world.last.0 += 1;
                world.jobs[*at] = Job::Holds(handoff::Conn(world.last.0));
                notes.saw("taken");
            }
            Act::End(at) => world.jobs[*at] = Job::Done,
            Act::Break(at) => {
                world.breaks -= 1;
                world.jobs[*at] = if self.leaks { Job::Lost } else { Job::Waits };
                notes.saw("broken");
            }
            Act::GoRound => world.at = (world.at + 1) % self.rounds,
        }
        let holding = world.holding();
        notes.check("H-3", holding < self.crowded, || {
            format!("{holding} hold a machine")
        });
    }

    fn fork(&self, world: &mut World) -> World {
        world.clone()
    }

    fn at_rest(&self, world: &mut World) -> bool {
        world.at == 0 && world.jobs.iter().all(|job| *job == Job::Done)
    }

    fn encode(&self, world: &World, out: &mut Canonical) {
        out.value(world);
    }

    fn describe(&self, _: &mut World, act: &Act, after: &mut World) -> Vec<String> {
        vec![format!("{act}: {} hold a machine", after.holding())]
    }
}
