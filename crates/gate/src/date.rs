//! Calendar days, as far as expiry and age need them.

use jiff::{Span, Timestamp, civil, tz::TimeZone};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A day of the Gregorian calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Date(civil::Date);

impl Date {
    /// The day (UTC) of a moment in seconds since 1970.
    pub fn of_unix(seconds: u64) -> Self {
        Self(TimeZone::UTC.to_datetime(moment(seconds)).date())
    }

    /// Today, by the system's clock.
    pub fn today() -> Self {
        Self(TimeZone::UTC.to_datetime(Timestamp::now()).date())
    }

    /// Days from `earlier` to this day; negative if it is later.
    pub fn days_since(self, earlier: Date) -> i64 {
        i64::from((self.0 - earlier.0).get_days())
    }

    /// This many days later.
    pub fn plus_days(self, days: u32) -> Self {
        Self(self.0.saturating_add(Span::new().days(days)))
    }
}

/// The last moment that there is, for what is later still.
fn moment(seconds: u64) -> Timestamp {
    let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
    Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX)
}

impl fmt::Display for Date {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0.to_string())
    }
}

impl FromStr for Date {
    type Err = String;

    fn from_str(text: &str) -> Result<Date, String> {
        // One form only: the parser would take more.
        let is_digit = |(at, byte): (usize, u8)| match at {
            4 | 7 => byte == b'-',
            _ => byte.is_ascii_digit(),
        };
        let is_form = text.len() == 10 && text.bytes().enumerate().all(is_digit);
        let date = is_form.then(|| text.parse().ok()).flatten();
        date.map(Self)
            .ok_or_else(|| format!("{text:?} is no date (YYYY-MM-DD)"))
    }
}

impl TryFrom<String> for Date {
    type Error = String;

    fn try_from(text: String) -> Result<Date, String> {
        text.parse()
    }
}

impl From<Date> for String {
    fn from(date: Date) -> String {
        date.to_string()
    }
}

/// A moment in seconds since 1970, as RFC 3339 writes it.
pub fn rfc3339(seconds: u64) -> String {
    moment(seconds).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_those_of_the_calendar() {
        for (text, days) in [
            ("1970-01-01", 0),
            ("2000-02-29", 11_016),
            ("2026-11-29", 20_786),
            ("2100-03-01", 47_541),
        ] {
            let date: Date = text.parse().unwrap();
            assert_eq!(Date::of_unix(days * 86_400 + 86_399), date, "{text}");
            let epoch = Date::of_unix(0);
            assert_eq!(date.days_since(epoch), days as i64, "{text}");
            assert_eq!(epoch.plus_days(days as u32), date, "{text}");
            assert_eq!(date.to_string(), text);
        }
    }

    #[test]
    fn days_that_do_not_exist_are_refused() {
        for text in [
            "2026-02-29",
            "2026-13-01",
            "2026-00-10",
            "2026-1-1",
            "",
            "26-11-29",
            "+026-11-29",
            "20261129",
            "2026-11-29T00:00",
        ] {
            assert!(text.parse::<Date>().is_err(), "{text}");
        }
    }

    #[test]
    fn moments_are_utc() {
        assert_eq!(rfc3339(1_795_977_000), "2026-11-29T18:30:00Z");
    }
}
