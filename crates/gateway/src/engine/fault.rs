use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use super::Provenance;

/// Declares the codes once: the enum, its list and its spelling cannot drift apart.
macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// Stable name of what went wrong; part of the API. What each means to a client (status,
        /// retry) is said by one table, `api::errors`, which docs/errors.md repeats.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Code { $($(#[$doc])* $variant,)* }

        impl Code {
            /// Every code, in the order of the table.
            pub const ALL: &'static [Code] = &[$(Code::$variant,)*];

            /// The spelling on the wire.
            pub fn as_str(self) -> &'static str {
                match self { $(Code::$variant => $name,)* }
            }
        }
    };
}

codes! {
    /// The body is not a JSON object.
    InvalidJson = "invalid_json",
    /// A field is missing, of the wrong type, or out of range.
    InvalidRequest = "invalid_request",
    /// A field that is known and would change the answer, but is not implemented.
    UnsupportedParameter = "unsupported_parameter",
    /// A field that is not known.
    UnknownParameter = "unknown_parameter",
    /// The prompt alone is over the limit.
    ContextLengthExceeded = "context_length_exceeded",
    /// The prompt fits, prompt plus `max_tokens` does not.
    MaxTokensOverContext = "max_tokens_over_context",
    /// No key, or none that is known.
    InvalidApiKey = "invalid_api_key",
    /// The model is not served.
    ModelNotFound = "model_not_found",
    /// There is no such path.
    NotFound = "not_found",
    /// The path exists, the method does not.
    MethodNotAllowed = "method_not_allowed",
    /// The body did not arrive in time.
    RequestTimeout = "request_timeout",
    /// The body is larger than allowed.
    PayloadTooLarge = "payload_too_large",
    /// The body is not declared as JSON.
    UnsupportedMediaType = "unsupported_media_type",
    /// The request line and headers are larger than allowed.
    HeadersTooLarge = "headers_too_large",
    /// The head can be read in two ways, of which another server on the way may take the other.
    AmbiguousRequest = "ambiguous_request",
    /// The head expects what is not done here.
    ExpectationFailed = "expectation_failed",
    /// As many requests as allowed are running or queued.
    QueueFull = "queue_full",
    /// This tenant has as much running or queued as it may.
    RateLimited = "rate_limited",
    /// This tenant has asked for as much as it may in a minute.
    RateLimitExceeded = "rate_limit_exceeded",
    /// Workers stayed too busy to take the request within its deadline.
    OverCapacity = "over_capacity",
    /// No worker that could answer is connected.
    Unavailable = "unavailable",
    /// The server is ending and takes nothing new.
    Draining = "draining",
    /// The prefill stage failed.
    PrefillFailed = "prefill_failed",
    /// The decode stage failed.
    DecodeFailed = "decode_failed",
    /// The answer could not be kept to the form that the client asked for.
    FormNotKept = "form_not_kept",
    /// Prefill held another prompt than the gateway had announced.
    IntegrityWrongTokens = "integrity_wrong_tokens",
    /// A page of the KV cache had a tag that was not granted for it.
    IntegrityWrongTag = "integrity_wrong_tag",
    /// A page of the KV cache was not where it belongs.
    IntegrityWrongOrder = "integrity_wrong_order",
    /// A page had more or fewer tokens than its place in the prompt.
    IntegrityWrongFill = "integrity_wrong_fill",
    /// A page had other bytes than its writer had stated.
    IntegrityWrongChecksum = "integrity_wrong_checksum",
    /// A page was stated twice.
    IntegrityPageTwice = "integrity_page_twice",
    /// A batch was stated twice with other content, or used a slot twice.
    IntegrityBadBatch = "integrity_bad_batch",
    /// A page of the prompt never came.
    IntegrityMissingPage = "integrity_missing_page",
    /// The writer's certificate counts other pages than it had stated.
    IntegrityShortCount = "integrity_short_count",
    /// No readable first token was stated, or several were.
    IntegrityFirstToken = "integrity_first_token",
    /// An engine has computed another prompt than it was sent, or did not say which.
    IntegrityWrongCount = "integrity_wrong_count",
    /// An engine has answered with what is another request's.
    IntegrityAnothersAnswer = "integrity_anothers_answer",
    /// Pages landed in an arena that is not their writer's.
    IntegrityWrongArena = "integrity_wrong_arena",
    /// A worker found one of its own rules broken and ended.
    IntegrityFailStop = "integrity_fail_stop",
    /// The deadline passed while waiting for prefill to begin.
    QueueTimeout = "queue_timeout",
    /// The deadline passed while prefill computed.
    PrefillTimeout = "prefill_timeout",
    /// The deadline passed while KV was on its way to decode.
    HandoffTimeout = "handoff_timeout",
    /// The deadline passed while decode generated.
    DecodeTimeout = "decode_timeout",
    /// A fault of the gateway itself.
    Internal = "internal",
}

/// Why a request was refused or failed, in a client's words: no address, no path, no prompt text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The stable name.
    pub code: Code,
    /// One or two sentences: what was expected, what came, what to do.
    pub message: String,
    /// The request field at fault, where one is.
    pub param: Option<Cow<'static, str>>,
    /// Overrides the table's Retry-After; rounded up to whole seconds, at least 1.
    pub retry_after: Option<Duration>,
    /// The workers that it may be about; for operators, never for clients.
    pub at: Option<Box<Provenance>>,
}

impl Fault {
    /// A fault without a field.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            param: None,
            retry_after: None,
            at: None,
        }
    }

    /// The server ends, and nobody waits for the rest of the answer.
    pub(crate) fn ended() -> Self {
        Self::new(
            Code::Draining,
            "the server ended before the answer was complete",
        )
    }

    /// The same, blaming a request field.
    #[must_use]
    pub fn on(mut self, param: impl Into<Cow<'static, str>>) -> Self {
        self.param = Some(param.into());
        self
    }

    /// The same, about these workers.
    #[must_use]
    pub fn at(mut self, workers: Provenance) -> Self {
        self.at = Some(Box::new(workers));
        self
    }

    /// The same, with advice when to come back.
    #[must_use]
    pub fn retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code.as_str(), self.message)
    }
}

impl std::error::Error for Fault {}
