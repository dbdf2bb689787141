//! What both engines keep beside their machine: inbox, connections, timers, counters.

use super::{Input, Links};
use crate::facts::count_ending;
use crate::{FailStop, WorkerError};
use handoff::{AttemptId, Conn, Ending};
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};
use wire::Counters;
use wire::Timers;
use wire::trace::{AuditLog, AuditRecord};

/// See the module's documentation.
pub(crate) struct DriverState<Own, Timer> {
    inbox: Receiver<Input<Own>>,
    pub(crate) links: Links,
    pub(crate) timers: Timers<Timer>,
    pub(crate) counters: Counters,
    /// Attempts that were sent here and have not ended, so that each ending is counted once; and
    /// who is to be told.
    live: BTreeMap<AttemptId, Conn>,
    audit: AuditLog,
    drain_for: Duration,
    over_at: Option<Instant>,
}

/// Longest sleep without a timer.
const IDLE: Duration = Duration::from_secs(1);

impl<Own, Timer: Ord + Copy> DriverState<Own, Timer> {
    pub(crate) fn new(inbox: Receiver<Input<Own>>, audit: AuditLog, drain_for: Duration) -> Self {
        Self {
            inbox,
            links: Links::default(),
            timers: Timers::default(),
            counters: Counters::default(),
            live: BTreeMap::new(),
            audit,
            drain_for,
            over_at: None,
        }
    }

    /// The next input, if there is one.
    pub(crate) fn next(&mut self) -> Option<Input<Own>> {
        self.inbox.try_recv().ok()
    }

    /// Waits for one until a timer is due.
    pub(crate) fn wait(&mut self) -> Result<Option<Input<Own>>, WorkerError> {
        let until = self.timers.next().into_iter().chain(self.over_at).min();
        let wait = until.map_or(IDLE, |until| {
            until.saturating_duration_since(Instant::now())
        });
        match self.inbox.recv_timeout(wait.min(IDLE)) {
            Ok(input) => Ok(Some(input)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(FailStop::Thread("the I/O runtime").into()),
        }
    }

    /// A gateway has sent this attempt.
    pub(crate) fn attempt_seen(&mut self, attempt: AttemptId, conn: Conn) {
        self.counters.attempts_seen += 1;
        self.live.insert(attempt, conn);
    }

    /// A connection has ended. If it was a gateway's, that cancels what it wanted, and nobody is
    /// left to be told an ending.
    pub(crate) fn disconnected(&mut self, gone: Conn) {
        let before = self.live.len();
        self.live.retain(|_, conn| *conn != gone);
        for _ in self.live.len()..before {
            count_ending(&mut self.counters, &Ending::Cancelled);
        }
    }

    /// A gateway is told how it ended.
    pub(crate) fn attempt_ended(&mut self, attempt: AttemptId, ending: &Ending) {
        if self.live.remove(&attempt).is_some() {
            count_ending(&mut self.counters, ending);
        }
    }

    /// For the audit log.
    pub(crate) fn audit(&mut self, record: &AuditRecord) {
        self.audit.write(record);
    }

    /// Attempts that have not ended, and who waits for their ends.
    pub(crate) fn unended(&mut self) -> BTreeMap<AttemptId, Conn> {
        std::mem::take(&mut self.live)
    }

    pub(crate) fn draining(&self) -> bool {
        self.over_at.is_some()
    }

    pub(crate) fn begin_draining(&mut self) {
        self.over_at.get_or_insert(Instant::now() + self.drain_for);
    }

    pub(crate) fn stop_now(&mut self) {
        self.over_at = Some(Instant::now());
    }

    /// Whether a draining worker may end: nothing is going on, or its time is over.
    pub(crate) fn is_over(&self, at_rest: bool) -> bool {
        self.over_at
            .is_some_and(|over_at| at_rest || Instant::now() >= over_at)
    }
}
