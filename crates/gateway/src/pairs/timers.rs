//! Timers of a machine that has no clock: armed for so many milliseconds, fired once.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use handoff::gateway::Timer;

/// Longest time that a timer is armed for; what is longer fires then. (A year.)
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Timers {
    by_time: BTreeSet<(Instant, Timer)>,
    due: BTreeMap<Timer, Instant>,
}

impl Timers {
    /// Arms it; if it was armed, this counts.
    pub(super) fn arm(&mut self, timer: Timer, now: Instant, after_ms: u64) {
        self.disarm(timer);
        let due = now + Duration::from_millis(after_ms).min(LONGEST);
        self.due.insert(timer, due);
        self.by_time.insert((due, timer));
    }

    pub(super) fn disarm(&mut self, timer: Timer) {
        if let Some(due) = self.due.remove(&timer) {
            self.by_time.remove(&(due, timer));
        }
    }

    /// Those that are armed.
    pub(super) fn armed(&self) -> impl Iterator<Item = &Timer> {
        self.by_time.iter().map(|(_, timer)| timer)
    }

    /// When the next one is due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.by_time.first().map(|(due, _)| *due)
    }

    /// Takes one that is due.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<Timer> {
        let (due, timer) = *self.by_time.first().filter(|(due, _)| *due <= now)?;
        self.by_time.remove(&(due, timer));
        self.due.remove(&timer);
        Some(timer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use handoff::RequestId;
    use pages::Epoch;

    fn timer(n: u64) -> Timer {
        let epoch = Epoch::new(1);
        Timer::Request(RequestId { epoch, n })
    }

    #[test]
    fn timers_fire_once_in_order_of_time() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut timers = Timers::default();
        timers.arm(timer(1), start, 30);
        timers.arm(timer(2), start, 10);
        timers.arm(timer(3), start, 20);
        timers.arm(timer(1), start, 5);
        timers.disarm(timer(3));
        timers.disarm(timer(9));
        assert_eq!(timers.next(), Some(at(5)));
        assert_eq!(timers.pop_due(at(4)), None);
        assert_eq!(
            timers.pop_due(at(100)),
            Some(timer(1)),
            "armed again: the later call counts"
        );
        assert_eq!(timers.pop_due(at(100)), Some(timer(2)));
        assert_eq!(
            timers.pop_due(at(100)),
            None,
            "3 was disarmed, 1 fired once"
        );
    }

    #[test]
    fn a_deadline_beyond_every_clock_does_not_overflow() {
        let mut timers = Timers::default();
        timers.arm(timer(1), Instant::now(), u64::MAX);
        assert!(timers.next().is_some());
    }
}
