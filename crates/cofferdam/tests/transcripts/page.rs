//! Blocks of a page: commands that are typed, and what is said to each.

use super::mask::masked;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// Pages are rewritten block by block, from several tests.
static WRITING: Mutex<()> = Mutex::new(());

pub struct Page {
    path: PathBuf,
}

/// One block.
pub struct Transcript {
    pub commands: Vec<Said>,
}

/// A command (its lines joined) and what was said.
#[derive(Default)]
pub struct Said {
    /// As it is run.
    pub typed: String,
    /// As it stands there, with its prompt; empty where only an output is shown.
    lines: String,
    shown: String,
}

impl Page {
    /// A page, by its path from the root.
    pub fn open(path: &str) -> Page {
        let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
        Page {
            path: root.join(path),
        }
    }

    pub fn text(&self) -> String {
        let _whole = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
        self.read()
    }

    /// Whether it has this block.
    pub fn has(&self, name: &str) -> bool {
        self.text().contains(&mark(name))
    }

    fn read(&self) -> String {
        std::fs::read_to_string(&self.path).unwrap()
    }

    pub fn transcript(&self, name: &str) -> Transcript {
        let text = self.text();
        let (start, end) = bounds(&text, name);
        Transcript::parse(&text[start..end])
    }

    /// Compares what was said to each command of a block; writes it, if that is asked for.
    pub fn compare(&self, name: &str, said: &[String]) {
        let _only = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
        let text = self.read();
        let (start, end) = bounds(&text, name);
        let block = Transcript::parse(&text[start..end]);
        assert_eq!(block.commands.len(), said.len(), "transcript {name}");
        if std::env::var_os("TRANSCRIPTS_UPDATE").is_some() {
            let pairs = block.commands.iter().zip(said);
            let new: String = pairs
                .map(|(old, said)| format!("{}{}\n", old.lines, said.trim_end()))
                .collect();
            let new = format!("{}{new}{}", &text[..start], &text[end..]);
            std::fs::write(&self.path, new).unwrap();
            return;
        }
        for (old, said) in block.commands.iter().zip(said) {
            assert_eq!(
                masked(said),
                masked(&old.shown),
                "transcript {name} is old: docs/transcripts writes it anew"
            );
        }
    }
}

/// Where the lines between the fences of a block begin and end.
fn mark(name: &str) -> String {
    format!("<!-- transcript: {name} -->\n```")
}

fn bounds(text: &str, name: &str) -> (usize, usize) {
    let mark = mark(name);
    let at = text
        .find(&mark)
        .unwrap_or_else(|| panic!("no transcript {name}"))
        + mark.len();
    let start = at + text[at..].find('\n').unwrap() + 1;
    let end = start + text[start..].find("```\n").unwrap();
    (start, end)
}

impl Transcript {
    fn parse(block: &str) -> Transcript {
        let mut commands: Vec<Said> = Vec::new();
        let mut goes_on = false;
        if !block.starts_with("$ ") {
            commands.push(Said::default());
        }
        for line in block.lines() {
            let begins = line.strip_prefix("$ ");
            if begins.is_some() {
                commands.push(Said::default());
            }
            let last = commands.last_mut().expect("one was pushed");
            if begins.is_some() || goes_on {
                let typed = begins.unwrap_or(line);
                last.lines += &format!("{line}\n");
                goes_on = typed.ends_with('\\');
                last.typed += typed.trim_end_matches('\\');
            } else {
                last.shown += &format!("{line}\n");
            }
        }
        Transcript { commands }
    }
}
