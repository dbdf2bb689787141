//! Both workers of a disaggregated pair, asked directly, as a router would.
//!
//! vLLM: prefill answers with references to its blocks, and decode fetches them. A reference is for
//! one prompt and one use; a second request that brings it must be refused. SGLang: see
//! [`super::pair_rooms`].

use super::{Known, Stopped, Suite, alive, find};
use crate::ask::{ProbeAnswer, Question};
use crate::canary::{Marked, Tenant};
use crate::client::TenantEndpoint;
use crate::finding::Kind;
use crate::run::ProbeRun;
use serde_json::{Value, json};

const NAME: &str = "pair";
const ROUNDS: usize = 4;
/// Times that a prompt is longer than that for which its references were made.
const LONGER: usize = 4;

/// The workers.
#[derive(Clone)]
pub struct Pair {
    /// Prefill.
    pub prefill: TenantEndpoint,
    /// Decode.
    pub decode: TenantEndpoint,
    /// SGLang: the port of prefill's bootstrap server. Without one it is a vLLM pair.
    pub bootstrap: Option<u16>,
}

impl std::fmt::Debug for Pair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} -> {}", self.prefill.address, self.decode.address)
    }
}

pub(super) async fn run(run: &ProbeRun, known: &Known) -> Result<(), Stopped> {
    let Some(pair) = &known.pair else {
        return Err(Stopped::Needs(
            "pair needs the addresses of both workers".to_owned(),
        ));
    };
    if let Some(port) = pair.bootstrap {
        return super::pair_rooms::run(run, known, pair, port).await;
    }
    let answers = alive::answers(run, &pair.decode, run.tenants()[0]).await?;
    let mut told = 0;
    for n in 0..ROUNDS {
        told += u64::from(round(run, pair, n, answers).await?);
    }
    if told == 0 {
        let why = "decode was busy at every reference's first use: nothing can be told of a second";
        return Err(Stopped::Needs(why.to_owned()));
    }
    Ok(())
}

/// One reference, used rightly and then wrongly. Says whether it could be.
async fn round(run: &ProbeRun, pair: &Pair, n: usize, answers: bool) -> Result<bool, Stopped> {
    let tenants = run.tenants();
    // In turns, so that the positive control of each is seen.
    let (owner, other) = match n % 2 {
        0 => (tenants[0], tenants[tenants.len() - 1]),
        _ => (tenants[tenants.len() - 1], tenants[0]),
    };
    let Some(references) = prefill(run, pair, owner, 6 + n).await? else {
        let why = "prefill does not answer with kv_transfer_params: neither a vLLM pair \
                   nor one of SGLang";
        return Err(Stopped::Needs(why.to_owned()));
    };
    let length = references.marked.len();
    // The one whom the references are for.
    let like = Some(&references.marked);
    let rightful = decode(run, pair, owner, &references, like, length).await?;
    match rightful.status() {
        Some(200) => {}
        Some(429 | 503 | 529) => return Ok(false), // busy, which is no wrong class
        status => {
            let status = status.unwrap_or(0);
            let says = format!("decode answers {status} to a reference's first use");
            let shows = vec![rightful.sent];
            find(run, Suite::Pair, Kind::WrongErrorClass, says, shows);
            return Ok(true);
        }
    }
    // Another tenant with the same references, and the same tenant with another prompt; in the end
    // one that is much longer than what was prefilled: that has ended a decode process.
    let mut misuses = vec![(other, length), (owner, length)];
    if n + 1 == ROUNDS {
        misuses.extend([(other, 1), (other, LONGER * length)]);
    }
    for (tenant, sentences) in misuses {
        let answer = decode(run, pair, tenant, &references, None, sentences).await?;
        let shows = vec![answer.sent.clone()];
        if answer.status() == Some(200) {
            let says = format!(
                "decode answers 200 to tenant {tenant} with references that were made for \
                 another prompt and used up"
            );
            find(
                run,
                Suite::Pair,
                Kind::SilentAcceptance,
                says,
                shows.clone(),
            );
        }
        for worker in [&pair.decode, &pair.prefill] {
            alive::check(run, Suite::Pair, worker, tenant, answers, &shows).await?;
        }
    }
    Ok(true)
}

struct References {
    params: Value,
    marked: Marked,
}

async fn prefill(
    run: &ProbeRun,
    pair: &Pair,
    tenant: Tenant,
    sentences: usize,
) -> Result<Option<References>, Stopped> {
    let mut ask = Question::new(tenant, sentences);
    ask.max_tokens = 1;
    let wanted = json!({"do_remote_decode": true, "do_remote_prefill": false,
        "remote_engine_id": null, "remote_block_ids": null, "remote_host": null,
        "remote_port": null});
    ask.fields.insert("kv_transfer_params".to_owned(), wanted);
    let answer = run.ask_at(NAME, &pair.prefill, ask).await?;
    let params = answer
        .reply
        .as_ref()
        .ok()
        .and_then(|it| it.said.transfer.clone());
    Ok(params.map(|params| References {
        params,
        marked: answer.marked,
    }))
}

/// Asks decode with these references, for their own prompt or for a new one of so many sentences:
/// that must be refused.
async fn decode(
    run: &ProbeRun,
    pair: &Pair,
    tenant: Tenant,
    references: &References,
    like: Option<&Marked>,
    sentences: usize,
) -> Result<ProbeAnswer, Stopped> {
    let mut ask = Question::new(tenant, sentences);
    ask.max_tokens = 32;
    ask.refused = like.is_none();
    ask.open = like.is_some();
    ask.like = like.cloned();
    let params = references.params.clone();
    ask.fields.insert("kv_transfer_params".to_owned(), params);
    Ok(run.ask_at(NAME, &pair.decode, ask).await?)
}
