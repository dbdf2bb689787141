//! The JSON of an answer to `POST /v1/responses`, whole and as its events. Nothing here decides anything.

use serde_json::{Value, json};

use super::calls::Call;
use super::choice::Piece;
use super::errors;
use super::render::call_id;
use super::run::Usage;
use crate::engine::{Fault, Finish};

/// What an answer repeats of its request.
#[derive(Clone, Debug)]
pub(super) struct Echo {
    pub id: String,
    pub model: String,
    pub created: u64,
    /// Fields as they were asked for, and as they were understood where they were not.
    pub asked: Value,
    pub short_ids: bool,
}

impl Echo {
    /// The answer as far as it has got; `finish` is set once it is over.
    fn response(&self, output: Vec<Value>, finish: Option<Finish>, usage: Option<Usage>) -> Value {
        let (status, why) = match finish {
            None => ("in_progress", Value::Null),
            Some(Finish::Stop) => ("completed", Value::Null),
            Some(Finish::Length) => ("incomplete", json!({"reason": "max_output_tokens"})),
        };
        let mut response = json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": null,
            "incomplete_details": why,
            "model": self.model,
            "output": output,
            "previous_response_id": null,
            "store": false,
            "truncation": "disabled",
            "usage": usage.map(|usage| json!({
                "input_tokens": usage.prompt,
                "input_tokens_details": {"cached_tokens": usage.cached},
                "output_tokens": usage.completion,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": u64::from(usage.prompt) + u64::from(usage.completion),
            })),
        });
        for (name, value) in self.asked.as_object().into_iter().flatten() {
            response[name] = value.clone();
        }
        response
    }

    /// The `n`th message of the answer.
    fn message(&self, n: usize, text: &str, status: &str) -> Value {
        let content = match status {
            "in_progress" => json!([]),
            _ => json!([part(text)]),
        };
        json!({
            "id": self.message_id(n), "type": "message", "status": status,
            "role": "assistant", "content": content,
        })
    }

    fn message_id(&self, n: usize) -> String {
        match n {
            0 => format!("msg_{}", self.id),
            n => format!("msg_{}_{n}", self.id),
        }
    }

    fn call(&self, call: &Call, arguments: &str, status: &str) -> Value {
        json!({
            "id": format!("fc_{}_{}", self.id, call.index), "type": "function_call",
            "status": status, "call_id": call_id(&self.id, 0, call.index, self.short_ids),
            "name": call.name, "arguments": arguments,
        })
    }

    fn output(&self, text: &str, calls: &[Call], finish: Option<Finish>) -> Vec<Value> {
        let status = match finish {
            Some(Finish::Length) => "incomplete",
            _ => "completed",
        };
        let said = !text.is_empty() || calls.is_empty();
        let said = said.then(|| self.message(0, text, status));
        let calls = calls
            .iter()
            .map(|call| self.call(call, &call.arguments, "completed"));
        said.into_iter().chain(calls).collect()
    }

    /// A whole answer.
    pub(super) fn whole(&self, piece: &Piece, usage: Usage) -> Value {
        let output = self.output(&piece.text, &piece.calls, piece.finish);
        self.response(output, piece.finish, Some(usage))
    }
}

fn part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}

/// An answer as its events.
pub(super) struct Events {
    echo: Echo,
    number: u64,
    /// Items that are complete, in the order in which they were said.
    items: Vec<Value>,
    /// Messages before the one that is open, or would be next.
    messages: usize,
    /// What the open message says so far.
    open: Option<String>,
    finish: Option<Finish>,
}

impl Events {
    pub(super) fn new(echo: Echo) -> Self {
        Self {
            echo,
            number: 0,
            items: Vec::new(),
            messages: 0,
            open: None,
            finish: None,
        }
    }

    /// What a piece says.
    pub(super) fn piece(&mut self, piece: &Piece) -> String {
        let mut frame = String::new();
        if self.number == 0 {
            let response = self.echo.response(Vec::new(), None, None);
            for kind in ["response.created", "response.in_progress"] {
                self.event(&mut frame, kind, json!({"response": response.clone()}));
            }
        }
        if !piece.text.is_empty() {
            self.say(&mut frame, &piece.text);
        }
        for call in &piece.calls {
            self.hush(&mut frame, "completed");
            self.called(&mut frame, call);
        }
        if let Some(finish) = piece.finish {
            self.finish = Some(finish);
            if self.items.is_empty() && self.open.is_none() {
                self.say(&mut frame, "");
            }
            let status = match finish {
                Finish::Stop => "completed",
                Finish::Length => "incomplete",
            };
            self.hush(&mut frame, status);
        }
        frame
    }

    fn at(&self) -> Value {
        json!({
            "item_id": self.echo.message_id(self.messages), "output_index": self.items.len(),
            "content_index": 0,
        })
    }

    fn say(&mut self, frame: &mut String, text: &str) {
        if self.open.is_none() {
            let item = self.echo.message(self.messages, "", "in_progress");
            let added = json!({"output_index": self.items.len(), "item": item});
            self.event(frame, "response.output_item.added", added);
            let added = with(self.at(), "part", part(""));
            self.event(frame, "response.content_part.added", added);
        }
        *self.open.get_or_insert_default() += text;
        if !text.is_empty() {
            let delta = with(with(self.at(), "delta", json!(text)), "logprobs", json!([]));
            self.event(frame, "response.output_text.delta", delta);
        }
    }

    /// Closes the message, if it is open.
    fn hush(&mut self, frame: &mut String, status: &str) {
        let Some(text) = self.open.take() else {
            return;
        };
        let done = with(with(self.at(), "text", json!(text)), "logprobs", json!([]));
        self.event(frame, "response.output_text.done", done);
        let done = with(self.at(), "part", part(&text));
        self.event(frame, "response.content_part.done", done);
        let item = self.echo.message(self.messages, &text, status);
        self.messages += 1;
        self.done(frame, item);
    }

    fn called(&mut self, frame: &mut String, call: &Call) {
        let place = self.items.len();
        let item = self.echo.call(call, "", "in_progress");
        let at = json!({"item_id": item["id"], "output_index": place});
        let added = json!({"output_index": place, "item": item});
        self.event(frame, "response.output_item.added", added);
        let delta = with(at.clone(), "delta", json!(call.arguments));
        self.event(frame, "response.function_call_arguments.delta", delta);
        let done = with(
            with(at, "arguments", json!(call.arguments)),
            "name",
            json!(call.name),
        );
        self.event(frame, "response.function_call_arguments.done", done);
        let item = self.echo.call(call, &call.arguments, "completed");
        self.done(frame, item);
    }

    /// An item is complete.
    fn done(&mut self, frame: &mut String, item: Value) {
        let done = json!({"output_index": self.items.len(), "item": item.clone()});
        self.items.push(item);
        self.event(frame, "response.output_item.done", done);
    }

    /// The last event of an answer that is one.
    pub(super) fn end(&mut self, usage: Usage) -> String {
        let mut frame = String::new();
        let output = std::mem::take(&mut self.items);
        let response = self.echo.response(output, self.finish, Some(usage));
        let kind = match self.finish {
            Some(Finish::Length) => "response.incomplete",
            _ => "response.completed",
        };
        self.event(&mut frame, kind, json!({"response": response}));
        frame
    }

    /// The last event of one that is none.
    pub(super) fn failed(&mut self, fault: &Fault) -> String {
        let mut frame = String::new();
        let error = errors::envelope(fault)["error"].clone();
        let said = json!({
            "code": error["code"], "message": error["message"], "param": error["param"],
        });
        self.event(&mut frame, "error", said);
        frame
    }

    fn event(&mut self, frame: &mut String, kind: &str, body: Value) {
        use std::fmt::Write;
        let body = with(
            with(body, "type", json!(kind)),
            "sequence_number",
            json!(self.number),
        );
        self.number += 1;
        let _ = write!(frame, "event: {kind}\ndata: {body}\n\n"); // a String takes everything
    }
}

fn with(mut body: Value, name: &str, value: Value) -> Value {
    body[name] = value;
    body
}
