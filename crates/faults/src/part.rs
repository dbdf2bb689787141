//! A part of a server under attack: the shipped part, with relays in front of what it dials, and
//! prefill's fabric wrapped. `serve` starts each part as this very program, and what is to be
//! injected reaches it through the environment.

use super::board::Board;
use super::fabric::Attacked;
use super::faults::{Kind, Schedule, Spec};
use super::relay::{self, Sides};
use super::tap::{GatewayDecode, Plain, PrefillDecode, Tap};
use anyhow::{Context, anyhow};
use cofferdam::args::{self, Command};
use cofferdam::config::{self, Wrong};
use cofferdam::exit::{Exit, Failure};
use cofferdam::parts;
use handoff::{Limit, Rejection};
use pages::TableFault;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use wire::control::{Addr, Role};

/// Variable with the faults, as they are typed.
pub(crate) const FAULTS: &str = "ATTACK_FAULTS";
/// Variable with the seed.
pub(crate) const SEED: &str = "ATTACK_SEED";

/// Whether these words start a part, as `serve` does.
pub fn is_part(words: &[OsString]) -> bool {
    let word = words.get(1).and_then(|word| word.to_str());
    matches!(word, Some("prefill" | "decode" | "gateway"))
}

/// Runs a part with these words.
pub fn main(words: Vec<OsString>) -> ExitCode {
    let done = match config::parse(words) {
        Ok(cli) => run(cli.command),
        Err(Wrong::Words(error)) => error.exit(),
        Err(Wrong::File(failure)) => Err(failure),
    };
    match done {
        Ok(exit) => exit.into(),
        Err(failure) => {
            eprintln!("error: {failure}");
            failure.exit.into()
        }
    }
}

fn run(command: Command) -> Result<Exit, Failure> {
    match command {
        Command::Prefill(it) => {
            let (common, part) = (it.common.clone(), it.part.clone());
            cofferdam::run_part(&common, &part, |weights| prefill(it, weights))
        }
        Command::Decode(it) => {
            let (common, part) = (it.common.clone(), it.part.clone());
            cofferdam::run_part(&common, &part, |weights| decode(it, weights))
        }
        Command::Gateway(it) => {
            let (common, part) = (it.common.clone(), it.part.clone());
            cofferdam::run_part(&common, &part, |weights| gateway(*it, weights))
        }
        other => Err(Failure::usage(anyhow!("no part: {other:?}"))),
    }
}

/// What is injected into this process.
fn injected(role: &str) -> Result<(Arc<Schedule>, Arc<Board>), Failure> {
    let variable = |name| std::env::var(name).unwrap_or_default();
    let spec: Spec = variable(FAULTS)
        .parse()
        .map_err(|wrong| Failure::usage(anyhow!("{FAULTS}: {wrong}")))?;
    let seed = match variable(SEED).as_str() {
        "" => 0,
        seed => seed.parse().context(SEED).map_err(Failure::usage)?,
    };
    let schedule = Arc::new(Schedule::new(spec, seed, role));
    Ok((schedule, Arc::new(Board::from_environment())))
}

fn certs(part: &args::Part) -> Result<PathBuf, Failure> {
    let certs = part.certs.clone();
    certs.ok_or_else(|| Failure::usage(anyhow!("--certs is missing")))
}

fn prefill(mut settings: args::Prefill, weights: &Path) -> Result<(), Failure> {
    let (schedule, board) = injected("prefill")?;
    let certs = certs(&settings.part)?;
    let sides = Sides {
        dialler: Role::Prefill,
        listener: Role::Decode,
    };
    for target in &mut settings.decode_at {
        let tap = Arc::new(PrefillDecode::new(schedule.clone(), board.clone()));
        *target = relayed(&certs, target, sides, &schedule, tap)?;
    }
    let attacked = Attacked { schedule, board };
    parts::prefill_between(pages::Sound, &attacked, settings, weights)
}

fn gateway(mut settings: args::Gateway, weights: &Path) -> Result<(), Failure> {
    let (schedule, board) = injected("gateway")?;
    let certs = certs(&settings.part)?;
    for target in &mut settings.decode_at {
        let sides = Sides {
            dialler: Role::Gateway,
            listener: Role::Decode,
        };
        let tap = Arc::new(GatewayDecode::new(board.clone()));
        *target = relayed(&certs, target, sides, &schedule, tap)?;
    }
    for target in &mut settings.prefill_at {
        let sides = Sides {
            dialler: Role::Gateway,
            listener: Role::Prefill,
        };
        *target = relayed(&certs, target, sides, &schedule, Arc::new(Plain))?;
    }
    let _ = CHECKS.set(schedule);
    parts::gateway_by(Doubting, settings, weights)
}

/// A relay in front of `target`, with its socket in the directory of that of the target, which the
/// supervisor removes.
fn relayed(
    certs: &Path,
    target: &Addr,
    sides: Sides,
    schedule: &Arc<Schedule>,
    tap: Arc<dyn Tap>,
) -> Result<Addr, Failure> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let Addr::Unix(path) = target else {
        let any = Addr::Tcp(([127, 0, 0, 1], 0).into());
        let started = relay::start(certs, any, target.clone(), sides, schedule.clone(), tap);
        return started.map_err(Failure::found);
    };
    let n = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("r-{}-{n}.sock", std::process::id());
    let at = Addr::Unix(path.with_file_name(name));
    relay::start(certs, at, target.clone(), sides, schedule.clone(), tap).map_err(Failure::found)
}

fn decode(settings: args::Decode, weights: &Path) -> Result<(), Failure> {
    let (schedule, _) = injected("decode")?;
    let _ = CHECKS.set(schedule);
    parts::decode_between(Doubting, &worker::Nothing, settings, weights)
}

/// A decision has no state: what the schedule says of this process.
static CHECKS: OnceLock<Arc<Schedule>> = OnceLock::new();

/// The product's decisions, but that a check may find what is not there ([`Kind::StepCheck`]), or
/// never end ([`Kind::GatewayPanic`]).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
struct Doubting;

impl pages::Decisions for Doubting {
    fn entry_verdict(self, found: Result<(), TableFault>) -> Result<(), TableFault> {
        let strikes = |schedule: &Arc<Schedule>| schedule.strikes(Kind::StepCheck).is_some();
        if CHECKS.get().is_some_and(strikes) {
            return Err(TableFault::OtherOwner);
        }
        found
    }
}

impl handoff::Decisions for Doubting {
    fn fits_pair(self, limit: &Limit, spec: &handoff::Spec) -> Result<(), Rejection> {
        let strikes = |schedule: &Arc<Schedule>| schedule.strikes(Kind::GatewayPanic).is_some();
        assert!(
            !CHECKS.get().is_some_and(strikes),
            "{}",
            Kind::GatewayPanic.name()
        );
        limit.admits(spec)
    }
}
