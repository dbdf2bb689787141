//! Connections: Hello compares, Sync answers whatever was lost, once (H-18).

use crate::decode_rig::{DecodeRig, offer_id, starts, ticket, to_prefill};
use crate::rig::Epoch;
use crate::rig::{DECODE, PREFILL, attempt, hello, spec};
use handoff::decode::{Effect, Event};
use handoff::{
    Answers, Closing, Conn, DecodeToPrefill, Differs, GatewayToDecode, HandoffId, Hangup, Hello,
    PrefillToDecode, Role,
};

pub fn unknown_handoff(n: u64) -> HandoffId {
    let epoch = Epoch::new(DECODE);
    HandoffId { epoch, n }
}

fn scene() -> DecodeRig {
    let mut d = DecodeRig::new(32, |_| ());
    d.connect(PREFILL, 10, 1);
    d
}

/// The connection breaks; P dials again with this snapshot. What decode says after Hello.
fn again(
    d: &mut DecodeRig,
    conn: u64,
    tickets: &[HandoffId],
    offers: &[u64],
) -> Vec<DecodeToPrefill> {
    d.tell(Event::Disconnected(Conn(conn - 1)));
    d.hello(PREFILL, conn, 1);
    let offers: Vec<_> = offers.iter().map(|n| offer_id(PREFILL, *n)).collect();
    let said = d.sync(conn, tickets, &offers);
    let mut messages = to_prefill(&said);
    assert_eq!(
        messages.pop(),
        Some(DecodeToPrefill::Synced),
        "the last word: {said:?}"
    );
    messages
}

#[test]
fn whatever_must_be_equal_is_compared_once_in_hello() {
    type Case = (Differs, &'static str, &'static str, fn(&mut Hello));
    let cases: [Case; 5] = [
        (Differs::Role, "Prefill", "Decode", |h| {
            h.role = Role::Decode
        }),
        (
            Differs::Model,
            "0101010101010101",
            "0505050505050505",
            |h| h.model = [5; 32],
        ),
        (
            Differs::Layout,
            "0202020202020202",
            "0606060606060606",
            |h| h.layout = [6; 32],
        ),
        (Differs::PageSize, "4", "16", |h| {
            h.capacity = h.capacity.map(|c| handoff::Capacity { page_size: 16, ..c });
        }),
        (
            Differs::Capacity,
            "one of Prefill, with pages of at least one token",
            "None",
            |h| {
                h.capacity = None;
            },
        ),
    ];
    for (what, expected, got, damage) in cases {
        let mut d = DecodeRig::new(32, |_| ());
        let mut hello = hello(PREFILL, Role::Prefill);
        damage(&mut hello);
        let said = d.hear_prefill(10, PrefillToDecode::Hello(hello));
        let (expected, got) = (expected.into(), got.into());
        let why = Hangup::Incompatible {
            what,
            expected,
            got,
        };
        assert_eq!(said, [Effect::Close(Conn(10), why)]);
    }
}

#[test]
fn a_life_keeps_its_number_of_ranks() {
    let mut d = scene();
    for ranks in [0, 2, 65, u16::MAX] {
        let said = d.hello(PREFILL, 11, ranks);
        assert!(
            matches!(said[..], [Effect::Close(Conn(11), _)]),
            "{ranks} ranks: {said:?}"
        );
    }
    let said = d.hello(99, 12, u16::MAX);
    assert_eq!(said, [Effect::Close(Conn(12), Hangup::Refused)]);
}

#[test]
fn nothing_but_sync_follows_hello_and_nothing_but_once() {
    let mut d = DecodeRig::new(32, |_| ());
    d.hello(PREFILL, 10, 1);
    let said = d.close(10, unknown_handoff(1), 0, Closing::Abandoned { why: None });
    assert!(said.contains(&Effect::Close(Conn(10), Hangup::OutOfOrder)));
    d.connect(PREFILL, 11, 1);
    let said = d.sync(11, &[], &[]);
    assert!(said.contains(&Effect::Close(Conn(11), Hangup::OutOfOrder)));
}

#[test]
fn a_new_connection_of_the_same_life_replaces_the_old_one() {
    let mut d = scene();
    let said = d.hello(PREFILL, 11, 1);
    assert_eq!(said[0], Effect::Close(Conn(10), Hangup::Replaced));
    let said = d.close(10, unknown_handoff(1), 0, Closing::Abandoned { why: None });
    assert_eq!(
        said,
        [Effect::Close(Conn(10), Hangup::OutOfOrder)],
        "effects die with it"
    );
}

#[test]
fn h18_a_lost_ticket_is_said_again_and_is_the_same() {
    let mut d = scene();
    let prompt = spec(1, 14, 2);
    let lost = d.granted(PREFILL, 10, 1, &prompt);
    let counts = d.counts();
    let said = again(&mut d, 11, &[], &[1]);
    let [DecodeToPrefill::Ticket { handoff, tags, .. }] = &said[..] else {
        panic!("one answer: {said:?}");
    };
    assert_eq!(
        (*handoff, tags),
        (lost.handoff, &lost.tags),
        "D-17: no second grant"
    );
    assert_eq!(d.counts(), counts);
}

#[test]
fn h18_a_lost_offer_is_over_and_may_be_made_anew() {
    let mut d = scene();
    let prompt = spec(1, 14, 2);
    d.expect(1, &prompt, PREFILL);
    let offer = offer_id(PREFILL, 1);
    let said = again(&mut d, 11, &[], &[1, 1]);
    let after_ms = 0;
    assert_eq!(
        said,
        [DecodeToPrefill::Busy { offer, after_ms }],
        "one answer"
    );
    let said = d.offer(PREFILL, 11, 1, &prompt);
    assert!(ticket(&said, &prompt).is_some());
}

/// The ticket was lost, and its handoff has ended meanwhile: the answer is that, and what P never
/// knew of counts as closed.
#[test]
fn h18_a_lost_ticket_whose_handoff_has_ended() {
    let mut d = scene();
    d.granted(PREFILL, 10, 1, &spec(1, 14, 2));
    d.tell(Event::Disconnected(Conn(10)));
    d.hear_gateway(GatewayToDecode::Cancel {
        attempt: attempt(1),
    });
    assert!(!d.machine.at_rest(), "P may hold the ticket and write");
    let offer = offer_id(PREFILL, 1);
    let said = again(&mut d, 11, &[], &[1]);
    assert_eq!(said, [DecodeToPrefill::OfferEnded { offer }]);
    assert!(d.machine.at_rest());
}

#[test]
fn h18_a_handoff_that_p_does_not_list_counts_as_abandoned() {
    let mut d = scene();
    d.granted(PREFILL, 10, 1, &spec(1, 14, 2));
    let listed = d.granted(PREFILL, 10, 2, &spec(2, 14, 2));
    assert!(
        again(&mut d, 11, &[listed.handoff], &[]).is_empty(),
        "nothing was taken yet"
    );
    assert_eq!(d.machine.load(), (1, 1), "the other goes on");
    assert_eq!(d.counts().granted, 4);
}

#[test]
fn h18_a_lost_taken_is_said_again() {
    let mut d = scene();
    let ticket = d.granted(PREFILL, 10, 1, &spec(1, 14, 2));
    let (one, two) = (ticket.manifest(0, 0, 0..2), ticket.manifest(0, 1, 2..4));
    d.state(10, &one);
    d.state(10, &two);
    d.copied(&two);
    let handoff = ticket.handoff;
    let taken = |batch| DecodeToPrefill::Taken {
        handoff,
        rank: 0,
        batch,
    };
    assert_eq!(
        again(&mut d, 11, &[handoff], &[]),
        [taken(1)],
        "a set, not a mark"
    );
    assert!(
        d.state(11, &one).is_empty(),
        "joins the copy in flight: one for each batch"
    );
    assert_eq!(to_prefill(&d.state(11, &two)), [taken(1)]);
    assert_eq!(to_prefill(&d.copied(&one)), [taken(0)]);
    let how = Closing::Sealed {
        batches: 2,
        pages: 4,
        first: Some(vec![1]),
    };
    assert!(starts(&d.close(11, handoff, 0, how)));
}

#[test]
fn h18_a_lost_manifest_is_stated_again_and_copied_then() {
    let mut d = scene();
    let ticket = d.granted(PREFILL, 10, 1, &spec(1, 14, 2));
    again(&mut d, 11, &[ticket.handoff], &[]);
    d.land_all(11, &ticket);
    assert!(starts(&d.close(
        11,
        ticket.handoff,
        0,
        ticket.sealed(Some(1))
    )));
}

#[test]
fn h18_a_lost_committed_is_said_again_and_commits_once() {
    let mut d = scene();
    let ticket = d.committed(PREFILL, 10, 1, &spec(1, 14, 2));
    let committed = DecodeToPrefill::Committed {
        handoff: ticket.handoff,
    };
    assert_eq!(
        again(&mut d, 11, &[ticket.handoff], &[]),
        std::slice::from_ref(&committed)
    );
    let said = d.close(11, ticket.handoff, 0, ticket.sealed(Some(1)));
    assert_eq!(to_prefill(&said), [committed]);
    assert!(!starts(&said));
}

#[test]
fn h18_a_lost_answer_to_closed_is_said_again_also_when_all_is_forgotten() {
    let mut d = scene();
    let ticket = d.granted(PREFILL, 10, 1, &spec(1, 14, 2));
    let handoff = ticket.handoff;
    d.close(10, handoff, 0, Closing::Abandoned { why: None });
    assert!(d.machine.at_rest());
    let said = again(&mut d, 11, &[handoff], &[]);
    assert_eq!(said, [DecodeToPrefill::Cancel { handoff }]);
    let answers = Answers::Closed;
    let ended = DecodeToPrefill::Ended {
        handoff,
        rank: 0,
        answers,
    };
    let said = d.close(11, handoff, 0, Closing::Abandoned { why: None });
    assert_eq!(to_prefill(&said), [ended]);
}

#[test]
fn h18_whatever_is_unknown_is_answered() {
    let mut d = scene();
    let ended = |handoff, rank, answers| DecodeToPrefill::Ended {
        handoff,
        rank,
        answers,
    };
    let foreign = HandoffId {
        epoch: Epoch::new(77),
        n: 1,
    };
    for handoff in [unknown_handoff(5), unknown_handoff(u64::MAX), foreign] {
        for rank in [0, u16::MAX] {
            let said = d.close(10, handoff, rank, Closing::Abandoned { why: None });
            assert_eq!(to_prefill(&said), [ended(handoff, rank, Answers::Closed)]);
            let slots = vec![1, u32::MAX];
            let said = d.hear_prefill(
                10,
                PrefillToDecode::Unsettled {
                    handoff,
                    rank,
                    slots,
                },
            );
            assert_eq!(
                to_prefill(&said),
                [ended(handoff, rank, Answers::Unsettled)]
            );
        }
    }
}

/// Law: identity is ours. A ticket of an earlier life of decode has the number of one that is known
/// here, and says nothing about it.
#[test]
fn h8_a_ticket_of_another_life_of_decode_is_not_the_one_of_its_number() {
    let mut d = scene();
    let ticket = d.granted(PREFILL, 10, 1, &spec(1, 14, 2));
    d.land_all(10, &ticket);
    let of_this_life = ticket.handoff;
    let of_another = HandoffId {
        epoch: Epoch::new(DECODE + 1),
        ..of_this_life
    };
    let said = again(&mut d, 11, &[of_another, of_this_life], &[]);
    let of = |handoff: HandoffId| {
        let about = said.iter().filter(|message| match message {
            DecodeToPrefill::Cancel { handoff: of } => *of == handoff,
            DecodeToPrefill::Taken { handoff: of, .. } => *of == handoff,
            _ => false,
        });
        about.cloned().collect::<Vec<_>>()
    };
    let handoff = of_another;
    assert_eq!(of(of_another), [DecodeToPrefill::Cancel { handoff }]);
    let (handoff, rank, batch) = (of_this_life, 0, 0);
    let taken = DecodeToPrefill::Taken {
        handoff,
        rank,
        batch,
    };
    assert_eq!(of(of_this_life), [taken], "as it was");
}

/// Tickets and offers that nobody knows, by the ten thousand.
#[test]
fn a_long_snapshot_is_answered_item_by_item() {
    let mut d = scene();
    let tickets: Vec<_> = (0..20_000).map(unknown_handoff).collect();
    let offers: Vec<_> = (0..20_000).collect();
    let said = again(&mut d, 11, &tickets, &offers);
    assert_eq!(said.len(), 40_000);
    assert!(matches!(said[0], DecodeToPrefill::Cancel { .. }));
    assert!(matches!(
        said[39_999],
        DecodeToPrefill::Busy { after_ms: 0, .. }
    ));
}

/// What has been taken matters to a handoff that goes on. One that is over is to be closed.
#[test]
fn h18_a_lost_cancel_is_said_again() {
    let mut d = scene();
    let ticket = d.granted(PREFILL, 10, 1, &spec(1, 14, 2));
    let batch = ticket.manifest(0, 0, 0..2);
    d.state(10, &batch);
    d.copied(&batch);
    d.tell(Event::Disconnected(Conn(10)));
    d.hear_gateway(GatewayToDecode::Cancel {
        attempt: attempt(1),
    });
    let handoff = ticket.handoff;
    let answers = again(&mut d, 11, &[handoff], &[]);
    assert_eq!(answers, [DecodeToPrefill::Cancel { handoff }]);
}
