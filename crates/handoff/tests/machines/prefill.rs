//! Prefill up to the ticket: its limits and decode's, its queue, its offers; nothing is computed
//! before a ticket (H-5). And its own prefix cache.

use crate::prefill_rig::{
    D, PrefillRig, abandoned, arena, endings, handoff, offer, offers, submitted, to_decode,
};
use crate::rig::{DECODE, attempt, hello, link, spec};
use handoff::prefill::{Effect, Event, Timer};
use handoff::{
    Capacity, Closing, DecodeToPrefill, Ending, Failure, LandingSite, PrefillToDecode, Refusal,
    Rejection, Role, Spec, Stage,
};

fn closed(n: u64, rank: u16, how: Closing) -> PrefillToDecode {
    let handoff = handoff(n);
    PrefillToDecode::Closed { handoff, rank, how }
}

#[test]
fn h5_over_ps_own_limit_nothing_is_held_and_nobody_hears_of_it() {
    let mut p = PrefillRig::connected(8);
    let said = p.attempt(1, &spec(1, 33, 1));
    let why = Rejection::PromptTooLong {
        tokens: 33,
        limit: 32,
        by: Role::Prefill,
    };
    assert_eq!(endings(&said), [(1, Ending::Rejected(why))]);
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(p.machine.at_rest());
    assert_eq!(p.counts().free, 8);
}

#[test]
fn h5_over_ds_limit_from_hello_it_ends_at_p_already() {
    let mut p = PrefillRig::new(32, 1, false, |_| ());
    let mut of_d = hello(DECODE, Role::Decode);
    of_d.capacity = of_d.capacity.map(|c| Capacity { pages: 4, ..c });
    p.dial(D, of_d);
    let said = p.attempt(1, &spec(1, 16, 1));
    let why = Rejection::PromptTooLong {
        tokens: 16,
        limit: 15,
        by: Role::Decode,
    };
    assert_eq!(endings(&said), [(1, Ending::Rejected(why))]);
    assert_eq!(p.counts().free, 32);
}

#[test]
fn h2_what_d_finds_faulty_is_over_and_p_computes_nothing_for_it() {
    let mut p = PrefillRig::connected(8);
    let of = offers(&p.attempt(1, &spec(1, 14, 1)))[0];
    assert_eq!(p.counts().free, 4);
    assert!(p.machine.runnable().is_empty(), "no pass before the ticket");
    let fault = handoff::Fault::WrongTokens;
    let said = p.hear_decode(DecodeToPrefill::Faulty { offer: of, fault });
    let failure = Failure::Integrity(fault);
    assert_eq!(endings(&said), [(1, Ending::Failed(failure))]);
    assert!(p.machine.at_rest());
    let said = p.ticket(of, 1, 4, 1);
    let abandoned = closed(1, 0, Closing::Abandoned { why: None });
    assert_eq!(
        to_decode(&said),
        [abandoned],
        "a ticket that nobody wants is closed"
    );
    assert!(p.machine.runnable().is_empty());
}

#[test]
fn h16_bounds_of_the_queue() {
    let mut p = PrefillRig::new(8, 1, false, |config| {
        config.max_queue = 2;
        config.max_tokens_per_domain = 30;
    });
    let refused = |why| Ending::Refused(why);
    let said = p.attempt(1, &spec(1, 14, 1));
    assert_eq!(endings(&said), [(1, refused(Refusal::PeerUnavailable))]);
    p.connect(D);
    p.attempt(2, &spec(1, 14, 1));
    let said = p.attempt(3, &spec(1, 17, 1));
    assert_eq!(endings(&said), [(3, refused(Refusal::TenantCap))]);
    p.attempt(4, &spec(1, 14, 1));
    let mut other = spec(1, 1, 1);
    other.domain = pages::Domain::new(8);
    let said = p.attempt(5, &other);
    assert_eq!(endings(&said), [(5, refused(Refusal::QueueFull))]);
    let said = p.attempt(4, &other);
    assert_eq!(
        endings(&said),
        [(4, Ending::Rejected(Rejection::Duplicate))],
        "H-8"
    );
    p.tell(Event::Drain);
    let said = p.attempt(6, &other);
    assert_eq!(endings(&said), [(6, refused(Refusal::Draining))]);
}

#[test]
fn h14_all_pages_of_the_prompt_first_and_a_queued_attempt_holds_none() {
    let mut p = PrefillRig::connected(8);
    let first = offers(&p.attempt(1, &spec(1, 14, 1)))[0];
    let said = p.attempt(2, &spec(2, 18, 1));
    assert!(offers(&said).is_empty(), "4 of 5 pages are not enough");
    assert_eq!((p.counts().free, p.machine.load()), (4, (1, 1)));
    let said = p.hear_decode(DecodeToPrefill::OfferEnded { offer: first });
    assert_eq!(offers(&said).len(), 1, "its turn has come");
}

#[test]
fn busy_queues_again_behind_others_when_its_time_has_come() {
    let mut p = PrefillRig::connected(4);
    let first = offers(&p.attempt(1, &spec(1, 14, 1)))[0];
    p.attempt(2, &spec(2, 14, 1));
    let after_ms = 20;
    let said = p.hear_decode(DecodeToPrefill::Busy {
        offer: first,
        after_ms,
    });
    let timer = Timer::Retry(attempt(1));
    assert!(said.contains(&Effect::Arm { timer, after_ms }));
    let second = offers(&said);
    assert_eq!(second.len(), 1, "its pages went to the next");
    assert!(
        offers(&p.tell(Event::Fired(timer))).is_empty(),
        "no pages now"
    );
    let said = p.hear_decode(DecodeToPrefill::OfferEnded { offer: second[0] });
    let again = offers(&said);
    assert_eq!(again.len(), 1);
    assert!(
        again[0] != first && again[0] != second[0],
        "H-8: another offer, another id"
    );
}

#[test]
fn a_withdrawal_is_obeyed_without_a_ticket_only() {
    let mut p = PrefillRig::connected(8);
    p.attempt(1, &spec(1, 14, 1));
    let said = p.withdraw(1);
    assert_eq!(endings(&said), [(1, Ending::Cancelled)]);
    assert_eq!(p.counts().free, 8, "nothing is held");
    assert_eq!(p.machine.load(), (0, 1), "the offer's answer is still due");
    p.hear_decode(DecodeToPrefill::OfferEnded { offer: offer(1) });
    assert!(p.machine.at_rest());
    p.ticketed(2, &spec(1, 14, 1));
    assert!(p.withdraw(2).is_empty(), "D's Cancel decides");
    assert_eq!(
        endings(&p.withdraw(9)),
        [(9, Ending::Cancelled)],
        "answered in any case"
    );
}

#[test]
fn h15_a_deadline_names_its_stage() {
    let mut p = PrefillRig::connected(8);
    p.attempt(1, &spec(1, 14, 1));
    let said = p.tell(Event::Fired(Timer::Attempt(attempt(1))));
    let failed = |stage| Ending::Failed(Failure::Deadline(stage));
    assert_eq!(endings(&said), [(1, failed(Stage::Queue))]);
    p.ticketed(2, &spec(1, 14, 1));
    let said = p.tell(Event::Fired(Timer::Attempt(attempt(2))));
    assert_eq!(endings(&said), [(2, failed(Stage::Prefill))]);
    assert_eq!(
        to_decode(&said),
        [closed(2, 0, abandoned(Failure::Deadline(Stage::Prefill)))],
        "D may be the one of whom the gateway hears first"
    );
}

#[test]
fn h2_a_ticket_that_does_not_fit_the_offer_is_a_fault_and_closed() {
    let tag = pages::StatedTag;
    for (first, tags) in [(0, 3), (0, 5), (1, 4), (5, 0), (u32::MAX, 4)] {
        let mut p = PrefillRig::connected(8);
        let of = offers(&p.attempt(1, &spec(1, 14, 1)))[0];
        let site = LandingSite {
            rank: 0,
            arena: arena(1),
            slots: 4,
            address: Vec::new(),
        };
        let said = p.hear_decode(DecodeToPrefill::Ticket {
            offer: of,
            handoff: handoff(1),
            under: link(D),
            tags: (0..tags).map(tag).collect(),
            first,
            landings: vec![site],
            targets: Vec::new(),
        });
        let failure = Failure::Integrity(handoff::Fault::WrongTokens);
        assert_eq!(endings(&said), [(1, Ending::Failed(failure))]);
        assert_eq!(to_decode(&said), [closed(1, 0, abandoned(failure))]);
        assert_eq!(p.counts().free, 8);
    }
}

/// Regression: with zeroing, pages that were freed by the last event went to nobody.
#[test]
fn h11_pages_that_were_zeroed_go_to_the_next_at_once() {
    let mut p = PrefillRig::new(4, 1, true, |_| ());
    p.connect(D);
    let first = offers(&p.attempt(1, &spec(1, 14, 1)))[0];
    p.attempt(2, &spec(2, 14, 1));
    let said = p.hear_decode(DecodeToPrefill::OfferEnded { offer: first });
    let scrubs = said.iter().rposition(|e| matches!(e, Effect::Scrub { .. }));
    let offered = said.iter().position(|e| matches!(e, Effect::ToDecode(..)));
    assert!(
        scrubs.is_some() && scrubs < offered,
        "zeroed, then offered: {said:?}"
    );
}

#[test]
fn h9_h13_ps_own_cache_is_filled_by_committed_and_found_in_its_domain() {
    let mut p = PrefillRig::connected(16);
    let cached = Spec {
        cache: true,
        ..spec(1, 14, 1)
    };
    let of = p.ticketed(1, &cached);
    let said = p.chunk(of, 100);
    for (submission, _) in submitted(&said) {
        p.written(submission, true);
    }
    assert_eq!(p.counts().cached, 0, "not before D has verified it");
    p.hear_decode(DecodeToPrefill::Committed {
        handoff: handoff(1),
    });
    assert_eq!(p.counts().cached, 3);
    p.attempt(2, &cached);
    assert_eq!(p.counts().free, 16 - 3 - 1, "a hit");
    let foreign = Spec {
        domain: pages::Domain::new(8),
        ..cached
    };
    p.attempt(3, &foreign);
    assert_eq!(p.counts().free, 16 - 3 - 1 - 4, "no hit across domains");
}
