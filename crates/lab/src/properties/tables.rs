//! The check that every step and every pass goes through, as it ships ([`pages::Pool::verify`], which
//! looks at what may have changed), beside the one that trusts no earlier check.

use crate::model::Notes;
use handoff::Decisions;
use handoff::decode::Decode;
use handoff::prefill::Prefill;
use pages::{Misuse, PageId, Verified, VerifyFault};
use std::collections::BTreeSet;

/// What a step may use: of each sequence where its next token goes, and its pages in order.
pub type Tables = Vec<(usize, Vec<PageId>)>;

/// A machine that checks tables.
pub trait Checks: Sized {
    /// As it ships.
    fn verify(&mut self) -> Result<Verified<'_>, VerifyFault>;
    /// Trusting no earlier check.
    fn verify_in_full(&mut self) -> Result<Verified<'_>, VerifyFault>;
    /// The same machine once more.
    fn fork(&mut self) -> Self;
    /// Nobody holds this page any more.
    fn take_away(&mut self, page: PageId) -> Result<(), Misuse>;
}

macro_rules! checks {
    ($($machine:ident)*) => {$(
        impl<J: Decisions> Checks for $machine<J> {
            fn verify(&mut self) -> Result<Verified<'_>, VerifyFault> {
                $machine::verify(self)
            }

            fn verify_in_full(&mut self) -> Result<Verified<'_>, VerifyFault> {
                $machine::verify_in_full(self)
            }

            fn fork(&mut self) -> Self {
                self.fork_for_checker()
            }

            fn take_away(&mut self, page: PageId) -> Result<(), Misuse> {
                self.take_away_for_checker(page)
            }
        }
    )*};
}

checks!(Decode Prefill);

/// H-1: the tables of the step, or pass, that has begun. The check that ships comes first, with what
/// it remembers of earlier ones; the other must say the same. And in a world in which one of those
/// pages had been given back before this check, or behind it, both must refuse.
pub fn of_verify<M: Checks>(machine: &mut M, notes: &mut Notes) -> Result<Tables, String> {
    let mut before = machine.fork();
    let tables = both(machine, notes)?;
    let pages: BTreeSet<PageId> = tables
        .iter()
        .flat_map(|(_, pages)| pages)
        .copied()
        .collect();
    for page in pages {
        for mut without in [before.fork(), machine.fork()] {
            // An operation that reads a cached page keeps it.
            if without.take_away(page).is_err() {
                continue;
            }
            let passed = both(&mut without, notes).is_ok();
            notes.check("H-1", !passed, || {
                let page = page.index();
                format!("page {page} was given back, and a table that names it passes the check")
            });
        }
    }
    Ok(tables)
}

fn both<M: Checks>(machine: &mut M, notes: &mut Notes) -> Result<Tables, String> {
    let shipped = tables(machine.verify());
    let in_full = tables(machine.verify_in_full());
    let same = match (&shipped, &in_full) {
        (Ok(one), Ok(other)) => one == other,
        (one, other) => one.is_err() && other.is_err(),
    };
    notes.check("H-1", same, || {
        format!(
            "the check before a step says {shipped:?}, and looking at everything says {in_full:?}"
        )
    });
    in_full
}

fn tables(verified: Result<Verified<'_>, VerifyFault>) -> Result<Tables, String> {
    let verified = verified.map_err(|fault| fault.to_string())?;
    let sequences = verified.sequences().iter();
    let tables = sequences.map(|sequence| (sequence.start(), sequence.pages().collect()));
    Ok(tables.collect())
}
