//! A part does not outlive the command that started it.
//!
//! Two ways, because each has a hole: the kernel's signal at the parent's death is not sent if
//! the parent is gone before it was asked for, and a thread that reads the parent pipe cannot run
//! in a process that is stopped. `forbid(unsafe_code)` keeps us from setting the first between
//! fork and exec; asked for here, the pipe covers the time before.

use rustix::process::{Signal, set_parent_process_death_signal};
use std::io;
use std::thread;

/// Exit code of a part whose parent is gone.
pub const PARENT_GONE: i32 = 3;

/// From now on this process ends when its parent does or when standard input closes. Nothing is
/// cleaned up then: what a killed command leaves behind, the next one removes
/// ([`crate::runtime_dir`]).
pub fn end_with_parent() -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let watch = || {
        // Nothing is ever written to the pipe, and it ends when its last writer is gone; an
        // interrupted read is no end.
        let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
        std::process::exit(PARENT_GONE);
    };
    thread::Builder::new()
        .name("parent-pipe".into())
        .spawn(watch)?;
    Ok(())
}
