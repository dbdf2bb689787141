//! What passes a relay: read, told to the board, and changed where the schedule says so.

use super::board::Board;
use super::faults::{Kind, Schedule};
use handoff::{
    ArenaId, Closing, DecodeToGateway, DecodeToPrefill, GatewayToDecode, HandoffId, Manifest,
    OfferId, PrefillToDecode, codec,
};
use pages::StatedTag;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use wire::Frame;

/// From whom to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// From the dialler to the listener.
    There,
    /// From the listener to the dialler.
    Back,
}

/// Sees every frame of a relay.
pub(crate) trait Tap: Send + Sync {
    /// Frames to send instead of this one; none: the frame as it is.
    fn pass(&self, way: Way, frame: &[u8]) -> Option<Vec<Vec<u8>>>;
}

fn read<M: DeserializeOwned>(frame: &[u8]) -> Option<M> {
    match Frame::decode(frame) {
        Ok(Frame::Core(message)) => codec::decode(message).ok(),
        _ => None,
    }
}

fn frame(message: &impl serde::Serialize) -> Vec<u8> {
    let bytes = codec::encode(message).expect("a message that was read can be said");
    Frame::Core(&bytes).encode()
}

/// Nothing is changed and nothing said: only the relay's own faults.
pub(crate) struct Plain;

impl Tap for Plain {
    fn pass(&self, _: Way, _: &[u8]) -> Option<Vec<Vec<u8>>> {
        None
    }
}

/// Between gateway and decode: an attempt's phases as the gateway sees them.
pub(crate) struct GatewayDecode {
    pub board: Arc<Board>,
    tokens: Mutex<BTreeMap<String, u64>>,
}

impl GatewayDecode {
    pub(crate) fn new(board: Arc<Board>) -> Self {
        Self {
            board,
            tokens: Mutex::default(),
        }
    }

    fn say(&self, phase: &str, attempt: &impl ToString, more: &Value) {
        self.board.say(phase, &attempt.to_string(), more);
    }
}

/// Tokens of an attempt after which its client has certainly begun to hear.
const STREAMING_FROM: u64 = 4;

impl Tap for GatewayDecode {
    fn pass(&self, way: Way, bytes: &[u8]) -> Option<Vec<Vec<u8>>> {
        let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        if way == Way::There {
            if let Some(GatewayToDecode::Expect { attempt, spec, .. }) = read(bytes) {
                let more = json!({"max_new": spec.max_new, "prompt": spec.tokens.len()});
                self.say("expected", &attempt, &more);
            }
            return None;
        }
        match read(bytes)? {
            DecodeToGateway::Committed { attempt, .. } => {
                tokens.insert(attempt.to_string(), 0);
                self.say("committed", &attempt, &Value::Null);
            }
            DecodeToGateway::Tokens { attempt, .. } => {
                let seen = tokens.entry(attempt.to_string()).or_default();
                *seen += 1;
                match *seen {
                    2 => self.say("decoding", &attempt, &Value::Null),
                    STREAMING_FROM => self.say("streaming", &attempt, &Value::Null),
                    _ => {}
                }
            }
            DecodeToGateway::Ended { attempt, ending } => {
                tokens.remove(&attempt.to_string());
                self.say("ended", &attempt, &json!(format!("{ending:?}")));
            }
            DecodeToGateway::Hello(_)
            | DecodeToGateway::Expecting { .. }
            | DecodeToGateway::PutBack { .. } => {}
        }
        None
    }
}

/// Between prefill and decode: where statements are made.
pub(crate) struct PrefillDecode {
    pub schedule: Arc<Schedule>,
    pub board: Arc<Board>,
    names: Mutex<Names>,
}

/// Which attempt an offer and a handoff are of, and the handoffs that have begun to land.
#[derive(Default)]
struct Names {
    offers: BTreeMap<OfferId, String>,
    handoffs: BTreeMap<HandoffId, String>,
    landing: BTreeMap<HandoffId, Lied>,
    /// The first handoff that was stated at all, and everything that was stated of it.
    former: Option<(HandoffId, Vec<PrefillToDecode>)>,
}

/// What was changed of a handoff's statements.
#[derive(Default)]
struct Lied {
    /// Pages of the ticket.
    pages: u32,
    /// Pages that were left out, or stated once more.
    missing: u32,
}

impl PrefillDecode {
    pub(crate) fn new(schedule: Arc<Schedule>, board: Arc<Board>) -> Self {
        Self {
            schedule,
            board,
            names: Mutex::default(),
        }
    }

    fn names(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hits(&self, kind: Kind) -> bool {
        self.schedule.strikes(kind).is_some()
    }

    fn offer(&self, message: PrefillToDecode) -> Vec<PrefillToDecode> {
        let PrefillToDecode::Offer {
            offer,
            attempt,
            count,
            mut digest,
        } = message
        else {
            return vec![message];
        };
        self.names().offers.insert(offer, attempt.to_string());
        self.board
            .say("offered", &attempt.to_string(), &Value::Null);
        if self.hits(Kind::WrongTokens) {
            digest[0] ^= 1;
        }
        vec![PrefillToDecode::Offer {
            offer,
            attempt,
            count,
            digest,
        }]
    }

    /// A batch has landed, and this is what prefill says of it.
    fn landed(&self, mut manifest: Manifest) -> Vec<PrefillToDecode> {
        let handoff = manifest.handoff;
        let mut names = self.names();
        let attempt = names.handoffs.get(&handoff).cloned().unwrap_or_default();
        let lied = names.landing.entry(handoff).or_default();
        let (first, granted) = (manifest.batch == 0, lied.pages);
        if first {
            self.board.say("transfer", &attempt, &Value::Null);
        }
        let pages = &mut manifest.pages;
        if pages.len() > 1 {
            // At the last page of the prompt, so that what is left out is the end.
            let last = pages.iter().any(|page| page.ordinal + 1 == granted);
            if last && self.hits(Kind::MissingPage) {
                pages.pop();
                lied.missing += 1;
            }
            if self.hits(Kind::WrongOrder) {
                let (one, other) = (pages[0].ordinal, pages[1].ordinal);
                (pages[0].ordinal, pages[1].ordinal) = (other, one);
            }
            if self.hits(Kind::BadBatch) {
                pages[1].slot = pages[0].slot;
            }
            if self.hits(Kind::PageTwice) {
                let slot = pages[1].slot;
                pages[1] = pages[0];
                pages[1].slot = slot;
            }
        }
        let page = &mut pages[0];
        if self.hits(Kind::WrongTag) {
            page.tag = StatedTag(page.tag.0 + 1_000_000);
        }
        if self.hits(Kind::WrongFill) {
            page.filled = page.filled.saturating_sub(1);
        }
        if self.hits(Kind::WrongChecksum) {
            page.checksum ^= 1;
        }
        if self.hits(Kind::WrongArena) {
            let ArenaId { epoch, n } = manifest.arena;
            manifest.arena = ArenaId { epoch, n: n + 1 };
        }
        let stated = PrefillToDecode::Landed(manifest);
        match self.hits(Kind::Repeat) {
            true => vec![stated.clone(), stated],
            false => vec![stated],
        }
    }

    fn closed(&self, handoff: HandoffId, rank: u16, how: Closing) -> PrefillToDecode {
        let mut names = self.names();
        let attempt = names.handoffs.get(&handoff).cloned().unwrap_or_default();
        let lied = names.landing.remove(&handoff).unwrap_or_default();
        drop(names);
        let how = match how {
            Closing::Abandoned { .. } => how,
            Closing::Sealed {
                batches,
                mut pages,
                mut first,
            } => {
                self.board.say("closed", &attempt, &Value::Null);
                pages -= lied.missing.min(pages);
                if self.hits(Kind::ShortCount) {
                    pages = pages.saturating_sub(1);
                }
                if self.hits(Kind::FirstToken) {
                    first = Some(vec![9; 3]);
                }
                Closing::Sealed {
                    batches,
                    pages,
                    first,
                }
            }
        };
        PrefillToDecode::Closed { handoff, rank, how }
    }

    /// What is stated of the first handoff is kept; what is stated to another life of decode may come
    /// with it.
    fn with_the_former(
        &self,
        handoff: HandoffId,
        stated: Vec<PrefillToDecode>,
    ) -> Vec<PrefillToDecode> {
        let mut names = self.names();
        let (of, former) = names.former.get_or_insert((handoff, Vec::new()));
        if *of == handoff {
            former.extend(stated.iter().cloned());
        }
        if of.epoch == handoff.epoch || !self.hits(Kind::Replay) {
            return stated;
        }
        former.iter().cloned().chain(stated).collect()
    }

    fn heard(&self, message: DecodeToPrefill) {
        let former = self.names().former.as_ref().map(|(of, _)| *of);
        match message {
            DecodeToPrefill::Cancel { handoff } if Some(handoff) == former => {
                self.board
                    .say("refused", &handoff.to_string(), &Value::Null);
            }
            DecodeToPrefill::Ticket {
                offer,
                handoff,
                tags,
                first,
                ..
            } => {
                let mut names = self.names();
                let attempt = names.offers.remove(&offer).unwrap_or_default();
                names.handoffs.insert(handoff, attempt.clone());
                let pages = first + tags.len() as u32;
                let missing = 0;
                names.landing.insert(handoff, Lied { pages, missing });
                drop(names);
                self.board.say("ticketed", &attempt, &Value::Null);
            }
            DecodeToPrefill::Committed { handoff } | DecodeToPrefill::Ended { handoff, .. } => {
                self.names().handoffs.remove(&handoff);
            }
            DecodeToPrefill::Busy { offer, .. }
            | DecodeToPrefill::OfferEnded { offer }
            | DecodeToPrefill::Faulty { offer, .. } => {
                self.names().offers.remove(&offer);
            }
            _ => {}
        }
    }
}

impl Tap for PrefillDecode {
    fn pass(&self, way: Way, bytes: &[u8]) -> Option<Vec<Vec<u8>>> {
        if way == Way::Back {
            self.heard(read(bytes)?);
            return None;
        }
        let messages = match read(bytes)? {
            PrefillToDecode::Landed(manifest) => {
                let handoff = manifest.handoff;
                self.with_the_former(handoff, self.landed(manifest))
            }
            PrefillToDecode::Closed { handoff, rank, how } => {
                self.with_the_former(handoff, vec![self.closed(handoff, rank, how)])
            }
            offer @ PrefillToDecode::Offer { .. } => self.offer(offer),
            _ => return None,
        };
        Some(messages.iter().map(frame).collect())
    }
}
