//! Start-up lines of vLLM: 0.32 from recordings, older ones as far as they are the same.

use super::line::Line;
use super::{python, settings, source, untold};
use crate::facts::answers::Page;
use crate::facts::combine::{agreed, contradiction, derived, measured, not_reported, smallest};
use crate::facts::figure::{Declared, Fact, Figure, FigureSource, Unknown};
use crate::facts::json::absurd;
use crate::facts::node::{Aside, Engine, Node, Rank, Role, Warning};
use crate::facts::particulars::{self, VLLM_ARGS, VLLM_ENGINE};
use crate::facts::sglang::RANKS_MAX;
use crate::facts::version::Version;
use crate::facts::vllm::{further, kv_role, leave_out, store, tokenizing};
use crate::facts::weights::{SAME_WEIGHTS, Setting, quantization, together};
use std::collections::BTreeMap;

const ARGS: &str = "non-default args: ";
const INIT: &str = "LLM engine (v";
const SIZE: &str = "KV cache size: ";
const EACH: &str = "Maximum concurrency for ";
const CONFIG: &str = " with config: ";
/// Arguments that change what is computed, as people call them and as they are printed.
const GIVEN: [(&str, &str); 10] = [
    ("overrides", "hf_overrides"),
    ("adapters", "lora_modules"),
    ("windows off", "disable_sliding_window"),
    ("KV scales", "calculate_kv_scales"),
    ("RoPE scaling", "rope_scaling"),
    ("RoPE theta", "rope_theta"),
    ("code", "code_revision"),
    ("configuration", "hf_config_path"),
    ("quantization", "quantization_config"),
    ("weights", "model_weights"),
];
const OVERRIDE: &str = "num_gpu_blocks_override=";
const REFUSED: &str = "To serve at least one request with the model";

/// What has been seen of the latest start.
#[derive(Default)]
pub(super) struct Scan {
    mark: Option<FigureSource>,
    server: Option<Figure<String>>,
    mixed: Option<Unknown>,
    pools: BTreeMap<u64, Vec<Fact<Figure<u64>>>>,
    contexts: Vec<Fact<Figure<u64>>>,
    /// What other lines say.
    node: Option<Box<Node>>,
    /// Arguments; those that are not given are not printed.
    args: Option<Page>,
    /// Settings of the engine, and its version.
    engine: Option<(Page, Fact<Figure<Version>>)>,
}

impl Scan {
    pub(super) fn mark(&self) -> Option<&FigureSource> {
        self.mark.as_ref()
    }

    pub(super) fn take(&mut self, line: &Line) {
        if line.says(ARGS) {
            self.start(line);
        } else if line.says(INIT) {
            self.engine(line);
        } else if line.says(SIZE) && line.text.contains(" tokens") {
            self.mark.get_or_insert_with(|| source(line, SIZE));
            self.pools
                .entry(rank(line))
                .or_default()
                .extend(line.count(SIZE));
            self.contexts.extend(line.count(EACH));
        } else if line.says(EACH) {
            self.contexts.extend(line.count(EACH)); // before 0.10 a line of its own
        } else if line.says("Overriding num_gpu_blocks=") {
            let blocks = line.count(OVERRIDE).and_then(Result::ok);
            let declared = blocks.map(|it| Declared::new(it.value, it.source));
            self.facts().declared_pool = declared;
        } else if let Some(layout) = line
            .after("Using ")
            .filter(|_| line.says("Using "))
            .and_then(|it| it.strip_suffix(" KV cache layout."))
        {
            self.facts().layout = Ok(Figure::new(
                layout.to_owned(),
                source(line, "KV cache layout"),
            ));
        } else if line.says(REFUSED) {
            let text =
                "it refused to start: its pool cannot hold one full-length request".to_owned();
            let source = source(line, REFUSED);
            self.facts().warnings.push(Warning { text, source });
        }
    }

    fn facts(&mut self) -> &mut Node {
        self.node.get_or_insert_with(|| Box::new(blank()))
    }

    /// Arguments are printed once a start, by the process that answers.
    fn start(&mut self, line: &Line) {
        let args = Page::of(settings(line, ARGS, python::value));
        let mut fresh = Scan {
            mark: Some(source(line, ARGS)),
            server: self.server.take(),
            mixed: self.mixed.take(),
            ..Scan::default()
        };
        if let Ok(doc) = args.doc() {
            let port = doc.plain("port").map_or("unsaid".to_owned(), |it| it.value);
            let server = Figure::new(format!("port {port}"), source(line, ARGS));
            let before = fresh.server.replace(server.clone());
            if let Some(before) = before.filter(|it| it.value != server.value) {
                let why = contradiction(&before, &server, "a log is that of one server");
                fresh.mixed = Some(why);
            }
        }
        fresh.args = Some(args);
        *self = fresh;
    }

    /// `Initializing a V1 LLM engine (v0.32.0) with config: model='…', …`, once an engine.
    fn engine(&mut self, line: &Line) {
        self.mark.get_or_insert_with(|| source(line, INIT));
        let text = line.after(INIT).and_then(|it| it.split_once(')'));
        let version = match text.map(|(text, _)| (text, Version::read(text))) {
            Some((_, Ok(version))) => Ok(Figure::new(version, source(line, INIT))),
            Some((text, Err(why))) => Err(absurd(text, source(line, INIT), &why.to_string())),
            None => absent(INIT),
        };
        let page = Page::of(settings(line, CONFIG, python::settings));
        self.contexts.push(page.count("max_seq_len"));
        self.engine = Some((page, version));
    }

    /// The description of the latest start.
    pub(super) fn node(mut self, name: &str) -> Node {
        if let Some(why) = self.mixed.take() {
            return Node::unknown(name, why);
        }
        let mut node = *self.node.take().unwrap_or_else(|| Box::new(blank()));
        node.name = name.to_owned();
        let mark = self.mark.take();
        node.engine = mark.map_or_else(|| absent(ARGS), |it| Ok(Figure::new(Engine::Vllm, it)));
        let args = self.args.take().unwrap_or_else(|| untold(ARGS));
        given(&args, &mut node);
        let (engine, version) = self
            .engine
            .take()
            .unwrap_or_else(|| (untold(INIT), absent(INIT)));
        node.version = version;
        configured(&args, &engine, &mut node);
        node.asides = beside(&args, &engine);
        let mut warnings = std::mem::take(&mut node.warnings);
        let context = agreed(std::mem::take(&mut self.contexts), &mut warnings);
        node.max_prompt = context.clone().and_then(|it| match it.value {
            1 => absent("room for a prompt"),
            n => Ok(measured(derived(
                n - 1,
                "max_model_len - 1",
                vec![it.source],
            ))),
        });
        node.context = context.map(measured);
        node.page_size = args.count("block_size");
        let data = engine.count("data_parallel_size");
        node.ranks = Ok(self.ranks(data, &node.page_size, &mut warnings));
        node.warnings = warnings;
        if let Ok(version) = &node.version {
            let never = |why: &str| Ok(derived(false, why, vec![version.source.clone()]));
            node.truncates = never("vLLM cuts a prompt only if its request asks for it");
            node.checksum = never("vLLM has no KV checksum");
        }
        node
    }

    fn ranks(
        &mut self,
        data: Fact<Figure<u64>>,
        block: &Fact<Figure<u64>>,
        warnings: &mut Vec<Warning>,
    ) -> Vec<Rank> {
        let seen = self.pools.keys().max().map_or(1, |last| last + 1);
        let count = data.as_ref().map_or(seen, |it| it.value.max(seen));
        let mut ranks = Vec::new();
        for n in 0..count.min(RANKS_MAX) {
            let places = self.pools.remove(&n).unwrap_or_else(|| vec![absent(SIZE)]);
            let pool = smallest(places, warnings).and_then(|it| usable(&it, block));
            let name = format!("engine {n}");
            ranks.push(Rank {
                name,
                pool: pool.map(measured),
            });
        }
        ranks.extend(data.err().map(crate::facts::sglang::expected));
        ranks
    }
}

/// One block is never given to a request, and a log tells its size only if it was set.
fn usable(tokens: &Figure<u64>, block: &Fact<Figure<u64>>) -> Fact<Figure<u64>> {
    let block = block.clone()?;
    match tokens.value.checked_sub(block.value) {
        Some(value) if value > 0 => {
            let from = vec![tokens.source.clone(), block.source];
            Ok(derived(value, "KV cache size - block_size", from))
        }
        _ => Err(contradiction(
            tokens,
            &block,
            "a pool has more than one block",
        )),
    }
}

/// What arguments say alone.
fn given(args: &Page, node: &mut Node) {
    let declared = args.count("max_model_len").ok();
    node.declared_context = declared.map(|it| Declared::new(it.value, it.source));
    let own = |name, field: &str| Setting {
        name,
        says: argument(args, field),
        plain: &["auto"],
        may_lack: false,
    };
    node.template = together(vec![
        own("template", "chat_template"),
        own("arguments", "default_chat_template_kwargs"),
        own("form", "chat_template_content_format"),
    ]);
    let (connector, role) = (field(args, "kv_connector"), field(args, "kv_role"));
    node.backend = connector.clone();
    node.role = match args.doc() {
        Err(why) => Err(why),
        Ok(doc) if doc.at(TRANSFER).is_none() => Ok(Figure::new(
            Role::Whole,
            doc.source("no kv_transfer_config in args"),
        )),
        Ok(_) => role.and_then(|it| kv_role(it, store(&connector))),
    };
}

const TRANSFER: &str = "kv_transfer_config";

fn field(args: &Page, name: &str) -> Fact<Figure<String>> {
    args.text(&format!("{TRANSFER}.{name}"))
}

/// An argument; `none` where it was not given.
fn argument(args: &Page, field: &str) -> Fact<Figure<String>> {
    let doc = args.doc()?;
    let none = || Figure::new("none".to_owned(), doc.source(ARGS));
    Ok(doc.plain(field).unwrap_or_else(none))
}

/// What the engine makes of them.
fn configured(args: &Page, engine: &Page, node: &mut Node) {
    node.weights = weights(args, engine);
    node.model = engine.text("model");
    node.tokenizer = engine.text("tokenizer");
    node.model_dtype = engine.text("dtype");
    node.kv_dtype = engine.text("kv_cache_dtype");
    if let (Ok(dtype), Ok(layers)) = (
        &mut node.kv_dtype,
        argument(args, "kv_cache_dtype_skip_layers"),
    ) && layers.value != "none"
    {
        leave_out(dtype, &layers.value);
    }
    node.tokenizing = tokenizing(&|key| engine.plain(key));
    let told = |page: &Page, key: &str| page.doc().ok()?.plain(key);
    node.particulars = particulars::read(&VLLM_ENGINE, |key| told(engine, key));
    let more = particulars::read(&VLLM_ARGS, |key| {
        let unless = particulars::default(key);
        let unless =
            |doc: &crate::facts::json::Doc| Figure::new(unless.to_owned(), doc.source(ARGS));
        args.doc()
            .ok()
            .map(|doc| doc.plain(key).unwrap_or_else(|| unless(doc)))
    });
    node.particulars.made.extend(more.made);
    node.particulars.types.extend(more.types);
    let ranks = |key: &str| engine.number(key, 1, RANKS_MAX);
    node.parallelism.tensor = ranks("tensor_parallel_size");
    node.parallelism.pipeline = ranks("pipeline_parallel_size");
    node.parallelism.data = ranks("data_parallel_size");
    node.parallelism.context = ranks("decode_context_parallel_size");
}

/// As over HTTP: under the same names, what is told there.
fn weights(args: &Page, engine: &Page) -> Fact<Figure<String>> {
    let own = |name, key: &str| Setting {
        name,
        says: engine.plain(key),
        plain: &["main"],
        may_lack: false,
    };
    let mut settings = vec![
        own("revision", "revision"),
        Setting {
            says: quantization(engine.plain("quantization")),
            ..own("quantization", "quantization")
        },
        Setting {
            plain: &SAME_WEIGHTS,
            may_lack: true,
            ..own("load format", "load_format")
        },
    ];
    settings.extend(GIVEN.map(|(name, key)| Setting {
        says: argument(args, key),
        plain: &["main", "false"],
        ..own(name, key)
    }));
    together(settings)
}

/// What is kept beside the pool: arguments must tell of tiers and connectors, and the engine of
/// drafts.
fn beside(args: &Page, engine: &Page) -> Fact<Vec<Aside>> {
    let mut asides = Vec::new();
    let doc = args.doc()?;
    further(
        doc,
        |path| {
            path.strip_prefix("cache_config.")
                .unwrap_or(path)
                .to_owned()
        },
        &mut asides,
    );
    if doc.at(TRANSFER).is_some() {
        asides.extend(store(&Ok(field(args, "kv_connector")?)));
    }
    let drafts = engine.plain("speculative_config")?;
    if drafts.value != "none" {
        asides.push(Aside {
            what: "drafts of speculative decoding".to_owned(),
            tokens: None,
            source: drafts.source,
        });
    }
    Ok(asides)
}

fn blank() -> Node {
    let looked = vec!["start-up lines of vLLM".to_owned()];
    Node::unknown("", Unknown::NotReported { looked })
}

fn absent<T>(key: &str) -> Fact<T> {
    not_reported(&format!("{key} in the log"))
}

/// `(EngineCore_DP1 pid=7)`, `(EngineCore_1 pid=7)`: the data-parallel rank, 0 if there is none.
fn rank(line: &Line) -> u64 {
    let Some(rest) = line.after("(EngineCore") else {
        return 0;
    };
    let name = rest.split([' ', ')']).next().unwrap_or_default();
    let digits = name.trim_start_matches(['_', 'D', 'P']);
    digits
        .parse()
        .ok()
        .filter(|it| *it < RANKS_MAX)
        .unwrap_or(0)
}
