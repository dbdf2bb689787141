//! What the gateway waits for at its workers besides a whole answer, and what ends it (H-15).

use crate::gateway_rig::{D, GatewayRig, P, attempted, cancelled, expected, outcomes};
use crate::rig::{DECODE, NEIGHBOUR, PREFILL, hello, spec};
use handoff::gateway::{Effect, Event, Outcome, Timer};
use handoff::{
    AttemptId, Conn, DecodeToGateway, Ending, Failure, GatewayToDecode, Hangup, Refusal, Role,
    Stage,
};

const OTHER: Conn = Conn(9);

fn with_two_decodes() -> GatewayRig {
    let mut g = GatewayRig::new();
    g.decode(OTHER, hello(NEIGHBOUR, Role::Decode));
    g
}

fn arms(said: &[Effect], timer: Timer) -> bool {
    let after_ms = 20_000;
    said.contains(&Effect::Arm { timer, after_ms })
}

fn disarms(said: &[Effect], timer: Timer) -> bool {
    said.contains(&Effect::Disarm(timer))
}

fn hung_up(said: &[Effect], conn: Conn) -> bool {
    said.contains(&Effect::Close(conn, Hangup::Deadline))
}

fn announced_to(said: &[Effect]) -> Option<(Conn, AttemptId)> {
    said.iter().find_map(|effect| match effect {
        Effect::ToDecode(conn, GatewayToDecode::Expect { attempt, .. }) => Some((*conn, *attempt)),
        _ => None,
    })
}

/// Regression: requests went to a D that had stopped until their own deadlines.
#[test]
fn h15_a_d_that_does_not_answer_expect_is_hung_up_on_and_its_requests_go_elsewhere() {
    let mut g = with_two_decodes();
    let said = g.request(&spec(1, 4, 1));
    let (conn, attempt) = announced_to(&said).expect("announced");
    assert_eq!(conn, D);
    assert!(arms(&said, Timer::Answer(attempt)), "{said:?}");
    let said = g.tell(Event::Fired(Timer::Answer(attempt)));
    assert!(hung_up(&said, D), "{said:?}");
    let (conn, again) = announced_to(&said).expect("tried again");
    assert_eq!(
        (conn, again != attempt),
        (OTHER, true),
        "new ids, the other D"
    );
    assert!(outcomes(&said).is_empty());
    // Nothing is given to it before it has said Hello again.
    for _ in 0..3 {
        let said = g.request(&spec(1, 4, 1));
        assert_eq!(announced_to(&said).map(|(conn, _)| conn), Some(OTHER));
    }
    g.decode(Conn(11), hello(DECODE, Role::Decode));
    let said = g.request(&spec(1, 4, 1));
    assert_eq!(announced_to(&said).map(|(conn, _)| conn), Some(Conn(11)));
}

#[test]
fn an_answer_in_time_disarms_and_nothing_else_is_hung_up_on() {
    for ended in [false, true] {
        let mut g = GatewayRig::new();
        let attempt = expected(&g.request(&spec(1, 4, 1))).unwrap();
        let said = match ended {
            false => g.hear_decode(DecodeToGateway::Expecting { attempt }),
            true => g.decode_ended(attempt, Ending::Refused(Refusal::QueueFull)),
        };
        assert!(disarms(&said, Timer::Answer(attempt)), "{said:?}");
        assert!(g.tell(Event::Fired(Timer::Answer(attempt))).is_empty());
    }
}

/// The client leaves, or the request's time is over, while D owes an answer: nobody waits any more.
#[test]
fn whoever_leaves_takes_the_wait_along() {
    let mut g = GatewayRig::new();
    let attempt = expected(&g.request(&spec(1, 4, 1))).unwrap();
    let said = g.tell(Event::ClientGone(crate::gateway_rig::request(1)));
    assert!(disarms(&said, Timer::Answer(attempt)), "{said:?}");
    assert!(g.tell(Event::Fired(Timer::Answer(attempt))).is_empty());
}

/// P has failed and D is asked to end the attempt: its answer has a deadline, too.
#[test]
fn h15_a_d_that_does_not_answer_cancel_is_hung_up_on() {
    let mut g = GatewayRig::new();
    let attempt = g.prefilling(&spec(1, 4, 1));
    let failure = Failure::PeerFailed(Stage::Prefill);
    let said = g.prefill_ended(attempt, Ending::Failed(failure));
    assert!(cancelled(&said, attempt) && arms(&said, Timer::Answer(attempt)));
    let said = g.tell(Event::Fired(Timer::Answer(attempt)));
    assert!(hung_up(&said, D), "{said:?}");
    let refused = Outcome::Refused(Refusal::PeerUnavailable);
    assert_eq!(outcomes(&said), [(1, refused)], "nobody else is there");
}

/// Others on the same D hear of it at the same moment: an answer that has begun fails, one that has
/// not is tried again.
#[test]
fn hanging_up_ends_what_else_is_there() {
    let mut g = with_two_decodes();
    let running = g.committed(&spec(1, 4, 2));
    g.tokens(running, 0, None);
    let waiting = announced_to(&g.request(&spec(2, 4, 1))).unwrap();
    assert_eq!(waiting.0, OTHER, "the least loaded");
    let next = announced_to(&g.request(&spec(3, 4, 1))).unwrap();
    assert_eq!(next.0, D);
    let said = g.tell(Event::Fired(Timer::Answer(next.1)));
    let failure = Failure::PeerFailed(Stage::Decode);
    assert_eq!(outcomes(&said), [(1, Outcome::Failed(failure))]);
    assert_eq!(announced_to(&said).map(|(conn, _)| conn), Some(OTHER));
}

#[test]
fn h15_a_worker_that_does_not_say_hello_is_hung_up_on() {
    let mut g = GatewayRig::alone();
    let said = g.tell(Event::PrefillDialled(P));
    assert!(arms(&said, Timer::Greeting(P)), "{said:?}");
    let said = g.tell(Event::DecodeDialled(D));
    assert!(arms(&said, Timer::Greeting(D)), "{said:?}");
    for conn in [P, D] {
        assert!(hung_up(&g.tell(Event::Fired(Timer::Greeting(conn))), conn));
        assert!(g.tell(Event::Fired(Timer::Greeting(conn))).is_empty());
    }
    let said = g.prefill(P, hello(PREFILL, Role::Prefill));
    assert!(disarms(&said, Timer::Greeting(P)), "{said:?}");
    let said = g.decode(D, hello(DECODE, Role::Decode));
    assert!(disarms(&said, Timer::Greeting(D)), "{said:?}");
    assert!(g.tell(Event::Fired(Timer::Greeting(D))).is_empty());
    g.tell(Event::DecodeDialled(OTHER));
    let said = g.tell(Event::Disconnected(OTHER));
    assert!(disarms(&said, Timer::Greeting(OTHER)), "{said:?}");
    let attempt = expected(&g.request(&spec(1, 4, 1))).unwrap();
    let said = g.hear_decode(DecodeToGateway::Expecting { attempt });
    assert_eq!(attempted(&said), Some(attempt));
}
