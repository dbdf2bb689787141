//! What is asked, and the answers. Three files need no key, because they know nothing; everything else
//! needs an operator's. There are no cookies, so a page of somebody else's has nothing to abuse.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited, StreamBody};
use hyper::body::{Body, Frame, Incoming};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::Desk;
use crate::act::{Act, Action, ActionRefused, ActionScope, Done, REASON_MAX, WhoseFault};
use crate::feed::{Feed, view};
use crate::keys::{Keys, Operator};
use crate::server::Limits;

/// One script, served as one file, written as three.
const SCRIPT: &str = concat!(
    include_str!("page/dom.js"),
    include_str!("page/views.js"),
    include_str!("page/desk.js")
);
/// What a browser may do with the page: run the script and use the style beside it, and ask this
/// server.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
/// Bytes of an action: a reason of 2000 characters, each of up to 12 bytes as JSON writes it, fits.
const BODY_MAX: usize = 32 << 10;
/// Of a body that is too large, so many bytes are read all the same, so that its sender hears why.
const WASTE_MAX: usize = 1 << 20;

type Reply = UnsyncBoxBody<Bytes, Infallible>;

/// Who answers.
pub(crate) struct Answers {
    keys: Keys,
    desk: Arc<dyn Desk>,
    feed: Feed,
    end: watch::Receiver<bool>,
    limits: Limits,
}

/// An action as the page sends it. Who it is, is not the client's to say: a body that does is refused.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    act: Act,
    scope: ActionScope,
    reason: String,
}

/// An answer that is an error.
struct No {
    status: StatusCode,
    refused: ActionRefused,
}

impl Answers {
    pub(crate) fn new(
        keys: Keys,
        desk: Arc<dyn Desk>,
        feed: Feed,
        end: watch::Receiver<bool>,
        limits: Limits,
    ) -> Self {
        Self {
            keys,
            desk,
            feed,
            end,
            limits,
        }
    }

    pub(crate) async fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<Response<Reply>, Infallible> {
        let done = self.route(request).await;
        let mut response = done.unwrap_or_else(No::into_response);
        for (name, value) in [
            (header::CONTENT_SECURITY_POLICY, POLICY),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (header::X_FRAME_OPTIONS, "DENY"),
            (header::REFERRER_POLICY, "no-referrer"),
            (header::CACHE_CONTROL, "no-store"),
        ] {
            let value = HeaderValue::from_static(value);
            response.headers_mut().insert(name, value);
        }
        Ok(response)
    }

    async fn route(&self, request: Request<Incoming>) -> Result<Response<Reply>, No> {
        let is_get = request.method() == Method::GET;
        let path = request.uri().path();
        let file = match path {
            "/" => Some(("text/html; charset=utf-8", include_str!("page/index.html"))),
            "/desk.js" => Some(("text/javascript; charset=utf-8", SCRIPT)),
            "/desk.css" => Some(("text/css; charset=utf-8", include_str!("page/desk.css"))),
            _ => None,
        };
        if let Some((media, text)) = file {
            return match is_get {
                true => Ok(whole(StatusCode::OK, media, text)),
                false => Err(wrong_method(request.method(), "GET")),
            };
        }
        let operator = self.operator(request.headers())?;
        match (path, is_get) {
            ("/state", true) => {
                let state = view(&self.desk.state());
                let mut response = whole(StatusCode::OK, "application/json", state);
                name(&mut response, &operator);
                Ok(response)
            }
            ("/events", true) => Ok(self.events(operator)),
            ("/actions", false) if request.method() == Method::POST => {
                self.act(request, operator).await
            }
            ("/state" | "/events", _) => Err(wrong_method(request.method(), "GET")),
            ("/actions", _) => Err(wrong_method(request.method(), "POST")),
            _ => Err(No::new(
                StatusCode::NOT_FOUND,
                "one of /, /state, /events, /actions",
                "another path",
                "open / in a browser",
            )),
        }
    }

    fn operator(&self, headers: &HeaderMap) -> Result<Operator, No> {
        self.keys.operator(headers).map_err(|got| {
            tracing::warn!(got, "the operators' listener: somebody was not let in");
            No::new(
                StatusCode::UNAUTHORIZED,
                "`Authorization: Bearer KEY` with an operator's key",
                got,
                "take a key from the file of operators' keys that this server was started with",
            )
        })
    }

    fn events(&self, operator: Operator) -> Response<Reply> {
        let events = self.feed.events(self.keys.clone(), operator.clone());
        let mut end = self.end.clone();
        let until = async move {
            let _ = end.wait_for(|end| *end).await;
        };
        let events = events.take_until(Box::pin(until));
        let body = StreamBody::new(events.map(|event| event.map(Frame::data)));
        let mut response = Response::new(body.boxed_unsync());
        let media = HeaderValue::from_static("text/event-stream");
        response.headers_mut().insert(header::CONTENT_TYPE, media);
        name(&mut response, &operator);
        response
    }

    async fn act(
        &self,
        request: Request<Incoming>,
        operator: Operator,
    ) -> Result<Response<Reply>, No> {
        of_this_page(request.headers())?;
        let asked = asked(request, self.limits.body_within).await?;
        check(&asked)?;
        let action = Action {
            act: asked.act,
            scope: asked.scope,
            reason: asked.reason.trim().to_owned(),
            by: operator.name.to_string(),
        };
        tracing::info!(by = action.by, act = action.act.word(), scope = %action.scope, reason = action.reason, "an operator acts");
        let desk = self.desk.clone();
        // Whoever leaves does not leave it half done.
        let done = tokio::spawn(async move { desk.act(action).await });
        let done = timeout(self.limits.act_within, done).await;
        let unknown = |got: &str| {
            No::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "the action within its time",
                got,
                "it is not known whether it was done: look at the state before you try again",
            )
        };
        let done: Result<Done, ActionRefused> = done
            .map_err(|_| unknown("no answer yet"))?
            .map_err(|_| unknown("a fault of the server itself, see its log"))?;
        let done = done.map_err(No::from)?;
        Ok(json(StatusCode::OK, &json!({ "done": done })))
    }
}

/// Whose script asks. There is nothing to steal here without a key, and still nobody else's page has
/// any business with it.
fn of_this_page(headers: &HeaderMap) -> Result<(), No> {
    let refused = |got: &str| {
        Err(No::new(
            StatusCode::FORBIDDEN,
            "a request of this page itself (Origin and Sec-Fetch-Site), or of a client that is no browser",
            got,
            "open the page at the address of this server",
        ))
    };
    let site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
    if !matches!(site, None | Some(b"same-origin") | Some(b"none")) {
        return refused("a request of another site");
    }
    let Some(origin) = headers.get(header::ORIGIN) else {
        return Ok(());
    };
    let place = |origin: &HeaderValue| {
        let (_, place) = origin.to_str().ok()?.split_once("://")?;
        Some(place.to_ascii_lowercase())
    };
    let host = headers.get(header::HOST).and_then(|it| it.to_str().ok());
    match (place(origin), host) {
        (Some(origin), Some(host)) if origin == host.to_ascii_lowercase() => Ok(()),
        _ => refused("an Origin that is not the address of this server"),
    }
}

async fn asked(request: Request<Incoming>, within: Duration) -> Result<Asked, No> {
    let media = request.headers().get(header::CONTENT_TYPE);
    let media = media.and_then(|it| it.to_str().ok()).unwrap_or_default();
    let essence = media.split(';').next().unwrap_or_default().trim();
    if !essence.eq_ignore_ascii_case("application/json") {
        return Err(No::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "`Content-Type: application/json`",
            if media.is_empty() { "none" } else { "another" },
            "send the action as JSON",
        ));
    }
    let bytes = match timeout(within, read(request.into_body())).await {
        Ok(bytes) => bytes?,
        Err(_) => {
            return Err(No::new(
                StatusCode::REQUEST_TIMEOUT,
                "the whole body within its time",
                "less",
                "send it again",
            ));
        }
    };
    serde_json::from_slice(&bytes).map_err(|error| {
        No::new(
            StatusCode::BAD_REQUEST,
            "{\"act\": …, \"scope\": {\"kind\": …}, \"reason\": …} and nothing else",
            &error.to_string(),
            "see docs/oncall-page.md",
        )
    })
}

async fn read(mut body: Incoming) -> Result<Bytes, No> {
    let too_large = || {
        No::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "at most 32 KiB",
            "more",
            "shorten the reason",
        )
    };
    let declared = body.size_hint().lower();
    if declared <= BODY_MAX as u64 {
        match Limited::new(&mut body, BODY_MAX).collect().await {
            Ok(whole) => return Ok(whole.to_bytes()),
            Err(error) if error.is::<LengthLimitError>() => {}
            Err(_) => {
                return Err(No::new(
                    StatusCode::BAD_REQUEST,
                    "a whole body",
                    "one that was broken off",
                    "send it again",
                ));
            }
        }
    }
    // A socket that is closed with something unread is reset, and the answer that says why with it.
    let mut left = WASTE_MAX;
    while let Some(Ok(frame)) = body.frame().await {
        let length = frame.data_ref().map_or(0, Bytes::len);
        if length >= left {
            break;
        }
        left -= length;
    }
    Err(too_large())
}

fn check(asked: &Asked) -> Result<(), No> {
    let bad = |expected: &str, got: &str, next: &str| {
        Err(No::new(StatusCode::BAD_REQUEST, expected, got, next))
    };
    let length = asked.reason.trim().chars().count();
    if !(1..=REASON_MAX).contains(&length) {
        return bad(
            "a reason of 1 to 2000 characters",
            &format!("one of {length}"),
            "write down why: whoever reads the incident later was not there",
        );
    }
    let control = |c: char| c.is_control() && c != '\n' && c != '\t';
    if asked.reason.chars().any(control) {
        return bad(
            "a reason in plain text",
            "control characters in it",
            "leave them out",
        );
    }
    let is_incident = matches!(asked.scope, ActionScope::Incident { .. });
    match (asked.act.is_about_incident(), is_incident) {
        (true, false) => bad(
            "an incident as the scope of this act",
            &asked.scope.to_string(),
            "name the incident by its identifier",
        ),
        (false, true) => bad(
            "the model, a pair or an engine as the scope of this act",
            &asked.scope.to_string(),
            "name what it is to be done to",
        ),
        _ => Ok(()),
    }
}

impl No {
    fn new(status: StatusCode, expected: &str, got: &str, next: &str) -> Self {
        let refused = ActionRefused {
            whose: WhoseFault::Asker,
            expected: expected.into(),
            got: got.into(),
            next: next.into(),
        };
        Self { status, refused }
    }

    fn into_response(self) -> Response<Reply> {
        let mut error = json!(self.refused);
        error["message"] = self.refused.to_string().into();
        let mut response = json(self.status, &json!({ "error": error }));
        let headers = response.headers_mut();
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let (StatusCode::METHOD_NOT_ALLOWED, Ok(allowed)) =
            (self.status, HeaderValue::from_str(&self.refused.expected))
        {
            headers.insert(header::ALLOW, allowed);
        }
        // What was not read of a body would be taken for the next request.
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        response
    }
}

impl From<ActionRefused> for No {
    fn from(refused: ActionRefused) -> Self {
        let status = match refused.whose {
            WhoseFault::Asker => StatusCode::BAD_REQUEST,
            WhoseFault::Missing => StatusCode::NOT_FOUND,
            WhoseFault::Standing => StatusCode::CONFLICT,
            WhoseFault::Server => StatusCode::SERVICE_UNAVAILABLE,
        };
        Self { status, refused }
    }
}

fn wrong_method(got: &Method, allowed: &str) -> No {
    No::new(
        StatusCode::METHOD_NOT_ALLOWED,
        allowed,
        got.as_str(),
        "use the method that this path has",
    )
}

/// Whose key it was, for the page to show.
fn name(response: &mut Response<Reply>, operator: &Operator) {
    if let Ok(name) = HeaderValue::from_str(&operator.name) {
        response.headers_mut().insert("x-operator", name);
    }
}

fn whole(status: StatusCode, media: &'static str, bytes: impl Into<Bytes>) -> Response<Reply> {
    let mut response = Response::new(Full::new(bytes.into()).boxed_unsync());
    *response.status_mut() = status;
    let media = HeaderValue::from_static(media);
    response.headers_mut().insert(header::CONTENT_TYPE, media);
    response
}

fn json(status: StatusCode, value: &serde_json::Value) -> Response<Reply> {
    whole(status, "application/json", value.to_string())
}
