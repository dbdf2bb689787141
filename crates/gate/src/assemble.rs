//! From what was read, address by address, to members and groups.

use crate::config::GroupEntry;
use crate::facts::{Engine, Node, Role};
use crate::judge::{Group, Member, Stated, Subjects};
use crate::shared_pool::PoolReading;
use std::collections::BTreeMap;

/// Name of the group that all prefill and decode nodes form if no other is given.
pub const ONE_GROUP: &str = "fleet";

/// What one address or log gave.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// What the operator calls it.
    pub name: String,
    /// What the operator says that it does; none for a log without a role.
    pub stated: Option<Stated>,
    /// It stands for several servers.
    pub shared_address: bool,
    /// One, or the workers that a gateway speaks for. Never empty: what could not be read is a node
    /// of which nothing is known.
    pub nodes: Vec<Node>,
}

impl Reading {
    /// A gateway of ours speaks for its workers: they form a group of their own, and their roles are
    /// measured, not stated.
    fn is_gateway(&self) -> bool {
        let hands_over = |node: &Node| {
            let role = node.role.as_ref().ok().map(|it| it.value);
            matches!(role, Some(Role::Prefill | Role::Decode))
        };
        let ours = |node: &Node| {
            node.engine
                .as_ref()
                .is_ok_and(|it| it.value == Engine::Cofferdam)
        };
        self.nodes.len() > 1 || self.nodes.iter().any(|it| ours(it) && hands_over(it))
    }
}

/// Puts nodes and groups together.
pub fn assemble(
    readings: Vec<Reading>,
    groups: &[GroupEntry],
    pools: Vec<PoolReading>,
) -> Subjects {
    let mut subjects = Subjects {
        pools,
        ..Subjects::default()
    };
    let mut places: BTreeMap<String, usize> = BTreeMap::new();
    let mut rest = Group {
        name: ONE_GROUP.to_owned(),
        prefill: Vec::new(),
        decode: Vec::new(),
    };
    for reading in readings {
        if reading.is_gateway() {
            add_gateway(&mut subjects, reading);
            continue;
        }
        for mut node in reading.nodes {
            node.name.clone_from(&reading.name);
            let place = subjects.members.len();
            places.insert(reading.name.clone(), place);
            let member = Member {
                node,
                stated: reading.stated,
                shared_address: reading.shared_address,
            };
            put(&mut rest, role(&member), place);
            subjects.members.push(member);
        }
    }
    for entry in groups {
        let pick = |names: &[String]| -> Vec<usize> {
            names
                .iter()
                .filter_map(|name| places.get(name).copied())
                .collect()
        };
        subjects.groups.push(Group {
            name: entry.name.clone(),
            prefill: pick(&entry.prefill),
            decode: pick(&entry.decode),
        });
    }
    if groups.is_empty() && !(rest.prefill.is_empty() && rest.decode.is_empty()) {
        subjects.groups.push(rest);
    }
    subjects
}

fn put(group: &mut Group, role: Option<Role>, place: usize) {
    match role {
        Some(Role::Prefill) => group.prefill.push(place),
        Some(Role::Decode) => group.decode.push(place),
        _ => {}
    }
}

/// The operator's word, else the node's own.
fn role(member: &Member) -> Option<Role> {
    match member.stated {
        Some(Stated::Prefill) => Some(Role::Prefill),
        Some(Stated::Decode) => Some(Role::Decode),
        Some(Stated::Server) => None,
        None => member.node.role.as_ref().ok().map(|it| it.value),
    }
}

fn add_gateway(subjects: &mut Subjects, reading: Reading) {
    let mut group = Group {
        name: reading.name.clone(),
        prefill: Vec::new(),
        decode: Vec::new(),
    };
    for mut node in reading.nodes {
        if !node.name.starts_with(&reading.name) {
            node.name = format!("{} {}", reading.name, node.name);
        }
        let member = Member {
            node,
            stated: None,
            shared_address: reading.shared_address,
        };
        put(&mut group, role(&member), subjects.members.len());
        subjects.members.push(member);
    }
    subjects.groups.push(group);
}
