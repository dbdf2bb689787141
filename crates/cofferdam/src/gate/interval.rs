//! `--interval`: reads again and again, serves the last verdicts as gauges, and says what changed.
//!
//! A pool that shrinks under a live server is a violation at the next reading, for two reasons:
//! it may no longer hold the context, and it is no longer what was accepted (the baseline, or else
//! the first reading).

use super::args::Gate;
use super::plan::Plan;
use super::{exit, judged, now, read};
use crate::exit::{Exit, Failure};
use crate::gauges::{self, Gauges};
use crate::stop::Stop;
use gate::Report;
use gate::baseline::Baseline;
use gate::finding::{Answer, Subject};
use gate::output;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;
use tokio::time::{MissedTickBehavior, interval};

pub(super) async fn run(gate: &Gate, plan: Plan, every: Duration) -> Result<Exit, Failure> {
    let mut stop = Stop::new()?;
    let gauges = Gauges::serve(gate.listen, gauges::PLAIN).await?;
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut state = State::new();
    loop {
        tokio::select! {
            () = stop.next() => break,
            _ = ticks.tick() => {}
        }
        let subjects = tokio::select! {
            () = stop.next() => break,
            subjects = read::all(&plan) => subjects?,
        };
        let now = now();
        let report = match &plan.baseline {
            Some(baseline) => judged(&plan, subjects, Some(baseline), now),
            None => {
                let first = state
                    .first
                    .get_or_insert_with(|| Baseline::of(&subjects, now));
                first.learn(&subjects);
                judged(&plan, subjects, Some(first), now)
            }
        };
        state.note(gate, &plan, report, &gauges)?;
    }
    // The last verdict is the answer, as without --interval.
    Ok(state.last.as_ref().map_or(Exit::Unreachable, exit))
}

/// The answers to remember, by check, subject and advisory.
type Answers = BTreeMap<(&'static str, Subject, Option<String>), (Answer, String)>;

struct State {
    /// The accepted state where no file says it: of every figure, its first reading.
    first: Option<Baseline>,
    last: Option<Report>,
    answers: Answers,
    reads: u64,
    changes: u64,
    /// When each finding was last known to hold or to be violated.
    known: BTreeMap<(&'static str, Subject, Option<String>), (Answer, u64)>,
}

impl State {
    fn new() -> State {
        State {
            first: None,
            last: None,
            answers: Answers::new(),
            reads: 0,
            changes: 0,
            known: BTreeMap::new(),
        }
    }

    fn note(
        &mut self,
        gate: &Gate,
        plan: &Plan,
        report: Report,
        gauges: &Gauges,
    ) -> Result<(), Failure> {
        self.reads += 1;
        let answers: Answers = report
            .findings
            .iter()
            .map(|it| {
                let key = (it.check.id, it.subject.clone(), it.advisory.clone());
                (key, (it.answer, it.says.clone()))
            })
            .collect();
        for (key, (answer, _)) in &answers {
            if *answer != Answer::Unknown {
                self.known.insert(key.clone(), (*answer, report.at));
            }
        }
        let changed = differences(&self.answers, &answers);
        self.changes += u64::from(self.last.is_some() && !changed.is_empty());
        // Gauges first: who reads of a change on the output finds it there.
        gauges.show(self.page(&report));
        match self.last {
            None => super::write(gate, plan, &report)?,
            Some(_) if changed.is_empty() => {}
            Some(_) => {
                super::write(gate, plan, &report)?;
                let at = gate::date::rfc3339(report.at);
                changed.iter().for_each(|line| eprintln!("{at} {line}"));
            }
        }
        self.answers = answers;
        self.last = Some(report);
        Ok(())
    }

    /// Gauges of the report, and of this loop.
    fn page(&self, report: &Report) -> String {
        let mut text = output::prometheus(report);
        let mut counter = |name: &str, help: &str, value: u64| {
            let _ = writeln!(text, "# HELP cofferdam_gate_{name} {help}");
            let _ = writeln!(text, "# TYPE cofferdam_gate_{name} counter");
            let _ = writeln!(text, "cofferdam_gate_{name} {value}");
        };
        counter("reads_total", "Times that all nodes were read.", self.reads);
        counter(
            "changes_total",
            "Readings that changed an answer.",
            self.changes,
        );
        let metric = "cofferdam_gate_last_known";
        let _ = writeln!(
            text,
            "# HELP {metric} The last answer that was known: 1 holds, 0 violated."
        );
        let _ = writeln!(text, "# TYPE {metric} gauge");
        for ((check, subject, advisory), (answer, _)) in &self.known {
            let value = u8::from(*answer == Answer::Holds);
            let labels = output::prometheus_labels(&[
                ("check", check),
                ("subject", subject.name()),
                ("kind", subject.kind()),
                ("advisory", advisory.as_deref().unwrap_or("")),
            ]);
            let _ = writeln!(text, "{metric}{labels} {value}");
        }
        text
    }
}

/// What is answered otherwise than before, or in other words.
fn differences(before: &Answers, after: &Answers) -> Vec<String> {
    let name = |(check, subject, advisory): &(&str, Subject, Option<String>)| {
        let advisory = advisory
            .as_ref()
            .map(|id| format!(" {id}"))
            .unwrap_or_default();
        format!("{check}{advisory} {}", subject.name())
    };
    let mut lines = Vec::new();
    for (key, (answer, says)) in after {
        match before.get(key) {
            Some((was, said)) if was == answer && said == says => {}
            Some((was, _)) => lines.push(format!("{}: {was} -> {answer}: {says}", name(key))),
            None => lines.push(format!("{}: {answer}: {says}", name(key))),
        }
    }
    for key in before.keys().filter(|key| !after.contains_key(*key)) {
        lines.push(format!("{}: asked no more", name(key)));
    }
    lines
}
