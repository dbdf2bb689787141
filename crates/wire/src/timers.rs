//! Timers of a machine that has no clock, kept by who drives it: armed for so many milliseconds, fired
//! once.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Longest time that a timer is armed for; what is longer fires then. (A year.)
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// Those of one machine.
#[derive(Debug)]
pub struct Timers<T> {
    by_time: BTreeSet<(Instant, T)>,
    due: BTreeMap<T, Instant>,
}

impl<T> Default for Timers<T> {
    fn default() -> Self {
        Self {
            by_time: BTreeSet::new(),
            due: BTreeMap::new(),
        }
    }
}

impl<T: Ord + Copy> Timers<T> {
    /// Arms it; if it was armed, this counts.
    pub fn arm(&mut self, timer: T, now: Instant, after_ms: u64) {
        self.disarm(timer);
        let due = now + Duration::from_millis(after_ms).min(LONGEST);
        self.due.insert(timer, due);
        self.by_time.insert((due, timer));
    }

    /// As if it had never been armed.
    pub fn disarm(&mut self, timer: T) {
        if let Some(due) = self.due.remove(&timer) {
            self.by_time.remove(&(due, timer));
        }
    }

    /// Those that are armed.
    pub fn armed(&self) -> impl Iterator<Item = &T> {
        self.by_time.iter().map(|(_, timer)| timer)
    }

    /// When the next one is due.
    pub fn next(&self) -> Option<Instant> {
        self.by_time.first().map(|(due, _)| *due)
    }

    /// Takes one that is due.
    pub fn pop_due(&mut self, now: Instant) -> Option<T> {
        let (due, timer) = *self.by_time.first().filter(|(due, _)| *due <= now)?;
        self.by_time.remove(&(due, timer));
        self.due.remove(&timer);
        Some(timer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_fire_once_in_order_of_time() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut timers = Timers::default();
        timers.arm('a', start, 30);
        timers.arm('b', start, 10);
        timers.arm('c', start, 20);
        timers.arm('d', start, 1);
        timers.arm('d', start, 40);
        timers.arm('a', start, 5);
        timers.disarm('c');
        timers.disarm('x');
        assert_eq!(timers.next(), Some(at(5)));
        assert_eq!(timers.pop_due(at(4)), None);
        assert_eq!(
            timers.pop_due(at(100)),
            Some('a'),
            "armed again: the later call counts"
        );
        assert_eq!(timers.pop_due(at(39)), Some('b'));
        assert_eq!(timers.pop_due(at(39)), None, "also if it is longer");
        assert_eq!(timers.pop_due(at(40)), Some('d'));
        assert_eq!(
            timers.pop_due(at(100)),
            None,
            "c was disarmed, a fired once"
        );
        assert_eq!(timers.next(), None);
    }

    #[test]
    fn a_deadline_beyond_every_clock_does_not_overflow() {
        let mut timers = Timers::default();
        timers.arm((), Instant::now(), u64::MAX);
        assert!(timers.next().is_some());
    }
}
