//! What long texts cost. One test, because memory is the process's.
#![forbid(unsafe_code)]

use gguf::Metadata;
use testkit::{memory, weights};
use tokenizer::{Chat, ChatTemplate, Error, Message, Tokenizer};

/// Regression: 4 MiB of `1` took 1.4 GB and 16 s, because every word was an object with a table of
/// its bytes. Now it takes its tokens, and the longest word its merges.
#[test]
fn a_text_takes_memory_by_its_length_whatever_is_in_it() {
    const LEN: usize = 1 << 18;
    let metadata = Metadata::open(&weights::path()).unwrap();
    let tokenizer = Tokenizer::from_gguf(&metadata).unwrap();
    let template = ChatTemplate::from_gguf(&metadata).unwrap();
    let longest = tokenizer.longest_token();
    let of_tokens = (0..49_152).map(|id| tokenizer.token_bytes(id).unwrap().len());
    assert_eq!(Some(longest), of_tokens.max());
    let before = memory::peak();
    // A word for each byte; one word; no merges; special tokens; marks that guard the content.
    for piece in [
        "1",
        "a",
        " ",
        "\n",
        "\t \n",
        "ab1 ",
        "'",
        "日",
        "<|im_end|>",
        "<|<",
    ] {
        let text = piece.repeat(LEN / piece.len());
        for special in [true, false] {
            let tokens = tokenizer.encode(&text, special);
            assert!(tokens.len() * longest >= text.len(), "{piece:?}");
            assert!(tokens.len() <= text.len(), "{piece:?}");
        }
        let chat = Chat::new([Message::new("user", text.as_str())]);
        let tokens = template.render_chat(&tokenizer, &chat, LEN + 1000).unwrap();
        assert!(tokens.len() * longest >= text.len(), "{piece:?}");
        let refused = template
            .render_chat(&tokenizer, &chat, text.len())
            .unwrap_err();
        let Error::TemplateText { given, limit } = refused else {
            panic!("{refused}");
        };
        assert_eq!((given, limit), (text.len(), text.len()));
    }
    let more = memory::peak() - before;
    assert!(
        more < 100 * LEN,
        "{} MiB for a text of {} MiB",
        more >> 20,
        LEN >> 20
    );
}
