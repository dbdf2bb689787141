//! What is stated about several things at once is compared thing by thing: a sum, a set or a count
//! of them says too little. And what is said of an arena is said of that one, not of the one that
//! came after it.

use crate::decode_rig::{DecodeRig, audits, endings, starts};
use crate::prefill_rig::{PrefillRig, arena, handoff, offers, submitted};
use crate::rig::{PREFILL, checksum, spec};
use handoff::decode::{Effect, Event};
use handoff::{
    Answers, Closing, Decisions, DecodeToPrefill, Ending, Failure, Fault, HandoffId,
    PrefillToDecode, digest, prefill,
};
use pages::{Sound, StatedTag};
use proptest::prelude::*;

/// Checksums that are not those that were stated, and of which much is the same: exchanged, sorted,
/// with a sum or an exclusive or that is the same, the first or the last alone wrong.
fn other_sums(n: usize) -> impl Strategy<Value = Vec<u32>> {
    let stated: Vec<u32> = (0..n as u32).map(checksum).collect();
    let (one, by) = ((0..n, 0..n), 1..5u32);
    let exchanged = (one.clone(), Just(stated.clone())).prop_map(|((a, b), mut sums)| {
        sums.swap(a, b);
        sums
    });
    let shifted =
        (one.clone(), by.clone(), Just(stated.clone())).prop_map(|((a, b), by, mut sums)| {
            sums[a] = sums[a].wrapping_add(by);
            sums[b] = sums[b].wrapping_sub(by);
            sums
        });
    let masked = (one, by, Just(stated.clone())).prop_map(|((a, b), by, mut sums)| {
        sums[a] ^= by << 7;
        sums[b] ^= by << 7;
        sums
    });
    let one_bit = (0..n, 0..32u32, Just(stated.clone())).prop_map(|(at, bit, mut sums)| {
        sums[at] ^= 1 << bit;
        sums
    });
    let rotated = (1..n, Just(stated.clone())).prop_map(|(by, mut sums)| {
        sums.rotate_left(by);
        sums
    });
    let all_alike = (0..n, Just(stated.clone())).prop_map(|(at, sums)| vec![sums[at]; sums.len()]);
    let different = move |sums: &Vec<u32>| *sums != stated;
    prop_oneof![exchanged, shifted, masked, one_bit, rotated, all_alike]
        .prop_filter("as they were stated", different)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// H-1: the first page that differs is named, and nothing of the batch is taken.
    #[test]
    fn h1_every_page_of_a_batch_is_compared_with_its_own_checksum(sums in other_sums(4)) {
        let mut d = DecodeRig::new(32, |_| ());
        d.connect(PREFILL, 10, 1);
        let ticket = d.granted(PREFILL, 10, 1, &spec(1, 14, 2));
        let manifest = ticket.manifest(0, 0, 0..4);
        d.state(10, &manifest);
        d.close(10, ticket.handoff, 0, ticket.sealed(Some(1)));
        let differs = (0..4).find(|at| sums[*at] != checksum(*at as u32)).expect("one");
        let (handoff, rank, batch) = (ticket.handoff, 0, 0);
        let said = d.tell(Event::Copied { handoff, rank, batch, checksums: Some(sums) });
        let failure = Failure::Integrity(Fault::WrongChecksum);
        prop_assert_eq!(audits(&said), [(failure, Some(ticket.tags[differs]))]);
        prop_assert_eq!(endings(&said), [(1, Ending::Failed(failure))]);
        prop_assert!(!starts(&said));
    }

    /// H-2: a prompt of the same tokens in another order is another prompt.
    #[test]
    fn h2_a_prompt_is_its_tokens_in_their_order(
        tokens in prop::collection::vec(0..3u32, 2..9), a in any::<prop::sample::Index>(),
        b in any::<prop::sample::Index>(), by in 1..4u32,
    ) {
        let (a, b) = (a.index(tokens.len()), b.index(tokens.len()));
        let mut other = tokens.clone();
        other.swap(a, b);
        prop_assert_eq!(digest(&other) == digest(&tokens), other == tokens);
        other[a] += by;
        prop_assert_ne!(digest(&other), digest(&tokens));
        other.truncate(tokens.len() - 1);
        prop_assert_ne!(digest(&other), digest(&tokens));
    }
}

/// Every bit of a name and of a number counts.
#[test]
fn h8_whatever_is_compared_is_compared_in_every_bit() {
    let name = |epoch: u128, n: u64| handoff::ArenaId {
        epoch: pages::Epoch::new(epoch),
        n,
    };
    let (epoch, n) = (u128::MAX / 3, u64::MAX / 5);
    let this = name(epoch, n);
    assert!(Sound.same_arena(this, this) && Sound.same_endpoint(this, this));
    for bit in 0..128 {
        let life = epoch ^ (1 << bit);
        let other = name(life, n);
        assert!(!Sound.same_arena(other, this), "bit {bit} of a life");
        assert!(!Sound.same_endpoint(other, this), "bit {bit} of a life");
        let (life, ours) = (pages::Epoch::new(life), this.epoch);
        assert!(!Sound.same_life(life, ours), "bit {bit} of a life");
    }
    for bit in 0..64 {
        let other = name(epoch, n ^ (1 << bit));
        assert!(!Sound.same_arena(other, this), "bit {bit} of a number");
        assert!(!Sound.same_endpoint(other, this), "bit {bit} of a number");
    }
    for bit in 0..32 {
        let (sum, other) = (0x1234_5678_u32, 0x1234_5678 ^ (1 << bit));
        assert!(!Sound.same_checksum(sum, other), "bit {bit} of a checksum");
        assert!(
            !Sound.same_prompt((sum, [7; 32]), (other, [7; 32])),
            "bit {bit} of a length"
        );
    }
    for bit in 0..16 {
        assert!(
            !Sound.same_fill(300, 300 ^ (1 << bit)),
            "bit {bit} of a fill"
        );
    }
    for bit in 0..256 {
        let mut other = [7_u8; 32];
        other[bit / 8] ^= 1 << (bit % 8);
        assert!(
            !Sound.same_prompt((14, [7; 32]), (14, other)),
            "bit {bit} of a digest"
        );
    }
}

/// H-2: a tag that differs in one bit was never granted.
#[test]
fn h2_every_bit_of_a_tag_counts() {
    for bit in 0..64 {
        let mut d = DecodeRig::new(32, |_| ());
        d.connect(PREFILL, 10, 1);
        let ticket = d.granted(PREFILL, 10, 1, &spec(1, 4, 2));
        let mut manifest = ticket.manifest(0, 0, 0..1);
        manifest.pages[0].tag = StatedTag(ticket.tags[0].0 ^ (1 << bit));
        let said = d.state(10, &manifest);
        let failure = Failure::Integrity(Fault::WrongTag);
        assert_eq!(endings(&said), [(1, Ending::Failed(failure))], "bit {bit}");
    }
}

/// H-3: a copy out of an arena that is gone says nothing about the slots of its successor.
#[test]
fn h3_a_copy_that_ends_late_frees_no_slot_of_the_arena_that_came_after() {
    for other_rank in [false, true] {
        let mut d = DecodeRig::new(48, |_| ());
        let ranks = 1 + u16::from(other_rank);
        d.connect(PREFILL, 10, ranks);
        let rank = ranks - 1;
        let old = d.granted(PREFILL, 10, 1, &spec(1, 14, 2));
        let late = old.manifest(rank, 0, 0..2);
        d.state(10, &late);
        let (handoff, slots) = (old.handoff, vec![9]);
        let lost = PrefillToDecode::Unsettled {
            handoff,
            rank,
            slots,
        };
        d.hear_prefill(10, lost);
        let said = d.fenced(old.landings[usize::from(rank)].arena);
        d.open_arenas(&said);
        let new = d.granted(PREFILL, 10, 2, &spec(2, 14, 2));
        let third = d.granted(PREFILL, 10, 3, &spec(3, 14, 2));
        let copies = |said: &[Effect]| said.iter().any(|e| matches!(e, Effect::Copy { .. }));
        assert!(copies(&d.state(10, &new.manifest(rank, 0, 0..2))));
        d.copied(&late);
        let said = d.state(10, &third.manifest(rank, 0, 0..2)); // the same slots
        assert!(!copies(&said), "the copy of the new arena still reads them");
        let fault = Ending::Failed(Failure::Integrity(Fault::BadBatch));
        assert!(endings(&said).contains(&(3, fault)), "{said:?}");
    }
}

/// What decode says about a batch that went into an arena of before.
#[derive(Clone, Copy, Debug)]
enum Said {
    Taken(u32),
    Closed,
    Committed,
    Cancel,
    Lost(usize),
    Written(usize),
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// H-1: slots of the arena that came after are free when what is in *them* was taken. The watch
    /// of the rig sees a slot that is written while it is not free.
    #[test]
    fn h1_what_is_said_of_an_arena_frees_no_slot_of_its_successor(
        news in prop::collection::vec(prop_oneof![
            3 => (0..3u32).prop_map(Said::Taken),
            2 => Just(Said::Closed),
            1 => Just(Said::Committed),
            1 => Just(Said::Cancel),
            1 => (0..2usize).prop_map(Said::Lost),
            3 => (0..2usize).prop_map(Said::Written),
        ], 1..8),
        pages in 1..5usize,
    ) {
        let mut p = PrefillRig::connected(24);
        let first = p.ticketed(1, &spec(1, 4 * pages, 1));
        let mut writes: Vec<_> = submitted(&p.chunk(first, 100));
        let second = offers(&p.attempt(2, &spec(2, 36, 1)))[0];
        p.ticket(second, 2, 9, 2); // decode has made another arena meanwhile
        p.attached(2, true);
        let waiting = submitted(&p.chunk(second, 100)); // nine pages for four slots
        for said in news {
            let handoff = handoff(1);
            match said {
                Said::Taken(batch) => drop(p.taken(1, batch)),
                Said::Closed => drop(p.ended(1, Answers::Closed)),
                Said::Committed => drop(p.hear_decode(DecodeToPrefill::Committed { handoff })),
                Said::Cancel => drop(p.hear_decode(DecodeToPrefill::Cancel { handoff })),
                Said::Lost(at) | Said::Written(at) => {
                    if at < writes.len() {
                        let ok = matches!(said, Said::Written(_));
                        p.written(writes.remove(at).0, ok);
                    }
                }
            }
        }
        for (write, _) in waiting {
            p.written(write, true); // and now it would send more, if there were room
        }
    }
}

/// The same, one by one: everything that may say that a batch of the old arena is over.
#[test]
fn h1_the_end_of_an_old_batch_sends_nothing_into_the_new_arena() {
    let handoff = handoff(1);
    let ends: [fn(&mut PrefillRig, HandoffId) -> Vec<prefill::Effect>; 3] = [
        |p, _| p.taken(1, 0),
        |p, _| p.ended(1, Answers::Closed),
        |p, handoff| p.hear_decode(DecodeToPrefill::Committed { handoff }),
    ];
    for end in ends {
        let mut p = PrefillRig::connected(24);
        let first = p.ticketed(1, &spec(1, 8, 1));
        let writes = submitted(&p.chunk(first, 100));
        let second = offers(&p.attempt(2, &spec(2, 36, 1)))[0];
        p.ticket(second, 2, 9, 2);
        p.attached(2, true);
        let waiting = submitted(&p.chunk(second, 100));
        assert_eq!(waiting.len(), 2, "four slots, two a batch");
        p.written(writes[0].0, true);
        let mut said = end(&mut p, handoff);
        said.extend(p.written(waiting[0].0, true));
        assert!(submitted(&said).is_empty(), "no slot of arena {}", arena(2));
    }
}

/// Nor is an endpoint there because that of the arena before it is.
#[test]
fn h3_the_end_of_an_old_attach_says_nothing_of_the_new_arena() {
    for ok in [true, false] {
        let mut p = PrefillRig::connected(24);
        let first = offers(&p.attempt(1, &spec(1, 8, 1)))[0];
        p.ticket(first, 1, 2, 1);
        let second = offers(&p.attempt(2, &spec(2, 8, 1)))[0];
        p.ticket(second, 2, 2, 2);
        p.chunk(second, 100);
        let said = p.attached(1, ok);
        assert!(submitted(&said).is_empty(), "{ok}: {said:?}");
        let said = p.attached(2, true);
        assert_eq!(submitted(&said).len(), 1, "{ok}: {said:?}");
    }
}

/// A certificate counts what was stated, and two that are wrong do not make one that is right.
#[test]
fn h2_batches_and_pages_are_counted_apart() {
    for (batches, pages) in [(3, 3), (1, 5), (4, 2), (2, 2), (0, 6), (5, 1)] {
        let mut d = DecodeRig::new(32, |_| ());
        d.connect(PREFILL, 10, 1);
        let ticket = d.granted(PREFILL, 10, 1, &spec(1, 14, 2));
        for batch in 0..2 {
            let manifest = ticket.manifest(0, batch, batch * 2..batch * 2 + 2);
            d.state(10, &manifest);
            d.copied(&manifest);
        }
        let how = Closing::Sealed {
            batches,
            pages,
            first: Some(vec![1]),
        };
        let said = d.close(10, ticket.handoff, 0, how);
        assert!(!starts(&said), "{batches} batches, {pages} pages");
        let ended = endings(&said);
        assert_eq!(ended.len(), 1, "{ended:?}");
    }
}
