//! A line between two parts that a test can cut or hold up: it passes bytes on and knows nothing of
//! what they mean.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// Listens on a port of its own and passes everything on to another.
pub struct Line {
    pub at: SocketAddr,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    now: Mutex<Now>,
    changed: Condvar,
}

#[derive(Default)]
struct Now {
    /// Passed on towards the listener behind, on all connections.
    forward_bytes: u64,
    /// Nothing is passed on beyond this.
    hold_at_bytes: Option<u64>,
    /// Both ends of what is connected.
    sockets: Vec<TcpStream>,
    connections: u64,
}

impl Line {
    /// A line to `to`, which need not listen yet.
    pub fn to(to: SocketAddr) -> Line {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let state = Arc::new(State::default());
        let shared = state.clone();
        std::thread::spawn(move || {
            for from in listener.incoming() {
                let (Ok(from), Ok(to)) = (from, TcpStream::connect(to)) else {
                    continue;
                };
                shared.connect(&from, &to);
                let (back, forth) = (shared.clone(), shared.clone());
                let ends = (from.try_clone().unwrap(), to.try_clone().unwrap());
                std::thread::spawn(move || forth.pass(from, to, true));
                std::thread::spawn(move || back.pass(ends.1, ends.0, false));
            }
        });
        Line { at, state }
    }

    /// Holds everything up that comes after so many bytes more.
    pub fn hold_after(&self, bytes: u64) {
        let mut now = self.state.lock();
        now.hold_at_bytes = Some(now.forward_bytes + bytes);
    }

    /// Waits until as much has passed as may.
    pub fn await_held(&self) {
        let now = self.state.lock();
        let is_held = |now: &mut Now| Some(now.forward_bytes) != now.hold_at_bytes;
        drop(self.state.changed.wait_while(now, is_held).unwrap());
    }

    /// Lets what was held up, and everything after it, pass.
    pub fn release(&self) {
        self.state.lock().hold_at_bytes = None;
        self.state.changed.notify_all();
    }

    /// Cuts every connection; what is held up on them is lost. New ones are let in.
    pub fn cut(&self) {
        let mut now = self.state.lock();
        for socket in now.sockets.drain(..) {
            let _ = socket.shutdown(Shutdown::Both);
        }
        now.hold_at_bytes = None;
        self.state.changed.notify_all();
    }

    /// Connections so far.
    pub fn connections(&self) -> u64 {
        self.state.lock().connections
    }
}

impl State {
    fn lock(&self) -> std::sync::MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connect(&self, from: &TcpStream, to: &TcpStream) {
        let mut now = self.lock();
        now.connections += 1;
        let both = [from, to].map(|socket| socket.try_clone().unwrap());
        now.sockets.extend(both);
    }

    fn pass(&self, mut from: TcpStream, mut to: TcpStream, forward: bool) {
        let mut buffer = [0; 16 << 10];
        while let Ok(read @ 1..) = from.read(&mut buffer) {
            let mut rest = &buffer[..read];
            while !rest.is_empty() {
                let may = if forward {
                    self.may(rest.len())
                } else {
                    rest.len()
                };
                if to.write_all(&rest[..may]).is_err() {
                    return;
                }
                rest = &rest[may..];
            }
        }
        let _ = to.shutdown(Shutdown::Write);
    }

    /// How many of these bytes may pass, at least one; waits until one may.
    fn may(&self, wanted: usize) -> usize {
        let left = |now: &Now| now.hold_at_bytes.map(|at| at - now.forward_bytes);
        let now = self.lock();
        let held = self.changed.wait_while(now, |now| left(now) == Some(0));
        let mut now = held.unwrap();
        let may = left(&now).map_or(wanted, |left| wanted.min(left as usize));
        now.forward_bytes += may as u64;
        self.changed.notify_all();
        may
    }
}
