//! The safeguards, each of which can be switched off and on by itself, and what the shipped
//! machines then decide.
//!
//! [`Guards`] is the one type parameter of everything that runs here. A decision whose safeguard is
//! on is the product's ([`Sound`]); one whose safeguard is off is what the real engine did in the
//! incident, or left out.

use handoff::{Arrived, Capacity, Limit, Rejection, Role, Spec, StatedPage};
use pages::{Sound, StatedTag, Tag};

/// A safeguard, in the order in which a request meets it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum Safeguard {
    /// A worker whose pool cannot hold its context does not start.
    Start,
    /// The gateway's limit is derived from both pools.
    Edge,
    /// What prefill rejects stays rejected.
    Admission,
    /// Decode compares the offer with what the gateway announced.
    Expect,
    /// Prefill compares the pages of the ticket with its own.
    Ticket,
    /// Decode compares each page's tag.
    Tags,
    /// Decode compares each page's place.
    Order,
    /// Decode compares how many slots of each page are filled.
    Fill,
    /// Decode compares the bytes with their checksum.
    Checksum,
    /// Decode counts before it commits.
    Coverage,
    /// Freed pages are erased.
    Scrub,
}

use Safeguard::{
    Admission, Checksum, Coverage, Edge, Expect, Fill, Order, Scrub, Start, Tags, Ticket,
};

/// All of them.
pub(super) const ALL: [Safeguard; 11] = [
    Start, Edge, Admission, Expect, Ticket, Tags, Order, Fill, Checksum, Coverage, Scrub,
];

impl Safeguard {
    /// A short name for tables and for JSON.
    pub(super) fn id(self) -> &'static str {
        match self {
            Start => "start",
            Edge => "edge",
            Admission => "admission",
            Expect => "expect",
            Ticket => "ticket",
            Tags => "tags",
            Order => "order",
            Fill => "fill",
            Checksum => "checksum",
            Coverage => "coverage",
            Scrub => "scrub",
        }
    }

    /// What it is, in a few words.
    pub(super) fn title(self) -> &'static str {
        match self {
            Start => "start-up: the pool carries the context",
            Edge => "edge: the limit is derived from both pools",
            Admission => "prefill: a rejection is terminal",
            Expect => "decode: the offer is the announced prompt",
            Ticket => "prefill: as many pages as the ticket reserves",
            Tags => "decode: each page has its granted tag",
            Order => "decode: each page has its stated place",
            Fill => "decode: each page is filled as this prompt fills it",
            Checksum => "decode: the bytes have their checksum",
            Coverage => "decode: everything is there before commit",
            Scrub => "decode: freed pages are erased",
        }
    }

    /// The clause or law that it keeps.
    pub(super) fn clause(self) -> &'static str {
        match self {
            Start | Edge => "capacity is measured, not declared",
            Admission => "H-5, rejected is terminal",
            Expect | Ticket | Fill | Coverage => "H-2",
            Tags => "H-8",
            Order | Checksum => "the reader verifies",
            Scrub => "(an option, --scrub)",
        }
    }

    /// Why it stops the incident, or why not: what one has to know to believe the row.
    pub(super) fn why(self) -> &'static str {
        match self {
            Start => {
                "The incident began here: a pool smaller than the advertised context. The worker \
                 refuses, and names the context that this pool does carry."
            }
            Edge => {
                "The prompt is longer than the smaller of the two pools, so it is refused before \
                 any worker hears of it."
            }
            Admission => {
                "Prefill finds the prompt too long for its pool and says so, instead of queueing a \
                 one-token placeholder."
            }
            Expect => {
                "Decode knows the prompt from the gateway: an offer of one token is another \
                 prompt."
            }
            Ticket => {
                "The ticket reserves pages for the whole prompt, prefill holds one: it gives up \
                 before it computes anything."
            }
            Tags => {
                "It does not stop this one: the page that came bears the tag that was granted for \
                 it. It is the pages that never came that are wrong."
            }
            Order => "It does not stop this one: the page that came is the first one, and says so.",
            Fill => {
                "The first page came with one slot filled; of this prompt it has more. It would \
                 not notice a prompt cut at the end of a page."
            }
            Checksum => {
                "It does not stop this one: a checksum over what arrived is right, and says \
                 nothing of what never came."
            }
            Coverage => {
                "Before commit, decode compares what was recorded with what it reserved, and most \
                 of it is missing."
            }
            Scrub => {
                "The stale text is gone, so nothing leaks; what is left in unwritten slots is no \
                 number, and the first step over it fails. The request is lost, and nobody learns \
                 why."
            }
        }
    }

    /// What B's request must come to when this alone is on. The command fails if it does not.
    pub(super) fn expected(self) -> Expected {
        match self {
            Start => Expected::NoStart,
            Edge | Admission => Expected::Error(400, &["context_length_exceeded"]),
            Expect => Expected::Error(502, &["integrity_wrong_tokens"]),
            Fill => Expected::Error(502, &["integrity_wrong_fill"]),
            Coverage => Expected::Error(502, &["integrity_missing_page"]),
            // Prefill tells the gateway why, and decode that it has given up: what the client
            // hears is what arrives first.
            Ticket => Expected::Error(502, &["integrity_wrong_tokens", "prefill_failed"]),
            Scrub => Expected::Error(502, &["decode_failed"]),
            Tags | Order | Checksum => Expected::Leak,
        }
    }

    const fn bit(self) -> u16 {
        1 << self as u16
    }
}

/// What becomes of B's request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Expected {
    /// Nothing is served.
    NoStart,
    /// This status and one of these codes, and nothing of A's.
    Error(u16, &'static [&'static str]),
    /// A 200 with A's text.
    Leak,
}

/// Which safeguards are on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Guards(u16);

impl Guards {
    /// None of them.
    pub(super) const NONE: Self = Self(0);

    /// This one alone.
    pub(super) fn only(guard: Safeguard) -> Self {
        Self(guard.bit())
    }

    /// All but this one.
    pub(super) fn all_but(guard: Safeguard) -> Self {
        let all: u16 = ALL.iter().map(|guard| guard.bit()).sum();
        Self(all & !guard.bit())
    }

    /// Whether this one is on.
    pub(super) fn has(self, guard: Safeguard) -> bool {
        self.0 & guard.bit() != 0
    }
}

impl pages::Decisions for Guards {}

impl handoff::Decisions for Guards {
    /// Off: nobody compares the pool with the context.
    fn carries(self, pool_tokens: u64, context: u32) -> bool {
        !self.has(Start) || Sound.carries(pool_tokens, context)
    }

    /// Off: decode's pool and the advertised context are all that the edge knows.
    fn limit_of_pair(self, prefill: Capacity, decode: Capacity) -> Limit {
        if self.has(Edge) {
            return Sound.limit_of_pair(prefill, decode);
        }
        let role = Role::Prefill;
        Sound.limit_of_pair(Capacity { role, ..decode }, decode)
    }

    /// Off: the length check replaces the prompt by a placeholder of one token, and admission asks
    /// whether the request is finished, not whether it is still valid (D-01).
    fn admit_prompt(self, capacity: &Capacity, mut spec: Spec) -> Result<Spec, Rejection> {
        match Sound.admit_prompt(capacity, spec.clone()) {
            Err(_) if !self.has(Admission) => {
                spec.tokens.truncate(1);
                Ok(spec)
            }
            judged => judged,
        }
    }

    /// Off: pages sent are not compared with pages reserved, by whoever sends them (D-02).
    fn ticket_fits(self, granted: usize, held: usize) -> bool {
        !self.has(Ticket) || Sound.ticket_fits(granted, held)
    }

    /// Off: only the room's number is compared, and that is right.
    fn same_prompt(self, expected: (u32, [u8; 32]), offered: (u32, [u8; 32])) -> bool {
        !self.has(Expect) || Sound.same_prompt(expected, offered)
    }

    fn same_tag(self, stated: StatedTag, granted: Tag) -> bool {
        !self.has(Tags) || Sound.same_tag(stated, granted)
    }

    /// Off: pages are taken in the order in which they come.
    fn ordinal_of(self, stated: &StatedPage, nth: u32) -> u32 {
        if self.has(Order) {
            Sound.ordinal_of(stated, nth)
        } else {
            nth
        }
    }

    fn same_fill(self, stated: u16, expected: u16) -> bool {
        !self.has(Fill) || Sound.same_fill(stated, expected)
    }

    fn same_checksum(self, stated: u32, copied: u32) -> bool {
        !self.has(Checksum) || Sound.same_checksum(stated, copied)
    }

    /// Off: "complete" is believed, whatever has come (D-02, D-03).
    fn covers(self, arrived: Arrived<'_>) -> bool {
        !self.has(Coverage) || Sound.covers(arrived)
    }
}
