//! The `cofferdam-attack` command; everything is in the library beside it.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    attack::main()
}
