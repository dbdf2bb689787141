//! What can be read in two ways is refused, and nothing behind it is read.

use serde_json::json;
use tokio::io::AsyncWriteExt;

use crate::support::Server;

const BODY: &str = "{\"prompt\": \"hi\"}";

/// The status and code of a request with this head, and whether the connection was closed after it.
async fn send(server: &Server, head: &str, body: &str) -> (u16, String, bool) {
    let mut client = server.connect().await;
    let smuggled = "GET /version HTTP/1.1\r\nhost: t\r\n\r\n";
    let bytes = format!("{head}\r\n{body}{smuggled}");
    client.socket.write_all(bytes.as_bytes()).await.unwrap();
    let reply = client.reply().await.expect("an answer");
    let code = match &reply.body[..] {
        b"" => String::new(), // refused before there was a request
        _ if reply.status == 200 => reply.json()["count"].to_string(),
        _ => reply.code(),
    };
    (reply.status, code, client.reply().await.is_none())
}

#[tokio::test]
async fn heads_that_two_readers_read_differently_are_refused_and_the_connection_is_closed() {
    let server = Server::start().await;
    let length = format!("content-length: {}\r\n", BODY.len());
    let post = "POST /tokenize HTTP/1.1\r\n";
    let chunked = format!("{:x}\r\n{BODY}\r\n0\r\n\r\n", BODY.len());
    let host = "host: t\r\n";
    for (what, lines, body) in [
        ("two hosts", format!("{host}{host}{length}"), BODY),
        (
            "two other hosts",
            format!("{host}Host: u\r\n{length}"),
            BODY,
        ),
        ("no host", length.clone(), BODY),
        (
            "gzip, chunked",
            format!("{host}transfer-encoding: gzip, chunked\r\n"),
            &chunked,
        ),
        (
            "chunked twice",
            format!("{host}transfer-encoding: chunked, chunked\r\n"),
            &chunked,
        ),
        (
            "two lines of chunked",
            format!("{host}transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n"),
            &chunked,
        ),
        (
            "identity, chunked",
            format!("{host}transfer-encoding: identity, chunked\r\n"),
            &chunked,
        ),
        (
            "a length and chunked",
            format!("{host}{length}transfer-encoding: chunked\r\n"),
            &chunked,
        ),
        (
            "chunked and a length",
            format!("{host}transfer-encoding: chunked\r\nContent-Length: 3\r\n"),
            &chunked,
        ),
        (
            "chunked and a length of nothing",
            format!("{host}transfer-encoding: chunked\r\ncontent-length: 0\r\n"),
            &chunked,
        ),
        ("two equal lengths", format!("{host}{length}{length}"), BODY),
        (
            "a line that ends in LF",
            format!("{host}x: a\n{length}"),
            BODY,
        ),
        (
            "all lines end in LF",
            format!("{host}{length}").replace('\r', ""),
            BODY,
        ),
        (
            "another host in the target",
            format!("{host}{length}"),
            BODY,
        ),
        (
            "two media types",
            format!("{host}{length}content-type: application/json\r\ncontent-type: text/plain\r\n"),
            BODY,
        ),
        (
            "TE with chunked",
            format!("{host}TE: gzip, chunked\r\n{length}"),
            BODY,
        ),
        (
            "TE with a weight",
            format!("{host}te: trailers, Chunked;q=0.5\r\n{length}"),
            BODY,
        ),
    ] {
        let post = match what {
            "another host in the target" => "POST http://u/tokenize HTTP/1.1\r\n",
            _ => post,
        };
        let (status, code, closed) = send(&server, &format!("{post}{lines}"), body).await;
        assert_eq!(
            (status, code.as_str()),
            (400, "ambiguous_request"),
            "{what}"
        );
        assert!(closed, "{what}: what follows must not be read");
    }
    for (what, lines, body) in [
        (
            "chunked last is not",
            format!("{host}transfer-encoding: chunked, gzip\r\n"),
            &*chunked,
        ),
        (
            "two lengths",
            format!("{host}{length}content-length: 3\r\n"),
            BODY,
        ),
        (
            "a list of lengths",
            format!("{host}content-length: 3, 4\r\n"),
            BODY,
        ),
        (
            "a list of equal lengths",
            format!("{host}content-length: 16, 16\r\n"),
            BODY,
        ),
        (
            "a tab before the colon",
            format!("{host}transfer-encoding\t: chunked\r\n"),
            BODY,
        ),
        (
            "a first line that is folded",
            format!(" x: a\r\n{host}{length}"),
            BODY,
        ),
        (
            "a length with a sign",
            format!("{host}content-length: +16\r\n"),
            BODY,
        ),
        (
            "a negative length",
            format!("{host}content-length: -1\r\n"),
            BODY,
        ),
        (
            "a space before the colon",
            format!("{host}content-length : 16\r\n"),
            BODY,
        ),
        (
            "a folded line",
            format!("{host}x: a\r\n b\r\n{length}"),
            BODY,
        ),
        ("a bare CR", format!("{host}x: a\rb\r\n{length}"), BODY),
        ("a NUL", format!("{host}x: a\0b\r\n{length}"), BODY),
    ] {
        let (status, _, closed) = send(&server, &format!("{post}{lines}"), body).await;
        assert_eq!(status, 400, "{what}");
        assert!(closed, "{what}");
    }
    // What is fine stays so.
    for lines in [
        format!("{host}te: trailers\r\n{length}"),
        format!("{host}{length}"),
    ] {
        let (status, count, closed) = send(&server, &format!("{post}{lines}"), BODY).await;
        assert_eq!(
            (status, count.as_str(), closed),
            (200, "2", false),
            "{lines}"
        );
    }
    let lines = format!("{post}{host}Transfer-Encoding: Chunked\r\n");
    let (status, count, closed) = send(&server, &lines, &chunked).await;
    assert_eq!((status, count.as_str(), closed), (200, "2", false));
}

/// What stands before a head on its connection hides nothing of it: each is looked at.
#[tokio::test]
async fn an_ambiguous_head_is_refused_wherever_it_stands_on_a_connection() {
    let server = Server::start().await;
    let length = BODY.len();
    let post = "POST /tokenize HTTP/1.1\r\nhost: t\r\n";
    let plain = format!("{post}content-length: {length}\r\n\r\n{BODY}");
    let chunked = format!(
        "{post}transfer-encoding: chunked\r\n\r\n1;a=b\r\n{{\r\n{:x}\r\n{}\r\n0\r\nx: y\r\n\r\n",
        length - 1,
        &BODY[1..],
    );
    let get = "GET /version HTTP/1.1\r\nhost: t\r\n\r\n".to_owned();
    let absolute = "GET http://t/version HTTP/1.1\r\nhost: t\r\n\r\n".to_owned();
    let fine = [&plain, &chunked, &get, &absolute, &chunked, &plain];
    let bad = format!("{post}content-length: {length}\r\ncontent-length: {length}\r\n\r\n{BODY}");
    let all: String = fine.into_iter().map(String::as_str).collect();
    for at_once in [true, false] {
        let mut client = server.connect().await;
        if at_once {
            let bytes = format!("{all}{bad}{get}");
            client.socket.write_all(bytes.as_bytes()).await.unwrap();
        }
        for request in fine {
            if !at_once {
                client.socket.write_all(request.as_bytes()).await.unwrap();
            }
            assert_eq!(client.reply().await.expect("an answer").status, 200);
        }
        if !at_once {
            client.socket.write_all(bad.as_bytes()).await.unwrap();
        }
        let refused = client.reply().await.expect("an answer");
        assert_eq!(
            (refused.status, refused.code().as_str()),
            (400, "ambiguous_request")
        );
        assert!(client.reply().await.is_none(), "closed");
    }
}

#[tokio::test]
async fn chunks_that_are_none_end_the_connection() {
    let server = Server::start().await;
    let head = "POST /tokenize HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n";
    for (what, chunks) in [
        ("a sign", "+10\r\n{\"prompt\": \"hi\"}\r\n0\r\n\r\n"),
        ("a negative size", "-1\r\n{\"prompt\": \"hi\"}\r\n0\r\n\r\n"),
        (
            "more than 64 bits",
            "10000000000000010\r\n{\"prompt\": \"hi\"}\r\n0\r\n\r\n",
        ),
        ("a size of nothing", "\r\n{\"prompt\": \"hi\"}\r\n0\r\n\r\n"),
        (
            "no hexadecimal",
            "0x10\r\n{\"prompt\": \"hi\"}\r\n0\r\n\r\n",
        ),
        (
            "a chunk without its end",
            "10\r\n{\"prompt\": \"hi\"}xx0\r\n\r\n",
        ),
        ("a bare line feed", "10\n{\"prompt\": \"hi\"}\r\n0\r\n\r\n"),
    ] {
        let (status, _, closed) = send(&server, head, chunks).await;
        assert_eq!(status, 400, "{what}");
        assert!(closed, "{what}");
    }
    let extension = format!("10;{}\r\n{BODY}\r\n0\r\n\r\n", "a".repeat(100_000));
    let (status, _, closed) = send(&server, head, &extension).await;
    assert_eq!((status, closed), (400, true), "an endless extension");
}

/// The wait of whoever expects what nobody gives, and a body that came all the same.
#[tokio::test]
async fn what_is_expected_is_to_be_told_to_go_on_and_nothing_else() {
    let server = Server::start().await;
    let length = format!("content-length: {}\r\n", BODY.len());
    let post = format!("POST /tokenize HTTP/1.1\r\nhost: t\r\n{length}");
    for expected in ["100-continue", "100-Continue", "100-continue, 100-continue"] {
        let mut client = server.connect().await;
        let head = format!("{post}Expect: {expected}\r\n\r\n");
        client.socket.write_all(head.as_bytes()).await.unwrap();
        // Before anything of the body was sent.
        if expected.len() == "100-continue".len() {
            assert_eq!(client.reply().await.expect("an answer").status, 100);
        }
        client.socket.write_all(BODY.as_bytes()).await.unwrap();
        let reply = client.reply().await.expect("an answer");
        assert_eq!((reply.status, &reply.json()["count"]), (200, &json!(2)));
    }
    for lines in [
        "expect: 200-ok\r\n",
        "expect: 100-continue;a=b\r\n",
        "expect: 100-continue, x\r\n",
        "expect: 100-continue\r\nExpect: x\r\n",
        "expect: \r\n",
    ] {
        let (status, code, closed) = send(&server, &format!("{post}{lines}"), BODY).await;
        let got = (status, code.as_str(), closed);
        assert_eq!(got, (417, "expectation_failed", true), "{lines:?}");
    }
    // What is not taken is refused without being asked for.
    let mut client = server.connect().await;
    let head =
        "POST /none HTTP/1.1\r\nhost: t\r\ncontent-length: 9\r\nexpect: 100-continue\r\n\r\n";
    client.socket.write_all(head.as_bytes()).await.unwrap();
    assert_eq!(client.reply().await.expect("an answer").status, 404);
}

/// Numbers that no body has: nothing is counted past their end, and what follows is no request.
#[tokio::test]
async fn lengths_beyond_any_body_end_the_connection() {
    let config = gateway::Config {
        body_idle: std::time::Duration::from_millis(200),
        ..gateway::Config::default()
    };
    let server = Server::with(config).await;
    let post = "POST /tokenize HTTP/1.1\r\nhost: t\r\n";
    for (length, expected) in [
        ("9223372036854775807", 413),
        ("18446744073709551614", 431),
        ("18446744073709551615", 431),
        ("18446744073709551616", 400),
        ("99999999999999999999999999", 400),
        ("0x10", 400),
        ("16.0", 400),
        ("", 400),
    ] {
        let head = format!("{post}content-length: {length}\r\n");
        let (status, _, closed) = send(&server, &head, BODY).await;
        assert_eq!((status, closed), (expected, true), "{length}");
    }
    let chunked = format!("{post}transfer-encoding: chunked\r\n");
    for size in ["7fffffffffffffff", "fffffffffffffffe", "ffffffffffffffff"] {
        let body = format!("{size}\r\n{BODY}\r\n0\r\n\r\n");
        let (status, _, closed) = send(&server, &chunked, &body).await;
        assert!(matches!(status, 400 | 408), "{size}: {status}");
        assert!(closed, "{size}");
    }
}

/// Other readers of the same bytes: one that takes the first host of a list or what stands before an `@`,
/// that cuts a path at `#`, that takes `_` for `-`, or that keeps the first of two lines.
#[tokio::test]
async fn what_only_some_readers_take_for_the_same_is_refused() {
    let server = Server::start().await;
    let length = format!("content-length: {}\r\n", BODY.len());
    let post = "POST /tokenize HTTP/1.1\r\n";
    let hosts = [
        "t, u", "t,u", "t u", "a@t", "t/x", "t:x", "t:80:81", "[::1", "[::1]x", "t\u{e9}", "t\\x",
    ];
    let mut cases: Vec<(String, &str)> = hosts
        .into_iter()
        .map(|host| {
            (
                format!("{post}host: {host}\r\n{length}"),
                "`Host` is not one",
            )
        })
        .collect();
    let more = [
        ("transfer_encoding: chunked\r\n", "has `_`"),
        ("Content_Length: 3\r\n", "has `_`"),
        (
            "x-session-id: a\r\nX-Session-Id: b\r\n",
            "one `x-session-id` line",
        ),
        (
            "x-cofferdam-engines: a\r\nx-cofferdam-engines: b\r\n",
            "one `x-cofferdam-engines` line",
        ),
        (
            "origin: http://a\r\norigin: http://b\r\n",
            "one `origin` line",
        ),
    ];
    cases.extend(
        more.into_iter()
            .map(|(lines, why)| (format!("{post}host: t\r\n{lines}{length}"), why)),
    );
    let cut = format!("POST /tokenize#/metrics HTTP/1.1\r\nhost: t\r\n{length}");
    cases.push((cut, "has a `#`"));
    for (head, why) in cases {
        let mut client = server.connect().await;
        let bytes = format!("{head}\r\n{BODY}GET /version HTTP/1.1\r\nhost: t\r\n\r\n");
        client.socket.write_all(bytes.as_bytes()).await.unwrap();
        let reply = client.reply().await.expect("an answer");
        assert_eq!(
            (reply.status, reply.code().as_str()),
            (400, "ambiguous_request"),
            "{head}"
        );
        assert!(reply.text().contains(why), "{head}: {}", reply.text());
        assert!(client.reply().await.is_none(), "{head}: closed");
    }
    for host in [
        "",
        "t",
        "T.example",
        "t_1:8080",
        "127.0.0.1:1",
        "[::1]",
        "[fe80::1]:80",
        "t:",
    ] {
        let head = format!("{post}host: {host}\r\nx_length: 3\r\n{length}");
        let (status, count, closed) = send(&server, &head, BODY).await;
        assert_eq!(
            (status, count.as_str(), closed),
            (200, "2", false),
            "{host:?}"
        );
    }
}

/// The parser behind takes whatever stands there for a trailer until a whole line is empty: what others
/// read as the next request would be gone, and its answer another's.
#[tokio::test]
async fn trailers_that_two_readers_end_differently_end_the_connection() {
    let server = Server::start().await;
    let head = "POST /tokenize HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n";
    for trailers in [
        "\n",
        "x: y\n\r\n",
        "x: y\n\n",
        "x: y\r\r\n\r\n",
        "x\r\n\r\n",
        "x: y\r\n z\r\n\r\n",
        "content-length: 50\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\n",
        "host: u\r\n\r\n",
        "content_length: 50\r\n\r\n",
    ] {
        let body = format!("10\r\n{BODY}\r\n0\r\n{trailers}");
        let whole = format!("{head}\r\n{body}GET /version HTTP/1.1\r\nhost: t\r\n\r\n");
        for step in [1, whole.len()] {
            let mut client = server.connect().await;
            client.socket.set_nodelay(true).unwrap();
            for piece in whole.as_bytes().chunks(step) {
                // Whoever has refused it may close before all was sent.
                if client.socket.write_all(piece).await.is_err() {
                    break;
                }
            }
            let reply = client.reply().await.expect("an answer");
            let said = (reply.status, reply.code());
            assert_eq!(said, (400, "invalid_request".to_owned()), "{trailers:?}");
            assert!(
                reply.text().contains("where all readers agree"),
                "{}",
                reply.text()
            );
            assert!(
                client.reply().await.is_none(),
                "{trailers:?}: nothing is read behind it"
            );
        }
    }
    let body = format!("10\r\n{BODY}\r\n0\r\nx: y\r\nx-checksum:\r\n\r\n");
    let (status, count, closed) = send(&server, head, &body).await;
    assert_eq!((status, count.as_str(), closed), (200, "2", false));
}

/// JSON in a text of JSON: what a tool was called with, schemas, and grammars that have some in them.
#[tokio::test]
async fn a_name_that_stands_twice_in_a_text_of_json_is_refused_too() {
    let server = Server::start().await;
    let user = json!({"role": "user", "content": "a"});
    let twice = r#"{"type": "object", "properties": {"a": {}, "\u0061": false}}"#;
    let format = json!({"type": "json_schema", "json_schema": {"name": "n", "schema": twice}});
    let call = json!({"name": "f", "arguments": r#"{"b": [{"a": 1, "a": 2}]}"#});
    let calls = json!([{"id": "x", "type": "function", "function": call}]);
    let chat = |field: &str, value: serde_json::Value| json!({"messages": [user], field: value});
    for (path, body, param, name) in [
        (
            "/v1/chat/completions",
            chat("response_format", format),
            "response_format.json_schema.schema",
            "properties.a",
        ),
        (
            "/v1/chat/completions",
            chat("structured_outputs", json!({"json": twice})),
            "structured_outputs.json",
            "properties.a",
        ),
        (
            "/v1/chat/completions",
            chat(
                "structured_outputs",
                json!({"grammar": format!("start: \"%\" %json {twice}\n")}),
            ),
            "structured_outputs.grammar",
            "properties.a",
        ),
        (
            "/v1/responses",
            json!({"input": "a", "text": {"format":
                {"type": "json_schema", "name": "n", "schema": twice}}}),
            "text.format.schema",
            "properties.a",
        ),
        (
            "/tokenize",
            json!({"messages": [user, {"role": "assistant", "tool_calls": calls}]}),
            "messages[1].tool_calls[0].function.arguments",
            "b[0].a",
        ),
    ] {
        let reply = server.post(path, &body).await;
        let said = (reply.status, reply.code());
        assert_eq!(said, (400, "invalid_request".to_owned()), "{body}");
        let error = &reply.json()["error"];
        assert_eq!(error["param"], param);
        let message = error["message"].as_str().unwrap();
        let start = format!("`{param}`: expected `{name}` once; the JSON in this ");
        assert!(message.starts_with(&start), "{message}");
    }
    assert_eq!(server.engine.waiting().await, 0);
    // What is no JSON was never read as any, and stays the text that it is.
    let said = json!({"name": "f", "arguments": "{\"a\": 1, \"a\""});
    let calls = json!([{"type": "function", "function": said, "index": 0, "id": "x"}]);
    let body = json!({"messages": [user, {"role": "assistant", "tool_calls": calls}]});
    let reply = server.post("/tokenize", &body).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
}

/// A template may write all of a call, and parts of an item are parts of a message.
#[tokio::test]
async fn what_is_not_known_is_refused_in_calls_and_in_parts_too() {
    let server = Server::start().await;
    let user = json!({"role": "user", "content": "a"});
    let calls = |call: serde_json::Value| json!({"messages": [user, {"role": "assistant", "tool_calls": [call]}]});
    let part = json!({"type": "input_text", "text": "a", "annotations": [], "language": "fr"});
    for (path, body, name) in [
        (
            "/tokenize",
            calls(json!({"id": "x", "function": {"name": "f", "arguments": "{}"}, "extra": 1})),
            "messages[1].tool_calls[0].extra",
        ),
        (
            "/tokenize",
            calls(json!({"id": "x", "function": {"name": "f", "argument": "{}"}})),
            "messages[1].tool_calls[0].function.argument",
        ),
        (
            "/v1/responses",
            json!({"input": [{"role": "user", "content": [part]}]}),
            "input[0].content[0].language",
        ),
    ] {
        let reply = server.post(path, &body).await;
        assert_eq!(
            (reply.status, reply.code().as_str()),
            (400, "unknown_parameter"),
            "{body}"
        );
        assert_eq!(reply.json()["error"]["param"], json!(name));
    }
}

#[tokio::test]
async fn a_name_that_stands_twice_is_refused_before_anything_is_computed() {
    let server = Server::start().await;
    for (path, body, name) in [
        (
            "/v1/completions",
            r#"{"prompt": "a", "max_tokens": 1, "max_tokens": 60}"#,
            "max_tokens",
        ),
        (
            "/v1/completions",
            r#"{"prompt": "a", "user": "a", "user": "a"}"#,
            "user",
        ),
        (
            "/v1/completions",
            r#"{"prompt": "a", "metadata": {"a": 1, "a": 2}}"#,
            "metadata.a",
        ),
        (
            "/v1/chat/completions",
            r#"{"messages": [{"role": "user", "content": "a", "\u0072ole": "system"}]}"#,
            "messages[0].role",
        ),
        ("/tokenize", r#"{"prompt": "a", "prompt": "b"}"#, "prompt"),
        ("/detokenize", r#"{"tokens": [1], "tokens": [2]}"#, "tokens"),
    ] {
        let bytes = crate::support::request("POST", path, &[], body);
        let reply = server.connect().await.send(&bytes).await;
        assert_eq!(
            (reply.status, reply.code().as_str()),
            (400, "invalid_request"),
            "{body}"
        );
        assert_eq!(reply.json()["error"]["param"], json!(name));
    }
    assert_eq!(server.engine.waiting().await, 0);
}
