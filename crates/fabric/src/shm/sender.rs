//! The writer's side of shared memory: attaching and submitting.

use std::os::fd::{AsFd, OwnedFd};

use pages::WriterLife;
use rustix::fs::SealFlags;

use crate::arena::{BadLanding, Landing};
use crate::layout::Layout;
use crate::map::WriteMap;
use crate::mover::{MovedEndpoint, Mover};
use crate::sender::{AttachError, Endpoint, Mismatch, OnCompletion, Sender};
use crate::shm::handover;
use crate::shm::landing::ShmLanding;
use crate::shm::writes;

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
        let layout = Layout::new(landing.shape).ok_or(BadLanding::Shape)?;
        let (descriptor, socket) = handover::claim_and_listen(&landing, self.life)?;
        check(&descriptor, &layout)?;
        let map = WriteMap::new(descriptor.as_fd(), layout.len())?;
        drop(descriptor); // the map is all that is needed, and its end must be the end
        let wake = Box::new(|| {}); // this mover waits for its queue alone
        let mover = Mover::start(
            landing.arena,
            on_completion,
            wake,
            move |jobs, stop, teller| {
                let dropped = || handover::is_told(&socket);
                writes::carry_out(map, layout, &jobs, &stop, teller, dropped)
            },
        )?;
        Ok(Box::new(MovedEndpoint::new(
            landing.arena,
            landing.shape,
            mover,
        )))
    }
}

/// A file that is shorter, or could become so, would kill this process at the first write.
pub(crate) fn check(descriptor: &OwnedFd, layout: &Layout) -> Result<(), AttachError> {
    let size = rustix::fs::fstat(descriptor)
        .map_err(std::io::Error::from)?
        .st_size;
    let expected = layout.len() as u64;
    if u64::try_from(size).ok() != Some(expected) {
        return Err(Mismatch::Size { size, expected }.into());
    }
    let seals = rustix::fs::fcntl_get_seals(descriptor).map_err(std::io::Error::from)?;
    if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
        let seals = seals.bits();
        return Err(Mismatch::NotSealed { seals }.into());
    }
    Ok(())
}
