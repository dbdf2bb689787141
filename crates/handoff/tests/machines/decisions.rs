//! The decisions of the product, each by itself. Some are guarded twice in the machines, so that no
//! run shows what becomes of one of them alone; here each says what it decides.

use crate::rig::Epoch;
use crate::rig::{DECODE, PREFILL, attempt, spec};
use handoff::{
    AfterPrefill, ArenaId, Arrived, Close, Closing, Conn, Decisions, Ending, Evidence, Failure,
    Fault, Refusal, Rejection, Stage, StatedPage, Write,
};
use pages::{Sound, StatedTag};
use std::collections::{BTreeMap, BTreeSet};

/// Law: capacity is measured, not declared.
#[test]
fn a_pool_carries_the_context_that_it_holds_and_not_a_token_more() {
    for (pool, carried) in [(1024, true), (1023, false), (1025, true), (0, false)] {
        assert_eq!(Sound.carries(pool, 1024), carried, "{pool}");
    }
}

/// H-2: what the gateway announced is the prompt, whatever prefill offers.
#[test]
fn h2_the_prompt_is_the_one_that_was_announced() {
    let (digest, other) = ([1; 32], [2; 32]);
    assert!(Sound.same_prompt((14, digest), (14, digest)));
    assert!(!Sound.same_prompt((14, digest), (13, digest)));
    assert!(!Sound.same_prompt((14, digest), (14, other)));
    for offered in [0, 13, 14, 15] {
        assert_eq!(Sound.prompt_length(14, offered), 14);
    }
    assert!(Sound.ticket_fits(4, 4) && !Sound.ticket_fits(3, 4) && !Sound.ticket_fits(5, 4));
    assert!(Sound.same_fill(2, 2) && !Sound.same_fill(2, 4) && !Sound.same_fill(4, 2));
    let nth = StatedPage {
        slot: 9,
        tag: StatedTag(8),
        ordinal: 3,
        filled: 4,
        checksum: 1,
    };
    assert_eq!(Sound.ordinal_of(&nth, 0), 3, "not the order of arrival");
    assert!(Sound.same_checksum(5, 5) && !Sound.same_checksum(5, 0));
}

#[test]
fn h2_a_writer_has_delivered_everything_or_is_short() {
    let taken = BTreeSet::from([0, 1]);
    let recorded = BTreeMap::from([(2, 1), (3, 1), (4, 1)]);
    let whole = Arrived {
        batches: 2,
        pages: 3,
        taken: &taken,
        recorded: &recorded,
        reserved: 2..5,
    };
    assert!(Sound.covers(whole.clone()));
    for reserved in [2..4, 2..6, 1..4, 1..5, 3..6, 3..5] {
        let arrived = Arrived {
            reserved,
            ..whole.clone()
        };
        assert!(!Sound.covers(arrived));
    }
    for (batches, pages) in [(1, 3), (3, 3), (2, 2), (2, 4)] {
        let arrived = Arrived {
            batches,
            pages,
            ..whole.clone()
        };
        assert!(!Sound.covers(arrived));
    }
    for stated in [0, 2] {
        assert!(!Sound.one_first_token(stated));
    }
    assert!(Sound.one_first_token(1));
}

/// Only successful completion says that a write has landed (H-1, H-7).
#[test]
fn h1_h7_only_a_completed_write_has_landed_and_frees_its_slots() {
    for (write, yes) in [
        (Write::Submitted, false),
        (Write::Completed, true),
        (Write::Lost, false),
    ] {
        assert_eq!(Sound.has_landed(write), yes);
        assert_eq!(Sound.frees_slots(write), yes);
    }
    for flying in [0, 1, 7] {
        let closed = Close::Closed(Closing::Abandoned { why: None });
        assert_eq!(Sound.may_close(&closed, flying), flying == 0);
        assert_eq!(Sound.may_close(&Close::Unsettled, flying), flying == 0);
        assert_eq!(Sound.may_answer_closed(flying), flying == 0);
    }
    assert!(Sound.may_take(true) && !Sound.may_take(false));
    assert!(Sound.may_ticket_into(false) && !Sound.may_ticket_into(true));
    assert_eq!(Sound.sent_slots(3, 16), 3, "nothing behind them (H-17)");
    assert_eq!(Sound.reserve_ahead(7, 8), 7);
    assert_eq!(Sound.reserve_ahead(7, 2), 2);
    assert!(Sound.leaves_the_right(3, 2, 5) && !Sound.leaves_the_right(3, 3, 5));
    assert!(Sound.yields() && Sound.may_grow(false) && !Sound.may_grow(true));
    assert_eq!(Sound.resumes_behind(4), 4);
}

/// H-15: a deadline may end ownership. It never proves quiescence, nor does anything like it.
#[test]
fn h3_h15_two_things_prove_that_a_writer_is_gone() {
    for (evidence, proves) in [
        (Evidence::Closed, true),
        (Evidence::Fenced, true),
        (Evidence::Deadline, false),
        (Evidence::Cancelled, false),
        (Evidence::Disconnected, false),
        (Evidence::Successor, false),
    ] {
        assert_eq!(Sound.proves_gone(evidence), proves, "{evidence:?}");
    }
    for fault in [Fault::WrongChecksum, Fault::Short, Fault::FirstToken] {
        assert!(Sound.voids(fault));
    }
    for (ticket, offer) in [(true, true), (true, false), (false, true)] {
        assert!(Sound.still_holds(ticket, offer));
    }
    assert!(!Sound.still_holds(false, false));
    assert!(Sound.may_release(false) && !Sound.may_release(true));
}

#[test]
fn h9_nothing_leaves_and_nothing_is_shared_before_everybody_has_closed() {
    assert!(Sound.may_commit(&[true, true], 0));
    assert!(!Sound.may_commit(&[true, false], 0) && !Sound.may_commit(&[false, true], 0));
    assert!(!Sound.may_commit(&[true, true], 1));
    assert!(!Sound.may_deliver(None));
    assert!(Sound.may_publish(true) && !Sound.may_publish(false));
    assert!(Sound.may_compute(true) && !Sound.may_compute(false));
}

#[test]
fn h8_a_name_is_new_or_it_is_somebody_elses() {
    let (d, p) = (Epoch::new(DECODE), Epoch::new(PREFILL));
    assert!(Sound.same_life(d, d) && !Sound.same_life(p, d));
    let arena = |n| ArenaId { epoch: d, n };
    assert!(Sound.same_arena(arena(1), arena(1)) && !Sound.same_arena(arena(1), arena(2)));
    assert!(Sound.same_endpoint(arena(1), arena(1)) && !Sound.same_endpoint(arena(1), arena(2)));
    assert!(Sound.is_new(1, None) && Sound.is_new(8, Some(7)));
    assert!(!Sound.is_new(7, Some(7)) && !Sound.is_new(6, Some(7)));
    let next = Sound.attempt_number(7, Some(attempt(3)), &spec(1, 4, 1));
    assert_eq!(next, 8, "whatever it follows");
    assert!(Sound.replaces(Conn(1), Conn(2)));
}

/// H-6: prefill's rejection is final; of any other ending decode has the last word.
#[test]
fn h6_what_prefills_word_is_worth() {
    let failed = Ending::Failed(Failure::PeerFailed(Stage::Transfer));
    let refused = Ending::Refused(Refusal::QueueFull);
    let rejected = Ending::Rejected(Rejection::Empty);
    let after = |ending| Sound.after_prefill(ending);
    assert_eq!(after(Ending::Finished), AfterPrefill::AskDecode);
    assert_eq!(after(rejected), AfterPrefill::Reject(Rejection::Empty));
    for ending in [failed, refused, Ending::Cancelled] {
        assert_eq!(after(ending.clone()), AfterPrefill::Fail(ending));
    }
}
