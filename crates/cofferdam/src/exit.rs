//! Exit codes, the same for every command, and failures that carry one.

#[cfg(feature = "engine")]
use gguf::fetch::WeightsError;
use std::fmt;
use std::process::ExitCode;

/// How a command ended. The numbers are part of the interface: scripts rely on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Exit {
    /// 0: it did what it was asked to do.
    Good = 0,
    /// 1: something was found or violated: a wrong hash, a part that keeps dying.
    Found = 1,
    /// 2: the request makes no sense as it was made: flags, configuration, limits.
    Usage = 2,
    /// 3: unknown or unreachable: a missing tool, no network, no such peer.
    Unreachable = 3,
}

impl Exit {
    /// What `--help` says about exit codes.
    pub const HELP: &str = "Exit codes: 0 good, 1 found or violated, 2 usage, \
                            3 unknown or unreachable.";

    /// The code for a number that a part reported; an unknown number is [`Exit::Found`].
    pub fn from_number(number: u8) -> Exit {
        match number {
            0 => Exit::Good,
            2 => Exit::Usage,
            3 => Exit::Unreachable,
            _ => Exit::Found,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}

/// A failed command: what is printed, and the exit code.
#[derive(Debug)]
pub struct Failure {
    /// The exit code; never [`Exit::Good`].
    pub exit: Exit,
    /// What went wrong, and what to do about it.
    pub error: anyhow::Error,
}

impl Failure {
    /// A failure with exit code 1.
    pub fn found(error: impl Into<anyhow::Error>) -> Failure {
        Failure {
            exit: Exit::Found,
            error: error.into(),
        }
    }

    /// A failure with exit code 2.
    pub fn usage(error: impl Into<anyhow::Error>) -> Failure {
        Failure {
            exit: Exit::Usage,
            error: error.into(),
        }
    }

    /// A failure with exit code 3.
    pub fn unreachable(error: impl Into<anyhow::Error>) -> Failure {
        Failure {
            exit: Exit::Unreachable,
            error: error.into(),
        }
    }
}

#[cfg(feature = "engine")]
impl From<WeightsError> for Failure {
    fn from(error: WeightsError) -> Failure {
        let exit = match error {
            WeightsError::WrongHash { .. } => Exit::Found,
            WeightsError::NoCache => Exit::Usage,
            _ => Exit::Unreachable,
        };
        Failure {
            exit,
            error: error.into(),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&said_once(&self.error))
    }
}

/// The error and what caused it, `outer: inner`. What stands in a text already is not said again:
/// some errors have their cause both as a source and in their words.
fn said_once(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        match text.is_empty() {
            true => text = cause,
            false if text.contains(&cause) => {}
            false => text = format!("{text}: {cause}"),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn a_cause_is_said_once() {
        let missing = || std::io::Error::from_raw_os_error(2);
        let both = anyhow::Error::from(missing())
            .context("cannot open the log: No such file or directory (os error 2)");
        let failure = Failure::usage(both.context("serve"));
        let text = "serve: cannot open the log: No such file or directory (os error 2)";
        assert_eq!(failure.to_string(), text);
        let other: anyhow::Result<()> = Err(missing()).context("--trace /x");
        let failure = Failure::usage(other.unwrap_err());
        let text = "--trace /x: No such file or directory (os error 2)";
        assert_eq!(failure.to_string(), text);
    }
}
