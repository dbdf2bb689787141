//! What one server answered, endpoint by endpoint, and which software it therefore is.

use crate::facts::combine::{agreed, not_reported, worst};
use crate::facts::figure::{Fact, Figure, FigureSource, Unknown};
use crate::facts::json::Doc;
use crate::facts::node::{Engine, Node, Probe, Warning};
use crate::facts::prometheus::Metrics;
use crate::facts::trouble::Trouble;
use crate::facts::version::Version;
use std::collections::BTreeMap;

/// Bytes that came from the endpoints of one server, or what came instead. No I/O: a recording
/// and a live server look the same.
#[derive(Clone, Debug)]
pub struct ServerAnswers {
    base: String,
    got: BTreeMap<String, Result<Vec<u8>, Trouble>>,
    with_key: bool,
    bare: BTreeMap<String, Result<u64, Trouble>>,
}

impl ServerAnswers {
    /// Nothing yet from the server at `base`, a URL without credentials and closing slash.
    /// `with_key` says whether its requests carry a key.
    pub fn new(base: &str, with_key: bool) -> Self {
        Self {
            base: base.to_owned(),
            got: BTreeMap::new(),
            with_key,
            bare: BTreeMap::new(),
        }
    }

    /// Notes what came from `path` (`/server_info`, without a query).
    pub fn insert(&mut self, path: &str, outcome: Result<Vec<u8>, Trouble>) {
        self.got.insert(path.to_owned(), outcome);
    }

    /// Notes what came from `path` without a key, on a server to which we otherwise send one.
    pub fn insert_bare(&mut self, path: &str, outcome: Result<u64, Trouble>) {
        self.bare.insert(path.to_owned(), outcome);
    }

    /// What came from `path`, if it was asked.
    pub fn get(&self, path: &str) -> Option<&Result<Vec<u8>, Trouble>> {
        self.got.get(path)
    }

    /// All endpoints that were asked.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.got.keys().map(String::as_str)
    }

    /// Base and path.
    pub fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    /// The answer of `path`, as something to take figures from.
    pub(crate) fn page(&self, path: &str) -> Page {
        let parse = |url: &str, body: &[u8]| Doc::parse(url, body);
        Page(self.parsed(path, parse))
    }

    /// The answer of `/metrics`.
    pub(crate) fn metrics(&self) -> Fact<Metrics> {
        self.parsed("/metrics", Metrics::parse)
    }

    fn parsed<T>(&self, path: &str, parse: fn(&str, &[u8]) -> Result<T, Trouble>) -> Fact<T> {
        let url = self.url(path);
        let got = self.got.get(path).ok_or_else(|| Unknown::NotReported {
            looked: vec![url.clone()],
        })?;
        let parsed = got.as_ref().map_err(Clone::clone);
        parsed
            .and_then(|body| parse(&url, body))
            .map_err(|trouble| Unknown::NotRead { url, trouble })
    }

    /// Whether introspection at one of `paths` answers without a key.
    pub(crate) fn open_introspection(&self, paths: &[&str]) -> Fact<Figure<bool>> {
        let mut refused = None;
        let mut reasons = Vec::new();
        for path in paths {
            let source = FigureSource::Field {
                url: self.url(path),
                field: "status".into(),
            };
            let bare = match self.with_key {
                true => self.bare.get(*path).cloned(),
                false => self.got.get(*path).map(|it| {
                    let body = it.as_ref().map_err(Clone::clone);
                    body.and_then(|it| introspects(it))
                }),
            };
            match bare {
                Some(Ok(_)) => return Ok(Figure::new(true, source)),
                Some(Err(Trouble::Refused { .. } | Trouble::Absent { .. })) => {
                    refused = Some(Figure::new(false, source));
                }
                Some(Err(trouble)) => {
                    let url = self.url(path);
                    reasons.push(Unknown::NotRead { url, trouble });
                }
                None => {}
            }
        }
        refused
            .filter(|_| reasons.is_empty())
            .ok_or_else(|| worst(reasons))
    }

    pub(crate) fn probes(&self) -> Vec<Probe> {
        let probe = |path: &String, with_key, outcome| Probe {
            url: self.url(path),
            with_key,
            outcome,
        };
        let got = self.got.iter().map(|(path, outcome)| {
            let bytes = outcome.as_ref().map(|it| it.len() as u64);
            probe(path, self.with_key, bytes.map_err(Clone::clone))
        });
        let bare = self.bare.iter();
        got.chain(bare.map(|(path, outcome)| probe(path, false, outcome.clone())))
            .collect()
    }
}

/// Whether a 200 of introspection is one, and not a page to sign in or an error that says 200: how
/// long it is.
///
/// # Errors
/// What it is instead.
pub(crate) fn introspects(body: &[u8]) -> Result<u64, Trouble> {
    let doc = Doc::parse("", body)?;
    let says = |why: &str| Err(Trouble::Garbage { why: why.into() });
    match doc.root().as_object() {
        None => says("not an object"),
        Some(it) if it.get("error").is_some_and(|it| !it.is_null()) => says("an error, with 200"),
        Some(_) => Ok(body.len() as u64),
    }
}

/// An answer, or why there is none: every figure of it is then unknown for that reason.
pub(crate) struct Page(Fact<Doc>);

impl Page {
    /// What a log says in the place of an answer.
    pub(crate) fn of(doc: Fact<Doc>) -> Self {
        Self(doc)
    }

    pub(crate) fn doc(&self) -> Fact<&Doc> {
        self.0.as_ref().map_err(Clone::clone)
    }

    /// This one, or the other if the server has no such endpoint.
    pub(crate) fn or(self, other: Page) -> Page {
        let absent = match &self.0 {
            Err(Unknown::NotRead { trouble, .. }) => trouble.is_absent(),
            Err(Unknown::NotReported { .. }) => true,
            _ => false,
        };
        if absent && other.0.is_ok() {
            other
        } else {
            self
        }
    }

    pub(crate) fn count(&self, field: &str) -> Fact<Figure<u64>> {
        self.doc()?.count(field)
    }

    pub(crate) fn number(&self, field: &str, low: u64, high: u64) -> Fact<Figure<u64>> {
        self.doc()?.number(field, low, high)
    }

    pub(crate) fn text(&self, field: &str) -> Fact<Figure<String>> {
        self.doc()?.text(field)
    }

    pub(crate) fn switch(&self, field: &str) -> Fact<Figure<bool>> {
        self.doc()?.switch(field)
    }

    pub(crate) fn setting(&self, field: &str) -> Fact<Figure<String>> {
        self.doc()?.setting(field)
    }

    /// A setting of any type; `none` where it is off.
    pub(crate) fn plain(&self, field: &str) -> Fact<Figure<String>> {
        let doc = self.doc()?;
        let figure = doc.plain(field);
        figure.map_or_else(|| not_reported(&doc.source(field).to_string()), Ok)
    }

    pub(crate) fn version(&self, field: &str) -> Fact<Figure<Version>> {
        let text = self.text(field)?;
        let version = Version::read(&text.value).map_err(|why| {
            crate::facts::json::absurd(&text.value, text.source.clone(), &why.to_string())
        })?;
        Ok(Figure::new(version, text.source))
    }

    pub(crate) fn len(&self, field: &str) -> usize {
        self.0.as_ref().map_or(0, |doc| doc.len(field))
    }

    pub(crate) fn has(&self, field: &str) -> bool {
        self.0.as_ref().is_ok_and(|doc| doc.at(field).is_some())
    }
}

/// Endpoints that every server is asked first: path and query.
pub const FIRST: [(&str, &str); 4] = [
    ("/v1/models", ""),
    ("/metrics", ""),
    ("/server_info", "?config_format=json"),
    ("/version", ""),
];

/// What to ask next, given what has come; empty when everything of use has been asked. None of
/// these changes anything on any engine.
pub fn next(answers: &ServerAnswers) -> Vec<(&'static str, &'static str)> {
    let engine = recognise(answers).map(|it| it.value);
    let wanted: &[(&str, &str)] = match engine {
        Ok(Engine::Sglang) => &[
            ("/v1/loads", "?include=core,memory,disagg"),
            ("/model_info", ""),
            ("/get_server_info", ""),
        ],
        Ok(Engine::LlamaCpp) => &[("/props", ""), ("/slots", "")],
        Ok(_) => &[],
        Err(_) => &[("/props", ""), ("/info", ""), ("/get_server_info", "")],
    };
    // The old name is deprecated, and asking for it makes the server log a warning.
    let info = answers.get("/server_info");
    let has_info = matches!(info, Some(Ok(_)));
    let wanted = wanted.iter().filter(|(path, _)| {
        answers.get(path).is_none() && !(*path == "/get_server_info" && has_info)
    });
    wanted.copied().collect()
}

/// Everything that a server says about itself: one node, or one a worker for a Cofferdam gateway.
pub fn read(name: &str, answers: &ServerAnswers) -> Vec<Node> {
    let mut nodes = match recognise(answers) {
        Err(why) => vec![Node::unknown(name, why)],
        Ok(engine) => match engine.value {
            Engine::Sglang => vec![crate::facts::sglang::read(name, answers, engine)],
            Engine::Vllm => vec![crate::facts::vllm::read(name, answers, engine)],
            Engine::LlamaCpp => vec![crate::facts::llama::read(name, answers, engine)],
            Engine::Cofferdam => crate::facts::own::read(name, answers, engine),
            other => vec![not_supported(name, other, engine)],
        },
    };
    for node in &mut nodes {
        node.probes = answers.probes();
    }
    nodes
}

fn not_supported(name: &str, engine: Engine, figure: Figure<Engine>) -> Node {
    let why = Unknown::NotSupported {
        engine: engine.name().to_owned(),
    };
    let mut node = Node::unknown(name, why);
    node.engine = Ok(figure);
    node
}

/// Which software this is. Engines that wrap others (Dynamo runs vLLM inside) are recognised by
/// their own marks, whatever else is there.
fn recognise(answers: &ServerAnswers) -> Fact<Figure<Engine>> {
    let mut votes = vec![by_owner(answers), by_metrics(answers)];
    votes.extend(BODIES.iter().map(|it| by_body(answers, it)));
    if let Some(router) = router(answers) {
        return Err(router);
    }
    let is_wrapper =
        |it: &Fact<Figure<Engine>>| it.as_ref().is_ok_and(|it| !it.value.is_supported());
    if votes.iter().any(is_wrapper) {
        votes.retain(is_wrapper);
    }
    agreed(votes, &mut Vec::<Warning>::new())
}

fn by_owner(answers: &ServerAnswers) -> Fact<Figure<Engine>> {
    let page = answers.page("/v1/models");
    let owner = page.text("data[0].owned_by")?;
    let engine = match owner.value.as_str() {
        "sglang" => Engine::Sglang,
        "vllm" => Engine::Vllm,
        "llamacpp" => Engine::LlamaCpp,
        "cofferdam" => Engine::Cofferdam,
        "tensorrt_llm" => Engine::TensorrtLlm,
        "nvidia" => Engine::Dynamo,
        _ => return unrecognised(&owner.source),
    };
    Ok(Figure::new(engine, owner.source))
}

fn by_metrics(answers: &ServerAnswers) -> Fact<Figure<Engine>> {
    const MARKS: [(&str, Engine); 7] = [
        ("dynamo_", Engine::Dynamo),
        ("trtllm_", Engine::TensorrtLlm),
        ("tgi_", Engine::Tgi),
        ("sglang:", Engine::Sglang),
        ("vllm:", Engine::Vllm),
        ("llamacpp:", Engine::LlamaCpp),
        ("cofferdam_", Engine::Cofferdam),
    ];
    let metrics = answers.metrics()?;
    let mut marks = MARKS
        .iter()
        .filter(|(prefix, _)| metrics.has_prefix(prefix));
    match marks.next() {
        Some((prefix, engine)) => {
            let source = metrics.source(format!("{prefix}*"));
            Ok(Figure::new(*engine, source))
        }
        None => unrecognised(&metrics.source("names of metrics".into())),
    }
}

/// Path, fields that must all be there, and the engine that they give away.
const BODIES: [(&str, &[&str], Engine); 6] = [
    ("/server_info", &["vllm_config"], Engine::Vllm),
    ("/server_info", &["gateway", "workers"], Engine::Cofferdam),
    (
        "/server_info",
        &["internal_states", "model_path"],
        Engine::Sglang,
    ),
    (
        "/get_server_info",
        &["max_total_num_tokens", "model_path"],
        Engine::Sglang,
    ),
    (
        "/props",
        &["default_generation_settings", "total_slots"],
        Engine::LlamaCpp,
    ),
    (
        "/info",
        &["model_id", "max_input_tokens", "router"],
        Engine::Tgi,
    ),
];

fn by_body(
    answers: &ServerAnswers,
    (path, fields, engine): &(&str, &[&str], Engine),
) -> Fact<Figure<Engine>> {
    let page = answers.page(path);
    let source = page.doc()?.source(fields[0]);
    if fields.iter().all(|it| page.has(it)) {
        return Ok(Figure::new(*engine, source));
    }
    unrecognised(&source)
}

/// SGLang's router has no pool of its own, and answers in the name of whichever worker it likes.
fn router(answers: &ServerAnswers) -> Option<Unknown> {
    let page = answers.page("/server_info");
    let old = answers.page("/get_server_info");
    let metrics = answers.metrics();
    let is_router = page.has("router_manager")
        || old.has("router_manager")
        || metrics.is_ok_and(|it| it.has_prefix("smg_"));
    is_router.then(|| Unknown::NotSupported {
        engine: "a router (name its workers instead)".into(),
    })
}

fn unrecognised<T>(source: &FigureSource) -> Fact<T> {
    crate::facts::combine::not_reported(&source.to_string())
}
