//! Worlds made again from the way to them.

use super::Nodes;
use super::expand::Seed;
use crate::model::{Model, Notes};

/// Makes the worlds that could not be kept alive. What they have in common of their ways is gone
/// only once: neighbours in a layer have near ancestors.
pub(super) fn missing<M: Model>(model: &M, nodes: &Nodes, seeds: &mut [Seed<M::State>]) {
    let missing: Vec<&mut Seed<M::State>> = seeds
        .iter_mut()
        .filter(|seed| seed.state.is_none())
        .collect();
    if missing.is_empty() {
        return;
    }
    let ways: Vec<Way<M::State>> = missing
        .into_iter()
        .map(|seed| Way {
            path: nodes.path(seed.number),
            state: &mut seed.state,
        })
        .collect();
    let (first, _) = model.initial();
    descend(model, Box::new(first), 0, ways);
}

/// The way to a world, and where the world is wanted.
struct Way<'a, S> {
    path: Vec<(u32, u16)>,
    state: &'a mut Option<Box<S>>,
}

/// All of `ways` pass through `state`, which is `level` steps from the first world.
fn descend<M: Model>(
    model: &M,
    mut state: Box<M::State>,
    level: usize,
    ways: Vec<Way<'_, M::State>>,
) {
    let mut acts = Vec::new();
    let mut ways = ways.into_iter().peekable();
    while let Some(way) = ways.next() {
        let Some((number, ordinal)) = way.path.get(level).copied() else {
            *way.state = Some(state); // the only one: numbers are distinct
            return;
        };
        if acts.is_empty() {
            model.acts(&mut state, &mut acts);
        }
        let mut group = vec![way];
        let same = |other: &Way<M::State>| other.path.get(level) == Some(&(number, ordinal));
        while let Some(other) = ways.next_if(same) {
            group.push(other);
        }
        let act = &acts[usize::from(ordinal)];
        let mut notes = Notes::default();
        if ways.peek().is_some() {
            let mut after = Box::new(model.fork(&mut state));
            model.apply(&mut after, act, &mut notes);
            descend(model, after, level + 1, group);
        } else {
            model.apply(&mut state, act, &mut notes);
            return descend(model, state, level + 1, group);
        }
    }
}

/// The acts at these places, one after the other, among those that are possible.
pub(super) fn acts<M: Model>(model: &M, path: impl Iterator<Item = u16>) -> Vec<M::Act> {
    let (mut state, mut notes) = model.initial();
    let mut done = Vec::new();
    let mut acts = Vec::new();
    for ordinal in path {
        acts.clear();
        model.acts(&mut state, &mut acts);
        let act = acts.swap_remove(usize::from(ordinal));
        model.apply(&mut state, &act, &mut notes);
        done.push(act);
    }
    done
}
