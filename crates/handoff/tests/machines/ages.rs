//! The lifetime of cached pages, where it is bounded: what nobody uses goes, what somebody reads stays.

use crate::decode_rig::{self, DecodeRig};
use crate::prefill_rig::{D, PrefillRig, handoff, offers, submitted};
use crate::rig::{PREFILL, spec};
use handoff::{DecodeToPrefill, Finish, Spec, decode, prefill};

const AGE: u64 = 500;

fn cached(marker: u32, tokens: usize) -> Spec {
    Spec {
        cache: true,
        ..spec(marker, tokens, 2)
    }
}

fn decode_with_ages(scrub: bool) -> DecodeRig {
    let mut d = DecodeRig::scrubbing(12, scrub, |config| config.cache_age_ms = Some(AGE));
    d.connect(PREFILL, 10, 1);
    d
}

fn ages(d: &mut DecodeRig) -> Vec<decode::Effect> {
    d.tell(decode::Event::Fired(decode::Timer::Cache))
}

/// The timer of the cache's age in what was said, and pages given up.
fn said_of_age(said: &[decode::Effect]) -> (bool, u32) {
    let (timer, after_ms) = (decode::Timer::Cache, AGE);
    let armed = said.contains(&decode::Effect::Arm { timer, after_ms });
    let given_up = said.iter().filter_map(|effect| match effect {
        decode::Effect::Expired { pages } => Some(*pages),
        _ => None,
    });
    (armed, given_up.sum())
}

#[test]
fn h3_cached_pages_of_decode_go_with_their_age_and_not_while_they_are_read() {
    let mut d = decode_with_ages(true);
    let first = d.granted(PREFILL, 10, 1, &cached(1, 14));
    d.land_all(10, &first);
    let said = d.close(10, first.handoff, 0, first.sealed(Some(1)));
    assert_eq!(
        said_of_age(&said),
        (true, 0),
        "armed by what is cached first"
    );
    assert_eq!(d.counts().cached, 3);
    for _ in 0..4 {
        assert_eq!(
            said_of_age(&ages(&mut d)),
            (true, 0),
            "its own request reads them"
        );
    }
    d.first(&first, 1, None);
    let lanes = d.machine.runnable();
    d.tell(decode::Event::StepBegin(lanes.clone()));
    for _ in 0..4 {
        assert_eq!(said_of_age(&ages(&mut d)), (true, 0), "a step reads them");
    }
    assert!(d.machine.verify().is_ok());
    let outputs = lanes.iter().map(|lane| {
        let end = Some(Finish::Length);
        decode_rig::output(lane.handoff, lane.choice, end)
    });
    d.tell(decode::Event::StepEnd(outputs.collect()));
    assert!(d.machine.at_rest());
    assert_eq!(said_of_age(&ages(&mut d)), (true, 0), "read until just now");
    let said = ages(&mut d);
    assert_eq!(
        said_of_age(&said),
        (false, 3),
        "nothing is left that could age"
    );
    let scrubs = |effect: &&decode::Effect| matches!(effect, decode::Effect::Scrub { .. });
    assert_eq!(said.iter().filter(scrubs).count(), 3, "H-17: {said:?}");
    assert_eq!(d.counts().free, 12);
    assert!(ages(&mut d).is_empty(), "a late one changes nothing");
}

/// A hit is a use, and pages that it did not reach grow old by themselves.
#[test]
fn a_prefix_that_is_asked_for_again_stays_and_the_rest_goes() {
    let mut d = decode_with_ages(false);
    for (n, marker) in [(1, 1), (2, 2)] {
        let ticket = d.committed(PREFILL, 10, n, &cached(marker, 14));
        d.first(&ticket, 1, Some(Finish::Length));
    }
    assert_eq!(d.counts().cached, 6);
    ages(&mut d);
    let hit = d.committed(PREFILL, 10, 3, &cached(2, 9));
    assert_eq!(hit.first, 2);
    d.first(&hit, 1, Some(Finish::Length));
    assert_eq!(said_of_age(&ages(&mut d)), (true, 4));
    let again = d.granted(PREFILL, 10, 4, &cached(2, 14));
    assert_eq!(again.first, 2, "its beginning, and no more");
    d.expect(5, &cached(1, 14), PREFILL);
    let other = d.offer(PREFILL, 10, 5, &cached(1, 14));
    let other = decode_rig::ticket(&other, &cached(1, 14)).expect("room");
    assert_eq!(other.first, 0, "nothing of the one that nobody asked for");
}

#[test]
fn without_a_lifetime_nothing_is_armed_and_nothing_goes() {
    let mut d = DecodeRig::new(12, |_| ());
    d.connect(PREFILL, 10, 1);
    let ticket = d.granted(PREFILL, 10, 1, &cached(1, 14));
    d.land_all(10, &ticket);
    let said = d.close(10, ticket.handoff, 0, ticket.sealed(Some(1)));
    assert_eq!(said_of_age(&said), (false, 0));
    assert_eq!(d.counts().cached, 3);
}

#[test]
fn h3_cached_pages_of_prefill_go_with_their_age_and_not_while_they_are_sent() {
    let mut p = PrefillRig::new(16, 1, true, |config| config.cache_age_ms = Some(AGE));
    p.connect(D);
    let ages = |p: &mut PrefillRig| p.tell(prefill::Event::Fired(prefill::Timer::Cache));
    let expired = |said: &[prefill::Effect]| {
        let pages = said.iter().filter_map(|effect| match effect {
            prefill::Effect::Expired { pages } => Some(*pages),
            _ => None,
        });
        pages.sum::<u32>()
    };
    let of = p.ticketed(1, &cached(1, 14));
    let said = p.chunk(of, 100);
    for (submission, _) in submitted(&said) {
        p.written(submission, true);
    }
    let said = p.hear_decode(DecodeToPrefill::Committed {
        handoff: handoff(1),
    });
    let (timer, after_ms) = (prefill::Timer::Cache, AGE);
    assert!(said.contains(&prefill::Effect::Arm { timer, after_ms }));
    assert_eq!(p.counts().cached, 3);
    // A second one finds them, and decode asks for all of its prompt: they are sent.
    let of = offers(&p.attempt(2, &cached(1, 14)))[0];
    let mut sent = submitted(&p.ticket(of, 2, 4, 1));
    sent.extend(submitted(&p.chunk(of, 100)));
    let pages = sent.iter().map(|(_, pages)| pages.len());
    assert_eq!(pages.sum::<usize>(), 4);
    p.tell(prefill::Event::Fired(prefill::Timer::Attempt(
        crate::rig::attempt(2),
    )));
    for _ in 0..4 {
        assert_eq!(expired(&ages(&mut p)), 0, "their writes are in flight");
    }
    for (submission, _) in sent {
        p.written(submission, true);
    }
    let given_up = [ages(&mut p), ages(&mut p), ages(&mut p)].map(|said| expired(&said));
    assert_eq!(given_up.iter().sum::<u32>(), 3, "{given_up:?}");
    assert_eq!((given_up[0], p.counts().cached), (0, 0));
}
