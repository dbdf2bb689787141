//! What an incremental check looks at, counted to the entry: a check that looked at everything
//! would judge alike and be too slow, and only the count can tell.

mod scene;

use pages::{BlockTable, Pool, Step};
use scene::*;

/// Entries compared and changes looked up by the check before a step that writes nothing.
fn cost(pool: &Pool, table: &mut BlockTable) -> usize {
    let step = Step { table, new: 0 };
    pool.verify(vec![step]).unwrap().looked_at()
}

#[test]
fn nothing_has_changed_and_nothing_is_looked_at() {
    let (mut pool, _mint) = pool(4);
    let first = sealed(&mut pool, owner(1), 0, 4);
    let second = sealed(&mut pool, owner(1), 1, 4);
    let mut table = table(owner(1), &[&first, &second], 8);
    assert_eq!(cost(&pool, &mut table), 2, "the first check sees both");
    // No page is cached in the domain, so nothing is known of its cache; nobody has to ask.
    assert_eq!(cost(&pool, &mut table), 0);
    pool.release(first).unwrap();
    pool.release(second).unwrap();
}

#[test]
fn a_table_of_shares_alone_asks_nothing_about_its_owner() {
    let (mut pool, _mint) = pool(2);
    let shares = [
        cached(&mut pool, owner(9), 0),
        cached(&mut pool, owner(9), 1),
    ];
    // Its owner holds no page, so nothing is known of that owner's pages.
    let mut table = BlockTable::new(owner(1), PAGE_SIZE);
    shares.iter().for_each(|share| table.push_shared(share));
    table.advance_to(8);
    assert_eq!(cost(&pool, &mut table), 2);
    assert_eq!(cost(&pool, &mut table), 0);
    for share in shares {
        pool.evict(share).unwrap();
    }
}

#[test]
fn a_change_elsewhere_costs_its_mention() {
    let (mut pool, _mint) = pool(5);
    let grants = [0, 1, 2].map(|ordinal| sealed(&mut pool, owner(1), ordinal, 4));
    let mut table = table(owner(1), &[&grants[0], &grants[1]], 8);
    assert_eq!(cost(&pool, &mut table), 2);
    let [first, second, unused] = grants;
    let others = [0, 1].map(|_| one(&mut pool, owner(1)));
    // Three pages of the owner that the table does not name are given back.
    pool.release(unused).unwrap();
    for grant in others {
        pool.release(grant).unwrap();
    }
    assert_eq!(cost(&pool, &mut table), 3, "three changes, no entry");
    assert_eq!(cost(&pool, &mut table), 0, "and not again");
    pool.release(first).unwrap();
    pool.release(second).unwrap();
}

/// The newest entry is looked at because it is new, and not once more because it changed.
#[test]
fn a_new_entry_is_looked_at_once() {
    let (mut pool, _mint) = pool(2);
    let first = sealed(&mut pool, owner(1), 0, 4);
    let second = sealed(&mut pool, owner(1), 1, 4);
    let mut table = table(owner(1), &[&first], 4);
    assert_eq!(cost(&pool, &mut table), 1);
    let share = pool.publish(second).unwrap();
    table.push_shared(&share);
    // It is cached in a domain of which the last check knew nothing: everything is looked at.
    assert_eq!(cost(&pool, &mut table), 2);
    table.advance_to(8);
    assert_eq!(cost(&pool, &mut table), 1, "the entry that was filled");
    pool.evict(share).unwrap();
    pool.release(first).unwrap();
}

/// The same where the domain's cache is known: one change, one new entry.
#[test]
fn a_new_entry_that_changed_is_looked_at_once() {
    let (mut pool, _mint) = pool(4);
    let prefix = cached(&mut pool, owner(9), 0);
    let mut table = BlockTable::new(owner(1), PAGE_SIZE);
    table.push_shared(&prefix);
    let second = sealed(&mut pool, owner(1), 1, 4);
    let third = sealed(&mut pool, owner(1), 2, 4);
    table.push_own(&second);
    table.advance_to(8);
    assert_eq!(cost(&pool, &mut table), 2);
    let share = pool.publish(third).unwrap();
    table.push_shared(&share);
    assert_eq!(cost(&pool, &mut table), 2, "the change, and the new entry");
    pool.evict(share).unwrap();
    pool.evict(prefix).unwrap();
    pool.release(second).unwrap();
}
