//! The small model is what it says it is, and the same whenever it is written.
#![forbid(unsafe_code)]

use gguf::{DType, File};
use testkit::{SmallSpec, golden, small_gguf, weights};

#[test]
fn the_small_model_is_deterministic_and_has_the_real_tokenizer() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let spec = SmallSpec {
        context: 256,
        seed: 7,
        ..SmallSpec::default()
    };
    let path = small_gguf(a.path(), spec);
    assert_eq!(
        std::fs::read(&path).unwrap(),
        std::fs::read(small_gguf(b.path(), spec)).unwrap()
    );
    assert_eq!(
        small_gguf(a.path(), spec),
        path,
        "the second call finds the first one's file"
    );
    assert!(std::fs::metadata(&path).unwrap().len() < 12_000_000);

    let file = File::open(&path).unwrap();
    assert_eq!(file.u32("llama.context_length").unwrap(), 256);
    let embedding = file.tensor("token_embd.weight").unwrap();
    assert_eq!(
        (embedding.dims(), embedding.dtype()),
        (&[64, 49_152][..], DType::Q8_0)
    );
    assert_eq!(file.tensor("blk.1.attn_k.weight").unwrap().dims(), [64, 32]);
    let real = gguf::Metadata::open(&weights::path()).unwrap();
    for (key, value) in real.iter().filter(|(key, _)| key.starts_with("tokenizer.")) {
        assert_eq!(file.get(key), Some(value), "{key}");
    }
    let variance = embedding
        .dequantize()
        .unwrap()
        .iter()
        .map(|x| x * x)
        .sum::<f32>()
        / 64.0
        / 49_152.0;
    assert!((0.99..1.01).contains(&variance), "{variance}");

    let other = small_gguf(a.path(), SmallSpec { seed: 8, ..spec });
    assert_ne!(
        File::open(&other)
            .unwrap()
            .tensor("output.weight")
            .unwrap()
            .read()
            .unwrap(),
        file.tensor("output.weight").unwrap().read().unwrap()
    );
}

#[test]
fn float_models_have_the_same_weights_but_for_rounding() {
    let dir = tempfile::tempdir().unwrap();
    let spec = SmallSpec {
        layers: 1,
        ..SmallSpec::default()
    };
    let quantized = File::open(&small_gguf(dir.path(), spec)).unwrap();
    let floats = File::open(&small_gguf(
        dir.path(),
        SmallSpec {
            dtype: DType::F32,
            ..spec
        },
    ))
    .unwrap();
    for tensor in floats.tensors() {
        let rounded = quantized
            .tensor(tensor.name())
            .unwrap()
            .dequantize()
            .unwrap();
        let numbers = tensor.dequantize().unwrap();
        let largest = numbers.iter().fold(0.0f32, |a, x| a.max(x.abs()));
        let worst = numbers
            .iter()
            .zip(&rounded)
            .fold(0.0f32, |a, (x, y)| a.max((x - y).abs()));
        assert!(worst <= largest / 250.0, "{tensor:?}: {worst} of {largest}");
    }
}

#[test]
fn the_golden_file_is_whole() {
    let golden = golden();
    assert_eq!((golden.cases.len(), golden.tokenizer.len()), (24, 16));
    assert_eq!(golden.perplexity.ids.len(), golden.perplexity.tokens);
    for case in &golden.cases {
        let len = case.greedy_ids.len();
        assert!(len > 0 && case.logprob.len() == len && case.margin_to_second.len() == len);
        assert_eq!(
            (case.llama_cpp_logprob.len(), case.llama_cpp_argmax.len()),
            (len, len)
        );
    }
}
