//! Decode at its edges: what lies just on this side of a bound or of a rule, and just beyond it.

use crate::decode_rig::{
    DecodeRig, Ticket, endings, fences, offer_id, starts, to_gateway, to_prefill,
};
use crate::rig::Epoch;
use crate::rig::{DECODE, GATEWAY, PREFILL, attempt, checksum, hello, spec};
use crate::sync::unknown_handoff;
use handoff::decode::{Effect, Event, Timer};
use handoff::{
    Answers, ArenaId, AttemptId, Broken, Closing, Conn, DecodeToGateway, DecodeToPrefill, Ending,
    Failure, Fault, GatewayToDecode, HandoffId, Manifest, NoToken, PrefillToDecode, Refusal,
    Rejection, Role, Spec, Stage, digest,
};
use pages::State;

fn scene() -> DecodeRig {
    let mut d = DecodeRig::new(32, |_| ());
    d.connect(PREFILL, 10, 1);
    d
}

fn ended(ticket: &Ticket, answers: Answers) -> DecodeToPrefill {
    let (handoff, rank) = (ticket.handoff, 0);
    DecodeToPrefill::Ended {
        handoff,
        rank,
        answers,
    }
}

/// A life of D before this one may have minted the same number.
#[test]
fn h8_a_handoff_of_another_life_of_decode_is_unknown_whatever_its_number() {
    let mut d = scene();
    let ticket = d.granted(PREFILL, 10, 1, &spec(1, 14, 2));
    let handoff = HandoffId {
        epoch: Epoch::new(DECODE + 1),
        ..ticket.handoff
    };
    let stale = Manifest {
        handoff,
        ..ticket.manifest(0, 0, 0..4)
    };
    let said = d.state(10, &stale);
    let cancel = DecodeToPrefill::Cancel { handoff };
    assert_eq!(said, [Effect::ToPrefill(Conn(10), cancel)], "no copy");
    let said = d.close(10, handoff, 0, Closing::Abandoned { why: None });
    let (rank, answers) = (0, Answers::Closed);
    let unknown = DecodeToPrefill::Ended {
        handoff,
        rank,
        answers,
    };
    assert_eq!(to_prefill(&said), [unknown]);
    assert!(endings(&said).is_empty(), "this life's handoff goes on");
    d.land_all(10, &ticket);
    let said = d.close(10, ticket.handoff, 0, ticket.sealed(Some(1)));
    assert!(starts(&said));
}

/// The fence proves that the writer is gone. It is no answer to a message that was never sent.
#[test]
fn a_fence_says_nothing_to_a_writer_that_has_asked_nothing() {
    let mut d = scene();
    let ticket = d.granted(PREFILL, 10, 1, &spec(1, 14, 2));
    let arena = ticket.landings[0].arena;
    let mut bad = ticket.manifest(0, 0, 0..1);
    bad.pages[0].slot = 99;
    assert_eq!(fences(&d.state(10, &bad)), [arena]);
    assert!(to_prefill(&d.fenced(arena)).is_empty());
    // It asks now, and is answered now, each question with its own answer (H-18).
    let said = d.unsettled(10, &ticket, vec![0]);
    assert_eq!(to_prefill(&said), [ended(&ticket, Answers::Unsettled)]);
    assert!(d.machine.at_rest());
}

/// A fault before any certificate voids none: the one that comes is taken, and answered.
#[test]
fn h18_a_writer_that_closes_after_its_fault_is_answered_at_once() {
    let mut d = scene();
    let ticket = d.granted(PREFILL, 10, 1, &spec(1, 14, 2));
    let mut bad = ticket.manifest(0, 0, 0..1);
    bad.pages[0].filled = 3;
    let said = d.state(10, &bad);
    let failure = Failure::Integrity(Fault::WrongFill);
    assert_eq!(endings(&said), [(1, Ending::Failed(failure))]);
    let said = d.close(10, ticket.handoff, 0, Closing::Abandoned { why: None });
    assert_eq!(to_prefill(&said), [ended(&ticket, Answers::Closed)]);
    assert_eq!(d.machine.load(), (0, 0), "nobody waits for anything");
}

/// H-7 was broken by whoever says this. It is answered all the same, and its arena is replaced.
#[test]
fn h18_unsettled_after_an_answered_certificate_is_answered_at_once() {
    let mut d = scene();
    let ticket = d.granted(PREFILL, 10, 1, &spec(1, 14, 2));
    d.state(10, &ticket.manifest(0, 0, 0..4));
    d.hear_gateway(GatewayToDecode::Cancel {
        attempt: attempt(1),
    });
    d.close(10, ticket.handoff, 0, Closing::Abandoned { why: None });
    d.copied(&ticket.manifest(0, 0, 0..4));
    assert_eq!(d.machine.load(), (0, 0));
    let said = d.unsettled(10, &ticket, vec![0]);
    assert_eq!(to_prefill(&said), [ended(&ticket, Answers::Unsettled)]);

    let running = d.committed(PREFILL, 10, 2, &spec(2, 14, 8));
    d.first(&running, 1, None);
    let said = d.unsettled(10, &running, vec![0]);
    assert_eq!(to_prefill(&said), [ended(&running, Answers::Unsettled)]);
    assert_eq!(fences(&said), [running.landings[0].arena]);
}

/// P's own words are the ending, because the gateway may hear of it from D first: a deadline that
/// passed at P is no failure of P, and is not tried again. "Fail-stop" would be said of D.
#[test]
fn h6_what_p_gave_up_for_is_what_d_says_of_it() {
    let lost = Failure::PeerFailed(Stage::Prefill);
    let cases = [
        (None, lost),
        (Some(Failure::Integrity(Fault::FailStop)), lost),
    ];
    let same = [
        Failure::Deadline(Stage::Prefill),
        Failure::Deadline(Stage::Queue),
        Failure::Compute,
        Failure::Integrity(Fault::WrongTokens),
    ];
    for (why, failure) in cases.into_iter().chain(same.map(|f| (Some(f), f))) {
        let mut d = scene();
        let ticket = d.granted(PREFILL, 10, 1, &spec(1, 14, 2));
        let said = d.close(10, ticket.handoff, 0, Closing::Abandoned { why });
        assert_eq!(endings(&said), [(1, Ending::Failed(failure))], "{why:?}");
        assert_eq!(to_prefill(&said), [ended(&ticket, Answers::Closed)]);
        assert_eq!(d.counts().free, 32);
    }
}

/// Dropping an arena fails what has not committed, and nobody else.
#[test]
fn h1_an_answer_goes_on_when_the_arena_that_it_came_through_is_dropped() {
    let mut d = scene();
    let running = d.committed(PREFILL, 10, 1, &spec(1, 14, 8));
    d.first(&running, 1, None);
    let landing = d.granted(PREFILL, 10, 2, &spec(2, 14, 2));
    assert_eq!(landing.landings, running.landings, "the same arena");
    d.tell(Event::Disconnected(Conn(10)));
    let said = d.tell(Event::Fired(Timer::Peer(Epoch::new(PREFILL))));
    assert_eq!(fences(&said), [running.landings[0].arena]);
    let ended: Vec<_> = endings(&said).into_iter().map(|(n, _)| n).collect();
    assert_eq!(ended, [2]);
    let said = d.step(|_| None);
    assert!(
        matches!(
            to_gateway(&said)[..],
            [DecodeToGateway::Tokens { attempt, .. }] if attempt.n == 1
        ),
        "{said:?}"
    );
}

#[test]
fn nobody_gets_an_arena_who_is_not_there() {
    let mut d = scene();
    let ticket = d.granted(PREFILL, 10, 1, &spec(1, 14, 2));
    let arena = ticket.landings[0].arena;
    assert_eq!(fences(&d.unsettled(10, &ticket, vec![0])), [arena]);
    d.tell(Event::Disconnected(Conn(10)));
    let said = d.fenced(arena);
    let opened = |effect: &Effect| matches!(effect, Effect::OpenArena { .. });
    assert!(!said.iter().any(opened), "{said:?}");
    let said = d.hello(PREFILL, 11, 1);
    assert!(said.iter().any(opened), "when it is back: {said:?}");
}

/// Room for one batch is enough for those that are under way; slots that do not exist are none.
#[test]
fn an_arena_with_room_for_one_batch_is_kept_while_it_is_used() {
    for (lost, dropped) in [(0..12, false), (0..13, true)] {
        let mut d = scene();
        let first = d.granted(PREFILL, 10, 1, &spec(1, 14, 2));
        d.granted(PREFILL, 10, 2, &spec(2, 14, 2));
        // 16 slots, batches of at most 4. Slot 16 is the first that there is not.
        let slots = lost.chain([16, 99]).collect();
        let said = d.unsettled(10, &first, slots);
        assert_eq!(!fences(&said).is_empty(), dropped, "{said:?}");
    }
}

fn cached(marker: u32, tokens: usize) -> Spec {
    Spec {
        cache: true,
        ..spec(marker, tokens, 2)
    }
}

#[test]
fn the_gateway_is_told_how_much_of_the_prompt_was_cached() {
    let mut d = scene();
    let mut cached_tokens = Vec::new();
    for n in [1, 2] {
        let prompt = cached(1, 14);
        let ticket = d.granted(PREFILL, 10, n, &prompt);
        d.land_all(10, &ticket);
        let said = d.close(10, ticket.handoff, 0, ticket.sealed(Some(1)));
        cached_tokens.extend(to_gateway(&said).into_iter().filter_map(|m| match m {
            DecodeToGateway::Committed { cached_tokens, .. } => Some(cached_tokens),
            _ => None,
        }));
    }
    assert_eq!(cached_tokens, [0, 12], "three pages of four tokens");
}

/// Each rank sums its slice of a page, so no sum of one of them is the page's.
#[test]
fn a_seal_has_a_checksum_where_one_writer_wrote_the_whole_page() {
    for (ranks, sum) in [(1, Some(checksum(0))), (2, None)] {
        let mut d = DecodeRig::new(32, |_| ());
        d.connect(PREFILL, 10, ranks);
        let ticket = d.granted(PREFILL, 10, 1, &spec(1, 14, 2));
        d.land_all(10, &ticket);
        for rank in 0..ranks {
            let first = (rank == 0).then_some(1);
            d.close(10, ticket.handoff, rank, ticket.sealed(first));
        }
        let mut holders = d.machine.holders();
        holders.retain(|h| h.state == State::Sealed && h.seal.ordinal == 0);
        let sums: Vec<_> = holders.iter().map(|h| h.seal.checksum).collect();
        assert_eq!(sums, [sum]);
    }
}

fn cancel_on(d: &mut DecodeRig, conn: u64, n: u64) -> Vec<Effect> {
    let attempt = attempt(n);
    let cancel = GatewayToDecode::Cancel { attempt };
    d.tell(Event::FromGateway(Conn(conn), cancel))
}

#[test]
fn h8_an_attempt_is_cancelled_on_the_connection_that_announced_it_and_on_no_other() {
    let mut d = scene();
    d.expect(1, &spec(1, 14, 2), PREFILL);
    let other = GatewayToDecode::Hello(hello(GATEWAY + 100, Role::Gateway));
    d.tell(Event::FromGateway(Conn(5), other));
    let said = cancel_on(&mut d, 5, 1);
    let (attempt, ending) = (attempt(1), Ending::Cancelled);
    let answer = DecodeToGateway::Ended { attempt, ending };
    assert_eq!(said, [Effect::ToGateway(Conn(5), answer.clone())]);
    assert_eq!(d.machine.load().0, 1, "it is still expected");
    let said = cancel_on(&mut d, 1, 1);
    assert!(said.contains(&Effect::ToGateway(Conn(1), answer)));
    assert_eq!(d.machine.load().0, 0);
}

fn expect_of(d: &mut DecodeRig, conn: u64, life: u128, n: u64) -> Vec<Effect> {
    let epoch = Epoch::new(life);
    let expect = GatewayToDecode::Expect {
        attempt: AttemptId { epoch, n },
        spec: spec(1, 14, 2),
        prefill: Epoch::new(PREFILL),
        deadline_ms: 1000,
    };
    d.tell(Event::FromGateway(Conn(conn), expect))
}

/// What was announced is remembered beyond its connection, as long as there is room.
#[test]
fn h8_a_gateway_that_comes_back_cannot_use_its_numbers_again() {
    let mut d = scene();
    let (one, two) = (GATEWAY + 100, GATEWAY + 200);
    for (conn, life) in [(5, one), (6, two)] {
        let hello = GatewayToDecode::Hello(hello(life, Role::Gateway));
        d.tell(Event::FromGateway(Conn(conn), hello));
    }
    expect_of(&mut d, 5, one, 7);
    d.tell(Event::Disconnected(Conn(5)));
    expect_of(&mut d, 6, two, 1);
    let hello = GatewayToDecode::Hello(hello(one, Role::Gateway));
    d.tell(Event::FromGateway(Conn(8), hello));
    let said = expect_of(&mut d, 8, one, 7);
    let duplicate = Ending::Rejected(Rejection::Duplicate);
    assert_eq!(endings(&said), [(7, duplicate)]);
    let said = expect_of(&mut d, 8, one, 8);
    assert!(
        endings(&said).is_empty(),
        "the next number is as good as ever"
    );
}

/// A gateway life costs memory for as long as it is remembered: 64 are.
#[test]
fn h16_gateway_lives_that_are_gone_make_room() {
    let mut d = scene();
    let life = |n: u128| GATEWAY + 100 + n;
    for n in 0..64u128 {
        let hello = GatewayToDecode::Hello(hello(life(n), Role::Gateway));
        d.tell(Event::FromGateway(Conn(100), hello));
        expect_of(&mut d, 100, life(n), 7);
        d.tell(Event::Disconnected(Conn(100)));
    }
    let hear = |d: &mut DecodeRig, n: u128| {
        let hello = GatewayToDecode::Hello(hello(life(n), Role::Gateway));
        d.tell(Event::FromGateway(Conn(100), hello));
    };
    hear(&mut d, 0);
    let duplicate = Ending::Rejected(Rejection::Duplicate);
    let said = expect_of(&mut d, 100, life(0), 7);
    assert_eq!(endings(&said), [(7, duplicate)], "64 are remembered");
    d.tell(Event::Disconnected(Conn(100)));
    hear(&mut d, 64);
    let said = expect_of(&mut d, 100, life(64), 7);
    assert!(endings(&said).is_empty(), "{said:?}");
    d.tell(Event::Disconnected(Conn(100)));
    hear(&mut d, 0);
    let said = expect_of(&mut d, 100, life(0), 7);
    assert!(endings(&said).is_empty(), "forgotten, as nobody was there");
}

#[test]
fn an_attempt_from_a_p_that_has_not_said_sync_is_refused() {
    let mut d = DecodeRig::new(32, |_| ());
    let unavailable = Ending::Refused(Refusal::PeerUnavailable);
    assert_eq!(d.machine.peers(), 0);
    let said = d.hello(PREFILL, 10, 1);
    d.open_arenas(&said);
    let said = d.expect(1, &spec(1, 14, 2), PREFILL);
    assert_eq!(endings(&said), [(1, unavailable.clone())]);
    assert_eq!(d.machine.peers(), 0, "it may not offer yet");
    d.sync(10, &[], &[]);
    assert_eq!(d.machine.peers(), 1);
    d.granted(PREFILL, 10, 2, &spec(1, 14, 2));

    d.tell(Event::Disconnected(Conn(10)));
    assert_eq!(d.machine.peers(), 0, "it is not there");
    let said = d.expect(3, &spec(1, 14, 2), PREFILL);
    assert_eq!(endings(&said), [(3, unavailable)]);
}

/// H-16: a tenant's tokens are those of the prompt once and of the output once a choice.
#[test]
fn h16_the_cap_of_a_tenant_is_reached_and_not_passed() {
    let prompt = Spec {
        choices: 3,
        ..spec(1, 5, 4)
    };
    let cap = Ending::Refused(Refusal::TenantCap);
    for (tokens, admitted) in [(17, true), (16, false)] {
        let mut d = DecodeRig::new(32, |config| config.max_tokens_per_domain = tokens);
        d.connect(PREFILL, 10, 1);
        let said = d.expect(1, &prompt, PREFILL);
        assert_eq!(endings(&said).is_empty(), admitted, "{said:?}");
        let said = d.expect(2, &spec(1, 1, 1), PREFILL);
        let second = if admitted {
            vec![(2, cap.clone())]
        } else {
            Vec::new()
        };
        assert_eq!(endings(&said), second);
    }
}

#[test]
fn h18_an_offer_below_the_last_announced_number_is_over_and_above_it_is_early() {
    let mut d = scene();
    d.expect(5, &spec(1, 14, 2), PREFILL);
    let offer_for = |n: u64| PrefillToDecode::Offer {
        offer: offer_id(PREFILL, 100 + n),
        attempt: attempt(n),
        count: 14,
        digest: digest(&spec(1, 14, 2).tokens),
    };
    let said = d.hear_prefill(10, offer_for(6));
    assert!(matches!(
        to_prefill(&said)[..],
        [DecodeToPrefill::Busy { .. }]
    ));
    let said = d.hear_prefill(10, offer_for(4));
    let offer = offer_id(PREFILL, 104);
    assert_eq!(to_prefill(&said), [DecodeToPrefill::OfferEnded { offer }]);
}

#[test]
fn what_an_attempt_is_about_can_be_asked_until_it_ends() {
    let mut d = scene();
    let prompt = spec(3, 14, 2);
    let handoff = d.granted(PREFILL, 10, 1, &prompt).handoff;
    assert_eq!(d.machine.spec_of(handoff), Some(&prompt));
    assert_eq!(d.machine.spec_of(unknown_handoff(99)), None);
    cancel_on(&mut d, 1, 1);
    assert_eq!(d.machine.spec_of(handoff), None);
}

/// What the worker's other threads report was asked for. What was not is nothing to go on with.
#[test]
fn h3_a_report_that_nobody_asked_for_ends_the_worker() {
    let mut d = scene();
    let ticket = d.granted(PREFILL, 10, 1, &spec(1, 14, 2));
    let known = ticket.landings[0].arena;
    let unknown = ArenaId { n: 99, ..known };
    let opened = |arena| Event::ArenaOpened {
        arena,
        slots: 4,
        address: Vec::new(),
    };
    let copied = |handoff, rank| Event::Copied {
        handoff,
        rank,
        batch: 0,
        checksums: None,
    };
    let before = d.counts();
    for (event, why) in [
        (opened(known), Broken::ArenaUnasked),
        (opened(unknown), Broken::ArenaUnasked),
        (Event::ArenaFailed { arena: known }, Broken::ArenaUnasked),
        (Event::ArenaFailed { arena: unknown }, Broken::ArenaUnasked),
        (copied(ticket.handoff, 0), Broken::CopyNotBegun),
        (copied(ticket.handoff, 9), Broken::CopyNotBegun),
        (copied(unknown_handoff(99), 0), Broken::CopyNotBegun),
        (Event::StepEnd(Vec::new()), Broken::StepNotBegun),
        (Event::StepFailed(NoToken::Compute), Broken::StepNotBegun),
    ] {
        let said = d.machine.handle(event.clone());
        assert_eq!(said, [Effect::FailStop(why)], "{event:?}");
    }
    let proof = d.mint.fenced(pages::WriterLife {
        epoch: Epoch::new(PREFILL),
        rank: 0,
    });
    let said = d.machine.handle_fenced(unknown, proof);
    assert_eq!(said, [Effect::FailStop(Broken::FenceUnasked)]);
    assert_eq!(d.counts(), before);
}
