//! `POST /tokenize` and `/detokenize`, in vLLM's shapes.

use std::sync::Arc;

use http::{Response, StatusCode};
use serde_json::{Value, json};

use super::access_log::Record;
use super::ask::{talk, token_ids, tools};
use super::body::{self, Received, Reply};
use super::fields::{Fields, invalid};
use super::router::Shared;
use super::text::Text;
use super::{generate, models};
use crate::engine::{Code, EngineFacts, Fault, TenantId};

/// Most bytes of text that are tokenized before there is a limit.
const UNMEASURED_BYTES: usize = 256 << 10;

/// A text or a conversation to token ids: exactly what a generation request would be given.
///
/// # Errors
/// A field cannot be served as asked.
pub(super) async fn tokenize(
    shared: &Arc<Shared>,
    received: Received,
    record: &mut Record,
) -> Result<Response<Reply>, Fault> {
    let facts = shared.engine.facts();
    let text = shared.text.clone();
    let max_model_len = facts.limit().map(|limit| limit.max_model_len);
    let tenant = record.tenant();
    let (tokens, strings) = shared
        .block(&tenant, move || {
            let mut fields = Fields::parse(&received.bytes)?;
            models::resolve(&facts, fields.text("model")?.as_deref())?;
            let strings = fields.flag("return_token_strs")?.unwrap_or(false);
            let prompt = fields.text("prompt")?;
            let special = fields.flag("add_special_tokens")?;
            let chat = fields.look("messages").is_some();
            let tokens = match prompt {
                Some(prompt) if !chat => {
                    fields.finish()?;
                    judge_bytes("prompt", prompt.len(), &facts, &*text)?;
                    text.encode(&prompt, special.unwrap_or(true))?
                }
                None if chat => {
                    let path = &facts.text_path;
                    let mut talk = talk(&mut fields, path)?;
                    if path.forms {
                        let tools = tools(&mut fields)?;
                        talk.chat.tools = tools.map(|tools| tools.shown);
                    } else if path.fields.contains(&"tools") {
                        talk.chat.tools = fields.take("tools");
                    }
                    if special == Some(true) {
                        let expected = "false: the template writes its own special tokens";
                        return Err(invalid("add_special_tokens", expected));
                    }
                    fields.finish()?;
                    talk.judge(&*text)?;
                    let chat = talk.told(&*text);
                    let most = judge_bytes("messages", chat.bytes(), &facts, &*text)?;
                    text.chat(&chat, most)?
                }
                _ => return Err(invalid("prompt", "either `prompt` or `messages`")),
            };
            let shown = |id: &u32| String::from_utf8_lossy(&text.bytes(*id)).into_owned();
            let strings = strings.then(|| tokens.iter().map(shown).collect::<Vec<_>>());
            Ok((tokens, strings))
        })
        .await?;
    record.usage.prompt = tokens.len() as u32;
    let answer = json!({
        "count": tokens.len(),
        "max_model_len": max_model_len,
        "tokens": tokens,
        "token_strs": strings,
    });
    Ok(body::json(StatusCode::OK, &answer))
}

/// Token ids to text, special tokens shown.
///
/// # Errors
/// A field cannot be served as asked, or an id is outside the vocabulary.
pub(super) async fn detokenize(
    shared: &Arc<Shared>,
    received: Received,
    tenant: &TenantId,
) -> Result<Response<Reply>, Fault> {
    let facts = shared.engine.facts();
    let text = shared.text.clone();
    let most = shared.config.max_body_bytes;
    let prompt = shared
        .block(tenant, move || {
            let mut fields = Fields::parse(&received.bytes)?;
            models::resolve(&facts, fields.text("model")?.as_deref())?;
            let tokens = match fields.take("tokens") {
                Some(Value::Array(list)) => token_ids("tokens", &list)?,
                _ => return Err(invalid("tokens", "a list of token ids")),
            };
            fields.finish()?;
            in_vocabulary("tokens", &tokens, text.vocab())?;
            judge_text(&tokens, &*text, most)?;
            text.decode(&tokens)
        })
        .await?;
    Ok(body::json(StatusCode::OK, &json!({"prompt": prompt})))
}

/// As a request's text is judged; a shorter one, while there is no limit yet to judge by.
fn judge_bytes(
    param: &str,
    given: usize,
    facts: &EngineFacts,
    text: &dyn Text,
) -> Result<usize, Fault> {
    match &facts.limits[..] {
        [] if given <= UNMEASURED_BYTES => Ok(UNMEASURED_BYTES),
        [] => {
            let message = format!(
                "`{param}` has {given} bytes of text; while no pair of workers is up, \
                 {UNMEASURED_BYTES} are read at most"
            );
            Err(Fault::new(Code::Unavailable, message).on(param.to_owned()))
        }
        limits => generate::judge_bytes(param, given, limits, text),
    }
}

/// A few bytes of a request must not become many of an answer.
fn judge_text(tokens: &[u32], text: &dyn Text, most: usize) -> Result<(), Fault> {
    let bytes: usize = tokens.iter().map(|id| text.bytes(*id).len()).sum();
    if bytes <= most {
        return Ok(());
    }
    let message = format!("the text of these tokens has {bytes} bytes; the limit is {most}");
    Err(Fault::new(Code::PayloadTooLarge, message).on("tokens"))
}

/// Refuses ids that the model does not have.
///
/// # Errors
/// There is one.
pub(super) fn in_vocabulary(param: &str, tokens: &[u32], vocab: u32) -> Result<(), Fault> {
    match tokens.iter().find(|&&id| id >= vocab) {
        None => Ok(()),
        Some(id) => Err(Fault::new(
            Code::InvalidRequest,
            format!("`{param}`: token id {id} is outside the vocabulary of {vocab}"),
        )
        .on(param.to_owned())),
    }
}
