//! Time stamps as logs write them. An offset is part of the time, never dropped.

use jiff::Timestamp;
use jiff::civil::DateTime;

/// Later than any log: the year 5138. Milliseconds that are read as seconds are later.
pub const LATEST: f64 = 1e11;

/// A moment in seconds since 1970: RFC 3339 (`2026-11-29T12:00:00.5+02:00`, with a space for the T,
/// a comma for the point), or as nginx and Apache write it (`29/Nov/2026:12:00:00 +0200`). One
/// without an offset is UTC, which is what servers that leave it out mean.
///
/// # Errors
/// It is neither, in words for the operator.
pub fn seconds(text: &str) -> Result<f64, String> {
    let text = bare(text.trim());
    let moment = text
        .parse()
        .or_else(|error| common_log(text).ok_or(error))
        .or_else(|error| {
            jiff::fmt::rfc2822::DateTimeParser::new()
                .parse_timestamp(text)
                .map_err(|_| error)
        })
        .or_else(|error| spaced(text).ok_or(error))
        .or_else(|error| without_offset(text).ok_or(error));
    let moment: Timestamp = moment.map_err(|error| format!("{text:?} is no time ({error})"))?;
    Ok(moment.as_second() as f64 + f64::from(moment.subsec_nanosecond()) * 1e-9)
}

/// Without brackets around it, and without the name of a zone after its offset (`[Asia/Kolkata]`). A
/// name alone stays: what its offset was then is not known here.
fn bare(text: &str) -> &str {
    if let Some(inner) = text.strip_prefix('[').and_then(|it| it.strip_suffix(']')) {
        return inner;
    }
    match text.split_once('[') {
        Some((time, _)) if has_offset(time) => time,
        _ => text,
    }
}

/// Whether there is one behind the date, or `Z` for it.
fn has_offset(time: &str) -> bool {
    let of_day = time.get(10..).unwrap_or_default();
    of_day.contains(['+', '-', 'Z', 'z'])
}

/// An offset after a space, the name UTC after or instead of it: `2026-11-29 12:00:00 +0000 UTC`. Go
/// writes other zones' names there too, and its own clock after them: the offset says it all.
fn spaced(text: &str) -> Option<Timestamp> {
    let text = text.split_once(" m=").map_or(text, |(time, _)| time);
    let utc = text
        .strip_suffix(" UTC")
        .or_else(|| text.strip_suffix(" GMT"));
    let named = text.rsplit_once(' ').filter(|(time, name)| {
        let offset = time.rsplit_once(' ').map_or("", |it| it.1);
        offset.starts_with(['+', '-']) && name.bytes().all(|it| it.is_ascii_alphabetic())
    });
    let time = utc.or(named.map(|it| it.0)).unwrap_or(text);
    let last = time
        .rsplit_once(' ')
        .filter(|(_, it)| it.starts_with(['+', '-']));
    match (last, utc) {
        (Some((time, offset)), _) => format!("{time}{offset}").parse().ok(),
        (None, Some(time)) => without_offset(time),
        (None, None) => None,
    }
}

fn common_log(text: &str) -> Option<Timestamp> {
    let parts = jiff::fmt::strtime::parse("%d/%b/%Y:%H:%M:%S%.f %z", text);
    parts.ok()?.to_timestamp().ok()
}

/// Only if none is there: the reader of times without offset would pass over one.
fn without_offset(text: &str) -> Option<Timestamp> {
    let of_day = text.get(10..)?;
    if of_day.len() < 6 || has_offset(text) || of_day.contains('[') {
        return None;
    }
    let time: DateTime = text.parse().ok()?;
    jiff::tz::TimeZone::UTC.to_timestamp(time).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_offset_is_part_of_the_time() {
        let noon = 1_795_953_600.0; // 2026-11-29T12:00:00Z
        for text in [
            "2026-11-29T12:00:00Z",
            "2026-11-29t12:00:00z",
            "2026-11-29T14:00:00+02:00",
            "2026-11-29T14:00:00.000+02:00",
            "2026-11-29T14:00:00+0200",
            "2026-11-29T14:00:00+02",
            "2026-11-29 14:00:00+02:00",
            "2026-11-29T06:30:00-05:30",
            "2026-11-29T12:00:00-00:00",
            "2026-11-29 12:00:00",
            "2026-11-29T12:00:00",
            "29/Nov/2026:14:00:00 +0200",
            "[29/Nov/2026:14:00:00 +0200]",
            " 2026-11-29T12:00:00Z\n",
        ] {
            assert_eq!(seconds(text), Ok(noon), "{text}");
        }
        assert_eq!(seconds("2026-11-29T14:00:00.25+02:00"), Ok(noon + 0.25));
        assert_eq!(seconds("2026-11-29 12:00:00,250"), Ok(noon + 0.25));
        assert_eq!(seconds("1969-12-31T23:59:59Z"), Ok(-1.0));
    }

    #[test]
    fn what_is_no_time_is_not_half_read() {
        for text in [
            "",
            "noon",
            "2026-11-29",
            "2026-02-30T12:00:00Z",
            "2026-11-29T25:00:00Z",
            "2026-11-29T12:00:00+99:00",
            "2026-11-29T12:00:00 CET",
            "29/Nov/2026:14:00:00",
            "ä".repeat(12).as_str(),
        ] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn every_offset_counts(minutes in -14_i32 * 60..=14 * 60) {
            let (sign, of) = (if minutes < 0 { '-' } else { '+' }, minutes.abs());
            let text = format!("2026-11-29T12:00:00{sign}{:02}:{:02}", of / 60, of % 60);
            prop_assert_eq!(seconds(&text), Ok(1_795_953_600.0 - 60.0 * f64::from(minutes)));
        }

        #[test]
        fn no_text_panics(text in any::<String>()) {
            let _ = seconds(&text);
        }
    }
}
