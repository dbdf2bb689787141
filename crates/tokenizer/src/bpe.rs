//! Byte-pair encoding of one word.
//!
//! Time is n log n in the length of a word whatever is in it, and memory 24 bytes and a heap entry or
//! two for each of its parts: a word is as long as a client likes (a million letters without a space are
//! one).

use std::cmp::Reverse;
use std::collections::hash_map::RandomState;
use std::collections::{BinaryHeap, HashMap};
use std::hash::{BuildHasher, Hasher};

use crate::byte_level;

/// Vocabulary and merges of a byte-level tokenizer, by number.
pub(crate) struct Bpe {
    /// The token of each byte; a byte without one is left out.
    bytes: [Option<u32>; 256],
    merges: Merges,
    /// Words that are taken whole, where the rules have such.
    whole: HashMap<Vec<u8>, u32>,
}

/// Rank and result of joining two tokens, which are packed into the key. Of pairs of equal rank the
/// leftmost is joined first.
pub(crate) struct Merges(HashMap<u64, (u32, u32), Pairs>);

/// What encoding needs and the next word can use again.
#[derive(Default)]
pub(crate) struct Scratch {
    /// The parts of a word, to be joined.
    pub(crate) ids: Vec<u32>,
    next: Vec<u32>,
    prev: Vec<u32>,
    queue: BinaryHeap<Reverse<Merge>>,
}

/// Rank, place of the left token, result: the order is that of the merging.
type Merge = (u32, u32, u32);

/// The id of a token that was joined to its left neighbour; also no neighbour. No vocabulary is so
/// large.
const NONE: u32 = u32::MAX;

impl Bpe {
    /// `vocabulary`: the texts of all tokens. `merges`: left, right and result, the best first.
    pub(crate) fn new<'v>(
        vocabulary: impl Iterator<Item = (&'v str, u32)>,
        merges: impl Iterator<Item = (u32, u32, u32)>,
        ignore_merges: bool,
    ) -> Bpe {
        let mut bpe = Bpe {
            bytes: [None; 256],
            merges: Merges::new(merges.zip(0..)),
            whole: HashMap::new(),
        };
        for (text, id) in vocabulary {
            let Some(bytes) = byte_level::bytes(text) else {
                continue;
            };
            if let [byte] = bytes[..] {
                bpe.bytes[usize::from(byte)] = Some(id);
            }
            if ignore_merges {
                bpe.whole.insert(bytes, id);
            }
        }
        bpe
    }

    /// Appends the tokens of a word.
    pub(crate) fn encode(&self, word: &[u8], scratch: &mut Scratch, into: &mut Vec<u32>) {
        if let Some(id) = self.whole.get(word) {
            into.push(*id);
            return;
        }
        scratch.ids.clear();
        let bytes = word.iter();
        let known = bytes.filter_map(|byte| self.bytes[usize::from(*byte)]);
        scratch.ids.extend(known);
        into.extend(self.merges.join(scratch));
    }
}

impl Merges {
    /// Of each: left, right, result, and its rank.
    pub(crate) fn new(all: impl Iterator<Item = ((u32, u32, u32), u32)>) -> Merges {
        let mut merges = HashMap::with_hasher(Pairs::new());
        for ((left, right, result), rank) in all {
            merges.insert(key(left, right), (rank, result));
        }
        Merges(merges)
    }

    /// What the parts of a word become.
    pub(crate) fn join<'s>(&self, scratch: &'s mut Scratch) -> impl Iterator<Item = u32> + 's {
        let Scratch {
            ids,
            next,
            prev,
            queue,
        } = scratch;
        let len = ids.len() as u32; // bodies are limited to far less
        next.clear();
        next.extend((1..len).chain([NONE]));
        prev.clear();
        prev.extend([NONE].into_iter().chain(0..len.saturating_sub(1)));
        let pairs = ids.windows(2).zip(0..);
        let mut merges = std::mem::take(queue).into_vec();
        merges.clear();
        merges.extend(pairs.filter_map(|(pair, at)| self.merge(pair[0], pair[1], at)));
        *queue = BinaryHeap::from(merges);
        while let Some(Reverse((_, at, result))) = queue.pop() {
            let left = at as usize;
            let right = next[left];
            if ids[left] == NONE || right == NONE {
                continue;
            }
            // The entry is of a pair that is there no more.
            let now = self.0.get(&key(ids[left], ids[right as usize]));
            if now.is_none_or(|(_, id)| *id != result) {
                continue;
            }
            ids[left] = result;
            ids[right as usize] = NONE;
            let after = next[right as usize];
            next[left] = after;
            let before = prev[left];
            if before != NONE {
                queue.extend(self.merge(ids[before as usize], result, before));
            }
            if after != NONE {
                prev[after as usize] = at;
                queue.extend(self.merge(result, ids[after as usize], at));
            }
        }
        ids.iter().copied().filter(|id| *id != NONE)
    }

    fn merge(&self, left: u32, right: u32, at: u32) -> Option<Reverse<Merge>> {
        let (rank, result) = self.0.get(&key(left, right))?;
        Some(Reverse((*rank, at, *result)))
    }
}

fn key(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

/// A hash of pairs: every two neighbours of every word are looked up. Two words of this process's
/// own, so that no file can be made in which all pairs collide.
#[derive(Clone)]
struct Pairs([u64; 2]);

struct PairHash {
    own: [u64; 2],
    hash: u64,
}

impl Pairs {
    fn new() -> Pairs {
        let random = RandomState::new();
        Pairs([random.hash_one(0), random.hash_one(1) | 1])
    }
}

impl BuildHasher for Pairs {
    type Hasher = PairHash;

    fn build_hasher(&self) -> PairHash {
        PairHash {
            own: self.0,
            hash: 0,
        }
    }
}

impl Hasher for PairHash {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, word: u64) {
        let [add, times] = self.own;
        let product = u128::from(self.hash ^ word ^ add) * u128::from(times);
        self.hash = (product >> 64) as u64 ^ product as u64;
    }

    fn finish(&self) -> u64 {
        self.hash
    }
}
