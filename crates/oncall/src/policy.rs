//! What is done about what was found out: a table, TOML. What it leaves out is as it is by default, and
//! the default closes doors rather than leaving them open.

use crate::entry::{Openness, ProofKind, SignalKind};
use serde::Deserialize;
use std::collections::BTreeMap;

/// Bytes of a policy that are read.
pub const BYTES_MAX: u64 = 64 << 10;

/// What a signal leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Response {
    /// It is written down.
    Note,
    /// An incident is opened, and the door stays as it is.
    Incident,
    /// Nothing new goes there.
    Drain,
    /// Operators and canaries only.
    Private,
    /// Nobody.
    Closed,
}

impl Response {
    /// How far the door is open then.
    pub fn access(self) -> Openness {
        match self {
            Self::Note | Self::Incident => Openness::Open,
            Self::Drain => Openness::Draining,
            Self::Private => Openness::Private,
            Self::Closed => Openness::Closed,
        }
    }
}

/// For whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Breadth {
    /// The engines at which it was seen; all of the model, if they are not known.
    Pair,
    /// All engines of the model.
    Model,
    /// Everything that reads the same journal.
    Fleet,
}

/// What one kind of signal leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// What.
    pub act: Response,
    /// For whom.
    pub scope: Breadth,
    /// So many of them…
    pub times: u32,
    /// …within that time, in milliseconds; fewer are written down.
    pub within_ms: u64,
}

/// What must have been tested before a door is opened again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restore {
    /// Kinds of proof, all of which are needed.
    pub proofs: Vec<ProofKind>,
    /// Answers of canaries that make a proof.
    pub canary_answers: u64,
    /// How old a proof may be, in milliseconds.
    pub max_age_ms: u64,
}

/// The whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    rules: BTreeMap<SignalKind, Rule>,
    /// The way back.
    pub restore: Restore,
}

impl Policy {
    /// What this kind leads to.
    pub fn rule(&self, kind: SignalKind) -> Rule {
        self.rules[&kind] // every kind has one, by construction
    }
}

const MINUTES_10: u64 = 600_000;

impl Default for Policy {
    fn default() -> Self {
        let rule = |act, scope, times| Rule {
            act,
            scope,
            times,
            within_ms: MINUTES_10,
        };
        let of = |kind| match kind {
            // Text of somebody else has left, or would have: everything of this model runs the same.
            SignalKind::CanaryLeak | SignalKind::OverLimitAnswered | SignalKind::CanaryLost => {
                rule(Response::Private, Breadth::Model, 1)
            }
            SignalKind::ProbeFinding => rule(Response::Private, Breadth::Model, 1),
            SignalKind::CanaryMixup | SignalKind::AnothersAnswer => {
                rule(Response::Private, Breadth::Pair, 1)
            }
            // Nothing has left; that it happens again and again is a pair that is not well.
            SignalKind::IntegrityFault | SignalKind::GuardRefusal => {
                rule(Response::Drain, Breadth::Pair, 3)
            }
            SignalKind::WatchAlarm | SignalKind::GateViolated => {
                rule(Response::Incident, Breadth::Model, 1)
            }
            // A client can bring one about, and must not be able to close a door.
            SignalKind::CountMismatch => rule(Response::Incident, Breadth::Pair, 3),
        };
        Self {
            rules: SignalKind::ALL.map(|kind| (kind, of(kind))).into(),
            restore: Restore {
                proofs: vec![ProofKind::Probe, ProofKind::Canary],
                canary_answers: 300,
                max_age_ms: 24 * 3_600_000,
            },
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    on: BTreeMap<SignalKind, Written>,
    restore: Option<WrittenRestore>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    action: Option<Response>,
    scope: Option<Breadth>,
    times: Option<u32>,
    within: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenRestore {
    proofs: Option<Vec<ProofKind>>,
    canary_answers: Option<u64>,
    max_age: Option<String>,
}

/// What cannot be used in a policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unusable(String);

impl Policy {
    /// Reads a policy.
    ///
    /// # Errors
    /// What stands there that means nothing.
    pub fn parse(text: &str) -> Result<Self, Unusable> {
        let file: File = toml::from_str(text).map_err(|why| Unusable(why.to_string()))?;
        let mut policy = Self::default();
        for (kind, written) in file.on {
            let rule = policy.rules.get_mut(&kind).expect("every kind has one");
            let name = kind.as_str();
            rule.act = written.action.unwrap_or(rule.act);
            rule.scope = written.scope.unwrap_or(rule.scope);
            rule.times = written.times.unwrap_or(rule.times);
            if !(1..=1000).contains(&rule.times) {
                let times = rule.times;
                return Err(Unusable(format!(
                    "on.{name}.times is {times}; it can be 1 to 1000"
                )));
            }
            if let Some(within) = written.within {
                rule.within_ms = time(&within, &format!("on.{name}.within"))?;
            }
        }
        if let Some(written) = file.restore {
            let restore = &mut policy.restore;
            restore.proofs = written.proofs.unwrap_or(restore.proofs.clone());
            restore.canary_answers = written.canary_answers.unwrap_or(restore.canary_answers);
            if let Some(age) = written.max_age {
                restore.max_age_ms = time(&age, "restore.max_age")?;
            }
            if restore.proofs.is_empty() {
                let why = "restore.proofs is empty: a door that was closed on evidence is not \
                           opened without any; name \"probe\", \"canary\" or both";
                return Err(Unusable(why.to_owned()));
            }
        }
        Ok(policy)
    }
}

/// As in `30s`, `10m`, `24h`.
fn time(text: &str, name: &str) -> Result<u64, Unusable> {
    let read = || {
        let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
        let unit = match unit {
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            _ => return None,
        };
        let number: u64 = number.parse().ok()?;
        number.checked_mul(unit).filter(|ms| *ms > 0)
    };
    read().ok_or_else(|| {
        Unusable(format!(
            "{name} is {text:?}; it can be like \"30s\", \"10m\" or \"24h\""
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_is_as_by_default() {
        assert_eq!(Policy::parse("").unwrap(), Policy::default());
        let policy = Policy::parse(
            "[on.canary_leak]\naction = 'closed'\nscope = 'fleet'\n[on.count_mismatch]\ntimes = 9\n\
             within = '2h'\n[restore]\nproofs = ['canary']\n",
        );
        let policy = policy.unwrap();
        let leak = policy.rule(SignalKind::CanaryLeak);
        assert_eq!((leak.act, leak.scope), (Response::Closed, Breadth::Fleet));
        let count = policy.rule(SignalKind::CountMismatch);
        assert_eq!((count.act, count.times), (Response::Incident, 9));
        assert_eq!(count.within_ms, 7_200_000);
        assert_eq!(policy.restore.proofs, [ProofKind::Canary]);
    }

    #[test]
    fn what_means_nothing_is_refused_by_name() {
        for (text, named) in [
            ("[on.canary_leek]\naction='note'", "canary_leek"),
            ("[on.canary_leak]\naction='ignore'", "ignore"),
            ("[on.canary_leak]\nwithin='soon'", "on.canary_leak.within"),
            ("[on.canary_leak]\ntimes=0", "on.canary_leak.times"),
            ("[restore]\nproofs=[]", "restore.proofs"),
            ("[restore]\nproof=['probe']", "proof"),
        ] {
            let error = Policy::parse(text).unwrap_err().to_string();
            assert!(error.contains(named), "{text}: {error}");
        }
    }

    /// A client that can bring a signal about must not be able to close a door with it.
    #[test]
    fn what_a_client_can_bring_about_closes_nothing_by_default() {
        let rule = Policy::default().rule(SignalKind::CountMismatch);
        assert_eq!(rule.act.access(), Openness::Open);
    }
}
