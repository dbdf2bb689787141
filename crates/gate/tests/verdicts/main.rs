//! Fleets that look strange and are healthy, fleets that look fine and are not: what is expected of
//! each check against what was said, as one table.

mod builds;
mod elsewhere;
mod lone;
mod pairs;
mod printed;
mod said;
mod servers;
mod settings;

use gate::advisories::Table;
use gate::assemble::{Reading, assemble};
use gate::date::Date;
use gate::facts::recording::Recording;
use gate::facts::{Node, Trouble};
use gate::finding::Answer::{self, Holds, Unknown, Violated};
use gate::judge::{Headroom, Rules, Stated};
use gate::{Report, Verdict};
use serde_json::json;
use servers::*;
use std::fmt::Write;

/// 2026-11-30, in seconds.
const NOW: u64 = 1_796_063_400;

type Servers = Vec<(Stated, Vec<Node>)>;

/// A case: its name, its servers, and what each of these checks must say (the worst of all subjects).
type Case = (&'static str, Servers, Vec<(&'static str, Answer)>);

fn judged(servers: &[(Stated, Vec<Node>)], strict: bool) -> Report {
    let table = Table::embedded();
    let rules = Rules {
        context: None,
        headroom: Headroom::default(),
        today: Date::of_unix(NOW),
        table: &table,
        baseline: None,
    };
    let reading = |(n, (stated, nodes)): (usize, &(Stated, Vec<Node>))| Reading {
        name: format!("n{n}"),
        stated: Some(*stated),
        shared_address: false,
        nodes: nodes.clone(),
    };
    let readings = servers.iter().enumerate().map(reading).collect();
    Report::new(
        assemble(readings, &[], Vec::new()),
        &rules,
        &[],
        strict,
        NOW,
    )
}

fn pair(prefill: &Recording, decode: &Recording) -> Servers {
    vec![
        (Stated::Prefill, nodes_at("http://p", prefill)),
        (Stated::Decode, nodes_at("http://d", decode)),
    ]
}

/// One changed side against one that is as it was.
fn one_side(role: &str, change: impl FnOnce(&mut Recording)) -> Servers {
    let (mut prefill, mut decode) = (sglang("prefill"), sglang("decode"));
    change(if role == "prefill" {
        &mut prefill
    } else {
        &mut decode
    });
    pair(&prefill, &decode)
}

fn server(mut it: Recording, change: impl FnOnce(&mut Recording)) -> Servers {
    change(&mut it);
    vec![(Stated::Server, nodes_at("http://s", &it))]
}

fn worst(report: &Report, check: &str) -> Option<Answer> {
    assert!(gate::check::find(check).is_some(), "{check}");
    let of = report.findings.iter().filter(|it| it.check.id == check);
    of.map(|it| it.answer).max()
}

/// Judges every case, and compares all at once, so that a failure shows the whole table.
fn compare(cases: Vec<Case>) {
    let mut table = String::from("case | check | expected | got\n");
    let mut wrong = 0;
    for (name, servers, expected) in cases {
        for strict in [false, true] {
            let report = judged(&servers, strict);
            for (check, expected) in &expected {
                let got = worst(&report, check);
                let mark = if got == Some(*expected) { "" } else { "  <<<" };
                wrong += u32::from(!mark.is_empty());
                let got = got.map_or("not asked".to_owned(), |it| it.to_string());
                let _ = writeln!(table, "{name} | {check} | {expected} | {got}{mark}");
                // What a required check does not hold, no verdict may call good.
                let level = gate::check::find(check).unwrap().level;
                let required = strict || level == gate::check::Level::Required;
                if *expected != Holds && required && report.verdict() == Verdict::Holds {
                    wrong += 1;
                    let _ = writeln!(table, "{name} | verdict | {expected} | holds  <<<");
                }
            }
        }
    }
    assert_eq!(wrong, 0, "\n{table}");
}

fn swa(it: &mut Recording, tokens: u64) {
    let at = "/internal_states/0/memory_usage/token_capacity_swa";
    info(it, at, json!(tokens));
}

#[test]
fn settings_that_make_kv_noise_are_read_or_unknown() {
    let mut half = vllm();
    info(
        &mut half,
        "/vllm_config/model_config/dtype",
        json!("torch.float16"),
    );
    let mut explicit = vllm();
    label(&mut explicit, "cache_dtype", "bfloat16");
    info(
        &mut explicit,
        "/vllm_config/cache_config/cache_dtype",
        json!("bfloat16"),
    );
    let set = |field: &'static str, value: serde_json::Value| {
        one_side("decode", move |it| info(it, field, value))
    };
    let rope = r#"{"rope_scaling": {"factor": 4.0, "rope_type": "yarn"}}"#;
    let same_rope = r#"{"rope_scaling":{"rope_type":"yarn","factor":4.0}}"#;
    let (mut yarn, mut also_yarn) = (sglang("prefill"), sglang("decode"));
    info(&mut yarn, "/json_model_override_args", json!(rope));
    info(
        &mut also_yarn,
        "/json_model_override_args",
        json!(same_rope),
    );
    let mut hf = vllm();
    info(
        &mut hf,
        "/vllm_config/model_config/hf_overrides",
        json!({"rope_theta": 1e6}),
    );
    let mut adapter = vllm();
    info(
        &mut adapter,
        "/vllm_config/lora_config",
        json!({"max_lora_rank": 16}),
    );
    compare(vec![
        (
            "auto KV, models in float16 and bfloat16",
            pair(&vllm(), &half),
            vec![("same-kv-dtype", Violated)],
        ),
        (
            "auto KV and bfloat16 model, against explicit bfloat16",
            pair(&vllm(), &explicit),
            vec![("same-kv-dtype", Holds)],
        ),
        (
            "SGLang: one --dtype float16, one auto",
            set("/dtype", json!("float16")),
            vec![("same-kv-dtype", Unknown)],
        ),
        (
            "nothing but /v1/models and metrics",
            pair(&plain_vllm(), &plain_vllm()),
            vec![
                ("same-model", Unknown),
                ("same-tokenizer", Unknown),
                ("same-kv-dtype", Unknown),
            ],
        ),
        (
            "another quantization",
            set("/quantization", json!("fp8")),
            vec![("same-model", Violated)],
        ),
        (
            "another revision",
            set("/revision", json!("v1.1")),
            vec![("same-model", Violated)],
        ),
        (
            "RoPE scaled on one side",
            set("/json_model_override_args", json!(rope)),
            vec![("same-model", Violated)],
        ),
        (
            "RoPE scaled on one side (vLLM)",
            pair(&vllm(), &hf),
            vec![("same-model", Violated)],
        ),
        (
            "RoPE scaled on both, worded in another order",
            pair(&yarn, &also_yarn),
            vec![("same-model", Holds)],
        ),
        (
            "adapters on one side",
            pair(&adapter, &vllm()),
            vec![("same-model", Violated)],
        ),
        (
            "weights changed at run time",
            one_side("decode", |it| {
                it.edit("/model_info", |it| it["weight_version"] = json!("step-900"));
            }),
            vec![("same-model", Violated)],
        ),
        (
            "random weights on one side",
            set("/load_format", json!("dummy")),
            vec![("same-model", Violated)],
        ),
        (
            "other file format of the same weights",
            set("/load_format", json!("safetensors")),
            vec![("same-model", Holds)],
        ),
        (
            "another chat template",
            set("/chat_template", json!("/templates/tools.jinja")),
            vec![("same-tokenizer", Violated)],
        ),
        (
            "another named template",
            set("/hf_chat_template_name", json!("tool_use")),
            vec![("same-tokenizer", Violated)],
        ),
        (
            "revision as a number",
            set("/revision", json!(7)),
            vec![("same-model", Unknown)],
        ),
        (
            "an equal pair",
            one_side("decode", |_| {}),
            vec![
                ("same-model", Holds),
                ("same-tokenizer", Holds),
                ("same-kv-dtype", Holds),
                ("all-kv-judged", Holds),
                ("pool-holds-context", Holds),
            ],
        ),
    ]);
}

#[test]
fn who_hands_over_is_not_a_server_that_answers_alone() {
    let mut came = plain_vllm();
    let metrics = text(&came, "/metrics").replace(
        "source=\"external_kv_transfer\"} 0.0",
        "source=\"external_kv_transfer\"} 178.0",
    );
    let kept = metrics.lines().filter(|it| !it.contains("vllm:nixl_"));
    let kept = kept.collect::<Vec<_>>().join("\n");
    came.answers.insert("/metrics".into(), kept.into_bytes());
    let mut lying = vllm();
    info(&mut lying, "/vllm_config/kv_transfer_config", json!(null));
    compare(vec![
        (
            "a NIXL worker as a plain server",
            server(plain_vllm(), |_| {}),
            vec![
                ("role-as-stated", Violated),
                ("pair-complete", Unknown),
                ("known-advisories", Violated),
            ],
        ),
        (
            "KV has come from elsewhere, no NIXL series",
            server(came, |_| {}),
            vec![("role-as-stated", Violated), ("pair-complete", Unknown)],
        ),
        (
            "settings say alone, metrics say NIXL",
            server(lying, |_| {}),
            vec![("role-as-stated", Violated)],
        ),
        (
            "a vLLM that answers alone",
            server(lone_vllm(), |_| {}),
            vec![
                ("role-as-stated", Holds),
                ("known-advisories", Holds),
                ("pool-holds-context", Holds),
                ("all-kv-judged", Holds),
            ],
        ),
    ]);
}

#[test]
fn what_is_kept_beside_the_pool_is_judged_or_unknown() {
    let single = || sglang("single");
    let on = |field: &'static str, value: serde_json::Value| {
        server(single(), move |it| info(it, field, value))
    };
    let in_metrics = |line: &'static str| server(single(), move |it| series(it, line));
    let in_vllm = |line: &'static str| server(lone_vllm(), move |it| series(it, line));
    let logged = |lines: &'static str| {
        server(sglang_log("single"), move |it| {
            let log = it.answers.get_mut("server.log").unwrap();
            log.extend(b"\n");
            log.extend(lines.as_bytes());
        })
    };
    let mut offload = lone_vllm();
    label(&mut offload, "kv_offloading_size", "64");
    let mut drafts = lone_vllm();
    let eagle = json!({"method": "eagle3", "num_speculative_tokens": 3});
    info(&mut drafts, "/vllm_config/speculative_config", eagle);
    let mut cached = vllm();
    let connector = "/vllm_config/kv_transfer_config/kv_connector";
    info(&mut cached, connector, json!("LMCacheConnectorV1"));
    let beside = || vec![("all-kv-judged", Unknown)];
    compare(vec![
        (
            "a window's pool of 1,000",
            server(single(), |it| swa(it, 1000)),
            vec![
                ("pool-holds-context", Unknown),
                ("advertised-fits", Unknown),
            ],
        ),
        (
            "a window's pool that holds the context",
            server(single(), |it| swa(it, 6400)),
            vec![
                ("pool-holds-context", Holds),
                ("advertised-fits", Holds),
                ("all-kv-judged", Holds),
            ],
        ),
        (
            "a window's pool of text",
            server(single(), |it| {
                let at = "/internal_states/0/memory_usage/token_capacity_swa";
                info(it, at, json!("6400"));
            }),
            beside(),
        ),
        (
            "a window's pool of 1,000, by the log",
            logged(
                "[t] Use sliding window memory pool. full_layer_tokens=8000, swa_layer_tokens=1000\n[t] KV Cache is allocated. #tokens: 1000, K size: 0.1 GB, V size: 0.1 GB",
            ),
            vec![("pool-holds-context", Unknown)],
        ),
        (
            "a window's pool of 6,400, by the log",
            logged(
                "[t] Use sliding window memory pool. full_layer_tokens=8000, swa_layer_tokens=6400\n[t] KV Cache is allocated. #tokens: 6400, K size: 0.1 GB, V size: 0.1 GB",
            ),
            vec![("pool-holds-context", Holds)],
        ),
        (
            "states of recurrent layers, by the log",
            logged(
                "[t] Mamba Cache is allocated. max_mamba_cache_size: 22, conv_state size: 0.06GB, ssm_state size: 3.23GB",
            ),
            beside(),
        ),
        (
            "states of recurrent layers, by metrics",
            in_metrics("sglang:mamba_available_tokens{tp_rank=\"0\"} 22.0\n"),
            beside(),
        ),
        (
            "states of recurrent layers, by settings",
            on("/max_mamba_cache_size", json!(22)),
            beside(),
        ),
        (
            "HiCache",
            on("/enable_hierarchical_cache", json!(true)),
            beside(),
        ),
        (
            "a storage tier",
            on("/hicache_storage_backend", json!("mooncake")),
            beside(),
        ),
        ("LMCache", on("/enable_lmcache", json!(true)), beside()),
        (
            "drafts",
            on("/speculative_algorithm", json!("EAGLE3")),
            beside(),
        ),
        (
            "nothing told about tiers",
            server(single(), |it| {
                it.edit("/server_info", |it| {
                    it.as_object_mut()
                        .unwrap()
                        .remove("enable_hierarchical_cache");
                });
            }),
            beside(),
        ),
        ("vLLM: drafts", server(drafts, |_| {}), beside()),
        (
            "vLLM: drafts, by metrics",
            in_vllm("vllm:spec_decode_num_drafts_total{engine=\"0\"} 0.0\n"),
            beside(),
        ),
        ("vLLM: offloading", server(offload, |_| {}), beside()),
        (
            "vLLM: a connector that keeps",
            pair(&cached, &vllm()),
            beside(),
        ),
    ]);
}

/// Writes the pool of the recording otherwise, in all places but the metrics.
fn three_say(it: &mut Recording, says: &str) {
    for (path, body) in &mut it.answers {
        let mut text = String::from_utf8_lossy(body).into_owned();
        if path != "/metrics" {
            text = text.replace("num_tokens\":8000", &format!("num_tokens\":{says}"));
            text = text.replace("capacity\":8000", &format!("capacity\":{says}"));
        }
        *body = text.into_bytes();
    }
}

#[test]
fn sources_that_contradict_each_other_are_unknown() {
    let said = |says: &'static str| server(sglang("single"), move |it| three_say(it, says));
    let mut cases: Vec<Case> = Vec::new();
    for (name, says, expected) in [
        ("three say 3,000 as text", "\"3000\"", Unknown),
        ("three say 3,000 as a float", "3000.0", Unknown),
        ("three say 3,000.5", "3000.5", Unknown),
        ("three say 9,000 as text", "\"9000\"", Unknown),
        ("three say the same as text", "\"8000\"", Holds),
        ("three say 3,000", "3000", Violated),
        ("three say 9,000", "9000", Holds),
    ] {
        cases.push((name, said(says), vec![("pool-holds-context", expected)]));
    }
    for (name, field) in [
        ("one says 3,000 as text", "/max_total_num_tokens"),
        (
            "a state says 3,000 as text",
            "/internal_states/0/memory_usage/token_capacity",
        ),
    ] {
        let servers = server(sglang("single"), |it| info(it, field, json!("3000")));
        cases.push((name, servers, vec![("pool-holds-context", Unknown)]));
    }
    let mut longer = sglang("single");
    longer.edit("/v1/models", |it| {
        it["data"][0]["max_model_len"] = json!("8192")
    });
    cases.push((
        "a context of 8,192 as text against 4,096",
        server(longer, |_| {}),
        vec![("pool-holds-context", Unknown)],
    ));
    compare(cases);
}

/// A vLLM with these labels and this context.
fn hybrid(labels: &[(&str, &str)], context: u64) -> Servers {
    let mut it = lone_vllm().only_answers(&["/server_info"]);
    for (name, value) in labels {
        label(&mut it, name, value);
    }
    it.edit("/v1/models", |it| {
        it["data"][0]["max_model_len"] = json!(context)
    });
    vec![(Stated::Server, nodes_at("http://s", &it))]
}

#[test]
fn layers_of_several_kinds_are_counted_by_the_engine() {
    let holds = || vec![("pool-holds-context", Holds), ("advertised-fits", Holds)];
    let unknown = || vec![("pool-holds-context", Unknown)];
    compare(vec![
        (
            "recurrent layers: blocks of 8 tokens by name, 1,448 by size",
            hybrid(
                &[
                    ("num_gpu_blocks", "320"),
                    ("block_size", "8"),
                    ("effective_attention_block_size", "1600"),
                    ("kv_cache_size_tokens", "463459"),
                    ("mamba_block_size", "262144"),
                ],
                262_144,
            ),
            holds(),
        ),
        (
            "an older version that does not name its blocks",
            hybrid(
                &[
                    ("num_gpu_blocks", "320"),
                    ("block_size", "8"),
                    ("effective_attention_block_size", "None"),
                    ("kv_cache_size_tokens", "463459"),
                ],
                262_144,
            ),
            holds(),
        ),
        (
            "windows: a token takes a block of each kind",
            hybrid(
                &[
                    ("num_gpu_blocks", "20000"),
                    ("kv_cache_size_tokens", "320000"),
                ],
                131_072,
            ),
            holds(),
        ),
        (
            "windows: the product holds, the engine's count does not",
            hybrid(
                &[
                    ("num_gpu_blocks", "20000"),
                    ("kv_cache_size_tokens", "100000"),
                ],
                131_072,
            ),
            vec![("pool-holds-context", Violated)],
        ),
        (
            "one kind of blocks, and two counts",
            hybrid(
                &[
                    ("num_gpu_blocks", "320"),
                    ("kv_cache_size_tokens", "463459"),
                ],
                262_144,
            ),
            unknown(),
        ),
        (
            "recurrent layers, and no count of the engine's own",
            hybrid(
                &[
                    ("num_gpu_blocks", "320"),
                    ("kv_cache_size_tokens", "None"),
                    ("mamba_block_size", "262144"),
                ],
                8_192,
            ),
            unknown(),
        ),
    ]);
}

#[test]
fn versions_say_what_they_say_and_no_more() {
    let at = |new: &str| {
        let role = |role: &str| version(sglang(role), "0.5.23", new);
        pair(&role("prefill"), &role("decode"))
    };
    let lone = |new: &str| server(version(lone_vllm(), "0.32.0", new), |_| {});
    let nothing_known = || {
        vec![
            ("door-check", Unknown),
            ("minimum-version", Unknown),
            ("no-stale-pages", Unknown),
        ]
    };
    compare(vec![
        (
            "0.0.0.dev1+g0a1b2c3",
            at("0.0.0.dev1+g0a1b2c3"),
            nothing_known(),
        ),
        (
            "0.1.dev16498+g0a1b2c3",
            at("0.1.dev16498+g0a1b2c3"),
            nothing_known(),
        ),
        ("999.0.0", at("999.0.0"), nothing_known()),
        (
            "0.0.1.dev7+g0a1b2c3",
            at("0.0.1.dev7+g0a1b2c3"),
            nothing_known(),
        ),
        (
            "0.5.22.post1 is after 0.5.22",
            at("0.5.22.post1"),
            vec![("minimum-version", Holds), ("door-check", Holds)],
        ),
        (
            "vLLM 0.33.1 is newer than the table",
            lone("0.33.1"),
            vec![("table-is-fresh", Violated)],
        ),
        (
            "vLLM 0.1.dev16498+g0a1b2c3",
            lone("0.1.dev16498+g0a1b2c3"),
            vec![("known-advisories", Unknown)],
        ),
        (
            "0.5.22.post1.dev3 is after 0.5.22",
            at("0.5.22.post1.dev3+gabc"),
            vec![("minimum-version", Holds), ("door-check", Holds)],
        ),
        (
            "0.5.22.dev700 may have what 0.5.22 brought",
            at("0.5.22.dev700+gabc"),
            vec![("minimum-version", Unknown), ("door-check", Holds)],
        ),
        (
            "0.5.21 is before 0.5.22",
            at("0.5.21"),
            vec![("minimum-version", Violated), ("door-check", Holds)],
        ),
        (
            "vLLM 0.33.0 is known",
            lone("0.33.0"),
            vec![("table-is-fresh", Holds), ("known-advisories", Holds)],
        ),
        (
            "vLLM 0.34.0 is newer than the table",
            lone("0.34.0"),
            vec![("table-is-fresh", Violated)],
        ),
        (
            "a vLLM reference ends decode, in 0.33 too",
            {
                let new = version(vllm(), "0.32.0", "0.33.0");
                pair(&new, &new)
            },
            vec![("known-advisories", Violated)],
        ),
    ]);
}

#[test]
fn what_the_guard_refuses_is_not_held_against_the_engine() {
    let old = |role: &str| guarded(old_sglang(role), &format!("sglang-0.5.19-{role}"));
    let new = |role: &str| guarded(sglang(role), &format!("sglang-0.5.23-{role}"));
    let newer = |role: &str| version(new(role), "0.5.23", "0.5.24");
    let nixl = |role: &str| guarded(vllm(), &format!("vllm-0.32.0-{role}"));
    let refused = |answer| {
        vec![
            ("no-stale-pages", answer),
            ("door-check", answer),
            ("minimum-version", answer),
            ("length-compared", answer),
        ]
    };
    compare(vec![
        (
            "0.5.19, guarded on both sides",
            pair(&old("prefill"), &old("decode")),
            refused(Holds),
        ),
        (
            "0.5.19, decode alone guarded",
            pair(&old_sglang("prefill"), &old("decode")),
            refused(Violated),
        ),
        (
            "0.5.23, guarded",
            pair(&new("prefill"), &new("decode")),
            refused(Holds),
        ),
        (
            "0.5.24, where the guard was not run",
            pair(&newer("prefill"), &newer("decode")),
            vec![("length-compared", Unknown), ("door-check", Holds)],
        ),
        (
            "vLLM, guarded",
            pair(&nixl("prefill"), &nixl("decode")),
            vec![("known-advisories", Holds)],
        ),
        (
            "vLLM, one side guarded",
            pair(&vllm(), &nixl("decode")),
            vec![("known-advisories", Violated)],
        ),
        (
            "vLLM 0.11, a fault that the guard knows nothing of",
            {
                let it = |role| version(nixl(role), "0.32.0", "0.10.2");
                pair(&it("prefill"), &it("decode"))
            },
            vec![("known-advisories", Violated)],
        ),
    ]);
}

#[test]
fn limits_of_a_guarded_pair_do_not_speak_of_other_requests_pages() {
    let small = |role: &str| {
        let mut it = guarded(old_sglang(role), &format!("sglang-0.5.19-{role}"));
        let unequal = "max_req_input_len";
        info(&mut it, &format!("/{unequal}"), json!(1994));
        it
    };
    let decode = guarded(old_sglang("decode"), "sglang-0.5.19-decode");
    let report = judged(&pair(&small("prefill"), &decode), false);
    let limits = report
        .findings
        .iter()
        .find(|it| it.check.id == "prompt-limits-equal");
    let says = &limits.unwrap().says;
    assert!(
        says.contains("is refused on both sides by cofferdam-guard"),
        "{says}"
    );
    let advice = report.findings.iter().filter(|it| it.answer != Holds);
    for it in advice {
        let said = format!("{} {}", it.says, it.what_to_do());
        assert!(!said.contains("from other requests' pages"), "{said}");
    }
}

/// A node that is dead gives one reason, however many questions cannot be answered for it.
#[test]
fn a_dead_node_says_why_once() {
    let why = gate::facts::Unknown::NotRead {
        url: "http://p/v1/models".into(),
        trouble: Trouble::Unreachable {
            why: "connection refused".into(),
        },
    };
    let dead = Node::unknown("p", why);
    let servers = vec![
        (Stated::Prefill, vec![dead]),
        (Stated::Decode, nodes_at("http://d", &sglang("decode"))),
    ];
    let report = judged(&servers, false);
    assert_eq!(
        report.verdict(),
        Verdict::Violated,
        "length-compared of decode"
    );
    let telling = report.findings.iter().filter(|it| {
        let of = it.evidence.iter().filter_map(|it| it.value.as_ref().err());
        it.says.contains("connection refused")
            || of.clone().any(|it| it.contains("connection refused"))
    });
    let telling: Vec<_> = telling.map(|it| it.check.id).collect();
    assert_eq!(telling, ["node-answers"]);
    let unknown = report
        .findings
        .iter()
        .filter(|it| it.answer == Unknown)
        .count();
    assert!(unknown > 10, "{unknown} questions stay open");
    let table = gate::output::table(&report, gate::output::Style::default());
    assert_eq!(table.matches("connection refused").count(), 1, "{table}");
}
