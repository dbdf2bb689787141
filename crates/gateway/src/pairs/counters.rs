//! What the engine counts since its start.

use crate::engine::counters;
use handoff::Fault;

impl Counters {
    /// The counter of one kind of integrity fault.
    pub(super) fn integrity(&mut self, fault: Fault) -> &mut u64 {
        match fault {
            Fault::WrongTokens => &mut self.integrity_wrong_tokens,
            Fault::WrongTag => &mut self.integrity_wrong_tag,
            Fault::WrongOrdinal => &mut self.integrity_wrong_order,
            Fault::WrongFill => &mut self.integrity_wrong_fill,
            Fault::WrongChecksum => &mut self.integrity_wrong_checksum,
            Fault::PageTwice => &mut self.integrity_page_twice,
            Fault::BadBatch => &mut self.integrity_bad_batch,
            Fault::MissingPage => &mut self.integrity_missing_page,
            Fault::Short => &mut self.integrity_short_count,
            Fault::FirstToken => &mut self.integrity_first_token,
            Fault::WrongArena => &mut self.integrity_wrong_arena,
            Fault::FailStop => &mut self.integrity_fail_stop,
        }
    }
}

counters! {
    /// Requests that the machine judged.
    requests_judged,
    /// Requests that were taken on: these alone reach a worker.
    requests_admitted,
    /// Requests that ended with a whole answer.
    requests_answered,
    /// Requests refused for good.
    requests_rejected,
    /// Requests not taken on, for now.
    requests_refused,
    /// Requests that failed.
    requests_failed,
    /// Requests whose client left first.
    requests_abandoned,
    /// Requests cancelled because their reader fell behind.
    readers_fallen_behind,
    /// Attempts announced to decode workers; above the requests admitted: retries, and answers that
    /// went on after they were put back.
    attempts_announced,
    /// Answers put back because decode needed their pages for older ones.
    put_backs,
    /// Attempts sent to prefill workers.
    attempts_sent,
    /// Connections to workers that came up.
    connections,
    /// Connections to workers that ended, for whatever reason.
    connections_ended,
    /// Workers given up because they did not answer for too long.
    silent_workers,
    /// Messages of workers that were none; each cost its connection.
    malformed_messages,
    /// Integrity faults: prefill held another prompt than decode was told of.
    integrity_wrong_tokens,
    /// Integrity faults: a tag that was not granted for its page.
    integrity_wrong_tag,
    /// Integrity faults: a page that does not belong where it was stated.
    integrity_wrong_order,
    /// Integrity faults: a page with more or fewer tokens than its place has.
    integrity_wrong_fill,
    /// Integrity faults: other bytes than were stated.
    integrity_wrong_checksum,
    /// Integrity faults: a page that was stated twice.
    integrity_page_twice,
    /// Integrity faults: a batch with other content than before, or a slot used twice.
    integrity_bad_batch,
    /// Integrity faults: a page of the prompt that never came.
    integrity_missing_page,
    /// Integrity faults: a certificate that counts other pages than were stated.
    integrity_short_count,
    /// Integrity faults: no readable first token, or several.
    integrity_first_token,
    /// Integrity faults: pages that landed in an arena that is not their writer's.
    integrity_wrong_arena,
    /// Attempts at a worker that found one of its own rules broken and ended.
    integrity_fail_stop,
}
