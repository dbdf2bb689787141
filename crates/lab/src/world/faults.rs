//! What may go wrong: when it may, and what it does.

use super::World;
use super::act::{Act, Deadline, End, Fault};
use super::links::find;
use super::shared::Kept;
use super::state::{FlightState, Lost, Pair, State};
use crate::model::Notes;
use crate::scenario::Setup;
use crate::situations;
use handoff::{Closing, Conn, Decisions, NoToken, PrefillToDecode, decode, gateway, prefill};
use std::collections::VecDeque;

impl<J: Decisions> State<J> {
    pub(super) fn faults(&self, setup: &Setup, out: &mut Vec<Act>) {
        let left = &self.left;
        if left.together == Some(0) {
            return;
        }
        let mut push = |fault| out.push(Act::Fault(fault));
        self.faults_of_clients(&mut push);
        self.faults_of_writes(&mut push);
        if left.breaks > 0 {
            for link in self
                .handing
                .iter()
                .filter(|link| link.caller_up && link.callee_up)
            {
                let stopped = (
                    self.prefills[link.caller].stopped,
                    self.decodes[link.callee].stopped,
                );
                ends(link.conn, stopped, &mut push);
            }
        }
        if left.gateway_breaks > 0 {
            for link in self
                .asking
                .iter()
                .filter(|link| link.caller_up && link.callee_up)
            {
                ends(
                    link.conn,
                    (false, self.prefills[link.callee].stopped),
                    &mut push,
                );
            }
            for link in self
                .telling
                .iter()
                .filter(|link| link.caller_up && link.callee_up)
            {
                ends(
                    link.conn,
                    (false, self.decodes[link.callee].stopped),
                    &mut push,
                );
            }
        }
        if left.truncations > 0 {
            let cut = self
                .handing
                .iter()
                .filter(|link| last_batch(&link.forth).is_some());
            cut.for_each(|link| push(Fault::Truncate(link.conn)));
        }
        if left.stale > 0 {
            for (at, _) in self.lost.iter().enumerate() {
                let goes =
                    |p: usize, d: usize| !self.prefills[p].stopped && !self.decodes[d].stopped;
                let up = self.handing.iter().filter(|link| {
                    link.caller_up && link.callee_up && goes(link.caller, link.callee)
                });
                up.for_each(|link| push(Fault::Stale(at, link.conn)));
            }
        }
        for p in 0..self.prefills.len() {
            self.faults_of_prefill(p, &mut push);
        }
        for d in 0..self.decodes.len() {
            self.faults_of_decode(d, &mut push);
        }
        if left.prefill_spawns > 0 {
            (0..setup.prefills as u8).for_each(|worker| push(Fault::SpawnPrefill(worker)));
        }
        if left.decode_spawns > 0 {
            (0..setup.decodes as u8).for_each(|worker| push(Fault::SpawnDecode(worker)));
        }
        if left.gateway_spawns > 0 {
            push(Fault::SpawnGateway);
        }
        if left.deadlines > 0 {
            let timers = self.gateway_timers.iter();
            timers.for_each(|timer| push(Fault::GatewayDeadline(*timer)));
        }
    }

    fn faults_of_clients(&self, push: &mut impl FnMut(Fault)) {
        for (at, client) in self.clients.iter().enumerate() {
            if !client.asked || client.outcome.is_some() {
                continue;
            }
            if self.left.leaves > 0 {
                push(Fault::Leave(at));
            }
            if self.left.stops > 0 {
                let choices = 0..client.tokens.len() as u16;
                let ended = |c: &u16| client.finished.contains(c) || client.stopped.contains(c);
                choices
                    .filter(|c| !ended(c))
                    .for_each(|choice| push(Fault::Stop(at, choice)));
            }
        }
    }

    fn faults_of_writes(&self, push: &mut impl FnMut(Fault)) {
        let flying = self.flights.iter().enumerate();
        for (at, _) in flying.filter(|(_, flight)| flight.state == FlightState::Flying) {
            if self.left.echoes > 0 {
                push(Fault::Echo(at));
            }
            if self.left.corruptions > 0 {
                push(Fault::Corrupt(at));
            }
            if self.left.losses > 0 {
                push(Fault::Lose(at));
            }
        }
        if self.left.failed_writes > 0 {
            for (p, life) in self.prefills.iter().enumerate() {
                let unreported = life.unreported.keys().filter(|_| !life.stopped);
                unreported.for_each(|submission| push(Fault::FailWrite(p, *submission)));
            }
        }
    }

    fn faults_of_prefill(&self, p: usize, push: &mut impl FnMut(Fault)) {
        let life = &self.prefills[p];
        if life.machine.is_none() {
            return;
        }
        let left = &self.left;
        if left.prefill_kills > 0 {
            push(Fault::KillPrefill(p));
        }
        if life.stopped {
            return;
        }
        if left.hangs > 0 {
            push(Fault::HangPrefill(p));
        }
        if left.failed_arenas > 0 {
            let attaching = life.attaching.iter();
            attaching.for_each(|arena| push(Fault::AttachFailed(p, *arena)));
        }
        if left.drains > 0 {
            push(Fault::DrainPrefill(p));
        }
        if left.failed_computes > 0 && life.chunk.is_some() {
            push(Fault::ChunkFailed(p));
        }
        if left.deadlines > 0 {
            let timers = life.timers.iter();
            let no_wait = |timer: &prefill::Timer| {
                matches!(timer, prefill::Timer::Retry(_) | prefill::Timer::Cache)
            };
            let waits = timers.filter(|timer| !no_wait(timer));
            waits.for_each(|timer| push(Fault::PrefillDeadline(p, *timer)));
        }
    }

    fn faults_of_decode(&self, d: usize, push: &mut impl FnMut(Fault)) {
        let life = &self.decodes[d];
        if life.machine.is_none() {
            return;
        }
        let left = &self.left;
        if left.decode_kills > 0 {
            push(Fault::KillDecode(d));
        }
        if life.stopped {
            return;
        }
        if left.hangs > 0 {
            push(Fault::HangDecode(d));
        }
        if left.failed_arenas > 0 {
            let opening = life.opening.iter();
            opening.for_each(|(arena, _)| push(Fault::ArenaFailed(d, *arena)));
        }
        if left.drains > 0 {
            push(Fault::DrainDecode(d));
        }
        if left.lingers > 0 {
            let fences = life.fences_that_can_end();
            fences.for_each(|arena| push(Fault::Lingers(d, arena)));
        }
        if left.failed_computes > 0 {
            (0..life.copies.len()).for_each(|at| push(Fault::CopyFailed(d, at)));
            if life.step.is_some() {
                push(Fault::StepFailed(d));
            }
        }
        if left.deadlines > 0 {
            let timers = life.timers.iter();
            let no_wait = |timer: &decode::Timer| {
                matches!(timer, decode::Timer::Arena(_) | decode::Timer::Cache)
            };
            let waits = timers.filter(|timer| !no_wait(timer));
            waits.for_each(|timer| push(Fault::DecodeDeadline(d, *timer)));
        }
    }
}

/// An end that has stopped loses nothing by itself.
fn ends(conn: Conn, (caller, callee): (bool, bool), push: &mut impl FnMut(Fault)) {
    if !caller {
        push(Fault::Break(conn, End::Caller));
    }
    if !callee {
        push(Fault::Break(conn, End::Callee));
    }
}

/// Where the statement of a handoff's last batch stands, directly before its certificate.
fn last_batch(forth: &VecDeque<PrefillToDecode>) -> Option<usize> {
    let pairs = forth.iter().zip(forth.iter().skip(1));
    pairs.into_iter().position(|pair| match pair {
        (PrefillToDecode::Landed(batch), PrefillToDecode::Closed { handoff, how, .. }) => {
            batch.handoff == *handoff && matches!(how, Closing::Sealed { .. })
        }
        _ => false,
    })
}

impl<J: Decisions> World<J> {
    pub(super) fn fault(&self, state: &mut State<J>, fault: &Fault, notes: &mut Notes) {
        self.carry_out(state, fault, notes);
        state.left.one_less();
    }

    fn carry_out(&self, state: &mut State<J>, fault: &Fault, notes: &mut Notes) {
        match *fault {
            Fault::Leave(client) => {
                state.left.leaves -= 1;
                if let Some(request) = state.clients[client].request {
                    self.tell_gateway(state, gateway::Event::ClientGone(request), notes);
                }
            }
            Fault::Stop(client, choice) => {
                state.left.stops -= 1;
                notes.saw(situations::STOPPED);
                state.clients[client].stopped.push(choice);
                if let Some(request) = state.clients[client].request {
                    let event = gateway::Event::StopChoice(request, choice);
                    self.tell_gateway(state, event, notes);
                }
            }
            Fault::FailWrite(p, submission) => {
                state.left.failed_writes -= 1;
                self.written(state, p, submission, false, notes);
            }
            Fault::Echo(at) => {
                state.left.echoes -= 1;
                self.echo(state, at, notes);
            }
            Fault::Corrupt(at) => {
                state.left.corruptions -= 1;
                notes.saw(situations::CORRUPTED);
                self.land(state, at, true, notes);
            }
            Fault::Lose(at) => {
                state.left.losses -= 1;
                notes.saw(situations::MISSING);
                state.flights.remove(at);
            }
            Fault::Truncate(conn) => {
                state.left.truncations -= 1;
                notes.saw(situations::TRUNCATED);
                truncate(state, conn);
            }
            Fault::Break(conn, end) => {
                let budget = if state.handing.iter().any(|link| link.conn == conn) {
                    &mut state.left.breaks
                } else {
                    &mut state.left.gateway_breaks
                };
                *budget -= 1;
                self.lose(state, conn, end, notes);
            }
            Fault::Stale(at, conn) => self.stale(state, at, conn, notes),
            Fault::SpawnGateway => self.spawn_gateway(state, notes),
            Fault::ArenaFailed(d, arena) => self.arena_failed(state, d, arena, notes),
            Fault::AttachFailed(p, arena) => {
                state.left.failed_arenas -= 1;
                notes.saw(situations::ATTACH_FAILED);
                self.attached(state, p, arena, false, notes);
            }
            Fault::HangPrefill(p) => {
                state.left.hangs -= 1;
                notes.saw(situations::HUNG);
                state.prefills[p].change().stopped = true;
            }
            Fault::HangDecode(d) => {
                state.left.hangs -= 1;
                notes.saw(situations::HUNG);
                state.decodes[d].change().stopped = true;
            }
            _ => self.fault_of_a_process(state, fault, notes),
        }
    }

    fn fault_of_a_process(&self, state: &mut State<J>, fault: &Fault, notes: &mut Notes) {
        match *fault {
            Fault::PrefillDeadline(p, timer) => {
                state.left.deadlines -= 1;
                self.passes(state, Deadline::Prefill(p, timer), notes);
            }
            Fault::DecodeDeadline(d, timer) => {
                state.left.deadlines -= 1;
                self.passes(state, Deadline::Decode(d, timer), notes);
            }
            Fault::GatewayDeadline(timer) => {
                state.left.deadlines -= 1;
                self.passes(state, Deadline::Gateway(timer), notes);
            }
            Fault::KillPrefill(p) => self.kill_prefill(state, p, notes),
            Fault::KillDecode(d) => self.kill_decode(state, d, notes),
            Fault::SpawnPrefill(worker) => {
                state.left.prefill_spawns -= 1;
                let old = state
                    .prefills
                    .iter()
                    .any(|life| life.worker == worker && life.machine.is_some());
                spawned(old, notes);
                self.spawn_prefill(state, worker);
            }
            Fault::SpawnDecode(worker) => {
                state.left.decode_spawns -= 1;
                let old = state
                    .decodes
                    .iter()
                    .any(|life| life.worker == worker && life.machine.is_some());
                spawned(old, notes);
                self.spawn_decode(state, worker);
            }
            Fault::ChunkFailed(p) => {
                state.left.failed_computes -= 1;
                notes.saw(situations::COMPUTE_FAILED);
                let life = state.prefills[p].change();
                if let Some(chunk) = life.chunk.take() {
                    let offer = chunk.offer;
                    self.tell_prefill(
                        state,
                        p,
                        prefill::Event::ChunkFailed {
                            offer,
                            why: NoToken::Compute,
                        },
                        notes,
                    );
                }
            }
            Fault::StepFailed(d) => {
                state.left.failed_computes -= 1;
                notes.saw(situations::COMPUTE_FAILED);
                state.decodes[d].change().step = None;
                self.tell_decode(state, d, decode::Event::StepFailed(NoToken::Compute), notes);
            }
            Fault::CopyFailed(d, at) => {
                state.left.failed_computes -= 1;
                notes.saw(situations::COPY_FAILED);
                let copy = state.decodes[d].change().copies.remove(at);
                let (handoff, rank, batch) = (copy.handoff, copy.rank, copy.batch);
                let checksums = None;
                let event = decode::Event::Copied {
                    handoff,
                    rank,
                    batch,
                    checksums,
                };
                self.tell_decode(state, d, event, notes);
            }
            Fault::Lingers(d, arena) => {
                state.left.lingers -= 1;
                notes.saw(situations::LINGERS);
                let event = decode::Event::ArenaLingers { arena };
                self.tell_decode(state, d, event, notes);
                self.fenced(state, d, arena, notes);
                state.decodes[d].change().lingering.push(arena);
            }
            Fault::DrainPrefill(p) => {
                state.left.drains -= 1;
                notes.saw(situations::DRAINED);
                self.tell_prefill(state, p, prefill::Event::Drain, notes);
            }
            Fault::DrainDecode(d) => {
                state.left.drains -= 1;
                notes.saw(situations::DRAINED);
                self.tell_decode(state, d, decode::Event::Drain, notes);
            }
            _ => {}
        }
    }

    /// A deadline passes.
    pub(super) fn passes(&self, state: &mut State<J>, deadline: Deadline, notes: &mut Notes) {
        notes.saw(situations::DEADLINE);
        match deadline {
            Deadline::Prefill(p, timer) => {
                state.prefills[p].change().timers.remove(&timer);
                self.tell_prefill(state, p, prefill::Event::Fired(timer), notes);
            }
            Deadline::Decode(d, timer) => {
                state.decodes[d].change().timers.remove(&timer);
                self.tell_decode(state, d, decode::Event::Fired(timer), notes);
            }
            Deadline::Gateway(timer) => {
                state.gateway_timers.remove(&timer);
                self.tell_gateway(state, gateway::Event::Fired(timer), notes);
            }
        }
    }

    /// The process ends. What it had submitted is with its fabric and may still land, or never;
    /// its memory is read until then.
    fn kill_prefill(&self, state: &mut State<J>, p: usize, notes: &mut Notes) {
        state.left.prefill_kills -= 1;
        notes.saw(situations::KILLED);
        let life = state.prefills[p].change();
        life.machine = None;
        life.stopped = false;
        life.chunk = None;
        life.unreported.clear();
        life.failed.clear();
        life.attaching.clear();
        life.detaching.clear();
        life.timers.clear();
        life.tickets.clear();
        life.rejected.clear();
        let epoch = life.epoch;
        for flight in state
            .flights
            .iter_mut()
            .filter(|flight| flight.writer == epoch)
        {
            if flight.state == FlightState::Flying {
                flight.state = FlightState::Late;
            }
        }
        let calls = state.handing.iter().filter(|link| link.caller == p);
        let calls: Vec<_> = calls.map(|link| (link.conn, End::Caller)).collect();
        let called = state.asking.iter().filter(|link| link.callee == p);
        let called: Vec<_> = called.map(|link| (link.conn, End::Callee)).collect();
        for (conn, end) in calls.into_iter().chain(called) {
            self.drop_end(state, conn, end);
        }
        self.forget_pairs(
            state,
            |pair| matches!(pair, Pair::Asking(o) | Pair::Handing(o, _) if *o == p),
        );
    }

    /// The process ends, and its memory with it.
    fn kill_decode(&self, state: &mut State<J>, d: usize, notes: &mut Notes) {
        state.left.decode_kills -= 1;
        notes.saw(situations::KILLED);
        let life = state.decodes[d].change();
        life.machine = None;
        life.stopped = false;
        life.memory.clear();
        life.opening.clear();
        life.arenas.clear();
        life.copies.clear();
        life.fences.clear();
        life.lingering.clear();
        life.starts.clear();
        life.step = None;
        life.running.clear();
        life.timers.clear();
        life.rejected.clear();
        life.faulty.clear();
        let called = state
            .handing
            .iter()
            .filter(|link| link.callee == d)
            .map(|link| link.conn);
        let told = state
            .telling
            .iter()
            .filter(|link| link.callee == d)
            .map(|link| link.conn);
        for conn in called.chain(told).collect::<Vec<_>>() {
            self.drop_end(state, conn, End::Callee);
        }
        self.forget_pairs(
            state,
            |pair| matches!(pair, Pair::Telling(o) | Pair::Handing(_, o) if *o == d),
        );
        super::fabric::forget_unseen(state);
    }

    fn forget_pairs(&self, state: &mut State<J>, gone: impl Fn(&Pair) -> bool) {
        state.undialled.retain(|pair| !gone(pair));
    }

    /// What was lost arrives, on a connection that is up.
    fn stale(&self, state: &mut State<J>, at: usize, conn: Conn, notes: &mut Notes) {
        state.left.stale -= 1;
        notes.saw(situations::STALE);
        let lost = state.lost.change().remove(at);
        if state.left.stale == 0 {
            state.lost = Kept::default();
        }
        let link = state.handing.iter().find(|link| link.conn == conn);
        let Some((p, d)) = link.map(|link| (link.caller, link.callee)) else {
            return;
        };
        match lost {
            Lost::ToDecode(message) => {
                self.tell_decode(state, d, decode::Event::FromPrefill(conn, message), notes);
            }
            Lost::ToPrefill(message) => {
                self.tell_prefill(state, p, prefill::Event::FromDecode(conn, message), notes);
            }
        }
    }
}

fn spawned(old: bool, notes: &mut Notes) {
    notes.saw(situations::SPAWNED);
    if old {
        notes.saw(situations::COEXIST);
    }
}

/// P says what it would say if its prompt were one batch shorter.
fn truncate<J: Decisions>(state: &mut State<J>, conn: Conn) {
    let Some(link) = find(&mut state.handing, conn) else {
        return;
    };
    let Some(at) = last_batch(&link.forth) else {
        return;
    };
    let Some(PrefillToDecode::Landed(cut)) = link.forth.remove(at) else {
        return;
    };
    if let Some(PrefillToDecode::Closed {
        how: Closing::Sealed { batches, pages, .. },
        ..
    }) = link.forth.get_mut(at)
    {
        *batches = batches.saturating_sub(1);
        *pages = pages.saturating_sub(cut.pages.len() as u32);
    }
}
