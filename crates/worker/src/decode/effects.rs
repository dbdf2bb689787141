//! What the decode machine wants done.

use super::arena_slots;
use super::copier::{Copied, Copy};
use super::engine::{Engine, Told};
use crate::WorkerError;
use crate::choose::{Rules, Voice};
use dialect::{TokenOut, decode_first};
use fabric::Shape;
use handoff::decode::{CopyPage, Effect, Event, Lane, Output};
use handoff::{ArenaId, Decisions, DecodeToGateway, Finish, GatewayToDecode, HandoffId, Spec};
use pages::WriterLife;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

impl<J: Decisions> Engine<J> {
    pub(super) fn carry_out(
        &mut self,
        effect: Effect,
        pending: &mut VecDeque<Told>,
    ) -> Result<(), WorkerError> {
        match effect {
            Effect::ToGateway(conn, message) => {
                self.count_said(&message);
                self.desk.links.send(conn, &message);
            }
            Effect::ToPrefill(conn, message) => self.desk.links.send(conn, &message),
            Effect::Close(conn, why) => {
                tracing::warn!(conn = conn.0, ?why, "connection ended");
                self.desk.links.close(conn);
            }
            Effect::OpenArena { arena, writer } => {
                pending.push_back(Told::Event(self.open_arena(arena, writer)));
            }
            Effect::Fence { arena } => pending.push_back(self.fence(arena)?),
            Effect::Copy {
                handoff,
                rank,
                batch,
                arena,
                pages,
            } => {
                self.copy(handoff, rank, batch, arena, &pages)?;
            }
            Effect::Check { .. } => {
                let why = "direct mode was not asked for".to_owned();
                return Err(WorkerError::FailStop(why));
            }
            Effect::Duplicate { from, to, filled } => {
                self.kv.copy_page(from, to, usize::from(filled))?;
            }
            Effect::Scrub { page } => self.kv.scrub(page)?,
            Effect::Start {
                handoff,
                attempt: _,
                spec,
                first,
            } => {
                pending.push_back(Told::Event(self.start(handoff, &spec, &first)));
            }
            Effect::Stop(lane) => {
                self.voices.remove(&lane);
            }
            Effect::Arm { timer, after_ms } => {
                self.desk.timers.arm(timer, Instant::now(), after_ms);
            }
            Effect::Disarm(timer) => self.desk.timers.disarm(timer),
            Effect::Audit {
                attempt,
                handoff,
                writer,
                failure,
                stated,
            } => {
                tracing::error!(
                    target: "audit",
                    %attempt, %handoff, %writer, ?failure, stated = stated.map(|tag| tag.0),
                    "what prefill handed over is not what was stated or granted"
                );
            }
            Effect::FailStop(evidence) => return Err(WorkerError::FailStop(evidence)),
        }
        Ok(())
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
                tracing::error!(%arena, %error, "no landing arena for a prefill worker");
                Event::ArenaFailed { arena }
            }
        }
    }

    /// Joins this side's copies and never reads the arena again; what came of it is a proof.
    fn fence(&mut self, arena: ArenaId) -> Result<Told, WorkerError> {
        self.desk.counters.fences += 1;
        match self.receiver.fence(fabric_id(arena)) {
            Ok(fenced) => {
                tracing::warn!(%arena, evidence = ?fenced.evidence, "landing arena dropped");
                Ok(Told::Fenced(arena, fenced.proof))
            }
            // Without a proof nothing may be released, and the machine waits for one.
            Err(error) => Err(WorkerError::FailStop(format!("no fence: {error}"))),
        }
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
        self.desk.counters.batches += 1;
        self.desk.counters.batch_pages += pages.len() as u64;
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
            self.desk.counters.batches_failed += 1;
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
                    let mut voice = Voice::new(&rules, choice);
                    let finish = voice.accept(token.id);
                    if finish.is_none() {
                        self.voices.insert(lane, voice);
                    }
                    Output {
                        lane,
                        payload: token.encode(),
                        finish,
                    }
                })
                .collect(),
            Err(problem) => {
                // Prefill certified bytes that are no tokens. The attempt is committed, so it ends
                // with an output that no gateway takes for a token: never a good answer.
                tracing::error!(%handoff, problem, "the first tokens cannot be used");
                self.desk.counters.malformed_messages += 1;
                let end = |choice| Output {
                    lane: Lane { handoff, choice },
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
                self.desk.attempt_ended(*attempt, ending);
            }
            DecodeToGateway::Committed { cached_tokens, .. } => {
                self.desk.counters.cached_tokens += u64::from(*cached_tokens);
            }
            _ => {}
        }
    }

    /// What an incoming event means for the counters.
    pub(super) fn count(&mut self, event: &Event) {
        match event {
            Event::FromGateway(conn, GatewayToDecode::Expect { attempt, .. }) => {
                self.desk.attempt_seen(*attempt, *conn);
            }
            Event::Disconnected(conn) => self.desk.disconnected(*conn),
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
