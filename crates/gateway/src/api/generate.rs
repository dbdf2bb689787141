//! `POST /v1/chat/completions` and `/v1/completions`: from a body to a submitted job, and its
//! answer whole or as a stream.

use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use http::{HeaderMap, Response, StatusCode};
use hyper::body::Incoming;
use tokio::sync::watch;

use super::access_log::{Outcome, Record};
use super::ask::{Ask, Dialect, Input};
use super::body::{self, Reply};
use super::choice::Piece;
use super::render::Envelope;
use super::router::{Counted, Shared, finish};
use super::run::Run;
use super::server::Phase;
use super::text::Text;
use super::{models, status, stream, tokenize};
use crate::engine::{Code, EngineFacts, Fault, Job, Limit, Sampling};

/// Answers one generation request.
pub async fn answer(
    shared: &Arc<Shared>,
    dialect: Dialect,
    headers: &HeaderMap,
    body: Incoming,
    seed: u64,
    mut record: Record,
) -> Response<Reply> {
    let prepared = match prepare(shared, dialect, headers, body, seed, &mut record).await {
        Ok(prepared) => prepared,
        Err(fault) => return finish(record, Err(fault)),
    };
    let Prepared { ask, job } = prepared;
    let Ok(place) = shared.running.clone().try_acquire_owned() else {
        let limit = shared.config.max_running;
        let fault = Fault::new(
            Code::QueueFull,
            format!("all {limit} places are taken; try again"),
        );
        return finish(record, Err(fault));
    };
    let created = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs();
    let envelope = Envelope::new(&ask, &record.id, &job.model, created);
    let (prompt, max_new, deadline) = (job.prompt.len() as u32, job.max_new, job.deadline);
    record.stream = ask.stream;
    let accepted = match shared.engine.submit(job) {
        Ok(accepted) => accepted,
        Err(fault) => return finish(record, Err(fault)),
    };
    let counted = Counted::new(&shared.metrics.running);
    let text = shared.text.clone();
    let run =
        Run::new(accepted, &ask, text, prompt, max_new, deadline, record).holding((place, counted));
    if ask.stream {
        stream::answer(shared, run, envelope).await
    } else {
        whole(shared, run, envelope).await
    }
}

struct Prepared {
    ask: Ask,
    job: Job,
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
    }
    let text = shared.text.clone();
    let max_choices = shared.config.max_choices;
    let snapshot = facts.clone();
    let (ask, model, prompt) = shared
        .block(&tenant, move || {
            let ask = Ask::parse(dialect, &received.bytes, max_choices)?;
            drop(received);
            let model = models::resolve(&snapshot, ask.model.as_deref())?.id.clone();
            let prompt = tokens(&ask.input, &*text, &snapshot)?;
            check_bias(&ask.sampling, text.vocab())?;
            Ok((ask, model, prompt))
        })
        .await?;
    record.usage.prompt = prompt.len() as u32;
    let limit = limit(&facts)?;
    let max_new = judge_length(prompt.len(), ask.max_tokens, limit)?;
    // Last, so that what can never be served is told so even while nothing can be.
    status::refuse_unready(shared)?;
    let job = Job {
        label: record.id.clone(),
        tenant,
        cache_salt: ask.cache_salt.clone(),
        model,
        prompt,
        max_new,
        choices: ask.choices,
        sampling: Sampling {
            seed: ask.seed.unwrap_or(seed),
            ..ask.sampling.clone()
        },
        ignore_eos: ask.ignore_eos,
        deadline: Instant::now() + shared.config.request_timeout,
    };
    Ok(Prepared { ask, job })
}

fn tokens(input: &Input, text: &dyn Text, facts: &EngineFacts) -> Result<Vec<u32>, Fault> {
    let (param, tokens) = match input {
        Input::Chat(messages) => {
            let given = messages.iter().map(|message| message.content.len()).sum();
            let most = judge_bytes("messages", given, limit(facts)?, text)?;
            ("messages", text.chat(messages, true, most)?)
        }
        Input::Text(prompt) => {
            judge_bytes("prompt", prompt.len(), limit(facts)?, text)?;
            ("prompt", text.encode(prompt, true)?)
        }
        Input::Tokens(tokens) => ("prompt", tokens.clone()),
    };
    tokenize::in_vocabulary(param, &tokens, text.vocab())?;
    if tokens.is_empty() {
        return Err(Fault::new(Code::InvalidRequest, "the prompt has no token").on(param));
    }
    Ok(tokens)
}

fn check_bias(sampling: &Sampling, vocab: u32) -> Result<(), Fault> {
    let tokens: Vec<u32> = sampling
        .logit_bias
        .iter()
        .map(|&(token, _)| token)
        .collect();
    tokenize::in_vocabulary("logit_bias", &tokens, vocab)
}

fn limit(facts: &EngineFacts) -> Result<&Limit, Fault> {
    facts.limit.as_ref().ok_or_else(|| {
        Fault::new(
            Code::Unavailable,
            "the KV pools of the workers have not been measured yet",
        )
    })
}

/// Most bytes that the text of a prompt may have: more are more tokens than fit, whatever they say.
///
/// # Errors
/// There are more. The text has not been read.
pub fn judge_bytes(
    param: &'static str,
    given: usize,
    limit: &Limit,
    text: &dyn Text,
) -> Result<usize, Fault> {
    let (largest, longest) = (largest(limit), text.longest());
    let most = largest.saturating_mul(longest);
    if given <= most {
        return Ok(most);
    }
    let how = limit.derivation.join("; ");
    let message = format!(
        "`{param}` has {given} bytes of text; the limit is {largest} tokens ({how}), and no token of \
         this model has more than {longest} bytes, so no prompt has more than {most}; shorten it"
    );
    Err(Fault::new(Code::ContextLengthExceeded, message).on(param))
}

/// The largest prompt. An answer has at least one token, whatever the engine derived.
fn largest(limit: &Limit) -> usize {
    let context = limit.max_model_len as usize;
    (limit.max_prompt_tokens as usize).min(context.saturating_sub(1))
}

/// The largest number of tokens to sample. Nothing is ever cut to fit: what does not fit is
/// refused, with the figures (H-2). Only where the client gave no maximum does the context end the
/// answer.
fn judge_length(prompt: usize, max_tokens: Option<u32>, limit: &Limit) -> Result<u32, Fault> {
    let how = limit.derivation.join("; ");
    let (largest, context) = (largest(limit), limit.max_model_len as usize);
    if prompt > largest {
        let message =
            format!("the prompt has {prompt} tokens; the limit is {largest} tokens ({how})");
        return Err(Fault::new(Code::ContextLengthExceeded, message));
    }
    let room = context - prompt;
    match max_tokens {
        None => Ok(room as u32),
        Some(wanted) if wanted as usize <= room => Ok(wanted),
        Some(wanted) => {
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
pub async fn next(
    run: &mut Run,
    phase: &mut watch::Receiver<Phase>,
) -> Result<Option<Piece>, Fault> {
    tokio::select! {
        biased;
        next = run.next() => next,
        _ = phase.wait_for(|phase| *phase == Phase::Ending) => {
            Err(Fault::new(Code::Draining, "the server ended before the answer was complete"))
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
            response
        }
        Err(fault) => refuse(&mut run, &fault),
    }
}

/// A fault before any byte of an answer was sent.
pub fn refuse(run: &mut Run, fault: &Fault) -> Response<Reply> {
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
            known.logs.extend(piece.logs);
            known.finish = known.finish.or(piece.finish);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(context: u32, prompt: u32) -> Limit {
        Limit {
            max_model_len: context,
            max_prompt_tokens: prompt,
            derivation: vec!["pool of prefill-0: 100 tokens".to_owned()],
        }
    }

    #[test]
    fn lengths_are_judged_to_the_token() {
        let limit = limit(100, 80);
        assert_eq!(judge_length(80, None, &limit).unwrap(), 20);
        assert_eq!(judge_length(80, Some(20), &limit).unwrap(), 20);
        let fault = judge_length(80, Some(21), &limit).unwrap_err();
        assert_eq!(fault.code, Code::MaxTokensOverContext);
        assert!(fault.message.contains("together 101"), "{fault}");
        let fault = judge_length(81, None, &limit).unwrap_err();
        assert_eq!(fault.code, Code::ContextLengthExceeded);
        assert_eq!(
            fault.message,
            "the prompt has 81 tokens; the limit is 80 tokens (pool of prefill-0: 100 tokens)"
        );
        assert!(judge_length(1, Some(u32::MAX), &limit).is_err());
    }

    #[test]
    fn an_answer_always_has_room_for_one_token() {
        let limit = limit(10, 10);
        assert!(judge_length(10, None, &limit).is_err());
        assert_eq!(judge_length(9, None, &limit).unwrap(), 1);
        assert!(judge_length(1, None, &self::limit(0, 0)).is_err());
    }
}
