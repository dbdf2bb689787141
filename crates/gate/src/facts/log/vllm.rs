//! Start-up lines of vLLM: 0.32 from recordings, older ones as far as they are the same.

use super::line::Line;
use super::source;
use crate::facts::combine::{agreed, contradiction, derived, measured, not_reported, smallest};
use crate::facts::figure::{Declared, Fact, Figure, FigureSource, Unknown};
use crate::facts::json::absurd;
use crate::facts::node::{Aside, Engine, Node, Rank, Role, Warning};
use crate::facts::particulars::{self, VLLM_LOG};
use crate::facts::sglang::RANKS_MAX;
use crate::facts::version::Version;
use crate::facts::vllm::tokenizing;
use crate::facts::weights::{DEFAULT, SAME_WEIGHTS, Setting, quantization, together};
use std::collections::BTreeMap;

const ARGS: &str = "non-default args: ";
const INIT: &str = "LLM engine (v";
const SIZE: &str = "KV cache size: ";
const EACH: &str = "Maximum concurrency for ";
/// Arguments that change what is computed, as people call them and as they are printed.
const GIVEN: [(&str, &str); 11] = [
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
    ("load options", "model_loader_extra_config"),
];
/// Arguments of which each names a further place for KV, and what it is.
const FURTHER: [(&str, &str); 2] = [
    ("kv_offloading_size", "KV that is offloaded to the host"),
    (
        "ec_transfer_config",
        "embeddings of images that are kept or shared",
    ),
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
    block_size: Option<Fact<Figure<u64>>>,
    data: Option<Fact<Figure<u64>>>,
    node: Option<Box<Node>>,
    /// Of the model's configuration: arguments that are not given are not printed.
    /// What [`GIVEN`] names.
    given: [Option<Figure<String>>; 11],
    /// Layers that keep the model's type, if they were given.
    skipped: Option<String>,
    /// What is kept beside the pool.
    asides: Vec<Aside>,
}

impl Scan {
    pub(super) fn mark(&self) -> Option<&FigureSource> {
        self.mark.as_ref()
    }

    pub(super) fn take(&mut self, line: &Line) {
        if line.text.contains(ARGS) {
            self.start(line);
        } else if line.text.contains(INIT) {
            self.engine(line);
        } else if line.text.contains(SIZE) && line.text.contains(" tokens") {
            self.mark.get_or_insert_with(|| source(line, SIZE));
            self.pools
                .entry(rank(line))
                .or_default()
                .extend(line.count(SIZE));
            self.contexts.extend(line.count(EACH));
        } else if line.text.contains(EACH) {
            self.contexts.extend(line.count(EACH)); // before 0.10 a line of its own
        } else if line.text.contains("Overriding num_gpu_blocks=") {
            let blocks = line.count(OVERRIDE).and_then(Result::ok);
            let declared = blocks.map(|it| Declared::new(it.value, it.source));
            self.facts().declared_pool = declared;
        } else if let Some(layout) = line
            .after("Using ")
            .and_then(|it| it.strip_suffix(" KV cache layout."))
        {
            self.facts().layout = Ok(Figure::new(
                layout.to_owned(),
                source(line, "KV cache layout"),
            ));
        } else if line.text.contains(REFUSED) {
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
        let part = |key| line.literal(key).unwrap_or("unsaid").to_owned();
        let server = Figure::new(format!("port {}", part("port")), source(line, ARGS));
        let mut fresh = Scan {
            mark: Some(source(line, ARGS)),
            mixed: self.mixed.take(),
            ..Scan::default()
        };
        if let Some(before) = self.server.take().filter(|it| it.value != server.value) {
            fresh.mixed = Some(contradiction(
                &before,
                &server,
                "a log is that of one server",
            ));
        }
        fresh.server = Some(server);
        fresh.block_size = line.literal_count("block_size");
        fresh.given = GIVEN.map(|(_, key)| Some(given(line, key)));
        let node = fresh.facts();
        node.template = Ok(given(line, "chat_template"));
        let skipped = Some(given(line, "kv_cache_dtype_skip_layers").value);
        fresh.skipped = skipped.filter(|it| !matches!(it.as_str(), DEFAULT | "[]" | "None"));
        let node = fresh.facts();
        let declared = line.literal_count("max_model_len").and_then(Result::ok);
        node.declared_context = declared.map(|it| Declared::new(it.value, it.source));
        node.backend = text(line, "kv_connector");
        let store = crate::facts::vllm::store(&node.backend);
        fresh.asides.extend(store.clone());
        for (key, what) in FURTHER {
            let says = given(line, key);
            if !matches!(says.value.as_str(), DEFAULT | "None" | "0" | "0.0") {
                fresh.asides.push(Aside {
                    what: what.to_owned(),
                    tokens: None,
                    source: says.source,
                });
            }
        }
        let node = fresh.facts();
        node.role = match line.literal_text("kv_role") {
            Some(role) => crate::facts::vllm::kv_role(role, store),
            None if line.text.contains("kv_transfer_config") => absent("kv_role"),
            None => Ok(Figure::new(
                Role::Whole,
                source(line, "no kv_transfer_config in args"),
            )),
        };
        *self = fresh;
    }

    /// `Initializing a V1 LLM engine (v0.32.0) with config: model='…', …`, once an engine.
    fn engine(&mut self, line: &Line) {
        self.mark.get_or_insert_with(|| source(line, INIT));
        let version = line.after(INIT).and_then(|it| it.split_once(')'));
        let version = version.map(|(text, _)| (text, Version::read(text)));
        self.data = line.literal_count("data_parallel_size");
        self.contexts.extend(line.literal_count("max_seq_len"));
        let count = |key: &str| line.literal_count(key).unwrap_or_else(|| absent(key));
        let setting = |name, key: &str| Setting {
            name,
            says: line.setting(key).map_or_else(|| absent(key), Ok),
            plain: &[],
            may_lack: false,
        };
        let given = GIVEN.iter().zip(self.given.clone());
        let given = given.map(|((name, key), says)| Setting {
            says: says.map_or_else(|| absent(ARGS), Ok),
            plain: &[DEFAULT],
            ..setting(name, key)
        });
        let mut settings = vec![
            Setting {
                plain: &["main"],
                ..setting("revision", "revision")
            },
            Setting {
                says: quantization(setting("quantization", "quantization").says),
                ..setting("quantization", "quantization")
            },
            Setting {
                plain: &SAME_WEIGHTS,
                may_lack: true,
                ..setting("load format", "load_format")
            },
        ];
        settings.extend(given);
        let weights = together(settings);
        let drafts = line
            .setting("speculative_config")
            .filter(|it| it.value != "none");
        self.asides.extend(drafts.map(|it| Aside {
            what: "drafts of speculative decoding".to_owned(),
            tokens: None,
            source: it.source,
        }));
        let node = self.facts();
        node.weights = weights;
        node.asides = Ok(Vec::new());
        node.version = match version {
            Some((_, Ok(version))) => Ok(Figure::new(version, source(line, INIT))),
            Some((text, Err(why))) => Err(absurd(text, source(line, INIT), &why.to_string())),
            None => absent(INIT),
        };
        node.model = text(line, "model");
        node.tokenizer = text(line, "tokenizer");
        node.model_dtype = text(line, "dtype");
        node.kv_dtype = text(line, "kv_cache_dtype");
        node.tokenizing = tokenizing(&|key| line.setting(key).map_or_else(|| absent(key), Ok));
        node.particulars = particulars::read(&VLLM_LOG, |key| line.setting(key));
        node.parallelism.tensor = count("tensor_parallel_size");
        node.parallelism.pipeline = count("pipeline_parallel_size");
        node.parallelism.data = count("data_parallel_size");
        node.parallelism.context = count("decode_context_parallel_size");
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
        if let Ok(asides) = &mut node.asides {
            asides.append(&mut self.asides);
        }
        if let (Ok(dtype), Some(layers)) = (&mut node.kv_dtype, self.skipped.take()) {
            crate::facts::vllm::leave_out(dtype, &layers);
        }
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
        node.page_size = self
            .block_size
            .clone()
            .unwrap_or_else(|| absent("block_size"));
        node.ranks = Ok(self.ranks(&node.page_size, &mut warnings));
        node.warnings = warnings;
        if let Ok(version) = &node.version {
            let never = |why: &str| Ok(derived(false, why, vec![version.source.clone()]));
            node.truncates = never("vLLM cuts a prompt only if its request asks for it");
            node.checksum = never("vLLM has no KV checksum");
        }
        node
    }

    fn ranks(&mut self, block: &Fact<Figure<u64>>, warnings: &mut Vec<Warning>) -> Vec<Rank> {
        let seen = self.pools.keys().max().map_or(1, |last| last + 1);
        let data = self
            .data
            .take()
            .unwrap_or_else(|| absent("data_parallel_size"));
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

fn text(line: &Line, key: &str) -> Fact<Figure<String>> {
    line.literal_text(key).map_or_else(|| absent(key), Ok)
}

/// An argument that is printed only where it was given, up to the end of its value.
fn given(line: &Line, key: &str) -> Figure<String> {
    let Some(rest) = line.after(&format!("'{key}': ")) else {
        return Figure::new(DEFAULT.to_owned(), source(line, ARGS));
    };
    let (mut depth, mut quote) = (0, None);
    let end = rest.find(|c: char| {
        match (c, quote) {
            (c, Some(it)) if c == it => quote = None,
            (_, Some(_)) => {}
            ('\'' | '"', None) => quote = Some(c),
            ('{' | '[' | '(', None) => depth += 1,
            ('}' | ']' | ')', None) => depth -= 1,
            _ => {}
        }
        depth < 0 || (depth == 0 && c == ',' && quote.is_none())
    });
    let value = &rest[..end.unwrap_or(rest.len())];
    let value = value.chars().filter(|it| !it.is_control()).take(1000);
    Figure::new(value.collect(), source(line, key))
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
