//! A model whose type is not known: what a command that picks decisions by name works with.

use crate::model::Model;
use crate::search::{self, Limits, Progress, Report};
use crate::simulate::{self, Length, Run};
use crate::timeline::{self, Impossible, Timeline};

/// A world with some decisions, whichever they are; `A` is what may happen in it.
pub trait Runner<A>: Send + Sync {
    /// Explores it. See [`search::explore`].
    fn explore(&self, limits: &Limits, watch: &mut dyn FnMut(&Progress)) -> Report<A>;

    /// Runs it at random. See [`simulate::run`].
    fn simulate(&self, seed: u64, length: Length) -> Run<A>;

    /// Runs it again. See [`timeline::replay`].
    ///
    /// # Errors
    /// If something cannot happen where it stands.
    fn replay(&self, acts: &[A]) -> Result<Timeline, Impossible>;
}

impl<M: Model + Send> Runner<M::Act> for M {
    fn explore(&self, limits: &Limits, watch: &mut dyn FnMut(&Progress)) -> Report<M::Act> {
        search::explore(self, limits, watch)
    }

    fn simulate(&self, seed: u64, length: Length) -> Run<M::Act> {
        simulate::run(self, seed, length)
    }

    fn replay(&self, acts: &[M::Act]) -> Result<Timeline, Impossible> {
        timeline::replay(self, acts)
    }
}
