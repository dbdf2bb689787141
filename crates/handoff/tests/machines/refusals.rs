//! Rejected is terminal (H-5), ids are never reused (H-8), and an offer is answered in any case
//! (H-18): what decode refuses changes nothing but its one answer.

use crate::decode_rig::{DecodeRig, endings, offer_id, starts, ticket, to_gateway, to_prefill};
use crate::rig::Epoch;
use crate::rig::{CONTEXT, NEIGHBOUR, PREFILL, attempt, spec};
use handoff::decode::Effect;
use handoff::{
    Closing, Conn, DecodeToGateway, DecodeToPrefill, Ending, Failure, Fault, GatewayToDecode,
    Hangup, PrefillToDecode, Refusal, Rejection, Role, digest,
};

fn scene() -> DecodeRig {
    let mut d = DecodeRig::new(16, |_| ());
    d.connect(PREFILL, 10, 1);
    d
}

/// The attempt ended like this, and decode is as if nothing had been said.
fn assert_refused(d: &mut DecodeRig, said: &[Effect], n: u64, ending: Ending) {
    assert_eq!(endings(said), [(n, ending)]);
    assert_eq!(said.len(), 1, "no effect but the ending: {said:?}");
    assert!(d.machine.at_rest());
    assert_eq!(d.counts().free, 16);
}

#[test]
fn h5_a_prompt_over_decodes_limit_is_rejected_with_both_numbers() {
    let mut d = scene();
    let said = d.expect(1, &spec(1, CONTEXT as usize, 1), PREFILL);
    let why = Rejection::PromptTooLong {
        tokens: CONTEXT,
        limit: CONTEXT - 1,
        by: Role::Decode,
    };
    assert_refused(&mut d, &said, 1, Ending::Rejected(why));
    let said = d.expect(2, &spec(1, 10, CONTEXT), PREFILL);
    let why = Rejection::ContextTooLong {
        prompt: 10,
        max_new: CONTEXT,
        limit: CONTEXT,
        by: Role::Decode,
    };
    assert_refused(&mut d, &said, 2, Ending::Rejected(why));
}

#[test]
fn h5_hostile_numbers_are_rejected_and_not_computed_with() {
    let mut d = scene();
    let mut n = 0;
    let mut rejected = |d: &mut DecodeRig, spec: &handoff::Spec| {
        n += 1;
        let said = d.expect(n, spec, PREFILL);
        assert!(
            matches!(endings(&said)[..], [(_, Ending::Rejected(_))]),
            "{said:?}"
        );
        assert_eq!(d.counts().free, 16);
    };
    rejected(&mut d, &spec(1, 4, u32::MAX));
    let mut many = spec(1, 3, 1);
    many.choices = u16::MAX;
    rejected(&mut d, &many);
    many.max_new = u32::MAX;
    rejected(&mut d, &many);
    for empty in [(0, 1, 1), (1, 0, 1), (1, 1, 0)] {
        let mut spec = spec(1, empty.0, empty.1);
        spec.choices = empty.2;
        rejected(&mut d, &spec);
    }
}

#[test]
fn h5_after_a_rejection_its_offer_is_over() {
    let mut d = scene();
    let long = spec(1, CONTEXT as usize, 1);
    d.expect(1, &long, PREFILL);
    let said = d.offer(PREFILL, 10, 1, &long);
    let offer = offer_id(PREFILL, 1);
    assert_eq!(to_prefill(&said), [DecodeToPrefill::OfferEnded { offer }]);
    assert_eq!(d.counts().free, 16, "it grants nothing");
}

#[test]
fn h2_an_offer_of_another_prompt_ends_the_attempt_on_both_sides() {
    let told = spec(1, 14, 2);
    let shorter = spec(1, 13, 2);
    let other = spec(2, 14, 2);
    for (count, of) in [(13, &shorter), (14, &other), (13, &told), (u32::MAX, &told)] {
        let mut d = scene();
        d.expect(1, &told, PREFILL);
        let offer = offer_id(PREFILL, 1);
        let said = d.hear_prefill(
            10,
            PrefillToDecode::Offer {
                offer,
                attempt: attempt(1),
                count,
                digest: digest(&of.tokens),
            },
        );
        let fault = Fault::WrongTokens;
        let ended = Ending::Failed(Failure::Integrity(fault));
        assert_eq!(endings(&said), [(1, ended)]);
        assert_eq!(
            to_prefill(&said),
            [DecodeToPrefill::Faulty { offer, fault }]
        );
        assert!(d.machine.at_rest());
        assert_eq!(d.counts().free, 16);
        let said = d.offer(PREFILL, 10, 1, &told);
        let ended = [DecodeToPrefill::OfferEnded { offer }];
        assert_eq!(
            to_prefill(&said),
            ended,
            "terminal, also with the right prompt"
        );
    }
}

#[test]
fn h18_an_offer_before_its_expect_is_busy_and_one_after_its_end_is_over() {
    let mut d = scene();
    let prompt = spec(1, 14, 2);
    let offer = offer_id(PREFILL, 1);
    let busy = DecodeToPrefill::Busy {
        offer,
        after_ms: 20,
    };
    assert_eq!(to_prefill(&d.offer(PREFILL, 10, 1, &prompt)), [busy]);
    d.expect(1, &prompt, PREFILL);
    d.hear_gateway(GatewayToDecode::Cancel {
        attempt: attempt(1),
    });
    let ended = DecodeToPrefill::OfferEnded { offer };
    assert_eq!(to_prefill(&d.offer(PREFILL, 10, 1, &prompt)), [ended]);
}

#[test]
fn h8_an_offer_of_another_p_than_the_gateway_named_is_over() {
    let mut d = scene();
    d.connect(NEIGHBOUR, 20, 1);
    let prompt = spec(1, 14, 2);
    d.expect(1, &prompt, PREFILL);
    let said = d.offer(NEIGHBOUR, 20, 1, &prompt);
    let offer = offer_id(NEIGHBOUR, 1);
    assert_eq!(to_prefill(&said), [DecodeToPrefill::OfferEnded { offer }]);
    let said = d.offer(NEIGHBOUR, 10, 1, &prompt);
    let ended = [DecodeToPrefill::OfferEnded { offer }];
    assert_eq!(
        to_prefill(&said),
        ended,
        "an id that this life cannot have minted"
    );
    let said = d.offer(PREFILL, 10, 1, &prompt);
    assert!(
        ticket(&said, &prompt).is_some(),
        "the right one still gets it"
    );
}

#[test]
fn h8_a_second_offer_for_an_attempt_that_has_a_ticket_is_over() {
    let mut d = scene();
    let prompt = spec(1, 14, 2);
    d.granted(PREFILL, 10, 1, &prompt);
    let granted = d.counts();
    let offer = offer_id(PREFILL, 99);
    let said = d.hear_prefill(
        10,
        PrefillToDecode::Offer {
            offer,
            attempt: attempt(1),
            count: 14,
            digest: digest(&prompt.tokens),
        },
    );
    assert_eq!(to_prefill(&said), [DecodeToPrefill::OfferEnded { offer }]);
    assert_eq!(d.counts(), granted);
}

#[test]
fn h8_the_same_offer_again_gets_the_same_ticket() {
    let mut d = scene();
    let prompt = spec(1, 14, 2);
    let first = d.granted(PREFILL, 10, 1, &prompt);
    let said = d.offer(PREFILL, 10, 1, &prompt);
    assert_eq!(ticket(&said, &prompt), Some(first), "D-17: no second grant");
}

#[test]
fn h8_an_expect_with_a_reused_or_older_id_is_refused() {
    let mut d = scene();
    let prompt = spec(1, 14, 2);
    d.expect(5, &prompt, PREFILL);
    for n in [5, 4, 0] {
        let said = d.expect(n, &prompt, PREFILL);
        assert_eq!(
            endings(&said),
            [(n, Ending::Rejected(Rejection::Duplicate))]
        );
    }
    assert_eq!(d.machine.load(), (1, 0), "the first goes on");
    let foreign = handoff::AttemptId {
        epoch: Epoch::new(77),
        n: 6,
    };
    let said = d.hear_gateway(GatewayToDecode::Expect {
        attempt: foreign,
        spec: prompt.clone(),
        prefill: Epoch::new(PREFILL),
        deadline_ms: 1,
    });
    let duplicate = Ending::Rejected(Rejection::Duplicate);
    assert_eq!(endings(&said), [(6, duplicate)], "an id of another gateway");
    let said = d.expect(6, &prompt, PREFILL);
    let attempt = attempt(6);
    assert_eq!(to_gateway(&said), [DecodeToGateway::Expecting { attempt }]);
}

#[test]
fn h16_bounds_are_refusals_not_rejections() {
    let mut d = DecodeRig::new(16, |config| {
        config.max_attempts = 2;
        config.max_tokens_per_domain = 40;
    });
    let prompt = spec(1, 14, 6);
    let refused = |why| Ending::Refused(why);
    let unavailable = refused(Refusal::PeerUnavailable);
    assert_eq!(endings(&d.expect(1, &prompt, PREFILL)), [(1, unavailable)]);
    d.connect(PREFILL, 10, 1);
    d.expect(2, &prompt, PREFILL);
    let said = d.expect(3, &spec(1, 15, 6), PREFILL);
    assert_eq!(
        endings(&said),
        [(3, refused(Refusal::TenantCap))],
        "20 + 21 > 40"
    );
    // A tenant that divides its domain has no more for it.
    let mut part = spec(1, 15, 6);
    part.domain = pages::Domain::new(prompt.domain.value() | 5 << 32);
    let said = d.expect(4, &part, PREFILL);
    assert_eq!(endings(&said), [(4, refused(Refusal::TenantCap))]);
    let mut other = prompt.clone();
    other.domain = pages::Domain::new(8);
    d.expect(5, &other, PREFILL);
    other.domain = pages::Domain::new(9);
    let said = d.expect(6, &other, PREFILL);
    assert_eq!(endings(&said), [(6, refused(Refusal::QueueFull))]);
    assert_eq!(d.machine.load(), (2, 0));
}

#[test]
fn draining_takes_nothing_on_and_finishes_what_was_taken_on() {
    let mut d = scene();
    let prompt = spec(1, 14, 2);
    d.expect(1, &prompt, PREFILL);
    d.tell(handoff::decode::Event::Drain);
    let said = d.expect(2, &prompt, PREFILL);
    let draining = Ending::Refused(Refusal::Draining);
    assert_eq!(endings(&said), [(2, draining)]);
    let said = d.offer(PREFILL, 10, 1, &prompt);
    let granted = ticket(&said, &prompt).expect("it was accepted before");
    d.land_all(10, &granted);
    let said = d.close(10, granted.handoff, 0, granted.sealed(Some(1)));
    assert!(starts(&said));
}

#[test]
fn a_stranger_is_hung_up_on() {
    let mut d = scene();
    let cancel = GatewayToDecode::Cancel {
        attempt: attempt(1),
    };
    let said = d.tell(handoff::decode::Event::FromGateway(Conn(50), cancel));
    assert_eq!(said, [Effect::Close(Conn(50), Hangup::OutOfOrder)]);
    let said = d.close(
        51,
        crate::sync::unknown_handoff(1),
        0,
        Closing::Abandoned { why: None },
    );
    assert_eq!(said, [Effect::Close(Conn(51), Hangup::OutOfOrder)]);
}

/// A gateway that says Hello twice on one connection has lost its mind: what it announced ends.
#[test]
fn a_second_hello_of_a_gateway_ends_what_it_announced() {
    let mut d = scene();
    d.expect(1, &spec(1, 14, 2), PREFILL);
    let hello = crate::rig::hello(crate::rig::GATEWAY, Role::Gateway);
    let said = d.hear_gateway(GatewayToDecode::Hello(hello));
    let close = Effect::Close(crate::decode_rig::G, Hangup::OutOfOrder);
    assert!(said.contains(&close), "{said:?}");
    assert!(d.machine.at_rest());
}
