//! From logits to a token record, and when a choice has enough: the same for every engine.

use handoff::{Finish, Spec};
use model::sampling::{Draw, History, InvalidParameter, Sampler, SamplingParams};
use std::sync::Arc;
use tokenizer::Tokenizer;
use wire::{Ask, Malformed, TokenOut};

/// A request that cannot be sampled. The gateway checks before it sends, so this is its fault, or
/// that of whoever went past it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BadAsk {
    #[error("sampling parameters: {0}")]
    Malformed(#[from] Malformed),
    #[error("sampling parameters: {0}")]
    Invalid(#[from] InvalidParameter),
    #[error("token {token} of the prompt, the vocabulary has {vocab}")]
    Token { token: u32, vocab: usize },
}

/// How one request is sampled and ends.
#[derive(Debug)]
pub(crate) struct Rules {
    ask: Ask,
    params: SamplingParams,
    /// The same, for as long as a choice may not end yet.
    unending: Option<SamplingParams>,
    tokenizer: Tokenizer,
    prompt: Vec<u32>,
    /// What the choice has said already, if it goes on after it was put back.
    said: Vec<u32>,
    /// Which choice of its request the first one is.
    choice: u16,
    /// Tokens of a choice, at most, what was said included.
    max_new: usize,
}

impl Rules {
    pub(crate) fn new(spec: &Spec, tokenizer: &Tokenizer, vocab: usize) -> Result<Self, BadAsk> {
        if let Some(&token) = spec.tokens.iter().find(|token| **token as usize >= vocab) {
            return Err(BadAsk::Token { token, vocab });
        }
        let ask = Ask::decode(&spec.sampling)?;
        let params = params(&ask);
        params.validate(vocab)?;
        let unending = unending(&ask, &params, tokenizer);
        if let Some(unending) = &unending {
            unending.validate(vocab)?;
        }
        let (prompt, said) = spec.split();
        Ok(Self {
            ask,
            params,
            unending,
            tokenizer: tokenizer.clone(),
            prompt: prompt.to_vec(),
            said: said.to_vec(),
            choice: spec.choice(0),
            max_new: said.len() + spec.max_new as usize,
        })
    }
}

fn params(ask: &Ask) -> SamplingParams {
    let sampling = &ask.sampling;
    SamplingParams {
        temperature: sampling.temperature,
        top_p: sampling.top_p,
        top_k: sampling.top_k,
        min_p: sampling.min_p,
        seed: sampling.seed,
        presence_penalty: sampling.presence_penalty,
        frequency_penalty: sampling.frequency_penalty,
        repetition_penalty: sampling.repetition_penalty,
        logit_bias: sampling.logit_bias.iter().copied().collect(),
        top_logprobs: u32::from(sampling.logprobs.unwrap_or(0)),
        ..SamplingParams::default()
    }
}

/// How to sample while a choice has fewer tokens than it was asked to have at least: as always, but
/// no token that would end it.
fn unending(ask: &Ask, params: &SamplingParams, tokenizer: &Tokenizer) -> Option<SamplingParams> {
    if ask.min_tokens == 0 {
        return None;
    }
    let own = tokenizer.ends().filter(|_| !ask.ignore_eos);
    Some(SamplingParams {
        banned: own.chain(ask.stop_tokens.iter().copied()).collect(),
        ..params.clone()
    })
}

/// One choice of a request, as far as it has got.
#[derive(Debug)]
pub(crate) struct ChoiceState {
    rules: Arc<Rules>,
    choice: u16,
    generated: Vec<u32>,
}

impl ChoiceState {
    /// A choice that has sampled nothing yet in this attempt: if it goes on, it stands where it
    /// stood when it was put back, and everything that depends on what was said is as it was.
    pub(crate) fn new(rules: &Arc<Rules>, lane: u16) -> Self {
        let mut choice_state = Self {
            rules: rules.clone(),
            choice: rules.choice.saturating_add(lane),
            generated: Vec::new(),
        };
        for token in &rules.said {
            choice_state.accept(*token); // none of them was the last
        }
        choice_state
    }

    /// Samples the next token. Which one is a function of seed, choice, position and logits, so it
    /// is the same on whichever worker it happens.
    pub(crate) fn sample(&self, sampler: &mut Sampler, logits: &[f32]) -> TokenOut {
        let prompt = &self.rules.prompt;
        let position = (prompt.len() + self.generated.len()) as u32;
        let draw = Draw {
            choice: u32::from(self.choice),
            position,
        };
        let history = History {
            prompt,
            generated: &self.generated,
        };
        let early = self.generated.len() < self.rules.ask.min_tokens as usize;
        let params = match &self.rules.unending {
            Some(unending) if early => unending,
            _ => &self.rules.params,
        };
        let sampled = sampler.sample(logits, params, draw, history);
        let wanted = self.rules.ask.sampling.logprobs.is_some();
        let logprob = wanted.then_some(sampled.logprob);
        TokenOut {
            id: sampled.token,
            logprob,
            top: sampled.top,
        }
    }

    /// Takes a sampled token as the next of this choice; says whether it is the last.
    pub(crate) fn accept(&mut self, token: u32) -> Option<Finish> {
        self.generated.push(token);
        let rules = &self.rules;
        let own = rules.tokenizer.is_end(token) && !rules.ask.ignore_eos;
        if own || rules.ask.stop_tokens.binary_search(&token).is_ok() {
            return Some(Finish::Stop);
        }
        let enough = self.generated.len() >= rules.max_new;
        enough.then_some(Finish::Length)
    }

    /// The last token, as the input of the next step.
    pub(crate) fn input(&self) -> &[u32] {
        let last = self.generated.len().saturating_sub(1);
        &self.generated[last..]
    }
}
