//! Angles of the rotary embedding.

use crate::Config;

/// Frequencies of the rotated pairs.
#[derive(Clone, Debug)]
pub(crate) struct Rope {
    /// Radians a position, one for each pair.
    frequencies: Vec<f64>,
}

/// Cosines and sines of a batch of positions, `[token][pair]`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Angles {
    pub(crate) cos: Vec<f32>,
    pub(crate) sin: Vec<f32>,
}

impl Rope {
    /// `factors`, where the file has them (`rope_freqs.weight`), divide the frequencies.
    pub(crate) fn new(config: &Config, factors: Option<&[f32]>) -> Rope {
        let dims = config.rope_dims;
        let frequency = |pair: usize| {
            let exponent = -2.0 * pair as f64 / dims as f64;
            let factor = factors.map_or(1.0, |factors| f64::from(factors[pair]));
            let divisor = f64::from(config.rope_position_divisor) * factor;
            f64::from(config.rope_base).powf(exponent) / divisor
        };
        Rope {
            frequencies: (0..dims / 2).map(frequency).collect(),
        }
    }

    /// Pairs that are rotated in each head.
    pub(crate) fn pairs(&self) -> usize {
        self.frequencies.len()
    }

    /// Fills `angles` for `positions`, in f64 up to the end: an f32 angle would be off by half a
    /// thousandth at position 8,000.
    pub(crate) fn angles(&self, positions: impl Iterator<Item = usize>, angles: &mut Angles) {
        angles.cos.clear();
        angles.sin.clear();
        for position in positions {
            for frequency in &self.frequencies {
                let (sin, cos) = (position as f64 * frequency).sin_cos();
                angles.cos.push(cos as f32);
                angles.sin.push(sin as f32);
            }
        }
    }
}
