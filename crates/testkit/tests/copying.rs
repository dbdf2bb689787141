//! The copying model is the same whenever it is written. That it copies is shown where it is served:
//! a probe sees its positive control.
#![forbid(unsafe_code)]

use gguf::File;
use testkit::copying_gguf;

#[test]
fn the_copying_model_has_a_code_for_every_token_but_control_tokens() {
    let dir = tempfile::tempdir().unwrap();
    let path = copying_gguf(dir.path(), 128);
    assert_eq!(copying_gguf(dir.path(), 128), path);
    let file = File::open(&path).unwrap();
    assert_eq!(file.u32("llama.context_length").unwrap(), 128);
    let embedding = file.tensor("token_embd.weight").unwrap();
    assert_eq!(embedding.dims(), [256, 49_152]);
    let rows = embedding.dequantize().unwrap();
    let code = |token: usize| &rows[token * 256..token * 256 + 64];
    assert!(code(2).iter().all(|it| *it == 0.0));
    let alike = |a: usize, b: usize| {
        let pairs = code(a).iter().zip(code(b));
        pairs.filter(|(a, b)| (**a > 0.0) == (**b > 0.0)).count()
    };
    assert_eq!(alike(4000, 4000), 64);
    assert!((17..2000).all(|token| alike(4000, token) < 60));
}
