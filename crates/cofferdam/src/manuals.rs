//! Manual pages and shell completions, made from what can be typed, where packages have them.

use crate::args::Cli;
use crate::exit::Failure;
use anyhow::Context;
use clap::CommandFactory;
use clap_complete::Shell;
use std::fs;
use std::path::Path;

/// Shells, the directory of each below `share`, and the name of the file in it.
const SHELLS: [(Shell, &str, &str); 3] = [
    (Shell::Bash, "bash-completion/completions", "cofferdam"),
    (Shell::Zsh, "zsh/site-functions", "_cofferdam"),
    (Shell::Fish, "fish/vendor_completions.d", "cofferdam.fish"),
];

pub(crate) fn write(directory: &Path) -> Result<(), Failure> {
    all(directory)
        .with_context(|| directory.display().to_string())
        .map_err(Failure::found)
}

fn all(directory: &Path) -> anyhow::Result<()> {
    let share = directory.join("share");
    for (shell, place, name) in SHELLS {
        let place = share.join(place);
        fs::create_dir_all(&place)?;
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut Cli::command(), "cofferdam", &mut script);
        fs::write(place.join(name), script)?;
    }
    let pages = share.join("man/man1");
    fs::create_dir_all(&pages)?;
    clap_mangen::generate_to(Cli::command(), &pages)?;
    Ok(())
}
