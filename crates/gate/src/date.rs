//! Calendar days, as far as expiry and age need them.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A day of the Gregorian calendar, as days since 1970-01-01.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Date(i64);

/// Seconds of a day.
const DAY_SECONDS: u64 = 86_400;

impl Date {
    /// The day (UTC) of a moment in seconds since 1970.
    pub fn of_unix(seconds: u64) -> Self {
        Self((seconds / DAY_SECONDS) as i64)
    }

    /// Today, by the system's clock.
    pub fn today() -> Self {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Self::of_unix(now.map_or(0, |it| it.as_secs()))
    }

    /// Days from `earlier` to this day; negative if it is later.
    pub fn days_since(self, earlier: Date) -> i64 {
        self.0 - earlier.0
    }

    /// This many days later.
    pub fn plus_days(self, days: u32) -> Self {
        Self(self.0 + i64::from(days))
    }

    /// Year, month and day. The arithmetic counts years from March, so that a leap day is the
    /// last of its year.
    fn civil(self) -> (i64, i64, i64) {
        let days = self.0 + 719_468; // since 0000-03-01
        let era = days.div_euclid(146_097);
        let of_era = days.rem_euclid(146_097);
        let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year + year / 4 - year / 100);
        let month = (5 * of_year + 2) / 153;
        let day = of_year - (153 * month + 2) / 5 + 1;
        let month = if month < 10 { month + 3 } else { month - 9 };
        (year + era * 400 + i64::from(month <= 2), month, day)
    }

    fn of_civil(year: i64, month: i64, day: i64) -> Self {
        let year = year - i64::from(month <= 2);
        let era = year.div_euclid(400);
        let of_era = year.rem_euclid(400);
        let of_year = (153 * (month + if month > 2 { -3 } else { 9 }) + 2) / 5 + day - 1;
        let days = of_era * 365 + of_era / 4 - of_era / 100 + of_year;
        Self(era * 146_097 + days - 719_468)
    }
}

impl fmt::Display for Date {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month, day) = self.civil();
        f.pad(&format!("{year:04}-{month:02}-{day:02}"))
    }
}

impl FromStr for Date {
    type Err = String;

    fn from_str(text: &str) -> Result<Date, String> {
        let wrong = || format!("{text:?} is no date (YYYY-MM-DD)");
        let parts: Vec<&str> = text.split('-').collect();
        let [year, month, day] = parts[..] else {
            return Err(wrong());
        };
        if (year.len(), month.len(), day.len()) != (4, 2, 2) {
            return Err(wrong());
        }
        if !text
            .bytes()
            .all(|byte| byte.is_ascii_digit() || byte == b'-')
        {
            return Err(wrong()); // `parse` would take a sign
        }
        let number = |text: &str| text.parse::<u16>().map(i64::from).map_err(|_| wrong());
        let (year, month, day) = (number(year)?, number(month)?, number(day)?);
        let date = Self::of_civil(year, month, day);
        // A day that does not exist (02-30, 13-01) comes back as another one.
        let exists = date.civil() == (year, month, day);
        exists.then_some(date).ok_or_else(wrong)
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
    let of_day = seconds % DAY_SECONDS;
    let (hour, minute) = (of_day / 3600, of_day / 60 % 60);
    let day = Date::of_unix(seconds);
    format!("{day}T{hour:02}:{minute:02}:{:02}Z", of_day % 60)
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
            assert_eq!(date.0, days, "{text}");
            assert_eq!(date.to_string(), text);
        }
        for day in 0..80_000 {
            let date = Date(day);
            assert_eq!(date.to_string().parse(), Ok(date));
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
        ] {
            assert!(text.parse::<Date>().is_err(), "{text}");
        }
    }

    #[test]
    fn moments_are_utc() {
        assert_eq!(rfc3339(1_795_977_000), "2026-11-29T18:30:00Z");
    }
}
