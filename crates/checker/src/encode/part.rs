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

use super::{Class, NUMBER_BITS, Raw, put_varint};
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
    epochs: Vec<u128>,
    /// What identifiers are minted from, which makes no difference between worlds.
    counters: Vec<u64>,
    /// Parts that were left out.
    inside: usize,
    /// Where a store keeps the skeleton, and where it keeps it with the ranks that came first.
    skeleton_at: OnceLock<(u32, u32)>,
    ranked_at: OnceLock<(u32, Box<[u8]>, u32)>,
}

thread_local! {
    static SPACE: RefCell<Raw> = RefCell::default();
}

/// By this name the serializer knows one.
pub(super) const NAME: &str = "checker::encode::Part";

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
        SPACE.with_borrow_mut(|raw| {
            raw.clear();
            raw.apart = Some(0);
            let Ok(()) = part.serialize(&mut *raw);
            Self::of(raw)
        })
    }

    fn of(raw: &Raw) -> Self {
        let mut skeleton = Vec::with_capacity(raw.bytes.len() + raw.keys.len());
        skeleton.extend_from_slice(&raw.bytes);
        // Of which classes they are.
        skeleton.extend(raw.keys.iter().map(|name| (name >> NUMBER_BITS) as u8));
        Self(Arc::new(Inner {
            skeleton,
            names: raw.keys.clone(),
            epochs: raw.epochs.clone(),
            counters: raw.counters.clone(),
            inside: raw.apart.unwrap_or_default(),
            skeleton_at: OnceLock::new(),
            ranked_at: OnceLock::new(),
        }))
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

/// Numbers of a class that a set of bits is kept for; identifiers count from one, and few worlds
/// get further.
const NEAR: usize = 512;
const WORDS: usize = NEAR / 64;

/// The names of a whole world: which numbers of every class occur, so that the rank of one is how
/// many are below it.
pub(super) struct Census {
    near: [[u64; WORDS]; Class::COUNT],
    /// How many names of the class are below those of a word.
    below: [[u32; WORDS]; Class::COUNT],
    /// How many are near.
    nearby: [u32; Class::COUNT],
    /// The others, in order.
    far: Vec<u64>,
    epochs: Vec<u128>,
}

impl Default for Census {
    fn default() -> Self {
        Self {
            near: [[0; WORDS]; Class::COUNT],
            below: [[0; WORDS]; Class::COUNT],
            nearby: [0; Class::COUNT],
            far: Vec::new(),
            epochs: Vec::new(),
        }
    }
}

/// Class and number of a name.
#[inline]
fn split(name: u64) -> (usize, usize) {
    let number = name & ((1 << NUMBER_BITS) - 1);
    ((name >> NUMBER_BITS) as usize, number as usize)
}

impl Census {
    pub fn take(&mut self, parts: &[Part]) {
        self.near = [[0; WORDS]; Class::COUNT];
        self.far.clear();
        self.epochs.clear();
        for Part(part) in parts {
            for name in &part.names {
                match split(*name) {
                    (class, number) if number < NEAR => {
                        self.near[class][number / 64] |= 1 << (number % 64);
                    }
                    _ => self.far.push(*name),
                }
            }
            for epoch in &part.epochs {
                if !self.epochs.contains(epoch) {
                    self.epochs.push(*epoch);
                }
            }
        }
        self.far.sort_unstable();
        self.far.dedup();
        self.epochs.sort_unstable();
        for (class, words) in self.near.iter().enumerate() {
            let mut below = 0;
            for (word, bits) in words.iter().enumerate() {
                self.below[class][word] = below;
                if *bits != 0 {
                    below += bits.count_ones();
                }
            }
            self.nearby[class] = below;
        }
    }

    fn rank(&self, name: u64) -> u32 {
        let (class, number) = split(name);
        if number < NEAR {
            let lower = self.near[class][number / 64] & ((1 << (number % 64)) - 1);
            return self.below[class][number / 64] + lower.count_ones();
        }
        let first = (class as u64) << NUMBER_BITS;
        let place = |name| self.far.partition_point(|other| *other < name) as u32;
        self.nearby[class] + place(name) - place(first)
    }

    /// The rank of every name of a part, in the order in which it lists them; never nothing.
    pub fn write_ranks(&self, Part(part): &Part, bytes: &mut Vec<u8>) {
        put_varint(bytes, part.names.len() as u64);
        for epoch in &part.epochs {
            let rank = self.epochs.partition_point(|other| other < epoch);
            put_varint(bytes, rank as u64);
        }
        for name in &part.names {
            put_varint(bytes, self.rank(*name).into());
        }
    }
}
