//! A writer does not choose the fabric: the receiver that it hands over to has one, and says which
//! in its landings.

use crate::arena::Landing;
use crate::sender::{AttachError, Endpoint, OnCompletion, Sender};
use crate::shm::ShmSender;
use crate::tcp::TcpSender;

/// Attaches over whatever fabric a landing is of.
#[derive(Clone)]
pub struct AnySender {
    /// For arenas on this host.
    pub shm: ShmSender,
    /// For arenas anywhere.
    pub tcp: TcpSender,
}

impl Sender for AnySender {
    fn attach(
        &self,
        landing: &Landing,
        on_completion: OnCompletion,
    ) -> Result<Box<dyn Endpoint>, AttachError> {
        if TcpSender::knows(landing) {
            self.tcp.attach(landing, on_completion)
        } else {
            self.shm.attach(landing, on_completion)
        }
    }
}
