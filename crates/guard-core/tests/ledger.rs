//! The ledger under an engine that allocates by itself, rightly and wrongly.

use guard_core::{HoldId, Ledger, LedgerFault};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// H-8: a tag names one grant of one block, for ever.
#[test]
fn a_block_that_is_handed_out_again_stands_under_another_tag() {
    let mut ledger = Ledger::new(4, 16);
    let first = ledger.allocate(7, &[2, 0]).unwrap();
    assert_eq!(ledger.check(7, &[2, 0], &first), Ok(()));
    let again = ledger.allocate(7, &[2]).unwrap();
    assert!(again[0] > first[0].max(first[1]));
    let stale = LedgerFault::Stale {
        block: 2,
        named: first[0],
        present: again[0],
    };
    assert_eq!(ledger.check(7, &[2, 0], &first), Err(stale));
    assert_eq!(
        ledger.check(7, &[0], &first[1..]),
        Ok(()),
        "the other is untouched"
    );
    assert_eq!(ledger.tags(), [first[1], 0, again[0], 0]);
}

/// H-3: no page is freed while someone may still write or read it.
#[test]
fn a_held_block_is_not_handed_out_until_its_last_operation_has_ended() {
    let mut ledger = Ledger::new(3, 16);
    let tags = ledger.allocate(0, &[0, 1, 2]).unwrap();
    let send = ledger.hold(&[0, 1], &[]).unwrap();
    let receive = ledger.hold(&[], &[1]).unwrap();
    let held = Err(LedgerFault::Held(vec![0, 1]));
    assert_eq!(ledger.allocate(0, &[0, 1, 2]), held);
    assert_eq!(
        ledger.check(0, &[0, 1, 2], &tags),
        Ok(()),
        "nothing was changed"
    );
    ledger.release(&[0, 1]).unwrap();
    assert_eq!((ledger.counts().quarantined, ledger.counts().free), (2, 0));
    ledger.end_hold(send).unwrap();
    assert!(ledger.allocate(0, &[0]).is_ok());
    assert_eq!(ledger.allocate(0, &[1]), Err(LedgerFault::Held(vec![1])));
    ledger.end_hold(receive).unwrap();
    assert!(ledger.allocate(0, &[1]).is_ok());
    assert_eq!(ledger.end_hold(send), Err(LedgerFault::NoHold(send.0)));
}

/// H-13: a block of one domain is never read in another.
#[test]
fn a_block_of_another_domain_is_refused() {
    let mut ledger = Ledger::new(2, 16);
    let tags = ledger.allocate(1, &[0]).unwrap();
    let foreign = Err(LedgerFault::ForeignDomain { block: 0 });
    assert_eq!(ledger.check(2, &[0], &tags), foreign);
}

#[test]
fn quarantine_is_for_good() {
    let mut ledger = Ledger::new(2, 16);
    ledger.allocate(1, &[0]).unwrap();
    ledger.quarantine(&[0, 1]).unwrap();
    assert_eq!(ledger.counts().quarantined, 2);
    assert_eq!(ledger.allocate(1, &[0]), Err(LedgerFault::Held(vec![0])));
    assert_eq!(ledger.allocate(1, &[1]), Err(LedgerFault::Held(vec![1])));
}

#[test]
fn what_does_not_exist_is_named() {
    let mut ledger = Ledger::new(2, 16);
    assert_eq!(ledger.allocate(1, &[2]), Err(LedgerFault::NoBlock(2)));
    assert_eq!(ledger.allocate(1, &[1, 1]), Err(LedgerFault::Twice(1)));
    assert_eq!(ledger.hold(&[0], &[]), Err(LedgerFault::NoBlock(0)));
    assert_eq!(ledger.check(1, &[9], &[1]), Err(LedgerFault::NoBlock(9)));
    let untagged = LedgerFault::Stale {
        block: 0,
        named: 0,
        present: 0,
    };
    assert_eq!(ledger.check(0, &[0], &[0]), Err(untagged), "0 is no tag");
}

#[derive(Clone, Debug)]
enum Act {
    Allocate(BTreeSet<u32>),
    Release(u32),
    Hold(u32),
    EndOldest,
}

fn act() -> impl Strategy<Value = Act> {
    let block = 0u32..6;
    prop_oneof![
        proptest::collection::btree_set(block.clone(), 1..4).prop_map(Act::Allocate),
        block.clone().prop_map(Act::Release),
        block.prop_map(Act::Hold),
        Just(Act::EndOldest),
    ]
}

proptest! {
    /// H-3, H-8 and H-10 under any order of calls, against a model that counts holds a block.
    #[test]
    fn any_engine(acts in proptest::collection::vec(act(), 0..80)) {
        let mut ledger = Ledger::new(6, 16);
        let mut holds: BTreeMap<HoldId, u32> = BTreeMap::new();
        let mut last = 0;
        for act in acts {
            let is_held = |block: &u32| holds.values().any(|held| held == block);
            match act {
                Act::Allocate(blocks) => {
                    let held: Vec<_> = blocks.iter().copied().filter(|b| is_held(b)).collect();
                    let blocks: Vec<_> = blocks.into_iter().collect();
                    match ledger.allocate(3, &blocks) {
                        Ok(tags) => {
                            prop_assert!(held.is_empty());
                            prop_assert!(tags.iter().all(|tag| *tag > last));
                            last = tags.iter().copied().max().unwrap_or(last);
                            prop_assert_eq!(ledger.check(3, &blocks, &tags), Ok(()));
                        }
                        Err(fault) => prop_assert_eq!(fault, LedgerFault::Held(held)),
                    }
                }
                Act::Release(block) => prop_assert_eq!(ledger.release(&[block]), Ok(())),
                Act::Hold(block) => {
                    if let Ok(id) = ledger.hold(&[block], &[]) {
                        holds.insert(id, block);
                    }
                }
                Act::EndOldest => {
                    if let Some((id, _)) = holds.pop_first() {
                        prop_assert_eq!(ledger.end_hold(id), Ok(()));
                    }
                }
            }
            prop_assert_eq!(ledger.counts().total(), 6);
            prop_assert_eq!(ledger.holds(), holds.len());
        }
    }
}
