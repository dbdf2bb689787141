//! How generations end, as signals and as provenance. Called by whoever answers, so nothing waits.

use super::{CANARIES, OnCall, locked};
use gateway::api::observe::{Ended, Observer};
use gateway::engine::Code;
use oncall::{Life, Served, Signal, SignalKind};
use std::collections::{BTreeMap, VecDeque};

/// Times to the first token that are kept for the page.
const TTFT_MAX: usize = 500;
/// Minutes of which the load is known.
const LOAD_MINUTES: u64 = 10;
/// Pairs that are counted.
const PAIRS_MAX: usize = 4096;

#[derive(Default)]
pub(super) struct Seen {
    /// Tokens computed, and milliseconds to the first token.
    pub(super) ttft: VecDeque<(u64, f64)>,
    /// Requests by pair.
    pub(super) by_pair: BTreeMap<(String, String), u64>,
    /// Tokens computed for clients, by the minute; the newest last.
    load: VecDeque<(u64, u64)>,
    /// Signals by kind, found here or heard of.
    pub(super) signals: BTreeMap<SignalKind, u64>,
}

impl Seen {
    fn computed(&mut self, minute: u64, tokens: u64) {
        match self.load.back_mut() {
            Some((last, sum)) if *last == minute => *sum += tokens,
            _ => self.load.push_back((minute, tokens)),
        }
        let recent = |(at, _): &(u64, u64)| at + LOAD_MINUTES >= minute;
        while self.load.front().is_some_and(|it| !recent(it)) {
            self.load.pop_front();
        }
    }

    /// Tokens a minute that were computed for clients in the last minutes that are over.
    pub(super) fn load(&self, minute: u64) -> u64 {
        let over = |(at, _): &&(u64, u64)| *at < minute && at + LOAD_MINUTES >= minute;
        let tokens: u64 = self.load.iter().filter(over).map(|(_, sum)| sum).sum();
        tokens / LOAD_MINUTES
    }
}

/// What a fault of this code is a signal of.
fn signal_of(code: Code) -> Option<SignalKind> {
    match code {
        Code::IntegrityWrongCount => Some(SignalKind::CountMismatch),
        Code::IntegrityAnothersAnswer => Some(SignalKind::AnothersAnswer),
        code if code.as_str().starts_with("integrity_") => Some(SignalKind::IntegrityFault),
        _ => None,
    }
}

impl Observer for OnCall {
    fn ended(&self, ended: Ended<'_>) {
        let lives = ended.by.map_or_else(Vec::new, |by| self.lives_of(by));
        if let Some(signal) = ended.code.and_then(signal_of) {
            self.signal(Signal {
                signal,
                lives: lives.clone(),
                request: Some(ended.request.to_owned()),
                tenant: Some(ended.tenant.to_owned()),
                says: format!(
                    "{}, prompt of {} tokens; the answer was not used",
                    ended.outcome, ended.prompt_tokens
                ),
                source: "gateway".to_owned(),
            });
        }
        let [prefill, decode] = both(&lives);
        self.count(&ended, (&prefill, &decode));
        self.recorder.served(Served {
            request: ended.request.to_owned(),
            at: oncall::times::now(),
            tenant: ended.tenant.to_owned(),
            prompt_tokens: u64::from(ended.prompt_tokens),
            prefill: (prefill.engine, prefill.life),
            decode: (decode.engine, decode.life),
            outcome: outcome(&ended),
        });
    }
}

/// Whoever left in the middle of a stream, or was cut off there, has got text all the same.
fn outcome(ended: &Ended<'_>) -> String {
    match ended.outcome != "ok" && ended.first_token.is_some() {
        true => format!("{}{}", ended.outcome, oncall::AFTER_TEXT),
        false => ended.outcome.to_owned(),
    }
}

/// The same one twice where one does both.
pub(super) fn both(lives: &[Life]) -> [Life; 2] {
    let nobody = || Life {
        engine: String::new(),
        life: String::new(),
    };
    match lives {
        [prefill, decode, ..] => [prefill.clone(), decode.clone()],
        [one] => [one.clone(), one.clone()],
        [] => [nobody(), nobody()],
    }
}

impl OnCall {
    fn count(&self, ended: &Ended<'_>, (prefill, decode): (&Life, &Life)) {
        let mut seen = locked(&self.seen);
        if let Some(first) = ended.first_token {
            if seen.ttft.len() >= TTFT_MAX {
                seen.ttft.pop_front();
            }
            let tokens = ended.prompt_tokens.saturating_sub(ended.cached_tokens);
            seen.ttft
                .push_back((u64::from(tokens), first.as_secs_f64() * 1e3));
        }
        if CANARIES.contains(&ended.tenant) || prefill.engine.is_empty() {
            return;
        }
        let computed = ended.prompt_tokens.saturating_sub(ended.cached_tokens);
        let computed = u64::from(computed) + u64::from(ended.completion_tokens);
        seen.computed(oncall::times::now() / 60_000, computed);
        let pair = (prefill.engine.clone(), decode.engine.clone());
        if seen.by_pair.len() < PAIRS_MAX || seen.by_pair.contains_key(&pair) {
            *seen.by_pair.entry(pair).or_default() += 1;
        }
    }
}
