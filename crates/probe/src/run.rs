//! A run: asks within a budget, plants canaries, and looks at every text that comes back.

use crate::ask::{ProbeAnswer, Question, prompt};
use crate::budget::Budget;
use crate::canary::{Author, Canaries, Marked, Tenant};
use crate::chance::{CHANCE_MAX, DEPTHS, Depth, Places};
use crate::client::{HttpReply, Leave, NoReply, TenantEndpoint};
use crate::counts::RunCounts;
use crate::finding::{ProbeFinding, Sent, Shrunk};
use crate::judge::Judge;
use crate::matcher::{Hit, Matcher};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// Requests whose bodies are kept for reproductions.
const KEPT: usize = 256;
/// Refused connections one after the other after which nobody is there.
const GONE_AFTER: u32 = 3;

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
    /// A finding, and one was wanted.
    #[error("something was found, and the first finding ends this run")]
    Found,
    /// The server.
    #[error("the server is not reached any more")]
    Gone,
    /// The canaries that can be kept.
    #[error("more canaries would not fit into memory")]
    Canaries,
}

/// What a server does with a short request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Liveness {
    /// It answers.
    Answers,
    /// It answers with an error of its own.
    Fails(u16),
    /// It is not reached, or says nothing.
    Gone,
}

/// What came of a request that was sent once more.
#[derive(Clone, Debug, Default)]
pub struct Again {
    /// The HTTP status, if there was one.
    pub status: Option<u16>,
    /// Tokens of its prompt, as the answer counts them.
    pub prompt_tokens: Option<u64>,
    /// Canaries in the answer, its own too.
    pub hits: Vec<Hit>,
}

/// What changes while a run goes on.
pub(crate) struct Inside {
    pub(crate) matcher: Matcher,
    pub(crate) counts: RunCounts,
    pub(crate) judge: Judge,
    /// The last requests, oldest first.
    pub(crate) kept: VecDeque<(Author, Sent)>,
    /// Connections to each server that were refused, one after the other.
    refused: BTreeMap<String, u32>,
    /// Whether each tenant's server takes requests for details, and for token ids among them.
    details: BTreeMap<Tenant, Option<bool>>,
    /// Whether the last answer was an error of the server, or nobody was there.
    fails: bool,
    /// The last requests before that began.
    last_words: Vec<Sent>,
    /// What the suites have to say beside findings.
    notes: Vec<(&'static str, String)>,
    /// The number of each tenant's next request.
    next: BTreeMap<Tenant, u32>,
    /// When the next request may start.
    next_start: Instant,
}

/// See the module.
pub struct ProbeRun {
    endpoints: BTreeMap<Tenant, TenantEndpoint>,
    canaries: Canaries,
    budget: Budget,
    begin: Instant,
    places: Semaphore,
    inside: Mutex<Inside>,
}

impl ProbeRun {
    /// A run against these endpoints, one for each tenant.
    pub fn new(
        endpoints: BTreeMap<Tenant, TenantEndpoint>,
        seed: [u8; 32],
        budget: Budget,
    ) -> Self {
        let begin = Instant::now();
        Self {
            endpoints,
            canaries: Canaries::new(seed),
            budget,
            begin,
            places: Semaphore::new(budget.at_once.max(1)),
            inside: Mutex::new(Inside {
                matcher: Matcher::default(),
                counts: RunCounts::default(),
                judge: Judge::default(),
                kept: VecDeque::new(),
                refused: BTreeMap::new(),
                fails: false,
                last_words: Vec::new(),
                details: BTreeMap::new(),
                notes: Vec::new(),
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

    /// The server, as a tenant reaches it.
    pub fn endpoint(&self, tenant: Tenant) -> &TenantEndpoint {
        &self.endpoints[&tenant]
    }

    /// Asks, and looks at what comes back. `suite` is who wants to know.
    ///
    /// # Errors
    /// The budget is spent.
    pub async fn ask(&self, suite: &'static str, ask: Question) -> Result<ProbeAnswer, Spent> {
        let endpoint = self.endpoint(ask.tenant);
        self.ask_at(suite, endpoint, ask).await
    }

    /// The same of another server.
    ///
    /// # Errors
    /// The budget is spent.
    pub async fn ask_at(
        &self,
        suite: &'static str,
        endpoint: &TenantEndpoint,
        ask: Question,
    ) -> Result<ProbeAnswer, Spent> {
        let details = match ask.details {
            true => self.details(suite, ask.tenant).await?,
            false => None,
        };
        let _place = self.places.acquire().await.expect("never closed");
        let (marked, start) = self.begin(suite, &ask)?;
        tokio::time::sleep_until(start).await;
        let prompt = prompt(&marked, ask.filler, ask.open);
        let model = endpoint.model.as_deref();
        let dialect = endpoint.dialect;
        let mut body = dialect.body(model, &prompt, ask.max_tokens, ask.stream);
        body.extend(ask.fields.clone());
        body.extend(details.into_iter().flatten());
        let sent = Sent {
            method: "POST",
            tenant: Some(ask.tenant.to_string()),
            url: endpoint.address.with_path(dialect.path()).to_string(),
            headers: ask.headers.clone(),
            body,
        };
        let (limit, ends) = self.patience();
        let reply = endpoint.ask(&sent, ask.leave, limit).await;
        if ends && matches!(reply, Err(NoReply::Hang(_))) {
            return Err(self.cut_short(suite, Spent::Time));
        }
        Ok(self.look(suite, &ask, marked, sent, reply))
    }

    /// How long the next request may take, and whether the budget ends then.
    fn patience(&self) -> (Duration, bool) {
        let left = self.budget.time.saturating_sub(self.begin.elapsed());
        let limit = self.budget.request_time;
        (limit.min(left), left < limit)
    }

    fn cut_short(&self, suite: &'static str, spent: Spent) -> Spent {
        let mut inside = self.inside();
        inside.counts.cut_short.insert(suite.to_owned());
        spent
    }

    /// Fields for log-probabilities and token ids, as far as a tenant's server takes them: it is asked
    /// once.
    async fn details(
        &self,
        suite: &'static str,
        tenant: Tenant,
    ) -> Result<Option<Map<String, Value>>, Spent> {
        let known = self.inside().details.get(&tenant).copied();
        if let Some(with_ids) = known {
            let dialect = self.endpoint(tenant).dialect;
            return Ok(with_ids.map(|it| dialect.details(it)));
        }
        // Whoever asks at the same time does without.
        self.inside().details.insert(tenant, None);
        let dialect = self.endpoint(tenant).dialect;
        let mut status = 0;
        for with_ids in [true, false] {
            let mut ask = Question::new(tenant, 2);
            ask.max_tokens = 8; // too short to be a positive control
            ask.fields = dialect.details(with_ids);
            let answer = Box::pin(self.ask(suite, ask)).await?;
            status = answer.status().unwrap_or(0);
            if answer.text().is_some() {
                self.inside().details.insert(tenant, Some(with_ids));
                return Ok(Some(dialect.details(with_ids)));
            }
        }
        let says = format!(
            "log-probabilities and token ids were not looked at: tenant {tenant} is answered \
             {status} when it asks for them"
        );
        self.note(suite, says);
        Ok(None)
    }

    /// Keeps what a suite has to say beside findings.
    pub fn note(&self, suite: &'static str, says: String) {
        let mut inside = self.inside();
        let note = (suite, says);
        if !inside.notes.contains(&note) {
            inside.notes.push(note);
        }
    }

    /// What the suites had to say.
    pub fn notes(&self) -> Vec<(&'static str, String)> {
        self.inside().notes.clone()
    }

    /// Tokens of the budget that are left.
    pub fn tokens_left(&self) -> u64 {
        let spent = self.inside().counts.tokens;
        self.budget.tokens.saturating_sub(spent)
    }

    /// Takes what a request needs from the budget.
    fn begin(&self, suite: &'static str, ask: &Question) -> Result<(Marked, Instant), Spent> {
        let taken = self.take(&mut self.inside(), ask);
        taken.map_err(|spent| self.cut_short(suite, spent))
    }

    fn take(&self, inside: &mut Inside, ask: &Question) -> Result<(Marked, Instant), Spent> {
        let start = self.turn(inside, true)?;
        let marked = self.drawn(inside, ask)?;
        Ok((marked, start))
    }

    /// The text of a request that will be sent to more than one server.
    ///
    /// # Errors
    /// No more fits into memory.
    pub fn marked(&self, suite: &'static str, ask: &Question) -> Result<Marked, Spent> {
        let mut inside = self.inside();
        let drawn = self.drawn(&mut inside, ask);
        if drawn.is_err() {
            inside.counts.cut_short.insert(suite.to_owned());
        }
        drawn
    }

    fn drawn(&self, inside: &mut Inside, ask: &Question) -> Result<Marked, Spent> {
        if let Some(marked) = &ask.like {
            return Ok(marked.clone());
        }
        let tenant = ask.tenant;
        let next = inside.next.entry(tenant).or_default();
        let request = *next;
        *next += 1;
        let author = Author { tenant, request };
        let marked = self.canaries.mark(author, ask.sentences);
        let planted = inside.matcher.plant(&marked);
        planted.map_err(|_| Spent::Canaries)?;
        Ok(marked)
    }

    /// When one more request may be sent; `anybody` says whether somebody must be known to be there.
    fn turn(&self, inside: &mut Inside, anybody: bool) -> Result<Instant, Spent> {
        let gone = inside.nobody_is_there();
        let counts = &mut inside.counts;
        if counts.requests >= self.budget.requests {
            return Err(Spent::Requests);
        }
        if counts.tokens >= self.budget.tokens {
            return Err(Spent::Tokens);
        }
        if self.begin.elapsed() >= self.budget.time {
            return Err(Spent::Time);
        }
        if anybody && gone {
            return Err(Spent::Gone);
        }
        let mut found = counts.findings.keys();
        let until = self.budget.until;
        if found.any(|(kind, _)| until.is_some_and(|it| *kind <= it)) {
            return Err(Spent::Found);
        }
        counts.requests += 1;
        let start = inside.next_start.max(Instant::now());
        if self.budget.rate > 0.0 {
            inside.next_start = start + Duration::from_secs_f64(1.0 / self.budget.rate);
        }
        Ok(start)
    }

    /// The status of an empty request to another path of the server; `None` if nothing came back.
    ///
    /// # Errors
    /// The budget is spent.
    pub async fn status(
        &self,
        suite: &'static str,
        tenant: Tenant,
        method: http::Method,
        path: &str,
        with_key: bool,
    ) -> Result<Option<u16>, Spent> {
        let _place = self.places.acquire().await.expect("never closed");
        let turn = self.turn(&mut self.inside(), true);
        let start = turn.map_err(|spent| self.cut_short(suite, spent))?;
        tokio::time::sleep_until(start).await;
        let endpoint = self.endpoint(tenant);
        let asked = endpoint.status(method, path, with_key, self.patience().0);
        Ok(asked.await.ok())
    }

    fn look(
        &self,
        suite: &'static str,
        ask: &Question,
        marked: Marked,
        sent: Sent,
        reply: Result<HttpReply, NoReply>,
    ) -> ProbeAnswer {
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
        inside.reached(&sent, &reply);
        let answer = ProbeAnswer {
            marked,
            max_tokens: ask.max_tokens,
            tokens: ask.tokens,
            refused: ask.refused,
            sent,
            reply,
            foreign,
            own,
        };
        inside.counts.take(ask.tenant, &answer);
        inside.look(suite, &answer, self.budget.request_time);
        if inside.kept.len() >= KEPT {
            inside.kept.pop_front();
        }
        let kept = (answer.marked.author, answer.sent.clone());
        inside.kept.push_back(kept);
        answer
    }

    /// A canary of this run in these texts, with so many words in a row.
    pub fn quoted(&self, texts: &[String], words: usize) -> Option<Hit> {
        let mut inside = self.inside();
        let mut hits = texts.iter().flat_map(|text| inside.matcher.find(text));
        hits.find(|hit| hit.depth == Depth::Plain && hit.words >= words)
    }

    /// Adds a finding of a suite.
    pub fn found(&self, finding: ProbeFinding) {
        self.inside().found(finding);
    }

    /// Whether a server is there and answers: one short request without a canary.
    ///
    /// # Errors
    /// The budget is spent.
    pub async fn lives(
        &self,
        endpoint: &TenantEndpoint,
        tenant: Tenant,
    ) -> Result<Liveness, Spent> {
        let _place = self.places.acquire().await.expect("never closed");
        let start = self.turn(&mut self.inside(), false)?;
        tokio::time::sleep_until(start).await;
        let dialect = endpoint.dialect;
        let sent = Sent {
            method: "POST",
            tenant: Some(tenant.to_string()),
            url: endpoint.address.with_path(dialect.path()).to_string(),
            headers: Vec::new(),
            body: dialect.body(endpoint.model.as_deref(), "one two three", 1, false),
        };
        let reply = endpoint.ask(&sent, Leave::Never, self.patience().0).await;
        Ok(match reply {
            Ok(reply) => {
                self.inside().refused.insert(server(&sent.url), 0);
                match reply.worth() {
                    status @ 500.. => Liveness::Fails(status),
                    _ => Liveness::Answers,
                }
            }
            Err(_) => Liveness::Gone,
        })
    }

    /// Whether a server is not reached any more, and that was found out already.
    pub fn nobody_is_there(&self) -> bool {
        self.inside().nobody_is_there()
    }

    /// This server is dead: nothing more is asked.
    pub fn gave_up(&self, endpoint: &TenantEndpoint) {
        let url = endpoint.address.with_path("/").to_string();
        self.inside().refused.insert(server(&url), GONE_AFTER);
    }

    /// The last requests before nobody was there or errors of the server began, and the first of those.
    pub fn last_words(&self) -> Vec<Sent> {
        self.inside().last_words.clone()
    }

    /// Sends a request of a finding once more, as it is or smaller, to the tenants' server.
    ///
    /// # Errors
    /// The budget is spent.
    pub async fn again(&self, sent: &Sent) -> Result<Again, Spent> {
        let _place = self.places.acquire().await.expect("never closed");
        let start = self.turn(&mut self.inside(), true)?;
        tokio::time::sleep_until(start).await;
        let tenant = self.tenants().into_iter();
        let mut tenant = tenant.filter(|it| Some(it.to_string()) == sent.tenant);
        let endpoint = self.endpoint(tenant.next().unwrap_or(self.tenants()[0]));
        let (limit, _) = self.patience();
        let Ok(reply) = endpoint.ask(sent, Leave::Never, limit).await else {
            return Ok(Again::default());
        };
        let mut inside = self.inside();
        let said = &reply.said;
        inside.counts.tokens +=
            said.prompt_tokens.unwrap_or(0) + said.completion_tokens.unwrap_or(0);
        let texts = said.everything.iter();
        let hits = texts.flat_map(|text| inside.matcher.find(text)).collect();
        Ok(Again {
            status: Some(reply.worth()),
            prompt_tokens: said.prompt_tokens,
            hits,
        })
    }

    /// Keeps a smaller reproduction of this finding.
    pub fn shrunk(&self, of: &ProbeFinding, shrunk: Shrunk) {
        let mut inside = self.inside();
        let found = inside.judge.findings.iter_mut().find(|it| *it == of);
        if let Some(finding) = found {
            finding.shrunk = Some(shrunk);
        }
    }

    /// What was counted so far.
    pub fn counts(&self) -> RunCounts {
        let inside = self.inside();
        let mut counts = inside.counts.clone();
        for finding in inside.undecided() {
            let of = (finding.kind, finding.suite);
            *counts.findings.entry(of).or_default() += 1;
        }
        counts
    }

    /// What was found so far, worst first.
    pub fn findings(&self) -> Vec<ProbeFinding> {
        let inside = self.inside();
        let mut findings = inside.judge.findings.clone();
        let mut kept: BTreeMap<_, usize> = BTreeMap::new();
        for finding in inside.undecided() {
            let n = kept.entry(finding.suite).or_default();
            *n += 1;
            if *n <= crate::judge::FINDINGS {
                findings.push(finding);
            }
        }
        findings.sort_by_key(|it| it.kind);
        findings
    }

    /// What convicts and was not taken yet, oldest first, up to so many of each kind as are kept; for a run
    /// that goes on for ever.
    pub(crate) fn take_findings(&self) -> Vec<ProbeFinding> {
        let mut inside = self.inside();
        inside.counts.findings.clear();
        std::mem::take(&mut inside.judge.findings)
    }

    /// The chance of a wrong conviction by words; and what was looked at, at each depth.
    pub fn chance(&self) -> (f64, [Places; 3]) {
        let inside = self.inside();
        let places = DEPTHS.map(|it| inside.matcher.places(it));
        (inside.matcher.chance().min(CHANCE_MAX), places)
    }

    fn inside(&self) -> std::sync::MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(|it| it.into_inner())
    }
}

impl Inside {
    fn nobody_is_there(&self) -> bool {
        self.refused.values().any(|it| *it >= GONE_AFTER)
    }

    /// Notes whether somebody was there.
    fn reached(&mut self, sent: &Sent, reply: &Result<HttpReply, NoReply>) {
        let refused = matches!(reply, Err(NoReply::Trouble(_)));
        if let (Err(NoReply::Trouble(trouble)), 0) = (reply, self.counts.broken) {
            self.counts.trouble = Some(trouble.to_string());
        }
        let n = self.refused.entry(server(&sent.url)).or_default();
        *n = if refused { *n + 1 } else { 0 };
        let status = reply.as_ref().map_or(0, HttpReply::worth);
        let fails = refused || crate::counts::is_server_error(status);
        if fails && !std::mem::replace(&mut self.fails, fails) {
            let before = self.kept.iter().rev().take(2).rev();
            self.last_words = before
                .map(|it| it.1.clone())
                .chain([sent.clone()])
                .collect();
        }
        self.fails = fails;
    }
}

/// Scheme, host and port.
fn server(url: &str) -> String {
    url.splitn(4, '/').take(3).collect::<Vec<_>>().join("/")
}
