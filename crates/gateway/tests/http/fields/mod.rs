//! What becomes of every field that OpenAI, vLLM or llama.cpp know: one table ([`rows`]) drives the
//! requests and is what docs/api.md shows.

mod doc;
mod rows;

use gateway::engine::{Event, Finish, Job, TokenOut};
use serde_json::{Value, json};

use crate::support::{CONTEXT, MAX_PROMPT, Script, Server, committed};
use rows::{Of, Row};

/// What the engine was given and the client was told.
struct Seen {
    jobs: Vec<Job>,
    /// The answer, or the events of a stream, without ids and times.
    answers: Vec<Value>,
}

impl Seen {
    fn job(&self) -> &Job {
        &self.jobs[0]
    }

    /// The text of the first choice.
    fn text(&self) -> &str {
        let choice = &self.answers[0]["choices"][0];
        let text = choice["text"].as_str();
        text.or(choice["message"]["content"].as_str()).unwrap()
    }

    fn prompt(&self) -> String {
        let prompt = self.job().prompt.iter();
        prompt
            .map(|token| char::from_u32(*token).unwrap())
            .collect()
    }
}

/// Everything about a job that decides what is said.
fn decisive(job: &Job) -> String {
    let job = Job {
        label: String::new(),
        deadline: std::time::Instant::now(),
        ..job.clone()
    };
    let text = format!("{job:?}");
    text.split(", deadline").next().unwrap().to_owned()
}

/// What every choice of the tests' engine says.
const SAID: &str = "one END two";

async fn say(script: &Script) {
    let job = &script.job;
    let _ = script.events.send(committed()).await;
    for choice in 0..job.choices {
        let ids = SAID.bytes().map(u32::from).chain([crate::support::SPECIAL]);
        let tokens = ids
            .take(job.max_new as usize)
            .map(|id| TokenOut {
                id,
                logprob: job.sampling.logprobs.map(|_| -0.5),
                top: vec![(id, -0.5); job.sampling.logprobs.unwrap_or(0).into()],
            })
            .collect();
        // A gateway that has seen a stop string listens no more.
        let _ = script.events.send(Event::Tokens { choice, tokens }).await;
        let reason = Finish::Length;
        let _ = script.events.send(Event::Finished { choice, reason }).await;
    }
    let _ = script.events.send(Event::Done).await;
}

async fn ask(server: &Server, path: &'static str, body: &Value) -> Seen {
    let prompts = match &body["prompt"] {
        Value::Array(list) if !list[0].is_number() => list.len(),
        _ => 1,
    };
    let reply = server.begin(path, body.clone());
    let mut jobs = Vec::new();
    for _ in 0..prompts {
        let script = server.engine.next().await;
        say(&script).await;
        jobs.push(script.job.clone());
    }
    let reply = reply.await.unwrap();
    assert_eq!(reply.status, 200, "{body}: {}", reply.text());
    let text = reply.text();
    let events = text.split("data: ").filter(|event| event.starts_with('{'));
    let mut answers: Vec<Value> = match reply.headers["content-type"].as_str() {
        "application/json" => vec![reply.json()],
        _ => events
            .map(|event| serde_json::from_str(event).unwrap())
            .collect(),
    };
    for answer in &mut answers {
        let answer = answer.as_object_mut().unwrap();
        answer.remove("id");
        answer.remove("created");
    }
    Seen { jobs, answers }
}

fn set(body: &mut Value, row: &Row, value: Value) {
    let mut at = body;
    if row.of == Of::Message {
        at = &mut at["messages"][1];
    }
    for part in row.field.split('.') {
        at = &mut at[part];
    }
    *at = value;
}

fn base(path: &str, row: &Row) -> Value {
    let mut body = json!({"seed": 7});
    match path {
        CHAT => {
            body["messages"] = json!([
                {"role": "user", "content": "ab"}, {"role": "assistant", "content": "cd"},
            ]);
        }
        _ => body["prompt"] = json!("ab"),
    }
    for (field, value) in row.with.as_object().into_iter().flatten() {
        body[field] = value.clone();
    }
    body
}

const CHAT: &str = "/v1/chat/completions";
const BARE: &str = "/v1/completions";

async fn judge(server: &Server, path: &'static str, row: &Row) {
    let plain = base(path, row);
    let before = ask(server, path, &plain).await;
    let with = |value: &Value| {
        let mut body = plain.clone();
        set(&mut body, row, value.clone());
        body
    };
    let null = (!row.needed).then_some(&Value::Null);
    for value in row.harmless.iter().chain(null) {
        let body = with(value);
        let after = ask(server, path, &body).await;
        let decides = |seen: &Seen| seen.jobs.iter().map(decisive).collect::<Vec<_>>();
        assert_eq!(decides(&before), decides(&after), "{body}");
        assert_eq!(before.answers, after.answers, "{body}");
    }
    for (value, obeys) in &row.obeyed {
        let body = with(value);
        let after = ask(server, path, &body).await;
        assert!(
            obeys(&before, &after),
            "{path} {body}: {:?} {:?}",
            after.jobs,
            after.answers
        );
    }
    for value in &row.refused {
        let body = with(value);
        let reply = server.post(path, &body).await;
        let error = &reply.json()["error"];
        assert_eq!(reply.status, 400, "{body}: {error}");
        let named = error["param"].as_str().unwrap_or_default();
        assert!(
            named.ends_with(row.field.split('[').next().unwrap()),
            "{body}: {error}"
        );
        let message = error["message"].as_str().unwrap();
        let says = |words: &[&str]| words.iter().any(|word| message.contains(word));
        let says_what_to_do = match error["code"].as_str().unwrap() {
            "invalid_request" => says(&["expected ", "outside the"]) || says(VERBS),
            "unsupported_parameter" => says(VERBS),
            code => panic!("{body}: {code}"),
        };
        assert!(says_what_to_do, "{message}");
    }
}

/// What a refusal may say to do.
const VERBS: &[&str] = &[
    "use ", "leave ", "send ", "set ", "write ", "ask ", "cut ", "close ", "put ",
];

#[tokio::test]
async fn every_row_is_as_it_says() {
    let server = Server::start().await;
    for row in rows::all() {
        // Tools take more of a prompt than there is room for by default.
        let room = match row.field.starts_with("tool") || row.field == "parallel_tool_calls" {
            true => (4096, 2048),
            false => (CONTEXT, MAX_PROMPT),
        };
        server.engine.change(|facts| {
            (
                facts.limits[0].max_model_len,
                facts.limits[0].max_prompt_tokens,
            ) = room;
        });
        let paths: &[&str] = match row.of {
            Of::Both => &[CHAT, BARE],
            Of::Chat | Of::Message => &[CHAT],
            Of::Bare => &[BARE],
        };
        for path in paths {
            judge(&server, path, &row).await;
        }
    }
    assert_eq!(server.engine.waiting().await, 0);
}
