use super::*;

/// A decode, a prefill and a gateway: stages 0, 1, 2.
const DECODE: usize = 0;
const PREFILL: usize = 1;
const GATEWAY: usize = 2;

fn at(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn machine() -> Machine {
    machine_of([
        ("decode-0", "decode", 0),
        ("prefill-0", "prefill", 1),
        ("gateway", "gateway", 2),
    ])
}

fn machine_of<const N: usize>(parts: [(&str, &str, u32); N]) -> Machine {
    let member = |(name, kind, stage): (&str, &str, u32)| Member {
        name: name.into(),
        kind: kind.into(),
        stage,
    };
    Machine::new(parts.map(member).into(), Limits::default())
}

fn ready(part: usize, life: u64) -> Event {
    Event::Ready {
        part,
        life,
        epoch: format!("epoch {part}.{life}"),
    }
}

fn died(part: usize, life: u64) -> Event {
    Event::Exited {
        part,
        life,
        how: "signal: 9 (SIGKILL)".into(),
    }
}

fn refused(part: usize) -> Event {
    Event::Refused {
        part,
        life: 1,
        why: Refused {
            message: "too small".into(),
            exit: 2,
        },
    }
}

/// Actions without the notices.
fn acts(machine: &mut Machine, event: Event, now: Duration) -> Vec<Action> {
    let mut actions = machine.handle(event, now);
    actions.retain(|action| !matches!(action, Action::Notice(_) | Action::Warning(_)));
    actions
}

fn spawn(part: usize, life: u64) -> Action {
    Action::Spawn { part, life }
}

fn all_ready() -> Machine {
    let mut m = machine();
    assert_eq!(acts(&mut m, Event::Tick, at(0)), [spawn(DECODE, 1)]);
    assert_eq!(acts(&mut m, ready(DECODE, 1), at(1)), [spawn(PREFILL, 1)]);
    assert_eq!(acts(&mut m, ready(PREFILL, 1), at(2)), [spawn(GATEWAY, 1)]);
    assert_eq!(acts(&mut m, ready(GATEWAY, 1), at(3)), [Action::AllReady]);
    m
}

#[test]
fn stages_start_in_order_and_ready_is_announced_once() {
    let mut m = all_ready();
    assert_eq!(m.deadline(), None, "nothing is waited for");
    assert_eq!(acts(&mut m, died(GATEWAY, 1), at(1000)), []);
    assert_eq!(acts(&mut m, Event::Tick, at(1200)), [spawn(GATEWAY, 2)]);
    assert_eq!(
        acts(&mut m, ready(GATEWAY, 2), at(1300)),
        [],
        "not announced again"
    );
}

#[test]
fn a_dead_part_is_restarted_after_a_growing_pause() {
    let mut m = all_ready();
    let mut now = at(1000);
    for (life, pause) in [(1, 200), (2, 400), (3, 800), (4, 1600)] {
        assert_eq!(acts(&mut m, died(DECODE, life), now), []);
        assert_eq!(m.deadline(), Some(now + at(pause)));
        assert_eq!(
            acts(&mut m, Event::Tick, now + at(pause - 1)),
            [],
            "too early"
        );
        now += at(pause);
        assert_eq!(acts(&mut m, Event::Tick, now), [spawn(DECODE, life + 1)]);
        acts(&mut m, ready(DECODE, life + 1), now);
    }
}

#[test]
fn deaths_long_ago_do_not_count() {
    let mut m = all_ready();
    for life in 1..=20 {
        let now = Duration::from_secs(61 * life);
        assert_eq!(acts(&mut m, died(DECODE, life), now), []);
        assert_eq!(m.deadline(), Some(now + at(200)), "the first pause");
        assert_eq!(
            acts(&mut m, Event::Tick, now + at(200)),
            [spawn(DECODE, life + 1)]
        );
        acts(&mut m, ready(DECODE, life + 1), now + at(300));
    }
}

#[test]
fn a_crash_loop_ends_everything_and_names_the_part() {
    let mut m = all_ready();
    let mut now = at(1000);
    for life in 1..=4 {
        acts(&mut m, died(PREFILL, life), now);
        now = m.deadline().unwrap();
        assert_eq!(acts(&mut m, Event::Tick, now), [spawn(PREFILL, life + 1)]);
    }
    let last = acts(&mut m, died(PREFILL, 5), now);
    assert_eq!(last, [Action::Terminate { part: GATEWAY }]);
    let limits = Limits::default();
    assert_eq!(
        m.deadline(),
        Some(now + limits.grace),
        "nobody drains after a crash loop"
    );
    assert_eq!(
        acts(&mut m, died(GATEWAY, 1), now),
        [Action::Terminate { part: DECODE }]
    );
    let (part, deaths, how) = ("prefill-0".into(), 5, "signal: 9 (SIGKILL)".into());
    let ending = Ending::CrashLoop { part, deaths, how };
    assert_eq!(acts(&mut m, died(DECODE, 1), now), [Action::Finish(ending)]);
    assert_eq!(
        acts(&mut m, Event::Tick, now + at(99_999)),
        [],
        "nothing after the end"
    );
}

#[test]
fn a_part_that_dies_before_it_was_ready_holds_back_the_next_stage() {
    let mut m = machine();
    m.handle(Event::Tick, at(0));
    assert_eq!(acts(&mut m, died(DECODE, 1), at(10)), []);
    assert_eq!(acts(&mut m, Event::Tick, at(210)), [spawn(DECODE, 2)]);
    assert_eq!(acts(&mut m, ready(DECODE, 2), at(300)), [spawn(PREFILL, 1)]);
}

#[test]
fn a_start_that_takes_too_long_is_killed_and_counts_as_a_death() {
    let mut m = machine();
    m.handle(Event::Tick, at(0));
    let late = m.deadline().unwrap();
    assert_eq!(late, Limits::default().start_max);
    assert_eq!(
        acts(&mut m, Event::Tick, late),
        [Action::Kill { part: DECODE }]
    );
    assert_eq!(
        acts(&mut m, ready(DECODE, 1), late),
        [],
        "too late to be ready"
    );
    assert_eq!(acts(&mut m, died(DECODE, 1), late), []);
    assert_eq!(m.deadline(), Some(late + at(200)));
}

#[test]
fn a_refusal_ends_at_once_with_its_reason() {
    let mut m = machine();
    m.handle(Event::Tick, at(0));
    assert_eq!(
        acts(&mut m, refused(DECODE), at(5)),
        [Action::Terminate { part: DECODE }]
    );
    let why = Refused {
        message: "too small".into(),
        exit: 2,
    };
    let ending = Ending::Refused {
        part: "decode-0".into(),
        why,
    };
    assert_eq!(
        acts(&mut m, died(DECODE, 1), at(6)),
        [Action::Finish(ending)]
    );
}

#[test]
fn a_refusal_of_a_part_that_has_served_is_a_death_like_any_other() {
    let mut m = all_ready();
    let said = m.handle(refused(DECODE), at(1000));
    let [Action::Warning(text)] = &said[..] else {
        panic!("{said:?}")
    };
    assert!(text.starts_with("decode-0 cannot go on: "), "{text}");
    assert_eq!(acts(&mut m, died(DECODE, 1), at(1001)), []);
    assert_eq!(acts(&mut m, Event::Tick, at(1201)), [spawn(DECODE, 2)]);
}

#[test]
fn stopping_drains_the_gateway_first_and_then_ends_the_workers() {
    let (mut m, limits) = (all_ready(), Limits::default());
    assert_eq!(
        acts(&mut m, Event::StopAsked, at(10)),
        [Action::Terminate { part: GATEWAY }]
    );
    assert_eq!(m.deadline(), Some(at(10) + limits.drain + limits.grace));
    assert_eq!(
        acts(&mut m, died(GATEWAY, 1), at(20)),
        [Action::Terminate { part: PREFILL }]
    );
    assert_eq!(m.deadline(), Some(at(20) + limits.grace));
    assert_eq!(
        acts(&mut m, died(PREFILL, 1), at(30)),
        [Action::Terminate { part: DECODE }]
    );
    let late = m.deadline().unwrap();
    assert_eq!(
        acts(&mut m, Event::Tick, late),
        [Action::Kill { part: DECODE }]
    );
    assert_eq!(
        acts(&mut m, died(DECODE, 1), late),
        [Action::Finish(Ending::Stopped)]
    );
}

#[test]
fn asking_twice_kills() {
    let mut m = all_ready();
    m.handle(Event::StopAsked, at(10));
    let kills = [DECODE, PREFILL, GATEWAY].map(|part| Action::Kill { part });
    assert_eq!(acts(&mut m, Event::StopAsked, at(11)), kills);
    assert_eq!(acts(&mut m, died(GATEWAY, 1), at(12)), []);
    assert_eq!(acts(&mut m, died(DECODE, 1), at(12)), []);
    assert_eq!(
        acts(&mut m, died(PREFILL, 1), at(12)),
        [Action::Finish(Ending::Stopped)]
    );
}

#[test]
fn stopping_during_a_pause_restarts_nothing() {
    let mut m = all_ready();
    m.handle(died(DECODE, 1), at(10));
    assert_eq!(
        acts(&mut m, Event::StopAsked, at(11)),
        [Action::Terminate { part: GATEWAY }]
    );
    acts(&mut m, died(GATEWAY, 1), at(12));
    assert_eq!(
        acts(&mut m, Event::Tick, at(5000)),
        [],
        "decode-0 stays down"
    );
    let last = acts(&mut m, died(PREFILL, 1), at(5001));
    assert_eq!(last, [Action::Finish(Ending::Stopped)]);
}

#[test]
fn stopping_before_anything_runs_finishes() {
    let mut m = machine();
    assert_eq!(
        acts(&mut m, Event::StopAsked, at(0)),
        [Action::Finish(Ending::Stopped)]
    );
}

#[test]
fn a_new_life_must_have_a_new_epoch() {
    let mut m = all_ready();
    m.handle(died(DECODE, 1), at(1000));
    m.handle(Event::Tick, at(1200));
    let epoch = format!("epoch {DECODE}.1");
    let same = Event::Ready {
        part: DECODE,
        life: 2,
        epoch,
    };
    assert_eq!(
        acts(&mut m, same, at(1300)),
        [Action::Terminate { part: GATEWAY }]
    );
    acts(&mut m, died(GATEWAY, 1), at(1301));
    acts(&mut m, died(PREFILL, 1), at(1302));
    let last = acts(&mut m, died(DECODE, 2), at(1303));
    let [Action::Finish(Ending::Refused { part, why })] = &last[..] else {
        panic!("{last:?}")
    };
    assert_eq!(part, "decode-0");
    assert!(why.message.contains("epoch 0.1"), "{}", why.message);
}

#[test]
fn events_of_a_former_life_change_nothing() {
    let mut m = all_ready();
    m.handle(died(DECODE, 1), at(1000));
    m.handle(Event::Tick, at(1200));
    let before = format!("{m:?}");
    for event in [ready(DECODE, 1), died(DECODE, 1), refused(DECODE)] {
        assert_eq!(acts(&mut m, event, at(1201)), []);
        assert_eq!(format!("{m:?}"), before);
    }
}

/// Two decodes of one gateway.
fn two_decodes() -> Machine {
    let mut m = machine_of([
        ("decode-0", "decode", 0),
        ("decode-1", "decode", 1),
        ("gateway", "gateway", 2),
    ]);
    for part in 0..3 {
        acts(&mut m, Event::Tick, at(0));
        acts(&mut m, ready(part, 1), at(0));
    }
    m
}

/// Dies until it has died as often as makes a crash loop; when that was.
fn loops(m: &mut Machine, part: usize, mut now: Duration) -> (Vec<Action>, Duration) {
    for life in 1..=4 {
        acts(m, died(part, life), now);
        now = m.deadline().unwrap();
        assert_eq!(acts(m, Event::Tick, now), [spawn(part, life + 1)]);
    }
    (m.handle(died(part, 5), now), now)
}

/// One that keeps dying costs its own place, and no other's: it rests, and is tried again.
#[test]
fn a_crash_loop_of_one_of_two_leaves_the_other_serving() {
    for part in [0, 1] {
        let mut m = two_decodes();
        let (said, now) = loops(&mut m, part, at(1000));
        let [Action::Warning(text)] = &said[..] else {
            panic!("{said:?}")
        };
        let (dead, other) = (format!("decode-{part}"), format!("decode-{}", 1 - part));
        for word in [
            dead.as_str(),
            "5 times within 60 s",
            "SIGKILL",
            "restart in 60 s",
            &other,
        ] {
            assert!(text.contains(word), "{word}: {text}");
        }
        let rest = Duration::from_secs(60);
        assert_eq!(m.deadline(), Some(now + rest));
        assert_eq!(acts(&mut m, Event::Tick, now + rest - at(1)), []);
        assert_eq!(acts(&mut m, Event::Tick, now + rest), [spawn(part, 6)]);
        let back = m.handle(ready(part, 6), now + rest + at(1));
        let again = |action: &Action| matches!(action, Action::Notice(text) if text.contains("ready again"));
        assert!(back.iter().any(again), "{back:?}");
    }
}

#[test]
fn when_the_last_of_its_kind_loops_too_all_ends() {
    let mut m = two_decodes();
    let (_, now) = loops(&mut m, 1, at(1000));
    let (last, _) = loops(&mut m, 0, now);
    assert_eq!(last, [Action::Terminate { part: GATEWAY }]);
}
