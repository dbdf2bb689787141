//! The thread that copies batches out of landing arenas into private pages and checksums the
//! copies (law: the reader verifies), while the engine computes.

use crate::driver::Inbox;
use crate::{FailStop, WorkerError};
use fabric::{Reader, WordRun};
use handoff::HandoffId;
use handoff::decode::CopyPage;
use model::{KvLayout, PageBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// A page of a batch and its memory, checked out for the copy.
type Target = (CopyPage, PageBuf);

/// A batch to copy.
pub(super) struct Copy {
    pub(super) handoff: HandoffId,
    pub(super) rank: u16,
    pub(super) batch: u32,
    /// None if the arena is gone already.
    pub(super) reader: Option<Arc<dyn Reader>>,
    pub(super) targets: Vec<Target>,
}

/// A copy has ended.
pub(crate) struct Copied {
    pub(super) handoff: HandoffId,
    pub(super) rank: u16,
    pub(super) batch: u32,
    /// Checksums of the copies, in order; none if the arena could not be read.
    pub(super) checksums: Option<Vec<u32>>,
    pub(super) targets: Vec<Target>,
}

/// The thread's handle. Its queue is bounded by what the machine has asked for: at most one copy
/// for each slot of every arena.
pub(super) struct Copier {
    queue: Option<Sender<Copy>>,
    thread: Option<JoinHandle<()>>,
}

impl Copier {
    pub(super) fn start(layout: KvLayout, inbox: Inbox<Copied>) -> Result<Self, WorkerError> {
        let (queue, copies) = channel();
        let thread = std::thread::Builder::new().name("copier".into());
        let thread = thread
            .spawn(move || work(&layout, &copies, &inbox))
            .map_err(|source| WorkerError::System {
                what: "cannot start the copier's thread",
                source,
            })?;
        Ok(Self {
            queue: Some(queue),
            thread: Some(thread),
        })
    }

    pub(super) fn begin(&self, copy: Copy) -> Result<(), WorkerError> {
        let sent = self.queue.as_ref().map(|queue| queue.send(copy));
        match sent {
            Some(Ok(())) => Ok(()),
            // It panicked with pages in its hands; they cannot be given back.
            _ => Err(FailStop::Thread("the copier's thread").into()),
        }
    }
}

impl Drop for Copier {
    fn drop(&mut self) {
        drop(self.queue.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn work(layout: &KvLayout, copies: &Receiver<Copy>, inbox: &Inbox<Copied>) {
    let runs: Vec<Vec<WordRun>> = (0..=layout.page_size as usize)
        .map(|filled| crate::runs_of(layout, filled))
        .collect();
    while let Ok(copy) = copies.recv() {
        let Copy {
            handoff,
            rank,
            batch,
            reader,
            mut targets,
        } = copy;
        let checksums = reader.and_then(|reader| {
            let copied = targets.iter_mut().map(|(page, buf)| {
                let runs = runs.get(usize::from(page.filled))?;
                match reader.copy_out(page.slot, runs, buf.words_mut()) {
                    Ok(checksum) => Some(checksum),
                    Err(error) => {
                        tracing::warn!(%handoff, batch, %error, "a batch could not be copied");
                        None
                    }
                }
            });
            copied.collect()
        });
        inbox.report(Copied {
            handoff,
            rank,
            batch,
            checksums,
            targets,
        });
    }
}
