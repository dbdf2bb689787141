//! What is done about a signal, and what a person may do. Deterministic: moments and names are given.
//!
//! A door that was closed stays closed until a person opens it, whatever happens meanwhile, and then
//! only if everything that runs behind it has been tested since ([`crate::policy::Restore`]).

use crate::book::Book;
use crate::entry::{Dated, Entry, Life, Openness, ProofKind, Scope, Signal, SignalKind, shortened};
use crate::policy::{Breadth, Policy, Response, Rule};
use crate::report::counted;
use crate::times::{Ms, span, written};
use std::collections::{BTreeMap, VecDeque};

/// Signals of one incident that get a line each; further ones are counted.
const LINES_MAX: u64 = 100;
/// Signals of a kind that get a line each while they belong to no incident, in the time of their rule.
const LOOSE_MAX: usize = 20;
/// Time between two lines that count further ones.
const COUNT_EVERY_MS: Ms = 60_000;
/// Signals that are remembered of one kind and scope, to see whether they repeat.
const RECENT_MAX: usize = 1000;
/// Scopes that are remembered.
const SCOPES_MAX: usize = 4096;

/// What a person asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// No more than this from now on.
    Restrict(Scope, Openness),
    /// Open again.
    Restore(Scope),
    /// An incident.
    Open(Scope),
    /// Words to an incident.
    Note(String),
    /// The end of an incident.
    Close(String),
}

/// How far canaries are with a proof about a life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proving {
    /// Nobody sends any.
    Off,
    /// So many answers count so far.
    Answers(u64),
    /// They have found something there: of that life they prove nothing any more.
    Found,
}

/// Why a person's wish was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refusal(pub String);

/// See the module.
#[derive(Clone, Debug)]
pub struct Duty {
    policy: Policy,
    model: String,
    book: Book,
    recent: BTreeMap<(SignalKind, Scope), VecDeque<Ms>>,
    /// Signals of an incident that have no line yet, and when the last was counted.
    uncounted: BTreeMap<(SignalKind, Option<String>), (u64, Ms)>,
}

impl Duty {
    /// On duty for a model, from what the journal says.
    pub fn new(policy: Policy, model: &str, book: Book) -> Self {
        Self {
            policy,
            model: model.to_owned(),
            book,
            recent: BTreeMap::new(),
            uncounted: BTreeMap::new(),
        }
    }

    /// What it stands on.
    pub fn book(&self) -> &Book {
        &self.book
    }

    /// What it follows.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// What another process has written into the same journal.
    pub fn heard(&mut self, dated: &Dated) {
        self.book.apply(dated);
    }

    /// Something was found out. `name`: what an incident is to be called, if one begins.
    pub fn signal(&mut self, at: Ms, signal: Signal, name: &str) -> Vec<Dated> {
        let rule = self.policy.rule(signal.signal);
        let scope = self.scope(rule, &signal.lives);
        let often = self.often(at, signal.signal, &scope, rule);
        let mut entries = Vec::new();
        // What happens at a pair while its model has an incident belongs to that.
        let wider = [
            scope.clone(),
            Scope::Model(self.model.clone()),
            Scope::Fleet,
        ];
        let open = wider.iter().find_map(|it| self.book.open(it));
        let open = open.map(|it| it.id.clone());
        let opens = open.is_none() && often && rule.act != Response::Note;
        let incident = match opens {
            true => Some(name.to_owned()),
            false => open,
        };
        if opens {
            entries.push(Entry::Opened {
                incident: name.to_owned(),
                scope: scope.clone(),
                title: signal.signal.incident(&scope),
                by: format!("policy, on {}", signal.signal.as_str()),
            });
        }
        let kind = signal.signal;
        let says = signal.says.clone();
        let loose = self
            .recent
            .get(&(kind, scope.clone()))
            .map_or(0, VecDeque::len);
        entries.extend(self.line(at, signal, incident.clone(), loose));
        let access = rule.act.access();
        let before = wider.iter().filter_map(|it| self.book.restriction(it));
        let before = before.map(|it| it.access).max();
        // Only ever further closed.
        if often && access > before.unwrap_or_default() {
            entries.push(Entry::Restricted {
                scope,
                access,
                why: shortened(&format!("{}: {says}", kind.as_str())),
                by: "policy".to_owned(),
                incident,
            });
        }
        self.written(at, entries)
    }

    /// Lines for what was only counted so far.
    pub fn counted(&mut self, at: Ms) -> Vec<Dated> {
        let mut entries = Vec::new();
        self.uncounted.retain(|(kind, incident), (count, since)| {
            let due = *count > 0 && at >= *since + COUNT_EVERY_MS;
            if due {
                entries.push(Entry::More {
                    signal: *kind,
                    count: *count,
                    incident: incident.clone(),
                });
            }
            !due
        });
        self.written(at, entries)
    }

    /// What else is to stand there.
    pub fn note(&mut self, at: Ms, entry: Entry) -> Vec<Dated> {
        self.written(at, vec![entry])
    }

    /// A person wants something. `running`: the lives that run now, of every engine.
    ///
    /// # Errors
    /// Why it is not done. The wish and the refusal are for the journal too.
    pub fn asked(
        &mut self,
        at: Ms,
        asked: Asked,
        (by, why): (&str, &str),
        running: &[Life],
        name: &str,
    ) -> (Vec<Dated>, Result<String, Refusal>) {
        let why = why.trim();
        if why.is_empty() {
            let why = "a reason is needed: it is written down with what is done".to_owned();
            return (Vec::new(), Err(Refusal(why)));
        }
        let why = shortened(why);
        let wish = asked.to_string();
        let done = self.answer(at, asked, (by, &why), running, name);
        match done {
            Ok((entries, said)) => (self.written(at, entries), Ok(said)),
            Err(refusal) => {
                let entry = Entry::Declined {
                    what: format!("{wish}: {why}"),
                    why: refusal.0.clone(),
                    by: by.to_owned(),
                };
                (self.written(at, vec![entry]), Err(refusal))
            }
        }
    }

    fn answer(
        &self,
        at: Ms,
        asked: Asked,
        (by, why): (&str, &str),
        running: &[Life],
        name: &str,
    ) -> Result<(Vec<Entry>, String), Refusal> {
        let (by, why) = (by.to_owned(), why.to_owned());
        match asked {
            Asked::Restrict(scope, access) => {
                self.known(&scope, running)?;
                self.restrict(scope, access, by, why)
            }
            Asked::Restore(scope) => {
                let restriction = self.book.restriction(&scope);
                let restriction =
                    restriction.ok_or_else(|| Refusal(format!("{scope} is not restricted")))?;
                let incident = restriction.incident.clone();
                // Nothing was found out where a person drained it: then that person's word is enough.
                let proofs = match restriction.access {
                    Openness::Draining if incident.is_none() => Vec::new(),
                    _ => self.proven(at, &scope, running)?,
                };
                let said = format!("{scope} is open again");
                let restored = Entry::Restored {
                    scope,
                    why,
                    by,
                    proofs,
                    incident,
                };
                Ok((vec![restored], said))
            }
            Asked::Open(scope) => {
                self.known(&scope, running)?;
                if let Some(open) = self.book.open(&scope) {
                    return Err(Refusal(format!(
                        "incident {} about {scope} is open: add a note to it",
                        open.id
                    )));
                }
                let opened = Entry::Opened {
                    incident: name.to_owned(),
                    scope,
                    title: why,
                    by,
                };
                Ok((vec![opened], format!("incident {name} is open")))
            }
            Asked::Note(incident) => {
                self.incident(&incident)?;
                let noted = Entry::Noted {
                    incident,
                    text: why,
                    by,
                };
                Ok((vec![noted], "noted".to_owned()))
            }
            Asked::Close(incident) => {
                let known = self.incident(&incident)?;
                if let Some(at) = known.closed {
                    let at = written(at);
                    return Err(Refusal(format!("incident {incident} was closed at {at}")));
                }
                let mut held = self.book.restrictions();
                let held = held.find(|(_, it)| it.incident.as_deref() == Some(&incident));
                if let Some((scope, it)) = held {
                    return Err(Refusal(format!(
                        "{scope} is {} because of incident {incident}: restore it first",
                        it.access.as_str()
                    )));
                }
                let said = format!("incident {incident} is closed");
                Ok((vec![Entry::Closed { incident, why, by }], said))
            }
        }
    }

    fn restrict(
        &self,
        scope: Scope,
        access: Openness,
        by: String,
        why: String,
    ) -> Result<(Vec<Entry>, String), Refusal> {
        let before = self.book.restriction(&scope);
        if let Some(before) = before.filter(|it| it.access >= access) {
            return Err(Refusal(format!(
                "{scope} is {} since {}: what was closed is opened by restoring it, not by \
                 closing it less",
                before.access.as_str(),
                written(before.since)
            )));
        }
        // What a person closes further still belongs to the incident that closed it.
        let incident = before.and_then(|it| it.incident.clone());
        let incident = incident.or_else(|| self.book.open(&scope).map(|it| it.id.clone()));
        let said = format!("{scope} is {}", access.as_str());
        let restricted = Entry::Restricted {
            scope,
            access,
            why,
            by,
            incident,
        };
        Ok((vec![restricted], said))
    }

    fn incident(&self, id: &str) -> Result<&crate::book::Incident, Refusal> {
        let known = self.book.incident(id);
        known.ok_or_else(|| Refusal(format!("there is no incident {id:?}")))
    }

    /// That a person means something that is there.
    fn known(&self, scope: &Scope, running: &[Life]) -> Result<(), Refusal> {
        let there = |name: &str| running.iter().any(|it| it.engine == name);
        let missing = match scope {
            Scope::Fleet => None,
            Scope::Model(name) => (*name != self.model).then_some(name),
            Scope::Pair(prefill, decode) => [prefill, decode].into_iter().find(|it| !there(it)),
            Scope::Engine(name) => (!there(name)).then_some(name),
        };
        match missing {
            None => Ok(()),
            Some(name) => Err(Refusal(format!("{name:?} is not known here"))),
        }
    }

    /// What shows that everything that runs in a scope was tested, since it was closed.
    ///
    /// # Errors
    /// What was not.
    pub fn proven(&self, at: Ms, scope: &Scope, running: &[Life]) -> Result<Vec<String>, Refusal> {
        let lives = inside(scope, running);
        let refused = |why: String| Err(Refusal(format!("{scope} stays as it is: {why}")));
        if lives.is_empty() {
            return refused("nothing of it runs, so nothing of it can have been tested".to_owned());
        }
        let oldest = self.counts_from(at, scope);
        let mut proofs = Vec::new();
        for kind in &self.policy.restore.proofs {
            let name = kind.as_str();
            for life in &lives {
                let Some((made, proof)) = self.book.proof(*kind, life, oldest) else {
                    let (engine, life) = (&life.engine, &life.life);
                    return refused(format!(
                        "there is no proof by {name} about {engine} (life {life}) since {}",
                        written(oldest)
                    ));
                };
                let line = format!("{name}, {}: {}", written(made), proof.says);
                if !proofs.contains(&line) {
                    proofs.push(line);
                }
            }
        }
        Ok(proofs)
    }

    /// Proofs from before this say nothing of what a scope is now.
    fn counts_from(&self, at: Ms, scope: &Scope) -> Ms {
        let since = self.book.restriction(scope).map_or(0, |it| it.since);
        since.max(at.saturating_sub(self.policy.restore.max_age_ms))
    }

    fn scope(&self, rule: Rule, lives: &[Life]) -> Scope {
        let names: Vec<&str> = lives.iter().map(|it| it.engine.as_str()).collect();
        match (rule.scope, &names[..]) {
            (Breadth::Fleet, _) => Scope::Fleet,
            (Breadth::Pair, [one]) => Scope::Engine((*one).to_owned()),
            (Breadth::Pair, [prefill, decode]) => {
                Scope::Pair((*prefill).to_owned(), (*decode).to_owned())
            }
            // Who it was is not known, so it may be any of them.
            (Breadth::Pair | Breadth::Model, _) => Scope::Model(self.model.clone()),
        }
    }

    /// Whether that makes as many as the rule wants.
    fn often(&mut self, at: Ms, kind: SignalKind, scope: &Scope, rule: Rule) -> bool {
        if self.recent.len() >= SCOPES_MAX {
            self.recent
                .retain(|_, times| times.back().is_some_and(|last| at <= last + rule.within_ms));
        }
        let times = self.recent.entry((kind, scope.clone())).or_default();
        times.push_back(at);
        while times.len() > RECENT_MAX || times.front().is_some_and(|it| it + rule.within_ms < at) {
            times.pop_front();
        }
        times.len() >= rule.times as usize
    }

    /// A line for a signal, unless its incident has many already.
    fn line(
        &mut self,
        at: Ms,
        signal: Signal,
        incident: Option<String>,
        loose: usize,
    ) -> Option<Entry> {
        let known = |it: &Dated| matches!(&it.entry, Entry::Signal { signal: of, .. } if of.signal == signal.signal);
        let many = match &incident {
            // The first of a kind has a line, however many of another there are.
            Some(id) => self
                .book
                .incident(id)
                .is_some_and(|it| it.signals >= LINES_MAX && it.timeline.iter().any(known)),
            None => loose > LOOSE_MAX,
        };
        if many {
            let key = (signal.signal, incident);
            let (count, _) = self.uncounted.entry(key).or_insert((0, at));
            *count += 1;
            return None;
        }
        let says = shortened(&signal.says);
        let signal = Signal { says, ..signal };
        Some(Entry::Signal { signal, incident })
    }

    fn written(&mut self, at: Ms, entries: Vec<Entry>) -> Vec<Dated> {
        let dated: Vec<_> = entries
            .into_iter()
            .map(|entry| Dated { at, entry })
            .collect();
        for one in &dated {
            self.book.apply(one);
        }
        dated
    }

    /// What is to be done next about an incident, in plain words and with the commands for it. `canaries`: how far
    /// they are with a life.
    pub fn next_steps(
        &self,
        at: Ms,
        id: &str,
        running: &[Life],
        canaries: impl Fn(&Life) -> Proving,
    ) -> Vec<String> {
        let Some(incident) = self.book.incident(id).filter(|it| it.closed.is_none()) else {
            return Vec::new();
        };
        let held =
            |(_, it): &(&Scope, &crate::book::Restriction)| it.incident.as_deref() == Some(id);
        let tell = incident.affected.filter(|n| *n > 0).map(|n| {
            let requests = counted(n, "request is", "requests are");
            format!(
                "tell those who are affected: {requests} named by `cofferdam incident show {id}`"
            )
        });
        let Some((scope, restriction)) = self.book.restrictions().find(held) else {
            let first = match incident.restored() {
                Some(_) => tell,
                None => Some(
                    "nothing is closed because of it: make it private if it can leak".to_owned(),
                ),
            };
            let last = "close it with the reason, when it is explained".to_owned();
            return first.into_iter().chain([last]).collect();
        };
        let mut steps = Vec::new();
        let proven = self.proven(at, scope, running);
        let same = running.iter().any(|it| incident.lives.contains(it));
        if proven.is_err() && same {
            steps.push(
                "keep the processes for the evidence, then put repaired ones in their place"
                    .to_owned(),
            );
        }
        steps.extend(tell);
        steps.extend(self.tests(at, scope, running, canaries));
        let since = span(at.saturating_sub(restriction.since));
        let access = restriction.access.as_str();
        steps.push(match (proven, inside(scope, running).is_empty()) {
            (Ok(_), _) => format!(
                "{scope} is {access} since {since}; what runs now was tested: restore it on the \
                 operators' page, with the reason"
            ),
            (_, true) => {
                format!("{scope} is {access} since {since}, and nothing of it runs: start it")
            }
            _ => format!(
                "then restore it on the operators' page, with the reason: {scope} is {access} since {since}"
            ),
        });
        steps
    }

    /// What has to be tested before a scope is opened again, and how.
    fn tests(
        &self,
        at: Ms,
        scope: &Scope,
        running: &[Life],
        canaries: impl Fn(&Life) -> Proving,
    ) -> Vec<String> {
        let oldest = self.counts_from(at, scope);
        let kinds = &self.policy.restore.proofs;
        let by_canary = kinds.contains(&ProofKind::Canary);
        // Whatever else is tested of these proves nothing that counts.
        let convicted = |life: &&Life| by_canary && canaries(life) == Proving::Found;
        let (found, can): (Vec<_>, Vec<_>) =
            inside(scope, running).into_iter().partition(convicted);
        let mut steps = Vec::new();
        if !found.is_empty() {
            steps.push(format!(
                "canaries have found something at {}: only other processes can be proven there",
                names(&found)
            ));
        }
        for kind in kinds {
            let mut left = can.clone();
            left.retain(|life| self.book.proof(*kind, life, oldest).is_none());
            let Some(first) = left.first() else { continue };
            let of = names(&left);
            steps.push(match (kind, canaries(first)) {
                (ProofKind::Probe, _) => format!(
                    "test {of} with two operators' keys: `cofferdam probe URL --key-a A.key --key-b B.key \
                     --evidence-key evidence.key --evidence-out evidence.txt`, then `cofferdam incident prove \
                     evidence.txt --evidence-pub evidence.pub`"
                ),
                (ProofKind::Canary, Proving::Off) => {
                    format!("no canaries are sent to {of}: start the gateway with `--canaries`")
                }
                (ProofKind::Canary, _) => {
                    let answers = left.iter().map(|life| match canaries(life) {
                        Proving::Answers(n) => n,
                        Proving::Off | Proving::Found => 0,
                    });
                    let (n, of_all) = (answers.min().unwrap_or(0), self.policy.restore.canary_answers);
                    format!("wait for the canaries at {of}: {n} of {of_all} answers (`--canary-every` sets their rate)")
                }
            });
        }
        steps
    }
}

/// The lives that a scope is about.
fn inside<'a>(scope: &Scope, running: &'a [Life]) -> Vec<&'a Life> {
    let is_inside = |life: &&Life| match scope {
        Scope::Fleet | Scope::Model(_) => true,
        Scope::Pair(prefill, decode) => [prefill, decode].contains(&&life.engine),
        Scope::Engine(name) => *name == life.engine,
    };
    running.iter().filter(is_inside).collect()
}

/// Engines by name, not all of many.
fn names(lives: &[&Life]) -> String {
    const NAMED: usize = 4;
    let named: Vec<_> = lives
        .iter()
        .take(NAMED)
        .map(|it| it.engine.as_str())
        .collect();
    let more = match lives.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    named.join(", ") + &more
}

impl std::fmt::Display for Asked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Restrict(scope, access) => write!(f, "{scope}: {}", access.as_str()),
            Self::Restore(scope) => write!(f, "restore {scope}"),
            Self::Open(scope) => write!(f, "open an incident about {scope}"),
            Self::Note(id) => write!(f, "note to incident {id}"),
            Self::Close(id) => write!(f, "close incident {id}"),
        }
    }
}

#[cfg(test)]
mod tests;
