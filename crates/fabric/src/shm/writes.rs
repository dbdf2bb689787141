//! What a mover does in shared memory: plain copies into the arena.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use crate::arena::check_runs;
use crate::layout::{BATCH_WORD, Layout};
use crate::map::WriteMap;
use crate::mover::{Job, Stop, Teller};
use crate::sender::{SlotWrite, SubmissionId};

/// How often an idle mover asks whether its arena is still open.
const TURN: Duration = Duration::from_secs(1);

/// Carries out submissions until the endpoint is dropped; what did not land. An idle writer whose
/// arena was dropped unmaps it: nobody reads it, and its receiver counts it until then. Whatever
/// else the receiver has said of it may still be on its way, hence one more turn.
pub(crate) fn carry_out(
    map: WriteMap,
    layout: Layout,
    jobs: &Receiver<Job>,
    stop: &Stop,
    mut teller: Teller,
    is_dropped: impl Fn() -> bool,
) -> Vec<SubmissionId> {
    let (mut batches, mut idle) = (0, 0);
    loop {
        let job = match jobs.recv_timeout(TURN) {
            Ok(job) => job,
            Err(RecvTimeoutError::Timeout) if is_dropped() && idle > 0 => break,
            Err(RecvTimeoutError::Timeout) => {
                idle += u32::from(is_dropped());
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => break,
        };
        idle = 0;
        // A source that panics when it is read fails its submission and with it the endpoint.
        let done = catch_unwind(AssertUnwindSafe(|| copy(&map, layout, &job.writes, stop)));
        let landed = done.unwrap_or(false);
        if landed {
            batches += 1;
            map.store_release(BATCH_WORD, batches);
        }
        teller.end(job, landed);
    }
    drop(map);
    teller.fail_the_rest(jobs)
}

/// True if every write was carried out.
fn copy(map: &WriteMap, layout: Layout, writes: &[SlotWrite], stop: &Stop) -> bool {
    if stop.is_set() {
        return false; // a batch without writes, too
    }
    for write in writes {
        if stop.is_set() {
            return false;
        }
        let source: &[u16] = (*write.source).as_ref();
        // A source may give another slice than it gave when the batch was submitted.
        if check_runs(&write.runs, source.len()).is_err() {
            return false;
        }
        for run in write.runs.iter() {
            map.write(layout.offset(write.slot, run.offset), &source[run.range()]);
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::{ArenaId, Shape, WordRun};
    use crate::map::ReadMap;
    use crate::mover::{MovedEndpoint, Mover};
    use crate::sender::{Completion, Endpoint, WriteEnding};
    use pages::Epoch;
    use std::os::fd::AsFd;
    use std::sync::mpsc::{Sender, channel};
    use std::sync::{Arc, Mutex};
    use std::thread::ThreadId;

    const SHAPE: Shape = Shape {
        slots: 3,
        slot_words: 500,
    };

    /// Words that say when the mover reads them, and wait until they may be read.
    struct Held {
        words: Vec<u16>,
        submits: ThreadId,
        reading: Mutex<Sender<()>>,
        go: Mutex<Receiver<()>>,
    }

    impl AsRef<[u16]> for Held {
        fn as_ref(&self) -> &[u16] {
            if std::thread::current().id() != self.submits {
                self.reading.lock().unwrap().send(()).unwrap();
                self.go.lock().unwrap().recv().unwrap();
            }
            &self.words
        }
    }

    /// H-7, H-1: nothing says that a batch has landed before all of it has: neither the batch word,
    /// which a reader pairs with, nor the completion. When the completion is told both the words and
    /// the batch word are there, and no source is held any more.
    #[test]
    fn h7_a_batch_has_landed_when_its_last_word_has() {
        let layout = Layout::new(SHAPE).unwrap();
        let memory = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&memory, layout.len() as u64).unwrap();
        let map = WriteMap::new(memory.as_fd(), layout.len()).unwrap();
        let seen = Arc::new(ReadMap::new(memory.as_fd(), layout.len()).unwrap());
        let word = {
            let seen = seen.clone();
            move |slot: u32, word: usize| {
                let mut one = [0];
                seen.read(layout.offset(slot, word), &mut one);
                one[0]
            }
        };
        let (told, completions) = channel();
        let at_completion = {
            let (seen, word) = (seen.clone(), word.clone());
            move |completion: Completion| {
                let last = SHAPE.slot_words - 1;
                let words = [word(0, 0), word(1, last), word(2, last)];
                let batches = seen.load_acquire(BATCH_WORD);
                told.send((completion.ending, batches, words)).unwrap();
            }
        };
        let arena = ArenaId {
            owner: Epoch::new(9),
            n: 1,
        };
        let mover = Mover::start(
            arena,
            Box::new(at_completion),
            Box::new(|| {}),
            move |jobs, stop, teller| carry_out(map, layout, &jobs, &stop, teller, || false),
        );
        let mut endpoint = MovedEndpoint::new(arena, SHAPE, mover.unwrap());
        let (say, reading) = channel();
        let (go, may_go) = channel();
        let words = vec![7; SHAPE.slot_words];
        let held = Arc::new(Held {
            words: words.clone(),
            submits: std::thread::current().id(),
            reading: Mutex::new(say),
            go: Mutex::new(may_go),
        });
        let whole: Arc<[WordRun]> = Arc::new([WordRun {
            offset: 0,
            words: SHAPE.slot_words,
        }]);
        for batch in 1..4_u64 {
            let free = Arc::new(words.clone());
            let write = |slot, source: crate::WriteSource| SlotWrite {
                source,
                runs: whole.clone(),
                slot,
            };
            let writes = vec![
                write(0, free.clone()),
                write(1, held.clone()),
                write(2, free.clone()),
            ];
            endpoint.submit(SubmissionId(batch), writes).unwrap();
            reading.recv().unwrap(); // the first slot is written, the second is about to be
            assert_eq!(seen.load_acquire(BATCH_WORD), batch - 1, "not all of it");
            assert!(completions.try_recv().is_err(), "not all of it");
            assert!(Arc::strong_count(&free) > 1, "a source that is still read");
            assert_eq!(word(0, 0), 7);
            go.send(()).unwrap();
            let (ending, batches, last) = completions.recv().unwrap();
            assert_eq!(
                (ending, batches, last),
                (WriteEnding::Landed, batch, [7; 3])
            );
            assert_eq!(Arc::strong_count(&free), 1, "a source that is not read");
            // What is there now is not what the next batch is seen by.
            let again = WriteMap::new(memory.as_fd(), layout.len()).unwrap();
            again.write(layout.offset(0, 0), &vec![0; SHAPE.slot_words]);
            again.write(layout.offset(1, 0), &vec![0; SHAPE.slot_words]);
            again.write(layout.offset(2, 0), &vec![0; SHAPE.slot_words]);
        }
        assert!(Box::new(endpoint).destroy().unsettled().is_empty());
    }
}
