//! The checker on whole worlds. One binary: each would compile the machines and the explorer anew.

mod pinned;
mod simulation;
mod verify;
mod worlds;

// Worlds are made and dropped by the million; the laboratory's binary has the same.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
