//! `/scripted/…`: the log, the counts and the script, for a test in another process.

use http::{Method, Response};
use serde_json::json as value;

use crate::generate::json;
use crate::script::Script;
use crate::state::State;
use crate::tell::Body;

/// Answers what is asked of the engine as a scripted one.
pub(crate) fn control(state: &State, method: &Method, path: &str, body: &[u8]) -> Response<Body> {
    let fleet = &state.fleet;
    match (method, path) {
        (&Method::GET, "log") => {
            let events = serde_json::to_string(&fleet.log.events());
            json(200, events.expect("plain data"))
        }
        (&Method::GET, "counts") => {
            let engines = fleet.engines();
            let counts = engines
                .iter()
                .map(|it| (it.engine.name.clone(), value!(it.counts())));
            let mut counts: serde_json::Map<_, _> = counts.collect();
            counts.insert("references_unused".into(), fleet.meeting.unused().into());
            json(200, serde_json::Value::from(counts).to_string())
        }
        (&Method::POST, "script") => match serde_json::from_slice::<Script>(body) {
            Ok(script) => {
                *fleet.script() = script;
                json(200, "{}")
            }
            Err(error) => json(400, value!({"error": error.to_string()}).to_string()),
        },
        (&Method::POST, "forget") => {
            fleet.forget();
            json(200, "{}")
        }
        (&Method::POST, "kill" | "revive") => {
            let name = String::from_utf8_lossy(body);
            match (fleet.find(name.trim()), path) {
                (None, _) => json(404, value!({"error": "no such engine"}).to_string()),
                (Some(engine), "kill") => {
                    drop(engine.kill());
                    json(200, "{}")
                }
                (Some(engine), _) => match engine.run(None) {
                    Ok(()) => json(200, "{}"),
                    Err(error) => json(500, value!({"error": error.to_string()}).to_string()),
                },
            }
        }
        _ => json(404, r#"{"detail":"Not Found"}"#),
    }
}
