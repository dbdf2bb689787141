//! The clauses on traces of real runs: what the three machines were told and what they answered is
//! folded through properties that can be judged from it.
//!
//! A trace has no memory, so content (H-1) cannot be judged here, and one machine's trace says
//! nothing of what the others did: what is written below is the part of a clause that one party
//! can be held to by what it heard and said. That part is judged from messages alone, by its own
//! bookkeeping, not by asking the machine for its own opinion; only pages are counted by asking the
//! ledger who holds what (H-3, H-10).

mod decode;
mod gateway;
mod prefill;

use crate::model::{Notes, Violation};
use pages::{Counts, Holder, Sound, State};
use std::collections::BTreeMap;
use std::path::Path;
use wire::trace::{DecodeInput, ReplayObserver, Replayed, TraceError, replay_watched};

/// What a trace says.
#[derive(Debug)]
pub struct Judged {
    /// It gave the same effects again.
    pub replayed: Replayed,
    /// On how many steps each clause was judged.
    pub judged: BTreeMap<&'static str, u64>,
    /// The first clause that does not hold, and the number of the input.
    pub violation: Option<(u64, Violation)>,
}

/// Replays a trace, compares its effects byte for byte, and judges every step.
///
/// # Errors
/// If the trace cannot be read or gives other effects.
pub fn of_trace(path: &Path) -> Result<Judged, TraceError> {
    let mut judge = Judge::default();
    let replayed = replay_watched(path, Sound, &mut judge)?;
    if replayed.at_rest {
        judge.step(|judge, notes| {
            judge.prefill.at_rest(notes);
            judge.decode.at_rest(notes);
            judge.gateway.at_rest(notes);
        });
    }
    Ok(Judged {
        replayed,
        judged: judge.judged,
        violation: judge.violation,
    })
}

#[derive(Default)]
struct Judge {
    prefill: prefill::Fold,
    decode: decode::Fold,
    gateway: gateway::Fold,
    inputs: u64,
    judged: BTreeMap<&'static str, u64>,
    violation: Option<(u64, Violation)>,
}

impl Judge {
    fn step(&mut self, judge: impl FnOnce(&mut Self, &mut Notes)) {
        let mut notes = Notes::default();
        judge(self, &mut notes);
        self.inputs += 1;
        for clause in notes.checked.iter() {
            *self.judged.entry(clause).or_default() += 1;
        }
        if let (Some(violation), None) = (notes.violation, &self.violation) {
            self.violation = Some((self.inputs, violation));
        }
    }
}

impl ReplayObserver<Sound> for Judge {
    fn prefill(
        &mut self,
        input: &handoff::prefill::Event,
        effects: &[handoff::prefill::Effect],
        after: &mut handoff::prefill::Prefill,
    ) {
        self.step(|judge, notes| judge.prefill.step(input, effects, after, notes));
    }

    fn decode(
        &mut self,
        input: &DecodeInput,
        effects: &[handoff::decode::Effect],
        after: &mut handoff::decode::Decode,
    ) {
        self.step(|judge, notes| judge.decode.step(input, effects, after, notes));
    }

    fn gateway(
        &mut self,
        input: &handoff::gateway::Event,
        effects: &[handoff::gateway::Effect],
        _: &mut handoff::gateway::Gateway,
    ) {
        self.step(|judge, notes| judge.gateway.step(input, effects, notes));
    }
}

/// H-10, recounted page by page.
fn adds_up(held: &[Holder], counts: Counts, notes: &mut Notes) {
    let count = |is: fn(State) -> bool| held.iter().filter(|holder| is(holder.state)).count();
    let recounted = Counts {
        free: counts.total() - held.len(),
        reserved: count(|state| state == State::Reserved),
        granted: count(|state| state == State::Granted),
        sealed: count(|state| state == State::Sealed),
        cached: count(|state| state == State::Cached),
        quarantined: count(|state| matches!(state, State::Quarantined(_))),
    };
    notes.check("H-10", recounted == counts, || {
        format!("recounted {recounted:?}, kept {counts:?}")
    });
}
