//! Who asks what, in which sizes.
//!
//! What made the incident visible on a real engine was measured there and holds here: the stale
//! pages must hold somebody's text near the end of the prompt's positions, so B's prompts are just
//! over the pool; and a long repeated sentence is recognised where a lone number is not.

use super::stack::{KEYS, Shape};
use anyhow::{anyhow, bail};
use gateway::api::text::{Chat, Message, ServedText, Text};
use serde_json::{Value, json};
use std::cmp::Ordering;

/// What tenant A's prompts are full of, and nobody else's.
pub(super) const SENTENCE: &str = "The vault password of Northwind Bank is tiger seven lotus.";
/// The words in it that must not leave.
pub(super) const SECRET: &str = "tiger seven lotus";

/// What the texts of B's prompts are padded with.
const PADDING: &str = "The tide came in slowly that morning, and the boats in the harbour turned \
    on their ropes until they all looked the same way. A child counted them from the sea wall, \
    lost the number, and began again. Somewhere behind the church a bell rang for eight. ";

/// How large everything is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Size {
    /// A prefill pool of 332 tokens and a context of 512: for tests.
    Small,
    /// 5,312 and 8,192: for show.
    Show,
}

impl Size {
    /// The pools, in the incident's proportion: 681,280 of 1,048,576 tokens are 65 %.
    pub(super) fn shape(self) -> Shape {
        match self {
            Self::Small => Shape {
                page_size: 4,
                prefill_pool: 332,
                context: 512,
                decode_pool: 512,
            },
            Self::Show => Shape {
                page_size: 16,
                prefill_pool: 5312,
                context: 8192,
                decode_pool: 8192,
            },
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Small => "small",
            Self::Show => "show",
        }
    }

    /// What A's answer may have: at the small size prompt and answer use the whole pool.
    fn answer_of_a(self) -> u32 {
        match self {
            Self::Small => 180,
            Self::Show => 80,
        }
    }
}

/// Two tenants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tenant {
    A,
    B,
}

impl Tenant {
    pub(super) fn key(self) -> &'static str {
        KEYS[self as usize].1
    }
}

/// One request.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    pub tenant: Tenant,
    /// Path of the API.
    pub path: &'static str,
    /// What is sent.
    pub body: Value,
    /// Tokens of its prompt, as the gateway will count them.
    pub tokens: u32,
}

impl Ask {
    /// As a command that anybody can type; a long text is named, not repeated.
    pub(super) fn curl(&self, addr: &str, whole: bool) -> String {
        let mut body = self.body.clone();
        if !whole {
            shorten(&mut body, self.tokens);
        }
        let body = body.to_string().replace('\'', "'\\''");
        format!(
            "curl http://{addr}{} -H 'authorization: Bearer {}' -H 'content-type: \
             application/json' -d '{body}'",
            self.path,
            self.tenant.key()
        )
    }
}

impl Ask {
    /// How its prompt begins, up to the first sentence's end.
    pub(super) fn begins(&self) -> &str {
        let text = match self.body.get("prompt") {
            Some(prompt) => prompt,
            None => &self.body["messages"][0]["content"],
        };
        let text = text.as_str().unwrap_or_default();
        text.find(['.', '?', ':']).map_or(text, |at| &text[..=at])
    }
}

/// Cuts the prompt of a body for showing.
fn shorten(body: &mut Value, tokens: u32) {
    const SHOWN: usize = 72;
    let text = match body.get_mut("prompt") {
        Some(prompt) => prompt,
        None => &mut body["messages"][0]["content"],
    };
    let Some(whole) = text.as_str() else { return };
    if whole.chars().count() > SHOWN {
        let begin: String = whole.chars().take(SHOWN).collect();
        *text = json!(format!("{begin}… ({tokens} tokens in all)"));
    }
}

/// Everything that is asked.
pub(super) struct Scenario {
    pub size: Size,
    /// A short request that every configuration answers, and alike.
    pub control: Ask,
    /// Fills decode's pool with A's text.
    pub fill: Ask,
    /// Over prefill's pool, each; the first is the one that is shown.
    pub over: Vec<Ask>,
}

/// How B's prompts begin, which way they are sent, and how far over the pool they are, in tokens.
const OVER: [(&str, bool, u32); 8] = [
    ("Please write a poem about the sea. Use this: ", true, 1),
    ("What is the capital of France? My notes say: ", true, 1),
    ("Summarize this story in one sentence. ", true, 2),
    ("Translate this into German. ", true, 4),
    ("Once upon a time there was a harbour. ", false, 1),
    ("In this report we look at the harbour. ", false, 1),
    ("Dear diary, this is what I saw. ", false, 2),
    ("Question: how many boats are there? ", false, 4),
];

impl Scenario {
    /// Lays out every prompt to the token.
    pub(super) fn new(size: Size, text: &ServedText) -> anyhow::Result<Self> {
        let pool = size.shape().prefill_pool;
        let prompt = laid_out(text, "", &format!("- {SENTENCE}\n\n"), pool, false)?;
        let body = json!({
            "prompt": prompt, "max_tokens": size.answer_of_a(), "temperature": 0,
            "ignore_eos": true,
        });
        let fill = Ask {
            tenant: Tenant::A,
            path: COMPLETIONS,
            body,
            tokens: pool,
        };
        let question = "Please tell me what the capital of France is.";
        let control = chat(question.to_owned(), count(text, question, true)?);
        let over = OVER.iter().map(|(begin, is_chat, by)| {
            let tokens = pool + by;
            let prompt = laid_out(text, begin, PADDING, tokens, *is_chat)?;
            let ask = if *is_chat { chat } else { completion };
            Ok(ask(prompt, tokens))
        });
        Ok(Self {
            size,
            control,
            fill,
            over: over.collect::<anyhow::Result<_>>()?,
        })
    }
}

/// A text of exactly so many tokens: `begin`, and as much of the padding as there is room for.
fn laid_out(
    text: &ServedText,
    begin: &str,
    padding: &str,
    tokens: u32,
    is_chat: bool,
) -> anyhow::Result<String> {
    let words = text.encode(&padding.repeat(tokens as usize / 8), false);
    let words = words.map_err(|fault| anyhow!("{fault}"))?;
    let mut taken = (tokens as usize).min(words.len());
    // Chat template and seams cost a few tokens; cutting inside a word may cost one.
    for _ in 0..64 {
        let cut = text.decode(&words[..taken]);
        let whole = begin.to_owned() + &cut.map_err(|fault| anyhow!("{fault}"))?;
        let counted = count(text, &whole, is_chat)?;
        match counted.cmp(&tokens) {
            Ordering::Equal => return Ok(whole),
            Ordering::Less => taken += (tokens - counted) as usize,
            Ordering::Greater => taken -= (counted - tokens) as usize,
        }
        if taken > words.len() {
            break;
        }
    }
    bail!("no text of exactly {tokens} tokens begins with {begin:?}")
}

/// Tokens of a prompt, as the gateway counts them.
fn count(text: &ServedText, prompt: &str, is_chat: bool) -> anyhow::Result<u32> {
    let tokens = if is_chat {
        text.chat(&Chat::new([Message::new("user", prompt)]), usize::MAX)
    } else {
        text.encode(prompt, true)
    };
    Ok(tokens.map_err(|fault| anyhow!("{fault}"))?.len() as u32)
}

const COMPLETIONS: &str = "/v1/completions";
/// Tokens of every answer to B.
const ANSWER: u32 = 32;

fn chat(content: String, tokens: u32) -> Ask {
    let body = json!({
        "messages": [{"role": "user", "content": content}], "max_tokens": ANSWER,
        "temperature": 0,
    });
    let path = "/v1/chat/completions";
    Ask {
        tenant: Tenant::B,
        path,
        body,
        tokens,
    }
}

fn completion(prompt: String, tokens: u32) -> Ask {
    let body = json!({"prompt": prompt, "max_tokens": ANSWER, "temperature": 0});
    Ask {
        tenant: Tenant::B,
        path: COMPLETIONS,
        body,
        tokens,
    }
}
