//! The API in front of an engine: what is served, where, and until when.

use crate::args::{Api, Common, LogFormat};
use crate::evidence::{Watched, operators};
use crate::exit::Failure;
use crate::oncall::{self, OnCall};
use crate::reload::{Reload, Reloading, look};
use crate::stop::Stop;
use crate::supervisor::Ready;
use anyhow::{Context, anyhow};
use gateway::api::auth::{ApiKeys, KeyRing};
use gateway::api::figures::Figures;
use gateway::api::observe::Observer;
use gateway::api::origins::Origins;
use gateway::api::private::{Private, WorkerLife};
use gateway::api::quota::Rates;
use gateway::api::text::ServedText;
use gateway::api::tls::{ServerFiles, ServerTls};
use gateway::api::{AccessLog, Reloads};
use gateway::engine::{Engine, Readiness};
use gateway::spans::Collector;
use std::collections::BTreeSet;
use std::fs::File;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokenizer::{ChatTemplate, Tokenizer};
use tokio::net::TcpListener;

/// How often an engine is asked whether it is ready, until it is.
const READY_EVERY: Duration = Duration::from_millis(20);
/// Bytes of a key file that are read.
const KEYS_BYTES_MAX: u64 = 4 << 20;

/// What the API says of the model.
pub(super) struct Served {
    /// Its name in the API.
    pub(super) name: String,
    text: ServedText,
}

impl Served {
    pub(super) fn load(weights: &Path, api: &Api) -> Result<Served, Failure> {
        let load = || -> anyhow::Result<Served> {
            let folder = weights.is_dir();
            let (tokenizer, template) = if folder {
                let tokenizer = Tokenizer::from_folder(weights)?;
                (tokenizer, ChatTemplate::from_folder(weights)?)
            } else {
                let metadata = gguf::Metadata::open(weights)?;
                let tokenizer = Tokenizer::from_gguf(&metadata)?;
                (tokenizer, ChatTemplate::from_gguf(&metadata)?)
            };
            let name = api
                .served_model_name
                .clone()
                .unwrap_or_else(|| name_of(weights));
            Ok(Served {
                name,
                text: ServedText::new(tokenizer, template),
            })
        };
        load()
            .with_context(|| weights.display().to_string())
            .map_err(Failure::usage)
    }

    /// The tokens of a text, without what a model wants around it.
    pub(super) fn tokens(&self, text: &str) -> Result<Vec<u32>, String> {
        use gateway::api::text::Text as _;
        let tokens = self.text.encode(text, false);
        tokens.map_err(|fault| fault.message)
    }
}

/// Whether what [`serve`] needs is there: what is wrong is said before a model is loaded.
pub(super) fn check(api: &Api) -> Result<(), Failure> {
    Read::new(api).map_err(Failure::usage)?;
    let form = LogFormat::Json; // of no matter: what cannot be opened is said
    access_log(api.access_log.as_deref(), form).map_err(Failure::usage)?;
    Watched::new(api)?;
    oncall::check(&api.on_call)?;
    if let Some((named, endpoint)) = otlp_endpoint(api) {
        let good = gateway::spans::address(&endpoint);
        good.map_err(|why| Failure::usage(anyhow!("{named} {why}")))?;
    }
    let at = (api.host.0, api.port);
    std::net::TcpListener::bind(at)
        .map(drop)
        .map_err(|error| cannot_listen(error, api))?;
    Ok(())
}

fn cannot_listen(error: std::io::Error, api: &Api) -> Failure {
    let next = match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            "; another program listens there: --port N takes another port, --port 0 a free one"
        }
        _ => "",
    };
    let (host, port) = (api.host.0, api.port);
    Failure::usage(anyhow!(
        "cannot listen on {host} port {port}: {error}{next}"
    ))
}

/// Who may ask, by evidence and by what was found out; begun before anything is asked.
pub(super) struct Guarded {
    watched: Option<Watched>,
    private: Arc<Private>,
    pub(super) on_call: Option<Arc<OnCall>>,
}

impl Guarded {
    /// `one_by_one`: whether engines can be closed one by one.
    pub(super) fn new(api: &Api, model: &str, one_by_one: bool) -> Result<Self, Failure> {
        let watched = Watched::new(api)?;
        let private = match &watched {
            Some(watched) => watched.private.clone(),
            None => Arc::new(Private::open(operators(api))),
        };
        let on_call = OnCall::start(&api.on_call, private.clone(), model, one_by_one)?;
        Ok(Self {
            watched,
            private,
            on_call,
        })
    }

    /// Looks at evidence and at engines, for as long as the API serves.
    async fn watch(self, addr: SocketAddr, tls: bool) -> Failure {
        let on_call = self.on_call.clone();
        let proved = move |lives: &BTreeSet<WorkerLife>| {
            if let Some(on_call) = &on_call {
                on_call.proved_by_probe(lives);
            }
        };
        let watching = async {
            match self.watched {
                None => std::future::pending().await,
                Some(watched) => watched.watch(proved).await,
            }
        };
        let on_call = async {
            match self.on_call {
                None => std::future::pending().await,
                Some(on_call) => on_call.watch_over(addr, tls).await,
            }
        };
        tokio::select! {
                never = watching => never,
            failure = on_call => failure,
        }
    }
}

/// Serves until `shutdown`, and until the running requests had their time. `ready` is completed and
/// told to `announce` as soon as the engine would take a request.
pub(super) async fn serve(
    api: Api,
    common: &Common,
    (served, guarded): (Served, Guarded),
    engine: Arc<dyn Engine>,
    shutdown: impl Future<Output = ()> + Send,
    ready: Ready,
    announce: impl FnOnce(Ready),
) -> Result<(), Failure> {
    let on_call = guarded.on_call.clone();
    let read = Read::new(&api).map_err(Failure::usage)?;
    let reloads = Reloads::default();
    let page = oncall::Page::open(&api.on_call, on_call.as_ref()).await?;
    let mut again = read.again;
    again.extend(page.as_ref().and_then(|it| it.reload(&api.on_call)));
    let reloading = Reloading::new(again, reloads.clone())?;
    let collector = otlp_endpoint(&api).map(|(named, endpoint)| {
        let started = Collector::start(&endpoint);
        started.map_err(|why| Failure::usage(anyhow!("{named} {why}")))
    });
    let collector = collector.transpose()?;
    let (spans, collector) = collector.unzip();
    let config = gateway::Config {
        private: Some(guarded.private.clone()),
        canaries: on_call.as_ref().map(|it| it.api_keys()),
        observer: on_call.clone().map(|it| it as Arc<dyn Observer>),
        figures: on_call
            .iter()
            .map(|it| it.clone() as Arc<dyn Figures>)
            .collect(),
        spans: spans.unwrap_or_default(),
        keys: read.keys,
        rates: Rates {
            requests: api.rpm,
            tokens: api.tpm,
        },
        tls: read.tls,
        reloads,
        origins: Origins(api.allow_origin.clone()),
        drain: common.drain(),
        request_timeout: api.request_deadline,
        access_log: access_log(api.access_log.as_deref(), common.log_format)
            .map_err(Failure::usage)?,
        ..gateway::Config::default()
    };
    let listener = TcpListener::bind((api.host.0, api.port)).await;
    let listener = listener.map_err(|error| cannot_listen(error, &api))?;
    let local = listener.local_addr().map_err(Failure::found)?;
    let addr = local.to_string();
    if api.api_keys.is_none() && !api.host.0.is_loopback() {
        tracing::warn!(
            "--host {} can be reached from other machines, and there is no --api-keys: everybody \
             who reaches it may ask",
            api.host.0
        );
    }
    if let Some(on_call) = &on_call {
        on_call.watch(engine.clone());
    }
    let ready = when_ready(engine.clone(), Ready { addr, ..ready });
    let serving = gateway::serve(listener, config, engine, Arc::new(served.text), shutdown);
    let serving = async {
        tokio::pin!(serving);
        tokio::select! {
            ended = &mut serving => ended,
            ready = ready => {
                announce(ready);
                serving.await
            }
        }
    };
    let watching = guarded.watch(local, api.tls_cert.is_some());
    let paging = async {
        match page {
            None => std::future::pending().await,
            Some(page) => page.serve().await,
        }
    };
    let reloading = async {
        match reloading {
            None => std::future::pending().await,
            Some(reloading) => reloading.run().await,
        }
    };
    let ended = tokio::select! {
        ended = serving => ended,
        failure = watching => return Err(failure),
        failure = paging => return Err(failure),
        never = reloading => never,
    };
    if let Some(collector) = collector {
        collector.end().await;
    }
    ended
        .context("the API cannot go on")
        .map_err(Failure::found)
}

/// Where spans go, and who says so: the flag, or the variable that OpenTelemetry has for it.
fn otlp_endpoint(api: &Api) -> Option<(&'static str, String)> {
    const COMMON: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
    let named = api.otlp_endpoint.clone().map(|it| ("--otlp-endpoint", it));
    let common = || std::env::var(COMMON).ok().map(|it| (COMMON, it));
    named.or_else(common).filter(|(_, it)| !it.is_empty())
}

/// Until a signal comes or the engine has `ended`; then it `drain`s. Listens from now on.
pub(super) fn shutdown(
    ended: impl Future<Output = ()> + Send,
    drain: impl FnOnce() + Send,
) -> Result<impl Future<Output = ()> + Send, Failure> {
    let mut stop = Stop::new()?;
    Ok(async move {
        tokio::select! {
            () = stop.next() => {}
            () = ended => {}
        }
        drain();
    })
}

async fn when_ready(engine: Arc<dyn Engine>, ready: Ready) -> Ready {
    let mut every = tokio::time::interval(READY_EVERY);
    let facts = loop {
        every.tick().await;
        let facts = engine.facts();
        if facts.readiness == Readiness::Ready && facts.limit().is_some() {
            break facts;
        }
    };
    let limit = facts.limit();
    Ready {
        max_context: limit.map(|limit| limit.max_model_len),
        max_prompt_tokens: limit.map(|limit| limit.max_prompt_tokens),
        model: facts.models.first().map(|model| model.id.clone()),
        ..ready
    }
}

/// What the API is given in files, some of which are read again while it runs.
struct Read {
    keys: Option<KeyRing>,
    tls: Option<Arc<ServerTls>>,
    again: Vec<Reload>,
}

impl Read {
    fn new(api: &Api) -> anyhow::Result<Read> {
        let mut again = Vec::new();
        let ring = match api.api_keys.clone() {
            None => None,
            Some(file) => {
                let files = vec![file.clone()];
                let seen = look(&files);
                let ring = KeyRing::from(keys(&file)?);
                let later = ring.clone();
                again.push(Reload::new("api-keys", (files, seen), move || {
                    let keys = keys(&file)?;
                    let tenants = keys.tenants().len();
                    later.replace(keys);
                    Ok(format!("keys of {tenants} tenants"))
                }));
                Some(ring)
            }
        };
        let tls = match (api.tls_cert.clone(), api.tls_key.clone()) {
            (Some(cert), Some(key)) => {
                let client_ca = api.tls_client_ca.clone();
                let files: Vec<_> = [&cert, &key]
                    .into_iter()
                    .chain(&client_ca)
                    .cloned()
                    .collect();
                let seen = look(&files);
                let load = ServerTls::load(ServerFiles {
                    cert,
                    key,
                    client_ca,
                });
                let tls = Arc::new(load.context("--tls-cert and --tls-key")?);
                let later = tls.clone();
                again.push(Reload::new("tls-cert", (files, seen), move || {
                    later.reload()?;
                    Ok("connections from now on have them".to_owned())
                }));
                Some(tls)
            }
            _ => None, // neither, or clap has refused it
        };
        Ok(Read {
            keys: ring,
            tls,
            again,
        })
    }
}

fn keys(file: &Path) -> anyhow::Result<ApiKeys> {
    let read = || -> anyhow::Result<ApiKeys> {
        let size = std::fs::metadata(file)?.len();
        if size > KEYS_BYTES_MAX {
            return Err(anyhow!(
                "is {size} bytes; at most {KEYS_BYTES_MAX} are read"
            ));
        }
        Ok(ApiKeys::parse(&std::fs::read_to_string(file)?)?)
    };
    read().with_context(|| format!("--api-keys {}", file.display()))
}

/// A file is JSON whatever a screen shows: programs read it (`watch`).
fn access_log(file: Option<&Path>, screen: LogFormat) -> anyhow::Result<AccessLog> {
    let Some(file) = file else {
        return Ok(match screen {
            LogFormat::Text => AccessLog::for_people(std::io::stderr()),
            LogFormat::Json => AccessLog::new(std::io::stderr()),
        });
    };
    let opened = File::options().create(true).append(true).open(file);
    let opened = opened.with_context(|| format!("--access-log {}", file.display()))?;
    Ok(AccessLog::new(opened))
}

/// The file's name without its extension, the number of its part and the quantization that often stands
/// there; a folder's name as it is.
fn name_of(weights: &Path) -> String {
    if weights.is_dir() {
        let whole = weights.canonicalize();
        return last_of(whole.as_deref().unwrap_or(weights));
    }
    let file = last_of(weights);
    let stem =
        gguf::stem(&file).map_or_else(|| last_of(&weights.with_extension("")), str::to_owned);
    let quantized = |word: &str| {
        let kind = word.trim_start_matches(|c: char| c.is_ascii_uppercase());
        let upper = word.len() - kind.len();
        (1..=2).contains(&upper) && kind.starts_with(|c: char| c.is_ascii_digit())
    };
    match stem.rsplit_once('.') {
        Some((name, kind)) if !name.is_empty() && quantized(kind) => name.to_owned(),
        _ => stem,
    }
}

fn last_of(path: &Path) -> String {
    path.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_models_are_those_that_people_use() {
        let name = |file: &str| name_of(Path::new(file));
        assert_eq!(
            name("/c/SmolLM2-135M-Instruct.Q4_1.gguf"),
            "SmolLM2-135M-Instruct"
        );
        assert_eq!(name("a.BF16.gguf"), "a");
        assert_eq!(name("Llama-3.2-1B.gguf"), "Llama-3.2-1B");
        assert_eq!(name("model.gguf"), "model");
        assert_eq!(name("a.Q4_K_M-00001-of-00003.gguf"), "a");
        assert_eq!(name("a-1-of-3.gguf"), "a-1-of-3");
        assert_eq!(name(".Q4_1.gguf"), ".Q4_1");
    }

    #[test]
    fn a_bad_key_file_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "only-one-word\n").unwrap();
        let error = keys(file.path()).err().unwrap();
        let text = format!("{error:#}");
        assert!(
            text.contains("--api-keys") && text.contains("line 1"),
            "{text}"
        );
    }
}
