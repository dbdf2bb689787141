//! What happened to B's first request, in the words of the three machines' own traces.
//!
//! Each machine's trace has its own order; between machines the order is that of the messages:
//! whoever is told something is told it after it was said.

use super::guards::{Guards, Safeguard};
use super::scenario::Scenario;
use handoff::decode::{self, Decode};
use handoff::gateway::{self, Gateway, Item, Outcome};
use handoff::prefill::{self, Prefill};
use handoff::{
    AttemptId, Closing, DecodeToGateway, DecodeToPrefill, Ending, GatewayToDecode,
    GatewayToPrefill, HandoffId, OfferId, PrefillToDecode, PrefillToGateway, RequestId,
    SubmissionId,
};
use std::path::Path;
use wire::trace::{DecodeInput, ReplayObserver, TraceError, replay_watched};

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Moment {
    /// Its place: steps of the protocol, in the order of the messages.
    order: u32,
    /// Who.
    pub who: &'static str,
    /// What.
    pub what: String,
    /// The safeguard that looks here; whether it was on.
    pub guard: Option<(Safeguard, bool)>,
    /// Here it goes wrong.
    pub wrong: bool,
}

/// The steps of B's first request, from the traces in `dir`.
pub(super) fn timeline(
    dir: &Path,
    guards: Guards,
    scenario: &Scenario,
) -> Result<Vec<Moment>, TraceError> {
    let mut tale = Tale {
        guards,
        count: scenario.over[0].tokens,
        moments: Vec::new(),
        request: None,
        attempt: None,
        offer: None,
        handoff: None,
        submission: None,
        granted: 0,
        tokens: 0,
    };
    for role in ["gateway", "decode", "prefill"] {
        tale.handoff = None;
        replay_watched(&dir.join(format!("{role}.trace")), guards, &mut tale)?;
    }
    tale.moments.sort_by_key(|moment| moment.order);
    Ok(tale.moments)
}

struct Tale {
    guards: Guards,
    /// Tokens of the prompt that is followed.
    count: u32,
    moments: Vec<Moment>,
    request: Option<RequestId>,
    attempt: Option<AttemptId>,
    offer: Option<OfferId>,
    handoff: Option<HandoffId>,
    submission: Option<SubmissionId>,
    granted: usize,
    tokens: u32,
}

impl Tale {
    fn say(&mut self, order: u32, who: &'static str, guard: Option<Safeguard>, what: String) {
        let guard = guard.map(|guard| (guard, self.guards.has(guard)));
        self.moments.push(Moment {
            order,
            who,
            what,
            guard,
            wrong: false,
        });
    }

    fn announces(&self, tokens: usize) -> bool {
        tokens == self.count as usize
    }
}

const GATEWAY: &str = "gateway";
const PREFILL: &str = "prefill";
const DECODE: &str = "decode";

impl ReplayObserver<Guards> for Tale {
    fn gateway(
        &mut self,
        input: &gateway::Event,
        effects: &[gateway::Effect],
        after: &mut Gateway<Guards>,
    ) {
        if let gateway::Event::Request { spec, .. } = input
            && self.announces(spec.tokens.len())
            && self.request.is_none()
        {
            let next = after.next_request();
            self.request = Some(RequestId {
                n: next.n - 1,
                ..next
            });
            let limit = after.limits().first().map_or(0, |limit| limit.max_prompt());
            let what = format!(
                "A prompt of {} tokens. The longest that it would take has {limit}.",
                self.count
            );
            self.say(10, GATEWAY, Some(Safeguard::Edge), what);
        }
        for effect in effects {
            self.gateway_effect(effect);
        }
    }

    fn decode(
        &mut self,
        input: &DecodeInput,
        effects: &[decode::Effect],
        after: &mut Decode<Guards>,
    ) {
        if let DecodeInput::Event(event) = input {
            self.decode_event(event, after);
        }
        for effect in effects {
            self.decode_effect(effect);
        }
    }

    fn prefill(
        &mut self,
        input: &prefill::Event,
        effects: &[prefill::Effect],
        after: &mut Prefill<Guards>,
    ) {
        self.prefill_event(input, after);
        for effect in effects {
            self.prefill_effect(effect);
        }
    }
}

/// The gateway's side.
impl Tale {
    fn gateway_effect(&mut self, effect: &gateway::Effect) {
        match effect {
            gateway::Effect::ToDecode(_, GatewayToDecode::Expect { attempt, spec, .. })
                if self.announces(spec.tokens.len()) && self.attempt.is_none() =>
            {
                self.attempt = Some(*attempt);
                let what = format!("Tells decode to expect {} tokens.", self.count);
                self.say(11, GATEWAY, None, what);
            }
            gateway::Effect::Deliver { request, item } if self.request == Some(*request) => {
                self.tokens += u32::from(matches!(item, Item::Tokens { .. }));
            }
            gateway::Effect::Finish { request, outcome } if self.request == Some(*request) => {
                let what = match outcome {
                    Outcome::Answered => format!(
                        "200, with {} tokens of an answer and prompt_tokens {}.",
                        self.tokens, self.count
                    ),
                    Outcome::Rejected(why) => format!("The request is rejected: {why:?}."),
                    Outcome::Refused(why) => format!("The request is refused: {why:?}."),
                    Outcome::Failed(why) => {
                        format!("The request fails: {why:?} (after one more try, if it may).")
                    }
                    Outcome::ClientLeft => "The client has left.".into(),
                };
                self.say(90, GATEWAY, None, what);
            }
            _ => {}
        }
    }
}

/// Decode's side.
impl Tale {
    fn decode_event(&mut self, event: &decode::Event, after: &mut Decode<Guards>) {
        match event {
            decode::Event::FromPrefill(
                _,
                PrefillToDecode::Offer {
                    offer,
                    attempt,
                    count,
                    ..
                },
            ) if Some(*attempt) == self.attempt => {
                self.offer = Some(*offer);
                let what = format!(
                    "The gateway said {} tokens, the offer says {count}.",
                    self.count
                );
                self.say(40, DECODE, Some(Safeguard::Expect), what);
            }
            decode::Event::FromPrefill(_, PrefillToDecode::Landed(manifest))
                if Some(manifest.handoff) == self.handoff =>
            {
                for page in &manifest.pages {
                    let what = format!(
                        "Page {} of the prompt has arrived, under the tag that was granted for \
                         it.",
                        page.ordinal
                    );
                    self.say(70, DECODE, Some(Safeguard::Tags), what);
                    let what = format!("It says that it is page {}, and it is.", page.ordinal);
                    self.say(71, DECODE, Some(Safeguard::Order), what);
                    let size = after.hello().capacity.map_or(0, |it| it.page_size);
                    let due = self.count.min(size.into());
                    let what = format!(
                        "{} filled; of this prompt it has {due}.",
                        counted(u64::from(page.filled), "slot")
                    );
                    self.say(72, DECODE, Some(Safeguard::Fill), what);
                }
            }
            decode::Event::Copied {
                handoff,
                checksums: Some(checksums),
                ..
            } if Some(*handoff) == self.handoff => {
                let what = format!(
                    "Copied out of the landing arena; the checksum over what came is right \
                     ({:08x}).",
                    checksums.first().copied().unwrap_or_default()
                );
                self.say(73, DECODE, Some(Safeguard::Checksum), what);
            }
            decode::Event::FromPrefill(
                _,
                PrefillToDecode::Closed {
                    handoff,
                    how: Closing::Sealed { batches, pages, .. },
                    ..
                },
            ) if Some(*handoff) == self.handoff => {
                let what = format!(
                    "Prefill certifies that it is through: {}, {}. {} are reserved.",
                    counted(u64::from(*batches), "batch"),
                    counted(u64::from(*pages), "page"),
                    counted(self.granted as u64, "page"),
                );
                self.say(75, DECODE, Some(Safeguard::Coverage), what);
            }
            decode::Event::StepFailed(_) if self.handoff.is_some() => {
                let what = "The first step fails: what it read was no number.".to_owned();
                self.say(82, DECODE, Some(Safeguard::Scrub), what);
            }
            _ => {}
        }
    }

    fn decode_effect(&mut self, effect: &decode::Effect) {
        match effect {
            decode::Effect::ToPrefill(
                _,
                DecodeToPrefill::Ticket {
                    offer,
                    handoff,
                    tags,
                    ..
                },
            ) if Some(*offer) == self.offer && self.handoff.is_none() => {
                self.handoff = Some(*handoff);
                self.granted = tags.len();
                let what = format!(
                    "Reserves {} pages for the prompt, lowest first. They still hold what their \
                     last owner left.",
                    tags.len()
                );
                self.say(42, DECODE, None, what);
            }
            decode::Effect::ToGateway(_, DecodeToGateway::Committed { attempt, .. })
                if Some(*attempt) == self.attempt =>
            {
                let what = format!(
                    "Commits: {} pages are called sealed, and the answer may begin.",
                    self.granted
                );
                self.say(80, DECODE, None, what);
                let what = format!(
                    "The first step attends to {} positions through a block table that is in \
                     order: every page in it is B's.",
                    self.count + 1
                );
                self.say(81, DECODE, None, what);
            }
            decode::Effect::ToGateway(_, DecodeToGateway::Ended { attempt, ending })
                if Some(*attempt) == self.attempt && is_news(ending) =>
            {
                let what = format!("The attempt ends at decode: {ending:?}.");
                self.say(85, DECODE, None, what);
            }
            _ => {}
        }
    }
}

/// "1 page", "2 pages".
pub(super) fn counted(n: u64, what: &str) -> String {
    match (n, what) {
        (1, _) => format!("1 {what}"),
        (_, "batch") => format!("{n} batches"),
        _ => format!("{n} {what}s"),
    }
}

/// What ended well, or because the other side had ended it, needs no line.
fn is_news(ending: &Ending) -> bool {
    !matches!(ending, Ending::Finished | Ending::Cancelled)
}

/// Prefill's side. Its trace is read last: attempt and handoff are known.
impl Tale {
    fn prefill_event(&mut self, event: &prefill::Event, after: &mut Prefill<Guards>) {
        match event {
            prefill::Event::FromGateway(_, GatewayToPrefill::Attempt { attempt, .. })
                if Some(*attempt) == self.attempt =>
            {
                let pool = after.hello().capacity.map_or(0, |it| it.pool_tokens());
                let what = format!("{} tokens; its pool has {pool}.", self.count);
                self.say(20, PREFILL, Some(Safeguard::Admission), what);
            }
            prefill::Event::FromDecode(
                _,
                DecodeToPrefill::Ticket {
                    offer,
                    handoff,
                    tags,
                    ..
                },
            ) if Some(*offer) == self.offer => {
                self.handoff = Some(*handoff);
                let held = after.spec(*offer).map_or(0, |spec| spec.tokens.len());
                let size = after
                    .hello()
                    .capacity
                    .map_or(1, |it| usize::from(it.page_size));
                let what = format!(
                    "The ticket is for {} pages; it holds {}.",
                    tags.len(),
                    held.div_ceil(size)
                );
                self.say(50, PREFILL, Some(Safeguard::Ticket), what);
            }
            prefill::Event::Written { submission, ok } if Some(*submission) == self.submission => {
                let how = if *ok { "have" } else { "have not" };
                let what = format!("Its writes {how} completed. It says what is in the batch.");
                self.say(61, PREFILL, None, what);
            }
            _ => {}
        }
    }

    fn prefill_effect(&mut self, effect: &prefill::Effect) {
        match effect {
            prefill::Effect::ToDecode(
                _,
                PrefillToDecode::Offer {
                    offer,
                    attempt,
                    count,
                    ..
                },
            ) if Some(*attempt) == self.attempt && Some(*offer) == self.offer => {
                if *count < self.count {
                    let what = format!(
                        "Here it goes wrong: a placeholder of {} takes the place of the prompt, the job \
                         stays queued, and is offered to decode.",
                        counted(u64::from(*count), "token")
                    );
                    self.say(30, PREFILL, None, what);
                    if let Some(moment) = self.moments.last_mut() {
                        moment.wrong = true;
                    }
                } else {
                    let what = format!("Offers decode {count} tokens.");
                    self.say(30, PREFILL, None, what);
                }
            }
            prefill::Effect::Compute { offer, to, .. } if Some(*offer) == self.offer => {
                let what = format!(
                    "Computes {} and samples the first token of the answer from it.",
                    counted(u64::from(*to), "token")
                );
                self.say(55, PREFILL, None, what);
            }
            prefill::Effect::Submit {
                submission, pages, ..
            } if self.handoff.is_some() && self.submission.is_none() => {
                self.submission = Some(*submission);
                let slots: u32 = pages.iter().map(|page| u32::from(page.filled)).sum();
                let what = format!(
                    "Writes {} with {} filled into decode's landing arena.",
                    counted(pages.len() as u64, "page"),
                    counted(slots.into(), "slot")
                );
                self.say(60, PREFILL, None, what);
            }
            prefill::Effect::ToGateway(_, PrefillToGateway::Ended { attempt, ending })
                if Some(*attempt) == self.attempt && is_news(ending) =>
            {
                let what = format!("The attempt ends at prefill: {ending:?}.");
                self.say(84, PREFILL, None, what);
            }
            _ => {}
        }
    }
}
