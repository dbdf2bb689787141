//! Writer sets of more than one: every rank writes its slice of every page into an arena of its
//! own, every rank certifies, exactly one states the first token (H-2, H-7; defect D-07).

use crate::decode_rig::{DecodeRig, Ticket, audits, endings, fences, starts, to_prefill};
use crate::rig::{PREFILL, spec};
use handoff::{Answers, Closing, DecodeToPrefill, Ending, Failure, Fault, Stage};

fn scene() -> (DecodeRig, Ticket) {
    let mut d = DecodeRig::new(32, |_| ());
    let arenas = d.connect(PREFILL, 10, 2);
    let ticket = d.granted(PREFILL, 10, 1, &spec(1, 14, 2));
    let named: Vec<_> = ticket.landings.iter().map(|site| site.arena).collect();
    assert_eq!(named, arenas, "each rank has its own arena");
    assert_ne!(named[0], named[1]);
    (d, ticket)
}

#[test]
fn h7_one_closed_of_two_does_not_commit() {
    for last in [0, 1] {
        let (mut d, ticket) = scene();
        d.land_all(10, &ticket);
        let how = |rank: u16| ticket.sealed((rank == 0).then_some(1));
        let said = d.close(10, ticket.handoff, 1 - last, how(1 - last));
        assert!(said.is_empty(), "nothing until both have closed: {said:?}");
        assert_eq!(d.counts().sealed, 0);
        let said = d.close(10, ticket.handoff, last, how(last));
        assert!(starts(&said));
        let handoff = ticket.handoff;
        let committed = DecodeToPrefill::Committed { handoff };
        assert_eq!(to_prefill(&said), [committed], "answers both");
    }
}

/// The acknowledgement of one rank is not the other's, however often it is said.
#[test]
fn d07_one_rank_that_closes_twice_is_still_one() {
    let (mut d, ticket) = scene();
    d.land_all(10, &ticket);
    for _ in 0..3 {
        let said = d.close(10, ticket.handoff, 0, ticket.sealed(Some(1)));
        assert!(said.is_empty(), "{said:?}");
    }
    let said = d.close(10, ticket.handoff, 1, ticket.sealed(None));
    assert!(starts(&said));
}

#[test]
fn h2_one_rank_that_misses_a_page_is_short() {
    let (mut d, ticket) = scene();
    let whole = ticket.manifest(0, 0, 0..4);
    d.state(10, &whole);
    d.copied(&whole);
    let part = ticket.manifest(1, 0, 0..3);
    d.state(10, &part);
    d.copied(&part);
    d.close(10, ticket.handoff, 0, ticket.sealed(Some(1)));
    let said = d.close(10, ticket.handoff, 1, ticket.sealed(None));
    let failure = Failure::Integrity(Fault::Short);
    assert_eq!(endings(&said), [(1, Ending::Failed(failure))]);
    assert_eq!(
        fences(&said),
        [ticket.landings[1].arena],
        "the arena of the rank that was short"
    );
    assert!(!starts(&said));
}

#[test]
fn h2_the_first_token_comes_from_exactly_one_rank() {
    for (zero, one) in [(Some(1), Some(1)), (None, None)] {
        let (mut d, ticket) = scene();
        d.land_all(10, &ticket);
        d.close(10, ticket.handoff, 0, ticket.sealed(zero));
        let said = d.close(10, ticket.handoff, 1, ticket.sealed(one));
        let audited: Vec<_> = audits(&said).into_iter().map(|(what, _)| what).collect();
        assert_eq!(audited, [Failure::Integrity(Fault::FirstToken)]);
        assert!(!starts(&said));
    }
}

#[test]
fn h2_a_batch_in_the_arena_of_the_other_rank() {
    let (mut d, ticket) = scene();
    let mut manifest = ticket.manifest(0, 0, 0..4);
    manifest.arena = ticket.landings[1].arena;
    let said = d.state(10, &manifest);
    let failure = Failure::Integrity(Fault::WrongArena);
    assert_eq!(endings(&said), [(1, Ending::Failed(failure))]);
}

#[test]
fn h18_a_rank_that_does_not_exist_is_answered() {
    for rank in [2, u16::MAX] {
        let (mut d, ticket) = scene();
        let handoff = ticket.handoff;
        let mut manifest = ticket.manifest(0, 0, 0..1);
        manifest.rank = rank;
        let said = d.state(10, &manifest);
        assert_eq!(to_prefill(&said), [DecodeToPrefill::Cancel { handoff }]);
        let said = d.close(10, handoff, rank, Closing::Abandoned { why: None });
        let answers = Answers::Closed;
        let ended = DecodeToPrefill::Ended {
            handoff,
            rank,
            answers,
        };
        assert_eq!(to_prefill(&said), [ended]);
        assert!(endings(&said).is_empty(), "and the handoff goes on");
    }
}

#[test]
fn one_rank_that_gives_up_ends_the_handoff_and_both_are_answered() {
    let (mut d, ticket) = scene();
    let handoff = ticket.handoff;
    let said = d.close(10, handoff, 1, Closing::Abandoned { why: None });
    let failure = Failure::PeerFailed(Stage::Prefill);
    assert_eq!(endings(&said), [(1, Ending::Failed(failure))]);
    let messages = to_prefill(&said);
    assert!(
        messages.contains(&DecodeToPrefill::Cancel { handoff }),
        "rank 0 is told to close"
    );
    let ended = |rank| DecodeToPrefill::Ended {
        handoff,
        rank,
        answers: Answers::Closed,
    };
    assert!(messages.contains(&ended(1)));
    assert!(
        !messages.contains(&ended(0)),
        "rank 0 has certified nothing (H-7)"
    );
    let said = d.close(10, handoff, 0, Closing::Abandoned { why: None });
    assert_eq!(to_prefill(&said), [ended(0)]);
    assert!(d.machine.at_rest());
}

/// One rank's lost arena does not take the other rank's.
#[test]
fn unsettled_on_one_rank_fences_the_arena_of_that_rank() {
    let (mut d, ticket) = scene();
    let said = d.unsettled(10, &ticket, vec![3]);
    assert_eq!(fences(&said), [ticket.landings[0].arena]);
    assert_eq!(endings(&said), [(1, Ending::Failed(Failure::Unsettled))]);
    d.close(10, ticket.handoff, 1, Closing::Abandoned { why: None });
    let said = d.fenced(ticket.landings[0].arena);
    let ended = DecodeToPrefill::Ended {
        handoff: ticket.handoff,
        rank: 0,
        answers: Answers::Unsettled,
    };
    assert_eq!(to_prefill(&said), [ended]);
    assert!(d.machine.at_rest());
}
