//! One line for every request that was answered, refused or given up, JSON or for people, and the
//! figures that `/metrics` sums. Never prompt text, never a key.

use std::io::Write;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};

use super::access_line::{self, Said};
use super::metrics::Metrics;
use super::observe::{Ended, Observer};
use super::quota::Reserved;
use super::run::Usage;
use crate::engine::{Fault, Provenance, TenantId};
use crate::spans::{SpanKind, Traced, What};

/// Lines that may wait for a slow disk or terminal before lines are dropped (and counted).
const MAX_WAITING: usize = 8192;

/// Where lines go; by default nowhere. Cheap to clone. Dropping the last clone waits until what
/// was taken is written.
#[derive(Clone, Default)]
pub struct AccessLog(Option<Arc<Writer>>);

struct Writer {
    form: Form,
    lines: Option<SyncSender<String>>,
    thread: Option<JoinHandle<()>>,
}

/// How a line is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Json,
    People,
}

impl AccessLog {
    /// A log that writes JSON to `sink` from a thread of its own, so that a slow sink slows no
    /// request.
    pub fn new(sink: impl Write + Send + 'static) -> Self {
        Self::in_form(Form::Json, sink)
    }

    /// The same with lines for people, of at most 90 columns.
    pub fn for_people(sink: impl Write + Send + 'static) -> Self {
        Self::in_form(Form::People, sink)
    }

    fn in_form(form: Form, mut sink: impl Write + Send + 'static) -> Self {
        let (send, receive) = sync_channel::<String>(MAX_WAITING);
        let thread = std::thread::spawn(move || {
            for line in receive {
                // A log that cannot be written must not stop the service.
                let _ = sink.write_all(line.as_bytes()).and_then(|()| sink.flush());
            }
        });
        Self(Some(Arc::new(Writer {
            form,
            lines: Some(send),
            thread: Some(thread),
        })))
    }

    /// Whether the line was taken.
    fn write(&self, record: &Record) -> bool {
        let writer = self.0.as_ref();
        let Some((form, lines)) = writer.and_then(|it| Some((it.form, it.lines.as_ref()?))) else {
            return true;
        };
        let now = SystemTime::now();
        let line = match form {
            Form::Json => record.line(now).to_string(),
            Form::People => access_line::of(&record.said(now)),
        };
        !matches!(lines.try_send(line + "\n"), Err(TrySendError::Full(_)))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        drop(self.lines.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // it has no way to panic but a sink's own
        }
    }
}

/// How a request ended, for logs and metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Answered in full.
    Ok,
    /// The client closed the connection first.
    ClientLeft,
    /// The client read its stream too slowly.
    ClientSlow,
    /// A fault, by code.
    Fault(crate::engine::Code),
}

impl Outcome {
    /// The word in logs and metrics.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::ClientLeft => "client_left",
            Self::ClientSlow => "client_slow",
            Self::Fault(code) => code.as_str(),
        }
    }
}

/// What is known of one request. Written when dropped, so whatever way a request ends, it is
/// written once; until something else is set, the way is that the client left.
pub(super) struct Record {
    log: AccessLog,
    metrics: Arc<Metrics>,
    /// Who else is told how it ended.
    pub observer: Option<Arc<dyn Observer>>,
    /// The gateway's id of the request.
    pub id: String,
    /// Method and path as routed; never a client's own text.
    pub route: &'static str,
    /// The client's `X-Request-Id`, shortened; decides nothing.
    pub client_id: Option<String>,
    /// Whether an operator asked.
    pub operator: bool,
    /// Who asked, once known.
    pub tenant: Option<TenantId>,
    /// What was taken of the tenant's tokens of a minute; settled at the end.
    pub reserved: Option<Reserved>,
    /// The engine's id of the request; of each of several prompts, with spaces between.
    pub engine_request: Option<String>,
    /// How many prompts it has.
    pub prompts: u32,
    /// The span of the request, if a collector wants them.
    pub trace: Option<Traced>,
    /// When an engine had taken it on.
    pub accepted: Option<Instant>,
    /// Who computed it.
    pub provenance: Option<Provenance>,
    /// Whom its fault is about.
    suspects: Option<Box<Provenance>>,
    /// Exact figures so far.
    pub usage: Usage,
    /// Whether the answer is a stream.
    pub stream: bool,
    /// When the head of the request was here.
    pub start: Instant,
    /// When the first token was here.
    pub first_token: Option<Instant>,
    /// When the latest token was here.
    pub last_token: Option<Instant>,
    /// The status line sent or about to be sent; 0 while there is none.
    pub status: u16,
    outcome: Outcome,
}

impl Record {
    /// A request that has just arrived.
    pub(super) fn new(log: AccessLog, metrics: Arc<Metrics>, id: String) -> Self {
        Self {
            log,
            metrics,
            observer: None,
            id,
            route: "unknown",
            client_id: None,
            operator: false,
            tenant: None,
            reserved: None,
            engine_request: None,
            prompts: 1,
            trace: None,
            accepted: None,
            provenance: None,
            suspects: None,
            usage: Usage::default(),
            stream: false,
            start: Instant::now(),
            first_token: None,
            last_token: None,
            status: 0,
            outcome: Outcome::ClientLeft,
        }
    }

    /// Who asked. Routes without a key read no body and do not ask.
    pub(super) fn tenant(&self) -> TenantId {
        self.tenant.clone().unwrap_or_else(TenantId::anonymous)
    }

    /// A token came.
    pub(super) fn saw_token(&mut self) {
        let now = Instant::now();
        match self.last_token.replace(now) {
            None => {
                self.first_token = Some(now);
                self.metrics.first_token(now - self.start);
            }
            Some(before) => self.metrics.next_token(now - before),
        }
    }

    /// It ended like this.
    pub(super) fn end(&mut self, outcome: Outcome) {
        self.outcome = outcome;
    }

    /// It ended with this fault; an internal one is also said on the server's own log, since its
    /// message is the only evidence.
    pub(super) fn fail(&mut self, fault: &Fault) {
        self.outcome = Outcome::Fault(fault.code);
        self.suspects.clone_from(&fault.at);
        if fault.code == crate::engine::Code::Internal {
            tracing::error!(request = %self.id, "{fault}");
        }
    }

    fn tell(&self, observer: &dyn Observer) {
        let code = match self.outcome {
            Outcome::Fault(code) => Some(code),
            _ => None,
        };
        // Of several prompts it would be nobody's measure.
        let first = self.first_token.filter(|_| self.prompts == 1);
        observer.ended(Ended {
            request: &self.id,
            tenant: self.tenant.as_ref().map_or("", |it| it.as_str()),
            outcome: self.outcome.as_str(),
            code,
            prompt_tokens: self.usage.prompt,
            completion_tokens: self.usage.completion,
            cached_tokens: self.usage.cached,
            first_token: first.map(|at| at - self.start),
            by: self.suspects.as_deref().or(self.provenance.as_ref()),
        });
    }

    /// What a collector hears: the request, and how long it took until an engine had it.
    fn spans(&self, now: SystemTime) {
        let Some(trace) = &self.trace else { return };
        let at = |instant: Instant| now - instant.elapsed();
        let started = at(self.start);
        let mut what = What {
            failed: self.status >= 500
                || !matches!(self.outcome, Outcome::Ok | Outcome::ClientLeft),
            ..What::default()
        };
        what = what
            .word("cofferdam.request", &*self.id)
            .word("cofferdam.outcome", self.outcome.as_str())
            .word("http.route", self.route)
            .word(
                "cofferdam.engine_request",
                self.engine_request.as_deref().unwrap_or(""),
            )
            .figure("http.response.status_code", self.status);
        if let Some(tenant) = &self.tenant {
            what = what.word("cofferdam.tenant", tenant.as_str());
        }
        if self.engine_request.is_some() {
            let usage = self.usage;
            what = what
                .figure("gen_ai.usage.input_tokens", usage.prompt)
                .figure("gen_ai.usage.output_tokens", usage.completion)
                .figure("gen_ai.usage.cache_read.input_tokens", usage.cached);
        }
        let queue = trace.below();
        let taken = self.accepted.map_or(now, at);
        queue.was(
            "queue",
            SpanKind::Internal,
            (started, taken),
            What::default(),
        );
        trace.was("request", SpanKind::Server, (started, now), what);
    }

    fn said(&self, at: SystemTime) -> Said<'_> {
        let usage = self.usage;
        let first = self.first_token.map(|first| first - self.start);
        let computed = self.engine_request.is_some();
        Said {
            at,
            tenant: self.tenant.as_ref().map(|it| it.as_str()),
            status: self.status,
            route: self.route,
            outcome: self.outcome.as_str(),
            computed: computed.then_some((usage.prompt, usage.completion, first)),
            total: self.start.elapsed(),
        }
    }

    fn line(&self, now: SystemTime) -> Value {
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let ms = |d: std::time::Duration| (d.as_secs_f64() * 1e6).round() / 1e3;
        let mut line = Map::new();
        let mut put = |key: &str, value: Value| line.insert(key.to_owned(), value);
        put(
            "time_unix_s",
            json!((now.as_secs_f64() * 1e3).round() / 1e3),
        );
        put("request", json!(self.id));
        put("route", json!(self.route));
        put("outcome", json!(self.outcome.as_str()));
        put("status", json!(self.status));
        put("duration_ms", json!(ms(self.start.elapsed())));
        if let Some(tenant) = &self.tenant {
            put("tenant", json!(tenant.as_str()));
        }
        if let Some(id) = &self.client_id {
            put("client_request", json!(id));
        }
        if let Some(id) = &self.engine_request {
            put("engine_request", json!(id));
            put("stream", json!(self.stream));
            // Of several prompts, which may be computed at once or one after the other, it would be
            // nobody's measure (docs/watch.md).
            let first = self.first_token.filter(|_| self.prompts == 1);
            put("ttft_ms", json!(first.map(|at| ms(at - self.start))));
            if self.prompts > 1 {
                put("prompts", json!(self.prompts));
            }
            put("completion_tokens", json!(self.usage.completion));
            put("cached_tokens", json!(self.usage.cached));
        }
        if self.usage.prompt > 0 {
            put("prompt_tokens", json!(self.usage.prompt));
        }
        if let Some(from) = &self.provenance {
            put("prefill_epoch", json!(from.prefill_epoch));
            put("decode_epoch", json!(from.decode_epoch));
        }
        Value::Object(line)
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        if let Some(reserved) = self.reserved.take() {
            let (prompt, answer) = (self.usage.prompt.into(), self.usage.completion.into());
            // Nothing was computed of what no engine took on.
            reserved.used(
                self.provenance
                    .as_ref()
                    .map_or(0, |_| u64::saturating_add(prompt, answer)),
            );
        }
        self.metrics.request_ended(self, self.outcome);
        if let Some(observer) = &self.observer
            && (self.engine_request.is_some() || self.suspects.is_some())
        {
            self.tell(observer.as_ref());
        }
        self.spans(SystemTime::now());
        if !self.log.write(self) {
            self.metrics.log_line_dropped();
        }
    }
}
