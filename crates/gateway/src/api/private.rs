//! A model that stays private until those workers have been tested that run.
//!
//! What counts as a test is not known here: whoever starts the gateway says which lives of workers
//! were tested ([`Private::set`]). A worker that starts anew is another life, with another epoch, and
//! was not.

use std::collections::BTreeSet;
use std::sync::{PoisonError, RwLock};

use crate::engine::{Code, EngineFacts, Fault, TenantId};

/// One life of a worker, with the pool that it has measured.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Life {
    /// `prefill`, `decode` or `unified`.
    pub role: String,
    /// As `/server_info` names it.
    pub epoch: String,
    /// In tokens.
    pub pool_tokens: u64,
}

/// Who may ask while a model is private, and what was tested.
#[derive(Debug)]
pub struct Private {
    operators: BTreeSet<String>,
    tested: RwLock<Result<BTreeSet<Life>, String>>,
}

impl Private {
    /// Nothing has been tested yet; these tenants may ask all the same, for somebody has to test.
    pub fn new(operators: impl IntoIterator<Item = String>) -> Self {
        Self {
            operators: operators.into_iter().collect(),
            tested: RwLock::new(Err("no evidence has been given".to_owned())),
        }
    }

    /// What was tested, or why nothing counts as tested.
    pub fn set(&self, tested: Result<BTreeSet<Life>, String>) {
        *self.tested.write().unwrap_or_else(PoisonError::into_inner) = tested;
    }

    /// Whether this tenant (none: anybody) may ask now.
    ///
    /// # Errors
    /// The model is private, and why.
    pub fn admit(&self, tenant: Option<&TenantId>, facts: &EngineFacts) -> Result<(), Fault> {
        if tenant.is_some_and(|it| self.operators.contains(it.as_str())) {
            return Ok(());
        }
        self.judge(facts).map_err(|why| {
            let message = format!("this model is private until what runs has been tested: {why}");
            Fault::new(Code::Unavailable, message)
        })
    }

    fn judge(&self, facts: &EngineFacts) -> Result<(), String> {
        let tested = self.tested.read().unwrap_or_else(PoisonError::into_inner);
        let tested = tested.as_ref().map_err(Clone::clone)?;
        let running = facts.workers.iter().filter(|it| !it.epoch.is_empty());
        for worker in running {
            let same = |life: &Life| {
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
}
