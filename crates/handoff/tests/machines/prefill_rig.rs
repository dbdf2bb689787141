//! The prefill machine alone, with the words of its peers put into its ear.

use crate::rig::Epoch;
use crate::rig::{CONTEXT, DECODE, GATEWAY, PAGE, PREFILL, attempt, checksum, hello, link};
use crate::watch::prefill::Watch;
use handoff::prefill::{Config, Effect, Event, Prefill, SendPage};
use handoff::{
    Answers, ArenaId, Closing, Conn, DecodeToPrefill, Ending, Failure, GatewayToPrefill, HandoffId,
    Hello, LandingSite, OfferId, PrefillToDecode, PrefillToGateway, Role, Spec, SubmissionId,
};
use pages::{Counts, PageId, Pool, StatedTag};

pub const G: Conn = Conn(1);
pub const D: Conn = Conn(2);

pub struct PrefillRig {
    pub machine: Prefill,
    pub ranks: u16,
    watch: Watch,
}

pub fn handoff(n: u64) -> HandoffId {
    let epoch = Epoch::new(DECODE);
    HandoffId { epoch, n }
}

pub fn arena(n: u64) -> ArenaId {
    let epoch = Epoch::new(DECODE);
    ArenaId { epoch, n }
}

pub fn offer(n: u64) -> OfferId {
    let epoch = Epoch::new(PREFILL);
    OfferId { epoch, n }
}

impl PrefillRig {
    pub fn new(pages: u32, ranks: u16, scrub: bool, tweak: impl FnOnce(&mut Config)) -> Self {
        let (pool, _) = Pool::new(pages::Config {
            pages,
            page_size: PAGE,
            scrub,
        });
        let mut config = Config::for_context(CONTEXT, [9; 32]);
        config.max_batch_pages = 2;
        tweak(&mut config);
        let of_p = Hello {
            ranks,
            ..hello(PREFILL, Role::Prefill)
        };
        let machine = Prefill::new(config, of_p, pool);
        let mut rig = Self {
            machine,
            ranks,
            watch: Watch::default(),
        };
        let hello_g = GatewayToPrefill::Hello(hello(GATEWAY, Role::Gateway));
        rig.tell(Event::FromGateway(G, hello_g));
        rig
    }

    /// Of one rank, connected to decode.
    pub fn connected(pages: u32) -> Self {
        let mut rig = Self::new(pages, 1, false, |_| ());
        rig.connect(D);
        rig
    }

    /// In every test: no fail-stop, the pages add up (H-10), and what [`Watch`] looks at.
    pub fn tell(&mut self, event: Event) -> Vec<Effect> {
        self.watch.before(&event);
        let said = self.machine.handle(event.clone());
        for effect in &said {
            if let Effect::FailStop(why) = effect {
                panic!("fail-stop: {why}");
            }
        }
        let (held, counts) = (self.machine.holders().len(), self.machine.counts());
        assert_eq!(held + counts.free, counts.total(), "H-10: {counts:?}");
        self.watch.after(&mut self.machine, &event, &said);
        said
    }

    /// Dials and hears Hello; gives the Sync that was said.
    pub fn dial(&mut self, conn: Conn, hello: Hello) -> Vec<Effect> {
        self.tell(Event::Dialled(conn));
        self.tell(Event::FromDecode(conn, DecodeToPrefill::Hello(hello)))
    }

    pub fn connect(&mut self, conn: Conn) {
        self.dial(conn, hello(DECODE, Role::Decode));
        self.tell(Event::FromDecode(conn, DecodeToPrefill::Synced));
    }

    pub fn hear_decode(&mut self, message: DecodeToPrefill) -> Vec<Effect> {
        self.tell(Event::FromDecode(D, message))
    }

    pub fn attempt(&mut self, n: u64, spec: &Spec) -> Vec<Effect> {
        let message = GatewayToPrefill::Attempt {
            attempt: attempt(n),
            spec: spec.clone(),
            decode: Epoch::new(DECODE),
            deadline_ms: 1000,
        };
        self.tell(Event::FromGateway(G, message))
    }

    pub fn withdraw(&mut self, n: u64) -> Vec<Effect> {
        let attempt = attempt(n);
        let message = GatewayToPrefill::Withdraw { attempt };
        self.tell(Event::FromGateway(G, message))
    }

    /// A ticket of `pages` pages, into the arena of that number; what a rank more has is one more.
    pub fn ticket(&mut self, of: OfferId, n: u64, pages: u32, into: u64) -> Vec<Effect> {
        self.direct_ticket(of, n, pages, into, Vec::new())
    }

    /// The same in direct mode, if there are targets.
    pub fn direct_ticket(
        &mut self,
        of: OfferId,
        n: u64,
        pages: u32,
        into: u64,
        targets: Vec<PageId>,
    ) -> Vec<Effect> {
        let landings = (0..self.ranks).map(|rank| LandingSite {
            rank,
            arena: arena(into + u64::from(rank)),
            slots: 4,
            address: vec![1],
        });
        let tags = (0..pages).map(|at| StatedTag(1000 * n + u64::from(at)));
        self.hear_decode(DecodeToPrefill::Ticket {
            offer: of,
            handoff: handoff(n),
            under: link(D),
            tags: tags.collect(),
            first: 0,
            landings: landings.collect(),
            targets,
        })
    }

    pub fn attached(&mut self, n: u64, ok: bool) -> Vec<Effect> {
        let arena = arena(n);
        self.tell(Event::Attached { arena, ok })
    }

    /// Attempt `n`, its offer, its ticket, the arena attached; gives the offer.
    pub fn ticketed(&mut self, n: u64, spec: &Spec) -> OfferId {
        let said = self.attempt(n, spec);
        let of = offers(&said)[0];
        let pages = spec.tokens.len().div_ceil(usize::from(PAGE)) as u32;
        self.ticket(of, n, pages, 1);
        self.attached(1, true);
        of
    }

    /// One pass over at most `tokens` tokens, its table verified in full.
    pub fn chunk(&mut self, offer: OfferId, tokens: u32) -> Vec<Effect> {
        let said = self.tell(Event::ChunkBegin { offer, tokens });
        let [Effect::Compute { from, to, last, .. }] = said[..] else {
            panic!("a pass: {said:?}");
        };
        let verified = self.machine.verify_in_full().expect("a sound table");
        assert_eq!(verified.sequences()[0].new_tokens(), (to - from) as usize);
        let size = u32::from(PAGE);
        let complete = if last { to.div_ceil(size) } else { to / size };
        let checksums = (from / size..complete).map(checksum).collect();
        let first = last.then(|| vec![7]);
        self.tell(Event::ChunkEnd {
            offer,
            checksums,
            first,
        })
    }

    pub fn written(&mut self, submission: SubmissionId, ok: bool) -> Vec<Effect> {
        self.tell(Event::Written { submission, ok })
    }

    pub fn taken(&mut self, n: u64, batch: u32) -> Vec<Effect> {
        let (handoff, rank) = (handoff(n), 0);
        self.hear_decode(DecodeToPrefill::Taken {
            handoff,
            rank,
            batch,
        })
    }

    pub fn ended(&mut self, n: u64, answers: Answers) -> Vec<Effect> {
        let (handoff, rank) = (handoff(n), 0);
        self.hear_decode(DecodeToPrefill::Ended {
            handoff,
            rank,
            answers,
        })
    }

    pub fn counts(&mut self) -> Counts {
        self.machine.counts()
    }
}

pub fn to_decode(said: &[Effect]) -> Vec<PrefillToDecode> {
    let messages = said.iter().filter_map(|effect| match effect {
        Effect::ToDecode(_, message) => Some(message.clone()),
        _ => None,
    });
    messages.collect()
}

pub fn offers(said: &[Effect]) -> Vec<OfferId> {
    let offers = to_decode(said)
        .into_iter()
        .filter_map(|message| match message {
            PrefillToDecode::Offer { offer, .. } => Some(offer),
            _ => None,
        });
    offers.collect()
}

pub fn endings(said: &[Effect]) -> Vec<(u64, Ending)> {
    let endings = said.iter().filter_map(|effect| match effect {
        Effect::ToGateway(_, PrefillToGateway::Ended { attempt, ending }) => {
            Some((attempt.n, ending.clone()))
        }
        _ => None,
    });
    endings.collect()
}

pub fn submitted(said: &[Effect]) -> Vec<(SubmissionId, Vec<SendPage>)> {
    let submitted = said.iter().filter_map(|effect| match effect {
        Effect::Submit {
            submission, pages, ..
        } => Some((*submission, pages.clone())),
        _ => None,
    });
    submitted.collect()
}

pub fn detached(said: &[Effect]) -> Vec<ArenaId> {
    let detached = said.iter().filter_map(|effect| match effect {
        Effect::Detach { arena } => Some(*arena),
        _ => None,
    });
    detached.collect()
}

/// How a writer closes that gave up because of this.
pub fn abandoned(failure: Failure) -> Closing {
    let why = Some(failure);
    Closing::Abandoned { why }
}
