//! Defects that real systems had, or that this design could have had: each is one decision of the
//! shipped code, swapped.
//!
//! A defect is a unit struct with one method of [`swap::Swap`] overridden, and a row in
//! [`list::ALL`]. It goes through the whole world as the machines' type parameter, so that what is
//! explored with it is the shipped code; the product names [`handoff::Sound`] and nothing else.
//! `docs/defects.md` is generated from the rows and what the checker finds for them; [`unsayable`]
//! lists those that do not compile.
//!
//! To add one: a struct in `admission`, `arrival`, `release` or `messages` that overrides the method
//! of the decision, a row in `list`, and `DEFECTS_UPDATE=1 cargo test -p lab defects`.

pub mod admission;
pub mod arrival;
pub mod hunt;
pub mod list;
pub mod messages;
pub mod release;
pub mod safeguards;
pub mod swap;
#[cfg(test)]
mod table;
pub mod worlds;

pub mod unsayable;

pub use list::ALL;

use crate::run::Runner;
use crate::scenario::{Mode, Setup};
use crate::world::{Act, World};
use swap::{Swap, Swapped};

/// A world with a defect, or without.
pub type Defective = Box<dyn Runner<Act>>;

/// One defect of the specification's table.
pub struct Defect {
    /// `D-01` …
    pub id: &'static str,
    /// What is decided wrongly.
    pub what: &'static str,
    /// Which systems had it.
    pub seen: &'static str,
    /// A world with it, its trigger included.
    pub world: fn(Setup) -> Defective,
    /// The decision that is swapped, then those of its trigger.
    pub swaps: &'static [&'static dyn Swap],
    /// What it needs to show.
    pub trigger: &'static str,
    /// The world in which it is shown.
    pub shown_in: &'static str,
    /// Where writes land there.
    pub mode: Mode,
    /// The sound decision that stops it, and where it is taken.
    pub decision: &'static str,
    /// How far it gets if more is gone.
    pub behind: &'static [Behind],
}

/// A defect with safeguards behind it gone.
pub struct Behind {
    /// Which.
    pub gone: &'static str,
    /// All decisions that are swapped then.
    pub swaps: &'static [&'static dyn Swap],
}

/// The defect of this id, in either case and with or without the dash.
pub fn find(id: &str) -> Option<&'static Defect> {
    let plain = |id: &str| id.replace('-', "").to_uppercase();
    ALL.iter().find(|defect| plain(defect.id) == plain(id))
}

/// The world as it is shipped.
pub fn none(setup: Setup) -> Defective {
    Box::new(World::new(setup))
}

fn with(setup: Setup, swaps: &'static [&'static dyn Swap]) -> Defective {
    Box::new(World::with_decisions(setup, Swapped(swaps)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_defect_is_found_by_its_id_however_it_is_typed() {
        assert_eq!(find("d02").map(|defect| defect.id), Some("D-02"));
        assert!(find("D-xx").is_none());
    }

    #[test]
    fn every_row_of_the_specification_is_there_once() {
        let ids: Vec<String> = (1..=32).map(|n| format!("D-{n:02}")).collect();
        let here: Vec<&str> = ALL.iter().map(|defect| defect.id).collect();
        assert_eq!(here, ids);
    }
}
