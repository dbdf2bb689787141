//! Connects the [machine](super::machine) to processes, signals and the clock.

use super::machine::{Action, Ending, Event, Limits, Machine, Member};
use super::process::{Happened, Life, Message};
use super::report::{Ready, Report};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::time::Instant;
use tokio::sync::mpsc;

/// Lines and ends of parts that wait to be handled; more make the parts wait.
const MESSAGES_MAX: usize = 256;

/// A part: what to start, and when.
pub struct Part {
    /// Its name in logs.
    pub name: String,
    /// What it is one of, such as `decode`: parts of one kind stand in for each other.
    pub kind: &'static str,
    /// Its stage: lower ones start earlier and stop later.
    pub stage: u32,
    /// Makes the command for a life (1 is the first). Its standard streams are set by the
    /// supervisor.
    pub command: Box<dyn Fn(u64) -> std::process::Command>,
}

/// Who wants to know what the parts do.
pub trait Supervised {
    /// All are ready for the first time; reports in the order of the parts.
    fn all_ready(&mut self, reports: &[Ready]);
    /// Something that an operator should know.
    fn notice(&mut self, text: &str);
    /// The same, and it is worse than it was.
    fn warning(&mut self, text: &str) {
        self.notice(text);
    }
    /// A line that a part wrote.
    fn line(&mut self, part: &str, line: &str);
}

/// Runs the parts until they are stopped through `stop`, refuse, or keep dying; when it returns,
/// every process that it started is reaped.
///
/// Must be polled by the same thread all the time (a current-thread runtime): a child that
/// asks for a signal at its parent's death gets it at the death of the *thread* that started it.
pub async fn supervise(
    parts: &[Part],
    limits: Limits,
    stop: &mut mpsc::Receiver<()>,
    watcher: &mut dyn Supervised,
) -> Ending {
    let member = |part: &Part| Member {
        name: part.name.clone(),
        kind: part.kind.to_owned(),
        stage: part.stage,
    };
    let mut machine = Machine::new(parts.iter().map(member).collect(), limits);
    let (sender, mut messages) = mpsc::channel::<Message>(MESSAGES_MAX);
    let mut running = Running {
        parts,
        sender,
        lives: BTreeMap::new(),
    };
    let mut reports = vec![Ready::default(); parts.len()];
    let begin = Instant::now();
    let mut event = Event::Tick;
    loop {
        let mut next = machine.handle(event, begin.elapsed());
        while !next.is_empty() {
            let mut failed_starts = Vec::new();
            for action in next.drain(..) {
                match action {
                    Action::AllReady => watcher.all_ready(&reports),
                    Action::Notice(text) => watcher.notice(&text),
                    Action::Warning(text) => watcher.warning(&text),
                    Action::Finish(ending) => return ending,
                    action => failed_starts.extend(running.carry_out(action)),
                }
            }
            for failed in failed_starts {
                next.extend(machine.handle(failed, begin.elapsed()));
            }
        }
        event = loop {
            let due = machine
                .deadline()
                .map(|at| tokio::time::Instant::from_std(begin + at));
            tokio::select! {
                Some(()) = stop.recv() => break Event::StopAsked,
                Some((part, life, happened)) = messages.recv() => match happened {
                    Happened::Line(line) => watcher.line(&parts[part].name, &line),
                    Happened::Exited(how) => break Event::Exited { part, life, how },
                    Happened::Report(Report::Refused(why)) => {
                        break Event::Refused { part, life, why };
                    }
                    Happened::Report(Report::Ready(ready)) => {
                        let epoch = ready.epoch.clone();
                        reports[part] = ready;
                        break Event::Ready { part, life, epoch };
                    }
                },
                () = async { tokio::time::sleep_until(due.unwrap()).await }, if due.is_some() => {
                    break Event::Tick;
                }
            }
        };
    }
}

struct Running<'a> {
    parts: &'a [Part],
    sender: mpsc::Sender<Message>,
    lives: BTreeMap<usize, Life>,
}

impl Running<'_> {
    /// A start that fails is a death: the event is returned.
    fn carry_out(&mut self, action: Action) -> Option<Event> {
        match action {
            Action::Spawn { part, life } => {
                let command = (self.parts[part].command)(life);
                match Life::start(part, life, command, self.sender.clone()) {
                    Ok(started) => drop(self.lives.insert(part, started)),
                    Err(error) => {
                        let how = format!("cannot be started: {error}");
                        return Some(Event::Exited { part, life, how });
                    }
                }
            }
            Action::Terminate { part } => self.signal(part, Signal::TERM),
            Action::Kill { part } => self.signal(part, Signal::KILL),
            Action::AllReady | Action::Notice(_) | Action::Warning(_) | Action::Finish(_) => {}
        }
        None
    }

    fn signal(&self, part: usize, signal: Signal) {
        if let Some(life) = self.lives.get(&part) {
            life.signal(signal);
        }
    }
}
