//! Parts of a world that are written once, however many worlds share them.
//!
//! Most steps change one machine of three and one or two of the lives and connections around them.
//! What a part looks like apart from what things are called in it, its **skeleton**, is kept with it
//! until it changes: in the place of every identifier stands its place among those of this part
//! alone, in the order in which they first occur. A world is then the skeletons of its parts and,
//! for each of them, the rank in the whole world of every identifier that occurs in it. Two worlds
//! are equal exactly if both are: the skeleton says where which identifier stands, the ranks say
//! which it is, and the two together what [`Canonical::value`](super::Canonical::value) would have
//! written.

use super::names::{LIFE_BITS, life};
use super::{Class, LIFE_AT, Raw, put_varint};
use pages::Epoch;
use serde::{Serialize, Serializer};
use std::cell::RefCell;
use std::hash::Hash;
use std::sync::{Arc, OnceLock};

/// A part of a world, without the parts inside it that are written for themselves.
#[derive(Clone, Debug)]
pub struct Part(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    skeleton: Vec<u8>,
    /// Identifiers in it, each once, as they come; those of epochs are apart.
    names: Vec<u64>,
    /// The same as sets, and those that are in none.
    near: Vec<Near>,
    far: Vec<u64>,
    /// Rows that they are in.
    rows: u64,
    epochs: Vec<u128>,
    /// What identifiers are minted from, which makes no difference between worlds.
    counters: Vec<u64>,
    /// Parts that were left out.
    inside: usize,
    /// Where a store keeps the skeleton, and where it keeps it with the ranks that came first.
    skeleton_at: OnceLock<(u32, u32)>,
    ranked_at: OnceLock<(u32, Box<[u8]>, u32)>,
}

/// Names of one row, as bits of a word.
#[derive(Clone, Copy, Debug)]
struct Near {
    row: u8,
    word: u8,
    bits: u64,
}

thread_local! {
    static SPACE: RefCell<Raw> = RefCell::default();
}

/// By this name the serializer knows one.
pub(super) const NAME: &str = "lab::encode::Part";

/// Writes something that is a part for itself: in its place where a world is written whole, not at
/// all where it is written in parts.
///
/// # Errors
/// Those of the serializer.
pub fn apart<T: Serialize + ?Sized, S: Serializer>(
    part: &T,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.serialize_newtype_struct(NAME, part)
}

impl Part {
    /// Writes a part. It must bring its own scope along (a machine, a life of a worker) or need
    /// none, because what is around it is not known here.
    ///
    /// # Panics
    /// If the value cannot be written.
    pub fn new<T: Serialize + ?Sized>(part: &T) -> Self {
        Self::of_life(part, Epoch::new(0))
    }

    /// Writes a part of this life of a worker, if it does not say itself whose it is.
    ///
    /// # Panics
    /// If the value cannot be written.
    pub fn of_life<T: Serialize + ?Sized>(part: &T, epoch: Epoch) -> Self {
        SPACE.with_borrow_mut(|raw| {
            raw.clear();
            raw.rules.belongs_to(life(epoch.bits()));
            raw.apart = Some(0);
            let Ok(()) = part.serialize(&mut *raw);
            Self::of(raw)
        })
    }

    fn of(raw: &Raw) -> Self {
        let mut skeleton = Vec::with_capacity(raw.bytes.len() + raw.keys.len());
        skeleton.extend_from_slice(&raw.bytes);
        // Of which classes and lives they are.
        skeleton.extend(raw.keys.iter().map(|name| (name >> LIFE_AT) as u8));
        let mut near: Vec<Near> = Vec::new();
        let (mut rows, mut far) = (0, Vec::new());
        for name in &raw.keys {
            let (row, number) = split(*name);
            rows |= 1 << row;
            if number >= NEAR {
                far.push(*name);
                continue;
            }
            let (row, word, bit) = (row as u8, (number / 64) as u8, 1 << (number % 64));
            match near.iter_mut().find(|at| (at.row, at.word) == (row, word)) {
                Some(near) => near.bits |= bit,
                None => near.push(Near {
                    row,
                    word,
                    bits: bit,
                }),
            }
        }
        Self(Arc::new(Inner {
            skeleton,
            names: raw.keys.clone(),
            near,
            far,
            rows,
            epochs: raw.epochs.clone(),
            counters: raw.counters.clone(),
            inside: raw.apart.unwrap_or_default(),
            skeleton_at: OnceLock::new(),
            ranked_at: OnceLock::new(),
        }))
    }

    /// Whether it is this very part, not only one like it.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Whether the other one is the same in everything, names and counters included: not only like
    /// it in some world, but exchangeable for it in every one.
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.exact() == other.exact()
    }

    /// Equal for parts that are the same in everything.
    pub(crate) fn exact(&self) -> impl Hash + PartialEq + '_ {
        let part = &*self.0;
        (&part.skeleton, &part.names, &part.epochs, &part.counters)
    }

    /// What it looks like, apart from what things are called.
    pub(crate) fn skeleton(&self) -> &[u8] {
        &self.0.skeleton
    }

    /// Parts that were left out of it.
    pub(super) fn inside(&self) -> usize {
        self.0.inside
    }

    /// Where this store keeps the skeleton.
    pub(crate) fn skeleton_at(&self, store: u32) -> Option<u32> {
        let (of, at) = self.0.skeleton_at.get()?;
        (*of == store).then_some(*at)
    }

    /// It keeps it there.
    pub(crate) fn keep_skeleton_at(&self, store: u32, at: u32) {
        let _ = self.0.skeleton_at.set((store, at)); // only the first store's is worth keeping
    }

    /// Where this store keeps the skeleton together with these ranks.
    pub(crate) fn ranked_at(&self, store: u32, ranks: &[u8]) -> Option<u32> {
        let (of, known, at) = self.0.ranked_at.get()?;
        (*of == store && **known == *ranks).then_some(*at)
    }

    /// It keeps it there.
    pub(crate) fn keep_ranked_at(&self, store: u32, ranks: &[u8], at: u32) {
        if self.0.ranked_at.get().is_none() {
            let _ = self.0.ranked_at.set((store, ranks.into(), at));
        }
    }
}

/// Numbers of a row that a set of bits is kept for; identifiers count from one, and few worlds get
/// further.
const NEAR: usize = 256;
const WORDS: usize = NEAR / 64;
/// A row for each class and life, and each has a bit of a word.
const ROWS: usize = Class::COUNT << LIFE_BITS;
const _: () = assert!(ROWS <= u64::BITS as usize);

/// The names of a whole world: which numbers of every row occur, so that the rank of one is how many
/// of them are below it.
#[derive(Default)]
pub(super) struct Census {
    now: Box<Names>,
    before: Box<Names>,
    /// Rows that are not as they were in the world before.
    changed: u64,
    /// Whether the epochs are.
    same_epochs: bool,
}

struct Names {
    near: [[u64; WORDS]; ROWS],
    /// How many names of the row are below those of a word.
    below: [[u32; WORDS]; ROWS],
    /// How many are near.
    nearby: [u32; ROWS],
    /// Rows in which there are some.
    rows: u64,
    /// The others, in order.
    far: Vec<u64>,
    epochs: Vec<u128>,
}

impl Default for Names {
    fn default() -> Self {
        Self {
            near: [[0; WORDS]; ROWS],
            below: [[0; WORDS]; ROWS],
            nearby: [0; ROWS],
            rows: 0,
            far: Vec::new(),
            epochs: Vec::new(),
        }
    }
}

/// Row and number of a name.
#[inline]
fn split(name: u64) -> (usize, usize) {
    let number = name & ((1 << LIFE_AT) - 1);
    ((name >> LIFE_AT) as usize, number as usize)
}

/// The rows of a set of them.
fn each(mut rows: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let row = rows.trailing_zeros() as usize;
        rows &= rows.wrapping_sub(1);
        (row < ROWS).then_some(row)
    })
}

impl Names {
    fn clear(&mut self) {
        each(self.rows).for_each(|row| self.near[row] = [0; WORDS]);
        self.rows = 0;
        self.far.clear();
        self.epochs.clear();
    }

    fn add(&mut self, part: &Inner) {
        for Near { row, word, bits } in &part.near {
            self.near[usize::from(*row)][usize::from(*word)] |= bits;
        }
        self.rows |= part.rows;
        self.far.extend_from_slice(&part.far);
        for epoch in &part.epochs {
            if !self.epochs.contains(epoch) {
                self.epochs.push(*epoch);
            }
        }
    }

    fn count(&mut self, row: usize) {
        let mut below = 0;
        for (word, bits) in self.near[row].iter().enumerate() {
            self.below[row][word] = below;
            below += bits.count_ones();
        }
        self.nearby[row] = below;
    }

    #[inline]
    fn rank(&self, name: u64) -> u32 {
        let (row, number) = split(name);
        if number < NEAR {
            let lower = self.near[row][number / 64] & ((1 << (number % 64)) - 1);
            return self.below[row][number / 64] + lower.count_ones();
        }
        let first = (row as u64) << LIFE_AT;
        let place = |name| self.far.partition_point(|other| *other < name) as u32;
        self.nearby[row] + place(name) - place(first)
    }
}

impl Census {
    /// Counts the names of a world, and which are not those of the world before.
    pub(super) fn take(&mut self, parts: &[Part]) {
        std::mem::swap(&mut self.now, &mut self.before);
        let Self { now, before, .. } = self;
        now.clear();
        parts.iter().for_each(|Part(part)| now.add(part));
        now.far.sort_unstable();
        now.far.dedup();
        now.epochs.sort_unstable();
        self.same_epochs = now.epochs == before.epochs;
        self.changed = if now.far == before.far { 0 } else { u64::MAX };
        for row in each(now.rows) {
            if now.near[row] == before.near[row] {
                (now.below[row], now.nearby[row]) = (before.below[row], before.nearby[row]);
            } else {
                self.changed |= 1 << row;
                now.count(row);
            }
        }
    }

    /// Whether everything that this part names has the rank that it had in the world before, if it
    /// was part of that.
    pub(super) fn ranks_as_before(&self, Part(part): &Part) -> bool {
        part.rows & self.changed == 0 && (self.same_epochs || part.epochs.is_empty())
    }

    /// The rank of every name of a part, in the order in which it lists them; never nothing.
    pub(super) fn write_ranks(&self, Part(part): &Part, bytes: &mut Vec<u8>) {
        put_varint(bytes, part.names.len() as u64);
        for epoch in &part.epochs {
            let rank = self.now.epochs.partition_point(|other| other < epoch);
            put_varint(bytes, rank as u64);
        }
        for name in &part.names {
            put_varint(bytes, self.now.rank(*name).into());
        }
    }
}
