//! Healthy servers that look strange, and sick ones that look fine: what is expected of each, and what
//! the probe says. One line a server.

use super::*;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

pub type Script = Box<dyn Fn(&Asked) -> Reply + Send + Sync>;

/// How words are shown.
type Shown = Box<dyn Fn(&[String]) -> String + Send + Sync>;

/// A server, and what must be said of it.
pub struct Case {
    pub name: &'static str,
    pub suites: &'static [Suite],
    pub known: Known,
    pub script: Script,
    /// The verdict, and the kind of a finding that must be among those that convict.
    pub expected: (ProbeVerdict, Option<Kind>),
    /// What the report must say.
    pub says: &'static str,
}

impl Case {
    pub fn clean(
        name: &'static str,
        suites: &'static [Suite],
        script: impl Fn(&Asked) -> Reply + Send + Sync + 'static,
    ) -> Self {
        Self {
            name,
            suites,
            known: known(),
            script: Box::new(script),
            expected: (ProbeVerdict::Clean, None),
            says: "",
        }
    }

    pub fn found(
        name: &'static str,
        kind: Kind,
        suites: &'static [Suite],
        script: impl Fn(&Asked) -> Reply + Send + Sync + 'static,
    ) -> Self {
        Self {
            expected: (ProbeVerdict::Found, Some(kind)),
            ..Self::clean(name, suites, script)
        }
    }

    pub fn saying(self, says: &'static str) -> Self {
        Self { says, ..self }
    }

    pub fn knowing(self, known: Known) -> Self {
        Self { known, ..self }
    }

    pub fn untold(self) -> Self {
        let expected = (ProbeVerdict::CouldNotTell, None);
        Self { expected, ..self }
    }

    /// A line of the table, and whether it is as it should be.
    async fn judged(self) -> (String, bool) {
        let report = report(Form::Plain, self.suites, &self.known, self.script).await;
        let convicting: Vec<_> = kinds(&report)
            .into_iter()
            .filter(|it| it.convicts())
            .collect();
        let table = report::table(&report);
        let good = report.verdict() == self.expected.0
            && self.expected.1.is_none_or(|it| convicting.contains(&it))
            && table.contains(self.says);
        let of = |verdict: ProbeVerdict, kinds: Vec<Kind>| {
            let kinds: Vec<_> = kinds.iter().map(ToString::to_string).collect();
            format!("{} {}", verdict.name(), kinds.join(", "))
        };
        let expected = of(self.expected.0, self.expected.1.into_iter().collect());
        let got = of(report.verdict(), convicting);
        let mut line = format!("{:<58} | {expected:<28} | {got}", self.name);
        if !good {
            line = format!("{line}\n   WRONG; must say {:?}\n{table}", self.says);
        }
        (line, good)
    }
}

pub async fn all_are_as_expected(cases: Vec<Case>) {
    let mut lines = vec![format!("{:<58} | {:<28} | got", "server", "expected")];
    let mut good = true;
    for case in cases {
        let (line, right) = case.judged().await;
        lines.push(line);
        good &= right;
    }
    println!("{}", lines.join("\n"));
    assert!(good, "{}", lines.join("\n"));
}

const LOAD: &[Suite] = &[Suite::Load];
const BOUNDARY: &[Suite] = &[Suite::Boundary];

/// Now and then, for every n-th request, something else.
pub fn every(
    n: u64,
    other: impl Fn(&Asked) -> Option<Reply> + Send + Sync,
) -> impl Fn(&Asked) -> Reply {
    let count = AtomicU64::new(0);
    move |asked: &Asked| {
        let this = count.fetch_add(1, Relaxed) % n == n - 1;
        this.then(|| other(asked))
            .flatten()
            .unwrap_or_else(|| honest(asked))
    }
}

fn advertising(context: u64) -> Known {
    Known {
        context: Some(context),
        ..Known::default()
    }
}

#[tokio::test]
async fn healthy_servers_that_look_strange() {
    let cut = |asked: &Asked, headers, mut body: Value| {
        body["usage"]["prompt_tokens"] = json!(asked.tokens.min(LIMIT));
        Reply::Json(200, headers, body)
    };
    let cases = vec![
        Case::clean(
            "429 to every fifth request, limit unknown",
            BOUNDARY,
            every(5, |_| Some(Reply::Error(429, "slow down"))),
        )
        .knowing(Known::default()),
        Case::clean(
            "503 to every sixth request, context advertised",
            BOUNDARY,
            every(6, |_| Some(Reply::Error(503, "busy"))),
        )
        .knowing(advertising(LIMIT)),
        Case::clean(
            "503 to every fourth prompt over 300 tokens",
            BOUNDARY,
            every(4, |asked| {
                (asked.tokens > 300).then_some(Reply::Error(503, "busy"))
            }),
        ),
        Case::clean("a last word that flips under load", LOAD, flips(18)),
        Case::clean(
            "a last word that flips in streams under load",
            &[Suite::Stream],
            flips(18),
        ),
        Case::clean(
            "cuts prompts and says so in its body",
            &[Suite::Boundary, Suite::Flood],
            move |asked| {
                let mut body = asked.answer(&asked.copied());
                if asked.tokens > LIMIT {
                    body["warnings"] = json!(["the prompt was truncated to 600 tokens"]);
                }
                cut(asked, vec![], body)
            },
        )
        .saying("the answer says that it was cut"),
        Case::clean(
            "cuts prompts and says so in a header",
            BOUNDARY,
            move |asked| {
                let of = |it: &Asked| {
                    (it.tokens > LIMIT).then(|| ("x-prompt-truncated", "1".to_owned()))
                };
                cut(
                    asked,
                    of(asked).into_iter().collect(),
                    asked.answer(&asked.copied()),
                )
            },
        ),
        Case::clean(
            "ignores every field that it does not know",
            &[Suite::Retry],
            honest,
        ),
        Case::clean("has no prefix cache", &[Suite::Load, Suite::Prefix], honest)
            .saying("no prefix is reused as far as anybody can tell"),
        Case::clean(
            "refuses what its context says, less one",
            BOUNDARY,
            |asked| match asked.tokens >= LIMIT {
                true => Reply::Error(400, "too long"),
                false => honest(asked),
            },
        )
        .knowing(advertising(LIMIT)),
        Case::clean("begins every answer with the same phrase", LOAD, |asked| {
            let phrase = "Sure, here is how the text that you gave me would most likely go on from \
                          there, as far as I can tell:";
            Reply::Text(format!("{phrase} {}", asked.copied()))
        }),
        Case::clean("takes no log-probabilities", LOAD, |asked| {
            match asked.body.get("logprobs") {
                Some(_) => Reply::Error(400, "logprobs are not supported"),
                None => honest(asked),
            }
        })
        .saying("log-probabilities and token ids were not looked at"),
        Case::clean(
            "caches for each tenant, and a template for all",
            &[Suite::Load, Suite::Prefix],
            reporting(
                |asked| format!("{} {}", asked.key, asked.body["cache_salt"]),
                16,
            ),
        ),
        Case::clean(
            "adds a newline to streams",
            &[Suite::Stream],
            |asked| match asked.body["stream"] == true {
                true => Reply::Text(format!("{}\n", asked.copied())),
                false => honest(asked),
            },
        ),
    ];
    all_are_as_expected(cases).await;
}

/// An engine whose results depend on the batch: after so many requests alone, each answer ends otherwise.
fn flips(alone: u64) -> impl Fn(&Asked) -> Reply {
    let n = AtomicU64::new(0);
    move |asked: &Asked| {
        let text = asked.copied();
        let last = text.rfind(' ').unwrap_or(0);
        match n.fetch_add(1, Relaxed) >= alone {
            true => Reply::Text(format!("{} zebra", &text[..last])),
            false => honest(asked),
        }
    }
}

/// A cache keyed by what `key` makes of a request, that reports its hits; `common` tokens are cached
/// for everybody.
pub fn reporting(
    key: impl Fn(&Asked) -> String + Send + Sync,
    common: u64,
) -> impl Fn(&Asked) -> Reply + Send + Sync {
    let seen: Mutex<HashMap<String, ()>> = Mutex::default();
    move |asked: &Asked| {
        let key = format!("{} {}", key(asked), asked.prompt);
        let hit = seen.lock().unwrap().insert(key, ()).is_some();
        let cached = if hit { asked.tokens - 1 } else { common };
        let mut body = asked.answer(&asked.copied());
        body["usage"]["prompt_tokens_details"] = json!({"cached_tokens": cached});
        match asked.tokens > LIMIT {
            true => Reply::Error(400, "too long"),
            false => Reply::Json(200, vec![], body),
        }
    }
}

/// Words of another tenant in one of five answers, made into a text.
fn leaking(n: usize, form: impl Fn(&[String]) -> String + Send + Sync) -> impl Fn(&Asked) -> Reply {
    every(5, move |asked| {
        let words = asked.words_of_another(n)?;
        (asked.tokens <= LIMIT)
            .then(|| Reply::Text(format!("{} and {}", asked.copied(), form(&words))))
    })
}

fn joined(words: &[String]) -> String {
    words.join(" ")
}

#[tokio::test]
async fn few_foreign_words() {
    let one = |n: usize| {
        let once = AtomicU64::new(0);
        every(5, move |asked| {
            let words = asked.words_of_another(n)?;
            let first = once.fetch_add(1, Relaxed) == 0;
            first.then(|| Reply::Text(format!("{} and {}", asked.copied(), words.join(" "))))
        })
    };
    let cases = vec![
        Case::found("seven words in a fifth of the texts", Kind::Leak, LOAD, leaking(7, joined)),
        Case::found("five words in a fifth of the texts", Kind::Leak, LOAD, leaking(5, joined)),
        Case::found("four words in a fifth of the texts", Kind::Leak, LOAD, leaking(4, joined)),
        Case::found("seven words once", Kind::Leak, LOAD, one(7)),
        Case::clean("five words once", LOAD, one(5)).untold().saying(
            "an answer quotes another request, though not enough to convict: 5 consecutive words",
        ),
        Case::clean("three words in a fifth of the texts", LOAD, leaking(3, joined)),
    ];
    all_are_as_expected(cases).await;
}

#[tokio::test]
async fn canaries_in_other_forms() {
    let each = |words: &[String], form: &dyn Fn(&str) -> String| {
        words.iter().map(|it| form(it)).collect::<Vec<_>>()
    };
    let rot13 = |word: &str| -> String {
        word.bytes()
            .map(|it| (b'a' + (it - b'a' + 13) % 26) as char)
            .collect()
    };
    let base64 = |words: &[String]| {
        const SIGNS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let text = words.join(" ");
        let chunks = text.as_bytes().chunks(3).flat_map(|it| {
            let of = |n: usize| u32::from(it.get(n).copied().unwrap_or(0));
            let bits = of(0) << 16 | of(1) << 8 | of(2);
            [18, 12, 6, 0].map(|by| SIGNS[(bits >> by & 63) as usize] as char)
        });
        chunks.collect::<String>()
    };
    let hex = |words: &[String]| {
        words
            .join(" ")
            .bytes()
            .map(|it| format!("{it:02x}"))
            .collect::<String>()
    };
    let leak = |name, form: Shown| Case::found(name, Kind::Leak, LOAD, leaking(12, form));
    let cases = vec![
        leak("in base64", Box::new(base64)),
        leak("in hex", Box::new(hex)),
        leak(
            "in ROT13",
            Box::new(move |words| each(words, &rot13).join(" ")),
        ),
        leak("joined", Box::new(|words| words.concat())),
        leak("hyphenated", Box::new(|words| words.join("-"))),
        leak(
            "marked up",
            Box::new(move |words| {
                each(words, &|it| format!("<b>{}</b>{}", &it[..1], &it[1..])).join(" ")
            }),
        ),
        leak("among other words", Box::new(|words| words.join(" maybe "))),
        leak(
            "in plural",
            Box::new(move |words| each(words, &|it| format!("{it}s")).join(" ")),
        ),
        leak(
            "from the last to the first",
            Box::new(|words| words.iter().rev().cloned().collect::<Vec<_>>().join(" ")),
        ),
        Case::found(
            "every other word of it",
            Kind::Leak,
            LOAD,
            leaking(24, |words| {
                words
                    .iter()
                    .step_by(2)
                    .cloned()
                    .collect::<Vec<_>>()
                    .join(" ")
            }),
        ),
    ];
    all_are_as_expected(cases).await;
}

#[tokio::test]
async fn places_where_nobody_looks() {
    let text = |words: &[String]| words.join(" ");
    // Beside an answer that is right.
    let beside = |put: fn(&mut Value, &[String])| {
        every(3, move |asked: &Asked| {
            let words = asked.words_of_another(10)?;
            let mut body = asked.answer(&asked.copied());
            put(&mut body, &words);
            (asked.tokens <= LIMIT).then_some(Reply::Json(200, vec![], body))
        })
    };
    let only_asked = |asked: &Asked| {
        let words = asked
            .words_of_another(10)
            .filter(|_| asked.body.get("logprobs").is_some());
        let mut body = asked.answer(&asked.copied());
        if let Some(words) = words {
            let own = |it: &String| json!({format!(" {it}"): -3.5, " own": -0.1});
            let all: Vec<_> = words.iter().map(own).collect();
            body["choices"][0]["logprobs"] = json!({"top_logprobs": all});
        }
        Reply::Json(200, vec![], body)
    };
    let header = every(3, move |asked| {
        let words = text(&asked.words_of_another(10)?);
        let body = asked.answer(&asked.copied());
        Some(Reply::Json(200, vec![("x-debug", words)], body))
    });
    let of_error = |asked: &Asked| match (asked.tokens > LIMIT, asked.words_of_another(10)) {
        (true, Some(words)) => {
            let error = json!({"error": {"message": "too long"}});
            Reply::Json(400, vec![("x-last-prompt", words.join(" "))], error)
        }
        _ => honest(asked),
    };
    let ids = |asked: &Asked| {
        let number = |word: &str| {
            word.bytes()
                .fold(7_u64, |n, it| (n * 131 + u64::from(it)) % 49_152)
        };
        let text = asked.copied();
        let foreign = asked.n % 5 == 4;
        let shown = match asked
            .words_of_another(14)
            .filter(|_| foreign && asked.n > 20)
        {
            Some(words) => words.iter().map(|it| number(it)).collect::<Vec<_>>(),
            None => {
                let all = asked
                    .prompt
                    .split_whitespace()
                    .map(|it| it.trim_matches('.'));
                all.map(number).collect()
            }
        };
        let mut body = asked.answer(&text);
        body["choices"][0]["token_ids"] = json!(shown);
        Reply::Json(200, vec![], body)
    };
    let cases = vec![
        Case::found(
            "keys of top_logprobs, when they are asked for",
            Kind::Leak,
            LOAD,
            only_asked,
        ),
        Case::found(
            "keys of top_logprobs that are pieces of words",
            Kind::Leak,
            LOAD,
            beside(|body, words| {
                let half = |it: &String| [it[..2].to_owned(), it[2..].to_owned()];
                let pieces = words.iter().flat_map(half);
                let all: Vec<_> = pieces.map(|it| json!({it: -3.5, "own": -0.1})).collect();
                body["choices"][0]["logprobs"] = json!({"top_logprobs": all});
            }),
        ),
        Case::found(
            "byte arrays",
            Kind::Leak,
            LOAD,
            beside(|body, words| {
                let bytes = words
                    .iter()
                    .map(|it| json!({"bytes": format!(" {it}").as_bytes()}));
                body["choices"][0]["logprobs"] = json!({"content": bytes.collect::<Vec<_>>()});
            }),
        ),
        Case::found(
            "escaped arguments of tool calls",
            Kind::Leak,
            &[Suite::Stream, Suite::Load],
            beside(|body, words| {
                let arguments = json!({"query": words.join("\n")}).to_string();
                body["choices"][0]["delta"] = json!({"tool_calls":
                    [{"index": 0, "function": {"name": "find", "arguments": arguments}}]});
            }),
        ),
        Case::found(
            "usage",
            Kind::Leak,
            LOAD,
            beside(|body, words| {
                body["usage"]["for"] = json!({"prompt": words.join(" ")});
            }),
        ),
        Case::found(
            "names of fields",
            Kind::Leak,
            LOAD,
            beside(|body, words| {
                body["debug"] = json!({words.join(" "): 1});
            }),
        ),
        Case::found("a header of an answer", Kind::Leak, LOAD, header),
        Case::found(
            "a header of an error",
            Kind::Leak,
            &[Suite::Flood],
            of_error,
        ),
        Case::found("token ids", Kind::WrongAnswer, LOAD, ids),
    ];
    all_are_as_expected(cases).await;
}
