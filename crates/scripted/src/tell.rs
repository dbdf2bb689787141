//! Bodies: whole or in chunks, to their end or not.

use std::convert::Infallible;
use std::future::pending;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::unfold;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;

use crate::script::Act;
use crate::shapes::{Finish, Spoken};
use crate::work::Work;

/// So that what was said before a cut leaves first.
const BEFORE_A_CUT: Duration = Duration::from_millis(5);

/// The connection is closed here.
#[derive(Debug)]
pub(crate) struct Gone;

impl std::fmt::Display for Gone {
    fn fmt(&self, formatter: &mut std::fmt::Formatter) -> std::fmt::Result {
        formatter.write_str("closed, as the script says")
    }
}

impl std::error::Error for Gone {}

pub(crate) type Body = UnsyncBoxBody<Bytes, Gone>;

pub(crate) fn full(bytes: impl Into<Bytes>) -> Body {
    let never = |never: Infallible| match never {};
    Full::new(bytes.into()).map_err(never).boxed_unsync()
}

/// A body in chunks.
struct Telling {
    work: Work,
    spoken: Spoken,
    act: Act,
    gap: Duration,
    /// The place of the next frame: 0 is what comes before the first token.
    at: usize,
    rounds: u8,
}

pub(crate) fn stream(work: Work, spoken: Spoken, act: Act, gap: Duration) -> Body {
    let rounds = if act == Act::Twice { 2 } else { 1 };
    let telling = Telling {
        work,
        spoken,
        act,
        gap,
        at: 0,
        rounds,
    };
    StreamBody::new(unfold(telling, next)).boxed_unsync()
}

type Told = (Result<Frame<Bytes>, Gone>, Telling);

async fn next(mut telling: Telling) -> Option<Told> {
    if telling.rounds == 0 {
        return None;
    }
    let place = telling.at;
    telling.at += 1;
    if place == 0 {
        match telling.spoken.opening() {
            Some(opening) => return telling.say(opening),
            None => telling.at = 2,
        }
    }
    let said = place.max(1) - 1;
    telling.token(said).await
}

impl Telling {
    async fn token(mut self, said: usize) -> Option<Told> {
        let all = self.spoken.ids.len();
        if said > 0 && said < all && self.work.pause(self.gap).await.is_err()
            || !self.work.deaf && self.work.leg.is_aborted()
        {
            return self.abort(said);
        }
        if said >= all.div_ceil(2) {
            match self.act {
                Act::Cut => {
                    self.work.end(200);
                    self.rounds = 0;
                    tokio::time::sleep(BEFORE_A_CUT).await;
                    return Some((Err(Gone), self));
                }
                Act::Stall => return pending().await,
                _ => {}
            }
        }
        if said < all {
            let chunk = self.spoken.chunk(said);
            return self.say(chunk);
        }
        if self.act == Act::Endless && all > 0 {
            tokio::time::sleep(self.gap.max(Duration::from_millis(1))).await;
            let chunk = self.spoken.chunk(0);
            return self.say(chunk);
        }
        self.close(all)
    }

    fn say(self, text: String) -> Option<Told> {
        Some((Ok(Frame::data(text.into())), self))
    }

    fn close(mut self, said: usize) -> Option<Told> {
        let mut closing = self.spoken.closing(said);
        if let (Act::InBand, Finish::Abort { message, .. }) = (&self.act, &self.spoken.finish)
            && self.spoken.ids.is_empty()
        {
            closing = self.spoken.in_band(message);
        }
        self.rounds -= 1;
        self.at = 0;
        if self.rounds == 0 {
            self.work.end(200);
        }
        self.say(closing)
    }

    fn abort(mut self, said: usize) -> Option<Told> {
        self.spoken.finish = Finish::Abort {
            message: "Aborted".into(),
            status: None,
        };
        self.work.aborted();
        let closing = self.spoken.closing(said);
        self.rounds = 0;
        self.say(closing)
    }
}

/// A whole body that is cut, stalls or does not end, and its length if it has one.
pub(crate) fn broken_off(work: Work, text: String, act: &Act) -> (Body, Option<usize>) {
    let length = (*act != Act::Endless).then_some(text.len());
    let half = match act {
        Act::Endless => text.len() - 1,
        _ => text.len() / 2,
    };
    let first = Bytes::from(text).slice(..half);
    let start = (Some(first), work, act.clone());
    let body = unfold(start, |(first, mut work, act)| async move {
        if let Some(first) = first {
            return Some((Ok(Frame::data(first)), (None, work, act)));
        }
        match act {
            Act::Cut => {
                work.end(200);
                tokio::time::sleep(BEFORE_A_CUT).await;
                Some((Err(Gone), (None, work, act)))
            }
            Act::Endless => {
                tokio::time::sleep(Duration::from_millis(1)).await;
                Some((Ok(Frame::data(Bytes::from_static(b" "))), (None, work, act)))
            }
            _ => pending().await,
        }
    });
    (StreamBody::new(body).boxed_unsync(), length)
}
