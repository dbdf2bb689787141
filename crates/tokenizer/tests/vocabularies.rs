//! Tokens and texts against other people's tokenizers, of vocabularies of every kind that a GGUF has:
//! small ones that were trained for it (`vocabularies/make.py`), and if COFFERDAM_VOCABULARIES names a
//! folder, the real ones that the same script found.
#![forbid(unsafe_code)]

use std::fs;
use std::path::{Path, PathBuf};

use gguf::{Array, Metadata, Value};
use serde_json::Value as Json;
use tokenizer::{Detokenizer, Tokenizer};

fn folders() -> Vec<PathBuf> {
    let small = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vocabularies");
    let real = std::env::var_os("COFFERDAM_VOCABULARIES").map(PathBuf::from);
    [small].into_iter().chain(real).collect()
}

fn read(path: &Path) -> Json {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// A text, its tokens, and what they become.
type Case = (String, Vec<u32>, String);

/// Name, tokenizer, and what is compared.
fn cases(folder: &Path) -> Vec<(String, Tokenizer, Vec<Case>)> {
    let texts = read(&folder.join("texts.json"));
    let files = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = files
        .filter(|path| {
            path.extension().is_some_and(|it| it == "json") && !path.ends_with("texts.json")
        })
        .collect();
    files.sort();
    let case = |path: PathBuf| {
        let case = read(&path);
        let ids = case["ids"].as_array().unwrap().iter().enumerate();
        let of_text = ids.filter_map(|(at, ids)| {
            let text = texts[at].as_str().unwrap();
            let decoded = case["decoded"][at.to_string()].as_str().unwrap_or(text);
            let ids = ids.as_array()?.iter().map(|id| id.as_u64().unwrap() as u32);
            Some((text.to_owned(), ids.collect(), decoded.to_owned()))
        });
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        (
            name,
            Tokenizer::from_gguf(&metadata(&case)).unwrap(),
            of_text.collect(),
        )
    };
    files.into_iter().map(case).collect()
}

fn metadata(case: &Json) -> Metadata {
    let list = |name: &str| case[name].as_array().cloned().unwrap_or_default();
    let strings = |name: &str| {
        let all = list(name)
            .into_iter()
            .map(|it| it.as_str().unwrap().to_owned());
        Value::Array(Array::String(all.collect()))
    };
    let kinds = list("types")
        .iter()
        .map(|it| it.as_i64().unwrap() as i32)
        .collect();
    let mut writer = testkit::Writer::new();
    let mut key = |name: &str, value| writer.key(&format!("tokenizer.ggml.{name}"), value);
    key("tokens", strings("tokens"));
    key("token_type", Value::Array(Array::I32(kinds)));
    key(
        "model",
        Value::String(case["model"].as_str().unwrap().into()),
    );
    if let Some(pre) = case["pre"].as_str() {
        key("pre", Value::String(pre.into()));
        key("merges", strings("merges"));
    } else {
        let scores = list("scores")
            .iter()
            .map(|it| it.as_f64().unwrap() as f32)
            .collect();
        key("scores", Value::Array(Array::F32(scores)));
        key(
            "add_space_prefix",
            Value::Bool(case["add_space_prefix"].as_bool().unwrap()),
        );
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    writer.write(file.path()).unwrap();
    Metadata::open(file.path()).unwrap()
}

#[test]
fn texts_become_the_tokens_of_the_reference_implementations_and_tokens_become_texts() {
    for folder in folders() {
        for (name, tokenizer, texts) in cases(&folder) {
            let mut wrong = Vec::new();
            for (text, expected, decoded) in &texts {
                let ids = tokenizer.encode(text, false);
                let back = tokenizer.decode(expected).unwrap();
                if ids != *expected || back != *decoded {
                    wrong.push((text, expected, ids, back.clone()));
                }
                let mut stream = Detokenizer::new(&tokenizer);
                let pieces = expected.iter().map(|id| stream.push(*id));
                let streamed = pieces.collect::<String>() + &stream.flush();
                let whole = streamed.strip_prefix(' ').unwrap_or(&streamed);
                assert!(
                    streamed == back || whole == back,
                    "{name} {text:?}: {streamed:?}, not {back:?}"
                );
            }
            println!("{name}: {} texts, {} differ", texts.len(), wrong.len());
            assert!(texts.len() >= 190, "{name} has {} texts", texts.len());
            assert!(
                wrong.is_empty(),
                "{name}: {:#?}",
                &wrong[..wrong.len().min(3)]
            );
        }
    }
}

/// Every control token, written by somebody who may not, before, in and behind other words.
#[test]
fn nobodys_words_become_a_control_token() {
    for folder in folders() {
        for (name, tokenizer, _) in cases(&folder) {
            let special = (0..tokenizer.vocab_size() as u32).filter(|id| tokenizer.is_special(*id));
            let mut seen = 0;
            for id in special.take(100) {
                let text = String::from_utf8(tokenizer.token_bytes(id).unwrap().to_vec()).unwrap();
                for said in [text.clone(), format!("a{text}b"), format!(" {text}{text} ")] {
                    let ids = tokenizer.encode(&said, false);
                    assert!(
                        !ids.iter().any(|id| tokenizer.is_special(*id)),
                        "{name}: {said:?} is {ids:?}"
                    );
                    assert_eq!(tokenizer.decode(&ids).unwrap(), said, "{name}");
                }
                assert!(
                    tokenizer.encode(&text, true).contains(&id),
                    "{name}: {text:?}"
                );
                seen += 1;
            }
            assert!(seen >= 3, "{name} has {seen} control tokens");
        }
    }
}

/// To SentencePiece `▁` and a space are the same; to whoever looks for control tokens in somebody's words
/// they are not.
#[test]
fn nobodys_words_become_the_space_of_a_control_token() {
    let bytes = (0..=255).map(|byte| format!("<0x{byte:02X}>"));
    let words = ["<unk>", "<s>", "</s>", "<|a b|>", "▁", "a", "b"].map(str::to_owned);
    let tokens: Vec<String> = words.into_iter().chain(bytes).collect();
    let types: Vec<i32> = [2, 3, 3, 3, 1, 1, 1].into_iter().chain([6; 256]).collect();
    let case = serde_json::json!({
        "model": "llama",
        "scores": vec![0.0; tokens.len()],
        "tokens": tokens,
        "types": types,
        "add_space_prefix": false,
    });
    let tokenizer = Tokenizer::from_gguf(&metadata(&case)).unwrap();
    assert_eq!(tokenizer.encode("<|a b|>", true), [3]);
    let ids = tokenizer.encode("<|a▁b|>", true);
    assert!(!ids.contains(&3), "{ids:?}");
}
