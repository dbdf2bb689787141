//! What a pair of workers accepts (law: capacity is measured, not declared).

use crate::{Rejection, Reserve, Role, Spec};
use pages::Pool;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What lengths are accepted: the one rule by which HTTP, the gateway's machine and every worker
/// judge them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Lengths {
    /// Longest prompt.
    pub max_prompt: u32,
    /// Largest sum of prompt and output.
    pub max_model_len: u32,
}

impl Lengths {
    /// Most tokens that can be sampled for a prompt of this length; none if it is too long. An
    /// answer has at least one token.
    pub fn room(&self, prompt: u64) -> Option<u32> {
        let fits = prompt <= u64::from(self.max_prompt);
        let left = u64::from(self.max_model_len).checked_sub(prompt)?;
        (fits && left > 0).then_some(left as u32)
    }

    /// What two that must both hold a request take.
    pub fn of_both(self, other: Self) -> Self {
        Self {
            max_prompt: self.max_prompt.min(other.max_prompt),
            max_model_len: self.max_model_len.min(other.max_model_len),
        }
    }
}

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

    /// Pages without which this worker could never end the request: for prefill those of the
    /// prompt. For decode, if all are taken at once, those of the prompt and of every choice's
    /// continuation, copies of a partly filled page included; if pages are taken as needed, those
    /// of one choice alone, because the others can be put back for it, and a first page for each.
    pub fn pages_needed(&self, spec: &Spec) -> u64 {
        self.pages_if(spec, spec.pages)
    }

    fn pages_if(&self, spec: &Spec, pages: Reserve) -> u64 {
        let prompt = self.pages_for(spec.tokens.len() as u64);
        if self.role != Role::Decode {
            return prompt;
        }
        let own = self.pages_of_a_choice(spec);
        match pages {
            Reserve::All => prompt + u64::from(spec.choices) * own,
            Reserve::AsNeeded => prompt + own.max(u64::from(spec.choices) * own.min(1)),
        }
    }

    /// Pages of decode that one choice of this request has for itself when it is complete. Several
    /// choices share the full pages of the prompt, and each has a copy of a partly filled one.
    pub fn pages_of_a_choice(&self, spec: &Spec) -> u64 {
        let prompt = spec.tokens.len() as u64;
        let all = self.pages_for(prompt + u64::from(spec.max_new));
        match spec.choices {
            1 => all - self.pages_for(prompt),
            _ => all - prompt / u64::from(self.page_size),
        }
    }

    /// Largest sum of prompt and output: decode's pool holds both, prefill's the prompt alone.
    pub fn longest_sum(&self) -> u32 {
        let pool = self.pool_tokens().min(u64::from(u32::MAX)) as u32;
        match self.role {
            Role::Decode => self.context.min(pool),
            _ => self.context,
        }
    }

    /// Longest prompt that leaves room for one token of output: in the context, and for decode in
    /// the pool as well.
    pub fn longest_prompt(&self) -> u32 {
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
        self.admits_if(spec, spec.pages)
    }

    /// The lengths that this worker alone accepts.
    pub fn lengths(&self) -> Lengths {
        Lengths {
            max_prompt: self.longest_prompt(),
            max_model_len: self.context,
        }
    }

    fn admits_if(&self, spec: &Spec, pages: Reserve) -> Result<(), Rejection> {
        let by = self.role;
        let goes_on = spec.resumes.is_some() && (spec.split().0.is_empty() || spec.choices > 1);
        if spec.tokens.is_empty() || spec.max_new == 0 || spec.choices == 0 || goes_on {
            return Err(Rejection::Empty);
        }
        judge(self.lengths(), spec, by, by)?;
        let (needed, pool) = (self.pages_if(spec, pages), u64::from(self.pages));
        if needed > pool {
            return Err(Rejection::TooManyPages { needed, pool, by });
        }
        Ok(())
    }
}

/// The rejection names whose limit it is: of the prompt alone, or of prompt and output together.
fn judge(lengths: Lengths, spec: &Spec, of_prompt: Role, of_sum: Role) -> Result<(), Rejection> {
    let prompt = spec.tokens.len() as u64;
    let tokens = u32::try_from(prompt).unwrap_or(u32::MAX);
    match lengths.room(prompt) {
        None => Err(Rejection::PromptTooLong {
            tokens,
            limit: lengths.max_prompt,
            by: of_prompt,
        }),
        Some(room) if spec.max_new > room => Err(Rejection::ContextTooLong {
            prompt: tokens,
            max_new: spec.max_new,
            limit: lengths.max_model_len,
            by: of_sum,
        }),
        Some(_) => Ok(()),
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
        self.prefill.longest_sum().min(self.decode.longest_sum())
    }

    /// Longest prompt: it fits prefill's pool, and leaves room for one token of output.
    pub fn max_prompt(&self) -> u32 {
        let (p, d) = (self.prefill.longest_prompt(), self.decode.longest_prompt());
        p.min(d)
    }

    /// The lengths that both accept.
    pub fn lengths(&self) -> Lengths {
        Lengths {
            max_prompt: self.max_prompt(),
            max_model_len: self.max_model_len(),
        }
    }

    /// Whether both would take the request. The edge asks before anything reaches a worker.
    pub fn admits(&self, spec: &Spec) -> Result<(), Rejection> {
        let whose = |prefill_is_smaller| match prefill_is_smaller {
            true => Role::Prefill,
            false => Role::Decode,
        };
        let (p, d) = (&self.prefill, &self.decode);
        let of_prompt = whose(p.longest_prompt() < d.longest_prompt());
        let of_sum = whose(p.longest_sum() < d.longest_sum());
        judge(self.lengths(), spec, of_prompt, of_sum)?;
        self.prefill.admits(spec)?;
        self.decode.admits_if(spec, self.reserve(spec))
    }

    /// How decode of this pair comes by the pages of such an answer. What could not be computed
    /// again in this prefill's pool must not be put back.
    pub fn reserve(&self, spec: &Spec) -> Reserve {
        let longest = spec.tokens.len() as u64 + u64::from(spec.max_new.saturating_sub(1));
        match longest > u64::from(self.prefill.longest_prompt()) {
            true => Reserve::All,
            false => spec.pages,
        }
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
