//! Cofferdam's own gateway, which speaks for its workers: one node a worker.

use crate::facts::answers::{Page, ServerAnswers};
use crate::facts::combine::{derived, measured};
use crate::facts::figure::{Fact, Figure, Measured, Unknown};
use crate::facts::json::absurd;
use crate::facts::models::advertised;
use crate::facts::node::{Engine, Node, Parallelism, Rank, Role, Warning};

/// More workers behind one gateway are absurd.
const WORKERS_MAX: usize = 4096;

pub(crate) fn read(name: &str, answers: &ServerAnswers, engine: Figure<Engine>) -> Vec<Node> {
    let info = answers.page("/server_info");
    let count = match info.doc() {
        // Also that it is ours counts for nothing then: one reason, said once.
        Err(why) => return vec![Node::unknown(name, why)],
        Ok(doc) => doc.len("workers").min(WORKERS_MAX),
    };
    if count == 0 {
        let looked = vec!["workers of /server_info".to_owned()];
        return vec![silent(name, engine, Unknown::NotReported { looked })];
    }
    let models = answers.page("/v1/models");
    let told = advertised(&models);
    let prompts = models.count("data[0].max_prompt_tokens");
    let open = answers.open_introspection(&["/server_info"]);
    let worker = |n: usize| {
        let mut node = worker(name, n, &info, &engine);
        node.advertised = match &node.role {
            Ok(role) if role.value == Role::Prefill => {
                sent(&info, n, "max_prompt_tokens", prompts.clone())
            }
            _ => sent(&info, n, "max_model_len", told.clone()),
        };
        node.open_introspection = open.clone();
        node
    };
    (0..count).map(worker).collect()
}

fn silent(name: &str, engine: Figure<Engine>, why: Unknown) -> Node {
    let mut node = Node::unknown(name, why);
    node.engine = Ok(engine);
    node
}

fn worker(name: &str, n: usize, info: &Page, engine: &Figure<Engine>) -> Node {
    let field = |it: &str| format!("workers[{n}].{it}");
    let worker = info.text(&field("name"));
    let worker = worker.map_or(format!("worker {n}"), |it| it.value);
    let looked = vec!["/server_info of Cofferdam".to_owned()];
    let mut node = Node::unknown(format!("{name} {worker}"), Unknown::NotReported { looked });
    node.engine = Ok(engine.clone());
    node.version = info.version("version");
    node.life = info.text(&field("epoch"));
    node.role = role(info.text(&field("role")));
    let pool = info.count(&field("pool_tokens")).map(measured);
    node.ranks = Ok(vec![Rank { name: worker, pool }]);
    // A worker is one rank: nothing of ours divides a model.
    let one = || match &node.role {
        Ok(role) => Ok(derived(
            1,
            "a worker is one rank",
            vec![role.source.clone()],
        )),
        Err(why) => Err(why.clone()),
    };
    node.parallelism = Parallelism {
        tensor: one(),
        pipeline: one(),
        data: one(),
        context: one(),
    };
    node.page_size = info.count(&field("page_size"));
    // The gateway is the only door. A prefill pool holds the prompt alone, so that the longest
    // prompt is the largest thing that it must hold.
    let of = |figure: &str| sent(info, n, figure, info.count(&format!("limit.{figure}")));
    let longest = of("max_prompt_tokens");
    node.context = match &node.role {
        Ok(role) if role.value == Role::Prefill => longest.clone(),
        _ => of("max_model_len"),
    };
    node.max_prompt = longest;
    node.max_running = info.count("gateway.max_running");
    // One fingerprint is over all bytes of the model file, with its tokenizer; the other over
    // page size, layers, heads, dtype, order and numeric path.
    node.model = info.text(&field("model_fingerprint"));
    node.tokenizer = node.model.clone();
    node.weights = node.model.clone();
    node.template = node.model.clone();
    node.tokenizing = node.model.clone();
    node.asides = Ok(Vec::new());
    node.layout = info.text(&field("layout_fingerprint"));
    node.kv_dtype = node.layout.clone();
    node.model_dtype = node.layout.clone();
    node.checksum = info.switch("handoff.checksum");
    node.deferred_release = info.switch("handoff.deferred_release");
    node.truncates = info.switch("handoff.truncates");
    readiness(info, &field("readiness"), &mut node);
    node
}

/// The largest thing of this kind that the gateway sends to worker `n`: what it says of all, or, where
/// another worker of the same role holds that much, what this one holds.
fn sent(info: &Page, n: usize, figure: &str, told: Fact<Figure<u64>>) -> Fact<Measured<u64>> {
    let told = told?;
    let role = |k: usize| info.text(&format!("workers[{k}].role")).map(|it| it.value);
    let holds = |k: usize| info.count(&format!("workers[{k}].{figure}"));
    let all = 0..info.len("workers").min(WORKERS_MAX);
    let mut peers = all.filter(|&k| k != n && role(k).is_ok() && role(k) == role(n));
    let another = peers.any(|k| holds(k).is_ok_and(|it| it.value >= told.value));
    Ok(measured(match holds(n) {
        Ok(own) if another && own.value < told.value => own,
        _ => told,
    }))
}

fn role(text: Fact<Figure<String>>) -> Fact<Figure<Role>> {
    let text = text?;
    let role = match text.value.as_str() {
        "prefill" => Role::Prefill,
        "decode" => Role::Decode,
        "unified" => Role::Whole,
        other => return Err(absurd(other, text.source, "not a role of Cofferdam")),
    };
    Ok(Figure::new(role, text.source))
}

/// Figures of a worker that takes no work may be those of a life that is over.
fn readiness(info: &Page, field: &str, node: &mut Node) {
    let state = info.text(&format!("{field}.state"));
    let Some(state) = state.ok().filter(|it| it.value != "ready") else {
        return;
    };
    let reason = info.text(&format!("{field}.reason"));
    let reason = reason.map_or(String::new(), |it| format!(": {}", it.value));
    let text = format!("it is {}{reason}", state.value);
    node.warnings.push(Warning {
        text,
        source: state.source,
    });
}
