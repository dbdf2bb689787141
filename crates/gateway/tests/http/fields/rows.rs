//! The rows. A row says who knows the field and what becomes of its values here.

use serde_json::{Value, json};

use super::{SAID, Seen};

/// Where a field stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Of {
    /// In requests of both kinds.
    Both,
    /// In a chat request.
    Chat,
    /// In one of its messages.
    Message,
    /// In a request to continue a bare prompt.
    Bare,
}

/// Whether a field was obeyed: by the request without it and the request with it.
pub type Obeys = fn(&Seen, &Seen) -> bool;

/// One field.
pub struct Row {
    pub field: &'static str,
    pub of: Of,
    /// `o` OpenAI, `v` vLLM, `l` llama.cpp.
    pub who: &'static str,
    /// Values with which everything is as without the field. `null` is one of every field.
    pub harmless: Vec<Value>,
    /// Values that change something, and what.
    pub obeyed: Vec<(Value, Obeys)>,
    /// Values that are refused by name, with what to do.
    pub refused: Vec<Value>,
    /// What else is in the request.
    pub with: Value,
    /// A request must have it.
    pub needed: bool,
    pub note: &'static str,
}

fn row(field: &'static str, of: Of, who: &'static str) -> Row {
    Row {
        field,
        of,
        who,
        harmless: Vec::new(),
        obeyed: Vec::new(),
        refused: Vec::new(),
        with: Value::Null,
        needed: false,
        note: "",
    }
}

impl Row {
    fn harmless(mut self, value: Value) -> Self {
        self.harmless.push(value);
        self
    }
    fn obeyed(mut self, value: Value, obeys: Obeys) -> Self {
        self.obeyed.push((value, obeys));
        self
    }
    fn refused(mut self, value: Value) -> Self {
        self.refused.push(value);
        self
    }
    fn with(mut self, value: Value) -> Self {
        self.with = value;
        self
    }
    fn needed(mut self) -> Self {
        self.needed = true;
        self
    }
    fn note(mut self, note: &'static str) -> Self {
        self.note = note;
        self
    }
}

pub fn all() -> Vec<Row> {
    let parts = [
        answers(),
        sampling(),
        endings(),
        bookkeeping(),
        speed(),
        forms(),
        other_samplers(),
        figures(),
        conversations(),
        tools(),
        chat_only(),
        messages(),
        bare(),
    ];
    parts.into_iter().flatten().collect()
}

use Of::{Bare, Both, Chat, Message};

fn answers() -> Vec<Row> {
    let stream = || json!({"stream": true});
    vec![
        row("model", Both, "ovl")
            .obeyed(json!("org/alias"), |_, got| got.job().model == "org/alias")
            .note("by default the first served"),
        row("n", Both, "ovl")
            .obeyed(json!(2), |_, got| {
                let choices = got.answers[0]["choices"].as_array().unwrap();
                got.job().choices == 2 && choices.len() == 2
            })
            .refused(json!(0))
            .refused(json!(17))
            .note("1 to 16"),
        row("best_of", Both, "o")
            .harmless(json!(1))
            .refused(json!(2))
            .note("it may be what `n` is"),
        row("stream", Both, "ovl")
            .obeyed(json!(true), |_, got| got.answers.len() > 1)
            .harmless(json!(false)),
        row("stream_options.include_usage", Both, "ovl")
            .with(stream())
            .obeyed(json!(true), |_, got| usages(got) == 1)
            .harmless(json!(false)),
        row("stream_options.continuous_usage_stats", Both, "v")
            .with(stream())
            .obeyed(json!(true), |_, got| usages(got) == got.answers.len())
            .harmless(json!(false))
            .note("every event has the figures so far"),
        row("stream_options.include_obfuscation", Both, "o")
            .with(stream())
            .harmless(json!(false))
            .refused(json!(true)),
    ]
}

fn usages(seen: &Seen) -> usize {
    let events = seen.answers.iter();
    events.filter(|event| event["usage"].is_object()).count()
}

fn sampling() -> Vec<Row> {
    vec![
        row("temperature", Both, "ovl")
            .obeyed(json!(0.5), |_, got| got.job().sampling.temperature == 0.5)
            .harmless(json!(1))
            .refused(json!(2.5)),
        row("top_p", Both, "ovl")
            .obeyed(json!(0.5), |_, got| got.job().sampling.top_p == 0.5)
            .harmless(json!(1))
            .refused(json!(0)),
        row("top_k", Both, "vl")
            .obeyed(json!(5), |_, got| got.job().sampling.top_k == 5)
            .harmless(json!(-1))
            .harmless(json!(0))
            .refused(json!(-2)),
        row("min_p", Both, "vl")
            .obeyed(json!(0.5), |_, got| got.job().sampling.min_p == 0.5)
            .harmless(json!(0))
            .refused(json!(2)),
        row("seed", Both, "ovl")
            .obeyed(json!(9), |_, got| got.job().sampling.seed == 9)
            .with(json!({"seed": null, "temperature": 0}))
            .needed()
            .note("without one, and with -1, the gateway mints one"),
        row("presence_penalty", Both, "ovl")
            .obeyed(json!(1), |_, got| {
                got.job().sampling.presence_penalty == 1.0
            })
            .harmless(json!(0))
            .refused(json!(3)),
        row("frequency_penalty", Both, "ovl")
            .obeyed(json!(1), |_, got| {
                got.job().sampling.frequency_penalty == 1.0
            })
            .harmless(json!(0))
            .refused(json!(3)),
        row("repetition_penalty", Both, "v")
            .obeyed(json!(1.5), |_, got| {
                got.job().sampling.repetition_penalty == 1.5
            })
            .harmless(json!(1))
            .refused(json!(0)),
        row("logit_bias", Both, "ovl")
            .obeyed(json!({"9": 1}), |_, got| {
                got.job().sampling.logit_bias == [(9, 1.0)]
            })
            .harmless(json!({}))
            .refused(json!([[9, 1]]))
            .refused(json!({"258": 1}))
            .note("an object of token ids"),
    ]
}

fn endings() -> Vec<Row> {
    let stop = || json!({"stop": "END"});
    vec![
        row("max_tokens", Both, "ovl")
            .obeyed(json!(5), |_, got| got.job().max_new == 5)
            .harmless(json!(-1))
            .refused(json!(0))
            .note("without one, and with -1, as many as fit"),
        row("max_completion_tokens", Both, "ov")
            .obeyed(json!(5), |_, got| got.job().max_new == 5)
            .harmless(json!(-1))
            .refused(json!(0))
            .note("the same by another name"),
        row("n_predict", Both, "l")
            .obeyed(json!(5), |_, got| got.job().max_new == 5)
            .harmless(json!(-1))
            .refused(json!(0))
            .note("the same by another name"),
        row("min_tokens", Both, "v")
            .obeyed(json!(5), |_, got| got.job().min_new == 5)
            .harmless(json!(0))
            .refused(json!(65))
            .note("until there no stop token is sampled and no stop string looked for"),
        row("stop", Both, "ovl")
            .obeyed(json!("END"), |_, got| got.text() == "one ")
            .obeyed(json!(["two", " E"]), |_, got| got.text() == "one")
            .harmless(json!([]))
            .refused(json!(""))
            .note("to 16 strings of 1,024 bytes"),
        row("stop_token_ids", Both, "v")
            .obeyed(json!([32, 101, 32]), |_, got| {
                got.job().stop_tokens == [32, 101] && !got.text().contains(' ')
            })
            .harmless(json!([]))
            .refused(json!([258]))
            .note("to 128; counted and not shown"),
        row("include_stop_str_in_output", Both, "v")
            .with(stop())
            .obeyed(json!(true), |_, got| got.text() == "one END")
            .harmless(json!(false)),
        row("ignore_eos", Both, "vl")
            .obeyed(json!(true), |_, got| got.job().ignore_eos)
            .harmless(json!(false)),
        row("skip_special_tokens", Both, "v")
            .obeyed(json!(false), |_, got| {
                got.text() == format!("{SAID}<special>")
            })
            .harmless(json!(true)),
        row("spaces_between_special_tokens", Both, "v")
            .harmless(json!(true))
            .harmless(json!(false))
            .note("these tokenizers put none"),
    ]
}

fn bookkeeping() -> Vec<Row> {
    vec![
        row("user", Both, "ov").harmless(json!("u")),
        row("metadata", Both, "o").harmless(json!({"a": "b"})),
        row("store", Both, "o")
            .harmless(json!(false))
            .harmless(json!(true))
            .note("nothing is stored"),
        row("service_tier", Both, "o").harmless(json!("auto")),
        row("safety_identifier", Both, "o").harmless(json!("x")),
        row("prompt_cache_key", Both, "o").harmless(json!("x")),
        row("prompt_cache_retention", Both, "o").harmless(json!("24h")),
        row("prompt_cache_options", Both, "o").harmless(json!({"ttl": "1h"})),
        row("moderation", Both, "o").refused(json!({"model": "m"})),
        row("request_id", Both, "v")
            .harmless(json!("x"))
            .note("ids are the gateway's own"),
        row("cache_salt", Both, "v")
            .obeyed(json!("x"), |_, got| {
                got.job().cache_salt.as_deref() == Some("x")
            })
            .refused(json!(""))
            .note("1 to 256 bytes"),
    ]
}

fn speed() -> Vec<Row> {
    vec![
        row("priority", Both, "v")
            .harmless(json!(3))
            .note("requests are taken in turn"),
        row("prediction", Both, "o").harmless(json!({"type": "content", "content": "x"})),
        row("cache_prompt", Both, "l")
            .harmless(json!(false))
            .note("what is cached is what would be computed"),
        row("n_cache_reuse", Both, "l").harmless(json!(256)),
        row("id_slot", Both, "l").harmless(json!(2)),
        row("truncation_side", Both, "v")
            .harmless(json!("left"))
            .note("nothing is cut"),
        row("stream_interval", Both, "v")
            .harmless(json!(4))
            .note("every token is sent when it is there"),
        row("sse_ping_interval", Both, "l").harmless(json!(5)),
        row("return_token_offsets", Both, "v")
            .harmless(json!(true))
            .note("of endpoints that only render a prompt"),
        row("n_keep", Both, "l")
            .harmless(json!(64))
            .note("a prompt is never cut"),
        row("n_discard", Both, "l").harmless(json!(64)),
    ]
}

/// What an answer would have to be.
fn forms() -> Vec<Row> {
    let held: Obeys = |before, got| before.job().form.is_none() && got.job().form.is_some();
    let mut rows = vec![
        row("response_format", Both, "ovl")
            .harmless(json!({"type": "text"}))
            .obeyed(json!({"type": "json_object"}), held)
            .obeyed(
                json!({"type": "json_schema", "json_schema": {"name": "a", "schema": {}}}),
                held,
            )
            .refused(json!("json"))
            .note("`text`, `json_object`, `json_schema`; kept to in any case, `strict` or not"),
        row("structured_outputs", Both, "v")
            .obeyed(json!({"json": {"type": "null"}}), held)
            .obeyed(json!({"regex": "a+"}), held)
            .obeyed(json!({"choice": ["a", "b"]}), held)
            .obeyed(json!({"grammar": "start: \"a\""}), held)
            .refused(json!({}))
            .refused(json!({"regex": "a", "json_object": true}))
            .note(
                "one of `json`, `json_object`, `regex`, `choice`, `grammar` (`llguidance`'s Lark)",
            ),
        row("regex", Both, "")
            .obeyed(json!("a+"), held)
            .refused(json!(3))
            .note("SGLang's; for the whole answer"),
        row("grammar", Both, "l")
            .harmless(json!(""))
            .refused(json!("root ::= x")),
        row("suffix", Both, "o")
            .harmless(json!(""))
            .refused(json!("x")),
        row("bad_words", Both, "v")
            .harmless(json!([]))
            .refused(json!(["x"])),
        row("allowed_token_ids", Both, "v")
            .harmless(json!([]))
            .refused(json!([1])),
        row("logits_processors", Both, "v")
            .harmless(json!([]))
            .refused(json!(["x"])),
        row("logit_processors", Both, "")
            .harmless(json!([]))
            .refused(json!(["x"])),
        row("vllm_xargs", Both, "v")
            .harmless(json!({}))
            .refused(json!({"a": 1})),
        row("lora", Both, "l")
            .harmless(json!([]))
            .refused(json!([{"id": 0}])),
        row("truncate_prompt_tokens", Both, "v")
            .refused(json!(5))
            .note("nothing is ever cut to fit"),
        row("kv_transfer_params", Both, "v")
            .harmless(json!({}))
            .refused(json!({"remote_block_ids": [1]}))
            .note("where pages come from is decided here"),
        row("ec_transfer_params", Both, "v")
            .harmless(json!({}))
            .refused(json!({"remote": 1})),
        row("repetition_detection", Both, "v").refused(json!({"min_count": 2})),
        row("n_cmpl", Both, "l")
            .harmless(json!(1))
            .refused(json!(2))
            .note("`n` is the same"),
        row("t_max_predict_ms", Both, "l")
            .harmless(json!(0))
            .harmless(json!(-1))
            .refused(json!(10)),
        row("n_indent", Both, "l")
            .harmless(json!(0))
            .refused(json!(4)),
    ];
    for (field, who) in [
        ("guided_json", "v"),
        ("guided_regex", "v"),
        ("guided_choice", "v"),
        ("guided_grammar", "v"),
        ("json_schema", "l"),
    ] {
        let note = match field.starts_with("guided") {
            true => "of older versions",
            false => "",
        };
        rows.push(row(field, Both, who).refused(json!({})).note(note));
    }
    rows.push(row("lora_path", Both, "").refused(json!("x")));
    rows
}

fn other_samplers() -> Vec<Row> {
    let mut rows = vec![
        row("repeat_penalty", Both, "l")
            .harmless(json!(1))
            .refused(json!(1.1)),
        row("typical_p", Both, "l")
            .harmless(json!(1))
            .refused(json!(0.9)),
        row("top_n_sigma", Both, "l")
            .harmless(json!(-1))
            .refused(json!(1.5)),
        row("samplers", Both, "l").refused(json!(["top_k"])),
        row("min_keep", Both, "l")
            .harmless(json!(0))
            .refused(json!(2)),
        row("use_beam_search", Both, "v")
            .harmless(json!(false))
            .refused(json!(true)),
        row("length_penalty", Both, "v")
            .harmless(json!(1))
            .refused(json!(2)),
    ];
    for off in [
        "mirostat",
        "dynatemp_range",
        "xtc_probability",
        "dry_multiplier",
    ] {
        rows.push(row(off, Both, "l").harmless(json!(0)).refused(json!(1)));
    }
    for setting in [
        "repeat_last_n",
        "mirostat_tau",
        "mirostat_eta",
        "dynatemp_exponent",
        "xtc_threshold",
        "dry_base",
        "dry_allowed_length",
        "dry_penalty_last_n",
        "dry_sequence_breakers",
    ] {
        let row = row(setting, Both, "l").harmless(json!(0.5));
        rows.push(row.note("what it belongs to is off"));
    }
    rows
}

/// What else an answer could have in it.
fn figures() -> Vec<Row> {
    let mut rows = vec![
        row("prompt_logprobs", Both, "v")
            .refused(json!(0))
            .refused(json!(1)),
        row("n_probs", Both, "l")
            .harmless(json!(0))
            .refused(json!(3)),
        row("response_fields", Both, "l")
            .harmless(json!([]))
            .refused(json!(["x"])),
    ];
    for (field, who) in [
        ("return_prompt_text", "v"),
        ("return_token_ids", "v"),
        ("return_tokens_as_token_ids", "v"),
        ("return_tokens", "l"),
        ("post_sampling_probs", "l"),
        ("timings_per_token", "l"),
        ("return_progress", "l"),
    ] {
        let row = row(field, Both, who);
        rows.push(row.harmless(json!(false)).refused(json!(true)));
    }
    rows
}

fn conversations() -> Vec<Row> {
    vec![
        row("messages", Chat, "ovl")
            .obeyed(json!([{"role": "user", "content": "x"}]), |_, got| {
                got.prompt() == "\u{101}u:x\u{101}"
            })
            .refused(json!([]))
            .needed()
            .note("1 to 4,096"),
        row("add_generation_prompt", Chat, "vl")
            .obeyed(json!(false), |_, got| got.prompt().ends_with("a:cd"))
            .harmless(json!(true)),
        row("continue_final_message", Chat, "v")
            .obeyed(json!(true), |_, got| got.prompt().ends_with("a:cd>"))
            .harmless(json!(false))
            .note("the answer goes on with the last message's words (`add_generation_prompt` is then false)"),
        row("chat_template_kwargs", Chat, "vl")
            .obeyed(json!({"mood": [1, "x"], "unread": 1}), |_, got| {
                got.prompt().starts_with("[1,\"x\"]")
            })
            .harmless(json!({}))
            .harmless(json!({"unread": 1}))
            .refused(json!({"no name": 1}))
            .refused(json!({"mood": "x".repeat(16 << 10)}))
            .note("given to the template, to 16 KiB; names that the server gives it (`messages`, …) or that say how a template is used (`chat_template`, `tokenize`, …) are refused"),
        row("reasoning_effort", Chat, "ovl")
            .obeyed(json!("none"), |_, got| got.prompt().starts_with("false"))
            .refused(json!("high"))
            .refused(json!("x"))
            .note("given to templates that read it, refused with others; `none` also sets `enable_thinking` to false"),
        row("chat_template", Chat, "v").refused(json!("{{ messages }}")),
        row("add_special_tokens", Chat, "v").harmless(json!(false)).refused(json!(true)),
        row("documents", Chat, "v").harmless(json!([])).refused(json!([{"text": "x"}])),
        row("echo", Chat, "v").harmless(json!(false)).refused(json!(true)),
    ]
}

fn tools() -> Vec<Row> {
    let tool = || json!([{"type": "function", "function": {"name": "f"}}]);
    let shown: Obeys = |_, got| shown_tool(got);
    let held: Obeys = |before, got| before.job().form != got.job().form && shown_tool(got);
    vec![
        row("tools", Chat, "ovl")
            .harmless(json!([]))
            .obeyed(tool(), shown)
            .refused(json!("f"))
            .note("to 128 functions"),
        row("tool_choice", Chat, "ovl")
            .with(json!({"tools": tool()}))
            .harmless(json!("auto"))
            .obeyed(json!("none"), |_, got| !shown_tool(got))
            .obeyed(json!("required"), held)
            .obeyed(json!({"type": "function", "function": {"name": "f"}}), held)
            .obeyed(allowed("required", "f"), held)
            .harmless(allowed("auto", "f"))
            .refused(allowed("auto", "g"))
            .refused(json!({"type": "function", "function": {"name": "g"}}))
            .note("`none`, `auto`, `required`, one by its name, or `allowed_tools`; with `none` the model is not shown any"),
        row("parallel_tool_calls", Chat, "ovl")
            .with(json!({"tools": tool(), "tool_choice": "required"}))
            .harmless(json!(true))
            .obeyed(json!(false), held)
            .note("with `false` an answer has one call at most"),
        row("parse_tool_calls", Chat, "l").harmless(json!(true)),
        row("functions", Chat, "o")
            .harmless(json!([]))
            .refused(json!([{"name": "f"}])),
        row("function_call", Chat, "o")
            .harmless(json!("none"))
            .harmless(json!("auto"))
            .refused(json!({"name": "f"})),
    ]
}

fn allowed(mode: &str, name: &str) -> Value {
    let tools = json!([{"type": "function", "function": {"name": name}}]);
    json!({"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}})
}

fn shown_tool(seen: &Seen) -> bool {
    seen.prompt().contains("\"name\":\"f\"")
}

fn chat_only() -> Vec<Row> {
    vec![
        row("logprobs", Chat, "ovl")
            .obeyed(json!(true), |_, got| {
                let log = &got.answers[0]["choices"][0]["logprobs"]["content"][0];
                got.job().sampling.logprobs == Some(0) && log["logprob"] == -0.5
            })
            .harmless(json!(false))
            .refused(json!(1)),
        row("top_logprobs", Chat, "ovl")
            .with(json!({"logprobs": true}))
            .obeyed(json!(3), |_, got| {
                let log = &got.answers[0]["choices"][0]["logprobs"]["content"][0];
                log["top_logprobs"].as_array().unwrap().len() == 3
            })
            .harmless(json!(0))
            .refused(json!(21))
            .note("to 20"),
        row("modalities", Chat, "o")
            .harmless(json!(["text"]))
            .refused(json!(["text", "audio"])),
        row("audio", Chat, "o").refused(json!({"voice": "x"})),
        row("verbosity", Chat, "o")
            .harmless(json!("medium"))
            .refused(json!("low")),
        row("web_search_options", Chat, "o").refused(json!({})),
        row("include_reasoning", Chat, "v")
            .harmless(json!(true))
            .refused(json!(false))
            .note("what a model thinks is a part of its text"),
        row("reasoning_format", Chat, "l")
            .harmless(json!("none"))
            .refused(json!("deepseek")),
        row("thinking_forced_open", Chat, "l")
            .harmless(json!(false))
            .refused(json!(true)),
        row("logprob_token_ids", Chat, "v")
            .harmless(json!([]))
            .refused(json!([1])),
        row("return_assistant_tokens_mask", Chat, "v")
            .harmless(json!(true))
            .note("of endpoints that only render a prompt"),
        row("reasoning_control", Chat, "l")
            .harmless(json!(false))
            .refused(json!(true)),
        row("reasoning_budget", Chat, "l")
            .harmless(json!(-1))
            .refused(json!(0)),
        row("thinking_token_budget", Chat, "v").refused(json!(5)),
        row("mm_processor_kwargs", Chat, "v")
            .harmless(json!({}))
            .refused(json!({"a": 1})),
        row("media_io_kwargs", Chat, "v")
            .harmless(json!({}))
            .refused(json!({"a": 1})),
    ]
}

fn messages() -> Vec<Row> {
    let ends: Obeys = |_, got| got.prompt().ends_with("x\u{101}");
    vec![
        row("role", Message, "ovl")
            .obeyed(json!("developer"), |_, got| got.prompt().ends_with("s:cd\u{101}"))
            .obeyed(json!("tool"), |_, got| got.prompt().contains("u:<tool_response>\ncd\n"))
            .refused(json!("function"))
            .refused(json!("root"))
            .needed()
            .note("`system`, `developer` (the same), `user`, `assistant`, `tool`"),
        row("content", Message, "ovl")
            .obeyed(json!("x"), ends)
            .obeyed(json!([{"type": "text", "text": "a", "cache_control": {}, "prompt_cache_breakpoint": {}}, {"type": "text", "text": "x"}]), ends)
            .obeyed(json!(null), |_, got| got.prompt().ends_with("a:\u{101}"))
            .refused(json!(1))
            .needed()
            .note("a text or a list of text parts; `null` of an assistant is one that said nothing"),
        row("name", Message, "ov")
            .obeyed(json!("x"), |_, got| got.prompt().ends_with("ax:cd\u{101}"))
            .refused(json!(1))
            .note("given to the template"),
        row("reasoning_content", Message, "vl")
            .obeyed(json!("x"), |_, got| got.prompt().ends_with("a:xcd\u{101}"))
            .note("given to the template"),
        row("reasoning", Message, "v")
            .obeyed(json!("x"), |_, got| got.prompt().ends_with("a:xcd\u{101}"))
            .note("the same by another name"),
        row("tool_calls", Message, "ovl")
            .harmless(json!([]))
            .obeyed(
                json!([{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]),
                |_, got| got.prompt().contains("a:cd\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}"),
            )
            .refused(json!([{"id": "1"}]))
            .note("of an `assistant`; given to the template"),
        row("tool_call_id", Message, "ovl")
            .refused(json!("x"))
            .note("of a `tool` alone; given to the template"),
        row("function_call", Message, "o").refused(json!({"name": "f"})),
        row("annotations", Message, "o")
            .harmless(json!([]))
            .harmless(json!([{"type": "url_citation"}])),
        row("refusal", Message, "o").harmless(json!("")).refused(json!("no")),
        row("audio", Message, "o").refused(json!({"id": "x"})),
    ]
}

fn bare() -> Vec<Row> {
    vec![
        row("prompt", Bare, "ovl")
            .obeyed(json!([104, 105]), |_, got| got.job().prompt == [104, 105])
            .obeyed(json!(["x", "yz"]), |_, got| got.jobs[1].prompt == [121, 122])
            .obeyed(json!([[104], [105]]), |_, got| got.jobs[1].prompt == [105])
            .refused(json!([]))
            .refused(json!(["x", [104]]))
            .needed()
            .note("a text, token ids, or a list of 1 to 64 of either; choice `i` of prompt `p` has the index `p * n + i`"),
        row("prompt_embeds", Bare, "v").refused(json!("AAAA")),
        row("echo", Bare, "ov")
            .obeyed(json!(true), |_, got| got.text() == format!("ab{SAID}"))
            .harmless(json!(false))
            .note("not with `logprobs`"),
        row("logprobs", Bare, "ov")
            .obeyed(json!(2), |_, got| {
                let logs = &got.answers[0]["choices"][0]["logprobs"];
                got.job().sampling.logprobs == Some(2) && logs["token_logprobs"][0] == -0.5
            })
            .refused(json!(21))
            .note("0 to 20"),
        row("add_special_tokens", Bare, "v")
            .obeyed(json!(false), |_, got| got.prompt() == "ab\u{101}")
            .harmless(json!(true)),
        row("reasoning_effort", Bare, "").harmless(json!("none")).refused(json!("high")),
        row("chat_template_kwargs", Bare, "").harmless(json!({})).refused(json!({"a": 1})),
        row("continue_final_message", Bare, "").harmless(json!(false)).refused(json!(true)),
        row("add_generation_prompt", Bare, "").harmless(json!(true)).refused(json!(false)),
    ]
}
