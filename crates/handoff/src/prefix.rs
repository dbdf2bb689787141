//! The prefix cache's index: full pages of one isolation domain, found by a keyed hash and compared
//! token by token on a hit (H-13). It holds one share of each page; pages are evicted, least
//! recently used first, when a reservation needs them, and (where their lifetime is bounded) when
//! nobody has used them for so long.

use pages::{Decisions, Domain, Grant, Misuse, Owner, Pool, Share};
use serde::Serialize;
use std::collections::BTreeMap;

/// Chained hash of a prefix: the key of its last page.
type Key = [u8; 32];

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
struct Entry {
    domain: Domain,
    parent: Option<Key>,
    tokens: Vec<u32>,
    share: Share,
    used: UseStamp,
    /// Whether nobody used it when the cache aged last, nor since.
    idle: bool,
}

/// A moment of use: the larger is the later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
struct UseStamp(u64);

/// See the module's documentation.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub(crate) struct PrefixIndex {
    secret: [u8; 32],
    entries: BTreeMap<Key, Entry>,
    clock: UseStamp,
    /// Whether the timer of its age is armed.
    ages: bool,
}

impl PrefixIndex {
    pub(crate) fn new(secret: [u8; 32]) -> Self {
        Self {
            secret,
            entries: BTreeMap::new(),
            clock: UseStamp(0),
            ages: false,
        }
    }

    fn key(&self, domain: Domain, parent: Option<&Key>, tokens: &[u32]) -> Key {
        let mut hasher = blake3::Hasher::new_keyed(&self.secret);
        hasher.update(&domain.value().to_le_bytes());
        hasher.update(parent.map_or(&[][..], |key| &key[..]));
        for token in tokens {
            hasher.update(&token.to_le_bytes());
        }
        *hasher.finalize().as_bytes()
    }

    /// For checkers only: moments of use are numbered from behind this number on.
    pub(crate) fn begin_at_for_checker(&mut self, number: u64) {
        self.clock = UseStamp(number);
    }

    /// For checkers only: the cache has this page no more.
    pub(crate) fn forget_for_checker<J: Decisions>(
        &mut self,
        pool: &mut Pool<J>,
        page: pages::PageId,
    ) -> Result<(), Misuse> {
        let of = self.entries.iter().find(|(_, it)| it.share.page() == page);
        let key = of.map(|(key, _)| *key);
        match key.and_then(|key| self.entries.remove(&key)) {
            Some(entry) => pool.evict(entry.share).map_err(|(_, misuse)| misuse),
            None => Ok(()),
        }
    }

    /// Pins the cached pages of the longest known prefix of `tokens`, at most `most` pages.
    pub(crate) fn pin<J: Decisions>(
        &mut self,
        pool: &mut Pool<J>,
        domain: Domain,
        tokens: &[u32],
        most: usize,
    ) -> Vec<Share> {
        let mut pinned = Vec::new();
        let mut path: Vec<Key> = Vec::new();
        for page in tokens.chunks_exact(pool.page_size() as usize).take(most) {
            let key = self.key(domain, path.last(), page);
            let Some(entry) = self.entries.get(&key) else {
                break;
            };
            let same = entry.domain == domain
                && entry.tokens == page
                && entry.parent.as_ref() == path.last();
            if !same {
                break;
            }
            let Ok(share) = pool.share(&entry.share, domain) else {
                break;
            };
            pinned.push(share);
            path.push(key);
        }
        // The deepest page is the oldest, so that a prefix is evicted from its end.
        for key in path.iter().rev() {
            self.clock.0 += 1;
            let used = self.clock;
            if let Some(entry) = self.entries.get_mut(key) {
                entry.used = used;
                entry.idle = false;
            }
        }
        pinned
    }

    /// Publishes the full pages of a prompt that are its own, where the cache does not have them.
    /// What became a cached page comes back as a share for its owner, in place of the grant.
    pub(crate) fn publish<J: Decisions>(
        &mut self,
        pool: &mut Pool<J>,
        owner: Owner,
        tokens: &[u32],
        prompt: Vec<Page>,
    ) -> Result<Vec<Page>, Misuse> {
        let size = pool.page_size() as usize;
        let mut parent = None;
        let mut pages = Vec::with_capacity(prompt.len());
        // As for a hit: the deepest page is the oldest.
        self.clock.0 += prompt.len() as u64;
        for (index, own) in prompt.into_iter().enumerate() {
            let start = index * size;
            let Some(page) = tokens.get(start..start + size) else {
                pages.push(own);
                continue;
            };
            let key = self.key(owner.domain, parent.as_ref(), page);
            let grant = match own {
                Page::Own(grant) => grant,
                shared => {
                    pages.push(shared);
                    parent = Some(key);
                    continue;
                }
            };
            if self.entries.contains_key(&key) {
                pages.push(Page::Own(grant));
            } else {
                let share = pool.publish(grant).map_err(|(grant, misuse)| {
                    drop(grant);
                    misuse
                })?;
                let kept = pool.share(&share, owner.domain)?;
                let used = UseStamp(self.clock.0 - index as u64);
                let (domain, tokens) = (owner.domain, page.to_vec());
                self.entries.insert(
                    key,
                    Entry {
                        domain,
                        parent,
                        tokens,
                        share: kept,
                        used,
                        idle: false,
                    },
                );
                pages.push(Page::Shared(share));
            }
            parent = Some(key);
        }
        Ok(pages)
    }

    /// Evicts cached pages that nobody reads, least recently used first, until `n` pages are free
    /// or wait to be zeroed only; none if that many cannot be had.
    pub(crate) fn make_room<J: Decisions>(
        &mut self,
        pool: &mut Pool<J>,
        n: usize,
    ) -> Result<(), Misuse> {
        let short = n.saturating_sub(pool.counts().free + pool.to_scrub().len());
        if short == 0 {
            return Ok(());
        }
        let unread = |(_, entry): &(&Key, &Entry)| pool.evictable(&entry.share);
        let unread = self.entries.iter().filter(unread);
        let mut oldest: Vec<(UseStamp, Key)> =
            unread.map(|(key, entry)| (entry.used, *key)).collect();
        if oldest.len() < short {
            return Ok(());
        }
        oldest.sort_unstable();
        for (_, key) in &oldest[..short] {
            if let Some(entry) = self.entries.remove(key) {
                pool.evict(entry.share).map_err(|(_, misuse)| misuse)?;
            }
        }
        Ok(())
    }

    /// Whether the timer of its age is to be armed now: it has pages, and it is not.
    pub(crate) fn begins_to_age(&mut self) -> bool {
        !self.entries.is_empty() && !std::mem::replace(&mut self.ages, true)
    }

    /// That timer has fired. Gives up what nobody reads and nobody has used since it fired before,
    /// and says how many pages that are. What is read now is in use, however long ago it was found:
    /// its time begins when its last reader goes.
    pub(crate) fn age<J: Decisions>(&mut self, pool: &mut Pool<J>) -> Result<u32, Misuse> {
        self.ages = false;
        let mut old = Vec::new();
        for (key, entry) in &mut self.entries {
            let unread = pool.evictable(&entry.share);
            if unread && entry.idle {
                old.push(*key);
            }
            entry.idle = unread;
        }
        for key in &old {
            if let Some(entry) = self.entries.remove(key) {
                pool.evict(entry.share).map_err(|(_, misuse)| misuse)?;
            }
        }
        Ok(old.len() as u32)
    }

    /// Pages that could be had by eviction.
    pub(crate) fn evictable<J: Decisions>(&self, pool: &Pool<J>) -> usize {
        self.entries
            .values()
            .filter(|entry| pool.evictable(&entry.share))
            .count()
    }

    pub(crate) fn fork_for_checker<J: Decisions>(&self, pool: &Pool<J>) -> Self {
        let fork = |entry: &Entry| Entry {
            domain: entry.domain,
            parent: entry.parent,
            tokens: entry.tokens.clone(),
            share: pool.fork_share_for_checker(&entry.share),
            used: entry.used,
            idle: entry.idle,
        };
        Self {
            secret: self.secret,
            entries: self
                .entries
                .iter()
                .map(|(key, entry)| (*key, fork(entry)))
                .collect(),
            clock: self.clock,
            ages: self.ages,
        }
    }
}

/// A page of a sequence: its own, or one that it shares.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub(crate) enum Page {
    Own(Grant),
    Shared(Share),
}

impl Page {
    pub(crate) fn fork_for_checker<J: Decisions>(&self, pool: &Pool<J>) -> Self {
        match self {
            Self::Own(grant) => Self::Own(pool.fork_grant_for_checker(grant)),
            Self::Shared(share) => Self::Shared(pool.fork_share_for_checker(share)),
        }
    }

    /// Gives the page back.
    pub(crate) fn give_back<J: Decisions>(self, pool: &mut Pool<J>) -> Result<(), Misuse> {
        match self {
            Self::Own(grant) => pool.release(grant).map_err(|(_, misuse)| misuse),
            Self::Shared(share) => pool.unshare(share).map_err(|(_, misuse)| misuse),
        }
    }

    pub(crate) fn id(&self) -> pages::PageId {
        match self {
            Self::Own(grant) => grant.page(),
            Self::Shared(share) => share.page(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pages::{Config, OwnerId, Seal};

    const HERE: Domain = Domain::new(7);

    /// A cache and its pool, of pages of two tokens.
    struct Scene {
        index: PrefixIndex,
        pool: Pool,
        owners: u64,
    }

    impl Scene {
        fn new(pages: u32, scrub: bool) -> Self {
            let config = Config {
                pages,
                page_size: 2,
                scrub,
            };
            Self {
                index: PrefixIndex::new([9; 32]),
                pool: Pool::new(config).0,
                owners: 0,
            }
        }

        /// Caches this prompt, of which nobody holds a page any more.
        fn cache(&mut self, tokens: &[u32]) {
            self.owners += 1;
            let id = OwnerId::new(self.owners);
            let (domain, lane) = (HERE, 0);
            let owner = Owner { id, domain, lane };
            let grants = self.pool.reserve(owner, tokens.len() / 2).unwrap();
            for (ordinal, grant) in grants.iter().enumerate() {
                let seal = Seal {
                    ordinal: ordinal as u32,
                    filled: 2,
                    checksum: None,
                };
                self.pool.seal(grant, seal).unwrap();
            }
            let pages = grants.into_iter().map(Page::Own).collect();
            let published = self.index.publish(&mut self.pool, owner, tokens, pages);
            for page in published.unwrap() {
                page.give_back(&mut self.pool).unwrap();
            }
        }

        /// Pages of this prompt that are cached, from its beginning.
        fn hit(&mut self, tokens: &[u32]) -> usize {
            let pinned = self.index.pin(&mut self.pool, HERE, tokens, usize::MAX);
            let pages = pinned.len();
            for share in pinned {
                self.pool.unshare(share).unwrap();
            }
            pages
        }

        fn make_room(&mut self, pages: usize) {
            self.index.make_room(&mut self.pool, pages).unwrap();
        }
    }

    #[test]
    fn a_prefix_is_evicted_from_its_end() {
        let mut scene = Scene::new(4, false);
        scene.cache(&[1, 1, 2, 2, 3, 3]);
        for left in [2, 1, 0] {
            let room = scene.pool.counts().free + 1;
            scene.make_room(room);
            assert_eq!(scene.index.entries.len(), left);
            let pinned = (scene.index).pin(&mut scene.pool, HERE, &[1, 1, 2, 2, 3, 3], 9);
            assert_eq!(pinned.len(), left, "all that is left can be found");
            for share in pinned {
                scene.pool.unshare(share).unwrap();
            }
        }
    }

    /// A hit is a use: what was used last goes last.
    #[test]
    fn a_prefix_that_was_used_outlives_one_that_was_not() {
        for used in [[1, 1, 2, 2], [3, 3, 4, 4]] {
            let mut scene = Scene::new(4, false);
            scene.cache(&[1, 1, 2, 2]);
            scene.cache(&[3, 3, 4, 4]);
            for _ in 0..3 {
                assert_eq!(scene.hit(&used), 2);
            }
            scene.make_room(2);
            let hits = [scene.hit(&[1, 1, 2, 2]), scene.hit(&[3, 3, 4, 4])];
            let expected = if used[0] == 1 { [2, 0] } else { [0, 2] };
            assert_eq!(hits, expected);
        }
    }

    /// What nobody used between two ages goes at the second; a hit, or a reader, keeps it.
    #[test]
    fn what_is_unused_for_an_age_is_given_up_and_nothing_else() {
        let (read, hit, unused) = ([1, 1, 2, 2], [3, 3, 4, 4], [5, 5, 6, 6]);
        let mut scene = Scene::new(6, false);
        for prompt in [&read, &hit, &unused] {
            scene.cache(prompt);
        }
        let pinned = scene.index.pin(&mut scene.pool, HERE, &read, 9);
        let age = |scene: &mut Scene| scene.index.age(&mut scene.pool).unwrap();
        assert_eq!(
            age(&mut scene),
            0,
            "all of them were used since the beginning"
        );
        assert_eq!(scene.hit(&hit), 2);
        assert_eq!(age(&mut scene), 2, "the pages that nobody used");
        assert_eq!(scene.pool.counts().free, 2);
        assert_eq!((scene.hit(&hit), scene.hit(&unused)), (2, 0));
        for _ in 0..3 {
            age(&mut scene);
        }
        assert_eq!(
            scene.pool.counts().free,
            4,
            "what is read stays however long"
        );
        for share in pinned {
            scene.pool.unshare(share).unwrap();
        }
        assert_eq!(age(&mut scene), 0, "its time begins when its reader goes");
        assert_eq!(age(&mut scene), 2);
        assert_eq!(scene.pool.counts().free, 6);
    }

    /// One timer at a time, for as long as there is something that can grow old.
    #[test]
    fn the_timer_of_the_age_is_armed_once_while_there_are_pages() {
        let mut scene = Scene::new(4, false);
        assert!(!scene.index.begins_to_age(), "nothing is cached");
        scene.cache(&[1, 1, 2, 2]);
        assert!(scene.index.begins_to_age());
        assert!(!scene.index.begins_to_age(), "it is armed");
        assert_eq!(scene.index.age(&mut scene.pool).unwrap(), 0);
        assert!(
            scene.index.begins_to_age(),
            "it has fired, and pages are left"
        );
        assert_eq!(scene.index.age(&mut scene.pool).unwrap(), 2);
        assert!(!scene.index.begins_to_age());
    }

    #[test]
    fn room_is_made_to_the_page_or_not_at_all() {
        let mut scene = Scene::new(4, false);
        scene.cache(&[1, 1, 2, 2, 3, 3]);
        scene.make_room(5);
        assert_eq!(scene.index.entries.len(), 3, "five of four cannot be had");
        scene.make_room(1);
        assert_eq!(scene.index.entries.len(), 3, "one is free");
        scene.make_room(4);
        assert_eq!(scene.index.entries.len(), 0, "exactly all");
        assert_eq!(scene.pool.counts().free, 4);
    }

    /// H-17: a page that waits to be zeroed is as good as free to whoever reserves after that.
    #[test]
    fn pages_that_wait_to_be_zeroed_count_as_room() {
        let mut scene = Scene::new(4, true);
        scene.cache(&[1, 1, 2, 2, 3, 3, 4, 4]);
        scene.make_room(2);
        assert_eq!(scene.pool.to_scrub().len(), 2);
        assert_eq!(scene.index.entries.len(), 2);
        scene.make_room(2);
        assert_eq!(scene.index.entries.len(), 2, "both are on their way");
        scene.make_room(3);
        assert_eq!(scene.index.entries.len(), 1, "one more");
    }

    /// H-13: the hash only says where to look. What is found is compared, whatever its key.
    #[test]
    fn h13_an_entry_under_a_key_that_is_not_its_own_is_no_hit() {
        let prompt = [1, 1, 2, 2];
        let damages: [fn(&mut Entry); 3] = [
            |entry| entry.tokens = vec![5, 5],
            |entry| entry.domain = Domain::new(8),
            |entry| entry.parent = Some([1; 32]),
        ];
        for damage in damages {
            let mut scene = Scene::new(4, false);
            scene.cache(&prompt);
            assert_eq!(scene.hit(&prompt), 2);
            let first = scene.index.key(HERE, None, &prompt[..2]);
            damage(scene.index.entries.get_mut(&first).unwrap());
            assert_eq!(scene.hit(&prompt), 0);
        }
    }
}
