//! From the command line to an exit code.

use crate::args::{CertsCommand, Cli, Command};
use crate::exit::{Exit, Failure};
use crate::settings::{Gateway, Serve, Worker, unknown_variables};
use crate::supervisor::report::{Refused, Report};
use crate::{lifeline, logs, parts, serve};
use anyhow::{Context, anyhow};
use clap::{CommandFactory, Parser};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tokio::signal::unix::{Signal, SignalKind, signal};
use weights::Fetcher;

/// The whole command.
pub fn main() -> ExitCode {
    let cli = Cli::parse(); // ends with code 2 on its own, 0 for --help and --version
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    for name in unknown_variables(&Cli::command(), names) {
        eprintln!("warning: the variable {name} belongs to no flag (misspelt?)");
    }
    match run(cli.command) {
        Ok(()) => Exit::Good.into(),
        Err(failure) => {
            eprintln!("error: {failure}");
            failure.exit.into()
        }
    }
}

fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Serve(given) => serve::run(Serve::resolve(given)?),
        Command::Prefill(given) => {
            let settings = Worker::resolve(given)?;
            part(settings.until_stdin_closes, || {
                logs::start(settings.log_format);
                let weights = weights(settings.model.as_deref())?;
                engine_runtime()?.block_on(async {
                    parts::prefill(settings, &weights, Stop::new()?.asked()).await
                })
            })
        }
        Command::Decode(given) => {
            let settings = Worker::resolve(given)?;
            part(settings.until_stdin_closes, || {
                logs::start(settings.log_format);
                let weights = weights(settings.model.as_deref())?;
                engine_runtime()?.block_on(async {
                    parts::decode(settings, &weights, Stop::new()?.asked()).await
                })
            })
        }
        Command::Gateway(given) => {
            let settings = Gateway::resolve(given)?;
            part(settings.until_stdin_closes, || {
                logs::start(settings.log_format);
                let weights = weights(settings.model.as_deref())?;
                engine_runtime()?.block_on(async {
                    parts::gateway(settings, &weights, Stop::new()?.asked()).await
                })
            })
        }
        Command::Certs {
            command: CertsCommand::New { directory },
        } => new_certs(&directory),
        Command::Pull => {
            println!("{}", Fetcher::new()?.ensure()?.display());
            Ok(())
        }
        Command::Version => {
            println!("cofferdam {}", env!("CARGO_PKG_VERSION"));
            Ok(())
        }
    }
}

/// Runs a part; if it fails, its supervisor is told so in a way that stops further tries.
fn part(
    until_stdin_closes: bool,
    run: impl FnOnce() -> Result<(), Failure>,
) -> Result<(), Failure> {
    if until_stdin_closes {
        lifeline::end_with_parent()
            .context("cannot watch the parent")
            .map_err(Failure::found)?;
    }
    let result = run();
    if let Err(failure) = &result {
        let refused = Refused {
            message: failure.to_string(),
            exit: failure.exit as u8,
        };
        let _ = Report::Refused(refused).say(); // the exit code says it too
    }
    result
}

fn new_certs(directory: &Path) -> Result<(), Failure> {
    let validity = control::certs::Validity::days(parts::CERTIFICATE_DAYS);
    let made = control::certs::new_cluster(directory, validity).map_err(|error| match error {
        control::certs::CertsError::Exists(_) => Failure::usage(error),
        error => Failure::found(error),
    })?;
    for file in made {
        println!("{}", file.display());
    }
    Ok(())
}

/// The weights that were named, or the default ones.
pub(crate) fn weights(model: Option<&Path>) -> Result<PathBuf, Failure> {
    let Some(model) = model else {
        return Ok(Fetcher::new()?.ensure()?);
    };
    if model.is_file() {
        return Ok(model.to_owned());
    }
    Err(Failure::usage(anyhow!(
        "--model {}: there is no such file",
        model.display()
    )))
}

fn engine_runtime() -> Result<tokio::runtime::Runtime, Failure> {
    let built = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    built
        .context("cannot start the async runtime")
        .map_err(Failure::found)
}

/// SIGINT and SIGTERM.
pub(crate) struct Stop {
    interrupt: Signal,
    terminate: Signal,
}

impl Stop {
    /// From now on both are delivered here instead of ending the process.
    pub(crate) fn new() -> Result<Stop, Failure> {
        let listen = |kind| signal(kind).context("cannot listen to signals");
        Ok(Stop {
            interrupt: listen(SignalKind::interrupt()).map_err(Failure::found)?,
            terminate: listen(SignalKind::terminate()).map_err(Failure::found)?,
        })
    }

    /// The next of them.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }

    async fn asked(mut self) {
        self.next().await;
    }
}
