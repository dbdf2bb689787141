//! A client that leaves, in every phase: one outcome, every page back, neighbours unharmed.

use crate::{attacked, questions};
use faults::{Answer, Phase, counter};
use serde_json::json;
use std::sync::mpsc;
use std::time::Duration;
use testkit::Pending;
use testkit::crowd::COMPLETIONS;

#[test]
fn a_client_that_leaves_in_any_phase_costs_nobody_anything() {
    let asked = questions(2 * Phase::ALL.len(), false);
    let site = attacked("", &[]);
    site.rest(1);
    for (n, phase) in Phase::ALL.into_iter().enumerate() {
        let mut body = asked[2 * n].0.body.clone();
        // Long enough that it leaves before the end; an odd number streams.
        let stream = phase == Phase::Streaming;
        body["max_tokens"] = json!(300 + u64::from(stream));
        body["stream"] = json!(stream);
        // The attempt does not go on before its client has left.
        let (client, leaves) = mpsc::channel::<Pending>();
        let (gone, has_left) = mpsc::channel();
        site.board.arm(phase, 0, move |_| {
            drop(leaves.recv().expect("a client that asks"));
            gone.send(()).expect("somebody waits for it");
        });
        let pending = site.api.begin(COMPLETIONS, &body).unwrap();
        client.send(pending).expect("the phase is not over");
        let left = has_left.recv_timeout(Duration::from_secs(60));
        left.unwrap_or_else(|_| panic!("{phase:?} is never reached"));
        for (question, alone) in &asked[2 * n..2 * n + 2] {
            let answer = question.ask(&site.api);
            assert_eq!(answer, Answer::Whole(alone.clone()), "{phase:?}");
        }
        assert!(site.board.disarm().is_some(), "{phase:?} was hit");
        let info = site.rest(1);
        let left = n as u64 + 1;
        assert_eq!(
            counter(&info, "requests_abandoned"),
            left,
            "{phase:?}: one outcome"
        );
        assert_eq!(counter(&info, "requests_answered"), 2 * left, "{phase:?}");
        assert_eq!(counter(&info, "requests_failed"), 0, "{phase:?}");
    }
    let ended = site.running.stop();
    assert!(ended.status.success() && ended.left.is_empty(), "{ended:?}");
}
