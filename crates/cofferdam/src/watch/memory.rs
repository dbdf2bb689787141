//! What is kept between two runs: where the log was left, and what was learned.

use super::Plan;
use crate::exit::Failure;
use crate::files;
use ::watch::Detector;
use anyhow::Context;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Where the reading of a log that grows has come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Position {
    /// Of the file: a log that was rotated is another.
    pub inode: u64,
    /// Bytes read, up to the end of a line.
    pub offset: u64,
}

/// What an earlier run has kept in this file, or a new beginning.
pub(super) fn load(plan: &Plan, path: Option<&Path>) -> Result<(Position, Detector), Failure> {
    let settings = plan.settings.clone();
    let Some(path) = path.filter(|it| it.exists()) else {
        return Ok((Position::default(), Detector::new(settings)));
    };
    let load = || -> anyhow::Result<(Position, Detector)> {
        let text = files::read(path, ::watch::state::STATE_MAX)?;
        let (position, learned) = text.split_once('\n').context("not a state of watch")?;
        let position = serde_json::from_str(position).context("not a state of watch")?;
        Ok((position, Detector::restore(settings, learned)?))
    };
    let loaded = load().with_context(|| format!("--state {}", path.display()));
    loaded.map_err(Failure::usage)
}

/// Keeps it, whole or not at all.
pub(super) fn keep(path: &Path, position: Position, watch: &Detector) -> Result<(), Failure> {
    let position = serde_json::to_string(&position).expect("two numbers");
    files::replace(path, &format!("{position}\n{}", watch.save()))
}
