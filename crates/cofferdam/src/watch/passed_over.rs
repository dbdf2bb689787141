//! Lines that `only` passes over: a filter that keeps nothing is a mistake, and not a quiet log.

use ::watch::fields::Fields;
use std::collections::BTreeMap;

/// Values of fields that are counted apart.
const VALUES_MAX: usize = 1000;
/// Values that are named.
const NAMED_MAX: usize = 5;

/// What was passed over, by field and by what stands there.
#[derive(Clone, Debug, Default)]
pub(super) struct PassedOver {
    /// Lines that were not.
    pub kept: u64,
    lines: u64,
    values: BTreeMap<(String, Option<String>), u64>,
}

impl PassedOver {
    pub(super) fn add(&mut self, field: &str, value: Option<&str>) {
        self.lines += 1;
        let key = (field.to_owned(), value.map(str::to_owned));
        self.count(key, 1);
    }

    pub(super) fn merge(&mut self, other: PassedOver) {
        self.kept += other.kept;
        self.lines += other.lines;
        for (key, n) in other.values {
            self.count(key, n);
        }
    }

    fn count(&mut self, key: (String, Option<String>), n: u64) {
        if self.values.len() < VALUES_MAX || self.values.contains_key(&key) {
            *self.values.entry(key).or_default() += n;
        }
    }

    /// What to say if nothing was kept.
    pub(super) fn nothing_kept(&self, fields: &Fields) -> Option<String> {
        if self.kept > 0 || self.lines == 0 {
            return None;
        }
        let mut by_field: BTreeMap<&str, Vec<(u64, Option<&str>)>> = BTreeMap::new();
        for ((field, value), n) in &self.values {
            let values = by_field.entry(field).or_default();
            values.push((*n, value.as_deref()));
        }
        let said = by_field.into_iter().map(|(field, mut values)| {
            values.sort_by_key(|(n, _)| std::cmp::Reverse(*n));
            let of = |(n, value): &(u64, Option<&str>)| match value {
                Some(value) => format!("{value:?} ({n})"),
                None => format!("no such field ({n})"),
            };
            let named: Vec<_> = values.iter().take(NAMED_MAX).map(of).collect();
            let more = match values.len().saturating_sub(NAMED_MAX) {
                0 => String::new(),
                n => format!(" and {n} more"),
            };
            let wanted = fields.wanted(field);
            format!(
                "{field} must be one of {wanted:?} and is {}{more}",
                named.join(", ")
            )
        });
        let said: Vec<_> = said.collect();
        Some(format!(
            "[fields.only] keeps none of {} lines: {}",
            self.lines,
            said.join("; ")
        ))
    }
}
