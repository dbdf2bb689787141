//! Versions of engines, in the order in which they were released.

use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::fmt;

/// A version as the server words it, ordered as Python packages are: `0.5.23.dev1` <
/// `0.5.23rc1` < `0.5.23` < `0.5.23.post1`. What stands after `+` does not count.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Version {
    text: String,
    release: Vec<u64>,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Dev(u64),
    /// Letter and number: a < b < rc by their first letters.
    Pre(u8, u64),
    Final,
    Post(u64),
}

impl Version {
    /// Reads `0.5.23`, `v0.32.0+cpu`, `0.5.24rc1`, `0.9.2.dev140+gabc`, or llama.cpp's `b6423-abc`.
    /// `None` if there is no number to compare: an unknown version is never taken for a new one.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        if text.is_empty() || text.len() > 100 || text.chars().any(char::is_control) {
            return None;
        }
        let bare = text.split('+').next().unwrap_or(text);
        if let Some(build) = bare.strip_prefix('b') {
            let number: u64 = build.split('-').next()?.parse().ok()?;
            return (number > 0).then(|| Self::of(text, vec![number], Stage::Final));
        }
        let bare = bare.strip_prefix('v').unwrap_or(bare);
        let end = bare
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(bare.len());
        let numbers = bare[..end].trim_end_matches('.');
        let release: Option<Vec<u64>> = numbers.split('.').map(|it| it.parse().ok()).collect();
        let release = release.filter(|it| it.len() >= 2 && it.len() <= 6)?;
        Some(Self::of(text, release, stage(&bare[end..])?))
    }

    fn of(text: &str, mut release: Vec<u64>, stage: Stage) -> Self {
        while release.len() > 1 && release.last() == Some(&0) {
            release.pop();
        }
        Self {
            text: text.to_owned(),
            release,
            stage,
        }
    }

    /// The release with these numbers.
    pub fn of_release((major, minor, patch): (u64, u64, u64)) -> Self {
        let text = format!("{major}.{minor}.{patch}");
        Self::of(&text, vec![major, minor, patch], Stage::Final)
    }

    /// As the server worded it.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether it is a development version or a release candidate: it may lack what its number
    /// promises.
    pub fn is_early(&self) -> bool {
        self.stage < Stage::Final
    }
}

/// What follows the release numbers; `None` if it is none of the forms that we can order.
fn stage(rest: &str) -> Option<Stage> {
    let rest = rest.trim_start_matches(['.', '-', '_']);
    if rest.is_empty() {
        return Some(Stage::Final);
    }
    let end = rest
        .find(|c: char| !c.is_ascii_alphabetic())
        .unwrap_or(rest.len());
    let digits: String = rest[end..]
        .chars()
        .take_while(char::is_ascii_digit)
        .collect();
    let number = digits.parse().unwrap_or(0);
    if rest.contains("dev") {
        return Some(Stage::Dev(number));
    }
    match &rest[..end] {
        "a" | "alpha" => Some(Stage::Pre(b'a', number)),
        "b" | "beta" => Some(Stage::Pre(b'b', number)),
        "rc" | "c" => Some(Stage::Pre(b'r', number)),
        "post" => Some(Stage::Post(number)),
        _ => None,
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl PartialEq for Version {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Version {}
impl PartialOrd for Version {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Version {
    fn cmp(&self, other: &Self) -> Ordering {
        (&self.release, self.stage).cmp(&(&other.release, other.stage))
    }
}

impl TryFrom<String> for Version {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text).ok_or_else(|| format!("{text:?} is not a version"))
    }
}
impl From<Version> for String {
    fn from(version: Version) -> String {
        version.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_in_the_order_of_their_release() {
        let sorted = [
            "0.4.6",
            "0.4.6.post5",
            "0.4.10",
            "0.5.9",
            "0.5.20.dev3",
            "0.5.20rc1",
            "0.5.20rc2",
            "0.5.20",
            "0.5.20.post1",
            "0.5.23",
            "0.32.0",
            "1.0",
        ];
        let parsed: Vec<_> = sorted
            .iter()
            .map(|it| Version::parse(it).unwrap())
            .collect();
        assert!(
            parsed.windows(2).all(|pair| pair[0] < pair[1]),
            "{parsed:?}"
        );
    }

    #[test]
    fn local_parts_and_a_leading_v_do_not_count() {
        let one = Version::parse("v0.32.0+cpu").unwrap();
        assert_eq!(one, Version::parse("0.32").unwrap());
        assert_eq!(one.text(), "v0.32.0+cpu");
        assert!(Version::parse("0.9.2rc2.dev140+gabc").unwrap().is_early());
        assert!(Version::parse("b6423-9a1").unwrap() > Version::parse("b6400-0").unwrap());
    }

    #[test]
    fn what_cannot_be_ordered_is_no_version() {
        for text in [
            "",
            "unknown",
            "b0-unknown",
            "main",
            "5",
            "0.5.x",
            "0.5.23-hotfix",
            "0..1",
        ] {
            assert!(Version::parse(text).is_none(), "{text}");
        }
        assert!(Version::parse(&"1.".repeat(90)).is_none());
    }
}
