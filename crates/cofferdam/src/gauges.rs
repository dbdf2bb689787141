//! A page of gauges for Prometheus, served by a command that runs until it is interrupted.

use crate::exit::Failure;
use anyhow::Context;
use std::net::SocketAddr;
use std::sync::{Arc, RwLock};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Scrapers that are answered at once.
const SCRAPERS_MAX: usize = 16;
/// Bytes of a scraper's request that are read.
const REQUEST_BYTES_MAX: usize = 8 << 10;
/// What a scraper may take to ask and to be answered.
const SCRAPE_TIME_MAX: Duration = Duration::from_secs(10);

/// Prometheus' own text, and the standard that came of it: a page is of one of them.
pub(crate) const PLAIN: &str = "text/plain; version=0.0.4";
pub(crate) const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What scrapers are given.
type Page = Arc<RwLock<String>>;

/// The page, served until this is dropped.
pub(crate) struct Gauges {
    page: Page,
    serving: JoinHandle<()>,
}

impl Gauges {
    /// Listens there, and says where on standard error. Pages will be of this form.
    pub(crate) async fn serve(listen: SocketAddr, form: &'static str) -> Result<Gauges, Failure> {
        let listener = TcpListener::bind(listen).await;
        let listener = listener.with_context(|| format!("--listen {listen}"));
        let listener = listener.map_err(Failure::usage)?;
        let address = listener.local_addr().unwrap_or(listen);
        eprintln!("gauges: http://{address}/metrics");
        let page = Page::default();
        let serving = tokio::spawn(serve(listener, page.clone(), form));
        Ok(Gauges { page, serving })
    }

    /// What is answered from now on.
    pub(crate) fn show(&self, text: String) {
        *self.page.write().unwrap_or_else(|it| it.into_inner()) = text;
    }
}

impl Drop for Gauges {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// Answers `GET /metrics` with the last page, and everything else with 404.
async fn serve(listener: TcpListener, page: Page, form: &'static str) {
    let places = Arc::new(Semaphore::new(SCRAPERS_MAX));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else {
            return; // never closed
        };
        let Ok((socket, _)) = listener.accept().await else {
            // Too many open files, most likely: others must close theirs first.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let page = page.clone();
        tokio::spawn(async move {
            let _ = timeout(SCRAPE_TIME_MAX, scrape(socket, page, form)).await;
            drop(place);
        });
    }
}

async fn scrape(mut socket: TcpStream, page: Page, form: &str) -> std::io::Result<()> {
    let mut request = Vec::new();
    while !request.windows(4).any(|it| it == b"\r\n\r\n") && request.len() < REQUEST_BYTES_MAX {
        if socket.read_buf(&mut request).await? == 0 {
            return Ok(());
        }
    }
    let text = page.read().unwrap_or_else(|it| it.into_inner()).clone();
    let wanted = [&b"GET /metrics "[..], b"GET /metrics?"];
    let (status, body) = match wanted.iter().any(|it| request.starts_with(it)) {
        true if text.is_empty() => ("503 Service Unavailable", "not read yet\n".to_owned()),
        true => ("200 OK", text),
        false => ("404 Not Found", "GET /metrics\n".to_owned()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: {form}\r\ncontent-length: {}\r\n\
         connection: close\r\n\r\n",
        body.len()
    );
    socket.write_all(head.as_bytes()).await?;
    socket.write_all(body.as_bytes()).await?;
    socket.shutdown().await
}
