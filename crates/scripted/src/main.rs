//! `cofferdam-scripted`: scripted engines in one process, and a load to put on what stands before them.
#![forbid(unsafe_code)]

mod load;

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand, ValueEnum};
use scripted::{Dialect, Engine, Fleet, Role, Script};

/// Scripted engines in one process; never shipped.
#[derive(Parser)]
#[command(name = "cofferdam-scripted", args_conflicts_with_subcommands = true)]
struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    serve: Serve,
}

#[derive(Subcommand)]
enum Command {
    /// Requests over kept connections: rate, times, and what they cost a process.
    Load(load::Load),
    /// Writes tokenizer.json, tokenizer_config.json and config.json of the engines' model.
    Folder {
        /// Where to.
        path: PathBuf,
    },
    /// Prints the right answer to the prompt that it reads.
    Expected {
        /// The prompt is a user's message.
        #[arg(long)]
        chat: bool,
        /// Tokens of the answer.
        #[arg(long, default_value_t = 256)]
        tokens: usize,
    },
}

#[derive(clap::Args)]
struct Serve {
    /// Ports of prefill engines, "prefill", "prefill-2" …
    #[arg(long)]
    prefill: Vec<u16>,
    /// Ports of decode engines, "decode", "decode-2" …
    #[arg(long)]
    decode: Vec<u16>,
    /// Ports of engines that serve alone, "single", "single-2" …
    #[arg(long)]
    single: Vec<u16>,
    /// Whose HTTP they speak.
    #[arg(long, value_enum, default_value = "sglang")]
    dialect: Speech,
    /// Settings of all of them, as JSON: {"context":4096,"prefill_ms":20}
    #[arg(long, default_value = "{}")]
    settings: String,
    /// Settings of prefill alone.
    #[arg(long, default_value = "{}")]
    prefill_settings: String,
    /// A JSON file of rules: {"rules":[{"engine":"prefill","from":2,"act":"hang"}]}
    #[arg(long)]
    script: Option<PathBuf>,
    /// Counts, but notes nothing: for measuring.
    #[arg(long)]
    quiet: bool,
    /// Threads that serve.
    #[arg(long, default_value_t = 1)]
    threads: usize,
}

#[derive(Clone, Copy, ValueEnum)]
enum Speech {
    Sglang,
    Vllm,
    Llama,
}

fn main() -> Result<()> {
    let args = Args::parse();
    match args.command {
        Some(Command::Load(load)) => runtime(1)?.block_on(load.run()),
        Some(Command::Folder { path }) => {
            let context = Engine::default().context;
            scripted::tokens::write_folder(&path, context).context("the folder")
        }
        Some(Command::Expected { chat, tokens }) => {
            let mut prompt = std::io::read_to_string(std::io::stdin())?;
            if chat {
                prompt = scripted::tokens::chat([("user", prompt.as_str())]);
            }
            print!("{}", scripted::expected_text(&prompt, tokens));
            Ok(())
        }
        None => runtime(args.serve.threads)?.block_on(args.serve.run()),
    }
}

fn runtime(threads: usize) -> std::io::Result<tokio::runtime::Runtime> {
    let mut builder = match threads {
        0 | 1 => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    builder.worker_threads(threads.max(1)).enable_all().build()
}

impl Serve {
    async fn run(self) -> Result<()> {
        let engines = self.engines()?;
        anyhow::ensure!(
            !engines.is_empty(),
            "give --prefill, --decode or --single a port"
        );
        let script = match &self.script {
            None => Script::default(),
            Some(path) => {
                let text = std::fs::read_to_string(path).context("the script")?;
                serde_json::from_str(&text).context("the script")?
            }
        };
        let names: Vec<_> = engines.iter().map(|it| it.name.clone()).collect();
        let fleet = Fleet::with_script(engines, script).await?;
        for name in names {
            println!("{name} {}", fleet.url(&name));
        }
        tokio::signal::ctrl_c().await?;
        Ok(())
    }

    fn engines(&self) -> Result<Vec<Engine>> {
        let all = [
            (Role::Prefill, &self.prefill),
            (Role::Decode, &self.decode),
            (Role::Single, &self.single),
        ];
        let mut engines = Vec::new();
        for (role, ports) in all {
            for (n, port) in ports.iter().enumerate() {
                engines.push(self.engine(role, n, *port)?);
            }
        }
        Ok(engines)
    }

    fn engine(&self, role: Role, n: usize, port: u16) -> Result<Engine> {
        let mut settings: serde_json::Map<_, _> =
            serde_json::from_str(&self.settings).context("--settings")?;
        if role == Role::Prefill {
            let more: serde_json::Map<_, _> =
                serde_json::from_str(&self.prefill_settings).context("--prefill-settings")?;
            settings.extend(more);
        }
        let engine: Engine = serde_json::from_value(settings.into()).context("--settings")?;
        let name = match n {
            0 => role.name().to_owned(),
            n => format!("{}-{}", role.name(), n + 1),
        };
        Ok(Engine {
            name,
            role,
            port,
            dialect: match self.dialect {
                Speech::Sglang => Dialect::Sglang,
                Speech::Vllm => Dialect::Vllm,
                Speech::Llama => Dialect::Llama,
            },
            bootstrap_port: engine.bootstrap_port + n as u16,
            noting: engine.noting && !self.quiet,
            ..engine
        })
    }
}
