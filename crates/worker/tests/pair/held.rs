//! A prefill worker that is held in the middle of a handoff. How far a process has come when a
//! signal reaches it depends on the machine's load, so it is made to wait there.

use fabric::{
    ArenaId, AttachError, Endpoint, Landing, OnCompletion, Sender, SlotWrite, SourcesReleased,
    SubmissionId, SubmitError,
};
use std::io::Read;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use worker::FabricLayer;

fn turnstile(dir: &Path) -> PathBuf {
    dir.join("turnstile.sock")
}

/// Where prefill asks before it submits a batch, for as long as this lives.
pub struct Turnstile {
    asked: UnixListener,
    path: PathBuf,
}

impl Turnstile {
    pub fn new(dir: &Path) -> Self {
        let path = turnstile(dir);
        let asked = UnixListener::bind(&path).unwrap();
        Self { asked, path }
    }

    /// The first batch has gone, the second waits until what this returns is dropped; those
    /// behind it do not ask.
    pub fn at_the_second(self, wait: impl Fn(&UnixListener)) -> UnixStream {
        let ask = || {
            wait(&self.asked);
            self.asked.accept().unwrap().0
        };
        drop(ask());
        ask()
    }
}

impl Drop for Turnstile {
    fn drop(&mut self) {
        std::fs::remove_file(&self.path).unwrap();
    }
}

/// Prefill's side: nobody is asked where there is no turnstile.
pub struct Asking(pub PathBuf);

impl FabricLayer for Asking {
    fn sender(&self, sender: Arc<dyn Sender>) -> Arc<dyn Sender> {
        let turnstile = turnstile(&self.0);
        Arc::new(Held { sender, turnstile })
    }
}

struct Held {
    sender: Arc<dyn Sender>,
    turnstile: PathBuf,
}

impl Sender for Held {
    fn attach(
        &self,
        landing: &Landing,
        on_completion: OnCompletion,
    ) -> Result<Box<dyn Endpoint>, AttachError> {
        let endpoint = self.sender.attach(landing, on_completion)?;
        let turnstile = self.turnstile.clone();
        Ok(Box::new(Way {
            endpoint,
            turnstile,
        }))
    }
}

struct Way {
    endpoint: Box<dyn Endpoint>,
    turnstile: PathBuf,
}

impl Endpoint for Way {
    fn arena(&self) -> ArenaId {
        self.endpoint.arena()
    }

    fn submit(&mut self, id: SubmissionId, writes: Vec<SlotWrite>) -> Result<(), SubmitError> {
        if let Ok(mut held) = UnixStream::connect(&self.turnstile) {
            // Ended by the other side's end, whatever kind of end that is.
            let _ = held.read(&mut [0]);
        }
        self.endpoint.submit(id, writes)
    }

    fn destroy(self: Box<Self>) -> SourcesReleased {
        self.endpoint.destroy()
    }
}
