//! What a pair of workers accepts (law: capacity is measured, not declared).

use crate::{Rejection, Role, Spec};
use pages::Pool;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What one running worker can hold. Made from its populated pool, or received in its Hello.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Capacity {
    /// Whose.
    pub role: Role,
    /// Pages of the pool.
    pub pages: u32,
    /// Token slots a page.
    pub page_size: u16,
    /// Largest sum of prompt and output that this worker was started for (at most the model's).
    pub context: u32,
}

impl Capacity {
    /// Measures a pool that exists.
    pub fn of<J: pages::Decisions>(pool: &Pool<J>, role: Role, context: u32) -> Self {
        Self {
            role,
            pages: pool.size() as u32,
            page_size: pool.page_size(),
            context,
        }
    }

    /// Token slots of the pool.
    pub const fn pool_tokens(&self) -> u64 {
        self.pages as u64 * self.page_size as u64
    }

    /// Pages that hold `tokens` tokens.
    pub const fn pages_for(&self, tokens: u64) -> u64 {
        tokens.div_ceil(self.page_size as u64)
    }

    /// Pages that this worker needs for a request: for prefill the prompt, for decode the prompt
    /// and every choice's continuation, copies of a partly filled page included.
    pub fn pages_needed(&self, spec: &Spec) -> u64 {
        let prompt = spec.tokens.len() as u64;
        let whole = self.pages_for(prompt);
        match (self.role, spec.choices) {
            (Role::Decode, 1) => self.pages_for(prompt + u64::from(spec.max_new)),
            (Role::Decode, choices) => {
                let shared = prompt / u64::from(self.page_size);
                let own = self.pages_for(prompt + u64::from(spec.max_new)) - shared;
                whole + u64::from(choices) * own
            }
            _ => whole,
        }
    }

    /// Longest prompt that leaves room for one token of output: in the context, and for decode in
    /// the pool as well.
    fn longest_prompt(&self) -> u32 {
        let pool = self.pool_tokens().min(u64::from(u32::MAX)) as u32;
        let pool = match self.role {
            Role::Decode => pool.saturating_sub(1),
            _ => pool,
        };
        pool.min(self.context.saturating_sub(1))
    }

    /// Whether this worker alone could ever take the request. The reason is the request's final
    /// ending (law: rejected is terminal).
    pub fn admits(&self, spec: &Spec) -> Result<(), Rejection> {
        let by = self.role;
        let tokens = u32::try_from(spec.tokens.len()).unwrap_or(u32::MAX);
        if tokens == 0 || spec.max_new == 0 || spec.choices == 0 {
            return Err(Rejection::Empty);
        }
        let limit = self.longest_prompt();
        if tokens > limit {
            return Err(Rejection::PromptTooLong { tokens, limit, by });
        }
        let total = u64::from(tokens) + u64::from(spec.max_new);
        if total > u64::from(self.context) {
            let limit = self.context;
            return Err(Rejection::ContextTooLong {
                prompt: tokens,
                max_new: spec.max_new,
                limit,
                by,
            });
        }
        let (needed, pool) = (self.pages_needed(spec), u64::from(self.pages));
        if needed > pool {
            return Err(Rejection::TooManyPages { needed, pool, by });
        }
        Ok(())
    }
}

/// What a pair accepts: the smallest over both. Only measured capacities make one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Limit {
    prefill: Capacity,
    decode: Capacity,
}

impl Limit {
    /// The limit of this pair.
    pub const fn of_pair(prefill: Capacity, decode: Capacity) -> Self {
        Self { prefill, decode }
    }

    /// Largest sum of prompt and output.
    pub fn max_model_len(&self) -> u32 {
        self.prefill.context.min(self.decode_len())
    }

    fn decode_len(&self) -> u32 {
        let pool = self.decode.pool_tokens().min(u64::from(u32::MAX)) as u32;
        self.decode.context.min(pool)
    }

    /// Longest prompt: it fits prefill's pool, and leaves room for one token of output.
    pub fn max_prompt(&self) -> u32 {
        let (p, d) = (self.prefill.longest_prompt(), self.decode.longest_prompt());
        p.min(d)
    }

    /// Whether both would take the request. The edge asks before anything reaches a worker.
    pub fn admits(&self, spec: &Spec) -> Result<(), Rejection> {
        let tokens = u32::try_from(spec.tokens.len()).unwrap_or(u32::MAX);
        let limit = self.max_prompt();
        if tokens > limit {
            let own = |worker: &Capacity| worker.longest_prompt();
            let by = if own(&self.prefill) < own(&self.decode) {
                Role::Prefill
            } else {
                Role::Decode
            };
            return Err(Rejection::PromptTooLong { tokens, limit, by });
        }
        let (limit, max_new) = (self.max_model_len(), spec.max_new);
        if u64::from(tokens) + u64::from(max_new) > u64::from(limit) {
            let by = if self.prefill.context < self.decode_len() {
                Role::Prefill
            } else {
                Role::Decode
            };
            return Err(Rejection::ContextTooLong {
                prompt: tokens,
                max_new,
                limit,
                by,
            });
        }
        self.prefill.admits(spec)?;
        self.decode.admits(spec)
    }

    /// The capacities it came from, prefill first.
    pub const fn pair(&self) -> (Capacity, Capacity) {
        (self.prefill, self.decode)
    }
}

impl fmt::Display for Limit {
    /// How it came about, for the operator who asks.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "prompt at most {} tokens, prompt + output at most {}: prefill pool {} tokens ({} pages \
             of {}), context {}; decode pool {} tokens ({} pages of {}), context {}",
            self.max_prompt(),
            self.max_model_len(),
            self.prefill.pool_tokens(),
            self.prefill.pages,
            self.prefill.page_size,
            self.prefill.context,
            self.decode.pool_tokens(),
            self.decode.pages,
            self.decode.page_size,
            self.decode.context,
        )
    }
}
