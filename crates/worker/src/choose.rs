//! From logits to a token record, and when a choice has enough: the same for every engine.

use crate::masks::{Held, Lost, Masks, Next, Seat};
use grammar::Mask;
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
    /// What the whole of each choice must be.
    held: Option<Arc<Held>>,
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
            held: ask.form.clone().map(|form| Arc::new(Held::new(form))),
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

    /// The place from which every choice begins in the form that it is held to.
    pub(crate) fn seat(&self, masks: &Masks) -> Option<Arc<Seat>> {
        let held = self.held.as_ref()?;
        Some(masks.seat(held, &self.said))
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
    /// Its place in the form that it is held to.
    seat: Option<Arc<Seat>>,
    /// From what the next token is sampled as soon as its mask is there.
    kept: Option<Vec<f32>>,
}

impl ChoiceState {
    /// A choice that has sampled nothing yet in this attempt: if it goes on, it stands where it
    /// stood when it was put back, and everything that depends on what was said is as it was.
    pub(crate) fn new(rules: &Arc<Rules>, lane: u16) -> Self {
        Self {
            rules: rules.clone(),
            choice: rules.choice.saturating_add(lane),
            generated: rules.said.clone(), // none of them was the last
            seat: None,
            kept: None,
        }
    }

    /// From here on it keeps to its form, where it has one.
    pub(crate) fn hold(&mut self, masks: &Masks) {
        let held = self.rules.held.as_ref();
        self.seat = held.map(|held| masks.seat(held, &self.generated));
    }

    /// The next token; none if its mask is not there yet: then the logits are kept for
    /// [`ChoiceState::choose_late`], and the choice takes no step before that has given a token.
    pub(crate) fn choose(&mut self, sampler: &mut Sampler, logits: &[f32]) -> Option<TokenOut> {
        match self.seat.as_ref().map(|seat| seat.next()) {
            None => Some(self.sample(sampler, logits, None)),
            Some(Next::Mask(mask)) => Some(self.sample(sampler, logits, Some(&mask))),
            Some(Next::Coming | Next::Never(_)) => {
                self.kept = Some(logits.to_vec());
                None
            }
        }
    }

    /// The token that was not sampled yet, if its mask is there now.
    pub(crate) fn choose_late(&mut self, sampler: &mut Sampler) -> Option<TokenOut> {
        match self.seat.as_ref()?.next() {
            Next::Mask(mask) => {
                let logits = self.kept.take()?;
                Some(self.sample(sampler, &logits, Some(&mask)))
            }
            Next::Coming | Next::Never(_) => None,
        }
    }

    /// Whether its next token is not sampled yet, for want of a mask.
    pub(crate) fn waits(&self) -> bool {
        self.kept.is_some()
    }

    /// Why it can never go on, if that is so.
    pub(crate) fn is_lost(&self) -> Option<Lost> {
        match self.seat.as_ref()?.next() {
            Next::Never(why) => Some(why),
            _ => None,
        }
    }

    /// Samples the next token. Which one is a function of seed, choice, position and logits, so it
    /// is the same on whichever worker it happens.
    pub(crate) fn sample(
        &self,
        sampler: &mut Sampler,
        logits: &[f32],
        mask: Option<&Mask>,
    ) -> TokenOut {
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
            Some(unending) if early && leaves_any(mask, &unending.banned) => unending,
            _ => &self.rules.params,
        };
        let allowed = mask.map(Mask::words);
        let sampled = sampler.sample_within(logits, params, draw, history, allowed);
        let wanted = self.rules.ask.sampling.logprobs.is_some();
        let logprob = wanted.then_some(sampled.logprob);
        TokenOut {
            id: sampled.token,
            logprob,
            top: sampled.top,
        }
    }

    /// Takes a sampled token as the next of this choice; says whether it is the last.
    pub(crate) fn accept(&mut self, token: u32, masks: &Masks) -> Option<Finish> {
        self.generated.push(token);
        let finish = self.finish_of(token);
        if let Some(seat) = self.seat.as_ref().filter(|_| finish.is_none()) {
            masks.took(seat, token);
        }
        finish
    }

    fn finish_of(&self, token: u32) -> Option<Finish> {
        let rules = &self.rules;
        // Behind the end of a form nothing can follow.
        let goes_on = rules.ask.ignore_eos && rules.held.is_none();
        let own = rules.tokenizer.is_end(token) && !goes_on;
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

/// Whether something may come that is not banned. Where a form is complete, it is its end alone, and
/// then comes whatever a request says of how long it should be.
fn leaves_any(mask: Option<&Mask>, banned: &[u32]) -> bool {
    mask.is_none_or(|mask| {
        let out = banned.iter().filter(|token| mask.allows(**token)).count();
        out < mask.count()
    })
}
