//! What a step returns.

use crate::{Error, Quantity};

/// Logits of the positions that were asked for, all finite.
#[derive(Clone, Debug, Default)]
pub struct Logits {
    pub(crate) vocab: usize,
    /// `(sequence, absolute position)` of every row, in the order of the step.
    pub(crate) rows: Vec<(usize, usize)>,
    /// `[row][vocab]`.
    pub(crate) values: Vec<f32>,
}

impl Logits {
    /// The logits of the last new token of sequence `sequence` of the step, if it asked for any.
    pub fn last(&self, sequence: usize) -> Option<&[f32]> {
        let row = self
            .rows
            .iter()
            .rposition(|(owner, _)| *owner == sequence)?;
        Some(&self.values[row * self.vocab..][..self.vocab])
    }

    /// Every row of sequence `sequence`, with its absolute position.
    pub fn of(&self, sequence: usize) -> impl Iterator<Item = (usize, &[f32])> {
        self.iter()
            .filter(move |(owner, ..)| *owner == sequence)
            .map(|(_, at, row)| (at, row))
    }

    /// Every row: sequence, absolute position, logits.
    pub fn iter(&self) -> impl Iterator<Item = (usize, usize, &[f32])> {
        let rows = self
            .rows
            .iter()
            .zip(self.values.chunks_exact(self.vocab.max(1)));
        rows.map(|((sequence, position), row)| (*sequence, *position, row))
    }

    /// A row that is not finite is an error: a NaN compares as nothing and would sample as token 0.
    pub(crate) fn check_finite(&self) -> Result<(), Error> {
        for (sequence, position, row) in self.iter() {
            if !row.iter().fold(true, |finite, v| finite & v.is_finite()) {
                return Err(Error::NotFinite {
                    what: Quantity::Logit,
                    sequence,
                    position,
                });
            }
        }
        Ok(())
    }
}
