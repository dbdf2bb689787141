//! Flags over variables over the configuration file over defaults.
//!
//! clap orders the first, second and fourth. The file becomes the third by being typed: its values
//! stand before the words as the flags that they are, but for those that a word or a variable sets. So
//! there is one list of names, types, ranges and aliases, and one rule of what needs what.

use crate::args::Cli;
use crate::exit::Failure;
use anyhow::{Context, anyhow, bail, ensure};
use clap::builder::Resettable;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, CommandFactory, Id, Parser};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// Bytes of a configuration file that are read.
const CONFIG_BYTES_MAX: u64 = 1 << 20;

/// What was meant by these words (the first is the program's name).
///
/// # Errors
/// A file that cannot be read or has a name or value that no flag has. Wrong *words* are clap's
/// own error, inside: it also stands for `--help` and `--version`.
pub fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Cli, Wrong> {
    let words: Vec<OsString> = words.into_iter().collect();
    let typed = without_needs(Cli::command()).try_get_matches_from(&words)?;
    let Some((name, flags, file)) = named_file(&typed) else {
        return Ok(Cli::try_parse_from(words)?);
    };
    let in_file = || format!("configuration file {}", file.display());
    let lines = lines(Cli::command(), name, flags, file).with_context(in_file);
    let lines = lines.map_err(Failure::usage)?;
    let rest = words.iter().skip(1);
    let before = 1 + rest.take_while(|word| *word != name).count();
    let mut all = words.clone();
    all.splice(before + 1..before + 1, lines);
    Cli::try_parse_from(all).map_err(|error| {
        // The words are right but for what they may need beside them: all else stands in the file.
        let needs = error.kind() == ErrorKind::MissingRequiredArgument;
        if needs && Cli::try_parse_from(words).is_err() {
            return Wrong::Words(error);
        }
        let error = anyhow!("{}", error.render()).context(in_file());
        Failure::usage(error).into()
    })
}

/// The same flags, without what one needs beside it: the file may have that.
fn without_needs(program: Command) -> Command {
    program
        .mut_subcommands(|command| command.mut_args(|flag| flag.requires(Resettable::<Id>::Reset)))
}

/// Why there is nothing to run.
#[derive(Debug)]
pub enum Wrong {
    /// The words are wrong, or ask for help.
    Words(clap::Error),
    /// The file is wrong.
    File(Failure),
}

impl From<clap::Error> for Wrong {
    fn from(error: clap::Error) -> Wrong {
        Wrong::Words(error)
    }
}

impl From<Failure> for Wrong {
    fn from(failure: Failure) -> Wrong {
        Wrong::File(failure)
    }
}

fn named_file(matches: &ArgMatches) -> Option<(&str, &ArgMatches, &Path)> {
    let (name, matches) = matches.subcommand()?;
    let file = matches.try_get_one::<PathBuf>("config").ok()??;
    Some((name, matches, file))
}

/// The file as words for the subcommand `name`, without what words or variables set already (`typed`).
fn lines(
    program: Command,
    name: &str,
    typed: &ArgMatches,
    file: &Path,
) -> anyhow::Result<Vec<OsString>> {
    let size = std::fs::metadata(file).context("cannot be read")?.len();
    ensure!(
        size <= CONFIG_BYTES_MAX,
        "is {size} bytes; at most {CONFIG_BYTES_MAX} are read"
    );
    let text = std::fs::read_to_string(file).context("cannot be read")?;
    let table: Table = text.parse()?;
    let flags = program.find_subcommand(name).context("no such command")?;
    let mut seen = BTreeSet::new();
    let mut words = Vec::new();
    for (key, value) in table {
        let line = line_of(&text, &key);
        let flag = flags.get_arguments().find(|flag| is_named(flag, &key));
        let flag = flag.filter(|flag| flag.get_long() != Some("config"));
        let Some(flag) = flag else {
            bail!("{line}{name} has no flag --{key}{}", meant(flags, &key))
        };
        if !seen.insert(flag.get_id()) {
            bail!("{line}{key}: another name of this flag is set too");
        }
        let texts = texts(&key, value).map_err(|error| anyhow!("{line}{error}"))?;
        let source = typed.value_source(flag.get_id().as_str());
        if matches!(source, None | Some(ValueSource::DefaultValue)) {
            let texts = texts.iter();
            words.extend(texts.map(|text| OsString::from(format!("--{key}={text}"))));
        }
    }
    Ok(words)
}

/// `line N: `, or nothing where it cannot be told.
fn line_of(text: &str, key: &str) -> String {
    let table = toml::de::DeTable::parse(text).ok();
    let at = table.as_ref().and_then(|table| {
        let mut keys = table.get_ref().iter().map(|(known, _)| known);
        let known = keys.find(|known| known.get_ref() == key)?;
        Some(known.span().start)
    });
    at.map_or(String::new(), |at| {
        let line = 1 + text[..at].matches('\n').count();
        format!("line {line}: ")
    })
}

/// The flag that a name which no flag has may have been meant for.
fn meant(flags: &Command, key: &str) -> String {
    /// Below it a name is another word, not a misspelt one.
    const ALIKE: f64 = 0.85;
    let key = key.replace('_', "-").to_lowercase();
    let names = flags.get_arguments().filter_map(Arg::get_long);
    let names = names.filter(|name| *name != "config");
    let alike = names.map(|name| (strsim::jaro_winkler(&key, name), name));
    let best = alike.max_by(|(a, _), (b, _)| a.total_cmp(b));
    best.filter(|(alike, _)| *alike >= ALIKE)
        .map_or(String::new(), |(_, name)| format!("; did you mean {name}?"))
}

fn is_named(flag: &Arg, name: &str) -> bool {
    let alias = |aliases: Option<Vec<&str>>| aliases.is_some_and(|all| all.contains(&name));
    flag.get_long() == Some(name) || alias(flag.get_all_aliases())
}

/// What would be typed for a value of the file.
fn texts(key: &str, value: Value) -> anyhow::Result<Vec<String>> {
    let one = |value: Value| match value {
        Value::String(text) => Ok(text),
        Value::Integer(number) => Ok(number.to_string()),
        Value::Float(number) => Ok(number.to_string()),
        Value::Boolean(choice) => Ok(choice.to_string()),
        other => bail!(
            "{key} has a {} in it, which no flag takes",
            other.type_str()
        ),
    };
    match value {
        Value::Array(values) => values.into_iter().map(one).collect(),
        value => Ok(vec![one(value)?]),
    }
}

/// Variables that start with `COFFERDAM_` and belong to no flag: probably misspelt, so worth a
/// warning. Not an error, because an orchestrator that runs a service named cofferdam may set
/// variables such as `COFFERDAM_SERVICE_HOST` by itself.
pub fn unknown_variables(names: impl IntoIterator<Item = String>) -> Vec<String> {
    let mut known = BTreeSet::new();
    collect_variables(&Cli::command(), &mut known);
    let ours = names
        .into_iter()
        .filter(|name| name.starts_with("COFFERDAM_"));
    ours.filter(|name| !known.contains(name)).collect()
}

fn collect_variables(command: &Command, known: &mut BTreeSet<String>) {
    let names = command
        .get_arguments()
        .filter_map(|argument| argument.get_env());
    known.extend(names.map(|name| name.to_string_lossy().into_owned()));
    command
        .get_subcommands()
        .for_each(|c| collect_variables(c, known));
}

#[cfg(feature = "engine")]
/// A setting that has no default and must come from somewhere.
pub(crate) fn required<T>(name: &str, value: Option<T>) -> Result<T, Failure> {
    value.ok_or_else(|| {
        Failure::usage(anyhow!(
            "--{name} is missing: it may be a flag, a variable or in --config"
        ))
    })
}

#[cfg(all(test, feature = "engine"))]
#[path = "config_tests.rs"]
mod tests;
