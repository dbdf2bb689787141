//! All findings of one run, ordered, with what was accepted, and the verdict.

use crate::check::{self, Level};
use crate::date::Date;
use crate::finding::{Answer, Finding};
use crate::judge::{Headroom, Rules, Subjects, judge};
use std::fmt;
use std::str::FromStr;

/// What the whole run says. The exit code is part of the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// 0: every check that must hold does.
    Holds,
    /// 1: something is violated.
    Violated,
    /// 3: nothing is violated, and something is unknown or unreachable.
    Unknown,
}

impl Verdict {
    /// The exit code.
    pub fn exit_code(self) -> u8 {
        match self {
            Verdict::Holds => 0,
            Verdict::Violated => 1,
            Verdict::Unknown => 3,
        }
    }

    /// `holds`, `violated`, `unknown`.
    pub fn word(self) -> &'static str {
        match self {
            Verdict::Holds => "holds",
            Verdict::Violated => "violated",
            Verdict::Unknown => "unknown",
        }
    }
}

/// `ID=reason`, or `ID@SUBJECT=reason` for one node, group, pool or advisory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allow {
    /// Of the check.
    pub id: String,
    /// Only for this one.
    pub subject: Option<String>,
    /// Why it is accepted: printed with the finding.
    pub reason: String,
}

impl Allow {
    /// Checks the parts.
    ///
    /// # Errors
    /// The check does not exist, or no reason is given.
    pub fn new(what: &str, reason: &str) -> Result<Allow, String> {
        let (id, subject) = match what.split_once('@') {
            Some((id, subject)) => (id, Some(subject.to_owned())),
            None => (what, None),
        };
        if check::find(id).is_none() {
            return Err(format!(
                "no check is called {id:?}; `gate --list` names all"
            ));
        }
        if reason.trim().is_empty() {
            return Err(format!("{id} is allowed without a reason: {id}=REASON"));
        }
        Ok(Allow {
            id: id.to_owned(),
            subject,
            reason: reason.trim().to_owned(),
        })
    }

    fn covers(&self, finding: &Finding) -> bool {
        let named = |subject: &String| {
            finding.subject.name() == subject || finding.advisory.as_ref() == Some(subject)
        };
        finding.check.id == self.id && self.subject.as_ref().is_none_or(named)
    }
}

impl FromStr for Allow {
    type Err = String;

    fn from_str(text: &str) -> Result<Allow, String> {
        let (what, reason) = text.split_once('=').unwrap_or((text, ""));
        Allow::new(what, reason)
    }
}

impl fmt::Display for Allow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self
            .subject
            .as_ref()
            .map(|it| format!("@{it}"))
            .unwrap_or_default();
        write!(f, "{}{at}={}", self.id, self.reason)
    }
}

/// Everything that is printed.
#[derive(Clone, Debug)]
pub struct Report {
    /// When, in seconds since 1970.
    pub at: u64,
    /// Whether advisory checks must hold too.
    pub strict: bool,
    /// What pools were compared with.
    pub headroom: Headroom,
    /// `--context`.
    pub context: Option<u64>,
    /// Date of the table of advisories.
    pub table_date: Date,
    /// Nodes, groups and pools.
    pub subjects: Subjects,
    /// The worst first.
    pub findings: Vec<Finding>,
    /// `--allow` entries that covered nothing: misspelt, or no longer needed.
    pub unused: Vec<Allow>,
}

impl Report {
    /// Judges, and orders what was found.
    pub fn new(
        subjects: Subjects,
        rules: &Rules<'_>,
        allow: &[Allow],
        strict: bool,
        at: u64,
    ) -> Report {
        let mut findings = judge(&subjects, rules);
        let mut used = vec![false; allow.len()];
        for finding in findings.iter_mut().filter(|it| it.answer != Answer::Holds) {
            for (entry, used) in allow.iter().zip(&mut used) {
                if entry.covers(finding) {
                    *used = true;
                    finding.allowed.get_or_insert_with(|| entry.reason.clone());
                }
            }
        }
        findings.sort_by_cached_key(|it| {
            let severity = std::cmp::Reverse((it.allowed.is_none(), it.answer, it.check.level));
            let place = check::CHECKS.iter().position(|check| *check == it.check);
            (severity, place, it.subject.clone(), it.advisory.clone())
        });
        let unused = allow.iter().zip(used).filter(|(_, used)| !used);
        Report {
            at,
            strict,
            headroom: rules.headroom,
            context: rules.context,
            table_date: rules.table.date,
            unused: unused.map(|(entry, _)| entry.clone()).collect(),
            subjects,
            findings,
        }
    }

    /// Whether this finding decides against the fleet.
    pub fn fails(&self, finding: &Finding) -> bool {
        finding.answer != Answer::Holds
            && finding.allowed.is_none()
            && (self.strict || finding.check.level == Level::Required)
    }

    /// The whole answer. Nothing asked is nothing proven.
    pub fn verdict(&self) -> Verdict {
        let failing = self.findings.iter().filter(|it| self.fails(it));
        match failing.map(|it| it.answer).max() {
            Some(Answer::Violated) => Verdict::Violated,
            Some(_) => Verdict::Unknown,
            None if self.findings.is_empty() => Verdict::Unknown,
            None => Verdict::Holds,
        }
    }
}
