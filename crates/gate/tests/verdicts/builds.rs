//! Versions as builds word them, roles of one version, and blocks that are no unit of capacity.

use super::*;

fn at(new: &str) -> Servers {
    let role = |role: &str| version(sglang(role), "0.5.23", new);
    pair(&role("prefill"), &role("decode"))
}

fn lone(new: &str) -> Servers {
    server(version(lone_vllm(), "0.32.0", new), |_| {})
}

/// A number that nobody released, and one that a build was given because it had none.
#[test]
fn versions_that_say_nothing_are_neither_old_nor_new() {
    let sglang = |text: &'static str| (text, at(text), vec![("minimum-version", Unknown)]);
    let vllm = |text: &'static str| (text, lone(text), vec![("known-advisories", Unknown)]);
    compare(vec![
        sglang("0.0.1"),
        sglang("0.0.3.dev4+g0a1b2c3"),
        sglang("0.1.0"),
        sglang("0.2.0+local"),
        sglang("1234567"),
        sglang("2026.11.30"),
        sglang("20261130"),
        sglang("0a1b2c3"),
        sglang("sglang-0.5.23"),
        sglang("0.5.23 (0a1b2c3)"),
        vllm("0.0.2"),
        vllm("0.1.0"),
        vllm("0.2.0"),
        (
            "vLLM 0.6.0",
            lone("0.6.0"),
            vec![("known-advisories", Violated)],
        ),
        (
            "SGLang 0.4.6",
            at("0.4.6"),
            vec![("minimum-version", Violated)],
        ),
        ("0!0.5.23", at("0!0.5.23"), vec![("minimum-version", Holds)]),
        ("V0.5.23", at("V0.5.23"), vec![("minimum-version", Holds)]),
    ]);
}

/// `X.post1.devN` is N commits after X: it may have what the next release brought, or lack it.
#[test]
fn commits_after_a_release_are_on_the_way_to_the_next() {
    let say =
        |text: &'static str, check: &'static str, answer| (text, at(text), vec![(check, answer)]);
    compare(vec![
        say("0.5.19.post1.dev3+g0a1b2c3", "no-stale-pages", Unknown),
        say("0.5.19.post1.dev3+g0a1b2c3", "minimum-version", Violated),
        say("0.5.21.post1.dev40+g0a1b2c3", "minimum-version", Unknown),
        say("0.5.21.post3.dev1", "minimum-version", Unknown),
        say("0.5.21.post3", "minimum-version", Violated),
        say("0.5.22.post1.dev3+g0a1b2c3", "minimum-version", Holds),
        (
            "vLLM 0.8.5.post1.dev3",
            lone("0.8.5.post1.dev3+g0a1b2c3"),
            vec![("known-advisories", Violated)],
        ),
        (
            "vLLM 0.10.2.post1.dev3, where only the fix of 0.11.0 is in question",
            lone("0.10.2.post1.dev3+g0a1b2c3"),
            vec![("known-advisories", Unknown)],
        ),
    ]);
}

/// What a prompt between two limits meets on the way to the release that ended the incident.
#[test]
fn a_build_on_the_way_is_not_said_to_be_the_incident() {
    let says = |text: &str| {
        let mut small = version(sglang("prefill"), "0.5.23", text);
        info(&mut small, "/max_req_input_len", json!(1994));
        let decode = version(sglang("decode"), "0.5.23", text);
        let report = judged(&pair(&small, &decode), false);
        let limits = report.findings.into_iter();
        limits
            .filter(|it| it.check.id == "prompt-limits-equal")
            .map(|it| it.says)
            .collect::<String>()
    };
    for may in ["0.5.20rc1", "0.5.20.dev700+g0a1b2c3", "0.5.19.post1.dev3"] {
        assert!(
            says(may).contains("may be answered with 200"),
            "{}",
            says(may)
        );
    }
    assert!(says("0.5.19").contains("is answered with 200"));
    assert!(says("0.5.20").contains("waits 300 s"));
}

#[test]
fn one_version_under_two_names_is_one() {
    let two = |one: &str, other: &str| {
        let it = |text: &str| {
            nodes_at(
                &format!("http://{text}"),
                &version(sglang("single"), "0.5.23", text),
            )
        };
        vec![(Stated::Server, it(one)), (Stated::Server, it(other))]
    };
    let say = |answer| vec![("one-version-per-role", answer)];
    compare(vec![
        ("v0.5.23 and 0.5.23", two("v0.5.23", "0.5.23"), say(Holds)),
        (
            "0.5.23+cu129 and 0.5.23",
            two("0.5.23+cu129", "0.5.23"),
            say(Holds),
        ),
        ("0.5.23.post1", two("0.5.23.post1", "0.5.23"), say(Violated)),
        (
            "0.5.23.post1 and 0.5.23-1",
            two("0.5.23.post1", "0.5.23-1"),
            say(Holds),
        ),
        (
            "two commits that are as far from a release",
            two("0.5.24.dev3+gaaaaaaa", "0.5.24.dev3+gbbbbbbb"),
            say(Violated),
        ),
        (
            "one commit",
            two("0.5.24.dev3+gaaaaaaa", "v0.5.24.dev3+gaaaaaaa"),
            say(Holds),
        ),
    ]);
}

/// Tokens in a block of attention, where it is no block of `block_size`.
#[test]
fn blocks_of_another_unit_are_no_capacity() {
    let lone = |labels: &[(&str, &str)]| {
        let mut it = lone_vllm().only_answers(&["/server_info"]);
        for (name, value) in labels {
            label(&mut it, name, value);
        }
        vec![(Stated::Server, nodes_at("http://s", &it))]
    };
    let pool = |answer| vec![("pool-holds-context", answer)];
    compare(vec![
        (
            "blocks of 1,600 by another label, no count of the engine's own",
            lone(&[
                ("block_size", "8"),
                ("effective_attention_block_size", "1600"),
                ("kv_cache_size_tokens", "None"),
            ]),
            pool(Unknown),
        ),
        (
            "no attention at all, no count of the engine's own",
            lone(&[
                ("block_size", "8"),
                ("is_attention_free", "True"),
                ("kv_cache_size_tokens", "None"),
            ]),
            pool(Unknown),
        ),
        (
            "no attention at all, by the engine's own count",
            lone(&[
                ("block_size", "8"),
                ("effective_attention_block_size", "None"),
                ("is_attention_free", "True"),
            ]),
            pool(Holds),
        ),
        (
            "chunks of attention, no count of the engine's own",
            lone(&[
                ("block_size", "8"),
                ("prefix_match_unit", "1600"),
                ("effective_attention_block_size", "1600"),
                ("kv_cache_size_tokens", "300"),
            ]),
            pool(Violated),
        ),
        (
            "one kind, one unit, no count of the engine's own",
            lone(&[("kv_cache_size_tokens", "None")]),
            pool(Holds),
        ),
    ]);
}
