//! The book of a gateway's machine: what a client was told. Pages that run short put a request back
//! and begin it anew with what was said, so that which attempts it costs is not looked at here.

use handoff::RequestId;
use handoff::gateway::{Effect, Event, Gateway, Timer};
use std::collections::BTreeSet;

#[derive(Default)]
pub struct Watch {
    over: BTreeSet<RequestId>,
}

impl Watch {
    pub fn after(&mut self, machine: &Gateway, said: &[Effect]) {
        for effect in said {
            match effect {
                Effect::Deliver { request, .. } => {
                    let over = self.over.contains(request);
                    assert!(!over, "H-6: delivered after the outcome");
                }
                Effect::Finish { request, .. } => {
                    let first = self.over.insert(*request);
                    assert!(first, "H-6: {request} has two outcomes");
                }
                Effect::Disarm(timer) => late(machine, *timer),
                _ => {}
            }
        }
    }
}

/// A timer that was disarmed may fire all the same: nothing comes of it.
fn late(machine: &Gateway, timer: Timer) {
    let mut fork = machine.clone();
    let said = fork.handle(Event::Fired(timer));
    assert!(said.is_empty(), "{timer:?}: {said:?}");
}
