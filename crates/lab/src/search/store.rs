//! The set of worlds that are known: whole, and small.
//!
//! A world is kept as a tree over its sections ([`Written::sections`]): every distinct section is
//! stored once, every distinct pair of neighbours once, and a world is the pair at the root. Two
//! worlds are equal exactly if they have the same root, because every step of the way up compares
//! in full; a hash only says where to look. So nothing rests on hashes being different, and a world
//! costs what is new in it: a few dozen bytes.

use crate::encode::{Part, Written};
use std::sync::atomic::{AtomicU32, Ordering};

/// Marks a section where a pair's number could stand.
const LEAF: u32 = 1 << 31;
/// The right side of a root over a single section.
const NONE: u32 = u32::MAX;

/// Worlds, numbered in the order in which they were added.
pub struct Store {
    /// Which store it is: parts remember where one keeps them.
    id: u32,
    sections: Sections,
    pairs: Pairs,
    worlds: Pairs,
}

/// Space to put a tree together in, and the tree that was put together there last: most of the next
/// one is the same, and a pair that stands where it stood needs no looking up.
#[derive(Default)]
pub struct Scratch {
    row: Vec<u32>,
    /// Of which store the last one is.
    store: Option<u32>,
    /// Its rows, from the bottom up, and what came of each pair.
    last: Vec<Row>,
}

impl Scratch {
    /// An empty row, and the rows of the last tree of this store.
    fn of(&mut self, store: u32) -> (&mut Vec<u32>, &mut Vec<Row>) {
        if self.store != Some(store) {
            (self.store, self.last) = (Some(store), Vec::new());
        }
        self.row.clear();
        (&mut self.row, &mut self.last)
    }
}

#[derive(Default)]
struct Row {
    below: Vec<u32>,
    above: Vec<u32>,
}

impl Row {
    /// The pair that stood there, if it was this one.
    #[inline]
    fn known(&self, at: usize, pair: [u32; 2]) -> Option<u32> {
        let before = self.below.get(at..at + 2)?;
        (before == pair).then(|| self.above[at / 2])
    }

    /// This is what stands there now.
    #[inline]
    fn keep(&mut self, at: usize, pair: [u32; 2], above: u32) {
        if self.below.len() < at + 2 {
            self.below.resize(at + 2, NONE);
            self.above.resize(at / 2 + 1, NONE);
        }
        self.below[at..at + 2].copy_from_slice(&pair);
        self.above[at / 2] = above;
    }
}

impl Default for Store {
    fn default() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            sections: Sections::default(),
            pairs: Pairs::default(),
            worlds: Pairs::default(),
        }
    }
}

impl Store {
    /// How many worlds it holds.
    pub fn len(&self) -> usize {
        self.worlds.entries.len()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Memory that it has taken, in bytes.
    pub fn memory(&self) -> usize {
        self.sections.memory() + self.pairs.memory() + self.worlds.memory()
    }

    /// The number of this world, if it is known.
    pub fn find(&self, world: &Written, scratch: &mut Scratch) -> Option<u32> {
        let (row, last) = scratch.of(self.id);
        for (at, section) in world.sections().enumerate() {
            row.push(match world.part(at) {
                None => self.sections.find(section)? | LEAF,
                Some(part) => self.find_part(part, section)?,
            });
        }
        let root = climb(row, last, |pair| self.pairs.find(pair))?;
        self.worlds.find(root)
    }

    /// Adds a world unless it is known: its number, and whether it is new.
    pub fn insert(&mut self, world: &Written, scratch: &mut Scratch) -> (u32, bool) {
        let (row, last) = scratch.of(self.id);
        for (at, section) in world.sections().enumerate() {
            row.push(match world.part(at) {
                None => self.sections.insert(section) | LEAF,
                Some(part) => self.insert_part(part, section),
            });
        }
        let pairs = &mut self.pairs;
        let root = climb(row, last, |pair| Some(pairs.insert(pair).0));
        self.worlds.insert(root.expect("every pair has a number"))
    }

    fn find_part(&self, part: &Part, ranks: &[u8]) -> Option<u32> {
        if let Some(known) = part.ranked_at(self.id, ranks) {
            return Some(known);
        }
        let skeleton = match part.skeleton_at(self.id) {
            Some(known) => known,
            None => self.sections.find(part.skeleton())?,
        };
        part.keep_skeleton_at(self.id, skeleton);
        let ranked = [skeleton | LEAF, self.sections.find(ranks)? | LEAF];
        let at = self.pairs.find(ranked)?;
        part.keep_ranked_at(self.id, ranks, at);
        Some(at)
    }

    fn insert_part(&mut self, part: &Part, ranks: &[u8]) -> u32 {
        if let Some(known) = part.ranked_at(self.id, ranks) {
            return known;
        }
        let skeleton = match part.skeleton_at(self.id) {
            Some(known) => known,
            None => self.sections.insert(part.skeleton()),
        };
        part.keep_skeleton_at(self.id, skeleton);
        let ranked = [skeleton | LEAF, self.sections.insert(ranks) | LEAF];
        let (at, _) = self.pairs.insert(ranked);
        part.keep_ranked_at(self.id, ranks, at);
        at
    }

    /// The bytes of a world.
    pub fn bytes(&self, world: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        for side in self.worlds.entries[world as usize] {
            self.gather(side, &mut bytes);
        }
        bytes
    }

    fn gather(&self, node: u32, bytes: &mut Vec<u8>) {
        if node == NONE {
        } else if node & LEAF != 0 {
            bytes.extend_from_slice(self.sections.get(node & !LEAF));
        } else {
            for side in self.pairs.entries[node as usize] {
                self.gather(side, bytes);
            }
        }
    }
}

/// From the leaves to the root, pair by pair; nothing if one is not known.
fn climb(
    row: &mut Vec<u32>,
    last: &mut Vec<Row>,
    mut number: impl FnMut([u32; 2]) -> Option<u32>,
) -> Option<[u32; 2]> {
    let mut level = 0;
    while row.len() > 2 {
        if last.len() == level {
            last.push(Row::default());
        }
        let before = &mut last[level];
        for at in (0..row.len()).step_by(2) {
            row[at / 2] = match row.get(at + 1) {
                None => row[at],
                Some(right) => {
                    let pair = [row[at], *right];
                    match before.known(at, pair) {
                        Some(above) => above,
                        None => {
                            let above = number(pair)?;
                            before.keep(at, pair, above);
                            above
                        }
                    }
                }
            };
        }
        row.truncate(row.len().div_ceil(2));
        level += 1;
    }
    Some(root(row))
}

fn root(row: &[u32]) -> [u32; 2] {
    let side = |at: usize| row.get(at).copied().unwrap_or(NONE);
    [side(0), side(1)]
}

/// Open addressing: numbers of entries, at most two thirds full.
#[derive(Default)]
struct Slots(Vec<u32>);

const EMPTY: u32 = u32::MAX;

impl Slots {
    /// The entry for which `is_it` holds, or the slot in which it would stand.
    fn find(&self, hash: u64, is_it: impl Fn(u32) -> bool) -> Result<u32, usize> {
        if self.0.is_empty() {
            return Err(0);
        }
        let mask = self.0.len() - 1;
        let mut at = (hash >> 20) as usize & mask;
        loop {
            match self.0[at] {
                EMPTY => return Err(at),
                entry if is_it(entry) => return Ok(entry),
                _ => at = (at + 1) & mask,
            }
        }
    }

    /// Makes room for one more, if there are `len`.
    fn reserve(&mut self, len: usize, hash_of: impl Fn(u32) -> u64) {
        if (len + 1) * 3 <= self.0.len() * 2 {
            return;
        }
        let mut larger = Self(vec![EMPTY; (self.0.len() * 2).max(64)]);
        for entry in 0..len as u32 {
            if let Err(at) = larger.find(hash_of(entry), |_| false) {
                larger.0[at] = entry;
            }
        }
        *self = larger;
    }
}

#[derive(Default)]
struct Pairs {
    entries: Vec<[u32; 2]>,
    slots: Slots,
}

impl Pairs {
    fn find(&self, pair: [u32; 2]) -> Option<u32> {
        let is_it = |entry: u32| self.entries[entry as usize] == pair;
        self.slots.find(hash_pair(pair), is_it).ok()
    }

    fn insert(&mut self, pair: [u32; 2]) -> (u32, bool) {
        let entries = &self.entries;
        let of = |entry: u32| hash_pair(entries[entry as usize]);
        self.slots.reserve(entries.len(), of);
        match (self.slots).find(hash_pair(pair), |entry| entries[entry as usize] == pair) {
            Ok(entry) => (entry, false),
            Err(at) => {
                let entry = self.entries.len() as u32;
                assert!(entry < LEAF, "more pairs than have a number");
                self.slots.0[at] = entry;
                self.entries.push(pair);
                (entry, true)
            }
        }
    }

    fn memory(&self) -> usize {
        self.entries.capacity() * 8 + self.slots.0.len() * 4
    }
}

#[derive(Default)]
struct Sections {
    bytes: Vec<u8>,
    /// Where each ends.
    ends: Vec<u32>,
    slots: Slots,
}

impl Sections {
    fn get(&self, entry: u32) -> &[u8] {
        let entry = entry as usize;
        let start = entry.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start as usize..self.ends[entry] as usize]
    }

    fn find(&self, section: &[u8]) -> Option<u32> {
        let is_it = |entry| self.get(entry) == section;
        self.slots.find(hash_bytes(section), is_it).ok()
    }

    fn insert(&mut self, section: &[u8]) -> u32 {
        let mut slots = std::mem::take(&mut self.slots);
        slots.reserve(self.ends.len(), |entry| hash_bytes(self.get(entry)));
        let found = slots.find(hash_bytes(section), |entry| self.get(entry) == section);
        let entry = found.unwrap_or_else(|at| {
            let entry = self.ends.len() as u32;
            let end = self.bytes.len() + section.len();
            assert!(
                entry < LEAF && end <= u32::MAX as usize,
                "too many sections"
            );
            slots.0[at] = entry;
            self.bytes.extend_from_slice(section);
            self.ends.push(end as u32);
            entry
        });
        self.slots = slots;
        entry
    }

    fn memory(&self) -> usize {
        self.bytes.capacity() + (self.ends.capacity() + self.slots.0.len()) * 4
    }
}

fn hash_pair([left, right]: [u32; 2]) -> u64 {
    mix(u64::from(left) << 32 | u64::from(right))
}

fn hash_bytes(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut hash = bytes.len() as u64;
    for word in words {
        hash = mix(hash ^ u64::from_le_bytes(*word));
    }
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    mix(hash ^ u64::from_le_bytes(last))
}

/// Spreads; nobody chooses the input to make it collide, and a collision costs time only.
fn mix(word: u64) -> u64 {
    let product = u128::from(word ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93;
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn canonical(sections: &[Vec<u8>]) -> Written {
        let mut out = crate::encode::Canonical::default();
        sections.iter().for_each(|section| out.push(section));
        out.written().clone()
    }

    proptest! {
        /// It is a set of byte strings, whatever they are cut into, and gives them back whole.
        #[test]
        fn it_holds_exactly_what_was_added(
            worlds in prop::collection::vec(
                prop::collection::vec(prop::collection::vec(0..3u8, 1..3), 1..7), 1..200),
        ) {
            let (mut store, mut scratch) = (Store::default(), Scratch::default());
            let mut known: HashMap<Vec<Vec<u8>>, u32> = HashMap::new();
            for sections in &worlds {
                let world = canonical(sections);
                let before = known.get(sections).copied();
                prop_assert_eq!(store.find(&world, &mut scratch), before);
                let (number, new) = store.insert(&world, &mut scratch);
                prop_assert_eq!(new, before.is_none());
                prop_assert_eq!(number, before.unwrap_or(known.len() as u32));
                known.insert(sections.clone(), number);
                prop_assert_eq!(store.bytes(number), sections.concat());
                prop_assert_eq!(store.find(&world, &mut scratch), Some(number));
            }
            prop_assert_eq!(store.len(), known.len());
        }
    }

    #[test]
    fn a_world_that_differs_in_one_section_costs_little() {
        let (mut store, mut scratch) = (Store::default(), Scratch::default());
        for n in 0..100_000u32 {
            let mut sections: Vec<Vec<u8>> = (0..32u8).map(|at| vec![at; 30]).collect();
            sections[5] = (n / 300).to_le_bytes().to_vec();
            sections[20] = (n % 300).to_le_bytes().to_vec();
            assert!(store.insert(&canonical(&sections), &mut scratch).1);
        }
        assert!(store.memory() / store.len() < 64, "{}", store.memory());
    }
}
