//! A long line between prefill and the others: frames are late, overtake each other and are lost.
//! That costs time, and nothing else (no false alarms).

use crate::hosts::Hosts;
use crate::network::{self, DECODE, GATEWAY, LongLine, PREFILL};
use crate::{counter, rest, serve, small, worker};
use std::time::{Duration, Instant};
use testkit::crowd::{Shape, crowd};

/// Seconds of load; without it one crowd is asked.
const SECONDS: &str = "COFFERDAM_LONG_LINE_SECONDS";

#[test]
fn a_long_line_costs_time_and_nothing_else() {
    if network::is_own("long_line::a_long_line_costs_time_and_nothing_else") {
        inside();
    }
}

fn inside() {
    network::switch(&[DECODE, GATEWAY]);
    let line = LongLine::to(PREFILL, 5.0, 10.0, 0.01);
    let model = small::model(1024);
    let (_alone, alone) = serve(&model, &["--in-process"]);
    let hosts = Hosts::start(&model, &[PREFILL], &[DECODE], GATEWAY);
    let seconds = std::env::var(SECONDS).map_or(0, |it| it.parse().expect("seconds"));
    let until = Instant::now() + Duration::from_secs(seconds);
    let mut answers = 0;
    for seed in 1.. {
        let questions = crowd(Shape {
            size: 24,
            tenants: 1,
            max_prompt: 1000,
            context: 1024,
            max_new: 8,
            page_size: 16,
            seed,
        });
        for together in questions.chunks(6) {
            std::thread::scope(|scope| {
                for question in together {
                    let (api, alone) = (&hosts.api, &alone);
                    scope.spawn(move || {
                        let expected = question.ask(alone).0;
                        assert_eq!(question.ask(api).0, expected, "{question:?}");
                    });
                }
            });
            answers += together.len();
        }
        if Instant::now() >= until {
            break;
        }
    }
    let info = rest(&hosts.api);
    for it in info["workers"].as_array().expect("workers") {
        for count in ["integrity_faults", "dropped_grants", "malformed_messages"] {
            assert_eq!(counter(it, count), 0, "{count}: {it}");
        }
    }
    let fences = counter(worker(&info, "decode"), "fences");
    assert_eq!(fences, 0, "nobody was given up: {info}");
    let [passed, lost, overtaken] = line.end();
    println!("{answers} answers; {passed} frames passed, {lost} lost, {overtaken} overtaken");
    assert!(lost > 0 && overtaken > 0, "it was a long line");
}
