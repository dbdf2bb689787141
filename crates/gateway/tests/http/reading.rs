//! What reading a text costs: nothing if it cannot fit, and never another tenant's turn.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use gateway::Config;
use gateway::api::auth::ApiKeys;
use gateway::api::text::{Chat, Detokenize, Text};
use gateway::engine::{Fault, Finish};
use serde_json::{Value, json};

use crate::support::{ByteText, Client, LONGEST, MAX_PROMPT, Server, request, within};

/// A tokenizer that counts what it reads, and stays at a text that begins with `slow` until the
/// test lets it go on.
#[derive(Default)]
struct Watched {
    read: AtomicUsize,
    stuck: Mutex<usize>,
    changed: Condvar,
    released: Mutex<bool>,
    /// Bytes that the last chat may become.
    most: AtomicUsize,
}

impl Watched {
    fn look(&self, text: &str) {
        self.read.fetch_add(text.len(), Ordering::SeqCst);
        if !text.starts_with("slow") {
            return;
        }
        *self.stuck.lock().unwrap() += 1;
        let mut released = self.released.lock().unwrap();
        while !*released {
            released = self.changed.wait(released).unwrap();
        }
    }
}

/// Lets the tokenizer go on, also when the test fails.
struct Release(Arc<Watched>);

impl Drop for Release {
    fn drop(&mut self) {
        *self.0.released.lock().unwrap() = true;
        self.0.changed.notify_all();
    }
}

impl Text for Watched {
    fn vocab(&self) -> u32 {
        ByteText.vocab()
    }
    fn longest(&self) -> usize {
        ByteText.longest()
    }
    fn is_end(&self, token: u32) -> bool {
        ByteText.is_end(token)
    }
    fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, Fault> {
        self.look(text);
        ByteText.encode(text, add_special)
    }
    fn chat(&self, chat: &Chat, most: usize) -> Result<Vec<u32>, Fault> {
        let messages = chat.messages.iter();
        messages.for_each(|message| self.look(&message.content));
        self.most.store(most, Ordering::SeqCst);
        ByteText.chat(chat, most)
    }
    fn reads(&self, variable: &str) -> bool {
        ByteText.reads(variable)
    }
    fn is_given(&self, variable: &str) -> bool {
        ByteText.is_given(variable)
    }
    fn decode(&self, tokens: &[u32]) -> Result<String, Fault> {
        ByteText.decode(tokens)
    }
    fn bytes(&self, token: u32) -> Vec<u8> {
        ByteText.bytes(token)
    }
    fn stream(&self, specials: bool) -> Box<dyn Detokenize> {
        ByteText.stream(specials)
    }
}

/// Regression: 4.1 MB against a limit of 2,047 tokens were tokenized first: 16.5 s and 1.4 GB.
#[tokio::test]
async fn a_text_longer_than_any_prompt_is_refused_unread() {
    let text = Arc::new(Watched::default());
    let server = Server::reading(Config::default(), text.clone()).await;
    let most = MAX_PROMPT as usize * LONGEST;
    let part = |n: usize| json!({"type": "text", "text": "a".repeat(n)});
    let say = |content: Value| json!({"role": "user", "content": content});
    let over: [(&str, &str, Value); 6] = [
        (
            "/v1/completions",
            "prompt",
            json!({"prompt": "1".repeat(most + 1)}),
        ),
        (
            "/v1/completions",
            "prompt",
            json!({"prompt": ["1".repeat(most + 1)]}),
        ),
        (
            "/v1/chat/completions",
            "messages",
            json!({"messages": [say(json!("a".repeat(most))), say(json!("b"))]}),
        ),
        (
            "/v1/chat/completions",
            "messages",
            json!({"messages": [say(json!([part(most), part(1)]))]}),
        ),
        (
            "/tokenize",
            "prompt",
            json!({"prompt": "1".repeat(most + 1)}),
        ),
        (
            "/tokenize",
            "messages",
            json!({"messages": [say(json!("a".repeat(most + 1)))]}),
        ),
    ];
    for (path, param, body) in over {
        let reply = server.post(path, &body).await;
        let said = (reply.status, reply.code());
        assert_eq!(
            said,
            (400, "context_length_exceeded".to_owned()),
            "{path} {param}"
        );
        let error = &reply.json()["error"];
        assert_eq!(error["param"], param);
        assert_eq!(
            error["message"],
            format!(
                "`{param}` has 433 bytes of text; the limit is 48 tokens (prefill-0 has 48 tokens; \
                 decode-0 has 64), and no token of this model has more than 9 bytes, so no prompt \
                 has more than 432; shorten it"
            )
        );
    }
    assert_eq!(text.read.load(Ordering::SeqCst), 0, "unread");
    assert_eq!(server.engine.waiting().await, 0);
    // What might fit is read, and judged by its tokens.
    let reply = server
        .post("/v1/completions", &json!({"prompt": "1".repeat(most)}))
        .await;
    let message = reply.json()["error"]["message"].to_string();
    assert!(
        message.contains("the prompt has 432 tokens; the limit is 48"),
        "{message}"
    );
    assert_eq!(text.read.load(Ordering::SeqCst), most);
    // What a template makes of a short one has the same bound.
    for path in ["/v1/chat/completions", "/tokenize"] {
        text.most.store(0, Ordering::SeqCst);
        let body = json!({"messages": [say(json!("a".repeat(60)))]});
        server.post(path, &body).await;
        assert_eq!(text.most.load(Ordering::SeqCst), most, "{path}");
    }
}

/// Numbers are no text, and a template writes each as some.
#[tokio::test]
async fn values_that_are_no_text_count_too() {
    let text = Arc::new(Watched::default());
    let server = Server::reading(Config::default(), text.clone()).await;
    let most = MAX_PROMPT as usize * LONGEST;
    let ask = |values: usize| {
        let message = json!({"role": "user", "content": "a"});
        json!({"messages": [message], "chat_template_kwargs": {"mood": vec![json!(1); values]}})
    };
    // `a`, `mood`, the list, and what is in it.
    let fits = most - 6;
    for path in ["/v1/chat/completions", "/tokenize"] {
        let reply = server.post(path, &ask(fits + 1)).await;
        assert_eq!(
            (reply.status, reply.code().as_str()),
            (400, "context_length_exceeded")
        );
        let message = reply.json()["error"]["message"].to_string();
        assert!(
            message.contains("`messages` has 433 bytes of text"),
            "{message}"
        );
    }
    assert_eq!(text.read.load(Ordering::SeqCst), 0, "unread");
    server.post("/tokenize", &ask(fits)).await;
    assert_eq!(text.read.load(Ordering::SeqCst), 1);
}

/// Regression: 2 MB of `tools` with an enum of numbers took 310 MB before anybody asked how long they are.
#[tokio::test]
async fn very_many_small_values_are_refused_by_the_field_that_has_them() {
    let text = Arc::new(Watched::default());
    let server = Server::reading(Config::default(), text.clone()).await;
    let ones = vec![json!(1); 140_000];
    let user = json!({"role": "user", "content": "a"});
    let tools = |values: &[Value]| {
        let schema = json!({"type": "object", "properties": {"a": {"enum": values}}});
        json!([{"type": "function", "function": {"name": "f", "parameters": schema}}])
    };
    let chat = |field: &str, value: Value| json!({"messages": [user], field: value});
    let schema = json!({"name": "n", "schema": {"enum": ones}});
    let objects = vec![json!({}); 17_000];
    let bias: serde_json::Map<_, _> = (0..140_000).map(|id| (id.to_string(), json!(1))).collect();
    let called = json!({"name": "f", "arguments": format!("[{}]", vec!["1"; 70_000].join(","))});
    let call = json!({"id": "x", "type": "function", "function": called});
    let called = json!([user, {"role": "assistant", "tool_calls": vec![call; 4]}]);
    let many = vec![json!({"role": "user", "content": []}); 21_000];
    let (c, r, t) = ("/v1/chat/completions", "/v1/responses", "/tokenize");
    for (path, body, param) in [
        (c, chat("tools", tools(&ones)), "tools"),
        (t, chat("tools", tools(&ones)), "tools"),
        (r, json!({"input": "a", "tools": tools(&ones)}), "tools"),
        (
            c,
            chat(
                "response_format",
                json!({"type": "json_schema", "json_schema": schema}),
            ),
            "response_format",
        ),
        (
            c,
            chat("structured_outputs", json!({"choice": ones})),
            "structured_outputs",
        ),
        (c, chat("metadata", json!(objects)), "metadata"),
        (
            c,
            chat("chat_template_kwargs", json!({"a": ones})),
            "chat_template_kwargs",
        ),
        (c, chat("logit_bias", json!(bias)), "logit_bias"),
        (c, chat("stop", json!(ones)), "stop"),
        (c, chat("none_of_ours", json!([[ones]])), "none_of_ours"),
        (c, json!({"messages": many}), "messages"),
        (r, json!({"input": many}), "input"),
        (
            c,
            json!({"messages": called}),
            "messages[1].tool_calls[3].function.arguments",
        ),
    ] {
        let reply = server.post(path, &body).await;
        let said = (reply.status, reply.code());
        assert_eq!(said, (400, "invalid_request".to_owned()), "{path} {param}");
        let error = &reply.json()["error"];
        assert_eq!(error["param"], param, "{path}");
        let message = error["message"].as_str().unwrap();
        let start = format!("`{param}`: expected at most ");
        assert!(message.starts_with(&start), "{message}");
    }
    assert_eq!(text.read.load(Ordering::SeqCst), 0, "unread");
}

/// Of several prompts none is read behind one that does not fit.
#[tokio::test]
async fn the_first_prompt_that_does_not_fit_is_the_last_that_is_read() {
    let text = Arc::new(Watched::default());
    let server = Server::reading(Config::default(), text.clone()).await;
    let long = |bytes: usize| "b".repeat(bytes);
    let body = json!({"prompt": [long(10), long(60), long(400), long(400)]});
    let reply = server.post("/v1/completions", &body).await;
    assert_eq!(
        (reply.status, reply.code().as_str()),
        (400, "context_length_exceeded")
    );
    let message = reply.json()["error"]["message"].to_string();
    assert!(
        message.contains("`prompt[1]`: the prompt has 60 tokens"),
        "{message}"
    );
    assert_eq!(text.read.load(Ordering::SeqCst), 70);
}

#[tokio::test]
async fn until_there_is_a_limit_only_short_texts_are_read() {
    let text = Arc::new(Watched::default());
    let server = Server::reading(Config::default(), text.clone()).await;
    server.engine.change(|facts| facts.limits.clear());
    let reply = server
        .post("/tokenize", &json!({"prompt": "1".repeat(1 << 20)}))
        .await;
    assert_eq!((reply.status, reply.code().as_str()), (503, "unavailable"));
    let reply = server
        .post("/v1/completions", &json!({"prompt": "1".repeat(1 << 20)}))
        .await;
    assert_eq!((reply.status, reply.code().as_str()), (503, "unavailable"));
    assert_eq!(text.read.load(Ordering::SeqCst), 0);
    let reply = server.post("/tokenize", &json!({"prompt": "abc"})).await;
    assert_eq!(reply.json()["count"], 3);
}

/// Two bytes of a request are a token, and a token may be many bytes of an answer.
#[tokio::test]
async fn tokens_do_not_become_more_text_than_a_body() {
    let config = Config {
        max_body_bytes: 1000,
        ..Config::default()
    };
    let server = Server::with(config).await;
    // `<special>`, 9 bytes.
    let ask = |n: usize| json!({"tokens": vec![257; n]});
    let reply = server.post("/detokenize", &ask(111)).await;
    assert_eq!(reply.json()["prompt"], "<special>".repeat(111));
    let reply = server.post("/detokenize", &ask(112)).await;
    assert_eq!(
        (reply.status, reply.code().as_str()),
        (413, "payload_too_large")
    );
    let message = reply.json()["error"]["message"].to_string();
    assert!(
        message.contains("has 1008 bytes; the limit is 1000"),
        "{message}"
    );
}

/// Regression: four long texts of one tenant made another's one word wait for a minute.
#[tokio::test(flavor = "multi_thread")]
async fn long_texts_of_one_tenant_do_not_keep_another_waiting() {
    let text = Arc::new(Watched::default());
    let config = Config {
        keys: Some(
            ApiKeys::parse("red key-of-red\nblue key-of-blue\n")
                .unwrap()
                .into(),
        ),
        ..Config::default()
    };
    let server = Server::reading(config, text.clone()).await;
    let release = Release(text.clone());
    let address = server.address;
    let ask = move |key: &'static str, path: &'static str, prompt: &'static str| {
        let body = json!({"prompt": prompt}).to_string();
        let headers = [("authorization", key)];
        let bytes = request("POST", path, &headers, &body);
        tokio::spawn(async move { Client::connect(address).await.send(&bytes).await })
    };
    let red: Vec<_> = (0..16)
        .map(|n| {
            let path = ["/v1/completions", "/tokenize"][n % 2];
            ask("Bearer key-of-red", path, "slow and long")
        })
        .collect();
    let stuck = async {
        while *text.stuck.lock().unwrap() == 0 {
            tokio::task::yield_now().await;
        }
    };
    within(stuck).await;
    for _ in 0..8 {
        let reply = within(ask("Bearer key-of-blue", "/tokenize", "hi"))
            .await
            .unwrap();
        assert_eq!(reply.json()["tokens"], json!([104, 105]));
    }
    let blue = ask("Bearer key-of-blue", "/v1/completions", "hi");
    let script = server.engine.next().await;
    assert_eq!(
        (script.job.tenant.as_str(), script.job.prompt.len()),
        ("blue", 2)
    );
    script.say("!", Finish::Length).await;
    assert_eq!(
        within(blue).await.unwrap().json()["choices"][0]["text"],
        "!"
    );
    let held = *text.stuck.lock().unwrap();
    assert!(
        held <= 2,
        "of 16, red is read at {held} places of at most 4"
    );
    drop(release);
    for _ in 0..8 {
        server.engine.next().await.say("x", Finish::Length).await;
    }
    for reply in red {
        assert_eq!(within(reply).await.unwrap().status, 200);
    }
}

/// Regression: whoever held the memory for bodies kept everybody's requests out.
#[tokio::test]
async fn bodies_of_one_tenant_leave_room_for_anothers() {
    let config = Config {
        keys: Some(
            ApiKeys::parse("red key-of-red\nblue key-of-blue\n")
                .unwrap()
                .into(),
        ),
        body_budget_bytes: 8 << 10,
        ..Config::default()
    };
    let server = Server::with(config).await;
    let head = |key: &str| {
        format!(
            "POST /tokenize HTTP/1.1\r\nhost: t\r\nauthorization: Bearer {key}\r\n\
             content-type: application/json\r\ncontent-length: 4096\r\nexpect: 100-continue\r\n\r\n"
        )
    };
    // A body that does not come holds its memory. That it is held shows when it is asked for.
    let mut slow = server.connect().await;
    tokio::io::AsyncWriteExt::write_all(&mut slow.socket, head("key-of-red").as_bytes())
        .await
        .unwrap();
    let mut told = [0; 25];
    tokio::io::AsyncReadExt::read_exact(&mut slow.socket, &mut told)
        .await
        .unwrap();
    assert_eq!(&told, b"HTTP/1.1 100 Continue\r\n\r\n");
    let body = json!({"prompt": "hi"}).to_string();
    let send = async |key: &str| {
        let headers = [("authorization", key)];
        let bytes = request("POST", "/tokenize", &headers, &body);
        server.connect().await.send(&bytes).await
    };
    let reply = send("Bearer key-of-red").await;
    assert_eq!(
        (reply.status, reply.code().as_str()),
        (503, "over_capacity")
    );
    assert!(
        reply.text().contains("bodies of this tenant"),
        "{}",
        reply.text()
    );
    assert_eq!(send("Bearer key-of-blue").await.json()["count"], 2);
}
