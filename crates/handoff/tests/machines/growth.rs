//! Pages as an answer grows (H-19), and answers that are put back and go on (H-20).

use crate::credits::{choices, hand_over, scene};
use crate::decode_rig::{DecodeRig, Ticket, endings, starts, ticket, to_gateway, to_prefill};
use crate::gateway_rig::{D, GatewayRig, delivered, expected, outcomes, request};
use crate::rig::{PREFILL, attempt, hello, spec};
use handoff::decode::Lane;
use handoff::gateway::{Effect, Event, Item, Outcome};
use handoff::{
    AttemptId, Capacity, DecodeToGateway, DecodeToPrefill, Ending, Finish, GatewayToDecode,
    GatewayToPrefill, Refusal, Reserve, Resumed, Role, Spec,
};
use pages::Domain;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Decode with one page ahead.
fn tight(pages: u32) -> DecodeRig {
    let mut d = DecodeRig::new(pages, |config| config.ahead_pages = 1);
    d.connect(PREFILL, 10, 1);
    d
}

/// Committed, its first tokens looked at.
fn running(d: &mut DecodeRig, n: u64, spec: &Spec) -> Ticket {
    let ticket = d.granted(PREFILL, 10, n, spec);
    assert!(starts(&hand_over(d, &ticket)));
    d.first(&ticket, spec.choices, None);
    ticket
}

fn put_backs(said: &[handoff::decode::Effect]) -> Vec<(AttemptId, u16)> {
    let said = to_gateway(said).into_iter();
    let put_back = said.filter_map(|message| match message {
        DecodeToGateway::PutBack { attempt, choice } => Some((attempt, choice)),
        _ => None,
    });
    put_back.collect()
}

fn lane(ticket: &Ticket, choice: u16) -> Lane {
    let handoff = ticket.handoff;
    Lane { handoff, choice }
}

#[test]
fn h19_a_ticket_takes_the_prompt_and_a_few_pages_and_not_the_rest_of_the_context() {
    let mut d = scene(32);
    d.granted(PREFILL, 10, 1, &spec(1, 4, 60));
    assert_eq!(d.counts().granted, 1, "the prompt");
    assert_eq!(d.counts().reserved, 4, "what an answer takes ahead");
    d.granted(
        PREFILL,
        10,
        2,
        &Spec {
            pages: Reserve::All,
            ..spec(2, 4, 40)
        },
    );
    assert_eq!(
        d.counts().free,
        32 - 5 - 11,
        "all of it, where it must not be put back"
    );
}

/// Pages of four tokens: the first has two of its five, and grows into the pages of the second.
#[test]
fn h19_the_youngest_is_put_back_for_the_oldest_and_for_nobody_else() {
    let mut d = tight(7);
    let first = running(&mut d, 1, &spec(1, 4, 16));
    let second = running(&mut d, 2, &spec(2, 4, 12));
    let mut said = Vec::new();
    for _ in 0..12 {
        assert_eq!(d.machine.oldest(), Some(lane(&first, 0)));
        assert!(!d.machine.short().contains(&lane(&first, 0)), "H-19");
        said.extend(d.step(|_| None));
    }
    assert_eq!(put_backs(&said), [(attempt(2), 0)]);
    assert_eq!(endings(&said), [(2, Ending::Finished)], "said behind it");
    assert!(!d.machine.runnable().contains(&lane(&second, 0)));
    assert_eq!(
        d.counts().sealed,
        4,
        "only those of the first: {:?}",
        d.counts()
    );
    assert_eq!(d.counts().free + 4 + d.counts().reserved, 7);
}

/// The second one is short, and nobody is younger: it waits with what it has.
#[test]
fn h19_the_youngest_waits_and_is_not_put_back_for_itself() {
    let mut d = tight(6);
    let first = running(&mut d, 1, &spec(1, 8, 8));
    let second = running(&mut d, 2, &spec(2, 4, 8));
    for _ in 0..4 {
        assert!(put_backs(&d.step(|_| None)).is_empty());
    }
    assert_eq!(d.machine.short(), [lane(&second, 0)]);
    assert_eq!(d.machine.runnable(), [lane(&first, 0)]);
    let said = d.step(|_| Some(Finish::Stop));
    assert_eq!(endings(&said), [(1, Ending::Finished)]);
    assert!(put_backs(&said).is_empty());
    assert_eq!(d.machine.runnable(), [lane(&second, 0)], "now it goes on");
}

/// What lands is held by its writer for as long as it likes; the oldest must not depend on it.
#[test]
fn h19_nobody_is_let_in_beside_whom_the_oldest_could_not_finish() {
    let mut d = tight(6);
    running(&mut d, 1, &spec(1, 4, 12)); // 4 pages at most, 2 now
    let other = spec(2, 8, 4); // 3 pages at its ticket: 4 + 3 > 6
    d.expect(2, &other, PREFILL);
    let said = d.offer(PREFILL, 10, 2, &other);
    assert!(matches!(
        to_prefill(&said)[..],
        [DecodeToPrefill::Busy { .. }]
    ));
    let small = spec(3, 4, 4); // 2 pages, but behind the other one
    d.expect(3, &small, PREFILL);
    let said = d.offer(PREFILL, 10, 3, &small);
    assert!(ticket(&said, &small).is_none(), "turns are kept");
    let cancel = GatewayToDecode::Cancel {
        attempt: attempt(2),
    };
    d.hear_gateway(cancel);
    let said = d.offer(PREFILL, 10, 4, &small);
    assert!(ticket(&said, &small).is_none(), "another attempt's offer");
    let said = d.offer(PREFILL, 10, 3, &small);
    assert!(ticket(&said, &small).is_some(), "4 + 2 fit");
}

/// Two answers to one prompt, of which the pool holds one whole.
#[test]
fn h19_choices_of_one_attempt_are_put_back_one_by_one() {
    let spec = choices(6, 8, 2);
    let mut d = tight(6);
    let capacity = d.machine.hello().capacity.expect("measured");
    assert!(capacity.admits(&spec).is_ok());
    let all = Spec {
        pages: Reserve::All,
        ..spec.clone()
    };
    assert!(capacity.admits(&all).is_err(), "both at once never fit");
    let one = running(&mut d, 1, &spec);
    let mut said = Vec::new();
    for n in 2..=8 {
        said.extend(d.step(|_| (n == 8).then_some(Finish::Length)));
    }
    assert_eq!(put_backs(&said), [(attempt(1), 1)]);
    assert_eq!(
        endings(&said),
        [(1, Ending::Finished)],
        "when the other one had finished"
    );
    let last = to_gateway(&said)
        .into_iter()
        .rev()
        .find_map(|message| match message {
            DecodeToGateway::Tokens { choice, finish, .. } => Some((choice, finish)),
            _ => None,
        });
    assert_eq!(last, Some((0, Some(Finish::Length))));
    assert!(d.machine.at_rest(), "{:?}", d.counts());
    let _ = one;
}

/// What goes on was let in before: neither caps nor draining end it in its middle.
#[test]
fn h20_what_goes_on_is_not_refused_by_caps_or_draining() {
    let mut d = DecodeRig::new(16, |config| {
        config.max_attempts = 1;
        config.max_tokens_per_domain = 20;
    });
    d.connect(PREFILL, 10, 1);
    d.granted(PREFILL, 10, 1, &spec(1, 8, 8));
    let resumes = Some(Resumed { said: 2, choice: 0 });
    let goes_on = Spec {
        resumes,
        ..spec(1, 10, 6)
    };
    d.tell(handoff::decode::Event::Drain);
    let said = d.expect(2, &spec(2, 4, 4), PREFILL);
    assert_eq!(endings(&said), [(2, Ending::Refused(Refusal::Draining))]);
    let said = d.expect(3, &goes_on, PREFILL);
    assert!(endings(&said).is_empty(), "{said:?}");
}

#[test]
fn h5_what_goes_on_has_a_prompt_and_one_choice() {
    let capacity = scene(16).machine.hello().capacity.expect("measured");
    let goes_on = |said, choices| Spec {
        resumes: Some(Resumed { said, choice: 0 }),
        choices,
        ..spec(1, 4, 4)
    };
    assert!(capacity.admits(&goes_on(3, 1)).is_ok());
    for wrong in [goes_on(4, 1), goes_on(u32::MAX, 1), goes_on(1, 2)] {
        assert!(capacity.admits(&wrong).is_err(), "{wrong:?}");
    }
}

/// A prefill pool that could not hold the prompt together with what was said.
#[test]
fn h19_what_could_not_be_computed_again_takes_all_its_pages_at_once() {
    let small = Capacity {
        pages: 4,
        ..hello(PREFILL, Role::Prefill).capacity.unwrap()
    };
    let large = hello(crate::rig::DECODE, Role::Decode).capacity.unwrap();
    let limit = handoff::Limit::of_pair(small, large);
    assert_eq!(
        limit.reserve(&spec(1, 8, 9)),
        Reserve::AsNeeded,
        "16 tokens fit"
    );
    assert_eq!(limit.reserve(&spec(1, 8, 10)), Reserve::All);
}

/// The spec of the attempt that D is told to expect.
fn announced(said: &[Effect]) -> (AttemptId, Spec) {
    let expect = said.iter().find_map(|effect| match effect {
        Effect::ToDecode(_, GatewayToDecode::Expect { attempt, spec, .. }) => {
            Some((*attempt, spec.clone()))
        }
        _ => None,
    });
    expect.expect("D is told")
}

fn says(g: &mut GatewayRig, attempt: AttemptId, choice: u16, token: u32) -> Vec<Effect> {
    let (payload, finish) = (vec![0], None);
    g.hear_decode(DecodeToGateway::Tokens {
        attempt,
        choice,
        token,
        payload,
        finish,
    })
}

fn put_back(g: &mut GatewayRig, attempt: AttemptId, choice: u16) -> Vec<Effect> {
    g.hear_decode(DecodeToGateway::PutBack { attempt, choice })
}

#[test]
fn h20_it_goes_on_behind_what_was_said_under_a_new_id_and_begins_once() {
    let mut g = GatewayRig::new();
    let old = g.committed(&spec(1, 4, 10));
    says(&mut g, old, 0, 50);
    says(&mut g, old, 0, 51);
    let said = put_back(&mut g, old, 0);
    let (new, goes_on) = announced(&said);
    assert_ne!(new, old);
    assert_eq!(goes_on.tokens, [1, 1, 1, 1, 50, 51]);
    assert_eq!((goes_on.max_new, goes_on.choices), (8, 1));
    assert_eq!(goes_on.resumes, Some(Resumed { said: 2, choice: 0 }));
    assert!(
        outcomes(&g.decode_ended(old, Ending::Finished)).is_empty(),
        "it goes on"
    );
    g.hear_decode(DecodeToGateway::Expecting { attempt: new });
    assert!(
        delivered(&g.commit(new)).is_empty(),
        "an answer begins once"
    );
    assert!(
        delivered(&says(&mut g, old, 0, 52)).is_empty(),
        "of the old one nothing counts"
    );
    let said = says(&mut g, new, 0, 52);
    let [
        Item::Tokens {
            choice: 0,
            token: 52,
            ..
        },
    ] = delivered(&said)[..]
    else {
        panic!("{said:?}");
    };
    g.tokens(new, 0, Some(Finish::Stop));
    assert_eq!(
        outcomes(&g.decode_ended(new, Ending::Finished)),
        [(1, Outcome::Answered)]
    );
}

#[test]
fn h20_of_several_choices_one_goes_on_alone_and_keeps_its_number() {
    let mut g = GatewayRig::new();
    let both = g.committed(&Spec {
        choices: 2,
        ..spec(1, 4, 10)
    });
    says(&mut g, both, 0, 50);
    says(&mut g, both, 1, 60);
    let (new, goes_on) = announced(&put_back(&mut g, both, 1));
    assert_eq!(goes_on.tokens, [1, 1, 1, 1, 60]);
    assert_eq!(goes_on.resumes, Some(Resumed { said: 1, choice: 1 }));
    g.tokens(both, 0, Some(Finish::Stop));
    assert!(outcomes(&g.decode_ended(both, Ending::Finished)).is_empty());
    g.hear_decode(DecodeToGateway::Expecting { attempt: new });
    g.commit(new);
    let said = g.hear_decode(DecodeToGateway::Tokens {
        attempt: new,
        choice: 0,
        token: 61,
        payload: vec![0],
        finish: Some(Finish::Length),
    });
    let [
        Item::Tokens {
            choice: 1,
            token: 61,
            ..
        },
    ] = delivered(&said)[..]
    else {
        panic!("{said:?}");
    };
    assert_eq!(
        outcomes(&g.decode_ended(new, Ending::Finished)),
        [(1, Outcome::Answered)]
    );
}

#[test]
fn h20_put_back_often_it_takes_all_its_pages_and_is_not_put_back_again() {
    let mut g = GatewayRig::new();
    let mut now = g.committed(&spec(1, 4, 20));
    for token in 0..4 {
        says(&mut g, now, 0, token);
        let (new, goes_on) = announced(&put_back(&mut g, now, 0));
        let often = token >= 2;
        assert_eq!(
            goes_on.pages == Reserve::All,
            often,
            "after {} times",
            token + 1
        );
        g.decode_ended(now, Ending::Finished);
        g.hear_decode(DecodeToGateway::Expecting { attempt: new });
        g.commit(new);
        now = new;
    }
}

#[test]
fn h20_a_choice_that_was_stopped_meanwhile_is_not_computed_again() {
    let mut g = GatewayRig::new();
    let old = g.committed(&spec(1, 4, 10));
    says(&mut g, old, 0, 50);
    g.tell(Event::StopChoice(request(1), 0));
    assert_eq!(expected(&put_back(&mut g, old, 0)), None);
    assert_eq!(
        outcomes(&g.decode_ended(old, Ending::Finished)),
        [(1, Outcome::Answered)]
    );
    // The other order: it is on its way back when it is stopped.
    let old = g.committed(&spec(1, 4, 10));
    says(&mut g, old, 0, 50);
    let (new, _) = announced(&put_back(&mut g, old, 0));
    g.decode_ended(old, Ending::Finished);
    let said = g.tell(Event::StopChoice(request(2), 0));
    let cancel = Effect::ToDecode(D, GatewayToDecode::Cancel { attempt: new });
    assert!(said.contains(&cancel), "{said:?}");
    assert_eq!(outcomes(&said), [(2, Outcome::Answered)]);
}

/// One retry of what goes on, if nothing was said in the attempt that failed.
#[test]
fn h20_what_goes_on_is_tried_again_once_and_with_all_that_was_said() {
    let mut g = GatewayRig::new();
    let old = g.committed(&spec(1, 4, 10));
    says(&mut g, old, 0, 50);
    let (new, _) = announced(&put_back(&mut g, old, 0));
    g.decode_ended(old, Ending::Finished);
    let failed = Ending::Failed(handoff::Failure::Unsettled);
    let (again, goes_on) = announced(&g.decode_ended(new, failed.clone()));
    assert_eq!(goes_on.tokens, [1, 1, 1, 1, 50]);
    assert_eq!(goes_on.resumes, Some(Resumed { said: 1, choice: 0 }));
    let failure = Outcome::Failed(handoff::Failure::Unsettled);
    assert_eq!(outcomes(&g.decode_ended(again, failed)), [(1, failure)]);
}

/// A client that leaves ends every attempt of its request.
#[test]
fn h6_all_attempts_of_a_request_end_with_it() {
    let mut g = GatewayRig::new();
    let both = g.committed(&Spec {
        choices: 2,
        ..spec(1, 4, 10)
    });
    let (new, _) = announced(&put_back(&mut g, both, 1));
    g.hear_decode(DecodeToGateway::Expecting { attempt: new });
    let said = g.tell(Event::ClientGone(request(1)));
    for attempt in [both, new] {
        let cancel = Effect::ToDecode(D, GatewayToDecode::Cancel { attempt });
        assert!(said.contains(&cancel), "{said:?}");
        let withdrawn = said.iter().any(|effect| {
            matches!(effect, Effect::ToPrefill(_, GatewayToPrefill::Withdraw { attempt: a }) if *a == attempt)
        });
        assert!(withdrawn, "{said:?}");
    }
    assert_eq!(outcomes(&said), [(1, Outcome::ClientLeft)]);
    assert_eq!(g.machine.load(), 0);
}

/// A request of the property below, as its gateway knows it.
struct Wanted {
    spec: Spec,
    said: Vec<Vec<u32>>,
    put_backs: u32,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever is admitted ends, in a pool that holds the largest of them and no more: every answer
    /// is whole and in order, nobody starves, no page is lost (H-10, H-19, H-20).
    #[test]
    fn h19_a_crowd_over_a_pool_for_one_is_answered_in_full(
        asked in prop::collection::vec((1..12usize, 1..30u32, 1..3u16), 1..6), more in 0..4u32,
    ) {
        let specs = asked.iter().zip(1..).map(|((prompt, max_new, n), at)| Spec {
            domain: Domain::new(7),
            choices: *n,
            ..spec(at, *prompt, *max_new)
        });
        let mut all: Vec<Wanted> = specs
            .map(|spec| Wanted {
                said: vec![Vec::new(); usize::from(spec.choices)],
                spec,
                put_backs: 0,
            })
            .collect();
        let measure = scene(64).machine.hello().capacity.unwrap();
        let needed = all.iter().map(|wanted| measure.pages_needed(&wanted.spec)).max().unwrap();
        let mut d = tight(needed as u32 + more);
        // What waits for a ticket: request, which of its choices, spec.
        let mut waiting: Vec<(usize, u16, Spec)> =
            all.iter().enumerate().map(|(at, wanted)| (at, 0, wanted.spec.clone())).collect();
        let mut attempts: BTreeMap<u64, (usize, u16, Spec, Option<Ticket>)> = BTreeMap::new();
        let mut n = 0;
        for _ in 0..3000 {
            for (at, first, spec) in std::mem::take(&mut waiting) {
                n += 1;
                d.expect(n, &spec, PREFILL);
                attempts.insert(n, (at, first, spec, None));
            }
            let mut said = Vec::new();
            for (n, (_, _, spec, granted)) in attempts.iter_mut().filter(|(_, a)| a.3.is_none()) {
                if let Some(ticket) = ticket(&d.offer(PREFILL, 10, *n, spec), spec) {
                    said.extend(hand_over(&mut d, &ticket));
                    let done = (spec.max_new == 1).then_some(Finish::Length);
                    said.extend(d.first(&ticket, spec.choices, done));
                    *granted = Some(ticket);
                }
            }
            let oldest = d.machine.oldest();
            prop_assert!(oldest.is_none_or(|lane| !d.machine.short().contains(&lane)), "H-19");
            if !d.machine.runnable().is_empty() {
                let left: BTreeMap<_, u32> = attempts
                    .values()
                    .filter_map(|(at, first, spec, ticket)| Some((at, first, spec, ticket.as_ref()?)))
                    .flat_map(|(at, first, spec, ticket)| {
                        let of = |lane: u16| all[*at].said[usize::from(first + lane)].len() as u32;
                        let before = spec.resumes.map_or(0, |resumed| resumed.said);
                        let whole = before + spec.max_new;
                        (0..spec.choices).map(move |lane| {
                            let handoff = ticket.handoff;
                            (Lane { handoff, choice: lane }, whole - of(lane))
                        }).collect::<Vec<_>>()
                    })
                    .collect();
                // What `first` has said is not counted there yet.
                let unsaid = |lane: &Lane| to_gateway(&said).iter().any(|message| {
                    matches!(message, DecodeToGateway::Tokens { attempt, choice, .. }
                        if *choice == lane.choice
                            && attempts[&attempt.n].3.as_ref().is_some_and(|t| t.handoff == lane.handoff))
                });
                let more = d.step(|lane| {
                    let left = left[&lane] - u32::from(unsaid(&lane));
                    (left == 1).then_some(Finish::Length)
                });
                said.extend(more);
            }
            for message in to_gateway(&said) {
                match message {
                    DecodeToGateway::Tokens { attempt, choice, .. } => {
                        let (at, first, ..) = attempts[&attempt.n];
                        let said = &mut all[at].said[usize::from(first + choice)];
                        said.push(1000 + said.len() as u32);
                    }
                    DecodeToGateway::PutBack { attempt, choice } => {
                        let (at, first, ..) = attempts[&attempt.n];
                        let choice = first + choice;
                        let Wanted { spec, said, put_backs } = &mut all[at];
                        *put_backs += 1;
                        let said = &said[usize::from(choice)];
                        let spec = Spec {
                            tokens: [&spec.tokens[..], said].concat(),
                            max_new: spec.max_new - said.len() as u32,
                            choices: 1,
                            pages: if *put_backs > 3 { Reserve::All } else { Reserve::AsNeeded },
                            resumes: Some(Resumed { said: said.len() as u32, choice }),
                            ..spec.clone()
                        };
                        waiting.push((at, choice, spec));
                    }
                    DecodeToGateway::Ended { attempt, ending } => {
                        prop_assert_eq!(ending, Ending::Finished);
                        attempts.remove(&attempt.n);
                    }
                    _ => {}
                }
            }
            if attempts.is_empty() && waiting.is_empty() {
                break;
            }
        }
        prop_assert!(d.machine.at_rest(), "nobody starves: {} wait", attempts.len());
        for Wanted { spec, said, put_backs } in &all {
            prop_assert!(said.iter().all(|said| said.len() == spec.max_new as usize));
            prop_assert!(*put_backs <= 3 + 2 * u32::from(spec.choices), "{put_backs}");
        }
    }
}
