//! Which names of serde's data model are identifiers, and which counters say nothing.
//!
//! A new identifier of the machines needs a line here; one that is missing costs only reduction
//! (it is written as it is), never soundness, as long as no other type holds the same numbers.

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
    /// When a cached page was last used.
    Use,
}

impl Class {
    pub const COUNT: usize = Self::Use as usize + 1;
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
    /// A machine, or a part of one, without these fields.
    In(Scope, &'static [&'static str]),
}

/// Which rule holds for what is being written.
#[derive(Default)]
pub(crate) struct Rules {
    /// The machines around it, innermost last.
    scopes: Vec<Scope>,
    expected: Option<Class>,
}

impl Rules {
    pub fn clear(&mut self) {
        self.scopes.clear();
        self.expected = None;
    }

    /// The next number is an identifier of this class.
    pub fn expect(&mut self, class: Class) {
        self.expected = Some(class);
    }

    pub fn take_expected(&mut self) -> Option<Class> {
        self.expected.take()
    }

    /// A struct of this name begins.
    pub fn enter(&mut self, name: &'static str) -> Rule {
        let scope = self.scopes.last().copied().unwrap_or_default();
        let rule = rule(name, scope);
        if let Rule::In(scope, _) = rule {
            self.scopes.push(scope);
        }
        rule
    }

    /// It ends.
    pub fn leave(&mut self, rule: Rule) {
        if let Rule::In(..) = rule {
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
        "UseStamp" => Class::Use,
        _ => return plain(name),
    };
    Rule::Id(class)
}

/// What is no identifier. Request ids are not: a world finds its client by them.
fn plain(name: &'static str) -> Rule {
    match name {
        // The configuration never changes.
        "Prefill" => Rule::In(Scope::Prefill, &["config"]),
        "Decode" => Rule::In(Scope::Decode, &["config"]),
        "Gateway" => Rule::In(Scope::World, &["config"]),
        // Larger than all that were minted from them, and minted from is all that they are.
        "LastId" | "LastAttempt" | "LastTag" | "LastOp" | "Counter" => Rule::Left,
        _ => Rule::Plain,
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
