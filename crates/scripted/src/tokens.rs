//! The vocabulary: 256 bytes, one common word, 1,024 words of answers, and an end. A few lines encode
//! it, and a `tokenizer.json` of it makes any other tokenizer count the same.

use std::path::Path;

use serde_json::{Value, json};

/// The token of " the", of which long prompts are made.
pub const THE: u32 = 256;
/// The first word of answers.
pub const FIRST_WORD: u32 = 257;
/// How many words of answers there are.
pub const WORDS: u32 = 1024;
/// What ends a message.
pub const END: u32 = FIRST_WORD + WORDS;
/// Tokens in all.
pub const VOCABULARY: u32 = END + 1;

const END_TEXT: &str = "<|end|>";
const SYLLABLES: usize = 32;

/// A chat template that renders as [`chat`] does.
pub const TEMPLATE: &str = "{% for message in messages %}{{ '<|' + message['role'] + '|>' + \
     message['content'] + '<|end|>' }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}\
     {% endif %}";

/// Messages as one prompt.
pub fn chat<'a>(messages: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let mut text = String::new();
    for (role, content) in messages {
        text.push_str("<|");
        text.push_str(role);
        text.push_str("|>");
        text.push_str(content);
        text.push_str(END_TEXT);
    }
    text.push_str("<|assistant|>");
    text
}

/// The ids of a text: the longest known piece at each place.
pub fn encode(text: &str) -> Vec<u32> {
    let bytes = text.as_bytes();
    let mut ids = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let (id, length) = piece(&bytes[at..]);
        ids.push(id);
        at += length;
    }
    ids
}

/// How many ids [`encode`] gives.
pub fn count(text: &str) -> usize {
    let mut rest = text.as_bytes();
    let mut count = 0;
    while !rest.is_empty() {
        rest = &rest[piece(rest).1..];
        count += 1;
    }
    count
}

/// The text of ids; unknown ids have none.
pub fn decode(ids: &[u32]) -> String {
    let mut bytes = Vec::with_capacity(ids.len() * 5);
    for &id in ids {
        push(id, &mut bytes);
    }
    match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
    }
}

fn push(id: u32, bytes: &mut Vec<u8>) {
    match id {
        0..=255 => bytes.push(byte_of(id)),
        THE => bytes.extend_from_slice(b" the"),
        END => bytes.extend_from_slice(END_TEXT.as_bytes()),
        _ if id < END => bytes.extend_from_slice(&word(id - FIRST_WORD)),
        _ => {}
    }
}

/// The piece that `rest` begins with, and its length.
fn piece(rest: &[u8]) -> (u32, usize) {
    match rest[0] {
        b' ' if rest.starts_with(b" the") => (THE, 4),
        b' ' if rest.len() >= 5 => match word_at(&rest[1..5]) {
            Some(word) => (FIRST_WORD + word, 5),
            None => (id_of(b' '), 1),
        },
        b'<' if rest.starts_with(END_TEXT.as_bytes()) => (END, END_TEXT.len()),
        byte => (id_of(byte), 1),
    }
}

const CONSONANTS: &[u8; 8] = b"bdfgklmn";
const VOWELS: &[u8; 4] = b"aeio";

fn word(n: u32) -> [u8; 5] {
    let (one, two) = (n as usize / SYLLABLES, n as usize % SYLLABLES);
    let syllable = |n: usize| (CONSONANTS[n / 4], VOWELS[n % 4]);
    let ((a, b), (c, d)) = (syllable(one), syllable(two));
    [b' ', a, b, c, d]
}

fn word_at(bytes: &[u8]) -> Option<u32> {
    let place = |set: &[u8], byte: u8| set.iter().position(|it| *it == byte);
    let syllable = |at: usize| {
        let consonant = place(CONSONANTS, bytes[at])?;
        Some(consonant * 4 + place(VOWELS, bytes[at + 1])?)
    };
    Some((syllable(0)? * SYLLABLES + syllable(2)?) as u32)
}

/// Bytes in the order of GPT-2's vocabulary: what can be printed first, so that id 0 is "!".
fn id_of(byte: u8) -> u32 {
    let byte = u32::from(byte);
    match byte {
        33..=126 => byte - 33,
        161..=172 => byte - 161 + 94,
        174..=255 => byte - 174 + 106,
        0..=32 => byte + 188,
        127..=160 => byte - 127 + 221,
        _ => 255,
    }
}

fn byte_of(id: u32) -> u8 {
    let byte = match id {
        0..=93 => id + 33,
        94..=105 => id - 94 + 161,
        106..=187 => id - 106 + 174,
        188..=220 => id - 188,
        221..=254 => id - 221 + 127,
        _ => 173,
    };
    byte as u8
}

/// A Hugging Face `tokenizer.json` that encodes and decodes as this module does.
pub fn tokenizer_json() -> Value {
    let mut vocabulary = serde_json::Map::new();
    for id in 0..256 {
        let byte = u32::from(byte_of(id));
        // Bytes that cannot be printed stand as letters from U+0100 on.
        let shown = if id < 188 { byte } else { 256 + id - 188 };
        let shown = char::from_u32(shown).expect("below U+0200");
        vocabulary.insert(shown.to_string(), id.into());
    }
    let added: Vec<_> = (THE..VOCABULARY).map(added_token).collect();
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
        "normalizer": null, "pre_tokenizer": byte_level, "post_processor": null, "decoder": byte_level,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "ignore_merges": false, "vocab": vocabulary, "merges": [],
        },
    })
}

fn added_token(id: u32) -> Value {
    json!({
        "id": id, "content": decode(&[id]), "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": id == END,
    })
}

/// Writes a model's folder without weights: tokenizer, chat template and configuration.
///
/// # Errors
/// The folder cannot be written.
pub fn write_folder(folder: &Path, context: u64) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let write = |name: &str, value: Value| std::fs::write(folder.join(name), value.to_string());
    write("tokenizer.json", tokenizer_json())?;
    let settings = json!({
        "tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE, "eos_token": END_TEXT,
        "clean_up_tokenization_spaces": false, "model_max_length": context,
    });
    write("tokenizer_config.json", settings)?;
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCABULARY,
        "max_position_embeddings": context, "eos_token_id": END,
    });
    write("config.json", config)
}
