//! A fabric that does not take what it is given: prefill hears of it at once, and the request is
//! answered all the same.

use crate::edge::Pair;
use crate::{endless, probe, prompt, reference, spec};
use fabric::{
    ArenaId, AttachError, Completion, Endpoint, Landing, OnCompletion, Sender, SlotWrite,
    SourcesReleased, SubmissionId, SubmitError,
};
use handoff::gateway::Outcome;
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex};
use worker::FabricLayer;

/// What becomes of the next call of this kind.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Next {
    Fails,
    Full,
    /// Submitted; it is completed when the last call that is scripted has been made.
    Held,
}

/// Calls that are not scripted pass.
#[derive(Clone, Debug, Default)]
struct Script(Arc<(Mutex<Calls>, Condvar)>);

#[derive(Debug, Default)]
struct Calls {
    attaches: VecDeque<Next>,
    submits: VecDeque<Next>,
}

impl Script {
    fn attach(&self) -> Option<Next> {
        self.0.0.lock().unwrap().attaches.pop_front()
    }

    fn submit(&self) -> Option<Next> {
        let next = self.0.0.lock().unwrap().submits.pop_front();
        self.0.1.notify_all();
        next
    }

    /// Submissions that will be told this are next.
    fn submits(&self, next: &[Next]) {
        self.0.0.lock().unwrap().submits.extend(next);
    }

    fn wait_for_the_full_one(&self) {
        let (calls, made) = (&self.0.0, &self.0.1);
        let full = |calls: &mut Calls| calls.submits.contains(&Next::Full);
        drop(made.wait_while(calls.lock().unwrap(), full).unwrap());
    }
}

impl FabricLayer for Script {
    fn sender(&self, sender: Arc<dyn Sender>) -> Arc<dyn Sender> {
        let script = self.clone();
        Arc::new(Failing { sender, script })
    }
}

struct Failing {
    sender: Arc<dyn Sender>,
    script: Script,
}

impl Sender for Failing {
    fn attach(
        &self,
        landing: &Landing,
        mut on_completion: OnCompletion,
    ) -> Result<Box<dyn Endpoint>, AttachError> {
        if self.script.attach() == Some(Next::Fails) {
            return Err(io::Error::other("not attached").into());
        }
        let script = self.script.clone();
        let held = move |completion: Completion| {
            script.wait_for_the_full_one();
            on_completion(completion);
        };
        let endpoint = self.sender.attach(landing, Box::new(held))?;
        let script = self.script.clone();
        Ok(Box::new(Way { endpoint, script }))
    }
}

struct Way {
    endpoint: Box<dyn Endpoint>,
    script: Script,
}

impl Endpoint for Way {
    fn arena(&self) -> ArenaId {
        self.endpoint.arena()
    }

    fn submit(&mut self, id: SubmissionId, writes: Vec<SlotWrite>) -> Result<(), SubmitError> {
        match self.script.submit() {
            Some(Next::Fails) => Err(SubmitError::EndpointFailed),
            Some(Next::Full) => Err(SubmitError::Full(1)),
            Some(Next::Held) | None => self.endpoint.submit(id, writes),
        }
    }

    fn destroy(self: Box<Self>) -> SourcesReleased {
        self.endpoint.destroy()
    }
}

fn between(script: &Script) -> Pair {
    let script = script.clone();
    Pair::start(|shape| shape.between = Box::new(script))
}

/// Nothing is submitted to an arena that cannot be reached; decode makes another.
#[test]
fn an_arena_that_cannot_be_attached_to_is_never_written_to() {
    let script = Script::default();
    script.0.0.lock().unwrap().attaches.push_back(Next::Fails);
    let pair = between(&script);
    let mut edge = pair.edge(1);
    edge.ready(&probe());
    let prefill = edge.facts(edge.prefill).counters;
    assert_eq!(prefill.batches_failed, 0, "nothing was submitted there");
    let decode = edge.facts(edge.decode).counters;
    assert_eq!(decode.fences, 1, "the arena was dropped");
    assert_eq!(edge.ask(probe()).outcome, Some(Outcome::Answered));
}

/// Whether it is refused at once, or when its turn has come behind others.
#[test]
fn h7_a_batch_that_could_not_be_begun_is_not_waited_for() {
    for next in [vec![Next::Fails], vec![Next::Held, Next::Full, Next::Fails]] {
        let script = Script::default();
        let pair = between(&script);
        let specs = [1, 2].map(|n| spec(n, prompt(n as u32, 40), 4, 1, &endless()));
        let expected = reference(&pair, &specs);
        let mut edge = pair.edge(1);
        edge.ready(&probe());
        script.submits(&next);
        let requests = specs.map(|spec| edge.submit(spec));
        for (answer, expected) in edge.answers(&requests).iter().zip(&expected) {
            assert_eq!(answer.outcome, Some(Outcome::Answered), "{next:?}");
            assert_eq!(answer.tokens, *expected, "{next:?}");
        }
        assert!(script.0.0.lock().unwrap().submits.is_empty(), "{next:?}");
        let prefill = edge.at_rest(edge.prefill, pair.prefill.ready.pool_tokens, 16);
        assert_eq!(prefill.counters.batches_failed, 1, "{next:?}");
        edge.at_rest(edge.decode, pair.decode.ready.pool_tokens, 16);
    }
}
