//! The newest state, for everybody who reads: made and written out once for all of them, at most once
//! a second, and only while somebody reads.

use std::borrow::Cow;
use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, StreamExt};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::Desk;
use crate::headline::{Headline, headline};
use crate::keys::{Keys, Operator};
use crate::state::{DeskState, HANDOFFS_MAX, INCIDENTS_MAX, POINTS_MAX};

/// After this time without an event a comment says that there is still somebody.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// What is sent: the state, and its headline.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct View {
    /// What to say first.
    pub headline: Headline,
    /// Everything.
    pub state: DeskState,
}

#[derive(Serialize)]
struct ViewOf<'a> {
    headline: Headline,
    state: &'a DeskState,
}

/// The state of this moment as JSON.
pub(crate) fn view(state: &DeskState) -> Vec<u8> {
    let state = &*bounded(state);
    let view = ViewOf {
        headline: headline(state),
        state,
    };
    serde_json::to_vec(&view).expect("a state has string keys and no failing part")
}

/// What is shown of a state that holds more than it may.
fn bounded(state: &DeskState) -> Cow<'_, DeskState> {
    let handoffs = state.running.handoffs.len().saturating_sub(HANDOFFS_MAX);
    let fits = state.ttft.points.len() <= POINTS_MAX && state.ttft.floor.len() <= POINTS_MAX;
    if handoffs == 0 && fits && state.incidents.len() <= INCIDENTS_MAX {
        return Cow::Borrowed(state);
    }
    let mut state = state.clone();
    state.running.handoffs.truncate(HANDOFFS_MAX);
    state.running.more += handoffs as u64;
    state.ttft.points.truncate(POINTS_MAX);
    state.ttft.floor.truncate(POINTS_MAX);
    // An open one is never the one that is left out.
    state.incidents.sort_by_key(|it| it.closed_ms.is_some());
    state.incidents.truncate(INCIDENTS_MAX);
    Cow::Owned(state)
}

/// Where readers wait for the next event.
#[derive(Clone)]
pub(crate) struct Feed {
    desk: Arc<dyn Desk>,
    news: watch::Receiver<Bytes>,
}

/// Makes the feed, and what must run beside it: it looks as long as somebody could read.
pub(crate) fn feed(desk: Arc<dyn Desk>, every: Duration) -> (Feed, impl Future<Output = ()>) {
    let (send, news) = watch::channel(Bytes::new());
    let mut tick = interval(every);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let ticks = futures::stream::unfold(tick, async |mut tick| {
        tick.tick().await;
        Some(((), tick))
    });
    let looks = look(desk.clone(), ticks, send);
    (Feed { desk, news }, looks)
}

async fn look(desk: Arc<dyn Desk>, ticks: impl Stream<Item = ()>, news: watch::Sender<Bytes>) {
    let mut last: Option<Arc<DeskState>> = None;
    let mut ticks = pin!(ticks);
    while let Some(()) = ticks.next().await {
        // The server itself holds one receiver, to make others of.
        if news.receiver_count() <= 1 {
            continue;
        }
        let state = desk.state();
        if last.as_ref().is_some_and(|last| is_same(last, &state)) {
            continue;
        }
        news.send_replace(event(&state));
        last = Some(state);
    }
}

/// Whether nothing happened but time.
fn is_same(before: &Arc<DeskState>, now: &Arc<DeskState>) -> bool {
    let at_ms = before.at_ms;
    Arc::ptr_eq(before, now)
        || **before
            == DeskState {
                at_ms,
                ..DeskState::clone(now)
            }
}

fn event(state: &DeskState) -> Bytes {
    let mut event = b"data: ".to_vec();
    event.extend(view(state));
    event.extend(b"\n\n");
    event.into()
}

impl Feed {
    /// Events for one reader: first the state of this moment, then each time the newest. One that reads
    /// slowly misses what lies between; there is no queue. It ends with the operator's key.
    pub(crate) fn events(
        &self,
        keys: Keys,
        operator: Operator,
    ) -> impl Stream<Item = Result<Bytes, Infallible>> + Send + use<> {
        let mut news = self.news.clone();
        // What lies there may be as old as the last reader.
        news.mark_unchanged();
        let first = event(&self.desk.state());
        futures::stream::unfold((Some(first), news), move |(first, mut news)| {
            let (keys, operator) = (keys.clone(), operator.clone());
            async move {
                let event = match first {
                    Some(first) => first,
                    None => next(&mut news).await?,
                };
                keys.still_has(&operator)
                    .then_some((Ok(event), (None, news)))
            }
        })
    }
}

async fn next(news: &mut watch::Receiver<Bytes>) -> Option<Bytes> {
    match timeout(SILENCE_MAX, news.changed()).await {
        Ok(Ok(())) => Some(news.borrow_and_update().clone()),
        Ok(Err(_)) => None,
        Err(_) => Some(Bytes::from_static(b": still here\n\n")),
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::Pin;
    use std::sync::atomic::{AtomicU64, Ordering};

    use futures::FutureExt;
    use http::header;

    use super::*;
    use crate::{Action, ActionRefused, Done};

    const KEY: &str = "a-key-of-twenty-four-signs";

    /// A desk that is another one each time it is looked at.
    #[derive(Default)]
    struct Restless(AtomicU64);

    impl Desk for Restless {
        fn state(&self) -> Arc<DeskState> {
            let mut state = DeskState::default();
            state.running.requests = self.0.fetch_add(1, Ordering::SeqCst) + 1;
            Arc::new(state)
        }

        fn act(
            &self,
            _: Action,
        ) -> Pin<Box<dyn Future<Output = Result<Done, ActionRefused>> + Send + '_>> {
            unreachable!("nobody acts")
        }
    }

    fn seen(event: Option<Result<Bytes, Infallible>>) -> u64 {
        let event = event.unwrap().unwrap();
        let json = event.strip_prefix(b"data: ").expect("a state");
        let view: View = serde_json::from_slice(json).unwrap();
        view.state.running.requests
    }

    fn anna(keys: &Keys) -> Operator {
        let mut asked = http::HeaderMap::new();
        let key = format!("Bearer {KEY}").parse().unwrap();
        asked.insert(header::AUTHORIZATION, key);
        keys.operator(&asked).unwrap()
    }

    #[test]
    fn nobody_looks_when_nobody_reads() {
        let desk = Arc::new(Restless::default());
        let looks = || desk.0.load(Ordering::SeqCst);
        let (send, news) = watch::channel(Bytes::new());
        let keys = Keys::parse(&format!("anna {KEY}")).unwrap();
        let feed = Feed {
            desk: desk.clone(),
            news,
        };
        let events = || Box::pin(feed.events(keys.clone(), anna(&keys)));
        // The clock is the test's: ten ticks pass when it says so.
        let (tick, ticks) = futures::channel::mpsc::unbounded();
        let mut looking = pin!(look(desk.clone(), ticks, send));
        let mut ten_ticks = || {
            for () in [(); 10] {
                tick.unbounded_send(()).unwrap();
            }
            assert!(looking.as_mut().now_or_never().is_none(), "it goes on");
        };
        ten_ticks();
        assert_eq!(looks(), 0, "nobody came yet");
        let mut read = events();
        assert_eq!(seen(read.next().now_or_never().unwrap()), 1);
        ten_ticks();
        assert_eq!(looks(), 11);
        drop(read);
        ten_ticks();
        assert_eq!(looks(), 11, "nobody reads any more");
        let mut late = events();
        assert_eq!(
            seen(late.next().now_or_never().unwrap()),
            12,
            "no old state as a new one"
        );
    }
}
