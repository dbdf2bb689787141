//! The dated table of what is known about versions.

use crate::check::{self, Check};
use crate::date::Date;
use crate::facts::{Engine, Version};
use serde::Deserialize;
use std::collections::BTreeMap;

/// The table that ships with this version.
const EMBEDDED: &str = include_str!("advisories.toml");

/// Checks that entries of the table may answer to.
pub const CHECKS_OF_TABLE: [&Check; 6] = [
    &check::NO_STALE_PAGES,
    &check::DOOR_CHECK,
    &check::MINIMUM_VERSION,
    &check::LENGTH_COMPARED,
    &check::KNOWN_ADVISORIES,
    &check::CONDITIONAL_ADVISORIES,
];

/// A whole table.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// When it was last compared with releases and issues.
    pub date: Date,
    /// After so many days it is old.
    pub good_for_days: u32,
    /// The newest version of each engine that was looked at.
    pub seen_through: BTreeMap<Engine, Version>,
    /// The newest release of each engine that is known to be out, and when that was so.
    pub newest: BTreeMap<Engine, Newest>,
    /// Versions of each engine in which cofferdam-guard was run; whether it fits others it finds out at
    /// their start.
    pub guard_runs: BTreeMap<Engine, Vec<Version>>,
    /// The first version of each engine that refuses to start with a pool below its context, apart
    /// from engines that always did.
    pub refuses_from: BTreeMap<Engine, Version>,
    /// What is known.
    pub advisories: Vec<Advisory>,
}

/// What an engine's makers have released.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "RawNewest")]
pub struct Newest {
    /// The version.
    pub version: Version,
    /// The day on which it was the newest.
    pub on: Date,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawNewest {
    version: Version,
    on: toml::value::Datetime,
}

impl TryFrom<RawNewest> for Newest {
    type Error = String;

    fn try_from(raw: RawNewest) -> Result<Newest, String> {
        Ok(Newest {
            version: raw.version,
            on: raw.on.to_string().parse()?,
        })
    }
}

/// One entry.
#[derive(Clone, Debug, PartialEq)]
pub struct Advisory {
    /// Stable; can be named in `--allow CHECK@ID=REASON`.
    pub id: String,
    /// The check that it answers.
    pub check: &'static Check,
    /// The engine that has the fault.
    pub engine: Engine,
    /// The first version that has it; none: all before the fix.
    pub since: Option<Version>,
    /// The first version that has it no more; none: no version that was looked at.
    pub fixed: Option<Version>,
    /// The oldest version that was looked at, where older ones may have it or not.
    pub seen_from: Option<Version>,
    /// It needs a handoff between prefill and decode.
    pub only_handoff: bool,
    /// cofferdam-guard refuses what it leads to.
    pub guarded: bool,
    /// It needs something that no endpoint reports.
    pub condition: Option<String>,
    /// What happens, in a short sentence.
    pub gist: String,
    /// What to do.
    pub todo: String,
    /// Where to read more.
    pub link: String,
}

/// Why a table cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// It is no TOML of this form.
    #[error("advisories: {0}")]
    Form(String),
    /// An entry says something that cannot be.
    #[error("advisory {id}: {why}")]
    Entry {
        /// Of the entry.
        id: String,
        /// What is wrong.
        why: String,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    date: toml::value::Datetime,
    good_for_days: u32,
    seen_through: BTreeMap<Engine, Version>,
    #[serde(default)]
    refuses_pool_below_context: BTreeMap<Engine, Version>,
    #[serde(default)]
    newest: BTreeMap<Engine, Newest>,
    #[serde(default)]
    guard_runs: BTreeMap<Engine, Vec<Version>>,
    #[serde(default)]
    advisory: Vec<RawEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawEntry {
    id: String,
    check: String,
    engine: Engine,
    since: Option<Version>,
    fixed: Option<Version>,
    seen_from: Option<Version>,
    only: Option<Only>,
    #[serde(default)]
    guarded: bool,
    condition: Option<String>,
    gist: String,
    todo: String,
    link: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Only {
    Handoff,
}

impl Table {
    /// Whether this engine, in this version, refuses to start with a pool below its context; 1.0 is
    /// then headroom enough.
    pub fn refuses_pool_below_context(&self, engine: Engine, version: Option<&Version>) -> bool {
        let first = self.refuses_from.get(&engine);
        let since = version.zip(first).is_some_and(|(is, first)| is >= first);
        engine.refuses_pool_below_context() || since
    }

    /// Whether the guard was run in this version of this engine.
    pub fn guard_was_run(&self, engine: Engine, version: &Version) -> bool {
        let runs = self.guard_runs.get(&engine);
        runs.is_some_and(|it| it.contains(version))
    }

    /// The one that ships with this version.
    pub fn embedded() -> Table {
        Table::parse(EMBEDDED).expect("a test reads the embedded table")
    }

    /// Reads a table.
    ///
    /// # Errors
    /// It names unknown checks, engines or fields, or says nothing about when it was made.
    pub fn parse(text: &str) -> Result<Table, TableError> {
        let raw: Raw = toml::from_str(text).map_err(|error| TableError::Form(error.to_string()))?;
        let date = raw.date.to_string().parse().map_err(TableError::Form)?;
        let mut advisories: Vec<Advisory> = Vec::new();
        for entry in raw.advisory {
            let entry = entry.checked()?;
            if advisories.iter().any(|it| it.id == entry.id) {
                let why = "stands there twice".to_owned();
                return Err(TableError::Entry { id: entry.id, why });
            }
            advisories.push(entry);
        }
        Ok(Table {
            date,
            good_for_days: raw.good_for_days,
            seen_through: raw.seen_through,
            newest: raw.newest,
            refuses_from: raw.refuses_pool_below_context,
            guard_runs: raw.guard_runs,
            advisories,
        })
    }
}

impl RawEntry {
    fn checked(self) -> Result<Advisory, TableError> {
        let wrong = |why: String| TableError::Entry {
            id: self.id.clone(),
            why,
        };
        let check = CHECKS_OF_TABLE.iter().find(|check| check.id == self.check);
        let check = *check.ok_or_else(|| {
            let known = CHECKS_OF_TABLE.map(|check| check.id).join(", ");
            wrong(format!("check {:?} is none of {known}", self.check))
        })?;
        let conditional = *check == check::CONDITIONAL_ADVISORIES;
        if conditional != self.condition.is_some() {
            let id = check::CONDITIONAL_ADVISORIES.id;
            return Err(wrong(format!(
                "`condition` belongs to check {id}, and to no other"
            )));
        }
        if !self.link.starts_with("https://") {
            return Err(wrong("`link` is no https address".to_owned()));
        }
        Ok(Advisory {
            check,
            engine: self.engine,
            since: self.since,
            fixed: self.fixed,
            seen_from: self.seen_from,
            only_handoff: self.only.is_some(),
            guarded: self.guarded,
            condition: self.condition,
            gist: self.gist,
            todo: self.todo,
            link: self.link,
            id: self.id,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_embedded_table_has_what_the_recommendations_name() {
        let table = Table::embedded();
        for check in CHECKS_OF_TABLE {
            let any = table.advisories.iter().any(|it| it.check == check);
            assert!(any, "{} has no entry", check.id);
        }
        assert_eq!(table.seen_through[&Engine::Sglang].text(), "0.5.23");
        for (engine, newest) in &table.newest {
            let seen = &table.seen_through[engine];
            assert!(
                *seen >= newest.version,
                "{engine}: {} was not looked at",
                newest.version
            );
            assert!(newest.on <= table.date);
        }
    }

    /// What the guard itself says that it was run in.
    #[test]
    fn the_guard_was_run_where_it_says() {
        let guard = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../guards/python/cofferdam_guard");
        let table = Table::embedded();
        for (engine, file) in [
            (Engine::Sglang, "sglang/plugin.py"),
            (Engine::Vllm, "vllm/surface.py"),
        ] {
            let text = std::fs::read_to_string(guard.join(file)).unwrap();
            let line = text.lines().find(|it| it.starts_with("TRIED = "));
            let tried = line.unwrap().split('"').skip(1).step_by(2);
            let tried: Vec<_> = tried.map(|it| Version::parse(it).unwrap()).collect();
            assert_eq!(table.guard_runs[&engine], tried, "{file}");
        }
    }

    /// Who follows an advice must not end where the next one sends them away again.
    #[test]
    fn advice_names_versions_on_which_the_guard_runs_and_that_lack_no_fix() {
        let table = Table::embedded();
        let runs = &table.guard_runs[&Engine::Sglang];
        let texts = table
            .advisories
            .iter()
            .filter(|it| it.engine == Engine::Sglang);
        let texts = texts.map(|it| it.todo.clone());
        let checks = check::CHECKS.iter().map(|it| it.what_to_do.to_owned());
        let mut advised = 0;
        for text in texts.chain(checks) {
            let lower = text.to_lowercase();
            let mut words = lower.split_whitespace();
            while let Some(word) = words.next() {
                if word != "upgrade" && word != "run" {
                    continue;
                }
                let next: Vec<_> = words.clone().take(4).collect();
                let version = next.iter().find_map(|it| {
                    let it = it.trim_end_matches([',', ';', '.', ':']);
                    it.starts_with("0.5.").then(|| Version::parse(it)).flatten()
                });
                let Some(version) = version else { continue };
                advised += 1;
                assert!(
                    runs.contains(&version),
                    "the guard does not run on it: {text}"
                );
                let lacks = table.advisories.iter().filter_map(|it| {
                    let is_it = it.engine == Engine::Sglang;
                    it.fixed.as_ref().filter(|fixed| is_it && **fixed > version)
                });
                assert_eq!(lacks.count(), 0, "{text}");
            }
        }
        assert!(advised >= 6, "{advised}");
    }

    #[test]
    fn tables_that_say_what_cannot_be_are_refused_by_name() {
        let with = |entry: &str| {
            let head = "date = 2026-01-01\ngood_for_days = 9\n[seen_through]\n";
            let rest = "gist = 'g'\ntodo = 't'\nlink = 'https://x'\n";
            let text = format!("{head}[[advisory]]\nid = 'a'\n{entry}\n{rest}");
            Table::parse(&text).unwrap_err().to_string()
        };
        let no_check = with("check = 'nope'\nengine = 'vllm'");
        assert!(
            no_check.contains("\"nope\" is none of no-stale-pages"),
            "{no_check}"
        );
        let condition = with("check = 'known-advisories'\nengine = 'vllm'\ncondition = 'c'");
        assert!(condition.contains("`condition` belongs to"), "{condition}");
        assert!(with("check = 'door-check'\nengine = 'tensorrt'").contains("`tensorrt`"));
        assert!(with("check = 'door-check'\nengine = 'vllm'\nfixd = '1.0'").contains("`fixd`"));
    }
}
