//! Commit: when every writer is closed and everything is there, and only then, the pages are sealed
//! and an answer may begin (H-2, H-9).

use super::state::{Handoff, Phase, Sequence, WriterState, ledger_lane, owner};
use super::{Decode, Effect};
use crate::Decisions;
use crate::id::HandoffKey;
use crate::prefix::{Page, PrefixIndex};
use crate::{Arrived, Broken, DecodeToGateway, DecodeToPrefill, Entry, Fault, Spec};
use pages::{BlockTable, Pool, Seal};

impl<J: Decisions> Decode<J> {
    pub(super) fn try_commit(&mut self, id: HandoffKey) {
        let Some(h) = self.handoffs.get(&id) else {
            return self.lost(Entry::Handoff);
        };
        let sealed = |state| matches!(state, WriterState::Sealed { .. });
        let closed: Vec<bool> = h.writers.iter().map(|w| sealed(w.state)).collect();
        if !h.is_landing() || !self.decisions.may_commit(&closed, h.copying()) {
            return;
        }
        match check_complete(self.decisions, h) {
            Ok(first) => self.commit(id, first),
            Err((rank, fault)) => self.fault(id, rank, (fault, None)),
        }
    }

    fn commit(&mut self, id: HandoffKey, first: Vec<u8>) {
        let handoff = self.name(id);
        let Some(h) = self.handoffs.get_mut(&id) else {
            return self.lost(Entry::Handoff);
        };
        let attempt = h.attempt;
        let Some(expected) = self.expected.get(&attempt) else {
            return self.lost(Entry::Attempt); // it ends with its handoff, which has not ended
        };
        let (conn, spec) = (expected.conn, expected.spec.clone());
        let (pool, prefix) = (&mut self.pool, &mut self.prefix);
        if let Err(why) = seal_prompt(pool, prefix, &mut self.out, id, h, &spec) {
            self.out.push(Effect::FailStop(why));
        }
        h.phase = Phase::Running;
        for writer in &mut h.writers {
            writer.answered = true;
        }
        let cached_tokens = h.first * u32::from(self.pool.page_size());
        let peer = h.peer;
        if let Some(prefill) = self.conn_of(peer) {
            self.send(prefill, DecodeToPrefill::Committed { handoff });
        }
        let committed = DecodeToGateway::Committed {
            attempt,
            cached_tokens,
        };
        self.out.push(Effect::ToGateway(conn, committed));
        self.out.push(Effect::Start {
            handoff,
            attempt,
            spec: Box::new(spec),
            first,
        });
        self.arenas_may_drop(peer);
    }
}

/// Seals what was recorded, publishes full pages to the domain's cache, and lays out a table for
/// every choice.
fn seal_prompt<J: Decisions>(
    pool: &mut Pool<J>,
    prefix: &mut PrefixIndex,
    out: &mut Vec<Effect>,
    id: HandoffKey,
    h: &mut Handoff,
    spec: &Spec,
) -> Result<(), Broken> {
    let page_size = pool.page_size();
    let single = h.writers.len() == 1;
    for (ordinal, page) in h.prompt.iter().enumerate() {
        let Page::Own(grant) = page else { continue }; // a cached one is sealed
        let ordinal = ordinal as u32;
        let checksum = h
            .writers
            .first()
            .and_then(|w| w.recorded.get(&ordinal))
            .copied();
        let filled = h.fill_of(ordinal, page_size);
        pool.seal(
            grant,
            Seal {
                ordinal,
                filled,
                checksum: checksum.filter(|_| single),
            },
        )?;
    }
    if spec.cache {
        let (lane, pages) = (owner(id, h.domain, 0), std::mem::take(&mut h.prompt));
        h.prompt = prefix.publish(pool, lane, &spec.tokens, pages)?;
    }
    for choice in 0..spec.choices {
        lay_out(pool, out, id, h, choice, spec.choices == 1)?;
    }
    Ok(())
}

/// The table of one choice: the prompt's pages, and if there are several choices a copy of a partly
/// filled last page, because it is never shared.
fn lay_out<J: Decisions>(
    pool: &mut Pool<J>,
    out: &mut Vec<Effect>,
    id: HandoffKey,
    h: &mut Handoff,
    choice: u16,
    alone: bool,
) -> Result<(), Broken> {
    let page_size = pool.page_size();
    let lane = ledger_lane(choice, alone);
    let mut table = BlockTable::new(owner(id, h.domain, lane), page_size);
    let mut own = Vec::new();
    let full = (h.count / u32::from(page_size)) as usize;
    for (ordinal, page) in h.prompt.iter().enumerate() {
        if ordinal >= full && !alone {
            // Its ticket has taken a page for it.
            let copy = h.reserve.get_mut(choice as usize).and_then(Vec::pop);
            let copy = copy.ok_or(Broken::Lost(Entry::Reserve))?;
            let (ordinal, filled) = (ordinal as u32, h.fill_of(ordinal as u32, page_size));
            pool.seal(
                &copy,
                Seal {
                    ordinal,
                    filled,
                    checksum: None,
                },
            )?;
            table.push_own(&copy);
            out.push(Effect::Duplicate {
                from: page.id(),
                to: copy.page(),
                filled,
            });
            own.push(copy);
            continue;
        }
        match page {
            Page::Own(grant) => table.push_own(grant),
            Page::Shared(share) => table.push_shared(share),
        }
    }
    table.advance_to(h.count);
    h.sequences.push(Sequence {
        table,
        own,
        done: false,
    });
    Ok(())
}

/// H-2: recorded pages plus pinned prefix are exactly `[0, n)`, from every writer, and exactly one
/// writer states the first token.
fn check_complete<J: Decisions>(decisions: J, h: &Handoff) -> Result<Vec<u8>, (u16, Fault)> {
    let mut first = Vec::new();
    for (rank, writer) in h.writers.iter().enumerate() {
        let (batches, pages) = match writer.state {
            WriterState::Sealed { batches, pages } => (batches, pages),
            // Commit waits for every writer; this one is short of what it has not stated.
            _ => (writer.taken.len() as u32, writer.recorded.len() as u32),
        };
        let arrived = Arrived {
            batches,
            pages,
            taken: &writer.taken,
            recorded: &writer.recorded,
            reserved: h.first..h.prompt_pages,
        };
        if !decisions.covers(arrived) {
            let stated = (writer.taken.len(), writer.recorded.len());
            let fault = match stated == (batches as usize, pages as usize) {
                true => Fault::MissingPage,
                false => Fault::Short,
            };
            return Err((rank as u16, fault));
        }
        first.extend(writer.first.iter().flatten());
    }
    let stated = h
        .writers
        .iter()
        .filter(|writer| writer.first.is_some())
        .count();
    if decisions.one_first_token(stated) {
        Ok(first)
    } else {
        Err((0, Fault::FirstToken))
    }
}
