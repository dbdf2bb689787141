//! The form that an answer is held to: which tokens may come next.
//!
//! A [`wire::Form`] is text that a client wrote. [`Grammars::begin`] compiles it under limits, so that a
//! gateway can refuse it before anybody has reserved anything, and gives a [`Walk`], which a worker takes
//! along the tokens of one choice: what has been said, which [`Mask`] of tokens may come next. The work
//! itself is `llguidance`'s; here are its limits, and what a client is told.
//!
//! Everything is bounded: the text by [`wire::FORM_BYTES_MAX`], its depth by [`DEPTH_MAX`], the compiled
//! grammar by its size and states, and one mask by what it may compute. Nothing that a form says can
//! panic here: what panics below comes back as an error.
#![forbid(unsafe_code)]

mod check;
mod cost;
mod ends;
mod schema;
mod walk;

pub use check::compiles;
pub use schema::written;
pub use walk::{Grammars, Mask, Stuck, Walk};

/// Objects and lists in each other in a schema, or brackets in a grammar, at most.
pub const DEPTH_MAX: usize = 64;

/// Stack for compiling a form and walking along it.
pub const STACK_BYTES: usize = 16 << 20;

/// A form that no answer can be held to: the client's fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{problem}", at.as_ref().map_or(String::new(), |at| format!("at `{at}`: ")))]
pub struct NoForm {
    /// Where in it, as a JSON pointer into a schema (`#/properties/a`); none: as a whole.
    pub at: Option<String>,
    /// What is wrong.
    pub problem: String,
}

impl NoForm {
    fn whole(problem: impl Into<String>) -> Self {
        Self {
            at: None,
            problem: problem.into(),
        }
    }
}
