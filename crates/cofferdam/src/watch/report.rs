//! What is printed about a log.

use super::batch::Found;
use ::watch::forensics::Affected;
use ::watch::plot;
use ::watch::sight::percent;
use serde_json::json;
use std::fmt::Write;

/// Affected requests in the table; `--format json` has all.
const SHOWN: usize = 20;
/// Tenants in the table.
const TENANTS: usize = 20;
/// The drawing, in characters.
const PLOT: (usize, usize) = (66, 18);

/// For people.
pub(super) fn table(found: &mut Found) -> String {
    let mut out = String::new();
    verdict(&mut out, found);
    affected(&mut out, found);
    for (key, it) in &found.plots {
        let name = format!("{} {}", key.model, key.worker);
        let name = name.trim();
        let _ = writeln!(
            out,
            "\nUncached prompt tokens against time to first token{}",
            of(name)
        );
        out.push_str(&plot::text(it, PLOT.0, PLOT.1));
    }
    notices(&mut out, found);
    sight(&mut out, found);
    out
}

fn of(name: &str) -> String {
    match name {
        "" => String::new(),
        name => format!(", {name}"),
    }
}

fn verdict(out: &mut String, found: &Found) {
    let it = &found.findings;
    let answer = match super::batch::exit(found) {
        crate::exit::Exit::Found => format!(
            "FOUND: {} of {} requests cannot be right",
            it.certain(),
            it.requests
        ),
        crate::exit::Exit::Good => format!(
            "nothing found in {} requests, of whose answers {} % could be compared with a floor",
            it.requests,
            percent(it.share_compared())
        ),
        _ => format!(
            "COULD NOT TELL: {} requests, of whose answers {} % could be compared with a floor",
            it.requests,
            percent(it.share_compared())
        ),
    };
    let _ = writeln!(out, "{answer}");
    for why in &found.blind {
        let _ = writeln!(out, "  {}", clean(why));
    }
    let _ = writeln!(
        out,
        "  compared with a floor {}, too short to tell {}, length not learned {}, no time or no \
         answer {}{}",
        it.compared,
        it.too_short,
        it.learning,
        it.not_measured,
        match it.all_cached {
            0 => String::new(),
            n => format!(", all of it cached {n}"),
        }
    );
    if it.tests > 0 {
        let _ = writeln!(
            out,
            "  {} more belong to tests and are not listed",
            it.tests
        );
    }
    for it in &found.unmatched {
        let _ = writeln!(out, "  {}", clean(it));
    }
    if let Some(it) = found.format {
        let other = match found.read.unmarked {
            0 => String::new(),
            n => format!(
                "; {n} of {} lines are about something else",
                found.read.lines
            ),
        };
        let _ = writeln!(
            out,
            "  read with the preset {} ({}){other}",
            it.name, it.about
        );
    }
    if found.read.bad > 0 {
        let first = found.read.first_bad.as_deref().unwrap_or("");
        let _ = writeln!(
            out,
            "  {} of {} lines are not what the mapping says; the first: {first}",
            found.read.bad, found.read.lines
        );
    }
}

fn affected(out: &mut String, found: &Found) {
    let it = &found.findings;
    if it.convicted() == 0 {
        return;
    }
    let word = match it.certain() {
        0 => "Suspected",
        _ => "Affected",
    };
    let _ = writeln!(out, "\n{word}, by signal");
    for (kind, n) in &it.by_signal {
        let _ = writeln!(out, "  {n:>8}  {kind}");
    }
    let _ = writeln!(out, "\n{word}, by tenant");
    let mut tenants: Vec<_> = it.by_tenant.iter().collect();
    tenants.sort_by_key(|(name, n)| (std::cmp::Reverse(**n), (*name).clone()));
    for (tenant, n) in tenants.iter().take(TENANTS) {
        let tenant = if tenant.is_empty() {
            "(not in the log)"
        } else {
            tenant.as_str()
        };
        let _ = writeln!(out, "  {n:>8}  {}", clean(tenant));
    }
    if tenants.len() > TENANTS {
        let _ = writeln!(out, "  ... and {} more tenants", tenants.len() - TENANTS);
    }
    let _ = writeln!(
        out,
        "\n{word} requests (the first {SHOWN}; all: --format json)"
    );
    for it in it.affected.iter().take(SHOWN) {
        line(out, it);
    }
}

fn line(out: &mut String, it: &Affected) {
    let request = &it.request;
    let at = gate::date::rfc3339(request.time.max(0.0) as u64);
    let names = format!("{} {}", clean(&request.tenant), clean(&request.id));
    let _ = writeln!(out, "  {at}  {}", names.trim());
    for signal in &it.signals {
        let _ = writeln!(out, "      {signal}");
    }
}

fn notices(out: &mut String, found: &Found) {
    if found.notices.is_empty() {
        return;
    }
    let _ = writeln!(out, "\nNoticed");
    for (time, name, it) in found.notices.iter().take(SHOWN) {
        let at = gate::date::rfc3339(time.max(0.0) as u64);
        let _ = writeln!(out, "  {at}{}: {it}", of(&clean(name.trim())));
    }
    if found.notices.len() > SHOWN {
        let _ = writeln!(out, "  ... and {} more", found.notices.len() - SHOWN);
    }
}

/// What a silence of this log is worth.
fn sight(out: &mut String, found: &mut Found) {
    let (tolerance, learn) = {
        let settings = found.watch.settings();
        (settings.tolerance, settings.learn)
    };
    let _ = writeln!(out, "\nWhat would have been seen");
    let mut any = false;
    for (key, series) in found.watch.series() {
        any = true;
        let name = clean(format!("{} {}", key.model, key.worker).trim());
        let name = if name.is_empty() {
            "all requests".to_owned()
        } else {
            name
        };
        let (n, hits) = (series.n(), series.hits_known());
        let from = series.sees_from(learn, tolerance);
        let _ = match from {
            Some(from) => writeln!(
                out,
                "  {name}: a skipped prefill of {from} uncached tokens or more (learned from {n})"
            ),
            None => writeln!(
                out,
                "  {name}: no skipped prefill at any length: too few requests of different lengths \
                 (learned from {n})"
            ),
        };
        if !hits {
            let _ = writeln!(
                out,
                "    cached tokens are not in the log: a cache hit and a skipped prefill may look \
                 the same"
            );
        }
    }
    if !any {
        let _ = writeln!(
            out,
            "  nothing: no request of the log has a time to its first token"
        );
    }
    if found.watch.settings().limits.is_empty() {
        let _ = writeln!(out, "  prompts over the limit only if --limit names it");
    }
}

/// Names come from a log: no control characters on a terminal.
fn clean(text: &str) -> String {
    text.chars()
        .map(|it| if it.is_control() { '?' } else { it })
        .collect()
}

/// One object for each affected request, and a last one that sums up.
pub(super) fn json(found: &mut Found) -> String {
    let mut out = String::new();
    for it in &found.findings.affected {
        let _ = writeln!(out, "{}", it.json());
    }
    let (tolerance, learn) = {
        let settings = found.watch.settings();
        (settings.tolerance, settings.learn)
    };
    let series: Vec<_> = found
        .watch
        .series()
        .map(|(key, it)| {
            json!({
                "model": key.model, "worker": key.worker, "learned_requests": it.n(),
                "cached_tokens_reported": it.hits_known(),
                "sees_from_tokens": it.sees_from(learn, tolerance),
                "second_floor": it.second(),
            })
        })
        .collect();
    let notices = found.notices.iter().map(|(time, name, it)| {
        json!({"time_unix_s": time, "series": name.trim(), "notice": it.kind(), "says": it.to_string()})
    });
    let it = &found.findings;
    let summary = json!({
        "summary": {
            "verdict": match super::batch::exit(found) {
                crate::exit::Exit::Found => "found",
                crate::exit::Exit::Good => "nothing_found",
                _ => "could_not_tell",
            },
            "requests": it.requests, "affected": it.certain(), "doubtful": it.doubtful(),
            "share_compared": it.share_compared(), "all_cached": it.all_cached,
            "from_nowhere": it.from_nowhere, "why_not": found.blind, "unmatched": found.unmatched, "listed": it.affected.len(),
            "of_tests": it.tests, "by_tenant": it.by_tenant, "by_signal": it.by_signal,
            "compared": it.compared, "too_short": it.too_short, "learning": it.learning,
            "not_measured": it.not_measured, "lines": found.read.lines, "bad_lines": found.read.bad,
            "preset": found.format.map(|it| it.name), "unmarked_lines": found.read.unmarked,
            "series": series, "notices": notices.collect::<Vec<_>>(),
        }
    });
    let _ = writeln!(out, "{summary}");
    out
}
