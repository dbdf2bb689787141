//! From a request's head to whoever answers it.

use std::convert::Infallible;
use std::sync::Arc;

use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::{Semaphore, watch};

use super::access_log::{AccessLog, Outcome, Record};
use super::ask::Dialect;
use super::body::{self, Budget, Reply};
use super::config::Config;
use super::heads::Seen;
use super::identity::Minter;
use super::metrics::Metrics;
use super::quota::{Account, Quotas};
use super::server::Phase;
use super::text::Text;
use super::turns::Turns;
use super::{absent, auth, generate, models, page, status, tokenize};
use crate::engine::{Code, Engine, Fault, TenantId};

/// Most of a client's own request id that is logged.
const MAX_CLIENT_ID: usize = 128;

/// Whether a connection is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Door {
    /// It is.
    Open,
    /// There are too many: it is told so and closed.
    Full,
}

/// What all connections share.
pub(super) struct Shared {
    /// The limits.
    pub config: Config,
    /// Who computes.
    pub engine: Arc<dyn Engine>,
    /// Tokenizer and template.
    pub text: Arc<dyn Text>,
    /// How far the end has come.
    pub phase: watch::Receiver<Phase>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// Memory for bodies.
    pub budget: Budget,
    /// Places for generations.
    pub running: Arc<Semaphore>,
    /// Places for work that keeps a core busy.
    pub turns: Turns,
    quotas: Quotas,
    log: AccessLog,
    minter: Minter,
}

impl Shared {
    /// The shared state of a gateway that begins.
    pub(super) fn new(
        config: Config,
        engine: Arc<dyn Engine>,
        text: Arc<dyn Text>,
        phase: watch::Receiver<Phase>,
    ) -> Arc<Self> {
        let log = config.access_log.clone();
        Arc::new(Self {
            budget: Budget::new(config.body_budget_bytes),
            running: Arc::new(Semaphore::new(config.max_running)),
            turns: Turns::of_this_machine(),
            quotas: Quotas::default(),
            metrics: Arc::new(Metrics::new(engine.clone(), &config)),
            minter: Minter::new(),
            config,
            engine,
            text,
            phase,
            log,
        })
    }

    /// Counts a connection until the guard is dropped.
    pub(super) fn count_connection(&self) -> Counted {
        Counted::new(&self.metrics.connections)
    }

    /// Answers one request.
    pub(super) async fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
        seen: Seen,
        door: Door,
    ) -> Result<Response<Reply>, Infallible> {
        let name = self.minter.request();
        let (head, body) = request.into_parts();
        let mut record = Record::new(self.log.clone(), self.metrics.clone(), name.id.clone());
        record.observer = self.config.observer.clone();
        record.client_id = client_id(&head.headers);
        let mut account = None;
        let mut response = match self.judge(&head, seen, door, &mut record) {
            Ok(Route::Generate(dialect)) => {
                let traceparent = head.headers.get("traceparent");
                let traceparent = traceparent.and_then(|it| it.to_str().ok());
                record.trace = self.config.spans.request(traceparent);
                account = self.account(&record.tenant());
                let asked = (&head.headers, body);
                generate::answer(&self, dialect, asked, account.as_ref(), name.seed, record).await
            }
            Ok(route) => {
                let answer = self.plain(route, &head.headers, body, &mut record).await;
                finish(record, answer)
            }
            Err(fault) => finish(record, Err(fault)),
        };
        self.config.origins.sign(&head, &mut response);
        let options = head.method == Method::OPTIONS;
        let refused = response.status() == StatusCode::METHOD_NOT_ALLOWED;
        let headers = response.headers_mut();
        if let Ok(id) = HeaderValue::from_str(&name.id) {
            headers.insert("x-request-id", id);
        }
        if let Some(account) = account {
            account.sign(headers);
        }
        if refused || options {
            let allowed = find(head.uri.path()).map_or(ANYWHERE, |(_, allowed, _)| allowed);
            headers.insert(header::ALLOW, HeaderValue::from_static(allowed));
        }
        if door == Door::Full {
            response
                .headers_mut()
                .insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        Ok(response)
    }

    /// Everything that can be refused by the head alone.
    fn judge(
        &self,
        head: &Parts,
        seen: Seen,
        door: Door,
        record: &mut Record,
    ) -> Result<Route, Fault> {
        let size = head_size(head);
        if size > self.config.max_header_bytes {
            let limit = self.config.max_header_bytes;
            let message =
                format!("request line and headers have {size} bytes; the limit is {limit}");
            return Err(Fault::new(Code::HeadersTooLarge, message));
        }
        unambiguous(head, seen)?;
        expectation(head)?;
        if door == Door::Full {
            let message = format!("all {} connections are in use", self.config.max_connections);
            return Err(Fault::new(Code::OverCapacity, message));
        }
        let path = head.uri.path();
        let asks = head.method == Method::OPTIONS;
        // A page may read that there is no such path, so its browser is told that it may ask.
        if asks && (path == "*" || self.config.origins.is_preflight(head)) {
            record.route = find(path).map_or("unknown", |(name, ..)| name);
            return Ok(Route::Options);
        }
        let (name, allowed, route) =
            find(path).ok_or_else(|| Fault::new(Code::NotFound, absent::message(path)))?;
        record.route = name;
        if asks {
            return Ok(Route::Options);
        }
        if !allowed.split(", ").any(|method| head.method == method) {
            let message = format!("{name} takes {allowed} only");
            return Err(Fault::new(Code::MethodNotAllowed, message));
        }
        if route.needs_key() {
            let (keys, canaries) = (self.config.keys.as_ref(), self.config.canaries.as_deref());
            let tenant = auth::tenant(keys, canaries, &head.headers)?;
            record.tenant = Some(tenant);
        }
        Ok(route)
    }

    async fn plain(
        self: &Arc<Self>,
        route: Route,
        headers: &HeaderMap,
        incoming: Incoming,
        record: &mut Record,
    ) -> Result<Response<Reply>, Fault> {
        match route {
            Route::Generate(_) => Err(Fault::new(Code::Internal, "misrouted")),
            Route::Models => Ok(models::list(&self.engine.facts())),
            Route::Model(id) => models::one(&self.engine.facts(), &id),
            Route::Tokenize => {
                let tenant = record.tenant();
                let received =
                    body::read(headers, incoming, &self.config, &self.budget, &tenant).await?;
                tokenize::tokenize(self, received, record).await
            }
            Route::Detokenize => {
                let tenant = record.tenant();
                let received =
                    body::read(headers, incoming, &self.config, &self.budget, &tenant).await?;
                tokenize::detokenize(self, received, &tenant).await
            }
            Route::Options => Ok(body::empty(StatusCode::NO_CONTENT)),
            Route::Page(file) => Ok(page::answer(file, headers)),
            Route::Version => Ok(status::version()),
            Route::Live => Ok(status::live()),
            Route::Ready => status::ready(self),
            Route::Info => Ok(status::info(self)),
            Route::Metrics => Ok(status::metrics(self, headers)),
        }
    }

    /// The account of a tenant whose requests or tokens of a minute are limited.
    fn account(&self, tenant: &TenantId) -> Option<Account> {
        let usual = self.config.rates;
        let keys = self.config.keys.as_ref().map(|keys| keys.now());
        let rates = keys.map_or(usual, |keys| keys.rates(tenant, usual));
        self.quotas.account(tenant, rates)
    }

    /// Runs work that keeps a core busy where that is allowed, when it is the tenant's turn.
    ///
    /// # Errors
    /// The work's own, `queue_full` if too much of the tenant waits, or `internal` if it panicked.
    pub(super) async fn block<T: Send + 'static>(
        &self,
        tenant: &TenantId,
        work: impl FnOnce() -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Fault> {
        let several = self
            .config
            .keys
            .as_ref()
            .is_some_and(|it| it.now().several());
        let place = self.turns.take(tenant, several).await?;
        // The place goes with the work: a client that leaves does not free it early.
        tokio::task::spawn_blocking(move || {
            let _place = place;
            work()
        })
        .await
        .unwrap_or_else(|_| Err(Fault::new(Code::Internal, "reading the request failed")))
    }
}

/// Ends a record with its answer.
pub(super) fn finish(
    mut record: Record,
    answer: Result<Response<Reply>, Fault>,
) -> Response<Reply> {
    let response = match answer {
        Ok(response) => {
            record.end(Outcome::Ok);
            response
        }
        Err(fault) => {
            record.fail(&fault);
            body::fault(&fault)
        }
    };
    record.status = response.status().as_u16();
    response
}

/// Something that is counted while it exists.
pub(super) struct Counted(Gauge);

impl Counted {
    /// Counts one more.
    pub(super) fn new(gauge: &Gauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// What can be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Route {
    Generate(Dialect),
    Models,
    Model(String),
    Tokenize,
    Detokenize,
    /// What may be asked, whatever lies there.
    Options,
    Page(page::File),
    Version,
    Live,
    Ready,
    Info,
    Metrics,
}

impl Route {
    /// Whoever only looks whether the server is alive, ready or busy needs no key: load balancers
    /// and scrapers have none, and none of these answers depends on a tenant.
    fn needs_key(&self) -> bool {
        !matches!(
            self,
            Self::Options
                | Self::Page(_)
                | Self::Version
                | Self::Live
                | Self::Ready
                | Self::Metrics
        )
    }
}

/// What a path takes, as `Allow` says it. The head of what can be got can be got too (hyper leaves
/// the body out).
const GET: &str = "GET, HEAD, OPTIONS";
const POST: &str = "POST, OPTIONS";
const ANYWHERE: &str = "GET, HEAD, POST, OPTIONS";

/// The name of a path in logs, its methods, and its route.
fn find(path: &str) -> Option<(&'static str, &'static str, Route)> {
    let bare = Route::Generate(Dialect::Completion);
    Some(match path {
        "/" => ("/", GET, Route::Page(page::File::Page)),
        "/page.js" => ("/page.js", GET, Route::Page(page::File::Script)),
        "/page.css" => ("/page.css", GET, Route::Page(page::File::Style)),
        "/v1/chat/completions" => ("/v1/chat/completions", POST, Route::Generate(Dialect::Chat)),
        "/v1/responses" => ("/v1/responses", POST, Route::Generate(Dialect::Responses)),
        "/v1/completions" => ("/v1/completions", POST, bare),
        "/v1/models" => ("/v1/models", GET, Route::Models),
        "/tokenize" => ("/tokenize", POST, Route::Tokenize),
        "/detokenize" => ("/detokenize", POST, Route::Detokenize),
        "/version" => ("/version", GET, Route::Version),
        "/livez" => ("/livez", GET, Route::Live),
        "/readyz" => ("/readyz", GET, Route::Ready),
        "/health" => ("/health", GET, Route::Ready),
        "/server_info" => ("/server_info", GET, Route::Info),
        "/metrics" => ("/metrics", GET, Route::Metrics),
        _ => {
            let id = path
                .strip_prefix("/v1/models/")
                .filter(|id| !id.is_empty())?;
            ("/v1/models/{id}", GET, Route::Model(models::unescape(id)))
        }
    })
}

/// Whoever expects something else would wait for it, or take the answer for a promise.
fn expectation(head: &Parts) -> Result<(), Fault> {
    let lines = head.headers.get_all(header::EXPECT).iter();
    let mut expected = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b','));
    match expected.all(|it| it.trim_ascii().eq_ignore_ascii_case(b"100-continue")) {
        true => Ok(()),
        false => {
            let problem = "expected no `Expect` but `100-continue`";
            Err(Fault::new(Code::ExpectationFailed, problem))
        }
    }
}

/// Refuses what a proxy before this server may have read otherwise: then a part of one client's
/// request could become the beginning of another's. What is left of such a connection is not read.
fn unambiguous(head: &Parts, seen: Seen) -> Result<(), Fault> {
    let refused = |message: String| Err(Fault::new(Code::AmbiguousRequest, message));
    if let Some(why) = seen.ambiguous {
        return refused(why.to_owned());
    }
    if seen.lines != head.headers.len() {
        let (here, there) = (seen.lines, head.headers.len());
        return refused(format!("{here} header lines are read as {there}"));
    }
    let lines = |name| head.headers.get_all(name).iter();
    let hosts = lines(header::HOST).count();
    let needed = usize::from(head.version >= http::Version::HTTP_11);
    if hosts > 1 || hosts < needed {
        return refused(format!("expected one `Host` line; there are {hosts}"));
    }
    let host = head.headers.get(header::HOST).map(HeaderValue::as_bytes);
    if !host.is_none_or(is_host) {
        return refused("`Host` is not one name or address, with a port or without".to_owned());
    }
    let named = head.uri.authority().map(|it| it.as_str().as_bytes());
    if named.is_some_and(|named| host.is_some_and(|host| !host.eq_ignore_ascii_case(named))) {
        return refused("the target of the request names another host than `Host`".to_owned());
    }
    const ENGINES: HeaderName = HeaderName::from_static(generate::ENGINES);
    const SESSION: HeaderName = HeaderName::from_static(generate::SESSION);
    let once = [
        header::CONTENT_TYPE,
        header::CONTENT_ENCODING,
        header::ORIGIN,
        ENGINES,
        SESSION,
    ];
    for name in once {
        if lines(name.clone()).count() > 1 {
            return refused(format!("expected one `{name}` line; there are several"));
        }
    }
    let codings: Vec<&[u8]> = lines(header::TRANSFER_ENCODING)
        .map(HeaderValue::as_bytes)
        .collect();
    let known = match codings[..] {
        [] => true,
        [one] => one.trim_ascii().eq_ignore_ascii_case(b"chunked"),
        _ => false,
    };
    if !known {
        return refused("expected no `Transfer-Encoding` but `chunked`, once".to_owned());
    }
    let taken = lines(header::TE).flat_map(|line| line.as_bytes().split(|byte| *byte == b','));
    let mut names = taken.map(|coding| coding.split(|byte| *byte == b';').next().unwrap_or(coding));
    if names.any(|name| name.trim_ascii().eq_ignore_ascii_case(b"chunked")) {
        return refused("`TE` must not name `chunked`, which is always taken".to_owned());
    }
    Ok(())
}

/// Whether this is a host that everybody reads as the same one. (A list of two would be a name to some.)
fn is_host(host: &[u8]) -> bool {
    let literal = |byte: &u8| byte.is_ascii_hexdigit() || b":.".contains(byte);
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~%".contains(byte);
    let bracketed = host.strip_prefix(b"[").and_then(|rest| {
        let end = rest.iter().position(|byte| *byte == b']')?;
        rest[..end].iter().all(literal).then(|| &rest[end + 1..])
    });
    let port = match bracketed {
        Some(port) => port,
        None => &host[host.iter().take_while(|byte| plain(byte)).count()..],
    };
    match port.strip_prefix(b":") {
        Some(digits) => digits.iter().all(u8::is_ascii_digit),
        None => port.is_empty(),
    }
}

fn head_size(head: &Parts) -> usize {
    let line = head.method.as_str().len() + head.uri.path().len();
    let query = head.uri.query().map_or(0, str::len);
    let headers = head
        .headers
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len() + 4);
    line + query + headers.sum::<usize>()
}

fn client_id(headers: &HeaderMap) -> Option<String> {
    let id = headers.get("x-request-id")?.to_str().ok()?;
    Some(id.chars().take(MAX_CLIENT_ID).collect())
}
