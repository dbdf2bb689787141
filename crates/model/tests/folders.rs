//! Folders as Hugging Face ships them: the logits are those that transformers computes in float32
//! (`checkpoint/tests/fixtures/make.py`).
#![forbid(unsafe_code)]

mod support;

use std::path::Path;

use model::{Isa, Numeric};
use serde_json::Value;
use support::{Bench, load};

#[test]
fn the_logits_of_a_folder_are_those_of_transformers() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../checkpoint/tests/fixtures");
    let mut compared = Vec::new();
    for entry in std::fs::read_dir(fixtures).unwrap() {
        let folder = entry.unwrap().path();
        if !folder.is_dir() {
            continue;
        }
        model::check_architecture(&checkpoint::metadata(&folder).unwrap()).unwrap();
        let expected = std::fs::read(folder.join("expected.json")).unwrap();
        let expected: Value = serde_json::from_slice(&expected).unwrap();
        let numbers = |row: &Value| -> Vec<f64> {
            row.as_array()
                .unwrap()
                .iter()
                .map(|it| it.as_f64().unwrap())
                .collect()
        };
        let tokens: Vec<u32> = numbers(&expected["tokens"])
            .iter()
            .map(|it| *it as u32)
            .collect();
        let file = checkpoint::open(&folder).unwrap();
        let model = load(&file, Numeric::Exact, Isa::detect(), 1);
        let rows = Bench::new(&model, 16, &[tokens.len()]).all_logits(&tokens, 7);
        let last = rows[rows.len() - 4..].iter();
        for (row, expected) in last.zip(expected["last_logits"].as_array().unwrap()) {
            let expected = numbers(expected);
            assert_eq!(row.len(), expected.len());
            let far = |(a, b): (&f32, &f64)| (f64::from(*a) - b).abs();
            let largest = row.iter().zip(&expected).map(far).fold(0.0, f64::max);
            let scale = expected.iter().fold(0.0f64, |most, x| most.max(x.abs()));
            println!("{}: {largest:.5} of {scale:.2}", folder.display());
            // KV is kept in float16.
            assert!(
                largest < 0.005 * scale,
                "{}: {largest} of {scale}",
                folder.display()
            );
        }
        compared.push(folder.file_name().unwrap().to_string_lossy().into_owned());
    }
    compared.sort();
    assert_eq!(
        compared,
        [
            "gemma2",
            "gemma3",
            "llama",
            "mistral",
            "phi3",
            "phi3-long",
            "qwen2",
            "qwen3"
        ]
    );
}
