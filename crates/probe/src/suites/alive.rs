//! Does the server still live? A request that ends a server ends everybody's answers.

use super::{Stopped, Suite, find};
use crate::canary::Tenant;
use crate::client::TenantEndpoint;
use crate::finding::{Kind, Sent};
use crate::run::{Liveness, ProbeRun, Spent};
use std::time::Duration;

/// Waits before somebody who does not answer is asked again, in milliseconds.
const WAITS: [u64; 4] = [0, 200, 800, 2_000];

/// What was counted before a suite.
#[derive(Clone, Copy)]
pub(super) struct Before {
    answered: u64,
    /// What happened before is not this suite's doing.
    gone: bool,
}

impl Before {
    pub(super) fn of(run: &ProbeRun) -> Self {
        Self {
            answered: run.counts().answered,
            gone: run.nobody_is_there(),
        }
    }
}

/// After a suite: is the server still there? Its last request may have been what ended it.
pub(super) async fn after(run: &ProbeRun, suite: Suite, before: Before) -> Result<(), Stopped> {
    let now = Before::of(run);
    // `pair` asks the workers itself, and they need not answer what comes without references.
    if suite == Suite::Pair || now.answered == 0 || before.gone {
        return Ok(()); // nothing was to break it, or nobody was ever there
    }
    let tenant = run.tenants()[0];
    let shows = run.last_words();
    check(run, suite, run.endpoint(tenant), tenant, true, &shows).await
}

/// Whether a server answers an ordinary request at all, before it is misused.
pub(super) async fn answers(
    run: &ProbeRun,
    endpoint: &TenantEndpoint,
    tenant: Tenant,
) -> Result<bool, Spent> {
    Ok(run.lives(endpoint, tenant).await? == Liveness::Answers)
}

/// Asks a server that answered whether it lives; if not, these requests have ended it.
///
/// # Errors
/// It does not, and nothing more can be asked of it.
pub(super) async fn check(
    run: &ProbeRun,
    suite: Suite,
    endpoint: &TenantEndpoint,
    tenant: Tenant,
    answered: bool,
    shows: &[Sent],
) -> Result<(), Stopped> {
    let mut lives = Vec::new();
    for wait in WAITS {
        tokio::time::sleep(Duration::from_millis(wait)).await;
        let life = run.lives(endpoint, tenant).await?;
        lives.push(life);
        // One that did not answer ordinary requests before need not do so now.
        if life == Liveness::Answers || matches!(life, Liveness::Fails(_)) && !answered {
            break;
        }
    }
    let address = &endpoint.address;
    let refused = lives.iter().filter(|it| **it == Liveness::Gone).count();
    let says = match (lives.last(), refused) {
        (Some(Liveness::Fails(status @ (503 | 529))), 0) => {
            let why = format!("{address} answers {status} to whatever it is asked: busy, or dead?");
            return Err(Stopped::Needs(why));
        }
        (Some(Liveness::Fails(status)), _) if answered => format!(
            "{address} answers {status} to whatever it is asked, {} times: its engine is dead, and \
             was not before",
            lives.len()
        ),
        (Some(Liveness::Gone), _) => format!(
            "{address} is not reached any more, {} times, and answered before: it is dead",
            lives.len()
        ),
        (_, 2..) => {
            format!("{address} was not reached, {refused} times, and came back: it had died")
        }
        _ => return Ok(()),
    };
    find(run, suite, Kind::Crash, says, shows.to_vec());
    match lives.last() {
        Some(Liveness::Answers) => Ok(()),
        _ => {
            run.gave_up(endpoint);
            Err(Stopped::Spent(Spent::Gone))
        }
    }
}
