//! Everything that may happen in a block of worlds, by several threads.

use super::{Limits, Nodes, Tally, rebuild};
use crate::encode::{Canonical, Written};
use crate::model::{Clauses, Model, Notes, Violation};
use crate::search::store::{Scratch, Store};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, RwLock};
use std::thread::{Scope, ScopedJoinHandle};

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

/// Everything that is known. Threads read it while they expand a block, one writes it in between.
#[derive(Default)]
pub(super) struct Known {
    pub store: Store,
    pub nodes: Nodes,
}

/// Threads that stay for the whole search, as their memory does: worlds are made and dropped by
/// the million.
pub(super) struct Crew<'scope, 'a, M: Model> {
    hand: Hand<'a, M>,
    known: Arc<RwLock<Known>>,
    others: Vec<Other<'scope, M>>,
}

struct Other<'scope, M: Model> {
    jobs: Sender<Arc<Job<M>>>,
    done: Receiver<(Vec<Done<M>>, Tally)>,
    thread: ScopedJoinHandle<'scope, ()>,
}

/// A block, in chunks that whoever is free takes.
struct Job<M: Model> {
    chunks: Vec<Mutex<Chunk<M>>>,
    next: AtomicUsize,
}

struct Chunk<M: Model> {
    seeds: Vec<Seed<M::State>>,
    /// Worlds that turned out to be known. To drop one costs as much as to make it.
    dropped: Vec<Box<M::State>>,
}

/// A chunk's place in the block, and what became of it.
type Done<M> = (usize, Vec<Expanded<M>>);

/// Worlds that a thread takes at a time.
const CHUNK: usize = 8;

impl<'scope, 'a: 'scope, M: Model> Crew<'scope, 'a, M> {
    pub(super) fn new(
        scope: &'scope Scope<'scope, '_>,
        model: &'a M,
        limits: &Limits,
        known: &Arc<RwLock<Known>>,
    ) -> Self {
        let others = (1..limits.threads).map(|_| {
            let (jobs, to_do) = channel::<Arc<Job<M>>>();
            let (report, done) = channel();
            let (mut hand, known) = (Hand::new(model, limits), known.clone());
            let thread = scope.spawn(move || {
                for job in to_do {
                    if report.send(hand.work(&job, &known)).is_err() {
                        return; // the search has ended
                    }
                }
            });
            Other { jobs, done, thread }
        });
        Self {
            hand: Hand::new(model, limits),
            known: known.clone(),
            others: others.collect(),
        }
    }
}

impl<M: Model> Crew<'_, '_, M> {
    /// In the order of the block, whoever did it.
    pub(super) fn expand(
        &mut self,
        block: Vec<Seed<M::State>>,
        dropped: Vec<Box<M::State>>,
        tally: &mut Tally,
    ) -> Vec<Expanded<M>> {
        let job = Arc::new(Job::new(block, dropped));
        // A few worlds are not worth waking anybody.
        let wake = job.chunks.len() > 2;
        let woken = self.others.len() * usize::from(wake);
        for other in &self.others[..woken] {
            // One that has panicked hears nothing any more, and is joined below.
            let _ = other.jobs.send(job.clone());
        }
        let (mut done, own) = self.hand.work(&job, &self.known);
        tally.add(own);
        for at in 0..woken {
            let Ok((chunks, theirs)) = self.others[at].done.recv() else {
                let panicked = self.others.swap_remove(at).thread.join();
                std::panic::resume_unwind(panicked.expect_err("it left before its work was done"));
            };
            done.extend(chunks);
            tally.add(theirs);
        }
        done.sort_by_key(|(at, _)| *at);
        done.into_iter().flat_map(|(_, done)| done).collect()
    }
}

impl<M: Model> Job<M> {
    fn new(block: Vec<Seed<M::State>>, mut dropped: Vec<Box<M::State>>) -> Self {
        let number = block.len().div_ceil(CHUNK).max(1);
        let share = dropped.len().div_ceil(number);
        let mut seeds = block.into_iter();
        let chunks = (0..number).map(|_| {
            Mutex::new(Chunk {
                seeds: seeds.by_ref().take(CHUNK).collect(),
                dropped: dropped.split_off(dropped.len().saturating_sub(share)),
            })
        });
        Self {
            chunks: chunks.collect(),
            next: AtomicUsize::new(0),
        }
    }
}

/// One thread's space.
struct Hand<'a, M: Model> {
    model: &'a M,
    acts: Vec<M::Act>,
    canonical: Canonical,
    scratch: Scratch,
    notes: Notes,
    tally: Tally,
}

impl<'a, M: Model> Hand<'a, M> {
    fn new(model: &'a M, limits: &Limits) -> Self {
        Self {
            model,
            acts: Vec::new(),
            canonical: limits.canonical(),
            scratch: Scratch::default(),
            notes: Notes::default(),
            tally: Tally::default(),
        }
    }

    /// Chunk after chunk until none is left.
    fn work(&mut self, job: &Job<M>, known: &RwLock<Known>) -> (Vec<Done<M>>, Tally) {
        let known = known.read().expect("no thread panicked");
        let mut done = Vec::new();
        loop {
            let at = job.next.fetch_add(1, Ordering::Relaxed);
            let Some(chunk) = job.chunks.get(at) else {
                return (done, std::mem::take(&mut self.tally));
            };
            let mut chunk = chunk.lock().expect("no thread panicked");
            chunk.dropped.clear();
            let mut seeds = std::mem::take(&mut chunk.seeds);
            rebuild::missing(self.model, &known.nodes, &mut seeds);
            let expanded = seeds.into_iter().filter_map(|seed| {
                let state = seed.state?;
                Some(self.expand(seed.number, state, &known.store))
            });
            done.push((at, expanded.collect()));
        }
    }

    fn expand(&mut self, from: u32, state: Box<M::State>, store: &Store) -> Expanded<M> {
        let model = self.model;
        let mut state = Some(state);
        let mut children = Vec::new();
        self.acts.clear();
        if let Some(state) = &mut state {
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
            let child = self.let_happen(act, after, store);
            let ends = matches!(child, Child::Violates(_));
            children.push((model.is_fault(act), child));
            if ends {
                break;
            }
        }
        self.acts = acts;
        Expanded { from, children }
    }

    fn let_happen(&mut self, act: &M::Act, mut after: Box<M::State>, store: &Store) -> Child<M> {
        let model = self.model;
        self.notes.clear();
        model.apply(&mut after, act, &mut self.notes);
        let known = match self.notes.violation {
            Some(_) => None,
            None => {
                model.encode(&after, &mut self.canonical);
                store.find(self.canonical.written(), &mut self.scratch)
            }
        };
        if known.is_none() {
            model.judge(&after, &mut self.notes);
        }
        self.tally.step(&self.notes);
        match (known, self.notes.violation.take()) {
            (_, Some(violation)) => Child::Violates(violation),
            (Some(known), None) => Child::Known(known),
            (None, None) => Child::New(Box::new(New {
                written: self.canonical.written().clone(),
                done: model.at_rest(&mut after),
                state: after,
                checked: self.notes.checked,
            })),
        }
    }
}
