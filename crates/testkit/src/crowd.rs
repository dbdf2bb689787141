//! A crowd of different requests of several tenants, and what each of them heard.

use crate::{Api, Events};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Where token-id prompts go.
pub const COMPLETIONS: &str = "/v1/completions";

/// What a crowd is like. Same shape, same crowd.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Requests.
    pub size: usize,
    /// Tenants that they are dealt to in turn.
    pub tenants: usize,
    /// Longest prompt, in tokens.
    pub max_prompt: usize,
    /// Largest sum of prompt and output, in tokens.
    pub context: usize,
    /// Most tokens of an answer.
    pub max_new: usize,
    /// Token slots of a page: each page of each prompt begins with a marker of its own.
    pub page_size: usize,
    /// Another seed, another crowd.
    pub seed: u64,
}

/// One request of a crowd.
#[derive(Clone, Debug)]
pub struct Question {
    /// Whose it is.
    pub tenant: usize,
    /// Number of its prompt: equal for equal prompts.
    pub owner: usize,
    /// The prompt, in tokens.
    pub prompt: Vec<u32>,
    /// Whether the answer is to be streamed.
    pub stream: bool,
    /// The request, but for `stream`.
    pub body: Value,
}

/// Tokens of a marker.
pub const MARKER_TOKENS: usize = 3;
/// First token of each of a marker's three alphabets of 128 tokens.
const ALPHABETS: [u32; MARKER_TOKENS] = [2000, 3000, 4000];
/// Tokens that fill pages: none of a marker.
const FILLERS: std::ops::Range<u64> = 5_000..45_000;

/// The marker of a page of a prompt: found nowhere else in any prompt of the crowd.
pub fn marker(owner: usize, page: usize) -> [u32; MARKER_TOKENS] {
    assert!(
        owner < 1 << 12 && page < 1 << 9,
        "markers number 4,096 prompts of 512 pages"
    );
    let number = (owner as u32) << 9 | page as u32;
    std::array::from_fn(|i| ALPHABETS[i] + (number >> (7 * i) & 127))
}

/// A prompt of `len` tokens.
pub fn prompt(owner: usize, len: usize, page_size: usize, seed: u64) -> Vec<u32> {
    let mut random = Random(seed << 20 | owner as u64);
    let token = |at: usize| match at % page_size {
        slot if slot < MARKER_TOKENS => marker(owner, at / page_size)[slot],
        _ => random.within(FILLERS) as u32,
    };
    (0..len).map(token).collect()
}

/// The requests. Prompts from one token to the limit, greedy and sampled with a seed, streamed
/// and not, some with two answers; a few have the prompt of a neighbour, of the same tenant (so a
/// cached prefix is used) or of another one (so it must not be).
pub fn crowd(shape: Shape) -> Vec<Question> {
    let mut random = Random(shape.seed);
    let mut questions: Vec<Question> = Vec::new();
    for i in 0..shape.size {
        let twin = match i % 20 {
            18 => Some(i - shape.tenants.min(i)), // the same tenant's
            19 => Some(i - 1),                    // another tenant's
            _ => None,
        };
        let (owner, prompt) = match twin.map(|twin| &questions[twin]) {
            Some(twin) => (twin.owner, twin.prompt.clone()),
            None => {
                let len = length(i, shape, &mut random);
                (i, self::prompt(i, len, shape.page_size, shape.seed))
            }
        };
        let room = shape.context - prompt.len();
        let max_tokens = room.min(1 + random.within(0..shape.max_new as u64) as usize);
        let mut body = json!({
            "prompt": prompt, "max_tokens": max_tokens, "logprobs": 1, "ignore_eos": i % 3 != 0,
        });
        if i % 7 == 3 && prompt.len() + 4 * shape.page_size < shape.max_prompt {
            body["n"] = json!(2);
        }
        if i % 2 == 0 {
            body["temperature"] = json!(0);
        } else {
            body["temperature"] = json!(0.9);
            body["top_p"] = json!(0.95);
            body["seed"] = json!(i);
            body["presence_penalty"] = json!(if i % 4 == 1 { 0.5 } else { 0.0 });
        }
        let (tenant, stream) = (i % shape.tenants, random.within(0..2) == 1);
        questions.push(Question {
            tenant,
            owner,
            prompt,
            stream,
            body,
        });
    }
    questions
}

fn length(i: usize, shape: Shape, random: &mut Random) -> usize {
    let (page, most) = (shape.page_size, shape.max_prompt);
    let corners = [
        1,
        most,
        page,
        page - 1,
        page + 1,
        2 * page,
        2,
        most / 2,
        most - 1,
    ];
    match corners.get(i) {
        Some(corner) => *corner,
        None => 1 + random.within(0..most as u64) as usize,
    }
}

/// What one choice said.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Choice {
    /// Its text.
    pub text: String,
    /// Its tokens as text.
    pub tokens: Vec<String>,
    /// Their log-probabilities, as they were written.
    pub logprobs: Vec<Value>,
    /// Why it ended.
    pub finish: Option<String>,
}

/// An answer, whichever way it came.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Heard {
    /// In order of their index.
    pub choices: Vec<Choice>,
    /// Of the usage.
    pub prompt_tokens: u64,
    /// Of the usage.
    pub completion_tokens: u64,
    /// Of the usage.
    pub total_tokens: u64,
}

impl Question {
    /// Asks, and gives what was heard and the prompt tokens that were cached.
    pub fn ask(&self, api: &Api) -> (Heard, u64) {
        self.ask_as(api, self.stream)
    }

    /// [`Question::ask`], streamed or not.
    pub fn ask_as(&self, api: &Api, stream: bool) -> (Heard, u64) {
        if stream {
            return hear(self.events(api));
        }
        let answer = api.post(COMPLETIONS, &self.body).good();
        let mut heard = Heard::default();
        heard.add(&answer);
        heard.close(&answer)
    }

    /// The stream of the answer.
    pub fn events(&self, api: &Api) -> Events {
        api.stream(COMPLETIONS, &self.streamed())
    }

    /// The request of a stream.
    pub fn streamed(&self) -> Value {
        let mut body = self.body.clone();
        body["stream"] = json!(true);
        body["stream_options"] = json!({"include_usage": true});
        body
    }

    /// Answers that were asked for.
    pub fn choices(&self) -> usize {
        self.body["n"].as_u64().unwrap_or(1) as usize
    }

    /// Asserts that the answer has the form that was asked for, with exact figures.
    pub fn check(&self, heard: &Heard) {
        let shown = &self.body;
        assert_eq!(heard.choices.len(), self.choices(), "{shown}");
        assert_eq!(heard.prompt_tokens, self.prompt.len() as u64, "{shown}");
        let most = shown["max_tokens"].as_u64().expect("it is set");
        let mut sum = 0;
        for choice in &heard.choices {
            let len = choice.tokens.len() as u64;
            assert_eq!(choice.logprobs.len() as u64, len, "{shown}");
            // A token that ends an answer is sampled and counted, and not shown.
            sum += match choice.finish.as_deref() {
                Some("length") => {
                    assert_eq!(len, most, "{shown}");
                    len
                }
                Some("stop") if shown["ignore_eos"] == false => {
                    assert!(len < most, "{shown}");
                    len + 1
                }
                other => panic!("finish_reason {other:?}: {shown}"),
            };
        }
        assert_eq!(heard.completion_tokens, sum, "{shown}");
        assert_eq!(heard.total_tokens, heard.prompt_tokens + sum, "{shown}");
    }
}

fn hear(events: Events) -> (Heard, u64) {
    let (events, done) = events.rest();
    assert!(done, "a stream ends with [DONE]: {:?}", events.last());
    let (usage, chunks) = events.split_last().expect("a stream has events");
    let mut heard = Heard::default();
    for chunk in chunks {
        assert!(chunk["usage"].is_null(), "usage comes last: {chunk}");
        heard.add(chunk);
    }
    heard.close(usage)
}

impl Heard {
    /// Adds the choices of an answer or a chunk.
    pub fn add(&mut self, answer: &Value) {
        assert!(answer["error"].is_null(), "{answer}");
        for said in answer["choices"].as_array().expect("choices") {
            let index = said["index"].as_u64().expect("an index") as usize;
            if self.choices.len() <= index {
                self.choices.resize(index + 1, Choice::default());
            }
            let choice = &mut self.choices[index];
            assert_eq!(choice.finish, None, "nothing follows the end of a choice");
            choice.text += said["text"].as_str().expect("text");
            let list = |key: &str| {
                said["logprobs"][key]
                    .as_array()
                    .cloned()
                    .unwrap_or_default()
            };
            let tokens = list("tokens");
            choice.tokens.extend(
                tokens
                    .iter()
                    .map(|it| it.as_str().expect("text").to_owned()),
            );
            choice.logprobs.extend(list("token_logprobs"));
            choice.finish = said["finish_reason"].as_str().map(str::to_owned);
        }
    }

    fn close(mut self, answer: &Value) -> (Heard, u64) {
        let usage = &answer["usage"];
        let figure = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("usage: {answer}"));
        self.prompt_tokens = figure(&usage["prompt_tokens"]);
        self.completion_tokens = figure(&usage["completion_tokens"]);
        self.total_tokens = figure(&usage["total_tokens"]);
        let cached = figure(&usage["prompt_tokens_details"]["cached_tokens"]);
        (self, cached)
    }
}

/// Whose markers could be said, by what they look like.
pub struct Markers(BTreeMap<[String; MARKER_TOKENS], usize>);

impl Markers {
    /// Every marker of every whole beginning of a page; `text_of` shows a token as answers do.
    pub fn of(questions: &[Question], page_size: usize, text_of: impl Fn(u32) -> String) -> Self {
        let mut markers = BTreeMap::new();
        for question in questions {
            for page in question
                .prompt
                .chunks(page_size)
                .filter(|it| it.len() >= MARKER_TOKENS)
            {
                let shown = std::array::from_fn(|i| text_of(page[i]));
                let other = markers.insert(shown, question.owner);
                assert!(
                    other.is_none_or(|it| it == question.owner),
                    "markers are distinct"
                );
            }
        }
        Markers(markers)
    }

    /// Markers in the answer that are not of its own prompt.
    pub fn foreign(&self, owner: usize, heard: &Heard) -> Vec<usize> {
        let windows = heard
            .choices
            .iter()
            .flat_map(|choice| choice.tokens.windows(MARKER_TOKENS));
        let said = windows.filter_map(|window| self.0.get(window));
        said.copied().filter(|said| *said != owner).collect()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }
}

/// SplitMix64: the same crowd on every machine.
struct Random(u64);

impl Random {
    fn within(&mut self, range: std::ops::Range<u64>) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        range.start + (z ^ (z >> 31)) % (range.end - range.start)
    }
}
