//! The messages of the side channel between guards: who moves the bytes is not this crate's
//! business. Each message is authenticated under a key of its own direction; an answer repeats the
//! nonce of its question, so that no old answer fits a new question.

use crate::{Claim, Nonce as NonceBytes, Producer, Refusal, Secret};
use pages::Epoch;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

pub use crate::producer::Nonce;

const MAC_BYTES: usize = 32;
const VERSION: u8 = 1;
/// No message is longer, in bytes: a statement over the most blocks fits.
const MESSAGE_BYTES_MAX: usize = 4 << 20;

/// Who speaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// The side that fetches blocks.
    Consumer,
    /// The side that computed them.
    Producer,
}

/// Sealing and opening of messages.
#[derive(Clone, Copy, Debug)]
pub struct Envelope;

#[derive(Serialize, Deserialize)]
struct Question {
    epoch: Epoch,
    serial: u64,
}

impl Envelope {
    /// The bytes of `body` as `role` says it.
    fn seal<T: Serialize>(secret: &Secret, role: Role, nonce: NonceBytes, body: &T) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        bytes.extend_from_slice(&nonce);
        // Serialization of plain data into memory has no way to fail.
        bytes.extend(postcard::to_stdvec(body).unwrap_or_default());
        let mac = secret.sign_message(role == Role::Producer, &bytes);
        bytes.extend_from_slice(mac.as_bytes());
        bytes
    }

    /// What `role` says in `bytes`; none if it is not authentic, too long, or not understood.
    fn open<T: DeserializeOwned>(
        secret: &Secret,
        role: Role,
        bytes: &[u8],
    ) -> Option<(NonceBytes, T)> {
        if bytes.len() > MESSAGE_BYTES_MAX {
            return None;
        }
        let (signed, mac) = bytes.split_at_checked(bytes.len().checked_sub(MAC_BYTES)?)?;
        let mac = blake3::Hash::from_slice(mac).ok()?;
        if secret.sign_message(role == Role::Producer, signed) != mac {
            return None;
        }
        let (head, body) = signed.split_at_checked(1 + size_of::<NonceBytes>())?;
        let (version, nonce) = head.split_first()?;
        if *version != VERSION {
            return None;
        }
        Some((nonce.try_into().ok()?, postcard::from_bytes(body).ok()?))
    }

    /// The question for the statement of a reference.
    pub fn claim(secret: &Secret, nonce: NonceBytes, epoch: Epoch, serial: u64) -> Vec<u8> {
        Self::seal(secret, Role::Consumer, nonce, &Question { epoch, serial })
    }

    /// The producer's answer to whatever has arrived, and what it was if it was authentic. What is
    /// not gets an answer that is worth nothing to whoever lacks the secret.
    pub fn answer(
        secret: &Secret,
        producer: &mut Producer,
        bytes: &[u8],
        now_ms: u64,
    ) -> (Vec<u8>, Option<(u64, Claim)>) {
        let opened = Self::open::<Question>(secret, Role::Consumer, bytes);
        let Some((nonce, Question { epoch, serial })) = opened else {
            let refused = Claim::Refused(Refusal::Unreadable);
            return (Self::seal(secret, Role::Producer, [0; 16], &refused), None);
        };
        let claim = producer.claim(epoch, serial, nonce, now_ms);
        let bytes = Self::seal(secret, Role::Producer, nonce, &claim);
        (bytes, Some((serial, claim)))
    }

    /// The answer in `bytes`, if the producer gave it to the question with this nonce.
    pub fn read(secret: &Secret, nonce: NonceBytes, bytes: &[u8]) -> Option<Claim> {
        let (of, claim) = Self::open(secret, Role::Producer, bytes)?;
        let unread = claim == Claim::Refused(Refusal::Unreadable);
        (of == nonce || unread).then_some(claim)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIFE: Epoch = Epoch::new(5);

    fn secret() -> Secret {
        Secret::new(b"a secret of the fleet").unwrap()
    }

    fn producer() -> Producer {
        let mut producer = Producer::new(LIFE, 8);
        producer.state(1, vec![1, 2, 3], 1000);
        producer
    }

    #[test]
    fn a_claim_is_answered_with_the_statement() {
        let question = Envelope::claim(&secret(), [7; 16], LIFE, 1);
        let (answer, what) = Envelope::answer(&secret(), &mut producer(), &question, 0);
        let granted = Claim::Granted(vec![1, 2, 3]);
        assert_eq!(what, Some((1, granted.clone())));
        assert_eq!(Envelope::read(&secret(), [7; 16], &answer), Some(granted));
    }

    #[test]
    fn an_answer_to_another_question_is_none() {
        let question = Envelope::claim(&secret(), [7; 16], LIFE, 1);
        let (answer, _) = Envelope::answer(&secret(), &mut producer(), &question, 0);
        assert_eq!(Envelope::read(&secret(), [8; 16], &answer), None);
        assert_eq!(
            Envelope::read(&secret(), [7; 16], &question),
            None,
            "reflected"
        );
    }

    #[test]
    fn another_secret_opens_nothing() {
        let other = Secret::new(b"a secret of the float").unwrap();
        let question = Envelope::claim(&other, [7; 16], LIFE, 1);
        let mut producer = producer();
        let (answer, what) = Envelope::answer(&secret(), &mut producer, &question, 0);
        assert_eq!(what, None);
        assert_eq!(Envelope::read(&other, [7; 16], &answer), None);
        let granted = producer.claim(LIFE, 1, [9; 16], 0);
        assert!(
            matches!(granted, Claim::Granted(_)),
            "nothing was claimed by it"
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_answered(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let (_, what) = Envelope::answer(&secret(), &mut producer(), &bytes, 0);
            prop_assert_eq!(what, None);
        }

        #[test]
        fn one_changed_byte_is_noticed(at in 0usize..400, to in any::<u8>()) {
            let question = Envelope::claim(&secret(), [7; 16], LIFE, 1);
            let (mut answer, _) = Envelope::answer(&secret(), &mut producer(), &question, 0);
            let at = at % answer.len();
            prop_assume!(answer[at] != to);
            answer[at] = to;
            prop_assert_eq!(Envelope::read(&secret(), [7; 16], &answer), None);
        }
    }
}
