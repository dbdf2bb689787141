//! `POST /v1/chat/completions` and `/v1/completions`: from a body to a submitted job, and its
//! answer whole or as a stream.

use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use http::{HeaderMap, HeaderValue, Response, StatusCode};
use hyper::body::Incoming;
use tokio::sync::watch;

use super::access_log::{Outcome, Record};
use super::ask::{Ask, Dialect, Input, Prompt, in_these_words};
use super::body::{self, Reply};
use super::choice::Piece;
use super::fields::invalid;
use super::quota::{Account, Refused};
use super::render::Envelope;
use super::router::{Counted, Shared, finish};
use super::run::{Asked, Run};
use super::server::Phase;
use super::text::Text;
use super::{models, status, stream, tokenize};
use crate::engine::{Carried, Code, EngineFacts, Fault, Job, LengthLimit, Sampling};

/// Answers one generation request.
pub(super) async fn answer(
    shared: &Arc<Shared>,
    dialect: Dialect,
    (headers, body): (&HeaderMap, Incoming),
    account: Option<&Account>,
    seed: u64,
    mut record: Record,
) -> Response<Reply> {
    let limited = |record: &Record, refused: Refused| {
        shared.metrics.limited(&record.tenant(), refused.limit);
        refused.fault
    };
    if let Some(Err(refused)) = account.map(Account::request) {
        let fault = limited(&record, refused);
        return finish(record, Err(fault));
    }
    let prepared = match prepare(shared, dialect, headers, body, seed, &mut record).await {
        Ok(prepared) => prepared,
        Err(fault) if dialect == Dialect::Responses => {
            return finish(record, Err(in_these_words(fault)));
        }
        Err(fault) => return finish(record, Err(fault)),
    };
    let Prepared {
        ask,
        jobs,
        deadline,
    } = prepared;
    let count = jobs.len() as u32; // prompts, once for each answer that is a job of its own: few
    let Ok(place) = shared.running.clone().try_acquire_many_owned(count) else {
        let limit = shared.config.max_running;
        let message = match count {
            1 => format!("all {limit} places are taken; try again"),
            count => format!(
                "{count} of {limit} places are not free; try again, or send fewer prompts at once"
            ),
        };
        return finish(record, Err(Fault::new(Code::QueueFull, message)));
    };
    // Last, for nothing may be taken for what is refused anyway.
    match account.map(|account| account.tokens(wanted(&ask, &jobs))) {
        Some(Err(refused)) => {
            let fault = limited(&record, refused);
            return finish(record, Err(fault));
        }
        reserved => record.reserved = reserved.and_then(Result::ok),
    }
    let created = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs();
    let model = jobs.first().map_or("", |(job, _)| job.model.as_str());
    let envelope = Envelope::new(&ask, &record.id, model, created);
    record.stream = ask.stream;
    record.prompts = jobs.iter().filter(|(_, asked)| !asked.again).count() as u32;
    let mut accepted = Vec::with_capacity(jobs.len());
    for (job, asked) in jobs {
        match shared.engine.submit(job) {
            Ok(answer) => accepted.push((answer, asked)),
            // What was accepted already is dropped, and so cancelled.
            Err(fault) => return finish(record, Err(fault)),
        }
    }
    let counted = Counted::new(&shared.metrics.running);
    let text = shared.text.clone();
    let run = Run::new(accepted, &ask, text, deadline, record).holding((place, counted));
    if ask.stream {
        stream::answer(shared, run, envelope).await
    } else {
        whole(shared, run, envelope).await
    }
}

/// Tokens that a request takes of its tenant's minute: its prompts, and as much as its answers may have
/// where it says so.
fn wanted(ask: &Ask, jobs: &[(Job, Asked)]) -> u64 {
    let each = jobs.iter().map(|(job, asked)| {
        let answers = ask.max_tokens.map_or(0, |_| u64::from(job.max_new));
        let prompt = if asked.again { 0 } else { asked.prompt };
        u64::from(prompt) + answers * u64::from(job.choices)
    });
    each.sum()
}

struct Prepared {
    ask: Ask,
    /// One for each prompt, or for each answer to it.
    jobs: Vec<(Job, Asked)>,
    deadline: Instant,
}

async fn prepare(
    shared: &Arc<Shared>,
    dialect: Dialect,
    headers: &HeaderMap,
    body: Incoming,
    seed: u64,
    record: &mut Record,
) -> Result<Prepared, Fault> {
    let tenant = record.tenant();
    let received = body::read(headers, body, &shared.config, &shared.budget, &tenant).await?;
    let facts = shared.engine.facts();
    if let Some(private) = &shared.config.private {
        private.admit(record.tenant.as_ref(), &facts)?;
        record.operator = private.is_operator(record.tenant.as_ref());
    }
    let only = named_engines(headers, record.operator)?;
    let text = shared.text.clone();
    let max_choices = shared.config.max_choices;
    let echo_max = shared.config.max_body_bytes;
    let snapshot = facts.clone();
    let (ask, model, prompts) = shared
        .block(&tenant, move || {
            let path = &snapshot.text_path;
            let mut ask = Ask::parse(dialect, &received.bytes, max_choices, path)?;
            drop(received);
            let model = models::resolve(&snapshot, ask.model.as_deref())?.id.clone();
            let prompts = prompts(&ask, &*text, &snapshot, echo_max)?;
            check_bias(&ask.sampling, text.vocab())?;
            let stops = &ask.rules.stop_tokens;
            tokenize::in_vocabulary("stop_token_ids", stops, text.vocab())?;
            ask.hold(&*text)?;
            Ok((ask, model, prompts))
        })
        .await?;
    let limits = limits(&facts)?;
    let deadline = Instant::now() + shared.config.request_timeout;
    let carried = carried(&ask);
    let prompts = written_there(shared, carried.as_deref(), prompts).await?;
    record.usage.prompt = prompts.iter().map(|read| read.tokens.len() as u32).sum();
    let mut jobs = Vec::with_capacity(prompts.len());
    // Several answers are several jobs to an engine that gives one a job.
    let (together, apart) = match facts.text_path.one_choice_a_job {
        true => (1, ask.choices),
        false => (ask.choices, 1),
    };
    for (at, read) in prompts.into_iter().enumerate() {
        let max_new = judge_length(&read, &ask, limits)?;
        let job = Job {
            label: record.id.clone(),
            tenant: tenant.clone(),
            cache_salt: ask.cache_salt.clone(),
            session: session(headers),
            model: model.clone(),
            prompt: read.tokens,
            max_new,
            choices: together,
            sampling: Sampling {
                // A client's own seed gives each prompt the answer that it has alone; with ours, a
                // prompt that stands there twice gets two.
                seed: ask.seed.unwrap_or(seed.wrapping_add(at as u64)),
                ..ask.sampling.clone()
            },
            ignore_eos: ask.rules.ignore_eos,
            stop_tokens: ask.rules.stop_tokens.clone(),
            min_new: ask.rules.min_tokens,
            form: ask.held(),
            deadline,
            operator: record.operator,
            only: only.clone(),
            carried: carried.clone(),
            trace: record.trace.clone(),
        };
        for choice in 0..apart {
            let mut job = job.clone();
            job.sampling.seed = job.sampling.seed.wrapping_add(u64::from(choice) << 32);
            let asked = Asked {
                prompt: job.prompt.len() as u32,
                again: choice > 0,
                choices: together,
                max_new,
                before: read.echo.clone(),
            };
            jobs.push((job, asked));
        }
    }
    // Last, so that what can never be served is told so even while nothing can be.
    status::refuse_unready(shared)?;
    Ok(Prepared {
        ask,
        jobs,
        deadline,
    })
}

/// Longest `x-session-id` that is looked at, bytes.
const SESSION_BYTES_MAX: usize = 256;

/// A hint that requests belong together.
pub(super) const SESSION: &str = "x-session-id";

fn session(headers: &HeaderMap) -> Option<String> {
    let session = headers.get(SESSION)?.to_str().ok()?;
    (session.len() <= SESSION_BYTES_MAX).then(|| session.to_owned())
}

/// Which engines an operator wants to be answered by, and was.
pub(super) const ENGINES: &str = "x-cofferdam-engines";
/// Engines that a request may name.
const ENGINES_MAX: usize = 2;

fn named_engines(headers: &HeaderMap, operator: bool) -> Result<Vec<String>, Fault> {
    let Some(named) = headers.get(ENGINES) else {
        return Ok(Vec::new());
    };
    let refused = |why: &str| {
        Err(Fault::new(
            Code::InvalidRequest,
            format!("{ENGINES}: {why}"),
        ))
    };
    if !operator {
        return refused("only operators name the engines of a request; leave the header out");
    }
    let names: Vec<String> = named
        .to_str()
        .unwrap_or_default()
        .split(',')
        .map(|name| name.trim().to_owned())
        .collect();
    let fine = names.len() <= ENGINES_MAX && names.iter().all(|it| !it.is_empty());
    match fine {
        true => Ok(names),
        false => refused("expected the name of one engine, or of a prefill and a decode"),
    }
}

/// An operator is told who has answered.
pub(super) fn signed(mut response: Response<Reply>, record: &Record) -> Response<Reply> {
    if record.operator
        && let Some(by) = &record.provenance
    {
        let names = [&by.prefill, &by.decode];
        let names = names.into_iter().filter(|it| !it.is_empty());
        let names = names.map(String::as_str).collect::<Vec<_>>().join(",");
        if let Ok(names) = HeaderValue::from_str(&names) {
            response.headers_mut().insert(ENGINES, names);
        }
    }
    response
}

/// What only the engine itself can carry out, as it is told.
fn carried(ask: &Ask) -> Option<Arc<Carried>> {
    let fields = ask.carried.clone()?;
    Some(Arc::new(Carried {
        chat: ask.dialect != Dialect::Completion,
        stream: ask.stream,
        fields,
    }))
}

/// The same prompts, as an engine has them that writes a conversation's prompt itself.
async fn written_there(
    shared: &Shared,
    carried: Option<&Carried>,
    mut prompts: Vec<Read>,
) -> Result<Vec<Read>, Fault> {
    if let Some(carried) = carried.filter(|it| it.chat)
        && let Some(tokens) = shared.engine.tokens_of(carried).await?
        && let [one] = &mut prompts[..]
    {
        one.tokens = tokens;
    }
    Ok(prompts)
}

/// A prompt as the engine gets it.
struct Read {
    /// Where it stands in the request.
    param: String,
    tokens: Vec<u32>,
    /// Its text, if that is to be repeated.
    echo: String,
}

fn prompts(
    ask: &Ask,
    text: &dyn Text,
    facts: &EngineFacts,
    echo_max: usize,
) -> Result<Vec<Read>, Fault> {
    let prompts = match &ask.input {
        Input::Chat(talk) => {
            talk.judge(text)?;
            let chat = talk.told(text);
            let most = judge_bytes("messages", chat.bytes(), limits(facts)?, text)?;
            let tokens = text.chat(&chat, most)?;
            return Ok(vec![checked("messages".to_owned(), tokens, text)?]);
        }
        Input::Prompts(prompts) => prompts,
    };
    let mut read = Vec::with_capacity(prompts.len());
    let mut echoed = 0;
    for (at, prompt) in prompts.iter().enumerate() {
        let param = match prompts.len() {
            1 => "prompt".to_owned(),
            _ => format!("prompt[{at}]"),
        };
        let tokens = match prompt {
            Prompt::Text(prompt) => {
                judge_bytes(&param, prompt.len(), limits(facts)?, text)?;
                text.encode(prompt, ask.add_special)?
            }
            Prompt::Tokens(tokens) => tokens.clone(),
        };
        let mut one = checked(param, tokens, text)?;
        if prompts.len() > 1 {
            // Before the next is read.
            judge_length(&one, ask, limits(facts)?)?;
        }
        if ask.echo {
            // A few bytes of a request must not become many of an answer.
            let bytes = match prompt {
                Prompt::Text(prompt) => prompt.len(),
                Prompt::Tokens(tokens) => tokens.iter().map(|id| text.bytes(*id).len()).sum(),
            };
            echoed += bytes * usize::from(ask.choices);
            if echoed > echo_max {
                let message = format!(
                    "`echo`: the prompts, once for each answer, have more than {echo_max} bytes of \
                     text; leave it out"
                );
                return Err(Fault::new(Code::PayloadTooLarge, message).on("echo"));
            }
            one.echo = match prompt {
                Prompt::Text(prompt) => prompt.clone(),
                Prompt::Tokens(tokens) => text.decode(tokens)?,
            };
        }
        read.push(one);
    }
    Ok(read)
}

fn checked(param: String, tokens: Vec<u32>, text: &dyn Text) -> Result<Read, Fault> {
    tokenize::in_vocabulary(&param, &tokens, text.vocab())?;
    if tokens.is_empty() {
        return Err(Fault::new(
            Code::InvalidRequest,
            "the prompt has no token; send one at least",
        )
        .on(param));
    }
    Ok(Read {
        param,
        tokens,
        echo: String::new(),
    })
}

fn check_bias(sampling: &Sampling, vocab: u32) -> Result<(), Fault> {
    let tokens: Vec<u32> = sampling
        .logit_bias
        .iter()
        .map(|&(token, _)| token)
        .collect();
    tokenize::in_vocabulary("logit_bias", &tokens, vocab)
}

fn limits(facts: &EngineFacts) -> Result<&[LengthLimit], Fault> {
    // Pools are measured before a worker says a word: who has no limit has nobody to ask.
    match &facts.limits[..] {
        [] => Err(status::unready(&facts.readiness)
            .unwrap_or_else(|| Fault::new(Code::Unavailable, "no worker has said what it holds"))),
        limits => Ok(limits),
    }
}

/// Most bytes that the text of a prompt may have: more are more tokens than fit, whatever they say.
///
/// # Errors
/// There are more. The text has not been read.
pub(super) fn judge_bytes(
    param: &str,
    given: usize,
    limits: &[LengthLimit],
    text: &dyn Text,
) -> Result<usize, Fault> {
    let (limit, longest) = (of_prompts(limits), text.longest());
    let largest = limit.longest_prompt() as usize;
    let most = largest.saturating_mul(longest);
    if given <= most {
        return Ok(most);
    }
    let how = limit.derivation.join("; ");
    let message = format!(
        "`{param}` has {given} bytes of text; the limit is {largest} tokens ({how}), and no token of \
         this model has more than {longest} bytes, so no prompt has more than {most}; shorten it"
    );
    Err(Fault::new(Code::ContextLengthExceeded, message).on(param.to_owned()))
}

/// The limit of whoever takes the longest prompt.
fn of_prompts(limits: &[LengthLimit]) -> &LengthLimit {
    let longest = limits.iter().max_by_key(|limit| limit.longest_prompt());
    longest.expect("asked where there are limits")
}

/// The largest number of tokens to sample for a prompt.
fn judge_length(read: &Read, ask: &Ask, limits: &[LengthLimit]) -> Result<u32, Fault> {
    let most = room(read.tokens.len(), ask.max_tokens, limits).map_err(|mut fault| {
        // Which of several prompts it was.
        if read.param.starts_with("prompt[") {
            fault.message = format!("`{}`: {}", read.param, fault.message);
        }
        fault
    })?;
    if ask.rules.min_tokens > most {
        let expected = format!("at most {most}, the largest number of tokens of this answer");
        return Err(invalid("min_tokens", expected));
    }
    Ok(most)
}

/// Nothing is ever cut to fit: what does not fit is refused, with the figures (H-2). Only where the
/// client gave no maximum does the context end the answer: the largest context that takes the
/// prompt, since that is the one that is advertised.
fn room(prompt: usize, max_tokens: Option<u32>, limits: &[LengthLimit]) -> Result<u32, Fault> {
    let able = limits
        .iter()
        .filter_map(|limit| Some((limit.lengths().room(prompt as u64)?, limit)));
    let Some((room, limit)) = able.max_by_key(|(room, _)| *room) else {
        let limit = of_prompts(limits);
        let (largest, how) = (limit.longest_prompt(), limit.derivation.join("; "));
        let message =
            format!("the prompt has {prompt} tokens; the limit is {largest} tokens ({how})");
        return Err(Fault::new(Code::ContextLengthExceeded, message));
    };
    match max_tokens {
        None => Ok(room),
        Some(wanted) if wanted <= room => Ok(wanted),
        Some(wanted) => {
            let (context, how) = (limit.max_model_len, limit.derivation.join("; "));
            let message = format!(
                "the prompt has {prompt} tokens and max_tokens is {wanted}: together {}, but the \
                 context is {context} tokens ({how}); ask for at most {room}, or leave max_tokens \
                 out to end at the context",
                prompt as u64 + u64::from(wanted),
            );
            Err(Fault::new(Code::MaxTokensOverContext, message).on("max_tokens"))
        }
    }
}

/// The next piece, or a fault once the server's time to drain is over.
pub(super) async fn next(
    run: &mut Run,
    phase: &mut watch::Receiver<Phase>,
) -> Result<Option<Piece>, Fault> {
    tokio::select! {
        biased;
        next = run.next() => next,
        _ = phase.wait_for(|phase| *phase == Phase::Ending) => {
            Err(Fault::ended())
        }
    }
}

/// Collects an answer. While it is collected, a client that leaves drops this future, and with it
/// the run, which cancels the request.
async fn whole(shared: &Shared, mut run: Run, envelope: Envelope) -> Response<Reply> {
    let mut phase = shared.phase.clone();
    let mut answers: Vec<Piece> = Vec::new();
    let answer = loop {
        match next(&mut run, &mut phase).await {
            Ok(Some(piece)) => merge(&mut answers, piece),
            Ok(None) => {
                answers.sort_by_key(|piece| piece.choice);
                let json = envelope.whole(&answers, run.usage(), &*shared.text);
                break Ok(body::json(StatusCode::OK, &json));
            }
            Err(fault) => break Err(fault),
        }
    };
    match answer {
        Ok(response) => {
            run.record.status = response.status().as_u16();
            run.record.end(Outcome::Ok);
            signed(response, &run.record)
        }
        Err(fault) => refuse(&mut run, &fault),
    }
}

/// A fault before any byte of an answer was sent.
pub(super) fn refuse(run: &mut Run, fault: &Fault) -> Response<Reply> {
    let response = body::fault(fault);
    run.record.status = response.status().as_u16();
    run.record.fail(fault);
    response
}

fn merge(answers: &mut Vec<Piece>, piece: Piece) {
    match answers
        .iter_mut()
        .find(|known| known.choice == piece.choice)
    {
        None => answers.push(piece),
        Some(known) => {
            known.text += &piece.text;
            known.said = piece.said.or(known.said.take());
            known.logs.extend(piece.logs);
            known.calls.extend(piece.calls);
            known.called = known.called || piece.called;
            known.finish = known.finish.or(piece.finish);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(context: u32, prompt: u32) -> [LengthLimit; 1] {
        [LengthLimit {
            max_model_len: context,
            max_prompt_tokens: prompt,
            derivation: vec!["pool of prefill-0: 100 tokens".to_owned()],
        }]
    }

    #[test]
    fn lengths_are_judged_to_the_token() {
        let limit = limit(100, 80);
        assert_eq!(room(80, None, &limit).unwrap(), 20);
        assert_eq!(room(80, Some(20), &limit).unwrap(), 20);
        let fault = room(80, Some(21), &limit).unwrap_err();
        assert_eq!(fault.code, Code::MaxTokensOverContext);
        assert!(fault.message.contains("together 101"), "{fault}");
        let fault = room(81, None, &limit).unwrap_err();
        assert_eq!(fault.code, Code::ContextLengthExceeded);
        assert_eq!(
            fault.message,
            "the prompt has 81 tokens; the limit is 80 tokens (pool of prefill-0: 100 tokens)"
        );
        assert!(room(1, Some(u32::MAX), &limit).is_err());
    }

    /// What one of several pairs takes is taken, and a refusal names the most that any takes.
    #[test]
    fn of_several_limits_the_largest_that_holds_it_counts() {
        // One has the longer prompts, the other the longer context.
        let (wide, long) = (limit(100, 20), limit(50, 40));
        for limits in [[wide.clone(), long.clone()], [long, wide]] {
            let limits = limits.concat();
            let room = |prompt, wanted| room(prompt, wanted, &limits);
            assert_eq!(room(20, None).unwrap(), 80);
            assert_eq!(room(21, None).unwrap(), 29);
            assert_eq!(room(21, Some(29)).unwrap(), 29);
            let fault = room(21, Some(30)).unwrap_err();
            assert_eq!(fault.code, Code::MaxTokensOverContext);
            assert!(fault.message.contains("context is 50 tokens"), "{fault}");
            let fault = room(41, Some(1)).unwrap_err();
            assert!(fault.message.contains("the limit is 40 tokens"), "{fault}");
        }
    }

    #[test]
    fn an_answer_always_has_room_for_one_token() {
        let limit = limit(10, 10);
        assert!(room(10, None, &limit).is_err());
        assert_eq!(room(9, None, &limit).unwrap(), 1);
        assert!(room(1, None, &self::limit(0, 0)).is_err());
    }
}
