//! How many distinct worlds there are, written down: a model that has become smaller without
//! anybody wanting it fails a test.

use crate::bound::Bound;
use crate::scenario::Mode;

/// Name and content of the file; a line each, sorted: `"mode/bound/world" = states`.
const PINNED: &str = include_str!("../pinned.toml");

/// The name of a world's line.
pub fn key(bound: Bound, mode: Mode, world: &str) -> String {
    format!("{mode}/{bound}/{world}")
}

/// How many states there were when it was last written down.
pub fn states(bound: Bound, mode: Mode, world: &str) -> Option<u64> {
    let key = key(bound, mode, world);
    let mut lines = PINNED.lines().filter_map(|line| line.split_once(" = "));
    let (_, states) = lines.find(|(name, _)| name.trim_matches('"') == key)?;
    states.parse().ok()
}
