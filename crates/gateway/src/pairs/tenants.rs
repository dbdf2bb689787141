//! Which isolation domain a tenant is (H-13).

use std::collections::{BTreeMap, BTreeSet};

use pages::Domain;

use crate::engine::TenantId;

/// Domains of this life of the gateway. Workers keep cached pages under a domain for longer than
/// that, and other gateways may use the same workers, so a plain counter would sooner or later give
/// one tenant's number to another. A domain is therefore the counter under a keyed hash with this
/// life's secret: it repeats in no other life, and nothing that a client sends goes into it.
pub(super) struct Domains {
    secret: [u8; 32],
    by_tenant: BTreeMap<TenantId, Domain>,
    given: BTreeSet<Domain>,
    counter: u64,
}

impl Domains {
    pub(super) fn new(secret: [u8; 32]) -> Self {
        Self {
            secret,
            by_tenant: BTreeMap::new(),
            given: BTreeSet::new(),
            counter: 0,
        }
    }

    /// The domain of this tenant: always the same in this life. Tenants come from the key file, so
    /// there are no more of them than keys.
    pub(super) fn of(&mut self, tenant: &TenantId) -> Domain {
        if let Some(domain) = self.by_tenant.get(tenant) {
            return *domain;
        }
        let domain = self.mint();
        self.by_tenant.insert(tenant.clone(), domain);
        domain
    }

    fn mint(&mut self) -> Domain {
        loop {
            self.counter += 1;
            let hash = blake3::keyed_hash(&self.secret, &self.counter.to_le_bytes());
            let (first, _) = hash.as_bytes().split_first_chunk().expect("32 bytes");
            let domain = Domain::new(u64::from_le_bytes(*first));
            if self.given.insert(domain) {
                return domain;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_is_one_domain_and_two_are_two() {
        let mut domains = Domains::new([1; 32]);
        let (red, blue) = (TenantId::new("red"), TenantId::new("blue"));
        let first = domains.of(&red);
        assert_ne!(first, domains.of(&blue));
        assert_eq!(first, domains.of(&red));
    }

    /// A restarted gateway must not give the first tenant's cached pages to whoever comes first.
    #[test]
    fn another_life_gives_other_domains() {
        let all = |secret| {
            let mut domains = Domains::new(secret);
            let of = |i: u32| domains.of(&TenantId::new(&i.to_string()));
            (0..100).map(of).collect::<BTreeSet<_>>()
        };
        let (one, other) = (all([1; 32]), all([2; 32]));
        assert_eq!((one.len(), other.len()), (100, 100));
        assert!(one.is_disjoint(&other));
    }
}
