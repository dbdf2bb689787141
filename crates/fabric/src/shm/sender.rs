//! The writer's side of shared memory: attaching and submitting.

use std::os::fd::{AsFd, OwnedFd};

use pages::WriterLife;
use rustix::fs::SealFlags;

use crate::arena::{ArenaId, BadLanding, Landing, check_runs};
use crate::map::WriteMap;
use crate::sender::{
    AttachError, Endpoint, OnCompletion, Sender, SourcesReleased, SubmissionId, SubmitError, Write,
};
use crate::shm::handover;
use crate::shm::landing::ShmLanding;
use crate::shm::layout::Layout;
use crate::shm::mover::Mover;

/// Attaches to arenas as one life of one writer.
#[derive(Clone, Debug)]
pub struct ShmSender {
    life: WriterLife,
}

impl ShmSender {
    /// A sender that shows itself as `life`.
    pub fn new(life: WriterLife) -> Self {
        Self { life }
    }
}

impl Sender for ShmSender {
    fn attach(
        &self,
        landing: &Landing,
        on_completion: OnCompletion,
    ) -> Result<Box<dyn Endpoint>, AttachError> {
        let landing = ShmLanding::decode(landing)?;
        let layout = Layout::new(landing.shape)
            .ok_or(BadLanding::Malformed("a shape that no arena can have"))?;
        let descriptor = handover::claim(&landing, self.life)?;
        check(&descriptor, &layout)?;
        let map = WriteMap::new(descriptor.as_fd(), layout.len())?;
        drop(descriptor); // the map is all that is needed, and its end must be the end
        let mover = Mover::start(landing.arena, map, layout, on_completion)?;
        Ok(Box::new(ShmEndpoint {
            arena: landing.arena,
            layout,
            last: None,
            mover,
        }))
    }
}

/// A file that is shorter, or could become so, would kill this process at the first write.
pub(crate) fn check(descriptor: &OwnedFd, layout: &Layout) -> Result<(), AttachError> {
    let mismatch = |text: String| Err(AttachError::Mismatch(text));
    let size = rustix::fs::fstat(descriptor)
        .map_err(std::io::Error::from)?
        .st_size;
    if u64::try_from(size).ok() != Some(layout.len() as u64) {
        return mismatch(format!("it has {size} bytes, expected {}", layout.len()));
    }
    let seals = rustix::fs::fcntl_get_seals(descriptor).map_err(std::io::Error::from)?;
    if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
        return mismatch(format!("its size is not sealed ({seals:?})"));
    }
    Ok(())
}

struct ShmEndpoint {
    arena: ArenaId,
    layout: Layout,
    last: Option<SubmissionId>,
    mover: Mover,
}

impl Endpoint for ShmEndpoint {
    fn arena(&self) -> ArenaId {
        self.arena
    }

    fn submit(&mut self, id: SubmissionId, writes: Vec<Write>) -> Result<(), SubmitError> {
        if let Some(last) = self.last.filter(|&last| id <= last) {
            return Err(SubmitError::Reused { got: id, last });
        }
        for write in &writes {
            self.layout.shape.check(write.slot, &write.runs)?;
            check_runs(&write.runs, (*write.source).as_ref().len())?;
        }
        self.mover.submit(id, writes)?;
        self.last = Some(id);
        Ok(())
    }

    fn destroy(self: Box<Self>) -> SourcesReleased {
        let unsettled = self.mover.join();
        SourcesReleased {
            arena: self.arena,
            unsettled,
        }
    }
}
