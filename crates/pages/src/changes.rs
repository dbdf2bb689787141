//! What changed since a block table was last checked, so that a check costs that and no more.
//!
//! A page that a checked table names can only become wrong by an event that passes through the
//! pool: its owner releases, publishes or drops it, a writer's certificate is voided, the cache
//! evicts it. Each such event is kept here under the tables that it concerns: those of the page's
//! owner, or, for a cached page, those of its domain. Not part of the state proper: a table that
//! is checked in full is judged rightly whatever stands here, and a table that finds no log, or
//! one that does not reach back to its last check, is checked in full.

use crate::{Domain, OwnerId, Tag};
use std::collections::{BTreeMap, VecDeque};

/// Events kept for one owner, and for one domain. Beyond that the oldest is forgotten, and a table
/// that has not been checked since is checked in full.
const OWNER_EVENTS: usize = 256;
const DOMAIN_EVENTS: usize = 4096;

/// Something happened to the page that bore this tag and was sealed for this ordinal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change {
    clock: u64,
    pub ordinal: u32,
    pub tag: Tag,
}

#[derive(Clone, Debug)]
struct Log {
    /// Pages that the owner holds, or that are cached in the domain: at zero the log goes.
    pages: usize,
    /// Events up to this moment are unknown.
    since: u64,
    limit: usize,
    events: VecDeque<Change>,
}

impl Log {
    fn push(&mut self, change: Change) {
        if self.events.len() == self.limit {
            self.since = self
                .events
                .pop_front()
                .map_or(change.clock, |old| old.clock);
        }
        self.events.push_back(change);
    }

    /// Events after `stamp`, newest first; `None` if some of them may be forgotten.
    fn after(&self, stamp: u64) -> Option<impl Iterator<Item = Change> + '_> {
        let newer = move |change: &&Change| change.clock > stamp;
        (self.since <= stamp).then(|| self.events.iter().rev().take_while(newer).copied())
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Changes {
    clock: u64,
    owners: BTreeMap<OwnerId, Log>,
    domains: BTreeMap<Domain, Log>,
}

impl Changes {
    /// The moment after the last event.
    pub(crate) const fn now(&self) -> u64 {
        self.clock
    }

    /// `owner` holds `pages` more.
    pub(crate) fn reserved(&mut self, owner: OwnerId, pages: usize) {
        if pages > 0 {
            hold(
                &mut self.owners,
                &mut self.clock,
                owner,
                pages,
                OWNER_EVENTS,
            );
        }
    }

    /// A page that `owner` holds is not what it was, but still the owner's.
    pub(crate) fn disturbed(&mut self, owner: OwnerId, tag: Tag, ordinal: u32) {
        tell(&mut self.owners, &mut self.clock, owner, tag, ordinal, 0);
    }

    /// `owner` holds it no more.
    pub(crate) fn given_up(&mut self, owner: OwnerId, tag: Tag, ordinal: u32) {
        tell(&mut self.owners, &mut self.clock, owner, tag, ordinal, 1);
    }

    /// One more page is cached in `domain`.
    pub(crate) fn cached(&mut self, domain: Domain) {
        hold(&mut self.domains, &mut self.clock, domain, 1, DOMAIN_EVENTS);
    }

    /// A cached page is not what it was.
    pub(crate) fn cache_disturbed(&mut self, domain: Domain, tag: Tag, ordinal: u32) {
        tell(&mut self.domains, &mut self.clock, domain, tag, ordinal, 0);
    }

    /// It is cached no more.
    pub(crate) fn evicted(&mut self, domain: Domain, tag: Tag, ordinal: u32) {
        tell(&mut self.domains, &mut self.clock, domain, tag, ordinal, 1);
    }

    /// Events about pages of `owner` after `stamp`, if all of them are known.
    pub(crate) fn of_owner(
        &self,
        owner: OwnerId,
        stamp: u64,
    ) -> Option<impl Iterator<Item = Change>> {
        self.owners.get(&owner)?.after(stamp)
    }

    /// Events about cached pages of `domain` after `stamp`, if all of them are known.
    pub(crate) fn of_domain(
        &self,
        domain: Domain,
        stamp: u64,
    ) -> Option<impl Iterator<Item = Change>> {
        self.domains.get(&domain)?.after(stamp)
    }
}

fn hold<K: Ord>(logs: &mut BTreeMap<K, Log>, clock: &mut u64, key: K, pages: usize, limit: usize) {
    let log = logs.entry(key).or_insert_with(|| {
        // A log that begins anew knows nothing of what an earlier one forgot.
        *clock += 1;
        Log {
            pages: 0,
            since: *clock,
            limit,
            events: VecDeque::new(),
        }
    });
    log.pages += pages;
}

fn tell<K: Ord>(
    logs: &mut BTreeMap<K, Log>,
    clock: &mut u64,
    key: K,
    tag: Tag,
    ordinal: u32,
    gone: usize,
) {
    let Some(log) = logs.get_mut(&key) else {
        return; // No log: every table concerned is checked in full anyway.
    };
    *clock += 1;
    let change = Change {
        clock: *clock,
        ordinal,
        tag,
    };
    log.push(change);
    log.pages = log.pages.saturating_sub(gone);
    if log.pages == 0 {
        logs.remove(&key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroU64;

    fn tag(n: u64) -> Tag {
        Tag(NonZeroU64::new(n).expect("not zero"))
    }

    fn ordinals(changes: Option<impl Iterator<Item = Change>>) -> Option<Vec<u32>> {
        changes.map(|all| all.map(|change| change.ordinal).collect())
    }

    #[test]
    fn a_log_answers_only_for_the_time_that_it_knows() {
        let (owner, mut changes) = (OwnerId::new(1), Changes::default());
        assert_eq!(ordinals(changes.of_owner(owner, 0)), None, "no log");
        changes.reserved(owner, 3);
        assert_eq!(ordinals(changes.of_owner(owner, 0)), None, "began later");
        let stamp = changes.now();
        assert_eq!(ordinals(changes.of_owner(owner, stamp)), Some(vec![]));
        changes.given_up(owner, tag(1), 0);
        changes.given_up(owner, tag(2), 1);
        assert_eq!(ordinals(changes.of_owner(owner, stamp)), Some(vec![1, 0]));
        assert_eq!(
            ordinals(changes.of_owner(owner, changes.now())),
            Some(vec![])
        );
    }

    #[test]
    fn a_log_goes_with_the_last_page_and_a_new_one_knows_nothing_of_it() {
        let (owner, mut changes) = (OwnerId::new(1), Changes::default());
        changes.reserved(owner, 1);
        let stamp = changes.now();
        changes.given_up(owner, tag(1), 0);
        assert_eq!(ordinals(changes.of_owner(owner, stamp)), None);
        assert!(changes.owners.is_empty(), "nothing is kept of ended owners");
        changes.reserved(owner, 1);
        assert_eq!(
            ordinals(changes.of_owner(owner, stamp)),
            None,
            "not taken for checked"
        );
    }

    /// Such a log would never go: no page of it is ever given up.
    #[test]
    fn who_reserves_nothing_gets_no_log() {
        let (owner, mut changes) = (OwnerId::new(1), Changes::default());
        changes.reserved(owner, 0);
        assert!(changes.owners.is_empty());
        assert_eq!(changes.now(), 0, "nothing has happened");
    }

    #[test]
    fn what_is_forgotten_is_not_taken_for_nothing() {
        let (owner, mut changes) = (OwnerId::new(1), Changes::default());
        changes.reserved(owner, 10_000);
        let stamp = changes.now();
        for n in 0..OWNER_EVENTS as u32 {
            changes.given_up(owner, tag(1 + u64::from(n)), n);
        }
        let known = ordinals(changes.of_owner(owner, stamp)).expect("all known");
        assert_eq!(known.len(), OWNER_EVENTS);
        changes.given_up(owner, tag(9_999), 9_999);
        assert_eq!(ordinals(changes.of_owner(owner, stamp)), None);
        let known = ordinals(changes.of_owner(owner, stamp + 1)).expect("all known");
        assert_eq!(known.len(), OWNER_EVENTS, "from the forgotten one on");
    }
}
