//! An incident for people who were not there: Markdown, and the same as HTML.

use crate::book::Incident;
use crate::entry::{Dated, Entry, Life};
use crate::times::{span, written};
use std::fmt::Write;

/// Requests that a report names.
const NAMED: usize = 200;

/// The whole story, as Markdown.
pub fn markdown(incident: &Incident, head: &str) -> String {
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
        ("Signals", incident.signals.to_string()),
        ("Seen at", lives(&incident.lives)),
        ("Shows from", trigger(incident)),
        ("Affected requests", incident.affected.to_string()),
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
        let rest = more + requests.len().saturating_sub(NAMED) as u64;
        if rest > 0 {
            let _ = writeln!(
                line,
                "* and {rest} more: `cofferdam incident show --json` names them"
            );
        }
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

fn trigger(incident: &Incident) -> String {
    incident.trigger.map_or("not looked for".to_owned(), |it| {
        format!("prompts of {it} tokens")
    })
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
            ..
        } => {
            let all = requests.len() as u64 + more;
            format!("{all} requests may have been answered wrongly: {how}")
        }
        Entry::Noted { text, by, .. } => format!("{by}: {text}"),
        Entry::Closed { why, by, .. } => format!("incident closed by {by}: {why}"),
    }
}

/// The same as a page that needs nothing else.
pub fn html(incident: &Incident, head: &str) -> String {
    let mut body = String::new();
    let (mut table, mut list) = (false, false);
    for line in markdown(incident, head).lines() {
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
