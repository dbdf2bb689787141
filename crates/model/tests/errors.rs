//! What a step refuses, and that it fails closed.

mod support;

use model::{Error, Isa, KvError, LoadOptions, Model, Numeric, Want};
use support::drawn::Case;
use support::{Bench, load};
use testkit::{SmallSpec, Writer, small_gguf};

fn small_file() -> gguf::File {
    let path = small_gguf(&std::env::temp_dir(), SmallSpec::default());
    gguf::File::open(&path).expect("the small model reads")
}

fn small() -> Model {
    load(&small_file(), Numeric::Fast, Isa::detect(), 1)
}

#[test]
fn inputs_that_do_not_fit_are_refused_with_both_numbers() {
    let model = small();
    let mut bench = Bench::new(&model, 16, &[600]);
    let error = |bench: &mut Bench<'_>, tokens: &[u32]| {
        bench
            .step(&[(0, tokens, Want::Last)])
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        error(&mut bench, &[49_152]),
        "sequence 0 of the step: token 49152, the vocabulary has 49152"
    );
    assert_eq!(
        error(&mut bench, &[1; 513]),
        "sequence 0 of the step: 513 tokens, the model's context is 512"
    );
    assert!(
        bench.step(&[(0, &[1; 512], Want::Last)]).is_ok(),
        "the context itself fits"
    );
}

#[test]
fn a_page_in_other_hands_stops_the_step() {
    let model = small();
    let mut bench = Bench::new(&model, 16, &[64]);
    bench.step(&[(0, &[1; 20], Want::Last)]).unwrap();
    let pages = bench.pages_of(0);

    // A send still reads the page that the step would write.
    let reader = bench.kv_mut().share(pages[1]).unwrap();
    let error = bench.step(&[(0, &[2], Want::Last)]).unwrap_err();
    assert!(matches!(error, Error::Kv(KvError::StillRead { page }) if page == pages[1]));
    drop(reader);

    // A copy writes a page that the step would attend to.
    let out = bench.kv_mut().check_out(pages[0]).unwrap();
    let error = bench.step(&[(0, &[2], Want::Last)]).unwrap_err();
    assert!(matches!(error, Error::Kv(KvError::CheckedOut { page }) if page == pages[0]));
    bench.kv_mut().check_in(pages[0], out).unwrap();
    assert!(bench.step(&[(0, &[2], Want::Last)]).is_ok());
}

/// H-1: page numbers of two pools coincide. What one ledger says of its pages is nothing about the
/// memory of the other.
#[test]
fn h1_the_memory_of_another_pool_is_refused() {
    let model = small();
    let [mut one, mut other] = [(); 2].map(|()| Bench::new(&model, 16, &[64]));
    for bench in [&mut one, &mut other] {
        bench.step(&[(0, &[1; 20], Want::Last)]).unwrap();
    }
    assert_eq!(one.pages_of(0), other.pages_of(0), "the same numbers");
    std::mem::swap(one.kv_mut(), other.kv_mut());
    for bench in [&mut one, &mut other] {
        let error = bench.step(&[(0, &[2], Want::Last)]).unwrap_err();
        assert!(matches!(error, Error::Kv(KvError::OtherPool)), "{error}");
    }
    std::mem::swap(one.kv_mut(), other.kv_mut());
    assert!(one.step(&[(0, &[2], Want::Last)]).is_ok());
}

#[test]
fn a_slot_that_nobody_wrote_is_an_error_and_not_an_answer() {
    let model = small();
    let mut bench = Bench::new(&model, 16, &[64]);
    bench.step(&[(0, &[1; 20], Want::Last)]).unwrap();
    let page = bench.pages_of(0)[0];
    bench.kv_mut().scrub(page).unwrap();
    let error = bench.step(&[(0, &[2], Want::Last)]).unwrap_err();
    assert!(
        matches!(
            error,
            Error::NotFinite {
                sequence: 0,
                position: 20,
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn a_model_that_computes_something_else_is_refused_by_name() {
    let file = small_file();
    let rewrite = |change: &dyn Fn(&mut Writer)| {
        let mut writer = Writer::new();
        for (key, value) in file.iter().filter(|(key, _)| *key != "llama.vocab_size") {
            writer.key(key, value.clone());
        }
        for tensor in file.tensors() {
            writer.tensor(
                tensor.name(),
                tensor.dims(),
                tensor.dtype(),
                &tensor.dequantize().unwrap(),
            );
        }
        change(&mut writer);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("changed.gguf");
        writer.write(&path).unwrap();
        let file = gguf::File::open(&path).unwrap();
        Model::load(&file, LoadOptions::default())
            .map(|_| ())
            .unwrap_err()
            .to_string()
    };
    let bias = |writer: &mut Writer| {
        writer.tensor("blk.0.attn_q.bias", &[64], gguf::DType::F32, &[0.0; 64]);
    };
    let error = rewrite(&bias);
    assert!(error.contains("blk.0.attn_q.bias"), "{error}");
    let yarn = |writer: &mut Writer| {
        let value = gguf::Value::String("yarn".into());
        writer.key("llama.rope.scaling.type", value);
    };
    let error = rewrite(&yarn);
    assert!(error.contains("llama.rope.scaling.type = yarn"), "{error}");

    use gguf::Value::{Bool, F32, String as Text, U32};
    for (key, value, says) in [
        ("llama.attention.scale", F32(0.5), "= 0.5"),
        ("llama.logit_scale", F32(2.0), "= 2"),
        ("llama.final_logit_softcapping", F32(30.0), "= 30"),
        ("llama.expert_count", U32(8), "= 8"),
        ("llama.attention.sliding_window", F32(4096.0), "an integer"),
        (
            "llama.attention.query_pre_norm",
            U32(0),
            "no key that is not known",
        ),
        ("llama.attention.causal", Bool(false), "= false"),
        ("llama.use_parallel_residual", Bool(true), "= true"),
        ("llama.attention.causal", U32(1), "a boolean"),
        ("llama.logit_scale", Text("2".into()), "a float"),
        ("llama.rope.scaling.factor", Text("2".into()), "a float"),
        ("llama.rope.scaling.factor", F32(-1.0), "= -1"),
        ("llama.rope.scaling.finetuned", U32(1), "a boolean"),
        ("llama.vocab_size", U32(127), "expected 127, as many as"),
    ] {
        let error = rewrite(&|writer: &mut Writer| writer.key(key, value.clone()));
        assert!(
            error.contains(key) && error.contains(says),
            "{key}: {error}"
        );
    }
    let both = |writer: &mut Writer| {
        writer.key("llama.rope.scaling.type", Text("none".into()));
        writer.key("llama.rope.scaling.factor", F32(4.0));
    };
    let error = rewrite(&both);
    assert!(error.contains("llama.rope.scaling.factor = 4"), "{error}");
}

#[test]
fn every_architecture_refuses_what_its_description_does_not_have() {
    use serde_json::json;
    let error = |file: &gguf::File| {
        let loaded = Model::load(file, LoadOptions::default());
        loaded.map(|_| ()).unwrap_err().to_string()
    };
    for (name, key, value, says) in [
        (
            "qwen2",
            "qwen2.attention.sliding_window",
            json!(4096),
            "= 4096",
        ),
        ("qwen3", "qwen3.rope.scaling.type", json!("yarn"), "= yarn"),
        ("phi3", "phi3.attn_logit_softcapping", json!(30.5), "= 30.5"),
        (
            "gemma2",
            "gemma2.final_logit_softcapping",
            json!(0.0),
            "= 0",
        ),
        (
            "gemma2",
            "gemma2.rope.freq_base_swa",
            json!(1.0),
            "not known",
        ),
        ("gemma3", "gemma3.rope.freq_base_swa", json!(-1.0), "= -1"),
        ("gemma3", "gemma3.attention.sliding_window", json!(0), "= 0"),
        ("qwen3moe", "qwen3moe.expert_gating_func", json!(2), "= 2"),
        ("qwen3moe", "qwen3moe.expert_used_count", json!(9), "= 9"),
        (
            "qwen3moe",
            "qwen3moe.expert_group_count",
            json!(2),
            "not known",
        ),
        (
            "deepseek2",
            "deepseek2.attention.q_lora_rank",
            json!(64),
            "not known",
        ),
        (
            "deepseek2",
            "deepseek2.attention.kv_lora_rank",
            json!(128),
            "= 128",
        ),
        (
            "deepseek2",
            "deepseek2.attention.key_length",
            json!(256),
            "= 256",
        ),
        (
            "deepseek2",
            "deepseek2.attention.key_length_mla",
            json!(16),
            "= 16",
        ),
        (
            "deepseek2",
            "deepseek2.expert_weights_scale",
            json!(-1.0),
            "= -1",
        ),
    ] {
        let (mut case, _) = Case::of(name);
        case.keys.insert(key.into(), value);
        let error = error(&case.file(gguf::DType::Q8_0));
        assert!(
            error.contains(key) && error.contains(says),
            "{key}: {error}"
        );
    }
    for (name, tensor) in [
        ("qwen2", "rope_freqs.weight"),
        ("qwen3", "blk.0.attn_q.bias"),
        ("phi3", "blk.1.ffn_gate.weight"),
        ("llama", "blk.0.post_ffw_norm.weight"),
        ("deepseek2", "blk.0.attn_kv_b.weight"),
        ("deepseek2", "blk.0.ffn_gate_inp.weight"),
    ] {
        let (case, _) = Case::of(name);
        let more = |writer: &mut Writer| writer.tensor(tensor, &[32], gguf::DType::F32, &[1.0; 32]);
        let error = error(&case.file_with(gguf::DType::Q8_0, more));
        assert!(
            error.contains(tensor) && error.contains(&case.architecture),
            "{error}"
        );
    }
    let (mut case, _) = Case::of("gemma2");
    case.keys.remove("gemma2.attn_logit_softcapping");
    let error = error(&case.file(gguf::DType::Q8_0));
    assert!(error.contains("gemma2.attn_logit_softcapping"), "{error}");
}

/// Its short factors hold up to the original context, and not one token farther.
#[test]
fn a_context_that_is_stretched_by_factors_ends_where_they_do() {
    let (case, _) = Case::of("phi3-long");
    let file = case.file(gguf::DType::Q8_0);
    assert_eq!(file.u32("phi3.context_length").unwrap(), 4096);
    let model = load(&file, Numeric::Fast, Isa::detect(), 1);
    assert_eq!(model.config().context, 512);
}

/// Older files name the factor and no type: that is linear scaling, and not none.
#[test]
fn a_factor_without_a_type_scales() {
    let file = small_file();
    let with = |keys: &[(&str, gguf::Value)]| {
        let mut writer = Writer::new();
        let all = file.iter().map(|(key, value)| (key, value.clone()));
        for (key, value) in all.chain(keys.iter().cloned()) {
            writer.key(key, value);
        }
        for tensor in file.tensors() {
            let numbers = tensor.dequantize().unwrap();
            writer.tensor(tensor.name(), tensor.dims(), tensor.dtype(), &numbers);
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("scaled.gguf");
        writer.write(&path).unwrap();
        let file = gguf::File::open(&path).unwrap();
        let model = Model::load(&file, LoadOptions::default()).unwrap();
        model.config().rope_position_divisor
    };
    let factor = || ("llama.rope.scaling.factor", gguf::Value::F32(4.0));
    let linear = gguf::Value::String("linear".into());
    assert_eq!(with(&[]), 1.0);
    assert_eq!(with(&[factor()]), 4.0);
    assert_eq!(
        with(&[("llama.rope.scale_linear", gguf::Value::F32(2.0))]),
        2.0
    );
    assert_eq!(with(&[factor(), ("llama.rope.scaling.type", linear)]), 4.0);
}

#[test]
fn fingerprints_tell_weights_and_paths_apart() {
    let other = small_gguf(
        &std::env::temp_dir(),
        SmallSpec {
            seed: 2,
            ..SmallSpec::default()
        },
    );
    let other = gguf::File::open(&other).unwrap();
    let fingerprint = |file: &gguf::File, numeric, isa| load(file, numeric, isa, 1).fingerprint();
    let file = small_file();
    let base = fingerprint(&file, Numeric::Fast, Isa::detect());
    assert_eq!(base, fingerprint(&file, Numeric::Fast, Isa::Portable));
    assert_ne!(base, fingerprint(&file, Numeric::Exact, Isa::detect()));
    assert_ne!(base, fingerprint(&other, Numeric::Fast, Isa::detect()));
}
