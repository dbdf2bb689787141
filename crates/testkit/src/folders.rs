//! Small folders as Hugging Face has them: `tokenizer.json` and what lies beside it.

use serde_json::{Map, Value, json};
use std::fs;
use std::path::Path;

/// How a vocabulary is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FolderKind {
    /// Byte-level BPE with a pattern of words, as Llama 3's and Qwen's.
    ByteLevel,
    /// BPE over text with a token for each byte, `▁` for a space, as Llama 2's.
    Llama,
    /// Unigram, as T5's and XLNet's.
    Unigram,
}

/// Control tokens of every folder here.
const SPECIALS: [&str; 5] = ["<s>", "</s>", "<|start|>", "<|end|>", "<|mask|>"];

/// What templates of these folders write: `<|start|>role\ncontent<|end|>\n` for each message.
const TEMPLATE: &str = "{{ bos_token }}{% for m in messages %}{{ '<|start|>' + m['role'] + \
    '\\n' + m['content'] + '<|end|>' + '\\n' }}{% endfor %}{% if add_generation_prompt %}\
    {{ '<|start|>assistant\\n' }}{% endif %}";

const MERGES: [(&str, &str); 16] = [
    ("h", "e"),
    ("l", "l"),
    ("he", "ll"),
    ("hell", "o"),
    ("_", "w"),
    ("o", "r"),
    ("_w", "or"),
    ("l", "d"),
    ("_wor", "ld"),
    ("t", "h"),
    ("_", "th"),
    ("_th", "e"),
    ("_", "_"),
    ("i", "n"),
    ("_", "in"),
    ("e", "n"),
];

/// Writes such a folder: `tokenizer.json`, `tokenizer_config.json` with a template, and
/// `generation_config.json`.
pub fn folder(dir: &Path, kind: FolderKind) {
    fs::create_dir_all(dir).expect("a folder can be made");
    let put = |name: &str, value: &Value| {
        let text = serde_json::to_string(value).expect("a value is JSON");
        fs::write(dir.join(name), text).expect("a file can be written");
    };
    let config = json!({
        "bos_token": "<s>",
        "eos_token": {"__type": "AddedToken", "content": "</s>", "lstrip": false, "special": true},
        "chat_template": TEMPLATE,
    });
    put("tokenizer_config.json", &config);
    let vocabulary = match kind {
        FolderKind::ByteLevel => byte_level(),
        FolderKind::Llama => llama(),
        FolderKind::Unigram => unigram(),
    };
    let end = vocabulary["added_tokens"][3]["id"].clone();
    put("generation_config.json", &json!({"eos_token_id": [1, end]}));
    put("tokenizer.json", &vocabulary);
}

/// The last one takes the white space around it; then one that is no control token.
fn added(ids: [usize; 6]) -> Value {
    let texts = SPECIALS.iter().chain(&["<tool>"]);
    let token = |(text, id): (&&str, usize)| {
        let strips = *text == "<|mask|>";
        json!({
            "id": id, "content": text, "single_word": false, "lstrip": strips, "rstrip": strips,
            "normalized": false, "special": *text != "<tool>",
        })
    };
    texts.zip(ids).map(token).collect()
}

fn bpe(mut vocab: Vec<String>, space: char, byte_fallback: bool) -> (Value, Value) {
    let spaced = |text: &str| text.replace('_', &space.to_string());
    let merges: Vec<[String; 2]> = MERGES.iter().map(|(a, b)| [spaced(a), spaced(b)]).collect();
    vocab.extend(merges.iter().map(|merge| merge.concat()));
    let first = vocab.len();
    let ids: Map<String, Value> = vocab
        .into_iter()
        .zip(0..)
        .map(|(text, id)| (text, json!(id)))
        .collect();
    let unknown = byte_fallback.then_some("<unk>");
    let model = json!({
        "type": "BPE", "dropout": null, "unk_token": unknown, "continuing_subword_prefix": null,
        "end_of_word_suffix": null, "fuse_unk": byte_fallback, "byte_fallback": byte_fallback,
        "ignore_merges": false, "vocab": ids, "merges": merges,
    });
    (model, json!(first))
}

fn whole(model: &Value, added: &Value, parts: [Value; 4]) -> Value {
    let [normalizer, pre_tokenizer, post_processor, decoder] = parts;
    json!({
        "version": "1.0", "truncation": {"direction": "Right", "max_length": 8,
            "strategy": "LongestFirst", "stride": 0}, "padding": null,
        "added_tokens": added, "normalizer": normalizer, "pre_tokenizer": pre_tokenizer,
        "post_processor": post_processor, "decoder": decoder, "model": model,
    })
}

/// BOS before every text.
fn begins(id: usize) -> Value {
    json!({
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [id], "tokens": ["<s>"]}},
    })
}

fn byte_level() -> Value {
    let mut more = 256;
    let letter = |byte: u8| {
        let plain = matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
        let code = if plain {
            u32::from(byte)
        } else {
            more += 1;
            more - 1
        };
        char::from_u32(code).expect("a letter").to_string()
    };
    let alphabet: Vec<String> = (0..=255).map(letter).collect();
    let (model, first) = bpe(alphabet, '\u{120}', false);
    let first = first.as_u64().expect("a number") as usize;
    let pattern = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    let split = json!({"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false},
        {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
    ]});
    let decoder = json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true,
        "use_regex": true});
    let ids = std::array::from_fn(|at| first + at);
    whole(
        &model,
        &added(ids),
        [json!({"type": "NFC"}), split, begins(first), decoder],
    )
}

fn llama() -> Value {
    let mut vocab: Vec<String> = ["<unk>", "<s>", "</s>"].map(str::to_owned).to_vec();
    vocab.extend((0..=255u8).map(|byte| format!("<0x{byte:02X}>")));
    vocab.extend((b'!'..=b'~').map(|byte| char::from(byte).to_string()));
    vocab.extend(["\u{2581}", "ü", "東"].map(str::to_owned));
    let (model, first) = bpe(vocab, '\u{2581}', true);
    let first = first.as_u64().expect("a number") as usize;
    let before = json!({"type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "first",
        "split": false});
    let decoder = json!({"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "\u{2581}"}, "content": " "},
        {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ]});
    let ids = [1, 2, first, first + 1, first + 2, first + 3];
    whole(
        &model,
        &added(ids),
        [Value::Null, before, begins(1), decoder],
    )
}

fn unigram() -> Value {
    let mut pieces = vec![
        ("<unk>".to_owned(), 0.0),
        ("<s>".into(), 0.0),
        ("</s>".into(), 0.0),
    ];
    pieces.extend((b'!'..=b'~').map(|byte| (char::from(byte).to_string(), -9.0)));
    let longer = [
        "\u{2581}",
        "\u{2581}the",
        "\u{2581}hello",
        "\u{2581}world",
        "ing",
        "er",
        "en",
        "ü",
    ];
    pieces.extend(
        (0..)
            .zip(longer)
            .map(|(at, text)| (text.to_owned(), -3.0 - f64::from(at) / 8.0)),
    );
    let first = pieces.len();
    let model = json!({"type": "Unigram", "unk_id": 0, "vocab": pieces, "byte_fallback": false});
    let always = json!({"type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "always",
        "split": true});
    let ids = [1, 2, first, first + 1, first + 2, first + 3];
    let parts = [json!({"type": "NFKC"}), always.clone(), Value::Null, always];
    whole(&model, &added(ids), parts)
}
