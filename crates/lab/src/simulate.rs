//! Beyond every bound: long random runs through worlds that are too large to be explored.
//!
//! A seed decides a run, and nothing else does. First anything may happen, faults as often as the
//! world has them left; then no fault happens any more, and rest must come (H-11). Time passes: a
//! deadline, any one, when nothing else can happen ([`Model::overdue`]); that is no fault. A run that breaks
//! a clause is made short before it is shown: parts of it are left out as long as the same clause
//! breaks.

use crate::encode::Canonical;
use crate::model::{Model, Notes, Violation};
use crate::scenario::{Faults, Setup};
use std::collections::BTreeMap;

/// Dozens; a world can tell 52 apart.
const REQUESTS: usize = 48;
/// So much longer than in the world that is explored are prompts and answers, and so much larger
/// are the pools.
const LONGER: u32 = 3;

/// A world of the same kind that is far too large to be explored: forty-eight requests that may
/// come at any moment, three workers of each kind at least, every fault of the world (and of the
/// commonest kinds some in any case) a dozen times.
pub fn large(setup: &Setup) -> Setup {
    let asked = setup.prompts.iter().cycle().take(REQUESTS).enumerate();
    let prompts = asked.map(|(at, prompt)| {
        let mut prompt = prompt.clone();
        // Some are the same as others, and some begin alike.
        let last = prompt.tokens.len().saturating_sub(1);
        if let Some(token) = prompt.tokens.get_mut(last) {
            *token += at as u32 / 4;
        }
        prompt.tokens = prompt.tokens.repeat(LONGER as usize);
        prompt.max_new *= LONGER;
        prompt
    });
    let often = |n: u8| n.saturating_mul(12);
    let of = setup.faults;
    let faults = Faults {
        leaves: often(of.leaves).max(3),
        stops: often(of.stops),
        failed_writes: often(of.failed_writes).max(6),
        echoes: often(of.echoes).max(6),
        corruptions: often(of.corruptions).max(2),
        losses: often(of.losses),
        truncations: often(of.truncations),
        breaks: often(of.breaks).max(6),
        gateway_breaks: often(of.gateway_breaks),
        deadlines: often(of.deadlines).max(6),
        prefill_kills: of.prefill_kills,
        prefill_spawns: of.prefill_spawns,
        decode_kills: of.decode_kills,
        decode_spawns: of.decode_spawns,
        stale: often(of.stale),
        failed_computes: often(of.failed_computes).max(2),
        drains: of.drains,
        lingers: often(of.lingers).max(2),
        hangs: often(of.hangs),
        gateway_spawns: of.gateway_spawns,
        failed_arenas: often(of.failed_arenas),
        together: None,
    };
    let (prefills, decodes) = (setup.prefills.max(3), setup.decodes.max(3));
    // Room for every worker, as there was: one that is turned away for want of it dials again for as
    // long as it lives.
    let room = |of: usize, more: usize| if of == 0 { 0 } else { of + more };
    Setup {
        prompts: prompts.collect(),
        at_once: false,
        prefills,
        decodes,
        prefill_pages: setup.prefill_pages * LONGER,
        decode_pages: setup.decode_pages * LONGER,
        context: setup.context * LONGER,
        arena_slots: setup.arena_slots * 2,
        peers: room(setup.peers, prefills - setup.prefills),
        known_decodes: room(setup.known_decodes, decodes - setup.decodes),
        faults,
        ..setup.clone()
    }
}

/// How long a run is.
#[derive(Clone, Copy, Debug)]
pub struct Length {
    /// Steps on which faults may happen.
    pub steps: usize,
    /// Of so many steps on which one could, a fault happens on one.
    pub fault_in: u64,
    /// Steps without faults after which rest must have been reached.
    pub patience: usize,
}

impl Default for Length {
    fn default() -> Self {
        Self {
            steps: 3_000,
            fault_in: 25,
            patience: 50_000,
        }
    }
}

/// What a run was like.
#[derive(Clone, Debug, PartialEq)]
pub struct Run<A> {
    /// Says the same of two runs only if they went through the same worlds.
    pub digest: u64,
    /// Steps.
    pub steps: usize,
    /// On how many steps each interesting situation was met.
    pub seen: BTreeMap<&'static str, u64>,
    /// The clause that was broken, and the shortest way to it that was found.
    pub violation: Option<(Violation, Vec<A>)>,
}

/// Runs a world.
pub fn run<M: Model>(model: &M, seed: u64, length: Length) -> Run<M::Act> {
    let (state, notes) = model.initial();
    let mut walk = Walk {
        model,
        length,
        dice: Dice(seed),
        state,
        possible: Vec::new(),
        acts: Vec::new(),
        seen: BTreeMap::new(),
        digest: 0,
        canonical: Canonical::default(),
        violation: notes.violation,
    };
    walk.go();
    let steps = walk.acts.len();
    let violation = walk.violation.take().map(|violation| {
        let acts = shrink(
            model,
            std::mem::take(&mut walk.acts),
            violation.clause,
            length,
        );
        let again = breaks(model, &acts, violation.clause, length);
        (again.map_or(violation, |(violation, _)| violation), acts)
    });
    Run {
        digest: walk.digest,
        steps,
        seen: walk.seen,
        violation,
    }
}

struct Walk<'a, M: Model> {
    model: &'a M,
    length: Length,
    dice: Dice,
    state: M::State,
    possible: Vec<M::Act>,
    acts: Vec<M::Act>,
    seen: BTreeMap<&'static str, u64>,
    digest: u64,
    canonical: Canonical,
    violation: Option<Violation>,
}

impl<M: Model> Walk<'_, M> {
    fn go(&mut self) {
        for _ in 0..self.length.steps {
            if self.violation.is_some() || !self.step(true) {
                break;
            }
        }
        for _ in 0..self.length.patience {
            if self.violation.is_some() || self.model.at_rest(&mut self.state) {
                return;
            }
            if !self.step(false) {
                break;
            }
        }
        if self.violation.is_none() && !self.model.at_rest(&mut self.state) {
            self.violation = Some(no_rest(self.length.patience));
        }
    }

    /// Lets one thing happen; false if nothing can.
    fn step(&mut self, faults: bool) -> bool {
        self.possible.clear();
        self.model.acts(&mut self.state, &mut self.possible);
        self.model.overdue(&mut self.state, &mut self.possible);
        let model = self.model;
        let (bad, good): (Vec<_>, Vec<_>) =
            self.possible.drain(..).partition(|act| model.is_fault(act));
        let goes_wrong = faults && !bad.is_empty() && self.dice.roll(self.length.fault_in) == 0;
        let from = if goes_wrong { bad } else { good };
        if from.is_empty() {
            return false;
        }
        let act = &from[self.dice.roll(from.len() as u64) as usize];
        let mut notes = Notes::default();
        model.step(&mut self.state, act, &mut notes);
        for situation in notes.seen {
            *self.seen.entry(situation).or_default() += 1;
        }
        self.acts.push(act.clone());
        self.violation = notes.violation;
        model.encode(&self.state, &mut self.canonical);
        for byte in self.canonical.bytes() {
            self.digest = (self.digest ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        }
        true
    }
}

fn no_rest(patience: usize) -> Violation {
    Violation {
        clause: "H-11",
        what: format!("after {patience} steps without faults there is no rest"),
    }
}

/// Lets happen what can of these, and says which clause breaks, if it is this one, and on what way.
fn breaks<M: Model>(
    model: &M,
    acts: &[M::Act],
    clause: &'static str,
    length: Length,
) -> Option<(Violation, Vec<M::Act>)> {
    let (mut state, _) = model.initial();
    let (mut done, mut possible) = (Vec::new(), Vec::new());
    for act in acts {
        possible.clear();
        model.acts(&mut state, &mut possible);
        model.overdue(&mut state, &mut possible);
        if !possible.contains(act) {
            continue;
        }
        let mut notes = Notes::default();
        model.step(&mut state, act, &mut notes);
        done.push(act.clone());
        match notes.violation {
            Some(violation) if violation.clause == clause => return Some((violation, done)),
            Some(_) => return None,
            None => {}
        }
    }
    if clause == "H-11" && never_rests(model, state, length.patience) {
        return Some((no_rest(length.patience), done));
    }
    None
}

/// Whether rest is not reached from here by a run without faults.
fn never_rests<M: Model>(model: &M, mut state: M::State, patience: usize) -> bool {
    let mut dice = Dice(0);
    let mut possible = Vec::new();
    for _ in 0..patience {
        if model.at_rest(&mut state) {
            return false;
        }
        possible.clear();
        model.acts(&mut state, &mut possible);
        model.overdue(&mut state, &mut possible);
        possible.retain(|act| !model.is_fault(act));
        if possible.is_empty() {
            return true;
        }
        let act = &possible[dice.roll(possible.len() as u64) as usize];
        let mut notes = Notes::default();
        model.step(&mut state, act, &mut notes);
        if notes.violation.is_some() {
            return false;
        }
    }
    true
}

/// Leaves out half, a quarter, an eighth … of the run wherever the clause still breaks.
fn shrink<M: Model>(
    model: &M,
    mut acts: Vec<M::Act>,
    clause: &'static str,
    length: Length,
) -> Vec<M::Act> {
    if let Some((_, done)) = breaks(model, &acts, clause, length) {
        acts = done;
    } else {
        return acts;
    }
    let mut part = acts.len().div_ceil(2);
    while part > 0 {
        let mut at = 0;
        let mut shorter = false;
        while at < acts.len() {
            let mut rest = acts[..at].to_vec();
            rest.extend_from_slice(&acts[(at + part).min(acts.len())..]);
            match breaks(model, &rest, clause, length) {
                Some((_, done)) if done.len() < acts.len() => {
                    acts = done;
                    shorter = true;
                }
                _ => at += part,
            }
        }
        // Single steps go on until none can be left out.
        part = if part == 1 && shorter { 1 } else { part / 2 };
    }
    acts
}

/// SplitMix64: a seed gives the same numbers everywhere and for ever.
struct Dice(u64);

impl Dice {
    /// A number below `sides`.
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{Prompt, Setup};
    use crate::search::{Limits, explore};
    use crate::timeline;
    use crate::toy::{Act, Toy};
    use crate::world::{self, World};

    fn toy() -> Toy {
        Toy {
            jobs: 30,
            breaks: 20,
            ..Toy::default()
        }
    }

    #[test]
    fn a_seed_decides_the_run() {
        let length = Length::default();
        let runs: Vec<_> = [1, 1, 2]
            .iter()
            .map(|seed| run(&toy(), *seed, length))
            .collect();
        assert_eq!(runs[0], runs[1]);
        assert_ne!(runs[0].digest, runs[2].digest);
        assert!(runs[0].violation.is_none());
        assert!(runs[0].seen["broken"] > 3 && runs[0].seen["taken"] > 30);
    }

    /// H-11: a life of decode that was cut off while it lives, and has a successor, can be ended by
    /// nothing but deadlines. An explorer takes those for faults, and says that without them there is
    /// no rest; a run lets time pass, but only where nothing else can happen.
    #[test]
    fn time_passes_where_nothing_else_can_happen() {
        let faults = Faults {
            breaks: 1,
            decode_spawns: 1,
            ..Faults::default()
        };
        let world = World::new(Setup {
            prompts: vec![Prompt::new(&[1], 1)],
            prefill_pages: 1,
            decode_pages: 1,
            faults,
            ..Setup::default()
        });
        let found = explore(&world, &Limits::default(), &mut |_| {}).violation;
        let found = found.expect("only a deadline helps");
        assert_eq!(found.violation.clause, "H-11");
        let (mut state, _) = world.initial();
        let mut late = Vec::new();
        for act in found.acts.iter().chain(&found.then) {
            let mut possible = Vec::new();
            world.acts(&mut state, &mut possible);
            assert!(possible.contains(act));
            world.overdue(&mut state, &mut late);
            assert!(late.is_empty(), "{act} can happen, and time passes");
            world.apply(&mut state, act, &mut Notes::default());
        }
        assert!(!world.at_rest(&mut state));
        world.overdue(&mut state, &mut late);
        assert!(!late.is_empty() && late.iter().all(|act| !world.is_fault(act)));
        assert!(late.iter().all(|act| matches!(act, world::Act::Overdue(_))));
        assert!(!never_rests(&world, state, 1_000));
    }

    /// H-11: without faults, rest comes, and where it cannot come that is said.
    #[test]
    fn a_run_that_breaks_a_clause_is_made_short() {
        let leaks = Toy {
            leaks: true,
            ..toy()
        };
        let length = Length {
            patience: 1000,
            ..Length::default()
        };
        let (violation, acts) = run(&leaks, 3, length).violation.expect("a job is lost");
        assert_eq!((violation.clause, acts.len()), ("H-11", 2));
        assert!(matches!(acts[..], [Act::Take(a), Act::Break(b)] if a == b));
        let crowded = Toy {
            crowded: 2,
            ..toy()
        };
        let (violation, acts) = run(&crowded, 3, length).violation.expect("two hold one");
        assert_eq!((violation.clause, acts.len()), ("H-3", 2));
        let timeline = timeline::replay(&crowded, &acts).expect("possible");
        assert_eq!(timeline.violation, Some(violation));
    }
}
