//! `cofferdam watch`: is it too fast to be true?
//!
//! A log that has ended is read twice ([`batch`]), one that grows is followed ([`follow`]); what is
//! learned and judged is crate `watch`'s.

pub mod args;
mod batch;
mod follow;
mod format;
pub(crate) mod lines;
mod memory;
mod names;
mod passed_over;
mod report;
mod scrape;
mod tail;

use crate::exit::{Exit, Failure};
use crate::files;
use ::watch::{Fields, Settings};
use anyhow::{Context, anyhow};
use args::Watch;
use format::Format;
use serde::Deserialize;
use std::path::Path;

/// Bytes of a configuration that are read.
const CONFIG_MAX: u64 = 1 << 20;

/// Runs it; the exit code is what was found.
pub(crate) fn run(args: &Watch) -> Result<Exit, Failure> {
    if args.rules {
        return files::say(::watch::rules::PROMETHEUS);
    }
    let plan = Plan::new(args)?;
    if args.follow || !args.scrape.is_empty() {
        return follow::run(args, plan);
    }
    batch::run(args, plan)
}

/// How lines are read, and how requests are judged.
struct Plan {
    format: Format,
    settings: Settings,
}

/// The configuration file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    fields: Option<Fields>,
    #[serde(default)]
    settings: Settings,
}

impl Plan {
    fn new(args: &Watch) -> Result<Plan, Failure> {
        let file = match &args.config {
            Some(path) => read(path)
                .with_context(|| format!("--config {}", path.display()))
                .map_err(Failure::usage)?,
            None => File {
                fields: None,
                settings: Settings::default(),
            },
        };
        let mut settings = file.settings;
        settings.tolerance = args.tolerance.unwrap_or(settings.tolerance);
        let limits = args.limit.iter();
        settings
            .limits
            .extend(limits.map(|it| (it.model.clone(), it.tokens)));
        settings
            .test_tenants
            .extend(args.test_tenant.iter().cloned());
        settings
            .check()
            .map_err(|why| Failure::usage(anyhow!(why)))?;
        Ok(Plan {
            format: Format::new(args.preset.as_deref(), file.fields, &args.log)?,
            settings,
        })
    }
}

fn read(path: &Path) -> anyhow::Result<File> {
    Ok(toml::from_str(&files::read(path, CONFIG_MAX)?)?)
}
