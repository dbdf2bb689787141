//! Documents lead to what exists, and the walks have as many files as they say.

use super::assert_none;
use super::tree::{File, files};
use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

const WALKS: &str = "docs/walks.md";

/// Text outside of code, in which alone a link is one.
fn prose(text: &str) -> String {
    let blocks = text.split("```").step_by(2).collect::<String>();
    blocks.split('`').step_by(2).collect()
}

/// Where the links of a Markdown text lead, without addresses elsewhere.
fn links(text: &str) -> Vec<&str> {
    let targets = text.split("](").skip(1);
    let targets = targets.filter_map(|rest| rest.split(')').next());
    targets.filter(|to| !to.contains("://")).collect()
}

/// A link in the document at `from`, as a path from the root.
fn resolved(from: &str, to: &str) -> String {
    let beside = Path::new(from).parent().unwrap().join(to);
    let mut path = PathBuf::new();
    for part in beside.components() {
        match part {
            Component::ParentDir => assert!(path.pop(), "{from}: {to} leaves the repository"),
            part => path.push(part),
        }
    }
    path.to_string_lossy().into_owned()
}

/// The heading's name in a link.
fn anchor(heading: &str) -> String {
    let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    text.chars()
        .filter(kept)
        .collect::<String>()
        .replace(' ', "-")
}

fn has_anchor(file: &File, name: &str) -> bool {
    let mut headings = file.text.lines().filter(|line| line.starts_with('#'));
    headings.any(|line| anchor(line) == name)
}

#[test]
fn every_link_of_a_document_leads_somewhere() {
    let files = files();
    let mut dead = Vec::new();
    let mut looked_at = 0;
    for file in files.iter().filter(|it| it.path.ends_with(".md")) {
        for link in links(&prose(&file.text)) {
            looked_at += 1;
            let (to, name) = link.split_once('#').unwrap_or((link, ""));
            let to = match to {
                "" => file.path.clone(),
                to => resolved(&file.path, to),
            };
            let whole = files.iter().find(|it| it.path == to);
            let folder = format!("{to}/");
            let is_there = match whole {
                Some(whole) => name.is_empty() || has_anchor(whole, name),
                None => files.iter().any(|it| it.path.starts_with(&folder)),
            };
            if !is_there {
                dead.push(format!("{}: {link}", file.path));
            }
        }
    }
    assert!(looked_at > 200, "{looked_at} links: are they read?");
    assert_none(dead, "a link leads to a file, and a heading, that is there");
}

#[test]
fn walks_have_as_many_files_as_they_say() {
    let files = files();
    let walks = files.iter().find(|file| file.path == WALKS).unwrap();
    let mut said = Vec::new();
    for section in walks.text.split("\n## ").skip(1) {
        let is_row = |line: &&str| line.starts_with("| ") && line.contains("](../crates");
        let rows: Vec<_> = section.lines().filter(is_row).collect();
        let paths: BTreeSet<_> = rows.iter().flat_map(|row| links(row)).collect();
        let of = |kind: &str| rows.iter().filter(|row| row.contains(kind)).count();
        let (all, on, types) = (paths.len(), of("*hands on:*"), of("*type:*"));
        assert_eq!(rows.len(), all, "a file stands once");
        let acts = all - on - types;
        let counts = format!(
            "**{all} files**: in {acts} of them something happens, {on} only hand on, {types} define"
        );
        if !section.contains(&counts) {
            said.push(counts);
        }
    }
    assert_none(said, "docs/walks.md says how many files each walk has");
}
