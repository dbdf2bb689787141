//! Breadth-first search over whole worlds, then progress by backward fixpoint.

use crate::act::Act;
use crate::world::{Notes, Setup, World};
use std::collections::{BTreeMap, HashMap};
use std::hash::{Hash, Hasher};

pub struct Report {
    pub worlds: usize,
    pub depth: usize,
    /// Whether every reachable world was visited.
    pub complete: bool,
    pub seen: BTreeMap<&'static str, usize>,
    pub violation: Option<Violation>,
}

pub struct Violation {
    pub what: String,
    pub timeline: Vec<String>,
}

/// The bytes that a world feeds to a hasher: all of its state, so equal bytes are equal worlds.
#[derive(Default)]
struct Whole(Vec<u8>);

impl Hasher for Whole {
    fn finish(&self) -> u64 {
        0
    }
    fn write(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
}

fn encode(world: &World) -> Vec<u8> {
    let mut whole = Whole::default();
    world.hash(&mut whole);
    whole.0
}

struct Node {
    parent: Option<(usize, Act)>,
    depth: usize,
    /// Successors by what is no fault.
    onward: Vec<usize>,
    at_rest: bool,
}

pub fn explore(setup: &Setup, bound: usize) -> Report {
    let mut notes = Notes::default();
    let mut first = World::new(setup, &mut notes);
    let mut known: HashMap<Vec<u8>, usize> = HashMap::new();
    let mut nodes = vec![Node {
        parent: None,
        depth: 0,
        onward: Vec::new(),
        at_rest: first.at_rest(),
    }];
    known.insert(encode(&first), 0);
    let mut seen: BTreeMap<&'static str, usize> = BTreeMap::new();
    let mut layer = vec![(0, first)];
    let mut complete = true;
    if let Some(what) = notes.violation {
        return report(&nodes, complete, seen, Some((what, 0, None)));
    }
    while !layer.is_empty() {
        let mut next = Vec::new();
        for (from, mut world) in layer {
            for act in world.acts() {
                let mut notes = Notes::default();
                let mut after = world.fork();
                after.apply(&act, &mut notes);
                for situation in notes.seen {
                    *seen.entry(situation).or_default() += 1;
                }
                if let Some(what) = notes.violation {
                    return report(&nodes, complete, seen, Some((what, from, Some(act))));
                }
                let key = encode(&after);
                let to = match known.get(&key) {
                    Some(to) => *to,
                    None if nodes.len() >= bound => {
                        complete = false;
                        continue;
                    }
                    None => {
                        let depth = nodes[from].depth + 1;
                        let parent = Some((from, act.clone()));
                        let at_rest = after.at_rest() || after.out_of_bounds();
                        nodes.push(Node {
                            parent,
                            depth,
                            onward: Vec::new(),
                            at_rest,
                        });
                        known.insert(key, nodes.len() - 1);
                        next.push((nodes.len() - 1, after));
                        nodes.len() - 1
                    }
                };
                if !act.is_fault() {
                    nodes[from].onward.push(to);
                }
            }
        }
        layer = next;
    }
    let stuck = if complete { stuck(&nodes) } else { None };
    let violation = stuck.map(|at| {
        let end = run_out(setup, &nodes, at);
        let what = format!("H-11: from here no run without faults reaches rest, but ends at {end}");
        (what, at, None)
    });
    report(&nodes, complete, seen, violation)
}

/// Goes on from a world without faults until nothing can happen; says what is left.
fn run_out(setup: &Setup, nodes: &[Node], at: usize) -> String {
    let mut notes = Notes::default();
    let mut world = World::new(setup, &mut notes);
    for act in path(nodes, at) {
        world.apply(&act, &mut notes);
    }
    let mut acts = Vec::new();
    while let Some(act) = world.acts().into_iter().find(|act| !act.is_fault()) {
        world.apply(&act, &mut notes);
        acts.push(format!("{act:?}"));
        if acts.len() > 200 {
            break;
        }
    }
    format!("{world:#?}\nafter {acts:?}")
}

fn path(nodes: &[Node], mut at: usize) -> Vec<Act> {
    let mut acts = Vec::new();
    while let Some((parent, act)) = &nodes[at].parent {
        acts.push(act.clone());
        at = *parent;
    }
    acts.reverse();
    acts
}

/// A world from which rest cannot be reached without a fault, nearest to the start.
fn stuck(nodes: &[Node]) -> Option<usize> {
    let mut back: Vec<Vec<usize>> = vec![Vec::new(); nodes.len()];
    for (from, node) in nodes.iter().enumerate() {
        for to in &node.onward {
            back[*to].push(from);
        }
    }
    let mut good = vec![false; nodes.len()];
    let mut open: Vec<usize> = (0..nodes.len()).filter(|at| nodes[*at].at_rest).collect();
    while let Some(at) = open.pop() {
        if !std::mem::replace(&mut good[at], true) {
            open.extend(&back[at]);
        }
    }
    good.iter().position(|good| !good)
}

fn report(
    nodes: &[Node],
    complete: bool,
    seen: BTreeMap<&'static str, usize>,
    violation: Option<(String, usize, Option<Act>)>,
) -> Report {
    let depth = nodes.iter().map(|node| node.depth).max().unwrap_or(0);
    let violation = violation.map(|(what, at, act)| {
        let acts = path(nodes, at).into_iter().chain(act);
        let timeline = acts.map(|act| format!("{act:?}")).collect();
        Violation { what, timeline }
    });
    Report {
        worlds: nodes.len(),
        depth,
        complete,
        seen,
        violation,
    }
}
