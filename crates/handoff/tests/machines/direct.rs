//! Direct mode: the fabric writes into D's own pages. Whoever owned them has ended long before they
//! are free: that waits for the certificate or the fence of every writer (H-3), and for nothing
//! else, however dead a writer may look (H-15).

use crate::decode_rig::{DecodeRig, Ticket, audits, endings, fences, offer_id, starts, to_prefill};
use crate::prefill_rig::{PrefillRig, offers, submitted, to_decode};
use crate::rig::{NEIGHBOUR, PREFILL, attempt, checksum, spec};
use handoff::decode::{CheckPage, Effect, Event, Mode, Timer};
use handoff::{
    Closing, Conn, DecodeToPrefill, Ending, Failure, Fault, GatewayToDecode, Hangup, LinkId,
    PrefillToDecode,
};
use pages::{Epoch, PageId};

/// A ticket of four pages for a prompt of 14 tokens, by a P of `ranks` ranks. One more page is
/// reserved for the output.
fn scene(ranks: u16) -> (DecodeRig, Ticket) {
    let mut d = DecodeRig::new(32, |config| config.mode = Mode::Direct);
    d.connect(PREFILL, 10, ranks);
    let ticket = d.granted(PREFILL, 10, 1, &spec(1, 14, 4));
    (d, ticket)
}

fn deadline(d: &mut DecodeRig) -> Vec<Effect> {
    d.tell(Event::Fired(Timer::Attempt(attempt(1))))
}

#[track_caller]
fn assert_kept(d: &mut DecodeRig, pages: usize) {
    let counts = d.counts();
    assert_eq!(counts.quarantined, pages, "kept from everybody: {counts:?}");
    assert_eq!(counts.free + counts.quarantined, 32, "{counts:?}");
}

#[test]
fn the_ticket_names_pages_and_a_batch_is_compared_where_it_lies() {
    let (mut d, ticket) = scene(1);
    assert_eq!(ticket.targets.len(), ticket.tags.len());
    let batch = ticket.manifest(0, 0, 0..4);
    let said = d.state(10, &batch);
    let check = |(at, page): (usize, &PageId)| CheckPage {
        page: *page,
        filled: if at == 3 { 2 } else { 4 },
    };
    let pages = ticket.targets.iter().enumerate().map(check).collect();
    let expected = Effect::Check {
        handoff: ticket.handoff,
        rank: 0,
        batch: 0,
        pages,
    };
    assert_eq!(said, [expected]);
    assert_eq!(to_prefill(&d.copied(&batch)).len(), 1, "Taken");
    let said = d.close(10, ticket.handoff, 0, ticket.sealed(Some(1)));
    assert!(starts(&said));
    assert_eq!(d.counts().sealed, 4);
    d.first(&ticket, 1, None);
    d.step(|_| None);
}

#[test]
fn h2_a_batch_that_lies_in_another_page_than_the_ticket_named() {
    let (mut d, ticket) = scene(1);
    let mut batch = ticket.manifest(0, 0, 0..2);
    batch.pages[1].slot = ticket.targets[2].index() as u32;
    let said = d.state(10, &batch);
    let audited: Vec<_> = audits(&said).into_iter().map(|(what, _)| what).collect();
    assert_eq!(audited, [Failure::Integrity(Fault::BadBatch)]);
}

#[test]
fn h3_a_deadline_ends_the_owner_and_a_late_write_finds_its_page_kept() {
    let (mut d, ticket) = scene(1);
    let said = deadline(&mut d);
    let handoff = ticket.handoff;
    assert_eq!(to_prefill(&said), [DecodeToPrefill::Cancel { handoff }]);
    assert_kept(&mut d, 4);
    let said = d.tell(Event::Fired(Timer::Cancel(handoff)));
    assert_eq!(fences(&said), [ticket.landings[0].arena]);
    assert_kept(&mut d, 4);
    d.fenced(ticket.landings[0].arena);
    assert_kept(&mut d, 0);
    assert!(d.machine.at_rest());
}

#[test]
fn h3_closed_frees_what_was_cancelled() {
    let (mut d, ticket) = scene(1);
    d.hear_gateway(GatewayToDecode::Cancel {
        attempt: attempt(1),
    });
    assert_kept(&mut d, 4);
    let said = d.close(10, ticket.handoff, 0, Closing::Abandoned { why: None });
    assert_eq!(to_prefill(&said).len(), 1, "answered: {said:?}");
    assert_kept(&mut d, 0);
}

#[test]
fn h3_unsettled_frees_nothing_before_the_fence() {
    let (mut d, ticket) = scene(1);
    let slots = vec![ticket.targets[0].index() as u32];
    let said = d.unsettled(10, &ticket, slots);
    assert_eq!(fences(&said), [ticket.landings[0].arena]);
    assert_kept(&mut d, 4);
    d.fenced(ticket.landings[0].arena);
    assert_kept(&mut d, 0);
}

/// A certificate that turns out to be wrong was none: the pages wait for the fence.
#[test]
fn h3_an_integrity_fault_voids_closed() {
    let (mut d, ticket) = scene(1);
    let batch = ticket.manifest(0, 0, 0..4);
    d.state(10, &batch);
    d.close(10, ticket.handoff, 0, ticket.sealed(Some(1)));
    let checksums = (0..4).map(|ordinal| checksum(ordinal) ^ u32::from(ordinal == 2));
    let said = d.tell(Event::Copied {
        handoff: ticket.handoff,
        rank: 0,
        batch: 0,
        checksums: Some(checksums.collect()),
    });
    let failure = Failure::Integrity(Fault::WrongChecksum);
    assert_eq!(endings(&said), [(1, Ending::Failed(failure))]);
    assert_eq!(fences(&said), [ticket.landings[0].arena]);
    assert_kept(&mut d, 4);
    d.close(10, ticket.handoff, 0, ticket.sealed(Some(1)));
    assert_kept(&mut d, 4);
    d.sync_anew(11, &[]);
    assert_kept(&mut d, 4);
    d.fenced(ticket.landings[0].arena);
    assert_kept(&mut d, 0);
}

#[test]
fn h3_every_rank_is_a_writer_of_every_page() {
    let (mut d, ticket) = scene(2);
    deadline(&mut d);
    d.close(10, ticket.handoff, 0, Closing::Abandoned { why: None });
    assert_kept(&mut d, 4);
    d.close(10, ticket.handoff, 0, Closing::Abandoned { why: None });
    assert_kept(&mut d, 4);
    d.close(10, ticket.handoff, 1, Closing::Abandoned { why: None });
    assert_kept(&mut d, 0);
}

/// A check in flight reads the page: neither certificate nor fence frees it before.
#[test]
fn h3_a_check_in_flight_keeps_its_pages() {
    let (mut d, ticket) = scene(1);
    let batch = ticket.manifest(0, 0, 0..2);
    d.state(10, &batch);
    deadline(&mut d);
    d.close(10, ticket.handoff, 0, Closing::Abandoned { why: None });
    assert_kept(&mut d, 2);
    d.copied(&batch);
    assert_kept(&mut d, 0);
}

#[test]
fn h3_neither_a_lost_connection_nor_a_new_life_is_a_fence() {
    let (mut d, ticket) = scene(1);
    d.tell(Event::Disconnected(Conn(10)));
    deadline(&mut d);
    assert_kept(&mut d, 4);
    d.connect(NEIGHBOUR, 20, 1);
    assert_kept(&mut d, 4);
    let life = crate::rig::Epoch::new(PREFILL);
    let said = d.tell(Event::Fired(Timer::Peer(life)));
    assert_eq!(fences(&said), [ticket.landings[0].arena]);
    assert_kept(&mut d, 4);
    d.fenced(ticket.landings[0].arena);
    assert_kept(&mut d, 0);
}

#[test]
fn h3_what_sync_does_not_list_counts_as_closed() {
    let (mut d, ticket) = scene(1);
    deadline(&mut d);
    d.sync_anew(11, &[ticket.handoff]);
    assert_kept(&mut d, 4);
    d.sync_anew(12, &[]);
    assert_kept(&mut d, 0);
}

/// What another life does not hold says nothing about this one: its Sync, wherever it comes out, is not
/// heard on this life's connection.
#[test]
fn h3_what_another_lifes_sync_does_not_list_stays_granted() {
    let (mut d, _) = scene(1);
    deadline(&mut d);
    d.tell(Event::Disconnected(Conn(10)));
    d.hello(PREFILL, 11, 1);
    let under = LinkId {
        epoch: Epoch::new(PREFILL + 100),
        conn: Conn(12),
    };
    let (tickets, offers) = (Vec::new(), Vec::new());
    let sync = PrefillToDecode::Sync {
        under,
        tickets,
        offers,
    };
    let said = d.hear_prefill(11, sync);
    assert!(
        said.contains(&Effect::Close(Conn(11), Hangup::OutOfOrder)),
        "{said:?}"
    );
    assert_kept(&mut d, 4);
}

/// A repeated ticket names the same pages.
#[test]
fn h18_a_lost_ticket_is_repeated_with_its_targets() {
    let (mut d, ticket) = scene(1);
    d.hello(PREFILL, 11, 1);
    let said = d.sync(11, &[], &[offer_id(PREFILL, 1)]);
    let again = crate::decode_rig::ticket(&said, &spec(1, 14, 4));
    assert_eq!(again, Some(ticket));
}

#[test]
fn p_writes_the_pages_that_the_ticket_names_and_takes_no_slots_for_them() {
    let mut p = PrefillRig::connected(8);
    let said = p.attempt(1, &spec(1, 24, 2));
    let of = offers(&said)[0];
    let targets = [7, 3, 9, 1, 30, 2].map(PageId::new);
    p.direct_ticket(of, 1, 6, 1, targets.to_vec());
    p.attached(1, true);
    let mut sent = Vec::new();
    // More pages than the endpoint has slots: two batches of two in flight, then the rest.
    let mut flying = submitted(&p.chunk(of, 24));
    while !flying.is_empty() {
        let (submission, pages) = flying.remove(0);
        sent.extend(pages);
        let said = p.written(submission, true);
        flying.extend(submitted(&said));
        let landed = to_decode(&said)
            .into_iter()
            .find_map(|message| match message {
                PrefillToDecode::Landed(manifest) => Some(manifest.batch),
                _ => None,
            });
        p.taken(1, landed.expect("a statement"));
    }
    let slots: Vec<u32> = sent.iter().map(|page| page.slot).collect();
    assert_eq!(slots, [7, 3, 9, 1, 30, 2]);
}

#[test]
fn h2_a_ticket_whose_targets_are_not_its_pages() {
    let mut p = PrefillRig::connected(8);
    let said = p.attempt(1, &spec(1, 8, 2));
    let of = offers(&said)[0];
    let said = p.direct_ticket(of, 1, 2, 1, vec![PageId::new(1)]);
    let closed = PrefillToDecode::Closed {
        handoff: crate::prefill_rig::handoff(1),
        rank: 0,
        how: Closing::Abandoned {
            why: Some(handoff::Failure::Integrity(handoff::Fault::WrongTokens)),
        },
    };
    assert_eq!(to_decode(&said), [closed]);
}
