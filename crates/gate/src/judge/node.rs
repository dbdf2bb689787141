//! What is asked of every node alone, apart from pool and version.

use super::{Member, Stated};
use crate::check::{
    ALL_KV_JUDGED, EVERY_REPLICA_READ, NO_SILENT_TRUNCATION, NODE_ANSWERS, ROLE_AS_STATED,
};
use crate::facts::{Engine, Role};
use crate::finding::{Answer, Evidence, Finding};

pub(super) fn judge(member: &Member, findings: &mut Vec<Finding>) {
    findings.push(answers(member));
    findings.extend(role(member));
    findings.push(truncation(member));
    findings.extend(all_kv(member));
    if member.shared_address {
        let says = "one address for several servers: the one that answered was read";
        let check = &EVERY_REPLICA_READ;
        let finding = Finding::new(check, member.subject(), Answer::Unknown, says.to_owned());
        findings.push(finding);
    }
}

fn answers(member: &Member) -> Finding {
    let node = &member.node;
    let evidence = [Evidence {
        what: "engine".into(),
        value: node
            .engine
            .as_ref()
            .map(|it| it.value.name().into())
            .map_err(ToString::to_string),
        source: node.engine.as_ref().ok().map(|it| it.source.clone()),
    }];
    let (answer, says) = match &node.engine {
        Ok(engine) if engine.value.is_supported() => {
            let version = match &node.version {
                Ok(version) => version.value.text().to_owned(),
                Err(_) => "of unknown version".to_owned(),
            };
            (Answer::Holds, format!("{} {version}", engine.value))
        }
        Ok(engine) => {
            let says = format!(
                "{} is recognised but not supported: nothing is guessed",
                engine.value
            );
            (Answer::Unknown, says)
        }
        Err(why) => (Answer::Unknown, why.to_string()),
    };
    Finding::new(&NODE_ANSWERS, member.subject(), answer, says).with(evidence)
}

/// Whether the engine says what it does without being started for development.
fn reports_role(engine: Engine) -> bool {
    matches!(engine, Engine::Sglang | Engine::Cofferdam)
}

fn role(member: &Member) -> Option<Finding> {
    let stated = member.stated?;
    let evidence = [Evidence {
        what: "role".into(),
        value: match &member.node.role {
            Ok(role) => Ok(role.value.to_string().into()),
            Err(why) => Err(why.to_string()),
        },
        source: member.node.role.as_ref().ok().map(|it| it.source.clone()),
    }];
    let new = |answer, says| {
        let finding = Finding::new(&ROLE_AS_STATED, member.subject(), answer, says);
        Some(finding.with(evidence.clone()))
    };
    let role = match &member.node.role {
        Ok(role) => role.value,
        Err(_) if stated == Stated::Server && member.node.transfers.is_ok() => {
            return new(Answer::Violated, handed_over(member));
        }
        Err(why) => {
            // An engine that says it nowhere is taken at the operator's word, which is no finding.
            let silent = |it: &crate::facts::Figure<Engine>| !reports_role(it.value);
            if member.node.engine.as_ref().is_ok_and(silent) {
                return None;
            }
            return new(
                Answer::Unknown,
                format!("stated as {}: {why}", stated.word()),
            );
        }
    };
    let agrees = match (stated, role) {
        (_, Role::Either) => stated != Stated::Server,
        (Stated::Prefill, role) => role == Role::Prefill,
        (Stated::Decode, role) => role == Role::Decode,
        (Stated::Server, role) => role == Role::Whole,
    };
    match agrees {
        true => new(Answer::Holds, format!("{role}, as stated")),
        false => new(
            Answer::Violated,
            format!("stated as {}, but it is {role}", stated.word()),
        ),
    }
}

/// What a server is told that was said to answer alone, and is not alone.
fn handed_over(member: &Member) -> String {
    match &member.node.transfers {
        Ok(seen) => format!(
            "stated as server, but it hands KV over or takes it: {} ({})",
            seen.value, seen.source
        ),
        Err(why) => why.to_string(), // asked only where it was seen
    }
}

/// What no other check speaks about, though answers rest on it.
fn all_kv(member: &Member) -> Option<Finding> {
    let supported = |it: &crate::facts::Figure<Engine>| it.value.is_supported();
    let known = member.node.engine.as_ref();
    if known.is_ok_and(|it| !supported(it)) {
        return None; // `node-answers` says so
    }
    let new = |answer, says| Finding::new(&ALL_KV_JUDGED, member.subject(), answer, says);
    let asides = match &member.node.asides {
        Ok(asides) => asides,
        Err(why) => return Some(new(Answer::Unknown, why.to_string())),
    };
    // One with a size is judged with the pools.
    let unjudged: Vec<_> = asides.iter().filter(|it| it.tokens.is_none()).collect();
    if unjudged.is_empty() {
        let says = "it keeps no KV that no check speaks about".to_owned();
        return Some(new(Answer::Holds, says));
    }
    let evidence = unjudged.iter().map(|it| Evidence {
        what: "beside the pool".into(),
        value: Ok(it.what.clone().into()),
        source: Some(it.source.clone()),
    });
    let evidence: Vec<_> = evidence.collect();
    let mut names: Vec<_> = unjudged.iter().map(|it| it.what.as_str()).collect();
    names.dedup();
    let says = format!("not judged by any check: {}", names.join("; "));
    Some(new(Answer::Unknown, says).with(evidence))
}

fn truncation(member: &Member) -> Finding {
    let truncates = &member.node.truncates;
    let evidence = [Evidence::of("cuts prompts", truncates.as_ref())];
    let (answer, says) = match truncates {
        Ok(it) if it.value => (
            Answer::Violated,
            "prompts that are too long are cut".to_owned(),
        ),
        Ok(_) => (
            Answer::Holds,
            "prompts that are too long are refused".to_owned(),
        ),
        Err(why) => (Answer::Unknown, why.to_string()),
    };
    Finding::new(&NO_SILENT_TRUNCATION, member.subject(), answer, says).with(evidence)
}
