//! References that a consumer has already used. The producer is the authority on single use; this
//! is the door in front of it, which costs no message.

use pages::Epoch;
use std::collections::{BTreeSet, VecDeque};

/// The last references that were used here, up to a limit; what is forgotten is still refused by
/// the producer, who gives each statement to one claimant.
#[derive(Clone, Debug)]
pub struct Seen {
    used: BTreeSet<(Epoch, u64)>,
    order: VecDeque<(Epoch, u64)>,
    limit: usize,
}

impl Seen {
    /// Remembers up to `limit` references.
    pub fn new(limit: usize) -> Self {
        Self {
            used: BTreeSet::new(),
            order: VecDeque::new(),
            limit: limit.max(1),
        }
    }

    /// Uses a reference; false if it was used before.
    pub fn first_use(&mut self, epoch: Epoch, serial: u64) -> bool {
        if !self.used.insert((epoch, serial)) {
            return false;
        }
        self.order.push_back((epoch, serial));
        if self.order.len() > self.limit
            && let Some(oldest) = self.order.pop_front()
        {
            self.used.remove(&oldest);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_is_used_once_and_what_is_kept_is_bounded() {
        let (one, two) = (Epoch::new(1), Epoch::new(2));
        let mut seen = Seen::new(2);
        assert!(seen.first_use(one, 1));
        assert!(!seen.first_use(one, 1));
        assert!(seen.first_use(two, 1), "another life's");
        assert!(seen.first_use(one, 2));
        assert_eq!((seen.used.len(), seen.order.len()), (2, 2));
        assert!(!seen.first_use(one, 2));
    }
}
