//! `reproduce incident`: everything off, then each safeguard alone, then all of them.

use super::guards::{ALL, Expected, Guards, Safeguard};
use super::html;
use super::record;
use super::run::{Outcome, run};
use super::scenario::{Scenario, Size};
use super::stack::{Stack, served_text};
use super::table;
use anyhow::Context;
use clap::Args;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Settings.
#[derive(Debug, Args)]
pub(super) struct Incident {
    /// How large pools and prompts are: small takes about a minute, show several.
    #[arg(long, value_enum, default_value_t = Size::Small)]
    size: Size,
    /// How many of B's over-long prompts are asked with every safeguard off.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u8).range(1..=8))]
    prompts: u8,
    /// Only start the server with every safeguard off and let A ask; then B's request can be sent
    /// by hand with the command that is printed. Ends when standard input does, or at Enter.
    #[arg(long, conflicts_with_all = ["report", "json", "prompts"])]
    hold: bool,
    /// The weights, a GGUF file; SmolLM2-135M-Instruct is fetched if this is left out.
    #[arg(long, env = "COFFERDAM_MODEL")]
    model: Option<PathBuf>,
    /// Where a report for a browser is written, one file.
    #[arg(long)]
    report: Option<PathBuf>,
    /// Where everything that was seen is written as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// Everything that was seen.
pub(super) struct Story {
    pub scenario: Scenario,
    /// Name of the weights' file.
    pub model: String,
    /// Every safeguard off.
    pub none: Outcome,
    /// Each alone.
    pub alone: Vec<(Safeguard, Outcome)>,
    /// All of them but the first, which would not let it start.
    pub all: Outcome,
}

impl Incident {
    /// Runs it.
    pub(super) fn run(self) -> ExitCode {
        match self.reproduce() {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => {
                eprintln!("error: it went otherwise than docs/incident.md says: see the table");
                ExitCode::FAILURE
            }
            Err(error) => {
                eprintln!("error: {error:#}");
                ExitCode::from(3)
            }
        }
    }

    fn reproduce(&self) -> anyhow::Result<bool> {
        let model = match &self.model {
            Some(model) => model.clone(),
            None => gguf::fetch::Fetcher::new()?.ensure()?,
        };
        let text = served_text(&model).with_context(|| model.display().to_string())?;
        let mut scenario = Scenario::new(self.size, &text)?;
        if self.hold {
            return hold(&model, &scenario);
        }
        scenario.over.truncate(self.prompts.into());
        table::opening(&scenario);
        let story = Story::live(&model, scenario)?;
        table::closing(&story);
        if let Some(path) = &self.json {
            write(path, &format!("{:#}\n", record::of(&story)))?;
        }
        if let Some(path) = &self.report {
            write(path, &html::page(&story))?;
            println!("report: {}", path.display());
        }
        Ok(story.is_as_documented())
    }
}

/// Lets somebody else be tenant B.
fn hold(model: &Path, scenario: &Scenario) -> anyhow::Result<bool> {
    let stack = Stack::start(model, scenario.size.shape(), Guards::NONE)?;
    let (fill, over) = (&scenario.fill, &scenario.over[0]);
    let filled = stack.api.post(fill.path, fill.tenant.key(), &fill.body)?;
    anyhow::ensure!(filled.status == 200, "tenant A: {}", filled.body);
    let file = tempfile::NamedTempFile::with_suffix(".json")?;
    std::fs::write(file.path(), over.body.to_string())?;
    println!(
        "Tenant A has been answered. As tenant B, {} tokens:\n\n  curl http://{}{} -H \
         'authorization: Bearer {}' \\\n    -H 'content-type: application/json' -d @{}\n\nEnter \
         ends the server.",
        over.tokens,
        stack.api.addr,
        over.path,
        over.tenant.key(),
        file.path().display()
    );
    std::io::stdin().read_line(&mut String::new())?;
    stack.end()?;
    Ok(true)
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

impl Story {
    fn live(model: &Path, scenario: Scenario) -> anyhow::Result<Self> {
        let everything = scenario.over.len();
        let none = run(model, &scenario, Guards::NONE, everything)?;
        table::incident(&scenario, &none);
        let mut alone = Vec::new();
        for guard in ALL {
            let outcome = run(model, &scenario, Guards::only(guard), 1)?;
            table::progress(guard, &outcome);
            alone.push((guard, outcome));
        }
        let all = run(
            model,
            &scenario,
            Guards::all_but(Safeguard::Start),
            everything,
        )?;
        let name = model.file_name().unwrap_or_default();
        Ok(Self {
            model: name.to_string_lossy().into_owned(),
            scenario,
            none,
            alone,
            all,
        })
    }

    /// Whether every cell of the table is what the documentation says, and what is good stayed
    /// good in every row.
    fn is_as_documented(&self) -> bool {
        let good = |outcome: &Outcome| {
            let same = outcome.control == self.none.control && outcome.fill == self.none.fill;
            outcome.refused.is_some() || same
        };
        let over_the_edge = Safeguard::Edge.expected();
        self.none.is(Expected::Leak)
            && self.alone.iter().all(|(guard, it)| it.is(guard.expected()))
            && self.all.is(over_the_edge)
            && self.alone.iter().all(|(_, it)| good(it))
            && good(&self.all)
    }
}
