//! Smaller reproductions: what can be left out of the requests of a finding so that it still shows?
//!
//! Extra fields first, then parts of the prompts, halves before quarters, down to words. What shows
//! only now and then is sent a few times before it counts as gone.

use crate::finding::{ProbeFinding, Sent, Shrunk, Symptom};
use crate::matcher::COPIES;
use crate::run::{ProbeRun, Spent};

/// Findings of a run that are shrunk, worst first: one of each kind and suite.
const FINDINGS: usize = 4;
/// Requests that one may take.
const TRIED_MAX: u32 = 60;
/// Times that it is sent before it counts as gone.
const TIMES: u32 = 3;
/// Fields without which it would be another request.
const NEEDED: [&str; 7] = [
    "model",
    "prompt",
    "messages",
    "text",
    "max_tokens",
    "sampling_params",
    "temperature",
];

/// Looks for smaller reproductions of the worst findings, as far as the budget goes.
pub async fn shrink(run: &ProbeRun) {
    let mut seen = std::collections::BTreeSet::new();
    let mut findings = run.findings();
    findings.retain(|it| {
        let convicts = it.kind.convicts() && it.proof != Symptom::None;
        convicts && seen.insert((it.kind, it.suite))
    });
    for finding in findings.into_iter().take(FINDINGS) {
        let mut search = Search {
            run,
            proof: finding.proof,
            tried: 0,
            times: TIMES,
        };
        let shows = search.smallest(&finding).await;
        let tried = search.tried;
        run.shrunk(&finding, Shrunk { shows, tried });
    }
}

struct Search<'a> {
    run: &'a ProbeRun,
    proof: Symptom,
    tried: u32,
    /// Times that each candidate is sent.
    times: u32,
}

impl Search<'_> {
    /// The smallest that was found before the requests were used up; nothing if it does not even
    /// show as it was.
    async fn smallest(&mut self, finding: &ProbeFinding) -> Vec<Sent> {
        let mut shows = finding.shows.clone();
        match self.is_shown(&shows).await {
            Ok(true) if self.tried <= shows.len() as u32 => self.times = 1,
            Ok(true) => {}
            Ok(false) | Err(_) => return Vec::new(),
        }
        for at in (0..shows.len()).rev() {
            let spent = self.fields(&mut shows, at).await.is_err()
                || self.words(&mut shows, at).await.is_err();
            if spent {
                break;
            }
        }
        shows
    }

    async fn fields(&mut self, shows: &mut [Sent], at: usize) -> Result<(), Spent> {
        for n in (0..shows[at].headers.len()).rev() {
            let mut without = shows[at].clone();
            without.headers.remove(n);
            self.try_with(shows, at, without).await?;
        }
        let names: Vec<_> = shows[at].body.keys().cloned().collect();
        for name in names.iter().filter(|it| !NEEDED.contains(&it.as_str())) {
            let mut without = shows[at].clone();
            without.body.remove(name);
            self.try_with(shows, at, without).await?;
        }
        Ok(())
    }

    async fn words(&mut self, shows: &mut [Sent], at: usize) -> Result<(), Spent> {
        let Some(prompt) = shows[at].prompt() else {
            return Ok(());
        };
        let mut words: Vec<String> = prompt.split(' ').map(str::to_owned).collect();
        let mut part = words.len() / 2;
        while part > 0 && self.tried < TRIED_MAX {
            let mut from = 0;
            // What has just been left out once can often be left out again at the same place.
            while from < words.len() && words.len() > part && self.tried < TRIED_MAX {
                let mut fewer = words.clone();
                fewer.drain(from..(from + part).min(words.len()));
                let without = shows[at].with_prompt(fewer.join(" "));
                match self.try_with(shows, at, without).await? {
                    true => words = fewer,
                    false => from += part,
                }
            }
            part /= 2;
        }
        Ok(())
    }

    /// Takes this request in place of another if it still shows.
    async fn try_with(
        &mut self,
        shows: &mut [Sent],
        at: usize,
        without: Sent,
    ) -> Result<bool, Spent> {
        let mut candidate = shows.to_vec();
        candidate[at] = without;
        let shown = self.is_shown(&candidate).await?;
        if shown {
            shows.clone_from_slice(&candidate);
        }
        Ok(shown)
    }

    async fn is_shown(&mut self, shows: &[Sent]) -> Result<bool, Spent> {
        for _ in 0..self.times {
            let mut last = None;
            for sent in shows {
                self.tried += 1;
                last = Some(self.run.again(sent).await?);
            }
            let Some(last) = last else { return Ok(false) };
            let shown = match self.proof {
                Symptom::None => false,
                Symptom::Foreign(author) => {
                    let mut hits = last.hits.iter();
                    hits.any(|it| it.author == author && it.words >= COPIES)
                }
                Symptom::Over(limit) => {
                    last.status == Some(200) && last.prompt_tokens.is_some_and(|it| it > limit)
                }
                Symptom::Status(status) => last.status == Some(status),
            };
            if shown {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
