//! Carries effects out: what a driver does, on a world of data. Nothing is answered at once: what
//! a machine waits for happens later, or never.

use crate::world::{CopyInFlight, Flight, Message, Node, World, mark, token_at};
use handoff::gateway::Item;
use handoff::{Conn, DecodeToGateway, DecodeToPrefill, PrefillToDecode, decode, gateway, prefill};

impl World {
    pub fn tell_gateway(&mut self, event: gateway::Event) {
        self.gateway_watch.before(&self.gateway, &event);
        let effects = self.gateway.handle(event);
        self.gateway_watch.after(&self.gateway, &effects);
        self.tell_story(&effects);
        for effect in effects {
            match effect {
                gateway::Effect::ToPrefill(conn, message) => {
                    self.send(Node::Gateway, conn, Message::ToPrefill(message));
                }
                gateway::Effect::ToDecode(conn, message) => {
                    self.send(Node::Gateway, conn, Message::ToDecode(message));
                }
                gateway::Effect::Close(conn, _) => self.cut(conn),
                gateway::Effect::Deliver { request, item } => self.deliver(request.n, item),
                gateway::Effect::Finish { request, outcome } => {
                    self.saw(word(&outcome));
                    let client = self.clients.get_mut(&request.n).expect("a request");
                    let before = client.outcome.replace(outcome);
                    assert!(before.is_none(), "H-6: a second outcome after {before:?}");
                }
                gateway::Effect::Arm { timer, .. } => drop(self.gateway_timers.insert(timer)),
                gateway::Effect::Disarm(timer) => drop(self.gateway_timers.remove(&timer)),
                gateway::Effect::FailStop(why) => panic!("the gateway stopped: {why}"),
            }
        }
    }

    fn deliver(&mut self, request: u64, item: Item) {
        let client = self.clients.get_mut(&request).expect("a request");
        assert!(client.outcome.is_none(), "H-6: delivered after the outcome");
        match item {
            Item::Begin { .. } => client.begun = true,
            Item::Tokens {
                choice,
                token,
                payload,
                ..
            } => {
                assert!(client.begun, "H-9: a token before the commit");
                let of_stranger = payload.is_empty();
                let said = client.said.entry(choice).or_default();
                let next = token_at(client.spec.tokens.len() + *said);
                assert!(of_stranger || token == next, "H-20: lost or said twice");
                *said += 1;
                assert!(
                    of_stranger || payload == mark(&client.spec),
                    "H-13: a foreign token"
                );
            }
        }
    }

    pub fn tell_prefill(&mut self, p: usize, event: prefill::Event) {
        let side = &mut self.prefills[p];
        side.watch.before(&event);
        let effects = side.machine.handle(event.clone());
        side.watch.after(&mut side.machine, &event, &effects);
        self.tell_story(&effects);
        let node = Node::Prefill(p);
        for effect in effects {
            let side = &mut self.prefills[p];
            match effect {
                prefill::Effect::ToGateway(conn, message) => {
                    self.send(node, conn, Message::FromPrefill(message));
                }
                prefill::Effect::ToDecode(conn, message) => {
                    self.send(node, conn, Message::Handing(message));
                }
                prefill::Effect::Close(conn, _) => self.cut(conn),
                prefill::Effect::Attach { arena, .. } => side.attaching.push(arena),
                prefill::Effect::Detach { arena } => side.detaching.push(arena),
                prefill::Effect::Submit {
                    submission,
                    arena,
                    pages,
                    ..
                } => {
                    side.unreported.insert(submission, arena);
                    self.flights.extend(pages.into_iter().map(|page| Flight {
                        of: p,
                        submission,
                        arena,
                        source: page.page,
                        slot: page.slot,
                        kept: None,
                    }));
                }
                prefill::Effect::Compute {
                    offer, from, to, ..
                } => side.chunk = Some((offer, from, to)),
                prefill::Effect::Admitted { .. } | prefill::Effect::Dropped { .. } => {}
                prefill::Effect::Scrub { page } => drop(side.pages.remove(&page)),
                prefill::Effect::Expired { .. } => self.saw("expired"),
                prefill::Effect::Arm { timer, .. } => drop(side.timers.insert(timer)),
                prefill::Effect::Disarm(timer) => drop(side.timers.remove(&timer)),
                prefill::Effect::FailStop(why) => panic!("prefill stopped: {why}"),
            }
        }
        let machine = &mut self.prefills[p].machine;
        let (held, counts) = (machine.holders().len(), machine.counts());
        assert_eq!(held + counts.free, counts.total(), "H-10: prefill");
    }

    pub fn tell_decode(&mut self, d: usize, event: decode::Event) {
        let side = &mut self.decodes[d];
        side.watch.before(&event);
        let effects = side.machine.handle(event.clone());
        side.watch.after(&mut side.machine, Some(&event), &effects);
        self.tell_story(&effects);
        self.decode_effects(d, effects);
    }

    pub fn decode_effects(&mut self, d: usize, effects: Vec<decode::Effect>) {
        let node = Node::Decode(d);
        for effect in effects {
            let side = &mut self.decodes[d];
            match effect {
                decode::Effect::ToGateway(conn, message) => {
                    self.send(node, conn, Message::FromDecode(message));
                }
                decode::Effect::ToPrefill(conn, message) => {
                    self.send(node, conn, Message::Answering(message));
                }
                decode::Effect::Close(conn, why) => {
                    self.saw(word(&why));
                    self.cut(conn);
                }
                decode::Effect::OpenArena { arena, writer } => side.opening.push((arena, writer)),
                decode::Effect::Fence { arena } => {
                    side.fences.push(arena);
                    self.saw("fence");
                }
                decode::Effect::Copy {
                    handoff,
                    rank,
                    batch,
                    arena,
                    pages,
                } => {
                    let mut others = side.copies.iter();
                    let twice =
                        others.any(|o| (o.handoff, o.rank, o.batch) == (handoff, rank, batch));
                    assert!(!twice, "two copies of one batch");
                    side.copies.push(CopyInFlight {
                        handoff,
                        rank,
                        batch,
                        arena,
                        pages,
                    });
                }
                decode::Effect::Check { .. } => panic!("nobody asked for direct mode"),
                decode::Effect::Duplicate { from, to, .. } => {
                    let content = side.pages.get(&from).cloned();
                    side.pages
                        .insert(to, content.expect("a page that was copied"));
                    self.saw("duplicate");
                }
                decode::Effect::Scrub { page } => drop(side.pages.remove(&page)),
                decode::Effect::Expired { .. } => self.saw("expired"),
                decode::Effect::Start {
                    handoff,
                    spec,
                    first,
                    ..
                } => {
                    assert!(
                        first.is_empty() || first == mark(&spec),
                        "a foreign first token"
                    );
                    side.starts.push((handoff, *spec));
                }
                decode::Effect::Stop(lane) => drop(side.voices.remove(&lane)),
                decode::Effect::Arm { timer, .. } => drop(side.timers.insert(timer)),
                decode::Effect::Disarm(timer) => drop(side.timers.remove(&timer)),
                decode::Effect::Audit { failure, .. } => self.saw(format!("{failure:?}")),
                decode::Effect::FailStop(why) => panic!("decode stopped: {why}"),
            }
        }
        let machine = &mut self.decodes[d].machine;
        let (held, counts) = (machine.holders().len(), machine.counts());
        assert_eq!(held + counts.free, counts.total(), "H-10: decode");
    }

    fn send(&mut self, from: Node, conn: Conn, message: Message) {
        match &message {
            Message::Handing(PrefillToDecode::Unsettled { .. }) => self.saw("unsettled"),
            Message::Handing(PrefillToDecode::Sync {
                tickets, offers, ..
            }) => {
                for (list, what) in [(tickets.len(), "ticket"), (offers.len(), "offer")] {
                    (0..list).for_each(|_| self.saw(format!("{what} in Sync")));
                }
            }
            Message::Answering(DecodeToPrefill::Busy { .. }) => self.saw("busy"),
            Message::Answering(DecodeToPrefill::Faulty { .. }) => self.saw("another prompt"),
            Message::FromDecode(DecodeToGateway::Committed { cached_tokens, .. }) => {
                self.saw(if *cached_tokens > 0 {
                    "prefix hit"
                } else {
                    "committed"
                });
            }
            Message::FromDecode(DecodeToGateway::PutBack { .. }) => self.saw("put back"),
            _ => {}
        }
        if let Some(link) = self.links.iter_mut().find(|link| link.conn == conn) {
            let to = usize::from(link.ends[0] == from);
            if link.ends[to] != Node::Stranger {
                link.to[to].push_back(message);
            }
        }
    }
}

/// The first word of what it is.
fn word(what: &impl std::fmt::Debug) -> String {
    let all = format!("{what:?}");
    let end = all
        .find(|c: char| !c.is_alphanumeric())
        .unwrap_or(all.len());
    all[..end].to_owned()
}
