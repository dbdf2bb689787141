//! Prefixes that two tenants share: does one learn that the other has asked the same?
//!
//! With a control: a server that never reuses anything passes every such test, and is said to.

use super::crossed::{Crossed, Not, Shown, Way, crossed};
use super::prefix_named::{adapters, salts};
use super::{Known, Stopped, Suite, find};
use crate::canary::Tenant;
use crate::finding::Kind;
use crate::run::ProbeRun;
use serde_json::Map;

const NAME: &str = "prefix";

pub(super) async fn run(run: &ProbeRun, known: &Known) -> Result<(), Stopped> {
    let tenants = run.tenants();
    let [a, b, ..] = tenants[..] else {
        return Err(Stopped::Needs(
            "prefix needs the keys of two tenants".to_owned(),
        ));
    };
    let way = |tenant| Way {
        tenant,
        fields: Map::new(),
    };
    let keys = match crossed(run, NAME, known, (&way(a), &way(b))).await {
        Ok(keys) => keys,
        Err(Not::Spent(spent)) => return Err(spent.into()),
        Err(Not::Refused(status)) => {
            let why = format!("a prompt of 40 sentences is not answered (status {status})");
            return Err(Stopped::Needs(why));
        }
    };
    between_keys(run, &keys, (a, b))?;
    match keys.own.told {
        Shown::Perhaps => return Err(uncertain("the same tenant's second request", &keys.own.says)),
        Shown::No => run.note(
            NAME,
            format!(
                "no prefix is reused as far as anybody can tell, the tenant's own neither ({}): salts \
                 were not tried",
                keys.own.says
            ),
        ),
        Shown::Yes => salts(run, known, (a, b), keys.other.told == Shown::No).await?,
    }
    adapters(run, known, a).await
}

/// Two keys are two tenants to the server; with one key it cannot know of them.
fn between_keys(run: &ProbeRun, keys: &Crossed, (a, b): (Tenant, Tenant)) -> Result<(), Stopped> {
    match keys.other.told {
        Shown::No => return Ok(()),
        Shown::Perhaps => return Err(uncertain("another tenant's prompt", &keys.other.says)),
        Shown::Yes => {}
    }
    let key = |tenant| run.endpoint(tenant).key.as_ref();
    let kind = match key(a) == key(b) {
        true => Kind::Suspect,
        false => Kind::SharedPrefix,
    };
    let says = format!(
        "tenant {b} can tell that tenant {a} has asked the same prompt: {}",
        keys.other.says
    );
    find(run, Suite::Prefix, kind, says, keys.shows.clone());
    Ok(())
}

/// What is neither shown nor excluded.
pub(super) fn uncertain(what: &str, says: &str) -> Stopped {
    Stopped::Needs(format!(
        "whether {what} was answered from what had been computed is uncertain ({says}): ask again, \
         when the server has less to do"
    ))
}
