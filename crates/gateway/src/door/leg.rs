//! One leg: one HTTP request to one engine, read to its end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use bytes::Bytes;
use handoff::AttemptId;
use handoff::door::{Blame, End, Label, Leg, Whose};
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::Incoming;
use hyper_util::client::legacy;
use hyper_util::rt::TokioExecutor;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::{Duration, timeout};

use super::actor::{Ended, Input};
use super::connect::Connect;
use super::dialect::{Call, Order, Protocol, Reading};
use super::requests::Part;
use super::sse::{Line, Lines};
use super::{Config, Upstream};
use crate::spans::{SpanKind, Traced, What};

/// Bytes of an engine's error that are read, and characters of it that are handed on.
const ERROR_BYTES_MAX: usize = 64 << 10;
const ERROR_CHARS_MAX: usize = 500;
/// Time for the rest of an error's body, and for an engine's answer to a call.
const ERROR_TIME: Duration = Duration::from_secs(5);

/// Connections to engines, kept for reuse.
#[derive(Clone)]
pub(super) struct Client {
    http: legacy::Client<Connect, Full<Bytes>>,
    answer_bytes_max: usize,
}

/// Whose leg it is, and who wants to hear of it.
pub(super) struct Running {
    pub(super) attempt: AttemptId,
    pub(super) leg: Leg,
    pub(super) upstream: Arc<Upstream>,
    pub(super) back: UnboundedSender<Input>,
    /// The leg's own span.
    pub(super) span: Option<LegSpan>,
}

/// A span of a leg: it says what was when it is dropped, however the leg ended.
pub(super) struct LegSpan {
    span: Traced,
    request: Traced,
    leg: Leg,
    began: SystemTime,
    /// Whether the engine does both: then its first token says how long prefill took.
    alone: bool,
    /// When decode gave its first token.
    first: OnceLock<SystemTime>,
    what: What,
    failed: AtomicBool,
}

impl LegSpan {
    /// Of a leg that begins now.
    pub(super) fn new(request: &Traced, attempt: AttemptId, order: &Order, engine: &str) -> Self {
        let what = What::default().word("cofferdam.attempt", attempt.to_string());
        Self {
            span: request.below(),
            request: request.clone(),
            leg: order.leg,
            alone: order.meet.is_none() && order.reference.is_none(),
            began: SystemTime::now(),
            first: OnceLock::new(),
            what: what.word("cofferdam.engine", engine),
            failed: AtomicBool::new(true),
        }
    }
}

impl Drop for LegSpan {
    fn drop(&mut self) {
        let now = SystemTime::now();
        let name = match self.leg {
            Leg::Prefill => "prefill",
            Leg::Decode => "decode",
        };
        let mut what = self.what.clone();
        what.failed = *self.failed.get_mut();
        if let Some(first) = self.first.get() {
            let name = if self.alone { "prefill" } else { "handoff" };
            let before = self.request.below();
            before.was(
                name,
                SpanKind::Internal,
                (self.began, *first),
                self.what.clone(),
            );
        }
        self.span
            .was(name, SpanKind::Client, (self.began, now), what);
    }
}

impl Client {
    pub(super) fn new(config: &Config) -> Self {
        let connect = Connect::new(config.connect, config.tls.clone());
        let http = legacy::Client::builder(TokioExecutor::new()).build(connect);
        Self {
            http,
            answer_bytes_max: config.answer_bytes_max,
        }
    }

    /// Runs a leg. However it ends, the machine hears of it once.
    pub(super) fn run(
        &self,
        running: Running,
        dialect: Protocol,
        order: Order,
    ) -> impl Future<Output = ()> + Send + use<> {
        let client = self.clone();
        let mut last = LastWord {
            running: Some((running.attempt, running.leg, running.back.clone())),
        };
        async move {
            let (call, reading) = dialect.ask(&order);
            let ended = client.exchange(&running, call, reading).await;
            if let Some(it) = &running.span {
                let failed = !matches!(ended.end, End::Answered { .. });
                it.failed.store(failed, Ordering::Relaxed);
            }
            last.say(ended);
        }
    }

    /// The body of a call's answer, if it is a good one.
    pub(super) async fn body_of(&self, upstream: &Upstream, call: Call) -> Option<Bytes> {
        let done = async {
            let answer = self.send(upstream, call, None).await.ok()?;
            let fine = answer.status().is_success();
            let body = http_body_util::Limited::new(answer.into_body(), ERROR_BYTES_MAX);
            let body = body.collect().await.ok()?.to_bytes();
            fine.then_some(body)
        };
        timeout(ERROR_TIME, done).await.ok().flatten()
    }

    /// A call of which only the status matters.
    pub(super) fn call(
        &self,
        upstream: Arc<Upstream>,
        call: Call,
    ) -> impl Future<Output = bool> + Send + use<> {
        let client = self.clone();
        async move { client.body_of(&upstream, call).await.is_some() }
    }

    async fn send(
        &self,
        upstream: &Upstream,
        call: Call,
        span: Option<&LegSpan>,
    ) -> Result<hyper::Response<Incoming>, legacy::Error> {
        let scheme = if upstream.tls { "https" } else { "http" };
        let uri = format!("{scheme}://{}{}", upstream.authority, call.path);
        let mut request = Request::post(uri).header("content-type", "application/json");
        if let Some(key) = &upstream.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        if let Some(id) = call.request_id {
            request = request.header("x-request-id", id);
        }
        if let Some(span) = span {
            request = request.header("traceparent", span.span.traceparent());
        }
        let request = request.body(Full::new(Bytes::from(call.body)));
        // The authority was parsed and the names are ours: hexadecimal digits.
        let request = request.expect("every part was checked");
        self.http.request(request).await
    }

    async fn exchange(&self, running: &Running, call: Call, mut reading: Reading) -> Ended {
        let span = running.span.as_ref();
        let answer = match self.send(&running.upstream, call, span).await {
            Ok(answer) => answer,
            Err(error) if error.is_connect() => return unreached(),
            Err(_) => return lost(),
        };
        let status = answer.status();
        if !status.is_success() {
            return refused(status.as_u16(), answer.into_body()).await;
        }
        let streams = answer.headers().get("content-type");
        let streams = streams.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
        let body = answer.into_body();
        let read = match streams {
            true => self.stream(running, &mut reading, body).await,
            false => self.whole(running, &mut reading, body).await,
        };
        read.unwrap_or_else(lost)
    }

    async fn whole(
        &self,
        running: &Running,
        reading: &mut Reading,
        body: Incoming,
    ) -> Option<Ended> {
        let body = http_body_util::Limited::new(body, self.answer_bytes_max);
        let bytes = body.collect().await.ok()?.to_bytes();
        let heard = reading.read(&bytes)?;
        if let Some((class, said)) = heard.failed {
            return Some(failed(class, said));
        }
        let whole = reading.is_whole(running.leg);
        whole.then(|| answered(reading, heard.part))
    }

    /// Every event is told to the machine at once; the last words with the end.
    async fn stream(
        &self,
        running: &Running,
        reading: &mut Reading,
        mut body: Incoming,
    ) -> Option<Ended> {
        let mut lines = Lines::new(self.answer_bytes_max);
        let mut left = self.answer_bytes_max;
        let mut done = false;
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.ok()?.into_data() else {
                continue; // trailers say nothing
            };
            left = left.checked_sub(data.len())?;
            for line in lines.take(&data).ok()? {
                let data = match line {
                    Line::Done => {
                        done = true;
                        continue;
                    }
                    Line::Data(data) => data,
                };
                let heard = reading.read(&data)?;
                if let Some((class, said)) = heard.failed {
                    return Some(failed(class, said));
                }
                if running.leg == Leg::Decode && !heard.part.is_empty() {
                    if let Some(it) = &running.span {
                        it.first.get_or_init(SystemTime::now);
                    }
                    let said = reading.said();
                    let part = Input::Part(running.attempt, said, heard.part);
                    running.back.send(part).ok()?;
                }
            }
        }
        let whole = reading.is_whole(running.leg) && (done || !reading.says_done());
        let part = Part {
            finish: reading.finish(),
            sampled: reading.sampled(),
            ..Part::default()
        };
        whole.then(|| answered(reading, part))
    }
}

/// Says how a leg ended, also where its task was ended.
struct LastWord {
    running: Option<(AttemptId, Leg, UnboundedSender<Input>)>,
}

impl LastWord {
    fn say(&mut self, ended: Ended) {
        if let Some((attempt, leg, back)) = self.running.take() {
            // An engine that has ended needs no word.
            let _ = back.send(Input::Ended(attempt, leg, Box::new(ended)));
        }
    }
}

impl Drop for LastWord {
    fn drop(&mut self) {
        self.say(lost());
    }
}

fn lost() -> Ended {
    Ended {
        end: End::Lost,
        part: Part::default(),
        said: None,
        reference: None,
    }
}

/// No connection was made, so not a byte of the request has gone out.
fn unreached() -> Ended {
    Ended {
        end: End::Unreached,
        ..lost()
    }
}

fn failed(class: Blame, said: String) -> Ended {
    Ended {
        end: End::Failed(class),
        said: Some(said.chars().take(ERROR_CHARS_MAX).collect()),
        ..lost()
    }
}

fn answered(reading: &mut Reading, part: Part) -> Ended {
    let reference = reading.reference();
    Ended {
        end: End::Answered {
            said: reading.said(),
            reference: reference.is_some(),
        },
        part,
        said: None,
        reference,
    }
}

async fn refused(status: u16, body: Incoming) -> Ended {
    let body = http_body_util::Limited::new(body, ERROR_BYTES_MAX);
    let read = timeout(ERROR_TIME, body.collect()).await;
    let bytes = read.ok().and_then(Result::ok).map(|body| body.to_bytes());
    let said = bytes.and_then(|bytes| super::dialect::words_of(&bytes));
    match super::dialect::class_of(status) {
        Some(class) => failed(class, said.unwrap_or_else(|| format!("status {status}"))),
        None => lost(),
    }
}

/// What an engine that says nothing of itself has said.
pub(super) const SILENT: Label = Label {
    whose: Whose::Unsaid,
    prompt: None,
};
