//! The `cofferdam-faults` command; everything is in the library beside it.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    faults::main()
}
