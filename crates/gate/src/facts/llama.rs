//! llama.cpp's server, from recordings. Every length that it reports is that of one slot.

use crate::facts::answers::{Page, ServerAnswers};
use crate::facts::combine::{agreed, derived, measured, not_reported};
use crate::facts::figure::{Fact, Figure, FigureSource, Unknown};
use crate::facts::json::Doc;
use crate::facts::life;
use crate::facts::node::{Aside, Engine, Node, Rank, Role, Warning};
use crate::facts::version::Version;

const SLOTS_MAX: u64 = 4096;

pub(crate) fn read(name: &str, answers: &ServerAnswers, engine: Figure<Engine>) -> Node {
    let props = answers.page("/props");
    let slots = slots(answers);
    let models = answers.page("/v1/models");
    let looked = vec!["what llama.cpp reports".to_owned()];
    let mut node = Node::unknown(name, Unknown::NotReported { looked });
    let mut warnings = Vec::new();
    node.role = Ok(Figure::new(Role::Whole, engine.source.clone()));
    node.engine = Ok(engine);
    node.version = version(&props);
    node.model = props
        .text("model_path")
        .or_else(|_| models.text("data[0].id"));
    let mut lengths = vec![
        props.count("default_generation_settings.n_ctx"),
        models.count("data[0].meta.n_ctx"),
    ];
    lengths.extend(slots.iter().flatten().map(|(_, length)| length.clone()));
    let context = agreed(lengths, &mut warnings);
    node.advertised = models.count("data[0].meta.n_ctx").map(measured);
    node.max_prompt = context.clone().and_then(|it| longest(&it)).map(measured);
    node.context = context.map(measured);
    node.ranks = ranks(&props, slots, &mut warnings);
    node.asides = asides(answers);
    node.truncates = truncates(&props);
    node.life = life::read(answers, &answers.page("/props"));
    node.open_introspection = answers.open_introspection(&["/props"]);
    node.warnings = warnings;
    node
}

/// `b6423-abc`; a build without a number says `b0-unknown`.
fn version(props: &Page) -> Fact<Figure<Version>> {
    let text = props.text("build_info")?;
    match Version::parse(&text.value) {
        Some(version) => Ok(Figure::new(version, text.source)),
        None => not_reported(&format!(
            "{} is {:?}, no build number",
            text.source, text.value
        )),
    }
}

/// A prompt as long as the slot is refused (recorded).
fn longest(context: &Figure<u64>) -> Fact<Figure<u64>> {
    match context.value {
        1 => not_reported("a slot of 1 token takes no prompt"),
        n => Ok(derived(n - 1, "n_ctx - 1", vec![context.source.clone()])),
    }
}

/// Where each slot stands and how long it is; `None` if the server does not tell.
fn slots(answers: &ServerAnswers) -> Option<Vec<(u64, Fact<Figure<u64>>)>> {
    let body = answers.get("/slots")?.as_ref().ok()?;
    let doc = Doc::parse(&answers.url("/slots"), body).ok()?;
    let count = doc.root().as_array()?.len().min(SLOTS_MAX as usize);
    let slot = |n: usize| (n as u64, doc.count(&format!("[{n}].n_ctx")));
    Some((0..count).map(slot).collect())
}

/// Slots tell whether they draft.
fn asides(answers: &ServerAnswers) -> Fact<Vec<Aside>> {
    let slots = answers.page("/slots");
    let doc = slots.doc()?;
    let count = doc
        .root()
        .as_array()
        .map_or(0, Vec::len)
        .min(SLOTS_MAX as usize);
    let mut asides = Vec::new();
    for n in 0..count.max(1) {
        let drafts = doc.switch(&format!("[{n}].speculative"))?;
        if drafts.value {
            asides.push(Aside {
                what: format!("drafts of speculative decoding in slot {n}"),
                tokens: None,
                source: drafts.source,
            });
        }
    }
    Ok(asides)
}

/// One pool a slot. (With `--kv-unified` slots share one memory; nothing says so.)
fn ranks(
    props: &Page,
    slots: Option<Vec<(u64, Fact<Figure<u64>>)>>,
    warnings: &mut Vec<Warning>,
) -> Fact<Vec<Rank>> {
    let total = props.number("total_slots", 1, SLOTS_MAX);
    let rank = |n: u64, pool: Fact<Figure<u64>>| Rank {
        name: format!("slot {n}"),
        pool: pool.map(measured),
    };
    let Some(slots) = slots else {
        let length = props.count("default_generation_settings.n_ctx");
        return Ok((0..total?.value).map(|n| rank(n, length.clone())).collect());
    };
    let seen = slots.len() as u64;
    let mut ranks: Vec<_> = slots
        .into_iter()
        .map(|(n, length)| rank(n, length))
        .collect();
    if let Ok(total) = &total
        && total.value != seen
    {
        let text = format!("{} slots here, {seen} listed at /slots", total.value);
        warnings.push(Warning {
            text,
            source: total.source.clone(),
        });
        ranks.extend((seen..total.value).map(|n| rank(n, not_reported("/slots"))));
    }
    if ranks.is_empty() {
        return not_reported("/slots");
    }
    Ok(ranks)
}

/// Servers before autumn 2025 cut the middle out of long prompts. Those that can sleep are later:
/// they refuse, with context shift, too (recorded).
fn truncates(props: &Page) -> Fact<Figure<bool>> {
    let late = props.switch("is_sleeping")?;
    let from: Vec<FigureSource> = vec![late.source];
    Ok(derived(
        false,
        "a server that has this field refuses what is too long",
        from,
    ))
}
