//! Every architecture in every format, number by number against `transformers` in float32:
//! `reference/make.py` says how the figures were made.

mod support;

use gguf::DType;
use model::{Isa, Model, Numeric};
use serde::Deserialize;
use support::drawn::{Case, RECORDED};
use support::{Bench, load};

/// Tokens of the prompt; the others are decoded one by one.
const PROMPT: usize = 150;

/// The logits at the recorded positions, the prompt in chunks and then token by token.
fn logits(case: &Case, model: &Model) -> Vec<f32> {
    let (prompt, rest) = case.tokens.split_at(PROMPT);
    let mut bench = Bench::new(model, 16, &[case.tokens.len()]);
    let mut rows = bench.all_logits(prompt, 64);
    rows.extend(bench.all_logits(rest, 1));
    let wanted = case.positions.iter().flat_map(|at| &rows[*at]);
    wanted.copied().collect()
}

/// How far two sets of logits are apart, in deviations of the second.
#[derive(Clone, Copy, Debug)]
struct Apart {
    mean: f64,
    largest: f64,
}

fn apart(found: &[f32], expected: &[f32]) -> Apart {
    assert_eq!(found.len(), expected.len());
    let n = expected.len() as f64;
    let mean = expected.iter().map(|x| f64::from(*x)).sum::<f64>() / n;
    let square = |x: &f32| (f64::from(*x) - mean).powi(2);
    let deviation = (expected.iter().map(square).sum::<f64>() / n).sqrt();
    let off = |(a, b): (&f32, &f32)| f64::from((a - b).abs()) / deviation;
    let off: Vec<f64> = found.iter().zip(expected).map(off).collect();
    Apart {
        mean: off.iter().sum::<f64>() / n,
        largest: off.iter().copied().fold(0.0, f64::max),
    }
}

/// What the logits of any case may be off by, in their deviations; docs/models.md says it too.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Bounds {
    /// Exact, from float32 with keys and values rounded as our pages have them: the order of sums.
    rounded_largest: f64,
    /// Exact, from float32: the rounding of keys and values.
    exact_mean: f64,
    exact_largest: f64,
    /// Fast from exact: 8-bit activations, and weights where they are not taken as they are.
    fast_mean: f64,
}

fn compare(case: &str) {
    let bounds = serde_json::from_str(include_str!("reference/bounds.json"));
    let bounds: Bounds = bounds.expect("the bounds");
    let name = case;
    let (case, recorded) = Case::of(case);
    let recorded: Vec<f32> = recorded
        .as_chunks()
        .0
        .iter()
        .map(|x| f32::from_le_bytes(*x))
        .collect();
    let mut blocks = recorded.chunks_exact(recorded.len() / (case.formats.len() + 1));
    let rounded = blocks.next_back().expect("float16 pages");
    let formats = DType::ALL.map(|dtype| dtype.to_string());
    for format in &formats {
        assert!(case.formats.contains(format), "{format} is not recorded");
    }
    for (format, expected) in case.formats.iter().zip(blocks) {
        let dtype = DType::ALL
            .into_iter()
            .find(|dtype| dtype.to_string() == *format);
        let file = case.file(dtype.expect("a format that is read"));
        let run = |numeric| logits(&case, &load(&file, numeric, Isa::detect(), 1));
        let exact = run(Numeric::Exact);
        let from = apart(&exact, expected);
        let fast = apart(&run(Numeric::Fast), &exact);
        println!(
            "{name:10} {format:6}: exact {:.6} (largest {:.6}), fast {:.4} ({:.4})",
            from.mean, from.largest, fast.mean, fast.largest
        );
        let within = from.mean <= bounds.exact_mean && from.largest <= bounds.exact_largest;
        assert!(within, "{name} {format}: exact {from:?}");
        let within = fast.mean <= bounds.fast_mean;
        assert!(within, "{name} {format}: fast {fast:?}");
        if format == "F32" {
            let from = apart(&exact, rounded);
            println!(
                "{name:10} F32, float16 pages: {:.7} ({:.7})",
                from.mean, from.largest
            );
            let within = from.largest <= bounds.rounded_largest;
            assert!(within, "{name}: rounded {from:?}");
        }
    }
}

macro_rules! cases {
    ($($test:ident: $case:literal;)*) => {
        $(#[test]
        fn $test() {
            compare($case);
        })*

        #[test]
        fn every_recorded_case_is_compared_and_every_architecture_recorded() {
            assert_eq!([$($case),*], RECORDED.map(|(name, ..)| name));
            for known in &model::ARCHITECTURES {
                let mut cases = RECORDED.iter().map(|(name, ..)| Case::of(name).0);
                assert!(cases.any(|case| case.architecture == known.name), "{}", known.name);
            }
        }
    };
}

cases! {
    llama_is_as_transformers_has_it: "llama";
    mistral_with_a_window_is_as_transformers_has_it: "mistral";
    qwen2_is_as_transformers_has_it: "qwen2";
    qwen2_with_a_tied_head_is_as_transformers_has_it: "qwen2-tied";
    qwen3_is_as_transformers_has_it: "qwen3";
    phi3_is_as_transformers_has_it: "phi3";
    phi3_with_factors_is_as_transformers_has_it: "phi3-long";
    gemma2_is_as_transformers_has_it: "gemma2";
    gemma3_is_as_transformers_has_it: "gemma3";
    qwen3moe_is_as_transformers_has_it: "qwen3moe";
    deepseek2_is_as_transformers_has_it: "deepseek2";
}
