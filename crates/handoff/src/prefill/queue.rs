//! What gateways send: attempts, withdrawals, and how an attempt ends here.

use super::state::{Attempt, AttemptStage};
use super::{Effect, Prefill, Timer};
use crate::Decisions;
use crate::id::JobKey;
use crate::{
    AttemptId, Capacity, Conn, Ending, Failure, GatewayToPrefill, Hangup, PrefillToGateway,
    Refusal, Rejection, Role, Spec, Stage, compatible,
};
use pages::Epoch;

impl<J: Decisions> Prefill<J> {
    pub(super) fn handle_gateway(&mut self, conn: Conn, message: GatewayToPrefill) {
        match message {
            GatewayToPrefill::Hello(hello) => {
                if let Err(why) = compatible(&self.hello, &hello, Role::Gateway) {
                    return self.out.push(Effect::Close(conn, why));
                }
                if self.gateways.contains_key(&conn) {
                    self.gateway_gone(conn);
                    return self.out.push(Effect::Close(conn, Hangup::OutOfOrder));
                }
                self.gateways.insert(conn, hello.epoch);
                let hello = PrefillToGateway::Hello(self.hello.clone());
                self.out.push(Effect::ToGateway(conn, hello));
            }
            _ if !self.gateways.contains_key(&conn) => {
                self.out.push(Effect::Close(conn, Hangup::OutOfOrder));
            }
            GatewayToPrefill::Attempt {
                attempt,
                spec,
                decode,
                deadline_ms,
            } => {
                self.attempt(conn, attempt, spec, decode, deadline_ms);
            }
            GatewayToPrefill::Withdraw { attempt } => self.withdraw(conn, attempt),
        }
    }

    /// Over the limit it ends here with its original error, before a page is taken (law: rejected
    /// is terminal, H-5).
    fn attempt(
        &mut self,
        conn: Conn,
        attempt: AttemptId,
        spec: Spec,
        decode: Epoch,
        deadline_ms: u64,
    ) {
        if self.gateways.get(&conn) != Some(&attempt.epoch) || self.attempts.contains_key(&attempt)
        {
            let duplicate = Ending::Rejected(Rejection::Duplicate);
            return self.tell_ended(conn, attempt, duplicate);
        }
        let spec = match self.admit(spec, decode) {
            Ok(spec) => spec,
            Err(ending) => return self.tell_ended(conn, attempt, ending),
        };
        let stage = AttemptStage::Queued;
        self.attempts.insert(
            attempt,
            Attempt {
                conn,
                spec,
                decode,
                stage,
            },
        );
        self.queue.push_back(attempt);
        self.out.push(Effect::Arm {
            timer: Timer::Attempt(attempt),
            after_ms: deadline_ms,
        });
    }

    fn admit(&self, mut spec: Spec, decode: Epoch) -> Result<Spec, Ending> {
        let prompt = |capacity: &Capacity, spec: Spec| {
            let admitted = self.decisions.admit_prompt(capacity, spec);
            admitted.map_err(Ending::Rejected)
        };
        spec = prompt(&self.capacity(), spec)?;
        let refused = |why| Err(Ending::Refused(why));
        let Some(peer) = self.peers.get(&decode).filter(|peer| peer.conn.is_some()) else {
            return refused(Refusal::PeerUnavailable);
        };
        spec = prompt(&peer.capacity, spec)?;
        // What goes on was taken on before, and counted then: it is not turned away in its middle.
        let new = spec.resumes.is_none();
        if self.draining && new {
            return refused(Refusal::Draining);
        }
        if self.attempts.len() >= self.config.max_queue && new {
            return refused(Refusal::QueueFull);
        }
        let same = self
            .attempts
            .values()
            .filter(|other| other.spec.domain.tenant() == spec.domain.tenant());
        let waiting: u64 = same.map(|other| other.spec.tokens.len() as u64).sum();
        let all = waiting.saturating_add(spec.tokens.len() as u64);
        if all > self.config.max_tokens_per_domain && new {
            return refused(Refusal::TenantCap);
        }
        Ok(spec)
    }

    /// The gateway cannot see tickets: P obeys while it holds none. With one, D's Cancel decides.
    fn withdraw(&mut self, conn: Conn, attempt: AttemptId) {
        match self.attempts.get(&attempt) {
            Some(known) if known.conn != conn => {}
            Some(known) => match known.stage {
                AttemptStage::Job(job) if self.is_ticketed(job) => {}
                _ => self.end_attempt(attempt, Ending::Cancelled),
            },
            None => self.tell_ended(conn, attempt, Ending::Cancelled),
        }
    }

    fn is_ticketed(&self, job: JobKey) -> bool {
        self.jobs.get(&job).is_some_and(|job| job.ticket.is_some())
    }

    fn tell_ended(&mut self, conn: Conn, attempt: AttemptId, ending: Ending) {
        let ended = PrefillToGateway::Ended { attempt, ending };
        self.out.push(Effect::ToGateway(conn, ended));
    }

    /// Ends the attempt here, once. Its job, if it has one, stops at the next boundary.
    pub(super) fn end_attempt(&mut self, attempt: AttemptId, ending: Ending) {
        let Some(known) = self.attempts.remove(&attempt) else {
            return; // it ended as one of many that a lost life has ended
        };
        // D is told what it cannot know.
        let why = match ending {
            Ending::Failed(Failure::PeerFailed(_)) => None,
            Ending::Failed(failure) => Some(failure),
            _ => None,
        };
        self.queue.retain(|other| *other != attempt);
        self.out.push(Effect::Disarm(Timer::Attempt(attempt)));
        if known.stage == AttemptStage::Waiting {
            self.out.push(Effect::Disarm(Timer::Retry(attempt)));
        }
        if self.gateways.contains_key(&known.conn) {
            self.tell_ended(known.conn, attempt, ending);
        }
        if let AttemptStage::Job(id) = known.stage {
            self.stop_job(id, why);
        }
    }

    pub(super) fn attempt_deadline(&mut self, attempt: AttemptId) {
        let Some(known) = self.attempts.get(&attempt) else {
            return; // it ended when the deadline had passed
        };
        let stage = match known.stage {
            AttemptStage::Job(job) if self.is_ticketed(job) => Stage::Prefill,
            _ => Stage::Queue,
        };
        self.end_attempt(attempt, Ending::Failed(Failure::Deadline(stage)));
    }

    pub(super) fn retry(&mut self, attempt: AttemptId) {
        let Some(known) = self.attempts.get_mut(&attempt) else {
            return; // it ended when its time to wait was over
        };
        if known.stage == AttemptStage::Waiting {
            known.stage = AttemptStage::Queued;
            self.queue.push_back(attempt);
        }
    }

    /// A gateway that is gone has withdrawn everything.
    pub(super) fn gateway_gone(&mut self, conn: Conn) {
        self.gateways.remove(&conn);
        let gone = self
            .attempts
            .iter()
            .filter(|(_, attempt)| attempt.conn == conn);
        for attempt in gone.map(|(attempt, _)| *attempt).collect::<Vec<_>>() {
            self.end_attempt(attempt, Ending::Cancelled);
        }
    }
}
