//! Times as they are typed.

use std::time::Duration;

/// `500ms`, `60s`, `5m`, `1h`, at most a day.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no time (500ms, 60s, 5m)");
    let end = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
    let number: u64 = text[..end].parse().map_err(|_| wrong())?;
    let unit = match &text[end..] {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(wrong()),
    };
    let millis = number
        .checked_mul(unit)
        .filter(|it| (1..=86_400_000).contains(it));
    millis.map(Duration::from_millis).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_unit() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        for text in [
            "5",
            "",
            "s",
            "0s",
            "-1s",
            "25h",
            "1d",
            "99999999999999999999s",
        ] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
