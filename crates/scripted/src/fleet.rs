//! Engines that run, in this process.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::engine::Engine;
use crate::log::{Counts, Event, What};
use crate::script::{Rule, Script};
use crate::serve::serve;
use crate::state::{Shared, State};

/// Engines on sockets of 127.0.0.1 that share a meeting place, a script and a log. Dropped, they are
/// gone, and their connections with them.
pub struct Fleet {
    shared: Arc<Shared>,
    running: Vec<Running>,
}

struct Running {
    state: Arc<State>,
    at: SocketAddr,
    task: Option<JoinHandle<()>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
        }
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
        let shared = Arc::new(Shared::new(script));
        let mut fleet = Self {
            shared,
            running: Vec::new(),
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
    pub async fn add(&mut self, mut engine: Engine) -> io::Result<()> {
        if engine.name.is_empty() {
            engine.name = engine.role.name().into();
        }
        if self
            .running
            .iter()
            .any(|it| it.state.engine.name == engine.name)
        {
            return Err(io::Error::other(format!(
                "two engines are called {:?}",
                engine.name
            )));
        }
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, engine.port)).await?;
        let at = listener.local_addr()?;
        engine.port = at.port();
        let state = State::new(engine, self.shared.clone());
        let engines = &self.shared.engines;
        engines
            .lock()
            .expect("nobody panics with it")
            .push(state.clone());
        let task = Some(tokio::spawn(serve(listener, state.clone())));
        self.running.push(Running { state, at, task });
        Ok(())
    }

    fn find(&self, name: &str) -> &Running {
        let mut all = self.running.iter();
        let found = all.find(|it| it.state.engine.name == name);
        found.unwrap_or_else(|| panic!("no engine is called {name:?}"))
    }

    /// Where an engine listens.
    ///
    /// # Panics
    /// There is no engine of this name; so for all that take a name.
    pub fn address(&self, name: &str) -> SocketAddr {
        self.find(name).at
    }

    /// Its URL, without a closing slash.
    pub fn url(&self, name: &str) -> String {
        format!("http://{}", self.address(name))
    }

    /// Its settings.
    pub fn engine(&self, name: &str) -> &Engine {
        &self.find(name).state.engine
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
        self.find(name).state.counts()
    }

    /// All engines' counts.
    pub fn all(&self) -> Counts {
        let mut sum = Counts::default();
        self.running
            .iter()
            .for_each(|it| sum.add(&it.state.counts()));
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
    pub async fn kill(&mut self, name: &str) {
        let at = self.find(name).at;
        let running = self.running.iter_mut().find(|it| it.at == at);
        if let Some(task) = running.and_then(|it| it.task.take()) {
            task.abort();
            let _ = task.await;
        }
    }

    /// Starts a killed one again, at the same address.
    ///
    /// # Errors
    /// Somebody else has taken the port.
    pub async fn revive(&mut self, name: &str) -> io::Result<()> {
        let at = self.find(name).at;
        let listener = TcpListener::bind(at).await?;
        if let Some(running) = self.running.iter_mut().find(|it| it.at == at) {
            running.task = Some(tokio::spawn(serve(listener, running.state.clone())));
        }
        Ok(())
    }
}
