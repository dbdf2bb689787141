//! Help under headings: `-h` fits a screen, `--help` has everything.
//!
//! clap lists flags as they are declared, each with all that can be said about it. Here a command is
//! arranged for display only; what is parsed is clap's own.

mod flags;

use clap::{Arg, ArgAction, Command, CommandFactory};
use flags::{Group, groups};
use std::ffi::OsString;

/// Where flags stand that no group names.
const FURTHER: &str = "Further";
/// Columns of the text of a flag in `--help`: of 100, those that are left behind clap's margin.
const TEXT_COLUMNS: usize = 90;

/// Prints the help that these words ask for, if it is arranged here.
pub(crate) fn print(words: &[OsString]) -> bool {
    let short = words.iter().any(|word| word == "-h");
    let names = words.iter().skip(1).filter_map(|word| word.to_str());
    let Some(mut command) = shown(crate::args::Cli::command(), names, short) else {
        return false;
    };
    let printed = match short {
        true => command.print_help(),
        false => command.print_long_help(),
    };
    printed.is_ok()
}

/// The subcommand that these words name, arranged.
fn shown<'a>(
    program: Command,
    words: impl Iterator<Item = &'a str>,
    short: bool,
) -> Option<Command> {
    let mut words = words;
    let command = words.find_map(|word| program.find_subcommand(word))?;
    let groups = groups(command.get_name())?;
    Some(arranged(command, groups, short))
}

fn arranged(command: &Command, groups: &[Group], short: bool) -> Command {
    let name = command.get_name().to_owned();
    let mut shown = Command::new("cofferdam")
        .bin_name(format!("cofferdam {name}"))
        .disable_help_flag(true);
    if let Some(about) = command.get_about() {
        shown = shown.about(about.clone());
    }
    shown = shown.args(command.get_positionals().cloned());
    let (mut listed, mut hidden) = (Vec::new(), 0);
    for (heading, flags) in groups {
        for (long, text) in *flags {
            let Some(flag) = named(command, long) else {
                continue; // of the engine, and this command was built without it
            };
            listed.push(*long);
            let flag = flag
                .clone()
                .help_heading(*heading)
                .display_order(listed.len());
            hidden += usize::from(short && text.is_empty());
            shown = shown.arg(match (short, *text) {
                (true, "") => flag.hide(true),
                (true, text) => in_short(flag, text),
                (false, _) => in_long(flag),
            });
        }
    }
    let is_left = |flag: &&Arg| flag.get_long().is_some_and(|it| !listed.contains(&it));
    for flag in flags_of(command).filter(is_left) {
        hidden += usize::from(short && !flag.is_hide_set());
        let hide = short || flag.is_hide_set();
        let flag = flag.clone().help_heading(FURTHER).hide(hide);
        shown = shown.arg(in_long(flag));
    }
    let last = groups.last().map_or(FURTHER, |(heading, _)| *heading);
    let help = Arg::new("help")
        .short('h')
        .long("help")
        .action(ArgAction::Help);
    let help = help.help("This screen; --help has everything");
    shown = shown.arg(help.help_heading(last).display_order(usize::MAX));
    match (short, hidden) {
        (false, _) => shown.after_long_help(crate::exit::Exit::HELP),
        (true, 0) => shown,
        (true, n) => shown.after_help(format!("{n} flags more: cofferdam {name} --help")),
    }
}

fn flags_of(command: &Command) -> impl Iterator<Item = &Arg> {
    command.get_arguments().filter(|it| !it.is_positional())
}

fn named<'a>(command: &'a Command, long: &str) -> Option<&'a Arg> {
    flags_of(command).find(|it| it.get_long() == Some(long))
}

fn in_short(flag: Arg, text: &'static str) -> Arg {
    let flag = flag.help(text).hide_env(true);
    if !flag.get_action().takes_values() {
        return flag;
    }
    let is_choice = flag.get_num_args().is_some_and(|it| it.min_values() == 0);
    let flag = flag.hide_possible_values(true);
    match is_choice {
        true => flag.value_name("BOOL").hide_default_value(true),
        false => flag,
    }
}

/// The same, its text in lines that fit: clap breaks none without one more crate.
fn in_long(flag: Arg) -> Arg {
    let Some(text) = flag.get_long_help().or(flag.get_help()) else {
        return flag;
    };
    let mut lines = vec![String::new()];
    for word in text.to_string().split(' ') {
        let last = lines.last_mut().expect("there is one");
        if !last.is_empty() && last.chars().count() + 1 + word.chars().count() > TEXT_COLUMNS {
            lines.push(word.to_owned());
        } else {
            *last += if last.is_empty() { "" } else { " " };
            *last += word;
        }
    }
    flag.long_help(lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: usize = 40;
    const COLUMNS: usize = 100;

    fn program() -> Command {
        crate::args::Cli::command()
    }

    fn text(name: &str, short: bool) -> String {
        let words = std::iter::once(name);
        let mut command = shown(program(), words, short).unwrap_or_else(|| {
            let command = program();
            command.find_subcommand(name).unwrap().clone()
        });
        match short {
            true => command.render_help().to_string(),
            false => command.render_long_help().to_string(),
        }
    }

    #[test]
    fn every_commands_help_fits_a_screen() {
        for command in program().get_subcommands() {
            for short in [true, false] {
                let text = text(command.get_name(), short);
                let lines: Vec<&str> = text.lines().collect();
                let few = lines.len() <= LINES || !short;
                assert!(few, "{} lines:\n{text}", lines.len());
                let wide = lines.iter().find(|it| it.chars().count() > COLUMNS);
                assert!(wide.is_none(), "{wide:?}");
                let twice = lines.iter().find(|it| it.matches("[default: ").count() > 1);
                assert!(twice.is_none(), "{twice:?}");
            }
        }
    }

    #[test]
    fn long_help_has_every_flag_and_its_variable() {
        for command in program().get_subcommands() {
            let text = text(command.get_name(), false);
            for flag in flags_of(command).filter(|it| !it.is_hide_set()) {
                let long = format!("--{}", flag.get_long().unwrap());
                assert!(text.contains(&long), "{}: {long}", command.get_name());
                if let Some(variable) = flag.get_env() {
                    let variable = format!("[env: {}", variable.to_str().unwrap());
                    assert!(
                        text.contains(&variable),
                        "{}: {variable}",
                        command.get_name()
                    );
                }
            }
        }
    }

    #[test]
    fn groups_name_flags_that_there_are_once() {
        for command in program().get_subcommands() {
            let Some(groups) = groups(command.get_name()) else {
                let count = flags_of(command).count();
                assert!(
                    count <= 8,
                    "{}: {count} flags and no headings",
                    command.get_name()
                );
                continue;
            };
            let names = groups.iter().flat_map(|(_, flags)| *flags);
            let mut names: Vec<_> = names.map(|(long, _)| *long).collect();
            for long in &names {
                assert!(
                    named(command, long).is_some(),
                    "{} --{long}",
                    command.get_name()
                );
            }
            let count = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(count, names.len(), "{}: twice", command.get_name());
        }
    }
}
