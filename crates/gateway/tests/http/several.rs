//! Several prompts in one request, and answers that end or begin otherwise than usual.

use gateway::Config;
use gateway::engine::{Code, Event, Fault, Finish};
use serde_json::{Value, json};

use crate::support::{END, Server, committed, request, token, tokens};

#[tokio::test]
async fn several_prompts_are_answered_in_order_with_exact_figures() {
    let server = Server::start().await;
    let body = json!({"prompt": ["a", "bc"], "n": 2, "max_tokens": 9});
    let reply = server.begin("/v1/completions", body);
    let first = server.engine.next().await;
    let second = server.engine.next().await;
    assert_eq!(first.job.prompt, [97]);
    assert_eq!(
        (&second.job.prompt[..], second.job.choices),
        (&[98, 99][..], 2)
    );
    assert_ne!(
        first.job.sampling.seed, second.job.sampling.seed,
        "a prompt that stands there twice gets two answers"
    );
    // In an order of its own.
    second.send(committed()).await;
    second.send(tokens(1, "four")).await;
    first.send(committed()).await;
    first.send(tokens(1, "two")).await;
    first.send(tokens(0, "one")).await;
    second.send(tokens(0, "three")).await;
    for script in [second, first] {
        script.finish(0, Finish::Stop).await;
        script.finish(1, Finish::Length).await;
        script.send(Event::Done).await;
    }
    let json = reply.await.unwrap().json();
    let choice = |index: u32, text: &str, finish: &str| json!({"index": index, "text": text, "logprobs": null, "finish_reason": finish});
    assert_eq!(
        json["choices"],
        json!([
            choice(0, "one", "stop"),
            choice(1, "two", "length"),
            choice(2, "three", "stop"),
            choice(3, "four", "length"),
        ])
    );
    assert_eq!(
        json["usage"],
        json!({
            "prompt_tokens": 3, "completion_tokens": 15, "total_tokens": 18,
            "prompt_tokens_details": {"cached_tokens": 2},
        })
    );
    let log = server.ended().await;
    let line = log.last().unwrap();
    assert_eq!(line["prompts"], 2);
    assert_eq!(line["engine_request"], "engine-7 engine-7");
    assert_eq!(line["ttft_ms"], Value::Null, "it is no prompt's measure");
}

/// Law: Identity is ours. A seed of the client's gives each prompt the answer that it has alone.
#[tokio::test]
async fn a_seed_is_the_same_for_every_prompt() {
    let server = Server::start().await;
    let body = json!({"prompt": [[97], [97]], "seed": 5});
    let reply = server.begin("/v1/completions", body);
    for _ in 0..2 {
        let script = server.engine.next().await;
        assert_eq!(script.job.sampling.seed, 5);
        script.say("x", Finish::Stop).await;
    }
    assert_eq!(reply.await.unwrap().status, 200);
}

#[tokio::test]
async fn several_prompts_have_one_outcome() {
    let server = Server::start().await;
    let reply = server.begin("/v1/completions", json!({"prompt": ["a", "b"]}));
    let first = server.engine.next().await;
    let second = server.engine.next().await;
    first.say("whole", Finish::Stop).await;
    second
        .send(Event::Failed(Fault::new(Code::PrefillFailed, "it broke")))
        .await;
    let reply = reply.await.unwrap();
    assert_eq!(
        (reply.status, reply.code().as_str()),
        (502, "prefill_failed")
    );
    let reply = server.begin("/v1/completions", json!({"prompt": ["a", "b"]}));
    let first = server.engine.next().await;
    let second = server.engine.next().await;
    first
        .send(Event::Failed(Fault::new(Code::PrefillFailed, "it broke")))
        .await;
    assert_eq!(reply.await.unwrap().status, 502);
    second.cancelled().await;
}

#[tokio::test]
async fn each_prompt_takes_a_place_and_is_judged_by_itself() {
    let config = Config {
        max_running: 2,
        ..Config::default()
    };
    let server = Server::with(config).await;
    let reply = server
        .post("/v1/completions", &json!({"prompt": ["a", "b", "c"]}))
        .await;
    assert_eq!((reply.status, reply.code().as_str()), (429, "queue_full"));
    let message = reply.json()["error"]["message"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(message.contains("3 of 2 places"), "{message}");
    let long = "x".repeat(49);
    let reply = server
        .post("/v1/completions", &json!({"prompt": ["a", long]}))
        .await;
    assert_eq!(reply.code(), "context_length_exceeded");
    let message = reply.json()["error"]["message"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(
        message.starts_with("`prompt[1]`: the prompt has 49 tokens"),
        "{message}"
    );
    for (prompt, param) in [
        (json!(["a", ""]), "prompt[1]"),
        (json!([[1], [258]]), "prompt[1]"),
    ] {
        let reply = server
            .post("/v1/completions", &json!({"prompt": prompt}))
            .await;
        assert_eq!(reply.json()["error"]["param"], param);
    }
    let many = vec!["a"; 65];
    let reply = server
        .post("/v1/completions", &json!({"prompt": many}))
        .await;
    assert_eq!(reply.json()["error"]["param"], "prompt");
    assert_eq!(
        server.engine.waiting().await,
        0,
        "nothing reached the engine"
    );
}

#[tokio::test]
async fn a_stream_of_several_prompts_ends_when_all_have() {
    let server = Server::start().await;
    let body = json!({"prompt": ["a", "b"], "stream": true, "stop": "!"}).to_string();
    let connection = server.connect().await;
    let bytes = request("POST", "/v1/completions", &[], &body);
    let stream = tokio::spawn(async move { connection.stream(&bytes).await });
    let first = server.engine.next().await;
    let second = server.engine.next().await;
    second.send(committed()).await;
    second.send(tokens(0, "y!")).await;
    let mut stream = stream.await.unwrap();
    let shown = |event: &Value| {
        let choice = &event["choices"][0];
        let text = choice["text"].as_str().unwrap().to_owned();
        (
            choice["index"].as_u64().unwrap(),
            text,
            choice["finish_reason"].clone(),
        )
    };
    assert_eq!(
        shown(&stream.json().await),
        (1, "y".to_owned(), Value::Null)
    );
    assert_eq!(
        shown(&stream.json().await),
        (1, String::new(), json!("stop"))
    );
    second.cancelled().await; // it has said enough; the other one goes on
    first.say("x", Finish::Length).await;
    assert_eq!(
        shown(&stream.json().await),
        (0, "x".to_owned(), Value::Null)
    );
    assert_eq!(
        shown(&stream.json().await),
        (0, String::new(), json!("length"))
    );
    assert_eq!(stream.rest().await, (vec!["[DONE]".to_owned()], true));
}

#[tokio::test]
async fn an_echo_is_in_front_of_every_choice_and_bounded() {
    let config = Config {
        max_body_bytes: 400,
        ..Config::default()
    };
    let server = Server::with(config).await;
    let body = json!({"prompt": [[104, 257], [105]], "n": 2, "echo": true, "stop": "!"});
    let reply = server.begin("/v1/completions", body);
    for _ in 0..2 {
        let script = server.engine.next().await;
        script.send(committed()).await;
        script.send(tokens(0, "x!")).await;
        script.send(tokens(1, "yy")).await;
        script.finish(1, Finish::Length).await;
        let _ = script.events.send(Event::Done).await;
    }
    let json = reply.await.unwrap().json();
    let texts: Vec<&str> = (0..4)
        .map(|i| json["choices"][i]["text"].as_str().unwrap())
        .collect();
    assert_eq!(texts, ["h<special>x", "h<special>yy", "ix", "iyy"]);
    let both = json!({"prompt": "a", "echo": true, "logprobs": 1});
    let reply = server.post("/v1/completions", &both).await;
    assert_eq!(reply.json()["error"]["param"], "echo");
    // The bound is over all that is repeated: by ten choices, and by six prompts for five.
    let (long, short) = ("x".repeat(41), "x".repeat(14));
    for (prompt, n) in [(json!(long), 10), (json!(vec![&short; 6]), 5)] {
        let large = json!({"prompt": prompt, "echo": true, "n": n});
        let reply = server.post("/v1/completions", &large).await;
        assert_eq!(
            (reply.status, reply.code().as_str()),
            (413, "payload_too_large"),
            "{n}"
        );
    }
}

/// What a choice says to a stop token or string, by what was asked.
async fn ended(server: &Server, fields: Value, said: &[u32], finish: Finish) -> (String, Value) {
    let mut body = json!({"prompt": "a", "logprobs": 0});
    for (field, value) in fields.as_object().unwrap() {
        body[field] = value.clone();
    }
    let reply = server.begin("/v1/completions", body);
    let script = server.engine.next().await;
    script.send(committed()).await;
    let tokens = said.iter().map(|id| token(*id)).collect();
    script.send(Event::Tokens { choice: 0, tokens }).await;
    let reason = finish;
    let _ = script
        .events
        .send(Event::Finished { choice: 0, reason })
        .await;
    let _ = script.events.send(Event::Done).await;
    let choice = reply.await.unwrap().json()["choices"][0].clone();
    let logged = choice["logprobs"]["tokens"].clone();
    (choice["text"].as_str().unwrap().to_owned(), logged)
}

#[tokio::test]
async fn what_ends_an_answer_is_shown_if_that_is_asked_for() {
    let server = Server::start().await;
    let (x, y, dot) = (120, 121, 46);
    let ids = |more: Value| {
        let mut fields = json!({"stop_token_ids": [dot]});
        for (field, value) in more.as_object().unwrap() {
            fields[field] = value.clone();
        }
        fields
    };
    let stop = Finish::Stop;
    for (fields, said, text) in [
        (ids(json!({})), &[x, dot][..], "x"),
        (
            ids(json!({"include_stop_str_in_output": true})),
            &[x, dot],
            "x.",
        ),
        (ids(json!({"ignore_eos": true})), &[x, END, dot], "x"),
        (json!({"include_stop_str_in_output": true}), &[x, END], "x"),
        (
            json!({"include_stop_str_in_output": true, "skip_special_tokens": false}),
            &[x, END],
            "x<end>",
        ),
        (json!({"skip_special_tokens": false}), &[x, END], "x"),
        (
            json!({"skip_special_tokens": false, "stop": "ial"}),
            &[x, 257],
            "x<spec",
        ),
        (json!({"stop": "x", "min_tokens": 2}), &[x, y, x, y], "xy"),
        (
            json!({"stop": "yx", "min_tokens": 2}),
            &[x, y, x, y, x],
            "xyx",
        ),
    ] {
        let (got, logged) = ended(&server, fields.clone(), said, stop).await;
        assert_eq!(got, text, "{fields}");
        let shown: String = logged
            .as_array()
            .unwrap()
            .iter()
            .map(|t| t.as_str().unwrap())
            .collect();
        assert!(
            shown.starts_with(&got) || got.starts_with(&shown),
            "{fields}: {logged}"
        );
    }
}

#[tokio::test]
async fn what_a_template_is_given_by_the_server_is_not_the_clients() {
    let server = Server::start().await;
    let mut body = json!({
        "messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {"messages": []},
    });
    let refused = |param: &'static str| {
        move |reply: crate::support::Reply| {
            assert_eq!(reply.status, 400, "{}", reply.text());
            assert_eq!(reply.json()["error"]["param"], param);
        }
    };
    for path in ["/v1/chat/completions", "/tokenize"] {
        refused("chat_template_kwargs.messages")(server.post(path, &body).await);
    }
    body["chat_template_kwargs"] = json!({"reasoning_effort": "low"});
    body["reasoning_effort"] = json!("none");
    refused("reasoning_effort")(server.post("/v1/chat/completions", &body).await);
    body["reasoning_effort"] = json!(null);
    body["continue_final_message"] = json!(true);
    body["add_generation_prompt"] = json!(true);
    refused("add_generation_prompt")(server.post("/v1/chat/completions", &body).await);
    // The tokens that a request would be given, to the last.
    body["add_generation_prompt"] = json!(null);
    body["chat_template_kwargs"] = json!({"mood": 1});
    let json = server.post("/tokenize", &body).await.json();
    assert_eq!(json["tokens"], json!([49, 257, 117, 58, 97, 62]));
}
