//! Breadth-first search over whole worlds, and progress by fixpoint.
//!
//! Layer by layer, so that the first violation found is one of the nearest. Each layer is taken in
//! blocks: several threads let everything happen that may happen in the worlds of a block and look
//! up what they get among the worlds that were known before it ([`expand`]); then one thread adds
//! what is new, in the order of the worlds that it came from. So numbers, counts and counterexamples
//! are the same whatever the number of threads.
//!
//! A world is known by its canonical bytes, whole ([`store`]); one that still has to be expanded is
//! also kept alive, as long as there is memory, and otherwise rebuilt from the way to it
//! ([`rebuild`]). Of the way, each world remembers its parent and which of the parent's acts led to
//! it.

mod expand;
mod rebuild;
mod report;
mod rest;
pub mod store;

pub use report::{Counterexample, Limits, Progress, Report, Stop, Tally};

use crate::model::Model;
use expand::{Child, Crew, Expanded, Known, Seed};
use std::sync::{Arc, PoisonError, RwLock, RwLockWriteGuard};
use std::time::Instant;
use store::Scratch;

/// Worlds whose successors are in memory at once.
const BLOCK: usize = 512;

/// The way to every world, and what is onward from it.
#[derive(Default)]
pub(crate) struct Nodes {
    parents: Vec<u32>,
    /// Which of the parent's acts.
    ordinals: Vec<u16>,
    /// At rest.
    done: Vec<bool>,
    /// How many worlds each expanded one leads to without a fault; `onward` lists them in order.
    fans: Vec<u16>,
    onward: Vec<u32>,
}

impl Nodes {
    /// Worlds and acts from the first one to this one.
    fn path(&self, mut at: u32) -> Vec<(u32, u16)> {
        let mut path = Vec::new();
        while at != 0 {
            path.push((at, self.ordinals[at as usize]));
            at = self.parents[at as usize];
        }
        path.reverse();
        path
    }

    fn add(&mut self, parent: u32, ordinal: u16, done: bool) {
        self.parents.push(parent);
        self.ordinals.push(ordinal);
        self.done.push(done);
    }

    fn memory(&self) -> usize {
        self.parents.capacity() * 4
            + self.ordinals.capacity() * 2
            + self.done.capacity()
            + self.fans.capacity() * 2
            + self.onward.capacity() * 4
    }
}

/// Explores everything that can be reached within the limits. `watch` is told how it goes.
pub fn explore<M: Model>(
    model: &M,
    limits: &Limits,
    watch: &mut dyn FnMut(&Progress),
) -> Report<M::Act> {
    let mut search = Search::new(model, limits);
    let stop = search.run(watch);
    search.finish(stop)
}

struct Search<'a, M: Model> {
    model: &'a M,
    limits: &'a Limits,
    began: Instant,
    known: Arc<RwLock<Known>>,
    scratch: Scratch,
    /// Worlds that were known, and are to be dropped by whoever has time.
    dropped: Vec<Box<M::State>>,
    next: Vec<Seed<M::State>>,
    depth: usize,
    tally: Tally,
    violation: Option<Counterexample<M::Act>>,
    keeps: bool,
}

impl<'a, M: Model> Search<'a, M> {
    fn new(model: &'a M, limits: &'a Limits) -> Self {
        let mut search = Self {
            model,
            limits,
            began: Instant::now(),
            known: Arc::default(),
            scratch: Scratch::default(),
            dropped: Vec::new(),
            next: Vec::new(),
            depth: 0,
            tally: Tally::default(),
            violation: None,
            keeps: limits.keep > 0,
        };
        let (mut first, notes) = model.initial();
        search.tally.step(&notes);
        search.tally.state(notes.checked);
        let mut canonical = limits.canonical();
        model.encode(&first, &mut canonical);
        let mut known = write(&search.known);
        known.store.insert(canonical.written(), &mut search.scratch);
        let done = model.at_rest(&mut first);
        known.nodes.add(0, 0, done);
        drop(known);
        search.next.push(Seed {
            number: 0,
            state: Some(Box::new(first)),
        });
        search.violation = notes.violation.map(Counterexample::at_once);
        search
    }

    fn run(&mut self, watch: &mut dyn FnMut(&Progress)) -> Stop {
        if self.violation.is_some() {
            return Stop::Violation;
        }
        std::thread::scope(|scope| {
            let crew = Crew::new(scope, self.model, self.limits, &self.known);
            self.layers(crew, watch)
        })
    }

    /// All of them.
    fn layers(&mut self, mut crew: Crew<M>, watch: &mut dyn FnMut(&Progress)) -> Stop {
        while !self.next.is_empty() {
            let mut layer = std::mem::take(&mut self.next).into_iter().peekable();
            while layer.peek().is_some() {
                let block: Vec<Seed<M::State>> = layer.by_ref().take(BLOCK).collect();
                let dropped = std::mem::take(&mut self.dropped);
                let children = crew.expand(block, dropped, &mut self.tally);
                if let Some(stop) = self.merge(children) {
                    return stop;
                }
                if let Some(stop) = self.look_up(layer.len(), watch) {
                    return stop;
                }
            }
            self.depth += usize::from(!self.next.is_empty());
        }
        Stop::Complete
    }

    /// Adds what is new, in order.
    fn merge(&mut self, block: Vec<Expanded<M>>) -> Option<Stop> {
        let known = self.known.clone();
        let Known { store, nodes } = &mut *write(&known);
        for Expanded { from, children } in block {
            let onward = nodes.onward.len();
            for (ordinal, (is_fault, child)) in children.into_iter().enumerate() {
                let to = match child {
                    Child::Known(to) => to,
                    Child::Violates(violation) => {
                        let acts = self.acts_to(nodes, from, Some(ordinal as u16));
                        let then = Vec::new();
                        self.violation = Some(Counterexample {
                            violation,
                            acts,
                            then,
                        });
                        return Some(Stop::Violation);
                    }
                    Child::New(new) => {
                        let (to, is_new) = store.insert(&new.written, &mut self.scratch);
                        let mut state = Some(new.state);
                        if is_new {
                            self.tally.state(new.checked);
                            nodes.add(from, ordinal as u16, new.done);
                            let state = state.take_if(|_| self.keeps);
                            self.next.push(Seed { number: to, state });
                        }
                        self.dropped.extend(state);
                        to
                    }
                };
                if !is_fault {
                    nodes.onward.push(to);
                }
                if store.len() > self.limits.states {
                    return Some(Stop::States);
                }
            }
            let fan = nodes.onward.len() - onward;
            nodes.fans.push(fan as u16);
        }
        None
    }

    /// Says how it goes, and whether it may go on.
    fn look_up(&mut self, left: usize, watch: &mut dyn FnMut(&Progress)) -> Option<Stop> {
        let elapsed = self.began.elapsed();
        let (states, memory) = {
            let known = write(&self.known);
            (known.store.len(), known.memory())
        };
        let resident = report::resident().unwrap_or(memory as u64);
        self.keeps = resident < self.limits.keep;
        watch(&Progress {
            states,
            steps: self.tally.steps,
            depth: self.depth,
            queue: left + self.next.len(),
            elapsed,
            resident,
        });
        if elapsed >= self.limits.time {
            Some(Stop::Time)
        } else if resident >= self.limits.resident {
            Some(Stop::Memory)
        } else {
            None
        }
    }

    /// The acts that lead to a world, and one of those that are possible there.
    fn acts_to(&self, nodes: &Nodes, world: u32, then: Option<u16>) -> Vec<M::Act> {
        let path = nodes.path(world).into_iter().map(|(_, ordinal)| ordinal);
        rebuild::acts(self.model, path.chain(then))
    }

    fn finish(mut self, stop: Stop) -> Report<M::Act> {
        self.next.clear();
        self.dropped.clear();
        let mut stop = stop;
        let known = self.known.clone();
        let known = &*write(&known);
        if stop == Stop::Complete
            && let Some(at) = rest::unreachable_from(&known.nodes)
        {
            let acts = self.acts_to(&known.nodes, at, None);
            self.violation = Some(rest::counterexample(self.model, acts));
            stop = Stop::Violation;
        }
        let states = known.store.len();
        Report {
            states,
            depth: self.depth,
            rests: known.nodes.done.iter().filter(|done| **done).count(),
            bytes_per_state: known.memory() as f64 / states as f64,
            resident: report::resident(),
            elapsed: self.began.elapsed(),
            tally: self.tally,
            violation: self.violation,
            stop,
        }
    }
}

impl Known {
    fn memory(&self) -> usize {
        self.store.memory() + self.nodes.memory()
    }
}

/// Nobody reads between two blocks.
fn write(known: &RwLock<Known>) -> RwLockWriteGuard<'_, Known> {
    known.write().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod agreement;
#[cfg(test)]
mod progress;
#[cfg(test)]
pub(crate) mod second;
#[cfg(test)]
mod tests;
