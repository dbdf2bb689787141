//! Whoever has the gateway's certificate may speak to workers directly. Their own checks hold.

use crate::topology::Topology;
use handoff::{
    AttemptId, DecodeToGateway, Ending, GatewayToDecode, GatewayToPrefill, Hello, PrefillToGateway,
    Rejection, Role, Spec, codec,
};
use pages::{Domain, Epoch};
use serde::Serialize;
use std::path::Path;
use std::time::Duration;
use testkit::crowd::prompt;
use testkit::process::PATIENCE;
use tokio::runtime::Runtime;
use wire::control::{Addr, Connection, Identity, Limits};
use wire::{Facts, Frame};

/// What is asked of a worker.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    pub of: Role,
    pub tokens: usize,
    pub max_new: u32,
    pub choices: u16,
}

impl Ask {
    pub fn prefill(tokens: usize, max_new: u32) -> Ask {
        Ask {
            of: Role::Prefill,
            tokens,
            max_new,
            choices: 1,
        }
    }

    pub fn decode(tokens: usize, max_new: u32) -> Ask {
        Ask {
            of: Role::Decode,
            ..Ask::prefill(tokens, max_new)
        }
    }
}

/// Connections to both workers.
pub struct Past {
    runtime: Runtime,
    prefill: Link,
    decode: Link,
    epoch: Epoch,
    next: u64,
}

struct Link {
    connection: Connection,
    /// The worker's life.
    life: Epoch,
}

impl Past {
    /// Says Hello to both workers as a gateway that nobody else knows.
    pub fn connect(all: &Topology, model: &Path) -> Past {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let identity = Identity::load(&all.certs, wire::control::Role::Gateway).unwrap();
        let epoch = Epoch::new(4711);
        let hello = Hello {
            epoch,
            role: Role::Gateway,
            model: gguf::File::open(model).unwrap().fingerprint().unwrap(),
            layout: [0; 32],
            capacity: None,
            ranks: 1,
        };
        let dial = |addr: &str, role| {
            let addr: Addr = addr.parse().unwrap();
            let frame_bytes_max = codec::MAX_BYTES + 1;
            let queue_bytes_max = 4 * frame_bytes_max;
            let limits = Limits {
                frame_bytes_max,
                queue_bytes_max,
                ..Limits::default()
            };
            let allowed = [role];
            runtime
                .block_on(wire::control::dial(&addr, &identity, &allowed, &limits))
                .unwrap()
        };
        let mut prefill = dial(&all.prefill, wire::control::Role::Prefill);
        say(&prefill, &GatewayToPrefill::Hello(hello.clone()));
        let PrefillToGateway::Hello(at_p) = hear(&runtime, &mut prefill) else {
            panic!("no Hello")
        };
        let mut decode = dial(&all.decode, wire::control::Role::Decode);
        say(&decode, &GatewayToDecode::Hello(hello));
        let DecodeToGateway::Hello(at_d) = hear(&runtime, &mut decode) else {
            panic!("no Hello")
        };
        let prefill = Link {
            connection: prefill,
            life: at_p.epoch,
        };
        let decode = Link {
            connection: decode,
            life: at_d.epoch,
        };
        Past {
            runtime,
            prefill,
            decode,
            epoch,
            next: 1,
        }
    }

    /// Each is rejected for this reason, and nothing is granted, written or computed for it (H-5).
    pub fn rejected(&mut self, cases: &[(Ask, Rejection)]) {
        let before = self.facts();
        for (ask, why) in cases {
            let attempt = AttemptId {
                epoch: self.epoch,
                n: self.next,
            };
            self.next += 1;
            self.send(*ask, attempt);
            let said = match ask.of {
                Role::Prefill => match hear(&self.runtime, &mut self.prefill.connection) {
                    PrefillToGateway::Ended { attempt, ending } => (attempt, ending),
                    other => panic!("{ask:?}: {other:?}"),
                },
                _ => match hear(&self.runtime, &mut self.decode.connection) {
                    DecodeToGateway::Ended { attempt, ending } => (attempt, ending),
                    other => panic!("{ask:?}: {other:?}"),
                },
            };
            assert_eq!(said, (attempt, Ending::Rejected(why.clone())), "{ask:?}");
        }
        let after = self.facts();
        for ((before, after), of) in before.iter().zip(&after).zip([Role::Prefill, Role::Decode]) {
            let rejected = cases.iter().filter(|(ask, _)| ask.of == of).count() as u64;
            let (was, is) = (before.counters, after.counters);
            assert_eq!(
                is.attempts_rejected,
                was.attempts_rejected + rejected,
                "{of:?}"
            );
            assert_eq!(
                after.pages, before.pages,
                "every page is free again: {of:?}"
            );
            assert_eq!(
                (
                    is.steps,
                    is.batches,
                    is.batch_pages,
                    is.prompt_tokens,
                    is.sampled_tokens
                ),
                (
                    was.steps,
                    was.batches,
                    was.batch_pages,
                    was.prompt_tokens,
                    was.sampled_tokens
                ),
                "{of:?}"
            );
        }
    }

    fn send(&self, ask: Ask, attempt: AttemptId) {
        let spec = Spec {
            choices: ask.choices,
            cache: true,
            sampling: wire::Ask::greedy().encode(),
            ..Spec::new(
                Domain::new(5),
                prompt(ask.tokens, ask.tokens, 16, 9),
                ask.max_new,
            )
        };
        let deadline_ms = 60_000;
        let (decode, prefill) = (self.decode.life, self.prefill.life);
        match ask.of {
            Role::Prefill => say(
                &self.prefill.connection,
                &GatewayToPrefill::Attempt {
                    attempt,
                    spec,
                    decode,
                    deadline_ms,
                },
            ),
            _ => say(
                &self.decode.connection,
                &GatewayToDecode::Expect {
                    attempt,
                    spec,
                    prefill,
                    deadline_ms,
                },
            ),
        }
    }

    /// What prefill and decode say of themselves now.
    fn facts(&mut self) -> [Facts; 2] {
        [&mut self.prefill, &mut self.decode].map(|link| {
            link.connection
                .sender
                .send(Frame::AskFacts.encode())
                .unwrap();
            match Frame::decode(&receive(&self.runtime, &mut link.connection)).unwrap() {
                Frame::Facts(facts) => *facts,
                other => panic!("{other:?}"),
            }
        })
    }
}

fn say(connection: &Connection, message: &impl Serialize) {
    let message = codec::encode(message).unwrap();
    connection
        .sender
        .send(Frame::Core(&message).encode())
        .unwrap();
}

fn hear<Message: serde::de::DeserializeOwned>(
    runtime: &Runtime,
    connection: &mut Connection,
) -> Message {
    let frame = receive(runtime, connection);
    match Frame::decode(&frame).unwrap() {
        Frame::Core(bytes) => codec::decode(bytes).unwrap(),
        other => panic!("{other:?}"),
    }
}

fn receive(runtime: &Runtime, connection: &mut Connection) -> Vec<u8> {
    let patience: Duration = PATIENCE;
    let received = runtime
        .block_on(async { tokio::time::timeout(patience, connection.receiver.recv()).await });
    received
        .expect("an answer in time")
        .unwrap()
        .expect("the worker stays")
        .to_vec()
}
