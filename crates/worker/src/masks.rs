//! Which tokens may come next, for choices that are held to a form: computed on threads of their own.
//!
//! The engine says what it has sampled and goes on at once; the mask of the next token is computed while
//! the next forward pass runs. Where a pass ends first, the choice keeps its logits and sits out until
//! its mask is there, so that nobody else ever waits for a form. What one mask may cost is bounded
//! (crate `grammar`); a choice whose mask cannot be had ends with its request.

use crate::WorkerError;
use grammar::{Grammars, Mask, STACK_BYTES, Walk};
use handoff::NoToken;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokenizer::Tokenizer;
use wire::Form;

/// Threads that compute masks: two, so that a form that costs much does not hold up all others.
const THREADS: usize = 2;
/// Longest time for one mask. What it may compute is bounded too, and far below this.
const MASK_MAX: Duration = Duration::from_secs(5);

/// The form of a request, compiled once for all its choices.
#[derive(Debug)]
pub(crate) struct Held {
    form: Form,
    start: OnceLock<Result<Walk, Lost>>,
}

impl Held {
    pub(crate) fn new(form: Form) -> Self {
        let start = OnceLock::new();
        Self { form, start }
    }
}

/// What is known of the mask of a choice's next token.
#[derive(Clone, Debug)]
pub(crate) enum Next {
    /// It is being computed.
    Coming,
    /// These tokens may come.
    Mask(Arc<Mask>),
    /// None can be had: the choice cannot go on.
    Never(Lost),
}

/// Why a choice cannot go on.
#[derive(Clone, Debug)]
pub(crate) struct Lost {
    /// For the log.
    pub(crate) why: String,
    /// Whose fault it is: the form's, or ours.
    pub(crate) fault: NoToken,
}

impl Lost {
    fn form(why: impl ToString) -> Self {
        let fault = NoToken::Form;
        Self {
            why: why.to_string(),
            fault,
        }
    }

    fn ours(why: impl ToString) -> Self {
        let fault = NoToken::Compute;
        Self {
            why: why.to_string(),
            fault,
        }
    }
}

/// One choice's place in its form.
#[derive(Debug)]
pub(crate) struct Seat {
    held: Arc<Held>,
    /// Taken by one thread at a time, for as long as it computes.
    walk: Mutex<Option<Walk>>,
    talk: Mutex<Talk>,
}

/// What engine and threads tell each other.
#[derive(Debug)]
struct Talk {
    said: Vec<u32>,
    next: Next,
}

impl Seat {
    pub(crate) fn next(&self) -> Next {
        lock(&self.talk).next.clone()
    }
}

/// The threads' handle. Their queue has at most one entry for each choice that runs.
pub(crate) struct Masks {
    queue: Option<Sender<Arc<Seat>>>,
    threads: Vec<JoinHandle<()>>,
}

impl Masks {
    /// `wake` is called when a mask has come, by whichever thread.
    pub(crate) fn start(
        tokenizer: &Tokenizer,
        wake: impl Fn() + Clone + Send + 'static,
    ) -> Result<Self, WorkerError> {
        let (queue, seats) = channel();
        let seats = Arc::new(Mutex::new(seats));
        // Read when the first form comes.
        let grammars = Arc::new(OnceLock::new());
        let one = |n| {
            let (seats, grammars) = (seats.clone(), grammars.clone());
            let (tokenizer, wake) = (tokenizer.clone(), wake.clone());
            let thread = std::thread::Builder::new().name(format!("masks-{n}"));
            thread.stack_size(STACK_BYTES).spawn(move || {
                let read = || Grammars::new(&tokenizer).map_err(|error| error.to_string());
                work(&seats, || grammars.get_or_init(read).as_ref(), wake);
            })
        };
        let threads: Result<_, _> = (0..THREADS).map(one).collect();
        Ok(Self {
            queue: Some(queue),
            threads: threads.map_err(|source| WorkerError::System {
                what: "cannot start the threads of masks",
                source,
            })?,
        })
    }

    /// A place in a form, where `said` has been said.
    pub(crate) fn seat(&self, held: &Arc<Held>, said: &[u32]) -> Arc<Seat> {
        let talk = Talk {
            said: said.to_vec(),
            next: Next::Coming,
        };
        let seat = Arc::new(Seat {
            held: held.clone(),
            walk: Mutex::new(None),
            talk: Mutex::new(talk),
        });
        self.put(seat.clone());
        seat
    }

    /// A token was sampled there.
    pub(crate) fn took(&self, seat: &Arc<Seat>, token: u32) {
        let mut talk = lock(&seat.talk);
        talk.said.push(token);
        talk.next = Next::Coming;
        drop(talk);
        self.put(seat.clone());
    }

    fn put(&self, seat: Arc<Seat>) {
        let sent = self.queue.as_ref().map(|queue| queue.send(seat));
        if let Some(Err(unsent)) = sent {
            lock(&unsent.0.talk).next = Next::Never(Lost::ours("its threads have ended"));
        }
    }
}

impl Drop for Masks {
    fn drop(&mut self) {
        drop(self.queue.take());
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn work<'g>(
    seats: &Mutex<Receiver<Arc<Seat>>>,
    grammars: impl Fn() -> Result<&'g Grammars, &'g String>,
    wake: impl Fn(),
) {
    loop {
        let next = lock(seats).recv();
        let Ok(seat) = next else {
            return;
        };
        // Nobody else holds it: its choice has ended.
        if Arc::strong_count(&seat) == 1 {
            continue;
        }
        let next = match grammars() {
            // What panics ends its request alone.
            Ok(grammars) => catch_unwind(AssertUnwindSafe(|| advance(&seat, grammars)))
                .unwrap_or_else(|_| Err(Lost::ours("its mask cannot be computed"))),
            Err(problem) => Err(Lost::ours(problem)),
        };
        let next = next.map_or_else(Next::Never, |mask| Next::Mask(Arc::new(mask)));
        lock(&seat.talk).next = next;
        wake();
    }
}

/// Takes what was said since, and computes what may come next.
fn advance(seat: &Seat, grammars: &Grammars) -> Result<Mask, Lost> {
    let mut walk = lock(&seat.walk);
    let said = std::mem::take(&mut lock(&seat.talk).said);
    if walk.is_none() {
        let begin = || grammars.begin(&seat.held.form).map_err(Lost::form);
        *walk = Some(seat.held.start.get_or_init(begin).clone()?);
    }
    let Some(walk) = walk.as_mut() else {
        return Err(Lost::ours("no beginning"));
    };
    let begun = Instant::now();
    let taken = walk.take(&said).and_then(|()| walk.mask());
    let mask = taken.map_err(Lost::form)?;
    match begun.elapsed() {
        took if took > MASK_MAX => Err(Lost::ours(format!("one mask took {took:?}"))),
        _ => Ok(mask),
    }
}

/// A thread that has panicked has left nothing half done that is read again.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
