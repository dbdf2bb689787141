//! How many distinct worlds there are, and which situations were met in them, written down: a model
//! that has become smaller, or that shows less, without anybody wanting it fails a test.

use crate::bound::Bound;
use crate::scenario::Mode;

/// Content of the file; two lines for each world, sorted: `"mode/bound/world" = states` and
/// `"mode/bound/world/sees" = "situation, situation"`.
const PINNED: &str = include_str!("../pinned.toml");

/// The name of a world's line.
pub fn key(bound: Bound, mode: Mode, world: &str) -> String {
    format!("{mode}/{bound}/{world}")
}

/// How many states there were when it was last written down.
pub fn states(bound: Bound, mode: Mode, world: &str) -> Option<u64> {
    line(&key(bound, mode, world))?.parse().ok()
}

/// Which situations were met when it was last written down, in the order of their names.
pub fn situations(bound: Bound, mode: Mode, world: &str) -> Option<Vec<&'static str>> {
    let seen = line(&sees(&key(bound, mode, world)))?.trim_matches('"');
    Some(seen.split(", ").filter(|name| !name.is_empty()).collect())
}

/// The name of a world's second line.
pub fn sees(key: &str) -> String {
    format!("{key}/sees")
}

fn line(key: &str) -> Option<&'static str> {
    let mut lines = PINNED.lines().filter_map(|line| line.split_once(" = "));
    let (_, value) = lines.find(|(name, _)| name.trim_matches('"') == key)?;
    Some(value)
}
