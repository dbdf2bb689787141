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
//!   as it is larger than all others, and it always is. Lives of one role mint for themselves: each
//!   life's numbers are ranked apart from those of the others (`names::life`), so a new one is
//!   the largest of its own.
//!
//! Nothing computes with identifiers otherwise (no hash of them decides anything, nothing is derived
//! from them, law: identity is ours), with one exception that is therefore not renamed: request ids,
//! from which a world finds its client. Identifiers that are compared *across* two types are one
//! class ([`names`]): the ledger's owner of a page is the number of a handoff. An epoch is compared
//! for equality only, but orders the containers that it is a key of; worlds mint larger ones, and
//! the same argument holds.
//!
//! Which life a number belongs to is never open: an identifier that carries an epoch has it written
//! beside it, one without belongs to the life that it is written in, and a tag that is stated to
//! the handoff or the arena before it. Were a number ranked among another life's, worlds would be
//! merged that differ; so a test explores worlds with two lives also under numbers that no two lives
//! share, where nothing can be taken for another's, and finds as many states.
//!
//! Everything else is written as it is, self-delimiting and without field names, so that the bytes
//! determine the world up to such an `f`.

mod names;
mod part;
mod serializer;
mod symmetry;

pub use part::{Part, apart};

use names::{Class, Rules};
use serde::Serialize;
use std::ops::Range;

/// Canonical bytes, and where they may be cut into sections that recur from world to world.
#[derive(Clone, Debug, Default)]
pub struct Written {
    bytes: Vec<u8>,
    cuts: Vec<u32>,
    /// If it was written in parts: what belongs before each section, which is its ranks.
    parts: Vec<Part>,
}

/// Writes canonical bytes.
#[derive(Default)]
pub struct Canonical {
    written: Written,
    /// Whether pages of one pool are interchangeable ([`symmetry`]).
    symmetric: bool,
    /// Whether worlds are written in parts.
    parted: bool,
    raw: Raw,
    census: part::Census,
    /// The ranks of the world before, if it was written in parts: most parts of the next are the
    /// same, and most of their ranks are.
    before: Written,
    /// Which of the parts are.
    same: Vec<bool>,
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
    /// Whether what memory holds is left out where no reading of it can be right.
    symmetric: bool,
    /// Where a part is written for itself: how many parts inside it were left out.
    apart: Option<usize>,
    /// There: what identifiers are minted from.
    counters: Vec<u64>,
}

/// An identifier that is not written yet, or a place.
#[derive(Clone, Copy)]
struct Mark {
    at: u32,
    /// Class and number, to be ordered by; for an epoch its place in `epochs`.
    key: u64,
}

/// Bits of a key that say which life and which number of it.
const NUMBER_BITS: u32 = 48;
/// Bits of the number.
const LIFE_AT: u32 = NUMBER_BITS - names::LIFE_BITS;
/// Larger than every identifier's key: the end of a section.
const CUT: u64 = u64::MAX;

impl Mark {
    fn new(at: usize, key: u64) -> Self {
        let at = at as u32;
        Self { at, key }
    }

    #[inline]
    fn key(class: Class, life: u8, number: u64) -> u64 {
        assert!(
            number < 1 << LIFE_AT,
            "an identifier of this many bits is a bug"
        );
        (class as u64) << NUMBER_BITS | u64::from(life) << LIFE_AT | number
    }
}

impl Canonical {
    /// Writes `value`, which is the whole world: ranks are among what occurs in it.
    ///
    /// # Panics
    /// If the value cannot be written (an identifier outside of the machine that it belongs to, a
    /// sequence of unknown length).
    pub fn value<T: Serialize + ?Sized>(&mut self, value: &T) {
        if self.parted {
            return self.parts(&[&Part::new(value)]);
        }
        self.raw.clear();
        self.raw.symmetric = self.symmetric;
        let Ok(()) = value.serialize(&mut self.raw);
        self.clear();
        self.raw.write(self.symmetric, &mut self.written);
    }

    /// Bytes that are also equal for worlds that differ only in which page of a pool is which; see
    /// [`symmetry`].
    pub fn symmetric() -> Self {
        Self {
            symmetric: true,
            ..Self::default()
        }
    }

    /// In parts, for whoever has to write many worlds that share most of them: equal for the same
    /// worlds as whole ones are. There are no bytes of such a world, only [`Self::written`].
    pub fn parted() -> Self {
        Self {
            parted: true,
            ..Self::default()
        }
    }

    /// Whether worlds are to be written in parts.
    pub fn is_parted(&self) -> bool {
        self.parted
    }

    /// Writes a world that consists of these parts, always in the same order.
    ///
    /// # Panics
    /// If there are more parts in it than these.
    pub fn parts(&mut self, parts: &[&Part]) {
        let inside: usize = parts.iter().map(|part| part.inside()).sum();
        assert_eq!(parts.len(), inside + 1, "a part was forgotten");
        let Self {
            written,
            census,
            before,
            same,
            ..
        } = self;
        // What is there stays: threads share parts, and to count who has one costs them time.
        std::mem::swap(&mut written.bytes, &mut before.bytes);
        std::mem::swap(&mut written.cuts, &mut before.cuts);
        written.bytes.clear();
        written.cuts.clear();
        same.clear();
        written.parts.truncate(parts.len());
        for (at, part) in parts.iter().enumerate() {
            let known = written.parts.get_mut(at);
            let is_same = known.as_ref().is_some_and(|known| known.is_same(part));
            match known {
                _ if is_same => {}
                Some(known) => *known = Part::clone(part),
                None => written.parts.push(Part::clone(part)),
            }
            same.push(is_same);
        }
        census.take(&written.parts);
        for (at, part) in written.parts.iter().enumerate() {
            if same[at] && census.ranks_as_before(part) {
                written.bytes.extend_from_slice(before.section(at));
            } else {
                census.write_ranks(part, &mut written.bytes);
            }
            written.cuts.push(written.bytes.len() as u32);
        }
    }

    /// Appends bytes that are canonical already, as a section that probably recurs.
    pub fn push(&mut self, bytes: &[u8]) {
        let Written {
            bytes: all, cuts, ..
        } = &mut self.written;
        all.extend_from_slice(bytes);
        cuts.push(all.len() as u32);
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.written.bytes.clear();
        self.written.cuts.clear();
        self.written.parts.clear();
    }

    /// What was written.
    pub fn written(&self) -> &Written {
        &self.written
    }

    /// The bytes that were written: equal for equal worlds.
    pub fn bytes(&self) -> &[u8] {
        self.written.bytes()
    }
}

impl Written {
    /// The bytes: equal for equal worlds.
    ///
    /// # Panics
    /// If it was written in parts.
    pub fn bytes(&self) -> &[u8] {
        assert!(self.parts.is_empty(), "a world in parts has no bytes");
        &self.bytes
    }

    fn section(&self, at: usize) -> &[u8] {
        let from = at.checked_sub(1).map_or(0, |before| self.cuts[before]);
        &self.bytes[from as usize..self.cuts[at] as usize]
    }

    /// The part before this section, if it was written in parts.
    pub(crate) fn part(&self, section: usize) -> Option<&Part> {
        self.parts.get(section)
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
        self.keys.clear();
        self.counters.clear();
        self.depth = 0;
        self.last_cut = 0;
        self.apart = None;
        self.rules.clear();
    }

    /// Puts the rank of every identifier in its place.
    fn write(&mut self, symmetric: bool, out: &mut Written) {
        self.rank_epochs();
        let names = self.marks.iter().map(|mark| mark.key);
        self.keys.clear();
        self.keys
            .extend(names.filter(|key| is_name(*key) && !symmetry::is_page(*key)));
        self.keys.sort_unstable();
        self.keys.dedup();
        // Where each class begins among the keys.
        let mut begins = [0; Class::COUNT];
        for (at, key) in self.keys.iter().enumerate().rev() {
            begins[(key >> NUMBER_BITS) as usize] = at;
        }
        let names = Names {
            raw: self,
            begins,
            symmetric,
            pages: if symmetric {
                symmetry::Orders::new(self)
            } else {
                symmetry::Orders::none()
            },
        };
        let end = self.bytes.len();
        let all = 0..self.marks.len();
        names.write(all, 0..end, &mut out.bytes, Some(&mut out.cuts));
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
    #[inline]
    fn maybe_cut(&mut self) {
        const DEEPEST: u32 = 5;
        const SHORTEST: usize = 10;
        if self.depth > DEEPEST || self.apart.is_some() {
            return;
        }
        let written = self.bytes.len() + self.marks.len();
        if written >= self.last_cut + SHORTEST {
            self.cut();
        }
    }

    fn cut(&mut self) {
        let (at, key) = (self.bytes.len() as u32, CUT);
        self.marks.push(Mark { at, key });
        self.last_cut = self.bytes.len() + self.marks.len();
    }
}

fn is_name(key: u64) -> bool {
    key >> NUMBER_BITS < Class::COUNT as u64
}

/// What identifiers are called.
struct Names<'a> {
    raw: &'a Raw,
    begins: [usize; Class::COUNT],
    symmetric: bool,
    pages: symmetry::Orders,
}

impl Names<'_> {
    /// Writes a part: what lies between these marks and these bytes. Without `cuts` it is one
    /// section.
    fn write(
        &self,
        marks: Range<usize>,
        part: Range<usize>,
        bytes: &mut Vec<u8>,
        mut cuts: Option<&mut Vec<u32>>,
    ) {
        let mut from = part.start;
        let mut next = marks.start;
        while next < marks.end {
            let mark = self.raw.marks[next];
            let at = mark.at as usize;
            bytes.extend_from_slice(&self.raw.bytes[from..at]);
            (from, next) = (at, next + 1);
            match mark.key {
                CUT => {
                    if let Some(cuts) = &mut cuts {
                        cuts.push(bytes.len() as u32);
                    }
                }
                key if is_name(key) => put_varint(bytes, self.rank(key) as u64),
                key => (next, from) = self.write_rows(key, next, bytes, cuts.as_deref_mut()),
            }
        }
        bytes.extend_from_slice(&self.raw.bytes[from..part.end]);
    }

    fn rank(&self, key: u64) -> usize {
        let begin = self.begins[(key >> NUMBER_BITS) as usize];
        match self.pages.rank(key) {
            Some(rank) => rank,
            None => self.raw.keys.partition_point(|other| *other < key) - begin,
        }
    }
}

/// Seven bits a byte, lowest first.
#[inline]
fn put_varint(bytes: &mut Vec<u8>, mut number: u64) {
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
    use pages::{Epoch, PageId, StatedTag};
    use std::collections::{BTreeMap, BTreeSet};

    fn bytes<T: Serialize>(value: &T) -> Vec<u8> {
        let mut out = Canonical::default();
        out.value(value);
        let sections: Vec<u8> = out.written().sections().flatten().copied().collect();
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

    /// A worker's life as a world would write it, with a pool of four pages.
    #[derive(Serialize)]
    struct DecodeLife {
        memory: BTreeMap<PageId, u8>,
        machine: Ledger,
        table: Vec<PageId>,
    }

    #[derive(Serialize)]
    struct Ledger {
        tags: Vec<Option<StatedTag>>,
        records: Vec<u8>,
        free: BTreeSet<PageId>,
    }

    /// What is at each page: its tag, its record, its memory; and pages in the order of a table.
    fn life(pages: [(u64, u8, u8); 4], table: &[u32]) -> DecodeLife {
        let page = |at: usize| PageId::new(at as u32);
        let tag = |tag: u64| (tag > 0).then_some(StatedTag(tag));
        DecodeLife {
            memory: (0..4).map(|at| (page(at), pages[at].2)).collect(),
            machine: Ledger {
                tags: pages.iter().map(|(t, _, _)| tag(*t)).collect(),
                records: pages.iter().map(|(_, record, _)| *record).collect(),
                free: (0..4).filter(|at| pages[*at].0 == 0).map(page).collect(),
            },
            table: table.iter().map(|at| PageId::new(*at)).collect(),
        }
    }

    fn symmetric<T: Serialize>(value: &T) -> Vec<u8> {
        let mut out = Canonical::symmetric();
        out.value(value);
        assert!(out.written().sections().flatten().eq(out.bytes()));
        out.bytes().to_vec()
    }

    #[test]
    fn which_page_is_which_makes_no_difference() {
        let a = life([(5, 1, 10), (0, 0, 20), (7, 2, 30), (0, 0, 40)], &[0, 2]);
        let b = life([(0, 0, 20), (70, 2, 30), (0, 0, 40), (50, 1, 10)], &[3, 1]);
        assert_eq!(symmetric(&a), symmetric(&b));
        assert_ne!(bytes(&a), bytes(&b));
        // Another order in the table, other memory, another record, other memory of a free page:
        // all of these make a difference.
        let others = [
            life([(5, 1, 10), (0, 0, 20), (7, 2, 30), (0, 0, 40)], &[2, 0]),
            life([(5, 1, 11), (0, 0, 20), (7, 2, 30), (0, 0, 40)], &[0, 2]),
            life([(5, 2, 10), (0, 0, 20), (7, 1, 30), (0, 0, 40)], &[0, 2]),
            life([(5, 1, 10), (0, 0, 40), (7, 2, 30), (0, 0, 20)], &[0, 2]),
        ];
        others
            .iter()
            .for_each(|other| assert_ne!(symmetric(&a), symmetric(other)));
        let two = |one| (life([(1, 0, 0); 4], &[one]), life([(1, 0, 0); 4], &[0]));
        assert_ne!(
            symmetric(&two(0)),
            symmetric(&two(1)),
            "two lives keep their names"
        );
    }

    /// Two worlds are the same in parts exactly if they are the same whole.
    #[test]
    fn parts_tell_the_same_worlds_apart() {
        use crate::search::store::{Scratch, Store};
        use std::collections::BTreeMap;

        type Ids = (HandoffId, Vec<HandoffId>);
        #[derive(Serialize)]
        struct World(Apart, HandoffId, Apart);
        struct Apart(Ids);
        impl Serialize for Apart {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                apart(&self.0, to)
            }
        }
        let ids = |n: u64| {
            let others = vec![handoff(2, n / 3), handoff(2, n * 5 % 7)];
            (handoff(u128::from(n % 2), n / 2), others)
        };
        let (mut store, mut scratch) = (Store::default(), Scratch::default());
        let (mut known, mut parted) = (BTreeMap::new(), Canonical::parted());
        for n in 0..512 {
            let world = World(Apart(ids(n % 8)), handoff(1, n / 64), Apart(ids(n / 8 % 8)));
            let parts = [
                Part::new(&world),
                Part::new(&world.0.0),
                Part::new(&world.2.0),
            ];
            parted.parts(&parts.each_ref());
            let (number, _) = store.insert(parted.written(), &mut scratch);
            assert_eq!(store.find(parted.written(), &mut scratch), Some(number));
            assert_eq!(*known.entry(bytes(&world)).or_insert(number), number);
        }
        assert_eq!(known.len(), store.len());
        assert!((50..512).contains(&known.len()), "{}", known.len());
    }

    #[test]
    #[should_panic(expected = "forgotten")]
    fn a_part_that_is_forgotten_is_noticed() {
        struct Apart;
        impl Serialize for Apart {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                apart(&1, to)
            }
        }
        Canonical::parted().parts(&[&Part::new(&(1, Apart))]);
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
        assert!(a.written().sections().count() > 5);
        assert!(a.written().sections().eq(b.written().sections()));
    }
}
