//! What happened, for a reader: one lane for everybody who takes part, one line for everything
//! that somebody did.

use crate::model::{Model, Notes, Violation};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Steps of a run, from the first world on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    /// In order.
    pub steps: Vec<Step>,
    /// The clause that the last step broke.
    pub violation: Option<Violation>,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// What happened.
    pub act: String,
    /// Whether it is a fault.
    pub is_fault: bool,
    /// Who did what.
    pub lines: Vec<Line>,
}

/// Somebody did something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Who; empty where it goes on about the one before.
    pub who: String,
    /// What.
    pub what: String,
}

/// A run that cannot be run again.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("step {step} cannot happen there: {act}. Possible are: {}", possible.join("; "))]
pub struct Impossible {
    /// Which one, from 1.
    pub step: usize,
    /// What it was to be.
    pub act: String,
    /// What can happen instead.
    pub possible: Vec<String>,
}

/// Lets these things happen, one after the other, through the code itself, and writes down what is
/// done. It ends at the first violation.
///
/// # Errors
/// If something cannot happen where it stands.
pub fn replay<M: Model>(model: &M, acts: &[M::Act]) -> Result<Timeline, Impossible> {
    let (mut state, notes) = model.initial();
    let mut timeline = Timeline {
        steps: Vec::new(),
        violation: notes.violation,
    };
    for (at, act) in acts.iter().enumerate() {
        if timeline.violation.is_some() {
            break;
        }
        let mut possible = Vec::new();
        model.acts(&mut state, &mut possible);
        model.overdue(&mut state, &mut possible);
        if !possible.contains(act) {
            return Err(Impossible {
                step: at + 1,
                act: act.to_string(),
                possible: possible.iter().map(ToString::to_string).collect(),
            });
        }
        let mut after = model.fork(&mut state);
        let mut notes = Notes::default();
        model.step(&mut after, act, &mut notes);
        let said = model.describe(&mut state, act, &mut after);
        timeline.steps.push(Step {
            act: act.to_string(),
            is_fault: model.is_fault(act),
            lines: said.iter().map(|line| Line::parse(line)).collect(),
        });
        timeline.violation = notes.violation;
        state = after;
    }
    Ok(timeline)
}

impl Line {
    /// `who: what`; without a `who` of one word it goes on about the one before.
    fn parse(line: &str) -> Self {
        let (who, what) = match line.split_once(": ") {
            Some((who, what)) if !who.is_empty() && !who.contains(' ') => (who, what),
            _ => ("", line),
        };
        let (who, what) = (who.to_owned(), what.trim_start().to_owned());
        Self { who, what }
    }
}

impl Timeline {
    /// Everybody who takes part: clients, gateway, prefill, fabric, decode, others.
    fn lanes(&self) -> Vec<&str> {
        let mut lanes: Vec<&str> = Vec::new();
        for line in self.steps.iter().flat_map(|step| &step.lines) {
            if !line.who.is_empty() && !lanes.contains(&line.who.as_str()) {
                lanes.push(&line.who);
            }
        }
        lanes.sort_by_key(|who| (rank(who), *who));
        lanes
    }
}

fn rank(who: &str) -> u8 {
    let number = |start| {
        let rest: Option<&str> = who.strip_prefix(start);
        rest.is_some_and(|rest| rest.chars().all(|c| c.is_ascii_digit()))
    };
    match who {
        "gateway" => 1,
        "fabric" => 3,
        _ if number('P') => 2,
        _ if number('D') => 4,
        _ if who.len() == 1 => 0,
        _ => 5,
    }
}

impl fmt::Display for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lanes = self.lanes();
        write!(f, "step ")?;
        lanes.iter().try_for_each(|who| write!(f, " {who:^5}"))?;
        writeln!(f, "  what")?;
        for (at, step) in self.steps.iter().enumerate() {
            let mut who = "";
            let fault = step.is_fault.then(|| Line {
                who: String::new(),
                what: step.act.clone(),
            });
            let silent = (step.lines.is_empty() && !step.is_fault).then(|| Line {
                who: String::new(),
                what: step.act.clone(),
            });
            let lines = fault.iter().chain(&silent).chain(&step.lines);
            for (n, line) in lines.enumerate() {
                match n {
                    0 => write!(f, "{:>4} ", at + 1)?,
                    _ => write!(f, "     ")?,
                }
                if !line.who.is_empty() {
                    who = &line.who;
                }
                for lane in &lanes {
                    let width = lane.chars().count().max(5);
                    let mark = if *lane == who { "●" } else { "·" };
                    write!(f, " {mark:^width$}")?;
                }
                let indent = if line.who.is_empty() && n > 0 {
                    "  "
                } else {
                    ""
                };
                writeln!(f, "  {indent}{}", line.what)?;
            }
        }
        match &self.violation {
            Some(violation) => writeln!(f, "\n{violation}"),
            None => Ok(()),
        }
    }
}

/// A counterexample on disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trace<A> {
    /// Name of the world.
    pub world: String,
    /// Where writes land.
    pub mode: String,
    /// The bound.
    pub bound: String,
    /// Whether it is the large world that is only simulated.
    #[serde(default)]
    pub simulated: bool,
    /// The defect that was switched on.
    pub defect: Option<String>,
    /// What does not hold at the end.
    pub violation: Option<String>,
    /// The way there.
    pub acts: Vec<A>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::toy::{Act, Toy};

    #[test]
    fn a_timeline_has_a_lane_for_everybody() {
        let step = |act: &str, is_fault, lines: &[&str]| Step {
            act: act.into(),
            is_fault,
            lines: lines.iter().map(|line| Line::parse(line)).collect(),
        };
        let timeline = Timeline {
            steps: vec![
                step(
                    "asks",
                    false,
                    &["A: asks for [1 1 1]", "gateway: Expect a1 to D0"],
                ),
                step(
                    "write 0 lands twice",
                    true,
                    &["fabric: page 0 of P0", "into: slot 1"],
                ),
                step("steps", false, &["D0: reads page 3", "  tag 7: B's tokens"]),
                step("nothing is said of this", false, &[]),
            ],
            violation: None,
        };
        let text = "\
step    A   gateway fabric  D0   into   what
   1    ●      ·      ·      ·     ·    asks for [1 1 1]
        ·      ●      ·      ·     ·    Expect a1 to D0
   2    ·      ·      ·      ·     ·    write 0 lands twice
        ·      ·      ●      ·     ·    page 0 of P0
        ·      ·      ·      ·     ●    slot 1
   3    ·      ·      ·      ●     ·    reads page 3
        ·      ·      ·      ●     ·      tag 7: B's tokens
   4    ·      ·      ·      ·     ·    nothing is said of this
";
        assert_eq!(timeline.to_string(), text);
    }

    #[test]
    fn a_run_can_be_run_again_and_ends_at_the_violation() {
        let toy = Toy {
            crowded: 2,
            ..Toy::default()
        };
        let acts = [Act::Take(0), Act::GoRound, Act::Take(2), Act::End(0)];
        let timeline = replay(&toy, &acts).expect("possible");
        assert_eq!(timeline.steps.len(), 3);
        let violation = timeline.violation.expect("two hold one");
        assert_eq!(violation.clause, "H-3");
        let impossible = replay(&toy, &[Act::Take(0), Act::End(1)]).expect_err("job 1 waits");
        assert_eq!((impossible.step, impossible.act.as_str()), (2, "End(1)"));
    }

    #[test]
    fn a_trace_survives_the_disk() {
        let trace = Trace {
            world: "toy".into(),
            mode: "landing".into(),
            bound: "smoke".into(),
            simulated: false,
            defect: None,
            violation: None,
            acts: vec![Act::Take(0), Act::GoRound],
        };
        let text = serde_json::to_string(&trace).expect("written");
        assert_eq!(
            serde_json::from_str::<Trace<Act>>(&text).expect("read"),
            trace
        );
    }
}
