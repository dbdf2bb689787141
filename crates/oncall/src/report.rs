//! An incident for people who were not there: Markdown, and the same as HTML.

use crate::book::Incident;
use crate::entry::{Dated, Entry, Life};
use crate::times::{span, written};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Requests that a report names.
const NAMED: usize = 200;

/// `1 request`, `2 requests`.
pub fn counted(n: u64, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

/// How many requests may have been answered wrongly, as far as anybody has looked.
pub fn affected_requests(incident: &Incident) -> String {
    match incident.affected {
        Some(n) => counted(n, "request", "requests") + &of_whom(&incident.tenants),
        None => "not looked for: ask `cofferdam watch` about the access log".to_owned(),
    }
}

/// Whose they are, those with the most first: ` of blue (3), red (1)`.
pub fn of_whom(tenants: &BTreeMap<String, u64>) -> String {
    const NAMED: usize = 20;
    let mut most: Vec<_> = tenants.iter().collect();
    most.sort_by_key(|(name, n)| (std::cmp::Reverse(**n), *name));
    let named = most.iter().take(NAMED);
    let named: Vec<_> = named.map(|(name, n)| format!("{name} ({n})")).collect();
    match (named.is_empty(), most.len().saturating_sub(NAMED)) {
        (true, _) => String::new(),
        (false, 0) => format!(" of {}", named.join(", ")),
        (false, more) => format!(" of {} and {more} more tenants", named.join(", ")),
    }
}

/// The whole story, as Markdown. `doors`: those that are closed because of it now, in sentences.
pub fn markdown(incident: &Incident, doors: &[String], head: &str) -> String {
    let mut text = String::new();
    let line = &mut text;
    let _ = writeln!(line, "# Incident {}\n\n{}\n", incident.id, incident.title);
    let ended = incident.closed.map_or("still open".to_owned(), |at| {
        let after = span(at.saturating_sub(incident.opened));
        format!("closed {}, after {after}", written(at))
    });
    for (what, says) in [
        ("About", incident.scope.to_string()),
        (
            "Opened",
            format!("{} by {}", written(incident.opened), incident.by),
        ),
        ("Ended", ended),
        ("Doors now", doors_now(doors)),
        ("Signals", incident.signals.to_string()),
        ("Seen at", lives(&incident.lives)),
        ("Shows from", trigger(incident)),
        ("Affected", affected_requests(incident)),
    ] {
        let _ = writeln!(line, "* **{what}:** {says}");
    }
    let _ = writeln!(
        line,
        "\n## Timeline (UTC)\n\n| time | after | what |\n|---|---|---|"
    );
    for dated in &incident.timeline {
        let after = span(dated.at.saturating_sub(incident.opened));
        let what = what(&dated.entry).replace('|', "\\|").replace('\n', " ");
        let _ = writeln!(line, "| {} | {after} | {what} |", written(dated.at));
    }
    let named = incident.timeline.iter().rev().find_map(affected);
    if let Some((requests, how, more)) = named {
        let _ = writeln!(line, "\n## Affected requests\n\n{how}.\n");
        for request in requests.iter().take(NAMED) {
            let _ = writeln!(line, "* `{request}`");
        }
        let rest = requests.len().saturating_sub(NAMED);
        if rest > 0 {
            let id = &incident.id;
            let _ = writeln!(
                line,
                "* and {rest} more: `cofferdam incident show {id} --json` names them"
            );
        }
        if more > 0 {
            let _ = writeln!(
                line,
                "* and {more} more that no line names: their lives and lengths are those above"
            );
        }
    }
    if incident.closed.is_none() {
        let _ = writeln!(
            line,
            "\nIt is open: what to do next stands on the operators' page (`--admin`) and in `cofferdam top`; \
             only there a door is opened again."
        );
    }
    let _ = writeln!(
        line,
        "\nEvery line of this is in the journal, whose last line has the SHA-256 `{head}`: `cofferdam \
         incident verify` compares. Ids only; no text of anybody is kept."
    );
    text
}

fn affected(dated: &Dated) -> Option<(&[String], &str, u64)> {
    match &dated.entry {
        Entry::Affected {
            requests,
            how,
            more,
            ..
        } => Some((requests, how, *more)),
        _ => None,
    }
}

fn doors_now(doors: &[String]) -> String {
    match doors.is_empty() {
        true => "none is closed because of it".to_owned(),
        false => doors.join("; "),
    }
}

fn trigger(incident: &Incident) -> String {
    match (incident.trigger, incident.affected) {
        (Some(tokens), _) => format!("prompts of {tokens} tokens"),
        (None, Some(_)) => "no length that shows it each time: any prompt may".to_owned(),
        (None, None) => "not looked for".to_owned(),
    }
}

fn lives(lives: &[Life]) -> String {
    let each = lives.iter().map(|it| match it.engine.as_str() {
        // Evidence of `probe` names lives alone.
        "" => format!("life {}", it.life),
        engine => format!("{engine} (life {})", it.life),
    });
    match each.collect::<Vec<_>>().join(", ") {
        none if none.is_empty() => "not known".to_owned(),
        named => named,
    }
}

/// One entry, in a sentence.
pub fn what(entry: &Entry) -> String {
    match entry {
        Entry::Began { by, version, model } => {
            format!("gateway {by}, version {version}, begins to serve {model}")
        }
        Entry::NewLife { life, before } => {
            let (engine, life) = (&life.engine, &life.life);
            match before {
                None => format!("{engine} is up: life {life}"),
                Some(before) => {
                    format!("{engine} is another process: life {life}, before {before}")
                }
            }
        }
        Entry::Signal { signal, .. } => {
            let request = signal.request.as_ref();
            let request = request.map_or(String::new(), |it| format!(", request {it}"));
            format!(
                "signal {} from {}{request}, at {}: {}",
                signal.signal.as_str(),
                signal.source,
                lives(&signal.lives),
                signal.says
            )
        }
        Entry::More { signal, count, .. } => format!("{count} more of {}", signal.as_str()),
        Entry::Opened { title, by, .. } => format!("incident opened by {by}: {title}"),
        Entry::Restricted {
            scope,
            access,
            why,
            by,
            ..
        } => format!("{scope} is {} from now on, by {by}: {why}", access.as_str()),
        Entry::Restored {
            scope,
            why,
            by,
            proofs,
            ..
        } => {
            let proofs = match proofs.is_empty() {
                true => "no proof was needed".to_owned(),
                false => format!("proofs: {}", proofs.join("; ")),
            };
            format!("{scope} is open again, by {by}: {why} ({proofs})")
        }
        Entry::Declined { what, why, by } => format!("{by} wanted: {what}. Declined: {why}"),
        Entry::Proved { proof } => format!(
            "proof by {}: {} ({})",
            proof.proof.as_str(),
            proof.says,
            lives(&proof.lives)
        ),
        Entry::Trigger {
            at_least_tokens,
            clean_tokens,
            lives: at,
            ..
        } => format!(
            "it shows from prompts of {at_least_tokens} tokens on; with {clean_tokens} it does not \
             ({})",
            lives(at)
        ),
        Entry::Affected {
            requests,
            how,
            more,
            tenants,
            ..
        } => {
            let all = requests.len() as u64 + more;
            let all = counted(all, "request", "requests") + &of_whom(tenants);
            format!("{all} may have been answered wrongly: {how}")
        }
        Entry::Noted { text, by, .. } => format!("{by}: {text}"),
        Entry::Closed { why, by, .. } => format!("incident closed by {by}: {why}"),
    }
}

/// The same as a page that needs nothing else.
pub fn html(incident: &Incident, doors: &[String], head: &str) -> String {
    let mut body = String::new();
    let (mut table, mut list) = (false, false);
    for line in markdown(incident, doors, head).lines() {
        let cells = line.strip_prefix("| ").and_then(|it| it.strip_suffix(" |"));
        if table && cells.is_none() {
            body.push_str("</tbody></table>\n");
            table = false;
        }
        let item = line.strip_prefix("* ");
        if list && item.is_none() {
            body.push_str("</ul>\n");
            list = false;
        }
        if let Some(cells) = cells {
            let cells: Vec<_> = cells
                .replace("\\|", "\u{1}")
                .split(" | ")
                .map(inline)
                .collect();
            let tag = if table { "td" } else { "th" };
            let row: String = cells
                .iter()
                .map(|it| format!("<{tag}>{it}</{tag}>"))
                .collect();
            let row = row.replace('\u{1}', "|");
            match table {
                true => body.push_str(&format!("<tr>{row}</tr>\n")),
                false => body.push_str(&format!("<table><thead><tr>{row}</tr></thead><tbody>\n")),
            }
            table = true;
        } else if let Some(item) = item {
            if !list {
                body.push_str("<ul>\n");
            }
            list = true;
            body.push_str(&format!("<li>{}</li>\n", inline(item)));
        } else if let Some(title) = line.strip_prefix("# ") {
            body.push_str(&format!("<h1>{}</h1>\n", inline(title)));
        } else if let Some(title) = line.strip_prefix("## ") {
            body.push_str(&format!("<h2>{}</h2>\n", inline(title)));
        } else if !line.is_empty() && !line.starts_with("|---") {
            body.push_str(&format!("<p>{}</p>\n", inline(line)));
        }
    }
    let id = escaped(&incident.id);
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width\"><title>Incident {id}</title><style>body{{font:16px/1.5 \
         system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}}table{{border-collapse:\
         collapse;width:100%}}th,td{{text-align:left;vertical-align:top;padding:.4rem .6rem;border-bottom:\
         1px solid #ccc;overflow-wrap:anywhere}}td:nth-child(-n+2){{white-space:nowrap}}</style></head>\
         <body>\n{body}</body></html>\n"
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// Bold and code; everything else is text.
fn inline(text: &str) -> String {
    let mut out = String::new();
    for (n, part) in escaped(text).split("**").enumerate() {
        out.push_str(match (n, n % 2) {
            (0, _) => "",
            (_, 1) => "<strong>",
            _ => "</strong>",
        });
        for (n, part) in part.split('`').enumerate() {
            out.push_str(match (n, n % 2) {
                (0, _) => "",
                (_, 1) => "<code>",
                _ => "</code>",
            });
            out.push_str(part);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::{Scope, Signal, SignalKind};
    use crate::{Duty, Policy};

    fn incident(affected: &[(usize, u64)]) -> Incident {
        let mut duty = Duty::new(Policy::default(), "m", crate::Book::default());
        let signal = Signal {
            signal: SignalKind::CanaryLeak,
            lives: Vec::new(),
            request: None,
            tenant: None,
            says: "seen".to_owned(),
            source: "test".to_owned(),
        };
        duty.signal(1, signal, "i");
        for (named, more) in affected {
            let entry = Entry::Affected {
                incident: "i".to_owned(),
                requests: (0..*named).map(|n| format!("r{n}")).collect(),
                how: "by hand".to_owned(),
                more: *more,
                tenants: [
                    ("blue".to_owned(), *named as u64),
                    ("red".to_owned(), *more),
                ]
                .into(),
            };
            duty.note(2, entry);
        }
        duty.book().incident("i").unwrap().clone()
    }

    fn told(affected: &[(usize, u64)]) -> String {
        markdown(&incident(affected), &[], "abc")
    }

    #[test]
    fn who_is_affected_is_said_also_when_nobody_has_looked() {
        let nobody = "* **Affected:** not looked for: ask `cofferdam watch` about the access log\n";
        assert!(told(&[]).contains(nobody), "{}", told(&[]));
        assert!(told(&[]).contains("* **Shows from:** not looked for\n"));
        let one = told(&[(1, 0)]);
        for line in [
            "* **Affected:** 1 request of blue (1), red (0)\n",
            "| 1 request of blue (1), red (0) may have been answered wrongly: by hand |",
            "* **Shows from:** no length that shows it each time: any prompt may\n",
            "\n* `r0`\n",
        ] {
            assert!(one.contains(line), "{line}\n{one}");
        }
        assert!(!one.contains(" more"), "{one}");
        assert!(one.contains("\nIt is open: what to do next stands on the operators' page"));
        let many = told(&[(203, 0)]);
        assert!(
            many.contains("* and 3 more: `cofferdam incident show i --json` names them\n"),
            "{many}"
        );
        assert!(!many.contains("`r200`"), "{many}");
        let more = told(&[(2, 40)]);
        assert!(
            more.contains("* **Affected:** 42 requests of red (40), blue (2)\n"),
            "{more}"
        );
        assert!(more.contains("* and 40 more that no line names"), "{more}");
        assert!(!more.contains("names them"), "{more}");
    }

    #[test]
    fn doors_are_said_as_they_stand() {
        let it = incident(&[]);
        let none = markdown(&it, &[], "abc");
        assert!(
            none.contains("* **Doors now:** none is closed because of it\n"),
            "{none}"
        );
        let doors = [
            format!("{} is private", Scope::Fleet),
            "x is closed".to_owned(),
        ];
        let page = html(&it, &doors, "abc");
        let item = "<li><strong>Doors now:</strong> the fleet is private; x is closed</li>";
        assert!(page.contains(item), "{page}");
    }
}
