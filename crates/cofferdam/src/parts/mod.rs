//! The one place that calls the crates which do the work.
//!
//! Each function runs a part until it is told to stop (SIGINT, SIGTERM). A part that a supervisor
//! starts says on standard output when it is ready ([`Report`]).

mod api;
mod door;
mod unified;

use crate::args::{Decode, Engine, Gateway, Numeric, Prefill, Serve};
use crate::config::required;
use crate::exit::{Exit, Failure};
use crate::runtime;
use crate::supervisor::{Ready, Report};
use anyhow::Context;
use gateway::pairs::{self, Pairs};
use pages::Sound;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokenizer::Tokenizer;
use wire::control::{Addr, Identity, Role};
use worker::decode::{DataPort, DecodeConfig};
use worker::prefill::PrefillConfig;
use worker::{EngineConfig, FabricLayer, Nothing, WorkerError};

/// Runs a decode worker on these weights.
///
/// # Errors
/// See [`Failure`].
pub fn decode(settings: Decode, weights: &Path) -> Result<(), Failure> {
    decode_between(Sound, &Nothing, settings, weights)
}

/// [`decode`] under other decisions and behind something that stands between it and its fabric, for
/// a laboratory.
///
/// # Errors
/// See [`Failure`].
pub fn decode_between(
    decisions: impl handoff::Decisions,
    between: &dyn FabricLayer,
    settings: Decode,
    weights: &Path,
) -> Result<(), Failure> {
    let listen = required("listen", settings.listen)?;
    let certs = required("certs", settings.part.certs)?;
    let data = settings.data_listen.map(|listen| DataPort {
        listen,
        advertised: settings.data_advertise,
    });
    if data.is_none() && matches!(&listen, Addr::Tcp(at) if !at.ip().is_loopback()) {
        tracing::warn!(
            "--data-listen is not set: prefill workers on other hosts can say what they have, \
             and have no way to hand it over"
        );
    }
    let config = DecodeConfig {
        fabric_dir: settings.fabric_dir,
        data,
        trace: settings.part.trace,
        audit: settings.common.audit_log.clone(),
        deadlines: settings.waits.deadlines(),
        caps: settings.waits.caps(),
        drain_for: settings.common.drain(),
        signals: true,
        ..DecodeConfig::new(
            engine(&settings.engine, weights, settings.part.owners),
            listen,
            certs,
        )
    };
    let ready = |ready: &worker::Ready| say(measured(ready));
    worker::decode::run_through(decisions, between, config, ready).map_err(failed)
}

/// Runs a prefill worker on these weights.
///
/// # Errors
/// See [`Failure`].
pub fn prefill(settings: Prefill, weights: &Path) -> Result<(), Failure> {
    prefill_between(Sound, &Nothing, settings, weights)
}

/// [`prefill`] for a laboratory, as [`decode_between`].
///
/// # Errors
/// See [`Failure`].
pub fn prefill_between(
    decisions: impl handoff::Decisions,
    between: &dyn FabricLayer,
    settings: Prefill,
    weights: &Path,
) -> Result<(), Failure> {
    let listen = required("listen", settings.listen)?;
    let certs = required("certs", settings.part.certs)?;
    let engine = engine(&settings.engine, weights, settings.part.owners);
    let config = PrefillConfig {
        trace: settings.part.trace,
        audit: settings.common.audit_log.clone(),
        deadlines: settings.waits.deadlines(),
        caps: settings.waits.caps(),
        drain_for: settings.common.drain(),
        signals: true,
        ..PrefillConfig::new(engine, listen, settings.decode_at, certs)
    };
    let ready = |ready: &worker::Ready| say(measured(ready));
    worker::prefill::run_through(decisions, between, config, ready).map_err(failed)
}

/// Whether the API could begin as it is asked to: port, key file and logs, before models load.
///
/// # Errors
/// See [`Failure`].
pub fn check_api(settings: &crate::args::Api) -> Result<(), Failure> {
    api::check(settings)
}

/// Says what these engines take and whether they go together.
///
/// # Errors
/// Nothing could be answered.
pub fn check_engines(door: &crate::args::Door) -> Result<(), Failure> {
    door::check(door)
}

/// Whether these weights are of a kind that is computed, and the tokens are the model's: before a part
/// begins to read them, which may take minutes.
///
/// # Errors
/// See [`Failure`].
pub fn check_model(weights: &Path) -> Result<(), Failure> {
    let check = || -> anyhow::Result<()> {
        let metadata = checkpoint::metadata(weights)?;
        model::check_architecture(&metadata)?;
        let file = checkpoint::open(weights)?;
        let tokenizer = match weights.is_dir() {
            true => Tokenizer::from_folder(weights)?,
            false => Tokenizer::from_gguf(&metadata)?,
        };
        let shape = model::Config::read(&file)?;
        Ok(tokenizer.check_embeddings(shape.vocab)?)
    };
    check()
        .with_context(|| weights.display().to_string())
        .map_err(Failure::usage)
}

/// Which weights these are: workers say it too, and it must be the same.
fn fingerprint(weights: &Path) -> anyhow::Result<[u8; 32]> {
    let fingerprint = checkpoint::open(weights).and_then(|it| it.fingerprint());
    fingerprint.with_context(|| weights.display().to_string())
}

/// Runs a gateway for these weights.
///
/// # Errors
/// See [`Failure`].
pub fn gateway(settings: Gateway, weights: &Path) -> Result<(), Failure> {
    if settings.door.is_wanted() {
        return door::run(settings, weights);
    }
    gateway_by(Sound, settings, weights)
}

/// [`gateway`] under other decisions, for a laboratory.
///
/// # Errors
/// See [`Failure`].
pub fn gateway_by(
    decisions: impl handoff::Decisions,
    settings: Gateway,
    weights: &Path,
) -> Result<(), Failure> {
    api::check(&settings.api)?;
    let certs = required("certs", settings.part.certs)?;
    let identity = Identity::load(&certs, Role::Gateway).map_err(Failure::usage)?;
    let served = api::Served::load(weights, &settings.api)?;
    let config = pairs::Config {
        trace: settings.part.trace,
        owners: settings.part.owners,
        audit: settings.common.audit_log.clone(),
        silence_max: settings.api.silence_deadline,
        ..pairs::Config::new(
            settings.prefill_at,
            settings.decode_at,
            identity,
            fingerprint(weights).map_err(Failure::usage)?,
            vec![served.name.clone()],
        )
    };
    runtime::on_all_cores()?.block_on(async {
        let pairs = Arc::new(Pairs::start_by(decisions, config).map_err(Failure::usage)?);
        let epoch = pairs.epoch().to_string();
        let ready = Ready {
            role: "gateway".into(),
            epoch,
            ..Ready::default()
        };
        let ended = async { drop(pairs.ended().await) };
        let shutdown = api::shutdown(ended, || pairs.drain())?;
        let (api, common) = (settings.api, &settings.common);
        let guarded = api::Guarded::new(&api, &served.name, false)?;
        let served = (served, guarded);
        api::serve(api, common, served, pairs.clone(), shutdown, ready, say).await?;
        pairs.end().await.map_err(Failure::found)
    })
}

/// Runs everything in this process, without a handoff; `announce` hears when it is ready.
pub fn in_process(
    settings: Serve,
    weights: &Path,
    announce: impl FnOnce(&Ready),
) -> Result<(), Failure> {
    let served = api::Served::load(weights, &settings.api)?;
    let engine = engine(&settings.engine, weights, settings.owners);
    let started = unified::Unified::start(&engine, &served.name);
    let unified = Arc::new(started.map_err(failed)?);
    let ready = measured(unified.ready());
    let announce = |ready: Ready| announce(&ready);
    let (api, common) = (settings.api, &settings.common);
    let engine = unified.clone();
    runtime::on_all_cores()?.block_on(async {
        let shutdown = api::shutdown(unified.ended(), || unified.drain())?;
        let guarded = api::Guarded::new(&api, &served.name, false)?;
        let served = (served, guarded);
        api::serve(api, common, served, engine, shutdown, ready, announce).await
    })?;
    unified.end().map_err(failed)
}

fn engine(engine: &Engine, weights: &Path, owners: Option<PathBuf>) -> EngineConfig {
    let config = EngineConfig::new(weights);
    EngineConfig {
        numeric: match engine.numeric {
            Numeric::Fast => model::Numeric::Fast,
            Numeric::Exact => model::Numeric::Exact,
        },
        threads: engine
            .threads
            .map_or(config.threads, |threads| threads as usize),
        page_size: engine.page_size,
        max_context: engine.max_context,
        pool_tokens: engine.pool_tokens,
        scrub: engine.scrub,
        owners,
        ..config
    }
}

fn measured(ready: &worker::Ready) -> Ready {
    Ready {
        role: ready.role.to_owned(),
        epoch: ready.epoch.to_string(),
        addr: ready.addr.clone(),
        pool_tokens: Some(ready.pool_tokens),
        page_size: Some(ready.page_size),
        max_context: Some(ready.max_context),
        max_prompt_tokens: Some(ready.max_prompt_tokens),
        model: None,
    }
}

/// Tells whoever started this part.
fn say(ready: Ready) {
    crate::notify::ready();
    if let Err(error) = Report::Ready(ready).say() {
        tracing::warn!(%error, "nobody reads the report of readiness");
    }
}

fn failed(error: WorkerError) -> Failure {
    Failure {
        exit: Exit::from_number(error.exit_code()),
        error: error.into(),
    }
}
