//! What prefill waits for at decode, and what ends each wait (H-15): a D that is stopped and not gone
//! keeps its connections, and must not keep anything of anybody else's.

use crate::prefill_rig::{
    D, G, PrefillRig, arena, detached, endings, handoff, offer, offers, submitted, to_decode,
};
use crate::rig::Epoch;
use crate::rig::{DECODE, NEIGHBOUR, attempt, hello, link, spec};
use handoff::prefill::{Effect, Event, Timer};
use handoff::{
    Answers, Closing, Conn, DecodeToPrefill, Ending, Failure, GatewayToPrefill, Hangup,
    PrefillToDecode, Role, Stage,
};

const AGAIN: Conn = Conn(3);
const OTHER: Conn = Conn(4);

fn attempt_for(p: &mut PrefillRig, life: u128, n: u64) -> Vec<Effect> {
    p.tell(Event::FromGateway(
        G,
        GatewayToPrefill::Attempt {
            attempt: attempt(n),
            spec: spec(n as u32, 4, 1),
            decode: Epoch::new(life),
            deadline_ms: 1000,
        },
    ))
}

fn with_two_decodes(pages: u32) -> PrefillRig {
    let mut p = PrefillRig::connected(pages);
    p.dial(OTHER, hello(NEIGHBOUR, Role::Decode));
    p.tell(Event::FromDecode(OTHER, DecodeToPrefill::Synced));
    p
}

fn answer_of(n: u64) -> Timer {
    Timer::Answer(offer(n))
}

fn arms(said: &[Effect], timer: Timer) -> bool {
    said.iter()
        .any(|effect| matches!(effect, Effect::Arm { timer: armed, .. } if *armed == timer))
}

fn disarms(said: &[Effect], timer: Timer) -> bool {
    said.contains(&Effect::Disarm(timer))
}

fn hung_up(said: &[Effect], conn: Conn) -> bool {
    said.contains(&Effect::Close(conn, Hangup::Deadline))
}

/// Regression: jobs of a D that hangs kept their places against all others' when their attempts had
/// ended, with all pages free and no deadline armed: nobody was offered anything any more.
#[test]
fn h15_a_d_that_hangs_takes_no_place_of_a_healthy_one() {
    for ended in [true, false] {
        let mut p = with_two_decodes(64);
        for n in 1..=8 {
            assert_eq!(offers(&attempt_for(&mut p, DECODE, n)).len(), 1);
        }
        assert!(
            offers(&attempt_for(&mut p, DECODE, 9)).is_empty(),
            "its own are bounded"
        );
        for n in 1..=9 * u64::from(ended) {
            p.tell(Event::Fired(Timer::Attempt(attempt(n))));
        }
        if ended {
            assert_eq!((p.counts().free, p.machine.load()), (64, (0, 8)));
        }
        let said = attempt_for(&mut p, NEIGHBOUR, 10);
        assert_eq!(
            offers(&said).len(),
            1,
            "the healthy one is offered work: {said:?}"
        );
    }
}

/// A queue in which attempts for a D that hangs stand first holds up nobody behind them.
#[test]
fn attempts_for_a_d_without_places_are_overtaken() {
    let mut p = with_two_decodes(64);
    for n in 1..=20 {
        attempt_for(&mut p, DECODE, n);
    }
    for n in 21..=28 {
        assert_eq!(offers(&attempt_for(&mut p, NEIGHBOUR, n)).len(), 1, "{n}");
    }
}

#[test]
fn h15_an_offer_that_is_not_answered_is_taken_back_and_its_connection_closed() {
    let mut p = PrefillRig::connected(2);
    let said = p.attempt(1, &spec(1, 8, 1));
    let of = offers(&said)[0];
    assert!(arms(&said, Timer::Answer(of)), "{said:?}");
    assert_eq!(p.counts().free, 0);
    let said = p.tell(Event::Fired(Timer::Answer(of)));
    assert!(hung_up(&said, D), "{said:?}");
    assert!(arms(&said, Timer::Peer(Epoch::new(DECODE))), "{said:?}");
    assert_eq!(p.counts().free, 2, "its pages are others' turn");
    assert!(endings(&said).is_empty(), "D may be back in time");
    // Sync does not list it: P holds nothing for it, and nothing was written.
    let (tickets, offered) = (vec![], vec![]);
    let sync = PrefillToDecode::Sync {
        under: link(AGAIN),
        tickets,
        offers: offered,
    };
    let said = p.dial(AGAIN, hello(DECODE, Role::Decode));
    assert_eq!(to_decode(&said)[..], [sync]);
    let said = p.tell(Event::FromDecode(AGAIN, DecodeToPrefill::Synced));
    let again = offers(&said);
    assert!(again.len() == 1 && again[0] != of, "offered anew: {said:?}");
    let said = p.tell(Event::FromDecode(
        AGAIN,
        DecodeToPrefill::Busy {
            offer: again[0],
            after_ms: 5,
        },
    ));
    assert!(disarms(&said, Timer::Answer(again[0])), "{said:?}");
}

/// The answer to a certificate: with the attempt over nothing else would ever end this wait.
#[test]
fn h15_a_certificate_that_is_not_answered_ends_with_the_life() {
    let mut p = PrefillRig::connected(16);
    let of = p.ticketed(1, &spec(1, 8, 1));
    let said = p.tell(Event::Fired(Timer::Attempt(attempt(1))));
    let closed = PrefillToDecode::Closed {
        handoff: handoff(1),
        rank: 0,
        how: Closing::Abandoned {
            why: Some(handoff::Failure::Deadline(handoff::Stage::Prefill)),
        },
    };
    assert_eq!(to_decode(&said), [closed]);
    assert!(arms(&said, Timer::Answer(of)), "{said:?}");
    let said = p.tell(Event::Fired(Timer::Answer(of)));
    assert!(hung_up(&said, D), "{said:?}");
    let said = p.tell(Event::Fired(Timer::Peer(Epoch::new(DECODE))));
    assert_eq!(detached(&said), [arena(1)]);
    p.tell(Event::Detached { arena: arena(1) });
    assert!(p.machine.at_rest(), "{:?}", p.machine.load());
}

/// Every answer is progress and gives the next one its own time; when none is owed none is waited for.
#[test]
fn h15_each_statement_is_an_answer_that_is_owed() {
    let mut p = PrefillRig::new(16, 1, false, |config| config.max_flying = 4);
    p.connect(D);
    let of = p.ticketed(1, &spec(1, 16, 1));
    let said = p.chunk(of, 16);
    let writes: Vec<_> = submitted(&said).iter().map(|(id, _)| *id).collect();
    assert_eq!(writes.len(), 2);
    let said = p.written(writes[0], true);
    assert!(arms(&said, Timer::Answer(of)), "{said:?}");
    let said = p.written(writes[1], true);
    assert!(
        !arms(&said, Timer::Answer(of)),
        "the oldest has its time: {said:?}"
    );
    for batch in [0, 1] {
        let said = p.taken(1, batch);
        assert!(arms(&said, Timer::Answer(of)), "{said:?}");
        let said = p.taken(1, batch);
        assert!(said.is_empty(), "said twice it is no progress: {said:?}");
    }
    let said = p.hear_decode(DecodeToPrefill::Committed {
        handoff: handoff(1),
    });
    assert!(disarms(&said, Timer::Answer(of)), "{said:?}");
    assert!(p.machine.at_rest());
    assert!(
        p.tell(Event::Fired(Timer::Answer(of))).is_empty(),
        "too late"
    );
}

/// D cannot commit before all ranks have closed, so it owes no certificate its answer before.
#[test]
fn the_certificate_of_one_rank_is_owed_nothing_while_another_is_computing() {
    let mut p = PrefillRig::new(16, 2, false, |_| ());
    p.connect(D);
    let of = offers(&p.attempt(1, &spec(1, 8, 1)))[0];
    p.ticket(of, 1, 2, 1);
    p.attached(1, true);
    let said = p.chunk(of, 8);
    assert_eq!(submitted(&said).len(), 1, "rank 1's arena is not there yet");
    let write = submitted(&said)[0].0;
    p.written(write, true);
    let said = p.taken(1, 0);
    assert!(disarms(&said, Timer::Answer(of)), "{said:?}");
    let said = p.attached(2, true);
    let write = submitted(&said)[0].0;
    let said = p.written(write, true);
    assert!(arms(&said, Timer::Answer(of)), "both have closed: {said:?}");
}

/// It greets and answers nothing, again and again: its life is given up.
#[test]
fn h15_a_d_that_greets_and_never_answers_is_given_up() {
    let mut p = PrefillRig::connected(16);
    let of = p.ticketed(1, &spec(1, 8, 1));
    p.tell(Event::Fired(Timer::Attempt(attempt(1))));
    p.tell(Event::Fired(Timer::Answer(of)));
    p.connect(AGAIN);
    let said = p.tell(Event::Fired(Timer::Answer(of)));
    assert!(hung_up(&said, AGAIN), "{said:?}");
    assert_eq!(detached(&said), [arena(1)], "{said:?}");
    assert!(disarms(&said, Timer::Peer(Epoch::new(DECODE))));
    p.tell(Event::Detached { arena: arena(1) });
    assert!(p.machine.at_rest(), "{:?}", p.machine.load());
}

/// One answer in between, and it is slow and not silent.
#[test]
fn an_answer_between_two_deadlines_shows_life() {
    let mut p = PrefillRig::connected(16);
    let of = p.ticketed(1, &spec(1, 8, 1));
    p.tell(Event::Fired(Timer::Attempt(attempt(1))));
    p.tell(Event::Fired(Timer::Answer(of)));
    p.connect(AGAIN);
    let next = offers(&p.attempt(2, &spec(2, 8, 1)))[0];
    let busy = DecodeToPrefill::Busy {
        offer: next,
        after_ms: 5,
    };
    p.tell(Event::FromDecode(AGAIN, busy));
    let said = p.tell(Event::Fired(Timer::Answer(of)));
    assert!(
        hung_up(&said, AGAIN) && detached(&said).is_empty(),
        "{said:?}"
    );
}

#[test]
fn h15_a_d_that_does_not_greet_is_hung_up_on() {
    for hello_came in [false, true] {
        let mut p = PrefillRig::new(16, 1, false, |_| ());
        let timer = Timer::Greeting(D);
        assert!(arms(&p.tell(Event::Dialled(D)), timer));
        if hello_came {
            let hello = DecodeToPrefill::Hello(hello(DECODE, Role::Decode));
            let said = p.hear_decode(hello);
            assert!(!disarms(&said, timer), "Synced is owed as well: {said:?}");
        }
        let said = p.tell(Event::Fired(timer));
        assert!(hung_up(&said, D), "{said:?}");
        let waits = arms(&said, Timer::Peer(Epoch::new(DECODE)));
        assert_eq!(
            waits, hello_came,
            "a life that is known may come back: {said:?}"
        );
        p.dial(AGAIN, hello(DECODE, Role::Decode));
        let said = p.tell(Event::FromDecode(AGAIN, DecodeToPrefill::Synced));
        assert!(disarms(&said, Timer::Greeting(AGAIN)), "{said:?}");
        assert!(p.tell(Event::Fired(Timer::Greeting(AGAIN))).is_empty());
        assert_eq!(offers(&p.attempt(1, &spec(1, 8, 1))).len(), 1);
    }
}

/// A connection that ends, or is replaced, before it was greeted leaves no timer behind.
#[test]
fn a_connection_that_ends_early_is_waited_for_no_more() {
    let mut p = PrefillRig::new(16, 1, false, |_| ());
    p.tell(Event::Dialled(D));
    assert!(disarms(&p.tell(Event::Disconnected(D)), Timer::Greeting(D)));
    p.dial(AGAIN, hello(DECODE, Role::Decode));
    let said = p.dial(OTHER, hello(DECODE, Role::Decode));
    assert!(said.contains(&Effect::Close(AGAIN, Hangup::Replaced)));
    assert!(disarms(&said, Timer::Greeting(AGAIN)), "{said:?}");
}

/// What is owed dies with the connection, and is owed anew on the next.
#[test]
fn deadlines_of_answers_go_with_the_connection() {
    let mut p = PrefillRig::connected(16);
    let of = p.ticketed(1, &spec(1, 8, 1));
    p.tell(Event::Fired(Timer::Attempt(attempt(1))));
    assert!(disarms(&p.tell(Event::Disconnected(D)), Timer::Answer(of)));
    p.dial(AGAIN, hello(DECODE, Role::Decode));
    let said = p.tell(Event::FromDecode(AGAIN, DecodeToPrefill::Synced));
    assert!(arms(&said, Timer::Answer(of)), "{said:?}");
    let (handoff, rank, answers) = (handoff(1), 0, Answers::Closed);
    let ended = DecodeToPrefill::Ended {
        handoff,
        rank,
        answers,
    };
    let said = p.tell(Event::FromDecode(AGAIN, ended));
    assert!(disarms(&said, answer_of(of.n)), "{said:?}");
    assert!(p.machine.at_rest());
}

/// The attempts of a D that is given up end with its name.
#[test]
fn a_d_that_never_answers_offers_fails_what_was_meant_for_it() {
    let mut p = PrefillRig::connected(16);
    let of = offers(&p.attempt(1, &spec(1, 8, 1)))[0];
    p.tell(Event::Fired(Timer::Answer(of)));
    p.dial(AGAIN, hello(DECODE, Role::Decode));
    let said = p.tell(Event::FromDecode(AGAIN, DecodeToPrefill::Synced));
    let of = offers(&said)[0];
    let said = p.tell(Event::Fired(Timer::Answer(of)));
    let failure = Failure::PeerFailed(Stage::Decode);
    assert_eq!(endings(&said), [(1, Ending::Failed(failure))]);
    assert!(p.machine.at_rest(), "{:?}", p.machine.load());
}
