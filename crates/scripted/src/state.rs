//! What an engine and its fleet hold.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::task::JoinHandle;

use crate::engine::Engine;
use crate::log::{Counts, Log, Notes};
use crate::meeting::Meeting;
use crate::pages::Pages;
use crate::script::Script;
use crate::serve::serve;
use crate::work::Leg;

/// What the engines of a fleet share.
pub(crate) struct Shared {
    pub(crate) log: Arc<Log>,
    pub(crate) meeting: Meeting,
    pub(crate) script: Mutex<Script>,
    engines: Mutex<Vec<Arc<State>>>,
    numbers: AtomicU64,
}

impl Shared {
    pub(crate) fn new(script: Script) -> Self {
        Self {
            log: Arc::new(Log::new()),
            meeting: Meeting::default(),
            script: Mutex::new(script),
            engines: Mutex::default(),
            numbers: AtomicU64::new(0),
        }
    }

    pub(crate) fn next(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(crate) fn script(&self) -> MutexGuard<'_, Script> {
        self.script.lock().expect("nobody panics with it")
    }

    pub(crate) fn engines(&self) -> MutexGuard<'_, Vec<Arc<State>>> {
        self.engines.lock().expect("nobody panics with it")
    }

    pub(crate) fn find(&self, name: &str) -> Option<Arc<State>> {
        let engines = self.engines();
        engines.iter().find(|it| it.engine.name == name).cloned()
    }

    /// Forgets what was noted and counted; what runs stays in flight.
    pub(crate) fn forget(&self) {
        self.log.clear();
        self.meeting.clear();
        for engine in self.engines().iter() {
            engine.notes.count(|counts| {
                *counts = Counts {
                    in_flight: counts.in_flight,
                    ..Counts::default()
                };
            });
        }
    }
}

/// One engine.
pub(crate) struct State {
    pub(crate) engine: Engine,
    pub(crate) notes: Notes,
    pub(crate) pages: Pages,
    pub(crate) fleet: Arc<Shared>,
    running: Mutex<HashMap<u64, Arc<Leg>>>,
    task: Mutex<Option<JoinHandle<()>>>,
    pub(crate) dead: AtomicBool,
}

impl State {
    pub(crate) fn new(engine: Engine, fleet: Arc<Shared>) -> Arc<Self> {
        let notes = Notes {
            engine: engine.name.as_str().into(),
            noting: engine.noting,
            log: fleet.log.clone(),
            counts: Mutex::default(),
        };
        let pages = Pages::of(&engine);
        Arc::new(Self {
            engine,
            notes,
            pages,
            fleet,
            running: Mutex::default(),
            task: Mutex::default(),
            dead: AtomicBool::new(false),
        })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.engine.port).into()
    }

    /// Serves from this socket on, or from a new one at the same address.
    pub(crate) fn run(self: &Arc<Self>, listener: Option<TcpListener>) -> io::Result<()> {
        let listener = match listener {
            Some(listener) => listener,
            None => TcpListener::bind(self.address())?,
        };
        listener.set_nonblocking(true)?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        self.dead.store(false, Ordering::Release);
        let task = tokio::spawn(serve(listener, self.clone()));
        *self.task.lock().expect("nobody panics with it") = Some(task);
        Ok(())
    }

    /// Closes the socket and every connection.
    pub(crate) fn kill(&self) -> Option<JoinHandle<()>> {
        self.dead.store(true, Ordering::Release);
        let task = self.task.lock().expect("nobody panics with it").take();
        task.inspect(|task| task.abort())
    }

    pub(crate) fn running(&self) -> MutexGuard<'_, HashMap<u64, Arc<Leg>>> {
        self.running.lock().expect("nobody panics with it")
    }

    /// Aborts what `fits`, and says how many these are.
    pub(crate) fn abort(&self, fits: impl Fn(&str) -> bool) -> u64 {
        let running = self.running();
        let legs = running.values().filter(|leg| fits(&leg.rid));
        legs.map(|leg| leg.abort()).count() as u64
    }

    pub(crate) fn counts(&self) -> Counts {
        *self.notes.counts.lock().expect("nobody panics with it")
    }
}
