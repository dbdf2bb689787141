//! Prefill and decode lives: reconnection, loss, restart, and messages of lives that do not own
//! what they speak of (H-8, H-18).

use crate::prefill_rig::{
    D, PrefillRig, arena, detached, endings, handoff, offers, submitted, to_decode,
};
use crate::rig::Epoch;
use crate::rig::{DECODE, NEIGHBOUR, hello, link, spec};
use handoff::prefill::{Effect, Event, Timer};
use handoff::{
    Answers, Closing, Conn, DecodeToPrefill, Differs, Ending, Failure, Hangup, PrefillToDecode,
    Role, Stage,
};

const AGAIN: Conn = Conn(3);

fn lost(p: &mut PrefillRig) -> Vec<Effect> {
    p.tell(Event::Disconnected(D));
    p.tell(Event::Fired(Timer::Peer(Epoch::new(DECODE))))
}

#[test]
fn h18_sync_lists_tickets_and_unanswered_offers_and_says_the_rest_again() {
    let mut p = PrefillRig::connected(16);
    let first = p.ticketed(1, &spec(1, 8, 1));
    let said = p.chunk(first, 100);
    let write = submitted(&said)[0].0;
    let unanswered = offers(&p.attempt(2, &spec(2, 8, 1)))[0];
    p.tell(Event::Disconnected(D));
    let said = p.written(write, true);
    assert!(to_decode(&said).is_empty(), "nobody to say it to");
    let said = p.dial(AGAIN, hello(DECODE, Role::Decode));
    let sync = PrefillToDecode::Sync {
        under: link(AGAIN),
        tickets: vec![handoff(1)],
        offers: vec![unanswered],
    };
    assert_eq!(to_decode(&said), [sync]);
    let said = p.tell(Event::FromDecode(AGAIN, DecodeToPrefill::Synced));
    let messages = to_decode(&said);
    assert!(
        matches!(
            messages[..],
            [PrefillToDecode::Landed(_), PrefillToDecode::Closed { .. }]
        ),
        "what was not taken, and the certificate: {messages:?}"
    );
    assert!(
        p.tell(Event::FromDecode(AGAIN, DecodeToPrefill::Synced))
            .is_empty(),
        "once"
    );
}

#[test]
fn h18_the_old_connection_says_nothing_any_more() {
    let mut p = PrefillRig::connected(16);
    let of = offers(&p.attempt(1, &spec(1, 8, 1)))[0];
    p.connect(AGAIN);
    let said = p.hear_decode(DecodeToPrefill::OfferEnded { offer: of });
    assert!(said.is_empty());
    assert_eq!(p.machine.load(), (0, 1));
}

#[test]
fn a_lost_d_ends_what_it_was_to_receive_and_frees_the_sources_with_the_endpoint() {
    let mut p = PrefillRig::connected(16);
    let of = p.ticketed(1, &spec(1, 14, 1));
    p.chunk(of, 8);
    p.attempt(2, &spec(2, 14, 1));
    let said = lost(&mut p);
    let failure = Failure::PeerFailed(Stage::Decode);
    let failed = |n| (n, Ending::Failed(failure));
    assert_eq!(endings(&said), [failed(1), failed(2)]);
    assert_eq!(detached(&said), [arena(1)]);
    assert_eq!(p.counts().quarantined, 2, "H-3: a write still reads them");
    p.tell(Event::Detached { arena: arena(1) });
    assert!(p.machine.at_rest());
}

/// Regression: an arena that was replaced before the life was lost took longest to be destroyed,
/// and nobody looked any more: the jobs stayed for ever.
#[test]
fn h11_endpoints_may_be_destroyed_in_any_order() {
    for order in [[1, 2], [2, 1]] {
        let mut p = PrefillRig::connected(16);
        let of = p.ticketed(1, &spec(1, 14, 1));
        p.chunk(of, 8);
        let next = offers(&p.attempt(2, &spec(2, 14, 1)))[0];
        let said = p.ticket(next, 2, 4, 2);
        assert_eq!(detached(&said), [arena(1)], "D has made another");
        p.attached(2, true);
        p.chunk(next, 8);
        lost(&mut p);
        for n in order {
            p.tell(Event::Detached { arena: arena(n) });
        }
        assert!(p.machine.at_rest(), "{order:?}: {:?}", p.machine.load());
    }
}

/// Regression: an attachment that succeeded after the life was lost brought the dead arena back to
/// life, and the life was never forgotten.
#[test]
fn h11_an_attachment_that_comes_too_late_changes_nothing() {
    let mut p = PrefillRig::connected(16);
    let of = offers(&p.attempt(1, &spec(1, 14, 1)))[0];
    p.ticket(of, 1, 4, 1);
    lost(&mut p);
    p.attached(1, true);
    p.tell(Event::Detached { arena: arena(1) });
    assert!(p.machine.at_rest(), "{:?}", p.machine.load());
    let said = p.dial(AGAIN, hello(DECODE, Role::Decode));
    let (tickets, offers) = (vec![], vec![]);
    assert_eq!(
        to_decode(&said),
        [PrefillToDecode::Sync {
            under: link(AGAIN),
            tickets,
            offers
        }]
    );
}

#[test]
fn a_d_that_comes_back_in_time_finds_its_tickets() {
    let mut p = PrefillRig::connected(16);
    p.ticketed(1, &spec(1, 14, 1));
    p.tell(Event::Disconnected(D));
    let said = p.dial(AGAIN, hello(DECODE, Role::Decode));
    assert!(said.contains(&Effect::Disarm(Timer::Peer(Epoch::new(DECODE)))));
    assert!(
        p.tell(Event::Fired(Timer::Peer(Epoch::new(DECODE))))
            .is_empty(),
        "too late"
    );
    assert_eq!(p.machine.load(), (0, 1));
}

/// Sync must not say that P holds nothing while writes of it may still land.
#[test]
fn h3_a_d_that_comes_back_before_the_endpoint_is_destroyed_finds_its_tickets_too() {
    let mut p = PrefillRig::connected(16);
    let of = p.ticketed(1, &spec(1, 14, 1));
    p.chunk(of, 8);
    lost(&mut p);
    let said = p.dial(AGAIN, hello(DECODE, Role::Decode));
    let (tickets, offers) = (vec![handoff(1)], vec![]);
    assert_eq!(
        to_decode(&said),
        [PrefillToDecode::Sync {
            under: link(AGAIN),
            tickets,
            offers
        }]
    );
    p.tell(Event::FromDecode(AGAIN, DecodeToPrefill::Synced));
    let said = p.tell(Event::Detached { arena: arena(1) });
    let said = to_decode(&said);
    let unsettled = matches!(said[..], [PrefillToDecode::Unsettled { .. }]);
    assert!(unsettled, "and hears of what never completed: {said:?}");
}

fn two_pages(n: u64, offer: handoff::OfferId, under: handoff::LinkId) -> DecodeToPrefill {
    DecodeToPrefill::Ticket {
        offer,
        handoff: handoff(n),
        under,
        tags: vec![pages::StatedTag(1), pages::StatedTag(2)],
        first: 0,
        landings: vec![handoff::LandingSite {
            rank: 0,
            arena: arena(1),
            slots: 4,
            address: Vec::new(),
        }],
        targets: Vec::new(),
    }
}

/// H-3: Sync has said that P holds no ticket, and D, whose attempt is over, has given the pages back. A
/// ticket that comes out of the earlier connection behind that word is not taken; one of this is.
#[test]
fn h3_a_ticket_of_an_earlier_connection_does_not_count_behind_sync() {
    for under in [D, AGAIN] {
        let mut p = PrefillRig::connected(16);
        let offer = offers(&p.attempt(1, &spec(1, 8, 1)))[0];
        p.tell(Event::Disconnected(D));
        p.dial(AGAIN, hello(DECODE, Role::Decode));
        let said = p.tell(Event::FromDecode(AGAIN, two_pages(1, offer, link(under))));
        let taken = said.iter().any(|it| matches!(it, Effect::Attach { .. }));
        assert_eq!(taken, under == AGAIN, "{said:?}");
        let said = p.tell(Event::FromDecode(
            AGAIN,
            DecodeToPrefill::OfferEnded { offer },
        ));
        assert_eq!(
            endings(&said).is_empty(),
            taken,
            "D's answer counts: {said:?}"
        );
    }
}

/// H-3: as long as this side's endpoint is being destroyed nothing attaches to its arena again. D,
/// which is back meanwhile and still has that arena, is told so, and makes another.
#[test]
fn h3_nothing_attaches_to_an_arena_whose_endpoint_is_being_destroyed() {
    for destroyed in [false, true] {
        let mut p = PrefillRig::connected(16);
        p.ticketed(1, &spec(1, 8, 1));
        assert_eq!(detached(&lost(&mut p)), [arena(1)]);
        if destroyed {
            p.tell(Event::Detached { arena: arena(1) });
        }
        p.connect(AGAIN);
        let offer = offers(&p.attempt(2, &spec(2, 8, 1)))[0];
        let said = p.tell(Event::FromDecode(AGAIN, two_pages(2, offer, link(AGAIN))));
        let attaches = said.iter().any(|e| matches!(e, Effect::Attach { .. }));
        let unsettled = |message: &PrefillToDecode| matches!(message, PrefillToDecode::Unsettled { slots, .. } if slots.is_empty());
        let unsettled = to_decode(&said).iter().any(unsettled);
        assert_eq!((attaches, unsettled), (destroyed, !destroyed), "{said:?}");
    }
}

#[test]
fn an_arena_that_cannot_be_reached_is_reported_so_that_d_makes_another() {
    let mut p = PrefillRig::connected(16);
    let of = offers(&p.attempt(1, &spec(1, 14, 1)))[0];
    p.ticket(of, 1, 4, 1);
    let said = p.attached(1, false);
    let unsettled = PrefillToDecode::Unsettled {
        handoff: handoff(1),
        rank: 0,
        slots: vec![],
    };
    assert_eq!(to_decode(&said), [unsettled]);
    let next = offers(&p.attempt(2, &spec(2, 14, 1)))[0];
    let said = p.ticket(next, 2, 4, 1);
    assert!(
        matches!(to_decode(&said)[..], [PrefillToDecode::Unsettled { .. }]),
        "nor later"
    );
}

/// A life speaks for what it has minted and was offered, and for nothing else.
#[test]
fn h8_another_d_cannot_answer_for_this_one() {
    let mut p = PrefillRig::connected(16);
    p.dial(AGAIN, hello(NEIGHBOUR, Role::Decode));
    p.tell(Event::FromDecode(AGAIN, DecodeToPrefill::Synced));
    let first = p.ticketed(1, &spec(1, 8, 1));
    let said = p.chunk(first, 100);
    p.written(submitted(&said)[0].0, true);
    let unanswered = offers(&p.attempt(2, &spec(2, 8, 1)))[0];
    let (handoff, rank, offer) = (handoff(1), 0, unanswered);
    let strange = [
        DecodeToPrefill::Committed { handoff },
        DecodeToPrefill::Cancel { handoff },
        DecodeToPrefill::Taken {
            handoff,
            rank,
            batch: 0,
        },
        DecodeToPrefill::Ended {
            handoff,
            rank,
            answers: Answers::Closed,
        },
        DecodeToPrefill::Faulty {
            offer,
            fault: handoff::Fault::WrongTokens,
        },
        DecodeToPrefill::Busy { offer, after_ms: 0 },
        DecodeToPrefill::OfferEnded { offer },
    ];
    for message in strange {
        let said = p.tell(Event::FromDecode(AGAIN, message.clone()));
        assert!(said.is_empty(), "{message:?}: {said:?}");
    }
    assert_eq!(p.machine.load(), (0, 2));
    let said = p.hear_decode(DecodeToPrefill::Committed { handoff });
    assert_eq!(endings(&said), [(1, Ending::Finished)], "this one can");
}

#[test]
fn h18_a_cancel_for_what_p_does_not_hold_is_closed_for_every_rank() {
    let mut p = PrefillRig::new(8, 2, false, |_| ());
    p.connect(D);
    let handoff = handoff(9);
    let said = p.hear_decode(DecodeToPrefill::Cancel { handoff });
    let how = Closing::Abandoned { why: None };
    let closed = |rank| PrefillToDecode::Closed {
        handoff,
        rank,
        how: how.clone(),
    };
    assert_eq!(to_decode(&said), [closed(0), closed(1)]);
}

/// Found by a walk: a decode that took Abandoned for Sealed left P waiting for ever.
#[test]
fn h11_committed_answers_whatever_was_closed() {
    let mut p = PrefillRig::connected(8);
    p.ticketed(1, &spec(1, 14, 1));
    let handoff = handoff(1);
    p.hear_decode(DecodeToPrefill::Cancel { handoff });
    assert_eq!(p.machine.load(), (0, 1), "Abandoned, not answered");
    p.hear_decode(DecodeToPrefill::Committed { handoff });
    assert!(p.machine.at_rest());
    assert_eq!(p.counts().cached, 0);
}

#[test]
fn h8_a_second_ticket_for_one_offer_is_closed_and_changes_nothing() {
    let mut p = PrefillRig::connected(8);
    let of = p.ticketed(1, &spec(1, 14, 1));
    assert!(p.ticket(of, 1, 4, 1).is_empty(), "the same again");
    let said = p.ticket(of, 2, 4, 1);
    let closed = PrefillToDecode::Closed {
        handoff: handoff(2),
        rank: 0,
        how: Closing::Abandoned { why: None },
    };
    assert_eq!(to_decode(&said), [closed]);
}

#[test]
fn hello_is_compared_here_too() {
    let mut p = PrefillRig::new(8, 1, false, |_| ());
    let mut other = hello(DECODE, Role::Decode);
    other.layout = [9; 32];
    let said = p.dial(D, other);
    let [
        Effect::Close(D, Hangup::Incompatible { what, .. }),
        Effect::Disarm(Timer::Greeting(D)),
    ] = &said[..]
    else {
        panic!("{said:?}");
    };
    assert_eq!(*what, Differs::Layout);
    p.tell(Event::Dialled(AGAIN));
    let said = p.tell(Event::FromDecode(AGAIN, DecodeToPrefill::Synced));
    let closed = Effect::Close(AGAIN, Hangup::OutOfOrder);
    assert_eq!(said, [closed, Effect::Disarm(Timer::Greeting(AGAIN))]);
}
