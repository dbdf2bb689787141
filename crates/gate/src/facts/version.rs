//! Versions of engines, in the order in which they were released.

use crate::facts::figure::{Fact, Figure};
use crate::facts::json::absurd;
use pep440_rs::Version as Package;
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

/// A version as the server words it, ordered as Python packages are (PEP 440): `0.5.23.dev1` <
/// `0.5.23rc1` < `0.5.23` < `0.5.23.post1.dev2` < `0.5.23.post1`. What stands after `+` does not
/// count.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Version {
    text: String,
    order: Order,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Order {
    /// llama.cpp's `b6423-abc`.
    Build(u64),
    /// Without its local part.
    Package(Package),
}

/// No engine has so high a first number: `99.0.0` and `9999.0.0.dev0` are what builds without
/// tags are given so that no installer replaces them.
const FIRST_MAX: u64 = 98;

/// Why a text is no version that can be judged by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoVersion {
    /// There is nothing in it that could be ordered.
    NoOrder,
    /// What a build gets that did not see the tags of its repository: it says nothing about how
    /// old the software is.
    Placeholder,
}

impl fmt::Display for NoVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NoVersion::NoOrder => "not a version",
            NoVersion::Placeholder => {
                "a placeholder of a build that did not see its repository's tags: neither old nor \
                 new"
            }
        })
    }
}

impl Version {
    /// Reads `0.5.23`, `v0.32.0+cpu`, `0.5.24rc1`, `0.9.2.dev140+gabc`, or llama.cpp's `b6423-abc`.
    /// `None` where [`Version::read`] has none.
    pub fn parse(text: &str) -> Option<Self> {
        Self::read(text).ok()
    }

    /// The same, with the reason.
    ///
    /// # Errors
    /// There is no number to compare, or it is a placeholder: an unknown version is taken neither
    /// for a new one nor for an old one.
    pub fn read(text: &str) -> Result<Self, NoVersion> {
        let text = text.trim();
        if text.is_empty() || text.len() > 100 || text.chars().any(char::is_control) {
            return Err(NoVersion::NoOrder);
        }
        let text_of = |order| Self {
            text: text.to_owned(),
            order,
        };
        if let Some(build) = text.strip_prefix('b') {
            let number = build.split('-').next().and_then(|it| it.parse().ok());
            return match number {
                None | Some(0) => Err(NoVersion::NoOrder),
                // The number counts commits: a shallow clone has one.
                Some(1) => Err(NoVersion::Placeholder),
                Some(number) => Ok(text_of(Order::Build(number))),
            };
        }
        let package = Package::from_str(text).map_err(|_| NoVersion::NoOrder)?;
        if is_placeholder(&package) {
            return Err(NoVersion::Placeholder);
        }
        let numbers = package.release().len();
        if package.epoch() != 0 || !(2..=6).contains(&numbers) {
            return Err(NoVersion::NoOrder);
        }
        Ok(text_of(Order::Package(package.without_local())))
    }

    /// The release with these numbers.
    pub fn of_release((major, minor, patch): (u64, u64, u64)) -> Self {
        Self {
            text: format!("{major}.{minor}.{patch}"),
            order: Order::Package(Package::new([major, minor, patch])),
        }
    }

    /// As the server worded it.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether it is a development version or a release candidate of `release`, or so many commits
    /// after the one before: it stands before it, and may have or lack whatever that release
    /// brought.
    pub fn is_on_the_way_to(&self, release: &Version) -> bool {
        let (Order::Package(it), Order::Package(release)) = (&self.order, &release.order) else {
            return false;
        };
        let after = it.is_post() && it.is_dev() && follows(it.release(), release.release());
        let of_it = it.any_prerelease() && it.only_release() == release.only_release();
        (of_it || after) && it < release
    }

    /// Whether it was released, and is no build on the way.
    pub fn is_release(&self) -> bool {
        match &self.order {
            Order::Build(_) => true,
            Order::Package(it) => !it.any_prerelease(),
        }
    }

    /// One name for the several that a version has. Of a build that was not released, the commit
    /// counts.
    pub fn name(&self) -> String {
        match Package::from_str(&self.text) {
            Ok(it) if it.is_dev() => it.to_string(),
            Ok(it) => it.without_local().to_string(),
            Err(_) => self.text.clone(),
        }
    }
}

/// Whether the numbers of a release are the next after others.
fn follows(one: &[u64], next: &[u64]) -> bool {
    let number = |of: &[u64], n: usize| of.get(n).copied().unwrap_or(0);
    let [a, b, c] = [0, 1, 2].map(|n| number(one, n));
    let next = [0, 1, 2].map(|n| number(next, n));
    [[a, b, c + 1], [a, b + 1, 0], [a + 1, 0, 0]].contains(&next)
}

/// No version before it answers as those that are read here.
const OLDEST: (u64, u64, u64) = (0, 4, 0);

/// The version, unless nothing so old answers like this: then the number is none that was released.
pub(crate) fn that_answers(version: Fact<Figure<Version>>) -> Fact<Figure<Version>> {
    let it = version?;
    match it.value < Version::of_release(OLDEST) {
        true => Err(absurd(
            it.value.text(),
            it.source,
            "no version so old has this endpoint: a number that a build was given",
        )),
        false => Ok(it),
    }
}

/// `0.0.0.dev1+g1234`, `0.1.dev16498+g1234` (setuptools-scm without tags), `0+unknown` (versioneer),
/// `0.0.1` (templates: no engine was released under such a number), `9999.0.0` (so that it is never
/// replaced).
fn is_placeholder(package: &Package) -> bool {
    let release = package.release();
    let first = release.first().copied().unwrap_or(0);
    let zero = first == 0 && release.get(1).is_none_or(|it| *it == 0);
    let untagged = package.is_dev() && first == 0 && release.iter().skip(1).sum::<u64>() <= 1;
    zero || untagged || first > FIRST_MAX
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
        self.order.cmp(&other.order)
    }
}

impl TryFrom<String> for Version {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        Self::read(&text).map_err(|why| format!("{text:?} is {why}"))
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
            "0.5.20a1",
            "0.5.20b1",
            "0.5.20rc1.dev4",
            "0.5.20rc1",
            "0.5.20rc2",
            "0.5.20",
            "0.5.20.post1.dev2",
            "0.5.20.post1",
            "0.5.20.post2.dev0+g1234567",
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
        assert!(Version::parse("b6423-9a1").unwrap() > Version::parse("b6400-0").unwrap());
    }

    #[test]
    fn what_is_on_the_way_to_a_release_may_have_what_it_brought() {
        let release = Version::of_release((0, 5, 22));
        let is = |text: &str| Version::parse(text).unwrap().is_on_the_way_to(&release);
        for early in [
            "0.5.22.dev14+gabc",
            "0.5.22rc1",
            "0.5.22a1.dev2",
            "0.5.22rc1.post1",
            "0.5.21.post1.dev40+gabc",
            "0.5.21.post3.dev1",
        ] {
            assert!(is(early), "{early}");
        }
        for other in [
            "0.5.22",
            "0.5.22.post1.dev3",
            "0.5.20.post1.dev3",
            "0.5.21.post3",
            "0.5.21",
            "0.5.21rc1",
            "0.5.23.dev1",
        ] {
            assert!(!is(other), "{other}");
        }
    }

    #[test]
    fn placeholders_are_neither_old_nor_new() {
        for text in [
            "0.0.0",
            "0.0.0.dev1+g0a1b2c3",
            "0.0.dev7",
            "0.0.post1.dev3+gabc",
            "0.0.1",
            "0.0.3.dev4",
            "0+unknown",
            "0+untagged.12.gabcdef0",
            "0.1.dev16498+g0a1b2c3",
            "0.1.dev1",
            "b1-0a1b2c3",
            "99.0.0",
            "999.0.0.dev0+gabc",
            "9999",
        ] {
            assert_eq!(
                Version::read(text).unwrap_err(),
                NoVersion::Placeholder,
                "{text}"
            );
        }
        for text in [
            "0.1.0",
            "0.1.3",
            "0.2.dev4",
            "0.1.1.dev7+gabc",
            "0.5.23.dev1",
        ] {
            assert!(Version::parse(text).is_some(), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_ordered_is_no_version() {
        for text in [
            "",
            "unknown",
            "dev",
            "b0-unknown",
            "main",
            "5",
            "1!0.5.23",
            "0.5.x",
            "0.5.23-hotfix",
            "0..1",
        ] {
            assert_eq!(
                Version::read(text).unwrap_err(),
                NoVersion::NoOrder,
                "{text}"
            );
        }
        assert!(Version::parse(&"1.".repeat(90)).is_none());
    }
}
