use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn noise(n: usize, seed: u64) -> Vec<f32> {
    (0..n)
        .map(|i| {
            uniform(
                seed,
                Draw {
                    choice: 1,
                    position: i as u32,
                },
            ) as f32
                * 8.0
                - 4.0
        })
        .collect()
}

fn token(logits: &[f32], params: &SamplingParams, position: u32) -> u32 {
    let draw = Draw {
        choice: 0,
        position,
    };
    Sampler::default()
        .sample(logits, params, draw, History::default())
        .token
}

/// How often each token comes out of `n` draws.
fn frequencies(logits: &[f32], params: &SamplingParams, n: u32) -> Vec<f64> {
    let mut counts = vec![0.0; logits.len()];
    (0..n).for_each(|position| counts[token(logits, params, position) as usize] += 1.0);
    counts
        .into_iter()
        .map(|count| count / f64::from(n))
        .collect()
}

#[test]
fn greedy_takes_the_lowest_id_among_equals() {
    let params = SamplingParams {
        temperature: 0.0,
        ..Default::default()
    };
    assert_eq!(token(&[1.0, 3.0, 3.0, 2.0], &params, 0), 1);
}

#[test]
fn what_is_banned_is_never_sampled_and_the_rest_as_likely_as_before() {
    let logits = [1.0, 9.0, 1.0, 8.0];
    let greedy = SamplingParams {
        temperature: 0.0,
        banned: vec![1],
        ..Default::default()
    };
    assert_eq!(token(&logits, &greedy, 0), 3);
    for top_k in [0, 3] {
        let params = SamplingParams {
            banned: vec![1, 3],
            logit_bias: BTreeMap::from([(1, 100.0)]),
            top_k,
            ..Default::default()
        };
        let seen = frequencies(&logits, &params, 2_000);
        assert_eq!((seen[1], seen[3]), (0.0, 0.0));
        // Three standard deviations of 2,000 draws are 0.034.
        assert!((seen[0] - 0.5).abs() < 0.034, "{seen:?}");
    }
    let all = SamplingParams {
        banned: vec![0, 1, 2, 3],
        ..Default::default()
    };
    assert_eq!(all.validate(4).unwrap_err().field, "banned");
}

#[test]
fn draws_follow_the_softmax_at_every_temperature() {
    let logits = [1.0, 0.0, 2.0, -1.0];
    for temperature in [0.5, 1.0, 2.0] {
        let params = SamplingParams {
            temperature,
            ..Default::default()
        };
        let weights: Vec<f64> = logits
            .iter()
            .map(|l| (f64::from(*l) / f64::from(temperature)).exp())
            .collect();
        let total: f64 = weights.iter().sum();
        for (got, weight) in frequencies(&logits, &params, 20_000).iter().zip(&weights) {
            // Three standard deviations of 20,000 draws are 0.0106 at most.
            assert!(
                (got - weight / total).abs() < 0.0106,
                "{temperature}: {got} {weight}"
            );
        }
    }
}

#[test]
fn filters_keep_what_they_say() {
    // Probabilities 0.5, 0.25, 0.125, 0.125 in a scrambled order.
    let logits = [0.125f32.ln(), 0.5f32.ln(), 0.125f32.ln(), 0.25f32.ln()];
    let kept = |params: SamplingParams| -> Vec<usize> {
        let frequencies = frequencies(&logits, &params, 2_000);
        (0..4).filter(|token| frequencies[*token] > 0.0).collect()
    };
    let base = SamplingParams::default();
    assert_eq!(kept(base.clone()), [0, 1, 2, 3]);
    assert_eq!(
        kept(SamplingParams {
            top_k: 1,
            ..base.clone()
        }),
        [1]
    );
    assert_eq!(
        kept(SamplingParams {
            top_k: 3,
            ..base.clone()
        }),
        [0, 1, 3]
    );
    assert_eq!(
        kept(SamplingParams {
            top_p: 0.45,
            ..base.clone()
        }),
        [1]
    );
    assert_eq!(
        kept(SamplingParams {
            top_p: 0.74,
            ..base.clone()
        }),
        [1, 3]
    );
    assert_eq!(
        kept(SamplingParams {
            top_p: 0.76,
            ..base.clone()
        }),
        [0, 1, 3]
    );
    assert_eq!(
        kept(SamplingParams {
            min_p: 0.3,
            ..base.clone()
        }),
        [1, 3]
    );
    assert_eq!(
        kept(SamplingParams {
            min_p: 1.0,
            ..base.clone()
        }),
        [1]
    );
    // top_p is a share of what top_k leaves: 0.5 of 0.75 is 0.67.
    assert_eq!(
        kept(SamplingParams {
            top_k: 2,
            top_p: 0.66,
            ..base.clone()
        }),
        [1]
    );
    assert_eq!(
        kept(SamplingParams {
            top_k: 2,
            top_p: 0.68,
            ..base
        }),
        [1, 3]
    );
}

#[test]
fn top_p_reaches_beyond_what_is_sorted_first() {
    // A flat distribution: 99 % of 4,000 tokens is far more than SORTED_FIRST.
    let logits = vec![0.0; 4_000];
    let mut sampler = Sampler {
        logits: logits.clone(),
        weights: vec![1.0; 4_000],
        ..Default::default()
    };
    let params = SamplingParams {
        top_p: 0.99,
        ..Default::default()
    };
    let kept = sampler.likeliest(&params);
    assert!((3_959..=3_961).contains(&kept), "{kept}");
    assert_eq!(sampler.order[..3_000], (0..3_000).collect::<Vec<_>>()[..]);
    let params = SamplingParams {
        top_p: 0.5,
        top_k: 3_000,
        ..Default::default()
    };
    assert!((1_499..=1_501).contains(&sampler.likeliest(&params)));
}

#[test]
fn penalties_and_bias_move_the_logits_they_name() {
    let history = History {
        prompt: &[0, 1],
        generated: &[2, 2, 3],
    };
    let penalized = |params: SamplingParams| {
        let mut sampler = Sampler {
            logits: vec![2.0, -2.0, 2.0, 2.0, 2.0],
            ..Default::default()
        };
        sampler.penalize(&params, history);
        sampler.logits
    };
    let base = SamplingParams::default();
    assert_eq!(penalized(base.clone()), [2.0, -2.0, 2.0, 2.0, 2.0]);
    let repetition = SamplingParams {
        repetition_penalty: 2.0,
        ..base.clone()
    };
    assert_eq!(penalized(repetition), [1.0, -4.0, 1.0, 1.0, 2.0]);
    let presence = SamplingParams {
        presence_penalty: 0.5,
        ..base.clone()
    };
    assert_eq!(penalized(presence), [2.0, -2.0, 1.5, 1.5, 2.0]);
    let frequency = SamplingParams {
        frequency_penalty: 0.5,
        ..base.clone()
    };
    assert_eq!(penalized(frequency), [2.0, -2.0, 1.0, 1.5, 2.0]);
    let bias = SamplingParams {
        logit_bias: BTreeMap::from([(4, -100.0)]),
        ..base
    };
    assert_eq!(penalized(bias), [2.0, -2.0, 2.0, 2.0, -98.0]);
}

#[test]
fn log_probabilities_are_those_of_the_raw_logits() {
    let logits = [0.25f32.ln(), 0.5f32.ln(), 0.25f32.ln()];
    let params = SamplingParams {
        temperature: 0.0,
        top_logprobs: 3,
        logit_bias: BTreeMap::from([(2, 50.0)]),
        ..Default::default()
    };
    let draw = Draw {
        choice: 0,
        position: 0,
    };
    let sampled = Sampler::default().sample(&logits, &params, draw, History::default());
    assert_eq!(sampled.token, 2, "the bias decides");
    assert!(
        (sampled.logprob - 0.25f32.ln()).abs() < 1e-6,
        "but does not count"
    );
    let ids: Vec<u32> = sampled.top.iter().map(|(token, _)| *token).collect();
    assert_eq!(ids, [1, 0, 2]);
    assert!((sampled.top[0].1 - 0.5f32.ln()).abs() < 1e-6);
}

#[test]
fn seed_choice_and_position_each_change_the_draw() {
    let draw = Draw {
        choice: 0,
        position: 5,
    };
    let base = uniform(1, draw);
    assert_eq!(base, uniform(1, draw));
    assert_ne!(base, uniform(2, draw));
    assert_ne!(base, uniform(1, Draw { choice: 1, ..draw }));
    assert_ne!(
        base,
        uniform(
            1,
            Draw {
                position: 6,
                ..draw
            }
        )
    );
}

#[test]
fn errors_name_the_field_its_range_and_the_value() {
    let check = |params: SamplingParams| params.validate(10).unwrap_err().to_string();
    let base = SamplingParams::default;
    let bias = |token, bias| BTreeMap::from([(token, bias)]);
    for (params, text) in [
        (
            SamplingParams {
                temperature: 2.5,
                ..base()
            },
            "temperature must be between 0 and 2, got 2.5",
        ),
        (
            SamplingParams {
                temperature: f32::NAN,
                ..base()
            },
            "temperature must be between 0 and 2, got NaN",
        ),
        (
            SamplingParams {
                top_p: 0.0,
                ..base()
            },
            "top_p must be above 0 and at most 1, got 0",
        ),
        (
            SamplingParams {
                min_p: -0.1,
                ..base()
            },
            "min_p must be between 0 and 1, got -0.1",
        ),
        (
            SamplingParams {
                presence_penalty: -3.0,
                ..base()
            },
            "presence_penalty must be between -2 and 2, got -3",
        ),
        (
            SamplingParams {
                frequency_penalty: 3.0,
                ..base()
            },
            "frequency_penalty must be between -2 and 2, got 3",
        ),
        (
            SamplingParams {
                repetition_penalty: 0.0,
                ..base()
            },
            "repetition_penalty must be above 0 and at most 2, got 0",
        ),
        (
            SamplingParams {
                top_logprobs: 21,
                ..base()
            },
            "top_logprobs must be between 0 and 20, got 21",
        ),
        (
            SamplingParams {
                logit_bias: bias(10, 1.0),
                ..base()
            },
            "logit_bias must be of tokens below 10, got 10",
        ),
        (
            SamplingParams {
                logit_bias: bias(9, 101.0),
                ..base()
            },
            "logit_bias must be between -100 and 100, got 101",
        ),
    ] {
        assert_eq!(check(params), text);
    }
    assert_eq!(base().validate(10), Ok(()));
}

proptest! {
    #[test]
    fn sampling_is_a_function_of_its_arguments(
        seed in any::<u64>(),
        temperature in 0.1f32..2.0,
        top_p in 0.05f32..1.0,
        top_k in 0u32..50,
        min_p in 0.0f32..0.5,
        other in any::<u64>(),
    ) {
        let params = SamplingParams { temperature, top_p, top_k, min_p, seed, top_logprobs: 5, ..Default::default() };
        let (logits, history) = (noise(300, seed), History { prompt: &[1, 2], generated: &[3] });
        let draw = Draw { choice: 2, position: 9 };
        let alone = Sampler::default().sample(&logits, &params, draw, history);
        // A sampler that did other work before gives the same.
        let mut used = Sampler::default();
        used.sample(&noise(500, other), &params, Draw { choice: 0, position: 1 }, history);
        prop_assert_eq!(&used.sample(&logits, &params, draw, history), &alone);
        let kept = logits.iter().filter(|l| **l > logits[alone.token as usize]).count();
        prop_assert!(top_k == 0 || kept < top_k as usize, "a token outside top_k");
        prop_assert!(alone.logprob <= 0.0);
        prop_assert!(alone.top.is_sorted_by(|a, b| a.1 >= b.1));
    }
}
