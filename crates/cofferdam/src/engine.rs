//! What every command needs that runs the engine: weights, logs, a word to its supervisor.

use crate::args::{Common, Part};
use crate::exit::{Exit, Failure};
use crate::supervisor::report::{Refused, Report};
use crate::{lifeline, logs};
use anyhow::{Context, anyhow};
use gguf::fetch::Fetcher;
use std::path::{Path, PathBuf};

/// Runs a part; if it fails, its supervisor is told why, and says so: then this is the exit code alone.
///
/// # Errors
/// See [`Failure`].
pub fn run_part(
    common: &Common,
    part: &Part,
    run: impl FnOnce(&Path) -> Result<(), Failure>,
) -> Result<Exit, Failure> {
    run_part_on(common, part, weights, run)
}

/// [`run_part`], on what `find` finds for these settings.
pub(crate) fn run_part_on(
    common: &Common,
    part: &Part,
    find: impl FnOnce(&Common) -> Result<PathBuf, Failure>,
    run: impl FnOnce(&Path) -> Result<(), Failure>,
) -> Result<Exit, Failure> {
    if part.until_stdin_closes {
        lifeline::end_with_parent()
            .context("cannot watch the parent")
            .map_err(Failure::found)?;
    }
    logs::start(common.log_format);
    let Err(failure) = find(common).and_then(|weights| run(&weights)) else {
        return Ok(Exit::Good);
    };
    let refused = Refused {
        message: failure.to_string(),
        exit: failure.exit as u8,
    };
    match Report::Refused(refused).say() {
        Ok(()) if part.until_stdin_closes => Ok(failure.exit),
        _ => Err(failure),
    }
}

/// The weights that were named, or the default ones.
pub(crate) fn weights(common: &Common) -> Result<PathBuf, Failure> {
    let Some(model) = &common.model else {
        return Ok(Fetcher::new()?.ensure()?);
    };
    if model.is_file() || model.join("config.json").is_file() {
        return Ok(model.to_owned());
    }
    let why = match model.is_dir() {
        true => in_directory(model),
        false => "there is no such file".to_owned(),
    };
    Err(Failure::usage(anyhow!(
        "--model {}: {why}",
        model.display()
    )))
}

/// Whatever has a tokenizer: a GGUF file, or a folder as Hugging Face has them.
pub(crate) fn tokenizer(common: &Common) -> Result<PathBuf, Failure> {
    let folder = common.model.as_ref().filter(|model| model.is_dir());
    folder.map_or_else(|| weights(common), |folder| Ok(folder.clone()))
}

/// Names that are suggested at most.
const SUGGESTED_MAX: usize = 3;
/// Entries of a directory that are looked at for a suggestion.
const ENTRIES_MAX: usize = 1000;

/// A directory where a file is wanted: which of its files may be meant.
fn in_directory(directory: &Path) -> String {
    let entries = std::fs::read_dir(directory).into_iter().flatten();
    let paths = entries
        .take(ENTRIES_MAX)
        .flatten()
        .map(|entry| entry.path());
    let of = |kind: &str, paths: &[PathBuf]| {
        let is = |path: &&PathBuf| path.extension().is_some_and(|it| it == kind);
        let mut found: Vec<String> = paths
            .iter()
            .filter(is)
            .map(|path| path.display().to_string())
            .collect();
        found.sort();
        found
    };
    let paths: Vec<PathBuf> = paths.collect();
    let (ours, theirs) = (of("gguf", &paths), of("safetensors", &paths));
    match (ours.len(), theirs.len()) {
        (0, 0) => {
            "is a directory with no .gguf file in it and no config.json; a .gguf file or a folder \
                   as Hugging Face ships it is wanted"
                .into()
        }
        (0, _) => {
            "has .safetensors files and no config.json, which says what they are; fetch the whole \
                   folder of the model"
                .into()
        }
        (n, _) => {
            let some = ours[..n.min(SUGGESTED_MAX)].join(", ");
            format!("is a directory; one .gguf file is wanted, such as {some}")
        }
    }
}
