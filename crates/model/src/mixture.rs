//! A feed-forward part that is a mixture of experts.
//!
//! Which experts a token is given, and in which order their results are added (from the likeliest
//! on), is a function of the token alone; tokens of one expert only share the reading of its weights.

use kernels::Rows;

use crate::exec::Split;
use crate::layer::Local;
use crate::weights::Mixture;
use crate::{Experts, Model};

/// A thread's buffers.
#[derive(Default)]
pub(crate) struct Buffers {
    scores: Vec<f32>,
    /// `[token][place]`: expert and weight.
    chosen: Vec<(usize, f32)>,
    inputs: Vec<f32>,
    /// `[token][place][hidden]`.
    results: Vec<f32>,
}

impl Model {
    /// The mixture of `local.normed`, to `local.projected`.
    pub(crate) fn mixture(&self, weights: &Mixture, local: &mut Local, split: Split) {
        let Some(experts) = &self.config.experts else {
            unreachable!("weights of a mixture are loaded by the configuration of one");
        };
        let (hidden, used) = (self.config.hidden, experts.used);
        let mut own = std::mem::take(&mut local.mixture);
        std::mem::swap(&mut own.inputs, &mut local.normed);
        let tokens = own.inputs.len() / hidden;
        self.choose(weights, experts, &mut own, split);
        own.results.resize(tokens * used * hidden, 0.0);
        for (index, expert) in weights.experts.iter().enumerate() {
            let all = own.chosen.iter().enumerate();
            let mine = all.filter(|(_, (chosen, _))| *chosen == index);
            let places: Vec<usize> = mine.map(|(place, _)| place).collect();
            if places.is_empty() {
                continue;
            }
            local.normed.clear();
            for place in &places {
                let input = &own.inputs[place / used * hidden..][..hidden];
                local.normed.extend_from_slice(input);
            }
            local.projected.resize(places.len() * hidden, 0.0);
            self.gated(expert, local, split);
            for (place, result) in places.iter().zip(local.projected.chunks_exact(hidden)) {
                own.results[place * hidden..][..hidden].copy_from_slice(result);
            }
        }
        std::mem::swap(&mut own.inputs, &mut local.normed);
        local.projected.clear();
        local.projected.resize(tokens * hidden, 0.0);
        if let Some(shared) = &weights.shared {
            self.gated(shared, local, split);
        }
        for (place, (_, weight)) in own.chosen.iter().enumerate() {
            let sum = &mut local.projected[place / used * hidden..][..hidden];
            let result = &own.results[place * hidden..][..hidden];
            let terms = sum.iter_mut().zip(result);
            terms.for_each(|(sum, x)| *sum += weight * x);
        }
        local.mixture = own;
    }

    /// The likeliest experts of every token, the likeliest first; of equal ones the first.
    fn choose(&self, weights: &Mixture, experts: &Experts, own: &mut Buffers, split: Split) {
        let hidden = self.config.hidden;
        own.scores
            .resize(own.inputs.len() / hidden * experts.count, 0.0);
        let rows = Rows::F32 {
            values: &own.inputs,
            cols: hidden,
        };
        let output = (&weights.router, &mut own.scores[..]);
        self.exec.products(split, rows, &mut [output]);
        own.chosen.clear();
        for scores in own.scores.chunks_exact(experts.count) {
            let mut order: Vec<usize> = (0..experts.count).collect();
            // Scores that are NaN make every weight NaN, which ends in an error of the step.
            order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
            let top = scores[order[0]];
            let likeliness = |expert: &usize| (scores[*expert] - top).exp();
            let (chosen, others) = order.split_at(experts.used);
            let mut total: f32 = chosen.iter().map(likeliness).sum();
            if !experts.normed {
                total += others.iter().map(likeliness).sum::<f32>();
            }
            let weight = |expert: &usize| likeliness(expert) / total * experts.scale;
            let chosen = chosen.iter().map(|expert| (*expert, weight(expert)));
            own.chosen.extend(chosen);
        }
    }
}
