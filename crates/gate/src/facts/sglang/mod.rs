//! SGLang: 0.5.19 and 0.5.23 from recordings, 0.4.6 to 0.5.18 as its code was read
//! (docs/fleet.md has the table).

mod beside;
mod ranks;
mod switches;

use crate::facts::answers::{Page, ServerAnswers};
use crate::facts::combine::{agreed, contradiction, derived, measured, not_reported};
use crate::facts::figure::{Declared, Fact, Figure, Measured, TOKENS_MAX, Unknown};
use crate::facts::guard;
use crate::facts::json::absurd;
use crate::facts::life;
use crate::facts::models::{adapters, advertised};
use crate::facts::node::{Engine, Node, Parallelism, Role, Warning};
use crate::facts::particulars::{self, SGLANG};
use crate::facts::prometheus::Metrics;
use crate::facts::version::that_answers;
use crate::facts::weights::{SAME_WEIGHTS, Setting, quantization, together};
use serde_json::Value;

pub(crate) use beside::settings as settings_beside;
pub(crate) use ranks::{RANKS_MAX, expected, missing};

/// Labels that tell the ranks of one server apart.
pub(crate) const RANK_LABELS: [&str; 3] = ["dp_rank", "pp_rank", "tp_rank"];

/// How much shorter than pool and context a prompt must be: the server keeps one token, takes off
/// five, and refuses what is as long as the rest (measured on 0.5.19 and 0.5.23, the same code
/// since 0.4.6).
pub(crate) const BELOW: u64 = 7;

/// The answers of one SGLang server.
struct Said<'a> {
    info: Page,
    loads: Page,
    models: Page,
    model_info: Page,
    metrics: &'a Fact<Metrics>,
}

pub(crate) fn read(name: &str, answers: &ServerAnswers, engine: Figure<Engine>) -> Node {
    let metrics = answers.metrics();
    let said = Said {
        info: answers
            .page("/server_info")
            .or(answers.page("/get_server_info")),
        loads: answers.page("/v1/loads"),
        models: answers.page("/v1/models"),
        model_info: answers.page("/model_info"),
        metrics: &metrics,
    };
    let looked = vec!["what SGLang reports".to_owned()];
    let mut node = Node::unknown(name, Unknown::NotReported { looked });
    let mut warnings = Vec::new();
    node.engine = Ok(engine);
    identity(&said, &mut node, &mut warnings);
    sizes(&said, &mut node, &mut warnings);
    node.asides = beside::read(&said);
    switches::read(&said, &mut node);
    node.life = life::read(answers, &said.info);
    node.guard = guard::version(&metrics, "cofferdam_guard_ready", "guard");
    node.open_introspection = answers.open_introspection(&["/server_info", "/get_server_info"]);
    said.warn(&mut warnings);
    node.warnings = warnings;
    node
}

/// What it is and what it serves.
fn identity(said: &Said, node: &mut Node, warnings: &mut Vec<Warning>) {
    let Said {
        info,
        loads,
        model_info,
        ..
    } = said;
    node.version = that_answers(agreed(
        vec![info.version("version"), loads.version("version")],
        warnings,
    ));
    let roles = [
        (info, "disaggregation_mode"),
        (loads, "loads[0].disaggregation.mode"),
        (model_info, "disaggregation_mode"),
    ];
    let mut roles: Vec<_> = roles
        .into_iter()
        .map(|(page, field)| role(page.text(field)))
        .collect();
    roles.push(said.metric_role());
    node.role = agreed(roles, warnings);
    // After a change of weights only /model_info names the new ones.
    let either = |field| model_info.text(field).or_else(|_| info.text(field));
    node.model = either("model_path");
    node.tokenizer = either("tokenizer_path");
    let served = adapters(&said.models);
    // After a change of weights at run time.
    node.weights = weights(info, served, model_info.setting("weight_version"));
    computes(info, node);
}

/// How it computes, by settings, which are the same in an answer and in a log.
pub(crate) fn computes(info: &Page, node: &mut Node) {
    node.model_dtype = info.text("dtype");
    node.template = template(info);
    node.tokenizing = tokenizing(info);
    if let Ok(doc) = info.doc() {
        node.particulars = particulars::read(&SGLANG, |field| doc.plain(field));
    }
    let ranks = |field: &str| info.number(field, 1, RANKS_MAX);
    node.parallelism = Parallelism {
        tensor: attention_ranks(&ranks, info.switch("enable_dp_attention")),
        pipeline: ranks("pp_size"),
        data: ranks("dp_size"),
        context: context_ranks(&ranks),
    };
}

/// Ranks that share the heads of one request's KV: fewer than `tp_size` where attention is split
/// over requests.
fn attention_ranks(
    ranks: &dyn Fn(&str) -> Fact<Figure<u64>>,
    split: Fact<Figure<bool>>,
) -> Fact<Figure<u64>> {
    let tensor = ranks("tp_size")?;
    if !split.is_ok_and(|it| it.value) {
        return Ok(tensor);
    }
    let groups = ranks("attn_dp_size").or_else(|_| ranks("dp_size"))?;
    let from = vec![tensor.source.clone(), groups.source.clone()];
    match tensor.value % groups.value {
        0 => Ok(derived(
            tensor.value / groups.value,
            "tp_size by groups of attention",
            from,
        )),
        _ => Err(contradiction(&tensor, &groups, "groups are of equal size")),
    }
}

/// Ranks that share the tokens of one request's KV, in prefill and in decode.
fn context_ranks(ranks: &dyn Fn(&str) -> Fact<Figure<u64>>) -> Fact<Figure<u64>> {
    let attention = ranks("attn_cp_size")?;
    match ranks("dcp_size") {
        Ok(decode) => Ok(derived(
            attention.value * decode.value,
            "attn_cp_size * dcp_size",
            vec![attention.source, decode.source],
        )),
        Err(Unknown::NotReported { .. }) => Ok(attention),
        Err(why) => Err(why),
    }
}

/// Everything beside `model_path` that makes KV of one server noise to another: settings, the
/// adapters that it serves now, and the version that it calls its weights.
pub(crate) fn weights(
    info: &Page,
    adapters: Fact<Figure<String>>,
    version: Fact<Figure<String>>,
) -> Fact<Figure<String>> {
    let own = |name, field: &str, may_lack| Setting {
        name,
        says: info.setting(field),
        plain: &["false"],
        may_lack,
    };
    together(vec![
        Setting {
            plain: &["main"],
            ..own("revision", "revision", false)
        },
        Setting {
            says: quantization(info.setting("quantization")),
            ..own("quantization", "quantization", false)
        },
        own("overrides", "json_model_override_args", false),
        own("KV scales", "quantization_param_path", true),
        own("restored from", "modelopt_checkpoint_restore_path", true),
        own("torchao", "torchao_config", true),
        own("modelopt", "modelopt_quant", true),
        own("adapters", "lora_paths", true),
        Setting {
            says: adapters,
            ..own("adapters served", "lora_paths", true)
        },
        Setting {
            plain: &SAME_WEIGHTS,
            ..own("load format", "load_format", true)
        },
        Setting {
            says: version,
            plain: &["default"],
            ..own("weights", "weight_version", true)
        },
    ])
}

fn template(info: &Page) -> Fact<Figure<String>> {
    let own = |name, field: &str, may_lack| Setting {
        name,
        says: info.setting(field),
        plain: &[],
        may_lack,
    };
    together(vec![
        own("template", "chat_template", false),
        own("template", "hf_chat_template_name", true),
        own("arguments", "default_chat_template_kwargs", true),
    ])
}

/// What else than tokenizer and template decides how many tokens a prompt has.
fn tokenizing(info: &Page) -> Fact<Figure<String>> {
    let own = |name, field: &str| Setting {
        name,
        says: info.setting(field),
        plain: &[],
        may_lack: true,
    };
    together(vec![
        Setting {
            plain: &["auto"],
            may_lack: false,
            ..own("mode", "tokenizer_mode")
        },
        Setting {
            plain: &["huggingface"],
            ..own("library", "tokenizer_backend")
        },
        own("template of completions", "completion_template"),
        own("images", "mm_process_config"),
    ])
}

/// `null`, `prefill` and `decode`.
pub(crate) fn role(text: Fact<Figure<String>>) -> Fact<Figure<Role>> {
    let text = text?;
    let role = match text.value.as_str() {
        "null" | "unified" => Role::Whole,
        "prefill" => Role::Prefill,
        "decode" => Role::Decode,
        other => {
            return Err(absurd(
                other,
                text.source,
                "neither null, prefill nor decode",
            ));
        }
    };
    Ok(Figure::new(role, text.source))
}

/// Pools, pages and lengths.
fn sizes(said: &Said, node: &mut Node, warnings: &mut Vec<Warning>) {
    let Said {
        info,
        loads,
        models,
        ..
    } = said;
    node.ranks = ranks::read(said, warnings);
    node.declared_pool = declared(info, "max_total_tokens");
    node.declared_context = declared(info, "context_length");
    node.page_size = agreed(
        vec![info.count("page_size"), said.metric("sglang:page_size")],
        warnings,
    );
    node.advertised = advertised(models).map(measured);
    // A declared context that is another number only raises what is needed; what cannot be read
    // may be any.
    let declared = info.count("context_length");
    let unread = declared.and_then(|_| not_reported("context_length"));
    let context = agreed(
        vec![
            advertised(models),
            said.metric("sglang:context_len"),
            unread,
        ],
        warnings,
    );
    // The server's own limit on prompts is below its context, whatever else it says.
    let input = info.number("max_req_input_len", 2, TOKENS_MAX);
    node.context = match (context, &input) {
        (Ok(context), Ok(input)) if input.value >= context.value => Err(contradiction(
            input,
            &context,
            "a longest prompt is below the context",
        )),
        (context, _) => context.map(measured),
    };
    node.max_prompt = max_prompt(node, input);
    let running = "internal_states[0].effective_max_running_requests_per_dp";
    let running = [
        info.count(running),
        loads.count("loads[0].max_running_requests"),
    ];
    node.max_running = agreed(running.into(), warnings);
    node.kv_bytes = kv_bytes(info);
}

pub(crate) fn declared(info: &Page, field: &str) -> Option<Declared<u64>> {
    let figure = info.count(field).ok()?;
    Some(Declared::new(figure.value, figure.source))
}

/// The server reports the limit of rank 0, and refuses what is as long. Ranks with other pools
/// have other limits; the smallest is what every rank accepts.
fn max_prompt(node: &Node, input: Fact<Figure<u64>>) -> Fact<Measured<u64>> {
    let input = input?;
    let pool = node.smallest_pool()?;
    let reported = derived(
        input.value - 1,
        "max_req_input_len - 1",
        vec![input.source.clone()],
    );
    if node.ranks.as_ref().is_ok_and(|ranks| ranks.len() > 1) {
        let context = node.context.as_ref().map_err(Clone::clone)?;
        let value = context.value.min(pool.value).saturating_sub(BELOW);
        if value < reported.value {
            let from = vec![context.source.clone(), pool.source.clone()];
            return Ok(measured(derived(
                value,
                "min(context, smallest pool) - 7",
                from,
            )));
        }
    } else if input.value >= pool.value {
        return Err(contradiction(
            &input,
            pool,
            "a longest prompt is below the pool",
        ));
    }
    Ok(measured(reported))
}

/// `memory_usage.kvcache` is in GB, rounded to a thousandth: 0 says nothing.
fn kv_bytes(info: &Page) -> Fact<Figure<u64>> {
    let field = "internal_states[0].memory_usage.kvcache";
    let doc = info.doc()?;
    let gib = doc.at(field).and_then(Value::as_f64).unwrap_or(0.0);
    if !(0.001..=1e6).contains(&gib) {
        return not_reported(&doc.source(field).to_string());
    }
    let bytes = (gib * 1024.0 * 1024.0 * 1024.0) as u64;
    Ok(derived(bytes, "GB * 2^30", vec![doc.source(field)]))
}

impl Said<'_> {
    /// A gauge that every rank repeats, and that all must agree on.
    fn metric(&self, name: &str) -> Fact<Figure<u64>> {
        let metrics = self.metrics.as_ref().map_err(Clone::clone)?;
        let places = metrics.of(name).map(|it| metrics.count(it, &RANK_LABELS));
        let places: Vec<_> = places.collect();
        if places.is_empty() {
            return not_reported(&metrics.source(name.to_owned()).to_string());
        }
        agreed(places, &mut Vec::new())
    }

    fn metric_role(&self) -> Fact<Figure<Role>> {
        let metrics = self.metrics.as_ref().map_err(Clone::clone)?;
        let name = "sglang:max_total_num_tokens";
        let sample = metrics.of(name).next();
        let sample = sample.map_or_else(|| not_reported(name), Ok)?;
        role(metrics.label_text(sample, "engine_type", &RANK_LABELS))
    }

    fn warn(&self, warnings: &mut Vec<Warning>) {
        let Ok(doc) = self.info.doc() else { return };
        for key in ["api_key", "admin_api_key"] {
            if doc
                .at(key)
                .is_some_and(|it| it.as_str().is_some_and(|it| !it.is_empty()))
            {
                let text = format!("introspection tells the server's own {key}");
                warnings.push(Warning {
                    text,
                    source: doc.source(key),
                });
            }
        }
        let status = doc.at("status").and_then(Value::as_str);
        if let Some(status) = status.filter(|it| *it != "ready") {
            let status: String = status.chars().take(40).collect();
            let text = format!("it says it is {status:?}, not ready: figures may change");
            warnings.push(Warning {
                text,
                source: doc.source("status"),
            });
        }
    }
}
