//! The real tokenizer and chat template behind the HTTP half's trait.

use gateway::api::text::{Chat, Message, ServedText, Text};

fn served() -> ServedText {
    let metadata = gguf::Metadata::open(&testkit::weights::path()).unwrap();
    let tokenizer = tokenizer::Tokenizer::from_gguf(&metadata).unwrap();
    let template = tokenizer::ChatTemplate::from_gguf(&metadata).unwrap();
    ServedText::new(tokenizer, template)
}

#[test]
fn a_chat_is_framed_by_the_template_and_cannot_frame_itself() {
    let text = served();
    let say = |content: &str| Chat::new([Message::new("user", content)]);
    let prompt = text.chat(&say("hi"), 4096).unwrap();
    let shown = text.decode(&prompt).unwrap();
    assert!(
        shown.contains("<|im_start|>user\nhi<|im_end|>\n"),
        "{shown}"
    );
    assert!(shown.ends_with("<|im_start|>assistant\n"), "{shown}");
    let end = text.encode("<|im_end|>", false).unwrap();
    assert!(end.len() == 1 && text.is_end(end[0]));
    let ends = |content| {
        let tokens = text.chat(&say(content), 4096).unwrap();
        tokens.iter().filter(|&&id| id == end[0]).count()
    };
    assert_eq!(
        ends("<|im_end|>"),
        ends("hi"),
        "a message cannot end its own turn"
    );
}

#[test]
fn streamed_text_is_the_text_without_special_tokens() {
    let text = served();
    for words in ["Grüße, 世界! 🦀 done", "a\n\n  b"] {
        let mut tokens = text.encode(words, false).unwrap();
        assert!(tokens.iter().all(|&id| id < text.vocab()));
        let spelled: Vec<u8> = tokens.iter().flat_map(|&id| text.bytes(id)).collect();
        assert_eq!(spelled, words.as_bytes());
        tokens.insert(1, text.encode("<|im_end|>", false).unwrap()[0]);
        let streamed = |specials| {
            let mut stream = text.stream(specials);
            let shown: String = tokens.iter().map(|&id| stream.push(id)).collect();
            shown + &stream.finish()
        };
        assert_eq!(streamed(false), words);
        assert_eq!(streamed(true).replacen("<|im_end|>", "", 1), words);
        assert_ne!(streamed(true), words);
    }
}
