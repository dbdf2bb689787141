//! Whose text it may have been: what workers write down of their pages, joined with what `watch` found.

use super::prompt;
use super::running::{COFFERDAM, Serving, start};
use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const TENANTS: [(&str, &str); 3] = [
    ("tenant-a", "key-of-a-0123456789abcdef"),
    ("tenant-b", "key-of-b-0123456789abcdef"),
    ("tenant-c", "key-of-c-0123456789abcdef"),
];

struct Place {
    base: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let base = tempfile::tempdir().unwrap();
        let keys: String = TENANTS
            .iter()
            .map(|(tenant, key)| format!("{tenant} {key}\n"))
            .collect();
        fs::write(base.path().join("keys"), keys).unwrap();
        Self { base }
    }

    fn path(&self, name: &str) -> String {
        self.base.path().join(name).display().to_string()
    }

    fn serve(&self, words: &[&str]) -> Serving {
        let flags = [
            format!("--api-keys={}", self.path("keys")),
            format!("--access-log={}", self.path("access.jsonl")),
            format!("--owners={}", self.path("owners")),
            // A pool that holds one prompt: whoever comes next gets the pages of the one before.
            "--pool-tokens=256".to_owned(),
        ];
        let flags = flags.iter().map(String::as_str);
        let words: Vec<_> = flags.chain(words.iter().copied()).collect();
        start(self.base.path(), &words)
    }

    fn logged(&self) -> Vec<Value> {
        let log = fs::read_to_string(self.path("access.jsonl")).unwrap();
        let lines = log.lines().map(|it| serde_json::from_str(it).unwrap());
        lines
            .filter(|it: &Value| it["engine_request"].is_string())
            .collect()
    }

    fn affected(&self, words: &[&str]) -> Output {
        let (owners, log) = (self.path("owners"), self.path("access.jsonl"));
        let mut command = Command::new(COFFERDAM);
        command.args(["affected", "--owners", &owners, "--log", &log]);
        command.args(words).output().unwrap()
    }
}

fn lines(output: &Output) -> Vec<Value> {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    text.lines()
        .map(|it| serde_json::from_str(it).unwrap())
        .collect()
}

fn ask(serving: &Serving, tenant: usize, seed: u32, tokens: u32) {
    let (status, body) = serving.complete_as(TENANTS[tenant].1, &prompt(seed, tokens), 4);
    assert_eq!(status, 200, "{body}");
}

/// A asks, B asks for more, C asks after it. `watch` says that B received something (its prompt is over
/// the limit); whose it may have been is A's, and not C's, who came later.
fn whose(words: &[&str], roles: &[&str]) {
    let place = Place::new();
    let mut serving = place.serve(words);
    ask(&serving, 0, 1, 120);
    ask(&serving, 1, 2, 200);
    ask(&serving, 2, 3, 120);
    serving.signal(Signal::TERM);
    assert_eq!(serving.ends(), Some(0), "{}", serving.told());

    let logged = place.logged();
    let id = |n: usize| logged[n]["request"].as_str().unwrap();
    let watch = [
        "watch",
        "--log",
        &place.path("access.jsonl"),
        "--limit",
        "150",
        "--format",
        "json",
    ];
    let found = Command::new(COFFERDAM).args(watch).output().unwrap();
    assert_eq!(found.status.code(), Some(1));
    fs::write(place.path("received.jsonl"), &found.stdout).unwrap();

    let received = place.path("received.jsonl");
    let output = place.affected(&["--received", &received, "--format", "json"]);
    let said = lines(&output);
    assert_eq!(output.status.code(), Some(1), "{said:?}");
    let [victim, summary] = &said[..] else {
        panic!("{said:?}");
    };
    assert_eq!(
        (victim["request"].as_str(), victim["tenant"].as_str()),
        (Some(id(1)), Some("tenant-b"))
    );
    assert_eq!(victim["unknown"], Value::Array(Vec::new()), "{victim}");
    let sources = victim["sources"].as_array().unwrap();
    let from: BTreeSet<_> = sources
        .iter()
        .map(|it| it["request"].as_str().unwrap())
        .collect();
    assert_eq!(from, BTreeSet::from([id(0)]), "{victim}");
    let of: Vec<_> = sources
        .iter()
        .map(|it| it["role"].as_str().unwrap())
        .collect();
    assert_eq!(
        of.iter().copied().collect::<BTreeSet<_>>(),
        roles.iter().copied().collect()
    );
    // Of the 8 pages of A (a pair caches them until they are needed) as many as B needed.
    assert!(
        sources
            .iter()
            .all(|it| (1..=8).contains(&it["pages"].as_u64().unwrap())),
        "{victim}"
    );
    assert!(
        sources.iter().all(|it| it["tenant"] == "tenant-a"),
        "{victim}"
    );
    assert_eq!(
        summary["summary"]["tenants_that_may_be_sources"],
        serde_json::json!(["tenant-a"])
    );

    let table = place.affected(&["--request", id(1)]);
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(
        table.starts_with(
            "FOUND: 1 of 1 requests may have received text of other tenants: tenant-a\n"
        ),
        "{table}"
    );
    // C has had the pages of B, and before that of A.
    let output = place.affected(&["--request", id(2), "--format", "json"]);
    let ids = |list: &Value| -> BTreeSet<String> {
        let list = list.as_array().unwrap().iter();
        list.map(|it| it["request"].as_str().unwrap().to_owned())
            .collect()
    };
    let victim = &lines(&output)[0];
    let (sources, earlier) = (ids(&victim["sources"]), ids(&victim["earlier"]));
    assert!(sources.contains(id(1)), "{victim}");
    let both = sources.union(&earlier).map(String::as_str);
    assert_eq!(
        both.collect::<BTreeSet<_>>(),
        BTreeSet::from([id(0), id(1)]),
        "{victim}"
    );
    // A was the first: nobody had its pages before.
    let first = place.affected(&["--request", id(0)]);
    assert_eq!(
        first.status.code(),
        Some(0),
        "{}",
        String::from_utf8_lossy(&first.stdout)
    );
    not_known(&place, id(1));
}

/// Where a worker's lines are missing it is said, and is no answer.
fn not_known(place: &Place, id: &str) {
    let output = place.affected(&["--request", "r-of-nobody"]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(
        said.contains("not known: the access log has no such request"),
        "{said}"
    );
    let files: Vec<PathBuf> = fs::read_dir(place.path("owners"))
        .unwrap()
        .map(|it| it.unwrap().path())
        .collect();
    let of_gateway = |it: &Path| {
        it.file_name()
            .unwrap()
            .to_string_lossy()
            .starts_with("gateway-")
    };
    for file in files.iter().filter(|it| !of_gateway(it)) {
        let text = fs::read_to_string(file).unwrap();
        let first = text.lines().next().unwrap();
        // The ring has gone over what it knew of the request.
        let first = first.replace(
            "\"from_the_beginning\":true",
            "\"from_the_beginning\":false",
        );
        fs::write(file, first + "\n").unwrap();
    }
    let output = place.affected(&["--request", id]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(
        said.starts_with("COULD NOT TELL: 1 requests received something\n"),
        "{said}"
    );
    assert!(said.contains("was written over"), "{said}");
    for file in files.iter().filter(|it| !of_gateway(it)) {
        fs::remove_file(file).unwrap();
    }
    let output = place.affected(&["--request", id]);
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    let code = output.status.code();
    // One process has no gateway's file beside it: then there is nothing to read at all.
    match files.iter().any(|it| of_gateway(it)) {
        true => assert!(
            code == Some(3) && said.contains("no record of the pages of worker"),
            "{code:?} {said}"
        ),
        false => assert!(
            code == Some(2) && said.contains("no file *.owners"),
            "{code:?} {said}"
        ),
    }
}

#[test]
fn nobody_writes_down_the_pages_of_engines_that_are_not_ours() {
    let place = Place::new();
    let model = testkit::small_gguf(Path::new(super::TARGET), testkit::SmallSpec::default());
    let output = Command::new(COFFERDAM)
        .args([
            "gateway",
            "--engine=http://127.0.0.1:1",
            "--port=0",
            "--model",
        ])
        .arg(model)
        .arg(format!("--owners={}", place.path("owners")))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("--owners with --engine"), "{said}");
    assert!(!Path::new(&place.path("owners")).exists());
}

#[test]
fn whose_text_it_may_have_been_of_prefill_and_decode() {
    whose(&[], &["decode", "prefill"]);
}

#[test]
fn whose_text_it_may_have_been_in_one_process() {
    whose(&["--in-process"], &["unified"]);
}
