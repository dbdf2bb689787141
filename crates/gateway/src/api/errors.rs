//! The one table from a fault's [`Code`] to what a client sees. `docs/errors.md` repeats it and a
//! test compares the two.

use http::StatusCode;
use serde_json::{Value, json};

use crate::engine::{Code, Fault};

/// What a code means to a client.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The code.
    pub code: Code,
    /// HTTP status, where the status line has not been sent yet.
    pub status: StatusCode,
    /// `type` of OpenAI's error envelope.
    pub kind: &'static str,
    /// Whether the same request may succeed later, unchanged.
    pub retryable: bool,
    /// Retry-After in seconds, unless the fault knows better.
    pub retry_after_s: Option<u64>,
    /// One line for the documentation.
    pub meaning: &'static str,
}

const BAD: &str = "invalid_request_error";
const AUTH: &str = "authentication_error";
const RATE: &str = "rate_limit_error";
const DOWN: &str = "service_unavailable_error";
const FAULT: &str = "server_error";

/// The row of a code.
pub fn row(code: Code) -> Row {
    let (status, kind, retry_after_s, meaning) = match code {
        Code::InvalidJson => (400, BAD, None, "The body is not a JSON object."),
        Code::InvalidRequest => (
            400,
            BAD,
            None,
            "A field is missing, of the wrong type, or out of range.",
        ),
        Code::UnsupportedParameter => (
            400,
            BAD,
            None,
            "A known field that would change the answer and is not implemented.",
        ),
        Code::UnknownParameter => (
            400,
            BAD,
            None,
            "An unknown field; it is not ignored, since it could matter.",
        ),
        Code::ContextLengthExceeded => (
            400,
            BAD,
            None,
            "The prompt is over the limit; the message has both numbers and how the limit came \
             about.",
        ),
        Code::MaxTokensOverContext => (
            400,
            BAD,
            None,
            "The prompt fits, but prompt plus max_tokens is over the context.",
        ),
        Code::InvalidApiKey => (401, AUTH, None, "No API key, or none that is known."),
        Code::ModelNotFound => (404, BAD, None, "The model is not served here."),
        Code::NotFound => (404, BAD, None, "There is no such path."),
        Code::MethodNotAllowed => (405, BAD, None, "The path has another method."),
        Code::RequestTimeout => (408, BAD, None, "The body did not arrive in time."),
        Code::PayloadTooLarge => (413, BAD, None, "The body is larger than allowed."),
        Code::UnsupportedMediaType => (415, BAD, None, "The body is not declared as JSON."),
        Code::HeadersTooLarge => (431, BAD, None, "Request line and headers are too large."),
        Code::AmbiguousRequest => (
            400,
            BAD,
            None,
            "The head can be read in two ways; the connection is closed.",
        ),
        Code::ExpectationFailed => (
            417,
            BAD,
            None,
            "The head expects something other than `100-continue`; the connection is closed.",
        ),
        Code::QueueFull => (
            429,
            RATE,
            Some(1),
            "Too many requests are running or queued.",
        ),
        Code::RateLimited => (
            429,
            RATE,
            Some(1),
            "This tenant has too much running or queued.",
        ),
        Code::RateLimitExceeded => (
            429,
            RATE,
            Some(1),
            "This tenant has asked for more requests or tokens than it may in a minute.",
        ),
        Code::OverCapacity => (
            503,
            DOWN,
            Some(2),
            "Workers stayed too busy to take the request in time.",
        ),
        Code::Unavailable => (
            503,
            DOWN,
            Some(2),
            "No worker that could answer is connected.",
        ),
        Code::Draining => (
            503,
            DOWN,
            Some(5),
            "The server is ending and takes nothing new.",
        ),
        Code::PrefillFailed => (502, FAULT, None, "The prefill stage failed."),
        Code::DecodeFailed => (502, FAULT, None, "The decode stage failed."),
        Code::FormNotKept => (
            400,
            BAD,
            None,
            "The form that was asked for led to where no token can follow, or cost too much.",
        ),
        Code::IntegrityWrongTokens => (
            502,
            FAULT,
            None,
            "Prefill held another prompt than the gateway had announced.",
        ),
        Code::IntegrityWrongTag => (
            502,
            FAULT,
            None,
            "A page of the KV cache had a tag that was not granted for it.",
        ),
        Code::IntegrityWrongOrder => (
            502,
            FAULT,
            None,
            "A page of the KV cache was not where it belongs.",
        ),
        Code::IntegrityWrongFill => (
            502,
            FAULT,
            None,
            "A page had more or fewer tokens than its place in the prompt.",
        ),
        Code::IntegrityWrongChecksum => (
            502,
            FAULT,
            None,
            "A page had other bytes than its writer had stated.",
        ),
        Code::IntegrityPageTwice => (502, FAULT, None, "A page was stated twice."),
        Code::IntegrityBadBatch => (
            502,
            FAULT,
            None,
            "A batch was stated twice with other content, or used a slot twice.",
        ),
        Code::IntegrityMissingPage => (502, FAULT, None, "A page of the prompt never came."),
        Code::IntegrityShortCount => (
            502,
            FAULT,
            None,
            "The writer's certificate counts other pages than it had stated.",
        ),
        Code::IntegrityFirstToken => (
            502,
            FAULT,
            None,
            "No readable first token was stated, or several were.",
        ),
        Code::IntegrityWrongCount => (
            502,
            FAULT,
            None,
            "An engine computed another prompt than it was sent, or did not say which.",
        ),
        Code::IntegrityAnothersAnswer => (
            502,
            FAULT,
            None,
            "An engine answered with what is another request's.",
        ),
        Code::IntegrityWrongArena => (
            502,
            FAULT,
            None,
            "Pages landed in an arena that is not their writer's.",
        ),
        Code::IntegrityFailStop => (
            502,
            FAULT,
            None,
            "A worker found one of its own rules broken and ended.",
        ),
        Code::QueueTimeout => (
            504,
            FAULT,
            None,
            "The deadline passed before prefill began.",
        ),
        Code::PrefillTimeout => (504, FAULT, None, "The deadline passed during prefill."),
        Code::HandoffTimeout => (
            504,
            FAULT,
            None,
            "The deadline passed while KV was on its way to decode.",
        ),
        Code::DecodeTimeout => (504, FAULT, None, "The deadline passed during decode."),
        Code::Internal => (
            500,
            FAULT,
            None,
            "A fault of the gateway itself; please report it.",
        ),
    };
    let status = StatusCode::from_u16(status).expect("a status of the table");
    let retryable = status.as_u16() == 408 || status.as_u16() == 429 || status.is_server_error();
    Row {
        code,
        status,
        kind,
        retryable,
        retry_after_s,
        meaning,
    }
}

/// Seconds for a Retry-After header: the fault's own advice rounded up, else the table's.
pub fn retry_after_s(fault: &Fault) -> Option<u64> {
    match fault.retry_after {
        Some(wait) => Some(wait.as_millis().div_ceil(1000).clamp(1, 86_400) as u64),
        None => row(fault.code).retry_after_s,
    }
}

/// OpenAI's error envelope.
pub fn envelope(fault: &Fault) -> Value {
    json!({"error": {
        "message": fault.message,
        "type": row(fault.code).kind,
        "param": fault.param,
        "code": fault.code.as_str(),
    }})
}

/// The table as Markdown, exactly as it stands in `docs/errors.md`.
pub fn markdown() -> String {
    let mut out = String::from(
        "| code | status | type | retry | Retry-After | meaning |\n|---|---|---|---|---|---|\n",
    );
    for row in Code::ALL.iter().map(|&code| row(code)) {
        out += &format!(
            "| `{}` | {} | `{}` | {} | {} | {} |\n",
            row.code.as_str(),
            row.status.as_u16(),
            row.kind,
            if row.retryable { "yes" } else { "no" },
            row.retry_after_s
                .map_or("-".to_owned(), |s| format!("{s} s")),
            row.meaning,
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// One truth: the document and the table are the same text.
    #[test]
    fn the_document_repeats_the_table() {
        let doc = include_str!("../../../../docs/errors.md");
        assert!(
            doc.contains(&markdown()),
            "docs/errors.md must contain:\n{}",
            markdown()
        );
    }

    #[test]
    fn codes_are_spelled_once_and_back_pressure_says_when_to_return() {
        let names: std::collections::BTreeSet<_> = Code::ALL.iter().map(|c| c.as_str()).collect();
        assert_eq!(names.len(), Code::ALL.len());
        for row in Code::ALL.iter().map(|&c| row(c)) {
            let status = row.status.as_u16();
            assert!(status >= 400, "no fault is a success: {row:?}");
            assert_eq!(
                row.retry_after_s.is_some(),
                status == 429 || status == 503,
                "{row:?}"
            );
        }
    }

    #[test]
    fn advice_is_rounded_up_and_never_zero() {
        let wait = |ms| {
            retry_after_s(
                &Fault::new(Code::OverCapacity, "x").retry_after(Duration::from_millis(ms)),
            )
        };
        assert_eq!(
            [wait(0), wait(1), wait(1000), wait(1001)],
            [1, 1, 1, 2].map(Some)
        );
        assert_eq!(retry_after_s(&Fault::new(Code::OverCapacity, "x")), Some(2));
        assert_eq!(retry_after_s(&Fault::new(Code::InvalidJson, "x")), None);
    }
}
