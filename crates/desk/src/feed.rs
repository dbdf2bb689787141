//! The newest state, for everybody who reads: made and written out once for all of them, at most once
//! a second, and only while somebody reads.

use std::borrow::Cow;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::Stream;
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
    let looks = look(desk.clone(), every, send);
    (Feed { desk, news }, looks)
}

async fn look(desk: Arc<dyn Desk>, every: Duration, news: watch::Sender<Bytes>) {
    let mut last: Option<Arc<DeskState>> = None;
    let mut tick = interval(every);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
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
