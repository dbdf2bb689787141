//! Canaries for ever: a step now and then, at every pair in turn, for as long as a fleet serves.
//!
//! A run of `probe` has an end and a verdict. A vigil has neither: it says of every step what was sent
//! and seen, and what convicts. Only what convicts by its words, or a prompt over the limit that was
//! answered, counts as found: a server may be busy, slow, away or restarted without being to blame.

use crate::ask::{ProbeAnswer, Question};
use crate::budget::Budget;
use crate::canary::Tenant;
use crate::client::{Leave, TenantEndpoint};
use crate::finding::Kind;
use crate::power;
use crate::run::{ProbeRun, Spent};
use crate::suites::{Base, PromptLengths};
use futures::future::join_all;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

const NAME: &str = "vigil";
/// Tokens of an answer that goes on with its own canary.
const ECHO: u32 = 24;
/// Words that are planted before new canaries are drawn: those of before are still looked for.
const WORDS_MAX: usize = 200_000;
/// Requests before the same.
const REQUESTS_MAX: u64 = 2_000;
/// Words in a row of a canary of before that convict: as many as in the longest run.
const OLD_WORDS: usize = 9;
/// Multiples of every usual page size up to 128 tokens.
const PAGE_EDGES: [u64; 2] = [128, 256];
/// Tokens of a prompt that goes on with itself wherever anything does.
const LEAST: u64 = 64;
/// Prompts with which the shortest that shows a fault is looked for.
const NARROW_MAX: u32 = 40;
/// Minutes of tokens that may be saved up for a step that costs many.
const SAVED_MINUTES: u64 = 30;
/// Minutes that are remembered.
const MINUTES: u64 = 24 * 60;

/// What one step sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VigilStep {
    /// One short prompt of each tenant, at once.
    Short,
    /// Several of different lengths at once, whole and streamed.
    Load,
    /// A client that leaves, and the other tenant right behind it.
    Abort,
    /// At the ends of pages.
    Pages,
    /// One token below the limit, at it, and one above.
    Edge,
}

impl VigilStep {
    /// All, in the order in which they are taken.
    pub const ALL: [VigilStep; 5] = [
        VigilStep::Short,
        VigilStep::Load,
        VigilStep::Abort,
        VigilStep::Pages,
        VigilStep::Edge,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Short => "short",
            Self::Load => "load",
            Self::Abort => "abort",
            Self::Pages => "pages",
            Self::Edge => "edge",
        }
    }

    /// Tokens that it costs, about.
    pub fn tokens(self, limit: Option<u64>) -> u64 {
        match self {
            Self::Short => 250,
            Self::Load => 3_000,
            Self::Abort => 800,
            Self::Pages => 2_000,
            Self::Edge => 8 * limit.unwrap_or(0),
        }
    }
}

/// Something that convicts.
#[derive(Clone, Debug, PartialEq)]
pub struct Convicted {
    /// What.
    pub kind: Kind,
    /// In a sentence, without anybody's text.
    pub says: String,
    /// Tokens of the prompt that showed it.
    pub tokens: Option<u64>,
}

/// What came of a step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stepped {
    /// Requests.
    pub sent: u64,
    /// Answers that could have shown a canary.
    pub telling: u64,
    /// Of these, those that showed their own.
    pub seen: u64,
    /// Tokens of prompts and answers.
    pub tokens: u64,
    /// Answers that were no answers: busy, errors, nobody there.
    pub failed: u64,
    /// What convicts.
    pub found: Vec<Convicted>,
    /// Why the step did not end.
    pub cut_short: Option<String>,
}

/// See the module.
pub struct Vigil {
    endpoints: BTreeMap<Tenant, TenantEndpoint>,
    request_time: Duration,
    seed: fn() -> [u8; 32],
    run: ProbeRun,
    before: Option<ProbeRun>,
    words: usize,
    /// How long prompts are here, once it was measured.
    lengths: Option<PromptLengths>,
}

impl Vigil {
    /// With these tenants, at least two. `seed` draws 32 bytes that nobody can guess.
    pub fn new(
        endpoints: BTreeMap<Tenant, TenantEndpoint>,
        request_time: Duration,
        seed: fn() -> [u8; 32],
    ) -> Self {
        let run = begin(&endpoints, request_time, seed());
        Self {
            endpoints,
            request_time,
            seed,
            run,
            before: None,
            words: 0,
            lengths: None,
        }
    }

    /// One step. `headers`: what says at which engines. `limit`: the longest prompt that is taken.
    pub async fn step(
        &mut self,
        step: VigilStep,
        headers: &[(String, String)],
        limit: Option<u64>,
    ) -> Stepped {
        self.renew();
        let mut outcome = Stepped::default();
        let before = self.run.counts().tokens;
        let done = self.take(step, headers, limit, &mut outcome).await;
        outcome.cut_short = done.err();
        outcome.tokens = self.run.counts().tokens.saturating_sub(before);
        self.convicted(&mut outcome);
        outcome
    }

    async fn take(
        &mut self,
        step: VigilStep,
        headers: &[(String, String)],
        limit: Option<u64>,
        outcome: &mut Stepped,
    ) -> Result<(), String> {
        let [a, b] = self.tenants();
        let ask = |tenant: Tenant, sentences: usize| {
            let mut ask = Question::new(tenant, fitting(sentences, limit));
            ask.max_tokens = ECHO;
            ask.headers = headers.to_vec();
            ask
        };
        match step {
            VigilStep::Short => {
                self.all(vec![ask(a, 4), ask(b, 4)], outcome).await?;
            }
            VigilStep::Load => {
                let asks = (0..6).map(|n| {
                    let mut ask = ask([a, b][n % 2], 3 + 4 * n);
                    ask.stream = n % 3 == 1;
                    ask
                });
                self.all(asks.collect(), outcome).await?;
            }
            VigilStep::Abort => {
                for (leaves, follows) in [(a, b), (b, a)] {
                    let mut left = ask(leaves, 12);
                    left.stream = true;
                    left.leave = Leave::AtFirstByte;
                    self.all(vec![left], outcome).await?;
                    self.all(vec![ask(follows, 12)], outcome).await?;
                }
            }
            VigilStep::Pages => {
                for (n, edge) in PAGE_EDGES.into_iter().enumerate() {
                    if limit.is_some_and(|it| edge + 1 + u64::from(ECHO) >= it) {
                        continue;
                    }
                    let tenant = [a, b][n % 2];
                    let base = self.base(tenant, headers, edge - 1).await?;
                    for tokens in [edge - 1, edge, edge + 1] {
                        let ask = with(&base, tokens, ECHO, tenant, headers);
                        self.all(vec![ask], outcome).await?;
                    }
                }
            }
            VigilStep::Edge => {
                let limit = limit.ok_or("the limit is not known")?;
                let mut lost = 0;
                for tenant in [a, b] {
                    lost += u32::from(self.edge(tenant, limit, headers, outcome).await?);
                }
                if lost == 2 {
                    self.loses(limit, headers, outcome).await?;
                }
            }
        }
        Ok(())
    }

    /// Both tenants' longest prompts were answered with something else. A model that forgets does so
    /// gradually; where prompts of N tokens are gone on with and those of one more are not, three of
    /// three, what was attended to was not the prompt.
    async fn loses(
        &mut self,
        limit: u64,
        headers: &[(String, String)],
        outcome: &mut Stepped,
    ) -> Result<(), String> {
        let room = limit.saturating_sub(u64::from(ECHO) + 2);
        let searched = self.search(headers, (LEAST, room), limit, outcome).await;
        let Some((clean, shows)) = searched else {
            return Ok(());
        };
        let [a, b] = self.tenants();
        for (tokens, goes_on) in [(clean, true), (shows, false)] {
            for tenant in [a, b, a] {
                let base = self.base(tenant, headers, tokens).await?;
                let ask = with(&base, tokens, ECHO, tenant, headers);
                let answers = self.all(vec![ask], outcome).await?;
                let whole = answers.iter().all(|it| it.text().is_some());
                if !whole || answers.iter().any(|it| it.copies() != goes_on) {
                    return Ok(());
                }
            }
        }
        outcome.found.push(Convicted {
            kind: Kind::WrongAnswer,
            says: format!(
                "prompts of {clean} tokens are gone on with, and those of {shows} are not, three of \
                 three: what is attended to there is not the prompt"
            ),
            tokens: Some(shows),
        });
        Ok(())
    }

    /// What fits is answered, with room for an answer that tells; what does not is refused. Whether the
    /// longest was answered with something else than its own prompt.
    async fn edge(
        &mut self,
        tenant: Tenant,
        limit: u64,
        headers: &[(String, String)],
        outcome: &mut Stepped,
    ) -> Result<bool, String> {
        let room = limit.saturating_sub(u64::from(ECHO) + 2);
        let base = self.base(tenant, headers, room).await?;
        let telling = with(&base, room, ECHO, tenant, headers);
        let told = self.all(vec![telling], outcome).await?;
        let lost = told.iter().all(|it| it.text().is_some() && !it.copies());
        for tokens in [limit - 1, limit] {
            let ask = with(&base, tokens, 1, tenant, headers);
            self.all(vec![ask], outcome).await?;
        }
        let mut above = with(&base, limit + 1, ECHO, tenant, headers);
        above.refused = true;
        let answers = self.all(vec![above], outcome).await?;
        for answer in answers.iter().filter(|it| it.status() == Some(200)) {
            let counted = answer.prompt_tokens();
            // What says that it was cut is another matter, and openly said.
            if answer.says_cut().is_none() {
                outcome.found.push(Convicted {
                    kind: Kind::SilentAcceptance,
                    says: format!(
                        "200 for a prompt of {} tokens, over the limit of {limit}; counted as {}",
                        limit + 1,
                        counted.map_or("nothing".to_owned(), |it| it.to_string())
                    ),
                    tokens: Some(limit + 1),
                });
            }
        }
        Ok(lost)
    }

    /// The shortest prompt that shows a fault and the longest that does not, between these lengths:
    /// the longer one has shown it. None: there is no such length, or it could not be told.
    /// Beside it what was sent for it, and what that has found.
    pub async fn narrow(
        &mut self,
        headers: &[(String, String)],
        between: (u64, u64),
        limit: u64,
    ) -> (Option<(u64, u64)>, Stepped) {
        self.renew();
        let mut outcome = Stepped::default();
        let before = self.run.counts().tokens;
        let narrowed = self.narrowed(headers, between, limit, &mut outcome).await;
        outcome.tokens = self.run.counts().tokens.saturating_sub(before);
        self.convicted(&mut outcome);
        (narrowed, outcome)
    }

    async fn narrowed(
        &mut self,
        headers: &[(String, String)],
        between: (u64, u64),
        limit: u64,
        outcome: &mut Stepped,
    ) -> Option<(u64, u64)> {
        let (clean, shows) = self.search(headers, between, limit, outcome).await?;
        // What was answered although it is over the limit is not asked again.
        if shows > limit {
            return Some((clean, shows));
        }
        // What shows it now and then has no length: whoever looked between saw chance.
        let [a, b] = self.tenants();
        for tenant in [a, b, a] {
            if self.shows(headers, shows, tenant, outcome).await? != Some(true) {
                return None;
            }
        }
        Some((clean, shows))
    }

    /// Whether a prompt of so many tokens shows a fault; none: that could not be told.
    async fn shows(
        &mut self,
        headers: &[(String, String)],
        tokens: u64,
        tenant: Tenant,
        outcome: &mut Stepped,
    ) -> Option<Option<bool>> {
        let base = self.base(tenant, headers, tokens).await.ok()?;
        let ask = with(&base, tokens, ECHO, tenant, headers);
        let answers = self.all(vec![ask], outcome).await.ok()?;
        let answer = answers.first().filter(|it| it.text().is_some());
        Some(answer.map(|it| !it.foreign.is_empty() || !it.copies()))
    }

    async fn search(
        &mut self,
        headers: &[(String, String)],
        (mut clean, mut shows): (u64, u64),
        limit: u64,
        outcome: &mut Stepped,
    ) -> Option<(u64, u64)> {
        let [a, b] = self.tenants();
        for n in 0..NARROW_MAX {
            if shows <= clean + 1 {
                return Some((clean, shows));
            }
            // A longer one has no room for an answer that tells.
            let room = limit.saturating_sub(u64::from(ECHO) + 1);
            let middle = (clean + (shows - clean) / 2).min(room);
            if middle <= clean || middle >= shows {
                return Some((clean, shows));
            }
            let tenant = if n % 2 == 0 { a } else { b };
            match self.shows(headers, middle, tenant, outcome).await? {
                Some(true) => shows = middle,
                Some(false) => clean = middle,
                // Somebody who is busy says nothing of it: the next prompt asks the same.
                None => {}
            }
        }
        None
    }

    /// A text a little shorter than so many tokens.
    async fn base(
        &mut self,
        tenant: Tenant,
        headers: &[(String, String)],
        tokens: u64,
    ) -> Result<Base, String> {
        let lengths = match self.lengths {
            Some(lengths) => lengths,
            None => {
                let measured = PromptLengths::measure_at(&self.run, NAME, tenant, headers).await;
                let measured = measured.map_err(|why| why.to_string())?;
                *self.lengths.insert(measured)
            }
        };
        let base = lengths
            .base_at(&self.run, NAME, tenant, tokens, headers)
            .await;
        let base = base.map_err(|why| why.to_string())?;
        self.words += base.marked.words().len();
        Ok(base)
    }

    async fn all(
        &mut self,
        asks: Vec<Question>,
        outcome: &mut Stepped,
    ) -> Result<Vec<ProbeAnswer>, String> {
        self.words += asks.iter().map(|ask| ask.sentences * 12).sum::<usize>();
        let asked = asks.into_iter().map(|ask| self.run.ask(NAME, ask));
        let mut answers = Vec::new();
        let mut gone = None;
        for answer in join_all(asked).await {
            outcome.sent += 1;
            match answer {
                Ok(answer) => answers.push(answer),
                Err(spent) => gone = Some(spent),
            }
        }
        for answer in &answers {
            self.look(answer, outcome);
        }
        match gone {
            None => Ok(answers),
            Some(spent) => Err(self.again(spent).await),
        }
    }

    /// Nobody is there: the next step finds out whether somebody is again.
    async fn again(&self, spent: Spent) -> String {
        if spent == Spent::Gone {
            let tenant = self.tenants()[0];
            let _ = self.run.lives(self.run.endpoint(tenant), tenant).await;
        }
        spent.to_string()
    }

    fn look(&mut self, answer: &ProbeAnswer, outcome: &mut Stepped) {
        let whole = answer.text().is_some();
        outcome.failed += u64::from(!whole && !answer.refused);
        if whole && !answer.refused && answer.max_tokens >= ECHO {
            outcome.telling += 1;
            outcome.seen += u64::from(answer.copies());
        }
        let (Some(before), Ok(reply)) = (&self.before, &answer.reply) else {
            return;
        };
        let mine = answer.marked.author.tenant;
        if let Some(hit) = before.quoted(&reply.said.everything, OLD_WORDS) {
            let kind = match hit.author.tenant == mine {
                true => Kind::Mixup,
                false => Kind::Leak,
            };
            outcome.found.push(Convicted {
                kind,
                says: format!(
                    "{} consecutive words of a canary that {} was given before, in an answer to \
                     tenant {mine}",
                    hit.words, hit.author
                ),
                tokens: answer.prompt_tokens(),
            });
        }
    }

    /// What the run's own judge has found since the last step: of each kind the newest, which says most
    /// of what is now.
    fn convicted(&mut self, outcome: &mut Stepped) {
        let new = self.run.take_findings();
        for kind in [Kind::Leak, Kind::Mixup] {
            if let Some(finding) = new.iter().rfind(|it| it.kind == kind) {
                outcome.found.push(Convicted {
                    kind,
                    says: finding.says.clone(),
                    tokens: None,
                });
            }
        }
    }

    /// New canaries, when there are many; those before are looked for until then.
    fn renew(&mut self) {
        let many = self.words > WORDS_MAX || self.run.counts().requests > REQUESTS_MAX;
        if !many {
            return;
        }
        let new = begin(&self.endpoints, self.request_time, (self.seed)());
        self.before = Some(std::mem::replace(&mut self.run, new));
        self.words = 0;
    }

    fn tenants(&self) -> [Tenant; 2] {
        let tenants = self.run.tenants();
        [tenants[0], tenants[1 % tenants.len()]]
    }
}

/// As many sentences as fit below the limit with an answer; one has at most 24 tokens.
fn fitting(sentences: usize, limit: Option<u64>) -> usize {
    let room = limit.map_or(u64::MAX, |it| it.saturating_sub(u64::from(ECHO)) / 24);
    sentences.min(usize::try_from(room.max(1)).unwrap_or(usize::MAX))
}

fn with(
    base: &Base,
    tokens: u64,
    max_tokens: u32,
    tenant: Tenant,
    headers: &[(String, String)],
) -> Question {
    let mut ask = base.with(tokens, max_tokens, tenant);
    ask.headers = headers.to_vec();
    ask
}

fn begin(endpoints: &BTreeMap<Tenant, TenantEndpoint>, time: Duration, seed: [u8; 32]) -> ProbeRun {
    let budget = Budget {
        requests: u64::MAX,
        tokens: u64::MAX,
        time: Duration::from_secs(u64::from(u32::MAX)),
        rate: 0.0,
        at_once: 8,
        request_time: time,
        until: None,
    };
    ProbeRun::new(endpoints.clone(), seed, budget)
}

/// What was sent and seen, minute by minute, for a day.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    minutes: VecDeque<(u64, Sums)>,
}

/// Of some minutes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Requests.
    pub sent: u64,
    /// Answers that could have shown a canary.
    pub telling: u64,
    /// Those that showed their own.
    pub seen: u64,
    /// Findings.
    pub found: u64,
    /// Tokens.
    pub tokens: u64,
}

impl Sums {
    /// These too.
    pub fn add(&mut self, more: &Self) {
        self.sent += more.sent;
        self.telling += more.telling;
        self.seen += more.seen;
        self.found += more.found;
        self.tokens += more.tokens;
    }

    /// A leak in more than one of so many answers would have been seen with 95 %; none if nothing
    /// would have shown one.
    pub fn one_in(&self) -> Option<u64> {
        let seen = self.seen as f64 / self.telling.max(1) as f64;
        let rate = power::not_excluded(self.telling, seen);
        (self.seen > 0 && rate < 1.0).then_some((1.0 / rate) as u64)
    }
}

impl Stepped {
    /// As it is added up.
    pub fn sums(&self) -> Sums {
        Sums {
            sent: self.sent,
            telling: self.telling,
            seen: self.seen,
            found: self.found.len() as u64,
            tokens: self.tokens,
        }
    }
}

impl Tally {
    /// What came of a step in this minute.
    pub fn add(&mut self, minute: u64, sums: &Sums) {
        match self.minutes.back_mut() {
            Some((last, known)) if *last == minute => known.add(sums),
            _ => self.minutes.push_back((minute, *sums)),
        }
        while self
            .minutes
            .front()
            .is_some_and(|it| it.0 + MINUTES < minute)
        {
            self.minutes.pop_front();
        }
    }

    /// The sums since a minute.
    pub fn since(&self, minute: u64) -> Sums {
        let mut all = Sums::default();
        let since = self.minutes.iter().rev().take_while(|it| it.0 >= minute);
        since.for_each(|(_, sums)| all.add(sums));
        all
    }
}

/// Tokens that may be spent, saved up minute by minute.
pub struct Allowance {
    a_minute: u64,
    left: f64,
    at: tokio::time::Instant,
}

impl Allowance {
    /// So many a minute; the first minute's are there.
    pub fn new(a_minute: u32) -> Self {
        Self {
            a_minute: u64::from(a_minute),
            left: f64::from(a_minute),
            at: tokio::time::Instant::now(),
        }
    }

    /// Time has passed.
    pub fn grows(&mut self) {
        let minutes = self.at.elapsed().as_secs_f64() / 60.0;
        self.at = tokio::time::Instant::now();
        let most = (self.a_minute * SAVED_MINUTES) as f64;
        self.left = (self.left + minutes * self.a_minute as f64).min(most);
    }

    /// From now on so many a minute.
    pub fn becomes(&mut self, a_minute: u64) {
        self.a_minute = a_minute;
    }

    /// The step that can be paid for now: this one, or else a short one, or none.
    pub fn step(&self, wanted: VigilStep, limit: Option<u64>) -> Option<VigilStep> {
        let steps = [wanted, VigilStep::Short];
        let affordable = |step: &VigilStep| step.tokens(limit) as f64 <= self.left;
        steps.into_iter().find(affordable)
    }

    /// Why steps at this limit are never taken, however long is saved up for them.
    pub fn never(&self, limit: Option<u64>) -> Option<String> {
        let needs = VigilStep::Edge.tokens(limit);
        (needs > self.a_minute * SAVED_MINUTES).then(|| {
            let at_least = needs.div_ceil(SAVED_MINUTES);
            format!(
                "prompts at the limit are not tested: a step there costs about {needs} tokens, and no \
                 more than {SAVED_MINUTES} minutes of {} a minute are saved up; it takes {at_least} a \
                 minute",
                self.a_minute
            )
        })
    }

    /// They were.
    pub fn spent(&mut self, tokens: u64) {
        self.left -= tokens as f64;
    }
}
