//! `cofferdam top` against an operators' listener over a fleet that is made up.

#[path = "../../desk/examples/desk/made_up.rs"]
mod made_up;

use desk::state::{AccessLevel, DeskState};
use desk::{Desk, Keys, serve};
use made_up::{INCIDENT, MadeUp, fleet};
use std::future::pending;
use std::process::Command;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

const KEY: &str = "anna-0123456789abcdef";

struct Served {
    url: String,
    _runtime: Runtime,
}

fn served(state: DeskState) -> Served {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let desk: Arc<dyn Desk> = Arc::new(MadeUp::new(state));
    let keys = Keys::parse(&format!("anna {KEY}")).unwrap();
    runtime.spawn(serve(listener, None, keys, desk, pending()));
    Served {
        url,
        _runtime: runtime,
    }
}

/// Exit code, what was printed and what was complained of.
fn top(url: &str, key: &str, more: &[&str]) -> (i32, String, String) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), format!("{key}\n")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_cofferdam"));
    command.args(["top", url, "--key-file"]).arg(file.path());
    let output = command.args(more).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let code = output.status.code().expect("no signal");
    (code, text(output.stdout), text(output.stderr))
}

#[test]
fn an_incident_stands_on_top_and_in_the_exit_code() {
    let mut state = fleet("incident").unwrap();
    // What a terminal would obey is shown, not obeyed.
    state.incidents[0].next[1] = "clear\u{1b}[2Jthe screen".into();
    let served = served(state);
    let (code, out, err) = top(&served.url, KEY, &["--once"]);
    assert_eq!((code, err.as_str()), (1, ""), "{out}");
    let lines: Vec<&str> = out.lines().collect();
    assert!(
        lines[0].starts_with("SmolLM2-135M-Instruct open · ready · prompts up to 1993"),
        "{out}"
    );
    let sentence = "CONTAINED  Pair prefill-0 → decode-1 is suspect: a canary of another tenant came back \
                    in an answer over the limit of 1,993 tokens; it is private, but decode-1 still serves \
                    1 other pair.";
    assert_eq!(lines[2], sentence);
    for part in [
        "  affected  155 requests of acme (150), globex (5) may have got text that was not theirs",
        "  press     make private: engine decode-1",
        "    1. Keep the processes running and copy what they hold",
        "    2. clear·[2Jthe screen",
        "  prefill-0 → decode-1  private  412 canaries sent, 1 finding",
        "    4 for 4", // seconds
        "CANARIES  9730 sent, 9655 answered: 1 finding",
        "  last day: a leak in more than one of 3218 answers would have been seen (95 %)",
        INCIDENT,
    ] {
        assert!(out.contains(part), "{part}:\n{out}");
    }
    let place = |words: &str| {
        lines
            .iter()
            .position(|it| it.starts_with(words))
            .expect(words)
    };
    let worst = place("  decode-1 ").max(place("  prefill-0 "));
    assert!(
        worst < place("  decode-0 "),
        "the worst stand first:\n{out}"
    );
    assert!(!out.contains('\u{1b}'), "{out:?}");
}

#[test]
fn a_quiet_fleet_of_two_hundred_is_good_and_short() {
    let mut state = fleet("large").unwrap();
    for engine in &mut state.engines {
        engine.readiness = None;
    }
    let served = served(state);
    let (code, out, err) = top(&served.url, KEY, &["--once"]);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    assert!(out.contains("ALL QUIET  Nothing is suspect"), "{out}");
    assert!(out.contains("9655 answered: nothing found"), "{out}");
    assert!(
        out.contains("FLEET     200 engines, 200 of them well"),
        "{out}"
    );
    assert!(out.contains("  and 160 more"), "{out}");
    assert!(out.lines().count() < 150, "{out}");
}

/// A row says who reaches it, not what its own door alone is; one that serves alone is no pair of itself.
#[test]
fn rows_say_who_reaches_them() {
    let mut state = fleet("healthy").unwrap();
    state.incidents[0].closed_ms = None;
    (state.incidents[0].affected, state.running.requests) = (None, 1);
    state.model.standing.access = AccessLevel::Private;
    let mut alone = state.engines[0].clone();
    alone.name = "alone-0".into();
    state.pairs[0].prefill = "alone-0".into();
    state.pairs[0].decode = "alone-0".into();
    state.engines = vec![alone];
    state.pairs.truncate(1);
    (state.pairs[0].canaries.sent, state.pairs[0].canaries.seen) = (1, 3);
    let canaries = state.canaries.as_mut().unwrap();
    (canaries.sent, canaries.answered) = (3, 0);
    canaries.windows[0].found = 2;
    let mut behind = state.engines[0].clone();
    behind.name = "http://decode-7.a-long-name.example:30000".into();
    state.engines.push(behind);
    state.incidents[0].title = "a check is violated: engine prefill-1".into();
    let served = served(state);
    let (_, out, _) = top(&served.url, KEY, &["--once"]);
    for line in [
        "PAIRS     1, 0 of them open",
        "  alone-0  private  1 canary sent, 3 findings",
        "FLEET     2 engines, 0 of them well",
        "  …-name.example:30000  private",
        "  last hour: 2 findings in 402 answers",
        "  inc-20261122-1107-02bc  a check is violated: engine prefill-1",
        "CANARIES  3 sent, 0 answered: nothing can be said yet",
        "IN FLIGHT 1 request, 2 waiting",
    ] {
        assert!(out.lines().any(|it| it.starts_with(line)), "{line}:\n{out}");
    }
    let row = out.lines().find(|it| it.starts_with("  alone-0 ")).unwrap();
    assert!(row.contains(" private "), "{row}");
    assert!(
        out.contains(", nobody has looked for those who are affected"),
        "{out}"
    );
    assert!(!out.contains("alone-0 →"), "{out}");
    assert!(out.contains(" announced prefill-0 → decode-0"), "{out}");
}

#[test]
fn what_cannot_be_shown_is_said() {
    let served = served(fleet("healthy").unwrap());
    let (code, out, err) = top(&served.url, "another-0123456789", &["--once"]);
    assert_eq!((code, out.as_str()), (3, ""));
    assert!(
        err.contains("refused with 401: it wants a key, or another one"),
        "{err}"
    );
    assert!(!err.contains("another-0123"), "{err}");
    let (code, _, err) = top("http://127.0.0.1:1", KEY, &["--once"]);
    assert_eq!(code, 3, "{err}");
    assert!(err.contains("127.0.0.1:1"), "{err}");
    let (code, _, err) = top(&served.url, KEY, &[]);
    assert_eq!(code, 2, "{err}");
    assert!(
        err.contains("this is no terminal: --once prints it as text"),
        "{err}"
    );
    let (code, _, err) = top(&served.url, "two words", &["--once"]);
    assert_eq!(code, 2, "{err}");
}
