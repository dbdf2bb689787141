use super::*;
use crate::entry::{Proof, ProofKind};

fn life(engine: &str, life: &str) -> Life {
    Life {
        engine: engine.into(),
        life: life.into(),
    }
}

fn signal(kind: SignalKind, lives: &[Life]) -> Signal {
    Signal {
        signal: kind,
        lives: lives.to_vec(),
        request: Some("r-1".into()),
        tenant: None,
        says: "seen".into(),
        source: "test".into(),
    }
}

fn pair() -> [Life; 2] {
    [life("p", "1"), life("d", "1")]
}

fn duty() -> Duty {
    Duty::new(Policy::default(), "m", Book::default())
}

fn proof(kind: ProofKind, lives: &[Life]) -> Entry {
    Entry::Proved {
        proof: Proof {
            proof: kind,
            lives: lives.to_vec(),
            answers: 300,
            says: "clean".into(),
        },
    }
}

const SAYS: (&str, &str) = ("anna", "because");

fn nobody_sends(_: &Life) -> Proving {
    Proving::Off
}

#[test]
fn a_leak_makes_the_model_private_and_opens_one_incident() {
    let mut duty = duty();
    let entries = duty.signal(1, signal(SignalKind::CanaryLeak, &pair()), "i1");
    let kinds: Vec<_> = entries.iter().map(|it| &it.entry).collect();
    assert!(
        matches!(
            kinds[..],
            [
                Entry::Opened { .. },
                Entry::Signal { .. },
                Entry::Restricted { .. }
            ]
        ),
        "{kinds:?}"
    );
    assert_eq!(duty.book().of_model("m").unwrap().access, Openness::Private);
    let more = duty.signal(2, signal(SignalKind::CanaryLeak, &pair()), "i2");
    assert_eq!(more.len(), 1, "the same incident, no second restriction");
    assert_eq!(duty.book().incident("i1").unwrap().signals, 2);
    assert!(duty.book().incident("i2").is_none());
}

#[test]
fn an_incident_is_called_by_the_gravest_of_what_was_found() {
    let mut duty = duty();
    let title = |duty: &Duty| duty.book().incident("i").unwrap().title.clone();
    duty.signal(1, signal(SignalKind::CanaryLost, &pair()), "i");
    duty.signal(2, signal(SignalKind::OverLimitAnswered, &pair()), "j");
    let first = "prompts from a length on are answered with something else: model m";
    assert_eq!(title(&duty), first);
    // However much of something else was found before, the first of a kind has a line.
    for at in 3..200 {
        duty.signal(at, signal(SignalKind::CanaryLost, &pair()), "j");
    }
    let lines = duty.signal(200, signal(SignalKind::CanaryLeak, &pair()), "j");
    assert_eq!(lines.len(), 1, "{lines:?}");
    let graver = "an answer had another tenant's canary in it: model m";
    assert_eq!(title(&duty), graver);
    duty.signal(201, signal(SignalKind::WatchAlarm, &pair()), "j");
    assert_eq!(title(&duty), graver);
}

#[test]
fn what_a_person_has_called_it_stays() {
    let mut duty = duty();
    let open = Asked::Open(Scope::Model("m".into()));
    let says = ("anna", "a customer has called");
    duty.asked(1, open, says, &pair(), "i").1.unwrap();
    duty.signal(2, signal(SignalKind::CanaryLeak, &pair()), "j");
    let incident = duty.book().incident("i").unwrap();
    assert_eq!((incident.title.as_str(), incident.signals), (says.1, 1));
}

/// A flood that goes on for hours is counted each minute: what people did is still known afterwards.
#[test]
fn a_flood_of_hours_does_not_hide_that_it_was_restored() {
    let mut duty = duty();
    for minute in 0..700 {
        for n in 0..3 {
            duty.signal(
                minute * 61_000 + n,
                signal(SignalKind::CanaryLeak, &pair()),
                "i",
            );
        }
        duty.counted(minute * 61_000 + 60_500);
    }
    let at = 700 * 61_000;
    for kind in [ProofKind::Probe, ProofKind::Canary] {
        duty.note(at, proof(kind, &pair()));
    }
    let restore = Asked::Restore(Scope::Model("m".into()));
    duty.asked(at + 1, restore, SAYS, &pair(), "x").1.unwrap();
    let incident = duty.book().incident("i").unwrap();
    assert_eq!(incident.restored(), Some(at + 1));
    assert!(
        incident.timeline.len() <= 500,
        "{}",
        incident.timeline.len()
    );
    let began = &incident.timeline[..2];
    assert!(
        matches!(
            (&began[0].entry, &began[1].entry),
            (Entry::Opened { .. }, Entry::Signal { .. })
        ),
        "{began:?}"
    );
}

#[test]
fn what_to_do_next_names_commands_and_how_far_it_is() {
    let mut duty = duty();
    duty.signal(0, signal(SignalKind::CanaryLeak, &pair()), "i");
    let steps = |duty: &Duty, running: &[Life], canaries: fn(&Life) -> Proving| {
        duty.next_steps(185_000, "i", running, canaries)
    };
    let then = "then restore it on the operators' page, with the reason: model m is private since 3 min 5 s";
    let found = steps(&duty, &pair(), |_| Proving::Found);
    assert!(
        found[0].starts_with("keep the processes for the evidence"),
        "{found:?}"
    );
    let only = "canaries have found something at p, d: only other processes can be proven there";
    assert_eq!(
        found[1..],
        [only, then],
        "a probe of these proves nothing that counts"
    );
    let found = steps(&duty, &pair(), |_| Proving::Answers(0));
    let probe =
        "test p, d with two operators' keys: `cofferdam probe URL --key-a A.key --key-b B.key";
    assert!(found[1].starts_with(probe), "{found:?}");
    assert!(
        found[1].contains("`cofferdam incident prove evidence.txt --evidence-pub evidence.pub`"),
        "{found:?}"
    );
    // Others in their place: the least of them says how far it is.
    let other = [life("p", "2"), life("d", "2")];
    duty.note(1, proof(ProofKind::Probe, &other));
    let waits = steps(&duty, &other, |life| {
        Proving::Answers(if life.engine == "p" { 214 } else { 250 })
    });
    let wait =
        "wait for the canaries at p, d: 214 of 300 answers (`--canary-every` sets their rate)";
    assert_eq!(waits, [wait, then]);
    let off = "no canaries are sent to p, d: start the gateway with `--canaries`";
    assert_eq!(steps(&duty, &other, nobody_sends), [off, then]);
    let nothing = "model m is private since 3 min 5 s, and nothing of it runs: start it";
    assert_eq!(steps(&duty, &[], nobody_sends), [nothing]);
    let many: Vec<Life> = (0..9).map(|n| life(&format!("e{n}"), "1")).collect();
    let many = steps(&duty, &many, nobody_sends);
    assert!(
        many[1].contains(" to e0, e1, e2, e3 and 5 more: "),
        "{many:?}"
    );
}

/// Between what was answered well and what is known to show it nobody has looked.
#[test]
fn whoever_may_be_affected_begins_behind_what_was_answered_well() {
    let mut duty = duty();
    duty.signal(1, signal(SignalKind::OverLimitAnswered, &pair()), "i");
    let from = |duty: &Duty| duty.book().incident("i").unwrap().affects_from;
    assert_eq!(from(&duty), 0);
    let trigger = Entry::Trigger {
        incident: "i".into(),
        at_least_tokens: 1994,
        clean_tokens: 1968,
        lives: pair().into(),
    };
    duty.note(2, trigger);
    assert_eq!(from(&duty), 1969);
}

/// Another pair that shows the same has met others than were written down.
#[test]
fn lives_that_were_found_since_are_new() {
    let mut duty = duty();
    let has_new = |duty: &Duty| duty.book().incident("i").unwrap().has_new_lives();
    duty.signal(1, signal(SignalKind::CanaryLeak, &pair()), "i");
    assert!(has_new(&duty));
    let affected = Entry::Affected {
        incident: "i".into(),
        requests: vec!["r-1".into()],
        how: "so".into(),
        more: 2,
        tenants: [("t".to_owned(), 3)].into(),
    };
    duty.note(2, affected.clone());
    assert_eq!(duty.book().incident("i").unwrap().affected, Some(3));
    assert!(!has_new(&duty));
    duty.signal(3, signal(SignalKind::CanaryLeak, &pair()), "i");
    assert!(!has_new(&duty), "they were");
    duty.signal(
        4,
        signal(SignalKind::CanaryLeak, &[life("p", "1"), life("d2", "1")]),
        "i",
    );
    assert!(has_new(&duty));
    duty.note(5, affected);
    assert!(!has_new(&duty));
}

#[test]
fn both_of_a_pair_may_be_to_blame() {
    let mut duty = duty();
    duty.signal(1, signal(SignalKind::CanaryMixup, &pair()), "i");
    for engine in ["p", "d"] {
        let of = duty.book().of_engine(engine).unwrap();
        assert_eq!(of.access, Openness::Private);
    }
    assert!(duty.book().of_engine("another").is_none());
    assert!(duty.book().of_model("m").is_none());
    let mut nobody = Duty::new(Policy::default(), "m", Book::default());
    nobody.signal(1, signal(SignalKind::CanaryMixup, &[]), "i");
    assert!(
        nobody.book().of_model("m").is_some(),
        "unknown is any of them"
    );
}

#[test]
fn a_pair_of_a_model_that_is_private_is_no_incident_of_its_own() {
    let mut duty = duty();
    duty.signal(1, signal(SignalKind::CanaryLeak, &pair()), "i");
    let more = duty.signal(2, signal(SignalKind::CanaryMixup, &pair()), "j");
    assert_eq!(more.len(), 1, "{more:?}");
    assert_eq!(more[0].entry.incident(), Some("i"));
    assert!(
        duty.book().of_engine("p").is_none(),
        "its model's door is its own"
    );
}

#[test]
fn what_happens_now_and_then_closes_nothing_and_is_written_down() {
    let mut duty = duty();
    for at in [0, 700_000, 1_400_000] {
        let entries = duty.signal(at, signal(SignalKind::IntegrityFault, &pair()), "i");
        assert!(matches!(
            entries[..],
            [Dated {
                entry: Entry::Signal { .. },
                ..
            }]
        ));
    }
    duty.signal(1_400_001, signal(SignalKind::IntegrityFault, &pair()), "i");
    let third = duty.signal(1_400_002, signal(SignalKind::IntegrityFault, &pair()), "i");
    assert_eq!(third.len(), 3, "{third:?}");
    assert_eq!(
        duty.book().of_engine("d").unwrap().access,
        Openness::Draining
    );
}

#[test]
fn what_was_closed_opens_with_proofs_about_the_lives_that_run_and_by_a_person() {
    let mut duty = duty();
    let model = Scope::Model("m".into());
    duty.note(1, proof(ProofKind::Probe, &pair()));
    duty.signal(10, signal(SignalKind::CanaryLeak, &pair()), "i");
    let restore = |duty: &mut Duty, at, running: &[Life]| {
        let asked = Asked::Restore(model.clone());
        duty.asked(at, asked, SAYS, running, "x").1
    };
    let now = [life("p", "2"), life("d", "2")];
    let missing = restore(&mut duty, 20, &now).unwrap_err().0;
    assert!(
        missing.contains("no proof by probe about p (life 2)"),
        "{missing}"
    );
    duty.note(30, proof(ProofKind::Probe, &now));
    let missing = restore(&mut duty, 31, &now).unwrap_err().0;
    assert!(missing.contains("no proof by canary"), "{missing}");
    duty.note(40, proof(ProofKind::Canary, &now));
    // A restart after the test is another life.
    let restarted = [life("p", "2"), life("d", "3")];
    assert!(restore(&mut duty, 41, &restarted).is_err());
    // Neither does time, nor that everything is well, open anything.
    duty.counted(1_000_000);
    assert!(duty.book().of_model("m").is_some());
    assert!(
        restore(&mut duty, 40 + 25 * 3_600_000, &now).is_err(),
        "too old"
    );
    restore(&mut duty, 50, &now).unwrap();
    assert!(duty.book().of_model("m").is_none());
    // What is done is not asked for again, until something is found again.
    assert_eq!(duty.book().incident("i").unwrap().restored(), Some(50));
    let close = "close it with the reason, when it is explained";
    assert_eq!(duty.next_steps(51, "i", &now, nobody_sends), [close]);
    duty.signal(52, signal(SignalKind::GateViolated, &now), "i");
    assert_eq!(duty.book().incident("i").unwrap().restored(), None);
    let closed = duty.asked(60, Asked::Close("i".into()), SAYS, &now, "x").1;
    closed.unwrap();
    assert_eq!(duty.book().incident("i").unwrap().closed, Some(60));
}

#[test]
fn a_proof_from_before_the_fault_proves_nothing() {
    let mut duty = duty();
    for kind in [ProofKind::Probe, ProofKind::Canary] {
        duty.note(5, proof(kind, &pair()));
    }
    duty.signal(10, signal(SignalKind::CanaryLeak, &pair()), "i");
    let asked = Asked::Restore(Scope::Model("m".into()));
    assert!(duty.asked(11, asked, SAYS, &pair(), "x").1.is_err());
}

#[test]
fn a_person_gives_a_reason_and_means_something_that_is_there() {
    let mut duty = duty();
    let mut asked = |asked, says| duty.asked(1, asked, says, &pair(), "i").1;
    let drain = |name: &str| Asked::Restrict(Scope::Engine(name.into()), Openness::Draining);
    assert!(
        asked(drain("p"), ("anna", "  "))
            .unwrap_err()
            .0
            .contains("reason")
    );
    assert!(asked(drain("q"), SAYS).unwrap_err().0.contains("\"q\""));
    asked(drain("p"), SAYS).unwrap();
    assert!(asked(drain("p"), SAYS).is_err(), "it is");
    let closed = Asked::Restrict(Scope::Engine("p".into()), Openness::Closed);
    asked(closed, SAYS).unwrap();
    assert!(asked(drain("p"), SAYS).unwrap_err().0.contains("restoring"));
    // What a person closed needs proofs too: a door is not opened by a wish.
    assert!(asked(Asked::Restore(Scope::Engine("p".into())), SAYS).is_err());
}

#[test]
fn what_a_person_drained_a_person_opens() {
    let mut duty = duty();
    let engine = Scope::Engine("p".into());
    let drain = Asked::Restrict(engine.clone(), Openness::Draining);
    duty.asked(1, drain, SAYS, &pair(), "i").1.unwrap();
    let restore = Asked::Restore(engine);
    duty.asked(2, restore, SAYS, &pair(), "i").1.unwrap();
}

#[test]
fn an_incident_is_closed_when_nothing_is_held_by_it() {
    let mut duty = duty();
    duty.signal(10, signal(SignalKind::CanaryLeak, &pair()), "i");
    let (entries, refused) = duty.asked(11, Asked::Close("i".into()), SAYS, &pair(), "x");
    assert!(refused.unwrap_err().0.contains("restore it first"));
    assert!(matches!(&entries[0].entry, Entry::Declined { by, .. } if by == "anna"));
}

#[test]
fn a_flood_of_signals_has_an_end_of_lines_and_is_counted() {
    let mut duty = duty();
    let mut lines = 0;
    for at in 0..10_000 {
        lines += duty
            .signal(at, signal(SignalKind::CanaryLeak, &pair()), "i")
            .len();
    }
    let counted = duty.counted(70_000);
    assert!(lines < 110, "{lines}");
    assert!(
        matches!(counted[0].entry, Entry::More { count: 9_900, .. }),
        "{counted:?}"
    );
    assert_eq!(duty.book().incident("i").unwrap().signals, 10_000);
}

#[test]
fn a_flood_that_is_only_noted_has_an_end_of_lines_too() {
    let policy = Policy::parse("[on.count_mismatch]\naction = 'note'").unwrap();
    let mut duty = Duty::new(policy, "m", Book::default());
    let mut lines = 0;
    for at in 0..5_000 {
        lines += duty
            .signal(at, signal(SignalKind::CountMismatch, &pair()), "i")
            .len();
    }
    assert_eq!(lines, LOOSE_MAX);
    let counted = duty.counted(70_000);
    let expected = 5_000 - LOOSE_MAX as u64;
    assert!(
        matches!(&counted[..], [Dated { entry: Entry::More { count, incident: None, .. }, .. }]
            if *count == expected),
        "{counted:?}"
    );
}

/// Whatever is heard and whoever wishes what: a restriction goes away by `Restored` alone, and that
/// needs every proof.
mod always {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn nothing_opens_by_itself(steps in proptest::collection::vec((0_u8..8, 0_u64..500_000), 1..60)) {
            let mut duty = duty();
            let mut at = 0;
            for (step, later) in steps {
                at += later;
                let before: Vec<_> = duty.book().restrictions().map(|(s, r)| (s.clone(), r.access)).collect();
                let lives = pair();
                let entries = match step {
                    0 => duty.signal(at, signal(SignalKind::CanaryLeak, &lives), "a"),
                    1 => duty.signal(at, signal(SignalKind::CanaryMixup, &lives), "b"),
                    2 => duty.signal(at, signal(SignalKind::IntegrityFault, &lives), "c"),
                    3 => duty.counted(at),
                    4 => duty.note(at, proof(ProofKind::Probe, &lives)),
                    5 => duty.note(at, proof(ProofKind::Canary, &lives)),
                    6 => duty.asked(at, Asked::Restore(Scope::Model("m".into())), SAYS, &lives, "x").0,
                    _ => duty.asked(at, Asked::Close("a".into()), SAYS, &lives, "x").0,
                };
                let restored = entries.iter().any(|it| matches!(it.entry, Entry::Restored { .. }));
                for (scope, access) in before {
                    let now = duty.book().restriction(&scope).map(|it| it.access);
                    prop_assert!(restored || now >= Some(access), "{scope}: {access:?} to {now:?}");
                }
                // The book is what the entries add up to.
                let mut again = Book::default();
                for one in entries { again.apply(&one); }
            }
        }
    }
}
