use super::*;
use crate::{Isa, decode_f16, encode_f16};

const HEAD_DIM: usize = 32;
const GROUP: usize = 3;
const TOKENS: usize = 53;

struct Case {
    queries: Vec<f32>,
    keys: Vec<u16>,
    values: Vec<u16>,
    head_dim: usize,
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
    let width = GROUP * case.head_dim;
    let seen = (first + rows) * case.head_dim;
    let keys = pages(&case.keys[..seen], page_size * case.head_dim);
    let values = pages(&case.values[..seen], page_size * case.head_dim);
    let mut out = vec![f32::NAN; rows * width];
    let attention = Attention {
        queries: &case.queries[first * width..],
        query_stride: width,
        rows,
        group: GROUP,
        head_dim: case.head_dim,
        first_position: first,
        page_size,
        keys: &keys.iter().map(Vec::as_slice).collect::<Vec<_>>(),
        values: &values.iter().map(Vec::as_slice).collect::<Vec<_>>(),
        out: &mut out,
        out_stride: width,
    };
    kernels.attend(attention, &mut AttendScratch::default());
    out
}

fn isas() -> impl Iterator<Item = Kernels> {
    Isa::ALL
        .into_iter()
        .filter_map(|isa| Kernels::new(isa).ok())
}

#[test]
fn attention_matches_its_definition_in_f64() {
    for head_dim in [16, 32, 48, 64, 80, 128] {
        let case = case(head_dim);
        let (mut keys, mut values) = (vec![0.0; case.keys.len()], vec![0.0; case.values.len()]);
        decode_f16(&case.keys, &mut keys);
        decode_f16(&case.values, &mut values);
        for kernels in isas() {
            let got = attend(kernels, &case, 0, TOKENS, 16);
            for (query, got) in got.chunks(head_dim).enumerate() {
                let q = &case.queries[query * head_dim..][..head_dim];
                let expected = reference(q, &keys, &values, query / GROUP + 1);
                for (got, expected) in got.iter().zip(expected) {
                    let error = (f64::from(*got) - expected).abs();
                    assert!(
                        error < 2e-5,
                        "{} {head_dim} {query}: {error}",
                        kernels.isa()
                    );
                }
            }
        }
    }
}

fn reference(q: &[f32], keys: &[f32], values: &[f32], own: usize) -> Vec<f64> {
    let dim = q.len();
    let dot = |k: &[f32]| -> f64 {
        q.iter()
            .zip(k)
            .map(|(q, k)| f64::from(*q) * f64::from(*k))
            .sum()
    };
    let weights: Vec<f64> = keys
        .chunks(dim)
        .take(own)
        .map(|k| (dot(k) / (dim as f64).sqrt()).exp())
        .collect();
    let total: f64 = weights.iter().sum();
    let mut out = vec![0.0; dim];
    for (weight, v) in weights.iter().zip(values.chunks(dim)) {
        out.iter_mut()
            .zip(v)
            .for_each(|(out, v)| *out += weight / total * f64::from(*v));
    }
    out
}

#[test]
fn neither_chunks_nor_pages_show_in_a_single_bit() {
    let case = case(HEAD_DIM);
    let width = GROUP * HEAD_DIM;
    for kernels in isas() {
        let whole = attend(kernels, &case, 0, TOKENS, 16);
        for page_size in [1, 8, 16, 32, 5] {
            for chunk in [1, 2, 7, 16, TOKENS] {
                for first in (0..TOKENS).step_by(chunk) {
                    let rows = chunk.min(TOKENS - first);
                    let part = attend(kernels, &case, first, rows, page_size);
                    let expected = &whole[first * width..][..rows * width];
                    let same = part
                        .iter()
                        .zip(expected)
                        .all(|(a, b)| a.to_bits() == b.to_bits());
                    assert!(
                        same,
                        "{} page {page_size} chunk {chunk} at {first}",
                        kernels.isa()
                    );
                }
            }
        }
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
