//! The table of docs/api.md.

use std::path::Path;

use super::rows::{Of, Row, all};

/// What becomes of a field, in words that follow from what is tested.
fn here(row: &Row) -> String {
    let values = |values: &[serde_json::Value]| {
        let shown = values.iter().map(|value| format!("`{value}`"));
        shown.collect::<Vec<_>>().join(", ")
    };
    let verdict = match (
        row.obeyed.is_empty(),
        row.harmless.is_empty(),
        row.refused.is_empty(),
    ) {
        (false, _, _) => "obeyed".to_owned(),
        (true, false, true) => "accepted, without effect".to_owned(),
        (true, false, false) => format!("accepted if {}; else refused", values(&row.harmless)),
        (true, true, _) => "refused".to_owned(),
    };
    match row.note {
        "" => verdict,
        note => format!("{verdict}; {note}"),
    }
}

fn tables() -> String {
    let mut text = String::new();
    for (of, title) in [
        (Of::Both, "Both endpoints"),
        (Of::Chat, "`/v1/chat/completions`"),
        (Of::Message, "A message of `messages`"),
        (Of::Bare, "`/v1/completions`"),
    ] {
        text += &format!("**{title}**\n\n| field | OpenAI | vLLM | llama.cpp | here |\n");
        text += "|---|---|---|---|---|\n";
        for row in all().into_iter().filter(|row| row.of == of) {
            let [openai, vllm, llama] = ['o', 'v', 'l'].map(|who| match row.who.contains(who) {
                true => "yes",
                false => "–",
            });
            let (field, here) = (row.field, here(&row));
            text += &format!("| `{field}` | {openai} | {vllm} | {llama} | {here} |\n");
        }
        text += "\n";
    }
    text
}

/// `TIDY_UPDATE=1` writes it anew.
#[test]
fn the_document_shows_the_table() {
    let (begin, end) = (
        "<!-- fields: written by a test -->\n",
        "<!-- end of fields -->\n",
    );
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/api.md");
    let doc = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = doc.split_once(begin).expect("the place of the table");
    let (shown, after) = rest.split_once(end).expect("the end of the table");
    let expected = format!("\n{}", tables());
    if std::env::var_os("TIDY_UPDATE").is_some() {
        std::fs::write(&path, [before, begin, &expected, end, after].concat()).unwrap();
        return;
    }
    assert_eq!(shown, expected, "docs/api.md; TIDY_UPDATE=1 writes it");
}

#[test]
fn no_field_has_two_rows() {
    let mut seen = std::collections::BTreeSet::new();
    for row in all() {
        let places = match row.of {
            Of::Both => vec![Of::Chat, Of::Bare],
            of => vec![of],
        };
        for of in places {
            assert!(seen.insert((of, row.field)), "{}", row.field);
        }
    }
}
