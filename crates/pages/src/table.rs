//! Block tables: which pages hold the tokens of a sequence. Plain data; the proof that a table says
//! the truth is [`crate::Verified`].

use crate::identity::{PoolId, not_compared};
use crate::{Grant, Owner, PageId, Share, Tag};
use serde::Serialize;

/// Which pages hold the tokens of one sequence, in order. Plain data; worth nothing until
/// [`crate::Pool::verify`] has checked it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
pub struct BlockTable {
    pub(crate) owner: Owner,
    pub(crate) page_size: u16,
    pub(crate) entries: Vec<Entry>,
    /// Entries that are shares.
    pub(crate) shared: usize,
    pub(crate) tokens: u32,
    pub(crate) origin: Origin,
    #[serde(skip)]
    pub(crate) checked: Checked,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
pub(crate) struct Entry {
    pub page: PageId,
    pub tag: Tag,
    pub shared: bool,
}

/// Whose pages the entries are. Tags and page numbers of two pools may coincide, so the names
/// alone would not say.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
pub(crate) enum Origin {
    /// No entry yet.
    Nothing,
    /// All of one pool.
    Pool(PoolId),
    /// From this ordinal on another pool's as well.
    Mixed(usize),
}

/// What the last check has covered. Says nothing about the content, so two tables that differ only
/// here are equal.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Checked {
    /// Entries that were right at that moment, from the front.
    pub entries: usize,
    /// Filled slots were compared up to this token.
    pub tokens: u32,
    /// That moment, by the pool's count of changes.
    pub stamp: u64,
}

not_compared!(Checked);

impl BlockTable {
    /// An empty table of `owner`; its lane says which pages it may write.
    pub fn new(owner: Owner, page_size: u16) -> Self {
        Self {
            owner,
            page_size,
            entries: Vec::new(),
            shared: 0,
            tokens: 0,
            origin: Origin::Nothing,
            checked: Checked::default(),
        }
    }

    /// Appends a page that this owner holds.
    pub fn push_own(&mut self, grant: &Grant) {
        self.comes_from(grant.pool(), self.entries.len());
        self.entries.push(Entry {
            page: grant.page(),
            tag: grant.tag(),
            shared: false,
        });
    }

    /// Appends a cached page of the same domain.
    pub fn push_shared(&mut self, share: &Share) {
        self.comes_from(share.pool(), self.entries.len());
        self.shared += 1;
        self.entries.push(Entry {
            page: share.page(),
            tag: share.tag(),
            shared: true,
        });
    }

    /// Records that the tokens up to `tokens` are written.
    pub fn advance_to(&mut self, tokens: u32) {
        self.tokens = tokens;
    }

    /// Tokens written so far.
    pub const fn tokens(&self) -> u32 {
        self.tokens
    }

    /// Token slots that the pages of the table have.
    pub fn capacity(&self) -> u32 {
        let slots = self.entries.len() as u64 * u64::from(self.page_size);
        u32::try_from(slots).unwrap_or(u32::MAX)
    }

    /// Whose table it is.
    pub const fn owner(&self) -> Owner {
        self.owner
    }

    /// The pages, in order. Only names: what may be attended to is [`crate::Verified`].
    pub fn pages(&self) -> impl ExactSizeIterator<Item = PageId> + '_ {
        self.entries.iter().map(|entry| entry.page)
    }

    fn comes_from(&mut self, pool: Option<PoolId>, ordinal: usize) {
        self.origin = match (self.origin, pool) {
            (Origin::Nothing, Some(pool)) => Origin::Pool(pool),
            (Origin::Pool(known), Some(pool)) if known.is(pool) => Origin::Pool(known),
            (Origin::Mixed(first), _) => Origin::Mixed(first),
            _ => Origin::Mixed(ordinal),
        };
    }
}
