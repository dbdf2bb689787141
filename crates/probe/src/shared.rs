//! What two answers share that is in neither's prompt: another tenant's answer, or token ids.
//!
//! Here nothing was planted, so chance cannot be computed: models have phrases. What stands in answers
//! to many requests is one; a long run that hardly an answer holds but two is worth a look.

use crate::canary::Author;
use std::collections::{BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};

/// Windows that are kept.
const WINDOWS_MAX: usize = 4_000_000;

/// Requests whose answers may share a run before it is a phrase.
const FEW: usize = 3;

/// Who has shown a window.
#[derive(Clone, Copy, Debug)]
struct Seen {
    first: Author,
    second: Option<Author>,
    /// Requests whose answers have shown it.
    requests: u32,
}

/// Runs of items that answers have shown.
#[derive(Clone, Debug)]
pub struct Shared {
    windows: HashMap<u64, Seen>,
    length: usize,
    distinct: usize,
    authors: BTreeSet<Author>,
}

impl Shared {
    /// Looks at runs of so many items, of which at least so many differ.
    pub fn new(length: usize, distinct: usize) -> Self {
        Self {
            windows: HashMap::new(),
            length,
            distinct,
            authors: BTreeSet::new(),
        }
    }

    /// Requests that were taken.
    pub fn requests(&self) -> usize {
        self.authors.len()
    }

    /// Takes what an answer to this request shows.
    pub fn take<T: Hash + Ord>(&mut self, author: Author, items: &[T]) {
        let new = self.authors.insert(author);
        for window in items.windows(self.length) {
            let mut sorted: Vec<&T> = window.iter().collect();
            sorted.sort_unstable();
            sorted.dedup();
            if sorted.len() < self.distinct || self.windows.len() >= WINDOWS_MAX {
                continue;
            }
            let mut hash = DefaultHasher::new();
            window.hash(&mut hash);
            let seen = self.windows.entry(hash.finish()).or_insert(Seen {
                first: author,
                second: None,
                requests: 0,
            });
            if author != seen.first {
                seen.second.get_or_insert(author);
            }
            seen.requests += u32::from(new || seen.requests == 0);
        }
    }

    /// Pairs of requests of different tenants whose answers share a run that hardly another has.
    pub fn pairs(&self) -> Vec<(Author, Author)> {
        let few = (self.authors.len() / 20).clamp(2, FEW) as u32;
        let pairs = self.windows.values().filter_map(|it| {
            let second = it.second.filter(|_| it.requests <= few)?;
            (second.tenant != it.first.tenant).then_some((it.first, second))
        });
        let mut pairs: Vec<_> = pairs.collect();
        pairs.sort_unstable();
        pairs.dedup();
        pairs
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::canary::Tenant;

    fn author(tenant: u8, request: u32) -> Author {
        let tenant = Tenant(tenant);
        Author { tenant, request }
    }

    #[test]
    fn what_two_share_is_said_and_what_many_share_is_a_phrase() {
        let mut shared = Shared::new(4, 3);
        let phrase = ["as", "i", "said", "before"];
        let text = ["once", "upon", "a", "time"];
        for n in 0..3 {
            shared.take(author(n % 2, u32::from(n)), &phrase);
        }
        shared.take(author(0, 7), &text);
        shared.take(author(0, 7), &text);
        assert_eq!(shared.pairs(), []);
        shared.take(author(1, 8), &text);
        assert_eq!(shared.pairs(), [(author(0, 7), author(1, 8))]);
        // The same tenant's, and what says the same word again and again, is nothing.
        shared.take(author(0, 9), &["x", "y", "z", "x"]);
        shared.take(author(0, 10), &["x", "y", "z", "x"]);
        shared.take(author(0, 9), &["la"; 9]);
        shared.take(author(1, 9), &["la"; 9]);
        assert_eq!(shared.pairs().len(), 1);
    }
}
