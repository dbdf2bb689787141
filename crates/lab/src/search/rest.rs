//! H-11: from every reachable world a run without faults reaches rest.
//!
//! "Eventually" over all runs is the wrong question: a run may go round in a circle as long as
//! somebody delays the one thing that helps. The question is whether there is a way out of every
//! world that can be reached, faults in the past and none to come. A world is fine if it is at rest,
//! or leads to a fine one without a fault; the least fixpoint of that. There is no other end: a bound
//! says what may go wrong and how often, never how often somebody may try again.

use super::{Counterexample, Nodes};
use crate::encode::Canonical;
use crate::model::{Model, Notes, Violation};
use std::collections::BTreeSet;

/// The nearest world from which rest cannot be reached.
pub(super) fn unreachable_from(nodes: &Nodes) -> Option<u32> {
    let mut fine = nodes.done.clone();
    // Most ways lead to worlds with higher numbers, so a sweep from the end settles most of them;
    // sweeps go on until one changes nothing.
    loop {
        let mut changed = false;
        let mut end = nodes.onward.len();
        for (at, fan) in nodes.fans.iter().enumerate().rev() {
            let onward = &nodes.onward[end - usize::from(*fan)..end];
            end -= usize::from(*fan);
            if !fine[at] && onward.iter().any(|to| fine[*to as usize]) {
                fine[at] = true;
                changed = true;
            }
        }
        if !changed {
            return fine.iter().position(|fine| !fine).map(|at| at as u32);
        }
    }
}

/// How it goes on from there without faults, until nothing happens any more or only what has
/// happened before.
pub(super) fn counterexample<M: Model>(model: &M, acts: Vec<M::Act>) -> Counterexample<M::Act> {
    let (mut state, mut notes) = model.initial();
    for act in &acts {
        model.apply(&mut state, act, &mut notes);
    }
    let (mut then, mut possible) = (Vec::new(), Vec::new());
    let (mut been, mut canonical) = (BTreeSet::new(), Canonical::default());
    let end = loop {
        model.encode(&state, &mut canonical);
        if !been.insert(canonical.bytes().to_vec()) {
            break "and is where it was before";
        }
        possible.clear();
        model.acts(&mut state, &mut possible);
        possible.retain(|act| !model.is_fault(act));
        // One that leads somewhere new, if there is one.
        let mut onward = possible.iter().map(|act| {
            let mut after = model.fork(&mut state);
            model.apply(&mut after, act, &mut Notes::default());
            (act, after)
        });
        let new = onward.find(|(_, after)| {
            model.encode(after, &mut canonical);
            !been.contains(canonical.bytes())
        });
        match new {
            Some((act, after)) => {
                then.push(act.clone());
                state = after;
            }
            None if possible.is_empty() => break "and then nothing can happen",
            None => break "and then only what has happened before",
        }
    };
    let (steps, further) = (acts.len(), then.len());
    let what = format!(
        "after {steps} steps no run without faults reaches rest: one goes on for {further} steps \
         {end}"
    );
    let violation = Violation {
        clause: model.progress(),
        what,
    };
    Counterexample {
        violation,
        acts,
        then,
    }
}
