//! The sentence on top: the worst of what there is, and what to press.

use super::made_up::fleet;
use desk::state::{AccessLevel, CheckResult, DeskState, ProofView, StandingView};
use desk::{Act, ActionScope, Headline, Press, Urgency, headline, utc};

fn pair() -> ActionScope {
    ActionScope::Pair {
        prefill: "prefill-0".into(),
        decode: "decode-1".into(),
    }
}

fn engine(name: &str) -> ActionScope {
    ActionScope::Engine { name: name.into() }
}

fn said(state: &DeskState) -> (Urgency, String, Option<Press>) {
    let Headline {
        level,
        sentence,
        press,
        ..
    } = headline(state);
    (level, sentence, press)
}

fn press(act: Act, scope: ActionScope) -> Option<Press> {
    Some(Press { act, scope })
}

#[test]
fn quiet_is_said_with_what_it_is_worth() {
    let (level, sentence, press) = said(&fleet("healthy").unwrap());
    assert_eq!((level, press), (Urgency::Calm, None));
    let worth = "in the last day canaries went through 9,655 answers, and a leak in more than one of \
                 3,218 would have been seen (95 %)";
    assert!(sentence.ends_with(worth), "{sentence}");
}

#[test]
fn quiet_without_anybody_looking_is_not_quiet() {
    let mut state = fleet("healthy").unwrap();
    state.canaries.as_mut().unwrap().paused = Some("the budget is spent".into());
    let (level, sentence, _) = said(&state);
    assert_eq!(level, Urgency::Attention);
    assert!(
        sentence.contains("nobody looks") && sentence.contains("the budget is spent"),
        "{sentence}"
    );
    state.canaries = None;
    assert!(said(&state).1.contains("the canaries are off"));
    let (level, sentence, _) = said(&DeskState::default());
    assert_eq!(level, Urgency::Attention, "nothing known is not all quiet");
    assert!(sentence.contains("there is no journal"), "{sentence}");
}

#[test]
fn an_incident_says_which_pair_why_since_when_who_and_what_to_press() {
    let mut state = fleet("incident").unwrap();
    let opened = state.incidents[0].opened_ms;
    let now = headline(&state);
    assert_eq!(now.level, Urgency::Contained);
    let sentence = "Pair prefill-0 → decode-1 is suspect: a canary of another tenant came back in an \
                    answer over the limit of 1,993 tokens; it is private, but decode-1 still serves 1 \
                    other pair";
    assert_eq!(now.sentence, sentence);
    assert_eq!(now.since_ms, Some(opened));
    let affected = "155 requests of acme (150), globex (5) may have got text that was not theirs";
    assert_eq!(now.affected.as_deref(), Some(affected));
    assert!(now.next.unwrap().starts_with("Keep the processes running"));
    assert_eq!(now.press, press(Act::Private, engine("decode-1")));
    // Pressed, and the same for prefill: nothing more to press until there is evidence.
    for engine in &mut state.engines {
        if engine.name == "decode-1" || engine.name == "prefill-0" {
            engine.standing.access = AccessLevel::Private;
        }
    }
    let (level, sentence, none) = said(&state);
    assert_eq!((level, none), (Urgency::Contained, None));
    assert!(sentence.ends_with("; it is private"), "{sentence}");
    for proof in &mut state.model.evidence {
        proof.missing = None;
    }
    assert_eq!(said(&state).2, press(Act::Restore, pair()));
    state.model.evidence.push(ProofView {
        missing: Some("x".into()),
        ..ProofView::default()
    });
    assert_eq!(said(&state).2, None, "one that is missing is one too many");
}

#[test]
fn what_was_restored_with_its_proofs_is_not_suspect_any_more() {
    let mut state = fleet("incident").unwrap();
    state.model.standing = StandingView::default();
    for pair in &mut state.pairs {
        pair.standing = StandingView::default();
        pair.canaries.seen = 0;
    }
    for engine in &mut state.engines {
        engine.standing = StandingView::default();
        engine.verdicts.clear();
    }
    assert_eq!(
        said(&state).0,
        Urgency::Alarm,
        "open, and nobody has said that it is well"
    );
    for incident in &mut state.incidents {
        incident.restored_ms = Some(incident.opened_ms + 1);
    }
    let (level, sentence, pressed) = said(&state);
    assert_eq!((level, pressed), (Urgency::Attention, None));
    assert!(
        sentence.contains("was tested and is open again"),
        "{sentence}"
    );
}

#[test]
fn a_suspect_that_users_reach_is_an_alarm() {
    let mut state = fleet("incident").unwrap();
    for open in [AccessLevel::Open, AccessLevel::Draining] {
        let pair = state
            .pairs
            .iter_mut()
            .find(|it| it.canaries.seen > 0)
            .unwrap();
        pair.standing.access = open;
        let (level, sentence, pressed) = said(&state);
        assert_eq!(level, Urgency::Alarm);
        assert!(
            sentence.starts_with(
                "Pair prefill-0 → decode-1 is suspect: 1 finding of canaries there, 412 sent, and users"
            ),
            "{sentence}"
        );
        assert_eq!(pressed, press(Act::Private, self::pair()));
    }
    let decode = pair().to_string().rsplit(' ').next().unwrap().to_owned();
    let of = |state: &mut DeskState, access| {
        let mut engines = state.engines.iter_mut();
        engines
            .find(|it| it.name == decode)
            .unwrap()
            .standing
            .access = access;
    };
    of(&mut state, AccessLevel::Private);
    let reached = state.pairs.iter().find(|it| it.canaries.seen > 0).unwrap();
    assert_eq!(
        state.reach_of_pair(reached),
        AccessLevel::Private,
        "by its decode"
    );
    of(&mut state, AccessLevel::Open);
    state.model.standing.access = AccessLevel::Private;
    assert_eq!(
        said(&state).0,
        Urgency::Contained,
        "the model's door is before the pair's"
    );
    for incident in &mut state.incidents {
        incident.affected = None;
    }
    let affected = headline(&state).affected.unwrap();
    assert!(
        affected.starts_with("nobody has looked for those"),
        "{affected}"
    );
    let alone = ActionScope::Pair {
        prefill: "e".into(),
        decode: "e".into(),
    };
    assert_eq!(alone.to_string(), "engine e");
}

#[test]
fn what_was_found_on_an_engine_is_an_alarm_until_an_incident_has_it() {
    let mut state = fleet("healthy").unwrap();
    state.engines[3].verdicts[0].result = CheckResult::Found;
    state.engines[3].verdicts[0].what = "another tenant’s words".into();
    let (level, sentence, pressed) = said(&state);
    assert_eq!(level, Urgency::Alarm);
    let words =
        "Engine decode-1 is suspect: another tenant’s words (says canary); users still reach it";
    assert_eq!(sentence, words);
    assert_eq!(pressed, press(Act::Private, engine("decode-1")));
    state.engines[3].standing.access = AccessLevel::Private;
    assert_eq!(said(&state).0, Urgency::Attention);
}

#[test]
fn of_several_incidents_the_one_comes_first_whose_users_are_not_kept_away() {
    let mut state = fleet("incident").unwrap();
    let mut other = state.incidents[0].clone();
    other.id = "inc-2".into();
    other.title = "answers come too soon".into();
    other.engines = vec!["decode-own".into()];
    other.opened_ms -= 1;
    state.incidents.push(other);
    let (level, sentence, pressed) = said(&state);
    assert_eq!(level, Urgency::Alarm);
    let words = "Engine decode-own is suspect: answers come too soon; users still reach it (1 incident \
                 more open)";
    assert_eq!(sentence, words);
    assert_eq!(pressed, press(Act::Private, engine("decode-own")));
}

#[test]
fn what_is_shut_away_or_not_written_down_is_said() {
    let mut state = fleet("healthy").unwrap();
    state.engines[0].readiness = Some("no answer for 40 s".into());
    state.engines[1].readiness = Some("no answer for 40 s".into());
    let words = "Engine prefill-0 takes nothing: no answer for 40 s, and 1 engine more";
    assert_eq!(said(&state).1, words);
    state.pairs[0].standing = StandingView {
        access: AccessLevel::Draining,
        why: Some("new flags".into()),
        ..StandingView::default()
    };
    assert_eq!(
        said(&state).1,
        "Pair prefill-0 → decode-0 is draining: new flags"
    );
    state.journal.trouble = Some("the disk is full".into());
    assert_eq!(
        said(&state).1,
        "The journal cannot be written: the disk is full"
    );
    assert_eq!(said(&state).0, Urgency::Attention);
}

#[test]
fn times_are_utc() {
    assert_eq!(utc(1_796_106_580_123), "2026-12-01 06:29:40 UTC");
    assert_eq!(utc(u64::MAX), "an unknown time");
}
