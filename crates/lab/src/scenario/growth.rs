//! Worlds in which decode runs short of pages while it generates.

use super::{Faults, Prompt, Setup};
use crate::bound::Bound;

/// Two answers that outgrow what they have taken at their tickets; the pool holds the first one
/// whole and a part of the second, which is the longer one and can get ahead.
pub(super) fn two_that_grow(bound: Bound) -> Setup {
    let (first, decode_pages) = match bound {
        Bound::Smoke | Bound::Quick => (4, 5),
        Bound::Deep => (6, 6),
    };
    Setup {
        prompts: vec![Prompt::new(&[1, 1], first), Prompt::new(&[2, 2], 6).of(9)],
        prefill_pages: 4,
        decode_pages,
        ahead: 1,
        ..Setup::default()
    }
}

/// The same, and what may go wrong meanwhile.
pub(super) fn growth_and_faults(bound: Bound) -> Setup {
    let more = u8::from(bound != Bound::Smoke);
    let faults = Faults {
        leaves: 1,
        failed_computes: more,
        ..Faults::default()
    };
    Setup {
        faults,
        ..two_that_grow(bound)
    }
}

/// The same, and the connection between the two breaks, or a deadline passes.
pub(super) fn growth_and_breaks(bound: Bound) -> Setup {
    let faults = match bound {
        Bound::Smoke => Faults {
            deadlines: 1,
            ..Faults::default()
        },
        Bound::Quick | Bound::Deep => Faults {
            breaks: 1,
            deadlines: u8::from(bound == Bound::Deep),
            ..Faults::default()
        },
    };
    // The longer answers of `deep` with two faults are more than can be explored whole.
    Setup {
        faults,
        ..two_that_grow(Bound::Quick)
    }
}

/// Two answers to one prompt, where one of them alone fits.
pub(super) fn choices_that_grow(bound: Bound) -> Setup {
    Setup {
        prompts: vec![Prompt::new(&[1, 1, 1], 5).choices(2)],
        prefill_pages: 4,
        decode_pages: 6,
        ahead: 1,
        faults: Faults {
            stops: u8::from(bound != Bound::Smoke),
            leaves: u8::from(bound == Bound::Deep),
            ..Faults::default()
        },
        ..Setup::default()
    }
}

/// Two prompts of one tenant that begin alike, the beginning out of its cache; the longer answer can
/// get so far ahead that nothing is left for the first.
pub(super) fn cached_growth(_: Bound) -> Setup {
    Setup {
        prompts: vec![
            Prompt::new(&[1, 1], 4).cached(),
            Prompt::new(&[1, 1, 1], 9).cached(),
        ],
        prefill_pages: 6,
        decode_pages: 6,
        context: 12,
        ahead: 1,
        ..Setup::default()
    }
}
