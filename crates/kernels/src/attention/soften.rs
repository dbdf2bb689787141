//! From scores to weights.

use std::ops::Range;

use crate::lanes::{LANES, Lanes};

/// Scores of a block to weights in place, for one query that sees `seen` of it; returns the largest
/// score and the sum of weights. Lanes beside `seen` get weight zero as far as whole vectors reach.
///
/// # Safety
/// The CPU has L's features; `seen` is not empty and inside `scores`, whose length is a multiple of
/// 16.
#[inline(always)]
pub(super) unsafe fn weights<L: Lanes>(
    scores: &mut [f32],
    seen: Range<usize>,
    cap: f32,
) -> (f32, f32) {
    let (first, last) = (seen.start / LANES * LANES, seen.end.next_multiple_of(LANES));
    // SAFETY: the caller's contract; chunks have 16 elements.
    unsafe {
        if cap > 0.0 {
            crate::elementwise::cap_in::<L>(&mut scores[first..last], cap);
        }
        scores[first..seen.start].fill(f32::NEG_INFINITY);
        scores[seen.end..last].fill(f32::NEG_INFINITY);
        let mut top = L::splat(f32::NEG_INFINITY);
        for chunk in scores[first..last].chunks_exact(LANES) {
            top = L::max(L::load(chunk.as_ptr()), top);
        }
        let largest = L::largest(top);
        let top = L::splat(largest);
        let mut total = L::splat(0.0);
        for chunk in scores[first..last].chunks_exact_mut(LANES) {
            let weight = L::exp(L::sub(L::load(chunk.as_ptr()), top));
            L::store(chunk.as_mut_ptr(), weight);
            total = L::add(total, weight);
        }
        (largest, L::sum(total))
    }
}

/// e^x of one number, as the lanes compute it.
///
/// # Safety
/// The CPU has L's features.
#[inline(always)]
pub(super) unsafe fn exp<L: Lanes>(x: f32) -> f32 {
    let mut lanes = [0.0; LANES];
    // SAFETY: the caller's contract; 16 elements.
    unsafe { L::store(lanes.as_mut_ptr(), L::exp(L::splat(x))) };
    lanes[0]
}
