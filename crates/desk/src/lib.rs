//! What an operator on call sees and presses. It knows nothing of gateways or stores: whoever serves
//! puts a [`DeskState`] together and carries out an [`Action`], behind the trait [`Desk`].
#![forbid(unsafe_code)]

mod act;
mod answer;
mod feed;
mod headline;
mod keys;
mod server;
mod stall;
pub mod state;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

pub use act::{Act, Action, ActionRefused, ActionScope, Done, REASON_MAX, WhoseFault};
pub use feed::View;
pub use headline::{Headline, Press, Urgency, headline, utc};
pub use keys::{Keys, KeysError};
pub use server::{Limits, serve, serve_within};
pub use state::DeskState;

/// What stands behind the desk.
pub trait Desk: Send + Sync + 'static {
    /// The state of this moment. Called at most once a second for all readers together, and once for
    /// each `/state`; it must not wait for anything.
    fn state(&self) -> Arc<DeskState>;

    /// Carries an action out and writes it down. What is not written down is not done.
    fn act(
        &self,
        action: Action,
    ) -> Pin<Box<dyn Future<Output = Result<Done, ActionRefused>> + Send + '_>>;
}
