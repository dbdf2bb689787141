//! Every lie that a block table can tell, told once: by hand, so that each has its example.

mod scene;

use pages::{BlockTable, Owner, PageId, Step, TableFault};
use scene::*;

#[test]
fn a_true_table_is_read_in_its_order() {
    let (mut pool, _mint) = pool(4);
    let shared = cached(&mut pool, owner(9), 0);
    let grants = [
        sealed(&mut pool, owner(1), 1, 4),
        sealed(&mut pool, owner(1), 2, 1),
        sealed(&mut pool, owner(1), 3, 0),
    ];
    let mut table = BlockTable::new(owner(1), PAGE_SIZE);
    table.push_shared(&shared);
    grants.iter().for_each(|grant| table.push_own(grant));
    table.advance_to(9);
    assert_eq!(table.capacity(), 16);
    let named: Vec<_> = table.pages().collect();
    let verified = pool
        .verify(vec![Step {
            table: &mut table,
            new: 2,
        }])
        .unwrap();
    assert_eq!(verified.page_size(), 4);
    let sequence = &verified.sequences()[0];
    assert_eq!((sequence.start(), sequence.new_tokens()), (9, 2));
    let read: Vec<PageId> = sequence.pages().collect();
    assert_eq!(read, named[..3], "only pages that the step touches");
    for position in 0..11 {
        assert_eq!(sequence.page_of(position), named[position / 4]);
    }
    assert_eq!(sequence.page_of(0), shared.page());
    assert_eq!(sequence.page_of(10), grants[1].page());
    for grant in grants {
        pool.release(grant).unwrap();
    }
    pool.evict(shared).unwrap();
}

#[test]
#[should_panic(expected = "position behind the verified step")]
fn nothing_behind_the_step_can_be_read() {
    let (mut pool, _mint) = pool(1);
    let grant = sealed(&mut pool, owner(1), 0, 0);
    let mut table = table(owner(1), &[&grant], 0);
    let step = Step {
        table: &mut table,
        new: 2,
    };
    let verified = pool.verify(vec![step]).unwrap();
    let _ = verified.sequences()[0].page_of(2);
}

/// D-11, ABA: the page is the same, sealed alike for the same place; the tag is not.
#[test]
fn a_page_granted_anew_is_not_the_page_that_was() {
    let (mut pool, _mint) = pool(1);
    let first = sealed(&mut pool, owner(1), 0, 4);
    let mut table = table(owner(1), &[&first], 4);
    accepted(&pool, &mut table, 0);
    let page = first.page();
    pool.release(first).unwrap();
    let second = sealed(&mut pool, owner(1), 0, 4);
    assert_eq!(second.page(), page);
    let fault = fault(&pool, &mut table, 0);
    assert_eq!((fault.page, fault.ordinal), (Some(page), 0));
    assert_eq!(fault.kind, TableFault::GrantedAnew);
    assert!(fault.to_string().contains("refused at ordinal 0"));
    pool.release(second).unwrap();
}

/// The same through the cache: the reader's own share is back, the page is somebody else's.
#[test]
fn an_evicted_page_is_not_read_through_an_old_table() {
    let (mut pool, _mint) = pool(2);
    let share = cached(&mut pool, owner(9), 0);
    let mine = pool.share(&share, HERE).unwrap();
    let mut table = BlockTable::new(owner(1), PAGE_SIZE);
    table.push_shared(&mine);
    table.advance_to(4);
    accepted(&pool, &mut table, 0);
    pool.unshare(mine).unwrap();
    accepted(&pool, &mut table, 0);
    pool.evict(share).unwrap();
    let other = Owner {
        domain: ELSEWHERE,
        ..owner(2)
    };
    let stolen = sealed(&mut pool, other, 0, 4);
    let fault = fault(&pool, &mut table, 0);
    assert_eq!(fault.kind, TableFault::GrantedAnew);
    pool.release(stolen).unwrap();
}

#[test]
fn a_page_has_one_place_in_one_sequence_of_one_owner() {
    let (mut pool, _mint) = pool(3);
    let first = sealed(&mut pool, owner(1), 0, 4);
    let second = sealed(&mut pool, owner(1), 1, 4);
    let foreign = sealed(&mut pool, owner(2), 1, 4);

    let mut swapped = table(owner(1), &[&second, &first], 8);
    let told = fault(&pool, &mut swapped, 0);
    assert_eq!(told.ordinal, 0);
    assert_eq!(told.kind, TableFault::OtherPlace);

    let mut twice = table(owner(1), &[&first, &first], 8);
    assert_eq!(fault(&pool, &mut twice, 0).ordinal, 1);

    let mut stolen = table(owner(1), &[&first, &foreign], 8);
    assert_eq!(fault(&pool, &mut stolen, 0).kind, TableFault::OtherOwner);

    let elsewhere = Owner {
        domain: ELSEWHERE,
        ..owner(1)
    };
    let mut disguised = table(elsewhere, &[&first], 4);
    assert_eq!(fault(&pool, &mut disguised, 0).kind, TableFault::OtherOwner);
    for grant in [first, second, foreign] {
        pool.release(grant).unwrap();
    }
}

#[test]
fn a_choice_reads_the_prompt_and_itself_and_writes_itself() {
    let (mut pool, _mint) = pool(3);
    let prompt = sealed(&mut pool, lane(1, 0), 0, 3);
    let first = sealed(&mut pool, lane(1, 1), 1, 0);
    let second = sealed(&mut pool, lane(1, 2), 1, 0);

    let mut mixed = table(lane(1, 1), &[&prompt, &second], 3);
    let told = fault(&pool, &mut mixed, 0);
    assert_eq!(told.kind, TableFault::OtherChoice);

    let mut choice = table(lane(1, 1), &[&prompt, &first], 3);
    accepted(&pool, &mut choice, 0);
    let told = fault(&pool, &mut choice, 1);
    assert_eq!((told.ordinal, told.kind), (0, TableFault::WritesOtherLane));

    pool.extend(&prompt, 4, None).unwrap();
    choice.advance_to(4);
    accepted(&pool, &mut choice, 1);
    for grant in [prompt, first, second] {
        pool.release(grant).unwrap();
    }
}

#[test]
fn a_cached_page_is_read_in_its_domain_and_written_by_nobody() {
    let (mut pool, _mint) = pool(1);
    let share = cached(&mut pool, owner(1), 0);
    let mut mine = BlockTable::new(owner(2), PAGE_SIZE);
    mine.push_shared(&share);
    mine.advance_to(3);
    accepted(&pool, &mut mine, 0);
    assert_eq!(fault(&pool, &mut mine, 1).kind, TableFault::WritesShared);
    let stranger = Owner {
        domain: ELSEWHERE,
        ..owner(2)
    };
    let mut theirs = BlockTable::new(stranger, PAGE_SIZE);
    theirs.push_shared(&share);
    let told = fault(&pool, &mut theirs, 0);
    assert_eq!(told.kind, TableFault::OtherDomain);
    pool.evict(share).unwrap();
}

/// The owner published a page and its table does not know: nothing of it may be written any more.
#[test]
fn a_published_page_is_the_owners_no_more() {
    let (mut pool, _mint) = pool(1);
    let grant = sealed(&mut pool, owner(1), 0, 4);
    let mut table = table(owner(1), &[&grant], 4);
    accepted(&pool, &mut table, 0);
    let share = pool.publish(grant).unwrap();
    assert_eq!(fault(&pool, &mut table, 0).kind, TableFault::NotSealed);
    let mut anew = BlockTable::new(owner(1), PAGE_SIZE);
    anew.push_shared(&share);
    anew.advance_to(4);
    accepted(&pool, &mut anew, 0);
    pool.evict(share).unwrap();
}

#[test]
fn two_sequences_do_not_write_one_page_in_one_step() {
    let (mut pool, _mint) = pool(1);
    let grant = sealed(&mut pool, owner(1), 0, 1);
    let mut one = table(owner(1), &[&grant], 1);
    let mut two = one.clone();
    accepted(&pool, &mut one, 1);
    accepted(&pool, &mut two, 1);
    let (table, new) = (&mut one, 1);
    let steps = vec![
        Step { table, new },
        Step {
            table: &mut two,
            new,
        },
    ];
    let fault = pool.verify(steps).unwrap_err();
    assert_eq!(fault.kind, TableFault::WrittenTwice);
    assert_eq!(fault.page, Some(grant.page()));
    pool.release(grant).unwrap();
}

/// H-3: whichever two of a step's sequences they are, and however many others stand between them.
#[test]
fn no_two_of_many_sequences_write_one_page_in_one_step() {
    // Choices of one request and other requests: what is written twice is a lane's of its own.
    const N: usize = 5;
    let owners = [lane(1, 1), owner(2), lane(1, 2), lane(1, 3), owner(3)];
    let (mut pool, _mint) = pool(N as u32);
    let grants = owners.map(|by| sealed(&mut pool, by, 0, 1));
    let of = |at: usize| table(owners[at], &[&grants[at]], 1);
    for order in [
        [0, 1, 2, 3, 4],
        [4, 3, 2, 1, 0],
        [2, 0, 4, 1, 3],
        [1, 4, 0, 3, 2],
    ] {
        let mut all: Vec<_> = order.iter().map(|at| of(*at)).collect();
        let steps = all.iter_mut().map(|table| Step { table, new: 1 }).collect();
        assert_eq!(pool.verify(steps).unwrap().sequences().len(), N);
        for (again, grant) in grants.iter().enumerate() {
            for place in 0..=N {
                let mut all: Vec<_> = order.iter().map(|at| of(*at)).collect();
                all.insert(place, of(again));
                let steps = all.iter_mut().map(|table| Step { table, new: 1 }).collect();
                let fault = pool.verify(steps).unwrap_err();
                let kind = TableFault::WrittenTwice;
                let found = (fault.kind, fault.page, fault.owner);
                let page = grant.page();
                assert_eq!(found, (kind, Some(page), owners[again].id), "{order:?}");
            }
        }
    }
    grants
        .into_iter()
        .for_each(|grant| pool.release(grant).unwrap());
}

/// An operation holds a page once, in whatever order and however often it is named.
#[test]
fn a_page_that_is_named_again_is_held_once_and_let_go_at_the_end() {
    let (mut pool, _mint) = pool(3);
    let grants: Vec<_> = (0..3)
        .map(|id| sealed(&mut pool, owner(id), 0, 1))
        .collect();
    let pages: Vec<PageId> = grants.iter().map(|grant| grant.page()).collect();
    for named in [[0, 1, 0], [1, 0, 1], [2, 1, 2], [0, 0, 0]] {
        let named: Vec<PageId> = named.iter().map(|at| pages[*at]).collect();
        let op = pool.begin(&named, &named).unwrap();
        for page in &pages {
            let holder = pool.holder(*page).unwrap();
            let held = u32::from(named.contains(page));
            assert_eq!((holder.reads, holder.writes), (held, held), "{named:?}");
        }
        pool.end(op).unwrap();
        let free = |page: &PageId| pool.holder(*page).is_ok_and(|h| h.reads + h.writes == 0);
        assert!(pages.iter().all(free));
    }
    grants
        .into_iter()
        .for_each(|grant| pool.release(grant).unwrap());
    assert_eq!(pool.counts().free, 3);
}

/// H-2: nothing is read behind what was filled.
#[test]
fn tokens_need_pages_and_filled_slots() {
    let (mut pool, _mint) = pool(2);
    let first = sealed(&mut pool, owner(1), 0, 2);
    let second = sealed(&mut pool, owner(1), 1, 0);
    let beyond = TableFault::TooFewPages;
    let mut table = table(owner(1), &[&first, &second], 2);
    accepted(&pool, &mut table, 6);
    assert_eq!(fault(&pool, &mut table, 7).kind, beyond);
    assert_eq!(fault(&pool, &mut table, u32::MAX).kind, beyond);
    table.advance_to(9);
    assert_eq!(fault(&pool, &mut table, 0).kind, beyond);

    // The table runs ahead of what was sealed, although it was right when it was last checked.
    table.advance_to(5);
    let told = fault(&pool, &mut table, 0);
    assert_eq!(told.ordinal, 0);
    assert_eq!(told.kind, TableFault::TooFewSlots);
    pool.extend(&first, 4, None).unwrap();
    assert_eq!(fault(&pool, &mut table, 0).ordinal, 1);
    pool.extend(&second, 1, None).unwrap();
    accepted(&pool, &mut table, 3);

    // Going back would overwrite what was sealed (H-1; a late write, D-21, would look like this).
    table.advance_to(3);
    accepted(&pool, &mut table, 0);
    let told = fault(&pool, &mut table, 1);
    assert_eq!(told.kind, TableFault::WritesSealed);
    for grant in [first, second] {
        pool.release(grant).unwrap();
    }
}

#[test]
fn a_table_without_pages_holds_nothing() {
    let (pool, _mint) = pool(1);
    let mut empty = BlockTable::new(owner(1), PAGE_SIZE);
    accepted(&pool, &mut empty, 0);
    assert_eq!(fault(&pool, &mut empty, 1).page, None);
    let kind = TableFault::OtherPageSize;
    for page_size in [0, 8] {
        let mut other = BlockTable::new(owner(1), page_size);
        assert_eq!(fault(&pool, &mut other, 0).kind, kind);
    }
}

/// Page numbers, tags and owners of two pools may all coincide.
#[test]
fn a_table_of_another_pool_is_refused() {
    let (mut pool, _mint) = pool(2);
    let (mut other, _other_mint) = scene::pool(2);
    let here = sealed(&mut pool, owner(1), 0, 4);
    let there = sealed(&mut other, owner(1), 0, 4);
    let behind = sealed(&mut other, owner(1), 1, 4);
    let mut theirs = table(owner(1), &[&there], 4);
    accepted(&other, &mut theirs, 0);
    assert_eq!(
        fault(&pool, &mut theirs, 0).kind,
        TableFault::TableOfAnotherPool
    );
    let mut mixed = table(owner(1), &[&here, &behind], 8);
    for pool in [&pool, &other] {
        let told = fault(pool, &mut mixed, 0);
        assert_eq!(
            (told.ordinal, told.kind),
            (1, TableFault::PageOfAnotherPool)
        );
    }
    mixed.push_own(&here);
    let told = fault(&pool, &mut mixed, 0);
    assert_eq!(told.ordinal, 1, "the first of them is named");
    pool.release(here).unwrap();
    other.release(there).unwrap();
    other.release(behind).unwrap();
}

/// Nobody has told the pool yet, and a check cannot sweep: it refuses all the same.
#[test]
fn a_page_whose_grant_was_dropped_is_refused_at_once() {
    let (mut pool, _mint) = pool(2);
    let kept = sealed(&mut pool, owner(1), 0, 4);
    let dropped = sealed(&mut pool, owner(1), 1, 4);
    let mut table = table(owner(1), &[&kept, &dropped], 8);
    accepted(&pool, &mut table, 0);
    drop(dropped);
    let told = fault(&pool, &mut table, 0);
    assert_eq!((told.ordinal, told.kind), (1, TableFault::GrantDropped));
    assert_eq!(pool.counts().quarantined, 1);
    assert_eq!(fault(&pool, &mut table, 0).kind, TableFault::NotSealed);
    pool.release(kept).unwrap();
}

/// An owner that gave everything back leaves no record of changes; its tables are not taken for
/// checked because of that.
#[test]
fn a_table_outlives_its_owner_and_is_refused() {
    let (mut pool, _mint) = pool(2);
    let grant = sealed(&mut pool, owner(1), 0, 4);
    let mut table = table(owner(1), &[&grant], 4);
    accepted(&pool, &mut table, 0);
    pool.release(grant).unwrap();
    assert_eq!(fault(&pool, &mut table, 0).ordinal, 0);
    let again = pool.reserve(owner(1), 2).unwrap();
    assert_eq!(fault(&pool, &mut table, 0).ordinal, 0);
    for grant in again {
        pool.release(grant).unwrap();
    }
}

/// More happened since the last check than the pool remembers: then everything is looked at.
#[test]
fn a_table_that_slept_through_too_much_is_checked_in_full() {
    let n = 5_000; // more than either record of changes keeps
    let (mut pool, _mint) = pool(2 * n);
    let mut own = BlockTable::new(owner(1), PAGE_SIZE);
    let mut shared = BlockTable::new(owner(2), PAGE_SIZE);
    let mut grants = Vec::new();
    let mut shares = Vec::new();
    for ordinal in 0..n {
        let grant = sealed(&mut pool, owner(1), ordinal, 4);
        own.push_own(&grant);
        grants.push(grant);
        let share = cached(&mut pool, owner(3), ordinal);
        shared.push_shared(&share);
        shares.push(share);
    }
    accepted(&pool, &mut own, 0);
    accepted(&pool, &mut shared, 0);
    let (last, last_share) = (grants.pop().unwrap(), shares.pop().unwrap());
    for (grant, share) in grants.into_iter().zip(shares) {
        pool.release(grant).unwrap();
        pool.evict(share).unwrap();
    }
    for table in [&mut own, &mut shared] {
        let told = fault(&pool, table, 0);
        assert_eq!(told.ordinal, 0, "the first change is the first forgotten");
    }
    pool.release(last).unwrap();
    pool.evict(last_share).unwrap();
}

#[test]
fn verified_tables_may_be_read_by_many_threads() {
    fn shared_by_threads<T: Send + Sync>() {}
    shared_by_threads::<pages::Verified<'static>>();
    shared_by_threads::<pages::Pool>();
    shared_by_threads::<pages::Grant>();
}
