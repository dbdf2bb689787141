//! An engine's part in a request: alone, or as one leg of two.

use std::time::Duration;

use crate::ask::Ask;
use crate::content::Seed;
use crate::engine::{Dialect, Role};
use crate::log::{Stage, What};
use crate::meeting::{End, Meet, Read, Room};
use crate::script::Act;
use crate::work::{Aborted, Work};

/// What came of it: whose words follow (`None`: zeros), and vLLM's reference.
pub(crate) struct Part {
    pub(crate) seed: Option<Seed>,
    pub(crate) transfer: Option<String>,
}

/// Why nothing came of it.
pub(crate) enum Trouble {
    Aborted,
    Failed(u16, String),
}

impl From<Aborted> for Trouble {
    fn from(_: Aborted) -> Self {
        Self::Aborted
    }
}

/// What this engine has to hand over, or would say alone.
fn own(work: &Work, act: &Act, seed: Seed) -> Option<Seed> {
    match act {
        Act::Garbage | Act::Incident | Act::InBand => None,
        Act::OtherText | Act::IgnoreRoom => Some(work.state.fleet.meeting.other_than(seed)),
        _ => Some(seed),
    }
}

/// Plays the engine's part, up to its first token.
pub(crate) async fn play(
    work: &mut Work,
    ask: &Ask,
    act: &Act,
    seed: Seed,
    tokens: u64,
) -> Result<Part, Trouble> {
    let engine = &work.state.engine;
    let (dialect, role, compute) = (engine.dialect, engine.role, engine.prefill_ms);
    let compute = Duration::from_millis(compute);
    if dialect == Dialect::Vllm && ask.transfer_flag("do_remote_prefill") {
        return pull(work, ask, act, seed).await;
    }
    if dialect == Dialect::Sglang && role != Role::Single {
        let Some(number) = ask.room else {
            let message = "Disaggregated request received without bootstrap room id";
            return Err(Trouble::Failed(400, message.into()));
        };
        let room = work.enter(number);
        return match role {
            Role::Prefill => hand_over(work, act, seed, number, room, compute).await,
            _ => take_over(work, act, seed, number, room).await,
        };
    }
    work.pause(compute).await?;
    let asked = dialect == Dialect::Vllm && ask.transfer_flag("do_remote_decode");
    // Of an aborted request vLLM keeps nothing.
    let none = matches!(act, Act::NoReference | Act::InBand);
    let transfer = (asked && !none).then(|| reference(work, act, seed, tokens));
    work.stage = Stage::Answering;
    Ok(Part {
        seed: own(work, act, seed),
        transfer,
    })
}

/// Waits in a room until `done`, at most as long as the engine waits.
async fn wait(
    work: &Work,
    room: &Room,
    number: u64,
    done: impl Fn(&Meet) -> bool,
) -> Result<Meet, Trouble> {
    let mut watching = room.subscribe();
    let mine = watching.wait_for(|meet| done(meet) || meet.end == Some(End::Failed));
    let timed = tokio::time::timeout(work.state.engine.wait(), mine);
    let found = work.unless_aborted(timed).await;
    let why = match found {
        Err(Aborted) => "Aborted by AbortReq.".into(),
        Ok(Err(_)) => {
            let seconds = work.state.engine.wait().as_secs_f64();
            format!("Request {number} timed out after {seconds:.1}s in KVPoll.WaitingForInput")
        }
        Ok(Ok(meet)) => match meet.as_deref() {
            Ok(meet) if meet.end != Some(End::Failed) => return Ok(*meet),
            _ => "Failed to get kvcache from prefill instance, it might be dead".into(),
        },
    };
    Err(transfer_error(work, number, &why))
}

fn transfer_error(work: &Work, number: u64, why: &str) -> Trouble {
    let what = match work.state.engine.role {
        Role::Prefill => "Prefill bootstrap failed for request",
        _ => "Decode transfer failed for request",
    };
    let rid = &work.leg.rid;
    Trouble::Failed(
        500,
        format!(
            "{what} rank=0 rid='{rid}' bootstrap_room={number} with exception KVTransferError(bootstrap_room={number}): {why}"
        ),
    )
}

async fn hand_over(
    work: &mut Work,
    act: &Act,
    seed: Seed,
    number: u64,
    room: Room,
    compute: Duration,
) -> Result<Part, Trouble> {
    if *act != Act::IgnoreRoom {
        work.stage = Stage::Waiting;
        wait(work, &room, number, |meet| meet.decode).await?;
        let transfer = Duration::from_millis(work.state.engine.transfer_ms);
        for (stage, time) in [(Stage::Computing, compute), (Stage::Transferring, transfer)] {
            match stage {
                Stage::Transferring => work.transferring(),
                _ => work.stage = stage,
            }
            if !time.is_zero() {
                // Until its time is over, or decode has left.
                let gone = wait(work, &room, number, |_| false);
                if let Ok(Err(trouble)) = tokio::time::timeout(time, gone).await {
                    return Err(trouble);
                }
            }
        }
    }
    let words = own(work, act, seed);
    if *act != Act::IgnoreRoom {
        room.send_modify(|meet| meet.end = meet.end.or(Some(End::Done(words))));
    }
    work.transferred();
    Ok(Part {
        seed: words,
        transfer: None,
    })
}

async fn take_over(
    work: &mut Work,
    act: &Act,
    seed: Seed,
    number: u64,
    room: Room,
) -> Result<Part, Trouble> {
    if matches!(act, Act::Garbage | Act::Incident | Act::IgnoreRoom) {
        work.slip_out();
        work.stage = Stage::Answering;
        let seed = own(work, act, seed);
        return Ok(Part {
            seed,
            transfer: None,
        });
    }
    work.stage = Stage::Waiting;
    let meet = wait(work, &room, number, |meet| meet.end.is_some()).await?;
    work.transferred();
    let Some(End::Done(handed)) = meet.end else {
        unreachable!("it waits for an end that is no failure");
    };
    // Decode says what was handed over, whatever it was asked.
    let seed = match act {
        Act::OtherText | Act::InBand => own(work, act, seed),
        _ => handed,
    };
    Ok(Part {
        seed,
        transfer: None,
    })
}

/// vLLM's prefill: keeps the blocks, and says where they are.
fn reference(work: &Work, act: &Act, seed: Seed, tokens: u64) -> String {
    let (number, engine) = (work.number, &work.state.engine);
    let id = format!("{}-0-{number:08x}", work.leg.rid);
    let words = own(work, act, seed);
    work.state.fleet.meeting.keep(id.clone(), seed, words);
    let blocks = tokens.div_ceil(32).clamp(1, 1 << 20);
    let blocks: Vec<_> = (0..blocks as u32).map(|it| it + 1).collect();
    let blocks = crate::shapes::list(&blocks);
    let quoted = crate::shapes::quoted(&id);
    let (name, port) = (&engine.name, engine.bootstrap_port);
    work.note(What::ReferenceMade { id });
    format!(
        r#"{{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[{blocks}],"remote_engine_id":"scripted-{name}","remote_request_id":{quoted},"remote_host":"127.0.0.1","remote_port":{port},"tp_size":1,"dcp_size":1,"pp_size":1,"remote_num_tokens":{tokens},"remote_blocks_expiry_time":null,"transfer_mode":"pull","remote_prefill_cached_tokens":0}}"#
    )
}

/// vLLM's decode: reads what a reference names, whatever that is.
async fn pull(work: &mut Work, ask: &Ask, act: &Act, seed: Seed) -> Result<Part, Trouble> {
    let id = ask.transfer_text("remote_request_id").unwrap_or_default();
    let meeting = &work.state.fleet.meeting;
    let lease = work.state.engine.lease();
    let (what, words) = match meeting.read(id, seed, lease) {
        Read::Good(words) => (What::ReferenceUsed { id: id.into() }, words),
        Read::Stale(why, words) => {
            let id = id.into();
            (What::ReferenceMisused { id, why }, Some(words))
        }
        Read::Unknown => {
            let why = "unknown";
            work.note(What::ReferenceMisused { id: id.into(), why });
            return Err(Trouble::Failed(500, "Internal server error".into()));
        }
    };
    work.note(what);
    work.transferring();
    let transfer = Duration::from_millis(work.state.engine.transfer_ms);
    work.pause(transfer).await?;
    work.transferred();
    let seed = match act {
        Act::Garbage | Act::Incident | Act::InBand => None,
        Act::OtherText | Act::IgnoreRoom => own(work, act, seed),
        _ => words,
    };
    Ok(Part {
        seed,
        transfer: None,
    })
}
