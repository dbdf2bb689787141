//! Copy on write for what is linear and may not be cloned: worlds share a machine until one of
//! them lets something happen to it, and only then it is forked.

use crate::encode::Fragment;
use handoff::Decisions;
use handoff::decode::Decode;
use handoff::gateway::Gateway;
use handoff::prefill::Prefill;
use serde::{Serialize, Serializer};
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// What can be copied as a whole, with the handles inside.
pub trait Fork {
    /// An equal one, whose handles act in it alone.
    fn fork(&mut self) -> Self;
}

/// A machine that several worlds share.
pub struct Shared<M>(Arc<Inner<M>>);

struct Inner<M> {
    machine: Mutex<M>,
    /// How it is written into a world's bytes; forgotten when it changes.
    written: OnceLock<Fragment>,
}

impl<M> Shared<M> {
    /// Of this world alone, for now.
    pub fn new(machine: M) -> Self {
        Self(Arc::new(Inner {
            machine: Mutex::new(machine),
            written: OnceLock::new(),
        }))
    }

    /// Asks it something. (Some questions want it as `&mut`, because a pool looks at handles that
    /// were dropped first; none changes what worlds are compared by.)
    pub fn ask<R>(&self, question: impl FnOnce(&mut M) -> R) -> R {
        let machine = self.0.machine.lock();
        question(&mut machine.unwrap_or_else(PoisonError::into_inner))
    }
}

impl<M: Fork> Shared<M> {
    /// This world's own from now on.
    pub fn change(&mut self) -> &mut M {
        if Arc::get_mut(&mut self.0).is_none() {
            *self = Self::new(self.ask(M::fork));
        }
        let own = Arc::get_mut(&mut self.0).expect("just forked, and nobody else has it");
        own.written = OnceLock::new();
        own.machine
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl<M> Clone for Shared<M> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<M: fmt::Debug> fmt::Debug for Shared<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ask(|machine| machine.fmt(f))
    }
}

impl<M: Serialize> Serialize for Shared<M> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let written = self
            .0
            .written
            .get_or_init(|| self.ask(|machine| Fragment::new(machine)));
        written.serialize(serializer)
    }
}

/// Writes what is shared as if each world had its own. (Serde's own way needs a feature that would
/// be switched on for the product as well.)
pub(super) fn arcs<T: Serialize, S: Serializer>(
    all: &[Arc<T>],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(all.iter().map(|one| &**one))
}

/// The same for one.
pub(super) fn arc<T: Serialize, S: Serializer>(
    one: &Arc<T>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    (**one).serialize(serializer)
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
