//! Requests that generate: what the script says, or the engine's part in them.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Response, header};

use crate::ask::Ask;
use crate::content::Seed;
use crate::engine::{Dialect, Role};
use crate::log::{Arrival, NOTED_BODY, What};
use crate::part::{self, Trouble};
use crate::script::{Act, Case, Rule};
use crate::shapes::{Shape, over_length, refusal};
use crate::speak::{aborted, speak, too_long};
use crate::state::State;
use crate::tell::{Body, Gone, full};
use crate::wire::Extra;
use crate::work::{Leg, Work};

pub(crate) type Answer = Result<Response<Body>, Gone>;

pub(crate) fn json(status: u16, body: impl Into<Bytes>) -> Response<Body> {
    typed(status, "application/json", full(body))
}

pub(crate) fn typed(status: u16, kind: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = http::StatusCode::from_u16(status).expect("a status");
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// One request, understood.
pub(crate) struct Request {
    pub(crate) shape: Shape,
    pub(crate) ask: Ask,
    pub(crate) seed: Seed,
    pub(crate) tokens: u64,
    pub(crate) act: Act,
    pub(crate) gap: Duration,
}

/// Answers a request that generates.
pub(crate) async fn generate(
    state: Arc<State>,
    shape: Shape,
    parts: Parts,
    body: Bytes,
    extra: &Extra,
) -> Answer {
    let dialect = state.engine.dialect;
    let mut ask = match Ask::parse(&body) {
        Ok(ask) => ask,
        Err(error) => {
            return Ok(json(
                400,
                refusal(dialect, shape, 400, Some(&error.to_string())),
            ));
        }
    };
    if dialect == Dialect::Vllm {
        let header = parts.headers.get("x-request-id");
        let header = header.and_then(|it| it.to_str().ok()).map(str::to_owned);
        ask.rid = ask.rid.take().or(header);
    }
    let ids = ask.prompt.ids();
    let (seed, count) = (Seed::of(&ids), ids.len() as u64);
    if state.engine.copies {
        state.fleet.meeting.learn(seed, &ids);
    }
    let rule = decide(&state, parts.uri.path(), &ask);
    let number = state.fleet.next();
    let leg = Leg::new(own_id(dialect, shape, &ask, number));
    let mut work = Work::begin(state.clone(), number, leg);
    if state.notes.noting {
        work.note(What::Arrived(Box::new(arrival(&parts, &ask, count, &body))));
    }
    drop(body);
    work.deaf = matches!(rule.act, Act::Deaf | Act::Late { .. });
    let gap = rule.token_ms.unwrap_or(state.engine.token_ms);
    let request = Request {
        shape,
        ask,
        seed,
        tokens: count,
        act: rule.act,
        gap: Duration::from_millis(gap),
    };
    if work
        .pause(Duration::from_millis(rule.delay_ms))
        .await
        .is_err()
    {
        return Ok(aborted(work, &request, 0));
    }
    answer(work, request, extra).await
}

fn decide(state: &State, path: &str, ask: &Ask) -> Rule {
    let case = Case {
        name: &state.engine.name,
        role: state.engine.role.name(),
        path,
        generates: true,
        prompt: &|| ask.prompt.text(),
    };
    state.fleet.script().decide(&case).unwrap_or_default()
}

/// The id that the engine calls the request by, which is the one to abort it by.
fn own_id(dialect: Dialect, shape: Shape, ask: &Ask, number: u64) -> String {
    let given = ask.rid.clone();
    let given = given.unwrap_or_else(|| format!("{:032x}", u128::from(number) << 64 | 0xc0ff));
    match (dialect, shape) {
        (Dialect::Vllm, Shape::Chat) => format!("chatcmpl-{given}"),
        (Dialect::Vllm, Shape::Text) => format!("cmpl-{given}"),
        (Dialect::Vllm, _) => format!("generate-tokens-{given}"),
        (Dialect::Llama, _) => format!("chatcmpl-{given}"),
        (Dialect::Sglang, _) => given,
    }
}

fn arrival(parts: &Parts, ask: &Ask, count: u64, body: &Bytes) -> Arrival {
    let header = |(name, value): (&http::HeaderName, &HeaderValue)| {
        let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
        (name.as_str().to_owned(), value)
    };
    let small = body.len() <= NOTED_BODY;
    let noted = small.then(|| serde_json::from_slice(body).unwrap_or_default());
    Arrival {
        path: parts.uri.path().to_owned(),
        rid: ask.rid.clone(),
        room: ask.room,
        reference: ask.transfer_text("remote_request_id").map(str::to_owned),
        prompt_tokens: count,
        bytes: body.len() as u64,
        fields: ask.fields.clone(),
        headers: parts.headers.iter().map(header).collect(),
        body: noted.unwrap_or_default(),
    }
}

async fn answer(mut work: Work, mut request: Request, extra: &Extra) -> Answer {
    let (engine, shape) = (&work.state.engine, request.shape);
    let (dialect, room) = (engine.dialect, request.ask.room);
    let long = over_length(engine, shape, request.tokens);
    let leaks = engine.leaks && engine.role == Role::Prefill;
    if let (true, Act::Answer, Some(_)) = (leaks, &request.act, &long) {
        request.act = Act::Incident;
    }
    match &request.act {
        Act::Refuse { status, message } => {
            let body = refusal(dialect, shape, *status, message.as_deref());
            return Ok(refuse(work, room, json(*status, body)));
        }
        Act::Hang => {
            if let Some(room) = room {
                work.enter(room);
            }
            std::future::pending::<()>().await;
        }
        Act::Drop => {
            work.end(0);
            return Err(Gone);
        }
        Act::Answer => {
            if let Some(long) = long {
                let response = too_long(&work, &request, long);
                return Ok(refuse(work, room, response));
            }
        }
        _ => {}
    }
    work.state.fleet.meeting.saw(request.seed);
    let played = part::play(
        &mut work,
        &request.ask,
        &request.act,
        request.seed,
        request.tokens,
    );
    let part = match played.await {
        Ok(part) => part,
        Err(Trouble::Aborted) => return Ok(aborted(work, &request, 0)),
        Err(Trouble::Failed(status, message)) => {
            match work.leg.is_aborted() && !work.deaf {
                true => work.aborted(),
                false => work.end(status),
            }
            let body = refusal(dialect, shape, status, Some(&message));
            return Ok(json(status, body));
        }
    };
    speak(work, request, part, extra).await
}

fn refuse(mut work: Work, room: Option<u64>, response: Response<Body>) -> Response<Body> {
    work.refuse(room);
    work.end(response.status().as_u16());
    response
}
