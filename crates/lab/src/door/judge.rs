//! The clauses of `docs/door.md`, judged against what the engines have really done.

use super::act::Act;
use super::engines::{Place, Wrote};
use super::{Front, State};
use crate::model::Notes;
use handoff::door::{Decisions, Effect, End, EngineId, Leg, Outcome, Timer};
use handoff::{AttemptId, RequestId};

impl<J: Decisions> Front<J> {
    pub(super) fn judge_effect(&self, state: &mut State<J>, effect: &Effect, notes: &mut Notes) {
        match effect {
            Effect::Dispatch { .. } => self.judge_dispatch(state, effect, notes),
            Effect::Abort(id, leg, _) => self.judge_abort(state, *id, *leg, notes),
            Effect::Release { request, attempt } => {
                notes.saw("released");
                self.judge_answer(state, *request, *attempt, false, notes);
            }
            Effect::Finish { request, outcome } => {
                self.judge_outcome(state, *request, outcome, notes);
            }
            Effect::FailStop(broken) => notes.violates("DR-3", format!("fail-stop: {broken}")),
            Effect::Drop(..) => notes.saw("leg given up"),
            Effect::Arm { .. } | Effect::Disarm(_) => {}
        }
    }

    fn judge_dispatch(&self, state: &State<J>, effect: &Effect, notes: &mut Notes) {
        let Effect::Dispatch {
            request,
            attempt,
            leg,
            engine,
            max_new,
            reference,
        } = effect
        else {
            return;
        };
        let other = match leg {
            Leg::Prefill => Leg::Decode,
            Leg::Decode => Leg::Prefill,
        };
        let sibling = state.places.get(&(*attempt, other));
        let begun = sibling.is_some_and(|it| it.request == *request);
        let newer = state.highest.is_none_or(|highest| *attempt > highest);
        let fresh = !state.places.contains_key(&(*attempt, *leg)) && (begun || newer);
        notes.check("DR-7", fresh, || {
            format!("attempt {} was asked for before ({leg})", attempt.n)
        });
        let lengths = self.setup.engines[engine.0 as usize].lengths;
        let tokens = self.setup.ask_of(*request).prompt.most();
        let room = lengths.and_then(|lengths| lengths.room(u64::from(tokens)));
        notes.check("DR-8", room.is_some_and(|room| *max_new <= room), || {
            format!("{tokens} tokens and {max_new} go to an engine that takes {lengths:?}")
        });
        let ask = self.setup.ask_of(*request);
        if ask.operator {
            notes.saw("an operator asked");
        }
        let kept = self.setup.engines[engine.0 as usize].private && !ask.operator;
        let meant = ask.only.is_empty() || ask.only.contains(engine);
        notes.check("DR-13", !kept && meant, || {
            format!("engine {} is asked for whom it is not for", engine.0)
        });
        let here = |((id, _), place): (&(AttemptId, Leg), &Place)| {
            id != attempt && place.engine == *engine && place.request == *request && !place.over
        };
        let joins = state.places.iter().any(here);
        let client = state.clients.iter().find(|it| it.request == Some(*request));
        let had = client.and_then(|client| client.has);
        let again = state
            .places
            .iter()
            .any(|((id, _), place)| id != attempt && place.request == *request);
        if again {
            notes.saw("tried again");
        }
        notes.check(
            "DR-6",
            !joins && had.is_none_or(|had| had == *attempt),
            || {
                format!(
                    "attempt {} begins beside an older one of its request",
                    attempt.n
                )
            },
        );
        if let Some(reference) = reference {
            let prefill = state.places.get(&(*reference, Leg::Prefill));
            let answered = prefill.is_some_and(|it| matches!(it.said, Some(End::Answered { .. })));
            let fine = reference == attempt && answered && !state.used.contains(reference);
            notes.check("DR-11", fine, || {
                format!(
                    "attempt {} uses the reference of {}",
                    attempt.n, reference.n
                )
            });
        }
    }

    /// Decode is not to end while prefill may write into its pages, nor while it reads prefill's;
    /// prefill not while it writes.
    fn judge_abort(&self, state: &State<J>, id: AttemptId, leg: Leg, notes: &mut Notes) {
        notes.saw("aborted by the engine's own call");
        let excused = state.excused.contains(&id);
        let decode = state.places.get(&(id, Leg::Decode));
        let Some(prefill) = state.places.get(&(id, Leg::Prefill)) else {
            // A server that answers by itself, or a router: behind that, pages go over until it speaks.
            let hidden = decode.is_some_and(|it| self.is_router(it.engine) && !it.spoke);
            return notes.check("DR-5", !hidden || excused, || {
                format!(
                    "attempt {}: a router is left in the middle of a transfer",
                    id.n
                )
            });
        };
        let refused = |place: &Place| {
            use handoff::door::Blame::{Busy, Client};
            matches!(
                place.said,
                Some(End::Failed(Client | Busy) | End::Unreached)
            )
        };
        let never = decode.is_some_and(refused);
        let declared = self.setup.engines[prefill.engine.0 as usize].aborts_prefill;
        let writes = (!prefill.over || prefill.late) && !never;
        let pull = self.handing(prefill.engine) == Some(handoff::door::Handing::Pull);
        let reads = pull && decode.is_some_and(|it| !it.spoke && !it.over);
        let fine = match leg {
            Leg::Prefill if pull => !reads || declared,
            Leg::Prefill => !writes || declared,
            Leg::Decode if pull => !reads,
            Leg::Decode => !writes || (declared && prefill.over),
        };
        notes.check("DR-5", fine || excused, || {
            format!(
                "attempt {}: {leg} is aborted in the middle of a transfer",
                id.n
            )
        });
    }

    /// Something of an answer, or the whole of it, reaches the client.
    fn judge_answer(
        &self,
        state: &State<J>,
        request: RequestId,
        attempt: AttemptId,
        whole: bool,
        notes: &mut Notes,
    ) {
        let client = state.clients.iter().find(|it| it.request == Some(request));
        let same = client
            .is_some_and(|it| it.outcome.is_none() && it.has.is_none_or(|had| had == attempt));
        notes.check("DR-3", same, || {
            format!(
                "attempt {} is released beside another, or too late",
                attempt.n
            )
        });
        let decode = state.places.get(&(attempt, Leg::Decode));
        let Some(decode) = decode.filter(|it| it.request == request) else {
            return notes.violates("DR-3", "an answer that nobody has given");
        };
        let prefill = state.places.get(&(attempt, Leg::Prefill));
        let pair = self.handing(decode.engine).is_some();
        if pair {
            let good = prefill.is_some_and(|it| {
                let answered = matches!(it.said, Some(End::Answered { .. }));
                answered && !it.foreign && !it.miscounted
            });
            let said = prefill.is_some_and(|it| it.said.is_some());
            notes.check("DR-1", said, || {
                format!("attempt {}: released before prefill was judged", attempt.n)
            });
            notes.check("DR-2", good || !said, || {
                format!("attempt {}: prefill has computed another prompt", attempt.n)
            });
            let wrote = prefill.map(|it| it.wrote);
            notes.check("DR-1", !good || wrote == Some(Wrote::All), || {
                format!("attempt {}: decode read what nobody has written", attempt.n)
            });
        }
        let counted = !(whole && decode.miscounted);
        notes.check("DR-2", counted, || {
            format!("attempt {}: decode has counted otherwise", attempt.n)
        });
        notes.check("DR-12", !decode.foreign, || {
            format!("attempt {}: the answer is another's", attempt.n)
        });
    }

    fn judge_outcome(
        &self,
        state: &State<J>,
        request: RequestId,
        outcome: &Outcome,
        notes: &mut Notes,
    ) {
        let client = state.clients.iter().find(|it| it.request == Some(request));
        let first = client.is_some_and(|it| it.outcome.is_none());
        notes.check("DR-3", first, || format!("a second outcome, {outcome:?}"));
        let asked = state.places.values().any(|it| it.request == request);
        match outcome {
            Outcome::Answered(attempt) => {
                notes.saw("answered");
                self.judge_answer(state, request, *attempt, true, notes);
            }
            Outcome::TooLong { .. } => {
                notes.saw("too long");
                notes.check("DR-8", !asked, || "an engine was asked first".into());
            }
            Outcome::Refused(_) => {
                notes.saw("turned away");
                notes.check("DR-8", !asked, || "an engine was asked first".into());
            }
            Outcome::Failed(failing) => notes.saw(match failing.leg {
                Leg::Prefill => "failed at prefill",
                Leg::Decode => "failed at decode",
            }),
            Outcome::ClientLeft => notes.saw("client left"),
        }
    }

    pub(super) fn judge_state(&self, state: &mut State<J>, act: &Act, notes: &mut Notes) {
        if let Act::Due(Timer::Request(request)) | Act::Fires(Timer::Request(request)) = act {
            let ended = state
                .client_of(*request)
                .is_some_and(|it| it.outcome.is_some());
            notes.check("DR-10", ended, || "its deadline has passed".into());
        }
        for at in 0..self.setup.engines.len() as u32 {
            let engine = EngineId(at);
            let own = state.own_faults.get(&engine).copied().unwrap_or(0);
            let counted = state.door.faults_of(engine);
            notes.check("DR-9", counted <= own, || {
                format!("engine {at} is blamed {counted} times and failed {own} times itself")
            });
        }
    }
}
