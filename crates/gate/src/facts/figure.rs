//! Figures that know where they came from, and the reasons for not having one.

use crate::facts::trouble::Trouble;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Deref;

/// No count of tokens, pages or bytes-per-token is larger: 2^40. What is, is absurd.
pub const TOKENS_MAX: u64 = 1 << 40;

/// Where a figure was read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FigureSource {
    /// A field of an answer. The URL carries no credentials.
    Field {
        /// Scheme, host, port and path.
        url: String,
        /// `internal_states[0].memory_usage.token_capacity`, or a metric with its labels.
        field: String,
    },
    /// A line of a log.
    Line {
        /// The file as it was named, or `stdin`.
        file: String,
        /// From 1.
        line: u64,
        /// What in the line: `max_total_num_tokens=`.
        field: String,
    },
    /// Computed from other figures.
    Derived {
        /// `(num_gpu_blocks - 1) * block_size`.
        formula: String,
        /// Where the terms stand.
        from: Vec<FigureSource>,
    },
}

impl fmt::Display for FigureSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FigureSource::Field { url, field } => write!(f, "{url} {field}"),
            FigureSource::Line { file, line, field } => write!(f, "{file}:{line} {field}"),
            FigureSource::Derived { formula, from } => {
                write!(f, "{formula} of ")?;
                for (n, source) in from.iter().enumerate() {
                    write!(f, "{}{source}", if n == 0 { "" } else { ", " })?;
                }
                Ok(())
            }
        }
    }
}

/// A value and where it was read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figure<T> {
    /// The value, in the unit that the field's documentation names.
    pub value: T,
    /// Where it was read.
    pub source: FigureSource,
}

impl<T> Figure<T> {
    /// A value read at `source`.
    pub fn new(value: T, source: FigureSource) -> Self {
        Self { value, source }
    }
}

/// A figure that the running process found out itself: what it allocated, what it will accept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Measured<T>(Figure<T>);

impl<T> Measured<T> {
    /// The caller vouches that `source` reports what the process has, and not the echo of a flag.
    pub fn new(value: T, source: FigureSource) -> Self {
        Self(Figure::new(value, source))
    }
}

impl<T> Deref for Measured<T> {
    type Target = Figure<T>;
    fn deref(&self) -> &Figure<T> {
        &self.0
    }
}

/// A figure that somebody told the process (a flag, a configuration file) and that it repeats.
/// There is no way from here to [`Measured`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Declared<T>(Figure<T>);

impl<T> Declared<T> {
    /// A value that was declared at `source`.
    pub fn new(value: T, source: FigureSource) -> Self {
        Self(Figure::new(value, source))
    }
}

impl<T> Deref for Declared<T> {
    type Target = Figure<T>;
    fn deref(&self) -> &Figure<T> {
        &self.0
    }
}

/// A figure, or why there is none.
pub type Fact<T> = Result<T, Unknown>;

/// Why a figure is not known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Unknown {
    /// The server answered, and says it nowhere that we know of.
    #[error("not reported; looked at {}", looked.join(", "))]
    NotReported {
        /// Fields, metrics or lines that were looked for.
        looked: Vec<String>,
    },
    /// The place where it would stand could not be read.
    #[error("{url}: {trouble}")]
    NotRead {
        /// What was asked.
        url: String,
        /// What came instead.
        trouble: Trouble,
    },
    /// Something stands there that cannot be true.
    #[error("{0}")]
    Absurd(Box<Absurd>),
    /// Two places contradict each other.
    #[error("{0}")]
    Contradiction(Box<Contradiction>),
    /// The engine is recognised, and we do not know how to read it.
    #[error("{engine} is recognised but not supported")]
    NotSupported {
        /// Its name.
        engine: String,
    },
}

/// A value that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Absurd {
    /// What stands there, cut to 80 characters.
    pub found: String,
    /// Where.
    pub source: FigureSource,
    /// Why it cannot be.
    pub why: String,
}

impl fmt::Display for Absurd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}: {}", self.found, self.source, self.why)
    }
}

/// Two values of which at least one is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contradiction {
    /// One value and where it stands.
    pub one: Figure<String>,
    /// The other.
    pub other: Figure<String>,
    /// How they should hang together: `equal`, `a longest prompt is below the context`.
    pub rule: String,
}

impl fmt::Display for Contradiction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { one, other, rule } = self;
        write!(
            f,
            "{} at {} contradicts {} at {} ({rule})",
            one.value, one.source, other.value, other.source
        )
    }
}
