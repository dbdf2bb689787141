//! Messages parse totally: any bytes give a message or an error, never a panic, and a message that
//! was encoded comes back as it was.

use handoff::codec::{CodecError, MAX_BYTES, VERSION, decode, encode};
use handoff::{
    ArenaId, AttemptId, Closing, Conn, DecodeToGateway, DecodeToPrefill, GatewayToDecode,
    GatewayToPrefill, HandoffId, LandingSite, LinkId, Manifest, OfferId, PrefillToDecode,
    PrefillToGateway, Spec, StatedPage, digest,
};
use pages::{Domain, Epoch, StatedTag};
use proptest::prelude::*;

fn spec(tokens: Vec<u32>) -> Spec {
    Spec {
        choices: 2,
        cache: true,
        sampling: vec![1, 2],
        ..Spec::new(Domain::new(3), tokens, 4)
    }
}

fn messages(tokens: Vec<u32>, n: u64) -> Vec<PrefillToDecode> {
    let epoch = Epoch::new(u128::from(n) << 64 | 5);
    let handoff = HandoffId { epoch, n };
    let page = StatedPage {
        slot: 1,
        tag: StatedTag(n),
        ordinal: 2,
        filled: 3,
        checksum: 4,
    };
    let manifest = Manifest {
        handoff,
        rank: 1,
        arena: ArenaId { epoch, n },
        batch: 9,
        pages: vec![page],
    };
    vec![
        PrefillToDecode::Sync {
            under: LinkId {
                epoch,
                conn: Conn(n),
            },
            tickets: vec![handoff],
            offers: vec![OfferId { epoch, n }],
        },
        PrefillToDecode::Offer {
            offer: OfferId { epoch, n },
            attempt: AttemptId { epoch, n },
            count: tokens.len() as u32,
            digest: digest(&tokens),
        },
        PrefillToDecode::Landed(manifest),
        PrefillToDecode::Closed {
            handoff,
            rank: 0,
            how: Closing::Sealed {
                batches: 1,
                pages: 2,
                first: Some(vec![n as u8]),
            },
        },
        PrefillToDecode::Unsettled {
            handoff,
            rank: 0,
            slots: vec![1, 2, 3],
        },
    ]
}

proptest! {
    #[test]
    fn what_was_encoded_comes_back(tokens in prop::collection::vec(any::<u32>(), 0..50), n: u64) {
        for message in messages(tokens.clone(), n) {
            let bytes = encode(&message).unwrap();
            prop_assert_eq!(decode::<PrefillToDecode>(&bytes).unwrap(), message);
        }
        let attempt = AttemptId { epoch: Epoch::new(1), n };
        let expect = GatewayToDecode::Expect {
            attempt, spec: spec(tokens), prefill: Epoch::new(2), deadline_ms: n,
        };
        let bytes = encode(&expect).unwrap();
        prop_assert_eq!(decode::<GatewayToDecode>(&bytes).unwrap(), expect);
    }

    #[test]
    fn any_bytes_are_a_message_or_an_error(mut bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        if let Some(first) = bytes.first_mut() {
            *first = VERSION;
        }
        let _ = decode::<GatewayToDecode>(&bytes);
        let _ = decode::<GatewayToPrefill>(&bytes);
        let _ = decode::<PrefillToDecode>(&bytes);
        let _ = decode::<PrefillToGateway>(&bytes);
        let _ = decode::<DecodeToPrefill>(&bytes);
        let _ = decode::<DecodeToGateway>(&bytes);
    }

    #[test]
    fn a_damaged_message_never_panics(at: prop::sample::Index, bit in 0..8u8, cut: prop::sample::Index) {
        for message in messages(vec![1, 2, 3], 77) {
            let mut bytes = encode(&message).unwrap();
            let _ = decode::<PrefillToDecode>(&bytes[..cut.index(bytes.len())]);
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            let _ = decode::<PrefillToDecode>(&bytes);
        }
    }
}

#[test]
fn another_version_and_trailing_bytes_are_refused() {
    let mut bytes = encode(&DecodeToPrefill::Synced).unwrap();
    bytes.push(0);
    assert!(matches!(
        decode::<DecodeToPrefill>(&bytes),
        Err(CodecError::Malformed(_))
    ));
    bytes[0] = VERSION + 1;
    assert_eq!(
        decode::<DecodeToPrefill>(&bytes),
        Err(CodecError::Version { got: VERSION + 1 })
    );
    assert_eq!(decode::<DecodeToPrefill>(&[]), Err(CodecError::Empty));
}

#[test]
fn a_message_that_claims_a_huge_list_costs_nothing() {
    // Version, variant `Sync`, then a list of 2^63 tickets.
    let mut bytes = vec![VERSION, 1];
    bytes.extend([0xff; 9]);
    bytes.push(0x01);
    assert!(matches!(
        decode::<PrefillToDecode>(&bytes),
        Err(CodecError::Malformed(_))
    ));
    let sites = vec![LandingSite {
        rank: 0,
        arena: ArenaId {
            epoch: Epoch::new(1),
            n: 1,
        },
        slots: 1,
        address: vec![0; MAX_BYTES],
    }];
    let ticket = DecodeToPrefill::Ticket {
        offer: OfferId {
            epoch: Epoch::new(1),
            n: 1,
        },
        handoff: HandoffId {
            epoch: Epoch::new(1),
            n: 1,
        },
        under: LinkId {
            epoch: Epoch::new(1),
            conn: Conn(1),
        },
        tags: Vec::new(),
        first: 0,
        landings: sites,
        targets: Vec::new(),
    };
    assert!(matches!(encode(&ticket), Err(CodecError::TooLarge(_))));
}

/// The bound is the last size that is allowed, on both sides.
#[test]
fn a_message_may_have_exactly_as_many_bytes_as_the_bound_says() {
    // A version, a length in four bytes, and what it counts.
    let largest = vec![7u8; MAX_BYTES - 5];
    let bytes = encode(&largest).expect("exactly at the bound");
    assert_eq!(bytes.len(), MAX_BYTES);
    assert_eq!(decode::<Vec<u8>>(&bytes), Ok(largest));
    let over = vec![7u8; MAX_BYTES - 4];
    assert_eq!(encode(&over), Err(CodecError::TooLarge(MAX_BYTES + 1)));
    for beyond in [1, 100] {
        let bytes = [bytes.clone(), vec![0; beyond]].concat();
        let told = decode::<Vec<u8>>(&bytes);
        assert_eq!(told, Err(CodecError::TooLarge(MAX_BYTES + beyond)));
    }
}
