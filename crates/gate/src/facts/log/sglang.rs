//! Start-up lines of SGLang, 0.4.6 to 0.5.23.

use super::line::Line;
use super::source;
use crate::facts::combine::{contradiction, derived, measured, not_reported, smallest};
use crate::facts::figure::{Declared, Fact, Figure, FigureSource, Measured, Unknown};
use crate::facts::json::absurd;
use crate::facts::node::{Aside, Engine, Node, Rank, Role, Warning};
use crate::facts::particulars::{self, SGLANG};
use crate::facts::sglang::{
    BELOW, RANKS_MAX, RECURRENT, TIERS, attention_ranks, context_ranks, expected, is_on, missing,
    role, template, tokenizing,
};
use crate::facts::weights::{SAME_WEIGHTS, Setting, quantization, together};
use std::collections::BTreeMap;

/// The last line of a start, printed by tensor rank 0 of each replica.
const FINAL: &str = "max_total_num_tokens=";
const ALLOCATED: &str = "KV Cache is allocated.";
/// Address space that is reserved before the pool is sized: not the pool.
const BOUND: &str = "KV Cache VA upper bound";
const SIZED: &str = "Post-capture KV sizing: KV cache allocated.";
const WARNED: &str = "KV pool holds ";
/// Printed where layers with a sliding window have a pool of their own.
const WINDOW: &str = "liding window memory pool";
const WINDOW_TOKENS: &str = "swa_layer_tokens=";
/// Printed where layers without attention keep a state for each request.
const STATES: &str = "Mamba Cache is allocated.";
/// Printed where attention is to compressed positions, which have pools and states of their own.
const COMPRESSED: [&str; 3] = [
    "DSV4 pool sizes: ",
    "DSv4 memory calculation: ",
    "Initialize DeepSeekV4TokenToKVPool with ",
];

/// What has been seen of the latest start.
#[derive(Default)]
pub(super) struct Scan {
    mark: Option<FigureSource>,
    /// Port and node rank of the server whose log this is.
    server: Option<Figure<String>>,
    mixed: Option<Unknown>,
    pools: BTreeMap<u64, Vec<Fact<Figure<u64>>>>,
    /// Ranks that have announced an upper bound and not yet a size.
    bounds: BTreeMap<u64, FigureSource>,
    node: Option<Box<Node>>,
    /// What is kept beside the pool; `None` while no line has told the settings.
    asides: Option<Vec<Aside>>,
    /// Sizes of sliding-window pools, whose own lines look like those of the pool.
    windows: Vec<u64>,
    data: Option<Fact<Figure<u64>>>,
    diffusion: bool,
    /// Some line came from a numbered data-parallel rank: servers with one rank print no number.
    numbered: bool,
}

impl Scan {
    pub(super) fn mark(&self) -> Option<&FigureSource> {
        self.mark.as_ref()
    }

    pub(super) fn take(&mut self, line: &Line) {
        if line.text.contains("server_args={") || line.text.contains("server_args=ServerArgs(") {
            self.start(line);
        }
        let is_final = line.text.contains(FINAL) && line.text.contains("chunked_prefill_size=");
        if is_final {
            self.count(line, FINAL, FINAL);
            self.last_line(line);
        } else if line.text.contains(SIZED) {
            self.bounds.remove(&rank(line, SIZED));
            self.count(line, SIZED, "#tokens: ");
            self.dtype(line);
        } else if line.text.contains(BOUND) {
            self.note(line, BOUND);
            self.bounds.insert(rank(line, BOUND), source(line, BOUND));
        } else if unlabelled(line) {
            self.count(line, ALLOCATED, "#tokens: ");
            self.dtype(line);
        } else if line.text.contains(WINDOW) && line.text.contains(WINDOW_TOKENS) {
            self.window(line);
        } else if line.text.contains(STATES) {
            self.beside(line, "states of recurrent layers (Mamba)", STATES, None);
        } else if let Some(key) = COMPRESSED.iter().find(|it| line.text.contains(*it)) {
            self.beside(line, "pools of compressed attention", key, None);
        } else if line.text.contains(WARNED) && line.text.contains("fewer than --context-length") {
            let text = "it warns itself that its pool is smaller than its context".to_owned();
            let source = source(line, WARNED);
            self.facts().warnings.push(Warning { text, source });
        }
    }

    fn note(&mut self, line: &Line, key: &str) {
        self.mark.get_or_insert_with(|| source(line, key));
    }

    fn facts(&mut self) -> &mut Node {
        self.node.get_or_insert_with(|| Box::new(blank()))
    }

    fn count(&mut self, line: &Line, message: &str, key: &str) {
        self.note(line, message);
        let rank = numbered(line, message);
        self.numbered |= rank.is_some();
        if let Some(count) = line.count(key) {
            let places = self.pools.entry(rank.unwrap_or(0)).or_default();
            places.push(count);
        }
    }

    fn dtype(&mut self, line: &Line) {
        if let Some(rest) = line.after("dtype: ") {
            let name = rest.split([',', ' ']).next().unwrap_or_default();
            let name = name.strip_prefix("torch.").unwrap_or(name);
            if !name.is_empty() {
                let figure = Figure::new(name.to_owned(), source(line, "dtype: "));
                self.facts().kv_dtype = Ok(figure);
            }
        }
    }

    fn beside(&mut self, line: &Line, what: &str, key: &str, tokens: Option<u64>) {
        self.asides.get_or_insert_default().push(Aside {
            what: what.to_owned(),
            tokens,
            source: source(line, key),
        });
    }

    /// The window's pool counts for itself: its allocation prints the same words as the pool's.
    fn window(&mut self, line: &Line) {
        let tokens = line.count(WINDOW_TOKENS).and_then(Result::ok);
        let tokens = tokens.map(|it| it.value);
        self.windows.extend(tokens);
        self.beside(line, "a sliding-window pool", WINDOW_TOKENS, tokens);
    }

    fn last_line(&mut self, line: &Line) {
        let context = line.count("context_len=");
        let running = line.count("max_running_requests=");
        let node = self.facts();
        if let Some(context) = context {
            node.context = context.map(measured);
        }
        if let Some(running) = running {
            node.max_running = running;
        }
    }

    /// Settings are printed once a start: what was seen before belongs to an earlier life.
    fn start(&mut self, line: &Line) {
        let part = |key| line.literal(key).unwrap_or("unsaid").to_owned();
        let server = format!("port {} of node {}", part("port"), part("node_rank"));
        let server = Figure::new(server, source(line, "server_args="));
        let mut fresh = Scan {
            mark: Some(source(line, "server_args=")),
            mixed: self.mixed.take(),
            ..Scan::default()
        };
        if let Some(before) = self.server.take().filter(|it| it.value != server.value) {
            let why = contradiction(&before, &server, "a log is that of one server");
            fresh.mixed = Some(why);
        }
        fresh.server = Some(server);
        fresh.settings(line);
        *self = fresh;
    }

    fn settings(&mut self, line: &Line) {
        let text = |key: &str| line.literal_text(key).map_or_else(|| absent(key), Ok);
        let count = |key: &str| line.literal_count(key).unwrap_or_else(|| absent(key));
        let switch = |key: &str| line.literal_switch(key).unwrap_or_else(|| absent(key));
        self.data = Some(count("dp_size"));
        self.diffusion = line
            .literal("dllm_algorithm")
            .is_some_and(|it| it != "None");
        let node = self.facts();
        node.role = match text("disaggregation_mode") {
            Ok(mode) => role(Ok(mode)),
            Err(why) => Err(why),
        };
        let declared = |key| {
            line.literal_count(key)?
                .ok()
                .map(|it| Declared::new(it.value, it.source))
        };
        node.declared_pool = declared("max_total_tokens");
        node.declared_context = declared("context_length");
        node.page_size = count("page_size");
        node.truncates = switch("allow_auto_truncate");
        node.checksum = switch("disaggregation_enable_kv_checksum");
        node.backend = text("disaggregation_transfer_backend");
        node.model = text("model_path");
        node.tokenizer = text("tokenizer_path");
        node.model_dtype = text("dtype");
        let setting = |key: &str| line.setting(key).map_or_else(|| absent(key), Ok);
        node.weights = weights(&setting);
        node.template = template(&setting);
        node.tokenizing = tokenizing(&setting);
        node.particulars = particulars::read(&SGLANG, |key| line.setting(key));
        node.parallelism.tensor = attention_ranks(&count, switch("enable_dp_attention"));
        node.parallelism.pipeline = count("pp_size");
        node.parallelism.data = count("dp_size");
        node.parallelism.context = context_ranks(&count);
        let whole = node.role.as_ref().is_ok_and(|it| it.value == Role::Whole);
        let speculative = ("speculative_algorithm", "drafts of speculative decoding");
        for (key, what) in TIERS.into_iter().chain(RECURRENT).chain([speculative]) {
            let says = line.setting(key).map(|it| it.value);
            if says.is_some_and(|it| is_on(&it)) {
                self.beside(line, what, key, None);
            }
        }
        if setting(TIERS[0].0).is_ok() {
            self.asides.get_or_insert_default();
        }
        let node = self.facts();
        if whole {
            node.backend = absent("disaggregation_transfer_backend");
        }
    }

    /// The description of the latest start.
    pub(super) fn node(mut self, name: &str) -> Node {
        if let Some(why) = self.mixed.take() {
            return Node::unknown(name, why);
        }
        let mut node = *self.node.take().unwrap_or_else(|| Box::new(blank()));
        node.name = name.to_owned();
        let mark = self.mark.take();
        node.engine = mark.map_or_else(
            || absent("server_args="),
            |it| Ok(Figure::new(Engine::Sglang, it)),
        );
        node.asides = self.asides.take().map_or_else(|| absent(TIERS[0].0), Ok);
        node.ranks = Ok(self.ranks(&mut node.warnings));
        node.max_prompt = self.max_prompt(&node);
        node
    }

    fn ranks(&mut self, warnings: &mut Vec<Warning>) -> Vec<Rank> {
        let seen = self.pools.keys().max().map_or(1, |last| last + 1);
        let data = self.data.take().unwrap_or_else(|| absent("dp_size"));
        let count = data.as_ref().map_or(seen, |it| it.value.max(seen));
        let mut ranks: Vec<_> = (0..count.min(RANKS_MAX))
            .map(|n| self.rank(n, warnings))
            .collect();
        // Servers of one rank do not number it.
        let alone = !self.numbered && matches!(data, Err(Unknown::NotReported { .. }));
        ranks.extend(data.err().filter(|_| !alone).map(expected));
        ranks
    }

    fn rank(&mut self, n: u64, warnings: &mut Vec<Warning>) -> Rank {
        let bound = self.bounds.remove(&n);
        let mut places = self.pools.remove(&n);
        // The window's pool was allocated with the same words.
        let windows = &self.windows;
        let whole =
            |it: &Fact<Figure<u64>>| it.as_ref().is_ok_and(|it| !windows.contains(&it.value));
        if let Some(places) = places.as_mut().filter(|it| it.iter().any(whole)) {
            places.retain(|it| it.is_err() || whole(it));
        }
        match (places, bound) {
            (Some(places), _) => Rank {
                name: format!("dp {n}"),
                pool: smallest(places, warnings).map(measured),
            },
            (None, Some(bound)) => missing(n, &format!("a size after the upper bound at {bound}")),
            (None, None) => missing(n, FINAL),
        }
    }

    /// By the server's own computation, which it does not print.
    fn max_prompt(&self, node: &Node) -> Fact<Measured<u64>> {
        let context = node.context.as_ref().map_err(Clone::clone)?;
        let pool = node.smallest_pool()?;
        let least = context.value.min(pool.value);
        if self.diffusion || least <= BELOW {
            return not_reported("the longest prompt, which no line tells");
        }
        let from = vec![context.source.clone(), pool.source.clone()];
        Ok(measured(derived(
            least - BELOW,
            "min(context, smallest pool) - 7",
            from,
        )))
    }
}

/// As in `/server_info`, which is made of the same settings.
fn weights(setting: &dyn Fn(&str) -> Fact<Figure<String>>) -> Fact<Figure<String>> {
    let own = |name, key: &str, may_lack| Setting {
        name,
        says: setting(key),
        plain: &["false"],
        may_lack,
    };
    together(vec![
        Setting {
            plain: &["main"],
            ..own("revision", "revision", false)
        },
        Setting {
            says: quantization(setting("quantization")),
            ..own("quantization", "quantization", false)
        },
        own("overrides", "json_model_override_args", false),
        own("KV scales", "quantization_param_path", true),
        own("restored from", "modelopt_checkpoint_restore_path", true),
        own("torchao", "torchao_config", true),
        own("modelopt", "modelopt_quant", true),
        Setting {
            plain: &SAME_WEIGHTS,
            ..own("load format", "load_format", true)
        },
        Setting {
            says: setting("lora_paths").and_then(|it| match it.value.as_str() {
                "none" => Ok(it),
                // Printed with an id that each process makes up.
                _ => Err(absurd(
                    &it.value,
                    it.source,
                    "adapters cannot be compared by logs",
                )),
            }),
            ..own("adapters", "lora_paths", true)
        },
    ])
}

fn blank() -> Node {
    let looked = vec!["start-up lines of SGLang".to_owned()];
    Node::unknown("", Unknown::NotReported { looked })
}

fn absent<T>(key: &str) -> Fact<T> {
    not_reported(&format!("{key} in the log"))
}

/// `[2026-11-29 12:43:34 DP1 TP0]`: the data-parallel rank, 0 if there is none.
fn rank(line: &Line, message: &str) -> u64 {
    numbered(line, message).unwrap_or(0)
}

fn numbered(line: &Line, message: &str) -> Option<u64> {
    let head = line.before(message).unwrap_or_default();
    let words = head.split([' ', '[', ']']);
    let mut ranks = words.filter_map(|it| it.strip_prefix("DP")?.parse().ok());
    ranks.find(|it| *it < RANKS_MAX)
}

/// `draft KV Cache is allocated.` and the like are other pools.
fn unlabelled(line: &Line) -> bool {
    let before = line.before(ALLOCATED);
    before.is_some_and(|it| it.trim_end().is_empty() || it.ends_with("] "))
}
