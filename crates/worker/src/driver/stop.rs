//! Telling a worker to end, from a signal or from the program around it.

use tokio::sync::watch;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Wish {
    #[default]
    GoOn,
    Drain,
    Now,
}

/// The way to tell a running worker to end. Clones tell the same worker.
#[derive(Clone, Debug)]
pub struct Stop(watch::Sender<Wish>);

impl Default for Stop {
    fn default() -> Self {
        Self(watch::Sender::new(Wish::GoOn))
    }
}

impl Stop {
    /// No new attempts; what runs may finish, for as long as the worker's configuration says.
    pub fn drain(&self) {
        self.0.send_if_modified(|wish| {
            let new = *wish == Wish::GoOn;
            *wish = (*wish).max(Wish::Drain);
            new
        });
    }

    /// End now. What runs fails.
    pub fn now(&self) {
        self.0.send_replace(Wish::Now);
    }

    pub(crate) fn watch(&self) -> watch::Receiver<Wish> {
        self.0.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_never_taken_back() {
        let stop = Stop::default();
        let seen = stop.watch();
        stop.drain();
        assert_eq!(*seen.borrow(), Wish::Drain);
        stop.now();
        stop.drain();
        assert_eq!(*seen.borrow(), Wish::Now);
    }
}
