//! Presets of log formats: which requests are found in which lines, with which ids, tokens and times.
//! Files of `fixtures` were recorded from the engines that they are named after.

use std::collections::BTreeSet;
use std::fs;
use watch::fields::{LINE_MAX, Line};
use watch::joined::Joined;
use watch::{Anomaly, Detector, Preset, Request, Settings};

fn fixture(name: &str) -> String {
    let path = format!(
        "{}/tests/formats/fixtures/{name}",
        env!("CARGO_MANIFEST_DIR")
    );
    fs::read_to_string(path).unwrap()
}

struct Read {
    requests: Vec<Request>,
    bad: Vec<String>,
    unmarked: usize,
    passed_over: usize,
}

/// Reads a log with a preset, which the log itself has to speak for.
fn read(preset: &str, log: &str) -> Read {
    let of_lines: BTreeSet<_> = log
        .lines()
        .flat_map(Preset::of_line)
        .map(|it| it.name)
        .collect();
    assert_eq!(of_lines.into_iter().collect::<Vec<_>>(), [preset]);
    let preset = Preset::named(preset).unwrap();
    let mut out = Read {
        requests: Vec::new(),
        bad: Vec::new(),
        unmarked: 0,
        passed_over: 0,
    };
    for line in log.lines().flat_map(|line| preset.lines(line)) {
        match line {
            Line::Request(it) => out.requests.push(*it),
            Line::Bad(why) => out.bad.push(why),
            Line::Unmarked => out.unmarked += 1,
            Line::PassedOver { .. } => out.passed_over += 1,
            Line::Other => {}
        }
    }
    assert_eq!(out.bad, [""; 0]);
    out
}

fn tokens(read: &Read) -> Vec<(u64, Option<u64>, Option<u64>)> {
    let of = |it: &Request| (it.prompt_tokens, it.cached_tokens, it.completion_tokens);
    read.requests.iter().map(of).collect()
}

fn millis(read: &Read) -> Vec<Option<f64>> {
    let round = |it: f64| (it * 1e5).round() / 100.0;
    read.requests
        .iter()
        .map(|it| it.seconds.map(round))
        .collect()
}

/// To the millisecond.
fn second(it: &Request) -> f64 {
    (it.time * 1e3).round() / 1e3
}

const PREFILL: [(u64, Option<u64>, Option<u64>); 8] = [
    (44, Some(0), None),
    (100, Some(37), None),
    (336, Some(93), None),
    (1236, Some(329), None),
    (336, Some(335), None),
    (156, Some(29), None),
    (59, Some(0), None),
    (1, Some(0), None), // the incident: of 2,536
];

/// The incident in SGLang's own logs, nothing else: eight requests went through a pair, the last over
/// prefill's pool. Prefill wrote JSON, decode text.
#[test]
fn a_pair_of_sglang_and_the_incident_in_its_request_logs() {
    let prefill = read("sglang", &fixture("sglang-0.5.19-prefill.json.log"));
    let decode = read("sglang", &fixture("sglang-0.5.19-decode.log"));
    assert_eq!(tokens(&prefill), PREFILL);
    let last = prefill.requests.last().unwrap();
    assert_eq!(last.id, "6892be2068cc435c9901185fe17fb6a5");
    assert_eq!(
        (second(last), last.seconds.map(|it| (it * 1e6).round())),
        (1_796_163_777.323, Some(14_811.0))
    );
    assert_eq!(last.worker, "prefill");
    let last = decode.requests.last().unwrap();
    assert_eq!(
        (last.id.as_str(), last.status),
        ("51f362f81354471cb07b72ecd22e53da", 200)
    );
    assert_eq!(
        (last.prompt_tokens, last.completion_tokens),
        (2536, Some(4))
    );
    assert_eq!((second(last), last.seconds), (1_796_163_777.337, None));

    let mut joined = Joined::default();
    prefill
        .requests
        .iter()
        .chain(&decode.requests)
        .for_each(|it| joined.learn(it));
    assert_eq!(joined.left_out, 0);
    let watch = Detector::new(Settings::default());
    let convicted: Vec<_> = prefill
        .requests
        .into_iter()
        .chain(decode.requests)
        .filter_map(|mut it| {
            joined.complete(&mut it);
            let signals = watch.clone().judge(&it).signals;
            (!signals.is_empty()).then(|| {
                (
                    it.id,
                    signals.iter().map(Anomaly::to_string).collect::<String>(),
                )
            })
        })
        .collect();
    assert_eq!(
        convicted,
        [(
            "51f362f81354471cb07b72ecd22e53da".to_owned(),
            "length of the prompt: prefill 1, decode 2536, answer 2536".to_owned()
        )]
    );
}

#[test]
fn sglang_exports_the_same_figures() {
    let read = read("sglang", &fixture("sglang-0.5.19-prefill-export.jsonl"));
    assert_eq!(tokens(&read), PREFILL);
    assert_eq!(read.requests[7].id, "6892be2068cc435c9901185fe17fb6a5");
    assert_eq!(millis(&read)[7], Some(14.81));
    assert_eq!(read.requests[0].worker, "prefill");
}

/// Level 2, the default, has texts in it. One of these prompts says `'prompt_tokens': 7`.
#[test]
fn what_a_prompt_says_is_no_figure() {
    let log = fixture("sglang-0.5.19-single-level2.log");
    assert!(log.contains(r#"\'prompt_tokens\': 7"#));
    let read = read("sglang", &log);
    let long = |it: &(u64, Option<u64>, Option<u64>)| it.0 == 59;
    let all = tokens(&read);
    assert_eq!(all.iter().filter(|it| long(it)).count(), 1, "{all:?}");
    assert!(all.iter().all(|it| it.0 != 7), "{all:?}");
    assert!(
        millis(&read)
            .iter()
            .all(|it| it.is_some_and(|it| (5.0..100.0).contains(&it)))
    );
    let ids: BTreeSet<_> = read.requests.iter().map(|it| it.id.as_str()).collect();
    assert!(ids.contains("19d1e672b1b3478084c3992e4732377c"), "{ids:?}");
    assert_eq!(ids.len(), read.requests.len());
}

#[test]
fn times_of_sglangs_scheduler() {
    let prefill = read("sglang-times", &fixture("sglang-0.5.19-prefill-times.log"));
    assert!(prefill.unmarked > 0);
    assert_eq!(tokens(&prefill), PREFILL);
    assert!(prefill.requests.iter().all(|it| it.seconds.is_some()));
    let decode = read("sglang-times", &fixture("sglang-0.5.19-decode-times.log"));
    let first = &decode.requests[0];
    assert_eq!(first.id, "50a11ee4ac774cff86c60a3152dd5358");
    assert_eq!((first.time, first.seconds), (1_796_163_775.815, None));
    assert_eq!(
        (first.prompt_tokens, first.completion_tokens),
        (44, Some(4))
    );
    let mut joined = Joined::default();
    prefill
        .requests
        .iter()
        .chain(&decode.requests)
        .for_each(|it| joined.learn(it));
    let mut last = decode.requests.last().unwrap().clone();
    joined.complete(&mut last);
    assert_eq!(
        (last.prefill_tokens, last.decode_tokens),
        (Some(1), Some(2536))
    );
    // One server that does both: how long both took is no time of a prefill.
    let single = read("sglang-times", &fixture("sglang-0.5.19-single-times.log"));
    assert!(
        single
            .requests
            .iter()
            .all(|it| it.seconds.is_none() && it.prompt_tokens > 0)
    );
    assert!(single.requests.iter().all(|it| it.leg.is_none()));
}

#[test]
fn spans_of_vllm() {
    let read = read("otlp", &fixture("vllm-0.32-spans.jsonl"));
    let counted: Vec<_> = read
        .requests
        .iter()
        .map(|it| (it.prompt_tokens, it.completion_tokens))
        .collect();
    let wanted = [
        (44, 4),
        (100, 4),
        (336, 1),
        (1236, 1),
        (336, 1),
        (156, 4),
        (59, 3),
        (2536, 4),
    ];
    assert_eq!(
        counted,
        wanted.map(|(prompt, completion)| (prompt, Some(completion)))
    );
    let first = &read.requests[0];
    assert_eq!(first.id, "chatcmpl-8ea49a8baff71777");
    assert_eq!(second(first), 1_796_163_885.904);
    assert_eq!(first.seconds, Some(0.096_697_756_001_958_62));
    assert_eq!(first.status, 200);
    assert_eq!(
        first.worker.len(),
        "e5f977fe-bc41-4795-b81b-eb96b887e952".len()
    );
}

/// A span that failed, in one export with one that did not, and one that is no request.
#[test]
fn spans_as_the_conventions_name_them() {
    let span = |name: &str, attributes: &str, status: &str| {
        format!(
            r#"{{"traceId":"t","spanId":"s","name":"{name}","endTimeUnixNano":"1796000000500000000",
            "attributes":[{attributes}],"status":{status}}}"#
        )
    };
    let number = |key: &str, n: u64| format!(r#"{{"key":"{key}","value":{{"intValue":"{n}"}}}}"#);
    let input = number("gen_ai.usage.input_tokens", 12);
    let more = format!(
        r#"{input},{},{{"key":"gen_ai.response.id","value":{{"stringValue":"r-1"}}}},
        {{"key":"gen_ai.request.model","value":{{"stringValue":"m"}}}},
        {{"key":"gen_ai.server.time_to_first_token","value":{{"doubleValue":0.25}}}}"#,
        number("gen_ai.usage.cache_read.input_tokens", 4)
    );
    let spans = [
        span("chat", &more, "{}"),
        span("chat", &input, r#"{"code":2}"#),
        span("GET", &number("http.response.status_code", 200), "{}"),
    ]
    .join(",");
    let line = format!(
        r#"{{"resourceSpans":[{{"resource":{{"attributes":[{{"key":"service.name","value":{{"stringValue":"w"}}}}]}},
        "scopeSpans":[{{"scope":{{}},"spans":[{spans}]}}]}}]}}"#
    );
    let read = read("otlp", &line.replace('\n', " "));
    let [good, failed] = &read.requests[..] else {
        panic!("{:?}", read.requests);
    };
    assert_eq!(
        (good.id.as_str(), good.model.as_str(), good.worker.as_str()),
        ("r-1", "m", "w")
    );
    assert_eq!(
        (good.prompt_tokens, good.cached_tokens, good.seconds),
        (12, Some(4), Some(0.25))
    );
    assert_eq!(
        (good.time, good.status, failed.status),
        (1_796_000_000.5, 200, 500)
    );
}

/// Nothing can be compared of these, and each says what to read instead.
#[test]
fn logs_without_lengths_or_times_name_what_they_lack() {
    let vllm = read("vllm", &fixture("vllm-0.32-requests.log"));
    let ids: Vec<_> = vllm.requests.iter().map(|it| it.id.as_str()).collect();
    assert_eq!(ids.len(), 8);
    assert_eq!(ids[0], "chatcmpl-8ea49a8baff71777");
    assert_eq!(ids[6], "cmpl-9267111ad74f18f4-0");
    let router = read("sglang-router", &fixture("sglang-router-0.3.2-colours.log"));
    let first = &router.requests[0];
    assert_eq!((first.status, first.time), (200, 1_796_163_775.0));
    assert!(first.id.starts_with("chatcmpl-"), "{}", first.id);
    assert_eq!(router.requests.len(), 8); // the ninth was refused
    for (name, read) in [("vllm", vllm), ("sglang-router", router)] {
        assert!(read.requests.iter().all(|it| !it.is_measured()));
        assert!(read.unmarked > 0);
        assert!(Preset::named(name).unwrap().lacks.is_some());
    }
}

/// smg writes what sglang-router writes, as JSON if it is asked to.
#[test]
fn smg_in_json() {
    let span = r#"{"method":"POST","uri":"/v1/completions","version":"HTTP/1.1","module":"smg",
        "request_id":"cmpl-1","status_code":200,"latency":258239,"name":"http_request"}"#;
    let line = |message: &str, target: &str| {
        format!(
            r#"{{"timestamp":"2026-11-29 13:08:50","level":"INFO","message":"{message}","target":"{target}",
            "filename":"logging.rs","line_number":120,"span":{span},"spans":[{span}]}}"#
        )
        .replace('\n', " ")
    };
    let log = [
        line("started processing request", "smg::request"),
        line("finished processing request", "smg::response"),
        line("request failed with client error", "smg::response"),
    ]
    .join("\n");
    let read = read("smg", &log);
    let [it] = &read.requests[..] else {
        panic!("{:?}", read.requests);
    };
    assert_eq!(
        (it.id.as_str(), it.status, it.time),
        ("cmpl-1", 200, 1_795_957_730.0)
    );
}

#[test]
fn litellm_envoy_and_nginx_as_they_are_documented() {
    let litellm = |stream: bool| {
        format!(
            r#"{{"id":"chatcmpl-1","call_type":"acompletion","stream":{stream},"status":"success",
            "startTime":1796000000.5,"endTime":1796000001.5,"completionStartTime":1796000000.75,
            "prompt_tokens":90,"completion_tokens":9,"model":"m","model_group":"g","model_id":"d-1",
            "metadata":{{"user_api_key_alias":"team","usage_object":{{"prompt_tokens_details":{{"cached_tokens":16}}}}}}}}"#
        )
        .replace('\n', " ")
    };
    let log = [litellm(true), litellm(false)].join("\n");
    let found = read("litellm", &log).requests;
    let it = &found[0];
    assert_eq!(
        (it.prompt_tokens, it.cached_tokens, it.completion_tokens),
        (90, Some(16), Some(9))
    );
    assert_eq!(
        (it.tenant.as_str(), it.model.as_str(), it.worker.as_str()),
        ("team", "g", "d-1")
    );
    assert_eq!(
        (it.seconds, it.time, it.status),
        (Some(0.25), 1_796_000_000.5, 200)
    );
    assert_eq!(found[1].seconds, None, "its first token came with its last");

    let envoy = r#"{"start_time":"2026-11-29T12:00:00.125Z","method":"POST","response_code":200,"duration":900,
        "upstream_host":"10.0.0.1:8000","x-request-id":"e-1","gen_ai.usage.input_tokens":"2500",
        "gen_ai.usage.output_tokens":"7","gen_ai.response.model":"m"}"#;
    let it = &read("envoy", &envoy.replace('\n', " ")).requests[0];
    assert_eq!(
        (it.id.as_str(), it.prompt_tokens, it.completion_tokens),
        ("e-1", 2500, Some(7))
    );
    assert_eq!(
        (it.worker.as_str(), it.time, it.seconds),
        ("10.0.0.1:8000", 1_795_953_600.125, None)
    );
    let istio = r#"{"start_time":"2026-11-29T12:00:00Z","method":"POST","response_code":200,"request_id":"i-1",
        "upstream_host":"10.0.0.1:80","upstream_service_time":"3","path":"/v1/completions"}"#;
    let it = &read("envoy", &istio.replace('\n', " ")).requests[0];
    assert_eq!(
        (it.id.as_str(), it.prompt_tokens, it.seconds),
        ("i-1", 0, None)
    );

    let nginx = r#"{"time_iso8601":"2026-11-29T14:00:00+02:00","request_method":"POST","status":"200",
        "upstream_addr":"10.0.0.1:80, 10.0.0.2:80","upstream_header_time":"0.010, 0.350","request_id":"n-1",
        "upstream_http_x_prompt_tokens":"2500"}"#;
    let it = &read("nginx", &nginx.replace('\n', " ")).requests[0];
    assert_eq!(
        (it.id.as_str(), it.prompt_tokens, it.worker.as_str()),
        ("n-1", 2500, "10.0.0.2:80")
    );
    assert_eq!(
        (it.time, it.seconds, it.status),
        (1_795_953_600.0, None, 200)
    );
}

#[test]
fn what_a_preset_does_not_understand_is_said() {
    let bad = |preset: &str, line: &str| match &Preset::named(preset).unwrap().lines(line)[..] {
        [Line::Bad(why)] => why.clone(),
        other => panic!("{preset} {line}: {other:?}"),
    };
    let unknown = |preset: &str, line: &str| assert!(bad(preset, line).contains(preset));
    unknown("sglang", "[2027-01-01 00:00:00] Finish: whatever=1");
    unknown("sglang", r#"[x] {"event": "request.finished", "out": "#);
    unknown("sglang-times", "[x] ReqTimeStats(rid=a, input_len=1)");
    unknown("otlp", "not JSON");
    unknown("litellm", r#"{"call_type":"acompletion"}"#);
    let finish =
        r#"[x] {"event": "request.finished", "out": {"meta_info": {"prompt_tokens": "many"}}}"#;
    assert!(bad("sglang", finish).contains("prompt_tokens: no number"));
    assert!(bad("otlp", &"x".repeat(LINE_MAX + 1)).contains("longer than"));
    // Our own log, and a line that any program writes, are none of them.
    for line in [
        r#"{"time_unix_s":1.0,"request":"r","status":200,"prompt_tokens":1,"ttft_ms":1}"#,
        "[2027-01-01 00:00:00] Prefill batch, #new-seq: 1",
        r#"{"level":"info","msg":"hello"}"#,
    ] {
        assert_eq!(Preset::of_line(line).count(), 0, "{line}");
    }
}
