//! One request that generates, from its arrival to its end, whoever brings that about.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use crate::engine::Role;
use crate::log::{Counts, Stage, What};
use crate::meeting::{End, Room};
use crate::state::State;

/// What others can do to a running request.
pub(crate) struct Leg {
    pub(crate) rid: String,
    aborted: AtomicBool,
    wake: Notify,
}

impl Leg {
    pub(crate) fn new(rid: String) -> Arc<Self> {
        Arc::new(Self {
            rid,
            aborted: AtomicBool::new(false),
            wake: Notify::new(),
        })
    }

    pub(crate) fn abort(&self) {
        self.aborted.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    pub(crate) fn is_aborted(&self) -> bool {
        self.aborted.load(Ordering::Acquire)
    }

    pub(crate) async fn wait_for_abort(&self) {
        while !self.is_aborted() {
            self.wake.notified().await;
        }
    }
}

/// An abort came.
pub(crate) struct Aborted;

/// A running request. Dropped before its end, its peer has left.
pub(crate) struct Work {
    pub(crate) state: Arc<State>,
    pub(crate) leg: Arc<Leg>,
    pub(crate) number: u64,
    pub(crate) stage: Stage,
    /// It hears no abort.
    pub(crate) deaf: bool,
    room: Option<(u64, Room)>,
    over: bool,
}

impl Work {
    pub(crate) fn begin(state: Arc<State>, number: u64, leg: Arc<Leg>) -> Self {
        state.notes.count(|counts| {
            counts.arrived += 1;
            counts.in_flight += 1;
        });
        state.running().insert(number, leg.clone());
        Self {
            state,
            leg,
            number,
            stage: Stage::Computing,
            deaf: false,
            room: None,
            over: false,
        }
    }

    pub(crate) fn note(&self, what: What) {
        self.state.notes.note(self.number, what);
    }

    /// Until `done`, or until an abort that it hears.
    pub(crate) async fn unless_aborted<T>(
        &self,
        done: impl Future<Output = T>,
    ) -> Result<T, Aborted> {
        if self.deaf {
            return Ok(done.await);
        }
        tokio::select! {
            biased;
            () = self.leg.wait_for_abort() => Err(Aborted),
            done = done => Ok(done),
        }
    }

    pub(crate) async fn pause(&self, time: Duration) -> Result<(), Aborted> {
        match time.is_zero() {
            true => Ok(()),
            false => self.unless_aborted(tokio::time::sleep(time)).await,
        }
    }

    /// Enters a bootstrap room.
    pub(crate) fn enter(&mut self, number: u64) -> Room {
        let (state, role) = (&self.state, self.state.engine.role);
        let (room, again) = state.fleet.meeting.enter(&state.notes.engine, number, role);
        if again {
            self.note(What::RoomAgain { room: number });
        }
        self.room = Some((number, room.clone()));
        room
    }

    /// The transfer begins, in which this leg writes or reads.
    pub(crate) fn transferring(&mut self) {
        self.stage = Stage::Transferring;
        let begun = |counts: &mut Counts| counts.transfers_begun += 1;
        self.state.notes.count(begun);
    }

    /// The transfer is over, for this leg.
    pub(crate) fn transferred(&mut self) {
        self.stage = Stage::Answering;
        self.note(What::Transferred);
    }

    /// Refused at the door: the other leg is told nothing.
    pub(crate) fn refuse(&mut self, room: Option<u64>) {
        if self.state.engine.role == Role::Prefill
            && let Some(room) = room
        {
            self.enter(room).send_modify(|meet| meet.refused = true);
        }
    }

    /// Ends by the engine's own doing.
    pub(crate) fn end(&mut self, status: u16) {
        self.over(What::Ended { status }, false);
    }

    /// Ends as it was asked to.
    pub(crate) fn aborted(&mut self) {
        let stage = self.stage;
        self.over(What::Aborted { stage }, true);
    }

    fn over(&mut self, what: What, left: bool) {
        if std::mem::replace(&mut self.over, true) {
            return;
        }
        self.state.running().remove(&self.number);
        self.note(what);
        self.state.notes.count(|counts| counts.in_flight -= 1);
        self.leave_room(left);
    }

    /// What its leaving means for the other leg.
    fn leave_room(&mut self, left: bool) {
        let decode = self.state.engine.role == Role::Decode;
        let dead = self.state.dead.load(Ordering::Acquire);
        let Some((number, room)) = self.room.take() else {
            // By reference: decode was reading.
            if left && !dead && self.stage == Stage::Transferring {
                self.note(What::Broken);
            }
            return;
        };
        let meet = *room.borrow();
        if decode && !meet.prefill {
            self.note(What::Orphan);
        } else if left && !dead && meet.end.is_none() && !meet.refused {
            self.note(What::Broken);
        }
        let waits = !decode && meet.refused;
        if meet.end.is_none() && (left || !waits) {
            room.send_modify(|meet| meet.end = Some(End::Failed));
        }
        self.state.fleet.meeting.leave(number, room);
    }

    /// Leaves the room without a word, so that prefill does not fail.
    pub(crate) fn slip_out(&mut self) {
        if let Some((number, room)) = self.room.take() {
            self.state.fleet.meeting.leave(number, room);
        }
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let stage = self.stage;
        let what = match self.state.dead.load(Ordering::Acquire) {
            true => What::Killed { stage },
            false => What::Disconnected { stage },
        };
        self.over(what, true);
    }
}
