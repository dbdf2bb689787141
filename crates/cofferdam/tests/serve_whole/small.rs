//! The small model that nearly all tests use, written once for each context.

use std::path::PathBuf;
use std::sync::Mutex;
use testkit::{SmallSpec, small_gguf};

static WRITING: Mutex<()> = Mutex::new(());

/// The path of the model that copies what it has read, with this context.
pub fn copying(context: usize) -> PathBuf {
    let _alone = WRITING
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    testkit::copying_gguf(&PathBuf::from(env!("CARGO_TARGET_TMPDIR")), context)
}

/// The path of the model with this context.
pub fn model(context: usize) -> PathBuf {
    let _alone = WRITING
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    small_gguf(
        &dir,
        SmallSpec {
            context,
            ..SmallSpec::default()
        },
    )
}
