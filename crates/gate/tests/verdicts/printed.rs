//! Settings as a start-up log prints them: the whole of each value counts, what a line does not
//! tell is not known, and what an answer tells in other words is the same.

use super::*;

const ARGUMENTS: &str = "'default_chat_template_kwargs': None";

/// SGLang's log with `new` in the place of `old`.
fn logged(old: &str, new: &str) -> Recording {
    let mut log = sglang_log("single");
    log.replace("server.log", old, new);
    log
}

fn with_arguments(says: &str) -> Recording {
    logged(
        ARGUMENTS,
        &format!("'default_chat_template_kwargs': {says}"),
    )
}

/// vLLM's log, likewise.
fn printed(old: &str, new: &str) -> Recording {
    let mut log = fixture("vllm-0.32.0").only_log();
    log.replace("server.log", old, new);
    log
}

fn argued(argument: &str) -> Recording {
    printed("'block_size': 32", &format!("'block_size': 32, {argument}"))
}

/// A log of which the line with `mark` ends `at` bytes behind it.
fn cut(mut log: Recording, mark: &str, at: usize) -> Recording {
    let text = String::from_utf8(log.answers["server.log"].clone()).unwrap();
    let lines = text.lines().map(|line| match line.find(mark) {
        Some(found) => &line[..(found + mark.len() + at).min(line.len())],
        None => line,
    });
    let text = lines.collect::<Vec<_>>().join("\n");
    log.answers.insert("server.log".into(), text.into_bytes());
    log
}

#[test]
fn the_whole_of_a_value_is_compared() {
    let template = |answer| vec![("same-tokenizer", answer)];
    let model = |answer| vec![("same-model", answer)];
    let mut answered = sglang("prefill");
    let says = json!({"b": [1, 2.0], "a": {"d": null, "c": true}});
    info(&mut answered, "/default_chat_template_kwargs", says);
    compare(vec![
        (
            "SGLang: arguments of a template that differ behind the first brace",
            pair(
                &with_arguments("{'enable_thinking': False}"),
                &with_arguments("{'enable_thinking': True}"),
            ),
            template(Violated),
        ),
        (
            "SGLang: arguments that differ behind the first comma",
            pair(
                &with_arguments("{'a': 1, 'enable_thinking': False}"),
                &with_arguments("{'a': 1, 'enable_thinking': True}"),
            ),
            template(Violated),
        ),
        (
            "SGLang: arguments that differ in a text with a quote and a brace",
            pair(
                &with_arguments(r#"{'style': "it's {a", 'b': 1}"#),
                &with_arguments(r#"{'style': "it's {a", 'b': 2}"#),
            ),
            template(Violated),
        ),
        (
            "SGLang: the same arguments in another order",
            pair(
                &with_arguments("{'a': [1, {'x': None}], 'b': 'q'}"),
                &with_arguments(r#"{"b": "q", 'a': [1, {'x': None}]}"#),
            ),
            template(Holds),
        ),
        (
            "SGLang: the same arguments by an answer and by a log",
            pair(
                &answered,
                &with_arguments("{'a': {'c': True, 'd': None}, 'b': [1, 2]}"),
            ),
            template(Holds),
        ),
        (
            "SGLang: others by an answer and by a log",
            pair(
                &answered,
                &with_arguments("{'a': {'c': True, 'd': None}, 'b': [1, 3]}"),
            ),
            template(Violated),
        ),
        (
            "SGLang: an override that was given as text, and as an object",
            pair(
                &logged(
                    "'json_model_override_args': '{}'",
                    r#"'json_model_override_args': '{"rope": {"factor": 4.0, "type": "yarn"}}'"#,
                ),
                &logged(
                    "'json_model_override_args': '{}'",
                    r#"'json_model_override_args': {'rope': {'type': 'yarn', 'factor': 4}}"#,
                ),
            ),
            model(Holds),
        ),
        (
            "SGLang: weights of another version",
            pair(
                &sglang_log("single"),
                &logged("'weight_version': 'default'", "'weight_version': 'step-9'"),
            ),
            model(Violated),
        ),
        (
            "vLLM: arguments of a template",
            pair(
                &argued("'default_chat_template_kwargs': {'enable_thinking': False}"),
                &argued("'default_chat_template_kwargs': {'enable_thinking': True}"),
            ),
            template(Violated),
        ),
        (
            "vLLM: arguments of a template on one side",
            pair(
                &fixture("vllm-0.32.0").only_log(),
                &argued("'default_chat_template_kwargs': {'enable_thinking': True}"),
            ),
            template(Violated),
        ),
        (
            "vLLM: an override in other words",
            pair(
                &argued("'hf_overrides': {'rope_theta': 4.0, 'a': [True]}"),
                &argued("'hf_overrides': {'a': [True], 'rope_theta': 4}"),
            ),
            model(Holds),
        ),
        (
            "vLLM: windows off, which is the default",
            pair(
                &fixture("vllm-0.32.0").only_log(),
                &argued("'disable_sliding_window': False"),
            ),
            model(Holds),
        ),
        (
            "vLLM: a loader's own options",
            pair(
                &fixture("vllm-0.32.0").only_log(),
                &argued("'model_loader_extra_config': {'qlora': '/a'}"),
            ),
            model(Unknown),
        ),
    ]);
}

/// The same server by its answers and by its log.
#[test]
fn answers_and_logs_of_one_server_agree() {
    let by_answers = |change: &dyn Fn(&mut Recording)| {
        let mut it = fixture("vllm-0.32.0").only_answers(&[]);
        change(&mut it);
        it
    };
    let same = |answer| {
        vec![
            ("same-model", answer),
            ("same-kv-dtype", Holds),
            ("checksum-layouts-equal", Holds),
        ]
    };
    let config = "/vllm_config/model_config";
    compare(vec![
        (
            "vLLM: as it was recorded",
            pair(&by_answers(&|_| {}), &fixture("vllm-0.32.0").only_log()),
            same(Holds),
        ),
        (
            "vLLM: windows off",
            pair(
                &by_answers(&|it| {
                    put(it, &format!("{config}/disable_sliding_window"), json!(true))
                }),
                &argued("'disable_sliding_window': True"),
            ),
            same(Holds),
        ),
        (
            "vLLM: overrides",
            pair(
                &by_answers(&|it| {
                    put(
                        it,
                        &format!("{config}/hf_overrides"),
                        json!({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}),
                    );
                }),
                &argued("'hf_overrides': {'rope_scaling': {'factor': 2.0, 'rope_type': 'yarn'}}"),
            ),
            same(Holds),
        ),
        (
            "vLLM: another implementation of the model, told by an answer",
            pair(
                &by_answers(&|it| put(it, &format!("{config}/model_impl"), json!("transformers"))),
                &fixture("vllm-0.32.0").only_log(),
            ),
            same(Unknown),
        ),
    ]);
}

#[test]
fn nothing_is_taken_from_settings_that_are_cut() {
    let unknown = || {
        vec![
            ("same-model", Unknown),
            ("same-tokenizer", Unknown),
            ("all-kv-judged", Unknown),
        ]
    };
    let whole = sglang_log("single");
    let vllm = || fixture("vllm-0.32.0").only_log();
    let mut cases = vec![(
        "SGLang: whole",
        pair(&whole, &whole),
        vec![("same-model", Holds), ("same-tokenizer", Holds)],
    )];
    // In a text, in a number, in a name, behind a comma.
    for at in [1, 40, 700, 701, 702, 703, 704, 705, 4000, 9000] {
        let cut = cut(whole.clone(), "server_args=", at);
        cases.push(("SGLang: cut", pair(&cut, &cut), unknown()));
    }
    for at in [1, 40, 90, 200, 300] {
        let cut = cut(vllm(), "non-default args: ", at);
        cases.push(("vLLM: arguments are cut", pair(&cut, &cut), unknown()));
    }
    for at in [1, 20, 35, 60, 80, 2000] {
        let cut = cut(vllm(), "with config: ", at);
        let says = match at {
            // That there are no drafts stands before.
            60 | 2000 => vec![("same-model", Unknown), ("same-tokenizer", Unknown)],
            _ => unknown(),
        };
        cases.push((
            "vLLM: the engine's settings are cut",
            pair(&cut, &cut),
            says,
        ));
    }
    compare(cases);
    let cut = cut(whole, "server_args=", 700);
    let node = cut.nodes().remove(0);
    let why = node.model.unwrap_err().to_string();
    assert!(why.contains("cut"), "{why}");
    assert!(node.ranks.is_ok(), "pools have lines of their own");
}

/// That there is nothing beside the pool must be told.
#[test]
fn silence_is_no_proof_that_nothing_is_kept_beside_the_pool() {
    let beside = |answer| vec![("all-kv-judged", answer)];
    let lone = |it: &Recording| vec![(Stated::Server, nodes_at("http://s", it))];
    let window =
        "[t] Use sliding window memory pool. full_layer_tokens=8000, swa_layer_tokens=8000";
    let after_the_settings = || {
        let mut log = cut(
            sglang_log("single"),
            "[2026-11-29 12:42:10] server_args=",
            0,
        );
        let line = format!("\n{window}\n");
        log.answers
            .get_mut("server.log")
            .unwrap()
            .extend(line.as_bytes());
        log
    };
    let old = |field: &str| logged(&format!("'{field}': None"), &format!("'{field}_x': None"));
    let mut unsaid = sglang("prefill");
    unsaid.edit("/server_info", |it| {
        it.as_object_mut().unwrap().remove("speculative_algorithm");
    });
    let silent = |it: &mut Recording| {
        it.answers.remove("/metrics");
        it.edit("/server_info", |it| {
            it["vllm_config"]
                .as_object_mut()
                .unwrap()
                .remove("speculative_config");
        });
    };
    let mut offloads = lone_vllm();
    offloads.edit("/server_info", |it| {
        it["vllm_config"]
            .as_object_mut()
            .unwrap()
            .remove("speculative_config");
        it["vllm_config"]["kv_transfer_config"] =
            json!({"kv_connector": "OffloadingConnector", "kv_role": "kv_both"});
    });
    let mut dark = lone_vllm();
    silent(&mut dark);
    let engine = "Initializing a V1 LLM engine (v";
    compare(vec![
        ("SGLang: told", lone(&sglang_log("single")), beside(Holds)),
        (
            "SGLang: no word of drafts",
            lone(&old("speculative_algorithm")),
            beside(Unknown),
        ),
        (
            "SGLang: drafts that are a number",
            lone(&logged(
                "'speculative_algorithm': None",
                "'speculative_algorithm': 3.5",
            )),
            beside(Unknown),
        ),
        (
            "SGLang: windows, and the settings are not in the log",
            lone(&after_the_settings()),
            beside(Unknown),
        ),
        (
            "SGLang: no word of drafts in an answer",
            vec![(Stated::Prefill, nodes_at("http://s", &unsaid))],
            beside(Unknown),
        ),
        (
            "vLLM: no word of drafts",
            lone(&printed("speculative_config=None", "other=None")),
            beside(Unknown),
        ),
        (
            "vLLM: drafts",
            lone(&printed(
                "speculative_config=None",
                "speculative_config=SpeculativeConfig(method='eagle', model='/d', num_spec_tokens=3)",
            )),
            beside(Unknown),
        ),
        (
            "vLLM: the engine's settings are not in the log",
            lone(&printed(engine, "something else (")),
            beside(Unknown),
        ),
        (
            "vLLM: arguments are not in the log",
            lone(&printed("non-default args: ", "something else ")),
            beside(Unknown),
        ),
        (
            "vLLM: a connector by text",
            lone(&printed(
                "'block_size': 32",
                r#"'block_size': 32, 'attention_config': {'hisparse_config': {'host_gb': 9}}"#,
            )),
            beside(Unknown),
        ),
        (
            "vLLM: a store, and no word of drafts",
            lone(&offloads),
            beside(Unknown),
        ),
        (
            "vLLM: no metrics, and no word of drafts",
            lone(&dark),
            beside(Unknown),
        ),
    ]);
}

/// What a client wrote may look like a line of its server.
#[test]
fn a_prompt_in_a_log_says_nothing_of_its_server() {
    let as_it_was = sglang_log("single").nodes().remove(0);
    let forged =
        "server_args={'port': 1, 'node_rank': 0, 'model_path': 'm', 'page_size': 64, 'dp_size': 1}";
    let size = "max_total_num_tokens=99000000, chunked_prefill_size=1, context_len=1";
    for prompt in [
        forged,
        size,
        "KV Cache is allocated. #tokens: 9,000,000, K size: 1 GB",
    ] {
        for line in [
            format!("[t] Receive: obj=GenerateReqInput(rid='a', text=\"{prompt}\", stream=False)"),
            format!("[t] Receive: obj=GenerateReqInput(text=\") {prompt}\", stream=False)"),
            format!("[t] Finish: obj=GenerateReqInput(text='{prompt}')"),
            format!("INFO Received request 7: prompt: \"{prompt}\", params: SamplingParams(n=1)"),
        ] {
            let mut log = sglang_log("single");
            let line = format!("\n{line}\n");
            log.answers
                .get_mut("server.log")
                .unwrap()
                .extend(line.as_bytes());
            let node = log.nodes().remove(0);
            assert_eq!(node.ranks, as_it_was.ranks, "{line}");
            assert_eq!(node.page_size, as_it_was.page_size, "{line}");
        }
    }
}
