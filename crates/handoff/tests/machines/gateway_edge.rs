//! The edge: which pair a request goes to, and what ends there before a worker hears of it.

use crate::gateway_rig::{D, GatewayRig, P, outcomes};
use crate::rig::{CONTEXT, DECODE, Epoch, GATEWAY, NEIGHBOUR, PREFILL, hello, spec};
use handoff::gateway::{Effect, Event, Outcome};
use handoff::{
    AttemptId, Capacity, Conn, DecodeToGateway, Differs, Ending, Failure, Fault, GatewayToDecode,
    Hangup, Hello, Refusal, Rejection, Role, Spec,
};

const INTEGRITY: Failure = Failure::Integrity(Fault::WrongChecksum);

fn prompt() -> Spec {
    spec(1, 14, 4)
}

#[test]
fn over_the_limit_at_the_edge_nothing_reaches_a_worker() {
    let mut g = GatewayRig::new();
    let said = g.request(&spec(1, CONTEXT as usize, 1));
    let why = Rejection::PromptTooLong {
        tokens: CONTEXT,
        limit: CONTEXT - 1,
        by: Role::Decode,
    };
    assert_eq!(outcomes(&said), [(1, Outcome::Rejected(why))]);
    assert_eq!(said.len(), 1, "{said:?}");
    assert_eq!(g.machine.load(), 0);
}

#[test]
fn without_a_pair_it_is_refused() {
    let mut g = GatewayRig::alone();
    g.prefill(P, hello(PREFILL, Role::Prefill));
    let refused = Outcome::Refused(Refusal::PeerUnavailable);
    assert_eq!(outcomes(&g.request(&prompt())), [(1, refused.clone())]);
    // A decode that lays its pages out in another way is no pair of this prefill.
    let other = Hello {
        layout: [8; 32],
        ..hello(DECODE, Role::Decode)
    };
    g.decode(D, other);
    assert!(g.machine.limits().is_empty());
    assert_eq!(outcomes(&g.request(&prompt())), [(2, refused)]);
}

/// Regression: the limit of a pair is computed with what a worker says of itself, and one that says
/// "pages of no token" took the gateway down.
#[test]
fn a_worker_that_says_nonsense_of_itself_is_hung_up_on() {
    let damage: [fn(Capacity) -> Option<Capacity>; 3] = [
        |c| Some(Capacity { page_size: 0, ..c }),
        |c| {
            let role = Role::Prefill;
            Some(Capacity { role, ..c })
        },
        |_| None,
    ];
    for damage in damage {
        let mut g = GatewayRig::alone();
        g.prefill(P, hello(PREFILL, Role::Prefill));
        let mut hello = hello(DECODE, Role::Decode);
        hello.capacity = hello.capacity.and_then(damage);
        let said = g.decode(D, hello);
        let [
            Effect::Close(D, Hangup::Incompatible { what, .. }),
            Effect::Disarm(_),
        ] = &said[..]
        else {
            panic!("{said:?}");
        };
        assert_eq!(*what, Differs::Capacity);
        assert_eq!(
            outcomes(&g.request(&prompt())).len(),
            1,
            "and nothing goes there"
        );
    }
}

#[test]
fn the_least_loaded_pair_that_can_take_it_gets_it() {
    let mut g = GatewayRig::new();
    g.decode(Conn(3), hello(NEIGHBOUR, Role::Decode));
    let small = Capacity {
        role: Role::Decode,
        pages: 2,
        page_size: 4,
        context: CONTEXT,
    };
    let tiny = Hello {
        capacity: Some(small),
        ..hello(98, Role::Decode)
    };
    g.decode(Conn(4), tiny);
    let to = |said: &[Effect]| {
        let to = said.iter().find_map(|effect| match effect {
            Effect::ToDecode(conn, GatewayToDecode::Expect { .. }) => Some(conn.0),
            _ => None,
        });
        to.expect("somebody is told")
    };
    let told: Vec<u64> = (0..4).map(|_| to(&g.request(&prompt()))).collect();
    assert_eq!(told, [2, 3, 2, 3], "the third never: it cannot hold it");
    assert_eq!(to(&g.request(&spec(1, 2, 2))), 4, "it can hold this");
}

/// What D is told to expect: which attempt, from which prefill's life.
fn told(said: &[Effect]) -> Option<(AttemptId, pages::Epoch)> {
    said.iter().find_map(|effect| match effect {
        Effect::ToDecode(
            _,
            GatewayToDecode::Expect {
                attempt, prefill, ..
            },
        ) => Some((*attempt, *prefill)),
        _ => None,
    })
}

/// D may know before the gateway does that a prefill is gone. With another there, the request is
/// that one's; the client is refused when nobody is left, and hears why the last one did.
#[test]
fn h15_what_one_pair_turns_away_goes_to_another() {
    for why in [
        Refusal::PeerUnavailable,
        Refusal::Draining,
        Refusal::QueueFull,
    ] {
        for by_decode in [true, false] {
            let mut g = GatewayRig::new();
            g.prefill(Conn(5), hello(NEIGHBOUR, Role::Prefill));
            let (first, from) = told(&g.request(&prompt())).expect("D is told");
            assert_eq!(from, Epoch::new(PREFILL));
            let said = match by_decode {
                true => g.decode_ended(first, Ending::Refused(why)),
                false => {
                    g.hear_decode(DecodeToGateway::Expecting { attempt: first });
                    g.prefill_ended(first, Ending::Refused(why));
                    g.decode_ended(first, Ending::Cancelled)
                }
            };
            assert!(outcomes(&said).is_empty(), "{said:?}");
            let (second, from) = told(&said).expect("the other pair");
            assert_eq!((from, second.n > first.n), (Epoch::new(NEIGHBOUR), true));
            let said = g.decode_ended(second, Ending::Refused(why));
            assert_eq!(outcomes(&said), [(1, Outcome::Refused(why))]);
            assert_eq!(g.machine.load(), 0);
        }
    }
}

/// A pair that had no room is asked again when the one that took the request has failed it.
#[test]
fn h15_who_had_no_room_is_asked_again_when_another_has_failed() {
    let mut g = GatewayRig::new();
    g.prefill(Conn(5), hello(NEIGHBOUR, Role::Prefill));
    let (first, _) = told(&g.request(&prompt())).expect("D is told");
    let said = g.decode_ended(first, Ending::Refused(Refusal::QueueFull));
    let (second, _) = told(&said).expect("the other pair");
    g.hear_decode(DecodeToGateway::Expecting { attempt: second });
    g.commit(second);
    g.tell(Event::Disconnected(Conn(5)));
    let said = g.decode_ended(second, Ending::Failed(Failure::Compute));
    let (_, from) = told(&said).expect("the first has room by now, perhaps");
    assert_eq!(from, Epoch::new(PREFILL));
}

#[test]
fn h16_what_a_tenant_may_have_is_not_asked_for_elsewhere() {
    let mut g = GatewayRig::new();
    g.prefill(Conn(5), hello(NEIGHBOUR, Role::Prefill));
    let (first, _) = told(&g.request(&prompt())).expect("D is told");
    let said = g.decode_ended(first, Ending::Refused(Refusal::TenantCap));
    assert_eq!(outcomes(&said), [(1, Outcome::Refused(Refusal::TenantCap))]);
}

/// Where all are full, the fleet is not asked one by one.
#[test]
fn h15_a_request_is_turned_away_by_few_before_it_is_told_so() {
    let mut g = GatewayRig::new();
    for n in 0..12 {
        g.prefill(Conn(100 + n), hello(100 + u128::from(n), Role::Prefill));
    }
    let mut said = g.request(&prompt());
    let mut asked = 0;
    while let Some((attempt, _)) = told(&said) {
        asked += 1;
        said = g.decode_ended(attempt, Ending::Refused(Refusal::QueueFull));
    }
    assert_eq!(asked, 5);
    assert_eq!(outcomes(&said), [(1, Outcome::Refused(Refusal::QueueFull))]);
}

#[test]
fn bounds_and_draining() {
    let mut g = GatewayRig::alone();
    let config = handoff::gateway::Config {
        max_requests: 1,
        max_retries: 0,
        ..handoff::gateway::Config::default()
    };
    g.machine = handoff::gateway::Gateway::new(config, hello(GATEWAY, Role::Gateway));
    g.prefill(P, hello(PREFILL, Role::Prefill));
    g.decode(D, hello(DECODE, Role::Decode));
    let attempt = g.prefilling(&prompt());
    let refused = |why| Outcome::Refused(why);
    assert_eq!(
        outcomes(&g.request(&prompt())),
        [(2, refused(Refusal::QueueFull))]
    );
    let said = g.decode_ended(attempt, Ending::Failed(INTEGRITY));
    assert_eq!(
        outcomes(&said),
        [(1, Outcome::Failed(INTEGRITY))],
        "no retries asked for"
    );
    g.tell(Event::Drain);
    assert_eq!(
        outcomes(&g.request(&prompt())),
        [(3, refused(Refusal::Draining))]
    );
}

/// Load is what a pair has together.
#[test]
fn a_pair_of_which_neither_is_busy_goes_before_one_of_which_half_is() {
    let mut g = GatewayRig::new();
    g.prefill(Conn(11), hello(97, Role::Prefill));
    g.decode(Conn(12), hello(NEIGHBOUR, Role::Decode));
    let pair = |said: &[Effect]| {
        said.iter().find_map(|effect| match effect {
            Effect::ToDecode(conn, GatewayToDecode::Expect { prefill, .. }) => {
                Some((*prefill, *conn))
            }
            _ => None,
        })
    };
    let (first, second) = (crate::rig::Epoch::new(PREFILL), crate::rig::Epoch::new(97));
    let told: Vec<_> = (0..4).map(|_| pair(&g.request(&prompt()))).collect();
    let (one, other) = ((first, D), (second, Conn(12)));
    assert_eq!(told, [one, other, one, other].map(Some));
}

/// A prompt that is too long everywhere is told the limit that it would have to meet.
#[test]
fn h5_the_error_speaks_of_the_pair_with_the_most_room() {
    let small = |context| Capacity {
        role: Role::Decode,
        pages: context,
        page_size: 4,
        context,
    };
    for contexts in [[20, 30], [30, 20]] {
        let mut g = GatewayRig::alone();
        g.prefill(P, hello(PREFILL, Role::Prefill));
        for (conn, context) in contexts.into_iter().enumerate() {
            let (conn, life) = (conn as u64, 90 + conn as u128);
            let hello = Hello {
                capacity: Some(small(context)),
                ..hello(life, Role::Decode)
            };
            g.decode(Conn(20 + conn), hello);
        }
        let (tokens, limit, by) = (40, 29, Role::Decode);
        let why = Rejection::PromptTooLong { tokens, limit, by };
        let said = g.request(&spec(1, 40, 1));
        assert_eq!(outcomes(&said), [(1, Outcome::Rejected(why))]);
        let (prompt, max_new, limit) = (10, 40, 30);
        let why = Rejection::ContextTooLong {
            prompt,
            max_new,
            limit,
            by,
        };
        let said = g.request(&spec(1, 10, 40));
        assert_eq!(outcomes(&said), [(2, Outcome::Rejected(why))]);
        // Two pages of prompt, and for every choice one that it writes.
        let many = Spec {
            choices: 40,
            ..spec(1, 5, 3)
        };
        let (needed, pool) = (42, 30);
        let why = Rejection::TooManyPages { needed, pool, by };
        assert_eq!(outcomes(&g.request(&many)), [(3, Outcome::Rejected(why))]);
    }
}

/// What the gateway says of itself to whoever asks.
#[test]
fn what_is_up_and_what_it_can_take_can_be_asked() {
    let mut g = GatewayRig::alone();
    assert_eq!((g.machine.limits(), g.machine.load()), (vec![], 0));
    g.prefill(P, hello(PREFILL, Role::Prefill));
    g.decode(D, hello(DECODE, Role::Decode));
    let of = |role| hello(0, role).capacity.expect("a worker has one");
    let (p, d) = (of(Role::Prefill), of(Role::Decode));
    let up = [PREFILL, DECODE].map(crate::rig::Epoch::new);
    assert_eq!(g.machine.workers(), [(up[0], p), (up[1], d)]);
    let large = handoff::Limit::of_pair(p, d);
    assert_eq!(g.machine.limits(), [large]);
    // The largest pair comes first: it is what is advertised.
    let small = Capacity { context: 20, ..d };
    let tiny = Hello {
        capacity: Some(small),
        ..hello(98, Role::Decode)
    };
    g.decode(Conn(4), tiny);
    let tiny = handoff::Limit::of_pair(p, small);
    assert_eq!(g.machine.limits(), [large, tiny]);
    g.request(&prompt());
    g.request(&prompt());
    assert_eq!(g.machine.load(), 2);
    g.tell(Event::ClientGone(handoff::RequestId {
        epoch: crate::rig::Epoch::new(GATEWAY),
        n: 1,
    }));
    assert_eq!(g.machine.load(), 1);
}
