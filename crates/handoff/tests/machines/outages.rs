//! What decode keeps on a prefill life's account: incidents for as long as their memory is not given
//! back, integrity faults for good. And what it waits for at prefill (H-15).

use crate::decode_rig::{DecodeRig, endings, fences, starts, ticket};
use crate::rig::Epoch;
use crate::rig::{NEIGHBOUR, PREFILL, attempt, spec};
use handoff::decode::{Effect, Event, Timer};
use handoff::{ArenaId, Closing, Conn, Ending, Failure, Hangup, Stage};

fn peer() -> Timer {
    Timer::Peer(Epoch::new(PREFILL))
}

fn refused(conn: u64) -> [Effect; 1] {
    [Effect::Close(Conn(conn), Hangup::Refused)]
}

/// Cut off for longer than its deadline: every arena is dropped.
fn cut_off(d: &mut DecodeRig, conn: u64) -> Vec<ArenaId> {
    d.tell(Event::Disconnected(Conn(conn)));
    fences(&d.tell(Event::Fired(peer())))
}

fn lingers(d: &mut DecodeRig, arena: ArenaId) -> Vec<Effect> {
    d.tell(Event::ArenaLingers { arena });
    d.fenced(arena)
}

/// Regression: refused for good after eight outages with one rank, after one with eight.
#[test]
fn an_idle_pair_works_again_after_any_number_of_outages() {
    for ranks in [1, 8] {
        let mut d = DecodeRig::new(64, |_| ());
        for outage in 0..100 {
            let conn = 10 + outage;
            let arenas = d.connect(PREFILL, conn, ranks);
            assert_eq!(arenas.len(), usize::from(ranks), "outage {outage}");
            assert_eq!(cut_off(&mut d, conn), arenas);
            for arena in arenas {
                d.fenced(arena);
            }
        }
        d.connect(PREFILL, 200, ranks);
        d.granted(PREFILL, 200, 1, &spec(1, 14, 2));
    }
}

/// One loss is one incident however many arenas it costs; it counts while any of them is mapped.
#[test]
fn an_incident_counts_once_whatever_the_ranks_and_until_all_memory_is_back() {
    let mut d = DecodeRig::new(64, |config| config.max_drops = 2);
    let first = d.connect(PREFILL, 10, 8);
    cut_off(&mut d, 10);
    for arena in &first {
        lingers(&mut d, *arena);
    }
    let second = d.connect(PREFILL, 11, 8);
    assert_eq!(second.len(), 8, "eight arenas, one incident");
    cut_off(&mut d, 11);
    for arena in &second {
        lingers(&mut d, *arena);
    }
    assert_eq!(d.hello(PREFILL, 12, 8), refused(12), "two incidents");
    d.tell(Event::Fired(peer()));
    assert_eq!(
        d.hello(PREFILL, 13, 8),
        refused(13),
        "time alone proves nothing"
    );
    for arena in &first[..7] {
        d.tell(Event::ArenaReleased { arena: *arena });
        assert_eq!(
            d.hello(PREFILL, 14, 8),
            refused(14),
            "part of it is still mapped"
        );
    }
    d.tell(Event::ArenaReleased { arena: first[7] });
    assert_eq!(d.connect(PREFILL, 15, 8).len(), 8);
}

/// Each rank's memory is its own: what nobody maps is given back with its fence, and waits for none.
#[test]
fn of_an_incident_only_what_is_mapped_waits() {
    for mapped in [0, 1] {
        let mut d = DecodeRig::new(64, |config| config.max_drops = 1);
        let arenas = d.connect(PREFILL, 10, 2);
        cut_off(&mut d, 10);
        lingers(&mut d, arenas[mapped]);
        d.fenced(arenas[1 - mapped]);
        assert_eq!(d.hello(PREFILL, 11, 2), refused(11));
        let arena = arenas[mapped];
        d.tell(Event::ArenaReleased { arena });
        assert_eq!(d.connect(PREFILL, 12, 2).len(), 2, "rank {mapped}");
    }
}

/// What is still mapped stays counted, also when what came later is given back.
#[test]
fn memory_may_be_given_back_in_any_order() {
    let mut d = DecodeRig::new(64, |config| config.max_drops = 2);
    let mut dropped = Vec::new();
    for conn in [10, 11] {
        let arenas = d.connect(PREFILL, conn, 1);
        cut_off(&mut d, conn);
        lingers(&mut d, arenas[0]);
        dropped.extend(arenas);
    }
    assert_eq!(d.hello(PREFILL, 12, 1), refused(12));
    d.tell(Event::ArenaReleased { arena: dropped[1] });
    d.tell(Event::ArenaReleased { arena: dropped[1] });
    let arenas = d.connect(PREFILL, 13, 1);
    cut_off(&mut d, 13);
    lingers(&mut d, arenas[0]);
    assert_eq!(
        d.hello(PREFILL, 14, 1),
        refused(14),
        "the first one is still mapped"
    );
}

/// Clients that leave while prefill is in a slow chunk: its answer to Cancel comes too late, its arena
/// is dropped. That is nothing that a tenant can have a life refused for.
#[test]
fn clients_that_leave_during_slow_chunks_have_no_life_refused() {
    let mut d = DecodeRig::new(64, |config| config.max_drops = 2);
    for n in 1..=50 {
        let conn = 10 + n;
        let arenas = d.connect(PREFILL, conn, 1);
        let ticket = d.granted(PREFILL, conn, n, &spec(1, 14, 2));
        d.hear_gateway(handoff::GatewayToDecode::Cancel {
            attempt: attempt(n),
        });
        let said = d.tell(Event::Fired(Timer::Cancel(ticket.handoff)));
        assert_eq!(fences(&said), arenas, "{n}");
        d.fenced(arenas[0]);
    }
    let arenas = d.connect(PREFILL, 100, 1);
    assert_eq!(arenas.len(), 1);
}

/// Integrity faults are another matter: they say what a worker is like, and are never forgotten.
#[test]
fn integrity_faults_count_for_the_whole_life() {
    let mut d = DecodeRig::new(64, |config| config.max_drops = 3);
    let mut arenas = d.connect(PREFILL, 10, 1);
    for n in 1..=3 {
        let granted = d.granted(PREFILL, 10, n, &spec(1, 14, 2));
        let mut manifest = granted.manifest(0, 0, 0..4);
        manifest.pages[1].tag = granted.tags[0];
        let said = d.state(10, &manifest);
        assert_eq!(fences(&said), arenas);
        let said = d.fenced(arenas[0]);
        assert_eq!(said.contains(&refused(10)[0]), n == 3, "{n}: {said:?}");
        arenas = d.open_arenas(&said);
    }
    assert_eq!(d.hello(PREFILL, 11, 1), refused(11));
}

/// Regression: nothing was tried again before the next Hello, and nobody had a reason to say it.
#[test]
fn an_arena_that_cannot_be_made_is_tried_again_ever_more_slowly() {
    let mut d = DecodeRig::new(32, |_| ());
    let timer = Timer::Arena(Epoch::new(PREFILL));
    let opened = |said: &[Effect]| match said.last() {
        Some(Effect::OpenArena { arena, .. }) => *arena,
        other => panic!("an arena is wanted: {other:?}"),
    };
    let mut arena = opened(&d.hello(PREFILL, 10, 1));
    d.sync(10, &[], &[]);
    assert_eq!(d.machine.without_arena(), 0);
    for after_ms in [250, 500, 1000, 2000, 4000, 8000, 8000] {
        let said = d.tell(Event::ArenaFailed { arena });
        assert_eq!(said, [Effect::Arm { timer, after_ms }]);
        assert_eq!(d.machine.without_arena(), 1, "readiness says so");
        arena = opened(&d.tell(Event::Fired(timer)));
    }
    let (slots, address) = (4, Vec::new());
    d.tell(Event::ArenaOpened {
        arena,
        slots,
        address,
    });
    assert_eq!(d.machine.without_arena(), 0);
    d.granted(PREFILL, 10, 1, &spec(1, 14, 2));
    // The next failure begins anew.
    cut_off(&mut d, 10);
    d.fenced(arena);
    let arena = opened(&d.hello(PREFILL, 11, 1));
    let said = d.tell(Event::ArenaFailed { arena });
    let after_ms = 250;
    assert_eq!(said, [Effect::Arm { timer, after_ms }]);
    // And it ends with the connection.
    let said = d.tell(Event::Disconnected(Conn(11)));
    assert!(said.contains(&Effect::Disarm(timer)), "{said:?}");
    assert!(d.tell(Event::Fired(timer)).is_empty());
    assert_eq!(d.machine.without_arena(), 0);
}

/// Several ranks fail together: one timer, one step of patience, and only what is missing is made.
#[test]
fn ranks_without_an_arena_are_tried_again_together() {
    let mut d = DecodeRig::new(32, |_| ());
    let timer = Timer::Arena(Epoch::new(PREFILL));
    let wanted = |said: &[Effect]| -> Vec<ArenaId> {
        let wanted = said.iter().filter_map(|effect| match effect {
            Effect::OpenArena { arena, .. } => Some(*arena),
            _ => None,
        });
        wanted.collect()
    };
    let arenas = wanted(&d.hello(PREFILL, 10, 3));
    let after_ms = 250;
    let said = d.tell(Event::ArenaFailed { arena: arenas[1] });
    assert_eq!(said, [Effect::Arm { timer, after_ms }]);
    assert!(d.tell(Event::ArenaFailed { arena: arenas[2] }).is_empty());
    let (slots, address) = (4, Vec::new());
    let said = d.tell(Event::ArenaOpened {
        arena: arenas[0],
        slots,
        address,
    });
    assert!(
        said.is_empty(),
        "what one has is nothing to others: {said:?}"
    );
    let again = d.tell(Event::Fired(timer));
    assert_eq!(wanted(&again).len(), 2, "{again:?}");
    d.open_arenas(&again);
    d.sync(10, &[], &[]);
    d.granted(PREFILL, 10, 1, &spec(1, 14, 2));
}

#[test]
fn h15_a_p_that_says_hello_and_no_sync_is_hung_up_on() {
    let mut d = DecodeRig::new(32, |_| ());
    let timer = Timer::Greeting(Conn(10));
    let after_ms = 10_000;
    let said = d.hello(PREFILL, 10, 1);
    assert!(said.contains(&Effect::Arm { timer, after_ms }), "{said:?}");
    let said = d.tell(Event::Fired(timer));
    let closed = Effect::Close(Conn(10), Hangup::Deadline);
    assert!(said.contains(&closed), "{said:?}");
    let armed = |effect: &Effect| matches!(effect, Effect::Arm { timer, .. } if *timer == peer());
    assert!(said.iter().any(armed), "its life has a deadline: {said:?}");
    // One that syncs is left alone, and so is one that was replaced before.
    d.hello(PREFILL, 11, 1);
    let said = d.hello(PREFILL, 12, 1);
    assert!(said.contains(&Effect::Disarm(Timer::Greeting(Conn(11)))));
    let said = d.sync(12, &[], &[]);
    assert!(said.contains(&Effect::Disarm(Timer::Greeting(Conn(12)))));
    for conn in [11, 12] {
        assert!(d.tell(Event::Fired(Timer::Greeting(Conn(conn)))).is_empty());
    }
    assert_eq!(d.machine.peers(), 1);
}

/// Regression: pages were kept for the turn of a P that had stopped, and everybody else was told Busy
/// until its attempt ended.
#[test]
fn h15_the_turn_of_a_p_that_hangs_is_kept_for_a_while_only() {
    let mut d = DecodeRig::new(8, |_| ());
    d.connect(PREFILL, 10, 1);
    d.connect(NEIGHBOUR, 20, 1);
    let running = d.committed(PREFILL, 10, 1, &spec(1, 14, 2));
    d.first(&running, 1, None);
    let long = spec(2, 22, 2);
    d.expect(2, &long, PREFILL);
    let said = d.offer(PREFILL, 10, 2, &long);
    let timer = Timer::Turn(attempt(2));
    let after_ms = 10_000;
    assert!(said.contains(&Effect::Arm { timer, after_ms }), "{said:?}");
    // P stops. The other's prompt would fit beside what runs, were it not for the turn.
    let short = spec(3, 6, 2);
    d.expect(3, &short, NEIGHBOUR);
    assert!(ticket(&d.offer(NEIGHBOUR, 20, 3, &short), &short).is_none());
    d.tell(Event::Fired(timer));
    let granted = ticket(&d.offer(NEIGHBOUR, 20, 4, &short), &short);
    assert!(
        granted.is_none(),
        "an offer of another attempt is not this one's"
    );
    let offer = d.offer_for(NEIGHBOUR, 20, 5, 3, &short);
    assert!(ticket(&offer, &short).is_some(), "{offer:?}");
    // The turn begins anew when P asks again, and ends with the attempt.
    let said = d.offer_for(PREFILL, 10, 6, 2, &long);
    assert!(said.contains(&Effect::Arm { timer, after_ms }), "{said:?}");
    let said = d.tell(Event::Fired(Timer::Attempt(attempt(2))));
    assert!(said.contains(&Effect::Disarm(timer)), "{said:?}");
}

/// A P that is silent in mid-transfer: the attempt's deadline, then Cancel's, then the fence.
#[test]
fn h15_a_p_that_hangs_in_mid_transfer_costs_its_arena() {
    let mut d = DecodeRig::new(32, |_| ());
    let arenas = d.connect(PREFILL, 10, 1);
    let ticket = d.granted(PREFILL, 10, 1, &spec(1, 14, 2));
    let said = d.tell(Event::Fired(Timer::Attempt(attempt(1))));
    let failure = Failure::Deadline(Stage::Transfer);
    assert_eq!(endings(&said), [(1, Ending::Failed(failure))]);
    let said = d.tell(Event::Fired(Timer::Cancel(ticket.handoff)));
    assert_eq!(fences(&said), arenas);
    d.fenced(arenas[0]);
    assert!(d.machine.at_rest());
    let said = d.close(10, ticket.handoff, 0, Closing::Abandoned { why: None });
    assert!(!starts(&said));
}
