//! From the command line to an exit code.

use crate::args::Command;
#[cfg(feature = "engine")]
use crate::args::{CERTIFICATE_DAYS, CacheCommand, CertsCommand};
use crate::config::{self, Wrong};
#[cfg(feature = "engine")]
use crate::engine::{run_part, run_part_on, tokenizer, weights};
use crate::exit::{Exit, Failure};
use crate::{affected, gate, healthcheck, probe, screen, watch};
#[cfg(feature = "engine")]
use crate::{bench, manuals, oncall, parts, serve, top};
use clap::error::ErrorKind;
#[cfg(feature = "engine")]
use std::path::Path;
use std::process::ExitCode;

/// The whole command.
pub fn main() -> ExitCode {
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    for name in config::unknown_variables(names) {
        eprintln!("warning: the variable {name} belongs to no flag (misspelt?)");
    }
    let done = match config::parse(std::env::args_os()) {
        Ok(cli) => run(cli.command),
        Err(Wrong::Words(error)) => {
            #[cfg(not(feature = "engine"))]
            say_what_is_missing(&error);
            let words: Vec<_> = std::env::args_os().collect();
            if error.kind() == ErrorKind::DisplayHelp && screen::print(&words) {
                return Exit::Good.into();
            }
            error.exit() // code 2; 0 for --help and --version
        }
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

/// What a command says that was built with more in it.
#[cfg(not(feature = "engine"))]
fn say_what_is_missing(error: &clap::Error) {
    use clap::error::{ContextKind, ContextValue};
    const MISSING: [&str; 10] = [
        "serve", "prefill", "decode", "gateway", "canary", "incident", "top", "bench", "pull",
        "cache",
    ];
    if let Some(ContextValue::String(name)) = error.get(ContextKind::InvalidSubcommand)
        && MISSING.contains(&name.as_str())
    {
        eprintln!(
            "error: {name} needs the engine, and this cofferdam was built without it (gate, probe \
             and watch alone): cargo install --path crates/cofferdam"
        );
        std::process::exit(Exit::Usage as i32);
    }
}

/// Runs what was typed.
///
/// # Errors
/// See [`Failure`].
pub fn run(command: Command) -> Result<Exit, Failure> {
    let done = match command {
        Command::Gate(it) => return gate::run(&it), // its exit code is its verdict
        Command::Probe(it) => return probe::run(&it), // the same
        Command::Watch(it) => return watch::run(&it), // the same
        #[cfg(feature = "engine")]
        Command::Top(it) => return top::run(&it), // the same
        Command::Affected(it) => return affected::run(&it), // the same
        #[cfg(feature = "engine")]
        Command::Serve(it) => serve::run(*it),
        #[cfg(feature = "engine")]
        Command::Prefill(it) => {
            return run_part(&it.common.clone(), &it.part.clone(), |weights| {
                parts::prefill(it, weights)
            });
        }
        #[cfg(feature = "engine")]
        Command::Decode(it) => {
            return run_part(&it.common.clone(), &it.part.clone(), |weights| {
                parts::decode(it, weights)
            });
        }
        #[cfg(feature = "engine")]
        Command::Gateway(it) if it.door.check => parts::check_engines(&it.door),
        #[cfg(feature = "engine")]
        Command::Gateway(it) if it.door.is_wanted() && it.common.model.is_none() => {
            Err(Failure::usage(anyhow::anyhow!(
                "--engine needs --model: the GGUF file or the Hugging Face folder whose tokenizer and \
                 chat template these engines have"
            )))
        }
        #[cfg(feature = "engine")]
        Command::Gateway(it) => {
            let find = match it.door.engine.is_empty() {
                true => weights,
                false => tokenizer,
            };
            return run_part_on(&it.common.clone(), &it.part.clone(), find, |weights| {
                parts::gateway(*it, weights)
            });
        }
        #[cfg(feature = "engine")]
        Command::Certs {
            command: CertsCommand::New { directory },
        } => new_certs(&directory),
        #[cfg(feature = "engine")]
        Command::Pull => {
            println!("{}", gguf::fetch::Fetcher::new()?.ensure()?.display());
            Ok(())
        }
        #[cfg(feature = "engine")]
        Command::Cache {
            command: CacheCommand::Clean,
        } => {
            for removed in gguf::fetch::Fetcher::new()?.clean()? {
                println!("removed {}", removed.display());
            }
            Ok(())
        }
        #[cfg(feature = "engine")]
        Command::Canary(it) => return oncall::standalone::run(&it),
        #[cfg(feature = "engine")]
        Command::Incident(it) => return oncall::command::run(&it),
        #[cfg(feature = "engine")]
        Command::Bench(it) => return bench::run(&it),
        Command::Healthcheck(it) => return healthcheck::run(&it), // the same
        #[cfg(feature = "engine")]
        Command::Manuals { directory } => manuals::write(&directory),
        Command::Version => {
            println!("cofferdam {}", env!("CARGO_PKG_VERSION"));
            Ok(())
        }
    };
    done.map(|()| Exit::Good)
}

#[cfg(feature = "engine")]
fn new_certs(directory: &Path) -> Result<(), Failure> {
    let validity = wire::control::certs::Validity::days(CERTIFICATE_DAYS);
    let made =
        wire::control::certs::new_cluster(directory, validity).map_err(|error| match error {
            wire::control::certs::CertsError::Exists(_) => Failure::usage(error),
            error => Failure::found(error),
        })?;
    for file in made {
        println!("{}", file.display());
    }
    Ok(())
}
