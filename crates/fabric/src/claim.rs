//! What a writer shows to get at its arena, and the arenas that may be claimed.
//!
//! A claim names both lives: the receiver's, in the arena's id, and the writer's. Whoever is of
//! another life, shows another secret or comes a second time is refused, and counted.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pages::{Epoch, WriterLife};

use crate::arena::{ArenaId, BadLanding, Shape};
use crate::receiver::Refusals;
use crate::sender::Refusal;

/// The secret that an attach must show, drawn by the receiver for one arena.
pub(crate) type Token = [u8; 32];

/// Says which fabric and version a claim is for.
pub(crate) type Magic = [u8; 8];

pub(crate) fn draw_token() -> io::Result<Token> {
    let mut token = [0; size_of::<Token>()];
    getrandom::fill(&mut token)?;
    Ok(token)
}

/// What a writer says first.
pub(crate) struct Claim {
    pub(crate) arena: ArenaId,
    pub(crate) token: Token,
    pub(crate) writer: WriterLife,
}

impl Claim {
    /// Length of an encoded claim.
    pub(crate) const BYTES: usize = 8 + 16 + 8 + 16 + 2 + 32;

    /// Both lives stand in front of the secret, so that a stale one is told so.
    pub(crate) fn encode(&self, magic: &Magic) -> Vec<u8> {
        let mut bytes = magic.to_vec();
        bytes.extend(lives(self.arena, self.writer));
        bytes.extend(self.token);
        bytes
    }

    /// `None` if it is no claim of this fabric.
    pub(crate) fn decode(bytes: &[u8; Self::BYTES], magic: &Magic) -> Option<Self> {
        let mut rest = &bytes[..];
        if take::<8>(&mut rest).ok()? != *magic {
            return None;
        }
        let owner = Epoch::new(u128::from_le_bytes(take(&mut rest).ok()?));
        let n = u64::from_le_bytes(take(&mut rest).ok()?);
        let epoch = Epoch::new(u128::from_le_bytes(take(&mut rest).ok()?));
        let rank = u16::from_le_bytes(take(&mut rest).ok()?);
        let token = take(&mut rest).ok()?;
        Some(Self {
            arena: ArenaId { owner, n },
            token,
            writer: WriterLife { epoch, rank },
        })
    }
}

/// The two lives of an endpoint, as they are said on the wire.
pub(crate) fn lives(arena: ArenaId, writer: WriterLife) -> [u8; 42] {
    let mut bytes = [0; 42];
    bytes[..16].copy_from_slice(&arena.owner.bits().to_le_bytes());
    bytes[16..24].copy_from_slice(&arena.n.to_le_bytes());
    bytes[24..40].copy_from_slice(&writer.epoch.bits().to_le_bytes());
    bytes[40..].copy_from_slice(&writer.rank.to_le_bytes());
    bytes
}

/// What every fabric's landing says first: which fabric, which arena, its secret and its shape.
pub(crate) fn landing(magic: &Magic, arena: ArenaId, token: &Token, shape: Shape) -> Vec<u8> {
    let mut bytes = magic.to_vec();
    bytes.extend(arena.owner.bits().to_le_bytes());
    bytes.extend(arena.n.to_le_bytes());
    bytes.extend(token);
    bytes.extend(shape.slots.to_le_bytes());
    bytes.extend((shape.slot_words as u64).to_le_bytes());
    bytes
}

/// Reads what [`landing`] wrote; what is left in `rest` is the fabric's own.
pub(crate) fn read_landing(
    rest: &mut &[u8],
    magic: &Magic,
) -> Result<(ArenaId, Token, Shape), BadLanding> {
    if take::<8>(rest)? != *magic {
        return Err(BadLanding::Foreign);
    }
    let owner = Epoch::new(u128::from_le_bytes(take(rest)?));
    let n = u64::from_le_bytes(take(rest)?);
    let token = take(rest)?;
    let slots = u32::from_le_bytes(take(rest)?);
    let slot_words =
        usize::try_from(u64::from_le_bytes(take(rest)?)).map_err(|_| BadLanding::SlotWords)?;
    let shape = Shape { slots, slot_words };
    Ok((ArenaId { owner, n }, token, shape))
}

/// Splits bytes off the front of what a peer sent.
pub(crate) fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], BadLanding> {
    let (first, others) = rest.split_first_chunk().ok_or(BadLanding::Short)?;
    *rest = others;
    Ok(*first)
}

/// The answer to a claim that is not refused.
pub(crate) const GRANTED: u8 = 0;

const REFUSALS: [Refusal; 5] = [
    Refusal::NotOpen,
    Refusal::OtherLife,
    Refusal::WrongToken,
    Refusal::Used,
    Refusal::StaleReceiver,
];

/// The byte that says a refusal.
pub(crate) fn code(refusal: Refusal) -> u8 {
    let at = REFUSALS.iter().position(|&known| known == refusal);
    at.map_or(u8::MAX, |at| at as u8 + 1)
}

/// What a byte other than [`GRANTED`] says.
pub(crate) fn refusal(code: u8) -> Option<Refusal> {
    REFUSALS.get(usize::from(code).checked_sub(1)?).copied()
}

/// An arena that may be claimed once; `T` is what the claim gives.
struct Offer<T> {
    writer: WriterLife,
    token: Token,
    /// Taken by the claim; a second one finds nothing.
    given: Option<T>,
}

/// The arenas that may be claimed, shared by a receiver and whoever answers claims.
pub(crate) struct Offers<T>(Arc<Shared<T>>);

struct Shared<T> {
    offers: Mutex<Known<T>>,
    /// Claims of each refusal, in the order of [`REFUSALS`], and connections without a claim.
    refused: [AtomicU64; REFUSALS.len()],
    strangers: AtomicU64,
}

struct Known<T> {
    owner: Option<Epoch>,
    offers: BTreeMap<ArenaId, Offer<T>>,
}

impl<T> Clone for Offers<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Default for Offers<T> {
    fn default() -> Self {
        let (owner, offers) = (None, BTreeMap::new());
        Self(Arc::new(Shared {
            offers: Mutex::new(Known { owner, offers }),
            refused: Default::default(),
            strangers: AtomicU64::new(0),
        }))
    }
}

impl<T> Offers<T> {
    pub(crate) fn put(&self, arena: ArenaId, writer: WriterLife, token: Token, given: T) {
        let mut known = self.lock();
        known.owner = Some(arena.owner);
        let given = Some(given);
        let offer = Offer {
            writer,
            token,
            given,
        };
        known.offers.insert(arena, offer);
    }

    /// From here on the arena cannot be claimed.
    pub(crate) fn withdraw(&self, arena: ArenaId) {
        let offer = self.lock().offers.remove(&arena);
        drop(offer); // not under the lock
    }

    /// What the arena's one claim gives.
    pub(crate) fn redeem(&self, claim: &Claim) -> Result<T, Refusal> {
        let redeemed = self.look_up(claim);
        if let Err(refusal) = redeemed {
            tracing::warn!(arena = %claim.arena, writer = ?claim.writer, %refusal, "claim refused");
            self.count(refusal);
        }
        redeemed
    }

    fn look_up(&self, claim: &Claim) -> Result<T, Refusal> {
        let mut known = self.lock();
        if known.owner.is_some_and(|owner| owner != claim.arena.owner) {
            return Err(Refusal::StaleReceiver);
        }
        let offer = known.offers.get_mut(&claim.arena);
        let offer = offer.ok_or(Refusal::NotOpen)?;
        if !equal(&offer.token, &claim.token) {
            return Err(Refusal::WrongToken);
        }
        // A landing that strayed to another life stays good for the one it is for.
        if offer.writer != claim.writer {
            return Err(Refusal::OtherLife);
        }
        offer.given.take().ok_or(Refusal::Used)
    }

    pub(crate) fn count(&self, refusal: Refusal) {
        let at = usize::from(code(refusal)) - 1;
        self.0.refused[at].fetch_add(1, Ordering::Relaxed);
    }

    /// Somebody connected and made no claim: another program, another cluster, nobody's client.
    pub(crate) fn count_stranger(&self) {
        self.0.strangers.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn refusals(&self) -> Refusals {
        let of = |refusal| {
            let at = usize::from(code(refusal)) - 1;
            self.0.refused[at].load(Ordering::Relaxed)
        };
        Refusals {
            stale_receiver: of(Refusal::StaleReceiver),
            not_open: of(Refusal::NotOpen),
            other_life: of(Refusal::OtherLife),
            wrong_token: of(Refusal::WrongToken),
            used: of(Refusal::Used),
            strangers: self.0.strangers.load(Ordering::Relaxed),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Known<T>> {
        // No code that can panic runs under this lock.
        self.0.offers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Compares without telling by its duration where the first difference is.
fn equal(a: &Token, b: &Token) -> bool {
    a.iter()
        .zip(b)
        .fold(0, |difference, (a, b)| difference | (a ^ b))
        == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const OWNER: u128 = u128::MAX / 3;
    const EPOCH: u128 = u128::MAX / 5;

    fn claim() -> Claim {
        Claim {
            arena: ArenaId {
                owner: Epoch::new(OWNER),
                n: u64::MAX / 3,
            },
            token: [0x5a; 32],
            writer: WriterLife {
                epoch: Epoch::new(EPOCH),
                rank: 300,
            },
        }
    }

    /// As it was, with something changed.
    fn other(change: impl FnOnce(&mut Claim)) -> Claim {
        let mut claim = claim();
        change(&mut claim);
        claim
    }

    /// H-8: an endpoint is of one life, one rank, one arena of one owner, and shows one secret: each
    /// of their bits counts, and who is refused leaves the claim to the one whose it is.
    #[test]
    fn every_bit_of_a_claim_counts() {
        let offers = Offers::default();
        let right = claim();
        offers.put(right.arena, right.writer, right.token, ());
        let refused = |claim: Claim| offers.redeem(&claim).expect_err("another's");
        for bit in 0..128 {
            let epoch = Epoch::new(EPOCH ^ (1 << bit));
            let life = refused(other(|claim| claim.writer.epoch = epoch));
            assert_eq!(life, Refusal::OtherLife, "bit {bit} of a life");
            let owner = Epoch::new(OWNER ^ (1 << bit));
            let stale = refused(other(|claim| claim.arena.owner = owner));
            assert_eq!(stale, Refusal::StaleReceiver, "bit {bit} of an owner");
        }
        for bit in 0..16 {
            let rank = refused(other(|claim| claim.writer.rank ^= 1 << bit));
            assert_eq!(rank, Refusal::OtherLife, "bit {bit} of a rank");
        }
        for bit in 0..64 {
            let arena = refused(other(|claim| claim.arena.n ^= 1 << bit));
            assert_eq!(arena, Refusal::NotOpen, "bit {bit} of an arena");
        }
        for bit in 0..256 {
            let token = refused(other(|claim| claim.token[bit / 8] ^= 1 << (bit % 8)));
            assert_eq!(token, Refusal::WrongToken, "bit {bit} of a secret");
        }
        assert_eq!(offers.refusals().total(), 2 * 128 + 16 + 64 + 256);
        assert_eq!(offers.redeem(&right), Ok(()));
        assert_eq!(offers.redeem(&right), Err(Refusal::Used));
        offers.withdraw(right.arena);
        assert_eq!(offers.redeem(&right), Err(Refusal::NotOpen));
    }

    proptest! {
        /// What is said is what is heard: nothing of a name is cut off on its way.
        #[test]
        fn a_claim_reads_as_it_was_written(
            owner: u128, n: u64, epoch: u128, rank: u16, token: [u8; 32],
        ) {
            let claim = Claim {
                arena: ArenaId { owner: Epoch::new(owner), n },
                token,
                writer: WriterLife { epoch: Epoch::new(epoch), rank },
            };
            let bytes = claim.encode(b"a magic ");
            let bytes: [u8; Claim::BYTES] = bytes.try_into().expect("its length");
            let read = Claim::decode(&bytes, b"a magic ").expect("a claim");
            prop_assert_eq!(read.arena, claim.arena);
            prop_assert_eq!((read.writer, read.token), (claim.writer, claim.token));
            prop_assert!(Claim::decode(&bytes, b"a Magic ").is_none());
            let lives = lives(claim.arena, claim.writer);
            prop_assert_eq!(&bytes[8..50], &lives[..]);
        }
    }
}
