//! Where the processes under attack say which phase an attempt has reached. Whoever holds the board
//! answers each line; until then the message that began the phase is held, so that a kill in that
//! phase is a kill in that phase.

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

/// Variable with the path of the board's socket.
pub(crate) const BOARD: &str = "ATTACK_BOARD";

/// The way to the board, if somebody holds one.
#[derive(Debug)]
pub(crate) struct Board(Option<PathBuf>);

impl Board {
    /// Where the variable says.
    pub(crate) fn from_environment() -> Self {
        Self(std::env::var_os(BOARD).map(PathBuf::from))
    }

    /// Says that this attempt has reached this phase, and waits until the board has heard it.
    pub(crate) fn say(&self, phase: &str, attempt: &str, more: &Value) {
        // A connection for each word: whoever is held holds up nobody else of this process. A board
        // that is gone holds up nobody at all.
        let Some(path) = &self.0 else { return };
        let Ok(mut stream) = UnixStream::connect(path) else {
            return;
        };
        let line = json!({
            "pid": std::process::id(), "phase": phase, "attempt": attempt, "more": more,
        });
        if writeln!(stream, "{line}").is_ok() {
            let mut heard = String::new();
            let _ = BufReader::new(stream).read_line(&mut heard);
        }
    }
}
