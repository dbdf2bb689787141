//! The holder of the board: hears which phase every attempt has reached, and may do something at
//! that very moment, before the attempt goes on.

use super::board::BOARD;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A phase of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Announced to decode, not computed yet.
    Queued,
    /// It has its ticket and is computed.
    Prefill,
    /// Pages are on their way.
    Transfer,
    /// Verified and sealed; no token has left.
    Committed,
    /// Tokens come; nobody has heard one, because the answer is not streamed.
    Decoding,
    /// Its client has heard some tokens.
    Streaming,
}

impl Phase {
    /// All of them, in order.
    pub const ALL: [Phase; 6] = [
        Phase::Queued,
        Phase::Prefill,
        Phase::Transfer,
        Phase::Committed,
        Phase::Decoding,
        Phase::Streaming,
    ];

    /// What the board hears when it begins.
    fn word(self) -> &'static str {
        match self {
            Phase::Queued => "expected",
            Phase::Prefill => "ticketed",
            Phase::Transfer => "transfer",
            Phase::Committed => "committed",
            Phase::Decoding => "decoding",
            Phase::Streaming => "streaming",
        }
    }
}

/// A line of the board.
#[derive(Clone, Debug)]
pub struct Said {
    /// The process that says so.
    pub pid: u32,
    /// The word.
    pub word: String,
    /// The attempt.
    pub attempt: String,
}

type Act = Box<dyn FnOnce(&Said) + Send>;

struct Trigger {
    phase: Phase,
    /// Attempts of that phase to let pass before.
    skip: u64,
    act: Act,
}

#[derive(Default)]
struct State {
    trigger: Option<Trigger>,
    /// Where the trigger found its attempt.
    hit: Option<Said>,
    /// Whether each attempt's client streams: an odd maximum of tokens says so.
    streams: BTreeMap<String, bool>,
    /// Words after which nobody is answered until they are released.
    held: Vec<String>,
    holding: Vec<Said>,
}

/// See the module's documentation.
pub struct Holder {
    path: PathBuf,
    shared: Arc<(Mutex<State>, Condvar)>,
}

impl Holder {
    /// Holds a board with a socket in this directory.
    pub fn new(dir: &Path) -> std::io::Result<Self> {
        let path = dir.join("board.sock");
        let listener = UnixListener::bind(&path)?;
        let shared = Arc::new((Mutex::default(), Condvar::new()));
        let heard = shared.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let heard = heard.clone();
                std::thread::spawn(move || listen(&stream, &heard));
            }
        });
        Ok(Self { path, shared })
    }

    /// What a process that is to find the board needs in its environment.
    pub fn variable(&self) -> (&'static str, &Path) {
        (BOARD, &self.path)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does this when an attempt reaches that phase, after `skip` others have.
    pub fn arm(&self, phase: Phase, skip: u64, act: impl FnOnce(&Said) + Send + 'static) {
        let mut state = self.state();
        state.hit = None;
        state.trigger = Some(Trigger {
            phase,
            skip,
            act: Box::new(act),
        });
    }

    /// Takes the trigger back; where it hit, if it did.
    pub fn disarm(&self) -> Option<Said> {
        let mut state = self.state();
        state.trigger = None;
        state.hit.take()
    }

    /// The next one who says this word waits until it is released.
    pub fn hold(&self, word: &str) {
        self.state().held.push(word.to_owned());
    }

    /// Waits until somebody waits.
    pub fn held(&self, patience: Duration) -> Option<Said> {
        let state = self.state();
        let waited = self
            .shared
            .1
            .wait_timeout_while(state, patience, |state| state.holding.is_empty());
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.holding.first().cloned()
    }

    /// Everybody goes on.
    pub fn release(&self) {
        let mut state = self.state();
        state.held.clear();
        state.holding.clear();
        drop(state);
        self.shared.1.notify_all();
    }
}

fn listen(stream: &UnixStream, (state, changed): &(Mutex<State>, Condvar)) {
    let mut out = stream;
    for line in BufReader::new(stream).lines().map_while(Result::ok) {
        if let Ok(line) = serde_json::from_str::<Value>(&line) {
            let said = Said {
                pid: line["pid"].as_u64().unwrap_or_default() as u32,
                word: line["phase"].as_str().unwrap_or_default().to_owned(),
                attempt: line["attempt"].as_str().unwrap_or_default().to_owned(),
            };
            let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
            let act = heard(&mut state, &said, &line["more"]);
            if let Some(at) = state.held.iter().position(|word| *word == said.word) {
                state.held.remove(at);
                state.holding.push(said.clone());
                changed.notify_all();
                let released = changed.wait_while(state, |state| !state.holding.is_empty());
                state = released.unwrap_or_else(PoisonError::into_inner);
            }
            drop(state);
            if let Some(act) = act {
                act(&said);
            }
        }
        if out.write_all(b"ok\n").is_err() {
            return;
        }
    }
}

fn heard(state: &mut State, said: &Said, more: &Value) -> Option<Act> {
    if said.word == "expected" {
        let streams = more["max_new"].as_u64().is_some_and(|most| most % 2 == 1);
        state.streams.insert(said.attempt.clone(), streams);
    }
    let streams = state.streams.get(&said.attempt).copied();
    if said.word == "ended" {
        state.streams.remove(&said.attempt);
    }
    let trigger = state.trigger.as_mut()?;
    let fits = said.word == trigger.phase.word()
        && match trigger.phase {
            Phase::Decoding => streams == Some(false),
            Phase::Streaming => streams == Some(true),
            _ => true,
        };
    if !fits {
        return None;
    }
    if trigger.skip > 0 {
        trigger.skip -= 1;
        return None;
    }
    state.hit = Some(said.clone());
    state.trigger.take().map(|trigger| trigger.act)
}
