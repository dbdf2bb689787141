//! Single servers: what they keep, how they answer, which version they say they are.

use super::*;

fn single(change: impl FnOnce(&mut Recording)) -> Servers {
    server(sglang("single"), change)
}

fn bare_vllm(change: impl FnOnce(&mut Recording)) -> Servers {
    server(lone_vllm().only_answers(&["/server_info"]), change)
}

fn connected(connector: &str) -> Recording {
    let mut it = lone_vllm();
    let config = json!({"kv_connector": connector, "kv_role": "kv_both"});
    put(&mut it, "/vllm_config/kv_transfer_config", config);
    it
}

#[test]
fn further_places_of_kv_are_unknown_and_no_handoff() {
    let beside = || vec![("all-kv-judged", Unknown)];
    let on = |field: &'static str, says: serde_json::Value| single(move |it| put(it, field, says));
    let came = |it: &mut Recording| {
        it.replace(
            "/metrics",
            "source=\"external_kv_transfer\"} 0.0",
            "source=\"external_kv_transfer\"} 178.0",
        );
    };
    compare(vec![
        (
            "a linker of caches",
            on("/enable_unified_cache_external_linker", json!(true)),
            beside(),
        ),
        (
            "a cache of images",
            on("/enable_mm_global_cache", json!(true)),
            beside(),
        ),
        (
            "a cache of images' prefixes",
            on("/enable_prefix_mm_cache", json!(true)),
            beside(),
        ),
        (
            "drafts of another process",
            on("/decoupled_spec_role", json!("verifier")),
            beside(),
        ),
        (
            "NGRAM drafts",
            on("/speculative_algorithm", json!("NGRAM")),
            beside(),
        ),
        (
            "HiCache, by metrics",
            single(|it| {
                series(
                    it,
                    "sglang:hicache_host_total_tokens{tp_rank=\"0\"} 500000.0\n",
                );
            }),
            beside(),
        ),
        (
            "recurrent layers, metrics off",
            single(|it| {
                put(it, "/uses_mamba_radix_cache", json!(true));
                it.answers.remove("/metrics");
            }),
            beside(),
        ),
        (
            "an older version that says nothing of recurrent layers, metrics off",
            single(|it| {
                it.edit("/server_info", |it| {
                    let it = it.as_object_mut().unwrap();
                    it.retain(|name, _| !name.contains("mamba"));
                });
                it.answers.remove("/metrics");
            }),
            beside(),
        ),
        (
            "metrics off, and nothing beside",
            single(|it| {
                it.answers.remove("/metrics");
            }),
            vec![("all-kv-judged", Holds), ("pool-holds-context", Holds)],
        ),
        (
            "a window's pool of one rank of two",
            single(|it| {
                it.edit("/server_info", |it| {
                    let mut other = it["internal_states"][0].clone();
                    other["memory_usage"]["token_capacity_swa"] = json!(900);
                    it["internal_states"].as_array_mut().unwrap().push(other);
                });
            }),
            vec![("pool-holds-context", Unknown)],
        ),
        (
            "vLLM alone, KV goes to the host and comes back",
            server(connected("OffloadingConnector"), came),
            vec![
                ("role-as-stated", Holds),
                ("all-kv-judged", Unknown),
                ("known-advisories", Holds),
            ],
        ),
        (
            "the same, without development mode",
            bare_vllm(|it| {
                label(it, "kv_offloading_size", "64");
                came(it);
            }),
            vec![("all-kv-judged", Unknown), ("known-advisories", Holds)],
        ),
        (
            "vLLM alone, with LMCache",
            server(connected("LMCacheConnectorV1"), |_| ()),
            vec![("all-kv-judged", Unknown), ("known-advisories", Holds)],
        ),
        (
            "vLLM with NIXL among several connectors, as a server",
            server(connected("MultiConnector"), |it| {
                series(it, "vllm:nixl_bytes_transferred_count{engine=\"0\"} 3.0\n");
            }),
            vec![("role-as-stated", Violated), ("all-kv-judged", Unknown)],
        ),
        (
            "vLLM with NIXL, as a server",
            server(connected("NixlConnector"), |_| ()),
            vec![("role-as-stated", Violated), ("pair-complete", Unknown)],
        ),
    ]);
}

#[test]
fn figures_that_are_missing_renamed_or_doubled() {
    let pool = |answer| vec![("pool-holds-context", answer)];
    let rank = |n: u64, tokens: &str| {
        format!(
            "sglang:max_total_num_tokens{{engine_type=\"unified\",pp_rank=\"0\",tp_rank=\"{n}\"}} {tokens}\n"
        )
    };
    let extra = |line: String| single(move |it| series(it, &line));
    let without = |path: &'static str| {
        single(move |it| {
            it.answers.remove(path);
        })
    };
    let body = |path: &'static str, body: &'static [u8]| {
        single(move |it| {
            it.answers.insert(path.into(), body.to_vec());
        })
    };
    let html = b"<!DOCTYPE html><html><title>Sign in</title></html>";
    let login = |path| body(path, html);
    let half = |path: &'static str| {
        single(move |it| {
            let body = it.answers.get_mut(path).unwrap();
            body.truncate(body.len() / 2);
        })
    };
    compare(vec![
        (
            "a second rank with 3,000",
            extra(rank(1, "3000.0")),
            pool(Violated),
        ),
        (
            "a second rank with 8,000",
            extra(rank(1, "8e3")),
            pool(Holds),
        ),
        ("a second rank with NaN", extra(rank(1, "NaN")), pool(Holds)),
        (
            "the same series twice, 8,000 and 3,000",
            extra(rank(0, "3000")),
            pool(Violated),
        ),
        (
            "a rank with 3,000.5",
            extra(rank(1, "3000.5")),
            pool(Unknown),
        ),
        ("no /v1/loads", without("/v1/loads"), pool(Holds)),
        ("no metrics", without("/metrics"), pool(Holds)),
        (
            "no /server_info",
            without("/server_info"),
            vec![("no-silent-truncation", Unknown), ("role-as-stated", Holds)],
        ),
        (
            "no /v1/models",
            without("/v1/models"),
            vec![("advertised-fits", Unknown)],
        ),
        (
            "/server_info is a page to sign in",
            login("/server_info"),
            vec![("no-silent-truncation", Unknown)],
        ),
        (
            "/v1/models is a page to sign in",
            login("/v1/models"),
            vec![("advertised-fits", Unknown)],
        ),
        (
            "half of /server_info",
            half("/server_info"),
            vec![("no-silent-truncation", Unknown)],
        ),
        (
            "half of /v1/models",
            half("/v1/models"),
            vec![("advertised-fits", Unknown)],
        ),
        (
            "gzip that nobody unpacked",
            body(
                "/server_info",
                b"\x1f\x8b\x08\0\0\0\0\0\0\x03\xab\xae\x05\0",
            ),
            vec![("no-silent-truncation", Unknown)],
        ),
        (
            "an error as 200",
            body(
                "/server_info",
                b"{\"error\": {\"message\": \"Unauthorized\"}}",
            ),
            vec![
                ("no-silent-truncation", Unknown),
                ("all-kv-judged", Unknown),
            ],
        ),
        (
            "two ranks, one of which is listed",
            single(|it| put(it, "/dp_size", json!(2))),
            pool(Unknown),
        ),
        (
            "two ranks out of order, the second with 3,000",
            single(|it| {
                put(it, "/dp_size", json!(2));
                it.edit("/v1/loads", |it| {
                    let mut other = it["loads"][0].clone();
                    other["dp_rank"] = json!(1);
                    other["max_total_num_tokens"] = json!(3000);
                    other["memory"]["token_capacity"] = json!(3000);
                    it["loads"].as_array_mut().unwrap().insert(0, other);
                });
            }),
            pool(Violated),
        ),
        (
            "an adapter advertises more than the base model",
            single(|it| {
                it.edit("/v1/models", |it| {
                    let mut entry = it["data"][0].clone();
                    entry["id"] = json!("long");
                    entry["max_model_len"] = json!(32768);
                    it["data"].as_array_mut().unwrap().push(entry);
                });
            }),
            vec![("advertised-fits", Violated)],
        ),
        (
            "an adapter that advertises text",
            single(|it| {
                it.edit("/v1/models", |it| {
                    let mut entry = it["data"][0].clone();
                    entry["max_model_len"] = json!("4096");
                    it["data"].as_array_mut().unwrap().push(entry);
                });
            }),
            vec![("advertised-fits", Unknown)],
        ),
        (
            "LiteLLM in front",
            single(|it| {
                it.answers.retain(|path, _| path == "/v1/models");
                it.edit("/v1/models", |it| {
                    it["data"] = json!([
                        {"id": "a", "object": "model", "owned_by": "openai"},
                        {"id": "b", "object": "model", "owned_by": "openai"}
                    ]);
                });
            }),
            vec![("node-answers", Unknown), ("pool-holds-context", Unknown)],
        ),
        (
            "vLLM that is still starting",
            bare_vllm(|it| label(it, "num_gpu_blocks", "None")),
            pool(Unknown),
        ),
        (
            "vLLM, blocks as a float",
            bare_vllm(|it| label(it, "num_gpu_blocks", "300.0")),
            pool(Unknown),
        ),
        (
            "vLLM, the engine's own count is negative",
            bare_vllm(|it| label(it, "kv_cache_size_tokens", "-1")),
            pool(Unknown),
        ),
        (
            "vLLM, an older version without a count of its own",
            bare_vllm(|it| label(it, "kv_cache_size_tokens", "None")),
            pool(Holds),
        ),
        (
            "vLLM, two engines in one place",
            bare_vllm(|it| {
                let metrics = text(it, "/metrics");
                let row = metrics
                    .lines()
                    .find(|it| it.starts_with("vllm:cache_config_info"));
                let row = row.unwrap().replace("engine=\"0\"", "engine=\"1\"");
                series(it, &format!("\n{row}\n"));
            }),
            pool(Unknown),
        ),
        (
            "vLLM without cache_config_info",
            bare_vllm(|it| it.replace("/metrics", "vllm:cache_config_info", "vllm:kv_cache_info")),
            pool(Unknown),
        ),
        (
            "windows and full layers, no count of the engine's own",
            bare_vllm(|it| {
                label(it, "kv_cache_size_tokens", "None");
                label(it, "sliding_window", "4096");
            }),
            pool(Unknown),
        ),
    ]);
}

#[test]
fn versions_as_builds_word_them() {
    let at = |new: &str| {
        let role = |role: &str| version(sglang(role), "0.5.23", new);
        pair(&role("prefill"), &role("decode"))
    };
    let say = |answer| vec![("minimum-version", answer)];
    let cases = [
        ("0.5.22+cu129", Holds),
        ("v0.5.22", Holds),
        ("0.5.22.post1", Holds),
        ("0.5.22-1", Holds),
        ("0.5.23rc0", Holds),
        ("0.5.23-rc.1", Holds),
        ("0.5.22.post2.dev9+gabc.d20261130", Holds),
        ("0.5.22rc1", Unknown),
        ("0.5.22-alpha.1", Unknown),
        ("0.5.22c3", Unknown),
        ("0.5.22rc1.post1", Unknown),
        ("0.5.22rc1.dev5+g1", Unknown),
        ("0.5.22.dev0", Unknown),
        ("0.5.21.post3", Violated),
        ("0.5.21.post1.dev40+gabc", Unknown),
        ("0.5.9", Violated),
        ("0.5", Violated),
        ("1!0.5.23", Unknown),
        ("dev", Unknown),
        ("main", Unknown),
        ("0.5.23-cu129-amd64", Unknown),
        ("0.0.0+unknown", Unknown),
        ("0.0.1.dev1+gabc", Unknown),
        ("nightly-dev-20261130-0a1b2c3", Unknown),
    ];
    compare(
        cases
            .into_iter()
            .map(|(version, answer)| (version, at(version), say(answer)))
            .collect(),
    );
}

#[test]
fn no_advice_to_run_a_guard_that_runs() {
    let it = |role: &str| {
        let it = guarded(sglang(role), &format!("sglang-0.5.23-{role}"));
        version(it, "0.5.23", "0.5.18")
    };
    let mut small = it("prefill");
    info(&mut small, "/max_req_input_len", json!(1994));
    let report = judged(&pair(&small, &it("decode")), false);
    let mut seen = 0;
    for it in report.findings.iter().filter(|it| it.answer != Holds) {
        let todo = it.what_to_do();
        let said = format!("{}: {} | {todo}", it.check.id, it.says);
        assert!(!todo.contains("run cofferdam-guard"), "{said}");
        // It was not run in this version: nobody knows what it refuses there.
        assert!(!it.says.contains("is refused on both sides"), "{said}");
        seen += usize::from(it.check.id == "prompt-limits-equal");
    }
    assert_eq!(seen, 1);
}

/// Nothing is known of llama.cpp's releases, which is not that they are known.
#[test]
fn releases_that_nobody_looked_up_are_not_fresh() {
    compare(vec![
        (
            "llama.cpp",
            vec![(Stated::Server, nodes_at("http://l", &llama()))],
            vec![("table-is-fresh", Unknown), ("pool-holds-context", Holds)],
        ),
        ("SGLang", single(|_| ()), vec![("table-is-fresh", Holds)]),
    ]);
}

/// A key is missing: the metrics are open, all else is refused.
#[test]
fn an_endpoint_that_is_refused_says_why_once() {
    let recorded = sglang("single");
    let mut answers = gate::facts::answers::ServerAnswers::new("http://s", false);
    for (path, body) in &recorded.answers {
        let refused = Err(Trouble::Refused { status: 401 });
        answers.insert(
            path,
            if path == "/metrics" {
                Ok(body.clone())
            } else {
                refused
            },
        );
    }
    let nodes = gate::facts::answers::read("http://s", &answers);
    let report = judged(&[(Stated::Server, nodes)], false);
    let table = gate::output::table(&report, gate::output::Style::default());
    for path in ["/server_info", "/v1/models"] {
        let why = format!("http://s{path}: refused with 401");
        let told = table.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(told.matches(&why).count(), 1, "{path}: {table}");
    }
    assert_eq!(
        worst(&report, "node-answers"),
        Some(Holds),
        "it is there, {table}"
    );
    assert_eq!(report.verdict(), Verdict::Unknown);
}
