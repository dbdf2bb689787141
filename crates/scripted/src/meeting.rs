//! Where two legs meet: SGLang's bootstrap rooms, vLLM's references.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::content::{Seed, copied};
use crate::engine::Role;

/// So many rooms and references are remembered at least.
const MANY: usize = 1 << 20;
/// Prompts that are known whole.
const PROMPTS: usize = 1_000;
/// Tokens by which one text is told from another.
const TOLD_BY: usize = 8;
/// References that were used are forgotten after this when there are many, before it when there are
/// too many.
const LONG_AGO: Duration = Duration::from_secs(60);

/// What is known in a room.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Meet {
    pub(crate) prefill: bool,
    pub(crate) decode: bool,
    /// Prefill has answered with a refusal, of which decode hears nothing.
    pub(crate) refused: bool,
    pub(crate) end: Option<End>,
}

/// How a transfer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Handed over: the answer to this, or garbage.
    Done(Option<Seed>),
    /// One leg has left.
    Failed,
}

pub(crate) type Room = Arc<watch::Sender<Meet>>;

#[derive(Default)]
struct Rooms {
    open: HashMap<u64, Room>,
    /// Which rooms came to which engine, to tell a second time.
    seen: HashSet<(Arc<str>, u64)>,
}

/// What a reference names.
struct Kept {
    /// For which prompt it was made.
    prompt: Seed,
    /// Whose words stand there; none: zeros.
    words: Option<Seed>,
    made: Instant,
    used: bool,
}

/// What a read by a reference gives.
pub(crate) enum Read {
    /// What was computed for this prompt.
    Good(Option<Seed>),
    /// Somebody else's, and why.
    Stale(&'static str, Seed),
    /// Nothing: the engine that made it does not know it.
    Unknown,
}

/// The meeting place of a fleet.
#[derive(Default)]
pub(crate) struct Meeting {
    rooms: Mutex<Rooms>,
    references: Mutex<HashMap<String, Kept>>,
    latest: Mutex<[Option<Seed>; 2]>,
    /// Prompts that engines which copy have read.
    read: Mutex<Prompts>,
}

#[derive(Default)]
struct Prompts {
    known: HashMap<Seed, Arc<[u32]>>,
    /// Newest last.
    last: VecDeque<Seed>,
}

impl Prompts {
    fn get(&self, seed: &Seed) -> Option<&Arc<[u32]>> {
        self.known.get(seed)
    }
}

impl Meeting {
    /// Enters a room, and says whether this engine has seen it before.
    pub(crate) fn enter(&self, engine: &Arc<str>, number: u64, role: Role) -> (Room, bool) {
        let mut rooms = self.rooms.lock().expect("nobody panics with it");
        let again = !rooms.seen.insert((engine.clone(), number));
        let fresh = || Arc::new(watch::Sender::new(Meet::default()));
        let room = rooms.open.entry(number).or_insert_with(fresh).clone();
        room.send_modify(|meet| match role {
            Role::Prefill => meet.prefill = true,
            _ => meet.decode = true,
        });
        (room, again)
    }

    /// Leaves it; the last who leaves closes it.
    pub(crate) fn leave(&self, number: u64, room: Room) {
        let mut rooms = self.rooms.lock().expect("nobody panics with it");
        drop(room);
        // One is the map's own; the other leg would hold a second.
        if rooms
            .open
            .get(&number)
            .is_some_and(|it| Arc::strong_count(it) == 1)
        {
            // Whoever comes later finds what happened, if something did.
            let ended = rooms.open[&number].borrow().end.is_some();
            if ended {
                rooms.open.remove(&number);
            }
        }
        if rooms.seen.len() >= MANY {
            rooms.seen.clear();
        }
    }

    /// Notes a prompt, so that another can be answered with its words.
    pub(crate) fn saw(&self, seed: Seed) {
        let mut latest = self.latest.lock().expect("nobody panics with it");
        if latest[0] != Some(seed) {
            *latest = [Some(seed), latest[0]];
        }
    }

    /// Notes what a prompt is, so that it can be gone on with.
    pub(crate) fn learn(&self, seed: Seed, prompt: &[u32]) {
        let mut read = self.read.lock().expect("nobody panics with it");
        if read.known.len() >= PROMPTS
            && let Some(oldest) = read.last.pop_front()
        {
            read.known.remove(&oldest);
        }
        if read.known.insert(seed, prompt.into()).is_none() {
            read.last.push_back(seed);
        }
    }

    /// How what stands there is gone on with.
    pub(crate) fn goes_on(&self, seed: Seed, n: usize) -> Vec<u32> {
        let read = self.read.lock().expect("nobody panics with it");
        let prompt = read.get(&seed).cloned();
        drop(read);
        prompt.map_or_else(|| seed.tokens(n), |prompt| copied(&prompt, n))
    }

    /// The prompt that was read last and begins otherwise: whose pages an engine that copies still has.
    pub(crate) fn other_text(&self, seed: Seed) -> Seed {
        let read = self.read.lock().expect("nobody panics with it");
        let own = read
            .get(&seed)
            .map_or(&[][..], |it| &it[..it.len().min(TOLD_BY)]);
        let last = read.last.iter().rev();
        let mut others = last.filter(|it| read.get(it).is_some_and(|it| !it.starts_with(own)));
        others.next().copied().unwrap_or(Seed::stranger())
    }

    /// Whose words stand in memory that is not this prompt's.
    pub(crate) fn other_than(&self, seed: Seed) -> Seed {
        let latest = self.latest.lock().expect("nobody panics with it");
        let other = latest.iter().flatten().find(|it| **it != seed);
        other.copied().unwrap_or(Seed::stranger())
    }

    pub(crate) fn keep(&self, id: String, prompt: Seed, words: Option<Seed>) {
        let kept = Kept {
            prompt,
            words,
            made: Instant::now(),
            used: false,
        };
        let mut references = self.references.lock().expect("nobody panics with it");
        if references.len() >= MANY {
            references.retain(|_, it| !it.used || it.made.elapsed() < LONG_AGO);
            if references.len() > MANY / 2 {
                references.retain(|_, it| !it.used);
            }
        }
        references.insert(id, kept);
    }

    pub(crate) fn read(&self, id: &str, prompt: Seed, lease: Duration) -> Read {
        let mut references = self.references.lock().expect("nobody panics with it");
        let Some(kept) = references.get_mut(id) else {
            return Read::Unknown;
        };
        let was_used = std::mem::replace(&mut kept.used, true);
        if was_used {
            return Read::Stale("used before", self.other_than(prompt));
        }
        if kept.made.elapsed() > lease {
            return Read::Stale("lease over", self.other_than(prompt));
        }
        match kept.prompt == prompt {
            true => Read::Good(kept.words),
            false => Read::Stale("another prompt's", kept.prompt),
        }
    }

    /// References that nobody has used.
    pub(crate) fn unused(&self) -> usize {
        let references = self.references.lock().expect("nobody panics with it");
        references.values().filter(|it| !it.used).count()
    }

    /// Forgets what ended, as a new run of an engine does.
    pub(crate) fn clear(&self) {
        self.references
            .lock()
            .expect("nobody panics with it")
            .clear();
        let mut rooms = self.rooms.lock().expect("nobody panics with it");
        rooms.seen.clear();
    }
}
