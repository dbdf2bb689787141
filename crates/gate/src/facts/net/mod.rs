//! Asking servers: many at once, each within its time, none able to hide or delay another.
//!
//! Only `GET` is sent, only to endpoints that change nothing. SGLang's `/flush_cache` acts on
//! `GET`: no address that names it is ever asked for, neither by an operator nor by a redirect.

mod address;
mod client;
mod secret;
mod tls;

pub use address::Address;
pub use client::{Body, Stream, connect, exchange, get};
pub use secret::{Secret, SecretError};
pub use tls::{Tls, TlsError, TlsFiles};

use crate::facts::answers::{FIRST, ServerAnswers, introspects, next, read};
use crate::facts::figure::Unknown;
use crate::facts::node::{Engine, Node};
use crate::facts::trouble::Trouble;
use futures::stream::{self, StreamExt};
use std::time::Duration;
use tokio::time::Instant;

/// One server, and what belongs to it alone.
#[derive(Clone, Debug)]
pub struct NetTarget {
    /// What the operator calls it.
    pub name: String,
    /// Where it is.
    pub address: Address,
    /// Sent as `Authorization: Bearer` to this address and nowhere else.
    pub key: Option<Secret>,
    /// Whom to trust, and as whom to come.
    pub tls: Tls,
}

/// How long and how much.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// For one node, all of its endpoints together.
    pub node: Duration,
    /// For everything.
    pub overall: Duration,
    /// Bytes of one answer.
    pub answer_bytes: usize,
    /// Nodes that are asked at the same time, over two connections each.
    pub at_once: usize,
}

impl Default for Limits {
    /// 5 s for a node, 30 s for all, 8 MiB an answer, 200 nodes at once.
    fn default() -> Self {
        Self {
            node: Duration::from_secs(5),
            overall: Duration::from_secs(30),
            answer_bytes: 8 << 20,
            at_once: 200,
        }
    }
}

/// Asks every target; the answer has the order of `targets`. A target becomes one node, or, if it
/// is a Cofferdam gateway, one for each of its workers. What cannot be read is unknown in the node
/// concerned; this itself never fails, and never takes longer than `limits.overall`.
pub async fn describe(targets: &[NetTarget], limits: &Limits) -> Vec<Vec<Node>> {
    let end = Instant::now() + limits.overall;
    let one = |target| async move { node(target, limits, end).await };
    stream::iter(targets)
        .map(one)
        .buffered_all(limits.at_once.max(1))
        .await
}

async fn node(target: &NetTarget, limits: &Limits, end: Instant) -> Vec<Node> {
    let start = Instant::now();
    if start >= end {
        let limit_ms = limits.overall.as_millis() as u64;
        let trouble = Trouble::Timeout { limit_ms };
        let url = target.address.base();
        return vec![Node::unknown(
            &target.name,
            Unknown::NotRead { url, trouble },
        )];
    }
    let end = end.min(start + limits.node);
    let base = target.address.base();
    let mut answers = ServerAnswers::new(&base, target.key.is_some());
    // An endpoint that hangs must leave time for those that are asked after it.
    let half = start + (end - start) / 2;
    ask(target, &FIRST, limits, half, &mut answers).await;
    if any_answer(&answers) {
        let more = next(&answers);
        ask(target, &more, limits, end, &mut answers).await;
        if target.key.is_some() {
            without_key(target, limits, end, &mut answers).await;
        }
    }
    read(&target.name, &answers)
}

/// Whether there is a server at all: if nothing connects, more questions only take time.
fn any_answer(answers: &ServerAnswers) -> bool {
    let outcomes = FIRST.iter().filter_map(|(path, _)| answers.get(path));
    let mut outcomes = outcomes.map(|it| it.as_ref().err());
    outcomes.any(|it| {
        !matches!(
            it,
            Some(Trouble::Unreachable { .. } | Trouble::Tls { .. } | Trouble::BadAddress { .. })
        )
    })
}

async fn ask(
    target: &NetTarget,
    paths: &[(&'static str, &'static str)],
    limits: &Limits,
    end: Instant,
    answers: &mut ServerAnswers,
) {
    let one = |(path, query): (&'static str, &'static str)| async move {
        let address = target.address.with_path(&format!("{path}{query}"));
        let got = get(
            &address,
            target.key.as_ref(),
            &target.tls,
            limits.answer_bytes,
            end,
        );
        (path, got.await.map(Body::into_bytes))
    };
    let mut got = stream::iter(paths.iter().copied())
        .map(one)
        .buffer_unordered(2);
    while let Some((path, outcome)) = got.next().await {
        answers.insert(path, outcome);
    }
}

/// What introspection that answered us answers to a stranger.
async fn without_key(
    target: &NetTarget,
    limits: &Limits,
    end: Instant,
    answers: &mut ServerAnswers,
) {
    for path in ["/server_info", "/get_server_info", "/props"] {
        if matches!(answers.get(path), Some(Ok(_))) {
            let address = target.address.with_path(path);
            let got = get(&address, None, &target.tls, limits.answer_bytes, end).await;
            answers.insert_bare(path, got.and_then(|it| introspects(&it.into_bytes())));
        }
    }
}

/// Whether a gateway of ours stands behind a description.
pub fn is_ours(node: &Node) -> bool {
    node.engine
        .as_ref()
        .is_ok_and(|it| it.value == Engine::Cofferdam)
}

/// `buffer_unordered` with the order restored: a slow one at the front holds up nobody.
trait BufferedAll: StreamExt + Sized {
    async fn buffered_all<T>(self, at_once: usize) -> Vec<T>
    where
        Self::Item: Future<Output = T>;
}

impl<S: StreamExt + Sized> BufferedAll for S {
    async fn buffered_all<T>(self, at_once: usize) -> Vec<T>
    where
        Self::Item: Future<Output = T>,
    {
        let numbered = self.enumerate();
        let numbered = numbered.map(|(n, it)| async move { (n, it.await) });
        let mut all: Vec<_> = numbered.buffer_unordered(at_once).collect().await;
        all.sort_by_key(|(n, _)| *n);
        all.into_iter().map(|(_, it)| it).collect()
    }
}
