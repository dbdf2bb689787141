//! What must be equal between nodes that hand to each other.
//!
//! A group is judged as a whole, not pair by pair: two hundred nodes are ten thousand pairs, and
//! what a person needs to know is which values there are and who has which.

use super::{Group, Member, Subjects, figure, sane};
use crate::check::{
    CHECKSUM_LAYOUTS_EQUAL, Check, GUARD_ON_BOTH_SIDES, PROMPT_LIMITS_EQUAL, SAME_KV_DTYPE,
    SAME_LAYOUT, SAME_MODEL, SAME_PAGE_SIZE, SAME_TOKENIZER,
};
use crate::finding::{Answer, Evidence, Finding, Subject, grouped};
use fleet::{Engine, Fact, Figure, Source, Version};
use std::collections::BTreeMap;

pub(super) fn judge(group: &Group, subjects: &Subjects, findings: &mut Vec<Finding>) {
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
    };
    findings.push(limits(&sides));
    findings.push(equal(&sides, &SAME_PAGE_SIZE, "page size", |member| {
        shown(&member.node.page_size)
    }));
    findings.push(equal(&sides, &SAME_KV_DTYPE, "KV dtype", dtype));
    findings.push(equal(&sides, &SAME_LAYOUT, "KV layout", |member| {
        shown(&member.node.layout)
    }));
    findings.push(equal(&sides, &SAME_MODEL, "model", |member| {
        shown(&member.node.model)
    }));
    findings.push(equal(&sides, &SAME_TOKENIZER, "tokenizer", |member| {
        shown(&member.node.tokenizer)
    }));
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
type Shown = Result<(String, Source), String>;

fn shown<T: ToString>(fact: &Fact<Figure<T>>) -> Shown {
    match fact {
        Ok(figure) => Ok((figure.value.to_string(), figure.source.clone())),
        Err(why) => Err(why.to_string()),
    }
}

/// "auto" is no type: it means the model's, so it is only equal to itself for equal models and
/// engines of one version, which other checks compare; the version is part of the value here.
fn dtype(member: &Member) -> Shown {
    let (value, source) = shown(&member.node.kv_dtype)?;
    if value != "auto" {
        return Ok((value, source));
    }
    let (model, _) = shown(&member.node.model).map_err(|why| format!("auto, and {why}"))?;
    let (version, _) = shown(&member.node.version).map_err(|why| format!("auto, and {why}"))?;
    Ok((format!("auto (that of {model} in {version})"), source))
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
    read: impl Fn(&Member) -> Shown,
) -> Finding {
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
    let new = |answer, says| Finding::new(check, sides.subject(), answer, says).with(evidence);
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

/// What happens to a prompt that decode takes and prefill does not: the worst over its nodes.
fn prefill_is_smaller(sides: &Sides<'_>) -> &'static str {
    let fixed = Version::parse("0.5.20").expect("a version");
    let mut worst = 0;
    for member in &sides.prefill {
        worst = worst.max(match software(member) {
            Some((Engine::Sglang, Some(version))) if *version < fixed => 3,
            Some((Engine::Sglang, Some(_))) => 1,
            Some((Engine::Vllm | Engine::Cofferdam, _)) => 0,
            _ => 2,
        });
    }
    match worst {
        3 => "is answered with 200 from other requests' pages (SGLang before 0.5.20: the incident)",
        2 => "may be answered with 200 from other requests' pages (engine or version unknown)",
        1 => "waits 300 s on decode for pages that never come, and is then retried",
        _ => "is refused by prefill with 400",
    }
}

/// What happens to a prompt that prefill takes and decode does not.
fn decode_is_smaller(sides: &Sides<'_>) -> &'static str {
    match sides.prefill.first().and_then(|member| software(member)) {
        Some((Engine::Sglang, _)) => "is refused by decode, and prefill waits up to 300 s for it",
        Some((Engine::Vllm, _)) => {
            "is computed by prefill and then refused by decode; its blocks stay until the lease ends"
        }
        _ => "is refused by decode after prefill has begun",
    }
}
