//! One sentence for a person at 3 a.m.: which pair is suspect, why, since when, who is affected, what
//! to press. The page and the terminal say the same, because it is said here.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::act::{Act, ActionScope};
use crate::state::{
    AccessLevel, CheckResult, DeskState, EngineView, IncidentView, PairView, StandingView,
};

/// How much of a hurry there is.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Urgency {
    /// Nothing is suspect, and somebody looks.
    Calm,
    /// Nothing is known to leak; something is not as it should be.
    #[default]
    Attention,
    /// Something is suspect, and its users are kept away from it.
    Contained,
    /// Something is suspect, and users reach it.
    Alarm,
}

/// What to press.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Press {
    /// Which button.
    pub act: Act,
    /// Of what.
    pub scope: ActionScope,
}

/// The sentence, and what belongs to it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Headline {
    /// How much of a hurry there is.
    pub level: Urgency,
    /// What is suspect and why.
    pub sentence: String,
    /// Since when.
    pub since_ms: Option<u64>,
    /// Who is affected.
    pub affected: Option<String>,
    /// What to do next, in words.
    pub next: Option<String>,
    /// What to press.
    pub press: Option<Press>,
    /// The incident.
    pub incident: Option<String>,
}

/// The headline of a state: the worst of what it holds.
#[must_use]
pub fn headline(state: &DeskState) -> Headline {
    let found = [
        of_leaking_pairs(state),
        of_incidents(state),
        of_verdicts(state),
        of_restored(state),
        of_journal(state),
        of_standing(state),
        of_engines(state),
        of_canaries(state),
    ];
    let worst = found.into_iter().flatten().rev();
    worst
        .max_by_key(|it| it.level)
        .unwrap_or_else(|| all_quiet(state))
}

/// `2026-12-01 03:12:09 UTC`.
#[must_use]
pub fn utc(ms: u64) -> String {
    let time = i64::try_from(ms)
        .ok()
        .and_then(|ms| Timestamp::from_millisecond(ms).ok());
    time.map_or_else(
        || "an unknown time".into(),
        |time| time.strftime("%F %T UTC").to_string(),
    )
}

fn counted(n: u64, one: &str, many: &str) -> String {
    match n {
        1 => format!("1 {one}"),
        n => format!("{} {many}", grouped(n)),
    }
}

/// `1,234,567`.
fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A canary came back to the wrong tenant, and its pair is open all the same.
fn of_leaking_pairs(state: &DeskState) -> Option<Headline> {
    let leaks = state.pairs.iter().filter(|it| it.canaries.seen > 0);
    let open = leaks.filter(|it| is_reachable(state, &of_pair(it)));
    let pair = open.max_by_key(|it| it.canaries.seen)?;
    let scope = of_pair(pair);
    Some(Headline {
        level: Urgency::Alarm,
        sentence: format!(
            "{} is suspect: {} of canaries there, {} sent, and users still reach it",
            named(&scope),
            counted(pair.canaries.seen, "finding", "findings"),
            grouped(pair.canaries.sent)
        ),
        since_ms: pair.canaries.last_ms,
        affected: Some(format!(
            "{} went through this pair",
            counted(pair.requests, "request", "requests")
        )),
        next: Some("Make it private; leave its processes running, they hold the evidence".into()),
        press: Some(Press {
            act: Act::Private,
            scope,
        }),
        incident: pair.standing.incident.clone(),
    })
}

/// The open incident whose users are least kept away; of several the newest.
fn of_incidents(state: &DeskState) -> Option<Headline> {
    let open = state.incidents.iter();
    let open = open.filter(|it| it.closed_ms.is_none() && it.restored_ms.is_none());
    let count = open.clone().count();
    let (incident, scope, access) = open
        .map(|it| {
            let scope = subject(state, it);
            let access = access(state, &scope);
            (it, scope, access)
        })
        .min_by_key(|(it, _, access)| (*access, std::cmp::Reverse(it.opened_ms)))?;
    let contained = access >= AccessLevel::Private;
    let others = match count {
        1 => String::new(),
        n => format!(
            " ({} more open)",
            counted(n as u64 - 1, "incident", "incidents")
        ),
    };
    let (standing, beside) = match access {
        AccessLevel::Open => ("users still reach it".into(), None),
        access => {
            let beside = beside(state, &scope).filter(|_| contained);
            let words = beside.as_ref().map_or(String::new(), |(engine, n)| {
                let pairs = counted(*n, "other pair", "other pairs");
                format!(", but {} still serves {pairs}", engine.name)
            });
            (format!("it is {}{words}", access.word()), beside)
        }
    };
    let press = match beside {
        _ if !contained => Some((Act::Private, scope.clone())),
        Some((engine, _)) => Some((Act::Private, of_engine(engine))),
        None if is_proven(state) => Some((Act::Restore, scope.clone())),
        None => None,
    };
    Some(Headline {
        level: if contained {
            Urgency::Contained
        } else {
            Urgency::Alarm
        },
        sentence: format!(
            "{} is suspect: {}; {standing}{others}",
            named(&scope),
            incident.title
        ),
        since_ms: Some(incident.opened_ms),
        affected: Some(affected(incident)),
        next: incident.next.first().cloned(),
        press: press.map(|(act, scope)| Press { act, scope }),
        incident: Some(incident.id.clone()),
    })
}

fn affected(incident: &IncidentView) -> String {
    match incident.affected {
        None => {
            "nobody has looked for those who are affected: ask cofferdam watch about the access log"
                .into()
        }
        Some(0) => "no request is known to be affected".into(),
        Some(n) => format!(
            "{}{} may have got text that was not theirs",
            counted(n, "request", "requests"),
            incident.whose
        ),
    }
}

/// What an incident had closed is open again with its proofs: nothing is left but to end it.
fn of_restored(state: &DeskState) -> Option<Headline> {
    let mut open = state.incidents.iter().filter(|it| it.closed_ms.is_none());
    let incident = open.find(|it| it.restored_ms.is_some())?;
    Some(Headline {
        sentence: format!(
            "What incident {} had closed was tested and is open again; the incident itself is not closed",
            incident.id
        ),
        since_ms: incident.restored_ms,
        affected: Some(affected(incident)),
        next: incident.next.first().cloned(),
        incident: Some(incident.id.clone()),
        ..Headline::default()
    })
}

/// An engine of a shut pair that users still reach through other pairs, and how many: decode's first,
/// whose pages are the ones that are read.
fn beside<'a>(state: &'a DeskState, scope: &ActionScope) -> Option<(&'a EngineView, u64)> {
    let ActionScope::Pair { prefill, decode } = scope else {
        return None;
    };
    [decode, prefill].into_iter().find_map(|name| {
        let has = |it: &&PairView| it.prefill == *name || it.decode == *name;
        let open = state.pairs.iter().filter(has);
        let open = open.filter(|it| is_reachable(state, &of_pair(it))).count();
        let engine = state.engines.iter().find(|it| it.name == *name)?;
        (open > 0).then_some((engine, open as u64))
    })
}

/// What an incident is about: what stands as it does because of it, or else the engines it names.
fn subject(state: &DeskState, incident: &IncidentView) -> ActionScope {
    let is_its = |standing: &StandingView| standing.incident.as_deref() == Some(&incident.id);
    let pair = state.pairs.iter().find(|it| is_its(&it.standing));
    let named = || {
        let has = |name: &String| incident.engines.contains(name);
        state
            .pairs
            .iter()
            .find(|it| has(&it.prefill) && has(&it.decode))
    };
    if is_its(&state.model.standing) {
        return ActionScope::Model;
    }
    if let Some(pair) = pair.or_else(named) {
        return of_pair(pair);
    }
    let engine = state.engines.iter().find(|it| is_its(&it.standing));
    match (engine.map(|it| &it.name), &incident.engines[..]) {
        (Some(name), _) | (None, [name]) => ActionScope::Engine { name: name.clone() },
        _ => ActionScope::Model,
    }
}

/// Who reaches it: the most closed of the doors on the way.
fn access(state: &DeskState, scope: &ActionScope) -> AccessLevel {
    let engine = |name: &String| {
        let engine = state.engines.iter().find(|it| it.name == *name);
        engine.map_or(AccessLevel::Open, |it| it.standing.access)
    };
    let own = match scope {
        ActionScope::Model | ActionScope::Incident { .. } => AccessLevel::Open,
        ActionScope::Engine { name } => engine(name),
        ActionScope::Pair { prefill, decode } => {
            let pair = |it: &&PairView| it.prefill == *prefill && it.decode == *decode;
            let pair = state.pairs.iter().find(pair);
            pair.map_or(AccessLevel::Open, |it| state.reach_of_pair(it))
        }
    };
    own.max(state.model.standing.access)
}

fn is_reachable(state: &DeskState, scope: &ActionScope) -> bool {
    access(state, scope) < AccessLevel::Private
}

fn of_pair(pair: &PairView) -> ActionScope {
    ActionScope::Pair {
        prefill: pair.prefill.clone(),
        decode: pair.decode.clone(),
    }
}

fn of_engine(engine: &EngineView) -> ActionScope {
    ActionScope::Engine {
        name: engine.name.clone(),
    }
}

fn is_proven(state: &DeskState) -> bool {
    let evidence = &state.model.evidence;
    !evidence.is_empty() && evidence.iter().all(|it| it.missing.is_none())
}

/// Something was found on an engine that users reach, and no incident has it.
fn of_verdicts(state: &DeskState) -> Option<Headline> {
    let incidents = state.incidents.iter().filter(|it| it.closed_ms.is_none());
    let newest = state.engines.iter().filter_map(|engine| {
        let newest = engine.verdicts.first()?;
        let has = |it: &IncidentView| it.engines.contains(&engine.name);
        let open = is_reachable(state, &of_engine(engine)) && !incidents.clone().any(has);
        (open && newest.result == CheckResult::Found).then_some((engine, newest))
    });
    let (engine, verdict) = newest.max_by_key(|(_, verdict)| verdict.at_ms)?;
    let scope = of_engine(engine);
    Some(Headline {
        level: Urgency::Alarm,
        sentence: format!(
            "{} is suspect: {} (says {}); users still reach it",
            named(&scope),
            verdict.what,
            verdict.source
        ),
        since_ms: Some(verdict.at_ms),
        affected: None,
        next: Some("Make it private; leave its process running, it holds the evidence".into()),
        press: Some(Press {
            act: Act::Private,
            scope,
        }),
        incident: engine.standing.incident.clone(),
    })
}

fn of_journal(state: &DeskState) -> Option<Headline> {
    let journal = &state.journal;
    let trouble = match (&journal.trouble, &journal.path) {
        (Some(trouble), _) => format!("The journal cannot be written: {trouble}"),
        (None, None) => "Nothing is written down: there is no journal".into(),
        _ => return None,
    };
    Some(Headline {
        sentence: trouble,
        next: Some("Write down by hand what you do, with the time, until it is mended".into()),
        ..Headline::default()
    })
}

/// Somebody closed something, and no incident says why.
fn of_standing(state: &DeskState) -> Option<Headline> {
    let model = (ActionScope::Model, &state.model.standing);
    let pairs = state.pairs.iter().map(|it| (of_pair(it), &it.standing));
    let engines = state.engines.iter().map(|it| (of_engine(it), &it.standing));
    let all = std::iter::once(model).chain(pairs).chain(engines);
    let shut = all.filter(|(_, standing)| standing.access > AccessLevel::Open);
    let (scope, standing) = shut.max_by_key(|(_, standing)| standing.access)?;
    let why = standing.why.as_deref().unwrap_or("nobody said why");
    Some(Headline {
        sentence: format!("{} is {}: {why}", named(&scope), standing.access.word()),
        since_ms: standing.since_ms,
        next: Some("Restore it when the reason is gone".into()),
        press: Some(Press {
            act: Act::Restore,
            scope,
        }),
        incident: standing.incident.clone(),
        ..Headline::default()
    })
}

fn of_engines(state: &DeskState) -> Option<Headline> {
    let mut away = state.engines.iter().filter(|it| it.readiness.is_some());
    let first = away.next()?;
    let others = match away.count() {
        0 => String::new(),
        n => format!(", and {} more", counted(n as u64, "engine", "engines")),
    };
    let why = first.readiness.as_deref().unwrap_or_default();
    Some(Headline {
        sentence: format!("Engine {} takes nothing: {why}{others}", first.name),
        next: Some("Look at the engine’s own log; nothing goes to it meanwhile".into()),
        ..Headline::default()
    })
}

/// Quiet is worth something only while somebody looks.
fn of_canaries(state: &DeskState) -> Option<Headline> {
    let (what, next) = match &state.canaries {
        None => (
            "Nothing is suspect, but nobody looks: the canaries are off".into(),
            "Switch them on, or run cofferdam probe",
        ),
        Some(canaries) => {
            let why = canaries.paused.as_deref()?;
            let words =
                format!("Nothing is suspect, but nobody looks: the canaries stand still: {why}");
            (words, "See to it that they go on, or run cofferdam probe")
        }
    };
    Some(Headline {
        sentence: what,
        next: Some(next.into()),
        ..Headline::default()
    })
}

fn all_quiet(state: &DeskState) -> Headline {
    let windows = state.canaries.iter().flat_map(|it| &it.windows);
    let best = windows.max_by_key(|it| it.one_in);
    let worth = best.and_then(|it| Some((it, it.one_in?))).map_or_else(
        || "the canaries have not seen enough answers yet to say how rare a leak would be".into(),
        |(window, n)| {
            format!(
                "in the last {} canaries went through {} answers, and a leak in more than one of {} \
                 would have been seen (95 %)",
                window.name,
                grouped(window.answers),
                grouped(n)
            )
        },
    );
    Headline {
        level: Urgency::Calm,
        sentence: format!("Nothing is suspect: {worth}"),
        ..Headline::default()
    }
}

/// The scope as the beginning of a sentence.
fn named(scope: &ActionScope) -> String {
    let words = scope.to_string();
    let mut letters = words.chars();
    let first = letters.next().map(|it| it.to_ascii_uppercase());
    first.into_iter().chain(letters).collect()
}
