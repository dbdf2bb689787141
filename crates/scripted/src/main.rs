//! `cofferdam-scripted`: engines in one process.
#![forbid(unsafe_code)]
fn main() {}
