//! `docs/gate.md` says what the command does: its tables are written by this test, its command lines
//! and its fleet file are read by the command's own parsers.

use clap::{CommandFactory, Parser};
use cofferdam::args::Cli;
use gate::config::FleetFile;
use std::fmt::Write;
use std::path::PathBuf;

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/gate.md")
}

/// A table of all flags, from their definitions.
fn flags() -> String {
    let cli = Cli::command();
    let gate = cli.find_subcommand("gate").unwrap();
    let mut text = String::from("| flag | what |\n|---|---|\n");
    for flag in gate
        .get_arguments()
        .filter(|it| it.get_long() != Some("help"))
    {
        let value = match flag.get_action().takes_values() {
            true => flag.get_value_names().unwrap()[0].as_str(),
            false => "",
        };
        let name = format!("--{} {value}", flag.get_long().unwrap());
        let help = flag
            .get_help()
            .unwrap()
            .to_string()
            .replace('\n', " ")
            .replace('|', "\\|");
        let default: Vec<_> = flag
            .get_default_values()
            .iter()
            .map(|it| it.to_string_lossy())
            .collect();
        let default = match flag.get_action().takes_values() && !default.is_empty() {
            true => format!(" [default: {}]", default.join(", ")),
            false => String::new(),
        };
        let choices: Vec<_> = flag.get_possible_values();
        let choices: Vec<_> = choices.iter().map(|it| it.get_name()).collect();
        let choices = match choices.is_empty() || !flag.get_action().takes_values() {
            true => String::new(),
            false => format!(": {}", choices.join(", ")),
        };
        let env = flag
            .get_env()
            .map(|it| format!(" (or `{}`)", it.to_string_lossy()));
        let env = env.unwrap_or_default();
        let name = name.trim_end();
        writeln!(text, "| `{name}` | {help}{choices}{default}{env} |").unwrap();
    }
    text
}

/// The page with what stands between the marks of `name` replaced.
fn with(page: &str, name: &str, table: &str) -> String {
    let (begin, end) = (format!("<!-- {name}: "), format!("<!-- end of {name} -->"));
    let at = page.find(&begin).unwrap();
    let start = at + page[at..].find('\n').unwrap() + 1;
    let stop = page.find(&end).unwrap();
    format!("{}{table}{}", &page[..start], &page[stop..])
}

#[test]
fn the_tables_are_those_of_the_code() {
    let page = std::fs::read_to_string(path()).unwrap();
    let kept = with(&page, "checks", &gate::output::markdown());
    let kept = with(&kept, "flags", &flags());
    if std::env::var_os("GATE_DOCS_UPDATE").is_some() {
        std::fs::write(path(), &kept).unwrap();
        return;
    }
    let old = "docs/gate.md is old: GATE_DOCS_UPDATE=1 cargo test -p cofferdam --test gate docs";
    assert!(page == kept, "{old}");
}

/// Words of a line as a shell would have them, as far as this page needs it.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quoted = false;
    for c in line.chars() {
        match c {
            '"' => quoted = !quoted,
            ' ' if !quoted => words.push(String::new()),
            c => words.last_mut().unwrap().push(c),
        }
    }
    words.retain(|it| !it.is_empty());
    words
}

#[test]
fn command_lines_and_fleet_file_of_the_page_are_accepted() {
    let page = std::fs::read_to_string(path()).unwrap();
    let mut lines = 0;
    for line in page.lines().filter(|it| !it.starts_with('#')) {
        if let Some(at) = line.find("cofferdam gate --") {
            let words = words(line[at..].trim_end_matches('`'));
            Cli::try_parse_from(&words).unwrap_or_else(|error| panic!("{line}: {error}"));
            lines += 1;
        }
        if let Some((_, list)) = line.split_once("command: [") {
            let words: Vec<_> = list.trim_end_matches(']').split(", ").collect();
            Cli::try_parse_from(&words).unwrap_or_else(|error| panic!("{line}: {error}"));
            lines += 1;
        }
    }
    assert!(lines >= 6, "{lines}");
    let (_, toml) = page.split_once("```toml\n").unwrap();
    let (toml, _) = toml.split_once("```").unwrap();
    let file = FleetFile::parse(toml).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(
        (file.node.len(), file.group.len(), file.pool.len()),
        (2, 1, 1)
    );
}
