//! Made-up traces: an engine with an overhead, a time for each token, and a queue.

use chacha20::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};
use watch::Request;

/// A stream of requests.
pub struct Trace {
    random: ChaCha8Rng,
    time: f64,
    n: u64,
    /// Seconds of a prefill of no tokens.
    pub overhead: f64,
    /// Seconds of each token.
    pub per_token: f64,
    /// Mean wait in the queue, in seconds.
    pub queue: f64,
    /// Prompts have between this many tokens...
    pub shortest: f64,
    /// ...and this many, evenly in the logarithm.
    pub longest: f64,
    /// Share of prompts of which nine tenths are cached.
    pub hits: f64,
    /// Whether the log says so.
    pub hits_reported: bool,
    /// Share of requests that are answered after a prefill of one token.
    pub skipped: f64,
    /// Prompts above this are always answered so.
    pub pool: f64,
}

/// A request and whether its prefill was skipped.
pub struct Made {
    pub request: Request,
    pub skipped: bool,
}

impl Trace {
    /// An engine like a CPU: 20 ms and 1 ms a token, prompts from 16 to 16,384 tokens.
    pub fn new(seed: u64) -> Self {
        Self {
            random: ChaCha8Rng::seed_from_u64(seed),
            time: 1.8e9,
            n: 0,
            overhead: 0.02,
            per_token: 0.001,
            queue: 0.01,
            shortest: 16.0,
            longest: 16_384.0,
            hits: 0.0,
            hits_reported: true,
            skipped: 0.0,
            pool: f64::INFINITY,
        }
    }

    /// From 0 to 1.
    pub fn chance(&mut self) -> f64 {
        self.random.next_u32() as f64 / u32::MAX as f64
    }

    /// The next request.
    pub fn next(&mut self) -> Made {
        let doublings = (self.longest / self.shortest).log2() * self.chance();
        let tokens = (self.shortest * doublings.exp2()).round();
        let hit = self.chance() < self.hits;
        let cached = if hit { (tokens * 0.9).floor() } else { 0.0 };
        let skipped = self.chance() < self.skipped || tokens > self.pool;
        let computed = if skipped { 1.0 } else { tokens - cached };
        // A computation is never faster than its floor; jitter and queue only add.
        let jitter = 1.0 + 0.1 * -self.chance().max(1e-9).ln();
        let wait = self.queue * -self.chance().max(1e-9).ln();
        let seconds = (self.overhead + self.per_token * computed) * jitter + wait;
        self.time += 0.5;
        self.n += 1;
        let request = Request {
            time: self.time,
            id: format!("r{}", self.n),
            tenant: format!("tenant-{}", self.n % 7),
            model: "m".to_owned(),
            worker: "p0".to_owned(),
            status: 200,
            prompt_tokens: tokens as u64,
            cached_tokens: self.hits_reported.then_some(cached as u64),
            completion_tokens: Some(100),
            seconds: Some(seconds),
            sent_tokens: None,
            prefill_tokens: None,
            decode_tokens: None,
            accept_length: None,
            accept_rate: None,
            leg: None,
        };
        Made { request, skipped }
    }

    /// The next so many.
    pub fn take(&mut self, n: usize) -> Vec<Made> {
        (0..n).map(|_| self.next()).collect()
    }
}
