//! What machines say and clients see: H-2, H-5, H-6, H-7, H-8, H-9, H-16.

use crate::model::Notes;
use crate::world::{Client, DecodeLife, FlightState, PrefillLife, State, World, letter};
use handoff::decode::Effect;
use handoff::gateway::{Item, Outcome};
use handoff::{
    ArenaId, AttemptId, Broken, Decisions, DecodeToPrefill, Failure, HandoffId, OfferId, Spec,
};
use pages::Counts;

/// H-2, H-8: what D starts is what a client asked, and the first token is of that prompt.
pub fn of_start<J: Decisions>(
    world: &World<J>,
    life: &DecodeLife<J>,
    spec: &Spec,
    first: &[u8],
    notes: &mut Notes,
) -> usize {
    let _ = life;
    let (tokens, said) = spec.split();
    let asked = |prompt: &crate::scenario::Prompt| {
        prompt.tokens == tokens && prompt.domain == spec.domain.value()
    };
    let prompt = world.setup.prompts.iter().position(asked);
    notes.check("H-2", prompt.is_some(), || {
        format!(
            "D committed {} tokens that nobody asked like this",
            spec.tokens.len()
        )
    });
    let prompt = prompt.unwrap_or_default();
    notes.check("H-20", goes_on::<J>(prompt, spec.choice(0), said), || {
        format!("{}'s answer goes on behind what it is not", letter(prompt))
    });
    notes.check("H-8", first == [prompt as u8], || {
        format!(
            "the first token of {}'s answer was sampled for another prompt",
            letter(prompt)
        )
    });
    prompt
}

/// Whether these are the first tokens of that choice of the answer.
fn goes_on<J: Decisions>(prompt: usize, choice: u16, said: &[u32]) -> bool {
    let of = |n| World::<J>::token(prompt, choice, n);
    said.iter().copied().eq((0..said.len() as u32).map(of))
}

/// H-5, H-6, H-9: an attempt that was rejected, or in which a fault was found, is not committed.
pub fn of_commit<J: Decisions>(life: &DecodeLife<J>, attempt: AttemptId, notes: &mut Notes) {
    notes.check("H-5", !life.rejected.contains(&attempt), || {
        format!("attempt {} was rejected and is committed", attempt.n)
    });
    notes.check("H-6", !life.faulty.contains(&attempt), || {
        format!(
            "attempt {} had an integrity fault and is committed",
            attempt.n
        )
    });
}

/// H-9: no token leaves D before its commit.
pub fn of_tokens<J: Decisions>(state: &State<J>, attempt: AttemptId, notes: &mut Notes) {
    let client = state
        .clients
        .iter()
        .find(|client| client.attempts.contains(&attempt));
    if let Some(client) = client {
        // Of one that was given up before the last attempt nobody remembers it.
        let given_up = client.attempts.last() != Some(&attempt) && client.resumed == 0;
        notes.check(
            "H-9",
            given_up || client.committed.contains(&attempt),
            || format!("a token of attempt {} leaves before its commit", attempt.n),
        );
    }
}

/// H-9: pages are published on a commit and at no other time.
pub fn of_publishing(of: &str, before: Counts, after: Counts, committed: bool, notes: &mut Notes) {
    if after.cached > before.cached {
        notes.check("H-9", committed, || {
            format!("{of} cached pages that nobody has verified")
        });
    }
    if after.cached < before.cached {
        notes.saw(crate::situations::EVICTED);
    }
}

/// H-6, H-9: what a client sees, in the order in which it may see it.
pub fn of_delivery(client: &Client, mark: usize, item: &Item, notes: &mut Notes) {
    notes.check("H-6", client.outcome.is_none(), || {
        "something was delivered after the outcome".into()
    });
    notes.check("H-9", !client.committed.is_empty(), || {
        "something of an answer leaves before decode has committed".into()
    });
    if let Item::Tokens {
        choice, payload, ..
    } = item
    {
        notes.check("H-9", client.begun, || {
            "a token before the answer has begun".into()
        });
        let n = client
            .tokens
            .get(usize::from(*choice))
            .copied()
            .unwrap_or_default();
        let first = payload.len() == 3 && payload[0] == mark as u8;
        notes.check("H-8", first, || "a token of another request".into());
        let next = payload.get(1..) == Some(&[*choice as u8, n as u8]);
        notes.check("H-6", next, || {
            format!("token {n} of choice {choice} is lost or repeated")
        });
        let over = client.finished.contains(choice);
        notes.check("H-6", !over, || {
            "a token behind the last of its choice".into()
        });
    }
}

/// H-6: one outcome, and one that fits what the client has seen.
pub fn of_outcome<J: Decisions>(state: &State<J>, at: usize, outcome: &Outcome, notes: &mut Notes) {
    let client = &state.clients[at];
    notes.check("H-6", client.outcome.is_none(), || {
        format!("a second outcome after {:?}", client.outcome)
    });
    if let Outcome::Answered = outcome {
        let over =
            |choice: &u16| client.finished.contains(choice) || client.stopped.contains(choice);
        let whole = (0..client.tokens.len() as u16).all(|choice| over(&choice));
        notes.check("H-6", whole, || {
            "answered, and not every choice has finished".into()
        });
    }
    if let Outcome::Rejected(_) = outcome {
        notes.check("H-5", !client.begun, || {
            "rejected after its answer had begun".into()
        });
    }
}

/// H-8, H-16: a new attempt has a new id; there is one retry, and none once a token was sent.
pub fn of_expect<J: Decisions>(
    world: &World<J>,
    state: &mut State<J>,
    attempt: AttemptId,
    spec: &Spec,
    notes: &mut Notes,
) {
    let new = state
        .clients
        .iter()
        .all(|client| !client.attempts.contains(&attempt));
    notes.check("H-8", new, || {
        format!("attempt {} is used again", attempt.n)
    });
    let at = usize::from(spec.sampling.first().copied().unwrap_or_default());
    let Some(client) = state.clients.get_mut(at) else {
        return;
    };
    let limits = handoff::gateway::Config::default();
    match spec.resumes {
        Some(resumed) => {
            let (asked, said) = spec.split();
            let own = world.setup.prompts[at].tokens == asked;
            let mark = world.mark(at);
            let has = client.tokens.get(usize::from(resumed.choice)).copied();
            let all = has == Some(said.len() as u32) && goes_on::<J>(mark, resumed.choice, said);
            notes.check("H-20", own && all, || {
                format!(
                    "{} has {has:?} tokens of choice {}, and it goes on behind {said:?}",
                    letter(at),
                    resumed.choice
                )
            });
            client.resumed += 1;
            let most = limits.max_put_backs + limits.max_retries;
            let most = most as usize + client.tokens.len();
            notes.check("H-16", client.resumed <= most, || {
                "put back too often".into()
            });
        }
        None => {
            if !client.attempts.is_empty() {
                notes.saw(crate::situations::RETRIED);
                let sent = client.tokens.iter().any(|tokens| *tokens > 0);
                notes.check("H-16", !sent, || {
                    "tried again after a token was sent".into()
                });
            }
            let tries = client.attempts.len() - client.resumed;
            // What one pair turns away may go to another; there are few of these.
            let few = client.refused <= limits.max_refusals as usize;
            let tried = tries.saturating_sub(client.refused);
            let once = few && tried <= limits.max_retries as usize;
            notes.check("H-16", once, || "tried again too often".into());
            client.committed.clear();
        }
    }
    client.attempts.push(attempt);
}

/// An attempt that a worker turns away has cost nobody anything.
pub fn of_refusal<J: Decisions>(state: &mut State<J>, attempt: AttemptId) {
    let of = |client: &&mut Client| client.attempts.contains(&attempt);
    if let Some(client) = state.clients.iter_mut().find(of) {
        client.refused += 1;
    }
}

/// H-5, H-8: an offer is of an attempt that was not rejected, under an id of this life.
pub fn of_offer<J: Decisions>(
    life: &PrefillLife<J>,
    offer: OfferId,
    attempt: AttemptId,
    notes: &mut Notes,
) {
    notes.check("H-5", !life.rejected.contains(&attempt), || {
        format!("attempt {} was rejected and is offered", attempt.n)
    });
    let fresh = offer.epoch == life.epoch && !life.tickets.contains_key(&offer);
    notes.check("H-8", fresh, || {
        format!("offer {} is not a new one of this life", offer.n)
    });
}

/// H-5: nothing is computed for what was rejected.
pub fn of_admission<J: Decisions>(life: &PrefillLife<J>, attempt: AttemptId, notes: &mut Notes) {
    notes.check("H-5", !life.rejected.contains(&attempt), || {
        format!("attempt {} was rejected and is computed", attempt.n)
    });
}

/// H-5: no forward pass before a ticket.
pub fn of_compute<J: Decisions>(life: &PrefillLife<J>, offer: OfferId, notes: &mut Notes) {
    notes.check("H-5", life.tickets.contains_key(&offer), || {
        format!("a forward pass for offer {} before its ticket", offer.n)
    });
}

/// H-5, H-8: what D answers to an offer.
pub fn of_answer_to_offer<J: Decisions>(
    life: &DecodeLife<J>,
    offered: Option<(OfferId, AttemptId)>,
    effects: &[Effect],
    notes: &mut Notes,
) {
    let Some((offer, attempt)) = offered else {
        return;
    };
    for effect in effects {
        let Effect::ToPrefill(_, DecodeToPrefill::Ticket { offer: to, .. }) = effect else {
            continue;
        };
        notes.check("H-5", !life.rejected.contains(&attempt), || {
            format!("attempt {} was rejected and gets a ticket", attempt.n)
        });
        notes.check("H-8", *to == offer, || "a ticket for another offer".into());
    }
}

/// H-8: a ticket bears a name of this life.
pub fn of_ticket<J: Decisions>(life: &DecodeLife<J>, handoff: HandoffId, notes: &mut Notes) {
    notes.check("H-8", handoff.epoch == life.epoch, || {
        format!("handoff {} bears the name of another life", handoff.n)
    });
}

/// H-8: an arena is a new one of this life.
pub fn of_arena<J: Decisions>(life: &DecodeLife<J>, arena: ArenaId, notes: &mut Notes) {
    let fresh = arena.epoch == life.epoch && !life.arenas.contains_key(&arena);
    notes.check("H-8", fresh, || {
        format!("arena {} is not a new one of this life", arena.n)
    });
}

/// H-7: `Closed(h, w)` only after every write that `w` ever submitted for `h` has completed.
pub fn of_closed<J: Decisions>(
    state: &State<J>,
    life: &PrefillLife<J>,
    handoff: HandoffId,
    rank: u16,
    notes: &mut Notes,
) {
    let open = life
        .unreported
        .values()
        .any(|(of, by, _)| (*of, *by) == (Some(handoff), rank));
    notes.check("H-7", !open, || {
        format!(
            "handoff {} is closed while a submission of it is in flight",
            handoff.n
        )
    });
    let failed = life.failed.contains(&(handoff, rank));
    notes.check("H-7", !failed, || {
        format!(
            "handoff {} is closed though a submission of it has failed",
            handoff.n
        )
    });
    let flying = state.flights.iter().any(|flight| {
        (flight.writer, flight.handoff, flight.rank) == (life.epoch, Some(handoff), rank)
            && flight.state != FlightState::Echo
    });
    notes.check("H-7", !flying, || {
        format!(
            "handoff {} is closed while a write of it may still land",
            handoff.n
        )
    });
}

/// An integrity fault where nothing was done to any byte or message is a fault of the protocol.
pub fn of_audit<J: Decisions>(
    world: &World<J>,
    state: &State<J>,
    failure: Failure,
    notes: &mut Notes,
) {
    let (had, left) = (world.setup.faults, *state.left);
    let disturbed = had.corruptions > left.corruptions
        || had.losses > left.losses
        || had.truncations > left.truncations
        || had.stale > left.stale
        || had.echoes > left.echoes
        || had.failed_writes > left.failed_writes
        || had.prefill_kills > left.prefill_kills;
    notes.check("H-1", disturbed, || {
        format!("nothing was disturbed, and yet: {failure:?}")
    });
}

/// A machine that stops by itself has broken its own rules.
pub fn of_fail_stop(of: &str, why: &Broken, notes: &mut Notes) {
    notes.violates("H-3", format!("{of} stopped: {why}"));
}
