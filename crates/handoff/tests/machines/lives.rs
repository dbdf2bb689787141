//! Lives of prefill workers as decode sees them: lost, restarted, refused for good, too many.

use crate::decode_rig::{DecodeRig, endings, fences, ticket, to_prefill};
use crate::rig::Epoch;
use crate::rig::{NEIGHBOUR, PREFILL, spec};
use handoff::decode::{Effect, Event, Timer};
use handoff::{Answers, Conn, DecodeToPrefill, Ending, Failure, Hangup, Refusal, Stage};

fn scene() -> DecodeRig {
    let mut d = DecodeRig::new(32, |_| ());
    d.connect(PREFILL, 10, 1);
    d
}

#[test]
fn a_lost_p_is_fenced_at_its_deadline_and_not_before() {
    let mut d = scene();
    let ticket = d.granted(PREFILL, 10, 1, &spec(1, 14, 2));
    let said = d.tell(Event::Disconnected(Conn(10)));
    assert!(
        endings(&said).is_empty() && fences(&said).is_empty(),
        "nothing changes yet"
    );
    let timer = Timer::Peer(Epoch::new(PREFILL));
    let after_ms = 10_000;
    assert_eq!(said, [Effect::Arm { timer, after_ms }]);
    let said = d.tell(Event::Fired(timer));
    let failure = Failure::PeerFailed(Stage::Transfer);
    assert_eq!(endings(&said), [(1, Ending::Failed(failure))]);
    assert_eq!(fences(&said), [ticket.landings[0].arena]);
    d.fenced(ticket.landings[0].arena);
    assert!(d.machine.at_rest());
}

/// Late writes of the old life go into an arena that nobody reads; the new life begins afresh.
#[test]
fn h8_a_restarted_p_is_another_life() {
    let mut d = scene();
    let old = d.granted(PREFILL, 10, 1, &spec(1, 14, 2));
    let arenas = d.connect(NEIGHBOUR, 11, 1);
    assert_ne!(arenas[0], old.landings[0].arena);
    let said = d.state(11, &old.manifest(0, 0, 0..4));
    let handoff = old.handoff;
    assert_eq!(to_prefill(&said), [DecodeToPrefill::Cancel { handoff }]);
    let (rank, answers) = (0, Answers::Closed);
    let ended = DecodeToPrefill::Ended {
        handoff,
        rank,
        answers,
    };
    let said = d.close(11, handoff, 0, old.sealed(Some(1)));
    assert_eq!(
        to_prefill(&said),
        [ended],
        "and nothing of the old is closed"
    );
    assert_eq!(d.machine.load(), (1, 1));
    assert_eq!(d.counts().granted, 4);
}

/// Regression: with its last arena gone P was told Busy for ever; and after a while without a
/// connection it was forgotten, so that it could come back.
#[test]
fn a_life_that_gives_no_memory_back_is_refused_after_k_drops() {
    let mut d = DecodeRig::new(32, |config| config.max_drops = 2);
    let mut arenas = d.connect(PREFILL, 10, 1);
    for n in 1..=2 {
        let ticket = d.granted(PREFILL, 10, n, &spec(1, 14, 2));
        d.unsettled(10, &ticket, vec![0]);
        let arena = arenas[0];
        d.tell(Event::ArenaLingers { arena });
        let said = d.fenced(arena);
        arenas = d.open_arenas(&said);
        let closed = said.contains(&Effect::Close(Conn(10), Hangup::Refused));
        assert_eq!(closed, n == 2, "{said:?}");
    }
    assert!(arenas.is_empty());
    let refused = Ending::Refused(Refusal::PeerUnavailable);
    assert_eq!(
        endings(&d.expect(3, &spec(1, 14, 2), PREFILL)),
        [(3, refused)]
    );
    let said = d.hello(PREFILL, 11, 1);
    assert_eq!(said, [Effect::Close(Conn(11), Hangup::Refused)]);
    d.tell(Event::Fired(Timer::Peer(Epoch::new(PREFILL))));
    let said = d.hello(PREFILL, 12, 1);
    assert_eq!(
        said,
        [Effect::Close(Conn(12), Hangup::Refused)],
        "not forgotten either"
    );
    assert_eq!(
        d.connect(NEIGHBOUR, 13, 1).len(),
        1,
        "another life is welcome"
    );
}

#[test]
fn lives_are_bounded_and_those_that_are_gone_make_room() {
    let mut d = DecodeRig::new(32, |config| config.max_peers = 2);
    let arenas = d.connect(PREFILL, 10, 1);
    d.connect(NEIGHBOUR, 20, 1);
    let said = d.hello(99, 30, 1);
    assert_eq!(said, [Effect::Close(Conn(30), Hangup::Refused)]);
    d.tell(Event::Disconnected(Conn(10)));
    d.tell(Event::Fired(Timer::Peer(Epoch::new(PREFILL))));
    d.fenced(arenas[0]);
    assert_eq!(d.connect(99, 31, 1).len(), 1);
}

#[test]
fn without_an_arena_offers_are_busy_and_a_new_hello_does_not_wait_for_the_next_try() {
    let mut d = DecodeRig::new(32, |_| ());
    let said = d.hello(PREFILL, 10, 1);
    let Some(Effect::OpenArena { arena, .. }) = said.last() else {
        panic!("an arena is wanted: {said:?}");
    };
    d.tell(Event::ArenaFailed { arena: *arena });
    d.sync(10, &[], &[]);
    assert_eq!(d.machine.peers(), 1, "it is there all the same");
    let prompt = spec(1, 14, 2);
    d.expect(1, &prompt, PREFILL);
    assert!(ticket(&d.offer(PREFILL, 10, 1, &prompt), &prompt).is_none());
    d.connect(PREFILL, 11, 1);
    assert!(ticket(&d.offer(PREFILL, 11, 1, &prompt), &prompt).is_some());
}

/// Of lives that are gone those are remembered that cost arenas, for as long as there is room.
#[test]
fn a_life_that_was_refused_is_remembered_while_there_is_room() {
    let mut d = DecodeRig::new(32, |config| {
        (config.max_drops, config.max_peers) = (1, 2);
    });
    let arenas = d.connect(PREFILL, 10, 1);
    let ticket = d.granted(PREFILL, 10, 1, &spec(1, 14, 2));
    d.unsettled(10, &ticket, vec![0]);
    d.tell(Event::ArenaLingers { arena: arenas[0] });
    d.fenced(arenas[0]);
    let refused = |conn| [Effect::Close(Conn(conn), Hangup::Refused)];
    // Another life takes the place that is free, and has a handoff; nothing is forgotten for it.
    d.connect(NEIGHBOUR, 20, 1);
    d.granted(NEIGHBOUR, 20, 2, &spec(1, 14, 2));
    assert_eq!(d.hello(PREFILL, 11, 1), refused(11));
    // A third one needs a place: the one that is gone is forgotten.
    assert_eq!(d.connect(99, 30, 1).len(), 1);
    assert_eq!(d.hello(98, 40, 1), refused(40), "nobody else is gone");
}

#[test]
fn a_life_that_is_gone_and_cost_nothing_is_forgotten() {
    let mut d = DecodeRig::new(32, |_| ());
    let said = d.hello(PREFILL, 10, 1);
    let Some(Effect::OpenArena { arena, .. }) = said.last() else {
        panic!("an arena is wanted: {said:?}");
    };
    d.tell(Event::Disconnected(Conn(10)));
    d.tell(Event::Fired(Timer::Peer(Epoch::new(PREFILL))));
    d.tell(Event::ArenaFailed { arena: *arena });
    let said = d.hello(PREFILL, 11, 2);
    let opened = said
        .iter()
        .filter(|e| matches!(e, Effect::OpenArena { .. }));
    assert_eq!(opened.count(), 2, "ranks and all are new: {said:?}");
}

#[test]
fn a_worker_has_at_most_64_ranks() {
    for (ranks, welcome) in [(64, true), (65, false)] {
        let mut d = DecodeRig::new(32, |_| ());
        let said = d.hello(PREFILL, 10, ranks);
        let refused = [Effect::Close(Conn(10), Hangup::Refused)];
        assert_eq!(said != refused, welcome, "{said:?}");
    }
}

/// The deadline of one life ends what it was sending, and nothing of anybody else.
#[test]
fn h15_a_lost_p_costs_its_own_handoffs_only() {
    let mut d = scene();
    d.connect(NEIGHBOUR, 20, 1);
    d.granted(PREFILL, 10, 1, &spec(1, 14, 2));
    let other = d.granted(NEIGHBOUR, 20, 2, &spec(2, 14, 2));
    let running = d.committed(PREFILL, 10, 3, &spec(3, 14, 2));
    d.first(&running, 1, None);
    d.tell(Event::Disconnected(Conn(10)));
    let said = d.tell(Event::Fired(Timer::Peer(Epoch::new(PREFILL))));
    let failure = Failure::PeerFailed(Stage::Transfer);
    assert_eq!(endings(&said), [(1, Ending::Failed(failure))]);
    d.land_all(20, &other);
    let said = d.close(20, other.handoff, 0, other.sealed(Some(1)));
    assert!(crate::decode_rig::starts(&said), "{said:?}");
    assert_eq!(d.machine.runnable().len(), 1, "and an answer goes on");
}
