//! Keeps the parts of a serving alive and ends them together.
//!
//! [`machine`] decides (a pure function of event and time), `process` runs one life of one part,
//! [`run`](mod@run) connects the two. Nothing here knows what the parts do: a part is a command
//! that says on its standard output, in one line of JSON, that it is [ready or refuses](report).

pub mod machine;
mod process;
pub mod report;
pub mod run;

pub use machine::{Ending, Limits};
pub use report::{Ready, Refused, Report};
pub use run::{Part, Supervised, supervise};
