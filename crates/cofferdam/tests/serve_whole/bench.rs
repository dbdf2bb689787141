//! `bench` on a small model: it measures what it names, in turn with what stands beside it, and says what it
//! left out.

use crate::small;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

fn bench(model: &Path, words: &[&str], json: &Path) -> (Output, Value) {
    let done = Command::new(env!("CARGO_BIN_EXE_cofferdam"))
        .args([
            "bench",
            "--rounds=2",
            "--threads=1",
            "--sequences=1,3",
            "--json",
        ])
        .arg(json)
        .arg("--model")
        .arg(model)
        .args(words)
        .output()
        .unwrap();
    let figures = fs::read(json).map_or(Value::Null, |text| serde_json::from_slice(&text).unwrap());
    (done, figures)
}

fn said(done: &Output) -> String {
    String::from_utf8_lossy(&[&done.stdout[..], &done.stderr[..]].concat()).into_owned()
}

/// Something that takes llama.cpp's place: it answers each order with the same times, and keeps them.
fn stand_in(dir: &Path, first: &str, rest: &str) -> String {
    let (program, orders) = (dir.join("python"), dir.join("orders"));
    let text = format!(
        "#!/bin/sh\necho '{first}'\nwhile read -r order; do\n echo \"$order\" >> {}\n {rest}\ndone\n",
        orders.display()
    );
    fs::write(&program, text).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    format!("--beside={}", program.display())
}

#[test]
fn each_figure_is_of_what_it_names_and_every_way_of_serving_answers_the_same() {
    let model = small::model(512);
    let dir = tempfile::tempdir().unwrap();
    let plot = format!("--plot={}", dir.path().join("plot.svg").display());
    let words = [
        "--prefill=16,64,4000",
        "--depths=0,32",
        "--beside=none",
        &plot,
    ];
    let (done, figures) = bench(&model, &words, &dir.path().join("figures"));
    let text = said(&done);
    assert!(done.status.success(), "{text}");

    let rows = figures["engine"].as_array().unwrap();
    let named = |row: &Value| {
        let number = |name: &str| row[name].as_u64().unwrap();
        let what = row["what"].as_str().unwrap().to_owned();
        (what, number("tokens"), number("sequences"))
    };
    let named: Vec<_> = rows.iter().map(named).collect();
    let prefill = |tokens| ("prefill".to_owned(), tokens, 1);
    let decode = |depth, sequences| ("decode".to_owned(), depth, sequences);
    let all = [
        prefill(16),
        prefill(64),
        decode(0, 1),
        decode(32, 1),
        decode(0, 3),
    ];
    assert_eq!(named, all, "what is over the context is left out");
    for row in rows {
        let ours = row["ours"].as_array().unwrap();
        let good =
            |it: &Value| it["wall"].as_f64().unwrap() > 0.0 && it["cpu"].as_f64().unwrap() > 0.0;
        assert!(ours.len() == 2 && ours.iter().all(good), "{row}");
        assert_eq!(row["beside"], Value::Array(Vec::new()));
        assert!(row["of_limit"].as_f64().unwrap() > 0.0, "{row}");
    }
    let served = figures["first_token"].as_array().unwrap();
    let ways: Vec<_> = served
        .iter()
        .map(|it| (it["prompt"].as_u64().unwrap(), it["way"].as_str().unwrap()))
        .collect();
    let of = |prompt| ["one process", "shared memory", "TCP"].map(|way| (prompt, way));
    assert_eq!(ways, [of(16), of(64)].concat());
    assert!(
        served
            .iter()
            .all(|it| it["first_token_ms"].as_array().unwrap().len() == 2)
    );

    for line in [
        "| prefill of 64 | 1 | ",
        "| decode at 0, 3 sequences | 1 | ",
        "| 64 | TCP | ",
        "beside: nothing",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
    let plot = fs::read_to_string(dir.path().join("plot.svg")).unwrap();
    assert!(
        plot.starts_with("<svg") && plot.matches("<rect x=").count() == rows.len(),
        "{plot}"
    );
}

#[test]
fn llama_cpp_gets_the_same_tokens_in_the_same_rounds() {
    let model = small::model(512);
    let dir = tempfile::tempdir().unwrap();
    let beside = stand_in(
        dir.path(),
        r#"{"version": "9", "system": "a stand-in"}"#,
        r#"echo '{"wall": 0.5, "cpu": 0.25}'"#,
    );
    let words = ["--only=engine", "--prefill=16", "--depths=0", &beside];
    let (done, figures) = bench(&model, &words, &dir.path().join("figures"));
    assert!(done.status.success(), "{}", said(&done));
    let about = figures["about"]["beside"].as_str().unwrap();
    assert_eq!(about, "llama-cpp-python 9, repacked buffers: a stand-in");
    let rates: Vec<_> = figures["engine"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| {
            let beside = row["beside"].as_array().unwrap();
            assert_eq!(beside.len(), 2);
            (
                beside[0]["wall"].as_f64().unwrap(),
                beside[0]["cpu"].as_f64().unwrap(),
            )
        })
        .collect();
    // 16 tokens, 32 tokens, 32 tokens of three.
    assert_eq!(rates, [(32.0, 64.0), (64.0, 128.0), (192.0, 384.0)]);
    let orders = fs::read_to_string(dir.path().join("orders")).unwrap();
    let orders: Vec<Value> = orders
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let kinds: Vec<_> = orders.iter().map(|it| it["do"].as_str().unwrap()).collect();
    let decode = ["open", "decode", "decode", "decode", "close"];
    assert_eq!(
        kinds,
        [
            &["open", "prefill", "prefill", "close"][..],
            &decode,
            &decode
        ]
        .concat()
    );
    assert_eq!(orders[1]["tokens"].as_array().unwrap().len(), 16);
    assert_ne!(
        orders[1]["tokens"], orders[2]["tokens"],
        "nothing that a cache could have"
    );
}

#[test]
fn what_cannot_be_measured_is_said_and_what_was_is_kept() {
    let model = small::model(512);
    let dir = tempfile::tempdir().unwrap();
    let only = ["--only=engine", "--prefill=16", "--depths=0"];
    let missing = stand_in(
        dir.path(),
        r#"{"missing": "No module named llama_cpp"}"#,
        "exit",
    );
    let (done, figures) = bench(
        &model,
        &[&only[..], &[&missing]].concat(),
        &dir.path().join("one"),
    );
    assert!(done.status.success(), "{}", said(&done));
    let about = figures["about"]["beside"].as_str().unwrap();
    assert!(
        about.contains("No module named llama_cpp (pip install llama-cpp-python)"),
        "{about}"
    );

    // It dies in its second row: the first one stands.
    let dies = stand_in(
        dir.path(),
        r#"{"version": "9"}"#,
        "case $order in *decode*) kill -ILL $$;; esac; echo '{\"wall\": 1, \"cpu\": 1}'",
    );
    let (done, figures) = bench(
        &model,
        &[&only[..], &[&dies]].concat(),
        &dir.path().join("two"),
    );
    let text = said(&done);
    assert_eq!(done.status.code(), Some(1), "{text}");
    assert!(
        text.contains("llama.cpp ended: signal: 4") && text.contains("--plain-buffers"),
        "{text}"
    );
    assert_eq!(figures["engine"].as_array().unwrap().len(), 1);
    assert!(text.contains("| prefill of 16 | 1 | "), "{text}");
}
