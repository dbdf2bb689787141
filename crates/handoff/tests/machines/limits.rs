//! The limit of a pair is measured on both, and means exactly what both would say (H-5).

use crate::rig::{CONTEXT, DECODE, GATEWAY, PAGE, PREFILL, hello, spec};
use handoff::{Capacity, Hello, Limit, Rejection, Role, Spec, decode, gateway, prefill};
use pages::Pool;
use proptest::prelude::*;

fn capacity(role: Role, pages: u32, page_size: u16, context: u32) -> Capacity {
    Capacity {
        role,
        pages,
        page_size,
        context,
    }
}

fn capacities(role: Role) -> impl Strategy<Value = Capacity> {
    let pages = prop_oneof![0..40u32, Just(u32::MAX)];
    let page_size = prop_oneof![1..20u16, Just(u16::MAX)];
    let context = prop_oneof![0..200u32, Just(u32::MAX)];
    (pages, page_size, context)
        .prop_map(move |(pages, page_size, context)| capacity(role, pages, page_size, context))
}

fn specs() -> impl Strategy<Value = Spec> {
    let max_new = prop_oneof![0..200u32, Just(u32::MAX)];
    let choices = prop_oneof![0..5u16, Just(u16::MAX)];
    (0..220usize, max_new, choices).prop_map(|(tokens, max_new, choices)| Spec {
        choices,
        ..spec(1, tokens, max_new)
    })
}

proptest! {
    #[test]
    fn h5_a_pair_admits_exactly_what_both_admit(
        p in capacities(Role::Prefill), d in capacities(Role::Decode), spec in specs(),
    ) {
        let limit = Limit::of_pair(p, d);
        let pages = limit.reserve(&spec); // as the gateway asks decode for it
        let both = p.admits(&spec).and_then(|()| d.admits(&Spec { pages, ..spec.clone() }));
        let pair = limit.admits(&spec);
        prop_assert_eq!(pair.is_ok(), both.is_ok(), "{:?} against {:?}", pair, both);
    }

    /// The two numbers that are advertised are the largest that are admitted, one choice asked for.
    #[test]
    fn h5_what_is_advertised_is_admitted_and_one_more_is_not(
        p in capacities(Role::Prefill), d in capacities(Role::Decode),
    ) {
        let limit = Limit::of_pair(p, d);
        let (prompt, len) = (limit.max_prompt(), limit.max_model_len());
        prop_assume!((1..300).contains(&prompt));
        prop_assert!(limit.admits(&spec(1, prompt as usize, 1)).is_ok());
        prop_assert!(limit.admits(&spec(1, prompt as usize + 1, 1)).is_err());
        prop_assert!(limit.admits(&spec(1, 1, len - 1)).is_ok());
        prop_assert!(limit.admits(&spec(1, 1, len)).is_err());
    }
}

/// limit - 1, limit, limit + 1, where the smallest limit is prefill's and where it is decode's.
#[test]
fn h5_around_the_limit_on_each_role() {
    let cases = [
        // Prefill's pool: the whole of it.
        (6, 64, 32, 64, 24, Role::Prefill),
        // Prefill's context: one token less.
        (32, 20, 32, 64, 19, Role::Prefill),
        // Decode's pool and context: one token less, for the output.
        (32, 64, 6, 64, 23, Role::Decode),
        (32, 64, 32, 20, 19, Role::Decode),
    ];
    for (p_pages, p_context, d_pages, d_context, expected, by) in cases {
        let p = capacity(Role::Prefill, p_pages, 4, p_context);
        let d = capacity(Role::Decode, d_pages, 4, d_context);
        let limit = Limit::of_pair(p, d);
        assert_eq!(limit.max_prompt(), expected);
        for tokens in [expected - 1, expected] {
            assert_eq!(limit.admits(&spec(1, tokens as usize, 1)), Ok(()));
        }
        let tokens = expected + 1;
        let why = Rejection::PromptTooLong {
            tokens,
            limit: expected,
            by,
        };
        let over = spec(1, tokens as usize, 1);
        assert_eq!(limit.admits(&over), Err(why), "at the edge");
        let (of_p, of_d) = (p.admits(&over), d.admits(&over));
        assert_eq!(
            (of_p.is_err(), of_d.is_err()),
            (by == Role::Prefill, by == Role::Decode)
        );
    }
}

#[test]
fn the_sum_of_prompt_and_output_names_whose_limit_it_is() {
    for (p_context, d_context, by) in [(20, 64, Role::Prefill), (64, 20, Role::Decode)] {
        let p = capacity(Role::Prefill, 32, 4, p_context);
        let d = capacity(Role::Decode, 32, 4, d_context);
        let why = Rejection::ContextTooLong {
            prompt: 10,
            max_new: 11,
            limit: 20,
            by,
        };
        assert_eq!(Limit::of_pair(p, d).admits(&spec(1, 10, 11)), Err(why));
    }
}

/// Where both have the same limit, the error names one of them, always the same.
#[test]
fn a_limit_that_both_have_is_called_decodes() {
    let (p, d) = (
        capacity(Role::Prefill, 32, 4, 20),
        capacity(Role::Decode, 32, 4, 20),
    );
    let (tokens, limit, by) = (20, 19, Role::Decode);
    let why = Rejection::PromptTooLong { tokens, limit, by };
    assert_eq!(Limit::of_pair(p, d).admits(&spec(1, 20, 1)), Err(why));
    let (prompt, max_new, limit) = (10, 11, 20);
    let why = Rejection::ContextTooLong {
        prompt,
        max_new,
        limit,
        by,
    };
    assert_eq!(Limit::of_pair(p, d).admits(&spec(1, 10, 11)), Err(why));
}

#[test]
fn a_limit_says_how_it_came_about() {
    let p = capacity(Role::Prefill, 640, 16, 8192);
    let d = capacity(Role::Decode, 700, 16, 4096);
    let limit = Limit::of_pair(p, d);
    assert_eq!(limit.pair(), (p, d));
    let said = limit.to_string();
    for part in [
        "prompt at most 4095 tokens",
        "prompt + output at most 4096",
        "prefill pool 10240 tokens (640 pages of 16), context 8192",
        "decode pool 11200 tokens (700 pages of 16), context 4096",
    ] {
        assert!(said.contains(part), "{part:?} in {said:?}");
    }
}

/// Law: capacity is measured, not declared. Whatever a machine is told to say of itself, it says
/// what it is and what its pool holds.
#[test]
fn a_machine_says_what_it_is_and_what_its_pool_measures() {
    let pool = || {
        Pool::new(pages::Config {
            pages: 5,
            page_size: PAGE,
            scrub: false,
        })
    };
    let wrong = |life, role| Hello {
        ranks: 3,
        capacity: Some(capacity(role, 77, 9, 9)),
        ..hello(life, role)
    };
    let said = |hello: &Hello| (hello.role, hello.ranks, hello.capacity);
    let measured = |role| Some(capacity(role, 5, PAGE, CONTEXT));

    let ((mine, _), config) = (pool(), prefill::Config::for_context(CONTEXT, [9; 32]));
    let p = prefill::Prefill::new(config, wrong(PREFILL, Role::Decode), mine);
    let of_p = (Role::Prefill, 3, measured(Role::Prefill));
    assert_eq!(said(p.hello()), of_p, "as many ranks as write");

    let ((mine, mint), config) = (pool(), decode::Config::for_pool(5, CONTEXT, [9; 32]));
    let d = decode::Decode::new(config, wrong(DECODE, Role::Prefill), mine, mint.lend());
    let of_d = (Role::Decode, 1, measured(Role::Decode));
    assert_eq!(said(d.hello()), of_d);

    let config = gateway::Config::default();
    let g = gateway::Gateway::new(config, wrong(GATEWAY, Role::Prefill));
    assert_eq!((g.hello().role, g.hello().capacity), (Role::Gateway, None));
}
