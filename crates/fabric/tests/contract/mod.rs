//! The contract of a fabric in executable form: every implementation passes the same suite.
//!
//! A test binary without the standard harness (`harness = false`) calls [`main`] with its
//! [`Fabric`]. The same binary is started again as the writer's process by the cases that kill,
//! stop, continue and restart a writer: real processes, synchronised by pipes and `waitpid`, never
//! by sleeping.
//!
//! The cases hold a transfer in mid-batch with a source that blocks when it is read
//! ([`source::Gated`]). A fabric that does not read its sources through `AsRef` on the way (one
//! that registers memory with a device) needs its own way of stopping there.

mod endings;
mod fences;
mod landings;
mod peer;
mod processes;
mod source;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;

use pages::{FenceMint, WriterLife};

use fabric::{Receiver, Sender, WriteEnding};

/// An implementation under test.
pub trait Fabric {
    /// A fresh receiver with the given capability.
    fn receiver(&self, mint: FenceMint) -> Box<dyn Receiver>;

    /// A sender that shows itself as `life`, in this process or the writer's.
    fn sender(&self, life: WriterLife) -> Box<dyn Sender>;

    /// How a submission ends whose arena was fenced while its writes were under way. A one-sided
    /// writer carries them out and cannot tell that nobody will look; where the receiver applies
    /// the writes, nobody acknowledges them.
    fn ending_after_a_fence(&self) -> WriteEnding;

    /// What the process of a writer is told beside what the suite tells it.
    fn prepare(&self, _writer: &mut Command) {}
}

/// One case: its name and what it does. It fails by panicking.
pub type Case = (&'static str, fn(&dyn Fabric));

/// All cases, those within one process first.
pub fn cases() -> Vec<Case> {
    [
        landings::CASES,
        endings::CASES,
        fences::CASES,
        processes::CASES,
    ]
    .concat()
}

/// Runs the cases whose names contain `filter` and returns the names of those that failed.
pub fn suite(fabric: &dyn Fabric, filter: &str) -> Vec<&'static str> {
    let mut failed = Vec::new();
    for (name, case) in cases()
        .into_iter()
        .filter(|(name, _)| name.contains(filter))
    {
        let passed = catch_unwind(AssertUnwindSafe(|| case(fabric))).is_ok();
        println!("test {name} ... {}", if passed { "ok" } else { "FAILED" });
        if !passed {
            failed.push(name);
        }
    }
    failed
}

/// The whole of a conformance test binary: the suite, or the writer's process of one of its cases.
/// Understands `--list` and one filter, as the standard harness does; ends with code 101 on failure.
pub fn main(fabric: &dyn Fabric) {
    if !run(fabric) {
        std::process::exit(101);
    }
}

/// [`main`] for a binary that has something to clear away behind it; whether all cases passed.
pub fn run(fabric: &dyn Fabric) -> bool {
    if peer::is_writer() {
        peer::run_writer(fabric);
        return true;
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--list") {
        cases()
            .iter()
            .for_each(|(name, _)| println!("{name}: test"));
        return true;
    }
    let filter = arguments.iter().find(|argument| !argument.starts_with('-'));
    let failed = suite(fabric, filter.map_or("", String::as_str));
    if failed.is_empty() {
        println!("\ntest result: ok");
    } else {
        println!("\ntest result: FAILED: {}", failed.join(", "));
    }
    failed.is_empty()
}
