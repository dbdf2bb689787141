//! Moments, as milliseconds since 1970, and how they are written.

use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970, UTC.
pub type Ms = u64;

/// Now.
pub fn now() -> Ms {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |it| u64::try_from(it.as_millis()).unwrap_or(u64::MAX))
}

/// As in `2026-12-01T22:25:03.120Z`.
pub fn written(at: Ms) -> String {
    let at = i64::try_from(at).ok();
    let at = at.and_then(|at| jiff::Timestamp::from_millisecond(at).ok());
    at.map_or_else(String::new, |at| format!("{at:.3}"))
}

/// What [`written`] wrote.
pub fn read(text: &str) -> Option<Ms> {
    let at: jiff::Timestamp = text.parse().ok()?;
    u64::try_from(at.as_millisecond()).ok()
}

/// For people: `3 min 5 s`.
pub fn span(ms: Ms) -> String {
    let s = ms / 1000;
    match (s / 86_400, s / 3600 % 24, s / 60 % 60, s % 60) {
        (0, 0, 0, s) => format!("{s} s"),
        (0, 0, m, s) => format!("{m} min {s} s"),
        (0, h, m, _) => format!("{h} h {m} min"),
        (d, h, ..) => format!("{d} d {h} h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for at in [0, 1, 1_796_163_903_120, now()] {
            assert_eq!(read(&written(at)), Some(at));
        }
        assert_eq!(written(1_796_163_903_120), "2026-12-01T22:25:03.120Z");
        assert_eq!(read("yesterday"), None);
        assert_eq!([span(59_000), span(185_000)], ["59 s", "3 min 5 s"]);
    }
}
