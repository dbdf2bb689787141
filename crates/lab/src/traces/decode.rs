//! What decode can be held to by what it heard and said.

use super::adds_up;
use crate::model::Notes;
use handoff::decode::{Decode, Effect, Event};
use handoff::{
    AttemptId, DecodeToGateway, DecodeToPrefill, Ending, Failure, GatewayToDecode, HandoffId,
    Manifest, OfferId, PrefillToDecode, Spec,
};
use pages::Counts;
use std::collections::{BTreeMap, BTreeSet};
use wire::trace::DecodeInput;

/// A ticket that was given, and what came of it.
struct Ticket {
    offer: OfferId,
    first: u32,
    pages: u32,
    /// Batches that were stated, by rank and number.
    stated: BTreeMap<(u16, u32), Manifest>,
    /// Checksums of the copies were those that were stated: ordinals and filled slots, by rank.
    verified: BTreeMap<u16, BTreeMap<u32, u16>>,
}

/// See the module's documentation.
#[derive(Default)]
pub(super) struct Fold {
    expected: BTreeMap<AttemptId, Spec>,
    rejected: BTreeSet<AttemptId>,
    committed: BTreeSet<AttemptId>,
    faulty: BTreeSet<AttemptId>,
    tickets: BTreeMap<HandoffId, Ticket>,
    before: Counts,
    page_size: u16,
}

impl Fold {
    pub(super) fn step(
        &mut self,
        input: &DecodeInput,
        effects: &[Effect],
        after: &mut Decode,
        notes: &mut Notes,
    ) {
        self.page_size = after
            .hello()
            .capacity
            .map_or(1, |capacity| capacity.page_size);
        if let DecodeInput::Event(event) = input {
            self.heard(event, effects, notes);
        }
        let commits = |effect: &Effect| {
            matches!(
                effect,
                Effect::ToGateway(_, DecodeToGateway::Committed { .. })
            )
        };
        let committed = effects.iter().any(commits);
        for effect in effects {
            self.said(effect, notes);
        }
        let (held, counts) = (after.holders(), after.counts());
        adds_up(&held, counts, notes);
        if counts.cached > self.before.cached {
            notes.check("H-9", committed, || {
                "pages were cached without a commit".into()
            });
        }
        self.before = counts;
    }

    fn heard(&mut self, event: &Event, effects: &[Effect], notes: &mut Notes) {
        match event {
            Event::FromGateway(_, GatewayToDecode::Expect { attempt, spec, .. }) => {
                self.expected.insert(*attempt, spec.clone());
                let answered = |effect: &Effect| match effect {
                    Effect::ToGateway(_, DecodeToGateway::Expecting { attempt: of })
                    | Effect::ToGateway(_, DecodeToGateway::Ended { attempt: of, .. }) => {
                        of == attempt
                    }
                    Effect::Close(..) => true,
                    _ => false,
                };
                notes.check("H-18", effects.iter().any(answered), || {
                    format!("attempt {} was announced and not answered", attempt.n)
                });
            }
            Event::FromPrefill(_, PrefillToDecode::Offer { offer, attempt, .. }) => {
                self.offered(*offer, *attempt, effects, notes);
            }
            Event::FromPrefill(_, PrefillToDecode::Landed(manifest)) => {
                if let Some(ticket) = self.tickets.get_mut(&manifest.handoff) {
                    let key = (manifest.rank, manifest.batch);
                    ticket.stated.entry(key).or_insert_with(|| manifest.clone());
                }
            }
            Event::Copied {
                handoff,
                rank,
                batch,
                checksums: Some(checksums),
            } => {
                let ticket = self.tickets.get_mut(handoff);
                if let Some(ticket) = ticket {
                    ticket.copied(*rank, *batch, checksums);
                }
            }
            _ => {}
        }
    }

    /// H-18, H-5: an offer has one answer, and no ticket for what was rejected.
    fn offered(
        &mut self,
        offer: OfferId,
        attempt: AttemptId,
        effects: &[Effect],
        notes: &mut Notes,
    ) {
        let about = |message: &DecodeToPrefill| match message {
            DecodeToPrefill::Ticket { offer: of, .. }
            | DecodeToPrefill::Faulty { offer: of, .. }
            | DecodeToPrefill::Busy { offer: of, .. }
            | DecodeToPrefill::OfferEnded { offer: of } => *of == offer,
            _ => false,
        };
        let answers = effects
            .iter()
            .filter(|effect| matches!(effect, Effect::ToPrefill(_, message) if about(message)));
        let closed = effects
            .iter()
            .any(|effect| matches!(effect, Effect::Close(..)));
        let answers = answers.count();
        notes.check("H-18", answers == 1 || closed, || {
            format!("offer {} has {answers} answers", offer.n)
        });
        for effect in effects {
            if let Effect::ToPrefill(_, DecodeToPrefill::Ticket { offer: of, .. }) = effect {
                let sound = !self.rejected.contains(&attempt) || *of != offer;
                notes.check("H-5", sound, || {
                    format!("attempt {} was rejected and gets a ticket", attempt.n)
                });
            }
        }
    }

    fn said(&mut self, effect: &Effect, notes: &mut Notes) {
        match effect {
            Effect::ToPrefill(
                _,
                DecodeToPrefill::Ticket {
                    offer,
                    handoff,
                    tags,
                    first,
                    ..
                },
            ) => {
                let known = self.tickets.get(handoff);
                let same = known.is_none_or(|ticket| ticket.offer == *offer);
                notes.check("H-8", same, || {
                    format!("handoff {} is the name of two offers", handoff.n)
                });
                let (offer, first, pages) = (*offer, *first, tags.len() as u32);
                let (stated, verified) = (BTreeMap::new(), BTreeMap::new());
                let new = Ticket {
                    offer,
                    first,
                    pages,
                    stated,
                    verified,
                };
                self.tickets.entry(*handoff).or_insert(new);
            }
            Effect::ToGateway(_, message) => self.said_to_gateway(message, notes),
            Effect::Start {
                handoff,
                attempt,
                spec,
                ..
            } => {
                self.started(*handoff, *attempt, spec, notes);
            }
            Effect::Audit {
                attempt,
                failure: Failure::Integrity(_),
                ..
            } => {
                self.faulty.insert(*attempt);
            }
            Effect::FailStop(why) => notes.violates("H-3", why.to_string()),
            _ => {}
        }
    }

    fn said_to_gateway(&mut self, message: &DecodeToGateway, notes: &mut Notes) {
        match message {
            DecodeToGateway::Committed { attempt, .. } => {
                notes.check("H-5", !self.rejected.contains(attempt), || {
                    format!("attempt {} was rejected and is committed", attempt.n)
                });
                notes.check("H-6", !self.faulty.contains(attempt), || {
                    format!(
                        "attempt {} had an integrity fault and is committed",
                        attempt.n
                    )
                });
                notes.check("H-6", self.committed.insert(*attempt), || {
                    format!("attempt {} is committed twice", attempt.n)
                });
            }
            DecodeToGateway::Tokens { attempt, .. } => {
                let live = self.committed.contains(attempt) && self.expected.contains_key(attempt);
                notes.check("H-9", live, || {
                    format!(
                        "a token of attempt {} before its commit or after its end",
                        attempt.n
                    )
                });
            }
            DecodeToGateway::Ended { attempt, ending } => {
                // What it does not know is told to be over as often as somebody asks.
                if !matches!(ending, Ending::Cancelled | Ending::Rejected(_)) {
                    notes.check("H-6", self.expected.contains_key(attempt), || {
                        format!("attempt {} has ended twice", attempt.n)
                    });
                }
                self.expected.remove(attempt);
                if let Ending::Rejected(_) = ending {
                    self.rejected.insert(*attempt);
                }
            }
            _ => {}
        }
    }

    /// H-2: what the gateway named, all of it, and every page of it verified or pinned.
    fn started(&mut self, handoff: HandoffId, attempt: AttemptId, spec: &Spec, notes: &mut Notes) {
        let named = self.expected.get(&attempt);
        notes.check("H-2", named == Some(spec), || {
            format!(
                "attempt {} is committed as another prompt than the gateway named",
                attempt.n
            )
        });
        let Some(ticket) = self.tickets.get(&handoff) else {
            return notes.violates("H-2", format!("handoff {} without a ticket", handoff.n));
        };
        let (size, n) = (u32::from(self.page_size), spec.tokens.len() as u32);
        let pages = n.div_ceil(size);
        let last = n - (pages - 1) * size;
        let fill = |ordinal: u32| if ordinal + 1 == pages { last } else { size } as u16;
        let reserved = ticket.first..pages;
        let whole = |rank: &BTreeMap<u32, u16>| {
            rank.iter()
                .map(|(o, f)| (*o, *f))
                .eq(reserved.clone().map(|o| (o, fill(o))))
        };
        let covered = ticket.pages == pages - ticket.first
            && (reserved.is_empty() || !ticket.verified.is_empty())
            && ticket.verified.values().all(whole);
        notes.check("H-2", covered, || {
            let got: Vec<_> = ticket.verified.values().map(|rank| rank.len()).collect();
            format!(
                "committed {n} tokens in {pages} pages, {} pinned, verified {got:?}",
                ticket.first
            )
        });
    }

    /// H-18: nobody waits for an ending.
    pub(super) fn at_rest(&self, notes: &mut Notes) {
        if self.before.total() > 0 {
            let waits = self.expected.len();
            notes.check("H-18", waits == 0, || {
                format!("{waits} attempts have no ending")
            });
        }
    }
}

impl Ticket {
    /// A copy has ended. It counts if every page's checksum is the one that was stated.
    fn copied(&mut self, rank: u16, batch: u32, checksums: &[u32]) {
        let Some(manifest) = self.stated.get(&(rank, batch)) else {
            return;
        };
        let stated = manifest.pages.iter().map(|page| page.checksum);
        if stated.eq(checksums.iter().copied()) {
            let verified = self.verified.entry(rank).or_default();
            verified.extend(
                manifest
                    .pages
                    .iter()
                    .map(|page| (page.ordinal, page.filled)),
            );
        }
    }
}
