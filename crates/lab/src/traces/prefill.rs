//! What prefill can be held to by what it heard and said.

use super::adds_up;
use crate::model::Notes;
use handoff::prefill::{Effect, Event, Prefill};
use handoff::{
    AttemptId, Closing, DecodeToPrefill, Ending, GatewayToPrefill, HandoffId, OfferId,
    PrefillToDecode, PrefillToGateway, SubmissionId,
};
use pages::{Counts, PageId};
use std::collections::{BTreeMap, BTreeSet};

/// A submission whose end was not reported.
struct Flying {
    of: Option<(HandoffId, u16)>,
    arena: handoff::ArenaId,
    sources: Vec<PageId>,
    failed: bool,
}

/// See the module's documentation.
#[derive(Default)]
pub(super) struct Fold {
    attempts: BTreeSet<AttemptId>,
    rejected: BTreeSet<AttemptId>,
    /// Offers without an answer.
    offers: BTreeSet<OfferId>,
    tickets: BTreeMap<OfferId, HandoffId>,
    flying: BTreeMap<SubmissionId, Flying>,
    /// Handoffs and ranks of which a submission did not end well.
    failed: BTreeSet<(HandoffId, u16)>,
    before: Counts,
}

impl Fold {
    pub(super) fn step(
        &mut self,
        input: &Event,
        effects: &[Effect],
        after: &mut Prefill,
        notes: &mut Notes,
    ) {
        self.heard(input);
        for effect in effects {
            self.said(effect, after, notes);
        }
        let (held, counts) = (after.holders(), after.counts());
        adds_up(&held, counts, notes);
        let reads: BTreeSet<PageId> = held
            .iter()
            .filter(|holder| holder.reads > 0)
            .map(|holder| holder.page)
            .collect();
        for flying in self.flying.values() {
            let kept = flying.sources.iter().all(|page| reads.contains(page));
            notes.check("H-3", kept, || {
                format!(
                    "a page was freed that a write still reads: {:?}",
                    flying.sources
                )
            });
        }
        let committed = matches!(
            input,
            Event::FromDecode(_, DecodeToPrefill::Committed { .. })
        );
        if counts.cached > self.before.cached {
            notes.check("H-9", committed, || {
                "pages were cached without a commit".into()
            });
        }
        self.before = counts;
    }

    fn heard(&mut self, input: &Event) {
        match input {
            Event::FromGateway(_, GatewayToPrefill::Attempt { attempt, .. }) => {
                self.attempts.insert(*attempt);
            }
            Event::FromDecode(
                conn,
                DecodeToPrefill::Ticket {
                    offer,
                    handoff,
                    under,
                    ..
                },
            ) if under.conn == *conn => {
                self.offers.remove(offer);
                self.tickets.insert(*offer, *handoff);
            }
            Event::FromDecode(
                _,
                DecodeToPrefill::Faulty { offer, .. }
                | DecodeToPrefill::Busy { offer, .. }
                | DecodeToPrefill::OfferEnded { offer },
            ) => {
                self.offers.remove(offer);
            }
            Event::Written { submission, ok } => {
                let ended = self.flying.get_mut(submission);
                if let Some(flying) = ended.filter(|_| !ok) {
                    flying.failed = true;
                    self.failed.extend(flying.of);
                } else {
                    self.flying.remove(submission);
                }
            }
            // Its endpoint is destroyed: nothing reads sources through it any more.
            Event::Detached { arena } => {
                let of = |flying: &Flying| flying.arena == *arena;
                let lost = self
                    .flying
                    .values()
                    .filter(|flying| of(flying) && !flying.failed);
                self.failed.extend(lost.filter_map(|flying| flying.of));
                self.flying.retain(|_, flying| !of(flying));
            }
            _ => {}
        }
    }

    fn said(&mut self, effect: &Effect, after: &Prefill, notes: &mut Notes) {
        match effect {
            Effect::ToGateway(_, PrefillToGateway::Ended { attempt, ending }) => {
                // An attempt that it does not know is told to be over as often as somebody asks.
                if !matches!(ending, Ending::Cancelled | Ending::Rejected(_)) {
                    notes.check("H-18", self.attempts.contains(attempt), || {
                        format!("attempt {} has ended twice", attempt.n)
                    });
                }
                self.attempts.remove(attempt);
                if let Ending::Rejected(_) = ending {
                    self.rejected.insert(*attempt);
                }
            }
            Effect::ToDecode(_, PrefillToDecode::Offer { offer, attempt, .. }) => {
                notes.check("H-5", !self.rejected.contains(attempt), || {
                    format!("attempt {} was rejected and is offered", attempt.n)
                });
                notes.check("H-8", self.offers.insert(*offer), || {
                    format!("offer {} is used again", offer.n)
                });
            }
            Effect::ToDecode(_, PrefillToDecode::Closed { handoff, rank, how }) => {
                self.closed((*handoff, *rank), how, notes);
            }
            Effect::Compute { offer, .. } => {
                notes.check("H-5", self.tickets.contains_key(offer), || {
                    format!("a forward pass for offer {} before its ticket", offer.n)
                });
            }
            Effect::Submit {
                submission,
                arena,
                rank,
                pages,
            } => {
                let manifest = after.submission_for_checker(*submission);
                let of = manifest.map(|manifest| (manifest.handoff, *rank));
                let sources = pages.iter().map(|page| page.page).collect();
                let (arena, failed) = (*arena, false);
                self.flying.insert(
                    *submission,
                    Flying {
                        of,
                        arena,
                        sources,
                        failed,
                    },
                );
            }
            Effect::Dropped { offer } => {
                if let Some(handoff) = self.tickets.remove(offer) {
                    self.failed.retain(|(of, _)| *of != handoff);
                }
                self.offers.remove(offer);
            }
            Effect::FailStop(why) => notes.violates("H-3", why.to_string()),
            _ => {}
        }
    }

    /// H-7, for every closing: it says that everything of this writer has completed.
    fn closed(&self, of: (HandoffId, u16), how: &Closing, notes: &mut Notes) {
        let open = self.flying.values().any(|flying| flying.of == Some(of));
        notes.check("H-7", !open && !self.failed.contains(&of), || {
            format!(
                "handoff {} is {how:?} while a write of it may still land",
                of.0.n
            )
        });
    }

    /// H-18: nobody waits for an answer.
    pub(super) fn at_rest(&self, notes: &mut Notes) {
        let waits = self.offers.len() + self.attempts.len();
        if self.before.total() > 0 {
            notes.check("H-18", waits == 0, || {
                format!("{waits} offers or attempts unanswered")
            });
        }
    }
}
