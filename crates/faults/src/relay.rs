//! Faults of the control plane: a relay between a dialler and a listener, with certificates of the
//! cluster for both sides. The processes on both sides are the shipped ones and see a peer.

use super::faults::{Kind, Schedule};
use super::tap::{Tap, Way};
use anyhow::Context;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use wire::control::{Addr, Connection, Identity, Limits, Listener, Role};

/// Room for a frame of any of our processes.
fn limits() -> Limits {
    Limits {
        frame_bytes_max: 32 << 20,
        queue_frames_max: 16_384,
        queue_bytes_max: 128 << 20,
        ..Limits::default()
    }
}

/// Who is on both sides.
#[derive(Clone, Copy)]
pub(crate) struct Sides {
    /// Who dials.
    pub dialler: Role,
    /// Who listens.
    pub listener: Role,
}

/// Starts a relay in front of `target` on a thread of its own and gives the address to dial.
pub(crate) fn start(
    certs: &Path,
    at: Addr,
    target: Addr,
    sides: Sides,
    schedule: Arc<Schedule>,
    tap: Arc<dyn Tap>,
) -> anyhow::Result<Addr> {
    let ours = Identity::load(certs, sides.listener)?;
    let theirs = Identity::load(certs, sides.dialler)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start a relay")?;
    let (roles, bounds) = ([sides.dialler], limits());
    let bound = Listener::bind(&at, &ours, &roles, &bounds);
    let mut listener = runtime.block_on(bound)?;
    let addr = listener.addr().clone();
    let serve = async move {
        loop {
            let Ok(near) = listener.accept().await else {
                continue;
            };
            let dialled = wire::control::dial(&target, &theirs, &[sides.listener], &limits()).await;
            // Nobody there: the dialler sees its connection end, and dials again.
            let Ok(far) = dialled else { continue };
            let (schedule, tap) = (schedule.clone(), tap.clone());
            tokio::spawn(both_ways(near, far, schedule, tap));
        }
    };
    std::thread::Builder::new()
        .name("relay".into())
        .spawn(move || runtime.block_on(serve))?;
    Ok(addr)
}

async fn both_ways(near: Connection, far: Connection, schedule: Arc<Schedule>, tap: Arc<dyn Tap>) {
    let ends = (near.sender.clone(), far.sender.clone());
    let there = one_way(near.receiver, far.sender, Way::There, &schedule, &*tap);
    let back = one_way(far.receiver, near.sender, Way::Back, &schedule, &*tap);
    let cut = tokio::select! {
        cut = there => cut,
        cut = back => cut,
    };
    // Whoever ends in order has its last words passed on; on a cut all that is under way is lost.
    if cut {
        ends.0.abort();
        ends.1.abort();
    }
}

/// Until the connection ends; whether it was cut here.
async fn one_way(
    mut from: wire::control::Receiver,
    to: wire::control::Sender,
    way: Way,
    schedule: &Schedule,
    tap: &dyn Tap,
) -> bool {
    while let Ok(Some(frame)) = from.recv().await {
        let frames = tap.pass(way, &frame);
        if schedule.strikes(Kind::Cut).is_some() {
            return true;
        }
        if let Some(mut dice) = schedule.strikes(Kind::Slow) {
            tokio::time::sleep(Duration::from_millis(1 + dice.below(50))).await;
        }
        let frames = frames.unwrap_or_else(|| vec![frame.to_vec()]);
        for frame in frames {
            if to.send_when_free(frame).await.is_err() {
                return false;
            }
        }
    }
    false
}
