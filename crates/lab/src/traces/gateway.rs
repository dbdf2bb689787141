//! What the gateway can be held to by what it heard and said.

use crate::model::Notes;
use handoff::gateway::{Effect, Event, Item, Outcome};
use handoff::{AttemptId, DecodeToGateway, GatewayToDecode, RequestId};
use std::collections::{BTreeMap, BTreeSet};

/// A request without an outcome.
#[derive(Default)]
struct Request {
    begun: bool,
    sent: bool,
}

/// See the module's documentation.
#[derive(Default)]
pub(super) struct Fold {
    open: BTreeMap<RequestId, Request>,
    ended: BTreeSet<RequestId>,
    attempts: BTreeSet<AttemptId>,
    committed: bool,
    requests: u64,
}

impl Fold {
    pub(super) fn step(&mut self, input: &Event, effects: &[Effect], notes: &mut Notes) {
        self.committed = matches!(
            input,
            Event::FromDecode(_, DecodeToGateway::Committed { .. })
        );
        self.requests += u64::from(matches!(input, Event::Request { .. }));
        for effect in effects {
            match effect {
                Effect::ToDecode(_, GatewayToDecode::Expect { attempt, .. }) => {
                    notes.check("H-8", self.attempts.insert(*attempt), || {
                        format!("attempt {} is used again", attempt.n)
                    });
                }
                Effect::Deliver { request, item } => self.delivered(*request, item, notes),
                Effect::Finish { request, outcome } => self.finished(*request, outcome, notes),
                Effect::FailStop(why) => notes.violates("H-6", why.to_string()),
                _ => {}
            }
        }
    }

    /// H-6, H-9: after the commit and before the outcome.
    fn delivered(&mut self, request: RequestId, item: &Item, notes: &mut Notes) {
        notes.check("H-6", !self.ended.contains(&request), || {
            format!("request {} gets something after its outcome", request.n)
        });
        let open = self.open.entry(request).or_default();
        match item {
            Item::Begin { .. } => {
                open.begun = true;
                notes.check("H-9", self.committed, || {
                    format!("request {}'s answer begins without a commit", request.n)
                });
            }
            Item::Tokens { .. } => {
                open.sent = true;
                notes.check("H-9", open.begun, || {
                    format!(
                        "request {} gets a token before its answer begins",
                        request.n
                    )
                });
            }
        }
    }

    /// H-6: once.
    fn finished(&mut self, request: RequestId, outcome: &Outcome, notes: &mut Notes) {
        notes.check("H-6", self.ended.insert(request), || {
            format!("request {} has a second outcome", request.n)
        });
        let seen = self.open.remove(&request).unwrap_or_default();
        let fits = match outcome {
            Outcome::Answered => seen.begun,
            Outcome::Rejected(_) | Outcome::Refused(_) => !seen.sent,
            _ => true,
        };
        notes.check("H-6", fits, || {
            format!("request {} ends as {outcome:?}", request.n)
        });
    }

    /// H-6: every request has its outcome.
    pub(super) fn at_rest(&self, notes: &mut Notes) {
        if self.requests > 0 {
            let ended = self.ended.len() as u64;
            notes.check("H-6", ended == self.requests, || {
                format!("{} requests, {ended} outcomes", self.requests)
            });
        }
    }
}
