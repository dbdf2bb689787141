//! Who may ask now: everybody, operators only, or nobody; and a model that stays private until those
//! workers have been tested that run.
//!
//! What counts as a test is not known here: whoever starts the gateway says which lives of workers
//! were tested ([`Private::set`]), and how far the door is open ([`Private::stand`]). A worker that
//! starts anew is another life, with another epoch, and was not.

use std::collections::BTreeSet;
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use crate::engine::{Code, EngineFacts, Fault, TenantId};

/// A person or a test opens it again: whoever asks each two seconds hears the same for an hour.
const REOPENS_NO_SOONER: Duration = Duration::from_secs(60);

/// One life of a worker, with the pool that it has measured.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WorkerLife {
    /// `prefill`, `decode` or `unified`.
    pub role: String,
    /// As `/server_info` names it.
    pub epoch: String,
    /// In tokens.
    pub pool_tokens: u64,
}

/// How far the door is open, and why not fully.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Stands {
    /// For everybody.
    #[default]
    Open,
    /// For operators and this gateway's own canaries.
    Private(String),
    /// Nothing new is taken; what runs may finish.
    Draining(String),
    /// For nobody.
    Closed(String),
}

/// See the module.
#[derive(Debug)]
pub struct Private {
    operators: BTreeSet<String>,
    /// None: no test is needed.
    tested: Option<RwLock<Result<BTreeSet<WorkerLife>, String>>>,
    stands: RwLock<Stands>,
}

impl Private {
    /// Open, but for what these tenants alone may do.
    pub fn open(operators: impl IntoIterator<Item = String>) -> Self {
        Self {
            operators: operators.into_iter().collect(),
            tested: None,
            stands: RwLock::default(),
        }
    }

    /// Nothing has been tested yet; these tenants may ask all the same, for somebody has to test.
    pub fn new(operators: impl IntoIterator<Item = String>) -> Self {
        let nothing = Err("no evidence has been given".to_owned());
        Self {
            tested: Some(RwLock::new(nothing)),
            ..Self::open(operators)
        }
    }

    /// What was tested, or why nothing counts as tested.
    pub fn set(&self, tested: Result<BTreeSet<WorkerLife>, String>) {
        if let Some(of) = &self.tested {
            *of.write().unwrap_or_else(PoisonError::into_inner) = tested;
        }
    }

    /// From now on the door is as far open as this.
    pub fn stand(&self, stands: Stands) {
        *self.stands.write().unwrap_or_else(PoisonError::into_inner) = stands;
    }

    /// Whether this tenant is an operator.
    pub fn is_operator(&self, tenant: Option<&TenantId>) -> bool {
        tenant.is_some_and(|it| self.operators.contains(it.as_str()))
    }

    /// Whether this tenant (none: anybody) may ask now.
    ///
    /// # Errors
    /// The model is private, and why.
    pub fn admit(&self, tenant: Option<&TenantId>, facts: &EngineFacts) -> Result<(), Fault> {
        let refused = |how: &str, why: &str| {
            let message = format!("this model is {how}: {why}");
            Err(Fault::new(Code::Unavailable, message).retry_after(REOPENS_NO_SOONER))
        };
        let stands = self.stands.read().unwrap_or_else(PoisonError::into_inner);
        match &*stands {
            Stands::Closed(why) => return refused("closed", why),
            Stands::Draining(why) => return refused("not taking anything new", why),
            _ if self.is_operator(tenant) => return Ok(()),
            Stands::Private(why) => return refused("private", why),
            Stands::Open => {}
        }
        let Some(tested) = &self.tested else {
            return Ok(());
        };
        let tested = tested.read().unwrap_or_else(PoisonError::into_inner);
        judge(&tested, facts)
            .or_else(|why| refused("private until what runs has been tested", &why))
    }
}

fn judge(tested: &Result<BTreeSet<WorkerLife>, String>, facts: &EngineFacts) -> Result<(), String> {
    let tested = tested.as_ref().map_err(Clone::clone)?;
    let running = facts.workers.iter().filter(|it| !it.epoch.is_empty());
    for worker in running {
        let same = |life: &WorkerLife| {
            life.role == worker.role.as_str()
                && life.epoch == worker.epoch
                && life.pool_tokens == worker.pool_tokens
        };
        if !tested.iter().any(same) {
            return Err(format!(
                "{} (epoch {}, pool {}) is not among those that the evidence is about",
                worker.name, worker.epoch, worker.pool_tokens
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::errors::retry_after_s;

    #[test]
    fn a_door_that_a_person_opens_is_not_asked_each_two_seconds() {
        let private = Private::new([]);
        let facts = EngineFacts::default();
        let after = |private: &Private| {
            let fault = private.admit(None, &facts).unwrap_err();
            (fault.code, retry_after_s(&fault))
        };
        assert_eq!(after(&private), (Code::Unavailable, Some(60)));
        let why = || "a leak".to_owned();
        for stands in [
            Stands::Private(why()),
            Stands::Draining(why()),
            Stands::Closed(why()),
        ] {
            private.stand(stands);
            assert_eq!(after(&private), (Code::Unavailable, Some(60)));
        }
    }
}
