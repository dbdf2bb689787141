//! Made-up fleets, and a desk that does to them what is pressed: in memory, and forgotten with it.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use desk::state::*;
use desk::{Act, Action, ActionRefused, ActionScope, Desk, Done, WhoseFault};

/// Minutes in milliseconds.
const MIN: u64 = 60_000;
/// What the incident is called.
pub const INCIDENT: &str = "inc-20261201-0312-7f3a";

/// Now.
#[must_use]
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    u64::try_from(since.unwrap_or_default().as_millis()).unwrap_or_default()
}

/// A fleet by its name.
#[must_use]
pub fn fleet(name: &str) -> Option<DeskState> {
    Some(match name {
        "healthy" => healthy(),
        "incident" => incident(healthy()),
        "large" => large(),
        "large-incident" => incident(large()),
        "bare" => DeskState {
            at_ms: now_ms(),
            ..DeskState::default()
        },
        _ => return None,
    })
}

/// An engine of SGLang with pools like the incident's: prefill's holds less than it promises.
fn sglang(name: String, role: RoleView, group: u32, now: u64) -> EngineView {
    let (pool, limit) = match role {
        RoleView::Prefill => (8_192, 4_089),
        _ => (16_384, 4_089),
    };
    let at = |minutes: u64, what: &str, source: &str| VerdictView {
        at_ms: now - minutes * MIN,
        what: what.into(),
        result: CheckResult::Clean,
        source: source.into(),
    };
    EngineView {
        url: format!(
            "http://10.0.{group}.{}:30000",
            name.len() + name.bytes().map(usize::from).sum::<usize>() % 200
        ),
        life: format!(
            "{:016x}",
            0x9e37_79b9_7f4a_7c15u64.wrapping_mul(1 + name.bytes().map(u64::from).sum::<u64>())
        ),
        name,
        role,
        group,
        software: "SGLang".into(),
        version: "0.5.23".into(),
        since_ms: Some(now - 3 * 24 * 60 * MIN),
        pool_tokens: Some(pool),
        context_tokens: Some(4_096),
        max_prompt_tokens: Some(limit),
        running: 3,
        verdicts: vec![
            at(
                4,
                "canaries at the limit, after an abort, behind load",
                "canary",
            ),
            at(190, "pools, limits, flags", "gate"),
        ],
        ..EngineView::default()
    }
}

fn ours(name: String, role: RoleView, group: u32, now: u64) -> EngineView {
    EngineView {
        software: "Cofferdam".into(),
        version: env!("CARGO_PKG_VERSION").into(),
        pool_tokens: Some(16_384),
        context_tokens: Some(8_192),
        max_prompt_tokens: Some(8_191),
        ..sglang(name, role, group, now)
    }
}

fn pool(engine: &EngineView, now: u64) -> PoolView {
    let is_decode = engine.role == RoleView::Decode;
    PoolView {
        engine: engine.name.clone(),
        page_size: 16,
        pages: PagesView {
            free: 590,
            reserved: 24,
            granted: 61,
            sealed: 180,
            cached: 165,
            quarantined: if is_decode { 4 } else { 0 },
        },
        quarantine: match is_decode {
            true => vec![QuarantineView {
                reason: "a write of a life that ended is unsettled".into(),
                pages: 4,
                since_ms: now - 41_000,
            }],
            false => Vec::new(),
        },
    }
}

fn pairs(engines: &[EngineView], now: u64) -> Vec<PairView> {
    let of = |role| engines.iter().filter(move |it| it.role == role);
    let pairs = of(RoleView::Prefill).flat_map(|prefill| {
        let of_group = of(RoleView::Decode).filter(|it| it.group == prefill.group);
        of_group.map(|decode| PairView {
            prefill: prefill.name.clone(),
            decode: decode.name.clone(),
            canaries: PairCanaries {
                sent: 412,
                seen: 0,
                last_ms: Some(now - 38_000),
            },
            requests: 18_231,
            ..PairView::default()
        })
    });
    pairs.collect()
}

fn ttft() -> Ttft {
    let slowest = |tokens: u64| (18.0 + tokens as f64 * 0.92).round();
    let points = (0..220u64).map(|n| {
        let tokens = 40 + (n * n * 7919) % 1950;
        (
            tokens,
            (slowest(tokens) * (1.05 + ((n * 37) % 60) as f64 / 100.0)).round(),
        )
    });
    Ttft {
        points: points.collect(),
        floor: (0..=10).map(|n| (n * 200, slowest(n * 200))).collect(),
    }
}

fn whole(engines: Vec<EngineView>, now: u64) -> DeskState {
    let handoffs = engines.iter().filter(|it| it.role == RoleView::Prefill);
    let stages = ["announced", "prefill", "handover", "decode"];
    let handoffs = handoffs.take(6).zip(stages.iter().cycle()).enumerate();
    let handoffs = handoffs.map(|(n, (prefill, stage))| Handoff {
        request: format!("chatcmpl-{:024x}", 0xa996_8c2b + n),
        stage: (*stage).into(),
        prefill: prefill.name.clone(),
        decode: prefill.name.replace("prefill", "decode"),
        since_ms: now - (9 - n as u64) * 430,
    });
    let is_ours = |it: &&EngineView| it.software == "Cofferdam";
    DeskState {
        at_ms: now,
        version: env!("CARGO_PKG_VERSION").into(),
        model: ModelView {
            name: "SmolLM2-135M-Instruct".into(),
            max_prompt_tokens: Some(1_993),
            max_model_len: Some(4_096),
            readiness: "ready".into(),
            ..ModelView::default()
        },
        pairs: pairs(&engines, now),
        pools: engines
            .iter()
            .filter(is_ours)
            .map(|it| pool(it, now))
            .collect(),
        running: RunningView {
            requests: 14,
            queued: 2,
            handoffs: handoffs.collect(),
            more: 0,
        },
        ttft: ttft(),
        canaries: Some(CanariesView {
            sent: 9_730,
            answered: 9_655,
            seen: 0,
            windows: vec![window("hour", 402), window("day", 9_655)],
            tokens_minute: 20_000,
            paused: None,
            untested: None,
        }),
        incidents: vec![closed(now)],
        journal: JournalView {
            path: Some("/var/lib/cofferdam/journal.sqlite".into()),
            pending: 0,
            trouble: None,
            head: Some("b3:5f1e6d0c94a2".into()),
        },
        engines,
    }
}

/// With nothing seen in n answers, 95 % say that a leak is in fewer than 3 of n.
fn window(name: &str, answers: u64) -> Window {
    Window {
        name: name.into(),
        answers,
        found: 0,
        one_in: Some(answers / 3),
    }
}

fn closed(now: u64) -> IncidentView {
    let opened = now - 9 * 24 * 60 * MIN;
    IncidentView {
        id: "inc-20261122-1107-02bc".into(),
        opened_ms: opened,
        closed_ms: Some(opened + 210 * MIN),
        restored_ms: None,
        signal: "gate".into(),
        scope: "engine prefill-1".into(),
        title: "context above its pool after a restart".into(),
        engines: vec!["prefill-1".into()],
        lives: vec!["51c0ffee51c0ffee".into()],
        affected: Some(0),
        whose: String::new(),
        actions: vec![IncidentEntry {
            at_ms: opened + 210 * MIN,
            what: "close the incident".into(),
            by: "anna".into(),
            why: "started again with the flags of the others; gate and probe are clean".into(),
        }],
        next: Vec::new(),
    }
}

fn healthy() -> DeskState {
    let now = now_ms();
    let mut engines = Vec::new();
    for n in 0..2 {
        engines.push(sglang(format!("prefill-{n}"), RoleView::Prefill, 0, now));
        engines.push(sglang(format!("decode-{n}"), RoleView::Decode, 0, now));
    }
    engines.push(ours("prefill-own".into(), RoleView::Prefill, 1, now));
    engines.push(ours("decode-own".into(), RoleView::Decode, 1, now));
    whole(engines, now)
}

/// 200 nodes in 20 groups, one of them away, three groups ours.
fn large() -> DeskState {
    let now = now_ms();
    let mut engines = Vec::new();
    for group in 0..20 {
        for n in 0..5 {
            let make = if group < 17 { sglang } else { ours };
            engines.push(make(
                format!("prefill-{group}-{n}"),
                RoleView::Prefill,
                group,
                now,
            ));
            engines.push(make(
                format!("decode-{group}-{n}"),
                RoleView::Decode,
                group,
                now,
            ));
        }
    }
    engines[73].readiness = Some("no answer for 40 s".into());
    whole(engines, now)
}

/// A canary has come back to the wrong tenant; the policy has made the pair private.
fn incident(mut state: DeskState) -> DeskState {
    let now = state.at_ms;
    let at = now - 23 * MIN;
    let title = "a canary of another tenant came back in an answer over the limit of 1,993 tokens";
    let place = state.pairs.len() / 3;
    let pair = &mut state.pairs[place];
    let (prefill, decode) = (pair.prefill.clone(), pair.decode.clone());
    pair.standing = StandingView {
        access: AccessLevel::Private,
        why: Some(title.into()),
        since_ms: Some(at + 400),
        incident: Some(INCIDENT.into()),
    };
    pair.canaries = PairCanaries {
        sent: 412,
        seen: 1,
        last_ms: Some(at),
    };
    let mut lives = Vec::new();
    for engine in &mut state.engines {
        if engine.name != prefill && engine.name != decode {
            continue;
        }
        lives.push(engine.life.clone());
        engine.version = "0.5.19".into();
        engine.pool_tokens = Some(if engine.role == RoleView::Prefill {
            2_000
        } else {
            8_000
        });
        engine.max_prompt_tokens = Some(if engine.role == RoleView::Prefill {
            1_993
        } else {
            4_089
        });
        engine.verdicts.insert(
            0,
            VerdictView {
                at_ms: at,
                what: "a canary of the other tenant in an answer".into(),
                result: CheckResult::Found,
                source: "canary".into(),
            },
        );
    }
    let proof = |kind: &str, missing: &str| ProofView {
        kind: kind.into(),
        at_ms: now - 4 * MIN,
        life: lives.first().cloned().unwrap_or_default(),
        missing: Some(missing.into()),
    };
    state.model.evidence = vec![
        proof("probe", "the reproduction still finds a leak on this life"),
        proof("canary", "96 of 3,000 answers"),
    ];
    if let Some(canaries) = &mut state.canaries {
        canaries.seen = 1;
    }
    let entry = |ms: u64, what: &str, by: &str, why: &str| IncidentEntry {
        at_ms: at + ms,
        what: what.into(),
        by: by.into(),
        why: why.into(),
    };
    state.incidents.insert(
        0,
        IncidentView {
            id: INCIDENT.into(),
            opened_ms: at,
            closed_ms: None,
            restored_ms: None,
            signal: "canary".into(),
            scope: format!("pair {prefill} → {decode}"),
            title: title.into(),
            engines: vec![prefill, decode],
            lives,
            affected: Some(155),
            whose: " of acme (150), globex (5)".into(),
            actions: vec![
                entry(0, "open an incident", "policy", "canary: hit → private"),
                entry(400, "make private", "policy", "canary: hit → private"),
                entry(
                    4 * MIN,
                    "note",
                    "anna",
                    "I have it. Logs of the router are being copied. <b>Two of three</b> are done.",
                ),
            ],
            next: vec![
                "Keep the processes running and copy what they hold: docs/runbook.md, step 2"
                    .into(),
                "Tell those who are affected: `cofferdam incident show` names them".into(),
                "Reproduce with cofferdam probe --suite boundary,flood, as an operator".into(),
                "Restore when probe and canaries are clean on the life that runs".into(),
            ],
        },
    );
    state
}

/// A desk over a state in memory.
pub struct MadeUp(Mutex<Arc<DeskState>>);

impl MadeUp {
    /// Over this state.
    #[must_use]
    pub fn new(state: DeskState) -> Self {
        Self(Mutex::new(Arc::new(state)))
    }

    /// Changes the state.
    pub fn change(&self, how: impl FnOnce(&mut DeskState)) {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let state = Arc::make_mut(&mut held);
        how(state);
        state.at_ms = now_ms();
    }
}

impl Desk for MadeUp {
    fn state(&self) -> Arc<DeskState> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn act(
        &self,
        action: Action,
    ) -> Pin<Box<dyn Future<Output = Result<Done, ActionRefused>> + Send + '_>> {
        let mut done = Err(missing(&action.scope));
        self.change(|state| done = apply(state, &action));
        Box::pin(std::future::ready(done))
    }
}

fn missing(scope: &ActionScope) -> ActionRefused {
    ActionRefused {
        whose: WhoseFault::Missing,
        expected: "something that there is".into(),
        got: scope.to_string(),
        next: "look at the state, it may have changed".into(),
    }
}

fn apply(state: &mut DeskState, action: &Action) -> Result<Done, ActionRefused> {
    let at_ms = now_ms();
    let unproven = state
        .model
        .evidence
        .iter()
        .find_map(|it| it.missing.clone());
    if let (Act::Restore, Some(got)) = (action.act, unproven) {
        return Err(ActionRefused {
            whose: WhoseFault::Standing,
            expected: "two proofs of the lives that run, by probe and by canaries".into(),
            got,
            next: "repeat both on the life that runs, then restore".into(),
        });
    }
    let entry = IncidentEntry {
        at_ms,
        what: action.act.word().into(),
        by: action.by.clone(),
        why: action.reason.clone(),
    };
    let id = match (&action.scope, action.act) {
        (ActionScope::Incident { id }, act) => {
            let found = state.incidents.iter_mut().find(|it| it.id == *id);
            let found = found.ok_or_else(|| missing(&action.scope))?;
            found.actions.push(entry);
            if act == Act::CloseIncident {
                found.closed_ms = Some(at_ms);
            }
            Some(id.clone())
        }
        (scope, Act::OpenIncident) => {
            let id = format!("inc-by-hand-{}", state.incidents.len());
            let incident = IncidentView {
                id: id.clone(),
                opened_ms: at_ms,
                signal: "by hand".into(),
                scope: scope.to_string(),
                title: action.reason.clone(),
                actions: vec![entry],
                ..IncidentView::default()
            };
            state.incidents.insert(0, incident);
            Some(id)
        }
        (scope, act) => {
            let standing = standing(state, scope).ok_or_else(|| missing(scope))?;
            standing.access = match act {
                Act::Drain => AccessLevel::Draining,
                Act::Private => AccessLevel::Private,
                Act::Close => AccessLevel::Closed,
                _ => AccessLevel::Open,
            };
            standing.why = Some(action.reason.clone());
            standing.since_ms = Some(at_ms);
            standing.incident.clone()
        }
    };
    Ok(Done {
        at_ms,
        said: format!("{}: {}, by {}", action.act.word(), action.scope, action.by),
        incident: id,
    })
}

fn standing<'a>(state: &'a mut DeskState, scope: &ActionScope) -> Option<&'a mut StandingView> {
    match scope {
        ActionScope::Model => Some(&mut state.model.standing),
        ActionScope::Pair { prefill, decode } => state
            .pairs
            .iter_mut()
            .find(|it| it.prefill == *prefill && it.decode == *decode)
            .map(|it| &mut it.standing),
        ActionScope::Engine { name } => state
            .engines
            .iter_mut()
            .find(|it| it.name == *name)
            .map(|it| &mut it.standing),
        ActionScope::Incident { .. } => None,
    }
}
