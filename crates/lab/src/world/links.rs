//! Connections. Each end has one or has lost it, and the two ends learn of a loss at different
//! moments; what was sent before may still arrive, what is sent after is lost.

use super::World;
use super::act::End;
use super::shared::Kept;
use super::state::{Link, Lost, Pair, State};
use crate::model::Notes;
use crate::situations;
use handoff::{Conn, Decisions, decode, gateway, prefill};
use std::collections::VecDeque;

/// Lost messages that are remembered, to arrive where they should not.
const REMEMBERED: usize = 3;

impl<F, B> Link<F, B> {
    fn new(conn: Conn, caller: usize, callee: usize) -> Kept<Self> {
        let (caller_up, callee_up) = (true, true);
        let (forth, back) = (VecDeque::new(), VecDeque::new());
        Kept::new(Self {
            conn,
            caller,
            callee,
            caller_up,
            callee_up,
            forth,
            back,
        })
    }

    /// An end loses it, and with it what is on its way there.
    fn lose(&mut self, end: End) -> (VecDeque<F>, VecDeque<B>) {
        match end {
            End::Callee => {
                self.callee_up = false;
                (std::mem::take(&mut self.forth), VecDeque::new())
            }
            End::Caller => {
                self.caller_up = false;
                (VecDeque::new(), std::mem::take(&mut self.back))
            }
        }
    }
}

/// The link of that number, this world's own from now on.
pub(super) fn find<F: Clone, B: Clone>(
    links: &mut [Kept<Link<F, B>>],
    conn: Conn,
) -> Option<&mut Link<F, B>> {
    let link = links.iter_mut().find(|link| link.conn == conn)?;
    Some(link.change())
}

impl<J: Decisions> State<J> {
    /// Pairs that want a connection: the newest life of every worker is reachable.
    pub(super) fn to_dial(&self) -> Vec<Pair> {
        let mut pairs = Vec::new();
        for (p, life) in self.prefills.iter().enumerate() {
            let newest = !self.prefills[p + 1..]
                .iter()
                .any(|other| other.worker == life.worker);
            let linked = self
                .asking
                .iter()
                .any(|link| link.caller_up && link.callee == p);
            if life.machine.is_some() && newest && !linked {
                pairs.push(Pair::Asking(p));
            }
        }
        for (d, life) in self.decodes.iter().enumerate() {
            let newest = !self.decodes[d + 1..]
                .iter()
                .any(|other| other.worker == life.worker);
            if life.machine.is_none() || !newest {
                continue;
            }
            let linked = self
                .telling
                .iter()
                .any(|link| link.caller_up && link.callee == d);
            if !linked {
                pairs.push(Pair::Telling(d));
            }
            let callers = self.prefills.iter().enumerate();
            for (p, _) in callers.filter(|(_, caller)| caller.machine.is_some()) {
                let mut links = self.handing.iter();
                let linked =
                    links.any(|link| link.caller_up && (link.caller, link.callee) == (p, d));
                if !linked {
                    pairs.push(Pair::Handing(p, d));
                }
            }
        }
        pairs
    }

    /// Connections of this pair that only the callee still has.
    pub(super) fn unnoticed(&self, pair: Pair) -> usize {
        fn of<F, B>(links: &[Kept<Link<F, B>>], caller: usize, callee: usize) -> usize {
            let of = |link: &&Kept<Link<F, B>>| (link.caller, link.callee) == (caller, callee);
            links
                .iter()
                .filter(of)
                .filter(|link| !link.caller_up)
                .count()
        }
        match pair {
            Pair::Asking(p) => of(&self.asking, 0, p),
            Pair::Telling(d) => of(&self.telling, 0, d),
            Pair::Handing(p, d) => of(&self.handing, p, d),
        }
    }
}

impl<J: Decisions> World<J> {
    pub(super) fn dial(&self, state: &mut State<J>, pair: Pair, notes: &mut Notes) {
        if state.undialled.contains(&pair) {
            state.undialled.remove(&pair);
        } else {
            notes.saw(situations::REDIALLED);
        }
        state.next_conn.0 += 1;
        let conn = Conn(state.next_conn.0);
        match pair {
            Pair::Asking(p) => {
                state.asking.push(Link::new(conn, 0, p));
                self.tell_gateway(state, gateway::Event::PrefillDialled(conn), notes);
            }
            Pair::Telling(d) => {
                state.telling.push(Link::new(conn, 0, d));
                self.tell_gateway(state, gateway::Event::DecodeDialled(conn), notes);
            }
            Pair::Handing(p, d) => {
                state.handing.push(Link::new(conn, p, d));
                self.tell_prefill(state, p, prefill::Event::Dialled(conn), notes);
            }
        }
    }

    /// The first message on its way to that end arrives; false if there is none.
    pub(super) fn deliver(
        &self,
        state: &mut State<J>,
        conn: Conn,
        to: End,
        notes: &mut Notes,
    ) -> bool {
        if let Some(link) = find(&mut state.handing, conn) {
            if !(link.caller_up && link.callee_up) {
                notes.saw(situations::AFTER_BREAK);
            }
            let (p, d) = (link.caller, link.callee);
            match to {
                End::Callee => {
                    let Some(message) = link.forth.pop_front() else {
                        return false;
                    };
                    self.tell_decode(state, d, decode::Event::FromPrefill(conn, message), notes);
                }
                End::Caller => {
                    let Some(message) = link.back.pop_front() else {
                        return false;
                    };
                    self.tell_prefill(state, p, prefill::Event::FromDecode(conn, message), notes);
                }
            }
        } else if let Some(link) = find(&mut state.asking, conn) {
            let p = link.callee;
            match to {
                End::Callee => {
                    let Some(message) = link.forth.pop_front() else {
                        return false;
                    };
                    self.tell_prefill(state, p, prefill::Event::FromGateway(conn, message), notes);
                }
                End::Caller => {
                    let Some(message) = link.back.pop_front() else {
                        return false;
                    };
                    self.tell_gateway(state, gateway::Event::FromPrefill(conn, message), notes);
                }
            }
        } else if let Some(link) = find(&mut state.telling, conn) {
            let d = link.callee;
            match to {
                End::Callee => {
                    let Some(message) = link.forth.pop_front() else {
                        return false;
                    };
                    self.tell_decode(state, d, decode::Event::FromGateway(conn, message), notes);
                }
                End::Caller => {
                    let Some(message) = link.back.pop_front() else {
                        return false;
                    };
                    self.tell_gateway(state, gateway::Event::FromDecode(conn, message), notes);
                }
            }
        } else {
            return false;
        }
        true
    }

    /// Where the gateway is not slow, what it and workers say to each other arrives at once.
    pub(super) fn settle_gateway(&self, state: &mut State<J>, notes: &mut Notes) {
        if self.setup.slow_gateway {
            return;
        }
        while let Some((conn, to)) = first_waiting(state) {
            self.deliver(state, conn, to, notes);
        }
    }

    /// An end loses the connection and hears of it.
    pub(super) fn lose(&self, state: &mut State<J>, conn: Conn, end: End, notes: &mut Notes) {
        let Some(heard) = self.drop_end(state, conn, end) else {
            return;
        };
        match (heard, end) {
            (Pair::Handing(p, _), End::Caller) | (Pair::Asking(p), End::Callee) => {
                self.tell_prefill(state, p, prefill::Event::Disconnected(conn), notes);
            }
            (Pair::Handing(_, d) | Pair::Telling(d), End::Callee) => {
                self.tell_decode(state, d, decode::Event::Disconnected(conn), notes);
            }
            (Pair::Asking(_) | Pair::Telling(_), End::Caller) => {
                notes.saw(situations::GATEWAY_LOST);
                self.tell_gateway(state, gateway::Event::Disconnected(conn), notes);
            }
        }
    }

    /// The end that still has the connection learns that the other has not.
    pub(super) fn notice(&self, state: &mut State<J>, conn: Conn, notes: &mut Notes) {
        let up = |caller_up: bool| if caller_up { End::Caller } else { End::Callee };
        let handing = state.handing.iter().map(|link| (link.conn, link.caller_up));
        let asking = state.asking.iter().map(|link| (link.conn, link.caller_up));
        let telling = state.telling.iter().map(|link| (link.conn, link.caller_up));
        let end = handing
            .chain(asking)
            .chain(telling)
            .find(|(c, _)| *c == conn);
        if let Some((_, caller_up)) = end {
            self.lose(state, conn, up(caller_up), notes);
        }
    }

    /// An end has it no more. Says whose connection it was; none if that end had lost it before.
    pub(super) fn drop_end(&self, state: &mut State<J>, conn: Conn, end: End) -> Option<Pair> {
        let mut lost = Vec::new();
        let mut pair = None;
        if let Some(link) = find(&mut state.handing, conn) {
            let had = if end == End::Caller {
                link.caller_up
            } else {
                link.callee_up
            };
            let (forth, back) = link.lose(end);
            lost.extend(forth.into_iter().map(Lost::ToDecode));
            lost.extend(back.into_iter().map(Lost::ToPrefill));
            pair = had.then_some(Pair::Handing(link.caller, link.callee));
        } else if let Some(link) = find(&mut state.asking, conn) {
            let had = if end == End::Caller {
                link.caller_up
            } else {
                link.callee_up
            };
            link.lose(end);
            pair = had.then_some(Pair::Asking(link.callee));
        } else if let Some(link) = find(&mut state.telling, conn) {
            let had = if end == End::Caller {
                link.caller_up
            } else {
                link.callee_up
            };
            link.lose(end);
            pair = had.then_some(Pair::Telling(link.callee));
        }
        self.remember(state, lost);
        state
            .handing
            .retain(|link| link.caller_up || link.callee_up);
        state.asking.retain(|link| link.caller_up || link.callee_up);
        state
            .telling
            .retain(|link| link.caller_up || link.callee_up);
        pair
    }

    /// Only while one of them may still arrive: otherwise worlds would differ for nothing.
    fn remember(&self, state: &mut State<J>, lost: Vec<Lost>) {
        if state.left.stale == 0 || lost.is_empty() {
            return;
        }
        let known = state.lost.change();
        known.extend(lost);
        let old = known.len().saturating_sub(REMEMBERED);
        known.drain(..old);
    }
}

fn first_waiting<J: Decisions>(state: &State<J>) -> Option<(Conn, End)> {
    macro_rules! waiting {
        ($links:expr, $lives:expr) => {
            for link in $links {
                let hears = link.callee_up && !$lives[link.callee].stopped;
                if hears && !link.forth.is_empty() {
                    return Some((link.conn, End::Callee));
                }
                if link.caller_up && !link.back.is_empty() {
                    return Some((link.conn, End::Caller));
                }
            }
        };
    }
    waiting!(&state.asking, state.prefills);
    waiting!(&state.telling, state.decodes);
    None
}
