//! Direct mode: remote writers write the pages themselves, and only proofs give the pages back
//! (H-3; law: no page is freed while someone may still write or read it).

mod scene;

use pages::{Epoch, Misuse, OwnerId, ProofScope, Reason, State, TableFault, WriterLife};
use scene::*;

const WRITERS: State = State::Quarantined(Reason::Writers);

#[test]
fn a_page_is_freed_when_the_last_of_its_writers_is_proved_gone() {
    let (mut pool, mint) = pool(1);
    let grant = one(&mut pool, owner(1));
    let page = grant.page();
    pool.expose(&grant, &[life(0), life(1), life(1)]).unwrap();
    assert_eq!(pool.holder(page).unwrap().open, [life(0), life(1)]);
    pool.release(grant).unwrap();
    pool.writer_gone(mint.closed(life(0), OwnerId::new(1)));
    pool.writer_gone(mint.closed(life(0), OwnerId::new(1)));
    assert_eq!(pool.holder(page).unwrap().state, WRITERS);
    pool.writer_gone(mint.fenced(life(1)));
    assert_eq!(pool.counts().free, 1);
}

/// D-19, D-11: a new life is another writer; a certificate is about one owner.
#[test]
fn a_proof_about_another_life_or_owner_proves_nothing() {
    let (mut pool, mint) = pool(2);
    let grant = one(&mut pool, owner(1));
    let neighbour = one(&mut pool, owner(2));
    let page = grant.page();
    pool.expose(&grant, &[life(0)]).unwrap();
    pool.expose(&neighbour, &[life(0)]).unwrap();
    pool.release(grant).unwrap();

    for bit in 0..128 {
        let reborn = WriterLife {
            epoch: Epoch::new(life(0).epoch.bits() ^ (1 << bit)),
            rank: 0,
        };
        pool.writer_gone(mint.fenced(reborn));
        pool.writer_gone(mint.closed(reborn, OwnerId::new(1)));
    }
    for bit in 0..16 {
        pool.writer_gone(mint.fenced(life(1 << bit)));
    }
    for bit in 0..64 {
        pool.writer_gone(mint.closed(life(0), OwnerId::new(1 ^ (1 << bit))));
    }
    assert_eq!(pool.holder(page).unwrap().state, WRITERS);
    assert_eq!(pool.holder(neighbour.page()).unwrap().open.len(), 1);
    pool.writer_gone(mint.closed(life(0), OwnerId::new(2)));
    assert_eq!(pool.holder(page).unwrap().state, WRITERS);
    let told = pool.holder(neighbour.page()).unwrap();
    assert_eq!((told.state, told.open.len()), (State::Granted, 0));
    pool.writer_gone(mint.closed(life(0), OwnerId::new(1)));
    pool.release(neighbour).unwrap();
    assert_eq!(pool.counts().free, 2);
}

#[test]
fn a_proof_of_another_pool_is_refused_and_counted() {
    let (mut pool, mint) = pool(1);
    let (_other, other_mint) = scene::pool(1);
    let grant = one(&mut pool, owner(1));
    let page = grant.page();
    pool.expose(&grant, &[life(0)]).unwrap();
    pool.release(grant).unwrap();
    let forged = other_mint.lend().fenced(life(0));
    assert!(!pool.recognises(&forged));
    pool.writer_gone(forged);
    pool.writer_gone(other_mint.closed(life(0), OwnerId::new(1)));
    assert_eq!(pool.refused_proofs(), 2);
    assert_eq!(pool.holder(page).unwrap().state, WRITERS);
    let proof = mint.lend().fenced(life(0));
    assert!(pool.recognises(&proof));
    assert_eq!((proof.writer(), proof.scope()), (life(0), ProofScope::Life));
    pool.writer_gone(proof);
    assert_eq!((pool.counts().free, pool.refused_proofs()), (1, 2));
}

#[test]
fn a_page_with_an_open_writer_is_neither_sealed_nor_published() {
    let (mut pool, mint) = pool(1);
    let grant = one(&mut pool, owner(1));
    pool.expose(&grant, &[life(0)]).unwrap();
    let refused = pool.seal(&grant, seal(0, 4));
    assert!(matches!(refused, Err(Misuse::Busy { .. })));
    pool.writer_gone(mint.closed(life(0), OwnerId::new(1)));
    pool.seal(&grant, seal(0, 4)).unwrap();
    assert_eq!(pool.reopen(OwnerId::new(1), life(0)), 1);
    let (grant, misuse) = pool.publish(grant).unwrap_err();
    assert!(matches!(misuse, Misuse::Busy { .. }));
    pool.writer_gone(mint.fenced(life(0)));
    let share = pool.publish(grant).unwrap();
    pool.evict(share).unwrap();
}

/// An integrity fault voids the certificate: the pages wait for a fence again.
#[test]
fn a_voided_certificate_frees_nothing() {
    let (mut pool, mint) = pool(3);
    let grants = pool.reserve(owner(1), 2).unwrap();
    let bystander = one(&mut pool, owner(2));
    for grant in grants.iter().chain([&bystander]) {
        pool.expose(grant, &[life(0), life(1)]).unwrap();
    }
    for id in [1, 2] {
        pool.writer_gone(mint.closed(life(0), OwnerId::new(id)));
        pool.writer_gone(mint.closed(life(1), OwnerId::new(id)));
    }
    assert_eq!(pool.reopen(OwnerId::new(1), life(0)), 2);
    assert_eq!(pool.reopen(OwnerId::new(1), life(0)), 0, "once is enough");
    assert_eq!(pool.reopen(OwnerId::new(3), life(0)), 0);
    for grant in grants {
        pool.release(grant).unwrap();
    }
    pool.release(bystander).unwrap();
    let counts = pool.counts();
    assert_eq!((counts.quarantined, counts.free), (2, 1));
    pool.writer_gone(mint.fenced(life(0)));
    assert_eq!(pool.counts().free, 3);
}

#[test]
fn a_fence_cannot_be_voided() {
    let (mut pool, mint) = pool(2);
    let grants = pool.reserve(owner(1), 2).unwrap();
    for grant in &grants {
        pool.expose(grant, &[life(0)]).unwrap();
    }
    pool.writer_gone(mint.closed(life(0), OwnerId::new(1)));
    pool.writer_gone(mint.fenced(life(0)));
    assert_eq!(pool.reopen(OwnerId::new(1), life(0)), 0);
    for grant in grants {
        pool.release(grant).unwrap();
    }
    assert_eq!(pool.counts().free, 2);
    assert_eq!(pool.reopen(OwnerId::new(1), life(0)), 0, "free is free");
}

/// What was checked before is not taken for checked after.
#[test]
fn a_table_over_reopened_pages_is_refused() {
    let (mut pool, mint) = pool(2);
    let grant = one(&mut pool, owner(1));
    let prefix = one(&mut pool, owner(2));
    for grant in [&prefix, &grant] {
        pool.expose(grant, &[life(0)]).unwrap();
    }
    pool.writer_gone(mint.closed(life(0), OwnerId::new(1)));
    pool.writer_gone(mint.closed(life(0), OwnerId::new(2)));
    pool.seal(&prefix, seal(0, 4)).unwrap();
    pool.seal(&grant, seal(1, 4)).unwrap();
    let prefix = pool.publish(prefix).unwrap();
    let mut table = table(owner(1), &[], 8);
    table.push_shared(&prefix);
    table.push_own(&grant);
    accepted(&pool, &mut table, 0);

    for (owner, ordinal) in [(2, 0), (1, 1)] {
        assert_eq!(pool.reopen(OwnerId::new(owner), life(0)), 1);
        let fault = fault(&pool, &mut table, 0);
        assert_eq!(
            (fault.ordinal, fault.kind),
            (ordinal, TableFault::WriterOpen)
        );
        pool.writer_gone(mint.closed(life(0), OwnerId::new(owner)));
        accepted(&pool, &mut table, 0);
    }

    // An evicted page waits for its writer like any other.
    assert_eq!(pool.reopen(OwnerId::new(2), life(0)), 1);
    let page = prefix.page();
    pool.evict(prefix).unwrap();
    assert_eq!(pool.holder(page).unwrap().state, WRITERS);
    pool.writer_gone(mint.fenced(life(0)));
    pool.release(grant).unwrap();
    assert_eq!(pool.counts().free, 2);
}

#[test]
fn a_checkers_copies_prove_the_same() {
    let (mut pool, mint) = pool(1);
    let grant = one(&mut pool, owner(1));
    pool.expose(&grant, &[life(0)]).unwrap();
    let mut fork = pool.fork_for_checker();
    let grant_there = fork.fork_grant_for_checker(&grant);
    let mint_there = fork.fork_mint_for_checker(&mint);
    assert_eq!(mint, mint_there);
    let proof = mint_there.closed(life(0), OwnerId::new(1));
    let copy = fork.fork_proof_for_checker(&proof);
    assert_eq!(proof, copy);
    fork.release(grant_there).unwrap();
    fork.writer_gone(copy);
    assert_eq!((fork.counts().free, pool.counts().granted), (1, 1));
    pool.release(grant).unwrap();
}

#[test]
#[should_panic(expected = "the mint of another pool")]
fn a_checker_does_not_mix_its_mints() {
    let (pool, _mint) = pool(1);
    let (_other, other_mint) = scene::pool(1);
    let _ = pool.fork_mint_for_checker(&other_mint);
}
