//! Carries effects out: what a driver does, on a world of data.

use crate::world::{ARENA_SLOTS, CopyInFlight, Flight, G_D, G_P, Link, Notes, World};
use handoff::decode::{self, Lane, Output};
use handoff::gateway::{self, Item, Outcome};
use handoff::prefill;
use handoff::{
    Closing, Conn, DecodeToGateway, DecodeToPrefill, Failure, Finish, GatewayToDecode,
    GatewayToPrefill, HandoffId, PrefillToDecode, PrefillToGateway, Spec,
};
use std::collections::{BTreeMap, VecDeque};

impl World {
    pub fn gateway_event(&mut self, event: gateway::Event, notes: &mut Notes) {
        for effect in self.gateway.handle(event) {
            self.gateway_effect(effect, notes);
        }
    }

    pub fn prefill_event(&mut self, event: prefill::Event, notes: &mut Notes) {
        for effect in self.prefill.handle(event) {
            self.prefill_effect(effect, notes);
        }
    }

    pub fn decode_event(&mut self, event: decode::Event, notes: &mut Notes) {
        let effects = self.decode.handle(event);
        self.decode_effects(effects, notes);
    }

    pub fn decode_effects(&mut self, effects: Vec<decode::Effect>, notes: &mut Notes) {
        for effect in effects {
            self.decode_effect(effect, notes);
        }
    }

    fn gateway_effect(&mut self, effect: gateway::Effect, notes: &mut Notes) {
        match effect {
            gateway::Effect::ToPrefill(_, message) => {
                if let GatewayToPrefill::Attempt { attempt, .. } = &message
                    && attempt.n > self.clients.len() as u64
                {
                    notes.saw("retried");
                }
                self.prefill_event(prefill::Event::FromGateway(G_P, message), notes);
            }
            gateway::Effect::ToDecode(_, message) => {
                if matches!(message, GatewayToDecode::Cancel { .. }) {
                    notes.saw("gateway cancel");
                }
                self.decode_event(decode::Event::FromGateway(G_D, message), notes);
            }
            gateway::Effect::Close(conn, why) => {
                notes.violates(format!("closed {conn:?}: {why:?}"))
            }
            gateway::Effect::Deliver { request, item } => {
                let at = self.client(request);
                let client = &mut self.clients[at];
                if client.outcome.is_some() {
                    notes.violates("H-6: something was delivered after the outcome");
                }
                match item {
                    Item::Begin { .. } => client.begun = true,
                    Item::Tokens {
                        payload, finish, ..
                    } => {
                        if !client.begun {
                            notes.violates("H-9: a token before the commit");
                        }
                        if payload != [at as u8] {
                            notes.violates("a token of another request");
                        }
                        client.finished |= finish.is_some();
                    }
                }
            }
            gateway::Effect::Finish { request, outcome } => {
                let at = self.client(request);
                let client = &mut self.clients[at];
                notes.saw(match outcome {
                    Outcome::Answered => "answered",
                    Outcome::Failed(_) => "failed",
                    Outcome::Rejected(_) => "rejected",
                    Outcome::Refused(_) => "refused",
                    Outcome::ClientLeft => "left",
                });
                if outcome == Outcome::Answered && !client.finished {
                    notes.violates("answered without a finished answer");
                }
                if client.outcome.replace(outcome).is_some() {
                    notes.violates("H-6: a second outcome");
                }
            }
            gateway::Effect::Arm { timer, .. } => drop(self.gateway_timers.insert(timer)),
            gateway::Effect::Disarm(timer) => drop(self.gateway_timers.remove(&timer)),
        }
    }

    fn prefill_effect(&mut self, effect: prefill::Effect, notes: &mut Notes) {
        match effect {
            prefill::Effect::ToGateway(_, message) => {
                if !matches!(
                    message,
                    PrefillToGateway::Hello(_) | PrefillToGateway::Ended { .. }
                ) {
                    notes.violates("prefill says something unknown");
                }
                self.gateway_event(gateway::Event::FromPrefill(G_P, message), notes);
            }
            prefill::Effect::ToDecode(conn, message) => {
                match &message {
                    PrefillToDecode::Unsettled { .. } => notes.saw("unsettled"),
                    PrefillToDecode::Closed {
                        how: Closing::Abandoned,
                        ..
                    } => {
                        notes.saw("abandoned");
                    }
                    _ => {}
                }
                if let Some(link) = self.link.as_mut().filter(|link| link.conn == conn) {
                    link.to_decode.push_back(message);
                }
            }
            prefill::Effect::Close(conn, _) => self.cut(conn, notes),
            prefill::Effect::Attach { arena, .. } => {
                let ok = self.arenas.contains_key(&arena);
                self.prefill_event(prefill::Event::Attached { arena, ok }, notes);
            }
            prefill::Effect::Detach { arena } => self.detaching.push(arena),
            prefill::Effect::Submit {
                submission,
                arena,
                pages,
                ..
            } => {
                self.unreported.insert(submission);
                for page in pages {
                    let (source, slot, late) = (page.page, page.slot, false);
                    self.flights.push(Flight {
                        submission,
                        arena,
                        source,
                        slot,
                        late,
                    });
                }
            }
            prefill::Effect::Compute {
                offer, from, to, ..
            } => self.chunk = Some((offer, from, to)),
            prefill::Effect::Admitted { .. } | prefill::Effect::Dropped { .. } => {}
            prefill::Effect::Scrub { .. } => notes.violates("scrub was not asked for"),
            prefill::Effect::Arm { timer, .. } => drop(self.prefill_timers.insert(timer)),
            prefill::Effect::Disarm(timer) => drop(self.prefill_timers.remove(&timer)),
            prefill::Effect::FailStop(why) => notes.violates(format!("prefill stopped: {why}")),
        }
    }

    fn decode_effect(&mut self, effect: decode::Effect, notes: &mut Notes) {
        match effect {
            decode::Effect::ToGateway(_, message) => {
                if let DecodeToGateway::Committed { cached_tokens, .. } = &message {
                    notes.saw("committed");
                    if *cached_tokens > 0 {
                        notes.saw("prefix hit");
                    }
                }
                self.gateway_event(gateway::Event::FromDecode(G_D, message), notes);
            }
            decode::Effect::ToPrefill(conn, message) => {
                match &message {
                    DecodeToPrefill::Cancel { .. } => notes.saw("cancel"),
                    DecodeToPrefill::Busy { .. } => notes.saw("busy"),
                    DecodeToPrefill::Taken { .. } => notes.saw("taken"),
                    _ => {}
                }
                if let Some(link) = self.link.as_mut().filter(|link| link.conn == conn) {
                    link.to_prefill.push_back(message);
                }
            }
            decode::Effect::Close(conn, _) => self.cut(conn, notes),
            decode::Effect::OpenArena { arena, writer } => {
                self.arenas.insert(arena, (writer, BTreeMap::new()));
                let (slots, address) = (ARENA_SLOTS, Vec::new());
                self.decode_event(
                    decode::Event::ArenaOpened {
                        arena,
                        slots,
                        address,
                    },
                    notes,
                );
            }
            decode::Effect::Fence { arena } => self.fences.push(arena),
            decode::Effect::Copy {
                handoff,
                rank,
                batch,
                arena,
                pages,
            } => {
                let copy = CopyInFlight {
                    handoff,
                    rank,
                    batch,
                    arena,
                    pages,
                };
                if self
                    .copies
                    .iter()
                    .any(|other| (other.handoff, other.batch) == (handoff, batch))
                {
                    notes.violates("two copies of one batch");
                }
                self.copies.push(copy);
            }
            decode::Effect::Check { .. } => notes.violates("nobody asked for direct mode"),
            decode::Effect::Duplicate { .. } | decode::Effect::Scrub { .. } => {
                notes.violates("one choice needs no copies");
            }
            decode::Effect::Start {
                handoff,
                spec,
                first,
                ..
            } => {
                self.start(handoff, &spec, first, notes);
            }
            decode::Effect::Stop(_) => {}
            decode::Effect::Arm { timer, .. } => drop(self.decode_timers.insert(timer)),
            decode::Effect::Disarm(timer) => drop(self.decode_timers.remove(&timer)),
            decode::Effect::Audit {
                failure: Failure::Integrity(fault),
                ..
            } => {
                notes.violates(format!("nothing was corrupted, and yet: {fault:?}"));
            }
            decode::Effect::Audit { .. } => {}
            decode::Effect::FailStop(why) => notes.violates(format!("decode stopped: {why}")),
        }
    }

    /// The worker looks at the first token at once: one that is the last ends the answer.
    fn start(&mut self, handoff: HandoffId, spec: &Spec, first: Vec<u8>, notes: &mut Notes) {
        let prompt = self.prompt_of(spec);
        if first != [prompt as u8] {
            notes.violates("the first token of another prompt");
        }
        self.running.insert(handoff, (prompt, 1));
        let finish = (spec.max_new == 1).then_some(Finish::Length);
        let output = Output {
            lane: Lane { handoff, choice: 0 },
            payload: first,
            finish,
        };
        self.decode_event(decode::Event::First(vec![output]), notes);
    }

    pub fn dial(&mut self, notes: &mut Notes) {
        let conn = Conn(self.next_conn);
        self.next_conn += 1;
        let (to_decode, to_prefill) = (VecDeque::new(), VecDeque::new());
        self.link = Some(Link {
            conn,
            to_decode,
            to_prefill,
        });
        self.prefill_event(prefill::Event::Dialled(conn), notes);
    }

    /// One side closes: what is on the way is lost, the other side learns of it.
    fn cut(&mut self, conn: Conn, notes: &mut Notes) {
        if self.link.as_ref().is_some_and(|link| link.conn == conn) {
            self.link = None;
            self.prefill_event(prefill::Event::Disconnected(conn), notes);
            self.decode_event(decode::Event::Disconnected(conn), notes);
        }
        if self.stale == Some(conn) {
            self.stale = None;
        }
    }

    pub fn deliver_to_decode(&mut self, notes: &mut Notes) -> bool {
        let Some(link) = &mut self.link else {
            return false;
        };
        let Some(message) = link.to_decode.pop_front() else {
            return false;
        };
        let conn = link.conn;
        self.decode_event(decode::Event::FromPrefill(conn, message), notes);
        true
    }

    pub fn deliver_to_prefill(&mut self, notes: &mut Notes) -> bool {
        let Some(link) = &mut self.link else {
            return false;
        };
        let Some(message) = link.to_prefill.pop_front() else {
            return false;
        };
        let conn = link.conn;
        self.prefill_event(prefill::Event::FromDecode(conn, message), notes);
        true
    }
}
