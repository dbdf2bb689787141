//! What the HTTP half is told at start-up.

use std::sync::Arc;
use std::time::Duration;

use super::access_log::AccessLog;
use super::auth::{ApiKeys, KeyRing};
use super::figures::Figures;
use super::metrics::Reloads;
use super::observe::Observer;
use super::origins::Origins;
use super::private::Private;
use super::quota::Rates;
use super::tls::ServerTls;
use crate::spans::Spans;

/// Limits and choices of the HTTP half. Every queue, body and wait has one (H-15, H-16).
pub struct Config {
    /// Who may ask; none: everybody, as one tenant.
    pub keys: Option<KeyRing>,
    /// What a tenant may ask for in a minute, unless its own lines of the key file say otherwise.
    pub rates: Rates,
    /// Certificate and trust of the listener; none: plain HTTP.
    pub tls: Option<Arc<ServerTls>>,
    /// How often files were read again.
    pub reloads: Reloads,
    /// Who may ask now, and who is an operator; none: everybody may, and nobody is.
    pub private: Option<Arc<Private>>,
    /// Keys of this gateway's own canaries, of tenants that no key file can name.
    pub canaries: Option<Arc<ApiKeys>>,
    /// Who is told how generations end.
    pub observer: Option<Arc<dyn Observer>>,
    /// Who has more figures for `/metrics`.
    pub figures: Vec<Arc<dyn Figures>>,
    /// Pages of which other origins may read answers; by default none.
    pub origins: Origins,
    /// Connections served at once. Some more are told 503, the rest is closed unanswered.
    pub max_connections: usize,
    /// Generations at once, over all tenants; above it 429. The engine has its own queue.
    pub max_running: usize,
    /// Largest request body, bytes.
    pub max_body_bytes: usize,
    /// Bodies held at once, bytes, over all connections; above it 503.
    pub body_budget_bytes: usize,
    /// Largest request line plus headers answered, bytes; above it 431.
    pub max_header_bytes: usize,
    /// How long a connection may take to send a request's head, idle time before it included, and
    /// before the first one its TLS handshake; above it the connection is closed.
    pub header_timeout: Duration,
    /// How long a body may take to arrive; above it 408.
    pub body_timeout: Duration,
    /// How long nothing of a body may come; above it 408.
    pub body_idle: Duration,
    /// How long a socket may refuse our bytes; above it the connection is closed.
    pub write_stall: Duration,
    /// How long a generation may take from its arrival to its last token.
    pub request_timeout: Duration,
    /// How long running requests have after shutdown was asked for.
    pub drain: Duration,
    /// Largest `n`.
    pub max_choices: u16,
    /// Events of a stream held for a client that reads slowly; above it the request is cancelled.
    pub stream_buffer: usize,
    /// Where the access log goes, and in which form.
    pub access_log: AccessLog,
    /// Where spans of requests go.
    pub spans: Spans,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            keys: None,
            rates: Rates::default(),
            tls: None,
            reloads: Reloads::default(),
            private: None,
            canaries: None,
            observer: None,
            figures: Vec::new(),
            origins: Origins::default(),
            max_connections: 1024,
            max_running: 512,
            max_body_bytes: 4 << 20,
            body_budget_bytes: 64 << 20,
            max_header_bytes: 16 << 10,
            header_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(30),
            body_idle: Duration::from_secs(10),
            write_stall: Duration::from_secs(30),
            request_timeout: Duration::from_secs(600),
            drain: Duration::from_secs(20),
            max_choices: 16,
            stream_buffer: 1024,
            access_log: AccessLog::default(),
            spans: Spans::default(),
        }
    }
}
