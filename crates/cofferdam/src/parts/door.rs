//! The gateway in front of engines that are not ours: what they take is measured as `gate` does, again
//! and again, and nothing goes to one of which it is not known.

use super::{api, runtime, say};
use crate::args::{Door, EngineAt, EngineRole, Gateway};
use crate::exit::Failure;
use crate::supervisor::Ready;
use anyhow::{Context, anyhow};
use gate::facts::net::{Address, Limits, Secret, Target, Tls, TlsFiles, describe};
use gate::facts::{Engine as Software, Node, Role as Says};
use gateway::door::dialect::{Protocol, Role};
use gateway::door::{Config, Doors, Found, Upstream};
use handoff::Lengths;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Where SGLang's decodes find a prefill, unless it was started otherwise.
const BOOTSTRAP: u16 = 8998;
/// Times that an engine may owe an answer before nothing goes to it any more: one that is busy
/// answers late.
const MISSES: u32 = 3;
/// What engines and we must cut into the same tokens.
const SAMPLES: [&str; 4] = [
    "The quick brown fox jumps over the lazy dog.",
    "  fn main() {\n\tprintln!(\"{}\", 3.14159);\n}\n",
    "Zwölf Boxkämpfer jagen Viktor über den großen Sylter Deich. 東京 🙂",
    "1234567890 0.5 -17 1e-9",
];

/// Runs it.
pub(super) fn run(settings: Gateway, weights: &Path) -> Result<(), Failure> {
    let engines = Engines::new(&settings.door).map_err(Failure::usage)?;
    for (n, at) in engines.at.iter().enumerate() {
        tracing::info!("engine-{n} is {}", at.url);
    }
    api::check(&settings.api)?;
    let served = api::Served::load(weights, &settings.api)?;
    let samples = SAMPLES.map(|text| (text, served.tokens(text)));
    let config = Config {
        trace: settings.part.trace,
        tls: Some(engines.tls.config()),
        ..Config::new(engines.upstreams(), vec![served.name.clone()])
    };
    runtime()?.block_on(async {
        let doors = Arc::new(Doors::start(config).map_err(Failure::usage)?);
        let ready = Ready {
            role: "gateway".into(),
            epoch: doors.epoch().to_string(),
            ..Ready::default()
        };
        let measuring = engines.measure(&doors, settings.door.measure_every, samples);
        let ended = async { drop(doors.ended().await) };
        let shutdown = api::shutdown(ended, || doors.drain())?;
        let (api, common) = (settings.api, &settings.common);
        let serving = api::serve(api, common, served, doors.clone(), shutdown, ready, say);
        tokio::select! {
            ended = serving => ended?,
            () = measuring => {}
        }
        doors.end().await.map_err(Failure::found)
    })
}

/// Says what the engines take and whether they go together, and serves nobody.
///
/// # Errors
/// Nothing could be answered.
pub fn check(door: &Door) -> Result<(), Failure> {
    let engines = Engines::new(door).map_err(Failure::usage)?;
    runtime()?.block_on(engines.check())
}

struct Engines {
    at: Vec<EngineAt>,
    targets: Vec<Target>,
    tls: Tls,
}

impl Engines {
    fn new(door: &Door) -> anyhow::Result<Self> {
        let key = door.engine_key_file.as_deref();
        let key = key.map(Secret::from_file).transpose()?;
        let tls = Tls::new(&TlsFiles {
            ca: door.engine_ca.clone(),
            cert: door.engine_cert.clone(),
            key: door.engine_cert_key.clone(),
        })
        .context("--engine-ca, --engine-cert, --engine-cert-key")?;
        let target = |(n, at): (usize, &EngineAt)| {
            Ok(Target {
                // Clients are told this name, and no address.
                name: format!("engine-{n}"),
                address: Address::server(&at.url).with_context(|| at.url.clone())?,
                key: key.clone(),
                tls: tls.clone(),
            })
        };
        let targets: anyhow::Result<Vec<Target>> =
            door.engine.iter().enumerate().map(target).collect();
        Ok(Self {
            at: door.engine.clone(),
            targets: targets?,
            tls,
        })
    }

    fn upstreams(&self) -> Vec<Upstream> {
        let upstream = |target: &Target| Upstream {
            name: target.name.clone(),
            authority: target.address.authority(),
            tls: target.address.is_tls(),
            key: target.key.as_ref().map(|key| {
                let bearer = key.bearer();
                let text = bearer.to_str().unwrap_or_default();
                text.trim_start_matches("Bearer ").to_owned()
            }),
        };
        self.targets.iter().map(upstream).collect()
    }

    async fn read(&self) -> Vec<Result<Found, Unusable>> {
        let nodes = describe(&self.targets, &Limits::default()).await;
        let each = self.at.iter().zip(&nodes);
        each.map(|(at, nodes)| match nodes.as_slice() {
            [node] => found(at, node),
            _ => Err(Unusable::new(
                "speaks for several workers",
                "name them one by one",
            )),
        })
        .collect()
    }

    /// Asks for as long as the gateway runs.
    async fn measure(
        self,
        doors: &Doors,
        every: Duration,
        samples: [(&'static str, Result<Vec<u32>, String>); 4],
    ) {
        let mut missed = vec![MISSES; self.at.len()];
        let mut said = vec![None::<Unusable>; self.at.len()];
        let mut same_words = vec![None::<(String, Option<String>)>; self.at.len()];
        loop {
            for (at, found) in self.read().await.into_iter().enumerate() {
                let mut found = match found {
                    Err(_) if missed[at] + 1 < MISSES => {
                        missed[at] += 1;
                        continue;
                    }
                    Err(why) => {
                        if said[at].as_ref() != Some(&why) {
                            tracing::warn!("engine-{at} {}: {}", why.what, why.how);
                            said[at] = Some(why.clone());
                        }
                        Err(why.what.to_owned())
                    }
                    Ok(found) => {
                        said[at] = None;
                        Ok(found)
                    }
                };
                missed[at] = if found.is_ok() { 0 } else { MISSES };
                if let Ok(found) = &mut found {
                    let known = same_words[at]
                        .as_ref()
                        .filter(|(life, _)| *life == found.life);
                    let differs = match known {
                        Some((_, differs)) => differs.clone(),
                        None => {
                            let differs = differs(doors, at, found, &samples).await;
                            same_words[at] = Some((found.life.clone(), differs.clone()));
                            differs
                        }
                    };
                    if let Some(differs) = differs {
                        found.lengths = None;
                        found.derivation = vec![differs];
                    }
                }
                doors.measured(at, found);
            }
            tokio::time::sleep(every).await;
        }
    }

    /// What can be said without serving anybody.
    async fn check(self) -> Result<(), Failure> {
        let found = self.read().await;
        let mut roles = Vec::new();
        for (at, found) in self.at.iter().zip(&found) {
            match found {
                Err(why) => println!("{}: not usable: {}: {}", at.url, why.what, why.how),
                Ok(found) => {
                    println!("{}: {:?}", at.url, found.dialect);
                    if let Some(it) = found.lengths {
                        println!(
                            "  takes prompts up to {} tokens, prompt and answer up to {}",
                            it.max_prompt, it.max_model_len
                        );
                    }
                    found
                        .derivation
                        .iter()
                        .for_each(|line| println!("  {line}"));
                    roles.extend(found.lengths.map(|_| found.dialect.serves()));
                }
            }
        }
        use handoff::door::Serves::{Alone, Decode, Prefill};
        let pairs = |decode: &_| match decode {
            Alone => true,
            Decode(group, handing) => roles.contains(&Prefill(*group, *handing)),
            Prefill(..) => false,
        };
        match roles.iter().any(pairs) {
            true => Ok(()),
            false => Err(Failure::found(anyhow!(
                "no engines that go together are up with known limits"
            ))),
        }
    }
}

/// Why nothing goes to an engine.
#[derive(Clone, Debug, PartialEq)]
struct Unusable {
    /// What clients may hear: no address in it.
    what: &'static str,
    /// What the operator hears besides.
    how: String,
}

impl Unusable {
    fn new(what: &'static str, how: impl ToString) -> Self {
        let how = how.to_string();
        Self { what, how }
    }
}

/// What the engine is and takes, by its own figures.
fn found(at: &EngineAt, node: &Node) -> Result<Found, Unusable> {
    let software = node.engine.as_ref();
    let software = software.map_err(|why| Unusable::new("does not say what it is", why))?;
    let role = role(at, node)?;
    let dialect = match software.value {
        Software::Sglang => Protocol::Sglang {
            role,
            bootstrap: (role == Role::Prefill).then_some(at.bootstrap.unwrap_or(BOOTSTRAP)),
        },
        Software::Vllm => Protocol::Vllm { role },
        Software::LlamaCpp if role == Role::Alone => Protocol::Llama,
        other => return Err(Unusable::new("is of a kind that is not spoken to", other)),
    };
    let (lengths, how) = lengths(node, role)?;
    let version = node.version.as_ref().map(|it| it.value.to_string());
    let pool_tokens = node.smallest_pool().map_or(0, |pool| pool.value);
    let life = format!(
        "{} {} {pool_tokens} {lengths:?}",
        software.value.name(),
        version.unwrap_or_default()
    );
    Ok(Found {
        dialect,
        life,
        lengths: Some(lengths),
        derivation: vec![how],
        pool_tokens,
        aborts_prefill: false,
    })
}

/// What it says that it does counts; where it does not say, or could be either, what it was named.
fn role(at: &EngineAt, node: &Node) -> Result<Role, Unusable> {
    let named = at.role.map(|named| match named {
        EngineRole::Prefill => Role::Prefill,
        EngineRole::Decode => Role::Decode,
    });
    let says = match node.role.as_ref().map(|it| it.value) {
        Ok(Says::Prefill) => Role::Prefill,
        Ok(Says::Decode) => Role::Decode,
        Ok(Says::Whole) => Role::Alone,
        Ok(Says::Either) => {
            let how = "name it prefill=URL or decode=URL";
            return named.ok_or_else(|| Unusable::new("can be prefill or decode", how));
        }
        Err(why) => return named.ok_or_else(|| Unusable::new("does not say its role", why)),
    };
    match named {
        Some(named) if named != says => Err(Unusable::new(
            "says another role than it was named",
            format!("named {named:?}, says {says:?}"),
        )),
        _ => Ok(says),
    }
}

/// The smallest of what it measured: prefill's pool holds prompts, decode's prompt and answer.
fn lengths(node: &Node, role: Role) -> Result<(Lengths, String), Unusable> {
    let pool = node.smallest_pool();
    let pool = pool
        .map_err(|why| Unusable::new("does not say its pool", why))?
        .value;
    let context = node.context.as_ref().or(node.advertised.as_ref());
    let context = context.map_err(|why| Unusable::new("does not say its context", why))?;
    let context = context.value;
    let most = u64::from(u32::MAX);
    let (sum, room) = match role {
        Role::Prefill => (context, pool),
        Role::Decode | Role::Alone => (context.min(pool), pool.saturating_sub(1)),
    };
    let accepted = node.max_prompt.as_ref().map_or(most, |it| it.value);
    let beside = node.asides.as_ref().map_or(&[][..], Vec::as_slice);
    let beside = beside.iter().filter_map(|aside| aside.tokens).min();
    let beside = beside.unwrap_or(most);
    let prompt = accepted
        .min(context.saturating_sub(1))
        .min(room)
        .min(beside);
    let small = |tokens: u64| u32::try_from(tokens.min(most)).unwrap_or(u32::MAX);
    let accepts = match accepted == most {
        true => String::new(),
        false => format!(", accepts {accepted}"),
    };
    let how = format!("prompts up to {prompt}: pool {pool}, context {context}{accepts}");
    if prompt == 0 || sum == 0 {
        return Err(Unusable::new("takes no prompt", how));
    }
    let lengths = Lengths {
        max_prompt: small(prompt),
        max_model_len: small(sum.min(beside)),
    };
    Ok((lengths, how))
}

/// Whether the engine cuts texts into other tokens than we do. Engines that cannot be asked are not
/// asked.
async fn differs(
    doors: &Doors,
    at: usize,
    found: &Found,
    samples: &[(&'static str, Result<Vec<u32>, String>); 4],
) -> Option<String> {
    for (text, ours) in samples {
        let Some(theirs) = doors.tokenize(at, &found.dialect, text).await else {
            tracing::info!(
                "{at}: this engine has no tokenizer to ask: token ids go to it unchecked"
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
