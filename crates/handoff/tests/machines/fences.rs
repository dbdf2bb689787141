//! Ends that nobody certified: cancels, deadlines, unsettled writes, dropped arenas (H-15: a
//! deadline may end ownership, it never proves quiescence; H-3: pages wait for the copy).

use crate::decode_rig::{DecodeRig, Ticket, endings, fences, starts, ticket, to_prefill};
use crate::rig::Epoch;
use crate::rig::{NEIGHBOUR, PREFILL, attempt, spec};
use handoff::decode::{Effect, Event, Timer};
use handoff::{
    Answers, Broken, Closing, Conn, DecodeToPrefill, Ending, Failure, GatewayToDecode, Hangup,
    Refusal, Stage,
};

fn scene() -> DecodeRig {
    let mut d = DecodeRig::new(32, |_| ());
    d.connect(PREFILL, 10, 1);
    d
}

fn cancel(d: &mut DecodeRig) -> Vec<Effect> {
    d.hear_gateway(GatewayToDecode::Cancel {
        attempt: attempt(1),
    })
}

fn ended(ticket: &Ticket, answers: Answers) -> DecodeToPrefill {
    let (handoff, rank) = (ticket.handoff, 0);
    DecodeToPrefill::Ended {
        handoff,
        rank,
        answers,
    }
}

#[test]
fn the_client_leaves_before_the_ticket() {
    let mut d = scene();
    d.expect(1, &spec(1, 14, 2), PREFILL);
    assert_eq!(endings(&cancel(&mut d)), [(1, Ending::Cancelled)]);
    assert!(d.machine.at_rest());
    let said = cancel(&mut d);
    assert_eq!(
        endings(&said),
        [(1, Ending::Cancelled)],
        "idempotent, and answered"
    );
}

#[test]
fn h3_the_client_leaves_after_the_ticket_and_a_copy_is_in_flight() {
    let mut d = scene();
    let ticket = d.granted(PREFILL, 10, 1, &spec(1, 14, 2));
    let batch = ticket.manifest(0, 0, 0..2);
    d.state(10, &batch);
    let said = cancel(&mut d);
    let handoff = ticket.handoff;
    assert_eq!(to_prefill(&said), [DecodeToPrefill::Cancel { handoff }]);
    assert_eq!(d.counts().quarantined, 2, "the copy still writes them");
    assert!(
        to_prefill(&d.close(10, handoff, 0, Closing::Abandoned { why: None })).is_empty(),
        "slots: not yet"
    );
    let said = d.copied(&batch);
    assert_eq!(to_prefill(&said), [ended(&ticket, Answers::Closed)]);
    assert!(d.machine.at_rest(), "and the pages are free");
}

#[test]
fn the_owner_ends_after_closed_was_received() {
    let mut d = scene();
    let ticket = d.granted(PREFILL, 10, 1, &spec(1, 14, 2));
    let batch = ticket.manifest(0, 0, 0..4);
    d.state(10, &batch);
    d.close(10, ticket.handoff, 0, ticket.sealed(Some(1)));
    let said = cancel(&mut d);
    assert!(
        to_prefill(&said).is_empty(),
        "Ended instead of Cancel, and not before the copy ends"
    );
    let said = d.copied(&batch);
    assert_eq!(to_prefill(&said), [ended(&ticket, Answers::Closed)]);
    assert!(!starts(&said));
    assert!(d.machine.at_rest());
}

#[test]
fn the_client_leaves_while_it_is_answered() {
    let mut d = scene();
    let ticket = d.committed(PREFILL, 10, 1, &spec(1, 14, 8));
    d.first(&ticket, 1, None);
    let said = cancel(&mut d);
    assert_eq!(endings(&said), [(1, Ending::Cancelled)]);
    assert!(said.iter().any(|effect| matches!(effect, Effect::Stop(_))));
    assert!(
        to_prefill(&said).is_empty(),
        "P has nothing to do with it any more"
    );
    assert!(d.machine.at_rest());
}

#[test]
fn a_gateway_that_is_gone_has_cancelled_everything() {
    let mut d = scene();
    let ticket = d.granted(PREFILL, 10, 1, &spec(1, 14, 2));
    d.expect(2, &spec(2, 14, 2), PREFILL);
    let said = d.tell(Event::Disconnected(crate::decode_rig::G));
    let handoff = ticket.handoff;
    assert_eq!(to_prefill(&said), [DecodeToPrefill::Cancel { handoff }]);
    assert!(endings(&said).is_empty(), "nobody is there to be told");
    d.close(10, handoff, 0, Closing::Abandoned { why: None });
    assert!(d.machine.at_rest());
}

#[test]
fn h15_a_deadline_names_the_stage_it_passed_in() {
    let stages = [Stage::Prefill, Stage::Transfer, Stage::Decode];
    for (at, stage) in stages.into_iter().enumerate() {
        let mut d = scene();
        let prompt = spec(1, 14, 2);
        match at {
            0 => drop(d.expect(1, &prompt, PREFILL)),
            1 => drop(d.granted(PREFILL, 10, 1, &prompt)),
            _ => drop(d.committed(PREFILL, 10, 1, &prompt)),
        }
        let said = d.tell(Event::Fired(Timer::Attempt(attempt(1))));
        let failure = Failure::Deadline(stage);
        assert_eq!(endings(&said), [(1, Ending::Failed(failure))]);
        let said = d.tell(Event::Fired(Timer::Attempt(attempt(1))));
        assert!(said.is_empty(), "once");
    }
}

/// Law: no page is freed while someone may still write or read it. A deadline does not end the copy
/// that still reads a slot: who states other bytes there before it has ended is at fault.
#[test]
fn h15_a_deadline_gives_no_slot_back_that_a_copy_still_reads() {
    for ends_first in [false, true] {
        let mut d = scene();
        let first = d.granted(PREFILL, 10, 1, &spec(1, 8, 2));
        let second = d.granted(PREFILL, 10, 2, &spec(2, 8, 2));
        let copied = first.manifest(0, 0, 0..2);
        d.state(10, &copied);
        d.tell(Event::Fired(Timer::Attempt(attempt(1))));
        if ends_first {
            d.copied(&copied);
        }
        let said = d.state(10, &second.manifest(0, 0, 0..2)); // the same slots
        let copies = said.iter().any(|e| matches!(e, Effect::Copy { .. }));
        assert_eq!(copies, ends_first, "{said:?}");
        let fault = Ending::Failed(Failure::Integrity(handoff::Fault::BadBatch));
        assert_eq!(endings(&said).contains(&(2, fault)), !ends_first);
    }
}

/// P hangs: the deadline ends the owner and sends Cancel, and nothing is proven by that. When the
/// Cancel's own deadline passes the arena goes and P is refused until it says Hello.
#[test]
fn h15_a_hung_p_costs_its_arena_only_when_cancel_goes_unanswered() {
    let mut d = scene();
    d.connect(NEIGHBOUR, 20, 1);
    let hung = d.granted(PREFILL, 10, 1, &spec(1, 14, 2));
    let other = d.granted(NEIGHBOUR, 20, 2, &spec(2, 14, 2));
    let said = d.tell(Event::Fired(Timer::Attempt(attempt(1))));
    assert!(
        fences(&said).is_empty(),
        "one slow request must not fail its neighbours"
    );
    let armed = Effect::Arm {
        timer: Timer::Cancel(hung.handoff),
        after_ms: 5_000,
    };
    assert!(said.contains(&armed));
    let said = d.tell(Event::Fired(Timer::Cancel(hung.handoff)));
    assert_eq!(fences(&said), [hung.landings[0].arena]);
    assert!(said.contains(&Effect::Close(Conn(10), Hangup::Deadline)));
    let said = d.expect(3, &spec(3, 14, 2), PREFILL);
    let refused = Ending::Refused(Refusal::PeerUnavailable);
    assert_eq!(endings(&said), [(3, refused)]);
    d.fenced(hung.landings[0].arena);
    assert_eq!(
        d.machine.load().1,
        1,
        "the hung one is forgotten, the other is not"
    );
    d.land_all(20, &other);
    assert!(starts(&d.close(
        20,
        other.handoff,
        0,
        other.sealed(Some(1))
    )));
    d.connect(PREFILL, 11, 1);
    d.granted(PREFILL, 11, 4, &spec(4, 14, 2));
}

#[test]
fn a_cancel_that_was_answered_in_time_drops_nothing() {
    let mut d = scene();
    let ticket = d.granted(PREFILL, 10, 1, &spec(1, 14, 2));
    cancel(&mut d);
    let said = d.close(10, ticket.handoff, 0, Closing::Abandoned { why: None });
    assert!(said.contains(&Effect::Disarm(Timer::Cancel(ticket.handoff))));
    assert!(
        d.tell(Event::Fired(Timer::Cancel(ticket.handoff)))
            .is_empty()
    );
}

#[test]
fn h1_unsettled_ends_the_handoff_and_the_answer_waits_for_the_fence() {
    let mut d = scene();
    let ticket = d.granted(PREFILL, 10, 1, &spec(1, 14, 2));
    let said = d.unsettled(10, &ticket, vec![0, u32::MAX]);
    assert_eq!(endings(&said), [(1, Ending::Failed(Failure::Unsettled))]);
    assert_eq!(
        fences(&said),
        [ticket.landings[0].arena],
        "nobody else uses it"
    );
    assert!(to_prefill(&said).is_empty(), "no answer before the fence");
    assert!(
        d.unsettled(10, &ticket, vec![0]).is_empty(),
        "nor if it is said again"
    );
    let said = d.fenced(ticket.landings[0].arena);
    assert_eq!(to_prefill(&said), [ended(&ticket, Answers::Unsettled)]);
    assert!(d.machine.at_rest());
}

#[test]
fn h1_neighbours_in_an_arena_with_unsettled_slots_finish_first() {
    let mut d = scene();
    let first = d.granted(PREFILL, 10, 1, &spec(1, 14, 2));
    let second = d.granted(PREFILL, 10, 2, &spec(2, 14, 2));
    let said = d.unsettled(10, &first, vec![9]);
    assert!(fences(&said).is_empty(), "the neighbour uses it");
    d.expect(3, &spec(3, 14, 2), PREFILL);
    let said = d.offer(PREFILL, 10, 3, &spec(3, 14, 2));
    assert!(
        ticket(&said, &spec(3, 14, 2)).is_none(),
        "nobody new goes there"
    );
    d.land_all(10, &second);
    let said = d.close(10, second.handoff, 0, second.sealed(Some(1)));
    assert!(starts(&said));
    assert_eq!(fences(&said), [first.landings[0].arena], "now it goes");
}

#[test]
fn h1_too_little_room_for_a_batch_drops_the_arena_at_once() {
    let mut d = scene();
    let first = d.granted(PREFILL, 10, 1, &spec(1, 14, 2));
    let second = d.granted(PREFILL, 10, 2, &spec(2, 14, 2));
    let said = d.unsettled(10, &first, (0..13).collect());
    assert_eq!(
        fences(&said),
        [first.landings[0].arena],
        "3 of 16 slots left, 4 a batch"
    );
    let failure = Failure::PeerFailed(Stage::Transfer);
    assert!(endings(&said).contains(&(2, Ending::Failed(failure))));
    let handoff = second.handoff;
    assert!(to_prefill(&said).contains(&DecodeToPrefill::Cancel { handoff }));
}

/// H-18: the arena has gone because of a neighbour, and was fenced, before P has said how this one
/// ends. Nothing is left to wait for, so whatever P says is answered at once.
#[test]
fn h18_unsettled_in_an_arena_that_is_gone_is_answered_at_once() {
    let mut d = scene();
    let first = d.granted(PREFILL, 10, 1, &spec(1, 14, 2));
    let second = d.granted(PREFILL, 10, 2, &spec(2, 14, 2));
    d.unsettled(10, &first, (0..13).collect());
    d.fenced(first.landings[0].arena);
    let said = d.unsettled(10, &second, vec![1]);
    assert_eq!(to_prefill(&said), [ended(&second, Answers::Unsettled)]);
    assert!(d.machine.at_rest());
}

/// H-3: a life that is refused and comes back gets no new arena before its old one is fenced.
#[test]
fn h3_a_life_that_is_back_before_its_fence_waits_for_it() {
    let mut d = scene();
    let opens = |said: &[Effect]| {
        let opens = |e: &Effect| matches!(e, Effect::OpenArena { .. });
        said.iter().any(opens)
    };
    d.tell(Event::Disconnected(Conn(10)));
    let said = d.tell(Event::Fired(Timer::Peer(Epoch::new(PREFILL))));
    let [arena] = fences(&said)[..] else {
        panic!("{said:?}");
    };
    assert!(!opens(&d.hello(PREFILL, 11, 1)), "the old one is there");
    assert!(opens(&d.fenced(arena)), "now it is gone");
}

#[test]
fn h15_neighbours_that_do_not_finish_lose_the_arena_at_its_deadline() {
    let mut d = scene();
    let first = d.granted(PREFILL, 10, 1, &spec(1, 14, 2));
    let second = d.granted(PREFILL, 10, 2, &spec(2, 14, 2));
    let arena = first.landings[0].arena;
    let timer = Timer::Unsettled(arena);
    let after_ms = 2_000;
    assert!(
        d.unsettled(10, &first, vec![9])
            .contains(&Effect::Arm { timer, after_ms })
    );
    let said = d.tell(Event::Fired(timer));
    assert_eq!(fences(&said), [arena]);
    let failure = Failure::PeerFailed(Stage::Transfer);
    assert_eq!(endings(&said), [(2, Ending::Failed(failure))]);
    d.close(10, second.handoff, 0, Closing::Abandoned { why: None });
    let said = d.fenced(arena);
    assert_eq!(d.open_arenas(&said).len(), 1, "and there is another");
    assert!(d.machine.at_rest());
}

/// A writer that takes a certificate back has broken H-7: it is treated as what it is now.
#[test]
fn h7_unsettled_after_closed_ends_the_handoff() {
    let mut d = scene();
    let ticket = d.granted(PREFILL, 10, 1, &spec(1, 14, 2));
    d.state(10, &ticket.manifest(0, 0, 0..4));
    d.close(10, ticket.handoff, 0, ticket.sealed(Some(1)));
    let said = d.unsettled(10, &ticket, vec![0]);
    assert_eq!(endings(&said), [(1, Ending::Failed(Failure::Unsettled))]);
    assert_eq!(fences(&said), [ticket.landings[0].arena]);
    assert!(!starts(&d.copied(&ticket.manifest(0, 0, 0..4))));
}

/// A fence is believed if it was asked for and speaks of this arena's writer and this pool.
#[test]
fn h1_a_proof_of_something_else_is_no_fence() {
    let other = DecodeRig::new(1, |_| ());
    let lives = [PREFILL, NEIGHBOUR];
    for case in 0..4 {
        let mut d = scene();
        let ticket = d.granted(PREFILL, 10, 1, &spec(1, 14, 2));
        let arena = ticket.landings[0].arena;
        if case < 3 {
            d.unsettled(10, &ticket, vec![0]);
        }
        let life = pages::WriterLife {
            epoch: Epoch::new(lives[usize::from(case == 0)]),
            rank: 0,
        };
        let proof = match case {
            1 => d.mint.closed(life, pages::OwnerId::new(ticket.handoff.n)),
            2 => other.mint.fenced(life),
            _ => d.mint.fenced(life),
        };
        let said = d.machine.handle_fenced(arena, proof);
        let why = match case {
            0 | 1 => Broken::FenceOfAnother,
            2 => Broken::FenceOfAnotherPool,
            _ => Broken::FenceUnasked,
        };
        assert_eq!(said, [Effect::FailStop(why)], "case {case}");
    }
}
