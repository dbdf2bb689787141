//! Which names of serde's data model are identifiers, and which counters say nothing.
//!
//! A new identifier of the machines needs a line here; one that is missing costs only reduction
//! (it is written as it is), never soundness, as long as no other type holds the same numbers.

use super::part;
use super::symmetry::Rows;

/// Identifiers that are compared with each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Class {
    Epoch,
    Conn,
    Attempt,
    /// Offers of P: its jobs, and the owners of its pages.
    Offer,
    /// Handoffs of D, and the owners of its pages.
    Handoff,
    Arena,
    Submission,
    PrefillTag,
    /// Tags of D's pages, also where P states them.
    DecodeTag,
    PrefillOp,
    DecodeOp,
    /// When a cached page of P's was last used, by P's own clock.
    PrefillUse,
    /// And one of D's, by D's.
    DecodeUse,
    PrefillPage,
    DecodePage,
    /// No identifier: what memory holds.
    Cell,
    /// No identifier: what identifiers are minted from, which is not written.
    Counter,
}

impl Class {
    pub(super) const COUNT: usize = Self::Cell as usize + 1;

    /// Whether it names a page: which one is which is not forgotten.
    pub(super) fn is_page(self) -> bool {
        matches!(self, Self::PrefillPage | Self::DecodePage)
    }
}

/// In whose state we are: the same type names different things in P and in D.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Scope {
    #[default]
    World,
    Prefill,
    Decode,
}

/// How a named struct is written.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rule {
    /// As it is.
    Plain,
    /// Its number is an identifier.
    Id(Class),
    /// It is not written.
    Left,
    /// A part of the world, which is perhaps written for itself.
    Part,
    /// What memory holds in one place.
    Cell,
    /// A machine, or a part of one, without these fields.
    In(Scope, &'static [&'static str]),
    /// It holds these fields page by page, or as sets of pages.
    Pages(&'static [(&'static str, Rows)]),
    /// A life of a worker.
    Life(Scope, Class),
}

/// How many bits tell the lives of one role apart.
pub(crate) const LIFE_BITS: u32 = 2;

/// Which life of its role this epoch is: a world's epochs count up from a multiple of four for each
/// role. Beyond so many two lives share an order, which keeps worlds apart that could be merged.
pub(crate) fn life(epoch: u128) -> u8 {
    epoch as u8 & ((1 << LIFE_BITS) - 1)
}

/// Which rule holds for what is being written.
#[derive(Default)]
pub(crate) struct Rules {
    /// The machines and lives around it, innermost last.
    scopes: Vec<(Scope, u8)>,
    /// The life that a part belongs to which is written for itself.
    life: u8,
    /// The decode life that a stated tag belongs to: that of the last handoff or arena.
    decode: u8,
    /// The life of the last epoch.
    last_epoch: u8,
    /// The life of the number that follows, if its epoch stands before it.
    carried: Option<u8>,
    expected: Option<Class>,
    rows: Option<Rows>,
    known: Known,
}

/// Rules that were looked up in each scope, by where in memory the name lies: it is compared many
/// times a world.
struct Known([[Option<(usize, usize, Rule)>; KNOWN]; 3]);

const KNOWN: usize = 256;

impl Default for Known {
    fn default() -> Self {
        Self([[None; KNOWN]; 3])
    }
}

impl Known {
    #[inline]
    fn rule(&mut self, name: &'static str, scope: Scope) -> Rule {
        let (at, length) = (name.as_ptr().addr(), name.len());
        let spread = (at ^ (length << 20)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let place = &mut self.0[scope as usize][spread >> (usize::BITS - KNOWN.ilog2())];
        match place {
            Some((a, l, rule)) if *a == at && *l == length => *rule,
            place => {
                let rule = rule(name, scope);
                *place = Some((at, length, rule));
                rule
            }
        }
    }
}

impl Rules {
    pub(super) fn clear(&mut self) {
        self.scopes.clear();
        (self.life, self.decode, self.last_epoch) = (0, 0, 0);
        self.carried = None;
        self.expected = None;
        self.rows = None;
    }

    /// What follows belongs to this life.
    pub(super) fn belongs_to(&mut self, life: u8) {
        (self.life, self.decode) = (life, life);
    }

    #[inline]
    pub(super) fn saw_epoch(&mut self, epoch: u128) {
        self.last_epoch = life(epoch);
    }

    /// The epoch of a struct was written: that of an identifier, or of a life.
    pub(super) fn had_epoch(&mut self, rule: Rule) {
        let life = self.last_epoch;
        match rule {
            Rule::Id(class) => {
                self.carried = Some(life);
                if matches!(class, Class::Handoff | Class::Arena) {
                    self.decode = life;
                }
            }
            Rule::Life(scope, _) => {
                if let Some((_, of)) = self.scopes.last_mut() {
                    *of = life;
                }
                if scope == Scope::Decode {
                    self.decode = life;
                }
            }
            _ => {}
        }
    }

    /// Which life the number that is being written belongs to.
    #[inline]
    pub(super) fn life_of(&mut self, class: Class) -> u8 {
        if let Some(life) = self.carried.take() {
            return life;
        }
        let (scope, life) = (self.scopes.last().copied()).unwrap_or((Scope::World, self.life));
        match class {
            Class::Epoch
            | Class::Conn
            | Class::PrefillPage
            | Class::DecodePage
            | Class::Cell
            | Class::Counter => 0,
            // The marks of gateway lives, each behind the epoch that it is kept under.
            Class::Attempt => self.last_epoch,
            Class::DecodeTag if scope != Scope::Decode => self.decode,
            _ => life,
        }
    }

    /// The next list is written row by row.
    pub(super) fn expect_rows(&mut self, rows: Rows) {
        self.rows = Some(rows);
    }

    pub(super) fn take_rows(&mut self) -> Option<Rows> {
        self.rows.take()
    }

    /// The next number is an identifier of this class.
    pub(super) fn expect(&mut self, class: Class) {
        self.expected = Some(class);
    }

    pub(super) fn take_expected(&mut self) -> Option<Class> {
        self.expected.take()
    }

    /// A struct of this name begins.
    #[inline]
    pub(super) fn enter(&mut self, name: &'static str) -> Rule {
        let (scope, life) = (self.scopes.last().copied()).unwrap_or((Scope::World, self.life));
        let rule = self.known.rule(name, scope);
        if let Rule::In(scope, _) | Rule::Life(scope, _) = rule {
            self.scopes.push((scope, life));
        }
        rule
    }

    /// It ends.
    #[inline]
    pub(super) fn leave(&mut self, rule: Rule) {
        if let Rule::In(..) | Rule::Life(..) = rule {
            self.scopes.pop();
        }
    }
}

/// The names are listed, with the spaces that they belong to, in the handoff's ids.
fn rule(name: &'static str, scope: Scope) -> Rule {
    let class = match name {
        "Epoch" => Class::Epoch,
        "Conn" => Class::Conn,
        "AttemptId" | "AttemptMark" => Class::Attempt,
        "OfferId" | "JobKey" => Class::Offer,
        "HandoffId" | "HandoffKey" => Class::Handoff,
        "ArenaId" => Class::Arena,
        "SubmissionId" | "SubmissionKey" => Class::Submission,
        // What one says to the other is always about D's pages.
        "StatedTag" => Class::DecodeTag,
        "Tag" => scope.of(Class::PrefillTag, Class::DecodeTag, name),
        "OpId" => scope.of(Class::PrefillOp, Class::DecodeOp, name),
        "OwnerId" => scope.of(Class::Offer, Class::Handoff, name),
        "UseStamp" => scope.of(Class::PrefillUse, Class::DecodeUse, name),
        _ => return plain(name, scope),
    };
    Rule::Id(class)
}

/// What is no identifier. Request ids are not: a world finds its client by them.
fn plain(name: &'static str, scope: Scope) -> Rule {
    match name {
        // The configuration never changes, nor what a machine says of itself.
        "Prefill" => Rule::In(Scope::Prefill, &["config", "hello"]),
        "Decode" => Rule::In(Scope::Decode, &["config", "hello"]),
        "Gateway" => Rule::In(Scope::World, &["config", "hello"]),
        part::NAME => Rule::Part,
        "Cell" => Rule::Cell,
        // Larger than all that were minted from them, and minted from is all that they are.
        "LastId" | "LastAttempt" | "LastTag" | "LastOp" | "Counter" => Rule::Left,
        _ => of_pages(name, scope),
    }
}

/// Where pages are named, and what is kept page by page. (`Flight` is the world's: a write on its
/// way, which names the page that it reads at P.)
fn of_pages(name: &'static str, scope: Scope) -> Rule {
    let pages = match scope {
        Scope::Prefill => Class::PrefillPage,
        // What is said between the machines is always about D's pages.
        Scope::Decode | Scope::World => Class::DecodePage,
    };
    match name {
        "PageId" => Rule::Id(pages),
        "Flight" => Rule::In(Scope::Prefill, &[]),
        "PrefillLife" => Rule::Life(Scope::Prefill, Class::PrefillPage),
        "DecodeLife" => Rule::Life(Scope::Decode, Class::DecodePage),
        "Ledger" if pages == Class::PrefillPage => Rule::Pages(&PREFILL_LEDGER),
        "Ledger" => Rule::Pages(&DECODE_LEDGER),
        "Operation" => Rule::Pages(&[("reads", Rows::Set), ("writes", Rows::Set)]),
        _ => Rule::Plain,
    }
}

const PREFILL_LEDGER: [(&str, Rows); 6] = ledger(Class::PrefillPage);
const DECODE_LEDGER: [(&str, Rows); 6] = ledger(Class::DecodePage);

const fn ledger(pages: Class) -> [(&'static str, Rows); 6] {
    [
        ("records", Rows::ByPage(pages)),
        ("seals", Rows::ByPage(pages)),
        ("tags", Rows::Tags(pages)),
        ("free", Rows::Set),
        ("to_scrub", Rows::Set),
        ("writers", Rows::Set),
    ]
}

impl Rule {
    /// How this field of a struct is written, if it holds pages.
    pub(super) fn rows(&self, field: &str) -> Option<Rows> {
        match self {
            Self::Pages(fields) => {
                let known = fields.iter().find(|(name, _)| *name == field);
                known.map(|(_, rows)| *rows)
            }
            Self::Life(..) if field == "memory" => Some(Rows::Memory),
            _ => None,
        }
    }
}

impl Scope {
    fn of(self, prefill: Class, decode: Class, name: &str) -> Class {
        match self {
            Self::Prefill => prefill,
            Self::Decode => decode,
            Self::World => panic!("{name} outside of the machine that it belongs to"),
        }
    }
}
