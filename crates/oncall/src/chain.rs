//! Lines that name the one before by its SHA-256: whoever has the last line's can tell whether any
//! before it was changed, left out or put in, with nothing but `sha256sum`.

use crate::entry::{Dated, Entry};
use crate::times::{self, Ms};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// What stands for the line before the first one.
pub const NONE: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// A line as it is exported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChainLine {
    /// Its number, from 1.
    pub seq: u64,
    /// When, in UTC.
    pub at: String,
    /// Drawn when the entry was made: what is written again after an error is not written twice.
    pub id: String,
    /// SHA-256 of the line before, in hex.
    pub prev: String,
    /// What.
    #[serde(flatten)]
    pub entry: Entry,
}

impl ChainLine {
    /// The line after another, whose number and hash are given.
    pub fn after(last: (u64, &str), id: &str, at: Ms, entry: Entry) -> Self {
        let (seq, prev) = last;
        Self {
            seq: seq + 1,
            at: times::written(at),
            id: id.to_owned(),
            prev: prev.to_owned(),
            entry,
        }
    }

    /// As it is written.
    pub fn text(&self) -> String {
        serde_json::to_string(self).expect("made of strings and numbers")
    }

    /// The entry and its moment.
    pub fn dated(self) -> Result<Dated, String> {
        let at = times::read(&self.at);
        let at = at.ok_or_else(|| format!("{:?} is no moment", self.at))?;
        Ok(Dated {
            at,
            entry: self.entry,
        })
    }
}

/// SHA-256 of a line's text, without what ends it.
pub fn hash(text: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What is wrong with lines that are no chain.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {why}")]
pub struct ChainBroken {
    /// Counted from 1.
    pub line: u64,
    /// What was expected, and what is there.
    pub why: String,
}

/// Checks lines one after the other.
#[derive(Clone, Debug)]
pub struct Verifier {
    read: u64,
    head: String,
}

impl Default for Verifier {
    fn default() -> Self {
        Self {
            read: 0,
            head: NONE.to_owned(),
        }
    }
}

impl Verifier {
    /// The next line, if it is what must come next.
    ///
    /// # Errors
    /// What is wrong with it; then nothing behind it is worth anything either.
    pub fn next(&mut self, text: &str) -> Result<ChainLine, ChainBroken> {
        let number = self.read + 1;
        let wrong = |why: String| ChainBroken { line: number, why };
        let line: ChainLine =
            serde_json::from_str(text).map_err(|why| wrong(format!("it is no line: {why}")))?;
        if line.seq != number {
            let there = line.seq;
            return Err(wrong(format!(
                "expected number {number}, there is {there}: lines were left out, put in or moved"
            )));
        }
        if line.prev != self.head {
            return Err(wrong(format!(
                "it names {} as the line before, whose hash is {}: one of them was changed",
                line.prev, self.head
            )));
        }
        if line.text() != text {
            let why = "it has more in it than a line of this journal has, or in another form";
            return Err(wrong(why.to_owned()));
        }
        self.read = number;
        self.head = hash(text);
        Ok(line)
    }

    /// How many lines were good.
    pub fn read(&self) -> u64 {
        self.read
    }

    /// The hash of the last one.
    pub fn head(&self) -> &str {
        &self.head
    }
}
