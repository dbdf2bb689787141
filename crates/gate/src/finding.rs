//! What a check found: an answer, in numbers, with where the numbers stand.

use crate::check::Check;
use crate::facts::{Figure, FigureSource, Unknown};
use serde_json::Value;
use std::fmt;

/// The three answers. Order: the worst is the largest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Answer {
    /// Proven by what was read.
    Holds,
    /// What would prove it is missing, contradictory or absurd.
    Unknown,
    /// What was read contradicts it.
    Violated,
}

impl Answer {
    /// `holds`, `unknown`, `violated`.
    pub fn word(self) -> &'static str {
        match self {
            Answer::Holds => "holds",
            Answer::Unknown => "unknown",
            Answer::Violated => "violated",
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

/// What a finding is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// The whole run.
    Fleet,
    /// Nodes that may hand to each other.
    Group(String),
    /// One node.
    Node(String),
    /// A `[[pool]]` of the fleet file.
    Pool(String),
}

impl Subject {
    /// `fleet`, `group`, `node`, `pool`.
    pub fn kind(&self) -> &'static str {
        match self {
            Subject::Fleet => "fleet",
            Subject::Group(_) => "group",
            Subject::Node(_) => "node",
            Subject::Pool(_) => "pool",
        }
    }

    /// What the operator calls it.
    pub fn name(&self) -> &str {
        match self {
            Subject::Fleet => "fleet",
            Subject::Group(name) | Subject::Node(name) | Subject::Pool(name) => name,
        }
    }
}

/// One figure that an answer rests on.
#[derive(Clone, Debug, PartialEq)]
pub struct Evidence {
    /// `pool of dp 0`, `context`.
    pub what: String,
    /// The figure, or why there is none.
    pub value: Result<Value, String>,
    /// Where it stands, for people and for machines.
    pub source: Option<FigureSource>,
}

impl Evidence {
    /// What a fact says. `fact.as_deref()` turns a measured fact into one.
    pub fn of<T: Clone + Into<Value>>(
        what: impl Into<String>,
        fact: Result<&Figure<T>, &Unknown>,
    ) -> Self {
        Self {
            what: what.into(),
            value: fact
                .map(|it| it.value.clone().into())
                .map_err(ToString::to_string),
            source: fact.ok().map(|it| it.source.clone()),
        }
    }

    /// A figure that somebody gave to the gate.
    pub fn given(what: impl Into<String>, value: impl Into<Value>) -> Self {
        Self {
            what: what.into(),
            value: Ok(value.into()),
            source: None,
        }
    }

    /// A figure that is missing.
    pub fn missing(what: impl Into<String>, why: impl fmt::Display) -> Self {
        Self {
            what: what.into(),
            value: Err(why.to_string()),
            source: None,
        }
    }
}

/// The answer of one check about one subject.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// The question.
    pub check: &'static Check,
    /// Whom it was put to.
    pub subject: Subject,
    /// The advisory of the table that it rests on.
    pub advisory: Option<String>,
    /// The answer.
    pub answer: Answer,
    /// One or two lines with the numbers side by side.
    pub says: String,
    /// What to change here, where that is more than the check's own advice.
    pub change: Option<String>,
    /// Where to read more, where that is another place than the check's own.
    pub link: Option<String>,
    /// What it rests on.
    pub evidence: Vec<Evidence>,
    /// The operator's reason for accepting it.
    pub allowed: Option<String>,
}

impl Finding {
    /// A finding without further details.
    pub fn new(check: &'static Check, subject: Subject, answer: Answer, says: String) -> Self {
        Self {
            check,
            subject,
            advisory: None,
            answer,
            says,
            change: None,
            link: None,
            evidence: Vec::new(),
            allowed: None,
        }
    }

    /// The same, resting on these figures.
    pub fn with(mut self, evidence: impl IntoIterator<Item = Evidence>) -> Self {
        self.evidence.extend(evidence);
        self
    }

    /// The same, with what to change.
    pub fn change(mut self, change: impl Into<String>) -> Self {
        self.change = Some(change.into());
        self
    }

    /// What to do about it.
    pub fn what_to_do(&self) -> &str {
        self.change.as_deref().unwrap_or(self.check.what_to_do)
    }

    /// Where to read more.
    pub fn reference(&self) -> &str {
        self.link.as_deref().unwrap_or(self.check.link)
    }
}

/// A number as people read it: 1,048,576.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `part` in percent of `whole`, to the nearest; what is not all of it is never 100 %.
pub fn percent(part: u64, whole: u64) -> u64 {
    let whole_or_one = u128::from(whole.max(1));
    let nearest = (u128::from(part) * 200 + whole_or_one) / (2 * whole_or_one);
    let nearest = nearest.min(u128::from(u64::MAX)) as u64;
    if part < whole {
        nearest.min(99)
    } else {
        nearest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_by_thousands() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(681_280), "681,280");
        assert_eq!(grouped(u64::MAX), "18,446,744,073,709,551,615");
    }

    #[test]
    fn what_is_not_all_is_not_100_percent() {
        assert_eq!(percent(681_280, 1_048_576), 65);
        assert_eq!(percent(9_999, 10_000), 99);
        assert_eq!(percent(10_000, 10_000), 100);
        assert_eq!(percent(1, 0), 100);
        assert_eq!(percent(u64::MAX, 1), u64::MAX);
    }
}
