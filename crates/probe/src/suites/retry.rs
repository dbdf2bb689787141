//! The same ids from two tenants at the same time, and fields that only engines should set. Nothing
//! may be keyed on what a client chose.

use super::{Known, Stopped, Suite, find};
use crate::ask::Ask;
use crate::finding::Kind;
use crate::run::Run;
use futures::future::join;
use serde_json::{Value, json};

const NAME: &str = "retry";
/// Pairs of each kind.
const PAIRS: usize = 3;

pub(super) async fn run(run: &Run, _: &Known) -> Result<(), Stopped> {
    let tenants = run.tenants();
    let (a, b) = (tenants[0], tenants[tenants.len() - 1]);
    for (name, value) in injected() {
        for n in 0..PAIRS {
            let mut one = Ask::new(a, 6 + n);
            let mut two = Ask::new(b, 5 + n);
            for ask in [&mut one, &mut two] {
                ask.max_tokens = 32;
                ask.refused = name == "kv_transfer_params";
                match name {
                    "X-Request-Id" => {
                        let id = value.as_str().unwrap_or_default().to_owned();
                        ask.headers.push((name.to_owned(), id));
                    }
                    name => {
                        ask.fields.insert(name.to_owned(), value.clone());
                    }
                }
            }
            let (first, second) = join(run.ask(NAME, one), run.ask(NAME, two)).await;
            for answer in [first?, second?] {
                let accepted = answer.status() == Some(200);
                if accepted && name == "kv_transfer_params" {
                    let says = "a client's kv_transfer_params were accepted: whoever reaches this \
                                port can name other requests' blocks";
                    let shows = vec![answer.sent];
                    find(run, Suite::Retry, Kind::OpenControl, says.to_owned(), shows);
                }
            }
        }
    }
    Ok(())
}

/// What a client may try to set.
fn injected() -> Vec<(&'static str, Value)> {
    vec![
        ("X-Request-Id", json!("probe-same-id")),
        ("rid", json!("probe-same-rid")),
        ("cache_salt", json!("probe-same-salt")),
        ("bootstrap_room", json!(424_242)),
        (
            "kv_transfer_params",
            json!({"do_remote_prefill": true, "do_remote_decode": false,
                   "remote_engine_id": "probe", "remote_request_id": "probe",
                   "remote_block_ids": [[1, 2, 3]], "remote_host": "127.0.0.1", "remote_port": 1}),
        ),
    ]
}
