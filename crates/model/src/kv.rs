//! The payload of pages: f16 keys and values.

use std::ops::Range;
use std::sync::Arc;

use kernels::{Arena, Piece};
use pages::{Decisions, PageId, Pool, PoolIdentity};
use serde::{Deserialize, Serialize};

use crate::{Config, KvError};

/// f16 NaN. Unwritten and scrubbed slots hold it: a read of one ends in an error of the step
/// (fail closed, loudly), where zeros would end in a plausible wrong answer.
const POISON: u16 = 0x7e00;

/// How a page is laid out: `[layer][keys, values][kv_head][slot][dim]` f16 words, little endian. A
/// page moves as one contiguous run; its filled part is `2 * layers * kv_heads` runs, half of them
/// where values lie in their keys. Two workers exchange pages only if their layouts are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct KvLayout {
    /// Transformer layers.
    pub layers: u32,
    /// Key and value heads.
    pub kv_heads: u32,
    /// Values of a key.
    pub key_dim: u32,
    /// Values of a value; 0 where they are the first ones of its key.
    pub value_dim: u32,
    /// Token slots in a page.
    pub page_size: u32,
}

impl KvLayout {
    /// The layout of `config` with pages of `page_size` tokens. Panics if `page_size` is 0.
    pub fn new(config: &Config, page_size: usize) -> KvLayout {
        assert!(page_size > 0, "a page holds at least one token");
        let narrow = |n: usize| u32::try_from(n).expect("counts are limited at load");
        KvLayout {
            layers: narrow(config.layers),
            kv_heads: narrow(config.kv_heads),
            key_dim: narrow(config.key_dim),
            value_dim: narrow(config.cached_value_dim()),
            page_size: narrow(page_size),
        }
    }

    /// 16-bit words in a page.
    pub fn page_words(&self) -> usize {
        self.layers as usize * self.layer_words()
    }

    /// Bytes in a page.
    pub fn page_bytes(&self) -> usize {
        self.page_words() * 2
    }

    /// Bytes that one token takes.
    pub fn bytes_per_token(&self) -> usize {
        self.page_bytes() / self.page_size as usize
    }

    /// The word ranges of slots `[0, filled)`, in layout order: what may leave a worker (H-17).
    /// Panics if `filled` exceeds the page.
    pub fn filled_runs(&self, filled: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        assert!(
            filled <= self.page_size as usize,
            "{filled} slots of {}",
            self.page_size
        );
        let heads = self.kv_heads as usize;
        let layout = *self;
        (0..self.layers as usize).flat_map(move |layer| {
            let keys = (0..heads).map(move |head| layout.keys(layer, head));
            let values = (0..heads).map(move |head| layout.values(layer, head));
            let all = keys.chain(values).filter(|run| !run.is_empty());
            let slots = layout.page_size as usize;
            all.map(move |run| run.start..run.start + run.len() / slots * filled)
        })
    }

    /// crc32c over exactly the filled slots, in layout order. Panics if `filled` exceeds the page
    /// or `page` has another size.
    pub fn checksum(&self, page: &PageBuf, filled: usize) -> u32 {
        assert_eq!(page.words.len(), self.page_words(), "words of the page");
        self.filled_runs(filled).fold(0, |sum, run| {
            crc32c::crc32c_append(sum, bytemuck::cast_slice(&page.words[run]))
        })
    }

    /// Where the keys of one layer and head lie: `[slot][key_dim]`.
    pub(crate) fn keys(&self, layer: usize, head: usize) -> Range<usize> {
        let words = self.page_size as usize * self.key_dim as usize;
        let start = layer * self.layer_words() + head * words;
        start..start + words
    }

    /// Where the values of one layer and head lie: `[slot][value_dim]`.
    pub(crate) fn values(&self, layer: usize, head: usize) -> Range<usize> {
        let words = self.page_size as usize * self.value_dim as usize;
        let start = self.keys(layer, self.kv_heads as usize).start + head * words;
        start..start + words
    }

    fn layer_words(&self) -> usize {
        let slot = self.kv_heads as usize * (self.key_dim as usize + self.value_dim as usize);
        self.page_size as usize * slot
    }
}

/// The payload of one page.
#[derive(Debug)]
pub struct PageBuf {
    words: Piece<u16>,
}

impl PageBuf {
    /// A page of its own, outside any [`KvMemory`], every slot unreadable (f16 NaN).
    pub fn new(layout: &KvLayout) -> Result<PageBuf, KvError> {
        PageBuf::take(&mut Arena::exact(), layout)
    }

    fn take(arena: &mut Arena, layout: &KvLayout) -> Result<PageBuf, KvError> {
        let words = arena.take(layout.page_words());
        let mut words = words.map_err(|e| KvError::OutOfMemory { bytes: e.bytes })?;
        words.fill(POISON);
        Ok(PageBuf { words })
    }

    /// f16 bits in layout order.
    pub fn words(&self) -> &[u16] {
        &self.words
    }

    /// f16 bits in layout order.
    pub fn words_mut(&mut self) -> &mut [u16] {
        &mut self.words
    }

    /// The same memory as bytes.
    pub fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.words)
    }

    /// The same memory as bytes.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(&mut self.words)
    }
}

/// All pages of one worker, allocated and populated at start-up.
///
/// The ledger (`pages`) decides who may touch a page; this type is the second line of defence. A
/// page that a transfer reads is held by an [`Arc`] of it, a page that a transfer writes is not in
/// the memory at all: writing the former or attending to the latter is an error, by construction.
#[derive(Debug)]
pub struct KvMemory {
    pool: PoolIdentity,
    layout: KvLayout,
    pages: Vec<Option<Arc<PageBuf>>>,
    scrubbed: u64,
}

impl KvMemory {
    /// Allocates the pages of `pool` and writes every one of them, so that the memory is really
    /// there. A step over tables of another pool is refused.
    pub fn allocate<J: Decisions>(layout: KvLayout, pool: &Pool<J>) -> Result<KvMemory, KvError> {
        let pages = pool.size();
        let bytes = pages.saturating_mul(layout.page_bytes());
        let mut all = Vec::new();
        all.try_reserve_exact(pages)
            .map_err(|_| KvError::OutOfMemory { bytes })?;
        let mut arena = Arena::default();
        for _ in 0..pages {
            let page =
                PageBuf::take(&mut arena, &layout).map_err(|_| KvError::OutOfMemory { bytes })?;
            all.push(Some(Arc::new(page)));
        }
        Ok(KvMemory {
            pool: pool.identity(),
            layout,
            pages: all,
            scrubbed: 0,
        })
    }

    /// How pages are laid out.
    pub fn layout(&self) -> &KvLayout {
        &self.layout
    }

    /// Whose pages they are.
    pub fn pool(&self) -> PoolIdentity {
        self.pool
    }

    /// Number of pages.
    pub fn len(&self) -> usize {
        self.pages.len()
    }

    /// Whether there are no pages.
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// The page, to read.
    pub fn page(&self, page: PageId) -> Result<&PageBuf, KvError> {
        self.slot(page)?
            .as_deref()
            .ok_or(KvError::CheckedOut { page })
    }

    /// The page, to write; refused while somebody reads it.
    pub fn page_mut(&mut self, page: PageId) -> Result<&mut PageBuf, KvError> {
        let held = self
            .slot_mut(page)?
            .as_mut()
            .ok_or(KvError::CheckedOut { page })?;
        Arc::get_mut(held).ok_or(KvError::StillRead { page })
    }

    /// A reader's hold on the page, for a send: while it lives the page cannot be written.
    pub fn share(&self, page: PageId) -> Result<Arc<PageBuf>, KvError> {
        self.slot(page)?.clone().ok_or(KvError::CheckedOut { page })
    }

    /// Takes the page out, for a copy into it: until it is checked in nobody can read it.
    pub fn check_out(&mut self, page: PageId) -> Result<PageBuf, KvError> {
        let slot = self.slot_mut(page)?;
        let held = slot.take().ok_or(KvError::CheckedOut { page })?;
        Arc::try_unwrap(held).map_err(|held| {
            *slot = Some(held);
            KvError::StillRead { page }
        })
    }

    /// Puts a page back that was checked out.
    pub fn check_in(&mut self, page: PageId, buf: PageBuf) -> Result<(), KvError> {
        if buf.words.len() != self.layout.page_words() {
            return Err(KvError::OtherSize { page });
        }
        let slot = self.slot_mut(page)?;
        if slot.is_some() {
            return Err(KvError::NotCheckedOut { page });
        }
        *slot = Some(Arc::new(buf));
        Ok(())
    }

    /// Overwrites the whole page (`--scrub`), with f16 NaN rather than zeros: it erases as well,
    /// and a later read of an unwritten slot fails instead of passing for content.
    pub fn scrub(&mut self, page: PageId) -> Result<(), KvError> {
        self.page_mut(page)?.words.fill(POISON);
        self.scrubbed += 1;
        Ok(())
    }

    /// Pages that were scrubbed so far.
    pub fn scrubbed(&self) -> u64 {
        self.scrubbed
    }

    /// Copies slots `[0, filled)` of one page to another (the partly filled last page of a prompt,
    /// once for every choice). The rest of `to` stays as it is. Panics if `filled` exceeds a page.
    pub fn copy_page(&mut self, from: PageId, to: PageId, filled: usize) -> Result<(), KvError> {
        let source = self.share(from)?;
        let runs = self.layout.filled_runs(filled);
        let target = self.page_mut(to)?;
        for run in runs {
            target.words[run.clone()].copy_from_slice(&source.words[run]);
        }
        Ok(())
    }

    /// [`KvLayout::checksum`] of a page.
    pub fn checksum(&self, page: PageId, filled: usize) -> Result<u32, KvError> {
        Ok(self.layout.checksum(self.page(page)?, filled))
    }

    fn slot(&self, page: PageId) -> Result<&Option<Arc<PageBuf>>, KvError> {
        let pages = self.pages.len();
        self.pages
            .get(page.index())
            .ok_or(KvError::NoSuchPage { page, pages })
    }

    fn slot_mut(&mut self, page: PageId) -> Result<&mut Option<Arc<PageBuf>>, KvError> {
        let pages = self.pages.len();
        self.pages
            .get_mut(page.index())
            .ok_or(KvError::NoSuchPage { page, pages })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: KvLayout = KvLayout {
        layers: 2,
        kv_heads: 3,
        key_dim: 16,
        value_dim: 16,
        page_size: 4,
    };

    fn memory() -> KvMemory {
        let config = pages::Config {
            pages: 3,
            page_size: LAYOUT.page_size as u16,
            scrub: false,
        };
        KvMemory::allocate(LAYOUT, &Pool::new(config).0).unwrap()
    }

    #[test]
    fn sizes_follow_the_layout() {
        assert_eq!(LAYOUT.page_words(), 2 * 2 * 3 * 4 * 16);
        assert_eq!(LAYOUT.bytes_per_token(), 2 * 2 * 3 * 16 * 2);
        let runs: Vec<_> = LAYOUT.filled_runs(3).collect();
        assert_eq!(runs.len(), 12);
        assert_eq!(
            (runs[0].clone(), runs[11].clone()),
            (0..48, 11 * 64..11 * 64 + 48)
        );
        assert_eq!(LAYOUT.values(1, 2).start, 11 * 64);
        assert_eq!(LAYOUT.keys(1, 0).start, 6 * 64);
    }

    #[test]
    fn a_checksum_covers_the_filled_slots_and_nothing_else() {
        let mut page = PageBuf::new(&LAYOUT).unwrap();
        page.words_mut()
            .iter_mut()
            .enumerate()
            .for_each(|(i, w)| *w = i as u16);
        let mut bytes = Vec::new();
        for run in LAYOUT.filled_runs(3) {
            run.for_each(|i| bytes.extend((i as u16).to_le_bytes()));
        }
        let sum = LAYOUT.checksum(&page, 3);
        assert_eq!(sum, crc32c::crc32c(&bytes));
        page.words_mut()[3 * 16] ^= 1; // slot 3 of the first run: behind the filled ones
        assert_eq!(LAYOUT.checksum(&page, 3), sum);
        page.words_mut()[3 * 16 - 1] ^= 1;
        assert_ne!(LAYOUT.checksum(&page, 3), sum);
    }

    #[test]
    fn a_page_that_is_read_cannot_be_written() {
        let (mut kv, page) = (memory(), PageId::new(1));
        let reader = kv.share(page).unwrap();
        assert_eq!(kv.page_mut(page).unwrap_err(), KvError::StillRead { page });
        assert_eq!(kv.check_out(page).unwrap_err(), KvError::StillRead { page });
        assert_eq!(kv.scrub(page).unwrap_err(), KvError::StillRead { page });
        assert!(
            kv.page(page).is_ok(),
            "a refused check-out leaves the page where it was"
        );
        drop(reader);
        assert!(kv.page_mut(page).is_ok());
    }

    #[test]
    fn a_page_that_is_being_copied_into_cannot_be_read() {
        let (mut kv, page) = (memory(), PageId::new(2));
        let mut buf = kv.check_out(page).unwrap();
        assert_eq!(kv.page(page).unwrap_err(), KvError::CheckedOut { page });
        assert_eq!(kv.share(page).unwrap_err(), KvError::CheckedOut { page });
        assert_eq!(
            kv.check_out(page).unwrap_err(),
            KvError::CheckedOut { page }
        );
        buf.bytes_mut()[0] = 7;
        kv.check_in(page, buf).unwrap();
        assert_eq!(kv.page(page).unwrap().words()[0], 0x7e07);
        let second = PageBuf::new(&LAYOUT).unwrap();
        assert_eq!(
            kv.check_in(page, second),
            Err(KvError::NotCheckedOut { page })
        );
        let foreign = PageBuf::new(&KvLayout {
            page_size: 8,
            ..LAYOUT
        });
        let _out = kv.check_out(page).unwrap();
        assert_eq!(
            kv.check_in(page, foreign.unwrap()),
            Err(KvError::OtherSize { page })
        );
        let none = PageId::new(3);
        assert_eq!(
            kv.page(none).unwrap_err(),
            KvError::NoSuchPage {
                page: none,
                pages: 3
            }
        );
    }

    #[test]
    fn copies_carry_the_filled_slots_only_and_scrub_erases() {
        let (mut kv, from, to) = (memory(), PageId::new(0), PageId::new(1));
        kv.page_mut(from).unwrap().words_mut().fill(5);
        kv.copy_page(from, to, 2).unwrap();
        let copied = kv.page(to).unwrap().words().to_vec();
        for (i, word) in copied.iter().enumerate() {
            assert_eq!(*word, if i % 64 < 32 { 5 } else { POISON }, "word {i}");
        }
        assert_eq!(kv.checksum(from, 2), kv.checksum(to, 2));
        kv.scrub(to).unwrap();
        assert!(kv.page(to).unwrap().words().iter().all(|w| *w == POISON));
    }
}
