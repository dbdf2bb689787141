//! Angles of the rotary embedding.

use crate::Config;

pub(crate) const FACTORS: &str = "rope_freqs.weight";
pub(crate) const SHORT_FACTORS: &str = "rope_factors_short.weight";
pub(crate) const LONG_FACTORS: &str = "rope_factors_long.weight";

/// Frequencies of the rotated pairs.
#[derive(Clone, Debug)]
pub(crate) struct Rope {
    /// Radians a position, one for each pair.
    frequencies: Vec<f64>,
    /// What cosines and sines are multiplied with.
    magnitude: f64,
}

/// Cosines and sines of a batch of positions, `[token][pair]`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Angles {
    pub(crate) cos: Vec<f32>,
    pub(crate) sin: Vec<f32>,
}

impl Rope {
    /// `factors`, where the file has them, divide the frequencies.
    pub(crate) fn new(config: &Config, factors: Option<&[f32]>) -> Rope {
        let divisor = f64::from(config.rope_position_divisor);
        let factor = |pair: usize| factors.map_or(1.0, |factors| f64::from(factors[pair]));
        Rope::by(config, config.rope_base, |pair| divisor * factor(pair))
    }

    /// That of layers with a window, where it is another.
    pub(crate) fn local(config: &Config) -> Option<Rope> {
        let base = config.local.as_ref()?.rope_base?;
        Some(Rope::by(config, base, |_| 1.0))
    }

    fn by(config: &Config, base: f32, divisor: impl Fn(usize) -> f64) -> Rope {
        let dims = config.rope_dims;
        let frequency = |pair: usize| {
            let exponent = -2.0 * pair as f64 / dims as f64;
            f64::from(base).powf(exponent) / divisor(pair)
        };
        Rope {
            frequencies: (0..dims / 2).map(frequency).collect(),
            magnitude: f64::from(config.rope_magnitude),
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
                angles.cos.push((cos * self.magnitude) as f32);
                angles.sin.push((sin * self.magnitude) as f32);
            }
        }
    }
}
