//! Prefill with a ticket: passes, batches, certificates. Nothing is certified before every write has
//! completed (H-7), nothing leaves behind the filled slots (H-17).

use crate::prefill_rig::{
    D, PrefillRig, abandoned, arena, detached, endings, handoff, offers, submitted, to_decode,
};
use crate::rig::{link, spec};
use handoff::prefill::{Effect, Event};
use handoff::{
    Answers, Closing, DecodeToPrefill, Ending, Failure, LandingSite, NoToken, PrefillToDecode,
    Stage,
};

fn closed(n: u64, rank: u16, how: Closing) -> PrefillToDecode {
    let handoff = handoff(n);
    PrefillToDecode::Closed { handoff, rank, how }
}

#[test]
fn h7_sealed_only_after_the_last_write_has_completed() {
    let mut p = PrefillRig::connected(8);
    let of = p.ticketed(1, &spec(1, 14, 1));
    let said = p.chunk(of, 8);
    let [(one, first_pages)] = &submitted(&said)[..] else {
        panic!("transfer overlaps compute: {said:?}");
    };
    assert_eq!(first_pages.len(), 2);
    let said = p.chunk(of, 100);
    let [(two, last_pages)] = &submitted(&said)[..] else {
        panic!("the rest: {said:?}");
    };
    let filled: Vec<u16> = last_pages.iter().map(|page| page.filled).collect();
    assert_eq!(filled, [4, 2], "H-17: nothing behind the filled slots");
    let said = p.written(*two, true);
    assert!(
        matches!(to_decode(&said)[..], [PrefillToDecode::Landed(_)]),
        "one is in flight"
    );
    let said = p.written(*one, true);
    let [PrefillToDecode::Landed(manifest), close] = &to_decode(&said)[..] else {
        panic!("stated, then closed: {said:?}");
    };
    let tags: Vec<u64> = manifest.pages.iter().map(|page| page.tag.0).collect();
    assert_eq!(tags, [1000, 1001], "the tags of the ticket, in its order");
    let how = Closing::Sealed {
        batches: 2,
        pages: 4,
        first: Some(vec![7]),
    };
    assert_eq!(*close, closed(1, 0, how));
    assert_eq!(p.counts().free, 4, "sources are held until D has committed");
    let handoff = handoff(1);
    let said = p.hear_decode(DecodeToPrefill::Committed { handoff });
    assert_eq!(endings(&said), [(1, Ending::Finished)]);
    assert!(p.machine.at_rest());
}

#[test]
fn h2_with_two_ranks_only_rank_zero_states_the_first_token() {
    let mut p = PrefillRig::new(8, 2, false, |_| ());
    p.connect(D);
    let of = offers(&p.attempt(1, &spec(1, 8, 1)))[0];
    p.ticket(of, 1, 2, 1);
    p.attached(1, true);
    p.attached(2, true);
    let said = p.chunk(of, 100);
    let writes = submitted(&said);
    assert_eq!(writes.len(), 2, "each rank its slice");
    let mut said = p.written(writes[0].0, true);
    said.extend(p.written(writes[1].0, true));
    let how = |first| Closing::Sealed {
        batches: 1,
        pages: 2,
        first,
    };
    let messages = to_decode(&said);
    assert!(messages.contains(&closed(1, 0, how(Some(vec![7])))));
    assert!(messages.contains(&closed(1, 1, how(None))));
}

#[test]
fn slots_come_back_with_taken_and_with_nothing_else() {
    let mut p = PrefillRig::connected(8);
    let of = p.ticketed(1, &spec(1, 24, 1));
    let said = p.chunk(of, 100);
    let writes = submitted(&said);
    assert_eq!(writes.len(), 2, "4 slots, 2 batches of 2");
    let mut said = p.written(writes[0].0, true);
    said.extend(p.written(writes[1].0, true));
    assert!(submitted(&said).is_empty(), "landed is not taken");
    let said = p.taken(1, 1);
    let [(_, pages)] = &submitted(&said)[..] else {
        panic!("the last batch: {said:?}");
    };
    let slots: Vec<u32> = pages.iter().map(|page| page.slot).collect();
    assert_eq!(slots, [2, 3], "those of the batch that was taken");
    assert!(p.taken(1, 1).is_empty(), "once");
}

/// H-7: Nothing is submitted twice inside a handoff (defect D-18), and what did not complete is
/// never certified.
#[test]
fn h7_a_failed_write_is_unsettled_and_not_sent_again() {
    let mut p = PrefillRig::connected(8);
    let of = p.ticketed(1, &spec(1, 14, 1));
    let writes = submitted(&p.chunk(of, 8));
    let said = p.written(writes[0].0, false);
    assert_eq!(endings(&said), [(1, Ending::Failed(Failure::Unsettled))]);
    let unsettled = PrefillToDecode::Unsettled {
        handoff: handoff(1),
        rank: 0,
        slots: vec![0, 1],
    };
    assert_eq!(to_decode(&said), [unsettled]);
    assert!(submitted(&said).is_empty());
    assert_eq!(
        p.counts().quarantined,
        2,
        "H-3: the late write still reads its sources"
    );
    assert!(
        p.ended(1, Answers::Closed).is_empty(),
        "not the answer to this"
    );
    let said = p.ended(1, Answers::Unsettled);
    assert_eq!(detached(&said), [arena(1)]);
    assert_eq!(
        p.counts().quarantined,
        2,
        "until this side's endpoint is destroyed"
    );
    p.tell(Event::Detached { arena: arena(1) });
    assert!(p.machine.at_rest());
    assert_eq!(p.counts().free, 8);
}

#[test]
fn a_failed_pass_is_abandoned_at_once() {
    for (why, failure) in [
        (NoToken::Compute, Failure::Compute),
        (NoToken::Form, Failure::Form),
    ] {
        let mut p = PrefillRig::connected(8);
        let offer = p.ticketed(1, &spec(1, 14, 1));
        p.tell(Event::ChunkBegin { offer, tokens: 8 });
        let said = p.tell(Event::ChunkFailed { offer, why });
        assert_eq!(endings(&said), [(1, Ending::Failed(failure))]);
        assert_eq!(
            to_decode(&said),
            [closed(1, 0, abandoned(failure))],
            "with the reason, which D cannot know"
        );
        assert_eq!(p.counts().free, 8);
    }
}

#[test]
fn h3_cancelled_in_a_pass_the_pages_stay_until_it_has_ended() {
    let mut p = PrefillRig::connected(8);
    let of = p.ticketed(1, &spec(1, 14, 1));
    p.tell(Event::ChunkBegin {
        offer: of,
        tokens: 8,
    });
    let handoff = handoff(1);
    let said = p.hear_decode(DecodeToPrefill::Cancel { handoff });
    let failure = Failure::PeerFailed(Stage::Transfer);
    assert_eq!(endings(&said), [(1, Ending::Failed(failure))]);
    assert_eq!(
        to_decode(&said),
        [closed(1, 0, Closing::Abandoned { why: None })],
        "nothing was submitted"
    );
    assert_eq!(p.counts().free, 4);
    p.tell(Event::ChunkEnd {
        offer: of,
        checksums: vec![1, 2],
        first: None,
    });
    assert_eq!(p.counts().free, 8);
    p.ended(1, Answers::Closed);
    assert!(p.machine.at_rest());
}

#[test]
fn h7_cancelled_with_a_write_in_flight_it_closes_when_that_has_completed() {
    let mut p = PrefillRig::connected(8);
    let of = p.ticketed(1, &spec(1, 14, 1));
    let writes = submitted(&p.chunk(of, 8));
    let handoff = handoff(1);
    let said = p.hear_decode(DecodeToPrefill::Cancel { handoff });
    assert!(to_decode(&said).is_empty(), "{said:?}");
    let said = p.written(writes[0].0, true);
    let last = to_decode(&said).pop();
    assert_eq!(last, Some(closed(1, 0, Closing::Abandoned { why: None })));
    assert!(
        p.hear_decode(DecodeToPrefill::Cancel { handoff })
            .is_empty(),
        "idempotent"
    );
}

/// A batch is sent when it is full, when it is the last, or when there is room for no more.
#[test]
fn a_batch_is_as_large_as_it_can_be() {
    let sizes = |said: &[Effect]| {
        let sizes = submitted(said).into_iter().map(|(_, pages)| pages.len());
        sizes.collect::<Vec<_>>()
    };
    let mut p = PrefillRig::connected(16);
    let first = p.ticketed(1, &spec(1, 12, 1));
    let second = p.ticketed(2, &spec(2, 16, 1));
    assert!(sizes(&p.chunk(first, 4)).is_empty(), "one more may come");
    assert_eq!(sizes(&p.chunk(first, 100)), [2, 1], "full, and the last");
    assert_eq!(sizes(&p.chunk(second, 4)), [1], "one slot is left");
}

/// Decode has the first page already: tags are for what is sent, from there on.
#[test]
fn h2_what_decode_has_is_not_sent_and_tags_count_from_there() {
    let mut p = PrefillRig::connected(8);
    let offer = offers(&p.attempt(1, &spec(1, 14, 1)))[0];
    p.hear_decode(DecodeToPrefill::Ticket {
        offer,
        handoff: handoff(1),
        under: link(D),
        tags: [71, 72, 73].map(pages::StatedTag).to_vec(),
        first: 1,
        landings: vec![LandingSite {
            rank: 0,
            arena: arena(1),
            slots: 4,
            address: Vec::new(),
        }],
        targets: Vec::new(),
    });
    p.attached(1, true);
    let mut stated = Vec::new();
    for (write, _) in submitted(&p.chunk(offer, 100)) {
        for message in to_decode(&p.written(write, true)) {
            if let PrefillToDecode::Landed(manifest) = message {
                stated.extend(manifest.pages.iter().map(|page| (page.ordinal, page.tag.0)));
            }
        }
    }
    assert_eq!(stated, [(1, 71), (2, 72), (3, 73)]);
}

#[test]
fn nothing_is_written_before_the_endpoint_is_there() {
    let mut p = PrefillRig::connected(8);
    let of = offers(&p.attempt(1, &spec(1, 14, 1)))[0];
    p.ticket(of, 1, 4, 1);
    assert!(submitted(&p.chunk(of, 100)).is_empty());
    assert_eq!(submitted(&p.attached(1, true)).len(), 2);
}

#[test]
fn writes_in_flight_are_bounded() {
    let mut p = PrefillRig::new(8, 1, false, |config| config.max_flying = 1);
    p.connect(D);
    let of = p.ticketed(1, &spec(1, 14, 1));
    let writes = submitted(&p.chunk(of, 100));
    assert_eq!(writes.len(), 1, "one of two");
    assert_eq!(submitted(&p.written(writes[0].0, true)).len(), 1);
}

/// Regression: a peer says how many slots an arena has, and that many were written down.
#[test]
fn an_arena_of_four_thousand_million_slots_costs_nothing() {
    let mut p = PrefillRig::connected(8);
    let of = offers(&p.attempt(1, &spec(1, 14, 1)))[0];
    let site = LandingSite {
        rank: 0,
        arena: arena(1),
        slots: u32::MAX,
        address: Vec::new(),
    };
    p.hear_decode(DecodeToPrefill::Ticket {
        offer: of,
        handoff: handoff(1),
        under: link(D),
        tags: (0..4).map(pages::StatedTag).collect(),
        first: 0,
        landings: vec![site],
        targets: Vec::new(),
    });
    p.attached(1, true);
    let said = p.chunk(of, 8);
    let slots: Vec<u32> = submitted(&said)[0].1.iter().map(|page| page.slot).collect();
    assert_eq!(slots, [0, 1]);
}
