//! From logits to a token: a pure function of its arguments.
//!
//! The order of steps is that of vLLM: repetition penalty, frequency and presence penalties, bias
//! and what is banned (all on raw logits); temperature; min_p; top_k; top_p; then one draw. The random number comes
//! from a hash of (seed, choice, position), so it does not matter how often, in which order, on
//! which worker or in which batch a token is sampled: same arguments, same token.
//!
//! Reported log-probabilities are the log-softmax of the *raw* logits, as OpenAI and vLLM report
//! them: what the model says, whatever the request does with it.
//!
//! ```
//! # use model::sampling::{Draw, History, Sampler, SamplingParams};
//! let params = SamplingParams { temperature: 0.0, top_logprobs: 2, ..SamplingParams::default() };
//! params.validate(3).unwrap();
//! let draw = Draw { choice: 0, position: 17 };
//! let sampled = Sampler::default().sample(&[0.5, 2.0, 1.0], &params, draw, History::default());
//! assert_eq!(sampled.token, 1);
//! assert_eq!(sampled.top[1].0, 2);
//! ```

mod params;

use serde::{Deserialize, Serialize};

pub use params::{InvalidParameter, LOGIT_BIAS_MAX, SamplingParams, TOP_LOGPROBS_MAX};

/// Which draw this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draw {
    /// Which of the request's choices (`n`), from 0.
    pub choice: u32,
    /// Position in the sequence (prompt included) of the token that is drawn.
    pub position: u32,
}

/// The tokens before the one that is drawn. Repetition counts both parts; presence and frequency
/// count what was generated, as vLLM does.
#[derive(Clone, Copy, Debug, Default)]
pub struct History<'a> {
    /// Tokens of the prompt.
    pub prompt: &'a [u32],
    /// Tokens generated so far.
    pub generated: &'a [u32],
}

/// One sampled token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sampled {
    /// Its id.
    pub token: u32,
    /// Its log-probability under the raw logits.
    pub logprob: f32,
    /// The `top_logprobs` likeliest tokens under the raw logits, likeliest first, ties by id.
    pub top: Vec<(u32, f32)>,
}

/// Memory that calls reuse; carries no state from one call to the next.
#[derive(Clone, Debug, Default)]
pub struct Sampler {
    logits: Vec<f32>,
    weights: Vec<f64>,
    order: Vec<u32>,
    seen: Vec<(u32, u32)>,
}

/// How many of the likeliest tokens are sorted first; more are only where these do not suffice.
const SORTED_FIRST: usize = 256;

impl Sampler {
    /// Draws one token. `logits` are finite and as many as the vocabulary; `params` were validated
    /// for it. Panics if there are none.
    pub fn sample(
        &mut self,
        logits: &[f32],
        params: &SamplingParams,
        draw: Draw,
        history: History<'_>,
    ) -> Sampled {
        self.sample_within(logits, params, draw, history, None)
    }

    /// The same, of `allowed` tokens alone: bit `t % 32` of word `t / 32` says whether token `t` is; one
    /// at least that is not banned. Log-probabilities are those of all tokens.
    pub fn sample_within(
        &mut self,
        logits: &[f32],
        params: &SamplingParams,
        draw: Draw,
        history: History<'_>,
        allowed: Option<&[u32]>,
    ) -> Sampled {
        assert!(!logits.is_empty(), "sampling needs logits");
        self.logits.clear();
        self.logits.extend_from_slice(logits);
        self.penalize(params, history);
        if let Some(allowed) = allowed {
            self.keep(allowed);
        }
        let token = if params.temperature == 0.0 {
            argmax(&self.logits)
        } else {
            self.draw(params, uniform(params.seed, draw))
        };
        let normalizer = log_sum_exp(logits);
        let logprob = |token: u32| (f64::from(logits[token as usize]) - normalizer) as f32;
        let mut top = Vec::new();
        if params.top_logprobs > 0 {
            let wanted = params.top_logprobs as usize;
            sort_likeliest(&mut self.order, logits, wanted);
            top = self
                .order
                .iter()
                .take(wanted)
                .map(|t| (*t, logprob(*t)))
                .collect();
        }
        Sampled {
            token,
            logprob: logprob(token),
            top,
        }
    }

    fn penalize(&mut self, params: &SamplingParams, history: History<'_>) {
        let repetition = params.repetition_penalty;
        if repetition != 1.0 {
            self.count(history.prompt.iter().chain(history.generated));
            for (token, _) in &self.seen {
                if let Some(logit) = self.logits.get_mut(*token as usize) {
                    *logit = if *logit > 0.0 {
                        *logit / repetition
                    } else {
                        *logit * repetition
                    };
                }
            }
        }
        if params.presence_penalty != 0.0 || params.frequency_penalty != 0.0 {
            self.count(history.generated.iter());
            for (token, times) in &self.seen {
                if let Some(logit) = self.logits.get_mut(*token as usize) {
                    *logit -= params.presence_penalty;
                    *logit -= params.frequency_penalty * *times as f32;
                }
            }
        }
        for (token, bias) in &params.logit_bias {
            if let Some(logit) = self.logits.get_mut(*token as usize) {
                *logit += bias;
            }
        }
        for token in &params.banned {
            if let Some(logit) = self.logits.get_mut(*token as usize) {
                *logit = f32::NEG_INFINITY;
            }
        }
    }

    fn keep(&mut self, allowed: &[u32]) {
        for (token, logit) in self.logits.iter_mut().enumerate() {
            let word = allowed.get(token / 32).copied().unwrap_or(0);
            if word >> (token % 32) & 1 == 0 {
                *logit = f32::NEG_INFINITY;
            }
        }
    }

    /// Fills `seen` with every distinct token and how often it occurs.
    fn count<'a>(&mut self, tokens: impl Iterator<Item = &'a u32>) {
        self.order.clear();
        self.order.extend(tokens);
        self.order.sort_unstable();
        self.seen.clear();
        self.seen.extend(
            self.order
                .chunk_by(|a, b| a == b)
                .map(|run| (run[0], run.len() as u32)),
        );
    }

    /// One draw from the filtered, tempered distribution; `at` is in [0, 1).
    fn draw(&mut self, params: &SamplingParams, at: f64) -> u32 {
        let best = self.logits[argmax(&self.logits) as usize];
        let temperature = f64::from(params.temperature);
        // Relative to the likeliest token, whose weight is 1.
        let tempered = |logit: &f32| ((f64::from(*logit) - f64::from(best)) / temperature).exp();
        self.weights.clear();
        self.weights.extend(self.logits.iter().map(tempered));
        let floor = f64::from(params.min_p);
        self.weights
            .iter_mut()
            .for_each(|w| *w = if *w < floor { 0.0 } else { *w });
        if params.top_k == 0 && params.top_p >= 1.0 {
            let all = 0..self.weights.len() as u32;
            return pick(all, &self.weights, self.weights.iter().sum(), at);
        }
        let kept = self.likeliest(params);
        let order = self.order[..kept].iter().copied();
        let total = order.clone().map(|t| self.weights[t as usize]).sum();
        pick(order, &self.weights, total, at)
    }

    /// Sorts the likeliest tokens to the front of `order` and returns how many of them top_k and
    /// top_p keep: at least one.
    fn likeliest(&mut self, params: &SamplingParams) -> usize {
        let vocab = self.weights.len();
        let limit = if params.top_k == 0 {
            vocab
        } else {
            vocab.min(params.top_k as usize)
        };
        let mut sorted = limit.min(SORTED_FIRST);
        loop {
            sort_likeliest(&mut self.order, &self.logits, sorted);
            // top_p is a share of what top_k has left.
            let total: f64 = if limit == vocab {
                self.weights.iter().sum()
            } else if sorted == limit {
                self.order[..limit]
                    .iter()
                    .map(|t| self.weights[*t as usize])
                    .sum()
            } else {
                f64::INFINITY
            };
            let wanted = total * f64::from(params.top_p);
            let mut sum = 0.0;
            for (rank, token) in self.order[..sorted].iter().enumerate() {
                sum += self.weights[*token as usize];
                if sum >= wanted {
                    return rank + 1;
                }
            }
            if sorted == limit {
                return limit;
            }
            sorted = limit.min(sorted * 16);
        }
    }
}

/// Fills `order` with all token ids, the `first` likeliest sorted to the front, ties by id.
fn sort_likeliest(order: &mut Vec<u32>, logits: &[f32], first: usize) {
    order.clear();
    order.extend(0..logits.len() as u32);
    let likelier = |a: &u32, b: &u32| {
        logits[*b as usize]
            .total_cmp(&logits[*a as usize])
            .then_with(|| a.cmp(b))
    };
    if first < order.len() {
        order.select_nth_unstable_by(first, likelier);
    }
    let first = first.min(order.len());
    order[..first].sort_unstable_by(likelier);
}

/// The token at which the running sum of weights passes `at` of the total.
fn pick(tokens: impl Iterator<Item = u32>, weights: &[f64], total: f64, at: f64) -> u32 {
    let target = at * total;
    let mut sum = 0.0;
    let mut last = 0;
    for token in tokens {
        let weight = weights[token as usize];
        if weight > 0.0 {
            sum += weight;
            last = token;
            if sum > target {
                break;
            }
        }
    }
    last
}

/// The lowest id among the largest logits.
fn argmax(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (token, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = token;
        }
    }
    best as u32
}

/// The log of the sum of exponentials, in f64.
pub fn log_sum_exp(logits: &[f32]) -> f64 {
    let top = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    logits
        .iter()
        .map(|logit| (f64::from(*logit) - top).exp())
        .sum::<f64>()
        .ln()
        + top
}

/// A number in [0, 1) that depends on its arguments and nothing else.
fn uniform(seed: u64, draw: Draw) -> f64 {
    let mut hash = blake3::Hasher::new_derive_key("cofferdam sampling 1");
    hash.update(&seed.to_le_bytes());
    hash.update(&draw.choice.to_le_bytes());
    hash.update(&draw.position.to_le_bytes());
    let mut bytes = [0; 8];
    hash.finalize_xof().fill(&mut bytes);
    // 53 bits: every value is exact.
    (u64::from_le_bytes(bytes) >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests;
