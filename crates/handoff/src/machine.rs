//! What every machine is to whoever runs it: drivers, replay, checker.

use crate::Decisions;
use crate::decode::{self, Decode, Input};
use crate::door::{self, Door};
use crate::gateway::{self, Gateway};
use crate::prefill::{self, Prefill};
use pages::Epoch;

/// Something goes in, effects come out, to be carried out in their order. No clock, no threads, no
/// sockets: the same inputs give the same effects.
///
/// How much a worker holds is not asked here: it says so in its Hello, and a gateway holds nothing.
pub trait Machine {
    /// What it is told.
    type Input;
    /// What is to be done.
    type Effect;

    /// Applies one input.
    fn apply(&mut self, input: Self::Input) -> Vec<Self::Effect>;

    /// Whose it is.
    fn epoch(&self) -> Epoch;

    /// Whether nothing is going on. (As `&mut`: a pool looks at handles that were dropped first.)
    fn at_rest(&mut self) -> bool;
}

impl<J: Decisions> Machine for Prefill<J> {
    type Input = prefill::Event;
    type Effect = prefill::Effect;

    fn apply(&mut self, event: prefill::Event) -> Vec<prefill::Effect> {
        self.handle(event)
    }

    fn epoch(&self) -> Epoch {
        self.hello().epoch
    }

    fn at_rest(&mut self) -> bool {
        Self::at_rest(self)
    }
}

impl<J: Decisions> Machine for Decode<J> {
    type Input = Input;
    type Effect = decode::Effect;

    fn apply(&mut self, input: Input) -> Vec<decode::Effect> {
        match input {
            Input::Event(event) => self.handle(event),
            Input::Fenced(arena, proof) => self.handle_fenced(arena, proof),
        }
    }

    fn epoch(&self) -> Epoch {
        self.hello().epoch
    }

    fn at_rest(&mut self) -> bool {
        Self::at_rest(self)
    }
}

impl<J: Decisions> Machine for Gateway<J> {
    type Input = gateway::Event;
    type Effect = gateway::Effect;

    fn apply(&mut self, event: gateway::Event) -> Vec<gateway::Effect> {
        self.handle(event)
    }

    fn epoch(&self) -> Epoch {
        self.hello().epoch
    }

    /// A gateway holds no pages; its attempts end with its requests.
    fn at_rest(&mut self) -> bool {
        self.load() == 0
    }
}

impl<J: door::Decisions> Machine for Door<J> {
    type Input = door::Event;
    type Effect = door::Effect;

    fn apply(&mut self, event: door::Event) -> Vec<door::Effect> {
        self.handle(event)
    }

    fn epoch(&self) -> Epoch {
        Self::epoch(self)
    }

    fn at_rest(&mut self) -> bool {
        Self::at_rest(self)
    }
}
