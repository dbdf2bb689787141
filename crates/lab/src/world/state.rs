//! A whole world as data. Everything large is shared between worlds until it changes.

use super::content::{Cell, Cells, MAX_RANKS, PAGE_SIZE};
use super::shared::{Kept, Shared};
use crate::encode::Part;
use crate::scenario::{Faults, Prompt};
use handoff::decode::{self, Decode, Lane};
use handoff::gateway::{self, Gateway, Outcome};
use handoff::prefill::{self, Prefill};
use handoff::{
    ArenaId, AttemptId, Conn, Decisions, DecodeToGateway, DecodeToPrefill, GatewayToDecode,
    GatewayToPrefill, HandoffId, OfferId, PrefillToDecode, PrefillToGateway, RequestId,
    SubmissionId,
};
use pages::{Epoch, PageId, Sound, StatedTag, WriterLife};
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Mints numbers and means nothing else: which number comes next makes no difference.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename = "LastId")]
pub struct Counter(pub u64);

/// See the module's documentation. `Clone` shares; a world is its own from its first change on.
#[derive(Clone, Debug, Serialize)]
#[serde(bound = "")]
pub struct State<J: Decisions = Sound> {
    /// The gateway's machine.
    pub gateway: Shared<Gateway<J>>,
    /// How many lives of it there have been before.
    pub gateway_lives: u8,
    /// Its armed timers.
    pub gateway_timers: Kept<BTreeSet<gateway::Timer>>,
    /// Every life of every prefill worker, oldest first.
    pub prefills: Vec<Kept<PrefillLife<J>>>,
    /// Every life of every decode worker, oldest first.
    pub decodes: Vec<Kept<DecodeLife<J>>>,
    /// Connections between prefill (the caller) and decode.
    pub handing: Vec<Kept<Link<PrefillToDecode, DecodeToPrefill>>>,
    /// Connections between the gateway (the caller) and prefill.
    pub asking: Vec<Kept<Link<GatewayToPrefill, PrefillToGateway>>>,
    /// Connections between the gateway (the caller) and decode.
    pub telling: Vec<Kept<Link<GatewayToDecode, DecodeToGateway>>>,
    /// Page writes that may still land.
    pub flights: Kept<Vec<Flight>>,
    /// Clients, in the order of the scenario's prompts.
    pub clients: Kept<Vec<Client>>,
    /// Messages that were lost with their connection, the last few.
    pub lost: Kept<Vec<Lost>>,
    /// Faults that may still happen.
    pub left: Kept<Faults>,
    /// Pairs that have never had a connection.
    pub undialled: Kept<BTreeSet<Pair>>,
    /// The next connection's number.
    pub next_conn: Counter,
}

/// One life of one prefill worker.
#[derive(Clone, Debug, Serialize)]
#[serde(bound = "")]
pub struct PrefillLife<J: Decisions = Sound> {
    /// Which worker, from 0.
    pub worker: u8,
    /// The life.
    pub epoch: Epoch,
    /// None once the process has ended.
    pub machine: Option<Shared<Prefill<J>>>,
    /// The process has stopped, and will go on.
    pub stopped: bool,
    /// What its pages hold.
    pub memory: Kept<BTreeMap<PageId, Cells>>,
    /// The forward pass in flight.
    pub chunk: Option<Chunk>,
    /// Submissions whose end was not reported: for which handoff and rank they are, and the endpoint.
    pub unreported: BTreeMap<SubmissionId, (Option<HandoffId>, u16, ArenaId)>,
    /// Handoffs and ranks of which a submission ended in another way than success.
    pub failed: BTreeSet<(HandoffId, u16)>,
    /// Arenas that it is attaching to.
    pub attaching: Vec<ArenaId>,
    /// Endpoints to be destroyed.
    pub detaching: Vec<ArenaId>,
    /// Armed timers.
    pub timers: BTreeSet<prefill::Timer>,
    /// Tickets that it was given, by offer, until the job is forgotten.
    pub tickets: BTreeMap<OfferId, HandoffId>,
    /// Attempts that it has rejected.
    pub rejected: BTreeSet<AttemptId>,
}

/// A chunk of a prompt that is being computed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Chunk {
    /// The job.
    pub offer: OfferId,
    /// First token, and behind the last.
    pub tokens: (u32, u32),
    /// Whose prompt.
    pub prompt: usize,
    /// Which choice of it goes on, if its prompt is longer than what was asked.
    pub choice: u16,
    /// Pages of the job.
    pub pages: Vec<PageId>,
    /// Whether it ends with the last token of what P computes.
    pub last: bool,
}

/// One life of one decode worker.
#[derive(Clone, Debug, Serialize)]
#[serde(bound = "")]
pub struct DecodeLife<J: Decisions = Sound> {
    /// Which worker, from 0.
    pub worker: u8,
    /// The life.
    pub epoch: Epoch,
    /// None once the process has ended.
    pub machine: Option<Shared<Decode<J>>>,
    /// The process has stopped, and will go on.
    pub stopped: bool,
    /// What its pages hold.
    pub memory: Kept<BTreeMap<PageId, Page>>,
    /// Landing arenas that are being made.
    pub opening: Vec<(ArenaId, WriterLife)>,
    /// Its landing arenas.
    pub arenas: BTreeMap<ArenaId, Arena>,
    /// Copies in flight.
    pub copies: Vec<CopyInFlight>,
    /// Fences that were asked for.
    pub fences: Vec<ArenaId>,
    /// Dropped arenas that somebody still maps.
    pub lingering: Vec<ArenaId>,
    /// Commits whose first tokens the worker has not looked at.
    pub starts: Vec<HandoffId>,
    /// The step in flight.
    pub step: Option<Vec<Reading>>,
    /// What is being generated.
    pub running: BTreeMap<HandoffId, Run>,
    /// Armed timers.
    pub timers: BTreeSet<decode::Timer>,
    /// Attempts that it has rejected.
    pub rejected: BTreeSet<AttemptId>,
    /// Attempts that had an integrity fault.
    pub faulty: BTreeSet<AttemptId>,
}

/// A page of D's: a slice for each rank of the writer, each with its own last write.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Page {
    /// The slices.
    pub slices: [Slice; MAX_RANKS],
}

/// One rank's part of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Slice {
    /// What it holds.
    pub cells: Cells,
    /// The grant under which each cell was written.
    pub under: [Option<StatedTag>; PAGE_SIZE as usize],
}

/// A landing arena.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Arena {
    /// The only writer that may reach it.
    pub writer: WriterLife,
    /// What landed.
    pub slots: BTreeMap<u32, Cells>,
}

/// A batch that is being copied out of an arena, or checked where it lies.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct CopyInFlight {
    /// The handoff.
    pub handoff: HandoffId,
    /// The writer's rank.
    pub rank: u16,
    /// The batch.
    pub batch: u32,
    /// From where; in direct mode from nowhere: what lies in the pages is checked there.
    pub arena: Option<ArenaId>,
    /// Its pages.
    pub pages: Vec<decode::CopyPage>,
    /// Checksums of those that are copied, or checked, already.
    pub checksums: Vec<u32>,
}

impl CopyInFlight {
    /// Whether some of its pages are copied and some are not.
    pub fn is_between(&self) -> bool {
        !self.checksums.is_empty()
    }
}

/// What one sequence of a step in flight has read.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Reading {
    /// The sequence.
    pub lane: Lane,
    /// Its pages, in order, and what they held when the step began.
    pub pages: Vec<(PageId, Page)>,
    /// Position of the token that the step writes.
    pub position: u32,
}

/// What is generated behind a prompt.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Run {
    /// Whose.
    pub prompt: usize,
    /// Which choice of the request the first one is.
    pub choice: u16,
    /// Tokens of the prompt, with those that were said before.
    pub count: u32,
    /// Tokens of each choice, with those that were said before.
    pub generated: Vec<u32>,
}

/// One page write on its way. It reads its source when it lands.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
pub struct Flight {
    /// The life that submitted it.
    pub writer: Epoch,
    /// Its rank.
    pub rank: u16,
    /// The submission.
    pub submission: SubmissionId,
    /// The handoff that it is for.
    pub handoff: Option<HandoffId>,
    /// The grant that it is for.
    pub tag: Option<StatedTag>,
    /// Where to; in direct mode the endpoint through which it goes.
    pub arena: ArenaId,
    /// Which slot; in direct mode which page of D's.
    pub slot: u32,
    /// From where.
    pub source: PageId,
    /// Token slots of it.
    pub filled: u16,
    /// Where it stands.
    pub state: FlightState,
}

/// Where a write stands.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
pub enum FlightState {
    /// Its submission waits for it.
    Flying,
    /// Its submission was reported failed, or its writer has ended. It may land, or never.
    Late,
    /// It has landed, and will land once more, at any time or never.
    Echo,
}

/// What a client has seen.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Client {
    /// It has asked.
    pub asked: bool,
    /// What its request is called, in the gateway's present life.
    pub request: Option<RequestId>,
    /// The attempts at its request so far, newest last.
    pub attempts: Vec<AttemptId>,
    /// How many of them went on with a choice that was put back.
    pub resumed: usize,
    /// How many of them a worker has turned away.
    pub refused: usize,
    /// Those that D has committed, since all were given up the last time.
    pub committed: Vec<AttemptId>,
    /// An answer has begun.
    pub begun: bool,
    /// Tokens of each choice that it has.
    pub tokens: Vec<u32>,
    /// Choices that have finished.
    pub finished: Vec<u16>,
    /// Choices that it has stopped.
    pub stopped: Vec<u16>,
    /// How it ended.
    pub outcome: Option<Outcome>,
}

/// A connection, as each of its ends sees it.
#[derive(Clone, Debug, Serialize)]
pub struct Link<F, B> {
    /// Its number.
    pub conn: Conn,
    /// Life that dialled (index); 0 for the gateway.
    pub caller: usize,
    /// Life that was dialled (index).
    pub callee: usize,
    /// Whether the caller still has it.
    pub caller_up: bool,
    /// Whether the callee still has it.
    pub callee_up: bool,
    /// To the callee.
    pub forth: VecDeque<F>,
    /// To the caller.
    pub back: VecDeque<B>,
}

/// Who dials whom, by the index of their lives.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Pair {
    /// The gateway dials prefill.
    Asking(usize),
    /// The gateway dials decode.
    Telling(usize),
    /// Prefill dials decode.
    Handing(usize, usize),
}

/// A message that nobody got.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub enum Lost {
    /// From prefill.
    ToDecode(PrefillToDecode),
    /// From decode.
    ToPrefill(DecodeToPrefill),
}

thread_local! {
    /// By how many there are of everything.
    static OWN: RefCell<Vec<([usize; 6], Part)>> = RefCell::default();
}

impl<J: Decisions> State<J> {
    /// Whether an arena is there to be attached to.
    pub(super) fn has_arena(&self, arena: ArenaId) -> bool {
        let mut lives = self.decodes.iter();
        lives.any(|life| life.arenas.contains_key(&arena))
    }

    /// What is in it besides its parts, which is how many there are and which life the gateway's is: a
    /// few worlds of millions differ in that, so it is written once for each.
    pub(super) fn own_part(&self) -> Part {
        // A field that is no part is compared here, or worlds that differ in it would be one.
        let Self {
            gateway: _,
            gateway_lives,
            gateway_timers: _,
            prefills,
            decodes,
            handing,
            asking,
            telling,
            flights: _,
            clients: _,
            lost: _,
            left: _,
            undialled: _,
            next_conn: _, // says nothing
        } = self;
        let shape = [
            usize::from(*gateway_lives),
            prefills.len(),
            decodes.len(),
            handing.len(),
            asking.len(),
            telling.len(),
        ];
        OWN.with_borrow_mut(|known| {
            if let Some((_, part)) = known.iter().find(|(of, _)| *of == shape) {
                return part.clone();
            }
            let part = Part::new(self);
            known.push((shape, part.clone()));
            part
        })
    }

    /// What it consists of, always in the same order.
    pub(super) fn parts<'a>(&'a self, own: &'a Part) -> Vec<&'a Part> {
        let mut parts = vec![
            own,
            self.left.part(),
            self.undialled.part(),
            self.lost.part(),
            self.gateway.part(),
            self.gateway_timers.part(),
            self.clients.part(),
            self.flights.part(),
        ];
        for life in &self.prefills {
            parts.extend([life.part(), life.memory.part_of(life.epoch)]);
            parts.extend(life.machine.as_ref().map(Shared::part));
        }
        for life in &self.decodes {
            parts.extend([life.part(), life.memory.part_of(life.epoch)]);
            parts.extend(life.machine.as_ref().map(Shared::part));
        }
        parts.extend(self.handing.iter().map(Kept::part));
        parts.extend(self.asking.iter().map(Kept::part));
        parts.extend(self.telling.iter().map(Kept::part));
        parts
    }
}

impl Client {
    pub(super) fn new(prompt: &Prompt) -> Self {
        let tokens = vec![0; usize::from(prompt.choices)];
        Self {
            tokens,
            ..Self::default()
        }
    }
}

impl Page {
    /// What every rank's slice holds there, and under which grant; `None` if they differ.
    pub fn cell(&self, slot: usize, ranks: usize) -> Option<(Cell, Option<StatedTag>)> {
        let of = |slice: &Slice| (slice.cells[slot], slice.under[slot]);
        let first = of(&self.slices[0]);
        let same = self.slices[..ranks].iter().all(|slice| of(slice) == first);
        same.then_some(first)
    }
}
