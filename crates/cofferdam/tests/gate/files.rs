//! The files that go in and out: fleet file, baseline, endpoints, tables, reports.

use crate::fake::{Answer, Fake, recording, with_pool};
use crate::{gate, gate_with};
use std::fs;
use std::path::Path;

fn write(directory: &Path, name: &str, text: &str) -> String {
    let path = directory.join(name);
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

fn pair() -> (Fake, Fake) {
    (
        Fake::recorded(&with_pool(recording("sglang-0.5.23-prefill"), 8000)),
        Fake::recorded(&with_pool(recording("sglang-0.5.23-decode"), 8000)),
    )
}

#[test]
fn a_fleet_file_names_nodes_keys_groups_and_what_is_accepted() {
    let here = tempfile::tempdir().unwrap();
    let secret = "sk-of-the-test-1234";
    let p0 = Fake::locked(&with_pool(recording("sglang-0.5.23-prefill"), 8000), secret);
    let d0 = Fake::locked(
        &with_pool(recording("sglang-0.5.23-decode"), 8000),
        "sk-other",
    );
    write(here.path(), "p0.key", &format!("{secret}\n"));
    let text = format!(
        "[allow]\nlength-compared = 'limits are equal'\n\
         [defaults]\nkey = {{ env = 'GATE_TEST_KEY' }}\n\
         [[node]]\nname = 'p0'\nurl = '{}'\nrole = 'prefill'\nkey = {{ file = 'p0.key' }}\n\
         [[node]]\nname = 'd0'\nurl = '{}'\nrole = 'decode'\n\
         [[group]]\nname = 'a'\nprefill = ['p0']\ndecode = ['d0']\n",
        p0.url, d0.url
    );
    let file = write(here.path(), "fleet.toml", &text);
    let run = |format: &str| {
        gate_with(&["--config", &file, "--format", format], |command| {
            command.env("GATE_TEST_KEY", "sk-other");
        })
    };
    let said = run("json");
    assert_eq!(
        (said.code, said.failing()),
        (0, vec![]),
        "{}{}",
        said.out,
        said.err
    );
    for format in ["table", "json", "sarif", "junit", "prometheus"] {
        let said = run(format);
        assert!(
            !format!("{}{}", said.out, said.err).contains("sk-"),
            "{format} shows a key"
        );
    }
    let keys = |node: &Fake| {
        let mut keys: Vec<_> = node.asked().into_iter().filter_map(|it| it.1).collect();
        keys.sort();
        keys.dedup();
        keys
    };
    assert_eq!(
        keys(&p0),
        [format!("Bearer {secret}")],
        "each gets its own key and no other"
    );
    assert_eq!(keys(&d0), ["Bearer sk-other"]);
    assert_eq!(
        run("json").answers("introspection-closed"),
        ["holds", "holds"]
    );
}

#[test]
fn a_wrong_fleet_file_is_usage_and_names_line_and_key() {
    let here = tempfile::tempdir().unwrap();
    let text = "[[node]]\nurl = 'http://a'\nrole = 'prefill'\nkey = 'sk-secret-in-file'\n";
    let file = write(here.path(), "fleet.toml", text);
    let said = gate(&["--config", &file]);
    assert_eq!(said.code, 2);
    assert!(said.err.contains("fleet.toml: line "), "{}", said.err);
    assert!(
        said.err.contains("a key never stands in this file"),
        "{}",
        said.err
    );
    assert!(!said.err.contains("sk-secret"), "{}", said.err);
}

#[test]
fn a_baseline_names_what_changed() {
    let here = tempfile::tempdir().unwrap();
    let (prefill, decode) = pair();
    let file = here.path().join("baseline.json");
    let file = file.to_str().unwrap();
    let words = ["--prefill", &prefill.url, "--decode", &decode.url];
    let words = [&words[..], &["--allow", "length-compared=equal"]].concat();
    let said = gate(&[&words[..], &["--save", file]].concat());
    assert_eq!(said.code, 0, "{}", said.out);
    let since = [&words[..], &["--since", file]].concat();
    assert_eq!(gate(&since).code, 0);
    decode.becomes(&with_pool(recording("sglang-0.5.23-decode"), 7040));
    let said = gate(&since);
    assert_eq!(said.code, 1);
    assert!(
        said.out.contains("pool of dp 0: 8,000 -> 7,040 (-12 %)"),
        "{}",
        said.out
    );
}

#[test]
fn endpoints_of_kubernetes_become_nodes() {
    let (prefill, decode) = pair();
    let slice = |role: &str, node: &Fake| {
        let (_, port) = node.url.rsplit_once(':').unwrap();
        format!(
            "{{\"kind\":\"EndpointSlice\",\"metadata\":{{\"name\":\"{role}\",\"labels\":\
             {{\"role\":\"{role}\"}}}},\"ports\":[{{\"port\":{port}}}],\
             \"endpoints\":[{{\"addresses\":[\"127.0.0.1\"]}}]}}"
        )
    };
    let list = [slice("prefill", &prefill), slice("decode", &decode)].join(",");
    let here = tempfile::tempdir().unwrap();
    let json = format!("{{\"kind\":\"List\",\"items\":[{list}]}}");
    let file = write(here.path(), "slices.json", &json);
    let words = [
        "--endpoints",
        "-",
        "--prefill-selector",
        "role=prefill",
        "--decode-selector",
        "role=decode",
        "--format",
        "json",
    ];
    let said = gate_with(&words, |command| {
        command.stdin(fs::File::open(&file).unwrap());
    });
    assert_eq!(
        (said.code, said.failing()),
        (1, vec!["length-compared".into()]),
        "{}",
        said.err
    );
    let nothing = gate(&["--endpoints", &file, "--prefill-selector", "role=none"]);
    assert_eq!(nothing.code, 2, "an empty fleet is no good fleet");
}

#[test]
fn any_pool_is_judged_by_figures_of_running_services() {
    let here = tempfile::tempdir().unwrap();
    let stats = Fake::always(Answer::Body(b"{\"slots\":{\"total\":64}}".to_vec()));
    let metrics = b"# TYPE x gauge\nrequest_max{kind=\"a\"} 48\nrequest_max{kind=\"b\"} 60\n";
    let metrics = Fake::always(Answer::Body(metrics.to_vec()));
    write(
        here.path(),
        "pool.log",
        "starting\npool holds 1,024 buffers\n",
    );
    let today = gate::date::Date::today();
    let pool = |name: &str, size: &str, largest: &str| {
        let by = format!("{{ owner = 'o', date = '{today}' }}");
        format!(
            "[[pool]]\nname = '{name}'\nunit = 'slots'\nsize = {size}\nlargest = {largest}\n\
             attested.reject-ends-first = {by}\nattested.receiver-compares = {by}\n"
        )
    };
    let json = format!("{{ url = '{}/stats', json = 'slots.total' }}", stats.url);
    let metric = |kind: &str| {
        format!(
            "{{ url = '{}', metric = 'request_max{{kind=\"{kind}\"}}' }}",
            metrics.url
        )
    };
    let log = "{ log = 'pool.log', pattern = 'pool holds {} buffers' }";
    let constant = format!("{{ constant = 512, owner = 'o', date = '{today}' }}");
    let run = |text: &str| {
        let file = write(here.path(), "fleet.toml", text);
        gate(&["--config", &file, "--format", "json"])
    };
    let good = pool("sessions", &json, &metric("a")) + &pool("buffers", log, &constant);
    let said = run(&good);
    assert_eq!(
        (said.code, said.failing()),
        (0, vec![]),
        "{}{}",
        said.out,
        said.err
    );
    let said = run(&pool("sessions", &json, &metric("b")));
    assert_eq!(
        (said.code, said.failing()),
        (1, vec!["pool-covers-largest".into()])
    );
    let says = said.json()["findings"][0]["says"].clone();
    assert_eq!(
        says,
        "64 slots < largest request 60 with headroom 75: 107 %"
    );
    let said = run(&pool("sessions", &json, &metric("c")));
    assert_eq!(
        (said.code, said.failing()),
        (3, vec!["pool-covers-largest".into()])
    );
    let unanswered = good.replace("attested.receiver-compares", "#");
    assert_eq!(run(&unanswered).failing(), ["receiver-compares"]);
}

#[test]
fn further_reports_are_written_whole() {
    let here = tempfile::tempdir().unwrap();
    let (prefill, decode) = pair();
    let at = |name: &str| here.path().join(name).to_str().unwrap().to_owned();
    let reports = ["sarif", "junit", "json"].map(|it| format!("{it}={}", at(it)));
    let mut words = vec!["--prefill", &prefill.url, "--decode", &decode.url];
    for report in &reports {
        words.extend(["--report", report]);
    }
    let said = gate(&words);
    assert_eq!(said.code, 1);
    let read = |name: &str| fs::read_to_string(at(name)).unwrap();
    let sarif: serde_json::Value = serde_json::from_str(&read("sarif")).unwrap();
    assert_eq!(sarif["runs"][0]["invocations"][0]["exitCode"], 1);
    assert!(read("junit").contains("<failure type=\"violated\""));
    assert!(read("json").contains("\"cofferdam-gate/1\""));
    let table = write(
        here.path(),
        "old.toml",
        "date = 2020-01-01\ngood_for_days = 9\n[seen_through]\n",
    );
    let said = gate(&[&words[..4], &["--advisories", &table]].concat());
    assert_eq!(said.code, 0, "{}", said.out);
    assert!(
        said.out.contains("the table is of 2020-01-01"),
        "{}",
        said.out
    );
}
