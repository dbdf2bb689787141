//! What the server says about itself.

use http::{Response, StatusCode};
use serde_json::json;

use super::body::{self, Reply};
use super::router::Shared;
use super::server::Phase;
use crate::engine::{Code, Fault, Readiness};

/// `GET /version`.
pub fn version() -> Response<Reply> {
    body::json(
        StatusCode::OK,
        &json!({"version": env!("CARGO_PKG_VERSION")}),
    )
}

/// `GET /livez`: this process answers. Says nothing about workers, so that nobody restarts a
/// gateway because a worker is away.
pub fn live() -> Response<Reply> {
    body::json(StatusCode::OK, &json!({"status": "alive"}))
}

/// `GET /readyz`: whether a request sent now would be taken, and which workers could not take it.
///
/// # Errors
/// It would not, and why.
pub fn ready(shared: &Shared) -> Result<Response<Reply>, Fault> {
    refuse_unready(shared)?;
    if let Some(private) = &shared.config.private {
        private.admit(None, &shared.engine.facts())?;
    }
    let facts = shared.engine.facts();
    let away = facts.workers.iter();
    let away = away.filter(|worker| worker.readiness != Readiness::Ready);
    let away: Vec<&str> = away.map(|worker| worker.name.as_str()).collect();
    let mut ready = json!({"status": "ready"});
    if !away.is_empty() {
        ready["away"] = json!(away);
    }
    Ok(body::json(StatusCode::OK, &ready))
}

/// Refuses what is not to be taken at the moment.
///
/// # Errors
/// The server is ending, or the engine is not ready.
pub fn refuse_unready(shared: &Shared) -> Result<(), Fault> {
    let draining = || Fault::new(Code::Draining, "the server is ending and takes nothing new");
    if *shared.phase.borrow() >= Phase::Draining {
        return Err(draining());
    }
    match &shared.engine.facts().readiness {
        Readiness::Ready => Ok(()),
        Readiness::NotReady(why) => Err(Fault::new(Code::Unavailable, why.clone())),
        Readiness::Draining => Err(draining()),
        Readiness::Unknown => Err(Fault::new(Code::Unavailable, "no worker has reported yet")),
    }
}

/// `GET /server_info`: role by role, from the pools as they were measured.
pub fn info(shared: &Shared) -> Response<Reply> {
    let facts = shared.engine.facts();
    let config = &shared.config;
    let running = config.max_running - shared.running.available_permits();
    let gateway = json!({
        "running": running,
        "max_running": config.max_running,
        "max_connections": config.max_connections,
        "max_body_bytes": config.max_body_bytes,
        "max_header_bytes": config.max_header_bytes,
        "request_timeout_s": config.request_timeout.as_secs_f64(),
        "draining": *shared.phase.borrow() >= Phase::Draining,
        "tenants": config.keys.as_ref().map_or(1, |keys| keys.tenants().len()),
    });
    let info = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "models": facts.models,
        "readiness": facts.readiness,
        "limit": facts.limit,
        "workers": facts.workers,
        "counters": facts.counters,
        "gateway": gateway,
        // Not settings: there is no build in which these are otherwise (H-1, H-3, H-5).
        "handoff": {"checksum": true, "deferred_release": true, "truncates": false},
    });
    body::json(StatusCode::OK, &info)
}

/// `GET /metrics`.
pub fn metrics(shared: &Shared) -> Response<Reply> {
    const MEDIA: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    body::whole(StatusCode::OK, MEDIA, shared.metrics.page())
}
