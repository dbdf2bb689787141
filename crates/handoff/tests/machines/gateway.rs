//! The request: admission at the edge, exactly one outcome (H-6), nothing before Committed (H-9),
//! one retry with new ids and only while no token was sent (H-16).

use crate::gateway_rig::{
    D, GatewayRig, P, attempted, cancelled, delivered, expected, outcomes, request, withdrawn,
};
use crate::rig::{DECODE, GATEWAY, NEIGHBOUR, PREFILL, hello, spec};
use handoff::gateway::{Effect, Event, Item, Outcome, Timer};
use handoff::{
    Conn, DecodeToGateway, Ending, Failure, Fault, Finish, GatewayToDecode, Refusal, Rejection,
    Role, Spec, Stage,
};

const INTEGRITY: Failure = Failure::Integrity(Fault::WrongChecksum);

fn prompt() -> Spec {
    spec(1, 14, 4)
}

#[test]
fn h6_answered_once_with_everything_in_order() {
    let mut g = GatewayRig::new();
    let attempt = g.prefilling(&prompt());
    let said = g.commit(attempt);
    let begin = Item::Begin {
        cached_tokens: 0,
        prefill: Some(crate::rig::Epoch::new(PREFILL)),
        decode: Some(crate::rig::Epoch::new(DECODE)),
    };
    assert_eq!(delivered(&said), [begin]);
    assert!(g.commit(attempt).is_empty(), "an answer begins once");
    let said = g.tokens(attempt, 0, Some(Finish::Stop));
    let item = Item::Tokens {
        choice: 0,
        token: 0,
        payload: vec![0],
        finish: Some(Finish::Stop),
    };
    assert_eq!(delivered(&said), [item]);
    assert!(g.prefill_ended(attempt, Ending::Finished).is_empty());
    let said = g.decode_ended(attempt, Ending::Finished);
    assert_eq!(outcomes(&said), [(1, Outcome::Answered)]);
    assert_eq!(g.machine.load(), 0);
    assert!(
        g.decode_ended(attempt, Ending::Cancelled).is_empty(),
        "nothing follows"
    );
    assert!(g.tokens(attempt, 0, None).is_empty());
}

#[test]
fn h9_tokens_before_committed_are_never_delivered() {
    let mut g = GatewayRig::new();
    let attempt = g.prefilling(&prompt());
    let said = g.tokens(attempt, 0, None);
    assert!(delivered(&said).is_empty());
    let failed = Outcome::Failed(Failure::PeerFailed(Stage::Decode));
    assert_eq!(
        outcomes(&said),
        [(1, failed)],
        "such a decode is not asked again"
    );
    assert!(cancelled(&said, attempt) && withdrawn(&said, attempt));
}

#[test]
fn h6_finished_without_every_choice_is_no_answer() {
    let mut g = GatewayRig::new();
    let two = Spec {
        choices: 2,
        ..prompt()
    };
    let attempt = g.committed(&two);
    g.tokens(attempt, 1, Some(Finish::Stop));
    let said = g.decode_ended(attempt, Ending::Finished);
    let failed = Outcome::Failed(Failure::PeerFailed(Stage::Decode));
    assert_eq!(outcomes(&said), [(1, failed)]);
    for choice in [2, u16::MAX] {
        let attempt = g.committed(&two);
        let said = g.tokens(attempt, choice, None);
        assert!(
            delivered(&said).is_empty(),
            "a choice that was not asked for"
        );
        assert_eq!(outcomes(&said).len(), 1);
    }
}

#[test]
fn h16_one_retry_with_new_ids_while_no_token_was_sent() {
    let failures = [
        INTEGRITY,
        Failure::Unsettled,
        Failure::Compute,
        Failure::PeerFailed(Stage::Transfer),
    ];
    for failure in failures {
        for committed in [false, true] {
            let mut g = GatewayRig::new();
            let first = g.prefilling(&prompt());
            if committed {
                g.commit(first);
            }
            let said = g.decode_ended(first, Ending::Failed(failure));
            let second = expected(&said).expect("a retry");
            assert!(second.n > first.n, "H-8, D-16: a new id");
            assert!(withdrawn(&said, first) && outcomes(&said).is_empty());
            assert!(g.commit(first).is_empty(), "the old attempt is detached");
            let said = g.decode_ended(second, Ending::Failed(failure));
            assert_eq!(
                outcomes(&said),
                [(1, Outcome::Failed(failure))],
                "exactly one"
            );
        }
    }
}

/// A worker that ends with its last words gets no further attempt, and the request hears what
/// happened, not that nobody is left.
#[test]
fn last_words_are_the_outcome_and_nothing_more_goes_to_whoever_said_them() {
    let failure = Failure::Integrity(Fault::FailStop);
    let refused = Outcome::Refused(Refusal::PeerUnavailable);
    for by_prefill in [false, true] {
        let mut g = GatewayRig::new();
        let attempt = g.prefilling(&prompt());
        if by_prefill {
            let said = g.prefill_ended(attempt, Ending::Failed(failure));
            assert!(outcomes(&said).is_empty(), "decode's word counts");
        }
        let ending = match by_prefill {
            true => Ending::Cancelled,
            false => Ending::Failed(failure),
        };
        let said = g.decode_ended(attempt, ending);
        assert!(expected(&said).is_none());
        assert_eq!(outcomes(&said), [(1, Outcome::Failed(failure))]);
        let said = g.request(&prompt());
        assert_eq!(outcomes(&said), [(2, refused.clone())]);
    }
}

#[test]
fn h16_no_retry_once_a_token_was_sent() {
    let mut g = GatewayRig::new();
    let attempt = g.committed(&prompt());
    g.tokens(attempt, 0, None);
    let said = g.decode_ended(attempt, Ending::Failed(INTEGRITY));
    assert_eq!(outcomes(&said), [(1, Outcome::Failed(INTEGRITY))]);
    assert!(expected(&said).is_none());
}

#[test]
fn h5_no_retry_of_what_would_end_the_same_way() {
    let late = Failure::Deadline(Stage::Transfer);
    let cases = [
        (
            Ending::Rejected(Rejection::Empty),
            Outcome::Rejected(Rejection::Empty),
        ),
        (
            Ending::Refused(Refusal::QueueFull),
            Outcome::Refused(Refusal::QueueFull),
        ),
        (Ending::Failed(late), Outcome::Failed(late)),
        (
            Ending::Failed(Failure::Form),
            Outcome::Failed(Failure::Form),
        ),
    ];
    for (ending, outcome) in cases {
        let mut g = GatewayRig::new();
        let attempt = g.prefilling(&prompt());
        let said = g.decode_ended(attempt, ending);
        assert!(expected(&said).is_none());
        assert_eq!(outcomes(&said), [(1, outcome)]);
    }
}

#[test]
fn d_refuses_the_expect_and_p_never_hears_of_it() {
    let mut g = GatewayRig::new();
    let attempt = expected(&g.request(&prompt())).unwrap();
    let said = g.decode_ended(attempt, Ending::Refused(Refusal::Draining));
    assert_eq!(outcomes(&said), [(1, Outcome::Refused(Refusal::Draining))]);
    let to_prefill = |effect: &Effect| matches!(effect, Effect::ToPrefill(..));
    assert!(!said.iter().any(to_prefill));
}

#[test]
fn h5_ps_rejection_is_final_and_ends_ds_stream() {
    let mut g = GatewayRig::new();
    let attempt = g.prefilling(&prompt());
    let why = Rejection::PromptTooLong {
        tokens: 14,
        limit: 8,
        by: Role::Prefill,
    };
    let said = g.prefill_ended(attempt, Ending::Rejected(why.clone()));
    assert_eq!(outcomes(&said), [(1, Outcome::Rejected(why))]);
    assert!(cancelled(&said, attempt));
}

#[test]
fn h6_ds_ending_wins_over_ps() {
    let mut g = GatewayRig::new();
    let attempt = g.prefilling(&prompt());
    let said = g.prefill_ended(attempt, Ending::Failed(Failure::Compute));
    assert!(outcomes(&said).is_empty(), "waits for D's");
    assert!(cancelled(&said, attempt));
    assert!(
        g.prefill_ended(attempt, Ending::Cancelled).is_empty(),
        "heard once"
    );
    let late = Failure::Deadline(Stage::Transfer);
    let said = g.decode_ended(attempt, Ending::Failed(late));
    assert_eq!(outcomes(&said), [(1, Outcome::Failed(late))]);
}

#[test]
fn what_p_failed_with_is_what_happened_if_d_was_only_cancelled() {
    let mut g = GatewayRig::new();
    for n in [1, 2] {
        let attempt = if n == 1 {
            g.prefilling(&prompt())
        } else {
            let epoch = crate::rig::Epoch::new(GATEWAY);
            handoff::AttemptId { epoch, n }
        };
        g.hear_decode(DecodeToGateway::Expecting { attempt });
        g.prefill_ended(attempt, Ending::Failed(Failure::Compute));
        let said = g.decode_ended(attempt, Ending::Cancelled);
        match n {
            1 => assert!(expected(&said).is_some(), "one retry"),
            _ => assert_eq!(outcomes(&said), [(1, Outcome::Failed(Failure::Compute))]),
        }
    }
}

#[test]
fn once_committed_p_has_no_say() {
    let mut g = GatewayRig::new();
    let attempt = g.committed(&prompt());
    assert!(
        g.prefill_ended(attempt, Ending::Failed(Failure::Unsettled))
            .is_empty()
    );
    assert!(g.tell(Event::Disconnected(P)).is_empty());
    g.tokens(attempt, 0, Some(Finish::Length));
    let said = g.decode_ended(attempt, Ending::Finished);
    assert_eq!(outcomes(&said), [(1, Outcome::Answered)]);
}

#[test]
fn a_lost_decode_is_retried_elsewhere_and_without_anywhere_it_is_refused() {
    let mut g = GatewayRig::new();
    g.decode(Conn(3), hello(NEIGHBOUR, Role::Decode));
    let first = g.prefilling(&prompt());
    let said = g.tell(Event::Disconnected(D));
    let to_other = said.iter().any(|effect| {
        matches!(
            effect,
            Effect::ToDecode(Conn(3), GatewayToDecode::Expect { .. })
        )
    });
    assert!(to_other && withdrawn(&said, first), "{said:?}");
    let said = g.tell(Event::Disconnected(Conn(3)));
    let failed = Outcome::Failed(Failure::PeerFailed(Stage::Decode));
    assert_eq!(
        outcomes(&said),
        [(1, failed)],
        "the second worker that it lost"
    );
}

#[test]
fn h6_the_client_leaves_and_both_workers_hear_of_it() {
    let mut g = GatewayRig::new();
    let attempt = g.prefilling(&prompt());
    let said = g.tell(Event::ClientGone(request(1)));
    assert_eq!(outcomes(&said), [(1, Outcome::ClientLeft)]);
    assert!(cancelled(&said, attempt) && withdrawn(&said, attempt));
    assert!(g.tell(Event::ClientGone(request(1))).is_empty());
    assert!(g.decode_ended(attempt, Ending::Cancelled).is_empty());
}

#[test]
fn h15_the_deadline_of_a_request_names_its_stage() {
    for (at, stage) in [Stage::Queue, Stage::Prefill, Stage::Decode]
        .into_iter()
        .enumerate()
    {
        let mut g = GatewayRig::new();
        match at {
            0 => drop(g.request(&prompt())),
            1 => drop(g.prefilling(&prompt())),
            _ => drop(g.committed(&prompt())),
        }
        let said = g.tell(Event::Fired(Timer::Request(request(1))));
        let failure = Failure::Deadline(stage);
        assert_eq!(outcomes(&said), [(1, Outcome::Failed(failure))]);
        assert!(
            g.tell(Event::Fired(Timer::Request(request(1)))).is_empty(),
            "once"
        );
    }
}

/// Regression: what D still said of a choice that was stopped failed the whole request.
#[test]
fn h6_a_stopped_choice_says_no_more_and_harms_nothing() {
    let mut g = GatewayRig::new();
    let two = Spec {
        choices: 2,
        ..prompt()
    };
    let attempt = g.committed(&two);
    g.tokens(attempt, 0, None);
    let said = g.tell(Event::StopChoice(request(1), 0));
    let stop = GatewayToDecode::StopChoice { attempt, choice: 0 };
    assert_eq!(said, [Effect::ToDecode(D, stop)]);
    assert!(g.tokens(attempt, 0, None).is_empty(), "was on the way");
    assert!(g.tokens(attempt, 0, Some(Finish::Length)).is_empty());
    assert_eq!(
        delivered(&g.tokens(attempt, 1, Some(Finish::Stop))).len(),
        1
    );
    let said = g.decode_ended(attempt, Ending::Finished);
    assert_eq!(outcomes(&said), [(1, Outcome::Answered)]);
}

#[test]
fn h8_an_attempt_is_spoken_for_by_its_own_workers_only() {
    let mut g = GatewayRig::new();
    g.decode(Conn(3), hello(NEIGHBOUR, Role::Decode));
    let attempt = g.prefilling(&prompt());
    let cached_tokens = 0;
    let committed = DecodeToGateway::Committed {
        attempt,
        cached_tokens,
    };
    assert!(g.tell(Event::FromDecode(Conn(3), committed)).is_empty());
    let ending = Ending::Finished;
    let ended = DecodeToGateway::Ended { attempt, ending };
    assert!(g.tell(Event::FromDecode(Conn(3), ended)).is_empty());
    let expecting = DecodeToGateway::Expecting { attempt };
    let said = g.hear_decode(expecting);
    assert!(attempted(&said).is_none(), "P is told once");
}

/// P is gone while D still waits for it: D's stream is ended, and the request tried once more.
#[test]
fn a_lost_prefill_ends_the_attempts_that_it_had_and_no_other() {
    let mut g = GatewayRig::new();
    let first = g.prefilling(&prompt());
    g.prefill(Conn(11), hello(97, Role::Prefill));
    let other = expected(&g.request(&prompt())).expect("told"); // to the other P
    let said = g.tell(Event::Disconnected(P));
    // Whose answer has a deadline.
    let cancels = |attempt| {
        let (timer, after_ms) = (Timer::Answer(attempt), 20_000);
        let cancel = GatewayToDecode::Cancel { attempt };
        [Effect::ToDecode(D, cancel), Effect::Arm { timer, after_ms }]
    };
    assert_eq!(said, cancels(first));
    let said = g.decode_ended(first, Ending::Cancelled);
    assert!(outcomes(&said).is_empty(), "it is tried again: {said:?}");
    let again = expected(&said).expect("D is told of another attempt");
    assert!(again != first && again != other);
    let said = g.tell(Event::Disconnected(Conn(11)));
    assert_eq!(said, [cancels(again), cancels(other)].concat());
}

#[test]
fn h8_a_request_of_another_gateway_life_is_nobodys() {
    let mut g = GatewayRig::new();
    g.prefilling(&prompt());
    let stranger = handoff::RequestId {
        epoch: crate::rig::Epoch::new(GATEWAY + 1),
        ..request(1)
    };
    assert!(g.tell(Event::ClientGone(stranger)).is_empty());
    assert_eq!(g.machine.load(), 1);
}

/// A choice that the request does not have is no choice that has finished.
#[test]
fn h6_a_stop_for_a_choice_that_there_is_not_finishes_nothing() {
    let mut g = GatewayRig::new();
    let attempt = g.committed(&prompt());
    g.tell(Event::StopChoice(request(1), 1));
    g.tokens(attempt, 0, Some(Finish::Stop));
    let said = g.decode_ended(attempt, Ending::Finished);
    assert_eq!(outcomes(&said), [(1, Outcome::Answered)]);
}
