//! docs/models.md says what loads; what loads is decided by the code.

use super::tree::files;
use std::collections::BTreeSet;

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
    assert_eq!(rows("Architectures"), set(&model::ARCHITECTURES));
    assert_eq!(rows("Quantizations"), set(&gguf::DType::ALL));
    assert_eq!(rows("Tokenizers"), set(&tokenizer::PRE_TOKENIZERS));
    let default = gguf::fetch::Source::smollm2().file_name();
    assert!(rows("Files that were tried").contains(default));
    let text = document();
    for model in tokenizer::TOKENIZERS {
        assert!(text.contains(&format!("`tokenizer.ggml.model` must be `{model}`")));
    }
}
