//! From descriptions of nodes to findings. Pure: time, table and baseline are arguments.
//!
//! Every function here keeps one rule: an answer is [`Answer::Holds`] only if every figure that the
//! statement speaks of was read and makes it true. It is [`Answer::Violated`] as soon as the known
//! ones contradict it, whatever else is missing. Everything else is [`Answer::Unknown`].

mod advice;
mod group;
mod node;
mod pool;
mod version;

use crate::advisories::Table;
use crate::baseline::Baseline;
use crate::check::TABLE_IS_FRESH;
use crate::date::Date;
use crate::finding::{Answer, Evidence, Finding, Subject};
use crate::shared_pool::PoolReading;
use fleet::{Fact, Figure, Measured, Node, Role, TOKENS_MAX, Unknown};

/// What the operator says that a node does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stated {
    /// `--prefill`
    Prefill,
    /// `--decode`
    Decode,
    /// `--server`: it answers alone, or its gateway speaks for its workers.
    Server,
}

impl Stated {
    /// As the flag and the fleet file write it.
    pub fn word(self) -> &'static str {
        match self {
            Stated::Prefill => "prefill",
            Stated::Decode => "decode",
            Stated::Server => "server",
        }
    }
}

/// A node and what is said about it from outside.
#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    /// What was read.
    pub node: Node,
    /// What the operator says that it does; none for a log, and for a worker that a gateway named.
    pub stated: Option<Stated>,
    /// Its address stands for several servers (a Service of Kubernetes).
    pub shared_address: bool,
}

impl Member {
    /// Whether it takes part in handoffs, by its own word or the operator's.
    pub fn hands_over(&self) -> bool {
        let says = self.node.role.as_ref().ok().map(|it| it.value);
        matches!(self.stated, Some(Stated::Prefill | Stated::Decode))
            || matches!(says, Some(Role::Prefill | Role::Decode | Role::Either))
    }

    fn subject(&self) -> Subject {
        Subject::Node(self.node.name.clone())
    }
}

/// Nodes that may hand to each other: every prefill node to every decode node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// What the operator calls it.
    pub name: String,
    /// Places in [`Subjects::members`].
    pub prefill: Vec<usize>,
    /// Places in [`Subjects::members`].
    pub decode: Vec<usize>,
}

/// Everything that is judged together.
#[derive(Clone, Debug, Default)]
pub struct Subjects {
    /// All nodes.
    pub members: Vec<Member>,
    /// Which may hand to which.
    pub groups: Vec<Group>,
    /// The `[[pool]]` entries, as read.
    pub pools: Vec<PoolReading>,
}

/// How much more than a full context a pool must hold, in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headroom {
    /// For engines that start with a pool below their context.
    pub thousandths: u64,
    /// For engines that refuse to.
    pub refusing_thousandths: u64,
}

impl Default for Headroom {
    fn default() -> Self {
        Self {
            thousandths: 1250,
            refusing_thousandths: 1000,
        }
    }
}

impl Headroom {
    /// One factor for every engine. Thousandths from 1000 to 100,000.
    pub fn of_all(thousandths: u64) -> Self {
        Self {
            thousandths,
            refusing_thousandths: thousandths,
        }
    }
}

/// Against what is judged.
#[derive(Clone, Copy, Debug)]
pub struct Rules<'a> {
    /// The context that was promised to somebody: it can only raise what a pool must hold.
    pub context: Option<u64>,
    /// See there.
    pub headroom: Headroom,
    /// Answers and tables age by this day.
    pub today: Date,
    /// What is known about versions.
    pub table: &'a Table,
    /// The accepted state.
    pub baseline: Option<&'a Baseline>,
}

/// All findings, in no particular order.
pub fn judge(subjects: &Subjects, rules: &Rules<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (place, member) in subjects.members.iter().enumerate() {
        node::judge(member, &mut findings);
        pool::judge(place, subjects, rules, &mut findings);
        version::judge(member, rules.table, &mut findings);
        advice::judge(member, &mut findings);
        findings.extend(pair_complete(place, subjects));
    }
    for each in &subjects.groups {
        group::judge(each, subjects, &mut findings);
    }
    advice::versions_of_roles(subjects, &mut findings);
    for reading in &subjects.pools {
        crate::shared_pool::judge(reading, rules.today, &mut findings);
    }
    if let Some(baseline) = rules.baseline {
        findings.extend(baseline.compare(subjects));
    }
    if !subjects.members.is_empty() {
        findings.push(table_is_fresh(rules));
    }
    findings
}

/// A node without a counterpart is not judged as a pair, which must not look like a pass.
fn pair_complete(place: usize, subjects: &Subjects) -> Option<Finding> {
    let member = &subjects.members[place];
    let check = &crate::check::PAIR_COMPLETE;
    if !member.hands_over() {
        // Nobody says what it does: it may hand over.
        let why = member
            .node
            .role
            .as_ref()
            .err()
            .filter(|_| member.stated.is_none())?;
        let says = format!("whether it hands over is not known ({why}): name its role");
        return Some(Finding::new(check, member.subject(), Answer::Unknown, says));
    }
    let mut others = 0;
    for group in &subjects.groups {
        if group.prefill.contains(&place) {
            others += group.decode.len();
        }
        if group.decode.contains(&place) {
            others += group.prefill.len();
        }
    }
    let (answer, says) = match others {
        0 => (
            Answer::Unknown,
            "no counterpart was given: limits were compared with nobody's".to_owned(),
        ),
        others => (
            Answer::Holds,
            format!("compared with {others} counterpart(s)"),
        ),
    };
    Some(Finding::new(check, member.subject(), answer, says))
}

fn table_is_fresh(rules: &Rules<'_>) -> Finding {
    let age = rules.today.days_since(rules.table.date);
    let answer = if age > i64::from(rules.table.good_for_days) {
        Answer::Violated
    } else if age < -1 {
        Answer::Unknown // the clock or the table is wrong; a day is time zones
    } else {
        Answer::Holds
    };
    let table = &rules.table;
    let says = format!(
        "the table is of {}, {age} days old (good for {})",
        table.date, table.good_for_days
    );
    Finding::new(&TABLE_IS_FRESH, Subject::Fleet, answer, says)
        .with([Evidence::given("date of the table", table.date.to_string())])
}

/// A count that can be true: the fields are open, and a figure that is absurd must never prove
/// anything, whoever put it there.
fn sane(fact: &Fact<Measured<u64>>) -> Result<u64, String> {
    match fact {
        Ok(figure) if (1..=TOKENS_MAX).contains(&figure.value) => Ok(figure.value),
        Ok(figure) => Err(format!("{} at {} is absurd", figure.value, figure.source)),
        Err(unknown) => Err(unknown.to_string()),
    }
}

fn figure<T>(fact: &Fact<Measured<T>>) -> Result<&Figure<T>, &Unknown> {
    fact.as_deref()
}
