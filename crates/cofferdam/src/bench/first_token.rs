//! Through the API: how long the first token takes and each one behind it, by each fabric, beside the
//! same engine in one process. Answers are checked: what is measured is a right answer.

use super::engine::tokens;
use super::figures::Times;
use anyhow::{Context, anyhow, bail, ensure};
use gate::facts::net::{Address, Tls, TlsFiles, get};
use probe::client::{HttpReply, Leave};
use probe::finding::Sent;
use probe::wire::Dialect;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Map, Value, json};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tokio::runtime::Runtime;

/// The ways to serve, the one that the others are held against first.
const WAYS: [(&str, &[&str]); 3] = [
    ("one process", &["--in-process"]),
    ("shared memory", &["--fabric=shared-memory"]),
    ("TCP", &["--fabric=tcp"]),
];
/// Tokens of an answer.
const ANSWER: u32 = 32;
/// How long a server may take to begin, and an answer to come.
const LIMIT: Duration = Duration::from_secs(600);
/// Bytes of `/readyz`.
const READY_MAX: usize = 1 << 20;

/// Servers that are ended with it.
struct Server {
    child: Child,
    endpoint: probe::TenantEndpoint,
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(pid) = Pid::from_raw(self.child.id().cast_signed()) {
            let _ = kill_process(pid, Signal::TERM);
        }
        let _ = self.child.wait();
    }
}

/// Measures prompts of these lengths, all ways in turn.
pub(super) fn measure(
    weights: &Path,
    prompts: &[u32],
    vocab: usize,
    rounds: u32,
    all: &mut Vec<Times>,
) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let longest = prompts.iter().copied().max().unwrap_or(0) + ANSWER;
    let started = WAYS.map(|(_, words)| Server::start(&runtime, weights, words, longest));
    let servers = started.into_iter().collect::<Result<Vec<_>, _>>()?;
    let mut asked = 0;
    for prompt in prompts {
        let times = |(way, _): &(&'static str, _)| Times {
            prompt: *prompt,
            way,
            first_token_ms: Vec::new(),
            each_further_ms: Vec::new(),
        };
        let mut of_ways: Vec<_> = WAYS.iter().map(times).collect();
        // The first round is not counted: memory is touched, connections are made.
        for round in 0..=rounds {
            asked += 1; // each prompt begins with another token: nothing of it is cached
            let ids = tokens(*prompt, vocab, asked);
            let mut said: Vec<String> = Vec::new();
            for (server, times) in servers.iter().zip(&mut of_ways) {
                let (text, first, further) = server.ask(&runtime, &ids)?;
                if round > 0 {
                    times.first_token_ms.push(first.as_secs_f64() * 1e3);
                    times.each_further_ms.push(further.as_secs_f64() * 1e3);
                }
                said.push(text);
            }
            let same = said.iter().all(|text| *text == said[0]);
            ensure!(
                same,
                "a prompt of {prompt} tokens has different answers: {said:?}"
            );
        }
        all.append(&mut of_ways);
    }
    Ok(())
}

impl Server {
    fn start(
        runtime: &Runtime,
        weights: &Path,
        words: &[&str],
        longest: u32,
    ) -> anyhow::Result<Self> {
        // Free now; whoever takes it before the server does is seen, since that would end it.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let log = tempfile::NamedTempFile::new()?;
        let program = std::env::current_exe().context("where this program is")?;
        let child = Command::new(program)
            .arg("serve")
            .args(words)
            .arg(format!("--port={port}"))
            .arg(format!("--max-context={longest}"))
            .arg(format!(
                "--pool-tokens={}",
                longest.next_multiple_of(16) * 2
            ))
            .arg("--model")
            .arg(weights)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log.as_file().try_clone()?)
            .spawn()
            .context("cannot start a server")?;
        let url = format!("http://127.0.0.1:{port}");
        let endpoint = probe::TenantEndpoint {
            address: Address::server(&url).map_err(|why| anyhow!("{url}: {why}"))?,
            key: None,
            tls: Tls::new(&TlsFiles::default())?,
            dialect: Dialect::Completions,
            model: None,
        };
        let mut server = Self { child, endpoint };
        let way = words.join(" ");
        server.wait(runtime).with_context(|| {
            let said = std::fs::read_to_string(log.path()).unwrap_or_default();
            format!("serve {way}: {}", said.lines().last().unwrap_or("no word"))
        })?;
        Ok(server)
    }

    /// Until it would take a request.
    fn wait(&mut self, runtime: &Runtime) -> anyhow::Result<()> {
        let ready = self.endpoint.address.with_path("/readyz");
        let until = tokio::time::Instant::now() + LIMIT;
        loop {
            if let Some(status) = self.child.try_wait()? {
                bail!("it ended with {status}");
            }
            let asked = get(&ready, None, &self.endpoint.tls, READY_MAX, until);
            match runtime.block_on(asked) {
                Ok(_) => return Ok(()),
                Err(why) => ensure!(tokio::time::Instant::now() < until, "not ready: {why}"),
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The answer to these tokens; the time to its first token, and of each behind it.
    fn ask(&self, runtime: &Runtime, ids: &[u32]) -> anyhow::Result<(String, Duration, Duration)> {
        let body = json!({
            "prompt": ids, "max_tokens": ANSWER, "ignore_eos": true, "temperature": 0, "stream": true,
            "stream_options": {"include_usage": true},
        });
        let sent = Sent {
            method: "POST",
            tenant: None,
            url: self
                .endpoint
                .address
                .with_path(Dialect::Completions.path())
                .to_string(),
            headers: Vec::new(),
            body: body
                .as_object()
                .cloned()
                .unwrap_or_else(Map::<String, Value>::new),
        };
        let reply = runtime.block_on(self.endpoint.ask(&sent, Leave::Never, LIMIT));
        let reply: HttpReply = reply.map_err(|why| anyhow!("no answer: {why:?}"))?;
        let said = &reply.said;
        let whole = reply.status == 200 && said.completion_tokens == Some(u64::from(ANSWER));
        ensure!(
            whole
                && said.prompt_tokens == Some(ids.len() as u64)
                && said.cached_tokens.unwrap_or(0) == 0,
            "a prompt of {} tokens was answered with {}: {said:?}",
            ids.len(),
            reply.status
        );
        let first = reply.first_byte.context("an answer without a first byte")?;
        let further = reply.total.saturating_sub(first) / (ANSWER - 1);
        Ok((said.text.clone(), first, further))
    }
}
