//! This side's ends of landing arenas. Attaching and destroying may wait, so threads of their own
//! do it; submitting never does. Pages are lent to the fabric by `Arc`: while a transfer reads one
//! nobody can write it.

use crate::driver::Inbox;
use fabric::{
    AttachError, Endpoint, Landing, Sender, SlotWrite, SubmissionId, SubmitError, WordRun,
    WriteEnding, WriteSource,
};
use handoff::ArenaId;
use model::{KvLayout, PageBuf};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// What the threads behind endpoints report.
pub(crate) enum Moved {
    /// An attach has ended.
    Attached(ArenaId, Result<Box<dyn Endpoint>, AttachError>),
    /// A submission has ended: whether every write has landed.
    Written(ArenaId, SubmissionId, bool),
    /// An endpoint is destroyed: nothing reads its sources any more.
    Detached(ArenaId),
}

enum State {
    Attaching {
        detach: bool,
    },
    Ready {
        endpoint: Box<dyn Endpoint>,
        waiting: VecDeque<(SubmissionId, Vec<SlotWrite>)>,
    },
}

/// See the module's documentation.
pub(super) struct Endpoints {
    sender: Arc<dyn Sender>,
    /// For each number of filled slots, the words that leave the worker (H-17).
    runs: Vec<Arc<[WordRun]>>,
    open: BTreeMap<ArenaId, State>,
    inbox: Inbox<Moved>,
}

/// A page, lent to a transfer.
struct Lent(Arc<PageBuf>);

impl AsRef<[u16]> for Lent {
    fn as_ref(&self) -> &[u16] {
        self.0.words()
    }
}

impl Endpoints {
    pub(super) fn new(layout: KvLayout, sender: Arc<dyn Sender>, inbox: Inbox<Moved>) -> Self {
        let runs = |filled| crate::runs_of(&layout, filled).into();
        Self {
            sender,
            runs: (0..=layout.page_size as usize).map(runs).collect(),
            open: BTreeMap::new(),
            inbox,
        }
    }

    /// Begins to attach; `Attached` follows in any case.
    pub(super) fn attach(&mut self, arena: ArenaId, address: Vec<u8>) {
        self.open.insert(arena, State::Attaching { detach: false });
        let (sender, inbox) = (self.sender.clone(), self.inbox.clone());
        let job = move || {
            let completions = inbox.clone();
            let on_completion = Box::new(move |completion: fabric::Completion| {
                let landed = completion.ending == WriteEnding::Landed;
                completions.report(Moved::Written(arena, completion.id, landed));
            });
            let attached = Landing::from_bytes(address)
                .map_err(AttachError::from)
                .and_then(|landing| sender.attach(&landing, on_completion));
            inbox.report(Moved::Attached(arena, attached));
        };
        let thread = std::thread::Builder::new().name("attach".into()).spawn(job);
        if let Err(error) = thread {
            self.inbox
                .report(Moved::Attached(arena, Err(AttachError::Io(error))));
        }
    }

    /// Takes a finished attach; whether the arena can be written to.
    pub(super) fn attached(
        &mut self,
        arena: ArenaId,
        attached: Result<Box<dyn Endpoint>, AttachError>,
    ) -> bool {
        let detach = matches!(
            self.open.get(&arena),
            Some(State::Attaching { detach: true })
        );
        match attached {
            Ok(endpoint) => {
                let waiting = VecDeque::new();
                self.open.insert(arena, State::Ready { endpoint, waiting });
                if detach {
                    self.detach(arena);
                }
                !detach
            }
            Err(error) => {
                tracing::warn!(%arena, %error, "a landing arena cannot be reached");
                self.open.remove(&arena);
                if detach {
                    self.inbox.report(Moved::Detached(arena));
                }
                false
            }
        }
    }

    /// Begins to destroy this side's end; `Detached` follows in any case.
    pub(super) fn detach(&mut self, arena: ArenaId) {
        match self.open.remove(&arena) {
            Some(State::Attaching { .. }) => {
                self.open.insert(arena, State::Attaching { detach: true });
            }
            Some(State::Ready { endpoint, waiting }) => {
                // What was never submitted was never begun; it has not landed either.
                for (id, _) in waiting {
                    self.inbox.report(Moved::Written(arena, id, false));
                }
                let inbox = self.inbox.clone();
                let job = move || {
                    let released = endpoint.destroy();
                    let unsettled = released.unsettled().len();
                    tracing::info!(%arena, unsettled, "endpoint destroyed");
                    inbox.report(Moved::Detached(arena));
                };
                let thread = std::thread::Builder::new().name("detach".into()).spawn(job);
                if let Err(error) = thread {
                    // The closure was dropped with the endpoint in it, which destroys it as well.
                    tracing::warn!(%arena, %error, "endpoint destroyed on the engine's thread");
                    self.inbox.report(Moved::Detached(arena));
                }
            }
            None => self.inbox.report(Moved::Detached(arena)),
        }
    }

    /// One page's part of a batch.
    pub(super) fn write(&self, page: Arc<PageBuf>, filled: u16, slot: u32) -> Option<SlotWrite> {
        let runs = self.runs.get(usize::from(filled))?.clone();
        let source: WriteSource = Arc::new(Lent(page));
        Some(SlotWrite { source, runs, slot })
    }

    /// Submits a batch; false if it was not begun and will have no completion.
    pub(super) fn submit(
        &mut self,
        arena: ArenaId,
        id: SubmissionId,
        writes: Vec<SlotWrite>,
    ) -> bool {
        let Some(State::Ready { endpoint, waiting }) = self.open.get_mut(&arena) else {
            return false;
        };
        if !waiting.is_empty() {
            waiting.push_back((id, writes));
            return true;
        }
        match endpoint.submit(id, writes.clone()) {
            Ok(()) => true,
            Err(SubmitError::Full(_)) => {
                waiting.push_back((id, writes));
                true
            }
            Err(error) => {
                tracing::warn!(%arena, %error, "a batch was not submitted");
                false
            }
        }
    }

    /// A submission has ended: there may be room for those that wait. Names what failed at once.
    pub(super) fn submit_waiting(&mut self, arena: ArenaId) -> Vec<SubmissionId> {
        let mut failed = Vec::new();
        let Some(State::Ready { endpoint, waiting }) = self.open.get_mut(&arena) else {
            return failed;
        };
        while let Some((id, writes)) = waiting.front() {
            match endpoint.submit(*id, writes.clone()) {
                Ok(()) => {}
                Err(SubmitError::Full(_)) => break,
                Err(error) => {
                    tracing::warn!(%arena, %error, "a batch was not submitted");
                    failed.push(*id);
                }
            }
            waiting.pop_front();
        }
        failed
    }
}
