//! What is printed.

use super::{Owners, Received, Source, Victim};
use crate::exit::Exit;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fmt::Write;

/// Requests in the table; `--format json` has all.
const SHOWN: usize = 20;
/// Sources of one request in the table.
const SOURCES: usize = 20;

fn verdict(received: &Received, victims: &[Victim]) -> &'static str {
    match super::exit(received, victims) {
        Exit::Found => "found",
        Exit::Good => "nobody",
        _ => "could_not_tell",
    }
}

fn tenants(victims: &[Victim]) -> BTreeSet<&str> {
    let sources = victims.iter().flat_map(Victim::others);
    sources
        .map(|it| it.tenant.as_deref().unwrap_or("(not in the log)"))
        .collect()
}

/// For people.
pub(super) fn table(received: &Received, owners: &Owners, victims: &[Victim]) -> String {
    let mut out = String::new();
    let n = victims.len();
    let others = victims
        .iter()
        .filter(|it| it.others().next().is_some())
        .count();
    let _ = match verdict(received, victims) {
        "found" => writeln!(
            out,
            "FOUND: {others} of {n} requests may have received text of other tenants: {}",
            clean(&tenants(victims).into_iter().collect::<Vec<_>>().join(", "))
        ),
        "nobody" => writeln!(
            out,
            "nobody's: {n} requests, and no page of theirs was another tenant's before"
        ),
        _ => writeln!(out, "COULD NOT TELL: {n} requests received something"),
    };
    if let Some(why) = &received.could_not_tell {
        let _ = writeln!(out, "  {}: there may be more of them", clean(why));
    }
    if owners.bad > 0 {
        let _ = writeln!(
            out,
            "  {} lines of owners are cut or not what they should be",
            owners.bad
        );
    }
    for it in victims.iter().take(SHOWN) {
        let _ = writeln!(
            out,
            "\n{} {} received; it may have been",
            name(&it.tenant),
            clean(&it.request)
        );
        for source in it.sources.iter().take(SOURCES) {
            line(&mut out, source);
        }
        if it.sources.len() > SOURCES {
            let _ = writeln!(
                out,
                "    … and {} more (--format json)",
                it.sources.len() - SOURCES
            );
        }
        if it.sources.is_empty() {
            let _ = writeln!(out, "    nobody's that is known");
        }
        let earlier = it.earlier.len() + it.earlier_more;
        if earlier > 0 {
            let _ = writeln!(
                out,
                "    {earlier} more had the same pages earlier (--format json): theirs only if those above did not fill them"
            );
        }
        for why in &it.unknown {
            let _ = writeln!(out, "    not known: {}", clean(why));
        }
    }
    if n > SHOWN {
        let _ = writeln!(out, "\n… and {} more requests (--format json)", n - SHOWN);
    }
    out
}

fn line(out: &mut String, it: &Source) {
    let at = gate::date::rfc3339(it.time.max(0.0) as u64);
    let _ = writeln!(
        out,
        "    {} {}: had {} of its pages before, in {} {} until {at}",
        name(&it.tenant),
        clean(&it.request),
        it.pages,
        clean(&it.role),
        clean(&it.life)
    );
}

fn name(tenant: &Option<String>) -> String {
    tenant
        .as_ref()
        .map_or("(tenant not in the log)".to_owned(), |it| clean(it))
}

/// Names come from files: no control characters on a terminal.
fn clean(text: &str) -> String {
    text.chars()
        .map(|it| if it.is_control() { '?' } else { it })
        .collect()
}

/// One object for each request, and a last one that sums up.
pub(super) fn json(received: &Received, owners: &Owners, victims: &[Victim]) -> String {
    let source = |it: &Source| -> Value {
        json!({
            "request": it.request, "tenant": it.tenant, "role": it.role, "life": it.life,
            "pages": it.pages, "time_unix_s": it.time,
        })
    };
    let all = |sources: &[Source]| sources.iter().map(source).collect::<Vec<_>>();
    let mut out = String::new();
    for it in victims {
        let line = json!({
            "request": it.request, "tenant": it.tenant, "sources": all(&it.sources),
            "earlier": all(&it.earlier), "earlier_more": it.earlier_more, "unknown": it.unknown,
        });
        let _ = writeln!(out, "{line}");
    }
    let summary = json!({"summary": {
        "verdict": verdict(received, victims), "received": victims.len(),
        "tenants_that_may_be_sources": tenants(victims),
        "could_not_tell": received.could_not_tell, "bad_owner_lines": owners.bad,
    }});
    let _ = writeln!(out, "{summary}");
    out
}
