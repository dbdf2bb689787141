//! Parts of a world that are written once, however many worlds share them.
//!
//! Most steps change one machine of three and one or two of the lives and connections around them.
//! What a part looks like apart from what things are called in it, its **skeleton**, is kept with it
//! until it changes: in the place of every identifier stands its place among those of its class in
//! this part alone. A world is then the skeletons of its parts and, for each of them, the rank in
//! the whole world of every identifier that occurs in it. Two worlds are equal exactly if both are:
//! ranks in the whole determine the places in the part, and the two together say what
//! [`Canonical::value`](super::Canonical::value) would have written.

use super::{Class, Mark, NUMBER_BITS, Raw, put_varint};
use serde::{Serialize, Serializer};
use std::cell::RefCell;
use std::sync::{Arc, OnceLock};

/// A part of a world, without the parts inside it that are written for themselves.
#[derive(Clone, Debug)]
pub struct Part(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    skeleton: Vec<u8>,
    /// Identifiers in it, each once, in order; those of epochs are apart.
    names: Vec<u64>,
    epochs: Vec<u128>,
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
            if let Err(error) = part.serialize(&mut *raw) {
                panic!("a part of a world that cannot be encoded: {error}");
            }
            Self::of(raw)
        })
    }

    fn of(raw: &mut Raw) -> Self {
        raw.rank_epochs();
        let epoch = Class::Epoch as u64;
        let keys = raw.marks.iter().map(|mark| mark.key);
        let mut names: Vec<u64> = keys.filter(|key| key >> NUMBER_BITS != epoch).collect();
        names.sort_unstable();
        names.dedup();
        let mut epochs = raw.epochs.clone();
        epochs.sort_unstable();
        let mut skeleton = Vec::with_capacity(raw.bytes.len() + raw.marks.len() + names.len());
        let mut from = 0;
        for Mark { at, key } in &raw.marks {
            skeleton.extend_from_slice(&raw.bytes[from..*at as usize]);
            from = *at as usize;
            if key >> NUMBER_BITS == epoch {
                put_varint(&mut skeleton, key & ((1 << NUMBER_BITS) - 1));
            } else {
                put_varint(
                    &mut skeleton,
                    names.partition_point(|name| name < key) as u64,
                );
            }
        }
        skeleton.extend_from_slice(&raw.bytes[from..]);
        // Of which classes they are.
        skeleton.extend(names.iter().map(|name| (name >> NUMBER_BITS) as u8));
        let inside = raw.apart.unwrap_or_default();
        Self(Arc::new(Inner {
            skeleton,
            names,
            epochs,
            inside,
            skeleton_at: OnceLock::new(),
            ranked_at: OnceLock::new(),
        }))
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

/// The names of a whole world.
#[derive(Default)]
pub(super) struct Census {
    names: Vec<u64>,
    epochs: Vec<u128>,
    begins: [usize; Class::COUNT],
}

impl Census {
    pub fn take(&mut self, parts: &[Part]) {
        self.names.clear();
        self.epochs.clear();
        for Part(part) in parts {
            self.names.extend_from_slice(&part.names);
            self.epochs.extend_from_slice(&part.epochs);
        }
        self.names.sort(); // which sees that there are a few sorted runs
        self.names.dedup();
        self.epochs.sort_unstable();
        self.epochs.dedup();
        for (at, key) in self.names.iter().enumerate().rev() {
            self.begins[(key >> NUMBER_BITS) as usize] = at;
        }
    }

    /// The rank of every name of a part, in the order in which it lists them; never nothing.
    pub fn write_ranks(&self, Part(part): &Part, bytes: &mut Vec<u8>) {
        put_varint(bytes, part.names.len() as u64);
        for epoch in &part.epochs {
            let rank = self.epochs.partition_point(|other| other < epoch);
            put_varint(bytes, rank as u64);
        }
        for name in &part.names {
            let at = self.names.partition_point(|other| other < name);
            let begin = self.begins[(name >> NUMBER_BITS) as usize];
            put_varint(bytes, (at - begin) as u64);
        }
    }
}
