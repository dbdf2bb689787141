//! What comes between the beginning of something and its end: a step, a copy, a pass. The drivers
//! carry one out after another; the machines must not count on it (H-3: no page is freed while
//! someone may still read or write it). Whatever comes, in whatever order: the watches look whether
//! the tables stay as they are and whether anything is held for nobody, and at the end everything
//! is at rest.

use crate::decode_rig::{DecodeRig, G, Ticket, fences, output};
use crate::prefill_rig::{D, PrefillRig, arena, detached, handoff, offers, submitted};
use crate::rig::{DECODE, Epoch, NEIGHBOUR, PAGE, PREFILL, attempt, checksum, hello, spec};
use handoff::decode::{Effect, Event, Output, Timer};
use handoff::{
    Answers, Closing, Conn, DecodeToPrefill, Ending, Failure, Finish, GatewayToDecode,
    GatewayToPrefill, Manifest, NoToken, OfferId, Role, Spec, SubmissionId, prefill,
};
use proptest::prelude::*;

/// Something that can come between; the number says to which handoff.
#[derive(Clone, Copy, Debug)]
enum Between {
    Cancel(u64),
    Deadline(u64),
    Stop(u64, u16),
    GatewayGone,
    /// Of the life of that handoff's prefill worker.
    PeerGone(u64),
    PeerDeadline(u64),
    Back(u64),
    Unsettled(u64),
    Abandoned(u64),
    CancelDeadline(u64),
    /// Somebody else wants pages.
    Offer(u64),
    /// The copies of a handoff end.
    Copied(u64),
    Drain,
}

fn between() -> impl Strategy<Value = Between> {
    let n = 1..=4u64;
    prop_oneof![
        4 => n.clone().prop_map(Between::Cancel),
        3 => n.clone().prop_map(Between::Deadline),
        3 => (n.clone(), 0..2u16).prop_map(|(n, choice)| Between::Stop(n, choice)),
        1 => Just(Between::GatewayGone),
        2 => n.clone().prop_map(Between::PeerGone),
        2 => n.clone().prop_map(Between::PeerDeadline),
        1 => n.clone().prop_map(Between::Back),
        2 => n.clone().prop_map(Between::Unsettled),
        2 => n.clone().prop_map(Between::Abandoned),
        1 => n.clone().prop_map(Between::CancelDeadline),
        3 => (5..9u64).prop_map(Between::Offer),
        2 => n.prop_map(Between::Copied),
        1 => Just(Between::Drain),
    ]
}

/// Handoffs 1 and 2 run, 3 and 4 are landing with a copy in flight; 1 and 3 are of one prefill
/// worker, 2 and 4 of another.
struct Scene {
    d: DecodeRig,
    tickets: Vec<Ticket>,
    copies: Vec<Manifest>,
    fences: Vec<handoff::ArenaId>,
    next_conn: u64,
    connected: bool,
}

fn life(n: u64) -> u128 {
    if n % 2 == 1 { PREFILL } else { NEIGHBOUR }
}

fn request(n: u64, choices: u16, cache: bool) -> Spec {
    Spec {
        choices,
        cache,
        ..spec(n as u32, 10, 12)
    }
}

impl Scene {
    fn new(choices: u16, cache: bool) -> Self {
        let mut d = DecodeRig::new(96, |_| ());
        d.connect(PREFILL, 10, 1);
        d.connect(NEIGHBOUR, 20, 1);
        let mut scene = Self {
            d,
            tickets: Vec::new(),
            copies: Vec::new(),
            fences: Vec::new(),
            next_conn: 30,
            connected: true,
        };
        for n in 1..=4 {
            let (spec, conn) = (request(n, choices, cache), if n % 2 == 1 { 10 } else { 20 });
            if n < 3 {
                let ticket = scene.d.committed(life(n), conn, n, &spec);
                scene.d.first(&ticket, choices, None);
                scene.tickets.push(ticket);
            } else {
                let ticket = scene.d.granted(life(n), conn, n, &spec);
                let manifest = ticket.manifest(0, 0, 0..2);
                scene.d.state(conn, &manifest);
                scene.copies.push(manifest);
                scene.tickets.push(ticket);
            }
        }
        scene
    }

    fn tell(&mut self, event: Event) -> Vec<Effect> {
        let said = self.d.tell(event);
        self.fences.extend(fences(&said));
        said
    }

    fn conn(&self, n: u64) -> u64 {
        let base = if n % 2 == 1 { 10 } else { 20 };
        let back = (30..self.next_conn).rev();
        back.filter(|conn| conn % 2 == n % 2).max().unwrap_or(base)
    }

    fn come(&mut self, what: Between) {
        match what {
            Between::Cancel(n) => {
                let attempt = attempt(n);
                self.tell(Event::FromGateway(G, GatewayToDecode::Cancel { attempt }));
            }
            Between::Deadline(n) => drop(self.tell(Event::Fired(Timer::Attempt(attempt(n))))),
            Between::Stop(n, choice) => {
                let stop = GatewayToDecode::StopChoice {
                    attempt: attempt(n),
                    choice,
                };
                self.tell(Event::FromGateway(G, stop));
            }
            Between::GatewayGone => {
                self.connected = false;
                self.tell(Event::Disconnected(G));
            }
            Between::PeerGone(n) => {
                let conn = self.conn(n);
                self.tell(Event::Disconnected(Conn(conn)));
            }
            Between::PeerDeadline(n) => {
                self.tell(Event::Fired(Timer::Peer(Epoch::new(life(n)))));
            }
            Between::Back(n) => self.back(n),
            Between::Unsettled(n) => {
                let ticket = self.tickets[n as usize - 1].clone();
                let said = self.d.unsettled(self.conn(n), &ticket, vec![0]);
                self.fences.extend(fences(&said));
            }
            Between::Abandoned(n) => {
                let handoff = self.tickets[n as usize - 1].handoff;
                let said = self
                    .d
                    .close(self.conn(n), handoff, 0, Closing::Abandoned { why: None });
                self.fences.extend(fences(&said));
            }
            Between::CancelDeadline(n) => {
                let handoff = self.tickets[n as usize - 1].handoff;
                self.tell(Event::Fired(Timer::Cancel(handoff)));
            }
            Between::Offer(n) => {
                let spec = request(n, 1, true);
                self.d.expect(n, &spec, life(n));
                let said = self.d.offer(life(n), self.conn(n), n, &spec);
                self.fences.extend(fences(&said));
            }
            Between::Copied(n) => {
                let of = self.tickets[n as usize - 1].handoff;
                if let Some(at) = self.copies.iter().position(|m| m.handoff == of) {
                    let manifest = self.copies.remove(at);
                    let said = self.d.copied(&manifest);
                    self.fences.extend(fences(&said));
                }
            }
            Between::Drain => drop(self.tell(Event::Drain)),
        }
    }

    /// A new connection, over which the worker says that it holds nothing.
    fn back(&mut self, n: u64) {
        let parity = n % 2;
        self.next_conn += 1 + u64::from(self.next_conn % 2 != parity);
        let conn = self.next_conn - 1;
        let said = self.d.hello(life(n), conn, 1);
        self.fences.extend(fences(&said));
        self.d.open_arenas(&said);
        let said = self.d.sync(conn, &[], &[]);
        self.fences.extend(fences(&said));
    }

    /// Whatever has begun ends, everybody leaves and says so.
    fn end(&mut self) {
        for manifest in std::mem::take(&mut self.copies) {
            let said = self.d.copied(&manifest);
            self.fences.extend(fences(&said));
        }
        self.tell(Event::Disconnected(G));
        for n in [1, 2] {
            self.back(n);
        }
        while let Some(arena) = self.fences.pop() {
            let said = self.d.fenced(arena);
            self.fences.extend(fences(&said));
            self.d.open_arenas(&said);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// A step over some lanes, in some order; then anything; then its end or its failure.
    #[test]
    fn h3_nothing_that_a_step_names_goes_before_it_has_ended(
        choices in 1..3u16, cache: bool, order: u64, leave_out: bool, fails: bool,
        things in prop::collection::vec(between(), 0..8),
        later in prop::collection::vec(between(), 0..4),
    ) {
        let mut scene = Scene::new(choices, cache);
        let mut lanes = scene.d.machine.runnable();
        for at in 1..lanes.len() {
            lanes.swap(at, (order >> (8 * at)) as usize % (at + 1));
        }
        if leave_out {
            lanes.pop();
        }
        scene.tell(Event::StepBegin(lanes.clone()));
        for thing in things {
            scene.come(thing);
        }
        if fails {
            // All that were in it end, and nobody else does.
            let mut running: Vec<u64> = (1..3).filter(|n| {
                let handoff = scene.tickets[*n as usize - 1].handoff;
                let named = lanes.iter().any(|lane| lane.handoff == handoff);
                named && scene.d.machine.spec_of(handoff).is_some()
            }).collect();
            if !scene.connected {
                running.clear(); // the gateway is gone, and with it all that it wanted
            }
            let said = scene.tell(Event::StepFailed(NoToken::Compute));
            let failed = |n| (n, Ending::Failed(Failure::Compute));
            let expected: Vec<_> = running.into_iter().map(failed).collect();
            let mut ended = crate::decode_rig::endings(&said);
            ended.sort(); // lanes were named in any order
            prop_assert_eq!(ended, expected);
        } else {
            let of = |lane: &handoff::decode::Lane| output(lane.handoff, lane.choice, None);
            let outputs: Vec<Output> = lanes.iter().map(of).collect();
            scene.tell(Event::StepEnd(outputs));
        }
        for thing in later {
            scene.come(thing);
        }
        scene.end();
        prop_assert!(scene.d.machine.at_rest(), "{:?}", scene.d.machine.holders());
    }

    /// Lanes may be named in any order and in any choice: each writes its own page, and what it
    /// says is said of its own choice. All of it again, until all are done.
    #[test]
    fn h3_every_lane_of_a_step_has_its_own_table_in_whatever_order_they_are_named(
        choices in 1..4u16, cache: bool, orders in prop::collection::vec(any::<u64>(), 12),
    ) {
        let mut scene = Scene::new(choices, cache);
        let mut said_so_far = std::collections::BTreeMap::new();
        for order in orders {
            let mut lanes = scene.d.machine.runnable();
            for at in 1..lanes.len() {
                lanes.swap(at, (order >> (8 * at)) as usize % (at + 1));
            }
            lanes.truncate(1 + (order % 7) as usize);
            if lanes.is_empty() {
                break;
            }
            scene.tell(Event::StepBegin(lanes.clone()));
            let verified = scene.d.machine.verify().expect("sound tables");
            for (lane, table) in lanes.iter().zip(verified.sequences()) {
                let steps = said_so_far.get(lane).copied().unwrap_or(0);
                prop_assert_eq!(table.start(), 10 + steps, "tokens of {:?}", lane);
            }
            let mut outputs = Vec::new();
            for lane in lanes.iter().rev() {
                let steps: &mut usize = said_so_far.entry(*lane).or_default();
                *steps += 1;
                let finish = (*steps == 11).then_some(Finish::Length);
                outputs.push(output(lane.handoff, lane.choice, finish));
            }
            scene.tell(Event::StepEnd(outputs));
        }
        scene.end();
        prop_assert!(scene.d.machine.at_rest());
    }
}

/// The same for prefill: a pass over one job, writes of another in flight.
#[derive(Clone, Copy, Debug)]
enum AtPrefill {
    Withdraw(u64),
    Deadline(u64),
    Cancel(u64),
    DecodeGone,
    DecodeDeadline,
    Back,
    GatewayGone,
    Written(usize, bool),
    Taken(u64, u32),
    Ended(u64, bool),
    Committed(u64),
    Attempt(u64),
    Detached(u64),
    Drain,
}

fn at_prefill() -> impl Strategy<Value = AtPrefill> {
    let n = 1..=2u64;
    prop_oneof![
        2 => n.clone().prop_map(AtPrefill::Withdraw),
        3 => n.clone().prop_map(AtPrefill::Deadline),
        4 => n.clone().prop_map(AtPrefill::Cancel),
        1 => Just(AtPrefill::DecodeGone),
        2 => Just(AtPrefill::DecodeDeadline),
        1 => Just(AtPrefill::Back),
        1 => Just(AtPrefill::GatewayGone),
        4 => (0..3usize, any::<bool>()).prop_map(|(at, ok)| AtPrefill::Written(at, ok)),
        2 => (n.clone(), 0..3u32).prop_map(|(n, batch)| AtPrefill::Taken(n, batch)),
        3 => (n.clone(), any::<bool>()).prop_map(|(n, closed)| AtPrefill::Ended(n, closed)),
        1 => n.prop_map(AtPrefill::Committed),
        2 => (3..6u64).prop_map(AtPrefill::Attempt),
        2 => (1..3u64).prop_map(AtPrefill::Detached),
        1 => Just(AtPrefill::Drain),
    ]
}

struct PrefillScene {
    p: PrefillRig,
    writes: Vec<SubmissionId>,
    detaching: Vec<handoff::ArenaId>,
    conn: Conn,
}

impl PrefillScene {
    fn tell(&mut self, event: prefill::Event) {
        let said = self.p.tell(event);
        self.writes
            .extend(submitted(&said).into_iter().map(|(n, _)| n));
        self.detaching.extend(detached(&said));
    }

    fn hear(&mut self, message: DecodeToPrefill) {
        self.tell(prefill::Event::FromDecode(self.conn, message));
    }

    fn come(&mut self, what: AtPrefill) {
        use prefill::{Event, Timer};
        match what {
            AtPrefill::Withdraw(n) => {
                let attempt = attempt(n);
                let message = GatewayToPrefill::Withdraw { attempt };
                self.tell(Event::FromGateway(crate::prefill_rig::G, message));
            }
            AtPrefill::Deadline(n) => self.tell(Event::Fired(Timer::Attempt(attempt(n)))),
            AtPrefill::Cancel(n) => {
                let handoff = handoff(n);
                self.hear(DecodeToPrefill::Cancel { handoff });
            }
            AtPrefill::DecodeGone => self.tell(Event::Disconnected(self.conn)),
            AtPrefill::DecodeDeadline => {
                self.tell(Event::Fired(Timer::Peer(Epoch::new(DECODE))));
            }
            AtPrefill::Back => {
                self.conn = Conn(self.conn.0 + 1);
                self.tell(Event::Dialled(self.conn));
                self.hear(DecodeToPrefill::Hello(hello(DECODE, Role::Decode)));
                self.hear(DecodeToPrefill::Synced);
            }
            AtPrefill::GatewayGone => self.tell(Event::Disconnected(crate::prefill_rig::G)),
            AtPrefill::Written(at, ok) => {
                if at < self.writes.len() {
                    let submission = self.writes.remove(at);
                    self.tell(Event::Written { submission, ok });
                }
            }
            AtPrefill::Taken(n, batch) => {
                let (handoff, rank) = (handoff(n), 0);
                self.hear(DecodeToPrefill::Taken {
                    handoff,
                    rank,
                    batch,
                });
            }
            AtPrefill::Ended(n, closed) => {
                let answers = match closed {
                    true => Answers::Closed,
                    false => Answers::Unsettled,
                };
                let (handoff, rank) = (handoff(n), 0);
                self.hear(DecodeToPrefill::Ended {
                    handoff,
                    rank,
                    answers,
                });
            }
            AtPrefill::Committed(n) => {
                let handoff = handoff(n);
                self.hear(DecodeToPrefill::Committed { handoff });
            }
            AtPrefill::Attempt(n) => {
                let message = GatewayToPrefill::Attempt {
                    attempt: attempt(n),
                    spec: spec(n as u32, 10, 1),
                    decode: Epoch::new(DECODE),
                    deadline_ms: 1000,
                };
                self.tell(Event::FromGateway(crate::prefill_rig::G, message));
            }
            AtPrefill::Detached(n) => {
                let arena = arena(n);
                if let Some(at) = self.detaching.iter().position(|other| *other == arena) {
                    self.detaching.remove(at);
                    self.tell(Event::Detached { arena });
                }
            }
            AtPrefill::Drain => self.tell(Event::Drain),
        }
    }

    /// Whatever has begun ends, and decode is gone for good.
    fn end(&mut self) {
        use prefill::{Event, Timer};
        self.tell(Event::Disconnected(crate::prefill_rig::G));
        self.tell(Event::Disconnected(self.conn));
        self.tell(Event::Fired(Timer::Peer(Epoch::new(DECODE))));
        while let Some(submission) = self.writes.pop() {
            let ok = true;
            self.tell(Event::Written { submission, ok });
        }
        while let Some(arena) = self.detaching.pop() {
            self.tell(Event::Detached { arena });
        }
    }
}

/// A pass that has begun; the writes that are in flight then.
fn begun(p: &mut PrefillRig, tokens: u32) -> (OfferId, (u32, u32), Vec<SubmissionId>) {
    let first = p.ticketed(1, &spec(1, 14, 1));
    let second = offers(&p.attempt(2, &spec(2, 18, 1)))[0];
    // The second job's decode has made another arena meanwhile, or has not.
    p.ticket(second, 2, 5, 1 + u64::from(tokens % 2));
    p.attached(1 + u64::from(tokens % 2), true);
    let writes = submitted(&p.chunk(first, 8));
    let begun = p.tell(prefill::Event::ChunkBegin {
        offer: first,
        tokens,
    });
    let [prefill::Effect::Compute { from, to, .. }] = begun[..] else {
        panic!("a pass: {begun:?}");
    };
    let writes = writes.into_iter().map(|(n, _)| n).collect();
    (first, (from, to), writes)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn h3_nothing_that_a_pass_names_goes_before_it_has_ended(
        tokens in 1..8u32, fails: bool,
        things in prop::collection::vec(at_prefill(), 0..10),
        later in prop::collection::vec(at_prefill(), 0..6),
    ) {
        let mut p = PrefillRig::connected(16);
        let (offer, (from, to), writes) = begun(&mut p, tokens);
        let mut scene = PrefillScene { p, writes, detaching: Vec::new(), conn: D };
        for thing in things {
            scene.come(thing);
        }
        if fails {
            scene.tell(prefill::Event::ChunkFailed { offer, why: NoToken::Compute });
        } else {
            let size = u32::from(PAGE);
            let complete = if to == 14 { to.div_ceil(size) } else { to / size };
            let checksums = (from / size..complete).map(checksum).collect();
            let first = (to == 14).then(|| vec![7]);
            scene.tell(prefill::Event::ChunkEnd { offer, checksums, first });
        }
        for thing in later {
            scene.come(thing);
        }
        scene.end();
        prop_assert!(scene.p.machine.at_rest(), "{:?}", scene.p.machine.load());
    }
}
