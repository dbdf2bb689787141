//! Both together: for each request that received something, who had its pages before.

use super::{Owners, Received, Requests};
use std::collections::{BTreeMap, BTreeSet};

/// Earlier owners that are listed for one request; more are counted.
const EARLIER_MAX: usize = 10_000;

/// A request that received something.
#[derive(Debug, Default)]
pub struct Victim {
    /// The gateway's id.
    pub request: String,
    /// Who asked.
    pub tenant: Option<String>,
    /// Whose text it may have been.
    pub sources: Vec<Source>,
    /// Owners before those, of the same pages: only if whoever came between did not fill them.
    pub earlier: Vec<Source>,
    /// More of these than are listed.
    pub earlier_more: usize,
    /// What is not known, in words.
    pub unknown: Vec<String>,
}

impl Victim {
    /// Sources that were not the same tenant's.
    pub fn others(&self) -> impl Iterator<Item = &Source> {
        let own = |it: &&Source| it.tenant.is_none() || it.tenant != self.tenant;
        self.sources.iter().filter(own)
    }
}

/// Whose text it may have been.
#[derive(Debug)]
pub struct Source {
    /// The gateway's id, or the engine's where the access log does not have it.
    pub request: String,
    /// Who asked; none where the access log does not say.
    pub tenant: Option<String>,
    /// Life of the worker in whose pool it was.
    pub life: String,
    /// What that worker is.
    pub role: String,
    /// How many pages went from one to the other.
    pub pages: usize,
    /// When the first of them did.
    pub time: f64,
}

/// For each request that received something, whose text it may have been.
pub fn join(received: &Received, owners: &Owners, requests: &Requests) -> Vec<Victim> {
    let of = |id: &String| victim(id, owners, requests);
    received.requests.iter().map(of).collect()
}

fn victim(id: &str, owners: &Owners, requests: &Requests) -> Victim {
    let mut it = Victim {
        request: id.to_owned(),
        ..Victim::default()
    };
    let Some(known) = requests.of_id(id) else {
        it.unknown
            .push("the access log has no such request that an engine took on".to_owned());
        return it;
    };
    it.tenant = known.tenant.clone();
    for life in known
        .lives
        .iter()
        .filter(|epoch| !owners.lives.contains_key(*epoch))
    {
        it.unknown
            .push(format!("there is no record of the pages of worker {life}"));
    }
    let mut names = BTreeSet::new();
    for engine in &known.engine {
        let attempts = owners.attempts(engine);
        names.extend(attempts.iter().map(String::as_str));
        names.insert(engine);
    }
    let mut direct = BTreeMap::new();
    let mut before = BTreeMap::new();
    for (epoch, life) in &owners.lives {
        let concerned = known.lives.contains(epoch);
        let mut pages = BTreeMap::new();
        for take in names.iter().flat_map(|name| life.takes_of(name)) {
            for (owner, of) in &take.from {
                let from = owners.request(owner);
                if known.engine.iter().any(|own| own == from) {
                    continue; // another attempt at the same request
                }
                let entry = direct
                    .entry((epoch.clone(), from.to_owned()))
                    .or_insert((0, take.time));
                entry.0 += of.len();
                pages.extend(of.iter().map(|page| (*page, take.time)));
            }
        }
        if concerned
            && !names
                .iter()
                .any(|name| life.takes_of(name).next().is_some())
        {
            it.unknown.push(match life.whole && life.lost == 0 {
                true => format!("{} {epoch} wrote down nothing about it", life.role),
                false => format!("{} {epoch}: {}", life.role, gap(life)),
            });
        } else if concerned && (life.lost > 0 || !life.whole && known.began < life.since) {
            it.unknown
                .push(format!("{} {epoch}: {}", life.role, gap(life)));
        }
        // Whoever had the same pages before.
        for take in life.takes.iter().filter(|_| !pages.is_empty()) {
            for (owner, of) in &take.from {
                let from = owners.request(owner);
                let older = of
                    .iter()
                    .filter(|page| pages.get(page).is_some_and(|at| take.time < *at));
                let n = older.count();
                let key = (epoch.clone(), from.to_owned());
                if n > 0
                    && !direct.contains_key(&key)
                    && !known.engine.iter().any(|own| own == from)
                {
                    before.entry(key).or_insert((0, take.time)).0 += n;
                }
            }
        }
    }
    let source = |((life, engine), (pages, time)): ((String, String), (usize, f64))| {
        let known = requests.of_engine(&engine);
        Source {
            request: known.map_or(engine, |it| it.id.clone()),
            tenant: known.and_then(|it| it.tenant.clone()),
            role: owners.lives[&life].role.clone(),
            life,
            pages,
            time,
        }
    };
    it.sources = direct.into_iter().map(source).collect();
    it.earlier_more = before.len().saturating_sub(EARLIER_MAX);
    it.earlier = before.into_iter().take(EARLIER_MAX).map(source).collect();
    it
}

/// Why a life's files do not say everything.
fn gap(life: &super::owners::Life) -> String {
    let at = gate::date::rfc3339(life.since.max(0.0) as u64);
    let over = match life.whole {
        true => String::new(),
        false => format!("what was written before {at} was written over"),
    };
    match (life.lost, over.is_empty()) {
        (0, _) => over,
        (n, true) => format!("{n} lines could not be written"),
        (n, false) => format!("{over}, and {n} lines could not be written"),
    }
}
