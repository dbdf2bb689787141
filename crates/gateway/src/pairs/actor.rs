//! The task that owns the machine: inputs become events, effects are carried out in order.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use handoff::gateway::{Effect, Event, Gateway, Outcome, Timer};
use handoff::{
    AttemptId, Broken, Conn, Decisions, DecodeToGateway, Ending, Failure, Fault, GatewayToDecode,
    GatewayToPrefill, Hello, PrefillToGateway, RequestId, codec,
};
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::UnboundedReceiver;
use wire::trace::{AuditEvent, AuditLog, AuditRecord, Driver, Header, OwnersLog, Recorded, Writer};
use wire::{Frame, TokenOut};

use super::counters::Counters;
use super::facts::{Board, snapshot};
use super::links::Links;
use super::requests::{Open, Submission};
use super::tenants::Domains;
use super::{Config, StartError};
use crate::engine::{InFlight, Lookout, ModelFacts, NotTaken, WorkerRole};
use crate::spans::Steps;

/// What reaches the task.
pub(super) enum Input {
    /// The worker at this place is connected.
    Up(Conn, usize, wire::control::Sender),
    /// It sent a frame, which counts against its connection's room until it is processed.
    Frame(Conn, Bytes, OwnedSemaphorePermit),
    /// The connection is gone; nothing more arrives on it.
    Down(Conn),
    /// A request.
    Submit(Box<Submission>),
    /// This choice needs no more tokens.
    StopChoice(RequestId, u16),
    /// The reader has left.
    Gone(RequestId),
    /// Somebody looks at what is under way.
    Look,
    /// Nothing new from now on.
    Drain,
    /// The end.
    End,
}

pub(super) struct Actor<J: Decisions> {
    machine: Recorded<Gateway<J>>,
    inbox: UnboundedReceiver<Input>,
    links: Links,
    requests: BTreeMap<RequestId, Open>,
    timers: wire::Timers<handoff::gateway::Timer>,
    domains: Domains,
    cache: bool,
    counters: Counters,
    owners: Option<OwnersLog>,
    audit: AuditLog,
    models: Vec<ModelFacts>,
    board: Arc<Board>,
    lookout: Arc<Lookout>,
    draining: bool,
    /// The rule of its own that the machine has found broken: nothing more is done with it.
    broken: Option<Broken>,
    /// Where this task leaves how it ended.
    how: Arc<OnceLock<Result<(), Broken>>>,
    /// Whether the snapshot is older than the state.
    stale: bool,
    facts_every: Duration,
    silence_max: Duration,
    next_facts: Instant,
}

impl<J: Decisions> Actor<J> {
    pub(super) fn new(
        decisions: J,
        config: &Config,
        hello: Hello,
        secret: [u8; 32],
        models: Vec<ModelFacts>,
        inbox: UnboundedReceiver<Input>,
        (board, lookout): (Arc<Board>, Arc<Lookout>),
    ) -> Result<Self, StartError> {
        let answer_ms = u64::try_from(config.silence_max.as_millis()).unwrap_or(u64::MAX);
        let machine = handoff::gateway::Config {
            answer_ms,
            ..config.machine.clone()
        };
        let begin = |path: &PathBuf| {
            let (config, hello) = (machine.clone(), hello.clone());
            Writer::create(path, &Header::Gateway { config, hello })
        };
        let trace = config.trace.as_ref().map(begin).transpose()?;
        let epoch = hello.epoch;
        let owners = config.owners.as_ref();
        let owners = owners.map(|dir| OwnersLog::create(dir, "gateway", epoch));
        let owners = owners.transpose().map_err(StartError::Owners)?;
        let audit = AuditLog::open(config.audit.as_deref()).map_err(StartError::Audit)?;
        let mut actor = Self {
            machine: Recorded::new(
                Gateway::with_decisions(machine.clone(), hello, decisions),
                trace,
            ),
            inbox,
            links: Links::new(config.prefill.len(), config.decode.len()),
            requests: BTreeMap::new(),
            timers: wire::Timers::default(),
            domains: Domains::new(secret),
            cache: config.cache,
            counters: Counters::default(),
            owners,
            audit,
            models,
            board,
            lookout,
            draining: false,
            broken: None,
            how: Arc::default(),
            stale: true,
            facts_every: config.facts_every,
            silence_max: config.silence_max,
            next_facts: Instant::now(),
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
            let due = self
                .timers
                .next()
                .into_iter()
                .chain([self.next_facts])
                .min();
            let due = due.expect("facts are always due some time");
            if self.inbox.is_empty() {
                let Ok(()) = self.flush_trace();
            }
            // The inbox comes first, so that a late timer does not overtake an answer.
            match tokio::time::timeout_at(due.into(), self.inbox.recv()).await {
                Ok(None | Some(Input::End)) => return self.end(),
                Ok(Some(input)) => self.take(input),
                Err(_) => {}
            }
            let now = Instant::now();
            while let Some(timer) = self.timers.pop_due(now) {
                self.feed(Event::Fired(timer));
            }
            if now >= self.next_facts {
                self.ask_facts();
                self.next_facts = now + self.facts_every;
            }
            if self.broken.is_some() {
                return self.end();
            }
            if self.stale {
                self.publish();
            }
        }
    }

    fn take(&mut self, input: Input) {
        match input {
            Input::Up(conn, place, sender) => self.up(conn, place, sender),
            Input::Frame(conn, bytes, _room) => self.frame(conn, &bytes),
            Input::Down(conn) => self.lost(conn),
            Input::Submit(submission) => self.submit(*submission),
            Input::StopChoice(request, choice) => {
                if self.requests.contains_key(&request) {
                    self.feed(Event::StopChoice(request, choice));
                }
            }
            Input::Look => self.show(),
            Input::Gone(request) => {
                if self.requests.contains_key(&request) {
                    self.feed(Event::ClientGone(request));
                }
            }
            Input::Drain => {
                self.draining = true;
                self.stale = true;
                self.feed(Event::Drain);
            }
            Input::End => {}
        }
    }

    fn up(&mut self, conn: Conn, place: usize, sender: wire::control::Sender) {
        self.links.up(conn, place, sender);
        self.counters.connections += 1;
        self.stale = true;
        match self.links.place(conn).map(|place| place.role) {
            Some(WorkerRole::Prefill) => self.feed(Event::PrefillDialled(conn)),
            _ => self.feed(Event::DecodeDialled(conn)),
        }
    }

    /// The machine hears once that a connection is gone, and of nothing that it still brings.
    fn lost(&mut self, conn: Conn) {
        if self.links.close(conn) {
            self.feed(Event::Disconnected(conn));
        }
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
        let (spec, deadline_ms, open) = submission.split(domain, self.cache);
        self.counters.requests_judged += 1;
        self.stale = true;
        self.requests.insert(request, open);
        self.feed(Event::Request { spec, deadline_ms });
    }

    /// Garbage costs its connection, and never more.
    fn frame(&mut self, conn: Conn, bytes: &[u8]) {
        let Some(place) = self.links.place(conn) else {
            return; // closed here: what was unprocessed on it is discarded
        };
        let role = place.role;
        let problem = match Frame::decode(bytes) {
            Ok(Frame::Core(message)) if role == WorkerRole::Prefill => {
                match codec::decode(message) {
                    Ok(message) => return self.prefill_said(conn, message),
                    Err(error) => error.to_string(),
                }
            }
            Ok(Frame::Core(message)) => match decode_message(message) {
                Ok(message) => return self.decode_said(conn, message),
                Err(problem) => problem,
            },
            Ok(Frame::Facts(facts)) => match self.links.get_mut(conn) {
                Some(link) if link.asked.is_some() => {
                    link.asked = None;
                    link.facts = Some(*facts);
                    self.stale = true;
                    return;
                }
                _ => "facts that nobody asked for".to_owned(),
            },
            Ok(Frame::AskFacts) => "a question that gateways are not asked".to_owned(),
            Err(error) => error.to_string(),
        };
        self.malformed(conn, &problem);
    }

    fn malformed(&mut self, conn: Conn, problem: &str) {
        let worker = self.links.place(conn).map_or("", |place| &place.name);
        tracing::warn!(%worker, %problem, "a worker sent what is no message: closed");
        self.counters.malformed_messages += 1;
        self.lost(conn);
    }

    fn prefill_said(&mut self, conn: Conn, message: PrefillToGateway) {
        let hello = match &message {
            PrefillToGateway::Hello(hello) => Some(hello.clone()),
            PrefillToGateway::Ended { .. } => None,
        };
        let fault = match &message {
            PrefillToGateway::Ended { attempt, ending } => Some((*attempt, integrity(ending))),
            PrefillToGateway::Hello(_) => None,
        };
        // All others are decode's to find, whose ending wins.
        let fault = fault.filter(|(_, found)| *found == Some(Fault::FailStop));
        self.feed_and_audit(fault, Event::FromPrefill(conn, message));
        self.accepted(conn, hello);
    }

    fn decode_said(&mut self, conn: Conn, message: DecodeToGateway) {
        let hello = match &message {
            DecodeToGateway::Hello(hello) => Some(hello.clone()),
            _ => None,
        };
        let fault = match &message {
            DecodeToGateway::Ended { attempt, ending } => Some((*attempt, integrity(ending))),
            DecodeToGateway::PutBack { .. } => {
                self.counters.put_backs += 1;
                self.stale = true;
                None
            }
            _ => None,
        };
        self.feed_and_audit(fault, Event::FromDecode(conn, message));
        self.accepted(conn, hello);
    }

    /// Feeds an event that may be an integrity fault of an attempt; if it is, counts it and writes
    /// down whose it was and whether the request goes on.
    fn feed_and_audit(&mut self, ended: Option<(AttemptId, Option<Fault>)>, event: Event) {
        let Some((attempt, Some(fault))) = ended else {
            return self.feed(event);
        };
        let about = self.machine.about(attempt);
        let announced = self.counters.attempts_announced;
        *self.counters.integrity(fault) += 1;
        self.stale = true;
        self.feed(event);
        let retried = self.counters.attempts_announced > announced;
        let (request, prefill, decode) = about.map_or((None, None, None), |(request, p, d)| {
            (Some(request.to_string()), p, d)
        });
        let epoch = self.machine.hello().epoch.to_string();
        self.audit.write(&AuditRecord {
            kind: Some(fault),
            request,
            attempt: Some(attempt.to_string()),
            prefill_epoch: prefill.map(|epoch| epoch.to_string()),
            decode_epoch: decode.map(|epoch| epoch.to_string()),
            retried: Some(retried),
            ..AuditRecord::new(AuditEvent::IntegrityFault, "gateway", epoch)
        });
    }

    /// A Hello after which the machine has not hung up is a worker.
    fn accepted(&mut self, conn: Conn, hello: Option<Hello>) {
        let (Some(hello), Some(link)) = (hello, self.links.get_mut(conn)) else {
            return;
        };
        let epoch = hello.epoch;
        link.hello = Some(hello);
        let worker = self.links.place(conn).map_or("", |place| &place.name);
        tracing::info!(%worker, %epoch, "worker connected");
        self.stale = true;
        if !self.links.ask_facts(conn) {
            self.feed(Event::Disconnected(conn));
        }
    }

    /// Asks every worker how it is. One that owes an answer for too long is given up, as if it
    /// had died (H-15: every wait has a deadline): the machine may have others.
    fn ask_facts(&mut self) {
        for conn in self.links.conns() {
            if self.links.silence(conn) > self.silence_max {
                let worker = self.links.place(conn).map_or("", |place| &place.name);
                tracing::warn!(%worker, silence = ?self.silence_max, "no sign of life: closed");
                self.counters.silent_workers += 1;
                self.lost(conn);
            } else if !self.links.ask_facts(conn) {
                self.feed(Event::Disconnected(conn));
            }
        }
    }

    /// A gateway goes on without a trace, so that nothing ends this.
    fn feed(&mut self, event: Event) {
        let Ok(()) = self.tell(event);
    }

    /// Gives what the machine has to hear of it.
    fn do_effect(&mut self, effect: Effect) -> Option<Event> {
        let lost = |conn, sent: bool| (!sent).then_some(Event::Disconnected(conn));
        match effect {
            Effect::ToPrefill(conn, message) => {
                if let GatewayToPrefill::Attempt { attempt, .. } = &message {
                    self.counters.attempts_sent += 1;
                    if let Some(steps) = self.steps_of(*attempt) {
                        steps.sent();
                    }
                }
                lost(conn, self.links.send(conn, &message))
            }
            Effect::ToDecode(conn, message) => {
                if let GatewayToDecode::Expect { attempt, .. } = &message {
                    self.counters.attempts_announced += 1;
                    if let Some(steps) = self.steps_of(*attempt) {
                        steps.announced(attempt.to_string());
                    }
                    if let (Some(owners), Some((request, ..))) =
                        (&mut self.owners, self.machine.about(*attempt))
                    {
                        owners.belongs(attempt, &request);
                    }
                }
                lost(conn, self.links.send(conn, &message))
            }
            Effect::Close(conn, why) => {
                let worker = self.links.place(conn).map_or("", |place| &place.name);
                tracing::warn!(%worker, ?why, "hung up on a worker");
                self.counters.connections_ended += u64::from(self.links.close(conn));
                self.stale = true;
                None // it has drawn its conclusions already
            }
            Effect::Deliver { request, item } => {
                let open = self.requests.get_mut(&request)?;
                let taken = open.deliver(item);
                if taken == Err(NotTaken::Behind) {
                    let label = &open.label;
                    tracing::warn!(%request, %label, "a reader fell behind: request cancelled");
                    self.counters.readers_fallen_behind += 1;
                }
                taken.err().map(|_| Event::ClientGone(request))
            }
            Effect::Finish { request, outcome } => {
                self.finish(request, &outcome);
                None
            }
            Effect::Arm { timer, after_ms } => {
                // Armed once for each request taken on.
                self.counters.requests_admitted += u64::from(matches!(timer, Timer::Request(_)));
                self.timers.arm(timer, Instant::now(), after_ms);
                None
            }
            Effect::Disarm(timer) => {
                self.timers.disarm(timer);
                None
            }
            Effect::FailStop(why) => {
                tracing::error!(evidence = %why, "fail-stop: this gateway ends");
                let epoch = self.machine.hello().epoch.to_string();
                self.audit.write(&AuditRecord {
                    evidence: Some(why.to_string()),
                    ..AuditRecord::new(AuditEvent::FailStop, "gateway", epoch)
                });
                self.broken = Some(why);
                None
            }
        }
    }

    /// What a collector hears of the request of an attempt, if one does.
    fn steps_of(&mut self, attempt: AttemptId) -> Option<&mut Steps> {
        let (request, ..) = self.machine.about(attempt)?;
        self.requests.get_mut(&request)?.steps.as_mut()
    }

    fn finish(&mut self, request: RequestId, outcome: &Outcome) {
        let counters = &mut self.counters;
        let counter = match outcome {
            Outcome::Answered => &mut counters.requests_answered,
            Outcome::Rejected(_) => &mut counters.requests_rejected,
            Outcome::Refused(_) => &mut counters.requests_refused,
            Outcome::Failed(_) => &mut counters.requests_failed,
            Outcome::ClientLeft => &mut counters.requests_abandoned,
        };
        *counter += 1;
        // Before the reader hears of it, so that whoever was answered sees itself counted.
        self.publish();
        if let Some(open) = self.requests.remove(&request) {
            tracing::debug!(%request, label = %open.label, ?outcome, "request ended");
            open.finish(outcome, self.machine.limits().first());
        }
    }

    fn publish(&mut self) {
        let (models, machine) = (&self.models, &self.machine);
        let facts = snapshot(models, machine, self.draining, &self.links, &self.counters);
        self.board.publish(facts);
        self.stale = false;
    }

    fn show(&self) {
        let name = |conn: Conn| {
            let place = self.links.place(conn);
            place.map_or(String::new(), |it| it.name.clone())
        };
        let since = |request| self.requests.get(&request).map(|open| open.since);
        let now = self.machine.under_way();
        self.lookout
            .show(now.map(|it| InFlight::of(&it, name, since)));
    }

    /// Workers see their connection end, which cancels what they still do.
    fn end(mut self) {
        for (_, open) in std::mem::take(&mut self.requests) {
            open.end();
        }
        self.draining = true;
        self.links.close_all();
        self.publish();
        let Ok(()) = self.flush_trace();
        // Last, because whoever waits for the end waits for this.
        let _ = self.how.set(self.broken.take().map_or(Ok(()), Err));
        self.inbox.close();
        while let Ok(input) = self.inbox.try_recv() {
            if let Input::Submit(submission) = input {
                submission.end();
            }
        }
    }
}

impl<J: Decisions> Driver for Actor<J> {
    type Machine = Gateway<J>;
    type Error = Infallible;

    fn machine(&mut self) -> &mut Recorded<Gateway<J>> {
        &mut self.machine
    }

    fn hears(&mut self, event: &Event) {
        if let Event::Disconnected(conn) = event {
            tracing::info!(conn = conn.0, "connection to a worker ended");
            self.counters.connections_ended += 1;
            self.stale = true;
        }
    }

    fn carry_out(
        &mut self,
        effect: Effect,
        led_to: &mut VecDeque<Event>,
    ) -> Result<(), Infallible> {
        led_to.extend(self.do_effect(effect));
        Ok(())
    }

    fn settled(&mut self) {
        let of_request = |timer: &Timer| matches!(timer, Timer::Request(_));
        let kept = self.requests.is_empty() && self.timers.armed().any(of_request);
        debug_assert!(!kept, "no request, and a timer of one");
    }
}

/// The integrity fault that ended an attempt, if one did.
fn integrity(ending: &Ending) -> Option<Fault> {
    match ending {
        Ending::Failed(Failure::Integrity(fault)) => Some(*fault),
        _ => None,
    }
}

/// A message of decode's, with a token in it that can be read.
fn decode_message(bytes: &[u8]) -> Result<DecodeToGateway, String> {
    let message = codec::decode(bytes).map_err(|error| error.to_string())?;
    if let DecodeToGateway::Tokens { token, payload, .. } = &message {
        let said = TokenOut::decode(payload).map_err(|error| error.to_string())?;
        if said.id != *token {
            return Err(format!(
                "token {token} is said with the record of {}",
                said.id
            ));
        }
    }
    Ok(message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::mpsc;
    use wire::control::{Identity, Role, certs};

    /// No peer leads the machine there, nor does any decision: so the effect itself is carried out.
    #[tokio::test]
    async fn a_machine_that_has_stopped_ends_its_task_with_what_it_found() {
        let dir = tempfile::tempdir().unwrap();
        let (at, audit) = (dir.path().join("certs"), dir.path().join("audit.jsonl"));
        certs::new_cluster(&at, certs::Validity::days(1)).unwrap();
        let identity = Identity::load(&at, Role::Gateway).unwrap();
        let config = Config {
            audit: Some(audit.clone()),
            ..Config::new(vec![], vec![], identity, [7; 32], vec!["small".into()])
        };
        let hello = Hello {
            epoch: pages::Epoch::new(1),
            role: handoff::Role::Gateway,
            model: [7; 32],
            layout: [0; 32],
            capacity: None,
            ranks: 1,
        };
        let (inbox, received) = mpsc::unbounded_channel();
        let board = Arc::new(Board::default());
        let actor = Actor::new(
            pages::Sound,
            &config,
            hello,
            [0; 32],
            vec![],
            received,
            (board, Arc::default()),
        );
        let mut actor = actor.unwrap();
        let how = actor.how();
        let found = Broken::Lost(handoff::Entry::Attempt);
        assert_eq!(actor.do_effect(Effect::FailStop(found.clone())), None);
        assert_eq!(how.get(), None, "it has not ended yet");
        let task = tokio::spawn(actor.run());
        inbox.closed().await;
        assert_eq!(how.get(), Some(&Err(found.clone())));
        task.await.unwrap();
        let written = std::fs::read_to_string(audit).unwrap();
        let said = written.contains("\"fail_stop\"") && written.contains(&found.to_string());
        assert!(said, "{written}");
    }
}
