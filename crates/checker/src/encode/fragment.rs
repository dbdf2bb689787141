//! Parts of a world that are written once and put into the bytes of every world that has them.
//!
//! Most steps change one machine of three. A part is kept as it stands before its identifiers have
//! their ranks, which depend on the whole; so it is the same part in every world that shares it.

use super::{Class, Mark, NUMBER_BITS, Raw};
use serde::{Serialize, Serializer};
use std::cell::RefCell;
use std::sync::Arc;

/// A part of a world, written.
#[derive(Clone)]
pub struct Fragment(Arc<[u8]>);

thread_local! {
    static SPACE: RefCell<Raw> = RefCell::default();
}

/// By this name the serializer knows one.
pub(super) const NAME: &str = "checker::encode::Fragment";

impl Fragment {
    /// Writes a part. It must be one that brings its own scope along (a machine), because what is
    /// around it is not known here.
    ///
    /// # Panics
    /// If the value cannot be written.
    pub fn new<T: Serialize + ?Sized>(part: &T) -> Self {
        SPACE.with_borrow_mut(|raw| {
            raw.clear();
            raw.depth = 2;
            if let Err(error) = part.serialize(&mut *raw) {
                panic!("a part of a world that cannot be encoded: {error}");
            }
            Self::of(raw)
        })
    }

    fn of(raw: &Raw) -> Self {
        let lengths = [raw.bytes.len(), raw.marks.len(), raw.epochs.len()];
        let whole = 12 + raw.bytes.len() + raw.marks.len() * 12 + raw.epochs.len() * 16;
        let mut bytes = Vec::with_capacity(whole);
        lengths
            .iter()
            .for_each(|n| bytes.extend_from_slice(&(*n as u32).to_le_bytes()));
        for Mark { at, key } in &raw.marks {
            bytes.extend_from_slice(&at.to_le_bytes());
            bytes.extend_from_slice(&key.to_le_bytes());
        }
        raw.epochs
            .iter()
            .for_each(|epoch| bytes.extend_from_slice(&epoch.to_le_bytes()));
        bytes.extend_from_slice(&raw.bytes);
        Self(bytes.into())
    }
}

/// Only for [`super::Canonical`]: to another serializer it is a string of bytes that says nothing.
impl Serialize for Fragment {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_newtype_struct(NAME, &Bytes(&self.0))
    }
}

struct Bytes<'a>(&'a [u8]);

impl Serialize for Bytes<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.0)
    }
}

fn take<const N: usize>(bytes: &mut &[u8]) -> [u8; N] {
    let (first, rest) = bytes.split_first_chunk().expect("a fragment is whole");
    *bytes = rest;
    *first
}

impl Raw {
    /// Puts a part where it belongs, as a section of its own.
    pub(super) fn insert(&mut self, mut part: &[u8]) {
        let part = &mut part;
        let [_, marks, epochs] = [(); 3].map(|()| u32::from_le_bytes(take(part)) as usize);
        let start = self.bytes.len() as u32;
        let first = self.marks.len();
        for _ in 0..marks {
            let at = start + u32::from_le_bytes(take(part));
            let key = u64::from_le_bytes(take(part));
            self.marks.push(Mark { at, key });
        }
        let epochs = (0..epochs).map(|_| u128::from_le_bytes(take(part)));
        let places: Vec<u64> = epochs.map(|epoch| self.epoch(epoch)).collect();
        let epoch = (Class::Epoch as u64) << NUMBER_BITS;
        for mark in &mut self.marks[first..] {
            if mark.key >> NUMBER_BITS == Class::Epoch as u64 {
                mark.key = epoch | places[(mark.key - epoch) as usize];
            }
        }
        self.bytes.extend_from_slice(part);
        self.cut();
    }

    /// The place of an epoch among those that occur.
    pub(super) fn epoch(&mut self, epoch: u128) -> u64 {
        let known = self.epochs.iter().position(|known| *known == epoch);
        let at = known.unwrap_or(self.epochs.len());
        if known.is_none() {
            self.epochs.push(epoch);
        }
        at as u64
    }
}
