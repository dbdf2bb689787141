//! `cofferdam watch` as a process: what it prints, how it ends, what it keeps.

mod formats;

use serde_json::{Value, json};
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use tempfile::TempDir;

/// Lengths and times of an engine with 20 ms of overhead and 1 ms a token, without randomness: a
/// request's number decides.
fn request(n: u64, tokens: u64, seconds: f64) -> Value {
    json!({
        "time_unix_s": 1.8e9 + n as f64, "request": format!("r{n}"), "tenant": format!("t{}", n % 3),
        "status": 200, "prompt_tokens": tokens, "cached_tokens": 0, "ttft_ms": seconds * 1e3,
    })
}

fn healthy(n: u64) -> Value {
    let tokens = 32 << (n % 7); // 32 to 2,048
    let jitter = 1.0 + (n % 11) as f64 / 50.0;
    request(n, tokens, (0.02 + 0.001 * tokens as f64) * jitter)
}

/// The incident: a prompt over the pool, answered like one of a single token.
fn skipped(n: u64) -> Value {
    request(n, 6_000 + n % 100, 0.022)
}

/// 2,000 healthy requests; after each 200th one that skipped its prefill, if wanted.
fn log(bad: bool) -> String {
    let mut log = String::new();
    for n in 0..2_000 {
        let _ = writeln!(log, "{}", healthy(n));
        if bad && n % 200 == 199 {
            let _ = writeln!(log, "{}", skipped(10_000 + n));
        }
    }
    log
}

struct Place(TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> String {
        fs::write(self.path(name), text).unwrap();
        self.path(name).display().to_string()
    }
}

fn command(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cofferdam"));
    command.arg("watch").args(words);
    command
}

fn run(words: &[&str]) -> Output {
    command(words).output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn the_affected_requests_of_a_log_are_listed_by_tenant_and_time() {
    let place = Place::new();
    let log = place.write("access.jsonl", &log(true));
    let output = run(&["--log", &log]);
    assert_eq!(output.status.code(), Some(1));
    let table = text(&output);
    assert!(
        table.starts_with("FOUND: 10 of 2010 requests cannot be right\n"),
        "{table}"
    );
    for words in [
        "10  too_fast",
        "r10199",
        "the slope between prompts",
        "X",
        "uncached tokens or more",
    ] {
        assert!(table.contains(words), "{words}: {table}");
    }
    let output = run(&["--log", &log, "--format", "json"]);
    let lines: Vec<Value> = text(&output)
        .lines()
        .map(|it| serde_json::from_str(it).unwrap())
        .collect();
    let ids: Vec<_> = lines
        .iter()
        .filter_map(|it| it["request"].as_str())
        .collect();
    let expected: Vec<_> = (0..10).map(|n| format!("r{}", 10_199 + 200 * n)).collect();
    assert_eq!(ids, expected);
    let summary = &lines.last().unwrap()["summary"];
    assert_eq!(summary["verdict"], "found");
    assert_eq!(summary["by_tenant"].as_object().unwrap().len(), 3);
    assert_eq!(summary["by_signal"], json!({"too_fast": 10}));
}

#[test]
fn a_healthy_log_is_nothing_found_and_a_log_without_times_is_no_answer() {
    let place = Place::new();
    let healthy_log = place.write("a.jsonl", &log(false));
    let output = run(&["--log", &healthy_log]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    assert!(text(&output).starts_with("nothing found in 2000 requests"));
    let blind = log(true).replace("\"ttft_ms\"", "\"other\"");
    let blind = place.write("b.jsonl", &blind);
    let output = run(&["--log", &blind]);
    assert_eq!(output.status.code(), Some(3), "{}", text(&output));
    assert!(text(&output).contains("COULD NOT TELL"));
    let garbage = place.write(
        "c.jsonl",
        &format!("{}{}", log(false), "nonsense\n".repeat(100)),
    );
    let output = run(&["--log", &garbage]);
    assert_eq!(output.status.code(), Some(3), "{}", text(&output));
    assert!(
        text(&output).contains("line 2001: not JSON"),
        "{}",
        text(&output)
    );
}

#[test]
fn several_logs_standard_input_a_limit_and_tests() {
    let place = Place::new();
    let first = place.write("1.jsonl", &log(false));
    let over = format!("{}\n", request(1, 2_500, 2.6));
    let second = place.write("2.jsonl", &over);
    let words = ["--limit", "2048", "--format", "json"];
    let output = run(&[&["--log", first.as_str(), second.as_str()][..], &words].concat());
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output).contains("answered a prompt of 2500 tokens; the limit is 2048"));
    let tested = [
        &[
            "--log",
            first.as_str(),
            second.as_str(),
            "--test-tenant",
            "t1",
        ][..],
        &words,
    ];
    let output = run(&tested.concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    let mut child = command(&["--log", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(log(true).as_bytes())
        .unwrap();
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(1));
}

/// As logrotate leaves it: two packed parts, the second one added later.
#[test]
fn a_packed_log_is_read_like_any_other() {
    let place = Place::new();
    let mut packed = Vec::new();
    let text_of = log(true);
    let (one, other) = text_of.split_at(text_of.len() / 2);
    for part in [one, other] {
        let mut pack = flate2::write::GzEncoder::new(&mut packed, flate2::Compression::fast());
        pack.write_all(part.as_bytes()).unwrap();
        pack.finish().unwrap();
    }
    let path = place.path("access.jsonl.1.gz");
    fs::write(&path, &packed).unwrap();
    let name = path.display().to_string();
    let output = run(&["--log", &name]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output).starts_with("FOUND: 10 of 2010 requests cannot be right\n"));
    // One that was cut off is no shorter log.
    fs::write(&path, &packed[..packed.len() - 20]).unwrap();
    assert_eq!(run(&["--log", &name]).status.code(), Some(2));
}

#[test]
fn a_silence_about_a_few_long_prompts_is_no_answer() {
    let place = Place::new();
    let mut few = String::new();
    for n in 0..3_000_u64 {
        let tokens = if n % 29 == 0 { 2_048 } else { 16 + 4 * (n % 3) };
        let seconds = (0.02 + 0.001 * tokens as f64) * (1.0 + (n % 11) as f64 / 50.0);
        let _ = writeln!(few, "{}", request(n, tokens, seconds));
    }
    let output = run(&["--log", &place.write("few.jsonl", &few)]);
    assert_eq!(output.status.code(), Some(3), "{}", text(&output));
    let table = text(&output);
    let head =
        "COULD NOT TELL: 3000 requests, of whose answers 3.4 % could be compared with a floor";
    assert!(table.starts_with(head), "{table}");
    assert!(table.contains("at least 10 % are needed"), "{table}");
    let healthy_log = place.write("all.jsonl", &log(false));
    let table = text(&run(&["--log", &healthy_log]));
    let head = "nothing found in 2000 requests, of whose answers ";
    assert!(table.starts_with(head), "{table}");
}

#[test]
fn drawings_and_rules() {
    let place = Place::new();
    let log = place.write("access.jsonl", &log(true));
    let svg = place.path("plot.svg");
    run(&["--log", &log, "--plot", svg.to_str().unwrap()]);
    assert!(
        fs::read_to_string(svg)
            .unwrap()
            .contains("too fast to be true")
    );
    let html = place.path("plot.html");
    run(&["--log", &log, "--plot", html.to_str().unwrap()]);
    let html = fs::read_to_string(html).unwrap();
    assert!(
        html.contains("<svg") && html.contains("FOUND: 10 of 2010"),
        "{html:.300}"
    );
    let output = run(&["--log", &log, "--plot", "x.png"]);
    assert_eq!(output.status.code(), Some(2));
    let rules = text(&run(&["--rules"]));
    assert!(rules.contains("cofferdam_watch_signals_total{kind=\"too_fast\"}"));
}

/// A filter that keeps nothing is a mistake, not a quiet log.
#[test]
fn only_that_keeps_nothing_says_what_there_was() {
    let place = Place::new();
    let routed = log(false).replace(
        "\"status\":200",
        "\"status\":200,\"path\":\"/v1/completions\"",
    );
    let routed = routed.replacen("/v1/completions", "/health", 40) + "\n{\"status\":1}\n";
    let routed = place.write("access.jsonl", &routed);
    let config = |name: &str, path: &str| {
        let text = format!(
            "[fields]\ntime = 'time_unix_s'\nseconds = ['ttft_ms']\nseconds_unit = 'ms'\n\
             prompt_tokens = 'prompt_tokens'\ncached_tokens = 'cached_tokens'\n\
             tenant = 'tenant'\nonly = {{ path = ['{path}'] }}\n"
        );
        place.write(name, &text)
    };
    let (wrong, right) = (
        config("w.toml", "/v1/completion"),
        config("r.toml", "/v1/completions"),
    );
    let output = run(&["--log", &routed, "--config", &wrong]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{error}");
    let says = "[fields.only] keeps none of 2001 lines: path must be one of [\"/v1/completion\"] and is \
                \"/v1/completions\" (1960), \"/health\" (40), no such field (1)";
    assert!(error.contains(says), "{error}");
    let output = run(&["--log", &routed, "--config", &right]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));

    // Followed to its end, the same is no "nothing found".
    let mut child = command(&[
        "--follow",
        "--log",
        "-",
        "--config",
        &wrong,
        "--listen",
        "127.0.0.1:0",
    ])
    .stdin(Stdio::piped())
    .stdout(Stdio::piped())
    .spawn()
    .unwrap();
    let bytes = fs::read(&routed).unwrap();
    child.stdin.take().unwrap().write_all(&bytes).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", text(&output));
    let event = text(&output);
    let event = event.lines().find(|it| it.contains("only_keeps_nothing"));
    assert!(
        event.unwrap().contains("keeps none of 64 lines"),
        "{event:?}"
    );
}

/// Names of settings that no request has: misspelt, or of another log.
#[test]
fn names_that_no_request_has_are_said() {
    let place = Place::new();
    let log = place.write("access.jsonl", &log(false));
    let output = run(&["--log", &log, "--test-tenant", "T1", "--limit", "gpt=4096"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    for says in [
        "limit \"gpt\": no request is of that model; there are \"\" (2000)",
        "test tenant \"T1\": no request is of that tenant; there are \"t0\" (667), \"t1\" (667), \
         \"t2\" (666)",
    ] {
        assert!(text(&output).contains(says), "{}", text(&output));
    }
    let output = run(&["--log", &log, "--test-tenant", "t1", "--limit", "4096"]);
    assert!(
        !text(&output).contains("no request is of"),
        "{}",
        text(&output)
    );
}

#[test]
fn what_makes_no_sense_is_usage() {
    let place = Place::new();
    let log = place.write("access.jsonl", &log(false));
    let config = place.write(
        "w.toml",
        "[fields]\ntime = 't'\nseconds = []\nprompt_tokns = 'p'\n",
    );
    for (words, says) in [
        (vec![], "--log"),
        (vec!["--log", "/no/such/file"], "/no/such/file"),
        (vec!["--log", &log, "--config", &config], "prompt_tokns"),
        (vec!["--log", &log, "--tolerance", "1.5"], "tolerance"),
        (vec!["--log", &log, "--limit", "many"], "many"),
        (vec!["--log", &log, &log, "--follow"], "one log"),
        (vec!["--log", &log, "--state", &log], "not a state"),
    ] {
        let output = run(&words);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{words:?}: {error}");
        assert!(error.contains(says), "{words:?}: {error}");
    }
}

/// A watch that follows a log.
struct Following {
    child: Child,
    events: std::io::Lines<BufReader<std::process::ChildStdout>>,
    gauges: String,
}

impl Following {
    fn start(log: &Path, state: &Path) -> Self {
        let words = ["--follow", "--listen", "127.0.0.1:0"];
        let mut child = command(&words)
            .arg("--log")
            .arg(log)
            .arg("--state")
            .arg(state)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
        let said = said.next().unwrap().unwrap();
        let gauges = said.strip_prefix("gauges: http://").unwrap();
        Self {
            gauges: gauges.strip_suffix("/metrics").unwrap().to_owned(),
            events: BufReader::new(child.stdout.take().unwrap()).lines(),
            child,
        }
    }

    fn event(&mut self) -> Value {
        serde_json::from_str(&self.events.next().unwrap().unwrap()).unwrap()
    }

    fn metrics(&self) -> String {
        let mut socket = TcpStream::connect(&self.gauges).unwrap();
        socket.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        let mut page = String::new();
        socket.read_to_string(&mut page).unwrap();
        page
    }

    /// Waits for the page to say so: it is made anew every second.
    fn until(&self, line: &str) {
        while !self.metrics().lines().any(|it| it == line) {
            std::thread::yield_now();
        }
    }

    fn end(mut self) -> Option<i32> {
        let id = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
        self.child.wait().unwrap().code()
    }
}

fn append(log: &Path, text: &str) {
    let mut file = fs::OpenOptions::new().append(true).open(log).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

#[test]
fn a_growing_log_is_followed_across_a_restart_and_a_rotation() {
    let place = Place::new();
    let (access, state) = (place.path("access.jsonl"), place.path("state"));
    fs::write(&access, log(false)).unwrap();
    let watch = Following::start(&access, &state);
    watch.until("cofferdam_watch_signals_total{kind=\"too_fast\"} 0");
    let learned =
        |it: &str| it.starts_with("cofferdam_watch_learned_requests") && it.ends_with(" 2000");
    while !watch.metrics().lines().any(learned) {
        std::thread::yield_now();
    }
    assert_eq!(watch.end(), Some(0));

    // While nobody watched, one was written: it is read, and what came before is not read again.
    append(&access, &format!("{}\n", skipped(1)));
    let mut watch = Following::start(&access, &state);
    let page = watch.metrics();
    assert!(
        page.contains("content-type: application/openmetrics-text;"),
        "{page}"
    );
    let event = watch.event();
    assert_eq!(
        (&event["event"], &event["request"]),
        (&json!("cannot_be_right"), &json!("r1"))
    );
    assert_eq!(event["signals"][0]["signal"], "too_fast");

    // A line that comes in two parts, and a new file under the old name.
    let line = format!("{}\n", skipped(2));
    append(&access, &line[..20]);
    append(&access, &line[20..]);
    assert_eq!(watch.event()["request"], "r2");
    fs::rename(&access, place.path("access.jsonl.1")).unwrap();
    fs::write(&access, format!("{}\n", skipped(3))).unwrap();
    assert_eq!(watch.event()["request"], "r3");
    watch.until("cofferdam_watch_signals_total{kind=\"too_fast\"} 3");
    assert_eq!(watch.end(), Some(1));
}

/// A machine ten times as fast has a request now and then: said, suspected, and no verdict.
#[test]
fn times_that_grow_with_length_do_not_alarm_for_ever() {
    let place = Place::new();
    let (access, state) = (place.path("access.jsonl"), place.path("state"));
    let mut text = log(false);
    for n in 0..20 {
        let tokens = 1_000 + 97 * (n * 7 % 20);
        let fast = request(20_000 + n, tokens, 0.02 + 0.000_1 * tokens as f64);
        let _ = writeln!(text, "{fast}\n{}", healthy(n));
    }
    fs::write(&access, text).unwrap();
    let mut watch = Following::start(&access, &state);
    let events: Vec<_> = (0..21).map(|_| watch.event()).collect();
    let of = |name: &str| events.iter().filter(|it| it["event"] == name).count();
    assert!(
        of("cannot_be_right") <= 10 && of("growing") == 1,
        "{events:#?}"
    );
    assert_eq!(events[20]["event"], "suspected");
    watch.until("cofferdam_watch_signals_total{kind=\"tokens_differ\"} 0");
    let suspected = format!("cofferdam_watch_suspected_total {}", of("suspected"));
    watch.until(&suspected);
    let id = rustix::process::Pid::from_child(&watch.child);
    rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
    let last = watch.event();
    assert_eq!(last["event"], "could_not_tell", "{last}");
    assert_eq!(watch.child.wait().unwrap().code(), Some(3));
}
