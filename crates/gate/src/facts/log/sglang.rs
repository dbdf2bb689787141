//! Start-up lines of SGLang, 0.4.6 to 0.5.23.

use super::line::Line;
use super::{python, settings, source};
use crate::facts::answers::Page;
use crate::facts::combine::{contradiction, derived, measured, not_reported, smallest};
use crate::facts::figure::{Fact, Figure, FigureSource, Measured, Unknown};
use crate::facts::json::absurd;
use crate::facts::node::{Aside, Engine, Node, Rank, Role, Warning};
use crate::facts::sglang::{
    BELOW, RANKS_MAX, computes, declared, expected, missing, role, settings_beside, weights,
};
use std::collections::BTreeMap;

/// The settings, all of them.
const ARGS: &str = "server_args=";
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
    /// What the settings say of what is kept beside the pool, once a line has told them.
    settings: Option<Fact<Vec<Aside>>>,
    /// What other lines say of it.
    asides: Vec<Aside>,
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
        let form = line.after(ARGS).unwrap_or_default();
        if line.says(ARGS) && (form.starts_with('{') || form.starts_with("ServerArgs(")) {
            self.start(line);
        }
        let is_final = line.says(FINAL) && line.text.contains("chunked_prefill_size=");
        if is_final {
            self.count(line, FINAL, FINAL);
            self.last_line(line);
        } else if line.says(SIZED) {
            self.bounds.remove(&rank(line, SIZED));
            self.count(line, SIZED, "#tokens: ");
            self.dtype(line);
        } else if line.says(BOUND) {
            self.note(line, BOUND);
            self.bounds.insert(rank(line, BOUND), source(line, BOUND));
        } else if unlabelled(line) {
            self.count(line, ALLOCATED, "#tokens: ");
            self.dtype(line);
        } else if line.says(WINDOW) && line.text.contains(WINDOW_TOKENS) {
            self.window(line);
        } else if line.says(STATES) {
            self.beside(line, "states of recurrent layers (Mamba)", STATES, None);
        } else if let Some(key) = COMPRESSED.iter().find(|it| line.says(it)) {
            self.beside(line, "pools of compressed attention", key, None);
        } else if line.says(WARNED) && line.text.contains("fewer than --context-length") {
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
        self.asides.push(Aside {
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
        let page = Page::of(settings(line, ARGS, python::value));
        let mut fresh = Scan {
            mark: Some(source(line, ARGS)),
            server: self.server.take(),
            mixed: self.mixed.take(),
            ..Scan::default()
        };
        if let Ok(doc) = page.doc() {
            let part = |key| doc.plain(key).map_or("unsaid".to_owned(), |it| it.value);
            let server = format!("port {} of node {}", part("port"), part("node_rank"));
            let server = Figure::new(server, source(line, ARGS));
            let before = fresh.server.replace(server.clone());
            if let Some(before) = before.filter(|it| it.value != server.value) {
                let why = contradiction(&before, &server, "a log is that of one server");
                fresh.mixed = Some(why);
            }
        }
        fresh.settings(&page);
        *self = fresh;
    }

    fn settings(&mut self, page: &Page) {
        self.data = Some(page.number("dp_size", 1, RANKS_MAX));
        self.diffusion = page.has("dllm_algorithm");
        self.settings = Some(settings_beside(page));
        let node = self.facts();
        node.role = role(page.text("disaggregation_mode"));
        node.declared_pool = declared(page, "max_total_tokens");
        node.declared_context = declared(page, "context_length");
        node.page_size = page.count("page_size");
        node.truncates = page.switch("allow_auto_truncate");
        node.checksum = page.switch("disaggregation_enable_kv_checksum");
        let whole = node.role.as_ref().is_ok_and(|it| it.value == Role::Whole);
        node.backend = match whole {
            true => absent("disaggregation_transfer_backend"),
            false => page.text("disaggregation_transfer_backend"),
        };
        node.model = page.text("model_path");
        node.tokenizer = page.text("tokenizer_path");
        let adapters = page
            .setting("lora_paths")
            .and_then(|it| match it.value.as_str() {
                "none" => Ok(it),
                // Others may have been loaded since.
                _ => Err(absurd(
                    &it.value,
                    it.source,
                    "adapters cannot be compared by logs",
                )),
            });
        node.weights = weights(page, adapters, page.setting("weight_version"));
        computes(page, node);
    }

    /// The description of the latest start.
    pub(super) fn node(mut self, name: &str) -> Node {
        if let Some(why) = self.mixed.take() {
            return Node::unknown(name, why);
        }
        let mut node = *self.node.take().unwrap_or_else(|| Box::new(blank()));
        node.name = name.to_owned();
        let mark = self.mark.take();
        node.engine = mark.map_or_else(|| absent(ARGS), |it| Ok(Figure::new(Engine::Sglang, it)));
        node.asides = self.settings.take().unwrap_or_else(|| absent(ARGS));
        if let Ok(asides) = &mut node.asides {
            asides.append(&mut self.asides);
        }
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
    before.is_some_and(|it| it.trim_end().is_empty() || it.ends_with("] ")) && line.says(ALLOCATED)
}
