//! The desk over real sockets: who is let in, what is refused, what is recorded, what is sent.

mod client;
#[path = "../../examples/desk/made_up.rs"]
mod made_up;
mod pressed;
mod said;
mod sent;
mod tls;

use client::*;
use made_up::{MadeUp, fleet};
use std::sync::Arc;

async fn healthy() -> Served {
    served(Arc::new(MadeUp::new(fleet("healthy").unwrap())), limits()).await
}

#[tokio::test]
async fn without_a_key_there_are_three_files_that_know_nothing() {
    let served = healthy().await;
    for (path, media, has) in [
        ("/", "text/html", "<title>On call · Cofferdam</title>"),
        (
            "/desk.js",
            "text/javascript",
            "async function* events(body)",
        ),
        ("/desk.css", "text/css", ".headline.alarm"),
    ] {
        let answer = served.get(path, "").await;
        assert_eq!(answer.status, 200, "{path}");
        assert!(answer.head.contains(media), "{answer:?}");
        assert!(answer.body.contains(has), "{path}");
        assert!(!answer.body.contains("prefill-0"), "{path}");
    }
    for path in ["/state", "/events", "/actions", "/nothing", "/state?key=x"] {
        let answer = served.get(path, "").await;
        assert_eq!(answer.status, 401, "{path}");
        assert!(answer.head.contains("www-authenticate: bearer"), "{path}");
        let (expected, got) = answer.fault();
        assert!(expected.contains("Authorization: Bearer"), "{expected}");
        assert_eq!(got, "no such header");
        assert!(!answer.body.contains("prefill-0"), "{path}");
    }
    served.end().await;
}

#[tokio::test]
async fn another_key_is_no_key() {
    let served = healthy().await;
    for (header, got) in [
        (
            bearer("anna-0123456789abcdeg"),
            "a key that is not known here",
        ),
        (bearer(""), "another scheme"),
        (format!("authorization: Basic {ANNA}\r\n"), "another scheme"),
        (format!("cookie: key={ANNA}\r\n"), "no such header"),
        (bearer(ANNA) + &bearer(ANNA), "more than one such header"),
    ] {
        let answer = served.get("/state", &header).await;
        assert_eq!(answer.status, 401, "{header}");
        assert_eq!(answer.fault().1, got, "{header}");
    }
    let answer = served.get("/state", &bearer(BEN)).await;
    assert_eq!(answer.status, 200);
    assert!(answer.head.contains("x-operator: ben"), "{answer:?}");
    assert_eq!(answer.json()["state"]["engines"][0]["name"], "prefill-0");
    served.end().await;
}

/// Whatever is answered, no frame, no other script, no copy, no cookie.
#[tokio::test]
async fn every_answer_says_what_a_browser_may_do_with_it() {
    let served = healthy().await;
    for (path, more) in [
        ("/", String::new()),
        ("/desk.js", String::new()),
        ("/state", bearer(ANNA)),
        ("/nothing", bearer(ANNA)),
        ("/state", String::new()),
    ] {
        let answer = served.get(path, &more).await;
        for line in [
            "content-security-policy: default-src 'none'; script-src 'self'; style-src 'self'; \
             connect-src 'self';",
            "frame-ancestors 'none'",
            "x-content-type-options: nosniff",
            "cache-control: no-store",
            "referrer-policy: no-referrer",
        ] {
            assert!(answer.head.contains(line), "{path}: {line}: {answer:?}");
        }
        assert!(!answer.head.contains("unsafe"), "{path}");
        assert!(!answer.head.contains("set-cookie"), "{path}");
    }
    served.end().await;
}

#[tokio::test]
async fn paths_have_their_methods() {
    let served = healthy().await;
    let ask = async |method: &str, path: &str| {
        let head = format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n");
        served.say(&format!("{head}{}\r\n", bearer(ANNA))).await
    };
    for (method, path, allowed) in [
        ("POST", "/", "get"),
        ("DELETE", "/state", "get"),
        ("POST", "/events", "get"),
        ("GET", "/actions", "post"),
        ("PUT", "/actions", "post"),
    ] {
        let answer = ask(method, path).await;
        assert_eq!(answer.status, 405, "{method} {path}");
        assert!(
            answer.head.contains(&format!("allow: {allowed}")),
            "{answer:?}"
        );
    }
    let answer = ask("GET", "/metrics").await;
    assert_eq!(answer.status, 404);
    assert_eq!(answer.fault().0, "one of /, /state, /events, /actions");
    served.end().await;
}
