//! A state as lines of words with a tone: for a terminal in colours, for a pipe without.

use ::desk::state::{AccessLevel, CheckResult, DeskState, EngineView, PairView};
use ::desk::{Headline, Urgency, View, utc};
use oncall::report::counted;

/// How words look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tone {
    Plain,
    Soft,
    Head,
    Good,
    Look,
    Held,
    Bad,
}

/// One line.
pub(super) type Words = Vec<(String, Tone)>;

/// Most rows of a part, so that one part does not push the others away.
const ROWS_MAX: usize = 40;

/// A line without its tones.
pub(super) fn plain(words: &Words) -> String {
    let text: String = words.iter().map(|(words, _)| words.as_str()).collect();
    text.trim_end().to_owned()
}

/// What a server says, without what a terminal would obey.
pub(super) fn tame(text: &str) -> String {
    let tamed = text.chars();
    tamed
        .map(|it| if it.is_control() { '·' } else { it })
        .collect()
}

/// Everything, the most urgent first.
pub(super) fn lines(view: &View) -> Vec<Words> {
    let state = &view.state;
    let mut page = top(state);
    page.extend(headline(&view.headline, state.at_ms));
    page.extend(incidents(state));
    page.extend(engines(state));
    page.extend(pairs(state));
    page.extend(pools(state));
    page.extend(canaries(state));
    page.extend(running(state));
    page.extend(journal(state));
    for (words, _) in page.iter_mut().flatten() {
        *words = tame(words);
    }
    page
}

fn said(words: impl Into<String>, tone: Tone) -> Words {
    vec![(words.into(), tone)]
}

fn head(name: &str, more: String) -> [Words; 2] {
    let words = vec![(format!("{name:<10}"), Tone::Head), (more, Tone::Soft)];
    [Vec::new(), words]
}

/// How long before this moment.
fn ago(at_ms: u64, ms: u64) -> String {
    let s = at_ms.saturating_sub(ms) / 1000;
    match s {
        0..90 => format!("{s} s"),
        90..5400 => format!("{} min", s / 60),
        5400..129_600 => format!("{} h", s / 3600),
        _ => format!("{} d", s / 86_400),
    }
}

fn short(text: &str, length: usize) -> String {
    match text.chars().count() > length {
        true => text.chars().take(length - 1).chain(['…']).collect(),
        false => text.to_owned(),
    }
}

/// Names are addresses here, and differ at their end.
fn address(name: &str, length: usize) -> String {
    let name = name.split_once("://").map_or(name, |(_, rest)| rest);
    let more = name.chars().count().saturating_sub(length);
    match more {
        0 => name.to_owned(),
        _ => ['…']
            .into_iter()
            .chain(name.chars().skip(more + 1))
            .collect(),
    }
}

fn known(n: Option<u64>) -> String {
    n.map_or("?".into(), |n| n.to_string())
}

fn top(state: &DeskState) -> Vec<Words> {
    let model = &state.model;
    let (access, tone) = access(model.standing.access);
    vec![vec![
        (format!("{} ", model.name), Tone::Head),
        (access.into(), tone),
        (
            format!(
                " · {} · prompts up to {} of {} tokens · cofferdam {} · {}",
                model.readiness,
                known(model.max_prompt_tokens.map(u64::from)),
                known(model.max_model_len.map(u64::from)),
                state.version,
                utc(state.at_ms)
            ),
            Tone::Soft,
        ),
    ]]
}

fn access(level: AccessLevel) -> (&'static str, Tone) {
    let tone = match level {
        AccessLevel::Open => Tone::Good,
        AccessLevel::Draining => Tone::Look,
        AccessLevel::Private | AccessLevel::Closed => Tone::Held,
    };
    (level.word(), tone)
}

/// One that serves alone is its own pair.
fn pair_name(prefill: &str, decode: &str) -> String {
    match prefill == decode {
        true => prefill.to_owned(),
        false => format!("{prefill} → {decode}"),
    }
}

fn findings(n: u64) -> String {
    match n {
        0 => "nothing found".to_owned(),
        n => counted(n, "finding", "findings"),
    }
}

fn headline(headline: &Headline, at_ms: u64) -> Vec<Words> {
    let (word, tone) = match headline.level {
        Urgency::Calm => ("ALL QUIET", Tone::Good),
        Urgency::Attention => ("NEEDS A LOOK", Tone::Look),
        Urgency::Contained => ("CONTAINED", Tone::Held),
        Urgency::Alarm => ("ACT NOW", Tone::Bad),
    };
    let mut page = vec![
        Vec::new(),
        vec![
            (format!("{word}  "), tone),
            (format!("{}.", headline.sentence), Tone::Head),
        ],
    ];
    let since = headline.since_ms;
    let facts = [
        (
            "since",
            since.map(|ms| format!("{}, {} ago", utc(ms), ago(at_ms, ms))),
        ),
        ("affected", headline.affected.clone()),
        ("next", headline.next.clone()),
        (
            "press",
            headline
                .press
                .as_ref()
                .map(|it| format!("{}: {}", it.act.word(), it.scope)),
        ),
    ];
    for (name, words) in facts {
        page.extend(
            words.map(|words| vec![(format!("  {name:<10}"), Tone::Soft), (words, Tone::Plain)]),
        );
    }
    page
}

fn incidents(state: &DeskState) -> Vec<Words> {
    let open: Vec<_> = state
        .incidents
        .iter()
        .filter(|it| it.closed_ms.is_none())
        .collect();
    let mut page = head("INCIDENTS", format!("{} open", open.len())).to_vec();
    for it in open.into_iter().take(ROWS_MAX) {
        page.push(vec![
            (format!("  {}  ", it.id), Tone::Bad),
            // What policy has called it ends with the scope.
            (
                match it.title.ends_with(&it.scope) {
                    true => it.title.clone(),
                    false => format!("{}: {}", it.scope, it.title),
                },
                Tone::Plain,
            ),
        ]);
        let affected = match it.affected {
            None => "nobody has looked for those who are affected".to_owned(),
            Some(n) => format!("{} affected", counted(n, "request", "requests")),
        };
        let words = format!(
            "    opened {} ago by {}, {affected}",
            ago(state.at_ms, it.opened_ms),
            it.signal
        );
        page.push(said(words, Tone::Soft));
        for (n, next) in (1..).zip(&it.next) {
            page.push(said(format!("    {n}. {next}"), Tone::Plain));
        }
    }
    page
}

/// How bad, its word and its tone; the worst is the greatest.
fn rank(engine: &EngineView, model: AccessLevel) -> (u8, &'static str, Tone) {
    let reach = engine.standing.access.max(model);
    let found = engine
        .verdicts
        .first()
        .is_some_and(|it| it.result == CheckResult::Found);
    match &engine.readiness {
        _ if found && reach < AccessLevel::Private => (4, "suspect", Tone::Bad),
        _ if reach > AccessLevel::Open => {
            let (word, tone) = access(reach);
            (3, word, tone)
        }
        Some(_) => (2, "away", Tone::Look),
        _ if engine.pool_tokens < engine.context_tokens => (1, "open", Tone::Look),
        _ => (0, "open", Tone::Good),
    }
}

fn engines(state: &DeskState) -> Vec<Words> {
    let model = state.model.standing.access;
    let mut engines: Vec<_> = state
        .engines
        .iter()
        .map(|it| (rank(it, model), it))
        .collect();
    engines.sort_by_key(|((rank, ..), it)| (std::cmp::Reverse(*rank), it.group));
    let well = engines.iter().filter(|((rank, ..), _)| *rank == 0).count();
    let all = counted(engines.len() as u64, "engine", "engines");
    let words = format!("{all}, {well} of them well");
    let mut page = head("FLEET", words).to_vec();
    if !engines.is_empty() {
        let words = format!(
            "  {:<22}{:<10}{:<9}{:<20}{:<14}{:>16}{:>9}{:>6}  last verdict",
            "engine", "door", "role", "software", "life", "pool/context", "prompts", "runs"
        );
        page.push(said(words, Tone::Soft));
    }
    let more = engines.len().saturating_sub(ROWS_MAX);
    for ((_, word, tone), it) in engines.into_iter().take(ROWS_MAX) {
        let role = format!("{:?}", it.role).to_lowercase();
        let capacity = format!("{}/{}", known(it.pool_tokens), known(it.context_tokens));
        let software = short(&format!("{} {}", it.software, it.version), 19);
        let verdict = it.verdicts.first().map_or("none yet".into(), |verdict| {
            format!(
                "{:?}: {} ({}, {})",
                verdict.result,
                verdict.what,
                verdict.source,
                ago(state.at_ms, verdict.at_ms)
            )
        });
        let why = it.readiness.as_deref().or(it.standing.why.as_deref());
        let last = why.map_or(verdict.clone(), |why| format!("{why}; {verdict}"));
        page.push(vec![
            (format!("  {:<22}", address(&it.name, 20)), Tone::Plain),
            (format!("{word:<10}"), tone),
            (
                format!(
                    "{role:<9}{software:<20}{:<14}{capacity:>16}{:>9}{:>6}  {last}",
                    short(&it.life, 13),
                    known(it.max_prompt_tokens),
                    it.running
                ),
                Tone::Plain,
            ),
        ]);
    }
    if more > 0 {
        page.push(said(format!("  and {more} more"), Tone::Soft));
    }
    page
}

fn pairs(state: &DeskState) -> Vec<Words> {
    let is_open = |it: &&PairView| state.reach_of_pair(it) == AccessLevel::Open;
    let is_well = |it: &&PairView| is_open(it) && it.canaries.seen == 0;
    let open = state.pairs.iter().filter(is_open).count();
    let words = format!("{}, {open} of them open", state.pairs.len());
    let mut page = head("PAIRS", words).to_vec();
    let rest = state.pairs.iter().filter(|it| !is_well(it));
    for it in rest.take(ROWS_MAX) {
        let (word, tone) = access(state.reach_of_pair(it));
        let tone = if word == "open" { Tone::Bad } else { tone };
        let why = it.standing.why.as_deref().unwrap_or_default();
        page.push(vec![
            (
                format!("  {}  ", pair_name(&it.prefill, &it.decode)),
                Tone::Plain,
            ),
            (word.into(), tone),
            (
                format!(
                    "  {} sent, {}  {why}",
                    counted(it.canaries.sent, "canary", "canaries"),
                    findings(it.canaries.seen)
                ),
                Tone::Plain,
            ),
        ]);
    }
    page
}

fn pools(state: &DeskState) -> Vec<Words> {
    if state.pools.is_empty() {
        return Vec::new();
    }
    let mut page = head("POOLS", "our own, in pages".into()).to_vec();
    let words = format!(
        "  {:<22}{:>8}{:>10}{:>9}{:>8}{:>8}{:>13}",
        "engine", "free", "reserved", "granted", "sealed", "cached", "quarantined"
    );
    page.push(said(words, Tone::Soft));
    for it in state.pools.iter().take(ROWS_MAX) {
        let pages = &it.pages;
        let tone = if pages.quarantined > 0 {
            Tone::Look
        } else {
            Tone::Plain
        };
        page.push(vec![
            (
                format!(
                    "  {:<22}{:>8}{:>10}{:>9}{:>8}{:>8}",
                    short(&it.engine, 21),
                    pages.free,
                    pages.reserved,
                    pages.granted,
                    pages.sealed,
                    pages.cached
                ),
                Tone::Plain,
            ),
            (format!("{:>13}", pages.quarantined), tone),
        ]);
        for why in &it.quarantine {
            let age = ago(state.at_ms, why.since_ms);
            let words = format!("    {} for {age}: {}", why.pages, why.reason);
            page.push(said(words, Tone::Look));
        }
    }
    page
}

fn canaries(state: &DeskState) -> Vec<Words> {
    let Some(canaries) = &state.canaries else {
        return head(
            "CANARIES",
            "off: nobody looks whether answers are mixed up".into(),
        )
        .to_vec();
    };
    let words = format!("{} sent, {} answered: ", canaries.sent, canaries.answered);
    let mut page = head("CANARIES", words).to_vec();
    let tone = if canaries.seen > 0 {
        Tone::Bad
    } else {
        Tone::Good
    };
    let last = page.last_mut().expect("the heading");
    let found = match canaries.answered {
        0 => "nothing can be said yet".to_owned(),
        _ => findings(canaries.seen),
    };
    last.push((found, tone));
    if let Some(why) = &canaries.paused {
        page.push(said(format!("  they stand still: {why}"), Tone::Look));
    }
    if let Some(why) = &canaries.untested {
        page.push(said(format!("  {why}"), Tone::Look));
    }
    for it in &canaries.windows {
        let worth = match (it.found, it.one_in) {
            (0, None) => "too few answers to say anything".into(),
            (0, Some(n)) => {
                format!("a leak in more than one of {n} answers would have been seen (95 %)")
            }
            (found, _) => format!("{} in {} answers", findings(found), it.answers),
        };
        page.push(said(format!("  last {}: {worth}", it.name), Tone::Plain));
    }
    page
}

fn running(state: &DeskState) -> Vec<Words> {
    let running = &state.running;
    let requests = counted(running.requests, "request", "requests");
    let words = format!("{requests}, {} waiting", running.queued);
    let mut page = head("IN FLIGHT", words).to_vec();
    for it in running.handoffs.iter().take(ROWS_MAX) {
        let age = match it.since_ms {
            0 => "–".to_owned(),
            since => ago(state.at_ms, since),
        };
        let words = format!(
            "  {}  {:<10}{}  {age}",
            it.request,
            it.stage,
            pair_name(&it.prefill, &it.decode)
        );
        page.push(said(words, Tone::Plain));
    }
    let more = running.handoffs.len().saturating_sub(ROWS_MAX) as u64 + running.more;
    if more > 0 {
        page.push(said(format!("  and {more} more"), Tone::Soft));
    }
    page
}

fn journal(state: &DeskState) -> Vec<Words> {
    let journal = &state.journal;
    let (words, tone) = match (&journal.trouble, &journal.path) {
        (Some(trouble), _) => (format!("cannot be written: {trouble}"), Tone::Bad),
        (None, None) => ("none: nothing is written down".into(), Tone::Look),
        (None, Some(path)) => (
            format!("{path}, {} not on disk yet", journal.pending),
            Tone::Soft,
        ),
    };
    let mut page = head("JOURNAL", String::new()).to_vec();
    page.last_mut().expect("the heading").push((words, tone));
    page
}
