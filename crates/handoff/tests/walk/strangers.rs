//! Strangers: they speak the language well and mean nothing by it. Ids of lives that exist and that
//! do not, numbers that are small or as large as can be, everything at the wrong time.

use crate::dice::Dice;
use crate::world::{Message, Node, World, hello};
use handoff::{
    Answers, ArenaId, AttemptId, Closing, Conn, DecodeToGateway, DecodeToPrefill, Ending, Failure,
    GatewayToDecode, GatewayToPrefill, HandoffId, LandingSite, LinkId, Manifest, OfferId,
    PrefillToDecode, PrefillToGateway, Rejection, Role, Spec, StatedPage, gateway, prefill,
};
use pages::{Domain, Epoch, PageId, StatedTag};

impl World {
    /// A stranger dials a worker, is dialled by the gateway, or says something where it is known.
    pub fn stranger(&mut self, dice: &mut Dice) {
        let known = self
            .links
            .iter()
            .filter(|link| link.ends.contains(&Node::Stranger));
        let known: Vec<_> = known.map(|link| (link.conn, link.ends)).collect();
        if known.len() < 4 && dice.chance(30) {
            return self.new_stranger(dice);
        }
        let Some((conn, ends)) = dice.pick(&known) else {
            return;
        };
        // It keeps its kind: which end it is at says what it plays.
        let node = ends[usize::from(ends[0] == Node::Stranger)];
        let plays_worker = ends[1] == Node::Stranger;
        let message = match node {
            Node::Gateway if conn.0.is_multiple_of(2) => {
                Message::FromPrefill(self.as_prefill(dice))
            }
            Node::Gateway => Message::FromDecode(self.as_decode(dice)),
            Node::Prefill(p) if plays_worker => {
                let to = self.prefills[p].machine.hello().epoch;
                Message::Answering(self.answering(to, conn, dice))
            }
            Node::Prefill(_) => Message::ToPrefill(self.to_prefill(dice)),
            Node::Decode(_) if conn.0.is_multiple_of(2) => {
                Message::Handing(self.handing(conn, dice))
            }
            Node::Decode(_) => Message::ToDecode(self.to_decode(dice)),
            Node::Stranger => return,
        };
        self.hear(node, conn, message);
    }

    fn new_stranger(&mut self, dice: &mut Dice) {
        let p = Node::Prefill(dice.roll(self.prefills.len() as u64) as usize);
        let d = Node::Decode(dice.roll(self.decodes.len() as u64) as usize);
        match dice.roll(4) {
            0 => {
                let conn = self.link(Node::Gateway, Node::Stranger);
                let event = if conn.0.is_multiple_of(2) {
                    gateway::Event::PrefillDialled(conn)
                } else {
                    gateway::Event::DecodeDialled(conn)
                };
                self.tell_gateway(event);
            }
            1 => {
                let conn = self.link(p, Node::Stranger);
                let Node::Prefill(p) = p else { return };
                self.tell_prefill(p, prefill::Event::Dialled(conn));
            }
            2 => drop(self.link(Node::Stranger, p)),
            _ => drop(self.link(Node::Stranger, d)),
        }
    }

    /// Lives that exist, and one that does not.
    fn some_life(&self, dice: &mut Dice) -> Epoch {
        let mut lives = vec![
            self.life(crate::world::GATEWAY),
            self.life(90),
            self.life(91),
        ];
        lives.extend(self.prefills.iter().map(|p| p.machine.hello().epoch));
        lives.extend(self.decodes.iter().map(|d| d.machine.hello().epoch));
        dice.pick(&lives).unwrap_or(self.life(92))
    }

    fn some_attempt(&self, dice: &mut Dice) -> AttemptId {
        let epoch = self.some_life(dice);
        let n = dice.number(30, u64::MAX);
        AttemptId { epoch, n }
    }

    fn some_handoff(&self, dice: &mut Dice) -> HandoffId {
        let epoch = self.some_life(dice);
        let n = dice.number(20, u64::MAX);
        HandoffId { epoch, n }
    }

    fn some_offer(&self, dice: &mut Dice) -> OfferId {
        let epoch = self.some_life(dice);
        let n = dice.number(20, u64::MAX);
        OfferId { epoch, n }
    }

    fn some_arena(&self, dice: &mut Dice) -> ArenaId {
        let epoch = self.some_life(dice);
        let n = dice.number(9, u64::MAX);
        ArenaId { epoch, n }
    }

    /// Lives 90 and 91 are strangers; they never say that they are somebody else.
    fn some_hello(&self, role: Role, dice: &mut Dice) -> handoff::Hello {
        let mut hello = hello(
            self.life(90 + u128::from(dice.roll(2) as u8)),
            role,
            1 + dice.roll(2) as u16,
        );
        if dice.chance(30) {
            hello.ranks = dice.number(3, u64::from(u16::MAX)) as u16;
            hello.capacity = hello.capacity.map(|c| handoff::Capacity {
                pages: dice.number(9, u64::from(u32::MAX)) as u32,
                page_size: dice.number(3, u64::from(u16::MAX)) as u16,
                context: dice.number(9, u64::from(u32::MAX)) as u32,
                ..c
            });
        }
        hello
    }

    fn some_spec(&self, dice: &mut Dice) -> Spec {
        let tokens = (0..dice.roll(20)).map(|_| dice.number(9, u64::from(u32::MAX)) as u32);
        let (tokens, domain) = (tokens.collect(), Domain::new(99));
        let max_new = dice.number(5, u64::from(u32::MAX)) as u32;
        Spec {
            choices: dice.number(3, u64::from(u16::MAX)) as u16,
            cache: dice.chance(50),
            ..Spec::new(domain, tokens, max_new)
        }
    }

    fn some_ending(&self, dice: &mut Dice) -> Ending {
        let endings = [
            Ending::Finished,
            Ending::Cancelled,
            Ending::Rejected(Rejection::Empty),
            Ending::Refused(handoff::Refusal::QueueFull),
            Ending::Failed(Failure::Compute),
        ];
        dice.pick(&endings).unwrap_or(Ending::Finished)
    }

    fn as_prefill(&self, dice: &mut Dice) -> PrefillToGateway {
        if dice.chance(50) {
            return PrefillToGateway::Hello(self.some_hello(Role::Prefill, dice));
        }
        let (attempt, ending) = (self.some_attempt(dice), self.some_ending(dice));
        PrefillToGateway::Ended { attempt, ending }
    }

    fn as_decode(&self, dice: &mut Dice) -> DecodeToGateway {
        let attempt = self.some_attempt(dice);
        match dice.roll(6) {
            0 | 1 => DecodeToGateway::Hello(self.some_hello(Role::Decode, dice)),
            2 => DecodeToGateway::Expecting { attempt },
            3 => DecodeToGateway::Committed {
                attempt,
                cached_tokens: u32::MAX,
            },
            4 => DecodeToGateway::Tokens {
                attempt,
                choice: dice.number(2, u64::from(u16::MAX)) as u16,
                token: 0,
                payload: Vec::new(),
                finish: None,
            },
            _ => {
                let ending = self.some_ending(dice);
                DecodeToGateway::Ended { attempt, ending }
            }
        }
    }

    fn to_prefill(&self, dice: &mut Dice) -> GatewayToPrefill {
        let attempt = self.some_attempt(dice);
        match dice.roll(4) {
            0 => GatewayToPrefill::Hello(hello(self.life(90), Role::Gateway, 1)),
            1 => GatewayToPrefill::Withdraw { attempt },
            _ => GatewayToPrefill::Attempt {
                attempt: AttemptId {
                    epoch: self.life(90),
                    ..attempt
                },
                spec: self.some_spec(dice),
                decode: self.some_life(dice),
                deadline_ms: u64::MAX,
            },
        }
    }

    fn to_decode(&self, dice: &mut Dice) -> GatewayToDecode {
        let attempt = self.some_attempt(dice);
        match dice.roll(5) {
            0 => GatewayToDecode::Hello(hello(self.life(90), Role::Gateway, 1)),
            1 => GatewayToDecode::Cancel { attempt },
            2 => GatewayToDecode::StopChoice {
                attempt,
                choice: dice.number(2, u64::from(u16::MAX)) as u16,
            },
            _ => GatewayToDecode::Expect {
                attempt: AttemptId {
                    epoch: self.life(90),
                    ..attempt
                },
                spec: self.some_spec(dice),
                prefill: self.some_life(dice),
                deadline_ms: u64::MAX,
            },
        }
    }

    fn handing(&self, conn: Conn, dice: &mut Dice) -> PrefillToDecode {
        let (handoff, rank) = (
            self.some_handoff(dice),
            dice.number(2, u64::from(u16::MAX)) as u16,
        );
        match dice.roll(9) {
            0 | 1 => PrefillToDecode::Hello(self.some_hello(Role::Prefill, dice)),
            2 | 3 => PrefillToDecode::Sync {
                under: some_link(self.life(90 + u128::from(dice.roll(2) as u8)), conn, dice),
                tickets: vec![handoff; dice.roll(3) as usize],
                offers: vec![self.some_offer(dice); dice.roll(3) as usize],
            },
            4 | 5 => self.some_prompt_offered(dice),
            6 => PrefillToDecode::Landed(self.some_manifest(handoff, rank, dice)),
            7 => PrefillToDecode::Closed {
                handoff,
                rank,
                how: some_closing(dice),
            },
            _ => {
                let slots = (0..dice.roll(4)).map(|_| dice.number(4, u64::from(u32::MAX)) as u32);
                PrefillToDecode::Unsettled {
                    handoff,
                    rank,
                    slots: slots.collect(),
                }
            }
        }
    }

    /// An offer for a prompt that somebody really asked for, if there is one.
    fn some_prompt_offered(&self, dice: &mut Dice) -> PrefillToDecode {
        let specs: Vec<_> = self.clients.values().map(|client| &client.spec).collect();
        let tokens = dice.pick(&specs).map_or(&[][..], |spec| &spec.tokens);
        PrefillToDecode::Offer {
            offer: OfferId {
                epoch: self.life(90 + u128::from(dice.roll(2) as u8)),
                ..self.some_offer(dice)
            },
            attempt: self.some_attempt(dice),
            count: tokens.len() as u32,
            digest: handoff::digest(tokens),
        }
    }

    fn some_manifest(&self, handoff: HandoffId, rank: u16, dice: &mut Dice) -> Manifest {
        let mut number = |small| dice.number(small, u64::from(u32::MAX)) as u32;
        let page = |number: &mut dyn FnMut(u64) -> u32| StatedPage {
            slot: number(3),
            tag: StatedTag(u64::from(number(40))),
            ordinal: number(4),
            filled: number(3) as u16,
            // Never that of a slot into which nobody wrote: a stranger proves nothing.
            checksum: number(9).max(1),
        };
        let pages = (0..number(3).min(4)).map(|_| page(&mut number)).collect();
        let batch = number(2);
        let arena = self.some_arena(dice);
        Manifest {
            handoff,
            rank,
            arena,
            batch,
            pages,
        }
    }

    fn answering(&self, to: Epoch, conn: Conn, dice: &mut Dice) -> DecodeToPrefill {
        let (handoff, offer) = (self.some_handoff(dice), self.some_offer(dice));
        let rank = dice.number(2, u64::from(u16::MAX)) as u16;
        match dice.roll(11) {
            0 | 1 => DecodeToPrefill::Hello(self.some_hello(Role::Decode, dice)),
            2 => DecodeToPrefill::Synced,
            3 => DecodeToPrefill::Busy {
                offer,
                after_ms: u64::MAX,
            },
            4 => DecodeToPrefill::OfferEnded { offer },
            5 => DecodeToPrefill::Taken {
                handoff,
                rank,
                batch: dice.number(3, u64::from(u32::MAX)) as u32,
            },
            6 => DecodeToPrefill::Committed { handoff },
            7 => DecodeToPrefill::Cancel { handoff },
            8 => DecodeToPrefill::Ended {
                handoff,
                rank,
                answers: if dice.chance(50) {
                    Answers::Closed
                } else {
                    Answers::Unsettled
                },
            },
            _ => {
                let site = |rank| LandingSite {
                    rank,
                    arena: self.some_arena(&mut Dice(u64::from(rank))),
                    slots: u32::MAX,
                    address: Vec::new(),
                };
                DecodeToPrefill::Ticket {
                    offer,
                    handoff,
                    under: some_link(to, conn, dice),
                    tags: (0..dice.roll(6)).map(StatedTag).collect(),
                    first: dice.number(3, u64::from(u32::MAX)) as u32,
                    landings: (0..dice.roll(3) as u16).map(site).collect(),
                    targets: (0..dice.roll(2) as u32).map(PageId::new).collect(),
                }
            }
        }
    }
}

pub fn some_closing(dice: &mut Dice) -> Closing {
    if dice.chance(40) {
        return Closing::Abandoned { why: None };
    }
    Closing::Sealed {
        batches: dice.number(2, u64::from(u32::MAX)) as u32,
        pages: dice.number(4, u64::from(u32::MAX)) as u32,
        first: dice.chance(70).then(Vec::new),
    }
}

/// Mostly that connection.
fn some_link(epoch: Epoch, conn: Conn, dice: &mut Dice) -> LinkId {
    let other = Conn(dice.number(3, u64::MAX));
    let conn = if dice.chance(20) { other } else { conn };
    LinkId { epoch, conn }
}
