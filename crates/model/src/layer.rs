//! The parts of a layer that look at each token by itself.

use std::cell::RefCell;

use kernels::Int8Rows;

use crate::exec::Split;
use crate::forward::Scratch;
use crate::{Config, Model};

/// Tokens that one pass over a layer's matrices takes: their activations stay in the cache.
pub(crate) const TOKENS_MAX: usize = 64;

/// Consecutive tokens of a step; every slice is token-major.
pub(crate) struct TokenTile<'a> {
    residual: &'a mut [f32],
    queries: &'a mut [f32],
    keys: &'a mut [f32],
    values: &'a mut [f32],
    attended: &'a [f32],
    cos: &'a [f32],
    sin: &'a [f32],
}

/// Cuts the step's tokens into tiles of at most `tile` tokens.
pub(crate) fn tiles<'a>(
    scratch: &'a mut Scratch,
    config: &Config,
    pairs: usize,
    tile: usize,
) -> Vec<TokenTile<'a>> {
    let (query, kv) = (config.query_width(), config.kv_width());
    let mut residual = scratch.residual.chunks_mut(tile * config.hidden);
    let mut queries = scratch.queries.chunks_mut(tile * query);
    let mut keys = scratch.keys.chunks_mut(tile * kv);
    let mut values = scratch.values.chunks_mut(tile * kv);
    let mut attended = scratch.attended.chunks(tile * query);
    let mut cos = scratch.angles.cos.chunks(tile * pairs);
    let mut sin = scratch.angles.sin.chunks(tile * pairs);
    std::iter::from_fn(|| {
        Some(TokenTile {
            residual: residual.next()?,
            queries: queries.next()?,
            keys: keys.next()?,
            values: values.next()?,
            attended: attended.next()?,
            cos: cos.next()?,
            sin: sin.next()?,
        })
    })
    .collect()
}

/// A thread's own buffers.
#[derive(Default)]
pub(crate) struct Local {
    pub(crate) normed: Vec<f32>,
    pub(crate) int8: Int8Rows,
    gate: Vec<f32>,
    up: Vec<f32>,
    projected: Vec<f32>,
}

thread_local! {
    static LOCAL: RefCell<Local> = RefCell::default();
}

/// Lends the thread's buffers. A thread that waits for others inside `use_it` may be given another
/// task of the same kind; that one works with buffers of its own.
pub(crate) fn with_local<R>(use_it: impl FnOnce(&mut Local) -> R) -> R {
    LOCAL.with(|local| match local.try_borrow_mut() {
        Ok(mut local) => use_it(&mut local),
        Err(_) => use_it(&mut Local::default()),
    })
}

impl Model {
    /// Norm, projections and rotation: residual to queries, keys and values.
    pub(crate) fn attention_inputs(&self, layer: usize, tile: TokenTile<'_>, split: Split) {
        let (config, weights) = (&self.config, &self.layers[layer]);
        let kernels = self.exec.kernels;
        with_local(|local| {
            local.normed.resize(tile.residual.len(), 0.0);
            let norm = &weights.attention_norm;
            kernels.rms_norm(tile.residual, norm, config.rms_epsilon, &mut local.normed);
            let rows = self.rows(&local.normed, config.hidden, &mut local.int8);
            let outputs = &mut [
                (&weights.query, &mut *tile.queries),
                (&weights.key, &mut *tile.keys),
                (&weights.value, &mut *tile.values),
            ];
            self.exec.products(split, rows, outputs);
        });
        let (dim, pairs) = (config.head_dim, self.rope.pairs());
        let angles = tile
            .cos
            .chunks_exact(pairs)
            .zip(tile.sin.chunks_exact(pairs));
        let queries = tile.queries.chunks_exact_mut(config.query_width());
        let keys = tile.keys.chunks_exact_mut(config.kv_width());
        for ((queries, keys), (cos, sin)) in queries.zip(keys).zip(angles) {
            kernels.rope(queries, dim, cos, sin);
            kernels.rope(keys, dim, cos, sin);
        }
    }

    /// Output projection and the feed-forward part, both added to the residual.
    pub(crate) fn after_attention(&self, layer: usize, tile: TokenTile<'_>, split: Split) {
        let (config, weights) = (&self.config, &self.layers[layer]);
        let kernels = self.exec.kernels;
        with_local(|local| {
            let residual = tile.residual;
            let hidden = config.hidden;
            let tokens = residual.len() / hidden;
            local.projected.resize(residual.len(), 0.0);
            let rows = self.rows(tile.attended, config.query_width(), &mut local.int8);
            let output = (&weights.attention_output, &mut local.projected[..]);
            self.exec.products(split, rows, &mut [output]);
            kernels.add(residual, &local.projected);

            local.normed.resize(residual.len(), 0.0);
            let norm = &weights.feed_forward_norm;
            kernels.rms_norm(residual, norm, config.rms_epsilon, &mut local.normed);
            local.gate.resize(tokens * config.feed_forward, 0.0);
            local.up.resize(tokens * config.feed_forward, 0.0);
            let rows = self.rows(&local.normed, hidden, &mut local.int8);
            let outputs = &mut [
                (&weights.gate, &mut local.gate[..]),
                (&weights.up, &mut local.up[..]),
            ];
            self.exec.products(split, rows, outputs);
            kernels.swiglu(&mut local.gate, &local.up);
            let rows = self.rows(&local.gate, config.feed_forward, &mut local.int8);
            self.exec.products(
                split,
                rows,
                &mut [(&weights.down, &mut local.projected[..])],
            );
            kernels.add(residual, &local.projected);
        });
    }
}
