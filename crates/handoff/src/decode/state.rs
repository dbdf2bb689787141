//! What the machine remembers. Plain data around the linear handles.

use crate::id::HandoffKey;
use crate::prefix::Page;
use crate::{ArenaId, AttemptId, Conn, LinkId, Manifest, OfferId, Reserve, Spec};
use pages::{BlockTable, Domain, Epoch, Grant, OpId, Owner, OwnerId, Pool, WriterLife};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// An attempt that a gateway announced.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub(super) struct Expected {
    pub conn: Conn,
    pub spec: Spec,
    pub digest: [u8; 32],
    pub prefill: Epoch,
    pub handoff: Option<HandoffKey>,
}

/// One life of one prefill worker.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub(super) struct Peer {
    pub conn: Option<Conn>,
    /// What P calls the connection, once its Sync was heard.
    pub synced: Option<LinkId>,
    pub ranks: u16,
    /// One arena at a time for each rank.
    pub arenas: BTreeMap<u16, Arena>,
    /// Arenas dropped together, whatever the ranks, whose memory was not given back yet, and whether
    /// somebody is known to map it. Only that it is given back makes an incident forgotten.
    pub incidents: Vec<BTreeMap<ArenaId, Mapped>>,
    /// Integrity faults of this life, which are never forgotten.
    pub faults: u32,
    /// Failures to make an arena since one was there for every rank; and whether a timer to try again
    /// is armed.
    pub retry: Option<u32>,
    pub retry_armed: bool,
    /// Refused until it says Hello again.
    pub refused: bool,
}

impl Peer {
    /// Arenas of this life are not made any more: too many of its faults, or too much memory that
    /// it has not given back.
    pub(super) fn is_worn(&self, max_drops: u32) -> bool {
        self.faults >= max_drops || self.incidents.len() >= max_drops as usize
    }

    /// The fence of that arena begins, or will when it is made; gives its rank, and whether it begins
    /// now.
    pub(super) fn begin_fence(&mut self, arena: ArenaId) -> Option<(u16, bool)> {
        let (rank, known) = self.arenas.iter_mut().find(|(_, it)| it.id == arena)?;
        let rank = *rank;
        let begins = match &mut known.state {
            ArenaState::Opening { drop } => {
                *drop = true;
                false
            }
            ArenaState::Fencing => false,
            ArenaState::Ready { .. } => {
                known.state = ArenaState::Fencing;
                true
            }
        };
        if begins {
            self.dropped(arena);
        }
        Some((rank, begins))
    }

    /// An arena is dropped. One while others are being fenced belongs to the same incident.
    fn dropped(&mut self, arena: ArenaId) {
        let fencing = |other: &Arena| other.id != arena && other.state == ArenaState::Fencing;
        let same = self.arenas.values().any(fencing);
        let mapped = Mapped(false);
        match self.incidents.last_mut().filter(|_| same) {
            Some(incident) => drop(incident.insert(arena, mapped)),
            None => self.incidents.push(BTreeMap::from([(arena, mapped)])),
        }
    }

    pub(super) fn lingers(&mut self, arena: ArenaId) {
        let mut of_arena = self.incidents.iter_mut();
        if let Some(mapped) = of_arena.find_map(|incident| incident.get_mut(&arena)) {
            *mapped = Mapped(true);
        }
    }

    /// It is fenced. If nobody maps it, its memory is given back with that.
    pub(super) fn fenced(&mut self, arena: ArenaId) {
        let mut of_arena = self.incidents.iter();
        let mapped = of_arena.find_map(|incident| incident.get(&arena).copied());
        if mapped == Some(Mapped(false)) {
            self.released(arena);
        }
    }

    /// Its memory is given back; false if it was none of this life's.
    pub(super) fn released(&mut self, arena: ArenaId) -> bool {
        let mut of_arena = self.incidents.iter_mut();
        let known = of_arena.any(|incident| incident.remove(&arena).is_some());
        self.incidents.retain(|incident| !incident.is_empty());
        known
    }

    /// Nothing about it needs to be remembered when it is gone.
    pub(super) fn is_clean(&self) -> bool {
        self.faults == 0 && self.incidents.is_empty()
    }
}

/// Whether somebody maps an arena that was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub(super) struct Mapped(pub bool);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub(super) struct Arena {
    pub id: ArenaId,
    pub state: ArenaState,
    /// Slots named in manifests whose copy has not ended.
    pub busy: BTreeSet<u32>,
    /// Slots that may be written at any time, for as long as the arena lives.
    pub unsettled: BTreeSet<u32>,
    /// Its writer said Unsettled: it is to be replaced.
    pub doubtful: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub(super) enum ArenaState {
    /// Being made; `drop` once it exists.
    Opening {
        drop: bool,
    },
    Ready {
        slots: u32,
        address: Vec<u8>,
    },
    Fencing,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub(super) struct Handoff {
    pub offer: OfferId,
    pub attempt: AttemptId,
    pub peer: Epoch,
    pub domain: Domain,
    pub phase: Phase,
    /// Prompt tokens, and pages that hold them.
    pub count: u32,
    pub prompt_pages: u32,
    /// Ordinal of the first page that comes from P; those before it are pinned cached pages.
    pub first: u32,
    /// Pages of the prompt: the pinned prefix, then what P sends.
    pub prompt: Vec<Page>,
    /// Pages of each lane that no sequence has taken yet, last first.
    pub reserve: Vec<Vec<Grant>>,
    /// How it comes by those that it has not.
    pub pages: Reserve,
    /// The most pages that one of its sequences can come to hold, the prompt's included.
    pub most: usize,
    pub sequences: Vec<Sequence>,
    /// Whether the worker has looked at the first tokens.
    pub started: bool,
    pub writers: Vec<Writer>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub(super) enum Phase {
    /// The ticket is sent.
    Landing,
    /// Committed.
    Running,
    /// The owner has ended; its pages are given back when the step in flight has ended.
    Over { pages_held: bool },
}

impl Handoff {
    pub(super) fn is_landing(&self) -> bool {
        self.phase == Phase::Landing
    }

    pub(super) fn is_running(&self) -> bool {
        self.phase == Phase::Running
    }

    /// Every choice has ended, and the worker has looked at the first tokens.
    pub(super) fn is_finished(&self) -> bool {
        self.is_running() && self.started && self.sequences.iter().all(|sequence| sequence.done)
    }

    /// Copies in flight.
    pub(super) fn copying(&self) -> usize {
        self.writers.iter().map(|writer| writer.copying.len()).sum()
    }

    /// Pages that it holds, shared ones included.
    pub(super) fn held(&self) -> usize {
        let own = self.sequences.iter().map(|sequence| sequence.own.len());
        let reserve = self.reserve.iter().map(Vec::len);
        self.prompt.len() + reserve.sum::<usize>() + own.sum::<usize>()
    }

    /// Whether a choice that has not ended lacks a page for its next token.
    pub(super) fn is_short(&self, choice: usize) -> bool {
        let Some(sequence) = self.sequences.get(choice).filter(|sequence| !sequence.done) else {
            return false;
        };
        let full = sequence.table.tokens() == sequence.table.capacity();
        full && self.reserve.get(choice).is_none_or(Vec::is_empty)
    }

    /// Pages that P has to send.
    pub(super) fn sent_pages(&self) -> u32 {
        self.prompt_pages - self.first
    }

    /// Filled slots of the page at `ordinal` of the prompt.
    pub(super) fn fill_of(&self, ordinal: u32, page_size: u16) -> u16 {
        let rest = self.count - ordinal * u32::from(page_size);
        rest.min(u32::from(page_size)) as u16
    }

    pub(super) fn fork_for_checker<J: pages::Decisions>(&self, pool: &Pool<J>) -> Self {
        let grants = |list: &Vec<Grant>| {
            list.iter()
                .map(|grant| pool.fork_grant_for_checker(grant))
                .collect()
        };
        Self {
            offer: self.offer,
            attempt: self.attempt,
            peer: self.peer,
            domain: self.domain,
            phase: self.phase,
            count: self.count,
            prompt_pages: self.prompt_pages,
            first: self.first,
            prompt: self
                .prompt
                .iter()
                .map(|page| page.fork_for_checker(pool))
                .collect(),
            reserve: self.reserve.iter().map(grants).collect(),
            pages: self.pages,
            most: self.most,
            sequences: self
                .sequences
                .iter()
                .map(|sequence| Sequence {
                    table: sequence.table.clone(),
                    own: grants(&sequence.own),
                    done: sequence.done,
                })
                .collect(),
            started: self.started,
            writers: self.writers.clone(),
        }
    }
}

/// One writer of the ticket's set.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub(super) struct Writer {
    pub arena: ArenaId,
    pub state: WriterState,
    /// Whether its Closed or Unsettled was answered.
    pub answered: bool,
    /// It had closed, and an integrity fault made that void: the answer waits for the fence.
    pub voided: bool,
    /// Batches whose copy is in flight.
    pub copying: BTreeMap<u32, Copying>,
    /// Batches that were recorded. A set, not a mark: copies end out of order.
    pub taken: BTreeSet<u32>,
    /// Verified checksum of each page that was recorded.
    pub recorded: BTreeMap<u32, u32>,
    pub first: Option<Vec<u8>>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub(super) struct Copying {
    pub op: OpId,
    pub manifest: Manifest,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub(super) enum WriterState {
    Open,
    Sealed {
        batches: u32,
        pages: u32,
    },
    Abandoned,
    Unsettled,
    /// Fenced.
    Gone,
}

impl Writer {
    pub(super) fn new(arena: ArenaId) -> Self {
        Self {
            arena,
            state: WriterState::Open,
            answered: false,
            voided: false,
            copying: BTreeMap::new(),
            taken: BTreeSet::new(),
            recorded: BTreeMap::new(),
            first: None,
        }
    }

    /// Pages recorded, or stated and on their way to be.
    pub(super) fn arrived(&self) -> u32 {
        let copying = self.copying.values().map(|copy| copy.manifest.pages.len());
        (self.recorded.len() + copying.sum::<usize>()) as u32
    }

    /// Nothing of it can arrive any more, and its peer's wait has ended.
    pub(super) fn is_over(&self) -> bool {
        self.copying.is_empty() && (self.answered || self.state == WriterState::Gone)
    }
}

/// One choice that is generated.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub(super) struct Sequence {
    pub table: BlockTable,
    /// Pages that only this choice writes.
    pub own: Vec<Grant>,
    pub done: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub(super) struct StepInFlight {
    pub op: OpId,
    /// (handoff, choice)
    pub lanes: Vec<(HandoffKey, u16)>,
}

impl StepInFlight {
    pub(super) fn names(&self, handoff: HandoffKey) -> bool {
        self.lanes.iter().any(|(id, _)| *id == handoff)
    }
}

/// One life of one writer of a peer.
pub(super) fn life(epoch: Epoch, rank: u16) -> WriterLife {
    WriterLife { epoch, rank }
}

/// The ledger's lane of a choice. Lane 0 is the prompt, which a choice that is `alone` goes on in.
pub(super) fn ledger_lane(choice: u16, alone: bool) -> u16 {
    if alone { 0 } else { choice + 1 }
}

/// The ledger's owner for a lane of a handoff.
pub(super) fn owner(id: HandoffKey, domain: Domain, lane: u16) -> Owner {
    Owner {
        id: OwnerId::new(id.0),
        domain,
        lane,
    }
}
