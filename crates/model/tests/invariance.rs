//! Batch invariance, bit for bit: the logits of a row are the same whatever shares the step, how
//! the prompt is cut into chunks, how large pages are, and how many threads compute.

mod support;

use model::{Isa, Model, Numeric, Want};
use proptest::prelude::*;
use support::drawn::{Case, RECORDED};
use support::{Bench, isas, load};
use testkit::{SmallSpec, small_gguf};

const NUMERICS: [Numeric; 2] = [Numeric::Exact, Numeric::Fast];

fn small_file(spec: SmallSpec) -> gguf::File {
    gguf::File::open(&small_gguf(&std::env::temp_dir(), spec)).expect("the small model reads")
}

/// Distinct, reproducible prompts.
fn prompt(seed: u32, n: usize) -> Vec<u32> {
    prompt_of(49_000, seed, n)
}

fn prompt_of(vocab: u32, seed: u32, n: usize) -> Vec<u32> {
    (0..n as u32)
        .map(|i| (i * i * 31 + i * 7 + seed * 7919) % vocab)
        .collect()
}

fn bits(row: &[f32]) -> Vec<u32> {
    row.iter().map(|v| v.to_bits()).collect()
}

/// A digest of every position's logits: comparing 49,152 floats of 100 positions 100 times over is
/// what would make this test slow.
fn digest(rows: &[Vec<f32>]) -> Vec<blake3::Hash> {
    rows.iter()
        .map(|row| blake3::hash(bytemuck::cast_slice(row)))
        .collect()
}

#[test]
fn chunks_pages_and_threads_do_not_show() {
    let file = small_file(SmallSpec::default());
    let tokens = prompt(1, 75);
    for numeric in NUMERICS {
        for isa in isas() {
            let one = load(&file, numeric, isa, 1);
            let expected = digest(&Bench::new(&one, 16, &[80]).all_logits(&tokens, 75));
            let two = load(&file, numeric, isa, 2);
            for (model, threads) in [(&one, 1), (&two, 2)] {
                for page_size in [8, 16, 32] {
                    for chunk in [1, 7, 16, 64, 75] {
                        let rows = Bench::new(model, page_size, &[80]).all_logits(&tokens, chunk);
                        let what = format!("{numeric:?} {isa} {threads} threads, page {page_size}");
                        assert_eq!(digest(&rows), expected, "{what}, chunk {chunk}");
                    }
                }
            }
        }
    }
}

/// Threads share one row's blocks of positions. The last of these chunks is one token, behind three blocks.
#[test]
fn a_row_that_threads_share_is_the_same_row() {
    let file = small_file(SmallSpec {
        context: 512,
        ..SmallSpec::default()
    });
    let tokens = prompt(1, 290);
    let [one, two] = [1, 2].map(|threads| load(&file, NUMERICS[0], isas()[0], threads));
    let expected = digest(&Bench::new(&one, 16, &[300]).all_logits(&tokens, 290));
    for model in [&one, &two] {
        let rows = Bench::new(model, 16, &[300]).all_logits(&tokens, 17);
        assert_eq!(digest(&rows), expected);
    }
}

/// One sequence of a mixed batch: what it prefills at once, then how many tokens it decodes.
#[derive(Clone, Debug)]
struct Neighbour {
    seed: u32,
    prompt: usize,
    chunk: usize,
    decode: usize,
}

fn neighbours() -> impl Strategy<Value = Vec<Neighbour>> {
    let one = (0u32..1000, 1usize..60, 1usize..40, 1usize..6).prop_map(
        |(seed, prompt, chunk, decode)| Neighbour {
            seed,
            prompt,
            chunk,
            decode,
        },
    );
    prop::collection::vec(one, 1..=8)
}

/// Runs all sequences together, each step mixing whoever prefills with whoever decodes, and
/// returns every sequence's logits: of the prompt's last token, then of each decoded one.
fn run(model: &Model, page_size: u16, batch: &[Neighbour]) -> Vec<Vec<Vec<u32>>> {
    let vocab = model.config().vocab.min(49_000) as u32;
    let streams: Vec<Vec<u32>> = batch
        .iter()
        .map(|n| prompt_of(vocab, n.seed, n.prompt + n.decode))
        .collect();
    let lengths: Vec<usize> = streams.iter().map(Vec::len).collect();
    let mut bench = Bench::new(model, page_size, &lengths);
    let mut done = vec![0; batch.len()];
    let mut logits = vec![Vec::new(); batch.len()];
    while done
        .iter()
        .zip(&lengths)
        .any(|(done, length)| done < length)
    {
        let mut parts: Vec<(usize, &[u32], Want)> = Vec::new();
        for (i, n) in batch.iter().enumerate() {
            let left = n.prompt.saturating_sub(done[i]);
            let take = if left > 0 { n.chunk.min(left) } else { 1 };
            let stream = &streams[i][done[i]..];
            if let Some(tokens) = stream.get(..take) {
                let want = if take >= left {
                    Want::Last
                } else {
                    Want::Nothing
                };
                parts.push((i, tokens, want));
            }
        }
        let step = bench.step(&parts).expect("a sound step");
        for (at, (i, tokens, _)) in parts.iter().enumerate() {
            done[*i] += tokens.len();
            logits[*i].extend(step.last(at).map(bits));
        }
    }
    logits
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    #[test]
    fn neighbours_do_not_show(batch in neighbours(), page_size in prop::sample::select(vec![8u16, 16, 32])) {
        let file = small_file(SmallSpec::default());
        for numeric in NUMERICS {
            for isa in isas() {
                let one = load(&file, numeric, isa, 1);
                let two = load(&file, numeric, isa, 2);
                let together = run(&two, page_size, &batch);
                for (i, neighbour) in batch.iter().enumerate() {
                    let alone = run(&one, 16, std::slice::from_ref(neighbour));
                    prop_assert_eq!(alone[0].len(), neighbour.decode + 1);
                    prop_assert!(alone[0] == together[i], "{:?} {} sequence {}", numeric, isa, i);
                }
            }
        }
    }
}

#[test]
fn the_real_weights_agree_with_themselves() {
    let file = gguf::File::open(&testkit::weights::path()).expect("the weights can be read");
    for isa in isas() {
        let one = load(&file, Numeric::Fast, isa, 1);
        let two = load(&file, Numeric::Fast, isa, 2);
        let whole = run(
            &one,
            16,
            &[Neighbour {
                seed: 3,
                prompt: 88,
                chunk: 88,
                decode: 2,
            }],
        );
        let mixed = [
            Neighbour {
                seed: 9,
                prompt: 30,
                chunk: 30,
                decode: 3,
            },
            Neighbour {
                seed: 3,
                prompt: 88,
                chunk: 37,
                decode: 2,
            },
            Neighbour {
                seed: 5,
                prompt: 1,
                chunk: 1,
                decode: 4,
            },
        ];
        assert!(run(&two, 8, &mixed)[1] == whole[0], "{isa}");
    }
}

#[test]
fn a_shape_off_the_kernels_tiles_is_invariant_too() {
    // 5 heads in one group, f32 weights: tiles of 3 and 6 queries do not divide it.
    let spec = SmallSpec {
        hidden: 80,
        heads: 5,
        kv_heads: 1,
        ff: 96,
        dtype: gguf::DType::F32,
        ..SmallSpec::default()
    };
    let file = small_file(spec);
    let tokens = prompt(2, 40);
    for isa in isas() {
        let model = load(&file, Numeric::Exact, isa, 1);
        let expected = digest(&Bench::new(&model, 16, &[40]).all_logits(&tokens, 40));
        for chunk in [1, 3, 11] {
            let rows = Bench::new(&model, 8, &[40]).all_logits(&tokens, chunk);
            assert_eq!(digest(&rows), expected, "{isa} chunk {chunk}");
        }
    }
}

/// Every architecture: windows that begin inside chunks and pages, experts that several tokens share,
/// latent rows.
#[test]
fn in_no_architecture_do_chunks_pages_threads_and_neighbours_show() {
    for (name, ..) in RECORDED {
        nothing_shows(name, gguf::DType::Q8_0, &NUMERICS);
    }
}

/// Every type of weights that has a kernel of its own.
#[test]
fn in_no_type_of_weights_do_chunks_pages_threads_and_neighbours_show() {
    for dtype in gguf::DType::ALL {
        nothing_shows("llama", dtype, &[Numeric::Fast]);
    }
}

fn nothing_shows(name: &str, dtype: gguf::DType, numerics: &[Numeric]) {
    let (case, _) = Case::of(name);
    let file = case.file(dtype);
    let tokens = &case.tokens[..70];
    for numeric in numerics.iter().copied() {
        for isa in isas() {
            let [one, two] = [1, 2].map(|threads| load(&file, numeric, isa, threads));
            let expected = digest(&Bench::new(&one, 16, &[70]).all_logits(tokens, 70));
            for (model, page_size, chunk) in [(&one, 8, 1), (&one, 5, 9), (&two, 32, 64)] {
                let rows = Bench::new(model, page_size, &[70]).all_logits(tokens, chunk);
                let what =
                    format!("{name} {dtype} {numeric:?} {isa} page {page_size} chunk {chunk}");
                assert_eq!(digest(&rows), expected, "{what}");
            }
            let neighbour = |seed, prompt, chunk| Neighbour {
                seed,
                prompt,
                chunk,
                decode: 3,
            };
            let batch = [
                neighbour(1, 33, 33),
                neighbour(2, 61, 23),
                neighbour(3, 1, 1),
            ];
            let together = run(&two, 8, &batch);
            for (i, neighbour) in batch.iter().enumerate() {
                let alone = run(&one, 16, std::slice::from_ref(neighbour));
                assert!(
                    alone[0] == together[i],
                    "{name} {dtype} {numeric:?} {isa} sequence {i}"
                );
            }
        }
    }
}

/// The test of the tests: what must show, shows.
#[test]
fn another_token_far_back_changes_the_logits() {
    let file = small_file(SmallSpec::default());
    let mut tokens = prompt(1, 75);
    for numeric in NUMERICS {
        let model = load(&file, numeric, Isa::detect(), 1);
        let before = digest(&Bench::new(&model, 16, &[80]).all_logits(&tokens, 75));
        tokens[5] += 1;
        let after = digest(&Bench::new(&model, 16, &[80]).all_logits(&tokens, 75));
        assert_eq!(before[..5], after[..5], "a later token does not reach back");
        assert!(before[5..].iter().zip(&after[5..]).all(|(b, a)| b != a));
        tokens[5] -= 1;
    }
}
