//! The book of a gateway's machine: what was asked, what workers were told of it, what the client
//! was told.

use handoff::gateway::{Effect, Event, Gateway, Item, Timer};
use handoff::{AttemptId, Conn, GatewayToDecode, GatewayToPrefill, RequestId, Spec};
use std::collections::{BTreeMap, BTreeSet};

/// A request, as far as it has come.
struct Request {
    spec: Spec,
    attempts: Vec<AttemptId>,
    begun: u32,
    /// Choices of which a token was delivered, and those that are over.
    spoken: BTreeSet<u16>,
    finished: BTreeSet<u16>,
    over: bool,
}

#[derive(Default)]
pub struct Watch {
    requests: BTreeMap<RequestId, Request>,
    of: BTreeMap<AttemptId, RequestId>,
    /// Where an attempt was announced, and where it was sent to.
    decodes: BTreeMap<AttemptId, Conn>,
    prefills: BTreeMap<AttemptId, Conn>,
    next: Option<RequestId>,
}

/// Attempts that one request may cost: the first and one retry.
const ATTEMPTS: usize = 2;

impl Watch {
    pub fn before(&mut self, machine: &Gateway, event: &Event) {
        if let Event::Request { spec, .. } = event {
            let request = machine.next_request();
            self.next = Some(request);
            let fresh = Request {
                spec: spec.clone(),
                attempts: Vec::new(),
                begun: 0,
                spoken: BTreeSet::new(),
                finished: BTreeSet::new(),
                over: false,
            };
            assert!(self.requests.insert(request, fresh).is_none(), "H-8");
        }
    }

    pub fn after(&mut self, machine: &Gateway, said: &[Effect]) {
        for effect in said {
            match effect {
                Effect::ToDecode(conn, message) => self.announce(*conn, message, said),
                Effect::ToPrefill(conn, message) => self.send_on(*conn, message),
                Effect::Deliver { request, item } => self.deliver(*request, item),
                Effect::Finish { request, .. } => {
                    let known = self.requests.get_mut(request).expect("a request");
                    let twice = std::mem::replace(&mut known.over, true);
                    assert!(!twice, "H-6: {request} has two outcomes");
                }
                Effect::Disarm(timer) => late(machine, *timer),
                Effect::Arm { .. } | Effect::Close(..) => {}
            }
        }
        self.next = None;
    }

    /// An attempt is announced under a fresh name, for what was asked and for nobody else, and not
    /// once a token of its request was delivered.
    fn announce(&mut self, conn: Conn, message: &GatewayToDecode, said: &[Effect]) {
        let GatewayToDecode::Expect { attempt, spec, .. } = message else {
            return;
        };
        let request = self.next.or_else(|| self.retried(spec, said));
        let request = request.expect("an attempt of a request that is not over");
        let known = self.requests.get_mut(&request).expect("a request");
        assert!(!known.over, "H-6: {request} is over");
        assert_eq!(
            *spec, known.spec,
            "H-13: what is announced is what was asked"
        );
        assert!(known.spoken.is_empty(), "H-6: a retry after a token");
        known.attempts.push(*attempt);
        assert!(known.attempts.len() <= ATTEMPTS, "retries are bounded");
        let fresh = self.of.insert(*attempt, request).is_none();
        assert!(fresh, "H-8: {attempt} names two attempts");
        self.decodes.insert(*attempt, conn);
    }

    /// Whose retry it is: of those that have an attempt, are not over and asked for that.
    fn retried(&self, spec: &Spec, said: &[Effect]) -> Option<RequestId> {
        let ends = |of: &RequestId| {
            let finish = |e: &Effect| matches!(e, Effect::Finish { request, .. } if request == of);
            said.iter().any(finish)
        };
        let mut open = self.requests.iter().filter(|(id, request)| {
            let may = !request.over && !ends(id) && !request.attempts.is_empty();
            may && request.spec == *spec
                && request.attempts.len() < ATTEMPTS
                && request.spoken.is_empty()
        });
        open.next().map(|(id, _)| *id)
    }

    /// Prefill gets an attempt that decode expects, once, and as decode was told of it.
    fn send_on(&mut self, conn: Conn, message: &GatewayToPrefill) {
        let GatewayToPrefill::Attempt { attempt, spec, .. } = message else {
            return;
        };
        let request = self.of.get(attempt).expect("decode was told of it");
        assert_eq!(
            *spec, self.requests[request].spec,
            "H-2: one prompt for both"
        );
        let twice = self.prefills.insert(*attempt, conn);
        assert_eq!(twice, None, "{attempt} is sent once");
    }

    /// Nothing before the commit, nothing behind the end of a choice, nothing behind the outcome.
    fn deliver(&mut self, request: RequestId, item: &Item) {
        let known = self.requests.get_mut(&request).expect("a request");
        assert!(!known.over, "H-6: delivered after the outcome");
        match item {
            Item::Begin { .. } => {
                assert!(known.spoken.is_empty(), "H-6: begun again after a token");
                known.begun += 1;
                assert!(
                    known.begun as usize <= known.attempts.len(),
                    "begun once each"
                );
            }
            Item::Tokens { choice, finish, .. } => {
                assert!(known.begun > 0, "H-9: a token before the commit");
                assert!(*choice < known.spec.choices, "a choice nobody asked for");
                assert!(!known.finished.contains(choice), "a token after the last");
                known.spoken.insert(*choice);
                if finish.is_some() {
                    known.finished.insert(*choice);
                }
            }
        }
    }
}

/// A timer that was disarmed may fire all the same: it changes nothing.
fn late(machine: &Gateway, timer: Timer) {
    let mut fork = machine.clone();
    let said = fork.handle(Event::Fired(timer));
    assert!(said.is_empty() && fork == *machine, "{timer:?}: {said:?}");
}
