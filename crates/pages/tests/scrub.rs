//! `scrub`: a page whose owner has ended is not free before its payload was zeroed.

mod scene;

use pages::{Config, OwnerId, PageId, Pool, Reason, State};
use scene::*;

const SCRUB: State = State::Quarantined(Reason::Scrub);

fn scrubbing(pages: u32) -> (Pool, pages::FenceMint) {
    Pool::new(Config {
        pages,
        page_size: PAGE_SIZE,
        scrub: true,
    })
}

#[test]
fn a_page_is_zeroed_between_two_owners_whoever_the_first_was() {
    let (mut pool, _mint) = scrubbing(3);
    let reserved = one(&mut pool, owner(1));
    let sealed = sealed(&mut pool, owner(1), 0, 4);
    let share = cached(&mut pool, owner(1), 1);
    pool.release(reserved).unwrap();
    pool.release(sealed).unwrap();
    pool.evict(share).unwrap();

    let all: Vec<_> = (0..3).map(PageId::new).collect();
    assert_eq!(pool.to_scrub(), all);
    assert_eq!(pool.counts().quarantined, 3);
    assert!(pool.reserve(owner(2), 1).is_err());
    assert!(
        pool.begin(&[all[0]], &[]).is_err(),
        "nobody else touches it"
    );
    pool.scrubbed(all[1]).unwrap();
    assert!(pool.scrubbed(all[1]).is_err(), "once");
    let holder = pool.holder(all[1]).unwrap();
    assert_eq!(
        (holder.state, holder.tag, holder.owner),
        (State::Free, None, None)
    );
    let next = one(&mut pool, owner(2));
    assert_eq!(next.page(), all[1]);
    pool.release(next).unwrap();
    assert_eq!(pool.to_scrub(), all, "and again for the next one");
}

#[test]
fn nothing_is_zeroed_while_somebody_may_touch_it() {
    let (mut pool, mint) = scrubbing(1);
    let grant = one(&mut pool, owner(1));
    let page = grant.page();
    pool.expose(&grant, &[life(0)]).unwrap();
    let read = pool.begin(&[page], &[]).unwrap();
    pool.release(grant).unwrap();
    assert!(pool.to_scrub().is_empty() && pool.scrubbed(page).is_err());
    pool.end(read).unwrap();
    assert!(pool.to_scrub().is_empty() && pool.scrubbed(page).is_err());
    pool.writer_gone(mint.closed(life(0), OwnerId::new(1)));
    assert_eq!(pool.to_scrub(), [page]);

    // Voided while it waited: the writer may dirty it again, so it waits for both once more.
    assert_eq!(pool.reopen(OwnerId::new(1), life(0)), 1);
    assert!(pool.to_scrub().is_empty() && pool.scrubbed(page).is_err());
    pool.writer_gone(mint.fenced(life(0)));
    assert_eq!(pool.holder(page).unwrap().state, SCRUB);
    pool.scrubbed(page).unwrap();
    assert_eq!(pool.counts().free, 1);
}

#[test]
fn a_lost_page_is_never_scrubbed_back_into_use() {
    let (mut pool, _mint) = scrubbing(1);
    drop(one(&mut pool, owner(1)));
    assert_eq!(pool.counts().quarantined, 1);
    assert!(pool.to_scrub().is_empty());
    assert!(pool.scrubbed(PageId::new(0)).is_err());
}

#[test]
fn without_scrub_nothing_waits() {
    let (mut pool, _mint) = pool(1);
    let grant = sealed(&mut pool, owner(1), 0, 4);
    pool.release(grant).unwrap();
    assert!(pool.to_scrub().is_empty());
    assert_eq!(pool.counts().free, 1);
}
