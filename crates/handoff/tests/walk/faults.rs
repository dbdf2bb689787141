//! What goes wrong: deadlines, losses, failed operations, restarts, and workers that are
//! mistaken.

use crate::dice::Dice;
use crate::strangers::some_closing;
use crate::world::{Message, Node, World};
use handoff::{Closing, Manifest, NoToken, PrefillToDecode, decode, gateway, prefill};
use pages::StatedTag;

impl World {
    pub fn fault(&mut self, dice: &mut Dice) {
        match dice.roll(12) {
            0 => {
                let conns: Vec<_> = self.links.iter().map(|link| link.conn).collect();
                if let Some(conn) = dice.pick(&conns) {
                    self.cut(conn);
                }
            }
            1 | 2 => {
                self.some_deadline(dice);
            }
            3 => self.fail_a_write(dice),
            4 => self.fail_an_operation(dice),
            5 if dice.chance(30) => {
                let p = dice.roll(self.prefills.len() as u64) as usize;
                self.restart(Node::Prefill(p));
            }
            6 if dice.chance(30) => {
                let d = dice.roll(self.decodes.len() as u64) as usize;
                self.restart(Node::Decode(d));
            }
            7 => {
                if let Some(request) = self.some_request(dice) {
                    self.tell_gateway(gateway::Event::ClientGone(request));
                }
            }
            8 | 9 => self.tamper(dice),
            _ => self.stranger(dice),
        }
    }

    /// A prefill worker is mistaken in what it says next to decode.
    fn tamper(&mut self, dice: &mut Dice) {
        let front = self
            .links
            .iter_mut()
            .filter_map(|link| link.to[1].front_mut())
            .filter(|message| matches!(message, Message::Handing(_)));
        for message in front {
            match message {
                Message::Handing(PrefillToDecode::Landed(manifest)) => tamper(manifest, dice),
                Message::Handing(PrefillToDecode::Closed { how, .. }) => match how {
                    Closing::Sealed { first, .. } if dice.chance(40) => *first = None,
                    _ => *how = some_closing(dice),
                },
                Message::Handing(PrefillToDecode::Offer { count, .. }) if dice.chance(20) => {
                    *count = dice.number(9, u64::from(u32::MAX)) as u32;
                }
                _ => {}
            }
        }
    }

    /// A write is reported failed; it may still land.
    fn fail_a_write(&mut self, dice: &mut Dice) {
        let p = dice.roll(self.prefills.len() as u64) as usize;
        let open: Vec<_> = self.prefills[p].unreported.keys().copied().collect();
        if let Some(submission) = dice.pick(&open) {
            self.prefills[p].unreported.remove(&submission);
            let ok = false;
            self.tell_prefill(p, prefill::Event::Written { submission, ok });
        }
    }

    fn fail_an_operation(&mut self, dice: &mut Dice) {
        let p = dice.roll(self.prefills.len() as u64) as usize;
        let d = dice.roll(self.decodes.len() as u64) as usize;
        match dice.roll(5) {
            0 => {
                if let Some((offer, ..)) = self.prefills[p].chunk.take() {
                    self.tell_prefill(
                        p,
                        prefill::Event::ChunkFailed {
                            offer,
                            why: NoToken::Compute,
                        },
                    );
                }
            }
            1 => {
                if let Some(arena) = self.prefills[p].attaching.pop() {
                    let ok = false;
                    self.tell_prefill(p, prefill::Event::Attached { arena, ok });
                }
            }
            2 => {
                if let Some((arena, _)) = self.decodes[d].opening.pop() {
                    self.tell_decode(d, decode::Event::ArenaFailed { arena });
                }
            }
            3 => {
                if let Some(copy) = self.decodes[d].copies.pop() {
                    let checksums = dice.chance(50).then(|| vec![u32::MAX; copy.pages.len()]);
                    let (handoff, rank, batch) = (copy.handoff, copy.rank, copy.batch);
                    self.tell_decode(
                        d,
                        decode::Event::Copied {
                            handoff,
                            rank,
                            batch,
                            checksums,
                        },
                    );
                }
            }
            _ => {
                if self.decodes[d].step.take().is_some() {
                    self.tell_decode(d, decode::Event::StepFailed(NoToken::Compute));
                }
            }
        }
    }

    /// Any deadline may pass at any moment.
    pub fn some_deadline(&mut self, dice: &mut Dice) -> bool {
        let d = dice.roll(self.decodes.len() as u64) as usize;
        let p = dice.roll(self.prefills.len() as u64) as usize;
        let of_d: Vec<_> = self.decodes[d].timers.iter().copied().collect();
        let of_p: Vec<_> = self.prefills[p].timers.iter().copied().collect();
        let of_g: Vec<_> = self.gateway_timers.iter().copied().collect();
        match dice.roll(3) {
            0 => dice.pick(&of_d).is_some_and(|timer| {
                self.decodes[d].timers.remove(&timer);
                self.tell_decode(d, decode::Event::Fired(timer));
                true
            }),
            1 => dice.pick(&of_p).is_some_and(|timer| {
                self.prefills[p].timers.remove(&timer);
                self.tell_prefill(p, prefill::Event::Fired(timer));
                true
            }),
            _ => dice.pick(&of_g).is_some_and(|timer| {
                self.gateway_timers.remove(&timer);
                self.tell_gateway(gateway::Event::Fired(timer));
                true
            }),
        }
    }
}

fn tamper(manifest: &mut Manifest, dice: &mut Dice) {
    let Some(mut page) = dice.pick(&manifest.pages) else {
        return;
    };
    let number = dice.number(5, u64::from(u32::MAX)) as u32;
    match dice.roll(10) {
        // What a sum over the batch does not see: two exchanged, one more and one less.
        8 => return swap_checksums(manifest, 0),
        9 => return swap_checksums(manifest, 1),
        0 => page.tag = StatedTag(u64::from(number)),
        1 => page.ordinal = number,
        2 => page.filled = number as u16,
        3 => page.checksum ^= 1,
        4 => page.slot = number,
        5 => manifest.batch = number,
        6 => manifest.arena.n = u64::from(number),
        _ => {
            page.slot = page.slot.wrapping_add(1) % 3;
            return manifest.pages.push(page);
        }
    }
    let at = dice.roll(manifest.pages.len() as u64) as usize;
    manifest.pages[at] = page;
}

/// Exchanges the checksums of two pages, or makes one as much larger as the other smaller.
fn swap_checksums(manifest: &mut Manifest, by: u32) {
    if let [one, other, ..] = &mut manifest.pages[..] {
        if by == 0 {
            std::mem::swap(&mut one.checksum, &mut other.checksum);
        }
        one.checksum = one.checksum.wrapping_add(by);
        other.checksum = other.checksum.wrapping_sub(by);
    }
}
