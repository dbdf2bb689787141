//! H-2 and the last row of "The unhappy paths": whatever differs from what was granted or stated
//! is a fault of its own kind. The attempt fails with it, the audit log has it, the writer's arena
//! is fenced; nothing is committed, and another writer's handoff does not notice.

use crate::decode_rig::{DecodeRig, Ticket, audits, endings, fences, starts, ticket, to_prefill};
use crate::rig::{NEIGHBOUR, PREFILL, checksum, spec};
use handoff::decode::{Effect, Event};
use handoff::{Closing, DecodeToPrefill, Ending, Failure, Fault, Manifest};
use pages::StatedTag;

/// A ticket of four pages for a prompt of 14 tokens, and a neighbour's handoff beside it.
fn scene() -> (DecodeRig, Ticket, Ticket) {
    let mut d = DecodeRig::new(32, |_| ());
    d.connect(PREFILL, 10, 1);
    d.connect(NEIGHBOUR, 20, 1);
    let ticket = d.granted(PREFILL, 10, 1, &spec(1, 14, 2));
    let other = d.granted(NEIGHBOUR, 20, 2, &spec(2, 9, 2));
    (d, ticket, other)
}

/// What was said is this fault and nothing else, and the neighbour still gets its answer.
fn assert_fault(mut d: DecodeRig, said: &[Effect], fault: Fault, ticket: &Ticket, other: &Ticket) {
    let failure = Failure::Integrity(fault);
    let audits: Vec<_> = audits(said).into_iter().map(|(what, _)| what).collect();
    assert_eq!(audits, [failure], "one audit record of this kind");
    assert_eq!(endings(said), [(1, Ending::Failed(failure))]);
    assert_eq!(fences(said), [ticket.landings[0].arena], "{fault:?}");
    assert!(!starts(said), "nothing was committed");
    let committed = to_prefill(said)
        .into_iter()
        .any(|message| matches!(message, DecodeToPrefill::Committed { .. }));
    assert!(!committed, "nobody was told so");
    d.fenced(ticket.landings[0].arena);
    let landing = d.counts().granted;
    assert_eq!(
        landing,
        other.tags.len(),
        "its pages are free, and only its"
    );
    d.land_all(20, other);
    let said = d.close(20, other.handoff, 0, other.sealed(Some(1)));
    assert!(starts(&said), "the neighbour is answered: {said:?}");
}

/// One batch with everything in it, damaged by `damage`, is found before a byte of it is read.
fn assert_manifest_fault(fault: Fault, damage: impl FnOnce(&mut Manifest, &Ticket)) {
    let (mut d, ticket, other) = scene();
    let mut manifest = ticket.manifest(0, 0, 0..4);
    damage(&mut manifest, &other);
    let said = d.state(10, &manifest);
    let copied = |effect: &Effect| matches!(effect, Effect::Copy { .. });
    assert!(!said.iter().any(copied), "{fault:?}: nothing is copied");
    assert_fault(d, &said, fault, &ticket, &other);
}

#[test]
fn h2_a_tag_that_was_never_granted() {
    assert_manifest_fault(Fault::WrongTag, |m, _| m.pages[1].tag = StatedTag(9999));
    assert_manifest_fault(Fault::WrongTag, |m, _| m.pages[1].tag = StatedTag(0));
}

#[test]
fn h2_a_tag_of_another_handoff() {
    assert_manifest_fault(Fault::WrongTag, |m, other| m.pages[2].tag = other.tags[2]);
}

#[test]
fn h2_the_audit_record_names_the_tag_as_it_was_stated() {
    let (mut d, ticket, _) = scene();
    let mut manifest = ticket.manifest(0, 0, 0..4);
    manifest.pages[1].tag = StatedTag(9999);
    let said = d.state(10, &manifest);
    let failure = Failure::Integrity(Fault::WrongTag);
    assert_eq!(audits(&said), [(failure, Some(StatedTag(9999)))]);
}

#[test]
fn h2_pages_in_the_wrong_order() {
    assert_manifest_fault(Fault::WrongOrdinal, |m, _| {
        let tag = m.pages[0].tag;
        m.pages[0].tag = m.pages[1].tag;
        m.pages[1].tag = tag;
    });
}

#[test]
fn h2_an_ordinal_behind_the_prompt() {
    assert_manifest_fault(Fault::WrongOrdinal, |m, _| m.pages[3].ordinal = 4);
    assert_manifest_fault(Fault::WrongOrdinal, |m, _| m.pages[3].ordinal = u32::MAX);
}

#[test]
fn h2_more_or_fewer_slots_than_the_prompt_has() {
    assert_manifest_fault(Fault::WrongFill, |m, _| m.pages[3].filled = 4);
    assert_manifest_fault(Fault::WrongFill, |m, _| m.pages[3].filled = 1);
    assert_manifest_fault(Fault::WrongFill, |m, _| m.pages[0].filled = 0);
    assert_manifest_fault(Fault::WrongFill, |m, _| m.pages[0].filled = u16::MAX);
}

#[test]
fn h2_a_page_twice_in_one_batch() {
    assert_manifest_fault(Fault::PageTwice, |m, _| {
        let again = m.pages[0];
        m.pages[3] = handoff::StatedPage { slot: 9, ..again };
    });
}

#[test]
fn h2_a_page_twice_in_two_batches() {
    for ended in [false, true] {
        let (mut d, ticket, other) = scene();
        let first = ticket.manifest(0, 0, 0..2);
        d.state(10, &first);
        if ended {
            d.copied(&first);
        }
        let mut second = ticket.manifest(0, 1, 1..3);
        second.pages[0].slot = 9;
        let said = d.state(10, &second);
        if !ended {
            // The copy in flight writes its pages until it has ended (H-3).
            assert_eq!(d.counts().quarantined, 2);
            d.copied(&first);
        }
        assert_fault(d, &said, Fault::PageTwice, &ticket, &other);
    }
}

#[test]
fn h2_a_slot_that_is_not_there_or_busy_or_named_twice() {
    assert_manifest_fault(Fault::BadBatch, |m, _| m.pages[0].slot = 16);
    assert_manifest_fault(Fault::BadBatch, |m, _| m.pages[0].slot = u32::MAX);
    assert_manifest_fault(Fault::BadBatch, |m, _| m.pages[0].slot = 1);
    let (mut d, ticket, other) = scene();
    let first = ticket.manifest(0, 0, 0..2);
    d.state(10, &first);
    let mut second = ticket.manifest(0, 1, 2..4);
    second.pages[0].slot = 0;
    let said = d.state(10, &second);
    d.copied(&first);
    assert_fault(d, &said, Fault::BadBatch, &ticket, &other);
}

#[test]
fn h2_a_slot_is_free_again_when_its_copy_has_ended() {
    let (mut d, ticket, _) = scene();
    let first = ticket.manifest(0, 0, 0..2);
    d.state(10, &first);
    d.copied(&first);
    let mut second = ticket.manifest(0, 1, 2..4);
    second.pages[0].slot = 0;
    let said = d.state(10, &second);
    assert!(matches!(said[..], [Effect::Copy { .. }]), "{said:?}");
}

#[test]
fn h2_a_batch_of_nothing_or_of_too_much() {
    assert_manifest_fault(Fault::BadBatch, |m, _| m.pages.clear());
    assert_manifest_fault(Fault::BadBatch, |m, _| {
        let last = m.pages[3];
        m.pages.push(last);
    });
}

#[test]
fn h2_a_batch_number_with_other_content_while_its_copy_is_in_flight() {
    let (mut d, ticket, other) = scene();
    let first = ticket.manifest(0, 0, 0..2);
    d.state(10, &first);
    let said = d.state(10, &ticket.manifest(0, 0, 2..4));
    d.copied(&first);
    assert_fault(d, &said, Fault::BadBatch, &ticket, &other);
}

/// Regression: such a statement about a handoff that has ended brought down the arena that its
/// writer had got meanwhile, and left the handoff waiting for a fence that was over.
#[test]
fn h18_other_content_for_a_handoff_that_has_ended_is_answered_and_harms_nobody() {
    let (mut d, ticket, _) = scene();
    let first = ticket.manifest(0, 0, 0..2);
    d.state(10, &first);
    d.hear_gateway(handoff::GatewayToDecode::Cancel {
        attempt: crate::rig::attempt(1),
    });
    let said = d.state(10, &ticket.manifest(0, 0, 2..4));
    let handoff = ticket.handoff;
    assert_eq!(to_prefill(&said), [DecodeToPrefill::Cancel { handoff }]);
    assert!(audits(&said).is_empty() && fences(&said).is_empty());
}

#[test]
fn h2_an_arena_of_another_writer() {
    assert_manifest_fault(Fault::WrongArena, |m, other| {
        m.arena = other.landings[0].arena;
    });
}

#[test]
fn h2_bytes_that_are_not_those_that_were_stated() {
    let (mut d, ticket, other) = scene();
    let manifest = ticket.manifest(0, 0, 0..4);
    d.state(10, &manifest);
    let checksums = vec![checksum(0), checksum(1), checksum(2) ^ 1, checksum(3)];
    let said = d.tell(Event::Copied {
        handoff: ticket.handoff,
        rank: 0,
        batch: 0,
        checksums: Some(checksums),
    });
    let failure = Failure::Integrity(Fault::WrongChecksum);
    assert_eq!(audits(&said), [(failure, Some(ticket.tags[2]))]);
    assert_fault(d, &said, Fault::WrongChecksum, &ticket, &other);
}

#[test]
fn h2_a_copy_that_could_not_be_read_fails_the_attempt_without_blaming_bytes() {
    for checksums in [None, Some(vec![1])] {
        let (mut d, ticket, _) = scene();
        d.state(10, &ticket.manifest(0, 0, 0..4));
        let said = d.tell(Event::Copied {
            handoff: ticket.handoff,
            rank: 0,
            batch: 0,
            checksums,
        });
        let failed = Failure::PeerFailed(handoff::Stage::Transfer);
        assert_eq!(endings(&said), [(1, Ending::Failed(failed))]);
        assert!(!starts(&said));
    }
}

/// Closing in a way that does not cover exactly the prompt.
fn assert_closing_fault(fault: Fault, landed: std::ops::Range<u32>, how: Closing) {
    let (mut d, ticket, other) = scene();
    if !landed.is_empty() {
        let manifest = ticket.manifest(0, 0, landed);
        d.state(10, &manifest);
        d.copied(&manifest);
    }
    let said = d.close(10, ticket.handoff, 0, how);
    assert_fault(d, &said, fault, &ticket, &other);
}

fn sealed(batches: u32, pages: u32, first: Option<Vec<u8>>) -> Closing {
    Closing::Sealed {
        batches,
        pages,
        first,
    }
}

#[test]
fn h2_fewer_pages_or_batches_than_the_prompt_has() {
    let first = || Some(vec![1]);
    assert_closing_fault(Fault::Short, 0..3, sealed(1, 4, first()));
    assert_closing_fault(Fault::Short, 1..4, sealed(1, 4, first()));
    assert_closing_fault(Fault::MissingPage, 0..3, sealed(1, 3, first()));
    assert_closing_fault(Fault::Short, 0..4, sealed(2, 4, first()));
    assert_closing_fault(Fault::Short, 0..4, sealed(u32::MAX, 4, first()));
    assert_closing_fault(Fault::Short, 0..4, sealed(1, u32::MAX, first()));
    assert_closing_fault(Fault::MissingPage, 0..0, sealed(0, 0, first()));
}

#[test]
fn h2_nobody_stated_the_first_token() {
    assert_closing_fault(Fault::FirstToken, 0..4, sealed(1, 4, None));
}

/// The certificate of a writer that lied is void: its answer waits for the fence, also if it is
/// asked for again.
#[test]
fn h7_a_voided_certificate_is_answered_after_the_fence() {
    let (mut d, ticket, _) = scene();
    let how = sealed(1, 4, Some(vec![1]));
    let said = d.close(10, ticket.handoff, 0, how.clone());
    let ended = DecodeToPrefill::Ended {
        handoff: ticket.handoff,
        rank: 0,
        answers: handoff::Answers::Closed,
    };
    assert!(!to_prefill(&said).contains(&ended));
    let said = d.close(10, ticket.handoff, 0, how);
    assert!(to_prefill(&said).is_empty(), "not yet: {said:?}");
    let said = d.fenced(ticket.landings[0].arena);
    assert_eq!(to_prefill(&said), [ended]);
}

/// Its successor in the same life gets another arena, and everything is as before.
#[test]
fn a_fault_costs_one_arena_and_no_more() {
    let (mut d, ticket, _) = scene();
    let said = d.close(10, ticket.handoff, 0, sealed(1, 4, None));
    assert_eq!(fences(&said).len(), 1);
    let said = d.fenced(ticket.landings[0].arena);
    assert_eq!(d.open_arenas(&said).len(), 1);
    let prompt = spec(3, 14, 2);
    d.expect(3, &prompt, PREFILL);
    let said = d.offer(PREFILL, 10, 3, &prompt);
    let next = super::decode_rig::ticket(&said, &prompt).expect("a ticket again");
    assert_ne!(next.landings[0].arena, ticket.landings[0].arena);
    assert!(
        next.tags.iter().all(|tag| !ticket.tags.contains(tag)),
        "H-8"
    );
}

#[test]
fn h8_a_manifest_of_another_peer_for_this_handoff_is_not_believed() {
    let (mut d, mine, _) = scene();
    let said = d.state(20, &mine.manifest(0, 0, 0..4));
    let handoff = mine.handoff;
    assert_eq!(to_prefill(&said), [DecodeToPrefill::Cancel { handoff }]);
    assert!(audits(&said).is_empty());
    d.land_all(10, &mine);
    let said = d.close(10, handoff, 0, mine.sealed(Some(1)));
    assert!(starts(&said), "its own writer goes on");
    assert!(ticket(&said, &spec(1, 14, 2)).is_none());
}
