//! Parsing is total, and what was written is read back.

use proptest::prelude::*;
use wire::{
    Ask, Counters, Facts, Form, Frame, Pages, Quarantine, Sampling, TokenOut, decode_first,
    encode_first,
};

fn asks() -> impl Strategy<Value = Ask> {
    let bias = proptest::collection::btree_map(any::<u32>(), -100.0f32..=100.0, 0..5);
    let floats = (
        0.0f32..=2.0,
        0.01f32..=1.0,
        0.0f32..=1.0,
        -2.0f32..=2.0,
        0.1f32..=2.0,
    );
    let rest = (
        any::<u32>(),
        any::<u64>(),
        proptest::option::of(0u8..=20),
        any::<bool>(),
        proptest::collection::btree_set(any::<u32>(), 0..5),
        any::<u32>(),
        proptest::option::of((0..3, ".{0,40}")),
    );
    (floats, bias, rest).prop_map(|(floats, bias, rest)| {
        let (temperature, top_p, min_p, penalty, repetition_penalty) = floats;
        let (top_k, seed, logprobs, ignore_eos, stop_tokens, min_tokens, form) = rest;
        let sampling = Sampling {
            temperature,
            top_p,
            top_k,
            min_p,
            seed,
            presence_penalty: penalty,
            frequency_penalty: -penalty,
            repetition_penalty,
            logit_bias: bias.into_iter().collect(),
            logprobs,
        };
        Ask {
            sampling,
            ignore_eos,
            stop_tokens: stop_tokens.into_iter().collect(),
            min_tokens,
            form: form.map(|(kind, text): (i32, String)| {
                [Form::Json, Form::Regex, Form::Lark as fn(String) -> Form][kind as usize](text)
            }),
        }
    })
}

proptest! {
    #[test]
    fn an_ask_is_read_as_it_was_written(ask in asks()) {
        prop_assert_eq!(Ask::decode(&ask.encode()), Ok(ask));
    }

    #[test]
    fn any_bytes_give_a_value_in_range_or_an_error(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..200),
        versioned in any::<bool>(),
    ) {
        if let (true, Some(first)) = (versioned, bytes.first_mut()) {
            *first = wire::VERSION;
        }
        if let Ok(ask) = Ask::decode(&bytes) {
            prop_assert!(ask.check().is_ok());
        }
        let _ = TokenOut::decode(&bytes);
        let _ = decode_first(&bytes, 2);
        let _ = Frame::decode(&bytes);
    }

    #[test]
    fn a_cut_or_flipped_ask_never_panics(ask in asks(), at in any::<proptest::sample::Index>()) {
        let mut bytes = ask.encode();
        let at = at.index(bytes.len());
        let _ = Ask::decode(&bytes[..at]);
        bytes[at] ^= 0x55;
        let _ = Ask::decode(&bytes);
        let mut longer = ask.encode();
        longer.push(0);
        prop_assert!(Ask::decode(&longer).is_err(), "bytes behind the value");
    }
}

#[test]
fn a_value_out_of_range_is_named() {
    let check = |change: fn(&mut Ask)| {
        let mut ask = Ask::greedy();
        change(&mut ask);
        Ask::decode(&ask.encode()).unwrap_err().to_string()
    };
    assert!(check(|ask| ask.sampling.temperature = f32::NAN).contains("temperature is NaN"));
    assert!(check(|ask| ask.sampling.top_p = 0.0).contains("top_p is 0; expected above 0"));
    assert!(check(|ask| ask.sampling.logprobs = Some(21)).contains("logprobs is 21"));
    assert!(check(|ask| ask.sampling.logit_bias = vec![(2, 0.0), (2, 0.0)]).contains("none twice"));
    assert!(check(|ask| ask.stop_tokens = vec![2, 2]).contains("none twice"));
    assert!(check(|ask| ask.stop_tokens = (0..129).collect()).contains("at most 128"));
}

#[test]
fn first_tokens_are_exactly_as_many_as_choices() {
    let token = |id| TokenOut {
        id,
        logprob: Some(-0.5),
        top: vec![(id, -0.5), (9, -2.0)],
    };
    let bytes = encode_first(&[token(3), token(4)]);
    assert_eq!(decode_first(&bytes, 2).unwrap(), [token(3), token(4)]);
    for choices in [0, 1, 3] {
        let error = decode_first(&bytes, choices).unwrap_err().to_string();
        assert!(
            error.contains(&format!("2 tokens for {choices} choices")),
            "{error}"
        );
    }
}

#[test]
fn frames_are_told_apart() {
    let facts = Facts {
        epoch: 1 << 100,
        draining: true,
        peers: 3,
        pages: Pages {
            free: 7,
            cached: 2,
            ..Pages::default()
        },
        no_arena: true,
        quarantine: Quarantine {
            arena_bytes: 5,
            ..Quarantine::default()
        },
        counters: Counters {
            steps: 9,
            ..Counters::default()
        },
    };
    for frame in [
        Frame::Core(b"core"),
        Frame::AskFacts,
        Frame::Facts(Box::new(facts)),
    ] {
        assert_eq!(Frame::decode(&frame.encode()), Ok(frame));
    }
    assert!(Frame::decode(&[]).is_err());
    assert!(
        Frame::decode(&[1, 0])
            .unwrap_err()
            .to_string()
            .contains("1 bytes behind")
    );
    assert!(
        Frame::decode(&[9])
            .unwrap_err()
            .to_string()
            .contains("unknown kind 9")
    );
}

#[test]
fn counters_have_names_and_words() {
    let counters = Counters {
        attempts_rejected: 3,
        ..Counters::default()
    };
    let named = counters.named();
    assert!(named.contains(&(
        "attempts_rejected",
        "Attempts refused for good before anything was allocated.",
        3
    )));
}
