//! What a run has to say, in the forms that people and machines read.

mod json;
mod junit;
mod table;

pub use json::json;
pub use junit::junit;
pub use table::table;

use crate::finding::Finding;
use crate::power::not_excluded;
use crate::run::{Counts, Run};
use crate::suites::{Stopped, Suite};

/// A leak must be less likely by chance than this in a whole run.
pub const CHANCE_MAX: f64 = 1e-12;

/// What is printed.
#[derive(Clone, Debug)]
pub struct Report {
    /// The server.
    pub url: String,
    /// The run's seed, in hex: with it the run can be repeated.
    pub seed: String,
    /// Suites that were run, and why each stopped if it did not end.
    pub suites: Vec<(Suite, Option<Stopped>)>,
    /// Found, worst first.
    pub findings: Vec<Finding>,
    /// Counted.
    pub counts: Counts,
    /// Upper bound of the chance that a leak was reported of a server that does not leak.
    pub chance: f64,
    /// Places of K words: in canaries, in texts.
    pub looked_at: (u64, u64),
}

/// What a run amounts to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Every suite ended, the positive control was seen, nothing convicts.
    Clean,
    /// Something convicts.
    Found,
    /// Nothing convicts, and the run could not have told.
    CouldNotTell,
}

impl Report {
    /// Of a run that has ended.
    pub fn new(
        url: String,
        seed: [u8; 32],
        run: &Run,
        suites: Vec<(Suite, Option<Stopped>)>,
    ) -> Self {
        let (chance, looked_at) = run.chance();
        Self {
            url,
            seed: seed.iter().map(|it| format!("{it:02x}")).collect(),
            suites,
            findings: run.findings(),
            counts: run.counts(),
            chance,
            looked_at,
        }
    }

    /// What it amounts to.
    pub fn verdict(&self) -> Verdict {
        let convicts = self.counts.findings.keys().any(|(kind, _)| kind.convicts());
        let told = self.why_not_told().is_empty();
        match (convicts, told) {
            (true, _) => Verdict::Found,
            (false, true) => Verdict::Clean,
            (false, false) => Verdict::CouldNotTell,
        }
    }

    /// Why silence means nothing, if it does.
    pub fn why_not_told(&self) -> Vec<String> {
        let mut why = Vec::new();
        for (suite, stopped) in &self.suites {
            if let Some(stopped) = stopped {
                why.push(format!("{} did not end: {stopped}", suite.name()));
            }
        }
        if self.counts.answered == 0 {
            why.push("no request was answered".to_owned());
        } else if self.counts.own_seen == 0 {
            why.push(
                "no answer went on with its own canary: nor would one with a foreign one (does the \
                 model copy at all? is it a random one?)"
                    .to_owned(),
            );
        }
        if self.chance >= CHANCE_MAX {
            why.push(format!(
                "a leak by chance is not excluded ({:.1e})",
                self.chance
            ));
        }
        why
    }

    /// Share of answers that went on with their own canary.
    pub fn copies(&self) -> f64 {
        match self.counts.answered {
            0 => 0.0,
            n => self.counts.own_seen as f64 / n as f64,
        }
    }

    /// What silence is worth, in a sentence.
    pub fn power(&self) -> String {
        let answered = self.counts.answered;
        format!(
            "{answered} answers were looked at; {:.0} % went on with their own canary. If answers \
             with foreign pages showed as often, a leak in more than one of {:.0} answers would \
             have been seen with a probability of 95 %",
            100.0 * self.copies(),
            1.0 / not_excluded(answered, self.copies()),
        )
    }
}
