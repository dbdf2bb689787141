//! The operators' page: what [`OnCall`] knows, in the desk's words, and what is pressed there.

use super::ended::both;
use super::{OnCall, locked};
use crate::args::OnCall as Settings;
use crate::exit::Failure;
use crate::files;
use crate::reload::{Reload, look};
use anyhow::{Context, anyhow};
use desk::state::{self, DeskState};
use desk::{Act, Action, ActionRefused, ActionScope, Desk, Done, Keys, KeysError, WhoseFault};
use gateway::engine::{InFlight, Readiness, WorkerFacts, WorkerRole};
use handoff::Progress;
use oncall::book::Incident;
use oncall::{Asked, Entry, Openness, ProofKind, Proving, Restriction, report};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;
use tokio::net::TcpListener;

/// Bytes of a file of operators' keys.
const KEYS_BYTES_MAX: u64 = 1 << 20;
/// Entries of an incident that the page shows.
const ACTIONS_MAX: usize = 30;

/// Keys of those who may look and press.
pub(crate) fn keys(settings: &Settings) -> anyhow::Result<Keys> {
    let path = settings.admin_keys.as_ref();
    let path = path.context("--admin needs --admin-keys FILE: lines `name key`")?;
    in_file(path, Keys::parse)
}

fn in_file<T>(path: &Path, read: impl Fn(&str) -> Result<T, KeysError>) -> anyhow::Result<T> {
    let text = files::read(path, KEYS_BYTES_MAX).and_then(|text| Ok(read(&text)?));
    text.with_context(|| format!("--admin-keys {}", path.display()))
}

/// The operators' listener.
pub(crate) struct Page {
    listener: TcpListener,
    keys: Keys,
    on_call: Arc<OnCall>,
}

impl Page {
    /// None where none is wanted.
    pub(crate) async fn open(
        settings: &Settings,
        on_call: Option<&Arc<OnCall>>,
    ) -> Result<Option<Self>, Failure> {
        let (Some(at), Some(on_call)) = (settings.admin, on_call) else {
            return Ok(None);
        };
        let keys = keys(settings).map_err(Failure::usage)?;
        let listener = TcpListener::bind(at).await;
        let listener = listener
            .with_context(|| format!("--admin {at}"))
            .map_err(Failure::usage)?;
        let at = listener.local_addr().map_err(Failure::found)?;
        tracing::info!("the operators' page is at http://{at}");
        if !at.ip().is_loopback() {
            tracing::warn!(
                "--admin {at} can be reached from other machines and speaks plain HTTP: put a \
                 proxy with TLS before it, or reach it through a tunnel"
            );
        }
        Ok(Some(Self {
            listener,
            keys,
            on_call: on_call.clone(),
        }))
    }

    /// How its keys are read again: who is not named any more is out, also of an open page.
    pub(crate) fn reload(&self, settings: &Settings) -> Option<Reload> {
        let path = settings.admin_keys.clone()?;
        let files = vec![path.clone()];
        let seen = look(&files);
        let keys = self.keys.clone();
        let take = move || {
            in_file(&path, |text| keys.replace(text))?;
            Ok("those who may use the operators' page".to_owned())
        };
        Some(Reload::new("admin-keys", (files, seen), take))
    }

    /// Serves it for as long as it is waited for.
    pub(crate) async fn serve(self) -> Failure {
        let never = std::future::pending();
        let served = desk::serve(self.listener, None, self.keys, self.on_call, never).await;
        let why = served
            .err()
            .map_or_else(|| "it ended".to_owned(), |why| why.to_string());
        Failure::found(anyhow!("the operators' page cannot go on: {why}"))
    }
}

impl Desk for OnCall {
    fn state(&self) -> Arc<DeskState> {
        Arc::new(self.as_it_is())
    }

    fn act(
        &self,
        action: Action,
    ) -> Pin<Box<dyn Future<Output = Result<Done, ActionRefused>> + Send + '_>> {
        Box::pin(async move { self.carry_out(&action) })
    }
}

impl OnCall {
    fn carry_out(&self, action: &Action) -> Result<Done, ActionRefused> {
        let scope = match &action.scope {
            ActionScope::Model => oncall::Scope::Model(self.model.clone()),
            ActionScope::Pair { prefill, decode } if prefill == decode => {
                oncall::Scope::Engine(prefill.clone())
            }
            ActionScope::Pair { prefill, decode } => {
                oncall::Scope::Pair(prefill.clone(), decode.clone())
            }
            ActionScope::Engine { name } => oncall::Scope::Engine(name.clone()),
            ActionScope::Incident { id } => {
                let asked = match action.act {
                    Act::Note => Asked::Note(id.clone()),
                    Act::CloseIncident => Asked::Close(id.clone()),
                    act => return Err(senseless(act, "an incident")),
                };
                return self.wish(asked, action);
            }
        };
        let restrict = |access| Asked::Restrict(scope.clone(), access);
        let asked = match action.act {
            Act::Drain => restrict(Openness::Draining),
            Act::Private => restrict(Openness::Private),
            Act::Close => restrict(Openness::Closed),
            Act::Restore => Asked::Restore(scope),
            Act::OpenIncident => Asked::Open(scope),
            act @ (Act::Note | Act::CloseIncident) => {
                return Err(senseless(act, "what serves"));
            }
        };
        self.wish(asked, action)
    }

    fn wish(&self, asked: Asked, action: &Action) -> Result<Done, ActionRefused> {
        let said = self.asked(asked, &action.by, &action.reason);
        let mut said = said.map_err(|refusal| ActionRefused {
            whose: WhoseFault::Standing,
            expected: format!("something that can be done now: {}", action.act.word()),
            got: refusal.0,
            next: "see what the page says to do next, and try again".to_owned(),
        })?;
        // What was decided holds; whether it is on disk too is told.
        tokio::task::block_in_place(|| self.recorder.flush());
        if let Some(trouble) = self.recorder.status().trouble {
            said += &format!("; it is not written down yet: {trouble}");
        }
        let incident = match &action.scope {
            ActionScope::Incident { id } => Some(id.clone()),
            _ => None,
        };
        Ok(Done {
            at_ms: oncall::times::now(),
            said,
            incident,
        })
    }

    fn as_it_is(&self) -> DeskState {
        let now = oncall::times::now();
        let facts = self.facts().unwrap_or_default();
        let seen = locked(&self.seen);
        let ttft = state::Ttft {
            points: seen.ttft.iter().copied().collect(),
            floor: floor(seen.ttft.iter().copied()),
        };
        let requests = seen.by_pair.clone();
        drop(seen);
        let in_flight = self.in_flight();
        let engines: Vec<_> = facts
            .workers
            .iter()
            .map(|it| self.engine_state(it, &in_flight))
            .collect();
        DeskState {
            at_ms: now,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            model: self.model_state(&facts),
            pairs: self.pairs(&facts.workers, &requests),
            pools: facts
                .workers
                .iter()
                .filter_map(|it| self.pool(it, now))
                .collect(),
            running: self.running(now, &in_flight),
            engines,
            ttft,
            canaries: self.canaries_state(now),
            incidents: self.incidents_state(now),
            journal: self.journal_state(),
        }
    }

    fn in_flight(&self) -> Arc<[InFlight]> {
        let engine = self.engine.get();
        engine.map_or_else(Arc::default, |it| it.in_flight())
    }

    fn running(&self, now: u64, in_flight: &[InFlight]) -> state::RunningView {
        let requests: BTreeSet<&str> = in_flight.iter().map(|it| it.request.as_str()).collect();
        let handed = in_flight.iter().filter(|it| !it.prefill.is_empty());
        let ms = |since: Instant| u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX);
        let handoffs = handed.map(|it| state::Handoff {
            request: it.request.clone(),
            stage: it.stage.to_owned(),
            prefill: self.name(&it.prefill),
            decode: self.name(&it.decode),
            since_ms: it.since.map_or(0, |since| now.saturating_sub(ms(since))),
        });
        let mut handoffs: Vec<_> = handoffs.collect();
        let more = handoffs.len().saturating_sub(state::HANDOFFS_MAX) as u64;
        handoffs.truncate(state::HANDOFFS_MAX);
        state::RunningView {
            requests: requests.len() as u64,
            queued: in_flight
                .iter()
                .filter(|it| it.stage == Progress::Announced.as_str())
                .count() as u64,
            handoffs,
            more,
        }
    }

    fn model_state(&self, facts: &gateway::engine::EngineFacts) -> state::ModelView {
        let limit = facts.limit();
        let readiness = match &facts.readiness {
            Readiness::Ready => "ready".to_owned(),
            Readiness::NotReady(why) => why.clone(),
            Readiness::Draining => "ending".to_owned(),
            Readiness::Unknown => "no worker has reported yet".to_owned(),
        };
        let duty = self.duty();
        let book = duty.book();
        let restriction = book.of_model(&self.model);
        let since = restriction.map_or(0, |it| it.since);
        let wanted = duty.policy().restore.proofs.clone();
        let answers = duty.policy().restore.canary_answers;
        let lives = self.lives();
        let proofs = lives.iter().flat_map(|life| {
            wanted.iter().map(move |kind| {
                let found = book.proof(*kind, life, since);
                let none = || match (kind, self.proving(life)) {
                    (ProofKind::Probe, _) => "none since it was closed".to_owned(),
                    (ProofKind::Canary, Proving::Off) => "no canaries are sent".to_owned(),
                    (ProofKind::Canary, Proving::Found) => "they have found something".to_owned(),
                    (ProofKind::Canary, Proving::Answers(n)) => {
                        format!("{n} of {answers} answers")
                    }
                };
                state::ProofView {
                    kind: kind.as_str().to_owned(),
                    at_ms: found.map_or(0, |(at, _)| at),
                    life: life.life.clone(),
                    missing: found.is_none().then(none),
                }
            })
        });
        state::ModelView {
            name: self.model.clone(),
            standing: standing(restriction),
            max_prompt_tokens: limit.map(|it| it.max_prompt_tokens),
            max_model_len: limit.map(|it| it.max_model_len),
            readiness,
            evidence: match restriction {
                Some(_) => proofs.collect(),
                None => Vec::new(),
            },
        }
    }

    fn engine_state(&self, worker: &WorkerFacts, in_flight: &[InFlight]) -> state::EngineView {
        let life = self.life(worker);
        let fleet = locked(&self.fleet);
        let named = fleet.named.get(&life.engine).cloned();
        drop(fleet);
        let (software, version) = match &named {
            Some(named) => named
                .software
                .split_once(' ')
                .unwrap_or((&named.software, "")),
            None => ("Cofferdam", env!("CARGO_PKG_VERSION")),
        };
        let readiness = match &worker.readiness {
            Readiness::Ready => None,
            Readiness::NotReady(why) => Some(why.clone()),
            Readiness::Draining => Some("ending".to_owned()),
            Readiness::Unknown => Some("it has not reported yet".to_owned()),
        };
        let some = |n: u64| (n > 0).then_some(n);
        let duty = self.duty();
        let proofs = [ProofKind::Probe, ProofKind::Canary];
        let found = self
            .found_at(&life)
            .map(|(found, at_ms)| state::VerdictView {
                at_ms,
                what: format!("{found} findings of canaries"),
                result: state::CheckResult::Found,
                source: "canary".to_owned(),
            });
        let verdicts = proofs.into_iter().filter_map(|kind| {
            let (at_ms, proof) = duty.book().proof(kind, &life, 0)?;
            Some(state::VerdictView {
                at_ms,
                what: proof.says.clone(),
                result: state::CheckResult::Clean,
                source: kind.as_str().to_owned(),
            })
        });
        state::EngineView {
            name: life.engine.clone(),
            url: named.as_ref().map_or(String::new(), |it| it.url.clone()),
            role: match worker.role {
                WorkerRole::Prefill => state::RoleView::Prefill,
                WorkerRole::Decode => state::RoleView::Decode,
                WorkerRole::Unified => state::RoleView::Unified,
            },
            group: named.as_ref().map_or(0, |it| it.group),
            software: software.to_owned(),
            version: version.to_owned(),
            since_ms: self.since(&life),
            life: life.life.clone(),
            readiness,
            standing: standing(duty.book().of_engine(&life.engine)),
            pool_tokens: some(worker.pool_tokens),
            context_tokens: named
                .and_then(|it| it.context)
                .or(some(u64::from(worker.max_model_len))),
            max_prompt_tokens: some(u64::from(worker.max_prompt_tokens)),
            running: in_flight
                .iter()
                .filter(|it| [&it.prefill, &it.decode].contains(&&worker.name))
                .count() as u64,
            verdicts: found.into_iter().chain(verdicts).collect(),
        }
    }

    fn pairs(
        &self,
        workers: &[WorkerFacts],
        requests: &BTreeMap<(String, String), u64>,
    ) -> Vec<state::PairView> {
        let of = |role: WorkerRole| workers.iter().filter(move |it| it.role == role);
        let alone = of(WorkerRole::Unified).map(|it| (it, it));
        let together = of(WorkerRole::Decode)
            .flat_map(|decode| of(WorkerRole::Prefill).map(move |prefill| (prefill, decode)));
        let duty = self.duty();
        let book = duty.book();
        let pair = |(prefill, decode): (&WorkerFacts, &WorkerFacts)| {
            let names = (self.name(&prefill.name), self.name(&decode.name));
            let worst = [&names.0, &names.1].map(|it| book.of_engine(it));
            let worst = worst.into_iter().flatten().max_by_key(|it| it.access);
            let lives = both(&[self.life(prefill), self.life(decode)]);
            let (sums, last) = locked(&self.canaried).at(&lives);
            state::PairView {
                standing: standing(worst),
                canaries: state::PairCanaries {
                    sent: sums.sent,
                    seen: sums.found,
                    last_ms: (last > 0).then_some(last),
                },
                requests: requests.get(&names).copied().unwrap_or(0),
                prefill: names.0,
                decode: names.1,
            }
        };
        alone.chain(together).map(pair).collect()
    }

    /// Of our own workers; other engines' pages cannot be seen.
    fn pool(&self, worker: &WorkerFacts, now: u64) -> Option<state::PoolView> {
        let pages = worker.pages;
        (worker.page_size > 0).then(|| state::PoolView {
            engine: self.name(&worker.name),
            page_size: worker.page_size,
            pages: state::PagesView {
                free: pages.free,
                reserved: pages.reserved,
                granted: pages.granted,
                sealed: pages.sealed,
                cached: pages.cached,
                quarantined: pages.quarantined,
            },
            quarantine: worker
                .quarantine
                .by_reason()
                .into_iter()
                .filter(|(_, held)| held.count > 0)
                .map(|(reason, held)| state::QuarantineView {
                    reason: reason.to_owned(),
                    pages: held.count,
                    since_ms: now.saturating_sub(held.oldest_ms),
                })
                .collect(),
        })
    }

    fn canaries_state(&self, now: u64) -> Option<state::CanariesView> {
        if !self.settings.canaries {
            return None;
        }
        let counted = locked(&self.canaried);
        let minute = now / 60_000;
        let window = |name: &str, minutes: u64| {
            let sums = counted.all.since(minute.saturating_sub(minutes - 1));
            state::Window {
                name: name.to_owned(),
                answers: sums.telling,
                one_in: sums.one_in(),
                found: sums.found,
            }
        };
        Some(state::CanariesView {
            sent: counted.total.sent,
            answered: counted.total.telling,
            seen: counted.total.found,
            windows: vec![window("hour", 60), window("day", 24 * 60)],
            tokens_minute: self.tokens_a_minute(),
            paused: counted.paused.clone(),
            untested: counted.untested.clone(),
        })
    }

    fn incidents_state(&self, now: u64) -> Vec<state::IncidentView> {
        let lives = self.lives();
        let duty = self.duty();
        let incidents = duty.book().incidents();
        let shown = incidents.into_iter().take(state::INCIDENTS_MAX);
        shown
            .map(|it| {
                let next = duty.next_steps(now, &it.id, &lives, |life| self.proving(life));
                incident_state(it, next)
            })
            .collect()
    }

    fn journal_state(&self) -> state::JournalView {
        let status = self.recorder.status();
        let lost = (status.lost > 0).then(|| format!("{} entries were lost", status.lost));
        let path = self.settings.incidents.as_ref();
        state::JournalView {
            path: path.map(|it| it.display().to_string()),
            pending: status.pending,
            trouble: status.trouble.or(lost),
            head: status.head,
        }
    }
}

fn senseless(act: Act, scope: &str) -> ActionRefused {
    ActionRefused {
        whose: WhoseFault::Asker,
        expected: "an action that can be done to what it names".to_owned(),
        got: format!("{} to {scope}", act.word()),
        next: "choose another action, or another scope".to_owned(),
    }
}

fn standing(restriction: Option<&Restriction>) -> state::StandingView {
    let Some(it) = restriction else {
        return state::StandingView::default();
    };
    state::StandingView {
        access: match it.access {
            Openness::Open => state::AccessLevel::Open,
            Openness::Draining => state::AccessLevel::Draining,
            Openness::Private => state::AccessLevel::Private,
            Openness::Closed => state::AccessLevel::Closed,
        },
        why: Some(it.why.clone()),
        since_ms: Some(it.since),
        incident: it.incident.clone(),
    }
}

fn incident_state(it: &Incident, next: Vec<String>) -> state::IncidentView {
    let signal = it.timeline.iter().find_map(|dated| match &dated.entry {
        Entry::Signal { signal, .. } => Some(signal.signal.as_str()),
        _ => None,
    });
    let newest = it.timeline.iter().rev().take(ACTIONS_MAX).rev();
    let action = |dated: &oncall::entry::Dated| {
        let by = match &dated.entry {
            Entry::Restricted { by, .. }
            | Entry::Restored { by, .. }
            | Entry::Opened { by, .. }
            | Entry::Noted { by, .. }
            | Entry::Closed { by, .. } => by.clone(),
            Entry::Signal { signal, .. } => signal.source.clone(),
            _ => "gateway".to_owned(),
        };
        state::IncidentEntry {
            at_ms: dated.at,
            what: report::what(&dated.entry),
            by,
            why: String::new(),
        }
    };
    let [prefill, decode] = both(&it.lives);
    let mut engines = vec![prefill.engine, decode.engine];
    engines.dedup();
    engines.retain(|it| !it.is_empty());
    state::IncidentView {
        id: it.id.clone(),
        opened_ms: it.opened,
        closed_ms: it.closed,
        restored_ms: it.restored(),
        signal: signal.unwrap_or("opened by hand").to_owned(),
        scope: it.scope.to_string(),
        title: it.title.clone(),
        engines,
        lives: it.lives.iter().map(|it| it.life.clone()).collect(),
        affected: it.affected,
        whose: report::of_whom(&it.tenants),
        actions: newest.map(action).collect(),
        next,
    }
}

/// The line below which no answer came, of those that are shown: their lower hull, between the least
/// and the most tokens. It is there to be looked at; `cofferdam watch` judges.
fn floor(points: impl Iterator<Item = (u64, f64)>) -> Vec<(u64, f64)> {
    let mut points: Vec<(u64, f64)> = points.collect();
    points.sort_by(|a, b| {
        (a.0, a.1)
            .partial_cmp(&(b.0, b.1))
            .unwrap_or(Ordering::Equal)
    });
    let mut hull: Vec<(u64, f64)> = Vec::new();
    for point in points {
        if hull.last().is_some_and(|last| last.0 == point.0) {
            continue; // the first of a length is the least
        }
        while let [.., a, b] = hull[..] {
            let run =
                |from: (u64, f64), to: (u64, f64)| (to.0 as f64 - from.0 as f64, to.1 - from.1);
            let ((dx, dy), (ex, ey)) = (run(a, b), run(a, point));
            match dx * ey <= dy * ex {
                true => hull.pop(),
                false => break,
            };
        }
        hull.push(point);
    }
    hull
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No answer that is shown lies under it: else the page would say that it came too soon.
    #[test]
    fn nothing_lies_under_the_floor() {
        let points: Vec<(u64, f64)> = (0_u64..400)
            .map(|n| (16 + n * 7919 % 1000, 1.0 + (n * 31 % 97) as f64 / 3.0))
            .collect();
        let floor = floor(points.iter().copied());
        assert!(floor.len() >= 2);
        for (tokens, ms) in points {
            let above = floor
                .windows(2)
                .filter(|it| (it[0].0..=it[1].0).contains(&tokens));
            for it in above {
                let share = (tokens - it[0].0) as f64 / (it[1].0 - it[0].0) as f64;
                let least = it[0].1 + share * (it[1].1 - it[0].1);
                assert!(ms >= least - 1e-9, "{tokens} tokens: {ms} under {least}");
            }
        }
    }
}
