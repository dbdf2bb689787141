//! What can happen next, and how it happens.

use crate::dice::Dice;
use crate::world::{Client, Message, Node, World};
use handoff::{ArenaId, Conn, OfferId, RequestId, Spec, SubmissionId, decode, gateway, prefill};
use pages::Domain;
use std::collections::BTreeMap;

#[derive(Clone, Debug)]
pub enum Act {
    Deliver(Conn, usize),
    Down(Node, Conn),
    Dial(Node, Node),
    ChunkBegin(usize, OfferId),
    ChunkEnd(usize),
    Land(usize),
    Written(usize, SubmissionId),
    Attached(usize, ArenaId),
    Detached(usize, ArenaId),
    Opened(usize, ArenaId),
    Copied(usize, usize),
    Fenced(usize, ArenaId),
    Released(usize, ArenaId),
    Start(usize, usize),
    StepBegin(usize),
    StepEnd(usize),
    Retry(usize, prefill::Timer),
    Ages(usize),
}

/// New tokens that no worker has room for.
pub const TOO_MUCH: u32 = 1000;

impl World {
    /// What goes on by itself.
    pub fn acts(&mut self) -> Vec<Act> {
        let mut acts = Vec::new();
        for link in &self.links {
            let to = (0..2).filter(|to| !link.to[*to].is_empty());
            acts.extend(to.map(|to| Act::Deliver(link.conn, to)));
        }
        acts.extend(self.down.iter().map(|(node, conn)| Act::Down(*node, *conn)));
        for (from, to) in self.pairs() {
            let left = self.dials.get(&(from, to)).copied().unwrap_or(40);
            if left > 0 && !self.linked((from, to)) {
                acts.push(Act::Dial(from, to));
            }
        }
        acts.extend((0..self.flights.len()).map(Act::Land));
        for p in 0..self.prefills.len() {
            self.prefill_acts(p, &mut acts);
        }
        for d in 0..self.decodes.len() {
            self.decode_acts(d, &mut acts);
        }
        acts
    }

    fn prefill_acts(&mut self, p: usize, acts: &mut Vec<Act>) {
        let side = &self.prefills[p];
        match side.chunk {
            Some(_) => acts.push(Act::ChunkEnd(p)),
            None => acts.extend(
                side.machine
                    .runnable()
                    .into_iter()
                    .map(|o| Act::ChunkBegin(p, o)),
            ),
        }
        for submission in side.unreported.keys() {
            if self.flights.iter().all(|f| f.submission != *submission) {
                acts.push(Act::Written(p, *submission));
            }
        }
        acts.extend(side.attaching.iter().map(|arena| Act::Attached(p, *arena)));
        let attached = side
            .detaching
            .iter()
            .filter(|a| !side.attaching.contains(a));
        acts.extend(attached.map(|arena| Act::Detached(p, *arena)));
        let retries = side
            .timers
            .iter()
            .filter(|t| matches!(t, prefill::Timer::Retry(_) | prefill::Timer::Cache));
        acts.extend(retries.map(|timer| Act::Retry(p, *timer)));
    }

    fn decode_acts(&mut self, d: usize, acts: &mut Vec<Act>) {
        let side = &self.decodes[d];
        acts.extend(side.opening.iter().map(|(arena, _)| Act::Opened(d, *arena)));
        acts.extend((0..side.copies.len()).map(|at| Act::Copied(d, at)));
        // A fence joins the copies first.
        let joined = |arena: &&ArenaId| side.copies.iter().all(|copy| copy.arena != **arena);
        acts.extend(
            side.fences
                .iter()
                .filter(joined)
                .map(|arena| Act::Fenced(d, *arena)),
        );
        let lingering = side.lingering.iter();
        acts.extend(lingering.map(|arena| Act::Released(d, *arena)));
        acts.extend((0..side.starts.len()).map(|at| Act::Start(d, at)));
        match side.step {
            Some(_) => acts.push(Act::StepEnd(d)),
            None if !side.machine.runnable().is_empty() => acts.push(Act::StepBegin(d)),
            None => {}
        }
        if side.timers.contains(&decode::Timer::Cache) {
            acts.push(Act::Ages(d));
        }
    }

    pub fn apply(&mut self, act: Act, dice: &mut Dice) {
        match act {
            Act::Deliver(conn, to) => self.deliver_one(conn, to),
            Act::Down(node, conn) => {
                self.down.retain(|down| *down != (node, conn));
                match node {
                    Node::Gateway => self.tell_gateway(gateway::Event::Disconnected(conn)),
                    Node::Prefill(p) => self.tell_prefill(p, prefill::Event::Disconnected(conn)),
                    Node::Decode(d) => self.tell_decode(d, decode::Event::Disconnected(conn)),
                    Node::Stranger => {}
                }
            }
            Act::Dial(from, to) => {
                *self.dials.entry((from, to)).or_insert(40) -= 1;
                let conn = self.link(from, to);
                match (from, to) {
                    (Node::Prefill(p), _) => self.tell_prefill(p, prefill::Event::Dialled(conn)),
                    (_, Node::Prefill(_)) => {
                        self.tell_gateway(gateway::Event::PrefillDialled(conn))
                    }
                    _ => self.tell_gateway(gateway::Event::DecodeDialled(conn)),
                }
            }
            Act::ChunkBegin(p, offer) => {
                let tokens = 1 + dice.roll(5) as u32;
                self.tell_prefill(p, prefill::Event::ChunkBegin { offer, tokens });
                let machine = &mut self.prefills[p].machine;
                let tables = crate::checks::of_chunk(machine, dice).expect("a sound table");
                assert_eq!(tables.len(), 1);
            }
            Act::ChunkEnd(p) => self.chunk_end(p),
            Act::Land(at) => self.land(at),
            Act::Written(p, submission) => {
                self.prefills[p].unreported.remove(&submission);
                let ok = true;
                self.tell_prefill(p, prefill::Event::Written { submission, ok });
            }
            Act::Attached(p, arena) => {
                self.prefills[p].attaching.retain(|other| *other != arena);
                let ok = self
                    .decodes
                    .iter()
                    .any(|side| side.arenas.contains_key(&arena));
                self.tell_prefill(p, prefill::Event::Attached { arena, ok });
            }
            Act::Detached(p, arena) => self.detached(p, arena),
            Act::Opened(d, arena) => self.opened(d, arena),
            Act::Copied(d, at) => self.copied(d, at),
            Act::Released(d, arena) => {
                self.decodes[d].lingering.retain(|other| *other != arena);
                self.tell_decode(d, decode::Event::ArenaReleased { arena });
            }
            Act::Fenced(d, arena) => {
                if dice.chance(30) {
                    self.tell_decode(d, decode::Event::ArenaLingers { arena });
                    self.decodes[d].lingering.push(arena);
                }
                let side = &mut self.decodes[d];
                side.fences.retain(|other| *other != arena);
                let (writer, _) = side.arenas.remove(&arena).expect("a fence of an arena");
                let proof = side.mint.fenced(writer);
                let effects = side.machine.handle_fenced(arena, proof);
                side.watch.after(&mut side.machine, None, &effects);
                self.tell_story(&effects);
                self.decode_effects(d, effects);
            }
            Act::Start(d, at) => self.start(d, at),
            Act::StepBegin(d) => self.step_begin(d, dice),
            Act::StepEnd(d) => self.step_end(d),
            Act::Retry(p, timer) => {
                self.prefills[p].timers.remove(&timer);
                self.tell_prefill(p, prefill::Event::Fired(timer));
            }
            Act::Ages(d) => {
                self.decodes[d].timers.remove(&decode::Timer::Cache);
                self.tell_decode(d, decode::Event::Fired(decode::Timer::Cache));
            }
        }
    }

    fn deliver_one(&mut self, conn: Conn, to: usize) {
        let Some(link) = self.links.iter_mut().find(|link| link.conn == conn) else {
            return;
        };
        let (node, Some(message)) = (link.ends[to], link.to[to].pop_front()) else {
            return;
        };
        self.hear(node, conn, message);
    }

    pub fn hear(&mut self, node: Node, conn: Conn, message: Message) {
        match (node, message) {
            (Node::Gateway, Message::FromPrefill(m)) => {
                self.tell_gateway(gateway::Event::FromPrefill(conn, m));
            }
            (Node::Gateway, Message::FromDecode(m)) => {
                self.tell_gateway(gateway::Event::FromDecode(conn, m));
            }
            (Node::Prefill(p), Message::ToPrefill(m)) => {
                self.tell_prefill(p, prefill::Event::FromGateway(conn, m));
            }
            (Node::Prefill(p), Message::Answering(m)) => {
                self.tell_prefill(p, prefill::Event::FromDecode(conn, m));
            }
            (Node::Decode(d), Message::ToDecode(m)) => {
                self.tell_decode(d, decode::Event::FromGateway(conn, m));
            }
            (Node::Decode(d), Message::Handing(m)) => {
                self.tell_decode(d, decode::Event::FromPrefill(conn, m));
            }
            (node, message) => panic!("{message:?} to {node:?}"),
        }
    }

    /// A client asks; families of prompts share prefixes, inside a domain or not.
    pub fn request(&mut self, dice: &mut Dice) {
        let family = dice.roll(3) as u32 + 1;
        let tokens: Vec<u32> = (0..1 + dice.roll(9) as u32)
            .map(|at| family + 10 * at)
            .collect();
        let room = u64::from(crate::world::CONTEXT) - tokens.len() as u64;
        let max_new = match dice.chance(2) {
            true => TOO_MUCH,
            false if dice.chance(40) => 1 + dice.roll(room) as u32,
            false => 1 + dice.roll(4) as u32,
        };
        let choices = 1 + dice.roll(2) as u16;
        let domain = Domain::new(7 + dice.roll(2));
        let spec = Spec {
            choices,
            cache: dice.chance(70),
            ..Spec::new(domain, tokens, max_new)
        };
        let request = self.gateway.next_request();
        let client = Client {
            spec: spec.clone(),
            begun: false,
            said: BTreeMap::new(),
            outcome: None,
        };
        self.clients.insert(request.n, client);
        let deadline_ms = 1000;
        self.tell_gateway(gateway::Event::Request { spec, deadline_ms });
    }

    pub fn some_request(&self, dice: &mut Dice) -> Option<RequestId> {
        let open = self
            .clients
            .iter()
            .filter(|(_, client)| client.outcome.is_none());
        let open: Vec<u64> = open.map(|(n, _)| *n).collect();
        let epoch = self.life(crate::world::GATEWAY);
        dice.pick(&open).map(|n| RequestId { epoch, n })
    }
}
