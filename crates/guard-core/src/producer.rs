//! What one rank of a producer keeps of its statements: each is given to one claimant, while the
//! lease lasts, in this life only.

use pages::Epoch;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A claimant's 128 random bits: the same claim asked again is the same claim.
pub type Nonce = [u8; 16];

/// Why a claim is refused, for good.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    /// The reference was made by an earlier life of the producer.
    #[error("the reference was made by another life of the producer")]
    OtherLife,
    /// Somebody else has claimed the statement: references are for one use.
    #[error("the reference was used before")]
    Used,
    /// The lease has ended, or the reference was never made.
    #[error("the reference's lease has ended, or the producer never made it")]
    Expired,
    /// The producer has given the request up.
    #[error("the producer gave the request up before its blocks were complete")]
    Revoked,
    /// The producer cannot read the message.
    #[error("the producer could not read the claim: another version or secret?")]
    Unreadable,
}

impl Refusal {
    /// A word for counters and audit records.
    pub const fn kind(self) -> &'static str {
        match self {
            Self::OtherLife => "other_life",
            Self::Used => "used",
            Self::Expired => "expired",
            Self::Revoked => "revoked",
            Self::Unreadable => "unreadable",
        }
    }
}

/// The answer to a claim.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Claim {
    /// The statement, encoded.
    Granted(Vec<u8>),
    /// The blocks are not complete yet: ask again.
    NotYet,
    /// It will never be granted.
    Refused(Refusal),
}

#[derive(Clone, Debug)]
struct Entry {
    statement: Vec<u8>,
    until_ms: u64,
    claimant: Option<Nonce>,
    revoked: bool,
}

/// The statements of one rank. Times are milliseconds on the producer's own monotonic clock; no
/// other clock is ever compared with it.
#[derive(Clone, Debug)]
pub struct Producer {
    epoch: Epoch,
    entries: BTreeMap<u64, Entry>,
    last: u64,
    limit: usize,
}

impl Producer {
    /// For one life, keeping at most `limit` statements.
    pub fn new(epoch: Epoch, limit: usize) -> Self {
        Self {
            epoch,
            entries: BTreeMap::new(),
            last: 0,
            limit: limit.max(1),
        }
    }

    /// The life that this speaks for.
    pub const fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Statements kept.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether none is kept.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Keeps the statement of reference `serial` until `until_ms`. If there are too many, the one
    /// that ends first goes.
    pub fn state(&mut self, serial: u64, statement: Vec<u8>, until_ms: u64) {
        self.last = self.last.max(serial);
        let entry = Entry {
            statement,
            until_ms,
            claimant: None,
            revoked: false,
        };
        self.entries.insert(serial, entry);
        if self.entries.len() > self.limit {
            let first = self.entries.iter().min_by_key(|(_, entry)| entry.until_ms);
            let first = first.map(|(serial, _)| *serial);
            first.map(|serial| self.entries.remove(&serial));
        }
    }

    /// The consumer is alive: the lease lasts until `until_ms` at least.
    pub fn renew(&mut self, serial: u64, until_ms: u64) {
        if let Some(entry) = self.entries.get_mut(&serial) {
            entry.until_ms = entry.until_ms.max(until_ms);
        }
    }

    /// The request was given up: its reference is void, also if it was never stated.
    pub fn revoke(&mut self, serial: u64) {
        self.last = self.last.max(serial);
        if let Some(entry) = self.entries.get_mut(&serial) {
            entry.revoked = true;
            entry.statement = Vec::new();
        }
    }

    /// The lease has ended.
    pub fn expire(&mut self, serial: u64) {
        self.entries.remove(&serial);
    }

    /// Forgets what has ended by `now_ms`.
    pub fn sweep(&mut self, now_ms: u64) {
        self.entries.retain(|_, entry| entry.until_ms > now_ms);
    }

    /// Somebody claims the statement of `serial`.
    pub fn claim(&mut self, epoch: Epoch, serial: u64, nonce: Nonce, now_ms: u64) -> Claim {
        if epoch != self.epoch {
            return Claim::Refused(Refusal::OtherLife);
        }
        let Some(entry) = self.entries.get_mut(&serial) else {
            return if serial > self.last {
                Claim::NotYet
            } else {
                Claim::Refused(Refusal::Expired)
            };
        };
        if entry.revoked {
            return Claim::Refused(Refusal::Revoked);
        }
        if entry.until_ms <= now_ms {
            return Claim::Refused(Refusal::Expired);
        }
        if *entry.claimant.get_or_insert(nonce) != nonce {
            return Claim::Refused(Refusal::Used);
        }
        Claim::Granted(entry.statement.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIFE: Epoch = Epoch::new(5);

    fn stated() -> Producer {
        let mut producer = Producer::new(LIFE, 8);
        producer.state(1, vec![1, 2, 3], 1000);
        producer
    }

    #[test]
    fn a_statement_is_for_one_claimant_who_may_ask_again() {
        let mut producer = stated();
        let granted = Claim::Granted(vec![1, 2, 3]);
        assert_eq!(producer.claim(LIFE, 1, [1; 16], 10), granted);
        assert_eq!(
            producer.claim(LIFE, 1, [1; 16], 20),
            granted,
            "a lost answer"
        );
        let used = Claim::Refused(Refusal::Used);
        assert_eq!(producer.claim(LIFE, 1, [2; 16], 30), used);
    }

    #[test]
    fn a_lease_ends_unless_it_is_renewed() {
        let expired = Claim::Refused(Refusal::Expired);
        assert_eq!(stated().claim(LIFE, 1, [1; 16], 1000), expired);
        let mut renewed = stated();
        renewed.renew(1, 2000);
        let granted = Claim::Granted(vec![1, 2, 3]);
        assert_eq!(renewed.claim(LIFE, 1, [1; 16], 1999), granted);
        renewed.sweep(2000);
        assert!(renewed.is_empty());
        assert_eq!(renewed.claim(LIFE, 1, [1; 16], 1999), expired);
    }

    #[test]
    fn what_is_not_computed_yet_is_waited_for_and_what_was_given_up_is_not() {
        let mut producer = stated();
        assert_eq!(producer.claim(LIFE, 2, [1; 16], 0), Claim::NotYet);
        producer.revoke(2);
        let expired = Claim::Refused(Refusal::Expired);
        assert_eq!(producer.claim(LIFE, 2, [1; 16], 0), expired);
        producer.revoke(1);
        let revoked = Claim::Refused(Refusal::Revoked);
        assert_eq!(producer.claim(LIFE, 1, [1; 16], 0), revoked);
    }

    #[test]
    fn another_life_grants_nothing() {
        let other = stated().claim(Epoch::new(6), 1, [1; 16], 0);
        assert_eq!(other, Claim::Refused(Refusal::OtherLife));
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut producer = Producer::new(LIFE, 2);
        for (serial, until) in [(1, 300), (2, 100), (3, 200)] {
            producer.state(serial, vec![], until);
        }
        assert_eq!(producer.len(), 2);
        let expired = Claim::Refused(Refusal::Expired);
        assert_eq!(producer.claim(LIFE, 2, [1; 16], 0), expired);
    }
}
