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
use crate::facts::{Engine, Fact, Figure, Measured, Node, Role, TOKENS_MAX, Unknown, Version};
use crate::finding::{Answer, Evidence, Finding, Subject};
use crate::shared_pool::PoolReading;
use std::collections::BTreeMap;

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
    /// Whether it takes part in handoffs, by its own word, the operator's, or what it counts.
    pub fn hands_over(&self) -> bool {
        let says = self.node.role.as_ref().ok().map(|it| it.value);
        matches!(self.stated, Some(Stated::Prefill | Stated::Decode))
            || self.node.transfers.is_ok()
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
        advice::judge(member, rules.table, &mut findings);
        findings.extend(pair_complete(place, subjects));
    }
    for each in &subjects.groups {
        group::judge(each, subjects, rules.table, &mut findings);
    }
    advice::versions_of_roles(subjects, &mut findings);
    for reading in &subjects.pools {
        crate::shared_pool::judge(reading, rules.today, &mut findings);
    }
    if let Some(baseline) = rules.baseline {
        findings.extend(baseline.compare(subjects));
    }
    let mut told = BTreeMap::new();
    for member in &subjects.members {
        say_once(member, &mut told, &mut findings);
    }
    if !subjects.members.is_empty() {
        findings.push(table_is_fresh(subjects, rules));
    }
    findings
}

/// Why nothing at all is known of a node, or nothing of an endpoint, is told where it is asked
/// whether it answers. Everywhere else its name is enough: one dead node is one reason, not
/// seventeen; and a server that is listed in several roles is dead once. `told`: who has told what.
fn say_once(member: &Member, told: &mut BTreeMap<String, String>, findings: &mut [Finding]) {
    let node = &member.node;
    let why = match &node.engine {
        Err(why) => Some(why),
        Ok(engine) if !engine.value.is_supported() => node.ranks.as_ref().err(),
        Ok(_) => None,
    };
    let reasons = match why {
        Some(why) => vec![(why.to_string(), node.name.clone())],
        None => unread(node),
    };
    let own = member.subject();
    for (why, what) in reasons {
        let first = told.entry(why.clone()).or_insert(node.name.clone());
        if *first != node.name {
            let as_told = format!("it was not read, for the reason that is told at {first}");
            let its =
                |it: &&mut Finding| it.subject == own && it.check == &crate::check::NODE_ANSWERS;
            if let Some(finding) = findings.iter_mut().find(its).filter(|_| what == node.name) {
                finding.says = as_told;
            }
            continue;
        }
        for finding in findings.iter_mut() {
            let instead = match finding.subject == own {
                true if finding.check == &crate::check::NODE_ANSWERS => {
                    if !finding.says.contains(&why) {
                        finding.says = format!("{}; {why}", finding.says);
                        finding.evidence.push(Evidence::missing(what.clone(), &why));
                    }
                    continue;
                }
                true if what == node.name => "it was not read".to_owned(),
                _ => format!("{what} was not read"),
            };
            finding.says = finding.says.replace(&why, &instead);
            let values = finding.evidence.iter_mut().map(|it| &mut it.value);
            for says in values.filter_map(|it| it.as_mut().err()) {
                *says = says.replace(&why, &instead);
            }
        }
    }
}

/// Endpoints of a node that answers, whose own answers could not be read, and why.
fn unread(node: &Node) -> Vec<(String, String)> {
    let facts = [
        node.version.as_ref().err(),
        node.role.as_ref().err(),
        node.model.as_ref().err(),
        node.truncates.as_ref().err(),
        node.advertised.as_ref().err(),
        node.max_prompt.as_ref().err(),
        node.asides.as_ref().err(),
        node.guard.as_ref().err(),
    ];
    let mut found: Vec<_> = facts
        .into_iter()
        .flatten()
        .filter_map(|why| match why {
            Unknown::NotRead { url, trouble } if !trouble.is_absent() => {
                Some((why.to_string(), url.clone()))
            }
            _ => None,
        })
        .collect();
    found.sort();
    found.dedup();
    found
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
    let mut others = Vec::new();
    for group in &subjects.groups {
        if group.prefill.contains(&place) {
            others.extend(&group.decode);
        }
        if group.decode.contains(&place) {
            others.extend(&group.prefill);
        }
    }
    let read = |it: &&usize| {
        let engine = &subjects.members[**it].node.engine;
        engine.as_ref().is_ok_and(|it| it.value.is_supported())
    };
    let (all, read) = (others.len(), others.iter().filter(read).count());
    let (answer, says) = match (all, read) {
        (0, _) => (
            Answer::Unknown,
            "no counterpart was given: limits were compared with nobody's".to_owned(),
        ),
        (_, 0) => (
            Answer::Unknown,
            format!("none of {all} counterpart(s) was read: limits were compared with nobody's"),
        ),
        (all, read) if read < all => (
            Answer::Holds,
            format!("compared with {read} of {all} counterparts: the others were not read"),
        ),
        (all, _) => (Answer::Holds, format!("compared with {all} counterpart(s)")),
    };
    Some(Finding::new(check, member.subject(), answer, says))
}

/// The table is as old as what it knows of releases: of each engine that was read, when its newest
/// release was looked up, whether that one was looked at, and whether a node runs one newer still.
fn table_is_fresh(subjects: &Subjects, rules: &Rules<'_>) -> Finding {
    let table = rules.table;
    let nodes = subjects.members.iter().map(|it| &it.node);
    let mut read: Vec<(Engine, Option<&Version>)> = nodes
        .filter_map(|it| {
            let version = it.version.as_ref().ok().map(|it| &it.value);
            Some((it.engine.as_ref().ok()?.value, version))
        })
        .collect();
    read.sort();
    read.dedup();
    let (mut wrong, mut unseen) = (Vec::new(), Vec::new());
    if read.is_empty() {
        unseen.push("no engine was read".to_owned());
    }
    let mut dates = vec![("the table".to_owned(), table.date)];
    for (engine, version) in read {
        let Some(newest) = table.newest.get(&engine) else {
            // Ours comes with the table, and of what is not supported no version is judged.
            if engine.is_supported() && engine != Engine::Cofferdam {
                unseen.push(format!("the table knows no release of {engine}"));
            }
            continue;
        };
        dates.push((format!("the newest {engine}"), newest.on));
        let seen = table.seen_through.get(&engine);
        if seen.is_none_or(|seen| *seen < newest.version) {
            let ends = seen.map_or("nothing".to_owned(), ToString::to_string);
            wrong.push(format!(
                "{engine} {} is out, and the table ends at {ends}",
                newest.version
            ));
        }
        if let Some(version) = version.filter(|it| **it > newest.version) {
            let newest = &newest.version;
            match version.is_release() {
                true => wrong.push(format!(
                    "{engine} {version} runs, and the table knows none after {newest}"
                )),
                false => unseen.push(format!(
                    "{engine} {version} runs, a build after {newest} that was not released"
                )),
            }
        }
    }
    dates.dedup_by(|one, other| one == other);
    let age = |date: Date| rules.today.days_since(date);
    let good = i64::from(table.good_for_days);
    let old = dates.iter().filter(|(_, date)| age(*date) > good);
    wrong.extend(old.map(|(what, date)| {
        format!(
            "{what} is of {date}, {} days old (good for {good})",
            age(*date)
        )
    }));
    wrong.dedup();
    // The clock or the table is wrong; a day is time zones.
    let future = dates.iter().filter(|(_, date)| age(*date) < -1);
    unseen.extend(future.map(|(what, date)| {
        let today = rules.today;
        format!("{what} is of {date}, and this machine's clock says {today}: one of them is wrong")
    }));
    let (answer, says) = if !wrong.is_empty() {
        (Answer::Violated, wrong.join("; "))
    } else if !unseen.is_empty() {
        unseen.dedup();
        (Answer::Unknown, unseen.join("; "))
    } else {
        let oldest = dates
            .iter()
            .map(|(_, date)| *date)
            .min()
            .unwrap_or(table.date);
        let says = format!(
            "the table is of {}, releases were looked up {} days ago or later (good for {good})",
            table.date,
            age(oldest)
        );
        (Answer::Holds, says)
    };
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
