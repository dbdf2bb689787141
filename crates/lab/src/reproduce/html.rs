//! The report: one file for a browser, without scripts and without anything from elsewhere.

use super::guards::Expected;
use super::incident::Story;
use super::page_map::svg;
use super::pool::Footprint;
use super::run::{Answer, Outcome};
use super::scenario::SENTENCE;
use super::table::{ALWAYS_ON, ALWAYS_ON_WHY, Verdict, gets, leaks, says, share};
use super::timeline::Moment;
use gate::output::markup::escaped;
use std::fmt::Write;

const STYLE: &str = include_str!("report.css");

/// The whole page.
pub(super) fn page(story: &Story) -> String {
    let mut body = String::new();
    opening(&mut body, story);
    request(&mut body, story);
    if let Some(found) = &story.none.footprint {
        pool(&mut body, found);
    }
    steps(&mut body, &story.none.moments);
    table(&mut body, story);
    answers(&mut body, story);
    limits(&mut body, story);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>The incident, reproduced</title>\n<style>\n{STYLE}</style>\n</head>\n\
         <body>\n<main>\n{body}</main>\n</body>\n</html>\n"
    )
}

fn opening(out: &mut String, story: &Story) {
    let shape = story.scenario.size.shape();
    let stops = story
        .alone
        .iter()
        .filter(|(_, it)| Verdict::of(it) == Verdict::Stops);
    let (stops, all) = (stops.count(), story.alone.len());
    let (sentence, _) = story.none.leaked();
    let attended = story.none.footprint.as_ref().and_then(Footprint::attended);
    let (of_a, count) = attended.map_or((0, 0), |it| (it.of_a, it.of_a + it.of_b + it.of_nobody));
    let _ = write!(
        out,
        "<header><p class=\"kicker\">cofferdam-lab reproduce incident</p>\
         <h1>Answered with 200, and with another tenant’s text</h1>\
         <p class=\"lead\">A prompt just over the prefill pool is replaced by a placeholder of one \
         token. Decode, told that all is complete, attends to {of_a} positions that somebody else \
         left in its pages. Real weights ({}), real HTTP, the shipped code: only the decisions of \
         the safeguards are switched off. Prefill’s pool holds {} tokens, the advertised context is \
         {} (the incident’s own proportion, 681,280 of 1,048,576).</p>\
         <ul class=\"figures\">",
        escaped(&story.model),
        thousands(shape.prefill_pool),
        thousands(shape.context),
    );
    let asked = story.none.over.len();
    figure(
        out,
        &format!("{sentence} of {asked}"),
        "answers to tenant B with A’s whole sentence",
    );
    figure(
        out,
        &format!("{of_a} of {count}"),
        "positions of B’s prompt written for A",
    );
    figure(
        out,
        "200",
        "the status, with the right <code>prompt_tokens</code>",
    );
    figure(
        out,
        &format!("{stops} of {all}"),
        "safeguards stop it, each on its own",
    );
    out.push_str("</ul></header>");
}

fn figure(out: &mut String, number: &str, what: &str) {
    let _ = write!(out, "<li><strong>{number}</strong><span>{what}</span></li>");
}

fn request(out: &mut String, story: &Story) {
    let (Some(ask), Some(answer)) = (story.scenario.over.first(), story.none.over.first()) else {
        return;
    };
    let number = |n: Option<u64>| n.map_or("–".into(), |n| n.to_string());
    let _ = write!(
        out,
        "<section><h2>What tenant B asked, and got</h2><div class=\"pair\">\
         <figure><figcaption>The request, {} tokens</figcaption><pre>{}</pre></figure>\
         <figure><figcaption>The answer <span class=\"pill status\">HTTP {}</span>\
         </figcaption><p class=\"answer\">{}</p>\
         <p class=\"usage\">prompt_tokens {} · completion_tokens {}</p></figure></div>\
         <p class=\"note\"><mark>Marked</mark> is text of tenant A. Its prompts were full of \
         “{}”; nothing that B sent has any of these words.</p></section>",
        ask.tokens,
        escaped(&ask.curl("127.0.0.1:PORT", false)),
        answer.status,
        marked(answer),
        number(answer.prompt_tokens),
        number(answer.completion_tokens),
        escaped(SENTENCE),
    );
}

fn pool(out: &mut String, found: &Footprint) {
    let Some(committed) = &found.committed else {
        return;
    };
    let attended = found.attended().unwrap_or_default();
    let _ = write!(
        out,
        "<section><h2>Decode’s pool</h2><div class=\"pair maps\">\
         <figure><figcaption>Before B’s ticket: every page is free</figcaption>{}</figure>\
         <figure><figcaption>At the commit: {} pages are B’s</figcaption>{}</figure></div>\
         <ul class=\"legend\"><li><i class=\"a\"></i>last written for A</li>\
         <li><i class=\"b\"></i>last written for B</li><li><i class=\"none\"></i>never \
         written</li><li><i class=\"own\"></i>in B’s block table</li></ul>\
         <p class=\"note\">A square is a page of {} token slots. Of the {} positions that B’s first \
         step attends to, {} was written for B (the sliver at the left of the first page) and {} \
         for A. Every entry of the block table is in order: the pages <em>are</em> B’s. What is in \
         them is not. Point at a page to read who wrote it.</p></section>",
        svg(
            &found.before,
            found.page_size,
            "decode's pool before the ticket"
        ),
        found.reserved,
        svg(committed, found.page_size, "decode's pool at the commit"),
        found.page_size,
        found.count,
        attended.of_b,
        attended.of_a,
    );
}

fn steps(out: &mut String, moments: &[Moment]) {
    out.push_str("<section><h2>Step by step</h2><ol class=\"steps\">");
    for moment in moments {
        let wrong = if moment.wrong { " class=\"wrong\"" } else { "" };
        let _ = write!(
            out,
            "<li{wrong}><span class=\"who {0}\">{0}</span><div>{1}",
            moment.who,
            escaped(&moment.what)
        );
        if let Some((guard, _)) = moment.guard {
            let alone = match guard.expected() {
                Expected::Leak => "alone it would not have stopped this",
                _ => "alone it would have stopped this",
            };
            let _ = write!(
                out,
                "<small>switched off here: <b>{}</b>; {alone}</small>",
                escaped(guard.title()),
            );
        }
        out.push_str("</div></li>");
    }
    out.push_str("</ol></section>");
}

fn table(out: &mut String, story: &Story) {
    out.push_str(
        "<section><h2>Each safeguard, alone</h2><p class=\"note\">Everything else stays off. \
         Tenant A’s own request and a short one of B’s are answered alike in every row.</p>\
         <table><thead><tr><th>Switched on</th><th>Tenant B gets</th><th>A’s text</th><th>Stops \
         it?</th></tr></thead><tbody>",
    );
    row(out, ("none", ""), &story.none, "");
    for (guard, outcome) in &story.alone {
        row(out, (guard.title(), guard.clause()), outcome, guard.why());
    }
    row(out, (ALWAYS_ON, ""), &story.none, ALWAYS_ON_WHY);
    let all = "every one but the first, which would not let it start";
    let why = "As shipped: the edge answers, and no worker hears of it.";
    row(out, (all, ""), &story.all, why);
    out.push_str("</tbody></table></section>");
}

fn row(out: &mut String, (title, clause): (&str, &str), outcome: &Outcome, why: &str) {
    let verdict = Verdict::of(outcome);
    let (class, word) = match verdict {
        Verdict::Stops => ("good", "stops it"),
        Verdict::Hides => ("warn", "hides it"),
        Verdict::Leaks if why.is_empty() => ("bad", "leaks"),
        Verdict::Leaks => ("bad", "does not"),
    };
    let clause = match clause {
        "" => String::new(),
        clause => format!("<small>{}</small>", escaped(clause)),
    };
    let said = match verdict {
        Verdict::Stops | Verdict::Hides => escaped(&says(outcome)),
        Verdict::Leaks => outcome.over.first().map(in_one_line).unwrap_or_default(),
    };
    let _ = write!(
        out,
        "<tr><th scope=\"row\">{}{clause}</th><td data-label=\"Tenant B gets\"><b>{}</b>\
         <small>{said}</small></td><td data-label=\"A’s text\">{}</td>\
         <td data-label=\"Stops it?\"><span class=\"pill {class}\">{word}</span>\
         <small>{}</small></td></tr>",
        escaped(title),
        escaped(&gets(outcome)),
        share(outcome),
        escaped(why),
    );
}

fn answers(out: &mut String, story: &Story) {
    let _ = write!(
        out,
        "<section><h2>All of B’s over-long prompts, every safeguard off</h2><p class=\"note\">{}\
         </p><table class=\"plain\"><thead><tr><th>Prompt begins</th><th>Tokens</th><th>Status</th>\
         <th>Answer</th></tr></thead><tbody>",
        escaped(&leaks(&story.none))
    );
    for (ask, answer) in story.scenario.over.iter().zip(&story.none.over) {
        let _ = write!(
            out,
            "<tr><td data-label=\"Prompt begins\">{}…</td><td data-label=\"Tokens\">{}</td>\
             <td data-label=\"Status\">{}</td><td data-label=\"Answer\">{}</td></tr>",
            escaped(ask.begins()),
            ask.tokens,
            answer.status,
            in_one_line(answer)
        );
    }
    out.push_str("</tbody></table></section>");
}

fn limits(out: &mut String, story: &Story) {
    let size = story.scenario.size.name();
    let _ = write!(
        out,
        "<section><h2>What this shows, and what not</h2><ul>\
         <li>Drivers, machines, ledger, fabric, model and HTTP server are those that ship. The \
         safeguards are decisions of the machines, taken through a type parameter that the product \
         fixes; “off” is what the real engine did, or left out.</li>\
         <li>Landing is on in every row, because no fabric here writes into decode’s pool directly; \
         the checker explores that mode.</li>\
         <li>Prefix caches are off, as they were on decode in the incident, so that pages are free \
         when their request ends. Requests come one after another, and free pages are taken lowest \
         first: that is why the same pages meet again every time.</li>\
         <li>Sampling is greedy and the engine is batch-invariant: on one machine every run gives \
         the same bytes. On another processor a word may differ.</li>\
         <li>A small model repeats what it sees. A large one did so too: 155 responses, all 200.\
         </li></ul>\
         <pre>cofferdam-lab reproduce incident --size {size} --report incident.html\n\
         cofferdam serve --pool-tokens {} --max-context {} --page-size {}   # refuses, and says what fits\
         </pre></section>",
        story.scenario.size.shape().prefill_pool,
        story.scenario.size.shape().context,
        story.scenario.size.shape().page_size,
    );
}

/// [`marked`], with line ends shown instead of made.
fn in_one_line(answer: &Answer) -> String {
    marked(answer)
        .replace("</mark><br><mark>", "<br>")
        .replace("<br>", "\u{21b5} ")
}

/// The answer, with every run of words marked that is A's.
fn marked(answer: &Answer) -> String {
    let text = answer.text.as_deref().unwrap_or_default();
    // What A's document is made of, so that a run may begin anywhere in it.
    let document = format!("- {SENTENCE}\n\n").repeat(8);
    let mut out = String::new();
    let mut rest = text;
    while !rest.is_empty() {
        let longest = rest
            .char_indices()
            .map(|(at, c)| at + c.len_utf8())
            .take_while(|end| document.contains(&rest[..*end]))
            .last();
        match longest {
            Some(end) if end >= MARKED_BYTES_MIN => {
                let run = lines(&rest[..end]).replace("<br>", "</mark><br><mark>");
                let _ = write!(out, "<mark>{run}</mark>");
                rest = &rest[end..];
            }
            _ => {
                let one = rest.chars().next().map_or(0, char::len_utf8);
                out.push_str(&lines(&rest[..one]));
                rest = &rest[one..];
            }
        }
    }
    out
}

/// Shorter runs may be anybody's.
const MARKED_BYTES_MIN: usize = 12;

fn lines(text: &str) -> String {
    let lines: Vec<_> = text.split('\n').map(escaped).collect();
    lines.join("<br>")
}

fn thousands(n: u32) -> String {
    match n {
        0..1000 => n.to_string(),
        _ => format!("{},{:03}", n / 1000, n % 1000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_as_is_marked_and_nothing_else_and_no_text_becomes_markup() {
        let answer = |text: &str| Answer {
            status: 200,
            error: None,
            text: Some(text.into()),
            prompt_tokens: None,
            completion_tokens: None,
        };
        let shown = marked(&answer("the <b> & password of Northwind Bank is red"));
        assert_eq!(
            shown,
            "the &lt;b&gt; &amp;<mark> password of Northwind Bank is </mark>red"
        );
        assert_eq!(marked(&answer("the boats")), "the boats");
        assert_eq!(
            marked(&answer("is tiger seven lotus.\n\n- The vault")),
            "<mark>is tiger seven lotus.</mark><br><mark></mark><br><mark>- The vault</mark>"
        );
    }
}
