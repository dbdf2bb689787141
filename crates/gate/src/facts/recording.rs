//! Recorded servers, for tests: what a server answered, in a folder, and what becomes of it when a
//! field is missing, renamed, of another type or halved.

use crate::facts::answers::{ServerAnswers, read};
use crate::facts::{FigureSource, Node, read_log};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::Path;

/// Where recordings claim to come from.
pub const BASE: &str = "http://recorded";

/// The answers of one server by path, or its log under `server.log`.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    /// `/server_info` and so on, or `server.log`.
    pub answers: BTreeMap<String, Vec<u8>>,
}

/// What is done to a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    /// It is not there.
    Delete,
    /// It has another name.
    Rename,
    /// A number becomes a text, a text a number.
    OtherType,
    /// A number becomes half of itself (of 1: 0), a switch the other way.
    Halve,
}

/// All of them.
pub const CHANGES: [Change; 4] = [
    Change::Delete,
    Change::Rename,
    Change::OtherType,
    Change::Halve,
];

/// A recording with one field changed.
#[derive(Clone, Debug)]
pub struct Mutation {
    /// Which field.
    pub field: FigureSource,
    /// What was done to it.
    pub change: Change,
    /// What is left.
    pub recording: Recording,
}

impl Recording {
    /// Reads a folder with one file an endpoint: slashes of the path are underscores, the first is
    /// left out (`v1_models`, `server_info`); `server.log` is a log.
    ///
    /// # Panics
    /// The folder cannot be read.
    pub fn load(folder: &Path) -> Self {
        let mut answers = BTreeMap::new();
        let entries = std::fs::read_dir(folder);
        for entry in entries.unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
            let file = entry.expect("a folder can be listed").path();
            let name = file
                .file_name()
                .expect("a file has a name")
                .to_string_lossy();
            let path = match &*name {
                "server.log" => "server.log".to_owned(),
                "v1_models" => "/v1/models".to_owned(),
                "v1_loads" => "/v1/loads".to_owned(),
                name => format!("/{name}"),
            };
            answers.insert(path, std::fs::read(&file).expect("a recording can be read"));
        }
        Self { answers }
    }

    /// Without the log, and without the endpoints named.
    pub fn only_answers(mut self, without: &[&str]) -> Self {
        self.answers
            .retain(|path, _| path.starts_with('/') && !without.contains(&path.as_str()));
        self
    }

    /// The log alone.
    pub fn only_log(mut self) -> Self {
        self.answers.retain(|path, _| path == "server.log");
        self
    }

    /// Changes JSON of one endpoint.
    ///
    /// # Panics
    /// There is no such endpoint, or it is not JSON.
    pub fn edit(&mut self, path: &str, edit: impl FnOnce(&mut Value)) {
        let body = self.answers.get_mut(path).expect("recorded");
        let mut value = serde_json::from_slice(body).expect("JSON");
        edit(&mut value);
        *body = serde_json::to_vec(&value).expect("values are JSON");
    }

    /// Replaces text in one endpoint or log, which must be there.
    ///
    /// # Panics
    /// It is not.
    pub fn replace(&mut self, path: &str, old: &str, new: &str) {
        let body = self.answers.get_mut(path).expect("recorded");
        let text = String::from_utf8_lossy(body);
        assert!(text.contains(old), "{path} has no {old:?}");
        *body = text.replace(old, new).into_bytes();
    }

    /// What the server says about itself: from its endpoints, or from its log if that is all.
    pub fn nodes(&self) -> Vec<Node> {
        let mut answers = ServerAnswers::new(BASE, false);
        let endpoints = self
            .answers
            .iter()
            .filter(|(path, _)| path.starts_with('/'));
        endpoints.for_each(|(path, body)| answers.insert(path, Ok(body.clone())));
        let log = self.answers.get("server.log");
        match log.filter(|_| answers.paths().next().is_none()) {
            Some(log) => vec![read_log("server.log", log.as_slice())],
            None => read("recorded", &answers),
        }
    }

    /// Every change to every field that a figure of this recording came from.
    pub fn mutations(&self) -> Vec<Mutation> {
        let nodes = serde_json::to_value(self.nodes()).expect("nodes are JSON");
        let mut fields = Vec::new();
        sources(&nodes, &mut fields);
        fields.sort();
        fields.dedup();
        let mut mutations = Vec::new();
        for field in fields {
            for change in CHANGES {
                let mut recording = self.clone();
                if recording.change(&field, change) {
                    let field = field.clone();
                    mutations.push(Mutation {
                        field,
                        change,
                        recording,
                    });
                }
            }
        }
        mutations
    }

    /// Changes one field; whether that made a difference.
    pub fn change(&mut self, field: &FigureSource, change: Change) -> bool {
        let before = self.answers.clone();
        match field {
            FigureSource::Field { url, field } => {
                let path = url.strip_prefix(BASE).unwrap_or_default();
                match self.answers.get_mut(path) {
                    None => {}
                    Some(body) if path == "/metrics" => in_metrics(body, field, change),
                    Some(body) => {
                        let mut value: Value = serde_json::from_slice(body).expect("JSON");
                        in_json(&mut value, field, change);
                        *body = serde_json::to_vec(&value).expect("values are JSON");
                        if before
                            .get(path)
                            .map(|it| serde_json::from_slice::<Value>(it).ok())
                            == Some(Some(value))
                        {
                            return false;
                        }
                    }
                }
            }
            FigureSource::Line { line, field, .. } => {
                let body = self
                    .answers
                    .get_mut("server.log")
                    .expect("a line has its log");
                in_log(body, *line as usize, field, change);
            }
            FigureSource::Derived { .. } => {}
        }
        self.answers != before
    }
}

/// All places in a serialised description.
fn sources(value: &Value, found: &mut Vec<FigureSource>) {
    if let Ok(source) = serde_json::from_value::<FigureSource>(value.clone())
        && !matches!(source, FigureSource::Derived { .. })
    {
        found.push(source);
        return;
    }
    match value {
        Value::Array(list) => list.iter().for_each(|it| sources(it, found)),
        Value::Object(map) => map.values().for_each(|it| sources(it, found)),
        _ => {}
    }
}

fn in_json(root: &mut Value, field: &str, change: Change) {
    let (parent, key) = field.rsplit_once('.').unwrap_or(("", field));
    let key = key.split('[').next().unwrap_or(key);
    let pointer: String = parent
        .replace('[', ".")
        .replace(']', "")
        .split('.')
        .filter(|it| !it.is_empty())
        .map(|it| format!("/{it}"))
        .collect();
    let Some(object) = root.pointer_mut(&pointer).and_then(Value::as_object_mut) else {
        return;
    };
    change_key(object, key, change);
}

fn change_key(object: &mut Map<String, Value>, key: &str, change: Change) {
    let Some(value) = object.get(key).cloned() else {
        return;
    };
    let changed = match (change, &value) {
        (Change::Delete, _) => None,
        (Change::Rename, _) => {
            object.insert(format!("{key}_renamed"), value);
            None
        }
        (Change::OtherType, Value::String(_)) => Some(Value::from(7)),
        (Change::OtherType, Value::Object(_)) => Some(Value::from("an object")),
        (Change::OtherType, other) => Some(Value::from(other.to_string())),
        (Change::Halve, Value::Number(n)) => Some(match n.as_u64() {
            Some(n) => Value::from(n / 2),
            None => Value::from(n.as_f64().unwrap_or(0.0) / 2.0),
        }),
        (Change::Halve, Value::Bool(on)) => Some(Value::from(!on)),
        (Change::Halve, _) => return,
    };
    match changed {
        Some(changed) => object.insert(key.to_owned(), changed),
        None => object.remove(key),
    };
}

/// `name{label="value"}` means the value of such samples, with ` label` behind it a label of them.
fn in_metrics(body: &mut Vec<u8>, field: &str, change: Change) {
    let (sample, label) = match field.rsplit_once(' ') {
        Some((sample, label)) => (sample, Some(label)),
        None => (field, None),
    };
    let (name, labels) = sample.split_once('{').unwrap_or((sample, "}"));
    let labels: Vec<_> = labels.trim_end_matches('}').split(',').collect();
    let text = String::from_utf8_lossy(body).into_owned();
    let mut lines = Vec::new();
    for line in text.lines() {
        let rest = line
            .strip_prefix(name)
            .filter(|it| it.starts_with(['{', ' ']));
        let is_it = rest.is_some_and(|rest| labels.iter().all(|it| rest.contains(it)));
        let changed = match (is_it, label) {
            (false, _) => Some(line.to_owned()),
            (true, None) => changed_sample(line, change),
            (true, Some(label)) => changed_label(line, label, change),
        };
        lines.extend(changed);
    }
    lines.push(String::new());
    *body = lines.join("\n").into_bytes();
}

fn changed_sample(line: &str, change: Change) -> Option<String> {
    let (head, value) = line.rsplit_once(' ')?;
    match change {
        Change::Delete => None,
        Change::Rename => Some(format!("renamed_{line}")),
        Change::OtherType => Some(format!("{head} \"{value}\"")),
        Change::Halve => {
            let value: f64 = value.parse().ok()?;
            Some(format!("{head} {}", value / 2.0))
        }
    }
}

fn changed_label(line: &str, label: &str, change: Change) -> Option<String> {
    let key = format!("{label}=\"");
    let starts = line.match_indices(&key).map(|(at, _)| at);
    let mut starts = starts.filter(|at| matches!(line.as_bytes()[at - 1], b',' | b'{'));
    let Some(start) = starts.next() else {
        return Some(line.to_owned());
    };
    let value_at = start + key.len();
    let end = value_at + line[value_at..].find('"')?;
    let value = &line[value_at..end];
    let (before, after) = (&line[..start], &line[end..]);
    Some(match change {
        Change::Delete => format!("{before}{}", after[1..].trim_start_matches(',')),
        Change::Rename => format!("{before}renamed_{key}{value}{after}"),
        Change::OtherType if value.parse::<f64>().is_ok() => {
            format!("{before}{key}x{value}{after}")
        }
        Change::OtherType => format!("{before}{key}7{after}"),
        Change::Halve => match value.parse::<u64>() {
            Ok(n) => format!("{before}{key}{}{after}", n / 2),
            Err(_) => line.to_owned(),
        },
    })
}

/// Line `number` (from 1); the field is the text right before the value, or a literal's key.
fn in_log(body: &mut Vec<u8>, number: usize, field: &str, change: Change) {
    let text = String::from_utf8_lossy(body).into_owned();
    let mut lines: Vec<_> = text.split('\n').map(str::to_owned).collect();
    let Some(line) = lines.get_mut(number - 1) else {
        return;
    };
    let keys = [
        format!("'{field}': "),
        format!("{field}="),
        field.to_owned(),
    ];
    let key = keys.into_iter().find(|key| line.contains(key.as_str()));
    let Some(key) = key else { return };
    let start = line.find(&key).unwrap_or(0) + key.len();
    let rest = &line[start..];
    let length = rest
        .find(|c: char| !c.is_ascii_digit() && c != ',')
        .unwrap_or(rest.len());
    let digits = rest[..length].trim_end_matches(',').to_owned();
    let number = digits.replace(',', "").parse::<u64>();
    match (change, number) {
        (Change::Delete, _) => line.clear(),
        (Change::Rename, _) => *line = line.replacen(field, "something else ", 1),
        (Change::OtherType, Ok(_)) => line.insert(start, 'x'),
        (Change::Halve, Ok(n)) => {
            line.replace_range(start..start + digits.len(), &(n / 2).to_string());
        }
        _ => {}
    }
    *body = lines.join("\n").into_bytes();
}
