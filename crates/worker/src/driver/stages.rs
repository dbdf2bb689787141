//! How long an attempt may be in each stage. The machine knows one timer for the whole attempt and
//! names the stage in which it fires; here it is armed for whichever ends first, the attempt's time
//! or its stage's, and armed anew when another stage begins. So a stage's deadline is the machine's
//! own, which is explored at every moment (H-15).

use super::milliseconds;
use handoff::AttemptId;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// When each attempt must be over.
#[derive(Debug, Default)]
pub(crate) struct Stages(BTreeMap<AttemptId, Instant>);

impl Stages {
    /// The attempt has `whole_ms`, its first stage at most `limit`: milliseconds to arm for.
    pub(crate) fn begin(
        &mut self,
        attempt: AttemptId,
        now: Instant,
        whole_ms: u64,
        limit: Option<Duration>,
    ) -> u64 {
        // What no clock reaches is armed for as it is.
        if let Some(over) = now.checked_add(Duration::from_millis(whole_ms)) {
            self.0.insert(attempt, over);
        }
        limit.map_or(whole_ms, |limit| milliseconds(limit).min(whole_ms))
    }

    /// Another stage begins, which has `limit`: milliseconds to arm for; none if nothing changes.
    pub(crate) fn enter(
        &self,
        attempt: AttemptId,
        now: Instant,
        limit: Option<Duration>,
    ) -> Option<u64> {
        let left = self.0.get(&attempt)?.saturating_duration_since(now);
        Some(milliseconds(limit.map_or(left, |limit| limit.min(left))))
    }

    /// Attempts that have begun and not ended.
    pub(crate) fn attempts(&self) -> impl Iterator<Item = &AttemptId> {
        self.0.keys()
    }

    pub(crate) fn end(&mut self, attempt: AttemptId) {
        self.0.remove(&attempt);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pages::Epoch;

    #[test]
    fn a_stage_has_its_own_time_and_never_more_than_the_attempt() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let ms = |ms| Some(Duration::from_millis(ms));
        let id = |n| AttemptId {
            epoch: Epoch::new(1),
            n,
        };
        let mut stages = Stages::default();
        assert_eq!(stages.begin(id(1), start, 1000, ms(300)), 300);
        assert_eq!(stages.begin(id(2), start, 1000, ms(3000)), 1000);
        assert_eq!(stages.begin(id(3), start, u64::MAX, None), u64::MAX);
        assert_eq!(stages.enter(id(1), at(200), ms(500)), Some(500));
        assert_eq!(stages.enter(id(1), at(900), ms(500)), Some(100));
        assert_eq!(stages.enter(id(1), at(900), None), Some(100));
        stages.end(id(1));
        assert_eq!(stages.enter(id(1), at(900), ms(5)), None);
    }
}
