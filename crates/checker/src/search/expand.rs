//! Everything that may happen in a block of worlds, by several threads.

use super::{Nodes, Tally, rebuild};
use crate::encode::{Canonical, Written};
use crate::model::{Clauses, Model, Notes, Violation};
use crate::search::store::{Scratch, Store};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A world that is to be expanded; `None` where there was no memory to keep it alive.
pub(super) struct Seed<S> {
    pub number: u32,
    pub state: Option<Box<S>>,
}

/// What a world leads to, in the order of its acts.
pub(super) struct Expanded<M: Model> {
    pub from: u32,
    /// Whether the act is a fault, and where it leads.
    pub children: Vec<(bool, Child<M>)>,
}

pub(super) enum Child<M: Model> {
    Known(u32),
    /// Not known before this block.
    New(Box<New<M>>),
    Violates(Violation),
}

pub(super) struct New<M: Model> {
    pub written: Written,
    pub state: Box<M::State>,
    pub checked: Clauses,
    pub done: bool,
}

/// What the threads read.
pub(super) struct Pool<'a, M: Model> {
    pub model: &'a M,
    pub store: &'a Store,
    pub nodes: &'a Nodes,
    pub symmetry: bool,
}

impl<M: Model> Pool<'_, M> {
    fn canonical(&self) -> Canonical {
        if self.symmetry {
            Canonical::symmetric()
        } else {
            Canonical::default()
        }
    }
}

type Chunk<S> = Mutex<Vec<Seed<S>>>;
/// A chunk's place in the block, and what became of it.
type Done<M> = (usize, Vec<Expanded<M>>);

impl<M: Model> Pool<'_, M> {
    /// In the order of the block, whoever did it.
    pub fn expand(
        &self,
        block: Vec<Seed<M::State>>,
        threads: usize,
        chunk: usize,
    ) -> (Vec<Expanded<M>>, Vec<Tally>) {
        let mut seeds = block.into_iter().peekable();
        let mut chunks: Vec<Chunk<M::State>> = Vec::new();
        while seeds.peek().is_some() {
            chunks.push(Mutex::new(seeds.by_ref().take(chunk).collect()));
        }
        if chunks.len() <= 2 || threads <= 1 {
            let next = AtomicUsize::new(0);
            let (done, tally) = self.work(&chunks, &next);
            return (
                done.into_iter().flat_map(|(_, done)| done).collect(),
                vec![tally],
            );
        }
        let next = AtomicUsize::new(0);
        let (mut done, mut tallies) = (Vec::new(), Vec::new());
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads)
                .map(|_| scope.spawn(|| self.work(&chunks, &next)))
                .collect();
            for worker in workers {
                match worker.join() {
                    Ok((chunks, tally)) => {
                        done.extend(chunks);
                        tallies.push(tally);
                    }
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
        });
        done.sort_by_key(|(at, _)| *at);
        (
            done.into_iter().flat_map(|(_, done)| done).collect(),
            tallies,
        )
    }

    /// One thread: chunk after chunk until none is left.
    fn work(&self, chunks: &[Chunk<M::State>], next: &AtomicUsize) -> (Vec<Done<M>>, Tally) {
        let mut hand = Hand::new(self);
        let mut done = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(chunk) = chunks.get(at) else {
                return (done, hand.tally);
            };
            let mut seeds = std::mem::take(&mut *chunk.lock().expect("no thread panicked"));
            rebuild::missing(self.model, self.nodes, &mut seeds);
            let expanded = seeds.into_iter().filter_map(|seed| {
                let state = seed.state?;
                Some(hand.expand(seed.number, state))
            });
            done.push((at, expanded.collect()));
        }
    }
}

/// One thread's space.
struct Hand<'a, M: Model> {
    pool: &'a Pool<'a, M>,
    acts: Vec<M::Act>,
    canonical: Canonical,
    scratch: Scratch,
    notes: Notes,
    tally: Tally,
}

impl<'a, M: Model> Hand<'a, M> {
    fn new(pool: &'a Pool<'a, M>) -> Self {
        Self {
            pool,
            acts: Vec::new(),
            canonical: pool.canonical(),
            scratch: Scratch::default(),
            notes: Notes::default(),
            tally: Tally::default(),
        }
    }

    fn expand(&mut self, from: u32, state: Box<M::State>) -> Expanded<M> {
        let model = self.pool.model;
        let mut state = Some(state);
        let mut children = Vec::new();
        self.acts.clear();
        if let Some(state) = &mut state
            && !model.out_of_bounds(state)
        {
            model.acts(state, &mut self.acts);
        }
        let acts = std::mem::take(&mut self.acts);
        for (at, act) in acts.iter().enumerate() {
            // The last one happens in the world itself.
            let after = match &mut state {
                Some(state) if at + 1 < acts.len() => Some(Box::new(model.fork(state))),
                state => state.take(),
            };
            let Some(after) = after else { break };
            let child = self.let_happen(act, after);
            let ends = matches!(child, Child::Violates(_));
            children.push((model.is_fault(act), child));
            if ends {
                break;
            }
        }
        self.acts = acts;
        Expanded { from, children }
    }

    fn let_happen(&mut self, act: &M::Act, mut after: Box<M::State>) -> Child<M> {
        let model = self.pool.model;
        self.notes.clear();
        model.apply(&mut after, act, &mut self.notes);
        self.tally.step(&self.notes);
        if let Some(violation) = self.notes.violation.take() {
            return Child::Violates(violation);
        }
        self.canonical.clear();
        model.encode(&after, &mut self.canonical);
        match self
            .pool
            .store
            .find(self.canonical.written(), &mut self.scratch)
        {
            Some(known) => Child::Known(known),
            None => {
                let done = model.at_rest(&mut after) || model.out_of_bounds(&mut after);
                Child::New(Box::new(New {
                    written: self.canonical.written().clone(),
                    state: after,
                    checked: self.notes.checked,
                    done,
                }))
            }
        }
    }
}
