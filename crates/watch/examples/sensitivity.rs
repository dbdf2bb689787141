//! How well skipped prefills are seen, on made-up traces: `cargo run --release -p watch
//! --example sensitivity`. The figures in docs/watch.md are from here. With a file of times of a
//! real engine (`cofferdam-lab self-test --timings FILE`) its requests are drawn from in their place.

#[path = "../tests/learning/synthetic.rs"]
#[allow(dead_code, reason = "some of it is for the tests only")]
mod synthetic;

use serde_json::Value;
use synthetic::{Made, Trace};
use watch::{Anomaly, Detector, Settings};

/// Requests of one run, after those learned from.
const REQUESTS: usize = 200_000;
/// Requests learned from.
const LEARNED: usize = 20_000;
const SEEDS: u64 = 5;

type Engine = (&'static str, fn(&mut Trace));

const ENGINES: [Engine; 5] = [
    ("1 ms/token, 20 ms, quiet", |_| ()),
    ("1 ms/token, queue of 2 s", |it| it.queue = 2.0),
    ("1 ms/token, 80 % cache hits, reported", |it| it.hits = 0.8),
    ("1 ms/token, 80 % cache hits, not reported", |it| {
        it.hits = 0.8;
        it.hits_reported = false;
    }),
    ("0.05 ms/token, 30 ms, queue of 50 ms (a GPU)", |it| {
        it.per_token = 5e-5;
        it.overhead = 0.03;
        it.queue = 0.05;
    }),
];

/// Lengths and seconds of a real engine's requests.
#[derive(Clone, Default)]
struct Real {
    computed: Vec<(u64, f64)>,
    skipped: Vec<(u64, f64)>,
}

impl Real {
    fn read(path: &str) -> Self {
        let text = std::fs::read_to_string(path).expect("the file of times");
        let mut real = Self::default();
        for line in text.lines() {
            let line: Value = serde_json::from_str(line).expect("a line of times");
            let of = |name: &str| line[name].as_f64().expect("a number");
            let kind = match line["over"] == true {
                true => &mut real.skipped,
                false => &mut real.computed,
            };
            kind.push((of("tokens") as u64, of("ms") / 1e3));
        }
        real
    }

    /// The next request: the trace says whether it is one that skipped, the engine how long it took.
    fn next(&self, trace: &mut Trace) -> Made {
        let mut made = trace.next();
        let from = if made.skipped {
            &self.skipped
        } else {
            &self.computed
        };
        let at = (trace.chance() * from.len() as f64) as usize;
        let (tokens, seconds) = from[at.min(from.len() - 1)];
        made.request.prompt_tokens = tokens;
        made.request.seconds = Some(seconds);
        made
    }
}

fn main() {
    let real = std::env::args().nth(1).map(|path| Real::read(&path));
    println!(
        "{:<46} {:>9} {:>8} {:>8} {:>9} {:>11} {:>12}",
        "engine", "one in", "skipped", "found", "of long", "delay (p50)", "false/10^6"
    );
    for rate in [0.0, 0.1, 0.01, 0.001, 0.0001] {
        if let Some(real) = &real {
            row("of a real engine", |_| (), rate, Some(real));
        }
    }
    let made_up = ENGINES.iter().filter(|_| real.is_none());
    for (name, set) in made_up {
        for rate in [0.0, 0.1, 0.01, 0.001, 0.0001] {
            row(name, *set, rate, None);
        }
    }
}

/// Of a rate: found of all, found of those that can be seen (long enough), and when the first was.
fn row(name: &str, set: fn(&mut Trace), rate: f64, real: Option<&Real>) {
    let next = |trace: &mut Trace| match real {
        Some(real) => real.next(trace),
        None => trace.next(),
    };
    let (mut skipped, mut found, mut long, mut found_long, mut alarms) = (0, 0, 0, 0, 0);
    let mut delays = Vec::new();
    for seed in 0..SEEDS {
        let mut trace = Trace::new(1000 + seed);
        set(&mut trace);
        let mut watch = Detector::new(Settings::default());
        for _ in 0..LEARNED {
            watch.see(&next(&mut trace).request);
        }
        let (_, series) = watch.series().next().expect("one series");
        let from = series.learned(100).sees_from(0.5).unwrap_or(u64::MAX);
        trace.skipped = rate;
        let (mut first, mut first_found) = (None, None);
        for n in 0..REQUESTS {
            let it = next(&mut trace);
            let seen = watch.see(&it.request);
            let fast = |it: &Anomaly| matches!(it, Anomaly::TooFast { .. });
            let fast = !seen.suspected && seen.judged.signals.iter().any(fast);
            if !it.skipped {
                alarms += usize::from(fast);
                continue;
            }
            skipped += 1;
            found += usize::from(fast);
            first.get_or_insert(n);
            if fast {
                first_found.get_or_insert(n);
            }
            if it.request.uncached() >= from {
                long += 1;
                found_long += usize::from(fast);
            }
        }
        delays.push(match (first, first_found) {
            (Some(first), Some(found)) => (found - first) as f64,
            _ => f64::INFINITY,
        });
    }
    delays.sort_by(f64::total_cmp);
    let healthy = SEEDS as usize * REQUESTS - skipped;
    let share = |part: usize, whole: usize| match whole {
        0 => "-".to_owned(),
        _ => format!("{:.1} %", 100.0 * part as f64 / whole as f64),
    };
    println!(
        "{name:<46} {:>9} {skipped:>8} {:>8} {:>9} {:>11} {:>12.1}",
        if rate > 0.0 {
            format!("{:.0}", 1.0 / rate)
        } else {
            "none".to_owned()
        },
        share(found, skipped),
        share(found_long, long),
        if rate > 0.0 {
            format!("{}", delays[delays.len() / 2])
        } else {
            "-".to_owned()
        },
        alarms as f64 * 1e6 / healthy as f64,
    );
}
