//! How many peers a listener serves at one time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The places that are taken.
pub(crate) type Served = Arc<AtomicUsize>;

/// One of a bounded number of places at a listener, given back when it is dropped.
pub(crate) struct Place(Served);

impl Place {
    /// A place, unless `max` are taken.
    pub(crate) fn take(served: &Served, max: usize) -> Option<Self> {
        let place = Self(served.clone());
        (served.fetch_add(1, Ordering::Relaxed) < max).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_as_many_places_as_that_and_a_refusal_takes_none() {
        let served = Served::default();
        let taken: Vec<_> = (0..3).map(|_| Place::take(&served, 3)).collect();
        assert!(taken.iter().all(Option::is_some));
        for _ in 0..2 {
            assert!(Place::take(&served, 3).is_none());
        }
        drop(taken);
        assert_eq!(served.load(Ordering::Relaxed), 0);
    }
}
