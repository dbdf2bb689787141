//! Endpoints with which a server is operated: does somebody without a key reach them?
//!
//! They are asked with a method that none of them takes, so nothing is done: a server that answers
//! "405 method not allowed" has looked the path up, and would have taken the right method too. One
//! that asks for a key does so first.

use super::{Known, Stopped, Suite, find};
use crate::canary::Tenant;
use crate::finding::{Kind, Sent};
use crate::run::ProbeRun;
use http::Method;
use serde_json::Map;

const NAME: &str = "control";
/// A path that no server has.
const NOWHERE: &str = "/cofferdam-probe-no-such-path";

/// What is looked for, and what it does.
const PATHS: [(&str, &str); 14] = [
    ("/flush_cache", "drops the prefix cache"),
    ("/reset_prefix_cache", "drops the prefix cache"),
    ("/abort_request", "ends other people's requests"),
    ("/abort_requests", "ends other people's requests"),
    ("/pause_generation", "stops all answers"),
    ("/pause", "stops all answers"),
    ("/sleep", "gives the model's memory back"),
    (
        "/release_memory_occupation",
        "gives the model's memory back",
    ),
    ("/collective_rpc", "calls functions in the workers"),
    ("/update_weights_from_disk", "replaces the weights"),
    ("/set_internal_state", "changes the scheduler"),
    ("/start_profile", "writes traces to disk"),
    ("/add_worker", "sends requests to another machine"),
    ("/v1/load_lora_adapter", "loads an adapter"),
];

pub(super) async fn run(run: &ProbeRun, _: &Known) -> Result<(), Stopped> {
    let tenant = run.tenants()[0];
    let has_key = run.endpoint(tenant).key.is_some();
    for with_key in [false, true] {
        if with_key && !has_key {
            break;
        }
        let nowhere = status(run, tenant, NOWHERE, with_key).await?;
        if nowhere != Some(404) {
            // A key is asked for first, or methods are refused before paths are looked up.
            if !matches!(nowhere, Some(401 | 403)) {
                let status = nowhere.map_or("nothing".to_owned(), |it| it.to_string());
                run.note(
                    NAME,
                    format!(
                        "a path that no server has is answered {status}: which others are reached \
                         cannot be told from that"
                    ),
                );
            }
            continue;
        }
        for (path, does) in PATHS {
            if status(run, tenant, path, with_key).await? == Some(405) {
                reached(run, tenant, path, does, with_key);
            }
        }
    }
    Ok(())
}

async fn status(
    run: &ProbeRun,
    tenant: Tenant,
    path: &str,
    with_key: bool,
) -> Result<Option<u16>, Stopped> {
    let status = run
        .status(NAME, tenant, Method::PUT, path, with_key)
        .await?;
    Ok(status)
}

fn reached(run: &ProbeRun, tenant: Tenant, path: &str, does: &str, with_key: bool) {
    // A key may be the operator's: then all is as it should be.
    let (kind, who) = match with_key {
        false => (Kind::OpenControl, "anybody, without a key".to_owned()),
        true => (Kind::Suspect, format!("whoever has tenant {tenant}'s key")),
    };
    let says = format!("{path}, which {does}, is reached by {who} (PUT is answered 405, not 401)");
    let url = run.endpoint(tenant).address.with_path(path).to_string();
    let shows = Sent {
        method: "PUT",
        tenant: with_key.then(|| tenant.to_string()),
        url,
        headers: Vec::new(),
        body: Map::new(),
    };
    find(run, Suite::Control, kind, says, vec![shows]);
}
