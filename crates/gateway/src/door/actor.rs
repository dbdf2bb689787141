//! The task that owns the machine: inputs become events, effects are carried out in order.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::convert::Infallible;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use handoff::door::{Door, Effect, End, EngineId, Event, Label, Leg, Outcome, Timer};
use handoff::{AttemptId, Broken, RequestId};
use pages::Epoch;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::task::{AbortHandle, JoinSet};
use wire::trace::{Driver, Header, Recorded, TraceError, Writer};

use super::affinity::Affinity;
use super::counters::Counters;
use super::dialect::{Meeting, Names, Order, Rank, Reference};
use super::leg::{Client, LegSpan, Running};
use super::requests::{Open, Part, Submission};
use super::{Config, Found, Upstream, facts, verdict};
use crate::engine::{InFlight, Lookout, ModelFacts, NotTaken};
use crate::pairs::{Board, Domains};

/// What reaches the task.
pub(super) enum Input {
    /// The engines from now on.
    Engines(Vec<Upstream>),
    /// What was measured of the engine of this name, or why it cannot be asked.
    Measured(String, Box<Result<Found, String>>),
    /// A request.
    Submit(Box<Submission>),
    /// A part of a decode leg's answer.
    Part(AttemptId, Label, Part),
    /// A leg has ended.
    Ended(AttemptId, Leg, Box<Ended>),
    /// An engine has carried out an abort.
    Aborted(AttemptId, Leg),
    /// Its text has run into a stop string.
    Stop(RequestId),
    /// The reader has left.
    Gone(RequestId),
    /// Somebody looks at what is under way.
    Look,
    /// Nothing new from now on.
    Drain,
    /// The end.
    End,
}

/// How a leg ended, and what came with it.
pub(super) struct Ended {
    pub(super) end: End,
    pub(super) part: Part,
    /// The engine's words for a failure.
    pub(super) said: Option<String>,
    pub(super) reference: Option<Reference>,
}

/// An engine, as it is now.
pub(super) struct Place {
    pub(super) upstream: Arc<Upstream>,
    /// Its number while this process is there.
    pub(super) id: Option<EngineId>,
    pub(super) found: Result<Arc<Found>, String>,
    /// It is to be known no more when its legs have ended.
    pub(super) leaving: bool,
}

impl Place {
    fn new(upstream: Upstream) -> Self {
        Self {
            upstream: Arc::new(upstream),
            id: None,
            found: Err("it was not asked yet".into()),
            leaving: false,
        }
    }
}

pub(super) struct Actor {
    machine: Recorded<Door>,
    epoch: Epoch,
    inbox: UnboundedReceiver<Input>,
    back: UnboundedSender<Input>,
    client: Client,
    places: Vec<Place>,
    next_engine: u32,
    requests: BTreeMap<RequestId, Open>,
    /// The request of every attempt that has begun and whose request is open.
    of: BTreeMap<AttemptId, RequestId>,
    /// The tasks that read their answers.
    legs: BTreeMap<(AttemptId, Leg), AbortHandle>,
    /// Those that were told to end and whose answers are read.
    aborted: BTreeSet<(AttemptId, Leg)>,
    /// What prefills have answered with and no decode was asked with yet.
    references: BTreeMap<AttemptId, Reference>,
    timers: wire::Timers<Timer>,
    domains: Domains,
    affinity: Affinity,
    counters: Counters,
    models: Vec<ModelFacts>,
    board: Arc<Board>,
    lookout: Arc<Lookout>,
    legs_max: u32,
    draining: bool,
    /// When the task ends at the latest, once it is to.
    ending: Option<Instant>,
    end_within: Duration,
    /// The rule of its own that the machine has found broken: nothing more is done with it.
    broken: Option<Broken>,
    /// Where this task leaves how it ended.
    how: Arc<OnceLock<Result<(), Broken>>>,
    /// Whether the snapshot is older than the state.
    stale: bool,
    tasks: JoinSet<()>,
}

impl Actor {
    pub(super) fn new(
        config: &Config,
        epoch: Epoch,
        secret: [u8; 32],
        models: Vec<ModelFacts>,
        (back, inbox): (UnboundedSender<Input>, UnboundedReceiver<Input>),
        (board, lookout): (Arc<Board>, Arc<Lookout>),
    ) -> Result<Self, TraceError> {
        let header = Header::Door {
            config: config.machine.clone(),
            epoch,
        };
        let trace = config.trace.as_ref();
        let trace = trace
            .map(|path| Writer::create(path, &header))
            .transpose()?;
        let mut actor = Self {
            machine: Recorded::new(Door::new(config.machine.clone(), epoch), trace),
            epoch,
            inbox,
            back,
            client: Client::new(config),
            places: config.engines.iter().cloned().map(Place::new).collect(),
            next_engine: 0,
            requests: BTreeMap::new(),
            of: BTreeMap::new(),
            legs: BTreeMap::new(),
            aborted: BTreeSet::new(),
            references: BTreeMap::new(),
            timers: wire::Timers::default(),
            domains: Domains::new(secret),
            affinity: Affinity::new(),
            counters: Counters::default(),
            models,
            board,
            lookout,
            legs_max: config.legs_max,
            draining: false,
            ending: None,
            end_within: config.end_within,
            broken: None,
            how: Arc::default(),
            stale: false,
            tasks: JoinSet::new(),
        };
        actor.publish();
        Ok(actor)
    }

    /// Set when the inbox closes, unless the task has panicked.
    pub(super) fn how(&self) -> Arc<OnceLock<Result<(), Broken>>> {
        self.how.clone()
    }

    pub(super) async fn run(mut self) {
        loop {
            let due = self.timers.next().into_iter().chain(self.ending).min();
            // The inbox comes first, so that a late timer does not overtake an answer.
            let input = match due {
                None => self.inbox.recv().await,
                Some(due) => match tokio::time::timeout_at(due.into(), self.inbox.recv()).await {
                    Ok(input) => input,
                    Err(_) => {
                        self.fire();
                        self.publish();
                        if self.has_ended() {
                            return self.end();
                        }
                        continue;
                    }
                },
            };
            match input {
                None => return self.end(),
                Some(input) => self.take(input),
            }
            self.fire();
            while self.tasks.try_join_next().is_some() {}
            if self.broken.is_some() || self.has_ended() {
                return self.end();
            }
            // Not for every request of a crowd: a snapshot costs as much as one.
            if self.stale && self.inbox.is_empty() {
                self.publish();
            }
        }
    }

    fn fire(&mut self) {
        let now = Instant::now();
        while let Some(timer) = self.timers.pop_due(now) {
            self.feed(Event::Fired(timer));
        }
    }

    fn take(&mut self, input: Input) {
        match input {
            Input::Engines(engines) => self.engines(engines),
            Input::Measured(name, found) => self.measured(&name, *found),
            Input::Submit(submission) => self.submit(*submission),
            Input::Part(attempt, said, part) => {
                if let Some(open) = self.open_of(attempt) {
                    open.hold(attempt, part);
                }
                self.feed(Event::Part(attempt, said));
            }
            Input::Ended(attempt, leg, ended) => self.ended(attempt, leg, *ended),
            Input::Aborted(attempt, leg) => self.feed(Event::Aborted(attempt, leg)),
            Input::Stop(request) => {
                if let Some(open) = self.requests.get_mut(&request) {
                    open.stop();
                    self.feed(Event::ClientGone(request));
                }
            }
            Input::Gone(request) => {
                if self.requests.contains_key(&request) {
                    self.feed(Event::ClientGone(request));
                }
            }
            Input::Look => self.show(),
            Input::Drain => {
                self.draining = true;
                self.feed(Event::Drain);
                self.publish();
            }
            Input::End => self.begin_to_end(),
        }
    }

    /// Every request is told; their legs are wound up as if their clients had left, for as long as that
    /// may take.
    fn begin_to_end(&mut self) {
        if self.ending.is_some() {
            return;
        }
        self.ending = Some(Instant::now() + self.end_within);
        self.draining = true;
        self.feed(Event::Drain);
        for (request, open) in std::mem::take(&mut self.requests) {
            open.end();
            self.feed(Event::ClientGone(request));
        }
    }

    fn has_ended(&self) -> bool {
        let over = |at: Instant| self.machine.at_rest() || Instant::now() >= at;
        self.ending.is_some_and(over)
    }

    fn submit(&mut self, submission: Submission) {
        let request = submission.request;
        assert_eq!(
            request,
            self.machine.next_request(),
            "ids are given out in one order"
        );
        let job = &submission.job;
        let domain = self.domains.of(&job.tenant, job.cache_salt.as_deref());
        let session = job.session.as_deref();
        let keys = self.affinity.keys(domain.value(), session, &job.prompt);
        let near = self.affinity.near(&keys);
        let only = self.named(&job.only);
        let salt = format!("{:016x}", domain.value());
        let (ask, deadline_ms, open) = submission.split(salt, keys, (near, only));
        self.counters.requests_judged += 1;
        self.requests.insert(request, open);
        self.feed(Event::Request { ask, deadline_ms });
    }

    /// The engines of these names; one that is not there is none that a request could go to.
    fn named(&self, names: &[String]) -> Vec<EngineId> {
        let id = |name: &String| {
            let place = self.places.iter().find(|it| it.upstream.name == *name);
            place.and_then(|it| it.id).unwrap_or(EngineId(u32::MAX))
        };
        names.iter().map(id).collect()
    }

    /// Nothing new goes to those that are not named any more.
    fn engines(&mut self, engines: Vec<Upstream>) {
        for at in 0..self.places.len() {
            let place = &mut self.places[at];
            let named = engines.iter().any(|it| it.name == place.upstream.name);
            place.leaving = !named;
            self.tell_of(at);
        }
        for upstream in engines {
            let known = |it: &Place| it.upstream.name == upstream.name;
            if !self.places.iter().any(known) {
                self.places.push(Place::new(upstream));
            }
        }
        self.forget_the_left();
        self.publish();
    }

    /// Engines that are named no more, and have nothing left to do.
    fn forget_the_left(&mut self) {
        loop {
            let idle = |id| self.machine.is_idle(id);
            let left = |it: &Place| it.leaving && it.id.is_none_or(idle);
            let Some(at) = self.places.iter().position(left) else {
                return;
            };
            let gone = self.places.remove(at);
            tracing::info!(engine = %gone.upstream.name, "engine left");
            if let Some(id) = gone.id {
                self.feed(Event::Gone(id));
            }
        }
    }

    /// Another process, or another kind of engine, is another engine.
    fn measured(&mut self, name: &str, found: Result<Found, String>) {
        let named = |it: &Place| it.upstream.name == name;
        let Some(at) = self.places.iter().position(named) else {
            return; // it was asked while it was named
        };
        let place = &mut self.places[at];
        let same = match (&place.found, &found) {
            (Ok(old), Ok(new)) => old.life == new.life && old.dialect == new.dialect,
            _ => false,
        };
        let gone = place.id.take_if(|_| !same);
        if place.found.as_ref().ok().map(|it| it.lengths)
            != found.as_ref().ok().map(|it| it.lengths)
        {
            let lengths = found.as_ref().ok().and_then(|it| it.lengths);
            let why = found.as_ref().err();
            tracing::info!(engine = %name, ?lengths, ?why, "engine measured");
        }
        place.found = found.map(Arc::new);
        if place.found.is_ok() {
            place.id.get_or_insert_with(|| {
                self.next_engine += 1;
                EngineId(self.next_engine)
            });
        }
        if let Some(gone) = gone {
            self.feed(Event::Gone(gone));
        }
        self.tell_of(at);
        self.publish();
    }

    /// What the machine is to know of the engine at this place.
    fn tell_of(&mut self, at: usize) {
        let place = &self.places[at];
        let (Some(id), Ok(found)) = (place.id, &place.found) else {
            return;
        };
        let engine = handoff::door::Engine {
            serves: found.dialect.serves(found.group),
            lengths: found.lengths.filter(|_| !place.leaving),
            most: self.legs_max,
            weight: found.weight,
            aborts_prefill: found.aborts_prefill,
            private: found.private.is_some(),
        };
        self.feed(Event::Engine(id, engine));
    }

    fn ended(&mut self, attempt: AttemptId, leg: Leg, ended: Ended) {
        self.legs.remove(&(attempt, leg));
        if let Some(open) = self.open_of(attempt) {
            if leg == Leg::Decode {
                open.hold(attempt, ended.part);
            }
            if let Some(said) = ended.said {
                open.failed(attempt, leg, said);
            }
            if let Some(reference) = ended.reference {
                self.references.insert(attempt, reference);
            }
        }
        // How a leg ends that was told to says nothing of its engine.
        if !self.aborted.remove(&(attempt, leg)) {
            self.counters.ended(leg, ended.end);
        }
        self.stale = true;
        self.feed(Event::Ended(attempt, leg, ended.end));
    }

    fn open_of(&mut self, attempt: AttemptId) -> Option<&mut Open> {
        let request = self.of.get(&attempt)?;
        self.requests.get_mut(request)
    }

    /// A gateway goes on without a trace, so that nothing ends this.
    fn feed(&mut self, event: Event) {
        let Ok(()) = self.tell(event);
    }

    fn do_effect(&mut self, effect: Effect) -> Option<Event> {
        match effect {
            Effect::Dispatch {
                request,
                attempt,
                leg,
                engine,
                max_new,
                reference,
            } => {
                let reference = reference.and_then(|of| self.references.remove(&of));
                return self.dispatch(request, (attempt, leg), engine, max_new, reference);
            }
            Effect::Abort(attempt, leg, engine) => self.abort(attempt, leg, engine),
            Effect::Drop(attempt, leg) => {
                self.counters.aborts_unanswered += 1;
                self.aborted.remove(&(attempt, leg));
                if let Some(task) = self.legs.remove(&(attempt, leg)) {
                    task.abort();
                }
            }
            Effect::Release { request, .. } => {
                let open = self.requests.get_mut(&request);
                if let Some(Err(not)) = open.map(Open::release) {
                    self.counters.readers_behind += u64::from(not == NotTaken::Behind);
                    return Some(Event::ClientGone(request));
                }
            }
            Effect::Finish { request, outcome } => self.finish(request, outcome),
            Effect::Arm { timer, after_ms } => self.timers.arm(timer, Instant::now(), after_ms),
            Effect::Disarm(timer) => self.timers.disarm(timer),
            Effect::FailStop(broken) => {
                tracing::error!(%broken, "the door's machine found one of its own rules broken");
                self.broken = Some(broken);
            }
        }
        None
    }

    fn place_of(&self, engine: EngineId) -> Option<usize> {
        self.places.iter().position(|it| it.id == Some(engine))
    }

    fn dispatch(
        &mut self,
        request: RequestId,
        (attempt, leg): (AttemptId, Leg),
        engine: EngineId,
        max_new: u32,
        reference: Option<Reference>,
    ) -> Option<Event> {
        self.counters.legs_dispatched += 1;
        let asked = self.requests.get(&request).map(|it| it.job.clone());
        let meet = asked.and_then(|job| self.meeting_of(attempt, engine, &job.prompt));
        let found = |at: usize| self.places[at].found.as_ref().ok().cloned();
        let at = self.place_of(engine);
        let (Some(at), Some(found), Some(open)) =
            (at, at.and_then(found), self.requests.get_mut(&request))
        else {
            return Some(Event::Ended(attempt, leg, End::Unreached)); // it went a moment ago
        };
        open.begins(attempt);
        open.goes_to(leg, &self.places[at].upstream.name, &found.life);
        if self
            .machine
            .prefill_of(attempt)
            .is_none_or(|it| it == engine)
        {
            self.affinity.went(&open.keys, engine);
        }
        self.of.insert(attempt, request);
        let order = Order {
            job: open.job.clone(),
            salt: open.salt.clone(),
            names: Names::of(self.epoch, attempt, leg),
            leg,
            max_new,
            reference,
            meet,
        };
        let name = &self.places[at].upstream.name;
        let span = order.job.trace.as_ref();
        let span = span.map(|it| LegSpan::new(it, attempt, &order, name));
        let running = Running {
            attempt,
            leg,
            upstream: self.places[at].upstream.clone(),
            back: self.back.clone(),
            span,
        };
        let task = self.client.run(running, found.dialect.clone(), order);
        let task = self.tasks.spawn(task);
        self.legs.insert((attempt, leg), task);
        None
    }

    /// Where decode of this attempt meets its prefill. The same for both, which are sent at once.
    fn meeting_of(&self, attempt: AttemptId, engine: EngineId, prompt: &[u32]) -> Option<Meeting> {
        let prefill = self.machine.prefill_of(attempt).unwrap_or(engine);
        let place = &self.places[self.place_of(prefill)?];
        let found = place.found.as_ref().ok()?;
        let (host, port) = found.dialect.meeting(&place.upstream.authority)?;
        let rank = Rank::of(&found.ranks, attempt, prompt.len());
        let room = Names::room(self.epoch, attempt, rank);
        Some(Meeting {
            host,
            port,
            room,
            rank,
        })
    }

    /// By the engine's own call, or, where the engine takes the end of a connection for one, by that.
    fn abort(&mut self, attempt: AttemptId, leg: Leg, engine: EngineId) {
        self.counters.legs_aborted += 1;
        let Some(at) = self.place_of(engine) else {
            return; // it is gone: nobody answers, and the machine gives the leg up
        };
        let Ok(found) = &self.places[at].found else {
            return;
        };
        let names = Names::of(self.epoch, attempt, leg);
        let reads = self.legs.contains_key(&(attempt, leg));
        if reads {
            self.aborted.insert((attempt, leg));
        }
        match found.dialect.abort(&names) {
            Some(call) => {
                // A leg whose answer is read says itself that it has ended.
                let back = self.back.clone();
                let upstream = self.places[at].upstream.clone();
                let done = self.client.call(upstream, call);
                self.tasks.spawn(async move {
                    if done.await && !reads {
                        // An engine that has ended needs no word.
                        let _ = back.send(Input::Aborted(attempt, leg));
                    }
                });
            }
            None => {
                if let Some(task) = self.legs.remove(&(attempt, leg)) {
                    task.abort();
                }
                let _ = self.back.send(Input::Aborted(attempt, leg));
            }
        }
    }

    fn finish(&mut self, request: RequestId, outcome: Outcome) {
        self.counters.outcome(&outcome);
        let Some(open) = self.requests.remove(&request) else {
            return;
        };
        for attempt in &open.attempts {
            self.of.remove(attempt);
            self.references.remove(attempt);
        }
        let said = match &outcome {
            Outcome::Failed(failing) => open.words_of(failing.attempt, failing.leg),
            _ => None,
        };
        let said = said.map(str::to_owned);
        let outcome = match outcome {
            Outcome::ClientLeft if open.is_stopped() => Ok(()),
            outcome => {
                let told = verdict::of_outcome(&outcome, said.as_deref());
                told.map_err(|fault| fault.at(open.by()))
            }
        };
        open.finish(outcome);
        self.stale = true;
    }

    fn publish(&mut self) {
        self.stale = false;
        self.forget_the_left();
        self.counters.unwanted_attempts = self.machine.unwanted() as u64;
        self.board.publish(facts::snapshot(
            &self.models,
            &self.machine,
            self.draining,
            &self.places,
            &self.counters,
        ));
    }

    fn show(&self) {
        let name = |id: EngineId| {
            let place = self.places.iter().find(|it| it.id == Some(id));
            place.map_or(String::new(), |it| it.upstream.name.clone())
        };
        let since = |request| self.requests.get(&request).map(|open| open.since);
        let now = self.machine.under_way();
        self.lookout
            .show(now.map(|it| InFlight::of(&it, name, since)));
    }

    fn end(mut self) {
        for (_, open) in std::mem::take(&mut self.requests) {
            open.end();
        }
        let Ok(()) = self.flush_trace();
        let how = self.broken.take().map_or(Ok(()), Err);
        // It is set once: the task ends here.
        let _ = self.how.set(how);
        // Last, because whoever waits for the end waits for this.
        self.inbox.close();
        while let Ok(input) = self.inbox.try_recv() {
            if let Input::Submit(submission) = input {
                submission.end();
            }
        }
    }
}

impl Driver for Actor {
    type Machine = Door;
    type Error = Infallible;

    fn machine(&mut self) -> &mut Recorded<Door> {
        &mut self.machine
    }

    fn carry_out(
        &mut self,
        effect: Effect,
        led_to: &mut VecDeque<Event>,
    ) -> Result<(), Infallible> {
        led_to.extend(self.do_effect(effect));
        Ok(())
    }
}
