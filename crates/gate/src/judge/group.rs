//! What must be equal between nodes that hand to each other.
//!
//! A group is judged as a whole, not pair by pair: two hundred nodes are ten thousand pairs, and
//! what a person needs to know is which values there are and who has which.

use super::{Group, Member, Subjects, Table, figure, sane};
use crate::check::{
    CHECKSUM_LAYOUTS_EQUAL, Check, GUARD_ON_BOTH_SIDES, PROMPT_LIMITS_EQUAL, SAME_KV_DTYPE,
    SAME_LAYOUT, SAME_MODEL, SAME_PAGE_SIZE, SAME_TOKENIZER,
};
use crate::facts::{Engine, Fact, Figure, FigureSource, Particulars, Version};
use crate::finding::{Answer, Evidence, Finding, Subject, grouped};
use std::collections::BTreeMap;

pub(super) fn judge(
    group: &Group,
    subjects: &Subjects,
    table: &Table,
    findings: &mut Vec<Finding>,
) {
    if group.prefill.is_empty() || group.decode.is_empty() {
        return; // `pair-complete` says so
    }
    let pick = |places: &[usize]| -> Vec<&Member> {
        places
            .iter()
            .map(|place| &subjects.members[*place])
            .collect()
    };
    let sides = Sides {
        name: &group.name,
        prefill: pick(&group.prefill),
        decode: pick(&group.decode),
        table,
    };
    findings.push(limits(&sides));
    let pages: [Thing<'_>; 2] = [
        ("page size", |member| shown(&member.node.page_size)),
        ("block of attention", block),
    ];
    let other = |member| block(member).is_ok_and(|it| !it.0.starts_with(UNRESOLVED));
    let pages = match sides.all().any(other) {
        true => &pages[..],
        false => &pages[..1],
    };
    findings.push(equal_in_all(&sides, &SAME_PAGE_SIZE, pages, |it| &it.pages));
    findings.push(equal_in_all(
        &sides,
        &SAME_KV_DTYPE,
        &[("KV dtype", dtype)],
        |it| &it.types,
    ));
    findings.push(equal_in_all(
        &sides,
        &SAME_LAYOUT,
        &[("KV layout", |member| shown(&member.node.layout))],
        |it| &it.layout,
    ));
    findings.push(equal_in_all(
        &sides,
        &SAME_MODEL,
        &[
            ("model", |member| path(&member.node.model)),
            ("weights", |member| shown(&member.node.weights)),
        ],
        |it| &it.made,
    ));
    findings.push(equal_in_all(
        &sides,
        &SAME_TOKENIZER,
        &[
            ("tokenizer", |member| path(&member.node.tokenizer)),
            ("chat template", |member| shown(&member.node.template)),
            ("tokenizing", |member| shown(&member.node.tokenizing)),
        ],
        |_| &NONE,
    ));
    findings.push(equal(
        &sides,
        &CHECKSUM_LAYOUTS_EQUAL,
        "parallelism",
        parallelism,
    ));
    // Without any guard there is nothing to compare, and `length-compared` says what is missing.
    if sides.all().any(|member| member.node.guard.is_ok()) {
        findings.push(equal(&sides, &GUARD_ON_BOTH_SIDES, "guard", |member| {
            shown(&member.node.guard)
        }));
    }
}

/// The two sides of a group, neither empty.
struct Sides<'a> {
    name: &'a str,
    prefill: Vec<&'a Member>,
    decode: Vec<&'a Member>,
    table: &'a Table,
}

impl<'a> Sides<'a> {
    fn all(&self) -> impl Iterator<Item = &'a Member> {
        self.prefill.iter().chain(&self.decode).copied()
    }

    fn subject(&self) -> Subject {
        Subject::Group(self.name.to_owned())
    }
}

/// A value as text, with its source, or why there is none.
type Shown = Result<(String, FigureSource), String>;

fn shown<T: ToString>(fact: &Fact<Figure<T>>) -> Shown {
    match fact {
        Ok(figure) => Ok((figure.value.to_string(), figure.source.clone())),
        Err(why) => Err(why.to_string()),
    }
}

/// A name or a folder: a slash at its end changes nothing.
fn path(fact: &Fact<Figure<String>>) -> Shown {
    let (text, source) = shown(fact)?;
    let short = text.trim_end_matches('/');
    Ok((
        if short.is_empty() { "/" } else { short }.to_owned(),
        source,
    ))
}

/// What a value begins with that is not resolved: it is equal to itself, and to others it may be
/// equal or not.
const UNRESOLVED: &str = "auto (";

/// A block of attention that holds another number of tokens than the page size says.
fn block(member: &Member) -> Shown {
    let (page, at) = shown(&member.node.page_size)?;
    match shown(&member.node.block) {
        Ok((block, at)) if block != page => Ok((format!("{block} tokens"), at)),
        _ => Ok((format!("{UNRESOLVED}a page)"), at)),
    }
}

/// "auto" is no type: it means that in which the model computes. Where that is "auto" too it is
/// the one of the model's own configuration, so it is only equal to itself for equal weights and
/// engines of one version; these are part of the value here. Quantized weights may bring a type of
/// their own for KV.
fn dtype(member: &Member) -> Shown {
    let node = &member.node;
    let (value, source) = shown(&node.kv_dtype)?;
    if value != "auto" {
        return Ok((named(&value).to_owned(), source));
    }
    let and = |why| format!("auto, and {why}");
    let (dtype, at) = shown(&node.model_dtype).map_err(and)?;
    let (weights, _) = shown(&node.weights).map_err(and)?;
    let dtype = named(&dtype);
    let formula = "the type in which the model computes".to_owned();
    let from = vec![source, at];
    let source = FigureSource::Derived { formula, from };
    if dtype != "auto" && !weights.contains("quantization") {
        return Ok((dtype.to_owned(), source));
    }
    let (model, _) = path(&node.model).map_err(and)?;
    let version = node.version.as_ref().map_err(|why| and(why.to_string()))?;
    let version = version.value.name();
    let of = match weights == "default" {
        true => model,
        false => format!("{model}, {weights}"),
    };
    let text = format!("{UNRESOLVED}that of {of}, as {dtype}, in {version})");
    Ok((text, source))
}

/// One name for the several that a type has.
fn named(dtype: &str) -> &str {
    match dtype.strip_prefix("torch.").unwrap_or(dtype) {
        "bf16" => "bfloat16",
        "half" | "fp16" => "float16",
        "float" | "fp32" => "float32",
        "fp8" | "float8_e4m3fn" => "fp8_e4m3",
        "float8_e5m2" => "fp8_e5m2",
        other => other,
    }
}

fn parallelism(member: &Member) -> Shown {
    let parallelism = &member.node.parallelism;
    let mut text = String::new();
    let mut at = None;
    for (letter, fact) in [
        ("TP", &parallelism.tensor),
        ("PP", &parallelism.pipeline),
        ("CP", &parallelism.context),
    ] {
        let (value, source) = shown(fact)?;
        text += &format!("{letter}{value} ");
        at = Some(source);
    }
    let at = at.ok_or("not reported")?;
    Ok((text.trim_end().to_owned(), at))
}

/// One value on both sides.
fn equal(
    sides: &Sides<'_>,
    check: &'static Check,
    what: &str,
    read: fn(&Member) -> Shown,
) -> Finding {
    equal_in_all(sides, check, &[(what, read)], |_| &NONE)
}

/// What is compared, and how it is read.
type Thing<'a> = (&'a str, fn(&Member) -> Shown);

/// Settings that matter to some models only.
type Told = BTreeMap<String, Figure<String>>;
static NONE: Told = BTreeMap::new();

/// One value of each of several things on both sides: the worst counts, and all that is wrong or
/// missing is said.
fn equal_in_all(
    sides: &Sides<'_>,
    check: &'static Check,
    things: &[Thing<'_>],
    particulars: fn(&Particulars) -> &Told,
) -> Finding {
    let mut evidence = Vec::new();
    let found = things.iter().map(|(what, read)| {
        let it = compared(sides, what, *read);
        evidence.extend(it.evidence);
        (it.answer, it.says)
    });
    let mut found: Vec<_> = found.collect();
    let may_differ = may_differ(sides, particulars, &mut evidence);
    found.extend(may_differ.map(|says| (Answer::Unknown, says)));
    let answer = found.iter().map(|it| it.0).max().unwrap_or(Answer::Unknown);
    let says = found.into_iter().filter(|it| it.0 == answer).map(|it| it.1);
    let says = says.collect::<Vec<_>>().join("; ");
    Finding::new(check, sides.subject(), answer, says).with(evidence)
}

/// What is told on several nodes and is not the same: whether it matters is the model's business.
fn may_differ(
    sides: &Sides<'_>,
    particulars: fn(&Particulars) -> &Told,
    evidence: &mut Vec<Evidence>,
) -> Option<String> {
    let mut told: BTreeMap<&str, Vec<(&str, &Figure<String>)>> = BTreeMap::new();
    for member in sides.all() {
        for (what, figure) in particulars(&member.node.particulars) {
            let all = told.entry(what).or_default();
            all.push((member.node.name.as_str(), figure));
        }
    }
    told.retain(|_, all| all.iter().any(|(_, it)| it.value != all[0].1.value));
    for (what, all) in &told {
        let each = all.iter().map(|(name, it)| Evidence {
            what: format!("{what} of {name}"),
            value: Ok(it.value.clone().into()),
            source: Some(it.source.clone()),
        });
        evidence.extend(each);
    }
    let names: Vec<_> = told.keys().copied().collect();
    let says = format!(
        "{} differs: with some models that is another thing",
        names.join(", ")
    );
    (!names.is_empty()).then_some(says)
}

/// What a comparison of one thing gave.
struct Compared {
    answer: Answer,
    says: String,
    evidence: Vec<Evidence>,
}

fn compared(sides: &Sides<'_>, what: &str, read: fn(&Member) -> Shown) -> Compared {
    let mut values: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    let mut missing = Vec::new();
    let mut evidence = Vec::new();
    for member in sides.all() {
        let name = &member.node.name;
        let read = read(member);
        evidence.push(Evidence {
            what: format!("{what} of {name}"),
            value: read
                .as_ref()
                .map(|it| it.0.clone().into())
                .map_err(Clone::clone),
            source: read.as_ref().ok().map(|it| it.1.clone()),
        });
        match read {
            Ok((value, _)) => values.entry(value).or_default().push(name),
            Err(why) => missing.push((name.as_str(), why)),
        }
    }
    let new = |answer, says| Compared {
        answer,
        says,
        evidence,
    };
    let resolved = values.keys().filter(|it| !it.starts_with(UNRESOLVED));
    if values.len() > 1 && resolved.count() < 2 {
        let each = values
            .iter()
            .map(|(value, names)| format!("{value} on {}", some(names)));
        let each = each.collect::<Vec<_>>().join("; ");
        return new(Answer::Unknown, format!("{what} may differ: {each}"));
    }
    if values.len() > 1 {
        let each = values
            .iter()
            .map(|(value, names)| format!("{value} on {}", some(names)));
        let says = format!("{what} differs: {}", each.collect::<Vec<_>>().join("; "));
        return new(Answer::Violated, says);
    }
    if let Some((first, why)) = missing.first() {
        let more = match missing.len() {
            1 => String::new(),
            more => format!(" and {} more", more - 1),
        };
        return new(
            Answer::Unknown,
            format!("{what} of {first}{more} unknown: {why}"),
        );
    }
    let value = values.into_keys().next().unwrap_or_default();
    new(Answer::Holds, format!("{what} {value} on both sides"))
}

/// The first names of a list.
fn some(names: &[&str]) -> String {
    let shown = names.iter().take(3).copied().collect::<Vec<_>>().join(", ");
    match names.len() {
        0..=3 => shown,
        more => format!("{shown} and {} more", more - 3),
    }
}

/// The smallest and the largest limit of a side, and who has it.
struct Ends<'a> {
    lowest: Option<(u64, &'a str)>,
    highest: Option<(u64, &'a str)>,
}

fn ends<'a>(
    members: &[&'a Member],
    missing: &mut Vec<String>,
    evidence: &mut Vec<Evidence>,
) -> Ends<'a> {
    let mut known = Vec::new();
    for member in members {
        let name = member.node.name.as_str();
        let what = format!("largest prompt of {name}");
        match sane(&member.node.max_prompt) {
            Ok(limit) => known.push((limit, name)),
            Err(why) => missing.push(format!("{what} unknown: {why}")),
        }
        evidence.push(Evidence::of(what, figure(&member.node.max_prompt)));
    }
    Ends {
        lowest: known.iter().copied().min(),
        highest: known.iter().copied().max(),
    }
}

fn limits(sides: &Sides<'_>) -> Finding {
    let (mut missing, mut evidence) = (Vec::new(), Vec::new());
    let prefill = ends(&sides.prefill, &mut missing, &mut evidence);
    let decode = ends(&sides.decode, &mut missing, &mut evidence);
    let new = |answer, says| {
        Finding::new(&PROMPT_LIMITS_EQUAL, sides.subject(), answer, says).with(evidence.clone())
    };
    let mut found = Vec::new();
    if let (Some((low, at)), Some((high, other))) = (prefill.lowest, decode.highest)
        && low < high
    {
        let (low, high, then) = (grouped(low), grouped(high), prefill_is_smaller(sides));
        found.push(format!(
            "prefill {at} takes {low}, decode {other} {high}: a prompt between {then}"
        ));
    }
    if let (Some((low, at)), Some((high, other))) = (decode.lowest, prefill.highest)
        && low < high
    {
        let (low, high, then) = (grouped(low), grouped(high), decode_is_smaller(sides));
        found.push(format!(
            "decode {at} takes {low}, prefill {other} {high}: a prompt between {then}"
        ));
    }
    if !found.is_empty() {
        let lowest = prefill
            .lowest
            .into_iter()
            .chain(decode.lowest)
            .map(|it| it.0)
            .min();
        let smallest = grouped(lowest.unwrap_or_default());
        return new(Answer::Violated, found.join("; ")).change(format!(
            "until the limits are equal, refuse prompts over {smallest} tokens before they reach \
             either side; then give both the same context and pools that hold it"
        ));
    }
    if !missing.is_empty() {
        return new(Answer::Unknown, missing[0].clone());
    }
    let limit = prefill.lowest.map_or(0, |it| it.0);
    new(
        Answer::Holds,
        format!("both sides take prompts up to {}", grouped(limit)),
    )
}

/// Engine and version, as far as they are known.
fn software(member: &Member) -> Option<(Engine, Option<&Version>)> {
    let engine = member.node.engine.as_ref().ok()?.value;
    let version = member.node.version.as_ref().ok();
    Some((engine, version.map(|it| &it.value)))
}

/// Whether the guard is in effect on both sides, in versions in which it was run: then what one
/// side rejects ends on both.
fn guarded(sides: &Sides<'_>) -> bool {
    let run = |member: &Member| match software(member) {
        Some((engine, Some(version))) => sides.table.guard_was_run(engine, version),
        _ => false,
    };
    sides.all().all(|it| it.node.guard.is_ok() && run(it))
}

const GUARDED: &str =
    "is refused on both sides by cofferdam-guard, with the error of the side that rejects it";

/// What happens to a prompt that decode takes and prefill does not: the worst over its nodes.
fn prefill_is_smaller(sides: &Sides<'_>) -> &'static str {
    let sglang = |it: &&Member| software(it).is_none_or(|it| it.0 == Engine::Sglang);
    if guarded(sides) && sides.prefill.iter().all(sglang) {
        return GUARDED;
    }
    let fixed = Version::parse("0.5.20").expect("a version");
    let mut worst = 0;
    for member in &sides.prefill {
        worst = worst.max(match software(member) {
            Some((Engine::Sglang, Some(version))) if version.is_on_the_way_to(&fixed) => 2,
            Some((Engine::Sglang, Some(version))) if *version < fixed => 3,
            Some((Engine::Sglang, Some(_))) => 1,
            Some((Engine::Vllm | Engine::Cofferdam, _)) => 0,
            _ => 2,
        });
    }
    match worst {
        3 => "is answered with 200 from other requests' pages (SGLang before 0.5.20: the incident)",
        2 => {
            "may be answered with 200 from other requests' pages (whether it still does that is not known)"
        }
        1 => {
            "waits 300 s on decode for pages that never come, and is then retried; others starve \
             meanwhile"
        }
        _ => "is refused by prefill with 400",
    }
}

/// What happens to a prompt that prefill takes and decode does not.
fn decode_is_smaller(sides: &Sides<'_>) -> &'static str {
    let first = sides.prefill.first().and_then(|member| software(member));
    if guarded(sides) && first.is_some_and(|it| it.0 == Engine::Sglang) {
        return GUARDED;
    }
    match sides.prefill.first().and_then(|member| software(member)) {
        Some((Engine::Sglang, _)) => "is refused by decode, and prefill waits up to 300 s for it",
        Some((Engine::Vllm, _)) => {
            "is computed by prefill and then refused by decode; its blocks stay until the lease ends"
        }
        _ => "is refused by decode after prefill has begun",
    }
}
