//! Defects that real systems had, or that this design could have had: each is one decision of the
//! shipped code, swapped.
//!
//! A defect is a type that implements the decisions with one method overridden, and a line in
//! [`ALL`]. The type goes through the whole world as a parameter, so that what is explored with it
//! is the shipped code, compiled once more around that one method; the product names
//! [`pages::Sound`] and nothing else.

mod coverage;

use checker::run::Runner;
use checker::scenario::Setup;
use checker::world::{Act, World};

/// A world with a defect, or without.
pub(crate) type Defective = Box<dyn Runner<Act>>;

/// One defect of the specification's table.
pub(crate) struct Defect {
    /// `D-01` …
    pub id: &'static str,
    /// What is decided wrongly.
    pub what: &'static str,
    /// A world with it.
    pub world: fn(Setup) -> Defective,
}

/// All that there are, by id.
pub(crate) const ALL: &[Defect] = &[Defect {
    id: "D-02",
    what: "pages sent are never compared with pages reserved",
    world: |setup| with(setup, coverage::NotCompared),
}];

/// The defect of this id, in either case and with or without the dash.
pub(crate) fn find(id: &str) -> Option<&'static Defect> {
    let plain = |id: &str| id.replace('-', "").to_uppercase();
    ALL.iter().find(|defect| plain(defect.id) == plain(id))
}

/// The world as it is shipped.
pub(crate) fn none(setup: Setup) -> Defective {
    with(setup, pages::Sound)
}

fn with<J: handoff::Decisions>(setup: Setup, decisions: J) -> Defective {
    Box::new(World::with_decisions(setup, decisions))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_defect_is_found_by_its_id_however_it_is_typed() {
        assert_eq!(find("d02").map(|defect| defect.id), Some("D-02"));
        assert!(find("D-99").is_none());
        assert!(ALL.is_sorted_by_key(|defect| defect.id));
    }
}
