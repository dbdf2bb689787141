//! One figure from several places that report it.

use crate::facts::figure::{
    Contradiction, Fact, Figure, FigureSource, Measured, TOKENS_MAX, Unknown,
};
use crate::facts::node::Warning;
use std::fmt::Display;

/// The figure on which all places that have one agree.
///
/// # Errors
/// Two differ; or none has one, and then the most telling reason of all.
pub(crate) fn agreed<T: PartialEq + Display>(
    places: Vec<Fact<Figure<T>>>,
    warnings: &mut Vec<Warning>,
) -> Fact<Figure<T>> {
    let mut found: Option<Figure<T>> = None;
    let mut reasons = Vec::new();
    for place in places {
        match (place, &found) {
            (Err(reason), _) => {
                warn_absurd(&reason, warnings);
                reasons.push(reason);
            }
            (Ok(figure), None) => found = Some(figure),
            (Ok(figure), Some(first)) if figure.value != first.value => {
                return Err(contradiction(first, &figure, "must be equal"));
            }
            (Ok(_), Some(_)) => {}
        }
    }
    match found {
        Some(found) => consistent(found, &reasons),
        None => Err(worst(reasons)),
    }
}

/// The figure, unless a place says another number in a form that it must not have: `"3000"`,
/// `3000.0` or `3k` is not believed, and cannot be passed over either.
fn consistent<T: Display>(found: Figure<T>, reasons: &[Unknown]) -> Fact<Figure<T>> {
    let Ok(value) = found.value.to_string().parse() else {
        return Ok(found);
    };
    for reason in reasons {
        let Unknown::Absurd(it) = reason else {
            continue;
        };
        if says_another(&it.found, value) {
            let other = Figure::new(it.found.clone(), it.source.clone());
            let rule = "must be equal, and the second has not even the right form";
            return Err(contradiction(&found, &other, rule));
        }
    }
    Ok(found)
}

/// Whether a text that is no count may mean another one. What is below 1 or absurdly large is the
/// way of many settings to say that they are not set.
fn says_another(found: &str, value: u64) -> bool {
    if !found.contains(|c: char| c.is_ascii_digit()) {
        return false;
    }
    let readings = readings(found);
    let set = |it: &f64| (1.0..=TOKENS_MAX as f64).contains(it);
    let same = readings.contains(&(value as f64));
    !same && (readings.is_empty() || readings.iter().any(set))
}

/// The numbers that a text may mean: `8,000`, `8_000 tokens`, `8k` (of 1,000 or of 1,024). None:
/// it has digits, and nobody knows what they say.
fn readings(text: &str) -> Vec<f64> {
    let text = text.trim_matches('"').trim().to_lowercase();
    let text = text.trim_end_matches("tokens").trim_end();
    let (digits, power) = match text.char_indices().next_back() {
        Some((at, 'k')) => (&text[..at], 1),
        Some((at, 'm')) => (&text[..at], 2),
        Some((at, 'g')) => (&text[..at], 3),
        _ => (text, 0),
    };
    let plain: String = digits
        .chars()
        .filter(|it| !matches!(it, ',' | '_' | ' ' | '\''))
        .collect();
    let Ok(number) = plain.parse::<f64>() else {
        return Vec::new();
    };
    [1000.0_f64, 1024.0]
        .map(|unit| number * unit.powi(power))
        .into()
}

/// The smallest of all places that have a figure. If they differ, the smallest counts, since what
/// holds for it holds for the others, and a warning says so.
///
/// # Errors
/// None has one: the most telling reason of all.
pub(crate) fn smallest(
    places: Vec<Fact<Figure<u64>>>,
    warnings: &mut Vec<Warning>,
) -> Fact<Figure<u64>> {
    let mut found: Vec<Figure<u64>> = Vec::new();
    let mut reasons = Vec::new();
    for place in places {
        match place {
            Ok(figure) => found.push(figure),
            Err(reason) => {
                warn_absurd(&reason, warnings);
                reasons.push(reason);
            }
        }
    }
    let largest = found.iter().max_by_key(|it| it.value).cloned();
    let Some(smallest) = found.into_iter().min_by_key(|it| it.value) else {
        return Err(worst(reasons));
    };
    if let Some(largest) = largest.filter(|it| it.value != smallest.value) {
        let text = format!(
            "{} here, {} at {}: the smaller counts",
            smallest.value, largest.value, largest.source
        );
        warnings.push(Warning {
            text,
            source: smallest.source.clone(),
        });
    }
    consistent(smallest, &reasons)
}

/// A value that was passed over because another place has a good one is still told.
fn warn_absurd(reason: &Unknown, warnings: &mut Vec<Warning>) {
    if let Unknown::Absurd(it) = reason {
        let text = format!("{} is passed over: {}", it.found, it.why);
        warnings.push(Warning {
            text,
            source: it.source.clone(),
        });
    }
}

/// Two figures that cannot both be.
pub(crate) fn contradiction<T: Display, U: Display>(
    one: &Figure<T>,
    other: &Figure<U>,
    rule: &str,
) -> Unknown {
    fn text<V: Display>(it: &Figure<V>) -> Figure<String> {
        Figure::new(it.value.to_string(), it.source.clone())
    }
    Unknown::Contradiction(Box::new(Contradiction {
        one: text(one),
        other: text(other),
        rule: rule.to_owned(),
    }))
}

/// The reason to tell: an absurd value before an answer that did not come, and this before a field
/// that is not there; of the last, all places that were looked at.
pub(crate) fn worst(reasons: Vec<Unknown>) -> Unknown {
    let rank = |it: &Unknown| match it {
        Unknown::NotReported { .. } => 0,
        Unknown::NotRead { trouble, .. } if trouble.is_absent() => 1,
        Unknown::NotRead { .. } => 2,
        Unknown::NotSupported { .. } => 3,
        Unknown::Contradiction(_) => 4,
        Unknown::Absurd(_) => 5,
    };
    let looked = reasons.iter().filter_map(|it| match it {
        Unknown::NotReported { looked } => Some(looked.clone()),
        _ => None,
    });
    let looked: Vec<String> = looked.flatten().collect();
    let mut worst = Unknown::NotReported { looked };
    for reason in reasons {
        if rank(&reason) > rank(&worst) {
            worst = reason;
        }
    }
    worst
}

/// Nothing reports it; `looked` says where it would have been.
pub(crate) fn not_reported<T>(looked: &str) -> Fact<T> {
    let looked = vec![looked.to_owned()];
    Err(Unknown::NotReported { looked })
}

/// The caller vouches that the figure is what the process has.
pub(crate) fn measured<T>(figure: Figure<T>) -> Measured<T> {
    Measured::new(figure.value, figure.source)
}

/// Computed from others.
pub(crate) fn derived<T>(value: T, formula: &str, from: Vec<FigureSource>) -> Figure<T> {
    let formula = formula.to_owned();
    Figure::new(value, FigureSource::Derived { formula, from })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(value: u64) -> Fact<Figure<u64>> {
        let field = format!("f{value}");
        Ok(Figure::new(
            value,
            FigureSource::Field {
                url: "u".into(),
                field,
            },
        ))
    }

    #[test]
    fn the_smallest_counts_and_a_difference_is_told() {
        let mut warnings = Vec::new();
        let places = vec![not_reported("x"), figure(9), figure(7), figure(8)];
        assert_eq!(smallest(places, &mut warnings).unwrap().value, 7);
        assert_eq!(warnings.len(), 1);
        assert_eq!(warnings[0].text, "7 here, 9 at u f9: the smaller counts");
        let mut none = Vec::new();
        assert_eq!(
            smallest(vec![figure(7), figure(7)], &mut none)
                .unwrap()
                .value,
            7
        );
        assert!(none.is_empty());
    }

    #[test]
    fn another_number_in_a_wrong_form_is_a_contradiction_and_not_passed_over() {
        let wrong = |found: &str| {
            let source = FigureSource::Field {
                url: "u".into(),
                field: "wrong".into(),
            };
            Err(crate::facts::json::absurd(found, source, "no count"))
        };
        for found in [
            "\"3000\"",
            "3000.0",
            "3000.5",
            " 3,000 ",
            "3k",
            "3_000 tokens",
            "0.003M",
            "0x1770",
            "[6000]",
        ] {
            let places = || vec![wrong(found), figure(6000)];
            let mut warnings = Vec::new();
            for fact in [
                smallest(places(), &mut warnings),
                agreed(places(), &mut warnings),
            ] {
                assert!(
                    matches!(fact, Err(Unknown::Contradiction(_))),
                    "{found}: {fact:?}"
                );
            }
        }
        // The same number in a wrong form, and what is no number at all, is only told.
        for found in [
            "\"6000\"",
            "6000.0",
            "6_000",
            "6K",
            "6 000 tokens",
            "NaN",
            "lots",
            "-1",
            "0",
            "9223372036854775807",
        ] {
            let mut warnings = Vec::new();
            let fact = smallest(vec![wrong(found), figure(6000)], &mut warnings);
            assert_eq!((fact.unwrap().value, warnings.len()), (6000, 1), "{found}");
        }
    }

    #[test]
    fn figures_that_must_be_equal_and_are_not_are_no_figure() {
        let agreed = |places| super::agreed::<u64>(places, &mut Vec::new());
        assert_eq!(
            agreed(vec![figure(7), not_reported("x"), figure(7)])
                .unwrap()
                .value,
            7
        );
        let unknown = agreed(vec![figure(7), figure(8)]).unwrap_err();
        assert_eq!(
            unknown.to_string(),
            "7 at u f7 contradicts 8 at u f8 (must be equal)"
        );
        let Err(Unknown::NotReported { looked }) =
            agreed(vec![not_reported("x"), not_reported("y")])
        else {
            panic!("nothing is reported");
        };
        assert_eq!(looked, ["x", "y"]);
    }
}
