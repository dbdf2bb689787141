//! What an engine says in the end: words, counts and ids, as the script changes them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::{Response, header};

use crate::engine::{Dialect, Role};
use crate::generate::{Answer, Request, json, typed};
use crate::part::Part;
use crate::script::Act;
use crate::shapes::{Finish, Shape, Spoken, TooLong, quoted, refusal, too_long_for_pool};
use crate::tell::{Body, broken_off, full, stream};
use crate::wire::Extra;
use crate::work::Work;

const EVENTS: &str = "text/event-stream; charset=utf-8";

/// What SGLang and vLLM answer to whom an abort has ended: 200, and the abort inside.
pub(crate) fn aborted(mut work: Work, request: &Request, said: usize) -> Response<Body> {
    let mut spoken = spoken(
        &work,
        request,
        Part {
            seed: None,
            transfer: None,
        },
    );
    spoken.ids.truncate(said);
    spoken.finish = Finish::Abort {
        message: "Aborted".into(),
        status: None,
    };
    work.aborted();
    match request.ask.stream {
        true => typed(200, EVENTS, full(spoken.closing(said))),
        false => json(200, spoken.whole()),
    }
}

/// A refusal of what is too long. SGLang says it inside a 200 where it streams, unless it is said
/// to an OpenAI request by the tokenizer.
pub(crate) fn too_long(work: &Work, request: &Request, long: TooLong) -> Response<Body> {
    let sglang = work.state.engine.dialect == Dialect::Sglang;
    let generate = request.shape == Shape::Generate;
    if !sglang || !request.ask.stream || (long.at_once && !generate) {
        return json(400, long.body);
    }
    if long.at_once {
        let body = Spoken::refused_in_stream(&long.message);
        return typed(200, EVENTS, full(body));
    }
    let mut spoken = spoken(
        work,
        request,
        Part {
            seed: None,
            transfer: None,
        },
    );
    spoken.ids.clear();
    spoken.prompt_tokens = 1;
    spoken.finish = Finish::Abort {
        message: long.message.clone(),
        status: Some(400),
    };
    typed(200, EVENTS, full(spoken.in_band(&long.message)))
}

pub(crate) async fn speak(mut work: Work, request: Request, part: Part, extra: &Extra) -> Answer {
    match &request.act {
        Act::Fail { status, message } => {
            work.end(*status);
            let engine = &work.state.engine;
            let body = refusal(engine.dialect, request.shape, *status, message.as_deref());
            return Ok(json(*status, body));
        }
        Act::Late { ms } => {
            work.leg.wait_for_abort().await;
            tokio::time::sleep(Duration::from_millis(*ms)).await;
        }
        Act::Nonsense => {
            work.end(200);
            return Ok(json(200, Bytes::from_static(b"\x00\xff{]nonsense\r\n\r\n")));
        }
        _ => {}
    }
    let spoken = spoken(&work, &request, part);
    if request.ask.stream {
        let body = stream(work, spoken, request.act, request.gap);
        return Ok(typed(200, EVENTS, body));
    }
    let time = request.gap * spoken.ids.len().saturating_sub(1) as u32;
    if work.pause(time).await.is_err() {
        return Ok(aborted(work, &request, 0));
    }
    Ok(whole(work, &spoken, &request.act, extra))
}

fn whole(mut work: Work, spoken: &Spoken, act: &Act, extra: &Extra) -> Response<Body> {
    let text = spoken.whole();
    match act {
        Act::Cut | Act::Stall | Act::Endless => {
            let (body, length) = broken_off(work, text, act);
            let mut response = typed(200, "application/json", body);
            if let Some(length) = length {
                response
                    .headers_mut()
                    .insert(header::CONTENT_LENGTH, length.into());
            }
            return response;
        }
        Act::Unasked => extra.queue(&text),
        _ => {}
    }
    work.end(200);
    match act {
        Act::Twice => json(200, text.clone() + &text),
        _ => json(200, text),
    }
}

/// The words, counts and ids of an answer.
fn spoken(work: &Work, request: &Request, part: Part) -> Spoken {
    let engine = &work.state.engine;
    let (ask, act) = (&request.ask, &request.act);
    let prefill = engine.dialect == Dialect::Sglang && engine.role == Role::Prefill;
    let usual = match request.shape {
        Shape::Generate => 128,
        _ => 16,
    };
    let asked = ask.max_tokens.unwrap_or(usual);
    let says = if prefill {
        1
    } else {
        (asked as usize).min(engine.longest)
    };
    let stale = engine.stale_over > 0 && request.tokens > engine.stale_over;
    let seed = part.seed.map(|seed| match stale {
        true => work.state.fleet.meeting.other_text(seed),
        false => seed,
    });
    let ids = match seed {
        Some(seed) if engine.copies => work.state.fleet.meeting.goes_on(seed, says),
        Some(seed) => seed.tokens(says),
        None => vec![0; says],
    };
    let mut spoken = Spoken {
        dialect: engine.dialect,
        shape: request.shape,
        incremental: engine.incremental,
        id: quoted(&work.leg.rid),
        model: quoted(ask.model.as_deref().unwrap_or(&engine.model)),
        created: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |it| it.as_secs()),
        ids,
        prompt_tokens: request.tokens,
        cached: engine.cached,
        counts: *act != Act::NoUsage,
        length: if prefill { 0 } else { says },
        finish: if says as u64 == asked || prefill {
            Finish::Length
        } else {
            Finish::Stop
        },
        transfer: part.transfer,
        include_usage: ask.include_usage,
        continuous_usage: ask.continuous_usage,
        token_ids: ask.token_ids,
        tools: ask.tools && request.shape == Shape::Chat,
        done: *act != Act::Undone,
    };
    match act {
        Act::Incident if engine.role == Role::Prefill => spoken.prompt_tokens = 1,
        Act::Count { prompt_tokens } => spoken.prompt_tokens = *prompt_tokens,
        Act::OtherId => spoken.id = quoted(&other_id(&work.leg.rid)),
        Act::InBand => {
            spoken.prompt_tokens = 1;
            spoken.ids.clear();
            let message = too_long_for_pool(request.tokens, engine.max_req_input_len());
            let status = Some(400);
            spoken.finish = Finish::Abort { message, status };
        }
        _ => {}
    }
    spoken
}

/// As long, and somebody else's.
fn other_id(id: &str) -> String {
    let turn = |it: char| match it {
        '0'..='8' => (it as u8 + 1) as char,
        '9' => '0',
        'a'..='e' => (it as u8 + 1) as char,
        'f' => 'a',
        it => it,
    };
    id.chars().map(turn).collect()
}
