//! The gateway's effects, and what clients see of them.

use super::World;
use super::act::End;
use super::content::letter;
use super::links::find;
use super::said::short;
use super::state::{Client, Pair, State};
use crate::model::Notes;
use crate::{properties, situations};
use handoff::gateway::{Effect, Event, Item, Outcome};
use handoff::{Conn, Decisions, GatewayToDecode, RequestId, decode};
use pages::Epoch;

impl<J: Decisions> World<J> {
    pub(super) fn ask(&self, state: &mut State<J>, client: usize, notes: &mut Notes) {
        let request = state.gateway.ask(|gateway| gateway.next_request());
        state.clients[client].asked = true;
        state.clients[client].request = Some(request);
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
                    after_another(state, attempt.epoch, notes);
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
            Effect::FailStop(why) => properties::of_fail_stop("gateway", &why, notes),
        }
    }

    fn delivered(&self, state: &mut State<J>, request: RequestId, item: Item, notes: &mut Notes) {
        let Some(at) = client_of(state, request, notes) else {
            return;
        };
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
        let Some(at) = client_of(state, request, notes) else {
            return;
        };
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

    /// The gateway's process ends, and with it its connections, of which workers hear each at its own
    /// moment; a new one begins and dials everybody. Clients that had no answer ask again.
    pub(super) fn spawn_gateway(&self, state: &mut State<J>, notes: &mut Notes) {
        state.left.gateway_spawns -= 1;
        notes.saw(situations::GATEWAY_BEGAN);
        state.gateway_lives += 1;
        state.gateway = self.new_gateway(state.gateway_lives);
        state.gateway_timers.clear();
        let asking = state.asking.iter().map(|link| link.conn);
        let telling = state.telling.iter().map(|link| link.conn);
        for conn in asking.chain(telling).collect::<Vec<_>>() {
            self.drop_end(state, conn, End::Caller);
        }
        let dial = |pair: &Pair| !matches!(pair, Pair::Handing(..));
        let pairs: Vec<_> = state.to_dial().into_iter().filter(dial).collect();
        state.undialled.extend(pairs);
        let prompts = self.setup.prompts.iter();
        for (client, prompt) in state.clients.iter_mut().zip(prompts) {
            if client.asked && client.outcome.is_none() {
                *client = Client::new(prompt);
            }
        }
    }

    /// An end closes a connection by itself. It need not be told.
    pub(super) fn close(&self, state: &mut State<J>, conn: Conn, end: End) {
        self.drop_end(state, conn, end);
    }
}

/// H-8: what is said of a request is said of one that a client has.
fn client_of<J: Decisions>(
    state: &State<J>,
    request: RequestId,
    notes: &mut Notes,
) -> Option<usize> {
    let of = |client: &Client| client.request == Some(request);
    let found = state.clients.iter().position(of);
    notes.check("H-8", found.is_some(), || {
        format!("request {} is nobody's", request.n)
    });
    found
}

/// A worker still has something of a gateway's life that has ended.
fn after_another<J: Decisions>(state: &State<J>, life: Epoch, notes: &mut Notes) {
    let old =
        |timer: &decode::Timer| matches!(timer, decode::Timer::Attempt(of) if of.epoch != life);
    if state.decodes.iter().any(|life| life.timers.iter().any(old)) {
        notes.saw(situations::OLD_ATTEMPT);
    }
}
