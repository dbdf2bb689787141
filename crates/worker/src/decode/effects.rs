//! What the decode machine wants done.

use super::arena_slots;
use super::copier::{Copied, Copy};
use super::engine::{Engine, Granted};
use crate::choose::{ChoiceState, Rules};
use crate::{FailStop, WorkerError};
use fabric::{Evidence, Shape};
use handoff::decode::{CopyPage, Decode, Effect, Event, Input, Lane, Output, Timer};
use handoff::{
    ArenaId, AttemptId, Closing, Decisions, DecodeToGateway, DecodeToPrefill, Ending, Failure,
    Fault, Finish, GatewayToDecode, HandoffId, PrefillToDecode, Spec,
};
use pages::{Epoch, StatedTag, WriterLife};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::trace::{AuditEvent, AuditRecord, Driver, Recorded, TraceError};
use wire::{TokenOut, decode_first};

/// Between two looks at the memory of dropped arenas; the kernel is asked about each.
const LOOK_EVERY: Duration = Duration::from_millis(200);

impl<J: Decisions> Driver for Engine<J> {
    type Machine = Decode<J>;
    type Error = WorkerError;

    fn machine(&mut self) -> &mut Recorded<Decode<J>> {
        &mut self.machine
    }

    fn hears(&mut self, input: &Input) {
        if let Input::Event(event) = input {
            self.count(event);
        }
    }

    fn carry_out(
        &mut self,
        effect: Effect,
        led_to: &mut VecDeque<Input>,
    ) -> Result<(), WorkerError> {
        match effect {
            Effect::ToGateway(conn, message) => {
                self.count_said(&message);
                self.driver.links.send(conn, &message);
            }
            Effect::ToPrefill(conn, message) => {
                self.granted(&message);
                self.driver.links.send(conn, &message);
            }
            Effect::Close(conn, why) => {
                tracing::warn!(conn = conn.0, ?why, "connection ended");
                self.driver.links.close(conn);
            }
            Effect::OpenArena { arena, writer } => {
                led_to.push_back(Input::Event(self.open_arena(arena, writer)));
            }
            Effect::Fence { arena } => {
                let fenced = self.fence(arena)?;
                if self.lingering.contains(&arena) {
                    led_to.push_back(Input::Event(Event::ArenaLingers { arena }));
                }
                led_to.push_back(fenced);
            }
            Effect::Copy {
                handoff,
                rank,
                batch,
                arena,
                pages,
            } => {
                self.copy(handoff, rank, batch, arena, &pages)?;
            }
            Effect::Check { .. } => return Err(FailStop::DirectMode.into()),
            Effect::Duplicate { from, to, filled } => {
                self.kv.copy_page(from, to, usize::from(filled))?;
            }
            Effect::Scrub { page } => {
                self.kv.scrub(page)?;
                if let Some(owners) = &mut self.owners {
                    owners.erased(page.index());
                }
            }
            Effect::Expired { pages } => {
                self.driver.counters.cached_pages_expired += u64::from(pages);
            }
            Effect::Start {
                handoff,
                attempt,
                spec,
                first,
            } => {
                self.enter_stage(attempt, self.deadlines.decode);
                led_to.push_back(Input::Event(self.start(handoff, &spec, &first)));
            }
            Effect::Stop(lane) => {
                self.choice_states.remove(&lane);
            }
            Effect::Arm { timer, after_ms } => {
                if let Timer::Attempt(attempt) = timer {
                    self.stages.begin(attempt, Instant::now(), after_ms, None);
                }
                self.driver.timers.arm(timer, Instant::now(), after_ms);
            }
            Effect::Disarm(timer) => {
                if let Timer::Attempt(attempt) = timer {
                    self.stages.end(attempt);
                    self.granted.retain(|_, granted| granted.attempt != attempt);
                }
                self.driver.timers.disarm(timer);
            }
            Effect::Audit {
                attempt,
                handoff,
                writer,
                failure,
                stated,
            } => {
                tracing::error!(
                    %attempt, %handoff, %writer, ?failure,
                    "what prefill handed over is not what was stated or granted"
                );
                self.audit_fault(attempt, handoff, writer, failure, stated);
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
    /// A ticket leaves: from now on prefill's time counts, and the transfer's.
    fn granted(&mut self, message: &DecodeToPrefill) {
        let DecodeToPrefill::Ticket { handoff, tags, .. } = message else {
            return;
        };
        let Some(attempt) = self.machine.attempt_of(*handoff) else {
            return;
        };
        let (tags, landing) = (tags.clone(), false);
        let known = Granted {
            attempt,
            tags,
            landing,
        };
        if self.granted.insert(*handoff, known).is_none() {
            let both = self.deadlines.prefill.zip(self.deadlines.transfer);
            self.enter_stage(attempt, both.map(|(prefill, transfer)| prefill + transfer));
        }
    }

    /// The first batch of a handoff has landed: from now on the transfer's time counts.
    fn landed(&mut self, handoff: HandoffId) {
        if let Some(granted) = self.granted.get_mut(&handoff).filter(|it| !it.landing) {
            granted.landing = true;
            let attempt = granted.attempt;
            self.enter_stage(attempt, self.deadlines.transfer);
        }
    }

    fn enter_stage(&mut self, attempt: AttemptId, limit: Option<Duration>) {
        let now = Instant::now();
        if let Some(after_ms) = self.stages.enter(attempt, now, limit) {
            self.driver
                .timers
                .arm(Timer::Attempt(attempt), now, after_ms);
        }
    }

    fn audit_fault(
        &mut self,
        attempt: AttemptId,
        handoff: HandoffId,
        writer: Epoch,
        failure: Failure,
        stated: Option<StatedTag>,
    ) {
        let kind = match failure {
            Failure::Integrity(fault) => Some(fault),
            _ => None,
        };
        let tags = self.granted.get(&handoff).map(|granted| &granted.tags);
        let epoch = self.machine.hello().epoch.to_string();
        let record = AuditRecord {
            kind,
            decode_epoch: Some(epoch.clone()),
            attempt: Some(attempt.to_string()),
            handoff: Some(handoff.to_string()),
            prefill_epoch: Some(writer.to_string()),
            stated_tag: stated.map(|tag| tag.0),
            granted_tags: tags.map_or(Vec::new(), |tags| tags.iter().map(|tag| tag.0).collect()),
            ..AuditRecord::new(AuditEvent::IntegrityFault, "decode", epoch)
        };
        self.driver.audit(&record);
    }

    /// Prefill holds another prompt than the gateway announced (H-2).
    fn audit_prompt(&mut self, attempt: AttemptId) {
        let epoch = self.machine.hello().epoch.to_string();
        self.driver.audit(&AuditRecord {
            kind: Some(Fault::WrongTokens),
            decode_epoch: Some(epoch.clone()),
            attempt: Some(attempt.to_string()),
            ..AuditRecord::new(AuditEvent::IntegrityFault, "decode", epoch)
        });
    }

    /// First tokens that are none are worth as much as no first tokens: the machine then finds that
    /// fault itself, before the commit, instead of passing on what no gateway can read.
    pub(super) fn readable(&self, message: PrefillToDecode) -> PrefillToDecode {
        let PrefillToDecode::Closed { handoff, rank, how } = message else {
            return message;
        };
        let Closing::Sealed {
            batches,
            pages,
            first: Some(first),
        } = how
        else {
            return PrefillToDecode::Closed { handoff, rank, how };
        };
        let spec = self.machine.spec_of(handoff);
        let problem = spec.and_then(|spec| self.first_tokens(spec, &first).err());
        if let Some(problem) = &problem {
            tracing::error!(%handoff, problem, "prefill states first tokens that are none");
        }
        let first = Some(first).filter(|_| problem.is_none());
        let how = Closing::Sealed {
            batches,
            pages,
            first,
        };
        PrefillToDecode::Closed { handoff, rank, how }
    }

    fn open_arena(&mut self, arena: ArenaId, writer: WriterLife) -> Event {
        let layout = self.kv.layout();
        let slots = arena_slots(layout, self.kv.len());
        let shape = Shape {
            slots,
            slot_words: layout.page_words(),
        };
        let opened = self.receiver.open_arena(fabric_id(arena), writer, shape);
        match opened {
            Ok(landing) => {
                let address = landing.as_bytes().to_vec();
                Event::ArenaOpened {
                    arena,
                    slots,
                    address,
                }
            }
            Err(error) => {
                // The machine tries again. What helps in the long run is in the text.
                tracing::error!(%arena, %error, "no landing arena for a prefill worker now");
                self.driver.counters.arenas_failed += 1;
                Event::ArenaFailed { arena }
            }
        }
    }

    /// Joins this side's copies and never reads the arena again; what came of it is a proof.
    fn fence(&mut self, arena: ArenaId) -> Result<Input, WorkerError> {
        self.driver.counters.fences += 1;
        match self.receiver.fence(fabric_id(arena)) {
            Ok(fenced) => {
                if fenced.evidence == Evidence::WriterMaps {
                    self.lingering.insert(arena);
                }
                tracing::warn!(%arena, evidence = ?fenced.evidence, "landing arena dropped");
                let epoch = self.machine.hello().epoch.to_string();
                self.driver.audit(&AuditRecord {
                    prefill_epoch: Some(fenced.proof.writer().epoch.to_string()),
                    arena: Some(arena.to_string()),
                    evidence: Some(format!("{:?}", fenced.evidence)),
                    ..AuditRecord::new(AuditEvent::ArenaDropped, "decode", epoch)
                });
                Ok(Input::Fenced(arena, fenced.proof))
            }
            // Without a proof nothing may be released, and the machine waits for one.
            Err(error) => Err(FailStop::NoFence(error).into()),
        }
    }

    /// Tells the machine of dropped arenas whose memory is given back: their writer has gone on, or
    /// has ended with all that mapped them.
    pub(super) fn look_at_dropped(&mut self) -> Result<(), WorkerError> {
        let now = Instant::now();
        if self.lingering.is_empty() || now < self.next_look {
            return Ok(());
        }
        self.next_look = now + LOOK_EVERY;
        for arena in std::mem::take(&mut self.lingering) {
            if self.receiver.is_given_back(fabric_id(arena)) {
                self.tell(Event::ArenaReleased { arena })?;
            } else {
                self.lingering.insert(arena);
            }
        }
        Ok(())
    }

    /// The pages leave KV memory for as long as the copier writes them: whoever would attend to
    /// one meanwhile gets an error, not its bytes.
    fn copy(
        &mut self,
        handoff: HandoffId,
        rank: u16,
        batch: u32,
        arena: ArenaId,
        pages: &[CopyPage],
    ) -> Result<(), WorkerError> {
        self.driver.counters.batches += 1;
        self.driver.counters.batch_pages += pages.len() as u64;
        let attempt = self.machine.attempt_of(handoff);
        if let (Some(owners), Some(it)) = (&mut self.owners, attempt) {
            let pages = pages.iter().map(|page| page.page.index());
            owners.took((it.epoch, it.n), pages);
        }
        let mut targets = Vec::with_capacity(pages.len());
        for page in pages {
            targets.push((*page, self.kv.check_out(page.page)?));
        }
        // A reader of an arena that is gone copies nothing, and the machine is told so.
        let reader = self.receiver.reader(fabric_id(arena)).ok();
        self.copier.begin(Copy {
            handoff,
            rank,
            batch,
            reader,
            targets,
        })
    }

    pub(super) fn take_copied(&mut self, copied: Copied) -> Result<(), WorkerError> {
        let Copied {
            handoff,
            rank,
            batch,
            checksums,
            targets,
        } = copied;
        for (page, buf) in targets {
            self.kv.check_in(page.page, buf)?;
        }
        if checksums.is_none() {
            self.driver.counters.batches_failed += 1;
        }
        self.tell(Event::Copied {
            handoff,
            rank,
            batch,
            checksums,
        })
    }

    /// Every choice begins with the token that prefill sampled. Stop rules apply from it on.
    fn start(&mut self, handoff: HandoffId, spec: &Spec, first: &[u8]) -> Event {
        let choices = 0..spec.choices;
        let outputs = match self.first_tokens(spec, first) {
            Ok((rules, tokens)) => choices
                .zip(tokens)
                .map(|(choice, token)| {
                    let lane = Lane { handoff, choice };
                    let mut choice_state = ChoiceState::new(&rules, choice);
                    let finish = choice_state.accept(token.id, &self.masks);
                    if finish.is_none() {
                        choice_state.hold(&self.masks);
                        self.choice_states.insert(lane, choice_state);
                    }
                    Output {
                        lane,
                        token: token.id,
                        payload: token.encode(),
                        finish,
                    }
                })
                .collect(),
            Err(problem) => {
                // Prefill certified bytes that are no tokens. The attempt is committed, so it ends
                // with an output that no gateway takes for a token: never a good answer.
                tracing::error!(%handoff, problem, "the first tokens cannot be used");
                self.driver.counters.malformed_messages += 1;
                let end = |choice| Output {
                    lane: Lane { handoff, choice },
                    token: 0,
                    payload: Vec::new(),
                    finish: Some(Finish::Stop),
                };
                choices.map(end).collect()
            }
        };
        Event::First(outputs)
    }

    fn first_tokens(
        &self,
        spec: &Spec,
        first: &[u8],
    ) -> Result<(Arc<Rules>, Vec<TokenOut>), String> {
        let vocab = self.model.config().vocab;
        let rules = Rules::new(spec, &self.tokenizer, vocab).map_err(|error| error.to_string())?;
        let tokens = decode_first(first, usize::from(spec.choices));
        let tokens = tokens.map_err(|error| error.to_string())?;
        match tokens.iter().find(|token| token.id as usize >= vocab) {
            None => Ok((Arc::new(rules), tokens)),
            Some(token) => Err(format!("token {}, the vocabulary has {vocab}", token.id)),
        }
    }

    fn count_said(&mut self, message: &DecodeToGateway) {
        match message {
            DecodeToGateway::Ended { attempt, ending } => {
                if *ending == Ending::Failed(Failure::Integrity(Fault::WrongTokens)) {
                    self.audit_prompt(*attempt);
                }
                self.driver.attempt_ended(*attempt, ending);
            }
            DecodeToGateway::Committed { cached_tokens, .. } => {
                self.driver.counters.cached_tokens += u64::from(*cached_tokens);
            }
            _ => {}
        }
    }

    /// What an incoming event means for the counters.
    pub(super) fn count(&mut self, event: &Event) {
        match event {
            Event::FromGateway(conn, GatewayToDecode::Expect { attempt, .. }) => {
                self.driver.attempt_seen(*attempt, *conn);
            }
            Event::FromPrefill(_, PrefillToDecode::Landed(manifest)) => {
                self.landed(manifest.handoff)
            }
            Event::Disconnected(conn) => self.driver.disconnected(*conn),
            _ => {}
        }
    }
}

/// The fabric's name of an arena.
fn fabric_id(arena: ArenaId) -> fabric::ArenaId {
    fabric::ArenaId {
        owner: arena.epoch,
        n: arena.n,
    }
}
