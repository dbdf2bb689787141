//! Advisory checks: what makes an accident less likely, or would notice it.

use super::{Member, Subjects};
use crate::advisories::Table;
use crate::check::{
    DEFERRED_RELEASE, HEALTH_IS_EVIDENCE, INTROSPECTION_CLOSED, KV_CHECKSUM, ONE_VERSION_PER_ROLE,
    TRANSFER_BOUNDED,
};
use crate::facts::{Engine, Fact, Figure, Role};
use crate::finding::{Answer, Evidence, Finding, Subject, grouped};
use std::collections::BTreeMap;

pub(super) fn judge(member: &Member, table: &Table, findings: &mut Vec<Finding>) {
    findings.push(introspection(member));
    if !member.hands_over() {
        return;
    }
    let node = &member.node;
    let own = [
        on(member, &KV_CHECKSUM, "KV checksum", &node.checksum),
        on(
            member,
            &DEFERRED_RELEASE,
            "deferred release",
            &node.deferred_release,
        ),
        bounded(member),
    ];
    findings.extend(own.map(|it| by_guard(member, table, it)));
    findings.extend(health(member));
}

/// What the engine lacks and the guard does in its stead.
fn by_guard(member: &Member, table: &Table, mut finding: Finding) -> Finding {
    let (Ok(engine), Ok(version), Ok(guard)) = (
        &member.node.engine,
        &member.node.version,
        &member.node.guard,
    ) else {
        return finding;
    };
    let does = match (finding.check, engine.value) {
        (check, _) if *check == KV_CHECKSUM => "compares every page with its own checksum",
        (_, Engine::Sglang) => "holds the pages until writing has ended, without a time-out",
        _ => return finding,
    };
    if finding.answer == Answer::Holds {
        return finding;
    }
    if !table.guard_was_run(engine.value, &version.value) {
        finding.answer = Answer::Unknown;
        finding.says += &format!(
            "; cofferdam-guard {does} where it was run, and it was not run in {}",
            version.value
        );
        finding.change = Some("use a version in which cofferdam-guard was run".to_owned());
        return finding;
    }
    finding.answer = Answer::Holds;
    finding.says = format!("cofferdam-guard {} {does}", guard.value);
    finding.change = None;
    finding.evidence = vec![Evidence {
        what: "guard".to_owned(),
        value: Ok(guard.value.text().into()),
        source: Some(guard.source.clone()),
    }];
    finding
}

/// A switch that should be on.
fn on(
    member: &Member,
    check: &'static crate::check::Check,
    what: &str,
    fact: &Fact<Figure<bool>>,
) -> Finding {
    let (answer, says) = match fact {
        Ok(it) if it.value => (Answer::Holds, format!("{what} is on")),
        Ok(_) => (Answer::Violated, format!("{what} is off")),
        Err(why) => (Answer::Unknown, format!("{what}: {why}")),
    };
    let evidence = [Evidence::of(what, fact.as_ref())];
    Finding::new(check, member.subject(), answer, says).with(evidence)
}

fn introspection(member: &Member) -> Finding {
    let open = &member.node.open_introspection;
    let (answer, says) = match open {
        Ok(it) if it.value => {
            let says = format!("{} answered without a key", it.source);
            (Answer::Violated, says)
        }
        Ok(_) => (
            Answer::Holds,
            "no introspection answered without a key".to_owned(),
        ),
        Err(why) => (Answer::Unknown, why.to_string()),
    };
    let evidence = [Evidence::of("answers without a key", open.as_ref())];
    Finding::new(&INTROSPECTION_CLOSED, member.subject(), answer, says).with(evidence)
}

fn bounded(member: &Member) -> Finding {
    let node = &member.node;
    let evidence = [
        Evidence::of("pages of a transfer call", node.batch_bound.as_ref()),
        Evidence::of(
            "time-out of a transfer, ms",
            node.transfer_timeout_ms.as_ref(),
        ),
        Evidence::of(
            "time-out of the release, ms",
            node.release_timeout_ms.as_ref(),
        ),
    ];
    let new = |answer, says| {
        Finding::new(&TRANSFER_BOUNDED, member.subject(), answer, says).with(evidence.clone())
    };
    if let Ok(bound) = &node.batch_bound
        && bound.value == 0
    {
        return new(
            Answer::Violated,
            "a transfer call moves any number of pages".to_owned(),
        );
    }
    if let (Ok(call), Ok(release)) = (&node.transfer_timeout_ms, &node.release_timeout_ms)
        && call.value >= release.value
    {
        let (call, release) = (grouped(call.value), grouped(release.value));
        let says = format!("a transfer may take {call} ms, pages are released after {release} ms");
        return new(Answer::Violated, says);
    }
    let facts = [
        &node.batch_bound,
        &node.transfer_timeout_ms,
        &node.release_timeout_ms,
    ];
    match facts.into_iter().find_map(|fact| fact.as_ref().err()) {
        Some(why) => new(Answer::Unknown, why.to_string()),
        None => new(
            Answer::Holds,
            "calls are bounded and end before the release".to_owned(),
        ),
    }
}

fn health(member: &Member) -> Option<Finding> {
    let engine = member.node.engine.as_ref().ok()?.value;
    let (answer, says) = match engine {
        Engine::Sglang => (
            Answer::Violated,
            "/health uses a fake bootstrap host: no KV moves",
        ),
        Engine::Vllm => (
            Answer::Violated,
            "/health says that the process lives: no KV moves",
        ),
        Engine::LlamaCpp => (Answer::Violated, "/health says that the model is loaded"),
        // /readyz compares measured limits of live pairs, but computes nothing.
        Engine::Cofferdam => (
            Answer::Violated,
            "/readyz says that a pair is up: no KV moves",
        ),
        _ => (
            Answer::Unknown,
            "what its health endpoint does is not known",
        ),
    };
    let finding = Finding::new(
        &HEALTH_IS_EVIDENCE,
        member.subject(),
        answer,
        says.to_owned(),
    );
    Some(finding)
}

/// The role by which versions are compared: the operator's word, else the node's own.
fn role_word(member: &Member) -> &'static str {
    let own = member.node.role.as_ref().ok().map(|it| it.value);
    match (member.stated, own) {
        (Some(stated), _) => stated.word(),
        (None, Some(Role::Prefill)) => "prefill",
        (None, Some(Role::Decode)) => "decode",
        (None, _) => "server",
    }
}

pub(super) fn versions_of_roles(subjects: &Subjects, findings: &mut Vec<Finding>) {
    let mut roles: BTreeMap<&'static str, Vec<&Member>> = BTreeMap::new();
    for member in &subjects.members {
        roles.entry(role_word(member)).or_default().push(member);
    }
    for (role, members) in roles.into_iter().filter(|(_, members)| members.len() > 1) {
        findings.push(one_version(role, &members));
    }
}

fn one_version(role: &str, members: &[&Member]) -> Finding {
    let mut versions: BTreeMap<String, u32> = BTreeMap::new();
    let mut missing = 0;
    for member in members {
        match (&member.node.engine, &member.node.version) {
            (Ok(engine), Ok(version)) => {
                let version = format!("{} {}", engine.value, version.value.name());
                *versions.entry(version).or_default() += 1;
            }
            _ => missing += 1,
        }
    }
    let each = versions
        .iter()
        .map(|(version, count)| format!("{version} on {count}"));
    let each = each.collect::<Vec<_>>().join(", ");
    let (answer, says) = match (versions.len(), missing) {
        (2.., _) => (Answer::Violated, format!("{role} nodes: {each}")),
        (_, 0) => (Answer::Holds, format!("{role} nodes: {each}")),
        (_, missing) => (
            Answer::Unknown,
            format!("{role} nodes: {missing} of unknown version"),
        ),
    };
    Finding::new(&ONE_VERSION_PER_ROLE, Subject::Fleet, answer, says)
}
