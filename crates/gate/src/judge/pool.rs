//! The rule behind the incident: a pool must hold the largest request that is accepted.

use super::{Group, Member, Rules, Subjects, figure, sane};
use crate::check::{ADVERTISED_FITS, HEADROOM_COST, POOL_HOLDS_CONTEXT};
use crate::facts::{Engine, Rank, Unknown};
use crate::finding::{Answer, Evidence, Finding, grouped, percent};

pub(super) fn judge(
    place: usize,
    subjects: &Subjects,
    rules: &Rules<'_>,
    findings: &mut Vec<Finding>,
) {
    let member = &subjects.members[place];
    findings.push(holds_context(member, rules));
    findings.push(advertised_fits(place, subjects));
    findings.push(headroom_cost(member, rules));
}

/// What a pool must hold: the largest of everything that says how long a request may be, and
/// whether something that might say more is missing.
struct Need {
    tokens: Option<u64>,
    what: &'static str,
    missing: Vec<String>,
}

fn need(member: &Member, rules: &Rules<'_>) -> Need {
    let node = &member.node;
    let mut candidates = Vec::new();
    let mut missing = Vec::new();
    match sane(&node.context) {
        Ok(context) => candidates.push((context, "context")),
        Err(why) => missing.push(format!("context unknown: {why}")),
    }
    // These may only raise what must be held, so that they need not be known; one that cannot be
    // right may be any.
    for fact in [&node.advertised, &node.max_prompt] {
        if let Err(why @ (Unknown::Absurd(_) | Unknown::Contradiction(_))) = fact {
            missing.push(why.to_string());
        }
    }
    missing.dedup();
    let advertised = sane(&node.advertised)
        .ok()
        .map(|it| (it, "advertised length"));
    let prompt = sane(&node.max_prompt).ok().map(|it| (it, "largest prompt"));
    let declared = node.declared_context.as_ref();
    let declared = declared.map(|it| (it.value, "declared context"));
    let asked = rules.context.map(|it| (it, "context of --context"));
    candidates.extend([advertised, prompt, declared, asked].into_iter().flatten());
    // The first of equals: the context, if others repeat it.
    let mut largest: Option<(u64, &'static str)> = None;
    for candidate in candidates {
        if largest.is_none_or(|it| candidate.0 > it.0) {
            largest = Some(candidate);
        }
    }
    Need {
        tokens: largest.map(|it| it.0),
        what: largest.map_or("context", |it| it.1),
        missing,
    }
}

/// Further pools that are told in tokens and hold fewer than these. Whether such a pool holds a
/// request is not told by its size: layers with a window need a window of it, and a part of the
/// prompt while it is computed.
fn small_asides(member: &Member, tokens: u64) -> Vec<String> {
    let asides = member.node.asides.iter().flatten();
    let small = asides.filter_map(|it| Some((it, it.tokens.filter(|has| *has < tokens)?)));
    let text = small.map(|(it, has)| {
        format!(
            "{} holds {} ({}), and whether that is enough is not told",
            it.what,
            grouped(has),
            it.source
        )
    });
    text.collect()
}

/// The smallest pool that is known, and what is not known about the others.
struct Pools<'a> {
    smallest: Option<(&'a Rank, u64)>,
    missing: Vec<String>,
    ranks: usize,
}

fn pools(member: &Member) -> Pools<'_> {
    let mut found = Pools {
        smallest: None,
        missing: Vec::new(),
        ranks: 0,
    };
    let ranks = match &member.node.ranks {
        Ok(ranks) => ranks,
        Err(why) => {
            found.missing.push(format!("pool unknown: {why}"));
            return found;
        }
    };
    if ranks.is_empty() {
        found.missing.push("no rank reports a pool".to_owned());
    }
    found.ranks = ranks.len();
    for rank in ranks {
        match sane(&rank.pool) {
            Ok(pool) if found.smallest.is_none_or(|(_, it)| pool < it) => {
                found.smallest = Some((rank, pool));
            }
            Ok(_) => {}
            Err(why) => found
                .missing
                .push(format!("pool of {} unknown: {why}", rank.name)),
        }
    }
    found
}

fn pool_evidence(member: &Member) -> Vec<Evidence> {
    let Ok(ranks) = &member.node.ranks else {
        let why = member.node.ranks.as_ref().err();
        return vec![Evidence::missing(
            "pool",
            why.map(ToString::to_string).unwrap_or_default(),
        )];
    };
    let of = |rank: &Rank| Evidence::of(format!("pool of {}", rank.name), figure(&rank.pool));
    ranks.iter().map(of).collect()
}

/// `context × headroom`, rounded up.
fn with_headroom(tokens: u64, thousandths: u64) -> u64 {
    let product = u128::from(tokens) * u128::from(thousandths);
    u64::try_from(product.div_ceil(1000)).unwrap_or(u64::MAX)
}

fn factor(thousandths: u64) -> String {
    let text = format!("{}.{:03}", thousandths / 1000, thousandths % 1000);
    let short = text.trim_end_matches('0');
    if short.ends_with('.') {
        format!("{short}0")
    } else {
        short.to_owned()
    }
}

fn holds_context(member: &Member, rules: &Rules<'_>) -> Finding {
    let (need, pools) = (need(member, rules), pools(member));
    let engine = member.node.engine.as_ref().ok().map(|it| it.value);
    let version = member.node.version.as_ref().ok().map(|it| &it.value);
    let refuses = engine.is_some_and(|it| rules.table.refuses_pool_below_context(it, version));
    let thousandths = match refuses {
        true => rules.headroom.refusing_thousandths,
        false => rules.headroom.thousandths,
    };
    let missing: Vec<String> = need.missing.into_iter().chain(pools.missing).collect();
    let check = &POOL_HOLDS_CONTEXT;
    let mut evidence = pool_evidence(member);
    evidence.push(Evidence::of("context", figure(&member.node.context)));
    evidence.push(Evidence::given("headroom", factor(thousandths)));
    let new =
        |answer, says| Finding::new(check, member.subject(), answer, says).with(evidence.clone());
    let (Some(tokens), Some((rank, pool))) = (need.tokens, pools.smallest) else {
        return new(Answer::Unknown, missing.join("; "));
    };
    let target = with_headroom(tokens, thousandths);
    let of = if pools.ranks > 1 {
        format!(" of {}", rank.name)
    } else {
        String::new()
    };
    let (pool_text, need_text) = (grouped(pool), grouped(tokens));
    let (short, part) = (percent(pool, tokens), factor(thousandths));
    let what = need.what;
    let to_fit = |target| change(tokens, target, pool, thousandths) + flags(engine);
    if pool < tokens {
        let says = format!("pool{of} {pool_text} < {what} {need_text}: {short} %");
        return new(Answer::Violated, says).change(to_fit(target));
    }
    if pool < target {
        let says = format!(
            "pool{of} {pool_text} < {what} {need_text} x headroom {part} = {}: {short} % of the {what}",
            grouped(target)
        );
        return new(Answer::Violated, says).change(to_fit(target));
    }
    let says = format!(
        "pool{of} {pool_text} >= {what} {need_text} x {part} = {}",
        grouped(target)
    );
    let missing: Vec<_> = missing
        .into_iter()
        .chain(small_asides(member, target))
        .collect();
    if !missing.is_empty() {
        return new(
            Answer::Unknown,
            format!("{says}, but {}", missing.join("; ")),
        );
    }
    let says = match engine {
        Some(engine) if refuses && thousandths == 1000 => {
            format!("{says} (headroom 1.0: {engine} refuses to start below its context)")
        }
        _ => says,
    };
    new(Answer::Holds, says)
}

fn change(tokens: u64, target: u64, pool: u64, thousandths: u64) -> String {
    let fits = u128::from(pool) * 1000 / u128::from(thousandths.max(1));
    let fits = u64::try_from(fits).unwrap_or(u64::MAX);
    format!(
        "raise the pool to {} tokens, or lower the context from {} to {}",
        grouped(target),
        grouped(tokens),
        grouped(fits)
    )
}

/// With which options.
fn flags(engine: Option<Engine>) -> &'static str {
    match engine {
        Some(Engine::LlamaCpp) => " (--ctx-size is of all slots together, --parallel their number)",
        Some(Engine::Cofferdam) => "",
        _ => {
            " (SGLang: --mem-fraction-static, --context-length; vLLM: \
             --gpu-memory-utilization, --max-model-len)"
        }
    }
}

/// Nodes that a request which enters at `place` may also need a pool of: itself and its
/// counterparts.
fn on_the_way(place: usize, groups: &[Group]) -> Vec<usize> {
    let mut places = vec![place];
    for group in groups {
        if group.prefill.contains(&place) {
            places.extend(&group.decode);
        }
        if group.decode.contains(&place) {
            places.extend(&group.prefill);
        }
    }
    places.sort_unstable();
    places.dedup();
    places
}

fn advertised_fits(place: usize, subjects: &Subjects) -> Finding {
    let member = &subjects.members[place];
    let mut missing = Vec::new();
    let mut smallest: Option<(u64, &Member)> = None;
    for place in on_the_way(place, &subjects.groups) {
        let other = &subjects.members[place];
        let pools = pools(other);
        if let Some(why) = pools.missing.into_iter().next() {
            missing.push(format!("{}: {why}", other.node.name));
        }
        if let Some((_, pool)) = pools.smallest
            && smallest.is_none_or(|(it, _)| pool < it)
        {
            smallest = Some((pool, other));
        }
    }
    let advertised = sane(&member.node.advertised);
    let mut evidence = vec![Evidence::of(
        "advertised length",
        figure(&member.node.advertised),
    )];
    let smallest_member = smallest.map(|(_, other)| other);
    evidence.extend(smallest_member.map(pool_evidence).unwrap_or_default());
    let new = |answer, says| {
        Finding::new(&ADVERTISED_FITS, member.subject(), answer, says).with(evidence.clone())
    };
    let (Ok(length), Some((pool, other))) = (&advertised, smallest) else {
        let unread = advertised
            .err()
            .map(|why| format!("advertised length unknown: {why}"));
        let missing: Vec<String> = unread.into_iter().chain(missing).collect();
        return new(Answer::Unknown, shortened(&missing));
    };
    let at = match other.node.name == member.node.name {
        true => String::new(),
        false => format!(" of {}", other.node.name),
    };
    let (length_text, pool_text) = (grouped(*length), grouped(pool));
    if pool < *length {
        let part = percent(pool, *length);
        let says = format!("advertises {length_text}, the pool{at} holds {pool_text}: {part} %");
        return new(Answer::Violated, says);
    }
    for place in on_the_way(place, &subjects.groups) {
        let other = &subjects.members[place];
        let small = small_asides(other, *length);
        missing.extend(
            small
                .into_iter()
                .map(|it| format!("{}: {it}", other.node.name)),
        );
    }
    let says = format!("advertises {length_text}, the smallest pool{at} holds {pool_text}");
    match missing.is_empty() {
        true => new(Answer::Holds, says),
        false => new(
            Answer::Unknown,
            format!("{says}, but {}", shortened(&missing)),
        ),
    }
}

/// At most three reasons: two hundred nodes that are down are not two hundred reasons.
fn shortened(reasons: &[String]) -> String {
    let shown = reasons
        .iter()
        .take(3)
        .cloned()
        .collect::<Vec<_>>()
        .join("; ");
    match reasons.len() {
        0..=3 => shown,
        more => format!("{shown}; and {} more", more - 3),
    }
}

fn headroom_cost(member: &Member, rules: &Rules<'_>) -> Finding {
    let (need, pools) = (need(member, rules), pools(member));
    let new = |answer, says| {
        Finding::new(&HEADROOM_COST, member.subject(), answer, says).with(pool_evidence(member))
    };
    let (Some(tokens), Some((_, pool))) = (need.tokens, pools.smallest) else {
        let missing: Vec<String> = need.missing.into_iter().chain(pools.missing).collect();
        return new(Answer::Unknown, shortened(&missing));
    };
    let tenths = u128::from(pool) * 10 / u128::from(tokens.max(1));
    let (whole, tenth) = (tenths / 10, tenths % 10);
    let says = format!(
        "one full context takes {} % of the smallest pool: {whole}.{tenth} such requests at once",
        percent(tokens, pool)
    );
    match need.missing.is_empty() && pools.missing.is_empty() {
        true => new(Answer::Holds, says),
        false => new(Answer::Unknown, says),
    }
}
