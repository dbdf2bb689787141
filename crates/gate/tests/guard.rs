//! Cofferdam's guard in engines that are not ours is recognised by what guarded engines served.

use gate::facts::recording::Recording;
use gate::facts::{Fact, Figure, Unknown, Version};
use std::path::Path;

/// The recording of an engine, with the guard's series that a guarded one of its kind served.
fn guarded(engine: &str, series: &str) -> Recording {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let mut recording = Recording::load(&fixtures.join(engine)).only_answers(&[]);
    let series = std::fs::read(fixtures.join("guard").join(series)).unwrap();
    recording
        .answers
        .get_mut("/metrics")
        .unwrap()
        .extend(series);
    recording
}

fn guard(recording: &Recording) -> Fact<Figure<Version>> {
    recording.nodes().remove(0).guard
}

const ENGINES: [(&str, &str); 6] = [
    ("sglang-0.5.19-prefill", "sglang-0.5.19-prefill"),
    ("sglang-0.5.19-decode", "sglang-0.5.19-decode"),
    ("sglang-0.5.23-prefill", "sglang-0.5.23-prefill"),
    ("sglang-0.5.23-decode", "sglang-0.5.23-decode"),
    ("vllm-0.32.0", "vllm-0.32.0-prefill"),
    ("vllm-0.32.0", "vllm-0.32.0-decode"),
];

#[test]
fn a_guard_in_effect_is_recognised_with_its_version() {
    for (engine, series) in ENGINES {
        let found = guard(&guarded(engine, series)).unwrap();
        assert_eq!(found.value.text(), "0.1.0", "{series}");
        let source = found.source.to_string();
        assert!(source.contains("/metrics cofferdam_guard_"), "{source}");
    }
}

#[test]
fn without_its_series_or_its_word_that_it_is_in_effect_there_is_none() {
    for (engine, series) in ENGINES {
        let mut recording = guarded(engine, series);
        let all = String::from_utf8(recording.answers["/metrics"].clone()).unwrap();
        let named = |it: &&str| it.contains("guard=\"0.1.0\"") || it.contains("version=\"0.1.0\"");
        let line = all.lines().find(named).unwrap().to_owned();
        for (changed, absurd) in [
            (String::new(), false),
            (line.replace(" 1.0", " 0.0"), true),
            (line.replace("0.1.0", "?"), true),
            (format!("{line}\n{}", line.replace(" 1.0", " 0.0")), true),
        ] {
            recording
                .answers
                .insert("/metrics".into(), all.replace(&line, &changed).into());
            match guard(&recording) {
                Err(Unknown::NotReported { .. }) => assert!(!absurd, "{changed}"),
                Err(Unknown::Absurd(_)) => assert!(absurd, "{changed}"),
                other => panic!("{changed}: {other:?}"),
            }
        }
        let two = format!("{line}\n{}", line.replace("0.1.0", "0.2.0"));
        recording
            .answers
            .insert("/metrics".into(), all.replace(&line, &two).into());
        let found = guard(&recording);
        assert!(matches!(found, Err(Unknown::Contradiction(_))), "{found:?}");
    }
}
