//! Which isolation domain a tenant is (H-13), and which parts of it the tenant asked for.

use std::collections::{BTreeMap, BTreeSet};

use pages::Domain;

use crate::engine::TenantId;

/// Parts of one tenant that are remembered. A part that is forgotten, the one longest not asked for,
/// is another domain when it is asked for again: its cached pages are lost, and nobody else's.
const PARTS_MAX: usize = 1024;

/// Domains of this life of the gateway. Workers keep cached pages under a domain for longer than
/// that, and other gateways may use the same workers, so a plain counter would sooner or later give
/// one tenant's number to another. A domain is therefore made of a keyed hash with this life's
/// secret: it repeats in no other life. Its lower half is the tenant, and no two tenants have the
/// same; its upper half is the part of the tenant, counted from a number of the tenant's own, so no
/// two parts have the same. What a client sends goes into neither: it is only looked up here.
pub(crate) struct Domains {
    secret: [u8; 32],
    by_tenant: BTreeMap<TenantId, Tenant>,
    given: BTreeSet<u32>,
    counter: u64,
}

struct Tenant {
    number: u32,
    /// The tenant as a whole: what does not ask for a part.
    whole: u32,
    next: u32,
    /// By what was asked for: the part, and when it was last asked for.
    parts: BTreeMap<[u8; 32], (u32, u64)>,
    asked: u64,
}

impl Domains {
    pub(crate) fn new(secret: [u8; 32]) -> Self {
        Self {
            secret,
            by_tenant: BTreeMap::new(),
            given: BTreeSet::new(),
            counter: 0,
        }
    }

    /// The domain of this tenant, or of the part of it that this salt names: always the same in this
    /// life, while it is remembered. Tenants come from the key file, so there are no more of them
    /// than keys.
    pub(crate) fn of(&mut self, tenant: &TenantId, salt: Option<&str>) -> Domain {
        if !self.by_tenant.contains_key(tenant) {
            let new = self.mint();
            self.by_tenant.insert(tenant.clone(), new);
        }
        let known = self.by_tenant.get_mut(tenant).expect("it is there now");
        let part = match salt {
            None => known.whole,
            Some(salt) => known.part(*blake3::keyed_hash(&self.secret, salt.as_bytes()).as_bytes()),
        };
        Domain::new(u64::from(part) << 32 | u64::from(known.number))
    }

    fn mint(&mut self) -> Tenant {
        loop {
            self.counter += 1;
            let hash = blake3::keyed_hash(&self.secret, &self.counter.to_le_bytes());
            let (first, _) = hash.as_bytes().split_first_chunk().expect("32 bytes");
            let both = u64::from_le_bytes(*first);
            let (number, whole) = (both as u32, (both >> 32) as u32);
            if self.given.insert(number) {
                return Tenant {
                    number,
                    whole,
                    next: whole,
                    parts: BTreeMap::new(),
                    asked: 0,
                };
            }
        }
    }
}

impl Tenant {
    fn part(&mut self, salt: [u8; 32]) -> u32 {
        self.asked += 1;
        if let Some((part, asked)) = self.parts.get_mut(&salt) {
            *asked = self.asked;
            return *part;
        }
        if self.parts.len() >= PARTS_MAX {
            let oldest = self.parts.iter().min_by_key(|(_, (_, asked))| *asked);
            if let Some(salt) = oldest.map(|(salt, _)| *salt) {
                self.parts.remove(&salt);
            }
        }
        // Round again after four billion parts, and never the whole.
        self.next = self.next.wrapping_add(1);
        if self.next == self.whole {
            self.next = self.next.wrapping_add(1);
        }
        self.parts.insert(salt, (self.next, self.asked));
        self.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_is_one_domain_and_two_are_two() {
        let mut domains = Domains::new([1; 32]);
        let (red, blue) = (TenantId::new("red"), TenantId::new("blue"));
        let first = domains.of(&red, None);
        assert_ne!(first, domains.of(&blue, None));
        assert_eq!(first, domains.of(&red, None));
    }

    /// A restarted gateway must not give the first tenant's cached pages to whoever comes first.
    #[test]
    fn another_life_gives_other_domains() {
        let all = |secret| {
            let mut domains = Domains::new(secret);
            let of = |i: u32| domains.of(&TenantId::new(&i.to_string()), None);
            (0..100).map(of).collect::<BTreeSet<_>>()
        };
        let (one, other) = (all([1; 32]), all([2; 32]));
        assert_eq!((one.len(), other.len()), (100, 100));
        assert!(one.is_disjoint(&other));
    }

    #[test]
    fn a_salt_divides_its_own_tenant_and_no_other() {
        let mut domains = Domains::new([1; 32]);
        let (red, blue) = (TenantId::new("red"), TenantId::new("blue"));
        let mut all = BTreeSet::new();
        // Names that would be one if tenant and salt were only put behind each other.
        let names = ["", "a", "b", "ab", "red", "blue", "a\0b", "reda"];
        for tenant in [&red, &blue, &TenantId::new("re"), &TenantId::new("redd")] {
            all.insert(domains.of(tenant, None));
            for salt in names {
                let part = domains.of(tenant, Some(salt));
                assert_eq!(part, domains.of(tenant, Some(salt)), "the same again");
                assert_eq!(part.tenant(), domains.of(tenant, None).tenant());
                all.insert(part);
            }
        }
        assert_eq!(all.len(), 4 * (names.len() + 1));
        assert_ne!(
            domains.of(&red, None).tenant(),
            domains.of(&blue, None).tenant()
        );
    }

    #[test]
    fn a_forgotten_salt_is_a_new_part_and_never_anothers() {
        let mut domains = Domains::new([1; 32]);
        let red = TenantId::new("red");
        let whole = domains.of(&red, None);
        let first = domains.of(&red, Some("first"));
        let mut all: BTreeSet<Domain> = [whole, first].into();
        for n in 0..3 * PARTS_MAX {
            assert!(all.insert(domains.of(&red, Some(&n.to_string()))));
            if n < PARTS_MAX {
                assert_eq!(first, domains.of(&red, Some("first")), "in use, so kept");
            }
        }
        assert!(
            all.insert(domains.of(&red, Some("first"))),
            "forgotten, so new"
        );
        assert_eq!(domains.by_tenant[&red].parts.len(), PARTS_MAX);
        assert_eq!(whole, domains.of(&red, None));
    }
}
