//! Asks the engines what they take, for as long as the gateway runs.

use super::fleet::{Fleet, Member, upstream};
use super::measured::{Unusable, found};
use super::router;
use crate::oncall::{Named, OnCall};
use gate::facts::net::{Limits, NetTarget, describe};
use gateway::door::{Doors, Found};
use oncall::Openness;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Times that an engine may owe an answer before nothing goes to it any more: one that is busy
/// answers late.
const MISSES: u32 = 3;
/// What engines and we must cut into the same tokens.
pub(super) const SAMPLES: [&str; 4] = [
    "The quick brown fox jumps over the lazy dog.",
    "  fn main() {\n\tprintln!(\"{}\", 3.14159);\n}\n",
    "Zwölf Boxkämpfer jagen Viktor über den großen Sylter Deich. 東京 🙂",
    "1234567890 0.5 -17 1e-9",
];

/// Texts, and the tokens that `--model` makes of them.
pub(super) type Samples = [(&'static str, Result<Vec<u32>, String>); 4];

/// What was said of an engine before.
#[derive(Default)]
struct Before {
    missed: u32,
    said: Option<Unusable>,
    /// What it was measured to be, last.
    found: Option<Found>,
    /// The same, where it does not answer any more.
    away: Option<(Found, String)>,
    /// The life whose tokenizer was compared, and what differs.
    compared: Option<(String, Option<String>)>,
}

/// Asks again and again, and reads again who there is to ask.
pub(super) async fn measure(
    mut fleet: Fleet,
    doors: &Doors,
    every: Duration,
    samples: Samples,
    on_call: Option<Arc<OnCall>>,
) {
    let mut before: BTreeMap<String, Before> = BTreeMap::new();
    let on_call = on_call.as_deref();
    loop {
        let found = read(&fleet.members).await;
        for (member, found) in fleet.members.iter().zip(found) {
            let name = &member.target.name;
            let before = before.entry(name.clone()).or_insert_with(|| Before {
                missed: MISSES,
                ..Before::default()
            });
            if let Some(found) = before.next(&member.target, found, doors, &samples).await {
                before.takes(&found);
                if fleet.router.is_none() {
                    doors.measured(name, found.map(|found| closed(found, member, on_call)));
                }
            }
        }
        if let Some(router) = &fleet.router {
            let found = behind(router, &fleet.members, &before, on_call);
            doors.measured(&router.name, found);
        }
        name_them(on_call, &fleet, &before);
        let moved = doors_move(every, on_call).await;
        let named = fleet.read_again().await;
        if named {
            doors.engines(fleet.upstreams());
            before.retain(|name, _| fleet.members.iter().any(|it| it.target.name == *name));
        }
        if named || moved {
            // At once, whether an engine answers or not.
            for member in &fleet.members {
                let name = &member.target.name;
                let known = before.get(name).and_then(|it| it.found.clone());
                if let (Some(found), None) = (known, &fleet.router) {
                    doors.measured(name, Ok(closed(found, member, on_call)));
                }
            }
            if let Some(router) = &fleet.router {
                let found = behind(router, &fleet.members, &before, on_call);
                doors.measured(&router.name, found);
            }
        }
    }
}

/// Until it is time to ask again, or who may be asked has changed; whether it has.
async fn doors_move(every: Duration, on_call: Option<&OnCall>) -> bool {
    let moved = async {
        match on_call {
            None => std::future::pending().await,
            Some(on_call) => on_call.moved.notified().await,
        }
    };
    tokio::time::timeout(every, moved).await.is_ok()
}

/// Tells who is on call which engines there are.
fn name_them(on_call: Option<&OnCall>, fleet: &Fleet, before: &BTreeMap<String, Before>) {
    let Some(on_call) = on_call else { return };
    let router = fleet.router.iter().map(|router| Named {
        api: router.name.clone(),
        url: router.address.to_string(),
        software: "router".to_owned(),
        group: 0,
        context: None,
    });
    let members = fleet.members.iter();
    let named = members.filter(|_| fleet.router.is_none()).map(|member| {
        let found = before.get(&member.target.name);
        let found = found.and_then(|it| it.found.as_ref());
        Named {
            api: member.target.name.clone(),
            url: member.at.url.clone(),
            software: found.map_or(String::new(), |it| it.software.clone()),
            group: member.at.group,
            context: found.and_then(|it| Some(u64::from(it.lengths?.max_model_len))),
        }
    });
    on_call.engines(router.chain(named).collect());
}

/// As the door is to know it: to an engine in quarantine nothing new goes, and to one that is private
/// what operators ask.
fn closed(mut found: Found, member: &Member, on_call: Option<&OnCall>) -> Found {
    let restriction = on_call.and_then(|it| it.of_engine(&member.at.url));
    let closed = match (&member.quarantined, &restriction) {
        (Some(why), _) => Some(format!("in quarantine: {why}")),
        (None, Some(it)) if matches!(it.access, Openness::Draining | Openness::Closed) => {
            Some(format!("{}: {}", it.access.as_str(), it.why))
        }
        _ => None,
    };
    if let Some(why) = closed {
        found.lengths = None;
        found.derivation = vec![why];
    }
    found.private = restriction
        .filter(|it| it.access == Openness::Private)
        .map(|it| it.why);
    found
}

/// The router as the door is to know it.
fn behind<'a>(
    router: &NetTarget,
    members: &'a [Member],
    before: &BTreeMap<String, Before>,
    on_call: Option<&OnCall>,
) -> Result<Found, String> {
    let known = |member: &'a Member| {
        let name = member.target.name.as_str();
        let before = before.get(name);
        let away = before.and_then(|it| it.away.as_ref());
        let last = before.and_then(|it| it.found.as_ref());
        let last = last.or(away.map(|(found, _)| found)).cloned();
        let said = before
            .and_then(|it| it.said.as_ref())
            .map(|it| it.what.to_owned());
        router::Engine {
            name,
            last: last.map(|found| closed(found, member, on_call)),
            trouble: away.map(|(_, why)| why.clone()).or(said),
        }
    };
    let engines: Vec<_> = members.iter().map(known).collect();
    router::behind(&router.address.to_string(), &engines)
}

/// What each of them says now.
pub(super) async fn read(members: &[Member]) -> Vec<Result<Found, Unusable>> {
    let targets: Vec<NetTarget> = members.iter().map(|it| it.target.clone()).collect();
    let nodes = describe(&targets, &Limits::default()).await;
    let each = members.iter().zip(&nodes);
    each.map(|(member, nodes)| match nodes.as_slice() {
        [node] => found(&member.at, node),
        _ => Err(Unusable::new(
            "speaks for several workers",
            "name them one by one",
        )),
    })
    .collect()
}

impl Before {
    /// What it is now, or that it is away: then what it was is remembered.
    fn takes(&mut self, found: &Result<Found, String>) {
        match found {
            Ok(found) => (self.found, self.away) = (Some(found.clone()), None),
            Err(why) => {
                let last = self.found.take();
                let away = self.away.take().map(|(found, _)| found);
                self.away = last.or(away).map(|found| (found, why.clone()));
            }
        }
    }

    /// What the door is told; none: as before.
    async fn next(
        &mut self,
        target: &NetTarget,
        found: Result<Found, Unusable>,
        doors: &Doors,
        samples: &Samples,
    ) -> Option<Result<Found, String>> {
        let name = &target.name;
        let mut found = match found {
            Err(_) if self.missed + 1 < MISSES => {
                self.missed += 1;
                return None;
            }
            Err(why) => {
                self.missed = MISSES;
                if self.said.as_ref() != Some(&why) {
                    tracing::warn!("{name} {}: {}", why.what, why.how);
                    self.said = Some(why.clone());
                }
                return Some(Err(why.what.to_owned()));
            }
            Ok(found) => found,
        };
        (self.missed, self.said) = (0, None);
        let known = self.compared.as_ref();
        let known = known.filter(|(life, _)| *life == found.life);
        let differs = match known {
            Some((_, differs)) => differs.clone(),
            None => {
                let differs = differs(doors, target, &found, samples).await;
                self.compared = Some((found.life.clone(), differs.clone()));
                differs
            }
        };
        if let Some(differs) = differs {
            found.lengths = None;
            found.derivation = vec![differs];
        }
        Some(Ok(found))
    }
}

/// Whether the engine cuts texts into other tokens than we do. Engines that cannot be asked are not
/// asked.
async fn differs(
    doors: &Doors,
    target: &NetTarget,
    found: &Found,
    samples: &Samples,
) -> Option<String> {
    let name = &target.name;
    let engine = upstream(target);
    for (text, ours) in samples {
        let Some(theirs) = doors.tokenize(&engine, &found.dialect, text).await else {
            tracing::info!(
                "{name}: this engine has no tokenizer to ask: token ids go to it unchecked"
            );
            return None;
        };
        match ours {
            Ok(ours) if *ours == theirs => {}
            Ok(ours) => {
                return Some(format!(
                    "another tokenizer: {text:?} is {} tokens to it and {} to --model",
                    theirs.len(),
                    ours.len()
                ));
            }
            Err(why) => return Some(format!("--model cannot tokenize {text:?}: {why}")),
        }
    }
    None
}
