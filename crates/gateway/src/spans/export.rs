//! The task that hands spans to a collector. Nobody waits for it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Uri;
use http_body_util::{BodyExt, Full, Limited};
use hyper::Request;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use prometheus_client::metrics::counter::Counter;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::{Queue, Span, Spans, otlp};

/// Spans that wait, at most: some 2 MB.
const WAITING: usize = 4096;
/// Spans of one export.
const BATCH: usize = 512;
/// How long the first of them waits for others.
const GATHER: Duration = Duration::from_secs(1);
/// What a collector may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// What it may take at the end of this process.
const LAST: Duration = Duration::from_secs(2);
/// Bytes of its answer.
const ANSWER_MAX: usize = 64 << 10;

/// What came of spans.
#[derive(Debug, Default)]
pub struct SpanCounts {
    /// Taken by the collector.
    pub(crate) sent: Counter,
    /// Dropped: no room in the queue, or the collector did not take them.
    pub(crate) dropped: Counter,
}

impl SpanCounts {
    pub(super) fn lose(&self, n: usize) {
        let n = n as u64;
        // Once, and whenever their number has doubled.
        let before = self.dropped.inc_by(n);
        if before == 0 || (before + n).ilog2() > before.ilog2() {
            tracing::warn!(
                dropped = before + n,
                "spans are dropped: the collector is too slow, or away"
            );
        }
    }
}

/// The exporting task. Its end is the end of what waits.
pub struct Collector {
    task: JoinHandle<()>,
}

impl Collector {
    /// Begins. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// It is no `http` address of a collector; in words for the operator.
    pub fn start(endpoint: &str) -> Result<(Spans, Collector), String> {
        let to = address(endpoint)?;
        let (send, receive) = mpsc::channel(WAITING);
        let counts = Arc::new(SpanCounts::default());
        let task = tokio::spawn(run(to, receive, counts.clone()));
        Ok((
            Spans(Some(Arc::new(Queue { send, counts }))),
            Collector { task },
        ))
    }

    /// Waits, for a short time, until what was taken is handed on; everybody else's [`Spans`] are gone.
    pub async fn end(mut self) {
        if timeout(LAST, &mut self.task).await.is_err() {
            self.task.abort();
        }
    }
}

/// Where traces go, under an address as OTEL_EXPORTER_OTLP_ENDPOINT has it.
///
/// # Errors
/// It is none, in words for the operator.
pub fn address(endpoint: &str) -> Result<Uri, String> {
    let uri: Uri = endpoint
        .parse()
        .map_err(|error| format!("{endpoint}: {error}"))?;
    if uri.scheme_str() != Some("http") || uri.authority().is_none() {
        return Err(format!(
            "{endpoint}: expected http://HOST:PORT of a collector that takes OTLP over HTTP, usually port 4318 of \
             this machine; to one further away over TLS, a collector on this machine hands on"
        ));
    }
    let base = endpoint.trim_end_matches('/');
    let whole = match base.ends_with("/v1/traces") {
        true => base.to_owned(),
        false => format!("{base}/v1/traces"),
    };
    whole
        .parse()
        .map_err(|error| format!("{endpoint}: {error}"))
}

async fn run(to: Uri, mut spans: mpsc::Receiver<Span>, counts: Arc<SpanCounts>) {
    let mut connect = HttpConnector::new();
    connect.set_connect_timeout(Some(PATIENCE));
    let client = Client::builder(TokioExecutor::new()).build(connect);
    let mut batch = Vec::new();
    while spans.recv_many(&mut batch, 1).await > 0 {
        let full =
            async { while batch.len() < BATCH && spans.recv_many(&mut batch, BATCH).await > 0 {} };
        tokio::select! {
            () = full => {}
            () = sleep(GATHER) => {}
        }
        let body = otlp::body(&batch);
        match timeout(PATIENCE, post(&client, &to, body)).await {
            Ok(true) => drop(counts.sent.inc_by(batch.len() as u64)),
            _ => counts.lose(batch.len()),
        }
        batch.clear();
    }
}

async fn post(client: &Client<HttpConnector, Full<Bytes>>, to: &Uri, body: String) -> bool {
    let request = Request::post(to.clone()).header("content-type", "application/json");
    let request = request.body(Full::new(Bytes::from(body)));
    let answer = client
        .request(request.expect("every part was checked"))
        .await;
    let Ok(answer) = answer else {
        return false;
    };
    let taken = answer.status().is_success();
    // Read, so that the connection can be used again.
    let read = Limited::new(answer.into_body(), ANSWER_MAX).collect().await;
    taken && read.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_a_collector_is() {
        for (said, is) in [
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
            ("http://c:4318/", "http://c:4318/v1/traces"),
            ("http://c/otel/v1/traces", "http://c/otel/v1/traces"),
        ] {
            assert_eq!(address(said).unwrap().to_string(), is);
        }
        for wrong in [
            "",
            "127.0.0.1:4318",
            "https://c:4318",
            "grpc://c:4317",
            "http://",
        ] {
            assert!(address(wrong).is_err(), "{wrong}");
        }
    }
}
