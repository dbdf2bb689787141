//! "Sometimes": what a run must show now and then, so that a proof over it is not vacuous. Every
//! scenario lists those that it must see.

macro_rules! situations {
    ($($(#[doc = $doc:literal])* $name:ident = $said:literal;)*) => {
        $($(#[doc = $doc])* pub const $name: &str = $said;)*

        /// All of them.
        pub const ALL: &[&str] = &[$($name),*];
    };
}

situations! {
    /// A request was answered in full.
    ANSWERED = "answered";
    /// A request failed.
    FAILED = "failed";
    /// A request was rejected for good.
    REJECTED = "rejected";
    /// A request was not taken on.
    REFUSED = "refused";
    /// A client left.
    LEFT = "client left";
    /// A cache was verified and sealed.
    COMMITTED = "committed";
    /// A batch was copied, compared and recorded.
    TAKEN = "taken";
    /// A token was generated.
    STEP = "step";
    /// A sequence was put back for an older one.
    PUT_BACK = "put back";
    /// A choice that was put back was committed again, behind what was said of it.
    RESUMED = "went on after it was put back";
    /// A sequence had no page for its next token and waited.
    SHORT = "short of a page";
    /// A step read pages that were handed over and committed, of this very handoff.
    READ = "step read what was committed";
    /// A step read a page of the cache that another request had brought.
    READ_CACHED = "step read another request's cached page";
    /// The same of two pages, one behind the other.
    READ_CHAIN = "step read a chain of cached pages";
    /// D had a prompt's beginning in its cache, of another domain, and granted pages for it.
    OTHER_DOMAIN = "cached for another domain only";
    /// D had no room for an offer.
    BUSY = "busy";
    /// D told P to close a handoff.
    CANCELLED = "cancelled by decode";
    /// P closed a handoff that it had given up.
    ABANDONED = "abandoned";
    /// P said that a write did not complete.
    UNSETTLED = "unsettled";
    /// D answered it, after its fence.
    UNSETTLED_ANSWERED = "unsettled answered";
    /// A write landed after its submission had been reported failed.
    LATE = "late write landed";
    /// A write landed a second time, after its submission had completed.
    ECHO = "own write landed again";
    /// A write landed in an arena's slot that meanwhile carries another batch.
    SLOT_REUSED = "late write over a reused slot";
    /// A write landed after its handoff's page had been granted to somebody else.
    GRANTED_ANEW = "late write after the page was granted anew";
    /// A write landed after its handoff had committed.
    AFTER_COMMIT = "write after commit";
    /// A write landed after its writer's process had ended.
    FROM_THE_DEAD = "write of a dead life";
    /// An arena was fenced.
    FENCED = "fenced";
    /// An arena was fenced while its writer still mapped it.
    LINGERS = "dropped arena still mapped";
    /// The memory of such an arena was given back.
    RELEASED = "memory of a dropped arena given back";
    /// A fence was asked for while copies out of that arena were in flight.
    FENCE_WAITS = "fence waits for a copy";
    /// D's own owner ended while a copy into its pages was in flight.
    QUARANTINED = "quarantine entered";
    /// A page came back out of quarantine.
    UNQUARANTINED = "quarantine left";
    /// An attempt was tried again, under new ids.
    RETRIED = "retried with new ids";
    /// A connection came up again.
    REDIALLED = "redialled";
    /// A batch was stated again after a reconnect.
    STATED_AGAIN = "stated again";
    /// A batch that was stated again joined the copy in flight.
    JOINED = "joined a copy in flight";
    /// A ticket was repeated for an offer whose answer had been lost.
    TICKET_AGAIN = "ticket repeated";
    /// A message arrived after its sender had lost the connection.
    AFTER_BREAK = "message outlives its connection";
    /// A connection of a refused or replaced life was closed.
    HUNG_UP = "hung up";
    /// A deadline passed.
    DEADLINE = "deadline";
    /// A prefix came out of D's cache.
    PREFIX_HIT = "prefix hit at decode";
    /// A prefix came out of P's cache.
    PREFIX_HIT_AT_P = "prefix hit at prefill";
    /// A cached page was evicted for somebody else.
    EVICTED = "evicted";
    /// Cached pages were given up because nobody had used them for their lifetime.
    EXPIRED = "cached page given up for its age";
    /// A partly filled page was copied for a choice.
    DUPLICATED = "page copied for a choice";
    /// A worker's process ended.
    KILLED = "killed";
    /// A new life of a worker began.
    SPAWNED = "new life";
    /// Two lives of one worker were there at once.
    COEXIST = "two lives at once";
    /// Something arrived that a life before had said.
    STALE = "stale message";
    /// A byte was corrupted in flight.
    CORRUPTED = "corrupted in flight";
    /// A write was taken for landed and had not.
    MISSING = "page missing";
    /// The last batch of a prompt was cut off after the offer.
    TRUNCATED = "truncated after the offer";
    /// D found that what arrived is not what was stated or granted.
    INTEGRITY = "integrity fault";
    /// A forward pass failed.
    COMPUTE_FAILED = "forward pass failed";
    /// A copy failed.
    COPY_FAILED = "copy failed";
    /// A worker drains and accepted nothing new.
    DRAINED = "drained";
    /// A choice was stopped before its end.
    STOPPED = "choice stopped";
    /// The gateway lost a worker's connection.
    GATEWAY_LOST = "gateway lost a worker";
    /// A step took its sequences in another order than decode keeps them in.
    OUT_OF_ORDER = "lanes in another order";
    /// A batch was reported failed of which one page had landed and another had not.
    HALF_A_BATCH = "half a batch landed";
    /// A write landed in a batch that was copied, or checked, while that was between two pages.
    TORN = "write between two pages of a copy";
    /// A process stopped.
    HUNG = "process stopped";
    /// It went on.
    WENT_ON = "process went on";
    /// A new life of the gateway began.
    GATEWAY_BEGAN = "new life of the gateway";
    /// It asked a decode that still had an attempt of the life before.
    OLD_ATTEMPT = "attempt of an earlier gateway";
    /// An arena could not be made.
    ARENA_FAILED = "arena not made";
    /// It was asked for again.
    ASKED_AGAIN = "arena asked for again";
    /// Prefill could not attach to an arena.
    ATTACH_FAILED = "arena not attached";
    /// An offer came while the arena for it was being made.
    BEFORE_ITS_ARENA = "offer before its arena";
    /// Prefill had as many jobs as it takes, and an attempt waited.
    JOBS_FULL = "jobs full";
    /// Decode knew as many lives of prefill as it takes, and another came.
    PEERS_FULL = "peers full";
    /// Prefill knew as many lives of decode as it takes, and another was there.
    DECODES_FULL = "decodes full";
    /// A life of prefill was refused for good, after so many dropped arenas.
    WORN_OUT = "life refused for good";
    /// A request was past the limits and reached a worker all the same.
    PAST_THE_EDGE = "past the edge";
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    #[test]
    fn no_two_situations_have_one_name() {
        let names: BTreeSet<_> = super::ALL.iter().collect();
        assert_eq!(names.len(), super::ALL.len());
    }
}
