//! HTTP: connections, paths, and what is asked of the engine itself.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::ask::Ask;
use crate::control::control;
use crate::engine::Dialect;
use crate::generate::{Answer, generate, json, typed};
use crate::log::What;
use crate::script::{Act, Case};
use crate::shapes::{Shape, refusal};
use crate::state::State;
use crate::tell::{Gone, full};
use crate::tokenize::{detokenize, tokenize};
use crate::wire::{Extra, Wire};

/// Serves until it is dropped, and every connection with it.
pub(crate) async fn serve(listener: TcpListener, state: Arc<State>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => if let Ok((stream, _)) = accepted {
                connections.spawn(connection(stream, state.clone()));
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn connection(stream: TcpStream, state: Arc<State>) {
    if stream.set_nodelay(true).is_err() {
        return;
    }
    let extra = Extra::default();
    let wire = Wire::new(stream, extra.clone());
    let service = service_fn(|request| answer(state.clone(), request, extra.clone()));
    // Its errors are the peer's leaving and the script's closing.
    let _ = http1::Builder::new()
        .max_headers(200)
        .serve_connection(TokioIo::new(wire), service)
        .await;
}

fn shape(dialect: Dialect, path: &str) -> Option<Shape> {
    Some(match (dialect, path) {
        (_, "/v1/chat/completions") => Shape::Chat,
        (_, "/v1/completions") => Shape::Text,
        (Dialect::Sglang, "/generate") => Shape::Generate,
        (Dialect::Vllm, "/inference/v1/generate") => Shape::Tokens,
        (Dialect::Llama, "/completion" | "/completions") => Shape::Completion,
        _ => return None,
    })
}

async fn answer(state: Arc<State>, request: Request<Incoming>, extra: Extra) -> Answer {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map_err(|_| Gone)?.to_bytes();
    let path = parts.uri.path();
    if let Some(rest) = path.strip_prefix("/scripted/") {
        return Ok(control(&state, &parts.method, rest, &body));
    }
    if let (true, Some(shape)) = (
        parts.method == Method::POST,
        shape(state.engine.dialect, path),
    ) {
        return generate(state, shape, parts, body, &extra).await;
    }
    if let Some(answer) = other_than_asked(&state, path).await {
        return answer;
    }
    Ok(plain(&state, &parts.method, path, &body))
}

/// Rules for paths that do not generate.
async fn other_than_asked(state: &State, path: &str) -> Option<Answer> {
    let case = Case {
        name: &state.engine.name,
        role: state.engine.role.name(),
        path,
        generates: false,
        prompt: &String::new,
    };
    let rule = state.fleet.script().decide(&case)?;
    tokio::time::sleep(Duration::from_millis(rule.delay_ms)).await;
    let dialect = state.engine.dialect;
    match rule.act {
        Act::Hang => std::future::pending().await,
        Act::Drop => Some(Err(Gone)),
        Act::Nonsense => Some(Ok(json(200, Bytes::from_static(b"\x00\xff{]nonsense")))),
        Act::Refuse { status, message } | Act::Fail { status, message } => {
            let body = refusal(dialect, Shape::Text, status, message.as_deref());
            Some(Ok(json(status, body)))
        }
        _ => None,
    }
}

fn plain(
    state: &State,
    method: &Method,
    path: &str,
    body: &[u8],
) -> http::Response<crate::tell::Body> {
    let dialect = state.engine.dialect;
    if method == Method::GET
        && let Some((kind, page)) = state.pages.get(path)
    {
        return typed(200, kind, full(page));
    }
    match (dialect, path) {
        (Dialect::Sglang, "/abort_request") => abort_by_prefix(state, body),
        (Dialect::Vllm, "/inference/v1/abort_requests" | "/abort_requests") => {
            abort_by_id(state, body)
        }
        (Dialect::Vllm | Dialect::Llama, "/tokenize") => tokenize(state, body),
        (Dialect::Vllm | Dialect::Llama, "/detokenize") => detokenize(state, body),
        (Dialect::Sglang, "/flush_cache") => typed(200, "text/plain", full("Cache flushed.\n")),
        (Dialect::Llama, _) => {
            let body =
                r#"{"error":{"code":404,"message":"File Not Found","type":"not_found_error"}}"#;
            json(404, body)
        }
        _ => json(404, r#"{"detail":"Not Found"}"#),
    }
}

/// SGLang ends every request whose id begins so.
fn abort_by_prefix(state: &State, body: &[u8]) -> http::Response<crate::tell::Body> {
    let ask = Ask::parse(body).unwrap_or_default();
    let rid = ask.rid.unwrap_or_default();
    let hits = match ask.abort_all || !rid.is_empty() {
        true => state.abort(|it| ask.abort_all || it.starts_with(&rid)),
        false => 0,
    };
    note_abort(state, rid, hits);
    typed(200, "text/plain", full(""))
}

/// vLLM ends the requests with these very ids.
fn abort_by_id(state: &State, body: &[u8]) -> http::Response<crate::tell::Body> {
    let ask = Ask::parse(body).unwrap_or_default();
    if ask.request_ids.is_empty() {
        return json(400, r#"{"detail":"Missing 'request_ids' in request body"}"#);
    }
    for id in ask.request_ids {
        let hits = state.abort(|it| it == id);
        note_abort(state, id, hits);
    }
    typed(200, "text/plain", full(""))
}

fn note_abort(state: &State, rid: String, hits: u64) {
    state.notes.note(0, What::AbortCall { rid, hits });
}
