//! Canonical bytes of a world: equal for worlds that differ only in how things are called.
//!
//! A run that retried twice and a run that never did reach worlds in which the same things are
//! about to happen, under other tags, other handoff ids, other operation numbers. To keep them
//! apart would make the space infinite for nothing. So every identifier is replaced by its **rank
//! among the identifiers of its class that occur in the world**, and a counter that only says which
//! number is minted next is left out.
//!
//! # Why two worlds with equal bytes have the same future
//!
//! Let `f` rename the identifiers of every class by an order-preserving injection. `w` and `f(w)`
//! have the same bytes, and worlds with the same bytes are related by such an `f`. That relation is
//! a bisimulation, because the machines and the world use an identifier in three ways only:
//!
//! - *compared for equality* with another of its class, which an injection preserves;
//! - *compared for order* (ordered containers, "an attempt above the highest announced one"), which
//!   an order-preserving one preserves;
//! - *minted*, larger than every identifier of its class that has ever been there. `f` extends to
//!   the new pair, and still preserves order. So the value of the counter does not matter as long
//!   as it is larger than all others, and it always is.
//!
//! Nothing computes with identifiers otherwise (no hash of them decides anything, nothing is derived
//! from them, law: identity is ours), with one exception that is therefore not renamed: request ids,
//! from which a world finds its client. Identifiers that are compared *across* two types are one
//! class ([`names`]): the ledger's owner of a page is the number of a handoff. An epoch is compared
//! for equality only, but orders the containers that it is a key of; worlds mint larger ones, and
//! the same argument holds.
//!
//! An identifier that carries an epoch is ranked by its number alone and its epoch written beside
//! it: nothing is lost, and two lives of a worker share one order, which can only keep worlds apart
//! that could have been merged.
//!
//! Everything else is written as it is, self-delimiting and without field names, so that the bytes
//! determine the world up to such an `f`.

mod names;
mod serializer;

use names::{Class, Rules};
use serde::Serialize;

/// Canonical bytes, and where they may be cut into sections that recur from world to world.
#[derive(Default)]
pub struct Canonical {
    bytes: Vec<u8>,
    cuts: Vec<u32>,
    raw: Raw,
}

/// What a value was written to before its identifiers have their ranks.
#[derive(Default)]
pub(crate) struct Raw {
    bytes: Vec<u8>,
    /// What stands between the bytes, in order.
    marks: Vec<Mark>,
    epochs: Vec<u128>,
    rules: Rules,
    /// How deep the value being written lies in the whole.
    depth: u32,
    /// Bytes and marks at the last cut.
    last_cut: usize,
    keys: Vec<u64>,
}

/// An identifier that is not written yet, or the end of a section.
#[derive(Clone, Copy)]
struct Mark {
    at: u32,
    /// Class and number, to be ordered by; for an epoch its place in `epochs`.
    key: u64,
}

const NUMBER_BITS: u32 = 48;
/// Larger than every identifier's key.
const CUT: u64 = u64::MAX;

impl Mark {
    fn new(at: usize, class: Class, number: u64) -> Self {
        assert!(
            number < 1 << NUMBER_BITS,
            "an identifier of this many bits is a bug"
        );
        let (at, key) = (at as u32, (class as u64) << NUMBER_BITS | number);
        Self { at, key }
    }
}

impl Canonical {
    /// Writes `value`, which is the whole world: ranks are among what occurs in it.
    ///
    /// # Panics
    /// If the value cannot be written (an identifier outside of the machine that it belongs to).
    pub fn value<T: Serialize + ?Sized>(&mut self, value: &T) {
        self.raw.clear();
        if let Err(error) = value.serialize(&mut self.raw) {
            panic!("a world that cannot be encoded: {error}");
        }
        self.clear();
        self.raw.write(&mut self.bytes, &mut self.cuts);
    }

    /// Appends bytes that are canonical already, as a section that probably recurs.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.cuts.push(self.bytes.len() as u32);
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.cuts.clear();
    }

    /// The same bytes and sections, without the space that writing them took.
    pub fn copy(&self) -> Self {
        let (bytes, cuts) = (self.bytes.clone(), self.cuts.clone());
        Self {
            bytes,
            cuts,
            raw: Raw::default(),
        }
    }

    /// The bytes: equal for equal worlds.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The same bytes in sections. Where they are cut depends on nothing but the bytes.
    pub fn sections(&self) -> impl Iterator<Item = &[u8]> {
        let ends = self.cuts.iter().map(|cut| *cut as usize);
        let ends = ends.chain([self.bytes.len()]);
        let mut start = 0;
        ends.filter_map(move |end| {
            let section = &self.bytes[start..end];
            start = end;
            (!section.is_empty()).then_some(section)
        })
    }
}

impl Raw {
    fn clear(&mut self) {
        self.bytes.clear();
        self.marks.clear();
        self.epochs.clear();
        self.depth = 0;
        self.last_cut = 0;
        self.rules.clear();
    }

    /// Puts the rank of every identifier in its place.
    fn write(&mut self, bytes: &mut Vec<u8>, cuts: &mut Vec<u32>) {
        self.rank_epochs();
        let names = self.marks.iter().map(|mark| mark.key);
        self.keys.clear();
        self.keys.extend(names.filter(|key| *key != CUT));
        self.keys.sort_unstable();
        self.keys.dedup();
        // Where each class begins among the keys.
        let mut begins = [0; Class::COUNT];
        for (at, key) in self.keys.iter().enumerate().rev() {
            begins[(key >> NUMBER_BITS) as usize] = at;
        }
        let mut from = 0;
        for mark in &self.marks {
            let at = mark.at as usize;
            bytes.extend_from_slice(&self.bytes[from..at]);
            from = at;
            if mark.key == CUT {
                cuts.push(bytes.len() as u32);
                continue;
            }
            let rank = self.keys.partition_point(|key| *key < mark.key)
                - begins[(mark.key >> NUMBER_BITS) as usize];
            put_varint(bytes, rank as u128);
        }
        bytes.extend_from_slice(&self.bytes[from..]);
    }

    /// An epoch has 128 bits, and few occur: their keys become their ranks.
    fn rank_epochs(&mut self) {
        let epochs = &self.epochs;
        let rank = |at: usize| epochs.iter().filter(|other| **other < epochs[at]).count();
        let ranks: Vec<u64> = (0..epochs.len()).map(|at| rank(at) as u64).collect();
        let first = (Class::Epoch as u64) << NUMBER_BITS;
        let keys = self.marks.iter_mut().map(|mark| &mut mark.key);
        for key in keys.filter(|key| **key >> NUMBER_BITS == Class::Epoch as u64) {
            *key = first | ranks[(*key - first) as usize];
        }
    }

    /// Ends a section if it is worth one. Sections decide how little memory a world takes, not
    /// which worlds are equal.
    fn maybe_cut(&mut self) {
        const DEEPEST: u32 = 5;
        const SHORTEST: usize = 10;
        let written = self.bytes.len() + self.marks.len();
        if self.depth <= DEEPEST && written >= self.last_cut + SHORTEST {
            let (at, key) = (self.bytes.len() as u32, CUT);
            self.marks.push(Mark { at, key });
            self.last_cut = written + 1;
        }
    }
}

/// Seven bits a byte, lowest first.
fn put_varint(bytes: &mut Vec<u8>, mut number: u128) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

#[cfg(test)]
mod tests {
    use super::*;
    use handoff::{Conn, HandoffId};
    use pages::{Epoch, StatedTag};
    use std::collections::BTreeMap;

    fn bytes<T: Serialize>(value: &T) -> Vec<u8> {
        let mut out = Canonical::default();
        out.value(value);
        let sections: Vec<u8> = out.sections().flatten().copied().collect();
        assert_eq!(sections, out.bytes());
        out.bytes().to_vec()
    }

    fn handoff(epoch: u128, n: u64) -> HandoffId {
        let epoch = Epoch::new(epoch);
        HandoffId { epoch, n }
    }

    #[test]
    fn what_differs_in_names_only_is_equal() {
        let a = (handoff(7, 3), vec![handoff(7, 9)], StatedTag(4), 5u64);
        let b = (handoff(8, 100), vec![handoff(8, 101)], StatedTag(1), 5u64);
        assert_eq!(bytes(&a), bytes(&b));
    }

    #[test]
    fn which_ones_are_the_same_and_which_is_older_is_kept() {
        let same = bytes(&(handoff(7, 3), handoff(7, 3)));
        let older = bytes(&(handoff(7, 3), handoff(7, 4)));
        let newer = bytes(&(handoff(7, 4), handoff(7, 3)));
        let foreign = bytes(&(handoff(7, 3), handoff(8, 3)));
        let all = [same, older, newer, foreign];
        for (at, one) in all.iter().enumerate() {
            assert!(all[at + 1..].iter().all(|other| other != one));
        }
    }

    #[test]
    fn numbers_that_are_no_identifiers_are_written_as_they_are() {
        assert_ne!(bytes(&(1u64, StatedTag(1))), bytes(&(2u64, StatedTag(1))));
        assert_eq!(bytes(&Conn(1)), bytes(&Conn(2)));
        assert_ne!(bytes(&-1i32), bytes(&1i32));
        assert_eq!(bytes(&300u32), [0xac, 2]);
    }

    #[test]
    fn values_do_not_run_into_each_other() {
        assert_ne!(
            bytes(&(vec![1u8], vec![2u8, 3])),
            bytes(&(vec![1u8, 2], vec![3u8]))
        );
        assert_ne!(bytes(&("a", "bc")), bytes(&("ab", "c")));
        assert_ne!(bytes(&(Some(0u8), 0u8)), bytes(&(None::<u8>, 1u8)));
    }

    #[test]
    fn maps_keep_the_order_of_their_keys_and_are_cut_alike() {
        let map = |from: u64| -> BTreeMap<HandoffId, Vec<u8>> {
            (from..from + 9)
                .map(|n| (handoff(1, n * n), vec![n as u8 - from as u8; 12]))
                .collect()
        };
        let (mut a, mut b) = (Canonical::default(), Canonical::default());
        a.value(&map(3));
        b.value(&map(1000));
        assert_eq!(a.bytes(), b.bytes());
        assert!(a.sections().count() > 5);
        assert!(a.sections().eq(b.sections()));
    }
}
