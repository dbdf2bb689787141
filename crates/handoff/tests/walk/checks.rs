//! The check before a step as it ships, which looks at what may have changed, beside the one that
//! trusts no earlier check; and both on a world in which a page was given back in between.

use crate::dice::Dice;
use handoff::decode::Decode;
use handoff::prefill::Prefill;
use pages::{PageId, Verified, VerifyFault};

/// The pages of every sequence, in the order of the step.
pub type Tables = Vec<Vec<PageId>>;

fn tables(verified: Result<Verified<'_>, VerifyFault>) -> Result<Tables, String> {
    let verified = verified.map_err(|fault| fault.to_string())?;
    let sequences = verified.sequences().iter();
    Ok(sequences
        .map(|sequence| sequence.pages().collect())
        .collect())
}

macro_rules! checks {
    ($(fn $name:ident(machine: &mut $machine:ident);)*) => {$(
        /// What both say; panics if they differ, or if one lets through what it may not.
        pub fn $name(machine: &mut $machine, dice: &mut Dice) -> Result<Tables, String> {
            let before = dice.chance(25).then(|| machine.fork_for_checker());
            let both = |machine: &mut $machine| {
                let shipped = tables(machine.verify());
                let in_full = tables(machine.verify_in_full());
                assert_eq!(shipped.is_ok(), in_full.is_ok(), "{shipped:?}, {in_full:?}");
                if let (Ok(shipped), Ok(in_full)) = (&shipped, &in_full) {
                    assert_eq!(shipped, in_full);
                }
                in_full
            };
            let tables = both(machine)?;
            let pages: Vec<PageId> = tables.iter().flatten().copied().collect();
            if let (Some(before), Some(page)) = (before, dice.pick(&pages)) {
                for mut without in [before, machine.fork_for_checker()] {
                    // An operation that reads a cached page keeps it.
                    if without.take_away_for_checker(page).is_ok() {
                        assert!(both(&mut without).is_err(), "H-1: {page:?} was given back");
                    }
                }
            }
            Ok(tables)
        }
    )*};
}

checks! {
    fn of_step(machine: &mut Decode);
    fn of_chunk(machine: &mut Prefill);
}
