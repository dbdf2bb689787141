//! This gateway's own canaries: asked for through its own door, under two tenants of their own, at every
//! pair in turn.

use super::ended::both;
use super::{CANARIES, OnCall, locked};
use crate::exit::Failure;
use anyhow::{Context, anyhow};
use gate::facts::net::{Address, Secret, Tls, TlsFiles};
use gateway::engine::{EngineFacts, WorkerRole};
use oncall::{Canaried, Entry, Life, Openness, Proof, ProofKind, Proving, Signal, SignalKind};
use probe::finding::Kind;
use probe::vigil::{Allowance, Convicted, Stepped, Sums, Tally, Vigil, VigilStep};
use probe::wire::Dialect;
use probe::{Tenant, TenantEndpoint};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// One canary; longer is no answer.
const PATIENCE: Duration = Duration::from_secs(120);
/// How soon it is looked again whether an engine is up.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Time between two proofs about the same lives while every door is open.
const PROOF_EVERY_MS: u64 = 6 * 3_600_000;
/// Pairs that take turns; of more than that, the first of each decode.
const PAIRS_MAX: usize = 1024;

/// What was sent and seen.
#[derive(Default)]
pub(super) struct Counted {
    pub(super) all: Tally,
    pub(super) total: Sums,
    /// By the lives of a pair, since it is there: what makes a proof.
    by_lives: BTreeMap<[Life; 2], Clean>,
    pub(super) paused: Option<String>,
    /// What they never test, and why.
    pub(super) untested: Option<String>,
    /// Whether that was said in the log.
    warned: bool,
}

/// Canaries at the lives of a pair, and what of them is a proof.
#[derive(Default)]
struct Clean {
    sums: Sums,
    /// When the last one was there.
    last: u64,
    proven_seen: u64,
    proven_at: u64,
}

impl Counted {
    /// At the lives of a pair, and when the last one was there: what was found at others is not theirs.
    pub(super) fn at(&self, lives: &[Life; 2]) -> (Sums, u64) {
        let of = self.by_lives.get(lives);
        of.map_or_else(Default::default, |it| (it.sums, it.last))
    }
}

/// Where canaries go: by the API's names, and the lives there.
#[derive(Clone, Debug, PartialEq)]
struct Target {
    names: Vec<String>,
    lives: [Life; 2],
}

impl OnCall {
    /// Sends canaries for ever, and looks at what else there is to look at, once a second.
    pub(crate) async fn watch_over(self: Arc<Self>, api: SocketAddr, tls: bool) -> Failure {
        let looking = async {
            let mut every = tokio::time::interval(Duration::from_secs(1));
            loop {
                every.tick().await;
                self.look_at_lives();
                let counted = self.duty().counted(oncall::times::now());
                self.written(counted);
            }
        };
        if !self.settings.canaries {
            return looking.await;
        }
        let endpoints = match self.endpoints(api, tls) {
            Ok(endpoints) => endpoints,
            Err(why) => return Failure::usage(why),
        };
        // A task of its own: a fault in it ends the canaries, and nothing that serves.
        let sending = tokio::spawn(self.clone().send_for_ever(endpoints));
        let watching = async {
            let why = sending
                .await
                .err()
                .map_or("it ended".to_owned(), |it| it.to_string());
            tracing::error!("no more canaries are sent, by a fault of this gateway: {why}");
            locked(&self.canaried).paused = Some(format!("a fault of this gateway: {why}"));
            std::future::pending().await
        };
        tokio::select! {
            never = looking => never,
            never = watching => never,
        }
    }

    fn endpoints(
        &self,
        api: SocketAddr,
        tls: bool,
    ) -> anyhow::Result<BTreeMap<Tenant, TenantEndpoint>> {
        let scheme = if tls { "https" } else { "http" };
        let at = match &self.settings.canaries_at {
            Some(url) => url.clone(),
            None if tls => {
                return Err(anyhow!(
                    "--canaries over HTTPS need --canaries-at https://NAME:PORT, the name that \
                     --tls-cert was made for (and --canaries-ca, if its authority is your own)"
                ));
            }
            None => format!("{scheme}://{}", reachable(api)),
        };
        let trust = Tls::new(&TlsFiles {
            ca: self.settings.canaries_ca.clone(),
            ..TlsFiles::default()
        });
        let trust = trust.context("--canaries-ca")?;
        let address = Address::server(&at).with_context(|| at.clone())?;
        let tenants = (0_u8..).map(Tenant).zip(&self.keys);
        let endpoint = |(tenant, key): (Tenant, &String)| {
            let endpoint = TenantEndpoint {
                address: address.clone(),
                key: Some(Secret::new(key)?),
                tls: trust.clone(),
                dialect: Dialect::Completions,
                model: None,
            };
            Ok((tenant, endpoint))
        };
        tenants.map(endpoint).collect()
    }

    async fn send_for_ever(self: Arc<Self>, endpoints: BTreeMap<Tenant, TenantEndpoint>) {
        let mut vigil = Vigil::new(endpoints, PATIENCE, seed);
        let mut every = tokio::time::interval(self.settings.canary_every);
        every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let (mut turn, mut steps) = (0_usize, BTreeMap::<[Life; 2], usize>::new());
        let mut saved = Allowance::new(self.settings.canary_tokens);
        loop {
            every.tick().await;
            saved.becomes(self.tokens_a_minute());
            saved.grows();
            let targets = match self.targets() {
                Ok(targets) => targets,
                Err(why) => {
                    locked(&self.canaried).paused = Some(why);
                    // Looked at again soon: engines that come up are not left alone for a whole interval.
                    tokio::time::sleep(self.settings.canary_every.min(LOOK_AGAIN)).await;
                    every.reset_immediately();
                    continue;
                }
            };
            let target = &targets[(turn + 1) % targets.len()];
            steps.retain(|lives, _| targets.iter().any(|it| it.lives == *lives));
            let step = steps.entry(target.lives.clone()).or_default();
            let limit = self.facts().and_then(|facts| limit_at(&facts, target));
            let next = VigilStep::ALL[*step % VigilStep::ALL.len()];
            let affordable = saved.step(next, limit);
            self.can_pay(affordable.is_some(), saved.never(limit));
            let Some(next) = affordable else { continue };
            turn += 1;
            *step += 1;
            let headers = self.at(target);
            let outcome = vigil.step(next, &headers, limit).await;
            saved.spent(outcome.tokens);
            tracing::debug!(
                step = next.name(),
                sent = outcome.sent,
                tokens = outcome.tokens,
                "canaries"
            );
            let more = self.takes(&mut vigil, target, next, limit, &outcome).await;
            saved.spent(more);
        }
    }

    /// What canaries may cost now.
    pub(super) fn tokens_a_minute(&self) -> u64 {
        let most = u64::from(self.settings.canary_tokens);
        let Some(percent) = self.settings.canary_percent else {
            return most;
        };
        let load = locked(&self.seen).load(oncall::times::now() / 60_000);
        let share = (load as f64 * percent / 100.0) as u64;
        most.min(share.max(VigilStep::Short.tokens(None)))
    }

    fn can_pay(&self, anything: bool, never: Option<String>) {
        let mut counted = locked(&self.canaried);
        counted.paused = (!anything).then(|| "their tokens of this minute are spent".to_owned());
        if let Some(why) = never.as_ref().filter(|_| !counted.warned) {
            tracing::warn!("canaries: {why}");
            counted.warned = true;
        }
        counted.untested = never;
    }

    /// Everything that could answer now, private or not; why not, if nothing can.
    fn targets(&self) -> Result<Vec<Target>, String> {
        let facts = self.facts().ok_or("nothing runs yet")?;
        let model = self.duty().book().of_model(&self.model).map(|it| it.access);
        if let Some(access @ (Openness::Draining | Openness::Closed)) = model {
            return Err(format!("the model is {}", access.as_str()));
        }
        let up = |role: WorkerRole| {
            let workers = facts.workers.iter();
            workers.filter(move |it| it.role == role && it.max_prompt_tokens > 0)
        };
        let mut targets: Vec<Target> = up(WorkerRole::Unified)
            .map(|it| Target {
                names: vec![it.name.clone()],
                lives: both(&[self.life(it)]),
            })
            .collect();
        for decode in up(WorkerRole::Decode) {
            for prefill in up(WorkerRole::Prefill) {
                if targets.len() < PAIRS_MAX {
                    targets.push(Target {
                        names: vec![prefill.name.clone(), decode.name.clone()],
                        lives: both(&[self.life(prefill), self.life(decode)]),
                    });
                }
            }
        }
        match targets.is_empty() {
            true => Err("no engine that could answer is up".to_owned()),
            false => Ok(targets),
        }
    }

    /// How a canary says where it goes; our own workers are chosen by their gateway.
    fn at(&self, target: &Target) -> Vec<(String, String)> {
        match self.one_by_one {
            true => vec![("x-cofferdam-engines".to_owned(), target.names.join(","))],
            false => Vec::new(),
        }
    }

    /// Tokens that it took to find out more.
    async fn takes(
        &self,
        vigil: &mut Vigil,
        target: &Target,
        step: VigilStep,
        limit: Option<u64>,
        outcome: &Stepped,
    ) -> u64 {
        self.add_up(target, outcome);
        let mut shown = None;
        for found in &outcome.found {
            let incident = self.found(target, &format!("step {}", step.name()), found);
            shown = shown.or(incident.map(|it| (it, found.clone())));
        }
        let more = match (shown, limit) {
            (Some((incident, found)), Some(limit)) => {
                self.narrow(vigil, target, &incident, &found, limit).await
            }
            _ => 0,
        };
        self.prove(target);
        more
    }

    fn found(&self, target: &Target, when: &str, found: &Convicted) -> Option<String> {
        self.signal(Signal {
            signal: signal_of(found.kind)?,
            lives: distinct(&target.lives),
            request: None,
            tenant: None,
            says: format!("{when}: {}", found.says),
            source: "canary".to_owned(),
        })
    }

    fn add_up(&self, target: &Target, outcome: &Stepped) {
        let now = oncall::times::now();
        let sums = outcome.sums();
        let [prefill, decode] = &target.lives;
        let mut counted = locked(&self.canaried);
        counted.all.add(now / 60_000, &sums);
        counted.total.add(&sums);
        let of_lives = counted.by_lives.entry(target.lives.clone()).or_default();
        of_lives.sums.add(&sums);
        of_lives.last = now;
        if counted.by_lives.len() > PAIRS_MAX {
            counted.by_lives.retain(|lives, _| *lives == target.lives);
        }
        drop(counted);
        self.recorder.canaried(Canaried {
            minute: now / 60_000,
            pair: format!("{} {}", prefill.engine, decode.engine),
            life: format!("{} {}", prefill.life, decode.life),
            sent: sums.sent,
            telling: sums.telling,
            seen: sums.seen,
            foreign: sums.found,
            tokens: sums.tokens,
        });
    }

    /// From which length on it shows, once for an incident; and whom it has met. Tokens that it took.
    async fn narrow(
        &self,
        vigil: &mut Vigil,
        target: &Target,
        incident: &str,
        found: &Convicted,
        limit: u64,
    ) -> u64 {
        let (looked, new_lives) = {
            let duty = self.duty();
            let Some(it) = duty.book().incident(incident) else {
                return 0;
            };
            let looked = was_looked_for(it.trigger, it.affected.is_some(), found.tokens);
            (looked, it.has_new_lives())
        };
        if looked {
            // Another pair that shows the same has met others.
            if new_lives {
                self.find_affected(incident);
            }
            return 0;
        }
        let shows = match found.kind {
            Kind::SilentAcceptance => found.tokens.unwrap_or(limit + 1),
            _ => found.tokens.unwrap_or(limit).min(limit),
        };
        let (narrowed, outcome) = vigil.narrow(&self.at(target), (16, shows), limit).await;
        self.add_up(target, &outcome);
        for found in &outcome.found {
            self.found(target, "looking for the shortest prompt", found);
        }
        // Without a length that shows it each time, everybody who was answered there may be affected.
        if let Some((clean_tokens, at_least_tokens)) = narrowed {
            self.note(Entry::Trigger {
                incident: incident.to_owned(),
                at_least_tokens,
                clean_tokens,
                lives: distinct(&target.lives),
            });
        }
        self.find_affected(incident);
        outcome.tokens
    }

    /// What canaries have found at this life, and when the last one was there.
    pub(super) fn found_at(&self, life: &Life) -> Option<(u64, u64)> {
        let counted = locked(&self.canaried);
        let of = counted.by_lives.iter();
        let of = of.filter(|(lives, _)| lives.contains(life));
        let (found, last) = of.fold((0, 0), |(found, last), (_, it)| {
            (found + it.sums.found, last.max(it.last))
        });
        (found > 0).then_some((found, last))
    }

    /// How far they are with a proof about a life.
    pub(super) fn proving(&self, life: &Life) -> Proving {
        if !self.settings.canaries {
            return Proving::Off;
        }
        let counted = locked(&self.canaried);
        let of = counted
            .by_lives
            .iter()
            .filter(|(lives, _)| lives.contains(life));
        let (found, answers) = of.fold((0, 0), |(found, answers), (_, it)| {
            let fresh = it.sums.seen - it.proven_seen;
            (found + it.sums.found, fresh.max(answers))
        });
        match found {
            0 => Proving::Answers(answers),
            _ => Proving::Found,
        }
    }

    /// Enough clean canaries at a pair, with nothing found there, are a proof about its lives. While
    /// nothing is closed one now and then is enough.
    fn prove(&self, target: &Target) {
        let now = oncall::times::now();
        let (wanted, closed) = {
            let duty = self.duty();
            let closed = duty.book().restrictions().next().is_some();
            (duty.policy().restore.canary_answers, closed)
        };
        let proof = {
            let mut counted = locked(&self.canaried);
            let Some(clean) = counted.by_lives.get_mut(&target.lives) else {
                return;
            };
            let sums = clean.sums;
            let enough = sums.seen >= clean.proven_seen + wanted;
            let due = closed || now >= clean.proven_at + PROOF_EVERY_MS;
            if sums.found > 0 || !enough || !due {
                return;
            }
            (clean.proven_seen, clean.proven_at) = (sums.seen, now);
            let (seen, one_in) = (sums.seen, sums.one_in().unwrap_or(0));
            Proof {
                proof: ProofKind::Canary,
                lives: distinct(&target.lives),
                answers: seen,
                says: format!(
                    "{seen} canaries were gone on with and none was another's: a leak in more than \
                     one of {one_in} answers would have been seen with 95 %"
                ),
            }
        };
        self.proved(proof);
    }
}

impl OnCall {
    /// Writes down who was answered by the lives of an incident with a prompt that is long enough.
    pub(super) fn find_affected(&self, incident: &str) {
        let (lives, at_least) = {
            let duty = self.duty();
            let Some(it) = duty.book().incident(incident) else {
                return;
            };
            (it.lives.clone(), it.affects_from)
        };
        // What was answered a moment ago is on disk before it is looked for.
        self.recorder.flush();
        let Some(path) = &self.settings.incidents else {
            return;
        };
        let nobody: Vec<String> = CANARIES.iter().map(|it| (*it).to_owned()).collect();
        let found = oncall::Journal::open_existing(path, oncall::journal::Bounds::default())
            .and_then(|journal| {
                let since = journal.served_since()?;
                Ok((journal.affected(&lives, at_least, &nobody)?, since))
            });
        match found {
            Ok((met, since)) => self.note(Entry::Affected {
                incident: incident.to_owned(),
                how: format!(
                    "answered by these lives to prompts of {}{}, canaries left out; of requests before {} \
                     nothing is kept here (read the access log: `cofferdam watch`)",
                    match at_least {
                        0 => "any length".to_owned(),
                        tokens => format!("at least {tokens} tokens"),
                    },
                    met.between.map_or_else(String::new, |(first, last)| {
                        let [first, last] = [first, last].map(oncall::times::written);
                        format!(", the first at {first}, the last at {last}")
                    }),
                    since.map_or("now".to_owned(), oncall::times::written)
                ),
                requests: met.requests,
                more: met.more,
                tenants: met.tenants,
            }),
            Err(why) => tracing::error!("who is affected is not known: {why}"),
        }
    }
}

fn limit_at(facts: &EngineFacts, target: &Target) -> Option<u64> {
    let of = target.names.iter().map(|name| {
        let worker = facts.workers.iter().find(|it| it.name == *name);
        worker.map(|it| u64::from(it.max_prompt_tokens.min(it.max_model_len.saturating_sub(1))))
    });
    of.collect::<Option<Vec<_>>>()?.into_iter().min()
}

fn distinct(lives: &[Life; 2]) -> Vec<Life> {
    let mut lives = lives.to_vec();
    lives.dedup();
    lives
}

/// Whether it is known already from which length on it shows, if from any. What shows on a shorter prompt than was
/// known has affected more than was known.
fn was_looked_for(trigger: Option<u64>, affected_known: bool, found: Option<u64>) -> bool {
    match trigger {
        Some(known) => found.is_none_or(|it| it >= known),
        None => affected_known,
    }
}

pub(super) fn signal_of(kind: Kind) -> Option<SignalKind> {
    match kind {
        Kind::Leak => Some(SignalKind::CanaryLeak),
        Kind::Mixup => Some(SignalKind::CanaryMixup),
        Kind::SilentAcceptance => Some(SignalKind::OverLimitAnswered),
        Kind::WrongAnswer => Some(SignalKind::CanaryLost),
        _ => None,
    }
}

/// A listener on all addresses is reached at the loopback one.
fn reachable(mut at: SocketAddr) -> SocketAddr {
    if at.ip().is_unspecified() {
        at.set_ip(match at {
            SocketAddr::V4(_) => [127, 0, 0, 1].into(),
            SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
        });
    }
    at
}

/// A seed that nobody can guess. Without random bits there are no canaries that would prove anything,
/// and nothing else of this process either.
pub(super) fn seed() -> [u8; 32] {
    let mut seed = [0; 32];
    getrandom::fill(&mut seed).expect("the system gave random bits when this process began");
    seed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_shows_on_a_shorter_prompt_is_looked_for_again() {
        assert!(!was_looked_for(None, false, Some(700)), "nobody has looked");
        assert!(
            was_looked_for(None, true, Some(700)),
            "there is no such length"
        );
        for (found, looked) in [
            (Some(699), false),
            (Some(700), true),
            (Some(900), true),
            (None, true),
        ] {
            assert_eq!(was_looked_for(Some(700), true, found), looked, "{found:?}");
        }
    }
}
