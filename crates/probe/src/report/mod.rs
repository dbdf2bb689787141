//! What a run has to say, in the forms that people and machines read.

mod html;
mod json;
mod junit;
mod table;

pub use html::html;
pub use json::json;
pub use junit::junit;
pub use table::table;

use crate::canary::Tenant;
use crate::chance::{DEPTHS, Depth, Places};
use crate::counts::RunCounts;
use crate::finding::{Kind, ProbeFinding};
use crate::power::{not_excluded, probability};
use crate::run::{ProbeRun, Spent};
use crate::suites::{Stopped, Suite};

pub use crate::chance::CHANCE_MAX;

/// What is printed.
#[derive(Clone, Debug)]
pub struct ProbeReport {
    /// The server.
    pub url: String,
    /// The run's seed, in hex: with it the run can be repeated.
    pub seed: String,
    /// Those who asked.
    pub tenants: Vec<Tenant>,
    /// Suites that were run, and why each stopped if it did not end.
    pub suites: Vec<(Suite, Option<Stopped>)>,
    /// Found, worst first.
    pub findings: Vec<ProbeFinding>,
    /// Counted.
    pub counts: RunCounts,
    /// Upper bound of the chance that a leak was reported of a server that does not leak.
    pub chance: f64,
    /// What was looked at, at each depth.
    pub looked_at: [Places; 3],
    /// What suites have to say beside findings.
    pub notes: Vec<(&'static str, String)>,
}

/// What a run amounts to.
///
/// Silence counts as clean only where the run would have heard: everything else is
/// [`ProbeVerdict::CouldNotTell`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeVerdict {
    /// Every suite ended, every tenant's positive control was seen, nothing convicts.
    Clean,
    /// Something convicts.
    Found,
    /// Nothing convicts, and the run could not have told.
    CouldNotTell,
}

impl ProbeVerdict {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            ProbeVerdict::Clean => "clean",
            ProbeVerdict::Found => "found",
            ProbeVerdict::CouldNotTell => "could_not_tell",
        }
    }
}

impl ProbeReport {
    /// Of a run that has ended.
    pub fn new(
        url: String,
        seed: [u8; 32],
        run: &ProbeRun,
        suites: Vec<(Suite, Option<Stopped>)>,
    ) -> Self {
        let (chance, looked_at) = run.chance();
        Self {
            url,
            seed: seed.iter().map(|it| format!("{it:02x}")).collect(),
            tenants: run.tenants(),
            suites,
            findings: run.findings(),
            counts: run.counts(),
            chance,
            looked_at,
            notes: run.notes(),
        }
    }

    /// What it amounts to.
    pub fn verdict(&self) -> ProbeVerdict {
        let convicts = self.counts.findings.keys().any(|(kind, _)| kind.convicts());
        let told = self.why_not_told().is_empty();
        match (convicts, told) {
            (true, _) => ProbeVerdict::Found,
            (false, true) => ProbeVerdict::Clean,
            (false, false) => ProbeVerdict::CouldNotTell,
        }
    }

    /// Why silence means nothing, if it does: what explains the rest first.
    pub fn why_not_told(&self) -> Vec<String> {
        let counts = &self.counts;
        let mut why = Vec::new();
        if counts.broken > 0 {
            let trouble = counts.trouble.as_deref().unwrap_or("no connection");
            why.push(format!(
                "{} connections were refused or broken; the first: {trouble}",
                counts.broken
            ));
        }
        if counts.requests == counts.broken && counts.broken > 0 {
            return why; // nobody was there, and that is all
        }
        if let Some(reason) = self.never_asked() {
            return vec![reason]; // what kept every suite from asking is said once
        }
        for (suite, stopped) in &self.suites {
            match stopped {
                // Said above, once.
                Some(Stopped::Spent(Spent::Gone)) | None => {}
                Some(stopped) => why.push(format!("{} did not end: {stopped}", suite.name())),
            }
        }
        if self.suites.is_empty() {
            why.push("no suite was run".to_owned());
        }
        let quotes = |it: &&ProbeFinding| it.kind == Kind::Suspect && it.quote.is_some();
        if let Some(finding) = self.findings.iter().find(quotes) {
            why.push(format!(
                "an answer quotes another request, though not enough to convict: {}",
                finding.says
            ));
        }
        if counts.answered == 0 {
            why.push("no request was answered".to_owned());
        }
        why.extend(self.not_controlled());
        let failed = counts.server_errors();
        if failed > 0 {
            why.push(format!("{failed} answers were errors of the server (5xx)"));
        }
        if self.chance >= CHANCE_MAX {
            why.push(format!(
                "a leak by chance is not excluded ({:.1e})",
                self.chance
            ));
        }
        why
    }

    /// Why nothing at all was asked, where one reason kept every suite from it.
    fn never_asked(&self) -> Option<String> {
        let mut reasons = self.suites.iter().map(|(_, stopped)| match stopped {
            Some(Stopped::Needs(why)) => Some(why),
            _ => None,
        });
        let first = reasons.next()??;
        let alone = self.counts.requests == 0 && reasons.all(|it| it == Some(first));
        alone.then(|| first.clone())
    }

    /// Tenants whose positive control was not seen.
    fn not_controlled(&self) -> Vec<String> {
        let of = |tenant: &Tenant| {
            let telling = self.counts.telling.get(tenant);
            match telling.copied().unwrap_or_default() {
                it if it.answers == 0 => Some(format!(
                    "no answer to tenant {tenant} was long enough to show a canary"
                )),
                it if it.own == 0 => Some(format!(
                    "no answer to tenant {tenant} went on with its own canary: nor would one with \
                     a foreign one (does the model copy at all? is it a random one?)"
                )),
                _ => None,
            }
        };
        self.tenants.iter().filter_map(of).collect()
    }

    /// From when on words convict, in a sentence.
    pub fn threshold(&self) -> String {
        let [plain, spaced, letters] = DEPTHS.map(|it| self.looked_at[it as usize].alone(it));
        let places = self.looked_at[Depth::Plain as usize];
        let fewer = (4..plain).rev();
        let fewer: Vec<_> = fewer
            .map(|k| (k, places.convicts(Depth::Plain, k).0))
            .filter(|(_, m)| *m <= 20)
            .map(|(k, m)| format!("{m} of {k}"))
            .collect();
        let fewer = match fewer.is_empty() {
            true => String::new(),
            false => format!(" (or, of different requests, {})", fewer.join(", ")),
        };
        format!(
            "chance of a false leak: below {:.1e}; {plain} consecutive words convict{fewer}, {spaced} \
             that are spaced or turned around, {letters} as letters ({} words of texts x {} of \
             canaries)",
            self.chance.max(1e-300),
            places.texts,
            places.canaries
        )
    }

    /// Share of the answers that could have shown a canary that showed their own.
    pub fn copies(&self) -> f64 {
        let telling = self.counts.telling();
        match telling.answers {
            0 => 0.0,
            n => telling.own as f64 / n as f64,
        }
    }

    /// How often a suspicion that rests on answers that do not go on with their own prompt is false,
    /// in a sentence: as often as sound answers do not. The run's own answers are the control.
    pub fn suspicions(&self) -> String {
        let telling = self.counts.telling();
        let silent = telling.answers - telling.own;
        // One more of each than was seen: none of ten is no proof of never.
        let rate = (silent + 1) as f64 / (telling.answers + 2) as f64;
        format!(
            "{silent} of {} answers did not go on with their own prompt; where nothing is wrong, all \
             three of a length do not with a probability of about {:.1e}, and then are a false \
             suspicion",
            telling.answers,
            rate.powi(3)
        )
    }

    /// What silence is worth, in sentences.
    pub fn power(&self) -> String {
        let answers = self.counts.telling().answers;
        let copies = self.copies();
        if copies == 0.0 {
            return format!(
                "{answers} answers could have shown a canary, and none showed its own: a leak may \
                 have gone unseen"
            );
        }
        let seen = |rate: f64| 100.0 * probability(answers, rate, copies);
        format!(
            "{answers} answers could have shown a canary; {:.0} % showed their own. If foreign \
             pages show as often, a leak in more than one of {:.0} answers would have been seen \
             with a probability of 95 %; one of 100 answers with {:.0} %, one of 1,000 with {:.0} %",
            100.0 * copies,
            1.0 / not_excluded(answers, copies),
            seen(0.01),
            seen(0.001),
        )
    }
}
