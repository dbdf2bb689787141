//! Whose text is read next: work that keeps a core busy is done a few pieces at once, and the places
//! are given to tenants in turn, so that nobody waits for more than one piece of every other tenant.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::oneshot;

use crate::engine::{Code, Fault, TenantId};

/// Most pieces of one tenant that wait; above it 429.
const WAITING_MAX: usize = 256;

/// The places, and who waits for one.
#[derive(Clone)]
pub(super) struct Turns(Arc<Mutex<State>>);

struct State {
    free: usize,
    places: usize,
    /// Most places of one tenant.
    share: usize,
    /// Who holds or waits.
    tenants: BTreeMap<TenantId, Tenant>,
    /// Who waits, the next one first.
    order: VecDeque<TenantId>,
}

#[derive(Default)]
struct Tenant {
    held: usize,
    waiting: VecDeque<oneshot::Sender<Place>>,
}

/// A place. It is given on when this is dropped.
pub(super) struct Place {
    turns: Turns,
    tenant: TenantId,
}

impl Turns {
    /// So many places.
    pub(super) fn new(places: usize) -> Self {
        Self(Arc::new(Mutex::new(State {
            free: places,
            places,
            share: places,
            tenants: BTreeMap::new(),
            order: VecDeque::new(),
        })))
    }

    /// Places for this machine.
    pub(super) fn of_this_machine() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self::new(cores.clamp(2, 4))
    }

    /// A place for this tenant, when it is its turn. One of several leaves half of the places to
    /// others.
    ///
    /// # Errors
    /// Too many of the tenant's pieces wait already.
    pub(super) async fn take(&self, tenant: &TenantId, several: bool) -> Result<Place, Fault> {
        let ours = {
            let mut state = self.lock();
            let places = state.places;
            state.share = if several { places.div_ceil(2) } else { places };
            let share = state.share;
            let free = state.free;
            let own = state.tenants.entry(tenant.clone()).or_default();
            own.waiting.retain(|waiting| !waiting.is_closed());
            if own.waiting.is_empty() && own.held < share && free > 0 {
                own.held += 1;
                state.free -= 1;
                return Ok(self.place(tenant));
            }
            if own.waiting.len() >= WAITING_MAX {
                let message = format!(
                    "{WAITING_MAX} requests of this tenant wait for their text to be read; try \
                     again, or send fewer at once"
                );
                return Err(Fault::new(Code::QueueFull, message));
            }
            let (turn, ours) = oneshot::channel();
            own.waiting.push_back(turn);
            if !state.order.contains(tenant) {
                state.order.push_back(tenant.clone());
            }
            ours
        };
        // Whoever holds a place gives it on, so this ends.
        ours.await
            .map_err(|_| Fault::new(Code::Internal, "a turn was lost"))
    }

    fn place(&self, tenant: &TenantId) -> Place {
        Place {
            turns: self.clone(),
            tenant: tenant.clone(),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The next one to get a place, which it then holds.
    fn next(&mut self) -> Option<(TenantId, oneshot::Sender<Place>)> {
        for _ in 0..self.order.len().min(self.order.len() * self.free) {
            let name = self.order.pop_front()?;
            let Some(tenant) = self.tenants.get_mut(&name) else {
                continue;
            };
            tenant.waiting.retain(|waiting| !waiting.is_closed());
            let turn = (tenant.held < self.share).then(|| tenant.waiting.pop_front());
            if !tenant.waiting.is_empty() {
                self.order.push_back(name.clone());
            }
            if let Some(Some(turn)) = turn {
                tenant.held += 1;
                self.free -= 1;
                return Some((name, turn));
            }
        }
        None
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut given = Vec::new();
        {
            let mut state = self.turns.lock();
            state.free += 1;
            if let Some(tenant) = state.tenants.get_mut(&self.tenant) {
                tenant.held -= 1;
            }
            while let Some((tenant, turn)) = state.next() {
                given.push((turn, self.turns.place(&tenant)));
            }
            if let Some(tenant) = state.tenants.get(&self.tenant)
                && tenant.held == 0
                && tenant.waiting.is_empty()
            {
                state.tenants.remove(&self.tenant);
            }
        }
        // Outside the lock: whoever has left meanwhile drops its place, which comes here again.
        for (turn, place) in given {
            let _ = turn.send(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    type Taking<'t> = std::pin::Pin<Box<dyn Future<Output = Result<Place, Fault>> + 't>>;

    fn now(taking: &mut Taking<'_>) -> Option<Result<Place, Fault>> {
        match taking
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
        {
            Poll::Ready(got) => Some(got),
            Poll::Pending => None,
        }
    }

    fn begin<'t>(turns: &'t Turns, tenant: &'t TenantId) -> (Taking<'t>, Option<Place>) {
        let mut taking: Taking = Box::pin(turns.take(tenant, true));
        let got = now(&mut taking).map(Result::unwrap);
        (taking, got)
    }

    #[test]
    fn a_tenant_leaves_places_and_the_next_turn_to_others() {
        let turns = Turns::new(3);
        let [red, blue, green] = ["red", "blue", "green"].map(TenantId::new);
        let (_a, first) = begin(&turns, &red);
        let (_b, second) = begin(&turns, &red);
        let (mut third, none) = begin(&turns, &red);
        let (mut fourth, also_none) = begin(&turns, &red);
        assert!(first.is_some() && second.is_some());
        assert!(none.is_none() && also_none.is_none(), "its share is two");
        let (_c, other) = begin(&turns, &blue);
        assert!(other.is_some(), "a place was left to another tenant");
        let (mut fifth, none) = begin(&turns, &green);
        assert!(none.is_none(), "all three are taken");
        drop(first);
        // Red asked first, and is under its share again.
        let red_again = now(&mut third).expect("red's turn").unwrap();
        assert!(now(&mut fifth).is_none());
        drop(second);
        let green_now = now(&mut fifth)
            .expect("then green's, before red's next")
            .unwrap();
        assert!(now(&mut fourth).is_none());
        drop(red_again);
        assert!(now(&mut fourth).is_some());
        drop((green_now, other));
    }

    #[test]
    fn who_leaves_the_queue_takes_no_place_with_it() {
        let turns = Turns::new(1);
        let red = TenantId::new("red");
        let (_a, first) = begin(&turns, &red);
        let (second, _) = begin(&turns, &red);
        let (mut third, _) = begin(&turns, &red);
        let (fourth, _) = begin(&turns, &red);
        drop(second);
        drop(first);
        drop(fourth); // after nothing was sent to it
        let place = now(&mut third).expect("the next who still waits").unwrap();
        // Sent and not taken up: the place comes back by itself.
        let (fifth, _) = begin(&turns, &red);
        drop(place);
        drop(fifth);
        assert!(begin(&turns, &red).1.is_some());
        assert!(turns.lock().tenants.is_empty(), "nothing is remembered");
    }

    #[test]
    fn the_queue_of_a_tenant_ends() {
        let turns = Turns::new(1);
        let (red, blue) = (TenantId::new("red"), TenantId::new("blue"));
        let (_a, _first) = begin(&turns, &red);
        let waiting: Vec<_> = (0..WAITING_MAX).map(|_| begin(&turns, &red)).collect();
        let mut more = pin!(turns.take(&red, true));
        let Poll::Ready(refused) = more.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        else {
            panic!("it waits");
        };
        let fault = refused.err().expect("a refusal");
        assert_eq!(fault.code, Code::QueueFull);
        assert!(
            fault.message.contains("256 requests of this tenant"),
            "{fault}"
        );
        let (_b, other) = begin(&turns, &blue);
        assert!(other.is_none(), "another tenant may still wait");
        drop(waiting);
        assert!(begin(&turns, &red).1.is_none(), "and so may this one again");
    }
}
