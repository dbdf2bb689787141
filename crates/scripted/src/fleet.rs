//! Engines that run, in this process.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use crate::engine::Engine;
use crate::log::{Counts, Event, What};
use crate::script::{Rule, Script};
use crate::state::{Shared, State};

/// Engines on sockets of 127.0.0.1 that share a meeting place, a script and a log. Dropped, they are
/// gone, and their connections with them.
pub struct Fleet {
    shared: Arc<Shared>,
}

impl Drop for Fleet {
    fn drop(&mut self) {
        // They hold each other through what they share.
        let engines = std::mem::take(&mut *self.shared.engines());
        engines.iter().for_each(|engine| drop(engine.kill()));
    }
}

impl Fleet {
    /// Starts engines on the present runtime. Their names must differ.
    ///
    /// # Errors
    /// A port is taken, or two engines have one name.
    pub async fn start(engines: impl IntoIterator<Item = Engine>) -> io::Result<Self> {
        Self::with_script(engines, Script::default()).await
    }

    /// Starts engines that obey a script from the first request on.
    ///
    /// # Errors
    /// As [`Fleet::start`].
    pub async fn with_script(
        engines: impl IntoIterator<Item = Engine>,
        script: Script,
    ) -> io::Result<Self> {
        let fleet = Self {
            shared: Arc::new(Shared::new(script)),
        };
        for engine in engines {
            fleet.add(engine).await?;
        }
        Ok(fleet)
    }

    /// Starts one more.
    ///
    /// # Errors
    /// As [`Fleet::start`].
    pub async fn add(&self, mut engine: Engine) -> io::Result<()> {
        if engine.name.is_empty() {
            engine.name = engine.role.name().into();
        }
        if self.shared.find(&engine.name).is_some() {
            let message = format!("two engines are called {:?}", engine.name);
            return Err(io::Error::other(message));
        }
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, engine.port))?;
        engine.port = listener.local_addr()?.port();
        let state = State::new(engine, self.shared.clone());
        self.shared.engines().push(state.clone());
        state.run(Some(listener))
    }

    fn find(&self, name: &str) -> Arc<State> {
        let found = self.shared.find(name);
        found.unwrap_or_else(|| panic!("no engine is called {name:?}"))
    }

    /// Where an engine listens.
    ///
    /// # Panics
    /// There is no engine of this name; so for all that take a name.
    pub fn address(&self, name: &str) -> SocketAddr {
        self.find(name).address()
    }

    /// Its URL, without a closing slash.
    pub fn url(&self, name: &str) -> String {
        format!("http://{}", self.address(name))
    }

    /// Its settings.
    pub fn engine(&self, name: &str) -> Engine {
        self.find(name).engine.clone()
    }

    /// Adds a rule before all others: the latest decides.
    pub fn rule(&self, rule: Rule) {
        let mut script = self.shared.script();
        let rules = std::iter::once(rule).chain(script.rules.drain(..));
        *script = Script::new(rules.collect::<Vec<_>>());
    }

    /// Another script, which begins to count anew.
    pub fn script(&self, script: Script) {
        *self.shared.script() = script;
    }

    /// Everything so far, in order.
    pub fn log(&self) -> Vec<Event> {
        self.shared.log.events()
    }

    /// What came to one engine, in order.
    pub fn arrivals(&self, name: &str) -> Vec<crate::log::Arrival> {
        let events = self.log().into_iter().filter(|it| &*it.engine == name);
        let arrival = |it: Event| match it.what {
            What::Arrived(arrival) => Some(*arrival),
            _ => None,
        };
        events.filter_map(arrival).collect()
    }

    /// One engine's counts.
    pub fn counts(&self, name: &str) -> Counts {
        self.find(name).counts()
    }

    /// All engines' counts.
    pub fn all(&self) -> Counts {
        let mut sum = Counts::default();
        self.shared
            .engines()
            .iter()
            .for_each(|it| sum.add(&it.counts()));
        sum
    }

    /// References that nobody has used yet.
    pub fn references_unused(&self) -> usize {
        self.shared.meeting.unused()
    }

    /// Forgets log and counts; what runs stays in flight.
    pub fn forget(&self) {
        self.shared.forget();
    }

    /// Waits until the counts of all engines are so; false if they are not within `time`.
    pub async fn until(&self, time: Duration, so: impl Fn(&Counts) -> bool) -> bool {
        let poll = async {
            while !so(&self.all()) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(time, poll).await.is_ok()
    }

    /// Waits until nothing is in flight; false if something still is after `time`.
    pub async fn quiet(&self, time: Duration) -> bool {
        self.until(time, |counts| counts.in_flight == 0).await
    }

    /// Ends an engine as a crash does: its port refuses, its connections are closed.
    pub async fn kill(&self, name: &str) {
        if let Some(task) = self.find(name).kill() {
            let _ = task.await;
        }
    }

    /// Starts a killed one again, at the same address.
    ///
    /// # Errors
    /// Somebody else has taken the port.
    pub async fn revive(&self, name: &str) -> io::Result<()> {
        self.find(name).run(None)
    }
}
