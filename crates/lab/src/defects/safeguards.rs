//! Safeguards taken away that are nobody's defect by themselves: what a defect meets behind the
//! decision that it swaps. With one of them gone it is seen whether it was the last one.

use super::swap::Swap;
use handoff::{ArenaId, Fault};
use pages::{Pending, StatedTag, TableFault, Tag};

/// Takes one comparison away: it always comes out well.
macro_rules! taken_away {
    ($($(#[$doc:meta])* $name:ident: $method:ident($($arg:ident: $kind:ty),*) = $given:expr;)*) => {
        $(
            $(#[$doc])*
            #[derive(Debug)]
            pub struct $name;

            impl Swap for $name {
                fn $method(&self, $($arg: $kind),*) -> bool {
                    $(let _ = $arg;)*
                    $given
                }
            }
        )*
    };
}

taken_away! {
    /// Decode does not compare an offer with the prompt that the gateway announced.
    NoExpect: same_prompt(expected: (u32, [u8; 32]), offered: (u32, [u8; 32])) = true;
    /// Prefill does not compare the pages of a ticket with its own.
    NoTicketCount: ticket_fits(granted: usize, held: usize) = true;
    /// Decode does not compare how many slots of a page are filled.
    NoFill: same_fill(stated: u16, expected: u16) = true;
    /// Decode does not compare tags.
    NoTags: same_tag(stated: StatedTag, granted: Tag) = true;
    /// Decode does not compare arenas.
    NoArena: same_arena(stated: ArenaId, expected: ArenaId) = true;
    /// Decode takes an attempt's number again.
    NoNewNumber: is_new(number: u64, highest: Option<u64>) = true;
    /// The ledger seals whatever is still being written.
    NoSealGuard: may_seal(pending: Pending) = true;
    /// An integrity fault does not make a certificate void.
    NoVoiding: voids(fault: Fault) = false;
    /// The ledger takes any name of a page's grant for the present one.
    NoGrantCheck: same_grant(named: Tag, present: Option<Tag>) = true;
}

/// A step uses its tables whatever the check finds.
#[derive(Debug)]
pub struct NoStepCheck;

impl Swap for NoStepCheck {
    fn entry_verdict(&self, _: Result<(), TableFault>) -> Result<(), TableFault> {
        Ok(())
    }
}
