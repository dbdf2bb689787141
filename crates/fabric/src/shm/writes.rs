//! What a mover does in shared memory: plain copies into the arena.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use crate::arena::check_runs;
use crate::layout::{BATCH_WORD, Layout};
use crate::map::WriteMap;
use crate::mover::{Job, Stop, Teller};
use crate::sender::{SubmissionId, Write};

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
fn copy(map: &WriteMap, layout: Layout, writes: &[Write], stop: &Stop) -> bool {
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
