//! Names that settings speak of, and that a log does not have: misspelt, or of another log.

use ::watch::{Request, Settings};
use std::collections::BTreeMap;

/// Names that are counted apart.
const NAMES_MAX: usize = 1000;
/// Names that are printed.
const NAMED_MAX: usize = 5;

/// Models and tenants of a log, with their requests.
#[derive(Default)]
pub(super) struct Names {
    models: BTreeMap<String, u64>,
    tenants: BTreeMap<String, u64>,
}

impl Names {
    pub(super) fn add(&mut self, request: &Request) {
        count(&mut self.models, &request.model);
        count(&mut self.tenants, &request.tenant);
    }

    /// What settings name and no request has. No error: the same settings are used for every day's
    /// log.
    pub(super) fn unmatched(&self, settings: &Settings) -> Vec<String> {
        let models = settings.limits.keys().filter(|it| *it != "*");
        let models = models.map(|it| ("limit", "model", it, &self.models));
        let tenants = settings.test_tenants.iter();
        let tenants = tenants.map(|it| ("test tenant", "tenant", it, &self.tenants));
        let missing = |(_, _, name, known): &(_, _, &String, &BTreeMap<String, u64>)| {
            known.len() < NAMES_MAX && !known.contains_key(*name)
        };
        let say = |(setting, what, name, known)| {
            format!(
                "{setting} {name:?}: no request is of that {what}; there are {}",
                most(known)
            )
        };
        models.chain(tenants).filter(missing).map(say).collect()
    }
}

fn count(names: &mut BTreeMap<String, u64>, name: &str) {
    if let Some(n) = names.get_mut(name) {
        *n += 1;
    } else if names.len() < NAMES_MAX {
        names.insert(name.to_owned(), 1);
    }
}

/// Those with the most requests.
fn most(known: &BTreeMap<String, u64>) -> String {
    let mut names: Vec<_> = known.iter().collect();
    names.sort_by_key(|(name, n)| (std::cmp::Reverse(**n), name.as_str()));
    let shown: Vec<_> = names
        .iter()
        .take(NAMED_MAX)
        .map(|(name, n)| format!("{name:?} ({n})"))
        .collect();
    match (shown.is_empty(), names.len().saturating_sub(NAMED_MAX)) {
        (true, _) => "none".to_owned(),
        (false, 0) => shown.join(", "),
        (false, n) => format!("{} and {n} more", shown.join(", ")),
    }
}
