//! The manual names tests; they exist. A diagram without one that walks it would be a drawing.

use super::assert_none;
use super::tree::files;
use std::collections::BTreeSet;

const PATHS: &str = "docs/unhappy-paths.md";

/// Words in backticks that can only be the name of a test.
fn named(text: &str) -> BTreeSet<String> {
    let between = text.split('`').skip(1).step_by(2);
    let is_name = |word: &&str| {
        word.matches('_').count() >= 4
            && word
                .chars()
                .all(|c| c == '_' || c.is_ascii_lowercase() || c.is_ascii_digit())
    };
    between.filter(is_name).map(str::to_owned).collect()
}

#[test]
fn every_unhappy_path_names_tests_that_exist() {
    let files = files();
    let manual = files.iter().find(|file| file.path == PATHS);
    let text = &manual.expect("the manual").text;
    let machines: String = files
        .iter()
        .filter(|file| file.path.starts_with("crates/handoff/tests/machines/"))
        .map(|file| file.text.as_str())
        .collect();
    let missing = named(text)
        .into_iter()
        .filter(|name| !machines.contains(&format!("fn {name}(")));
    assert_none(missing.collect(), "tests named in the manual exist");

    let without = text.split("\n## ").skip(1).filter(|section| {
        let title = section.lines().next().unwrap_or_default();
        title != "A step-time check fails" && named(section).is_empty()
    });
    let titles = without.map(|section| section.lines().next().unwrap_or_default().to_owned());
    assert_none(titles.collect(), "every path has a test");
}
