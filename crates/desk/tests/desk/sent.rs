//! What is sent, and to how many: the newest state to each reader, within limits for all.

use super::client::*;
use super::made_up::{MadeUp, fleet};
use desk::state::{DeskState, IncidentView};
use desk::{Action, ActionRefused, Desk, Done, Limits};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;

#[tokio::test]
async fn a_reader_gets_the_state_and_then_what_changes() {
    let desk = Arc::new(MadeUp::new(fleet("healthy").unwrap()));
    let served = served(desk.clone(), limits()).await;
    let mut anna = Events::of(&served, ANNA).await;
    let mut ben = Events::of(&served, BEN).await;
    assert_eq!(
        (anna.operator.as_str(), ben.operator.as_str()),
        ("anna", "ben")
    );
    assert_eq!(anna.next().await.unwrap(), *desk.state());
    assert_eq!(ben.next().await.unwrap(), *desk.state());
    desk.change(|_| {}); // only the time is another
    desk.change(|state| state.running.queued = 77);
    anna.until(|it| it.running.queued == 77).await;
    ben.until(|it| it.running.queued == 77).await;
    // Who comes late gets the state of that moment: its time is the clock of the page.
    desk.change(|_| {});
    let mut late = Events::of(&served, ANNA).await;
    assert_eq!(late.next().await.unwrap(), *desk.state());
    served.end().await;
    anna.ends().await;
}

/// A desk that is another one each time it is looked at, and too large for any socket's memory.
struct Restless(AtomicU64);

const WEIGHT: usize = 1 << 20;

impl Desk for Restless {
    fn state(&self) -> Arc<DeskState> {
        let looks = self.0.fetch_add(1, Ordering::SeqCst) + 1;
        let mut state = DeskState::default();
        state.running.requests = looks;
        state.version = "x".repeat(WEIGHT);
        Arc::new(state)
    }

    fn act(
        &self,
        _: Action,
    ) -> Pin<Box<dyn Future<Output = Result<Done, ActionRefused>> + Send + '_>> {
        unreachable!("nobody acts")
    }
}

#[tokio::test]
async fn a_slow_reader_gets_the_newest_state_and_no_queue() {
    let desk = Arc::new(Restless(AtomicU64::new(0)));
    let served = served(desk.clone(), limits()).await;
    let mut slow = Events::of(&served, ANNA).await;
    let mut swift = Events::of(&served, BEN).await;
    slow.next().await.unwrap();
    let mut newest = 0;
    for _ in 0..20 {
        newest = swift.next().await.unwrap().running.requests;
    }
    let mut seen = 0;
    loop {
        seen += 1;
        if slow.next().await.unwrap().running.requests >= newest {
            break;
        }
    }
    // What lay in the sockets, and one that was being written: not the twenty between.
    assert!(seen <= 10, "{seen} states of 1 MiB each were kept for it");
    served.end().await;
}

#[tokio::test]
async fn a_stream_ends_when_its_key_is_taken_away() {
    let desk = Arc::new(MadeUp::new(fleet("healthy").unwrap()));
    let served = served(desk.clone(), limits()).await;
    let mut anna = Events::of(&served, ANNA).await;
    let mut ben = Events::of(&served, BEN).await;
    anna.next().await.unwrap();
    ben.next().await.unwrap();
    served.keys.replace(&format!("ben {BEN}")).unwrap();
    desk.change(|state| state.running.queued = 78);
    ben.until(|it| it.running.queued == 78).await;
    anna.ends().await;
    assert_eq!(served.get("/state", &bearer(ANNA)).await.status, 401);
    served.end().await;
}

#[tokio::test]
async fn more_than_may_be_shown_is_cut_and_said() {
    let mut state = fleet("incident").unwrap();
    let open = state.incidents[0].clone();
    let handoff = state.running.handoffs[0].clone();
    state.running.handoffs = vec![handoff; 130];
    state.ttft.points = vec![(1, 1.0); 900];
    let closed = IncidentView {
        closed_ms: Some(1),
        ..open.clone()
    };
    state.incidents = vec![closed; 80];
    state.incidents.push(open.clone());
    let served = served(Arc::new(MadeUp::new(state)), limits()).await;
    let state = Events::of(&served, ANNA).await.next().await.unwrap();
    assert_eq!(
        (state.running.handoffs.len(), state.running.more),
        (100, 30)
    );
    assert_eq!((state.ttft.points.len(), state.incidents.len()), (500, 50));
    assert_eq!(
        state.incidents[0], open,
        "an open incident is never left out"
    );
    served.end().await;
}

#[tokio::test]
async fn a_head_that_does_not_come_is_not_waited_for() {
    let desk = Arc::new(MadeUp::new(fleet("healthy").unwrap()));
    let within = Limits {
        head_within: Duration::from_millis(200),
        ..limits()
    };
    let served = served(desk, within).await;
    let mut silent = served.connect().await;
    let mut half = served.connect().await;
    half.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nx: ")
        .await
        .unwrap();
    let mut idle = served.connect().await;
    idle.write_all(b"GET /desk.css HTTP/1.1\r\nhost: x\r\n\r\n")
        .await
        .unwrap();
    assert!(!rest(&mut silent).await.contains("200"));
    assert!(!rest(&mut half).await.contains("200"));
    let text = rest(&mut idle).await;
    assert!(
        text.starts_with("HTTP/1.1 200"),
        "answered, then closed for its silence"
    );
    let long = format!(
        "GET / HTTP/1.1\r\nhost: x\r\nx: {}\r\n\r\n",
        "y".repeat(40_000)
    );
    let mut stream = served.connect().await;
    stream.write_all(long.as_bytes()).await.unwrap();
    let mut first = [0; 12];
    stream.read_exact(&mut first).await.unwrap();
    assert_eq!(&first, b"HTTP/1.1 431");
    served.end().await;
}

#[tokio::test]
async fn idle_connections_are_bounded_and_keep_nobody_else_out() {
    let desk = Arc::new(MadeUp::new(fleet("healthy").unwrap()));
    let few = Limits {
        connections: 12,
        connections_of_one: 8,
        ..limits()
    };
    let served = served(desk, few).await;
    let from = async |last: u8| {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(([127, 0, 0, last], 0).into()).unwrap();
        socket
            .connect(([127, 0, 0, 1], served.port).into())
            .await
            .unwrap()
    };
    let mut idle = Vec::new();
    for _ in 0..8 {
        idle.push(from(2).await);
    }
    let mut ninth = from(2).await;
    assert_eq!(rest(&mut ninth).await, "", "closed, unanswered");
    let answer = served.get("/state", &bearer(ANNA)).await;
    assert_eq!(answer.status, 200, "another address has room");
    for _ in 0..4 {
        idle.push(from(3).await);
    }
    let mut thirteenth = from(4).await;
    assert_eq!(rest(&mut thirteenth).await, "", "all places are taken");
    idle.clear();
    // A place is free again when its end has been seen.
    let again = async {
        loop {
            let mut stream = served.connect().await;
            let asked = b"GET /desk.js HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
            if stream.write_all(asked).await.is_ok() && rest(&mut stream).await.contains("200 OK") {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, again).await.unwrap();
    served.end().await;
}

/// Who reads nothing of what it asked for is gone after a while, and its place with it.
#[tokio::test]
async fn a_reader_that_has_stopped_is_not_kept() {
    let desk = Arc::new(Restless(AtomicU64::new(0)));
    let few = Limits {
        connections_of_one: 1,
        stall: Duration::from_millis(200),
        ..limits()
    };
    let served = served(desk, few).await;
    let mut stuck = served.connect().await;
    let asked = format!("GET /events HTTP/1.1\r\nhost: x\r\n{}\r\n", bearer(ANNA));
    stuck.write_all(asked.as_bytes()).await.unwrap();
    let room = async {
        loop {
            let mut stream = served.connect().await;
            let asked = b"GET /desk.css HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
            let mut first = [0; 12];
            if stream.write_all(asked).await.is_ok()
                && stream.read_exact(&mut first).await.is_ok()
                && &first == b"HTTP/1.1 200"
            {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, room)
        .await
        .expect("its place is free");
    drop(stuck);
    served.end().await;
}
