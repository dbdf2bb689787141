//! What a worker holds back, by reason, and for how long: pages that somebody may still touch, and
//! dropped arenas that a writer still maps.

use pages::{Holder, PageId, Reason, State};
use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;
use wire::{Held, Quarantine};

/// Since when each page and arena has been seen there. Looked at when somebody asks, so an age is
/// right to the time between two questions.
#[derive(Debug, Default)]
pub(crate) struct Ages {
    pages: BTreeMap<PageId, Instant>,
    arenas: VecDeque<Instant>,
}

impl Ages {
    /// What is held back now. `arenas`: their number and bytes.
    pub(crate) fn look(
        &mut self,
        now: Instant,
        holders: &[Holder],
        (arenas, arena_bytes): (usize, u64),
    ) -> Quarantine {
        let held_back = |holder: &Holder| match holder.state {
            State::Quarantined(reason) => Some((holder.page, reason)),
            _ => None,
        };
        let pages: BTreeMap<PageId, Reason> = holders.iter().filter_map(held_back).collect();
        self.pages.retain(|page, _| pages.contains_key(page));
        let mut facts = Quarantine {
            arena_bytes,
            ..Quarantine::default()
        };
        for (page, reason) in pages {
            let since = *self.pages.entry(page).or_insert(now);
            let held = match reason {
                Reason::Operations => &mut facts.operations,
                Reason::Writers => &mut facts.writers,
                Reason::Dropped => &mut facts.dropped,
                Reason::Scrub => &mut facts.scrub,
            };
            held.count += 1;
            held.oldest_ms = held.oldest_ms.max(since_ms(since, now));
        }
        self.arenas.resize(self.arenas.len().min(arenas), now);
        self.arenas.resize(arenas, now);
        facts.arenas = Held {
            count: arenas as u64,
            oldest_ms: self.arenas.front().map_or(0, |since| since_ms(*since, now)),
        };
        facts
    }
}

fn since_ms(since: Instant, now: Instant) -> u64 {
    crate::driver::milliseconds(now.saturating_duration_since(since))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pages::{Config, Domain, Epoch, Owner, OwnerId, Pool, WriterLife};
    use std::time::Duration;

    #[test]
    fn what_is_held_back_has_a_reason_and_an_age() {
        let pages = 4;
        let (page_size, scrub) = (16, false);
        let (mut pool, mint) = Pool::new(Config {
            pages,
            page_size,
            scrub,
        });
        let owner = Owner {
            id: OwnerId::new(1),
            domain: Domain::new(1),
            lane: 0,
        };
        let mut grants = pool.reserve(owner, 3).unwrap();
        let epoch = Epoch::new(9);
        let life = WriterLife { epoch, rank: 0 };
        let written = grants.pop().unwrap();
        pool.expose(&written, &[life]).unwrap();
        pool.release(written).unwrap();
        drop(grants.pop());
        let (mut ages, start) = (Ages::default(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        ages.look(at(0), &pool.holders(), (0, 0));
        let seen = ages.look(at(500), &pool.holders(), (2, 64));
        let held = |count, oldest_ms| Held { count, oldest_ms };
        assert_eq!((seen.writers, seen.dropped), (held(1, 500), held(1, 500)));
        assert_eq!((seen.operations, seen.scrub), (held(0, 0), held(0, 0)));
        assert_eq!((seen.arenas, seen.arena_bytes), (held(2, 0), 64));
        pool.writer_gone(mint.fenced(life));
        let seen = ages.look(at(900), &pool.holders(), (1, 32));
        assert_eq!((seen.writers, seen.dropped), (held(0, 0), held(1, 900)));
        assert_eq!(seen.arenas, held(1, 400));
    }
}
