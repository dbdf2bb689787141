//! The decode machine alone, with the words of its peers put into its ear.

use crate::rig::Epoch;
use crate::rig::{CONTEXT, DECODE, GATEWAY, PAGE, SLOTS, attempt, checksum, hello};
use crate::watch::decode::Watch;
use handoff::decode::{Config, Decode, Effect, Event, Lane, Output};
use handoff::{
    ArenaId, Closing, Conn, DecodeToGateway, DecodeToPrefill, Ending, Failure, Finish,
    GatewayToDecode, HandoffId, Hello, LandingSite, LinkId, Manifest, OfferId, PrefillToDecode,
    Role, Spec, StatedPage, digest,
};
use pages::{Counts, FenceMint, PageId, Pool, StatedTag, WriterLife};
use std::collections::BTreeMap;

/// The gateway's connection.
pub const G: Conn = Conn(1);

pub struct DecodeRig {
    pub machine: Decode,
    /// As the fabric has it.
    pub mint: FenceMint,
    pub writers: BTreeMap<ArenaId, WriterLife>,
    /// The life that has said Hello there.
    dialled: BTreeMap<u64, pages::Epoch>,
    watch: Watch,
}

/// What a ticket says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ticket {
    pub handoff: HandoffId,
    pub tags: Vec<StatedTag>,
    pub first: u32,
    pub landings: Vec<LandingSite>,
    /// Direct mode only.
    pub targets: Vec<PageId>,
    pub count: u32,
}

impl DecodeRig {
    pub fn new(pages: u32, tweak: impl FnOnce(&mut Config)) -> Self {
        Self::scrubbing(pages, false, tweak)
    }

    pub fn scrubbing(pages: u32, scrub: bool, tweak: impl FnOnce(&mut Config)) -> Self {
        let (pool, mint) = Pool::new(pages::Config {
            pages,
            page_size: PAGE,
            scrub,
        });
        let mut config = Config::for_pool(pages as usize, CONTEXT, [9; 32]);
        config.max_batch_pages = 4;
        tweak(&mut config);
        let lent = mint.lend();
        let machine = Decode::new(config, hello(DECODE, Role::Decode), pool, lent);
        let writers = std::collections::BTreeMap::new();
        let mut rig = Self {
            machine,
            mint,
            writers,
            dialled: BTreeMap::new(),
            watch: Watch::default(),
        };
        rig.hear_gateway(GatewayToDecode::Hello(hello(GATEWAY, Role::Gateway)));
        rig
    }

    /// In every test: no fail-stop, the pages add up (H-10), and what [`Watch`] looks at.
    pub fn tell(&mut self, event: Event) -> Vec<Effect> {
        self.watch.before(&event);
        let said = self.machine.handle(event.clone());
        self.look(&said);
        self.watch.after(&mut self.machine, Some(&event), &said);
        said
    }

    fn look(&mut self, said: &[Effect]) {
        for effect in said {
            match effect {
                Effect::FailStop(why) => panic!("fail-stop: {why}"),
                Effect::OpenArena { arena, writer } => {
                    self.writers.insert(*arena, *writer);
                }
                _ => {}
            }
        }
        let (held, counts) = (self.machine.holders().len(), self.machine.counts());
        assert_eq!(held + counts.free, counts.total(), "H-10: {counts:?}");
    }

    pub fn hear_gateway(&mut self, message: GatewayToDecode) -> Vec<Effect> {
        self.tell(Event::FromGateway(G, message))
    }

    pub fn hear_prefill(&mut self, conn: u64, message: PrefillToDecode) -> Vec<Effect> {
        self.tell(Event::FromPrefill(Conn(conn), message))
    }

    pub fn hello(&mut self, life: u128, conn: u64, ranks: u16) -> Vec<Effect> {
        self.dialled.insert(conn, Epoch::new(life));
        let hello = Hello {
            ranks,
            ..hello(life, Role::Prefill)
        };
        self.hear_prefill(conn, PrefillToDecode::Hello(hello))
    }

    pub fn sync(&mut self, conn: u64, tickets: &[HandoffId], offers: &[OfferId]) -> Vec<Effect> {
        let sync = PrefillToDecode::Sync {
            under: LinkId {
                epoch: self.dialled[&conn],
                conn: Conn(conn),
            },
            tickets: tickets.to_vec(),
            offers: offers.to_vec(),
        };
        self.hear_prefill(conn, sync)
    }

    /// Hello, arenas, Sync; gives the arena of every rank.
    pub fn connect(&mut self, life: u128, conn: u64, ranks: u16) -> Vec<ArenaId> {
        let said = self.hello(life, conn, ranks);
        let arenas = self.open_arenas(&said);
        self.sync(conn, &[], &[]);
        arenas
    }

    /// A new connection of P's life, with that Sync.
    pub fn sync_anew(&mut self, conn: u64, tickets: &[HandoffId]) -> Vec<Effect> {
        self.hello(crate::rig::PREFILL, conn, 1);
        self.sync(conn, tickets, &[])
    }

    pub fn open_arenas(&mut self, said: &[Effect]) -> Vec<ArenaId> {
        let wanted = said.iter().filter_map(|effect| match effect {
            Effect::OpenArena { arena, .. } => Some(*arena),
            _ => None,
        });
        let wanted: Vec<_> = wanted.collect();
        for arena in &wanted {
            let (arena, slots, address) = (*arena, SLOTS, Vec::new());
            self.tell(Event::ArenaOpened {
                arena,
                slots,
                address,
            });
        }
        wanted
    }

    pub fn fenced(&mut self, arena: ArenaId) -> Vec<Effect> {
        let proof = self.mint.fenced(self.writers[&arena]);
        let said = self.machine.handle_fenced(arena, proof);
        self.look(&said);
        self.watch.after(&mut self.machine, None, &said);
        said
    }

    pub fn expect(&mut self, n: u64, spec: &Spec, prefill: u128) -> Vec<Effect> {
        self.hear_gateway(GatewayToDecode::Expect {
            attempt: attempt(n),
            spec: spec.clone(),
            prefill: Epoch::new(prefill),
            deadline_ms: 1000,
        })
    }

    /// Offer `n` of `life` for the attempt of the same number.
    pub fn offer(&mut self, life: u128, conn: u64, n: u64, spec: &Spec) -> Vec<Effect> {
        self.offer_for(life, conn, n, n, spec)
    }

    /// Offer `n` of `life` for attempt `of`.
    pub fn offer_for(
        &mut self,
        life: u128,
        conn: u64,
        n: u64,
        of: u64,
        spec: &Spec,
    ) -> Vec<Effect> {
        let offer = offer_id(life, n);
        self.hear_prefill(
            conn,
            PrefillToDecode::Offer {
                offer,
                attempt: attempt(of),
                count: spec.tokens.len() as u32,
                digest: digest(&spec.tokens),
            },
        )
    }

    /// Expect, offer, ticket.
    pub fn granted(&mut self, life: u128, conn: u64, n: u64, spec: &Spec) -> Ticket {
        let said = self.expect(n, spec, life);
        let expecting = DecodeToGateway::Expecting {
            attempt: attempt(n),
        };
        assert_eq!(to_gateway(&said), [expecting]);
        let said = self.offer(life, conn, n, spec);
        ticket(&said, spec).expect("a ticket")
    }

    /// States a batch; the copy is not ended.
    pub fn state(&mut self, conn: u64, manifest: &Manifest) -> Vec<Effect> {
        self.hear_prefill(conn, PrefillToDecode::Landed(manifest.clone()))
    }

    pub fn copied(&mut self, manifest: &Manifest) -> Vec<Effect> {
        let checksums = manifest.pages.iter().map(|page| checksum(page.ordinal));
        let checksums = Some(checksums.collect());
        let (handoff, rank, batch) = (manifest.handoff, manifest.rank, manifest.batch);
        self.tell(Event::Copied {
            handoff,
            rank,
            batch,
            checksums,
        })
    }

    /// States every page in one batch a rank and ends the copies.
    pub fn land_all(&mut self, conn: u64, ticket: &Ticket) {
        for rank in 0..ticket.landings.len() as u16 {
            let manifest = ticket.manifest(rank, 0, 0..ticket.tags.len() as u32);
            self.state(conn, &manifest);
            let said = self.copied(&manifest);
            assert_eq!(to_prefill(&said).len(), 1, "Taken: {said:?}");
        }
    }

    pub fn close(&mut self, conn: u64, handoff: HandoffId, rank: u16, how: Closing) -> Vec<Effect> {
        self.hear_prefill(conn, PrefillToDecode::Closed { handoff, rank, how })
    }

    pub fn unsettled(&mut self, conn: u64, ticket: &Ticket, slots: Vec<u32>) -> Vec<Effect> {
        let (handoff, rank) = (ticket.handoff, 0);
        self.hear_prefill(
            conn,
            PrefillToDecode::Unsettled {
                handoff,
                rank,
                slots,
            },
        )
    }

    /// The whole way to a committed handoff.
    pub fn committed(&mut self, life: u128, conn: u64, n: u64, spec: &Spec) -> Ticket {
        let ticket = self.granted(life, conn, n, spec);
        self.land_all(conn, &ticket);
        let said = self.close(conn, ticket.handoff, 0, ticket.sealed(Some(1)));
        assert!(starts(&said), "committed: {said:?}");
        ticket
    }

    /// First tokens, of every choice.
    pub fn first(&mut self, ticket: &Ticket, choices: u16, finish: Option<Finish>) -> Vec<Effect> {
        let outputs = (0..choices).map(|choice| output(ticket.handoff, choice, finish));
        let outputs = outputs.collect();
        self.tell(Event::First(outputs))
    }

    /// One step over everything that can run, its tables verified in full.
    pub fn step(&mut self, finish: impl Fn(Lane) -> Option<Finish>) -> Vec<Effect> {
        let lanes = self.machine.runnable();
        self.tell(Event::StepBegin(lanes.clone()));
        let verified = self.machine.verify_in_full().expect("a sound table");
        assert_eq!(verified.sequences().len(), lanes.len());
        let outputs = lanes.into_iter().map(|lane| Output {
            lane,
            token: 7,
            payload: vec![7],
            finish: finish(lane),
        });
        let outputs = outputs.collect();
        self.tell(Event::StepEnd(outputs))
    }

    pub fn counts(&mut self) -> Counts {
        self.machine.counts()
    }
}

impl Ticket {
    /// A true statement about pages `ordinals` (counted from the first that is sent).
    pub fn manifest(&self, rank: u16, batch: u32, ordinals: std::ops::Range<u32>) -> Manifest {
        let page = |at: u32| {
            let ordinal = self.first + at;
            let rest = self.count - ordinal * u32::from(PAGE);
            StatedPage {
                slot: self
                    .targets
                    .get(at as usize)
                    .map_or(at, |page| page.index() as u32),
                tag: self.tags[at as usize],
                ordinal,
                filled: rest.min(u32::from(PAGE)) as u16,
                checksum: checksum(ordinal),
            }
        };
        Manifest {
            handoff: self.handoff,
            rank,
            arena: self.landings[rank as usize].arena,
            batch,
            pages: ordinals.map(page).collect(),
        }
    }

    /// The certificate for one batch with every page.
    pub fn sealed(&self, first: Option<u8>) -> Closing {
        let pages = self.tags.len() as u32;
        let batches = u32::from(pages > 0);
        Closing::Sealed {
            batches,
            pages,
            first: first.map(|token| vec![token]),
        }
    }
}

pub fn offer_id(life: u128, n: u64) -> OfferId {
    OfferId {
        epoch: Epoch::new(life),
        n,
    }
}

pub fn output(handoff: HandoffId, choice: u16, finish: Option<Finish>) -> Output {
    Output {
        lane: Lane { handoff, choice },
        token: u32::from(choice),
        payload: vec![choice as u8],
        finish,
    }
}

pub fn ticket(said: &[Effect], spec: &Spec) -> Option<Ticket> {
    to_prefill(said)
        .into_iter()
        .find_map(|message| match message {
            DecodeToPrefill::Ticket {
                handoff,
                tags,
                first,
                landings,
                targets,
                ..
            } => Some(Ticket {
                handoff,
                tags,
                first,
                landings,
                targets,
                count: spec.tokens.len() as u32,
            }),
            _ => None,
        })
}

pub fn to_gateway(said: &[Effect]) -> Vec<DecodeToGateway> {
    let messages = said.iter().filter_map(|effect| match effect {
        Effect::ToGateway(_, message) => Some(message.clone()),
        _ => None,
    });
    messages.collect()
}

pub fn to_prefill(said: &[Effect]) -> Vec<DecodeToPrefill> {
    let messages = said.iter().filter_map(|effect| match effect {
        Effect::ToPrefill(_, message) => Some(message.clone()),
        _ => None,
    });
    messages.collect()
}

/// How attempts ended at the gateway.
pub fn endings(said: &[Effect]) -> Vec<(u64, Ending)> {
    let endings = to_gateway(said)
        .into_iter()
        .filter_map(|message| match message {
            DecodeToGateway::Ended { attempt, ending } => Some((attempt.n, ending)),
            _ => None,
        });
    endings.collect()
}

pub fn audits(said: &[Effect]) -> Vec<(Failure, Option<StatedTag>)> {
    let audits = said.iter().filter_map(|effect| match effect {
        Effect::Audit {
            failure, stated, ..
        } => Some((*failure, *stated)),
        _ => None,
    });
    audits.collect()
}

pub fn fences(said: &[Effect]) -> Vec<ArenaId> {
    let fences = said.iter().filter_map(|effect| match effect {
        Effect::Fence { arena } => Some(*arena),
        _ => None,
    });
    fences.collect()
}

/// Whether an answer may begin.
pub fn starts(said: &[Effect]) -> bool {
    said.iter()
        .any(|effect| matches!(effect, Effect::Start { .. }))
}
