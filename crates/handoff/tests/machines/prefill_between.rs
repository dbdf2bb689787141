//! Prefill between two gateways and two decodes: nobody's word, loss or deadline touches what is
//! another's (law: identity is ours).

use crate::prefill_rig::{
    D, G, PrefillRig, arena, detached, endings, handoff, offer, offers, submitted, to_decode,
};
use crate::rig::Epoch;
use crate::rig::{DECODE, GATEWAY, PREFILL, attempt, hello, link, spec};
use handoff::prefill::{Effect, Event, Timer};
use handoff::{
    Answers, ArenaId, AttemptId, Closing, Conn, DecodeToPrefill, Ending, Failure, GatewayToPrefill,
    HandoffId, Hangup, LandingSite, OfferId, PrefillToDecode, Role, Stage,
};
use pages::StatedTag;

/// The other decode, and the other gateway.
const D2: Conn = Conn(3);
const G2: Conn = Conn(4);

fn of_g2(n: u64) -> AttemptId {
    let epoch = Epoch::new(GATEWAY + 100);
    AttemptId { epoch, n }
}

fn scene() -> PrefillRig {
    let mut p = PrefillRig::connected(16);
    p.dial(D2, hello(DECODE + 100, Role::Decode));
    p.tell(Event::FromDecode(D2, DecodeToPrefill::Synced));
    let of_g2 = hello(GATEWAY + 100, Role::Gateway);
    p.tell(Event::FromGateway(G2, GatewayToPrefill::Hello(of_g2)));
    p
}

/// An attempt of 14 tokens, four pages.
fn ask(p: &mut PrefillRig, conn: Conn, attempt: AttemptId, decode: u128) -> Vec<Effect> {
    let message = GatewayToPrefill::Attempt {
        attempt,
        spec: spec(1, 14, 1),
        decode: Epoch::new(decode),
        deadline_ms: 1000,
    };
    p.tell(Event::FromGateway(conn, message))
}

/// A ticket of the other decode, into its own arena.
fn ticket_of_d2(offer: OfferId) -> DecodeToPrefill {
    let epoch = Epoch::new(DECODE + 100);
    let site = LandingSite {
        rank: 0,
        arena: ArenaId { epoch, n: 1 },
        slots: 4,
        address: vec![1],
    };
    DecodeToPrefill::Ticket {
        offer,
        handoff: HandoffId { epoch, n: 1 },
        under: link(D2),
        tags: (1..=4).map(StatedTag).collect(),
        first: 0,
        landings: vec![site],
        targets: Vec::new(),
    }
}

/// Attempt 2 of the first gateway at the other decode, its ticket, its arena attached.
fn ticketed_by_d2(p: &mut PrefillRig) -> OfferId {
    let of = offers(&ask(p, G, attempt(2), DECODE + 100))[0];
    p.tell(Event::FromDecode(D2, ticket_of_d2(of)));
    let epoch = Epoch::new(DECODE + 100);
    let arena = ArenaId { epoch, n: 1 };
    p.tell(Event::Attached { arena, ok: true });
    of
}

#[test]
fn a_gateway_that_is_gone_has_withdrawn_its_own_attempts() {
    let mut p = scene();
    let first = offers(&ask(&mut p, G, attempt(1), DECODE))[0];
    let second = offers(&ask(&mut p, G2, of_g2(1), DECODE))[0];
    assert_eq!(p.counts().free, 8);
    let said = p.tell(Event::Disconnected(G));
    assert!(endings(&said).is_empty(), "nobody is there to be told");
    assert!(said.contains(&Effect::Disarm(Timer::Attempt(attempt(1)))));
    assert_eq!(p.counts().free, 12, "its pages, and only its");
    p.ticket(first, 1, 4, 1);
    p.ticket(second, 2, 4, 1);
    assert_eq!(p.machine.runnable(), [second]);
    let said = ask(&mut p, G, attempt(2), DECODE);
    let close = Effect::Close(G, Hangup::OutOfOrder);
    assert_eq!(said, [close], "it has not said Hello again");
}

/// Whoever has said Hello to us speaks, and speaks for what is his.
#[test]
fn who_has_not_said_hello_asks_nothing_and_nobody_withdraws_what_is_anothers() {
    let mut p = scene();
    let stranger = Conn(9);
    let said = ask(&mut p, stranger, attempt(1), DECODE);
    assert_eq!(said, [Effect::Close(stranger, Hangup::OutOfOrder)]);
    ask(&mut p, G, attempt(1), DECODE);
    let attempt = attempt(1);
    let withdraw = GatewayToPrefill::Withdraw { attempt };
    let said = p.tell(Event::FromGateway(G2, withdraw));
    assert!(said.is_empty(), "{said:?}");
    assert_eq!(p.counts().free, 12, "it still holds its pages");
    assert_eq!(endings(&p.withdraw(1)), [(1, Ending::Cancelled)]);
}

/// The timer of an attempt that waits for its time is ended with it, and no other is.
#[test]
fn only_who_waits_has_a_timer_for_it() {
    for waits in [true, false] {
        let mut p = scene();
        let offer = offers(&ask(&mut p, G, attempt(1), DECODE))[0];
        if waits {
            let after_ms = 20;
            p.hear_decode(DecodeToPrefill::Busy { offer, after_ms });
        }
        let said = p.withdraw(1);
        let retry = Effect::Disarm(Timer::Retry(attempt(1)));
        assert_eq!(said.contains(&retry), waits, "{said:?}");
    }
}

#[test]
fn an_attempt_whose_decode_is_away_does_not_hold_up_the_others() {
    let mut p = scene();
    let away = offers(&ask(&mut p, G, attempt(1), DECODE))[0];
    let (offer, after_ms) = (away, 20);
    p.hear_decode(DecodeToPrefill::Busy { offer, after_ms });
    p.tell(Event::Disconnected(D));
    let said = p.tell(Event::Fired(Timer::Retry(attempt(1))));
    assert!(offers(&said).is_empty(), "nobody to offer it to");
    let said = ask(&mut p, G, attempt(2), DECODE + 100);
    assert_eq!(offers(&said).len(), 1, "it is the second in the queue");
    assert_eq!(p.machine.load(), (1, 1));
}

#[test]
fn h8_a_ticket_for_an_offer_to_another_decode_is_closed_at_once() {
    let mut p = scene();
    let of = offers(&ask(&mut p, G, attempt(1), DECODE))[0];
    let said = p.tell(Event::FromDecode(D2, ticket_of_d2(of)));
    let [PrefillToDecode::Closed { how, .. }] = &to_decode(&said)[..] else {
        panic!("{said:?}");
    };
    assert_eq!(*how, Closing::Abandoned { why: None });
    assert!(p.machine.runnable().is_empty(), "nothing may be computed");
    p.ticket(of, 1, 4, 1);
    assert_eq!(p.machine.runnable(), [of], "with the right one it may");
}

#[test]
fn h18_a_lost_decode_ends_what_was_for_it_alone() {
    let mut p = scene();
    p.ticketed(1, &spec(1, 14, 1));
    let kept = ticketed_by_d2(&mut p);
    let write = submitted(&p.chunk(kept, 8))[0].0; // in flight meanwhile
    let queued = offers(&ask(&mut p, G, attempt(3), DECODE))[0];
    let (offer, after_ms) = (queued, 20);
    p.hear_decode(DecodeToPrefill::Busy { offer, after_ms });
    let other = offers(&ask(&mut p, G, attempt(4), DECODE + 100))[0];
    let (offer, after_ms) = (other, 20);
    let busy = DecodeToPrefill::Busy { offer, after_ms };
    p.tell(Event::FromDecode(D2, busy));
    p.tell(Event::Disconnected(D));
    let said = p.tell(Event::Fired(Timer::Peer(Epoch::new(DECODE))));
    let failed = Ending::Failed(Failure::PeerFailed(Stage::Decode));
    assert_eq!(endings(&said), [(1, failed.clone()), (3, failed)]);
    assert_eq!(detached(&said), [arena(1)]);
    p.tell(Event::Detached { arena: arena(1) });
    assert_eq!(p.machine.runnable(), [kept]);
    assert_eq!(p.machine.load().1, 1, "nobody answers for the lost one");
    let epoch = Epoch::new(DECODE + 100);
    let handoff = HandoffId { epoch, n: 1 };
    let cancel = DecodeToPrefill::Cancel { handoff };
    let said = p.tell(Event::FromDecode(D2, cancel));
    assert!(to_decode(&said).is_empty(), "not before it has completed");
    let said = p.written(write, true);
    let [
        PrefillToDecode::Landed(_),
        PrefillToDecode::Closed { how, .. },
    ] = &to_decode(&said)[..]
    else {
        panic!("{said:?}");
    };
    assert_eq!(*how, Closing::Abandoned { why: None });
    assert_eq!(p.machine.load().1, 1, "remembered until it is answered");
    let said = p.tell(Event::Fired(Timer::Retry(attempt(4))));
    assert_eq!(offers(&said).len(), 1, "the other is there");
}

#[test]
fn h3_an_attach_that_fails_ends_nothing_that_is_for_another_arena() {
    let mut p = scene();
    let kept = ticketed_by_d2(&mut p);
    let of = offers(&p.attempt(1, &spec(1, 8, 1)))[0];
    p.ticket(of, 1, 2, 1);
    let said = p.attached(1, false);
    assert_eq!(to_decode(&said).len(), 1, "{said:?}");
    assert!(endings(&said).iter().all(|(n, _)| *n == 1), "{said:?}");
    assert_eq!(submitted(&p.chunk(kept, 100)).len(), 2);
}

/// The endpoint that goes is that of the arena that goes.
#[test]
fn h3_an_arena_that_goes_takes_no_other_with_it() {
    let mut p = scene();
    let first = p.ticketed(1, &spec(1, 8, 1));
    let second = ticketed_by_d2(&mut p);
    let lost = submitted(&p.chunk(first, 100))[0].0;
    p.written(lost, false);
    let said = p.ended(1, Answers::Unsettled);
    assert_eq!(detached(&said), [arena(1)]);
    let said = p.chunk(second, 100);
    assert_eq!(submitted(&said).len(), 2, "four pages, two a batch");
}

/// What can be asked of a job is asked by the offer's whole name.
#[test]
fn h8_a_job_is_known_by_its_offer_of_this_life() {
    let mut p = scene();
    let of = p.ticketed(1, &spec(1, 14, 1));
    assert_eq!(p.machine.runnable(), [of]);
    assert_eq!(p.machine.spec(of), Some(&spec(1, 14, 1)));
    let epoch = Epoch::new(PREFILL + 1);
    assert_eq!(p.machine.spec(OfferId { epoch, ..of }), None);
    assert_eq!(p.machine.spec(offer(of.n + 1)), None);
    let owners = p.machine.holders().into_iter().filter_map(|h| h.owner);
    assert!(owners.into_iter().all(|owner| owner.id.value() == of.n));
    p.chunk(of, 100);
    assert!(
        p.machine.runnable().is_empty(),
        "nothing is left to compute"
    );
}

/// H-9, H-13: who did not ask for the cache leaves nothing in it.
#[test]
fn h13_a_prompt_without_the_cache_leaves_nothing_in_it() {
    let mut p = scene();
    let of = p.ticketed(1, &spec(1, 8, 1));
    for (write, _) in submitted(&p.chunk(of, 100)) {
        p.written(write, true);
    }
    let handoff = handoff(1);
    p.hear_decode(DecodeToPrefill::Committed { handoff });
    assert_eq!((p.counts().cached, p.counts().free), (0, 16));
}
