//! The gateway in front of engines that are not ours: what they take is measured as `gate` does, again
//! and again, and nothing goes to one of which it is not known.

mod fleet;
mod measure;
mod measured;
mod router;

use super::{api, say};
use crate::args::{Door, Gateway};
use crate::exit::Failure;
use crate::runtime;
use crate::supervisor::Ready;
use anyhow::anyhow;
use fleet::Fleet;
use gateway::door::{Config, Doors};
use measure::SAMPLES;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Runs it.
pub(super) fn run(settings: Gateway, weights: &Path) -> Result<(), Failure> {
    if settings.part.owners.is_some() {
        return Err(Failure::usage(anyhow!(
            "--owners with --engine: engines that are not ours keep their pages by themselves, and the gateway \
             knows nothing of whose they were; leave out --owners"
        )));
    }
    api::check(&settings.api)?;
    let served = api::Served::load(weights, &settings.api)?;
    let samples = SAMPLES.map(|text| (text, served.tokens(text)));
    runtime::on_all_cores()?.block_on(async {
        let fleet = Fleet::new(&settings.door).await.map_err(Failure::usage)?;
        let config = Config {
            machine: bounds(&settings.door),
            trace: settings.part.trace,
            tls: Some(fleet.tls.config()),
            ..Config::new(fleet.upstreams(), vec![served.name.clone()])
        };
        let doors = Arc::new(Doors::start(config).map_err(Failure::usage)?);
        let ready = Ready {
            role: "gateway".into(),
            epoch: doors.epoch().to_string(),
            ..Ready::default()
        };
        let one_by_one = fleet.router.is_none();
        if !one_by_one {
            tracing::warn!("{}", router::NOT_KEPT);
        }
        let guarded = api::Guarded::new(&settings.api, &served.name, one_by_one)?;
        let on_call = guarded.on_call.clone();
        let every = settings.door.measure_every;
        let measuring = measure::measure(fleet, &doors, every, samples, on_call);
        let ended = async { drop(doors.ended().await) };
        let shutdown = api::shutdown(ended, || doors.drain())?;
        let (api, common) = (settings.api, &settings.common);
        let serving = api::serve(
            api,
            common,
            (served, guarded),
            doors.clone(),
            shutdown,
            ready,
            say,
        );
        tokio::select! {
            ended = serving => ended?,
            () = measuring => {}
        }
        doors.end().await.map_err(Failure::found)
    })
}

fn bounds(door: &Door) -> handoff::door::Config {
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    handoff::door::Config {
        prefill_ms: ms(door.prefill_within),
        silence_ms: ms(door.silence),
        settle_ms: ms(door.settle),
        linger_ms: ms(door.linger),
        ..handoff::door::Config::default()
    }
}

/// Says what the engines take and whether they go together, and serves nobody.
///
/// # Errors
/// Nothing could be answered.
pub fn check(door: &Door) -> Result<(), Failure> {
    runtime::on_all_cores()?.block_on(async {
        let fleet = Fleet::new(door).await.map_err(Failure::usage)?;
        say_what_goes_together(&fleet).await
    })
}

/// What can be said without serving anybody.
async fn say_what_goes_together(fleet: &Fleet) -> Result<(), Failure> {
    let found = measure::read(&fleet.members).await;
    let mut roles = Vec::new();
    for (member, found) in fleet.members.iter().zip(&found) {
        let at = &member.at;
        match found {
            Err(why) => println!("{}: not usable: {}: {}", at.url, why.what, why.how),
            Ok(found) => {
                println!("{}: {:?}", at.url, found.dialect);
                if let Some(it) = found.lengths {
                    println!(
                        "  takes prompts up to {} tokens, prompt and answer up to {}",
                        it.max_prompt, it.max_model_len
                    );
                }
                found
                    .derivation
                    .iter()
                    .for_each(|line| println!("  {line}"));
                roles.extend(found.lengths.map(|_| found.dialect.serves(found.group)));
            }
        }
    }
    use handoff::door::Serves::{Alone, Decode, Prefill, Router};
    let pairs = |decode: &_| match decode {
        Alone | Router => true,
        Decode(group, handing) => roles.contains(&Prefill(*group, *handing)),
        Prefill(..) => false,
    };
    match roles.iter().any(pairs) {
        true => Ok(()),
        false => Err(Failure::found(anyhow!(
            "no engines that go together are up with known limits"
        ))),
    }
}
