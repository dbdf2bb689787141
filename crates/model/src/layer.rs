//! The parts of a layer that look at each token by itself.

use std::cell::RefCell;

use kernels::Int8Rows;

use crate::Model;
use crate::architecture::{Activation, Pairs};
use crate::exec::Split;
use crate::forward::Scratch;
use crate::weights::{Feed, Gated, Inputs, Projection};

/// Tokens that one pass over a layer's matrices takes: their activations stay in the cache.
pub(crate) const TOKENS_MAX: usize = 64;

/// Consecutive tokens of a step; every slice is token-major.
pub(crate) struct TokenTile<'a> {
    residual: &'a mut [f32],
    pub(crate) queries: &'a mut [f32],
    pub(crate) keys: &'a mut [f32],
    values: &'a mut [f32],
    attended: &'a [f32],
    pub(crate) cos: &'a [f32],
    pub(crate) sin: &'a [f32],
}

/// Cuts the step's `tokens` into tiles of at most `tile`, for the layer that rotates by `local`.
pub(crate) fn tiles<'a>(
    scratch: &'a mut Scratch,
    tokens: usize,
    tile: usize,
    local: bool,
) -> Vec<TokenTile<'a>> {
    let angles = if local {
        &scratch.local_angles
    } else {
        &scratch.angles
    };
    let mut residual = parts(&mut scratch.residual, tokens, tile);
    let mut queries = parts(&mut scratch.queries, tokens, tile);
    let mut keys = parts(&mut scratch.keys, tokens, tile);
    let mut values = parts(&mut scratch.values, tokens, tile);
    let pairs = angles.cos.len() / tokens.max(1);
    let attended = scratch.attended.len() / tokens.max(1);
    let mut attended = scratch.attended.chunks(tile * attended.max(1));
    let mut cos = angles.cos.chunks(tile * pairs.max(1));
    let mut sin = angles.sin.chunks(tile * pairs.max(1));
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

/// Parts of `tile` tokens; the rows may be empty, the parts are as many all the same.
fn parts(values: &mut [f32], tokens: usize, tile: usize) -> impl Iterator<Item = &mut [f32]> {
    let width = values.len() / tokens.max(1);
    let mut rest = Some(values);
    (0..tokens.div_ceil(tile)).map(move |part| {
        let mine = tile.min(tokens - part * tile) * width;
        let (part, others) = rest.take().unwrap_or_default().split_at_mut(mine);
        rest = Some(others);
        part
    })
}

/// A thread's own buffers.
#[derive(Default)]
pub(crate) struct Local {
    pub(crate) normed: Vec<f32>,
    pub(crate) int8: Int8Rows,
    gate: Vec<f32>,
    up: Vec<f32>,
    pub(crate) projected: Vec<f32>,
    pub(crate) heads: Vec<f32>,
    /// What a head's own matrix takes and gives.
    pub(crate) one_head: [Vec<f32>; 2],
    pub(crate) mixture: crate::mixture::Buffers,
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
        with_local(|local| {
            local.normed.resize(tile.residual.len(), 0.0);
            let (norm, epsilon) = (&weights.attention_norm, config.rms_epsilon);
            let kernels = self.exec.kernels;
            kernels.rms_norm(tile.residual, norm, epsilon, &mut local.normed);
            match &weights.inputs {
                Inputs::Heads(by) => self.head_inputs(by, tile, local, split),
                Inputs::Latent(by) => self.latent_inputs(by, tile, local, split),
            }
        });
    }

    fn head_inputs(
        &self,
        by: &[Projection; 3],
        tile: TokenTile<'_>,
        local: &mut Local,
        split: Split,
    ) {
        let [query, key, value] = by;
        let config = &self.config;
        let rows = self.rows(&local.normed, config.hidden, &mut local.int8);
        let outputs = &mut [
            (&query.matrix, &mut *tile.queries),
            (&key.matrix, &mut *tile.keys),
            (&value.matrix, &mut *tile.values),
        ];
        self.exec.products(split, rows, outputs);
        self.finish_projection(query, tile.queries, &mut local.heads);
        self.finish_projection(key, tile.keys, &mut local.heads);
        self.finish_projection(value, tile.values, &mut local.heads);
        let pairs = self.rope.pairs();
        let angles = tile
            .cos
            .chunks_exact(pairs)
            .zip(tile.sin.chunks_exact(pairs));
        let queries = tile.queries.chunks_exact_mut(config.query_width());
        let keys = tile.keys.chunks_exact_mut(config.key_width());
        for ((queries, keys), (cos, sin)) in queries.zip(keys).zip(angles) {
            self.rotate(queries, config.key_dim, cos, sin);
            self.rotate(keys, config.key_dim, cos, sin);
        }
    }

    /// Rotates the first dimensions of every head of `dim`.
    pub(crate) fn rotate(&self, heads: &mut [f32], dim: usize, cos: &[f32], sin: &[f32]) {
        let kernels = self.exec.kernels;
        match self.config.architecture.pairs {
            Pairs::Neighbours => kernels.rope(heads, dim, cos, sin),
            Pairs::Halves => kernels.rope_halves(heads, dim, cos, sin),
        }
    }

    /// Bias and norm of the heads, where the projection has them.
    fn finish_projection(&self, by: &Projection, values: &mut [f32], heads: &mut Vec<f32>) {
        if let Some(bias) = &by.bias {
            for row in values.chunks_exact_mut(bias.len()) {
                self.exec.kernels.add(row, bias);
            }
        }
        if let Some(norm) = &by.norm {
            heads.clear();
            heads.extend_from_slice(values);
            let epsilon = self.config.rms_epsilon;
            self.exec.kernels.rms_norm(heads, norm, epsilon, values);
        }
    }

    /// Output projection and the feed-forward part, both added to the residual.
    pub(crate) fn after_attention(&self, layer: usize, tile: TokenTile<'_>, split: Split) {
        let (config, weights) = (&self.config, &self.layers[layer]);
        let kernels = self.exec.kernels;
        with_local(|local| {
            let residual = tile.residual;
            local.projected.resize(residual.len(), 0.0);
            let attended = match &weights.inputs {
                Inputs::Heads(_) => tile.attended,
                Inputs::Latent(by) => {
                    self.latent_values(by, tile.attended, local, split);
                    &local.heads
                }
            };
            let width = weights.attention_output.cols();
            let rows = self.rows(attended, width, &mut local.int8);
            let output = (&weights.attention_output, &mut local.projected[..]);
            self.exec.products(split, rows, &mut [output]);
            local.normed.resize(residual.len(), 0.0);
            self.add_normed(residual, &weights.post_attention_norm, local);

            let norm = &weights.feed_forward_norm;
            kernels.rms_norm(residual, norm, config.rms_epsilon, &mut local.normed);
            match &weights.feed_forward {
                Feed::Gated(gated) => self.gated(gated, local, split),
                Feed::Mixture(mixture) => self.mixture(mixture, local, split),
            }
            self.add_normed(residual, &weights.post_feed_forward_norm, local);
        });
    }

    /// Adds `local.projected`, normed before if there is a norm.
    fn add_normed(&self, residual: &mut [f32], norm: &Option<Vec<f32>>, local: &mut Local) {
        let kernels = self.exec.kernels;
        match norm {
            None => kernels.add(residual, &local.projected),
            Some(norm) => {
                let epsilon = self.config.rms_epsilon;
                kernels.rms_norm(&local.projected, norm, epsilon, &mut local.normed);
                kernels.add(residual, &local.normed);
            }
        }
    }

    /// The feed-forward part of `local.normed`, to `local.projected`.
    pub(crate) fn gated(&self, weights: &Gated, local: &mut Local, split: Split) {
        let kernels = self.exec.kernels;
        let (hidden, width) = (self.config.hidden, weights.gate.rows());
        let tokens = local.normed.len() / hidden;
        local.gate.resize(tokens * width, 0.0);
        local.up.resize(tokens * width, 0.0);
        let rows = self.rows(&local.normed, hidden, &mut local.int8);
        let outputs = &mut [
            (&weights.gate, &mut local.gate[..]),
            (&weights.up, &mut local.up[..]),
        ];
        self.exec.products(split, rows, outputs);
        match self.config.architecture.activation {
            Activation::Silu => kernels.swiglu(&mut local.gate, &local.up),
            Activation::Gelu => kernels.geglu(&mut local.gate, &local.up),
        }
        let rows = self.rows(&local.gate, width, &mut local.int8);
        let output = (&weights.down, &mut local.projected[..]);
        self.exec.products(split, rows, &mut [output]);
    }
}
