//! The same logs as `--follow` reads them: once, each request judged when it comes.

use super::*;

/// What was said while the log was read.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Followed {
    /// Alarms about requests that were computed.
    wrongly: u64,
    /// Alarms about requests that were not.
    rightly: u64,
    /// Suspected, computed or not.
    suspected: (u64, u64),
    /// Skipped requests before the first alarm about one, of those that were too fast.
    before: Option<u64>,
    growing: u64,
    mixed: u64,
}

fn follow(log: Log) -> Followed {
    let mut watch = Detector::new(log.settings);
    let mut it = Followed::default();
    for made in &log.made {
        let seen = watch.see(&made.request);
        let growing = |it: &&Notice| matches!(it, Notice::Growing);
        it.growing += seen.notices.iter().filter(growing).count() as u64;
        let mixed = |it: &&Notice| matches!(it, Notice::Mixture { .. });
        it.mixed += seen.notices.iter().filter(mixed).count() as u64;
        match (seen.judged.signals.is_empty(), seen.suspected, made.skipped) {
            (true, ..) => {}
            (false, true, false) => it.suspected.0 += 1,
            (false, true, true) => it.suspected.1 += 1,
            (false, false, false) => it.wrongly += 1,
            (false, false, true) => {
                it.before.get_or_insert(it.suspected.1);
                it.rightly += 1;
            }
        }
    }
    it
}

/// A machine ten times as fast has one request in `every` from the 4,000th on.
fn rare(every: usize) -> impl Fn(usize, &mut Made) {
    move |n, it| {
        if n > 4_000 && n.is_multiple_of(every) && !it.skipped {
            more::computed(it, 10.0, 0.001 * share(n));
        }
    }
}

#[test]
fn times_that_grow_with_length_are_suspected_and_do_not_alarm() {
    for every in [300, 700] {
        let it = follow(log(60, 40_000, |_| (), rare(every)));
        assert!(
            it.wrongly <= 10,
            "one in {every}: until eight or so are seen: {it:?}"
        );
        assert!(it.suspected.0 >= 20, "one in {every}: {it:?}");
        assert_eq!(it.growing, 1, "one in {every}: said once: {it:?}");
    }
}

#[test]
fn skipped_prefills_alarm_all_the_same() {
    for (name, log) in [
        (
            "the incident",
            log(61, 20_000, |it| it.pool = 6_000.0, none),
        ),
        (
            "one in a hundred",
            log(62, 20_000, |it| it.skipped = 0.01, none),
        ),
        (
            "behind a queue",
            log(63, 40_000, |it| (it.skipped, it.queue) = (0.01, 0.5), none),
        ),
        (
            "most are hits",
            log(64, 30_000, |it| (it.skipped, it.hits) = (0.01, 0.7), none),
        ),
    ] {
        let it = follow(log);
        assert_eq!((it.suspected, it.growing), ((0, 0), 0), "{name}: {it:?}");
        assert!(it.rightly > 20 && it.wrongly == 0, "{name}: {it:?}");
    }
}

/// A series in which a rare machine is faster is not blind for what happens in it afterwards.
#[test]
fn an_incident_after_a_rare_machine_alarms() {
    let set = |it: &mut Trace| it.skipped = 0.01;
    let healthy_before = |n: usize, it: &mut Made| {
        if n < 20_000 && it.skipped {
            it.skipped = false;
            more::computed(it, 1.0, 0.0);
        }
        rare(700)(n, it);
    };
    let it = follow(log(65, 40_000, set, healthy_before));
    // While it lasts, the rare machine alarms with it.
    assert!(it.growing >= 1 && it.suspected.0 >= 8, "{it:?}");
    assert!(it.before.is_some_and(|n| n <= 8), "{it:?}");
    assert!(it.rightly >= 10 * it.suspected.1, "{it:?}");
}

/// Of twenty thousand some sixty lie as if another machine had computed them.
#[test]
fn waiting_is_no_machine_however_long_it_is_looked_at() {
    type Engine = fn(&mut Trace);
    let slow: Engine = |it| (it.skipped, it.queue) = (0.1, 2.0);
    let quick: Engine = |it| {
        (it.skipped, it.queue) = (0.1, 0.05);
        (it.per_token, it.overhead) = (5e-5, 0.03);
    };
    for (seed, set) in [
        (1_001, slow),
        (1_000, quick),
        (1_001, quick),
        (1_002, quick),
    ] {
        let healthy_before = |n: usize, it: &mut Made| {
            if n < 20_000 && it.skipped {
                it.skipped = false;
                it.request.seconds = None;
            }
        };
        let it = follow(log(seed, 220_000, set, healthy_before));
        assert_eq!((it.mixed, it.wrongly), (0, 0), "{seed}: {it:?}");
        assert!(it.rightly > 15 * it.suspected.1, "{seed}: {it:?}");
    }
}
