//! What the server says about itself.

use http::{HeaderMap, Response, StatusCode, header};
use serde_json::json;

use super::body::{self, Reply};
use super::router::Shared;
use super::server::Phase;
use crate::engine::{Code, Fault, Readiness, TextPath};

/// `GET /version`.
pub(super) fn version() -> Response<Reply> {
    body::json(
        StatusCode::OK,
        &json!({"version": env!("CARGO_PKG_VERSION")}),
    )
}

/// `GET /livez`: this process answers. Says nothing about workers, so that nobody restarts a
/// gateway because a worker is away.
pub(super) fn live() -> Response<Reply> {
    body::json(StatusCode::OK, &json!({"status": "alive"}))
}

/// `GET /readyz`: whether a request sent now would be taken, and which workers could not take it.
///
/// # Errors
/// It would not, and why.
pub(super) fn ready(shared: &Shared) -> Result<Response<Reply>, Fault> {
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
pub(super) fn refuse_unready(shared: &Shared) -> Result<(), Fault> {
    if *shared.phase.borrow() >= Phase::Draining {
        return Err(draining());
    }
    unready(&shared.engine.facts().readiness).map_or(Ok(()), Err)
}

fn draining() -> Fault {
    Fault::new(Code::Draining, "the server is ending and takes nothing new")
}

/// Why the engine takes nothing, if it does not.
pub(super) fn unready(readiness: &Readiness) -> Option<Fault> {
    match readiness {
        Readiness::Ready => None,
        Readiness::NotReady(why) => Some(Fault::new(Code::Unavailable, why.clone())),
        Readiness::Draining => Some(draining()),
        Readiness::Unknown => Some(Fault::new(Code::Unavailable, "no worker has reported yet")),
    }
}

/// `GET /server_info`: role by role, from the pools as they were measured.
pub(super) fn info(shared: &Shared) -> Response<Reply> {
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
        "tenants": config.keys.as_ref().map_or(1, |keys| keys.now().tenants().len()),
    });
    let mut info = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "models": facts.models,
        "readiness": facts.readiness,
        "limit": facts.limit(),
        "limits": facts.limits,
        "workers": facts.workers,
        "counters": facts.counters,
        "gateway": gateway,
    });
    match facts.text_path == TextPath::OURS {
        // Not settings: there is no build in which these are otherwise (H-1, H-3, H-5).
        true => {
            info["handoff"] =
                json!({"checksum": true, "deferred_release": true, "truncates": false});
        }
        // What engines that are not ours do with pages is not ours to say.
        false => info["text_path"] = json!(facts.text_path),
    }
    body::json(StatusCode::OK, &info)
}

/// `GET /metrics`, in the form that the scraper prefers.
pub(super) fn metrics(shared: &Shared, headers: &HeaderMap) -> Response<Reply> {
    const OPEN: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    const PLAIN: &str = "text/plain; version=0.0.4; charset=utf-8";
    let accepted = headers.get_all(header::ACCEPT).iter();
    let accepted: Vec<&str> = accepted.filter_map(|value| value.to_str().ok()).collect();
    if prefers_plain(&accepted.join(",")) {
        return body::whole(StatusCode::OK, PLAIN, shared.metrics.plain_page());
    }
    body::whole(StatusCode::OK, OPEN, shared.metrics.page())
}

/// Whether plain text is asked for, and OpenMetrics not or less.
fn prefers_plain(accept: &str) -> bool {
    let weight = |wanted: &str| {
        let ranges = accept.split(',').filter_map(|range| {
            let mut parts = range.split(';').map(str::trim);
            let named = parts.next()?.eq_ignore_ascii_case(wanted);
            let weight = parts.find_map(|part| part.strip_prefix("q="));
            let weight = weight.map_or(Some(1.0), |text| text.parse::<f64>().ok())?;
            named.then_some(weight)
        });
        ranges.fold(0.0, f64::max)
    };
    weight("text/plain") > weight("application/openmetrics-text")
}

#[cfg(test)]
mod tests {
    use super::prefers_plain;

    #[test]
    fn the_form_of_metrics_is_the_one_asked_for() {
        for (accept, plain) in [
            ("", false),
            ("*/*", false),
            ("text/plain", true),
            ("text/plain;version=0.0.4, */*;q=0.1", true),
            ("application/openmetrics-text", false),
            // Prometheus, new and as it is told to be old.
            (
                "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3",
                false,
            ),
            (
                "text/plain;version=0.0.4;q=0.5,application/openmetrics-text;q=0.3",
                true,
            ),
            ("text/plain; q=0", false),
        ] {
            assert_eq!(prefers_plain(accept), plain, "{accept}");
        }
    }
}
