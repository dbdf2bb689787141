//! The worlds by name, each as small as what it is about allows.
//!
//! A larger bound has the same worlds with more requests, more faults at once, or both; what a
//! world must see it must see at every bound.

use super::setups::*;
use super::{Mode, Setup, growth};
use crate::bound::Bound;
use crate::situations::*;

/// A world with a name.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Its name.
    pub name: &'static str,
    /// What it is about, in a line.
    pub about: &'static str,
    /// Where P's writes may land in it.
    pub modes: &'static [Mode],
    /// Situations that it must see at every bound and in every mode, or it shows nothing.
    pub sees: &'static [&'static str],
    /// Those that it must see besides where writes land in an arena.
    pub sees_landing: &'static [&'static str],
    setup: fn(Bound) -> Setup,
}

impl Scenario {
    /// What it consists of at this bound; none if it does not exist in this mode.
    pub fn setup(&self, bound: Bound, mode: Mode) -> Option<Setup> {
        self.modes.contains(&mode).then(|| Setup {
            mode,
            ..(self.setup)(bound)
        })
    }

    /// What it must see in this mode.
    pub fn must_see(&self, mode: Mode) -> impl Iterator<Item = &'static str> {
        let more = match mode {
            Mode::Landing => self.sees_landing,
            Mode::Direct => &[],
        };
        ALWAYS.iter().chain(self.sees).chain(more).copied()
    }

    /// The one of that name.
    pub fn named(name: &str) -> Option<&'static Self> {
        ALL.iter().find(|scenario| scenario.name == name)
    }
}

/// What every world must see: a handoff that is committed and never read would prove little.
const ALWAYS: &[&str] = &[COMMITTED, READ];

const BOTH: &[Mode] = &[Mode::Landing, Mode::Direct];
/// What direct mode relies on (handoff.md, "The idea"). A write that lands once more after its
/// completion would be in D's own pages, and nothing could tell. In an arena it wets a slot.
const LANDING: &[Mode] = &[Mode::Landing];

/// All of them.
pub const ALL: &[Scenario] = &[
    Scenario {
        name: "calm",
        about: "nothing goes wrong; two requests compete for a decode pool that holds one of them",
        modes: BOTH,
        sees: &[ANSWERED, STEP, BUSY, TAKEN],
        sees_landing: &[],
        setup: |_| two(),
    },
    Scenario {
        name: "leave",
        about: "a client leaves at any moment",
        modes: BOTH,
        sees: &[
            LEFT,
            CANCELLED,
            ABANDONED,
            ANSWERED,
            QUARANTINED,
            UNQUARANTINED,
        ],
        sees_landing: &[],
        setup: leave,
    },
    Scenario {
        name: "late-write",
        about: "a write is reported failed and lands later, or never",
        modes: BOTH,
        sees: &[
            UNSETTLED,
            UNSETTLED_ANSWERED,
            LATE,
            FENCED,
            RETRIED,
            ANSWERED,
        ],
        sees_landing: &[],
        setup: late_write,
    },
    Scenario {
        name: "lingers",
        about: "a dropped arena is still mapped, which is as much as its life may; then it is not",
        modes: LANDING,
        sees: &[
            UNSETTLED, FENCED, LINGERS, RELEASED, HUNG_UP, REDIALLED, ANSWERED,
        ],
        sees_landing: &[],
        setup: lingers,
    },
    Scenario {
        name: "echo",
        about: "a write lands again, after commit, over a reused slot, after its page was granted anew",
        modes: LANDING,
        sees: &[ECHO, AFTER_COMMIT, ANSWERED],
        sees_landing: &[],
        setup: echo,
    },
    Scenario {
        name: "break",
        about: "the control connection breaks, for each end at another moment",
        modes: BOTH,
        sees: &[
            REDIALLED,
            AFTER_BREAK,
            STATED_AGAIN,
            JOINED,
            TICKET_AGAIN,
            HUNG_UP,
            ANSWERED,
        ],
        sees_landing: &[],
        setup: break_,
    },
    Scenario {
        name: "deadline",
        about: "any deadline passes",
        modes: BOTH,
        sees: &[DEADLINE, FAILED, ANSWERED],
        sees_landing: &[],
        setup: deadline,
    },
    Scenario {
        name: "break-deadline",
        about: "a connection breaks and a deadline passes: an arena is dropped with what it owes",
        modes: BOTH,
        sees: &[REDIALLED, DEADLINE, FENCED],
        sees_landing: &[],
        setup: break_deadline,
    },
    Scenario {
        name: "break-write",
        about: "a connection breaks and a write is reported failed",
        modes: BOTH,
        sees: &[REDIALLED, UNSETTLED, LATE, FENCED],
        sees_landing: &[],
        setup: break_write,
    },
    Scenario {
        name: "corrupt",
        about: "a bit flips in flight",
        modes: BOTH,
        sees: &[CORRUPTED, INTEGRITY, FENCED, RETRIED, ANSWERED],
        sees_landing: &[],
        setup: corrupt,
    },
    Scenario {
        name: "missing",
        about: "a write is taken for landed and never lands",
        modes: BOTH,
        sees: &[MISSING, INTEGRITY, FENCED, RETRIED, ANSWERED],
        sees_landing: &[],
        setup: missing,
    },
    Scenario {
        name: "truncated",
        about: "prefill certifies less than it was told, after its offer",
        modes: BOTH,
        sees: &[TRUNCATED, INTEGRITY, ANSWERED],
        sees_landing: &[],
        setup: truncated,
    },
    Scenario {
        name: "ranks",
        about: "two writers of every page; one of them fails",
        modes: BOTH,
        sees: &[UNSETTLED, LATE, FENCED, ANSWERED],
        sees_landing: &[],
        setup: ranks,
    },
    Scenario {
        name: "two-lives-of-prefill",
        about: "prefill ends or hangs and begins again while its old writes may still land",
        modes: BOTH,
        sees: &[KILLED, SPAWNED, COEXIST, FROM_THE_DEAD, ANSWERED],
        sees_landing: &[],
        setup: lives_of_prefill,
    },
    Scenario {
        name: "restart-of-decode",
        about: "decode ends or hangs and begins again while writes for its old life may still land",
        modes: BOTH,
        sees: &[KILLED, SPAWNED, COEXIST, ANSWERED],
        sees_landing: &[],
        setup: lives_of_decode,
    },
    Scenario {
        name: "two-decodes",
        about: "one prefill, two decodes, a retry",
        modes: BOTH,
        sees: &[RETRIED, UNSETTLED, ANSWERED],
        sees_landing: &[],
        setup: two_decodes,
    },
    Scenario {
        name: "prefix",
        about: "prompts that begin alike, of two domains; cached pages are evicted for others",
        modes: BOTH,
        sees: &[
            PREFIX_HIT,
            PREFIX_HIT_AT_P,
            READ_CHAIN,
            OTHER_DOMAIN,
            EVICTED,
            ANSWERED,
        ],
        sees_landing: &[],
        setup: prefix,
    },
    Scenario {
        name: "cache-ages",
        about: "cached pages that nobody uses are given up when they are old, and used while they are not",
        modes: BOTH,
        sees: &[EXPIRED, PREFIX_HIT, PREFIX_HIT_AT_P, READ_CACHED, ANSWERED],
        sees_landing: &[],
        setup: cache_ages,
    },
    Scenario {
        name: "choices",
        about: "two answers to one prompt; the partly filled page is copied for each",
        modes: BOTH,
        sees: &[DUPLICATED, STOPPED, ANSWERED],
        sees_landing: &[],
        setup: choices,
    },
    Scenario {
        name: "incident",
        about: "prefill's pool is smaller than decode's, and a prompt lies between the two",
        modes: BOTH,
        sees: &[REJECTED, ANSWERED],
        sees_landing: &[],
        setup: incident,
    },
    Scenario {
        name: "overstated",
        about: "the same, and prefill says more of its pool to the gateway than is true",
        modes: BOTH,
        sees: &[REJECTED, PAST_THE_EDGE],
        sees_landing: &[],
        setup: overstated,
    },
    Scenario {
        name: "stale",
        about: "a message of an earlier connection or life arrives on another",
        modes: BOTH,
        sees: &[STALE, REDIALLED, ANSWERED],
        sees_landing: &[],
        setup: stale,
    },
    Scenario {
        name: "stale-and-over",
        about: "the same, and what the message is about may be over at the other end",
        modes: BOTH,
        sees: &[STALE, REDIALLED, LEFT, CANCELLED, ANSWERED],
        sees_landing: &[],
        setup: stale_and_over,
    },
    Scenario {
        name: "failed-pass",
        about: "a forward pass or a copy fails",
        modes: BOTH,
        sees: &[COMPUTE_FAILED, COPY_FAILED, RETRIED, ANSWERED],
        sees_landing: &[],
        setup: failed_pass,
    },
    Scenario {
        name: "left-and-failed",
        about: "a client leaves while a pass, a step or a copy runs, and that fails, or another",
        modes: BOTH,
        sees: &[LEFT, COMPUTE_FAILED, COPY_FAILED, RETRIED, ANSWERED],
        sees_landing: &[],
        setup: left_and_failed,
    },
    Scenario {
        name: "drain",
        about: "a worker drains",
        modes: BOTH,
        sees: &[DRAINED, ANSWERED, REFUSED],
        sees_landing: &[],
        setup: drain,
    },
    Scenario {
        name: "gateway",
        about: "what gateway and workers say to each other takes its time, and connections break",
        modes: BOTH,
        sees: &[GATEWAY_LOST, ANSWERED],
        sees_landing: &[],
        setup: gateway,
    },
    Scenario {
        name: "caps",
        about: "one prefill life and one domain may hold so much and no more",
        modes: BOTH,
        sees: &[BUSY, REFUSED, ANSWERED],
        sees_landing: &[],
        setup: caps,
    },
    Scenario {
        name: "scrub",
        about: "freed pages are zeroed before they are free",
        modes: BOTH,
        sees: &[LEFT, ANSWERED],
        sees_landing: &[],
        setup: scrub,
    },
    Scenario {
        name: "crowd",
        about: "three pages, three requests; one leaves, and (deep) a write fails",
        modes: BOTH,
        sees: &[ANSWERED],
        sees_landing: &[],
        setup: crowd,
    },
    Scenario {
        name: "growth",
        about: "two answers outgrow a pool that holds one: the younger is put back and goes on later",
        modes: BOTH,
        sees: &[SHORT, PUT_BACK, RESUMED, STEP, ANSWERED],
        sees_landing: &[],
        setup: growth::two_that_grow,
    },
    Scenario {
        name: "growth-faults",
        about: "the same, and clients leave, passes fail",
        modes: LANDING,
        sees: &[SHORT, PUT_BACK, RESUMED, LEFT, ANSWERED],
        sees_landing: &[],
        setup: growth::growth_and_faults,
    },
    Scenario {
        name: "growth-breaks",
        about: "the same, and a connection breaks or a deadline passes",
        modes: LANDING,
        sees: &[SHORT, PUT_BACK, RESUMED, ANSWERED],
        sees_landing: &[],
        setup: growth::growth_and_breaks,
    },
    Scenario {
        name: "growth-choices",
        about: "two answers to one prompt of which the pool holds one",
        modes: BOTH,
        sees: &[PUT_BACK, RESUMED, DUPLICATED, ANSWERED],
        sees_landing: &[],
        setup: growth::choices_that_grow,
    },
    Scenario {
        name: "growth-cache",
        about: "answers of one tenant that share cached pages outgrow the pool",
        modes: BOTH,
        sees: &[SHORT, PUT_BACK, RESUMED, PREFIX_HIT, ANSWERED],
        sees_landing: &[],
        setup: growth::cached_growth,
    },
    Scenario {
        name: "batches",
        about: "two pages a batch; a write of it fails, or is lost, or a bit of it flips, or the connection breaks",
        modes: BOTH,
        sees: &[
            HALF_A_BATCH,
            UNSETTLED,
            FENCED,
            MISSING,
            CORRUPTED,
            INTEGRITY,
            STATED_AGAIN,
            JOINED,
            ANSWERED,
        ],
        sees_landing: &[],
        setup: batches,
    },
    Scenario {
        name: "torn",
        about: "two pages a batch, and a write lands again between the two while they are copied",
        modes: LANDING,
        sees: &[TORN, ECHO, ANSWERED],
        sees_landing: &[],
        setup: torn,
    },
    Scenario {
        name: "lanes",
        about: "fewer sequences a step than run, in an order that is not decode's",
        modes: BOTH,
        sees: &[OUT_OF_ORDER, DUPLICATED, ANSWERED],
        sees_landing: &[],
        setup: lanes,
    },
    Scenario {
        name: "ranks-faults",
        about: "two writers; a connection breaks, a deadline passes, a process ends, a bit flips",
        modes: BOTH,
        sees: &[REDIALLED, DEADLINE, KILLED, INTEGRITY, FENCED, ANSWERED],
        sees_landing: &[],
        setup: ranks_faults,
    },
    Scenario {
        name: "ranks-cache",
        about: "two writers, prompts that begin alike, and a connection that breaks",
        modes: BOTH,
        sees: &[REDIALLED, PREFIX_HIT, READ_CACHED, ANSWERED],
        sees_landing: &[],
        setup: ranks_cache,
    },
    Scenario {
        name: "cache-faults",
        about: "a cache, and the same: a break, a process that ends, a bit that flips, a client that leaves",
        modes: BOTH,
        sees: &[REDIALLED, KILLED, INTEGRITY, LEFT, PREFIX_HIT, READ_CACHED],
        sees_landing: &[],
        setup: cache_faults,
    },
    Scenario {
        name: "jobs",
        about: "prefill takes one job at a time",
        modes: BOTH,
        sees: &[JOBS_FULL, LEFT, ANSWERED],
        sees_landing: &[],
        setup: jobs,
    },
    Scenario {
        name: "worn",
        about: "a life of prefill is refused for good after one integrity fault",
        modes: BOTH,
        sees: &[WORN_OUT, FENCED, ANSWERED],
        sees_landing: &[],
        setup: worn,
    },
    Scenario {
        name: "peers",
        about: "decode knows one life of prefill at a time, and a second comes",
        modes: BOTH,
        sees: &[PEERS_FULL, SPAWNED, ANSWERED],
        sees_landing: &[],
        setup: peers,
    },
    Scenario {
        name: "known-decodes",
        about: "prefill knows one life of decode at a time, and a second comes",
        modes: BOTH,
        sees: &[DECODES_FULL, SPAWNED, ANSWERED],
        sees_landing: &[],
        setup: known_decodes,
    },
    Scenario {
        name: "gateway-lives",
        about: "the gateway ends and begins again while workers still have attempts of its old life",
        modes: BOTH,
        sees: &[GATEWAY_BEGAN, OLD_ATTEMPT, ANSWERED],
        sees_landing: &[],
        setup: gateway_lives,
    },
    Scenario {
        name: "hang",
        about: "a process stops and goes on, and a deadline of somebody else passes",
        modes: BOTH,
        sees: &[HUNG, WENT_ON, DEADLINE, FENCED, ANSWERED],
        sees_landing: &[],
        setup: hang,
    },
    Scenario {
        name: "arenas",
        about: "arenas take their time, and so does attaching to one; either fails",
        modes: BOTH,
        sees: &[
            ARENA_FAILED,
            ASKED_AGAIN,
            ATTACH_FAILED,
            BEFORE_ITS_ARENA,
            FENCED,
            ANSWERED,
        ],
        sees_landing: &[],
        setup: arenas,
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Prompt;

    /// Whose answer ends with its first token is read by no step.
    #[test]
    fn every_prompt_that_may_be_answered_is_read_by_a_step() {
        for scenario in ALL {
            for bound in Bound::ALL {
                let setup = (scenario.setup)(bound);
                let pages = |prompt: &Prompt| {
                    let tokens = prompt.tokens.len() as u32 + prompt.max_new;
                    tokens.div_ceil(u32::from(crate::world::PAGE_SIZE))
                };
                let fits = |prompt: &&Prompt| pages(prompt) <= setup.decode_pages;
                for prompt in setup.prompts.iter().filter(fits) {
                    let name = scenario.name;
                    let rejected = prompt.tokens.len() > 4 && setup.prefill_pages < 3;
                    assert!(prompt.max_new > 1 || rejected, "{name}: {prompt:?}");
                }
            }
        }
    }
}
