//! The arenas of one receiver, whatever carries bytes into them: who may open one, what they take,
//! and what is left when one is dropped.

use std::collections::BTreeMap;
use std::sync::Arc;

use pages::{FenceMint, WriterLife};

use crate::arena::{ArenaId, Shape};
use crate::arena_memory::ArenaMemory;
use crate::layout::Layout;
use crate::memory;
use crate::receiver::{Evidence, FenceError, Fenced, OpenError, Reader};

/// What a receiver may hold.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of all arenas: open ones, and dropped ones that a writer still maps.
    pub bytes_max: u64,
}

/// See the module's documentation.
pub(crate) struct Arenas {
    mint: FenceMint,
    limits: Limits,
    /// The last id opened: they are counters of one owner, so a larger one is new.
    last: Option<ArenaId>,
    open: BTreeMap<ArenaId, Arena>,
    /// Dropped, and their memory still held by a writer.
    lingering: Vec<(ArenaId, ArenaMemory)>,
}

struct Arena {
    writer: WriterLife,
    memory: ArenaMemory,
}

impl Arenas {
    /// No arenas yet. The mint is used for nothing but fences that were carried out.
    pub(crate) fn new(mint: FenceMint, limits: Limits) -> Self {
        Self {
            mint,
            limits,
            last: None,
            open: BTreeMap::new(),
            lingering: Vec::new(),
        }
    }

    /// Dropped arenas that a writer still maps: their number and bytes (counted apart, H-10).
    pub(crate) fn lingering(&mut self) -> (usize, u64) {
        self.lingering
            .retain(|(_, memory)| memory.attest() == Evidence::WriterMaps);
        let bytes = self.lingering.iter().map(|(_, memory)| memory.bytes());
        (self.lingering.len(), bytes.sum())
    }

    /// Whether a dropped arena is not among them (any more).
    pub(crate) fn is_given_back(&mut self, arena: ArenaId) -> bool {
        self.lingering();
        let held = self.lingering.iter().any(|(other, _)| *other == arena);
        !held && !self.open.contains_key(&arena)
    }

    /// Makes the memory of a new arena. Nobody can write to it yet: that is up to the fabric.
    pub(crate) fn open(
        &mut self,
        arena: ArenaId,
        writer: WriterLife,
        shape: Shape,
    ) -> Result<&ArenaMemory, OpenError> {
        let layout = Layout::new(shape).ok_or(OpenError::Shape(shape))?;
        self.admit(arena, writer, layout.len() as u64)?;
        let memory = ArenaMemory::new(arena, layout)?;
        self.last = Some(arena);
        let opened = self
            .open
            .entry(arena)
            .insert_entry(Arena { writer, memory });
        Ok(&opened.into_mut().memory)
    }

    fn admit(&mut self, arena: ArenaId, writer: WriterLife, bytes: u64) -> Result<(), OpenError> {
        if self
            .last
            .is_some_and(|last| last.owner == arena.owner && arena.n <= last.n)
        {
            return Err(OpenError::Reused(arena));
        }
        if let Some((&open, _)) = self.open.iter().find(|(_, open)| open.writer == writer) {
            return Err(OpenError::WriterHasArena { writer, open });
        }
        let open: u64 = self.open.values().map(|arena| arena.memory.bytes()).sum();
        let (_, lingering) = self.lingering();
        let limit = self.limits.bytes_max;
        let sum = open.saturating_add(lingering).saturating_add(bytes);
        if sum > limit {
            return Err(OpenError::Limit {
                wanted: bytes,
                open,
                lingering,
                limit,
            });
        }
        Ok(memory::require(bytes)?)
    }

    pub(crate) fn reader(&self, arena: ArenaId) -> Result<Arc<dyn Reader>, FenceError> {
        let found = self.open.get(&arena).ok_or(FenceError::NotOpen(arena))?;
        Ok(found.memory.reader())
    }

    /// Joins the copies, gives the memory up and proves it. The fabric has seen to it before that
    /// nothing of this side writes there any more, and that nobody attaches.
    pub(crate) fn fence(&mut self, arena: ArenaId) -> Result<Fenced, FenceError> {
        let gone = self.open.remove(&arena).ok_or(FenceError::NotOpen(arena))?;
        gone.memory.end_copies();
        let evidence = gone.memory.attest();
        if evidence == Evidence::WriterMaps {
            self.lingering.push((arena, gone.memory));
        }
        Ok(Fenced {
            proof: self.mint.fenced(gone.writer),
            evidence,
        })
    }

    /// Open arenas, oldest id first.
    pub(crate) fn ids(&self) -> Vec<ArenaId> {
        self.open.keys().copied().collect()
    }
}
