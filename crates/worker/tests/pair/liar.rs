//! A prefill worker that writes one thing into the arena and states another (law: the reader
//! verifies). Certificates, control connection and shared memory are real; the test is the liar.

use crate::edge::{Edge, Pair};
use crate::{endless, prompt, spec};
use fabric::shm::ShmSender;
use fabric::{Sender, SlotWrite, SubmissionId, WriteEnding as Landing};
use handoff::{
    ArenaId, AttemptId, Capacity, Closing, Conn, DecodeToGateway, DecodeToPrefill, Ending, Failure,
    Fault, GatewayToDecode, HandoffId, Hello, LinkId, Manifest, OfferId, PrefillToDecode, Spec,
    StatedPage, codec, digest,
};
use model::{KvLayout, LoadOptions, Model, PageBuf};
use pages::{Epoch, StatedTag, WriterLife};
use serde::de::DeserializeOwned;
use std::sync::{Arc, mpsc};
use wire::control::{Identity, Role};
use wire::{Facts, TokenOut, encode_first};

const LIAR: Epoch = Epoch::new(666);
const GATEWAY: Epoch = Epoch::new(77);

/// What the liar says that is not so.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Lie {
    Nothing,
    Checksum,
    Tag,
    Fill,
    Order,
    MissingPage,
    PageTwice,
    Arena,
    FirstTokens,
    Digest,
}

/// What D said to the liar's ticket.
struct Ticket {
    handoff: HandoffId,
    arena: ArenaId,
    tags: Vec<StatedTag>,
    address: Vec<u8>,
}

struct Liar {
    edge: Edge,
    layout: KvLayout,
    gateway: Conn,
    prefill: Conn,
    offers: u64,
}

impl Liar {
    fn new(pair: &Pair) -> Self {
        let certs = pair.dir.path().join("certs");
        let mut edge = Edge::new(&certs, &pair.model, GATEWAY.bits());
        edge.go_raw();
        let gateway = edge.dial_raw(&pair.decode.addr(), Role::Decode);
        let hello = edge.hello.clone();
        edge.say(gateway, &GatewayToDecode::Hello(hello));
        let identity = Identity::load(&certs, Role::Prefill).unwrap();
        let prefill = edge.dial_as(&identity, &pair.decode.addr(), Role::Decode);
        let file = gguf::File::open(&pair.model).unwrap();
        let model = Model::load(&file, LoadOptions::default()).unwrap();
        let layout = KvLayout::new(model.config(), 16);
        let mut liar = Self {
            edge,
            layout,
            gateway,
            prefill,
            offers: 0,
        };
        let DecodeToGateway::Hello(decode) = liar.next(gateway) else {
            panic!("no Hello")
        };
        let role = handoff::Role::Prefill;
        let capacity = Capacity {
            role,
            ..decode.capacity.unwrap()
        };
        let capacity = Some(capacity);
        liar.say(PrefillToDecode::Hello(Hello {
            epoch: LIAR,
            role,
            capacity,
            ..decode
        }));
        assert!(matches!(liar.next(prefill), DecodeToPrefill::Hello(_)));
        liar.say(PrefillToDecode::Sync {
            under: LinkId {
                epoch: LIAR,
                conn: Conn(1),
            },
            tickets: vec![],
            offers: vec![],
        });
        assert_eq!(
            liar.next::<DecodeToPrefill>(prefill),
            DecodeToPrefill::Synced
        );
        liar
    }

    fn say(&mut self, message: PrefillToDecode) {
        self.edge.say(self.prefill, &message);
    }

    /// The next message on that connection.
    fn next<M: DeserializeOwned>(&mut self, conn: Conn) -> M {
        self.edge.until("a message", |edge| {
            edge.raw.get(&conn).is_some_and(|raw| !raw.is_empty())
        });
        codec::decode(&self.edge.raw.get_mut(&conn).unwrap().remove(0)).unwrap()
    }

    fn announce(&mut self, attempt: AttemptId, spec: &Spec) {
        let (prefill, spec, deadline_ms) = (LIAR, spec.clone(), 60_000);
        let expect = GatewayToDecode::Expect {
            attempt,
            spec,
            prefill,
            deadline_ms,
        };
        self.edge.say(self.gateway, &expect);
        let answer = self.next::<DecodeToGateway>(self.gateway);
        assert_eq!(answer, DecodeToGateway::Expecting { attempt });
    }

    /// Offers until there is an arena; none if D refuses for good.
    fn offer(&mut self, attempt: AttemptId, spec: &Spec, lie: Lie) -> Option<Ticket> {
        let claimed = if lie == Lie::Digest {
            digest(&[1, 2, 3])
        } else {
            digest(&spec.tokens)
        };
        loop {
            self.offers += 1;
            let offer = OfferId {
                epoch: LIAR,
                n: self.offers,
            };
            let count = spec.tokens.len() as u32;
            self.say(PrefillToDecode::Offer {
                offer,
                attempt,
                count,
                digest: claimed,
            });
            match self.next(self.prefill) {
                DecodeToPrefill::Busy { .. } => {}
                DecodeToPrefill::Faulty { .. } => return None,
                DecodeToPrefill::Ticket {
                    handoff,
                    tags,
                    mut landings,
                    ..
                } => {
                    let site = landings.remove(0);
                    let (arena, address) = (site.arena, site.address);
                    return Some(Ticket {
                        handoff,
                        arena,
                        tags,
                        address,
                    });
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// Writes pages of the right shape into the arena; what it states of them is the lie.
    fn hand_over(&mut self, spec: &Spec, ticket: &Ticket, lie: Lie) {
        let mut stated = self.write(spec.tokens.len(), ticket);
        match lie {
            Lie::Checksum => stated[1].checksum ^= 1,
            Lie::Tag => stated[1].tag = StatedTag(stated[1].tag.0 + 1000),
            Lie::Fill => stated[2].filled -= 1,
            Lie::Order => (stated[0].ordinal, stated[1].ordinal) = (1, 0),
            Lie::MissingPage => drop(stated.pop()),
            Lie::PageTwice => stated.push(StatedPage {
                slot: 9,
                ..stated[0]
            }),
            _ => {}
        }
        let other = ArenaId {
            n: ticket.arena.n + 1,
            ..ticket.arena
        };
        let arena = if lie == Lie::Arena {
            other
        } else {
            ticket.arena
        };
        let (handoff, rank, batch, pages) = (ticket.handoff, 0, 0, stated.len() as u32);
        let manifest = Manifest {
            handoff,
            rank,
            arena,
            batch,
            pages: stated,
        };
        self.say(PrefillToDecode::Landed(manifest));
        let tokens: Vec<_> = (0..spec.choices)
            .map(|_| TokenOut {
                id: 5,
                logprob: None,
                top: vec![],
            })
            .collect();
        let none_of_them = lie == Lie::FirstTokens;
        let first = Some(if none_of_them {
            vec![9; 3]
        } else {
            encode_first(&tokens)
        });
        let how = Closing::Sealed {
            batches: 1,
            pages,
            first,
        };
        self.say(PrefillToDecode::Closed { handoff, rank, how });
    }

    fn write(&self, tokens: usize, ticket: &Ticket) -> Vec<StatedPage> {
        let address = fabric::Landing::from_bytes(ticket.address.clone()).unwrap();
        let (say, said) = mpsc::channel();
        let on_completion = Box::new(move |ended| say.send(ended).unwrap());
        let life = WriterLife {
            epoch: LIAR,
            rank: 0,
        };
        let mut endpoint = ShmSender::new(life)
            .attach(&address, on_completion)
            .unwrap();
        let (mut writes, mut stated) = (Vec::new(), Vec::new());
        for (ordinal, tag) in ticket.tags.iter().enumerate() {
            let filled = (tokens - ordinal * 16).min(16);
            let mut page = PageBuf::new(&self.layout).unwrap();
            page.words_mut()
                .iter_mut()
                .enumerate()
                .for_each(|(i, word)| {
                    *word = 0x2000 + ((i + ordinal * 7) % 512) as u16; // small, finite numbers
                });
            let runs = self.layout.filled_runs(filled);
            let runs = runs.map(|run| fabric::WordRun {
                offset: run.start,
                words: run.len(),
            });
            let slot = ordinal as u32;
            stated.push(StatedPage {
                slot,
                tag: *tag,
                ordinal: slot,
                filled: filled as u16,
                checksum: self.layout.checksum(&page, filled),
            });
            let source = Arc::new(page.words().to_vec());
            writes.push(SlotWrite {
                source,
                runs: runs.collect(),
                slot,
            });
        }
        endpoint.submit(SubmissionId(1), writes).unwrap();
        assert_eq!(said.recv().unwrap().ending, Landing::Landed);
        stated
    }

    fn facts(&mut self) -> Facts {
        self.edge.facts(self.gateway)
    }
}

/// What the gateway hears of one attempt, to its end.
fn story(pair: &Pair, lie: Lie) -> (Vec<DecodeToGateway>, Facts) {
    let mut liar = Liar::new(pair);
    let before = liar.facts().counters;
    let attempt = AttemptId {
        epoch: GATEWAY,
        n: 1,
    };
    let spec = spec(1, prompt(1, 40), 3, 2, &endless());
    liar.announce(attempt, &spec);
    let ticket = liar.offer(attempt, &spec, lie);
    if let Some(ticket) = &ticket {
        liar.hand_over(&spec, ticket, lie);
    }
    let tags = ticket.map(|ticket| ticket.tags.iter().map(|tag| tag.0).collect::<Vec<_>>());
    let mut heard = Vec::new();
    while !matches!(heard.last(), Some(DecodeToGateway::Ended { .. })) {
        heard.push(liar.next(liar.gateway));
    }
    let gateway = liar.gateway;
    let mut facts = liar
        .edge
        .at_rest(gateway, pair.decode.ready.pool_tokens, 16);
    facts.counters.integrity_faults -= before.integrity_faults;
    if let Some(tags) = tags.filter(|_| facts.counters.integrity_faults > 0) {
        let audit = std::fs::read_to_string(pair.dir.path().join("decode.audit")).unwrap();
        let granted = format!("\"granted_tags\":{tags:?}").replace(' ', "");
        assert!(audit.contains(&granted), "{granted}: {audit}");
    }
    (heard, facts)
}

fn ending(heard: &[DecodeToGateway]) -> Ending {
    match heard.last() {
        Some(DecodeToGateway::Ended { ending, .. }) => ending.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_was_not_granted_or_is_not_what_was_stated_is_found_and_no_token_leaves() {
    for (lie, fault) in [
        (Lie::Checksum, Fault::WrongChecksum),
        (Lie::Tag, Fault::WrongTag),
        (Lie::Fill, Fault::WrongFill),
        (Lie::Order, Fault::WrongOrdinal),
        (Lie::MissingPage, Fault::MissingPage),
        (Lie::PageTwice, Fault::PageTwice),
        (Lie::Arena, Fault::WrongArena),
        (Lie::FirstTokens, Fault::FirstToken),
    ] {
        let pair = Pair::start(|_| {});
        let (heard, facts) = story(&pair, lie);
        assert_eq!(heard.len(), 1, "H-9: {lie:?}: {heard:?}");
        assert_eq!(
            ending(&heard),
            Ending::Failed(Failure::Integrity(fault)),
            "{lie:?}"
        );
        assert_eq!(facts.counters.integrity_faults, 1, "{lie:?}");
        assert_eq!(facts.counters.steps, 0, "nothing was computed over it");
    }
}

#[test]
fn a_prompt_that_is_not_the_gateways_is_refused_before_a_ticket() {
    let pair = Pair::start(|_| {});
    let (heard, facts) = story(&pair, Lie::Digest);
    assert_eq!(
        ending(&heard),
        Ending::Failed(Failure::Integrity(Fault::WrongTokens)),
        "H-2"
    );
    assert_eq!((heard.len(), facts.counters.batches), (1, 0));
}

#[test]
fn the_same_without_a_lie_is_answered() {
    let pair = Pair::start(|_| {});
    let (heard, facts) = story(&pair, Lie::Nothing);
    assert_eq!(ending(&heard), Ending::Finished);
    assert!(
        matches!(heard[0], DecodeToGateway::Committed { .. }),
        "{heard:?}"
    );
    let tokens = heard
        .iter()
        .filter(|message| matches!(message, DecodeToGateway::Tokens { .. }));
    assert_eq!(tokens.count(), 6, "three of two choices");
    assert_eq!(
        (facts.counters.integrity_faults, facts.counters.fences),
        (0, 0)
    );
}
