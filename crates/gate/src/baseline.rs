//! The accepted state, and what has changed since.

use crate::check::UNCHANGED;
use crate::date::rfc3339;
use crate::facts::{Fact, Figure};
use crate::finding::{Answer, Evidence, Finding, Subject, grouped};
use crate::judge::{Member, Subjects};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// Of the file.
const SCHEMA: &str = "cofferdam-gate-baseline/1";

/// Figures by node and name, as they were when somebody accepted them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Baseline {
    schema: String,
    saved: String,
    nodes: BTreeMap<String, BTreeMap<String, Value>>,
}

/// Why a baseline cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BaselineError {
    /// It is no JSON of this form.
    #[error("is no baseline ({0}): make one with --save FILE")]
    Form(#[from] serde_json::Error),
    /// It is one of another version.
    #[error("has schema {found:?}, not {SCHEMA:?}: make a new one with --save FILE")]
    Schema {
        /// What stands there.
        found: String,
    },
}

impl Baseline {
    /// What is known now. `seconds` since 1970.
    pub fn of(subjects: &Subjects, seconds: u64) -> Baseline {
        let of = |member: &Member| (member.node.name.clone(), figures(member));
        Baseline {
            schema: SCHEMA.to_owned(),
            saved: rfc3339(seconds),
            nodes: subjects.members.iter().map(of).collect(),
        }
    }

    /// Takes up nodes and figures that were not known before; what is known stays as it is.
    pub fn learn(&mut self, subjects: &Subjects) {
        for member in &subjects.members {
            let known = self.nodes.entry(member.node.name.clone()).or_default();
            for (what, value) in figures(member) {
                known.entry(what).or_insert(value);
            }
        }
    }

    /// Reads one that was saved.
    ///
    /// # Errors
    /// It is not one.
    pub fn parse(text: &str) -> Result<Baseline, BaselineError> {
        let baseline: Baseline = serde_json::from_str(text)?;
        match baseline.schema == SCHEMA {
            true => Ok(baseline),
            false => Err(BaselineError::Schema {
                found: baseline.schema,
            }),
        }
    }

    /// As it is saved.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("texts and numbers") + "\n"
    }

    /// One finding for each node that is or was there.
    pub(crate) fn compare(&self, subjects: &Subjects) -> Vec<Finding> {
        let mut findings = Vec::new();
        let new = |name: &str, answer, says| {
            let subject = Subject::Node(name.to_owned());
            Finding::new(&UNCHANGED, subject, answer, says)
                .with([Evidence::given("baseline", self.saved.clone())])
        };
        for member in &subjects.members {
            let name = &member.node.name;
            let Some(before) = self.nodes.get(name) else {
                let says = format!("was not there on {}", self.saved);
                findings.push(new(name, Answer::Violated, says));
                continue;
            };
            let (answer, says) = changes(before, &figures(member));
            findings.push(new(name, answer, says));
        }
        let is_there = |name: &String| subjects.members.iter().any(|it| it.node.name == *name);
        for name in self.nodes.keys().filter(|name| !is_there(name)) {
            findings.push(new(
                name,
                Answer::Violated,
                format!("was there on {}", self.saved),
            ));
        }
        findings
    }
}

fn changes(before: &BTreeMap<String, Value>, now: &BTreeMap<String, Value>) -> (Answer, String) {
    let (mut changed, mut lost) = (Vec::new(), Vec::new());
    for (what, was) in before {
        match now.get(what) {
            Some(is) if is == was => {}
            Some(is) => changed.push(change(what, was, is)),
            None => lost.push(format!("{what} was {}, is not known", shown(was))),
        }
    }
    for (what, is) in now.iter().filter(|(what, _)| !before.contains_key(*what)) {
        changed.push(format!("{what} was not known, is {}", shown(is)));
    }
    match (changed.is_empty(), lost.is_empty()) {
        (true, true) => (
            Answer::Holds,
            format!("all {} figures are as they were", now.len()),
        ),
        (true, false) => (Answer::Unknown, lost.join("; ")),
        (false, _) => {
            changed.extend(lost);
            (Answer::Violated, changed.join("; "))
        }
    }
}

/// `pool of dp 0: 8,000 -> 7,040 (-12 %)`.
fn change(what: &str, was: &Value, is: &Value) -> String {
    let moved = match (was.as_u64(), is.as_u64()) {
        (Some(was), Some(is)) if was > 0 => {
            let percent = (is as f64 - was as f64) / was as f64 * 100.0;
            if percent.abs() < 1.0 {
                format!(" ({percent:+.2} %)")
            } else {
                format!(" ({percent:+.0} %)")
            }
        }
        _ => String::new(),
    };
    format!("{what}: {} -> {}{moved}", shown(was), shown(is))
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.as_u64().map_or(number.to_string(), grouped),
        other => other.to_string(),
    }
}

/// Every figure that is known, by name.
fn figures(member: &Member) -> BTreeMap<String, Value> {
    let node = &member.node;
    let mut known = Known(BTreeMap::new());
    known.text("engine", &node.engine, |it| it.name().to_owned());
    known.text("version", &node.version, |it| it.text().to_owned());
    known.text("role", &node.role, ToString::to_string);
    for rank in node.ranks.iter().flatten() {
        known.value(&format!("pool of {}", rank.name), rank.pool.as_deref().ok());
    }
    known.value("page size", node.page_size.as_ref().ok());
    known.value("context", node.context.as_deref().ok());
    known.value("advertised length", node.advertised.as_deref().ok());
    known.value("largest prompt", node.max_prompt.as_deref().ok());
    known.value("cuts prompts", node.truncates.as_ref().ok());
    known.value("transfer backend", node.backend.as_ref().ok());
    known.value("KV checksum", node.checksum.as_ref().ok());
    known.text("guard", &node.guard, |it| it.text().to_owned());
    known.value("deferred release", node.deferred_release.as_ref().ok());
    known.value("pages of a transfer call", node.batch_bound.as_ref().ok());
    known.value("KV dtype", node.kv_dtype.as_ref().ok());
    known.value("KV layout", node.layout.as_ref().ok());
    known.value("tensor parallelism", node.parallelism.tensor.as_ref().ok());
    known.value(
        "pipeline parallelism",
        node.parallelism.pipeline.as_ref().ok(),
    );
    known.value("data parallelism", node.parallelism.data.as_ref().ok());
    known.value(
        "context parallelism",
        node.parallelism.context.as_ref().ok(),
    );
    known.value("requests at once", node.max_running.as_ref().ok());
    known.value("model", node.model.as_ref().ok());
    known.value("tokenizer", node.tokenizer.as_ref().ok());
    known.value("weights", node.weights.as_ref().ok());
    known.value("model dtype", node.model_dtype.as_ref().ok());
    known.value("chat template", node.template.as_ref().ok());
    for aside in node.asides.iter().flatten() {
        let tokens = aside.tokens.map_or(Value::from("there"), Value::from);
        known.0.insert(aside.what.clone(), tokens);
    }
    known.0
}

struct Known(BTreeMap<String, Value>);

impl Known {
    fn value<T: Clone + Into<Value>>(&mut self, what: &str, figure: Option<&Figure<T>>) {
        if let Some(figure) = figure {
            self.0.insert(what.to_owned(), figure.value.clone().into());
        }
    }

    fn text<T>(&mut self, what: &str, fact: &Fact<Figure<T>>, say: impl Fn(&T) -> String) {
        if let Ok(figure) = fact {
            self.0.insert(what.to_owned(), say(&figure.value).into());
        }
    }
}
