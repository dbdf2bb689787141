//! What the entries of a journal add up to: who may ask now, what is open, what was proven.

use crate::entry::{Dated, Entry, Life, Openness, Proof, ProofKind, Scope, SignalKind};
use crate::times::Ms;
use std::collections::BTreeMap;

/// Incidents that are kept whole in memory; older ones that are closed are read from the journal.
const INCIDENTS_MAX: usize = 200;
/// Entries of one incident that are kept in memory.
const TIMELINE_MAX: usize = 500;
/// Proofs that are kept.
const PROOFS_MAX: usize = 256;

/// A door that is not fully open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restriction {
    /// How far it is.
    pub access: Openness,
    /// Why.
    pub why: String,
    /// Since when.
    pub since: Ms,
    /// The incident that it belongs to.
    pub incident: Option<String>,
}

/// An incident, as far as its entries go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incident {
    /// Its name.
    pub id: String,
    /// What it is about.
    pub scope: Scope,
    /// In a sentence: a person's, or else the gravest of what was found.
    pub title: String,
    /// When it was opened.
    pub opened: Ms,
    /// When it was closed.
    pub closed: Option<Ms>,
    /// Who opened it.
    pub by: String,
    /// Signals, written down or only counted.
    pub signals: u64,
    /// The lives at which they were seen.
    pub lives: Vec<Life>,
    /// The shortest prompt that shows the fault, if it was looked for.
    pub trigger: Option<u64>,
    /// The shortest prompt that is not known to be answered well: 0 if that was not looked for.
    pub affects_from: u64,
    /// Requests that may have been answered wrongly, named or only counted; none: nobody has looked for them.
    pub affected: Option<u64>,
    /// How many of them are whose.
    pub tenants: BTreeMap<String, u64>,
    /// Its entries, oldest first.
    pub timeline: Vec<Dated>,
}

impl Incident {
    /// Whether lives were found since it was last looked for who is affected.
    pub fn has_new_lives(&self) -> bool {
        let looked = |it: &Dated| matches!(it.entry, Entry::Affected { .. });
        let Some(at) = self.timeline.iter().rposition(looked) else {
            return !self.lives.is_empty();
        };
        let of = |it: &Dated| match &it.entry {
            Entry::Signal { signal, .. } => signal.lives.clone(),
            _ => Vec::new(),
        };
        let (before, since) = self.timeline.split_at(at);
        let known: Vec<Life> = before.iter().flat_map(of).collect();
        since.iter().flat_map(of).any(|life| !known.contains(&life))
    }

    /// When a person has opened again what was closed because of it, if nothing was found or closed since.
    pub fn restored(&self) -> Option<Ms> {
        let last = self.timeline.iter().rev().find(|it| {
            let entry = &it.entry;
            matches!(
                entry,
                Entry::Signal { .. } | Entry::Restricted { .. } | Entry::Restored { .. }
            )
        });
        last.filter(|it| matches!(it.entry, Entry::Restored { .. }))
            .map(|it| it.at)
    }
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Book {
    restrictions: BTreeMap<Scope, Restriction>,
    incidents: BTreeMap<String, Incident>,
    proofs: Vec<(Ms, Proof)>,
    model: Option<String>,
}

impl Book {
    /// One entry more.
    pub fn apply(&mut self, dated: &Dated) {
        let at = dated.at;
        match &dated.entry {
            Entry::Restricted {
                scope,
                access,
                why,
                incident,
                ..
            } => {
                let restriction = Restriction {
                    access: *access,
                    why: why.clone(),
                    since: at,
                    incident: incident.clone(),
                };
                self.restrictions.insert(scope.clone(), restriction);
            }
            Entry::Began { model, .. } => self.model = Some(model.clone()),
            Entry::Restored { scope, .. } => {
                self.restrictions.remove(scope);
            }
            Entry::Opened {
                incident,
                scope,
                title,
                by,
            } => self.opened(at, incident, scope, (title, by)),
            Entry::Proved { proof } => {
                if self.proofs.len() >= PROOFS_MAX {
                    self.proofs.remove(0);
                }
                self.proofs.push((at, proof.clone()));
            }
            _ => {}
        }
        // What happens to engines while an incident is open is a part of its story.
        let common = matches!(
            dated.entry,
            Entry::NewLife { .. } | Entry::Proved { .. } | Entry::Declined { .. }
        );
        let incident = dated.entry.incident();
        for it in self.incidents.values_mut() {
            if Some(it.id.as_str()) == incident || (common && it.closed.is_none()) {
                it.take(dated);
            }
        }
    }

    fn opened(&mut self, at: Ms, id: &str, scope: &Scope, (title, by): (&String, &String)) {
        let incident = Incident {
            id: id.to_owned(),
            scope: scope.clone(),
            title: title.clone(),
            opened: at,
            closed: None,
            by: by.clone(),
            signals: 0,
            lives: Vec::new(),
            trigger: None,
            affects_from: 0,
            affected: None,
            tenants: BTreeMap::new(),
            timeline: Vec::new(),
        };
        self.incidents.insert(id.to_owned(), incident);
        while self.incidents.len() > INCIDENTS_MAX {
            let closed = self.incidents.values().filter(|it| it.closed.is_some());
            let Some(oldest) = closed.min_by_key(|it| it.opened) else {
                return; // what is open is never forgotten
            };
            let oldest = oldest.id.clone();
            self.incidents.remove(&oldest);
        }
    }

    /// What the gateway that began last serves.
    pub fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }

    /// Doors that are not fully open.
    pub fn restrictions(&self) -> impl Iterator<Item = (&Scope, &Restriction)> {
        self.restrictions.iter()
    }

    /// The door of all engines of a model.
    pub fn of_model(&self, model: &str) -> Option<&Restriction> {
        let scopes = [Scope::Fleet, Scope::Model(model.to_owned())];
        let of = scopes
            .iter()
            .filter_map(|scope| self.restrictions.get(scope));
        of.max_by_key(|it| it.access)
    }

    /// The door of one engine, beside that of its model: who of a pair is to blame is not known, so
    /// both are.
    pub fn of_engine(&self, engine: &str) -> Option<&Restriction> {
        let of = self.restrictions.iter().filter(|(scope, _)| match scope {
            Scope::Pair(prefill, decode) => prefill == engine || decode == engine,
            Scope::Engine(name) => name == engine,
            Scope::Fleet | Scope::Model(_) => false,
        });
        of.map(|(_, it)| it).max_by_key(|it| it.access)
    }

    /// The restriction of exactly this scope.
    pub fn restriction(&self, scope: &Scope) -> Option<&Restriction> {
        self.restrictions.get(scope)
    }

    /// Incidents, newest first.
    pub fn incidents(&self) -> Vec<&Incident> {
        let mut all: Vec<_> = self.incidents.values().collect();
        all.sort_by_key(|it| (it.closed.is_some(), std::cmp::Reverse(it.opened)));
        all
    }

    /// The incident of this name.
    pub fn incident(&self, id: &str) -> Option<&Incident> {
        self.incidents.get(id)
    }

    /// The open incident of exactly this scope.
    pub fn open(&self, scope: &Scope) -> Option<&Incident> {
        let mut open = self.incidents.values();
        open.find(|it| it.closed.is_none() && it.scope == *scope)
    }

    /// The newest proof of this kind about a life that was made since then.
    pub fn proof(&self, kind: ProofKind, life: &Life, since: Ms) -> Option<(Ms, &Proof)> {
        let mut newest = self.proofs.iter().rev();
        let found = newest.find(|(at, it)| {
            *at >= since && it.proof == kind && it.lives.iter().any(|it| it.is(life))
        });
        found.map(|(at, it)| (*at, it))
    }
}

impl Incident {
    fn take(&mut self, dated: &Dated) {
        match &dated.entry {
            Entry::Signal { signal, .. } => {
                self.signals += 1;
                self.is_called_by(signal.signal);
                for life in &signal.lives {
                    if !self.lives.contains(life) {
                        self.lives.push(life.clone());
                    }
                }
            }
            Entry::More { count, .. } => self.signals += count,
            Entry::Trigger {
                at_least_tokens,
                clean_tokens,
                ..
            } => {
                self.trigger = Some(*at_least_tokens);
                self.affects_from = clean_tokens + 1;
            }
            Entry::Affected {
                requests,
                more,
                tenants,
                ..
            } => {
                self.tenants = tenants.clone();
                // Each finding of them is the whole of what is known then.
                self.affected = Some(requests.len() as u64 + more);
            }
            Entry::Closed { .. } => self.closed = Some(dated.at),
            _ => {}
        }
        if self.timeline.len() >= TIMELINE_MAX {
            self.forget_one();
        }
        self.timeline.push(dated.clone());
    }

    /// The title that policy gave it is that of the gravest finding, whichever came first.
    fn is_called_by(&mut self, kind: SignalKind) {
        let called = |it: &SignalKind| it.incident(&self.scope) == self.title;
        let before = SignalKind::ALL.into_iter().find(called);
        if before.is_some_and(|it| kind < it) {
            self.title = kind.incident(&self.scope);
        }
    }

    /// Makes room in a timeline that is full. What was done stays longer than what was found again, or else a
    /// flood of findings would hide that a person has restored it.
    fn forget_one(&mut self) {
        let spare = |it: &Dated| matches!(it.entry, Entry::More { .. });
        let found = |it: &Dated| matches!(it.entry, Entry::Signal { .. });
        let mut later = self.timeline.iter().skip(2);
        let at = later
            .clone()
            .position(spare)
            .or_else(|| later.position(found));
        // The first two say how it began.
        self.timeline.remove(2 + at.unwrap_or(0));
    }
}
