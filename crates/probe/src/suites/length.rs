//! Prompts of an exact length in tokens, against a server whose tokenizer nobody has: the answers
//! count, and one more filler word is one more token.

use super::patience;
use crate::ask::{ProbeAnswer, Question};
use crate::canary::{Marked, Tenant};
use crate::run::{ProbeRun, Spent};

/// Tokens left for the end of a prompt, to be filled exactly.
const MARGIN: u64 = 48;
/// Texts that are tried, each a tenth shorter, until one is no longer than wanted.
const BASE_TRIES: usize = 4;
/// Longest prompt that is tried where no limit is known, in tokens.
const TRIED_MAX: u64 = 1 << 21;
/// The share of the tokens left that the longest prompt tried may cost: all shorter ones together cost
/// as much once more, and other suites want some.
const SHARE: u64 = 16;

/// How long prompts are on this server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PromptLengths {
    /// Tokens of a prompt without sentences.
    fixed: f64,
    /// Tokens of a sentence, on average.
    sentence: f64,
}

/// Why lengths cannot be told.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum NoLengths {
    /// The budget.
    #[error(transparent)]
    Spent(#[from] Spent),
    /// Short prompts are not answered.
    #[error("a short prompt is not answered with 200 (status {0}): nothing can be measured")]
    NotAnswered(u16),
    /// Answers do not count their prompt's tokens.
    #[error("answers carry no usage.prompt_tokens: lengths cannot be told")]
    NoUsage,
    /// It is busy.
    #[error(
        "the server is busy ({0} to a prompt, again and again): no length can be told from that"
    )]
    Busy(u16),
    /// A prompt at the limit costs more than there is.
    #[error(
        "a prompt as long as the context of {0} tokens takes too much of the {1} tokens left of the \
         budget: raise it with --budget tokens=N"
    )]
    TooDear(u64, u64),
    /// Prompts of the same length are counted differently.
    #[error("eight filler words were counted as {0} tokens: lengths cannot be told exactly")]
    Filler(i64),
}

/// A marked text whose length is known with some filler.
#[derive(Clone, Debug)]
pub struct Base {
    /// The text.
    pub marked: Marked,
    /// Filler words with which it was measured.
    pub filler: usize,
    /// Tokens with them.
    pub tokens: u64,
}

impl PromptLengths {
    /// Measures with three short prompts.
    ///
    /// # Errors
    /// See [`NoLengths`].
    pub async fn measure(
        run: &ProbeRun,
        suite: &'static str,
        tenant: Tenant,
    ) -> Result<Self, NoLengths> {
        Self::measure_at(run, suite, tenant, &[]).await
    }

    /// The same with these headers.
    ///
    /// # Errors
    /// See [`NoLengths`].
    pub async fn measure_at(
        run: &ProbeRun,
        suite: &'static str,
        tenant: Tenant,
        headers: &[(String, String)],
    ) -> Result<Self, NoLengths> {
        let mut ask = Question::new(tenant, 4);
        ask.max_tokens = 1;
        ask.headers = headers.to_vec();
        let (few, answer) = count(run, suite, ask.clone()).await?;
        ask.like = Some(answer.marked);
        ask.filler = 8;
        let (filled, _) = count(run, suite, ask).await?;
        if filled != few + 8 {
            return Err(NoLengths::Filler(filled as i64 - few as i64));
        }
        // A server with a small context takes the shorter one only.
        let mut many = Err(NoLengths::NotAnswered(0));
        for sentences in [36, 12] {
            let mut ask = Question::new(tenant, sentences);
            ask.max_tokens = 1;
            ask.headers = headers.to_vec();
            many = count(run, suite, ask).await.map(|it| (it.0, sentences));
            if !matches!(many, Err(NoLengths::NotAnswered(_))) {
                break;
            }
        }
        let (many, sentences) = many?;
        let more = (sentences - 4) as f64;
        let sentence = (many.saturating_sub(few) as f64 / more).max(1.0);
        let fixed = (few as f64 - 4.0 * sentence).max(0.0);
        Ok(Self { fixed, sentence })
    }

    /// Sentences for a prompt of about so many tokens, rather fewer.
    pub fn sentences(&self, tokens: u64) -> usize {
        ((tokens as f64 * 0.97 - self.fixed) / self.sentence).max(1.0) as usize
    }

    /// A text a little shorter than `tokens`, measured. `tokens` must be a length that is answered.
    ///
    /// # Errors
    /// See [`NoLengths`].
    pub async fn base(
        &self,
        run: &ProbeRun,
        suite: &'static str,
        tenant: Tenant,
        tokens: u64,
    ) -> Result<Base, NoLengths> {
        self.base_at(run, suite, tenant, tokens, &[]).await
    }

    /// The same with these headers.
    ///
    /// # Errors
    /// See [`NoLengths`].
    pub async fn base_at(
        &self,
        run: &ProbeRun,
        suite: &'static str,
        tenant: Tenant,
        tokens: u64,
        headers: &[(String, String)],
    ) -> Result<Base, NoLengths> {
        let mut sentences = self.sentences(tokens.saturating_sub(MARGIN));
        // Another text's words may have more tokens each than those that were measured, and every
        // sentence repeats them: then it is too long, and fewer will do.
        let mut tries = 0;
        loop {
            tries += 1;
            let mut ask = Question::new(tenant, sentences);
            ask.max_tokens = 1;
            ask.headers = headers.to_vec();
            let last = tries == BASE_TRIES || sentences == 1;
            match count(run, suite, ask).await {
                Ok((counted, answer)) if counted <= tokens || last => {
                    return Ok(Base {
                        marked: answer.marked,
                        filler: 0,
                        tokens: counted,
                    });
                }
                Ok(_) => {}
                Err(NoLengths::NotAnswered(_)) if !last => {}
                Err(error) => return Err(error),
            }
            sentences = (sentences - sentences.div_ceil(10)).max(1);
        }
    }

    /// The longest prompt that is answered, in tokens, where so many are advertised. `None` if longer
    /// ones are answered too.
    ///
    /// # Errors
    /// See [`NoLengths`].
    pub async fn limit_up_to(
        &self,
        run: &ProbeRun,
        suite: &'static str,
        tenant: Tenant,
        context: u64,
    ) -> Result<Option<u64>, NoLengths> {
        let left = run.tokens_left();
        if context.saturating_mul(8) > left {
            return Err(NoLengths::TooDear(context, left));
        }
        let base = match self.base(run, suite, tenant, context).await {
            // What is refused well below it is limited by something else.
            Err(NoLengths::NotAnswered(_)) => {
                return self.limit(run, suite, tenant, context).await;
            }
            base => base?,
        };
        let ask = |tokens| answered(run, suite, base.with(tokens, 1, tenant));
        if ask(context + 1).await? {
            return Ok(None);
        }
        // A little room for an answer, or none: the limit is near.
        let (mut bad, mut step) = (context + 1, 1);
        let mut good = loop {
            let tokens = bad.saturating_sub(step).max(base.tokens);
            if tokens == base.tokens || ask(tokens).await? {
                break tokens;
            }
            (bad, step) = (tokens, step * 2);
        };
        while bad > good + 1 {
            let middle = good + (bad - good) / 2;
            match ask(middle).await? {
                true => good = middle,
                false => bad = middle,
            }
        }
        Ok(Some(good))
    }

    /// The longest prompt that is answered, in tokens: by doubling, then by halving. `None` if nothing
    /// is refused up to so many.
    ///
    /// # Errors
    /// See [`NoLengths`].
    pub async fn limit(
        &self,
        run: &ProbeRun,
        suite: &'static str,
        tenant: Tenant,
        up_to: u64,
    ) -> Result<Option<u64>, NoLengths> {
        let (mut good, mut bad) = (0, None);
        let mut tokens = 1024.min(up_to);
        let most = (run.tokens_left() / SHARE)
            .clamp(1024, TRIED_MAX)
            .min(up_to);
        while bad.is_none() && tokens <= most {
            match self.answered(run, suite, tenant, tokens).await? {
                // It may count less than it was sent: what was sent grows all the same.
                Some(counted) => (good, tokens) = (counted.max(good), tokens * 2),
                None => bad = Some(tokens),
            }
        }
        let Some(mut bad) = bad else {
            return Ok(None);
        };
        while bad > good + good / 50 + 2 * MARGIN {
            let middle = good + (bad - good) / 2;
            match self.answered(run, suite, tenant, middle).await? {
                Some(counted) if counted > good => good = counted,
                Some(_) => break, // the estimate is not finer than this
                None => bad = middle,
            }
        }
        // From here on with one text, filled exactly.
        let base = self.base(run, suite, tenant, good).await?;
        let (mut good, mut bad) = (base.tokens, bad + 2 * MARGIN);
        while bad > good + 1 {
            let middle = good + (bad - good) / 2;
            match answered(run, suite, base.with(middle, 1, tenant)).await? {
                true => good = middle,
                false => bad = middle,
            }
        }
        Ok(Some(good))
    }

    /// The tokens of a prompt of about this length, if it is answered.
    async fn answered(
        &self,
        run: &ProbeRun,
        suite: &'static str,
        tenant: Tenant,
        tokens: u64,
    ) -> Result<Option<u64>, NoLengths> {
        let mut ask = Question::new(tenant, self.sentences(tokens));
        ask.max_tokens = 1;
        match count(run, suite, ask).await {
            Ok((counted, _)) => Ok(Some(counted)),
            Err(NoLengths::NotAnswered(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Base {
    /// The same text, filled to exactly so many tokens.
    pub fn with(&self, tokens: u64, max_tokens: u32, tenant: Tenant) -> Question {
        let mut ask = Question::new(tenant, 0);
        ask.like = Some(self.marked.clone());
        ask.max_tokens = max_tokens;
        ask.tokens = Some(tokens.max(self.tokens));
        ask.filler = (self.filler as u64 + tokens.saturating_sub(self.tokens)) as usize;
        ask
    }
}

/// Asks, and returns what the answer counts.
async fn count(
    run: &ProbeRun,
    suite: &'static str,
    ask: Question,
) -> Result<(u64, ProbeAnswer), NoLengths> {
    let answer = patience::ask(run, suite, ask).await?;
    match (answer.status(), answer.prompt_tokens()) {
        (Some(200), Some(tokens)) => Ok((tokens, answer)),
        (Some(200), None) => Err(NoLengths::NoUsage),
        (Some(status), _) if answer.is_busy() => Err(NoLengths::Busy(status)),
        (status, _) => Err(NoLengths::NotAnswered(status.unwrap_or(0))),
    }
}

/// Whether a prompt is answered; being busy is no answer, and no refusal.
async fn answered(run: &ProbeRun, suite: &'static str, ask: Question) -> Result<bool, NoLengths> {
    let answer = patience::ask(run, suite, ask).await?;
    match answer.status() {
        Some(status) if answer.is_busy() => Err(NoLengths::Busy(status)),
        status => Ok(status == Some(200)),
    }
}
