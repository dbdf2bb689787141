//! Where a laboratory may stand: between a worker and its fabric.

use fabric::{Receiver, Sender};
use std::sync::Arc;

/// Both ends of the fabric pass through here once, before a worker uses them. The product's
/// [`Nothing`] hands them on as they are; a laboratory wraps them, so that faults come from outside
/// and the product has nothing that could be switched on.
pub trait FabricLayer {
    /// The writing end, prefill's.
    fn sender(&self, sender: Arc<dyn Sender>) -> Arc<dyn Sender> {
        sender
    }

    /// The landing end, decode's.
    fn receiver(&self, receiver: Box<dyn Receiver>) -> Box<dyn Receiver> {
        receiver
    }
}

/// Nobody stands there: what is shipped.
#[derive(Clone, Copy, Debug, Default)]
pub struct Nothing;

impl FabricLayer for Nothing {}
