//! Each stage of an attempt has a time of its own (H-15).

use crate::edge::Pair;
use crate::{endless, prompt, spec};
use fabric::{AttachError, Completion, Endpoint, Landing, OnCompletion, Sender};
use handoff::gateway::Outcome;
use handoff::{Failure, Refusal, Stage};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use worker::{Deadlines, FabricLayer};

/// Nothing behind the first batch is completed before the other end of this is gone.
#[derive(Clone)]
struct FirstAlone(Arc<Mutex<Receiver<()>>>);

struct Held {
    sender: Arc<dyn Sender>,
    layer: FirstAlone,
}

impl FabricLayer for FirstAlone {
    fn sender(&self, sender: Arc<dyn Sender>) -> Arc<dyn Sender> {
        let layer = self.clone();
        Arc::new(Held { sender, layer })
    }
}

impl Sender for Held {
    fn attach(
        &self,
        landing: &Landing,
        mut on_completion: OnCompletion,
    ) -> Result<Box<dyn Endpoint>, AttachError> {
        let (layer, mut first) = (self.layer.clone(), true);
        let held = move |completion: Completion| {
            if !std::mem::take(&mut first) {
                let _ = layer.0.lock().unwrap().recv(); // an error: the other end is gone
            }
            on_completion(completion);
        };
        self.sender.attach(landing, Box::new(held))
    }
}

/// Without any time for one stage an attempt ends in it, whatever the other stages have: what is due
/// fires before the next step, and before the next answer can be there. The prompt has more pages than a
/// batch can, and where all could land at once, those behind the first wait until the attempt has ended.
#[test]
fn h15_an_attempt_ends_in_the_stage_that_has_no_time() {
    type Set = fn(prefill: &mut Deadlines, decode: &mut Deadlines);
    const NONE: Option<Duration> = Some(Duration::ZERO);
    let much = Some(Duration::from_secs(3600));
    let stages: [(Set, Stage); 5] = [
        (|prefill, _| prefill.queue = NONE, Stage::Queue),
        (|prefill, _| prefill.prefill = NONE, Stage::Prefill),
        // From the ticket on decode counts prefill's time and the transfer's together,
        (
            |_, decode| (decode.prefill, decode.transfer) = (NONE, NONE),
            Stage::Transfer,
        ),
        // and from the first batch on the transfer's alone.
        (|_, decode| decode.transfer = NONE, Stage::Transfer),
        (|_, decode| decode.decode = NONE, Stage::Decode),
    ];
    for (nth, (set, stage)) in stages.into_iter().enumerate() {
        let all = Deadlines {
            queue: much,
            prefill: much,
            transfer: much,
            decode: much,
            ..Deadlines::default()
        };
        let (ended, wait) = channel::<()>();
        let pair = Pair::start(|shape| {
            (shape.prefill.max_context, shape.decode.max_context) = (Some(400), Some(400));
            if nth == 3 {
                shape.between = Box::new(FirstAlone(Arc::new(Mutex::new(wait))));
            }
            (shape.deadlines, shape.decode_deadlines) = (all, all);
            set(&mut shape.deadlines, &mut shape.decode_deadlines);
        });
        let mut edge = pair.edge(1);
        edge.until("both workers said Hello", |edge| {
            !edge.machine.limits().is_empty()
        });
        let until = Instant::now() + edge.patience;
        let (mut answered, mut batches) = (0, 0);
        let outcome = loop {
            let answer = edge.ask(spec(1, prompt(5, 320), 40, 1, &endless()));
            match answer.outcome {
                // Prefill has not found decode yet.
                Some(Outcome::Refused(Refusal::PeerUnavailable)) if Instant::now() < until => {}
                // What ends a stage was there as soon as the stage: a worker takes what has come
                // before it looks at the clock.
                Some(Outcome::Answered) if answered < 5 => {
                    answered += 1;
                    batches = edge.facts(edge.decode).counters.batches;
                }
                outcome => break outcome,
            }
        };
        drop(ended);
        let expected = Outcome::Failed(Failure::Deadline(stage));
        assert_eq!(outcome, Some(expected), "{nth}");
        edge.at_rest(edge.prefill, pair.prefill.ready.pool_tokens, 16);
        let facts = edge.at_rest(edge.decode, pair.decode.ready.pool_tokens, 16);
        let landed = facts.counters.batches > batches;
        assert_eq!(landed, nth > 2, "{nth}: not before the stage has begun");
    }
}
