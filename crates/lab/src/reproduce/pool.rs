//! Decode's pool as its trace tells it: who held a page, and for whom each slot was last written.
//!
//! The trace is replayed through the machine that ran; what the machine had done to pages (copies,
//! steps) is followed slot by slot. Nothing in the workers was changed to see this.

use super::guards::Guards;
use super::scenario::Tenant;
use handoff::decode::{CopyPage, Decode, Effect, Event};
use handoff::{DecodeToPrefill, GatewayToDecode, HandoffId};
use pages::Domain;
use std::collections::BTreeMap;
use std::path::Path;
use wire::trace::{DecodeInput, ReplayObserver, TraceError, replay_watched};

/// The last write of one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Written {
    /// For whose request.
    pub tenant: Tenant,
    /// Which one, in the order of tickets, from 1.
    pub handoff: u64,
    /// Position of the token in that request.
    pub position: u32,
}

/// One page.
#[derive(Clone, Debug, Default)]
pub(super) struct Page {
    /// Its slots; none: never written.
    pub slots: Vec<Option<Written>>,
    /// Its place in B's sequence, if it is B's.
    pub ordinal: Option<u32>,
}

/// The pool before B's ticket, when B's prompt was committed, and at the end of B's answer.
#[derive(Clone, Debug, Default)]
pub(super) struct Footprint {
    pub page_size: u32,
    /// B's prompt, in tokens.
    pub count: u32,
    pub before: Vec<Page>,
    /// None: it never came to a commit.
    pub committed: Option<Vec<Page>>,
    /// Pages that the ticket reserved for the prompt.
    pub reserved: usize,
}

impl Footprint {
    /// Of the positions that B's first step attends to, before its own token: for whom each was
    /// written.
    pub(super) fn attended(&self) -> Option<Attended> {
        let pages = self.committed.as_ref()?;
        let mut attended = Attended::default();
        for page in pages {
            let Some(ordinal) = page.ordinal else {
                continue;
            };
            for (slot, written) in (0..).zip(&page.slots) {
                if ordinal * self.page_size + slot >= self.count {
                    continue;
                }
                let of = match written {
                    Some(it) if it.tenant == Tenant::A => &mut attended.of_a,
                    Some(_) => &mut attended.of_b,
                    None => &mut attended.of_nobody,
                };
                *of += 1;
            }
        }
        Some(attended)
    }
}

/// Positions, by whose text is in them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Attended {
    pub of_a: u32,
    pub of_b: u32,
    pub of_nobody: u32,
}

/// What the trace of the decode worker in `dir` says about the first prompt of `count` tokens.
/// None: no ticket was ever given for it.
pub(super) fn footprint(
    dir: &Path,
    guards: Guards,
    count: u32,
) -> Result<Option<Footprint>, TraceError> {
    let mut seen = Seen::new(count);
    replay_watched(&dir.join("decode.trace"), guards, &mut seen)?;
    Ok(seen.found)
}

/// A handoff as far as its pages are concerned.
struct Known {
    tenant: Tenant,
    number: u64,
    /// Pages of the prompt, by ordinal.
    prompt: Vec<usize>,
    /// Tokens whose KV it has.
    tokens: u32,
}

struct Seen {
    count: u32,
    pages: Vec<Vec<Option<Written>>>,
    known: BTreeMap<HandoffId, Known>,
    copies: BTreeMap<(HandoffId, u32), Vec<CopyPage>>,
    /// Prompts that were announced and have no ticket yet, in order.
    announced: Vec<(Domain, u32)>,
    domain_of_b: Option<Domain>,
    shown: Option<HandoffId>,
    found: Option<Footprint>,
}

impl ReplayObserver<Guards> for Seen {
    fn decode(&mut self, input: &DecodeInput, effects: &[Effect], after: &mut Decode<Guards>) {
        if self.pages.is_empty() {
            let capacity = after.hello().capacity.expect("a worker has one");
            let slots = vec![None; usize::from(capacity.page_size)];
            self.pages = vec![slots; capacity.pages as usize];
        }
        if let DecodeInput::Event(event) = input {
            self.event(event, after);
        }
        for effect in effects {
            self.effect(effect, after);
        }
    }
}

impl Seen {
    fn new(count: u32) -> Self {
        Self {
            count,
            pages: Vec::new(),
            known: BTreeMap::new(),
            copies: BTreeMap::new(),
            announced: Vec::new(),
            domain_of_b: None,
            shown: None,
            found: None,
        }
    }

    fn event(&mut self, event: &Event, after: &mut Decode<Guards>) {
        match event {
            Event::FromGateway(_, GatewayToDecode::Expect { spec, .. }) => {
                // The control request comes first, and it is B's.
                self.domain_of_b.get_or_insert(spec.domain);
                self.announced.push((spec.domain, spec.tokens.len() as u32));
            }
            Event::Copied {
                handoff,
                batch,
                checksums: Some(_),
                ..
            } => self.copied(*handoff, *batch),
            Event::StepBegin(lanes) => {
                for lane in lanes {
                    self.step(lane.handoff, after);
                }
            }
            _ => {}
        }
    }

    fn effect(&mut self, effect: &Effect, after: &mut Decode<Guards>) {
        match effect {
            Effect::ToPrefill(_, DecodeToPrefill::Ticket { handoff, tags, .. }) => {
                self.ticket(*handoff, tags.len(), after);
            }
            Effect::Copy {
                handoff,
                batch,
                pages,
                ..
            } => {
                self.copies.insert((*handoff, *batch), pages.clone());
            }
            Effect::Start { handoff, .. } if self.shown == Some(*handoff) => {
                let pages = self.drawn(Some(*handoff));
                if let Some(found) = &mut self.found {
                    found.committed = Some(pages);
                }
            }
            _ => {}
        }
    }

    /// Requests are asked one after another, so a ticket is for what was announced last.
    fn ticket(&mut self, handoff: HandoffId, pages: usize, after: &mut Decode<Guards>) {
        let Some((domain, count)) = self.announced.last().copied() else {
            return;
        };
        let before = self.drawn(None);
        let mut own: Vec<_> = after
            .holders()
            .into_iter()
            .filter(|holder| holder.owner.is_some_and(|it| it.id.value() == handoff.n))
            .collect();
        own.sort_by_key(|holder| holder.tag);
        let prompt: Vec<usize> = own.iter().take(pages).map(|it| it.page.index()).collect();
        let is_b = self.domain_of_b == Some(domain);
        let known = Known {
            tenant: if is_b { Tenant::B } else { Tenant::A },
            number: self.known.len() as u64 + 1,
            prompt,
            tokens: count,
        };
        self.known.insert(handoff, known);
        if is_b && count == self.count && self.shown.is_none() {
            self.shown = Some(handoff);
            self.found = Some(Footprint {
                page_size: u32::from(after.hello().capacity.expect("a worker has one").page_size),
                count,
                before,
                committed: None,
                reserved: pages,
            });
        }
    }

    fn copied(&mut self, handoff: HandoffId, batch: u32) {
        let (Some(known), Some(copies)) = (
            self.known.get(&handoff),
            self.copies.remove(&(handoff, batch)),
        ) else {
            return;
        };
        for copy in copies {
            let page = copy.page.index();
            let Some(ordinal) = known.prompt.iter().position(|it| *it == page) else {
                continue;
            };
            let size = self.pages[page].len();
            for slot in 0..usize::from(copy.filled).min(size) {
                self.pages[page][slot] = Some(known.wrote((ordinal * size + slot) as u32));
            }
        }
    }

    /// The step writes the token behind what the sequence has.
    fn step(&mut self, handoff: HandoffId, after: &mut Decode<Guards>) {
        let Some(known) = self.known.get_mut(&handoff) else {
            return;
        };
        let position = known.tokens;
        known.tokens += 1;
        let size = after.hello().capacity.expect("a worker has one").page_size;
        let (ordinal, slot) = (position / u32::from(size), position % u32::from(size));
        let page = match known.prompt.get(ordinal as usize) {
            Some(page) => Some(*page),
            None => after
                .holders()
                .into_iter()
                .find(|holder| {
                    let own = holder.owner.is_some_and(|it| it.id.value() == handoff.n);
                    let behind = !known.prompt.contains(&holder.page.index());
                    own && behind && holder.seal.ordinal == ordinal
                })
                .map(|holder| holder.page.index()),
        };
        if let Some(page) = page {
            self.pages[page][slot as usize] = Some(known.wrote(position));
        }
    }

    /// The pool as it is, with the places that the prompt's pages have in this sequence.
    fn drawn(&self, of: Option<HandoffId>) -> Vec<Page> {
        let mut pages: Vec<Page> = self
            .pages
            .iter()
            .map(|slots| Page {
                slots: slots.clone(),
                ordinal: None,
            })
            .collect();
        if let Some(known) = of.and_then(|handoff| self.known.get(&handoff)) {
            for (ordinal, page) in (0..).zip(&known.prompt) {
                pages[*page].ordinal = Some(ordinal);
            }
        }
        pages
    }
}

impl Known {
    fn wrote(&self, position: u32) -> Written {
        Written {
            tenant: self.tenant,
            handoff: self.number,
            position,
        }
    }
}
