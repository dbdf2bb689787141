//! What is asked, and what came of it.

use crate::canary::{Marked, Tenant};
use crate::client::{HttpReply, Leave, NoReply};
use crate::finding::Sent;
use crate::matcher::Hit;
use serde_json::{Map, Value};

/// Tokens of an answer that are enough to go on with one's own canary; shorter answers cannot show
/// a foreign one either.
pub const TELLING: u32 = 16;

/// What is to be asked.
#[derive(Clone, Debug)]
pub struct Question {
    /// Who asks.
    pub tenant: Tenant,
    /// Marked sentences in the prompt.
    pub sentences: usize,
    /// Whether the prompt ends with the beginning of one sentence more. Without, its last token is a
    /// full stop, which every prompt of ours has many of: a model that attends to foreign ones goes
    /// on with their next sentence.
    pub open: bool,
    /// Single-token words after them.
    pub filler: usize,
    /// Tokens of the answer.
    pub max_tokens: u32,
    /// Whether it is streamed.
    pub stream: bool,
    /// When the client leaves.
    pub leave: Leave,
    /// Headers beside the usual ones.
    pub headers: Vec<(String, String)>,
    /// Fields beside the usual ones.
    pub fields: Map<String, Value>,
    /// Tokens of the prompt, where they are known before it is sent.
    pub tokens: Option<u64>,
    /// Another request's text in place of a new one: the same prompt once more.
    pub like: Option<Marked>,
    /// Whether a sound server refuses it, be it with an error of its own (5xx).
    pub refused: bool,
    /// Whether log-probabilities and token ids are asked for too, if the server takes such a request.
    pub details: bool,
}

impl Question {
    /// A short prompt of a tenant.
    pub fn new(tenant: Tenant, sentences: usize) -> Self {
        Self {
            tenant,
            sentences,
            open: true,
            filler: 0,
            max_tokens: 24,
            stream: false,
            leave: Leave::Never,
            headers: Vec::new(),
            fields: Map::new(),
            tokens: None,
            like: None,
            refused: false,
            details: false,
        }
    }
}

/// The prompt: marked sentences, filler, and (`open`) the beginning of one sentence more, which a
/// model that attends to its own prompt goes on with.
pub fn prompt(marked: &Marked, filler: usize, open: bool) -> String {
    let mut prompt = marked.text();
    prompt.push_str(&" a".repeat(filler));
    if open && !marked.is_empty() {
        prompt.push(' ');
        prompt.push_str(&marked.opening());
    }
    prompt
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct ProbeAnswer {
    /// Whose canaries stood in the prompt.
    pub marked: Marked,
    /// Tokens that the answer could have.
    pub max_tokens: u32,
    /// Tokens of the prompt, where they were known before it was sent.
    pub tokens: Option<u64>,
    /// Whether a refusal was wanted.
    pub refused: bool,
    /// The request.
    pub sent: Sent,
    /// What came back.
    pub reply: Result<HttpReply, NoReply>,
    /// Canaries of others in it.
    pub foreign: Vec<Hit>,
    /// The longest run of its own canary.
    pub own: usize,
}

/// Statuses that say to come again: 529 is what some say for 503; 408 and 425 are of connections.
pub(crate) fn is_busy(status: u16) -> bool {
    matches!(status, 408 | 425 | 429 | 503 | 529)
}

impl ProbeAnswer {
    /// The status, if there was one: an error in an answer with 200 counts as what it says it is.
    pub fn status(&self) -> Option<u16> {
        self.reply.as_ref().ok().map(HttpReply::worth)
    }

    /// The text of a complete answer with 200.
    pub fn text(&self) -> Option<&str> {
        let reply = self.reply.as_ref().ok()?;
        let whole = reply.status == 200 && !reply.said.unfinished && reply.said.error.is_none();
        whole.then_some(reply.said.text.as_str())
    }

    /// Tokens of the prompt, as the answer counts them.
    pub fn prompt_tokens(&self) -> Option<u64> {
        self.reply.as_ref().ok()?.said.prompt_tokens
    }

    /// Whether the server is busy, or somebody before it: a sound one answers so, and to come again.
    pub fn is_busy(&self) -> bool {
        self.status().is_some_and(is_busy)
    }

    /// Whether it says that its prompt was cut.
    pub fn says_cut(&self) -> Option<&str> {
        self.reply.as_ref().ok()?.said.truncated.as_deref()
    }

    /// Whether it goes on with its own canary: the positive control.
    pub fn copies(&self) -> bool {
        self.own >= crate::matcher::COPIES
    }
}
