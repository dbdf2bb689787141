//! What an engine does otherwise than it should, and with which requests.

use serde::Deserialize;

/// What to do with a request.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Act {
    /// The right answer.
    #[default]
    Answer,
    /// A refusal in the engine's own envelope.
    Refuse {
        /// 400, 429, 500, 503 …
        status: u16,
        /// Its text; by default one that fits the status.
        #[serde(default)]
        message: Option<String>,
    },
    /// 200, with the error or the abort in the body.
    InBand,
    /// Prefill: 200 with `prompt_tokens` 1, and one page is handed over for all. Decode, alone:
    /// garbage.
    Incident,
    /// Zeros, with its own count, waiting for nobody.
    Garbage,
    /// Another prompt's answer.
    OtherText,
    /// The right answer under another request's id.
    OtherId,
    /// Nothing, for ever.
    Hang,
    /// Its part in the transfer, and then a failure.
    Fail {
        /// 500, 503 …
        status: u16,
        /// Its text; by default one that fits the status.
        #[serde(default)]
        message: Option<String>,
    },
    /// Half of the body, and then nothing.
    Stall,
    /// Closes the connection before the head.
    Drop,
    /// Closes the connection in the middle of the body.
    Cut,
    /// Bytes that are neither JSON nor events, as a 200.
    Nonsense,
    /// The whole answer two times in one body.
    Twice,
    /// A second response, unasked, behind the first on the same connection.
    Unasked,
    /// A body that does not end.
    Endless,
    /// The right answer as a stream without its `[DONE]`.
    Undone,
    /// Works on as if no abort had come.
    Deaf,
    /// Waits for its abort, and answers then, this many milliseconds later.
    Late {
        /// From abort to answer.
        ms: u64,
    },
    /// Decode: waits for no prefill, and says what it has: another prompt's answer.
    IgnoreRoom,
    /// The right answer with this `prompt_tokens`.
    Count {
        /// What it says it has counted.
        prompt_tokens: u64,
    },
    /// The right answer without `usage` and counts.
    NoUsage,
    /// vLLM's prefill: 200 without `kv_transfer_params`.
    NoReference,
}

/// One rule: which requests, and what happens to them.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rule {
    /// An engine's name or role; none: all.
    pub engine: Option<String>,
    /// A path; none: those that generate.
    pub path: Option<String>,
    /// Words in the prompt, in text or in tokens of [`crate::tokens`].
    pub marker: Option<String>,
    /// The first of the requests that fit, from 1 (0 is read as 1).
    pub from: u64,
    /// How many of them; none: all that follow.
    pub times: Option<u64>,
    /// Milliseconds before anything else.
    pub delay_ms: u64,
    /// Milliseconds between tokens, instead of the engine's.
    pub token_ms: Option<u64>,
    /// What to do.
    pub act: Act,
}

impl Rule {
    /// `act` for every request.
    pub fn new(act: Act) -> Self {
        Self {
            act,
            ..Self::default()
        }
    }

    /// On one engine only.
    pub fn on(mut self, engine: &str) -> Self {
        self.engine = Some(engine.into());
        self
    }

    /// For one path only, also such as do not generate.
    pub fn path(mut self, path: &str) -> Self {
        self.path = Some(path.into());
        self
    }

    /// For prompts with these words only.
    pub fn marked(mut self, marker: &str) -> Self {
        self.marker = Some(marker.into());
        self
    }

    /// For the `n`-th request that fits, from 1.
    pub fn nth(mut self, n: u64) -> Self {
        (self.from, self.times) = (n, Some(1));
        self
    }

    /// For so many requests.
    pub fn times(mut self, times: u64) -> Self {
        self.times = Some(times);
        self
    }

    /// Later.
    pub fn after_ms(mut self, ms: u64) -> Self {
        self.delay_ms = ms;
        self
    }

    /// With other times between tokens.
    pub fn every_ms(mut self, ms: u64) -> Self {
        self.token_ms = Some(ms);
        self
    }
}

/// Rules, of which the first that fits decides.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Script {
    /// In their order.
    pub rules: Vec<Rule>,
    #[serde(skip)]
    seen: Vec<u64>,
}

/// Whom a rule is asked about.
pub(crate) struct Case<'a> {
    pub(crate) name: &'a str,
    pub(crate) role: &'a str,
    pub(crate) path: &'a str,
    pub(crate) generates: bool,
    pub(crate) prompt: &'a (dyn Fn() -> String + Sync),
}

impl Script {
    /// From rules.
    pub fn new(rules: impl IntoIterator<Item = Rule>) -> Self {
        Self {
            rules: rules.into_iter().collect(),
            seen: Vec::new(),
        }
    }

    /// The rule for this request, which counts it.
    pub(crate) fn decide(&mut self, case: &Case) -> Option<Rule> {
        self.seen.resize(self.rules.len(), 0);
        let mut text = None;
        for (rule, seen) in self.rules.iter().zip(&mut self.seen) {
            if !fits(rule, case, &mut text) {
                continue;
            }
            *seen += 1;
            let first = rule.from.max(1);
            let end = rule.times.map(|times| first + times);
            if *seen >= first && end.is_none_or(|end| *seen < end) {
                return Some(rule.clone());
            }
        }
        None
    }
}

fn fits(rule: &Rule, case: &Case, text: &mut Option<String>) -> bool {
    let engine = rule.engine.as_deref();
    let path = match &rule.path {
        Some(path) => path == case.path,
        None => case.generates,
    };
    path && engine.is_none_or(|it| it == case.name || it == case.role)
        && rule.marker.as_ref().is_none_or(|marker| {
            let text = text.get_or_insert_with(|| (case.prompt)());
            text.contains(marker.as_str())
        })
}
