//! What the prefill machine wants done.

use super::endpoints::Moved;
use super::engine::{Chunk, Engine, Job};
use crate::choose::Rules;
use crate::{FailStop, WorkerError};
use fabric::SubmissionId as FabricId;
use handoff::prefill::{Effect, Event, Prefill, SendPage, Timer};
use handoff::{ArenaId, AttemptId, Decisions, GatewayToPrefill, PrefillToGateway, SubmissionId};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::trace::{Driver, Recorded, TraceError};

impl<J: Decisions> Driver for Engine<J> {
    type Machine = Prefill<J>;
    type Error = WorkerError;

    fn machine(&mut self) -> &mut Recorded<Prefill<J>> {
        &mut self.machine
    }

    fn hears(&mut self, event: &Event) {
        self.count(event);
    }

    fn carry_out(
        &mut self,
        effect: Effect,
        led_to: &mut VecDeque<Event>,
    ) -> Result<(), WorkerError> {
        match effect {
            Effect::ToGateway(conn, message) => {
                if let PrefillToGateway::Ended { attempt, ending } = &message {
                    self.driver.attempt_ended(*attempt, ending);
                }
                self.driver.links.send(conn, &message);
            }
            Effect::ToDecode(conn, message) => self.driver.links.send(conn, &message),
            Effect::Close(conn, why) => {
                tracing::warn!(conn = conn.0, ?why, "connection ended");
                self.driver.links.close(conn);
            }
            Effect::Attach { arena, address } => self.endpoints.attach(arena, address),
            Effect::Detach { arena } => self.endpoints.detach(arena),
            Effect::Submit {
                submission,
                arena,
                rank: _,
                pages,
            } => {
                if !self.submit(submission, arena, &pages)? {
                    led_to.push_back(Event::Written {
                        submission,
                        ok: false,
                    });
                }
            }
            Effect::Compute {
                offer,
                from,
                to,
                last,
            } => {
                self.computing = Some(Chunk {
                    offer,
                    from,
                    to,
                    last,
                });
            }
            Effect::Admitted {
                offer,
                attempt,
                spec,
                cached_tokens,
            } => {
                self.driver.counters.cached_tokens += u64::from(cached_tokens);
                let rules = Rules::new(&spec, &self.tokenizer, self.model.config().vocab);
                let rules = rules
                    .map_err(|error| tracing::warn!(%attempt, %error, "cannot be sampled"))
                    .ok()
                    .map(Arc::new);
                let seat = rules.as_ref().and_then(|rules| rules.seat(&self.masks));
                self.enter_stage(attempt, self.deadlines.prefill);
                self.jobs.insert(
                    offer,
                    Job {
                        attempt,
                        spec: *spec,
                        rules,
                        seat,
                        computed: cached_tokens,
                    },
                );
            }
            Effect::Dropped { offer } => {
                self.jobs.remove(&offer);
            }
            Effect::Scrub { page } => self.kv.scrub(page)?,
            Effect::Expired { pages } => {
                self.driver.counters.cached_pages_expired += u64::from(pages);
            }
            Effect::Arm { timer, after_ms } => {
                let after_ms = self.whole_or_queue(timer, after_ms);
                self.driver.timers.arm(timer, Instant::now(), after_ms);
            }
            Effect::Disarm(timer) => {
                if let Timer::Attempt(attempt) = timer {
                    self.stages.end(attempt);
                }
                self.driver.timers.disarm(timer);
            }
            Effect::FailStop(broken) => return Err(FailStop::from(broken).into()),
        }
        Ok(())
    }

    fn trace_ended(&mut self, error: TraceError) -> Result<(), WorkerError> {
        Err(error.into())
    }

    fn settled(&mut self) {
        debug_assert_eq!(self.kept_at_rest(), [""; 0], "at rest, and kept");
    }
}

impl<J: Decisions> Engine<J> {
    /// An attempt begins in the queue; other timers are what they are.
    fn whole_or_queue(&mut self, timer: Timer, after_ms: u64) -> u64 {
        match timer {
            Timer::Attempt(attempt) => {
                let limit = self.deadlines.queue;
                self.stages.begin(attempt, Instant::now(), after_ms, limit)
            }
            _ => after_ms,
        }
    }

    /// Another stage of an attempt begins.
    pub(super) fn enter_stage(&mut self, attempt: AttemptId, limit: Option<Duration>) {
        let now = Instant::now();
        if let Some(after_ms) = self.stages.enter(attempt, now, limit) {
            self.driver
                .timers
                .arm(Timer::Attempt(attempt), now, after_ms);
        }
    }

    /// Lends the pages to the fabric; false if nothing was begun.
    fn submit(
        &mut self,
        submission: SubmissionId,
        arena: ArenaId,
        pages: &[SendPage],
    ) -> Result<bool, WorkerError> {
        self.driver.counters.batches += 1;
        self.driver.counters.batch_pages += pages.len() as u64;
        let mut writes = Vec::with_capacity(pages.len());
        for page in pages {
            let lent = self.kv.share(page.page)?;
            let write = self.endpoints.write(lent, page.filled, page.slot);
            writes.push(write.ok_or(FailStop::Slots(page.filled))?);
        }
        let begun = self.endpoints.submit(arena, FabricId(submission.n), writes);
        self.driver.counters.batches_failed += u64::from(!begun);
        Ok(begun)
    }

    pub(super) fn take_moved(&mut self, moved: Moved) -> Result<(), WorkerError> {
        match moved {
            Moved::Attached(arena, attached) => {
                let ok = self.endpoints.attached(arena, attached);
                self.tell(Event::Attached { arena, ok })
            }
            Moved::Written(arena, id, landed) => {
                self.driver.counters.batches_failed += u64::from(!landed);
                self.tell(Event::Written {
                    submission: self.submission(id),
                    ok: landed,
                })?;
                for id in self.endpoints.submit_waiting(arena) {
                    self.driver.counters.batches_failed += 1;
                    self.tell(Event::Written {
                        submission: self.submission(id),
                        ok: false,
                    })?;
                }
                Ok(())
            }
            Moved::Detached(arena) => self.tell(Event::Detached { arena }),
        }
    }

    fn submission(&self, id: FabricId) -> SubmissionId {
        SubmissionId {
            epoch: self.machine.hello().epoch,
            n: id.0,
        }
    }

    /// What an incoming event means for the counters.
    pub(super) fn count(&mut self, event: &Event) {
        match event {
            Event::FromGateway(conn, GatewayToPrefill::Attempt { attempt, .. }) => {
                self.driver.attempt_seen(*attempt, *conn);
            }
            Event::Disconnected(conn) => self.driver.disconnected(*conn),
            _ => {}
        }
    }
}
