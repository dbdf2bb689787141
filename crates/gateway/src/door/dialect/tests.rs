//! Answers as real servers gave them (SGLang 0.5.19, vLLM 0.32, llama.cpp), and what nobody may take
//! for an answer.

use super::*;
use crate::engine::TenantId;
use std::time::Instant;
use wire::Sampling;

const EPOCH: Epoch = Epoch::new(0xabc << 100 | 7);

fn attempt(n: u64) -> AttemptId {
    AttemptId { epoch: EPOCH, n }
}

fn order(leg: Leg, max_new: u32) -> Order {
    let job = Job {
        label: "x".into(),
        tenant: TenantId::anonymous(),
        cache_salt: None,
        session: None,
        model: "m".into(),
        prompt: vec![5, 6, 7],
        max_new,
        choices: 1,
        sampling: Sampling::default(),
        ignore_eos: false,
        stop_tokens: Vec::new(),
        form: None,
        min_new: 0,
        deadline: Instant::now(),
        operator: false,
        only: Vec::new(),
        carried: None,
        trace: None,
    };
    Order {
        job: Arc::new(job),
        salt: "s".into(),
        names: Names::of(EPOCH, attempt(3), leg),
        leg,
        max_new,
        reference: None,
        meet: Some(meeting(None)),
    }
}

fn meeting(rank: Option<Rank>) -> Meeting {
    Meeting {
        host: "10.0.0.1".into(),
        port: 8998,
        room: Names::room(EPOCH, attempt(3), rank),
        rank,
    }
}

const SGLANG: Protocol = Protocol::Sglang {
    role: Role::Decode,
    bootstrap: None,
};

fn vllm(role: Role) -> Protocol {
    Protocol::Vllm { role }
}

fn body(call: &Call) -> Value {
    serde_json::from_slice(&call.body).unwrap()
}

#[test]
fn names_are_of_one_width_and_never_the_beginning_of_another() {
    let legs = [Leg::Prefill, Leg::Decode];
    let numbers = [1, 2, 10, 16, 1 << 40];
    let all: Vec<Names> = numbers
        .iter()
        .flat_map(|n| legs.map(|leg| Names::of(EPOCH, attempt(*n), leg)))
        .collect();
    for (at, one) in all.iter().enumerate() {
        for other in all.iter().skip(at + 1) {
            assert!(!other.id.starts_with(&one.id) && !one.id.starts_with(&other.id));
        }
    }
}

/// An engine that follows the number of the room comes to the rank that is named.
#[test]
fn rooms_are_used_once_and_are_their_rank_s() {
    let epochs = [
        EPOCH,
        Epoch::new(EPOCH.bits() ^ 1 << 120),
        Epoch::new(u128::MAX),
    ];
    // Prefills with different numbers of ranks may share a decode, and one may come back with another number.
    let prefills = [0, 1, 2, 3, 7, 255, RANKS_MAX].map(|ranks| vec![9; ranks]);
    let prefills: Vec<_> = prefills.into_iter().chain([vec![9, 3, 9]]).collect();
    let mut rooms = std::collections::BTreeMap::new();
    for epoch in epochs {
        for n in (1..600).chain([1 << 20, (1 << 30) - 1]) {
            for longest in &prefills {
                let rank = Rank::of(longest, attempt(n), 5);
                let room = Names::room(epoch, attempt(n), rank);
                assert!(room < 1 << 63);
                let whose = *rooms.entry(room).or_insert((epoch, n));
                assert_eq!(whose, (epoch, n), "another attempt's too");
                assert_eq!(rank.is_some(), longest.len() > 1);
                if let Some(Rank { n: named, of }) = rank {
                    assert_eq!(room % u64::from(of), u64::from(named));
                    assert!(longest[named as usize] >= 5, "it takes the prompt");
                }
            }
        }
    }
    // Where none is named they come to each in turn.
    for ranks in [2, 3, 8, 16] {
        let all = (1..60).map(|n| Names::room(EPOCH, attempt(n), None) % ranks);
        assert_eq!(
            all.collect::<std::collections::BTreeSet<_>>().len() as u64,
            ranks
        );
    }
    assert_eq!(Rank::of(&vec![9; RANKS_MAX + 1], attempt(1), 5), None);
    // In turn at those that take it; nobody is named who does not.
    let named = |n, prompt| Rank::of(&[9, 3, 9], attempt(n), prompt).map(|it| it.n);
    assert_eq!([0, 1, 2, 3].map(|n| named(n, 3)), [0, 1, 2, 0].map(Some));
    assert_eq!([0, 1, 2, 3].map(|n| named(n, 4)), [0, 2, 0, 2].map(Some));
    assert_eq!(named(0, 10), None);
}

/// Routers of vLLM name requests themselves: another name says nothing there, and all elsewhere.
#[test]
fn a_name_that_does_not_arrive_is_not_compared() {
    let text = r#"{"id":"cmpl-theirs","choices":[{"text":"a","token_ids":[9],"finish_reason":"stop"}],
        "usage":{"prompt_tokens":3,"completion_tokens":1}}"#;
    let whose = |protocol: Protocol| {
        let (_, mut reading) = protocol.ask(&order(Leg::Decode, 8));
        reading.read(text.as_bytes()).expect("it can be read");
        reading.said().whose
    };
    assert_eq!(whose(vllm(Role::Router)), Whose::Unsaid);
    assert_eq!(whose(vllm(Role::Alone)), Whose::Anothers);
}

#[test]
fn both_legs_of_sglang_name_the_rank_of_prefill() {
    let rank = Rank::of(&[9, 9], attempt(3), 3);
    let asked = |leg| {
        let asked = Order {
            meet: Some(meeting(rank)),
            ..order(leg, 8)
        };
        body(&SGLANG.ask(&asked).0)
    };
    let (prefill, decode) = (asked(Leg::Prefill), asked(Leg::Decode));
    assert_eq!(
        (
            &prefill["routed_dp_rank"],
            prefill.get("disagg_prefill_dp_rank")
        ),
        (&json!(1), None)
    );
    assert_eq!(
        (
            &decode["disagg_prefill_dp_rank"],
            decode.get("routed_dp_rank")
        ),
        (&json!(1), None)
    );
    assert_eq!(prefill["bootstrap_room"], decode["bootstrap_room"]);
    let (alone, _) = SGLANG.ask(&order(Leg::Decode, 8));
    assert!(
        !body(&alone).to_string().contains("dp_rank"),
        "one rank has no number"
    );
}

#[test]
fn both_legs_of_sglang_are_asked_for_the_same_under_one_room() {
    let (prefill, _) = SGLANG.ask(&order(Leg::Prefill, 8));
    let (decode, _) = SGLANG.ask(&order(Leg::Decode, 8));
    let (p, d) = (body(&prefill), body(&decode));
    assert_eq!(p["input_ids"], json_ids(&[5, 6, 7]));
    for same in [
        "input_ids",
        "sampling_params",
        "bootstrap_room",
        "bootstrap_host",
    ] {
        assert_eq!(p[same], d[same], "{same}");
    }
    assert_ne!(p["rid"], d["rid"]);
    assert_eq!(
        (&p["stream"], &d["stream"]),
        (&Value::Bool(false), &Value::Bool(true))
    );
}

fn json_ids(ids: &[u32]) -> Value {
    serde_json::json!(ids)
}

/// Recorded: the incident, as prefill says it.
#[test]
fn a_placeholder_is_read_as_one_token() {
    let (_, mut reading) = SGLANG.ask(&order(Leg::Prefill, 8));
    let recorded =
        br#"{"text":"","output_ids":[0],"meta_info":{"id":"45405c47f8e041ee91a3f54dc1c5b484",
        "finish_reason":{"type":"length","length":0},"prompt_tokens":1,"completion_tokens":1,
        "cached_tokens":0}}"#;
    let heard = reading.read(recorded).unwrap();
    assert!(heard.failed.is_none());
    assert_eq!(reading.said().prompt, Some(1));
    assert_eq!(
        reading.said().whose,
        Whose::Anothers,
        "that id was not ours"
    );
    assert!(reading.is_whole(Leg::Prefill));
}

#[test]
fn sglang_streams_are_read_whichever_way_they_count() {
    let event = |ids: &[u32], total: u32, finish: &str| {
        let id = Names::of(EPOCH, attempt(3), Leg::Decode).id;
        format!(
            r#"{{"output_ids":{ids:?},"meta_info":{{"id":"{id}","prompt_tokens":3,
            "completion_tokens":{total},"finish_reason":{finish}}}}}"#
        )
    };
    let length = r#"{"type":"length","length":3}"#;
    let cumulative = [
        event(&[1], 1, "null"),
        event(&[1, 2], 2, "null"),
        event(&[1, 2, 3], 3, length),
    ];
    let incremental = [
        event(&[1], 1, "null"),
        event(&[2], 2, "null"),
        event(&[3], 3, length),
    ];
    for stream in [cumulative, incremental] {
        let (_, mut reading) = SGLANG.ask(&order(Leg::Decode, 3));
        let mut tokens = Vec::new();
        for event in stream {
            tokens.extend(reading.read(event.as_bytes()).unwrap().part.tokens);
        }
        assert_eq!(tokens, [1, 2, 3]);
        assert_eq!(reading.finish(), Some(Finish::Length));
        let whose = Whose::Ours;
        assert_eq!(
            reading.said(),
            Label {
                whose,
                prompt: Some(3)
            }
        );
    }
    let (_, mut reading) = SGLANG.ask(&order(Leg::Decode, 3));
    let skips = event(&[7], 3, "null");
    assert!(
        reading.read(skips.as_bytes()).is_none(),
        "two tokens are missing"
    );
    let (_, mut reading) = SGLANG.ask(&order(Leg::Decode, 3));
    let more = event(&[1, 2, 3, 4], 4, "null");
    assert!(
        reading.read(more.as_bytes()).is_none(),
        "more than was asked for"
    );
}

/// The engine says itself how many tokens it has sampled: one that was not read is lost.
#[test]
fn an_answer_with_fewer_tokens_than_it_says_is_not_whole() {
    let id = Names::of(EPOCH, attempt(3), Leg::Decode).id;
    let sglang = |said: u32| {
        format!(
            r#"{{"output_ids":[1,2],"meta_info":{{"id":"{id}","prompt_tokens":3,
            "completion_tokens":{said},"finish_reason":{{"type":"stop"}}}}}}"#
        )
    };
    let vllm_says = |said: u32| {
        format!(
            r#"{{"id":"cmpl-{id}","choices":[{{"text":"a b","token_ids":[1,2],"finish_reason":"stop"}}],
            "usage":{{"prompt_tokens":3,"completion_tokens":{said}}}}}"#
        )
    };
    let whole = |protocol: Protocol, text: String| {
        let (_, mut reading) = protocol.ask(&order(Leg::Decode, 8));
        let read = reading.read(text.as_bytes()).is_some();
        read && reading.is_whole(Leg::Decode)
    };
    assert!(whole(SGLANG, sglang(2)) && whole(vllm(Role::Alone), vllm_says(2)));
    for said in [1, 3] {
        assert!(!whole(SGLANG, sglang(said)), "{said}");
        assert!(!whole(vllm(Role::Alone), vllm_says(said)), "{said}");
    }
}

#[test]
fn failures_inside_a_200_have_their_class() {
    let read = |json: &str| {
        let (_, mut reading) = SGLANG.ask(&order(Leg::Decode, 3));
        reading.read(json.as_bytes()).unwrap().failed
    };
    let client = read(r#"{"error":{"message":"too long","code":400}}"#);
    assert_eq!(client, Some((Blame::Client, "too long".into())));
    let aborted = read(
        r#"{"output_ids":[],"meta_info":{"id":"x","prompt_tokens":0,"completion_tokens":0,
        "finish_reason":{"type":"abort","message":"lost","status_code":503}}}"#,
    );
    assert_eq!(aborted, Some((Blame::Busy, "lost".into())));
    let unsaid = read(r#"{"error":"boom"}"#);
    assert_eq!(unsaid, Some((Blame::Engine, "boom".into())));
}

/// Recorded: vLLM 0.32's reference, and its answer to it.
#[test]
fn vllms_reference_goes_to_decode_as_it_came() {
    let (call, mut reading) = vllm(Role::Prefill).ask(&order(Leg::Prefill, 8));
    assert_eq!(body(&call)["kv_transfer_params"]["do_remote_decode"], true);
    assert_eq!(body(&call)["max_tokens"], 1);
    let id = call.request_id.clone().unwrap();
    let recorded = format!(
        r#"{{"id":"cmpl-{id}","choices":[{{"index":0,"text":" 10","finish_reason":"length",
        "token_ids":[9]}}],"usage":{{"prompt_tokens":3,"total_tokens":4,"completion_tokens":1,
        "prompt_tokens_details":null}},"kv_transfer_params":{{"do_remote_prefill":true,
        "do_remote_decode":false,"remote_block_ids":[[65,66]],"remote_engine_id":"423c",
        "remote_request_id":"cmpl-{id}-0-a541f52d","remote_host":"127.0.0.1","remote_port":5601,
        "tp_size":1}}}}"#
    );
    reading.read(recorded.as_bytes()).unwrap();
    assert_eq!(reading.said().prompt, Some(3));
    assert_eq!(reading.said().whose, Whose::Ours);
    let reference = reading.reference().unwrap();
    assert_eq!(reference["remote_block_ids"], serde_json::json!([[65, 66]]));
    let asked = Order {
        reference: Some(reference.clone()),
        ..order(Leg::Decode, 8)
    };
    let (call, _) = vllm(Role::Decode).ask(&asked);
    assert_eq!(body(&call)["kv_transfer_params"], reference);
    assert_eq!(body(&call)["max_tokens"], 8);
    for none in ["[]", "[[],[]]", "null"] {
        let (_, mut reading) = vllm(Role::Prefill).ask(&order(Leg::Prefill, 8));
        let empty = recorded.replace("[[65,66]]", none);
        reading.read(empty.as_bytes()).unwrap();
        assert_eq!(reading.reference(), None, "{none}");
    }
}

/// An engine that does not know `return_token_ids` ends well, and nothing of its answer was read.
#[test]
fn an_answer_without_its_tokens_is_not_whole() {
    let id = Names::of(EPOCH, attempt(3), Leg::Decode).id;
    let (_, mut reading) = vllm(Role::Alone).ask(&order(Leg::Decode, 8));
    let usage = r#""usage":{"prompt_tokens":3,"completion_tokens":2}"#;
    let text = format!(
        r#"{{"id":"cmpl-{id}","choices":[{{"text":"a b","finish_reason":"stop"}}],{usage}}}"#
    );
    reading.read(text.as_bytes()).unwrap();
    assert!(!reading.is_whole(Leg::Decode));
}

#[test]
fn llamas_last_event_counts_the_prompt() {
    let (_, mut reading) = Protocol::Llama.ask(&order(Leg::Decode, 4));
    let part = br#"{"index":0,"content":"1","tokens":[33],"stop":false,"tokens_evaluated":3}"#;
    assert_eq!(reading.read(part).unwrap().part.tokens, [33]);
    let last =
        br#"{"content":"","tokens":[],"stop":true,"tokens_evaluated":3,"stop_type":"limit"}"#;
    reading.read(last).unwrap();
    let whose = Whose::Unsaid;
    assert_eq!(
        reading.said(),
        Label {
            whose,
            prompt: Some(3)
        }
    );
    assert_eq!(reading.finish(), Some(Finish::Length));
}

#[test]
fn what_is_no_answer_is_none() {
    let garbage: [&[u8]; 6] = [
        b"",
        b"!!!!",
        b"[1,2]",
        b"{}",
        br#"{"meta_info":{"completion_tokens":-1},"output_ids":[1]}"#,
        br#"{"meta_info":{"completion_tokens":1},"output_ids":["a"]}"#,
    ];
    for dialect in [SGLANG, vllm(Role::Alone), Protocol::Llama] {
        for json in garbage {
            let (_, mut reading) = dialect.ask(&order(Leg::Decode, 4));
            assert!(reading.read(json).is_none(), "{dialect:?} {json:?}");
        }
    }
}

#[test]
fn statuses_have_the_class_of_whose_fault_they_are() {
    let classes = [
        (400, Some(Blame::Client)),
        (404, Some(Blame::Client)),
        (422, Some(Blame::Client)),
        (429, Some(Blame::Busy)),
        (503, Some(Blame::Busy)),
        (499, Some(Blame::Engine)),
        (500, Some(Blame::Engine)),
        (502, Some(Blame::Engine)),
        (302, None),
        (101, None),
    ];
    for (status, class) in classes {
        assert_eq!(class_of(status), class, "{status}");
    }
}

/// Of what an engine writes itself a client sees what it may see, and no failure is an answer.
#[test]
fn what_an_engine_writes_is_shown_by_name() {
    let carried = crate::engine::Carried {
        chat: true,
        stream: true,
        fields: json!({"messages": [], "tools": []})
            .as_object()
            .unwrap()
            .clone(),
    };
    let reading = || {
        let mut order = order(Leg::Decode, 8);
        let job = Arc::get_mut(&mut order.job).unwrap();
        job.carried = Some(Arc::new(carried.clone()));
        SGLANG.ask(&order).1
    };
    let said = |choice: Value| {
        let event = json!({"id": "x", "choices": [choice], "kv_transfer_params": {"a": 1}});
        reading().read(event.to_string().as_bytes())
    };
    let heard = said(json!({
        "index": 0, "finish_reason": "tool_calls", "matched_stop": 7, "token_ids": [1],
        "delta": {"tool_calls": [1], "content": null, "audio": "x", "annotations": []},
        "logprobs": {"content": []},
    }));
    let part = heard.unwrap().part;
    let shown = json!({"delta": {"tool_calls": [1], "content": null},
        "logprobs": {"content": []}, "finish_reason": "tool_calls"});
    assert_eq!((part.said, part.finish), (vec![shown], Some(Finish::Stop)));
    let failed = said(json!({"index": 0, "finish_reason": "abort", "delta": {}}));
    assert!(failed.unwrap().failed.is_some());
    let another = json!({"index": 1, "finish_reason": null, "delta": {"content": "x"}});
    assert!(said(another).is_none(), "one choice was asked for");
    let strange = json!({"index": 0, "finish_reason": "repetition", "delta": {}});
    assert!(said(strange).is_none());
}
