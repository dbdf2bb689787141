//! Each stage of an attempt has a time of its own (H-15).

use crate::edge::Pair;
use crate::{endless, prompt, spec};
use handoff::gateway::Outcome;
use handoff::{Failure, Refusal, Stage};
use std::time::{Duration, Instant};
use worker::Deadlines;

/// Without any time for one stage an attempt ends in it, whatever the other stages have: what is due
/// fires before the next step, and before the next answer can be there.
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
        let pair = Pair::start(|shape| {
            (shape.deadlines, shape.decode_deadlines) = (all, all);
            set(&mut shape.deadlines, &mut shape.decode_deadlines);
        });
        let mut edge = pair.edge(1);
        edge.until("both workers said Hello", |edge| {
            !edge.machine.limits().is_empty()
        });
        let until = Instant::now() + edge.patience;
        let outcome = loop {
            let answer = edge.ask(spec(1, prompt(5, 200), 40, 1, &endless()));
            match answer.outcome {
                // Prefill has not found decode yet.
                Some(Outcome::Refused(Refusal::PeerUnavailable)) if Instant::now() < until => {}
                outcome => break outcome,
            }
        };
        let ended = Outcome::Failed(Failure::Deadline(stage));
        assert_eq!(outcome, Some(ended), "{nth}");
        edge.at_rest(edge.prefill, pair.prefill.ready.pool_tokens, 16);
        let facts = edge.at_rest(edge.decode, pair.decode.ready.pool_tokens, 16);
        let landed = facts.counters.batches > 0;
        assert_eq!(landed, nth > 2, "{nth}: not before the stage has begun");
    }
}
