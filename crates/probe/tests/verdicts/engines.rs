//! Answers as engines and what stands before them give them: usage, limits of rate, truncation,
//! log-probabilities, and further forms of somebody else's words.

use super::table::{Case, all_are_as_expected};
use super::*;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const LOAD: &[Suite] = &[Suite::Load];
const BOUNDARY: &[Suite] = &[Suite::Boundary];

/// An honest answer whose body is changed.
fn with(change: fn(&Asked, &mut Value)) -> impl Fn(&Asked) -> Reply {
    move |asked: &Asked| {
        let mut body = asked.answer(&asked.copied());
        change(asked, &mut body);
        match asked.tokens > LIMIT {
            true => Reply::Error(400, "too long"),
            false => Reply::Json(200, vec![], body),
        }
    }
}

/// The n-th of so many requests gets this.
fn each(n: u64, of: u64, reply: fn(&Asked) -> Option<Reply>) -> impl Fn(&Asked) -> Reply {
    let count = AtomicU64::new(0);
    move |asked: &Asked| {
        let this = count.fetch_add(1, Relaxed) % of == n;
        let other = this.then(|| reply(asked)).flatten();
        other.unwrap_or_else(|| honest(asked))
    }
}

fn unknown() -> Known {
    Known::default()
}

#[tokio::test]
async fn healthy_answers_of_engines_and_proxies() {
    let cases = vec![
        Case::clean(
            "429 with Retry-After, in its body too",
            LOAD,
            each(4, 5, |_| {
                let more = vec![("retry-after", "0".to_owned())];
                let says = json!({"error": {"message": "slow down", "type": "rate_limit_error"}});
                Some(Reply::Json(429, more, says))
            }),
        ),
        Case::clean(
            "529, overloaded",
            LOAD,
            each(4, 5, |_| Some(Reply::Error(529, "overloaded"))),
        ),
        Case::clean(
            "529, limit unknown",
            BOUNDARY,
            each(4, 5, |_| Some(Reply::Error(529, "overloaded"))),
        )
        .knowing(unknown()),
        Case::clean("503 to the first three, while it starts", LOAD, {
            let count = AtomicU64::new(0);
            move |asked: &Asked| match count.fetch_add(1, Relaxed) < 3 {
                true => Reply::Error(503, "loading model"),
                false => honest(asked),
            }
        }),
        Case::clean(
            "413 by a proxy to what is too long",
            BOUNDARY,
            |asked| match asked.tokens > LIMIT {
                true => Reply::Error(413, "Request Entity Too Large"),
                false => honest(asked),
            },
        ),
        Case::clean(
            "422 with the form of another engine",
            BOUNDARY,
            |asked| match asked.tokens > LIMIT {
                true => Reply::Json(
                    422,
                    vec![],
                    json!({"error": "Input validation error: `inputs` must have less than 600 tokens",
                       "error_type": "validation"}),
                ),
                false => honest(asked),
            },
        ),
        Case::clean(
            "usage is null",
            LOAD,
            with(|_, body| body["usage"] = Value::Null),
        ),
        Case::clean(
            "usage is null, lengths are wanted",
            BOUNDARY,
            with(|_, body| body["usage"] = Value::Null),
        )
        .untold()
        .saying("usage"),
        Case::clean(
            "details of usage are null",
            &[Suite::Load, Suite::Prefix],
            with(|_, body| {
                body["usage"]["prompt_tokens_details"] = Value::Null;
            }),
        ),
        Case::clean(
            "says that nothing was cut",
            BOUNDARY,
            with(|_, body| {
                body["truncated"] = json!(false);
                body["truncation"] = json!("disabled");
            }),
        ),
        Case::clean("cuts, and warns as HTTP does", BOUNDARY, |asked| {
            let mut body = asked.answer(&asked.copied());
            body["usage"]["prompt_tokens"] = json!(asked.tokens.min(LIMIT));
            let warning = "299 - \"prompt truncated to 600 tokens\"".to_owned();
            let more = (asked.tokens > LIMIT).then_some(("warning", warning));
            Reply::Json(200, more.into_iter().collect(), body)
        }),
        Case::clean(
            "old log-probabilities, with offsets of the text",
            LOAD,
            with(|asked, body| {
                let text = asked.copied();
                let tokens: Vec<_> = text.split(' ').collect();
                let offsets: Vec<_> = (0..tokens.len()).map(|n| 6 * n).collect();
                let none = vec![-0.25; tokens.len()];
                if asked.body.get("logprobs").is_some() {
                    body["choices"][0]["logprobs"] = json!({
                        "tokens": tokens, "token_logprobs": none, "top_logprobs": null,
                        "text_offset": offsets,
                    });
                }
            }),
        ),
        Case::clean(
            "ids and a fingerprint that many answers have",
            LOAD,
            with(|_, body| {
                body["system_fingerprint"] = json!("fp_44709d6fcb");
                body["choices"][0]["stop_token_ids"] =
                    json!([2, 32000, 32001, 32007, 11, 12, 13, 14, 15, 16, 17]);
            }),
        ),
        Case::clean(
            "a number more of usage",
            LOAD,
            with(|_, body| {
                body["usage"]["completion_tokens_details"] =
                    json!({"reasoning_tokens": 0, "accepted_prediction_tokens": 0});
                body["metrics"] = json!({"ttft_ms": 12.5, "queue_time": null});
            }),
        ),
        Case::clean(
            "an answer goes another way from its middle on, under load",
            LOAD,
            {
                let count = AtomicU64::new(0);
                move |asked: &Asked| {
                    let text = asked.copied();
                    let words: Vec<_> = text.split(' ').collect();
                    let half = words.get(..words.len() / 2 + 2);
                    match half.filter(|_| count.fetch_add(1, Relaxed) >= 18) {
                        Some(half) => Reply::Text(format!("{} zebra", half.join(" "))),
                        None => honest(asked),
                    }
                }
            },
        ),
    ];
    all_are_as_expected(cases).await;
}

#[tokio::test]
async fn sick_answers_of_engines_and_proxies() {
    let cut = |more: fn(&mut Value)| {
        move |asked: &Asked| {
            let mut body = asked.answer(&asked.copied());
            body["usage"]["prompt_tokens"] = json!(asked.tokens.min(LIMIT));
            more(&mut body);
            Reply::Json(200, vec![], body)
        }
    };
    let leak = |name, reply: fn(&Asked) -> Option<Reply>| {
        Case::found(name, Kind::Leak, LOAD, each(2, 3, reply))
    };
    let cases = vec![
        Case::found(
            "cuts, and says that it did not",
            Kind::SilentAcceptance,
            BOUNDARY,
            cut(|body| {
                body["truncated"] = json!(false);
                body["truncated_tokens"] = json!(0);
            }),
        ),
        Case::found(
            "cuts, and names its policy to everybody",
            Kind::SilentAcceptance,
            BOUNDARY,
            cut(|body| {
                body["truncation"] = json!("auto");
            }),
        ),
        leak("another's words in a 429", |asked| {
            let words = asked.words_of_another(10)?.join(" ");
            Some(Reply::Json(
                429,
                vec![],
                json!({"error": {"message": words}}),
            ))
        }),
        leak("another's words in a header of a 429", |asked| {
            let words = asked.words_of_another(10)?.join(" ");
            Some(Reply::Json(
                429,
                vec![("x-queued", words)],
                json!({"error": "busy"}),
            ))
        }),
        leak("another's words in reasoning", |asked| {
            let words = asked.words_of_another(10)?.join(" ");
            let mut body = asked.answer(&asked.copied());
            body["choices"][0]["message"] = json!({"reasoning": words});
            Some(Reply::Json(200, vec![], body))
        }),
        leak("another's words in prompt_logprobs", |asked| {
            let words = asked.words_of_another(10)?;
            let own = |(n, it): (usize, &String)| json!({format!("{}", 100 + n): {"decoded_token": format!(" {it}"), "logprob": -1.0}});
            let mut body = asked.answer(&asked.copied());
            let all: Vec<_> = words.iter().enumerate().map(own).collect();
            body["choices"][0]["prompt_logprobs"] = json!(all);
            Some(Reply::Json(200, vec![], body))
        }),
        leak("another's words as a second choice", |asked| {
            let words = asked.words_of_another(10)?.join(" ");
            let mut body = asked.answer(&asked.copied());
            body["choices"]
                .as_array_mut()
                .unwrap()
                .push(json!({"index": 1, "text": words}));
            Some(Reply::Json(200, vec![], body))
        }),
        leak("another's words in a page of an error", |asked| {
            let words = asked.words_of_another(10)?.join(" ");
            let page = format!("<html><h1>502 Bad Gateway</h1><!-- {words} --></html>");
            let head = format!(
                "HTTP/1.1 502 x\r\ncontent-type: text/html\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                page.len()
            );
            Some(Reply::Raw(format!("{head}{page}").into_bytes()))
        }),
    ];
    all_are_as_expected(cases).await;
}

/// Forms that are the same in every text: a wrong answer at least.
#[tokio::test]
async fn further_forms_of_words() {
    let spelt = |words: &[String], form: &dyn Fn(u8) -> String| -> String {
        words.join(" ").bytes().map(form).collect()
    };
    type Form = Box<dyn Fn(&[String]) -> String + Send + Sync>;
    let forms: Vec<(&str, Form)> = vec![
        (
            "numbered lines",
            Box::new(|words| {
                let line = |(n, it): (usize, &String)| format!("{}. {it}\n", n + 1);
                words.iter().enumerate().map(line).collect()
            }),
        ),
        ("with commas", Box::new(|words| words.join(", "))),
        (
            "as a list of JSON",
            Box::new(|words| serde_json::to_string(words).unwrap()),
        ),
        ("percent-encoded", Box::new(|words| words.join("%20"))),
        (
            "in camel case",
            Box::new(|words| {
                let one = |it: &String| format!("{}{}", it[..1].to_uppercase(), &it[1..]);
                words.iter().map(one).collect()
            }),
        ),
        (
            "with spaces of no width in its words",
            Box::new(|words| {
                let one = |it: &String| format!("{}\u{200b}{}", &it[..1], &it[1..]);
                words.iter().map(one).collect::<Vec<_>>().join(" ")
            }),
        ),
        (
            "in letters of full width",
            Box::new(move |words| {
                let wide = |it: u8| match it {
                    b'a'..=b'z' => char::from_u32(0xff41 + u32::from(it - b'a'))
                        .unwrap()
                        .to_string(),
                    other => (other as char).to_string(),
                };
                spelt(words, &wide)
            }),
        ),
        (
            "as numbers of its letters",
            Box::new(move |words| spelt(words, &|it| format!("{it} "))),
        ),
        (
            "shifted by three",
            Box::new(move |words| {
                spelt(words, &|it| match it {
                    b'a'..=b'z' => ((b'a' + (it - b'a' + 3) % 26) as char).to_string(),
                    other => (other as char).to_string(),
                })
            }),
        ),
        (
            "letters from the last to the first",
            Box::new(|words| words.join(" ").chars().rev().collect()),
        ),
        (
            "letter by letter",
            Box::new(move |words| spelt(words, &|it| format!("{} ", it as char))),
        ),
        (
            "in base32",
            Box::new(|words| {
                const SIGNS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
                let text = words.join(" ");
                let bits: Vec<u8> = text
                    .bytes()
                    .flat_map(|it| (0..8).rev().map(move |n| it >> n & 1))
                    .collect();
                let sign = |it: &[u8]| {
                    SIGNS[it.iter().fold(0, |all, bit| all << 1 | *bit as usize) % 32] as char
                };
                bits.chunks(5).map(sign).collect()
            }),
        ),
    ];
    let cases = forms.into_iter().map(|(name, form)| Case {
        expected: (ProbeVerdict::Found, None),
        ..Case::clean(name, LOAD, {
            let count = AtomicU64::new(0);
            move |asked: &Asked| {
                let this = count.fetch_add(1, Relaxed) % 5 == 4;
                let words = asked
                    .words_of_another(12)
                    .filter(|_| this && asked.tokens <= LIMIT);
                match words {
                    Some(words) => Reply::Text(format!("{} and {}", asked.copied(), form(&words))),
                    None => honest(asked),
                }
            }
        })
    });
    all_are_as_expected(cases.collect()).await;
}
