//! Every way to misuse the ledger: refused by name, and nothing is changed by it.

mod scene;

use pages::{Misuse, Needs, PageId, Reason, Seal, State};
use scene::*;

#[test]
fn a_handle_of_another_pool_is_refused_everywhere() {
    let (mut pool, _mint) = pool(4);
    let (mut other, _other_mint) = scene::pool(4);
    // The same page under the same tag: only the pool tells them apart.
    let (grant, twin) = (
        sealed(&mut pool, owner(1), 0, 4),
        sealed(&mut other, owner(1), 0, 4),
    );
    assert_eq!((grant.page(), grant.tag()), (twin.page(), twin.tag()));
    let foreign = Misuse::ForeignHandle(twin.page());

    assert_eq!(pool.expose(&twin, &[]), Err(foreign.clone()));
    assert_eq!(pool.seal(&twin, seal(0, 0)), Err(foreign.clone()));
    assert_eq!(pool.extend(&twin, 4, None), Err(foreign.clone()));
    assert_eq!(pool.seal_of(&twin), Err(foreign.clone()));
    let (twin, misuse) = pool.publish(twin).unwrap_err();
    assert_eq!(misuse, foreign);
    let (twin, misuse) = pool.release(twin).unwrap_err();
    assert_eq!(misuse, foreign);

    let share = other.publish(twin).unwrap();
    assert_eq!(pool.share(&share, HERE), Err(foreign.clone()));
    assert!(!pool.evictable(&share));
    let (share, misuse) = pool.unshare(share).unwrap_err();
    assert_eq!(misuse, foreign);
    let (share, misuse) = pool.evict(share).unwrap_err();
    assert_eq!(misuse, foreign);

    assert_eq!(state(&mut pool, &grant), State::Sealed, "untouched");
    pool.release(grant).unwrap();
    other.evict(share).unwrap();
    assert_eq!((pool.counts().free, other.counts().free), (4, 4));
}

#[test]
fn an_operation_ends_once_and_in_its_own_pool() {
    let (mut pool, _mint) = pool(2);
    let (mut other, _other_mint) = scene::pool(2);
    let grant = one(&mut pool, owner(1));
    let foreign = one(&mut other, owner(1));
    let op = pool.begin(&[], &[grant.page()]).unwrap();
    let twin = other.begin(&[], &[foreign.page()]).unwrap();
    assert_eq!(op.value(), twin.value());

    pool.release(grant).unwrap();
    assert_eq!(pool.end(twin), Err(Misuse::UnknownOp(twin.value())));
    assert_eq!(pool.counts().quarantined, 1, "still being written");
    pool.end(op).unwrap();
    assert_eq!(pool.end(op), Err(Misuse::UnknownOp(op.value())));
    assert_eq!(pool.counts().free, 2);
    let next = pool.begin(&[], &[]).unwrap();
    assert_ne!(next.value(), op.value(), "never used again (H-8)");
    pool.end(next).unwrap();

    other.end(twin).unwrap();
    other.release(foreign).unwrap();
}

/// Linear handles cannot be stale by themselves; a checker that copied one carelessly could be.
#[test]
fn a_stale_handle_is_refused_everywhere() {
    let (mut pool, _mint) = pool(1);
    let grant = sealed(&mut pool, owner(1), 0, 4);
    let stale = pool.fork_grant_for_checker(&grant);
    let share = pool.publish(grant).unwrap();
    let stale_share = pool.fork_share_for_checker(&share);
    drop(pool.fork_grant_for_checker(&stale));
    assert_eq!(state(&mut pool, &stale), State::Cached, "its readers stay");
    pool.evict(share).unwrap();
    let (present, page) = (one(&mut pool, owner(2)), stale.page());
    assert_eq!(present.page(), page, "granted anew");
    let misuse = Misuse::StaleHandle(page);

    assert_eq!(pool.expose(&stale, &[]), Err(misuse.clone()));
    assert_eq!(pool.seal(&stale, seal(0, 0)), Err(misuse.clone()));
    assert_eq!(pool.extend(&stale, 1, None), Err(misuse.clone()));
    assert_eq!(pool.share(&stale_share, HERE), Err(misuse.clone()));
    assert_eq!(pool.unshare(stale_share).unwrap_err().1, misuse);
    let (stale, got) = pool.publish(stale).unwrap_err();
    assert_eq!(got, misuse);
    let (stale, got) = pool.release(stale).unwrap_err();
    assert_eq!(got, misuse);

    // Dropping it is counted, and costs the new owner nothing.
    drop(stale);
    assert_eq!(pool.dropped().0, 2);
    assert_eq!(state(&mut pool, &present), State::Reserved);
    pool.release(present).unwrap();
}

/// A copied share cannot be counted below zero either.
#[test]
fn a_share_given_back_twice_is_refused() {
    let (mut pool, _mint) = pool(1);
    let share = cached(&mut pool, owner(1), 0);
    let twin = pool.fork_share_for_checker(&share);
    let page = share.page();
    let (share, misuse) = pool.unshare(share).unwrap_err();
    assert_eq!(misuse, Misuse::LastShare(page));
    pool.evict(share).unwrap();
    let (twin, misuse) = pool.evict(twin).unwrap_err();
    assert_eq!(misuse, Misuse::StaleHandle(page));
    drop(twin);
}

#[test]
fn a_state_that_does_not_fit_is_named() {
    let (mut pool, _mint) = pool(3);
    let grant = one(&mut pool, owner(1));
    let page = grant.page();
    let wrong = |expected, got| Misuse::WrongState {
        page,
        expected,
        got,
    };

    assert_eq!(
        pool.extend(&grant, 1, None),
        Err(wrong(Needs::Sealed, State::Reserved))
    );
    let (grant, misuse) = pool.publish(grant).unwrap_err();
    assert_eq!(misuse, wrong(Needs::Sealed, State::Reserved));
    pool.expose(&grant, &[]).unwrap();
    let again = pool.expose(&grant, &[]);
    assert_eq!(again, Err(wrong(Needs::Reserved, State::Granted)));
    pool.seal(&grant, seal(0, 0)).unwrap();
    let again = pool.seal(&grant, seal(1, 1));
    assert_eq!(again, Err(wrong(Needs::Unsealed, State::Sealed)));
    assert_eq!(pool.seal_of(&grant), Ok(seal(0, 0)), "the first one stands");
    assert_eq!(
        pool.scrubbed(page),
        Err(wrong(Needs::WaitsForScrub, State::Sealed))
    );
    pool.release(grant).unwrap();
    assert_eq!(
        pool.begin(&[page], &[]),
        Err(wrong(Needs::Readable, State::Free))
    );
}

#[test]
fn a_page_that_does_not_exist_is_named() {
    let (mut pool, _mint) = pool(2);
    let page = PageId::new(2);
    let nothing = Misuse::NoSuchPage(page);
    assert_eq!(pool.holder(page), Err(nothing.clone()));
    assert_eq!(pool.begin(&[page], &[]), Err(nothing.clone()));
    assert_eq!(pool.begin(&[], &[page]), Err(nothing.clone()));
    assert_eq!(pool.scrubbed(page), Err(nothing));
    assert_eq!(pool.operations(), 0);
}

#[test]
fn an_operation_begins_on_all_its_pages_or_on_none() {
    let (mut pool, _mint) = pool(3);
    let mine = one(&mut pool, owner(1));
    let shared = cached(&mut pool, owner(1), 0);
    let free = PageId::new(2);
    assert!(pool.begin(&[mine.page()], &[free]).is_err());
    assert!(pool.begin(&[free, mine.page()], &[]).is_err());
    // Nobody writes what others read.
    assert_eq!(
        pool.begin(&[], &[mine.page(), shared.page()]),
        Err(Misuse::WrongState {
            page: shared.page(),
            expected: Needs::Writable,
            got: State::Cached
        })
    );
    let holder = pool.holder(mine.page()).unwrap();
    assert_eq!((holder.reads, holder.writes, pool.operations()), (0, 0, 0));
    let op = pool
        .begin(&[mine.page(), mine.page(), shared.page()], &[mine.page()])
        .unwrap();
    let holder = pool.holder(mine.page()).unwrap();
    assert_eq!((holder.reads, holder.writes), (1, 1), "once is once");
    pool.end(op).unwrap();
    pool.release(mine).unwrap();
    pool.evict(shared).unwrap();
}

#[test]
fn a_page_being_written_is_neither_sealed_nor_published() {
    let (mut pool, _mint) = pool(2);
    let grant = one(&mut pool, owner(1));
    let page = grant.page();
    let busy = Misuse::Busy {
        page,
        reads: 0,
        writes: 1,
        shares: 0,
    };
    let copy = pool.begin(&[], &[page]).unwrap();
    assert_eq!(pool.seal(&grant, seal(0, 4)), Err(busy.clone()));
    pool.end(copy).unwrap();
    pool.seal(&grant, seal(0, 4)).unwrap();
    let step = pool.begin(&[], &[page]).unwrap();
    let (grant, misuse) = pool.publish(grant).unwrap_err();
    assert_eq!(misuse, busy);
    pool.end(step).unwrap();
    let share = pool.publish(grant).unwrap();

    let reading = pool.begin(&[page], &[]).unwrap();
    let second = pool.share(&share, HERE).unwrap();
    let (share, misuse) = pool.evict(share).unwrap_err();
    assert_eq!(
        misuse,
        Misuse::Busy {
            page,
            reads: 1,
            writes: 0,
            shares: 1
        }
    );
    pool.unshare(second).unwrap();
    assert!(!pool.evictable(&share), "somebody reads it");
    pool.end(reading).unwrap();
    assert!(pool.evictable(&share));
    pool.evict(share).unwrap();
    assert_eq!(pool.counts().free, 2);
}

#[test]
fn fills_only_grow_and_only_full_pages_are_published() {
    let (mut pool, _mint) = pool(1);
    let grant = one(&mut pool, owner(1));
    let page = grant.page();
    let bad = |filled| Misuse::BadFill {
        page,
        filled,
        page_size: PAGE_SIZE,
    };
    assert_eq!(pool.seal(&grant, seal(0, 5)), Err(bad(5)));
    let checked = Seal {
        checksum: Some(9),
        ..seal(0, 3)
    };
    pool.seal(&grant, checked).unwrap();
    assert_eq!(pool.extend(&grant, 2, None), Err(bad(2)));
    assert_eq!(pool.extend(&grant, 5, None), Err(bad(5)));
    assert_eq!(pool.seal_of(&grant), Ok(checked));
    let (grant, misuse) = pool.publish(grant).unwrap_err();
    assert_eq!(
        misuse,
        bad(3),
        "a partly filled page is copied, never shared"
    );
    pool.extend(&grant, 4, None).unwrap();
    assert_eq!(
        pool.seal_of(&grant),
        Ok(seal(0, 4)),
        "the old checksum says nothing of the new slot"
    );
    let share = pool.publish(grant).unwrap();
    pool.evict(share).unwrap();
}

#[test]
fn a_page_is_shared_inside_its_domain_only() {
    let (mut pool, _mint) = pool(1);
    let share = cached(&mut pool, owner(1), 0);
    assert_eq!(
        pool.share(&share, ELSEWHERE),
        Err(Misuse::ForeignDomain {
            page: share.page(),
            owner: HERE,
            asked: ELSEWHERE
        })
    );
    assert_eq!(pool.holder(share.page()).unwrap().shares, 1);
    pool.evict(share).unwrap();
}

#[test]
fn a_shortage_takes_nothing() {
    let (mut pool, _mint) = pool(3);
    let two = pool.reserve(owner(1), 2).unwrap();
    let shortage = pool.reserve(owner(2), 2).unwrap_err();
    assert_eq!((shortage.wanted, shortage.free), (2, 1));
    assert!(pool.reserve(owner(2), usize::MAX).is_err());
    assert_eq!(pool.counts().free, 1);
    assert!(pool.holders().iter().all(|h| h.owner == Some(owner(1))));
    assert!(pool.reserve(owner(2), 0).unwrap().is_empty());
    for grant in two {
        pool.release(grant).unwrap();
    }
}

#[test]
fn a_dropped_grant_costs_its_page_and_nobody_elses() {
    let (mut pool, _mint) = pool(3);
    let grants = pool.reserve(owner(1), 2).unwrap();
    let lost = grants[0].page();
    let reading = pool.begin(&[lost], &[]).unwrap();
    let task = std::thread::spawn(move || {
        let _held = grants;
        panic!("a task that dies with two pages in its hands");
    });
    assert!(task.join().is_err());
    assert_eq!(pool.dropped(), (2, 0));
    assert_eq!(
        pool.holder(lost).unwrap().state,
        State::Quarantined(Reason::Dropped)
    );
    pool.end(reading).unwrap();
    let counts = pool.counts();
    assert_eq!((counts.free, counts.quarantined), (1, 2), "it stays there");
    assert!(pool.reserve(owner(2), 2).is_err());
    assert!(pool.begin(&[lost], &[]).is_err());
}

#[test]
fn a_dropped_share_keeps_its_page_cached_for_ever() {
    let (mut pool, _mint) = pool(1);
    let share = cached(&mut pool, owner(1), 0);
    drop(pool.share(&share, HERE).unwrap());
    assert_eq!(pool.dropped(), (0, 1));
    let (share, misuse) = pool.evict(share).unwrap_err();
    assert!(matches!(misuse, Misuse::Busy { shares: 1, .. }));
    assert_eq!(pool.counts().cached, 1);
    drop(share);
}

#[test]
fn a_page_is_not_freed_under_whoever_uses_it() {
    let (mut pool, _mint) = pool(1);
    let grant = one(&mut pool, owner(1));
    let page = grant.page();
    let (send, copy) = (
        pool.begin(&[page], &[]).unwrap(),
        pool.begin(&[], &[page]).unwrap(),
    );
    pool.release(grant).unwrap();
    for op in [send, copy] {
        assert_eq!(
            pool.holder(page).unwrap().state,
            State::Quarantined(Reason::Operations)
        );
        assert!(pool.reserve(owner(2), 1).is_err());
        pool.end(op).unwrap();
    }
    assert_eq!(pool.counts().free, 1);
}

#[test]
fn every_refusal_says_what_it_is_about() {
    let page = PageId::new(3);
    for (misuse, words) in [
        (Misuse::ForeignHandle(page), "another pool"),
        (Misuse::StaleHandle(page), "granted anew"),
        (Misuse::LastShare(page), "evict it instead"),
        (Misuse::NoSuchPage(page), "not in this pool"),
    ] {
        let said = misuse.to_string();
        assert!(said.contains("PageId(3)") && said.contains(words), "{said}");
    }
    assert!(Misuse::UnknownOp(9).to_string().contains("operation 9"));
}

/// An engine with an allocator of its own says which pages it took: it gets those, or none.
#[test]
fn pages_that_an_engine_names_are_reserved_together_or_not_at_all() {
    let (mut pool, _mint) = pool(4);
    let named = |pages: &[u32]| -> Vec<PageId> { pages.iter().copied().map(PageId::new).collect() };
    let first = pool.reserve_these(owner(1), &named(&[3, 1])).unwrap();
    let got: Vec<_> = first.iter().map(|grant| grant.page().index()).collect();
    assert_eq!(got, [3, 1], "in the order named");
    for refused in [named(&[0, 1]), named(&[0, 0]), named(&[4])] {
        assert!(
            pool.reserve_these(owner(1), &refused).is_err(),
            "{refused:?}"
        );
        assert_eq!(pool.counts().free, 2, "nothing was taken");
    }
    let others = pool.reserve(owner(2), 2).unwrap();
    let tags = first.iter().chain(&others).map(|grant| grant.tag());
    let tags: std::collections::BTreeSet<_> = tags.collect();
    assert_eq!(
        tags.len(),
        4,
        "one sequence of tags, whoever chooses the page (H-8)"
    );
}
