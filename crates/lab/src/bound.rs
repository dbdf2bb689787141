//! Named bounds: how far the worlds go, and what a search may take for it.

use crate::search::Limits;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// How far to go. The worlds of a larger bound have more pages, requests and faults.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Bound {
    /// All worlds together in a few seconds: what a mutant is tried against.
    Smoke,
    /// All worlds together in a minute on two cores: what every change is tried against.
    Quick,
    /// All worlds together in half an hour and 12 GiB: by hand, now and then.
    Deep,
}

impl Bound {
    /// All of them, smallest first.
    pub const ALL: [Self; 3] = [Self::Smoke, Self::Quick, Self::Deep];

    /// What the search of one world may take. The worlds of the smaller bounds stay far below; a
    /// search that hits its limit has not finished and says so. Memory is that of the process, so of
    /// all worlds that are explored at the same time.
    pub fn limits(self) -> Limits {
        let (states, seconds, gib) = match self {
            Self::Smoke => (200_000, 60, 4),
            Self::Quick => (2_000_000, 10 * 60, 6),
            Self::Deep => (400_000_000, 30 * 60, 12),
        };
        Limits {
            states,
            resident: gib << 30,
            keep: (gib << 30) / 3 * 2,
            time: Duration::from_secs(seconds),
            ..Limits::default()
        }
    }

    /// The time that all worlds together may take. A world for which none is left has not finished
    /// either.
    pub fn together(self) -> Duration {
        let minutes = match self {
            Self::Smoke => 10,
            Self::Quick | Self::Deep => 30,
        };
        Duration::from_secs(minutes * 60)
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Smoke => "smoke",
            Self::Quick => "quick",
            Self::Deep => "deep",
        })
    }
}

/// There is no bound of this name.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("no bound is called {0:?}: smoke, quick or deep")]
pub struct UnknownBound(String);

impl FromStr for Bound {
    type Err = UnknownBound;

    fn from_str(name: &str) -> Result<Self, UnknownBound> {
        let named = |bound: &Self| bound.to_string() == name;
        Self::ALL
            .into_iter()
            .find(named)
            .ok_or_else(|| UnknownBound(name.to_owned()))
    }
}
