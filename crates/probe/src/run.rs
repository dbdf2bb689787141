//! A run: asks within a budget, plants canaries, and looks at every text that comes back.

use crate::budget::Budget;
use crate::canary::{Author, Canaries, Marked, Tenant};
use crate::client::{Endpoint, Leave, NoReply, Reply};
use crate::finding::{Finding, Kind, Sent};
use crate::matcher::{Hit, Matcher};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// Requests whose bodies are kept for reproductions.
const KEPT: usize = 256;
/// Findings that are kept of one kind and suite; further ones are counted.
const FINDINGS: usize = 5;

/// What is to be asked.
#[derive(Clone, Debug)]
pub struct Ask {
    /// Who asks.
    pub tenant: Tenant,
    /// Marked sentences in the prompt.
    pub sentences: usize,
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
    /// Another request's text in place of a new one: the same prompt once more.
    pub like: Option<Marked>,
}

impl Ask {
    /// A short prompt of a tenant.
    pub fn new(tenant: Tenant, sentences: usize) -> Self {
        Self {
            tenant,
            sentences,
            filler: 0,
            max_tokens: 24,
            stream: false,
            leave: Leave::Never,
            headers: Vec::new(),
            fields: Map::new(),
            like: None,
        }
    }
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Whose canaries stood in the prompt.
    pub marked: Marked,
    /// The request.
    pub sent: Sent,
    /// What came back.
    pub reply: Result<Reply, NoReply>,
    /// Canaries of others in it.
    pub foreign: Vec<Hit>,
    /// The longest run of its own canary.
    pub own: usize,
}

impl Answer {
    /// The HTTP status, if there was one.
    pub fn status(&self) -> Option<u16> {
        self.reply.as_ref().ok().map(|it| it.status)
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
}

/// Why nothing more is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Spent {
    /// The requests of the budget.
    #[error("the budget of requests is spent")]
    Requests,
    /// The tokens of the budget.
    #[error("the budget of tokens is spent")]
    Tokens,
    /// The time of the budget.
    #[error("the budget of time is spent")]
    Time,
    /// The canaries that can be kept.
    #[error("more canaries would not fit into memory")]
    Canaries,
}

/// Counts of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests sent.
    pub requests: u64,
    /// Complete answers with 200.
    pub answered: u64,
    /// Of these, with at least five consecutive words of their own canary: the positive control.
    pub own_seen: u64,
    /// Tokens, as answers count them.
    pub tokens: u64,
    /// Answers by status; 0 is none.
    pub by_status: BTreeMap<u16, u64>,
    /// Suites that did not end because the budget did.
    pub cut_short: BTreeSet<String>,
    /// Findings by kind and suite, those that were not kept too.
    pub findings: BTreeMap<(Kind, &'static str), u64>,
}

struct Inside {
    matcher: Matcher,
    counts: Counts,
    findings: Vec<Finding>,
    kept: BTreeMap<Author, Sent>,
    next: BTreeMap<Tenant, u32>,
    next_start: Instant,
}

/// See the module.
pub struct Run {
    endpoints: BTreeMap<Tenant, Endpoint>,
    canaries: Canaries,
    budget: Budget,
    begin: Instant,
    places: Semaphore,
    inside: Mutex<Inside>,
}

impl Run {
    /// A run against these endpoints, one for each tenant.
    pub fn new(endpoints: BTreeMap<Tenant, Endpoint>, seed: [u8; 32], budget: Budget) -> Self {
        let begin = Instant::now();
        Self {
            endpoints,
            canaries: Canaries::new(seed),
            budget,
            begin,
            places: Semaphore::new(budget.at_once.max(1)),
            inside: Mutex::new(Inside {
                matcher: Matcher::default(),
                counts: Counts::default(),
                findings: Vec::new(),
                kept: BTreeMap::new(),
                next: BTreeMap::new(),
                next_start: begin,
            }),
        }
    }

    /// The tenants.
    pub fn tenants(&self) -> Vec<Tenant> {
        self.endpoints.keys().copied().collect()
    }

    /// Requests that may be under way at once.
    pub fn at_once(&self) -> usize {
        self.budget.at_once.max(1)
    }

    /// Asks, and looks at what comes back. `suite` is who wants to know.
    ///
    /// # Errors
    /// The budget is spent.
    pub async fn ask(&self, suite: &'static str, ask: Ask) -> Result<Answer, Spent> {
        let endpoint = &self.endpoints[&ask.tenant];
        self.ask_at(suite, endpoint, ask).await
    }

    /// The same of another server.
    ///
    /// # Errors
    /// The budget is spent.
    pub async fn ask_at(
        &self,
        suite: &'static str,
        endpoint: &Endpoint,
        ask: Ask,
    ) -> Result<Answer, Spent> {
        let _place = self.places.acquire().await.expect("never closed");
        let (marked, start) = self.begin(suite, &ask)?;
        tokio::time::sleep_until(start).await;
        let prompt = prompt(&marked, ask.filler);
        let model = endpoint.model.as_deref();
        let mut body = endpoint
            .dialect
            .body(model, &prompt, ask.max_tokens, ask.stream);
        body.extend(ask.fields.clone());
        let sent = Sent {
            tenant: ask.tenant.to_string(),
            url: endpoint
                .address
                .with_path(endpoint.dialect.path())
                .to_string(),
            headers: ask.headers.clone(),
            body,
        };
        let limit = self.budget.request_time;
        let reply = endpoint
            .ask(&sent.body, &sent.headers, ask.leave, limit)
            .await;
        Ok(self.look(suite, marked, sent, reply))
    }

    /// Takes what a request needs from the budget.
    fn begin(&self, suite: &'static str, ask: &Ask) -> Result<(Marked, Instant), Spent> {
        let mut inside = self.inside();
        let spent = match &inside.counts {
            it if it.requests >= self.budget.requests => Some(Spent::Requests),
            it if it.tokens >= self.budget.tokens => Some(Spent::Tokens),
            _ if self.begin.elapsed() >= self.budget.time => Some(Spent::Time),
            _ => None,
        };
        if let Some(spent) = spent {
            inside.counts.cut_short.insert(suite.to_owned());
            return Err(spent);
        }
        let marked = match &ask.like {
            Some(marked) => marked.clone(),
            None => {
                let next = inside.next.entry(ask.tenant).or_default();
                let request = *next;
                *next += 1;
                let tenant = ask.tenant;
                let marked = self
                    .canaries
                    .mark(Author { tenant, request }, ask.sentences);
                if inside.matcher.plant(&marked).is_err() {
                    inside.counts.cut_short.insert(suite.to_owned());
                    return Err(Spent::Canaries);
                }
                marked
            }
        };
        inside.counts.requests += 1;
        let start = inside.next_start.max(Instant::now());
        if self.budget.rate > 0.0 {
            inside.next_start = start + Duration::from_secs_f64(1.0 / self.budget.rate);
        }
        Ok((marked, start))
    }

    fn look(
        &self,
        suite: &'static str,
        marked: Marked,
        sent: Sent,
        reply: Result<Reply, NoReply>,
    ) -> Answer {
        let mut inside = self.inside();
        let (mut foreign, mut own) = (Vec::new(), 0);
        if let Ok(reply) = &reply {
            for text in &reply.said.everything {
                for hit in inside.matcher.find(text) {
                    match hit.author == marked.author {
                        true => own = own.max(hit.words),
                        false => foreign.push(hit),
                    }
                }
            }
        }
        let answer = Answer {
            marked,
            sent,
            reply,
            foreign,
            own,
        };
        inside.count(&answer);
        for finding in inside.judge(suite, &answer, self.budget.request_time) {
            inside.found(finding);
        }
        let author = answer.marked.author;
        if inside.kept.len() >= KEPT {
            inside.kept.pop_first();
        }
        inside.kept.insert(author, answer.sent.clone());
        answer
    }

    /// Adds a finding of a suite.
    pub fn found(&self, finding: Finding) {
        self.inside().found(finding);
    }

    /// What was counted so far.
    pub fn counts(&self) -> Counts {
        self.inside().counts.clone()
    }

    /// What was found so far, worst first.
    pub fn findings(&self) -> Vec<Finding> {
        let mut findings = self.inside().findings.clone();
        findings.sort_by_key(|it| it.kind);
        findings
    }

    /// The chance that a leak was reported of a server that does not leak; and what was looked at:
    /// places in canaries, places in texts.
    pub fn chance(&self) -> (f64, (u64, u64)) {
        let inside = self.inside();
        (inside.matcher.chance(), inside.matcher.looked_at())
    }

    fn inside(&self) -> std::sync::MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(|it| it.into_inner())
    }
}

/// The prompt: marked sentences, filler, and the beginning of one sentence more, which a model
/// that attends to its own prompt goes on with.
fn prompt(marked: &Marked, filler: usize) -> String {
    let mut prompt = marked.text();
    prompt.push_str(&" a".repeat(filler));
    if !marked.is_empty() {
        prompt.push(' ');
        prompt.push_str(&marked.opening());
    }
    prompt
}

impl Inside {
    fn count(&mut self, answer: &Answer) {
        let counts = &mut self.counts;
        *counts
            .by_status
            .entry(answer.status().unwrap_or(0))
            .or_default() += 1;
        if let Ok(reply) = &answer.reply {
            let said = &reply.said;
            counts.tokens += said.prompt_tokens.unwrap_or(0) + said.completion_tokens.unwrap_or(0);
        }
        if answer.text().is_some() {
            counts.answered += 1;
            counts.own_seen += u64::from(answer.own >= 5);
        }
    }

    /// What every answer is judged for, whatever suite it belongs to.
    fn judge(&self, suite: &'static str, answer: &Answer, limit: Duration) -> Vec<Finding> {
        let mut findings = Vec::new();
        let finding = |kind, says, quote, shows| Finding {
            kind,
            suite,
            says,
            quote,
            shows,
        };
        let mine = answer.marked.author;
        // The longest run of each author is enough.
        let mut named = BTreeSet::new();
        for hit in answer.foreign.iter().filter(|it| named.insert(it.author)) {
            let kind = match (hit.is_leak(), hit.author.tenant == mine.tenant) {
                (false, _) => Kind::Suspect,
                (true, true) => Kind::Mixup,
                (true, false) => Kind::Leak,
            };
            let place = match hit.sentence {
                Some(sentence) => format!("sentence {sentence} of {}", hit.author),
                None => format!("{}", hit.author),
            };
            let says = format!(
                "{} consecutive words of {place} in the answer to {mine} (status {})",
                hit.words,
                answer.status().unwrap_or(0)
            );
            let source = self.kept.get(&hit.author).cloned();
            let shows = source.into_iter().chain([answer.sent.clone()]).collect();
            findings.push(finding(kind, says, Some(hit.quote.clone()), shows));
        }
        let shows = || vec![answer.sent.clone()];
        match &answer.reply {
            Err(NoReply::Hang(_)) => {
                let says = format!("no answer to {mine} within {} s", limit.as_secs());
                findings.push(finding(Kind::Hang, says, None, shows()));
            }
            Ok(reply) if reply.status == 200 && reply.said.garbage.is_some() => {
                let why = reply.said.garbage.as_deref().unwrap_or_default();
                let says = format!("200 with a body that is not what it claims to be: {why}");
                findings.push(finding(Kind::WrongErrorClass, says, None, shows()));
            }
            _ => {}
        }
        findings
    }

    fn found(&mut self, finding: Finding) {
        let n = self
            .counts
            .findings
            .entry((finding.kind, finding.suite))
            .or_default();
        *n += 1;
        if *n <= FINDINGS as u64 {
            self.findings.push(finding);
        }
    }
}
