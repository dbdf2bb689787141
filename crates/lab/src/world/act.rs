//! What can happen next.

use super::state::{DecodeLife, FlightState, Pair, State};
use crate::scenario::Setup;
use handoff::{ArenaId, Conn, Decisions, OfferId, SubmissionId, decode, gateway, prefill};
use pages::Epoch;
use serde::{Deserialize, Serialize};
use std::fmt;

/// One thing that may happen. Lives, flights, copies and clients are named by their index.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Act {
    /// A client asks.
    Ask(usize),
    /// The first message of a connection reaches its callee, or its caller.
    Deliver(Conn, End),
    /// An end learns that the other one has lost the connection.
    Notice(Conn),
    /// A connection is made.
    Dial(Pair),
    /// A forward pass over a chunk of this job begins.
    ChunkBegin(usize, OfferId),
    /// It ends.
    ChunkEnd(usize),
    /// A page write lands.
    Land(usize),
    /// A submission, all of whose writes have landed, is reported.
    Written(usize, SubmissionId),
    /// A copy out of an arena ends.
    Copied(usize, usize),
    /// A fence is done.
    Fenced(usize, ArenaId),
    /// The memory of a dropped arena that somebody mapped is given back.
    Released(usize, ArenaId),
    /// P's endpoint is destroyed.
    Detached(usize, ArenaId),
    /// D's worker has looked at the first tokens of a commit.
    First(usize, usize),
    /// A step of all sequences begins.
    StepBegin(usize),
    /// A step of as many sequences as one takes begins, with the one whose turn it is.
    StepOf(usize, usize),
    /// It ends.
    StepEnd(usize),
    /// An arena has been made.
    Opened(usize, ArenaId),
    /// P has attached to an arena, if it is still there.
    Attached(usize, ArenaId),
    /// A prefill process that had stopped goes on.
    PrefillGoesOn(usize),
    /// A decode process that had stopped goes on.
    DecodeGoesOn(usize),
    /// P asks a busy D again.
    Retry(usize, prefill::Timer),
    /// D asks again for an arena that could not be made.
    OpenAgain(usize, decode::Timer),
    /// D gives up a prefill life that has ended, or that it has refused for good: there nothing but a
    /// deadline can end the wait.
    GiveUpPrefill(usize, decode::Timer),
    /// P gives up a decode life that has ended, that cannot be dialled any more, or that has refused
    /// it for good.
    GiveUpDecode(usize, prefill::Timer),
    /// P's cached pages grow older.
    PrefillAges(usize, prefill::Timer),
    /// D's cached pages grow older.
    DecodeAges(usize, decode::Timer),
    /// Nothing else can happen, and a deadline passes.
    Overdue(Deadline),
    /// Something goes wrong.
    Fault(Fault),
}

/// Something that was to happen until now, and whose.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Deadline {
    /// P's.
    Prefill(usize, prefill::Timer),
    /// D's.
    Decode(usize, decode::Timer),
    /// The gateway's.
    Gateway(gateway::Timer),
}

/// An end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum End {
    /// Who dialled.
    Caller,
    /// Who was dialled.
    Callee,
}

/// What may go wrong, as often as the scenario allows.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Fault {
    /// A client goes away.
    Leave(usize),
    /// A client's side needs no more of this choice.
    Stop(usize, u16),
    /// A submission is reported failed, whatever has landed.
    FailWrite(usize, SubmissionId),
    /// A write lands, and will land once more.
    Echo(usize),
    /// A write lands with a flipped bit.
    Corrupt(usize),
    /// A write never lands, and is taken for landed.
    Lose(usize),
    /// P's last batch is cut off from what it says on this connection.
    Truncate(Conn),
    /// This end loses the connection.
    Break(Conn, End),
    /// A deadline passes at P.
    PrefillDeadline(usize, prefill::Timer),
    /// A deadline passes at D.
    DecodeDeadline(usize, decode::Timer),
    /// A deadline passes at the gateway.
    GatewayDeadline(gateway::Timer),
    /// A prefill process ends.
    KillPrefill(usize),
    /// A decode process ends.
    KillDecode(usize),
    /// A new life of this prefill worker begins.
    SpawnPrefill(u8),
    /// A new life of this decode worker begins.
    SpawnDecode(u8),
    /// What was lost arrives on this connection.
    Stale(usize, Conn),
    /// P's forward pass fails.
    ChunkFailed(usize),
    /// D's step fails.
    StepFailed(usize),
    /// A copy fails.
    CopyFailed(usize, usize),
    /// A fence is done, and somebody still maps what it dropped.
    Lingers(usize, ArenaId),
    /// P drains.
    DrainPrefill(usize),
    /// D drains.
    DrainDecode(usize),
    /// A prefill process stops, and will go on.
    HangPrefill(usize),
    /// A decode process stops, and will go on.
    HangDecode(usize),
    /// The gateway's process ends, and a new one begins.
    SpawnGateway,
    /// An arena cannot be made.
    ArenaFailed(usize, ArenaId),
    /// P cannot attach to an arena.
    AttachFailed(usize, ArenaId),
}

/// Connections of a pair that its caller has lost and its callee has not noticed yet, at most, while
/// the caller dials again: whoever hangs up and dials for ever would make the world infinite. Nothing
/// ends here: the callee may notice at any moment, and then the caller may dial.
const UNNOTICED: usize = 2;

impl<J: Decisions> State<J> {
    /// Everything that may happen next.
    pub fn acts(&self, setup: &Setup, out: &mut Vec<Act>) {
        if let Some(next) = self.clients.iter().position(|client| !client.asked) {
            out.push(Act::Ask(next));
        }
        self.acts_of_links(out);
        out.extend((0..self.flights.len()).map(Act::Land));
        for p in 0..self.prefills.len() {
            self.acts_of_prefill(p, out);
        }
        for d in 0..self.decodes.len() {
            self.acts_of_decode(setup, d, out);
        }
        let begin = out.len();
        self.faults(setup, out);
        debug_assert!(out[begin..].iter().all(|act| matches!(act, Act::Fault(_))));
    }

    /// Deadlines, if nothing happens until they pass: no message arrives, no write lands, nothing is
    /// computed, nobody can be dialled. (Asking a busy D again is waiting, too.)
    pub fn overdue(&self, setup: &Setup, out: &mut Vec<Act>) {
        let mut possible = Vec::new();
        self.acts(setup, &mut possible);
        if !possible
            .iter()
            .all(|act| matches!(act, Act::Fault(_) | Act::Retry(..)))
        {
            return;
        }
        for (p, life) in self.prefills.iter().enumerate() {
            let timers = life.timers.iter().filter(|_| life.machine.is_some());
            let timers = timers.filter(|timer| !matches!(timer, prefill::Timer::Retry(_)));
            out.extend(timers.map(|timer| Act::Overdue(Deadline::Prefill(p, *timer))));
        }
        for (d, life) in self.decodes.iter().enumerate() {
            let timers = life.timers.iter().filter(|_| life.machine.is_some());
            let timers = timers.filter(|timer| !matches!(timer, decode::Timer::Arena(_)));
            out.extend(timers.map(|timer| Act::Overdue(Deadline::Decode(d, *timer))));
        }
        let timers = self.gateway_timers.iter();
        out.extend(timers.map(|timer| Act::Overdue(Deadline::Gateway(*timer))));
    }

    fn acts_of_links(&self, out: &mut Vec<Act>) {
        // A process that has stopped hears nothing; what is said to it waits.
        macro_rules! links {
            ($links:expr, $caller_stopped:expr, $callee_stopped:expr) => {
                for link in $links {
                    let caller = link.caller_up && !$caller_stopped(link.caller);
                    let callee = link.callee_up && !$callee_stopped(link.callee);
                    if callee && !link.forth.is_empty() {
                        out.push(Act::Deliver(link.conn, End::Callee));
                    }
                    if caller && !link.back.is_empty() {
                        out.push(Act::Deliver(link.conn, End::Caller));
                    }
                    if link.caller_up != link.callee_up && (caller || callee) {
                        out.push(Act::Notice(link.conn));
                    }
                }
            };
        }
        let prefill = |p: usize| self.prefills[p].stopped;
        let decode = |d: usize| self.decodes[d].stopped;
        let nobody = |_: usize| false;
        links!(&self.handing, prefill, decode);
        links!(&self.asking, nobody, prefill);
        links!(&self.telling, nobody, decode);
        let may = |pair: &Pair| {
            let stopped = matches!(pair, Pair::Handing(p, _) if self.prefills[*p].stopped);
            !stopped && self.unnoticed(*pair) < UNNOTICED
        };
        out.extend(self.to_dial().into_iter().filter(may).map(Act::Dial));
    }

    fn acts_of_prefill(&self, p: usize, out: &mut Vec<Act>) {
        let life = &self.prefills[p];
        let Some(machine) = &life.machine else { return };
        if life.stopped {
            return out.push(Act::PrefillGoesOn(p));
        }
        match life.chunk {
            Some(_) => out.push(Act::ChunkEnd(p)),
            None => {
                let runnable = machine.view().runnable.iter();
                out.extend(runnable.map(|offer| Act::ChunkBegin(p, *offer)));
            }
        }
        for submission in life.unreported.keys() {
            let mut flying = self.flights.iter().filter(|f| f.submission == *submission);
            if flying.all(|flight| flight.state != FlightState::Flying) {
                out.push(Act::Written(p, *submission));
            }
        }
        let attaching = life.attaching.iter();
        out.extend(attaching.map(|arena| Act::Attached(p, *arena)));
        let whole = |arena: &&ArenaId| !life.attaching.contains(arena);
        let detaching = life.detaching.iter().filter(whole);
        out.extend(detaching.map(|arena| Act::Detached(p, *arena)));
        let retries = life.timers.iter();
        let retries = retries.filter(|timer| matches!(timer, prefill::Timer::Retry(_)));
        out.extend(retries.map(|timer| Act::Retry(p, *timer)));
        let lost = |timer: &&prefill::Timer| match timer {
            prefill::Timer::Peer(epoch) => !self.lets_in(*epoch, life.epoch),
            _ => false,
        };
        let lost = life.timers.iter().filter(lost);
        out.extend(lost.map(|timer| Act::GiveUpDecode(p, *timer)));
        let ages = life.timers.get(&prefill::Timer::Cache);
        out.extend(ages.map(|timer| Act::PrefillAges(p, *timer)));
    }

    /// Whether this life of decode may have a connection with that life of prefill again: it can be
    /// dialled, and has not refused it for good.
    fn lets_in(&self, decode: Epoch, prefill: Epoch) -> bool {
        let lives = self.decodes.iter();
        let newer = |life: &DecodeLife<J>| {
            lives
                .clone()
                .any(|other| other.worker == life.worker && other.epoch > life.epoch)
        };
        let life = self.decodes.iter().find(|life| life.epoch == decode);
        life.is_some_and(|life| !newer(life) && !life.has_refused(prefill))
    }

    fn acts_of_decode(&self, setup: &Setup, d: usize, out: &mut Vec<Act>) {
        let life = &self.decodes[d];
        let Some(machine) = &life.machine else { return };
        if life.stopped {
            return out.push(Act::DecodeGoesOn(d));
        }
        let opening = life.opening.iter();
        out.extend(opening.map(|(arena, _)| Act::Opened(d, *arena)));
        out.extend((0..life.copies.len()).map(|at| Act::Copied(d, at)));
        let fences = life.fences_that_can_end();
        out.extend(fences.map(|arena| Act::Fenced(d, arena)));
        let lingering = life.lingering.iter();
        out.extend(lingering.map(|arena| Act::Released(d, *arena)));
        out.extend((0..life.starts.len()).map(|at| Act::First(d, at)));
        match life.step {
            Some(_) => out.push(Act::StepEnd(d)),
            None => match machine.view().runnable.len() {
                0 => {}
                all if setup.lanes > 0 && all > setup.lanes => {
                    out.extend((0..all).map(|turn| Act::StepOf(d, turn)));
                }
                _ => out.push(Act::StepBegin(d)),
            },
        }
        let again = life.timers.iter();
        let again = again.filter(|timer| matches!(timer, decode::Timer::Arena(_)));
        out.extend(again.map(|timer| Act::OpenAgain(d, *timer)));
        let ended = |epoch: Epoch| {
            let life = self.prefills.iter().find(|life| life.epoch == epoch);
            life.is_none_or(|life| life.machine.is_none())
        };
        let lost = |timer: &&decode::Timer| match timer {
            decode::Timer::Peer(epoch) => ended(*epoch) || life.has_refused(*epoch),
            _ => false,
        };
        let lost = life.timers.iter().filter(lost);
        out.extend(lost.map(|timer| Act::GiveUpPrefill(d, *timer)));
        let ages = life.timers.get(&decode::Timer::Cache);
        out.extend(ages.map(|timer| Act::DecodeAges(d, *timer)));
    }
}

impl<J: Decisions> DecodeLife<J> {
    /// A fence joins the copies first.
    pub(super) fn fences_that_can_end(&self) -> impl Iterator<Item = ArenaId> {
        let joined = |arena: &&ArenaId| self.copies.iter().all(|copy| copy.arena != Some(**arena));
        self.fences.iter().filter(joined).copied()
    }

    /// Whether it will never again have a connection with this life of prefill: it has ended, or has
    /// refused it for good.
    fn has_refused(&self, prefill: Epoch) -> bool {
        let machine = self.machine.as_ref();
        machine.is_none_or(|machine| {
            machine.ask(|machine| machine.refuses_for_good_for_checker(prefill))
        })
    }
}

impl fmt::Display for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ask(client) => write!(f, "client {} asks", super::content::letter(*client)),
            Self::Deliver(conn, End::Callee) => {
                write!(f, "connection {}: a message arrives at the callee", conn.0)
            }
            Self::Deliver(conn, End::Caller) => {
                write!(f, "connection {}: a message arrives at the caller", conn.0)
            }
            Self::Notice(conn) => write!(f, "connection {}: the other end notices", conn.0),
            Self::Dial(pair) => write!(f, "{pair}"),
            Self::ChunkBegin(p, offer) => write!(f, "P{p} begins a chunk of offer {}", offer.n),
            Self::ChunkEnd(p) => write!(f, "P{p}'s chunk ends"),
            Self::Land(at) => write!(f, "write {at} lands"),
            Self::Written(p, submission) => {
                write!(f, "P{p}: submission {} is reported complete", submission.n)
            }
            Self::Copied(d, at) => write!(f, "D{d}'s copy {at} ends"),
            Self::Fenced(d, arena) => write!(f, "D{d} has fenced arena {}", arena.n),
            Self::Released(d, arena) => {
                write!(
                    f,
                    "D{d}: the memory of dropped arena {} is given back",
                    arena.n
                )
            }
            Self::Detached(p, arena) => {
                write!(f, "P{p} has destroyed its endpoint to arena {}", arena.n)
            }
            Self::First(d, _) => write!(f, "D{d} looks at the first tokens"),
            Self::StepBegin(d) => write!(f, "D{d} begins a step"),
            Self::StepOf(d, turn) => {
                write!(f, "D{d} begins a step of some, from number {turn} on")
            }
            Self::StepEnd(d) => write!(f, "D{d}'s step ends"),
            Self::Opened(d, arena) => write!(f, "D{d} has made arena {}", arena.n),
            Self::Attached(p, arena) => write!(f, "P{p} has attached to arena {}", arena.n),
            Self::PrefillGoesOn(p) => write!(f, "the process of P{p} goes on"),
            Self::DecodeGoesOn(d) => write!(f, "the process of D{d} goes on"),
            Self::Retry(p, _) => write!(f, "P{p} asks again after Busy"),
            Self::OpenAgain(d, _) => write!(f, "D{d} asks again for what could not be made"),
            Self::GiveUpPrefill(d, _) => write!(f, "D{d} gives up a prefill life that is gone"),
            Self::GiveUpDecode(p, _) => write!(f, "P{p} gives up a decode life that is gone"),
            Self::PrefillAges(p, _) => write!(f, "P{p}'s cached pages grow older"),
            Self::DecodeAges(d, _) => write!(f, "D{d}'s cached pages grow older"),
            Self::Overdue(deadline) => write!(f, "nothing else can happen, and {deadline}"),
            Self::Fault(fault) => write!(f, "FAULT: {fault}"),
        }
    }
}

impl fmt::Display for Deadline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Prefill(p, timer) => write!(f, "a deadline passes at P{p}: {timer:?}"),
            Self::Decode(d, timer) => write!(f, "a deadline passes at D{d}: {timer:?}"),
            Self::Gateway(timer) => write!(f, "a deadline passes at the gateway: {timer:?}"),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = super::content::letter;
        match self {
            Self::Leave(client) => write!(f, "client {} leaves", letter(*client)),
            Self::Stop(client, choice) => {
                write!(
                    f,
                    "client {} needs no more of choice {choice}",
                    letter(*client)
                )
            }
            Self::FailWrite(p, submission) => {
                write!(f, "P{p}: submission {} is reported failed", submission.n)
            }
            Self::Echo(at) => write!(f, "write {at} lands, and will land once more"),
            Self::Corrupt(at) => write!(f, "write {at} lands with a flipped bit"),
            Self::Lose(at) => write!(f, "write {at} never lands, and is taken for landed"),
            Self::Truncate(conn) => write!(
                f,
                "connection {}: P's last batch is cut off after the offer",
                conn.0
            ),
            Self::Break(conn, End::Caller) => write!(f, "the caller loses connection {}", conn.0),
            Self::Break(conn, End::Callee) => write!(f, "the callee loses connection {}", conn.0),
            Self::PrefillDeadline(p, timer) => Deadline::Prefill(*p, *timer).fmt(f),
            Self::DecodeDeadline(d, timer) => Deadline::Decode(*d, *timer).fmt(f),
            Self::GatewayDeadline(timer) => Deadline::Gateway(*timer).fmt(f),
            Self::KillPrefill(p) => write!(f, "the process of P{p} ends"),
            Self::KillDecode(d) => write!(f, "the process of D{d} ends"),
            Self::SpawnPrefill(worker) => write!(f, "a new life of prefill worker {worker} begins"),
            Self::SpawnDecode(worker) => write!(f, "a new life of decode worker {worker} begins"),
            Self::Stale(at, conn) => {
                write!(f, "lost message {at} arrives on connection {}", conn.0)
            }
            Self::ChunkFailed(p) => write!(f, "P{p}'s forward pass fails"),
            Self::StepFailed(d) => write!(f, "D{d}'s step fails"),
            Self::CopyFailed(d, at) => write!(f, "D{d}'s copy {at} fails"),
            Self::Lingers(d, arena) => {
                write!(
                    f,
                    "D{d} has fenced arena {}, and its writer still maps it",
                    arena.n
                )
            }
            Self::DrainPrefill(p) => write!(f, "P{p} drains"),
            Self::DrainDecode(d) => write!(f, "D{d} drains"),
            Self::HangPrefill(p) => write!(f, "the process of P{p} stops"),
            Self::HangDecode(d) => write!(f, "the process of D{d} stops"),
            Self::SpawnGateway => write!(f, "the gateway's process ends and a new one begins"),
            Self::ArenaFailed(d, arena) => write!(f, "D{d} cannot make arena {}", arena.n),
            Self::AttachFailed(p, arena) => {
                write!(f, "P{p} cannot attach to arena {}", arena.n)
            }
        }
    }
}

impl fmt::Display for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Asking(p) => write!(f, "the gateway dials P{p}"),
            Self::Telling(d) => write!(f, "the gateway dials D{d}"),
            Self::Handing(p, d) => write!(f, "P{p} dials D{d}"),
        }
    }
}
