//! What CI runs of the rounds and of the soak, with fixed seeds; `./soak` runs more of both.

use crate::{ATTACK, CONTEXT, model};
use faults::{Phase, Series, Soaking, rounds, soak};
use std::time::Duration;

/// One kill of each part in each phase: everybody hears the right answer or a clear 5xx, pools are
/// whole and nothing is left of the killed.
#[test]
fn one_kill_of_every_part_in_every_phase() {
    let report = rounds(&Series {
        program: ATTACK.into(),
        model: model(),
        context: CONTEXT,
        rounds: 18,
        clients: 5,
        seed: 1,
        words: Vec::new(),
    });
    println!("{report}");
    for phase in Phase::ALL {
        assert!(report.of_phase(phase) > 0, "{phase:?} was never hit");
    }
}

/// 60 seconds of mixed load with all faults at random.
#[test]
fn sixty_seconds_of_soak() {
    println!("{}", soak(&soaking(60, true)));
}

/// Law: zero false alarms. Without faults there is nothing to find.
#[test]
fn without_faults_nothing_is_found() {
    println!("{}", soak(&soaking(8, false)));
}

fn soaking(seconds: u64, faults: bool) -> Soaking {
    Soaking {
        program: ATTACK.into(),
        model: model(),
        context: CONTEXT,
        time: Duration::from_secs(seconds),
        clients: 5,
        faults,
        seed: 11,
        words: Vec::new(),
    }
}
