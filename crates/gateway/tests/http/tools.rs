//! Calls of tools and responses: what a model has written, as a client is told it.

use gateway::engine::Finish;
use serde_json::{Value, json};

use crate::support::{Server, request};

const CHAT: &str = "/v1/chat/completions";
const SAID: &str = "Let me see.\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"b\": 1, \"a\": 2}}\n\
                    </tool_call>\n<tool_call>{\"name\": \"now\"}</tool_call>";

/// With room for a prompt that has tools in it.
async fn roomy() -> Server {
    let server = Server::start().await;
    server.engine.change(|facts| {
        facts.limits[0].max_model_len = 4096;
        facts.limits[0].max_prompt_tokens = 2048;
    });
    server
}

fn asked(more: Value) -> Value {
    let tool =
        |name: &str| json!({"type": "function", "function": {"name": name, "description": "d"}});
    let mut body = json!({
        "messages": [{"role": "user", "content": "hi"}], "tools": [tool("add"), tool("now")],
    });
    for (name, value) in more.as_object().into_iter().flatten() {
        body[name] = value.clone();
    }
    body
}

async fn whole(server: &Server, path: &'static str, body: Value, said: &str, how: Finish) -> Value {
    let reply = server.begin(path, body);
    server.engine.next().await.say(said, how).await;
    let reply = reply.await.unwrap();
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json()
}

async fn events(server: &Server, path: &str, body: Value, said: &str, how: Finish) -> Vec<String> {
    let connection = server.connect().await;
    let bytes = request("POST", path, &[], &body.to_string());
    let stream = tokio::spawn(async move { connection.stream(&bytes).await });
    server.engine.next().await.say(said, how).await;
    let (events, clean) = stream.await.unwrap().rest().await;
    assert!(clean);
    events
}

#[tokio::test]
async fn calls_are_told_from_words() {
    let server = roomy().await;
    let answer = whole(&server, CHAT, asked(json!({})), SAID, Finish::Stop).await;
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    assert_eq!(choice["message"]["content"], "Let me see.");
    let calls = choice["message"]["tool_calls"].as_array().unwrap();
    assert_eq!(
        calls[0]["function"],
        json!({"name": "add", "arguments": r#"{"b":1,"a":2}"#})
    );
    assert_eq!(
        calls[1]["function"],
        json!({"name": "now", "arguments": "{}"})
    );
    let ids: Vec<&str> = calls
        .iter()
        .map(|call| call["id"].as_str().unwrap())
        .collect();
    assert!(
        ids[0] != ids[1] && ids.iter().all(|id| id.starts_with("call_")),
        "{ids:?}"
    );
    // Calls alone have no content.
    let alone = &SAID[SAID.find('<').unwrap()..];
    let answer = whole(&server, CHAT, asked(json!({})), alone, Finish::Stop).await;
    assert_eq!(answer["choices"][0]["message"]["content"], Value::Null);
    // What is cut, or no call, is content to the letter; so is everything where there are no tools.
    let cut = &SAID[..40];
    let answer = whole(&server, CHAT, asked(json!({})), cut, Finish::Length).await;
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert_eq!(answer["choices"][0]["message"]["content"], cut);
    assert!(answer["choices"][0]["message"].get("tool_calls").is_none());
    for more in [json!({"tools": []}), json!({"tool_choice": "none"})] {
        let answer = whole(&server, CHAT, asked(more), SAID, Finish::Stop).await;
        assert_eq!(answer["choices"][0]["message"]["content"], SAID);
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    }
}

#[tokio::test]
async fn a_stream_has_the_same_calls_and_words() {
    let server = roomy().await;
    let body = asked(json!({"stream": true}));
    let events = events(&server, CHAT, body, SAID, Finish::Stop).await;
    let chunks = events.iter().filter(|event| *event != "[DONE]");
    let chunks: Vec<Value> = chunks
        .map(|event| serde_json::from_str(event).unwrap())
        .collect();
    let deltas: Vec<&Value> = chunks
        .iter()
        .map(|chunk| &chunk["choices"][0]["delta"])
        .collect();
    let content: String = deltas
        .iter()
        .filter_map(|delta| delta["content"].as_str())
        .collect();
    assert_eq!(content, "Let me see.");
    let calls: Vec<&Value> = deltas
        .iter()
        .filter_map(|it| it.get("tool_calls"))
        .map(|it| &it[0])
        .collect();
    let [add, arguments, now, none] = calls[..] else {
        panic!("{calls:?}");
    };
    assert_eq!(
        (&add["index"], &add["type"]),
        (&json!(0), &json!("function"))
    );
    assert!(add["id"].is_string() && arguments.get("id").is_none());
    assert_eq!(add["function"], json!({"name": "add", "arguments": ""}));
    assert_eq!(
        arguments["function"],
        json!({"arguments": r#"{"b":1,"a":2}"#})
    );
    assert_eq!(
        (&now["index"], &now["function"]["name"]),
        (&json!(1), &json!("now"))
    );
    assert_eq!(none, &json!({"index": 1, "function": {"arguments": "{}"}}));
    let last = chunks.last().unwrap();
    assert_eq!(last["choices"][0]["finish_reason"], "tool_calls");
}

/// Some of the tools that the model is shown may be called, in the words of both endpoints.
#[tokio::test]
async fn only_what_is_allowed_is_a_call() {
    let server = roomy().await;
    let nested = json!([{"type": "function", "function": {"name": "now"}}]);
    let chat = |mode: &str| {
        let allowed = json!({"mode": mode, "tools": nested});
        json!({"tool_choice": {"type": "allowed_tools", "allowed_tools": allowed}})
    };
    let reply = server.begin(CHAT, asked(chat("auto")));
    let script = server.engine.next().await;
    let prompt: String = { script.job.prompt.iter() }
        .filter_map(|token| char::from_u32(*token))
        .collect();
    assert!(prompt.contains("\"name\":\"add\""), "{prompt}");
    script.say(SAID, Finish::Stop).await;
    let answer = reply.await.unwrap().json();
    let message = &answer["choices"][0]["message"];
    let calls = message["tool_calls"].as_array().unwrap();
    assert_eq!(
        (calls.len(), &calls[0]["function"]["name"]),
        (1, &json!("now"))
    );
    let content = message["content"].as_str().unwrap();
    assert!(content.contains("\"add\""), "to the letter: {content}");

    let held = |form: Option<wire::Form>| form.expect("a form").text().to_owned();
    let flat_tools = json!([{"type": "function", "name": "now"}]);
    let response =
        json!({"tool_choice": {"type": "allowed_tools", "mode": "required", "tools": flat_tools}});
    for (path, body) in [
        (CHAT, asked(chat("required"))),
        ("/v1/responses", flat(response)),
    ] {
        let reply = server.begin(path, body);
        let script = server.engine.next().await;
        let form = held(script.job.form.clone());
        assert!(form.contains("now") && !form.contains("add"), "{form}");
        script.say("", Finish::Stop).await;
        reply.await.unwrap();
    }
}

/// Whoever asks for one tool by its name asks for one call of it.
#[tokio::test]
async fn a_tool_by_its_name_is_called_once() {
    let server = roomy().await;
    let choice = json!({"type": "function", "function": {"name": "now"}});
    let twice =
        "<tool_call>{\"name\": \"now\"}</tool_call>\n<tool_call>{\"name\": \"now\"}</tool_call>";
    let forms = [json!("required"), choice].map(|choice| {
        let (server, body) = (&server, asked(json!({"tool_choice": choice})));
        async move {
            let reply = server.begin(CHAT, body);
            let script = server.engine.next().await;
            let form = script.job.form.clone().expect("a form");
            script.say(twice, Finish::Stop).await;
            let calls = reply.await.unwrap().json()["choices"][0]["message"]["tool_calls"].clone();
            (
                form.text().contains("call)*"),
                calls.as_array().unwrap().len(),
            )
        }
    });
    let [any, one] = forms;
    assert_eq!((any.await, one.await), ((true, 2), (false, 1)));
}

#[tokio::test]
async fn what_cannot_be_called_is_refused_by_place() {
    let server = roomy().await;
    let tool = |function: Value| json!({"tools": [{"type": "function", "function": function}]});
    let twice = json!({"type": "function", "function": {"name": "a"}});
    for (more, param) in [
        (json!({"tools": [{"type": "web_search"}]}), "tools[0].type"),
        (tool(json!({"name": "a b"})), "tools[0].function.name"),
        (
            tool(json!({"name": "a", "parameters": 3})),
            "tools[0].function.parameters",
        ),
        (tool(json!({"name": "a", "x": 3})), "tools[0].function.x"),
        (json!({"tools": [twice, twice]}), "tools[1].function.name"),
        (json!({"tool_choice": "some"}), "tool_choice"),
        (
            json!({"tool_choice": {"type": "allowed_tools"}}),
            "tool_choice",
        ),
        (
            json!({"tools": [], "tool_choice": "required"}),
            "tool_choice",
        ),
        (json!({"regex": "a"}), "regex"),
    ] {
        refused(&server, CHAT, &asked(more), param).await;
    }
    assert_eq!(server.engine.waiting().await, 0);
}

/// A 400 that names the field.
async fn refused(server: &Server, path: &str, body: &Value, param: &str) {
    let reply = server.post(path, body).await;
    let error = &reply.json()["error"];
    assert_eq!(
        (reply.status, error["param"].as_str()),
        (400, Some(param)),
        "{error}"
    );
}

fn flat(more: Value) -> Value {
    let mut body = json!({
        "input": "hi", "instructions": "Be brief.",
        "tools": [{"type": "function", "name": "add"}, {"type": "function", "name": "now"}],
    });
    for (name, value) in more.as_object().into_iter().flatten() {
        body[name] = value.clone();
    }
    body
}

#[tokio::test]
async fn a_response_is_a_chat_in_other_words() {
    let server = roomy().await;
    let path = "/v1/responses";
    let reply = server.begin(path, flat(json!({"max_output_tokens": 300})));
    let script = server.engine.next().await;
    let prompt: Vec<u8> = script.job.prompt.iter().map(|token| *token as u8).collect();
    let prompt = String::from_utf8_lossy(&prompt);
    assert!(prompt.contains("s:Be brief.\n\nYou may call"), "{prompt}");
    assert!(prompt.contains("u:hi"), "{prompt}");
    assert_eq!(script.job.max_new, 300);
    script.say(SAID, Finish::Stop).await;
    let answer = reply.await.unwrap().json();
    assert_eq!(
        (&answer["object"], &answer["status"]),
        (&json!("response"), &json!("completed"))
    );
    assert_eq!(answer["instructions"], "Be brief.");
    let output = answer["output"].as_array().unwrap();
    assert_eq!(output[0]["content"][0]["text"], "Let me see.");
    assert_eq!(
        (&output[1]["name"], &output[1]["arguments"]),
        (&json!("add"), &json!(r#"{"b":1,"a":2}"#))
    );
    assert_eq!(
        (&output[2]["type"], &output[2]["name"]),
        (&json!("function_call"), &json!("now"))
    );
    assert_ne!(output[1]["call_id"], output[2]["call_id"]);
    assert_eq!(answer["usage"]["output_tokens"], SAID.len());
    let cut = whole(&server, path, flat(json!({})), "abc", Finish::Length).await;
    assert_eq!(cut["status"], "incomplete");
    assert_eq!(cut["incomplete_details"]["reason"], "max_output_tokens");
}

/// Words between and behind calls are messages of their own, each with its own name, and the whole that
/// ends the stream is what was streamed, in its order.
#[tokio::test]
async fn a_response_streams_words_behind_a_call_as_another_message() {
    let server = roomy().await;
    let said = "One.<tool_call>{\"name\": \"now\"}</tool_call>Two.\
                <tool_call>{\"name\": \"now\"}</tool_call>Three.";
    let body = flat(json!({"stream": true}));
    let events = events(&server, "/v1/responses", body, said, Finish::Stop).await;
    let events: Vec<Value> = { events.iter() }
        .map(|event| serde_json::from_str(event).unwrap())
        .collect();
    let of = |kind: &str| {
        let of = events.iter().filter(|event| event["type"] == kind);
        of.cloned().collect::<Vec<_>>()
    };
    let done = of("response.output_item.done");
    let places = done.iter().map(|it| it["output_index"].as_u64().unwrap());
    assert!(places.eq(0..5), "{done:?}");
    let items: Vec<_> = done.iter().map(|it| it["item"].clone()).collect();
    let texts = items.iter().map(|item| item["content"][0]["text"].as_str());
    let texts: Vec<_> = texts.collect();
    assert_eq!(
        texts,
        [Some("One."), None, Some("Two."), None, Some("Three.")]
    );
    let mut ids: Vec<_> = items.iter().map(|item| item["id"].to_string()).collect();
    for delta in of("response.output_text.delta") {
        let item = &items[delta["output_index"].as_u64().unwrap() as usize];
        assert_eq!(delta["item_id"], item["id"]);
    }
    let added = of("response.output_item.added");
    assert!(
        added
            .iter()
            .zip(&items)
            .all(|(it, item)| it["item"]["id"] == item["id"])
    );
    ids.dedup();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 5, "{ids:?}");
    assert_eq!(events.last().unwrap()["response"]["output"], json!(items));
}

#[tokio::test]
async fn a_response_streams_its_events_to_completed() {
    let server = roomy().await;
    let body = flat(json!({"stream": true}));
    let events = events(&server, "/v1/responses", body, SAID, Finish::Stop).await;
    let events: Vec<Value> = events
        .iter()
        .map(|event| serde_json::from_str(event).unwrap())
        .collect();
    let kinds: Vec<&str> = events
        .iter()
        .map(|event| event["type"].as_str().unwrap())
        .collect();
    assert_eq!(
        kinds[..4],
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
        ]
    );
    let numbers: Vec<u64> = events
        .iter()
        .map(|it| it["sequence_number"].as_u64().unwrap())
        .collect();
    assert_eq!(numbers, (0..events.len() as u64).collect::<Vec<_>>());
    let of = |kind: &str, field: &str| -> String {
        let of = events.iter().filter(|event| event["type"] == kind);
        of.filter_map(|event| event[field].as_str()).collect()
    };
    assert_eq!(of("response.output_text.delta", "delta"), "Let me see.");
    assert_eq!(of("response.output_text.done", "text"), "Let me see.");
    assert_eq!(
        of("response.function_call_arguments.done", "arguments"),
        r#"{"b":1,"a":2}{}"#
    );
    let last = events.last().unwrap();
    assert_eq!(last["type"], "response.completed");
    let done: Vec<&Value> = events
        .iter()
        .filter(|it| it["type"] == "response.output_item.done")
        .collect();
    let done: Vec<Value> = done.iter().map(|it| it["item"].clone()).collect();
    assert_eq!(
        json!(done),
        last["response"]["output"],
        "the items are those of the whole"
    );
}

/// What SDKs send along that nothing here can come of.
#[tokio::test]
async fn a_response_takes_what_cannot_change_it() {
    let server = roomy().await;
    let said = json!({
        "id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "phase": "final_answer",
        "content": [{"type": "output_text", "text": "yes", "annotations": [], "logprobs": []}],
    });
    let input =
        json!([{"role": "user", "content": "hi"}, said, {"role": "user", "content": "and?"}]);
    let mut prompts = Vec::new();
    for more in [
        json!({}),
        json!({
            "include": ["reasoning.encrypted_content", "web_search_call.action.sources"],
            "truncation": "auto", "prompt_cache_options": {"ttl": "1h"}, "store": false,
        }),
    ] {
        let mut body = flat(json!({"input": input, "seed": 1}));
        let more = more.as_object().unwrap().clone();
        body.as_object_mut().unwrap().extend(more);
        let reply = server.begin("/v1/responses", body);
        let script = server.engine.next().await;
        prompts.push((script.job.prompt.clone(), script.job.form.clone()));
        script.say("well", Finish::Stop).await;
        let answer = reply.await.unwrap().json();
        assert_eq!(
            answer["output"][0]["content"][0]["text"], "well",
            "{answer}"
        );
    }
    assert_eq!(prompts[0], prompts[1]);
}

#[tokio::test]
async fn what_a_response_would_store_is_refused_by_name() {
    let server = roomy().await;
    for (more, param) in [
        (json!({"store": true}), "store"),
        (
            json!({"previous_response_id": "resp_1"}),
            "previous_response_id",
        ),
        (json!({"conversation": "c"}), "conversation"),
        (json!({"background": true}), "background"),
        (
            json!({"include": ["message.output_text.logprobs"]}),
            "include",
        ),
        (json!({"tools": [{"type": "web_search"}]}), "tools[0].type"),
        (
            json!({"tools": [{"type": "function", "name": "a b"}]}),
            "tools[0].name",
        ),
        (json!({"input": 3}), "input"),
        (json!({"truncation": "some"}), "truncation"),
        (json!({"moderation": {"model": "m"}}), "moderation"),
        (
            json!({"input": [{"type": "item_reference", "id": "x"}]}),
            "input[0].type",
        ),
        (
            json!({"input": [{"role": "root", "content": "a"}]}),
            "input[0].role",
        ),
        (json!({"max_output_tokens": 0}), "max_output_tokens"),
        (json!({"n": 2}), "n"),
    ] {
        refused(&server, "/v1/responses", &flat(more), param).await;
    }
    assert_eq!(server.engine.waiting().await, 0);
}

/// `/tokenize` reads tools as a request does: what would be refused there has no tokens, and of none the
/// model is told nothing.
#[tokio::test]
async fn tools_are_tokenized_as_a_request_is_given_them() {
    let server = roomy().await;
    let none = asked(json!({"tools": null}));
    for more in [
        json!({}),
        json!({"tools": []}),
        json!({"tools": null}),
        json!({"tool_choice": "none"}),
        json!({"tool_choice": "required", "parallel_tool_calls": false}),
    ] {
        let body = asked(more);
        let counted = server.post("/tokenize", &body).await.json()["tokens"].clone();
        let reply = server.begin(CHAT, body.clone());
        let script = server.engine.next().await;
        assert_eq!(counted, json!(script.job.prompt), "{body}");
        script.say("!", Finish::Stop).await;
        assert_eq!(reply.await.unwrap().status, 200);
    }
    for (tools, param) in [
        (json!("abc"), "tools"),
        (json!({"a": 1}), "tools"),
        (json!([1]), "tools[0]"),
        (
            json!([{"type": "function", "function": {"name": ""}}]),
            "tools[0].function.name",
        ),
    ] {
        for path in ["/tokenize", CHAT] {
            let mut body = none.clone();
            body["tools"] = tools.clone();
            let reply = server.post(path, &body).await;
            assert_eq!(
                (reply.status, reply.code().as_str()),
                (400, "invalid_request"),
                "{body}"
            );
            assert_eq!(reply.json()["error"]["param"], param, "{path}");
        }
    }
}
