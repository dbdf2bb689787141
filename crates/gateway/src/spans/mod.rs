//! OpenTelemetry spans of requests: request, and below it queue, prefill, handoff and decode. Ids,
//! figures and names of workers; never a text. A request never waits for a collector: spans go into a
//! queue that is bounded, and what does not fit is dropped and counted.
//!
//! Without an address of a collector there is no queue, no task and no id: [`Spans::default`].

mod export;
mod otlp;
mod steps;

pub use export::{Collector, SpanCounts, address};
pub use steps::Steps;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::mpsc;

/// Where spans go; by default nowhere. Cheap to clone.
#[derive(Clone, Default)]
pub struct Spans(Option<Arc<Queue>>);

struct Queue {
    send: mpsc::Sender<Span>,
    counts: Arc<SpanCounts>,
}

impl Spans {
    /// A request that begins, if spans are wanted: under the client's `traceparent`, if it sent a good
    /// one. Nothing but the names of spans depends on that.
    pub fn request(&self, traceparent: Option<&str>) -> Option<Traced> {
        self.0.as_ref()?;
        let client = traceparent.and_then(read_traceparent);
        let (trace, parent, sampled) = client.unwrap_or((number(), 0, true));
        Some(Traced {
            spans: self.clone(),
            trace,
            span: number(),
            parent,
            sampled,
        })
    }

    /// What came of spans so far.
    pub fn counts(&self) -> Option<&SpanCounts> {
        self.0.as_ref().map(|it| &*it.counts)
    }

    fn send(&self, span: Span) {
        if let Some(queue) = &self.0
            && queue.send.try_send(span).is_err()
        {
            queue.counts.lose(1);
        }
    }
}

/// A span that others are below: of a request, or of a leg.
#[derive(Clone)]
pub struct Traced {
    spans: Spans,
    trace: u128,
    span: u64,
    /// 0: none.
    parent: u64,
    sampled: bool,
}

impl fmt::Debug for Traced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}-{:016x}", self.trace, self.span)
    }
}

impl PartialEq for Traced {
    fn eq(&self, other: &Self) -> bool {
        (self.trace, self.span) == (other.trace, other.span)
    }
}

impl Traced {
    /// What engines are told, so that their own spans are below this one.
    pub fn traceparent(&self) -> String {
        let flags = u8::from(self.sampled);
        format!("00-{:032x}-{:016x}-{flags:02x}", self.trace, self.span)
    }

    /// One below this one.
    pub fn below(&self) -> Traced {
        Traced {
            span: number(),
            parent: self.span,
            ..self.clone()
        }
    }

    /// Says that it was; once.
    pub fn was(
        &self,
        name: &'static str,
        kind: SpanKind,
        times: (SystemTime, SystemTime),
        what: What,
    ) {
        if !self.sampled {
            return; // the client's tracing does not want it
        }
        self.spans.send(Span {
            trace: self.trace,
            span: self.span,
            parent: self.parent,
            name,
            kind,
            start: nanos(times.0),
            end: nanos(times.1).max(nanos(times.0)),
            what,
        });
    }
}

/// What a span is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    /// Something inside.
    Internal = 1,
    /// A request that came in.
    Server = 2,
    /// A request that went out.
    Client = 3,
}

/// What is said of a span: ids, names and figures. There is no way to say a prompt here but to write
/// it out in the code.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct What {
    /// Names and values.
    pub words: Vec<(&'static str, String)>,
    /// Names and figures.
    pub figures: Vec<(&'static str, u64)>,
    /// Whether it failed.
    pub failed: bool,
}

impl What {
    /// With this word, if there is one.
    pub fn word(mut self, name: &'static str, value: impl Into<String>) -> Self {
        let value: String = value.into();
        if !value.is_empty() {
            self.words.push((name, value));
        }
        self
    }

    /// With this figure.
    pub fn figure(mut self, name: &'static str, value: impl Into<u64>) -> Self {
        self.figures.push((name, value.into()));
        self
    }
}

struct Span {
    trace: u128,
    span: u64,
    parent: u64,
    name: &'static str,
    kind: SpanKind,
    start: u128,
    end: u128,
    what: What,
}

fn nanos(at: SystemTime) -> u128 {
    at.duration_since(UNIX_EPOCH)
        .unwrap_or(Duration::ZERO)
        .as_nanos()
}

/// Trace, parent and whether it is sampled, of a header as the W3C has it; of a wrong one nothing.
fn read_traceparent(text: &str) -> Option<(u128, u64, bool)> {
    let mut parts = text.trim().split('-');
    let mut part = |length: usize| {
        let part = parts.next()?;
        let good = part.len() == length
            && part
                .bytes()
                .all(|it| matches!(it, b'0'..=b'9' | b'a'..=b'f'));
        good.then_some(part)
    };
    let (version, trace, span, flags) = (part(2)?, part(32)?, part(16)?, part(2)?);
    let more = parts.next().is_some();
    let trace = u128::from_str_radix(trace, 16).ok().filter(|it| *it != 0)?;
    let span = u64::from_str_radix(span, 16).ok().filter(|it| *it != 0)?;
    let flags = u8::from_str_radix(flags, 16).ok()?;
    let known = version != "ff" && !(version == "00" && more);
    known.then_some((trace, span, flags & 1 == 1))
}

/// A random number that is not zero. Names of spans guard nothing: without entropy they are alike.
fn number<T: Named>() -> T {
    T::random()
}

trait Named {
    fn random() -> Self;
}

impl Named for u64 {
    fn random() -> Self {
        getrandom::u64().unwrap_or(1).max(1)
    }
}

impl Named for u128 {
    fn random() -> Self {
        u128::from(u64::random()) << 64 | u128::from(u64::random())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clients_trace_is_gone_on_with_and_a_wrong_one_is_not() {
        let good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let trace = 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c;
        assert_eq!(
            read_traceparent(good),
            Some((trace, 0xb7ad_6b71_6920_3331, true))
        );
        let off = good.replace("-01", "-00");
        assert_eq!(
            read_traceparent(&off),
            Some((trace, 0xb7ad_6b71_6920_3331, false))
        );
        let later = good.replacen("00", "cc", 1) + "-what-comes";
        assert!(read_traceparent(&later).is_some());
        for wrong in [
            "",
            "00",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-1",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-x",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ] {
            assert_eq!(read_traceparent(wrong), None, "{wrong}");
        }
        assert!(
            Spans::default().request(Some(good)).is_none(),
            "nobody wants any"
        );
    }
}
