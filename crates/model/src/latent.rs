//! Attention whose keys and values are made of one latent row a token.
//!
//! The cache holds the row and the rotated part of the key, once for all heads. A head's score of a
//! key is `q · (K r)`, K being its matrix and r the row, which is `(Kᵀ q) · r`; likewise its value is
//! V times the weighted sum of rows. So attention itself is that of many query heads over one KV
//! head whose keys are row and rotated part and whose values are the first part of its keys.

use kernels::Matrix;

use crate::Model;
use crate::exec::Split;
use crate::layer::{Local, TokenTile};
use crate::weights::LatentInputs;

impl Model {
    pub(crate) fn latent_inputs(
        &self,
        by: &LatentInputs,
        tile: TokenTile<'_>,
        local: &mut Local,
        split: Split,
    ) {
        let config = &self.config;
        let (heads, dim) = (config.heads, by.query.rows() / config.heads);
        let (width, row, rope) = (config.key_dim, config.value_dim, config.rope_dims);
        let mut queries = std::mem::take(&mut local.heads);
        queries.resize(tile.keys.len() / width * heads * dim, 0.0);
        let rows = self.rows(&local.normed, config.hidden, &mut local.int8);
        let outputs = &mut [(&by.query, &mut queries[..]), (&by.row, &mut *tile.keys)];
        self.exec.products(split, rows, outputs);

        let own = tile.queries.chunks_exact_mut(heads * width);
        let tokens = own.zip(queries.chunks_exact(heads * dim));
        let angles = (tile.cos.chunks_exact(rope / 2)).zip(tile.sin.chunks_exact(rope / 2));
        let keys = tile.keys.chunks_exact_mut(width);
        for (((own, made), key), (cos, sin)) in tokens.zip(keys).zip(angles) {
            let (key, rotated) = key.split_at_mut(row);
            local.normed.clear();
            local.normed.extend_from_slice(key);
            let (kernels, epsilon) = (self.exec.kernels, config.rms_epsilon);
            kernels.rms_norm(&local.normed, &by.norm, epsilon, key);
            self.rotate(rotated, rope, cos, sin);
            for (own, made) in own.chunks_exact_mut(width).zip(made.chunks_exact(dim)) {
                own[row..].copy_from_slice(&made[dim - rope..]);
                self.rotate(&mut own[row..], rope, cos, sin);
            }
        }
        let (from, to) = ((&queries[..], dim), (&mut *tile.queries, width));
        self.each_head(&by.keys, from, to, local, split);
        local.heads = queries;
    }

    /// What was attended to, as values, to `local.heads`.
    pub(crate) fn latent_values(
        &self,
        by: &LatentInputs,
        attended: &[f32],
        local: &mut Local,
        split: Split,
    ) {
        let row = self.config.value_dim;
        let dim = by.values[0].rows();
        let mut values = std::mem::take(&mut local.heads);
        values.resize(attended.len() / row * dim, 0.0);
        let to = (&mut values[..], dim);
        self.each_head(&by.values, (attended, row), to, local, split);
        local.heads = values;
    }

    /// The product of every head with its own matrix: `[token][head]` with the given distance
    /// between heads, from the first values of each to the first values of each.
    fn each_head(
        &self,
        matrices: &[Matrix],
        from: (&[f32], usize),
        to: (&mut [f32], usize),
        local: &mut Local,
        split: Split,
    ) {
        let heads = matrices.len();
        let [inputs, outputs] = &mut local.one_head;
        for (head, matrix) in matrices.iter().enumerate() {
            let (cols, rows) = (matrix.cols(), matrix.rows());
            inputs.clear();
            for of in from.0.chunks_exact(from.1).skip(head).step_by(heads) {
                inputs.extend_from_slice(&of[..cols]);
            }
            outputs.resize(inputs.len() / cols * rows, 0.0);
            let activations = self.rows(inputs, cols, &mut local.int8);
            let output = (matrix, &mut outputs[..]);
            self.exec.products(split, activations, &mut [output]);
            let targets = to.0.chunks_exact_mut(to.1).skip(head).step_by(heads);
            for (target, values) in targets.zip(outputs.chunks_exact(rows)) {
                target[..rows].copy_from_slice(values);
            }
        }
    }
}
