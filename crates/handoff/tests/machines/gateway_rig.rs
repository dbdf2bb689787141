//! The gateway's request machine alone.

use crate::rig::{DECODE, GATEWAY, PREFILL, hello};
use crate::watch::gateway::Watch;
use handoff::gateway::{Config, Effect, Event, Gateway, Item, Outcome};
use handoff::{
    AttemptId, Conn, DecodeToGateway, Ending, Finish, GatewayToDecode, GatewayToPrefill, Hello,
    PrefillToGateway, RequestId, Role, Spec,
};

pub const P: Conn = Conn(1);
pub const D: Conn = Conn(2);

pub struct GatewayRig {
    pub machine: Gateway,
    watch: Watch,
}

impl GatewayRig {
    /// One pair, up.
    pub fn new() -> Self {
        let mut rig = Self::alone();
        rig.prefill(P, hello(PREFILL, Role::Prefill));
        rig.decode(D, hello(DECODE, Role::Decode));
        rig
    }

    pub fn alone() -> Self {
        let machine = Gateway::new(Config::default(), hello(GATEWAY, Role::Gateway));
        let watch = Watch::default();
        Self { machine, watch }
    }

    pub fn tell(&mut self, event: Event) -> Vec<Effect> {
        self.watch.before(&self.machine, &event);
        let said = self.machine.handle(event);
        self.watch.after(&self.machine, &said);
        said
    }

    pub fn prefill(&mut self, conn: Conn, hello: Hello) -> Vec<Effect> {
        self.tell(Event::PrefillDialled(conn));
        self.tell(Event::FromPrefill(conn, PrefillToGateway::Hello(hello)))
    }

    pub fn decode(&mut self, conn: Conn, hello: Hello) -> Vec<Effect> {
        self.tell(Event::DecodeDialled(conn));
        self.tell(Event::FromDecode(conn, DecodeToGateway::Hello(hello)))
    }

    pub fn request(&mut self, spec: &Spec) -> Vec<Effect> {
        let (spec, deadline_ms) = (spec.clone(), 1000);
        self.tell(Event::Request { spec, deadline_ms })
    }

    /// A request that D expects and P has; gives the attempt.
    pub fn prefilling(&mut self, spec: &Spec) -> AttemptId {
        let attempt = expected(&self.request(spec)).expect("D is told");
        let said = self.hear_decode(DecodeToGateway::Expecting { attempt });
        assert_eq!(attempted(&said), Some(attempt), "now P is told");
        attempt
    }

    /// The same, committed.
    pub fn committed(&mut self, spec: &Spec) -> AttemptId {
        let attempt = self.prefilling(spec);
        self.commit(attempt);
        attempt
    }

    pub fn commit(&mut self, attempt: AttemptId) -> Vec<Effect> {
        let cached_tokens = 0;
        self.hear_decode(DecodeToGateway::Committed {
            attempt,
            cached_tokens,
        })
    }

    pub fn hear_decode(&mut self, message: DecodeToGateway) -> Vec<Effect> {
        self.tell(Event::FromDecode(D, message))
    }

    pub fn tokens(
        &mut self,
        attempt: AttemptId,
        choice: u16,
        finish: Option<Finish>,
    ) -> Vec<Effect> {
        let payload = vec![choice as u8];
        self.hear_decode(DecodeToGateway::Tokens {
            attempt,
            choice,
            token: u32::from(choice),
            payload,
            finish,
        })
    }

    pub fn decode_ended(&mut self, attempt: AttemptId, ending: Ending) -> Vec<Effect> {
        self.hear_decode(DecodeToGateway::Ended { attempt, ending })
    }

    pub fn prefill_ended(&mut self, attempt: AttemptId, ending: Ending) -> Vec<Effect> {
        let ended = PrefillToGateway::Ended { attempt, ending };
        self.tell(Event::FromPrefill(P, ended))
    }
}

pub fn request(n: u64) -> RequestId {
    let epoch = crate::rig::Epoch::new(GATEWAY);
    RequestId { epoch, n }
}

/// The attempt that D is told to expect.
pub fn expected(said: &[Effect]) -> Option<AttemptId> {
    said.iter().find_map(|effect| match effect {
        Effect::ToDecode(_, GatewayToDecode::Expect { attempt, .. }) => Some(*attempt),
        _ => None,
    })
}

/// The attempt that P is given.
pub fn attempted(said: &[Effect]) -> Option<AttemptId> {
    said.iter().find_map(|effect| match effect {
        Effect::ToPrefill(_, GatewayToPrefill::Attempt { attempt, .. }) => Some(*attempt),
        _ => None,
    })
}

pub fn outcomes(said: &[Effect]) -> Vec<(u64, Outcome)> {
    let outcomes = said.iter().filter_map(|effect| match effect {
        Effect::Finish { request, outcome } => Some((request.n, outcome.clone())),
        _ => None,
    });
    outcomes.collect()
}

pub fn delivered(said: &[Effect]) -> Vec<Item> {
    let items = said.iter().filter_map(|effect| match effect {
        Effect::Deliver { item, .. } => Some(item.clone()),
        _ => None,
    });
    items.collect()
}

/// Whether D hears that this attempt is not wanted any more.
pub fn cancelled(said: &[Effect], attempt: AttemptId) -> bool {
    said.contains(&Effect::ToDecode(D, GatewayToDecode::Cancel { attempt }))
}

pub fn withdrawn(said: &[Effect], attempt: AttemptId) -> bool {
    said.contains(&Effect::ToPrefill(
        P,
        GatewayToPrefill::Withdraw { attempt },
    ))
}
