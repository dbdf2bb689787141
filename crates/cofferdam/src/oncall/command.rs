//! `cofferdam incident`: the journal from a terminal, beside a gateway that writes it or without one.

use crate::args::{Incident, IncidentCommand};
use crate::evidence;
use crate::exit::{Exit, Failure};
use crate::files;
use anyhow::{Context, anyhow};
use attest::Pinned;
use oncall::book::Incident as Known;
use oncall::chain::Verifier;
use oncall::entry::Dated;
use oncall::journal::{Bounds, Journal, drawn, incident_name};
use oncall::times::{self, written};
use oncall::{
    Asked, Book, Duty, Entry, JournalError, Life, Policy, Proof, ProofKind, Restriction, Scope,
    Signal, report,
};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;

/// Bytes of evidence that are read.
const EVIDENCE_MAX: u64 = 1 << 20;

/// Runs it.
pub(crate) fn run(it: &Incident) -> Result<Exit, Failure> {
    let path = &it.incidents;
    match &it.command {
        IncidentCommand::List { json } => list(path, *json),
        IncidentCommand::Show { id, json, html } => show(path, id, (*json, *html)),
        IncidentCommand::Open { scope, why } => {
            let scope = scope
                .as_ref()
                .map_or(Scope::Fleet, |it| Scope::Engine(it.clone()));
            opened(path, scope, why)
        }
        IncidentCommand::Signal {
            kind,
            says,
            engine,
            request,
            policy,
        } => {
            let life = |engine: &String| Life {
                engine: engine.clone(),
                life: String::new(),
            };
            let signal = Signal {
                signal: *kind,
                lives: engine.iter().map(life).collect(),
                request: request.clone(),
                tenant: None,
                says: says.clone(),
                source: by(),
            };
            signalled(path, signal, policy.as_deref(), "(not named)")
        }
        IncidentCommand::Note { id, text } => wish(path, Asked::Note(id.clone()), text),
        IncidentCommand::Close { id, why } => wish(path, Asked::Close(id.clone()), why),
        IncidentCommand::Export => export(path),
        IncidentCommand::Verify { file, head } => verify(path, file.as_deref(), head.as_deref()),
        IncidentCommand::Prove {
            evidence,
            evidence_pub,
        } => prove(path, evidence, evidence_pub),
    }
}

fn opened_at(path: &Path) -> Result<Journal, Failure> {
    Journal::open_existing(path, Bounds::default()).map_err(|why| failed(path, why))
}

fn failed(path: &Path, why: JournalError) -> Failure {
    let broken = matches!(why, JournalError::Broken(_));
    let error = anyhow::Error::from(why).context(format!("--incidents {}", path.display()));
    match broken {
        true => Failure::found(error),
        false => Failure::usage(error),
    }
}

/// What the journal says, and the hash of its last line.
fn read(path: &Path) -> Result<(Journal, Book, String), Failure> {
    let journal = opened_at(path)?;
    let (entries, head) = journal.read().map_err(|why| failed(path, why))?;
    let mut book = Book::default();
    entries.iter().for_each(|(_, dated)| book.apply(dated));
    Ok((journal, book, head))
}

fn print(text: &str) -> Result<Exit, Failure> {
    files::say(text)
}

fn list(path: &Path, as_json: bool) -> Result<Exit, Failure> {
    let (_, book, _) = read(path)?;
    let mut text = String::new();
    for it in book.incidents() {
        if as_json {
            text += &format!("{}\n", brief(it));
            continue;
        }
        let state = if it.closed.is_some() {
            "closed"
        } else {
            "OPEN"
        };
        let signals = report::counted(it.signals, "signal", "signals");
        let affected = match it.affected {
            Some(n) => format!("{n} affected"),
            None => "affected not looked for".to_owned(),
        };
        text += &format!(
            "{}  {state:6}  {}  {signals}, {affected}  {}\n",
            it.id,
            written(it.opened),
            it.title
        );
    }
    for restriction in book.restrictions().filter(|_| !as_json) {
        text += &format!("{}\n", door(restriction));
    }
    if text.is_empty() && !as_json {
        text = "no incidents\n".to_owned();
    }
    print(&text)
}

fn door((scope, it): (&Scope, &Restriction)) -> String {
    let since = written(it.since);
    format!(
        "{scope} is {} since {since}: {}",
        it.access.as_str(),
        it.why
    )
}

fn brief(it: &Known) -> Value {
    json!({
        "incident": it.id,
        "scope": it.scope,
        "title": it.title,
        "opened": written(it.opened),
        "closed": it.closed.map(written),
        "by": it.by,
        "signals": it.signals,
        "lives": it.lives,
        "trigger_tokens": it.trigger,
        "affected": it.affected,
    })
}

fn known<'a>(book: &'a Book, id: &str) -> Result<&'a Known, Failure> {
    let known = book.incident(id);
    known.ok_or_else(|| {
        Failure::usage(anyhow!(
            "there is no incident {id:?}: `cofferdam incident list` names them"
        ))
    })
}

fn show(path: &Path, id: &str, (as_json, html): (bool, bool)) -> Result<Exit, Failure> {
    let (_, book, head) = read(path)?;
    let it = known(&book, id)?;
    if as_json {
        let mut whole = brief(it);
        let line = |dated: &Dated| {
            let mut line = serde_json::to_value(&dated.entry).expect("strings and numbers");
            line["at"] = json!(written(dated.at));
            line
        };
        whole["timeline"] = it.timeline.iter().map(line).collect();
        return print(&format!("{whole}\n"));
    }
    let held = book.restrictions();
    let held = held.filter(|(_, door)| door.incident.as_deref() == Some(id));
    let doors: Vec<String> = held.map(door).collect();
    print(&match html {
        true => report::html(it, &doors, &head),
        false => report::markdown(it, &doors, &head),
    })
}

/// Who types it, as far as the system tells.
fn by() -> String {
    let user = rustix::process::getuid().as_raw();
    std::env::var("USER").unwrap_or_else(|_| format!("uid {user}"))
}

/// What a person at a terminal wants of the journal alone. Doors are moved by the gateway that keeps it.
fn wish(path: &Path, asked: Asked, why: &str) -> Result<Exit, Failure> {
    let (mut journal, book, _) = read(path)?;
    let now = times::now();
    let name = incident_name(now).map_err(Failure::found)?;
    let mut duty = Duty::new(Policy::default(), "", book);
    let (entries, done) = duty.asked(now, asked, (&by(), why), &[], &name);
    append(&mut journal, path, entries)?;
    let said = done.map_err(|refusal| Failure::usage(anyhow!(refusal)))?;
    print(&format!("{said}\n"))
}

/// What another tool has found out. Whatever policy makes of it, the gateway hears of it by the journal.
/// `served`: what a model is called that no gateway has named there.
pub(super) fn signalled(
    path: &Path,
    signal: Signal,
    policy: Option<&Path>,
    served: &str,
) -> Result<Exit, Failure> {
    let policy = super::policy_of(policy).map_err(Failure::usage)?;
    // Whoever finds something first begins the journal.
    drop(Journal::open(path, Bounds::default()).map_err(|why| failed(path, why))?);
    let (mut journal, book, _) = read(path)?;
    let model = book.model().unwrap_or(served).to_owned();
    let now = times::now();
    let name = incident_name(now).map_err(Failure::found)?;
    let entries = Duty::new(policy, &model, book).signal(now, signal, &name);
    let said: String = entries
        .iter()
        .map(|dated| format!("{}\n", report::what(&dated.entry)))
        .collect();
    append(&mut journal, path, entries)?;
    print(&said)
}

fn opened(path: &Path, scope: Scope, why: &str) -> Result<Exit, Failure> {
    let (mut journal, book, _) = read(path)?;
    if let Some(open) = book.open(&scope) {
        return Err(Failure::usage(anyhow!(
            "incident {} about {scope} is open: `cofferdam incident note {} TEXT`",
            open.id,
            open.id
        )));
    }
    let now = times::now();
    let incident = incident_name(now).map_err(Failure::found)?;
    let entry = Entry::Opened {
        incident: incident.clone(),
        scope,
        title: oncall::entry::shortened(why),
        by: by(),
    };
    append(&mut journal, path, vec![Dated { at: now, entry }])?;
    print(&format!("{incident}\n"))
}

fn append(journal: &mut Journal, path: &Path, entries: Vec<Dated>) -> Result<(), Failure> {
    let named = entries.into_iter().map(|dated| Ok((drawn()?, dated)));
    let named: Vec<_> = named
        .collect::<Result<_, getrandom::Error>>()
        .map_err(Failure::found)?;
    let done = journal.append(&named);
    done.map(|_| ()).map_err(|why| failed(path, why))
}

fn export(path: &Path) -> Result<Exit, Failure> {
    let journal = opened_at(path)?;
    let mut lines = Vec::new();
    let head = journal
        .export(&mut lines)
        .map_err(|why| failed(path, why))?;
    let mut out = std::io::stdout().lock();
    out.write_all(&lines)
        .and_then(|()| out.flush())
        .map_err(Failure::found)?;
    // Also where nobody looks: whoever writes to a file needs it most, and it is no part of the lines.
    eprintln!("SHA-256 of the last line, for `incident verify --head`: {head}");
    Ok(Exit::Good)
}

/// Checks a file of exported lines, or the journal itself.
fn verify(path: &Path, file: Option<&Path>, head: Option<&str>) -> Result<Exit, Failure> {
    let (lines, found) = match file {
        None => {
            let (entries, found) = opened_at(path)?.read().map_err(|why| failed(path, why))?;
            (entries.len() as u64, found)
        }
        Some(file) => {
            let opened = std::fs::File::open(file).with_context(|| file.display().to_string());
            let mut verifier = Verifier::default();
            for line in BufReader::new(opened.map_err(Failure::usage)?).lines() {
                let line = line.map_err(Failure::usage)?;
                let whole = verifier.next(&line);
                whole
                    .with_context(|| file.display().to_string())
                    .map_err(Failure::found)?;
            }
            (verifier.read(), verifier.head().to_owned())
        }
    };
    if let Some(head) = head.filter(|it| *it != found) {
        return Err(Failure::found(anyhow!(
            "expected {head} as the SHA-256 of the last line, it is {found}: lines are missing at the \
             end, were added, or all of them were written anew"
        )));
    }
    print(&format!(
        "{lines} lines, each names the one before; SHA-256 of the last: {found}\n"
    ))
}

/// Takes a signed run of `probe` into the journal, as a proof about the lives that it names.
fn prove(path: &Path, file: &Path, key: &Path) -> Result<Exit, Failure> {
    let pinned = Pinned::load(key).map_err(Failure::usage)?;
    let judged = || -> anyhow::Result<_> {
        let text = files::read(file, EVIDENCE_MAX)?;
        evidence::judged(pinned.verify(&text)?)
    };
    let named = || file.display().to_string();
    let lives = judged().with_context(named).map_err(Failure::found)?;
    let life = |it: gateway::api::private::WorkerLife| Life {
        engine: String::new(),
        life: it.epoch,
    };
    let lives: Vec<Life> = lives.into_iter().map(life).collect();
    let said = report::counted(lives.len() as u64, "life", "lives");
    let said = format!("a proof about {said}\n");
    let proof = Proof {
        proof: ProofKind::Probe,
        lives,
        answers: 0,
        says: format!("a clean run of probe, signed, taken in by {}", by()),
    };
    let mut journal = opened_at(path)?;
    let entry = Entry::Proved { proof };
    append(
        &mut journal,
        path,
        vec![Dated {
            at: times::now(),
            entry,
        }],
    )?;
    print(&said)
}
