//! The gateway's side: what it announces, and how it takes it back.

use super::{Decode, Effect, Expected, Timer};
use crate::Decisions;
use crate::id::AttemptMark;
use crate::{
    AttemptId, Conn, DecodeToGateway, Ending, GatewayToDecode, Hangup, Refusal, Rejection, Role,
    Spec, compatible, digest,
};
use pages::Epoch;

/// Gateway lives whose highest attempt is remembered.
const MAX_GATEWAYS: usize = 64;

impl<J: Decisions> Decode<J> {
    pub(super) fn handle_gateway(&mut self, conn: Conn, message: GatewayToDecode) {
        match message {
            GatewayToDecode::Hello(hello) => {
                let fits = compatible(&self.hello, &hello, Role::Gateway);
                if let Err(why) = fits {
                    return self.out.push(Effect::Close(conn, why));
                }
                if self.gateways.contains_key(&conn) {
                    self.gateway_gone(conn);
                    return self.out.push(Effect::Close(conn, Hangup::OutOfOrder));
                }
                self.gateways.insert(conn, hello.epoch);
                let hello = DecodeToGateway::Hello(self.hello.clone());
                self.out.push(Effect::ToGateway(conn, hello));
            }
            _ if !self.gateways.contains_key(&conn) => {
                self.out.push(Effect::Close(conn, Hangup::OutOfOrder));
            }
            GatewayToDecode::Expect {
                attempt,
                spec,
                prefill,
                deadline_ms,
            } => {
                self.expect(conn, attempt, spec, prefill, deadline_ms);
            }
            GatewayToDecode::Cancel { attempt } => match self.expected.get(&attempt) {
                Some(expected) if expected.conn == conn => {
                    self.end_attempt(attempt, Ending::Cancelled);
                }
                _ => self.tell_ended(conn, attempt, Ending::Cancelled),
            },
            GatewayToDecode::StopChoice { attempt, choice } => {
                let ours = self
                    .expected
                    .get(&attempt)
                    .filter(|expected| expected.conn == conn);
                if let Some(id) = ours.and_then(|expected| expected.handoff) {
                    self.stop_choice(id, choice);
                }
            }
        }
    }

    /// D knows the prompt from the gateway, not from P (H-2); over its limit it ends here, before
    /// anything is allocated (law: rejected is terminal).
    fn expect(
        &mut self,
        conn: Conn,
        attempt: AttemptId,
        spec: Spec,
        prefill: Epoch,
        deadline_ms: u64,
    ) {
        let gateway = self.gateways.get(&conn).copied();
        let announced = self.announced.get(&attempt.epoch).copied();
        let known = announced.map(|highest| highest.0);
        let reused = !self.decisions.is_new(attempt.n, known);
        if gateway != Some(attempt.epoch) || reused {
            return self.tell_ended(conn, attempt, Ending::Rejected(Rejection::Duplicate));
        }
        if announced.is_none() && self.announced.len() >= MAX_GATEWAYS {
            let connected: Vec<Epoch> = self.gateways.values().copied().collect();
            self.announced.retain(|epoch, _| connected.contains(epoch));
        }
        self.announced.insert(attempt.epoch, AttemptMark(attempt.n));
        if let Err(refused) = self.admit(&spec, prefill) {
            return self.tell_ended(conn, attempt, refused);
        }
        let digest = digest(&spec.tokens);
        self.expected.insert(
            attempt,
            Expected {
                conn,
                spec,
                digest,
                prefill,
                handoff: None,
            },
        );
        self.arm(Timer::Attempt(attempt), deadline_ms);
        self.out.push(Effect::ToGateway(
            conn,
            DecodeToGateway::Expecting { attempt },
        ));
    }

    fn admit(&self, spec: &Spec, prefill: Epoch) -> Result<(), Ending> {
        let admitted = self.decisions.admit_expected(&self.capacity(), spec);
        admitted.map_err(Ending::Rejected)?;
        let refused = |why| Err(Ending::Refused(why));
        // What goes on was taken on before, and counted then: it is not turned away in its middle.
        let new = spec.resumes.is_none();
        if self.draining && new {
            return refused(Refusal::Draining);
        }
        if self.expected.len() >= self.config.max_attempts && new {
            return refused(Refusal::QueueFull);
        }
        if !self
            .peers
            .get(&prefill)
            .is_some_and(|peer| peer.synced.is_some() && !peer.refused)
        {
            return refused(Refusal::PeerUnavailable);
        }
        let cost = |spec: &Spec| {
            spec.tokens.len() as u64 + u64::from(spec.choices) * u64::from(spec.max_new)
        };
        let domain = self
            .expected
            .values()
            .filter(|other| other.spec.domain.tenant() == spec.domain.tenant());
        let in_flight: u64 = domain.map(|other| cost(&other.spec)).sum();
        if in_flight.saturating_add(cost(spec)) > self.config.max_tokens_per_domain && new {
            return refused(Refusal::TenantCap);
        }
        Ok(())
    }

    pub(super) fn tell_ended(&mut self, conn: Conn, attempt: AttemptId, ending: Ending) {
        let ended = DecodeToGateway::Ended { attempt, ending };
        self.out.push(Effect::ToGateway(conn, ended));
    }

    /// A gateway that is gone has cancelled everything (its stream's end is the cancel).
    pub(super) fn gateway_gone(&mut self, conn: Conn) {
        self.gateways.remove(&conn);
        let gone = self
            .expected
            .iter()
            .filter(|(_, expected)| expected.conn == conn);
        let attempts: Vec<AttemptId> = gone.map(|(attempt, _)| *attempt).collect();
        for attempt in attempts {
            self.end_attempt(attempt, Ending::Cancelled);
        }
    }
}
