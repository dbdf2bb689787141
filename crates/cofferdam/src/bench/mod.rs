//! `bench`: how fast the engine is on this machine, beside llama.cpp and beside what the machine could do.
//!
//! Figures of one machine at one moment say little; ratios of rounds that took turns say more. So
//! everything that is compared is measured in turn, each figure is a median with an interval, and
//! processor time stands beside wall time, which others on the machine disturb.

pub mod args;

mod engine;
mod figures;
mod first_token;
mod limits;
mod llama;
mod plot;
mod show;

use crate::exit::{Exit, Failure};
use anyhow::{Context, anyhow};
use args::{Bench, Suite};
use engine::{Batch, tokens};
use figures::{Row, Times, What};
use limits::Limits;
use llama::Llama;
use model::{Isa, LoadOptions, Model, Numeric};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Tokens that are decoded in one round.
const DECODED: u32 = 32;

/// All that was measured.
#[derive(Serialize)]
struct Measured {
    about: show::About,
    limits: Vec<Limits>,
    engine: Vec<Row>,
    first_token: Vec<Times>,
}

pub(crate) fn run(asked: &Bench) -> Result<Exit, Failure> {
    let weights = weights(asked)?;
    let isa = Isa::from_env().map_err(Failure::usage)?;
    let mut measured = Measured {
        about: show::About::new(&weights, isa),
        limits: Vec::new(),
        engine: Vec::new(),
        first_token: Vec::new(),
    };
    let done = measure(asked, &weights, isa, &mut measured);
    // What was measured before something failed is not lost.
    measured.about.end();
    print!("{measured}");
    let write = |path: &Option<PathBuf>, text: String| match path {
        None => Ok(()),
        Some(path) => std::fs::write(path, text)
            .with_context(|| path.display().to_string())
            .map_err(Failure::found),
    };
    let json = serde_json::to_string_pretty(&measured).map_err(Failure::found)?;
    write(&asked.json, json + "\n")?;
    write(&asked.plot, plot::svg(&measured.engine))?;
    done.map(|()| Exit::Good).map_err(Failure::found)
}

fn weights(asked: &Bench) -> Result<PathBuf, Failure> {
    match &asked.model {
        None => Ok(gguf::fetch::Fetcher::new()?.ensure()?),
        Some(model) => {
            crate::parts::check_model(model)?;
            Ok(model.clone())
        }
    }
}

fn measure(asked: &Bench, weights: &Path, isa: Isa, measured: &mut Measured) -> anyhow::Result<()> {
    let wants = |suite| asked.only.contains(&suite);
    if wants(Suite::Limits) {
        for threads in &asked.threads {
            eprintln!("limits of {threads} threads ...");
            measured
                .limits
                .push(Limits::measure(isa, *threads, asked.rounds)?);
        }
    }
    let file = checkpoint::open(weights)?;
    let config = model::Config::read(&file)?;
    let (vocab, context) = (config.vocab, config.context as u32);
    drop(file);
    if wants(Suite::Engine) {
        let mut beside = beside(asked, weights, &mut measured.about);
        for threads in &asked.threads {
            let limits = measured
                .limits
                .iter()
                .find(|it| it.threads == *threads)
                .copied();
            let mut round = Rounds::new(asked, weights, isa, *threads, limits, beside.as_mut())?;
            round.all(asked, context, &mut measured.engine)?;
        }
    }
    if wants(Suite::FirstToken) {
        let fits = |prompt: &&u32| **prompt + DECODED <= context;
        let prompts: Vec<u32> = asked.prefill.iter().filter(fits).copied().collect();
        eprintln!("first tokens through the API ...");
        let times = &mut measured.first_token;
        first_token::measure(weights, &prompts, vocab, asked.rounds, times)?;
    }
    Ok(())
}

/// llama.cpp, where there is one; where there is none, why.
fn beside(asked: &Bench, weights: &Path, about: &mut show::About) -> Option<Llama> {
    if asked.beside == "none" {
        return None;
    }
    let started = match weights.is_dir() {
        true => Err(anyhow!("llama.cpp opens GGUF files, and this is a folder")),
        false => Llama::start(&asked.beside, weights, asked.plain_buffers),
    };
    about.beside = match &started {
        Ok(llama) => llama.about.clone(),
        Err(why) => format!("nothing: {why:#}"),
    };
    started.ok()
}

/// The engine for so many threads, and what is measured in turn with it.
struct Rounds<'a> {
    model: Model,
    threads: u16,
    rounds: u32,
    limits: Option<Limits>,
    beside: Option<&'a mut Llama>,
}

impl<'a> Rounds<'a> {
    fn new(
        asked: &Bench,
        weights: &Path,
        isa: Isa,
        threads: u16,
        limits: Option<Limits>,
        beside: Option<&'a mut Llama>,
    ) -> anyhow::Result<Self> {
        let file = checkpoint::open(weights)?;
        let options = LoadOptions {
            numeric: Numeric::Fast,
            isa,
            threads: usize::from(threads),
        };
        Ok(Self {
            model: Model::load(&file, options)?,
            threads,
            rounds: asked.rounds,
            limits,
            beside,
        })
    }

    /// Everything that fits the model's context.
    fn all(&mut self, asked: &Bench, context: u32, rows: &mut Vec<Row>) -> anyhow::Result<()> {
        for prompt in asked.prefill.iter().filter(|it| **it <= context) {
            eprintln!("prefill of {prompt} tokens, {} threads ...", self.threads);
            rows.push(self.prefill(*prompt)?);
        }
        let first = asked.sequences.first().copied().unwrap_or(1);
        let deep = asked.depths.iter().map(|depth| (*depth, first));
        let depth = asked.depths.first().copied().unwrap_or(0);
        let wide = asked.sequences.iter().skip(1).map(|n| (depth, *n));
        for (depth, sequences) in deep.chain(wide) {
            if self.room(depth) <= context {
                eprintln!(
                    "decode at depth {depth}, {sequences} sequences, {} threads ...",
                    self.threads
                );
                rows.push(self.decode(depth, sequences)?);
            }
        }
        Ok(())
    }

    /// Tokens that a sequence comes to: one before decode, and what all rounds add.
    fn room(&self, depth: u32) -> u32 {
        depth + 1 + (self.rounds + 1) * DECODED
    }

    fn prefill(&mut self, prompt: u32) -> anyhow::Result<Row> {
        let mut row = self.row(What::Prefill, prompt, 1);
        let vocab = self.model.config().vocab;
        if let Some(llama) = &mut self.beside {
            llama.open(1, prompt, self.threads, &[1])?;
        }
        for round in 0..self.rounds {
            let ids = tokens(prompt, vocab, round);
            row.ours
                .push(Batch::new(&self.model, 1, prompt)?.prefill(&ids)?);
            if let Some(llama) = &mut self.beside {
                row.beside.push(llama.prefill(&ids)?);
            }
        }
        if let Some(llama) = &mut self.beside {
            llama.close()?;
        }
        let products = self.model.cost_of_layers().products as f64;
        let done = row.ours(|it| it.wall).map(|it| it.median * products);
        let limit = self.limits.map(|it| it.products.median);
        row.of_limit = done.zip(limit).map(|(done, limit)| done / limit);
        Ok(row)
    }

    /// The depth is where the first round begins; each adds its tokens, here and beside.
    fn decode(&mut self, depth: u32, sequences: u16) -> anyhow::Result<Row> {
        let mut row = self.row(What::Decode, depth, sequences);
        let vocab = self.model.config().vocab;
        let before = tokens(depth + 1, vocab, 17);
        let room = self.room(depth);
        let mut batch = Batch::new(&self.model, sequences, room)?;
        batch.prefill(&before)?;
        if let Some(llama) = &mut self.beside {
            llama.open(sequences, room, self.threads, &before)?;
        }
        let mut shares = 0.0;
        for round in 0..=self.rounds {
            let ids = tokens(DECODED, vocab, round);
            let (ours, share) = batch.decode(&ids)?;
            let beside = match &mut self.beside {
                Some(llama) => Some(llama.decode(&ids, sequences)?),
                None => None,
            };
            // The first is not counted: memory is touched for the first time.
            if round > 0 {
                row.ours.push(ours);
                row.beside.extend(beside);
                shares += share;
            }
        }
        if let Some(llama) = &mut self.beside {
            llama.close()?;
        }
        row.verification = shares / f64::from(self.rounds);
        let cost = self.model.cost_of_layers() + self.model.cost_of_head();
        // One pass over the weights gives a token to every sequence.
        let passes = row
            .ours(|it| it.wall)
            .map(|it| it.median / f64::from(sequences));
        let limit = self.limits.map(|it| it.bytes.median);
        let share = |(passes, limit): (f64, f64)| passes * cost.bytes as f64 / limit;
        row.of_limit = passes.zip(limit).map(share);
        Ok(row)
    }

    fn row(&self, what: What, tokens: u32, sequences: u16) -> Row {
        Row {
            what,
            tokens,
            sequences,
            threads: self.threads,
            ours: Vec::new(),
            beside: Vec::new(),
            of_limit: None,
            verification: 0.0,
        }
    }
}
