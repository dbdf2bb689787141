//! What to do with the parts: a pure function of (state, event, time) to actions.
//!
//! Parts start in stages, lowest first, a stage when all before it have been ready once, and
//! they stop in the opposite order, so that the gateway drains while its workers still run.
//! A part that dies is started again after a growing pause. One that keeps dying rests while
//! another of its kind serves, and ends all if there is none.

use super::report::Refused;
use std::collections::VecDeque;
use std::time::Duration;

/// Limits of supervision.
#[derive(Clone, Debug)]
pub struct Limits {
    /// From spawn to ready; then the part is killed, which counts as a death.
    pub start_max: Duration,
    /// Pause before the first restart; doubles with every further death.
    pub pause_first: Duration,
    /// The longest pause.
    pub pause_max: Duration,
    /// So many deaths of one part within [`Limits::deaths_within`] are a crash loop.
    pub deaths_max: usize,
    /// How long a death counts.
    pub deaths_within: Duration,
    /// Pause of a part in a crash loop while another of its kind serves.
    pub rest: Duration,
    /// What the last stage (the gateway) gets at shutdown for its running requests.
    pub drain: Duration,
    /// What a part without running requests gets between SIGTERM and SIGKILL.
    pub grace: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            start_max: Duration::from_secs(120),
            pause_first: Duration::from_millis(200),
            pause_max: Duration::from_secs(10),
            deaths_max: 5,
            deaths_within: Duration::from_secs(60),
            rest: Duration::from_secs(60),
            drain: Duration::from_secs(20),
            grace: Duration::from_secs(5),
        }
    }
}

/// What happened. `part` is an index; `life` counts the starts of that part from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The part serves, under this epoch.
    Ready {
        /// Which part.
        part: usize,
        /// Which life of it.
        life: u64,
        /// The epoch that it reported.
        epoch: String,
    },
    /// The part says that it will not serve.
    Refused {
        /// Which part.
        part: usize,
        /// Which life of it.
        life: u64,
        /// Its reason.
        why: Refused,
    },
    /// The process has ended and is reaped, or could not be started.
    Exited {
        /// Which part.
        part: usize,
        /// Which life of it.
        life: u64,
        /// Exit status, for people.
        how: String,
    },
    /// Somebody asked to stop. The second time it is urgent.
    StopAsked,
    /// Time has passed.
    Tick,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Start the part.
    Spawn {
        /// Which part.
        part: usize,
        /// The life that begins.
        life: u64,
    },
    /// Ask the part to end (SIGTERM).
    Terminate {
        /// Which part.
        part: usize,
    },
    /// End the part (SIGKILL).
    Kill {
        /// Which part.
        part: usize,
    },
    /// Every part is ready for the first time.
    AllReady,
    /// For the log.
    Notice(String),
    /// For the log: something is worse than it was.
    Warning(String),
    /// Every process is reaped; nothing more will happen.
    Finish(Ending),
}

/// How supervision ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// As asked.
    Stopped,
    /// A part refused to start.
    Refused {
        /// Its name.
        part: String,
        /// Its reason.
        why: Refused,
    },
    /// A part kept dying, and no other of its kind serves.
    CrashLoop {
        /// Its name.
        part: String,
        /// Deaths within the time that counts.
        deaths: usize,
        /// How the last life ended.
        how: String,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// Its stage has not come, or it pauses before a restart.
    Waiting {
        until: Option<Duration>,
    },
    Starting {
        until: Duration,
    },
    Ready,
    /// SIGTERM is sent.
    Ending {
        until: Duration,
    },
    /// SIGKILL is sent: only reaping is left.
    Killed,
    Gone,
}

/// A part, as the machine knows it.
#[derive(Clone, Debug)]
pub struct Member {
    /// Its name in logs.
    pub name: String,
    /// What it is one of: parts of one kind stand in for each other.
    pub kind: String,
    /// Its stage.
    pub stage: u32,
}

#[derive(Clone, Debug)]
struct Part {
    name: String,
    kind: String,
    stage: u32,
    state: State,
    life: u64,
    epoch: Option<String>,
    was_ready: bool,
    deaths: VecDeque<Duration>,
}

impl Part {
    fn has_process(&self) -> bool {
        !matches!(self.state, State::Waiting { .. } | State::Gone)
    }
}

/// The state of all parts.
#[derive(Clone, Debug)]
pub struct Machine {
    limits: Limits,
    parts: Vec<Part>,
    all_ready: bool,
    /// Set once: from then on parts only end.
    ending: Option<Ending>,
    finished: bool,
}

impl Machine {
    /// The parts, by index.
    pub fn new(parts: Vec<Member>, limits: Limits) -> Machine {
        let part = |Member { name, kind, stage }| Part {
            name,
            kind,
            stage,
            state: State::Waiting { until: None },
            life: 0,
            epoch: None,
            was_ready: false,
            deaths: VecDeque::new(),
        };
        let parts = parts.into_iter().map(part).collect();
        Machine {
            limits,
            parts,
            all_ready: false,
            ending: None,
            finished: false,
        }
    }

    /// Takes in what happened and says what to do, in order.
    pub fn handle(&mut self, event: Event, now: Duration) -> Vec<Action> {
        let mut actions = Vec::new();
        match event {
            Event::Ready { part, life, epoch } => self.on_ready(part, life, epoch, &mut actions),
            Event::Refused { part, life, why } if self.parts[part].life == life => {
                // What served once was not asked for the impossible: its end is a death like
                // any other, and worth another try.
                let Part {
                    name, was_ready, ..
                } = &self.parts[part];
                match was_ready {
                    true => {
                        let text = format!("{name} cannot go on: {}", why.message);
                        actions.push(Action::Warning(text));
                    }
                    false => {
                        let part = name.clone();
                        self.begin_end(Ending::Refused { part, why });
                    }
                }
            }
            Event::Exited { part, life, how } if self.parts[part].life == life => {
                self.on_exited(part, how, now, &mut actions);
            }
            Event::StopAsked if self.ending.is_some() => self.kill_all(&mut actions),
            Event::StopAsked => self.begin_end(Ending::Stopped),
            Event::Refused { .. } | Event::Exited { .. } | Event::Tick => {}
        }
        self.advance(now, &mut actions);
        actions
    }

    /// When [`Event::Tick`] is due, if nothing happens before.
    pub fn deadline(&self) -> Option<Duration> {
        let due = |part: &Part| match part.state {
            State::Waiting { until } => until.filter(|_| self.ending.is_none()),
            State::Starting { until } | State::Ending { until } => Some(until),
            State::Ready | State::Killed | State::Gone => None,
        };
        self.parts.iter().filter_map(due).min()
    }

    fn on_ready(&mut self, index: usize, life: u64, epoch: String, actions: &mut Vec<Action>) {
        let part = &mut self.parts[index];
        if part.life != life || !matches!(part.state, State::Starting { .. }) {
            return; // it was told to end meanwhile, or says so twice
        }
        if part.epoch.as_ref() == Some(&epoch) {
            // Peers refuse what belongs to an old epoch; a life that reuses one undoes that.
            let message = format!("a new life came back with the epoch {epoch} of the last one");
            let part = part.name.clone();
            let why = Refused { message, exit: 1 };
            return self.begin_end(Ending::Refused { part, why });
        }
        let again = if part.was_ready { " again" } else { "" };
        actions.push(Action::Notice(format!(
            "{} is ready{again}, epoch {epoch}",
            part.name
        )));
        part.epoch = Some(epoch);
        part.state = State::Ready;
        part.was_ready = true;
    }

    fn on_exited(&mut self, index: usize, how: String, now: Duration, actions: &mut Vec<Action>) {
        let (ending, limits) = (self.ending.is_some(), &self.limits);
        let part = &mut self.parts[index];
        if ending {
            part.state = State::Gone;
            return;
        }
        part.deaths.push_back(now);
        while part
            .deaths
            .front()
            .is_some_and(|&at| now - at > limits.deaths_within)
        {
            part.deaths.pop_front();
        }
        let deaths = part.deaths.len();
        if deaths >= limits.deaths_max {
            return self.crash_loop(index, deaths, how, now, actions);
        }
        let pause = limits.pause_first * 2u32.saturating_pow(deaths as u32 - 1);
        let pause = pause.min(limits.pause_max);
        part.state = State::Waiting {
            until: Some(now + pause),
        };
        let name = &part.name;
        let millis = pause.as_millis();
        actions.push(Action::Warning(format!(
            "{name} ended ({how}); restart in {millis} ms"
        )));
    }

    /// The service goes on with those that serve, and says who is missing.
    fn crash_loop(
        &mut self,
        index: usize,
        deaths: usize,
        how: String,
        now: Duration,
        actions: &mut Vec<Action>,
    ) {
        let kind = &self.parts[index].kind;
        let serves = |part: &&Part| part.kind == *kind && part.state == State::Ready;
        let other = self.parts.iter().find(serves);
        let Some(other) = other.map(|other| other.name.clone()) else {
            self.parts[index].state = State::Gone;
            let part = self.parts[index].name.clone();
            return self.begin_end(Ending::CrashLoop { part, deaths, how });
        };
        let (within, rest) = (self.limits.deaths_within, self.limits.rest);
        let part = &mut self.parts[index];
        part.state = State::Waiting {
            until: Some(now + rest),
        };
        actions.push(Action::Warning(format!(
            "{} ended {deaths} times within {} s (the last time: {how}); restart in {} s, and \
             {other} serves alone meanwhile: its own words are above",
            part.name,
            within.as_secs(),
            rest.as_secs(),
        )));
    }

    /// The first reason to end stays the reason.
    fn begin_end(&mut self, ending: Ending) {
        if self.ending.is_some() {
            return;
        }
        self.ending = Some(ending);
        for part in self.parts.iter_mut().filter(|part| !part.has_process()) {
            part.state = State::Gone;
        }
    }

    fn kill_all(&mut self, actions: &mut Vec<Action>) {
        for (index, part) in self.parts.iter_mut().enumerate() {
            if part.has_process() && part.state != State::Killed {
                part.state = State::Killed;
                actions.push(Action::Kill { part: index });
            }
        }
    }

    /// Does what time and the state of the others allow.
    fn advance(&mut self, now: Duration, actions: &mut Vec<Action>) {
        self.kill_overdue(now, actions);
        if self.ending.is_some() {
            self.end_next_stage(now, actions);
        } else {
            self.start_due(now, actions);
        }
    }

    fn kill_overdue(&mut self, now: Duration, actions: &mut Vec<Action>) {
        for (index, part) in self.parts.iter_mut().enumerate() {
            let late = match part.state {
                State::Starting { until } if now >= until => "was not ready in time",
                State::Ending { until } if now >= until => "did not end in time",
                _ => continue,
            };
            part.state = State::Killed;
            actions.push(Action::Warning(format!("{} {late}: killed", part.name)));
            actions.push(Action::Kill { part: index });
        }
    }

    fn start_due(&mut self, now: Duration, actions: &mut Vec<Action>) {
        let unready = self
            .parts
            .iter()
            .filter(|part| !part.was_ready)
            .map(|part| part.stage);
        let open_stage = unready.min().unwrap_or(u32::MAX);
        for (index, part) in self.parts.iter_mut().enumerate() {
            let State::Waiting { until } = part.state else {
                continue;
            };
            if part.stage > open_stage || until.is_some_and(|at| now < at) {
                continue;
            }
            part.life += 1;
            part.state = State::Starting {
                until: now + self.limits.start_max,
            };
            actions.push(Action::Spawn {
                part: index,
                life: part.life,
            });
        }
        if !self.all_ready && self.parts.iter().all(|part| part.state == State::Ready) {
            self.all_ready = true;
            actions.push(Action::AllReady);
        }
    }

    /// SIGTERM for the highest stage that still runs; those below wait until it is gone.
    fn end_next_stage(&mut self, now: Duration, actions: &mut Vec<Action>) {
        let last_stage = self.parts.iter().map(|part| part.stage).max().unwrap_or(0);
        let running = self
            .parts
            .iter()
            .filter(|part| part.has_process())
            .map(|part| part.stage);
        let Some(stage) = running.max() else {
            if !self.finished {
                self.finished = true;
                let ending = self.ending.clone().expect("only called while ending");
                actions.push(Action::Finish(ending));
            }
            return;
        };
        // Requests run only where everything was ready; after a crash loop nobody waits for them.
        let drains = stage == last_stage && self.ending == Some(Ending::Stopped);
        let time = if drains {
            self.limits.drain + self.limits.grace
        } else {
            self.limits.grace
        };
        for (index, part) in self.parts.iter_mut().enumerate() {
            let live = matches!(part.state, State::Starting { .. } | State::Ready);
            if part.stage == stage && live {
                part.state = State::Ending { until: now + time };
                actions.push(Action::Terminate { part: index });
            }
        }
    }
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
