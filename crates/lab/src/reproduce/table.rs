//! What a terminal shows.

use super::guards::Safeguard;
use super::incident::Story;
use super::run::{Answer, Outcome};
use super::scenario::{SECRET, SENTENCE, Scenario};
use super::timeline::counted;
use std::fmt::Write;

/// Columns of the terminal that texts are wrapped to.
const WIDTH: usize = 100;

/// Before anything runs.
pub(super) fn opening(scenario: &Scenario) {
    let shape = scenario.size.shape();
    println!(
        "The incident at the {} size: prefill's pool holds {} tokens, the context is {}, decode's \
         pool {}.\nEvery part is the shipped code; each decision of a safeguard is switched by \
         type.\n",
        scenario.size.name(),
        shape.prefill_pool,
        shape.context,
        shape.decode_pool
    );
    println!(
        "Tenant A asks with {} tokens of:  {SENTENCE}",
        scenario.fill.tokens
    );
    println!(
        "Tenant B asks with {} prompts of {} to {} tokens about harbours and poems.\n",
        scenario.over.len(),
        scenario.over.iter().map(|it| it.tokens).min().unwrap_or(0),
        scenario.over.iter().map(|it| it.tokens).max().unwrap_or(0),
    );
}

/// With every safeguard off.
pub(super) fn incident(scenario: &Scenario, outcome: &Outcome) {
    println!("EVERY SAFEGUARD OFF\n");
    let (Some(ask), Some(answer)) = (scenario.over.first(), outcome.over.first()) else {
        return;
    };
    println!("  $ {}\n", ask.curl(&outcome.addr, false));
    println!(
        "  HTTP {}, prompt_tokens {}, completion_tokens {}",
        answer.status,
        number(answer.prompt_tokens),
        number(answer.completion_tokens)
    );
    println!("  {:?}\n", answer.text.as_deref().unwrap_or_default());
    if let Some(found) = &outcome.footprint
        && let Some(attended) = found.attended()
    {
        println!(
            "  Decode committed {} for it. Of the {} of the prompt {} was written for tenant B, \
             {} for tenant A.\n",
            counted(found.reserved as u64, "page"),
            counted(found.count.into(), "position"),
            attended.of_b,
            attended.of_a
        );
    }
    for (at, moment) in (1..).zip(&outcome.moments) {
        let what = wrapped(&moment.what, 14);
        println!("  {at:>2} {:<8} {}", moment.who, what.trim_start());
    }
    println!("\n  {}\n", leaks(outcome));
}

/// What no row can do without, and how it is called.
pub(super) const ALWAYS_ON: &str = "on in every row: landing arena, verified table";
/// Why that is not enough.
pub(super) const ALWAYS_ON_WHY: &str = "Writes land in an arena and are copied from there: what \
    never came is not copied. Every step verifies its block table: every page in it is B's. \
    Neither says anything of what is in a page that nobody sent.";

/// How many answers had A's text in them.
pub(super) fn leaks(outcome: &Outcome) -> String {
    let (sentence, secret) = outcome.leaked();
    let asked = outcome.over.len();
    format!(
        "{sentence} of {asked} answers to tenant B had A's whole sentence in them, {secret} of \
         {asked} the words \"{SECRET}\"."
    )
}

/// While it runs.
pub(super) fn progress(guard: Safeguard, outcome: &Outcome) {
    println!("  with {:<10} {}", guard.id(), gets(outcome));
}

/// Status and code that B gets.
pub(super) fn gets(outcome: &Outcome) -> String {
    match (&outcome.refused, outcome.over.first()) {
        (Some(_), _) => "does not start".into(),
        (None, Some(answer)) => match &answer.error {
            Some((code, _)) => format!("{} {code}", answer.status),
            None => answer.status.to_string(),
        },
        (None, None) => String::new(),
    }
}

/// What is said with it.
pub(super) fn says(outcome: &Outcome) -> String {
    let first = outcome.over.first();
    let message = first.and_then(|answer| answer.error.as_ref().map(|(_, it)| it.clone()));
    let text = first.and_then(|answer: &Answer| answer.text.clone());
    let refused = outcome.refused.clone();
    refused.or(message).or(text).unwrap_or_default()
}

/// What a row says about its safeguard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nobody got anything of anybody else's, and whoever asked is told what is wrong.
    Stops,
    /// Nobody got anything of anybody else's, and nobody learns what is wrong.
    Hides,
    /// It did not help.
    Leaks,
}

impl Verdict {
    pub(super) fn of(outcome: &Outcome) -> Self {
        let says = |answer: &Answer, word| answer.error.as_ref().is_some_and(|(it, _)| it == word);
        let mut over = outcome.over.iter();
        if over.clone().any(|answer| answer.status == 200) {
            Self::Leaks
        } else if over.any(|answer| says(answer, "decode_failed")) {
            Self::Hides
        } else {
            Self::Stops
        }
    }

    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Stops => "stops it",
            Self::Hides => "hides it",
            Self::Leaks => "DOES NOT",
        }
    }
}

/// Answers with A's sentence, of how many.
pub(super) fn share(outcome: &Outcome) -> String {
    match outcome.over.len() {
        0 => "-".into(),
        asked => format!("{} of {asked}", outcome.leaked().0),
    }
}

/// After everything: the table.
pub(super) fn closing(story: &Story) {
    println!("\nEACH SAFEGUARD ALONE\n");
    row("switched on", "tenant B gets", "leaked", "alone");
    println!("  {}", "-".repeat(WIDTH - 2));
    row("none", &gets(&story.none), &share(&story.none), "-");
    for (guard, outcome) in &story.alone {
        let verdict = Verdict::of(outcome).words();
        row(guard.title(), &gets(outcome), &share(outcome), verdict);
        println!("{}", wrapped(&says(outcome), 6));
    }
    row(
        ALWAYS_ON,
        &gets(&story.none),
        &share(&story.none),
        "DOES NOT",
    );
    println!("{}", wrapped(ALWAYS_ON_WHY, 6));
    let (all, title) = (&story.all, "every one but the first");
    row(title, &gets(all), &share(all), Verdict::of(all).words());
    println!("{}", wrapped(&says(all), 6));
    println!("\n  With every safeguard off: {}", leaks(&story.none));
}

fn row(what: &str, gets: &str, share: &str, verdict: &str) {
    println!("  {what:<52}{gets:<29}{share:<8}{verdict}");
}

fn number(n: Option<u64>) -> String {
    n.map_or("-".into(), |n| n.to_string())
}

/// The text in lines, indented.
fn wrapped(text: &str, indent: usize) -> String {
    let mut lines = String::new();
    let mut column = 0;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if column > 0 && column + 1 + length > WIDTH {
            lines.push('\n');
            column = 0;
        }
        if column == 0 {
            let _ = write!(lines, "{:indent$}{word}", "");
            column = indent + length;
        } else {
            let _ = write!(lines, " {word}");
            column += 1 + length;
        }
    }
    lines
}
