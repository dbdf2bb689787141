//! What README.md and docs/tour.md show of the command is what the command says. Each block below a
//! mark `<!-- transcript: NAME -->` is run, and compared without ids and times; `docs/transcripts`
//! writes the blocks anew.

#[path = "../gate/fake.rs"]
mod fake;
mod mask;
mod page;

use fake::{Fake, recording};
use page::Page;
use rustix::process::Signal;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use testkit::process::{Running, send};

/// The program under test.
const COFFERDAM: &str = env!("CARGO_BIN_EXE_cofferdam");
/// The address that pages show.
const SHOWN: &str = "127.0.0.1:8080";

const PAGES: [&str; 2] = ["README.md", "docs/tour.md"];

/// The page that has this block.
fn page(name: &str) -> Page {
    let pages = PAGES.map(Page::open).into_iter();
    let mut with = pages.filter(|page| page.has(name));
    let found = with
        .next()
        .unwrap_or_else(|| panic!("no page shows {name}"));
    assert!(with.next().is_none(), "{name} is on two pages");
    found
}

/// What a shell says to a command that a page shows; both outputs. `real` stands for what is shown.
fn shell(typed: &str, place: &Path, real: &[(&str, &str)]) -> String {
    let mut command = typed.to_owned();
    for (shown, real) in real {
        command = command.replace(shown, real);
    }
    let bin = place.join("bin");
    std::fs::create_dir_all(&bin).unwrap();
    let _ = std::os::unix::fs::symlink(COFFERDAM, bin.join("cofferdam"));
    let path = std::env::var("PATH").unwrap_or_default();
    let mut shell = Command::new("bash");
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("COFFERDAM_")) {
        shell.env_remove(name);
    }
    shell.env("PATH", format!("{}:{path}", bin.display()));
    shell
        .env("COFFERDAM_MODEL", testkit::weights::path())
        .env("COFFERDAM_PORT", "0");
    shell.env("XDG_RUNTIME_DIR", place).current_dir(place);
    let output = shell
        .args(["-c", &format!("{{ {command}\n}} 2>&1")])
        .output()
        .unwrap();
    let mut said = String::from_utf8(output.stdout).unwrap();
    for (shown, real) in real {
        said = said.replace(real, shown);
    }
    said
}

/// A log as the gateway writes it: 4,000 requests, of which every 40th was over the pool, and was
/// answered like one of a single token.
fn log() -> String {
    let mut log = String::new();
    for n in 0..4_000_u64 {
        let healthy = 32 << (n % 7);
        let jitter = 1.0 + (n % 11) as f64 / 50.0;
        let (tokens, seconds) = match n % 40 {
            30 => (3_500 + n % 500, 0.052),
            _ => (healthy, (0.02 + 0.001 * healthy as f64) * jitter),
        };
        let _ = writeln!(
            log,
            "{{\"time_unix_s\":{}.0,\"request\":\"req-{n}\",\"tenant\":\"team-{}\",\"status\":200,\
             \"prompt_tokens\":{tokens},\"cached_tokens\":0,\"ttft_ms\":{}}}",
            1_800_000_000 + n,
            n % 3,
            seconds * 1e3
        );
    }
    log
}

/// One server on the real weights, as somebody meets it who follows the page.
#[test]
fn the_tour() {
    let place = tempfile::tempdir().unwrap();
    let started = page("serve").transcript("serve");
    let words: Vec<&str> = started.commands[0].typed.split_whitespace().collect();
    let running = Running::start_with(COFFERDAM, &words[1..], |command| {
        command.env("COFFERDAM_MODEL", testkit::weights::path());
        command
            .env("COFFERDAM_PORT", "0")
            .env("COFFERDAM_DRAIN_SECONDS", "1");
    });
    let api = running.api();
    let shown = |line: &str| line.replace(&api.addr, SHOWN) + "\n";
    let first = |begin: &str| {
        let begins = |line: &str| line.starts_with(begin).then(|| shown(line));
        running.line_from(0, begin, begins)
    };
    page("serve").compare("serve", &[first("ready:") + &first("try:")]);

    let real = [(SHOWN, api.addr.as_str())];
    let run = |name: &str| {
        let commands = page(name).transcript(name).commands;
        let said = commands
            .iter()
            .map(|it| shell(&it.typed, place.path(), &real));
        page(name).compare(name, &said.collect::<Vec<_>>());
    };
    run("chat");
    let is_chat = |line: &str| {
        let is = line.contains("anonymous") && line.contains(" tok ");
        is.then(|| shown(line))
    };
    page("access").compare("access", &[running.line_from(0, "an access line", is_chat)]);
    run("too-long");

    let from = running.lines().len();
    send(running.part("decode"), Signal::KILL);
    let says =
        |what: &str| running.line_from(from, what, |line| line.contains(what).then(|| shown(line)));
    let lines = says("restart in") + &says("pool allocated") + &says("is ready again");
    page("killed").compare("killed", &[lines]);
    let ended = running.stop();
    assert!(ended.left.is_empty(), "{ended:?}");
    run("too-small");
}

#[test]
fn a_fleet_that_is_not_safe() {
    let place = tempfile::tempdir().unwrap();
    let prefill = Fake::recorded(&recording("sglang-0.5.19-asym-prefill"));
    let decode = Fake::recorded(&recording("sglang-0.5.19-asym-decode"));
    let real = [
        ("http://127.0.0.1:31100", prefill.url.as_str()),
        ("http://127.0.0.1:31200", decode.url.as_str()),
    ];
    let page = page("gate");
    let said = page.transcript("gate").commands;
    let said = said.iter().map(|it| shell(&it.typed, place.path(), &real));
    page.compare("gate", &said.collect::<Vec<_>>());
}

#[test]
fn answers_that_came_too_soon() {
    let place = tempfile::tempdir().unwrap();
    std::fs::write(place.path().join("access.jsonl"), log()).unwrap();
    let page = page("watch");
    let said = page.transcript("watch").commands;
    let said = said.iter().map(|it| shell(&it.typed, place.path(), &[]));
    page.compare("watch", &said.collect::<Vec<_>>());
}

/// A block that nobody runs would grow old unseen.
#[test]
fn every_console_block_is_marked() {
    for page in PAGES {
        let text = Page::open(page).text();
        let lines: Vec<&str> = text.lines().collect();
        let blocks = lines.iter().enumerate();
        for (n, _) in blocks.filter(|(_, line)| **line == "```console") {
            let mark = lines[n - 1];
            let marked = ["<!-- transcript: ", "<!-- by hand: "];
            let is_marked = marked.iter().any(|it| mark.starts_with(it));
            assert!(is_marked, "{page}:{}: no mark above", n + 1);
        }
    }
}
