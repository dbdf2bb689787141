//! Copy on write for what is linear and may not be cloned: worlds share a machine until one of
//! them lets something happen to it, and only then it is forked.

use crate::encode::{Part, apart};
use handoff::Decisions;
use handoff::decode::Decode;
use handoff::gateway::Gateway;
use handoff::prefill::Prefill;
use serde::{Serialize, Serializer};
use std::fmt;
use std::ops::Deref;
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
    written: OnceLock<Part>,
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

impl<M: Serialize> Shared<M> {
    /// As a part of a world.
    pub fn part(&self) -> Part {
        let write = || self.ask(|machine| Part::new(machine));
        self.0.written.get_or_init(write).clone()
    }
}

impl<M: Serialize> Serialize for Shared<M> {
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
    pub fn part(&self) -> Part {
        let write = || Part::new(&self.0.value);
        self.0.written.get_or_init(write).clone()
    }
}

impl<T> Deref for Kept<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.value
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
