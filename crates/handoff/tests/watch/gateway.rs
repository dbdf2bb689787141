//! The book of a gateway's machine: what was asked, what workers were told of it, what the client
//! was told.

use handoff::gateway::{Effect, Event, Gateway, Item, Timer};
use handoff::{
    AttemptId, Conn, DecodeToGateway, Ending, GatewayToDecode, GatewayToPrefill, PrefillToGateway,
    RequestId, Reserve, Spec,
};
use std::collections::{BTreeMap, BTreeSet};

/// A request, as far as it has come.
struct Request {
    spec: Spec,
    /// Attempts at all of it, and those that went on with a choice that was put back.
    attempts: Vec<AttemptId>,
    resumed: usize,
    begun: u32,
    /// Tokens that were delivered of each choice, and the choices that are over.
    spoken: BTreeMap<u16, Vec<u32>>,
    finished: BTreeSet<u16>,
    over: bool,
}

#[derive(Default)]
pub struct Watch {
    requests: BTreeMap<RequestId, Request>,
    of: BTreeMap<AttemptId, RequestId>,
    specs: BTreeMap<AttemptId, Spec>,
    /// Where an attempt was announced, and where it was sent to.
    decodes: BTreeMap<AttemptId, Conn>,
    prefills: BTreeMap<AttemptId, Conn>,
    /// Attempts that a worker has turned away.
    refused: BTreeSet<AttemptId>,
    next: Option<RequestId>,
}

/// Attempts that one request may cost: the first and one retry, and as many as were turned away.
const ATTEMPTS: usize = 2;
/// Of these there are few.
const REFUSALS: usize = 5;
/// Put-backs of one request, but for choices that were running when there had been so many.
const PUT_BACKS: usize = 3;

impl Watch {
    pub fn before(&mut self, machine: &Gateway, event: &Event) {
        let refused = |ending: &Ending| matches!(ending, Ending::Refused(_));
        match event {
            Event::FromDecode(_, DecodeToGateway::Ended { attempt, ending })
            | Event::FromPrefill(_, PrefillToGateway::Ended { attempt, ending })
                if refused(ending) =>
            {
                self.refused.insert(*attempt);
            }
            _ => {}
        }
        if let Event::Request { spec, .. } = event {
            let request = machine.next_request();
            self.next = Some(request);
            let fresh = Request {
                spec: spec.clone(),
                attempts: Vec::new(),
                resumed: 0,
                begun: 0,
                spoken: BTreeMap::new(),
                finished: BTreeSet::new(),
                over: false,
            };
            assert!(self.requests.insert(request, fresh).is_none(), "H-8");
        }
    }

    pub fn after(&mut self, machine: &Gateway, said: &[Effect]) {
        for effect in said {
            match effect {
                Effect::ToDecode(conn, message) => self.announce(machine, *conn, message, said),
                Effect::ToPrefill(conn, message) => self.send_on(*conn, message),
                Effect::Deliver { request, item } => self.deliver(*request, item),
                Effect::Finish { request, .. } => {
                    let known = self.requests.get_mut(request).expect("a request");
                    let twice = std::mem::replace(&mut known.over, true);
                    assert!(!twice, "H-6: {request} has two outcomes");
                }
                Effect::Disarm(timer) => late(machine, *timer),
                Effect::FailStop(why) => panic!("the gateway stopped: {why}"),
                Effect::Arm { .. } | Effect::Close(..) => {}
            }
        }
        self.next = None;
    }

    /// An attempt is announced under a fresh name, for what was asked and for nobody else, and not
    /// once a token of its request was delivered.
    fn announce(
        &mut self,
        machine: &Gateway,
        conn: Conn,
        message: &GatewayToDecode,
        said: &[Effect],
    ) {
        let GatewayToDecode::Expect { attempt, spec, .. } = message else {
            return;
        };
        let goes_on = spec.resumes.is_some();
        let request = match goes_on {
            true => self.resumed(spec),
            false => self.next.or_else(|| self.retried(spec, said)),
        };
        // Where several ask the same the machine says whose it is; what it is, is judged below.
        let about = machine.about(*attempt).map(|(request, ..)| request);
        let about = about.filter(|of| self.requests.contains_key(of));
        let request = about.or(request);
        let request = request.unwrap_or_else(|| panic!("of no open request: {spec:?}"));
        let known = self.requests.get_mut(&request).expect("a request");
        assert!(!known.over, "H-6: {request} is over");
        if goes_on {
            let said = known.spoken.get(&spec.choice(0)).map_or(&[][..], |it| it);
            assert_eq!(
                spec.split().1,
                said,
                "H-20: behind all that was said, and no more"
            );
            known.resumed += 1;
            let most = PUT_BACKS + ATTEMPTS + usize::from(known.spec.choices);
            assert!(known.resumed <= most, "put-backs are bounded");
        } else {
            let pages = known.spec.pages;
            let asked = Spec {
                pages,
                ..spec.clone()
            };
            assert_eq!(
                asked, known.spec,
                "H-13: what is announced is what was asked"
            );
            assert!(known.spoken.is_empty(), "H-6: a retry after a token");
            known.attempts.push(*attempt);
            let turned_away = |attempt: &&AttemptId| self.refused.contains(attempt);
            let refused = known.attempts.iter().filter(turned_away).count();
            assert!(
                known.attempts.len() - refused <= ATTEMPTS,
                "retries are bounded"
            );
            assert!(refused <= REFUSALS, "so are refusals");
        }
        self.specs.insert(*attempt, spec.clone());
        let fresh = self.of.insert(*attempt, request).is_none();
        assert!(fresh, "H-8: {attempt} names two attempts");
        self.decodes.insert(*attempt, conn);
    }

    /// Whose choice goes on: of those that are not over and asked for that, one that has heard exactly
    /// what stands behind the prompt (H-20).
    fn resumed(&self, spec: &Spec) -> Option<RequestId> {
        let resumed = spec.resumes?;
        let (asked, said) = spec.split();
        let is = |request: &Request| {
            let heard = request.spoken.get(&resumed.choice).map_or(&[][..], |it| it);
            let whole = Spec {
                tokens: asked.to_vec(),
                max_new: spec.max_new + said.len() as u32,
                choices: request.spec.choices,
                pages: Reserve::AsNeeded,
                resumes: None,
                ..spec.clone()
            };
            let open = !request.over && !request.finished.contains(&resumed.choice);
            open && heard == said && whole == request.spec
        };
        let mut all = self.requests.iter().filter(|(_, request)| is(request));
        all.next().map(|(id, _)| *id)
    }

    /// Whose retry it is: of those that have an attempt, are not over and asked for that.
    fn retried(&self, spec: &Spec, said: &[Effect]) -> Option<RequestId> {
        let ends = |of: &RequestId| {
            let finish = |e: &Effect| matches!(e, Effect::Finish { request, .. } if request == of);
            said.iter().any(finish)
        };
        let mut open = self.requests.iter().filter(|(id, request)| {
            let may = !request.over && !ends(id) && !request.attempts.is_empty();
            let pages = request.spec.pages;
            may && request.spec
                == Spec {
                    pages,
                    ..spec.clone()
                }
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
        let told = self.specs.get(attempt).expect("decode was told of it");
        assert_eq!(spec, told, "H-2: one prompt for both");
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
                // One that is put back before its first token begins once more.
                let tries = known.attempts.len() + known.resumed;
                assert!(known.begun as usize <= tries, "begun once each");
            }
            Item::Tokens {
                choice,
                token,
                finish,
                ..
            } => {
                assert!(known.begun > 0, "H-9: a token before the commit");
                assert!(*choice < known.spec.choices, "a choice nobody asked for");
                assert!(!known.finished.contains(choice), "a token after the last");
                known.spoken.entry(*choice).or_default().push(*token);
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
