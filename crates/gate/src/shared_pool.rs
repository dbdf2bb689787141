//! Any shared pool: session slots, buffers, connections.
//!
//! The rule behind the incident is general. A pool that several owners share needs an assertion,
//! against the running process, that ties its size to the largest request that is accepted; and two
//! questions need somebody's answer, because no endpoint reports them.

use crate::check::{Check, POOL_COVERS_LARGEST, RECEIVER_COMPARES, REJECT_ENDS_FIRST};
use crate::date::Date;
use crate::facts::{Figure, FigureSource};
use crate::finding::{Answer, Evidence, Finding, Subject, grouped, percent};
use serde::Deserialize;

/// Days for which an attested answer or a declared figure is good, if it names no other day.
pub const ATTESTATION_DAYS: u32 = 180;
/// No figure of a shared pool is larger: 2^60 of whatever it is counted in.
pub const AMOUNT_MAX: u64 = 1 << 60;

/// One `[[pool]]`, with its figures as they were read.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolReading {
    /// What the operator calls it.
    pub name: String,
    /// `slots`, `bytes`, `connections`.
    pub unit: String,
    /// How much more than the largest request it must hold, in thousandths.
    pub headroom_thousandths: u64,
    /// How much it holds.
    pub size: Amount,
    /// The largest request that is accepted.
    pub largest: Amount,
    /// Whether a rejected request ends before it allocates.
    pub reject_ends_first: Option<Attestation>,
    /// Whether the receiver compares what arrived with what was reserved.
    pub receiver_compares: Option<Attestation>,
}

/// A figure of a pool.
#[derive(Clone, Debug, PartialEq)]
pub enum Amount {
    /// Read from the running process, or why it could not be.
    Read(Result<Figure<u64>, String>),
    /// Nobody measured it: somebody says so, and answers for it until it expires.
    Declared {
        /// The figure.
        value: u64,
        /// Who says so.
        by: Attestation,
    },
}

/// An answer that somebody gives in person.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attestation {
    /// Yes or no.
    #[serde(default = "yes")]
    pub answer: bool,
    /// A person or a team that can be asked.
    pub owner: String,
    /// When it was found out.
    pub date: Date,
    /// The last day on which it counts [default: 180 days after `date`].
    pub expires: Option<Date>,
}

fn yes() -> bool {
    true
}

impl Attestation {
    /// The last day on which it counts.
    pub fn last_day(&self) -> Date {
        self.expires
            .unwrap_or(self.date.plus_days(ATTESTATION_DAYS))
    }

    /// Why it does not count today.
    fn stale(&self, today: Date) -> Option<String> {
        if self.owner.trim().is_empty() {
            return Some("nobody answers for it: `owner` is empty".to_owned());
        }
        // A day of difference is time zones.
        if today.days_since(self.date) < -1 {
            return Some(format!("its date {} is in the future", self.date));
        }
        let last = self.last_day();
        (today > last).then(|| format!("the answer of {} expired on {last}", self.owner))
    }
}

impl Amount {
    /// The figure, or why it cannot be used.
    fn value(&self, today: Date) -> Result<u64, String> {
        let (value, at) = match self {
            Amount::Read(Ok(figure)) => (figure.value, figure.source.to_string()),
            Amount::Read(Err(why)) => return Err(why.clone()),
            Amount::Declared { value, by } => match by.stale(today) {
                Some(why) => return Err(why),
                None => (*value, by.owner.clone()),
            },
        };
        match (1..=AMOUNT_MAX).contains(&value) {
            true => Ok(value),
            false => Err(format!("{value} at {at} is absurd")),
        }
    }

    fn evidence(&self, what: &str, today: Date) -> Evidence {
        Evidence {
            what: what.to_owned(),
            value: self.value(today).map(Into::into),
            source: match self {
                Amount::Read(Ok(figure)) => Some(figure.source.clone()),
                _ => None,
            },
        }
    }

    fn declared(&self) -> String {
        match self {
            Amount::Read(_) => String::new(),
            Amount::Declared { by, .. } => {
                format!(" (declared by {} on {}, not measured)", by.owner, by.date)
            }
        }
    }
}

/// The three questions about one pool.
pub(crate) fn judge(pool: &PoolReading, today: Date, findings: &mut Vec<Finding>) {
    findings.push(covers(pool, today));
    for (check, answer) in [
        (&REJECT_ENDS_FIRST, &pool.reject_ends_first),
        (&RECEIVER_COMPARES, &pool.receiver_compares),
    ] {
        findings.push(attested(pool, check, answer.as_ref(), today));
    }
}

fn subject(pool: &PoolReading) -> Subject {
    Subject::Pool(pool.name.clone())
}

fn covers(pool: &PoolReading, today: Date) -> Finding {
    let (size, largest) = (pool.size.value(today), pool.largest.value(today));
    let evidence = [
        pool.size.evidence("size", today),
        pool.largest.evidence("largest request", today),
    ];
    let new = |answer, says| {
        Finding::new(&POOL_COVERS_LARGEST, subject(pool), answer, says).with(evidence.clone())
    };
    let (size, largest) = match (size, largest) {
        (Ok(size), Ok(largest)) => (size, largest),
        (Err(why), _) => return new(Answer::Unknown, format!("size unknown: {why}")),
        (_, Err(why)) => return new(Answer::Unknown, format!("largest request unknown: {why}")),
    };
    let need = (u128::from(largest) * u128::from(pool.headroom_thousandths)).div_ceil(1000);
    let holds = u128::from(size) >= need;
    let (unit, sign) = (&pool.unit, if holds { ">=" } else { "<" });
    let need = grouped(u64::try_from(need).unwrap_or(u64::MAX));
    let says = format!(
        "{} {unit}{} {sign} largest request {}{} with headroom {need}: {} %",
        grouped(size),
        pool.size.declared(),
        grouped(largest),
        pool.largest.declared(),
        percent(size, largest)
    );
    let answer = if holds {
        Answer::Holds
    } else {
        Answer::Violated
    };
    new(answer, says)
}

fn attested(
    pool: &PoolReading,
    check: &'static Check,
    attestation: Option<&Attestation>,
    today: Date,
) -> Finding {
    let Some(it) = attestation else {
        let says = "nobody has answered it".to_owned();
        return Finding::new(check, subject(pool), Answer::Unknown, says);
    };
    let evidence = [
        Evidence::given("answer", it.answer),
        Evidence::given("owner", it.owner.clone()),
        Evidence::given("date", it.date.to_string()),
    ];
    let until = it.last_day();
    let (answer, says) = match (it.stale(today), it.answer) {
        (_, false) => (
            Answer::Violated,
            format!("{} said no on {}", it.owner, it.date),
        ),
        (Some(why), true) => (Answer::Unknown, why),
        (None, true) => {
            let says = format!(
                "{} attested it on {}, good until {until}",
                it.owner, it.date
            );
            (Answer::Holds, says)
        }
    };
    Finding::new(check, subject(pool), answer, says).with(evidence)
}

/// The last number that a log has where `pattern` has `{}`: `pool holds {} slots`. Thousands may
/// be separated by commas.
///
/// # Errors
/// No line has the pattern, or what stands there is no whole number.
pub fn from_log(file: &str, text: &str, pattern: &str) -> Result<Figure<u64>, String> {
    let (before, after) = pattern.split_once("{}").ok_or("the pattern has no {}")?;
    let mut found = None;
    for (number, line) in text.lines().enumerate() {
        for (at, _) in line.match_indices(before) {
            let rest = &line[at + before.len()..];
            let is_number = |c: char| c.is_ascii_digit() || c == ',' || c == '.' || c == '-';
            let end = rest.find(|c| !is_number(c)).unwrap_or(rest.len());
            // A full stop or comma behind the number is the sentence's.
            let word = rest[..end].trim_end_matches(['.', ',']);
            if rest[word.len()..].starts_with(after) && !word.is_empty() {
                found = Some((number as u64 + 1, word));
            }
        }
    }
    let (line, word) = found.ok_or_else(|| format!("no line of {file} has {pattern:?}"))?;
    let value = word.replace(',', "").parse();
    let value = value.map_err(|_| format!("{word:?} in {file}:{line} is no whole number"))?;
    let (file, field) = (file.to_owned(), pattern.to_owned());
    Ok(Figure::new(value, FigureSource::Line { file, line, field }))
}

#[cfg(test)]
#[path = "shared_pool_tests.rs"]
mod tests;
