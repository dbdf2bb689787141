//! A load over kept connections, and what it costs a process.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Requests over kept connections.
#[derive(clap::Args)]
pub struct Load {
    /// Where to: 127.0.0.1:30000
    address: SocketAddr,
    /// Of the request.
    #[arg(long, default_value = "/v1/chat/completions")]
    path: String,
    /// Connections, each with one request at a time.
    #[arg(long, default_value_t = 16)]
    connections: usize,
    /// How long, after a quarter of a second to warm up.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Of the request's body, about.
    #[arg(long, default_value_t = 1100)]
    bytes: usize,
    /// Answers as a stream.
    #[arg(long)]
    stream: bool,
    /// Of the answer.
    #[arg(long, default_value_t = 8)]
    max_tokens: u64,
    /// The model that is asked for.
    #[arg(long, default_value = "scripted")]
    model: String,
    /// A process whose processor time counts.
    #[arg(long)]
    pid: Option<u32>,
}

/// What one connection has measured, in nanoseconds.
#[derive(Default)]
struct Times {
    all: Vec<u64>,
    failed: u64,
}

impl Load {
    /// Runs it, and prints one line of JSON.
    ///
    /// # Errors
    /// Nobody listens, or a connection fails.
    pub async fn run(self) -> Result<()> {
        let request: Arc<[u8]> = self.request().into();
        self.measure(&request, Duration::from_millis(250)).await?;
        let before = self.pid.map(processor_time).transpose()?;
        let began = Instant::now();
        let times = self
            .measure(&request, Duration::from_secs_f64(self.seconds))
            .await?;
        let took = began.elapsed().as_secs_f64();
        let after = self.pid.map(processor_time).transpose()?;
        let mut all: Vec<_> = times.iter().flat_map(|it| it.all.iter().copied()).collect();
        all.sort_unstable();
        let failed: u64 = times.iter().map(|it| it.failed).sum();
        let at = |share: f64| {
            all.get((all.len() as f64 * share) as usize)
                .map(|it| *it as f64 / 1e3)
        };
        let cost = before
            .zip(after)
            .map(|(before, after)| (after - before) * 1e6 / all.len() as f64);
        let figures = json!({
            "requests": all.len(), "failed": failed, "per_second": all.len() as f64 / took,
            "p50_us": at(0.5), "p99_us": at(0.99), "processor_us": cost,
            "rss_mb": self.pid.map(resident).transpose()?,
        });
        println!("{figures}");
        Ok(())
    }

    fn request(&self) -> Vec<u8> {
        let content = " the".repeat(self.bytes.saturating_sub(130) / 4);
        let mut body = json!({
            "model": self.model, "messages": [{"role": "user", "content": content}],
            "max_tokens": self.max_tokens, "stream": self.stream, "temperature": 0,
        });
        if self.path.ends_with("/completions") && !self.path.contains("chat") {
            body["prompt"] = content.into();
        }
        let body = body.to_string();
        let (path, length) = (&self.path, body.len());
        format!(
            "POST {path} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}",
            self.address
        )
        .into_bytes()
    }

    async fn measure(&self, request: &Arc<[u8]>, time: Duration) -> Result<Vec<Times>> {
        let end = Instant::now() + time;
        let one = |_| tokio::spawn(connection(self.address, request.clone(), end));
        let running: Vec<_> = (0..self.connections).map(one).collect();
        let mut times = Vec::new();
        for task in running {
            times.push(task.await??);
        }
        Ok(times)
    }
}

async fn connection(at: SocketAddr, request: Arc<[u8]>, end: Instant) -> Result<Times> {
    let mut stream = TcpStream::connect(at).await.context("nobody listens")?;
    stream.set_nodelay(true)?;
    let mut times = Times::default();
    let mut buffer = Vec::with_capacity(64 << 10);
    while Instant::now() < end {
        let began = Instant::now();
        stream.write_all(&request).await?;
        buffer.clear();
        match response(&mut stream, &mut buffer).await? {
            200 => times.all.push(began.elapsed().as_nanos() as u64),
            _ => times.failed += 1,
        }
    }
    Ok(times)
}

/// Reads one response to its end, and says its status.
async fn response(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Result<u16> {
    let mut framing = None;
    loop {
        if stream.read_buf(buffer).await? == 0 {
            bail!("closed within a response");
        }
        if framing.is_none() {
            framing = head(buffer)?;
        }
        let over = match framing {
            Some((_, Some(length))) => buffer.len() >= length,
            Some((_, None)) => buffer.ends_with(b"0\r\n\r\n"),
            None => false,
        };
        if let (true, Some((status, _))) = (over, framing) {
            return Ok(status);
        }
    }
}

/// Status, and where the response ends if its head says so.
fn head(buffer: &[u8]) -> Result<Option<(u16, Option<usize>)>> {
    let Some(end) = buffer.windows(4).position(|it| it == b"\r\n\r\n") else {
        return Ok(None);
    };
    let text = std::str::from_utf8(&buffer[..end])?.to_ascii_lowercase();
    let status = text.get(9..12).context("no status")?.parse()?;
    let length = text
        .lines()
        .find_map(|it| it.strip_prefix("content-length:"));
    let length = length.map(|it| it.trim().parse::<usize>()).transpose()?;
    Ok(Some((status, length.map(|it| end + 4 + it))))
}

/// Seconds of processor time that a process has had, its threads included.
fn processor_time(pid: u32) -> Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let after = stat.rsplit(')').next().context("no name")?;
    let field = |n: usize| -> Result<f64> {
        let field = after.split_whitespace().nth(n);
        Ok(field.context("a field")?.parse()?)
    };
    // Ticks are hundredths of a second on every Linux that is in use.
    Ok((field(11)? + field(12)?) / 100.0)
}

fn resident(pid: u32) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|it| it.strip_prefix("VmRSS:"));
    let kib: f64 = line
        .and_then(|it| it.split_whitespace().next())
        .context("VmRSS")?
        .parse()?;
    Ok(kib / 1024.0)
}
