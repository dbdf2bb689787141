//! Servers that answer, lie, dawdle or hang: what is known of each, and that none harms another.

mod server;
mod tls;

use gate::facts::net::{Address, Limits, NetTarget, Secret, Tls, TlsFiles, describe, get};
use gate::facts::recording::Recording;
use gate::facts::{Node, Trouble, Unknown};
use server::{Reply, Server, ok, start, start_always, status};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;
use tokio::time::Instant;

const LIMIT: usize = 1 << 20;

fn target(server: &Server) -> NetTarget {
    NetTarget {
        name: format!("http://{}", server.at),
        address: Address::parse(&format!("http://{}", server.at)).unwrap(),
        key: None,
        tls: Tls::new(&TlsFiles::default()).unwrap(),
    }
}

fn key(text: &str) -> Secret {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("key");
    std::fs::write(&path, text).unwrap();
    Secret::from_file(&path).unwrap()
}

fn recorded(name: &str) -> BTreeMap<String, Reply> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name);
    let answers = Recording::load(&folder).only_answers(&[]).answers;
    answers
        .into_iter()
        .map(|(path, body)| (path, ok(body)))
        .collect()
}

/// Long enough that nothing honest runs into it on a busy machine.
fn limits() -> Limits {
    Limits {
        node: Duration::from_secs(60),
        overall: Duration::from_secs(120),
        answer_bytes: LIMIT,
        at_once: 100,
    }
}

async fn one(target: NetTarget, limits: &Limits) -> Node {
    let mut nodes = describe(&[target], limits).await;
    assert_eq!((nodes.len(), nodes[0].len()), (1, 1));
    nodes.remove(0).remove(0)
}

/// What came instead of an answer, for every endpoint that was asked.
fn troubles(node: &Node) -> Vec<Trouble> {
    let outcomes = node.probes.iter().map(|it| it.outcome.clone());
    outcomes.filter_map(Result::err).collect()
}

async fn asked_once(server: &Server, end: Duration) -> Trouble {
    let target = target(server);
    let end = Instant::now() + end;
    let address = target.address.with_path("/server_info");
    get(&address, Some(&key("sk-1")), &target.tls, LIMIT, end)
        .await
        .unwrap_err()
}

const SOON: Duration = Duration::from_millis(300);
const LATE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_recorded_server_asked_over_http_says_what_its_recording_says() {
    for name in [
        "sglang-0.5.19-prefill",
        "sglang-0.5.23-decode",
        "vllm-0.32.0",
        "llama.cpp",
    ] {
        let server = start(recorded(name)).await;
        let node = one(target(&server), &limits()).await;
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/fixtures")
            .join(name);
        let read = Recording::load(&folder).only_answers(&[]).nodes().remove(0);
        let pool = |it: &Node| it.smallest_pool().unwrap().value;
        assert_eq!(pool(&node), pool(&read));
        assert_eq!(
            node.max_prompt.as_ref().unwrap().value,
            read.max_prompt.unwrap().value
        );
        let source = node.smallest_pool().unwrap().source.to_string();
        assert!(
            source.contains(&format!("http://{}/", server.at)),
            "{source}"
        );
        let asked = server.asked.lock().unwrap().clone();
        assert!(
            asked.len() <= 8 && asked.iter().all(|(_, key)| key.is_none()),
            "{asked:?}"
        );
        assert!(!asked.iter().any(|(path, _)| path.contains("flush")));
    }
}

#[tokio::test]
async fn the_deprecated_name_is_asked_only_where_the_new_one_is_missing() {
    let new = start(recorded("sglang-0.5.23-decode")).await;
    one(target(&new), &limits()).await;
    let is_old = |server: &Server| {
        let asked = server.asked.lock().unwrap();
        asked
            .iter()
            .any(|(path, _)| path.starts_with("/get_server_info"))
    };
    assert!(!is_old(&new), "it makes the server log a warning");
    let mut replies = recorded("sglang-0.5.19-decode");
    let info = replies.remove("/server_info").unwrap();
    replies.insert("/get_server_info".into(), info);
    let old = start(replies).await;
    let node = one(target(&old), &limits()).await;
    assert!(is_old(&old));
    assert_eq!(node.max_prompt.unwrap().value, 1993);
}

#[tokio::test]
async fn everything_that_is_no_answer_has_its_own_name() {
    let html = start_always(ok("<!DOCTYPE html><title>Login</title>")).await;
    let node = one(target(&html), &limits()).await;
    assert!(
        matches!(
            node.ranks,
            Err(Unknown::NotRead {
                trouble: Trouble::Html,
                ..
            })
        ),
        "{:?}",
        node.ranks
    );
    let cases: [(Reply, Trouble); 9] = [
        (
            status("401 Unauthorized", ""),
            Trouble::Refused { status: 401 },
        ),
        (
            status("403 Forbidden", ""),
            Trouble::Refused { status: 403 },
        ),
        (status("404 Not Found", ""), Trouble::Absent { status: 404 }),
        (
            status("503 Service Unavailable", ""),
            Trouble::Status { status: 503 },
        ),
        (
            status("204 No Content", ""),
            Trouble::Status { status: 204 },
        ),
        (
            Reply::Endless("HTTP/1.1 200 OK\r\n\r\n"),
            Trouble::TooLarge {
                limit: LIMIT as u64,
            },
        ),
        (
            Reply::Endless("HTTP/1.1 200 OK\r\ncontent-length: 1073741824\r\n\r\n"),
            Trouble::TooLarge {
                limit: LIMIT as u64,
            },
        ),
        (
            status("200 OK", &format!("x: {}\r\n", "y".repeat(1 << 20))),
            Trouble::TooLarge { limit: 32 << 10 },
        ),
        (
            status("200 OK", "content-encoding: gzip\r\n"),
            Trouble::Garbage {
                why: "compressed, though we asked for plain".into(),
            },
        ),
    ];
    for (reply, expected) in cases {
        let server = start_always(reply).await;
        assert_eq!(asked_once(&server, LATE).await, expected);
    }
    for garbage in [
        "",
        "hello\r\n\r\n",
        "HTTP/1.1 2000 OK\r\n\r\n",
        "HTTP/9 200 OK\r\n\r\n",
    ] {
        let server = start_always(Reply::Raw(garbage.into())).await;
        let trouble = asked_once(&server, LATE).await;
        let fits = matches!(
            trouble,
            Trouble::Garbage { .. } | Trouble::Unreachable { .. }
        );
        assert!(fits, "{garbage:?}: {trouble}");
    }
    let many = start_always(status("200 OK", &"a: b\r\n".repeat(500))).await;
    let trouble = asked_once(&many, LATE).await;
    assert!(
        matches!(trouble, Trouble::TooLarge { .. } | Trouble::Garbage { .. }),
        "{trouble}"
    );
    // Cut off in the middle of its body.
    let cut = start_always(Reply::Raw(
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{\"a\"".to_vec(),
    ))
    .await;
    assert!(matches!(
        asked_once(&cut, LATE).await,
        Trouble::Unreachable { .. }
    ));
    // Nobody there.
    let gone = start_always(Reply::Hang).await;
    let at = gone.at;
    drop(gone);
    let free = tokio::net::TcpListener::bind(at).await;
    drop(free);
    let address = Address::parse(&format!("http://{at}/server_info")).unwrap();
    let tls = Tls::new(&TlsFiles::default()).unwrap();
    let trouble = get(&address, None, &tls, LIMIT, Instant::now() + LATE)
        .await
        .unwrap_err();
    assert!(matches!(trouble, Trouble::Unreachable { .. }), "{trouble}");
    let hang = start_always(Reply::Hang).await;
    let trouble = asked_once(&hang, SOON).await;
    assert!(
        matches!(trouble, Trouble::Timeout { limit_ms: 300 }),
        "{trouble}"
    );
}

#[tokio::test]
async fn redirects_lead_nowhere_but_to_the_same_path_of_the_same_server() {
    let other = start(recorded("sglang-0.5.23-decode")).await;
    let elsewhere = [
        format!("http://{}/server_info", other.at),
        "http://user:secret@elsewhere/server_info?session=secret".to_owned(),
        "https://127.0.0.1/server_info".to_owned(),
        "//elsewhere/server_info".to_owned(),
        "/flush_cache".to_owned(),
        "/login?to=server_info".to_owned(),
        String::new(),
    ];
    for to in elsewhere {
        let server = start_always(status("302 Found", &format!("location: {to}\r\n"))).await;
        let trouble = asked_once(&server, LATE).await;
        assert!(
            matches!(trouble, Trouble::Redirect { .. }),
            "{to}: {trouble}"
        );
        assert!(!trouble.to_string().contains("secret"), "{trouble}");
        assert_eq!(server.asked.lock().unwrap().len(), 1, "{to}");
    }
    assert!(other.asked.lock().unwrap().is_empty());
    let mut replies = BTreeMap::new();
    replies.insert(
        "/server_info".to_owned(),
        status("307 Temporary Redirect", "location: /server_info/\r\n"),
    );
    replies.insert("/server_info/".to_owned(), ok("{}"));
    let slash = start(replies).await;
    let target = target(&slash);
    let address = target.address.with_path("/server_info");
    let end = Instant::now() + LATE;
    let body = get(&address, None, &target.tls, LIMIT, end).await.unwrap();
    assert_eq!(body.into_bytes(), b"{}");
    // For ever in a circle.
    let circle = start_always(status(
        "301 Moved Permanently",
        "location: /server_info\r\n",
    ))
    .await;
    assert!(matches!(
        asked_once(&circle, LATE).await,
        Trouble::Redirect { .. }
    ));
    assert_eq!(circle.asked.lock().unwrap().len(), 4);
}

#[tokio::test]
async fn a_key_goes_to_its_own_server_and_what_answers_without_it_is_noted() {
    let open = start(recorded("sglang-0.5.23-decode")).await;
    let keyed = |path: &str| {
        (
            format!("{path} with key"),
            recorded("sglang-0.5.23-decode").remove(path).unwrap(),
        )
    };
    let refuse = |path: &str| (path.to_owned(), status("401 Unauthorized", ""));
    let paths = [
        "/server_info",
        "/v1/loads",
        "/v1/models",
        "/metrics",
        "/model_info",
    ];
    let replies = paths
        .iter()
        .flat_map(|path| [keyed(path), refuse(path)])
        .collect();
    let closed = start(replies).await;
    let with_key = |server: &Server, text: &str| NetTarget {
        key: Some(key(text)),
        ..target(server)
    };
    let targets = [
        with_key(&open, "sk-open"),
        with_key(&closed, "sk-closed"),
        target(&closed),
    ];
    let nodes = describe(&targets, &limits()).await;
    let is_open = |n: usize| nodes[n][0].open_introspection.as_ref().map(|it| it.value);
    assert_eq!((is_open(0), is_open(1)), (Ok(true), Ok(false)));
    assert_eq!(nodes[1][0].smallest_pool().unwrap().value, 2000);
    // Without its key the closed one is unknown, and says why.
    let why = nodes[2][0].smallest_pool().unwrap_err();
    assert!(
        matches!(
            why,
            Unknown::NotRead {
                trouble: Trouble::Refused { status: 401 },
                ..
            }
        ),
        "{why}"
    );
    for (server, own) in [(&open, "Bearer sk-open"), (&closed, "Bearer sk-closed")] {
        let asked = server.asked.lock().unwrap();
        let keys: Vec<_> = asked.iter().filter_map(|(_, key)| key.as_deref()).collect();
        assert!(
            !keys.is_empty() && keys.iter().all(|it| *it == own),
            "{keys:?}"
        );
    }
    let shown = format!("{targets:?}{nodes:?}");
    assert!(!shown.contains("sk-open") && !shown.contains("sk-closed"));
}

/// One slow or lying node neither hides nor delays the others: all of them are there, with their
/// figures, though some never end.
#[tokio::test]
async fn a_hanging_or_lying_node_costs_only_itself() {
    let good = start(recorded("sglang-0.5.23-decode")).await;
    let hang = start_always(Reply::Hang).await;
    let endless = start_always(Reply::Endless("HTTP/1.1 200 OK\r\n\r\n")).await;
    let mut half = recorded("sglang-0.5.23-decode");
    half.insert("/metrics".into(), Reply::Hang);
    let half = start(half).await;
    let mut targets = Vec::new();
    for n in 0..40 {
        targets.push(target(match n % 10 {
            0 => &hang,
            1 => &endless,
            2 => &half,
            _ => &good,
        }));
    }
    // Fewer at once than there are: those that hang must not keep the rest waiting for ever.
    let limits = Limits {
        node: Duration::from_secs(3),
        at_once: 16,
        ..limits()
    };
    let nodes = describe(&targets, &limits).await;
    assert_eq!(nodes.len(), 40);
    for (n, nodes) in nodes.iter().enumerate() {
        let pool = nodes[0].smallest_pool().map(|it| it.value);
        match n % 10 {
            0 => assert!(
                troubles(&nodes[0])
                    .iter()
                    .all(|it| matches!(it, Trouble::Timeout { .. })),
                "{nodes:?}"
            ),
            1 => assert!(matches!(pool, Err(Unknown::NotRead { .. })), "{pool:?}"),
            _ => assert_eq!(pool.unwrap(), 2000, "{n}"),
        }
    }
}

#[tokio::test]
async fn when_the_time_for_all_is_over_the_rest_is_unknown() {
    let hang = start_always(Reply::Hang).await;
    let targets: Vec<_> = (0..20).map(|_| target(&hang)).collect();
    let limits = Limits {
        overall: SOON,
        node: SOON,
        at_once: 4,
        ..limits()
    };
    let nodes = describe(&targets, &limits).await;
    for node in nodes.iter().flatten() {
        let why = node.smallest_pool().unwrap_err();
        assert!(
            matches!(
                why,
                Unknown::NotRead {
                    trouble: Trouble::Timeout { .. },
                    ..
                }
            ),
            "{why}"
        );
    }
}
