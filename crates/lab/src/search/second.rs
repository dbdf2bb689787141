//! The second opinion: stateright over the same worlds.
//!
//! It keeps 64-bit fingerprints of the canonical bytes, has its own queue and its own threads, and
//! knows nothing of sections, blocks or rebuilding. That both find the same number of worlds is what
//! speaks for either. Progress is not asked of it: its `eventually` does not see circles.

use crate::encode::Canonical;
use crate::model::{Model, Notes};
use stateright::{Checker, Property};
use std::fmt::Debug;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex};

pub(crate) struct Opinion {
    pub states: usize,
    /// Whether no clause was broken.
    pub holds: bool,
}

pub(crate) fn explore<M: Model + Send + 'static>(model: M) -> Opinion {
    use stateright::Model as _;
    let checker = Adapter(model).checker().threads(2).spawn_bfs().join();
    let opinion = Opinion {
        states: checker.unique_state_count(),
        holds: checker.discoveries().is_empty(),
    };
    assert!(checker.is_done());
    opinion
}

struct Adapter<M>(M);

/// Equal if the bytes are; the world itself comes along to be forked.
struct State<S> {
    bytes: Vec<u8>,
    broken: bool,
    world: Arc<Mutex<S>>,
}

impl<S> Clone for State<S> {
    fn clone(&self) -> Self {
        Self {
            bytes: self.bytes.clone(),
            broken: self.broken,
            world: self.world.clone(),
        }
    }
}

impl<S> Debug for State<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a world of {} bytes", self.bytes.len())
    }
}

impl<S> PartialEq for State<S> {
    fn eq(&self, other: &Self) -> bool {
        (&self.bytes, self.broken) == (&other.bytes, other.broken)
    }
}

impl<S> Hash for State<S> {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        (&self.bytes, self.broken).hash(hasher);
    }
}

impl<M: Model> Adapter<M> {
    fn state(&self, world: M::State, notes: &Notes) -> State<M::State> {
        let mut canonical = Canonical::default();
        self.0.encode(&world, &mut canonical);
        State {
            bytes: canonical.bytes().to_vec(),
            broken: notes.violation.is_some(),
            world: Arc::new(Mutex::new(world)),
        }
    }
}

impl<M: Model> stateright::Model for Adapter<M> {
    type State = State<M::State>;
    type Action = M::Act;

    fn init_states(&self) -> Vec<Self::State> {
        let (world, notes) = self.0.initial();
        vec![self.state(world, &notes)]
    }

    fn actions(&self, state: &Self::State, actions: &mut Vec<M::Act>) {
        let mut world = state.world.lock().expect("no panic");
        self.0.acts(&mut world, actions);
    }

    fn next_state(&self, state: &Self::State, act: M::Act) -> Option<Self::State> {
        let mut after = self.0.fork(&mut state.world.lock().expect("no panic"));
        let mut notes = Notes::default();
        self.0.step(&mut after, &act, &mut notes);
        Some(self.state(after, &notes))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always(
            "every clause",
            |_: &Self, state: &Self::State| !state.broken,
        )]
    }
}
