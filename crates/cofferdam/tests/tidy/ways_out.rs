//! Every state of the machines, who is waited for in it, and what ends it: the rows of
//! `docs/waits.md`.

/// One state and its ways out.
pub struct Wait {
    /// `prefill`, `decode`, `gateway` or `door`.
    pub machine: &'static str,
    /// As in the code: `Enum::Variant`, or `Struct.field` of what may be there or not.
    pub state: &'static str,
    /// Who is waited for; a dash where nobody is.
    pub whom: &'static str,
    /// Timers in backticks; events and messages by name.
    pub ends: &'static str,
    /// What happens when the wait ends without the answer.
    pub then: &'static str,
}

macro_rules! waits {
    ($($machine:literal { $($state:literal: $whom:literal, $ends:literal, $then:literal;)* })*) => {
        /// In the order of a request's way through each machine.
        pub const WAITS: &[Wait] = &[$($(Wait {
            machine: $machine,
            state: $state,
            whom: $whom,
            ends: $ends,
            then: $then,
        },)*)*];
    };
}

waits! {
    "prefill" {
        "Prefill.dialled": "decode", "Hello and Synced, or `Greeting`, or the connection's end",
            "the connection is hung up; whoever dials, dials again";
        "Peer.conn": "decode", "a new Hello, or `Peer`",
            "the life is given up: its attempts end with `peer_failed`, endpoints are destroyed, jobs are forgotten when they are";
        "Peer.synced": "decode", "Synced, or `Greeting`", "as for `dialled`; then `Peer`";
        "Peer.lost": "own fabric", "Detached of every endpoint", "the driver joins its movers; nothing of a peer is waited for";
        "Peer.silent": "decode", "any answer, or `Answer` once more", "the life is given up as by `Peer`, though it greets";
        "AttemptStage::Queued": "decode and other jobs", "pages and a place, or `Attempt`",
            "the attempt ends; places are counted for each decode life, so one that does not answer keeps none of another's";
        "AttemptStage::Waiting": "-", "`Retry`, or `Attempt`", "offered again, behind others";
        "AttemptStage::Job": "decode", "Committed or Ended, or `Attempt`", "the job stops, gives its pages back and closes";
        "Job.ticket": "decode", "Ticket, Busy, Faulty or OfferEnded, or `Answer`",
            "the offer is taken back (its pages are free, its attempt queues again), the connection is hung up, `Peer` runs";
        "Job.attempt": "decode", "the answers to all certificates, or `Answer`, then `Peer`",
            "an ended job holds no page, and a place of its own decode life only";
        "Job.why": "-", "-", "-";
        "Job.chunk": "own compute", "ChunkEnd or ChunkFailed", "-";
        "Job.first": "own compute", "ChunkEnd, or `Attempt`", "the ranks close as abandoned";
        "Job.release_after_chunk": "own compute", "ChunkEnd or ChunkFailed", "the pages are given back then";
        "Prefill.computing": "own compute", "ChunkEnd or ChunkFailed", "-";
        "ArenaState::Attaching": "own fabric, which has one deadline over its exchange with decode", "Attached, or `Attempt` of each job",
            "the jobs close as abandoned; nothing was written";
        "ArenaState::Ready": "-", "Taken and Ended give slots back; who lacks one has `Answer` and `Attempt`", "the job closes";
        "ArenaState::Dead": "decode", "the answer to Unsettled, or `Answer`, then `Peer`", "decode makes another, or the life is given up";
        "Submission.failed": "own fabric", "Detached", "its source pages are kept until then";
        "Rank.flying": "own fabric (TCP: nothing moved for so long)", "Written, or Detached", "it is unsettled";
        "Rank.stated": "decode", "Taken, or `Answer`", "the connection is hung up; stated again after Sync, or `Peer`";
        "Rank.failed": "decode", "Ended{Unsettled}, or `Answer`, then `Peer`", "as for `closing`";
        "Rank.closing": "decode", "Ended or Committed, or `Answer`", "the connection is hung up; said again after Sync, or `Peer`";
        "Rank.done": "-", "-", "-";
        "Close::Closed": "decode", "Ended{Closed} or Committed, or `Answer`", "as for `Rank.closing`";
        "Close::Unsettled": "decode, which fences first", "Ended{Unsettled}, or `Answer`", "as for `Rank.closing`";
        "Prefill.prefix": "-", "a reservation that needs the room, or `Cache` where its lifetime is bounded",
            "a page that nobody reads is given up; one that somebody reads stays";
        "Prefill.draining": "-", "the driver's time to drain", "the worker ends";
    }
    "decode" {
        "Peer.conn": "prefill", "a new Hello, or `Peer`",
            "arenas are dropped and fenced, uncommitted handoffs fail, the life is refused until its next Hello";
        "Peer.synced": "prefill", "Sync, or `Greeting`", "the connection is hung up, `Peer` runs";
        "Peer.refused": "prefill", "a new Hello", "nothing of it is waited for; attempts for it are refused, and it is forgotten when its arenas are fenced";
        "Peer.retry": "own memory", "ArenaOpened, or `Arena`", "it is asked for again, each time after twice as long; readiness says so";
        "Peer.retry_armed": "-", "`Arena`", "the missing arenas are asked for";
        "Peer.incidents": "the writer and whoever maps with it", "fenced, or ArenaReleased", "above the limit the life is refused until memory is given back; nothing waits";
        "ArenaState::Opening": "own memory", "ArenaOpened or ArenaFailed, then `Arena`", "offers are told Busy meanwhile";
        "ArenaState::Ready": "-", "-", "-";
        "ArenaState::Fencing": "own copies", "fenced", "the driver joins them; a fence that cannot be had ends the worker";
        "Arena.doubtful": "other handoffs of that arena", "the last of them ends, or `Unsettled`", "the arena is dropped";
        "Mapped": "whoever maps it", "ArenaReleased", "it stays counted; nothing waits";
        "Expected.handoff": "prefill", "Offer, or `Attempt`", "the attempt ends with a deadline";
        "Decode.intents": "prefill", "its next Offer, or `Turn`, or `Attempt`", "its turn is over; others wait behind it no longer";
        "Phase::Landing": "prefill", "Closed of every rank, or `Attempt`, or `Peer`", "the attempt ends, pages go back, Cancel is said and `Cancel` armed";
        "Phase::Running": "own compute, and the gateway's reader", "StepEnd, Cancel, or `Attempt`", "the attempt ends";
        "Phase::Over": "prefill", "Closed or Unsettled of every open rank, or `Cancel`", "the arena is fenced: writers are gone; the life is refused until its next Hello";
        "WriterState::Open": "prefill", "Closed or Unsettled, or `Attempt`, then `Cancel`", "as for `Over`";
        "WriterState::Sealed": "the other ranks", "their Closed, or `Attempt`", "answered Ended{Closed}";
        "WriterState::Abandoned": "own copies", "Copied", "answered then";
        "WriterState::Unsettled": "own fence", "fenced, at the latest after `Unsettled`", "answered then";
        "WriterState::Gone": "-", "-", "-";
        "Writer.answered": "-", "-", "-";
        "Writer.voided": "own fence", "fenced", "answered then";
        "Writer.first": "prefill", "Closed{Sealed}, or `Attempt`", "as for `Open`";
        "Writer.copying": "own copies", "Copied", "pages that a copy writes are kept until then";
        "Handoff.started": "own worker", "First", "-";
        "Sequence.done": "the other choices", "StepEnd, or `Attempt`", "the attempt ends";
        "Decode.step": "own compute", "StepEnd or StepFailed", "-";
        "Decode.prefix": "-", "a reservation that needs the room, or `Cache` where its lifetime is bounded",
            "a page that nobody reads is given up; one that somebody reads stays";
        "Decode.draining": "-", "the driver's time to drain", "the worker ends";
    }
    "gateway" {
        "Worker.hello": "a worker that was dialled", "Hello, or `Greeting`, or the connection's end", "the connection is hung up and dialled again; no pair has the worker meanwhile";
        "Worker.leaving": "-", "the connection's end", "no attempt goes to it any more";
        "Request.attempt": "decode and prefill", "Ended of decode, the connection's end, or `Request`", "the client is told which stage was too slow";
        "AttemptStage::Announced": "decode", "Expecting or Ended, or `Answer`", "decode is hung up on: all that is with it is tried once elsewhere, or fails if a token was sent";
        "AttemptStage::Prefilling": "prefill and decode", "Committed or Ended, or `Request`; the driver's heartbeat ends the connection of a worker that is stopped", "as for a lost worker";
        "Attempt.asked": "decode", "Expecting or Ended, or `Answer`", "as for `Announced`";
        "Attempt.judged": "decode", "tokens and Ended, or `Request`; the driver's heartbeat", "an error event ends the stream";
        "Attempt.failing": "decode", "Ended, or `Answer`", "as for `Announced`";
        "Request.begun": "-", "-", "-";
        "Attempt.begun": "-", "-", "no retry of this attempt any more";
        "Gateway.draining": "-", "the driver's time to drain", "the gateway ends";
    }
    "door" {
        "Request.attempt": "an engine", "the outcome, or `Request`", "504, with the stage; the legs are wound up";
        "Request.failing": "an engine that has legs of the attempt before", "their ends, or `Request`", "504, or how that attempt failed";
        "Request.released": "-", "-", "no other try any more";
        "Attempt.before": "-", "-", "-";
        "Attempt.prefill_at": "-", "-", "-";
        "Attempt.counted": "an engine (prefill)", "prefill's answer, or `Stage`, or `Request`", "the attempt fails at prefill";
        "Attempt.counted_by_decode": "an engine (decode)", "a part of its answer, or its end, or `Stage`, or `Request`", "nothing of a prompt known as a bound is released";
        "Attempt.wanted": "-", "-", "the legs are wound up";
        "State::Unsent": "an engine, if decode waits for prefill's reference", "prefill's answer, or `Stage`, or `Request`", "the attempt fails at prefill";
        "State::Going": "an engine", "its answer's end, or `Stage` (its words put it off); once unwanted, `Linger`", "the attempt fails, and is tried elsewhere if nothing was released; unwanted, the leg is aborted";
        "State::Silent": "an engine whose connection is lost", "`Linger`, or the end of what may be under way", "the leg is aborted by the engine's own call";
        "State::Aborting": "an engine", "the answer to the abort, or `Abort`", "the leg is given up, the engine is blamed, and nothing of this request goes there again";
        "State::Over": "-", "-", "-";
        "State::GivenUp": "-", "-", "-";
        "Moving::No": "-", "-", "-";
        "Moving::May": "an engine", "prefill's end (together), decode's first word (pull), or `Linger`", "what may be under way is taken to have ended";
        "Moving::Doubt": "an engine whose writes may still land", "`Settle`, or `Linger`", "as for `May`";
        "Attempt.judged": "-", "-", "-";
        "Attempt.speaks": "-", "-", "-";
        "Attempt.answered": "an engine (prefill's own answer)", "prefill's end, or `Stage`, or `Request`", "nothing of the answer was released";
        "Attempt.decode_failed": "an engine (prefill's word on it)", "prefill's end, or `Word`", "decode is at fault";
        "Attempt.heard": "-", "-", "-";
        "Attempt.staged": "-", "`Stage`", "as for `Going`";
        "Attempt.lingers": "-", "`Linger`", "as for `May`";
        "Health::Well": "-", "-", "-";
        "Health::Resting": "-", "`Rest`", "one attempt at a time shows how it is";
        "Health::OnTrial": "-", "-", "-";
        "Door.draining": "-", "the driver's time to drain", "the gateway ends";
    }
}
