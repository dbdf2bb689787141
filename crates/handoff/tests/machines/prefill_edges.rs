//! Prefill at its edges: what its driver must not do, which pages a pass reads and writes, what a
//! lost write costs, and what can be asked.

use crate::prefill_rig::{D, PrefillRig, endings, offer, offers, submitted};
use crate::rig::Epoch;
use crate::rig::{DECODE, PAGE, PREFILL, attempt, checksum, hello, spec};
use handoff::prefill::{Effect, Event, Timer};
use handoff::{DecodeToPrefill, Ending, Failure, Hello, NoToken, OfferId, Role, Spec};

fn fails(p: &mut PrefillRig, event: Event) -> bool {
    let said = p.machine.handle(event);
    said.iter().any(|e| matches!(e, Effect::FailStop(_)))
}

fn begin(offer: OfferId, tokens: u32) -> Event {
    Event::ChunkBegin { offer, tokens }
}

fn foreign(offer: OfferId) -> OfferId {
    let epoch = Epoch::new(PREFILL + 1);
    OfferId { epoch, ..offer }
}

/// The slots that are written.
fn slots(said: &[Effect]) -> Vec<u32> {
    let pages = submitted(said).into_iter().flat_map(|(_, pages)| pages);
    pages.map(|page| page.slot).collect()
}

/// What the worker's loop must never do ends the worker, with nothing computed (H-5).
#[test]
fn h5_a_pass_begins_for_a_job_with_a_ticket_alone_and_for_something() {
    let mut p = PrefillRig::connected(16);
    let first = p.ticketed(1, &spec(1, 14, 1));
    let second = offers(&p.attempt(2, &spec(2, 14, 1)))[0];
    assert!(fails(&mut p, begin(second, 4)), "no ticket");
    assert!(fails(&mut p, begin(first, 0)), "nothing to compute");
    assert!(fails(&mut p, begin(foreign(first), 4)), "another life's");
    assert!(fails(&mut p, begin(offer(99), 4)), "unknown");
    p.ticket(second, 2, 4, 1);
    p.tell(begin(first, 4));
    assert!(fails(&mut p, begin(second, 4)), "one pass at a time");
    assert!(fails(&mut p, begin(first, 4)), "and once");
}

#[test]
fn a_pass_ends_as_it_began() {
    let end = |offer, pages: u32, first: Option<u8>| Event::ChunkEnd {
        offer,
        checksums: (0..pages).map(checksum).collect(),
        first: first.map(|token| vec![token]),
    };
    // 8 of 14 tokens are computed: two pages are complete, and no token is sampled.
    type Wrong = fn(OfferId) -> (OfferId, u32, Option<u8>);
    let wrong: [Wrong; 6] = [
        |of| (of, 1, None),
        |of| (of, 3, None),
        |of| (of, 2, Some(7)),
        |of| (foreign(of), 2, None),
        |of| (OfferId { n: of.n + 1, ..of }, 2, None),
        |of| (OfferId { n: 99, ..of }, 2, None),
    ];
    for wrong in wrong {
        let mut p = PrefillRig::connected(16);
        let of = p.ticketed(1, &spec(1, 14, 1));
        p.ticketed(2, &spec(2, 14, 1));
        p.tell(begin(of, 8));
        let (offer, pages, first) = wrong(of);
        assert!(fails(&mut p, end(offer, pages, first)), "{offer} {pages}");
    }
    // The rest: two pages more, and the token.
    for (pages, first, right) in [(2, Some(7), true), (2, None, false), (1, Some(7), false)] {
        let mut p = PrefillRig::connected(16);
        let of = p.ticketed(1, &spec(1, 14, 1));
        p.tell(begin(of, 8));
        p.tell(end(of, 2, None));
        p.tell(begin(of, 8));
        assert_eq!(!fails(&mut p, end(of, pages, first)), right);
    }
    let mut p = PrefillRig::connected(16);
    let offer = p.ticketed(1, &spec(1, 14, 1));
    assert!(
        fails(
            &mut p,
            Event::ChunkFailed {
                offer,
                why: NoToken::Compute
            }
        ),
        "not begun"
    );
    assert!(fails(&mut p, end(offer, 0, None)), "not begun");
}

/// H-3: a pass writes the pages of its own tokens and reads those before them.
#[test]
fn h3_a_pass_pins_what_it_reads_and_what_it_writes() {
    let mut p = PrefillRig::connected(8);
    let of = p.ticketed(1, &spec(1, 30, 1));
    let mut pinned = Vec::new();
    for tokens in [9, 10, 11] {
        p.tell(begin(of, tokens));
        let mut holders = p.machine.holders();
        holders.sort_by_key(|holder| holder.seal.ordinal);
        // Sends read as well: what counts here is that a pass reads or writes, and which.
        let writes: Vec<_> = holders.iter().map(|holder| holder.writes).collect();
        let read = holders.iter().filter(|h| h.reads > 0 && h.writes == 0);
        pinned.push((writes, read.count()));
        let verified = p.machine.verify().expect("a sound table");
        let step = &verified.sequences()[0];
        let (from, to) = (step.start(), step.start() + step.new_tokens());
        assert_eq!(step.new_tokens(), tokens as usize);
        let complete = if to == 30 { 8 } else { to / 4 };
        p.tell(Event::ChunkEnd {
            offer: of,
            checksums: (from / 4..complete).map(|at| checksum(at as u32)).collect(),
            first: (to == 30).then(|| vec![7]),
        });
    }
    assert_eq!(
        pinned,
        [
            (vec![1, 1, 1, 0, 0, 0, 0, 0], 0), // 0..9
            (vec![0, 0, 1, 1, 1, 0, 0, 0], 2), // 9..19
            (vec![0, 0, 0, 0, 1, 1, 1, 1], 4), // 19..30
        ]
    );
}

/// A page that is complete has its checksum beside it, one that is not has none.
#[test]
fn a_page_is_sealed_as_far_as_it_is_computed() {
    let mut p = PrefillRig::connected(8);
    let of = p.ticketed(1, &spec(1, 14, 1));
    let seals = |p: &mut PrefillRig| {
        let mut seals: Vec<_> = p.machine.holders().iter().map(|h| h.seal).collect();
        seals.sort_by_key(|seal| seal.ordinal);
        let seals = seals.into_iter().map(|seal| (seal.filled, seal.checksum));
        seals.collect::<Vec<_>>()
    };
    p.chunk(of, 6);
    let sum = |at| Some(checksum(at));
    assert_eq!(
        seals(&mut p),
        [(4, sum(0)), (2, None), (0, None), (0, None)]
    );
    p.tell(begin(of, 100));
    p.tell(Event::ChunkEnd {
        offer: of,
        checksums: (1..4).map(checksum).collect(),
        first: Some(vec![7]),
    });
    let complete = [(4, sum(0)), (4, sum(1)), (4, sum(2)), (2, sum(3))];
    assert_eq!(seals(&mut p), complete);
}

/// H-1: a write that was lost may land at any time, for as long as its arena lives. Nothing else is
/// ever written to its slots.
#[test]
fn h1_slots_of_a_lost_write_are_never_written_again() {
    let mut p = PrefillRig::connected(8);
    let first = p.ticketed(1, &spec(1, 8, 1));
    let second = p.ticketed(2, &spec(2, 16, 1));
    let said = p.chunk(first, 100);
    assert_eq!(slots(&said), [0, 1]);
    let lost = submitted(&said)[0].0;
    let said = p.written(lost, false);
    assert_eq!(endings(&said), [(1, Ending::Failed(Failure::Unsettled))]);
    let said = p.chunk(second, 100);
    assert_eq!(
        slots(&said),
        [2, 3],
        "two of four, although four are wanted"
    );
    let write = submitted(&said)[0].0;
    assert!(slots(&p.written(write, true)).is_empty());
    assert_eq!(slots(&p.taken(2, 0)), [2, 3], "those that were taken");
}

/// Law: no page is freed while someone may still write or read it. A deadline ends whom it is about;
/// what he has in flight lands all the same, and nobody else's bytes go to where it lands.
#[test]
fn h15_a_deadline_gives_no_slot_back_that_a_write_may_still_fill() {
    let mut p = PrefillRig::connected(8);
    let first = p.ticketed(1, &spec(1, 8, 1));
    let second = p.ticketed(2, &spec(2, 16, 1));
    assert_eq!(slots(&p.chunk(first, 100)), [0, 1]);
    let said = p.tell(Event::Fired(Timer::Attempt(attempt(1))));
    let failure = Failure::Deadline(handoff::Stage::Prefill);
    assert_eq!(endings(&said), [(1, Ending::Failed(failure))]);
    let said = p.chunk(second, 100);
    assert_eq!(slots(&said), [2, 3], "0 and 1 may still be written");
    let write = submitted(&said)[0].0;
    assert!(slots(&p.written(write, true)).is_empty(), "still");
}

/// H-18: whoever has closed is remembered until that was answered.
#[test]
fn h18_a_job_that_is_over_is_remembered_until_it_was_answered() {
    let mut p = PrefillRig::connected(8);
    p.ticketed(1, &spec(1, 8, 1));
    p.tell(Event::Fired(Timer::Attempt(attempt(1))));
    assert_eq!((p.counts().free, p.machine.load()), (8, (0, 1)));
    p.ended(1, handoff::Answers::Closed);
    assert_eq!(p.machine.load(), (0, 0));
}

/// Pages of the cache are free for who needs them, and stay for as long as nobody does.
#[test]
fn the_cache_makes_room_for_as_much_as_is_needed() {
    let cached = |marker| Spec {
        cache: true,
        ..spec(marker, 8, 1)
    };
    let mut p = PrefillRig::connected(6);
    for n in [1, 2] {
        let of = p.ticketed(n, &cached(n as u32));
        for (write, _) in submitted(&p.chunk(of, 100)) {
            p.written(write, true);
        }
        let handoff = crate::prefill_rig::handoff(n);
        p.hear_decode(DecodeToPrefill::Committed { handoff });
    }
    assert_eq!((p.counts().cached, p.counts().free), (4, 2));
    p.attempt(3, &cached(1)); // one page of two is a hit, one is new
    assert_eq!((p.counts().cached, p.counts().free), (4, 1), "none goes");
    let said = p.attempt(4, &spec(4, 8, 1));
    assert_eq!(offers(&said).len(), 1, "cached pages make room");
    assert_eq!((p.counts().cached, p.counts().free), (3, 0), "as needed");
}

#[test]
fn jobs_that_hold_pages_are_bounded() {
    let mut p = PrefillRig::new(16, 1, false, |config| config.max_jobs = 2);
    p.connect(D);
    let first = offers(&p.attempt(1, &spec(1, 4, 1)))[0];
    assert_eq!(offers(&p.attempt(2, &spec(1, 4, 1))).len(), 1);
    assert!(offers(&p.attempt(3, &spec(1, 4, 1))).is_empty());
    assert_eq!(p.machine.load(), (1, 2));
    let said = p.hear_decode(DecodeToPrefill::OfferEnded { offer: first });
    assert_eq!(offers(&said).len(), 1);
}

#[test]
fn h16_the_caps_of_prefill_are_reached_and_not_passed() {
    for (cap, admitted) in [(28, true), (27, false)] {
        let mut p = PrefillRig::new(8, 1, false, |config| config.max_tokens_per_domain = cap);
        p.connect(D);
        p.attempt(1, &spec(1, 14, 1));
        let said = p.attempt(2, &spec(1, 14, 1));
        assert_eq!(endings(&said).is_empty(), admitted, "{said:?}");
    }
    let known = |life| hello(life, Role::Decode);
    let mut p = PrefillRig::new(8, 1, false, |config| config.max_peers = 2);
    let hung_up = |said: &[Effect]| said.iter().any(|e| matches!(e, Effect::Close(..)));
    let conn = handoff::Conn;
    assert!(!hung_up(&p.dial(conn(20), known(DECODE))));
    assert!(!hung_up(&p.dial(conn(21), known(DECODE + 1))));
    assert!(hung_up(&p.dial(conn(22), known(DECODE + 2))), "a third");
    let said = p.dial(conn(23), known(DECODE + 1));
    let replaced = Effect::Close(conn(21), handoff::Hangup::Replaced);
    assert!(said.contains(&replaced), "one that is known comes again");
    assert!(!said.contains(&Effect::Close(conn(23), handoff::Hangup::Refused)));
}

/// One token at least is computed, for its logits: a prompt that is cached whole is not used whole.
#[test]
fn the_last_page_of_a_prompt_that_is_cached_whole_is_computed() {
    let mut p = PrefillRig::connected(16);
    let cached = |tokens| Spec {
        cache: true,
        ..spec(1, tokens, 1)
    };
    let of = p.ticketed(1, &cached(12));
    for (submission, _) in submitted(&p.chunk(of, 100)) {
        for (submission, _) in submitted(&p.written(submission, true)) {
            p.written(submission, true);
        }
    }
    let handoff = crate::prefill_rig::handoff(1);
    p.hear_decode(DecodeToPrefill::Committed { handoff });
    assert_eq!(p.counts().cached, 3);
    assert!(p.machine.at_rest(), "cached pages are no work");
    for (n, tokens, hit) in [(2, 12, 8), (3, 13, 12), (4, 5, 4), (5, 4, 0)] {
        let of = offers(&p.attempt(n, &cached(tokens)))[0];
        let said = p.ticket(of, n, tokens.div_ceil(4) as u32, 1);
        let admitted = said.iter().find_map(|effect| match effect {
            Effect::Admitted { cached_tokens, .. } => Some(*cached_tokens),
            _ => None,
        });
        assert_eq!(admitted, Some(hit), "{tokens} tokens");
        p.tell(begin(of, 100));
        let verified = p.machine.verify_in_full().expect("a sound table");
        assert_eq!(verified.sequences()[0].start(), hit as usize);
        let offer = of;
        p.tell(Event::ChunkFailed {
            offer,
            why: NoToken::Compute,
        });
    }
}

#[test]
fn whom_it_could_offer_to_and_whether_it_works_can_be_asked() {
    let mut p = PrefillRig::new(8, 1, false, |_| ());
    assert!(p.machine.at_rest());
    assert_eq!(p.machine.peers(), 0);
    p.dial(D, hello(DECODE, Role::Decode));
    assert_eq!(p.machine.peers(), 0, "Sync is not answered");
    p.tell(Event::FromDecode(D, DecodeToPrefill::Synced));
    assert_eq!(p.machine.peers(), 1);
    let offer = offers(&p.attempt(1, &spec(1, 14, 1)))[0];
    assert!(!p.machine.at_rest(), "it holds pages");
    let after_ms = 20;
    p.hear_decode(DecodeToPrefill::Busy { offer, after_ms });
    assert_eq!((p.counts().free, p.machine.load()), (8, (0, 0)));
    assert!(!p.machine.at_rest(), "an attempt waits for its time");
    p.tell(Event::Fired(Timer::Retry(attempt(1))));
    p.withdraw(1);
    assert_eq!((p.counts().free, p.machine.load()), (8, (0, 1)));
    assert!(!p.machine.at_rest(), "an answer is due");
    p.tell(Event::Disconnected(D));
    assert_eq!(p.machine.peers(), 0);
}

/// Law: capacity is measured, not declared. What a machine says of itself it has from its pool.
#[test]
fn a_worker_says_what_its_pool_measures_whatever_it_was_told_to_say() {
    let mut p = PrefillRig::new(5, 3, false, |_| ());
    let said = p.tell(Event::Dialled(D));
    let [
        Effect::Arm { .. },
        Effect::ToDecode(_, handoff::PrefillToDecode::Hello(said)),
    ] = &said[..]
    else {
        panic!("{said:?}");
    };
    let Hello {
        role,
        capacity,
        ranks,
        ..
    } = said;
    let capacity = capacity.expect("a worker has one");
    assert_eq!((*role, *ranks), (Role::Prefill, 3));
    assert_eq!((capacity.pages, capacity.page_size), (5, PAGE));
    assert_eq!(p.machine.hello(), said);
}
