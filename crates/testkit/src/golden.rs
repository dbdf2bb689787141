use std::sync::LazyLock;

use serde::Deserialize;

/// What a float32 reference and llama.cpp say about the real weights
/// ([`weights`](crate::weights)); `about` in the file says how it was made.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Golden {
    /// The weights.
    pub model: String,
    /// How the figures were made.
    pub about: String,
    /// 12 completions and 12 chats, continued greedily by the reference.
    pub cases: Vec<Case>,
    /// Texts and their tokens; special tokens in the text are parsed.
    pub tokenizer: Vec<TokenizerVector>,
    /// A passage to be predicted token by token.
    pub perplexity: Perplexity,
}

/// A prompt and its greedy continuation.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// Whether the prompt is a text to be continued or the content of one user message.
    pub kind: Kind,
    /// The text, before the chat template.
    pub prompt: String,
    /// The whole prompt in tokens, after the chat template.
    pub prompt_ids: Vec<u32>,
    /// The reference's greedy continuation: at most 32 tokens; shorter ones end with 2.
    pub greedy_ids: Vec<u32>,
    /// Its text, special tokens included.
    pub greedy_text: String,
    /// Natural logarithm of the probability of each token of `greedy_ids`.
    pub logprob: Vec<f64>,
    /// How much less the logit of the second most likely token is.
    pub margin_to_second: Vec<f64>,
    /// llama.cpp's `logprob` along the same tokens.
    pub llama_cpp_logprob: Vec<f64>,
    /// llama.cpp's most likely token at each place.
    pub llama_cpp_argmax: Vec<u32>,
}

/// How the prompt of a [`Case`] is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A text to be continued.
    Completion,
    /// The content of the only message, by the user; the assistant is to speak next.
    Chat,
}

/// A text and its tokens.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenizerVector {
    /// The text.
    pub text: String,
    /// Its tokens, special tokens parsed, no BOS.
    pub ids: Vec<u32>,
}

/// A passage, and how well it is predicted.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Perplexity {
    /// The passage.
    pub text: String,
    /// Number of its tokens.
    pub tokens: usize,
    /// Its tokens.
    pub ids: Vec<u32>,
    /// Mean negative log-likelihood of tokens 1 and up, each given all before it.
    pub mean_nll: f64,
    /// The same by llama.cpp.
    pub llama_cpp_mean_nll: f64,
}

/// The reference figures.
pub fn golden() -> &'static Golden {
    static GOLDEN: LazyLock<Golden> = LazyLock::new(|| {
        let text = include_str!("../data/golden.json");
        serde_json::from_str(text).expect("data/golden.json has the fields of `Golden`")
    });
    &GOLDEN
}
