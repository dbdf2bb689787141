//! docs/models.md says what loads; what loads is decided by the code.

use super::tree::{files, root};
use std::collections::BTreeSet;
use std::fmt::Write;

const MODELS: &str = "docs/models.md";

fn document() -> String {
    let mut files = files().into_iter();
    let document = files.find(|file| file.path == MODELS);
    document.expect(MODELS).text
}

/// The first words in backticks of the rows of a section's table.
fn rows(section: &str) -> BTreeSet<String> {
    let text = document();
    let heading = format!("\n## {section}\n");
    let (_, after) = text.split_once(&heading).expect("the section");
    let section = after.split("\n## ").next().unwrap_or(after);
    let lines = section.lines().filter(|line| line.starts_with("| `"));
    let names = lines.skip_while(|line| line.contains(".ggml.") || line.contains("general."));
    names
        .filter_map(|line| line.split('`').nth(1).map(str::to_owned))
        .collect()
}

fn set(names: &[impl ToString]) -> BTreeSet<String> {
    names.iter().map(ToString::to_string).collect()
}

#[test]
fn the_tables_of_what_loads_are_those_of_the_code() {
    let architectures = model::ARCHITECTURES.each_ref().map(|known| known.name);
    assert_eq!(rows("Architectures"), set(&architectures));
    for known in &model::ARCHITECTURES {
        let row = format!("\n| `{}` | {} |\n", known.name, known.models);
        assert!(document().contains(&row), "{row}");
    }
    assert_eq!(rows("Quantizations"), set(&gguf::DType::ALL));
    assert_eq!(rows("Tokenizers"), set(&tokenizer::PRE_TOKENIZERS));
    let default = gguf::fetch::Source::smollm2().file_name();
    assert!(rows("Files that were tried").contains(default));
    let kinds = tokenizer::TOKENIZERS.map(|kind| format!("`{kind}`"));
    let kinds = kinds.join(" or ");
    assert!(document().contains(&format!("`tokenizer.ggml.model` must be {kinds}")));
}

/// What crates/model/tests/reference.rs and invariance.rs run: every recorded model in every format.
fn compared() -> String {
    const FOLDER: &str = "crates/model/tests/reference/";
    let read = |text: &str| -> serde_json::Value { serde_json::from_str(text).unwrap() };
    let formats = gguf::DType::ALL.map(|dtype| dtype.to_string());
    let mut table = format!("| architecture | model | {} |\n", formats.join(" | "));
    writeln!(table, "|---|---|{}", "---|".repeat(formats.len())).unwrap();
    let mut bounds = None;
    for file in files() {
        let Some(name) = file.path.strip_prefix(FOLDER) else {
            continue;
        };
        let Some(name) = name.strip_suffix(".json") else {
            continue;
        };
        if name == "bounds" {
            bounds = Some(read(&file.text));
            continue;
        }
        let case = read(&file.text);
        let recorded = case["formats"].as_array().unwrap();
        let marks = formats.each_ref().map(|format| {
            let is_there = recorded.iter().any(|name| name == format.as_str());
            if is_there { "yes" } else { "no" }
        });
        let architecture = case["architecture"].as_str().unwrap();
        writeln!(
            table,
            "| `{architecture}` | {name} | {} |",
            marks.join(" | ")
        )
        .unwrap();
    }
    let bounds = bounds.expect("the bounds");
    let bound = |name: &str| bounds[name].as_f64().unwrap();
    format!(
        "\nBounds, in standard deviations of the logits: exact from `transformers`, on average {}, at most {};\n\
         from `transformers` with keys and values rounded as our pages hold them, at most {}; fast from exact, on\n\
         average {}. Chunks, pages, threads and neighbours change no bit, which is tried in `Q8_0`,\n\
         with `llama` in every type.\n\n{table}\n",
        bound("exact_mean"),
        bound("exact_largest"),
        bound("rounded_largest"),
        bound("fast_mean"),
    )
}

#[test]
fn the_table_of_what_was_compared_is_up_to_date() {
    const BEGIN: &str = "<!-- written by TIDY_UPDATE=1 cargo test -p cofferdam --test tidy -->\n";
    const END: &str = "<!-- until here -->\n";
    let text = document();
    let (before, rest) = text.split_once(BEGIN).expect("where the table begins");
    let (kept, after) = rest.split_once(END).expect("where it ends");
    let compared = compared();
    if std::env::var_os("TIDY_UPDATE").is_some() {
        let new = [before, BEGIN, &compared, END, after].concat();
        std::fs::write(root().join(MODELS), new).unwrap();
        return;
    }
    assert!(
        kept == compared,
        "{MODELS} is old: TIDY_UPDATE=1 cargo test -p cofferdam --test tidy"
    );
}
