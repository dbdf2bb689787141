//! Turns and caps: a bounded memory of who asked first (no starvation), pages per prefill life and
//! tokens per tenant (H-16), pages that are zeroed before they are used again.

use crate::decode_rig::{DecodeRig, offer_id, ticket, to_prefill};
use crate::rig::{NEIGHBOUR, PREFILL, attempt, spec};
use handoff::decode::{Effect, Event};
use handoff::{Closing, Conn, DecodeToPrefill, GatewayToDecode, Spec};

fn is_busy(said: &[Effect], life: u128, n: u64) -> bool {
    let offer = offer_id(life, n);
    let after_ms = 20;
    to_prefill(said) == [DecodeToPrefill::Busy { offer, after_ms }]
}

fn cancel(d: &mut DecodeRig, n: u64) {
    let attempt = attempt(n);
    d.hear_gateway(GatewayToDecode::Cancel { attempt });
}

/// Ends attempt `n` with ticket `handoff`: its pages are free.
fn end(d: &mut DecodeRig, conn: u64, n: u64, handoff: handoff::HandoffId) {
    cancel(d, n);
    d.close(conn, handoff, 0, Closing::Abandoned { why: None });
}

#[test]
fn h11_short_prompts_do_not_overtake_a_long_one_for_ever() {
    let mut d = DecodeRig::new(12, |_| ());
    d.connect(PREFILL, 10, 1);
    let (short, long) = (spec(1, 14, 2), spec(2, 38, 2));
    let first = d.granted(PREFILL, 10, 1, &short);
    d.expect(2, &long, PREFILL);
    let said = d.offer(PREFILL, 10, 2, &long);
    assert!(is_busy(&said, PREFILL, 2), "10 of 8 pages");
    // A later one would fit, but then the long one would wait again.
    d.expect(3, &short, PREFILL);
    let said = d.offer(PREFILL, 10, 3, &short);
    assert!(is_busy(&said, PREFILL, 3), "behind the long one");
    end(&mut d, 10, 1, first.handoff);
    let said = d.hear_prefill(10, repeat_of(4, 3, &short));
    assert!(is_busy(&said, PREFILL, 4), "still: 10 + 4 of 12 pages");
    let said = d.hear_prefill(10, repeat_of(5, 2, &long));
    assert!(ticket(&said, &long).is_some(), "its turn has come");
}

/// A new offer for an attempt that was told Busy.
fn repeat_of(offer: u64, n: u64, spec: &Spec) -> handoff::PrefillToDecode {
    handoff::PrefillToDecode::Offer {
        offer: offer_id(PREFILL, offer),
        attempt: attempt(n),
        count: spec.tokens.len() as u32,
        digest: handoff::digest(&spec.tokens),
    }
}

#[test]
fn intents_die_with_their_attempt() {
    let mut d = DecodeRig::new(12, |_| ());
    d.connect(PREFILL, 10, 1);
    let (short, long) = (spec(1, 14, 2), spec(2, 38, 2));
    d.granted(PREFILL, 10, 1, &short);
    d.expect(2, &long, PREFILL);
    d.offer(PREFILL, 10, 2, &long);
    cancel(&mut d, 2);
    d.granted(PREFILL, 10, 3, &short);
}

#[test]
fn intents_are_bounded() {
    let mut d = DecodeRig::new(12, |config| config.max_intents = 1);
    d.connect(PREFILL, 10, 1);
    let (short, long) = (spec(1, 14, 2), spec(2, 38, 2));
    let first = d.granted(PREFILL, 10, 1, &short);
    for n in 2..5 {
        d.expect(n, &long, PREFILL);
        assert!(is_busy(&d.offer(PREFILL, 10, n, &long), PREFILL, n));
    }
    end(&mut d, 10, 1, first.handoff);
    let said = d.hear_prefill(10, repeat_of(9, 3, &long));
    assert!(
        is_busy(&said, PREFILL, 9),
        "the one that is remembered goes first"
    );
    let said = d.hear_prefill(10, repeat_of(10, 2, &long));
    assert!(ticket(&said, &long).is_some());
}

/// Regression: the turn of a P that is not there held up everybody else's until its deadline.
#[test]
fn h11_a_lost_p_does_not_hold_up_the_others() {
    let mut d = DecodeRig::new(12, |_| ());
    d.connect(PREFILL, 10, 1);
    d.connect(NEIGHBOUR, 20, 1);
    let (short, long) = (spec(1, 14, 2), spec(2, 38, 2));
    d.granted(NEIGHBOUR, 20, 1, &short);
    d.expect(2, &long, PREFILL);
    assert!(is_busy(&d.offer(PREFILL, 10, 2, &long), PREFILL, 2));
    d.tell(Event::Disconnected(Conn(10)));
    d.granted(NEIGHBOUR, 20, 3, &short);
}

#[test]
fn h16_pages_of_one_p_are_capped_and_the_other_p_goes_on() {
    let mut d = DecodeRig::new(32, |config| config.max_pages_per_peer = 6);
    d.connect(PREFILL, 10, 1);
    d.connect(NEIGHBOUR, 20, 1);
    let prompt = spec(1, 14, 2);
    let first = d.granted(PREFILL, 10, 1, &prompt);
    d.expect(2, &prompt, PREFILL);
    assert!(
        is_busy(&d.offer(PREFILL, 10, 2, &prompt), PREFILL, 2),
        "4 + 4 > 6"
    );
    d.granted(NEIGHBOUR, 20, 3, &prompt);
    d.land_all(10, &first);
    d.close(10, first.handoff, 0, first.sealed(Some(1)));
    let said = d.hear_prefill(10, repeat_of(9, 2, &prompt));
    assert!(
        ticket(&said, &prompt).is_some(),
        "committed pages do not count"
    );
}

/// Regression: a prompt that the limits admit and the cap does not was told Busy for ever.
#[test]
fn h11_the_cap_lets_one_handoff_in_whatever_its_size() {
    let mut d = DecodeRig::new(32, |config| config.max_pages_per_peer = 3);
    d.connect(PREFILL, 10, 1);
    let prompt = spec(1, 14, 2);
    d.granted(PREFILL, 10, 1, &prompt);
    d.expect(2, &spec(1, 2, 2), PREFILL);
    assert!(is_busy(
        &d.offer(PREFILL, 10, 2, &spec(1, 2, 2)),
        PREFILL,
        2
    ));
}

fn cached(marker: u32, tokens: usize) -> Spec {
    Spec {
        cache: true,
        ..spec(marker, tokens, 1)
    }
}

/// Leaves the pages of a prompt in the cache.
fn cache(d: &mut DecodeRig, n: u64, spec: &Spec) {
    let ticket = d.committed(PREFILL, 10, n, spec);
    d.first(&ticket, 1, Some(handoff::Finish::Length));
    assert!(d.machine.at_rest());
}

#[test]
fn h13_a_prefix_is_found_in_its_domain_only_and_pinned_before_the_ticket() {
    let mut d = DecodeRig::new(16, |_| ());
    d.connect(PREFILL, 10, 1);
    cache(&mut d, 1, &cached(1, 14));
    assert_eq!(d.counts().cached, 3);
    let hit = d.granted(PREFILL, 10, 2, &cached(1, 14));
    assert_eq!(
        (hit.first, hit.tags.len()),
        (3, 1),
        "only the last page is sent"
    );
    let mut foreign = cached(1, 14);
    foreign.domain = pages::Domain::new(8);
    let miss = d.granted(PREFILL, 10, 3, &foreign);
    assert_eq!((miss.first, miss.tags.len()), (0, 4));
    let other = d.granted(PREFILL, 10, 4, &cached(2, 14));
    assert_eq!(other.first, 0, "other tokens");
}

/// A cached page that is pinned by a ticket is not evicted, whatever is needed (defect D-27).
#[test]
fn d27_a_pinned_prefix_is_not_evicted_between_ticket_and_commit() {
    let mut d = DecodeRig::new(8, |_| ());
    d.connect(PREFILL, 10, 1);
    cache(&mut d, 1, &cached(1, 14));
    let hit = d.granted(PREFILL, 10, 2, &cached(1, 14));
    assert_eq!(hit.first, 3);
    d.expect(3, &spec(3, 20, 2), PREFILL);
    assert!(is_busy(
        &d.offer(PREFILL, 10, 3, &spec(3, 20, 2)),
        PREFILL,
        3
    ));
    d.land_all(10, &hit);
    let said = d.close(10, hit.handoff, 0, hit.sealed(Some(1)));
    assert!(crate::decode_rig::starts(&said));
    d.first(&hit, 1, None);
}

#[test]
fn the_oldest_cached_pages_go_first_and_no_more_than_are_needed() {
    let mut d = DecodeRig::new(10, |_| ());
    d.connect(PREFILL, 10, 1);
    cache(&mut d, 1, &cached(1, 12));
    cache(&mut d, 2, &cached(2, 12));
    assert_eq!((d.counts().cached, d.counts().free), (6, 4));
    d.granted(PREFILL, 10, 3, &spec(3, 15, 1 + 4));
    assert_eq!(
        (d.counts().cached, d.counts().free),
        (5, 0),
        "one was needed"
    );
    let young = d.granted(PREFILL, 10, 4, &cached(2, 12));
    assert_eq!(young.first, 3, "the younger prompt is still whole");
}

/// Regression: with zeroing switched on an eviction gave no page in time, so everything was evicted
/// and the offer told Busy all the same.
#[test]
fn h17_evicted_pages_are_zeroed_and_then_used_in_the_same_breath() {
    let mut d = DecodeRig::scrubbing(6, true, |_| ());
    d.connect(PREFILL, 10, 1);
    cache(&mut d, 1, &cached(1, 16));
    assert_eq!((d.counts().cached, d.counts().free), (4, 2));
    let prompt = spec(2, 13, 3);
    d.expect(2, &prompt, PREFILL);
    let said = d.offer(PREFILL, 10, 2, &prompt);
    let scrubs = |effect: &Effect| matches!(effect, Effect::Scrub { .. });
    let speaks = |effect: &Effect| matches!(effect, Effect::ToPrefill(..));
    assert_eq!(said.iter().filter(|effect| scrubs(effect)).count(), 2);
    assert!(
        said.iter().rposition(scrubs) < said.iter().position(speaks),
        "before the ticket"
    );
    assert!(ticket(&said, &prompt).is_some());
    assert_eq!((d.counts().cached, d.counts().free), (2, 0));
}

#[test]
fn h17_a_page_is_zeroed_when_its_owner_has_ended() {
    let mut d = DecodeRig::scrubbing(8, true, |_| ());
    d.connect(PREFILL, 10, 1);
    let ticket = d.granted(PREFILL, 10, 1, &spec(1, 14, 2));
    let first = ticket.manifest(0, 0, 0..2);
    d.state(10, &first);
    let scrubs = |said: &[Effect]| {
        let scrubbed = said.iter().filter(|e| matches!(e, Effect::Scrub { .. }));
        scrubbed.count()
    };
    let attempt = attempt(1);
    let said = d.hear_gateway(GatewayToDecode::Cancel { attempt });
    assert_eq!(scrubs(&said), 2, "not those that a copy still writes (H-3)");
    assert_eq!(scrubs(&d.copied(&first)), 2);
    assert_eq!(d.counts().free, 8);
}

/// Who has its ticket waits no more; whoever still waits keeps its turn.
#[test]
fn h11_a_ticket_ends_one_turn_and_not_those_of_others() {
    let mut d = DecodeRig::new(12, |_| ());
    d.connect(PREFILL, 10, 1);
    let (short, long) = (spec(1, 14, 2), spec(2, 38, 2));
    let first = d.granted(PREFILL, 10, 1, &short);
    for n in [2, 3] {
        d.expect(n, &long, PREFILL);
        assert!(is_busy(&d.offer(PREFILL, 10, n, &long), PREFILL, n));
    }
    end(&mut d, 10, 1, first.handoff);
    let said = d.hear_prefill(10, repeat_of(9, 2, &long));
    let second = ticket(&said, &long).expect("its turn");
    end(&mut d, 10, 2, second.handoff);
    d.expect(4, &short, PREFILL);
    let said = d.offer(PREFILL, 10, 4, &short);
    assert!(is_busy(&said, PREFILL, 4), "10 pages are 3's: {said:?}");
}

#[test]
fn a_turn_counts_once_however_often_it_is_asked_for() {
    let mut d = DecodeRig::new(19, |_| ());
    d.connect(PREFILL, 10, 1);
    let (short, long) = (spec(1, 14, 2), spec(2, 38, 2));
    let first = d.granted(PREFILL, 10, 1, &long);
    d.expect(2, &long, PREFILL);
    for offer in 2..5 {
        let said = d.hear_prefill(10, repeat_of(offer, 2, &long));
        assert!(is_busy(&said, PREFILL, offer));
    }
    end(&mut d, 10, 1, first.handoff);
    d.granted(PREFILL, 10, 3, &short); // 10 + 4 of 19
}

/// No more than `max_intents` are remembered: whoever asked later has no turn to lose.
#[test]
fn an_intent_beyond_the_bound_holds_nobody_up() {
    let mut d = DecodeRig::new(12, |config| config.max_intents = 1);
    d.connect(PREFILL, 10, 1);
    let (short, long) = (spec(1, 14, 2), spec(2, 38, 2));
    let first = d.granted(PREFILL, 10, 1, &short);
    for n in [2, 3] {
        d.expect(n, &long, PREFILL);
        assert!(is_busy(&d.offer(PREFILL, 10, n, &long), PREFILL, n));
    }
    end(&mut d, 10, 1, first.handoff);
    cancel(&mut d, 2);
    d.granted(PREFILL, 10, 4, &short);
}

/// The cap of one P is reached and not passed. A turn that waits for it keeps its pages free, and
/// no more than those.
#[test]
fn h16_the_cap_of_a_p_may_be_reached_and_its_turn_costs_the_others_its_pages() {
    let mut d = DecodeRig::new(16, |config| config.max_pages_per_peer = 8);
    d.connect(PREFILL, 10, 1);
    d.connect(NEIGHBOUR, 20, 1);
    let prompt = spec(1, 14, 2);
    d.granted(PREFILL, 10, 1, &prompt);
    d.granted(PREFILL, 10, 2, &prompt); // 4 + 4 of 8
    d.expect(3, &prompt, PREFILL);
    assert!(is_busy(&d.offer(PREFILL, 10, 3, &prompt), PREFILL, 3));
    d.granted(NEIGHBOUR, 20, 4, &prompt); // 4, and 4 for the turn of 3, of 8
    d.expect(5, &prompt, NEIGHBOUR);
    let said = d.offer(NEIGHBOUR, 20, 5, &prompt);
    assert!(is_busy(&said, NEIGHBOUR, 5), "the rest is 3's: {said:?}");
}

/// Pages that D has in its own cache are not sent, and do not count.
#[test]
fn h16_the_cap_of_a_p_counts_pages_that_it_sends() {
    let mut d = DecodeRig::new(32, |config| config.max_pages_per_peer = 5);
    d.connect(PREFILL, 10, 1);
    cache(&mut d, 1, &cached(1, 14));
    let hit = d.granted(PREFILL, 10, 2, &cached(1, 14));
    assert_eq!((hit.first, hit.tags.len()), (3, 1));
    d.granted(PREFILL, 10, 3, &spec(2, 14, 2)); // 1 + 4 of 5
}

/// Told Busy it holds nothing: no pin on the cache, and nothing was evicted for it in vain.
#[test]
fn h14_busy_leaves_the_cache_as_it_was() {
    let mut d = DecodeRig::new(10, |_| ());
    d.connect(PREFILL, 10, 1);
    cache(&mut d, 1, &cached(1, 14));
    let landing = d.granted(PREFILL, 10, 2, &spec(2, 14, 2));
    assert_eq!((d.counts().cached, d.counts().free), (3, 3));
    let before = d.machine.holders();
    // Its prompt alone could be had by evicting two pages; with its output it is 6 of 6 + 1.
    let prompt = spec(3, 18, 7);
    d.expect(3, &prompt, PREFILL);
    assert!(is_busy(&d.offer(PREFILL, 10, 3, &prompt), PREFILL, 3));
    assert_eq!(d.machine.holders(), before);
    cancel(&mut d, 3);
    // The same with a prefix that it would find.
    let prompt = Spec {
        max_new: 19,
        ..cached(1, 18)
    };
    d.expect(4, &prompt, PREFILL);
    assert!(is_busy(&d.offer(PREFILL, 10, 4, &prompt), PREFILL, 4));
    assert_eq!(d.machine.holders(), before);
    cancel(&mut d, 4);
    end(&mut d, 10, 2, landing.handoff);
    d.granted(PREFILL, 10, 5, &spec(5, 38, 2)); // all ten, the cached ones evicted
}
