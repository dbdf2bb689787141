//! Somebody else's words in further forms and places, and errors that come in an answer with 200.

use super::table::{Case, all_are_as_expected, every};
use super::*;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const LOAD: &[Suite] = &[Suite::Load];
const BOUNDARY: &[Suite] = &[Suite::Boundary];

/// A server that answers now and then with this of another tenant's words.
fn leak(
    name: &'static str,
    n: usize,
    reply: impl Fn(&Asked, Vec<String>) -> Reply + Send + Sync + 'static,
) -> Case {
    let script = every(3, move |asked: &Asked| {
        Some(reply(asked, asked.words_of_another(n)?))
    });
    Case {
        expected: (ProbeVerdict::Found, None),
        ..Case::clean(name, LOAD, script)
    }
}

/// Signs of so many bits each.
fn signs(text: &str, bits: usize, alphabet: &[u8]) -> String {
    let all: Vec<u8> = text
        .bytes()
        .flat_map(|it| (0..8).rev().map(move |n| it >> n & 1))
        .collect();
    let sign = |it: &[u8]| {
        let value = it.iter().fold(0, |all, bit| all << 1 | usize::from(*bit));
        alphabet[value << (bits - it.len())] as char
    };
    all.chunks(bits).map(sign).collect()
}

/// Five signs for four bytes.
fn base85(text: &str, sign: impl Fn(u8) -> u8) -> String {
    let block = |it: &[u8]| {
        let bytes = it.iter().chain([&0; 3]).take(4);
        let bits = bytes.fold(0, |all, it| all << 8 | u32::from(*it));
        let value = |n: u32| (bits / 85_u32.pow(4 - n) % 85) as u8;
        let signs = (0..=it.len() as u32).map(|n| sign(value(n)) as char);
        signs.collect::<String>()
    };
    text.as_bytes().chunks(4).map(block).collect()
}

const BASE85_GIT: &[u8] =
    b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~";
const BASE64_URL: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
const MORSE: [&str; 26] = [
    ".-", "-...", "-.-.", "-..", ".", "..-.", "--.", "....", "..", ".---", "-.-", ".-..", "--",
    "-.", "---", ".--.", "--.-", ".-.", "...", "-", "..-", "...-", ".--", "-..-", "-.--", "--..",
];

#[tokio::test]
async fn words_in_still_other_forms() {
    type Form = fn(&str) -> String;
    let forms: Vec<(&'static str, Form)> = vec![
        ("in base64 for addresses, between lines", |text| {
            let line = signs(text, 6, BASE64_URL);
            format!("remembering\n{line}\nthat was everything")
        }),
        ("in base64, twice", |text| {
            signs(&signs(text, 6, BASE64_URL), 6, BASE64_URL)
        }),
        ("in hexadecimal numbers of base64", |text| {
            let inner = signs(text, 6, BASE64_URL);
            inner.bytes().map(|it| format!("{it:02x}")).collect()
        }),
        ("in octal numbers", |text| {
            text.bytes().map(|it| format!("\\{it:03o}")).collect()
        }),
        ("in binary numbers", |text| {
            text.bytes().map(|it| format!("{it:08b} ")).collect()
        }),
        ("as entities of HTML, hexadecimal", |text| {
            text.bytes().map(|it| format!("&#x{it:x};")).collect()
        }),
        ("quoted printable", |text| {
            text.bytes().map(|it| format!("={it:02X}")).collect()
        }),
        ("z for a", |text| {
            let turned = |it: char| match it {
                'a'..='z' => (b'a' + b'z' - it as u8) as char,
                other => other,
            };
            text.chars().map(turned).collect()
        }),
        ("in ROT47", |text| {
            let turned = |it: char| match it {
                '!'..='~' => ((it as u8 - 33 + 47) % 94 + 33) as char,
                other => other,
            };
            text.chars().map(turned).collect()
        }),
        ("in uuencode", |text| {
            let alphabet: Vec<u8> = (b' '..b'`').collect();
            let lines = text.as_bytes().chunks(45).map(|it| {
                let length = (b' ' + it.len() as u8) as char;
                let mut line = signs(std::str::from_utf8(it).unwrap(), 6, &alphabet);
                while !line.len().is_multiple_of(4) {
                    line.push('`');
                }
                format!("{length}{line}").replace(' ', "`")
            });
            format!(
                "begin 644 x\n{}\n`\nend",
                lines.collect::<Vec<_>>().join("\n")
            )
        }),
        ("in base85 as PDF has it", |text| {
            format!("<~{}~>", base85(text, |it| b'!' + it))
        }),
        ("in base85 as git has it", |text| {
            base85(text, |it| BASE85_GIT[it as usize])
        }),
        ("in Morse's signs", |text| {
            let letter = |it: char| match it {
                'a'..='z' => MORSE[(it as u8 - b'a') as usize],
                _ => "/",
            };
            text.chars().map(letter).collect::<Vec<_>>().join(" ")
        }),
        ("in characters that are not seen", |text| {
            let tag = |it: char| char::from_u32(0xe0000 + u32::from(it)).unwrap();
            text.chars().map(tag).collect()
        }),
        ("in Braille", |text| {
            let cells: Vec<char> = "⠁⠃⠉⠙⠑⠋⠛⠓⠊⠚⠅⠇⠍⠝⠕⠏⠟⠗⠎⠞⠥⠧⠺⠭⠽⠵".chars().collect();
            let cell = |it: char| match it {
                'a'..='z' => cells[(it as u8 - b'a') as usize],
                other => other,
            };
            text.chars().map(cell).collect()
        }),
    ];
    let cases = forms.into_iter().map(|(name, form)| {
        leak(name, 14, move |asked, words| {
            Reply::Text(format!("{} and {}", asked.copied(), form(&words.join(" "))))
        })
    });
    all_are_as_expected(cases.collect()).await;
}

/// An answer that is right, in which this stands too.
fn beside(name: &'static str, put: fn(&mut Value, Vec<String>)) -> Case {
    leak(name, 12, move |asked, words| {
        let mut body = asked.answer(&asked.copied());
        put(&mut body, words);
        Reply::Json(200, vec![], body)
    })
}

/// Bytes of a stream whose data are right; before, between and behind them stands this.
fn events(asked: &Asked, before: &str, line: fn(&str) -> String, words: &[String]) -> Reply {
    let lines: String = words.iter().map(|it| line(it)).collect();
    let data = asked.answer(&asked.copied());
    let body = format!("{lines}data: {data}\n\ndata: [DONE]\n\n");
    let head = "content-type: text/event-stream\r\nconnection: close\r\n";
    Reply::Raw(format!("HTTP/1.1 {before}\r\n{head}\r\n{body}").into_bytes())
}

#[tokio::test]
async fn places_where_hardly_anybody_looks() {
    let one_each = |words: &[String]| -> Vec<Value> {
        let call = |(n, it): (usize, &String)| json!({"index": n, "function": {"arguments": it}});
        words.iter().enumerate().map(call).collect()
    };
    let cases = vec![
        leak(
            "comments of a stream, a word in each",
            12,
            |asked, words| events(asked, "200 OK", |it| format!(": {it}\n\n"), &words),
        ),
        leak("names of events, a word in each", 12, |asked, words| {
            events(asked, "200 OK", |it| format!("event: {it}\n"), &words)
        }),
        leak("numbers of events, a word in each", 12, |asked, words| {
            events(asked, "200 OK", |it| format!("id: {it}\n"), &words)
        }),
        leak("the words behind the status", 12, |asked, words| {
            events(
                asked,
                &format!("200 {}", words.join(" ")),
                |_| String::new(),
                &words,
            )
        }),
        leak("trailers", 12, |asked, words| {
            let body = asked.answer(&asked.copied()).to_string();
            let head = "HTTP/1.1 200 x\r\ntransfer-encoding: chunked\r\ntrailer: x-for\r\n\r\n";
            let chunk = format!(
                "{:x}\r\n{body}\r\n0\r\nx-for: {}\r\n\r\n",
                body.len(),
                words.join(" ")
            );
            Reply::Raw(format!("{head}{chunk}").into_bytes())
        }),
        leak("names of headers", 12, |asked, words| {
            let body = asked.answer(&asked.copied()).to_string();
            let lines: String = words.iter().map(|it| format!("{it}: 1\r\n")).collect();
            let length = body.len();
            let head = format!("HTTP/1.1 200 x\r\n{lines}content-length: {length}\r\n\r\n");
            Reply::Raw(format!("{head}{body}").into_bytes())
        }),
        beside("names of fields, a word in each", |body, words| {
            let fields = words.iter().map(|it| (it.clone(), json!(1))).collect();
            body["debug"] = Value::Object(fields);
        }),
        beside("fields of an object, a word in each", |body, words| {
            let fields = words.iter().enumerate();
            let fields = fields.map(|it| (format!("w{}", it.0), json!(it.1)));
            body["metadata"] = Value::Object(fields.collect());
        }),
        leak("calls of tools, a word in each", 12, move |asked, words| {
            let mut body = asked.answer(&asked.copied());
            body["choices"][0]["message"] = json!({"tool_calls": one_each(&words)});
            Reply::Json(200, vec![], body)
        }),
        beside("deep within", |body, words| {
            let text = json!(words.join(" "));
            body["debug"] = (0..60).fold(text, |all, _| json!([all]));
        }),
        beside("the fingerprint of the system", |body, words| {
            body["system_fingerprint"] = json!(words.join("-"));
        }),
        beside("annotations", |body, words| {
            let of = words
                .iter()
                .map(|it| json!({"url_citation": {"title": it}}));
            body["choices"][0]["message"] = json!({"annotations": of.collect::<Vec<_>>()});
        }),
    ];
    all_are_as_expected(cases).await;
}

/// An error in an answer with 200, as streams have them.
fn in_200(code: u16, message: &str) -> Reply {
    Reply::Json(
        200,
        vec![],
        json!({"error": {"message": message, "code": code}}),
    )
}

#[tokio::test]
async fn errors_and_events_that_look_strange() {
    let now_and_then = |code: u16| every(5, move |_| Some(in_200(code, "no")));
    let cases = vec![
        Case::clean(
            "503 in an answer with 200, limit unknown",
            BOUNDARY,
            now_and_then(503),
        )
        .knowing(Known::default()),
        Case::clean(
            "429 in every fifth answer with 200",
            LOAD,
            now_and_then(429),
        ),
        Case::clean(
            "500 in one of five answers with 200",
            LOAD,
            now_and_then(500),
        )
        .untold()
        .saying("answers were errors of the server (5xx)"),
        Case::clean(
            "400 in an answer with 200 to what is too long",
            BOUNDARY,
            |asked| match asked.tokens > LIMIT {
                true => in_200(400, "too long"),
                false => honest(asked),
            },
        ),
        Case::clean("408 to every fifth, limit unknown", BOUNDARY, {
            every(5, |_| Some(Reply::Error(408, "timeout")))
        })
        .knowing(Known::default()),
        Case::clean("425 to every fifth, limit unknown", BOUNDARY, {
            every(5, |_| Some(Reply::Error(425, "too early")))
        })
        .knowing(Known::default()),
        Case::clean("504 to one of five", LOAD, {
            every(5, |_| Some(Reply::Error(504, "timeout")))
        })
        .untold(),
        Case::clean(
            "events over two lines each, with a mark before them",
            LOAD,
            |asked| {
                if asked.body["stream"] != true {
                    return honest(asked);
                }
                let data = asked
                    .answer(&asked.copied())
                    .to_string()
                    .replace(",\"usage", ",\r\ndata: \"usage");
                let body =
                    format!("\u{feff}: hello\r\n\r\ndata: {data}\r\n\r\ndata: [DONE]\r\n\r\n");
                let head = "HTTP/1.1 200 x\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
                Reply::Raw(format!("{head}{body}").into_bytes())
            },
        ),
        Case::clean("an error that is empty, in every answer", LOAD, |asked| {
            let mut body = asked.answer(&asked.copied());
            body["error"] = json!("");
            Reply::Json(200, vec![], body)
        }),
    ];
    all_are_as_expected(cases).await;
}

/// A cache that says what it hit by another name, and keeps nobody apart.
#[tokio::test]
async fn a_shared_prefix_that_is_reported_by_another_name_is_found() {
    let mut cases = Vec::new();
    for (name, field) in [
        ("by DeepSeek's name", "prompt_cache_hit_tokens"),
        ("by Anthropic's name", "cache_read_input_tokens"),
    ] {
        let seen: Mutex<HashSet<String>> = Mutex::default();
        let script = move |asked: &Asked| {
            let hit = !seen.lock().unwrap().insert(asked.prompt.clone());
            let mut body = asked.answer(&asked.copied());
            body["usage"][field] = json!(if hit { asked.tokens - 1 } else { 0 });
            Reply::Json(200, vec![], body)
        };
        cases.push(Case::found(
            name,
            Kind::SharedPrefix,
            &[Suite::Prefix],
            script,
        ));
    }
    all_are_as_expected(cases).await;
}

/// The last thing that is asked of it ends it, and nobody would notice: `control` sends no prompt.
#[tokio::test]
async fn a_server_that_dies_of_the_last_request_is_found() {
    let dead = AtomicBool::new(false);
    let script = move |asked: &Asked| {
        let dead = dead.fetch_or(asked.method == "PUT", Relaxed);
        match dead {
            true => in_200(500, "EngineDeadError"),
            false => honest(asked),
        }
    };
    let case = Case::found(
        "dies of a PUT",
        Kind::Crash,
        &[Suite::Load, Suite::Control],
        script,
    )
    .saying("its engine is dead");
    all_are_as_expected(vec![case]).await;
}
