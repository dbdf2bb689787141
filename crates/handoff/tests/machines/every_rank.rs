//! A rule about a writer set is a rule about every writer in it. One of three ranks does something
//! else than the others, each of them in turn, first or last: what becomes of the handoff does not
//! depend on which one it was (H-2, H-7).

use crate::decode_rig::{self, DecodeRig, Ticket, fences, offer_id, starts, ticket, to_prefill};
use crate::prefill_rig::{
    D, PrefillRig, arena, detached, endings, handoff, offers, submitted, to_decode,
};
use crate::rig::{DECODE, Epoch, PREFILL, attempt, checksum, hello, link, spec};
use handoff::decode::{Effect, Event, Timer};
use handoff::prefill;
use handoff::{
    Answers, Closing, Conn, DecodeToPrefill, Ending, Failure, Fault, GatewayToDecode, Manifest,
    PrefillToDecode, Role, Spec, Stage, SubmissionId,
};

const RANKS: u16 = 3;

fn scene() -> (DecodeRig, Ticket) {
    let mut d = DecodeRig::new(48, |_| ());
    d.connect(PREFILL, 10, RANKS);
    let ticket = d.granted(PREFILL, 10, 1, &spec(1, 14, 2));
    (d, ticket)
}

fn copied(d: &mut DecodeRig, manifest: &Manifest, wrong: Option<usize>) -> Vec<Effect> {
    let sums = manifest.pages.iter().map(|page| checksum(page.ordinal));
    let mut sums: Vec<u32> = sums.collect();
    if let Some(at) = wrong {
        sums.swap(at, at + 1);
    }
    d.tell(Event::Copied {
        handoff: manifest.handoff,
        rank: manifest.rank,
        batch: manifest.batch,
        checksums: Some(sums),
    })
}

fn closes(d: &mut DecodeRig, ticket: &Ticket, rank: u16, first: u16) -> Vec<Effect> {
    let how = ticket.sealed((rank == first).then_some(1));
    d.close(10, ticket.handoff, rank, how)
}

/// What one rank does instead of what it ought to; what comes of it.
type Deviation = fn(&mut DecodeRig, &Ticket, u16, u16) -> Vec<Effect>;

fn honest(d: &mut DecodeRig, ticket: &Ticket, rank: u16, first: u16) -> Vec<Effect> {
    let manifest = ticket.manifest(rank, 0, 0..4);
    let mut said = d.state(10, &manifest);
    // Not if the attempt has failed meanwhile: nothing is copied that was not asked for.
    if said.iter().any(|e| matches!(e, Effect::Copy { .. })) {
        said.extend(d.copied(&manifest));
    }
    said.extend(closes(d, ticket, rank, first));
    said
}

fn fault(fault: Fault) -> Option<Failure> {
    Some(Failure::Integrity(fault))
}

fn damaged(
    d: &mut DecodeRig,
    ticket: &Ticket,
    rank: u16,
    damage: impl FnOnce(&mut Manifest),
) -> Vec<Effect> {
    let mut manifest = ticket.manifest(rank, 0, 0..4);
    damage(&mut manifest);
    d.state(10, &manifest)
}

/// With the failure that it ends with, none if it does not end, and whether its arena goes.
fn deviations() -> Vec<(&'static str, Deviation, Option<Failure>, bool)> {
    vec![
        (
            "has not closed",
            |d, ticket, rank, _| {
                d.state(10, &ticket.manifest(rank, 0, 0..4));
                d.copied(&ticket.manifest(rank, 0, 0..4))
            },
            None,
            false,
        ),
        (
            "has a copy in flight",
            |d, ticket, rank, first| {
                d.state(10, &ticket.manifest(rank, 0, 0..4));
                closes(d, ticket, rank, first)
            },
            None,
            false,
        ),
        (
            "misses the first page",
            |d, ticket, rank, first| {
                let manifest = ticket.manifest(rank, 0, 1..4);
                d.state(10, &manifest);
                let mut said = d.copied(&manifest);
                said.extend(closes(d, ticket, rank, first));
                said
            },
            fault(Fault::Short),
            true,
        ),
        (
            "states two batches of one",
            |d, ticket, rank, first| {
                let manifest = ticket.manifest(rank, 0, 0..4);
                d.state(10, &manifest);
                let mut said = d.copied(&manifest);
                let first = (rank == first).then(|| vec![1]);
                let how = Closing::Sealed {
                    batches: 2,
                    pages: 4,
                    first,
                };
                said.extend(d.close(10, ticket.handoff, rank, how));
                said
            },
            fault(Fault::Short),
            true,
        ),
        (
            "exchanges two pages",
            |d, ticket, rank, _| {
                let manifest = ticket.manifest(rank, 0, 0..4);
                d.state(10, &manifest);
                copied(d, &manifest, Some(1))
            },
            fault(Fault::WrongChecksum),
            true,
        ),
        (
            "names another tag",
            |d, ticket, rank, _| damaged(d, ticket, rank, |m| m.pages[2].tag.0 += 100),
            fault(Fault::WrongTag),
            true,
        ),
        (
            "has other slots filled",
            |d, ticket, rank, _| damaged(d, ticket, rank, |m| m.pages[3].filled += 1),
            fault(Fault::WrongFill),
            true,
        ),
        (
            "writes to the arena of another",
            |d, ticket, rank, _| {
                let other = ticket.landings[usize::from((rank + 1) % RANKS)].arena;
                damaged(d, ticket, rank, |m| m.arena = other)
            },
            fault(Fault::WrongArena),
            true,
        ),
        (
            "states a page twice",
            |d, ticket, rank, _| {
                damaged(d, ticket, rank, |m| {
                    m.pages[3] = handoff::StatedPage {
                        slot: 9,
                        ..m.pages[0]
                    }
                })
            },
            fault(Fault::PageTwice),
            true,
        ),
        (
            "uses a slot twice",
            |d, ticket, rank, _| damaged(d, ticket, rank, |m| m.pages[3].slot = 0),
            fault(Fault::BadBatch),
            true,
        ),
        (
            "gives up",
            |d, ticket, rank, _| {
                d.close(10, ticket.handoff, rank, Closing::Abandoned { why: None })
            },
            Some(Failure::PeerFailed(Stage::Prefill)),
            false,
        ),
        (
            "has lost a write",
            |d, ticket, rank, _| {
                let (handoff, slots) = (ticket.handoff, vec![0]);
                d.hear_prefill(
                    10,
                    PrefillToDecode::Unsettled {
                        handoff,
                        rank,
                        slots,
                    },
                )
            },
            Some(Failure::Unsettled),
            true,
        ),
    ]
}

#[test]
fn h7_no_rank_may_be_the_one_that_is_not_looked_at() {
    for (what, deviation, failure, drops) in deviations() {
        for odd in 0..RANKS {
            for last in [false, true] {
                let (mut d, ticket) = scene();
                let first = (odd + 1) % RANKS;
                let mut said = Vec::new();
                if !last {
                    said.extend(deviation(&mut d, &ticket, odd, first));
                }
                for rank in (0..RANKS).filter(|rank| *rank != odd) {
                    said.extend(honest(&mut d, &ticket, rank, first));
                }
                if last {
                    said.extend(deviation(&mut d, &ticket, odd, first));
                }
                let which = format!("rank {odd} {what}, last: {last}");
                assert!(!starts(&said), "{which}: {said:?}");
                let ended = decode_rig::endings(&said);
                let expected = failure.map(|failure| (1, Ending::Failed(failure)));
                assert_eq!(ended, Vec::from_iter(expected), "{which}");
                let arena = ticket.landings[usize::from(odd)].arena;
                let expected = if drops { vec![arena] } else { Vec::new() };
                assert_eq!(fences(&said), expected, "{which}");
                assert_eq!((d.counts().sealed, d.counts().cached), (0, 0), "{which}");
            }
        }
    }
}

/// Any rank may be the one that samples; none, two or all are one fault.
#[test]
fn h2_exactly_one_rank_states_the_first_token_whichever_it_is() {
    for stated in 0..1_u16 << RANKS {
        let (mut d, ticket) = scene();
        let mut said = Vec::new();
        for rank in 0..RANKS {
            let manifest = ticket.manifest(rank, 0, 0..4);
            d.state(10, &manifest);
            d.copied(&manifest);
            let first = (stated >> rank & 1 == 1).then_some(1);
            said.extend(d.close(10, ticket.handoff, rank, ticket.sealed(first)));
        }
        assert_eq!(starts(&said), stated.count_ones() == 1, "{stated:b}");
    }
}

/// H-1: while one rank's arena is doubtful, being made or being fenced there is no ticket; a ticket
/// into it is not repeated either.
#[test]
fn h1_a_ticket_needs_the_arena_of_every_rank() {
    for odd in 0..RANKS {
        let mut d = DecodeRig::new(48, |_| ());
        let said = d.hello(PREFILL, 10, RANKS);
        let opening = said.iter().filter_map(|effect| match effect {
            Effect::OpenArena { arena, .. } => Some(*arena),
            _ => None,
        });
        let opening: Vec<_> = opening.collect();
        let open = |d: &mut DecodeRig, arena| {
            d.tell(Event::ArenaOpened {
                arena,
                slots: 16,
                address: Vec::new(),
            })
        };
        for (_, arena) in opening
            .iter()
            .enumerate()
            .filter(|(n, _)| *n != usize::from(odd))
        {
            open(&mut d, *arena);
        }
        d.sync(10, &[], &[]);
        let prompt = spec(1, 14, 2);
        d.expect(1, &prompt, PREFILL);
        let said = d.offer(PREFILL, 10, 1, &prompt);
        assert!(ticket(&said, &prompt).is_none(), "rank {odd} has no arena");
        open(&mut d, opening[usize::from(odd)]);
        let said = d.offer(PREFILL, 10, 1, &prompt);
        let first = ticket(&said, &prompt).expect("now it has");
        // A neighbour's write of this rank is lost: nobody new goes there.
        d.granted(PREFILL, 10, 2, &spec(2, 14, 2));
        let (handoff, slots) = (first.handoff, vec![0]);
        let rank = odd;
        let lost = PrefillToDecode::Unsettled {
            handoff,
            rank,
            slots,
        };
        d.hear_prefill(10, lost);
        d.expect(3, &prompt, PREFILL);
        let said = d.offer(PREFILL, 10, 3, &prompt);
        assert!(ticket(&said, &prompt).is_none(), "rank {odd} is doubtful");
        // The neighbour gives up; with nobody in it the arena goes, and no other.
        let mut said = Vec::new();
        for rank in 0..RANKS {
            let second = handoff::HandoffId {
                n: first.handoff.n + 1,
                ..first.handoff
            };
            said.extend(d.close(10, second, rank, Closing::Abandoned { why: None }));
        }
        assert_eq!(fences(&said), [opening[usize::from(odd)]], "rank {odd}");
    }
}

/// H-18: a ticket is said again only if the arenas of all ranks are those that it names.
#[test]
fn h18_a_ticket_is_repeated_if_no_rank_has_lost_its_arena() {
    for odd in 0..RANKS {
        let (mut d, first) = scene();
        let said = d.offer(PREFILL, 10, 1, &spec(1, 14, 2));
        assert_eq!(ticket(&said, &spec(1, 14, 2)), Some(first.clone()));
        let second = d.granted(PREFILL, 10, 2, &spec(2, 14, 2));
        let (handoff, slots) = (second.handoff, (0..13).collect());
        let rank = odd;
        let lost = PrefillToDecode::Unsettled {
            handoff,
            rank,
            slots,
        };
        let said = d.hear_prefill(10, lost);
        let arena = first.landings[usize::from(odd)].arena;
        assert_eq!(fences(&said), [arena], "too little room for a batch");
        let failure = Failure::PeerFailed(Stage::Transfer);
        let ended = decode_rig::endings(&said);
        assert!(ended.contains(&(1, Ending::Failed(failure))), "{ended:?}");
        let said = d.fenced(arena);
        d.open_arenas(&said);
        let said = d.offer(PREFILL, 10, 1, &spec(1, 14, 2));
        let offer = offer_id(PREFILL, 1);
        assert_eq!(to_prefill(&said), [DecodeToPrefill::OfferEnded { offer }]);
    }
}

/// H-15: a rank that does not answer a Cancel costs its own arena; H-18: one that Sync does not
/// list is closed, whichever it is.
#[test]
fn h15_the_rank_that_is_silent_is_the_one_that_is_fenced() {
    for odd in 0..RANKS {
        let (mut d, ticket) = scene();
        for rank in (0..RANKS).filter(|rank| *rank != odd) {
            honest(&mut d, &ticket, rank, 9);
        }
        d.hear_gateway(GatewayToDecode::Cancel {
            attempt: attempt(1),
        });
        let said = d.tell(Event::Fired(Timer::Cancel(ticket.handoff)));
        let arena = ticket.landings[usize::from(odd)].arena;
        assert_eq!(fences(&said), [arena], "rank {odd}");
        assert_eq!(d.machine.load().1, 1);
        d.fenced(arena);
        assert!(d.machine.at_rest(), "rank {odd}");
        let (mut d, ticket) = scene();
        d.close(10, ticket.handoff, odd, Closing::Abandoned { why: None });
        d.hello(PREFILL, 11, RANKS);
        d.sync(11, &[], &[]);
        assert!(d.machine.at_rest(), "rank {odd}");
        // All arenas of a life that is gone are fenced.
        let (mut d, ticket) = scene();
        d.tell(Event::Disconnected(Conn(10)));
        let said = d.tell(Event::Fired(Timer::Peer(Epoch::new(PREFILL))));
        let all: Vec<_> = ticket.landings.iter().map(|site| site.arena).collect();
        assert_eq!(fences(&said), all);
    }
}

/// Prefill of three ranks with a ticket for two pages, all computed: one write a rank.
fn prefill_scene(spec: &Spec) -> (PrefillRig, Vec<SubmissionId>) {
    let mut p = PrefillRig::new(16, RANKS, false, |_| ());
    p.connect(D);
    let of = offers(&p.attempt(1, spec))[0];
    p.ticket(of, 1, 2, 1);
    for rank in 0..u64::from(RANKS) {
        p.attached(1 + rank, true);
    }
    let writes = submitted(&p.chunk(of, 100));
    assert_eq!(writes.len(), usize::from(RANKS));
    (p, writes.into_iter().map(|(n, _)| n).collect())
}

fn cached() -> Spec {
    Spec {
        cache: true,
        ..spec(1, 8, 1)
    }
}

fn ended(p: &mut PrefillRig, rank: u16, answers: Answers) -> Vec<prefill::Effect> {
    let handoff = handoff(1);
    p.hear_decode(DecodeToPrefill::Ended {
        handoff,
        rank,
        answers,
    })
}

/// The certificates that were said: rank, and whether sealed.
fn closings(said: &[prefill::Effect]) -> Vec<(u16, bool)> {
    let closed = to_decode(said)
        .into_iter()
        .filter_map(|message| match message {
            PrefillToDecode::Closed { rank, how, .. } => {
                Some((rank, matches!(how, Closing::Sealed { .. })))
            }
            _ => None,
        });
    closed.collect()
}

/// H-7, H-9: Committed answers Closed of every rank. While one has not closed it answers nothing,
/// and what one of them has given up is in no cache.
#[test]
fn h7_committed_counts_when_every_rank_has_closed_and_caches_what_all_have_sealed() {
    let committed = DecodeToPrefill::Committed {
        handoff: handoff(1),
    };
    for odd in 0..usize::from(RANKS) {
        let (mut p, writes) = prefill_scene(&cached());
        for (rank, write) in writes.iter().enumerate().filter(|(rank, _)| *rank != odd) {
            let said = p.written(*write, true);
            assert_eq!(
                closings(&said),
                [(rank as u16, true)],
                "its own writes are all"
            );
        }
        assert!(
            p.hear_decode(committed.clone()).is_empty(),
            "rank {odd} writes"
        );
        assert_eq!(p.counts().cached, 0);
        let said = p.written(writes[odd], true);
        assert_eq!(closings(&said), [(odd as u16, true)]);
        let said = p.hear_decode(committed.clone());
        assert_eq!(endings(&said), [(1, Ending::Finished)]);
        assert_eq!(p.counts().cached, 2);
        assert!(p.machine.at_rest());
        for sealed in [false, true] {
            // One alone has sealed, or all but one, when decode cancels.
            let (mut p, writes) = prefill_scene(&cached());
            for (rank, write) in writes.iter().enumerate() {
                if (rank == odd) == sealed {
                    p.written(*write, true);
                }
            }
            let handoff = handoff(1);
            p.hear_decode(DecodeToPrefill::Cancel { handoff });
            for (rank, write) in writes.iter().enumerate() {
                if (rank == odd) != sealed {
                    assert_eq!(closings(&p.written(*write, true)), [(rank as u16, false)]);
                }
            }
            p.hear_decode(committed.clone());
            assert!(p.machine.at_rest(), "answered all the same");
            assert_eq!(p.counts().cached, 0, "rank {odd}");
        }
    }
}

/// H-18: a job is remembered until every rank was answered; what decode says of one rank is not
/// said of another, and its slots are those of its own arena.
#[test]
fn h18_every_rank_is_answered_for_itself() {
    for odd in 0..usize::from(RANKS) {
        let (mut p, writes) = prefill_scene(&spec(1, 8, 1));
        for write in &writes {
            p.written(*write, true);
        }
        let (handoff, batch) = (handoff(1), 0);
        let rank = odd as u16;
        p.hear_decode(DecodeToPrefill::Taken {
            handoff,
            rank,
            batch,
        });
        // Said again after a new connection: what was not taken, and every certificate.
        p.dial(Conn(7), hello(DECODE, Role::Decode));
        let said = p.tell(prefill::Event::FromDecode(Conn(7), DecodeToPrefill::Synced));
        let stated = to_decode(&said).into_iter().filter_map(|m| match m {
            PrefillToDecode::Landed(manifest) => Some(usize::from(manifest.rank)),
            _ => None,
        });
        let others: Vec<usize> = (0..usize::from(RANKS))
            .filter(|rank| *rank != odd)
            .collect();
        assert_eq!(stated.collect::<Vec<_>>(), others);
        assert_eq!(closings(&said).len(), usize::from(RANKS));
        let tell = |p: &mut PrefillRig, rank: usize| {
            let (rank, answers) = (rank as u16, Answers::Closed);
            let message = DecodeToPrefill::Ended {
                handoff,
                rank,
                answers,
            };
            p.tell(prefill::Event::FromDecode(Conn(7), message));
        };
        for rank in others {
            tell(&mut p, rank);
            assert_eq!(p.machine.load(), (0, 1), "rank {odd} waits");
        }
        tell(&mut p, odd);
        assert!(p.machine.at_rest());
    }
}

/// H-7: a rank that cannot reach its arena, or has lost a write, is unsettled; the others are not,
/// and close when their own writes have completed.
#[test]
fn h7_the_rank_that_has_lost_a_write_is_unsettled_and_no_other() {
    for odd in 0..usize::from(RANKS) {
        let (mut p, writes) = prefill_scene(&spec(1, 8, 1));
        let mut said = p.written(writes[odd], false);
        for (_, write) in writes.iter().enumerate().filter(|(rank, _)| *rank != odd) {
            said.extend(p.written(*write, true));
        }
        let lost = to_decode(&said).into_iter().filter_map(|m| match m {
            PrefillToDecode::Unsettled { rank, .. } => Some(usize::from(rank)),
            _ => None,
        });
        assert_eq!(lost.collect::<Vec<_>>(), [odd]);
        assert_eq!(closings(&said).len(), usize::from(RANKS) - 1);
        assert!(
            closings(&said)
                .iter()
                .all(|(rank, sealed)| usize::from(*rank) != odd && !sealed)
        );
        let said = ended(&mut p, odd as u16, Answers::Unsettled);
        assert_eq!(detached(&said), [arena(1 + odd as u64)]);
        for rank in (0..RANKS).filter(|rank| usize::from(*rank) != odd) {
            ended(&mut p, rank, Answers::Closed);
        }
        p.tell(prefill::Event::Detached {
            arena: arena(1 + odd as u64),
        });
        assert!(p.machine.at_rest(), "rank {odd}");

        let mut p = PrefillRig::new(16, RANKS, false, |_| ());
        p.connect(D);
        let of = offers(&p.attempt(1, &spec(1, 8, 1)))[0];
        p.ticket(of, 1, 2, 1);
        let mut said = Vec::new();
        for rank in 0..usize::from(RANKS) {
            said.extend(p.attached(1 + rank as u64, rank != odd));
        }
        let lost = to_decode(&said).into_iter().filter_map(|m| match m {
            PrefillToDecode::Unsettled { rank, .. } => Some(usize::from(rank)),
            _ => None,
        });
        assert_eq!(lost.collect::<Vec<_>>(), [odd], "{said:?}");
        assert_eq!(closings(&said).len(), usize::from(RANKS) - 1);
    }
}

/// A ticket names every rank, each in its place, or it is a fault.
#[test]
fn h2_a_ticket_names_every_rank_in_its_place() {
    for odd in 0..usize::from(RANKS) {
        for wrong in [RANKS, (odd as u16 + 1) % RANKS] {
            let mut p = PrefillRig::new(16, RANKS, false, |_| ());
            p.connect(D);
            let offer = offers(&p.attempt(1, &spec(1, 8, 1)))[0];
            let landings = (0..RANKS).map(|rank| handoff::LandingSite {
                rank: if usize::from(rank) == odd {
                    wrong
                } else {
                    rank
                },
                arena: arena(1 + u64::from(rank)),
                slots: 4,
                address: Vec::new(),
            });
            let said = p.hear_decode(DecodeToPrefill::Ticket {
                offer,
                handoff: handoff(1),
                under: link(D),
                tags: (0..2).map(pages::StatedTag).collect(),
                first: 0,
                landings: landings.collect(),
                targets: Vec::new(),
            });
            assert_eq!(endings(&said).len(), 1, "rank {odd} as {wrong}: {said:?}");
        }
    }
}
