//! Where prompts that begin alike went last, within one isolation domain: the engine may still have
//! their beginning. A hint only: what it says is wrong costs time, and nothing else.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use handoff::door::EngineId;

/// Beginnings that are looked for, in tokens, the longest first.
const BEGINNINGS: [usize; 4] = [16_384, 4_096, 1_024, 256];
/// Entries of one generation; two are kept.
const ENTRIES_MAX: usize = 32_768;

/// Keys of a request, the best first: its session, then its beginnings.
pub(super) type Keys = Vec<u64>;

/// What is remembered. Keys are hashes under a secret of this process.
pub(super) struct Affinity {
    hashes: RandomState,
    young: HashMap<u64, EngineId>,
    old: HashMap<u64, EngineId>,
}

impl Affinity {
    pub(super) fn new() -> Self {
        Self {
            hashes: RandomState::new(),
            young: HashMap::new(),
            old: HashMap::new(),
        }
    }

    /// The keys of a prompt in a domain. A client's session is one inside its domain only.
    pub(super) fn keys(&self, domain: u64, session: Option<&str>, prompt: &[u32]) -> Keys {
        let session = session.map(|it| self.hashes.hash_one((domain, it)));
        let beginnings = BEGINNINGS.iter().filter_map(|n| prompt.get(..*n));
        let beginnings = beginnings.map(|it| self.hashes.hash_one((domain, it)));
        session.into_iter().chain(beginnings).collect()
    }

    /// Where requests with these keys went, the best first.
    pub(super) fn near(&self, keys: &[u64]) -> Vec<EngineId> {
        let mut near = Vec::new();
        for key in keys {
            let known = self.young.get(key).or_else(|| self.old.get(key));
            near.extend(known.filter(|it| !near.contains(*it)).copied().as_ref());
        }
        near
    }

    pub(super) fn went(&mut self, keys: &[u64], engine: EngineId) {
        if self.young.len() + keys.len() > ENTRIES_MAX {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.extend(keys.iter().map(|key| (*key, engine)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_beginning_counts_within_one_domain() {
        let mut affinity = Affinity::new();
        let prompt: Vec<u32> = (0..2_000).collect();
        let (one, two) = (EngineId(1), EngineId(2));
        affinity.went(&affinity.keys(7, None, &prompt[..300]), one);
        affinity.went(&affinity.keys(7, None, &prompt), two);
        // Both begin with the same 256 tokens; the last one counts.
        let near = |domain, session, prompt: &[u32]| {
            affinity.near(&affinity.keys(domain, session, prompt))
        };
        assert_eq!(near(7, None, &prompt[..300]), [two]);
        assert_eq!(near(8, None, &prompt), []);
        assert_eq!(near(7, None, &prompt[..255]), []);
        assert_eq!(near(7, None, &prompt[1..]), []);
    }

    #[test]
    fn a_session_is_its_domains_own_and_what_is_kept_is_bounded() {
        let mut affinity = Affinity::new();
        affinity.went(&affinity.keys(7, Some("mine"), &[]), EngineId(1));
        let keys = |domain| affinity.keys(domain, Some("mine"), &[]);
        assert_eq!(affinity.near(&keys(7)), [EngineId(1)]);
        assert_eq!(affinity.near(&keys(8)), []);
        for n in 0..3 * ENTRIES_MAX as u64 {
            affinity.went(&[n], EngineId(2));
        }
        assert!(affinity.young.len() + affinity.old.len() <= 2 * ENTRIES_MAX);
        assert_eq!(affinity.near(&affinity.keys(7, Some("mine"), &[])), []);
    }
}
