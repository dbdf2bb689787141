//! Reading the text format of Prometheus, and OpenMetrics as far as it is the same.

use crate::facts::figure::{Fact, Figure, FigureSource, TOKENS_MAX, Unknown};
use crate::facts::json::{absurd, is_html};
use crate::facts::trouble::Trouble;

/// No more samples are kept.
const SAMPLES_MAX: usize = 100_000;

/// One sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// `sglang:page_size`.
    pub name: String,
    /// Names and values, in the order of the answer.
    pub labels: Vec<(String, String)>,
    /// As it stands there: `2000.0`, `NaN`.
    pub value: String,
}

impl Sample {
    /// The value of a label.
    pub fn label(&self, name: &str) -> Option<&str> {
        let mut labels = self.labels.iter();
        labels
            .find(|(it, _)| it == name)
            .map(|(_, value)| value.as_str())
    }

    /// `name{label="value"}` with those of `keys` that it has.
    pub fn describe(&self, keys: &[&str]) -> String {
        let shown = self
            .labels
            .iter()
            .filter(|(name, _)| keys.contains(&name.as_str()));
        let shown: Vec<_> = shown
            .map(|(name, value)| format!("{name}={value:?}"))
            .collect();
        if shown.is_empty() {
            self.name.clone()
        } else {
            format!("{}{{{}}}", self.name, shown.join(","))
        }
    }
}

/// One `/metrics` answer.
#[derive(Clone, Debug)]
pub struct Metrics {
    url: String,
    samples: Vec<Sample>,
}

impl Metrics {
    /// Parses an answer of `url`. Lines that are not samples are passed over; a value that is no
    /// number is kept as it stands there.
    ///
    /// # Errors
    /// It is HTML, not UTF-8, cut within a line, has not one number, or more than 100,000 samples.
    pub fn parse(url: &str, body: &[u8]) -> Result<Self, Trouble> {
        if is_html(body) {
            return Err(Trouble::Html);
        }
        let garbage = |why: &str| Trouble::Garbage { why: why.into() };
        let text = std::str::from_utf8(body).map_err(|_| garbage("not UTF-8"))?;
        let lines = text
            .lines()
            .map(str::trim)
            .filter(|it| !it.starts_with('#'));
        let samples: Vec<_> = lines.filter_map(sample).take(SAMPLES_MAX + 1).collect();
        if !samples.iter().any(|it| it.value.parse::<f64>().is_ok()) {
            return Err(garbage("not one sample of a metric"));
        }
        if samples.len() > SAMPLES_MAX {
            return Err(garbage("more than 100000 samples"));
        }
        if unended(text).is_some_and(|it| sample(it).is_none()) {
            return Err(garbage("it ends within a line"));
        }
        Ok(Self {
            url: url.to_owned(),
            samples,
        })
    }

    /// All samples.
    pub fn all(&self) -> impl Iterator<Item = &Sample> {
        self.samples.iter()
    }

    /// Samples of one metric.
    pub fn of<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Sample> {
        self.samples.iter().filter(move |it| it.name == name)
    }

    /// Whether a metric's name begins so.
    pub fn has_prefix(&self, prefix: &str) -> bool {
        self.samples.iter().any(|it| it.name.starts_with(prefix))
    }

    /// Where a field of this answer stands.
    pub fn source(&self, field: String) -> FigureSource {
        let url = self.url.clone();
        FigureSource::Field { url, field }
    }

    /// The value of a sample as a count from 1 to [`TOKENS_MAX`]; `keys` are the labels that tell
    /// it from others.
    ///
    /// # Errors
    /// Not a whole number in that range: NaN, infinities, fractions, negatives and zero.
    pub fn count(&self, sample: &Sample, keys: &[&str]) -> Fact<Figure<u64>> {
        let source = self.source(sample.describe(keys));
        match whole(&sample.value) {
            Some(value) => Ok(Figure::new(value, source)),
            None => Err(absurd(
                &sample.value,
                source,
                "not a whole number from 1 to 2^40",
            )),
        }
    }

    /// A label as a count from 1 to [`TOKENS_MAX`].
    ///
    /// # Errors
    /// The label is missing, `None`, or not such a number.
    pub fn label_count(&self, sample: &Sample, label: &str, keys: &[&str]) -> Fact<Figure<u64>> {
        let text = self.label_text(sample, label, keys)?;
        let digits = text.value.bytes().all(|it| it.is_ascii_digit());
        let value = text
            .value
            .parse()
            .ok()
            .filter(|it| (1..=TOKENS_MAX).contains(it));
        match value.filter(|_| digits) {
            Some(value) => Ok(Figure::new(value, text.source)),
            None => Err(absurd(
                &text.value,
                text.source,
                "not a whole number from 1 to 2^40",
            )),
        }
    }

    /// A label as text.
    ///
    /// # Errors
    /// The label is missing, empty or `None`.
    pub fn label_text(&self, sample: &Sample, label: &str, keys: &[&str]) -> Fact<Figure<String>> {
        let source = self.source(format!("{} {label}", sample.describe(keys)));
        let text = sample.label(label).filter(|it| !matches!(*it, "" | "None"));
        match text {
            Some(text) if text.len() <= 4096 => Ok(Figure::new(text.to_owned(), source)),
            Some(text) => Err(absurd(text, source, "longer than 4096 bytes")),
            None => Err(Unknown::NotReported {
                looked: vec![source.to_string()],
            }),
        }
    }
}

/// `2000.0` or `2e3`, as 2000.
fn whole(text: &str) -> Option<u64> {
    let value: f64 = text.parse().ok()?;
    let is_whole = value.fract() == 0.0 && value >= 1.0 && value <= TOKENS_MAX as f64;
    is_whole.then_some(value as u64)
}

/// The last line, if nothing ends it and it is no comment.
fn unended(text: &str) -> Option<&str> {
    let last = text.rsplit('\n').next()?.trim();
    (!last.is_empty() && !last.starts_with('#')).then_some(last)
}

/// `name{a="b"} 1.0 [time] [# exemplar]`.
fn sample(line: &str) -> Option<Sample> {
    let end = line.find(|c: char| c == '{' || c.is_ascii_whitespace())?;
    let name = &line[..end];
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    if name.is_empty() || !name.chars().all(is_name) {
        return None;
    }
    let (labels, rest) = match line[end..].strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (Vec::new(), &line[end..]),
    };
    let value = rest.split_ascii_whitespace().next()?;
    Some(Sample {
        name: name.to_owned(),
        labels,
        value: value.to_owned(),
    })
}

/// `a="b",c="d"} rest`, the brace already taken.
fn labels(mut text: &str) -> Option<(Vec<(String, String)>, &str)> {
    let mut found = Vec::new();
    loop {
        text = text.trim_start_matches([',', ' ']);
        if let Some(rest) = text.strip_prefix('}') {
            return Some((found, rest));
        }
        let (name, rest) = text.split_once("=\"")?;
        let (value, rest) = quoted(rest)?;
        found.push((name.trim().to_owned(), value));
        text = rest;
    }
}

/// Up to the closing quote, escapes undone, and what follows it.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => match chars.next()?.1 {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            _ => value.push(c),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Metrics {
        Metrics::parse("http://a/metrics", text.as_bytes()).unwrap()
    }

    #[test]
    fn labels_with_escapes_timestamps_and_exemplars_are_read() {
        let text =
            "# HELP a b\na:b{x=\"1\\\"}\\n\",y=\"{\",} 2000.0 1700000000 # {t=\"1\"} 3\nplain 7\n";
        let metrics = parse(text);
        let sample = metrics.of("a:b").next().unwrap();
        assert_eq!(sample.label("x"), Some("1\"}\n"));
        assert_eq!(sample.label("y"), Some("{"));
        let count = metrics.count(sample, &["y"]).unwrap();
        assert_eq!(count.value, 2000);
        assert_eq!(count.source.to_string(), "http://a/metrics a:b{y=\"{\"}");
        assert_eq!(metrics.of("plain").count(), 1);
    }

    #[test]
    fn values_that_are_no_counts_are_absurd() {
        for value in [
            "NaN", "+Inf", "-1", "0.0", "0.5", "9.2e18", "1e300", "3k", "3,000", "None",
        ] {
            let metrics = parse(&format!("n 1\nm {value}\n"));
            let sample = metrics.of("m").next().unwrap();
            assert!(
                matches!(metrics.count(sample, &[]), Err(Unknown::Absurd(_))),
                "{value}"
            );
        }
    }

    #[test]
    fn labels_that_are_no_counts_are_absurd_or_missing() {
        let metrics =
            parse("m{a=\"None\",b=\"+3\",c=\"\",d=\"18446744073709551616\",e=\"16\"} 1\n");
        let sample = metrics.of("m").next().unwrap();
        let read = |label| metrics.label_count(sample, label, &[]);
        assert!(matches!(read("a"), Err(Unknown::NotReported { .. })));
        assert!(matches!(read("b"), Err(Unknown::Absurd(_))));
        assert!(matches!(read("c"), Err(Unknown::NotReported { .. })));
        assert!(matches!(read("d"), Err(Unknown::Absurd(_))));
        assert!(matches!(read("z"), Err(Unknown::NotReported { .. })));
        assert_eq!(read("e").unwrap().value, 16);
    }

    #[test]
    fn what_has_no_sample_is_garbage() {
        let parse = |text: &str| Metrics::parse("u", text.as_bytes()).unwrap_err();
        assert!(matches!(
            parse("hello\nm x\nm{a=\"b 1\n"),
            Trouble::Garbage { .. }
        ));
        assert_eq!(parse("<html>"), Trouble::Html);
        let cut = Trouble::Garbage {
            why: "it ends within a line".into(),
        };
        assert_eq!(parse("m 1\nn{a=\"b"), cut);
        assert_eq!(parse("m 1\nvllm:spec_dec"), cut);
        for whole in ["m 1\n", "m 1", "m 1\n# EOF", "m 1\n# EOF\n\n"] {
            assert!(Metrics::parse("u", whole.as_bytes()).is_ok(), "{whole:?}");
        }
    }
}
