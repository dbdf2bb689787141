//! Bodies: requests read under limits of size, memory and time; answers whole or streamed.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::timeout;

use super::config::Config;
use super::errors;
use crate::engine::{Code, Fault, TenantId};

/// Granularity of the memory budget: a semaphore counts in u32.
const UNIT: usize = 1024;

/// The memory that all bodies together may use, and each tenant's share of it.
pub(super) struct Budget {
    all: Arc<Semaphore>,
    units: usize,
    /// Units of who holds some.
    held: Arc<Mutex<BTreeMap<TenantId, usize>>>,
}

/// What a body holds of the budget.
struct Share {
    _of_all: OwnedSemaphorePermit,
    held: Arc<Mutex<BTreeMap<TenantId, usize>>>,
    tenant: TenantId,
    units: usize,
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = held.get_mut(&self.tenant) {
            *own -= self.units;
            if *own == 0 {
                held.remove(&self.tenant);
            }
        }
    }
}

impl Budget {
    /// A budget of so many bytes.
    pub(super) fn new(bytes: usize) -> Self {
        let units = (bytes / UNIT).min(Semaphore::MAX_PERMITS);
        Self {
            all: Arc::new(Semaphore::new(units)),
            units,
            held: Arc::default(),
        }
    }

    /// A tenant that is not the only one leaves half of it to others.
    fn take(&self, bytes: usize, tenant: &TenantId, several: bool) -> Result<Share, Fault> {
        let full = |message: &str| Fault::new(Code::OverCapacity, message);
        let share = if several { self.units / 2 } else { self.units };
        let units = bytes.div_ceil(UNIT);
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let own = held.get(tenant).copied().unwrap_or_default() + units;
        if own > share {
            return Err(full(
                "too many request bodies of this tenant are held; try again soon",
            ));
        }
        let few = u32::try_from(units).unwrap_or(u32::MAX);
        let taken = self.all.clone().try_acquire_many_owned(few);
        let of_all =
            taken.map_err(|_| full("too many request bodies are being read; try again soon"))?;
        held.insert(tenant.clone(), own);
        Ok(Share {
            _of_all: of_all,
            held: self.held.clone(),
            tenant: tenant.clone(),
            units,
        })
    }
}

/// A request body and the share of the budget that it holds.
pub(super) struct Received {
    /// The bytes.
    pub bytes: Bytes,
    _share: Share,
}

/// Reads a JSON body whole.
///
/// # Errors
/// It is not declared as JSON (415), too large (413), too slow (408), broken off, or there is no
/// memory for it now (503).
pub(super) async fn read(
    headers: &HeaderMap,
    body: Incoming,
    config: &Config,
    budget: &Budget,
    tenant: &TenantId,
) -> Result<Received, Fault> {
    check_media_type(headers)?;
    let limit = config.max_body_bytes;
    let too_large = || {
        Fault::new(
            Code::PayloadTooLarge,
            format!("the body is over the limit of {limit} bytes"),
        )
    };
    // A declared length is known at once; an undeclared one might be anything up to the limit.
    let expected = body
        .size_hint()
        .exact()
        .map_or(Some(limit), |n| usize::try_from(n).ok());
    let expected = expected.filter(|&n| n <= limit).ok_or_else(too_large)?;
    let several = config.keys.as_ref().is_some_and(|it| it.now().several());
    let share = budget.take(expected, tenant, several)?;
    let declared = body.size_hint().exact().unwrap_or_default() as usize;
    let mut body = Limited::new(body, limit);
    let whole = async {
        let mut bytes = BytesMut::with_capacity(declared);
        while let Some(frame) = timeout(config.body_idle, body.frame()).await? {
            match frame {
                Ok(frame) => frame
                    .into_data()
                    .iter()
                    .for_each(|data| bytes.extend_from_slice(data)),
                Err(error) if error.is::<LengthLimitError>() => return Ok(Err(too_large())),
                Err(_) => {
                    let broken = Fault::new(
                        Code::InvalidRequest,
                        "the body was broken off, or its chunks do not end where all readers agree",
                    );
                    return Ok(Err(broken));
                }
            }
        }
        Ok::<_, tokio::time::error::Elapsed>(Ok(bytes.freeze()))
    };
    let late = |_| {
        let (whole, idle) = (config.body_timeout, config.body_idle);
        let message = format!(
            "the body did not arrive within {} s, or nothing of it came for {} s",
            whole.as_secs_f32(),
            idle.as_secs_f32()
        );
        Fault::new(Code::RequestTimeout, message)
    };
    let bytes = timeout(config.body_timeout, whole).await;
    let bytes = bytes.and_then(|it| it).map_err(late)??;
    Ok(Received {
        bytes,
        _share: share,
    })
}

/// A page that a browser shows may send text and forms to any address, a server on its own machine
/// included, without asking; JSON it may not. So what is declared as something else is refused.
fn check_media_type(headers: &HeaderMap) -> Result<(), Fault> {
    let refused = |message| Err(Fault::new(Code::UnsupportedMediaType, message));
    let coding = headers.get(header::CONTENT_ENCODING);
    if coding.is_some_and(|it| !it.as_bytes().eq_ignore_ascii_case(b"identity")) {
        return refused("expected no `Content-Encoding`: bodies are taken as they are");
    }
    let Some(value) = headers.get(header::CONTENT_TYPE) else {
        return Ok(());
    };
    let mut parts = value.to_str().unwrap_or_default().split(';');
    let essence = parts.next().unwrap_or_default().trim();
    if !essence.eq_ignore_ascii_case("application/json") {
        return refused("expected `Content-Type: application/json`");
    }
    let charset = |part: &str| {
        let (name, value) = part.split_once('=')?;
        let is_it = name.trim().eq_ignore_ascii_case("charset");
        is_it.then(|| value.trim().trim_matches('"').to_ascii_lowercase())
    };
    if parts
        .filter_map(charset)
        .any(|it| it != "utf-8" && it != "utf8")
    {
        return refused("JSON is UTF-8: expected no other `charset`");
    }
    Ok(())
}

/// An answer's body.
pub enum Reply {
    /// All of it.
    Whole(Option<Bytes>),
    /// Frame by frame, until the sender is dropped.
    Stream {
        /// Frames to send.
        frames: mpsc::Receiver<Bytes>,
        /// Whether the end of frames is the end of the answer. If not, the connection is broken
        /// off, so that nobody takes the beginning of an answer for all of it.
        complete: Arc<AtomicBool>,
        /// The end was seen, and what came before it given time to be written.
        ending: bool,
    },
}

/// A stream ended without its end.
#[derive(Debug, thiserror::Error)]
#[error("the answer was broken off")]
pub struct BrokenOff;

impl Body for Reply {
    type Data = Bytes;
    type Error = BrokenOff;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BrokenOff>>> {
        match &mut *self {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|b| Ok(Frame::data(b)))),
            Self::Stream {
                frames,
                complete,
                ending,
            } => match frames.poll_recv(cx) {
                Poll::Pending => Poll::Pending,
                Poll::Ready(Some(bytes)) => Poll::Ready(Some(Ok(Frame::data(bytes)))),
                Poll::Ready(None) if complete.load(Ordering::Acquire) => Poll::Ready(None),
                // hyper drops what it has not written yet when a body fails; it writes when a body
                // has nothing more for now. So the last event is let out first.
                Poll::Ready(None) if !std::mem::replace(ending, true) => {
                    cx.waker().wake_by_ref();
                    Poll::Pending
                }
                Poll::Ready(None) => Poll::Ready(Some(Err(BrokenOff))),
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            Self::Stream { .. } => SizeHint::default(),
        }
    }
}

/// Status and headers say everything.
pub(super) fn empty(status: StatusCode) -> Response<Reply> {
    let mut response = Response::new(Reply::Whole(None));
    *response.status_mut() = status;
    response
}

/// A whole answer of this media type.
pub(super) fn whole(
    status: StatusCode,
    media: &'static str,
    bytes: impl Into<Bytes>,
) -> Response<Reply> {
    let mut response = Response::new(Reply::Whole(Some(bytes.into())));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(media));
    response
}

/// A whole answer in JSON.
pub(super) fn json(status: StatusCode, value: &Value) -> Response<Reply> {
    whole(status, "application/json", value.to_string())
}

/// A fault as status, Retry-After and envelope.
pub(super) fn fault(fault: &Fault) -> Response<Reply> {
    let mut response = json(errors::row(fault.code).status, &errors::envelope(fault));
    let headers = response.headers_mut();
    if let Some(seconds) = errors::retry_after_s(fault) {
        headers.insert(header::RETRY_AFTER, seconds.into());
    }
    if fault.code == Code::InvalidApiKey {
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    // What was not read of the body would be taken for the next request.
    if matches!(
        fault.code,
        Code::RequestTimeout
            | Code::PayloadTooLarge
            | Code::HeadersTooLarge
            | Code::AmbiguousRequest
            | Code::ExpectationFailed
    ) {
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}
