//! What the three machines decide, each decision on its own, so that a laboratory can swap exactly
//! one (see [`pages::Decisions`] for those of the ledger).
//!
//! A machine takes its decisions as a type parameter and calls a method where the decision is
//! taken. The product uses [`Sound`](pages::Sound): the provided methods below. They take plain
//! data and give plain data; none of them says when it is asked or carries anything out.

use crate::{Capacity, Limit, Rejection, Spec, StatedPage};
use pages::{Epoch, StatedTag, Tag};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// The decisions of gateway, prefill and decode. Every provided method is the sound one.
pub trait Decisions: pages::Decisions {
    // Gateway.

    /// Whether a pair could ever take the request. The edge asks before anything reaches a worker
    /// (law: capacity is measured, not declared).
    fn fits_pair(self, limit: &Limit, spec: &Spec) -> Result<(), Rejection> {
        limit.admits(spec)
    }

    // Prefill.

    /// What prefill makes of an attempt, asked for its own capacity and again for decode's: what
    /// it will compute, or its final refusal (law: rejected is terminal).
    fn admit_prompt(self, capacity: &Capacity, spec: Spec) -> Result<Spec, Rejection> {
        capacity.admits(&spec).map(|()| spec)
    }

    /// Whether prefill may go on with a ticket for `granted` pages while it holds `held` of them.
    fn ticket_fits(self, granted: usize, held: usize) -> bool {
        granted == held
    }

    // Decode.

    /// Whether decode could ever take what the gateway announced (law: rejected is terminal).
    fn admit_expected(self, capacity: &Capacity, spec: &Spec) -> Result<(), Rejection> {
        capacity.admits(spec)
    }

    /// Whether prefill offers the prompt that the gateway announced: its length and the digest of
    /// its tokens (H-2).
    fn same_prompt(self, expected: (u32, [u8; 32]), offered: (u32, [u8; 32])) -> bool {
        expected == offered
    }

    /// Whether a page was stated under the tag that was granted for it (H-8).
    fn same_tag(self, stated: StatedTag, granted: Tag) -> bool {
        stated == granted
    }

    /// Ordinal of the page that a statement is about; it was the `arrived`-th of this writer.
    fn ordinal_of(self, stated: &StatedPage, arrived: u32) -> u32 {
        let _ = arrived;
        stated.ordinal
    }

    /// Whether a page has the filled slots that this page of this prompt has (H-2).
    fn same_fill(self, stated: u16, expected: u16) -> bool {
        stated == expected
    }

    /// Whether the copy holds the bytes that its writer stated (law: the reader verifies).
    fn same_checksum(self, stated: u32, copied: u32) -> bool {
        stated == copied
    }

    /// Whether everything of this writer is there (H-2): every batch that it stated was taken, and
    /// the pages that were recorded are exactly those that the ticket reserved.
    fn covers(self, arrived: Arrived<'_>) -> bool {
        let numbered = arrived.taken.iter().copied().eq(0..arrived.batches);
        let recorded = arrived.recorded.keys().copied();
        let reserved = arrived.reserved;
        numbered && arrived.pages as usize == reserved.len() && recorded.eq(reserved)
    }

    /// Whether a message about a handoff of life `named` is for this life, `ours` (H-8).
    fn same_life(self, named: Epoch, ours: Epoch) -> bool {
        named == ours
    }
}

/// What one writer has delivered when all have closed.
#[derive(Clone, Debug)]
pub struct Arrived<'a> {
    /// Batches that it said it has stated.
    pub batches: u32,
    /// Pages that it said are in them.
    pub pages: u32,
    /// Numbers of the batches that were taken.
    pub taken: &'a BTreeSet<u32>,
    /// Checksum of every page that was recorded, by ordinal.
    pub recorded: &'a BTreeMap<u32, u32>,
    /// Ordinals of the pages that the ticket reserved.
    pub reserved: Range<u32>,
}

impl Decisions for pages::Sound {}
