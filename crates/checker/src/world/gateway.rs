//! The gateway's effects, and what clients see of them.

use super::World;
use super::act::End;
use super::content::letter;
use super::links::find;
use super::said::short;
use super::state::State;
use crate::model::Notes;
use crate::{properties, situations};
use handoff::gateway::{Effect, Event, Item, Outcome};
use handoff::{Conn, Decisions, GatewayToDecode, RequestId};

impl<J: Decisions> World<J> {
    pub(super) fn ask(&self, state: &mut State<J>, client: usize, notes: &mut Notes) {
        state.clients[client].asked = true;
        let (spec, deadline_ms) = (self.spec(client), 1000);
        notes.tell(|| format!("client {} asks: {:?}", letter(client), spec.tokens));
        self.tell_gateway(state, Event::Request { spec, deadline_ms }, notes);
    }

    pub(super) fn tell_gateway(&self, state: &mut State<J>, event: Event, notes: &mut Notes) {
        let effects = state.gateway.hear(event);
        for effect in effects {
            self.gateway_effect(state, effect, notes);
        }
    }

    fn gateway_effect(&self, state: &mut State<J>, effect: Effect, notes: &mut Notes) {
        match effect {
            Effect::ToPrefill(conn, message) => {
                notes.tell(|| format!("  gateway to prefill: {}", short(&message)));
                let link = find(&mut state.asking, conn).filter(|link| link.caller_up);
                if let Some(link) = link.filter(|link| link.callee_up) {
                    link.forth.push_back(message);
                }
            }
            Effect::ToDecode(conn, message) => {
                notes.tell(|| format!("  gateway to decode: {}", short(&message)));
                if let GatewayToDecode::Expect { attempt, spec, .. } = &message {
                    properties::of_expect(self, state, *attempt, spec, notes);
                }
                let link = find(&mut state.telling, conn).filter(|link| link.caller_up);
                if let Some(link) = link.filter(|link| link.callee_up) {
                    link.forth.push_back(message);
                }
            }
            Effect::Close(conn, why) => {
                notes.saw(situations::HUNG_UP);
                notes.tell(|| format!("  gateway closes connection {}: {why:?}", conn.0));
                self.close(state, conn, End::Caller);
            }
            Effect::Deliver { request, item } => self.delivered(state, request, item, notes),
            Effect::Finish { request, outcome } => self.finished(state, request, outcome, notes),
            Effect::Arm { timer, .. } => drop(state.gateway_timers.insert(timer)),
            Effect::Disarm(timer) => drop(state.gateway_timers.remove(&timer)),
        }
    }

    fn delivered(&self, state: &mut State<J>, request: RequestId, item: Item, notes: &mut Notes) {
        let at = client_of(request);
        let mark = self.mark(at);
        notes.tell(|| match &item {
            Item::Begin { cached_tokens, .. } => {
                format!(
                    "  client {}: an answer begins ({cached_tokens} cached)",
                    letter(at)
                )
            }
            Item::Tokens { payload, .. } => {
                let of = payload.first().map_or('?', |of| letter(usize::from(*of)));
                format!("  client {}: a token of {of}'s answer", letter(at))
            }
        });
        properties::of_delivery(&state.clients[at], mark, &item, notes);
        let client = &mut state.clients[at];
        match item {
            Item::Begin { .. } => client.begun = true,
            Item::Tokens { choice, finish, .. } => {
                if let Some(tokens) = client.tokens.get_mut(usize::from(choice)) {
                    *tokens += 1;
                }
                if finish.is_some() {
                    client.finished.push(choice);
                }
            }
        }
    }

    fn finished(
        &self,
        state: &mut State<J>,
        request: RequestId,
        outcome: Outcome,
        notes: &mut Notes,
    ) {
        let at = client_of(request);
        notes.tell(|| format!("  client {}: {outcome:?}", letter(at)));
        notes.saw(match outcome {
            Outcome::Answered => situations::ANSWERED,
            Outcome::Failed(_) => situations::FAILED,
            Outcome::Rejected(_) => situations::REJECTED,
            Outcome::Refused(_) => situations::REFUSED,
            Outcome::ClientLeft => situations::LEFT,
        });
        properties::of_outcome(state, at, &outcome, notes);
        state.clients[at].outcome = Some(outcome);
    }

    /// An end closes a connection by itself. It need not be told.
    pub(super) fn close(&self, state: &mut State<J>, conn: Conn, end: End) {
        self.drop_end(state, conn, end);
    }
}

fn client_of(request: RequestId) -> usize {
    request.n as usize - 1
}
