//! Known formats of logs. A format is data, in `presets/*.toml`: how a line is taken apart, by what it
//! is known, and where the figures stand in it.

mod parts;
mod pattern;
mod python;

use crate::fields::{Fields, LINE_MAX, Line};
use crate::value::{has, text};
use pattern::Pattern;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::LazyLock;

macro_rules! presets {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../presets/", $name, ".toml")))),*]
    };
}

/// Names and rules.
const FILES: &[(&str, &str)] = presets![
    "envoy",
    "litellm",
    "nginx",
    "otlp",
    "sglang",
    "sglang-router",
    "sglang-times",
    "smg",
    "vllm",
];

static PRESETS: LazyLock<Vec<Preset>> = LazyLock::new(|| {
    let read = |(name, file): &(&'static str, &str)| {
        let mut it: Preset = toml::from_str(file).expect("a test reads every preset");
        it.name = name;
        it
    };
    FILES.iter().map(read).collect()
});

/// A known format.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Preset {
    /// How it is asked for.
    #[serde(skip)]
    pub name: &'static str,
    /// What writes it.
    pub about: String,
    /// What no line of this format says, and what to use instead.
    #[serde(default)]
    pub lacks: Option<String>,
    /// A line that has none of these is something else that the program logs. Without marks every
    /// line has to be understood.
    #[serde(default)]
    marks: Vec<String>,
    rules: Vec<Rule>,
}

/// One kind of line; the first that fits counts.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    /// Without one the line is a JSON object.
    line: Option<Pattern>,
    /// Whether other logs have such lines too, so that they do not say which format this is.
    #[serde(default)]
    common: bool,
    /// Lists on the way to what the requests are: a line may have many.
    #[serde(default)]
    each: Vec<String>,
    /// Values that stand there; of an empty list, any.
    #[serde(default)]
    has: BTreeMap<String, Vec<String>>,
    /// What the line says without saying it.
    #[serde(default)]
    set: BTreeMap<String, String>,
    /// Without them the line is known, and no request.
    fields: Option<Fields>,
}

impl Preset {
    /// All of them, by name.
    pub fn all() -> &'static [Preset] {
        &PRESETS
    }

    /// The one of this name.
    pub fn named(name: &str) -> Option<&'static Preset> {
        Self::all().iter().find(|it| it.name == name)
    }

    /// Those that a line speaks for.
    pub fn of_line(line: &str) -> impl Iterator<Item = &'static Preset> {
        let line = pattern::without_colours(line);
        Self::all().iter().filter(move |preset| {
            let rules = preset.rules.iter().filter(|it| !it.common);
            let mut said = rules.filter_map(|rule| rule.take(&line));
            line.len() <= LINE_MAX && said.next().is_some_and(|it| !it.is_empty())
        })
    }

    /// Reads a line, which may be about several requests.
    pub fn lines(&self, line: &str) -> Vec<Line> {
        if line.trim().is_empty() {
            return vec![Line::Other];
        }
        if line.len() > LINE_MAX {
            return vec![Line::Bad(format!("longer than {LINE_MAX} bytes"))];
        }
        let line = pattern::without_colours(line);
        let marked = self.marks.is_empty() || self.marks.iter().any(|it| line.contains(it));
        let taken = self
            .rules
            .iter()
            .find_map(|rule| Some((rule.take(&line)?, rule.fields.as_ref())));
        match taken {
            Some((_, None)) => vec![Line::Other],
            Some((values, Some(fields))) => values.iter().map(|it| fields.value(it)).collect(),
            None if marked => vec![Line::Bad(format!(
                "no kind of line that the preset {} knows",
                self.name
            ))],
            None => vec![Line::Unmarked],
        }
    }
}

impl Rule {
    /// What the requests of the line are; none if it is another kind of line.
    fn take(&self, line: &str) -> Option<Vec<Value>> {
        let mut value = match &self.line {
            Some(pattern) => pattern.take(line)?,
            None => serde_json::from_str(line).ok().filter(Value::is_object)?,
        };
        for (name, is) in &self.set {
            value[name] = is.as_str().into();
        }
        let is = |(path, allowed): (&String, &Vec<String>)| match allowed.is_empty() {
            true => has(&value, path),
            false => text(&value, path).is_some_and(|it| allowed.contains(&it)),
        };
        self.has
            .iter()
            .all(is)
            .then(|| parts::each(value, &self.each))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_can_be_read_and_says_what_it_is() {
        assert_eq!(Preset::all().len(), FILES.len());
        for it in Preset::all() {
            assert!(!it.about.is_empty(), "{}", it.name);
            assert!(
                it.rules.iter().any(|rule| rule.fields.is_some()),
                "{}",
                it.name
            );
            assert!(it.rules.iter().any(|rule| !rule.common), "{}", it.name);
        }
        assert!(Preset::named("nobody").is_none());
    }
}
