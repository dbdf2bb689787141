//! SGLang's pairs: the router sends the same request to both workers, and the number of a room joins
//! them. Here we are the router, so both say what they made of the prompt.

use super::length::PromptLengths;
use super::{Known, Pair, Stopped, Suite, find};
use crate::ask::{ProbeAnswer, Question};
use crate::canary::Tenant;
use crate::client::TenantEndpoint;
use crate::finding::{Kind, Sent};
use crate::run::{ProbeRun, Spent};
use futures::future::join;
use serde_json::json;
use std::time::Duration;

const NAME: &str = "pair";
/// Tokens of an answer that shows whose prompt it goes on with.
const ECHO: u32 = 24;
/// The first room; each request has its own.
const ROOMS: u64 = 7_262_000_000;

pub(super) async fn run(
    run: &ProbeRun,
    known: &Known,
    pair: &Pair,
    port: u16,
) -> Result<(), Stopped> {
    let tenants = run.tenants();
    let tenant = tenants[0];
    let lengths = PromptLengths::measure(run, NAME, tenant).await?;
    let Some(limit) = known.limit(run, NAME, &lengths).await? else {
        return Err(Stopped::Needs(
            "no limit is known, none was found".to_owned(),
        ));
    };
    let base = lengths.base(run, NAME, tenant, limit).await?;
    let mut room = ROOMS;
    // What is short must be right, for every tenant, or nothing can be said of what is long.
    for tenant in tenants {
        for sentences in [6, 12] {
            room += 1;
            let mut ask = Question::new(tenant, known.sentences(sentences, ECHO));
            ask.max_tokens = ECHO;
            let (prefill, decode) = both(run, pair, port, ask, room).await?;
            compare(run, &prefill, &decode, None, limit);
        }
    }
    for tokens in [limit, limit + 1, limit + 2, limit + limit / 4] {
        room += 1;
        let ask = base.with(tokens, ECHO, tenant);
        let (prefill, decode) = both(run, pair, port, ask, room).await?;
        compare(run, &prefill, &decode, Some(tokens), limit);
        if tokens > limit {
            let shows = vec![prefill.sent, decode.sent];
            room = lives(run, pair, port, tenant, room, shows).await?;
        }
    }
    Ok(())
}

/// Whether both still answer a short prompt, as they did before, after these requests. The last room
/// that was used.
async fn lives(
    run: &ProbeRun,
    pair: &Pair,
    port: u16,
    tenant: Tenant,
    mut room: u64,
    shows: Vec<Sent>,
) -> Result<u64, Stopped> {
    let mut dead = None;
    for wait in [0, 200, 2_000] {
        tokio::time::sleep(Duration::from_millis(wait)).await;
        room += 1;
        let mut ask = Question::new(tenant, 2);
        ask.max_tokens = 1;
        let (prefill, decode) = both(run, pair, port, ask, room).await?;
        let fails = |it: &ProbeAnswer| {
            it.status()
                .is_none_or(|it| it >= 500 && !matches!(it, 503 | 529))
        };
        dead = match (fails(&prefill), fails(&decode)) {
            (false, false) => return Ok(room),
            (true, _) => Some(&pair.prefill.address),
            (_, true) => Some(&pair.decode.address),
        };
    }
    if let Some(address) = dead {
        let says = format!(
            "{address} does not answer a short prompt any more, 3 times, and did before: it is dead"
        );
        find(run, Suite::Pair, Kind::Crash, says, shows);
    }
    Err(Stopped::Spent(Spent::Gone))
}

async fn both(
    run: &ProbeRun,
    pair: &Pair,
    port: u16,
    mut ask: Question,
    room: u64,
) -> Result<(ProbeAnswer, ProbeAnswer), Spent> {
    let host = pair.prefill.address.host().to_owned();
    let fields = [
        ("bootstrap_host", json!(host)),
        ("bootstrap_port", json!(port)),
        ("bootstrap_room", json!(room)),
    ];
    let fields = fields.map(|(name, value)| (name.to_owned(), value));
    ask.fields.extend(fields);
    // The text is drawn once: both must get the same.
    let marked = run.marked(NAME, &ask)?;
    ask.like = Some(marked);
    let to = |endpoint: &'static str| {
        let endpoint: &TenantEndpoint = match endpoint {
            "prefill" => &pair.prefill,
            _ => &pair.decode,
        };
        run.ask_at(NAME, endpoint, ask.clone())
    };
    let (prefill, decode) = join(to("prefill"), to("decode")).await;
    Ok((prefill?, decode?))
}

/// Whether both sides say the same of a prompt of so many tokens, if that is known.
fn compare(
    run: &ProbeRun,
    prefill: &ProbeAnswer,
    decode: &ProbeAnswer,
    sent: Option<u64>,
    limit: u64,
) {
    let shows = || vec![prefill.sent.clone(), decode.sent.clone()];
    let found = |kind, says| find(run, Suite::Pair, kind, says, shows());
    let length = sent.map_or_else(String::new, |it| format!(" of {it} tokens"));
    let over = match sent {
        Some(tokens) if tokens > limit => format!(", over the limit of {limit}"),
        _ => String::new(),
    };
    match (prefill.status(), decode.status()) {
        // Both cut it, and say so.
        (Some(200), Some(200)) if prefill.says_cut().is_some() && decode.says_cut().is_some() => {}
        // Busy is no verdict on a prompt.
        (Some(429 | 503 | 529), Some(200)) => {}
        (Some(200), Some(200)) => {
            let counted = (prefill.prompt_tokens(), decode.prompt_tokens());
            if let (Some(one), Some(two)) = counted
                && (one != two || sent.is_some_and(|it| it != one))
            {
                let says = format!(
                    "both sides answer 200 to a prompt{length}{over}: prefill counted {one} tokens \
                     of it, decode {two}"
                );
                found(Kind::SilentAcceptance, says);
            } else if !over.is_empty() {
                let says = format!("both sides answer 200 to a prompt{length}{over}");
                found(Kind::SilentAcceptance, says);
            }
        }
        (refused, Some(200)) => {
            let refused = refused.map_or("nothing".to_owned(), |it| it.to_string());
            let says = format!(
                "decode answers 200 to a prompt{length}{over} to which prefill answers {refused}"
            );
            found(Kind::SilentAcceptance, says);
        }
        // A hang is found by whoever waited.
        _ => {}
    }
}
