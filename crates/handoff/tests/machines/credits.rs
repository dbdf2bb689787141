//! Credits (handoff.md, happy path 4): what decode takes with its ticket (here all that an attempt
//! can ever need; `growth` has the others), several choices, steps.

use crate::decode_rig::{DecodeRig, Ticket, endings, starts, to_gateway};
use crate::rig::{PAGE, PREFILL, attempt, spec};
use handoff::decode::{Effect, Event, Lane};
use handoff::{DecodeToGateway, Ending, Failure, Finish, GatewayToDecode, NoToken, Reserve, Spec};
use proptest::prelude::*;

pub fn scene(pages: u32) -> DecodeRig {
    let mut d = DecodeRig::new(pages, |_| ());
    d.connect(PREFILL, 10, 1);
    d
}

pub fn choices(prompt: usize, max_new: u32, choices: u16) -> Spec {
    Spec {
        choices,
        ..spec(1, prompt, max_new)
    }
}

/// States pages in batches of four, the most that this decode takes.
pub fn hand_over(d: &mut DecodeRig, ticket: &Ticket) -> Vec<Effect> {
    let pages = ticket.tags.len() as u32;
    let batches = pages.div_ceil(4);
    for batch in 0..batches {
        let ordinals = batch * 4..pages.min(batch * 4 + 4);
        let manifest = ticket.manifest(0, batch, ordinals);
        d.state(10, &manifest);
        d.copied(&manifest);
    }
    let how = handoff::Closing::Sealed {
        batches,
        pages,
        first: Some(vec![1]),
    };
    d.close(10, ticket.handoff, 0, how)
}

/// Runs it to its maximum of tokens; a step that finds no page is a fail-stop, which panics.
fn generate_all(d: &mut DecodeRig, ticket: &Ticket, spec: &Spec) {
    let done = |generated: u32| (generated == spec.max_new).then_some(Finish::Length);
    d.first(ticket, spec.choices, done(1));
    for generated in 2..=spec.max_new {
        d.step(|_| done(generated));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A pool of exactly what the capacity says is needed is enough, and one page less is Busy.
    #[test]
    fn h14_what_is_reserved_is_enough_and_exactly_what_the_limit_counts(
        prompt in 1..24usize, max_new in 1..12u32, n in 1..4u16, cache: bool,
    ) {
        let spec = Spec { cache, pages: Reserve::All, ..choices(prompt, max_new, n) };
        let needed = scene(64).machine.hello().capacity.unwrap().pages_needed(&spec) as u32;
        let mut d = scene(needed);
        let ticket = d.granted(PREFILL, 10, 1, &spec);
        prop_assert_eq!(d.counts().free, 0, "all of it, before anything is sent");
        prop_assert!(starts(&hand_over(&mut d, &ticket)));
        generate_all(&mut d, &ticket, &spec);
        prop_assert!(d.machine.at_rest());
        let full = prompt / usize::from(PAGE);
        prop_assert_eq!(d.counts().cached, if cache { full } else { 0 });
    }
}

#[test]
fn h14_one_page_too_few_is_busy_and_takes_nothing() {
    let prompt = choices(14, 6, 1);
    let mut d = scene(8);
    d.granted(PREFILL, 10, 1, &prompt);
    assert_eq!(d.counts().free, 3);
    d.expect(2, &prompt, PREFILL);
    let said = d.offer(PREFILL, 10, 2, &prompt);
    assert!(crate::decode_rig::ticket(&said, &prompt).is_none());
    assert_eq!(d.counts().free, 3);
    assert_eq!(d.counts().granted, 4, "those of the first");
}

/// A partly filled page is copied for every choice, never shared; full pages are shared.
#[test]
fn every_choice_gets_its_copy_of_the_partly_filled_page() {
    let spec = choices(14, 4, 3);
    let mut d = scene(16);
    let ticket = d.granted(PREFILL, 10, 1, &spec);
    let said = hand_over(&mut d, &ticket);
    let copies: Vec<_> = said
        .iter()
        .filter_map(|effect| match effect {
            Effect::Duplicate { from, to, filled } => Some((*from, *to, *filled)),
            _ => None,
        })
        .collect();
    assert_eq!(copies.len(), 3);
    assert!(
        copies
            .iter()
            .all(|(from, _, filled)| *from == copies[0].0 && *filled == 2)
    );
    let targets: std::collections::BTreeSet<_> = copies.iter().map(|(_, to, _)| *to).collect();
    assert_eq!(targets.len(), 3, "one each");
    let start = said
        .iter()
        .position(|effect| matches!(effect, Effect::Start { .. }));
    let copy = said
        .iter()
        .rposition(|effect| matches!(effect, Effect::Duplicate { .. }));
    assert!(copy < start, "before anybody may run");
}

#[test]
fn every_choice_ends_by_itself_and_the_last_one_ends_the_attempt() {
    let spec = choices(14, 8, 3);
    let mut d = scene(16);
    let ticket = d.granted(PREFILL, 10, 1, &spec);
    hand_over(&mut d, &ticket);
    d.first(&ticket, 3, None);
    assert_eq!(d.machine.runnable().len(), 3);
    let said = d.step(|lane| (lane.choice == 1).then_some(Finish::Stop));
    assert!(endings(&said).is_empty());
    let running: Vec<u16> = d
        .machine
        .runnable()
        .iter()
        .map(|lane| lane.choice)
        .collect();
    assert_eq!(running, [0, 2]);
    let said = d.step(|lane| (lane.choice == 0).then_some(Finish::Length));
    assert!(endings(&said).is_empty());
    let said = d.step(|_| Some(Finish::Length));
    assert_eq!(endings(&said), [(1, Ending::Finished)]);
    assert!(d.machine.at_rest());
}

fn stop(d: &mut DecodeRig, choice: u16) -> Vec<Effect> {
    let attempt = attempt(1);
    d.hear_gateway(GatewayToDecode::StopChoice { attempt, choice })
}

#[test]
fn a_choice_that_is_stopped_says_no_more_and_counts_as_finished() {
    let spec = choices(14, 8, 2);
    let mut d = scene(16);
    let ticket = d.granted(PREFILL, 10, 1, &spec);
    hand_over(&mut d, &ticket);
    d.first(&ticket, 2, None);
    let handoff = ticket.handoff;
    let said = stop(&mut d, 1);
    assert_eq!(said, [Effect::Stop(Lane { handoff, choice: 1 })]);
    assert!(
        stop(&mut d, 1).is_empty()
            && stop(&mut d, 2).is_empty()
            && stop(&mut d, u16::MAX).is_empty()
    );
    let said = d.step(|_| None);
    assert_eq!(to_gateway(&said).len(), 1, "only choice 0 speaks: {said:?}");
    let said = stop(&mut d, 0);
    assert_eq!(endings(&said), [(1, Ending::Finished)]);
    assert!(d.machine.at_rest());
}

/// A stop that overtakes the step's end: its output is nobody's, its pages stay until then (H-3).
#[test]
fn h3_a_choice_stopped_in_a_step_gives_its_pages_back_when_the_step_has_ended() {
    let mut d = scene(16);
    let ticket = d.committed(PREFILL, 10, 1, &spec(1, 14, 8));
    d.first(&ticket, 1, None);
    let lanes = d.machine.runnable();
    d.tell(Event::StepBegin(lanes));
    let held = d.counts().sealed;
    let said = stop(&mut d, 0);
    assert_eq!(endings(&said), [(1, Ending::Finished)]);
    assert_eq!(
        d.counts().sealed,
        held,
        "the step still reads and writes them"
    );
    let said = d.tell(Event::StepEnd(vec![crate::decode_rig::output(
        ticket.handoff,
        0,
        None,
    )]));
    assert!(
        to_gateway(&said).is_empty(),
        "nothing follows the ending (H-6)"
    );
    assert!(d.machine.at_rest());
}

/// Regression: all choices stopped before the worker had looked at the first tokens, and the
/// attempt ran until its deadline.
#[test]
fn h11_stopped_before_its_first_token_it_still_ends() {
    let mut d = scene(16);
    let ticket = d.committed(PREFILL, 10, 1, &spec(1, 14, 8));
    stop(&mut d, 0);
    let said = d.first(&ticket, 1, None);
    assert_eq!(
        to_gateway(&said),
        [DecodeToGateway::Ended {
            attempt: attempt(1),
            ending: Ending::Finished,
        }]
    );
    assert!(d.machine.at_rest());
}

#[test]
fn a_step_that_failed_ends_those_that_were_in_it_and_nobody_else() {
    for (why, failure) in [
        (NoToken::Compute, Failure::Compute),
        (NoToken::Form, Failure::Form),
    ] {
        let mut d = scene(24);
        let first = d.committed(PREFILL, 10, 1, &spec(1, 14, 8));
        d.first(&first, 1, None);
        let lanes = d.machine.runnable();
        let second = d.committed(PREFILL, 10, 2, &spec(2, 14, 8));
        d.first(&second, 1, None);
        d.tell(Event::StepBegin(lanes));
        let said = d.tell(Event::StepFailed(why));
        assert_eq!(endings(&said), [(1, Ending::Failed(failure))]);
        assert_eq!(d.machine.runnable().len(), 1, "the other one goes on");
    }
}

/// H-9: neither tokens nor cached pages before verification.
#[test]
fn h9_nothing_is_cached_and_nothing_said_before_the_last_page_is_verified() {
    let spec = Spec {
        cache: true,
        ..spec(1, 16, 2)
    };
    let mut d = scene(16);
    let ticket = d.granted(PREFILL, 10, 1, &spec);
    let manifest = ticket.manifest(0, 0, 0..4);
    d.state(10, &manifest);
    let said = d.close(10, ticket.handoff, 0, ticket.sealed(Some(1)));
    assert!(said.is_empty(), "the copy has not ended: {said:?}");
    assert_eq!(d.counts().cached, 0);
    assert!(
        d.first(&ticket, 1, None).is_empty(),
        "a token that came too early is nobody's"
    );
    assert!(starts(&d.copied(&manifest)));
    assert_eq!(d.counts().cached, 4);
}

/// A step writes one token behind those that are there: the next one begins after it (H-1).
#[test]
fn h1_every_step_is_one_token_further() {
    let mut d = scene(16);
    let ticket = d.committed(PREFILL, 10, 1, &spec(1, 14, 8));
    d.first(&ticket, 1, None);
    for done in 0..7 {
        let lanes = d.machine.runnable();
        d.tell(Event::StepBegin(lanes));
        let verified = d.machine.verify().expect("a sound table");
        let sequence = &verified.sequences()[0];
        assert_eq!((sequence.start(), sequence.new_tokens()), (14 + done, 1));
        assert_eq!(sequence.pages().len(), (15 + done).div_ceil(4));
        let token = crate::decode_rig::output(ticket.handoff, 0, None);
        d.tell(Event::StepEnd(vec![token]));
    }
    let mut filled = d.machine.holders();
    filled.retain(|holder| holder.seal.filled > 0);
    filled.sort_by_key(|holder| holder.seal.ordinal);
    let filled: Vec<_> = filled.iter().map(|holder| holder.seal.filled).collect();
    assert_eq!(filled, [4, 4, 4, 4, 4, 1], "14 of the prompt and 7 more");
}

/// A step waits for those that it names, and for nobody else.
#[test]
fn h3_an_attempt_that_no_step_names_gives_its_pages_back_at_once() {
    let mut d = scene(24);
    let first = d.committed(PREFILL, 10, 1, &spec(1, 14, 8));
    d.first(&first, 1, None);
    let lanes = d.machine.runnable();
    let second = d.committed(PREFILL, 10, 2, &spec(2, 14, 8));
    d.first(&second, 1, None);
    d.tell(Event::StepBegin(lanes));
    let before = d.counts().free;
    d.hear_gateway(GatewayToDecode::Cancel {
        attempt: attempt(2),
    });
    assert_eq!(d.counts().free, before + 6, "14 + 8 tokens in pages of 4");
    let said = d.tell(Event::StepEnd(Vec::new()));
    assert!(endings(&said).is_empty());
}

/// What the worker's loop must never do ends the worker (fail-stop), with nothing begun.
#[test]
fn a_step_names_only_what_can_run() {
    let mut d = scene(24);
    let lane = |ticket: &Ticket| Lane {
        handoff: ticket.handoff,
        choice: 0,
    };
    let refused = |d: &mut DecodeRig, lane| {
        let said = d.machine.handle(Event::StepBegin(vec![lane]));
        matches!(said[..], [Effect::FailStop(_)])
    };
    let fresh = d.committed(PREFILL, 10, 1, &spec(1, 14, 8));
    assert!(refused(&mut d, lane(&fresh)), "nobody saw its first token");
    let landing = d.granted(PREFILL, 10, 2, &spec(2, 14, 8));
    assert!(refused(&mut d, lane(&landing)), "not committed");
    d.first(&fresh, 1, None);
    stop(&mut d, 0);
    assert!(refused(&mut d, lane(&fresh)), "over");
    assert!(d.machine.runnable().is_empty());
}
