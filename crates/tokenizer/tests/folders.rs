//! Folders as Hugging Face has them. The reference is its own crate on whole texts, with the files as
//! they are; what is different on purpose is who may write a control token.

use proptest::prelude::*;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::sync::LazyLock;
use testkit::{FolderKind, folder};
use tokenizer::{Chat, ChatTemplate, Detokenizer, Error, Message, Tokenizer};

const KINDS: [FolderKind; 3] = [
    FolderKind::ByteLevel,
    FolderKind::Llama,
    FolderKind::Unigram,
];
const BYTES: usize = 1 << 20;

struct Both {
    kind: FolderKind,
    dir: tempfile::TempDir,
    ours: Tokenizer,
    theirs: tokenizers::Tokenizer,
}

impl Both {
    fn new(kind: FolderKind) -> Both {
        let dir = tempfile::tempdir().unwrap();
        folder(dir.path(), kind);
        let ours = Tokenizer::from_folder(dir.path()).unwrap();
        let theirs = tokenizers::Tokenizer::from_file(dir.path().join("tokenizer.json"));
        let mut theirs = theirs.unwrap();
        theirs.with_truncation(None).unwrap();
        Both {
            kind,
            dir,
            ours,
            theirs,
        }
    }

    fn reference(&self, text: &str, special: bool) -> Vec<u32> {
        self.theirs
            .encode(text, special)
            .unwrap()
            .get_ids()
            .to_vec()
    }

    fn specials(&self, ids: &[u32]) -> Vec<u32> {
        let is = |id: &u32| {
            self.ours.is_special(*id) && self.theirs.id_to_token(*id).as_deref() != Some("<unk>")
        };
        ids.iter().copied().filter(is).collect()
    }
}

static ALL: LazyLock<[Both; 3]> = LazyLock::new(|| KINDS.map(Both::new));

const TEXTS: [&str; 14] = [
    "",
    " ",
    "hello world",
    "  hello  world ",
    "hello\n\n the world",
    "Zwölf Boxkämpfer jagen Viktor über den großen Deich. 東京 🙂",
    "e\u{301}\u{FB01} \u{2581}x",
    "<s>hello</s> world",
    "a <|mask|> b<|mask|>\n c",
    "<|start|>user\nhello world<|end|>\n<|start|>",
    "<tool>hello<tool>",
    "<|star t|><|<|end|>",
    "<s>",
    "1234567 \u{1}\u{0} \u{10FFFD}",
];

#[test]
fn texts_become_the_tokens_of_the_reference() {
    for both in &*ALL {
        for text in TEXTS {
            let ours = both.ours.encode(text, true);
            assert_eq!(
                ours,
                both.reference(text, false),
                "{:?} {text:?}",
                both.kind
            );
            assert_eq!(
                both.ours.decode(&ours).unwrap(),
                both.theirs.decode(&ours, false).unwrap()
            );
        }
    }
}

fn words() -> impl Strategy<Value = String> {
    let own = prop::sample::select(vec![
        "hello", " world", " ", "  ", "\n", "the", " th", "e", "ü", "東", "🙂", "<s>", "</s>",
        "<|mask|>", "<|end|>", "<|", "<tool>", "123", "\u{2581}", "\u{301}", "<0x0A>", "'ll",
    ]);
    let word = prop_oneof![6 => own.prop_map(str::to_owned), 1 => any::<String>()];
    prop::collection::vec(word, 0..24).prop_map(|words| words.concat())
}

proptest! {
    #[test]
    fn any_text_becomes_the_tokens_of_the_reference(text in words()) {
        for both in &*ALL {
            prop_assert_eq!(both.ours.encode(&text, true), both.reference(&text, false), "{:?}", both.kind);
        }
    }

    /// Whatever somebody says: its control tokens are those that the template has written, and its text
    /// can be read from the tokens again.
    #[test]
    fn nobody_s_words_are_control_tokens(text in words()) {
        for both in &*ALL {
            prop_assert_eq!(both.specials(&both.ours.encode(&text, false)), [0u32; 0]);
            let template = ChatTemplate::from_folder(both.dir.path()).unwrap();
            let rendered = |content: &str| {
                let chat = Chat::new([Message::new("user", content), Message::new("assistant", content)]);
                template.render_chat(&both.ours, &chat, BYTES).unwrap()
            };
            let (said, plain) = (rendered(&text), rendered("x"));
            prop_assert_eq!(both.specials(&said), both.specials(&plain), "{:?}", both.kind);
            if both.kind == FolderKind::Llama && !text.contains('\u{2581}') {
                let shown = both.ours.decode(&said).unwrap();
                let expected = format!(
                    "<s><|start|>user\n{text}<|end|>\n<|start|>assistant\n{text}<|end|>\n<|start|>assistant\n"
                );
                prop_assert_eq!(shown, expected);
            }
        }
    }

    /// Tokens that come one by one give the text, however its characters are cut.
    #[test]
    fn a_stream_is_the_text(text in words()) {
        for both in &ALL[..2] {
            let ids = both.ours.encode(&text, false);
            let mut stream = Detokenizer::new(&both.ours);
            let mut said: String = ids.iter().map(|id| stream.push(*id)).collect();
            said += &stream.flush();
            let whole = both.ours.decode(&ids).unwrap();
            let said = match both.kind {
                FolderKind::Llama => said.strip_prefix(' ').unwrap_or(&said),
                _ => &said,
            };
            prop_assert_eq!(said, whole);
        }
    }
}

#[test]
fn a_chat_without_control_tokens_in_it_is_what_the_reference_makes_of_the_rendered_text() {
    for both in &*ALL {
        let template = ChatTemplate::from_folder(both.dir.path()).unwrap();
        for text in ["hello world", " the\n ü 東京 🙂 ", "", "  "] {
            let chat = Chat::new([Message::new("system", "hello"), Message::new("user", text)]);
            let rendered = template.render(&chat).unwrap();
            let ids = template.render_chat(&both.ours, &chat, BYTES).unwrap();
            assert_eq!(
                ids,
                both.reference(&rendered, false),
                "{:?} {text:?}",
                both.kind
            );
        }
    }
}

#[test]
fn a_character_of_several_tokens_comes_when_it_is_whole() {
    let both = &ALL[1];
    let ids = both.ours.encode("🙂!", false);
    let mut stream = Detokenizer::new(&both.ours);
    let said: Vec<String> = ids.iter().map(|id| stream.push(*id)).collect();
    assert_eq!(
        said,
        [" ", "", "", "", "🙂", "!"],
        "it goes on a text, so the space stays"
    );
    assert_eq!(both.ours.decode(&ids).unwrap(), "🙂!");
}

/// Changes a file of a folder.
fn changed(dir: &Path, file: &str, change: impl FnOnce(&mut Value)) {
    let path = dir.join(file);
    let mut value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    change(&mut value);
    fs::write(path, value.to_string()).unwrap();
}

#[test]
fn a_prompt_begins_with_bos_where_the_folder_says_so() {
    let begins = |kind, stated: Option<bool>| {
        let both = Both::new(kind);
        changed(both.dir.path(), "tokenizer_config.json", |it| {
            if let Some(stated) = stated {
                it["add_bos_token"] = json!(stated);
            }
        });
        let ours = Tokenizer::from_folder(both.dir.path()).unwrap();
        let (once, twice) = (ours.encode_prompt("hello"), ours.encode_prompt("<s>hello"));
        assert_eq!(ours.bos(), both.theirs.token_to_id("<s>"));
        assert_eq!(
            twice.iter().filter(|id| Some(**id) == ours.bos()).count(),
            1
        );
        if stated.is_none() {
            assert_eq!(once, both.reference("hello", true), "{kind:?}");
        }
        Some(once[0]) == ours.bos()
    };
    for (kind, by_itself) in KINDS.into_iter().zip([true, true, false]) {
        assert_eq!(begins(kind, None), by_itself, "{kind:?}");
        assert_eq!(
            [Some(true), Some(false)].map(|it| begins(kind, it)),
            [true, false]
        );
    }
}

#[test]
fn ends_come_from_all_files_and_numbers_without_a_token_are_none() {
    let both = Both::new(FolderKind::Llama);
    let id = |text: &str| both.theirs.token_to_id(text).unwrap();
    changed(both.dir.path(), "generation_config.json", |it| {
        it["eos_token_id"] = json!(id("<|mask|>"))
    });
    fs::write(
        both.dir.path().join("config.json"),
        r#"{"vocab_size": 500}"#,
    )
    .unwrap();
    let ours = Tokenizer::from_folder(both.dir.path()).unwrap();
    assert_eq!(ours.vocab_size(), 500);
    let ends: Vec<u32> = ours.ends().collect();
    // By tokenizer_config.json, by its name, by generation_config.json.
    assert_eq!(ends, [id("</s>"), id("<|end|>"), id("<|mask|>")]);
    fs::remove_file(both.dir.path().join("generation_config.json")).unwrap();
    let config = json!({"vocab_size": 500, "eos_token_id": [id("<|start|>")]}).to_string();
    fs::write(both.dir.path().join("config.json"), config).unwrap();
    let bare = Tokenizer::from_folder(both.dir.path()).unwrap();
    assert!(bare.is_end(id("<|start|>")) && !bare.is_end(id("<|mask|>")));
    assert!(ours.is_special(499) && ours.token_bytes(499) == Some(b""));
    assert_eq!(ours.token_bytes(id("<0x0A>")), Some(&b"\n"[..]));
    assert_eq!(ours.longest_token(), "<|start|>".len());
}

#[test]
fn an_older_folder_names_its_tokens_in_a_file_of_their_own() {
    let both = Both::new(FolderKind::Llama);
    changed(both.dir.path(), "tokenizer_config.json", |it| {
        it.as_object_mut().unwrap().remove("bos_token");
        it["eos_token"] = json!(null);
    });
    let map = json!({"bos_token": {"content": "<s>"}, "eos_token": "<|mask|>"}).to_string();
    fs::write(both.dir.path().join("special_tokens_map.json"), map).unwrap();
    let ours = Tokenizer::from_folder(both.dir.path()).unwrap();
    assert_eq!(ours.bos(), both.theirs.token_to_id("<s>"));
    assert_eq!(ours.eos(), both.theirs.token_to_id("<|mask|>"));
    let template = ChatTemplate::from_folder(both.dir.path()).unwrap();
    let said = template
        .render(&Chat::new([Message::new("user", "x")]))
        .unwrap();
    assert!(said.starts_with("<s><|start|>user"), "{said}");
}

/// A name in a configuration makes a control token of what the list of tokens calls ordinary.
#[test]
fn what_ends_a_text_cannot_be_written_by_anybody() {
    for kind in KINDS {
        let both = Both::new(kind);
        changed(both.dir.path(), "tokenizer.json", |it| {
            it["added_tokens"][1]["special"] = json!(false);
        });
        let ours = Tokenizer::from_folder(both.dir.path()).unwrap();
        let eos = ours.eos().unwrap();
        assert!(ours.is_special(eos));
        assert!(!ours.encode("a</s>b", false).contains(&eos), "{kind:?}");
        assert!(ours.encode("a</s>b", true).contains(&eos), "{kind:?}");
    }
}

/// Of a model that takes whole words first, in a template that leaves a message to itself.
#[test]
fn a_message_that_is_nothing_but_a_control_token_is_none() {
    for kind in KINDS {
        let both = Both::new(kind);
        changed(both.dir.path(), "tokenizer.json", |it| {
            if it["model"]["type"] == "BPE" {
                it["model"]["ignore_merges"] = json!(true);
            }
        });
        let own = "{% for m in messages %}{{ '<|start|>' + m['content'] }}{% endfor %}";
        fs::write(both.dir.path().join("chat_template.jinja"), own).unwrap();
        let ours = Tokenizer::from_folder(both.dir.path()).unwrap();
        let template = ChatTemplate::from_folder(both.dir.path()).unwrap();
        for text in ["</s>", "<s>", "<|start|>", "<|mask|>"] {
            let chat = Chat::new([Message::new("user", text)]);
            let ids = template.render_chat(&ours, &chat, BYTES).unwrap();
            let start = both.theirs.token_to_id("<|start|>").unwrap();
            assert_eq!(both.specials(&ids), [start], "{kind:?} {text}");
        }
    }
}

#[test]
fn the_template_is_the_file_of_its_own_or_the_default_one() {
    let dir = tempfile::tempdir().unwrap();
    folder(dir.path(), FolderKind::Llama);
    let said = || ChatTemplate::from_folder(dir.path()).map(|it| it.source().to_owned());
    changed(dir.path(), "tokenizer_config.json", |it| {
        it["chat_template"] = json!([
            {"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"},
        ]);
    });
    assert_eq!(said().unwrap(), "d");
    fs::write(dir.path().join("chat_template.jinja"), "own").unwrap();
    assert_eq!(said().unwrap(), "own");
    fs::remove_file(dir.path().join("chat_template.jinja")).unwrap();
    changed(dir.path(), "tokenizer_config.json", |it| {
        it["chat_template"] = json!(null)
    });
    let error = said().unwrap_err().to_string();
    assert!(
        error.contains("chat_template.jinja") && error.contains("tokenizer_config.json"),
        "{error}"
    );
}

#[test]
fn what_cannot_be_used_is_named() {
    let refused = |kind, change: &dyn Fn(&Path)| {
        let dir = tempfile::tempdir().unwrap();
        folder(dir.path(), kind);
        change(dir.path());
        Tokenizer::from_folder(dir.path()).expect_err("refused")
    };
    let told = |kind, change: &dyn Fn(&Path), says: &str| {
        let error = refused(kind, change).to_string();
        assert!(error.contains(says), "{error}");
    };
    let llama = FolderKind::Llama;
    told(
        llama,
        &|dir| fs::remove_file(dir.join("tokenizer.json")).unwrap(),
        "tokenizer.json: is not in this folder",
    );
    told(
        llama,
        &|dir| fs::write(dir.join("tokenizer.json"), "{").unwrap(),
        "tokenizer.json: ",
    );
    told(
        llama,
        &|dir| fs::write(dir.join("tokenizer_config.json"), "[").unwrap(),
        "tokenizer_config.json: ",
    );
    let large = |dir: &Path| {
        let file = fs::File::create(dir.join("generation_config.json")).unwrap();
        file.set_len((8 << 20) + 1).unwrap();
    };
    told(
        llama,
        &large,
        "generation_config.json: has more than 8388608 bytes",
    );
    let in_file = |change: fn(&mut Value)| move |dir: &Path| changed(dir, "tokenizer.json", change);
    told(
        llama,
        &in_file(|it| it["model"]["dropout"] = json!(0.1)),
        "model.dropout",
    );
    told(
        llama,
        &in_file(|it| it["decoder"] = json!({"type": "BPEDecoder", "suffix": "x"})),
        "BPEDecoder",
    );
    told(
        FolderKind::Unigram,
        &in_file(|it| it["model"]["unk_id"] = json!(null)),
        "cannot encode every text",
    );
    let config =
        |change: fn(&mut Value)| move |dir: &Path| changed(dir, "tokenizer_config.json", change);
    told(
        llama,
        &config(|it| it["add_eos_token"] = json!(true)),
        "add_eos_token",
    );
    let strange = config(|it| {
        it["added_tokens_decoder"] = json!({"7": {"content": "<new>", "special": true}})
    });
    told(
        llama,
        &strange,
        "names token 7 \"<new>\", which tokenizer.json does not have",
    );
    let far = |dir: &Path| {
        changed(dir, "generation_config.json", |it| {
            it["eos_token_id"] = json!(99_999)
        })
    };
    told(
        llama,
        &far,
        "generation_config.json: eos_token_id 99999 is no token",
    );
    let error = refused(llama, &|dir| {
        fs::remove_file(dir.join("tokenizer.json")).unwrap()
    });
    assert!(matches!(
        error,
        Error::Folder {
            file: "tokenizer.json",
            ..
        }
    ));
}

/// A name or a number behind the last token would be another model's, or a token that was added later.
#[test]
fn bos_and_eos_are_tokens_of_the_vocabulary() {
    let says = |file: &str, change: Value| {
        let dir = tempfile::tempdir().unwrap();
        folder(dir.path(), FolderKind::Llama);
        if file == "config.json" {
            fs::remove_file(dir.path().join("generation_config.json")).unwrap();
            fs::write(dir.path().join(file), "{}").unwrap();
        }
        changed(dir.path(), file, |it| {
            let more = change.as_object().unwrap().clone();
            it.as_object_mut().unwrap().extend(more);
        });
        let read = Tokenizer::from_folder(dir.path());
        read.map_or_else(
            |error| error.to_string(),
            |it| format!("{} tokens", it.vocab_size()),
        )
    };
    let tokenizer = "tokenizer_config.json";
    for name in ["bos_token", "eos_token"] {
        for token in [json!("<new>"), json!({"content": "<new>"})] {
            let found = says(tokenizer, json!({name: token}));
            let expected =
                format!("{tokenizer}: {name} is \"<new>\", which tokenizer.json does not");
            assert!(found.starts_with(&expected), "{found}");
        }
    }
    assert_eq!(says(tokenizer, json!({"eos_token": null})), "376 tokens");
    for file in ["generation_config.json", "config.json"] {
        for key in ["bos_token_id", "eos_token_id"] {
            for (id, problem) in [
                (
                    json!(376),
                    "376 is no token of this vocabulary, which has 376",
                ),
                (json!([1, 4_294_967_295u32]), "4294967295 is no token"),
                (json!(-1), "-1 is no number of a token"),
                (json!([1, "2"]), "\"2\" is no number of a token"),
                (json!(1.0), "1.0 is no number of a token"),
                (
                    json!(4_294_967_296u64),
                    "4294967296 is no number of a token",
                ),
            ] {
                let found = says(file, json!({key: id}));
                assert!(
                    found.starts_with(&format!("{file}: {key} {problem}")),
                    "{found}"
                );
            }
            for id in [json!(375), json!([1, 375]), json!(null)] {
                assert_eq!(says(file, json!({key: id})), "376 tokens");
            }
        }
        assert_eq!(
            says(
                "config.json",
                json!({"vocab_size": 400, "eos_token_id": 399})
            ),
            "400 tokens"
        );
    }
}
