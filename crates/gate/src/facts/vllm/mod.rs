//! vLLM: 0.32 from recordings, older versions by the labels that their metrics had.

use crate::facts::answers::{Page, ServerAnswers};
use crate::facts::combine::{agreed, contradiction, derived, measured, not_reported, smallest};
use crate::facts::figure::{Declared, Fact, Figure, Measured, Unknown};
use crate::facts::guard;
use crate::facts::json::absurd;
use crate::facts::life;
use crate::facts::models::{adapters, advertised};
use crate::facts::node::{Aside, Engine, Node, Parallelism, Rank, Role, Warning};
use crate::facts::particulars::{self, VLLM};
use crate::facts::prometheus::{Metrics, Sample};
use crate::facts::version::that_answers;
use crate::facts::weights::{SAME_WEIGHTS, Setting, quantization, together};
use std::collections::BTreeMap;

mod beside;

pub(crate) use beside::{further, store};

const RANKS_MAX: u64 = 4096;
const CONFIG: &str = "vllm:cache_config_info";
const KEYS: [&str; 1] = ["engine"];

pub(crate) fn read(name: &str, answers: &ServerAnswers, engine: Figure<Engine>) -> Node {
    let info = answers.page("/server_info");
    let metrics = answers.metrics();
    let looked = vec!["what vLLM reports".to_owned()];
    let mut node = Node::unknown(name, Unknown::NotReported { looked });
    let mut warnings = Vec::new();
    node.engine = Ok(engine);
    node.version = that_answers(answers.page("/version").version("version"));
    identity(answers, &info, &mut node);
    lengths(answers, &info, &mut node, &mut warnings);
    pools(&info, &metrics, &mut node, &mut warnings);
    node.asides = beside::read(&info, &metrics);
    node.transfers = transfers(&metrics, beside::keeps(&node.asides));
    node.role = role(&info, &node.transfers);
    if let Ok(version) = &node.version {
        let never = |why: &str| Ok(derived(false, why, vec![version.source.clone()]));
        node.truncates = never("vLLM cuts a prompt only if its request asks for it");
        node.checksum = never("vLLM has no KV checksum");
    }
    node.life = life::read(answers, &info);
    node.guard = guard::version(&metrics, "cofferdam_guard_info", "version");
    node.open_introspection = answers.open_introspection(&["/server_info"]);
    node.warnings = warnings;
    node
}

fn identity(answers: &ServerAnswers, info: &Page, node: &mut Node) {
    let models = answers.page("/v1/models");
    let config = |field: &str| info.text(&format!("vllm_config.{field}"));
    node.model = models
        .text("data[0].root")
        .or_else(|_| config("model_config.model"));
    node.tokenizer = config("model_config.tokenizer");
    node.weights = weights(info, &models);
    node.model_dtype = config("model_config.dtype");
    node.template = not_reported("the chat template, which vLLM tells in its start-up log only");
    node.tokenizing =
        tokenizing(&|field| info.setting(&format!("vllm_config.model_config.{field}")));
    if let Ok(doc) = info.doc() {
        let says = |field: &str| doc.plain(&format!("vllm_config.{field}"));
        node.particulars = particulars::read(&VLLM, says);
    }
    node.backend = config("kv_transfer_config.kv_connector");
    let ranks = |field: &str| {
        info.number(
            &format!("vllm_config.parallel_config.{field}"),
            1,
            RANKS_MAX,
        )
    };
    node.parallelism = Parallelism {
        tensor: ranks("tensor_parallel_size"),
        pipeline: ranks("pipeline_parallel_size"),
        data: ranks("data_parallel_size"),
        context: ranks("decode_context_parallel_size"),
    };
    node.max_running = info.count("vllm_config.scheduler_config.max_num_seqs");
}

/// What else than its name decides what the weights are.
fn weights(info: &Page, models: &Page) -> Fact<Figure<String>> {
    let own = |name, field: &str, may_lack| Setting {
        name,
        says: info.setting(&format!("vllm_config.{field}")),
        plain: &[],
        may_lack,
    };
    let on = |name, field: &str| Setting {
        says: info
            .switch(&format!("vllm_config.{field}"))
            .map(|it| Figure::new(it.value.to_string(), it.source)),
        plain: &["false"],
        ..own(name, field, true)
    };
    together(vec![
        Setting {
            plain: &["main"],
            ..own("revision", "model_config.revision", false)
        },
        Setting {
            says: quantization(info.setting("vllm_config.model_config.quantization")),
            ..own("quantization", "model_config.quantization", false)
        },
        own("overrides", "model_config.hf_overrides", false),
        own("RoPE scaling", "model_config.rope_scaling", true),
        Setting {
            says: info.plain("vllm_config.model_config.rope_theta"),
            ..own("RoPE theta", "model_config.rope_theta", true)
        },
        own("weights", "model_config.model_weights", true),
        own("quantization", "model_config.quantization_config", true),
        Setting {
            plain: &["main"],
            ..own("code", "model_config.code_revision", true)
        },
        own("configuration", "model_config.hf_config_path", true),
        own("adapters", "lora_config", true),
        Setting {
            says: adapters(models),
            ..own("adapters served", "lora_config", true)
        },
        Setting {
            plain: &SAME_WEIGHTS,
            ..own("load format", "load_config.load_format", true)
        },
        on("windows off", "model_config.disable_sliding_window"),
        on("KV scales", "cache_config.calculate_kv_scales"),
    ])
}

/// What has series of its own that only a process with a KV transfer has.
fn mover(metrics: &Metrics) -> Option<Figure<String>> {
    const MARKS: [(&str, &str); 3] = [
        ("vllm:nixl_", "NIXL"),
        ("vllm:mooncake_", "Mooncake"),
        ("cofferdam_guard_", "cofferdam-guard"),
    ];
    let (prefix, name) = MARKS.into_iter().find(|(it, _)| metrics.has_prefix(it))?;
    let source = metrics.source(format!("{prefix}*"));
    Some(Figure::new(name.to_owned(), source))
}

/// What else than tokenizer and template decides how many tokens a prompt has.
pub(crate) fn tokenizing(setting: &dyn Fn(&str) -> Fact<Figure<String>>) -> Fact<Figure<String>> {
    let own = |name, field: &str, plain| Setting {
        name,
        says: setting(field),
        plain,
        may_lack: true,
    };
    together(vec![
        Setting {
            may_lack: false,
            ..own("mode", "tokenizer_mode", &["auto"])
        },
        own("revision", "tokenizer_revision", &["main"]),
    ])
}

/// Series that only a process has which hands KV over or takes it: a transfer engine's own, the
/// guard's, and tokens that have come from elsewhere, unless they may come from a tier of its own.
fn transfers(metrics: &Fact<Metrics>, keeps: bool) -> Fact<Figure<String>> {
    let metrics = metrics.as_ref().map_err(Clone::clone)?;
    if let Some(mover) = mover(metrics) {
        return Ok(mover);
    }
    let came = |name: &'static str, from: &'static str| {
        let some = |it: &&Sample| it.value.parse().is_ok_and(|n: f64| n > 0.0);
        let of = metrics.of(name);
        of.filter(move |it| it.label("source") == Some(from))
            .find(some)
    };
    let transferred = came("vllm:prompt_tokens_by_source_total", "external_kv_transfer");
    let other = transferred.filter(|_| !keeps);
    match other.or(came(beside::CACHED, "p2p")) {
        Some(it) => {
            let source = metrics.source(it.describe(&["source"]));
            Ok(Figure::new("KV from another process".to_owned(), source))
        }
        None => not_reported(&metrics.source("series of a KV transfer".into()).to_string()),
    }
}

fn role(info: &Page, transfers: &Fact<Figure<String>>) -> Fact<Figure<Role>> {
    let field = "vllm_config.kv_transfer_config.kv_role";
    let doc = info.doc()?;
    if doc.at("vllm_config.model_config").is_some()
        && doc.at("vllm_config.kv_transfer_config").is_none()
    {
        let whole = Figure::new(Role::Whole, doc.source("vllm_config.kv_transfer_config"));
        return match transfers {
            Ok(seen) => Err(contradiction(
                &whole,
                seen,
                "who hands nothing over has no such series",
            )),
            Err(_) => Ok(whole),
        };
    }
    let connector = info.text("vllm_config.kv_transfer_config.kv_connector");
    kv_role(doc.text(field)?, store(&connector))
}

/// What a connector of this role does, given that it may keep what it moves.
pub(crate) fn kv_role(text: Figure<String>, store: Option<Aside>) -> Fact<Figure<Role>> {
    let role = match (text.value.as_str(), store) {
        ("kv_producer", _) => Role::Prefill,
        ("kv_consumer", _) => Role::Decode,
        ("kv_both", None) => Role::Either,
        ("kv_both", Some(it)) if it.what.contains("Offload") => Role::Whole,
        // For itself, or for others.
        ("kv_both", Some(it)) => {
            return not_reported(&format!(
                "{}, which is kv_both for {}",
                text.source, it.what
            ));
        }
        (other, _) => return Err(absurd(other, text.source, "not a kv_role")),
    };
    Ok(Figure::new(role, text.source))
}

/// vLLM refuses a prompt that leaves no room for one token of an answer.
fn lengths(answers: &ServerAnswers, info: &Page, node: &mut Node, warnings: &mut Vec<Warning>) {
    let told = advertised(&answers.page("/v1/models"));
    node.advertised = told.clone().map(measured);
    let config = info.count("vllm_config.model_config.max_model_len");
    let context = agreed(vec![told, config], warnings);
    node.max_prompt = context.clone().and_then(|it| match it.value {
        1 => Err(absurd("1", it.source, "leaves no room for a prompt")),
        n => Ok(measured(derived(
            n - 1,
            "max_model_len - 1",
            vec![it.source],
        ))),
    });
    node.context = context.map(measured);
}

/// What the configuration of the KV cache says, from one place.
struct Cache {
    blocks: Fact<Figure<u64>>,
    block_size: Fact<Figure<u64>>,
    tokens: Fact<Figure<u64>>,
    /// Tokens that a block of attention holds, where it is told apart from `block_size`.
    unit: Fact<Figure<u64>>,
    /// What shows that there are layers of other kinds.
    kinds: Option<Figure<String>>,
}

fn pools(info: &Page, metrics: &Fact<Metrics>, node: &mut Node, warnings: &mut Vec<Warning>) {
    let field = |it: &str| format!("vllm_config.cache_config.{it}");
    let dev = Cache {
        blocks: info.count(&field("num_gpu_blocks")),
        block_size: info.count(&field("block_size")),
        tokens: info.count(&field("kv_cache_size_tokens")),
        unit: info.count(&field("effective_attention_block_size")),
        kinds: beside::kinds(|it| info.setting(&field(it)).ok()),
    };
    let (mut sizes, mut units) = (vec![dev.block_size.clone()], vec![dev.unit.clone()]);
    let mut engines: BTreeMap<String, Vec<Fact<Figure<u64>>>> = BTreeMap::new();
    let mut looked = Unknown::NotReported {
        looked: vec![CONFIG.into()],
    };
    match metrics {
        Ok(metrics) => {
            for sample in metrics.of(CONFIG).take(RANKS_MAX as usize) {
                let cache = labels(metrics, sample);
                let name = sample
                    .label("engine")
                    .unwrap_or("0")
                    .chars()
                    .take(20)
                    .collect();
                engines
                    .entry(name)
                    .or_default()
                    .push(usable(&cache, warnings));
                sizes.push(cache.block_size);
                units.push(cache.unit);
            }
            told(metrics, info, node, warnings);
        }
        Err(why) => looked = why.clone(),
    }
    node.page_size = agreed(sizes, warnings);
    node.block = agreed(units, warnings);
    let declared = info.count(&field("num_gpu_blocks_override"));
    node.declared_pool = declared.ok().map(|it| Declared::new(it.value, it.source));
    let count = engines_expected(info, engines.len() as u64);
    // A development server tells the same figures a second time.
    if count.as_ref().is_ok_and(|it| *it == 1) && dev.blocks.is_ok() {
        let only = engines.keys().next().cloned().unwrap_or("0".into());
        engines
            .entry(only)
            .or_default()
            .push(usable(&dev, warnings));
    }
    node.ranks = ranks(engines, count, looked, warnings);
}

/// Type, layout and bytes, as far as metrics or a development server tell them.
fn told(metrics: &Metrics, info: &Page, node: &mut Node, warnings: &mut Vec<Warning>) {
    let text = |label: &str, field: &str| {
        let labels = metrics
            .of(CONFIG)
            .map(|it| metrics.label_text(it, label, &KEYS));
        let field = format!("vllm_config.cache_config.{field}");
        labels.chain([info.text(&field)]).collect::<Vec<_>>()
    };
    node.kv_dtype = agreed(text("cache_dtype", "cache_dtype"), warnings);
    let skipped = metrics.of(CONFIG).next();
    let skipped = skipped.and_then(|it| it.label("kv_cache_dtype_skip_layers"));
    if let (Ok(dtype), Some(layers)) = (&mut node.kv_dtype, skipped)
        && !matches!(layers, "" | "[]" | "None")
    {
        leave_out(dtype, layers);
    }
    node.layout = agreed(text("kv_cache_layout", "kv_cache_layout"), warnings);
    // With a number of blocks from a flag, the memory is another one than was set aside.
    let first = metrics.of(CONFIG).next();
    let first = first.filter(|it| it.label("num_gpu_blocks_override") == Some("None"));
    if let Some(first) = first {
        node.kv_bytes = metrics.label_count(first, "kv_cache_memory_bytes", &KEYS);
    }
}

/// Layers that keep the model's type.
pub(crate) fn leave_out(dtype: &mut Figure<String>, layers: &str) {
    if dtype.value != "auto" {
        dtype.value += &format!(", but not in layers {layers}");
    }
}

fn labels(metrics: &Metrics, sample: &Sample) -> Cache {
    let count = |label| metrics.label_count(sample, label, &KEYS);
    Cache {
        blocks: count("num_gpu_blocks"),
        block_size: count("block_size"),
        tokens: count("kv_cache_size_tokens"),
        unit: count("effective_attention_block_size"),
        kinds: beside::kinds(|it| metrics.label_text(sample, it, &KEYS).ok()),
    }
}

/// Tokens that requests can have: one block is never given to any. `kv_cache_size_tokens` (recent
/// versions) knows of layers of several kinds and still counts that block; it is what the engine
/// compares with its context. Without it the pool is blocks times block size, which is a number of
/// tokens only where all layers are of one kind: with several kinds a token takes a block of each
/// (then the product is too large), or a block holds another number of tokens than `block_size`
/// says (then it is too small, by orders of magnitude for models with recurrent layers).
fn usable(cache: &Cache, warnings: &mut Vec<Warning>) -> Fact<Figure<u64>> {
    let blocks = cache.blocks.clone()?;
    let by_blocks = cache.block_size.clone().and_then(|size| {
        let value = (blocks.value - 1).saturating_mul(size.value);
        let from = vec![blocks.source.clone(), size.source.clone()];
        plausible(value, "(num_gpu_blocks - 1) * block_size", from)
    });
    let Ok(tokens) = &cache.tokens else {
        if let Err(why @ Unknown::Absurd(_)) = &cache.tokens {
            return Err(why.clone());
        }
        return match cache.kinds.clone().or_else(|| other_unit(cache)) {
            Some(kinds) => Err(contradiction(
                &kinds,
                &by_blocks?,
                "with layers of several kinds, blocks times block size is no number of tokens",
            )),
            None => by_blocks,
        };
    };
    let value = tokens.value - tokens.value.div_ceil(blocks.value);
    let from = vec![tokens.source.clone(), blocks.source.clone()];
    let by_tokens = plausible(
        value,
        "kv_cache_size_tokens less one of num_gpu_blocks",
        from,
    );
    if let (Ok(one), Ok(other)) = (&by_blocks, &by_tokens)
        && one.value == other.value
    {
        return by_blocks;
    }
    let (Ok(product), Ok(own)) = (&by_blocks, &by_tokens) else {
        return smallest(vec![by_blocks, by_tokens], warnings);
    };
    if product.value < own.value {
        if cache.unit.as_ref().ok().map(|it| it.value)
            == cache.block_size.as_ref().ok().map(|it| it.value)
            && cache.kinds.is_none()
        {
            let rule = "blocks of one kind hold as many tokens as the cache";
            return Err(contradiction(product, own, rule));
        }
        warnings.push(Warning {
            text: format!(
                "{} by blocks, {} by the engine's own count: its blocks are not of block_size \
                 tokens, and its own count is taken",
                product.value, own.value
            ),
            source: own.source.clone(),
        });
    }
    by_tokens
}

/// A block of attention that is none of `block_size`.
fn other_unit(cache: &Cache) -> Option<Figure<String>> {
    let (unit, size) = (cache.unit.as_ref().ok()?, cache.block_size.as_ref().ok()?);
    let other = unit.value != size.value;
    let text = format!("a block of attention of {} tokens", unit.value);
    other.then(|| Figure::new(text, unit.source.clone()))
}

fn plausible(
    value: u64,
    formula: &str,
    from: Vec<crate::facts::FigureSource>,
) -> Fact<Figure<u64>> {
    let figure = derived(value, formula, from);
    match value {
        1..=crate::facts::TOKENS_MAX => Ok(figure),
        _ => Err(absurd(
            &value.to_string(),
            figure.source,
            "not from 1 to 2^40 tokens",
        )),
    }
}

/// How many engines this server's metrics must show: with a balancer outside, only its own.
fn engines_expected(info: &Page, seen: u64) -> Fact<u64> {
    let field = |it: &str| format!("vllm_config.parallel_config.{it}");
    let Ok(size) = info.number(&field("data_parallel_size"), 1, RANKS_MAX) else {
        return Ok(seen.max(1)); // metrics have one row an engine
    };
    let outside = |it: &str| info.switch(&field(it)).is_ok_and(|it| it.value);
    if outside("data_parallel_external_lb") {
        return Ok(seen.max(1));
    }
    if outside("data_parallel_hybrid_lb") {
        let local = info.number(&field("data_parallel_size_local"), 1, RANKS_MAX)?;
        return Ok(local.value.max(seen));
    }
    Ok(size.value.max(seen))
}

/// One rank an engine. With several, `num_gpu_blocks` of every row is the sum over all of them and
/// `kv_cache_size_tokens` that of whichever reported first (read in code, 0.32): the pool of one
/// is not in there.
fn ranks(
    engines: BTreeMap<String, Vec<Fact<Figure<u64>>>>,
    count: Fact<u64>,
    looked: Unknown,
    warnings: &mut Vec<Warning>,
) -> Fact<Vec<Rank>> {
    let count = count?;
    if count == 1 {
        let (name, places) = engines
            .into_iter()
            .next()
            .unwrap_or(("0".into(), vec![Err(looked)]));
        let pool: Fact<Measured<u64>> = smallest(places, warnings).map(measured);
        return Ok(vec![Rank {
            name: format!("engine {name}"),
            pool,
        }]);
    }
    let why = Unknown::NotReported {
        looked: vec![format!(
            "{CONFIG}, which sums blocks over engines (logs tell each engine's)"
        )],
    };
    let names = (0..count).map(|n| format!("engine {n}"));
    Ok(names
        .map(|name| Rank {
            name,
            pool: Err(why.clone()),
        })
        .collect())
}
