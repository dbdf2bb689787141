//! Copy on write for what is linear and may not be cloned: worlds share a machine until one of
//! them lets something happen to it, and only then it is forked.

use crate::encode::{Part, apart};
use handoff::decode::{Decode, Input, Lane};
use handoff::gateway::Gateway;
use handoff::prefill::Prefill;
use handoff::{Decisions, Machine, OfferId};
use pages::{Counts, Epoch, Holder, WriterLife};
use serde::{Serialize, Serializer};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

/// What can be copied as a whole, with the handles inside.
pub trait Fork {
    /// An equal one, whose handles act in it alone.
    fn fork(&mut self) -> Self;
}

/// A machine that several worlds can share while it hears different things in each of them.
pub trait SharedMachine: Fork + Serialize + Machine<Effect: Clone> {
    /// What it hears, as worlds remember and compare it: with whom a proof is about in its place.
    type Heard: Clone + PartialEq;
    /// What is asked of it again and again.
    type View;

    /// The same as the machine takes it.
    fn input(&self, heard: Self::Heard) -> Self::Input;

    /// What there is to say of it. (As `&mut`, because a pool looks at handles that were dropped
    /// first; nothing changes by which worlds are compared.)
    fn view(&mut self) -> Self::View;
}

/// A machine that several worlds share.
///
/// What the others do meanwhile makes no difference to a machine, so one and the same machine is
/// part of many worlds, and hears one and the same thing in many of them. What comes of that is the
/// same each time (no clock, no randomness: law of `handoff`). So it is remembered as long as some
/// world has it, and two ways that lead a machine to the same state, names and counters included,
/// lead to one ([`Family`]): it is neither computed nor written nor kept in memory again.
pub struct Shared<M: SharedMachine>(Arc<Inner<M>>);

struct Inner<M: SharedMachine> {
    machine: Mutex<M>,
    /// How it is written into a world's bytes.
    written: OnceLock<Part>,
    view: OnceLock<M::View>,
    /// What it has heard in some world, and what came of it.
    next: Mutex<Vec<Next<M>>>,
    family: Arc<Family<M>>,
}

struct Next<M: SharedMachine> {
    event: M::Heard,
    effects: Vec<M::Effect>,
    after: Weak<Inner<M>>,
}

impl<M: SharedMachine> Shared<M> {
    /// A machine that has heard nothing yet.
    pub fn new(machine: M, family: &Arc<Family<M>>) -> Self {
        Self(family.of(machine))
    }

    /// Asks it something.
    pub fn ask<R>(&self, question: impl FnOnce(&mut M) -> R) -> R {
        question(&mut lock(&self.0.machine))
    }

    /// What there is to say of it.
    pub fn view(&self) -> &M::View {
        self.0.view.get_or_init(|| self.ask(M::view))
    }

    /// It hears something, in this world.
    pub fn hear(&mut self, event: M::Heard) -> Vec<M::Effect> {
        if let Some((after, effects)) = self.0.known(&event) {
            self.0 = after;
            return effects;
        }
        let mut machine = self.ask(M::fork);
        let input = machine.input(event.clone());
        let effects = machine.apply(input);
        let after = self.0.family.of(machine);
        self.0.keep(event, &effects, &after);
        self.0 = after;
        effects
    }

    /// As a part of a world.
    pub fn part(&self) -> &Part {
        self.0.part()
    }
}

impl<M: SharedMachine> Inner<M> {
    /// What came of it when it heard this in another world that still is.
    fn known(&self, event: &M::Heard) -> Option<(Arc<Self>, Vec<M::Effect>)> {
        let next = lock(&self.next);
        let known = next.iter().find(|next| next.event == *event)?;
        Some((known.after.upgrade()?, known.effects.clone()))
    }

    /// Remembers what came of it.
    fn keep(&self, event: M::Heard, effects: &[M::Effect], after: &Arc<Self>) {
        let after = Arc::downgrade(after);
        let mut next = lock(&self.next);
        match next.iter_mut().find(|next| next.event == event) {
            Some(known) => known.after = after,
            None => next.push(Next {
                event,
                effects: effects.to_vec(),
                after,
            }),
        }
    }

    fn part(&self) -> &Part {
        let write = || Part::of_life(&*lock(&self.machine), self.family.life);
        self.written.get_or_init(write)
    }
}

/// All the states that one life of a worker is in, in some world.
pub struct Family<M: SharedMachine> {
    life: Epoch,
    members: Mutex<Members<M>>,
}

struct Members<M: SharedMachine> {
    by_hash: HashMap<u64, Vec<Weak<Inner<M>>>>,
    /// How many there may be before those are forgotten that are in no world any more.
    most: usize,
}

impl<M: SharedMachine> Family<M> {
    fn new(life: Epoch) -> Arc<Self> {
        let (by_hash, most) = (HashMap::new(), 1 << 12);
        let members = Mutex::new(Members { by_hash, most });
        Arc::new(Self { life, members })
    }

    /// The machine in this very state that some world has already, or else this one.
    fn of(self: &Arc<Self>, machine: M) -> Arc<Inner<M>> {
        let new = Arc::new(Inner {
            machine: Mutex::new(machine),
            written: OnceLock::new(),
            view: OnceLock::new(),
            next: Mutex::default(),
            family: self.clone(),
        });
        let mut hasher = DefaultHasher::new();
        new.part().exact().hash(&mut hasher);
        let mut members = lock(&self.members);
        let alike = members.by_hash.entry(hasher.finish()).or_default();
        let mut there = alike.iter().filter_map(Weak::upgrade);
        if let Some(same) = there.find(|other| other.part().is(new.part())) {
            return same;
        }
        alike.retain(|other| other.strong_count() > 0);
        alike.push(Arc::downgrade(&new));
        members.forget();
        new
    }
}

impl<M: SharedMachine> Members<M> {
    fn forget(&mut self) {
        if self.by_hash.len() < self.most {
            return;
        }
        self.by_hash.retain(|_, alike| {
            alike.retain(|one| one.strong_count() > 0);
            !alike.is_empty()
        });
        self.most = (self.by_hash.len() * 2).max(self.most);
    }
}

/// A thread that panicked has ended the search.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<M: SharedMachine> Clone for Shared<M> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<M: SharedMachine + fmt::Debug> fmt::Debug for Shared<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ask(|machine| machine.fmt(f))
    }
}

impl<M: SharedMachine> Serialize for Shared<M> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.ask(|machine| apart(machine, serializer))
    }
}

/// The same for what is plain data: worlds share it until one of them changes it.
pub struct Kept<T>(Arc<Plain<T>>);

struct Plain<T> {
    value: T,
    written: OnceLock<Part>,
}

impl<T> Kept<T> {
    /// Of this world alone, for now.
    pub fn new(value: T) -> Self {
        let written = OnceLock::new();
        Self(Arc::new(Plain { value, written }))
    }
}

impl<T: Default> Default for Kept<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T: Clone> Kept<T> {
    /// This world's own from now on.
    pub fn change(&mut self) -> &mut T {
        if Arc::get_mut(&mut self.0).is_none() {
            *self = Self::new(self.0.value.clone());
        }
        let own = Arc::get_mut(&mut self.0).expect("just cloned, and nobody else has it");
        own.written = OnceLock::new();
        &mut own.value
    }
}

impl<T: Serialize> Kept<T> {
    /// As a part of a world, without the parts inside it.
    pub fn part(&self) -> &Part {
        let write = || Part::new(&self.0.value);
        self.0.written.get_or_init(write)
    }

    /// As a part of this life in it.
    pub fn part_of(&self, life: Epoch) -> &Part {
        let write = || Part::of_life(&self.0.value, life);
        self.0.written.get_or_init(write)
    }
}

impl<T> Deref for Kept<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.value
    }
}

/// Whoever wants to change it has its own from then on, as with [`Kept::change`].
impl<T: Clone> DerefMut for Kept<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.change()
    }
}

impl<T> Clone for Kept<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: fmt::Debug> fmt::Debug for Kept<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.value.fmt(f)
    }
}

impl<T: Serialize> Serialize for Kept<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        apart(&self.0.value, serializer)
    }
}

impl<J: Decisions> Fork for Gateway<J> {
    fn fork(&mut self) -> Self {
        self.clone()
    }
}

impl<J: Decisions> Fork for Prefill<J> {
    fn fork(&mut self) -> Self {
        self.fork_for_checker()
    }
}

impl<J: Decisions> Fork for Decode<J> {
    fn fork(&mut self) -> Self {
        self.fork_for_checker()
    }
}

/// What is asked of a worker's machine after every step: who holds which page, what it waits for,
/// and what may run (`R`).
pub struct View<R> {
    /// Every page that is not free.
    pub held: Vec<Holder>,
    /// Pages by state.
    pub counts: Counts,
    /// See the machine's own `load`.
    pub load: (usize, usize),
    /// What may run now.
    pub runnable: Vec<R>,
    /// Whether nothing is going on.
    pub at_rest: bool,
}

impl<J: Decisions> SharedMachine for Gateway<J> {
    type Heard = Self::Input;
    /// Requests that have not ended.
    type View = usize;

    fn input(&self, event: Self::Heard) -> Self::Input {
        event
    }

    fn view(&mut self) -> usize {
        self.load()
    }
}

impl<J: Decisions> SharedMachine for Prefill<J> {
    type Heard = Self::Input;
    type View = View<OfferId>;

    fn input(&self, event: Self::Heard) -> Self::Input {
        event
    }

    fn view(&mut self) -> Self::View {
        View {
            held: self.holders(),
            counts: self.counts(),
            load: self.load(),
            runnable: self.runnable(),
            at_rest: self.at_rest(),
        }
    }
}

impl<J: Decisions> SharedMachine for Decode<J> {
    type Heard = Input<WriterLife>;
    type View = View<Lane>;

    fn input(&self, heard: Self::Heard) -> Input {
        match heard {
            Input::Event(event) => Input::Event(event),
            Input::Fenced(arena, writer) => Input::Fenced(arena, self.fence_for_checker(writer)),
        }
    }

    fn view(&mut self) -> Self::View {
        View {
            held: self.holders(),
            counts: self.counts(),
            load: self.load(),
            runnable: self.runnable(),
            at_rest: self.at_rest(),
        }
    }
}

/// The families of a world's lives. Worlds of one setup share them: whatever way a life has come
/// about, under one epoch it began as the same machine.
pub(super) struct Families<J: Decisions> {
    gateways: Mutex<BTreeMap<Epoch, Arc<Family<Gateway<J>>>>>,
    prefills: Mutex<BTreeMap<Epoch, Arc<Family<Prefill<J>>>>>,
    decodes: Mutex<BTreeMap<Epoch, Arc<Family<Decode<J>>>>>,
}

impl<J: Decisions> Families<J> {
    pub(super) fn gateway(&self, epoch: Epoch) -> Arc<Family<Gateway<J>>> {
        let mut known = lock(&self.gateways);
        known
            .entry(epoch)
            .or_insert_with(|| Family::new(epoch))
            .clone()
    }

    pub(super) fn prefill(&self, epoch: Epoch) -> Arc<Family<Prefill<J>>> {
        let mut known = lock(&self.prefills);
        known
            .entry(epoch)
            .or_insert_with(|| Family::new(epoch))
            .clone()
    }

    pub(super) fn decode(&self, epoch: Epoch) -> Arc<Family<Decode<J>>> {
        let mut known = lock(&self.decodes);
        known
            .entry(epoch)
            .or_insert_with(|| Family::new(epoch))
            .clone()
    }
}

impl<J: Decisions> Default for Families<J> {
    fn default() -> Self {
        Self {
            gateways: Mutex::default(),
            prefills: Mutex::default(),
            decodes: Mutex::default(),
        }
    }
}

impl<J: Decisions> fmt::Debug for Families<J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Families")
    }
}
