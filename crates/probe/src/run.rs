//! A run: asks within a budget, plants canaries, and looks at every text that comes back.

use crate::ask::{Answer, Ask, prompt};
use crate::budget::Budget;
use crate::canary::{Author, Canaries, Marked, Tenant};
use crate::client::{Endpoint, Leave, NoReply, Reply};
use crate::counts::Counts;
use crate::finding::{Finding, Kind, Proof, Sent, Shrunk};
use crate::matcher::{Hit, Matcher};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Mutex;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// Requests whose bodies are kept for reproductions.
const KEPT: usize = 256;
/// Findings that are kept of one kind and suite; further ones are counted.
const FINDINGS: usize = 5;

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
    /// The canaries that can be kept.
    #[error("more canaries would not fit into memory")]
    Canaries,
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
struct Inside {
    matcher: Matcher,
    counts: Counts,
    findings: Vec<Finding>,
    /// The last requests, oldest first.
    kept: VecDeque<(Author, Sent)>,
    /// The number of each tenant's next request.
    next: BTreeMap<Tenant, u32>,
    /// When the next request may start.
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
                kept: VecDeque::new(),
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
    pub fn endpoint(&self, tenant: Tenant) -> &Endpoint {
        &self.endpoints[&tenant]
    }

    /// Asks, and looks at what comes back. `suite` is who wants to know.
    ///
    /// # Errors
    /// The budget is spent.
    pub async fn ask(&self, suite: &'static str, ask: Ask) -> Result<Answer, Spent> {
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
        endpoint: &Endpoint,
        ask: Ask,
    ) -> Result<Answer, Spent> {
        let _place = self.places.acquire().await.expect("never closed");
        let (marked, start) = self.begin(suite, &ask)?;
        tokio::time::sleep_until(start).await;
        let prompt = prompt(&marked, ask.filler, ask.open);
        let model = endpoint.model.as_deref();
        let dialect = endpoint.dialect;
        let mut body = dialect.body(model, &prompt, ask.max_tokens, ask.stream);
        body.extend(ask.fields.clone());
        let sent = Sent {
            method: "POST",
            tenant: Some(ask.tenant.to_string()),
            url: endpoint.address.with_path(dialect.path()).to_string(),
            headers: ask.headers.clone(),
            body,
        };
        let limit = self.budget.request_time;
        let reply = endpoint.ask(&sent, ask.leave, limit).await;
        Ok(self.look(suite, &ask, marked, sent, reply))
    }

    /// Takes what a request needs from the budget.
    fn begin(&self, suite: &'static str, ask: &Ask) -> Result<(Marked, Instant), Spent> {
        let mut inside = self.inside();
        let taken = self.take(&mut inside, ask);
        if taken.is_err() {
            inside.counts.cut_short.insert(suite.to_owned());
        }
        taken
    }

    fn take(&self, inside: &mut Inside, ask: &Ask) -> Result<(Marked, Instant), Spent> {
        let start = self.turn(inside)?;
        let marked = self.drawn(inside, ask)?;
        Ok((marked, start))
    }

    /// The text of a request that will be sent to more than one server.
    ///
    /// # Errors
    /// No more fits into memory.
    pub fn marked(&self, suite: &'static str, ask: &Ask) -> Result<Marked, Spent> {
        let mut inside = self.inside();
        let drawn = self.drawn(&mut inside, ask);
        if drawn.is_err() {
            inside.counts.cut_short.insert(suite.to_owned());
        }
        drawn
    }

    fn drawn(&self, inside: &mut Inside, ask: &Ask) -> Result<Marked, Spent> {
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

    /// When one more request may be sent.
    fn turn(&self, inside: &mut Inside) -> Result<Instant, Spent> {
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
        let turn = self.turn(&mut self.inside());
        if turn.is_err() {
            self.inside().counts.cut_short.insert(suite.to_owned());
        }
        tokio::time::sleep_until(turn?).await;
        let endpoint = self.endpoint(tenant);
        let asked = endpoint.status(method, path, with_key, self.budget.request_time);
        Ok(asked.await.ok())
    }

    fn look(
        &self,
        suite: &'static str,
        ask: &Ask,
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
            max_tokens: ask.max_tokens,
            tokens: ask.tokens,
            refused: ask.refused,
            sent,
            reply,
            foreign,
            own,
        };
        inside.counts.take(ask.tenant, &answer);
        for finding in inside.judge(suite, &answer, self.budget.request_time) {
            inside.found(finding);
        }
        if inside.kept.len() >= KEPT {
            inside.kept.pop_front();
        }
        let kept = (answer.marked.author, answer.sent.clone());
        inside.kept.push_back(kept);
        answer
    }

    /// Adds a finding of a suite.
    pub fn found(&self, finding: Finding) {
        self.inside().found(finding);
    }

    /// Sends a request of a finding once more, as it is or smaller, to the tenants' server.
    ///
    /// # Errors
    /// The budget is spent.
    pub async fn again(&self, sent: &Sent) -> Result<Again, Spent> {
        let _place = self.places.acquire().await.expect("never closed");
        let start = self.turn(&mut self.inside())?;
        tokio::time::sleep_until(start).await;
        let tenant = self.tenants().into_iter();
        let mut tenant = tenant.filter(|it| Some(it.to_string()) == sent.tenant);
        let endpoint = self.endpoint(tenant.next().unwrap_or(self.tenants()[0]));
        let limit = self.budget.request_time;
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
            status: Some(reply.status),
            prompt_tokens: said.prompt_tokens,
            hits,
        })
    }

    /// Keeps a smaller reproduction of this finding.
    pub fn shrunk(&self, of: &Finding, shrunk: Shrunk) {
        let mut inside = self.inside();
        let found = inside.findings.iter_mut().find(|it| *it == of);
        if let Some(finding) = found {
            finding.shrunk = Some(shrunk);
        }
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

impl Inside {
    /// What every answer is judged for, whatever suite it belongs to.
    fn judge(&self, suite: &'static str, answer: &Answer, limit: Duration) -> Vec<Finding> {
        let mut findings = self.foreign(suite, answer);
        let says = match &answer.reply {
            Err(NoReply::Hang(_)) => {
                let mine = answer.marked.author;
                let length = answer.tokens;
                let length = length.map_or(String::new(), |it| format!(", {it} tokens,"));
                let says = format!("no answer to {mine}{length} within {} s", limit.as_secs());
                Some((Kind::Hang, says))
            }
            Ok(reply) if reply.status == 200 => reply.said.garbage.as_deref().map(|why| {
                let says = format!("200 with a body that is not what it claims to be: {why}");
                (Kind::WrongErrorClass, says)
            }),
            _ => None,
        };
        findings.extend(says.map(|(kind, says)| Finding {
            kind,
            suite,
            says,
            quote: None,
            shows: vec![answer.sent.clone()],
            proof: Proof::None,
            shrunk: None,
        }));
        findings
    }

    /// Canaries of others.
    fn foreign(&self, suite: &'static str, answer: &Answer) -> Vec<Finding> {
        let mine = answer.marked.author;
        let mut findings = Vec::new();
        // The longest run of each author is enough; runs come longest first in each text.
        let mut hits = answer.foreign.clone();
        hits.sort_by_key(|it| std::cmp::Reverse(it.words));
        let mut named = BTreeSet::new();
        for hit in hits.into_iter().filter(|it| named.insert(it.author)) {
            let kind = match (hit.is_leak(), hit.author.tenant == mine.tenant) {
                (false, _) => Kind::Suspect,
                (true, true) => Kind::Mixup,
                (true, false) => Kind::Leak,
            };
            let place = match hit.sentence {
                Some(sentence) => format!("{}, sentence {sentence},", hit.author),
                None => hit.author.to_string(),
            };
            let says = format!(
                "{} consecutive words of {place} in the answer to {mine} (status {})",
                hit.words,
                answer.status().unwrap_or(0)
            );
            let source = self.kept.iter().rfind(|(author, _)| *author == hit.author);
            let source = source.map(|(_, sent)| sent.clone());
            let proof = match &source {
                Some(_) if kind.convicts() => Proof::Foreign(hit.author),
                _ => Proof::None,
            };
            findings.push(Finding {
                kind,
                suite,
                says,
                quote: Some(hit.quote),
                shows: source.into_iter().chain([answer.sent.clone()]).collect(),
                proof,
                shrunk: None,
            });
        }
        findings
    }

    fn found(&mut self, finding: Finding) {
        let of = (finding.kind, finding.suite);
        let n = self.counts.findings.entry(of).or_default();
        *n += 1;
        if *n <= FINDINGS as u64 {
            self.findings.push(finding);
        }
    }
}
