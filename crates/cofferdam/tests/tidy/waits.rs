//! Nobody waits for ever (H-15): every state and every timer of the machines, as the code has
//! them, has a row in `docs/waits.md`, which says what ends the wait.
//!
//! `TIDY_UPDATE=1 cargo test -p cofferdam --test tidy` writes the page.

use super::assert_none;
use super::tree::root;
use super::ways_out::{WAITS, Wait};
use std::collections::BTreeSet;
use std::fmt::Write;

/// The machines, and where their states are declared.
const MACHINES: [(&str, &[&str]); 4] = [
    (
        "prefill",
        &["prefill/mod.rs", "prefill/state.rs", "decisions.rs"],
    ),
    ("decode", &["decode/mod.rs", "decode/state.rs"]),
    (
        "gateway",
        &[
            "gateway/mod.rs",
            "gateway/request.rs",
            "gateway/attempt.rs",
            "gateway/workers.rs",
        ],
    ),
    (
        "door",
        &[
            "door/mod.rs",
            "door/request.rs",
            "door/attempt.rs",
            "door/legs.rs",
            "door/fleet.rs",
        ],
    ),
];
/// Enums in those files that are no state of a machine.
const NO_STATES: [&str; 4] = ["Mode", "AfterPrefill", "Write", "Evidence"];
/// Structs in those files that are no part of a machine.
const NO_PARTS: [&str; 4] = ["Config", "Arrived", "Load", "Route"];

fn source(file: &str) -> String {
    let path = root().join("crates/handoff/src").join(file);
    let text = std::fs::read_to_string(path).expect("a file of the core");
    let end = text.find("#[cfg(test)]").unwrap_or(text.len());
    text[..end].to_owned()
}

/// Declarations of this kind in a text: name and lines of the body, without comments.
fn declared<'a>(text: &'a str, kind: &str) -> Vec<(&'a str, Vec<&'a str>)> {
    let begins = |line: &&str| {
        let line = line
            .trim_start_matches("pub(super) ")
            .trim_start_matches("pub ");
        line.starts_with(kind) && line.ends_with('{')
    };
    let mut found = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.find(begins) {
        let name = line.split(kind).nth(1).expect("a name");
        let end = |c: char| !c.is_alphanumeric();
        let name = name.split(end).next().expect("a name");
        let body = lines.by_ref().take_while(|line| *line != "}");
        let body = body.filter(|line| !line.trim_start().starts_with("//"));
        found.push((name, body.collect()));
    }
    found
}

/// `Variant` of a line that begins one.
fn variant(line: &str) -> Option<&str> {
    let line = line.strip_prefix("    ")?;
    let name = line.split(|c: char| !c.is_alphanumeric()).next()?;
    name.starts_with(char::is_uppercase).then_some(name)
}

/// The name of a field that says by itself whether there is something: a bool, or an option.
fn optional(line: &str) -> Option<&str> {
    let (name, kind) = line.strip_prefix("    ")?.split_once(": ")?;
    let is_state = kind == "bool," || kind.starts_with("Option<");
    let name = name
        .trim_start_matches("pub(super) ")
        .trim_start_matches("pub ");
    is_state.then_some(name)
}

fn states(files: &[&str]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for file in files {
        let text = source(file);
        for (name, body) in declared(&text, "enum ") {
            let variants = body.iter().filter_map(|line| variant(line));
            let variants = variants.filter(|_| !NO_STATES.contains(&name));
            found.extend(variants.map(|variant| format!("{name}::{variant}")));
        }
        for (name, body) in declared(&text, "struct ") {
            let fields = body.iter().filter_map(|line| optional(line));
            let fields = fields.filter(|_| !NO_PARTS.contains(&name));
            found.extend(fields.map(|field| format!("{name}.{field}")));
        }
    }
    found
}

fn timers(machine: &str) -> BTreeSet<String> {
    let text = source(&format!("{machine}/event.rs"));
    let of = declared(&text, "enum ");
    let (_, body) = of
        .iter()
        .find(|(name, _)| *name == "Timer")
        .expect("timers");
    body.iter()
        .filter_map(|line| variant(line))
        .map(str::to_owned)
        .collect()
}

fn rows(machine: &str) -> impl Iterator<Item = &'static Wait> {
    WAITS.iter().filter(move |wait| wait.machine == machine)
}

/// Timers that a row names.
fn named(wait: &Wait) -> impl Iterator<Item = String> {
    wait.ends.split('`').skip(1).step_by(2).map(str::to_owned)
}

#[test]
fn every_state_of_a_machine_has_a_way_out() {
    let mut found = Vec::new();
    for (machine, files) in MACHINES {
        let states = states(files);
        assert!(states.len() > 5, "{machine}: {states:?}");
        let listed: BTreeSet<String> = rows(machine).map(|wait| wait.state.to_owned()).collect();
        let lacks = states.difference(&listed);
        found.extend(lacks.map(|state| format!("{machine}: {state} has no row")));
    }
    assert_none(
        found,
        "every state is in tidy/ways_out.rs, with what ends the wait",
    );
}

#[test]
fn every_timer_ends_a_wait_and_every_wait_names_timers_that_exist() {
    let mut found = Vec::new();
    for (machine, _) in MACHINES {
        let timers = timers(machine);
        let used: BTreeSet<String> = rows(machine).flat_map(named).collect();
        let unused = timers.difference(&used);
        found.extend(unused.map(|timer| format!("{machine}: {timer} ends no wait")));
        let unknown = used.difference(&timers);
        found.extend(unknown.map(|timer| format!("{machine}: there is no timer {timer}")));
    }
    assert_none(
        found,
        "timers of the machines and of tidy/ways_out.rs are the same",
    );
}

/// A row whose wait is on a peer must name a timer of the core: events alone come from the peer.
#[test]
fn who_waits_for_a_peer_has_a_deadline_in_the_core() {
    let peers = ["prefill", "decode", "a worker", "an engine"];
    let on_peer = |wait: &&Wait| peers.iter().any(|peer| wait.whom.starts_with(peer));
    // It is refused, and nothing is kept for it.
    let waits = WAITS.iter().filter(on_peer);
    let waits = waits.filter(|wait| wait.state != "Peer.refused");
    let without = waits.filter(|wait| named(wait).next().is_none());
    let without = without.map(|wait| format!("{}: {}", wait.machine, wait.state));
    assert_none(
        without.collect(),
        "a wait on a peer ends by a timer of the core",
    );
}

/// States that the code does not have (any more); what is no option or bool is looked up by name.
#[test]
fn every_row_is_about_a_state_that_the_code_has() {
    let mut found = Vec::new();
    for (machine, files) in MACHINES {
        let known = states(files);
        let text: String = files.iter().map(|file| source(file)).collect();
        for wait in rows(machine).filter(|wait| !known.contains(wait.state)) {
            let last = wait.state.rsplit(['.', ':']).next().expect("a name");
            let field =
                text.contains(&format!(" {last}: ")) || text.contains(&format!("struct {last}("));
            if wait.state.contains("::") || !field {
                found.push(format!("{machine}: {}", wait.state));
            }
        }
    }
    assert_none(
        found,
        "rows of tidy/ways_out.rs are about states of the code",
    );
}

fn page() -> String {
    let mut text = String::from(
        "# What each machine waits for, and what ends it\n\n\
         Written by `TIDY_UPDATE=1 cargo test -p cofferdam --test tidy` from `tidy/ways_out.rs`; tests\n\
         compare it with the code: a state or a timer of a machine without a row fails the\n\
         build, and so does a wait on a peer that names no timer (H-15).\n\n\
         A deadline ends a wait and ownership; it frees nothing that may still be written or read: that\n\
         takes a certificate, a fence, or a destroyed endpoint. Names in backticks are timers of that\n\
         machine. What says \"own\" is this process's own work, which its driver ends or fails; the\n\
         fabric's exchanges with a peer have deadlines of their own.\n\n\
         | timer | flag | default |\n|---|---|---|\n\
         | `Attempt`, `Request` | `--request-deadline`, and one for each stage | 10 min |\n\
         | `Peer` (prefill, decode) | `--peer-deadline` | 10 s |\n\
         | `Greeting`, `Answer` (prefill); `Greeting`, `Turn` (decode) | `--answer-deadline` | 10 s |\n\
         | `Greeting`, `Answer` (gateway), and the driver's heartbeat | `--silence-deadline` | 20 s |\n\
         | `Cancel` (decode) | `--cancel-deadline` | 5 s |\n\
         | `Unsettled` (decode) | - | 2 s |\n\
         | `Arena` (decode) | - | 250 ms, doubled up to 8 s |\n\
         | `Retry` (prefill) | what decode says with Busy | 20 ms |\n\
         | `Cache` (prefill, decode): cached pages grow older | half of `--cache-ttl` | - |\n\
         | `Request` (door) | `--request-deadline` | 10 min |\n\
         | `Stage` (door) | `--prefill-within`, then `--silence` | 5 min, 1 min |\n\
         | `Settle`, `Word` (door) | `--settle` | 3 s |\n\
         | `Linger` (door) | `--linger` | 1 min |\n\
         | `Abort` (door) | - | 2 s |\n\
         | `Rest` (door) | - | 10 s |\n\n\
         So a worker that is stopped and not gone is hung up on after at most 21 s (with the defaults)\n\
         by whoever waits for it, and what it held at the others is given up after 10 s more. A stopped\n\
         process does not answer a new connection either, and no request goes to it until it does.\n",
    );
    for (machine, _) in MACHINES {
        writeln!(text, "\n## {machine}\n").unwrap();
        text.push_str("| state | waits for | ends by | without the answer |\n|---|---|---|---|\n");
        for Wait {
            state,
            whom,
            ends,
            then,
            ..
        } in rows(machine)
        {
            writeln!(text, "| `{state}` | {whom} | {ends} | {then} |").unwrap();
        }
    }
    text
}

#[test]
fn the_page_of_waits_is_up_to_date() {
    let path = root().join("docs/waits.md");
    let page = page();
    if std::env::var_os("TIDY_UPDATE").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == page,
        "docs/waits.md is old: TIDY_UPDATE=1 cargo test -p cofferdam --test tidy"
    );
}

#[test]
fn states_are_found_in_a_text() {
    let text = "pub(super) enum Phase {\n    /// One.\n    Landing,\n    Over { held: bool },\n    With {\n        \
                inner: bool,\n    },\n}\n\npub struct Job<J> {\n    pub attempt: Option<A>,\n    pub n: u32,\n    \
                held: bool,\n}\n";
    let enums = declared(text, "enum ");
    let variants: Vec<_> = enums[0].1.iter().filter_map(|line| variant(line)).collect();
    assert_eq!(
        (enums[0].0, variants),
        ("Phase", vec!["Landing", "Over", "With"])
    );
    let structs = declared(text, "struct ");
    let fields: Vec<_> = structs[0]
        .1
        .iter()
        .filter_map(|line| optional(line))
        .collect();
    assert_eq!((structs[0].0, fields), ("Job", vec!["attempt", "held"]));
}
