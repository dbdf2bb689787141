//! What is pressed: only by an operator, only from this page, only with a reason, always recorded.

use super::client::*;
use super::made_up::{INCIDENT, MadeUp, fleet};
use desk::state::{AccessLevel, DeskState};
use desk::{Act, Action, ActionRefused, ActionScope, Desk, Done, Limits};
use serde_json::json;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::sync::Semaphore;

const PRIVATE: &str = r#"{"act": "private", "scope": {"kind": "pair", "prefill": "prefill-0",
    "decode": "decode-1"}, "reason": "  a customer called  "}"#;

fn nobody_acted(desk: &MadeUp) {
    let state = desk.state();
    assert!(
        state
            .pairs
            .iter()
            .all(|it| it.standing.access == AccessLevel::Open)
    );
    assert!(
        state
            .engines
            .iter()
            .all(|it| it.standing.access == AccessLevel::Open)
    );
}

async fn healthy() -> (Arc<MadeUp>, Served) {
    let desk = Arc::new(MadeUp::new(fleet("healthy").unwrap()));
    (desk.clone(), served(desk, limits()).await)
}

#[tokio::test]
async fn an_action_is_recorded_with_its_reason_under_the_name_of_the_key() {
    let desk = Arc::new(MadeUp::new(fleet("incident").unwrap()));
    let served = served(desk.clone(), limits()).await;
    let answer = served.post(PRIVATE, JSON).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let said = "make private: pair prefill-0 → decode-1, by anna";
    assert_eq!(answer.json()["done"]["said"], said);
    let state = desk.state();
    let has = |it: &&desk::state::PairView| it.prefill == "prefill-0" && it.decode == "decode-1";
    let standing = &state.pairs.iter().find(has).unwrap().standing;
    assert_eq!(standing.access, AccessLevel::Private);
    assert_eq!(standing.why.as_deref(), Some("a customer called"));
    let note = json!({
        "act": "note", "scope": {"kind": "incident", "id": INCIDENT}, "reason": "logs are copied",
    });
    assert_eq!(served.post(&note.to_string(), JSON).await.status, 200);
    let state = desk.state();
    let last = state.incidents[0].actions.last().unwrap();
    let is = (last.what.as_str(), last.by.as_str(), last.why.as_str());
    assert_eq!(is, ("note", "anna", "logs are copied"));
    served.end().await;
}

/// The same request with a foreign page's marks, as a browser sets them and no script can.
#[tokio::test]
async fn another_sites_page_presses_nothing() {
    let (desk, served) = healthy().await;
    let own = format!("origin: http://127.0.0.1:{}\r\n", served.port);
    for foreign in [
        "origin: https://elsewhere.example\r\n".to_owned(),
        "origin: null\r\n".to_owned(),
        format!("origin: http://127.0.0.1:{}\r\n", served.port - 1),
        "sec-fetch-site: cross-site\r\n".to_owned(),
        "sec-fetch-site: same-site\r\n".to_owned(),
        format!("{own}sec-fetch-site: cross-site\r\n"),
    ] {
        let answer = served.post(PRIVATE, &format!("{JSON}{foreign}")).await;
        assert_eq!(answer.status, 403, "{foreign}");
        assert!(answer.fault().0.contains("this page itself"), "{foreign}");
    }
    for media in [
        "",
        "content-type: text/plain\r\n",
        "content-type: multipart/form-data\r\n",
    ] {
        let answer = served.post(PRIVATE, media).await;
        assert_eq!(answer.status, 415, "{media}");
        assert_eq!(answer.fault().0, "`Content-Type: application/json`");
    }
    nobody_acted(&desk);
    let more = format!("{JSON}{own}sec-fetch-site: same-origin\r\n");
    assert_eq!(served.post(PRIVATE, &more).await.status, 200);
    assert_eq!(
        desk.state()
            .pairs
            .iter()
            .filter(|it| it.standing.access == AccessLevel::Private)
            .count(),
        1
    );
    served.end().await;
}

#[tokio::test]
async fn what_is_no_action_with_a_reason_is_refused() {
    let (desk, served) = healthy().await;
    let action = |act: &str, scope: serde_json::Value, reason: &str| {
        json!({ "act": act, "scope": scope, "reason": reason }).to_string()
    };
    let model = || json!({"kind": "model"});
    let long = "é".repeat(2001);
    for (body, expected) in [
        (
            action("private", model(), ""),
            "a reason of 1 to 2000 characters",
        ),
        (
            action("private", model(), " \n\t "),
            "a reason of 1 to 2000 characters",
        ),
        (
            action("private", model(), &long),
            "a reason of 1 to 2000 characters",
        ),
        (
            action("private", model(), "x\u{1b}[31m"),
            "a reason in plain text",
        ),
        (
            action("note", model(), "x"),
            "an incident as the scope of this act",
        ),
        (
            action("close", json!({"kind": "incident", "id": "1"}), "x"),
            "the model, a pair or an engine as the scope of this act",
        ),
        (action("explode", model(), "x"), "and nothing else"),
        (
            action("private", json!({"kind": "fleet"}), "x"),
            "and nothing else",
        ),
        (
            json!({"act": "private", "scope": model(), "reason": "x", "by": "ben"}).to_string(),
            "and nothing else",
        ),
        ("{".to_owned(), "and nothing else"),
    ] {
        let answer = served.post(&body, JSON).await;
        assert_eq!(answer.status, 400, "{body}");
        assert!(answer.fault().0.contains(expected), "{body}: {answer:?}");
    }
    let other = served.post(&action("private", json!(5), "x"), JSON).await;
    let words = "invalid type: integer `5`, expected internally tagged enum Scope";
    assert!(other.fault().1.starts_with(words), "{other:?}");
    nobody_acted(&desk);
    let most = action("private", model(), &"é".repeat(2000));
    assert_eq!(
        served.post(&most, JSON).await.status,
        200,
        "as long as it may be"
    );
    served.end().await;
}

#[tokio::test]
async fn the_desks_own_refusal_says_what_is_missing() {
    let desk = Arc::new(MadeUp::new(fleet("incident").unwrap()));
    let served = served(desk, limits()).await;
    let restore = r#"{"act": "restore", "scope": {"kind": "model"}, "reason": "it is late"}"#;
    let answer = served.post(restore, JSON).await;
    assert_eq!(answer.status, 409, "{answer:?}");
    assert_eq!(answer.json()["error"]["whose"], "standing");
    let (expected, got) = answer.fault();
    assert!(expected.starts_with("two proofs"), "{expected}");
    assert_eq!(got, "the reproduction still finds a leak on this life");
    let nobody = r#"{"act": "drain", "scope": {"kind": "engine", "name": "x"}, "reason": "y"}"#;
    let answer = served.post(nobody, JSON).await;
    assert_eq!(
        (answer.status, answer.fault().1.as_str()),
        (404, "engine x")
    );
    served.end().await;
}

#[tokio::test]
async fn a_body_has_a_limit_declared_or_not() {
    let (desk, served) = healthy().await;
    let large = format!(
        r#"{{"act": "private", "reason": "{}"}}"#,
        "x".repeat(200_000)
    );
    let answer = served.post(&large, JSON).await;
    assert_eq!(answer.status, 413, "declared");
    assert_eq!(answer.fault(), ("at most 32 KiB".into(), "more".into()));
    let head = served
        .posted("", JSON)
        .replace("content-length: 0", "transfer-encoding: chunked");
    let piece = format!("{:x}\r\n{}\r\n", 20_000, "x".repeat(20_000));
    let answer = served
        .say(&format!("{head}{}0\r\n\r\n", piece.repeat(4)))
        .await;
    assert_eq!(answer.status, 413, "not declared");
    assert!(answer.head.contains("connection: close"), "{answer:?}");
    nobody_acted(&desk);
    served.end().await;
}

#[tokio::test]
async fn a_body_that_does_not_come_is_not_waited_for() {
    let desk = Arc::new(MadeUp::new(fleet("healthy").unwrap()));
    let within = Limits {
        body_within: Duration::from_millis(200),
        ..limits()
    };
    let served = served(desk.clone(), within).await;
    let whole = served.posted(PRIVATE, JSON);
    let answer = served.say(&whole[..whole.len() - 5]).await;
    assert_eq!(answer.status, 408, "{answer:?}");
    nobody_acted(&desk);
    served.end().await;
}

/// A desk whose actions wait until they are let go on.
struct Slow {
    go_on: Semaphore,
    done: Mutex<Vec<Action>>,
    finished: Semaphore,
}

impl Slow {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            go_on: Semaphore::new(0),
            done: Mutex::default(),
            finished: Semaphore::new(0),
        })
    }

    /// The one action that was carried to its end.
    async fn the_only_one(&self) -> Action {
        self.go_on.add_permits(1);
        let end = tokio::time::timeout(PATIENCE, self.finished.acquire()).await;
        end.unwrap().unwrap().forget();
        let done = self.done.lock().unwrap().clone();
        assert_eq!(done.len(), 1, "{done:?}");
        done[0].clone()
    }
}

impl Desk for Slow {
    fn state(&self) -> Arc<DeskState> {
        Arc::default()
    }

    fn act(
        &self,
        action: Action,
    ) -> Pin<Box<dyn Future<Output = Result<Done, ActionRefused>> + Send + '_>> {
        Box::pin(async {
            self.go_on.acquire().await.unwrap().forget();
            self.done.lock().unwrap().push(action);
            self.finished.add_permits(1);
            Ok(Done::default())
        })
    }
}

#[tokio::test]
async fn an_action_is_carried_out_though_its_client_has_left() {
    let desk = Slow::new();
    let served = served(desk.clone(), limits()).await;
    let mut stream = served.connect().await;
    let whole = served.posted(PRIVATE, JSON);
    // All of it but the end first: what is read together was not begun before.
    stream.write_all(whole.as_bytes()).await.unwrap();
    let answer = served.get("/state", &bearer(BEN)).await;
    assert_eq!(answer.status, 200, "others go on meanwhile");
    drop(stream);
    let action = desk.the_only_one().await;
    assert_eq!((action.act, action.by.as_str()), (Act::Private, "anna"));
    let (prefill, decode) = ("prefill-0".into(), "decode-1".into());
    assert_eq!(action.scope, ActionScope::Pair { prefill, decode });
    assert_eq!(action.reason, "a customer called");
    served.end().await;
}

#[tokio::test]
async fn an_action_that_takes_too_long_is_not_called_undone() {
    let desk = Slow::new();
    let within = Limits {
        act_within: Duration::from_millis(100),
        ..limits()
    };
    let served = served(desk.clone(), within).await;
    let answer = served.post(PRIVATE, JSON).await;
    assert_eq!(answer.status, 503, "{answer:?}");
    let next = answer.json()["error"]["next"].as_str().unwrap().to_owned();
    assert!(next.contains("not known whether it was done"), "{next}");
    desk.the_only_one().await;
    served.end().await;
}
