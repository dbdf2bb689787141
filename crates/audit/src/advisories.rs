//! The dated table of what is known about versions.

use crate::check::{self, Check};
use crate::date::Date;
use fleet::{Engine, Version};
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
    /// What is known.
    pub advisories: Vec<Advisory>,
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
    /// It needs a handoff between prefill and decode.
    pub only_handoff: bool,
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
    only: Option<Only>,
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
            only_handoff: self.only.is_some(),
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
