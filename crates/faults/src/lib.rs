//! Faults for the shipped processes, from outside: their fabric is wrapped, their control
//! connections go through relays, they are killed and stopped. What strikes when is a function of
//! a seed, and a run that finds something says how to run it again.
//!
//! `serve` injects faults into the shipped processes, `rounds` and `soak` attack them under load.
//! Nothing that ships depends on this crate.
#![forbid(unsafe_code)]

mod board;
mod dice;
mod fabric;
mod faults;
mod holder;
mod load;
mod part;
mod relay;
mod rounds;
mod site;
mod soak;
mod tap;

pub use dice::Dice;
pub use faults::{Kind, Rate, Spec};
pub use holder::{Holder, Phase, Said};
pub use load::{Answer, Question, all_at_once};
pub use part::{is_part, main as part};
pub use rounds::{Report, Series, run as rounds};
pub use site::{
    HASTY, Plan, Site, counter, found_again, has_ended, held_arenas, is_whole, mapped_arenas,
};
pub use soak::{Soaked, Soaking, run as soak};

use clap::{Args, Parser, Subcommand};
use cofferdam::args::Command as Typed;
use cofferdam::config;
use cofferdam::supervisor::Limits;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use testkit::{SmallSpec, small_gguf};

/// Attacks on the shipped processes; never shipped.
#[derive(Debug, Parser)]
#[command(name = "cofferdam-faults", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve a model as `cofferdam serve` does, with faults injected by a seed.
    Serve(Serve),
    /// Kill parts of a server under load, one a round, each in a chosen phase of an attempt.
    Rounds(Rounds),
    /// Mixed load with all faults at random: every answer is the one that the request gets alone.
    Soak(Soak),
}

/// Runs the command that was typed.
pub fn main() -> ExitCode {
    let words: Vec<_> = std::env::args_os().collect();
    if is_part(&words) {
        return part(words);
    }
    match Cli::parse_from(words).command {
        Command::Serve(serve) => serve.run(),
        Command::Rounds(rounds) => rounds.run(),
        Command::Soak(soak) => soak.run(),
    }
}

/// Settings of `serve`.
#[derive(Debug, Args)]
pub struct Serve {
    /// Faults: NAME=PER-MILLE or NAME@N, the n-th opportunity of each life; several with commas
    #[arg(long, value_name = "SPEC", default_value = "")]
    faults: Spec,
    /// Decides at every opportunity whether a fault strikes
    #[arg(long, value_name = "N", default_value = "1")]
    seed: u64,
    /// List the faults
    #[arg(long)]
    list: bool,
    /// Words of `cofferdam serve`
    #[arg(last = true, value_name = "WORDS")]
    words: Vec<OsString>,
}

impl Serve {
    /// Runs until it is stopped.
    pub fn run(self) -> ExitCode {
        if self.list {
            for kind in Kind::ALL {
                println!("{:16}{}", kind.name(), kind.what());
            }
            return ExitCode::SUCCESS;
        }
        if std::env::var_os(part::FAULTS).is_none() {
            return again_with_faults(&self);
        }
        let first = [OsString::from("cofferdam"), OsString::from("serve")];
        let serve = match config::parse(first.into_iter().chain(self.words)) {
            Ok(cli) => match cli.command {
                Typed::Serve(serve) => *serve,
                other => unreachable!("serve was typed: {other:?}"),
            },
            Err(config::Wrong::Words(error)) => error.exit(),
            Err(config::Wrong::File(failure)) => {
                eprintln!("error: {failure}");
                return failure.exit.into();
            }
        };
        // Parts are killed all day here: that is no crash loop.
        let limits = Limits {
            deaths_max: usize::MAX,
            pause_max: Duration::from_millis(400),
            ..Limits::default()
        };
        match cofferdam::run_limited(serve, limits) {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => {
                eprintln!("error: {failure}");
                failure.exit.into()
            }
        }
    }
}

/// The parts are children of this process and have its environment, which no process may change
/// while it has threads: so this one becomes another one that has it from its start.
fn again_with_faults(serve: &Serve) -> ExitCode {
    use std::os::unix::process::CommandExt;
    let error = std::process::Command::new("/proc/self/exe")
        .args(std::env::args_os().skip(1))
        .env(part::FAULTS, serve.faults.to_string())
        .env(part::SEED, serve.seed.to_string())
        .exec();
    eprintln!("error: cannot start anew: {error}");
    ExitCode::FAILURE
}

/// Where the server under attack comes from.
#[derive(Debug, Args)]
struct What {
    /// GGUF file [default: a small random model]
    #[arg(long, value_name = "PATH")]
    model: Option<PathBuf>,
    /// Context in tokens
    #[arg(long, value_name = "N", default_value = "1024")]
    context: usize,
    /// Says again what happened before
    #[arg(long, value_name = "N", default_value = "1")]
    seed: u64,
    /// Words of `cofferdam serve`
    #[arg(last = true, value_name = "WORDS")]
    words: Vec<String>,
}

impl What {
    /// The model, made in `dir` if none was named, and further words.
    fn model(&self, dir: &Path) -> (PathBuf, Vec<String>) {
        let context = self.context;
        let mut words = self.words.clone();
        let model = match &self.model {
            Some(model) => {
                words.push(format!("--max-context={context}"));
                model.clone()
            }
            None => {
                let spec = SmallSpec {
                    context,
                    ..SmallSpec::default()
                };
                small_gguf(dir, spec)
            }
        };
        (model, words)
    }

    /// Runs it; if it fails, says how to run it again.
    fn attack(&self, attack: impl FnOnce(PathBuf, PathBuf, Vec<String>)) -> ExitCode {
        let dir = match tempfile::tempdir() {
            Ok(dir) => dir,
            Err(error) => {
                eprintln!("error: no temporary directory: {error}");
                return ExitCode::FAILURE;
            }
        };
        let program = std::env::current_exe().expect("this very program");
        let (model, words) = self.model(dir.path());
        let attack = std::panic::AssertUnwindSafe(|| attack(program, model, words));
        match std::panic::catch_unwind(attack) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => {
                let words: Vec<String> = std::env::args().skip(1).collect();
                eprintln!(
                    "FAILED with seed {}: cofferdam-faults {}",
                    self.seed,
                    words.join(" ")
                );
                ExitCode::FAILURE
            }
        }
    }
}

/// Settings of `rounds`.
#[derive(Debug, Args)]
pub struct Rounds {
    /// Rounds; each kills one part once
    #[arg(long, value_name = "N", default_value = "200")]
    rounds: u64,
    /// Requests at once
    #[arg(long, value_name = "N", default_value = "6")]
    clients: usize,
    /// Hits that each phase needs
    #[arg(long, value_name = "N", default_value = "10")]
    hits: u64,
    #[command(flatten)]
    what: What,
}

impl Rounds {
    /// Runs the series and prints a table: 0 if every round held and every phase was hit.
    pub fn run(self) -> ExitCode {
        let (seed, context) = (self.what.seed, self.what.context);
        self.what.attack(|program, model, words| {
            let report = rounds(&Series {
                program,
                model,
                context,
                rounds: self.rounds,
                clients: self.clients,
                seed,
                words,
            });
            println!("{report}");
            for phase in Phase::ALL {
                let hits = report.of_phase(phase);
                assert!(
                    hits >= self.hits,
                    "{phase:?} was hit {hits} times, not {}",
                    self.hits
                );
            }
        })
    }
}

/// Settings of `soak`.
#[derive(Debug, Args)]
pub struct Soak {
    /// Seconds of load
    #[arg(long, value_name = "N", default_value = "1800")]
    seconds: u64,
    /// Requests at once
    #[arg(long, value_name = "N", default_value = "6")]
    clients: usize,
    /// Nothing is injected or killed: then nothing at all may go wrong
    #[arg(long)]
    no_faults: bool,
    #[command(flatten)]
    what: What,
}

impl Soak {
    /// Soaks and prints what was seen: 0 if everything held.
    pub fn run(self) -> ExitCode {
        let (seed, context) = (self.what.seed, self.what.context);
        self.what.attack(|program, model, words| {
            let soaked = soak(&Soaking {
                program,
                model,
                context,
                time: Duration::from_secs(self.seconds),
                clients: self.clients,
                faults: !self.no_faults,
                seed,
                words,
            });
            println!("{soaked}");
        })
    }
}
