//! Nodes that lie, hang, flood, redirect or want a key. None of them passes, and none of them hides
//! or delays the others.

use crate::fake::{Answer, Fake, recording, with_pool};
use crate::gate;
use gate::facts::recording::Recording;
use std::time::{Duration, Instant};

/// A good server that says each size once, with one thing said otherwise.
fn lying(old: &str, new: &str) -> Fake {
    let mut recording = good().only_answers(&["/v1/loads", "/metrics"]);
    let mut found = false;
    for body in recording.answers.values_mut() {
        let text = String::from_utf8_lossy(body).into_owned();
        let text = text.replace("\"token_capacity\"", "\"renamed\"");
        found |= text.contains(old);
        *body = text.replace(old, new).into_bytes();
    }
    assert!(found, "{old} is in no answer");
    Fake::recorded(&recording)
}

fn good() -> Recording {
    with_pool(recording("sglang-0.5.23-single"), 8000)
}

#[test]
fn a_good_server_passes_so_that_the_others_fail_for_their_reason() {
    let said = gate(&["--server", &Fake::recorded(&good()).url, "--format", "json"]);
    assert_eq!((said.code, said.failing()), (0, vec![]), "{}", said.out);
}

#[test]
fn nodes_that_cannot_be_read_are_unknown_and_exit_3() {
    let elsewhere = Fake::recorded(&good());
    let html = b"<!DOCTYPE html><html><body>log in</body></html>".to_vec();
    for answer in [
        Answer::Body(html),
        Answer::Body(b"{\"version\":".to_vec()),
        Answer::Body(vec![0xff; 100]),
        Answer::Body(Vec::new()),
        Answer::Status(401),
        Answer::Status(403),
        Answer::Status(404),
        Answer::Status(500),
        Answer::Redirect(format!("{}/server_info", elsewhere.url)),
        Answer::Redirect("/flush_cache".to_owned()),
        Answer::Endless,
        Answer::Silence,
    ] {
        let node = Fake::always(answer.clone());
        let words = ["--server", &node.url, "--timeout", "1s", "--format", "json"];
        let said = gate(&words);
        assert_eq!(said.code, 3, "{answer:?}: {}{}", said.out, said.err);
        assert!(
            said.failing().contains(&"pool-holds-context".to_owned()),
            "{answer:?}"
        );
        let flushed = node
            .asked()
            .into_iter()
            .any(|(path, _)| path.contains("flush"));
        assert!(!flushed, "{answer:?}");
    }
    assert_eq!(
        elsewhere.asked(),
        [],
        "a redirect to another server is not followed"
    );
    let nobody = gate(&["--server", "http://127.0.0.1:1"]);
    assert_eq!(nobody.code, 3);
    assert!(
        nobody.out.contains("is it running, is the address right?"),
        "{}",
        nobody.out
    );
}

#[test]
fn figures_that_cannot_be_are_not_believed() {
    let pool = "tokens\":8000";
    let cases = [
        (pool, "tokens\":\"8000\""),
        (pool, "tokens\":-8000"),
        (pool, "tokens\":8000.5"),
        (pool, "tokens\":9223372036854775808"),
        (pool, "tokens\":1e30"),
        (pool, "tokens\":null"),
        (pool, "tokens\":true"),
        (pool, "tokens\":[8000]"),
        (pool, "tokens\":0"),
        (pool, "tokens\":4000"),
        ("max_model_len\":4096", "max_model_len\":\"4096\""),
        (
            "max_model_len\":4096",
            "max_model_len\":9223372036854775808",
        ),
    ];
    assert_eq!(gate(&["--server", &lying(pool, pool).url]).code, 0);
    for (old, new) in cases {
        let node = lying(old, new);
        let said = gate(&["--server", &node.url, "--format", "json"]);
        assert!([1, 3].contains(&said.code), "{old} -> {new}: {}", said.out);
    }
}

/// Of two places that say different pools, the smaller counts, and the difference is told.
#[test]
fn of_places_that_differ_the_smaller_counts() {
    for (path, old) in [
        ("/v1/loads", "8000"),
        ("/metrics", "} 8000.0"),
        ("/server_info", "tokens\":8000"),
        ("/server_info", "capacity\":8000"),
    ] {
        let changed = |pool: &str| {
            let mut recording = good();
            recording.replace(path, old, &old.replace("8000", pool));
            gate(&["--server", &Fake::recorded(&recording).url])
        };
        let said = changed("5000");
        assert_eq!(said.code, 1, "{path} {old}: {}", said.out);
        assert!(
            said.out
                .contains("pool 5,000 < context 4,096 x headroom 1.25 = 5,120")
        );
        let said = changed("9000");
        assert_eq!(said.code, 0, "{path} {old}: {}", said.out);
        assert!(said.out.contains("\nwarning "), "{}", said.out);
    }
}

/// Its reason is told where it is asked whether it answers, and nowhere else, in every form.
#[test]
fn a_dead_node_gives_its_reason_once() {
    let decode = Fake::recorded(&with_pool(recording("sglang-0.5.23-decode"), 8000));
    let words = ["--prefill", "http://127.0.0.1:1", "--decode", &decode.url];
    let reason = "is it running, is the address right?";
    for form in ["table", "junit"] {
        let said = gate(&[&words[..], &["--format", form]].concat());
        assert_eq!(said.code, 1, "length-compared of decode: {}", said.err);
        let out = said.out.split_whitespace().collect::<Vec<_>>().join(" ");
        // A test case of JUnit says it as its message and in its text.
        let telling = out.split("<testcase ").filter(|it| it.contains(reason));
        assert_eq!(telling.count(), 1, "{form}: {}", said.out);
        let times = out.matches(reason).count();
        assert!(
            times <= if form == "table" { 1 } else { 2 },
            "{form}: {}",
            said.out
        );
    }
    let said = gate(&[&words[..], &["--format", "json"]].concat());
    let json = said.json();
    let findings = json["findings"].as_array().unwrap();
    let telling = findings.iter().filter(|it| it.to_string().contains(reason));
    let telling: Vec<_> = telling.map(|it| it["check"].as_str().unwrap()).collect();
    assert_eq!(telling, ["node-answers"]);
    let open = findings.iter().filter(|it| it["answer"] == "unknown");
    assert!(open.count() > 10, "the questions stay open: {}", said.out);
}

#[test]
fn one_bad_node_neither_hides_nor_delays_the_others() {
    let bad = [Answer::Silence, Answer::Endless, Answer::Status(401)].map(Fake::always);
    let small = Fake::recorded(&recording("sglang-0.5.23-single"));
    let good: Vec<Fake> = (0..5).map(|_| Fake::recorded(&good())).collect();
    let urls = bad
        .iter()
        .chain([&small])
        .chain(&good)
        .map(|it| it.url.as_str());
    let mut words = vec!["--timeout", "1s", "--format", "json", "--server"];
    words.extend(urls);
    let begin = Instant::now();
    let said = gate(&words);
    // Not a measurement: the node that hangs alone may take a second, three in a row would take three.
    assert!(begin.elapsed() < Duration::from_secs(30));
    assert_eq!(said.code, 1, "the small pool is found: {}", said.err);
    let mut answers = said.answers("pool-holds-context");
    answers.sort();
    let expected = [
        ["holds"; 5].to_vec(),
        ["unknown"; 3].to_vec(),
        vec!["violated"],
    ]
    .concat();
    assert_eq!(answers, expected);
}
