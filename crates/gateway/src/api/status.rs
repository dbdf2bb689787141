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
    let plain = weight(accept, ["text", "plain"], &["0.0.4", "1.0.0"]);
    plain
        > weight(
            accept,
            ["application", "openmetrics-text"],
            &["1.0.0", "0.0.1"],
        )
}

/// How much a form is asked for: as the range says that names it most closely. Of versions those count
/// that a reader of ours would be content with.
fn weight(accept: &str, [kind, of_kind]: [&str; 2], versions: &[&str]) -> f64 {
    let said = accept.split(',').filter_map(|range| {
        let mut parts = range.split(';').map(str::trim);
        let named = parts.next()?.split_once('/')?;
        let closeness = match named {
            ("*", "*") => 0,
            (first, "*") if first.eq_ignore_ascii_case(kind) => 1,
            (first, second) => {
                let same = first.eq_ignore_ascii_case(kind) && second.eq_ignore_ascii_case(of_kind);
                same.then_some(2)?
            }
        };
        let given = |wanted: &str| {
            let mut named = parts.clone().filter_map(|part| part.split_once('='));
            let found = named.find(|(name, _)| name.trim().eq_ignore_ascii_case(wanted));
            found.map(|(_, value)| value.trim().trim_matches('"'))
        };
        let known = given("version").is_none_or(|version| versions.contains(&version));
        let weight = given("q").map_or(Some(1.0), |text| text.parse::<f64>().ok())?;
        (known && (0.0..=1.0).contains(&weight)).then_some((closeness, weight))
    });
    let closest = said.max_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
    closest.map_or(0.0, |(_, weight)| weight)
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
            // What is named beats a range, and a range beats all.
            ("application/openmetrics-text;q=0, */*", true),
            ("text/*", true),
            ("text/*;q=0.9, */*;q=0.1", true),
            ("text/*;q=0.1, */*;q=0.9", false),
            ("text/plain;q=0, text/*", false),
            ("application/*, text/plain;q=0.9", false),
            (
                "TEXT/Plain; Q=0.5, application/openmetrics-text ; q = 0.3",
                true,
            ),
            (
                "text/plain;q=\"0.5\", application/openmetrics-text;q=\"0.3\"",
                true,
            ),
            ("application/json", false),
            ("application/json, text/plain;q=0.1", true),
            // Prometheus 2, Prometheus 3, and one of a version to come.
            (
                "application/openmetrics-text; version=0.0.1,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
                false,
            ),
            (
                "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
                 application/openmetrics-text;version=0.0.1;q=0.5,\
                 text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,\
                 text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
                false,
            ),
            (
                "application/openmetrics-text;version=2.0.0,text/plain;version=0.0.4;q=0.5",
                true,
            ),
            ("text/plain;version=1.0.0;escaping=allow-utf-8", true),
            // Weights that are none say nothing.
            ("text/plain;q=2, application/openmetrics-text;q=0.1", false),
            (
                "text/plain;q=inf, application/openmetrics-text;q=0.1",
                false,
            ),
            ("text/plain;q=nan", false),
            ("text/plain;q=x, text/plain;q=0.2", true),
        ] {
            assert_eq!(prefers_plain(accept), plain, "{accept}");
        }
    }
}
