//! For a person at 3 a.m.: the worst first, numbers side by side, what to change, where the number
//! came from.

use super::tame;
use crate::check::{CHECKS, Check, Level, NODE_ANSWERS};
use crate::date::rfc3339;
use crate::finding::{Answer, Finding, Subject};
use crate::report::{Report, Verdict};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// Sources that are listed below a finding.
const SOURCES_MAX: usize = 4;
/// Names that are listed where many nodes have the same finding.
const NAMES_MAX: usize = 4;

/// Warnings of nodes that are listed.
const WARNINGS_MAX: usize = 10;

/// How it is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    /// Columns: lines are broken between words before this one.
    pub width: usize,
    /// Whether colours are used.
    pub colour: bool,
}

impl Default for Style {
    fn default() -> Self {
        Style {
            width: 80,
            colour: false,
        }
    }
}

/// Findings that differ in nothing but their subject.
struct Same<'a> {
    first: &'a Finding,
    names: Vec<&'a str>,
}

/// The report as text.
pub fn table(report: &Report, style: Style) -> String {
    let mut text = head(report, style);
    let groups = same(report);
    let silent = silent(report);
    let mut told = false;
    let follows = |it: &Same<'_>| follows(it, &silent);
    for it in groups
        .iter()
        .filter(|it| report.fails(it.first) && !follows(it))
    {
        paragraph(&mut text, it, style);
        if it.first.check == &NODE_ANSWERS && !std::mem::replace(&mut told, true) {
            let ids = groups
                .iter()
                .filter(|other| follows(other))
                .map(|it| it.first.check.id);
            let ids: BTreeSet<&str> = ids.collect();
            let ids = ids.into_iter().collect::<Vec<_>>().join(", ");
            wrapped(
                &mut text,
                "  so    ",
                "        ",
                &format!("also unknown of silent nodes: {ids}"),
                style.width,
            );
        }
    }
    let rest =
        |it: &Same<'_>| !report.fails(it.first) && it.first.answer != Answer::Holds && !follows(it);
    let rest: Vec<&Same<'_>> = groups.iter().filter(|it| rest(it)).collect();
    let warned = report
        .subjects
        .members
        .iter()
        .any(|it| !it.node.warnings.is_empty());
    if !rest.is_empty() || warned {
        text += "\n";
    }
    for it in rest {
        remark(&mut text, it, style);
    }
    warnings(&mut text, report, style);
    holding(&mut text, &groups, style);
    for entry in &report.unused {
        let line = format!("--allow {entry} covers nothing: misspelt, or no longer needed");
        wrapped(&mut text, "", "note      ", &line, style.width);
    }
    text
}

fn head(report: &Report, style: Style) -> String {
    let findings = || report.findings.iter();
    let failing = |answer| {
        findings()
            .filter(|it| report.fails(it) && it.answer == answer)
            .count()
    };
    let holds = findings().filter(|it| it.answer == Answer::Holds).count();
    let (violated, unknown) = (failing(Answer::Violated), failing(Answer::Unknown));
    let passed_over = report.findings.len() - holds - violated - unknown;
    let verdict = report.verdict();
    let (word, colour) = match verdict {
        Verdict::Holds => ("HOLDS", GREEN),
        Verdict::Violated => ("VIOLATED", RED),
        Verdict::Unknown => ("UNKNOWN", YELLOW),
    };
    let mut text = format!("gate: {}", painted(word, colour, style));
    let _ = writeln!(
        text,
        "  {violated} violated, {unknown} unknown, {holds} hold, {passed_over} advice; \
         exit {}",
        verdict.exit_code()
    );
    let headroom = report.headroom;
    let about = format!(
        "{} node(s) read at {}; headroom {:?} ({:?} where the engine refuses to start below its \
         context); advisories of {}{}",
        report.subjects.members.len(),
        rfc3339(report.at),
        headroom.thousandths as f64 / 1000.0,
        headroom.refusing_thousandths as f64 / 1000.0,
        report.table_date,
        if report.strict { "; strict" } else { "" }
    );
    wrapped(&mut text, "      ", "      ", &about, style.width);
    text
}

/// Findings with the same words become one, in the order of the first.
fn same(report: &Report) -> Vec<Same<'_>> {
    let mut groups: Vec<Same<'_>> = Vec::new();
    let mut places = BTreeMap::new();
    for finding in &report.findings {
        // What holds is said in short, unless something beside it is missing.
        let whole = finding.evidence.iter().all(|it| it.value.is_ok());
        let says = match finding.answer == Answer::Holds && whole {
            true => "",
            false => finding.says.as_str(),
        };
        let key = (
            finding.check.id,
            finding.answer,
            says,
            &finding.advisory,
            &finding.allowed,
        );
        let place = *places.entry(key).or_insert_with(|| {
            groups.push(Same {
                first: finding,
                names: Vec::new(),
            });
            groups.len() - 1
        });
        groups[place].names.push(finding.subject.name());
    }
    groups
}

/// Nodes of which nothing could be read.
fn silent(report: &Report) -> BTreeSet<&str> {
    let findings = report.findings.iter();
    let silent = findings.filter(|it| it.check == &NODE_ANSWERS && it.answer != Answer::Holds);
    silent.map(|it| it.subject.name()).collect()
}

/// Whether a finding says no more than that its nodes are silent: said once, that is enough.
fn follows(it: &Same<'_>, silent: &BTreeSet<&str>) -> bool {
    let finding = it.first;
    if finding.check == &NODE_ANSWERS
        || finding.answer != Answer::Unknown
        || finding.allowed.is_some()
    {
        return false;
    }
    match &finding.subject {
        Subject::Node(_) => it.names.iter().all(|name| silent.contains(name)),
        // Evidence of a group is called `page size of NAME`.
        Subject::Group(_) => {
            let missing = finding.evidence.iter().filter(|it| it.value.is_err());
            let mut of = missing.map(|it| it.what.split_once(" of ").map_or("", |it| it.1));
            let known = finding.evidence.iter().all(|it| it.value.is_ok());
            !known && of.all(|name| silent.contains(name))
        }
        _ => false,
    }
}

fn names(it: &Same<'_>) -> String {
    let shown = it
        .names
        .iter()
        .take(NAMES_MAX)
        .copied()
        .collect::<Vec<_>>()
        .join(", ");
    match it.names.len() {
        n if n <= NAMES_MAX => shown,
        n => format!("{shown} and {} more", n - NAMES_MAX),
    }
}

/// A finding that decides: all that is known about it.
fn paragraph(text: &mut String, it: &Same<'_>, style: Style) {
    let finding = it.first;
    let (word, colour) = match finding.answer {
        Answer::Violated => ("VIOLATED", RED),
        _ => ("UNKNOWN", YELLOW),
    };
    let advisory = finding
        .advisory
        .as_ref()
        .map(|id| format!(" {id}"))
        .unwrap_or_default();
    let word = painted(&format!("{word:<9}"), colour, style);
    let level = match finding.check.level {
        Level::Required => "",
        Level::Advisory => " (advisory)",
    };
    let _ = writeln!(text, "\n{word} {}{advisory}{level}", finding.check.id);
    wrapped(text, "  ", "    ", &names(it), style.width);
    wrapped(text, "  ", "    ", &finding.says, style.width);
    wrapped(
        text,
        "  do    ",
        "        ",
        finding.what_to_do(),
        style.width,
    );
    let mut label = "  from  ";
    for source in sources(finding) {
        wrapped(text, label, "        ", &source, style.width);
        label = "        ";
    }
    wrapped(
        text,
        "  see   ",
        "        ",
        finding.reference(),
        style.width,
    );
}

fn sources(finding: &Finding) -> Vec<String> {
    let with = finding
        .evidence
        .iter()
        .filter_map(|it| Some((it, it.source.as_ref()?)));
    let mut sources: Vec<String> = with.map(|(it, at)| format!("{}: {at}", it.what)).collect();
    if sources.len() > SOURCES_MAX {
        let more = sources.len() - SOURCES_MAX;
        sources.truncate(SOURCES_MAX);
        sources.push(format!("and {more} more (--format json has all)"));
    }
    sources
}

/// A finding that does not decide: one paragraph without a heading.
fn remark(text: &mut String, it: &Same<'_>, style: Style) {
    let finding = it.first;
    let (word, colour) = match (&finding.allowed, finding.answer) {
        (Some(_), _) => ("allowed", YELLOW),
        (None, Answer::Violated) => ("advice", YELLOW),
        (None, _) => ("unknown", ""),
    };
    let label = painted(&format!("{word:<9}"), colour, style) + " ";
    let id = finding
        .advisory
        .as_ref()
        .unwrap_or(&finding.subject_word(it.names.len()))
        .clone();
    let line = format!(
        "{} [{id}] {}: {}",
        finding.check.id,
        names(it),
        finding.says
    );
    wrapped_as(text, &label, 10, "          ", &line, style.width);
    match &finding.allowed {
        Some(reason) => {
            let line = format!("reason: {reason}");
            wrapped(text, "          ", "          ", &line, style.width);
        }
        None if finding.answer == Answer::Violated => {
            wrapped(
                text,
                "          do: ",
                "          ",
                finding.what_to_do(),
                style.width,
            );
        }
        None => {}
    }
}

/// What was seen beside the figures: places that differ, values that were passed over.
fn warnings(text: &mut String, report: &Report, style: Style) {
    let mut shown = 0;
    let members = report.subjects.members.iter();
    let all = members.flat_map(|it| it.node.warnings.iter().map(move |warning| (it, warning)));
    let count = all.clone().count();
    for (member, warning) in all.take(WARNINGS_MAX) {
        let label = painted(&format!("{:<9}", "warning"), YELLOW, style) + " ";
        let line = format!(
            "{}: {} ({})",
            member.node.name, warning.text, warning.source
        );
        wrapped_as(text, &label, 10, "          ", &line, style.width);
        shown += 1;
    }
    if count > shown {
        let line = format!("and {} more (--format json has all)", count - shown);
        wrapped(text, "warning   ", "          ", &line, style.width);
    }
}

fn holding(text: &mut String, groups: &[Same<'_>], style: Style) {
    let holding: Vec<_> = groups
        .iter()
        .filter(|it| it.first.answer == Answer::Holds)
        .collect();
    if holding.is_empty() {
        return;
    }
    text.push('\n');
    for it in holding {
        let label = painted(&format!("{:<9}", "holds"), GREEN, style) + " ";
        let line = match it.names[..] {
            [name] => format!("{} {name}: {}", it.first.check.id, it.first.says),
            _ => format!(
                "{} on all {}",
                it.first.check.id,
                it.first.subject_word(it.names.len())
            ),
        };
        wrapped_as(text, &label, 10, "          ", &line, style.width);
    }
}

impl Finding {
    /// `node`, `2 nodes`.
    fn subject_word(&self, count: usize) -> String {
        match count {
            1 => self.subject.kind().to_owned(),
            count => format!("{count} {}s", self.subject.kind()),
        }
    }
}

const RED: &str = "\u{1b}[1;31m";
const YELLOW: &str = "\u{1b}[33m";
const GREEN: &str = "\u{1b}[32m";

fn painted(word: &str, colour: &str, style: Style) -> String {
    match style.colour && !colour.is_empty() {
        true => format!("{colour}{word}\u{1b}[0m"),
        false => word.to_owned(),
    }
}

fn wrapped(text: &mut String, first: &str, next: &str, line: &str, width: usize) {
    wrapped_as(text, first, first.chars().count(), next, line, width);
}

/// `line` in lines of at most `width` columns, broken between words only: an address that is
/// longer stays whole, so that it can be copied. `first` takes `first_width` columns.
fn wrapped_as(
    text: &mut String,
    first: &str,
    first_width: usize,
    next: &str,
    line: &str,
    width: usize,
) {
    text.push_str(first);
    let mut column = first_width;
    let mut at_start = true;
    for word in tame(line).split(' ').filter(|word| !word.is_empty()) {
        let length = word.chars().count();
        if !at_start && column + 1 + length > width {
            text.push('\n');
            text.push_str(next);
            column = next.chars().count();
            at_start = true;
        }
        if !at_start {
            text.push(' ');
            column += 1;
        }
        text.push_str(word);
        column += length;
        at_start = false;
    }
    text.push('\n');
}

/// All checks, a line each.
pub fn list() -> String {
    let mut text = String::new();
    for check in CHECKS {
        let _ = writeln!(
            text,
            "{:<24} {:<8}  {}",
            check.id,
            check.level.word(),
            check.title
        );
    }
    text
}

/// All about one check.
pub fn explain(check: &Check, style: Style) -> String {
    let mut text = format!("{} ({})\n", check.id, check.level.word());
    wrapped(
        &mut text,
        "  holds  ",
        "         ",
        check.title,
        style.width,
    );
    wrapped(&mut text, "  why    ", "         ", check.why, style.width);
    wrapped(
        &mut text,
        "  do     ",
        "         ",
        check.what_to_do,
        style.width,
    );
    wrapped(&mut text, "  see    ", "         ", check.link, style.width);
    text
}

/// The table of checks in `docs/gate.md`.
pub fn markdown() -> String {
    let mut text =
        String::from("| id | level | holds when | why | what to do |\n|---|---|---|---|---|\n");
    for check in CHECKS {
        let _ = writeln!(
            text,
            "| [`{}`]({}) | {} | {} | {} | {} |",
            check.id,
            check.link,
            check.level.word(),
            check.title,
            check.why,
            check.what_to_do
        );
    }
    text
}
