//! Faults of the data plane: the writing end of the fabric, wrapped.
//!
//! What the wrapper reports is what a real engine could: a batch that failed and lands later, one
//! that lands in pieces, one whose bytes are not those that were sent. A source that is read after
//! its submission has ended is a copy of what it was then, as a network card's buffer would be.

use super::board::Board;
use super::faults::{Kind, Schedule};
use fabric::{
    ArenaId, AttachError, Completion, Endpoint, Landing, OnCompletion, Sender, SlotWrite,
    SourcesReleased, SubmissionId, SubmitError, WriteEnding,
};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Stands between prefill and its fabric.
pub(crate) struct Attacked {
    pub schedule: Arc<Schedule>,
    pub board: Arc<Board>,
}

impl worker::FabricLayer for Attacked {
    fn sender(&self, sender: Arc<dyn Sender>) -> Arc<dyn Sender> {
        Arc::new(AttackedSender {
            inner: sender,
            schedule: self.schedule.clone(),
            board: self.board.clone(),
        })
    }
}

struct AttackedSender {
    inner: Arc<dyn Sender>,
    schedule: Arc<Schedule>,
    board: Arc<Board>,
}

impl Sender for AttackedSender {
    fn attach(
        &self,
        landing: &Landing,
        on_completion: OnCompletion,
    ) -> Result<Box<dyn Endpoint>, AttachError> {
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                endpoint: None,
                next: 1,
                open: BTreeMap::new(),
                whole: BTreeMap::new(),
                closing: false,
                cut: false,
            }),
            changed: Condvar::new(),
            tell: Mutex::new(on_completion),
        });
        let heard = shared.clone();
        let endpoint = self
            .inner
            .attach(landing, Box::new(move |ended| heard.completed(ended)))?;
        let arena = endpoint.arena();
        shared.state().endpoint = Some(endpoint);
        Ok(Box::new(AttackedEndpoint {
            arena,
            shared,
            schedule: self.schedule.clone(),
            board: self.board.clone(),
            later: Vec::new(),
        }))
    }
}

/// What an inner submission is a part of.
#[derive(Clone, Copy)]
enum Part {
    Of(SubmissionId),
    /// Its end is nobody's business.
    Ghost,
}

struct State {
    /// None once it is destroyed.
    endpoint: Option<Box<dyn Endpoint>>,
    /// The next inner id: they only grow, whatever comes late.
    next: u64,
    open: BTreeMap<SubmissionId, Part>,
    /// Of each outer submission: inner ones that are not over, and whether all have landed.
    whole: BTreeMap<SubmissionId, (usize, bool)>,
    closing: bool,
    /// The connection is cut.
    cut: bool,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    tell: Mutex<OnCompletion>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn completed(&self, ended: Completion) {
        let mut state = self.state();
        let part = state.open.remove(&ended.id);
        let Some(Part::Of(outer)) = part else { return };
        let landed = ended.ending == WriteEnding::Landed;
        self.part_over(state, ended.arena, outer, landed);
    }

    /// A part of an outer submission is over; with the last one it is complete.
    fn part_over(
        &self,
        mut state: MutexGuard<'_, State>,
        arena: ArenaId,
        outer: SubmissionId,
        landed: bool,
    ) {
        let Some((left, all)) = state.whole.get_mut(&outer) else {
            return; // it was reported already
        };
        *left -= 1;
        *all &= landed;
        if *left > 0 {
            self.changed.notify_all();
            return;
        }
        let landed = *all;
        state.whole.remove(&outer);
        drop(state);
        self.report(arena, outer, landed);
    }

    fn report(&self, arena: ArenaId, id: SubmissionId, landed: bool) {
        let ending = if landed {
            WriteEnding::Landed
        } else {
            WriteEnding::Failed
        };
        let mut tell = self.tell.lock().unwrap_or_else(PoisonError::into_inner);
        tell(Completion { arena, id, ending });
    }

    /// Submits to the fabric itself.
    fn pass(&self, part: Part, writes: Vec<SlotWrite>) -> Result<(), SubmitError> {
        let mut state = self.state();
        let id = SubmissionId(state.next);
        let Some(endpoint) = &mut state.endpoint else {
            return Err(SubmitError::EndpointFailed);
        };
        endpoint.submit(id, writes)?;
        state.next += 1;
        // Its completion waits for this lock.
        state.open.insert(id, part);
        Ok(())
    }

    /// The same from a thread of its own, which can wait for room.
    fn pass_later(&self, part: Part, writes: Vec<SlotWrite>) -> bool {
        loop {
            match self.pass(part, writes.clone()) {
                Ok(()) => return true,
                Err(SubmitError::Full(_)) => std::thread::sleep(Duration::from_millis(1)),
                Err(_) => return false,
            }
        }
    }

    /// Waits until no more than so many parts of an outer submission are not over.
    fn wait_for_parts(&self, outer: SubmissionId, left: usize) {
        let open = |state: &mut State| {
            !state.closing && state.whole.get(&outer).is_some_and(|(n, _)| *n > left)
        };
        let waited = self.changed.wait_while(self.state(), open);
        drop(waited);
    }

    /// Waits, but not beyond the end of the endpoint.
    fn wait(&self, time: Duration) {
        let state = self.state();
        let waited = self
            .changed
            .wait_timeout_while(state, time, |state| !state.closing);
        drop(waited);
    }
}

struct AttackedEndpoint {
    arena: ArenaId,
    shared: Arc<Shared>,
    schedule: Arc<Schedule>,
    board: Arc<Board>,
    later: Vec<JoinHandle<()>>,
}

/// The same bytes, in memory of their own.
fn copied(write: &SlotWrite) -> SlotWrite {
    let words: Vec<u16> = (*write.source).as_ref().to_vec();
    SlotWrite {
        source: Arc::new(words),
        ..write.clone()
    }
}

fn corrupted(write: &SlotWrite, at: u64) -> SlotWrite {
    let mut words: Vec<u16> = (*write.source).as_ref().to_vec();
    let sent: usize = write.runs.iter().map(|run| run.words).sum();
    let mut left = (at % sent.max(1) as u64) as usize;
    for run in write.runs.iter() {
        if left < run.words {
            words[run.offset + left] ^= 1 << (at / 97 % 16);
            break;
        }
        left -= run.words;
    }
    SlotWrite {
        source: Arc::new(words),
        ..write.clone()
    }
}

impl AttackedEndpoint {
    fn begin(&self, id: SubmissionId, parts: usize) {
        self.shared.state().whole.insert(id, (parts, true));
    }

    /// Does something on a thread of its own, which the endpoint's end waits for.
    fn later(&mut self, work: impl FnOnce(&Shared) + Send + 'static) {
        self.later.retain(|thread| !thread.is_finished());
        let shared = self.shared.clone();
        self.later.push(std::thread::spawn(move || work(&shared)));
    }

    fn one_part(&mut self, id: SubmissionId, writes: Vec<SlotWrite>) -> Result<(), SubmitError> {
        self.begin(id, 1);
        let passed = self.shared.pass(Part::Of(id), writes);
        if passed.is_err() {
            self.shared.state().whole.remove(&id);
        }
        passed
    }

    /// Each as a submission of its own, with a pause before each; the n-th waits for the board.
    fn in_pieces(
        &mut self,
        id: SubmissionId,
        pieces: Vec<Vec<SlotWrite>>,
        pause: Duration,
        held: Option<usize>,
    ) {
        let (arena, board, parts) = (self.arena, self.board.clone(), pieces.len());
        self.begin(id, parts);
        self.later(move |shared| {
            for (nth, piece) in pieces.into_iter().enumerate() {
                if held == Some(nth) {
                    // A submission is only a promise: whoever is stopped here has written.
                    shared.wait_for_parts(id, parts - nth);
                    board.say(
                        "half-written",
                        &format!("{id:?}"),
                        &json!({"arena": arena.to_string()}),
                    );
                } else if nth > 0 {
                    shared.wait(pause);
                }
                if !shared.pass_later(Part::Of(id), piece) {
                    shared.part_over(shared.state(), arena, id, false);
                }
            }
        });
    }
}

impl Endpoint for AttackedEndpoint {
    fn arena(&self) -> ArenaId {
        self.arena
    }

    fn submit(&mut self, id: SubmissionId, mut writes: Vec<SlotWrite>) -> Result<(), SubmitError> {
        let arena = self.arena;
        let cut = {
            let mut state = self.shared.state();
            state.cut |= self.schedule.strikes(Kind::CutWrites).is_some();
            state.cut
        };
        if cut {
            self.later(move |shared| shared.report(arena, id, false));
            return Ok(());
        }
        if let Some(mut dice) = self.schedule.strikes(Kind::Late) {
            let wait = Duration::from_millis(5 + dice.below(300));
            let late: Vec<SlotWrite> = writes.iter().map(copied).collect();
            self.later(move |shared| {
                shared.report(arena, id, false);
                std::thread::sleep(wait); // also when the endpoint is to end: that is the fault
                shared.pass_later(Part::Ghost, late);
            });
            return Ok(());
        }
        if let Some(mut dice) = self.schedule.strikes(Kind::Corrupt) {
            let nth = dice.below(writes.len() as u64) as usize;
            writes[nth] = corrupted(&writes[nth], dice.draw());
        }
        if let Some(mut dice) = self.schedule.strikes(Kind::Drop) {
            writes.remove(dice.below(writes.len() as u64) as usize);
            if writes.is_empty() {
                self.later(move |shared| shared.report(arena, id, true));
                return Ok(());
            }
        }
        if let Some(mut dice) = self.schedule.strikes(Kind::Duplicate) {
            let wait = Duration::from_millis(1 + dice.below(100));
            let again: Vec<SlotWrite> = writes.iter().map(copied).collect();
            self.later(move |shared| {
                shared.wait(wait);
                shared.pass_later(Part::Ghost, again);
            });
        }
        if self.schedule.strikes(Kind::Half).is_some() && writes.len() > 1 {
            let rest = writes.split_off(writes.len() / 2);
            self.in_pieces(id, vec![writes, rest], Duration::ZERO, Some(1));
            return Ok(());
        }
        if let Some(mut dice) = self.schedule.strikes(Kind::Reorder) {
            let pause = Duration::from_millis(dice.below(5));
            for at in (1..writes.len()).rev() {
                writes.swap(at, dice.below(at as u64 + 1) as usize);
            }
            let pieces = writes.into_iter().map(|write| vec![write]).collect();
            self.in_pieces(id, pieces, pause, None);
            return Ok(());
        }
        if let Some(mut dice) = self.schedule.strikes(Kind::DelayWrite) {
            let wait = Duration::from_millis(1 + dice.below(80));
            self.begin(id, 1);
            self.later(move |shared| {
                shared.wait(wait);
                if !shared.pass_later(Part::Of(id), writes) {
                    shared.part_over(shared.state(), arena, id, false);
                }
            });
            return Ok(());
        }
        self.one_part(id, writes)
    }

    fn destroy(self: Box<Self>) -> SourcesReleased {
        let Self { shared, later, .. } = *self;
        shared.state().closing = true;
        shared.changed.notify_all();
        for thread in later {
            let _ = thread.join();
        }
        let endpoint = shared.state().endpoint.take();
        // Outside the lock: what it completes now is passed on.
        endpoint.expect("destroyed once").destroy()
    }
}
