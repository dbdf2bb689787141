//! Answers as server-sent events.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use http::{HeaderValue, Response, header};
use serde_json::Value;
use tokio::sync::mpsc::{self, error::TrySendError};

use super::access_log::Outcome;
use super::body::Reply;
use super::choice::Piece;
use super::errors;
use super::generate::{next, refuse, signed};
use super::render::Envelope;
use super::responses::Events;
use super::router::Shared;
use super::run::Run;

/// Waits for the first token, then answers 200 and goes on in a task of its own. A fault before
/// the first token is a status; a fault after it ends the stream without `[DONE]` (H-6).
pub(super) async fn answer(
    shared: &Arc<Shared>,
    mut run: Run,
    envelope: Envelope,
) -> Response<Reply> {
    let first = match next(&mut run, &mut shared.phase.clone()).await {
        Ok(Some(piece)) => piece,
        Ok(None) => unreachable!("a run cannot be done without a piece that ended a choice"),
        Err(fault) => return refuse(&mut run, &fault),
    };
    let (send, frames) = mpsc::channel(shared.config.stream_buffer.max(1));
    let complete = Arc::new(AtomicBool::new(false));
    let body = Reply::Stream {
        frames,
        complete: complete.clone(),
        ending: false,
    };
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/event-stream; charset=utf-8"),
    );
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    run.record.status = response.status().as_u16();
    let response = signed(response, &run.record);
    let opened = Vec::new();
    let events = envelope.events();
    let pump = Pump {
        shared: shared.clone(),
        run,
        envelope,
        send,
        complete,
        opened,
        events,
    };
    tokio::spawn(pump.run(first));
    response
}

/// Carries pieces from the engine to the connection. It never waits for the client: it reads the
/// engine at once and puts frames into a bounded queue; when that is full, the client has stopped
/// reading and the request is cancelled.
struct Pump {
    shared: Arc<Shared>,
    run: Run,
    envelope: Envelope,
    send: mpsc::Sender<Bytes>,
    complete: Arc<AtomicBool>,
    /// Choices whose opening chunk was sent.
    opened: Vec<u16>,
    /// For an answer that has events instead of chunks.
    events: Option<Events>,
}

impl Pump {
    async fn run(mut self, first: Piece) {
        let outcome = self.carry(first).await;
        if let Some(outcome) = outcome {
            self.run.record.end(outcome);
        }
        self.complete
            .store(outcome == Some(Outcome::Ok), Ordering::Release);
        // Only now is the sender dropped, so that the body sees how it ended.
    }

    /// How it ended; none if the record has been told already.
    async fn carry(&mut self, first: Piece) -> Option<Outcome> {
        let mut phase = self.shared.phase.clone();
        let mut piece = first;
        loop {
            let frame = self.frame(&piece);
            if let Err(outcome) = self.put(frame) {
                return Some(outcome);
            }
            let step = tokio::select! {
                biased;
                step = next(&mut self.run, &mut phase) => step,
                () = self.send.closed() => return Some(Outcome::ClientLeft),
            };
            match step {
                Ok(Some(next)) => piece = next,
                Ok(None) => {
                    let usage = self.run.usage();
                    if let Some(events) = &mut self.events {
                        let frame = events.end(usage);
                        return Some(self.put(frame).err().unwrap_or(Outcome::Ok));
                    }
                    let mut frame = String::new();
                    if let Some(chunk) = self.envelope.closing(usage) {
                        event(&mut frame, &chunk);
                    }
                    frame += "data: [DONE]\n\n";
                    return Some(
                        self.put(frame)
                            .map_or_else(|outcome| outcome, |()| Outcome::Ok),
                    );
                }
                Err(fault) => {
                    self.run.record.fail(&fault);
                    let mut frame = String::new();
                    match &mut self.events {
                        Some(events) => frame = events.failed(&fault),
                        None => event(&mut frame, &errors::envelope(&fault)),
                    }
                    let _ = self.put(frame); // it fails either way
                    return None;
                }
            }
        }
    }

    fn frame(&mut self, piece: &Piece) -> String {
        let mut frame = String::new();
        let usage = self.run.usage();
        if let Some(events) = &mut self.events {
            return events.piece(piece);
        }
        if !self.opened.contains(&piece.choice) {
            self.opened.push(piece.choice);
            if let Some(chunk) = self.envelope.opening(piece.choice, usage) {
                event(&mut frame, &chunk);
            }
        }
        for chunk in self.envelope.chunks(piece, usage, &*self.shared.text) {
            event(&mut frame, &chunk);
        }
        frame
    }

    fn put(&self, frame: String) -> Result<(), Outcome> {
        if frame.is_empty() {
            return Ok(());
        }
        self.send
            .try_send(frame.into())
            .map_err(|error| match error {
                TrySendError::Full(_) => Outcome::ClientSlow,
                TrySendError::Closed(_) => Outcome::ClientLeft,
            })
    }
}

/// One event. JSON has no raw line break, so one `data:` line holds it.
fn event(frame: &mut String, value: &Value) {
    use std::fmt::Write;
    let _ = write!(frame, "data: {value}\n\n"); // a String takes everything
}
