//! A request's line in the access log for people: when, who, how it ended, how much, how long.
//!
//! ```text
//! 05:34:06Z  tenant-a      200       331+9 tok  ttft   80 ms  total  120 ms
//! ```

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Columns at most: with the name of the part before it, a line has 100.
const COLUMNS: usize = 90;
/// Columns of a tenant's name; a longer one is cut.
const TENANT: usize = 12;
/// Columns of the figures, or of what stands in their place.
const FIGURES: usize = 28;

/// What a line says.
pub(super) struct Said<'a> {
    /// When it ended.
    pub at: SystemTime,
    /// Who asked, once known.
    pub tenant: Option<&'a str>,
    /// 0 while there is none.
    pub status: u16,
    /// Method and path as routed.
    pub route: &'a str,
    /// The word for how it ended.
    pub outcome: &'a str,
    /// Tokens of prompt and answer, and the time to the first of the answer, if the engine had it.
    pub computed: Option<(u32, u32, Option<Duration>)>,
    /// From head to end.
    pub total: Duration,
}

/// The line, without its end.
pub(super) fn of(said: &Said) -> String {
    let since = said.at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let second = since.as_secs() % 86_400;
    let status = match said.status {
        0 => "---".to_owned(), // the client left before there was one
        status => status.to_string(),
    };
    let head = format!(
        "{:02}:{:02}:{:02}Z  {:<TENANT$}  {status}",
        second / 3600,
        second / 60 % 60,
        second % 60,
        cut(said.tenant.unwrap_or("-"), TENANT),
    );
    let note = match said.outcome {
        "ok" => "",
        other => other,
    };
    let total = spent(said.total);
    let line = match said.computed {
        Some((prompt, answer, first)) => {
            let tokens = format!("{prompt}+{answer}");
            let first = first.map_or("-".to_owned(), spent);
            let figures = format!("{tokens:>10} tok  ttft {first:>7}");
            format!("{head}  {figures:<FIGURES$}  total {total:>7} {note}")
        }
        // Nothing was computed: why not, or what was asked for, where the figures would stand.
        None if note.is_empty() => {
            format!(
                "{head}  {:<FIGURES$}  total {total:>7}",
                cut(said.route, FIGURES)
            )
        }
        None => {
            let note = cut(note, FIGURES);
            format!("{head}  {note:<FIGURES$}  total {total:>7} {}", said.route)
        }
    };
    cut(line.trim_end(), COLUMNS)
}

/// Three digits, as a person would say it.
fn spent(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    match seconds {
        it if it < 0.9995 => format!("{:.0} ms", it * 1e3),
        it if it < 9.995 => format!("{it:.2} s"),
        it if it < 99.95 => format!("{it:.1} s"),
        it => format!("{it:.0} s"),
    }
}

fn cut(text: &str, columns: usize) -> String {
    let printed = text
        .chars()
        .map(|it| if it.is_control() { '?' } else { it });
    if text.chars().count() <= columns {
        return printed.collect();
    }
    printed.take(columns - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_three_digits() {
        let of = |micros| spent(Duration::from_micros(micros));
        assert_eq!(of(400), "0 ms");
        assert_eq!(of(80_400), "80 ms");
        assert_eq!(of(999_400), "999 ms");
        assert_eq!(of(999_600), "1.00 s");
        assert_eq!(of(12_340_000), "12.3 s");
        assert_eq!(of(600_000_000), "600 s");
    }

    #[test]
    fn columns_stand_below_each_other_and_no_line_is_wider_than_a_screen() {
        let ok = Said {
            at: UNIX_EPOCH + Duration::from_secs(1_796_103_244),
            tenant: Some("tenant-a"),
            status: 200,
            route: "/v1/completions",
            outcome: "ok",
            computed: Some((331, 9, Some(Duration::from_millis(80)))),
            total: Duration::from_millis(120),
        };
        let line = of(&ok);
        assert_eq!(
            line,
            "05:34:04Z  tenant-a      200       331+9 tok  ttft   80 ms  total  120 ms"
        );
        let refused = of(&Said {
            tenant: None,
            status: 400,
            outcome: "context_length_exceeded",
            computed: None,
            ..ok
        });
        assert_eq!(
            refused,
            "05:34:04Z  -             400  context_length_exceeded       total  120 ms \
             /v1/completions"
        );
        assert_eq!(line.find("total"), refused.find("total"));
        let long = of(&Said {
            tenant: Some("a tenant with a long name"),
            outcome: "a_code_that_is_longer_than_any",
            status: 0,
            computed: Some((1_048_575, 1_048_575, Some(Duration::from_secs(5999)))),
            total: Duration::from_secs(6000),
            ..ok
        });
        assert!(long.contains("a tenant wi…  ---"), "{long}");
        assert_eq!(long.chars().count(), COLUMNS, "{long}");
    }

    #[test]
    fn what_is_too_long_is_cut_and_nothing_moves_the_cursor() {
        assert_eq!(cut("abcdef", 4), "abc…");
        assert_eq!(cut("ab\u{1b}[", 4), "ab?[");
    }
}
