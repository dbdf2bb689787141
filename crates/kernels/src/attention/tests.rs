use super::*;
use crate::{Isa, decode_f16, encode_f16};

const HEAD_DIM: usize = 32;
const GROUP: usize = 3;
/// Two blocks and a part of a third.
const TOKENS: usize = 2 * BLOCK + 21;

struct Case {
    queries: Vec<f32>,
    keys: Vec<u16>,
    values: Vec<u16>,
    head_dim: usize,
    /// Of the values; those of a case whose values lie in its keys are shorter than a slot.
    value_dim: usize,
    cap: f32,
    window: usize,
}

/// Each form that attention takes.
fn forms() -> Vec<Case> {
    let form = |change: &dyn Fn(&mut Case)| {
        let mut form = case(HEAD_DIM);
        change(&mut form);
        form
    };
    let mut forms: Vec<Case> = [16, 32, 48, 64, 80, 128].map(case).into();
    forms.push(form(&|form| form.cap = 1.5));
    forms.extend(
        [1, 2, 7, 16, 17, 52, BLOCK, BLOCK + 1, TOKENS - 1]
            .map(|window| form(&|form| form.window = window)),
    );
    forms.push(form(&|form| (form.cap, form.window) = (2.0, 20)));
    forms.push(form(&|form| {
        form.values = form.keys.clone();
        form.value_dim = 16;
    }));
    forms
}

fn case(head_dim: usize) -> Case {
    let noise = |seed: usize, n: usize| -> Vec<f32> {
        (0..n)
            .map(|i| ((i * 7919 + seed * 31) % 997) as f32 / 250.0 - 2.0)
            .collect()
    };
    let f16 = |values: Vec<f32>| {
        let mut out = vec![0; values.len()];
        encode_f16(&values, &mut out);
        out
    };
    Case {
        queries: noise(1, TOKENS * GROUP * head_dim),
        keys: f16(noise(2, TOKENS * head_dim)),
        values: f16(noise(3, TOKENS * head_dim)),
        head_dim,
        value_dim: head_dim,
        cap: 0.0,
        window: usize::MAX,
    }
}

/// Cuts contiguous slots into pages; slots behind the last token hold f16 NaN.
fn pages(slots: &[u16], page: usize) -> Vec<Vec<u16>> {
    slots
        .chunks(page)
        .map(|chunk| {
            let mut page_slots = chunk.to_vec();
            page_slots.resize(page, 0x7e00);
            page_slots
        })
        .collect()
}

/// Attends rows `first..first + rows` in one call; later tokens are not even in the pages.
fn attend(kernels: Kernels, case: &Case, first: usize, rows: usize, page_size: usize) -> Vec<f32> {
    attend_in(kernels, case, first, rows, page_size, None)
}

/// The same in pieces of so many blocks, last ones first, in parts that have served another call.
fn attend_in(
    kernels: Kernels,
    case: &Case,
    first: usize,
    rows: usize,
    page_size: usize,
    piece: Option<usize>,
) -> Vec<f32> {
    let width = GROUP * case.head_dim;
    let out_width = GROUP * case.value_dim;
    let seen = (first + rows) * case.head_dim;
    let keys = pages(&case.keys[..seen], page_size * case.head_dim);
    let values = pages(&case.values[..seen], page_size * case.head_dim);
    let mut out = vec![f32::NAN; rows * out_width];
    let attention = Attention {
        queries: &case.queries[first * width..],
        query_stride: width,
        rows,
        group: GROUP,
        key_dim: case.head_dim,
        value_dim: case.value_dim,
        value_stride: case.head_dim,
        scale: 1.0 / (case.head_dim as f32).sqrt(),
        cap: case.cap,
        window: case.window,
        first_position: first,
        page_size,
        keys: &keys.iter().map(Vec::as_slice).collect::<Vec<_>>(),
        values: &values.iter().map(Vec::as_slice).collect::<Vec<_>>(),
    };
    let into = Attended {
        values: &mut out,
        stride: out_width,
    };
    let scratch = &mut AttendScratch::default();
    let Some(piece) = piece else {
        kernels.attend(&attention, into, scratch);
        return out;
    };
    let mut used = AttendPart::default();
    used.begin(&attention);
    used.sums.fill(f32::NAN);
    let blocks = attention.blocks();
    let mut parts = vec![used; blocks.len()];
    let ranges = blocks.clone().step_by(piece);
    let pieces: Vec<_> = ranges.zip(parts.chunks_mut(piece)).collect();
    for (start, parts) in pieces.into_iter().rev() {
        let blocks = start..start + parts.len();
        kernels.attend_blocks(&attention, blocks, parts, scratch);
    }
    kernels.join(&attention, parts.iter(), into, scratch);
    out
}

fn isas() -> impl Iterator<Item = Kernels> {
    Isa::ALL
        .into_iter()
        .filter_map(|isa| Kernels::new(isa).ok())
}

#[test]
fn attention_matches_its_definition_in_f64() {
    for case in forms() {
        let (dim, value_dim) = (case.head_dim, case.value_dim);
        let (mut keys, mut values) = (vec![0.0; case.keys.len()], vec![0.0; case.values.len()]);
        decode_f16(&case.keys, &mut keys);
        decode_f16(&case.values, &mut values);
        for kernels in isas() {
            let got = attend(kernels, &case, 0, TOKENS, 16);
            for (query, got) in got.chunks(value_dim).enumerate() {
                let q = &case.queries[query * dim..][..dim];
                let expected = reference(&case, q, &keys, &values, query / GROUP + 1);
                for (got, expected) in got.iter().zip(expected) {
                    let error = (f64::from(*got) - expected).abs();
                    let form = (dim, value_dim, case.cap, case.window);
                    assert!(error < 2e-5, "{} {form:?} {query}: {error}", kernels.isa());
                }
            }
        }
    }
}

fn reference(case: &Case, q: &[f32], keys: &[f32], values: &[f32], own: usize) -> Vec<f64> {
    let dim = q.len();
    let score = |k: &[f32]| -> f64 {
        let product = |(q, k): (&f32, &f32)| f64::from(*q) * f64::from(*k);
        let score = q.iter().zip(k).map(product).sum::<f64>() / (dim as f64).sqrt();
        match f64::from(case.cap) {
            0.0 => score,
            cap => cap * (score / cap).tanh(),
        }
    };
    let seen = own.saturating_sub(case.window)..own;
    let weights: Vec<f64> = keys.chunks(dim).map(|k| score(k).exp()).collect();
    let total: f64 = weights[seen.clone()].iter().sum();
    let mut out = vec![0.0; case.value_dim];
    for (weight, v) in weights
        .iter()
        .zip(values.chunks(dim))
        .take(own)
        .skip(seen.start)
    {
        out.iter_mut()
            .zip(v)
            .for_each(|(out, v)| *out += weight / total * f64::from(*v));
    }
    out
}

#[test]
fn neither_chunks_nor_pages_show_in_a_single_bit() {
    for case in forms() {
        let width = GROUP * case.value_dim;
        for kernels in isas() {
            let whole = attend(kernels, &case, 0, TOKENS, 16);
            for (page_size, chunk) in [
                (1, 7),
                (16, 2),
                (32, 16),
                (5, 53),
                (5, 7),
                (16, 1),
                (64, 120),
            ] {
                for first in (0..TOKENS).step_by(chunk) {
                    let rows = chunk.min(TOKENS - first);
                    let part = attend(kernels, &case, first, rows, page_size);
                    let expected = &whole[first * width..][..rows * width];
                    let same = part
                        .iter()
                        .zip(expected)
                        .all(|(a, b)| a.to_bits() == b.to_bits());
                    let form = (case.head_dim, case.value_dim, case.cap, case.window);
                    assert!(
                        same,
                        "{} {form:?} page {page_size} chunk {chunk} at {first}",
                        kernels.isa()
                    );
                }
            }
        }
    }
}

/// Several threads may share one row.
#[test]
fn pieces_of_blocks_show_in_no_bit() {
    let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
    for case in forms() {
        for kernels in isas() {
            for (first, rows) in [(TOKENS - 1, 1), (BLOCK - 2, BLOCK + 4), (0, TOKENS), (3, 1)] {
                let whole = bits(attend(kernels, &case, first, rows, 16));
                for piece in [1, 2] {
                    let pieces = attend_in(kernels, &case, first, rows, 16, Some(piece));
                    let form = (case.head_dim, case.value_dim, case.cap, case.window);
                    let isa = kernels.isa();
                    assert!(
                        bits(pieces) == whole,
                        "{isa} {form:?} at {first}, {rows} rows"
                    );
                }
            }
        }
    }
}

/// What lies before a window is not read: nobody need have it any longer.
#[test]
fn what_lies_before_the_window_counts_for_nothing() {
    for kernels in isas() {
        let mut case = case(HEAD_DIM);
        case.window = 5;
        let whole = attend(kernels, &case, 0, TOKENS, 16);
        let (first, rows) = (30, 4);
        for slot in [&mut case.keys, &mut case.values] {
            slot[..(first - 4) * HEAD_DIM].fill(0x7e00);
        }
        let part = attend(kernels, &case, first, rows, 16);
        let width = GROUP * HEAD_DIM;
        assert_eq!(
            part,
            whole[first * width..][..rows * width],
            "{}",
            kernels.isa()
        );
    }
}

#[test]
fn a_nan_key_or_value_reaches_the_output() {
    for kernels in isas() {
        for poisoned in 0..2 {
            let mut case = case(HEAD_DIM);
            let bits = if poisoned == 0 {
                &mut case.keys
            } else {
                &mut case.values
            };
            bits[5 * HEAD_DIM + 3] = 0x7e00;
            let out = attend(kernels, &case, 0, 8, 16);
            let width = GROUP * HEAD_DIM;
            assert!(
                out[..5 * width].iter().all(|v| v.is_finite()),
                "rows before it"
            );
            assert!(
                out[5 * width..]
                    .chunks(HEAD_DIM)
                    .all(|h| h.iter().any(|v| v.is_nan()))
            );
        }
    }
}
