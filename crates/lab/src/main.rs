//! The `cofferdam-lab` command; everything is in the library beside it.
#![forbid(unsafe_code)]

/// Exploring is allocating: most of a step is.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    lab::main()
}
