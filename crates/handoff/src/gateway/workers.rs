//! The workers that the gateway has dialled, and which pair a request goes to.

use super::{Effect, Gateway, Timer};
use crate::Decisions;
use crate::{
    Capacity, Conn, DecodeToGateway, GatewayToDecode, GatewayToPrefill, Hangup, Hello, Limit,
    PrefillToGateway, Role, compatible,
};
use serde::Serialize;
use std::collections::BTreeMap;

/// A worker, known once it has said Hello.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub(super) struct Worker {
    pub hello: Option<Hello>,
    /// It has said its last words (fail-stop): no attempt goes to it any more.
    pub leaving: bool,
}

/// Two workers that understand each other's pages.
pub(super) struct Pair {
    pub prefill: Conn,
    /// That prefill's.
    pub life: pages::Epoch,
    pub decode: Conn,
    pub limit: Limit,
}

impl Worker {
    pub(super) fn epoch(&self) -> Option<pages::Epoch> {
        self.hello.as_ref().map(|hello| hello.epoch)
    }
}

impl<J: Decisions> Gateway<J> {
    pub(super) fn prefill_dialled(&mut self, conn: Conn) {
        self.prefills.insert(conn, Worker::default());
        self.arm_greeting(conn);
        let hello = GatewayToPrefill::Hello(self.hello.clone());
        self.out.push(Effect::ToPrefill(conn, hello));
    }

    pub(super) fn decode_dialled(&mut self, conn: Conn) {
        self.decodes.insert(conn, Worker::default());
        self.arm_greeting(conn);
        let hello = GatewayToDecode::Hello(self.hello.clone());
        self.out.push(Effect::ToDecode(conn, hello));
    }

    pub(super) fn handle_prefill(&mut self, conn: Conn, message: PrefillToGateway) {
        let Some(worker) = self.prefills.get_mut(&conn) else {
            return; // hung up on: what was on its way is discarded
        };
        match (worker.hello.is_some(), message) {
            (false, PrefillToGateway::Hello(hello)) => {
                match compatible(&self.hello, &hello, Role::Prefill) {
                    Ok(()) => {
                        worker.hello = Some(hello);
                        self.out.push(Effect::Disarm(Timer::Greeting(conn)));
                    }
                    Err(why) => self.hang_up(conn, why),
                }
            }
            (true, PrefillToGateway::Ended { attempt, ending }) => {
                self.prefill_ended(conn, attempt, ending);
            }
            _ => self.hang_up(conn, Hangup::OutOfOrder),
        }
    }

    pub(super) fn handle_decode(&mut self, conn: Conn, message: DecodeToGateway) {
        let Some(worker) = self.decodes.get_mut(&conn) else {
            return; // as above
        };
        match (worker.hello.is_some(), message) {
            (false, DecodeToGateway::Hello(hello)) => {
                match compatible(&self.hello, &hello, Role::Decode) {
                    Ok(()) => {
                        worker.hello = Some(hello);
                        self.out.push(Effect::Disarm(Timer::Greeting(conn)));
                    }
                    Err(why) => self.hang_up(conn, why),
                }
            }
            (false, _) | (true, DecodeToGateway::Hello(_)) => {
                self.hang_up(conn, Hangup::OutOfOrder);
            }
            (true, DecodeToGateway::Expecting { attempt }) => self.expecting(conn, attempt),
            (
                true,
                DecodeToGateway::Committed {
                    attempt,
                    cached_tokens,
                },
            ) => {
                self.committed(conn, attempt, cached_tokens);
            }
            (
                true,
                DecodeToGateway::Tokens {
                    attempt,
                    choice,
                    token,
                    payload,
                    finish,
                },
            ) => {
                self.tokens(conn, attempt, choice, token, payload, finish);
            }
            (true, DecodeToGateway::PutBack { attempt, choice }) => {
                self.put_back(conn, attempt, choice);
            }
            (true, DecodeToGateway::Ended { attempt, ending }) => {
                self.decode_ended(conn, attempt, ending);
            }
        }
    }

    /// A worker has said its last words: no attempt goes to it any more.
    pub(super) fn leaves(&mut self, conn: Conn) {
        let worker = self.prefills.get_mut(&conn);
        // Otherwise its connection is gone as well.
        if let Some(worker) = worker.or(self.decodes.get_mut(&conn)) {
            worker.leaving = true;
        }
    }

    fn arm_greeting(&mut self, conn: Conn) {
        self.out.push(Effect::Arm {
            timer: Timer::Greeting(conn),
            after_ms: self.config.answer_ms,
        });
    }

    /// A worker was dialled and says nothing: no pair has it, and another dial may find it well.
    pub(super) fn greeting_deadline(&mut self, conn: Conn) {
        let worker = self.prefills.get(&conn).or(self.decodes.get(&conn));
        if worker.is_some_and(|worker| worker.hello.is_none()) {
            self.hang_up(conn, Hangup::Deadline);
        }
    }

    pub(super) fn hang_up(&mut self, conn: Conn, why: Hangup) {
        self.out.push(Effect::Close(conn, why));
        self.handle_disconnected(conn);
    }

    pub(super) fn handle_disconnected(&mut self, conn: Conn) {
        let worker = self.prefills.get(&conn).or(self.decodes.get(&conn));
        if worker.is_some_and(|worker| worker.hello.is_none()) {
            self.out.push(Effect::Disarm(Timer::Greeting(conn)));
        }
        if self.prefills.remove(&conn).is_some() {
            self.prefill_lost(conn);
        } else if self.decodes.remove(&conn).is_some() {
            self.decode_lost(conn);
        }
    }

    /// Every pair of workers that are up and understand each other's pages, with its limit.
    pub(super) fn pairs(&self) -> Vec<Pair> {
        let mut pairs = Vec::new();
        for (prefill, p, of_p) in up(&self.prefills) {
            for (decode, d, of_d) in up(&self.decodes) {
                if p.layout == d.layout && of_p.page_size == of_d.page_size {
                    pairs.push(Pair {
                        prefill,
                        life: p.epoch,
                        decode,
                        limit: self.decisions.limit_of_pair(of_p, of_d),
                    });
                }
            }
        }
        pairs
    }
}

/// Workers that have said Hello and no last words. What has measured no capacity was hung up on at
/// its Hello.
fn up(workers: &BTreeMap<Conn, Worker>) -> impl Iterator<Item = (Conn, &Hello, Capacity)> {
    let up = workers.iter().filter(|(_, worker)| !worker.leaving);
    up.filter_map(|(conn, worker)| {
        let hello = worker.hello.as_ref()?;
        Some((*conn, hello, hello.capacity?))
    })
}
