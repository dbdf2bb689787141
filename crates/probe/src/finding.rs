//! What a run found, and the requests that show it again.

use crate::canary::Author;
use crate::chance::{Class, Depth};
use serde::Serialize;
use serde_json::{Map, Value};
use std::fmt;

/// Kinds of findings, worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// An answer holds another request's canary, of another tenant.
    Leak,
    /// An answer holds another request's canary, of the same tenant: pages are mixed up, though no
    /// boundary was crossed.
    Mixup,
    /// The answer of a request is another under load, or at a boundary, than the server's own.
    WrongAnswer,
    /// A prompt over the limit was answered with 200, or a prompt's tokens were not counted as sent.
    SilentAcceptance,
    /// The server does not answer any more after what it was asked, or its engine has died.
    Crash,
    /// No answer within the time for one.
    Hang,
    /// An error of a class that tells the client to do the wrong thing.
    WrongErrorClass,
    /// What one tenant has asked, or what was asked under one salt or adapter, is reused for another,
    /// who can tell.
    SharedPrefix,
    /// Something that only operators should reach answers to everybody.
    OpenControl,
    /// Worth a look; proves nothing.
    Suspect,
}

impl Kind {
    /// Whether a run with such a finding is not clean.
    pub fn convicts(self) -> bool {
        self != Self::Suspect
    }

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Leak => "leak",
            Self::Mixup => "mixup",
            Self::WrongAnswer => "wrong answer",
            Self::SilentAcceptance => "silent acceptance",
            Self::Crash => "crash",
            Self::Hang => "hang",
            Self::WrongErrorClass => "wrong error class",
            Self::SharedPrefix => "shared prefix",
            Self::OpenControl => "open control endpoint",
            Self::Suspect => "suspect",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A request that can be sent again. Its key is not part of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sent {
    /// HTTP method.
    pub method: &'static str,
    /// Which of the tenants: the key to use; none is without.
    pub tenant: Option<String>,
    /// Where to.
    pub url: String,
    /// Headers beside the usual ones.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Map<String, Value>,
}

impl Sent {
    /// The text of the prompt.
    pub fn prompt(&self) -> Option<&str> {
        let body = &self.body;
        let text = body.get("prompt").or_else(|| body.get("text"));
        text.or_else(|| body.get("messages")?.pointer("/0/content"))?
            .as_str()
    }

    /// The same with another text.
    #[must_use]
    pub fn with_prompt(&self, text: String) -> Sent {
        let mut sent = self.clone();
        let body = &mut sent.body;
        for name in ["prompt", "text"] {
            if let Some(slot) = body.get_mut(name) {
                *slot = Value::String(text);
                return sent;
            }
        }
        let content = body.get_mut("messages");
        if let Some(slot) = content.and_then(|it| it.pointer_mut("/0/content")) {
            *slot = Value::String(text);
        }
        sent
    }

    /// For a shell; `$KEY_A` is tenant A's key.
    pub fn curl(&self) -> String {
        let quote = |text: &str| format!("'{}'", text.replace('\'', "'\\''"));
        let mut words = vec!["curl".to_owned(), "-sS".to_owned()];
        if self.method != "POST" {
            words.extend(["-X".to_owned(), self.method.to_owned()]);
        }
        words.push(quote(&self.url));
        let mut header = |text: String| words.extend(["-H".to_owned(), text]);
        if let Some(tenant) = &self.tenant {
            header(format!("\"Authorization: Bearer $KEY_{tenant}\""));
        }
        for (name, value) in &self.headers {
            header(quote(&format!("{name}: {value}")));
        }
        if !self.body.is_empty() {
            header("'Content-Type: application/json'".to_owned());
            let body = serde_json::to_string(&self.body).expect("made of strings and numbers");
            words.extend(["-d".to_owned(), quote(&body)]);
        }
        words.join(" ")
    }
}

/// Words of a request's canary that an answer to another holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quoted {
    /// Whose they are.
    pub author: Author,
    /// How many in a row.
    pub words: usize,
    /// How the answer was read.
    pub depth: Depth,
    /// Another tenant's, or not.
    pub class: Class,
}

/// How a finding is recognised when its requests are sent once more.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Symptom {
    /// It is not: one time proves nothing, or sending it again would do harm.
    None,
    /// The last answer holds words of this author's canary.
    Foreign(Author),
    /// The last request is answered with 200, although its prompt is longer than so many tokens.
    Over(u64),
    /// The last request is answered with this status.
    Status(u16),
}

/// A smaller reproduction.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Shrunk {
    /// The requests that still show it; empty if it did not show again.
    pub shows: Vec<Sent>,
    /// Requests that it took to find out.
    pub tried: u32,
}

/// Something that was found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProbeFinding {
    /// What kind.
    pub kind: Kind,
    /// The suite that found it.
    pub suite: &'static str,
    /// In one sentence, with the figures.
    pub says: String,
    /// Whose text it was, word for word, if it is about text.
    pub quote: Option<String>,
    /// Where the words come from, if they are a canary's.
    #[serde(skip)]
    pub quoted: Option<Quoted>,
    /// Requests that show it, in the order in which they were sent.
    pub shows: Vec<Sent>,
    /// How it would be recognised.
    #[serde(skip)]
    pub proof: Symptom,
    /// A smaller reproduction, if one was looked for.
    pub shrunk: Option<Shrunk>,
}

impl ProbeFinding {
    /// A finding about no text.
    pub fn new(kind: Kind, suite: &'static str, says: String, shows: Vec<Sent>) -> Self {
        Self {
            kind,
            suite,
            says,
            quote: None,
            quoted: None,
            shows,
            proof: Symptom::None,
            shrunk: None,
        }
    }
}
