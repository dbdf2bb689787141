//! `check`: explore the shipped state machines within a named bound, with a defect or without, run
//! them beyond it, or run a counterexample again.

mod door;
mod explore;
mod show;
mod simulate;
mod table;
mod trace;
mod watch;
mod worlds;

use crate::bound::Bound;
use crate::defects;
use anyhow::{Context, bail};
use clap::Args;
use std::path::PathBuf;
use std::process::ExitCode;

/// Everything was explored and every clause holds.
const HOLDS: u8 = 0;
/// A clause does not hold.
const VIOLATED: u8 = 1;
/// The command was not understood.
const USAGE: u8 = 2;
/// Not everything could be explored.
const UNFINISHED: u8 = 3;

/// Settings.
#[derive(Debug, Args)]
pub(crate) struct Check {
    /// How far to go: smoke, quick or deep.
    #[arg(long, default_value = "quick")]
    bound: Bound,
    /// Only this world; may be given several times. `--list` says which there are.
    #[arg(long, value_name = "NAME")]
    world: Vec<String>,
    /// Only worlds in which writes land like this.
    #[arg(long, value_name = "landing|direct")]
    mode: Option<String>,
    /// With this defect, by its id in the specification's table.
    #[arg(long, value_name = "D-xx")]
    defect: Option<String>,
    /// Writes a counterexample to this file, for `--replay`.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Runs at random through worlds that are too large to be explored.
    #[arg(long)]
    simulate: bool,
    /// The first run's seed.
    #[arg(long, default_value_t = 0, requires = "simulate")]
    seed: u64,
    /// How many runs, with consecutive seeds.
    #[arg(long, default_value_t = 1, requires = "simulate")]
    runs: u64,
    /// Runs a counterexample again, step by step.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["simulate", "trace", "defect"])]
    replay: Option<PathBuf>,
    /// Says which worlds and defects there are.
    #[arg(long)]
    list: bool,
    /// Threads; they change nothing in the result. Default: as many as there are processors.
    #[arg(long)]
    threads: Option<usize>,
    /// Merges states that differ only in which page of a pool is which (landing mode only).
    #[arg(long)]
    symmetry: bool,
    /// At most so many states a world, if that is fewer than the bound allows.
    #[arg(long, value_name = "N")]
    states: Option<usize>,
    /// At most so many GiB of memory, if that is less than the bound allows.
    #[arg(long, value_name = "GIB")]
    memory: Option<u64>,
    /// At most so many minutes for all worlds together, instead of what the bound allows.
    #[arg(long, value_name = "MINUTES")]
    minutes: Option<u64>,
    /// No progress.
    #[arg(long, short)]
    quiet: bool,
}

impl Check {
    /// Runs it.
    pub(crate) fn run(self) -> ExitCode {
        let done = match self.dispatch() {
            Ok(code) => code,
            Err(error) => {
                eprintln!("cofferdam-lab check: {error:#}");
                USAGE
            }
        };
        ExitCode::from(done)
    }

    fn dispatch(&self) -> anyhow::Result<u8> {
        if self.list {
            print!("{}", show::list(self.bound)?);
            return Ok(HOLDS);
        }
        if let Some(file) = &self.replay {
            return trace::replay(file);
        }
        if let Some(done) = door::run(self)? {
            return Ok(done);
        }
        let defect = match &self.defect {
            None => None,
            Some(id) => {
                let known = defects::find(id);
                Some(known.with_context(|| format!("no defect is called {id}; see --list"))?)
            }
        };
        let mut worlds = worlds::chosen(self.bound, &self.world, self.mode.as_deref())?;
        if let Some(defect) = defect
            && self.world.is_empty()
            && self.mode.is_none()
            && !self.simulate
        {
            worlds.insert(0, worlds::shown_in(defect));
        }
        if worlds.is_empty() {
            bail!("no world of this name has this mode; see --list");
        }
        if self.simulate {
            simulate::run(self, &worlds, defect)
        } else {
            explore::run(self, &worlds, defect)
        }
    }
}
