//! What a token costs at the least: the yardstick for what a machine could do.

use crate::Model;
use crate::weights::{Feed, Gated, Inputs, Layer};
use kernels::Matrix;
use std::ops::Add;

/// Weights that are read, and products with them. Attention comes on top, and grows with what is
/// attended to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Bytes of packed weights.
    pub bytes: u64,
    /// Multiplications.
    pub products: u64,
}

impl Add for Cost {
    type Output = Cost;

    fn add(self, other: Cost) -> Cost {
        Cost {
            bytes: self.bytes + other.bytes,
            products: self.products + other.products,
        }
    }
}

impl Model {
    /// Of one token in all layers; of a mixture, of the experts that it uses.
    pub fn cost_of_layers(&self) -> Cost {
        let used = self
            .config
            .experts
            .as_ref()
            .map_or(0, |experts| experts.used);
        let layers = self.layers.iter().map(|layer| of_layer(layer, used));
        layers.fold(Cost::default(), Add::add)
    }

    /// Of the logits that follow one token.
    pub fn cost_of_head(&self) -> Cost {
        of(self.output.as_ref().unwrap_or(&self.embedding))
    }
}

fn of_layer(layer: &Layer, used: usize) -> Cost {
    let inputs: Vec<&Matrix> = match &layer.inputs {
        Inputs::Heads(heads) => heads.iter().map(|head| &head.matrix).collect(),
        Inputs::Latent(latent) => [&latent.query, &latent.row]
            .into_iter()
            .chain(&latent.keys)
            .chain(&latent.values)
            .collect(),
    };
    let feed = match &layer.feed_forward {
        Feed::Gated(gated) => of_gated(gated),
        Feed::Mixture(mixture) => {
            let experts = mixture.experts.iter().take(used).chain(&mixture.shared);
            experts.map(of_gated).fold(of(&mixture.router), Add::add)
        }
    };
    let others = inputs.into_iter().chain([&layer.attention_output]);
    others.map(of).fold(feed, Add::add)
}

fn of_gated(gated: &Gated) -> Cost {
    [&gated.gate, &gated.up, &gated.down]
        .map(of)
        .into_iter()
        .fold(Cost::default(), Add::add)
}

fn of(matrix: &Matrix) -> Cost {
    Cost {
        bytes: matrix.bytes() as u64,
        products: matrix.rows() as u64 * matrix.cols() as u64,
    }
}
