//! Logs that look strange and are healthy, logs that look fine and are not: what is expected against
//! what was said, as one table.

mod follow;
mod more;
#[path = "../learning/synthetic.rs"]
mod synthetic;

use std::fmt::Write;
use synthetic::{Made, Trace};
use watch::forensics::Findings;
use watch::{Detector, Notice, Settings, sight};

/// What is said about a whole log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    Found,
    Nothing,
    CouldNotTell,
}
use Said::{CouldNotTell, Found, Nothing};

/// A log, read twice as the command does it.
struct Log {
    made: Vec<Made>,
    settings: Settings,
}

struct Read {
    said: Said,
    /// Convicted although they were computed.
    wrongly: u64,
    mixed: bool,
    why: Vec<String>,
}

impl Log {
    fn of(made: Vec<Made>) -> Self {
        let settings = Settings::default();
        Self { made, settings }
    }

    fn limit(mut self, tokens: u64) -> Self {
        self.settings.limits.insert("*".to_owned(), tokens);
        self
    }

    fn read(self) -> Read {
        let mut watch = Detector::new(self.settings);
        let mut mixed = false;
        for it in &self.made {
            let notices = watch.see(&it.request).notices;
            mixed |= notices
                .iter()
                .any(|it| matches!(it, Notice::Mixture { .. }));
        }
        watch.series().for_each(|(_, it)| it.refresh());
        let findings = Findings::of(&mut watch, self.made.iter().map(|it| &it.request));
        let why = sight::blind(&mut watch, &findings);
        let healthy = self.made.iter().filter(|it| !it.skipped);
        let convicted = |it: &&Made| !watch.judge(&it.request).signals.is_empty();
        let wrongly = healthy.filter(convicted).count() as u64;
        let said = match (findings.certain(), why.is_empty()) {
            (0, true) => Nothing,
            (0, false) => CouldNotTell,
            _ => Found,
        };
        Read {
            said,
            wrongly,
            mixed,
            why,
        }
    }
}

/// `n` requests, changed one by one: the number and what it is.
fn log(seed: u64, n: usize, set: impl Fn(&mut Trace), change: impl Fn(usize, &mut Made)) -> Log {
    let mut trace = Trace::new(seed);
    set(&mut trace);
    let mut made = trace.take(n);
    made.iter_mut()
        .enumerate()
        .for_each(|(n, it)| change(n, it));
    Log::of(made)
}

/// A number from 0 to 1 that the place decides.
fn share(n: usize) -> f64 {
    (n.wrapping_mul(2_654_435_761) % 10_007) as f64 / 10_007.0
}

fn faster(it: &mut Made, times: f64) {
    it.request.seconds = it.request.seconds.map(|it| 0.02 + (it - 0.02) / times);
}

fn none(_: usize, _: &mut Made) {}

#[test]
fn healthy_and_sick_logs_are_told_apart() {
    let third_of_a_machine = |n: usize, it: &mut Made| {
        if n > 8_000 && n.is_multiple_of(2) {
            faster(it, 3.0);
        }
    };
    let cases: Vec<(&str, Log, &[Said])> = vec![
        ("healthy", log(1, 20_000, |_| (), none), &[Nothing]),
        (
            "a replica three times as fast joins",
            log(2, 20_000, |_| (), third_of_a_machine),
            &[Nothing],
        ),
        (
            "one in twenty is on a faster replica, from the start",
            log(
                3,
                40_000,
                |_| (),
                |n, it| {
                    if n % 20 == 0 {
                        faster(it, 4.0);
                    }
                },
            ),
            &[Nothing],
        ),
        (
            "a third are of a model ten times as fast, unmapped",
            log(
                4,
                30_000,
                |_| (),
                |n, it| {
                    if n % 3 == 0 {
                        faster(it, 10.0);
                    }
                },
            ),
            &[Nothing],
        ),
        (
            "eight in ten are hits, and reported",
            log(5, 20_000, |it| it.hits = 0.8, none),
            &[Nothing],
        ),
        (
            "seven in ten are hits of any length from the middle on, not reported",
            log(
                6,
                20_000,
                |it| it.hits_reported = false,
                |n, it| {
                    if n > 8_000 && n % 10 < 7 {
                        let left = share(n);
                        let tokens = (it.request.prompt_tokens as f64 * left).max(1.0);
                        it.request.seconds = Some((0.02 + 0.001 * tokens) * 1.05);
                    }
                },
            ),
            &[CouldNotTell],
        ),
        (
            "seven in ten are whole hits from the middle on, not reported",
            log(
                7,
                20_000,
                |it| it.hits_reported = false,
                |n, it| {
                    if n > 8_000 && n % 10 < 7 {
                        it.request.seconds = Some(0.021 + 0.001 * share(n));
                    }
                },
            ),
            &[CouldNotTell],
        ),
        (
            "the same prompts again, all cached but a token",
            log(
                8,
                20_000,
                |_| (),
                |n, it| {
                    if n > 8_000 && n % 20 == 0 {
                        it.request.cached_tokens = Some(it.request.prompt_tokens - 1);
                        it.request.prompt_tokens = it.request.prompt_tokens.min(15_000);
                        it.request.cached_tokens = Some(it.request.prompt_tokens - 1);
                        it.request.seconds = Some(0.022);
                    }
                },
            ),
            &[Nothing],
        ),
        (
            "short prompts, and a few long ones",
            log(
                9,
                20_000,
                |it| it.longest = 64.0,
                |n, it| {
                    if n % 30 == 0 {
                        it.request.prompt_tokens = 4_000;
                        it.request.seconds = Some(4.1 + share(n));
                    }
                },
            ),
            &[CouldNotTell],
        ),
        (
            "the floor speaks above the longest prompt allowed",
            log(
                10,
                20_000,
                |it| (it.longest, it.queue) = (60.0, 0.001),
                none,
            )
            .limit(60),
            &[CouldNotTell],
        ),
        (
            "no prompt is long enough",
            log(11, 20_000, |it| it.longest = 60.0, none),
            &[CouldNotTell],
        ),
        (
            "seconds read as milliseconds",
            log(
                12,
                20_000,
                |_| (),
                |_, it| {
                    it.request.seconds = it.request.seconds.map(|it| it / 1000.0);
                },
            ),
            &[CouldNotTell],
        ),
        (
            "milliseconds read as seconds",
            log(
                13,
                20_000,
                |it| it.shortest = 1_000.0,
                |_, it| {
                    it.request.seconds = it.request.seconds.map(|it| it * 1000.0);
                },
            ),
            &[CouldNotTell],
        ),
        (
            "microseconds read as seconds",
            log(
                24,
                20_000,
                |_| (),
                |_, it| {
                    it.request.seconds = it.request.seconds.map(|it| it * 1e6);
                },
            ),
            &[CouldNotTell],
        ),
        (
            "the incident",
            log(14, 20_000, |it| it.pool = 6_000.0, none),
            &[Found],
        ),
        (
            "one prefill in a hundred is skipped",
            log(15, 20_000, |it| it.skipped = 0.01, none),
            &[Found],
        ),
        (
            "the same, behind a queue",
            log(16, 40_000, |it| (it.skipped, it.queue) = (0.01, 0.5), none),
            &[Found],
        ),
        (
            "the same, on two machines of which one is faster",
            log(
                17,
                30_000,
                |it| it.skipped = 0.01,
                |n, it| {
                    if n > 8_000 && n.is_multiple_of(2) && !it.skipped {
                        faster(it, 3.0);
                    }
                },
            ),
            &[Found],
        ),
        (
            "one in a hundred is skipped, and hits are not reported",
            log(
                18,
                20_000,
                |it| (it.skipped, it.hits_reported) = (0.01, false),
                none,
            ),
            &[Found],
        ),
        (
            "the incident says that all but a token was cached",
            log(
                19,
                20_000,
                |it| it.pool = 6_000.0,
                |_, it| {
                    if it.skipped {
                        it.request.cached_tokens = Some(it.request.prompt_tokens - 1);
                    }
                },
            ),
            &[CouldNotTell],
        ),
    ];
    compare(cases);
}

/// Reads every log, and compares all at once: one of several answers, and nobody convicted wrongly.
fn compare(cases: Vec<(&str, Log, &[Said])>) {
    let mut table = String::from("log | expected | got | convicted wrongly | why\n");
    let mut wrong = 0;
    for (name, log, expected) in cases {
        let it = log.read();
        let said = it.said;
        let good = expected.contains(&said) && (said == CouldNotTell || it.wrongly == 0);
        wrong += u32::from(!good);
        let mark = if good { "" } else { "  <<<" };
        let why = it.why.join("; ");
        let _ = writeln!(
            table,
            "{name} | {expected:?} | {said:?} | {} | {why}{}{mark}",
            it.wrongly,
            if it.mixed { " (mixed)" } else { "" }
        );
    }
    assert_eq!(wrong, 0, "\n{table}");
    println!("{table}");
}

#[test]
fn two_machines_in_one_series_are_said() {
    let said = log(
        20,
        20_000,
        |_| (),
        |n, it| {
            if n > 8_000 && n % 2 == 0 {
                faster(it, 3.0);
            }
        },
    );
    assert!(said.read().mixed);
    for sick in [
        log(21, 20_000, |it| it.pool = 6_000.0, none),
        log(22, 20_000, |it| (it.skipped, it.queue) = (0.1, 2.0), none),
        log(23, 20_000, |it| it.skipped = 0.1, none),
    ] {
        assert!(!sick.read().mixed, "a skipped prefill is no machine");
    }
}

#[test]
fn why_a_silence_is_worth_nothing_is_said() {
    let short = |it: &mut Trace| (it.longest, it.queue) = (60.0, 0.001);
    let all_cached = |_, it: &mut Made| {
        if it.skipped {
            it.request.cached_tokens = Some(it.request.prompt_tokens - 1);
        }
    };
    let short = log(10, 20_000, short, none).limit(60).read().why.join("; ");
    let hidden = log(19, 20_000, |it| it.pool = 6_000.0, all_cached);
    let hidden = hidden.read().why.join("; ");
    for (why, said) in [
        (
            &short,
            "of the answers could be compared with a floor (at least 10 % are needed)",
        ),
        (&short, "the floor speaks from "),
        (
            &short,
            " tokens on, and the longest prompt that is allowed has 60",
        ),
        (&hidden, " answers say that all of their prompt was cached"),
    ] {
        assert!(why.contains(said), "{said:?} is not in {why:?}");
    }
}
